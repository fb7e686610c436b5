//! Pools that affect each other: deletions beside a pool that reads a ConfigMap, and hosts that move from one pool to another.

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsNodePool,
    conditions::kind,
    names::{DEFAULT_NAMESPACE, key},
};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Node},
    events::v1::Event,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use testbed::sim::{SimHost, SimOptions};

use crate::{
    fleet::{World, has, is_ready, pool_status, ready_condition, spec, spec_with},
    removal::{delete_pool, until_pool_gone},
    removal_intent::is_as_before,
};

/// Creates a pool that reads its only host from a ConfigMap, and waits until the host is a node.
async fn reader(world: &World, name: &str, hosts: &[SimHost]) -> Result<()> {
    let data: serde_json::Map<_, _> =
        hosts.iter().map(|h| (h.address().to_string(), json!("username=Administrator\n"))).collect();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), DEFAULT_NAMESPACE);
    maps.patch(name, &PatchParams::apply("user"), &Patch::Apply(map)).await?;
    let spec = json!({"inventory": {"configMapRef": {"name": name}}, "ssh": {"port": hosts[0].port()}});
    world.apply(name, &serde_json::from_value(spec)?).await?;
    world.until(name, "its host is a node", |p| is_ready(p) && pool_status(p).ready_nodes == 1).await
}

async fn uid(world: &World, host: &SimHost) -> Result<Option<String>> {
    Ok(world.node(host.name()).await?.and_then(|node: Node| node.uid()))
}

/// Waits until the host is a node of the pool, and checks that its Node is the same as before.
async fn is_handed_over(world: &World, host: &SimHost, to: &str, node: Option<&String>) -> Result<()> {
    let is_in =
        |i: &api::WindowsInstance| i.spec.pool_ref.name == to && ready_condition(i).is_ok_and(|c| c.status == "True");
    world.until_instance(host.name(), &format!("it is a node of {to}"), is_in).await?;
    ensure!(uid(world, host).await?.as_ref() == node, "{} was rebuilt", host.name());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_with_hosts_in_common_do_not_hold_each_other_up() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    a_pool_is_deleted_beside_one_that_reads_a_config_map(&world).await?;
    a_host_that_another_pool_lists_later_is_handed_over(&world).await?;
    an_entry_is_tried_when_the_other_pool_is_corrected(&world).await
}

async fn a_pool_is_deleted_beside_one_that_reads_a_config_map(world: &World) -> Result<()> {
    let (read, removed, kept) =
        (world.hosts("read", 1).await?, world.hosts("gone", 1).await?, world.hosts("kept", 2).await?);
    reader(world, "reader", &read).await?;
    for (name, hosts, orphan) in [("removed", &removed, false), ("by-policy", &kept[..1].to_vec(), true)] {
        let policy = if orphan { json!({"deletionPolicy": "Orphan"}) } else { json!({}) };
        world.join(name, &spec_with(hosts, policy)).await?;
        let before = uid(world, &hosts[0]).await?;
        delete_pool(world, name).await?;
        until_pool_gone(world, name).await?;
        ensure!(
            uid(world, &hosts[0]).await? == before.filter(|_| orphan),
            "{name}: {:?}",
            world.node(hosts[0].name()).await?
        );
    }
    world.until_gone(&removed[0]).await?;

    world.join("by-command", &spec(&kept[1..])).await?;
    let before = uid(world, &kept[1]).await?;
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    pools.delete("by-command", &DeleteParams::orphan()).await?;
    until_pool_gone(world, "by-command").await?;
    ensure!(before.is_some() && world.instance(kept[1].name()).await?.is_none(), "its instance is left");
    world.until_event(kept[1].name(), "Orphaned").await?;
    is_as_before(world, &kept[1], before.as_ref()).await
}

async fn a_host_that_another_pool_lists_later_is_handed_over(world: &World) -> Result<()> {
    let hosts = world.hosts("win", 3).await?;
    world.join("old", &spec(&hosts)).await?;
    let node = uid(world, &hosts[2]).await?;
    world.apply("old", &spec(&hosts[..2])).await?;
    world.until_instance(hosts[2].name(), "it is marked to leave", |i| i.spec.leaving.is_some()).await?;
    world.apply("new", &spec(&hosts[2..])).await?;
    is_handed_over(world, &hosts[2], "new", node.as_ref()).await?;

    // The pool is renamed: the old pool is deleted before the new one is created.
    let node = uid(world, &hosts[2]).await?;
    delete_pool(world, "new").await?;
    world.until_instance(hosts[2].name(), "it is marked to leave with its pool", |i| i.spec.leaving.is_some()).await?;
    world.apply("renamed", &spec(&hosts[2..])).await?;
    is_handed_over(world, &hosts[2], "renamed", node.as_ref()).await?;

    // Changes in the right order cause no warning.
    let events = Api::<Event>::all(world.client.clone()).list(&ListParams::default()).await?.items;
    let conflicts: Vec<_> = events.into_iter().filter(|e| e.reason.as_deref() == Some("HostConflict")).collect();
    ensure!(conflicts.is_empty(), "{conflicts:?}");
    Ok(())
}

async fn an_entry_is_tried_when_the_other_pool_is_corrected(world: &World) -> Result<()> {
    let hosts = world.hosts("entry", 2).await?;
    let mut wrong = spec_with(&hosts[..1], json!({"rollout": {"paused": true}}));
    wrong.inventory.hosts.as_mut().context("no hosts")?[0].address = hosts[1].address().to_string();
    wrong.inventory.hosts.as_mut().context("no hosts")?[0].port = Some(i32::from(hosts[1].port()));
    world.apply("wrong", &wrong).await?;
    world.until_instance(hosts[0].name(), "it is there", |_| true).await?;
    world.apply("right", &spec(&hosts[1..])).await?;
    let refused =
        |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::INVENTORY_SYNCED, "False", "HostConflict");
    world.until("right", "its entry is refused", refused).await?;
    world.apply("wrong", &spec_with(&hosts[..1], json!({"rollout": {"paused": true}}))).await?;
    world.until_joined(hosts[1].name()).await?;
    let annotations = world.pool("right").await?.annotations().clone();
    ensure!(
        !annotations.contains_key(key::RECONCILE_REQUESTED),
        "a reconcile of the pool was requested: {annotations:?}"
    );
    Ok(())
}
