//! Joins, removals, changes, cut connections, restarts and a killed operator, at random and for long. What ends well leaves nothing behind.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use api::{FailurePolicy, IntOrPercent, WindowsInstance, WindowsNodePool, conditions::kind};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Event as CoreEvent, Node, Secret},
    events::v1::Event,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{Api, Client, Resource, api::ListParams};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde::de::DeserializeOwned;
use serde_json::Value;
use testbed::sim::{Fault, SimOptions};
use tokio::time::sleep;

use super::{
    load,
    process::Usage,
    report::{Report, round},
    rollout::{is_updated, spec},
    world::{World, without_heartbeats},
};

/// How many, and for how long.
#[derive(clap::Args)]
pub(super) struct Args {
    /// One JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// Simulated hosts.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=1000))]
    hosts: u32,
    /// Minutes. The operator is killed in the first half only, so that the memory of one process is compared over the second one.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Repeats the order of the events of a run. Their effect also depends on the machine.
    #[arg(long)]
    seed: Option<u64>,
}

/// The longest that the fleet may take to be as its list says, once it is left alone.
const CONVERGES: Duration = Duration::from_mins(15);
/// What the operator does after the last change has no end that is seen: connections that are kept for a while are closed by then.
const SETTLES: Duration = Duration::from_mins(1);
/// The longest pause between two events.
const PAUSE_MS: u64 = 4_000;
/// Memory that a process may have more at the end than at half-time. Allocators keep what they may need again.
const MEMORY_MIB: f64 = 32.0;

/// Runs until the time is over, and fails if the fleet does not come to rest or something is left behind.
pub(super) async fn run(args: &Args) -> Result<()> {
    let seed = args.seed.unwrap_or_else(rand::random);
    eprintln!("seed {seed}");
    let load = load();
    let mut soak = Soak::start(args.hosts, seed).await?;
    let begun = Instant::now();
    let half = Duration::from_secs(args.minutes * 30);
    soak.disturb(begun + half, true).await?;
    let before = soak.rest().await?;
    soak.disturb(begun + 2 * half, false).await?;
    let after = soak.rest().await?;

    let mut fields: Vec<(&str, Value)> = vec![
        ("hosts", args.hosts.into()),
        ("minutes", args.minutes.into()),
        ("seed", seed.into()),
        ("rss_mib_half", round(before.rss_mib)),
        ("rss_mib_end", round(after.rss_mib)),
        ("files_half", before.files.into()),
        ("files_end", after.files.into()),
        ("events_per_host", round(f64::from(after.events) / f64::from(args.hosts))),
        ("load", load.into()),
    ];
    fields.extend(soak.done.iter().map(|(name, times)| (*name, Value::from(*times))));
    Report::new(args.json).add(&fields);
    let leaks = before.leaks(&after);
    ensure!(leaks.is_empty(), "left behind: {}", leaks.join("; "));
    Ok(())
}

struct Soak {
    world: World,
    rng: StdRng,
    listed: Vec<bool>,
    /// Grows with each change: a host that has failed with a version is not changed to that again.
    max_pods: i32,
    /// Hosts with a fault, and until when.
    faulty: BTreeMap<usize, Instant>,
    /// How often each event was caused.
    done: BTreeMap<&'static str, u32>,
}

impl Soak {
    async fn start(hosts: u32, seed: u64) -> Result<Self> {
        let sim = SimOptions { boot: Duration::from_secs(1), ..without_heartbeats() };
        let mut world = World::start(hosts, 1, sim).await?;
        world.join(&spec(110), CONVERGES).await?;
        let listed = vec![true; world.hosts.len()];
        let rng = StdRng::seed_from_u64(seed);
        Ok(Self { world, rng, listed, max_pods: 110, faulty: BTreeMap::new(), done: BTreeMap::new() })
    }

    /// Causes events until then.
    async fn disturb(&mut self, until: Instant, kills: bool) -> Result<()> {
        let mut reported = Instant::now();
        while Instant::now() < until {
            let event = self.event(kills).await?;
            *self.done.entry(event).or_default() += 1;
            self.world.operator.check()?;
            if reported.elapsed() > Duration::from_mins(1) {
                reported = Instant::now();
                eprintln!("{:>4} s left, so far {:?}", (until - Instant::now()).as_secs(), self.done);
            }
            sleep(Duration::from_millis(self.rng.random_range(0..PAUSE_MS))).await;
            self.mend(Instant::now());
        }
        Ok(())
    }

