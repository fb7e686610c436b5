//! Takeover of nodes: from the legacy operator to this one and back, without joining again.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsInstance, WindowsNodePool, WindowsNodePoolSpec,
    conditions::{self, kind},
    host::{ServiceState, WICD_SERVICE},
    names::{WINDOWS_INSTANCES, key},
    services::{FileInfo, Service},
};
use controller::csr::Kind;
use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    core::v1::{ConfigMap, Node, Pod, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use russh::keys::PublicKeyBase64 as _;
use serde_json::json;
use testbed::sim::{SimHost, SimOptions};

use crate::{
    config_map,
    csr::{
        Post, conditions as csr_conditions,
        forge::{Forged, Name},
    },
    fleet::{World, is_cordoned, is_cordoned_by_us, pool_status, spec_with, status},
    machines::until_made,
    removal::{delete_pool, is_not_evicted, pod, until_pool_gone},
    rollout::{Watcher, uncordoned_node, until_updated},
};

/// Version of the legacy operator that has the same services and files as this operator's.
pub(crate) const SAME: &str = "10.19.0-aaaaaaa";
/// Version of the legacy operator with another containerd.
pub(crate) const OTHER: &str = "10.19.0-bbbbbbb";
/// Second version of the legacy operator with another containerd.
const OTHER_TOO: &str = "10.19.0-fffffff";
/// Version like [`SAME`], of a cluster whose hosts are in `windows-instances`.
const LISTED: &str = "10.19.0-ccccccc";
/// Version with settings for a proxy, storage and a cloud, which this operator does not know.
const HELD: &str = "10.19.0-ddddddd";
/// Version like [`SAME`], whose operator ended during an upgrade.
const CORDONED: &str = "10.19.0-eeeeeee";

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_the_legacy_operator_are_adopted() -> Result<()> {
    let termination = Duration::from_millis(500);
    let world = World::new(SimOptions { termination, ..SimOptions::default() }, &[]).await?;
    let same = Legacy::new(&world, "same", SAME, 2).await?;
    let other = Legacy::new(&world, "other", OTHER, 3).await?;
    let listed = Legacy::new(&world, WINDOWS_INSTANCES, LISTED, 2).await?;
    let held = Legacy::new(&world, "held", HELD, 1).await?;
    let cordoned = Legacy::new(&world, "cordoned", CORDONED, 2).await?;
    tokio::try_join!(
        a_change_that_would_lose_settings_is_withheld(&world, &held),
        a_cordon_of_the_legacy_operator_is_lifted_and_that_of_a_user_stays(&world, &cordoned),
        hosts_whose_keys_are_declared_at_once_are_adopted(&world, &same),
        nodes_with_other_services_are_drained_one_after_another(&world, &other),
        hosts_of_windows_instances_are_adopted_without_a_users_pool(&world, &listed),
    )?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_of_the_legacy_operator_take_turns() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let one = Legacy::new(&world, "set-one", OTHER, 2).await?;
    let two = Legacy::new(&world, "set-two", OTHER_TOO, 2).await?;
    let hosts = || one.hosts.iter().chain(&two.hosts);
    for host in hosts() {
        let containerd = host.drive_c().join("k/containerd/containerd.exe");
        std::fs::remove_file(&containerd)?;
        std::fs::write(&containerd, "an older one")?;
    }
    let watcher = Watcher::of_all(&world.client);
    for legacy in [&one, &two] {
        world.apply(legacy.name, &spec_with(&legacy.hosts, json!({"deletionPolicy": "Orphan"}))).await?;
    }
    for legacy in [&one, &two] {
        legacy.are_ours(&world).await?;
    }
    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.ever_cordoned.len() == hosts().count(), "only {:?} were cordoned", seen.ever_cordoned);
    ensure!(seen.most_disrupted <= 1, "{} nodes of two pools were disrupted at once", seen.most_disrupted);
    Ok(())
}

/// Hosts that are nodes of the legacy operator.
pub(crate) struct Legacy {
    name: &'static str,
    version: &'static str,
    pub hosts: Vec<SimHost>,
    /// Version of this operator for the hosts, from before the takeover.
    ours: String,
    nodes: BTreeMap<String, Node>,
    starts: BTreeMap<String, BTreeMap<String, u32>>,
}

