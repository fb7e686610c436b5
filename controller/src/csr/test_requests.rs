//! Certificate requests for tests, as the API server returns them, and scripts for the fake API server.

use std::time::Duration;

use k8s_openapi::{ByteString, api::certificates::v1::CertificateSigningRequest};
use serde_json::{Value, json};

use super::{Claim, CsrError, Issuing, Kind, forge::Forged, request_and_sign};
use crate::fake_api::{FakeApi, list};

pub(super) const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
pub(super) const OPERATOR: &str = "system:serviceaccount:windows:windows-node-pools";
pub(super) const HOUR: Duration = Duration::from_hours(1);

/// Returns a request of the kubelet on a host as PEM.
pub(super) fn pem(node: &str) -> String {
    Forged::new(&format!("system:node:{node}"), &["system:nodes"]).pem()
}

/// Returns the claim of a proven host.
pub(super) fn claim(node: &str) -> Claim {
    Claim { node_name: node.into(), joined: true, proven: true, ..Claim::default() }
}

/// Returns a request for a client certificate of a kubelet.
fn request(name: &str, pem: &str) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {
            "request": ByteString(pem.as_bytes().to_vec()), "signerName": Kind::KubeletClient.signer_name(),
            "usages": ["digital signature", "client auth"],
        },
    })
}

/// Returns a request that the operator has posted for a host.
pub(super) fn of_operator(name: &str, pem: &str) -> Value {
    let mut request = request(name, pem);
    request["spec"]["username"] = json!(OPERATOR);
    request["spec"]["expirationSeconds"] = json!(3600);
    request
}

/// Returns a request that the kubelet on a host has posted.
pub(super) fn of_kubelet(name: &str, node: &str, pem: &str) -> Value {
    let mut request = request(name, pem);
    request["spec"]["username"] = json!(format!("system:node:{node}"));
    request["spec"]["groups"] = json!(["system:nodes", "system:authenticated"]);
    request
}

pub(super) fn approved(request: &Value) -> Value {
    let mut approved = request.clone();
    approved["metadata"]["resourceVersion"] = json!("2");
    approved["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}]});
    approved
}

pub(super) fn parsed(request: Value) -> CertificateSigningRequest {
    serde_json::from_value(request).unwrap()
}

/// Returns the path of a request's `approval` subresource.
pub(super) fn approval(name: &str) -> String {
    format!("{REQUESTS}/{name}/approval")
}

/// Makes the API server list these requests.
pub(super) fn listed(api: &FakeApi, requests: &[Value]) {
    let list = list("CertificateSigningRequestList", "certificates.k8s.io/v1", requests, "");
    api.on("GET", REQUESTS, 200, list);
}

/// Requests a certificate for a host, as the operator does when the host joins.
pub(super) async fn sign(api: &FakeApi, node: &str, pem: &str, issuing: &Issuing) -> Result<String, CsrError> {
    request_and_sign(api.client(), &claim(node), Kind::KubeletClient, pem, HOUR, issuing).await
}

/// Returns the name that the operator gives to a request.
pub(super) async fn name_of(node: &str, pem: &str) -> String {
    let api = FakeApi::new();
    api.fail("POST", REQUESTS, 500, "InternalError", "no", Value::Null);
    match sign(&api, node, pem, &Issuing::default()).await {
        Err(CsrError::Api { name, .. }) => name,
        result => panic!("{result:?}"),
    }
}

/// Waits until the condition holds, for at most 20 s. `what` describes the condition.
pub(super) async fn until(what: &str, condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), holds).await.is_ok(), "not within 20 s: {what}");
}
