//! Metrics of the operator. All except the metrics of the process have the prefix `windows_node_pool_`. No label has addresses, users or keys.

pub(crate) mod exposition;
mod hosts;
mod labels;
mod pools;
mod process;
mod sources;

use std::collections::{BTreeMap, HashSet};

use api::{GrantType, Reason, WindowsInstance, WindowsNodePool};
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt, runtime::reflector::Store};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::text::{encode, encode_registry},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Metric, Registry, Unit},
};
use remote::Traffic;

use labels::OfPool;
pub use labels::{
    Build, FaultLabel, KindLabel, Labels, PolicyLabel, PoolOperation, PoolReason, ReasonLabel, ResourceLabel, StepLabel,
};
use pools::{GAUGES, PoolCollector};
use process::ThisProcess;
use sources::Sources;

const PREFIX: &str = "windows_node_pool";

/// Counter family whose series are dropped when their pools are deleted.
struct PerPool<L> {
    family: Family<L, Counter>,
    series: Mutex<HashSet<L>>,
}

impl<L: OfPool + Clone + Eq + std::hash::Hash> PerPool<L> {
    fn new(family: Family<L, Counter>) -> Self {
        Self { family, series: Mutex::default() }
    }

    fn inc(&self, labels: L) {
        self.family.get_or_create(&labels).inc();
        self.series.lock().insert(labels);
    }

    /// Drops the series of all pools except these.
    fn keep(&self, pools: &HashSet<String>) {
        self.series.lock().retain(|labels| {
            let stays = pools.contains(labels.pool());
            if !stays {
                self.family.remove(labels);
            }
            stays
        });
    }
}

/// Type and labels of a metric, for the generated metrics reference.
trait Kind {
    const TYPE: &'static str;
    const LABELS: &'static [(&'static str, &'static str)] = &[];
}

impl Kind for Counter {
    const TYPE: &'static str = "counter";
}

impl<N, A> Kind for Gauge<N, A> {
    const TYPE: &'static str = "gauge";
}

impl Kind for Histogram {
    const TYPE: &'static str = "histogram";
}

impl<L: Labels, M: Kind, C> Kind for Family<L, M, C> {
    const TYPE: &'static str = M::TYPE;
    const LABELS: &'static [(&'static str, &'static str)] = L::LABELS;
}

/// Description of a metric, for the generated metrics reference.
#[derive(Debug)]
pub struct Description {
    /// Name in the output. For a histogram, the name without `_bucket`, `_sum` and `_count`.
    pub name: String,
    /// Type as in OpenMetrics.
    pub type_: &'static str,
    /// Unit as in OpenMetrics, or empty for plain numbers.
    pub unit: String,
    /// Names and meanings of the labels.
    pub labels: &'static [(&'static str, &'static str)],
    /// Help text in the output.
    pub help: &'static str,
}

/// Registry that describes each metric when it is registered, so that the metrics reference is complete.
struct Described {
    registry: Registry,
    descriptions: Vec<Description>,
}

impl Described {
    fn add<M: Metric + Kind + Clone + Default>(&mut self, name: &'static str, help: &'static str) -> M {
        self.register(name, None, help, M::default())
    }

    fn add_in<M: Metric + Kind + Clone + Default>(&mut self, unit: Unit, name: &'static str, help: &'static str) -> M {
        self.register(name, Some(unit), help, M::default())
    }

    fn register<M: Metric + Kind + Clone>(
        &mut self,
        name: &'static str,
        unit: Option<Unit>,
        help: &'static str,
        metric: M,
    ) -> M {
        self.describe(&format!("{PREFIX}_{name}"), unit.as_ref(), M::TYPE, M::LABELS, help);
        match unit {
            Some(unit) => self.registry.register_with_unit(name, help, unit, metric.clone()),
            None => self.registry.register(name, help, metric.clone()),
        }
        metric
    }

    /// Describes the metrics that are collected at each scrape.
    fn describe_collected(&mut self) {
        for gauge in GAUGES {
            let name = format!("{PREFIX}_{}", gauge.name);
            self.describe(&name, gauge.unit.as_ref(), "gauge", gauge.labels, gauge.help);
        }
        for (name, type_, unit, help) in process::ALL {
            let type_ = if matches!(type_, MetricType::Counter) { Counter::TYPE } else { "gauge" };
            self.describe(name, unit.as_ref(), type_, &[], help);
        }
    }

