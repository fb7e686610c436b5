//! Soak test with random joins, removals, changes, cut connections, restarts and operator kills. At the end, no objects or resources may be
//! left behind.

mod rest;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use api::{IntOrPercent, WindowsInstance, conditions::kind};
use kube::{Api, api::ListParams};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use testbed::sim::{Fault, SimOptions};
use tokio::time::sleep;

use self::rest::{Causes, IdleState};
use super::{
    load,
    report::{self, Field, round},
    rollout::{is_updated, spec},
    world::{World, ready, without_heartbeats},
};

/// Number of hosts, and duration.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Number of simulated hosts.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=1000))]
    hosts: u32,
    /// Duration in minutes. The operator is killed in the first half only, so that the second half compares the memory of one process.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Seed, to repeat the events of a run in the same order. Their effects also depend on the machine.
    #[arg(long)]
    seed: Option<u64>,
}

/// Time limit for the fleet to converge after the last event.
const CONVERGES: Duration = Duration::from_mins(15);
/// Wait after the last change, because no object shows the end of the operator's work. Its HTTP client closes unused connections within this
/// time.
const SETTLES: Duration = Duration::from_mins(1);
/// Time limit until nothing is pending.
const ENDS: Duration = Duration::from_mins(2);
/// Arguments that shorten the time for which the operator keeps unused versions. The default is longer than the rest periods here.
const VERSION_GRACE: [&str; 2] = ["--version-grace", "10s"];
/// Maximum pause between two events, in milliseconds.
const PAUSE_MS: u64 = 4_000;

/// Causes events until the time is over. Fails if the fleet does not converge or leaves anything behind.
pub(super) async fn run(args: &Args) -> Result<()> {
    let seed = args.seed.unwrap_or_else(rand::random);
    eprintln!("seed {seed}");
    let load = load();
    let mut soak = Soak::start(args.hosts, seed).await?;
    // The baseline precedes all disturbances: it must not contain what a killed operator leaves behind.
    let joined = soak.settled().await?;
    let begun = Instant::now();
    let half = Duration::from_secs(args.minutes * 30);
    soak.disturb(begun + half, true).await?;
    let middle = soak.rest().await?;
    let mut wrong = at("at half-time", middle.left_behind(&joined, soak.causes));
    soak.disturb(begun + 2 * half, false).await?;
    let end = soak.rest().await?;
    wrong.extend(at("at the end", end.left_behind(&joined, soak.causes)));
    wrong.extend(at("in the second half", end.grown(&middle)));

    let mut fields: Vec<Field> = vec![
        ("hosts", args.hosts.into()),
        ("minutes", args.minutes.into()),
        ("seed", seed.into()),
        ("rss_mib_half", round(middle.rss_mib)),
        ("rss_mib_end", round(end.rss_mib)),
        ("files_half", middle.files.into()),
        ("files_end", end.files.into()),
        ("certificate_requests", end.requests.into()),
        ("certificate_requests_limit", soak.causes.requests().into()),
        ("events", end.events.into()),
        ("events_limit", soak.causes.events().into()),
        ("load", load.into()),
    ];
    fields.extend(soak.done.iter().map(|(name, times)| (*name, (*times).into())));
    report::add(&fields);
    ensure!(wrong.is_empty(), "the soak test found: {}", wrong.join("; "));
    Ok(())
}

fn at(when: &str, what: Vec<String>) -> Vec<String> {
    what.into_iter().map(|what| format!("{when}: {what}")).collect()
}

/// Running soak test.
struct Soak {
    world: World,
    rng: StdRng,
    listed: Vec<bool>,
    /// `maxPods` of the pools. It grows with each change, because a host is not updated again to a version with which it has failed.
    max_pods: i32,
    /// Hosts with a fault, and the time when the fault ends.
    faulty: BTreeMap<usize, Instant>,
    /// Number of events of each kind.
    done: BTreeMap<&'static str, u32>,
    /// Causes so far, as numbers of affected hosts.
    causes: Causes,
}

