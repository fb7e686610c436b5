//! Tests of grants for many states of a pool.

use jiff::SignedDuration;

use super::*;
use crate::node::maintenance::By;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const V2: &str = "2-b";

pub(super) fn limits() -> Limits {
    Limits {
        max_concurrent: 2,
        max_pulling: 2,
        max_unavailable: IntOrPercent::Int(1),
        paused: false,
        orphan: false,
        open: true,
        order: Order::Name,
        ignore_lost_after: None,
        gate: UpdateLimit::default(),
        remediation: RemediationType::Reconfigure,
        not_ready_after: Duration::from_mins(10),
        max_unhealthy: IntOrPercent::Percent(50),
        others: None,
        joins: true,
    }
}

fn at(second: i64) -> Option<Timestamp> {
    Timestamp::from_second(second).ok()
}
fn new(name: &str) -> Candidate {
    Candidate { name: name.into(), ..Candidate::default() }
}
fn node(name: &str) -> Candidate {
    Candidate { joined: true, ready: true, available: true, ..new(name) }
}
fn leaving(candidate: Candidate) -> Candidate {
    Candidate { leaving: true, ..candidate }
}
fn granted(candidate: Candidate, grant: GrantType) -> Candidate {
    Candidate { grant: Some(grant), ..candidate }
}
fn waiting(candidate: Candidate) -> Candidate {
    Candidate { waits_until: at(60), ..candidate }
}
fn dead(name: &str) -> Candidate {
    Candidate { ready: false, available: false, down_since: at(-100), ..node(name) }
}
fn long_dead(name: &str) -> Candidate {
    Candidate { down_since: at(-600), ..dead(name) }
}
fn requested(candidate: Candidate) -> Candidate {
    Candidate { repair_requested: true, ..candidate }
}
fn dead_for(seconds: i64, name: &str) -> Candidate {
    Candidate { down_since: at(-seconds), ..dead(name) }
}
/// A host whose last attempt has failed, and that may be tried again.
fn tried(candidate: Candidate) -> Candidate {
    Candidate { waits_until: at(-1), ..candidate }
}
fn silent(name: &str) -> Candidate {
    Candidate { down_since: at(-3600), unreachable: true, ..dead(name) }
}
fn held(candidate: Candidate) -> Candidate {
    Candidate { held: true, ..candidate }
}
fn begun(candidate: Candidate) -> Candidate {
    Candidate { begun: true, ..candidate }
}
/// A host whose operation has begun and has changed something on it.
fn changed(candidate: Candidate) -> Candidate {
    Candidate { irrevocable: true, ..begun(candidate) }
}
fn changed_by(disruption: Disruption, candidate: Candidate) -> Candidate {
    Candidate {
        change: Some(PendingChange { version: V2.into(), disruption, services: vec!["kubelet".into()] }),
        ..candidate
    }
}
/// A node that needs a change.
fn old(candidate: Candidate) -> Candidate {
    changed_by(Disruption::Drain, candidate)
}
/// A node that has all files for its change.
fn staged(candidate: Candidate) -> Candidate {
    Candidate { staged: true, ..candidate }
}
fn ready_to_go(name: &str) -> Candidate {
    staged(old(node(name)))
}
/// A host with a grant for a version.
fn to(version: &str, grant: GrantType, candidate: Candidate) -> Candidate {
    let grant_disruption = (grant == GrantType::Update).then_some(Disruption::Drain);
    Candidate { grant_version: Some(version.into()), grant_disruption, ..granted(candidate, grant) }
}
fn gated(limit: u32) -> Limits {
    Limits { gate: UpdateLimit { limit: Some(limit), ..UpdateLimit::default() }, ..limits() }
}

/// Returns the changes of grants: each name with its grant, or with `-` if the grant is revoked.
fn changes(candidates: &[Candidate], limits: &Limits) -> String {
    let change =
        |(name, grant): (String, Option<Granting>)| format!("{name} {}", grant.map_or("-", |g| g.type_.as_str()));
    decide(candidates, limits, NOW).changes.into_iter().map(change).collect::<Vec<_>>().join(", ")
}

/// Checks which grants change under these limits: a description, the candidates, and the [`changes`].
macro_rules! check {
    ($limits:expr; $($name:literal: $candidates:expr => $expected:literal,)+) => {
        $(assert_eq!(changes(&$candidates, $limits), $expected, $name);)+
    };
}

