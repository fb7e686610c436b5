//! Traces of operations: each operation of a host is a trace, and each of its steps a span in it. They go to a collector over OTLP/HTTP.
//!
//! An operation lasts over many reconciles, and over restarts of the operator. So no span is held open: the id of the trace is in the status of
//! the instance, that of its root span follows from it, and a span is made when what it stands for is over.
//!
//! Nothing waits for the collector. Spans are in a queue of limited length, from which one task sends them; those that do not fit, and those that
//! the collector does not take, are counted and lost.

mod export;
mod spans;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use opentelemetry_sdk::trace::SpanData;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

#[cfg(test)]
pub(crate) use export::Exporter;
pub(crate) use export::start;
pub(crate) use spans::{Outcome, Subject, TraceId, operation_span, step_span};

/// Spans that wait for the collector. All steps of some hundred hosts that join at once.
const QUEUE: usize = 4096;

/// Where spans go. Off by default.
#[derive(Clone, Default)]
pub(crate) struct Traces(Option<Queue>);

#[derive(Clone)]
struct Queue {
    spans: mpsc::Sender<SpanData>,
    losses: Arc<Losses>,
}

impl Traces {
    /// The sending side of a queue, and what the exporter reads.
    fn queue(length: usize, losses: Arc<Losses>) -> (Self, mpsc::Receiver<SpanData>) {
        let (spans, waiting) = mpsc::channel(length);
        (Self(Some(Queue { spans, losses })), waiting)
    }

    /// Whether there is a collector.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The id of a trace that begins. `None` without a collector.
    pub(crate) fn begin(&self) -> Option<TraceId> {
        self.is_on().then(TraceId::random)
    }

    /// Gives spans to the exporter. Never waits.
    pub(crate) fn send(&self, spans: impl IntoIterator<Item = SpanData>) {
        let Some(queue) = &self.0 else { return };
        let lost = spans.into_iter().filter_map(|span| queue.spans.try_send(span).err()).count();
        queue.losses.lost(lost, "the queue of spans is full");
    }
}

/// Spans that are lost: counted all, logged once until the collector takes some again.
struct Losses {
    dropped: Counter,
    loses: AtomicBool,
}

impl Losses {
    fn new(dropped: Counter) -> Arc<Self> {
        Arc::new(Self { dropped, loses: AtomicBool::new(false) })
    }

    /// Returns whether this is the first loss in a row.
    fn lost(&self, spans: usize, why: &str) -> bool {
        if spans == 0 {
            return false;
        }
        self.dropped.inc_by(u64::try_from(spans).unwrap_or(u64::MAX));
        let is_first = !self.loses.swap(true, Ordering::Relaxed);
        if is_first {
            tracing::warn!(
                spans,
                "spans of traces are lost: {why}; check the collector that --otlp-endpoint names. Further losses are only counted"
            );
        }
        is_first
    }

    /// Returns whether there were losses before.
    fn taken(&self) -> bool {
        let is_back = self.loses.swap(false, Ordering::Relaxed);
        if is_back {
            tracing::info!("the collector takes spans of traces again");
        }
        is_back
    }
}

#[cfg(test)]
mod tests;
