//! Metrics of pools, collected from the caches at each scrape, so that a deleted pool has no series, and a new pool has all of them.

use std::{fmt, sync::Arc};

use api::{
    Phase, Time, WindowsInstance, WindowsInstanceStatus, WindowsNodePool, WindowsNodePoolStatus,
    conditions::{find, kind},
};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Unit,
};
use wnp_core::rollout::maintenance_window;

use crate::runtime::clock;

use super::{
    hosts::Host,
    sources::{SourceState, Sources},
};

/// Label with its meaning in Markdown.
type Label = (&'static str, &'static str);
/// Sample of a pool: the values of the labels after `pool`, and the value of the sample.
type Sample = (Vec<String>, i64);

const POOL: Label = ("pool", "Name of the pool.");
const PHASE: Label = ("phase", "Phase of the instance, as in `status.phase`. A host is in one phase.");
const CONDITION: Label = ("type", "Type of the condition, or of the operation, for example `Degraded` or `Update`.");
const SOURCE: Label = (
    "source",
    "Field of `spec.inventory` that names the source: `configMapRef`, `git`, `machineSetRef` or `sourceRef`. A pool that lists its hosts itself \
     has no source.",
);
const STATUS: Label =
    ("status", "`true`, `false` or `unknown`: the sample of the current status is 1, the others are 0.");
const STATUS_NOW: Label = ("status", "`true`, `false` or `unknown`: the status of the condition.");
const REASON: Label = ("reason", "[Reason](conditions.md#reasons) of the condition.");

const HOST: Label = ("host", "Name of the host, of its WindowsInstance and of its Node.");
const REASON_OF_HOST: Label =
    ("reason", "[Reason](conditions.md#reasons) of the host's last failure; without one, of its condition `Ready`.");

/// Maximum number of series of one pool that name hosts.
const MAX_HOSTS: usize = 100;

/// Gauge family with its samples for a pool.
pub(super) struct PoolGauge {
    pub(super) name: &'static str,
    pub(super) unit: Option<Unit>,
    pub(super) labels: &'static [Label],
    pub(super) help: &'static str,
    samples: fn(&Pool) -> Vec<Sample>,
}

