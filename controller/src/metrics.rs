//! Metrics, all with the prefix `windows_node_pool_`. Labels are pools, steps and reasons: never addresses, users or keys.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};
use remote::Traffic;

/// Label set with a pool and a state.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct PoolState {
    /// Name of the pool.
    pub pool: String,
    /// As `ready`, `failed`.
    pub state: &'static str,
}

/// Label set with a step.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct StepLabel {
    /// As `Upload`.
    pub step: &'static str,
}

/// Label set with a reason.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ReasonLabel {
    /// As `ConnectTimeout`.
    pub reason: String,
}

/// Label set with the kind of an object.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct KindLabel {
    /// As `WindowsInstance`.
    pub kind: &'static str,
}

/// All metrics.
pub struct Metrics {
    registry: Registry,
    /// Hosts by pool and state.
    pub nodes: Family<PoolState, Gauge>,
    /// Duration of steps.
    pub step_seconds: Family<StepLabel, Histogram>,
    /// Failed attempts by reason.
    pub failures: Family<ReasonLabel, Counter>,
    /// Traffic with hosts.
    pub traffic: Traffic,
    /// Bytes received from Git servers.
    pub git_received: Counter,
    /// Writes to the API server, without leases.
    pub api_writes: Family<KindLabel, Counter>,
    /// Changes on hosts that the operator has not made.
    pub drift: Counter,
    /// Certificate requests by verdict.
    pub csr_verdicts: Family<ReasonLabel, Counter>,
    /// Whether this process leads.
    pub leader: Gauge,
    /// Reconcile errors.
    pub reconcile_errors: Family<KindLabel, Counter>,
    /// Age of the process image, for `rate` over restarts.
    pub start_time: Gauge<f64, AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("windows_node_pool");
        let nodes = Family::default();
        registry.register("nodes", "Hosts by pool and state", nodes.clone());
        let step_seconds: Family<StepLabel, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.1, 2.5, 10)));
        registry.register_with_unit(
            "step_duration",
            "Duration of the steps of operations",
            Unit::Seconds,
            step_seconds.clone(),
        );
        let failures = Family::default();
        registry.register("failures", "Failed attempts by reason", failures.clone());
        let traffic = Traffic::default();
        registry.register("ssh_connections", "Opened SSH connections", traffic.connections.clone());
        registry.register("ssh_connections_open", "Open SSH connections", traffic.open.clone());
        registry.register("host_processes", "Programs started on hosts", traffic.processes.clone());
        registry.register_with_unit("host_sent", "Bytes sent to hosts", Unit::Bytes, traffic.sent.clone());
        let git_received = Counter::default();
        registry.register_with_unit(
            "git_received",
            "Bytes received from Git servers",
            Unit::Bytes,
            git_received.clone(),
        );
        let api_writes = Family::default();
        registry.register("api_writes", "Writes to the API server by kind, without leases", api_writes.clone());
        let drift = Counter::default();
        registry.register("drift", "Changes on hosts that the operator did not make", drift.clone());
        let csr_verdicts = Family::default();
        registry.register("csr_verdicts", "Certificate requests by verdict", csr_verdicts.clone());
        let leader = Gauge::default();
        registry.register("leader", "1 while this process leads", leader.clone());
        let reconcile_errors = Family::default();
        registry.register("reconcile_errors", "Reconcile errors by kind", reconcile_errors.clone());
        let start_time = Gauge::<f64, AtomicU64>::default();
        registry.register_with_unit("process_start_time", "Unix time of the start", Unit::Seconds, start_time.clone());
        #[expect(clippy::cast_precision_loss, reason = "seconds of the Unix epoch fit")]
        start_time.set(jiff::Timestamp::now().as_millisecond() as f64 / 1000.0);
        Self {
            registry,
            nodes,
            step_seconds,
            failures,
            traffic,
            git_received,
            api_writes,
            drift,
            csr_verdicts,
            leader,
            reconcile_errors,
            start_time,
        }
    }
}

impl Metrics {
    /// Counts a write to the API server.
    pub fn wrote(&self, kind: &'static str) {
        self.api_writes.get_or_create(&KindLabel { kind }).inc();
    }

    /// Counts a failed attempt.
    pub fn failed(&self, reason: &str) {
        self.failures.get_or_create(&ReasonLabel { reason: reason.into() }).inc();
    }

    /// OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_what_was_counted() {
        let metrics = Metrics::default();
        metrics.failed("ConnectTimeout");
        metrics.wrote("Node");
        let text = metrics.render();
        assert!(text.contains("windows_node_pool_failures_total{reason=\"ConnectTimeout\"} 1"), "{text}");
        assert!(text.contains("windows_node_pool_api_writes_total{kind=\"Node\"} 1"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
