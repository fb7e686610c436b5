//! Tests of grants for maintenance.

use super::*;
use crate::node::maintenance::By;

fn asks(candidate: Candidate) -> Candidate {
    Candidate { maintenance: Some(By::Host), ..candidate }
}

#[test]
fn maintenance() {
    use GrantType::{Maintenance, Stage};
    let by_person = |candidate| Candidate { maintenance: Some(By::Person), ..candidate };
    let any_unhealthy = || Limits { max_unhealthy: IntOrPercent::Percent(100), ..limits() };
    let draining = |name: &str| begun(granted(asks(cordoned(node(name))), Maintenance));
    let drained = |name: &str| changed(draining(name));
    let closed_and_gated = Limits { open: false, ..gated(0) };
    check! {
        "one at a time": [asks(node("a")), asks(node("b"))] => "a Maintenance",
        "what users request goes first": [asks(node("a")), by_person(node("b"))] => "b Maintenance",
        "no window and no step is asked": [asks(node("a"))], &closed_and_gated => "a Maintenance",
        "a pause is": [asks(node("a"))], &paused() => "",
        "and a hold": [asks(held(node("a")))] => "",
        "it has its place": [drained("a"), asks(node("b"))] => "",
        "and keeps it when it goes silent":
            [Candidate { down_since: at(-3600), unreachable: true, ready: false, ..drained("a") },
                asks(node("b"))], &Limits { ignore_lost_after: Some(Duration::from_mins(1)), ..any_unhealthy() } => "",
        "it is not updated": [old(drained("a")), node("b")] => "",
        "before updates": [ready_to_go("a"), asks(node("b"))] => "b Maintenance",
        "beside them": [ready_to_go("a"), asks(node("b"))], &up_to(2) => "a Update, b Maintenance",
        "after removals": [leaving(node("a")), asks(node("b"))] => "a Remove",
        "the removal of its host goes on": [leaving(drained("a")), node("b")] => "a Remove",
        "what is sent ahead waits": [asks(to(V2, Stage, old(node("a"))))] => "a Maintenance",
        "withdrawn before it began": [granted(node("a"), Maintenance)] => "a -",
        "withdrawn before it is drained": [Candidate { maintenance: None, ..draining("a") }] => "a -",
        "a pause before it is drained": [draining("a")], &paused() => "a -",
        "withdrawn when it is drained": [Candidate { maintenance: None, ..drained("a") }] => "",
        "a pause when it is drained": [drained("a")], &paused() => "",
        "a hold when it is drained": [held(drained("a")), asks(node("b"))] => "",
        "a node that is down has nothing to lose":
            [asks(dead("a")), asks(dead("b")), node("c")], &any_unhealthy() => "a Maintenance, b Maintenance",
        "it waits after a failure": [asks(waiting(node("a"))), asks(node("b"))] => "b Maintenance",
        "what WMCO made stays": [asks(Candidate { withheld: true, ..old(node("a")) })] => "",
        "a host that joins": [asks(granted(new("a"), GrantType::Provision))] => "",
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
        "after an update": [again(-9, "a"), ready_to_go("b")] => "b Update",
        "its own, too": [again(-9, "a"), staged(old(again(-9, "b")))] => "b Update",
        "which waits for no images":
            [Candidate { wants_images: true, ..staged(old(again(-9, "a"))) }] => "a Update",
        "it is sent ahead, and none may begin":
            [to(V2, Stage, staged(old(again(-9, "a"))))], &closed() => "a Maintenance",
        "unless none may begin": [again(-9, "a"), ready_to_go("b")], &closed() => "a Maintenance",
        "a user may": [by_person(again(-9, "a")), ready_to_go("b")] => "a Maintenance",
        "after the first request of another": [again(-9, "a"), asks(node("b"))] => "b Maintenance",
        "after one whose last is longer ago": [again(-5, "a"), again(-9, "b")] => "b Maintenance",
        "a grant does not move": [granted(again(-9, "a"), Maintenance), ready_to_go("b")] => "",
        "a used one gives its place back": [used(again(0, "a")), ready_to_go("b")] => "a -",
    }
}

/// Covers hosts that only begin and end their maintenance.
#[test]
fn no_host_keeps_the_others_from_their_turn() {
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
fn maintenance_and_repair() {
    use GrantType::{Maintenance, Repair};
    let drained = |name: &str| changed(granted(asks(cordoned(node(name))), Maintenance));
    check! {
        "it is not repaired":
            [Candidate { ready: false, down_since: at(-3600), ..drained("a") }, node("b")] => "",
        "nor is a node for which it is requested":
            [asks(waiting(Candidate { down_since: at(-3600), ..dead("a") })), node("b")] => "",
        "it goes before a repair that has changed nothing":
            [begun(granted(asks(Candidate { down_since: at(-3600), ..dead("a") }), Repair)), node("b"),
                node("c")] => "a Maintenance",
        "it takes no place of a broken node":
            [drained("a"), asks(dead("b")), node("c"), node("d")],
            &Limits { max_concurrent: 1, ..limits() } => "b Maintenance",
    }
}
