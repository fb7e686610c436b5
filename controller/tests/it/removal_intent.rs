//! Intent to remove hosts: a host that no user wants removed stays a node, and a removal can be revoked.

use anyhow::{Context as _, Result, ensure};
use api::{
    Reason, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, conditions,
    conditions::kind,
    names::{FINALIZER_POOL, GROUP, key},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt, api::DeleteParams};
use serde_json::json;
use testbed::sim::{SimHost, SimOptions};

use crate::{
    fleet::{World, has, is_cordoned, is_ready, pool_status, spec, spec_with, status},
    removal::{budget, delete_budget, delete_pool, pod, until_forgotten, until_pool_gone},
    rollout::{uncordoned_node, with_downloads},
};

fn pool_with_policy(hosts: &[SimHost], downloads: i32, policy: &str) -> WindowsNodePoolSpec {
    with_downloads(hosts, downloads, &json!({"deletionPolicy": policy}))
}

/// Creates a pod on a node, and a budget that blocks its eviction.
async fn guard(world: &World, node: &str) -> Result<()> {
    pod(world, "guarded", node, &[("app", node)]).await?;
    budget(world, node, node).await
}

fn drains(instance: &WindowsInstance) -> bool {
    let drain = status(instance).operation.and_then(|o| o.drain);
    drain.is_some_and(|d| !d.blockers.is_empty())
}

/// Returns the UID of a host's Node.
async fn uid(world: &World, host: &SimHost) -> Result<Option<String>> {
    Ok(world.node(host.name()).await?.context("no Node")?.uid())
}

/// Checks that the host is the same node as before, is not cordoned, and was not restarted.
pub(crate) async fn is_as_before(world: &World, host: &SimHost, before: Option<&String>) -> Result<()> {
    let name = host.name();
    ensure!(uncordoned_node(world, name).await?.uid().as_ref() == before, "{name} registered again");
    ensure!(!host.services().is_empty() && host.drive_c().join("k").exists(), "{name} was deconfigured");
    ensure!(host.boots() == 1, "{name} was restarted");
    Ok(())
}

fn is_withheld(pool: &WindowsNodePool, reason: impl AsRef<str>, parts: &[&str]) -> bool {
    let conditions = pool_status(pool).conditions;
    has(&conditions, kind::INVENTORY_SYNCED, "False", reason)
        && conditions::find(&conditions, kind::READY).is_some_and(|c| parts.iter().all(|p| c.message.contains(p)))
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_no_user_removes_stay_nodes() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    tokio::try_join!(
        orphaning_during_a_change_deconfigures_no_host(&world),
        a_host_that_comes_back_is_not_removed(&world),
        an_empty_list_removes_no_host_until_the_number_is_confirmed(&world),
        a_removed_finalizer_removes_no_host(&world),
        one_apply_moves_a_host_without_removing_it(&world),
    )?;
    a_host_that_moves_while_no_operator_runs_is_not_removed(&mut world).await?;
    hosts_are_not_deconfigured_with_the_crd(&world).await
}

async fn orphaning_during_a_change_deconfigures_no_host(world: &World) -> Result<()> {
    const POOL: &str = "orphaned";
    let hosts = world.hosts(POOL, 2).await?;
    let first = &hosts[0];
    world.join(POOL, &pool_with_policy(&hosts, 3, "Deconfigure")).await?;
    let before = [uid(world, first).await?, uid(world, &hosts[1]).await?];
    for host in &hosts {
        guard(world, host.name()).await?;
    }
    world.apply(POOL, &pool_with_policy(&hosts, 6, "Deconfigure")).await?;
    let blocked = async |name: &str| world.until_instance(name, "a budget blocks its change", drains).await.is_ok();
    let (a, b) = (first.name(), hosts[1].name());
    // Whichever is the first to be changed, the other one waits for its turn.
    ensure!(tokio::select! { is = blocked(a) => is, is = blocked(b) => is }, "neither {a} nor {b} is blocked");
    world.apply(POOL, &pool_with_policy(&hosts, 6, "Orphan")).await?;
    delete_pool(world, POOL).await?;
    until_pool_gone(world, POOL).await?;
    for host in &hosts {
        delete_budget(world, host.name()).await?;
        ensure!(world.instance(host.name()).await?.is_none(), "the instance is still there");
        world.until_event(host.name(), "Orphaned").await?;
    }
    for (host, before) in hosts.iter().zip(&before) {
        is_as_before(world, host, before.as_ref()).await?;
    }
    Ok(())
}

