//! Tests of the replacement of Machines.

use super::*;
use crate::machines::read::Source;
use api::{MachineGroup, MaintenanceWindow, Mode, Rollout, WindowsNodePoolSpec};
use k8s_openapi::api::core::v1::ObjectReference;

fn machine(name: &str, phase: &str, set: Option<&str>) -> Machine {
    Machine {
        source: Some(Source { group: MachineGroup::OpenShift, namespace: "ns".into(), set: set.map(Into::into) }),
        name: name.into(),
        uid: name.into(),
        windows: true,
        phase: phase.into(),
        ..Machine::default()
    }
}

fn set(replicas: usize) -> MachineSet {
    MachineSet {
        source: Source { group: MachineGroup::OpenShift, namespace: "ns".into(), set: Some("s".into()) },
        windows: true,
        ignored: false,
        replicas,
        user_data: None,
        deleting: false,
        reference: ObjectReference::default(),
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn one_is_replaced_while_all_others_work() {
    let [a, b, c] = ["a", "b", "c"].map(|name| machine(name, "Running", Some("s")));
    let [bad, young] = ["bad", "young"].map(|name| machine(name, "Provisioned", Some("s")));
    let going = Machine { deleting: true, ..machine("going", "Running", Some("s")) };
    let alone = machine("alone", "Provisioned", None);
    let ignored = Machine { ignored: true, ..bad.clone() };
    let (works, down) = (true, false);
    let (no, new, node) =
        (None, Some(Refuses { is_node: false, stays: None }), Some(Refuses { is_node: true, stays: None }));
    let stays = Some(Refuses { is_node: true, stays: Some("paused".into()) });
    let (one, three) = (set(1), set(3));
    let dying = MachineSet { deleting: true, ..set(1) };
    // Columns: name, members (Machine, Node works, host refuses), MachineSet, expected decisions.
    for (about, members, set, expected) in [
        ("no host refuses", vec![(&a, works, &no), (&young, down, &no)], Some(&one), vec![]),
        ("the only one", vec![(&bad, down, &new)], Some(&one), vec![("bad", "")]),
        ("all others work", vec![(&bad, down, &new), (&a, works, &no)], Some(&one), vec![("bad", "")]),
        ("another does not work", vec![(&bad, down, &new), (&a, down, &no)], Some(&one), vec![("bad", "(a)")]),
        ("another is new", vec![(&bad, down, &new), (&young, down, &no)], Some(&one), vec![("bad", "(young)")]),
        (
            "another is being deleted",
            vec![(&bad, down, &new), (&going, works, &no)],
            Some(&one),
            vec![("bad", "(going)")],
        ),
        (
            "two new Machines refuse",
            vec![(&bad, down, &new), (&young, down, &new)],
            Some(&one),
            vec![("bad", "(young)"), ("young", "(bad)")],
        ),
        ("it is already being deleted", vec![(&going, down, &new)], Some(&one), vec![]),
        ("no MachineSet", vec![(&alone, down, &new)], None, vec![("alone", "no MachineSet owns it")]),
        (
            "its MachineSet does not exist",
            vec![(&bad, down, &new)],
            None,
            vec![("bad", "does not exist or is being deleted")],
        ),
        (
            "its MachineSet is being deleted",
            vec![(&bad, down, &new)],
            Some(&dying),
            vec![("bad", "does not exist or is being deleted")],
        ),
        ("ignored", vec![(&ignored, down, &new)], Some(&one), vec![]),
        (
            "nodes that work, in the order of their names",
            vec![(&c, works, &node), (&b, works, &node), (&a, works, &node)],
            Some(&three),
            vec![("a", ""), ("b", "(a), and only one"), ("c", "(a), and only one")],
        ),
        ("only one refuses", vec![(&a, works, &no), (&b, works, &node)], Some(&one), vec![("b", "")]),
        (
            "one is being deleted, and still works",
            vec![(&going, works, &node), (&b, works, &node), (&c, works, &node)],
            Some(&three),
            vec![("b", "(going), and only one"), ("c", "(going), and only one")],
        ),
        (
            "one is deleted, and its replacement does not exist yet",
            vec![(&b, works, &node), (&c, works, &node)],
            Some(&three),
            vec![("b", "2 of 3 Machines"), ("c", "2 of 3 Machines")],
        ),
        (
            "the replacement does not work yet",
            vec![(&b, works, &node), (&c, works, &node), (&young, down, &no)],
            Some(&three),
            vec![("b", "(young)"), ("c", "(young)")],
        ),
        (
            "the replacement refuses as well, and only the replacement is replaced",
            vec![(&b, works, &node), (&c, works, &node), (&young, down, &new)],
            Some(&three),
            vec![("b", "(young)"), ("c", "(young)"), ("young", "")],
        ),
        (
            "the replacement works",
            vec![(&b, works, &node), (&c, works, &node), (&a, works, &no)],
            Some(&three),
            vec![("b", ""), ("c", "(b), and only one")],
        ),
        (
            "the one that does not work is replaced first",
            vec![(&a, works, &node), (&b, down, &node), (&c, works, &node)],
            Some(&three),
            vec![("a", "(b)"), ("b", ""), ("c", "(b)")],
        ),
        (
            "its pool is paused",
            vec![(&a, works, &stays), (&b, works, &node)],
            Some(&one),
            vec![("a", "paused"), ("b", "")],
        ),
        (
            "its pool is paused, and another is being deleted",
            vec![(&a, works, &stays), (&going, down, &no)],
            Some(&one),
            vec![("a", "paused")],
        ),
    ] {
        let members: Vec<Member<'_>> = members
            .into_iter()
            .map(|(machine, works, refuses)| Member { machine, works, refuses: refuses.clone() })
            .collect();
        let verdicts = verdicts(&members, set);
        let seen: Vec<(&str, &str)> = verdicts
            .iter()
            .map(|(m, v)| match v {
                ReplaceDecision::Delete => (m.name.as_str(), ""),
                ReplaceDecision::Restricted(why) => (m.name.as_str(), why.as_str()),
            })
            .collect();
        let same = |seen: &(&str, &str), expected: &(&str, &str)| {
            seen.0 == expected.0 && seen.1.is_empty() == expected.1.is_empty() && seen.1.contains(expected.1)
        };
        assert!(
            seen.len() == expected.len() && seen.iter().zip(&expected).all(|(s, e)| same(s, e)),
            "{about}: {seen:?}"
        );
        assert!(verdicts.iter().filter(|(_, v)| *v == ReplaceDecision::Delete).count() <= 1, "{about}");
    }
}

#[test]
fn a_host_stays_unchanged_while_its_pool_or_a_user_requires_it() {
    let now: Timestamp = "2026-06-03T12:00:00Z".parse().unwrap();
    let window =
        |schedule: &str| MaintenanceWindow { schedule: schedule.into(), duration_seconds: Some(3600), time_zone: None };
    let pool = |mode, paused, windows| {
        let rollout = Rollout { paused: Some(paused), maintenance_windows: windows, ..Rollout::default() };
        let spec = WindowsNodePoolSpec { mode, rollout: Some(rollout), ..WindowsNodePoolSpec::default() };
        WindowsNodePool::new("p", spec)
    };
    let (works, paused) = (pool(None, false, None), pool(None, true, None));
    let until = |time: &str| {
        let rollout = Rollout { paused_until: Some(time.parse().unwrap()), ..Rollout::default() };
        let spec = WindowsNodePoolSpec { rollout: Some(rollout), ..WindowsNodePoolSpec::default() };
        WindowsNodePool::new("p", spec)
    };
    let (later, before) = (until("2026-06-03T12:00:01Z"), until("2026-06-03T12:00:00Z"));
    let plan = pool(Some(Mode::Plan), false, None);
    let open = pool(None, false, Some(vec![window("30 11 * * *")]));
    let closed = pool(None, false, Some(vec![window("0 3 * * *")]));
    let wrong = pool(None, false, Some(vec![window("0 3 * *")]));
    // Columns: name, pool, host on hold, reason why a node stays, reason why a host that is not a node yet stays.
    for (about, pool, held, node, new) in [
        ("no restriction", &works, false, None, None),
        ("on hold", &works, true, Some("on hold"), Some("on hold")),
        ("mode Plan", &plan, false, Some("mode Plan"), Some("mode Plan")),
        ("paused", &paused, false, Some("rollout.paused"), None),
        ("paused until later", &later, false, Some("paused until 2026-06-03T12:00:01Z (rollout.pausedUntil)"), None),
        ("paused until now", &before, false, None, None),
        ("paused and on hold", &paused, true, Some("on hold"), Some("on hold")),
        ("a window is open", &open, false, None, None),
        ("no window is open", &closed, false, Some("the next opens at 2026-06-04T03:00:00Z"), None),
        ("a malformed window", &wrong, false, Some("must have five fields"), None),
    ] {
        for (is_node, expected) in [(true, node), (false, new)] {
            let why = stays(pool, held, is_node, now);
            assert_eq!(why.is_some(), expected.is_some(), "{about}, {is_node}: {why:?}");
            assert!(why.unwrap_or_default().contains(expected.unwrap_or_default()), "{about}, {is_node}");
        }
    }
}
