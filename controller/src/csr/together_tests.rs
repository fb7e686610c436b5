//! Tests of the approver and the issuer of one process on the same requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    Claim, CsrError, Hosts, Issuing, Kind, OwnRequests, ReevaluationTriggers, forge::Forged, request_and_sign, run,
};
use crate::fake_api::{FakeApi, list};

const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const OPERATOR: &str = "system:serviceaccount:windows:windows-node-pools";
const HOUR: Duration = Duration::from_hours(1);

fn claim(node: &str) -> Claim {
    Claim { node_name: node.into(), joined: true, proven: true, ..Claim::default() }
}

/// All hosts. Those named `slow-…` have a foreign Node in the API server, and each check of them triggers another evaluation.
struct All(Arc<Notify>);

impl Hosts for All {
    fn lookup(&self, node: &str) -> Option<Claim> {
        Some(claim(node))
    }

    async fn confirm(&self, node: &str, _kind: Option<Kind>) -> kube::Result<Option<Claim>> {
        if node.starts_with("slow-") {
            self.0.notify_one();
            tokio::task::yield_now().await;
            return Ok(None);
        }
        Ok(self.lookup(node))
    }
}

/// First request of a host's kubelet.
struct First {
    node: &'static str,
    pem: String,
    name: String,
}

impl First {
    async fn of(node: &'static str) -> Self {
        let pem = Forged::new(&format!("system:node:{node}"), &["system:nodes"]).pem();
        let api = FakeApi::new();
        api.fail("POST", PATH, 500, "InternalError", "no", Value::Null);
        let (claim, issuing) = (claim(node), Issuing::default());
        let result = request_and_sign(api.client(), &claim, Kind::KubeletClient, &pem, HOUR, &issuing).await;
        let Err(CsrError::Api { name, .. }) = result else { panic!("the API server answered") };
        Self { node, pem, name }
    }

    /// Returns the request as the API server returns it.
    fn object(&self) -> Value {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": self.name, "uid": format!("uid-{}", self.node), "resourceVersion": "1"},
            "spec": {
                "request": k8s_openapi::ByteString(self.pem.clone().into_bytes()), "username": OPERATOR,
                "signerName": Kind::KubeletClient.signer_name(), "usages": ["digital signature", "client auth"],
                "expirationSeconds": 3600,
            },
        })
    }

    fn approval(&self) -> String {
        format!("{PATH}/{}/approval", self.name)
    }
}

fn approved(object: &Value) -> Value {
    let mut approved = object.clone();
    approved["metadata"]["resourceVersion"] = json!("2");
    approved["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}]});
    approved
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), holds).await.is_ok(), "{what}");
}

/// Requests: `mine` is being issued by this process, `orphan` was posted by an operator that crashed, and `renewal` by a host.
#[tokio::test]
async fn each_request_is_approved_once_and_what_no_issuer_finishes_the_approver_does() {
    let api = FakeApi::new();
    let (mine, orphan, renewal) = (First::of("mine").await, First::of("orphan").await, First::of("renewal").await);
    let mut by_host = renewal.object();
    by_host["spec"]["username"] = json!("system:node:renewal");
    by_host["spec"]["groups"] = json!(["system:nodes", "system:authenticated"]);
    let all = [mine.object(), orphan.object(), by_host.clone()];
    // The watch is behind: it shows none of the approvals.
    api.on("GET", PATH, 200, list("CertificateSigningRequestList", "certificates.k8s.io/v1", &all, ""));
    api.hang("GET", &format!("{PATH}?watch=true"));
    api.on("POST", PATH, 201, mine.object());
    // The API server is slow: the approval by the issuer is in progress.
    api.hang("PATCH", &mine.approval());
    api.on("PATCH", &orphan.approval(), 200, approved(&orphan.object()));
    api.on("PATCH", &renewal.approval(), 200, approved(&by_host));

    let (issuing, poke, stop) = (Issuing::default(), Arc::new(Notify::new()), CancellationToken::new());
    let patches = |of: &First| api.calls("PATCH", &of.approval()).len();
    let issuer = {
        let (client, issuing, pem) = (api.client(), issuing.clone(), mine.pem.clone());
        tokio::spawn(async move {
            request_and_sign(client, &claim("mine"), Kind::KubeletClient, &pem, HOUR, &issuing).await
        })
    };
    until("the issuer approves", || patches(&mine) == 1).await;

    let judged = Arc::new(AtomicUsize::new(0));
    let counted = judged.clone();
    let revise = move |verdict| {
        counted.fetch_add(1, Ordering::Relaxed);
        verdict
    };
    let own = OwnRequests { user: OPERATOR.into(), issuing: issuing.clone() };
    let again = ReevaluationTriggers { all: poke.clone(), ..ReevaluationTriggers::default() };
    let approver = tokio::spawn(run(api.client(), All(poke.clone()), revise, |_, _| (), own, again, stop.clone()));
    until("the approver does what a host asks, and what an operator that died has left", || {
        patches(&orphan) == 1 && patches(&renewal) == 1
    })
    .await;
    // All requests are evaluated repeatedly, because the watch is behind.
    for _ in 0..5 {
        let before = judged.load(Ordering::Relaxed);
        poke.notify_one();
        until("the approver judges all", || judged.load(Ordering::Relaxed) >= before + all.len()).await;
    }
    assert_eq!([&mine, &orphan, &renewal].map(patches), [1, 1, 1]);

    // The operation of the issuer is aborted, and its request may still be open.
    issuer.abort();
    assert!(issuer.await.unwrap_err().is_cancelled());
    api.forget("PATCH", &mine.approval()).on("PATCH", &mine.approval(), 200, approved(&mine.object()));
    poke.notify_one();
    until("it is an orphan now", || patches(&mine) == 2).await;
    stop.cancel();
    approver.await.unwrap();
}

