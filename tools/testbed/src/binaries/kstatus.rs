//! `kstatus`: computes the status of objects with the library by which Flux and others wait (`tools/testbed/kstatus`).

use std::path::PathBuf;

use anyhow::Result;

use super::{Run as _, built_once, cache_dir, go_build, key};

/// Finds or builds kstatus, which takes seconds.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn kstatus() -> Result<PathBuf> {
    let inputs = [
        include_str!("../../kstatus/go.mod"),
        include_str!("../../kstatus/go.sum"),
        include_str!("../../kstatus/main.go"),
    ];
    let dir = cache_dir()?.join(format!("kstatus-{}", key(&inputs)));
    built_once(&dir, "kstatus", |out| {
        go_build().current_dir(crate::source_dir().join("kstatus")).arg("-o").arg(out).arg(".").run()
    })
}