impl Legacy {
    /// Joins hosts, releases them, and gives them the state in which the legacy operator leaves its hosts.
    pub(crate) async fn new(world: &World, name: &'static str, version: &'static str, count: usize) -> Result<Self> {
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

    /// Publishes the services of this operator's version under the legacy version, in a ConfigMap with only data, as the legacy operator does.
    async fn publish(&self, world: &World) -> Result<()> {
        let config_maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), api::names::DEFAULT_NAMESPACE);
        let name = |version: &str| format!("{}{version}", api::names::SERVICES_CONFIG_MAP_PREFIX);
        let mut data = config_maps.get(&name(&self.ours)).await?.data.context("it has no data")?;
        let mut files: Vec<FileInfo> = serde_json::from_str(data.get("files").context("it has no files")?)?;
        if self.version == HELD {
            add_settings_of_a_cluster(&mut data)?;
        }
        let containerd = files.iter_mut().find(|f| f.path.ends_with("containerd.exe")).context("no containerd")?;
        if [OTHER, OTHER_TOO].contains(&self.version) {
            containerd.checksum = "0".repeat(64);
        }
        if self.version == HELD {
            // The real legacy operator lists no files.
            files.clear();
        }
        data.insert("files".into(), serde_json::to_string(&files)?);
        let metadata = ObjectMeta { name: Some(name(self.version)), ..ObjectMeta::default() };
        let config_map = ConfigMap { metadata, data: Some(data), immutable: Some(true), ..ConfigMap::default() };
        config_maps.create(&PostParams::default(), &config_map).await?;
        Ok(())
    }

    /// Removes the host keys from the Nodes. The legacy operator records these keys only from release 10.22.1 on.
    async fn forget_host_keys(&self, world: &World) -> Result<()> {
        for host in &self.hosts {
            let none = json!({key::SSH_HOST_KEY: null, key::SSH_HOST_KEY_TYPE: null});
            world.edit_node(host.name(), json!({"metadata": {"annotations": none}})).await?;
        }
        Ok(())
    }

    /// Waits until the plan of the pool has this action for each host.
    async fn until_planned(&self, world: &World, action: &str) -> Result<()> {
        let is_planned = |p: &WindowsNodePool| {
            let hosts = pool_status(p).plan.unwrap_or_default().hosts;
            hosts.len() == self.hosts.len() && hosts.iter().all(|h| h.action == action)
        };
        world.until(self.name, &format!("it plans to {action} each host"), is_planned).await
    }

    /// Returns the number of starts of a service on a host since the legacy operator left it.
    pub(crate) fn starts_of(&self, host: &SimHost, service: &str) -> u32 {
        let now = host.windows().state().starts.get(service).copied().unwrap_or(0);
        now - self.starts.get(host.name()).and_then(|s| s.get(service)).copied().unwrap_or(0)
    }

    /// Waits until all hosts are taken over, and checks that they have been nodes all the time.
    async fn are_ours(&self, world: &World) -> Result<()> {
        until_updated(world, self.name).await?;
        for host in &self.hosts {
            let name = host.name();
            let note = world.until_event(name, "Adopted").await?;
            ensure!(note.contains(self.version), "{note}");
            let instance = world.instance(name).await?.context("no instance")?;
            ensure!(status(&instance).current_version.as_ref() == Some(&self.ours), "{:?}", status(&instance));
            let node = uncordoned_node(world, name).await?;
            ensure!(node.uid() == self.nodes[name].uid(), "{name} has registered again");
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

/// Checks that a released Node has all metadata that the legacy operator needs, and none of this operator's that would hinder it.
pub(crate) fn can_be_taken_by_the_legacy_operator(node: &Node, version: &str) -> Result<()> {
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

/// Gives host and Node the state in which the legacy operator leaves them during an upgrade of its own.
async fn make_legacy(world: &World, host: &SimHost, version: &str) -> Result<()> {
    let name = host.name();
    if let Some(wicd) = host.windows().state().services.get_mut(WICD_SERVICE) {
        // The legacy daemon is not simulated, so its service is stopped.
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
        "annotations": {key::VERSION: version, key::DESIRED_VERSION: version},
    });
    world.edit_node(name, json!({"metadata": metadata})).await
}

fn add_settings_of_a_cluster(data: &mut BTreeMap<String, String>) -> Result<()> {
    data.insert("environmentVars".into(), json!({"HTTP_PROXY": "http://user:hunter2@proxy"}).to_string());
    let mut services: Vec<Service> = serde_json::from_str(data.get("services").context("it has no services")?)?;
    for kubelet in services.iter_mut().filter(|s| s.name == "kubelet") {
        kubelet.path += " --cloud-provider=external";
    }
    let path = r"C:\k\csi-proxy.exe".to_string();
    services.push(Service { name: "csi-proxy".into(), path, priority: 2, ..Service::default() });
    data.insert("services".into(), serde_json::to_string(&services)?);
    Ok(())
}

async fn a_change_that_would_lose_settings_is_withheld(world: &World, legacy: &Legacy) -> Result<()> {
    let host = &legacy.hosts[0];
    let name = host.name();
    // The host key stays: without it, the host could not be proven.
    let missing = [key::USERNAME, key::PUB_KEY_HASH];
    let none: serde_json::Map<_, _> = missing.iter().map(|k| ((*k).to_owned(), json!(null))).collect();
    world.edit_node(name, json!({"metadata": {"annotations": none}})).await?;
    world.apply(legacy.name, &spec(&legacy.hosts)).await?;
    let withheld = |i: &WindowsInstance| {
        let condition = conditions::find(&status(i).conditions, kind::UPDATE_WITHHELD).cloned();
        condition.filter(|c| c.status == "True").map(|c| c.message)
    };
    let instance = world.until_instance(name, "its change is withheld", |i| withheld(i).is_some()).await?;
    let message = withheld(&instance).context("it has no message")?;
    let lost = ["service csi-proxy", "variable HTTP_PROXY", "--cloud-provider=external", "pause:3.9"];
    for part in lost.into_iter().chain([key::ACCEPT_LOST_SETTINGS]) {
        ensure!(message.contains(part), "{part}: {message}");
    }
    ensure!(!message.contains("hunter2"), "{message}");
    world
        .until(legacy.name, "the pool names it", |p| {
            let updated = conditions::find(&pool_status(p).conditions, kind::UPDATED).cloned();
            updated
                .is_some_and(|c| c.status == "False" && c.reason == "SettingsWouldBeLost" && c.message.contains(name))
        })
        .await?;
    // While the change is withheld, the Node has the annotations of the legacy operator, and its present version as the desired one.
    world
        .eventually("the Node has the annotations of the legacy operator", || async {
            let node = world.node(name).await.ok().flatten();
            node.is_some_and(|n| missing.iter().all(|k| n.annotations().get(*k).is_some_and(|v| !v.is_empty())))
        })
        .await?;
    let node = world.node(name).await?.context("no Node")?;
    for k in [key::VERSION, key::DESIRED_VERSION] {
        ensure!(node.annotations().get(k).map(String::as_str) == Some(HELD), "{k}: {:?}", node.annotations());
    }

    // A restart that the host requests has to wait: the host has no version of this operator to start with.
    world.edit_node(name, json!({"metadata": {"annotations": {key::REBOOT_REQUIRED: ""}}})).await?;
    let own = json!({"metadata": {"annotations": {key::ACCEPT_LOST_SETTINGS: "csi-proxy, HTTP_PROXY, sandbox-image"}}});
    world.edit_pool(legacy.name, own).await?;
    let only_cloud = |i: &WindowsInstance| withheld(i).is_some_and(|m| m.contains("cloud") && !m.contains("csi-proxy"));
    let instance = world.until_instance(name, "one setting is left", only_cloud).await?;
    ensure!(status(&instance).current_version.as_deref() == Some(HELD), "{:?}", status(&instance));
    ensure!(status(&instance).operation.is_none(), "{:?}", status(&instance));
    ensure!(
        legacy.starts_of(host, "kubelet") == 0 && host.boots() == 1,
        "it was disturbed: {:?}",
        host.windows().state().starts
    );
    world.annotate(name, key::ACCEPT_LOST_SETTINGS, "cloud-provider").await?;
    until_updated(world, legacy.name).await?;
    world.until_instance(name, "nothing is withheld", |i| withheld(i).is_none()).await?;
    Ok(())
}

/// Covers two cordoned Nodes: one cordoned by the legacy operator, which ended during an upgrade, and one cordoned by a user.
async fn a_cordon_of_the_legacy_operator_is_lifted_and_that_of_a_user_stays(
    world: &World,
    legacy: &Legacy,
) -> Result<()> {
    let (left, persons) = (&legacy.hosts[0], &legacy.hosts[1]);
    let cordon = json!({"spec": {"unschedulable": true}});
    world.edit_node(left.name(), cordon.clone()).await?;
    world
        .edit_node(persons.name(), json!({"metadata": {"labels": {key::UPGRADING: null}}, "spec": cordon["spec"]}))
        .await?;
    let two = spec_with(&legacy.hosts, json!({"deletionPolicy": "Orphan", "rollout": {"maxUnavailable": 2}}));
    world.apply(legacy.name, &two).await?;
    for host in [left, persons] {
        world
            .until_instance(host.name(), "follows our version", |i| {
                status(i).current_version.as_ref() == Some(&legacy.ours) && status(i).operation.is_none()
            })
            .await?;
    }
    world
        .eventually("the cordon that was left is lifted", || async {
            let node = world.node(left.name()).await.ok().flatten();
            node.is_some_and(|n| !is_cordoned(&n) && !n.labels().contains_key(key::UPGRADING) && !is_cordoned_by_us(&n))
        })
        .await?;
    let node = world.node(persons.name()).await?.context("no Node")?;
    ensure!(is_cordoned(&node) && !is_cordoned_by_us(&node), "the cordon of a user was lifted");

    // A change of the SSH user also changes the annotation for the legacy operator.
    let user =
        json!({"deletionPolicy": "Orphan", "rollout": {"maxUnavailable": 2}, "ssh": {"username": "Local Admin"}});
    world.apply(legacy.name, &spec_with(&legacy.hosts, user)).await?;
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), api::names::DEFAULT_NAMESPACE);
    let secret = secrets.get(api::names::DEFAULT_KEY_SECRET).await?.data.context("the Secret has no data")?;
    let pem = secret.get(api::names::DEFAULT_KEY_SECRET_KEY).context("the Secret has no key")?.0.clone();
    world
        .eventually("the annotation has the user", || async {
            let node = world.node(left.name()).await.ok().flatten();
            let annotation = node.and_then(|n| n.annotations().get(key::USERNAME).cloned()).unwrap_or_default();
            wnp_core::node::username::decrypt_username(&annotation, &pem).as_deref() == Ok("Local Admin")
        })
        .await
}

