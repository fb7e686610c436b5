//! Operators that are killed or suspended during a change, or users who interfere with it: nodes always converge. Crashes at each single write
//! are tested in `instance/executor_tests.rs`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result, ensure};
use api::{
    GrantType, Step, Time, WindowsInstance, WindowsInstanceStatus, WindowsNodePoolSpec, names::key,
    services_version::short,
};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};
use testbed::{
    Operator,
    deployment::operator_client,
    sim::{Fault, HostOptions, SimHost},
};
use tokio::task::JoinHandle;

use crate::{
    crash::{Uids, ended, epoch, kill_at, kill_when, lease, slow},
    fleet::{World, is_cordoned, is_cordoned_by_us, pool_status, status},
    removal::{budget, pod},
    rollout::{uncordoned_node, with_downloads},
};

const POOL: &str = "factory";
/// Label and name prefix of pods whose eviction a budget blocks.
const GUARDED: &str = "guarded";

fn pool(hosts: &[SimHost], downloads: i32, paused: bool) -> WindowsNodePoolSpec {
    let rollout = json!({"maxUnavailable": "100%", "minReadySeconds": 2, "paused": paused});
    with_downloads(hosts, downloads, &json!({"provisioning": {"maxConcurrent": 50}, "rollout": rollout}))
}

/// Writes the status of an instance with the operator's account, without the operator's knowledge.
async fn edit_status(world: &World, name: &str, status: Value) -> Result<()> {
    let instances: Api<WindowsInstance> = Api::all(operator_client(&world.control_plane).await?);
    instances.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await?;
    Ok(())
}

/// Makes a Node look as if this operation had cordoned it. Without an operation, makes it look as if none had.
async fn set_cordon(world: &World, name: &str, operation: Option<&str>) -> Result<()> {
    let patch = json!({
        "metadata": {"annotations": {key::CORDONED_BY: operation}},
        "spec": {"unschedulable": operation.map(|_| true)},
    });
    world.edit_node(name, patch).await
}

async fn release(world: &World, name: &str) -> Result<()> {
    world.annotate(name, key::HOLD, "false").await
}

fn pods(world: &World) -> Api<Pod> {
    Api::default_namespaced(world.client.clone())
}

/// Deletes the pod that blocks a drain, and triggers a reconcile at once.
async fn free(world: &World, name: &str) -> Result<()> {
    pods(world).delete(&format!("{GUARDED}-{name}"), &DeleteParams::default().grace_period(0)).await?;
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    world.edit_node(name, json!({"metadata": {"annotations": {"example.com/look": now}}})).await
}

fn drain_start(status: &WindowsInstanceStatus) -> Option<Time> {
    status.operation.as_ref()?.drain.as_ref().map(|d| d.start_time)
}

/// Collector of the times at which each operation has begun its drain. Stops on drop.
struct Clocks {
    seen: Arc<Mutex<BTreeMap<String, BTreeSet<Time>>>>,
    task: JoinHandle<()>,
}

impl Clocks {
    fn watch(world: &World) -> Self {
        let seen = Arc::<Mutex<BTreeMap<String, BTreeSet<Time>>>>::default();
        let (all, into) = (Api::<WindowsInstance>::all(world.client.clone()), seen.clone());
        let task = tokio::spawn(async move {
            let mut instances =
                std::pin::pin!(watcher(all, watcher::Config::default()).default_backoff().applied_objects());
            while let Some(instance) = instances.next().await {
                let Ok(instance) = instance else { continue };
                let status = status(&instance);
                if let (Some(start), Some(operation)) = (drain_start(&status), status.operation) {
                    into.lock().unwrap().entry(operation.id).or_default().insert(start);
                }
            }
        });
        Self { seen, task }
    }

    fn of(&self, operation: &str) -> BTreeSet<Time> {
        self.seen.lock().unwrap().get(operation).cloned().unwrap_or_default()
    }
}

impl Drop for Clocks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Pool with a new version, whose nodes are on hold until they are released.
struct Rollout {
    world: World,
    hosts: Vec<SimHost>,
    from: String,
    to: String,
    nodes: Uids,
    drains: Clocks,
}

