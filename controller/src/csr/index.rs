//! What the verdict on one request depends on beside the request: the others that are open. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::ResourceExt;
use tokio::time::Instant;
use tracing::warn;
use wnp_core::csr::is_decided;

use super::{Claim, Outstanding, Verdict, open::OpenRequests, verdict};

/// Denials for one requester in each [`WINDOW`].
const MAX_DENIALS: u32 = 10;
/// Interval after which the count of denials begins again.
const WINDOW: Duration = Duration::from_mins(1);

/// What is known about the host of a node name.
type Claims<'a> = &'a dyn Fn(&str) -> Option<Claim>;

/// The open requests together.
#[derive(Debug)]
pub(super) struct Index {
    operator_user: String,
    open: OpenRequests,
    outstanding: Outstanding,
    /// Names of requests that have become the first in their queues, to be judged again.
    pub(super) firsts: Vec<String>,
    /// The last reported cause of each waiting request.
    waiting: BTreeMap<String, Verdict>,
    denials: Denials,
}

impl Index {
    pub(super) fn new(operator_user: String, now: Instant) -> Self {
        Self {
            operator_user,
            open: OpenRequests::default(),
            outstanding: Outstanding::default(),
            firsts: Vec::new(),
            waiting: BTreeMap::new(),
            denials: Denials { began: now, counts: BTreeMap::new() },
        }
    }

    /// Takes in a complete list.
    pub(super) fn replace(&mut self, all: &[Arc<CertificateSigningRequest>], claims: Claims<'_>) {
        (self.open, self.outstanding) = (OpenRequests::default(), Outstanding::default());
        self.observe(all.iter().map(AsRef::as_ref), claims);
        let names: BTreeSet<String> = all.iter().map(|csr| csr.name_any()).collect();
        self.waiting.retain(|name, _| names.contains(name));
    }

    /// Takes in the present state of requests.
    pub(super) fn observe<'a>(
        &mut self,
        csrs: impl IntoIterator<Item = &'a CertificateSigningRequest> + Clone,
        claims: Claims<'_>,
    ) {
        // Which of one host are due is known when all are.
        for csr in csrs.clone() {
            self.open.observe(csr);
        }
        for csr in csrs {
            self.enqueue(csr, claims);
        }
    }

    fn enqueue(&mut self, csr: &CertificateSigningRequest, claims: Claims<'_>) {
        self.firsts.extend(if self.open.is_due(csr) {
            self.outstanding.observe(csr, claims, &self.operator_user)
        } else {
            self.outstanding.forget(&csr.name_any())
        });
    }

    /// Forgets a request that went or is finished.
    pub(super) fn forget(&mut self, csr: &CertificateSigningRequest) {
        self.open.forget(csr);
        self.waiting.remove(&csr.name_any());
        self.firsts.extend(self.outstanding.forget(&csr.name_any()));
    }

    /// Judges a request as it was observed last. `all` lists the open requests.
    pub(super) fn judge(
        &mut self,
        csr: &CertificateSigningRequest,
        all: impl FnOnce() -> Vec<Arc<CertificateSigningRequest>>,
        claims: Claims<'_>,
        now: Instant,
    ) -> Verdict {
        if is_decided(csr) || !self.open.is_due(csr) {
            self.enqueue(csr, claims);
            return Verdict::NotOurs;
        }
        let mut judged = verdict(csr, claims, &self.outstanding, &self.operator_user);
        if matches!(judged, Verdict::Approve(_)) != self.outstanding.is_first(&csr.name_any()) {
            // The first in a queue is approved and no other. Where that is not so, the claims have changed since it was observed:
            // others may have become right, too, and be older.
            self.observe(all().iter().map(AsRef::as_ref), claims);
            judged = verdict(csr, claims, &self.outstanding, &self.operator_user);
        }
        match judged {
            // During a flood of wrong requests, the rest waits for the next minute.
            Verdict::Deny { .. } if !self.denials.admit(csr.spec.username.as_deref().unwrap_or_default(), now) => {
                Verdict::NotOurs
            }
            judged => judged,
        }
    }

    /// Whether the verdict is to be reported: it is written, or is another cause to wait than before.
    pub(super) fn is_news(&mut self, name: &str, verdict: &Verdict) -> bool {
        match verdict {
            Verdict::Wait { .. } => self.waiting.insert(name.to_owned(), verdict.clone()).as_ref() != Some(verdict),
            Verdict::NotOurs => {
                self.waiting.remove(name);
                false
            }
            Verdict::Approve(_) | Verdict::Deny { .. } => true,
        }
    }
}

/// Denials for each requester since `began`. Each is a write and an event: a requester, which may be a host that was taken over, must not
/// have them made without limit. (Approvals are bounded by themselves: one at a time for each host and kind.)
#[derive(Debug)]
struct Denials {
    began: Instant,
    counts: BTreeMap<String, u32>,
}

impl Denials {
    fn admit(&mut self, requester: &str, now: Instant) -> bool {
        if now.duration_since(self.began) >= WINDOW {
            *self = Self { began: now, counts: BTreeMap::new() };
        }
        let count = self.counts.entry(requester.to_owned()).or_default();
        *count = count.saturating_add(1);
        if *count == MAX_DENIALS + 1 {
            warn!(requester, "too many wrong certificate requests; more are denied in a minute");
        }
        *count <= MAX_DENIALS
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
