//! Tests of grants for repairs, and of lost nodes.

use super::*;

fn requested(candidate: Candidate) -> Candidate {
    Candidate { repair_requested: true, ..candidate }
}
fn dead_for(seconds: i64, name: &str) -> Candidate {
    Candidate { down_since: at(-seconds), ..dead(name) }
}
/// Returns these candidates, and four nodes that work.
fn four(candidates: impl IntoIterator<Item = Candidate>) -> Vec<Candidate> {
    candidates.into_iter().chain(["w", "x", "y", "z"].map(node)).collect()
}
fn checked(candidate: Candidate) -> Candidate {
    Candidate { health_check: Some("MachineHealthCheck ns/c".into()), ..candidate }
}

#[test]
fn repairs_and_lost_nodes() {
    use GrantType::{Reboot, Repair, Stage};
    let never = Limits { remediation: RemediationType::None, ..limits() };
    let lost = Limits { ignore_lost_after: Some(Duration::from_hours(1)), ..never.clone() };
    let few = Limits { max_unhealthy: IntOrPercent::Int(1), ..lost.clone() };
    check! {
        "down for long": four([long_dead("a")]) => "a Repair",
        "not for so long": four([dead("a")]) => "",
        "never": four([long_dead("a")]), &never => "",
        "a user requests it": four([requested(dead("a"))]) => "a Repair",
        "and is asked for no cause": four([requested(dead("a"))]), &never => "a Repair",
        "nor while so many are down": [requested(dead("a")), dead("b"), dead("c"), node("d")] => "a Repair",
        "but not while it is paused": four([requested(dead("a"))]), &paused() => "",
        "nor while it is held": four([held(requested(dead("a")))]) => "",
        "paused": four([long_dead("a")]), &paused() => "",
        "waits": four([waiting(granted(long_dead("a"), Repair))]) => "a -",
        "held": four([held(long_dead("a"))]) => "",
        "left to a MachineHealthCheck": four([checked(long_dead("a"))]) => "",
        "which came after the repair was granted": four([checked(granted(long_dead("a"), Repair))]) => "a -",
        "leaves": four([leaving(long_dead("a"))]) => "a Remove",
        "is Ready again": four([granted(node("a"), Repair)]) => "a -",
        "so many at once, the longest first":
            four([long_dead("a"), long_dead("b"), dead_for(900, "c")]) => "a Repair, c Repair",
        "who was tried in vain goes last":
            four([tried(long_dead("a")), tried(long_dead("b")), dead_for(900, "c"),
                dead_for(800, "d")]) => "c Repair, d Repair",
        "those that are at it count":
            four([long_dead("a"), begun(granted(long_dead("b"), Repair)), granted(long_dead("c"), Repair)]) => "",
        "too many are down": [long_dead("a"), granted(long_dead("b"), Repair), dead("c"), node("x")] => "b -",
        "down because of an operation is no sign of trouble":
            [long_dead("a"), changed(granted(dead("b"), Reboot)), changed(granted(dead("c"), Reboot)),
                node("x")] => "a Repair",
        "repaired before it is sent another version": four([to(V2, Stage, old(long_dead("a")))]) => "a Repair",
        "unless that has failed": four([tried(old(long_dead("a")))]) => "a Stage",
        "an update puts it right too": four([staged(old(long_dead("a")))]) => "a Update",
        "a silent node is waited for": four([silent("a"), ready_to_go("b")]), &never => "",
        "but not for ever": four([silent("a"), ready_to_go("b")]), &lost => "b Update",
        "unless the host answers":
            four([Candidate { unreachable: false, ..silent("a") }, ready_to_go("b")]), &lost => "",
        "or there are too many": four([silent("a"), silent("c"), ready_to_go("b")]), &few => "",
    }

    let decision = decide(&four([silent("c"), silent("a")]), &lost, NOW);
    assert_eq!((decision.lost, decision.too_many_unhealthy), (vec!["a".to_string(), "c".to_string()], false));
    let decision = decide(&four([silent("c"), silent("a")]), &few, NOW);
    assert_eq!((decision.lost, decision.too_many_unhealthy), (vec![], true));
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
