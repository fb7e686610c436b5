//! A list of hosts in Git becomes instances.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use api::{
    IntOrPercent, Inventory, Removal, Rollout, SecretRef, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec,
    names::key,
};
use futures::StreamExt as _;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher, watcher::Event},
};
use serde_json::json;
use testbed::{
    deployment::NAMESPACE,
    git::{Origin, Server},
};
use tokio::time::timeout;

use super::{
    aims, load,
    process::Usage,
    report::{Field, Report, round},
    world::{World, without_heartbeats},
};

/// The sizes, unless some are named.
#[derive(clap::Args)]
pub(super) struct Args {
    /// One JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// Hosts in the list. May be given several times.
    #[arg(long, default_values_t = [10, 1000, 5000])]
    hosts: Vec<u32>,
}

const POOL: &str = "bench";
const LIST: &str = "hosts.yaml";
/// How long anything may take.
const LIMIT: Duration = Duration::from_mins(5);
/// How long parsing is measured, at least.
const PARSING: Duration = Duration::from_secs(1);
const RECEIVED: &str = "windows_node_pool_git_received_bytes_total";

/// Runs the sizes, one after the other, each in a cluster of its own.
pub(super) async fn run(args: &Args) -> Result<()> {
    let mut report = Report::new(args.json);
    for hosts in &args.hosts {
        report.add(&Box::pin(measure(*hosts)).await.with_context(|| format!("{hosts} hosts"))?);
    }
    Ok(())
}

/// A list of so many hosts, on addresses of loopback without a listener. One of them may have another label.
fn list(hosts: u32, changed: Option<u32>) -> String {
    let line = |n: u32| {
        let label = if changed == Some(n) { "changed" } else { "first" };
        let (net, high, low) = (100 + n / 65536, n / 256 % 256, n % 256);
        format!("- name: win-{n}\n  address: 127.{net}.{high}.{low}\n  labels: {{example.com/batch: {label}}}\n")
    };
    (0..hosts).map(line).collect::<Vec<_>>().concat()
}

async fn measure(hosts: u32) -> Result<Vec<Field>> {
    let world = World::start(0, 1, without_heartbeats()).await?;
    let origin = Origin::new();
    origin.git(&["rm", "-q", LIST]);
    origin.commit("halls/README.md", "Hosts, one hall a file.\n", "Begin");
    let server = Server::new(origin.root());
    let metadata = json!({"name": "repository", "namespace": NAMESPACE});
    let data = json!({"ca.crt": server.authority.pem});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data});
    world.control_plane.apply_yaml(&secret.to_string()).await?;

    let instances: Api<WindowsInstance> = Api::all(world.client.clone());
    let mut events = watcher(instances, watcher::Config::default()).default_backoff().boxed();
    let first = list(hosts, None);
    let pool = WindowsNodePool::new(POOL, spec(&server));
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    pools.patch(POOL, &PatchParams::apply("bench").force(), &Patch::Apply(&pool)).await?;
    looked(&pools).await?;

    let load = load();
    origin.commit(&format!("halls/{LIST}"), &first, "All hosts");
    let begun = Instant::now();
    look(&pools, "1").await?;
    let mut seen = BTreeSet::new();
    until(&mut events, |instance| {
        seen.insert(instance.name_any());
        seen.len() == hosts as usize
    })
    .await?;
    let seconds = begun.elapsed().as_secs_f64();

    let before = world.operator.metric(RECEIVED).await?;
    origin.commit(&format!("halls/{LIST}"), list(hosts, Some(hosts / 2)), "One host");
    look(&pools, "2").await?;
    until(&mut events, |instance| instance.spec.host.labels.values().any(|label| label == "changed")).await?;
    let bytes = world.operator.metric(RECEIVED).await? - before;
    ensure!(bytes > 0.0, "nothing was fetched");
    let usage = Usage::of(world.operator.pid())?;
    let rate = parse_rate(&first, hosts)?;
    let mut fields = vec![
        ("hosts", hosts.into()),
        ("push_to_instances_seconds", round(seconds)),
        ("fetched_bytes_one_line_change", bytes.round().into()),
        ("parse_hosts_per_second", rate.round().into()),
        ("peak_rss_mib", round(usage.peak_rss_mib)),
        ("load", load.into()),
    ];
    fields.extend(aims::judged(&aims::inventory(hosts), &fields));
    Ok(fields)
}

/// A pool that begins no operation: the benchmark measures the creation of instances, not failing connections.
fn spec(server: &Server) -> WindowsNodePoolSpec {
    let git = api::GitSource {
        url: server.url(),
        path: Some("halls".into()),
        interval_seconds: Some(3600),
        secret_ref: Some(SecretRef { name: "repository".into() }),
        ..api::GitSource::default()
    };
    let removal = Removal { max_removals: Some(IntOrPercent::Int(1)) };
    WindowsNodePoolSpec {
        inventory: Inventory { git: Some(git), removal: Some(removal), ..Inventory::default() },
        rollout: Some(Rollout { paused: Some(true), ..Rollout::default() }),
        ..WindowsNodePoolSpec::default()
    }
}

/// Asks for a look, as a person does after a push.
async fn look(pools: &Api<WindowsNodePool>, value: &str) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {key::RECONCILE_REQUESTED: value}}});
    pools.patch(POOL, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Waits for the first look, which finds no host.
async fn looked(pools: &Api<WindowsNodePool>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let pool = pools.get(POOL).await?;
        let conditions = pool.status.map(|s| s.conditions).unwrap_or_default();
        let synced = api::conditions::find(&conditions, api::conditions::kind::INVENTORY_SYNCED);
        if synced.is_some_and(|c| c.reason == "InvalidInventory") {
            return Ok(());
        }
        ensure!(begun.elapsed() < LIMIT, "the repository was not fetched: {conditions:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

type Events = futures::stream::BoxStream<'static, watcher::Result<Event<WindowsInstance>>>;

async fn until(events: &mut Events, mut is_so: impl FnMut(&WindowsInstance) -> bool) -> Result<()> {
    let waiting = async {
        while let Some(event) = events.next().await {
            if let Ok(Event::Apply(instance) | Event::InitApply(instance)) = event
                && is_so(&instance)
            {
                return Ok(());
            }
        }
        bail!("the watch ended")
    };
    timeout(LIMIT, waiting).await.context("it took too long")?
}

/// Hosts of a file that are read and checked in a second, on one core.
fn parse_rate(text: &str, hosts: u32) -> Result<f64> {
    let files = [gitops::File { path: LIST.into(), bytes: text.as_bytes().to_vec() }];
    let (begun, mut read) = (Instant::now(), 0_u32);
    while begun.elapsed() < PARSING {
        let entries = gitops::hosts::read(&files).map_err(|f| anyhow::anyhow!("the list is wrong: {f:?}"))?;
        ensure!(entries.len() == hosts as usize, "{} of {hosts} hosts were read", entries.len());
        read += hosts;
    }
    Ok(f64::from(read) / begun.elapsed().as_secs_f64())
}
