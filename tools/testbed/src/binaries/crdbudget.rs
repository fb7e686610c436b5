//! `crdbudget`: checks a CustomResourceDefinition with the code of an API server (`tools/testbed/crdbudget`).

use std::path::PathBuf;

use anyhow::Result;

use super::{Set, built_once, cache_dir, key, say};

/// Finds or builds crdbudget with the code of an API server, of one of the versions [`super::KUBERNETES`]. A build takes a minute.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn crdbudget(kubernetes: &str) -> Result<PathBuf> {
    let set = Set::of(kubernetes)?;
    let dir = cache_dir()?
        .join(format!("crdbudget-{kubernetes}-{}", key(&[include_str!("../../crdbudget/main.go"), &set.key])));
    built_once(&dir, "crdbudget", |out| {
        say(&format!("building crdbudget for Kubernetes {kubernetes} (a minute, once)"));
        set.build(out, &[&crate::source_dir().join("crdbudget/main.go")], "linux")
    })
}
