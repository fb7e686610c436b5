//! Labels, annotations and taints of Nodes, which are kept as in the pool's template; those of other owners are left alone.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use api::names::key;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use russh::keys::{PublicKeyBase64 as _, ssh_key::PublicKey};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use testbed::sim::{SimHost, SimOptions};

use crate::fleet::{World, is_cordoned, spec_with};

/// Returns taints as `key=value:effect`, except those of the node controller.
fn taints(node: &Node) -> BTreeSet<String> {
    let all = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    let all = all.iter().filter(|t| !t.key.starts_with("node.kubernetes.io/"));
    all.map(|t| format!("{}={}:{}", t.key, t.value.clone().unwrap_or_default(), t.effect)).collect()
}

fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn pool(hosts: &[SimHost], labels: Value, annotations: Value, taints: Value) -> api::WindowsNodePoolSpec {
    let metadata = json!({"labels": labels, "annotations": annotations});
    spec_with(hosts, json!({"template": {"metadata": metadata, "spec": {"taints": taints}}}))
}

async fn until_node(world: &World, name: &str, what: &str, is_so: impl Fn(&Node) -> bool) -> Result<()> {
    world.eventually(what, || async { world.node(name).await.is_ok_and(|n| n.is_some_and(|n| is_so(&n))) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_follow_the_template() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 2).await?;
    let (name, other) = (hosts[0].name(), hosts[1].name());
    let hall = json!({"key": "hall", "value": "b", "effect": "PreferNoSchedule"});
    let os = json!({"key": "os", "value": "Windows", "effect": "NoSchedule"});
    let labels = json!({"example.com/hall": "b", "example.com/rack": "7"});
    let mut first = pool(&hosts, labels, json!({"example.com/owner": "ops"}), json!([os, hall]));
    if let Some(hosts) = &mut first.inventory.hosts {
        hosts[0].labels = Some(BTreeMap::from([("example.com/own".into(), "yes".into())]));
        hosts[0].taints = serde_json::from_value(json!([{"key": "own", "effect": "NoSchedule"}])).ok();
    }
    world.join("factory", &first).await?;
    legacy_metadata_is_there(&world, &hosts[0]).await?;
    let is_first = |node: &Node| {
        node.labels().get("example.com/hall").is_some_and(|v| v == "b")
            && node.labels().get("example.com/rack").is_some_and(|v| v == "7")
            && node.annotations().get("example.com/owner").is_some_and(|v| v == "ops")
            && taints(node).is_superset(&set(&["os=Windows:NoSchedule", "hall=b:PreferNoSchedule"]))
    };
    for host in &hosts {
        until_node(&world, host.name(), "it is as the template says", is_first).await?;
    }
    let has_own = |node: &Node| {
        let has_label = node.labels().contains_key("example.com/own");
        assert_eq!(taints(node).contains("own=:NoSchedule"), has_label, "{:?}", taints(node));
        has_label
    };
    ensure!(has_own(&world.node(name).await?.context("no Node")?), "the host's own label is missing");
    ensure!(!has_own(&world.node(other).await?.context("no Node")?), "the label of another host is there");

    // Fields of other owners stay through all that follows.
    let theirs = json!([
        {"key": "os", "value": "Windows", "effect": "NoSchedule"},
        {"key": "hall", "value": "b", "effect": "PreferNoSchedule"},
        {"key": "theirs", "value": "1", "effect": "PreferNoSchedule"},
    ]);
    // kubelet may write any annotation of its Node. The operator must not trust a claim there that it has applied these fields itself.
    let claim = json!({"labels": ["theirs"], "annotations": ["theirs"], "taints": ["theirs:PreferNoSchedule"]});
    let annotations = json!({"theirs": "1", "windowsmachineconfig.openshift.io/template-applied": claim.to_string()});
    world
        .edit_node(
            name,
            json!({
                "metadata": {"labels": {"theirs": "1"}, "annotations": annotations}, "spec": {"taints": theirs},
            }),
        )
        .await?;

    // A user's change is reverted. No status is written where nothing differs.
    let before = versions(&world, &hosts).await?;
    for attempt in ["x", "y"] {
        let bend = json!({
            "metadata": {"labels": {"example.com/hall": attempt, "example.com/rack": null}, "annotations": {"example.com/owner": null}},
            "spec": {"taints": [{"key": "theirs", "value": "1", "effect": "PreferNoSchedule"}]},
        });
        for host in &hosts {
            world.edit_node(host.name(), bend.clone()).await?;
            until_node(&world, host.name(), "the change is corrected", is_first).await?;
        }
    }
    let after = versions(&world, &hosts).await?;
    ensure!(before == after, "a status was written though nothing differs: {before:?} {after:?}");

    // A change of the template is made in place, and fields that it no longer has are removed.
    let hall = json!({"key": "hall", "value": "c", "effect": "PreferNoSchedule"});
    let second = pool(&hosts, json!({"example.com/hall": "c"}), Value::Null, json!([hall]));
    world.join("factory", &second).await?;
    let node_is_second = |node: &Node, taints_of_all: &BTreeSet<String>| {
        node.labels().get("example.com/hall").is_some_and(|v| v == "c")
            && !node.labels().contains_key("example.com/rack")
            && !node.labels().contains_key("example.com/own")
            && !node.annotations().contains_key("example.com/owner")
            && taints(node) == *taints_of_all
    };
    let with_theirs = set(&["hall=c:PreferNoSchedule", "theirs=1:PreferNoSchedule"]);
    until_node(&world, name, "it is as the new template says", |n| node_is_second(n, &with_theirs)).await?;
    let node = world.node(name).await?.context("no Node")?;
    ensure!(
        node.labels().contains_key("theirs") && node.annotations().contains_key("theirs"),
        "others' metadata is gone"
    );
    for host in &hosts {
        let node = world.node(host.name()).await?.context("no Node")?;
        ensure!(!is_cordoned(&node), "{} was cordoned", host.name());
        ensure!(host.stats().connections == 1, "{} was logged in to for a label", host.name());
    }
    ensure!(!world.operator.log().contains("evicting pods"), "a node was drained for a label");
    ensure!(
        world.operator.metric("windows_node_pool_reconcile_errors_total").await? == 0.0,
        "{}",
        world.operator.log()
    );
    Ok(())
}

/// Returns the resource versions of the pool and its instances.
async fn versions(world: &World, hosts: &[SimHost]) -> Result<Vec<Option<String>>> {
    let mut versions = vec![world.pool("factory").await?.resource_version()];
    for host in hosts {
        versions.push(world.instance(host.name()).await?.context("no instance")?.resource_version());
    }
    Ok(versions)
}

/// Checks the metadata that the legacy operator would expect of a node of its own.
async fn legacy_metadata_is_there(world: &World, host: &SimHost) -> Result<()> {
    let node = world.node(host.name()).await?.context("no Node")?;
    let public: &PublicKey = world.key.public_key();
    let authorized = format!("{} {}", public.algorithm(), public.public_key_base64());
    let host_key = host.host_key();
    let version = world.pool("factory").await?.status.and_then(|s| s.desired_version).context("no version")?;
    for (key, expected) in [
        (key::PUB_KEY_HASH, hex::encode(Sha256::digest(authorized))),
        (key::SSH_HOST_KEY, host_key.public_key_base64()),
        (key::SSH_HOST_KEY_TYPE, host_key.algorithm().to_string()),
        (key::DESIRED_VERSION, version.clone()),
        (key::VERSION, version),
    ] {
        ensure!(
            node.annotations().get(key) == Some(&expected),
            "{key}: {:?}, wanted {expected}",
            node.annotations().get(key)
        );
    }
    let user = node.annotations().get(key::USERNAME).context("no user annotation")?;
    ensure!(!user.contains("Administrator"), "the user is readable: {user}");
    for (key, expected) in [(key::BYOH, "true"), (key::WORKER_ROLE, ""), (key::POOL, "factory")] {
        ensure!(node.labels().get(key).is_some_and(|v| v == expected), "{key}: {:?}", node.labels().get(key));
    }
    ensure!(!node.annotations().contains_key(key::REBOOT_REQUIRED), "a restart is asked for");
    Ok(())
}
