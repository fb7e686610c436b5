//! Tests against a client that may create and delete requests, but not approve them, and replaces one during its approval.

use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use serde_json::{Value, json};

use super::{Claim, CsrError, Hosts, Issuing, Kind, approver::confirm_and_decide, forge::Forged, request_and_sign};
use crate::fake_api::FakeApi;
use wnp_core::csr::request::Request;

const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const OPERATOR: &str = "system:serviceaccount:windows:windows-node-pools";

fn claim() -> Claim {
    Claim { node_name: "win-1".into(), dns_names: vec!["win-1".into()], joined: true, proven: true, ..Claim::default() }
}

fn pem() -> String {
    Forged::new("system:node:win-1", &["system:nodes"]).pem()
}

/// Returns a request as the API server returns it.
fn object(name: &str, uid: &str, version: &str, pem: &str, signer: &str) -> Value {
    let request = k8s_openapi::ByteString(pem.as_bytes().to_vec());
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "uid": uid, "resourceVersion": version},
        "spec": {
            "request": request, "signerName": signer, "usages": ["digital signature", "client auth"],
            "expirationSeconds": 3600, "username": OPERATOR,
        },
    })
}

#[tokio::test]
async fn a_request_that_was_swapped_is_not_approved() {
    let (pem, admin) = (pem(), Forged::new("system:kube-controller-manager", &[]).pem());
    let kubelet = Kind::KubeletClient.signer_name();
    for (about, uid, pem_now, signer_now) in [
        ("another object with other content", "u2", &admin, Kind::WicdClient.signer_name()),
        ("another object that asks for the same", "u2", &pem, kubelet),
        ("the same object with another content", "u1", &admin, kubelet),
    ] {
        let api = FakeApi::new();
        let name = name_of(&pem).await;
        api.on("POST", PATH, 201, object(&name, "u1", "1", &pem, kubelet));
        api.fail("PATCH", &format!("{PATH}/{name}/approval"), 409, "Conflict", "it has changed", Value::Null);
        api.on("GET", &format!("{PATH}/{name}"), 200, object(&name, uid, "2", pem_now, signer_now));
        let hour = Duration::from_hours(1);
        let issuing = Issuing::default();
        let result = request_and_sign(api.client(), &claim(), Kind::KubeletClient, &pem, hour, &issuing).await;
        assert!(matches!(result, Err(CsrError::Replaced { .. })), "{about}: {result:?}");
        let approvals = api.calls("PATCH", &format!("{PATH}/{name}/approval"));
        assert_eq!(approvals.len(), 1, "{about}");
        assert_eq!(
            (&approvals[0].body["metadata"]["uid"], &approvals[0].body["metadata"]["resourceVersion"]),
            (&json!("u1"), &json!("1"))
        );
    }
}

/// Returns the name that the operator gives to the request of this key.
async fn name_of(pem: &str) -> String {
    let api = FakeApi::new();
    api.fail("POST", PATH, 500, "InternalError", "no", Value::Null);
    let (hour, issuing) = (Duration::from_hours(1), Issuing::default());
    let error = request_and_sign(api.client(), &claim(), Kind::KubeletClient, pem, hour, &issuing).await;
    let Err(CsrError::Api { name, .. }) = error else { panic!("{error:?}") };
    name
}

/// Host that the caches know, and whose Node in the API server belongs to another owner.
struct Taken;

impl Hosts for Taken {
    fn lookup(&self, node: &str) -> Option<Claim> {
        (node == "win-1").then(claim)
    }

    async fn confirm(&self, _node: &str, _kind: Option<Kind>) -> kube::Result<Option<Claim>> {
        Ok(None)
    }
}

#[tokio::test]
async fn nothing_is_approved_or_denied_for_a_name_whose_node_is_somebody_elses() {
    let api = FakeApi::new();
    let names = Forged::new("system:node:win-1", &["system:nodes"]).names(&[super::forge::Name::Ip("10.9.9.9")]);
    for (what, pem, kind) in [
        ("its kubelet renews", pem(), Kind::KubeletClient),
        ("its kubelet asks for an address of its own", names.pem(), Kind::KubeletServing),
    ] {
        let mut csr: CertificateSigningRequest =
            serde_json::from_value(object("csr-1", "u1", "1", &pem, kind.signer_name())).unwrap();
        csr.spec.usages = Some(vec!["digital signature".into(), kind.purpose().into()]);
        csr.spec.username = Some("system:node:win-1".into());
        csr.spec.groups = Some(vec!["system:nodes".into(), "system:authenticated".into()]);
        let requests = kube::Api::all(api.client());
        let request = Request::read(&csr.spec.request.0);
        let verdict =
            confirm_and_decide(&requests, &Taken, &|verdict| verdict, OPERATOR, &csr, &request).await.unwrap();
        assert_eq!(verdict, super::Verdict::NotOurs, "{what}");
    }
    assert_eq!(api.all_calls(), []);
}