    fn describe(
        &mut self,
        name: &str,
        unit: Option<&Unit>,
        type_: &'static str,
        labels: &'static [(&'static str, &'static str)],
        help: &'static str,
    ) {
        let suffix = unit.map(|unit| format!("_{}", unit.as_str())).unwrap_or_default();
        let total = if type_ == Counter::TYPE { "_total" } else { "" };
        self.descriptions.push(Description {
            name: format!("{name}{suffix}{total}"),
            type_,
            unit: unit.map(|unit| unit.as_str().to_owned()).unwrap_or_default(),
            labels,
            help,
        });
    }
}

/// Source of a fault that keeps the operator from beginning any operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultSource {
    /// The operator has no usable release for hosts.
    Release,
    /// WMCO, the legacy operator, runs or is not known to be gone.
    OtherOperator,
    /// The operator cannot read the current state of the cluster, or cannot write statuses.
    ClusterView,
}

/// All metrics of the operator.
pub struct Metrics {
    registry: Mutex<Registry>,
    /// Metrics without a prefix.
    process: Registry,
    descriptions: Vec<Description>,
    /// Durations of steps.
    pub step_seconds: Family<StepLabel, Histogram>,
    /// Failed attempts to work on hosts, by pool and reason.
    failures: PerPool<PoolReason>,
    /// Ended attempts at operations.
    operations: PerPool<PoolOperation>,
    /// States of the host sources.
    sources: Sources,
    /// Watch cache of pools, or `None` before pools are watched.
    known: Mutex<Option<Store<WindowsNodePool>>>,
    /// Traffic with hosts.
    pub traffic: Traffic,
    /// Bytes received from Git servers.
    pub git_received: Counter,
    /// Writes to the API server, without Leases.
    pub api_writes: Family<ResourceLabel, Counter>,
    /// Changes on hosts that the operator did not make.
    pub drift: Counter,
    /// Certificate requests by verdict.
    pub csr_verdicts: Family<ReasonLabel, Counter>,
    /// 1 while this process leads.
    pub leader: Gauge,
    /// Reasons why the operator begins no operation.
    faults: Family<FaultLabel, Gauge>,
    faults_known: Mutex<BTreeMap<FaultSource, Reason>>,
    /// State of each admission policy: 1 if it is in force.
    pub policies: Family<PolicyLabel, Gauge>,
    /// Lifetime of the certificates of hosts' daemons, in seconds.
    pub host_certificate_lifetime: Gauge,
    /// Reconciles by kind of object.
    reconciles: Family<KindLabel, Counter>,
    /// Reconcile errors by kind of object.
    reconcile_errors: Family<KindLabel, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut all = Described { registry: Registry::with_prefix(PREFIX), descriptions: Vec::new() };
        let revision = crate::args::revision().unwrap_or("unknown");
        let build: Family<Build, Gauge> = all.add("build_info", "Build of the operator; the value is 1");
        build.get_or_create(&Build { version: crate::args::version(), revision }).set(1);
        all.describe_collected();
        #[expect(clippy::cast_precision_loss, reason = "seconds of the Unix epoch fit")]
        let start = jiff::Timestamp::now().as_millisecond() as f64 / 1000.0;
        let mut process = Registry::default();
        process.register_collector(Box::new(ThisProcess { start }));
        let durations =
            Family::<StepLabel, Histogram>::new_with_constructor(|| Histogram::new(exponential_buckets(0.1, 2.5, 10)));
        // The order of the registrations is the order of the output.
        Self {
            step_seconds: all.register(
                "step_duration",
                Some(Unit::Seconds),
                "Duration of the steps of operations",
                durations,
            ),
            failures: PerPool::new(all.add("failures", "Failed attempts to work on hosts, by pool and reason")),
            operations: PerPool::new(all.add("operations", "Ended attempts at operations by pool, kind and result")),
            traffic: Traffic {
                connections: all.add("ssh_connections", "Attempts to open an SSH connection to a host"),
                open: all.add("ssh_connections_open", "Open SSH connections"),
                processes: all.add("host_processes", "Requests to start a program on a host"),
                sent: all.add_in(Unit::Bytes, "host_sent", "Bytes of requests and files sent to hosts"),
            },
            git_received: all.add_in(Unit::Bytes, "git_received", "Bytes received from Git servers"),
            api_writes: all.add("api_writes", "Writes to the API server by resource, without leases"),
            drift: all.add("drift", "Changes on hosts that the operator did not make"),
            csr_verdicts: all.add(
                "csr_verdicts",
                "Certificate requests by verdict, without the first certificates that the operator requests itself",
            ),
            leader: all.add("leader", "1 while this process leads"),
            faults: all.add("fault", "1 for the reason why the operator begins no operation"),
            policies: all.add(
                "policy_in_force",
                "1 if the admission policy is in force as it ships, 0 if it is missing or differs",
            ),
            host_certificate_lifetime: all.add_in(
                Unit::Seconds,
                "host_certificate_lifetime",
                "Lifetime of the certificates of hosts' daemons, as the operator requests it",
            ),
            reconciles: all.add("reconciles", "Reconciles by kind"),
            reconcile_errors: all.add("reconcile_errors", "Reconcile errors by kind"),
            sources: Sources::default(),
            known: Mutex::default(),
            faults_known: Mutex::default(),
            registry: Mutex::new(all.registry),
            descriptions: all.descriptions,
            process,
        }
    }
}

