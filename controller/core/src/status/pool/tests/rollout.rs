//! Tests for a pool during a rollout.

use api::IntOrPercent;

use super::*;
use crate::rollout::grants::{Limits, decide, tests::limits};

/// Returns a pool of three nodes; two must be updated, and `h1` is being updated if `moves`.
fn half_way(moves: bool) -> Scene {
    let outdated = |name| {
        changed(ready(name), |candidate, _| {
            let disruption = Disruption::Drain;
            candidate.change = Some(PendingChange { version: VERSION.into(), disruption, services: Vec::new() });
        })
    };
    let mut scene = Scene::of(pool(3), [ready("h0"), outdated("h2")]);
    scene.decision.waiting = vec!["h2".to_owned()];
    let mut other = outdated("h1");
    if moves {
        other = changed(other, |candidate, status| {
            (candidate.grant, candidate.begun, candidate.ready) = (Some(GrantType::Update), true, false);
            status.operation = Some(Operation {
                type_: GrantType::Update,
                step: "Drain".into(),
                start_time: now().into(),
                drain: Some(api::DrainStatus { remaining: 2, ..api::DrainStatus::default() }),
                ..Operation::default()
            });
        });
    } else {
        scene.decision.waiting.insert(0, "h1".to_owned());
    }
    scene.members.insert(1, other);
    scene
}

#[test]
fn the_cause_for_which_a_rollout_waits_is_the_reason() {
    use BlockedBy::None as Free;
    let open = || Ok(OPEN);
    let closed = || Ok(Windows { open: false, closes: None, opens: Some(now()) });
    let wrong = || {
        let window = api::MaintenanceWindow { schedule: "x".into(), duration_seconds: Some(3600), time_zone: None };
        crate::rollout::maintenance_window::observe(&[window], now())
    };
    let limit = |rolled_back| BlockedBy::FailureLimit { failed: 1, rolled_back };
    let soaking = BlockedBy::Soaking { until: now() };
    // Columns: name, update in progress, hold, window, and expected: Ready with its reason, Updated's reason, kstatus.
    for (name, moves, hold, window, expected) in [
        ("on its way", true, Free, open(), "Unknown Progressing, Progressing, InProgress"),
        ("the next one has its turn", false, Free, open(), "Unknown Progressing, Progressing, InProgress"),
        ("closed", false, Free, closed(), "Unknown WaitingForWindow, WaitingForWindow, InProgress"),
        ("closed, one is finished", true, Free, closed(), "Unknown Progressing, WaitingForWindow, InProgress"),
        (
            "not approved",
            false,
            BlockedBy::Approval,
            open(),
            "Unknown WaitingForApproval, WaitingForApproval, InProgress",
        ),
        ("soaking", false, soaking, open(), "Unknown Progressing, Waiting, InProgress"),
        ("failed", false, limit(false), open(), "False FailureLimitReached, FailureLimitReached, Failed"),
        ("rolled back", true, limit(true), open(), "False FailureLimitReached, FailureLimitReached, Failed"),
        ("a malformed window", false, Free, wrong(), "False InvalidWindow, InvalidWindow, Failed"),
    ] {
        let scene = Scene { course: course(hold), window, ..half_way(moves) };
        let s = scene.status();
        let (ready, reason, _) = condition(&s, kind::READY);
        let seen = format!("{ready} {reason}, {}, {}", condition(&s, kind::UPDATED).1, scene.kstatus(&s));
        assert_eq!(seen, expected, "{name}");
        assert_eq!(s.updating_nodes, i32::from(moves), "{name}");
    }
}

#[test]
fn the_steps_of_a_rollout_are_in_the_message() {
    let s = half_way(true).status();
    let expected = "2 of 3 nodes Ready, 1 updated; h1: Drain, 2 pods left; 1 updating: h1; 1 to be updated: h2 (kubelet's settings)";
    assert_eq!(condition(&s, kind::READY).2, expected);
    assert_eq!(s.versions, [VersionCount { version: VERSION.into(), nodes: 3 }]);
}

#[test]
fn lost_nodes_degrade_a_pool() {
    let decision = Decision { lost: vec!["h0".into()], ..Decision::default() };
    let scene = Scene { decision, ..Scene::of(pool(2), [member("h0", Phase::NotReady), ready("h1")]) };
    assert_eq!(condition(&scene.status(), kind::DEGRADED).1, "NodesLost");
}

