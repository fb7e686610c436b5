//! Tests for a pool during a rollout.

use api::IntOrPercent;

use super::*;
use crate::rollout::grants::{Limits, decide, tests::limits};

/// Returns three nodes, of which two must be updated; `h1` is being updated if `moves`.
fn half_way(moves: bool) -> (Vec<Member>, Decision) {
    let mut members = vec![member("h0", Phase::Ready), member("h1", Phase::Ready), member("h2", Phase::Ready)];
    for m in &mut members[1..] {
        m.candidate.change =
            Some(PendingChange { version: VERSION.into(), disruption: Disruption::Drain, services: Vec::new() });
    }
    let mut waiting = vec!["h1".to_string(), "h2".to_string()];
    if moves {
        members[1].candidate.grant = Some(GrantType::Update);
        members[1].candidate.begun = true;
        members[1].candidate.ready = false;
        let operation = Operation {
            type_: GrantType::Update,
            step: "Drain".into(),
            start_time: now().into(),
            drain: Some(api::DrainStatus { remaining: 2, ..api::DrainStatus::default() }),
            ..Operation::default()
        };
        Arc::get_mut(&mut members[1].instance).unwrap().status.as_mut().unwrap().operation = Some(operation);
        waiting.remove(0);
    }
    (members, Decision { waiting, ..Decision::default() })
}

#[test]
fn what_a_rollout_waits_for() {
    use BlockedBy::None as Free;
    let closed = Windows { open: false, closes: None, opens: Some(now()) };
    let wrong = crate::rollout::maintenance_window::look(
        &[api::MaintenanceWindow { schedule: "x".into(), duration_seconds: Some(3600), time_zone: None }],
        now(),
    )
    .unwrap_err();
    let limit = |rolled_back| BlockedBy::FailureLimit { failed: 1, rolled_back };
    // Columns: name, update in progress, hold, window, and expected: Ready with its reason, Updated's reason, kstatus.
    for (name, moves, hold, window, expected) in [
        ("on its way", true, Free, Ok(&OPEN), "Unknown Progressing, Progressing, InProgress"),
        ("the next one has its turn", false, Free, Ok(&OPEN), "Unknown Progressing, Progressing, InProgress"),
        ("closed", false, Free, Ok(&closed), "Unknown WaitingForWindow, WaitingForWindow, InProgress"),
        ("closed, one is finished", true, Free, Ok(&closed), "Unknown Progressing, WaitingForWindow, InProgress"),
        (
            "not approved",
            false,
            BlockedBy::Approval,
            Ok(&OPEN),
            "Unknown WaitingForApproval, WaitingForApproval, InProgress",
        ),
        ("soaking", false, BlockedBy::Soaking { until: now() }, Ok(&OPEN), "Unknown Progressing, Waiting, InProgress"),
        ("failed", false, limit(false), Ok(&OPEN), "False FailureLimitReached, FailureLimitReached, Failed"),
        ("taken back", true, limit(true), Ok(&OPEN), "False FailureLimitReached, FailureLimitReached, Failed"),
        ("a window that means nothing", false, Free, Err(&wrong), "False InvalidWindow, InvalidWindow, Failed"),
    ] {
        let (members, decision) = half_way(moves);
        let s = described_in(&pool(3), &members, &[], &decision, &course(hold), window, now());
        let [ready, updated] = [kind::READY, kind::UPDATED].map(|type_| find(&s.conditions, type_).unwrap());
        let seen = format!("{} {}, {}, {}", ready.status, ready.reason, updated.reason, kstatus(&pool(3), &s));
        assert_eq!(seen, expected, "{name}");
        assert_eq!(s.updating_nodes, i32::from(moves), "{name}");
    }
}

#[test]
fn a_rollout_tells_what_it_does() {
    let (members, decision) = half_way(true);
    let s = described_in(&pool(3), &members, &[], &decision, &course(BlockedBy::None), Ok(&OPEN), now());
    let expected = "2 of 3 nodes Ready, 1 updated; h1: Drain, 2 pods left; 1 updating: h1; 1 to be updated: h2 (kubelet's settings)";
    assert_eq!(find(&s.conditions, kind::READY).unwrap().message, expected);
    assert_eq!(s.versions, [VersionCount { version: VERSION.into(), nodes: 3 }]);
}

#[test]
fn too_many_that_are_not_ready_need_a_person() {
    let decision = Decision { too_many_unhealthy: true, ..Decision::default() };
    let members = [member("h0", Phase::NotReady), member("h1", Phase::Ready)];
    let s = described_in(&pool(2), &members, &[], &decision, &course(BlockedBy::None), Ok(&OPEN), now());
    assert_eq!(find(&s.conditions, kind::STALLED).unwrap().reason, "TooManyUnhealthy");
    let decision = Decision { lost: vec!["h0".into()], ..Decision::default() };
    let s = described_in(&pool(2), &members, &[], &decision, &course(BlockedBy::None), Ok(&OPEN), now());
    assert_eq!(find(&s.conditions, kind::DEGRADED).unwrap().reason, "NodesLost");
}

