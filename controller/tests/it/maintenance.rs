//! Maintenance that users and hosts request: nodes are drained one at a time, kept drained, verified, and used again.

use anyhow::{Context as _, Result, ensure};
use api::{GrantType, Phase, Step, conditions::kind, names::key};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::sim::{Action, Outcome, SimHost, SimOptions};

use crate::{
    fleet::{World, has, is_cordoned, is_cordoned_by_us, is_ready, pool_status, ready_condition, spec_with, status},
    removal::{budget, delete_budget, pod},
    rollout::uncordoned_node,
};

const POOL: &str = "patched";
const CART: &str = "cart";

async fn annotate(world: &World, node: &str, key: &str, value: Value) -> Result<()> {
    world.edit_node(node, json!({"metadata": {"annotations": {key: value}}})).await
}

async fn state(world: &World, node: &str) -> Result<Option<String>> {
    let node = world.node(node).await?.context("no Node")?;
    Ok(node.annotations().get(key::MAINTENANCE_STATE).cloned())
}

async fn until_state(world: &World, node: &str, expected: Option<&str>) -> Result<()> {
    let is_so = || async { state(world, node).await.is_ok_and(|s| s.as_deref() == expected) };
    world.eventually(&format!("the maintenance of {node} is {expected:?}"), is_so).await
}

/// Waits until a node's maintenance is over, and checks that the node is not cordoned.
async fn until_back(world: &World, node: &str) -> Result<()> {
    until_state(world, node, None).await?;
    world.until_instance(node, "has nothing to do", |i| status(i).operation.is_none()).await?;
    uncordoned_node(world, node).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_drained_for_maintenance_and_used_again() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("patch", 2).await?;
    world.join(POOL, &spec_with(&hosts, json!({"rollout": {"maxUnavailable": 1}}))).await?;
    Box::pin(nodes_are_drained_one_at_a_time_patched_and_verified(&mut world, &hosts)).await?;
    an_administrator_of_a_host_requests_its_maintenance_with_wicd(&world, &hosts).await?;
    no_maintenance_begins_in_a_paused_pool(&world, &hosts).await
}

async fn nodes_are_drained_one_at_a_time_patched_and_verified(world: &mut World, hosts: &[SimHost]) -> Result<()> {
    let (first, second) = (hosts[0].name(), hosts[1].name());
    pod(world, CART, first, &[("app", CART)]).await?;
    budget(world, CART, CART).await?;

    annotate(world, first, key::MAINTENANCE, json!("monthly patches")).await?;
    // The budget that blocks the drain is named.
    let blocked = world
        .until_instance(first, "says what holds its drain", |i| {
            ready_condition(i).is_ok_and(|c| c.message.contains("budget cart needs 9 healthy pods"))
        })
        .await?;
    ensure!(status(&blocked).phase == Some(Phase::Maintenance), "{:?}", status(&blocked).phase);
    ensure!(state(world, first).await?.as_deref() == Some("Draining"), "{first} is not reported as Draining");
    annotate(world, second, key::MAINTENANCE, json!("monthly patches")).await?;
    until_state(world, second, Some("Waiting")).await?;
    delete_budget(world, CART).await?;
    until_state(world, first, Some("Drained")).await?;
    world.until_event(first, "DrainedForMaintenance").await?;
    let shown = ready_condition(&world.instance(first).await?.context("no instance")?)?.message;
    ensure!(shown.contains("drained for maintenance since") && shown.contains("monthly patches"), "{shown}");

    // The host is switched off, patched and started again, and the operator restarts meanwhile.
    hosts[0].power_off();
    world
        .eventually("the Node of the host that is off is not Ready", || async {
            world.node(first).await.is_ok_and(|n| n.is_some_and(|n| !wnp_core::node::ready(&n).0))
        })
        .await?;
    world.restart().await?;
    world
        .until(POOL, "the pool reports no fault", |p| {
            let conditions = &pool_status(p).conditions;
            has(conditions, kind::DEGRADED, "False", "AsExpected")
                && has(conditions, kind::UPDATED, "True", "AsExpected")
                && pool_status(p).unavailable_nodes == 1
        })
        .await?;
    let pool = world.pool(POOL).await?;
    let ready = pool_status(&pool).conditions.into_iter().find(|c| c.type_ == kind::READY).context("no Ready")?;
    ensure!(ready.message.contains(&format!("1 in maintenance: {first}")), "{}", ready.message);
    let instance = world.instance(first).await?.context("no instance")?;
    let operation = status(&instance).operation.context("no operation")?;
    ensure!((operation.type_, operation.step) == (GrantType::Maintenance, Step::Maintain), "{operation:?}");
    ensure!(status(&instance).failures.is_none(), "{:?}", status(&instance).failures);
    let other = world.node(second).await?.context("no Node")?;
    ensure!(!is_cordoned(&other), "both are drained at once");

    // The node stays cordoned until its host is verified.
    annotate(world, first, key::MAINTENANCE, Value::Null).await?;
    until_state(world, first, Some("Returning")).await?;
    world
        .until_instance(first, "its host cannot be verified", |i| {
            status(i).failures.is_some_and(|f| f.step == Step::Connect) && status(i).operation.is_some()
        })
        .await?;
    ensure!(is_cordoned(&world.node(first).await?.context("no Node")?), "a node that is down was uncordoned");
    ensure!(state(world, second).await?.as_deref() == Some("Waiting"), "both are drained at once");
    hosts[0].windows().state().machine.os_build = "10.0.20348.2700".into();
    hosts[0].power_on();
    world.annotate(first, key::RETRY, "now").await?;
    until_state(world, first, None).await?;
    world.until_event(first, "MaintenanceEnded").await?;
    // Then the next node is drained.
    until_state(world, second, Some("Drained")).await?;
    ensure!(!is_cordoned(&world.node(first).await?.context("no Node")?), "both are drained at once");
    world
        .until(POOL, "the new build is in the status", |p| {
            let status = pool_status(p);
            status.windows_builds.iter().any(|b| b.build == "10.0.20348.2700" && b.hosts == 1)
                && status.hosts_behind_on_patches == 1
        })
        .await?;
    annotate(world, second, key::MAINTENANCE, Value::Null).await?;
    until_back(world, second).await?;
    until_back(world, first).await?;
    world.until(POOL, "all is well", is_ready).await
}