/// Covers one Secret that declares the keys of all hosts. No Node has a record of its host's key, as before 10.22.1.
async fn hosts_whose_keys_are_declared_at_once_are_adopted(world: &World, legacy: &Legacy) -> Result<()> {
    legacy.forget_host_keys(world).await?;
    world.apply(legacy.name, &spec_with(&legacy.hosts, json!({"mode": "Plan"}))).await?;
    legacy.until_planned(world, "Refuse").await?;
    let line = |host: &SimHost| {
        let key = host.host_key();
        format!("[{}]:{} {} {}\n", host.address(), host.port(), key.algorithm(), key.public_key_base64())
    };
    let known: String = legacy.hosts.iter().map(line).collect();
    let metadata = json!({"name": "known-to-all", "namespace": api::names::DEFAULT_NAMESPACE});
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"known_hosts": known}});
    world.control_plane.apply_yaml(&secret.to_string()).await?;
    let strict = json!({"hostKeyPolicy": "Strict", "knownHostsSecretRef": {"name": "known-to-all"}});
    world.apply(legacy.name, &spec_with(&legacy.hosts, json!({"mode": "Plan", "ssh": strict}))).await?;
    legacy.until_planned(world, "Adopt").await?;
    nodes_with_the_same_services_are_adopted_without_a_drain(world, legacy, &strict).await
}

