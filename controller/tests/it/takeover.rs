//! Nodes change hands: from the legacy operator to this one and back, without joining again.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsNodePool, WindowsNodePoolSpec,
    host::{ServiceState, WICD_SERVICE},
    names::{WINDOWS_INSTANCES, key},
    services::FileInfo,
};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testbed::sim::{SimHost, SimOptions};

use crate::{
    fleet::{World, is_cordoned, is_cordoned_by_us, pool_status, spec_with, status},
    removal::{delete_pool, pod, until_pool_gone},
    rollout::{Watcher, until_updated},
};

/// A version of the legacy operator that has the same services and files as ours.
pub const SAME: &str = "10.19.0-aaaaaaa";
/// One with another containerd.
const OTHER: &str = "10.19.0-bbbbbbb";
/// One like the first, of a cluster whose hosts are in `windows-instances`.
const LISTED: &str = "10.19.0-ccccccc";

#[tokio::test(flavor = "multi_thread")]
async fn nodes_change_hands() -> Result<()> {
    let termination = Duration::from_millis(500);
    let world = World::new(SimOptions { termination, ..SimOptions::default() }, &[]).await?;
    let same = Legacy::new(&world, "same", SAME, 2).await?;
    let other = Legacy::new(&world, "other", OTHER, 3).await?;
    let listed = Legacy::new(&world, WINDOWS_INSTANCES, LISTED, 2).await?;
    tokio::try_join!(
        what_is_the_same_is_taken_as_it_is(&world, &same),
        what_differs_is_changed_in_turn(&world, &other),
        what_is_in_windows_instances_is_taken_without_a_pool_of_ones_own(&world, &listed),
    )?;
    Ok(())
}

/// Hosts that are nodes of the legacy operator.
pub struct Legacy {
    name: &'static str,
    version: &'static str,
    pub hosts: Vec<SimHost>,
    /// Our version before.
    ours: String,
    nodes: BTreeMap<String, Node>,
    starts: BTreeMap<String, BTreeMap<String, u32>>,
}

impl Legacy {
    /// Joins hosts, hands them back, and makes them look as the legacy operator leaves its own.
    pub async fn new(world: &World, name: &'static str, version: &'static str, count: usize) -> Result<Self> {
        let hosts = world.hosts(name, count).await?;
        world.join(name, &spec(&hosts)).await?;
        let ours = pool_status(&world.pool(name).await?).desired_version.context("the pool has no version")?;
        delete_pool(world, name).await?;
        until_pool_gone(world, name).await?;
        let mut legacy = Self { name, version, hosts, ours, nodes: BTreeMap::new(), starts: BTreeMap::new() };
        for host in &legacy.hosts {
            let node = world.node(host.name()).await?.context("the Node is gone")?;
            can_be_taken_by_the_legacy_operator(&node, &legacy.ours)?;
            make_legacy(world, host, version).await?;
            legacy.nodes.insert(host.name().into(), node);
            legacy.starts.insert(host.name().into(), host.windows().state().starts.clone());
        }
        legacy.publish(world).await?;
        Ok(legacy)
    }

