//! The traces of a host's life, as a collector has them.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    sync::Arc,
};

use api::GrantType;
use axum::http::StatusCode;
use clap::Parser as _;
use opentelemetry_proto::tonic::trace::v1::{Span, status::StatusCode as SpanStatus};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use testbed::{
    collector::{Collector, attribute},
    sim::Fault,
};
use tracing_subscriber::{filter::LevelFilter, fmt, layer::SubscriberExt as _};

use super::executor_tests::World;
use crate::{
    args::Run,
    fake_api::AtWrite,
    traces::{self, Exporter},
};

/// A host whose operator sends traces to a collector.
async fn traced() -> (World, Collector, Exporter) {
    let collector = Collector::start(StatusCode::OK).await.unwrap();
    let args = Run::parse_from(["run", "--otlp-endpoint", &collector.url()]);
    let (traces, exporter) = traces::start(&args, "operator-1", Counter::default()).unwrap();
    let mut world = World::new().await;
    world.bed.trace_to(traces);
    (world, collector, exporter.unwrap())
}

fn trace_id(world: &World) -> Option<String> {
    world.instance()?["status"]["traceId"].as_str().map(str::to_owned)
}

/// One operation as the collector has it.
#[derive(Debug)]
struct Trace {
    id: String,
    root: Span,
    steps: Vec<Span>,
}

impl Trace {
    fn steps(&self) -> Vec<&str> {
        self.steps.iter().map(|s| s.name.as_str()).collect()
    }
}

/// All traces, in the order in which they began. Each has one root, and all else is below it.
fn traces_of(collector: &Collector) -> Vec<Trace> {
    let mut ids = Vec::new();
    let mut all: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    for span in collector.spans() {
        let id = hex::encode(&span.trace_id);
        if !ids.contains(&id) {
            ids.push(id.clone());
        }
        all.entry(id).or_default().push(span);
    }
    let trace = |id: String| {
        let (mut roots, steps): (Vec<_>, Vec<_>) =
            all[&id].iter().cloned().partition(|span| span.parent_span_id.is_empty());
        assert_eq!(roots.len(), 1, "{id}: {roots:?}");
        let root = roots.remove(0);
        for step in &steps {
            assert_eq!(step.parent_span_id, root.span_id, "{step:?}");
            assert!(step.start_time_unix_nano <= step.end_time_unix_nano, "{step:?}");
            assert!(root.start_time_unix_nano <= step.start_time_unix_nano, "{root:?} {step:?}");
            assert!(step.end_time_unix_nano <= root.end_time_unix_nano, "{root:?} {step:?}");
        }
        Trace { id, root, steps }
    };
    ids.into_iter().map(trace).collect()
}

/// The lines of a log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The trace of each line about a step.
    fn of_steps(&self) -> Vec<Option<String>> {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .filter(|line| line["step"].is_string())
            .map(|line| line["span"]["trace_id"].as_str().map(str::to_owned))
            .collect()
    }
}

#[tokio::test]
async fn a_join_an_update_and_a_removal_are_a_trace_each() {
    let log = Log::default();
    let writer = log.clone();
    let layer = fmt::layer().json().flatten_event(true).with_writer(move || writer.clone());
    // As long as there is one subscriber only, a line that a test of another thread logs first, without a subscriber, counts as logged by none.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _log = tracing::subscriber::set_default(tracing_subscriber::registry().with(LevelFilter::INFO).with(layer));

    let (mut world, collector, exporter) = traced().await;
    let version = world.publish(110);
    // The operator crashes in the middle of the join, and the next one continues.
    world.bed.api.at_write(3, AtWrite::Crash);
    world.grant("join-1", GrantType::Provision, &version, &json!({}));
    world.works_until("it has begun", |w| trace_id(w).is_some()).await;
    let joined = trace_id(&world).unwrap();
    assert!(world.instance().unwrap()["status"]["operation"].is_object(), "it was not interrupted");
    world.works_until("it joins", |w| w.follows(&version)).await;
    assert_eq!(trace_id(&world).as_ref(), Some(&joined), "the operation goes on in its trace");

    let other = world.publish(120);
    world.run_pod("cart");
    world.grant("update-1", GrantType::Update, &other, &json!({"version": other, "disruption": "Drain"}));
    world.works_until("it is updated", |w| w.follows(&other)).await;
    let updated = trace_id(&world).unwrap();
    world.take_out();
    world.works_until("it leaves", World::is_gone).await;
    exporter.finish().await;

    let traces = traces_of(&collector);
    let roots: Vec<&str> = traces.iter().map(|t| t.root.name.as_str()).collect();
    assert_eq!(roots, ["Provision", "Update", "Remove"]);
    assert_eq!([&traces[0].id, &traces[1].id], [&joined, &updated]);
    for Trace { root, steps, .. } in &traces {
        assert_eq!(attribute(root, "windows_node_pool.outcome").as_deref(), Some("succeeded"));
        for span in steps.iter().chain([root]) {
            assert_eq!(
                span.status.as_ref().map(opentelemetry_proto::tonic::trace::v1::Status::code),
                Some(SpanStatus::Ok),
                "{span:?}"
            );
            assert_eq!(attribute(span, "k8s.node.name").as_deref(), Some("win-1"));
        }
    }
    assert_eq!(attribute(&traces[1].root, "windows_node_pool.version"), Some(other));
    assert!(traces[0].steps().ends_with(&["Start", "Register"]), "{:?}", traces[0].steps());
    let update = ["Check", "Cordon", "Drain", "Connect", "Configure", "Start", "Register", "Uncordon"];
    assert_eq!(traces[1].steps(), update);
    assert_eq!(traces[2].steps(), ["Cordon", "Drain", "Deconfigure", "DeleteNode"]);

    let logged = log.of_steps();
    for trace in &traces {
        assert!(logged.contains(&Some(trace.id.clone())), "{}: {logged:?}", trace.root.name);
    }
    assert!(!logged.contains(&None), "a step is logged without its trace");
}

