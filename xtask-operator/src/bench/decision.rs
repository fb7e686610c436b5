//! What the whole decision about a pool costs, without the API server: from its list to its status. It must grow with the pool and no
//! faster, and must not grow with the hosts of other pools.

use std::{
    collections::HashMap,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;

use api::{Disruption, IntOrPercent, Order, RemediationType, WindowsInstance, WindowsNodePool, WindowsNodePoolStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use wnp_core::{
    inventory::{
        Entry,
        fleet::Fleet,
        hosts::{HostKeys, resolve},
        instances::{Write, changes, writes},
        list::List,
        ownership::HostOwners,
    },
    rollout::{
        grants::{Candidate, Limits, PendingChange, decide},
        image_pull,
        maintenance_window::look,
        member::{Member, Wish, member},
        progress::{Progress, UpdateLimit},
        shared_limit,
    },
    status::pool::{ObservedPool, next},
};

use super::{
    aims, load,
    report::{Cell, Field, Report, share},
};

/// How many hosts.
#[derive(clap::Args)]
pub(super) struct Args {
    /// One JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// Hosts of a large pool.
    #[arg(long, default_value_t = 1000)]
    hosts: u32,
    /// Pools of that size.
    #[arg(long, default_value_t = 5)]
    pools: u32,
    /// Hosts of a small pool.
    #[arg(long, default_value_t = 10)]
    small: u32,
}

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
/// Version that all nodes follow.
const FOLLOWED: &str = "v1";
/// Version of a change that begins.
const CHANGED: &str = "v2";

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
        joins: true,
    }
}

/// A pool that is decided about, and the fleet that it is part of.
struct World {
    pool: WindowsNodePool,
    fleet: Fleet,
    nodes: HashMap<String, Node>,
}

impl World {
    /// A pool of so many hosts, and so many hosts of other pools beside it. All are nodes that are as they must be.
    fn new(hosts: u32, others: u32) -> Result<Self> {
        let listed: Vec<Value> = (0..hosts).map(|n| json!({"name": name(n), "address": address(n)})).collect();
        let pool = json!({
            "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsNodePool",
            "metadata": {"name": "pool", "uid": "pool", "generation": 1},
            "spec": {"inventory": {"hosts": listed}},
        });
        let pool_of = |n: u32| if n < hosts { "pool".to_owned() } else { format!("other-{}", n / hosts.max(1)) };
        let all: Vec<Arc<WindowsInstance>> =
            (0..hosts + others).map(|n| instance(n, &pool_of(n))).collect::<Result<_>>()?;
        let nodes = (0..hosts).map(|n| Ok((name(n), node(n)?))).collect::<Result<_>>()?;
        Ok(Self { pool: serde_json::from_value(pool)?, fleet: all.into_iter().collect(), nodes })
    }

    /// The desired hosts, from the entries of the pool.
    fn list(&self, mine: &[Arc<WindowsInstance>]) -> List {
        let entries: Vec<Entry> =
            self.pool.spec.hosts().iter().map(|host| Entry { host: host.clone(), origin: None }).collect();
        let keys = HostKeys { is_known: &|_| true, read: &|_| Ok(()) };
        let resolved = resolve("pool", &self.pool.spec, &entries, &self.fleet, &keys);
        let mut list = List { hosts: resolved.hosts, problems: resolved.problems, ..List::default() };
        list.keep_what_is_only_wrong(mine);
        list.hand_over(&self.pool, mine, &[], &HostOwners::default());
        list
    }

    /// What is seen of its hosts, which have to change if they do not follow `version`.
    fn members(&self, mine: &[Arc<WindowsInstance>], list: &List, version: &str) -> Vec<Member> {
        let backoff_max = Duration::from_mins(10);
        let wish = Wish { version, min_ready: Duration::ZERO, looks: true, backoff_max };
        let one = |instance: &Arc<WindowsInstance>| {
            let name = instance.metadata.name.as_deref().unwrap_or_default();
            let change =
                PendingChange { version: version.into(), disruption: Disruption::Restart, ..PendingChange::default() };
            let change = (version != FOLLOWED).then_some((change, true));
            let unwanted = !list.hosts.contains_key(name);
            let mut member = member(instance, unwanted, self.nodes.get(name), &wish, change, NOW);
            image_pull::observe(&mut member, self.pool.spec.pre_pull_images(), backoff_max, NOW);
            member
        };
        mine.iter().map(one).collect()
    }

    /// All that is decided about the pool: what is written of its instances, and its status.
    fn decide(&self, version: &str) -> (Vec<Write>, WindowsNodePoolStatus) {
        let mine = self.fleet.of_pool("pool");
        let list = self.list(&mine);
        let members = self.members(&mine, &list, version);
        let changes = changes(&list, &mine, FOLLOWED, &self.pool, &|_| None);
        let candidates: Vec<Candidate> = members.iter().map(|m| m.candidate.clone()).collect();
        let others = shared_limit::share("pool", &self.fleet.sharers(&|_| false), Some(1000), &|_| 0);
        let limits = Limits { others, ..limits() };
        let decision = decide(&candidates, &limits, NOW);
        let writes = writes(&changes, &mine, &list, &decision, NOW);
        let window = look(self.pool.spec.rollout().windows(), NOW);
        let course = Progress { status: None, target: version.into(), gate: UpdateLimit::default(), next: None };
        let seen = ObservedPool {
            strays: &[],
            list: &list,
            members: &members,
            decision: &decision,
            course: &course,
            window: window.as_ref(),
            deleting: false,
            orphan: false,
            keys: None,
        };
        (writes, next(&self.pool, &seen, None, NOW))
    }
}

