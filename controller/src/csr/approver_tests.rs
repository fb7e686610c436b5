//! Tests of the approver against a scripted API server.

use api::Reason;
use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::Value;

use tokio::sync::Notify;

use super::*;
use crate::{
    csr::{
        Claim, Issuing, ReevaluationTriggers,
        forge::Forged,
        test_requests::{OPERATOR, REQUESTS, approval, approved, claim, listed, of_kubelet, parsed, pem},
    },
    fake_api::FakeApi,
};

fn created(mut request: Value, second: u32) -> Value {
    request["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:{second:02}Z"));
    request
}

/// Returns a valid request of a host's kubelet.
fn valid(name: &str, node: &str, second: u32) -> Value {
    created(of_kubelet(name, node, &pem(node)), second)
}

/// Returns an approved request with its certificate.
fn issued(request: &Value) -> Value {
    let mut issued = approved(request);
    issued["status"]["certificate"] = json!("eA==");
    issued
}

/// Three proven hosts. For `win-panic`, `confirm` panics.
struct Known;

impl Hosts for Known {
    fn lookup(&self, node: &str) -> Option<Claim> {
        let is_known = ["win-1", "win-2", "win-panic"].contains(&node);
        is_known.then(|| claim(node))
    }

    async fn confirm(&self, node: &str, _kind: Option<Kind>) -> kube::Result<Option<Claim>> {
        assert_ne!(node, "win-panic", "a fault");
        Ok(self.lookup(node))
    }
}

type Reported = Arc<Mutex<Vec<(String, Verdict)>>>;

