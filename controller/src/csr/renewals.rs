//! Certificates that wicd has renewed by itself: recorded at approval, so that the instances can store their expiry.

use std::collections::HashMap;

use futures::{Stream, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// Prefix of the user name of wicd on a host. The node name follows it.
const REQUESTER: &str = "system:wicd-node:";

/// Expiry of the latest wicd certificate of each node.
pub struct Renewals {
    ends: Mutex<HashMap<String, Timestamp>>,
    sender: mpsc::UnboundedSender<String>,
    receiver: Mutex<Option<mpsc::UnboundedReceiver<String>>>,
}

impl Default for Renewals {
    fn default() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { ends: Mutex::default(), sender, receiver: Mutex::new(Some(receiver)) }
    }
}

impl Renewals {
    /// Records an approved renewal request of wicd, and ignores requests of others. `now` is the time of the approval.
    pub fn note(&self, request: &CertificateSigningRequest, now: Timestamp) {
        let Some((node, end)) = renewal(request, now) else { return };
        self.ends.lock().insert(node.clone(), end);
        // Without a receiver, no instance stores the expiry.
        let _ = self.sender.send(node);
    }

    /// Returns the expiry of the latest wicd certificate of this node, if this process has approved it.
    pub fn end(&self, node: &str) -> Option<Timestamp> {
        self.ends.lock().get(node).copied()
    }

    /// Streams the names of nodes with new records. Only the first caller gets them.
    pub fn nodes(&self) -> impl Stream<Item = String> + Send + 'static {
        let receiver = self.receiver.lock().take();
        stream::unfold(receiver, |receiver| async move {
            let mut receiver = receiver?;
            receiver.recv().await.map(|node| (node, Some(receiver)))
        })
    }
}

/// Returns the node whose wicd certificate a request renews, and the expiry of the new certificate. Returns `None` for a request of another client
/// or without a lifetime.
fn renewal(request: &CertificateSigningRequest, now: Timestamp) -> Option<(String, Timestamp)> {
    let node = request.spec.username.as_deref()?.strip_prefix(REQUESTER)?;
    let life = SignedDuration::from_secs(request.spec.expiration_seconds?.into());
    Some((node.to_owned(), now.checked_add(life).ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_renewal_of_wicd_tells_its_node_and_expiry() {
        let now = Timestamp::from_second(1000).unwrap();
        for (user, seconds, expected) in [
            ("system:wicd-node:win-1", Some(60), Some(("win-1".to_owned(), Timestamp::from_second(1060).unwrap()))),
            ("system:wicd-node:win-1", None, None),
            ("system:node:win-1", Some(60), None),
            ("the-operator", Some(60), None),
        ] {
            let request: CertificateSigningRequest = serde_json::from_value(json!({
                "metadata": {},
                "spec": {"username": user, "expirationSeconds": seconds, "request": "", "signerName": "x"},
            }))
            .unwrap();
            assert_eq!(renewal(&request, now), expected, "{user}");
        }
    }
}