#[tokio::test]
async fn each_attempt_to_join_is_a_trace_with_the_reason_of_its_failure() {
    let (mut world, collector, exporter) = traced().await;
    world.bed.host.fault(Fault::Refuse);
    let version = world.publish(110);
    world.grant("join-1", GrantType::Provision, &version, &json!({}));
    let fails = |w: &World| w.instance().is_some_and(|i| i["status"]["failures"]["count"].is_number());
    world.works_until("it fails", fails).await;
    let failed = trace_id(&world).unwrap();
    world.bed.host.mend();
    world.works_until("it joins", |w| w.follows(&version)).await;
    exporter.finish().await;

    let mut traces = traces_of(&collector);
    assert!(traces.iter().any(|t| t.id == failed), "{failed} of {traces:?}");
    let last = traces.pop().unwrap();
    assert_eq!(attribute(&last.root, "windows_node_pool.outcome").as_deref(), Some("succeeded"));
    assert!(!traces.is_empty());
    for Trace { root, steps, .. } in &traces {
        assert_eq!(steps.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["Connect"]);
        for span in steps.iter().chain([root]) {
            let status = span.status.as_ref().unwrap();
            let reason = attribute(span, "error.type").unwrap();
            assert_eq!((status.code(), status.message.as_str()), (SpanStatus::Error, reason.as_str()));
            assert_eq!(reason, "ConnectRefused");
        }
    }
}

/// Each attempt at a step is a span of its own, without the wait before it.
#[tokio::test]
async fn a_removal_that_fails_goes_on_in_its_trace() {
    let (mut world, collector, exporter) = traced().await;
    let version = world.publish(110);
    world.grant("join-1", GrantType::Provision, &version, &json!({}));
    world.works_until("it joins", |w| w.follows(&version)).await;
    world.bed.host.fault(Fault::Refuse);
    world.take_out();
    let fails = |w: &World| w.instance().is_some_and(|i| i["status"]["failures"]["count"].is_number());
    world.works_until("it fails", fails).await;
    world.bed.host.mend();
    world.works_until("it leaves", World::is_gone).await;
    exporter.finish().await;

    let removal = traces_of(&collector).pop().unwrap();
    let mut steps = removal.steps();
    steps.dedup();
    assert_eq!(steps, ["Cordon", "Drain", "Deconfigure", "DeleteNode"]);
    assert_eq!(attribute(&removal.root, "windows_node_pool.outcome").as_deref(), Some("succeeded"));
    let attempts: Vec<&Span> = removal.steps.iter().filter(|s| s.name == "Deconfigure").collect();
    let (last, failed) = attempts.split_last().unwrap();
    assert!(!failed.is_empty() && attribute(last, "error.type").is_none(), "{attempts:?}");
    for pair in attempts.windows(2) {
        assert_eq!(attribute(pair[0], "error.type").as_deref(), Some("ConnectRefused"));
        assert!(pair[0].end_time_unix_nano <= pair[1].start_time_unix_nano, "{pair:?}");
    }
}
