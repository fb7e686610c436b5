//! Number of API writes for a host, by the operator's own metric.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use testbed::sim::{SimHost, SimOptions};

use crate::fleet::{World, is_ready, spec_with};

const POOL: &str = "factory";
const HOSTS: u32 = 20;
/// Maximum number of writes for a host that joins, with its share of common writes. Excludes writes of the pool's status, whose number depends on
/// how long the hosts take.
const JOIN: u32 = 13;
/// Maximum number of writes of instances, without their statuses, for all hosts that join. Ten hosts join at once, and their instances are
/// created with their grants. A few hosts may be granted twice.
const INSTANCES: u32 = 35;
/// Maximum number of writes for a host that is changed.
const CHANGE: u32 = 9;

/// Returns the numbers of writes until now, by resource, without the Lease and the statuses of pools.
async fn writes(world: &World) -> Result<BTreeMap<String, u32>> {
    let text = world.operator.get("/metrics").await?;
    let samples = text
        .lines()
        .filter_map(|line| line.strip_prefix("windows_node_pool_api_writes_total{resource=\""))
        .filter(|sample| !sample.starts_with("windowsnodepools/status"));
    samples
        .map(|sample| {
            let (resource, count) = sample.split_once("\"} ").context("the sample has another form")?;
            Ok((resource.to_owned(), count.parse()?))
        })
        .collect()
}

/// Checks that at most `each` writes per host were made since `before`, and returns the writes until now.
async fn at_most(
    world: &World,
    what: &str,
    each: u32,
    before: &BTreeMap<String, u32>,
) -> Result<BTreeMap<String, u32>> {
    let after = writes(world).await?;
    let grown = |(resource, count): (&String, &u32)| (resource.clone(), count - before.get(resource).unwrap_or(&0));
    let new: BTreeMap<String, u32> = after.iter().map(grown).filter(|(_, count)| *count > 0).collect();
    let all: u32 = new.values().sum();
    println!("{what}: {all} writes for {HOSTS} hosts: {new:?}");
    // At least Nodes and instances are written: a lower count would be a fault of the count.
    ensure!(all >= 2 * HOSTS, "{what}: only {all} writes are counted: {new:?}");
    ensure!(all <= each * HOSTS, "{what}: {all} writes for {HOSTS} hosts, and {each} for each are allowed: {new:?}");
    Ok(after)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_joins_or_is_changed_stays_within_its_number_of_writes() -> Result<()> {
    // Steps are stored only if they last, which varies on a busy machine: this setting stores none.
    let world = World::new(SimOptions::default(), &["--show-step-after", "10m"]).await?;
    let hosts = world.hosts("win", HOSTS as usize).await?;
    let pool = |hosts: &[SimHost], pods: i32| {
        let template = json!({"spec": {"kubelet": {"maxPods": pods}}});
        spec_with(hosts, json!({"template": template, "rollout": {"maxUnavailable": "20%"}}))
    };
    let nothing = writes(&world).await?;
    world.join(POOL, &pool(&hosts, 110)).await?;
    let joined = at_most(&world, "join", JOIN, &nothing).await?;
    let instances = joined.get("windowsinstances").context("no instance is counted")?;
    ensure!(*instances <= INSTANCES, "{instances} writes of instances for {HOSTS} hosts");

    let version = world.pool(POOL).await?.status.context("no status")?.rollout.context("no version")?.to_version;
    world.apply(POOL, &pool(&hosts, 100)).await?;
    world
        .until(POOL, "all follow the change", |p| {
            is_ready(p)
                && p.status.as_ref().is_some_and(|s| {
                    s.rollout.as_ref().is_some_and(|r| r.to_version != version)
                        && [s.up_to_date_nodes, s.ready_nodes] == [HOSTS.cast_signed(); 2]
                })
        })
        .await?;
    at_most(&world, "change", CHANGE, &joined).await?;
    Ok(())
}
