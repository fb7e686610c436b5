//! Removal of hosts: with the grace periods of pods, within the budget, and complete.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use api::{Reason, WindowsNodePool, conditions, conditions::kind, names::key};
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use rand::RngCore as _;
use serde_json::json;
use testbed::{
    ControlPlane, ControlPlaneOptions,
    payload::{Content, Entry},
    sim::{HostOptions, SimHost, SimOptions},
};

use crate::{
    fleet::{World, entries, files_below, has, is_cordoned, pool_status, spec, spec_with},
    rollout::{Watcher, uncordoned_node, until_updated},
    transcripts::root,
};

/// Grace period of pods, in seconds.
const GRACE: i64 = 7;

/// Creates a pod without a controller on a node, and waits until it runs.
pub(crate) async fn pod(world: &World, prefix: &str, node: &str, labels: &[(&str, &str)]) -> Result<()> {
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    let labels: std::collections::BTreeMap<_, _> = labels.iter().copied().collect();
    let name = format!("{prefix}-{node}");
    let pod = json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": GRACE,
            "containers": [{"name": "c", "image": "example.com/image"}],
            "tolerations": [{"operator": "Exists"}],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let phase = |p: Pod| p.status.and_then(|s| s.phase);
    world
        .eventually(&format!("the pod {name} runs"), || async {
            pods.get(&name).await.is_ok_and(|p| phase(p).as_deref() == Some("Running"))
        })
        .await
}

/// Creates a PodDisruptionBudget that allows no disruption of the pods with this label `app`, and waits until it is in force.
pub(crate) async fn budget(world: &World, name: &str, app: &str) -> Result<()> {
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(world.client.clone());
    let budget = json!({
        "metadata": {"name": name},
        "spec": {"minAvailable": 9, "selector": {"matchLabels": {"app": app}}},
    });
    budgets.create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
    world
        .eventually(&format!("the budget {name} is in force"), || async {
            let status = budgets.get(name).await.ok().and_then(|b| b.status);
            status.is_some_and(|s| s.observed_generation.is_some() && s.current_healthy > Some(0))
        })
        .await
}

