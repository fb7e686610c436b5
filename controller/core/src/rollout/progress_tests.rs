//! Tests of rollouts from beginning to end.

use proptest::prelude::*;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pause(nodes: IntOrPercent, seconds: i32) -> RolloutStep {
    RolloutStep { nodes, pause_seconds: Some(seconds), approval: None }
}

fn approval(nodes: IntOrPercent) -> RolloutStep {
    RolloutStep { nodes, pause_seconds: None, approval: Some(true) }
}

/// Returns the steps of a rollout: one node and 15 minutes, then a tenth and an approval.
fn steps() -> Vec<RolloutStep> {
    vec![pause(IntOrPercent::Int(1), 900), approval(IntOrPercent::Percent(10))]
}

fn settings<'a>(steps: &'a [RolloutStep], approved: &'a [&'a str], action: FailureAction) -> Settings<'a> {
    Settings { steps, approved, max_failures: IntOrPercent::Int(2), action }
}

/// Returns the progress to v2 with the [`steps`].
fn progress(before: &RolloutStatus, seen: &ObservedNodes, approved: &[&str], action: FailureAction) -> Progress {
    course(Some(before), "v2", seen, settings(&steps(), approved, action), at(1000))
}

/// Returns a hundred nodes: `changed` nodes follow v2 and are available, and `failed` nodes have failed.
fn seen(changed: u32, failed: u32) -> ObservedNodes {
    ObservedNodes { total: 100, changed, following: changed, failed, current: Some("v1".into()), foreign: false }
}

/// Returns a rollout in progress from v1 to v2.
fn on_its_way(step: i32, reached: Option<i64>) -> RolloutStatus {
    RolloutStatus {
        from_version: Some("v1".into()),
        to_version: "v2".into(),
        start_time: at(0).into(),
        step,
        step_reached_time: reached.map(|s| at(s).into()),
        ..RolloutStatus::default()
    }
}

fn completed(version: &str) -> RolloutStatus {
    RolloutStatus { completed: true, step: 2, to_version: version.into(), ..RolloutStatus::default() }
}

#[test]
fn a_rollout_begins_with_a_new_version() {
    let nobody = ObservedNodes::default();
    let failed = RolloutStatus { rolled_back: true, ..on_its_way(1, None) };
    for (name, before, rendered, seen, from, step, is_completed) in [
        ("the first rollout of a pool without nodes", None, "v1", nobody.clone(), None, 2, true),
        ("the first rollout, all nodes follow the version", None, "v1", seen(100, 0), None, 2, true),
        ("the first rollout, most nodes follow the version", None, "v1", seen(98, 0), None, 0, false),
        ("the first rollout, all nodes follow another version", None, "v2", seen(0, 0), Some("v1"), 0, false),
        ("after a completed rollout", Some(completed("v1")), "v2", seen(0, 0), Some("v1"), 0, false),
        ("in a pool that has lost its nodes", Some(completed("v1")), "v2", nobody, Some("v1"), 2, true),
        (
            "the first rollout, with nodes of another operator",
            None,
            "v2",
            ObservedNodes { foreign: true, ..seen(0, 0) },
            None,
            0,
            false,
        ),
        (
            "nodes of another operator join a pool without nodes",
            Some(RolloutStatus { start_time: at(0).into(), ..completed("v2") }),
            "v2",
            ObservedNodes { foreign: true, ..seen(0, 0) },
            None,
            0,
            false,
        ),
        ("during another rollout", Some(on_its_way(1, Some(5))), "v3", seen(0, 0), Some("v1"), 0, false),
        ("after a rollout that was rolled back", Some(failed.clone()), "v3", seen(0, 0), Some("v1"), 0, false),
        (
            "back to the version that the rollout began with",
            Some(on_its_way(1, Some(5))),
            "v1",
            seen(90, 0),
            Some("v1"),
            2,
            false,
        ),
        ("a user reverts the version after the rollback", Some(failed), "v1", seen(100, 0), Some("v1"), 2, true),
        ("the same rollout continues", Some(on_its_way(1, None)), "v2", seen(5, 0), Some("v1"), 1, false),
    ] {
        let course = course(before.as_ref(), rendered, &seen, settings(&steps(), &[], FailureAction::Pause), at(10));
        let status = course.status.unwrap();
        assert_eq!(
            (status.from_version.as_deref(), status.step, status.completed),
            (from, step, is_completed),
            "{name}"
        );
        assert_eq!(
            (status.to_version.as_str(), course.target.as_str(), status.rolled_back),
            (rendered, rendered, false),
            "{name}"
        );
        let goes_on = before.is_some_and(|b| b.to_version == rendered);
        assert_eq!(status.start_time, at(if goes_on { 0 } else { 10 }).into(), "{name}");
    }
}

