//! This operator beside the unmodified programs of other projects. Each takes minutes to build, so these tests run by night
//! (`cargo xtask check --nightly`).

mod application;
mod argocd_fields;
mod argocd_pool;
mod cluster_api;
mod fields;
mod flux_lists;
mod flux_pool;
mod machine_api;
mod olm;
mod repository;

use std::{path::Path, process::Command};

use anyhow::{Result, ensure};
use testbed::git::Origin;

/// Copies a folder of this project into a repository, as users do.
fn add(origin: &Origin, folder: &str) -> Result<()> {
    let to = origin.work().join(folder);
    std::fs::create_dir_all(&to)?;
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder).join(".");
    let copied = Command::new("cp").arg("-r").arg(from).arg(to).status()?;
    ensure!(copied.success(), "{folder} is not copied: {copied}");
    Ok(())
}
