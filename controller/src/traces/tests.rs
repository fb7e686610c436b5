use api::{GrantType, Step};
use axum::http::StatusCode;
use clap::Parser as _;
use jiff::Timestamp;
use opentelemetry_sdk::{
    error::{OTelSdkError, OTelSdkResult},
    trace::SpanExporter,
};
use testbed::collector::Collector;
use tokio::sync::Notify;

use super::{
    export::{TracesError, url},
    *,
};
use crate::args::Run;

fn spans(count: usize) -> Vec<SpanData> {
    let trace = TraceId::random();
    let subject =
        Subject { trace, node: "win-1", pool: "p", operation: "o", type_: GrantType::Provision, version: None };
    let now = Timestamp::now();
    (0..count).map(|_| step_span(subject, Step::Connect, (now, now), Outcome::Succeeded)).collect()
}

fn run(endpoint: &str) -> Run {
    Run::parse_from(["run", "--otlp-endpoint", endpoint])
}

#[test]
fn only_the_url_of_a_collector_is_taken() {
    for (endpoint, expected) in [
        ("http://c:4318", Ok("http://c:4318/v1/traces")),
        ("http://c:4318/", Ok("http://c:4318/v1/traces")),
        ("https://c.example.com/otlp/", Ok("https://c.example.com/otlp/v1/traces")),
        ("http://[::1]:4318", Ok("http://[::1]:4318/v1/traces")),
        ("c:4318", Err(TracesError::NotHttp)),
        ("c", Err(TracesError::NotHttp)),
        ("grpc://c:4317", Err(TracesError::NotHttp)),
        ("file:///etc/passwd", Err(TracesError::NotHttp)),
        ("http://", Err(TracesError::NotHttp)),
        ("http://me:secret@c:4318", Err(TracesError::NotHttp)),
        ("http://c:4318/?key=secret", Err(TracesError::NotHttp)),
    ] {
        let found = url(endpoint).map(|url| url.to_string());
        assert_eq!(found, expected.map(str::to_owned), "{endpoint}");
    }
    assert!(!TracesError::NotHttp.to_string().contains("secret"));
}

#[tokio::test]
async fn there_are_no_traces_without_a_collector() {
    for args in [vec!["run"], vec!["run", "--otlp-endpoint", ""]] {
        let mut args = Run::parse_from(args);
        // That of the machine which runs the test.
        args.otlp_endpoint = args.otlp_endpoint.filter(String::is_empty);
        let (traces, exporter) = start(&args, "o", Counter::default()).unwrap();
        assert!(!traces.is_on() && traces.begin().is_none() && exporter.is_none());
        traces.send(spans(1));
    }
}

#[test]
fn what_does_not_fit_into_the_queue_is_counted() {
    let losses = Losses::new(Counter::default());
    let (traces, mut waiting) = Traces::queue(2, losses.clone());
    traces.send(spans(5));
    traces.send(spans(1));
    assert_eq!(losses.dropped.get(), 4);
    assert!(!losses.lost(1, "it was logged already"));
    assert!(losses.taken() && !losses.taken());
    assert!(losses.lost(1, "it is logged again"));
    assert_eq!(std::iter::from_fn(|| waiting.try_recv().ok()).count(), 2);
}

/// A collector that fails, or never answers.
#[derive(Debug)]
struct Dead {
    called: Arc<Notify>,
    answers: bool,
}

impl SpanExporter for Dead {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        self.called.notify_one();
        if self.answers {
            return Err(OTelSdkError::InternalFailure("no".into()));
        }
        std::future::pending().await
    }
}

#[tokio::test]
async fn spans_that_a_collector_refuses_are_counted() {
    let losses = Losses::new(Counter::default());
    let (traces, waiting) = Traces::queue(8, losses.clone());
    traces.send(spans(3));
    let dead = Dead { called: Arc::default(), answers: true };
    Exporter::spawn(dead, waiting, losses.clone()).finish().await;
    assert_eq!(losses.dropped.get(), 3);
}

#[tokio::test]
async fn a_collector_that_hangs_fills_the_queue_and_no_more() {
    let losses = Losses::new(Counter::default());
    let (traces, waiting) = Traces::queue(2, losses.clone());
    let called = Arc::new(Notify::new());
    let _exporter = Exporter::spawn(Dead { called: called.clone(), answers: false }, waiting, losses.clone());
    traces.send(spans(1));
    called.notified().await;
    traces.send(spans(1000));
    assert_eq!(losses.dropped.get(), 998);
}

#[tokio::test]
async fn a_collector_takes_spans_over_http() {
    for (answer, dropped) in [(StatusCode::OK, 0), (StatusCode::BAD_REQUEST, 700), (StatusCode::FOUND, 700)] {
        let (collector, lost) = (Collector::start(answer).await.unwrap(), Counter::default());
        let (traces, exporter) = start(&run(&collector.url()), "operator-1", lost.clone()).unwrap();
        traces.send(spans(700));
        exporter.unwrap().finish().await;
        assert_eq!((collector.spans().len(), lost.get()), (700, dropped), "{answer}");
        let resource = ["service.name", "service.instance.id"].map(|key| collector.resource(key).unwrap());
        assert_eq!(resource, ["windows-node-pools", "operator-1"]);
    }
}
