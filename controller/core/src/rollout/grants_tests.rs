//! Situations of a pool, and who is granted what.

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
/// A host that has failed, and may be tried again.
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
    Candidate { past_return: true, ..begun(candidate) }
}
fn changed_by(disruption: Disruption, candidate: Candidate) -> Candidate {
    Candidate {
        change: Some(PendingChange { version: V2.into(), disruption, services: vec!["kubelet".into()] }),
        ..candidate
    }
}
/// A node that is to be changed.
fn old(candidate: Candidate) -> Candidate {
    changed_by(Disruption::Drain, candidate)
}
/// A node on which all is there that its change needs.
fn staged(candidate: Candidate) -> Candidate {
    Candidate { staged: true, ..candidate }
}
fn ready_to_go(name: &str) -> Candidate {
    staged(old(node(name)))
}
/// A host with a grant to go to a version.
fn to(version: &str, grant: GrantType, candidate: Candidate) -> Candidate {
    let grant_disruption = (grant == GrantType::Update).then_some(Disruption::Drain);
    Candidate { grant_version: Some(version.into()), grant_disruption, ..granted(candidate, grant) }
}
fn gated(limit: u32) -> Limits {
    Limits { gate: UpdateLimit { limit: Some(limit), ..UpdateLimit::default() }, ..limits() }
}

fn changes(candidates: &[Candidate], limits: &Limits) -> Vec<(String, Option<GrantType>)> {
    let decision = decide(candidates, limits, NOW);
    decision.changes.into_iter().map(|(n, c)| (n, c.map(|g| g.type_))).collect()
}

type Case = (&'static str, Vec<Candidate>, Limits, Vec<(&'static str, Option<GrantType>)>);