impl Rollout {
    /// Creates a rollout. `guarded` are hosts with a pod whose eviction a budget blocks.
    async fn new(names: &[&str], guarded: &[&str]) -> Result<Self> {
        // The Lease is short, because the next operator waits until the Lease of a suspended leader expires.
        let world = World::new(slow(), &["--lease-duration", "10s"]).await?;
        let mut hosts = Vec::new();
        for name in names.iter().chain(guarded) {
            hosts.push(world.sim.host(HostOptions::named(*name)).await?);
        }
        let (nodes, drains) = (Uids::watch(&world), Clocks::watch(&world));
        world.join(POOL, &pool(&hosts, 3, false)).await?;
        let from = pool_status(&world.pool(POOL).await?).desired_version.context("no version")?;
        futures::future::try_join_all(guarded.iter().map(|name| pod(&world, GUARDED, name, &[("app", GUARDED)])))
            .await?;
        budget(&world, GUARDED, GUARDED).await?;
        for host in &hosts {
            world.annotate(host.name(), key::HOLD, "true").await?;
        }
        // The pool is paused until the operator has seen the holds.
        world.apply(POOL, &pool(&hosts, 6, true)).await?;
        let desired = |p: &api::WindowsNodePool| pool_status(p).desired_version.filter(|v| *v != from);
        world.until(POOL, "another version is wanted", |p| desired(p).is_some()).await?;
        let to = desired(&world.pool(POOL).await?).context("no version")?;
        world.apply(POOL, &pool(&hosts, 6, false)).await?;
        Ok(Self { world, hosts, from, to, nodes, drains })
    }

    fn host(&self, name: &str) -> Result<&SimHost> {
        self.hosts.iter().find(|h| h.name() == name).context("no such host")
    }

    /// Waits until a node follows the new version, and checks that one operation has brought it there: `operation`, if given.
    async fn until_changed(&self, name: &str, operation: Option<&str>) -> Result<()> {
        let changed = |s: &WindowsInstanceStatus| s.current_version.as_ref() == Some(&self.to) && s.operation.is_none();
        let instance = self.world.until_instance(name, "is changed", |i| changed(&status(i))).await?;
        let status = status(&instance);
        let last = status.last_operation.clone().context("nothing was done")?;
        ensure!(operation.is_none_or(|o| o == last), "{name}: {last} is another operation than {operation:?}");
        ensure!(status.previous_version.as_ref() == Some(&self.from), "{name} came from elsewhere: {status:?}");
        ensure!(status.failed_version.is_none() && status.failures.is_none(), "{name} failed: {status:?}");
        ensure!(self.drains.of(&last).len() <= 1, "{name} drained again: {:?}", self.drains.of(&last));
        let node = self.world.node(name).await?.context("no Node")?;
        let follows = node.annotations().get(key::VERSION);
        ensure!(follows == Some(&self.to), "{name} follows {follows:?}");
        ensure!(!is_cordoned_by_us(&node), "a cordon of ours stayed on {name}");
        Ok(())
    }
}

/// Releases a node, and kills the operator at a step of its change. Returns the names of the instance and of its operation.
async fn killed(rollout: &Rollout, name: &str, step: &str) -> Result<(String, String)> {
    let at = kill_at(&rollout.world, name, step, release(&rollout.world, name)).await?;
    operation_of(&at)
}

