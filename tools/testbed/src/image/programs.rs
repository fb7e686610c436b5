//! Programs of an image, compiled so that every machine makes the same bytes.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use devenv::{WINDOWS_TARGET, cargo_home, forget_caller, workspace_root};

use super::Arch;
use crate::binaries::{Run as _, say, with_progress};

/// File name of the linker for Windows. rustc derives the kind of linker from it.
const LINKER: &str = "x86_64-w64-mingw32-gcc.sh";
const LINK: &str = include_str!("x86_64-w64-mingw32-gcc.sh");

/// Profile in which the operator is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Profile of a release.
    Release,
    /// Profile for tests, which compiles in minutes.
    Test,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Release => "image",
            Self::Test => "image-test",
        }
    }
}

/// Compiler of programs, with its sources, target folder and cargo home.
#[derive(Clone, Debug)]
pub struct Compiler {
    source: PathBuf,
    target: PathBuf,
    cargo_home: PathBuf,
}

impl Compiler {
    /// Returns a compiler of this workspace, with a separate target folder: the cargo that started a test may hold the lock of
    /// the usual one.
    ///
    /// # Errors
    /// Fails when neither `CARGO_HOME` nor `HOME` is set.
    pub fn new() -> Result<Self> {
        let source = workspace_root();
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| source.join("target"), |dir| source.join(dir));
        Ok(Self { source, target: target.join("musl"), cargo_home: cargo_home()? })
    }

    /// Returns a compiler of a copy of this workspace in `folder`, with another cargo home: as on another machine.
    ///
    /// # Errors
    /// Fails when files cannot be copied.
    pub fn elsewhere(folder: &Path) -> Result<Self> {
        let (from, source, home) = (workspace_root(), folder.join("source"), folder.join("cargo"));
        let mut git = Command::new("git");
        git.current_dir(&from).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
        for name in git.read()?.lines() {
            let to = source.join(name);
            fs::create_dir_all(to.parent().unwrap_or(&source))?;
            match fs::copy(from.join(name), &to) {
                // The file is deleted in the work tree, but not in the index.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                copied => drop(copied.with_context(|| format!("cannot copy {name}"))?),
            }
        }
        fs::create_dir_all(&home)?;
        // Links the content of the usual cargo home, such as sources and settings of registries.
        for entry in fs::read_dir(cargo_home()?)? {
            let entry = entry?;
            let link = home.join(entry.file_name());
            if !link.exists() {
                std::os::unix::fs::symlink(entry.path(), link)?;
            }
        }
        Ok(Self { source, target: folder.join("target"), cargo_home: home })
    }

    /// Compiles the operator or its client as one static program, and returns its path. `revision` is the commit that it reports.
    ///
    /// # Errors
    /// Fails when cargo fails.
    pub fn program(&self, name: &str, arch: Arch, profile: Profile, revision: Option<&str>) -> Result<PathBuf> {
        let mut cargo = self.cargo(arch.target(), profile.name(), arch.flags());
        cargo.env(format!("CC_{}", arch.target().replace('-', "_")), arch.compiler());
        if arch != Arch::Amd64 {
            let linker = format!("CARGO_TARGET_{}_LINKER", arch.target().replace('-', "_").to_uppercase());
            cargo.env(linker, arch.compiler());
        }
        cargo.args(["-p", "controller", "--bin", name]);
        match revision {
            Some(revision) => cargo.env("WINDOWS_NODE_POOLS_REVISION", revision),
            None => cargo.env_remove("WINDOWS_NODE_POOLS_REVISION"),
        };
        run(&mut cargo, "the programs of the image")?;
        self.built(arch.target(), profile.name(), name)
    }

    /// Compiles `wicd.exe`, and returns its path.
    ///
    /// # Errors
    /// Fails when cargo fails.
    pub fn wicd(&self) -> Result<PathBuf> {
        self.for_windows("wicd", &["-p", "wicd"], "wicd.exe")
    }

    /// Compiles the client for Windows, and returns its path.
    ///
    /// # Errors
    /// Fails when cargo fails.
    pub fn client_for_windows(&self, profile: Profile) -> Result<PathBuf> {
        let name = format!("{}.exe", super::CLIENT);
        self.for_windows(profile.name(), &["-p", "controller", "--bin", super::CLIENT], &name)
    }

    fn for_windows(&self, profile: &str, args: &[&str], name: &str) -> Result<PathBuf> {
        let mut cargo = self.cargo(WINDOWS_TARGET, profile, &[]);
        let linker = self.target.join(LINKER);
        fs::create_dir_all(&self.target)?;
        fs::write(&linker, LINK)?;
        fs::set_permissions(&linker, fs::Permissions::from_mode(0o755))?;
        let rust = Command::new("rustc").current_dir(&self.source).args(["--print", "sysroot"]).read()?;
        cargo.env(format!("CARGO_TARGET_{}_LINKER", WINDOWS_TARGET.replace('-', "_").to_uppercase()), linker);
        cargo.env("LINK_TARGET", &self.target).env("LINK_CARGO", &self.cargo_home).env("LINK_RUST", rust.trim());
        run(cargo.args(args), &format!("{name} for the image"))?;
        self.built(WINDOWS_TARGET, profile, name)
    }

    fn cargo(&self, target: &str, profile: &str, flags_of_c: &[&str]) -> Command {
        let mut cargo = Command::new("cargo");
        forget_caller(&mut cargo);
        cargo.current_dir(&self.source).args(["build", "--locked", "--target", target, "--profile", profile]);
        cargo.env("CARGO_TARGET_DIR", &self.target).env("CARGO_HOME", &self.cargo_home);
        // Messages of panics and output of C compilers contain names of this machine's folders. The workspace needs no mapping: cargo compiles its
        // members by relative paths, and a flag that names the workspace would make each clone compile everything again.
        let paths = [format!("{}=/cargo", self.cargo_home.display()), format!("{}=/target", self.target.display())];
        let flags = paths.each_ref().map(|path| format!("--remap-path-prefix={path}"));
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        let flags = paths.iter().map(|path| format!("-ffile-prefix-map={path}"));
        let flags: Vec<_> = flags.chain(flags_of_c.iter().map(ToString::to_string)).collect();
        cargo.env(format!("CFLAGS_{}", target.replace('-', "_")), flags.join(" "));
        // The linker for Windows writes a timestamp into the program.
        cargo.env("SOURCE_DATE_EPOCH", "0");
        cargo
    }

    fn built(&self, target: &str, profile: &str, name: &str) -> Result<PathBuf> {
        let path = self.target.join(target).join(profile).join(name);
        fs::metadata(&path).with_context(|| format!("cargo has not built {}", path.display()))?;
        Ok(path)
    }
}

