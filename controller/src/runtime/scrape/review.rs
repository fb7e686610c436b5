//! Review of clients that request metrics. The API server must authenticate the token, and its user must have the right to get `/metrics`.

use api::Reason;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, header::AUTHORIZATION};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::{sync::Semaphore, time::timeout};

/// Time for which a verdict is cached: at least a usual scrape interval, and short enough that a revoked right takes effect soon.
const REMEMBERED: Duration = Duration::from_secs(30);
/// Maximum number of cached verdicts.
const MAX_CACHED: usize = 64;
/// Maximum number of concurrent reviews, so that a client that sends many tokens does not overload the API server.
const AT_ONCE: usize = 4;
/// Time limit for a review, including the wait for a permit.
const PATIENCE: Duration = Duration::from_secs(10);

/// Verdict on a request for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// The request is allowed.
    Allowed,
    /// The request has no token, or one that the API server does not know.
    Unknown,
    /// The sender lacks the right.
    Forbidden,
}

/// Error of a request that the API server did not review.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewError {
    /// A request to the API server failed.
    #[error("failed to check the rights of a client that reads metrics: {}", crate::runtime::errors::api_message(.0))]
    Api(#[from] kube::Error),
    /// The API server did not answer in time, or too many reviews are waiting.
    #[error(
        "the rights of a client that reads metrics were not checked within {} s: the API server is slow, or too many clients read metrics",
        PATIENCE.as_secs()
    )]
    Slow,
}

impl ReviewError {
    /// Reason for the log.
    pub(super) const REASON: Reason = Reason::ApiError;
}

/// Reviewer that queries the API server, and caches its verdicts for a while.
pub(super) struct Reviewer {
    client: Client,
    places: Semaphore,
    memory: Mutex<Memory>,
}

impl Reviewer {
    pub(super) fn new(client: Client) -> Self {
        Self { client, places: Semaphore::new(AT_ONCE), memory: Mutex::default() }
    }

    /// Returns the verdict on a request with these headers. Fails if the API server does not review it in time.
    pub(super) async fn judge(&self, headers: &HeaderMap) -> Result<Access, ReviewError> {
        let Some(token) = bearer(headers) else { return Ok(Access::Unknown) };
        let digest = Sha256::digest(token).into();
        if let Some(verdict) = self.memory.lock().get(&digest, Instant::now()) {
            return Ok(verdict);
        }
        let review = async {
            let _place = self.places.acquire().await.map_err(|_| ReviewError::Slow)?;
            self.review(token).await.map_err(ReviewError::from)
        };
        let verdict = timeout(PATIENCE, review).await.map_err(|_| ReviewError::Slow)??;
        self.memory.lock().put(digest, verdict, Instant::now());
        Ok(verdict)
    }

    async fn review(&self, token: &str) -> kube::Result<Access> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(Access::Unknown);
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &may_get(user)).await?.status.unwrap_or_default();
        Ok(if status.allowed { Access::Allowed } else { Access::Forbidden })
    }
}

/// Returns the access review for a request of `/metrics` by this user.
fn may_get(user: UserInfo) -> SubjectAccessReview {
    let UserInfo { extra, groups, uid, username } = user;
    let path = NonResourceAttributes { path: Some("/metrics".into()), verb: Some("get".into()) };
    let spec = SubjectAccessReviewSpec {
        extra,
        groups,
        uid,
        user: username,
        non_resource_attributes: Some(path),
        ..SubjectAccessReviewSpec::default()
    };
    SubjectAccessReview { spec, ..SubjectAccessReview::default() }
}

/// Returns the bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Cached verdicts by the digest of the token.
#[derive(Default)]
struct Memory(HashMap<[u8; 32], (Access, Instant)>);

impl Memory {
    fn get(&self, digest: &[u8; 32], now: Instant) -> Option<Access> {
        let (verdict, since) = self.0.get(digest)?;
        (now.saturating_duration_since(*since) < REMEMBERED).then_some(*verdict)
    }

    fn put(&mut self, digest: [u8; 32], verdict: Access, now: Instant) {
        self.0.retain(|_, (_, since)| now.saturating_duration_since(*since) < REMEMBERED);
        if self.0.len() >= MAX_CACHED
            && let Some(oldest) = self.0.iter().min_by_key(|(_, (_, since))| *since).map(|(digest, _)| *digest)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(digest, (verdict, now));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApi;

    const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
    const ACCESS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

    fn with(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())])
    }

    #[test]
    fn a_token_is_read_from_its_header() {
        for (value, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic abc", None),
            ("abc", None),
        ] {
            assert_eq!(bearer(&with(value)), expected, "{value:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    #[tokio::test]
    async fn the_api_server_decides_who_may_get_metrics() {
        let user = json!({"username": "system:serviceaccount:monitoring:prometheus", "uid": "u", "groups": ["g"], "extra": {"e": ["f"]}});
        for (about, authenticated, allowed, expected) in [
            ("known, with the right", true, true, Access::Allowed),
            ("known, without it", true, false, Access::Forbidden),
            ("not known", false, true, Access::Unknown),
        ] {
            let api = FakeApi::new();
            let review = |status| json!({"metadata": {}, "spec": {}, "status": status});
            api.on("POST", TOKENS, 201, review(json!({"authenticated": authenticated, "user": user})));
            api.on("POST", ACCESS, 201, review(json!({"allowed": allowed})));
            let reviewer = Reviewer::new(api.client());
            for _ in 0..3 {
                assert_eq!(reviewer.judge(&with("Bearer abc")).await.unwrap(), expected, "{about}");
            }
            assert_eq!(api.calls("POST", TOKENS).len(), 1, "{about}: it is remembered");
            for call in api.calls("POST", ACCESS) {
                let spec = &call.body["spec"];
                assert_eq!(spec["nonResourceAttributes"], json!({"path": "/metrics", "verb": "get"}));
                let of = json!([spec["user"], spec["uid"], spec["groups"], spec["extra"]]);
                assert_eq!(of, json!([user["username"], "u", ["g"], {"e": ["f"]}]));
            }
            assert_eq!(reviewer.judge(&HeaderMap::new()).await.unwrap(), Access::Unknown, "{about}: without a token");
        }
    }

    #[tokio::test]
    async fn a_failed_review_is_not_cached() {
        let api = FakeApi::new();
        api.fail("POST", TOKENS, 403, "", "no", json!(null));
        let reviewer = Reviewer::new(api.client());
        for _ in 0..2 {
            assert!(matches!(reviewer.judge(&with("Bearer abc")).await, Err(ReviewError::Api(_))));
        }
        assert_eq!(api.calls("POST", TOKENS).len(), 2);
    }

    #[test]
    fn cached_verdicts_are_limited_by_age_and_number() {
        let start = Instant::now();
        let mut memory = Memory::default();
        memory.put([0; 32], Access::Allowed, start);
        assert_eq!(memory.get(&[0; 32], start + REMEMBERED / 2), Some(Access::Allowed));
        assert_eq!(memory.get(&[0; 32], start + REMEMBERED), None);
        for n in 0..200 {
            memory.put([n; 32], Access::Unknown, start + Duration::from_millis(n.into()));
            assert!(memory.0.len() <= MAX_CACHED);
        }
        assert_eq!(memory.get(&[199; 32], start + Duration::from_secs(1)), Some(Access::Unknown));
        assert_eq!(memory.get(&[1; 32], start + Duration::from_secs(1)), None, "the oldest has made room");
    }
}
