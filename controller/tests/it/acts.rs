//! Acts of users by annotations, which stay in force after a GitOps tool has removed the annotations.

use anyhow::{Result, ensure};
use api::{RecordedAct, WindowsNodePool, conditions::kind, names::key};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use testbed::sim::SimOptions;

use crate::fleet::{World, has, is_ready, pool_status, spec_with};

const POOL: &str = "kept";

/// Annotates the pool as a user, and removes the annotation as a GitOps tool once the operator has recorded it.
async fn annotate(world: &World, key: &str, value: &str) -> Result<()> {
    let annotation = format!("{key}={value}");
    let output = world.control_plane.kubectl(&["annotate", "--overwrite", "wnp", POOL, &annotation]).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    world.until(POOL, "the act is recorded", |p| record(p, key).is_some_and(|act| act.value == value)).await?;
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {key: null}}}));
    pools
        .patch(
            POOL,
            &PatchParams { field_manager: Some("kustomize-controller".into()), ..PatchParams::default() },
            &patch,
        )
        .await?;
    Ok(())
}

fn record(pool: &WindowsNodePool, key: &str) -> Option<RecordedAct> {
    let name = key.rsplit('/').next().unwrap_or_default();
    pool_status(pool).acts.into_iter().find(|act| act.annotation == name)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_act_stays_in_force_when_its_annotation_goes() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 3).await?;
    let spec = |downloads: i32, hosts: &[_]| {
        spec_with(
            hosts,
            json!({
                "inventory": {"removal": {"maxRemovals": 1}},
                "template": {"spec": {"containerd": {"maxConcurrentDownloads": downloads}}},
                "rollout": {"steps": [{"nodes": 1, "approval": true}, {"nodes": 2, "approval": true}]},
            }),
        )
    };
    world.join(POOL, &spec(3, &hosts)).await?;

    // One approval of a version covers all steps of its rollout.
    world.apply(POOL, &spec(6, &hosts)).await?;
    let waits = |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::UPDATED, "False", "WaitingForApproval");
    world.until(POOL, "the rollout waits for an approval", waits).await?;
    let version = pool_status(&world.pool(POOL).await?).desired_version.unwrap_or_default();
    annotate(&world, key::APPROVE, &version).await?;
    world.until(POOL, "all follow", |p| is_ready(p) && pool_status(p).up_to_date_nodes == 3).await?;
    let act = record(&world.pool(POOL).await?, key::APPROVE);
    ensure!(act.as_ref().is_some_and(|act| act.by.as_deref() == Some("kubectl-annotate") && !act.used), "{act:?}");

    // An empty annotation revokes the approval.
    annotate(&world, key::APPROVE, "").await?;
    world.apply(POOL, &spec(3, &hosts)).await?;
    world.until(POOL, "the rollout waits again", waits).await?;
    world.apply(POOL, &spec(6, &hosts)).await?;
    world.until(POOL, "it is taken back", |p| is_ready(p) && pool_status(p).up_to_date_nodes == 3).await?;

    // A confirmation of removals is valid once.
    world.apply(POOL, &spec(6, &hosts[..1])).await?;
    world.until(POOL, "the removal waits", |p| pool_status(p).removals_to_confirm == 2).await?;
    annotate(&world, key::APPROVE_REMOVAL, "2").await?;
    for host in &hosts[1..] {
        world.until_gone(host).await?;
    }
    let is_over = |p: &WindowsNodePool| is_ready(p) && record(p, key::APPROVE_REMOVAL).is_none();
    world.until(POOL, "the confirmation is used up and forgotten", is_over).await
}
