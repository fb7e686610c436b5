//! Ready instances that nothing happens to.

use std::time::Duration;

use anyhow::Result;
use api::WindowsNodePoolSpec;
use testbed::sim::SimOptions;
use tokio::time::sleep;

use super::{
    aims, load,
    process::Usage,
    report::{Report, round},
    world::{API_WRITES, World},
};

/// How many, and for how long.
#[derive(clap::Args)]
pub(super) struct Args {
    /// One JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// Ready instances.
    #[arg(long, visible_alias = "profile", default_value_t = 1000)]
    hosts: u32,
    /// Seconds.
    #[arg(long, default_value_t = 300)]
    seconds: u32,
    /// Seconds from the last node's becoming Ready to the beginning.
    #[arg(long, default_value_t = 15)]
    settle: u64,
}

/// How often a real kubelet renews its Lease, and reports a status that has not changed.
const LEASE: Duration = Duration::from_secs(10);
const STATUS: Duration = Duration::from_mins(5);

const CONNECTIONS: &str = "windows_node_pool_ssh_connections_total";

/// Lets hosts join, and then measures what the operator does.
pub(super) async fn run(args: &Args) -> Result<()> {
    let sim = SimOptions { heartbeat: Some(LEASE), status_report: Some(STATUS), ..SimOptions::default() };
    let mut world = World::start(args.hosts, 1, sim).await?;
    world.join(&WindowsNodePoolSpec::default(), Duration::from_mins(20)).await?;
    sleep(Duration::from_secs(args.settle)).await;
    let load = load();
    let operator = &world.operator;
    let (writes, connections) = (operator.metric(API_WRITES).await?, operator.metric(CONNECTIONS).await?);
    let (before, others_before) = (Usage::of(operator.pid())?, world.control_plane_seconds()?);
    sleep(Duration::from_secs(args.seconds.into())).await;
    let after = Usage::of(operator.pid())?;
    let mut fields = vec![
        ("hosts", args.hosts.into()),
        ("seconds", args.seconds.into()),
        ("ssh_connections", round(operator.metric(CONNECTIONS).await? - connections)),
        ("api_writes", round(operator.metric(API_WRITES).await? - writes)),
        ("cpu_seconds", round(after.cpu_seconds - before.cpu_seconds)),
        ("control_plane_cpu_seconds", round(world.control_plane_seconds()? - others_before)),
        ("rss_mib", round(after.rss_mib)),
        ("load", load.into()),
    ];
    fields.extend(aims::judged(&aims::idle(args.hosts, args.seconds), &fields));
    Report::new(args.json).add(&fields);
    Ok(())
}
