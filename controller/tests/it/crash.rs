//! Operator processes that are killed, stopped or run twice: the operator always converges. Crashes at each single write are tested
//! in `instance/executor_tests.rs`.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use api::WindowsInstance;
use futures::StreamExt as _;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, ResourceExt,
    api::DeleteParams,
    runtime::{WatchStreamExt as _, watcher},
};
use testbed::{
    Operator,
    deployment::NAMESPACE,
    sim::{Fault, HostOptions, SimHost, SimOptions},
};

use crate::{
    fleet::{World, is_cordoned, is_cordoned_by_us, nodes, spec, status},
    removal::pod,
};

/// Returns options with which programs on hosts take long enough for a kill to land within a step.
pub(crate) fn slow() -> SimOptions {
    SimOptions {
        process_start: Duration::from_millis(300),
        termination: Duration::from_secs(1),
        ..SimOptions::default()
    }
}

/// Runs `act`, which makes the operator work on an instance, and kills the operator as soon as the instance is at the step. Returns the instance.
pub(crate) async fn kill_at(
    world: &World,
    name: &str,
    step: &str,
    act: impl Future<Output = Result<()>>,
) -> Result<WindowsInstance> {
    kill_when(world, name, step, |i| status(i).operation.is_some_and(|o| o.step == step.into()), act).await
}

/// Runs `act`, which makes the operator work on an instance, and kills the operator as soon as a condition holds for the instance. Returns the
/// instance.
pub(crate) async fn kill_when(
    world: &World,
    name: &str,
    what: &str,
    is_so: impl Fn(&WindowsInstance) -> bool,
    act: impl Future<Output = Result<()>>,
) -> Result<WindowsInstance> {
    let instances: Api<WindowsInstance> = Api::all(world.client.clone());
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(watcher(instances, config).default_backoff());
    while !matches!(events.next().await, Some(Ok(watcher::Event::InitDone))) {}
    act.await?;
    let watch = async {
        while let Some(event) = events.next().await {
            if let Ok(watcher::Event::Apply(instance)) = event
                && is_so(&instance)
            {
                world.operator.signal("KILL")?;
                return Ok(instance);
            }
        }
        bail!("the watch ended")
    };
    match tokio::time::timeout(crate::fleet::LIMIT, watch).await {
        Ok(seen) => seen,
        Err(_) => bail!("{name} never came to {what}\n{}\n{}", world.show().await, world.operator.log()),
    }
}

