//! Tests for the status of a pool, as users, kstatus and Argo CD read it.

mod rollout;
mod trouble;

use std::sync::Arc;

use api::{
    Disruption, Failures, GrantType, Host, Inventory, Kstatus, Operation, Phase, Reason, Rollout, RolloutStatus,
    SignatureCheck, WindowsInstance, WindowsInstanceSpec, WindowsInstanceStatus, WindowsNodePoolSpec, conditions::find,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::rollout::{
    grants::{Candidate, PendingChange},
    progress::{BlockedBy, UpdateLimit},
};

const VERSION: &str = "1-a";

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn pool(hosts: usize) -> WindowsNodePool {
    let hosts =
        (0..hosts).map(|n| Host { name: format!("h{n}"), address: format!("10.0.0.{n}"), ..Host::default() }).collect();
    let spec = WindowsNodePoolSpec {
        inventory: Inventory { hosts: Some(hosts), ..Inventory::default() },
        ..WindowsNodePoolSpec::default()
    };
    let mut pool = WindowsNodePool::new("p", spec);
    pool.metadata.generation = Some(7);
    pool
}

fn member(name: &str, phase: Phase) -> Member {
    let joined = matches!(phase, Phase::Ready | Phase::NotReady);
    let failures = (phase == Phase::Failed).then(|| Failures {
        count: 1,
        step: "Connect".into(),
        last_reason: "Unreachable".into(),
        last_message: "no answer within 15 s".into(),
        ..Failures::default()
    });
    let status = WindowsInstanceStatus {
        phase: Some(phase),
        current_version: joined.then(|| VERSION.into()),
        failures,
        ..WindowsInstanceStatus::default()
    };
    let mut instance = WindowsInstance::new(name, WindowsInstanceSpec::default());
    instance.metadata.creation_timestamp = Some(Time(Timestamp::from_second(999_990).unwrap()));
    instance.status = Some(status);
    let ready = phase == Phase::Ready;
    let leaving = phase == Phase::Removing;
    let candidate = Candidate { name: name.into(), joined, ready, available: ready, leaving, ..Candidate::default() };
    Member { instance: Arc::new(instance), candidate }
}

/// A rollout to the version that all nodes follow, held up by `hold`.
fn course(hold: BlockedBy) -> Progress {
    Progress { status: None, target: VERSION.into(), gate: UpdateLimit { limit: None, hold }, next: None }
}

const OPEN: Windows = Windows { open: true, closes: None, opens: None };

fn described(pool: &WindowsNodePool, members: &[Member], problems: &[EntryError]) -> WindowsNodePoolStatus {
    described_in(pool, members, problems, &Decision::default(), &course(BlockedBy::None), Ok(&OPEN), now())
}

fn listed(hosts: usize, problems: &[EntryError]) -> List {
    let hosts = (0..hosts).map(|n| (format!("h{n}"), api::InstanceHost::default())).collect();
    List { hosts, problems: problems.to_vec(), ..List::default() }
}

/// Observed state of a pool in which changes may begin.
fn observed<'a>(
    list: &'a List,
    members: &'a [Member],
    decision: &'a Decision,
    course: &'a Progress,
) -> ObservedPool<'a> {
    let window = Ok(&OPEN);
    ObservedPool {
        strays: &[],
        list,
        members,
        decision,
        course,
        changes: "kubelet's settings",
        window,
        deleting: false,
        orphan: false,
        keys: None,
    }
}

fn described_in(
    pool: &WindowsNodePool,
    members: &[Member],
    problems: &[EntryError],
    decision: &Decision,
    course: &Progress,
    window: Result<&Windows, &WindowError>,
    now: Timestamp,
) -> WindowsNodePoolStatus {
    let hosts = pool.spec.hosts().len();
    let list = listed(hosts, problems);
    let seen = ObservedPool { window, ..observed(&list, members, decision, course) };
    next(pool, &seen, None, now)
}

fn kstatus(pool: &WindowsNodePool, status: &WindowsNodePoolStatus) -> String {
    format!("{:?}", Kstatus::of(&pool.metadata, status.observed_generation, &status.conditions))
}

fn conflict() -> EntryError {
    EntryError {
        host: "h1".into(),
        reason: Reason::HostConflict,
        message: "host h1: address 10.0.0.0 port 22 already belongs to h0".into(),
    }
}