impl Metrics {
    /// Counts a write to the API server, of a resource or its subresource.
    pub fn wrote(&self, (resource, subresource): (&str, Option<&str>)) {
        let resource = subresource.map_or_else(|| resource.to_owned(), |sub| format!("{resource}/{sub}"));
        self.api_writes.get_or_create(&ResourceLabel { resource }).inc();
    }

    /// Counts a reconcile of an object of this kind.
    pub fn reconciled(&self, kind: &'static str) {
        self.reconciles.get_or_create(&KindLabel { kind }).inc();
    }

    /// Counts a failed reconcile of an object of this kind.
    pub fn reconcile_failed(&self, kind: &'static str) {
        self.reconcile_errors.get_or_create(&KindLabel { kind }).inc();
    }

    /// Records the reason why the operator begins no operation, or its end, for one source of faults. Faults of other sources stay recorded.
    pub fn fault(&self, of: FaultSource, reason: Option<Reason>) {
        let mut known = self.faults_known.lock();
        match reason {
            Some(reason) => known.insert(of, reason),
            None => known.remove(&of),
        };
        self.faults.clear();
        for reason in known.values() {
            self.faults.get_or_create(&FaultLabel { reason: (*reason).into() }).set(1);
        }
    }

    /// Counts a failed attempt on a host of a pool.
    pub fn failed(&self, pool: &str, reason: Reason) {
        self.failures.inc(PoolReason { pool: pool.into(), reason: reason.into() });
    }

    /// Counts the end of an attempt at an operation.
    pub fn ended(&self, pool: &str, operation: GrantType, succeeded: bool) {
        let result = if succeeded { "succeeded" } else { "failed" };
        self.operations.inc(PoolOperation { pool: pool.into(), operation: operation.as_str(), result });
    }

    /// Records the time at which the source of a pool's hosts last succeeded.
    pub fn source_succeeded(&self, pool: &str, source: &'static str, at: jiff::Timestamp) {
        self.sources.succeeded(pool, source, at);
    }

    /// Records that the source of a pool's hosts cannot be read, or that its content cannot be used.
    pub fn source_failed(&self, pool: &str, source: &'static str) {
        self.sources.failed(pool, source);
    }

    /// Adds the metrics of the pools in these caches.
    pub fn show(&self, pools: Store<WindowsNodePool>, instances: Store<WindowsInstance>, nodes: Store<Node>) {
        *self.known.lock() = Some(pools.clone());
        self.registry.lock().register_collector(Box::new(PoolCollector {
            pools,
            instances,
            nodes,
            sources: self.sources.clone(),
        }));
    }

    /// Drops the series of deleted pools.
    fn forget_deleted_pools(&self) {
        let Some(pools) = self.known.lock().clone() else { return };
        let names: HashSet<String> = pools.state().iter().map(|pool| pool.name_any()).collect();
        self.failures.keep(&names);
        self.operations.keep(&names);
        self.sources.keep(&names);
    }

