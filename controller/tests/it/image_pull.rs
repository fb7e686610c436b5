//! Images that hosts pull in advance, after a join and before a change, a few hosts at a time, and that they release.

use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, ensure};
use api::{GrantType, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, conditions, conditions::kind, names::key};
use futures::StreamExt as _;
use kube::{
    Api, ResourceExt,
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};
use testbed::sim::{SimHost, SimOptions};

use crate::{
    fleet::{World, has, is_ready, pool_status, spec_with, status},
    rollout::until_updated,
};

const POOL: &str = "factory";
const A: &str = "r.example/team/a:1";
const B: &str = "r.example/team/b:1";

fn spec(hosts: &[SimHost], images: &[&str], more: Value) -> WindowsNodePoolSpec {
    let mut fields = json!({"provisioning": {"prePullImages": images}});
    if images.is_empty() {
        fields = json!({});
    }
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec_with(hosts, fields)
}

fn says(pool: &WindowsNodePool, is_so: &str, reason: &str, message: &str) -> bool {
    let status = pool_status(pool);
    let found = conditions::find(&status.conditions, kind::IMAGES_PULLED);
    status.observed_generation == pool.metadata.generation
        && has(&status.conditions, kind::IMAGES_PULLED, is_so, reason)
        && found.is_some_and(|c| c.message.contains(message))
}

fn pins(host: &SimHost) -> Vec<String> {
    host.windows().images_state().pinned.iter().cloned().collect()
}

/// Reports whether exactly these images are pinned on a host.
fn has_pins(host: &SimHost, images: &[&str]) -> bool {
    let records = host.windows().images_state().records.clone();
    let mut ids: Vec<String> = images.iter().filter_map(|image| records.get(*image).cloned()).collect();
    ids.sort();
    ids.len() == images.len() && pins(host) == ids
}

/// Record of hosts that pull at the same time, and of hosts whose update began before an attempt to pull.
#[derive(Default)]
struct Observed {
    now: std::collections::BTreeSet<String>,
    most: usize,
    unprepared: Vec<String>,
}

