//! Real programs of a node, built for Windows, which [Wine](crate::wine::Prefix) runs as far as possible without a node.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

use super::{Module, Run as _, Set, built_once, cache_dir, go_build, key, say};

/// Program in a Go module.
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
/// CNI plugin of the payload for overlay networks.
pub const WIN_OVERLAY: NodeProgram = NodeProgram {
    module: "tools/xtask/payload/cni",
    package: "github.com/containernetworking/plugins/plugins/main/windows/win-overlay",
};
/// CNI plugin of the payload for addresses.
pub const HOST_LOCAL: NodeProgram = NodeProgram {
    module: WIN_OVERLAY.module,
    package: "github.com/containernetworking/plugins/plugins/ipam/host-local",
};

/// Finds or builds a program, which takes about a minute.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn node_program(program: &NodeProgram) -> Result<PathBuf> {
    let name = format!("{}.exe", program.package.rsplit('/').next().context("a package has a name")?);
    Module::new(program.module, &[])?.program(&name, &name, &[program.package], "about a minute")
}

/// Finds or builds containerdjudge (`tools/testbed/containerdjudge`) with the code of a containerd, which takes about a minute.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn containerdjudge(containerd: &NodeProgram) -> Result<PathBuf> {
    const NAME: &str = "containerdjudge";
    let module = Module::new(containerd.module, &[])?;
    let source = crate::source_dir().join(NAME).join("main.go");
    let dir = cache_dir()?.join(format!("{NAME}-{}", key(&[&fs::read_to_string(&source)?, &module.key()])));
    built_once(&dir, NAME, |out| go_build().current_dir(module.folder).arg("-o").arg(out).arg(source).run())
}

/// Finds or builds `kubelet` or `kube-proxy` of one of the versions [`super::KUBERNETES`], which takes minutes.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn of_kubernetes(name: &str, version: &str) -> Result<PathBuf> {
    let set = Set::of(version)?;
    let dir = cache_dir()?.join(format!("{name}-{version}-{}", set.key));
    built_once(&dir, &format!("{name}.exe"), |out| {
        say(&format!("building {name}.exe {version} (minutes, once)"));
        set.build(out, &[format!("k8s.io/kubernetes/cmd/{name}").as_ref()], "windows")
    })
}

/// Finds or builds crdbudget (`tools/testbed/crdbudget`), which checks a CustomResourceDefinition with the code of an API server of one of the versions
/// [`super::KUBERNETES`]. A build takes a minute.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn crdbudget(kubernetes: &str) -> Result<PathBuf> {
    const SOURCE: &str = include_str!("../../crdbudget/main.go");
    let set = Set::of(kubernetes)?;
    let dir = cache_dir()?.join(format!("crdbudget-{kubernetes}-{}", key(&[SOURCE, &set.key])));
    built_once(&dir, "crdbudget", |out| {
        say(&format!("building crdbudget for Kubernetes {kubernetes} (a minute, once)"));
        set.build(out, &[&crate::source_dir().join("crdbudget/main.go")], "linux")
    })
}

const NODEJUDGE: &str = include_str!("../../nodejudge/main.go");
/// Beginning of a source file for nodejudge, before kubelet's function [`RESERVED`].
const RESERVED_IMPORTS: &str = r#"package main

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubernetes/pkg/kubelet/stats/pidlimit"
)

"#;
/// Beginning of the function with which kubelet parses reserved resources when it starts. It is private to its package.
const RESERVED: &str = "func parseResourceList(";

/// Finds or builds nodejudge (`tools/testbed/nodejudge`) with the code of one of the versions [`super::KUBERNETES`], which takes minutes.
///
/// # Errors
/// Fails when it is missing and cannot be built, for example because kubelet lacks the expected function, or the cache cannot be written.
pub fn nodejudge(kubernetes: &str) -> Result<PathBuf> {
    let set = Set::of(kubernetes)?;
    let dir = cache_dir()?
        .join(format!("nodejudge-{kubernetes}-{}", key(&[NODEJUDGE, RESERVED_IMPORTS, RESERVED, &set.key])));
    built_once(&dir, "nodejudge.exe", |out| {
        say(&format!("building nodejudge for Kubernetes {kubernetes} (minutes, once)"));
        let reserved = function(&set.read("cmd/kubelet/app/server.go")?, RESERVED)?;
        // All Go files must be in one folder.
        let sources = tempfile::tempdir()?;
        let [main, of_kubelet] = ["main.go", "reserved.go"].map(|name| sources.path().join(name));
        fs::write(&main, NODEJUDGE)?;
        fs::write(&of_kubelet, format!("{RESERVED_IMPORTS}{reserved}"))?;
        set.build(out, &[&main, &of_kubelet], "windows")
    })
}

/// Returns the function of a Go source that begins with this text.
fn function(source: &str, begins: &str) -> Result<String> {
    let (_, rest) = source.split_once(&format!("\n{begins}")).with_context(|| format!("there is no {begins}"))?;
    let (body, _) = rest.split_once("\n}\n").context("the function has no end")?;
    Ok(format!("{begins}{body}\n}}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_ends_where_its_brace_is_closed() {
        let source = "// a\nfunc a(x int) {\n\tif x {\n\t}\n}\n\nfunc b() {\n}\n";
        assert_eq!(function(source, "func a(").unwrap(), "func a(x int) {\n\tif x {\n\t}\n}\n");
        assert_eq!(function(source, "func c(").unwrap_err().to_string(), "there is no func c(");
    }
}