    /// Returns the descriptions of all metrics, for the generated metrics reference.
    pub fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    /// Returns all metrics as OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        self.forget_deleted_pools();
        // Writing to a String cannot fail.
        let _ = encode_registry(&mut text, &self.process);
        let _ = encode(&mut text, &self.registry.lock());
        text
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };

    use kube::runtime::{reflector::store::Writer, watcher::Event};
    use serde_json::{Value, json};

    use super::*;

    const TIME: &str = "2027-01-01T00:00:00Z";

    fn pool() -> WindowsNodePool {
        let condition = json!({
            "type": "Degraded", "status": "True", "reason": "NodesFailed", "message": "", "lastTransitionTime": TIME,
        });
        let spec = json!({
            "inventory": {"git": {"url": "https://git.example.com/hosts"}},
            "rollout": {"maintenanceWindows": [{"schedule": "0 * * * *", "durationSeconds": 3600}]},
        });
        let mut pool = WindowsNodePool::new("p", serde_json::from_value(spec).unwrap());
        pool.status = serde_json::from_value(json!({"conditions": [condition], "readyNodes": 3})).unwrap();
        pool
    }

    fn instance(name: &str, status: &Value) -> WindowsInstance {
        let mut instance = WindowsInstance::new(name, api::WindowsInstanceSpec::default());
        instance.spec.pool_ref.name = "p".into();
        instance.status = Some(serde_json::from_value(status.clone()).unwrap());
        instance
    }

    /// Returns the status of a host with a value for every sample.
    fn everything() -> Value {
        let drain = json!({"startTime": TIME, "blockers": ["a pod"]});
        json!({
            "phase": "Updating",
            "operation": {"id": "1", "type": "Update", "step": "Drain", "startTime": TIME, "stepStartTime": TIME, "drain": drain},
            "failures": {"count": 1, "firstTime": TIME, "lastReason": "x", "lastMessage": "y"},
            "wicdCertificateExpires": TIME,
        })
    }

    fn caches(
        pools: &[WindowsNodePool],
        instances: &[WindowsInstance],
    ) -> (Store<WindowsNodePool>, Store<WindowsInstance>) {
        let (mut of_pools, mut of_instances) = (Writer::default(), Writer::default());
        for pool in pools {
            of_pools.apply_watcher_event(&Event::Apply(pool.clone()));
        }
        for instance in instances {
            of_instances.apply_watcher_event(&Event::Apply(instance.clone()));
        }
        (of_pools.as_reader(), of_instances.as_reader())
    }

    #[test]
    fn each_host_is_in_one_phase_and_each_condition_has_one_status() {
        let metrics = Metrics::default();
        let hosts =
            [instance("a", &everything()), instance("b", &json!({"phase": "Ready"})), instance("c", &json!({}))];
        let (pools, instances) = caches(&[pool()], &hosts);
        metrics.show(pools, instances, Writer::default().as_reader());
        let text = metrics.render();
        for sample in [
            "windows_node_pool_hosts{pool=\"p\",phase=\"Ready\"} 1",
            "windows_node_pool_hosts{pool=\"p\",phase=\"Pending\"} 1",
            "windows_node_pool_hosts{pool=\"p\",phase=\"Updating\"} 1",
            "windows_node_pool_hosts{pool=\"p\",phase=\"Removing\"} 0",
            "windows_node_pool_nodes_ready{pool=\"p\"} 3",
            "windows_node_pool_hosts_refused{pool=\"p\"} 0",
            "windows_node_pool_window_open{pool=\"p\"} 1",
            "windows_node_pool_drain_blocked_nodes{pool=\"p\"} 1",
            "windows_node_pool_condition{pool=\"p\",type=\"Degraded\",status=\"true\"} 1",
            "windows_node_pool_condition{pool=\"p\",type=\"Degraded\",status=\"unknown\"} 0",
            "windows_node_pool_status_reason{pool=\"p\",type=\"Degraded\",status=\"true\",reason=\"NodesFailed\"} 1",
            "windows_node_pool_oldest_operation_start_timestamp_seconds{pool=\"p\",type=\"Update\"} 1798761600",
        ] {
            assert!(text.contains(sample), "{sample}: {text}");
        }
        let phases = text.lines().filter_map(|line| line.strip_prefix("windows_node_pool_hosts{")?.split(' ').nth(1));
        assert_eq!(phases.map(|n| n.parse::<usize>().unwrap()).sum::<usize>(), hosts.len());
        for name in [
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_start_time_seconds",
        ] {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
            assert!(value.is_some_and(|value| value >= 0.0), "{name}: {text}");
        }
    }

    #[test]
    fn a_fault_that_ends_leaves_the_others() {
        let metrics = Metrics::default();
        let (a, b) = (Reason::PayloadInvalid, Reason::AnotherOperator);
        let shown = || [a, b].map(|reason| metrics.render().contains(&format!("fault{{reason=\"{reason}\"}} 1")));
        metrics.fault(FaultSource::Release, Some(a));
        metrics.fault(FaultSource::OtherOperator, Some(b));
        assert_eq!(shown(), [true, true]);
        metrics.fault(FaultSource::Release, None);
        assert_eq!(shown(), [false, true]);
        metrics.fault(FaultSource::OtherOperator, Some(a));
        assert_eq!(shown(), [true, false]);
        metrics.fault(FaultSource::OtherOperator, None);
        assert_eq!(shown(), [false, false]);
    }

    #[test]
    fn a_deleted_pool_has_no_series() {
        let metrics = Metrics::default();
        let mut pools = Writer::default();
        pools.apply_watcher_event(&Event::Apply(pool()));
        metrics.show(pools.as_reader(), caches(&[], &[]).1, Writer::default().as_reader());
        metrics.failed("p", Reason::Unreachable);
        metrics.ended("p", GrantType::Update, true);
        metrics.source_succeeded("p", "git", TIME.parse().unwrap());
        assert!(
            metrics.render().contains("source_last_success_timestamp_seconds{pool=\"p\",source=\"git\"} 1798761600")
        );
        assert!(metrics.render().contains("pool=\"p\",operation=\"Update\",result=\"succeeded\"} 1"));
        assert!(metrics.render().contains("pool=\"p\",reason=\"Unreachable\""));
        pools.apply_watcher_event(&Event::Delete(pool()));
        let text = metrics.render();
        assert!(!text.contains("pool=\"p\""), "{text}");
    }

    /// Returns metrics with a sample of each metric.
    fn full() -> Metrics {
        let metrics = Metrics::default();
        let (pools, instances) = caches(&[pool()], &[instance("a", &everything())]);
        metrics.show(pools, instances, Writer::default().as_reader());
        metrics.failed("p", Reason::InternalError);
        metrics.ended("p", GrantType::Update, false);
        metrics.source_succeeded("p", "git", TIME.parse().unwrap());
        metrics.step_seconds.get_or_create(&StepLabel { step: "Upload" }).observe(1.0);
        metrics.csr_verdicts.get_or_create(&ReasonLabel { reason: "x".into() }).inc();
        metrics.wrote(("x", None));
        metrics.fault(FaultSource::Release, Some(Reason::InternalError));
        metrics.reconciled("x");
        metrics.reconcile_failed("x");
        metrics.policies.get_or_create(&PolicyLabel { policy: "x".into() }).set(1);
        metrics
    }

    #[test]
    fn a_strict_parser_reads_the_text() {
        let metrics = full();
        // The parser accepts no unit of a histogram, which OpenMetrics allows.
        let text = metrics.render().replace("# UNIT windows_node_pool_step_duration_seconds seconds\n", "");
        let parsed = openmetrics_parser::openmetrics::parse_openmetrics(&text).unwrap();
        assert_eq!(parsed.families.len(), metrics.descriptions().len());
        let cut = text.trim_end_matches("# EOF\n");
        assert!(openmetrics_parser::openmetrics::parse_openmetrics(cut).is_err(), "the parser takes everything");
    }

    /// promtool also checks the names, after <https://prometheus.io/docs/practices/naming/>.
    #[test]
    fn promtool_accepts_the_older_format() {
        let text = exposition::Format::Prometheus.write(full().render());
        assert!(text.contains("# TYPE windows_node_pool_reconcile_errors_total counter\n"), "{text}");
        let mut promtool = Command::new(testbed::binaries::promtool().unwrap());
        let mut promtool =
            promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stdout));
    }

    #[test]
    fn the_descriptions_match_the_text() {
        let metrics = full();
        let text = metrics.render();
        assert_eq!(text.lines().filter(|line| line.starts_with("# TYPE ")).count(), metrics.descriptions().len());
        for Description { name, type_, unit, labels, help } in metrics.descriptions() {
            let family = name.trim_end_matches("_total");
            assert!(text.contains(&format!("# TYPE {family} {type_}\n")), "{family}: {text}");
            assert!(text.contains(&format!("# HELP {family} {help}.\n")), "{family}: {text}");
            assert!(unit.is_empty() || text.contains(&format!("# UNIT {family} {unit}\n")), "{family}: {text}");
            let is_taken = labels.iter().any(|(label, _)| ["job", "instance"].contains(label));
            assert!(!is_taken, "{name}: Prometheus sets this label itself");
            let sample = if *type_ == "histogram" { format!("{name}_sum") } else { name.clone() };
            let labels: Vec<String> = labels.iter().map(|(label, _)| format!("{label}=\"")).collect();
            let sample = text.lines().find(|line| line.starts_with(&sample)).unwrap_or_default();
            assert!(
                !sample.is_empty() && labels.iter().all(|label| sample.contains(label.as_str())),
                "{name}: {sample}"
            );
        }
    }

    #[test]
    fn the_text_has_the_counted_values() {
        let metrics = Metrics::default();
        metrics.failed("p", Reason::Unreachable);
        metrics.wrote(("pods", Some("eviction")));
        let text = metrics.render();
        assert!(text.contains("windows_node_pool_failures_total{pool=\"p\",reason=\"Unreachable\"} 1"), "{text}");
        assert!(text.contains("windows_node_pool_api_writes_total{resource=\"pods/eviction\"} 1"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
