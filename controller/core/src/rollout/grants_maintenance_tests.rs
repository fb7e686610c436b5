//! Tests of grants for maintenance.

use super::*;
use crate::node::maintenance::By;

fn asks(candidate: Candidate) -> Candidate {
    Candidate { maintenance: Some(By::Host), ..candidate }
}

#[test]
fn maintenance_is_granted_within_the_limits() {
    use GrantType::{Maintenance, Stage};
    let by_person = |candidate| Candidate { maintenance: Some(By::Person), ..candidate };
    let any_unhealthy = || Limits { max_unhealthy: IntOrPercent::Percent(100), ..limits() };
    let draining = |name: &str| begun(granted(asks(cordoned(node(name))), Maintenance));
    let drained = |name: &str| changed(draining(name));
    let closed_and_gated = Limits { open: false, ..gated(0) };
    check! {
        "one at a time": [asks(node("a")), asks(node("b"))] => "a Maintenance",
        "a request of a user on the instance comes first": [asks(node("a")), by_person(node("b"))] => "b Maintenance",
        "neither a window nor a rollout step is needed": [asks(node("a"))], &closed_and_gated => "a Maintenance",
        "it does not begin in a paused pool": [asks(node("a"))], &paused() => "",
        "it does not begin on a node on hold": [asks(held(node("a")))] => "",
        "it uses up the budget": [drained("a"), asks(node("b"))] => "",
        "it keeps its slot when the node and the host do not respond":
            [Candidate { down_since: at(-3600), unreachable: true, ready: false, ..drained("a") },
                asks(node("b"))], &Limits { ignore_lost_after: Some(Duration::from_mins(1)), ..any_unhealthy() } => "",
        "the node is not updated during its maintenance": [old(drained("a")), node("b")] => "",
        "it comes before updates": [ready_to_go("a"), asks(node("b"))] => "b Maintenance",
        "an update begins, too, if the budget allows": [ready_to_go("a"), asks(node("b"))], &up_to(2) => "a Update, b Maintenance",
        "it comes after removals": [leaving(node("a")), asks(node("b"))] => "a Remove",
        "its host can be removed": [leaving(drained("a")), node("b")] => "a Remove",
        "it comes before the copying of files": [asks(to(V2, Stage, old(node("a"))))] => "a Maintenance",
        "a request withdrawn before the maintenance begins revokes the grant": [granted(node("a"), Maintenance)] => "a -",
        "a request withdrawn before the end of the drain revokes the grant": [Candidate { maintenance: None, ..draining("a") }] => "a -",
        "a pause before the end of the drain revokes the grant": [draining("a")], &paused() => "a -",
        "a request withdrawn after the drain does not revoke the grant": [Candidate { maintenance: None, ..drained("a") }] => "",
        "a pause after the drain does not revoke the grant": [drained("a")], &paused() => "",
        "a hold after the drain does not revoke the grant": [held(drained("a")), asks(node("b"))] => "",
        "nodes that are not Ready are not charged to maxUnavailable":
            [asks(dead("a")), asks(dead("b")), node("c")], &any_unhealthy() => "a Maintenance, b Maintenance",
        "a node in backoff waits": [asks(waiting(node("a"))), asks(node("b"))] => "b Maintenance",
        "an adopted node whose change is not accepted gets no grant": [asks(Candidate { withheld: true, ..old(node("a")) })] => "",
        "a joining host gets no grant": [asks(granted(new("a"), GrantType::Provision))] => "",
    }
}

/// Covers a host that ends its maintenance and requests the next one at once, again and again.
#[test]
fn a_host_that_requests_its_maintenance_again_comes_after_updates() {
    use GrantType::{Maintenance, Stage};
    let again = |second, name: &str| Candidate { maintained_at: at(second), ..asks(node(name)) };
    let by_person = |candidate| Candidate { maintenance: Some(By::Person), ..candidate };
    let used = |candidate| Candidate { grant_used: true, ..granted(candidate, Maintenance) };
    check! {
        "it comes after the update of another node": [again(-9, "a"), ready_to_go("b")] => "b Update",
        "it comes after the update of a node that requests it, too": [again(-9, "a"), staged(old(again(-9, "b")))] => "b Update",
        "that update does not wait for images":
            [Candidate { wants_images: true, ..staged(old(again(-9, "a"))) }] => "a Update",
        "in a closed window, it replaces a grant to stage":
            [to(V2, Stage, staged(old(again(-9, "a"))))], &closed() => "a Maintenance",
        "in a closed window, it does not wait for updates": [again(-9, "a"), ready_to_go("b")], &closed() => "a Maintenance",
        "a repeated request of a user on the instance comes before updates": [by_person(again(-9, "a")), ready_to_go("b")] => "a Maintenance",
        "it comes after the first request of another node": [again(-9, "a"), asks(node("b"))] => "b Maintenance",
        "the node whose last maintenance ended first comes first": [again(-5, "a"), again(-9, "b")] => "b Maintenance",
        "a grant that is not used stays": [granted(again(-9, "a"), Maintenance), ready_to_go("b")] => "",
        "a used grant is revoked": [used(again(0, "a")), ready_to_go("b")] => "a -",
    }
}

/// Covers hosts that only begin and end their maintenance.
#[test]
fn repeated_requests_do_not_keep_other_nodes_from_their_turn() {
    let mut pool = vec![asks(node("a")), asks(node("b")), ready_to_go("c"), ready_to_go("d")];
    let mut turns = Vec::new();
    for second in 0..16 {
        for (name, change) in decide(&pool, &limits(), NOW).changes {
            let candidate = pool.iter_mut().find(|s| s.name == name).unwrap();
            (candidate.grant, candidate.grant_used) = (change.as_ref().map(|g| g.type_), false);
            candidate.grant_version = change.as_ref().and_then(|g| g.version.clone());
            candidate.grant_disruption = change.as_ref().and_then(|g| g.disruption);
        }
        for candidate in pool.iter_mut().filter(|s| s.grant.is_some() && !s.grant_used) {
            turns.push(candidate.name.clone());
            candidate.grant_used = true;
            if candidate.grant == Some(GrantType::Maintenance) {
                candidate.maintained_at = at(second);
            } else {
                candidate.change = None;
            }
        }
    }
    assert_eq!(turns, ["a", "b", "c", "d", "a", "b", "a", "b"]);
}

#[test]
fn maintenance_comes_before_repairs() {
    use GrantType::{Maintenance, Repair};
    let drained = |name: &str| changed(granted(asks(cordoned(node(name))), Maintenance));
    check! {
        "a node in maintenance is not repaired":
            [Candidate { ready: false, down_since: at(-3600), ..drained("a") }, node("b")] => "",
        "a node whose maintenance is requested is not repaired":
            [asks(waiting(Candidate { down_since: at(-3600), ..dead("a") })), node("b")] => "",
        "maintenance replaces a repair that has changed nothing":
            [begun(granted(asks(Candidate { down_since: at(-3600), ..dead("a") }), Repair)), node("b"),
                node("c")] => "a Maintenance",
        "a drained node does not count against the limit for nodes that are not Ready":
            [drained("a"), asks(dead("b")), node("c"), node("d")],
            &Limits { max_concurrent: 1, ..limits() } => "b Maintenance",
    }
}
