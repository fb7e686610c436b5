//! Tests of the approver and the issuer of one process on the same requests.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    Claim, Hosts, Issuing, Kind, OwnRequests, ReevaluationTriggers, run,
    test_requests::{
        OPERATOR, REQUESTS, approval, approved, claim, listed, name_of, of_kubelet, of_operator, pem, sign, until,
    },
};
use crate::fake_api::FakeApi;

/// Source of claims for any host. Hosts named `slow-…` have a foreign Node in the API server, and each check of them triggers another evaluation.
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

/// First request of a host's kubelet, which the operator posts.
struct First {
    pem: String,
    name: String,
    object: Value,
}

impl First {
    async fn of(node: &str) -> Self {
        let pem = pem(node);
        let name = name_of(node, &pem).await;
        let object = of_operator(&name, &pem);
        Self { pem, name, object }
    }

    fn approval(&self) -> String {
        approval(&self.name)
    }
}

/// Requests: `mine` is being issued by this process, `orphan` was posted by an operator that crashed, and `renewal` by a host.
#[tokio::test]
async fn each_request_is_approved_once_by_the_issuer_or_the_approver() {
    let api = FakeApi::new();
    let (mine, orphan) = (First::of("mine").await, First::of("orphan").await);
    let renewal = of_kubelet("renewal", "renewal", &pem("renewal"));
    let all = [mine.object.clone(), orphan.object.clone(), renewal.clone()];
    // The watch is behind: it shows none of the approvals.
    listed(&api, &all);
    api.hang("GET", &format!("{REQUESTS}?watch=true"));
    api.on("POST", REQUESTS, 201, mine.object.clone());
    // The API server is slow: the approval by the issuer is in progress.
    api.hang("PATCH", &mine.approval());
    api.on("PATCH", &orphan.approval(), 200, approved(&orphan.object));
    api.on("PATCH", &approval("renewal"), 200, approved(&renewal));

    let (issuing, poke, stop) = (Issuing::default(), Arc::new(Notify::new()), CancellationToken::new());
    let patches = |name: &str| api.calls("PATCH", &approval(name)).len();
    let issuer = {
        let (api, issuing, pem) = (api.clone(), issuing.clone(), mine.pem.clone());
        tokio::spawn(async move { sign(&api, "mine", &pem, &issuing).await })
    };
    until("the issuer approves", || patches(&mine.name) == 1).await;

    let judged = Arc::new(AtomicUsize::new(0));
    let counted = judged.clone();
    let revise = move |verdict| {
        counted.fetch_add(1, Ordering::Relaxed);
        verdict
    };
    let own = OwnRequests { user: OPERATOR.into(), issuing: issuing.clone() };
    let again = ReevaluationTriggers { all: poke.clone(), ..ReevaluationTriggers::default() };
    let approver = tokio::spawn(run(api.client(), All(poke.clone()), revise, |_, _| (), own, again, stop.clone()));
    until("the approver approves the requests of the host and of the operator that crashed", || {
        patches(&orphan.name) == 1 && patches("renewal") == 1
    })
    .await;
    // All requests are evaluated repeatedly, because the watch is behind.
    for _ in 0..5 {
        let before = judged.load(Ordering::Relaxed);
        poke.notify_one();
        until("the approver judges all", || judged.load(Ordering::Relaxed) >= before + all.len()).await;
    }
    assert_eq!([mine.name.as_str(), orphan.name.as_str(), "renewal"].map(patches), [1, 1, 1]);

    // The operation of the issuer is aborted, and its request may still be open.
    issuer.abort();
    assert!(issuer.await.unwrap_err().is_cancelled());
    api.forget("PATCH", &mine.approval()).on("PATCH", &mine.approval(), 200, approved(&mine.object));
    poke.notify_one();
    until("it is an orphan now", || patches(&mine.name) == 2).await;
    stop.cancel();
    approver.await.unwrap();
}

#[tokio::test]
async fn a_request_is_decided_while_hundreds_of_others_are_evaluated_repeatedly() {
    let api = FakeApi::new();
    let of = |node: &str| of_kubelet(node, node, &pem(node));
    let all: Vec<Value> = (0..500).map(|n| of(&format!("slow-{n}"))).chain([of("one")]).collect();
    listed(&api, &all);
    api.hang("GET", &format!("{REQUESTS}?watch=true"));
    api.on("PATCH", &approval("one"), 200, approved(&all[500]));

    let stop = CancellationToken::new();
    let own = OwnRequests { user: OPERATOR.into(), issuing: Issuing::default() };
    let again = ReevaluationTriggers::default();
    let hosts = All(again.all.clone());
    let approver = tokio::spawn(run(api.client(), hosts, |verdict| verdict, |_, _| (), own, again, stop.clone()));
    until("the one is approved", || api.calls("PATCH", &approval("one")).len() == 1).await;
    stop.cancel();
    approver.await.unwrap();
}

/// An approval by the issuer may meet a conflict, and its operation may end before the next attempt succeeds.
#[tokio::test]
async fn a_failed_approval_is_not_remembered_as_a_decision() {
    let api = FakeApi::new();
    let one = First::of("one").await;
    api.on("POST", REQUESTS, 201, one.object.clone());
    api.fail("PATCH", &one.approval(), 409, "Conflict", "it has changed", Value::Null);
    api.on("GET", &format!("{REQUESTS}/{}", one.name), 200, one.object.clone());
    api.hang("PATCH", &one.approval());
    let issuing = Issuing::default();
    let issuer = {
        let (api, issuing, pem) = (api.clone(), issuing.clone(), one.pem.clone());
        tokio::spawn(async move { sign(&api, "one", &pem, &issuing).await })
    };
    until("it tries again", || api.calls("PATCH", &one.approval()).len() == 2).await;
    issuer.abort();
    assert!(issuer.await.unwrap_err().is_cancelled());
    assert!(!issuing.has_decided(&format!("uid-{}", one.name), std::time::Instant::now()));
}