/// Collector of the UIDs that Nodes have had since its start, by name. Stops on drop.
pub(crate) struct Uids {
    seen: std::sync::Arc<std::sync::Mutex<BTreeMap<String, Vec<String>>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Uids {
    pub(crate) fn watch(world: &World) -> Self {
        let seen = std::sync::Arc::<std::sync::Mutex<BTreeMap<String, Vec<String>>>>::default();
        let (all, into) = (Api::<Node>::all(world.client.clone()), seen.clone());
        let task = tokio::spawn(async move {
            let mut nodes =
                std::pin::pin!(watcher(all, watcher::Config::default()).default_backoff().applied_objects());
            while let Some(node) = nodes.next().await {
                if let Ok(node) = node {
                    let mut seen = into.lock().unwrap();
                    let uids = seen.entry(node.name_any()).or_default();
                    if let Some(uid) = node.uid().filter(|uid| !uids.contains(uid)) {
                        uids.push(uid);
                    }
                }
            }
        });
        Self { seen, task }
    }

    pub(crate) fn of(&self, name: &str) -> Vec<String> {
        self.seen.lock().unwrap().get(name).cloned().unwrap_or_default()
    }
}

impl Drop for Uids {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn no_cordon_of_ours(world: &World) -> Result<()> {
    for node in nodes(&world.client).await? {
        ensure!(!is_cordoned_by_us(&node) && !is_cordoned(&node), "a cordon stayed on {}", node.name_any());
    }
    Ok(())
}

/// Kills the operator during an upload, and while the host restarts.
#[tokio::test(flavor = "multi_thread")]
async fn a_join_survives_a_killed_operator() -> Result<()> {
    let mut world = World::new(slow(), &[]).await?;
    let uids = Uids::watch(&world);
    for (step, faults, boots) in [("Upload", vec![], 1), ("Reboot", vec![Fault::NeedsReboot], 2)] {
        let name = format!("at-{}", step.to_lowercase());
        let host = world.sim.host(HostOptions { faults, ..HostOptions::named(&name) }).await?;
        let pool = spec(std::slice::from_ref(&host));
        let at = kill_at(&world, &name, step, world.apply(&name, &pool)).await?;
        ensure!(status(&at).current_version.is_none(), "the host had joined before {step}");
        world.new_operator().await?;
        world.until_joined(&name).await.with_context(|| format!("killed at {step}"))?;

        let joined = world.instance(&name).await?.context("no instance")?;
        ensure!(joined.uid() == at.uid(), "killed at {step}: the instance was recreated");
        ensure!(uids.of(&name).len() == 1, "killed at {step}: Nodes {:?}", uids.of(&name));
        ensure!(host.boots() == boots, "killed at {step}: {} boots", host.boots());
        no_cordon_of_ours(&world).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_survives_a_killed_operator() -> Result<()> {
    let mut world = World::new(slow(), &[]).await?;
    let hosts = world.hosts("win", 2).await?;
    world.join("factory", &spec(&hosts)).await?;
    let host = &hosts[0];
    pod(&world, "busy", host.name(), &[]).await?;
    let fewer = spec(&hosts[1..]);
    let at = kill_at(&world, host.name(), "Drain", world.apply("factory", &fewer)).await?;
    world.new_operator().await?;
    world.until_gone(host).await?;
    ensure!(host.boots() == 1 && at.is_leaving(), "the host was restarted, or does not leave");
    no_cordon_of_ours(&world).await
}

pub(crate) async fn lease(world: &World) -> Result<Lease> {
    Ok(Api::namespaced(world.client.clone(), NAMESPACE).get(api::names::LEASE).await?)
}

fn holder(lease: &Lease) -> Option<String> {
    lease.spec.as_ref().and_then(|s| s.holder_identity.clone()).filter(|h| !h.is_empty())
}

pub(crate) fn epoch(lease: &Lease) -> i32 {
    lease.spec.as_ref().and_then(|s| s.lease_transitions).unwrap_or(0)
}

/// Waits until the operator process has ended, and returns its exit code.
pub(crate) async fn ended(operator: &mut Operator, limit: Duration) -> Result<Option<i32>> {
    let wait = async {
        loop {
            if let Some(status) = operator.ended()? {
                return Ok::<_, anyhow::Error>(status.code());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let Ok(code) = tokio::time::timeout(limit, wait).await else {
        bail!("the operator still runs\n{}", operator.log())
    };
    code
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_stopped_releases_its_lease() -> Result<()> {
    // The Lease is short, so that the second operator soon takes over: it tries seven times in a Lease duration.
    let mut world = World::new(slow(), &["--lease-duration", "10s"]).await?;

    // A second operator stands by.
    let second = Operator::start(&world.control_plane, &world.options)?;
    world
        .eventually("the second operator stands by", || async {
            second.get("/readyz").await.is_ok_and(|t| t.contains("200 OK"))
        })
        .await?;
    ensure!(second.metric("windows_node_pool_leader").await? == 0.0, "both operators lead");

    // When the first operator is stopped during a join, it exits cleanly and releases the Lease.
    let host = world.sim.host(HostOptions::named("stopped")).await?;
    let before = lease(&world).await?;
    world.apply("stopped", &spec(std::slice::from_ref(&host))).await?;
    world.until_instance("stopped", "is on its way", |i| status(i).operation.is_some()).await?;
    world.operator.signal("TERM")?;
    let code = ended(&mut world.operator, Duration::from_secs(25)).await?;
    ensure!(code == Some(0), "the operator ended with {code:?}\n{}", world.operator.log());
    second.leads().await?;
    let after = lease(&world).await?;
    ensure!(holder(&after) != holder(&before) && epoch(&after) > epoch(&before), "{before:?} {after:?}");
    world.operator = second;
    world.until_joined("stopped").await?;
    ensure!(host.boots() == 1, "the host was restarted");

    epochs_go_up(&mut world, &host).await
}

/// Checks that a host refuses an operator with a lower epoch than it has seen, and that the epoch rises even if the Lease is deleted.
async fn epochs_go_up(world: &mut World, host: &SimHost) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), NAMESPACE);
    let before = epoch(&lease(world).await?);
    world.operator.signal("KILL")?;
    leases.delete(api::names::LEASE, &DeleteParams::default()).await?;
    world.new_operator().await?;
    let after = epoch(&lease(world).await?);
    ensure!(after > before, "{after} is not after {before}");

    let seen = host.drive_c().join("k/wicd/epoch");
    let mine = std::fs::read_to_string(&seen)?;
    std::fs::write(&seen, (i64::from(after) + 1000).to_string())?;
    world.empty(host.name()).await?;
    let message = world.until_failed(host.name(), "StaleEpoch").await?;
    ensure!(message.contains("has already sent requests"), "{message}");
    std::fs::write(&seen, mine)?;
    world.until_gone(host).await
}