#[test]
fn situations() {
    use Phase::{Failed, Joining, NotReady, Pending, Ready, Removing};
    let of =
        |phases: &[Phase]| phases.iter().enumerate().map(|(n, p)| member(&format!("h{n}"), *p)).collect::<Vec<_>>();
    for (about, members, problems, ready, reason, k, message) in [
        ("no hosts", of(&[]), vec![], "True", "Succeeded", "Current", "0 of 0 nodes Ready"),
        ("all well", of(&[Ready, Ready]), vec![], "True", "Succeeded", "Current", "2 of 2 nodes Ready"),
        (
            "joining",
            of(&[Ready, Joining]),
            vec![],
            "Unknown",
            "Progressing",
            "InProgress",
            "1 of 2 nodes Ready; 1 joining: h1",
        ),
        (
            "waiting for a turn",
            of(&[Joining, Pending]),
            vec![],
            "Unknown",
            "Progressing",
            "InProgress",
            "0 of 2 nodes Ready; 1 joining: h0; 1 waiting to join: h1",
        ),
        (
            "one failed",
            of(&[Ready, Failed]),
            vec![],
            "False",
            "NodesFailed",
            "InProgress",
            "1 of 2 nodes Ready; 1 of 2 failed: h1: Connect: no answer within 15 s",
        ),
        (
            "a node is not Ready",
            of(&[Ready, NotReady]),
            vec![],
            "False",
            "NodeNotReady",
            "InProgress",
            "1 of 2 nodes Ready; not Ready: h1",
        ),
        (
            "deleted by hand and still listed: it comes back",
            of(&[Ready, Removing]),
            vec![],
            "Unknown",
            "Progressing",
            "InProgress",
            "1 of 2 nodes Ready; 1 leaving: h1; 1 new",
        ),
        (
            "a conflict needs a user",
            of(&[Ready]),
            vec![conflict()],
            "False",
            "HostConflict",
            "Failed",
            "1 of 1 nodes Ready; host h1: address 10.0.0.0 port 22 already belongs to h0",
        ),
    ] {
        let pool = pool(members.len());
        let status = described(&pool, &members, &problems);
        let c = find(&status.conditions, kind::READY).unwrap();
        assert_eq!((c.status.as_str(), c.reason.as_str(), c.message.as_str()), (ready, reason, message), "{about}");
        assert_eq!(kstatus(&pool, &status), k, "{about}");
        let both = [kind::RECONCILING, kind::STALLED].iter().all(|t| find(&status.conditions, t).is_some());
        assert!(!both, "{about}: Reconciling and Stalled exclude each other");
        assert!(status.conditions.iter().all(|c| !c.reason.is_empty() && c.observed_generation == Some(7)), "{about}");
    }
}

#[test]
fn a_pool_whose_instances_are_not_made_yet_is_not_ready() {
    let ready = member("h0", Phase::Ready);
    let status = described(&pool(2), std::slice::from_ref(&ready), &[]);
    assert_eq!(find(&status.conditions, kind::READY).unwrap().status, "Unknown");
    assert_eq!(find(&status.conditions, kind::UPDATING).unwrap().message, "1 new");
    let status = described(&pool(1), &[ready], &[]);
    assert_eq!(find(&status.conditions, kind::READY).unwrap().status, "True");
}

/// Checks that a host belongs to another pool as soon as that pool lists it.
#[test]
fn a_host_that_goes_over_to_another_pool_does_not_count() {
    let members = [member("h0", Phase::Ready), member("h1", Phase::Ready)];
    let (decision, course) = (Decision::default(), course(BlockedBy::None));
    let list = List { moves: [("h1".to_owned(), "other".to_owned())].into(), ..listed(1, &[]) };
    let status = next(&pool(1), &observed(&list, &members, &decision, &course), None, now());
    assert_eq!((status.hosts, status.ready_nodes, status.up_to_date_nodes), (1, 1, 1));
    assert_eq!(find(&status.conditions, kind::READY).unwrap().message, "1 of 1 nodes Ready");
}

