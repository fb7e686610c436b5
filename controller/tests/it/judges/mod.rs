//! Tests this operator beside the unmodified programs of other projects. Each program takes minutes to build, so these tests run by night
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
use serde_json::{Value, json};
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

/// Returns fields of a pool whose rollouts have two steps with approval, and whose removals of more than one host wait for a confirmation. A change
/// of the number of downloads drains the nodes.
fn gated(downloads: i32) -> Value {
    let approval = |nodes: i32| json!({"nodes": nodes, "approval": true});
    json!({
        "template": {"spec": {"containerd": {"maxConcurrentDownloads": downloads}}},
        "rollout": {"steps": [approval(1), approval(2)]},
        "inventory": {"maxRemovals": 1},
    })
}
