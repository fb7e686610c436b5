//! Hosts that restart at a bad moment, and whose clock is wrong when they are back: each ends as one Ready node.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use anyhow::{Context as _, Result, ensure};
use api::{
    Step, WindowsInstance,
    conditions::{find, kind},
};
use futures::{StreamExt as _, future::try_join_all};
use kube::{
    Api, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use testbed::sim::{Fault, HostOptions, SimHost};

use crate::{
    crash::{Uids, slow},
    fleet::{LIMIT, World, has, nodes, spec, status},
    rollout::node_is_ready,
    windows_semantics::failures,
};

/// Steps of a join.
const STEPS: [Step; 7] =
    [Step::Connect, Step::Upload, Step::Configure, Step::Reboot, Step::Certify, Step::Start, Step::Register];

#[tokio::test(flavor = "multi_thread")]
async fn a_join_survives_a_restart_of_the_host_at_each_step() -> Result<()> {
    let world = World::new(slow(), &[]).await?;
    let uids = Uids::watch(&world);
    let mut hosts = Vec::new();
    for step in STEPS {
        let options = HostOptions::named(format!("at-{}", step.as_str().to_lowercase()));
        hosts.push(world.sim.host(HostOptions { faults: vec![Fault::NeedsReboot], ..options }).await?);
    }
    let pool = spec(&hosts);
    let restarts = async { anyhow::Ok(tokio::time::timeout(LIMIT, restart_at_steps(&world, &hosts)).await) };
    let ((), restarted) = tokio::try_join!(world.apply("factory", &pool), restarts)?;
    restarted.with_context(|| format!("a step was not seen\n{}", world.operator.log()))??;
    try_join_all(hosts.iter().map(async |host| world.until_joined(host.name()).await.map(drop))).await?;

    ensure!(nodes(&world.client).await?.len() == hosts.len(), "not one Node for each host");
    for host in &hosts {
        ensure!(host.boots() > 1, "{} did not restart", host.name());
        ensure!(uids.of(host.name()).len() == 1, "{}: Nodes {:?}", host.name(), uids.of(host.name()));
    }
    Ok(())
}

/// Restarts each host as soon as its instance is at the step of the host.
async fn restart_at_steps(world: &World, hosts: &[SimHost]) -> Result<()> {
    let mut left: BTreeMap<&str, (Step, &SimHost)> = hosts.iter().zip(STEPS).map(|(h, s)| (h.name(), (s, h))).collect();
    let instances = Api::<WindowsInstance>::all(world.client.clone());
    let mut changes = pin!(watcher(instances, watcher::Config::default()).default_backoff().applied_objects());
    while !left.is_empty() {
        let Ok(instance) = changes.next().await.context("the watch ended")? else { continue };
        let (name, step) = (instance.name_any(), status(&instance).operation.map(|o| o.step));
        if let Some((_, host)) = left.get(&*name).filter(|(at, _)| Some(*at) == step) {
            host.reboot();
            left.remove(&*name);
        }
    }
    Ok(())
}

/// The clock is an hour behind when the host is back, so that its certificates are not valid yet, and jumps some time later.
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

    // The same on a node: kubelet does not start before its certificate is valid, and needs no other.
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
