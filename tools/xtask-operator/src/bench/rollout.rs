//! Benchmark of the rollout of a kubelet change to the nodes of simulated hosts.

use std::{
    cell::{self, RefCell},
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use api::{
    IntOrPercent, KubeletSettings, NodeTemplate, Rollout, TemplateSpec, WindowsInstance, WindowsNodePool,
    WindowsNodePoolSpec,
    conditions::{find, kind},
};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher, watcher::Event},
};
use testbed::sim::SimOptions;

use super::{
    aims, load,
    process::Usage,
    report::{self, Cell, Field, round, share},
    tally::Tally,
    world::{API_WRITES, World, up_to_date, without_heartbeats},
};

/// Profiles, and time limit.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Profiles to run: numbers of hosts.
    #[arg(long, value_parser = PROFILES, default_value = PROFILES[0])]
    profile: Vec<String>,
    /// Another number of hosts, instead of the profiles.
    #[arg(long, conflicts_with = "profile", value_parser = clap::value_parser!(u32).range(1..))]
    hosts: Option<u32>,
    /// Time limit for the change to reach all nodes, in seconds.
    #[arg(long, default_value_t = 3600)]
    limit: u64,
}

const PROFILES: [&str; 4] = ["50", "500", "2000", "5000"];
/// `rollout.maxUnavailable` of the pools.
const MAX_UNAVAILABLE: IntOrPercent = IntOrPercent::Percent(5);
/// Time from a kubelet's start until its Node exists, as in `bench join`.
const BOOT: Duration = Duration::from_secs(5);
/// Time limit for hosts to join.
const JOIN: Duration = Duration::from_mins(30);
/// Metric of the bytes in etcd's write-ahead log. The size of etcd's database is not a measure: compaction reduces it.
const ETCD_BYTES: &str = "etcd_disk_wal_write_bytes_total";