async fn a_host_that_comes_back_is_not_removed(world: &World) -> Result<()> {
    const POOL: &str = "returned";
    let hosts = world.hosts(POOL, 3).await?;
    world.join(POOL, &spec(&hosts)).await?;
    let mut before = Vec::new();
    for host in &hosts[..2] {
        guard(world, host.name()).await?;
        before.push(uid(world, host).await?);
    }
    // One host drains, and the other waits for its turn: both are marked for removal, and neither instance is being deleted.
    world.apply(POOL, &spec(&hosts[2..])).await?;
    let marked = |i: &WindowsInstance| i.spec.leaving.is_some() && !i.is_deleting();
    for host in &hosts[..2] {
        world.until_instance(host.name(), "is marked", marked).await?;
    }
    world
        .eventually("one of them drains", || async {
            let mut any = false;
            for host in &hosts[..2] {
                any |= world.instance(host.name()).await.is_ok_and(|i| i.is_some_and(|i| drains(&i) && marked(&i)));
            }
            any
        })
        .await?;
    world.join(POOL, &spec(&hosts)).await?;
    for (host, before) in hosts.iter().zip(&before) {
        let instance = world.until_joined(host.name()).await?;
        ensure!(!instance.is_leaving() && status(&instance).operation.is_none(), "{instance:?}");
        world.until_event(host.name(), "HostReturned").await?;
        is_as_before(world, host, before.as_ref()).await?;
    }
    Ok(())
}

async fn an_empty_list_removes_no_host_until_the_number_is_confirmed(world: &World) -> Result<()> {
    const POOL: &str = "emptied";
    let hosts = world.hosts(POOL, 2).await?;
    world.join(POOL, &spec(&hosts)).await?;
    let before = [uid(world, &hosts[0]).await?, uid(world, &hosts[1]).await?];
    world.edit_pool(POOL, json!({"spec": {"inventory": {"hosts": []}}})).await?;
    let confirm = format!("{}=2", key::APPROVE_REMOVAL);
    let parts = ["emptied-0, emptied-1", confirm.as_str(), "delete the pool"];
    world.until(POOL, "it says what stays", |p| is_withheld(p, Reason::RemovalBlocked, &parts)).await?;

    // A wrong number confirms nothing.
    world
        .edit_pool(POOL, json!({"metadata": {"annotations": {key::APPROVE_REMOVAL: "3"}, "labels": {"seen": "it"}}}))
        .await?;
    world.edit_pool(POOL, json!({"spec": {"provisioning": {"maxConcurrent": 7}}})).await?;
    let observed = |p: &WindowsNodePool| pool_status(p).effective.is_some_and(|e| e.max_concurrent == 7);
    world
        .until(POOL, "it has observed the change", |p| observed(p) && is_withheld(p, Reason::RemovalBlocked, &parts))
        .await?;
    for (host, before) in hosts.iter().zip(&before) {
        ensure!(world.instance(host.name()).await?.is_some_and(|i| !i.is_leaving()), "{} leaves", host.name());
        is_as_before(world, host, before.as_ref()).await?;
    }
    world.edit_pool(POOL, json!({"metadata": {"annotations": {key::APPROVE_REMOVAL: "2"}}})).await?;
    for host in &hosts {
        world.until_gone(host).await?;
    }
    world.until_event(POOL, "RemovalConfirmed").await?;
    world.until(POOL, "no host is left", |p| is_ready(p) && pool_status(p).hosts == 0).await?;
    let pool = world.pool(POOL).await?;
    ensure!(!pool.annotations().contains_key(key::APPROVE_REMOVAL), "the confirmation stayed");
    Ok(())
}

