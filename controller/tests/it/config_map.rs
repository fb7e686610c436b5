//! Hosts from WMCO's ConfigMap `windows-instances`, which works unchanged.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsNodePool, conditions,
    conditions::kind,
    names::{DEFAULT_NAMESPACE, MANAGER_ADAPTER, WINDOWS_INSTANCES, key},
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{
    deployment,
    sim::{SimHost, SimOptions},
};

use crate::{
    fleet::{World, has, pool_status, spec},
    machines::{set_port, until_made, until_ready},
};

fn maps(world: &World) -> Api<ConfigMap> {
    Api::namespaced(world.client.clone(), DEFAULT_NAMESPACE)
}

pub(crate) async fn create(world: &World, hosts: &[SimHost]) -> Result<()> {
    let data: BTreeMap<String, String> =
        hosts.iter().map(|h| (h.address().to_string(), "username=Administrator\n".to_string())).collect();
    let metadata = ObjectMeta { name: Some(WINDOWS_INSTANCES.into()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
    maps(world).create(&PostParams::default(), &map).await?;
    Ok(())
}

async fn edit(world: &World, data: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"data": data}));
    maps(world).patch(WINDOWS_INSTANCES, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn delete(world: &World) -> Result<()> {
    maps(world).delete(WINDOWS_INSTANCES, &DeleteParams::default()).await?;
    Ok(())
}

/// Returns the fields of a pool that a field manager owns, by its first entry in `managedFields`.
fn owned(pool: &WindowsNodePool, manager: &str) -> Value {
    let fields = pool.managed_fields().iter().find(|f| f.manager.as_deref() == Some(manager));
    fields.and_then(|f| f.fields_v1.clone()).map_or(Value::Null, |f| f.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_windows_instances_join_and_leave_without_a_users_pool() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 3).await?;
    create(&world, &hosts[..2]).await?;
    let pool = until_made(&world, WINDOWS_INSTANCES).await?;
    let ours = json!({"f:spec": {".": {}, "f:inventory": {".": {}, "f:configMapRef": {".": {}, "f:name": {}}}}});
    ensure!(owned(&pool, MANAGER_ADAPTER) == ours, "{}", owned(&pool, MANAGER_ADAPTER));

    ensure!(pool.spec.mode.is_none(), "the pool has a mode, although no node is WMCO's: {:?}", pool.spec.mode);

    set_port(&world, WINDOWS_INSTANCES, &hosts[0]).await?;
    until_ready(&world, WINDOWS_INSTANCES, 2).await?;
    for host in &hosts[..2] {
        let instance = world.until_joined(host.name()).await?;
        let origin = instance.spec.origin.context("no origin")?;
        ensure!(origin.source == "ConfigMap windows-instances" && origin.revision.is_some(), "{origin:?}");
    }
    let inventory = pool_status(&world.pool(WINDOWS_INSTANCES).await?).inventory.context("no source")?;
    let revision = maps(&world).get(WINDOWS_INSTANCES).await?.resource_version();
    ensure!(inventory.revision == revision, "{inventory:?} is not of {revision:?}");

    // Adds a new entry and an invalid entry, and makes one entry invalid, whose host stays a node.
    let (first, third) = (hosts[0].address().to_string(), hosts[2].address().to_string());
    edit(&world, json!({(third): "username=Administrator", "10.9.9.9": "core", (first.clone()): "username="})).await?;
    world.until_joined(hosts[2].name()).await?;
    world
        .until(WINDOWS_INSTANCES, "says what is wrong", |p| {
            has(&pool_status(p).conditions, kind::INVENTORY_SYNCED, "False", "InvalidInventory")
                && pool_status(p).ready_nodes == 3
        })
        .await?;
    for part in ["10.9.9.9: ", &format!("{first}: ")] {
        world.until_note(WINDOWS_INSTANCES, "InvalidInventory", |note| note.contains(part)).await?;
    }
    let about = Api::<k8s_openapi::api::events::v1::Event>::all(world.client.clone());
    for kind in ["ConfigMap", "WindowsNodePool"] {
        world
            .eventually(&format!("an event on the {kind}"), || async {
                let all = about.list(&kube::api::ListParams::default()).await.map(|l| l.items).unwrap_or_default();
                all.iter().any(|e| {
                    let regarding = e.regarding.clone().unwrap_or_default();
                    regarding.kind.as_deref() == Some(kind) && e.reason.as_deref() == Some("InvalidInventory")
                })
            })
            .await?;
    }

    // A host whose entry is deleted is deconfigured and no longer a node.
    edit(&world, json!({(first): null, "10.9.9.9": null})).await?;
    world.until_gone(&hosts[0]).await?;
    until_ready(&world, WINDOWS_INSTANCES, 2).await?;

    // Without the ConfigMap, no host is removed until a user confirms the removal. The pool stays, because a user has set a field in it.
    delete(&world).await?;
    let confirm = format!("{}=2", key::APPROVE_REMOVAL);
    world
        .until(WINDOWS_INSTANCES, "it lists the hosts that stay", |p| {
            is_held(p, "SourceNotFound", &["win-1, win-2", &confirm])
        })
        .await?;
    for host in &hosts[1..] {
        let instance = world.instance(host.name()).await?.context("no instance")?;
        ensure!(!instance.is_leaving(), "{instance:?}");
    }
    let patch = json!({"metadata": {"annotations": {key::APPROVE_REMOVAL: "2"}}});
    world.edit_pool(WINDOWS_INSTANCES, patch).await?;
    for host in &hosts[1..] {
        world.until_gone(host).await?;
    }
    world.until(WINDOWS_INSTANCES, "no host is left", |p| pool_status(p).hosts == 0).await?;
    let pool = world.pool(WINDOWS_INSTANCES).await?;
    ensure!(pool.metadata.deletion_timestamp.is_none(), "{pool:?}");
    ensure!(owned(&pool, MANAGER_ADAPTER) == ours, "{}", owned(&pool, MANAGER_ADAPTER));
    ensure!(owned(&pool, "a-person") == json!({"f:spec": {"f:ssh": {"f:port": {}}}}), "{}", owned(&pool, "a-person"));
    Ok(())
}

/// Reports whether the pool keeps its hosts for this reason, with these parts in the message of its condition Ready.
fn is_held(pool: &WindowsNodePool, reason: &str, parts: &[&str]) -> bool {
    let conditions = pool_status(pool).conditions;
    has(&conditions, kind::INVENTORY_SYNCED, "False", reason)
        && conditions::find(&conditions, kind::READY).is_some_and(|c| parts.iter().all(|p| c.message.contains(p)))
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_lost_list_nor_a_rewritten_entry_removes_anybody() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 2).await?;
    create(&world, &hosts).await?;
    until_made(&world, WINDOWS_INSTANCES).await?;
    set_port(&world, WINDOWS_INSTANCES, &hosts[0]).await?;
    until_ready(&world, WINDOWS_INSTANCES, 2).await?;
    let mut before = Vec::new();
    for host in &hosts {
        before.push((host, world.node(host.name()).await?.context("no Node")?.uid(), host.stats()));
    }
    let all_stay = async |world: &World| -> Result<()> {
        for (host, uid, stats) in &before {
            let instance = world.instance(host.name()).await?.context("no instance")?;
            ensure!(!instance.is_leaving(), "{instance:?}");
            let node = world.node(host.name()).await?.context("the Node is gone")?;
            ensure!(node.uid() == *uid && !crate::fleet::is_cordoned(&node), "{node:?}");
            ensure!(host.stats().connections == stats.connections, "{} was worked on", host.name());
        }
        Ok(())
    };

    // An entry with an unknown DNS name may be any host.
    let address = hosts[0].address().to_string();
    edit(&world, json!({(address.clone()): null, "win-0.invalid": "username=Administrator"})).await?;
    let parts = ["win-0.invalid", "win-0", &format!("{}=1", key::APPROVE_REMOVAL)];
    world.until(WINDOWS_INSTANCES, "it names the entry", |p| is_held(p, "RemovalBlocked", &parts)).await?;
    all_stay(&world).await?;
    // An invalid entry may be any host, too.
    edit(&world, json!({"win-0.invalid": "core"})).await?;
    world
        .until(WINDOWS_INSTANCES, "it names the entry", |p| {
            is_held(p, "RemovalBlocked", &parts)
                && has(&pool_status(p).conditions, kind::STALLED, "True", "RemovalBlocked")
        })
        .await?;
    all_stay(&world).await?;
    edit(&world, json!({(address): "username=Administrator", "win-0.invalid": null})).await?;
    until_ready(&world, WINDOWS_INSTANCES, 2).await?;
    all_stay(&world).await?;

    // The ConfigMap is emptied, deleted and created again.
    let data = maps(&world).get(WINDOWS_INSTANCES).await?.data.context("no data")?;
    let nothing: BTreeMap<&String, Value> = data.keys().map(|k| (k, Value::Null)).collect();
    edit(&world, json!(nothing)).await?;
    let confirm = format!("{}=2", key::APPROVE_REMOVAL);
    world.until(WINDOWS_INSTANCES, "the ConfigMap is empty", |p| is_held(p, "RemovalBlocked", &[&confirm])).await?;
    delete(&world).await?;
    world.until(WINDOWS_INSTANCES, "the ConfigMap is missing", |p| is_held(p, "SourceNotFound", &[&confirm])).await?;
    create(&world, &hosts).await?;
    until_ready(&world, WINDOWS_INSTANCES, 2).await?;
    all_stay(&world).await?;

    // The operator is reinstalled after its namespace was deleted.
    world.stop().await?;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    namespaces.delete(DEFAULT_NAMESPACE, &DeleteParams::default()).await?;
    let is_gone = || async { matches!(namespaces.get_opt(DEFAULT_NAMESPACE).await, Ok(None)) };
    world.eventually("the namespace is gone", is_gone).await?;
    deployment::install(&world.control_plane).await?;
    deployment::store_key(&world.control_plane, &world.key).await?;
    world.new_operator().await?;
    world.until(WINDOWS_INSTANCES, "the ConfigMap is missing", |p| is_held(p, "SourceNotFound", &[&confirm])).await?;
    create(&world, &hosts).await?;
    until_ready(&world, WINDOWS_INSTANCES, 2).await?;
    all_stay(&world).await?;
    nodes_are_handed_back_to_wmco_and_adopted_again(&world, &hosts).await
}

