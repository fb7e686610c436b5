//! What the decision about a pool costs, without the API server. It must grow with the pool and no faster.

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;

use api::{IntOrPercent, Order, RemediationType, WindowsInstance};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use wnp_core::rollout::{
    grants::{Candidate, Limits, PendingChange, decide},
    member::{Wish, member},
    progress::UpdateLimit,
};

use super::{
    load,
    report::{Report, round},
};

/// How many hosts.
#[derive(clap::Args)]
pub(super) struct Args {
    /// One JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// Hosts of the pool.
    #[arg(long, default_values_t = [1000, 5000])]
    hosts: Vec<u32>,
}

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn limits() -> Limits {
    Limits {
        max_concurrent: 100,
        max_unavailable: IntOrPercent::Percent(5),
        max_pulling: 10,
        paused: false,
        orphan: false,
        open: true,
        order: Order::default(),
        ignore_lost_after: Some(Duration::from_hours(1)),
        gate: UpdateLimit::default(),
        remediation: RemediationType::default(),
        not_ready_after: Duration::from_mins(10),
        max_unhealthy: IntOrPercent::Percent(20),
        others: None,
    }
}

fn pair(number: u32) -> Result<(Arc<WindowsInstance>, Node)> {
    let name = format!("win-{number}");
    let (status, at) = ("True", "1969-12-31T00:00:00Z");
    let condition = |type_: &str| json!({"type": type_, "status": status, "reason": "Ok", "message": "all is as it must be", "lastTransitionTime": at});
    let conditions = ["Ready", "Reachable", "UpToDate", "PreflightPassed"].map(condition);
    let instance = json!({
        "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsInstance",
        "metadata": {"name": name, "uid": name},
        "spec": {"poolRef": {"name": "pool"}, "host": {"name": name, "address": "10.0.0.1"}},
        "status": {
            "currentVersion": "v1", "stagedVersion": "v2", "nodeRef": {"name": name, "uid": name},
            "conditions": conditions,
        },
    });
    let ready = json!({"type": "Ready", "status": status, "lastTransitionTime": at});
    let node = json!({"metadata": {"name": name, "uid": name}, "status": {"conditions": [ready]}});
    Ok((Arc::new(serde_json::from_value(instance)?), serde_json::from_value(node)?))
}

/// How often each is measured. The fastest counts: what disturbs it only adds.
const TIMES: u32 = 50;

fn milliseconds<T>(work: impl Fn() -> T) -> f64 {
    let once = |_| {
        let begun = Instant::now();
        black_box(work());
        begun.elapsed().as_secs_f64() * 1000.0
    };
    (0..TIMES).map(once).fold(f64::INFINITY, f64::min)
}

/// Measures what is seen of all hosts, and the decision about them, while nothing changes and at the beginning of a rollout.
pub(super) fn run(args: &Args) -> Result<()> {
    let mut report = Report::new(args.json);
    for hosts in &args.hosts {
        let pairs: Vec<(Arc<WindowsInstance>, Node)> = (0..*hosts).map(pair).collect::<Result<_>>()?;
        let wish = Wish { version: "v2", min_ready: Duration::ZERO, looks: true, backoff_max: Duration::from_mins(10) };
        let of = |(instance, node): &(Arc<WindowsInstance>, Node)| {
            let change = PendingChange { version: "v2".into(), ..PendingChange::default() };
            member(instance, false, Some(node), &wish, Some((change, true)), NOW).candidate
        };
        let observe = || pairs.iter().map(of).collect::<Vec<Candidate>>();
        let changing = observe();
        let idle: Vec<Candidate> = changing.iter().cloned().map(|c| Candidate { change: None, ..c }).collect();
        report.add(&[
            ("hosts", (*hosts).into()),
            ("observe_ms", round(milliseconds(observe))),
            ("idle_ms", round(milliseconds(|| decide(&idle, &limits(), NOW)))),
            ("rollout_ms", round(milliseconds(|| decide(&changing, &limits(), NOW)))),
            ("load", load().into()),
        ]);
    }
    Ok(())
}