#[test]
fn steps_are_passed_when_their_conditions_are_met() {
    use BlockedBy::None as Free;
    let soaking = |s| BlockedBy::Soaking { until: at(s) };
    for (name, before, seen, approved, step, reached, limit, hold) in [
        ("no node follows yet", on_its_way(0, None), seen(0, 0), &[][..], 0, None, Some(1), Free),
        ("the first node follows", on_its_way(0, None), seen(1, 0), &[], 0, Some(1000), Some(1), soaking(1900)),
        (
            "a clock that was years ahead recorded the start of the pause",
            on_its_way(0, Some(400_000_000)),
            seen(1, 0),
            &[],
            0,
            Some(1000),
            Some(1),
            soaking(1900),
        ),
        ("the pause is not over", on_its_way(0, Some(101)), seen(1, 0), &[], 0, Some(101), Some(1), soaking(1001)),
        ("the pause is over", on_its_way(0, Some(100)), seen(1, 0), &[], 1, None, Some(10), Free),
        (
            "the pause is over, but no node follows",
            on_its_way(0, Some(100)),
            seen(0, 0),
            &[],
            0,
            Some(100),
            Some(1),
            Free,
        ),
        ("the first failed: another is tried", on_its_way(0, None), seen(0, 1), &[], 0, None, Some(2), Free),
        (
            "an approval does not end a pause",
            on_its_way(0, None),
            seen(1, 0),
            &["v2"],
            0,
            Some(1000),
            Some(1),
            soaking(1900),
        ),
        (
            "a tenth of the nodes follow",
            on_its_way(1, None),
            seen(10, 0),
            &[],
            1,
            Some(1000),
            Some(10),
            BlockedBy::Approval,
        ),
        (
            "other versions are approved",
            on_its_way(1, Some(1)),
            seen(10, 0),
            &["v1", "v3"],
            1,
            Some(1),
            Some(10),
            BlockedBy::Approval,
        ),
        ("the version is approved", on_its_way(1, Some(1)), seen(10, 0), &["v2"], 2, None, None, Free),
        ("approved before enough nodes follow", on_its_way(1, None), seen(9, 0), &["v2"], 1, None, Some(10), Free),
        ("both steps are passed at once", on_its_way(0, Some(100)), seen(10, 0), &["v2"], 2, None, None, Free),
        ("after the last step", on_its_way(2, None), seen(50, 1), &[], 2, None, None, Free),
        ("steps were removed", on_its_way(7, None), seen(50, 1), &[], 2, None, None, Free),
        (
            "the only node of a small pool has failed",
            on_its_way(0, None),
            ObservedNodes { total: 1, failed: 1, following: 0, ..seen(0, 0) },
            &[],
            2,
            None,
            None,
            Free,
        ),
        (
            "an unknown time counts from now",
            RolloutStatus { step_reached_time: Some(Time::default()), ..on_its_way(0, None) },
            seen(1, 0),
            &[],
            0,
            Some(1000),
            Some(1),
            soaking(1900),
        ),
    ] {
        let course = progress(&before, &seen, approved, FailureAction::Pause);
        let status = course.status.unwrap();
        assert_eq!((status.step, status.step_reached_time), (step, reached.map(|s| at(s).into())), "{name}");
        let next = if let BlockedBy::Soaking { until } = hold { Some(until) } else { None };
        assert_eq!((course.gate, course.next), (UpdateLimit { limit, hold }, next), "{name}");
    }
}

#[test]
fn a_rollout_is_completed_when_all_nodes_follow_the_version_or_have_failed() {
    let follows = |following, failed| ObservedNodes {
        following,
        current: Some("v2".into()),
        ..seen(following.saturating_sub(1), failed)
    };
    for (name, before, seen, action, expected) in [
        ("one node does not follow", on_its_way(2, None), follows(99, 0), FailureAction::Pause, false),
        (
            "all nodes follow, though one is not available",
            on_its_way(0, None),
            follows(100, 0),
            FailureAction::Pause,
            true,
        ),
        (
            "all nodes follow except for one that has failed",
            on_its_way(2, None),
            follows(99, 1),
            FailureAction::Pause,
            true,
        ),
        ("too many nodes have failed", on_its_way(2, None), follows(98, 2), FailureAction::Pause, false),
        ("failures do not stop the rollout", on_its_way(2, None), follows(90, 10), FailureAction::Continue, true),
        ("other nodes join after the end", completed("v2"), follows(50, 0), FailureAction::Pause, true),
        (
            "no node is left for now",
            on_its_way(1, None),
            ObservedNodes { total: 0, ..follows(0, 0) },
            FailureAction::Pause,
            false,
        ),
    ] {
        let course = progress(&before, &seen, &[], action);
        let status = course.status.unwrap();
        assert_eq!(status.completed, expected, "{name}");
        if expected {
            assert_eq!((status.step, status.step_reached_time, course.gate.limit), (2, None, None), "{name}");
        }
    }
}