#[test]
fn a_host_that_gave_up_is_reported_until_another_version_is_wanted() {
    for (to, hold, failed, degraded) in [
        ("2-b", BlockedBy::FailureLimit { failed: 1, rolled_back: true }, &["h0"][..], "True"),
        ("3-c", BlockedBy::None, &[], "False"),
    ] {
        let gave_up = changed(ready("h0"), |_, status| status.failed_version = Some("2-b".into()));
        let rollout = RolloutStatus { to_version: to.into(), ..RolloutStatus::default() };
        let course = Progress { status: Some(rollout), ..course(hold) };
        let status = Scene { course, ..Scene::of(pool(2), [gave_up, ready("h1")]) }.status();
        assert_eq!(status.failed_node_names, failed, "{to}");
        assert_eq!(condition(&status, kind::DEGRADED).0, degraded, "{to}");
    }
}

#[test]
fn a_node_whose_host_cannot_be_sent_the_next_version_is_reported() {
    let failing = |seconds: i64, change: bool, held: bool| {
        changed(ready("h0"), |candidate, status| {
            status.failures = Some(Failures {
                count: 2,
                first_time: Some(seconds_ago(seconds).into()),
                step: "Stage".into(),
                last_reason: "Unreachable".into(),
                last_message: "10.0.0.1 port 22 refuses connections".into(),
                ..Failures::default()
            });
            candidate.change = change.then(|| PendingChange { version: "2-b".into(), ..PendingChange::default() });
            candidate.held = held;
        })
    };
    for (about, member, began, failed, stalled) in [
        ("it has just failed", failing(10, true, false), 80, 1, ""),
        ("it fails, but the rollout has just begun", failing(500, true, false), 30, 1, ""),
        ("it has failed for too long", failing(70, true, false), 80, 1, "ProgressDeadlineExceeded"),
        ("no change is pending any more", failing(500, false, false), 800, 0, ""),
        ("it is held", failing(500, true, true), 800, 0, ""),
    ] {
        let start_time = seconds_ago(began).into();
        let rollout = RolloutStatus { start_time, to_version: "2-b".into(), ..RolloutStatus::default() };
        let course = Progress { status: Some(rollout), ..course(BlockedBy::None) };
        let s = Scene { course, ..Scene::of(pool_with(1, deadline(60)), [member]) }.status();
        let (degraded, _, message) = condition(&s, kind::DEGRADED);
        assert_eq!((s.failed_nodes, degraded == "True"), (failed, failed > 0), "{about}");
        assert!(failed == 0 || message.contains("refuses connections"), "{about}: {message}");
        assert_eq!(condition(&s, kind::STALLED).1, stalled, "{about}");
    }
}

/// Covers `kubectl wait --for=condition=Ready` right after an apply: it must wait for the end of the rollout, whatever is granted at once.
#[test]
fn no_pool_is_ready_while_a_node_is_outdated_and_free_to_change() {
    for (nodes, staged) in (1..6).flat_map(|nodes| [(nodes, false), (nodes, true)]) {
        for max_unavailable in 1..=u32::try_from(nodes).unwrap() {
            let change = PendingChange { version: "2-b".into(), disruption: Disruption::Drain, services: Vec::new() };
            let outdated = |n: usize| {
                changed(ready(&format!("h{n}")), |candidate, _| {
                    (candidate.change, candidate.staged) = (Some(change.clone()), staged);
                })
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
            let course = Progress { target: "2-b".into(), ..course(BlockedBy::None) };
            let scene = Scene { decision, course, ..Scene::of(pool(nodes), members) };
            let status = scene.status();
            let ready = condition(&status, kind::READY);
            assert_eq!((ready.0, scene.kstatus(&status).as_str()), ("Unknown", "InProgress"), "{ready:?}");
        }
    }
}

#[test]
fn a_pool_whose_other_nodes_are_held_by_users_is_done() {
    let mut scene = half_way(false);
    scene.decision.waiting.clear();
    for m in &mut scene.members[1..] {
        m.candidate.held = true;
    }
    let status = scene.status();
    let (ready, reason, message) = condition(&status, kind::READY);
    assert_eq!((ready, reason, scene.kstatus(&status).as_str()), ("True", "OnHold", "Current"));
    assert!(message.contains("2 nodes are not updated") && message.contains("h1, h2"), "{message}");
}