async fn nodes_are_handed_back_to_wmco_and_adopted_again(world: &World, hosts: &[SimHost]) -> Result<()> {
    let mut before = Vec::new();
    for host in hosts {
        before.push(world.node(host.name()).await?.context("no Node")?.uid());
    }

    // The ConfigMap stays for WMCO and no longer makes a pool.
    let label = |value: Value| Patch::Merge(json!({"metadata": {"labels": {key::IGNORE: value}}}));
    maps(world).patch(WINDOWS_INSTANCES, &PatchParams::default(), &label(json!("true"))).await?;
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    world.edit_pool(WINDOWS_INSTANCES, json!({"spec": {"deletionPolicy": "Orphan"}})).await?;
    pools.delete(WINDOWS_INSTANCES, &DeleteParams::default()).await?;
    let is_gone = || async { matches!(pools.get_opt(WINDOWS_INSTANCES).await, Ok(None)) };
    world.eventually("the pool is gone", is_gone).await?;
    // The event for an entry shows that the ConfigMap has been reconciled since.
    edit(world, json!({"10.9.9.9": "core"})).await?;
    world.until_note(WINDOWS_INSTANCES, "InvalidInventory", |note| note.contains("10.9.9.9")).await?;
    edit(world, json!({"10.9.9.9": null})).await?;
    ensure!(is_gone().await, "the pool was made again");
    for (host, uid) in hosts.iter().zip(&before) {
        ensure!(world.instance(host.name()).await?.is_none(), "{} still has an instance", host.name());
        ensure!(
            world.node(host.name()).await?.context("the Node is gone")?.uid() == *uid,
            "{} registered again",
            host.name()
        );
    }

    // Listed again, hosts keep their names and Nodes. The operator finds the names by the addresses of the Nodes.
    maps(world).patch(WINDOWS_INSTANCES, &PatchParams::default(), &label(Value::Null)).await?;
    until_made(world, WINDOWS_INSTANCES).await?;
    set_port(world, WINDOWS_INSTANCES, &hosts[0]).await?;
    until_ready(world, WINDOWS_INSTANCES, 2).await?;
    for (host, uid) in hosts.iter().zip(&before) {
        world.until_joined(host.name()).await?;
        ensure!(
            world.node(host.name()).await?.context("the Node is gone")?.uid() == *uid,
            "{} registered again",
            host.name()
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_no_user_has_edited_is_created_and_deleted_with_its_source() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    create(&world, &[]).await?;
    until_made(&world, WINDOWS_INSTANCES).await?;
    until_ready(&world, WINDOWS_INSTANCES, 0).await?;

    // A pool that is deleted without its source is made again.
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    let first = world.pool(WINDOWS_INSTANCES).await?.uid();
    pools.delete(WINDOWS_INSTANCES, &DeleteParams::default()).await?;
    world
        .eventually("the pool is made again", || async {
            world.pool(WINDOWS_INSTANCES).await.is_ok_and(|p| p.uid() != first)
        })
        .await?;
    until_ready(&world, WINDOWS_INSTANCES, 0).await?;

    // The next operator process notices a source that was deleted while no operator ran.
    world.operator.signal("KILL")?;
    delete(&world).await?;
    world.new_operator().await?;
    let is_gone = || async { matches!(pools.get_opt(WINDOWS_INSTANCES).await, Ok(None)) };
    world.eventually("the pool is deleted with its source", is_gone).await?;

    // A user's pool of that name with another source belongs to the user alone.
    world.apply(WINDOWS_INSTANCES, &spec(&[])).await?;
    create(&world, &[]).await?;
    let note = world.until_event(WINDOWS_INSTANCES, "PoolTaken").await?;
    ensure!(note.contains("has another source of hosts"), "{note}");
    let theirs = world.pool(WINDOWS_INSTANCES).await?;
    ensure!(theirs.spec == spec(&[]) && owned(&theirs, MANAGER_ADAPTER).is_null(), "{:?}", theirs.spec);
    pools.delete(WINDOWS_INSTANCES, &DeleteParams::default()).await?;
    until_made(&world, WINDOWS_INSTANCES).await.map(drop)
}
