//! Five sources of a pool's hosts: the nodes are the same, and a change of the source does not affect them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use api::{InstanceHost, WindowsNodePool, WindowsNodePoolSpec, names::WINDOWS_INSTANCES};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{
    deployment::{self, MachineApi, NAMESPACE},
    git::{Origin, Server},
    sim::{SimHost, SimOptions, Stats},
};

use crate::{
    fleet::{World, entry, is_ready, nodes, pool_status},
    flux::Source,
    pairs::is_quiet,
    rollout::Watcher,
};

const POOL: &str = "fleet";
const HOSTS: usize = 4;

/// State of hosts and Nodes that must not change.
#[derive(Debug, PartialEq)]
struct Seen {
    /// UIDs of Nodes by name.
    nodes: BTreeMap<String, Option<String>>,
    /// Hosts in the specs of the instances, by name.
    hosts: BTreeMap<String, InstanceHost>,
    /// Counters of the simulated hosts.
    stats: Vec<Stats>,
}

async fn look(world: &World, hosts: &[SimHost]) -> Result<Seen> {
    let nodes = nodes(&world.client).await?.into_iter().map(|n| (n.name_any(), n.uid())).collect();
    let mut specs = BTreeMap::new();
    for host in hosts {
        let instance = world.instance(host.name()).await?.context("no instance")?;
        ensure!(!instance.is_leaving(), "{} is being removed", host.name());
        specs.insert(host.name().to_owned(), instance.spec.host);
    }
    Ok(Seen { nodes, hosts: specs, stats: hosts.iter().map(SimHost::stats).collect() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_source_changes_no_node() -> Result<()> {
    // With a short interval, the operator soon finds the Machine API that the test installs later.
    let world = World::new(SimOptions::default(), &["--machine-discovery-interval", "1s"]).await?;
    let hosts = world.hosts("win", HOSTS).await?;
    let port = hosts[0].port();
    let list: Vec<_> = hosts.iter().map(entry).collect();
    switch(&world, json!({"hosts": list}), port, None).await?;
    let first = look(&world, &hosts).await?;
    ensure!(first.nodes.len() == HOSTS, "{first:?}");
    let watcher = Watcher::of(&world.client, POOL);

    let data: BTreeMap<String, &str> =
        hosts.iter().map(|h| (h.address().to_string(), "username=Administrator")).collect();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "our-instances", "namespace": NAMESPACE}, "data": data});
    world.control_plane.apply_yaml(&map.to_string()).await?;
    switch(&world, json!({"configMapRef": {"name": "our-instances"}}), port, Some("ConfigMap our-instances")).await?;
    same(&world, &hosts, &first, "a ConfigMap").await?;

    let text = serde_json::to_string(&list)?;
    let origin = Origin::new();
    origin.git(&["rm", "-q", "hosts.yaml"]);
    origin.commit("hosts.json", &text, "All hosts");
    let server = Server::new(origin.root());
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "repository", "namespace": NAMESPACE}, "stringData": {"ca.crt": server.authority.pem}});
    world.control_plane.apply_yaml(&secret.to_string()).await?;
    let git = json!({"git": {"url": server.url(), "secretRef": {"name": "repository"}}});
    switch(&world, git, port, Some(&format!("git {}", server.url()))).await?;
    same(&world, &hosts, &first, "Git").await?;

    deployment::install_flux(&world.control_plane).await?;
    let flux = Source::new(&world, "GitRepository", "gitrepositories").await?;
    flux.publish(&text, "main@sha1:0a").await?;
    switch(&world, json!({"sourceRef": flux.reference()}), port, Some("GitRepository flux-system/hosts")).await?;
    same(&world, &hosts, &first, "Flux").await?;

    machines(&world, &hosts).await?;
    let set = json!({"machineSetRef": {"name": "paint", "namespace": "openshift-machine-api"}});
    switch(&world, set, port, Some("MachineSet openshift-machine-api/paint")).await?;
    same(&world, &hosts, &first, "a MachineSet").await?;

    ensure!(world.pool(WINDOWS_INSTANCES).await.is_err(), "the operator made a pool that no source needs");
    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.ever_cordoned.is_empty() && seen.ever_disrupted.is_empty(), "{:?}", seen.ever_disrupted);
    Ok(())
}

/// Gives the pool another source of hosts, and waits until all hosts are Ready with that source.
async fn switch(world: &World, inventory: Value, port: u16, source: Option<&str>) -> Result<()> {
    let spec = json!({"inventory": inventory, "ssh": {"port": port}, "provisioning": {"maxConcurrent": 10}});
    let spec: WindowsNodePoolSpec = serde_json::from_value(spec)?;
    world.apply(POOL, &spec).await?;
    let all = |p: &WindowsNodePool| {
        let status = pool_status(p);
        is_ready(p)
            && usize::try_from(status.ready_nodes).is_ok_and(|n| n == HOSTS)
            && status.inventory.as_ref().map(|i| i.source.as_str()) == source
    };
    world.until(POOL, &format!("all are Ready by {source:?}"), all).await?;
    is_quiet(world).await
}

async fn same(world: &World, hosts: &[SimHost], first: &Seen, about: &str) -> Result<()> {
    let now = look(world, hosts).await?;
    ensure!(now == *first, "by {about}: {now:#?}\nat first: {first:#?}");
    Ok(())
}

/// Creates a MachineSet with a Machine for each host.
async fn machines(world: &World, hosts: &[SimHost]) -> Result<()> {
    deployment::install_machines(&world.control_plane, MachineApi::OpenShift).await?;
    let namespace = MachineApi::OpenShift.namespace();
    let of = |kind: &str| {
        let gvk = GroupVersionKind::gvk("machine.openshift.io", "v1beta1", kind);
        Api::<DynamicObject>::namespaced_with(world.client.clone(), namespace, &ApiResource::from_gvk(&gvk))
    };
    let labels = json!({"machine.openshift.io/os-id": "Windows"});
    let apply = PatchParams::apply("machine-controller").force();
    let set = json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet",
        // The operator must make no pool for the MachineSet: the pool of this test reads it.
        "metadata": {"name": "paint", "labels": {"windowsmachineconfig.openshift.io/ignore": "true"}},
        "spec": {"template": {"metadata": {"labels": labels}}},
    });
    let set = of("MachineSet").patch("paint", &apply, &Patch::Apply(&set)).await?;
    for host in hosts {
        let owner = json!([{
            "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", "name": "paint", "uid": set.uid(), "controller": true,
        }]);
        let machine = json!({
            "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
            "metadata": {"name": host.name(), "labels": labels, "ownerReferences": owner},
        });
        of("Machine").patch(host.name(), &apply, &Patch::Apply(&machine)).await?;
        let addresses = json!([{"type": "InternalIP", "address": host.address().to_string()}]);
        let status = json!({"status": {"phase": "Running", "addresses": addresses, "nodeRef": {"kind": "Node", "name": host.name()}}});
        of("Machine").patch_status(host.name(), &PatchParams::default(), &Patch::Merge(status)).await?;
    }
    Ok(())
}
