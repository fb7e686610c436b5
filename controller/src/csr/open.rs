//! The requests that the approver keeps in view. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::ResourceExt;
use wnp_core::csr::{Place, is_decided, place};

use super::Kind;

/// Requests of one host to one signer that are judged at a time. A host that was taken over may make any number, and each costs the check
/// of a signature whenever anything is judged again. Each signer has its own: serving requests that wait for a person, of which a kubelet
/// makes a new one every quarter of an hour, must not hold up the renewal of the identity of the host.
const MAX_OF_ONE_HOST: usize = 20;

/// The requests without a certificate.
#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    by_name: BTreeMap<String, CertificateSigningRequest>,
    /// Those that each host made to each signer and that are undecided, the oldest first.
    undecided: BTreeMap<(String, String), BTreeSet<Place>>,
}

impl OpenRequests {
    /// Takes in the present state of a request.
    pub(super) fn insert(&mut self, csr: CertificateSigningRequest) {
        let name = csr.name_any();
        self.remove(&name);
        if csr.status.as_ref().is_some_and(|status| status.certificate.is_some()) {
            return;
        }
        if let Some(host) = of_one_host(&csr).filter(|_| !is_decided(&csr)) {
            self.undecided.entry(host).or_default().insert(place(&csr));
        }
        self.by_name.insert(name, csr);
    }

    /// Forgets a request.
    pub(super) fn remove(&mut self, name: &str) {
        let Some(csr) = self.by_name.remove(name) else { return };
        if let Some(host) = of_one_host(&csr)
            && let Some(places) = self.undecided.get_mut(&host)
        {
            places.remove(&place(&csr));
            if places.is_empty() {
                self.undecided.remove(&host);
            }
        }
    }

    /// The request of that name.
    pub(super) fn get(&self, name: &str) -> Option<&CertificateSigningRequest> {
        self.by_name.get(name)
    }

    /// Those that are judged now. Of one host that makes too many only the newest: it has given up on the others.
    pub(super) fn due(&self) -> impl Iterator<Item = &CertificateSigningRequest> {
        self.by_name.values().filter(|csr| self.is_due(csr))
    }

    /// Whether a request is judged now.
    pub(super) fn is_due(&self, csr: &CertificateSigningRequest) -> bool {
        let places = of_one_host(csr).and_then(|host| self.undecided.get(&host));
        let Some(places) = places.filter(|p| p.len() > MAX_OF_ONE_HOST) else { return true };
        let place = place(csr);
        is_decided(csr) || places.iter().rev().take(MAX_OF_ONE_HOST).any(|p| *p == place)
    }
}

/// The requester and the signer, if the requester is a host. Others ask for many hosts.
fn of_one_host(csr: &CertificateSigningRequest) -> Option<(String, String)> {
    let user = csr.spec.username.as_deref().unwrap_or_default();
    let prefixes = [Kind::KubeletClient.user_prefix(), Kind::WicdClient.user_prefix()];
    prefixes.iter().any(|prefix| user.starts_with(prefix)).then(|| (user.to_owned(), csr.spec.signer_name.clone()))
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

    fn due(open: &OpenRequests) -> Vec<String> {
        open.due().map(ResourceExt::name_any).collect()
    }

    #[test]
    fn one_host_cannot_have_any_number_of_requests_judged_again_and_again() {
        let (hostile, other, operator) = ("system:wicd-node:a", "system:node:b", "system:serviceaccount:ns:operator");
        let mut open = OpenRequests::default();
        for n in 0..1000 {
            open.insert(request(&format!("a-{n}"), hostile, n, &json!({})));
            open.insert(request(&format!("operator-{n}"), operator, n, &json!({})));
        }
        open.insert(request("b", other, 0, &json!({})));
        let of_host: Vec<String> = due(&open).into_iter().filter(|name| name.starts_with("a-")).collect();
        assert_eq!((of_host.len(), due(&open).len()), (MAX_OF_ONE_HOST, MAX_OF_ONE_HOST + 1001));
        assert!(of_host.contains(&"a-999".to_owned()), "the newest: {of_host:?}");

        // As they are decided or go, the others follow.
        open.insert(request("a-999", hostile, 999, &json!({"conditions": [{"type": "Denied", "status": "True"}]})));
        open.remove("a-998");
        let due = due(&open);
        assert!(due.contains(&"a-979".to_owned()) && due.contains(&"a-978".to_owned()), "{due:?}");
        assert!(!due.contains(&"a-977".to_owned()));
    }

    /// At an address that nothing proves, a kubelet makes one serving request after another, and each waits for a person.
    #[test]
    fn serving_requests_that_wait_do_not_hold_up_the_identity_of_the_host() {
        let mut open = OpenRequests::default();
        for n in 0..100 {
            open.insert(request(&format!("serving-{n}"), "system:node:a", n, &json!({})));
        }
        let mut renewal = request("renewal", "system:node:a", 50, &json!({}));
        renewal.spec.signer_name = Kind::KubeletClient.signer_name().to_owned();
        open.insert(renewal);
        assert!(due(&open).contains(&"renewal".to_owned()));
    }

    #[test]
    fn what_has_its_certificate_is_forgotten() {
        let mut open = OpenRequests::default();
        open.insert(request("a", "system:node:a", 1, &json!({})));
        open.insert(request("a", "system:node:a", 1, &json!({"certificate": "eA=="})));
        assert!(open.get("a").is_none() && open.undecided.is_empty());
    }
}
