//! Proven identity of hosts: a name alone gives a host no Node, and a host follows its Node when the Node is created again.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    core::v1::{Node, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testbed::sim::{Fault, HostOptions, ServingCertificate, SimOptions};

use crate::{
    fleet::{World, entry, is_cordoned, nodes, spec, spec_with, status},
    removal::{budget, pod},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_what_was_proven_of_it() -> Result<()> {
    let termination = Duration::from_millis(500);
    // Nodes do not wait for serving certificates: a host that is reached at an address other than its own gets none unasked.
    let serving = ServingCertificate::Request;
    let world = World::new(SimOptions { termination, serving, ..SimOptions::default() }, &[]).await?;
    tokio::try_join!(
        no_list_entry_takes_the_identity_of_a_linux_node(&world),
        a_node_that_is_made_again_is_drained_again(&world),
        no_node_is_left_over_when_a_host_is_taken_out_while_it_joins(&world),
    )?;
    Ok(())
}

/// Without this protection, the author of the list could have a control plane node's certificate sent to their own host.
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
        message.contains("runs linux") && message.contains("another name"),
        "it does not say what to do: {message}"
    );
    ensure!(!host.drive_c().join("k").exists(), "something was put on the host");
    let requests = Api::<CertificateSigningRequest>::all(world.client.clone()).list(&ListParams::default()).await?;
    let about = requests.iter().filter(|c| c.name_any().contains("master-0")).count();
    ensure!(about == 0, "{about} certificates were asked for");

    // The instance is deleted, and the Linux node stays unchanged.
    world.empty("hostile").await?;
    world.eventually("the instance is gone", || async { matches!(world.instance("master-0").await, Ok(None)) }).await?;
    let now = api.get("master-0").await?;
    ensure!(now.uid() == master.uid() && !is_cordoned(&now), "the Linux node was touched");
    Ok(())
}

/// Pods are bound to the name of their Node, not to its UID: the host must not be deconfigured while they run. The host is reached at an address
/// other than the one in its Node, as behind NAT.
async fn a_node_that_is_made_again_is_drained_again(world: &World) -> Result<()> {
    let host = world.sim.host(HostOptions::named("again")).await?;
    let own = "10.77.0.5".to_owned();
    host.windows().state().machine.addresses = vec![own.clone()];
    host.windows().state().machine.default_address = Some(own);
    world.join("again", &spec(std::slice::from_ref(&host))).await?;
    pod(world, "kept", "again", &[("app", "kept")]).await?;
    budget(world, "kept-budget", "kept").await?;
    world.empty("again").await?;
    let draining =
        |i: &api::WindowsInstance| status(i).operation.and_then(|o| o.drain).is_some_and(|d| d.remaining == 1);
    world.until_instance("again", "is being drained", draining).await?;

    let node = world.node("again").await?.expect("it is being drained");
    let made_again = || {
        let mut again = node.clone();
        again.metadata = kube::api::ObjectMeta {
            name: node.metadata.name.clone(),
            labels: node.metadata.labels.clone(),
            ..Default::default()
        };
        again.spec = None;
        again
    };
    let nodes: Api<Node> = Api::all(world.client.clone());
    nodes.delete("again", &DeleteParams::default()).await?;
    let created = nodes.create(&PostParams::default(), &made_again()).await?;
    // A patch, because the operator and the kubelet write the new Node at the same time.
    let status_of_old = Patch::Merge(json!({"status": node.status}));
    nodes.patch_status("again", &PatchParams::default(), &status_of_old).await?;
    ensure!(created.uid() != node.uid(), "it is the same Node");
    world
        .until_instance("again", "is drained as the Node that it is now", |i| {
            status(i).node_ref.map(|r| r.uid) == created.uid() && draining(i)
        })
        .await?;
    world
        .eventually("the new Node is cordoned", || async {
            world.node("again").await.ok().flatten().is_some_and(|n| is_cordoned(&n))
        })
        .await?;
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    ensure!(pods.get("kept-again").await?.metadata.deletion_timestamp.is_none(), "the pod was not spared");
    ensure!(!host.services().is_empty(), "the host was wiped under its pod");

    let budgets: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> = Api::default_namespaced(world.client.clone());
    budgets.delete("kept-budget", &DeleteParams::default()).await?;
    world.until_gone(&host).await
}

/// The kubelets of the hosts differ in how fast they create their Nodes.
async fn no_node_is_left_over_when_a_host_is_taken_out_while_it_joins(world: &World) -> Result<()> {
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
