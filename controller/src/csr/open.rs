//! The requests that the approver keeps in view. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::ResourceExt;
use wnp_core::csr::{Place, is_decided, place};

use super::Kind;

/// Requests of one host that are judged at a time. A host that was taken over may make any number, and each costs the check of a
/// signature whenever anything is judged again.
const MAX_OF_ONE_HOST: usize = 20;

/// The requests without a certificate.
#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    by_name: BTreeMap<String, CertificateSigningRequest>,
    /// Those that each host made and that are undecided, the oldest first.
    undecided: BTreeMap<String, BTreeSet<Place>>,
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
            self.undecided.entry(host.to_owned()).or_default().insert(place(&csr));
        }
        self.by_name.insert(name, csr);
    }

    /// Forgets a request.
    pub(super) fn remove(&mut self, name: &str) {
        let Some(csr) = self.by_name.remove(name) else { return };
        if let Some(host) = of_one_host(&csr)
            && let Some(places) = self.undecided.get_mut(host)
        {
            places.remove(&place(&csr));
            if places.is_empty() {
                self.undecided.remove(host);
            }
        }
    }

    /// The request of that name.
    pub(super) fn get(&self, name: &str) -> Option<&CertificateSigningRequest> {
        self.by_name.get(name)
    }

    /// Those that are judged now. Of one host that makes too many only the oldest: the others follow as these go.
    pub(super) fn due(&self) -> impl Iterator<Item = &CertificateSigningRequest> {
        self.by_name.values().filter(|csr| self.is_due(csr))
    }

    /// Whether a request is judged now.
    pub(super) fn is_due(&self, csr: &CertificateSigningRequest) -> bool {
        let places = of_one_host(csr).and_then(|host| self.undecided.get(host));
        let Some(places) = places.filter(|p| p.len() > MAX_OF_ONE_HOST) else { return true };
        let place = place(csr);
        is_decided(csr) || places.iter().take(MAX_OF_ONE_HOST).any(|p| *p == place)
    }
}

/// The requester, if it is a host. Others ask for many hosts.
fn of_one_host(csr: &CertificateSigningRequest) -> Option<&str> {
    let user = csr.spec.username.as_deref().unwrap_or_default();
    let prefixes = [Kind::KubeletClient.user_prefix(), Kind::WicdClient.user_prefix()];
    prefixes.iter().any(|prefix| user.starts_with(prefix)).then_some(user)
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
            open.insert(request(&format!("a-{n}"), hostile, 1000 - n, &json!({})));
            open.insert(request(&format!("operator-{n}"), operator, n, &json!({})));
        }
        open.insert(request("b", other, 2000, &json!({})));
        let of_host: Vec<String> = due(&open).into_iter().filter(|name| name.starts_with("a-")).collect();
        assert_eq!((of_host.len(), due(&open).len()), (MAX_OF_ONE_HOST, MAX_OF_ONE_HOST + 1001));
        assert!(of_host.contains(&"a-999".to_owned()), "the oldest first: {of_host:?}");

        // As they are decided or go, the next ones follow.
        open.insert(request("a-999", hostile, 1, &json!({"conditions": [{"type": "Denied", "status": "True"}]})));
        open.remove("a-998");
        let due = due(&open);
        assert!(due.contains(&"a-979".to_owned()) && due.contains(&"a-978".to_owned()), "{due:?}");
        assert!(!due.contains(&"a-977".to_owned()));
    }

    #[test]
    fn what_has_its_certificate_is_forgotten() {
        let mut open = OpenRequests::default();
        open.insert(request("a", "system:node:a", 1, &json!({})));
        open.insert(request("a", "system:node:a", 1, &json!({"certificate": "eA=="})));
        assert!(open.get("a").is_none() && open.undecided.is_empty());
    }
}
