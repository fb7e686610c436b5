//! Pools to which Argo CD and Flux apply their parts repeatedly, by server-side apply.

use anyhow::{Context as _, Result, ensure};
use api::WindowsNodePool;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::sim::{SimHost, SimOptions};

use crate::fleet::{World, entry, is_ready, pool_status};

const POOL: &str = "shared";
const ARGO: &str = "argocd-controller";
const FLUX: &str = "kustomize-controller";

/// Returns a part of the pool, as in a user's repository.
fn part(hosts: &[SimHost], more: Value) -> Value {
    let hosts: Vec<_> = hosts.iter().map(entry).collect();
    let mut spec = json!({"inventory": {"hosts": hosts}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let version = "windowsmachineconfig.openshift.io/v1alpha1";
    json!({"apiVersion": version, "kind": "WindowsNodePool", "metadata": {"name": POOL}, "spec": spec})
}

/// Applies the part as the tools do: without force.
async fn apply(world: &World, manager: &str, part: &Value, dry_run: bool) -> Result<WindowsNodePool> {
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    let params = PatchParams { dry_run, ..PatchParams::apply(manager) };
    Ok(pools.patch(POOL, &params, &Patch::Apply(part)).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tools_share_a_pool() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts(POOL, 2).await?;
    let by_argo = part(&hosts[..1], json!({"rollout": {"maxUnavailable": "10%"}}));
    let by_flux = part(&hosts[1..], json!({"template": {"metadata": {"labels": {"example.com/hall": "b"}}}}));
    apply(&world, ARGO, &by_argo, false).await?;
    apply(&world, FLUX, &by_flux, false).await?;
    world.until(POOL, "both hosts are nodes", |p| is_ready(p) && pool_status(p).ready_nodes == 2).await?;

    // Neither tool finds a difference: the operator has put nothing into the spec.
    let pool = world.pool(POOL).await?;
    for (manager, part) in [(ARGO, &by_argo), (FLUX, &by_flux)] {
        let again = apply(&world, manager, part, true).await?;
        ensure!(again.spec == pool.spec, "{manager} would change the spec: {:?}", again.spec);
        ensure!(again.metadata.generation == pool.metadata.generation, "{manager} would make another generation");
        ensure!(again.resource_version() == pool.resource_version(), "{manager} sees a difference");
    }
    let owners = |field: &str| -> Vec<String> {
        let owns = |m: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry| {
            m.fields_v1.as_ref().is_some_and(|f| f.0.get("f:spec").is_some_and(|s| s.get(field).is_some()))
        };
        let entries = pool.metadata.managed_fields.iter().flatten().filter(owns);
        entries.filter_map(|m| m.manager.clone()).collect()
    };
    ensure!(owners("f:rollout") == [ARGO] && owners("f:template") == [FLUX], "{:?}", pool.metadata.managed_fields);

    // One tool removes its host; the other's stays.
    let less = part(&[], json!({"template": {"metadata": {"labels": {"example.com/hall": "b"}}}}));
    apply(&world, FLUX, &less, false).await?;
    world.until_gone(&hosts[1]).await?;
    world.until(POOL, "one host is left", |p| is_ready(p) && pool_status(p).hosts == 1).await?;
    let node = world.node(hosts[0].name()).await?.context("the other's host is gone")?;
    ensure!(node.labels().get("example.com/hall").map(String::as_str) == Some("b"), "{:?}", node.labels());
    Ok(())
}
