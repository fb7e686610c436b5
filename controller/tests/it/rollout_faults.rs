//! Changes that fail: by a broken payload, by budgets that block drains, and by outages of the API server, of connections and of disks.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, conditions, conditions::kind, names::key,
    services_version::short,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testbed::{
    payload::{Content, Entry},
    sim::{BROKEN, Fault, HostOptions, SimHost, SimOptions, Stats},
};

use crate::{
    fleet::{World, entries, has, is_cordoned, is_cordoned_by_us, pool_status, spec_with, status},
    removal::{budget, delete_budget, is_not_evicted, pod},
    rollout::{Watcher, uncordoned_node, until_updated, with_downloads},
};

/// Pool whose rollout changes one node, and the others after a pause.
struct Trial {
    name: &'static str,
    action: &'static str,
    hosts: Vec<SimHost>,
}

impl Trial {
    async fn new(world: &World, name: &'static str, action: &'static str) -> Result<Self> {
        let trial = Self { name, action, hosts: world.hosts(name, 4).await? };
        world.join(name, &trial.spec(3600)).await?;
        Ok(trial)
    }

    fn spec(&self, drain_timeout: i32) -> WindowsNodePoolSpec {
        let rollout = json!({
            "maxUnavailable": 3,
            "steps": [{"nodes": 1, "pauseSeconds": 1}],
            "onFailure": self.action,
        });
        spec_with(&self.hosts, json!({"rollout": rollout, "drain": {"timeoutSeconds": drain_timeout}}))
    }

    fn stats(&self) -> BTreeMap<String, Stats> {
        self.hosts.iter().map(|h| (h.name().to_string(), h.stats())).collect()
    }

    fn host(&self, name: &str) -> Result<&SimHost> {
        self.hosts.iter().find(|h| h.name() == name).context("no such host")
    }

    /// Returns the desired version of the pool.
    async fn version(&self, world: &World) -> Result<String> {
        pool_status(&world.pool(self.name).await?).desired_version.context("the pool has no version")
    }
}

/// Returns the bytes of `kubelet.exe` on a host.
fn kubelet_of(host: &SimHost) -> Result<Vec<u8>> {
    Ok(std::fs::read(host.drive_c().join("k/kubelet.exe"))?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_payload_reaches_one_node_of_each_pool() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &["--register-timeout", "40s"]).await?;
    let trials = {
        let (back, stay) =
            tokio::try_join!(Trial::new(&world, "back", "Rollback"), Trial::new(&world, "stay", "Pause"))?;
        [back, stay]
    };
    let good = trials[0].version(&world).await?;
    let before: BTreeMap<_, _> = trials.iter().flat_map(Trial::stats).collect();

    world.give("broken", &entries(&[BROKEN, b" kubelet"].concat()))?;
    world.restart().await?;
    let mut canaries = Vec::new();
    for trial in &trials {
        canaries.push(the_first_node_goes_back(&world, trial, &good).await?);
    }
    let after: BTreeMap<_, _> = trials.iter().flat_map(Trial::stats).collect();
    for (name, stats) in &after {
        let touched = before.get(name) != Some(stats);
        ensure!(touched == canaries.contains(name), "{name}: {:?} became {stats:?}", before.get(name));
    }

    // Neither a new operator nor a reconcile of the pool retries the version.
    world.restart().await?;
    for trial in &trials {
        world.apply(trial.name, &trial.spec(1800)).await?;
        world
            .until(trial.name, "it was reconciled", |p| pool_status(p).observed_generation == p.metadata.generation)
            .await?;
        is_stalled(&world, trial).await?;
        for host in &trial.hosts {
            let instance = world.instance(host.name()).await?.context("no instance")?;
            let operation = status(&instance).operation;
            let used = status(&instance).last_operation;
            let grant = instance.spec.grant.filter(|g| used.as_ref() != Some(&g.id));
            ensure!(operation.is_none() && grant.is_none(), "{}: {operation:?} {grant:?}", host.name());
        }
    }
    let again: BTreeMap<_, _> = trials.iter().flat_map(Trial::stats).collect();
    ensure!(again == after, "hosts were touched: {again:?}, {after:?}");

    world.give("corrected", &entries(b"kubelet 2"))?;
    world.restart().await?;
    for trial in &trials {
        until_updated(&world, trial.name).await?;
        let pool = world.pool(trial.name).await?;
        let conditions = &pool_status(&pool).conditions;
        ensure!(has(conditions, kind::DEGRADED, "False", "AsExpected"), "{conditions:?}");
        ensure!(conditions::find(conditions, kind::STALLED).is_none(), "{conditions:?}");
        for host in &trial.hosts {
            ensure!(kubelet_of(host)? == b"kubelet 2", "{} was not updated", host.name());
            uncordoned_node(&world, host.name()).await?;
        }
    }
    Ok(())
}