#[test]
fn saying_it_twice_changes_nothing() {
    let mut pool = pool(2);
    let members = [member("h0", Phase::Ready), member("h1", Phase::Failed)];
    let first = described(&pool, &members, &[]);
    pool.status = Some(first.clone());
    let later = Timestamp::from_second(1_000_500).unwrap();
    let again = described_in(&pool, &members, &[], &Decision::default(), &course(BlockedBy::None), Ok(&OPEN), later);
    assert_eq!(again, first);
}

#[test]
fn counters_include_only_hosts_that_stay() {
    use Phase::{Failed, Joining, NotReady, Ready, Removing};
    let leaving = |name, phase| {
        let mut member = member(name, phase);
        member.candidate.leaving = true;
        member
    };
    let failing = || {
        let mut member = leaving("h9", Failed);
        let status = Arc::get_mut(&mut member.instance).unwrap().status.as_mut().unwrap();
        status.failures.as_mut().unwrap().count = 3;
        member
    };
    let no_failed: &[&str] = &[];
    // Columns: hosts, members, and expected: the counters, the failed hosts, Degraded, Stalled.
    for (hosts, members, counters, failed, degraded, stalled) in [
        (
            4,
            vec![member("h0", Ready), member("h1", Failed), member("h2", Joining), member("h3", NotReady)],
            [4, 1, 1, 1, 1, 1, 0],
            &["h1"][..],
            "1 of 4 failed: h1: Connect: no answer within 15 s; not Ready: h3",
            false,
        ),
        (1, vec![member("h0", Ready), member("h9", Removing)], [1, 1, 1, 0, 0, 0, 1], no_failed, "", false),
        (1, vec![member("h0", Ready), leaving("h9", NotReady)], [1, 1, 1, 0, 0, 0, 1], no_failed, "", false),
        (
            1,
            vec![member("h0", Ready), failing()],
            [1, 1, 1, 0, 0, 0, 1],
            no_failed,
            "1 not removed: h9: Connect: no answer within 15 s",
            true,
        ),
        (
            1,
            vec![member("h0", Failed), failing()],
            [1, 0, 0, 0, 1, 0, 1],
            &["h0"],
            "1 of 1 failed: h0: Connect: no answer within 15 s; 1 not removed: h9: Connect: no answer within 15 s",
            true,
        ),
    ] {
        let s = described(&pool(hosts), &members, &[]);
        let joining_and_leaving = [s.joining_nodes, s.removing_nodes];
        let seen = [s.hosts, s.ready_nodes, s.up_to_date_nodes, s.unavailable_nodes, s.failed_nodes];
        assert_eq!([&seen[..], &joining_and_leaving].concat(), counters, "{degraded}");
        assert_eq!(s.failed_node_names, failed, "{degraded}");
        let message = &find(&s.conditions, kind::DEGRADED).unwrap().message;
        assert_eq!(message, degraded);
        let stalled_as = find(&s.conditions, kind::STALLED).map(|c| c.reason.as_str());
        assert_eq!(stalled_as, stalled.then_some("NodesFailed"), "{degraded}");
        let planned = planned(&pool(hosts), &[], hosts, &members, &[], None, now());
        assert_eq!((planned.hosts, planned.unavailable_nodes), (s.hosts, s.unavailable_nodes), "{degraded}");
    }
}

#[test]
fn a_message_does_not_grow_with_the_pool() {
    let members: Vec<Member> = (0..500).map(|n| member(&format!("h{n:03}"), Phase::Failed)).collect();
    let s = described(&pool(500), &members, &[]);
    assert!(s.conditions.iter().all(|c| c.message.len() < 400), "{:?}", s.conditions);
    assert_eq!(s.failed_node_names.len(), 10);
}

#[test]
fn paused_is_not_reconciling() {
    let mut pool = pool(2);
    pool.spec.rollout = Some(Rollout { paused: Some(true), ..Rollout::default() });
    let s = described(&pool, &[member("h0", Phase::Ready), member("h1", Phase::Pending)], &[]);
    let ready = find(&s.conditions, kind::READY).unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("Unknown", "Paused"), "a host has not joined");
    assert!(find(&s.conditions, kind::RECONCILING).is_none());
    assert_eq!(kstatus(&pool, &s), "InProgress");
    let updating = find(&s.conditions, kind::UPDATING).unwrap();
    assert_eq!((updating.status.as_str(), updating.reason.as_str()), ("False", "Paused"));

    let s = described(&pool, &[member("h0", Phase::Ready), member("h1", Phase::Ready)], &[]);
    let ready = find(&s.conditions, kind::READY).unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("True", "Paused"), "nothing is left to do");
    assert_eq!(kstatus(&pool, &s), "Current");
}

