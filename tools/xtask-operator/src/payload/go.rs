//! Builds programs for Windows from Go modules.
//!
//! Each set of programs has a module of its own under `tools/xtask/payload/`, which names them as tools: go.mod pins the versions, go.sum the hashes,
//! and no set affects the dependencies of another. Kubernetes has a set for each minor version, from which the test bed also builds control planes.
//! To take a newer version of a program, change the version in the set's go.mod (for Kubernetes, also in the replace lines of go.mod and in
//! `testbed::binaries::KUBERNETES`), and run `go mod tidy` in the set's folder.

use std::{path::PathBuf, process::Command, time::Instant};

use anyhow::{Context, Result, ensure};
use devenv::{with_progress, workspace_root};
use testbed::binaries::stamp;

/// Program in a Go module.
pub(super) struct Program {
    /// Folder under `tools/xtask/payload/`, in which `{kubernetes}` stands for a minor version of Kubernetes.
    pub set: &'static str,
    /// Module that contains the program.
    pub module: &'static str,
    /// Package of the program.
    pub package: &'static str,
    /// Linker flags that set the program's version, with `{version}` (as `v1.36.3`), `{bare}` (`1.36.3`), `{major}` and
    /// `{minor}`.
    pub version: &'static str,
}

impl Program {
    /// Returns the folder of the set for a minor version of Kubernetes, such as `1.36`.
    pub(super) fn folder(&self, kubernetes: &str) -> PathBuf {
        workspace_root().join("tools/xtask/payload").join(self.set.replace("{kubernetes}", kubernetes))
    }

    /// Returns the version that go.mod pins, such as `v1.36.3`.
    fn pinned(&self, kubernetes: &str) -> Result<String> {
        let mut go = self.go(kubernetes);
        let version = devenv::read(go.args(["list", "-m", "-f", "{{.Version}}", self.module]));
        version.with_context(|| format!("cannot read the version of {}; Go 1.26 or newer is needed", self.module))
    }

    /// Returns a `go` command for Windows on amd64, without cgo, and without the user's workspace and build flags.
    pub(super) fn go(&self, kubernetes: &str) -> Command {
        let mut go = Command::new("go");
        go.current_dir(self.folder(kubernetes))
            .env("CGO_ENABLED", "0")
            .env("GOOS", "windows")
            .env("GOARCH", "amd64")
            .env("GOAMD64", "v1")
            .env("GOWORK", "off")
            .env("GOFLAGS", "-mod=readonly");
        go
    }
}

/// Builds a program for a minor version of Kubernetes, prints the progress, and returns its path and version. A second build takes seconds,
/// because Go caches compiled packages.
pub(super) fn build(program: &Program, kubernetes: &str, file_name: &str, step: &str) -> Result<(PathBuf, String)> {
    let version = program.pinned(kubernetes)?;
    let folder = target_folder().join("payload");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let out = folder.join(file_name);
    println!("{step}: building {version}");
    let start = Instant::now();
    let mut go = program.go(kubernetes);
    go.args(["build", "-trimpath", "-buildvcs=false", "-ldflags"])
        .arg(format!("-s -w -buildid= {}", stamp(program.version, &version)))
        .arg("-o")
        .arg(&out)
        .arg(program.package);
    let status = with_progress(&format!("building {file_name}"), || go.status())
        .context("cannot run go; Go 1.26 or newer is needed to build the payload")?;
    ensure!(status.success(), "{} cannot be built; see the output of go above", program.package);
    println!("{step}: built in {} s", start.elapsed().as_secs());
    Ok((out, version))
}

fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from)
}
