//! Queues of valid certificate requests that are not issued yet.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{api::certificates::v1::CertificateSigningRequest, apimachinery::pkg::apis::meta::v1::Time};

use super::{
    Claim, Kind, Verdict,
    policy::{Asked, Assessment, assess, is_decided},
    request::Request,
};

/// Returns the verdict on `csr`.
///
/// `request` is the parsed `spec.request` of `csr`, which never changes; parsing it again would verify its signature again. `claims` returns the
/// claim of a node name. `outstanding` holds the requests that are not issued yet: of each host and kind, only the oldest is approved, and the
/// others wait. `operator_user` is the operator's own user name.
pub fn verdict(
    csr: &CertificateSigningRequest,
    request: &Request,
    claims: &dyn Fn(&str) -> Option<Claim>,
    outstanding: &Outstanding,
    operator_user: &str,
) -> Verdict {
    if is_decided(csr) {
        return Verdict::NotOurs;
    }
    match assess(Asked { spec: &csr.spec, request, claims, operator_user }) {
        Assessment::NotOurs => Verdict::NotOurs,
        Assessment::Wrong(fault) => Verdict::Deny { reason: fault.reason, message: fault.message },
        Assessment::Open { message, node } => Verdict::Wait { message, node },
        Assessment::Right { kind, node } => match outstanding.ahead_of(kind, &node, csr) {
            Some(older) => Verdict::Queue { behind: older.to_owned() },
            None => Verdict::Approve(kind),
        },
    }
}

/// Creation time and name of a request. The name orders requests of the same second.
pub type QueuePosition = (Option<Time>, String);

/// Valid requests without a certificate, in one queue for each host and kind, oldest first.
///
/// Invalid requests are not queued, so that they cannot hold up the host that they name.
#[derive(Debug, Default)]
pub struct Outstanding {
    queues: BTreeMap<(Kind, String), BTreeSet<QueuePosition>>,
    positions: BTreeMap<String, (Kind, String, QueuePosition)>,
}

impl Outstanding {
    /// Records the current state of `csr`; `request` is its parsed `spec.request`. If that removes `csr` from its queue, returns the name of the
    /// request that is now first in the queue, if there is one.
    pub fn observe(
        &mut self,
        csr: &CertificateSigningRequest,
        request: &Request,
        claims: &dyn Fn(&str) -> Option<Claim>,
        operator_user: &str,
    ) -> Option<String> {
        let position = queue_position(csr);
        let asked = Asked { spec: &csr.spec, request, claims, operator_user };
        let assessment = if is_finished(csr) { Assessment::NotOurs } else { assess(asked) };
        if let Assessment::Right { kind, node } = assessment {
            self.queues.entry((kind, node.clone())).or_default().insert(position.clone());
            self.positions.insert(position.1.clone(), (kind, node, position));
            None
        } else {
            self.forget(&position.1)
        }
    }

    /// Removes the request with this name. Returns the name of the request that is now first in its queue, if there is one.
    pub fn forget(&mut self, name: &str) -> Option<String> {
        let (kind, node, position) = self.positions.remove(name)?;
        let key = (kind, node);
        let queue = self.queues.get_mut(&key)?;
        queue.remove(&position);
        let next = queue.first().map(|(_, name)| name.clone());
        if next.is_none() {
            self.queues.remove(&key);
        }
        next
    }

    /// Reports whether the request with this name is the first in its queue.
    pub fn is_first(&self, name: &str) -> bool {
        self.positions.get(name).is_some_and(|(kind, node, position)| {
            self.queues.get(&(*kind, node.clone())).and_then(BTreeSet::first) == Some(position)
        })
    }

    /// Returns the name of the oldest request for this host and kind, if it is older than `csr`.
    pub fn ahead_of(&self, kind: Kind, node: &str, csr: &CertificateSigningRequest) -> Option<&str> {
        let first = self.queues.get(&(kind, node.to_owned()))?.first()?;
        (*first < queue_position(csr)).then_some(first.1.as_str())
    }
}

/// Returns the queue position of a request.
pub fn queue_position(csr: &CertificateSigningRequest) -> QueuePosition {
    (csr.metadata.creation_timestamp.clone(), csr.metadata.name.clone().unwrap_or_default())
}

/// Reports whether a request is final: issued, denied, or failed by the signer.
pub fn is_finished(csr: &CertificateSigningRequest) -> bool {
    let Some(status) = &csr.status else { return false };
    let ended = status.conditions.iter().flatten().any(|c| ["Denied", "Failed"].contains(&c.type_.as_str()));
    ended || status.certificate.is_some()
}