/// Runs an approver until the condition holds. Returns the verdicts that it reported.
async fn run_until(api: &FakeApi, poke: Arc<Notify>, condition: impl Fn(&[(String, Verdict)]) -> bool) -> Reported {
    let (reported, stop) = (Reported::default(), CancellationToken::new());
    let (noted, on_stop) = (reported.clone(), stop.clone());
    let on_verdict = move |verdict: &Verdict, csr: &CertificateSigningRequest| {
        noted.lock().push((csr.name_any(), verdict.clone()));
    };
    let own = OwnRequests { user: OPERATOR.into(), issuing: Issuing::default() };
    let again = ReevaluationTriggers { all: poke, ..ReevaluationTriggers::default() };
    let running = tokio::spawn(run(api.client(), Known, |verdict| verdict, on_verdict, own, again, on_stop));
    let holds = async {
        while !condition(&reported.lock()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let result = tokio::time::timeout(Duration::from_secs(20), holds).await;
    assert!(result.is_ok(), "{:?}, {:?}", reported.lock(), api.all_calls());
    stop.cancel();
    running.await.unwrap();
    reported
}

fn names(reported: &[(String, Verdict)], is_meant: impl Fn(&Verdict) -> bool) -> Vec<&str> {
    reported.iter().filter(|(_, verdict)| is_meant(verdict)).map(|(name, _)| name.as_str()).collect()
}

fn is_approval(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Approve(_))
}

#[tokio::test]
async fn the_second_request_of_a_host_waits_until_the_first_is_issued() {
    let api = FakeApi::new();
    let (first, second) = (valid("first", "win-1", 1), valid("second", "win-1", 2));
    listed(&api, &[second.clone(), first.clone()]);
    let watch = format!("{REQUESTS}?watch=true");
    let release = api.hold("GET", &watch, json!({"type": "MODIFIED", "object": issued(&first)}));
    api.hang("GET", &watch);
    for (name, request) in [("first", &first), ("second", &second)] {
        api.on("PATCH", &approval(name), 200, issued(request));
    }
    let second_approved = |reported: &[(String, Verdict)]| {
        if reported.len() == 1 {
            assert_eq!(names(reported, is_approval), ["first"]);
            release.notify_one();
        }
        reported.len() == 2
    };
    let reported = run_until(&api, Arc::default(), second_approved).await;
    assert_eq!(names(&reported.lock(), is_approval), ["first", "second"]);
    let patches = api.calls("PATCH", &approval("first"));
    assert_eq!(patches[0].body["metadata"], json!({"uid": "uid-first", "resourceVersion": "1"}), "what was judged");
    let written: Vec<String> = api.all_calls().into_iter().filter(|c| c.method != "GET").map(|c| c.path).collect();
    assert_eq!(written, [approval("first"), approval("second")], "one write for each certificate");
}

#[tokio::test]
async fn a_request_is_decided_once_while_the_watch_is_behind() {
    let api = FakeApi::new();
    let (first, later) = (valid("first", "win-1", 1), valid("later", "win-2", 2));
    listed(&api, std::slice::from_ref(&first));
    let watch = format!("{REQUESTS}?watch=true");
    // The watch never shows that `first` is approved.
    let release = api.hold("GET", &watch, json!({"type": "ADDED", "object": later}));
    api.hang("GET", &watch);
    for (name, request) in [("first", &first), ("later", &later)] {
        api.on("PATCH", &approval(name), 200, issued(request));
    }
    let poke = Arc::new(Notify::new());
    let poked = poke.clone();
    let reported = run_until(&api, poke, move |reported| {
        if reported.len() == 1 {
            poked.notify_one();
            release.notify_one();
        }
        reported.iter().any(|(name, _)| name == "later")
    });
    assert_eq!(names(&reported.await.lock(), is_approval), ["first", "later"]);
    assert_eq!(api.calls("PATCH", &approval("first")).len(), 1, "{:?}", api.all_calls());
}

#[tokio::test]
async fn a_fault_or_an_unreadable_request_does_not_stop_the_others() {
    let api = FakeApi::new();
    let unreadable = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "unreadable"}, "spec": {"request": 1},
    });
    let all = [unreadable, valid("fault", "win-panic", 1), valid("outage", "win-1", 1), valid("good", "win-2", 1)];
    listed(&api, &all);
    api.hang("GET", &format!("{REQUESTS}?watch=true"));
    api.fail("PATCH", &approval("outage"), 500, "InternalError", "etcd is away", Value::Null);
    api.on("PATCH", &approval("good"), 200, issued(&all[3]));
    let poke = Arc::new(Notify::new());
    let tried =
        |reported: &[(String, Verdict)]| !reported.is_empty() && !api.calls("PATCH", &approval("outage")).is_empty();
    let reported = run_until(&api, poke, tried).await;
    assert_eq!(names(&reported.lock(), |_| true), ["good"]);
    assert_eq!(api.calls("PATCH", &approval("fault")), []);
}

#[tokio::test]
async fn denials_of_one_requester_are_limited() {
    let api = FakeApi::new();
    let names: Vec<String> = (0..30).map(|n| format!("wrong-{n:02}")).collect();
    let pem = Forged::new("system:node:win-1", &["system:masters"]).pem();
    let all: Vec<Value> = names.iter().zip(0..).map(|(name, n)| created(of_kubelet(name, "win-1", &pem), n)).collect();
    listed(&api, &all);
    api.hang("GET", &format!("{REQUESTS}?watch=true"));
    for (name, object) in names.iter().zip(&all) {
        api.on("PATCH", &approval(name), 200, object.clone());
    }
    let poke = Arc::new(Notify::new());
    let polls = Cell::new(0);
    let denied = |reported: &[(String, Verdict)]| {
        poke.notify_one();
        polls.set(polls.get() + 1);
        reported.len() >= 10 && polls.get() > 20
    };
    let reported = run_until(&api, poke.clone(), denied).await;
    assert_eq!(reported.lock().len(), 10);
    assert_eq!(api.all_calls().iter().filter(|call| call.method == "PATCH").count(), 10);
}

