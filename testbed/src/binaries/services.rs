//! The programs that stand where containerd and those of OVN-Kubernetes' hybrid overlay do on a host that is Wine.

use std::path::PathBuf;

use anyhow::Result;

use super::{GO_MOD, GO_SUM, Run as _, built_once, cache_dir, go_build, key, ldflags};

const SERVICE: &str = include_str!("../../go/winservice/winservice.go");

/// Finds or builds hostcontainerd (`testbed/go/hostcontainerd`): seconds.
///
/// # Errors
/// When it is missing and cannot be built, or the cache cannot be written.
pub fn host_containerd() -> Result<PathBuf> {
    build("hostcontainerd", include_str!("../../go/hostcontainerd/main.go"))
}

/// Finds or builds hostoverlay, which takes the place of hybrid-overlay-node (`testbed/go/hostoverlay`): about a minute.
///
/// # Errors
/// When it is missing and cannot be built, or the cache cannot be written.
pub fn host_overlay() -> Result<PathBuf> {
    build("hostoverlay", include_str!("../../go/hostoverlay/main.go"))
}

/// Finds or builds hostproxy, which takes the place of kube-proxy (`testbed/go/hostproxy`): about a minute.
///
/// # Errors
/// When it is missing and cannot be built, or the cache cannot be written.
pub fn host_proxy() -> Result<PathBuf> {
    build("hostproxy", include_str!("../../go/hostproxy/main.go"))
}

fn build(name: &str, source: &str) -> Result<PathBuf> {
    let dir = cache_dir()?.join(format!("{name}-{}", key(&[GO_MOD, GO_SUM, SERVICE, source])));
    built_once(&dir, &format!("{name}.exe"), |out| {
        let mut build = go_build();
        build.env("GOOS", "windows").args(["-ldflags", &ldflags()]).arg("-o").arg(out).arg(format!("./{name}")).run()
    })
}
