//! A host gets another address, as from DHCP: its Node gets it too, with a restart of kubelet and no other disturbance.

use anyhow::{Context as _, Result, ensure};
use api::conditions::kind;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use serde_json::json;
use testbed::sim::{SimHost, SimOptions};

use crate::{
    fleet::{World, has, is_cordoned, spec, spec_with, status},
    removal::pod,
};

const POOL: &str = "factory";

fn internal_ip(node: &Node) -> Option<String> {
    let addresses = node.status.as_ref()?.addresses.clone()?;
    addresses.into_iter().find(|a| a.type_ == "InternalIP").map(|a| a.address)
}

async fn until_node_is_at(world: &World, name: &str, address: &str) -> Result<()> {
    world
        .eventually("the Node has the address of its host", || async {
            world.node(name).await.ok().flatten().and_then(|n| internal_ip(&n)).as_deref() == Some(address)
        })
        .await
}

fn starts(host: &SimHost, service: &str) -> u32 {
    host.windows().state().starts.get(service).copied().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_a_host_that_gets_another_address_follows_it() -> Result<()> {
    let world = World::new(SimOptions { own_credentials: true, ..SimOptions::default() }, &[]).await?;
    let hosts = world.hosts("win", 2).await?;
    world.join(POOL, &spec(&hosts)).await?;
    let host = &hosts[0];
    pod(&world, "app", "win-0", &[]).await?;
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    let uid = pods.get("app-win-0").await?.metadata.uid;
    let node = world.node("win-0").await?.context("there is no Node")?;
    let (before, boots) = (host.address().to_string(), host.boots());
    let started = || ["kubelet", "containerd"].map(|service| starts(host, service));
    let [kubelet, containerd] = started();
    until_node_is_at(&world, "win-0", &before).await?;

    // A paused pool reports the new address, and changes nothing.
    host.readdress().await?;
    let now = host.address().to_string();
    ensure!(now != before, "the host is where it was");
    world.apply(POOL, &spec_with(&hosts, json!({"rollout": {"paused": true}}))).await?;
    let instance = world
        .until_instance("win-0", "says that it has moved", |i| {
            has(&status(i).conditions, kind::UP_TO_DATE, "False", "Outdated")
                && status(i).facts.is_some_and(|f| f.node_ip == now)
        })
        .await?;
    let ready = status(&instance).conditions.into_iter().find(|c| c.type_ == kind::READY).context("no condition")?;
    ensure!(ready.message.contains(&format!("changed from {before} to {now}")), "{}", ready.message);
    ensure!(started() == [kubelet, containerd], "a paused pool restarted a service");

    world.join(POOL, &spec(&hosts)).await?;
    until_node_is_at(&world, "win-0", &now).await?;
    world
        .until_instance("win-0", "follows", |i| {
            status(i).node_ip.as_ref() == Some(&now)
                && has(&status(i).conditions, kind::UP_TO_DATE, "True", "AsExpected")
        })
        .await?;
    ensure!(started() == [kubelet + 1, containerd], "{:?} after {kubelet} and {containerd}", started());
    ensure!(host.boots() == boots, "the host was restarted");
    let after = world.node("win-0").await?.context("there is no Node")?;
    ensure!(after.metadata.uid == node.metadata.uid && !is_cordoned(&after), "the Node is another one, or cordoned");
    ensure!(pods.get("app-win-0").await?.metadata.uid == uid, "the pod was evicted");
    // kubelet serves at the new address with a certificate for it, which was approved because the operator has reached the host there.
    let logs = world.control_plane.kubectl(&["logs", "app-win-0"]).await?;
    ensure!(logs.status.success(), "{}", String::from_utf8_lossy(&logs.stderr));
    ensure!(starts(&hosts[1], "kubelet") == 1, "another host was disturbed");

    // The entry leads to another host now: the Node stays as it is.
    let mut wrong = spec(&hosts[..1]);
    let entries = wrong.inventory.hosts.as_mut().context("the pool has no hosts")?;
    let stranger = world.hosts("stranger", 1).await?;
    entries[0].address = stranger[0].address().to_string();
    entries.push(crate::fleet::entry(&hosts[1]));
    world.apply(POOL, &wrong).await?;
    world.until_event("win-0", "AddressRefused").await?;
    ensure!(started() == [kubelet + 1, containerd], "the operator restarted a service for another machine's sake");
    until_node_is_at(&world, "win-0", &now).await
}