async fn nodes_with_the_same_services_are_adopted_without_a_drain(
    world: &World,
    legacy: &Legacy,
    ssh: &serde_json::Value,
) -> Result<()> {
    for host in &legacy.hosts {
        pod(world, "stays", host.name(), &[]).await?;
    }
    let watcher = Watcher::of(&world.client, legacy.name);
    let mut same = spec(&legacy.hosts);
    same.ssh = serde_json::from_value(ssh.clone())?;
    world.apply(legacy.name, &same).await?;
    legacy.are_ours(world).await?;
    for host in &legacy.hosts {
        is_not_evicted(world, &format!("stays-{}", host.name())).await?;
        // The legacy version does not record kubelet's settings, so kubelet restarts to read them again.
        ensure!(legacy.starts_of(host, "kubelet") == 1, "kubelet: {:?}", host.windows().state().starts);
        ensure!(legacy.starts_of(host, "containerd") == 0, "containerd: {:?}", host.windows().state().starts);
    }
    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.ever_cordoned.is_empty(), "{:?} were cordoned", seen.ever_cordoned);
    ensure!(seen.most_disrupted <= 1, "{} nodes were disrupted at once", seen.most_disrupted);
    Ok(())
}

/// Takes over hosts of the legacy operator's ConfigMap. The operator makes the pool, and a user only edits it.
async fn hosts_of_windows_instances_are_adopted_without_a_users_pool(world: &World, legacy: &Legacy) -> Result<()> {
    legacy.forget_host_keys(world).await?;
    for host in &legacy.hosts {
        pod(world, "listed", host.name(), &[]).await?;
    }
    let watcher = Watcher::of(&world.client, legacy.name);
    config_map::create(world, &legacy.hosts).await?;
    let made = until_made(world, WINDOWS_INSTANCES).await?;
    // The legacy operator's nodes exist: the pool waits until a user starts the takeover.
    ensure!(made.spec.mode == Some(api::Mode::Plan), "the pool does not wait");
    let set = async |spec: serde_json::Value| world.edit_pool(WINDOWS_INSTANCES, json!({"spec": spec})).await;
    set(json!({"ssh": {"port": legacy.hosts[0].port()}})).await?;
    legacy.until_planned(world, "Refuse").await?;
    let pool = world.pool(WINDOWS_INSTANCES).await?;
    let ready = conditions::find(&pool_status(&pool).conditions, kind::READY).cloned().context("no condition")?;
    ensure!(ready.reason == "HostUnproven" && ready.message.contains("TrustOnAdoption"), "{ready:?}");
    set(json!({"ssh": {"hostKeyPolicy": "TrustOnAdoption"}})).await?;
    legacy.until_planned(world, "Adopt").await?;
    a_node_that_waits_for_its_takeover_renews(world, legacy).await?;
    set(json!({"mode": "Apply"})).await?;
    legacy.are_ours(world).await?;
    for host in &legacy.hosts {
        is_not_evicted(world, &format!("listed-{}", host.name())).await?;
        let origin = world.instance(host.name()).await?.and_then(|i| i.spec.origin).context("no origin")?;
        ensure!(origin.source == "ConfigMap windows-instances", "{origin:?}");
    }
    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.ever_cordoned.is_empty(), "{:?} were cordoned", seen.ever_cordoned);
    Ok(())
}

