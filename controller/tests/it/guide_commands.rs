//! Commands of the guide, on a pool of one host, in the order of the host's life: each has the effect that its page describes.

use anyhow::{Context as _, Result, ensure};
use api::{
    conditions::kind,
    names::{DEFAULT_NAMESPACE, key},
};
use kube::ResourceExt as _;
use russh::keys::ssh_key::PublicKey;
use serde_json::{Value, json};
use testbed::sim::{HostOptions, SimOptions};

use crate::{
    cluster::kubectl,
    fleet::{World, has, is_ready, pool_status},
    guide::Guide,
};

const POOL: &str = "factory";
const HOST: &str = "win-1";

/// Commands that list only faulty hosts. The host of this test has no fault, so they must not print it.
const SHOWS_FAULTS: &[(&str, &str)] =
    &[("removal.md", "## A stuck drain"), ("removal.md", "## A host that cannot be reached")];

/// Commands that change nothing or little, with a text that each must print.
const SHOWS: &[(&str, &str, &str)] = &[
    ("troubleshooting.md", "# Troubleshooting", "Name:         win-1"),
    ("quick-start.md", "## 6. If it does not work", "Name:         win-1"),
    ("hosts.md", "## In short", "factory"),
    ("hosts.md", "## Identity of a host", "-"),
    ("workloads.md", "### The domain of a host", "win-1"),
    ("workloads.md", "### Check the accounts", "win-1"),
    ("maintenance.md", "### How to", "condition met"),
    ("inventory.md", "### Fetch at once", "annotated"),
    ("troubleshooting.md", "### Try again now", "annotated"),
    ("troubleshooting.md", "### Hosts refuse every operator", "annotated"),
];

async fn run(world: &World, page: &str, section: &str) -> Result<String> {
    Guide::open(&world.control_plane, page, "guide_commands")?.run(world, section).await
}

/// Waits until the Node has a UID other than `before` and its pool is Ready, and returns the UID.
async fn ready_node(world: &World, what: &str, before: Option<&String>) -> Result<Option<String>> {
    let is_another = || async {
        let uid = world.node(HOST).await.ok().flatten().and_then(|node| node.uid());
        uid.is_some() && uid.as_ref() != before
    };
    world.eventually(what, is_another).await?;
    world.until(POOL, what, is_ready).await?;
    Ok(world.node(HOST).await?.context("no Node")?.uid())
}

