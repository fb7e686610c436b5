//! `helm`, which renders and installs the chart (`tools/testbed/helm`).

use std::path::PathBuf;

use anyhow::Result;

use super::{Run as _, built_once, cache_dir, go_build, key, say};

/// Finds or builds Helm, which takes about 6 minutes the first time.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn helm() -> Result<PathBuf> {
    let inputs = [include_str!("../../helm/go.mod"), include_str!("../../helm/go.sum")];
    let dir = cache_dir()?.join(format!("helm-{}", key(&inputs)));
    built_once(&dir, "helm", |out| {
        say("building helm (about 6 minutes, once)");
        let mut build = go_build();
        build.current_dir(crate::source_dir().join("helm")).args(["-ldflags", "-s -w"]);
        build.arg("-o").arg(out).arg("helm.sh/helm/v4/cmd/helm").run()
    })
}