#[test]
fn joining_and_leaving() {
    use GrantType::{Provision, Remove, Update};
    let paused = Limits { paused: true, ..limits() };
    let orphan = Limits { orphan: true, ..limits() };
    let closed = Limits { open: false, ..limits() };
    check! { &limits();
        "new hosts up to the limit, by name": [new("c"), new("a"), new("b")] => "a Provision, b Provision",
        "a candidate that is taken counts": [granted(new("a"), Provision), new("b"), new("c")] => "b Provision",
        "who has failed goes last": [tried(new("a")), new("b"), new("c")] => "b Provision, c Provision",
        "who waits gives its candidate away":
            [waiting(granted(new("a"), Provision)), new("b"), new("c")] => "a -, b Provision, c Provision",
        "who waits is not taken": [waiting(new("a"))] => "",
        "who has joined gives its candidate back": [granted(node("a"), Provision)] => "a -",
        "nothing to do": [node("a"), node("b")] => "",
    }
    check! { &paused;
        "paused: nothing new": [new("a"), leaving(node("b"))] => "",
        "paused: what has begun goes on": [granted(new("a"), Provision), granted(leaving(node("b")), Remove)] => "",
    }
    check! { &closed;
        "a window that is closed does not concern them": [new("a"), leaving(node("b"))] => "a Provision, b Remove",
    }
    check! { &limits();
        "one at a time leaves": [leaving(node("a")), leaving(node("b")), node("c")] => "a Remove",
        "one that leaves already counts": [granted(leaving(node("a")), Remove), leaving(node("b"))] => "",
        "a dead node takes the budget of the others": [dead("a"), leaving(node("b"))] => "",
        "a node whose removal could not begin gives its place to others":
            [waiting(granted(leaving(node("a")), Remove)), leaving(node("b"))] => "a -",
        "until its next attempt": [waiting(leaving(node("a"))), leaving(node("b"))] => "b Remove",
        "and keeps it once it is cordoned":
            [Candidate { removing: true, ..waiting(granted(leaving(cordoned(node("a"))), Remove)) },
                leaving(node("b"))] => "",
        "but is itself removed for nothing": [leaving(dead("a")), node("b")] => "a Remove",
        "who never joined is removed for nothing":
            [dead("x"), leaving(new("a")), leaving(new("b")), leaving(new("c"))] => "a Remove, b Remove",
        "a removal that fails blocks no other host":
            [waiting(granted(leaving(dead("a")), Remove)), granted(leaving(dead("b")), Remove), leaving(dead("c")),
                leaving(dead("d"))] => "c Remove",
    }
    check! { &orphan;
        "orphans go at once": [leaving(node("a")), held(leaving(node("b")))] => "a Orphan, b Orphan",
        "Orphan goes before a removal that was granted": [granted(leaving(node("a")), Remove)] => "a Orphan",
        "and before a change that has begun": [leaving(begun(to(V2, Update, old(dead("a")))))] => "a Orphan",
        "what is being deconfigured is finished":
            [held(Candidate { deconfiguring: true, ..granted(leaving(dead("a")), Remove) })] => "",
    }
    check! { &limits();
        "one without a deletion by a user is released, in a pool that deconfigures":
            [held(leaving(Candidate { let_go: true, ..node("a") })), leaving(node("b")),
                node("c")] => "a Orphan, b Remove",
        "one that vanishes is ignored, and blocks no other host":
            [leaving(Candidate { vanishing: true, ..granted(dead("a"), Update) }), leaving(node("b")),
                node("c")] => "b Remove",
        "leaving in the middle of joining": [granted(leaving(new("a")), Provision)] => "a Remove",
        "who is to stay is not removed": [granted(node("a"), Remove)] => "a -",
        "nor who was drained for it": [granted(Candidate { available: false, ..node("a") }, Remove)] => "a -",
        "who is held neither joins nor leaves":
            [held(new("a")), held(leaving(node("b"))), held(granted(new("c"), Provision))] => "c -",
        "leaving before the update has begun": [leaving(to(V2, Update, ready_to_go("a")))] => "a Remove",
        "leaving in the middle of an update, whose place it takes":
            [leaving(begun(to(V2, Update, old(dead("a"))))), node("b")] => "a Remove",
        "leaving during a change that is not disruptive, which has no place":
            [Candidate { grant_disruption: Some(Disruption::None), ..leaving(begun(to(V2, Update, old(node("a"))))) },
                dead("b")] => "",
        "on hold, it is updated first": [held(leaving(begun(to(V2, Update, old(dead("a"))))))] => "",
    }
}