#[test]
fn a_pause_is_told_beside_a_failure() {
    let mut pool = pool(2);
    pool.spec.rollout = Some(Rollout { paused: Some(true), ..Rollout::default() });
    for problems in [vec![], vec![conflict()]] {
        let s = described(&pool, &[member("h0", Phase::Ready), member("h1", Phase::Failed)], &problems);
        let ready = find(&s.conditions, kind::READY).unwrap();
        assert_eq!(ready.status, "False");
        assert!(ready.message.contains("1 of 2 failed: h1") && ready.message.contains("; paused"), "{}", ready.message);
    }
}

#[test]
fn a_host_that_fails_for_long_fails_its_pool_while_it_is_tried_again() {
    let failed = |count: i32, seconds: i64| {
        let mut m = member("h1", Phase::Failed);
        let status = Arc::get_mut(&mut m.instance).unwrap().status.as_mut().unwrap();
        let first = now() - jiff::SignedDuration::from_secs(seconds);
        status.failures = status.failures.take().map(|f| Failures { count, first_time: Some(first.into()), ..f });
        m
    };
    for (about, count, seconds, expected) in [
        ("at first", 1, 0, "InProgress"),
        ("twice", 2, 599, "InProgress"),
        ("three times", 3, 20, "Failed"),
        ("ten minutes", 1, 600, "Failed"),
    ] {
        let members = [member("h0", Phase::Ready), failed(count, seconds)];
        let s = described(&pool(2), &members, &[]);
        assert_eq!(kstatus(&pool(2), &s), expected, "{about}: {:?}", s.conditions);
        let stalled = find(&s.conditions, kind::STALLED).map(|c| c.reason.as_str());
        assert_eq!(stalled, (expected == "Failed").then_some("NodesFailed"), "{about}");
    }
    // No event triggers a reconcile when ten minutes are over.
    let wakes = next_deadline(&[failed(1, 500)], &pool(1), None, &Decision::default(), now());
    assert_eq!(wakes, Some(now() + jiff::SignedDuration::from_secs(100)));
}

#[test]
fn a_pause_names_its_end_and_is_over_then() {
    let until = |end: &str| {
        let mut pool = pool(2);
        pool.spec.rollout = Some(Rollout { paused_until: Some(end.parse().unwrap()), ..Rollout::default() });
        pool
    };
    let said = "paused until 1970-01-12T13:46:41Z";
    // The current time is 1970-01-12T13:46:40Z.
    for (about, end, phase, ready, paused) in [
        (
            "to come",
            "1970-01-12T13:46:41Z",
            Phase::Ready,
            ("True", "Paused", format!("2 of 2 nodes Ready; {said}")),
            ("True", "Paused", said),
        ),
        (
            "to come, and a host is new",
            "1970-01-12T13:46:41Z",
            Phase::Pending,
            ("Unknown", "Paused", format!("1 of 2 nodes Ready; {said}; 1 waiting to join: h1")),
            ("True", "Paused", said),
        ),
        (
            "now",
            "1970-01-12T13:46:40Z",
            Phase::Ready,
            ("True", "Succeeded", "2 of 2 nodes Ready".into()),
            ("False", "AsExpected", ""),
        ),
        (
            "past, and a host is new",
            "1970-01-12T13:46:39Z",
            Phase::Pending,
            ("Unknown", "Progressing", "1 of 2 nodes Ready; 1 waiting to join: h1".into()),
            ("False", "AsExpected", ""),
        ),
    ] {
        let pool = until(end);
        let status = described(&pool, &[member("h0", Phase::Ready), member("h1", phase)], &[]);
        let of = |status: &WindowsNodePoolStatus, type_| {
            let c = find(&status.conditions, type_).unwrap();
            (c.status.clone(), c.reason.clone(), c.message.clone())
        };
        assert_eq!(of(&status, kind::READY), (ready.0.into(), ready.1.into(), ready.2), "{about}");
        let paused: (String, String, String) = (paused.0.into(), paused.1.into(), paused.2.into());
        assert_eq!(of(&status, kind::PAUSED), paused, "{about}");
        assert_eq!(of(&planned(&pool, &[], 2, &[], &[], None, now()), kind::PAUSED), paused, "{about}, mode Plan");
    }
}

