//! Cluster API's own controllers beside the operator: Machines report the state of their hosts.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use api::{WindowsNodePool, host::ServiceState, names::key};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{
    deployment::MachineApi,
    judges::cluster_api::ClusterApi,
    sim::{HostOptions, SimHost, SimOptions},
};

use crate::{
    fleet::{World, pool_status},
    machines::{ARGS, set_port, until_made, until_ready},
    repair::{mark_node_not_ready, stop_services},
};

const SET: &str = "win";

/// World with Cluster API, and the hosts in place of its infrastructure, by the names of their Machines.
struct Judged {
    world: World,
    judge: ClusterApi,
    hosts: BTreeMap<String, SimHost>,
}

impl Judged {
    async fn new() -> Result<Self> {
        let world = World::new(SimOptions::default(), ARGS).await?;
        let judge = ClusterApi::start(&world.control_plane).await?;
        Ok(Self { world, judge, hosts: BTreeMap::new() })
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", kind);
        let namespace = MachineApi::ClusterApi.namespace();
        Api::namespaced_with(self.world.client.clone(), namespace, &ApiResource::from_gvk(&gvk))
    }

    async fn apply(&self, object: &Value) -> Result<()> {
        self.world.control_plane.apply_yaml(&object.to_string()).await
    }

    async fn scale(&self, replicas: i32) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.api("MachineSet").patch(SET, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits for a Machine without a host, starts a host for it, and returns the Machine's name. The infrastructure does not know the host yet.
    async fn new_host(&mut self) -> Result<String> {
        let all = self.api("Machine");
        let without_host = async || -> Option<String> {
            let found = all.list(&ListParams::default()).await.ok()?;
            found.iter().map(ResourceExt::name_any).find(|name| !self.hosts.contains_key(name))
        };
        self.world.eventually("Cluster API makes a Machine", || async { without_host().await.is_some() }).await?;
        let name = without_host().await.context("the Machine disappeared")?;
        let host = self.world.sim.host(HostOptions::named(&name)).await?;
        self.hosts.insert(name.clone(), host);
        Ok(name)
    }

    async fn provide(&self, machine: &str, provider_id: &str) -> Result<()> {
        let address = self.hosts[machine].address().to_string();
        self.world
            .eventually(&format!("there is infrastructure for {machine}"), || async {
                self.judge.provide(machine, provider_id, &address).await.is_ok()
            })
            .await
    }

    async fn until_field(&self, kind: &str, name: &str, pointer: &str, expected: Value) -> Result<()> {
        let all = self.api(kind);
        self.world
            .eventually(&format!("{kind} {name}: {pointer} is {expected}"), || async {
                all.get(name).await.is_ok_and(|o| o.data.pointer(pointer) == Some(&expected))
            })
            .await
    }

    /// Waits until Cluster API has found the Node of a Machine, and compares both with the host.
    async fn until_running(&self, machine: &str) -> Result<()> {
        self.until_field("Machine", machine, "/status/phase", json!("Running")).await?;
        let object = self.api("Machine").get(machine).await?;
        let node = object.data["status"]["nodeRef"]["name"].as_str().context("no nodeRef")?;
        let node = self.world.node(node).await?.context("no Node")?;
        let id = node.spec.as_ref().and_then(|s| s.provider_id.as_deref());
        ensure!(id.is_some() && id == object.data["spec"]["providerID"].as_str(), "{:?}, {}", node.spec, object.data);
        let addresses = node.status.and_then(|s| s.addresses).unwrap_or_default();
        let own = self.hosts[machine].address().to_string();
        ensure!(addresses.iter().any(|a| a.address == own), "{machine} is at {own}, and its Node at {addresses:?}");
        let kubelet = self.hosts[machine].services().remove("kubelet");
        ensure!(kubelet == Some(ServiceState::Running), "{machine} is not a node: {kubelet:?}");
        Ok(())
    }

    async fn until_available(&self, replicas: i32) -> Result<()> {
        self.until_field("MachineSet", SET, "/status/availableReplicas", json!(replicas)).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_running_once_their_hosts_are_nodes() -> Result<()> {
    let mut judged = Judged::new().await?;
    judged.apply(&judged.judge.machine_set(SET, 2)).await?;
    let mut machines = Vec::new();
    for n in 0..2 {
        let machine = judged.new_host().await?;
        judged.provide(&machine, &format!("bare:///{n}")).await?;
        machines.push(machine);
    }
    until_made(&judged.world, SET).await?;
    set_port(&judged.world, SET, &judged.hosts[&machines[0]]).await?;
    until_ready(&judged.world, SET, 2).await?;
    for machine in &machines {
        judged.until_running(machine).await?;
    }
    judged.until_available(2).await?;

    // Scale up by a Machine with an invalid provider ID: its host becomes a node without one. The ID is corrected later.
    judged.scale(3).await?;
    let third = judged.new_host().await?;
    judged.provide(&third, "third").await?;
    let note = judged.world.until_event(SET, "ProviderIdRefused").await?;
    ensure!(note.contains("is not of the form <provider>://<id>"), "{note}");
    until_ready(&judged.world, SET, 3).await?;
    judged.until_field("Machine", &third, "/status/phase", json!("Provisioned")).await?;
    let node = judged.world.node(&third).await?.context("no Node")?;
    ensure!(node.spec.and_then(|s| s.provider_id).is_none(), "the Node has an invalid provider ID");
    judged.provide(&third, "bare:///2").await?;
    judged.until_running(&third).await?;
    judged.until_available(3).await?;

    // Scale down: Cluster API chooses a Machine, and no other host is removed.
    judged.scale(2).await?;
    let machines = judged.api("Machine");
    let left = async || -> Vec<String> {
        let found = machines.list(&ListParams::default()).await.map(|all| all.items).unwrap_or_default();
        found.iter().map(ResourceExt::name_any).collect()
    };
    judged.world.eventually("one Machine is deleted", || async { left().await.len() == 2 }).await?;
    let left = left().await;
    let gone = judged.hosts.keys().find(|name| !left.contains(name)).context("no Machine was deleted")?;
    judged
        .world
        .eventually(&format!("{gone} is forgotten"), || async {
            matches!(judged.world.instance(gone).await, Ok(None)) && matches!(judged.world.node(gone).await, Ok(None))
        })
        .await?;
    until_ready(&judged.world, SET, 2).await?;
    for machine in &left {
        judged.until_running(machine).await?;
    }
    judged.until_available(2).await
}

/// Checks that the operator repairs the node that the MachineHealthCheck skips, and that Cluster API replaces the other Machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_health_check_replaces_its_machine_and_the_operator_repairs_the_other() -> Result<()> {
    let mut judged = Judged::new().await?;
    judged.apply(&judged.judge.machine_set(SET, 2)).await?;
    let (covered, spared) = (judged.new_host().await?, judged.new_host().await?);
    for machine in [&covered, &spared] {
        judged.provide(machine, &format!("bare:///{machine}")).await?;
    }
    until_made(&judged.world, SET).await?;
    set_port(&judged.world, SET, &judged.hosts[&covered]).await?;
    until_ready(&judged.world, SET, 2).await?;
    judged.until_available(2).await?;
    let skip = json!({"metadata": {"annotations": {"cluster.x-k8s.io/skip-remediation": ""}}});
    judged.api("Machine").patch(&spared, &PatchParams::default(), &Patch::Merge(skip)).await?;
    let remediation = json!({"type": "Reconfigure", "notReadySeconds": 30, "maxUnhealthy": 2});
    judged.world.edit_pool(SET, json!({"spec": {"remediation": remediation}})).await?;
    judged.apply(&judged.judge.health_check("windows", SET)).await?;
    judged.until_field("MachineHealthCheck", "windows", "/status/currentHealthy", json!(1)).await?;

    let replaced = judged.api("Machine").get(&covered).await?.uid();
    for machine in [&covered, &spared] {
        stop_services(&judged.hosts[machine]);
        mark_node_not_ready(&judged.world, machine).await?;
    }
    let says = |p: &WindowsNodePool| {
        let mut messages = pool_status(p).conditions.into_iter().map(|c| c.message);
        messages.any(|m| m.contains("left to MachineHealthCheck openshift-cluster-api/windows"))
    };
    judged.world.until(SET, "names what replaces the Machine", says).await?;
    // The operator repairs one host, and Cluster API replaces the other.
    judged.world.until_event(&spared, "Repaired").await?;
    let successor = judged.new_host().await?;
    judged.provide(&successor, &format!("bare:///{successor}")).await?;
    judged.until_running(&successor).await?;
    judged.until_running(&spared).await?;
    ensure!(
        judged.api("Machine").get_opt(&covered).await?.and_then(|m| m.uid()) != replaced,
        "{covered} is still there"
    );
    judged
        .world
        .eventually(&format!("{covered} is forgotten"), || async {
            matches!(judged.world.instance(&covered).await, Ok(None))
        })
        .await?;
    until_ready(&judged.world, SET, 2).await?;
    let node = judged.world.node(&successor).await?.context("no Node")?;
    ensure!(node.labels().get(key::POOL).is_some_and(|pool| pool == SET), "{:?}", node.labels());
    judged.until_available(2).await
}
