//! Hosts from Machines: each MachineSet gets a pool, which follows the Machines.

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsInstance, WindowsNodePool,
    conditions::kind,
    names::{LEGACY_HOST_KEYS, MANAGER_ADAPTER, USER_DATA_SECRET, WINDOWS_INSTANCES, key},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use russh::keys::{PrivateKey, PublicKeyBase64 as _};
use serde_json::{Value, json};
use testbed::{
    deployment::{self, MachineApi, NAMESPACE},
    sim::{SimHost, SimOptions},
};

use crate::{
    config_map,
    fleet::{World, has, is_ready, nodes, pool_status},
    guide::Guide,
    removal::{until_forgotten, until_pool_gone},
};

pub(crate) const ARGS: &[&str] = &["--machine-discovery-interval", "1s", "--machine-refusal-timeout", "1s"];
const FINALIZER: &str = "machine.example.com/vm";

/// Client for the objects of one Machine API.
pub(crate) struct Maker {
    client: kube::Client,
    pub api: MachineApi,
}

impl Maker {
    pub(crate) async fn install(world: &World, api: MachineApi) -> Result<Self> {
        deployment::install_machines(&world.control_plane, api).await?;
        Ok(Self { client: world.client.clone(), api })
    }

    fn gvk(&self, kind: &str) -> GroupVersionKind {
        match self.api {
            MachineApi::OpenShift => GroupVersionKind::gvk("machine.openshift.io", "v1beta1", kind),
            MachineApi::ClusterApi => GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", kind),
        }
    }

