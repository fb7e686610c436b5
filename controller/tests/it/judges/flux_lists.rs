//! Lists of hosts from sources of Flux, as its own source-controller fetches them.

use std::process::Command;

use anyhow::{Result, ensure};
use api::WindowsNodePool;
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};
use testbed::{
    binaries::crane,
    registry::Registry,
    sim::{SimHost, SimOptions},
};

use super::repository::Repository;
use crate::fleet::{World, entry, is_ready, pool_status};

/// A pool of each kind of source.
const KINDS: [(&str, &str); 2] = [("from-git", "GitRepository"), ("from-registry", "OCIRepository")];

/// A list of hosts as a team has it.
fn list(hosts: &[SimHost]) -> String {
    hosts.iter().map(|host| format!("- {}\n", json!(entry(host)))).collect()
}

/// Publishes a list in a registry, as `flux push artifact` does: one layer with the files.
fn push(registry: &Registry, list: &str) -> Result<()> {
    let files = tempfile::tempdir()?;
    std::fs::create_dir(files.path().join("halls"))?;
    std::fs::write(files.path().join("halls/a.yaml"), list)?;
    let packed = Command::new("tar").current_dir(files.path()).args(["-czf", "files.tar.gz", "halls"]).status()?;
    ensure!(packed.success(), "tar: {packed}");
    let mut append = Command::new(crane()?);
    append.args(["append", "--insecure", "--oci-empty-base", "-f"]).arg(files.path().join("files.tar.gz"));
    let pushed = append.args(["-t", &format!("{}/hosts:latest", registry.address())]).output()?;
    ensure!(pushed.status.success(), "crane: {}", String::from_utf8_lossy(&pushed.stderr));
    Ok(())
}

fn ready(count: i32) -> impl Fn(&WindowsNodePool) -> bool {
    move |pool| is_ready(pool) && pool_status(pool).ready_nodes == count && pool_status(pool).hosts == count
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_that_flux_fetches_are_followed_and_their_pools_can_be_deleted() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let (repository, registry) = (Repository::start(&world.control_plane).await?, Registry::start()?);
    let (in_git, in_registry) = (world.hosts("git", 3).await?, world.hosts("oci", 3).await?);
    let publish = |count: usize| -> Result<()> {
        repository.origin.commit("halls/a.yaml", list(&in_git[..count]), "The list");
        push(&registry, &list(&in_registry[..count]))
    };
    publish(2)?;
    let oci = json!({"url": format!("oci://{}/hosts", registry.address()), "insecure": true, "ref": {"tag": "latest"}});
    for ((pool, kind), spec) in KINDS.into_iter().zip([repository.git(), oci]) {
        let mut source = json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": kind, "metadata": {"name": "hosts"}, "spec": {"interval": "1h"},
        });
        crate::crd::merge(&mut source["spec"], &spec);
        if kind == "GitRepository" {
            source["spec"]["ref"] = json!({"branch": "main"});
        }
        repository.apply(&source).await?;
        world.apply(pool, &reference(kind)?).await?;
    }
    for (pool, _) in KINDS {
        world.until(pool, "the list is followed", ready(2)).await?;
    }
    publish(3)?;
    for (pool, kind) in KINDS {
        repository.request(kind, "hosts").await?;
        world.until(pool, "the longer list is followed", ready(3)).await?;
    }

    // One goes while the other still reads its list.
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    for ((pool, _), hosts) in KINDS.iter().zip([&in_git, &in_registry]) {
        pools.delete(pool, &DeleteParams::default()).await?;
        for host in hosts {
            world.until_gone(host).await?;
        }
        world.eventually("the pool is gone", || async { matches!(pools.get_opt(pool).await, Ok(None)) }).await?;
    }
    Ok(())
}

fn reference(kind: &str) -> Result<api::WindowsNodePoolSpec> {
    let source: Value = json!({"kind": kind, "name": "hosts", "namespace": "flux-system", "path": "halls"});
    Ok(serde_json::from_value(json!({"inventory": {"sourceRef": source}}))?)
}
