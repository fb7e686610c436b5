//! Index of the open requests. It limits the requests of each requester, and approves only the first one in each queue. No I/O.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::{api::certificates::v1::CertificateSigningRequest, apimachinery::pkg::apis::meta::v1::Time};
use kube::ResourceExt;
use tokio::time::Instant;
use wnp_core::csr::{is_decided, pending::Pending, request::Request};

use super::{
    Claim, Outstanding, Verdict,
    open::{OpenRequests, is_of_one_host},
    rate::Rate,
    verdict,
};

/// Function that returns the claim of a host by node name.
type Claims<'a> = &'a dyn Fn(&str) -> Option<Claim>;

/// Waiting request.
#[derive(Debug, Default)]
struct Waiting {
    created: Option<Time>,
    /// Last reported verdict, if one was reported.
    reported: Option<Verdict>,
}

/// Index of the open requests.
#[derive(Debug)]
pub(super) struct Index {
    operator_user: String,
    open: OpenRequests,
    outstanding: Outstanding,
    /// Parsed requests, by name and UID. Parsing includes a signature check.
    read: HashMap<String, (Option<String>, Arc<Request>)>,
    /// Names of requests that are now first in their queues and must be evaluated again.
    pub(super) firsts: Vec<String>,
    /// Waiting requests.
    waiting: BTreeMap<String, Waiting>,
    /// True if the waiting requests have changed since the last report.
    is_unreported: bool,
    /// Rate limits of denials, of approvals and of reports that a request waits. Each causes a write or an event. A requester, which may be a
    /// compromised host, must not cause these without limit.
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
        // Which requests of a host are due depends on all its requests.
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

    /// Returns the parsed request. Parses a request once for each UID.
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

    /// Forgets a request that is deleted or finished.
    pub(super) fn forget(&mut self, csr: &CertificateSigningRequest) {
        let name = csr.name_any();
        self.open.forget(csr);
        self.is_unreported |= self.waiting.remove(&name).is_some();
        self.read.remove(&name);
        self.firsts.extend(self.outstanding.forget(&name));
    }

    /// Evaluates a request as last observed. `all` lists the open requests.
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
            // Only the first request in a queue is approved. If verdict and queue disagree, the claims have changed since the request was observed:
            // older requests may have become valid, too.
            self.observe(all().iter().map(AsRef::as_ref), claims);
            judged = verdict(csr, &request, claims, &self.outstanding, &self.operator_user);
        }
        match judged {
            // During a flood of invalid requests, the rest waits for the next minute.
            Verdict::Deny { .. } if !self.admits_denial(csr, now) => Verdict::NotOurs,
            judged => judged,
        }
    }

    /// Reports whether one more request of the same host may be approved now. Requesters that act for many hosts have no limit.
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

    /// Reports whether the verdict must be reported: an approval or a denial always, a wait if its reason is new and the rate limit allows the
    /// report.
    pub(super) fn is_news(&mut self, csr: &CertificateSigningRequest, verdict: &Verdict, now: Instant) -> bool {
        let name = csr.name_any();
        match verdict {
            Verdict::Wait { .. } => {
                let known = self.waiting.entry(name).or_default();
                known.created = csr.creation_timestamp();
                let is_news = known.reported.as_ref() != Some(verdict)
                    && (!is_of_one_host(csr) || self.waits.admit(requester(csr), now));
                if is_news {
                    known.reported = Some(verdict.clone());
                    self.is_unreported = true;
                }
                is_news
            }
            // A queued request waits for another request of the same host, and a host can post any number of them.
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

    /// Returns the newest request of each Node that users may approve, or `None` if nothing has changed since the last call. A kubelet waits only for
    /// its newest request.
    pub(super) fn manual_requests(&mut self) -> Option<Vec<Pending>> {
        if !std::mem::take(&mut self.is_unreported) {
            return None;
        }
        let mut waiting: Vec<_> = self.waiting.iter().collect();
        waiting.sort_by_key(|(name, request)| (request.created.clone(), *name));
        let mut of_nodes = BTreeMap::new();
        for (name, request) in waiting {
            if let Some(Verdict::Wait { message, node: Some(node) }) = &request.reported {
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

    /// Returns the names of the requests that wait for anything but their turn.
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
