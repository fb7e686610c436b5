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
    registry::{Metric, Registry, Unit},
};
use remote::Traffic;

const PREFIX: &str = "windows_node_pool";

/// Makes a label set whose labels have meanings, in Markdown.
macro_rules! labels {
    ($(#[doc = $about:literal])+ $set:ident { $($label:ident: $type:ty = $meaning:literal,)+ }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
        pub struct $set {
            $(#[doc = $meaning] pub $label: $type,)+
        }

        impl Labels for $set {
            const LABELS: &'static [(&'static str, &'static str)] = &[$((stringify!($label), $meaning)),+];
        }
    };
}

labels! {
    /// Label set with a pool and a state.
    PoolState {
        pool: String = "Name of the pool.",
        state: &'static str = "`total`, `joined`, `ready`, `available`, `updated`, `leaving` or `failed`.",
    }
}

labels! {
    /// Label set with a step.
    StepLabel {
        step: &'static str = "Step of the operation, as in `status.operation.step` of the instance, for example `Upload`.",
    }
}

labels! {
    /// Label set with a reason.
    ReasonLabel {
        reason: String = "[Reason](conditions.md#a-host) of the failure. Of a certificate request: `Approve`, `Wait`, or the \
                          [reason](conditions.md#denied-certificate-requests) of the denial.",
    }
}

labels! {
    /// Label set with the kind of an object.
    KindLabel {
        kind: &'static str = "Kind of the object, for example `WindowsInstance`.",
    }
}

labels! {
    /// Label set with a resource.
    ResourceLabel {
        resource: String = "Resource, with its subresource, for example `nodes` or `windowsinstances/status`.",
    }
}

/// Labels of a family, with their meanings.
pub trait Labels {
    /// Name and meaning.
    const LABELS: &'static [(&'static str, &'static str)];
}

/// What the reference needs to know of a metric's type.
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

/// A metric, for the reference.
#[derive(Debug)]
pub struct Description {
    /// As in the output; of a histogram without `_bucket`, `_sum` and `_count`.
    pub name: String,
    /// As OpenMetrics calls it.
    pub type_: &'static str,
    /// As OpenMetrics calls it; empty for plain numbers.
    pub unit: String,
    /// Names and meanings.
    pub labels: &'static [(&'static str, &'static str)],
    /// As in the output.
    pub help: &'static str,
}

/// A registry that describes each metric with its registration, so that none is without a row in the reference.
struct Described {
    registry: Registry,
    descriptions: Vec<Description>,
}

impl Described {
    fn add<M: Metric + Kind + Clone>(
        &mut self,
        name: &'static str,
        unit: Option<Unit>,
        help: &'static str,
        metric: M,
    ) -> M {
        let suffix = unit.as_ref().map(|unit| format!("_{}", unit.as_str())).unwrap_or_default();
        let total = if M::TYPE == Counter::TYPE { "_total" } else { "" };
        self.descriptions.push(Description {
            name: format!("{PREFIX}_{name}{suffix}{total}"),
            type_: M::TYPE,
            unit: unit.as_ref().map(|unit| unit.as_str().to_owned()).unwrap_or_default(),
            labels: M::LABELS,
            help,
        });
        match unit {
            Some(unit) => self.registry.register_with_unit(name, help, unit, metric.clone()),
            None => self.registry.register(name, help, metric.clone()),
        }
        metric
    }
}

/// All metrics.
pub struct Metrics {
    registry: Registry,
    descriptions: Vec<Description>,
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
    pub api_writes: Family<ResourceLabel, Counter>,
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
        let mut all = Described { registry: Registry::with_prefix(PREFIX), descriptions: Vec::new() };
        let durations =
            Family::<StepLabel, Histogram>::new_with_constructor(|| Histogram::new(exponential_buckets(0.1, 2.5, 10)));
        let nodes = all.add("nodes", None, "Hosts by pool and state", Family::default());
        let step_seconds =
            all.add("step_duration", Some(Unit::Seconds), "Duration of the steps of operations", durations);
        let failures = all.add("failures", None, "Failed attempts by reason", Family::default());
        let traffic = Traffic {
            connections: all.add("ssh_connections", None, "Opened SSH connections", Counter::default()),
            open: all.add("ssh_connections_open", None, "Open SSH connections", Gauge::default()),
            processes: all.add("host_processes", None, "Programs started on hosts", Counter::default()),
            sent: all.add("host_sent", Some(Unit::Bytes), "Bytes sent to hosts", Counter::default()),
        };
        let git_received =
            all.add("git_received", Some(Unit::Bytes), "Bytes received from Git servers", Counter::default());
        let api_writes =
            all.add("api_writes", None, "Writes to the API server by resource, without leases", Family::default());
        let drift = all.add("drift", None, "Changes on hosts that the operator did not make", Counter::default());
        let csr_verdicts = all.add("csr_verdicts", None, "Certificate requests by verdict", Family::default());
        let leader = all.add("leader", None, "1 while this process leads", Gauge::default());
        let reconcile_errors = all.add("reconcile_errors", None, "Reconcile errors by kind", Family::default());
        let start_time: Gauge<f64, AtomicU64> =
            all.add("process_start_time", Some(Unit::Seconds), "Unix time of the start", Gauge::default());
        #[expect(clippy::cast_precision_loss, reason = "seconds of the Unix epoch fit")]
        start_time.set(jiff::Timestamp::now().as_millisecond() as f64 / 1000.0);
        Self {
            registry: all.registry,
            descriptions: all.descriptions,
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
    /// Counts a write to the API server, of a resource and perhaps its subresource.
    pub fn wrote(&self, (resource, subresource): (&str, Option<&str>)) {
        let resource = subresource.map_or_else(|| resource.to_owned(), |sub| format!("{resource}/{sub}"));
        self.api_writes.get_or_create(&ResourceLabel { resource }).inc();
    }

    /// Counts a failed attempt.
    pub fn failed(&self, reason: &str) {
        self.failures.get_or_create(&ReasonLabel { reason: reason.into() }).inc();
    }

    /// All metrics, for the reference.
    pub fn descriptions(&self) -> &[Description] {
        &self.descriptions
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
    fn each_description_is_that_of_the_text() {
        let metrics = Metrics::default();
        metrics.nodes.get_or_create(&PoolState { pool: "p".into(), state: "ready" }).set(1);
        metrics.step_seconds.get_or_create(&StepLabel { step: "Upload" }).observe(1.0);
        for family in [&metrics.failures, &metrics.csr_verdicts] {
            family.get_or_create(&ReasonLabel { reason: "x".into() }).inc();
        }
        metrics.wrote(("x", None));
        metrics.reconcile_errors.get_or_create(&KindLabel { kind: "x" }).inc();
        let text = metrics.render();
        assert_eq!(text.lines().filter(|line| line.starts_with("# TYPE ")).count(), metrics.descriptions().len());
        for Description { name, type_, unit, labels, help } in metrics.descriptions() {
            let family = name.trim_end_matches("_total");
            assert!(text.contains(&format!("# TYPE {family} {type_}\n")), "{family}: {text}");
            assert!(text.contains(&format!("# HELP {family} {help}.\n")), "{family}: {text}");
            assert!(unit.is_empty() || text.contains(&format!("# UNIT {family} {unit}\n")), "{family}: {text}");
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
    fn the_text_has_what_was_counted() {
        let metrics = Metrics::default();
        metrics.failed("ConnectTimeout");
        metrics.wrote(("pods", Some("eviction")));
        let text = metrics.render();
        assert!(text.contains("windows_node_pool_failures_total{reason=\"ConnectTimeout\"} 1"), "{text}");
        assert!(text.contains("windows_node_pool_api_writes_total{resource=\"pods/eviction\"} 1"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
