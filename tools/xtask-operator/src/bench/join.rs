//! Benchmark of simulated hosts that join.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, bail};
use api::WindowsNodePoolSpec;
use serde_json::json;
use testbed::deployment;
use testbed::sim::{Line, Link, SimHost, SimOptions, Stats};

use super::{
    aims, load,
    process::Usage,
    report::{self, Cell, Field, number, ratio, round, share},
    upload,
    world::{API_WRITES, World, without_heartbeats},
};

/// Profiles, and time limit.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Profiles to run. Defaults to all.
    #[arg(long, value_parser = PROFILES.map(|p| p.name))]
    profile: Vec<String>,
    /// Time limit for all hosts to become nodes, in seconds.
    #[arg(long, default_value_t = 1800)]
    limit: u64,
    /// Command of the kubectl plugin to run afterwards, for example `plan`. Its time is reported. Can be repeated.
    #[arg(long, value_name = "COMMAND")]
    then: Vec<String>,
}

/// Profile of the benchmark: number of hosts, and their properties.
#[derive(Clone, Copy, Debug)]
struct Profile {
    name: &'static str,
    hosts: u32,
    /// Number of hosts of another pool whose programs never end, and which hold all connections that one pool can have.
    hanging: u32,
    payload_mib: u32,
    rtt: Duration,
    process_start: Duration,
    /// Time from a kubelet's start until its Node exists.
    boot: Duration,
    /// True if all hosts are behind one line of 1 Gbit/s.
    gigabit_line: bool,
    /// True if the API server gives the operator a tenth of the share that all service accounts usually have together.
    limited: bool,
    /// True if OpenSSH's sftp sends the same bytes first, for comparison.
    beside_sftp: bool,
}

const PROFILES: [Profile; 12] = [
    many("1", 1),
    many("20", 20),
    Profile { hanging: 104, ..many("hanging", 20) },
    many("100", 100),
    Profile { limited: true, ..many("limited", 100) },
    Profile { payload_mib: 235, boot: Duration::ZERO, gigabit_line: true, ..many("line", 50) },
    many("1000", 1000),
    many("5000", 5000),
    Profile { payload_mib: 235, boot: Duration::ZERO, ..many("payload", 20) },
    DIRECT,
    Profile { name: "latency", rtt: Duration::from_millis(20), ..DIRECT },
    Profile { boot: Duration::ZERO, process_start: Duration::from_millis(300), ..many("processes", 5) },
];

/// Data rate of a line, in bits per second.
const GIGABIT: f64 = 1e9;

/// Profile that is compared with OpenSSH's sftp: one host, and a payload of real size.
const DIRECT: Profile = Profile { payload_mib: 235, boot: Duration::ZERO, beside_sftp: true, ..many("direct", 1) };

const fn many(name: &'static str, hosts: u32) -> Profile {
    Profile {
        name,
        hosts,
        hanging: 0,
        payload_mib: 1,
        rtt: Duration::ZERO,
        process_start: Duration::ZERO,
        boot: Duration::from_secs(5),
        gigabit_line: false,
        limited: false,
        beside_sftp: false,
    }
}

