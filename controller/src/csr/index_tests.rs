//! Tests of the index of open requests.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use crate::csr::{
    rate::{LIMIT, WINDOW},
    test_requests::{OPERATOR, claim, of_kubelet, parsed, pem},
};

type Request = Arc<CertificateSigningRequest>;

/// Returns a request of the kubelet on the host `win-1` to renew its certificate.
fn renewal(name: &str, second: i64, pem: &str) -> Request {
    let mut csr = parsed(of_kubelet(name, "win-1", pem));
    csr.metadata.creation_timestamp = Some(Time(jiff::Timestamp::from_second(second).unwrap()));
    Arc::new(csr)
}

/// Returns an older and a younger request.
fn two() -> [Request; 2] {
    let pem = pem("win-1");
    [renewal("older", 1, &pem), renewal("younger", 2, &pem)]
}

fn approved(csr: &Request) -> Request {
    let mut csr = (**csr).clone();
    csr.status = serde_json::from_value(json!({"conditions": [{"type": "Approved", "status": "True"}]})).unwrap();
    Arc::new(csr)
}

fn index() -> Index {
    Index::new(OPERATOR.into(), Instant::now())
}

fn proven(node: &str) -> Option<Claim> {
    (node == "win-1").then(|| claim(node))
}

fn unproven(node: &str) -> Option<Claim> {
    proven(node).map(|claim| Claim { proven: false, ..claim })
}

/// Returns the verdict as a word, and the requests that are now first in their queues.
fn judge(index: &mut Index, csr: &Request, all: &[Request], claims: Claims<'_>) -> (&'static str, Vec<String>) {
    let verdict = index.judge(csr, || all.to_vec(), claims, Instant::now());
    let word = match verdict {
        Verdict::Approve(_) => "approve",
        Verdict::Wait { .. } | Verdict::Queue { .. } => "wait",
        Verdict::Deny { .. } => "deny",
        Verdict::NotOurs => "leave",
    };
    (word, std::mem::take(&mut index.firsts))
}

#[test]
fn the_oldest_request_of_a_host_is_approved_and_the_next_when_it_is_finished() {
    let [older, younger] = two();
    for is_listed in [false, true] {
        let mut index = index();
        if is_listed {
            index.replace(&[younger.clone(), older.clone()], &proven);
        } else {
            index.observe([&*younger], &proven);
            index.observe([&*older], &proven);
        }
        assert_eq!(judge(&mut index, &younger, &[], &proven), ("wait", vec![]));
        assert_eq!(judge(&mut index, &older, &[], &proven), ("approve", vec![]));

        // Approved, but not issued.
        let older = approved(&older);
        index.observe([&*older], &proven);
        assert_eq!(judge(&mut index, &older, &[], &proven), ("leave", vec![]));
        assert_eq!(judge(&mut index, &younger, &[], &proven), ("wait", vec![]));

        index.forget(&older);
        assert_eq!(index.firsts, ["younger"]);
        assert_eq!(judge(&mut index, &younger, &[], &proven).0, "approve");
    }
}

#[test]
fn of_requests_that_become_valid_together_the_oldest_is_approved() {
    let [older, younger] = two();
    let all = [older.clone(), younger.clone()];
    let mut index = index();
    index.replace(&all, &unproven);
    assert_eq!(judge(&mut index, &younger, &all, &unproven), ("wait", vec![]));
    assert_eq!(judge(&mut index, &younger, &all, &proven), ("wait", vec![]));
    assert_eq!(judge(&mut index, &older, &all, &proven), ("approve", vec![]));
}

#[test]
fn a_request_that_is_no_longer_valid_is_followed_by_the_next() {
    let [older, younger] = two();
    for older in [older.clone(), approved(&older)] {
        let mut index = index();
        let all = [older.clone(), younger.clone()];
        index.replace(&all, &proven);
        let expected = if is_decided(&older) { "leave" } else { "wait" };
        assert_eq!(judge(&mut index, &older, &all, &unproven), (expected, vec!["younger".to_owned()]));
    }
}

#[test]
fn only_the_newest_of_too_many_requests_are_evaluated() {
    let pem = pem("win-1");
    let all: Vec<Request> = (0..21).map(|n| renewal(&format!("csr-{n:02}"), n, &pem)).collect();
    let mut index = index();
    for csr in &all {
        index.observe([&**csr], &proven);
    }
    assert_eq!(judge(&mut index, &all[1], &all, &proven), ("wait", vec![]));
    assert_eq!(judge(&mut index, &all[0], &all, &proven), ("leave", vec!["csr-01".to_owned()]));
    assert_eq!(judge(&mut index, &all[1], &all, &proven), ("approve", vec![]));
}