/// Checks that one node has tried the version and is as before, and that the pool reports it. Returns the node's name.
async fn the_first_node_goes_back(world: &World, trial: &Trial, good: &str) -> Result<String> {
    let gave_up = |p: &WindowsNodePool| {
        let status = pool_status(p);
        status.failed_node_names.len() == 1 && status.updating_nodes == 0
    };
    world.until(trial.name, "one node gave up", gave_up).await?;
    let pool = world.pool(trial.name).await?;
    let canary = pool_status(&pool).failed_node_names.remove(0);
    let bad = pool_status(&pool).rollout.context("no rollout")?.to_version;
    ensure!(bad != good, "the broken payload has the same version: {good}");
    // After a rollback of the whole pool, the node follows the version of its pool again.
    let reason = if trial.action == "Rollback" { "Succeeded" } else { "UpdateFailed" };
    let instance = world
        .until_instance(&canary, "is as before", |i| {
            let status = status(i);
            status.operation.is_none()
                && status.current_version.as_deref() == Some(good)
                && status.failed_version.as_ref() == Some(&bad)
                && has(&status.conditions, kind::READY, "True", reason)
        })
        .await?;
    let up_to_date = conditions::find(&status(&instance).conditions, kind::UP_TO_DATE).cloned();
    ensure!(up_to_date.is_some(), "the instance does not report whether the node follows the version of its pool");
    world.until_event(&canary, "RollingBack").await?;
    world.until_event(&canary, "RolledBack").await?;
    ensure!(kubelet_of(trial.host(&canary)?)? == b"kubelet", "{canary} has not got its kubelet back");
    let node = uncordoned_node(world, &canary).await?;
    let version = node.annotations().get(key::VERSION);
    ensure!(version.map(String::as_str) == Some(good), "{canary} says that it follows {version:?}");
    is_stalled(world, trial).await?;
    Ok(canary)
}

/// Waits until the pool reports that a user has to act, and how.
async fn is_stalled(world: &World, trial: &Trial) -> Result<()> {
    let reason = "FailureLimitReached";
    world
        .until(trial.name, "it is stalled", |p| {
            let conditions = pool_status(p).conditions;
            has(&conditions, kind::STALLED, "True", reason)
                && has(&conditions, kind::READY, "False", reason)
                && conditions::is_true(&conditions, kind::DEGRADED)
        })
        .await?;
    let status = pool_status(&world.pool(trial.name).await?);
    let rollout = status.rollout.context("no rollout")?;
    ensure!(rollout.rolled_back == (trial.action == "Rollback"), "{rollout:?}");
    let message = conditions::find(&status.conditions, kind::STALLED).context("not stalled")?.message.clone();
    // A version that was rolled back in the whole pool is not retried: only another version helps.
    let todo = if rollout.rolled_back { "Correct the template" } else { key::RETRY };
    for part in [&*short(&rollout.to_version), "Correct the template", todo] {
        ensure!(message.contains(part), "the condition Stalled does not contain {part:?}: {message}");
    }
    Ok(())
}

/// Pool of one host with a change that needs a drain, which a budget blocks.
struct Blocked {
    name: &'static str,
    host: SimHost,
    drain: Value,
}

impl Blocked {
    async fn new(world: &World, name: &'static str, drain: Value) -> Result<Self> {
        let host = world.sim.host(HostOptions::named(name)).await?;
        let blocked = Self { name, host, drain };
        world.join(name, &blocked.spec(3)).await?;
        pod(world, "cart", name, &[("app", name)]).await?;
        budget(world, &blocked.budget(), name).await?;
        world.apply(name, &blocked.spec(6)).await?;
        Ok(blocked)
    }

