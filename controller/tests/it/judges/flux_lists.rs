//! Lists of hosts from Flux sources that Flux's own source-controller fetches.

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
use crate::fleet::{World, all_ready, inventory_file};

/// Pools, and the kind of source of each.
const KINDS: [(&str, &str); 2] = [("from-git", "GitRepository"), ("from-registry", "OCIRepository")];

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

/// Lists of hosts in a repository and in a registry, and a pool for each.
struct Lists {
    world: World,
    repository: Repository,
    registry: Registry,
    hosts: [Vec<SimHost>; 2],
}

impl Lists {
    async fn new(hosts: usize) -> Result<Self> {
        let world = World::new(SimOptions::default(), &[]).await?;
        let (repository, registry) = (Repository::start(&world.control_plane).await?, Registry::start()?);
        let hosts = [world.hosts("git", hosts).await?, world.hosts("oci", hosts).await?];
        Ok(Self { world, repository, registry, hosts })
    }

    /// Publishes the first `count` hosts of each list.
    fn publish(&self, count: usize) -> Result<()> {
        self.repository.origin.commit("halls/a.yaml", inventory_file(&self.hosts[0][..count]), "The list");
        push(&self.registry, &inventory_file(&self.hosts[1][..count]))
    }

    /// Applies the sources and the pools, and waits until each pool has `count` nodes.
    async fn apply(&self, count: i32) -> Result<()> {
        let url = format!("oci://{}/hosts", self.registry.address());
        let oci = json!({"url": url, "insecure": true, "ref": {"tag": "latest"}});
        for ((pool, kind), spec) in KINDS.into_iter().zip([self.repository.git(), oci]) {
            let mut source = json!({
                "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": kind, "metadata": {"name": "hosts"},
                "spec": {"interval": "1h"},
            });
            crate::crd::merge(&mut source["spec"], &spec);
            self.repository.apply(&source).await?;
            self.world.apply(pool, &reference(kind)?).await?;
        }
        for (pool, _) in KINDS {
            self.world.until(pool, "the list is followed", all_ready(count)).await?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_follow_lists_that_flux_fetches_and_can_be_deleted() -> Result<()> {
    let lists = Lists::new(3).await?;
    lists.publish(2)?;
    lists.apply(2).await?;
    lists.publish(3)?;
    for (pool, kind) in KINDS {
        lists.repository.request(kind, "hosts").await?;
        lists.world.until(pool, "the longer list is followed", all_ready(3)).await?;
    }

    // One pool is deleted while the other still reads its list.
    let Lists { world, hosts, .. } = &lists;
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    for ((pool, _), hosts) in KINDS.iter().zip(hosts) {
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
