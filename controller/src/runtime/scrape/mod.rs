//! Endpoint `/metrics` over TLS, for authorized clients.

mod certificate;
mod review;

use std::sync::Arc;

use anyhow::Context as _;
use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use kube::Client;
use rustls::{ServerConfig, crypto::ring};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    args::Run,
    runtime::{
        http::{self, server},
        metrics::Metrics,
    },
};
use certificate::Served;
use review::{Access, ReviewError, Reviewer};

/// Starts the TLS server for metrics, which runs until `stop`. Its port is bound and has a certificate when this function returns.
///
/// # Errors
/// Fails when the address cannot be bound, or no certificate can be generated.
pub(crate) async fn serve(
    args: &Run,
    client: Client,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.metrics_listen)
        .await
        .with_context(|| format!("cannot listen on {} (--metrics-listen)", args.metrics_listen))?;
    tracing::info!(address = %listener.local_addr()?, "listening for metrics over TLS");
    let served = Arc::new(Served::new(&args.metrics_tls_directory, &args.namespace)?);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(served);
    let router = Router::new()
        .route("/metrics", get(http::metrics))
        .with_state(metrics)
        .layer(from_fn_with_state(Arc::new(Reviewer::new(client)), admit));
    let tls = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(server::serve(listener, Some(tls), router, http::LIMITS, stop));
    Ok(())
}

/// Passes on requests of clients to which the API server permits `/metrics`, and refuses all others.
async fn admit(State(reviewer): State<Arc<Reviewer>>, request: Request, next: Next) -> Response {
    match reviewer.judge(request.headers()).await {
        Ok(Access::Allowed) => next.run(request).await,
        Ok(Access::Unknown) => {
            let text = "the request has no bearer token that the API server accepts\n";
            ([("www-authenticate", "Bearer")], (StatusCode::UNAUTHORIZED, text)).into_response()
        }
        Ok(Access::Forbidden) => {
            let text = "the owner of the token may not get /metrics; bind the ClusterRole windows-node-pools-metrics-reader to it\n";
            (StatusCode::FORBIDDEN, text).into_response()
        }
        Err(error) => {
            tracing::warn!(reason = ReviewError::REASON.as_str(), %error, "a request for metrics is refused");
            (StatusCode::SERVICE_UNAVAILABLE, "the API server could not review this request; try again\n")
                .into_response()
        }
    }
}
