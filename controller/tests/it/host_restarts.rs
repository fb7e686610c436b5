//! Hosts that restart at each step of a join, a change or a removal, or come back with a wrong clock: each operation completes, and no host gets a
//! second Node.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use api::{
    Step, WindowsInstance,
    conditions::{find, kind},
};
use futures::{StreamExt as _, future::try_join_all};
use kube::{
    Api, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::json;
use testbed::sim::{Fault, HostOptions, SimHost, SimOptions};

use crate::{
    crash::{Uids, slow},
    fleet::{LIMIT, World, has, nodes, spec, spec_with, status},
    removal::{delete_pool, pod, until_pool_gone},
    rollout::{node_is_ready, until_updated},
    windows_semantics::failures,
};

/// Steps of a join.
const STEPS: [Step; 7] =
    [Step::Connect, Step::Upload, Step::Configure, Step::Reboot, Step::Certify, Step::Start, Step::Register];

#[tokio::test(flavor = "multi_thread")]
async fn a_join_survives_a_restart_of_the_host_at_each_step() -> Result<()> {
    // The operator stores the step Register only if it lasts for ten seconds.
    let world = World::new(SimOptions { boot: Duration::from_secs(15), ..slow() }, &[]).await?;
    let uids = Uids::watch(&world);
    let mut hosts = Vec::new();
    for step in STEPS {
        let options = HostOptions::named(format!("at-{}", step.as_str().to_lowercase()));
        hosts.push(world.sim.host(HostOptions { faults: vec![Fault::NeedsReboot], ..options }).await?);
    }
    let pool = spec(&hosts);
    tokio::try_join!(world.apply("factory", &pool), restart_at_steps(&world, &hosts, &STEPS))?;
    try_join_all(hosts.iter().map(async |host| world.until_joined(host.name()).await.map(drop))).await?;

    ensure!(nodes(&world.client).await?.len() == hosts.len(), "not one Node for each host");
    for host in &hosts {
        ensure!(host.boots() > 1, "{} did not restart", host.name());
        ensure!(uids.of(host.name()).len() == 1, "{}: Nodes {:?}", host.name(), uids.of(host.name()));
    }
    Ok(())
}

/// Steps of a change of a node.
const CHANGE: [Step; 8] = [
    Step::Check,
    Step::Cordon,
    Step::Drain,
    Step::Configure,
    Step::Start,
    Step::Register,
    Step::Verify,
    Step::Uncordon,
];
/// Steps of a removal.
const REMOVAL: [Step; 4] = [Step::Cordon, Step::Drain, Step::Deconfigure, Step::DeleteNode];

#[tokio::test(flavor = "multi_thread")]
async fn a_change_and_a_removal_survive_a_restart_of_the_host_at_each_step() -> Result<()> {
    let world = World::new(slow(), &[]).await?;
    let uids = Uids::watch(&world);
    let hosts = world.hosts("at", CHANGE.len()).await?;
    let pool = |downloads: i32| {
        let containerd = json!({"containerd": {"maxConcurrentDownloads": downloads}});
        spec_with(
            &hosts,
            json!({"rollout": {"maxUnavailable": "100%", "minReadySeconds": 3}, "template": {"spec": containerd}}),
        )
    };
    world.join("factory", &pool(3)).await?;
    for host in &hosts {
        pod(&world, "factory", host.name(), &[]).await?;
    }
    let changed = pool(4);
    tokio::try_join!(world.apply("factory", &changed), restart_at_steps(&world, &hosts, &CHANGE))?;
    until_updated(&world, "factory").await?;
    for host in &hosts {
        ensure!(host.boots() == 2, "{} has booted {} times", host.name(), host.boots());
        ensure!(uids.of(host.name()).len() == 1, "{}: Nodes {:?}", host.name(), uids.of(host.name()));
    }

    let leaving = &hosts[..REMOVAL.len()];
    for host in leaving {
        pod(&world, "leaving", host.name(), &[]).await?;
    }
    tokio::try_join!(delete_pool(&world, "factory"), restart_at_steps(&world, leaving, &REMOVAL))?;
    until_pool_gone(&world, "factory").await?;
    try_join_all(hosts.iter().map(|host| world.until_gone(host))).await?;
    Ok(())
}

/// Restarts each host as soon as its instance is at the host's step.
async fn restart_at_steps(world: &World, hosts: &[SimHost], steps: &[Step]) -> Result<()> {
    let mut left: BTreeMap<&str, (Step, &SimHost)> =
        hosts.iter().zip(steps).map(|(host, step)| (host.name(), (*step, host))).collect();
    let instances = Api::<WindowsInstance>::all(world.client.clone());
    let mut changes = pin!(watcher(instances, watcher::Config::default()).default_backoff().applied_objects());
    let limit = tokio::time::Instant::now() + LIMIT;
    while !left.is_empty() {
        let Ok(change) = tokio::time::timeout_at(limit, changes.next()).await else {
            bail!(
                "steps were not seen: {:?}\n{}",
                left.values().map(|(step, _)| step).collect::<Vec<_>>(),
                world.operator.log()
            );
        };
        let Ok(instance) = change.context("the watch ended")? else { continue };
        let (name, step) = (instance.name_any(), status(&instance).operation.map(|o| o.step));
        if let Some((_, host)) = left.get(&*name).filter(|(at, _)| Some(*at) == step) {
            host.reboot();
            left.remove(&*name);
        }
    }
    Ok(())
}

/// Checks a host whose clock is an hour behind after a restart, so that its certificates are not valid yet. The clock is corrected later.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_behind_after_a_restart_is_waited_for() -> Result<()> {
    let hour = Duration::from_hours(1);
    let world = World::new(slow(), &[]).await?;
    let faults = vec![Fault::NeedsReboot, Fault::ClockBehindAfterRestart(hour)];
    let host = world.sim.host(HostOptions { faults, ..HostOptions::named("late") }).await?;
    world.apply("factory", &spec(std::slice::from_ref(&host))).await?;
    let waits = |i: &WindowsInstance| has(&status(i).conditions, kind::PREFLIGHT_PASSED, "False", "ClockSkew");
    let instance = world.until_instance("late", "its clock is seen", waits).await?;
    let seen = status(&instance);
    let message = find(&seen.conditions, kind::PREFLIGHT_PASSED).map(|c| c.message.clone()).unwrap_or_default();
    ensure!(host.boots() == 2 && message.contains("s behind"), "{} boots: {message}", host.boots());
    ensure!(seen.failures.is_none(), "{:?}", seen.failures);
    host.mend();
    world.until_joined("late").await?;

    // On a node, too, kubelet does not start before its certificate is valid, and needs no other.
    let uid = world.node("late").await?.and_then(|node| node.uid());
    host.fault(Fault::ClockBehind(hour));
    host.reboot();
    world.eventually("kubelet is refused by its clock", async || matches!(host.node(), Some(Err(_)))).await?;
    host.mend();
    world
        .eventually("the node is Ready after its restart", async || {
            let node = world.node("late").await.ok().flatten();
            node.is_some_and(|node| {
                let boot = node.status.as_ref().and_then(|s| s.node_info.as_ref()).map(|info| info.boot_id.as_str());
                boot == Some("3") && node_is_ready(&node) && node.uid() == uid
            })
        })
        .await?;
    let failed = failures(&world, "late").await?;
    ensure!(failed.is_empty(), "{failed:?}");
    Ok(())
}
