//! `POST /hooks/git`: a Git server tells that somebody has pushed, so that nobody has to wait for the next look.
//!
//! It says only that it is worth looking: what is used is what the operator then fetches and checks itself. Still, only who knows the
//! token may make the operator look, by an HMAC-SHA256 of the body in `X-Hub-Signature-256`, as GitHub, Gitea and Forgejo send it.

use std::sync::{Arc, OnceLock};

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use ring::hmac;
use serde_json::Value;

use crate::context::Context;

/// Largest body that is looked at: a push of very many commits is larger, and is then found at the next look.
pub const MAX_BODY: usize = 1 << 20;
/// Key of the token in its Secret.
const TOKEN: &str = "token";

/// The operator, once it leads.
pub type Leader = Arc<OnceLock<Arc<Context>>>;

/// Takes a push.
pub async fn push(State(leader): State<Leader>, headers: HeaderMap, body: Bytes) -> (StatusCode, &'static str) {
    let Some(cx) = leader.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "this operator does not lead\n");
    };
    let token = match token(cx).await {
        Ok(Some(token)) => token,
        Ok(None) => return (StatusCode::NOT_FOUND, "no token is set up for pushes\n"),
        Err(error) => {
            tracing::warn!(%error, "the token for pushes could not be read");
            return (StatusCode::SERVICE_UNAVAILABLE, "the token could not be read\n");
        }
    };
    let signature = headers.get("x-hub-signature-256").and_then(|v| v.to_str().ok()).unwrap_or_default();
    if !is_signed(&token, &body, signature) {
        return (StatusCode::FORBIDDEN, "X-Hub-Signature-256 is missing or wrong\n");
    }
    let Some(pushed) = pushed(&body) else {
        return (StatusCode::BAD_REQUEST, "the body is no JSON\n");
    };
    let found = cx.gits.pushed(|url| place(url).is_some_and(|p| pushed.contains(&p)));
    if found == 0 {
        return (StatusCode::OK, "no pool names this repository\n");
    }
    (StatusCode::ACCEPTED, "looking\n")
}

async fn token(cx: &Context) -> kube::Result<Option<Vec<u8>>> {
    let secrets: Api<Secret> = Api::namespaced(cx.client.clone(), &cx.args.namespace);
    let secret = secrets.get_opt(&cx.args.webhook_secret).await?;
    let token = secret.and_then(|s| s.data?.remove(TOKEN)).map(|t| t.0);
    // Anybody can sign with nothing.
    Ok(token.filter(|t| !t.trim_ascii().is_empty()).map(|t| t.trim_ascii().to_vec()))
}

/// Whether this is the HMAC of the body, as `sha256=<hex>`.
pub fn is_signed(token: &[u8], body: &[u8], signature: &str) -> bool {
    let Some(Ok(signature)) = signature.strip_prefix("sha256=").map(hex::decode) else { return false };
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, token), body, &signature).is_ok()
}

/// The repository that the body names, in every way in which it does, each as host and path. `None` if it is no JSON.
pub fn pushed(body: &[u8]) -> Option<Vec<String>> {
    let body: Value = serde_json::from_slice(body).ok()?;
    Some(urls(&body).into_iter().filter_map(|url| place(&url)).collect())
}

/// Everything in the body that a pool may call the repository.
fn urls(body: &Value) -> Vec<String> {
    const FIELDS: [&str; 5] = ["clone_url", "ssh_url", "git_url", "html_url", "url"];
    let repository = &body["repository"];
    FIELDS.iter().filter_map(|f| repository[f].as_str().map(str::to_owned)).collect()
}

/// Host and path of a URL, however it is written: `https://host/a/b.git`, `ssh://git@host:22/a/b`, `git@host:a/b.git`.
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
    fn only_who_knows_the_token_is_listened_to() {
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
    fn a_repository_is_the_same_however_it_is_written() {
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
        let body = serde_json::json!({"repository": {"clone_url": "a", "ssh_url": "b", "stars": 3}});
        assert_eq!(urls(&body), ["a", "b"]);
        assert!(urls(&serde_json::json!([])).is_empty());
        let body = br#"{"repository": {"clone_url": "https://git.example.com/a/b.git", "url": 3, "ssh_url": "no"}}"#;
        assert_eq!(pushed(body), Some(vec!["git.example.com/a/b".to_string()]));
        assert_eq!(pushed(b"{"), None);
    }

    proptest! {
        #[test]
        fn no_header_and_no_url_is_too_strange(header in ".{0,80}", url in ".{0,80}") {
            prop_assert!(!is_signed(b"token", b"body", &header));
            let _ = place(&url);
        }
    }
}
