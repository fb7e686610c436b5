//! Sends spans to the collector.

use std::{sync::Arc, time::Duration};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter},
};
use prometheus_client::metrics::counter::Counter;
use reqwest::{Client, NoProxy, Proxy, Url};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{Losses, QUEUE, Traces};
use crate::args::Run;

/// Spans in one request.
const BATCH: usize = 512;
/// Limit of one request, with the repetitions that the collector asks for.
const REQUEST: Duration = Duration::from_secs(10);
/// Limit for all that is left in the queue when the process ends.
const LAST: Duration = Duration::from_secs(5);
/// Where a collector takes traces below its URL, by the specification of OTLP/HTTP.
const PATH: &str = "v1/traces";

/// Why there can be no traces.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TracesError {
    // Its text is not shown: there may be a password in it.
    #[error(
        "--otlp-endpoint (OTEL_EXPORTER_OTLP_ENDPOINT) is not the URL of a collector; write http://HOST:PORT or https://HOST:PORT, with a path if need be, and put credentials into OTEL_EXPORTER_OTLP_HEADERS"
    )]
    NotHttp,
    #[error("a proxy setting of the operator is not a URL; write http://HOST:PORT")]
    Proxy,
    #[error("the exporter of traces cannot be set up; check --otlp-endpoint and the variables OTEL_EXPORTER_OTLP_*")]
    Unusable,
}

/// The task that sends.
pub(crate) struct Exporter {
    closing: CancellationToken,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Sends what is in the queue, within a limit, and ends.
    pub(crate) async fn finish(self) {
        self.closing.cancel();
        if tokio::time::timeout(LAST, self.task).await.is_err() {
            tracing::warn!("the collector did not take all spans of traces before the end");
        }
    }

    pub(super) fn spawn(
        exporter: impl SpanExporter + 'static,
        waiting: mpsc::Receiver<SpanData>,
        losses: Arc<Losses>,
    ) -> Self {
        let closing = CancellationToken::new();
        let task = tokio::spawn(export(exporter, waiting, losses, closing.clone()));
        Self { closing, task }
    }
}

/// Begins to send spans to the collector of `--otlp-endpoint`, if it is set.
///
/// # Errors
/// When it is no URL of a collector, or what the environment says of the export cannot be used.
pub(crate) fn start(args: &Run, identity: &str, dropped: Counter) -> Result<(Traces, Option<Exporter>), TracesError> {
    let Some(endpoint) = args.otlp_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty()) else {
        return Ok((Traces::default(), None));
    };
    let exporter = exporter(&url(endpoint)?, args, identity)?;
    let losses = Losses::new(dropped);
    let (traces, waiting) = Traces::queue(QUEUE, losses.clone());
    Ok((traces, Some(Exporter::spawn(exporter, waiting, losses))))
}

/// Where traces are sent.
pub(super) fn url(endpoint: &str) -> Result<Url, TracesError> {
    let mut url = Url::parse(endpoint).map_err(|_| TracesError::NotHttp)?;
    let is_plain =
        url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none();
    if !matches!(url.scheme(), "http" | "https") || !is_plain {
        return Err(TracesError::NotHttp);
    }
    let path = format!("{}/{PATH}", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

fn exporter(url: &Url, args: &Run, identity: &str) -> Result<opentelemetry_otlp::SpanExporter, TracesError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(client(args)?)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(url.as_str())
        .with_timeout(REQUEST);
    // Its text may have what the environment holds.
    let mut exporter = exporter.build().map_err(|_| TracesError::Unusable)?;
    let resource = Resource::builder().with_service_name("windows-node-pools").with_attributes([
        KeyValue::new("service.version", crate::args::version()),
        KeyValue::new("service.instance.id", identity.to_owned()),
        KeyValue::new("k8s.namespace.name", args.namespace.clone()),
    ]);
    exporter.set_resource(&resource.build());
    Ok(exporter)
}

/// A client that trusts the authorities of this machine, and needs none for a collector without TLS.
fn client(args: &Run) -> Result<Client, TracesError> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| TracesError::Unusable)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut client = Client::builder()
        .tls_backend_preconfigured(tls)
        .timeout(REQUEST)
        .redirect(reqwest::redirect::Policy::none())
        // Of the environment.
        .no_proxy();
    let except = args.no_proxy.as_deref().and_then(NoProxy::from_string);
    let proxies =
        [(&args.http_proxy, Proxy::http as fn(String) -> reqwest::Result<Proxy>), (&args.https_proxy, Proxy::https)];
    for (address, proxy) in proxies {
        if let Some(address) = address.clone().filter(|address| !address.is_empty()) {
            let proxy = proxy(address).map_err(|_| TracesError::Proxy)?;
            client = client.proxy(proxy.no_proxy(except.clone()));
        }
    }
    client.build().map_err(|_| TracesError::Unusable)
}

/// Sends what waits, as much at once as there is, until the queue is closed and empty.
async fn export(
    exporter: impl SpanExporter,
    mut waiting: mpsc::Receiver<SpanData>,
    losses: Arc<Losses>,
    closing: CancellationToken,
) {
    loop {
        let mut batch = Vec::new();
        let count = tokio::select! {
            biased;
            count = waiting.recv_many(&mut batch, BATCH) => count,
            () = closing.cancelled(), if !waiting.is_closed() => {
                waiting.close();
                continue;
            }
        };
        if count == 0 {
            return;
        }
        match tokio::time::timeout(REQUEST * 2, exporter.export(batch)).await {
            Ok(Ok(())) => losses.taken(),
            // What the error says may be of the collector.
            Ok(Err(_)) => losses.lost(count, "the collector does not take them"),
            Err(_) => losses.lost(count, "the collector does not answer in time"),
        };
    }
}
