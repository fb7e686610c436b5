//! Observed generations of statuses. Argo CD, `kubectl wait` and users of kstatus ignore a status of an older generation.

use anyhow::Result;
use api::{
    Mode, WindowsInstance, WindowsNodePool,
    conditions::{self, kind},
    names::key,
};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use testbed::sim::{SimHost, SimOptions};

use crate::{
    crd::merge,
    fleet::{World, pool_status, spec_with, status},
};

const POOL: &str = "seen";

/// Waits until each status has observed the current generation. With a backoff of an hour, only the change itself triggers that.
async fn all_are_seen(world: &World, state: &str) -> Result<()> {
    let (pools, instances) =
        (Api::<WindowsNodePool>::all(world.client.clone()), Api::<WindowsInstance>::all(world.client.clone()));
    let seen = async || -> Option<bool> {
        let (pools, instances) =
            (pools.list(&ListParams::default()).await.ok()?, instances.list(&ListParams::default()).await.ok()?);
        let of_pools = pools.iter().all(|p| pool_status(p).observed_generation == p.metadata.generation);
        Some(of_pools && instances.iter().all(|i| status(i).observed_generation == i.metadata.generation))
    };
    world
        .eventually(&format!("{state}: each status has observed the current generation"), || async {
            seen().await == Some(true)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn lasting_states_have_the_current_observed_generation() -> Result<()> {
    let world = World::new(SimOptions::default(), &["--backoff-base", "1h", "--backoff-max", "1h"]).await?;
    let hosts = world.hosts("win", 3).await?;
    let spec = |hosts: &[SimHost], more: Value| {
        let mut fields = json!({"inventory": {"maxRemovals": 1}, "rollout": {"maxUnavailable": 1}});
        merge(&mut fields, &more);
        spec_with(hosts, fields)
    };
    hosts[0].power_off();
    world.apply(POOL, &spec(&hosts, json!({}))).await?;
    world.until_failed("win-0", "Unreachable").await?;
    world.until(POOL, "the others are nodes", |p| pool_status(p).ready_nodes == 2).await?;
    // The operator takes back the grant in the spec after it has stored the failure.
    all_are_seen(&world, "a host that cannot be reached").await?;

    hosts[1].power_off();
    let changed = json!({"template": {"spec": {"containerd": {"maxConcurrentDownloads": 6}}}});
    world.apply(POOL, &spec(&hosts, changed.clone())).await?;
    world.until_instance("win-1", "its change fails", |i| status(i).failures.is_some()).await?;
    all_are_seen(&world, "a node that cannot be reached for its change").await?;

    let mut paused = changed.clone();
    paused["rollout"] = json!({"paused": true});
    world.apply(POOL, &spec(&hosts, paused.clone())).await?;
    world.until(POOL, "it is paused", |p| conditions::is_true(&pool_status(p).conditions, kind::PAUSED)).await?;
    all_are_seen(&world, "a paused pool").await?;

    world.annotate("win-2", key::HOLD, "true").await?;
    paused["template"]["metadata"] = json!({"labels": {"example.com/hall": "b"}});
    world.apply(POOL, &spec(&hosts, paused)).await?;
    all_are_seen(&world, "a host on hold").await?;

    world.apply(POOL, &spec(&hosts[..1], changed.clone())).await?;
    world.until(POOL, "a removal waits to be confirmed", |p| pool_status(p).removals_to_confirm == 2).await?;
    all_are_seen(&world, "a removal that is held").await?;

    let planned = api::WindowsNodePoolSpec { mode: Some(Mode::Plan), ..spec(&hosts, changed) };
    world.apply(POOL, &planned).await?;
    world.until(POOL, "it only plans", |p| pool_status(p).plan.is_some()).await?;
    all_are_seen(&world, "mode Plan").await
}