#[test]
fn updates() {
    use GrantType::{Reboot, Stage, Update};
    let paused = Limits { paused: true, ..limits() };
    let closed = Limits { open: false, ..limits() };
    let two = Limits { max_unavailable: IntOrPercent::Int(2), ..limits() };
    let capped = |n| Limits {
        others: Some(Share { left: n, ..Share::default() }),
        max_unavailable: IntOrPercent::Int(2),
        ..limits()
    };
    let none = |name| staged(changed_by(Disruption::None, node(name)));
    let quiet = |name| Candidate { grant_disruption: Some(Disruption::None), ..to(V2, Update, none(name)) };
    check! { &limits();
        "what is needed is sent first, only so far ahead":
            ["a", "b", "c", "d", "e", "f"].map(|n| old(node(n))) => "a Stage, b Stage, c Stage, d Stage",
        "who has got all counts among those ahead":
            [ready_to_go("a"), ready_to_go("b"), old(node("c")), old(node("d")), old(node("e")), old(node("f")),
                old(node("g"))] => "a Update, c Stage, d Stage, e Stage",
        "the grant to send is replaced by that to update":
            [to(V2, Stage, ready_to_go("a")), to(V2, Stage, ready_to_go("b")),
                to(V2, Stage, old(node("c")))] => "a Update",
        "another version is to be sent":
            [to("1-a", Stage, old(node("a"))), to("1-a", Stage, node("b"))] => "a Stage, b -",
        "one is being changed: the others wait": [to(V2, Update, ready_to_go("b")), ready_to_go("a")] => "",
        "a node that comes up after its update counts": [dead("a"), ready_to_go("b")] => "",
    }
    check! { &two;
        "so much is allowed": [ready_to_go("a"), ready_to_go("b")] => "a Update, b Update",
    }
    check! { &limits();
        "a removal comes first": [leaving(node("b")), ready_to_go("a")] => "b Remove",
    }
    check! { &capped(1);
        "the cap over all pools": [ready_to_go("a"), ready_to_go("b")] => "a Update",
    }
    check! { &capped(0);
        "the cap over all pools is reached": [ready_to_go("a")] => "",
    }
    check! { &limits();
        "dead ones cost nothing, and go first":
            [ready_to_go("a"), node("x"), node("y"), staged(old(dead("d"))), staged(old(dead("c"))),
                staged(old(dead("b")))] => "b Update, c Update",
        "unless there are so many that they may all come back at once":
            [ready_to_go("a"), staged(old(dead("d"))), staged(old(dead("c"))), staged(old(dead("b")))] => "b Update",
        "and then one after the other":
            [begun(to(V2, Update, staged(old(dead("d"))))), staged(old(dead("c"))), staged(old(dead("b")))] => "",
        "dead ones that are being changed count among themselves":
            [node("x"), node("y"), begun(to(V2, Update, staged(old(dead("c"))))), staged(old(dead("d"))),
                staged(old(dead("b")))] => "b Update",
        "unless they fail":
            [node("x"), node("y"), waiting(begun(to(V2, Update, staged(old(dead("c")))))), staged(old(dead("d"))),
                staged(old(dead("b")))] => "b Update, d Update",
        "a change that is not disruptive costs nothing of the budget":
            [dead("x"), none("a"), none("b"), none("c")] => "a Update, b Update",
        "so many at once": [quiet("a"), none("b"), none("c")] => "b Update",
        "it turns out to be disruptive":
            [dead("x"), Candidate { change: ready_to_go("a").change, ..quiet("a") }] => "a -",
        "who has got there gives the grant back": [to(V2, Update, node("a"))] => "a -",
        "but not before the end": [changed(to(V2, Update, node("a")))] => "",
        "who waits gives it back, its place is free in the next look":
            [waiting(to(V2, Update, ready_to_go("a"))), ready_to_go("b")] => "a -",
        "who has begun keeps it": [waiting(begun(to(V2, Update, ready_to_go("a"))))] => "",
        "another target before the update has begun": [to("1-a", Update, ready_to_go("a"))] => "a Update",
        "another target that is not there yet": [to("1-a", Update, old(node("a")))] => "a Stage",
        "another target after its host was changed": [changed(to("1-a", Update, ready_to_go("a")))] => "",
        "a node dies: an update that has not begun is put off": [dead("x"), to(V2, Update, ready_to_go("a"))] => "a -",
        "who gave up is not tried again": [Candidate { failed: true, ..ready_to_go("a") }] => "",
    }
    check! { &two;
        "and blocks no other host":
            [Candidate { failed: true, ..to(V2, Update, ready_to_go("a")) }, ready_to_go("b")] => "a -, b Update",
    }
    check! { &limits();
        "who is held is left alone": [held(to(V2, Update, ready_to_go("a")))] => "a -",
        "and counts nowhere": [held(dead("a")), ready_to_go("b")] => "b Update",
    }
    check! { &paused;
        "paused: only what has begun goes on":
            [to(V2, Update, ready_to_go("a")), changed(to(V2, Update, ready_to_go("b"))), old(node("c"))] => "a -",
    }
    check! { &closed;
        "closed: only operations that have begun, or are not disruptive, continue":
            [to(V2, Update, ready_to_go("a")), changed(granted(node("b"), Reboot)), to(V2, Stage, old(node("c"))),
                old(node("d")), granted(node("e"), Reboot)] => "a -, e -",
    }
}

/// A node that the operator has cordoned: Ready, and not available.
fn cordoned(candidate: Candidate) -> Candidate {
    Candidate { ready: true, available: false, down_since: None, ..candidate }
}

#[test]
fn nodes_that_come_back_in_the_middle_are_not_too_many() {
    use GrantType::{Remove, Update};
    let drains = |name: &str| Candidate { removing: true, ..granted(leaving(cordoned(node(name))), Remove) };
    let update = |name: &str| begun(to(V2, Update, cordoned(ready_to_go(name))));
    let wiped = |name: &str| Candidate { deconfiguring: true, ..drains(name) };
    check! { &limits();
        "of two that are drained at once, one is let alone": [drains("a"), drains("b")] => "b -",
        "it waits while its own cordon is there": [drains("a"), leaving(cordoned(node("b")))] => "",
        "what is wiped goes on": [wiped("b"), drains("a")] => "a -",
        "a change makes way, too": [update("a"), drains("b")] => "b -",
        "what is changed does not": [changed(update("b")), changed(update("a"))] => "",
        "a node that is still down costs nothing": [drains("a"), granted(leaving(dead("b")), Remove)] => "",
        "and is not begun with when it is up again": [drains("a"), leaving(cordoned(node("b")))] => "",
    }
}

fn asks(candidate: Candidate) -> Candidate {
    Candidate { maintenance: Some(By::Host), ..candidate }
}

