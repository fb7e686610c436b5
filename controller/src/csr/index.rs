//! Open requests that the verdict on one request depends on. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::ResourceExt;
use tokio::time::Instant;
use wnp_core::csr::{is_decided, pending::Pending, request::Request};

use super::{
    Claim, Outstanding, Verdict,
    open::{OpenRequests, is_of_one_host},
    rate::Rate,
    verdict,
};

/// Function that returns what is known about the host of a node name.
type Claims<'a> = &'a dyn Fn(&str) -> Option<Claim>;

/// Index of the open requests.
#[derive(Debug)]
pub(super) struct Index {
    operator_user: String,
    open: OpenRequests,
    outstanding: Outstanding,
    /// Parsed requests, by name and UID. To parse one costs the check of a signature.
    read: HashMap<String, (Option<String>, Arc<Request>)>,
    /// Names of requests that have become the first in their queues, to be judged again.
    pub(super) firsts: Vec<String>,
    /// Last reported cause of each waiting request, if there is one.
    waiting: BTreeMap<String, Option<Verdict>>,
    /// True if the waiting requests have changed since they were reported.
    is_unreported: bool,
    /// Rate of denials. Like the approvals and waits below, each is a write or an event, which a requester, perhaps a host that was taken over, must
    /// not have made without limit.
    denials: Rate,
    approvals: Rate,
    waits: Rate,
}

impl Index {
    pub(super) fn new(operator_user: String, now: Instant) -> Self {
        Self {
            operator_user,
            open: OpenRequests::default(),
            outstanding: Outstanding::default(),
            read: HashMap::new(),
            firsts: Vec::new(),
            waiting: BTreeMap::new(),
            is_unreported: false,
            denials: Rate::new(now),
            approvals: Rate::new(now),
            waits: Rate::new(now),
        }
    }

    /// Replaces the index with a complete list.
    pub(super) fn replace(&mut self, all: &[Arc<CertificateSigningRequest>], claims: Claims<'_>) {
        (self.open, self.outstanding) = (OpenRequests::default(), Outstanding::default());
        self.observe(all.iter().map(AsRef::as_ref), claims);
        let names: BTreeSet<String> = all.iter().map(|csr| csr.name_any()).collect();
        self.waiting.retain(|name, _| names.contains(name));
        self.is_unreported = true;
        self.read.retain(|name, _| names.contains(name));
    }

    /// Adds the current state of requests to the index.
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
        let first = if self.open.is_due(csr) {
            let request = self.request(csr);
            self.outstanding.observe(csr, &request, claims, &self.operator_user)
        } else {
            self.read.remove(&csr.name_any());
            self.outstanding.forget(&csr.name_any())
        };
        self.firsts.extend(first);
    }

    /// Returns the parsed open request.
    pub(super) fn request(&mut self, csr: &CertificateSigningRequest) -> Arc<Request> {
        let (name, uid) = (csr.name_any(), csr.uid());
        match self.read.get(&name) {
            Some((known, request)) if *known == uid => request.clone(),
            _ => {
                let request = Arc::new(Request::read(&csr.spec.request.0));
                self.read.insert(name, (uid, request.clone()));
                request
            }
        }
    }

    /// Forgets a request that went or is finished.
    pub(super) fn forget(&mut self, csr: &CertificateSigningRequest) {
        let name = csr.name_any();
        self.open.forget(csr);
        self.is_unreported |= self.waiting.remove(&name).is_some();
        self.read.remove(&name);
        self.firsts.extend(self.outstanding.forget(&name));
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
        let request = self.request(csr);
        let mut judged = verdict(csr, &request, claims, &self.outstanding, &self.operator_user);
        if matches!(judged, Verdict::Approve(_)) != self.outstanding.is_first(&csr.name_any()) {
            // The first in a queue is approved and no other. Where that is not so, the claims have changed since it was observed:
            // others may have become right, too, and be older.
            self.observe(all().iter().map(AsRef::as_ref), claims);
            judged = verdict(csr, &request, claims, &self.outstanding, &self.operator_user);
        }
        match judged {
            // During a flood of wrong requests, the rest waits for the next minute.
            Verdict::Deny { .. } if !self.admits_denial(csr, now) => Verdict::NotOurs,
            judged => judged,
        }
    }

    /// Reports whether one more request of the same host may be approved now. Other requesters ask for many hosts.
    pub(super) fn allows_approval(&mut self, csr: &CertificateSigningRequest, now: Instant) -> bool {
        !is_of_one_host(csr) || self.approvals.allows(requester(csr), now)
    }

    /// Records that a request was approved.
    pub(super) fn count_approval(&mut self, csr: &CertificateSigningRequest, now: Instant) {
        if is_of_one_host(csr) {
            self.approvals.admit(requester(csr), now);
        }
    }

    /// Counts one more denial, and reports whether it may be written for the same requester.
    pub(super) fn admits_denial(&mut self, csr: &CertificateSigningRequest, now: Instant) -> bool {
        self.denials.admit(requester(csr), now)
    }

    /// Reports whether the verdict is to be reported: it is written, or is another cause to wait than before.
    pub(super) fn is_news(&mut self, csr: &CertificateSigningRequest, verdict: &Verdict, now: Instant) -> bool {
        let name = csr.name_any();
        match verdict {
            Verdict::Wait { .. } => {
                let known = self.waiting.entry(name).or_default();
                let is_news =
                    known.as_ref() != Some(verdict) && (!is_of_one_host(csr) || self.waits.admit(requester(csr), now));
                if is_news {
                    *known = Some(verdict.clone());
                    self.is_unreported = true;
                }
                is_news
            }
            // The cause is another request of the same host, of which a host can have any number.
            Verdict::NotOurs | Verdict::Queue { .. } => {
                self.is_unreported |= self.waiting.remove(&name).is_some();
                false
            }
            Verdict::Approve(_) | Verdict::Deny { .. } => {
                self.is_unreported |= self.waiting.remove(&name).is_some();
                true
            }
        }
    }

    /// Returns the requests that a user may approve, the last of each Node, if they have changed since the last call.
    pub(super) fn left_to_people(&mut self) -> Option<Vec<Pending>> {
        if !std::mem::take(&mut self.is_unreported) {
            return None;
        }
        let mut of_nodes = BTreeMap::new();
        for (name, verdict) in &self.waiting {
            if let Some(Verdict::Wait { message, node: Some(node) }) = verdict {
                of_nodes.insert(node, (name, message));
            }
        }
        let pending = |(node, (name, message)): (&String, (&String, &String))| Pending {
            request: name.clone(),
            node: node.clone(),
            message: message.clone(),
        };
        Some(of_nodes.into_iter().map(pending).collect())
    }

    /// Names of the requests that wait for something else than their turn.
    pub(super) fn waiting(&self) -> Vec<String> {
        self.waiting.keys().cloned().collect()
    }
}

fn requester(csr: &CertificateSigningRequest) -> &str {
    csr.spec.username.as_deref().unwrap_or_default()
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