#[test]
fn who_gave_up_is_reported_until_another_version_is_wanted() {
    let mut gave_up = member("h0", Phase::Ready);
    let mut instance = (*gave_up.instance).clone();
    instance.status.as_mut().unwrap().failed_version = Some("2-b".into());
    gave_up.instance = Arc::new(instance);
    let members = [gave_up, member("h1", Phase::Ready)];
    for (to, hold, failed, degraded) in [
        ("2-b", BlockedBy::FailureLimit { failed: 1, rolled_back: true }, &["h0"][..], "True"),
        ("3-c", BlockedBy::None, &[], "False"),
    ] {
        let rollout = RolloutStatus { to_version: to.into(), ..RolloutStatus::default() };
        let course = Progress { status: Some(rollout), ..course(hold) };
        let status = described_in(&pool(2), &members, &[], &Decision::default(), &course, Ok(&OPEN), now());
        assert_eq!(status.failed_node_names, failed, "{to}");
        assert_eq!(find(&status.conditions, kind::DEGRADED).unwrap().status, degraded, "{to}");
    }
}

#[test]
fn a_node_whose_host_cannot_be_sent_the_next_version_is_reported() {
    let mut pool = pool(1);
    pool.spec.rollout = Some(Rollout { progress_deadline_seconds: Some(60), ..Rollout::default() });
    let at = |age: i64| api::Time::from(Timestamp::from_second(1_000_000 - age).unwrap());
    let failing = |first: i64, change: bool| {
        let mut m = member("h0", Phase::Ready);
        Arc::get_mut(&mut m.instance).unwrap().status.as_mut().unwrap().failures = Some(Failures {
            count: 2,
            first_time: Some(at(first)),
            step: "Stage".into(),
            last_reason: "Unreachable".into(),
            last_message: "10.0.0.1 port 22 refuses connections".into(),
            ..Failures::default()
        });
        m.candidate.change = change.then(|| PendingChange { version: "2-b".into(), ..PendingChange::default() });
        m
    };
    let begun = |age: i64| Progress {
        status: Some(RolloutStatus { start_time: at(age), to_version: "2-b".into(), ..RolloutStatus::default() }),
        ..course(BlockedBy::None)
    };
    for (about, member, began, failed, stalled) in [
        ("it has just failed", failing(10, true), 80, 1, false),
        ("it fails, but the rollout has just begun", failing(500, true), 30, 1, false),
        ("it has failed for too long", failing(70, true), 80, 1, true),
        ("there is nothing to be sent any more", failing(500, false), 800, 0, false),
        (
            "it is held",
            Member { candidate: Candidate { held: true, ..failing(500, true).candidate }, ..failing(500, true) },
            800,
            0,
            false,
        ),
    ] {
        let s = described_in(&pool, &[member], &[], &Decision::default(), &begun(began), Ok(&OPEN), now());
        let degraded = find(&s.conditions, kind::DEGRADED).unwrap();
        assert_eq!((s.failed_nodes, degraded.status == "True"), (failed, failed > 0), "{about}");
        assert!(failed == 0 || degraded.message.contains("refuses connections"), "{about}: {}", degraded.message);
        let says = find(&s.conditions, kind::STALLED).map(|c| c.reason.as_str());
        assert_eq!(says, stalled.then_some("ProgressDeadlineExceeded"), "{about}");
    }
}

/// `kubectl wait --for=condition=Ready` right after an apply must wait for the end of the rollout, whatever is granted at once.
#[test]
fn no_pool_is_ready_while_a_node_is_outdated_and_free_to_change() {
    for (nodes, staged) in (1..6).flat_map(|nodes| [(nodes, false), (nodes, true)]) {
        for max_unavailable in 1..=u32::try_from(nodes).unwrap() {
            let change = PendingChange { version: "2-b".into(), disruption: Disruption::Drain, services: Vec::new() };
            let outdated = |n: usize| {
                let mut member = member(&format!("h{n}"), Phase::Ready);
                (member.candidate.change, member.candidate.staged) = (Some(change.clone()), staged);
                member
            };
            let members: Vec<Member> = (0..nodes).map(outdated).collect();
            let candidates: Vec<Candidate> = members.iter().map(|m| m.candidate.clone()).collect();
            let limits = Limits {
                max_concurrent: 5,
                max_unavailable: IntOrPercent::Int(max_unavailable),
                max_unhealthy: IntOrPercent::Percent(100),
                remediation: api::RemediationType::None,
                ..limits()
            };
            let decision = decide(&candidates, &limits, now());
            assert!(!decision.changes.is_empty(), "nothing is granted");
            let (pool, course) = (pool(nodes), Progress { target: "2-b".into(), ..course(BlockedBy::None) });
            let status = described_in(&pool, &members, &[], &decision, &course, Ok(&OPEN), now());
            let ready = find(&status.conditions, "Ready").unwrap();
            assert_eq!(
                (ready.status.as_str(), kstatus(&pool, &status).as_str()),
                ("Unknown", "InProgress"),
                "{ready:?}"
            );
        }
    }
}

#[test]
fn a_pool_whose_other_nodes_are_held_by_people_is_done() {
    let (mut members, _) = half_way(false);
    for m in &mut members[1..] {
        m.candidate.held = true;
    }
    let status = described(&pool(3), &members, &[]);
    let ready = find(&status.conditions, "Ready").unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str(), kstatus(&pool(3), &status).as_str()),
        ("True", "OnHold", "Current")
    );
    assert!(ready.message.contains("2 nodes are not updated") && ready.message.contains("h1, h2"), "{}", ready.message);
}