pub(crate) async fn delete_budget(world: &World, name: &str) -> Result<()> {
    Api::<PodDisruptionBudget>::default_namespaced(world.client.clone()).delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Checks that a pod is there and is not being deleted.
pub(crate) async fn is_not_evicted(world: &World, pod: &str) -> Result<()> {
    let found = Api::<Pod>::default_namespaced(world.client.clone()).get(pod).await?;
    ensure!(found.metadata.deletion_timestamp.is_none(), "the pod {pod} was evicted");
    Ok(())
}

/// Waits until instance and Node of a host are gone.
pub(crate) async fn until_forgotten(world: &World, name: &str) -> Result<()> {
    world
        .eventually(&format!("{name} is forgotten"), || async {
            matches!(world.instance(name).await, Ok(None)) && matches!(world.node(name).await, Ok(None))
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_removed() -> Result<()> {
    let sim = SimOptions { termination: std::time::Duration::from_millis(500), ..SimOptions::default() };
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    let payload = payload(Content::Bytes(b"kubelet".into()));
    let mut world = Box::pin(World::on(control_plane, sim, &payload, None, &[])).await?;
    world.operator.leads().await?;
    let (.., again) = tokio::try_join!(
        hosts_are_drained_one_at_a_time_within_grace_periods(&world),
        the_pool_is_deleted(&world),
        orphans_keep_running(&world),
        an_unreachable_host_is_abandoned(&world),
        most_of_a_list_stays_until_a_user_confirms(&world),
        deleted_objects_are_created_again(&world),
    )?;
    only_changed_files_are_sent(&mut world, &again).await
}

/// Size of the incompressible data in a payload file that never changes, in bytes.
const UNCHANGED: u64 = 4 << 20;
/// Size of the incompressible data in a payload file that changes, in bytes.
const CHANGED: u64 = 1 << 20;
/// Maximum number of bytes that a host receives in addition to the payload.
const BESIDE: u64 = 200 << 10;

fn payload(kubelet: Content) -> Vec<Entry> {
    let unchanged = Entry::with(r"C:\k\cni\host-local.exe", Content::Random { size: UNCHANGED, seed: 1 });
    let kubelet = Entry::with(r"C:\k\kubelet.exe", kubelet).services(&["kubelet"]);
    // Skips the first entry, which is another kubelet.
    entries(b"").into_iter().skip(1).chain([kubelet, unchanged]).collect()
}

/// Returns the number of bytes that a host has received.
fn received(host: &SimHost) -> u64 {
    host.stats().bytes_received
}

/// Checks that hosts receive only the changed file of a new payload, compressed.
async fn only_changed_files_are_sent(world: &mut World, hosts: &[SimHost]) -> Result<()> {
    let before: Vec<u64> = hosts.iter().map(received).collect();
    let mut kubelet = vec![0; 4 * usize::try_from(CHANGED)?];
    rand::rng().fill_bytes(&mut kubelet[..usize::try_from(CHANGED)?]);
    let version = |pool: &WindowsNodePool| pool_status(pool).desired_version;
    let last = version(&world.pool("again").await?);
    world.give("next", &payload(Content::Bytes(kubelet)))?;
    world.restart().await?;
    world.until("again", "it has another version", |pool| version(pool) != last).await?;
    until_updated(world, "again").await?;
    for (host, before) in hosts.iter().zip(before) {
        let sent = received(host) - before;
        ensure!((CHANGED..CHANGED + BESIDE).contains(&sent), "{} received {sent} bytes", host.name());
    }
    Ok(())
}

/// Removes three of four hosts, one after the other. Files of a user on a host stay there.
async fn hosts_are_drained_one_at_a_time_within_grace_periods(world: &World) -> Result<()> {
    let hosts = world.hosts("budgeted", 4).await?;
    world.join("budgeted", &spec(&hosts)).await?;
    for host in &hosts[..3] {
        pod(world, "gentle", host.name(), &[]).await?;
        for file in ["Temp/mine.txt", "var/log/mine.log"] {
            let path = host.drive_c().join(file);
            std::fs::create_dir_all(path.parent().context("the path has no parent")?)?;
            std::fs::write(path, "a user's")?;
        }
    }
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    let mut uids = Vec::new();
    for host in &hosts[..3] {
        uids.push(pods.get(&format!("gentle-{}", host.name())).await?.uid().context("the pod has no uid")?);
    }
    let watcher = Watcher::of(&world.client, "budgeted");
    let all = json!({"rollout": {"maxUnavailable": 1}, "inventory": {"maxRemovals": "100%"}});
    world.apply("budgeted", &spec_with(&hosts[3..], all)).await?;
    for host in &hosts[..3] {
        world.until_gone(host).await?;
        for file in ["Temp/mine.txt", "var/log/mine.log"] {
            ensure!(host.drive_c().join(file).exists(), "a user's {file} was deleted from {}", host.name());
        }
        ensure!(host.stats().connections == 2, "{}: not two logins: {:?}", host.name(), host.stats());
        world.until_event(host.name(), "Removed").await?;
    }
    world.until("budgeted", "one is left", |p| crate::fleet::is_ready(p) && pool_status(p).hosts == 1).await?;
    let kept = world.node(hosts[3].name()).await?.context("the one that stays is gone")?;
    ensure!(!is_cordoned(&kept), "the one that stays is cordoned");

    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.most_cordoned == 1, "{} were cordoned at once", seen.most_cordoned);
    for (host, uid) in hosts.iter().zip(&uids) {
        ensure!(seen.grace_periods.get(uid) == Some(&Some(GRACE)), "{}: {:?}", host.name(), seen.grace_periods);
    }
    Ok(())
}

/// Checks that this section of the guide names each file that the host did not have before.
fn names_what_is_left(host: &SimHost, before: &[PathBuf], heading: &str) -> Result<()> {
    let page = std::fs::read_to_string(root().join("docs/guide/removal.md"))?;
    let section = page.split(&format!("\n{heading}\n")).nth(1).and_then(|rest| rest.split("\n## ").next());
    let section = section.with_context(|| format!("the page has no section {heading}"))?;
    // Considers all paths in the section, except the directories in the item about access lists.
    let lines = section.lines().filter(|line| !line.starts_with("- Access lists"));
    let words = lines.flat_map(|line| line.split('`').skip(1).step_by(2)).filter(|word| word.starts_with(r"C:\"));
    let named: Vec<String> = words.map(|word| word.to_lowercase() + r"\").collect();
    for file in files_below(host.drive_c()).iter().filter(|file| !before.contains(file)) {
        let path = file.strip_prefix(host.drive_c())?.display().to_string();
        let path = format!(r"C:\{}", path.replace('/', r"\"));
        let is_named = named.iter().any(|name| format!(r"{}\", path.to_lowercase()).starts_with(name));
        ensure!(is_named, "{} has {path}, which {heading:?} does not name", host.name());
    }
    Ok(())
}

pub(crate) async fn until_pool_gone(world: &World, name: &str) -> Result<()> {
    world
        .eventually(&format!("the pool {name} is gone"), || async {
            let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
            matches!(pools.get_opt(name).await, Ok(None))
        })
        .await
}

pub(crate) async fn delete_pool(world: &World, name: &str) -> Result<()> {
    Api::<WindowsNodePool>::all(world.client.clone()).delete(name, &DeleteParams::default()).await?;
    Ok(())
}

pub(crate) async fn the_pool_is_deleted(world: &World) -> Result<()> {
    let hosts = world.hosts("deleted", 2).await?;
    let before: Vec<_> = hosts.iter().map(|host| files_below(host.drive_c())).collect();
    world.join("deleted", &spec_with(&hosts, json!({"rollout": {"maxUnavailable": "100%"}}))).await?;
    delete_pool(world, "deleted").await?;
    until_pool_gone(world, "deleted").await?;
    for (host, before) in hosts.iter().zip(&before) {
        world.until_gone(host).await?;
        names_what_is_left(host, before, "### What stays on the host")?;
    }
    Ok(())
}

async fn orphans_keep_running(world: &World) -> Result<()> {
    let host = world.sim.host(HostOptions::named("orphan")).await?;
    let bare = files_below(host.drive_c());
    world.join("orphans", &spec_with(std::slice::from_ref(&host), json!({"deletionPolicy": "Orphan"}))).await?;
    let before = host.services();
    delete_pool(world, "orphans").await?;
    until_pool_gone(world, "orphans").await?;
    ensure!(world.instance("orphan").await?.is_none(), "the instance is still there");
    uncordoned_node(world, "orphan").await?;
    ensure!(!before.is_empty() && host.services() == before, "services were {before:?} and are {:?}", host.services());
    ensure!(host.stats().connections == 1, "the host was touched");
    world.until_event("orphan", "Orphaned").await?;
    names_what_is_left(&host, &bare, "## Release hosts as they are")?;

    // Back in a pool, the host still has the whole payload, and none of it is sent again.
    let first = received(&host);
    ensure!(first > UNCHANGED, "the host received {first} bytes when it joined");
    world.join("orphans", &spec(std::slice::from_ref(&host))).await?;
    world.until_joined("orphan").await?;
    let sent = received(&host) - first;
    ensure!(host.stats().connections > 1 && sent < BESIDE, "the host received {sent} bytes when it joined again");
    Ok(())
}

async fn an_unreachable_host_is_abandoned(world: &World) -> Result<()> {
    let host = world.sim.host(HostOptions::named("lost")).await?;
    world.join("lost", &spec(std::slice::from_ref(&host))).await?;
    host.power_off();
    world.empty("lost").await?;
    let message = world.until_failed("lost", "Unreachable").await?;
    ensure!(message.starts_with("Deconfigure: "), "{message}");
    let is_named = |p: &WindowsNodePool| {
        conditions::find(&pool_status(p).conditions, kind::DEGRADED)
            .is_some_and(|c| c.message.contains("removed: lost: "))
    };
    world.until("lost", "the pool reports it", is_named).await?;

    world.annotate("lost", key::ABANDON, "true").await?;
    until_forgotten(world, "lost").await?;
    let note = world.until_event("lost", "RemovedUnclean").await?;
    ensure!(note.contains(&host.address().to_string()), "{note}");
    let unclean = |p: &WindowsNodePool| pool_status(p).unclean_hosts.iter().map(|h| h.name.clone()).collect::<Vec<_>>();
    world.until("lost", "the host is noted as unclean", |p| unclean(p) == ["lost"]).await?;

    // The host comes back with its old files. Once it is in a pool again, it is no longer noted as unclean.
    host.power_on();
    world
        .eventually("kubelet has made its Node again", || async { matches!(world.node("lost").await, Ok(Some(_))) })
        .await?;
    // The operator has no host key on record for this Node, so the Node has to go first.
    Api::<Node>::all(world.client.clone()).delete("lost", &DeleteParams::default()).await?;
    world.join("found", &spec(std::slice::from_ref(&host))).await?;
    world
        .until("lost", "the host is no longer noted as unclean, although another pool has it", |p| {
            unclean(p).is_empty()
        })
        .await
}

async fn most_of_a_list_stays_until_a_user_confirms(world: &World) -> Result<()> {
    let hosts = world.hosts("half", 4).await?;
    world.join("half", &spec(&hosts)).await?;
    world.apply("half", &spec(&hosts[..1])).await?;
    let confirm = format!("{}=3", key::APPROVE_REMOVAL);
    let is_held = |p: &WindowsNodePool| {
        let status = pool_status(p);
        let stalled = conditions::find(&status.conditions, kind::STALLED);
        status.removals_to_confirm == 3
            && [kind::STALLED, kind::DEGRADED]
                .iter()
                .all(|k| has(&status.conditions, k, "True", Reason::RemovalBlocked))
            && stalled.is_some_and(|c| {
                ["3 of 4", "half-1, half-2, half-3", &confirm].iter().all(|part| c.message.contains(part))
            })
    };
    world.until("half", "the pool asks to confirm the removal", is_held).await?;
    for host in &hosts {
        let instance = world.instance(host.name()).await?.context("no instance")?;
        ensure!(!instance.is_leaving(), "{} leaves without a confirmation", host.name());
    }
    world.edit_pool("half", json!({"metadata": {"annotations": {key::APPROVE_REMOVAL: "3"}}})).await?;
    for host in &hosts[1..] {
        world.until_gone(host).await?;
    }
    Ok(())
}

async fn deleted_objects_are_created_again(world: &World) -> Result<Vec<SimHost>> {
    let hosts = world.hosts("again", 2).await?;
    world.join("again", &spec_with(&hosts, json!({"rollout": {"maxUnavailable": 2}}))).await?;
    let (instance, node) = (hosts[0].name(), hosts[1].name());
    let joined: Vec<u64> = hosts.iter().map(received).collect();

    let first = world.instance(instance).await?.context("no instance")?;
    let instances: Api<api::WindowsInstance> = Api::all(world.client.clone());
    instances.delete(instance, &DeleteParams::default()).await?;
    let old_node = world.node(node).await?.context("no Node")?;
    Api::<Node>::all(world.client.clone()).delete(node, &DeleteParams::default()).await?;

    world.until_instance(instance, "was created again", |i| i.uid() != first.uid()).await?;
    world.until_joined(instance).await?;
    world
        .eventually("the Node is there again", || async {
            world.node(node).await.is_ok_and(|n| n.is_some_and(|n| n.uid() != old_node.uid()))
        })
        .await?;
    world.until_joined(node).await?;
    ensure!(hosts.iter().all(|h| h.boots() == 1), "a host was restarted");
    world.until("again", "all are Ready", |p| crate::fleet::is_ready(p) && pool_status(p).ready_nodes == 2).await?;

    // A host whose Node was deleted still has its files. A host whose instance was deleted was deconfigured, and receives all files again.
    let sent: Vec<u64> = hosts.iter().zip(&joined).map(|(host, before)| received(host) - before).collect();
    ensure!(joined.iter().all(|bytes| *bytes > UNCHANGED), "{joined:?} bytes when they joined");
    ensure!(sent[0] > UNCHANGED && sent[1] < BESIDE, "{sent:?} bytes when they joined again");
    Ok(hosts)
}
