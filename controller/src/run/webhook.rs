//! Endpoint `POST /hooks/git`: a Git server reports a push, so that pools need not wait for the next fetch.
//!
//! A report only triggers a fetch, whose result the operator checks itself. Still, only a sender that knows the token may trigger one:
//! it signs the body with HMAC-SHA256 in `X-Hub-Signature-256`, as GitHub, Gitea and Forgejo do. The port is open only while there is a
//! token, and has its own limits, because its requests come from outside the cluster.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode},
    routing::post,
};
use gitops::push::{is_signed, place, repositories};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    context::Context,
    pool::PoolContext,
    runtime::http::server::{self, Limits},
};

/// Maximum size of a body in bytes. A push with very many commits is larger, and is found at the next fetch.
const MAX_BODY: usize = 1 << 20;
/// Connection limits. With the largest bodies, all connections take 16 MiB. All may come from one address, that of a load balancer.
const LIMITS: Limits =
    Limits { connections: 16, per_address: 16, head: Duration::from_secs(5), connection: Duration::from_secs(15) };
/// Interval at which the Secret with the token is read.
const TOKEN_POLL: Duration = Duration::from_secs(10);
/// Key of the token in the Secret.
const TOKEN: &str = "token";

/// Token with which signatures are verified. It has no `Debug` output, so that it is never logged.
#[derive(Clone, PartialEq, Eq)]
struct Token(Arc<[u8]>);

/// Open port, with the token that it accepts.
struct Open {
    token: Token,
    close: CancellationToken,
}

#[derive(Clone)]
struct Receiver {
    cx: Arc<PoolContext>,
    token: Token,
}

/// Keeps the port open while there is a token, until the operator stops.
pub(crate) async fn run(cx: Arc<PoolContext>) {
    let mut open: Option<Open> = None;
    loop {
        match token(&cx).await {
            Ok(token) if open.as_ref().map(|o| &o.token) == token.as_ref() => {}
            Ok(token) => {
                if let Some(before) = open.take() {
                    before.close.cancel();
                }
                if let Some(token) = token {
                    open = listen(cx.process.args.webhook_listen, &cx, token).await;
                }
            }
            // It is not known whether there is a token, so the port is neither opened nor closed.
            Err(error) => {
                tracing::warn!(%error, secret = cx.process.args.webhook_secret, "the Secret with the token of the push webhook cannot be read; the operator retries, and the webhook stays open or closed as it was");
            }
        }
        if cx.process.stop.run_until_cancelled(tokio::time::sleep(TOKEN_POLL)).await.is_none() {
            return;
        }
    }
}

/// Opens the port; `None` if that fails. The port closes when the token is replaced or removed, or the operator stops.
async fn listen(address: SocketAddr, cx: &Arc<PoolContext>, token: Token) -> Option<Open> {
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%address, %error, "cannot listen for pushes at --webhook-listen; the operator retries, and pools fetch at their interval meanwhile");
            return None;
        }
    };
    tracing::info!(%address, "listening for pushes");
    let close = cx.process.stop.child_token();
    let router = Router::new()
        .route("/hooks/git", post(push))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(Receiver { cx: cx.clone(), token: token.clone() });
    tokio::spawn(server::serve(listener, None, router, LIMITS, close.clone()));
    Some(Open { token, close })
}

async fn push(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> (StatusCode, &'static str) {
    let signature = headers.get("x-hub-signature-256").and_then(|v| v.to_str().ok()).unwrap_or_default();
    if !is_signed(&receiver.token.0, &body, signature) {
        return (
            StatusCode::FORBIDDEN,
            "X-Hub-Signature-256 is missing or wrong: the secret of the webhook must be the value of the key token in the operator's Secret of --webhook-secret\n",
        );
    }
    let Some(pushed) = repositories(&body) else {
        return (
            StatusCode::BAD_REQUEST,
            "the body is not JSON, so nothing is fetched: set the content type of the webhook to application/json\n",
        );
    };
    let found = receiver.cx.sources.git.on_push(|url| place(url).is_some_and(|p| pushed.contains(&p)));
    if found == 0 {
        return (StatusCode::OK, "no pool names this repository, so nothing is fetched\n");
    }
    (StatusCode::ACCEPTED, "fetching\n")
}

async fn token(cx: &Context) -> kube::Result<Option<Token>> {
    let secrets: Api<Secret> = Api::namespaced(cx.cluster.client.clone(), &cx.process.args.namespace);
    let secret = secrets.get_opt(&cx.process.args.webhook_secret).await?;
    let token = secret.and_then(|s| s.data?.remove(TOKEN)).map(|t| t.0);
    // An empty token does not count: any sender could sign with it.
    let text = |bytes: Vec<u8>| api::text::decode(&bytes).map(|text| text.as_bytes().to_vec()).unwrap_or(bytes);
    Ok(token.map(|t| text(t).trim_ascii().to_vec()).filter(|t| !t.is_empty()).map(|t| Token(t.into())))
}