    fn spec(&self, downloads: i32) -> WindowsNodePoolSpec {
        with_downloads(std::slice::from_ref(&self.host), downloads, &json!({"drain": self.drain}))
    }

    fn pod(&self) -> String {
        format!("cart-{}", self.name)
    }

    fn budget(&self) -> String {
        format!("{}-budget", self.name)
    }

    fn names_both(&self, text: &str) -> bool {
        text.contains(&format!("default/{}", self.pod())) && text.contains(&self.budget())
    }

    /// Deletes the budget, as a user may, and waits until the change is complete.
    async fn goes_through_without_the_budget(&self, world: &World) -> Result<()> {
        delete_budget(world, &self.budget()).await?;
        self.is_through(world).await
    }

    async fn is_through(&self, world: &World) -> Result<()> {
        until_updated(world, self.name).await?;
        uncordoned_node(world, self.name).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drains_respect_disruption_budgets() -> Result<()> {
    let termination = Duration::from_millis(500);
    let world = World::new(SimOptions { termination, ..SimOptions::default() }, &[]).await?;
    tokio::try_join!(
        a_drain_with_force_deletes_pods_with_a_grace_period(&world),
        a_drain_waits_for_its_budget(&world),
        a_drain_is_aborted_and_retried(&world),
        a_drain_is_given_up_on_hold_and_in_a_pause(&world),
        containers_are_waited_for(&world),
        a_drain_is_given_up_when_the_change_is_taken_back(&world),
    )?;
    Ok(())
}

/// Waits until the operator has given up the drain, and checks that the node is not cordoned and its pod was not evicted.
async fn is_uncordoned(world: &World, blocked: &Blocked) -> Result<()> {
    let given_up = |i: &WindowsInstance| {
        let status = status(i);
        let is_ready = |reason| has(&status.conditions, kind::READY, "True", reason);
        status.operation.is_none() && (is_ready("Outdated") || is_ready("Succeeded"))
    };
    world.until_instance(blocked.name, "the drain is given up", given_up).await?;
    uncordoned_node(world, blocked.name).await?;
    is_not_evicted(world, &blocked.pod()).await
}

async fn is_blocked(world: &World, blocked: &Blocked) -> Result<String> {
    let instance = world
        .until_instance(blocked.name, "is blocked", |i| {
            let drain = status(i).operation.and_then(|o| o.drain);
            drain.is_some_and(|d| d.blockers.iter().any(|b| blocked.names_both(b)))
        })
        .await?;
    status(&instance).current_version.context("no version")
}

/// Checks that the operator does nothing on a host until kubelet reports that the containers of its pod have ended, which may take longer than
/// the grace period.
async fn containers_are_waited_for(world: &World) -> Result<()> {
    let host = world.sim.host(HostOptions::named("linger")).await?;
    let pool = |downloads: i32| {
        let template = json!({"spec": {"containerd": {"maxConcurrentDownloads": downloads}}});
        spec_with(std::slice::from_ref(&host), json!({"template": template}))
    };
    world.join("linger", &pool(3)).await?;
    pod(world, "cart", "linger", &[]).await?;
    host.fault(Fault::PodsLinger);
    world.apply("linger", &pool(6)).await?;
    world.until_instance("linger", "is drained", |i| status(i).operation.is_some_and(|o| o.drain.is_some())).await?;
    let before = host.stats();
    let lingers = |b: &String| b.contains("default/cart-linger") && b.contains("still terminating");
    let instance = world
        .until_instance("linger", "says that the pod is past its grace period", |i| {
            status(i)
                .operation
                .and_then(|o| o.drain)
                .is_some_and(|d| d.remaining == 1 && d.blockers.iter().any(lingers))
        })
        .await?;
    let operation = status(&instance).operation.context("no operation")?;
    ensure!(operation.step == api::Step::Drain && !operation.applied, "{operation:?}");
    ensure!(host.stats() == before, "something was done on the host: {:?}, {before:?}", host.stats());
    host.mend();
    until_updated(world, "linger").await?;
    ensure!(host.stats() != before, "nothing was done on the host");
    Ok(())
}

async fn a_drain_is_given_up_when_the_change_is_taken_back(world: &World) -> Result<()> {
    let blocked = Blocked::new(world, "undo", json!({})).await?;
    let before = is_blocked(world, &blocked).await?;
    world.apply("undo", &blocked.spec(3)).await?;
    is_uncordoned(world, &blocked).await?;
    blocked.goes_through_without_the_budget(world).await?;
    let instance = world.instance("undo").await?.context("no instance")?;
    let status = status(&instance);
    ensure!(status.current_version.as_ref() == Some(&before), "{status:?}");
    ensure!(status.previous_version.is_none(), "it was changed, and changed back: {status:?}");
    Ok(())
}

/// Puts the node on hold, and pauses the pool.
async fn a_drain_is_given_up_on_hold_and_in_a_pause(world: &World) -> Result<()> {
    let blocked = Blocked::new(world, "hold", json!({})).await?;
    is_blocked(world, &blocked).await?;
    world.edit_node("hold", json!({"metadata": {"annotations": {key::HOLD: "true"}}})).await?;
    is_uncordoned(world, &blocked).await?;
    world.edit_node("hold", json!({"metadata": {"annotations": {key::HOLD: null}}})).await?;
    is_blocked(world, &blocked).await?;

    let mut paused = blocked.spec(6);
    paused.rollout = Some(serde_json::from_value(json!({"paused": true}))?);
    world.apply("hold", &paused).await?;
    is_uncordoned(world, &blocked).await?;
    world.apply("hold", &blocked.spec(6)).await?;
    is_blocked(world, &blocked).await?;
    blocked.goes_through_without_the_budget(world).await
}

async fn a_drain_waits_for_its_budget(world: &World) -> Result<()> {
    let blocked = Blocked::new(world, "wait", json!({"timeoutSeconds": 2, "onTimeout": "Wait"})).await?;
    let instance = world
        .until_instance("wait", "says what blocks it", |i| {
            let drain = status(i).operation.and_then(|o| o.drain);
            drain.is_some_and(|d| d.remaining == 1 && d.blockers.iter().any(|b| blocked.names_both(b)))
                && conditions::find(&status(i).conditions, kind::RECONCILING)
                    .is_some_and(|c| blocked.names_both(&c.message))
        })
        .await?;
    let since = status(&instance).operation.and_then(|o| o.drain).context("no drain")?.start_time;
    let since = since.known().context("no time")?;
    let says = |p: &WindowsNodePool| {
        let conditions = pool_status(p).conditions;
        let degraded = conditions::find(&conditions, kind::DEGRADED).filter(|c| c.reason == "DrainBlocked");
        // Times of conditions have no fractions of seconds.
        degraded.is_some_and(|c| {
            blocked.names_both(&c.message) && c.last_transition_time.0.as_second() >= since.as_second()
        })
    };
    world.until("wait", "the pool reports what blocks the drain, and since when", says).await?;
    // After the timeout, the operator reports the blocked drain, and continues to wait.
    let overdue = |note: &str| blocked.names_both(note) && note.contains("drain.timeoutSeconds");
    world.until_note("wait", "DrainBlocked", overdue).await?;
    is_not_evicted(world, &blocked.pod()).await?;
    let node = world.node("wait").await?.context("no Node")?;
    ensure!(is_cordoned(&node) && is_cordoned_by_us(&node), "the operator no longer waits for the drain");
    blocked.goes_through_without_the_budget(world).await
}

async fn a_drain_is_aborted_and_retried(world: &World) -> Result<()> {
    let blocked = Blocked::new(world, "abort", json!({"timeoutSeconds": 2, "onTimeout": "Abort"})).await?;
    let failed = |n: i32| {
        move |i: &WindowsInstance| status(i).failures.is_some_and(|f| f.last_reason == "DrainBlocked" && f.count >= n)
    };
    for n in [1, 2] {
        let what = format!("has given up {n} times");
        let instance = world.until_instance("abort", &what, failed(n)).await?;
        let message = status(&instance).failures.context("no failures")?.last_message;
        ensure!(blocked.names_both(&message), "{message}");
        // Until the next attempt, the node takes pods.
        world
            .eventually("the cordon is lifted", || async {
                world.node("abort").await.is_ok_and(|n| n.is_some_and(|n| !is_cordoned(&n) && !is_cordoned_by_us(&n)))
            })
            .await?;
    }
    is_not_evicted(world, &blocked.pod()).await?;
    blocked.goes_through_without_the_budget(world).await
}

async fn a_drain_with_force_deletes_pods_with_a_grace_period(world: &World) -> Result<()> {
    let watcher = Watcher::of(&world.client, "force");
    let blocked = Blocked::new(world, "force", json!({"timeoutSeconds": 60, "onTimeout": "Force"})).await?;
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    let uid = pods.get(&blocked.pod()).await?.uid().context("the pod has no uid")?;
    blocked.is_through(world).await?;
    let note = world.until_event("force", "DrainForced").await?;
    ensure!(blocked.names_both(&note), "{note}");
    let seen = watcher.seen.lock().unwrap();
    let grace = seen.grace_periods.get(&uid).copied().flatten();
    ensure!(grace.is_some_and(|g| g >= 1), "the pod was killed: {:?}", seen.grace_periods);
    Ok(())
}

/// Duration of the API server's outage: longer than the operator keeps its Lease, and than the cluster waits for the Lease of a kubelet.
const OUTAGE: Duration = Duration::from_mins(1);

/// Size in bytes of a payload file whose upload takes long enough for a fault.
const PLUGIN: u64 = 4 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_survives_outages() -> Result<()> {
    const POOL: &str = "weather";
    let mut world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 8).await?;
    let spec = spec_with(&hosts, json!({"rollout": {"maxUnavailable": 2}}));
    world.join(POOL, &spec).await?;
    let watcher = Watcher::of(&world.client, POOL);

    // Every connection breaks once during the upload, and the disk of one host is full.
    let cut = Fault::CutAfterBytes { bytes: 1 << 20, once: true };
    for host in &hosts {
        host.fault(cut.clone());
    }
    let full = &hosts[3];
    full.fault(Fault::DiskFull);
    let plugin = Entry::with(r"C:\k\cni\host-local.exe", Content::Random { size: PLUGIN, seed: 1 });
    world.give("larger", &[entries(b"kubelet"), vec![plugin]].concat())?;
    world.restart().await?;
    world.until_note(full.name(), "StageFailed", |note| note.starts_with("DiskFull")).await?;
    world.until(POOL, "some are updated", |p| (2..6).contains(&updated(p))).await?;

    world.control_plane.stop_apiserver();
    tokio::time::sleep(OUTAGE).await;
    world.control_plane.restart_apiserver().await?;
    // Kubernetes would restart the operator, which exits if it could not renew its Lease.
    if world.operator.ended()?.is_some() {
        world.new_operator().await?;
    }
    world.until(POOL, "all but one are updated", |p| updated(p) == 7).await?;
    full.mend();
    full.fault(cut);
    until_updated(&world, POOL).await?;

    for host in &hosts {
        let size = std::fs::metadata(host.drive_c().join("k/cni/host-local.exe"))?.len();
        ensure!(size == PLUGIN, "{} has {size} bytes", host.name());
        let stats = host.stats();
        // Data that a host received before its connection broke are not sent again.
        ensure!(stats.bytes_received < 2 * PLUGIN, "{}: {stats:?}", host.name());
        uncordoned_node(&world, host.name()).await?;
    }
    let seen = watcher.seen.lock().unwrap();
    // After the outage, the cluster may report all nodes as not Ready; only the cordons are the operator's.
    ensure!(seen.most_cordoned <= 2, "{} Ready nodes were cordoned at once", seen.most_cordoned);
    ensure!(seen.ever_cordoned.len() == hosts.len(), "only {:?} were drained", seen.ever_cordoned);
    Ok(())
}

fn updated(pool: &WindowsNodePool) -> i32 {
    pool_status(pool).up_to_date_nodes
}