/// Returns the names of the instance and of its operation.
fn operation_of(instance: &WindowsInstance) -> Result<(String, String)> {
    let id = status(instance).operation.map(|o| o.id).or_else(|| instance.open_grant().map(|g| g.id.clone()));
    Ok((instance.name_any(), id.context("there is no operation")?))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_survives_a_killed_operator() -> Result<()> {
    let guarded = ["draining", "restarted"];
    let mut rollout = Rollout::new(&["granted", "sent", "persons"], &guarded).await?;
    let mut killed_at = Vec::new();
    rollout.world.edit_node("persons", json!({"spec": {"unschedulable": true}})).await?;
    for name in ["restarted", "persons"] {
        release(&rollout.world, name).await?;
    }

    // Only the grant is written. The later writes of the killed operator are undone.
    let is_granted = |i: &WindowsInstance| i.open_grant().is_some_and(|g| g.type_ == GrantType::Update);
    let at = kill_when(&rollout.world, "granted", "its grant", is_granted, release(&rollout.world, "granted")).await?;
    killed_at.push(operation_of(&at)?);
    edit_status(&rollout.world, "granted", json!({"operation": null})).await?;
    set_cordon(&rollout.world, "granted", None).await?;
    rollout.world.new_operator().await?;

    // The step is stored, and the cordon was sent.
    let sent = killed(&rollout, "sent", "Cordon").await?;
    set_cordon(&rollout.world, "sent", Some(&sent.1)).await?;
    rollout.world.new_operator().await?;

    // The operator is killed during a drain, which keeps its start time.
    let at = kill_at(&rollout.world, "draining", "Drain", release(&rollout.world, "draining")).await?;
    let start = drain_start(&status(&at)).context("the drain has no start")?;
    let before = epoch(&lease(&rollout.world).await?);
    killed_at.push(operation_of(&at)?);
    rollout.world.new_operator().await?;
    let goes_on = |i: &WindowsInstance| {
        let operation = status(i).operation.unwrap_or_default();
        operation.step == Step::Drain && operation.epoch > before.into()
    };
    let again = rollout.world.until_instance("draining", "is drained by the next operator", goes_on).await?;
    ensure!(drain_start(&status(&again)) == Some(start), "the drain restarted: {again:?}");

    // The operator is killed at the restart of a host for the change: the host restarts once.
    rollout.host("restarted")?.fault(Fault::NeedsReboot);
    let at = kill_at(&rollout.world, "restarted", "Reboot", free(&rollout.world, "restarted")).await?;
    killed_at.push(operation_of(&at)?);
    rollout.world.new_operator().await?;

    rollout.until_changed("sent", Some(&sent.1)).await?;
    let restart = killed_at_restart(&mut rollout, "sent").await?;
    free(&rollout.world, "draining").await?;
    for (name, operation) in &killed_at {
        rollout.until_changed(name, Some(operation)).await.with_context(|| format!("{name} was killed"))?;
    }
    rollout.until_changed("persons", None).await?;
    until_restarted(&rollout, "sent", &restart).await?;
    for host in &rollout.hosts {
        let name = host.name();
        let node = rollout.world.node(name).await?.context("no Node")?;
        ensure!(is_cordoned(&node) == (name == "persons"), "the cordon of {name} is not as a user left it");
        ensure!(rollout.nodes.of(name).len() == 1, "Nodes of {name}: {:?}", rollout.nodes.of(name));
        let boots = if ["restarted", "sent"].contains(&name) { 2 } else { 1 };
        ensure!(host.boots() == boots, "{name}: {} boots", host.boots());
    }
    Ok(())
}

/// Makes the host request a restart by itself, as after an update of Windows. Returns the operation at which the operator was killed.
async fn killed_at_restart(rollout: &mut Rollout, name: &str) -> Result<String> {
    let host = rollout.host(name)?;
    let asks = async {
        let pending = json!({"bootId": host.boots().to_string(), "why": "an update was installed"});
        std::fs::write(host.drive_c().join("k/wicd/reboot.json"), pending.to_string())?;
        rollout.world.edit_node(name, json!({"metadata": {"annotations": {key::REBOOT_REQUIRED: ""}}})).await
    };
    let at = kill_at(&rollout.world, name, "Reboot", asks).await?;
    ensure!(at.spec.grant.as_ref().is_some_and(|g| g.type_ == GrantType::Reboot), "{:?}", at.spec.grant);
    rollout.world.new_operator().await?;
    Ok(operation_of(&at)?.1)
}

async fn until_restarted(rollout: &Rollout, name: &str, operation: &str) -> Result<()> {
    rollout.world.until_event(name, "Rebooted").await?;
    let done = |i: &WindowsInstance| status(i).operation.is_none();
    let now = status(&rollout.world.until_instance(name, "is done", done).await?);
    ensure!(now.last_operation.as_deref() == Some(operation) && now.failures.is_none(), "{now:?}");
    ensure!(now.current_version.as_ref() == Some(&rollout.to), "{now:?}");
    rollout
        .world
        .eventually("the request was deleted", || async {
            let node = rollout.world.node(name).await.ok().flatten();
            node.is_some_and(|n| !n.annotations().contains_key(key::REBOOT_REQUIRED) && !is_cordoned_by_us(&n))
        })
        .await
}

/// Returns values that a disturbance would change: the Node's UID, the time since which it is Ready, and the UIDs of its pods. Fails if the node is
/// disturbed now: not Ready, cordoned, or with a pod that is being deleted.
async fn traces(world: &World, name: &str) -> Result<(Option<String>, Option<String>, Vec<Option<String>>)> {
    let node = world.node(name).await?.context("no Node")?;
    let conditions = node.status.clone().and_then(|s| s.conditions).unwrap_or_default();
    let ready = conditions.iter().find(|c| c.type_ == "Ready" && c.status == "True").context("it is not Ready")?;
    let since = ready.last_transition_time.as_ref().map(|t| t.0.to_string());
    ensure!(!is_cordoned(&node), "{name} is cordoned");
    let on_it = kube::api::ListParams::default().fields(&format!("spec.nodeName={name}"));
    let all = pods(world).list(&on_it).await?.items;
    ensure!(all.iter().all(|p| p.metadata.deletion_timestamp.is_none()), "pods of {name} were deleted");
    Ok((node.uid(), since, all.iter().map(ResourceExt::uid).collect()))
}

#[tokio::test(flavor = "multi_thread")]
async fn people_and_sleepers_interfere() -> Result<()> {
    let mut rollout = Rollout::new(&["adopted", "restored", "slept"], &["uncordoned"]).await?;
    for name in ["adopted", "restored", "uncordoned"] {
        release(&rollout.world, name).await?;
    }
    tokio::try_join!(
        a_node_that_a_client_uncordons_is_cordoned_again(&rollout),
        status_is_corrected_from_the_host(&rollout)
    )?;
    a_suspended_leader_changes_nothing_when_it_resumes(&mut rollout).await
}

/// Checks a drain during which a client uncordons the node and a pod starts on it.
async fn a_node_that_a_client_uncordons_is_cordoned_again(rollout: &Rollout) -> Result<()> {
    let (world, name) = (&rollout.world, "uncordoned");
    let at = world.until_instance(name, "is drained", |i| drain_start(&status(i)).is_some()).await?;
    let (_, operation) = operation_of(&at)?;
    world.edit_node(name, json!({"spec": {"unschedulable": false}})).await?;
    pod(world, "late", name, &[]).await?;
    let note = world.until_event(name, "ExternalUncordon").await?;
    ensure!(note.contains("cordons it again"), "{note}");
    world
        .eventually("the operator has cordoned it again", || async {
            let node = world.node(name).await.ok().flatten();
            node.is_some_and(|n| is_cordoned(&n) && is_cordoned_by_us(&n))
        })
        .await?;
    world
        .eventually("the late pod is gone", || async {
            matches!(pods(world).get_opt("late-uncordoned").await, Ok(None))
        })
        .await?;
    let still = status(&world.instance(name).await?.context("no instance")?);
    ensure!(drain_start(&still) == drain_start(&status(&at)), "the drain restarted: {still:?}");
    free(world, name).await?;
    rollout.until_changed(name, Some(&operation)).await?;
    ensure!(!is_cordoned(&world.node(name).await?.context("no Node")?), "it stayed cordoned");
    Ok(())
}

/// Checks a status that is lost, or older than the host: the operator corrects it by what the host reports, and does not disturb the node.
async fn status_is_corrected_from_the_host(rollout: &Rollout) -> Result<()> {
    let world = &rollout.world;
    for name in ["adopted", "restored"] {
        rollout.until_changed(name, None).await?;
        pod(world, "calm", name, &[]).await?;
    }

    // The instance is deleted by force, without its finalizer and without a drain.
    let host = rollout.host("adopted")?;
    let (before, processes) = (traces(world, "adopted").await?, host.stats().processes);
    let first = world.instance("adopted").await?.context("no instance")?;
    let instances: Api<WindowsInstance> = Api::all(world.client.clone());
    let unguarded = json!({"metadata": {"finalizers": null}});
    instances.patch("adopted", &PatchParams::default(), &Patch::Merge(unguarded)).await?;
    instances.delete("adopted", &DeleteParams::default()).await?;
    world.until_instance("adopted", "was created again", |i| i.uid() != first.uid()).await?;
    let again = status(&world.until_joined("adopted").await?);
    ensure!(again.current_version.as_ref() == Some(&rollout.to), "{again:?}");
    ensure!(traces(world, "adopted").await? == before, "the node was disturbed");
    let programs = host.stats().processes - processes;
    ensure!(programs <= 2, "{programs} programs were run on a host that needed no change");

    // The status is older than the host, as after a restore of etcd.
    let host = rollout.host("restored")?;
    let (before, processes) = (traces(world, "restored").await?, host.stats().processes);
    let last = status(&world.instance("restored").await?.context("no instance")?).last_operation;
    edit_status(world, "restored", json!({"currentVersion": rollout.from})).await?;
    let note = world.until_event("restored", "VersionCorrected").await?;
    ensure!(note.contains(&short(&rollout.from)) && note.contains(&short(&rollout.to)), "{note}");
    let right = |i: &WindowsInstance| {
        let status = status(i);
        status.current_version.as_ref() == Some(&rollout.to) && status.operation.is_none() && i.open_grant().is_none()
    };
    let now = status(&world.until_instance("restored", "is right again", right).await?);
    ensure!(now.last_operation == last, "an operation was run: {now:?}");
    ensure!(traces(world, "restored").await? == before, "the node was disturbed");
    ensure!(host.stats().processes == processes, "programs were run on the host");
    Ok(())
}

/// Suspends the leader while it works on a host. Another operator takes over and finishes the work, and the first one exits when it resumes.
async fn a_suspended_leader_changes_nothing_when_it_resumes(rollout: &mut Rollout) -> Result<()> {
    let next = Operator::start(&rollout.world.control_plane, &rollout.world.options)?;
    release(&rollout.world, "slept").await?;
    let works = |i: &WindowsInstance| status(i).operation.is_some_and(|o| o.step == Step::Configure);
    let at = rollout.world.until_instance("slept", "is being configured", works).await?;
    rollout.world.operator.signal("STOP")?;
    next.leads().await?;
    let mut sleeper = std::mem::replace(&mut rollout.world.operator, next);
    let (_, operation) = operation_of(&at)?;
    rollout.until_changed("slept", Some(&operation)).await?;
    let changed = status(&rollout.world.instance("slept").await?.context("no instance")?);
    sleeper.signal("CONT")?;
    let code = ended(&mut sleeper, crate::fleet::LIMIT).await?;
    ensure!(code.is_some_and(|c| c != 0), "it ended with {code:?}");
    ensure!(sleeper.log().contains("so that two operators never act at once"), "{}", sleeper.log());
    rollout.world.operator.check()?;

    // The host has recorded the epoch of the new leader.
    let host = rollout.host("slept")?;
    let known = std::fs::read_to_string(host.drive_c().join("k/wicd/epoch"))?;
    let known = known.split_whitespace().next().unwrap_or_default();
    ensure!(known == epoch(&lease(&rollout.world).await?).to_string(), "the host has recorded the epoch {known}");
    let now = status(&rollout.world.instance("slept").await?.context("no instance")?);
    ensure!(now.last_operation == changed.last_operation && now.current_version == changed.current_version, "{now:?}");
    ensure!(
        host.boots() == 1 && rollout.nodes.of("slept").len() == 1,
        "{} boots, Nodes {:?}",
        host.boots(),
        rollout.nodes.of("slept")
    );
    uncordoned_node(&rollout.world, "slept").await?;
    Ok(())
}
