//! A collector for tests: takes what an exporter of OTLP/HTTP sends, as the messages that the protocol defines.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use parking_lot::Mutex;
use prost::Message as _;

/// A collector on this machine.
pub(crate) struct Collector {
    address: SocketAddr,
    requests: Requests,
}

type Requests = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

impl Collector {
    /// One that answers every request with this status.
    pub(crate) async fn start(answer: StatusCode) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, requests) = (listener.local_addr().unwrap(), Requests::default());
        let take = move |State(requests): State<Requests>, headers: HeaderMap, body: Bytes| async move {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            requests.lock().push(ExportTraceServiceRequest::decode(body).unwrap());
            answer
        };
        let app = Router::new().route("/v1/traces", post(take)).with_state(requests.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, requests }
    }

    /// For `--otlp-endpoint`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All spans, in the order of their arrival.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let resources = self.requests.lock().iter().flat_map(|r| r.resource_spans.clone()).collect::<Vec<_>>();
        resources.into_iter().flat_map(|r| r.scope_spans).flat_map(|s| s.spans).collect()
    }

    /// An attribute of what sends the spans.
    pub(crate) fn resource(&self, key: &str) -> Option<String> {
        let requests = self.requests.lock();
        text(&requests.first()?.resource_spans.first()?.resource.as_ref()?.attributes, key)
    }
}

/// An attribute of a span.
pub(crate) fn attribute(span: &Span, key: &str) -> Option<String> {
    text(&span.attributes, key)
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|a| a.key == key)?.value.clone()?.value?;
    if let Value::StringValue(text) = value { Some(text) } else { None }
}
