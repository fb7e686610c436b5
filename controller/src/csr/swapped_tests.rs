//! Tests of state that changes during a decision: a client without the right to approve replaces the request, or the Node has another owner.

use serde_json::{Value, json};

use super::{
    Claim, CsrError, Hosts, Issuing, Kind, Verdict,
    approver::confirm_and_decide,
    forge::{Forged, Name},
    test_requests::{OPERATOR, REQUESTS, approval, claim, name_of, of_kubelet, of_operator, parsed, pem, sign},
};
use crate::fake_api::FakeApi;
use wnp_core::csr::request::Request;

#[tokio::test]
async fn a_replaced_request_is_not_approved() {
    let (pem, admin) = (pem("win-1"), Forged::new("system:kube-controller-manager", &[]).pem());
    let name = name_of("win-1", &pem).await;
    for (about, uid, pem_now, kind_now) in [
        ("another object with other content", "another", &admin, Kind::WicdClient),
        ("another object that asks for the same", "another", &pem, Kind::KubeletClient),
        ("the same object with another content", "", &admin, Kind::KubeletClient),
    ] {
        let posted = of_operator(&name, &pem);
        let mut now = of_operator(&name, pem_now);
        now["metadata"]["resourceVersion"] = json!("2");
        now["spec"]["signerName"] = json!(kind_now.signer_name());
        if !uid.is_empty() {
            now["metadata"]["uid"] = json!(uid);
        }
        let api = FakeApi::new();
        api.on("POST", REQUESTS, 201, posted.clone());
        api.fail("PATCH", &approval(&name), 409, "Conflict", "it has changed", Value::Null);
        api.on("GET", &format!("{REQUESTS}/{name}"), 200, now);
        let result = sign(&api, "win-1", &pem, &Issuing::default()).await;
        assert!(matches!(result, Err(CsrError::Replaced { .. })), "{about}: {result:?}");
        let approvals = api.calls("PATCH", &approval(&name));
        assert_eq!(approvals.len(), 1, "{about}");
        let sent = &approvals[0].body["metadata"];
        assert_eq!([&sent["uid"], &sent["resourceVersion"]], [&posted["metadata"]["uid"], &json!("1")], "{about}");
    }
}

/// Host that the caches know, and whose Node in the API server belongs to another owner.
struct Taken;

impl Hosts for Taken {
    fn lookup(&self, node: &str) -> Option<Claim> {
        (node == "win-1").then(|| claim(node))
    }

    async fn confirm(&self, _node: &str, _kind: Option<Kind>) -> kube::Result<Option<Claim>> {
        Ok(None)
    }
}

#[tokio::test]
async fn a_request_for_the_node_of_another_owner_is_not_decided() {
    let api = FakeApi::new();
    let names = Forged::new("system:node:win-1", &["system:nodes"]).names(&[Name::Ip("10.9.9.9")]);
    for (what, pem, kind) in [
        ("its kubelet renews", pem("win-1"), Kind::KubeletClient),
        ("its kubelet asks for an address of its own", names.pem(), Kind::KubeletServing),
    ] {
        let mut csr = parsed(of_kubelet("csr-1", "win-1", &pem));
        csr.spec.signer_name = kind.signer_name().into();
        csr.spec.usages = Some(vec!["digital signature".into(), kind.purpose().into()]);
        let requests = kube::Api::all(api.client());
        let request = Request::read(&csr.spec.request.0);
        let verdict =
            confirm_and_decide(&requests, &Taken, &|verdict| verdict, OPERATOR, &csr, &request).await.unwrap();
        assert_eq!(verdict, Verdict::NotOurs, "{what}");
    }
    assert_eq!(api.all_calls(), []);
}
