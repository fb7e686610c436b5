//! Real programs of a node, built for Windows, which [Wine](crate::wine::Prefix) runs as far as they go without one.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

use super::{Run as _, Set, built_once, cache_dir, go_build, key, say, workspace_root};

/// Program of a module of Go.
pub struct NodeProgram {
    /// Folder of the module, in the repository.
    module: &'static str,
    /// Package in that module.
    package: &'static str,
}

/// containerd of the payload.
pub const CONTAINERD: NodeProgram = NodeProgram {
    module: "tools/xtask/payload/containerd",
    package: "github.com/containerd/containerd/v2/cmd/containerd",
};
/// Oldest containerd that a payload may have.
pub const OLDEST_CONTAINERD: NodeProgram =
    NodeProgram { module: "tools/testbed/containerd-oldest", package: CONTAINERD.package };
/// Exporter of the payload.
pub const WINDOWS_EXPORTER: NodeProgram = NodeProgram {
    module: "tools/xtask/payload/windows_exporter",
    package: "github.com/prometheus-community/windows_exporter",
};
/// CNI plugin of the payload.
pub const WIN_OVERLAY: NodeProgram = NodeProgram {
    module: "tools/xtask/payload/cni",
    package: "github.com/containernetworking/plugins/plugins/main/windows/win-overlay",
};

/// Finds or builds a program: about a minute.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn node_program(program: &NodeProgram) -> Result<PathBuf> {
    let folder = workspace_root().join(program.module);
    let [go_mod, go_sum] = ["go.mod", "go.sum"].map(|name| fs::read_to_string(folder.join(name)));
    let name = format!("{}.exe", program.package.rsplit('/').next().context("a package has a name")?);
    let dir = cache_dir()?.join(format!("{name}-{}", key(&[&go_mod?, &go_sum?])));
    built_once(&dir, &name, |out| {
        go_build().current_dir(folder).env("GOOS", "windows").arg("-o").arg(out).arg(program.package).run()
    })
}

/// Finds or builds nodejudge (`tools/testbed/nodejudge`) with the code of one of the versions [`super::KUBERNETES`]: minutes.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn nodejudge(kubernetes: &str) -> Result<PathBuf> {
    let set = Set::of(kubernetes)?;
    let inputs = [include_str!("../../nodejudge/main.go"), &set.key];
    let dir = cache_dir()?.join(format!("nodejudge-{kubernetes}-{}", key(&inputs)));
    built_once(&dir, "nodejudge.exe", |out| {
        say(&format!("building nodejudge for Kubernetes {kubernetes} (minutes, once)"));
        set.build(out, &crate::source_dir().join("nodejudge/main.go"), "windows")
    })
}