    async fn event(&mut self, kills: bool) -> Result<&'static str> {
        let host = self.rng.random_range(0..self.world.hosts.len());
        Ok(match self.rng.random_range(0..100) {
            0..40 => {
                let to = !self.listed[host];
                // Half of them stay.
                let is_left = self.listed.iter().filter(|l| **l).count() > self.listed.len() / 2;
                if to || is_left {
                    self.listed[host] = to;
                    self.apply().await?;
                }
                if to { "joins" } else { "removals" }
            }
            40..45 => {
                self.max_pods += 1;
                self.apply().await?;
                "changes"
            }
            45..75 => {
                let fault = match self.rng.random_range(0..3) {
                    0 => Fault::Refuse,
                    1 => Fault::Hang,
                    _ => Fault::CutAfterBytes { bytes: self.rng.random_range(0..200_000), once: false },
                };
                self.world.hosts[host].fault(fault);
                let until = Instant::now() + Duration::from_secs(self.rng.random_range(1..30));
                self.faulty.insert(host, until);
                "cuts"
            }
            75..95 => {
                self.world.hosts[host].reboot();
                "restarts"
            }
            95..97 => {
                self.world.control_plane.restart_apiserver().await?;
                "api_server_restarts"
            }
            _ if kills => {
                self.world.restart_operator().await?;
                "operator_kills"
            }
            _ => "nothing",
        })
    }

    fn mend(&mut self, now: Instant) {
        let hosts = &self.world.hosts;
        self.faulty.retain(|host, until| {
            let stays = *until > now;
            if !stays {
                hosts[*host].mend();
            }
            stays
        });
    }

    async fn apply(&self) -> Result<WindowsNodePool> {
        let hosts = self.world.hosts.iter().zip(&self.listed).filter(|(_, listed)| **listed).map(|(host, _)| host);
        let mut spec = spec(self.max_pods);
        // A host that is off for a while must not end the rollout.
        if let Some(rollout) = &mut spec.rollout {
            let max_failures = Some(IntOrPercent::Percent(100));
            rollout.failure_policy = Some(FailurePolicy { max_failures, ..FailurePolicy::default() });
        }
        self.world.apply_pool(0, &spec, hosts).await
    }

    /// Ends all faults, lists all hosts, waits until all are nodes of one version, and reads what is there.
    async fn rest(&mut self) -> Result<Rest> {
        self.mend(Instant::now() + Duration::from_hours(1));
        self.listed.fill(true);
        self.max_pods += 1;
        let applied = self.apply().await?;
        let hosts = u32::try_from(self.listed.len())?;
        let pools: Api<WindowsNodePool> = Api::all(self.world.client.clone());
        let begun = Instant::now();
        loop {
            self.world.operator.check()?;
            let pools = pools.list(&ListParams::default()).await?.items;
            let is_new = pools.iter().all(|p| p.metadata.generation >= applied.metadata.generation);
            let ready: i32 = pools.iter().filter_map(|p| p.status.as_ref()).map(|s| s.ready_nodes).sum();
            if is_new && is_updated(&pools, hosts) && u32::try_from(ready)? == hosts {
                break;
            }
            if begun.elapsed() > CONVERGES {
                let complaints = self.world.complaints(kind::READY).await?;
                bail!("{ready} of {hosts} nodes are Ready {CONVERGES:?} after the last event\n{complaints}");
            }
            sleep(Duration::from_millis(200)).await;
        }
        eprintln!("at rest after {} s", begun.elapsed().as_secs());
        sleep(SETTLES).await;
        Rest::of(&self.world).await
    }
}

/// What is there when nothing happens.
#[derive(Debug, Default, PartialEq)]
struct Rest {
    rss_mib: f64,
    /// Open files and connections of the operator.
    files: usize,
    events: u32,
    /// How many objects of each kind.
    objects: BTreeMap<String, usize>,
}

impl Rest {
    async fn of(world: &World) -> Result<Self> {
        let client = &world.client;
        let objects = BTreeMap::from([
            number::<Node>(client).await?,
            number::<WindowsInstance>(client).await?,
            number::<ConfigMap>(client).await?,
            number::<Secret>(client).await?,
            number::<Role>(client).await?,
            number::<RoleBinding>(client).await?,
            number::<ClusterRole>(client).await?,
            number::<ClusterRoleBinding>(client).await?,
        ]);
        let pid = world.operator.pid();
        let (_, events) = number::<Event>(client).await?;
        let (_, core) = number::<CoreEvent>(client).await?;
        Ok(Self {
            rss_mib: Usage::of(pid)?.rss_mib,
            files: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            events: u32::try_from(events.max(core))?,
            objects,
        })
    }

    /// What is more than it was. Events and certificate requests are left out: Kubernetes itself deletes them after an hour.
    fn leaks(&self, after: &Self) -> Vec<String> {
        let mut leaks = Vec::new();
        let mut leak = |what: &dyn fmt::Display, before: f64, after: f64, more: f64| {
            if after > before + more {
                leaks.push(format!("{what}: {before:.0}, then {after:.0}"));
            }
        };
        leak(&"memory in MiB", self.rss_mib, after.rss_mib, MEMORY_MIB);
        let count = |n: usize| u32::try_from(n).map_or(f64::INFINITY, f64::from);
        // One connection to the API server more or less.
        leak(&"open files", count(self.files), count(after.files), 4.0);
        for (kind, number) in &after.objects {
            let before = self.objects.get(kind).copied().unwrap_or_default();
            leak(kind, count(before), count(*number), 0.0);
        }
        leaks
    }
}

/// The kind, and how many there are of it.
async fn number<K>(client: &Client) -> Result<(String, usize)>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let list = Api::<K>::all(client.clone()).list_metadata(&ListParams::default()).await?;
    Ok((K::kind(&()).into_owned(), list.items.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_before_is_a_leak() {
        let objects = |n| BTreeMap::from([("ConfigMap".to_owned(), n)]);
        let rest = |rss_mib, files, n| Rest { rss_mib, files, events: 0, objects: objects(n) };
        let before = rest(100.0, 20, 7);
        for (after, expected) in [
            (rest(100.0, 20, 7), vec![]),
            (rest(131.0, 24, 6), vec![]),
            (Rest { events: 1000, ..rest(90.0, 20, 7) }, vec![]),
            (rest(133.0, 20, 7), vec!["memory in MiB: 100, then 133"]),
            (rest(100.0, 25, 8), vec!["open files: 20, then 25", "ConfigMap: 7, then 8"]),
        ] {
            assert_eq!(before.leaks(&after), expected);
        }
        assert_eq!(Rest::default().leaks(&rest(0.0, 0, 1)), ["ConfigMap: 0, then 1"]);
    }
}
