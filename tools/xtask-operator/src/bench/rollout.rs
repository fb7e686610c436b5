//! Benchmark of the rollout of a kubelet change to the nodes of simulated hosts.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use api::{
    IntOrPercent, KubeletSettings, NodeTemplate, Rollout, TemplateSpec, WindowsInstance, WindowsNodePool,
    WindowsNodePoolSpec,
    conditions::{find, kind},
};
use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher, watcher::Event},
};
use testbed::sim::SimOptions;
use tokio::time::interval;

use super::{
    aims, load,
    process::Usage,
    report::{self, Cell, Field, round, share},
    tally::Tally,
    world::{API_WRITES, World, without_heartbeats},
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
/// Metric of the bytes in etcd's write-ahead log. The size of etcd's database is no measure: compaction reduces it.
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
    let mut world = World::start(hosts, 1, SimOptions { boot: BOOT, ..without_heartbeats() }).await?;
    world.join(&spec(110), JOIN).await?;
    let cap = world.pools().map(|hosts| Ok(MAX_UNAVAILABLE.of(u32::try_from(hosts)?))).sum::<Result<u32>>()?;

    let instances = seen(Api::all(world.client.clone()), Seen::Instance);
    let nodes = seen(Api::all(world.client.clone()), Seen::Node);
    let pools = seen(Api::all(world.client.clone()), Seen::Pool);
    let mut watches = stream::select(instances, stream::select(nodes, pools)).boxed();
    let mut watched = Watched::new(hosts);
    watched.until_updated(&mut world, &mut watches, JOIN).await.context("before the change")?;

    let load = load();
    let before = Figures::of(&world).await?;
    let begun = watched.begin();
    for pool in world.apply(&spec(100)).await? {
        watched.pool(pool);
    }
    watched.until_updated(&mut world, &mut watches, limit).await?;
    let (seconds, end) = (begun.elapsed().as_secs_f64(), watched.now());
    let after = Figures::of(&world).await?;
    let tally = watched.tally;
    let granted = tally.granted();
    ensure!(
        u32::try_from(granted)? == hosts,
        "the pools say that all nodes are changed, but {granted} of {hosts} hosts were given an Update"
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

/// Event of a watch.
enum Seen {
    Instance(Change<WindowsInstance>),
    Node(Change<Node>),
    Pool(Change<WindowsNodePool>),
}

/// Change of an object.
enum Change<K> {
    Is(Box<K>),
    Gone(Box<K>),
    /// All existing objects have been delivered.
    Listed,
}

fn seen<K>(api: Api<K>, wrap: fn(Change<K>) -> Seen) -> BoxStream<'static, Seen>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let changes = watcher(api, watcher::Config::default()).default_backoff().filter_map(move |event| async move {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => Some(wrap(Change::Is(Box::new(object)))),
            Ok(Event::Delete(object)) => Some(wrap(Change::Gone(Box::new(object)))),
            Ok(Event::InitDone) => Some(wrap(Change::Listed)),
            Ok(Event::Init) => None,
            Err(error) => {
                eprintln!("a watch broke, and some changes may not be counted: {error}");
                None
            }
        }
    });
    changes.boxed()
}

/// State that the watches have delivered.
struct Watched {
    started: Instant,
    hosts: u32,
    /// Watches that have delivered all existing objects.
    listed: [bool; 3],
    pools: Vec<WindowsNodePool>,
    tally: Tally,
}

impl Watched {
    fn new(hosts: u32) -> Self {
        Self { started: Instant::now(), hosts, listed: [false; 3], pools: Vec::new(), tally: Tally::default() }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn begin(&mut self) -> Instant {
        let now = self.now();
        self.tally.begin(now);
        self.started + now
    }

    /// Processes events until all pools report that all their nodes are up to date.
    async fn until_updated(
        &mut self,
        world: &mut World,
        watches: &mut BoxStream<'static, Seen>,
        limit: Duration,
    ) -> Result<()> {
        let begun = Instant::now();
        let mut ticks = interval(Duration::from_secs(1));
        let mut told = begun;
        while !(self.listed.iter().all(|listed| *listed) && is_updated(&self.pools, self.hosts)) {
            tokio::select! {
                change = watches.next() => self.see(change.context("the watches ended")?),
                _ = ticks.tick() => {
                    world.operator.check()?;
                    if told.elapsed() > Duration::from_secs(15) {
                        told = Instant::now();
                        let granted = self.tally.granted();
                        eprintln!("{:>4} s: {granted} given a slot, {} up to date", begun.elapsed().as_secs(), up_to_date(&self.pools));
                    }
                    if begun.elapsed() > limit {
                        let complaints = world.complaints(kind::UP_TO_DATE).await?;
                        bail!("{} of {} nodes are up to date\n{complaints}", up_to_date(&self.pools), self.hosts);
                    }
                }
            }
        }
        Ok(())
    }

    fn see(&mut self, seen: Seen) {
        let now = self.now();
        match seen {
            Seen::Instance(Change::Is(instance)) => self.tally.instance(now, &instance),
            Seen::Instance(Change::Gone(_)) | Seen::Pool(Change::Gone(_)) => {}
            Seen::Node(Change::Is(node)) => self.tally.node(now, &node),
            Seen::Node(Change::Gone(node)) => self.tally.node_gone(now, &node.name_any()),
            Seen::Pool(Change::Is(pool)) => self.pool(*pool),
            Seen::Instance(Change::Listed) => self.listed[0] = true,
            Seen::Node(Change::Listed) => self.listed[1] = true,
            Seen::Pool(Change::Listed) => self.listed[2] = true,
        }
    }

    /// Records the current state of a pool. The response to a patch may be newer than the next event of the watch.
    fn pool(&mut self, pool: WindowsNodePool) {
        match self.pools.iter_mut().find(|p| p.name_any() == pool.name_any()) {
            Some(known) if known.metadata.generation > pool.metadata.generation => {}
            Some(known) => *known = pool,
            None => self.pools.push(pool),
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

fn up_to_date(pools: &[WindowsNodePool]) -> i64 {
    pools.iter().filter_map(|p| p.status.as_ref()).map(|s| i64::from(s.up_to_date_nodes)).sum()
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
    fn pools_are_updated_when_all_say_so_of_what_they_are_now() {
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

    #[test]
    fn an_older_generation_does_not_hide_the_change() {
        let mut watched = Watched::new(3);
        watched.pool(pool("a", 2, 3, "True", 1));
        watched.pool(pool("a", 1, 3, "True", 1));
        assert!(!is_updated(&watched.pools, 3));
        watched.pool(pool("a", 2, 3, "True", 2));
        assert!(is_updated(&watched.pools, 3));
    }
}