#[tokio::test]
async fn a_request_is_not_passed_over_while_hundreds_of_others_are_judged_again_and_again() {
    let api = FakeApi::new();
    let by_host = |request: &First, node: &str, name: &str| {
        let mut object = request.object();
        object["metadata"]["name"] = json!(name);
        object["metadata"]["uid"] = json!(format!("uid-{node}"));
        object["spec"]["request"] =
            json!(k8s_openapi::ByteString(Forged::new(&format!("system:node:{node}"), &["system:nodes"]).pem().into()));
        object["spec"]["username"] = json!(format!("system:node:{node}"));
        object["spec"]["groups"] = json!(["system:nodes", "system:authenticated"]);
        object
    };
    let one = First::of("one").await;
    let slow = (0..500).map(|n| by_host(&one, &format!("slow-{n}"), &format!("csr-{n}")));
    let all: Vec<Value> = slow.chain([by_host(&one, "one", &one.name)]).collect();
    api.on("GET", PATH, 200, list("CertificateSigningRequestList", "certificates.k8s.io/v1", &all, ""));
    api.hang("GET", &format!("{PATH}?watch=true"));
    api.on("PATCH", &one.approval(), 200, approved(&all[500]));

    let stop = CancellationToken::new();
    let own = OwnRequests { user: OPERATOR.into(), issuing: Issuing::default() };
    let again = ReevaluationTriggers::default();
    let hosts = All(again.all.clone());
    let approver = tokio::spawn(run(api.client(), hosts, |verdict| verdict, |_, _| (), own, again, stop.clone()));
    until("the one is approved", || api.calls("PATCH", &one.approval()).len() == 1).await;
    stop.cancel();
    approver.await.unwrap();
}

/// An approval by the issuer may meet a conflict, and its operation may end before the next attempt.
#[tokio::test]
async fn a_request_that_was_not_approved_is_not_remembered_as_decided() {
    let api = FakeApi::new();
    let one = First::of("one").await;
    api.on("POST", PATH, 201, one.object());
    api.fail("PATCH", &one.approval(), 409, "Conflict", "it has changed", Value::Null);
    api.on("GET", &format!("{PATH}/{}", one.name), 200, one.object());
    api.hang("PATCH", &one.approval());
    let issuing = Issuing::default();
    let issuer = {
        let (client, issuing, pem) = (api.client(), issuing.clone(), one.pem.clone());
        tokio::spawn(
            async move { request_and_sign(client, &claim("one"), Kind::KubeletClient, &pem, HOUR, &issuing).await },
        )
    };
    until("it tries again", || api.calls("PATCH", &one.approval()).len() == 2).await;
    issuer.abort();
    assert!(issuer.await.unwrap_err().is_cancelled());
    assert!(!issuing.has_decided("uid-one", std::time::Instant::now()));
}
