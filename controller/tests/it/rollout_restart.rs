//! Changes that need no drain, on hosts that need a restart: the hosts are drained first, and restart once.

use anyhow::{Context as _, Result, ensure};
use api::{Disruption, names::key};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use serde_json::json;
use testbed::sim::{Fault, HostOptions, SimOptions};

use crate::{
    fleet::{World, is_cordoned, is_cordoned_by_us, pool_status, spec_with, status},
    removal::{budget, delete_budget, pod},
    rollout::{Watcher, uncordoned_node, until_updated},
};

const POOL: &str = "factory";
/// Hosts by the cause of the restart: the host notices the need while it is changed; a user has requested a restart; the host knows the need and
/// has not reported it; a user requests a restart while the change is under way.
const HOSTS: [&str; 4] = ["finds", "asked", "knows", "late"];
const CART: &str = "cart";

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_must_be_restarted_is_drained_first() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let mut hosts = Vec::new();
    for name in HOSTS {
        hosts.push(world.sim.host(HostOptions::named(name)).await?);
    }
    let pool = |pods: i32, paused: bool| {
        spec_with(
            &hosts,
            json!({
                "template": {"spec": {"kubelet": {"maxPods": pods}}},
                "rollout": {"maxUnavailable": "100%", "paused": paused},
            }),
        )
    };
    world.join(POOL, &pool(100, false)).await?;
    for name in HOSTS {
        pod(&world, CART, name, &[("app", CART)]).await?;
    }
    budget(&world, CART, CART).await?;

    // The pool is paused until the causes of the restarts are in place.
    world.apply(POOL, &pool(101, true)).await?;
    let from = pool_status(&world.pool(POOL).await?).desired_version;
    world.until(POOL, "another version is wanted", |p| pool_status(p).desired_version != from).await?;
    hosts[0].fault(Fault::NeedsReboot);
    let asks = json!({"metadata": {"annotations": {key::REBOOT_REQUIRED: ""}}});
    world.edit_node("asked", asks.clone()).await?;
    let pending = json!({"bootId": hosts[2].boots().to_string(), "why": "an update was installed"});
    std::fs::write(hosts[2].drive_c().join("k/wicd/reboot.json"), pending.to_string())?;
    hosts[3].fault(Fault::NeverRegisters);
    let watcher = Watcher::of(&world.client, POOL);
    world.apply(POOL, &pool(101, false)).await?;
    world
        .until_instance("late", "waits for its Node", |i| {
            status(i).operation.is_some_and(|o| o.step == api::Step::Register)
        })
        .await?;
    world.edit_node("late", asks).await?;

    // The budget blocks the drains, so no host restarts.
    for host in &hosts {
        let instance = world
            .until_instance(host.name(), "waits for its pod", |i| {
                status(i).operation.and_then(|o| o.drain).is_some_and(|d| d.remaining == 1 && !d.blockers.is_empty())
            })
            .await?;
        let operation = status(&instance).operation.context("no operation")?;
        ensure!(operation.disruption == Some(Disruption::Reboot), "{operation:?}");
        let node = world.node(host.name()).await?.context("no Node")?;
        ensure!(is_cordoned(&node) && is_cordoned_by_us(&node), "{} is not cordoned", host.name());
        ensure!(host.boots() == 1, "{} was restarted under its pod", host.name());
    }
    hosts[3].mend();
    delete_budget(&world, CART).await?;
    until_updated(&world, POOL).await?;

    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    for host in &hosts {
        let name = host.name();
        world
            .until_instance(name, "has nothing more to do", |i| {
                let status = status(i);
                status.operation.is_none()
                    && i.spec.grant.as_ref().is_none_or(|g| status.last_operation == Some(g.id.clone()))
            })
            .await?;
        ensure!(host.boots() == 2, "{name} has booted {} times", host.boots());
        let node = uncordoned_node(&world, name).await?;
        ensure!(!node.annotations().contains_key(key::REBOOT_REQUIRED), "{name} still asks for a restart");
        ensure!(pods.get_opt(&format!("{CART}-{name}")).await?.is_none(), "the pod of {name} is still there");
    }
    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.grace_periods.len() == hosts.len(), "{:?}", seen.grace_periods);
    ensure!(
        seen.grace_periods.values().all(|g| g.is_some_and(|g| g > 1)),
        "pods were killed: {:?}",
        seen.grace_periods
    );
    Ok(())
}