/// Covers both orders: the conflicting version may arrive through the watch before or after the conflict.
#[tokio::test]
async fn a_request_is_evaluated_again_after_a_conflict() {
    let api = FakeApi::new();
    let first = valid("csr-1", "win-1", 1);
    let mut touched = first.clone();
    touched["metadata"]["resourceVersion"] = json!("2");
    listed(&api, &[first]);
    let watch = format!("{REQUESTS}?watch=true");
    api.on("GET", &watch, 200, json!({"type": "MODIFIED", "object": touched.clone()})).hang("GET", &watch);
    // Either of the two versions may be evaluated first.
    api.fail("PATCH", &approval("csr-1"), 409, "Conflict", "it has changed", Value::Null);
    api.on("PATCH", &approval("csr-1"), 200, issued(&touched));
    let poke = Arc::new(Notify::new());
    let judged_again = |reported: &[(String, Verdict)]| {
        poke.notify_one();
        !reported.is_empty()
    };
    let reported = run_until(&api, poke.clone(), judged_again).await;
    assert_eq!(names(&reported.lock(), is_approval), ["csr-1"]);
}

/// Host that is proven once the flag is set.
struct LateProof(Arc<AtomicBool>);

impl Hosts for LateProof {
    fn lookup(&self, node: &str) -> Option<Claim> {
        let proven = self.0.load(Ordering::Relaxed);
        Some(Claim { proven, ..claim(node) })
    }

    async fn confirm(&self, node: &str, _kind: Option<Kind>) -> kube::Result<Option<Claim>> {
        Ok(self.lookup(node))
    }
}

#[tokio::test]
async fn a_waiting_request_is_evaluated_again_when_its_host_is_proven() {
    let api = FakeApi::new();
    let early = valid("early", "win-1", 1);
    listed(&api, std::slice::from_ref(&early));
    api.hang("GET", &format!("{REQUESTS}?watch=true"));
    api.on("PATCH", &approval("early"), 200, issued(&early));
    let (is_proven, stop) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
    let (prove, waiting) = mpsc::unbounded();
    let (reported, mut reports) = mpsc::unbounded();
    let on_verdict = move |verdict: &Verdict, _: &CertificateSigningRequest| {
        reported.unbounded_send(is_approval(verdict)).unwrap();
    };
    let own = OwnRequests { user: OPERATOR.into(), issuing: Issuing::default() };
    let again = ReevaluationTriggers { waiting: waiting.boxed(), ..ReevaluationTriggers::default() };
    let hosts = LateProof(is_proven.clone());
    let running = tokio::spawn(run(api.client(), hosts, |verdict| verdict, on_verdict, own, again, stop.clone()));
    assert_eq!(reports.next().await, Some(false), "it waits");
    is_proven.store(true, Ordering::Relaxed);
    prove.unbounded_send(()).unwrap();
    assert_eq!(tokio::time::timeout(Duration::from_secs(20), reports.next()).await, Ok(Some(true)));
    stop.cancel();
    running.await.unwrap();
}

/// Covers compromised hosts, which may post hundreds of requests of a megabyte each.
#[test]
fn only_the_beginning_of_a_large_request_is_kept() {
    let large = "x".repeat(1 << 20);
    let mut object = valid("large", "win-1", 1);
    object["metadata"]["annotations"] = json!({"a": large});
    object["metadata"]["labels"] = json!({"a": large});
    object["spec"]["extra"] = json!({"a": [large]});
    let mut csr = parsed(object);
    csr.spec.request.0.extend(large.as_bytes());
    keep_essentials(&mut csr);
    assert!(serde_json::to_vec(&csr).unwrap().len() < 2 * MAX_BYTES);
    let request = Request::read(&csr.spec.request.0);
    let judged = verdict(&csr, &request, &|node| Known.lookup(node), &Outstanding::default(), OPERATOR);
    assert!(matches!(judged, Verdict::Deny { reason: Reason::RequestDenied, .. }), "{judged:?}");
}
