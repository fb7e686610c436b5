//! Programs of other projects that the check runs, in the cache folder. pip installs prebuilt ones in seconds, with the versions and hashes of
//! `tools/xtask/requirements.txt`. cargo builds mdBook once.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use devenv::{cache_dir, execute, workspace_root};

/// Returns a command for a program of `requirements.txt`, in the root of the repository. Installs the programs first if necessary.
pub(crate) fn prebuilt(name: &str) -> Result<Command> {
    let requirements = workspace_root().join("tools/xtask/requirements.txt");
    let (folder, wanted) = (cache_dir()?.join("tools"), fs::read(&requirements)?);
    let installed = folder.join("requirements.txt");
    if !fs::read(&installed).is_ok_and(|installed| installed == wanted) {
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let mut pip = Command::new("pip3");
        let options = "--quiet --root-user-action ignore --require-hashes --no-deps --only-binary :all: --target";
        pip.arg("install").args(options.split(' '));
        execute(pip.arg(&folder).arg("--requirement").arg(&requirements)).context(
            "cannot install the programs of tools/xtask/requirements.txt with pip3, which `cargo xtask setup` installs",
        )?;
        fs::write(installed, wanted)?;
    }
    let mut program = Command::new(folder.join("bin").join(name));
    program.current_dir(workspace_root());
    Ok(program)
}

/// Arguments of lychee: links to other sites are not checked, and fragments must lead to a heading.
pub(crate) const LYCHEE: &[&str] = &["--offline", "--include-fragments=full", "--no-progress"];

/// Program of crates.io, its version, and further arguments of the installation.
pub(crate) struct Tool(&'static str, &'static str, &'static [&'static str]);

/// mdBook for the site, without its own server, which needs half of its dependencies.
pub(crate) const MDBOOK: Tool = Tool("mdbook", "0.5.4", &["--no-default-features", "--features", "search"]);
/// Plug-in of mdBook for diagrams of the site. Its minor version must match that of mdBook.
pub(crate) const MDBOOK_MERMAID: Tool = Tool("mdbook-mermaid", "0.17.1", &[]);

impl Tool {
    /// Returns the path of the program. Builds it first if necessary, which takes minutes.
    pub(crate) fn program(&self) -> Result<PathBuf> {
        let Self(name, version, options) = self;
        let root = cache_dir()?.join(format!("{name}-{version}"));
        let program = root.join("bin").join(name);
        if program.is_file() {
            return Ok(program);
        }
        eprintln!("building {name} {version} (minutes, once)");
        let target = root.join("target");
        // A debug build takes half the time, and each program runs for seconds either way.
        let mut cargo = devenv::cargo();
        cargo.args(["install", name, "--version", version, "--locked", "--debug"]).args(*options);
        execute(cargo.arg("--root").arg(&root).env("CARGO_TARGET_DIR", &target))?;
        fs::remove_dir_all(target)?;
        Ok(program)
    }
}