    /// Stores the services of our version under theirs, as the legacy operator has it: without anything but the data.
    async fn publish(&self, world: &World) -> Result<()> {
        let config_maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), api::names::DEFAULT_NAMESPACE);
        let name = |version: &str| format!("{}{version}", api::names::SERVICES_CONFIG_MAP_PREFIX);
        let mut data = config_maps.get(&name(&self.ours)).await?.data.context("it has no data")?;
        let mut files: Vec<FileInfo> = serde_json::from_str(data.get("files").context("it has no files")?)?;
        let containerd = files.iter_mut().find(|f| f.path.ends_with("containerd.exe")).context("no containerd")?;
        if self.version == OTHER {
            containerd.checksum = "0".repeat(64);
        }
        data.insert("files".into(), serde_json::to_string(&files)?);
        let metadata = ObjectMeta { name: Some(name(self.version)), ..ObjectMeta::default() };
        let config_map = ConfigMap { metadata, data: Some(data), immutable: Some(true), ..ConfigMap::default() };
        config_maps.create(&PostParams::default(), &config_map).await?;
        Ok(())
    }

    /// How often a service of a host was started since the legacy operator left it.
    fn starts_of(&self, host: &SimHost, service: &str) -> u32 {
        let now = host.windows().state().starts.get(service).copied().unwrap_or(0);
        now - self.starts.get(host.name()).and_then(|s| s.get(service)).copied().unwrap_or(0)
    }

    /// All are ours, and have been nodes all the time.
    async fn are_ours(&self, world: &World) -> Result<()> {
        until_updated(world, self.name).await?;
        for host in &self.hosts {
            let name = host.name();
            let note = world.until_event(name, "Adopted").await?;
            ensure!(note.contains(self.version), "{note}");
            let instance = world.instance(name).await?.context("no instance")?;
            ensure!(status(&instance).current_version.as_ref() == Some(&self.ours), "{:?}", status(&instance));
            let (before, node) = (&self.nodes[name], world.node(name).await?.context("the Node is gone")?);
            ensure!(node.uid() == before.uid(), "{name} has registered again");
            ensure!(!is_cordoned(&node) && !is_cordoned_by_us(&node), "{name} stayed cordoned");
            ensure!(!node.labels().contains_key(key::UPGRADING), "{name} is still being upgraded");
            for k in [key::VERSION, key::DESIRED_VERSION] {
                ensure!(node.annotations().get(k) == Some(&self.ours), "{name}: {:?}", node.annotations());
            }
            ensure!(host.drive_c().join("k/wicd/owned.json").exists(), "{name} has no record of what is ours");
            ensure!(host.services().values().all(|s| *s == ServiceState::Running), "{:?}", host.services());
            ensure!(host.boots() == 1, "{name} was restarted");
        }
        Ok(())
    }
}

fn spec(hosts: &[SimHost]) -> WindowsNodePoolSpec {
    spec_with(hosts, json!({"deletionPolicy": "Orphan", "rollout": {"maxUnavailable": 1}}))
}

/// What was let go has all that the legacy operator looks for, and nothing of ours that is in its way.
fn can_be_taken_by_the_legacy_operator(node: &Node, version: &str) -> Result<()> {
    let (name, annotations, labels) = (node.name_any(), node.annotations(), node.labels());
    for k in [key::VERSION, key::DESIRED_VERSION] {
        ensure!(annotations.get(k).map(String::as_str) == Some(version), "{name}: {k}: {annotations:?}");
    }
    for k in [key::USERNAME, key::PUB_KEY_HASH, key::SSH_HOST_KEY, key::SSH_HOST_KEY_TYPE] {
        ensure!(annotations.get(k).is_some_and(|v| !v.is_empty()), "{name}: {k}: {annotations:?}");
    }
    ensure!(labels.get(key::BYOH).map(String::as_str) == Some("true"), "{name}: {labels:?}");
    ensure!(labels.contains_key(key::WORKER_ROLE), "{name}: {labels:?}");
    let taints = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    ensure!(taints.iter().any(|t| t.key == "os" && t.effect == "NoSchedule"), "{name}: {taints:?}");
    ensure!(!is_cordoned(node) && !is_cordoned_by_us(node), "{name} is cordoned");
    ensure!(node.finalizers().is_empty(), "{name} has finalizers: {:?}", node.finalizers());
    ensure!(node.owner_references().is_empty(), "{name} has owners: {:?}", node.owner_references());
    for k in [key::UPGRADING, key::REBOOT_REQUIRED] {
        ensure!(!labels.contains_key(k) && !annotations.contains_key(k), "{name} has {k}");
    }
    Ok(())
}

/// Host and Node as the legacy operator leaves them in the middle of an upgrade of its own.
async fn make_legacy(world: &World, host: &SimHost, version: &str) -> Result<()> {
    let name = host.name();
    if let Some(wicd) = host.windows().state().services.get_mut(WICD_SERVICE) {
        // Theirs does nothing that is of interest here, so it does not run.
        wicd.state = ServiceState::Stopped;
        wicd.command = r"C:\k\windows-instance-config-daemon.exe controller --windows-service".into();
    }
    let k = host.drive_c().join("k");
    for dir in ["wicd", "wicd-certs"] {
        std::fs::remove_dir_all(k.join(dir)).with_context(|| format!("{name} has no {dir}"))?;
    }
    std::fs::remove_file(k.join("kubelet-first.pem"))?;
    let metadata = json!({
        "labels": {key::POOL: null, key::UPGRADING: "true"},
        "annotations": {key::TEMPLATE_APPLIED: null, key::VERSION: version, key::DESIRED_VERSION: version},
    });
    world.edit_node(name, json!({"metadata": metadata})).await
}

