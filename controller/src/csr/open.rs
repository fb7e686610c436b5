//! Limits on the number of requests per requester. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::ResourceExt;
use wnp_core::csr::{QueuePosition, is_decided, is_finished, queue_position};

use super::Kind;

/// Maximum number of requests of one host for one kind of certificate that are evaluated at a time. A compromised host may post any number, and each
/// costs a signature check. Each kind has its own limit: serving requests that wait for a user, which a kubelet repeats every quarter of an hour,
/// must not block the renewal of the host's identity.
const MAX_OF_ONE_HOST: usize = 20;
/// Maximum number of requests of any other requester for one kind of certificate that are evaluated at a time. Such a requester may act for many
/// hosts.
const MAX_OF_OTHERS: usize = 1000;

/// Maximum number of unfinished requests of one host for one kind of certificate that are kept in memory. The requester of a dropped request
/// creates another one when it gets no certificate.
const MAX_KEPT_OF_ONE_HOST: usize = 100;

/// Requester and certificate kind of a request. Signers without a kind count as one: a requester can invent any number.
type Source = (String, Option<Kind>);

/// Undecided requests of each source, oldest first.
#[derive(Debug, Default)]
pub(super) struct OpenRequests(BTreeMap<Source, BTreeSet<QueuePosition>>);

impl OpenRequests {
    /// Adds the current state of a request to the index.
    pub(super) fn observe(&mut self, csr: &CertificateSigningRequest) {
        if is_decided(csr) {
            self.forget(csr);
        } else {
            self.0.entry(source(csr)).or_default().insert(queue_position(csr));
        }
    }

    /// Forgets a request.
    pub(super) fn forget(&mut self, csr: &CertificateSigningRequest) {
        let source = source(csr);
        if let Some(positions) = self.0.get_mut(&source) {
            positions.remove(&queue_position(csr));
            if positions.is_empty() {
                self.0.remove(&source);
            }
        }
    }

    /// Reports whether a request is evaluated now. If a source has too many undecided requests, only the newest are evaluated, because the requester
    /// no longer waits for the others.
    pub(super) fn is_due(&self, csr: &CertificateSigningRequest) -> bool {
        let most = if is_of_one_host(csr) { MAX_OF_ONE_HOST } else { MAX_OF_OTHERS };
        let Some(positions) = self.0.get(&source(csr)).filter(|p| p.len() > most) else { return true };
        let position = queue_position(csr);
        is_decided(csr) || positions.iter().rev().take(most).any(|p| *p == position)
    }
}

/// UIDs of the hosts' requests that are kept in memory, by source. A compromised host may post any number, each with kilobytes.
#[derive(Debug, Default)]
pub(super) struct Kept(BTreeMap<Source, BTreeSet<String>>);

impl Kept {
    /// Reports whether a request is kept in memory, and counts it.
    pub(super) fn keeps(&mut self, csr: &CertificateSigningRequest) -> bool {
        if is_finished(csr) {
            self.forget(csr);
            return false;
        }
        if !is_of_one_host(csr) {
            return true;
        }
        let uids = self.0.entry(source(csr)).or_default();
        let uid = csr.uid().unwrap_or_default();
        let keeps = uids.len() < MAX_KEPT_OF_ONE_HOST || uids.contains(&uid);
        if keeps {
            uids.insert(uid);
        }
        keeps
    }

    /// Forgets a request that is deleted or finished.
    pub(super) fn forget(&mut self, csr: &CertificateSigningRequest) {
        let source = source(csr);
        if let Some(uids) = self.0.get_mut(&source) {
            uids.remove(&csr.uid().unwrap_or_default());
            if uids.is_empty() {
                self.0.remove(&source);
            }
        }
    }

