//! What becomes spans of the trace of an operation. They are sent when the status that knows of them is stored: an operator that was overtaken
//! reports nothing.

use crate::clock;
use api::{Operation, Step, WindowsInstanceStatus};
use jiff::Timestamp;
use opentelemetry_sdk::trace::SpanData;
use tracing::{Span, field::Empty};

use super::Scope;
use crate::traces::{Outcome, Subject, TraceId, operation_span, step_span};

/// The trace of one reconcile's work.
pub(super) struct Trace {
    /// When this reconcile began.
    began: Timestamp,
    /// The step that failed in an earlier reconcile, as long as it is not tried again: its span was sent then.
    failed_step: Option<Step>,
    /// When the current step began, if that was in this reconcile.
    step_began: Option<Timestamp>,
    /// Why the operation failed in this reconcile.
    failure: Option<String>,
    /// What is over, and not sent.
    ended: Vec<SpanData>,
}

impl Trace {
    pub(super) fn new(stored: &WindowsInstanceStatus) -> Self {
        let failed_step = stored.failures.as_ref().filter(|f| f.next_retry_time.is_some()).map(|f| f.step);
        Self { began: clock::now(), failed_step, step_began: None, failure: None, ended: Vec::new() }
    }
}

impl Scope {
    /// The span of the log for this reconcile. Its field is the trace of the operation, as soon as there is one.
    pub(in crate::instance) fn log_span(&self) -> Span {
        if !self.cx.process.traces.is_on() {
            return Span::none();
        }
        // At any level of the log.
        let span = tracing::error_span!("reconcile", trace_id = Empty);
        if let Some(id) = self.status.trace_id.as_ref().filter(|_| self.status.operation.is_some()) {
            span.record("trace_id", id);
        }
        span
    }

    /// An operation begins, and with it its trace.
    pub(in crate::instance) fn trace_begins(&mut self) {
        let id = self.cx.process.traces.begin().map(|id| id.to_string());
        if let Some(id) = &id {
            Span::current().record("trace_id", id);
        }
        self.status.trace_id = id;
        let trace = &mut self.trace;
        (trace.failed_step, trace.step_began, trace.failure) = (None, Some(clock::now()), None);
    }

    /// The step that is announced begins.
    pub(in crate::instance) fn trace_step_begins(&mut self) {
        (self.trace.failed_step, self.trace.step_began) = (None, Some(clock::now()));
    }

    /// The step that is announced goes on, or is tried again.
    pub(in crate::instance) fn trace_step_goes_on(&mut self) {
        if self.trace.failed_step.take().is_some() {
            self.trace.step_began = Some(self.trace.began);
        }
    }

    /// The current step is over.
    pub(in crate::instance) fn trace_step_ends(&mut self, how: Outcome<'_>) {
        let step = self.step();
        let is_sent = self.trace.failed_step == Some(step) && !matches!(how, Outcome::Failed(_));
        if step == Step::Unknown || is_sent {
            return;
        }
        let retried = self.trace.failed_step.map(|_| self.trace.began);
        let span = self.subject().map(|(subject, operation)| {
            let start = self.trace.step_began.or(retried).or_else(|| operation.step_start_time.known());
            let now = clock::now();
            step_span(subject, step, (start.unwrap_or(now), now), how)
        });
        self.trace.ended.extend(span);
    }

    /// The attempt failed in the current step.
    pub(in crate::instance) fn trace_failure(&mut self, reason: &str) {
        self.trace_step_ends(Outcome::Failed(reason));
        self.trace.failure = Some(reason.to_owned());
    }

    /// The operation is over.
    pub(in crate::instance) fn trace_ends(&mut self, how: Outcome<'_>) {
        let span = self.subject().map(|(subject, operation)| {
            let now = clock::now();
            let start = operation.start_time.known().unwrap_or(now);
            operation_span(subject, (start, now), how)
        });
        self.trace.ended.extend(span);
    }

    /// Drops the operation, which did not do what it was for.
    pub(in crate::instance) fn drop_operation(&mut self) {
        if let Some(reason) = self.trace.failure.take() {
            self.trace_ends(Outcome::Failed(&reason));
        } else {
            self.trace_step_ends(Outcome::Aborted);
            self.trace_ends(Outcome::Aborted);
        }
        self.status.operation = None;
    }

    /// Sends what is over. What it says is stored.
    pub(in crate::instance) fn send_trace(&mut self) {
        self.cx.process.traces.send(self.trace.ended.drain(..));
    }

    /// The operation, if it has a trace.
    fn subject(&self) -> Option<(Subject<'_>, &Operation)> {
        let operation = self.status.operation.as_ref().filter(|_| self.cx.process.traces.is_on())?;
        let trace = TraceId::read(self.status.trace_id.as_deref()?)?;
        let desired = self.instance.spec.desired.as_ref().map(|d| d.version.as_str());
        let subject = Subject {
            trace,
            node: self.instance.metadata.name.as_deref().unwrap_or_default(),
            pool: &self.instance.spec.pool_ref.name,
            operation: &operation.id,
            type_: operation.type_,
            version: operation.to_version.as_deref().or(desired),
        };
        Some((subject, operation))
    }
}
