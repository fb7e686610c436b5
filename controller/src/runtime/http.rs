//! HTTP endpoints: `/healthz` and `/readyz` for kubelet, which sends no token; `/metrics` without TLS, if configured; `/log-level`, by default only
//! on loopback, because it has no authentication.

pub(crate) mod server;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::runtime::{
    metrics::{Metrics, exposition::Format},
    telemetry::LogLevel,
};
use server::Limits;

/// Connection limits. kubelet's probes and Prometheus each need one connection, and send no body.
pub(crate) const LIMITS: Limits =
    Limits { connections: 64, per_address: 8, head: Duration::from_secs(10), connection: Duration::from_mins(5) };
/// Maximum size of a request body in bytes. The only body is a log level.
const MAX_BODY: usize = 4 << 10;

/// Phase of the process, for its readiness probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The process reads the payload and the facts of the cluster.
    #[default]
    Starting,
    /// The process cannot work, for this reason, and leaves a free Lease to other processes for a while.
    Unable(String),
    /// The process can work, and waits for the Lease.
    StandingBy,
    /// The process has the Lease. It is ready despite other faults: no other process would do better, and a rollout of the operator must not wait for
    /// a fault that the conditions of pools report.
    Leading,
    /// The process has the Lease, but cannot read the current state of the cluster or cannot write statuses, for this reason. Conditions may not
    /// report it.
    Blind(String),
}

impl Phase {
    /// Returns the status and the text for the probe.
    fn answer(&self) -> (StatusCode, String) {
        match self {
            Self::Starting => (
                StatusCode::SERVICE_UNAVAILABLE,
                "starting: the payload and the facts of the cluster are not read yet\n".into(),
            ),
            Self::Unable(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("unable to work: {why}\n")),
            Self::StandingBy => (StatusCode::OK, "ok: standing by\n".into()),
            Self::Leading => (StatusCode::OK, "ok: leading\n".into()),
            Self::Blind(why) => {
                (StatusCode::SERVICE_UNAVAILABLE, format!("leading, but no operation can start: {why}\n"))
            }
        }
    }
}

/// Current phase, shared with the probe.
#[derive(Clone, Default)]
pub(crate) struct Readiness(Arc<RwLock<Phase>>);

impl Readiness {
    /// Enters a phase.
    pub(crate) fn enter(&self, phase: Phase) {
        *self.0.write() = phase;
    }

    /// Reports whether the process leads or is able to lead.
    pub(crate) fn is_able(&self) -> bool {
        matches!(*self.0.read(), Phase::StandingBy | Phase::Leading | Phase::Blind(_))
    }
}

/// Data that the endpoints show.
pub(crate) struct Health {
    /// Phase of the process.
    pub readiness: Readiness,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
}

/// Starts the servers of these endpoints, which run until `stop`. All ports are bound when this function returns, so that an occupied port is an
/// error at the start.
pub(crate) async fn serve(
    listen: SocketAddr,
    plain_metrics: Option<SocketAddr>,
    admin: SocketAddr,
    health: Health,
    level: LogLevel,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let metrics = Router::new().route("/metrics", get(self::metrics)).with_state(health.metrics);
    let probes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(health.readiness);
    let of_probes = match plain_metrics {
        Some(address) if address == listen => vec![(listen, probes.merge(metrics))],
        Some(address) => vec![(listen, probes), (address, metrics)],
        None => vec![(listen, probes)],
    };
    let log = Router::new().route("/log-level", get(log_level).put(set_log_level)).with_state(level);
    for (address, router) in of_probes.into_iter().chain([(admin, log)]) {
        let named = |error: std::io::Error| std::io::Error::new(error.kind(), format!("{address}: {error}"));
        let listener = TcpListener::bind(address).await.map_err(named)?;
        tracing::info!(address = %listener.local_addr()?, "listening");
        let router = router.layer(axum::extract::DefaultBodyLimit::max(MAX_BODY));
        tokio::spawn(server::serve(listener, None, router, LIMITS, stop.clone()));
    }
    Ok(())
}

async fn readyz(State(readiness): State<Readiness>) -> impl IntoResponse {
    readiness.0.read().answer()
}

/// Returns all metrics, in the format that the client accepts.
pub(crate) async fn metrics(State(metrics): State<Arc<Metrics>>, headers: HeaderMap) -> impl IntoResponse {
    let format = Format::accepted(headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()));
    ([(header::CONTENT_TYPE, format.content_type())], format.write(metrics.render()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_if_it_can_work() {
        for (phase, status, part) in [
            (Phase::Starting, 503, "starting"),
            (Phase::Unable("PayloadInvalid: kubelet.exe is missing".into()), 503, "kubelet.exe is missing"),
            (Phase::StandingBy, 200, "standing by"),
            (Phase::Leading, 200, "leading"),
            (Phase::Blind("ApiError: the watch of nodes has failed".into()), 503, "no operation can start: ApiError"),
        ] {
            let (found, text) = phase.answer();
            assert!(found == status && text.contains(part), "{phase:?}: {found} {text}");
            let readiness = Readiness::default();
            readiness.enter(phase.clone());
            let is_able = matches!(phase, Phase::StandingBy | Phase::Leading | Phase::Blind(_));
            assert_eq!(readiness.is_able(), is_able, "{phase:?}");
        }
    }
}