    fn kind(&self, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&self.gvk(kind));
        Api::namespaced_with(self.client.clone(), self.api.namespace(), &resource)
    }

    pub(crate) fn machines(&self) -> Api<DynamicObject> {
        self.kind("Machine")
    }

    fn os(&self) -> Value {
        match self.api {
            MachineApi::OpenShift => json!({"machine.openshift.io/os-id": "Windows"}),
            MachineApi::ClusterApi => json!({"node.cluster.x-k8s.io/os": "windows"}),
        }
    }

    async fn create(&self, kind: &str, rest: Value) -> Result<DynamicObject> {
        let gvk = self.gvk(kind);
        let mut object = json!({"apiVersion": gvk.api_version(), "kind": kind});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        Ok(self.kind(kind).create(&PostParams::default(), &serde_json::from_value(object)?).await?)
    }

    pub(crate) async fn set(&self, name: &str) -> Result<DynamicObject> {
        self.set_of(name, 1).await
    }

    pub(crate) async fn set_of(&self, name: &str, replicas: i32) -> Result<DynamicObject> {
        let spec = json!({"replicas": replicas, "template": {"metadata": {"labels": self.os()}}});
        self.create("MachineSet", json!({"metadata": {"name": name}, "spec": spec})).await
    }

    /// Creates a Machine, of a MachineSet or without an owner.
    pub(crate) async fn machine(&self, name: &str, set: Option<&DynamicObject>, status: Value) -> Result<()> {
        let owner = |set: &DynamicObject| {
            let api_version = self.gvk("MachineSet").api_version();
            json!([{"apiVersion": api_version, "kind": "MachineSet", "name": set.name_any(), "uid": set.uid(), "controller": true}])
        };
        let metadata = json!({
            "name": name, "labels": self.os(), "finalizers": [FINALIZER], "ownerReferences": set.map(owner).unwrap_or(json!([])),
        });
        self.create("Machine", json!({"metadata": metadata})).await?;
        self.says(name, status).await
    }

    pub(crate) async fn says(&self, name: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"status": status}));
        self.machines().patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Sets the Machine to Running with its Node.
    pub(crate) async fn runs(&self, name: &str) -> Result<()> {
        self.says(name, json!({"phase": "Running", "nodeRef": {"name": name}})).await
    }

    /// Sets the provider spec of a MachineSet's Machines.
    pub(crate) async fn set_provider_spec(&self, set: &str, provider_spec: Value) -> Result<()> {
        let patch = json!({"spec": {"template": {"spec": {"providerSpec": provider_spec}}}});
        self.kind("MachineSet").patch(set, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    pub(crate) async fn edit(&self, kind: &str, name: &str, patch: Value) -> Result<()> {
        self.kind(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        self.machines().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Reports whether the Machine is being deleted.
    pub(crate) async fn goes(&self, name: &str) -> bool {
        self.machines().get(name).await.is_ok_and(|m| m.metadata.deletion_timestamp.is_some())
    }

    /// Removes the Machine's finalizer, as if the machine behind it were gone.
    pub(crate) async fn let_go(&self, name: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        self.machines().patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

pub(crate) fn provisioned(host: &SimHost) -> Value {
    let addresses =
        json!([{"type": "Hostname", "address": "x"}, {"type": "InternalIP", "address": host.address().to_string()}]);
    json!({"phase": "Provisioned", "addresses": addresses})
}

pub(crate) async fn until_made(world: &World, pool: &str) -> Result<WindowsNodePool> {
    world.eventually(&format!("the pool {pool} is made"), || async { world.pool(pool).await.is_ok() }).await?;
    world.pool(pool).await
}

/// Sets the port in the pool that the operator has created, as a user does: simulated hosts do not listen at 22.
pub(crate) async fn set_port(world: &World, pool: &str, host: &SimHost) -> Result<()> {
    let port = json!({
        "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsNodePool",
        "metadata": {"name": pool},
        "spec": {"ssh": {"port": host.port()}},
    });
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    pools.patch(pool, &PatchParams::apply("a-person"), &Patch::Apply(port)).await?;
    Ok(())
}

pub(crate) async fn until_ready(world: &World, pool: &str, nodes: i32) -> Result<()> {
    world
        .until(pool, &format!("{nodes} nodes"), |p| {
            is_ready(p) && (pool_status(p).hosts, pool_status(p).ready_nodes) == (nodes, nodes)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_follow_the_machines_of_their_machine_sets() -> Result<()> {
    // The Machine API is installed after the operator has started.
    let world = World::new(SimOptions::default(), ARGS).await?;
    let maker = Maker::install(&world, MachineApi::OpenShift).await?;
    a_machine_set_is_a_pool_that_follows_its_machines(&world, &maker).await?;
    a_machine_set_is_scaled_to_zero_without_grant_or_budget(&world, &maker).await
}

async fn a_machine_set_is_a_pool_that_follows_its_machines(world: &World, maker: &Maker) -> Result<()> {
    let hosts = world.hosts("win", 3).await?;
    // An earlier machine had the address of the first host and never became a node: WMCO has left its host key.
    let stale = deployment::new_key()?.public_key().public_key_base64();
    let metadata = json!({"name": LEGACY_HOST_KEYS, "namespace": NAMESPACE});
    let seen = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {hosts[0].address().to_string(): stale}});
    world.control_plane.apply_yaml(&seen.to_string()).await?;
    let written = k8s_openapi::jiff::Timestamp::now().as_second();
    let is_later = || async { k8s_openapi::jiff::Timestamp::now().as_second() > written };
    world.eventually("the Machines are younger than the key", is_later).await?;
    let set = maker.set("winworker").await?;
    for host in &hosts[..2] {
        maker.machine(host.name(), Some(&set), provisioned(host)).await?;
    }
    maker.machine(hosts[2].name(), Some(&set), json!({"phase": "Provisioning"})).await?;
    let pool = until_made(world, "winworker").await?;
    ensure!(json!(pool.spec) == json!({"inventory": {"machineSetRef": {"name": "winworker"}}}), "{:?}", pool.spec);
    ensure!(pool.managed_fields().iter().any(|f| f.manager.as_deref() == Some(MANAGER_ADAPTER)), "{pool:?}");
    set_port(world, "winworker", &hosts[0]).await?;
    until_ready(world, "winworker", 2).await?;
    for host in &hosts[..2] {
        let origin = world.until_joined(host.name()).await?.spec.origin.context("no origin")?;
        ensure!(origin.source == "MachineSet openshift-machine-api/winworker", "{origin:?}");
        ensure!(origin.machine == Some(format!("openshift-machine-api/{}", host.name())), "{origin:?}");
        // The nodelink controller of the cluster may find another Node first; a host keeps its name.
        maker.runs(host.name()).await?;
        node_is_marked_as_by_wmco(world, host).await?;
    }

    // A Machine without an address is reported, and its host joins when it has one.
    maker.says(hosts[2].name(), json!({"phase": "Provisioned"})).await?;
    world
        .until("winworker", "a Machine has no address", |p| {
            has(&pool_status(p).conditions, kind::INVENTORY_SYNCED, "False", "NoAddress")
        })
        .await?;
    maker.says(hosts[2].name(), provisioned(&hosts[2])).await?;
    until_ready(world, "winworker", 3).await?;

    // The host of a Machine that is being deleted stays until the Machine is gone; then the operator does not wait for the host.
    let first = hosts[0].name();
    maker.delete(first).await?;
    maker.says(first, json!({"phase": "Deleting"})).await?;
    maker.machines().patch(hosts[1].name(), &PatchParams::default(), &ignore()).await?;
    world.until_gone(&hosts[1]).await?;
    let leaving = world.instance(first).await?.context("the instance has gone too early")?;
    ensure!(!leaving.is_deleting(), "{leaving:?}");
    hosts[0].power_off();
    maker.let_go(first).await?;
    until_forgotten(world, first).await?;
    let note = world.until_note(first, "Removed", |_| true).await?;
    ensure!(note.contains("the Machine of the host no longer exists"), "{note}");
    until_ready(world, "winworker", 1).await?;
    let status = pool_status(&world.pool("winworker").await?);
    ensure!(status.unclean_hosts.is_empty(), "{:?}", status.unclean_hosts);
    Ok(())
}

/// Checks that a Machine's Node has WMCO's annotations, and loses the label of `windows-instances`: with it, WMCO would deconfigure a Node that is
/// handed back.
async fn node_is_marked_as_by_wmco(world: &World, host: &SimHost) -> Result<()> {
    let name = host.name();
    world.edit_node(name, json!({"metadata": {"labels": {key::BYOH: "true"}}})).await?;
    world
        .eventually("the label byoh is removed", || async {
            world.node(name).await.is_ok_and(|n| n.is_some_and(|n| !n.labels().contains_key(key::BYOH)))
        })
        .await?;
    let node = world.node(name).await?.context("no Node")?;
    ensure!(
        !node.labels().contains_key(key::WORKER_ROLE),
        "the operator has set the role, which comes from the Machine: {:?}",
        node.labels()
    );
    for k in [
        key::VERSION,
        key::DESIRED_VERSION,
        key::USERNAME,
        key::PUB_KEY_HASH,
        key::SSH_HOST_KEY,
        key::SSH_HOST_KEY_TYPE,
    ] {
        ensure!(node.annotations().get(k).is_some_and(|v| !v.is_empty()), "{k}: {:?}", node.annotations());
    }
    Ok(())
}

/// Checks that the removal of Machines needs no confirmation, no grant and no budget, even if the pool is paused and its limits are one host.
async fn a_machine_set_is_scaled_to_zero_without_grant_or_budget(world: &World, maker: &Maker) -> Result<()> {
    let hosts = world.hosts("zero", 3).await?;
    let set = maker.set_of("zero", 3).await?;
    for host in &hosts {
        maker.machine(host.name(), Some(&set), provisioned(host)).await?;
    }
    until_made(world, "zero").await?;
    set_port(world, "zero", &hosts[0]).await?;
    until_ready(world, "zero", 3).await?;
    let limits = json!({"rollout": {"paused": true, "maxUnavailable": 1}, "inventory": {"maxRemovals": 1}});
    world.edit_pool("zero", json!({"spec": limits})).await?;
    world.until("zero", "is paused", |p| has(&pool_status(p).conditions, kind::PAUSED, "True", "Paused")).await?;

    let services = hosts[0].services();
    for host in &hosts {
        maker.delete(host.name()).await?;
        maker.says(host.name(), json!({"phase": "Deleting"})).await?;
    }
    for host in &hosts {
        let marked = |i: &api::WindowsInstance| i.spec.leaving.is_some() && i.open_grant().is_none();
        world.until_instance(host.name(), "leaves with its Machine", marked).await?;
    }
    ensure!(hosts[0].services() == services, "the host was touched");
    for host in &hosts {
        maker.let_go(host.name()).await?;
    }
    for host in &hosts {
        until_forgotten(world, host.name()).await?;
        ensure!(host.services() == services, "{} was touched", host.name());
    }
    Ok(())
}

/// Checks that the commands of the guide leave nodes of a MachineSet and of `windows-instances` as they are, and that no pool comes back.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_stay_when_the_operator_is_uninstalled_by_the_guide() -> Result<()> {
    let world = World::new(SimOptions::default(), ARGS).await?;
    let maker = Maker::install(&world, MachineApi::OpenShift).await?;
    let hosts = world.hosts("kept", 2).await?;
    let set = maker.set("kept").await?;
    maker.machine(hosts[0].name(), Some(&set), provisioned(&hosts[0])).await?;
    config_map::create(&world, &hosts[1..]).await?;
    for (pool, host) in [("kept", &hosts[0]), (WINDOWS_INSTANCES, &hosts[1])] {
        until_made(&world, pool).await?;
        set_port(&world, pool, host).await?;
        until_ready(&world, pool, 1).await?;
    }
    let services: Vec<_> = hosts.iter().map(SimHost::services).collect();
    let uids = async || anyhow::Ok(nodes(&world.client).await?.iter().map(ResourceExt::uid).collect::<Vec<_>>());
    let before = uids().await?;
    ensure!(before.len() == 2, "{before:?}");

    let guide = Guide::open(&world.control_plane, "removal.md", "machines")?;
    guide.run(&world, "### Keep the nodes: they continue to run").await?;
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    let instances: Api<WindowsInstance> = Api::all(world.client.clone());
    let all = ListParams::default();
    world
        .eventually("pools and instances are gone", || async {
            pools.list(&all).await.is_ok_and(|pools| pools.items.is_empty())
                && instances.list(&all).await.is_ok_and(|instances| instances.items.is_empty())
        })
        .await?;
    // A pool that is made afterwards proves that the operator has read the sources again.
    let later = maker.set("later").await?;
    maker.machine("later-0", Some(&later), json!({"phase": "Provisioning"})).await?;
    until_made(&world, "later").await?;
    let made: Vec<String> = pools.list(&all).await?.iter().map(ResourceExt::name_any).collect();
    ensure!(made == ["later"], "{made:?}");
    ensure!(uids().await? == before && hosts.iter().map(SimHost::services).eq(services), "{}", world.show().await);
    Ok(())
}

fn ignore() -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"labels": {"windowsmachineconfig.openshift.io/ignore": "true"}}}))
}

