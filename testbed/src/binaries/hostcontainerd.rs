//! `hostcontainerd.exe`: stands where containerd does on a host that is Wine (`testbed/go/hostcontainerd`).

use std::path::PathBuf;

use anyhow::Result;

use super::{GO_MOD, GO_SUM, Run as _, built_once, cache_dir, go_build, key, ldflags};

/// Finds or builds hostcontainerd: seconds.
///
/// # Errors
/// When it is missing and cannot be built, or the cache cannot be written.
pub fn host_containerd() -> Result<PathBuf> {
    let inputs = [GO_MOD, GO_SUM, include_str!("../../go/hostcontainerd/main.go")];
    let dir = cache_dir()?.join(format!("hostcontainerd-{}", key(&inputs)));
    built_once(&dir, "hostcontainerd.exe", |out| {
        go_build()
            .env("GOOS", "windows")
            .args(["-ldflags", &ldflags()])
            .arg("-o")
            .arg(out)
            .arg("./hostcontainerd")
            .run()
    })
}
