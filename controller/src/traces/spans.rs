//! Spans, from what is known of an operation. Pure. They hold names, versions and reasons, and no word of a host.

use std::time::SystemTime;

use api::{GrantType, Step};
use jiff::Timestamp;
use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use sha2::{Digest as _, Sha256};

/// Longest text of an attribute: that of a name in Kubernetes.
const MAX_TEXT: usize = 253;

/// Id of a trace, in `status.traceId` of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId([u8; 16]);

impl TraceId {
    /// Another one each time. Samplers expect it to be random.
    pub(super) fn random() -> Self {
        // One with zeros alone is invalid.
        Self(rand::random::<u128>().max(1).to_be_bytes())
    }

    /// That of a status, if it is one.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let is_lower = !text.bytes().any(|b| b.is_ascii_uppercase());
        let bytes = hex::decode(text).ok().filter(|_| is_lower)?;
        bytes.try_into().ok().filter(|id| *id != [0; 16]).map(Self)
    }

    /// Id of the root span: every process that continues the operation finds the same.
    fn root(self) -> SpanId {
        let digest = Sha256::digest(self.0);
        let mut id = [0; 8];
        id.copy_from_slice(&digest[..8]);
        SpanId::from_bytes(id)
    }
}

impl std::fmt::Display for TraceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Which operation a span belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    /// Its trace.
    pub trace: TraceId,
    /// Name of the host and of its Node.
    pub node: &'a str,
    /// Name of its pool.
    pub pool: &'a str,
    /// Id of the operation.
    pub operation: &'a str,
    /// Its kind.
    pub type_: GrantType,
    /// The version that the host is brought to.
    pub version: Option<&'a str>,
}

/// How something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    /// It did what it was for.
    Succeeded,
    /// It failed for this reason.
    Failed(&'a str),
    /// It was taken back, or another operation took its place.
    Aborted,
}

/// The span of a step.
pub(crate) fn step_span(
    of: Subject<'_>,
    step: Step,
    (start, end): (Timestamp, Timestamp),
    how: Outcome<'_>,
) -> SpanData {
    let id = SpanId::from_bytes(rand::random::<u64>().max(1).to_be_bytes());
    span(of, id, of.trace.root(), step.as_str(), (start, end), how)
}

/// The root span, of the operation from its begin to its end.
pub(crate) fn operation_span(of: Subject<'_>, (start, end): (Timestamp, Timestamp), how: Outcome<'_>) -> SpanData {
    let mut span = span(of, of.trace.root(), SpanId::INVALID, of.type_.as_str(), (start, end), how);
    let outcome = match how {
        Outcome::Succeeded => "succeeded",
        Outcome::Failed(_) => "failed",
        Outcome::Aborted => "aborted",
    };
    let version = of.version.map(|version| KeyValue::new("windows_node_pool.version", text(version)));
    span.attributes.extend(version);
    span.attributes.push(KeyValue::new("windows_node_pool.outcome", outcome));
    span
}

fn span(
    of: Subject<'_>,
    id: SpanId,
    parent: SpanId,
    name: &'static str,
    (start, end): (Timestamp, Timestamp),
    how: Outcome<'_>,
) -> SpanData {
    let mut attributes = vec![
        KeyValue::new("k8s.node.name", text(of.node)),
        KeyValue::new("windows_node_pool.name", text(of.pool)),
        KeyValue::new("windows_node_pool.operation.id", text(of.operation)),
        KeyValue::new("windows_node_pool.operation.type", of.type_.as_str()),
    ];
    let status = match how {
        Outcome::Succeeded => Status::Ok,
        Outcome::Aborted => Status::Unset,
        Outcome::Failed(reason) => {
            attributes.push(KeyValue::new("error.type", text(reason)));
            Status::error(text(reason))
        }
    };
    let trace = opentelemetry::TraceId::from_bytes(of.trace.0);
    SpanData {
        span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::NONE),
        parent_span_id: parent,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time: SystemTime::from(start),
        // Clocks of two processes may differ, and stored times have whole seconds.
        end_time: SystemTime::from(end.max(start)),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status,
        instrumentation_scope: InstrumentationScope::builder("windows-node-pools")
            .with_version(crate::args::version())
            .build(),
    }
}

/// A name, version or reason as it is, and no other text: a host may have had a hand in it.
fn text(word: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | ':' | '/');
    if word.len() <= MAX_TEXT && word.chars().all(is_word) { word.to_owned() } else { "invalid".to_owned() }
}

#[cfg(test)]
#[path = "spans_tests.rs"]
mod tests;
