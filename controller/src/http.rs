//! `/healthz`, `/readyz` and `/metrics` for the cluster; `/log-level` on loopback only, because it asks for no password.

pub(crate) mod server;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{metrics::Metrics, telemetry::LogLevel};
use server::Limits;

/// Kubelet's probes and Prometheus each need one connection. Neither sends a body.
const LIMITS: Limits =
    Limits { connections: 64, per_address: 8, head: Duration::from_secs(10), connection: Duration::from_mins(5) };
/// Largest body, in bytes: a log level.
const MAX_BODY: usize = 4 << 10;

/// What the endpoints show.
#[derive(Clone)]
pub(crate) struct Health {
    /// Whether the process can do its work: it leads and its caches are filled, or it stands by for the leader.
    pub ready: Arc<AtomicBool>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

/// Serves until `stop`. The listeners are bound when this returns, so a port that is taken is an error at the start.
pub(crate) async fn serve(
    listen: SocketAddr,
    admin: SocketAddr,
    health: Health,
    level: LogLevel,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(health);
    let log = Router::new().route("/log-level", get(log_level).put(set_log_level)).with_state(level);
    for (address, router) in [(listen, app), (admin, log)] {
        let listener = TcpListener::bind(address).await?;
        tracing::info!(address = %listener.local_addr()?, "listening");
        let router = router.layer(axum::extract::DefaultBodyLimit::max(MAX_BODY));
        tokio::spawn(server::serve(listener, router, LIMITS, stop.clone()));
    }
    Ok(())
}

async fn readyz(State(health): State<Health>) -> impl IntoResponse {
    if health.ready.load(Ordering::Relaxed) {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "starting: the caches are not filled yet\n")
    }
}

async fn metrics(State(health): State<Health>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], health.metrics.render())
}

async fn log_level(State(level): State<LogLevel>) -> String {
    level.get() + "\n"
}

async fn set_log_level(State(level): State<LogLevel>, body: String) -> (StatusCode, String) {
    match level.set(body.trim()) {
        Ok(()) => (StatusCode::OK, format!("{}\n", level.get())),
        Err(problem) => (StatusCode::BAD_REQUEST, problem + "\n"),
    }
}