/// Gauge families of pools.
pub(super) static GAUGES: &[PoolGauge] = &[
    gauge("hosts", &[POOL, PHASE], "Hosts by pool and phase", Pool::phases),
    gauge(
        "hosts_failed",
        &[POOL],
        "Hosts that failed to join, to be changed or to follow the version, without those that leave",
        |pool| pool.number(|s| s.failed_nodes),
    ),
    gauge(
        "unhealthy_host_info",
        &[POOL, HOST, PHASE, REASON_OF_HOST],
        "Hosts that failed or whose nodes are not Ready, at most 100 of a pool, the failed first; the value is 1",
        Pool::unhealthy_hosts,
    ),
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
    gauge("drain_blocked_nodes", &[POOL], "Nodes whose drain is blocked", |pool| pool.count(Host::is_drain_blocked)),
    gauge(
        "window_open",
        &[POOL],
        "1 while a maintenance window is open, 0 while none is; no sample if the pool has no windows",
        Pool::window,
    ),
    gauge(
        "condition",
        &[POOL, CONDITION, STATUS],
        "1 for the current status of each condition, 0 for the other statuses",
        Pool::conditions,
    ),
    gauge("status_reason", &[POOL, CONDITION, STATUS_NOW, REASON], "1 for the reason of each condition", Pool::reasons),
    gauge(
        "idle",
        &[POOL],
        "1 while the pool is paused or in mode Plan, so that the operator begins no operation",
        |pool| one(pool.object.spec.is_plan() || pool.object.spec.rollout().pause(pool.now).is_some()),
    ),
    gauge(
        "nodes_unavailable",
        &[POOL],
        "Nodes that are not Ready or that an operation has cordoned, without those that a user holds, keeps in maintenance or has cordoned",
        |pool| pool.count(Host::is_unavailable),
    ),
    gauge("max_unavailable", &[POOL], "Nodes that operations may make unavailable at once", Pool::max_unavailable),
    gauge(
        "removals_to_confirm",
        &[POOL],
        "Hosts that are no longer listed and stay until a user confirms their removal",
        |pool| pool.number(|s| s.removals_to_confirm),
    ),
    gauge(
        "hosts_key_changed",
        &[POOL],
        "Hosts that show, or whose jump host shows, another host key than the known one, and that no user holds or trusts",
        |pool| pool.count(Host::shows_another_key),
    ),
    gauge(
        "source_up",
        &[POOL, SOURCE],
        "1 if the source of the pool's hosts was read and used at the last attempt, 0 if not",
        Pool::source_up,
    ),
    seconds(
        "oldest_operation_start_timestamp",
        &[POOL, CONDITION],
        "Unix time at which the oldest operation began",
        Pool::oldest_operations,
    ),
    seconds(
        "oldest_failure_timestamp",
        &[POOL],
        "Unix time of the first failure of the host that has failed for the longest time",
        |pool| earliest(pool.statuses().filter_map(|s| s.failures.as_ref()?.first_time)),
    ),
    seconds(
        "source_last_success_timestamp",
        &[POOL, SOURCE],
        "Unix time at which the operator last read the source of the pool's hosts and used what it read",
        Pool::source_success,
    ),
    seconds(
        "host_certificate_earliest_expiry_timestamp",
        &[POOL],
        "Unix time at which the first certificate of a host's daemon expires, without hosts that leave, or that a user holds or keeps in maintenance",
        |pool| {
            let awaited = pool.hosts.iter().filter(|host| !host.is_set_aside());
            earliest(awaited.filter_map(|host| host.status()?.wicd_certificate_expires))
        },
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

/// Pool with its instances and the other data for its samples.
struct Pool {
    object: Arc<WindowsNodePool>,
    hosts: Vec<Host>,
    /// Known state of the host source.
    source: Option<SourceState>,
    now: Timestamp,
}

impl Pool {
    /// Returns 1 if a maintenance window is open, 0 if not, and no sample for a pool without windows. An invalid window is never open.
    fn window(&self) -> Vec<Sample> {
        let rollout = self.object.spec.rollout();
        if rollout.windows().is_empty() {
            return Vec::new();
        }
        one(maintenance_window::observe(rollout.windows(), self.now).is_ok_and(|w| w.open))
    }

    fn source_success(&self) -> Vec<Sample> {
        let at = self.source.and_then(|source| source.last_success);
        let source = self.object.spec.inventory.source().zip(at);
        source.map(|(source, at)| (vec![source.to_owned()], at.as_second())).into_iter().collect()
    }

    fn source_up(&self) -> Vec<Sample> {
        let source = self.object.spec.inventory.source().zip(self.source);
        source.map(|(source, state)| (vec![source.to_owned()], state.is_up.into())).into_iter().collect()
    }

    /// Returns the budget of unavailable nodes. A percentage is relative to the joined nodes that are not held.
    fn max_unavailable(&self) -> Vec<Sample> {
        let nodes = self.hosts.iter().filter(|host| host.is_node() && !host.is_held()).count();
        one(self.object.spec.rollout().max_unavailable().of(u32::try_from(nodes).unwrap_or(u32::MAX)))
    }

    fn statuses(&self) -> impl Iterator<Item = &WindowsInstanceStatus> {
        self.hosts.iter().filter_map(Host::status)
    }

    fn number(&self, of: fn(&WindowsNodePoolStatus) -> i32) -> Vec<Sample> {
        one(self.object.status.as_ref().map_or(0, of))
    }

    /// Returns the number of hosts for which `is_counted` is true.
    fn count(&self, is_counted: fn(&Host) -> bool) -> Vec<Sample> {
        one(count(self.hosts.iter().filter(|host| is_counted(host)).count()))
    }

    fn phases(&self) -> Vec<Sample> {
        let of = |host: &Host| host.status().and_then(|s| s.phase).unwrap_or(Phase::Pending);
        let number = |phase| count(self.hosts.iter().filter(|host| of(host) == phase).count());
        Phase::ALL.iter().map(|phase| (vec![format!("{phase:?}")], number(*phase))).collect()
    }

    fn unhealthy_hosts(&self) -> Vec<Sample> {
        let mut samples: Vec<(bool, Vec<String>)> = self
            .hosts
            .iter()
            .filter_map(|host| {
                let status = host.status()?;
                let phase = status.phase.unwrap_or(Phase::Pending);
                let failure = status.failures.as_ref().map(|failures| failures.reason().to_string());
                let is_unhealthy = failure.is_some() || matches!(phase, Phase::Failed | Phase::NotReady);
                let ready = || find(&status.conditions, kind::READY).map(|c| c.reason.clone()).unwrap_or_default();
                let has_failed = failure.is_some();
                let labels = || vec![host.instance.name_any(), format!("{phase:?}"), failure.unwrap_or_else(ready)];
                is_unhealthy.then(|| (!has_failed, labels()))
            })
            .collect();
        samples.sort();
        samples.into_iter().take(MAX_HOSTS).map(|(_, labels)| (labels, 1)).collect()
    }

    fn conditions(&self) -> Vec<Sample> {
        let conditions = self.object.status.iter().flat_map(|s| &s.conditions);
        let samples = |c: &Condition| {
            ["True", "False", "Unknown"].map(|s| (vec![c.type_.clone(), s.to_lowercase()], i64::from(c.status == s)))
        };
        conditions.flat_map(samples).collect()
    }

    fn reasons(&self) -> Vec<Sample> {
        let conditions = self.object.status.iter().flat_map(|s| &s.conditions);
        conditions.map(|c| (vec![c.type_.clone(), c.status.to_lowercase(), c.reason.clone()], 1)).collect()
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

/// Returns one sample without labels other than `pool`.
fn one(value: impl Into<i64>) -> Vec<Sample> {
    vec![(Vec::new(), value.into())]
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Returns the earliest time, or no sample if there is none.
fn earliest(times: impl Iterator<Item = Time>) -> Vec<Sample> {
    times.filter_map(Time::known).min().map(|at| (Vec::new(), at.as_second())).into_iter().collect()
}

/// Collector that reads the caches.
pub(super) struct PoolCollector {
    pub(super) pools: Store<WindowsNodePool>,
    pub(super) instances: Store<WindowsInstance>,
    pub(super) nodes: Store<Node>,
    pub(super) sources: Sources,
}

impl PoolCollector {
    fn read(&self, now: Timestamp) -> Vec<Pool> {
        let mut of_pools = std::collections::HashMap::<String, Vec<Host>>::new();
        for instance in self.instances.state() {
            let node = self.nodes.get(&ObjectRef::new(&instance.name_any()));
            of_pools.entry(instance.spec.pool_ref.name.clone()).or_default().push(Host { instance, node });
        }
        let mut pools = self.pools.state();
        pools.sort_by_key(|pool| pool.name_any());
        let source = |pool: &WindowsNodePool| {
            let source = pool.spec.inventory.source()?;
            self.sources.of(&pool.name_any(), source)
        };
        pools
            .into_iter()
            .map(|pool| Pool {
                hosts: of_pools.remove(&pool.name_any()).unwrap_or_default(),
                source: source(&pool),
                object: pool,
                now,
            })
            .collect()
    }
}

impl fmt::Debug for PoolCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolCollector").finish_non_exhaustive()
    }
}

impl Collector for PoolCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let pools = self.read(clock::now());
        for PoolGauge { name, unit, labels, help, samples } in GAUGES {
            let mut family = encoder.encode_descriptor(name, &format!("{help}."), unit.as_ref(), MetricType::Gauge)?;
            for pool in &pools {
                for (values, value) in samples(pool) {
                    let values = std::iter::once(pool.object.name_any()).chain(values);
                    let set: Vec<(&str, String)> = labels.iter().map(|(label, _)| *label).zip(values).collect();
                    ConstGauge::new(value).encode(family.encode_family(&set)?)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(spec: serde_json::Value) -> Pool {
        let pool = WindowsNodePool::new("p", serde_json::from_value(spec).unwrap());
        let now = "2027-01-01T12:00:00Z".parse().unwrap();
        Pool { object: Arc::new(pool), hosts: Vec::new(), source: None, now }
    }

    #[test]
    fn a_pool_with_windows_reports_whether_one_is_open() {
        let window = |schedule: &str| json!([{"schedule": schedule, "durationSeconds": 3600}]);
        for (about, windows, expected) in [
            ("no windows", json!(null), vec![]),
            ("an empty list", json!([]), vec![]),
            ("open", window("30 11 * * *"), vec![1]),
            ("closed", window("0 3 * * *"), vec![0]),
            ("unreadable", window("0 3 * *"), vec![0]),
        ] {
            let spec = json!({"inventory": {}, "rollout": {"maintenanceWindows": windows}});
            let values: Vec<i64> = pool(spec).window().into_iter().map(|(_, value)| value).collect();
            assert_eq!(values, expected, "{about}");
        }
    }

    #[test]
    fn unhealthy_hosts_are_named_up_to_a_limit_and_failed_ones_first() {
        let failures =
            json!({"count": 1, "firstTime": "2027-01-01T00:00:00Z", "lastReason": "Unreachable", "lastMessage": "x"});
        let not_ready = json!([{"type": "Ready", "status": "False", "reason": "NodeNotReady", "message": "", "lastTransitionTime": "2027-01-01T00:00:00Z"}]);
        let of = |statuses: &[(String, serde_json::Value)]| {
            let mut pool = pool(json!({"inventory": {}}));
            let host = |(name, status): &(String, serde_json::Value)| {
                let mut instance = WindowsInstance::new(name, api::WindowsInstanceSpec::default());
                instance.status = Some(serde_json::from_value(status.clone()).unwrap());
                Host { instance: Arc::new(instance), node: None }
            };
            pool.hosts = statuses.iter().map(host).collect();
            pool.unhealthy_hosts().into_iter().map(|(labels, value)| format!("{} {value}", labels.join(" ")))
        };
        for (about, status, expected) in [
            ("new", json!({}), None),
            ("Ready", json!({"phase": "Ready", "conditions": not_ready}), None),
            ("joining", json!({"phase": "Joining", "conditions": not_ready}), None),
            ("not Ready", json!({"phase": "NotReady", "conditions": not_ready}), Some("w NotReady NodeNotReady 1")),
            ("failed", json!({"phase": "Failed", "failures": failures}), Some("w Failed Unreachable 1")),
            ("retried", json!({"phase": "Joining", "failures": failures}), Some("w Joining Unreachable 1")),
        ] {
            assert_eq!(of(&[("w".into(), status)]).next().as_deref(), expected, "{about}");
        }
        let mut many: Vec<_> =
            (0..MAX_HOSTS).map(|n| (format!("a-{n}"), json!({"phase": "NotReady", "conditions": not_ready}))).collect();
        many.push(("z".into(), json!({"phase": "Failed", "failures": failures})));
        let shown: Vec<String> = of(&many).collect();
        assert_eq!((shown.len(), shown[0].as_str()), (MAX_HOSTS, "z Failed Unreachable 1"));
    }

    #[test]
    fn a_pool_is_idle_while_it_is_paused_or_only_plans() {
        let idle = GAUGES.iter().find(|gauge| gauge.name == "idle").unwrap();
        for (about, fields, expected) in [
            ("at work", json!({}), 0),
            ("paused", json!({"rollout": {"paused": true}}), 1),
            ("paused for a while", json!({"rollout": {"pausedUntil": "2027-01-01T13:00:00Z"}}), 1),
            ("a pause that is over", json!({"rollout": {"pausedUntil": "2027-01-01T11:00:00Z"}}), 0),
            ("plans", json!({"mode": "Plan"}), 1),
        ] {
            let mut spec = json!({"inventory": {}});
            spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            assert_eq!((idle.samples)(&pool(spec)), [(vec![], expected)], "{about}");
        }
    }

    #[test]
    fn a_source_has_only_its_own_samples() {
        let at = Timestamp::from_second(1_798_761_600).unwrap();
        let sources = Sources::default();
        sources.succeeded("p", "git", at);
        let git = json!({"inventory": {"git": {"url": "https://git.example.com/hosts"}}});
        let map = json!({"inventory": {"configMapRef": {"name": "hosts"}}});
        let own = json!({"inventory": {"hosts": []}});
        let samples = |spec: &serde_json::Value| {
            let mut pool = pool(spec.clone());
            let source = pool.object.spec.inventory.source();
            pool.source = source.and_then(|source| sources.of("p", source));
            (pool.source_success(), pool.source_up())
        };
        let of_git = |value| vec![(vec!["git".to_owned()], value)];
        for (about, spec, expected) in [
            ("the source that succeeded", &git, (of_git(1_798_761_600), of_git(1))),
            ("another source since then", &map, (vec![], vec![])),
            ("no source", &own, (vec![], vec![])),
        ] {
            assert_eq!(samples(spec), expected, "{about}");
        }
        sources.failed("p", "git");
        assert_eq!(samples(&git), (of_git(1_798_761_600), of_git(0)), "it fails");
        sources.failed("p", "configMapRef");
        assert_eq!(samples(&map).0, [], "another source succeeded");
        sources.keep(&std::collections::HashSet::new());
        assert_eq!(sources.of("p", "configMapRef"), None, "a deleted pool");
    }
}