/// Checks renewals while the legacy operator no longer runs to approve them: this operator approves requests that match the Node, and leaves the
/// others to a user.
async fn a_node_that_waits_for_its_takeover_renews(world: &World, legacy: &Legacy) -> Result<()> {
    let host = &legacy.hosts[0];
    let (name, address) = (host.name(), host.address().to_string());
    let requests: Api<CertificateSigningRequest> = Api::all(world.client.clone());
    let kubelet = crate::cluster::kubelet(&world.control_plane, name).await?;
    let forged = || Forged::new(&format!("system:node:{name}"), &["system:nodes"]);
    let served = |address: &str| forged().names(&[Name::Dns(name), Name::Ip(address)]).pem();
    let of = |kind, pem| Post::of(kind, "a renewal", &kubelet, pem);
    let foreign = of(Kind::KubeletServing, served("10.99.0.1")).send().await?.name_any();
    for post in [of(Kind::KubeletClient, forged().pem()), of(Kind::KubeletServing, served(&address))] {
        let request = post.send().await?.name_any();
        let is_approved = || async {
            requests.get(&request).await.is_ok_and(|csr| csr_conditions(&csr).iter().any(|c| c.0 == "Approved"))
        };
        world.eventually("the renewal is approved", is_approved).await?;
    }
    let warning = |p: &WindowsNodePool| conditions::find(&pool_status(p).conditions, kind::WARNING).cloned();
    world
        .until(legacy.name, "it names the other request", |p| warning(p).is_some_and(|c| c.message.contains(&foreign)))
        .await?;
    let pool = world.pool(legacy.name).await?;
    let said = warning(&pool).context("no warning")?;
    ensure!(
        said.reason == "CertificateRequestsWait" && said.message.contains("oc adm certificate approve"),
        "{said:?}"
    );
    ensure!(csr_conditions(&requests.get(&foreign).await?).is_empty(), "the request is decided");
    requests.delete(&foreign, &DeleteParams::default()).await?;
    world.until(legacy.name, "the request is gone", |p| warning(p).is_none()).await
}

pub(crate) async fn nodes_with_other_services_are_drained_one_after_another(
    world: &World,
    legacy: &Legacy,
) -> Result<()> {
    for host in &legacy.hosts {
        // The legacy operator's file is not a hard link to a blob of this operator.
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
        ensure!(containerd == b"containerd", "{} still has its older containerd", host.name());
        ensure!(pods.get_opt(&format!("moves-{}", host.name())).await?.is_none(), "{} was not drained", host.name());
        ensure!(legacy.starts_of(host, "containerd") == 1, "containerd: {:?}", host.windows().state().starts);
    }
    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.ever_cordoned.len() == legacy.hosts.len(), "only {:?} were cordoned", seen.ever_cordoned);
    ensure!(seen.most_disrupted <= 1, "{} nodes were disrupted at once", seen.most_disrupted);
    let killed: Vec<_> = seen.grace_periods.values().filter(|g| **g == Some(0)).collect();
    ensure!(killed.is_empty(), "pods were killed: {:?}", seen.grace_periods);
    Ok(())
}
