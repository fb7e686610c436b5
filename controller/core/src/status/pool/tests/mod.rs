//! Tests for the status of a pool, as users, kstatus and Argo CD read it.

mod rollout;
mod scene;
mod trouble;

use std::sync::Arc;

use api::{
    Disruption, Failures, GrantType, Inventory, Operation, Phase, Reason, Rollout, RolloutStatus, SignatureCheck,
    conditions::find,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::rollout::{
    grants::{Candidate, PendingChange},
    progress::BlockedBy,
};
use scene::*;

#[test]
fn a_pool_is_summed_up() {
    use Phase::{Failed, Joining, NotReady, Pending, Ready, Removing};
    let none: &[EntryError] = &[];
    // Columns: name, phases, problems of the list, and expected: Ready with its reason, kstatus, the message of Ready.
    for (about, phases, problems, expected, said) in [
        ("no hosts", &[][..], none, "True Succeeded, Current", "0 of 0 nodes Ready"),
        ("all well", &[Ready, Ready], none, "True Succeeded, Current", "2 of 2 nodes Ready"),
        ("joining", &[Ready, Joining], none, "Unknown Progressing, InProgress", "1 of 2 nodes Ready; 1 joining: h1"),
        (
            "waiting for a turn",
            &[Joining, Pending],
            none,
            "Unknown Progressing, InProgress",
            "0 of 2 nodes Ready; 1 joining: h0; 1 waiting to join: h1",
        ),
        (
            "one failed",
            &[Ready, Failed],
            none,
            "False NodesFailed, InProgress",
            "1 of 2 nodes Ready; 1 of 2 failed: h1: Connect: no answer within 15 s",
        ),
        (
            "a node is not Ready",
            &[Ready, NotReady],
            none,
            "False NodeNotReady, InProgress",
            "1 of 2 nodes Ready; not Ready: h1",
        ),
        (
            "deleted by hand and still listed: it joins again",
            &[Ready, Removing],
            none,
            "Unknown Progressing, InProgress",
            "1 of 2 nodes Ready; 1 leaving: h1; 1 new",
        ),
        (
            "a conflict needs a user",
            &[Ready],
            &[conflict()],
            "False HostConflict, Failed",
            "1 of 1 nodes Ready; host h1: address 10.0.0.0 port 22 already belongs to h0",
        ),
    ] {
        let members: Vec<_> = phases.iter().enumerate().map(|(n, p)| member(&format!("h{n}"), *p)).collect();
        let scene = Scene { list: listed(members.len(), problems), ..Scene::of(pool(members.len()), members) };
        let status = scene.status();
        let (ready, reason, message) = condition(&status, kind::READY);
        let seen = format!("{ready} {reason}, {}", scene.kstatus(&status));
        assert_eq!((seen.as_str(), message), (expected, said), "{about}");
        let both = [kind::RECONCILING, kind::STALLED].iter().all(|t| find(&status.conditions, t).is_some());
        assert!(!both, "{about}: Reconciling and Stalled exclude each other");
        assert!(status.conditions.iter().all(|c| !c.reason.is_empty() && c.observed_generation == Some(7)), "{about}");
    }
}

#[test]
fn a_pool_whose_instances_are_not_made_yet_is_not_ready() {
    let status = described(pool(2), [ready("h0")]);
    assert_eq!(condition(&status, kind::READY).0, "Unknown");
    assert_eq!(condition(&status, kind::UPDATING).2, "1 new");
}

/// Checks that a host belongs to another pool as soon as that pool lists it.
#[test]
fn a_host_that_goes_over_to_another_pool_does_not_count() {
    let list = List { moves: [("h1".to_owned(), "other".to_owned())].into(), ..listed(1, &[]) };
    let status = Scene { list, ..Scene::of(pool(1), [ready("h0"), ready("h1")]) }.status();
    assert_eq!((status.hosts, status.ready_nodes, status.up_to_date_nodes), (1, 1, 1));
    assert_eq!(condition(&status, kind::READY), ("True", "Succeeded", "1 of 1 nodes Ready"));
}

/// Checks each combination of an operation, a grant and a decision: a pool with a node that is not Ready is never done, whatever is under way on it.
#[test]
fn a_pool_is_not_done_while_a_node_is_not_ready() {
    use GrantType::{Maintenance, PullImages, Reboot, Remove, Repair, RotateKey, Stage, Update};
    let types =
        [None].into_iter().chain([Update, Reboot, Repair, Maintenance, Stage, RotateKey, PullImages, Remove].map(Some));
    let decisions = [None, Some(None)].into_iter().chain(types.clone().skip(1).map(Some));
    let of_grants = types.clone().flat_map(|grant| decisions.clone().map(move |decision| (grant, decision)));
    for (grant, decision) in of_grants {
        for (operation, fails) in types.clone().flat_map(|operation| [(operation, false), (operation, true)]) {
            let about = format!("{operation:?}, {grant:?}, {decision:?}, {fails}");
            let phase = if fails { Phase::Failed } else { Phase::NotReady };
            let node = changed(member("h1", phase), |candidate, status| {
                status.current_version = Some(VERSION.into());
                status.operation = operation.map(|type_| Operation { type_, ..Operation::default() });
                candidate.begun = operation.is_some_and(GrantType::is_change);
                (candidate.joined, candidate.grant) = (true, grant);
            });
            let mut scene = Scene::of(pool(2), [ready("h0"), node]);
            let decided = decision.map(|type_| type_.map(Into::into));
            scene.decision.changes.extend(decided.map(|grant| ("h1".to_owned(), grant)));
            let status = scene.status();
            let (_, reason, _) = condition(&status, kind::READY);
            assert_eq!(status.ready_nodes, 1, "{about}");
            assert_ne!(reason, "Succeeded", "{about}");
        }
    }
}

#[test]
fn a_second_update_changes_nothing() {
    let mut scene = Scene::of(pool(2), [ready("h0"), member("h1", Phase::Failed)]);
    let first = scene.status();
    scene.pool.status = Some(first.clone());
    scene.now = Timestamp::from_second(1_000_500).unwrap();
    assert_eq!(scene.status(), first);
}

#[test]
fn counters_include_only_hosts_that_stay() {
    use Phase::{Failed, Joining, NotReady, Ready, Removing};
    let failing = || changed(leaving(member("h9", Failed)), |_, status| status.failures.as_mut().unwrap().count = 3);
    let no_failed: &[&str] = &[];
    // Columns: hosts, members, and expected: the counters, the failed hosts, Degraded, Stalled.
    for (hosts, members, counters, failed, degraded, stalled) in [
        (
            4,
            vec![member("h0", Ready), member("h1", Failed), member("h2", Joining), member("h3", NotReady)],
            [4, 1, 1, 1, 1, 1, 0],
            &["h1"][..],
            "1 of 4 failed: h1: Connect: no answer within 15 s; not Ready: h3",
            "",
        ),
        (1, vec![member("h0", Ready), member("h9", Removing)], [1, 1, 1, 0, 0, 0, 1], no_failed, "", ""),
        (1, vec![member("h0", Ready), leaving(member("h9", NotReady))], [1, 1, 1, 0, 0, 0, 1], no_failed, "", ""),
        (
            1,
            vec![member("h0", Ready), failing()],
            [1, 1, 1, 0, 0, 0, 1],
            no_failed,
            "1 not removed: h9: Connect: no answer within 15 s",
            "NodesFailed",
        ),
        (
            1,
            vec![member("h0", Failed), failing()],
            [1, 0, 0, 0, 1, 0, 1],
            &["h0"],
            "1 of 1 failed: h0: Connect: no answer within 15 s; 1 not removed: h9: Connect: no answer within 15 s",
            "NodesFailed",
        ),
    ] {
        let planned = planned(&pool(hosts), &[], hosts, &members, &[], None, now());
        let s = described(pool(hosts), members);
        let joining_and_leaving = [s.joining_nodes, s.removing_nodes];
        let seen = [s.hosts, s.ready_nodes, s.up_to_date_nodes, s.unavailable_nodes, s.failed_nodes];
        assert_eq!([&seen[..], &joining_and_leaving].concat(), counters, "{degraded}");
        assert_eq!(s.failed_node_names, failed, "{degraded}");
        assert_eq!(condition(&s, kind::DEGRADED).2, degraded);
        assert_eq!(condition(&s, kind::STALLED).1, stalled, "{degraded}");
        let counts = |s: &WindowsNodePoolStatus| {
            let failed = (s.failed_nodes, s.failed_node_names.clone());
            (s.hosts, s.ready_nodes, s.unavailable_nodes, s.joining_nodes, s.removing_nodes, failed)
        };
        assert_eq!(counts(&planned), counts(&s), "{degraded}");
    }
}

#[test]
fn a_message_does_not_grow_with_the_pool() {
    let members: Vec<Member> = (0..500).map(|n| member(&format!("h{n:03}"), Phase::Failed)).collect();
    let s = described(pool(500), members);
    assert!(s.conditions.iter().all(|c| c.message.len() < 400), "{:?}", s.conditions);
    assert_eq!(s.failed_node_names.len(), 10);
}

#[test]
fn paused_is_not_reconciling() {
    // Columns: phase of the second host, and expected: Ready, kstatus.
    for (phase, ready_status, kstatus) in [(Phase::Pending, "Unknown", "InProgress"), (Phase::Ready, "True", "Current")]
    {
        let scene = Scene::of(pool_with(2, paused()), [ready("h0"), member("h1", phase)]);
        let status = scene.status();
        let (is_ready, reason, _) = condition(&status, kind::READY);
        assert_eq!((is_ready, reason), (ready_status, "Paused"), "{phase:?}");
        assert_eq!(condition(&status, kind::RECONCILING).0, "", "{phase:?}");
        assert_eq!(scene.kstatus(&status), kstatus, "{phase:?}");
    }
    let status = described(pool_with(2, paused()), [ready("h0"), member("h1", Phase::Pending)]);
    let (updating, reason, _) = condition(&status, kind::UPDATING);
    assert_eq!((updating, reason), ("False", "Paused"));
}

#[test]
fn a_pause_is_told_beside_a_failure() {
    for problems in [vec![], vec![conflict()]] {
        let scene = Scene::of(pool_with(2, paused()), [ready("h0"), member("h1", Phase::Failed)]);
        let status = Scene { list: listed(2, &problems), ..scene }.status();
        let (ready, _, message) = condition(&status, kind::READY);
        assert_eq!(ready, "False");
        assert!(message.contains("1 of 2 failed: h1") && message.contains("; paused"), "{message}");
    }
}

#[test]
fn a_host_that_fails_for_long_fails_its_pool_while_it_is_tried_again() {
    let failed = |count: i32, seconds: i64| {
        changed(member("h1", Phase::Failed), |_, status| {
            let first_time = Some(seconds_ago(seconds).into());
            status.failures = status.failures.take().map(|f| Failures { count, first_time, ..f });
        })
    };
    for (about, count, seconds, stalled, kstatus) in [
        ("at first", 1, 0, "", "InProgress"),
        ("twice", 2, 599, "", "InProgress"),
        ("three times", 3, 20, "NodesFailed", "Failed"),
        ("ten minutes", 1, 600, "NodesFailed", "Failed"),
    ] {
        let scene = Scene::of(pool(2), [ready("h0"), failed(count, seconds)]);
        let status = scene.status();
        assert_eq!(scene.kstatus(&status), kstatus, "{about}: {:?}", status.conditions);
        assert_eq!(condition(&status, kind::STALLED).1, stalled, "{about}");
    }
    // No event triggers a reconcile when ten minutes are over.
    let wakes = next_deadline(&[failed(1, 500)], &pool(1), None, &Decision::default(), now());
    assert_eq!(wakes, Some(seconds_ago(-100)));
}

#[test]
fn a_pause_names_its_end_and_is_over_then() {
    let said = "paused until 1970-01-12T13:46:41Z";
    let (is_paused, is_over) = (("True", "Paused", said), ("False", "AsExpected", ""));
    // The current time is 1970-01-12T13:46:40Z, second 1,000,000.
    for (about, end, phase, ready_as, paused) in [
        ("to come", 1_000_001, Phase::Ready, ("True", "Paused", format!("2 of 2 nodes Ready; {said}")), is_paused),
        (
            "to come, and a host is new",
            1_000_001,
            Phase::Pending,
            ("Unknown", "Paused", format!("1 of 2 nodes Ready; {said}; 1 waiting to join: h1")),
            is_paused,
        ),
        ("now", 1_000_000, Phase::Ready, ("True", "Succeeded", "2 of 2 nodes Ready".into()), is_over),
        (
            "past, and a host is new",
            999_999,
            Phase::Pending,
            ("Unknown", "Progressing", "1 of 2 nodes Ready; 1 waiting to join: h1".into()),
            is_over,
        ),
    ] {
        let pool = pool_with(2, until(end));
        let planned = planned(&pool, &[], 2, &[], &[], None, now());
        let status = described(pool, [ready("h0"), member("h1", phase)]);
        assert_eq!(condition(&status, kind::READY), (ready_as.0, ready_as.1, ready_as.2.as_str()), "{about}");
        assert_eq!(condition(&status, kind::PAUSED), paused, "{about}");
        assert_eq!(condition(&planned, kind::PAUSED), paused, "{about}, mode Plan");
    }
}

#[test]
fn a_join_that_takes_too_long_is_stalled() {
    let pool = || pool_with(1, deadline(60));
    let failed = |age: i64| {
        let mut m = member("h0", Phase::Failed);
        Arc::get_mut(&mut m.instance).unwrap().metadata.creation_timestamp = Some(Time(seconds_ago(age)));
        m
    };
    assert_eq!(condition(&described(pool(), [failed(59)]), kind::STALLED).0, "");
    let stalled = described(pool(), [failed(60)]);
    let (_, reason, message) = condition(&stalled, kind::STALLED);
    assert_eq!(reason, "ProgressDeadlineExceeded");
    assert!(message.contains("no answer within 15 s"), "{message}");
    // No event comes at that time: a timer must trigger the reconcile.
    let next = |members: &[Member]| next_deadline(members, &pool(), None, &Decision::default(), now());
    assert_eq!(next(&[failed(59 - 40), failed(59)]), Some(seconds_ago(-1)));
    assert_eq!(
        next(&[failed(59 - 40), failed(60)]),
        Some(seconds_ago(-41)),
        "a time in the past triggers no reconcile"
    );
    assert_eq!(next(&[ready("h0")]), None);
}

#[test]
fn a_removal_that_takes_too_long_is_stalled() {
    let start = seconds_ago(100).into();
    let leaving = || {
        changed(member("h0", Phase::Removing), |_, status| {
            status.operation = Some(Operation {
                id: "remove-1".into(),
                type_: GrantType::Remove,
                step: "Drain".into(),
                step_start_time: start,
                start_time: start,
                epoch: 1,
                ..Operation::default()
            });
        })
    };
    let status = described(pool_with(0, deadline(60)), [leaving()]);
    assert_eq!(condition(&status, kind::STALLED).1, "ProgressDeadlineExceeded");

    // A paused pool does not stall: Flux would show a pool as failed that Argo CD shows as suspended.
    let status = described(pool_with(0, Rollout { paused: Some(true), ..deadline(60) }), [leaving()]);
    assert_eq!(condition(&status, kind::READY).1, "Paused");
    assert_eq!(condition(&status, kind::STALLED).0, "", "{:?}", status.conditions);
}

#[test]
fn trouble_with_the_source_stalls_only_where_a_user_must_act() {
    for (about, problems, is_transient, ready_as, kstatus) in [
        ("all is well", vec![], false, "True", "Current"),
        ("it is asked again", vec![Reason::GitOperationFailed], true, "False", "InProgress"),
        ("only a user can correct it", vec![Reason::VerificationError], false, "False", "Failed"),
    ] {
        let problems: Vec<_> = problems.into_iter().map(trouble_with_the_source).collect();
        let list = List { is_transient, ..listed(1, &problems) };
        let mut scene = Scene { list, ..Scene::of(pool(0), [ready("h0")]) };
        scene.pool.spec.inventory = Inventory { git: Some(api::GitSource::default()), ..Inventory::default() };
        let status = scene.status();
        assert_eq!(condition(&status, kind::READY).0, ready_as, "{about}");
        assert_eq!(scene.kstatus(&status), kstatus, "{about}");
        assert_eq!(status.ready_nodes, 1, "nodes go on working: {about}");
        assert_eq!(condition(&status, kind::RECONCILING).2, if is_transient { "no answer" } else { "" }, "{about}");
    }
}

#[test]
fn the_signer_of_the_list_is_in_the_status() {
    let verify = api::GitVerify { secret_ref: api::SecretRef { name: "keys".into() }, ..api::GitVerify::default() };
    for (asks, verdict, expected) in [
        (true, SignatureCheck::Verified, "True"),
        (true, SignatureCheck::NotAsked, "False"),
        (false, SignatureCheck::NotAsked, ""),
    ] {
        let status = api::InventoryStatus { verdict, signer: Some("SSH SHA256:x".into()), ..Default::default() };
        let list = List { status: Some(status.clone()), ..listed(0, &[]) };
        let mut scene = Scene { list, ..Scene::of(pool(0), []) };
        let git = api::GitSource { verify: asks.then(|| verify.clone()), ..api::GitSource::default() };
        scene.pool.spec.inventory = Inventory { git: Some(git), ..Inventory::default() };
        let said = scene.status();
        assert_eq!(condition(&said, kind::SOURCE_VERIFIED).0, expected);
        assert_eq!(said.inventory, Some(status));
    }
}

#[test]
fn a_warning_and_strays_leave_a_pool_ready() {
    let scene = Scene {
        strays: vec!["left".to_owned()],
        warning: Some((Reason::ApiServerTooOld, "the API server is version 1.30".to_owned())),
        ..Scene::of(pool(1), [ready("h0")])
    };
    let s = scene.status();
    assert_eq!(condition(&s, kind::WARNING).1, "ApiServerTooOld");
    let (synced, _, message) = condition(&s, kind::INVENTORY_SYNCED);
    assert!(synced == "True" && message.contains("in no list: left."), "{message}");
    assert_eq!(condition(&s, kind::READY).0, "True");
}

#[test]
fn old_keys_are_reported_and_leave_a_pool_ready() {
    let mut scene = Scene::of(pool(2), [ready("h0"), ready("h1")]);
    let old = KeyRotationStatus { total: 2, old: vec!["h0".into(), "h1".into()], ..KeyRotationStatus::default() };
    let failed = KeyRotationStatus { failed: vec![("h1".into(), "AddKey: read-only".into())], ..old.clone() };
    let unknown = KeyRotationStatus { problem: Some("there is no Secret x".into()), ..KeyRotationStatus::default() };
    let current = KeyRotationStatus { total: 2, ..KeyRotationStatus::default() };
    let takes = "2 of 2 hosts accept an old key: h0, h1";
    let failing = format!("{takes}; h1: AddKey: read-only");
    for (paused, keys, expected) in [
        (false, Some(old.clone()), ("False", "Progressing", takes)),
        (true, Some(old), ("False", "Paused", takes)),
        (false, Some(failed), ("False", "KeyRotationFailed", failing.as_str())),
        (false, Some(unknown), ("Unknown", "CredentialsUnavailable", "there is no Secret x")),
        (false, Some(current), ("True", "AsExpected", "2 hosts accept the first key of the list")),
        (false, None, ("", "", "")),
    ] {
        scene.pool.spec.rollout = Some(Rollout { paused: Some(paused), ..Rollout::default() });
        scene.keys = keys;
        let status = scene.status();
        assert_eq!(condition(&status, kind::KEYS_CURRENT), expected);
        assert_eq!(scene.kstatus(&status), "Current", "{expected:?}");
        assert_eq!(condition(&status, kind::READY).0, "True", "{expected:?}");
        // The next case begins with this status.
        scene.pool.status = Some(status);
    }
}