/// Gives the operator an SSH key with the commands of the installation page, and returns the public key.
async fn key_by_the_page(world: &World) -> Result<PublicKey> {
    kubectl(&world.control_plane, &["create", "namespace", "windows"]).await?;
    kubectl(&world.control_plane, &["-n", DEFAULT_NAMESPACE, "delete", "secret", "cloud-private-key"]).await?;
    let guide = Guide::open(&world.control_plane, "install.md", "guide_commands")?;
    for section in ["### 3. Give it a key", "### The key of a release"] {
        guide.run(world, section).await?;
    }
    Ok(PublicKey::from_openssh(&std::fs::read_to_string(guide.folder().join("windows-key.pub"))?)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_guide_have_the_described_effects() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let authorized_keys = Some(vec![key_by_the_page(&world).await?]);
    let host = world.sim.host(HostOptions { authorized_keys, ..HostOptions::named(HOST) }).await?;

    // The pool is that of the page, with the address and port of this test.
    let quick_start = Guide::open(&world.control_plane, "quick-start.md", "guide_commands")?;
    let mut pool: Value = serde_yaml::from_str(&quick_start.block("## 4. The first pool", "yaml")?)?;
    pool["spec"]["ssh"] = json!({"port": host.port()});
    pool["spec"]["inventory"]["hosts"][0]["address"] = json!(host.address().to_string());
    std::fs::write(quick_start.folder().join("pool.yaml"), pool.to_string())?;
    quick_start.run(&world, "## 4. The first pool").await?;
    let mut node = ready_node(&world, "it is a node", None).await?;

    for (page, section, shown) in SHOWS {
        let printed = run(&world, page, section).await?;
        ensure!(printed.contains(shown), "{page} {section}: {printed}");
    }

    for (page, section) in SHOWS_FAULTS {
        let printed = run(&world, page, section).await?;
        ensure!(!printed.contains(HOST), "{page} {section}: {printed}");
    }
    let backup = Guide::open(&world.control_plane, "maintenance.md", "guide_commands")?;
    backup.run(&world, "### What to back up").await?;
    for (file, part) in [
        ("pools.yaml", "name: factory"),
        ("host-keys.txt", "win-1 SHA256:"),
        ("configmaps.yaml", "name: windows-services-"),
        ("secrets.yaml", "private-key.pem: "),
    ] {
        let text = std::fs::read_to_string(backup.folder().join(file))?;
        ensure!(text.contains(part), "{file} has no {part}");
    }

    // Pause a pool, pause all pools until a time, put a host on hold, and keep a node cordoned.
    let is_paused = |status: &'static str, reason: &'static str| {
        move |pool: &api::WindowsNodePool| has(&pool_status(pool).conditions, kind::PAUSED, status, reason)
    };
    run(&world, "troubleshooting.md", "### Pause").await?;
    world.until(POOL, "it is paused", is_paused("True", "Paused")).await?;
    world.edit_pool(POOL, json!({"spec": {"rollout": {"paused": null}}})).await?;
    world.until(POOL, "it is not paused", is_paused("False", "AsExpected")).await?;
    run(&world, "upgrade.md", "### Before").await?;
    world.until(POOL, "it is paused for a day", is_paused("True", "Paused")).await?;
    let printed = run(&world, "upgrade.md", "### After").await?;
    ensure!(printed.contains("condition met"), "{printed}");
    world.until(POOL, "it is not paused any more", is_paused("False", "AsExpected")).await?;
    run(&world, "rollouts.md", "## Pause").await?;
    let annotated = world.instance(HOST).await?.context("no instance")?.annotations().get(key::HOLD).cloned();
    ensure!(annotated.as_deref() == Some("true"), "{annotated:?}");
    kubectl(&world.control_plane, &["annotate", "wi", HOST, &format!("{}-", key::HOLD)]).await?;
    run(&world, "removal.md", "## How a drain works").await?;
    let annotated = world.node(HOST).await?.context("no Node")?.annotations().get(key::KEEP_CORDONED).cloned();
    ensure!(annotated.as_deref() == Some("true"), "{annotated:?}");
    world.edit_node(HOST, json!({"metadata": {"annotations": {key::KEEP_CORDONED: null}}})).await?;

    // The command for maintenance waits until the node is drained. When the node is handed back, it takes pods again.
    run(&world, "maintenance.md", "## Request it").await?;
    run(&world, "maintenance.md", "## Hand the node back").await?;
    let takes_pods =
        || async { world.node(HOST).await.is_ok_and(|n| n.is_some_and(|n| !crate::fleet::is_cordoned(&n))) };
    world.eventually("the node takes pods again", takes_pods).await?;
    world.until(POOL, "maintenance has ended", is_ready).await?;
    run(&world, "maintenance.md", "## Refuse or end it for a host").await?;

    // A Node that is deleted comes back; an instance that is deleted removes the host and joins it again.
    run(&world, "troubleshooting.md", "### A host was off for longer than its certificates live").await?;
    node = ready_node(&world, "its Node came back", node.as_ref()).await?;
    run(&world, "removal.md", "## Rebuild one host").await?;
    ready_node(&world, "it was rebuilt", node.as_ref()).await?;

    // Remove the host and the pool.
    run(&world, "removal.md", "### Remove several hosts, or all").await?;
    world.until_gone(&host).await?;
    run(&world, "removal.md", "## Remove a pool").await?;
    let pools = kubectl(&world.control_plane, &["get", "wnp", "-o", "name"]).await?;
    ensure!(pools.is_empty(), "{pools}");
    Ok(())
}