async fn what_is_the_same_is_taken_as_it_is(world: &World, legacy: &Legacy) -> Result<()> {
    for host in &legacy.hosts {
        pod(world, "stays", host.name(), &[]).await?;
    }
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    let watcher = Watcher::of(&world.client, legacy.name);
    world.apply(legacy.name, &spec(&legacy.hosts)).await?;
    legacy.are_ours(world).await?;
    for host in &legacy.hosts {
        let pod = pods.get(&format!("stays-{}", host.name())).await?;
        ensure!(pod.metadata.deletion_timestamp.is_none(), "a pod of {} was moved", host.name());
        // The legacy record says nothing of kubelet's settings, so kubelet has to read them again.
        ensure!(legacy.starts_of(host, "kubelet") == 1, "kubelet: {:?}", host.windows().state().starts);
        ensure!(legacy.starts_of(host, "containerd") == 0, "containerd: {:?}", host.windows().state().starts);
    }
    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.ever_cordoned.is_empty(), "{:?} were cordoned", seen.ever_cordoned);
    ensure!(seen.most_disrupted <= 1, "{} nodes were disrupted at once", seen.most_disrupted);
    Ok(())
}

/// Nobody writes a pool: the ConfigMap is there, as it was for the legacy operator. (A person sets the port of simulated hosts.)
async fn what_is_in_windows_instances_is_taken_without_a_pool_of_ones_own(
    world: &World,
    legacy: &Legacy,
) -> Result<()> {
    for host in &legacy.hosts {
        pod(world, "listed", host.name(), &[]).await?;
    }
    let watcher = Watcher::of(&world.client, legacy.name);
    let data = legacy.hosts.iter().map(|h| (h.address().to_string(), "username=Administrator\n".to_string())).collect();
    let metadata = ObjectMeta { name: Some(WINDOWS_INSTANCES.into()), ..ObjectMeta::default() };
    let list = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
    let config_maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), api::names::DEFAULT_NAMESPACE);
    config_maps.create(&PostParams::default(), &list).await?;
    world.eventually("the pool is made", || async { world.pool(WINDOWS_INSTANCES).await.is_ok() }).await?;
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    let port = Patch::Merge(json!({"spec": {"ssh": {"port": legacy.hosts[0].port()}}}));
    pools.patch(WINDOWS_INSTANCES, &PatchParams::default(), &port).await?;
    legacy.are_ours(world).await?;
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    for host in &legacy.hosts {
        let pod = pods.get(&format!("listed-{}", host.name())).await?;
        ensure!(pod.metadata.deletion_timestamp.is_none(), "a pod of {} was moved", host.name());
        let origin = world.instance(host.name()).await?.and_then(|i| i.spec.origin).context("no origin")?;
        ensure!(origin.source == "ConfigMap windows-instances", "{origin:?}");
    }
    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.ever_cordoned.is_empty(), "{:?} were cordoned", seen.ever_cordoned);
    Ok(())
}

async fn what_differs_is_changed_in_turn(world: &World, legacy: &Legacy) -> Result<()> {
    for host in &legacy.hosts {
        // What the legacy operator put there is a file of its own, no link to a blob of ours.
        let containerd = host.drive_c().join("k/containerd/containerd.exe");
        std::fs::remove_file(&containerd)?;
        std::fs::write(&containerd, "an older one")?;
        pod(world, "moves", host.name(), &[]).await?;
    }
    let watcher = Watcher::of(&world.client, legacy.name);
    world.apply(legacy.name, &spec(&legacy.hosts)).await?;
    legacy.are_ours(world).await?;
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    for host in &legacy.hosts {
        let containerd = std::fs::read(host.drive_c().join("k/containerd/containerd.exe"))?;
        ensure!(containerd == b"containerd", "{} has still its older containerd", host.name());
        ensure!(pods.get_opt(&format!("moves-{}", host.name())).await?.is_none(), "{} was not drained", host.name());
        ensure!(legacy.starts_of(host, "containerd") == 1, "containerd: {:?}", host.windows().state().starts);
    }
    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.ever_cordoned.len() == legacy.hosts.len(), "only {:?} were cordoned", seen.ever_cordoned);
    ensure!(seen.most_disrupted <= 1, "{} nodes were disrupted at once", seen.most_disrupted);
    let killed: Vec<_> = seen.graces.values().filter(|g| **g == Some(0)).collect();
    ensure!(killed.is_empty(), "pods were killed: {:?}", seen.graces);
    Ok(())
}
