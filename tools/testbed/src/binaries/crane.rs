//! `crane`, which copies images between registries, and serves one in memory (`tools/testbed/crane`).

use std::path::PathBuf;

use anyhow::Result;

use super::{Run as _, built_once, cache_dir, go_build, key, say};

/// Finds or builds crane, which takes half a minute the first time.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn crane() -> Result<PathBuf> {
    let inputs = [include_str!("../../crane/go.mod"), include_str!("../../crane/go.sum")];
    let dir = cache_dir()?.join(format!("crane-{}", key(&inputs)));
    built_once(&dir, "crane", |out| {
        say("building crane (half a minute, once)");
        let mut build = go_build();
        build.current_dir(crate::source_dir().join("crane")).args(["-ldflags", "-s -w"]);
        build.arg("-o").arg(out).arg("github.com/google/go-containerregistry/cmd/crane").run()
    })
}
