//! Nodes that a change must not disturb: unfit hosts, hosts that join while a version waits for approval, and nodes of unknown version. And a
//! host that gets a change while it joins.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{
    Step, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, conditions,
    conditions::kind,
    names::{UNKNOWN_VERSION, key},
};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, api::DeleteParams};
use serde_json::{Value, json};
use testbed::sim::{Fault, SimHost, SimOptions};

use crate::{
    fleet::{World, has, pool_status, spec_with, status},
    removal::{budget, delete_budget, is_not_evicted, pod},
    rollout::{Watcher, uncordoned_node, until_updated, with_downloads},
    takeover::{Legacy, SAME},
};

fn pool(hosts: &[SimHost], downloads: i32, rollout: &Value) -> WindowsNodePoolSpec {
    with_downloads(hosts, downloads, &json!({"rollout": rollout}))
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_not_disturbed_by_changes_that_cannot_succeed() -> Result<()> {
    let termination = Duration::from_millis(500);
    let world = World::new(SimOptions { termination, ..SimOptions::default() }, &[]).await?;
    tokio::try_join!(
        an_unfit_host_is_not_drained_and_fails_no_version(&world),
        a_host_that_joins_does_not_get_a_version_that_waits_for_approval(&world),
        a_host_that_joins_is_given_the_version_that_its_pool_wants_meanwhile(&world),
        a_ready_node_of_unknown_version_is_drained_before_it_is_changed(&world),
    )?;
    Ok(())
}

async fn an_unfit_host_is_not_drained_and_fails_no_version(world: &World) -> Result<()> {
    const POOL: &str = "unfit";
    let hosts = world.hosts(POOL, 3).await?;
    let rollout = json!({"maxUnavailable": 1});
    world.join(POOL, &pool(&hosts, 3, &rollout)).await?;
    for host in &hosts[..2] {
        pod(world, "stays", host.name(), &[]).await?;
    }
    hosts[0].fault(Fault::ClockAhead(Duration::from_mins(10)));
    hosts[1].fault(Fault::Refuse);
    let watcher = Watcher::of(&world.client, POOL);
    world.apply(POOL, &pool(&hosts, 6, &rollout)).await?;

    // The host that can be changed is changed in place of the unfit hosts.
    let version = world
        .until_instance(hosts[2].name(), "is changed", |i| {
            let s = status(i);
            s.operation.is_none() && s.previous_version.is_some() && s.current_version != s.previous_version
        })
        .await?;
    let version = status(&version).current_version;
    for (host, reason) in hosts.iter().zip(["ClockSkew", "Unreachable"]) {
        let failed_thrice =
            |i: &WindowsInstance| status(i).failures.is_some_and(|f| f.last_reason == reason && f.count >= 3);
        world.until_instance(host.name(), reason, failed_thrice).await?;
        let says = |i: &WindowsInstance| {
            let up_to_date = conditions::find(&status(i).conditions, kind::UP_TO_DATE).cloned();
            up_to_date.is_some_and(|c| c.message.contains("next try"))
                && has(&status(i).conditions, kind::READY, "True", reason)
        };
        let instance = world.until_instance(host.name(), "is Ready, and says why it is not changed", says).await?;
        ensure!(status(&instance).failed_version.is_none(), "the version is blamed: {:?}", status(&instance));
    }
    let tells = |p: &WindowsNodePool| {
        let status = pool_status(p);
        status.failed_node_names == [hosts[0].name(), hosts[1].name()]
            && has(&status.conditions, kind::DEGRADED, "True", "NodesFailed")
            && status.rollout.is_some_and(|r| !r.rolled_back)
    };
    world.until(POOL, "it reports both", tells).await?;
    {
        let seen = watcher.seen.lock().unwrap();
        let drained: Vec<_> = seen.ever_cordoned.iter().collect();
        ensure!(drained == [hosts[2].name()], "{drained:?} were cordoned");
    }
    for host in &hosts[..2] {
        is_not_evicted(world, &format!("stays-{}", host.name())).await?;
        host.mend();
    }
    until_updated(world, POOL).await?;
    for host in &hosts {
        let instance = world.instance(host.name()).await?.context("no instance")?;
        ensure!(status(&instance).current_version == version, "{:?}", status(&instance));
    }
    Ok(())
}

async fn a_host_that_joins_does_not_get_a_version_that_waits_for_approval(world: &World) -> Result<()> {
    const POOL: &str = "gated";
    let hosts = world.hosts(POOL, 4).await?;
    let rollout = json!({"maxUnavailable": 1, "steps": [{"nodes": 1, "approval": true}]});
    world.join(POOL, &pool(&hosts[..3], 3, &rollout)).await?;
    let old = pool_status(&world.pool(POOL).await?).desired_version.context("no version")?;
    world.apply(POOL, &pool(&hosts[..3], 6, &rollout)).await?;
    let waits = |p: &WindowsNodePool| {
        let s = pool_status(p);
        has(&s.conditions, kind::UPDATED, "False", "WaitingForApproval") && s.updating_nodes == 0
    };
    world.until(POOL, "waits for approval", waits).await?;

    // A user deletes a Node to rebuild it, and adds a host.
    let nodes: Api<Node> = Api::all(world.client.clone());
    let mut rebuilt = None;
    for host in &hosts[..3] {
        let instance = world.instance(host.name()).await?.context("no instance")?;
        if status(&instance).current_version.as_ref() == Some(&old) {
            rebuilt = Some(host.name());
        }
    }
    let rebuilt = rebuilt.context("all have the new version")?;
    let uid = world.node(rebuilt).await?.context("no Node")?.uid();
    nodes.delete(rebuilt, &DeleteParams::default()).await?;
    world.apply(POOL, &pool(&hosts, 6, &rollout)).await?;
    for name in [rebuilt, hosts[3].name()] {
        let is_node = |i: &WindowsInstance| {
            let s = status(i);
            s.operation.is_none()
                && s.current_version.is_some()
                && s.node_ref.is_some_and(|r| Some(r.uid) != uid)
                && has(&s.conditions, kind::READY, "True", "Outdated")
        };
        let instance = world.until_instance(name, "is a node", is_node).await?;
        let follows = status(&instance).current_version;
        ensure!(follows.as_ref() == Some(&old), "{name} follows {follows:?}, not {old}");
    }
    world.until(POOL, "still waits for approval", waits).await?;
    let new = pool_status(&world.pool(POOL).await?).desired_version.context("no version")?;
    ensure!(new != old, "there is nothing to approve");
    let approved = json!({"maxUnavailable": 1, "steps": [{"nodes": 1, "approval": true}], "approvedVersion": new});
    world.apply(POOL, &pool(&hosts, 6, &approved)).await?;
    until_updated(world, POOL).await
}

/// Checks that the operator does not wait for the Node until `--register-timeout` (10 min), which is longer than any wait of this test.
async fn a_host_that_joins_is_given_the_version_that_its_pool_wants_meanwhile(world: &World) -> Result<()> {
    const POOL: &str = "overtaken";
    let hosts = world.hosts(POOL, 1).await?;
    let name = hosts[0].name();
    let rollout = json!({});
    let registers_with = |version: &Option<String>, i: &WindowsInstance| {
        status(i).operation.is_some_and(|o| o.step == Step::Register && o.to_version == *version)
    };
    hosts[0].fault(Fault::NeverRegisters);
    world.apply(POOL, &pool(&hosts, 3, &rollout)).await?;
    world.until(POOL, "a version is wanted", |p| pool_status(p).desired_version.is_some()).await?;
    let old = pool_status(&world.pool(POOL).await?).desired_version;
    world.until_instance(name, "waits for its Node", |i| registers_with(&old, i)).await?;

    world.apply(POOL, &pool(&hosts, 6, &rollout)).await?;
    world.until(POOL, "another version is wanted", |p| pool_status(p).desired_version != old).await?;
    let new = pool_status(&world.pool(POOL).await?).desired_version;
    let instance = world.until_instance(name, "has the new files", |i| registers_with(&new, i)).await?;
    ensure!(status(&instance).failures.is_none(), "{:?}", status(&instance).failures);
    hosts[0].mend();
    let instance = world.until_joined(name).await?;
    ensure!(status(&instance).current_version == new, "{:?} instead of {new:?}", status(&instance).current_version);
    Ok(())
}

async fn a_ready_node_of_unknown_version_is_drained_before_it_is_changed(world: &World) -> Result<()> {
    const POOL: &str = "foundling";
    let legacy = Legacy::new(world, POOL, SAME, 1).await?;
    let host = &legacy.hosts[0];
    let name = host.name();
    let annotations = json!({key::VERSION: null, key::DESIRED_VERSION: null});
    world.edit_node(name, json!({"metadata": {"annotations": annotations}})).await?;
    let uid = world.node(name).await?.context("no Node")?.uid();
    pod(world, "guarded", name, &[("app", POOL)]).await?;
    budget(world, "foundling-budget", POOL).await?;
    let before = host.windows().state().starts.clone();

    world.apply(POOL, &spec_with(&legacy.hosts, json!({"deletionPolicy": "Orphan"}))).await?;
    let note = world.until_event(name, "Adopted").await?;
    ensure!(note.contains(UNKNOWN_VERSION), "{note}");
    let drains = |i: &WindowsInstance| status(i).operation.is_some_and(|o| o.drain.is_some_and(|d| d.remaining == 1));
    let instance = world.until_instance(name, "is drained before it is changed", drains).await?;
    ensure!(!status(&instance).operation.is_some_and(|o| o.changed), "the host was changed under its pod");
    ensure!(host.windows().state().starts == before, "services were started: {:?}", host.windows().state().starts);
    delete_budget(world, "foundling-budget").await?;
    until_updated(world, POOL).await?;
    ensure!(uncordoned_node(world, name).await?.uid() == uid, "it has registered again");
    Ok(())
}