impl Soak {
    async fn start(hosts: u32, seed: u64) -> Result<Self> {
        let sim = SimOptions { boot: Duration::from_secs(1), ..without_heartbeats() };
        let mut world = World::start(hosts, 1, sim, &VERSION_GRACE).await?;
        world.join(&spec(110), CONVERGES).await?;
        let listed = vec![true; world.hosts.len()];
        let rng = StdRng::seed_from_u64(seed);
        let causes = Causes { joins: hosts, ..Causes::default() };
        Ok(Self { world, rng, listed, max_pods: 110, faulty: BTreeMap::new(), done: BTreeMap::new(), causes })
    }

    /// Causes random events until `until`.
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
                // At least half of the hosts stay.
                let is_left = self.listed.iter().filter(|l| **l).count() > self.listed.len() / 2;
                if to || is_left {
                    self.listed[host] = to;
                    self.apply().await?;
                    let causes = &mut self.causes;
                    *(if to { &mut causes.joins } else { &mut causes.removals }) += 1;
                }
                match (to, is_left) {
                    (true, _) => "joins",
                    (false, true) => "removals",
                    (false, false) => "nothing",
                }
            }
            40..45 => {
                self.change().await?;
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
                self.causes.interruptions += 1;
                "cuts"
            }
            75..95 => {
                self.world.hosts[host].reboot();
                self.causes.interruptions += 1;
                "restarts"
            }
            95..97 => {
                self.causes.interruptions += self.in_operation().await?;
                self.world.control_plane.restart_apiserver().await?;
                "api_server_restarts"
            }
            _ if kills => {
                self.causes.interruptions += self.in_operation().await?;
                self.world.restart_operator().await?;
                "operator_kills"
            }
            _ => "nothing",
        })
    }

    /// Ends the faults whose time is over.
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

    /// Changes the pool's template. Counts a change for each host, also for those that are not listed, which may still be leaving.
    async fn change(&mut self) -> Result<()> {
        self.max_pods += 1;
        self.causes.changes += u32::try_from(self.listed.len())?;
        self.apply().await
    }

    /// Returns the number of hosts that are in an operation, or may begin one.
    async fn in_operation(&self) -> Result<u32> {
        let instances = Api::<WindowsInstance>::all(self.world.client.clone()).list(&ListParams::default()).await?;
        let is = |i: &&WindowsInstance| {
            i.open_grant().is_some() || i.status.as_ref().is_some_and(|status| status.operation.is_some())
        };
        Ok(u32::try_from(instances.items.iter().filter(is).count())?)
    }

    async fn apply(&self) -> Result<()> {
        let hosts = self.world.hosts.iter().zip(&self.listed).filter(|(_, listed)| **listed).map(|(host, _)| host);
        let mut spec = spec(self.max_pods);
        // A host that is unreachable for a while must not end the rollout.
        if let Some(rollout) = &mut spec.rollout {
            rollout.max_failures = Some(IntOrPercent::Percent(100));
        }
        self.world.apply_pool(0, &spec, hosts).await
    }

    /// Ends all faults, lists all hosts, waits until all nodes have one version, and reads the state.
    async fn rest(&mut self) -> Result<IdleState> {
        self.mend(Instant::now() + Duration::from_hours(1));
        self.causes.joins += u32::try_from(self.listed.iter().filter(|listed| !**listed).count())?;
        self.listed.fill(true);
        // Hosts keep their previous version, which differs between hosts. After the second change, all hosts have the same previous version.
        for _ in 0..2 {
            self.change().await?;
            self.converge().await?;
        }
        self.settled().await
    }

    /// Waits until all hosts are up to date with the pool.
    async fn converge(&mut self) -> Result<()> {
        let hosts = u32::try_from(self.listed.len())?;
        let begun = Instant::now();
        self.world
            .until(CONVERGES, kind::READY, |pools| ready(pools) == i64::from(hosts) && is_updated(pools, hosts))
            .await?;
        eprintln!("all hosts are up to date with the pool after {} s", begun.elapsed().as_secs());
        Ok(())
    }

    /// Reads the state once nothing is pending, such as unused versions. After a time limit, the state includes what is still pending.
    async fn settled(&mut self) -> Result<IdleState> {
        sleep(SETTLES).await;
        let begun = Instant::now();
        loop {
            self.world.operator.check()?;
            let rest = IdleState::of(&self.world).await?;
            if rest.pending().is_empty() || begun.elapsed() > ENDS {
                return Ok(rest);
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}