#[test]
fn too_many_failures_stop_the_rollout_or_roll_it_back() {
    use FailureAction::{Continue, Pause, Rollback};
    let limit = |failed, rolled_back| BlockedBy::FailureLimit { failed, rolled_back };
    let rolled_back = RolloutStatus { rolled_back: true, ..on_its_way(2, None) };
    let first = RolloutStatus { from_version: None, ..on_its_way(2, None) };
    let back = RolloutStatus { from_version: Some("v2".into()), ..on_its_way(2, None) };
    for (name, before, failed, action, target, gate) in [
        ("fewer failures than the limit", on_its_way(2, None), 1, Rollback, "v2", (None, BlockedBy::None)),
        ("the rollout stops", on_its_way(2, None), 2, Pause, "v2", (Some(0), limit(2, false))),
        ("the rollout is rolled back", on_its_way(2, None), 2, Rollback, "v1", (None, limit(2, true))),
        ("the rollout continues", on_its_way(2, None), 9, Continue, "v2", (None, BlockedBy::None)),
        ("a rollback stays in force without failures", rolled_back.clone(), 0, Pause, "v1", (None, limit(0, true))),
        ("there is no previous version", first, 2, Rollback, "v2", (Some(0), limit(2, false))),
        ("the previous version is the target itself", back, 2, Rollback, "v2", (Some(0), limit(2, false))),
        ("the rollout was completed", completed("v2"), 2, Rollback, "v2", (Some(0), limit(2, false))),
    ] {
        let current = if before.completed { "v2" } else { "v1" };
        let seen = ObservedNodes { current: Some(current.into()), ..seen(50, failed) };
        let course = progress(&before, &seen, &["v2"], action);
        assert_eq!((course.target.as_str(), (course.gate.limit, course.gate.hold)), (target, gate), "{name}");
        assert_eq!(course.status.unwrap().rolled_back, target == "v1", "{name}");
    }
    let again = course(Some(&rolled_back), "v3", &seen(0, 0), settings(&steps(), &[], Rollback), at(1000));
    assert_eq!((again.target.as_str(), again.gate.limit), ("v3", Some(1)));
}

prop_compose! {
    fn any_step()(nodes in prop_oneof![(1..20u32).prop_map(IntOrPercent::Int), (1..=100u32).prop_map(IntOrPercent::Percent)], seconds in 0..300i32, approves: bool) -> RolloutStep {
        if approves { approval(nodes) } else { pause(nodes, seconds) }
    }
}

proptest! {
    /// Checks that a rollout passes its steps in order, and none whose condition is not met, whatever happens to the nodes.
    #[test]
    fn no_step_is_passed_without_its_condition(
        steps in proptest::collection::vec(any_step(), 0..5),
        looks in proptest::collection::vec((0..60i64, 0..20u32, 0..3u32, 0..4u8), 1..40),
    ) {
        let mut before = on_its_way(0, None);
        let mut now = 0;
        let mut reached_at = vec![None; steps.len()];
        for (passed, changed, failed, approves) in looks {
            now += passed;
            let seen = ObservedNodes { total: 20, changed: changed.min(20 - failed), following: changed.min(19 - failed), failed, ..seen(0, 0) };
            let approved: &[&str] = match approves { 0 => &["v2"], 1 => &["v1", "v3"], _ => &[] };
            let settings = Settings { max_failures: IntOrPercent::Int(3), ..settings(&steps, approved, FailureAction::Pause) };
            let course = course(Some(&before), "v2", &seen, settings, at(now));
            let status = course.status.clone().unwrap();
            prop_assert!(status.step >= before.step);
            let (first, after) = (usize::try_from(before.step).unwrap(), usize::try_from(status.step).unwrap());
            for (index, step) in steps.iter().enumerate().take(after).skip(first) {
                let enough = seen.changed >= step.nodes.of(20).min(20 - failed);
                prop_assert!(enough, "step {index}: {seen:?}");
                let reached = *reached_at[index].get_or_insert(now);
                match step.pause_seconds {
                    Some(seconds) => prop_assert!(now - reached >= i64::from(seconds), "step {index}"),
                    None => prop_assert!(approved.contains(&"v2"), "step {index}"),
                }
            }
            if let Some(step) = steps.get(after) {
                if seen.changed >= step.nodes.of(20).min(20 - failed) {
                    reached_at[after].get_or_insert(now);
                    prop_assert!(course.gate.hold != BlockedBy::None);
                }
                prop_assert_eq!(course.gate.limit, Some(step.nodes.of(20) + failed));
            } else {
                prop_assert_eq!(&course.gate, &UpdateLimit::default());
            }
            prop_assert!(course.next.is_none_or(|next| next > at(now)));
            // The same state gives the same result again.
            let again = super::course(Some(&status), "v2", &seen, settings, at(now));
            prop_assert_eq!(&again, &course);
            before = status;
        }
    }
}

