//! Renews the token of a service that authenticates to the API server with its own ServiceAccount.
//!
//! The token is bound to the host's Node: the API server knows from which host it comes, and the token becomes invalid when the Node is deleted. The
//! service reloads the file by itself.

use std::sync::Arc;
use std::time::Duration;

use api::host::{Desired, path};
use api::services::{Prepare, ServiceAccountToken};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use serde_json::Value;
use tokio::sync::watch;
use tracing::{info, warn};

use super::chain;
use super::cluster::{ClusterError, Connect};
use crate::files::{self, Access};
use crate::host::{Host, HostError};

/// Interval between checks of the tokens.
const LOOK: Duration = Duration::from_secs(5);
/// Delay after a failure, once the Node is known.
const AGAIN: Duration = Duration::from_secs(30);
/// Delay after a success: if the host's clock is wrong, each new token looks old.
const REST: Duration = Duration::from_mins(2);
/// Lifetime of a token, in seconds.
const SECONDS: i64 = 3600;

/// Claims of a token, not verified: a false claim can only cause a renewal that is too early or too late.
fn claims(token: &str) -> Option<Value> {
    let payload = token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

/// Reports whether a token must be renewed: after half of its lifetime, if it is bound to another Node, such as an earlier Node of the same name, if
/// it cannot be read, or if it was issued too far in the future. `uid` is `None` while the Node's UID is not known.
fn is_due(token: &str, node: &str, uid: Option<&str>, now: i64) -> bool {
    let claims = claims(token).unwrap_or_default();
    let of = &claims["kubernetes.io"]["node"];
    let (Some(iat), Some(exp)) = (claims["iat"].as_i64(), claims["exp"].as_i64()) else { return true };
    let half = iat.saturating_add(exp.saturating_sub(iat) / 2);
    of["name"] != node || uid.is_some_and(|uid| of["uid"] != uid) || now < iat.saturating_sub(SECONDS) || now >= half
}

/// Renews tokens forever. `node` is the Node, if it is known.
pub async fn keep(host: Arc<dyn Host>, connect: Arc<dyn Connect>, node: watch::Receiver<Option<Value>>) {
    let mut complaint = String::new();
    loop {
        let uid = node.borrow().as_ref().and_then(|node| node["metadata"]["uid"].as_str().map(str::to_owned));
        let wait = match renew(&*host, &*connect, uid.as_deref(), jiff::Timestamp::now().as_second()).await {
            Ok(renewed) => {
                complaint.clear();
                if renewed { REST } else { LOOK }
            }
            Err(e) => {
                let text = chain(&e);
                if complaint != text {
                    warn!(
                        reason = e.reason().as_str(),
                        "a token of a ServiceAccount was not renewed, and wicd tries again: {text}"
                    );
                    complaint = text;
                }
                // Until kubelet has registered the Node there is no token for it.
                if uid.is_none() { LOOK } else { AGAIN }
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Token that must be renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Namespace of the ServiceAccount.
    pub namespace: String,
    /// ServiceAccount of the token, and path of the token's file.
    pub token: ServiceAccountToken,
    /// Name of the Node to which the token is bound.
    pub node: String,
}

/// Returns the tokens that must be renewed.
///
/// # Errors
/// Fails when the desired state or a token cannot be read.
pub fn due(host: &dyn Host, uid: Option<&str>, now: i64) -> Result<Vec<Due>, HostError> {
    let Some(desired) = files::read_json::<Desired>(host, path::DESIRED)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for service in desired.services.services {
        let Some(Prepare::ServiceAccountToken(token)) = service.prepare else { continue };
        let present = files::read(host, &token.path)?.unwrap_or_default();
        if is_due(&String::from_utf8_lossy(&present), &desired.node_name, uid, now) {
            all.push(Due { namespace: desired.namespace.clone(), token, node: desired.node_name.clone() });
        }
    }
    Ok(all)
}

impl Due {
    /// Returns the token request for the API server.
    pub fn request(&self) -> TokenRequest {
        let node = BoundObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(self.node.clone()),
            uid: None,
        };
        let spec = TokenRequestSpec {
            bound_object_ref: Some(node),
            expiration_seconds: Some(SECONDS),
            ..TokenRequestSpec::default()
        };
        TokenRequest { spec: Some(spec), ..TokenRequest::default() }
    }

    /// Writes the token to the file that its service reads.
    ///
    /// # Errors
    /// Fails when the file cannot be written.
    pub fn keep(&self, host: &dyn Host, token: &str) -> Result<(), HostError> {
        files::write(host, &self.token.path, token.as_bytes(), Access::Protected)?;
        Ok(())
    }
}

/// Renews the tokens that are due. Returns whether there were any.
async fn renew(host: &dyn Host, connect: &dyn Connect, uid: Option<&str>, now: i64) -> Result<bool, ClusterError> {
    let all = due(host, uid, now)?;
    for due in &all {
        let cluster = connect.connect().await?;
        let token = cluster.request_token(&due.namespace, &due.token.service_account, due.request()).await?;
        due.keep(host, &token)?;
        info!(service_account = due.token.service_account, "a token has been renewed");
    }
    Ok(!all.is_empty())
}

#[cfg(test)]
mod tests {
    use api::services::{Service, ServicesConfig};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::daemon::fake_cluster::FakeCluster;
    use crate::fake::FakeHost;

    fn token(claims: &Value) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    fn of(node: &str, iat: i64, exp: i64) -> String {
        token(&json!({"iat": iat, "exp": exp, "kubernetes.io": {"node": {"name": node, "uid": "u"}}}))
    }

    #[test]
    fn a_token_is_renewed_after_half_of_its_life() {
        let other = Some("other");
        assert!(!is_due(&of("win-1", 1000, 4600), "win-1", Some("u"), 1000));
        assert!(is_due(&of("win-1", 1000, 4600), "win-1", other, 1000), "the Node was made again");
        for (about, token, now, due) in [
            ("new", of("win-1", 1000, 4600), 1000, false),
            ("before half", of("win-1", 1000, 4600), 2799, false),
            ("half", of("win-1", 1000, 4600), 2800, true),
            ("over", of("win-1", 1000, 4600), 9000, true),
            ("the clock was set back by a day", of("win-1", 100_000, 103_600), 13_600, true),
            ("of another node", of("win-2", 1000, 4600), 1000, true),
            ("bound to nothing", token(&json!({"iat": 1000, "exp": 4600})), 1000, true),
            ("numbers without end", of("win-1", i64::MIN, i64::MAX), 0, true),
            ("none", String::new(), 0, true),
            ("no token", "a.b.c".into(), 0, true),
        ] {
            assert_eq!(is_due(&token, "win-1", None, now), due, "{about}");
        }
    }

    proptest! {
        #[test]
        fn any_text_without_claims_is_due(text in ".{0,200}", now: i64) {
            prop_assert!(is_due(&text, "win-1", None, now));
        }
    }

    #[tokio::test]
    async fn a_token_is_requested_once_until_it_is_due() {
        let host = FakeHost::temporary();
        let cluster = FakeCluster::new();
        assert!(!renew(&host, &cluster, None, 0).await.unwrap());
        let prepare = Prepare::ServiceAccountToken(ServiceAccountToken {
            service_account: "manager".into(),
            path: path::NODE_MANAGER_TOKEN.into(),
        });
        let service = Service { name: "m".into(), prepare: Some(prepare), ..Service::default() };
        let desired = Desired {
            node_name: "win-1".into(),
            namespace: "ns".into(),
            services: ServicesConfig { services: vec![service], ..ServicesConfig::default() },
            ..Desired::default()
        };
        files::write_json(&host, path::DESIRED, &desired, Access::Protected).unwrap();
        assert!(renew(&host, &cluster, None, 1000).await.is_err(), "the API server cannot be reached");
        assert_eq!(files::read(&host, path::NODE_MANAGER_TOKEN).unwrap(), None);
        *cluster.token.lock().unwrap() = Some(of("win-1", 1000, 4600));
        for (now, due) in [(1000, true), (1001, false), (2800, true)] {
            assert_eq!(renew(&host, &cluster, None, now).await.unwrap(), due, "{now}");
        }
        let written = files::read(&host, path::NODE_MANAGER_TOKEN).unwrap().unwrap();
        assert_eq!(written, of("win-1", 1000, 4600).into_bytes());
        assert_eq!(*cluster.tokens.lock().unwrap(), vec!["ns/manager for win-1"; 3], "the failed one, and two");
    }
}
