//! A collector of traces: takes what an exporter of OTLP/HTTP sends, as the messages that the protocol defines.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Result;
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
use tokio::task::JoinHandle;

/// A collector on this machine, which ends when it is dropped.
pub struct Collector {
    address: SocketAddr,
    requests: Requests,
    server: JoinHandle<std::io::Result<()>>,
}

type Requests = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Collector {
    /// One that answers every request with this status. What is no request of the protocol is refused, and not kept.
    ///
    /// # Errors
    /// When no port can be opened.
    pub async fn start(answer: StatusCode) -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let (address, requests) = (listener.local_addr()?, Requests::default());
        let take = move |State(requests): State<Requests>, headers: HeaderMap, body: Bytes| async move {
            if headers.get("content-type").is_none_or(|kind| kind != "application/x-protobuf") {
                return StatusCode::UNSUPPORTED_MEDIA_TYPE;
            }
            let Ok(request) = ExportTraceServiceRequest::decode(body) else { return StatusCode::BAD_REQUEST };
            requests.lock().push(request);
            answer
        };
        let app = Router::new().route("/v1/traces", post(take)).with_state(requests.clone());
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(Self { address, requests, server })
    }

    /// For `--otlp-endpoint`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All spans, in the order of their arrival.
    pub fn spans(&self) -> Vec<Span> {
        let resources = self.requests.lock().iter().flat_map(|r| r.resource_spans.clone()).collect::<Vec<_>>();
        resources.into_iter().flat_map(|r| r.scope_spans).flat_map(|s| s.spans).collect()
    }

    /// An attribute of what sends the spans.
    pub fn resource(&self, key: &str) -> Option<String> {
        let requests = self.requests.lock();
        text(&requests.first()?.resource_spans.first()?.resource.as_ref()?.attributes, key)
    }
}

/// An attribute of a span.
pub fn attribute(span: &Span, key: &str) -> Option<String> {
    text(&span.attributes, key)
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|a| a.key == key)?.value.clone()?.value?;
    if let Value::StringValue(text) = value { Some(text) } else { None }
}