#[test]
fn what_takes_too_long_is_stalled_but_goes_on() {
    let mut pool = pool(1);
    pool.spec.rollout = Some(Rollout { progress_deadline_seconds: Some(60), ..Rollout::default() });
    let failed = |age: i64| {
        let mut m = member("h0", Phase::Failed);
        let at = Time(Timestamp::from_second(1_000_000 - age).unwrap());
        Arc::get_mut(&mut m.instance).unwrap().metadata.creation_timestamp = Some(at);
        m
    };
    assert!(find(&described(&pool, &[failed(59)], &[]).conditions, kind::STALLED).is_none());
    // No event comes at that time: a timer must trigger the reconcile.
    let next = |age: i64| next_deadline(&[failed(59 - 40), failed(age)], &pool, None, &Decision::default(), now());
    assert_eq!(next(59), Some(Timestamp::from_second(1_000_001).unwrap()));
    assert_eq!(next(60), Some(Timestamp::from_second(1_000_041).unwrap()), "what is past is no time to wake at");
    assert_eq!(next_deadline(&[member("h0", Phase::Ready)], &pool, None, &Decision::default(), now()), None);
    let stalled = described(&pool, &[failed(60)], &[]);
    let c = find(&stalled.conditions, kind::STALLED).unwrap();
    assert_eq!(c.reason, "ProgressDeadlineExceeded");
    assert!(c.message.contains("no answer within 15 s"), "{}", c.message);
}

#[test]
fn a_removal_that_takes_too_long_is_stalled() {
    let mut pool = pool(0);
    pool.spec.rollout = Some(Rollout { progress_deadline_seconds: Some(60), ..Rollout::default() });
    let mut m = member("h0", Phase::Removing);
    let start = Timestamp::from_second(999_900).unwrap().into();
    Arc::get_mut(&mut m.instance).unwrap().status.as_mut().unwrap().operation = Some(Operation {
        id: "remove-1".into(),
        type_: api::GrantType::Remove,
        step: "Drain".into(),
        step_start_time: start,
        start_time: start,
        epoch: 1,
        ..Operation::default()
    });
    let s = described(&pool, std::slice::from_ref(&m), &[]);
    assert_eq!(find(&s.conditions, kind::STALLED).unwrap().reason, "ProgressDeadlineExceeded");

    // A paused pool does not stall: Flux would show a pool as failed that Argo CD shows as suspended.
    pool.spec.rollout.as_mut().unwrap().paused = Some(true);
    let s = described(&pool, &[m], &[]);
    assert_eq!(find(&s.conditions, kind::READY).unwrap().reason, "Paused");
    assert!(find(&s.conditions, kind::STALLED).is_none(), "{:?}", s.conditions);
}

#[test]
fn trouble_with_the_source_stalls_only_where_a_person_must_act() {
    let mut pool = pool(1);
    pool.spec.inventory = Inventory { git: Some(api::GitSource::default()), ..Inventory::default() };
    let members = [member("h0", Phase::Ready)];
    let (decision, course) = (Decision::default(), course(BlockedBy::None));
    let problem = |reason| EntryError { host: String::new(), reason, message: "no answer".into() };
    for (about, problems, is_transient, ready, of_kstatus) in [
        ("all is well", vec![], false, "True", "Current"),
        ("it is asked again", vec![problem(Reason::GitOperationFailed)], true, "False", "InProgress"),
        ("only a user can correct it", vec![problem(Reason::VerificationError)], false, "False", "Failed"),
    ] {
        let list = List { is_transient, ..listed(1, &problems) };
        let seen = observed(&list, &members, &decision, &course);
        let status = next(&pool, &seen, None, now());
        assert_eq!(find(&status.conditions, kind::READY).unwrap().status, ready, "{about}");
        assert_eq!(kstatus(&pool, &status), of_kstatus, "{about}");
        assert_eq!(status.ready_nodes, 1, "nodes go on working: {about}");
        let retried = find(&status.conditions, kind::RECONCILING).map(|c| c.message.as_str());
        assert_eq!(retried, (is_transient).then_some("no answer"), "{about}");
    }
}

