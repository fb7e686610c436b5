//! Images that hosts pull in advance, a few hosts at a time, and that they release.

use anyhow::{Result, ensure};
use api::{GrantType, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, conditions, conditions::kind, names::key};
use serde_json::json;
use testbed::sim::{SimHost, SimOptions};

use crate::fleet::{AtOnce, World, has, is_ready, pool_status, spec_with, status};

const POOL: &str = "factory";
const A: &str = "r.example/team/a:1";
const B: &str = "r.example/team/b:1";

fn spec(hosts: &[SimHost], images: &[&str]) -> WindowsNodePoolSpec {
    let fields = json!({"provisioning": {"prePullImages": images}});
    spec_with(hosts, if images.is_empty() { json!({}) } else { fields })
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

#[tokio::test(flavor = "multi_thread")]
async fn hosts_pull_after_their_join_and_release_what_is_no_longer_listed() -> Result<()> {
    let world = World::new(SimOptions::default(), &["--backoff-base", "200ms"]).await?;
    let hosts = world.hosts("pull", 3).await?;
    let pulls = |i: &WindowsInstance| status(i).operation.is_some_and(|o| o.type_ == GrantType::PullImages);
    let pulling = AtOnce::watch(&world.client, pulls);
    hosts[1].windows().images_state().refused.insert(A.into(), "manifest unknown\u{1b}[31m".into());
    world.join(POOL, &spec(&hosts, &[A, B])).await?;

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
    ensure!(is_ready(&world.pool(POOL).await?), "a missing image made the pool not Ready");

    hosts[1].windows().images_state().refused.clear();
    world.annotate(hosts[1].name(), key::RETRY, "now").await?;
    let complete = "3 of 3 hosts have all 2 images";
    world.until(POOL, "all have both", |p| says(p, "True", "AsExpected", complete)).await?;
    for host in &hosts {
        ensure!(has_pins(host, &[A, B]), "{}: {:?}", host.name(), pins(host));
    }
    ensure!(pulling.lock().unwrap().most <= 2, "more than two pull at once");

    world.apply(POOL, &spec(&hosts, &[B])).await?;
    world.until(POOL, "one is released", |p| says(p, "True", "AsExpected", "3 of 3 hosts have the image")).await?;
    for host in &hosts {
        ensure!(has_pins(host, &[B]), "{}: {:?}", host.name(), pins(host));
        let state = host.windows().images_state();
        ensure!(state.records.contains_key(A), "the released image was deleted");
        ensure!(state.pulls.iter().filter(|(image, _)| image == B).count() == 1, "{:?}", state.pulls);
    }

    // A host that leaves releases its images, and so does a pool that lists none.
    world.apply(POOL, &spec(&hosts[1..], &[B])).await?;
    world.until_gone(&hosts[0]).await?;
    ensure!(pins(&hosts[0]).is_empty(), "{:?}", pins(&hosts[0]));
    world.apply(POOL, &spec(&hosts[1..], &[])).await?;
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
