//! Endpoint `POST /hooks/git`: a Git server reports a push, so that pools need not wait for the next fetch.
//!
//! A report only triggers a fetch, whose result the operator checks itself. Still, only a sender that knows the token may trigger one:
//! it signs the body with HMAC-SHA256 in `X-Hub-Signature-256`, as GitHub, Gitea and Forgejo do. The port is open only while there is a
//! token, and has its own limits, because its requests come from outside of the cluster.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode},
    routing::post,
};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use ring::hmac;
use serde_json::Value;
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
            // It is not known whether there is a token, so the port stays as it is.
            Err(error) => {
                tracing::warn!(%error, secret = cx.process.args.webhook_secret, "the token for pushes cannot be read");
            }
        }
        if cx.process.stop.run_until_cancelled(tokio::time::sleep(TOKEN_POLL)).await.is_none() {
            return;
        }
    }
}

/// Opens the port. The port closes when the token is replaced or the operator stops.
async fn listen(address: SocketAddr, cx: &Arc<PoolContext>, token: Token) -> Option<Open> {
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%address, %error, "cannot listen for pushes, retrying");
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
        return (StatusCode::FORBIDDEN, "X-Hub-Signature-256 is missing or wrong\n");
    }
    let Some(pushed) = pushed(&body) else {
        return (StatusCode::BAD_REQUEST, "the body is not JSON\n");
    };
    let found = receiver.cx.sources.git.on_push(|url| place(url).is_some_and(|p| pushed.contains(&p)));
    if found == 0 {
        return (StatusCode::OK, "no pool names this repository\n");
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

/// Reports whether a signature is the HMAC of the body, as `sha256=<hex>`.
pub fn is_signed(token: &[u8], body: &[u8], signature: &str) -> bool {
    let Some(Ok(signature)) = signature.strip_prefix("sha256=").map(hex::decode) else { return false };
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, token), body, &signature).is_ok()
}

/// Returns the repository that the body names: each of its URLs as host and path (`host/a/b`). Returns `None` if the body is not JSON.
pub fn pushed(body: &[u8]) -> Option<Vec<String>> {
    const FIELDS: [&str; 5] = ["clone_url", "ssh_url", "git_url", "html_url", "url"];
    let body: Value = serde_json::from_slice(body).ok()?;
    Some(FIELDS.iter().filter_map(|field| place(body["repository"][field].as_str()?)).collect())
}

/// Returns the host and path of a URL as `host/a/b`. The URL may have any notation: `https://host/a/b.git`, `ssh://git@host:22/a/b`,
/// `git@host:a/b.git`.
fn place(url: &str) -> Option<String> {
    let (rest, is_url) = match url.split_once("://") {
        Some((_, rest)) => (rest, true),
        None => (url, false),
    };
    let (host, path) = if is_url { rest.split_once('/')? } else { rest.split_once(':')? };
    let host = host.rsplit('@').next()?;
    let host = if is_url {
        host.rsplit_once(':').map_or(host, |(h, port)| if port.bytes().all(|b| b.is_ascii_digit()) { h } else { host })
    } else {
        host
    };
    let path = path.trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    let is_host = !host.is_empty() && !host.contains('/');
    (is_host && !path.is_empty()).then(|| format!("{}/{path}", host.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_signed_pushes_are_accepted() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"token");
        let right = format!("sha256={}", hex::encode(hmac::sign(&key, b"body")));
        assert!(is_signed(b"token", b"body", &right));
        for (token, body, signature) in [
            (&b"other"[..], &b"body"[..], right.as_str()),
            (b"token", b"other", &right),
            (b"token", b"body", ""),
            (b"token", b"body", "sha256="),
            (b"token", b"body", "sha1=da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            (b"token", b"body", &right[..right.len() - 2]),
        ] {
            assert!(!is_signed(token, body, signature), "{signature}");
        }
    }

    #[test]
    fn all_notations_of_a_url_name_the_same_repository() {
        for url in [
            "https://git.example.com/team/hosts",
            "https://git.example.com/team/hosts.git",
            "https://Git.Example.com:8443/team/hosts/",
            "https://user@git.example.com/team/hosts",
            "ssh://git@git.example.com:2222/team/hosts.git",
            "git@git.example.com:team/hosts.git",
        ] {
            assert_eq!(place(url).as_deref(), Some("git.example.com/team/hosts"), "{url}");
        }
        for url in ["", "https://", "https://host", "host", "https:///a", "git@host:", "//a:b@host:22/c"] {
            assert_eq!(place(url), None, "{url}");
        }
        assert_eq!(pushed(b"[]"), Some(vec![]));
        let body = br#"{"repository": {"clone_url": "https://git.example.com/a/b.git", "url": 3, "ssh_url": "no"}}"#;
        assert_eq!(pushed(body), Some(vec!["git.example.com/a/b".to_string()]));
        assert_eq!(pushed(b"{"), None);
    }

    proptest! {
        #[test]
        fn any_header_and_url_is_handled(header in ".{0,80}", url in ".{0,80}") {
            prop_assert!(!is_signed(b"token", b"body", &header));
            let _ = place(&url);
        }
    }
}