pub(crate) async fn user_data(world: &World, api: MachineApi) -> Option<String> {
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), api.namespace());
    let secret = secrets.get_opt(USER_DATA_SECRET).await.ok()??;
    String::from_utf8(secret.data?.remove("userData")?.0).ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn machine_sets_of_both_apis_get_user_data_and_pools() -> Result<()> {
    let world = World::new(SimOptions::default(), ARGS).await?;
    let openshift = Maker::install(&world, MachineApi::OpenShift).await?;
    let cluster_api = new_machines_get_the_key_that_is_in_force(&world).await?;
    pools_come_and_go_with_machine_sets(&world, &openshift, &cluster_api).await
}

/// Checks the user data of both Machine APIs. Installs Cluster API once the operator has written the user data for the Machine API of OpenShift, and
/// returns a maker of its Machines.
async fn new_machines_get_the_key_that_is_in_force(world: &World) -> Result<Maker> {
    let (openshift, cluster_api) = (MachineApi::OpenShift, MachineApi::ClusterApi);
    let line = |key: &PrivateKey| key.public_key().to_openssh().map(|k| k.trim().to_owned());
    let first = line(&world.key)?;
    let carries = |api, key: String| async move {
        user_data(world, api).await.is_some_and(|text| text.contains(&format!("'{key}'")))
    };
    world.eventually("there is user data", || carries(openshift, first.clone())).await?;
    ensure!(user_data(world, cluster_api).await.is_none(), "there is user data for Cluster API before it is installed");

    // Another author's user data with the key stay unchanged. The copy, which is made afterwards, proves that the operator has read them.
    let theirs = json!({"stringData": {"userData": format!("theirs, with '{first}'")}});
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), openshift.namespace());
    secrets.patch(USER_DATA_SECRET, &PatchParams::default(), &Patch::Merge(theirs)).await?;
    let installed = Maker::install(world, cluster_api).await?;
    world.eventually("there is a copy", || carries(cluster_api, first.clone())).await?;
    let text = user_data(world, openshift).await.context("the user data are gone")?;
    ensure!(text.starts_with("theirs"), "{text}");

    // A new key is written to both Secrets.
    let key = deployment::new_key()?;
    deployment::store_key(&world.control_plane, &key).await?;
    let second = line(&key)?;
    for api in [openshift, cluster_api] {
        world.eventually("the other key is in force", || carries(api, second.clone())).await?;
        let text = user_data(world, api).await.context("the user data are gone")?;
        ensure!(!text.contains(&first), "{text}");
    }

    // The operator may write no other Secret in the namespace of the Machines.
    let operator = deployment::operator_client(&world.control_plane).await?;
    let secrets: Api<Secret> = Api::namespaced(operator, openshift.namespace());
    let other = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "other"}, "stringData": {"a": "b"}});
    let refused = secrets.patch("other", &PatchParams::apply("any"), &Patch::Apply(other)).await;
    ensure!(matches!(&refused, Err(kube::Error::Api(s)) if s.is_forbidden()), "{refused:?}");
    let refused = secrets.list(&ListParams::default()).await;
    ensure!(matches!(&refused, Err(kube::Error::Api(s)) if s.is_forbidden()), "the operator may list all Secrets");
    Ok(installed)
}

