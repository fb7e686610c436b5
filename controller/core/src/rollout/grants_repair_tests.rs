//! Tests of grants for repairs, and of lost nodes.

use super::*;

fn requested(candidate: Candidate) -> Candidate {
    Candidate { repair_requested: true, ..candidate }
}
fn dead_for(seconds: i64, name: &str) -> Candidate {
    Candidate { down_since: at(-seconds), ..dead(name) }
}
/// Returns these candidates and four available nodes.
fn with_four(candidates: impl IntoIterator<Item = Candidate>) -> Vec<Candidate> {
    candidates.into_iter().chain(["w", "x", "y", "z"].map(node)).collect()
}
fn checked(candidate: Candidate) -> Candidate {
    Candidate { health_check: Some("MachineHealthCheck ns/c".into()), ..candidate }
}

#[test]
fn nodes_are_repaired_within_the_limits_and_lost_nodes_are_not_waited_for() {
    use GrantType::{Reboot, Repair, Stage};
    let never = Limits { remediation: RemediationType::None, ..limits() };
    let lost = Limits { ignore_lost_after: Some(Duration::from_hours(1)), ..never.clone() };
    let few = Limits { max_unhealthy: IntOrPercent::Int(1), ..lost.clone() };
    check! {
        "a node that has not been Ready for a long time is repaired": with_four([long_dead("a")]) => "a Repair",
        "a node that has not been Ready for a short time is not repaired": with_four([dead("a")]) => "",
        "without a remediation, no node is repaired": with_four([long_dead("a")]), &never => "",
        "a requested repair does not wait": with_four([requested(dead("a"))]) => "a Repair",
        "a requested repair needs no remediation": with_four([requested(dead("a"))]), &never => "a Repair",
        "a requested repair begins even if too many nodes are not Ready": [requested(dead("a")), dead("b"), dead("c"), node("d")] => "a Repair",
        "a requested repair does not begin in a paused pool": with_four([requested(dead("a"))]), &paused() => "",
        "a requested repair does not begin on a node on hold": with_four([held(requested(dead("a")))]) => "",
        "no repair begins in a paused pool": with_four([long_dead("a")]), &paused() => "",
        "the grant of a node in backoff is revoked": with_four([waiting(granted(long_dead("a"), Repair))]) => "a -",
        "a node on hold is not repaired": with_four([held(long_dead("a"))]) => "",
        "a node with a MachineHealthCheck is not repaired": with_four([checked(long_dead("a"))]) => "",
        "a granted repair is revoked when there is a MachineHealthCheck": with_four([checked(granted(long_dead("a"), Repair))]) => "a -",
        "a leaving node is removed": with_four([leaving(long_dead("a"))]) => "a Remove",
        "the grant of a node that is Ready again is revoked": with_four([granted(node("a"), Repair)]) => "a -",
        "no more nodes than the limit are repaired, those that are down the longest first":
            with_four([long_dead("a"), long_dead("b"), dead_for(900, "c")]) => "a Repair, c Repair",
        "nodes whose repair failed come last":
            with_four([tried(long_dead("a")), tried(long_dead("b")), dead_for(900, "c"),
                dead_for(800, "d")]) => "c Repair, d Repair",
        "begun and granted repairs count":
            with_four([long_dead("a"), begun(granted(long_dead("b"), Repair)), granted(long_dead("c"), Repair)]) => "",
        "no node is repaired while too many are not Ready": [long_dead("a"), granted(long_dead("b"), Repair), dead("c"), node("x")] => "b -",
        "nodes that are not Ready because of an operation do not count as too many":
            [long_dead("a"), changed(granted(dead("b"), Reboot)), changed(granted(dead("c"), Reboot)),
                node("x")] => "a Repair",
        "a repair comes before the copying of files": with_four([to(V2, Stage, old(long_dead("a")))]) => "a Repair",
        "files are copied to a node whose repair failed": with_four([tried(old(long_dead("a")))]) => "a Stage",
        "an update comes before a repair": with_four([staged(old(long_dead("a")))]) => "a Update",
        "a rollout waits for a silent node": with_four([silent("a"), ready_to_go("b")]), &never => "",
        "a rollout does not wait for a lost node": with_four([silent("a"), ready_to_go("b")]), &lost => "b Update",
        "a node whose host answers does not count as lost":
            with_four([Candidate { unreachable: false, ..silent("a") }, ready_to_go("b")]), &lost => "",
        "if too many nodes are silent for a long time, none counts as lost": with_four([silent("a"), silent("c"), ready_to_go("b")]), &few => "",
    }

    let decision = decide(&with_four([silent("c"), silent("a")]), &lost, NOW);
    assert_eq!((decision.lost, decision.too_many_unhealthy), (vec!["a".to_string(), "c".to_string()], false));
    let decision = decide(&with_four([silent("c"), silent("a")]), &few, NOW);
    assert_eq!((decision.lost, decision.too_many_unhealthy), (vec![], true));
    let begins = |name| begun(granted(silent(name), GrantType::Update));
    let decision = decide(&with_four([begins("c"), begins("a")]), &few, NOW);
    assert_eq!((decision.lost, decision.too_many_unhealthy), (vec![], true), "changes that cut hosts off");
    // Leaving nodes keep no other node from its repair.
    let leaves = |name| Candidate { leaving: true, ..silent(name) };
    let decision = decide(&with_four([leaves("c"), leaves("a")]), &few, NOW);
    assert_eq!((decision.lost, decision.too_many_unhealthy), (vec![], false));
}

#[test]
fn a_repair_restarts_the_host_if_the_pool_says_so() {
    use RemediationType::{Reboot, Reconfigure};
    for (remediation, expected) in [(Reconfigure, None), (Reboot, Some(Disruption::Reboot))] {
        let limits = Limits { remediation, ..limits() };
        let candidates = [long_dead("a"), node("b"), node("c"), node("d")];
        let granting = decide(&candidates, &limits, NOW).changes.remove("a").flatten().unwrap();
        assert_eq!((granting.type_, granting.disruption), (GrantType::Repair, expected));
    }
}
