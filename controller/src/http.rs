//! `/healthz`, `/readyz` and `/metrics` for the cluster; `/hooks/git` for Git servers; `/log-level` on loopback only, because it asks for no password.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::{get, post},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{metrics::Metrics, telemetry::LogLevel, webhook};

/// What the endpoints show.
#[derive(Clone)]
pub struct Health {
    /// Whether the process can do its work: it leads and its caches are filled, or it stands by for the leader.
    pub ready: Arc<AtomicBool>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The operator, once it leads, for those who tell it of pushes.
    pub leader: webhook::Leader,
}

/// Serves until `stop`. The listeners are bound when this returns, so a port that is taken is an error at the start.
pub async fn serve(
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
        .with_state(health.clone())
        .merge(hooks(health.leader));
    let log = Router::new().route("/log-level", get(log_level).put(set_log_level)).with_state(level);
    for (address, router) in [(listen, app), (admin, log)] {
        let listener = TcpListener::bind(address).await?;
        tracing::info!(address = %listener.local_addr()?, "listening");
        let stop = stop.clone();
        tokio::spawn(async move {
            let server = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
            if let Err(error) = server.await {
                tracing::error!(%error, "the HTTP server ended");
            }
        });
    }
    Ok(())
}

fn hooks(leader: webhook::Leader) -> Router {
    let limit = axum::extract::DefaultBodyLimit::max(webhook::MAX_BODY);
    Router::new().route("/hooks/git", post(webhook::push)).layer(limit).with_state(leader)
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