async fn pools_come_and_go_with_machine_sets(world: &World, openshift: &Maker, cluster_api: &Maker) -> Result<()> {
    openshift.create("MachineSet", json!({"metadata": {"name": "linux"}, "spec": {}})).await?;
    for maker in [openshift, cluster_api] {
        maker.set("both").await?;
    }
    cluster_api.set("newer").await?;
    openshift.machine("lone", None, json!({"phase": "Provisioning"})).await?;
    let newer = until_made(world, "newer").await?;
    let reference = json!({"group": "cluster.x-k8s.io", "namespace": "openshift-cluster-api", "name": "newer"});
    ensure!(json!(newer.spec.inventory.machine_set_ref) == reference, "{:?}", newer.spec);
    until_made(world, "both").await?;
    until_made(world, "windows-machines").await?;
    until_ready(world, "newer", 0).await?;

    // Pools are deleted with their sources, and others stay.
    openshift.delete("lone").await?;
    openshift.let_go("lone").await?;
    cluster_api.kind("MachineSet").delete("newer", &DeleteParams::default()).await?;
    until_pool_gone(world, "windows-machines").await?;
    until_pool_gone(world, "newer").await?;
    let pools = Api::<WindowsNodePool>::all(world.client.clone()).list(&ListParams::default()).await?;
    let names: Vec<String> = pools.iter().map(ResourceExt::name_any).collect();
    ensure!(names == ["both"], "{names:?}");
    Ok(())
}