fn watch(world: &World) -> (Arc<Mutex<Observed>>, tokio::task::JoinHandle<()>) {
    let (all, observed) = (Api::<WindowsInstance>::all(world.client.clone()), Arc::<Mutex<Observed>>::default());
    let into = observed.clone();
    let task = tokio::spawn(async move {
        let mut instances =
            std::pin::pin!(watcher(all, watcher::Config::default()).default_backoff().applied_objects());
        while let Some(instance) = instances.next().await {
            let Ok(instance) = instance else { continue };
            let (name, status) = (instance.name_any(), status(&instance));
            let operation = status.operation.map(|o| o.type_);
            let mut observed = into.lock().unwrap();
            if operation == Some(GrantType::PullImages) {
                observed.now.insert(name);
                observed.most = observed.most.max(observed.now.len());
            } else {
                observed.now.remove(&name);
                if operation == Some(GrantType::Update) && status.pre_pulled.is_none() {
                    observed.unprepared.push(name);
                }
            }
        }
    });
    (observed, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_pull_after_their_join_and_release_what_is_no_longer_listed() -> Result<()> {
    let world = World::new(SimOptions::default(), &["--backoff-base", "200ms"]).await?;
    let hosts = world.hosts("pull", 3).await?;
    let (observed, task) = watch(&world);
    hosts[1].windows().images_state().refused.insert(A.into(), "manifest unknown\u{1b}[31m".into());
    world.join(POOL, &spec(&hosts, &[A, B], json!({}))).await?;

    // An image that cannot be pulled delays neither the other image nor other hosts.
    let failed = format!("2 of 3 hosts have all 2 images; 1 failed: {}: PullImages: ", hosts[1].name());
    world.until(POOL, "one failed", |p| says(p, "False", "PrePullFailed", &failed)).await?;
    world
        .until_instance(hosts[1].name(), "has the other image", |i| {
            let pulled = status(i).pre_pulled.unwrap_or_default();
            pulled.images == [B] && pulled.failures.is_some_and(|f| f.last_reason == "PrePullFailed")
        })
        .await?;
    let note = world.until_event(hosts[1].name(), "PrePullFailed").await?;
    ensure!(note.contains("manifest unknown") && !note.contains('\u{1b}'), "{note}");
    ensure!(is_ready(&world.pool(POOL).await?), "the nodes work without the image");

    hosts[1].windows().images_state().refused.clear();
    world.annotate(hosts[1].name(), key::RETRY, "now").await?;
    let complete = "3 of 3 hosts have all 2 images";
    world.until(POOL, "all have both", |p| says(p, "True", "AsExpected", complete)).await?;
    for host in &hosts {
        ensure!(has_pins(host, &[A, B]), "{}: {:?}", host.name(), pins(host));
    }
    ensure!(observed.lock().unwrap().most <= 2, "more than two pull at once");
    task.abort();

    world.apply(POOL, &spec(&hosts, &[B], json!({}))).await?;
    world.until(POOL, "one is released", |p| says(p, "True", "AsExpected", "3 of 3 hosts have the image")).await?;
    for host in &hosts {
        ensure!(has_pins(host, &[B]), "{}: {:?}", host.name(), pins(host));
        let state = host.windows().images_state();
        ensure!(state.records.contains_key(A), "an image that is released is not deleted");
        ensure!(state.pulls.iter().filter(|(image, _)| image == B).count() == 1, "{:?}", state.pulls);
    }

    // A host that leaves releases its images, and so does a pool that lists none.
    world.apply(POOL, &spec(&hosts[1..], &[B], json!({}))).await?;
    world.until_gone(&hosts[0]).await?;
    ensure!(pins(&hosts[0]).is_empty(), "{:?}", pins(&hosts[0]));
    world.apply(POOL, &spec(&hosts[1..], &[], json!({}))).await?;
    for host in &hosts[1..] {
        world.until_instance(host.name(), "has released all", |i| status(i).pre_pulled.is_none()).await?;
        ensure!(pins(host).is_empty(), "{:?}", pins(host));
    }
    world
        .until(POOL, "the condition goes", |p| {
            conditions::find(&pool_status(p).conditions, kind::IMAGES_PULLED).is_none()
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_waits_for_an_attempt_on_each_host_and_not_for_its_success() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("ahead", 3).await?;
    world.join(POOL, &spec(&hosts, &[], json!({}))).await?;
    hosts[2].windows().images_state().refused.insert(A.into(), "no space left".into());
    let (observed, task) = watch(&world);
    let template = json!({"template": {"spec": {"containerd": {"maxConcurrentDownloads": 5}}}});
    world.apply(POOL, &spec(&hosts, &[A], template)).await?;
    until_updated(&world, POOL).await?;
    let failed = format!("2 of 3 hosts have the image; 1 failed: {}", hosts[2].name());
    world.until(POOL, "one failed", |p| says(p, "False", "PrePullFailed", &failed)).await?;
    task.abort();
    let observed = observed.lock().unwrap();
    ensure!(observed.unprepared.is_empty(), "updated before an attempt: {:?}", observed.unprepared);
    ensure!(observed.most <= 2, "more than two pull at once");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_operator_continues_and_then_leaves_hosts_alone() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("again", 2).await?;
    for host in &hosts {
        host.windows().images_state().pull_time = std::time::Duration::from_secs(1);
    }
    world.join(POOL, &spec(&hosts, &[A, B], json!({}))).await?;
    world
        .eventually("one pulls", || async { hosts.iter().any(|host| host.windows().images_state().at_once > 0) })
        .await?;
    world.restart().await?;
    world.until(POOL, "all have both", |p| says(p, "True", "AsExpected", "2 of 2 hosts")).await?;
    for host in &hosts {
        ensure!(has_pins(host, &[A, B]), "{}: {:?}", host.name(), pins(host));
        let instance = world.instance(host.name()).await?.context("no instance")?;
        ensure!(status(&instance).operation.is_none());
    }
    // A new leader finds nothing to do: no host is contacted for its images.
    let processes = |host: &SimHost| host.stats().processes;
    let before: Vec<_> = hosts.iter().map(processes).collect();
    world.restart().await?;
    world.annotate(hosts[0].name(), key::RETRY, "again").await?;
    world.eventually("only the host that is asked again", || async { processes(&hosts[0]) > before[0] }).await?;
    ensure!(processes(&hosts[1]) == before[1], "a host with all images was contacted");
    Ok(())
}
