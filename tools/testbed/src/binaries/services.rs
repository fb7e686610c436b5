//! Stand-ins for containerd and the services of an OpenShift node on a Wine host, and the real log runner that runs some of them.

use std::path::PathBuf;

use anyhow::Result;

use super::{GO_MOD, GO_SUM, KUBERNETES_VERSION, Run as _, built_once, cache_dir, go_build, key, ldflags, say};

const SERVICE: &str = include_str!("../../go/winservice/winservice.go");

/// Finds or builds hostcontainerd (`tools/testbed/go/hostcontainerd`), which takes seconds.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn host_containerd() -> Result<PathBuf> {
    build("hostcontainerd", include_str!("../../go/hostcontainerd/main.go"))
}

/// Finds or builds hostoverlay, which replaces hybrid-overlay-node (`tools/testbed/go/hostoverlay`). A build takes about a minute.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn host_overlay() -> Result<PathBuf> {
    build("hostoverlay", include_str!("../../go/hostoverlay/main.go"))
}

/// Finds or builds hostproxy, which replaces kube-proxy (`tools/testbed/go/hostproxy`). A build takes about a minute.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn host_proxy() -> Result<PathBuf> {
    build("hostproxy", include_str!("../../go/hostproxy/main.go"))
}

/// Finds or builds the real kube-log-runner, which takes seconds.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn log_runner() -> Result<PathBuf> {
    const NAME: &str = "kube-log-runner";
    let dir = cache_dir()?.join(format!("{NAME}-{KUBERNETES_VERSION}-{}", key(&[GO_MOD, GO_SUM])));
    built_once(&dir, &format!("{NAME}.exe"), |out| {
        let package = format!("k8s.io/component-base/logs/{NAME}");
        go_build()
            .env("GOOS", "windows")
            .args(["-ldflags", &ldflags(KUBERNETES_VERSION)])
            .arg("-o")
            .arg(out)
            .arg(package)
            .run()
    })
}

/// Finds or builds hostnodemanager, which replaces azure-cloud-node-manager (`tools/testbed/hostnodemanager`). A build takes about two minutes.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn host_node_manager() -> Result<PathBuf> {
    const NAME: &str = "hostnodemanager";
    let inputs = [
        include_str!("../../hostnodemanager/go.mod"),
        include_str!("../../hostnodemanager/go.sum"),
        include_str!("../../hostnodemanager/main.go"),
    ];
    let dir = cache_dir()?.join(format!("{NAME}-{}", key(&inputs)));
    built_once(&dir, &format!("{NAME}.exe"), |out| {
        say(&format!("building {NAME} (about 2 minutes, once)"));
        let mut build = go_build();
        build.current_dir(crate::source_dir().join(NAME)).env("GOOS", "windows").args(["-ldflags", "-s -w"]);
        build.arg("-o").arg(out).arg(".").run()
    })
}

fn build(name: &str, source: &str) -> Result<PathBuf> {
    let dir = cache_dir()?.join(format!("{name}-{}", key(&[GO_MOD, GO_SUM, SERVICE, source])));
    built_once(&dir, &format!("{name}.exe"), |out| {
        let mut build = go_build();
        build
            .env("GOOS", "windows")
            .args(["-ldflags", &ldflags(KUBERNETES_VERSION)])
            .arg("-o")
            .arg(out)
            .arg(format!("./{name}"))
            .run()
    })
}
