//! Benchmark of Ready instances without changes.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use api::{Time, WindowsInstance, WindowsNodePoolSpec};
use kube::{Api, ResourceExt as _, api::ListParams};
use testbed::sim::SimOptions;
use tokio::time::sleep;

use super::{
    aims, load,
    process::Usage,
    report::{self, round},
    world::{API_WRITES, World},
};

/// Number of hosts, and duration.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Number of Ready instances.
    #[arg(long, visible_alias = "profile", default_value_t = 1000)]
    hosts: u32,
    /// Duration of the measurement, in seconds.
    #[arg(long, default_value_t = 300)]
    seconds: u32,
    /// Seconds from the time when the last node is Ready to the start of the measurement.
    #[arg(long, default_value_t = 15)]
    settle: u64,
}

/// Interval at which a real kubelet renews its Lease.
const LEASE: Duration = Duration::from_secs(10);
/// Interval at which a real kubelet reports an unchanged status.
const STATUS: Duration = Duration::from_mins(5);

/// Metric of the operator's SSH connections.
const CONNECTIONS: &str = "windows_node_pool_ssh_connections_total";
/// Metric of the operator's approvals of certificate requests. Hosts that have joined request certificates only to renew them.
const APPROVALS: &str = r#"windows_node_pool_api_writes_total{resource="certificatesigningrequests/approval"}"#;

/// Number of the operator's writes so far.
struct Written {
    all: f64,
    approvals: f64,
    /// Expiry of wicd's certificate, from the status of each instance.
    ends: BTreeMap<String, Option<Time>>,
}

impl Written {
    async fn by_now(world: &World) -> Result<Self> {
        let instances = Api::<WindowsInstance>::all(world.client.clone()).list(&ListParams::default()).await?;
        let end = |i: WindowsInstance| (i.name_any(), i.status.and_then(|s| s.wicd_certificate_expires));
        let (all, approvals) = (world.operator.metric(API_WRITES).await?, world.operator.metric(APPROVALS).await?);
        Ok(Self { all, approvals, ends: instances.items.into_iter().map(end).collect() })
    }

    /// Returns two numbers of writes since `before`: those for renewed certificates (one approval for each, and one status write for each certificate of
    /// wicd), and all others.
    fn since(&self, before: &Self) -> (f64, f64) {
        let stored = self.ends.iter().filter(|(name, end)| before.ends.get(*name) != Some(end)).count();
        let certificates = self.approvals - before.approvals + f64::from(u32::try_from(stored).unwrap_or(u32::MAX));
        (certificates, self.all - before.all - certificates)
    }
}

/// Joins hosts, and then measures the idle operator.
pub(super) async fn run(args: &Args) -> Result<()> {
    let sim = SimOptions { heartbeat: Some(LEASE), status_report: Some(STATUS), ..SimOptions::default() };
    let mut world = World::start(args.hosts, 1, sim, &[]).await?;
    world.join(&WindowsNodePoolSpec::default(), Duration::from_mins(20)).await?;
    sleep(Duration::from_secs(args.settle)).await;
    let load = load();
    let operator = &world.operator;
    let (written, connections) = (Written::by_now(&world).await?, operator.metric(CONNECTIONS).await?);
    let (before, others_before) = (Usage::of(operator.pid())?, world.control_plane_seconds()?);
    sleep(Duration::from_secs(args.seconds.into())).await;
    let after = Usage::of(operator.pid())?;
    let (certificate_writes, api_writes) = Written::by_now(&world).await?.since(&written);
    let mut fields = vec![
        ("hosts", args.hosts.into()),
        ("seconds", args.seconds.into()),
        ("ssh_connections", round(operator.metric(CONNECTIONS).await? - connections)),
        ("certificate_writes", round(certificate_writes)),
        ("api_writes", round(api_writes)),
        ("cpu_seconds", round(after.cpu_seconds - before.cpu_seconds)),
        ("control_plane_cpu_seconds", round(world.control_plane_seconds()? - others_before)),
        ("rss_mib", round(after.rss_mib)),
        ("load", load.into()),
    ];
    fields.extend(aims::judged(&aims::idle(args.hosts, args.seconds), &fields));
    report::add(&fields);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_for_certificates_are_counted_apart() {
        let end = |text: &str| text.parse::<jiff::Timestamp>().ok().map(Time::from);
        let (old, new) = (end("2026-01-01T00:00:00Z"), end("2026-01-06T00:00:00Z"));
        let written = |all, approvals, ends: [Option<Time>; 2]| Written {
            all,
            approvals,
            ends: ["win-0", "win-1"].map(String::from).into_iter().zip(ends).collect(),
        };
        let before = written(100.0, 10.0, [old, old]);
        for (after, expected) in [
            (written(100.0, 10.0, [old, old]), (0.0, 0.0)),
            (written(102.0, 11.0, [new, old]), (2.0, 0.0)),
            // Kubelet has renewed its certificate, which no status contains.
            (written(101.0, 11.0, [old, old]), (1.0, 0.0)),
            (written(107.0, 12.0, [new, new]), (4.0, 3.0)),
        ] {
            assert_eq!(after.since(&before), expected);
        }
    }
}