#[test]
fn the_status_says_who_has_signed_the_list() {
    let mut pool = pool(1);
    let (decision, course) = (Decision::default(), course(BlockedBy::None));
    let verify = api::GitVerify { secret_ref: api::SecretRef { name: "keys".into() }, ..api::GitVerify::default() };
    for (asks, verdict, expected) in [
        (true, SignatureCheck::Verified, Some("True")),
        (true, SignatureCheck::NotAsked, Some("False")),
        (false, SignatureCheck::NotAsked, None),
    ] {
        let git = api::GitSource { verify: asks.then(|| verify.clone()), ..api::GitSource::default() };
        pool.spec.inventory = Inventory { git: Some(git), ..Inventory::default() };
        let status = api::InventoryStatus { verdict, signer: Some("SSH SHA256:x".into()), ..Default::default() };
        let list = List { status: Some(status.clone()), ..listed(0, &[]) };
        let seen = observed(&list, &[], &decision, &course);
        let said = next(&pool, &seen, None, now());
        let condition = find(&said.conditions, kind::SOURCE_VERIFIED).map(|c| c.status.as_str());
        assert_eq!(condition, expected);
        assert_eq!(said.inventory, Some(status));
    }
}

#[test]
fn a_warning_is_beside_everything_else() {
    let pool = pool(1);
    let members = [member("h0", Phase::Ready)];
    let (decision, course) = (Decision::default(), course(BlockedBy::None));
    let (strays, list) = (["left".to_string()], listed(1, &[]));
    let seen = ObservedPool { strays: &strays, ..observed(&list, &members, &decision, &course) };
    let warning = (Reason::ApiServerTooOld, "the API server is version 1.30".to_string());
    let s = next(&pool, &seen, Some(&warning), now());
    assert_eq!(find(&s.conditions, kind::WARNING).unwrap().reason, "ApiServerTooOld");
    let synced = find(&s.conditions, kind::INVENTORY_SYNCED).unwrap();
    assert!(synced.status == "True" && synced.message.contains("in no list: left."), "{}", synced.message);
    assert!(api::conditions::is_true(&s.conditions, kind::READY));
}

#[test]
fn old_keys_are_reported_beside_everything_else() {
    let members = [member("h0", Phase::Ready), member("h1", Phase::Ready)];
    let (decision, course, list) = (Decision::default(), course(BlockedBy::None), listed(2, &[]));
    let mut pool = pool(2);
    let old = KeyRotationStatus { total: 2, old: vec!["h0".into(), "h1".into()], ..KeyRotationStatus::default() };
    let failed = KeyRotationStatus { failed: vec![("h1".into(), "AddKey: read-only".into())], ..old.clone() };
    let unknown = KeyRotationStatus { problem: Some("there is no Secret x".into()), ..KeyRotationStatus::default() };
    let takes = "2 of 2 hosts accept an old key: h0, h1";
    let failing = format!("{takes}; h1: AddKey: read-only");
    for (paused, keys, expected) in [
        (false, Some(old.clone()), Some(("False", "Progressing", takes))),
        (true, Some(old), Some(("False", "Paused", takes))),
        (false, Some(failed), Some(("False", "KeyRotationFailed", failing.as_str()))),
        (false, Some(unknown), Some(("Unknown", "CredentialsUnavailable", "there is no Secret x"))),
        (
            false,
            Some(KeyRotationStatus { total: 2, ..KeyRotationStatus::default() }),
            Some(("True", "AsExpected", "2 hosts accept the first key of the list")),
        ),
        (false, None, None),
    ] {
        pool.spec.rollout = Some(Rollout { paused: Some(paused), ..Rollout::default() });
        let seen = ObservedPool { keys, ..observed(&list, &members, &decision, &course) };
        let status = next(&pool, &seen, None, now());
        let shown = find(&status.conditions, kind::KEYS_CURRENT);
        assert_eq!(shown.map(|c| (c.status.as_str(), c.reason.as_str(), c.message.as_str())), expected);
        assert_eq!(kstatus(&pool, &status), "Current", "{expected:?}");
        assert!(api::conditions::is_true(&status.conditions, kind::READY), "{expected:?}");
        // The next case begins with this status.
        pool.status = Some(status);
    }
}
