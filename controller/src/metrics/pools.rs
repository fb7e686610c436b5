//! Metrics of pools, made at each scrape of what the caches have: a pool that is deleted has no series, and one that is new has all.

use std::{fmt, sync::Arc};

use api::{Phase, Time, WindowsInstance, WindowsInstanceStatus, WindowsNodePool, WindowsNodePoolStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{ResourceExt, runtime::reflector::Store};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Unit,
};

/// A label, with its meaning in Markdown.
type Label = (&'static str, &'static str);
/// A sample: values of the labels after `pool`, and the value.
type Sample = (Vec<String>, i64);

const POOL: Label = ("pool", "Name of the pool.");
const PHASE: Label = ("phase", "Phase of the instance, as in `status.phase`. A host is in one phase.");
const CONDITION: Label = ("type", "Type of the condition, or of the operation, for example `Degraded` or `Update`.");
const STATUS: Label =
    ("status", "`true`, `false` or `unknown`: the sample of the current status is 1, the others are 0.");

/// A family of gauges.
pub(super) struct PoolGauge {
    pub(super) name: &'static str,
    pub(super) unit: Option<Unit>,
    pub(super) labels: &'static [Label],
    pub(super) help: &'static str,
    samples: fn(&Pool) -> Vec<Sample>,
}

/// All of them.
pub(super) static GAUGES: &[PoolGauge] = &[
    gauge("hosts", &[POOL, PHASE], "Hosts by pool and phase", Pool::phases),
    gauge("hosts_failed", &[POOL], "Hosts whose last attempt failed", |pool| pool.number(|s| s.failed_nodes)),
    gauge("hosts_refused", &[POOL], "Entries of the inventory that the operator refuses", |pool| {
        pool.number(|s| s.refused_hosts)
    }),
    gauge("nodes_ready", &[POOL], "Nodes that are Ready", |pool| pool.number(|s| s.ready_nodes)),
    gauge("nodes_available", &[POOL], "Schedulable nodes that have been Ready for minReadySeconds", |pool| {
        pool.number(|s| s.available_nodes)
    }),
    gauge("nodes_up_to_date", &[POOL], "Ready nodes that follow the desired version", |pool| {
        pool.number(|s| s.up_to_date_nodes)
    }),
    gauge("drain_blocked_nodes", &[POOL], "Nodes whose drain is blocked", |pool| {
        vec![(Vec::new(), count(pool.statuses().filter(|s| is_blocked(s)).count()))]
    }),
    gauge("condition", &[POOL, CONDITION, STATUS], "Conditions of pools", Pool::conditions),
    seconds(
        "oldest_operation_start_timestamp",
        &[POOL, CONDITION],
        "Unix time at which the oldest operation began",
        Pool::oldest_operations,
    ),
    seconds(
        "oldest_failure_timestamp",
        &[POOL],
        "Unix time since when the host that has failed for the longest time fails",
        |pool| earliest(pool.statuses().filter_map(|s| s.failures.as_ref()?.first_time)),
    ),
    seconds(
        "host_certificate_earliest_expiry_timestamp",
        &[POOL],
        "Unix time at which the first certificate of a host's daemon expires",
        |pool| earliest(pool.statuses().filter_map(|s| s.wicd_certificate_expires)),
    ),
];

const fn gauge(
    name: &'static str,
    labels: &'static [Label],
    help: &'static str,
    samples: fn(&Pool) -> Vec<Sample>,
) -> PoolGauge {
    PoolGauge { name, unit: None, labels, help, samples }
}

const fn seconds(
    name: &'static str,
    labels: &'static [Label],
    help: &'static str,
    samples: fn(&Pool) -> Vec<Sample>,
) -> PoolGauge {
    PoolGauge { name, unit: Some(Unit::Seconds), labels, help, samples }
}

/// A pool, and its instances.
struct Pool {
    pool: Arc<WindowsNodePool>,
    instances: Vec<Arc<WindowsInstance>>,
}

impl Pool {
    fn statuses(&self) -> impl Iterator<Item = &WindowsInstanceStatus> {
        self.instances.iter().filter_map(|i| i.status.as_ref())
    }

    fn number(&self, of: fn(&WindowsNodePoolStatus) -> i32) -> Vec<Sample> {
        vec![(Vec::new(), self.pool.status.as_ref().map_or(0, of).into())]
    }

    fn phases(&self) -> Vec<Sample> {
        let of = |i: &Arc<WindowsInstance>| i.status.as_ref().and_then(|s| s.phase).unwrap_or(Phase::Pending);
        let number = |phase| count(self.instances.iter().filter(|i| of(i) == phase).count());
        Phase::ALL.iter().map(|phase| (vec![format!("{phase:?}")], number(*phase))).collect()
    }

    fn conditions(&self) -> Vec<Sample> {
        let conditions = self.pool.status.iter().flat_map(|s| &s.conditions);
        let samples = |c: &Condition| {
            ["True", "False", "Unknown"].map(|s| (vec![c.type_.clone(), s.to_lowercase()], i64::from(c.status == s)))
        };
        conditions.flat_map(samples).collect()
    }

    fn oldest_operations(&self) -> Vec<Sample> {
        let mut oldest = std::collections::BTreeMap::<&str, i64>::new();
        for operation in self.statuses().filter_map(|s| s.operation.as_ref()) {
            let Some(start) = operation.start_time.known() else { continue };
            let known = oldest.entry(operation.type_.as_str()).or_insert(i64::MAX);
            *known = (*known).min(start.as_second());
        }
        oldest.into_iter().map(|(type_, at)| (vec![type_.to_owned()], at)).collect()
    }
}

fn is_blocked(status: &WindowsInstanceStatus) -> bool {
    let drain = status.operation.as_ref().and_then(|o| o.drain.as_ref());
    drain.is_some_and(|drain| !drain.blockers.is_empty())
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// No sample if there is no time.
fn earliest(times: impl Iterator<Item = Time>) -> Vec<Sample> {
    times.filter_map(Time::known).min().map(|at| (Vec::new(), at.as_second())).into_iter().collect()
}

/// The caches.
pub(super) struct Pools {
    pub(super) pools: Store<WindowsNodePool>,
    pub(super) instances: Store<WindowsInstance>,
}

impl Pools {
    fn read(&self) -> Vec<Pool> {
        let mut of_pools = std::collections::HashMap::<String, Vec<Arc<WindowsInstance>>>::new();
        for instance in self.instances.state() {
            of_pools.entry(instance.spec.pool_ref.name.clone()).or_default().push(instance);
        }
        let mut pools = self.pools.state();
        pools.sort_by_key(|pool| pool.name_any());
        let instances = |pool: &WindowsNodePool| of_pools.get(&pool.name_any()).cloned().unwrap_or_default();
        pools.into_iter().map(|pool| Pool { instances: instances(&pool), pool }).collect()
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools").finish_non_exhaustive()
    }
}

impl Collector for Pools {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let pools = self.read();
        for PoolGauge { name, unit, labels, help, samples } in GAUGES {
            let mut family = encoder.encode_descriptor(name, &format!("{help}."), unit.as_ref(), MetricType::Gauge)?;
            for pool in &pools {
                for (values, value) in samples(pool) {
                    let values = std::iter::once(pool.pool.name_any()).chain(values);
                    let set: Vec<(&str, String)> = labels.iter().map(|(label, _)| *label).zip(values).collect();
                    ConstGauge::new(value).encode(family.encode_family(&set)?)?;
                }
            }
        }
        Ok(())
    }
}