async fn an_administrator_of_a_host_requests_its_maintenance_with_wicd(world: &World, hosts: &[SimHost]) -> Result<()> {
    let name = hosts[0].name();
    let begin = |timeout, keep| Action::Begin { reason: "WSUS".into(), timeout, keep };
    let expect = |outcome: &Outcome, code: u8| -> Result<()> {
        ensure!(outcome.code() == code, "{outcome:?}");
        Ok(())
    };

    // Maintenance is refused while the node is on hold, and while a user refuses maintenance of the host.
    annotate(world, name, key::HOLD, json!("true")).await?;
    expect(&hosts[0].maintenance(&begin(6000, false)).await, 4)?;
    annotate(world, name, key::HOLD, Value::Null).await?;
    world.annotate(name, key::MAINTENANCE, "false").await?;
    expect(&hosts[0].maintenance(&begin(6000, false)).await, 4)?;
    world.annotate(name, key::MAINTENANCE, "").await?;

    // Maintenance is allowed, also after a restart of the host. The request is repeated, because nothing shows when the operator has seen the changed
    // annotation.
    let last = std::sync::Mutex::new(None);
    let is_allowed = async || {
        let outcome = hosts[0].maintenance(&begin(6000, false)).await;
        let is_refused = outcome.code() == 4;
        *last.lock().unwrap() = Some(outcome);
        !is_refused
    };
    world.eventually("no user refuses the maintenance any more", is_allowed).await?;
    expect(&last.into_inner().unwrap().context("wicd did not run")?, 0)?;
    let node = world.node(name).await?.context("no Node")?;
    ensure!(is_cordoned_by_us(&node), "{name} is not drained");
    hosts[0].reboot();
    // The request is repeated, because nothing runs on the host until it is on again.
    let is_drained = async || hosts[0].maintenance(&begin(6000, false)).await.code() == 0;
    world.eventually("the node is drained after the restart", is_drained).await?;
    // A second host must wait. After its timeout, its request is withdrawn, unless `keep` is set.
    expect(&hosts[1].maintenance(&begin(20, true)).await, 3)?;
    ensure!(state(world, hosts[1].name()).await?.as_deref() == Some("Waiting"), "both are drained at once");
    // A run withdraws only its own request.
    expect(&hosts[1].maintenance(&begin(20, false)).await, 3)?;
    ensure!(state(world, hosts[1].name()).await?.as_deref() == Some("Waiting"), "another's request was withdrawn");
    expect(&hosts[1].maintenance(&Action::End { wait: None }).await, 0)?;
    until_back(world, hosts[1].name()).await?;
    expect(&hosts[1].maintenance(&begin(20, false)).await, 3)?;
    until_back(world, hosts[1].name()).await?;

    expect(&hosts[0].maintenance(&Action::End { wait: Some(6000) }).await, 0)?;
    until_back(world, name).await?;

    // A user ends a maintenance that the host does not end.
    expect(&hosts[0].maintenance(&begin(6000, false)).await, 0)?;
    world.annotate(name, key::MAINTENANCE, "false").await?;
    until_state(world, name, Some("Held")).await?;
    ensure!(!is_cordoned(&world.node(name).await?.context("no Node")?), "{name} stayed cordoned");
    expect(&hosts[0].maintenance(&Action::End { wait: None }).await, 0)?;
    until_back(world, name).await
}

/// Checks that no maintenance begins while the pool is paused. Once its maintenance has begun, the second host leaves the pool.
async fn no_maintenance_begins_in_a_paused_pool(world: &World, hosts: &[SimHost]) -> Result<()> {
    let leaves = hosts[1].name();
    world.apply(POOL, &spec_with(hosts, json!({"rollout": {"maxUnavailable": 1, "paused": true}}))).await?;
    world.until(POOL, "it is paused", |p| has(&pool_status(p).conditions, kind::PAUSED, "True", "Paused")).await?;
    annotate(world, leaves, key::MAINTENANCE, json!("scrap")).await?;
    world
        .until_instance(leaves, "says that its pool is paused", |i| {
            ready_condition(i).is_ok_and(|c| {
                c.message.contains("maintenance requested: scrap (requested on the Node); waits: its pool is paused")
            })
        })
        .await?;
    world.apply(POOL, &spec_with(hosts, json!({"rollout": {"maxUnavailable": 1}}))).await?;
    until_state(world, leaves, Some("Drained")).await?;
    world.apply(POOL, &spec_with(&hosts[..1], json!({"rollout": {"maxUnavailable": 1}}))).await?;
    world.until_gone(&hosts[1]).await
}