fn name(number: u32) -> String {
    format!("win-{number}")
}

fn address(number: u32) -> String {
    format!("10.{}.{}.{}", number >> 16, (number >> 8) & 255, number & 255)
}

fn instance(number: u32, pool: &str) -> Result<Arc<WindowsInstance>> {
    let (name, address) = (name(number), address(number));
    let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "Ok", "message": "all is as it must be", "lastTransitionTime": AT});
    let conditions = ["Ready", "Reachable", "UpToDate", "PreflightPassed"].map(condition);
    let keys = [json!({"name": "cloud-private-key"})];
    let instance = json!({
        "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsInstance",
        "metadata": {
            "name": name, "uid": name, "resourceVersion": "1",
            "ownerReferences": [{
                "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsNodePool",
                "name": pool, "uid": pool, "controller": true,
            }],
        },
        "spec": {
            "poolRef": {"name": pool}, "desired": {"version": FOLLOWED},
            "host": {"name": name, "address": address, "port": 22, "username": "Administrator", "privateKeys": keys},
        },
        "status": {
            "currentVersion": FOLLOWED, "stagedVersion": CHANGED, "nodeRef": {"name": name, "uid": name}, "wicd": "w",
            "provenAddress": address, "provenAt": {"address": address, "port": 22},
            "phase": "Ready", "conditions": conditions,
        },
    });
    Ok(Arc::new(serde_json::from_value(instance)?))
}

/// When everything became as it is.
const AT: &str = "1969-12-31T00:00:00Z";

fn node(number: u32) -> Result<Node> {
    let name = name(number);
    let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": AT});
    let node = json!({"metadata": {"name": name, "uid": name}, "status": {"conditions": [ready]}});
    Ok(serde_json::from_value(node)?)
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

/// What one decision costs in milliseconds, while nothing changes and at the beginning of a rollout.
struct Cost {
    hosts: u32,
    idle: f64,
    rollout: f64,
}

impl Cost {
    /// How much more a host costs than in another pool.
    fn beside(&self, other: &Self) -> [f64; 2] {
        let a_host = |cost: f64, hosts: u32| cost / f64::from(hosts.max(1));
        [(self.idle, other.idle), (self.rollout, other.rollout)]
            .map(|(own, other_cost)| a_host(own, self.hosts) / a_host(other_cost, other.hosts))
    }
}

/// Measures the whole decision about a pool: alone, beside others of its size, as one pool, and about a small one, alone and beside all others.
pub(super) fn run(args: &Args) -> Result<()> {
    let Args { json, hosts, pools, small } = *args;
    let all = hosts.saturating_mul(pools.max(1));
    let mut report = Report::new(json);
    let mut measure = |profile: &str, hosts: u32, others: u32, base: Option<&Cost>| -> Result<Cost> {
        let world = World::new(hosts, others)?;
        let mine = world.fleet.of_pool("pool");
        let list = world.list(&mine);
        let cost = Cost {
            hosts,
            idle: milliseconds(|| world.decide(FOLLOWED)),
            rollout: milliseconds(|| world.decide(CHANGED)),
        };
        let ratios = base.map(|base| cost.beside(base));
        let ratio = |n: usize| ratios.map_or(Cell::NONE, |ratios| share(ratios[n]));
        let mut fields: Vec<Field> = vec![
            ("profile", profile.into()),
            ("hosts", hosts.into()),
            ("others", others.into()),
            ("resolve_ms", share(milliseconds(|| world.list(&mine)))),
            ("observe_ms", share(milliseconds(|| world.members(&mine, &list, CHANGED)))),
            ("idle_ms", share(cost.idle)),
            ("rollout_ms", share(cost.rollout)),
            ("idle_ratio", ratio(0)),
            ("rollout_ratio", ratio(1)),
            ("load", load().into()),
        ];
        // What others are compared with has no aim of its own.
        let aims = if base.is_some() { aims::decision() } else { Vec::new() };
        fields.extend(aims::judged(&aims, &fields));
        report.add(&fields);
        Ok(cost)
    };
    let alone = measure("alone", hosts, 0, None)?;
    measure("pools", hosts, all.saturating_sub(hosts), Some(&alone))?;
    measure("one-pool", all, 0, Some(&alone))?;
    let alone = measure("small", small, 0, None)?;
    measure("small-beside", small, all.saturating_sub(small), Some(&alone))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is measured is what happens: otherwise it would be cheap for another reason.
    #[test]
    fn the_decision_that_is_measured_is_about_a_pool_in_which_all_is_well() {
        let world = World::new(20, 80).unwrap();
        let (writes, status) = world.decide(FOLLOWED);
        assert!(writes.is_empty(), "{writes:?}");
        let counts = (status.hosts, status.refused_hosts, status.ready_nodes, status.up_to_date_nodes);
        assert_eq!(counts, (20, 0, 20, 20));

        let (writes, status) = world.decide(CHANGED);
        let granted: Vec<&str> = writes
            .iter()
            .map(|write| match write {
                Write::Grant { name, .. } => name.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(granted.len(), 1, "5 % of 20");
        assert_eq!((status.hosts, status.up_to_date_nodes), (20, 0));
    }

    #[test]
    fn a_ratio_is_that_of_the_cost_of_a_host() {
        let base = Cost { hosts: 1000, idle: 2.0, rollout: 4.0 };
        let ratios = Cost { hosts: 5000, idle: 20.0, rollout: 20.0 }.beside(&base);
        assert!((ratios[0] - 2.0).abs() < 1e-9 && (ratios[1] - 1.0).abs() < 1e-9, "{ratios:?}");
    }
}