async fn a_removed_finalizer_removes_no_host(world: &World) -> Result<()> {
    const POOL: &str = "stripped";
    let hosts = world.hosts(POOL, 2).await?;
    world.join(POOL, &spec(&hosts)).await?;
    let before = uid(world, &hosts[0]).await?;
    for host in &hosts {
        guard(world, host.name()).await?;
    }
    delete_pool(world, POOL).await?;
    let marked = |i: &WindowsInstance| i.spec.leaving.is_some();
    world.until_instance(hosts[0].name(), "is marked", marked).await?;
    let left: Vec<String> =
        world.pool(POOL).await?.finalizers().iter().filter(|f| *f != FINALIZER_POOL).cloned().collect();
    world.edit_pool(POOL, json!({"metadata": {"finalizers": left}})).await?;
    until_pool_gone(world, POOL).await?;
    for host in &hosts {
        let says = |i: &WindowsInstance| {
            let ready = conditions::find(&status(i).conditions, kind::READY).cloned();
            let told = |m: &str| ["Create the pool again", key::ABANDON].iter().all(|p| m.contains(p));
            ready.is_some_and(|c| c.reason == Reason::PoolMissing && told(&c.message)) && i.is_deleting()
        };
        world.until_instance(host.name(), "says that its pool is missing", says).await?;
        world
            .eventually("the operator's cordon is lifted", || async {
                world.node(host.name()).await.is_ok_and(|n| n.is_some_and(|n| !is_cordoned(&n)))
            })
            .await?;
        ensure!(!host.services().is_empty(), "{} was deconfigured", host.name());
    }

    // One host is abandoned. The other one stays the same node when the pool is created again.
    world.annotate(hosts[1].name(), key::ABANDON, "true").await?;
    until_forgotten(world, hosts[1].name()).await?;
    ensure!(!hosts[1].services().is_empty(), "it was deconfigured");
    world.join(POOL, &spec(&hosts[..1])).await?;
    let instance = world.until_joined(hosts[0].name()).await?;
    ensure!(!instance.is_leaving(), "{instance:?}");
    is_as_before(world, &hosts[0], before.as_ref()).await
}

/// Moves a host to another pool. The old pool is applied first, so that for a moment no pool lists the host.
async fn one_apply_moves_a_host_without_removing_it(world: &World) -> Result<()> {
    let hosts = world.hosts("moved", 2).await?;
    let moved = &hosts[0];
    world.join("moved-from", &spec(&hosts)).await?;
    let before = uid(world, moved).await?;
    world.apply("moved-from", &spec(&hosts[1..])).await?;
    world.apply("moved-to", &spec(&hosts[..1])).await?;
    until_in(world, moved, "moved-to").await?;
    is_as_before(world, moved, before.as_ref()).await?;

    // The host moves back. Its target pool lists it first, in mode Plan: the host stays where it is until that pool is in mode Apply.
    world.apply("moved-from", &spec_with(&hosts, json!({"mode": "Plan"}))).await?;
    let other = world.hosts("moved-more", 1).await?;
    world.apply("moved-to", &spec(&other)).await?;
    world
        .until("moved-to", "it says what it waits for", |p| {
            let synced = conditions::find(&pool_status(p).conditions, kind::INVENTORY_SYNCED).cloned();
            synced.is_some_and(|c| {
                c.reason == Reason::HandOverWaits && c.message.contains("moved-from") && c.message.contains("mode Plan")
            })
        })
        .await?;
    ensure!(world.instance(moved.name()).await?.is_some_and(|i| !i.is_leaving()), "it leaves");
    world.apply("moved-from", &spec(&hosts)).await?;
    until_in(world, moved, "moved-from").await?;
    is_as_before(world, moved, before.as_ref()).await
}

async fn until_in(world: &World, host: &SimHost, pool: &str) -> Result<()> {
    let is_in = |i: &WindowsInstance| i.spec.pool_ref.name == pool && !i.is_leaving() && status(i).operation.is_none();
    world.until_instance(host.name(), &format!("is in {pool}"), is_in).await?;
    world.until_joined(host.name()).await?;
    world.until(pool, "is Ready", is_ready).await
}

/// Moves a host to another pool while no operator runs.
async fn a_host_that_moves_while_no_operator_runs_is_not_removed(world: &mut World) -> Result<()> {
    let hosts = world.hosts("away", 2).await?;
    world.join("from", &spec(&hosts)).await?;
    let before = uid(world, &hosts[0]).await?;
    world.stop().await?;
    world.apply("from", &spec(&hosts[1..])).await?;
    world.apply("to", &spec(&hosts[..1])).await?;
    world.new_operator().await?;
    until_in(world, &hosts[0], "to").await?;
    is_as_before(world, &hosts[0], before.as_ref()).await
}

/// Deletes the CRD, and all its objects with it: no user has requested the removal of hosts.
async fn hosts_are_not_deconfigured_with_the_crd(world: &World) -> Result<()> {
    let hosts = world.hosts("kind", 2).await?;
    world.join("kind", &spec(&hosts)).await?;
    let before = [uid(world, &hosts[0]).await?, uid(world, &hosts[1]).await?];
    let crds: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    let name = format!("windowsnodepools.{GROUP}");
    crds.delete(&name, &DeleteParams::default()).await?;
    world.eventually("the CRD is gone", || async { matches!(crds.get_opt(&name).await, Ok(None)) }).await?;
    for (host, before) in hosts.iter().zip(&before) {
        ensure!(world.instance(host.name()).await?.is_none(), "the instance of {} is still there", host.name());
        is_as_before(world, host, before.as_ref()).await?;
    }
    Ok(())
}
