//! `crdbudget`: what an API server refuses of a CustomResourceDefinition (`tools/testbed/crdbudget`).

use std::path::PathBuf;

use anyhow::Result;

use super::{Run as _, built_once, cache_dir, go_build, key, say};

/// A version of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiServer {
    /// Oldest supported version.
    Oldest,
    /// Newest version that there is.
    Newest,
}

/// Finds or builds crdbudget with the code of an API server: a minute.
///
/// # Errors
/// When it is missing and cannot be built, or the cache cannot be written.
pub fn crdbudget(of: ApiServer) -> Result<PathBuf> {
    let main = include_str!("../../crdbudget/main.go");
    let (file, inputs) = match of {
        ApiServer::Oldest => {
            let sums = include_str!("../../crdbudget/oldest.sum");
            ("oldest.mod", [main, include_str!("../../crdbudget/oldest.mod"), sums])
        }
        ApiServer::Newest => {
            let sums = include_str!("../../crdbudget/go.sum");
            ("go.mod", [main, include_str!("../../crdbudget/go.mod"), sums])
        }
    };
    let dir = cache_dir()?.join(format!("crdbudget-{}", key(&inputs)));
    built_once(&dir, "crdbudget", |out| {
        say("building crdbudget (a minute, once)");
        let mut build = go_build();
        build.current_dir(crate::source_dir().join("crdbudget")).arg(format!("-modfile={file}"));
        build.arg("-o").arg(out).arg(".").run()
    })
}
