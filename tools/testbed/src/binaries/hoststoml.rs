//! `hoststoml`: containerd's own reader of `hosts.toml` (`tools/testbed/hoststoml`), in the version of the payload's containerd.

use std::path::PathBuf;

use anyhow::Result;

use super::{Run as _, built_once, cache_dir, go_build, key, workspace_root};

/// Finds or builds hoststoml: about a minute.
///
/// # Errors
/// When it is missing and cannot be built, or the cache cannot be written.
pub fn hosts_toml() -> Result<PathBuf> {
    let inputs = [
        include_str!("../../../xtask/payload/containerd/go.mod"),
        include_str!("../../../xtask/payload/containerd/go.sum"),
        include_str!("../../hoststoml/main.go"),
    ];
    let dir = cache_dir()?.join(format!("hoststoml-{}", key(&inputs)));
    built_once(&dir, "hoststoml", |out| {
        let source = crate::source_dir().join("hoststoml/main.go");
        let module = workspace_root().join("tools/xtask/payload/containerd");
        go_build().current_dir(module).arg("-o").arg(out).arg(source).run()
    })
}
