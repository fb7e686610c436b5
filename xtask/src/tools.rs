//! Programs of crates.io that tasks run, each at a pinned version that is built once and kept in the cache folder.

use std::{fs, path::PathBuf, process::Command};

use anyhow::Result;
use devenv::{cache_dir, execute, forget_caller};

/// A program, its version, and further arguments of the installation.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
    options: &'static [&'static str],
}

/// Licences, sources and advisories of dependencies.
pub(crate) const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", options: &[] };
/// The site. Without its own server, which needs half of its dependencies.
pub(crate) const MDBOOK: Tool =
    Tool { name: "mdbook", version: "0.5.4", options: &["--no-default-features", "--features", "search"] };
/// Diagrams of the site. Its minor version goes with that of mdBook.
pub(crate) const MDBOOK_MERMAID: Tool = Tool { name: "mdbook-mermaid", version: "0.17.1", options: &[] };

impl Tool {
    /// The folder with its `bin`.
    fn root(&self) -> Result<PathBuf> {
        Ok(cache_dir()?.join(format!("{}-{}", self.name, self.version)))
    }

    /// The program, which is built first if need be (minutes).
    pub(crate) fn program(&self) -> Result<PathBuf> {
        let Self { name, version, options } = self;
        let root = self.root()?;
        let program = root.join("bin").join(name);
        if program.is_file() {
            return Ok(program);
        }
        eprintln!("building {name} {version} (minutes, once)");
        let target = root.join("target");
        // Debug: half the time to build, and each runs for seconds either way.
        let mut cargo = Command::new("cargo");
        forget_caller(&mut cargo);
        cargo.args(["install", name, "--version", version, "--locked", "--debug"]).args(*options);
        execute(cargo.arg("--root").arg(&root).env("CARGO_TARGET_DIR", &target))?;
        fs::remove_dir_all(target)?;
        Ok(program)
    }
}