/// Runs the profiles, one after the other, each in a cluster of its own.
pub(super) async fn run(args: &Args) -> Result<()> {
    let (mut failed, mut seconds) = (Vec::new(), BTreeMap::new());
    let chosen = |p: &&Profile| args.profile.is_empty() || args.profile.iter().any(|name| name == p.name);
    for profile in PROFILES.iter().filter(chosen) {
        match measure(profile, args, &seconds).await {
            Ok(fields) => {
                seconds.extend(number(&fields, "seconds").map(|seconds| (profile.name, seconds)));
                report::add(&fields);
            }
            Err(error) => {
                eprintln!("{}: {error:#}", profile.name);
                failed.push(profile.name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("profiles failed: {}", failed.join(", ")) }
}

/// Returns the seconds that OpenSSH's sftp takes for the same bytes over the same link. `None` if it is not compared, or cannot be measured.
async fn sftp_seconds(profile: &Profile) -> Option<f64> {
    if !profile.beside_sftp {
        return None;
    }
    let measured = upload::sftp_seconds(profile.payload_mib, profile.rtt).await;
    measured.inspect_err(|error| eprintln!("{}: sftp is not measured: {error:#}", profile.name)).ok()
}

/// Measures a profile. `others` contains the seconds of each earlier profile.
async fn measure(profile: &Profile, args: &Args, others: &BTreeMap<&str, f64>) -> Result<Vec<Field>> {
    let (limit, commands) = (Duration::from_secs(args.limit), &args.then);
    let sim = SimOptions {
        link: Link { rtt: profile.rtt, line: profile.gigabit_line.then(|| Line::new(GIGABIT).into()) },
        process_start: profile.process_start,
        boot: profile.boot,
        ..without_heartbeats()
    };
    let mut world = World::start(profile.hosts + profile.hanging, profile.payload_mib.into(), sim, &[]).await?;
    if profile.limited {
        world.control_plane.apply_yaml(&limits()).await?;
    }
    let hanging: Vec<SimHost> = world.hosts.drain(profile.hosts as usize..).collect();
    world.hang(&hanging).await?;
    let sftp = sftp_seconds(profile).await;
    let load = load();
    let idle = world.control_plane_seconds()?;
    let seconds = world.join(&WindowsNodePoolSpec::default(), limit).await?.as_secs_f64();
    let usage = Usage::of(world.operator.pid())?;
    let api_writes = world.operator.metric(API_WRITES).await?;
    let metrics = world.operator.get("/metrics").await?;
    let hosts = f64::from(profile.hosts);
    let stats: Vec<Stats> = world.hosts.iter().map(SimHost::stats).collect();
    let mean = |of: fn(&Stats) -> u64| stats.iter().map(of).sum::<u64>() / u64::from(profile.hosts);
    let per_host = |of: fn(&Stats) -> u64| {
        let all = u32::try_from(stats.iter().map(of).sum::<u64>()).unwrap_or(u32::MAX);
        round(f64::from(all) / hosts)
    };
    // The host itself needs this time: for its programs, one after the other, and for its kubelet.
    let busy: Duration = world.hosts.iter().map(SimHost::busy).sum();
    let host_seconds = busy.as_secs_f64() / hosts + profile.boot.as_secs_f64();
    let alone = if profile.limited { "100" } else { "20" };
    let sent: f64 = stats.iter().map(|s| u32::try_from(s.bytes_received).map_or(f64::MAX, f64::from)).sum();
    let line_used = profile.gigabit_line.then(|| sent * 8.0 / (seconds * GIGABIT));
    let mut then = Vec::new();
    for command in commands {
        then.push(world.run(command).await?);
    }
    let mut fields = vec![
        ("profile", profile.name.into()),
        ("hosts", profile.hosts.into()),
        ("payload_mib", profile.payload_mib.into()),
        ("rtt_ms", profile.rtt.as_millis().try_into().unwrap_or(0_u64).into()),
        ("process_start_ms", profile.process_start.as_millis().try_into().unwrap_or(0_u64).into()),
        ("boot_ms", profile.boot.as_millis().try_into().unwrap_or(0_u64).into()),
        ("seconds", round(seconds)),
        ("host_seconds", round(host_seconds)),
        ("sftp_seconds", sftp.map_or(Cell::NONE, round)),
        ("ratio_to_one", ratio(seconds, others.get("1").copied())),
        (
            "ratio_to_alone",
            ratio(seconds, others.get(alone).copied().filter(|_| profile.hanging > 0 || profile.limited)),
        ),
        ("ratio_to_sftp", ratio(seconds, sftp.map(|sftp| sftp + host_seconds))),
        ("line_used_ratio", line_used.map_or(Cell::NONE, share)),
        ("peak_rss_mib", round(usage.peak_rss_mib)),
        ("cpu_seconds", round(usage.cpu_seconds)),
        ("control_plane_cpu_seconds", round(world.control_plane_seconds()? - idle)),
        ("api_writes_per_host", round(api_writes / hosts)),
        ("ssh_connections_per_host", per_host(|s| s.connections)),
        ("processes_per_host", per_host(|s| s.processes)),
        ("bytes_sent_per_host", mean(|s| s.bytes_received).into()),
        ("writes_per_host_of", writes(&metrics, hosts).into()),
        ("failed_attempts", failed_attempts(&metrics).into()),
        ("then", if then.is_empty() { Cell::NONE } else { then.join(", ").into() }),
        ("load", load.into()),
    ];
    fields.extend(aims::judged(&aims::join(profile.name), &fields));
    Ok(fields)
}

/// Returns the manifests that give the operator a tenth of the share that `workload-low` gives to all service accounts, and no loan.
fn limits() -> String {
    let share = json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
        "metadata": {"name": "operator"},
        "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 10, "lendablePercent": 0, "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Queue", "queuing": {"queues": 64, "handSize": 6, "queueLengthLimit": 50}},
        }},
    });
    let resources = json!({
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"],
    });
    let flow = json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
        "metadata": {"name": "operator"},
        "spec": {
            "priorityLevelConfiguration": {"name": "operator"},
            "matchingPrecedence": 500,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [{"subjects": [{"kind": "User", "user": {"name": deployment::OPERATOR}}], "resourceRules": [resources]}],
        },
    });
    format!("{share}\n---\n{flow}\n")
}

/// Returns the resources with their writes per host, from the text of `/metrics`.
fn writes(metrics: &str, hosts: f64) -> String {
    let of = |line: &str| {
        let (labels, count) = line.strip_prefix(API_WRITES)?.rsplit_once(' ')?;
        let resource: Vec<&str> = labels.split('"').skip(1).step_by(2).filter(|value| !value.is_empty()).collect();
        Some(format!("{} {:.2}", resource.join("/"), count.parse::<f64>().ok()? / hosts))
    };
    metrics.lines().filter_map(of).collect::<Vec<_>>().join(", ")
}

/// Returns the reasons of failed attempts with their counts, from the text of `/metrics`.
fn failed_attempts(metrics: &str) -> String {
    let mut reasons = BTreeMap::<&str, u64>::new();
    for line in metrics.lines().filter(|line| line.starts_with("windows_node_pool_failures_total{")) {
        let Some((labels, count)) = line.rsplit_once(' ') else { continue };
        let reason = labels.split("reason=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        *reasons.entry(reason).or_default() += count.parse::<u64>().unwrap_or_default();
    }
    let reasons: Vec<String> =
        reasons.into_iter().filter(|(_, n)| *n > 0).map(|(reason, n)| format!("{reason} {n}")).collect();
    if reasons.is_empty() { "none".to_owned() } else { reasons.join(", ") }
}