    /// Forgets all requests before a new list.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Reports whether a host has posted the request with its own identity.
pub(super) fn is_of_one_host(csr: &CertificateSigningRequest) -> bool {
    let user = csr.spec.username.as_deref().unwrap_or_default();
    [Kind::KubeletClient, Kind::WicdClient].iter().any(|kind| user.starts_with(kind.user_prefix()))
}

fn source(csr: &CertificateSigningRequest) -> Source {
    (csr.spec.username.clone().unwrap_or_default(), Kind::of_signer(&csr.spec.signer_name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn request(name: &str, user: &str, second: u32, status: &Value) -> CertificateSigningRequest {
        let time = format!("2026-01-01T00:{:02}:{:02}Z", second / 60, second % 60);
        let spec = json!({"username": user, "request": "", "signerName": "kubernetes.io/kubelet-serving"});
        let metadata = json!({"name": name, "creationTimestamp": time});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn the_number_of_evaluated_requests_of_one_host_is_limited() {
        let of_host: Vec<_> =
            (0..1000).map(|n| request(&format!("a-{n}"), "system:wicd-node:a", n, &json!({}))).collect();
        let of_others: Vec<_> = (0..1000)
            .map(|n| request(&format!("operator-{n}"), "system:serviceaccount:ns:operator", n, &json!({})))
            .chain([request("b", "system:node:b", 0, &json!({}))])
            .collect();
        let mut open = OpenRequests::default();
        of_host.iter().chain(&of_others).for_each(|csr| open.observe(csr));
        let due = |open: &OpenRequests| -> Vec<String> {
            of_host.iter().filter(|csr| open.is_due(csr)).map(ResourceExt::name_any).collect()
        };
        assert_eq!((due(&open).len(), due(&open)[0].as_str()), (MAX_OF_ONE_HOST, "a-980"), "the newest");
        assert!(of_others.iter().all(|csr| open.is_due(csr)));

        // As requests are decided or deleted, the others follow.
        let denied = json!({"conditions": [{"type": "Denied", "status": "True"}]});
        open.observe(&request("a-999", "system:wicd-node:a", 999, &denied));
        open.forget(&of_host[998]);
        assert_eq!(due(&open)[0], "a-978");
    }

    #[test]
    fn the_number_of_requests_of_one_host_in_memory_is_limited() {
        let made = |user: &str, n: u32, status: &Value| {
            let mut csr = request(&format!("{user}-{n}"), user, n, status);
            csr.metadata.uid = Some(format!("{user}-{n}"));
            csr
        };
        let (host, open) = ("system:node:a", json!({}));
        let mut kept = Kept::default();
        assert_eq!((0..1000).filter(|n| kept.keeps(&made(host, *n, &open))).count(), MAX_KEPT_OF_ONE_HOST);
        assert!(kept.keeps(&made(host, 7, &open)), "it is kept already");
        assert!(kept.keeps(&made("system:node:b", 0, &open)));
        assert_eq!((0..1000).filter(|n| kept.keeps(&made("system:bootstrap:x", *n, &open))).count(), 1000);
        // Finished and deleted requests make room.
        assert!(!kept.keeps(&made(host, 8, &json!({"certificate": "eA=="}))));
        kept.forget(&made(host, 9, &open));
        assert_eq!((1000..2000).filter(|n| kept.keeps(&made(host, *n, &open))).count(), 2);
    }

    #[test]
    fn requests_of_one_host_to_unknown_signers_share_one_limit() {
        let mut open = OpenRequests::default();
        let of_host: Vec<_> = (0..100)
            .map(|n| {
                let mut csr = request(&format!("a-{n}"), "system:node:a", n, &json!({}));
                csr.spec.signer_name = format!("example.com/{n}");
                csr
            })
            .collect();
        for csr in &of_host {
            open.observe(csr);
        }
        assert_eq!(of_host.iter().filter(|csr| open.is_due(csr)).count(), MAX_OF_ONE_HOST);
    }

    #[test]
    fn other_requesters_have_a_higher_limit() {
        let mut open = OpenRequests::default();
        let all: Vec<_> = (0..2000).map(|n| request(&format!("a-{n}"), "system:bootstrap:a", n, &json!({}))).collect();
        for csr in &all {
            open.observe(csr);
        }
        assert_eq!(all.iter().filter(|csr| open.is_due(csr)).count(), MAX_OF_OTHERS);
        assert!(open.is_due(&all[1999]));
    }

    /// A kubelet at an unproven address posts one serving request after another, and each waits for a user.
    #[test]
    fn waiting_serving_requests_do_not_block_a_client_certificate() {
        let mut open = OpenRequests::default();
        for n in 0..100 {
            open.observe(&request(&format!("serving-{n}"), "system:node:a", n, &json!({})));
        }
        let mut renewal = request("renewal", "system:node:a", 50, &json!({}));
        renewal.spec.signer_name = Kind::KubeletClient.signer_name().to_owned();
        open.observe(&renewal);
        assert!(open.is_due(&renewal));
    }

    #[test]
    fn decided_requests_are_forgotten() {
        let mut open = OpenRequests::default();
        open.observe(&request("a", "system:node:a", 1, &json!({})));
        open.observe(&request("a", "system:node:a", 1, &json!({"certificate": "eA=="})));
        assert!(open.0.is_empty());
    }
}