fn run(cargo: &mut Command, what: &str) -> Result<()> {
    say(&format!("bringing {what} up to date (many minutes the first time)"));
    with_progress(&format!("building {what}"), || cargo.run())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the linker gets the same arguments wherever the folders are.
    #[test]
    fn names_of_files_are_relative() {
        let seen = ["a", "usr/z"].map(|name| {
            let folder = tempfile::tempdir().unwrap();
            let path = |rest: &str| folder.path().join(name).join(rest);
            for part in ["bin", "target", "cargo", "rust"] {
                fs::create_dir_all(path(part)).unwrap();
            }
            let write = |file: &Path, text: &str| {
                fs::write(file, text).unwrap();
                fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
            };
            write(
                &path("bin/x86_64-w64-mingw32-gcc"),
                "#!/bin/sh\ncat target.txt cargo-home/cargo.txt rust/rust.txt\nprintf '%s\\n' \"$@\"\n",
            );
            write(&path(LINKER), LINK);
            for part in ["target", "cargo", "rust"] {
                fs::write(path(part).join(format!("{part}.txt")), format!("{part}\n")).unwrap();
            }
            let of = |rest: &str| path(rest).display().to_string();
            let output = Command::new(path(LINKER))
                .args([
                    "-o".into(),
                    of("target/wicd.exe"),
                    "-L".into(),
                    of("cargo/registry/a b"),
                    of("rust/lib/std.rlib"),
                    "-lkernel32".into(),
                ])
                .env("PATH", format!("{}:/usr/bin:/bin", of("bin")))
                .env("LINK_TARGET", path("target"))
                .env("LINK_CARGO", path("cargo"))
                .env("LINK_RUST", path("rust"))
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        });
        let expected =
            "target\ncargo\nrust\n-o\nwicd.exe\n-L\ncargo-home/registry/a b\nrust/lib/std.rlib\n-lkernel32\n";
        assert_eq!(seen, [expected, expected]);
    }
}