#[test]
fn maintenance() {
    use GrantType::{Maintenance, Stage};
    let by_person = |candidate| Candidate { maintenance: Some(By::Person), ..candidate };
    let drained = |name: &str| changed(granted(asks(Candidate { available: false, ..node(name) }), Maintenance));
    let draining = |name: &str| begun(granted(asks(Candidate { available: false, ..node(name) }), Maintenance));
    let free = limits();
    let closed = Limits { open: false, gate: UpdateLimit { limit: Some(0), ..UpdateLimit::default() }, ..limits() };
    let paused = Limits { paused: true, ..limits() };
    let two = Limits { max_unavailable: IntOrPercent::Int(2), ..limits() };
    check! { &free;
        "one at a time": [asks(node("a")), asks(node("b"))] => "a Maintenance",
        "what users request goes first": [asks(node("a")), by_person(node("b"))] => "b Maintenance",
    }
    check! { &closed;
        "no window and no step is asked": [asks(node("a"))] => "a Maintenance",
    }
    check! { &paused;
        "a pause is": [asks(node("a"))] => "",
    }
    check! { &free;
        "and a hold": [asks(held(node("a")))] => "",
        "it has its place": [drained("a"), asks(node("b"))] => "",
    }
    check! {
        &Limits {
            ignore_lost_after: Some(Duration::from_mins(1)), max_unhealthy: IntOrPercent::Percent(100), ..limits()
        };
        "and keeps it when it goes silent":
            [Candidate { down_since: at(-3600), unreachable: true, ready: false, ..drained("a") },
                asks(node("b"))] => "",
    }
    check! { &free;
        "it is not updated": [old(drained("a")), node("b")] => "",
        "before updates": [ready_to_go("a"), asks(node("b"))] => "b Maintenance",
    }
    check! { &two;
        "beside them": [ready_to_go("a"), asks(node("b"))] => "a Update, b Maintenance",
    }
    check! { &free;
        "after removals": [leaving(node("a")), asks(node("b"))] => "a Remove",
        "the removal of its host goes on": [leaving(drained("a")), node("b")] => "a Remove",
        "what is sent ahead waits": [asks(to(V2, Stage, old(node("a"))))] => "a Maintenance",
        "withdrawn before it began": [granted(node("a"), Maintenance)] => "a -",
        "withdrawn before it is drained": [Candidate { maintenance: None, ..draining("a") }] => "a -",
    }
    check! { &paused;
        "a pause before it is drained": [draining("a")] => "a -",
    }
    check! { &free;
        "withdrawn when it is drained": [Candidate { maintenance: None, ..drained("a") }] => "",
    }
    check! { &paused;
        "a pause when it is drained": [drained("a")] => "",
    }
    check! { &free;
        "a hold when it is drained": [held(drained("a")), asks(node("b"))] => "",
    }
    check! { &Limits { max_unhealthy: IntOrPercent::Percent(100), ..free.clone() };
        "a node that is down has nothing to lose":
            [asks(dead("a")), asks(dead("b")), node("c")] => "a Maintenance, b Maintenance",
    }
    check! { &free;
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
    let (free, closed) = (limits(), Limits { open: false, ..limits() });
    check! { &free;
        "after an update": [again(-9, "a"), ready_to_go("b")] => "b Update",
        "its own, too": [again(-9, "a"), staged(old(again(-9, "b")))] => "b Update",
        "which waits for no images": [Candidate { wants_images: true, ..staged(old(again(-9, "a"))) }] => "a Update",
    }
    check! { &closed;
        "it is sent ahead, and none may begin": [to(V2, Stage, staged(old(again(-9, "a"))))] => "a Maintenance",
        "unless none may begin": [again(-9, "a"), ready_to_go("b")] => "a Maintenance",
    }
    check! { &free;
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
    let drained = |name: &str| changed(granted(asks(Candidate { available: false, ..node(name) }), Maintenance));
    let free = limits();
    check! { &free;
        "it is not repaired": [Candidate { ready: false, down_since: at(-3600), ..drained("a") }, node("b")] => "",
        "nor is a node for which it is requested":
            [asks(waiting(Candidate { down_since: at(-3600), ..dead("a") })), node("b")] => "",
        "it goes before a repair that has changed nothing":
            [begun(granted(asks(Candidate { down_since: at(-3600), ..dead("a") }), Repair)), node("b"),
                node("c")] => "a Maintenance",
    }
    check! { &Limits { max_concurrent: 1, ..free.clone() };
        "it takes no place of a broken node": [drained("a"), asks(dead("b")), node("c"), node("d")] => "b Maintenance",
    }
}

#[test]
fn hosts_whose_joins_were_interrupted_leave_one_after_another() {
    let interrupted = |name| leaving(changed(node(name)));
    let cordoned_by_us = |candidate| Candidate { available: false, ..candidate };
    let removed = |candidate| granted(Candidate { removing: true, begun: false, ..candidate }, GrantType::Remove);
    check! { &limits();
        "none has its turn": [interrupted("a"), interrupted("b")] => "a Remove",
        "one has a cordon that was left": [cordoned_by_us(interrupted("a")), interrupted("b")] => "a Remove",
        "one has its turn": [removed(interrupted("a")), interrupted("b")] => "",
        "and drains": [removed(cordoned_by_us(interrupted("a"))), interrupted("b")] => "",
    }
}

#[test]
fn a_hold_does_not_make_room() {
    use GrantType::{Remove, Update};
    let held_change = held(changed(to(V2, Update, cordoned(ready_to_go("a")))));
    let held_removal = held(granted(leaving(node("a")), Remove));
    let being_removed_as = |name| Candidate { removing: true, ..leaving(node(name)) };
    let being_removed = being_removed_as("a");
    check! { &limits();
        "a change goes on under its hold": [held_change, ready_to_go("b")] => "",
        "a removal ends before its place is free": [held_removal, ready_to_go("b")] => "a -",
        "without its grant, too": [being_removed, held(ready_to_go("b"))] => "",
        "and it counts": [held(being_removed_as("a")), ready_to_go("b")] => "",
    }
}

#[test]
fn the_gate() {
    use GrantType::{Reboot, Stage, Update};
    let wants = |candidate| Candidate { wants_reboot: true, ..candidate };
    check! { &gated(1);
        "as many as it lets pass": [old(node("a")), old(node("b"))] => "a Stage",
    }
    check! { &gated(0);
        "no node": [to(V2, Update, ready_to_go("a")), to(V2, Stage, old(node("b"))), old(node("c"))] => "a -, b -",
    }
    check! { &gated(1);
        "who follows counts": [node("a"), ready_to_go("b")] => "",
        "who gave up counts": [Candidate { failed: true, ..old(node("a")) }, ready_to_go("b")] => "",
        "who is on its way counts": [begun(to(V2, Update, old(node("a")))), old(node("b"))] => "",
    }
    check! { &Limits { max_unavailable: IntOrPercent::Int(2), ..gated(1) };
        "who is granted goes before who would be first": [to(V2, Update, ready_to_go("b")), ready_to_go("a")] => "",
    }
    check! { &gated(1);
        "neither who leaves nor who is held counts":
            [begun(granted(leaving(dead("a")), GrantType::Remove)), held(node("b")), old(node("c"))] => "c Stage",
    }
    check! {
        &Limits {
            ignore_lost_after: Some(Duration::from_hours(1)), remediation: RemediationType::None, ..gated(3)
        };
        "a lost one takes no place":
            [to(V2, Update, staged(old(silent("a")))), old(node("b")), node("c"), node("d")] => "a -, b Stage",
    }
    check! { &gated(0);
        "a restart is not part of the change": [wants(old(node("a")))] => "a Reboot",
    }
    check! { &gated(1);
        "it waits for the change that is next": [wants(old(node("a")))] => "a Stage",
    }
    check! { &limits();
        "the change covers it": [wants(ready_to_go("a"))] => "a Update",
        "one restart at a time": [wants(node("a")), wants(node("b")), node("c")] => "a Reboot",
        "it is over": [granted(node("a"), Reboot)] => "a -",
    }
}

fn checked(candidate: Candidate) -> Candidate {
    Candidate { health_check: Some("MachineHealthCheck ns/c".into()), ..candidate }
}

#[test]
fn repairs_and_lost_nodes() {
    use GrantType::{Reboot, Repair, Stage};
    let four = |mut candidates: Vec<Candidate>| {
        candidates.extend(["w", "x", "y", "z"].map(node));
        candidates
    };
    let never = Limits { remediation: RemediationType::None, ..limits() };
    let paused = Limits { paused: true, ..limits() };
    let lost = Limits { ignore_lost_after: Some(Duration::from_hours(1)), ..never.clone() };
    let few = Limits { max_unhealthy: IntOrPercent::Int(1), ..lost.clone() };
    check! { &limits();
        "down for long": four(vec![long_dead("a")]) => "a Repair",
        "not for so long": four(vec![dead("a")]) => "",
    }
    check! { &never;
        "never": four(vec![long_dead("a")]) => "",
    }
    check! { &limits();
        "a user requests it": four(vec![requested(dead("a"))]) => "a Repair",
    }
    check! { &never;
        "and is asked for no cause": four(vec![requested(dead("a"))]) => "a Repair",
    }
    check! { &limits();
        "nor while so many are down": [requested(dead("a")), dead("b"), dead("c"), node("d")] => "a Repair",
    }
    check! { &paused;
        "but not while it is paused": four(vec![requested(dead("a"))]) => "",
    }
    check! { &limits();
        "nor while it is held": four(vec![held(requested(dead("a")))]) => "",
    }
    check! { &paused;
        "paused": four(vec![long_dead("a")]) => "",
    }
    check! { &limits();
        "waits": four(vec![waiting(granted(long_dead("a"), Repair))]) => "a -",
        "held": four(vec![held(long_dead("a"))]) => "",
        "left to a MachineHealthCheck": four(vec![checked(long_dead("a"))]) => "",
        "which came after the repair was granted": four(vec![checked(granted(long_dead("a"), Repair))]) => "a -",
        "leaves": four(vec![leaving(long_dead("a"))]) => "a Remove",
        "is Ready again": four(vec![granted(node("a"), Repair)]) => "a -",
        "so many at once, the longest first":
            four(vec![long_dead("a"), long_dead("b"), dead_for(900, "c")]) => "a Repair, c Repair",
        "who was tried in vain goes last":
            four(vec![tried(long_dead("a")), tried(long_dead("b")), dead_for(900, "c"),
                dead_for(800, "d")]) => "c Repair, d Repair",
        "those that are at it count":
            four(vec![long_dead("a"), begun(granted(long_dead("b"), Repair)), granted(long_dead("c"), Repair)]) => "",
        "too many are down": [long_dead("a"), granted(long_dead("b"), Repair), dead("c"), node("x")] => "b -",
        "down because of an operation is no sign of trouble":
            [long_dead("a"), changed(granted(dead("b"), Reboot)), changed(granted(dead("c"), Reboot)),
                node("x")] => "a Repair",
        "repaired before it is sent another version": four(vec![to(V2, Stage, old(long_dead("a")))]) => "a Repair",
        "unless that has failed": four(vec![tried(old(long_dead("a")))]) => "a Stage",
        "an update puts it right too": four(vec![staged(old(long_dead("a")))]) => "a Update",
    }
    check! { &never;
        "a silent node is waited for": four(vec![silent("a"), ready_to_go("b")]) => "",
    }
    check! { &lost;
        "but not for ever": four(vec![silent("a"), ready_to_go("b")]) => "b Update",
        "unless the host answers": four(vec![Candidate { unreachable: false, ..silent("a") }, ready_to_go("b")]) => "",
    }
    check! { &few;
        "or there are too many": four(vec![silent("a"), silent("c"), ready_to_go("b")]) => "",
    }

    let decision = decide(&four(vec![silent("c"), silent("a")]), &lost, NOW);
    assert_eq!((decision.lost, decision.too_many_unhealthy), (vec!["a".to_string(), "c".to_string()], false));
    let decision = decide(&four(vec![silent("c"), silent("a")]), &few, NOW);
    assert_eq!((decision.lost, decision.too_many_unhealthy), (vec![], true));
}

/// Covers a used grant, which must be replaced because the instance does nothing more with it.
#[test]
fn a_grant_whose_operation_is_over_is_not_left_as_it_is() {
    let follows = |used| Candidate { grant_used: used, ..to(V2, GrantType::Update, ready_to_go("a")) };
    assert_eq!(changes(&[follows(false)], &limits()), "");
    assert_eq!(changes(&[follows(true)], &limits()), "a Update");
}

#[test]
fn what_is_granted_says_what_to_do() {
    let decision = decide(&[ready_to_go("a"), old(node("b"))], &limits(), NOW);
    let update = Granting {
        type_: GrantType::Update,
        version: Some(V2.into()),
        disruption: Some(Disruption::Drain),
        services: vec!["kubelet".into()],
        without_place: false,
    };
    let stage = Granting { version: Some(V2.into()), ..GrantType::Stage.into() };
    assert_eq!(decision.changes, BTreeMap::from([("a".into(), Some(update)), ("b".into(), Some(stage))]));
    assert_eq!(decision.waiting, ["b"]);
    assert_eq!((decision.allowed_disruptions, decision.disrupting), (0, 1));
    let decision =
        decide(&[node("a"), dead("b"), node("c")], &Limits { max_unavailable: IntOrPercent::Int(3), ..limits() }, NOW);
    assert_eq!((decision.allowed_disruptions, decision.disrupting), (2, 0));
}

#[test]
fn unavailable_nodes_first_then_zone_after_zone_and_lost_ones_last() {
    let zoned = |zone: &str, candidate| Candidate { zone: zone.into(), ..old(candidate) };
    let mut candidates = vec![zoned("z1", silent("gone")), zoned("z9", dead("down"))];
    candidates.extend((0..6).map(|n| zoned("z1", node(&format!("a{n}")))));
    candidates.extend((0..6).map(|n| zoned("z0", node(&format!("b{n}")))));
    let zones = Limits { order: Order::Zone, ignore_lost_after: Some(Duration::from_mins(1)), ..limits() };
    let waiting = |candidates: &[Candidate], limits: &Limits| decide(candidates, limits, NOW).waiting;
    let order = waiting(&candidates, &zones);
    assert_eq!((order[0].as_str(), order[13].as_str()), ("down", "gone"));
    assert!(order[1..7].iter().all(|n| n.starts_with('b')) && order[7..13].iter().all(|n| n.starts_with('a')));
    // Neighbours by name do not change together, and another version begins with other nodes.
    assert!(!order[1..7].is_sorted());
    for candidate in &mut candidates {
        candidate.change = Some(PendingChange { version: "3-c".into(), ..PendingChange::default() });
    }
    assert_ne!(waiting(&candidates, &zones)[1..7], order[1..7]);

    let by_name = waiting(&candidates, &Limits { order: Order::Name, ..zones });
    assert!(by_name[1..13].is_sorted());
}

#[test]
fn looks_again_when_something_changes_by_itself() {
    let wait = |s, candidate| Candidate { waits_until: at(s), ..candidate };
    let lost = Limits { ignore_lost_after: Some(Duration::from_secs(150)), ..limits() };
    let never = Limits { remediation: RemediationType::None, ..lost.clone() };
    let unreachable = Candidate { unreachable: true, ..dead("a") };
    for (name, candidates, limits, expected) in [
        ("nothing", vec![node("a")], limits(), None),
        ("the first wait", vec![wait(90, new("a")), wait(60, new("b")), wait(-5, new("c"))], limits(), at(60)),
        ("a repair", vec![dead("a"), wait(900, new("b"))], limits(), at(500)),
        ("no repair", vec![dead("a"), wait(900, new("b"))], never.clone(), at(900)),
        ("a repair that is due", vec![long_dead("a"), held(dead("b"))], limits(), None),
        ("lost", vec![unreachable.clone()], never, at(50)),
        ("lost before it is repaired", vec![unreachable], lost, at(50)),
    ] {
        assert_eq!(decide(&candidates, &limits, NOW).next, expected, "{name}");
    }
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

#[path = "grants_images_tests.rs"]
mod images_tests;
#[path = "grants_key_tests.rs"]
mod keys;

#[test]
fn a_node_that_would_lose_settings_is_left_as_it_is() {
    let withheld = |candidate: Candidate| Candidate { withheld: true, ..candidate };
    let limits = Limits { remediation: RemediationType::Reboot, ..limits() };
    let asks = |candidate: Candidate| Candidate { wants_reboot: true, ..candidate };
    for candidate in [
        ready_to_go("a"),
        old(node("a")),
        asks(ready_to_go("a")),
        staged(old(long_dead("a"))),
        granted(ready_to_go("a"), GrantType::Stage),
    ] {
        let decision = decide(&[withheld(candidate.clone()), ready_to_go("b")], &limits, NOW);
        assert!(!matches!(decision.changes.get("a"), Some(Some(_))), "{candidate:?}: {decision:?}");
        assert!(!decision.waiting.contains(&"a".to_string()), "{candidate:?}: {decision:?}");
        // A node that is down uses up the budget, withheld or not.
        assert!(!candidate.available || decision.changes.contains_key("b"), "the others go on: {decision:?}");
    }
    let key = withheld(Candidate { wants_key: true, ..ready_to_go("a") });
    let given = decide(&[key], &limits, NOW).changes.remove("a").flatten().map(|g| g.type_);
    assert_eq!(given, Some(GrantType::RotateKey));
    let leaves = decide(&[leaving(withheld(ready_to_go("a")))], &limits, NOW).changes.remove("a").flatten();
    assert_eq!(leaves.map(|g| g.type_), Some(GrantType::Remove));
}

#[test]
fn a_change_that_has_changed_nothing_is_given_up() {
    use GrantType::{Reboot, Update};
    let draining = |candidate: Candidate| begun(Candidate { available: false, ..to(V2, Update, candidate) });
    let blocked = || draining(ready_to_go("a"));
    let paused = || Limits { paused: true, ..limits() };
    let closed = || Limits { open: false, ..limits() };
    let failed = |rolled_back: bool| Limits {
        gate: UpdateLimit {
            limit: (!rolled_back).then_some(0),
            hold: BlockedBy::FailureLimit { failed: 1, rolled_back },
        },
        ..limits()
    };
    let restart =
        |candidate: Candidate| begun(granted(Candidate { wants_reboot: true, available: false, ..candidate }, Reboot));
    let repaired = |candidate: Candidate| begun(granted(candidate, GrantType::Repair));
    let no_repairs = || Limits { remediation: RemediationType::None, ..limits() };
    let back = |candidate: Candidate| Candidate { change: None, ..candidate };
    let other = |candidate: Candidate| to("1-a", Update, candidate);
    check! { &limits();
        "a drain goes on": [blocked()] => "",
        "the node is held": [held(blocked())] => "a -",
    }
    check! { &paused();
        "the pool is paused": [blocked()] => "a -",
    }
    check! { &closed();
        "the window closes": [blocked()] => "a -",
    }
    check! { &limits();
        "the template is taken back": [back(blocked())] => "a -",
        "it follows another version now, which is there": [other(blocked())] => "a Update",
        "and one that has to be sent first": [Candidate { staged: false, ..other(blocked()) }] => "a Stage",
    }
    check! { &failed(false);
        "the version failed elsewhere": [blocked()] => "a -",
    }
    check! { &failed(true);
        "the way back is not stopped by it": [blocked()] => "",
    }
    check! { &paused();
        "a host that was changed is brought to its end": [changed(held(blocked()))] => "",
    }
    check! { &closed();
        "also when its window closes": [changed(back(blocked()))] => "",
    }
    check! { &limits();
        "a restart goes on": [restart(node("a"))] => "",
    }
    check! { &paused();
        "a restart is given up": [restart(node("a"))] => "a -",
    }
    check! { &limits();
        "no change needs it any more": [Candidate { wants_reboot: false, ..restart(node("a")) }] => "a -",
    }
    check! { &paused();
        "one that is on its way is not": [changed(restart(node("a")))] => "",
    }
    check! { &closed();
        "a repair goes on, in no window": [repaired(long_dead("a"))] => "",
    }
    check! { &limits();
        "the node is Ready again by itself": [repaired(node("a"))] => "a -",
        "a user holds the node": [held(repaired(long_dead("a")))] => "a -",
    }
    check! { &paused();
        "the pool is paused": [repaired(long_dead("a"))] => "a -",
    }
    check! { &no_repairs();
        "nothing is repaired any more": [repaired(long_dead("a"))] => "a -",
    }
    check! { &paused();
        "a repair that has changed the host is finished": [changed(repaired(node("a")))] => "",
    }
}

#[test]
fn the_slot_of_a_host_that_fails_goes_to_another() {
    use GrantType::Update;
    let waits = |candidate: Candidate| Candidate { waits_until: at(60), ..candidate };
    check! { &Limits { max_unavailable: IntOrPercent::Int(2), ..limits() };
        "at once": [to(V2, Update, waits(ready_to_go("a"))), ready_to_go("b")] => "a -, b Update",
    }
    check! { &limits();
        "one that was tried in vain goes after the others": [tried(ready_to_go("a")), ready_to_go("b")] => "b Update",
        "and then again": [tried(ready_to_go("a"))] => "a Update",
    }
}

#[test]
fn nodes_of_an_abandoned_rollout_go_first() {
    let follows_abandoned_version = |candidate: Candidate| Candidate { follows_abandoned_version: true, ..candidate };
    check! { &gated(1);
        "before all others": [ready_to_go("a"), follows_abandoned_version(ready_to_go("b"))] => "b Update",
        "also if they have to be sent it first": [ready_to_go("a"), follows_abandoned_version(old(node("b")))] => "b Stage",
    }
    check! { &limits();
        "which holds up no other node where there is room":
            [ready_to_go("a"), follows_abandoned_version(old(node("b")))] => "a Update, b Stage",
    }
    check! { &gated(1);
        "but not if they were tried in vain": [ready_to_go("a"), tried(follows_abandoned_version(ready_to_go("b")))] => "a Update",
    }
}

/// Covers an uncharged grant that must get a slot: otherwise the operator would cordon the node just before its pool revokes the grant.
#[test]
fn what_cost_nothing_says_so_and_gets_a_place_when_the_node_takes_pods_again() {
    use GrantType::Remove;
    let limits = limits();
    let down = Candidate { ready: false, ..dead("a") };
    let given =
        |candidate: Candidate| decide(&[leaving(candidate)], &limits, NOW).changes.remove("a").flatten().unwrap();
    assert!(given(down).without_place);
    assert!(!given(node("a")).without_place);

    let back = |name| Candidate { grant_without_place: true, ..granted(leaving(node(name)), Remove) };
    let decision = decide(&[back("a"), node("b")], &limits, NOW);
    assert!(decision.placed.contains("a") && decision.changes.is_empty(), "{decision:?}");
    let busy = Candidate { removing: true, ..granted(leaving(node("b")), Remove) };
    let decision = decide(&[back("a"), busy], &limits, NOW);
    assert!(decision.placed.is_empty(), "{decision:?}");
    assert_eq!(decision.changes, BTreeMap::from([("a".into(), None)]), "it waits for its turn");

    // Another node has the slot and may be cordoned already, whichever is first by name.
    for (a, b) in [("a", "b"), ("b", "a")] {
        let waiting = Candidate { removing: true, ..back(a) };
        let working = Candidate { removing: true, ..granted(leaving(node(b)), Remove) };
        let decision = decide(&[waiting, working], &limits, NOW);
        assert!(decision.placed.is_empty() && decision.changes.keys().eq([a]), "{a}: {decision:?}");
    }
    let unwanted = granted(node("b"), GrantType::Reboot);
    let decision = decide(&[back("a"), unwanted], &Limits { max_unavailable: IntOrPercent::Int(2), ..limits }, NOW);
    assert!(decision.placed.is_empty(), "what is taken back in the same decision is free in the next: {decision:?}");
}

/// Covers a host that was off for four days. Its certificate has the default lifetime, and is as old as it can get on a host that is on. wicd renews
/// it by itself, because the host is back in time.
#[test]
fn a_host_that_comes_back_with_a_valid_certificate_is_left_alone() {
    let issued = Timestamp::UNIX_EPOCH;
    let end = issued.checked_add(SignedDuration::try_from(api::host::WICD_CERTIFICATE_LIFE).unwrap()).unwrap();
    let restart = |candidate: Candidate| Candidate { wants_reboot: true, ..candidate };
    for (hours, candidate, expected) in [
        (67 + 96, node("a"), None),
        (167, node("a"), None),
        (168, node("a"), Some((GrantType::Update, Some(Disruption::None)))),
        (67 + 96, restart(node("a")), Some((GrantType::Reboot, None))),
        // A repair replaces the certificate, too.
        (200, dead("a"), Some((GrantType::Repair, None))),
    ] {
        let now = issued.checked_add(SignedDuration::from_hours(hours)).unwrap();
        let mut candidate = candidate;
        candidate.renew_certificate(Some(end), Some(V2), V2, now);
        let granted = decide(&[candidate.clone()], &limits(), now).changes.remove("a").flatten();
        assert_eq!(granted.map(|g| (g.type_, g.disruption)), expected, "{hours} h: {candidate:?}");
    }
    let mut unknown = node("a");
    unknown.renew_certificate(None, Some(V2), V2, NOW);
    assert_eq!(unknown, node("a"), "an end that is not known is not over");
}

/// Covers an expired certificate, without which wicd can neither follow another version nor report.
#[test]
fn no_certificate_waits_for_a_rollout() {
    let expired = |candidate: Candidate| Candidate { renews: Some("1-a".into()), ..candidate };
    let renewing = |candidate: Candidate| Candidate {
        grant_version: Some("1-a".into()),
        grant_disruption: Some(Disruption::None),
        ..begun(granted(expired(candidate), GrantType::Update))
    };
    let closed = || Limits { open: false, ..limits() };
    let paused = || Limits { paused: true, ..limits() };
    let failed = |candidate: Candidate| Candidate { failed: true, ..candidate };
    let renewed = |candidate: Candidate, limits: &Limits| {
        let given = decide(&[candidate], limits, NOW).changes.remove("a").flatten();
        given.map(|g| (g.type_, g.version, g.disruption))
    };
    let renewal = Some((GrantType::Update, Some("1-a".to_owned()), Some(Disruption::None)));
    for (name, candidate, limits, expected) in [
        ("the window is closed", expired(ready_to_go("a")), closed(), &renewal),
        ("the step waits for its approval", expired(ready_to_go("a")), gated(0), &renewal),
        ("the version has failed on it", expired(failed(ready_to_go("a"))), limits(), &renewal),
        ("it is first, and then the change", expired(ready_to_go("a")), limits(), &renewal),
        ("it follows the target", expired(node("a")), limits(), &renewal),
        ("the pool is paused", expired(ready_to_go("a")), paused(), &None),
        ("a user holds the node", held(expired(ready_to_go("a"))), limits(), &None),
    ] {
        assert_eq!(&renewed(candidate, &limits), expected, "{name}");
    }
    check! { &closed();
        "what has begun goes on": [renewing(ready_to_go("a"))] => "",
        "until a user stops it": [held(renewing(ready_to_go("a")))] => "a -",
    }
}