/// Runs the profiles, one after the other, each in a cluster of its own.
pub(super) async fn run(args: &Args) -> Result<()> {
    let named = args.profile.iter().map(|name| name.parse::<u32>());
    let all = args.hosts.map_or_else(|| named.collect(), |hosts| Ok(vec![hosts]))?;
    let mut failed = Vec::new();
    for hosts in all {
        match measure(hosts, Duration::from_secs(args.limit)).await {
            Ok(fields) => report::add(&fields),
            Err(error) => {
                eprintln!("{hosts}: {error:#}");
                failed.push(hosts.to_string());
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("profiles failed: {}", failed.join(", ")) }
}

/// Returns the spec of a pool whose nodes take `max_pods` pods.
pub(super) fn spec(max_pods: i32) -> WindowsNodePoolSpec {
    let kubelet = KubeletSettings { max_pods: Some(max_pods), ..KubeletSettings::default() };
    let template = TemplateSpec { kubelet: Some(kubelet), ..TemplateSpec::default() };
    WindowsNodePoolSpec {
        template: Some(NodeTemplate { spec: Some(template), ..NodeTemplate::default() }),
        rollout: Some(Rollout { max_unavailable: Some(MAX_UNAVAILABLE), ..Rollout::default() }),
        ..WindowsNodePoolSpec::default()
    }
}

async fn measure(hosts: u32, limit: Duration) -> Result<Vec<Field>> {
    let mut world = World::start(hosts, 1, SimOptions { boot: BOOT, ..without_heartbeats() }, &[]).await?;
    world.join(&spec(110), JOIN).await?;
    let cap = world.pools().map(|hosts| Ok(MAX_UNAVAILABLE.of(u32::try_from(hosts)?))).sum::<Result<u32>>()?;

    let watched = Watched::default();
    let client = world.client.clone();
    let is_done = |pools: &[WindowsNodePool]| watched.listed.get() >= 2 && is_updated(pools, hosts);
    let measured = async {
        world.until(JOIN, kind::UP_TO_DATE, is_done).await.context("before the change")?;
        let (load, before) = (load(), Figures::of(&world).await?);
        let begun = watched.begin();
        world.apply(&spec(100)).await?;
        world.until(limit, kind::UP_TO_DATE, is_done).await?;
        let (seconds, end) = (begun.elapsed().as_secs_f64(), watched.now());
        anyhow::Ok((load, before, Figures::of(&world).await?, end, seconds))
    };
    let (load, before, after, end, seconds) = tokio::select! {
        measured = measured => measured?,
        () = watched.follow(&client) => bail!("the watches ended"),
    };
    let tally = watched.tally.into_inner();
    let granted = tally.granted();
    ensure!(
        u32::try_from(granted)? == hosts,
        "the pools report all nodes as updated, but {granted} of {hosts} hosts were granted an update"
    );

    let n = f64::from(hosts);
    let slots_used = tally.slots_used_ratio(cap);
    let (status_writes, disrupted) = (f64::from(tally.status_writes()) / n, tally.disrupted_seconds(end) / n);
    let mut fields = vec![
        ("hosts", hosts.into()),
        ("slots", cap.into()),
        ("seconds", round(seconds)),
        ("slots_used_ratio", slots_used.map_or(Cell::NONE, share)),
        ("status_writes_per_host", round(status_writes)),
        ("api_writes_per_host", round((after.api_writes - before.api_writes) / n)),
        ("etcd_bytes_per_host", ((after.etcd_bytes - before.etcd_bytes) / n).round().into()),
        ("disrupted_seconds_per_host", round(disrupted)),
        ("peak_rss_mib", round(after.usage.peak_rss_mib)),
        ("cpu_seconds", round(after.usage.cpu_seconds - before.usage.cpu_seconds)),
        ("control_plane_cpu_seconds", round(after.control_plane_seconds - before.control_plane_seconds)),
        ("load", load.into()),
    ];
    fields.extend(aims::judged(&aims::rollout(hosts), &fields));
    Ok(fields)
}

/// Figures that are read before and after a rollout.
struct Figures {
    usage: Usage,
    api_writes: f64,
    etcd_bytes: f64,
    control_plane_seconds: f64,
}

impl Figures {
    async fn of(world: &World) -> Result<Self> {
        Ok(Self {
            usage: Usage::of(world.operator.pid())?,
            api_writes: world.operator.metric(API_WRITES).await?,
            etcd_bytes: world.control_plane.etcd_metric(ETCD_BYTES).await?,
            control_plane_seconds: world.control_plane_seconds()?,
        })
    }
}

/// Changes of instances and Nodes, as watches deliver them.
struct Watched {
    started: Instant,
    /// Number of watches that have delivered all existing objects.
    listed: cell::Cell<u32>,
    tally: RefCell<Tally>,
}

impl Default for Watched {
    fn default() -> Self {
        Self { started: Instant::now(), listed: cell::Cell::default(), tally: RefCell::default() }
    }
}

impl Watched {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn begin(&self) -> Instant {
        let now = self.now();
        self.tally.borrow_mut().begin(now);
        self.started + now
    }

    /// Counts the changes of all instances and Nodes until dropped.
    async fn follow(&self, client: &Client) {
        let instances = self.watch(client, |tally, now, event: Event<WindowsInstance>| {
            if let Event::Apply(instance) | Event::InitApply(instance) = event {
                tally.instance(now, &instance);
            }
        });
        let nodes = self.watch(client, |tally, now, event: Event<Node>| match event {
            Event::Apply(node) | Event::InitApply(node) => tally.node(now, &node),
            Event::Delete(node) => tally.node_gone(now, &node.name_any()),
            Event::Init | Event::InitDone => {}
        });
        tokio::join!(instances, nodes);
    }

    async fn watch<K>(&self, client: &Client, count: impl Fn(&mut Tally, Duration, Event<K>))
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
    {
        let mut events = pin!(watcher(Api::all(client.clone()), watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::InitDone) => self.listed.set(self.listed.get() + 1),
                Ok(event) => count(&mut self.tally.borrow_mut(), self.now(), event),
                Err(error) => eprintln!("a watch broke, and some changes may not be counted: {error}"),
            }
        }
    }
}

/// Reports whether all pools have observed their current generation and report all nodes as up to date.
pub(super) fn is_updated(pools: &[WindowsNodePool], hosts: u32) -> bool {
    let says = |pool: &WindowsNodePool| {
        let updated = find(&pool.status.as_ref()?.conditions, kind::UPDATED)?;
        Some(updated.status == "True" && updated.observed_generation == pool.metadata.generation)
    };
    up_to_date(pools) == i64::from(hosts) && pools.iter().all(|pool| says(pool).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn pool(name: &str, generation: i64, up_to_date: i32, updated: &str, observed: i64) -> WindowsNodePool {
        from_value(json!({
            "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1",
            "kind": "WindowsNodePool",
            "metadata": {"name": name, "generation": generation},
            "spec": {"inventory": {"hosts": []}},
            "status": {"upToDateNodes": up_to_date, "conditions": [{
                "type": "Updated", "status": updated, "observedGeneration": observed, "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }))
        .unwrap()
    }

    #[test]
    fn pools_are_updated_when_all_report_it_for_their_current_generation() {
        let done = pool("a", 2, 3, "True", 2);
        for (other, expected) in [
            (pool("b", 1, 2, "True", 1), true),
            (pool("b", 1, 1, "True", 1), false),
            (pool("b", 1, 2, "False", 1), false),
            (pool("b", 2, 2, "True", 1), false),
        ] {
            assert_eq!(is_updated(&[done.clone(), other.clone()], 5), expected, "{:?}", other.status);
        }
        assert!(!is_updated(&[], 5));
    }
}
