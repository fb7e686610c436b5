//! Proven identity of hosts: a name alone gives a host no Node, and no Node is left over when a host leaves while it joins.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::{certificates::v1::CertificateSigningRequest, core::v1::Node};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::json;
use testbed::sim::{Fault, HostOptions, SimOptions};

use crate::fleet::{World, entry, is_cordoned, nodes, spec, spec_with, status};

#[tokio::test(flavor = "multi_thread")]
async fn a_name_alone_gives_a_host_no_node() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    tokio::try_join!(
        no_list_entry_takes_the_identity_of_a_linux_node(&world),
        no_node_is_left_when_a_host_is_removed_while_it_joins(&world),
    )?;
    Ok(())
}

/// Checks that a list cannot give a host the name of a control plane node. Otherwise, the author of the list could have that node's certificate
/// sent to their own host.
async fn no_list_entry_takes_the_identity_of_a_linux_node(world: &World) -> Result<()> {
    let master: Node = serde_json::from_value(json!({
        "metadata": {"name": "master-0", "labels": {"kubernetes.io/os": "linux"}},
    }))?;
    let api: Api<Node> = Api::all(world.client.clone());
    let master = api.create(&PostParams::default(), &master).await?;
    let host = world.sim.host(HostOptions::named("hostile")).await?;
    let mut pool = spec(&[]);
    pool.inventory.hosts = Some(vec![api::Host { name: "master-0".into(), ..entry(&host) }]);
    world.apply("hostile", &pool).await?;

    let message = world.until_failed("master-0", "HostConflict").await?;
    ensure!(
        message.contains("kubernetes.io/os=linux") && message.contains("another name"),
        "the message does not say what to do: {message}"
    );
    ensure!(!host.drive_c().join("k").exists(), "something was put on the host");
    let requests = Api::<CertificateSigningRequest>::all(world.client.clone()).list(&ListParams::default()).await?;
    let about = requests.iter().filter(|c| c.name_any().contains("master-0")).count();
    ensure!(about == 0, "{about} certificates were requested");

    // The instance is deleted, and the Linux node stays unchanged.
    world.empty("hostile").await?;
    world.eventually("the instance is gone", || async { matches!(world.instance("master-0").await, Ok(None)) }).await?;
    let now = api.get("master-0").await?;
    ensure!(now.uid() == master.uid() && !is_cordoned(&now), "the Linux node was touched");
    Ok(())
}

/// Covers kubelets that differ in how fast they create their Nodes.
async fn no_node_is_left_when_a_host_is_removed_while_it_joins(world: &World) -> Result<()> {
    let mut hosts = Vec::new();
    for n in 0..6_u64 {
        let boot = Some(Duration::from_millis(300 * n));
        hosts.push(world.sim.host(HostOptions { boot, ..HostOptions::named(format!("early-{n}")) }).await?);
    }
    // One host has its Node, and its wicd never finishes the registration.
    let faults = vec![Fault::NeverRegisters];
    hosts.push(world.sim.host(HostOptions { faults, ..HostOptions::named("early-6") }).await?);
    world.apply("early", &spec_with(&hosts, json!({"rollout": {"maxUnavailable": "100%"}}))).await?;
    for host in &hosts {
        world
            .until_instance(host.name(), "has its certificates", |i| {
                status(i).operation.is_some_and(|o| o.step == api::Step::Register)
                    || status(i).current_version.is_some()
            })
            .await?;
    }
    world.empty("early").await?;
    for host in &hosts {
        world.until_gone(host).await?;
    }
    let left: Vec<String> =
        nodes(&world.client).await?.iter().map(ResourceExt::name_any).filter(|n| n.starts_with("early-")).collect();
    ensure!(left.is_empty(), "Nodes are left over: {left:?}");
    Ok(())
}
