//! Inventories of any source: hosts that move to another pool, entries that become invalid, host keys that WMCO has recorded.

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsNodePool, conditions,
    conditions::kind,
    names::{LEGACY_HOST_KEYS, key},
};
use kube::ResourceExt;
use russh::keys::PublicKeyBase64 as _;
use serde_json::json;
use testbed::{
    deployment::{self, NAMESPACE},
    sim::SimOptions,
};

use crate::{
    fleet::{World, has, is_ready, pool_status, spec, spec_with},
    rollout::Watcher,
};

#[tokio::test(flavor = "multi_thread")]
async fn inventories_change() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    tokio::try_join!(
        a_host_moves_to_another_pool(&world),
        a_host_of_a_paused_pool_moves_in_two_steps(&world),
        an_entry_that_becomes_invalid_keeps_its_host(&world),
        host_keys_that_wmco_has_recorded_are_pinned(&world),
    )?;
    Ok(())
}

async fn a_host_moves_to_another_pool(world: &World) -> Result<()> {
    let (hosts, more) = (world.hosts("over", 2).await?, world.hosts("target", 1).await?);
    world.join("from", &spec(&hosts)).await?;
    world.join("to", &spec(&more)).await?;
    let watcher = Watcher::of(&world.client, "from");
    let goes = hosts[1].name();
    let before = world.node(goes).await?.context("no Node")?;

    // While both pools list the host, the first one keeps it.
    let both: Vec<_> = more.iter().chain(&hosts[1..]).cloned().collect();
    world.apply("to", &spec(&both)).await?;
    world
        .until("to", "says whose the host is", |p| {
            let synced = conditions::find(&pool_status(p).conditions, kind::INVENTORY_SYNCED).cloned();
            synced.is_some_and(|c| {
                c.reason == "HostConflict" && c.message.contains("pool from") && c.message.contains(goes)
            })
        })
        .await?;
    world.apply("from", &spec(&hosts[..1])).await?;
    world.until_instance(goes, "is in the other pool", |i| i.spec.pool_ref.name == "to").await?;
    let note = world.until_event(goes, "HostMoved").await?;
    ensure!(note.contains("pool to"), "{note}");
    for (pool, nodes) in [("from", 1), ("to", 2)] {
        world.until(pool, "is Ready", |p| is_ready(p) && pool_status(p).ready_nodes == nodes).await?;
    }
    let is_labelled = || async {
        let node = world.node(goes).await.ok().flatten();
        node.is_some_and(|node| node.labels().get(key::POOL).is_some_and(|pool| pool == "to"))
    };
    world.eventually("the Node names the other pool", is_labelled).await?;
    let after = world.node(goes).await?.context("no Node")?;
    ensure!(after.uid() == before.uid(), "the Node was recreated");
    let instance = world.instance(goes).await?.context("no instance")?;
    let owners: Vec<&str> = instance.owner_references().iter().map(|o| o.name.as_str()).collect();
    ensure!(owners == ["to"], "{owners:?}");
    let seen = watcher.seen.lock().unwrap();
    ensure!(!seen.ever_cordoned.contains(goes) && !seen.ever_disrupted.contains(goes), "{goes} was disturbed");
    Ok(())
}

async fn a_host_of_a_paused_pool_moves_in_two_steps(world: &World) -> Result<()> {
    let (hosts, more) = (world.hosts("stepping", 2).await?, world.hosts("landing", 1).await?);
    world.join("steps-from", &spec(&hosts)).await?;
    world.join("steps-to", &spec(&more)).await?;
    let watcher = Watcher::of(&world.client, "steps-from");
    let goes = hosts[1].name();
    let before = world.node(goes).await?.context("no Node")?;
    world.apply("steps-from", &spec_with(&hosts[..1], json!({"rollout": {"paused": true}}))).await?;
    world.until("steps-from", "no longer lists it", |p| pool_status(p).hosts == 1).await?;
    let both: Vec<_> = more.iter().chain(&hosts[1..]).cloned().collect();
    world.apply("steps-to", &spec(&both)).await?;
    world.until_instance(goes, "is in the other pool", |i| i.spec.pool_ref.name == "steps-to").await?;
    world.until("steps-to", "is Ready", |p| is_ready(p) && pool_status(p).ready_nodes == 2).await?;
    let after = world.node(goes).await?.context("no Node")?;
    ensure!(after.uid() == before.uid(), "the Node was recreated");
    let seen = watcher.seen.lock().unwrap();
    ensure!(!seen.ever_cordoned.contains(goes) && !seen.ever_disrupted.contains(goes), "{goes} was disturbed");
    Ok(())
}

async fn an_entry_that_becomes_invalid_keeps_its_host(world: &World) -> Result<()> {
    const POOL: &str = "muddled";
    let hosts = world.hosts(POOL, 2).await?;
    world.join(POOL, &spec(&hosts)).await?;
    let stats = hosts[1].stats();
    let mut wrong = spec_with(&hosts, json!({}));
    let list = wrong.inventory.hosts.as_mut().context("no list")?;
    list[1].address = hosts[0].address().to_string();
    // An announcement to the removal guard is valid for the next change only.
    world.edit_pool(POOL, json!({"metadata": {"annotations": {key::ANNOUNCE_REMOVAL: "1"}}})).await?;
    world.apply(POOL, &wrong).await?;
    world
        .until(POOL, "two hosts have one address", |p| {
            let status = pool_status(p);
            has(&status.conditions, kind::INVENTORY_SYNCED, "False", "HostConflict") && status.ready_nodes == 2
        })
        .await?;
    let is_removed = |p: &WindowsNodePool| !p.annotations().contains_key(key::ANNOUNCE_REMOVAL);
    world.until(POOL, "the announcement is removed", is_removed).await?;
    let instance = world.instance(hosts[1].name()).await?.context("the instance is gone")?;
    ensure!(!instance.is_leaving(), "the host is being removed");
    ensure!(instance.spec.host.address == hosts[1].address().to_string(), "{:?}", instance.spec.host);
    world.join(POOL, &spec(&hosts)).await?;
    ensure!(hosts[1].stats() == stats, "the host was worked on: {stats:?}, {:?}", hosts[1].stats());
    Ok(())
}

async fn host_keys_that_wmco_has_recorded_are_pinned(world: &World) -> Result<()> {
    const POOL: &str = "seen";
    let hosts = world.hosts(POOL, 3).await?;
    let right = hosts[0].host_key().public_key_base64();
    let wrong = deployment::new_key()?.public_key().public_key_base64();
    let at = |n: usize| hosts[n].address().to_string();
    let data = json!({at(0): right, at(1): wrong, at(2): "damaged"});
    let metadata = json!({"name": LEGACY_HOST_KEYS, "namespace": NAMESPACE});
    let seen = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
    world.control_plane.apply_yaml(&seen.to_string()).await?;
    world.apply(POOL, &spec(&hosts)).await?;
    world.until_joined(hosts[0].name()).await?;
    let message = world.until_failed(hosts[1].name(), "HostKeyMismatch").await?;
    ensure!(message.contains("SHA256:"), "{message}");
    let message = world.until_failed(hosts[2].name(), "HostKeyInvalid").await?;
    ensure!(message.contains(&at(2)) && message.contains(LEGACY_HOST_KEYS), "{message}");
    ensure!(hosts[2].stats().connections == 0, "the host with a damaged record was logged in to");
    Ok(())
}
