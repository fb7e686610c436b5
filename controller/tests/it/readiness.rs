//! Clients that wait for a pool, with `kubectl wait` or by kstatus, and continue when all is done and not before.

use std::sync::Mutex;

use anyhow::{Result, ensure};
use api::WindowsNodePool;
use serde_json::{Value, json};
use testbed::sim::SimOptions;

use crate::{
    fleet::{World, is_ready, pool_status, spec_with},
    repair::{mark_node_not_ready, stop_services},
};

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_wait_and_kstatus_wait_until_a_pool_is_done() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    tokio::try_join!(
        all_that_happens(&world, "one", 1, json!(1)),
        all_that_happens(&world, "all-at-once", 4, json!("100%")),
        all_that_happens(&world, "one-by-one", 3, json!(1)),
    )?;
    Ok(())
}

/// Joins the hosts of a pool, changes the pool, breaks a node so that it is repaired, and removes a host if another one is left.
async fn all_that_happens(world: &World, name: &str, count: usize, max_unavailable: Value) -> Result<()> {
    let mut hosts = world.hosts(name, count).await?;
    let pool = |hosts: &[_], pods: i32, downloads: i32| {
        spec_with(
            hosts,
            json!({
                "template": {"spec": {"kubelet": {"maxPods": pods}, "containerd": {"maxConcurrentDownloads": downloads}}},
                "rollout": {"maxUnavailable": max_unavailable},
                "remediation": {"type": "Reconfigure", "notReadySeconds": 30, "maxUnhealthy": "100%"},
            }),
        )
    };
    for (what, pods, downloads) in [("join", 100, 3), ("a quiet change", 120, 3), ("a change with drains", 120, 5)] {
        world.apply(name, &pool(&hosts, pods, downloads)).await?;
        ends(world, name, what, count).await?;
    }
    stop_services(&hosts[0]);
    mark_node_not_ready(world, hosts[0].name()).await?;
    world.until(name, "the node is down", |p| !is_ready(p)).await?;
    ends(world, name, "repair", count).await?;
    if count > 1 {
        hosts.pop();
        world.apply(name, &pool(&hosts, 120, 5)).await?;
        ends(world, name, "removal", count - 1).await?;
    }
    Ok(())
}

/// Waits until `kubectl wait` returns, and checks that everything is done then, and that kstatus reports InProgress and then Current.
async fn ends(world: &World, name: &str, what: &str, count: usize) -> Result<()> {
    let pool = format!("wnp/{name}");
    let output = world.control_plane.kubectl(&["wait", "--for=condition=Ready", "--timeout=4m", &pool]).await?;
    ensure!(output.status.success(), "{name}, {what}: {}", String::from_utf8_lossy(&output.stderr));
    let status = pool_status(&world.pool(name).await?);
    let done = [status.hosts, status.ready_nodes, status.up_to_date_nodes].map(|n| usize::try_from(n).unwrap_or(0));
    ensure!(done == [count; 3], "{name}, {what}: kubectl wait has returned with {status:?}");
    // The watch of the test may be a moment behind.
    let words = Mutex::new(Vec::new());
    let read = |_: &WindowsNodePool| {
        let mut words = words.lock().unwrap();
        words.extend(world.statuses.kstatus_results(name).unwrap());
        words.last().is_some_and(|word| word == "Current")
    };
    world.until(name, "kstatus reports Current", read).await?;
    let mut words = words.into_inner().unwrap();
    words.dedup();
    // A status from before the change may arrive late: it was Current then.
    let words: Vec<_> = words.into_iter().skip_while(|word| word == "Current").collect();
    ensure!(words == ["InProgress", "Current"], "{name}, {what}: kstatus reports {words:?}");
    Ok(())
}