fn check(cases: Vec<Case>) {
    for (name, candidates, limits, expected) in cases {
        let expected: Vec<_> = expected.into_iter().map(|(n, g)| (n.to_string(), g)).collect();
        assert_eq!(changes(&candidates, &limits), expected, "{name}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn joining_and_leaving() {
    use GrantType::{Orphan, Provision, Remove, Update};
    let paused = Limits { paused: true, ..limits() };
    let orphan = Limits { orphan: true, ..limits() };
    let closed = Limits { open: false, ..limits() };
    check(vec![
        (
            "new hosts up to the limit, by name",
            vec![new("c"), new("a"), new("b")],
            limits(),
            vec![("a", Some(Provision)), ("b", Some(Provision))],
        ),
        (
            "a candidate that is taken counts",
            vec![granted(new("a"), Provision), new("b"), new("c")],
            limits(),
            vec![("b", Some(Provision))],
        ),
        (
            "who has failed goes last",
            vec![tried(new("a")), new("b"), new("c")],
            limits(),
            vec![("b", Some(Provision)), ("c", Some(Provision))],
        ),
        (
            "who waits gives its candidate away",
            vec![waiting(granted(new("a"), Provision)), new("b"), new("c")],
            limits(),
            vec![("a", None), ("b", Some(Provision)), ("c", Some(Provision))],
        ),
        ("who waits is not taken", vec![waiting(new("a"))], limits(), vec![]),
        ("who has joined gives its candidate back", vec![granted(node("a"), Provision)], limits(), vec![("a", None)]),
        ("nothing to do", vec![node("a"), node("b")], limits(), vec![]),
        ("paused: nothing new", vec![new("a"), leaving(node("b"))], paused.clone(), vec![]),
        (
            "paused: what has begun goes on",
            vec![granted(new("a"), Provision), granted(leaving(node("b")), Remove)],
            paused,
            vec![],
        ),
        (
            "a window that is closed does not concern them",
            vec![new("a"), leaving(node("b"))],
            closed,
            vec![("a", Some(Provision)), ("b", Some(Remove))],
        ),
        (
            "one at a time leaves",
            vec![leaving(node("a")), leaving(node("b")), node("c")],
            limits(),
            vec![("a", Some(Remove))],
        ),
        (
            "one that leaves already counts",
            vec![granted(leaving(node("a")), Remove), leaving(node("b"))],
            limits(),
            vec![],
        ),
        ("a dead node takes the budget of the others", vec![dead("a"), leaving(node("b"))], limits(), vec![]),
        (
            "a node whose removal could not begin gives its place to others",
            vec![waiting(granted(leaving(node("a")), Remove)), leaving(node("b"))],
            limits(),
            vec![("a", None)],
        ),
        (
            "until its next attempt",
            vec![waiting(leaving(node("a"))), leaving(node("b"))],
            limits(),
            vec![("b", Some(Remove))],
        ),
        (
            "and keeps it once it is cordoned",
            vec![
                Candidate { removing: true, ..waiting(granted(leaving(cordoned(node("a"))), Remove)) },
                leaving(node("b")),
            ],
            limits(),
            vec![],
        ),
        ("but is itself removed for nothing", vec![leaving(dead("a")), node("b")], limits(), vec![("a", Some(Remove))]),
        (
            "who never joined is removed for nothing",
            vec![dead("x"), leaving(new("a")), leaving(new("b")), leaving(new("c"))],
            limits(),
            vec![("a", Some(Remove)), ("b", Some(Remove))],
        ),
        (
            "a removal that fails blocks no other host",
            vec![
                waiting(granted(leaving(dead("a")), Remove)),
                granted(leaving(dead("b")), Remove),
                leaving(dead("c")),
                leaving(dead("d")),
            ],
            limits(),
            vec![("c", Some(Remove))],
        ),
        (
            "orphans go at once",
            vec![leaving(node("a")), held(leaving(node("b")))],
            orphan.clone(),
            vec![("a", Some(Orphan)), ("b", Some(Orphan))],
        ),
        (
            "Orphan goes before a removal that was granted",
            vec![granted(leaving(node("a")), Remove)],
            orphan.clone(),
            vec![("a", Some(Orphan))],
        ),
        (
            "and before a change that has begun",
            vec![leaving(begun(to(V2, Update, old(dead("a")))))],
            orphan.clone(),
            vec![("a", Some(Orphan))],
        ),
        (
            "what is being deconfigured is finished",
            vec![held(Candidate { deconfiguring: true, ..granted(leaving(dead("a")), Remove) })],
            orphan,
            vec![],
        ),
        (
            "one without a deletion by a user is released, in a pool that deconfigures",
            vec![held(leaving(Candidate { let_go: true, ..node("a") })), leaving(node("b")), node("c")],
            limits(),
            vec![("a", Some(Orphan)), ("b", Some(Remove))],
        ),
        (
            "one that vanishes is ignored, and blocks no other host",
            vec![leaving(Candidate { vanishing: true, ..granted(dead("a"), Update) }), leaving(node("b")), node("c")],
            limits(),
            vec![("b", Some(Remove))],
        ),
        (
            "leaving in the middle of joining",
            vec![granted(leaving(new("a")), Provision)],
            limits(),
            vec![("a", Some(Remove))],
        ),
        ("who is to stay is not removed", vec![granted(node("a"), Remove)], limits(), vec![("a", None)]),
        (
            "nor who was drained for it",
            vec![granted(Candidate { available: false, ..node("a") }, Remove)],
            limits(),
            vec![("a", None)],
        ),
        (
            "who is held neither joins nor leaves",
            vec![held(new("a")), held(leaving(node("b"))), held(granted(new("c"), Provision))],
            limits(),
            vec![("c", None)],
        ),
        (
            "leaving before the update has begun",
            vec![leaving(to(V2, Update, ready_to_go("a")))],
            limits(),
            vec![("a", Some(Remove))],
        ),
        (
            "leaving in the middle of an update, whose place it takes",
            vec![leaving(begun(to(V2, Update, old(dead("a"))))), node("b")],
            limits(),
            vec![("a", Some(Remove))],
        ),
        (
            "leaving during a change that is not disruptive, which has no place",
            vec![
                Candidate {
                    grant_disruption: Some(Disruption::None),
                    ..leaving(begun(to(V2, Update, old(node("a")))))
                },
                dead("b"),
            ],
            limits(),
            vec![],
        ),
        ("on hold, it is updated first", vec![held(leaving(begun(to(V2, Update, old(dead("a"))))))], limits(), vec![]),
    ]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn updates() {
    use GrantType::{Reboot, Remove, Stage, Update};
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
    check(vec![
        (
            "what is needed is sent first, only so far ahead",
            ["a", "b", "c", "d", "e", "f"].map(|n| old(node(n))).to_vec(),
            limits(),
            ["a", "b", "c", "d"].map(|n| (n, Some(Stage))).to_vec(),
        ),
        (
            "who has got all counts among those ahead",
            [ready_to_go("a"), ready_to_go("b")]
                .into_iter()
                .chain(["c", "d", "e", "f", "g"].map(|n| old(node(n))))
                .collect(),
            limits(),
            vec![("a", Some(Update)), ("c", Some(Stage)), ("d", Some(Stage)), ("e", Some(Stage))],
        ),
        (
            "the grant to send is replaced by that to update",
            vec![to(V2, Stage, ready_to_go("a")), to(V2, Stage, ready_to_go("b")), to(V2, Stage, old(node("c")))],
            limits(),
            vec![("a", Some(Update))],
        ),
        (
            "another version is to be sent",
            vec![to("1-a", Stage, old(node("a"))), to("1-a", Stage, node("b"))],
            limits(),
            vec![("a", Some(Stage)), ("b", None)],
        ),
        (
            "one is being changed: the others wait",
            vec![to(V2, Update, ready_to_go("b")), ready_to_go("a")],
            limits(),
            vec![],
        ),
        ("a node that comes up after its update counts", vec![dead("a"), ready_to_go("b")], limits(), vec![]),
        ("so much is allowed", vec![ready_to_go("a"), ready_to_go("b")], two.clone(), {
            vec![("a", Some(Update)), ("b", Some(Update))]
        }),
        ("a removal comes first", vec![leaving(node("b")), ready_to_go("a")], limits(), vec![("b", Some(Remove))]),
        ("the cap over all pools", vec![ready_to_go("a"), ready_to_go("b")], capped(1), vec![("a", Some(Update))]),
        ("the cap over all pools is reached", vec![ready_to_go("a")], capped(0), vec![]),
        (
            "dead ones cost nothing, and go first",
            vec![
                ready_to_go("a"),
                node("x"),
                node("y"),
                staged(old(dead("d"))),
                staged(old(dead("c"))),
                staged(old(dead("b"))),
            ],
            limits(),
            vec![("b", Some(Update)), ("c", Some(Update))],
        ),
        (
            "unless there are so many that they may all come back at once",
            vec![ready_to_go("a"), staged(old(dead("d"))), staged(old(dead("c"))), staged(old(dead("b")))],
            limits(),
            vec![("b", Some(Update))],
        ),
        (
            "and then one after the other",
            vec![begun(to(V2, Update, staged(old(dead("d"))))), staged(old(dead("c"))), staged(old(dead("b")))],
            limits(),
            vec![],
        ),
        (
            "dead ones that are being changed count among themselves",
            vec![
                node("x"),
                node("y"),
                begun(to(V2, Update, staged(old(dead("c"))))),
                staged(old(dead("d"))),
                staged(old(dead("b"))),
            ],
            limits(),
            vec![("b", Some(Update))],
        ),
        (
            "unless they fail",
            vec![
                node("x"),
                node("y"),
                waiting(begun(to(V2, Update, staged(old(dead("c")))))),
                staged(old(dead("d"))),
                staged(old(dead("b"))),
            ],
            limits(),
            vec![("b", Some(Update)), ("d", Some(Update))],
        ),
        (
            "a change that is not disruptive costs nothing of the budget",
            vec![dead("x"), none("a"), none("b"), none("c")],
            limits(),
            vec![("a", Some(Update)), ("b", Some(Update))],
        ),
        ("so many at once", vec![quiet("a"), none("b"), none("c")], limits(), vec![("b", Some(Update))]),
        (
            "it turns out to be disruptive",
            vec![dead("x"), Candidate { change: ready_to_go("a").change, ..quiet("a") }],
            limits(),
            vec![("a", None)],
        ),
        ("who has got there gives the grant back", vec![to(V2, Update, node("a"))], limits(), vec![("a", None)]),
        ("but not before the end", vec![changed(to(V2, Update, node("a")))], limits(), vec![]),
        (
            "who waits gives it back, its place is free in the next look",
            vec![waiting(to(V2, Update, ready_to_go("a"))), ready_to_go("b")],
            limits(),
            vec![("a", None)],
        ),
        ("who has begun keeps it", vec![waiting(begun(to(V2, Update, ready_to_go("a"))))], limits(), vec![]),
        (
            "another target before the update has begun",
            vec![to("1-a", Update, ready_to_go("a"))],
            limits(),
            vec![("a", Some(Update))],
        ),
        (
            "another target that is not there yet",
            vec![to("1-a", Update, old(node("a")))],
            limits(),
            vec![("a", Some(Stage))],
        ),
        (
            "another target after its host was changed",
            vec![changed(to("1-a", Update, ready_to_go("a")))],
            limits(),
            vec![],
        ),
        (
            "a node dies: an update that has not begun is put off",
            vec![dead("x"), to(V2, Update, ready_to_go("a"))],
            limits(),
            vec![("a", None)],
        ),
        ("who gave up is not tried again", vec![Candidate { failed: true, ..ready_to_go("a") }], limits(), vec![]),
        (
            "and blocks no other host",
            vec![Candidate { failed: true, ..to(V2, Update, ready_to_go("a")) }, ready_to_go("b")],
            two,
            vec![("a", None), ("b", Some(Update))],
        ),
        ("who is held is left alone", vec![held(to(V2, Update, ready_to_go("a")))], limits(), vec![("a", None)]),
        ("and counts nowhere", vec![held(dead("a")), ready_to_go("b")], limits(), vec![("b", Some(Update))]),
        (
            "paused: only what has begun goes on",
            vec![to(V2, Update, ready_to_go("a")), changed(to(V2, Update, ready_to_go("b"))), old(node("c"))],
            paused,
            vec![("a", None)],
        ),
        (
            "closed: only operations that have begun, or are not disruptive, continue",
            vec![
                to(V2, Update, ready_to_go("a")),
                changed(granted(node("b"), Reboot)),
                to(V2, Stage, old(node("c"))),
                old(node("d")),
                granted(node("e"), Reboot),
            ],
            closed,
            vec![("a", None), ("e", None)],
        ),
    ]);
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
    check(vec![
        (
            "of two that are drained at once, one is let alone",
            vec![drains("a"), drains("b")],
            limits(),
            vec![("b", None)],
        ),
        ("it waits while its own cordon is there", vec![drains("a"), leaving(cordoned(node("b")))], limits(), vec![]),
        ("what is wiped goes on", vec![wiped("b"), drains("a")], limits(), vec![("a", None)]),
        ("a change makes way, too", vec![update("a"), drains("b")], limits(), vec![("b", None)]),
        ("what is changed does not", vec![changed(update("b")), changed(update("a"))], limits(), vec![]),
        (
            "a node that is still down costs nothing",
            vec![drains("a"), granted(leaving(dead("b")), Remove)],
            limits(),
            vec![],
        ),
        (
            "and is not begun with when it is up again",
            vec![drains("a"), leaving(cordoned(node("b")))],
            limits(),
            vec![],
        ),
    ]);
}

fn asks(candidate: Candidate) -> Candidate {
    Candidate { maintenance: Some(By::Host), ..candidate }
}

#[test]
fn maintenance() {
    use GrantType::{Maintenance, Remove, Stage, Update};
    let by_person = |candidate| Candidate { maintenance: Some(By::Person), ..candidate };
    let drained = |name: &str| changed(granted(asks(Candidate { available: false, ..node(name) }), Maintenance));
    let draining = |name: &str| begun(granted(asks(Candidate { available: false, ..node(name) }), Maintenance));
    let free = limits();
    let closed = Limits { open: false, gate: UpdateLimit { limit: Some(0), ..UpdateLimit::default() }, ..limits() };
    let paused = Limits { paused: true, ..limits() };
    let two = Limits { max_unavailable: IntOrPercent::Int(2), ..limits() };
    check(vec![
        ("one at a time", vec![asks(node("a")), asks(node("b"))], free.clone(), vec![("a", Some(Maintenance))]),
        (
            "what people request goes first",
            vec![asks(node("a")), by_person(node("b"))],
            free.clone(),
            vec![("b", Some(Maintenance))],
        ),
        ("no window and no step is asked", vec![asks(node("a"))], closed, vec![("a", Some(Maintenance))]),
        ("a pause is", vec![asks(node("a"))], paused.clone(), vec![]),
        ("and a hold", vec![asks(held(node("a")))], free.clone(), vec![]),
        ("it has its place", vec![drained("a"), asks(node("b"))], free.clone(), vec![]),
        (
            "and keeps it when it goes silent",
            vec![Candidate { down_since: at(-3600), unreachable: true, ready: false, ..drained("a") }, asks(node("b"))],
            Limits {
                ignore_lost_after: Some(Duration::from_mins(1)),
                max_unhealthy: IntOrPercent::Percent(100),
                ..limits()
            },
            vec![],
        ),
        ("it is not updated", vec![old(drained("a")), node("b")], free.clone(), vec![]),
        ("before updates", vec![ready_to_go("a"), asks(node("b"))], free.clone(), vec![("b", Some(Maintenance))]),
        (
            "beside them",
            vec![ready_to_go("a"), asks(node("b"))],
            two,
            vec![("a", Some(Update)), ("b", Some(Maintenance))],
        ),
        ("after removals", vec![leaving(node("a")), asks(node("b"))], free.clone(), vec![("a", Some(Remove))]),
        (
            "the removal of its host goes on",
            vec![leaving(drained("a")), node("b")],
            free.clone(),
            vec![("a", Some(Remove))],
        ),
        (
            "what is sent ahead waits",
            vec![asks(to(V2, Stage, old(node("a"))))],
            free.clone(),
            vec![("a", Some(Maintenance))],
        ),
        ("withdrawn before it began", vec![granted(node("a"), Maintenance)], free.clone(), vec![("a", None)]),
        (
            "withdrawn before it is drained",
            vec![Candidate { maintenance: None, ..draining("a") }],
            free.clone(),
            vec![("a", None)],
        ),
        ("a pause before it is drained", vec![draining("a")], paused.clone(), vec![("a", None)]),
        ("withdrawn when it is drained", vec![Candidate { maintenance: None, ..drained("a") }], free.clone(), vec![]),
        ("a pause when it is drained", vec![drained("a")], paused, vec![]),
        ("a hold when it is drained", vec![held(drained("a")), asks(node("b"))], free.clone(), vec![]),
        (
            "a node that is down has nothing to lose",
            vec![asks(dead("a")), asks(dead("b")), node("c")],
            Limits { max_unhealthy: IntOrPercent::Percent(100), ..free.clone() },
            vec![("a", Some(Maintenance)), ("b", Some(Maintenance))],
        ),
        (
            "it waits after a failure",
            vec![asks(waiting(node("a"))), asks(node("b"))],
            free.clone(),
            vec![("b", Some(Maintenance))],
        ),
        ("what WMCO made stays", vec![asks(Candidate { withheld: true, ..old(node("a")) })], free.clone(), vec![]),
        ("a host that joins", vec![asks(granted(new("a"), GrantType::Provision))], free, vec![]),
    ]);
}

/// Covers a host that ends its maintenance and requests the next one in the same moment, as often as it likes.
#[test]
fn a_host_that_requests_its_maintenance_again_comes_after_updates() {
    use GrantType::{Maintenance, Stage, Update};
    let again = |second, name: &str| Candidate { maintained_at: at(second), ..asks(node(name)) };
    let by_person = |candidate| Candidate { maintenance: Some(By::Person), ..candidate };
    let used = |candidate| Candidate { grant_used: true, ..granted(candidate, Maintenance) };
    let (free, closed) = (limits(), Limits { open: false, ..limits() });
    check(vec![
        ("after an update", vec![again(-9, "a"), ready_to_go("b")], free.clone(), vec![("b", Some(Update))]),
        ("its own, too", vec![again(-9, "a"), staged(old(again(-9, "b")))], free.clone(), vec![("b", Some(Update))]),
        (
            "which waits for no images",
            vec![Candidate { wants_images: true, ..staged(old(again(-9, "a"))) }],
            free.clone(),
            vec![("a", Some(Update))],
        ),
        (
            "it is sent ahead, and none may begin",
            vec![to(V2, Stage, staged(old(again(-9, "a"))))],
            closed.clone(),
            vec![("a", Some(Maintenance))],
        ),
        ("unless none may begin", vec![again(-9, "a"), ready_to_go("b")], closed, vec![("a", Some(Maintenance))]),
        (
            "a person may",
            vec![by_person(again(-9, "a")), ready_to_go("b")],
            free.clone(),
            vec![("a", Some(Maintenance))],
        ),
        (
            "after the first request of another",
            vec![again(-9, "a"), asks(node("b"))],
            free.clone(),
            vec![("b", Some(Maintenance))],
        ),
        (
            "after one whose last is longer ago",
            vec![again(-5, "a"), again(-9, "b")],
            free.clone(),
            vec![("b", Some(Maintenance))],
        ),
        ("a grant does not move", vec![granted(again(-9, "a"), Maintenance), ready_to_go("b")], free.clone(), vec![]),
        ("a used one gives its place back", vec![used(again(0, "a")), ready_to_go("b")], free, vec![("a", None)]),
    ]);
}

/// Covers hosts that do nothing but begin and end their maintenance.
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
    check(vec![
        (
            "it is not repaired",
            vec![Candidate { ready: false, down_since: at(-3600), ..drained("a") }, node("b")],
            free.clone(),
            vec![],
        ),
        (
            "nor is a node for which it is requested",
            vec![asks(waiting(Candidate { down_since: at(-3600), ..dead("a") })), node("b")],
            free.clone(),
            vec![],
        ),
        (
            "it goes before a repair that has changed nothing",
            vec![begun(granted(asks(Candidate { down_since: at(-3600), ..dead("a") }), Repair)), node("b"), node("c")],
            free.clone(),
            vec![("a", Some(Maintenance))],
        ),
        (
            "it takes no place of a broken node",
            vec![drained("a"), asks(dead("b")), node("c"), node("d")],
            Limits { max_concurrent: 1, ..free.clone() },
            vec![("b", Some(Maintenance))],
        ),
    ]);
}

#[test]
fn hosts_whose_joins_were_interrupted_leave_one_after_another() {
    let interrupted = |name| leaving(changed(node(name)));
    let cordoned_by_us = |candidate| Candidate { available: false, ..candidate };
    let removed = |candidate| granted(Candidate { removing: true, begun: false, ..candidate }, GrantType::Remove);
    check(vec![
        ("none has its turn", vec![interrupted("a"), interrupted("b")], limits(), vec![("a", Some(GrantType::Remove))]),
        (
            "one has a cordon that was left",
            vec![cordoned_by_us(interrupted("a")), interrupted("b")],
            limits(),
            vec![("a", Some(GrantType::Remove))],
        ),
        ("one has its turn", vec![removed(interrupted("a")), interrupted("b")], limits(), vec![]),
        ("and drains", vec![removed(cordoned_by_us(interrupted("a"))), interrupted("b")], limits(), vec![]),
    ]);
}

#[test]
fn a_hold_does_not_make_room() {
    use GrantType::{Remove, Update};
    let held_change = held(changed(to(V2, Update, cordoned(ready_to_go("a")))));
    let held_removal = held(granted(leaving(node("a")), Remove));
    let being_removed_as = |name| Candidate { removing: true, ..leaving(node(name)) };
    let being_removed = being_removed_as("a");
    check(vec![
        ("a change goes on under its hold", vec![held_change, ready_to_go("b")], limits(), vec![]),
        ("a removal ends before its place is free", vec![held_removal, ready_to_go("b")], limits(), vec![("a", None)]),
        ("without its grant, too", vec![being_removed, held(ready_to_go("b"))], limits(), vec![]),
        ("and it counts", vec![held(being_removed_as("a")), ready_to_go("b")], limits(), vec![]),
    ]);
}

#[test]
fn the_gate() {
    use GrantType::{Reboot, Stage, Update};
    let wants = |candidate| Candidate { wants_reboot: true, ..candidate };
    check(vec![
        ("as many as it lets pass", vec![old(node("a")), old(node("b"))], gated(1), vec![("a", Some(Stage))]),
        ("no node", vec![to(V2, Update, ready_to_go("a")), to(V2, Stage, old(node("b"))), old(node("c"))], gated(0), {
            vec![("a", None), ("b", None)]
        }),
        ("who follows counts", vec![node("a"), ready_to_go("b")], gated(1), vec![]),
        ("who gave up counts", vec![Candidate { failed: true, ..old(node("a")) }, ready_to_go("b")], gated(1), vec![]),
        ("who is on its way counts", vec![begun(to(V2, Update, old(node("a")))), old(node("b"))], gated(1), vec![]),
        (
            "who is granted goes before who would be first",
            vec![to(V2, Update, ready_to_go("b")), ready_to_go("a")],
            Limits { max_unavailable: IntOrPercent::Int(2), ..gated(1) },
            vec![],
        ),
        (
            "neither who leaves nor who is held counts",
            vec![begun(granted(leaving(dead("a")), GrantType::Remove)), held(node("b")), old(node("c"))],
            gated(1),
            vec![("c", Some(Stage))],
        ),
        (
            "a lost one takes no place",
            vec![to(V2, Update, staged(old(silent("a")))), old(node("b")), node("c"), node("d")],
            Limits { ignore_lost_after: Some(Duration::from_hours(1)), remediation: RemediationType::None, ..gated(3) },
            vec![("a", None), ("b", Some(Stage))],
        ),
        ("a restart is not part of the change", vec![wants(old(node("a")))], gated(0), vec![("a", Some(Reboot))]),
        ("it waits for the change that is next", vec![wants(old(node("a")))], gated(1), vec![("a", Some(Stage))]),
        ("the change covers it", vec![wants(ready_to_go("a"))], limits(), vec![("a", Some(Update))]),
        (
            "one restart at a time",
            vec![wants(node("a")), wants(node("b")), node("c")],
            limits(),
            vec![("a", Some(Reboot))],
        ),
        ("it is over", vec![granted(node("a"), Reboot)], limits(), vec![("a", None)]),
    ]);
}

fn checked(candidate: Candidate) -> Candidate {
    Candidate { health_check: Some("MachineHealthCheck ns/c".into()), ..candidate }
}

#[test]
fn repairs_and_lost_nodes() {
    use GrantType::{Reboot, Remove, Repair, Stage, Update};
    let four = |mut candidates: Vec<Candidate>| {
        candidates.extend(["w", "x", "y", "z"].map(node));
        candidates
    };
    let never = Limits { remediation: RemediationType::None, ..limits() };
    let paused = Limits { paused: true, ..limits() };
    let lost = Limits { ignore_lost_after: Some(Duration::from_hours(1)), ..never.clone() };
    let few = Limits { max_unhealthy: IntOrPercent::Int(1), ..lost.clone() };
    check(vec![
        ("down for long", four(vec![long_dead("a")]), limits(), vec![("a", Some(Repair))]),
        ("not for so long", four(vec![dead("a")]), limits(), vec![]),
        ("never", four(vec![long_dead("a")]), never.clone(), vec![]),
        ("a person requests it", four(vec![requested(dead("a"))]), limits(), vec![("a", Some(Repair))]),
        ("and is asked for no cause", four(vec![requested(dead("a"))]), never.clone(), vec![("a", Some(Repair))]),
        (
            "nor while so many are down",
            vec![requested(dead("a")), dead("b"), dead("c"), node("d")],
            limits(),
            vec![("a", Some(Repair))],
        ),
        ("but not while it is paused", four(vec![requested(dead("a"))]), paused.clone(), vec![]),
        ("nor while it is held", four(vec![held(requested(dead("a")))]), limits(), vec![]),
        ("paused", four(vec![long_dead("a")]), paused, vec![]),
        ("waits", four(vec![waiting(granted(long_dead("a"), Repair))]), limits(), vec![("a", None)]),
        ("held", four(vec![held(long_dead("a"))]), limits(), vec![]),
        ("left to a MachineHealthCheck", four(vec![checked(long_dead("a"))]), limits(), vec![]),
        (
            "which came after the repair was granted",
            four(vec![checked(granted(long_dead("a"), Repair))]),
            limits(),
            vec![("a", None)],
        ),
        ("leaves", four(vec![leaving(long_dead("a"))]), limits(), vec![("a", Some(Remove))]),
        ("is Ready again", four(vec![granted(node("a"), Repair)]), limits(), vec![("a", None)]),
        (
            "so many at once, the longest first",
            four(vec![long_dead("a"), long_dead("b"), dead_for(900, "c")]),
            limits(),
            vec![("a", Some(Repair)), ("c", Some(Repair))],
        ),
        (
            "who was tried in vain goes last",
            four(vec![tried(long_dead("a")), tried(long_dead("b")), dead_for(900, "c"), dead_for(800, "d")]),
            limits(),
            vec![("c", Some(Repair)), ("d", Some(Repair))],
        ),
        (
            "those that are at it count",
            four(vec![long_dead("a"), begun(granted(long_dead("b"), Repair)), granted(long_dead("c"), Repair)]),
            limits(),
            vec![],
        ),
        (
            "too many are down",
            vec![long_dead("a"), granted(long_dead("b"), Repair), dead("c"), node("x")],
            limits(),
            vec![("b", None)],
        ),
        (
            "down because of an operation is no sign of trouble",
            vec![long_dead("a"), changed(granted(dead("b"), Reboot)), changed(granted(dead("c"), Reboot)), node("x")],
            limits(),
            vec![("a", Some(Repair))],
        ),
        (
            "repaired before it is sent another version",
            four(vec![to(V2, Stage, old(long_dead("a")))]),
            limits(),
            vec![("a", Some(Repair))],
        ),
        ("unless that has failed", four(vec![tried(old(long_dead("a")))]), limits(), vec![("a", Some(Stage))]),
        ("an update puts it right too", four(vec![staged(old(long_dead("a")))]), limits(), vec![("a", Some(Update))]),
        ("a silent node is waited for", four(vec![silent("a"), ready_to_go("b")]), never.clone(), vec![]),
        ("but not for ever", four(vec![silent("a"), ready_to_go("b")]), lost.clone(), vec![("b", Some(Update))]),
        (
            "unless the host answers",
            four(vec![Candidate { unreachable: false, ..silent("a") }, ready_to_go("b")]),
            lost.clone(),
            vec![],
        ),
        ("or there are too many", four(vec![silent("a"), silent("c"), ready_to_go("b")]), few.clone(), vec![]),
    ]);

    let decision = decide(&four(vec![silent("c"), silent("a")]), &lost, NOW);
    assert_eq!((decision.lost, decision.too_many_unhealthy), (vec!["a".to_string(), "c".to_string()], false));
    let decision = decide(&four(vec![silent("c"), silent("a")]), &few, NOW);
    assert_eq!((decision.lost, decision.too_many_unhealthy), (vec![], true));
}

/// Covers a grant that must be replaced, because the instance does nothing more with it.
#[test]
fn a_grant_whose_operation_is_over_is_not_left_as_it_is() {
    let follows = |used| Candidate { grant_used: used, ..to(V2, GrantType::Update, ready_to_go("a")) };
    assert_eq!(changes(&[follows(false)], &limits()), []);
    assert_eq!(changes(&[follows(true)], &limits()), [("a".to_owned(), Some(GrantType::Update))]);
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
    // Neighbours by name do not go together, and another version begins with others.
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
        // One that is down uses up the budget, withheld or not.
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
    use GrantType::{Reboot, Stage, Update};
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
    check(vec![
        ("a drain goes on", vec![blocked()], limits(), vec![]),
        ("the node is held", vec![held(blocked())], limits(), vec![("a", None)]),
        ("the pool is paused", vec![blocked()], paused(), vec![("a", None)]),
        ("the window closes", vec![blocked()], closed(), vec![("a", None)]),
        ("the template is taken back", vec![back(blocked())], limits(), vec![("a", None)]),
        ("it follows another version now, which is there", vec![other(blocked())], limits(), vec![("a", Some(Update))]),
        (
            "and one that has to be sent first",
            vec![Candidate { staged: false, ..other(blocked()) }],
            limits(),
            vec![("a", Some(Stage))],
        ),
        ("the version failed elsewhere", vec![blocked()], failed(false), vec![("a", None)]),
        ("the way back is not stopped by it", vec![blocked()], failed(true), vec![]),
        ("a host that was changed is brought to its end", vec![changed(held(blocked()))], paused(), vec![]),
        ("also when its window closes", vec![changed(back(blocked()))], closed(), vec![]),
        ("a restart goes on", vec![restart(node("a"))], limits(), vec![]),
        ("a restart is given up", vec![restart(node("a"))], paused(), vec![("a", None)]),
        (
            "no change needs it any more",
            vec![Candidate { wants_reboot: false, ..restart(node("a")) }],
            limits(),
            vec![("a", None)],
        ),
        ("one that is on its way is not", vec![changed(restart(node("a")))], paused(), vec![]),
        ("a repair goes on, in no window", vec![repaired(long_dead("a"))], closed(), vec![]),
        ("the node is Ready again by itself", vec![repaired(node("a"))], limits(), vec![("a", None)]),
        ("a person holds the node", vec![held(repaired(long_dead("a")))], limits(), vec![("a", None)]),
        ("the pool is paused", vec![repaired(long_dead("a"))], paused(), vec![("a", None)]),
        ("nothing is repaired any more", vec![repaired(long_dead("a"))], no_repairs(), vec![("a", None)]),
        ("a repair that has changed the host is finished", vec![changed(repaired(node("a")))], paused(), vec![]),
    ]);
}

#[test]
fn the_slot_of_a_host_that_fails_goes_to_another() {
    use GrantType::Update;
    let waits = |candidate: Candidate| Candidate { waits_until: at(60), ..candidate };
    check(vec![
        (
            "at once",
            vec![to(V2, Update, waits(ready_to_go("a"))), ready_to_go("b")],
            Limits { max_unavailable: IntOrPercent::Int(2), ..limits() },
            vec![("a", None), ("b", Some(Update))],
        ),
        (
            "one that was tried in vain goes after the others",
            vec![tried(ready_to_go("a")), ready_to_go("b")],
            limits(),
            vec![("b", Some(Update))],
        ),
        ("and then again", vec![tried(ready_to_go("a"))], limits(), vec![("a", Some(Update))]),
    ]);
}

#[test]
fn nodes_of_an_abandoned_rollout_go_first() {
    let astray = |candidate: Candidate| Candidate { astray: true, ..candidate };
    check(vec![
        (
            "before all others",
            vec![ready_to_go("a"), astray(ready_to_go("b"))],
            gated(1),
            vec![("b", Some(GrantType::Update))],
        ),
        (
            "also if they have to be sent it first",
            vec![ready_to_go("a"), astray(old(node("b")))],
            gated(1),
            vec![("b", Some(GrantType::Stage))],
        ),
        (
            "which holds up no other node where there is room",
            vec![ready_to_go("a"), astray(old(node("b")))],
            limits(),
            vec![("a", Some(GrantType::Update)), ("b", Some(GrantType::Stage))],
        ),
        (
            "but not if they were tried in vain",
            vec![ready_to_go("a"), tried(astray(ready_to_go("b")))],
            gated(1),
            vec![("a", Some(GrantType::Update))],
        ),
    ]);
}

/// Covers a grant that has to get a place, otherwise the operator would cordon the node in the moment before its pool takes the grant back.
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

    // Another node has the place, and may be cordoned already, whichever of them is the first by name.
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

/// Covers a host that was off for four days, with a certificate of the default life, as old as any on a host that is on. Back in time, wicd renews it
/// by itself.
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
        // A repair brings another, too.
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
        ("a person holds the node", held(expired(ready_to_go("a"))), limits(), &None),
    ] {
        assert_eq!(&renewed(candidate, &limits), expected, "{name}");
    }
    check(vec![
        ("what has begun goes on", vec![renewing(ready_to_go("a"))], closed(), vec![]),
        ("until a person stops it", vec![held(renewing(ready_to_go("a")))], closed(), vec![("a", None)]),
    ]);
}
