//! Watch events that trigger reconciles. In a large fleet, most events are reports of kubelets, followed by statuses of pools.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt;
use serde_json::{Value, json};
use testbed::sim::SimOptions;

use crate::fleet::{LIMIT, World, spec};

const POOL: &str = "factory";
/// Number of reports of a kubelet in a row that must trigger no reconcile.
const REPORTS: usize = 5;
/// Metric of the reconciles of all kinds.
const ALL: &str = "windows_node_pool_reconciles_total";
const OF_POOLS: &str = r#"windows_node_pool_reconciles_total{kind="WindowsNodePool"}"#;
const OF_INSTANCES: &str = r#"windows_node_pool_reconciles_total{kind="WindowsInstance"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn reports_of_kubelets_wake_no_controller_and_hosts_only_wake_for_what_they_read_of_their_pool() -> Result<()> {
    let often = Some(Duration::from_secs(1));
    let sim = SimOptions { heartbeat: often, status_report: often, ..SimOptions::default() };
    let world = World::new(sim, &[]).await?;
    let hosts = world.hosts("win", 2).await?;
    world.join(POOL, &spec(&hosts)).await?;
    ensure!(world.operator.metric(OF_POOLS).await? > 0.0, "reconciles of pools are not counted");
    ensure!(world.operator.metric(OF_INSTANCES).await? > 0.0, "reconciles of instances are not counted");
    rests(&world).await?;

    let before = world.operator.metric(OF_INSTANCES).await?;
    change(&world, json!({"metadata": {"labels": {"example.com/owner": "a"}}}), OF_POOLS).await?;
    reported(&world, 2).await?;
    let woken = world.operator.metric(OF_INSTANCES).await? - before;
    ensure!(woken < 0.5, "a label of the pool, which instances do not read, triggered {woken} reconciles of instances");

    rests(&world).await?;
    change(&world, json!({"metadata": {"annotations": {"example.com/owner": "a"}}}), OF_INSTANCES).await
}

/// Waits until reports of kubelets trigger no reconcile. The work after a change continues for a moment, but a controller that reports trigger
/// never rests.
async fn rests(world: &World) -> Result<()> {
    let resting = async {
        loop {
            let before = world.operator.metric(ALL).await?;
            reported(world, REPORTS).await?;
            if world.operator.metric(ALL).await? - before < 0.5 {
                return Ok(());
            }
        }
    };
    tokio::time::timeout(LIMIT, resting).await.context("controllers are woken by the reports of kubelets")?
}

/// Waits until a kubelet has reported this number of times.
async fn reported(world: &World, times: usize) -> Result<()> {
    let version = || async { world.node("win-0").await.ok().flatten().and_then(|node| node.resource_version()) };
    for _ in 0..times {
        let before = version().await;
        let is_new = || async { version().await.is_some_and(|now| Some(now) != before) };
        world.eventually("the kubelet reports", is_new).await?;
    }
    Ok(())
}

/// Changes the pool, and waits until this counter has counted a reconcile for the change.
async fn change(world: &World, patch: Value, counter: &str) -> Result<()> {
    let before = world.operator.metric(counter).await?;
    world.edit_pool(POOL, patch).await?;
    let is_counted = || async { world.operator.metric(counter).await.is_ok_and(|now| now > before) };
    world.eventually("the change is reconciled", is_counted).await
}