#[test]
fn hosts_that_join_get_no_version_that_is_gated() {
    use FailureAction::{Pause, Rollback};
    let first = RolloutStatus { from_version: None, ..on_its_way(0, None) };
    for (name, before, seen, action, open, expected) in [
        ("no node has tried it", on_its_way(0, None), seen(0, 0), Pause, true, "v1"),
        ("it is soaking", on_its_way(0, Some(990)), seen(1, 0), Pause, true, "v1"),
        ("it waits for approval", on_its_way(1, None), seen(10, 0), Pause, true, "v1"),
        ("all nodes may follow", on_its_way(2, None), seen(20, 0), Pause, true, "v2"),
        ("all nodes may follow, but no window is open", on_its_way(2, None), seen(20, 0), Pause, false, "v1"),
        ("it has failed", on_its_way(2, None), seen(50, 2), Pause, true, "v1"),
        ("it is rolled back", on_its_way(2, None), seen(50, 2), Rollback, true, "v1"),
        ("the first version of the pool", first, seen(0, 0), Pause, true, "v2"),
        (
            "all nodes follow it",
            RolloutStatus { from_version: Some("v1".into()), ..completed("v2") },
            ObservedNodes { current: Some("v2".into()), ..seen(100, 0) },
            Pause,
            false,
            "v2",
        ),
    ] {
        let course = progress(&before, &seen, &[], action);
        assert_eq!(course.in_force(open), expected, "{name}");
    }
}

#[test]
fn a_rollout_that_begins_again_goes_back_to_the_version_of_the_nodes() {
    let over = RolloutStatus { from_version: Some("v0".into()), ..completed("v2") };
    let moved_in = |version: &str, foreign| ObservedNodes { current: Some(version.into()), foreign, ..seen(40, 0) };
    for (name, seen, from) in [
        ("hosts have moved from another pool", moved_in("v1", false), Some("v1")),
        ("nodes of another operator were adopted", moved_in("10.19", true), None),
    ] {
        let status = progress(&over, &seen, &[], FailureAction::Rollback).status.unwrap();
        assert_eq!((status.from_version.as_deref(), status.completed), (from, false), "{name}");
    }
}

#[test]
fn a_version_is_astray_if_it_is_neither_the_target_nor_the_previous_one() {
    let at_v3 = RolloutStatus { to_version: "v3".into(), ..on_its_way(0, None) };
    let course = course(Some(&at_v3), "v3", &seen(0, 0), settings(&steps(), &[], FailureAction::Pause), at(1000));
    assert_eq!(["v1", "v2", "v3"].map(|v| course.is_astray(v)), [false, true, false]);
    let first = Progress { status: Some(RolloutStatus { from_version: None, ..at_v3 }), ..course };
    assert!(!first.is_astray("v1"), "without a previous version, no version is astray");
}

proptest! {
    /// Checks that a joining host gets the new version only when all may have it, whatever happens to the nodes, and whatever a user approves.
    #[test]
    fn joiners_never_get_a_gated_version(
        steps in proptest::collection::vec(any_step(), 0..5),
        looks in proptest::collection::vec((0..60i64, 0..20u32, 0..4u32, 0..4u8, any::<bool>()), 1..40),
        action in proptest::sample::select(vec![FailureAction::Pause, FailureAction::Rollback, FailureAction::Continue]),
    ) {
        let mut before = on_its_way(0, None);
        let mut now = 0;
        for (passed, changed, failed, approves, open) in looks {
            now += passed;
            let seen = ObservedNodes { total: 20, changed: changed.min(20 - failed), following: changed.min(19 - failed), failed, ..seen(0, 0) };
            let approved: &[&str] = if approves == 0 { &["v2"] } else { &["v1"] };
            let settings = Settings { max_failures: IntOrPercent::Int(3), ..settings(&steps, approved, action) };
            let course = course(Some(&before), "v2", &seen, settings, at(now));
            let status = course.status.clone().unwrap();
            let gets_new = course.in_force(open) == "v2";
            let stopped = failed >= 3 && action != FailureAction::Continue;
            let through = usize::try_from(status.step).unwrap() >= steps.len();
            prop_assert!(!gets_new || status.completed || (open && through && !stopped && !status.rolled_back), "{:?}", course);
            before = status;
        }
    }
}