#[test]
fn the_reason_of_a_wait_is_reported_once() {
    let [older, younger] = two();
    let [one, other] = ["one", "other"].map(|message| Verdict::Wait { message: message.into(), node: None });
    let queued = Verdict::Queue { behind: "another".into() };
    let mut index = index();
    let all = [older.clone(), younger.clone()];
    index.replace(&all, &proven);
    let waits = |index: &mut Index, cause: &Verdict| index.is_news(&older, cause, Instant::now());
    assert!(waits(&mut index, &one) && !waits(&mut index, &one));
    assert!(waits(&mut index, &other) && !waits(&mut index, &other));
    index.replace(&all, &proven);
    assert!(!waits(&mut index, &other), "the watch has only begun again");
    assert!(!waits(&mut index, &Verdict::NotOurs));
    assert!(waits(&mut index, &other), "it waits again");
    assert_eq!(index.waiting(), ["older"]);
    assert!(!waits(&mut index, &queued), "its turn comes by itself");
    assert_eq!(index.waiting(), [""; 0]);
    index.replace(&[younger], &proven);
    assert!(waits(&mut index, &other), "a new request with this name");
    index.forget(&older);
    assert!(index.waiting.is_empty());
}

#[test]
fn requests_that_users_may_approve_are_reported_when_they_change() {
    let [older, younger] = two();
    let left = |message: &str| Verdict::Wait { message: message.into(), node: Some("win-1".into()) };
    let mut index = index();
    index.replace(&[older.clone(), younger.clone()], &proven);
    let reported = |index: &mut Index| {
        index.manual_requests().map(|all| all.into_iter().map(|p| (p.request, p.message)).collect())
    };
    let pair = |name: &str, message: &str| Some(vec![(name.to_owned(), message.to_owned())]);
    let now = Instant::now();
    assert_eq!(reported(&mut index), Some(vec![]), "the list is new");
    assert_eq!(reported(&mut index), None::<Vec<_>>);
    index.is_news(&older, &left("an address"), now);
    assert_eq!(reported(&mut index), pair("older", "an address"));
    index.is_news(&older, &left("an address"), now);
    assert_eq!(reported(&mut index), None);
    index.is_news(&younger, &left("a name"), now);
    assert_eq!(reported(&mut index), pair("younger", "a name"), "the newest of a Node");
    let mut newest = (*older).clone();
    newest.metadata.name = Some("a-newer-one".into());
    newest.metadata.creation_timestamp = Some(Time(jiff::Timestamp::MAX));
    index.is_news(&newest, &left("a name"), now);
    assert_eq!(reported(&mut index), pair("a-newer-one", "a name"), "its name comes before the others");
    index.forget(&newest);
    assert_eq!(reported(&mut index), pair("younger", "a name"));
    index.is_news(&younger, &Verdict::Wait { message: "a proof".into(), node: None }, now);
    assert_eq!(reported(&mut index), pair("older", "an address"));
    index.forget(&older);
    assert_eq!(reported(&mut index), Some(vec![]));
}

#[test]
fn events_and_approvals_of_a_host_are_limited() {
    let pem = pem("win-1");
    let all: Vec<Request> = (0..100).map(|n| renewal(&format!("csr-{n}"), n, &pem)).collect();
    let (mut index, now) = (index(), Instant::now());
    let cause = Verdict::Wait { message: "a proof".into(), node: None };
    for minute in 0..2 {
        let then = now + WINDOW * minute;
        let reported = all.iter().filter(|csr| index.is_news(csr, &cause, then)).count();
        assert_eq!(reported, LIMIT as usize, "each minute has its own limit");
    }
    let approved = all.iter().filter(|csr| {
        let is_allowed = index.allows_approval(csr, now);
        index.count_approval(csr, now);
        is_allowed
    });
    assert_eq!(approved.count(), LIMIT as usize);

    let of_operator = |csr: &Request| {
        let mut csr = (**csr).clone();
        csr.spec.username = Some(OPERATOR.into());
        csr
    };
    assert!(all.iter().all(|csr| index.allows_approval(&of_operator(csr), now)), "the operator asks for all hosts");
}

#[test]
fn a_request_is_parsed_once_for_each_uid() {
    let [older, _] = two();
    let mut index = index();
    let uid = |uid: &str| {
        let mut csr = (*older).clone();
        csr.metadata.uid = Some(uid.into());
        csr
    };
    let first = index.request(&uid("1"));
    assert!(Arc::ptr_eq(&first, &index.request(&uid("1"))));
    assert!(!Arc::ptr_eq(&first, &index.request(&uid("2"))));
    index.forget(&uid("2"));
    assert!(index.read.is_empty());
}
