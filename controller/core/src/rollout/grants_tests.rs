//! Tests of grants for many states of a pool.

use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const V2: &str = "2-b";

/// Limits of a pool in which operations may begin.
pub(crate) fn limits() -> Limits {
    Limits {
        max_concurrent: 2,
        max_pulling: 2,
        max_unavailable: IntOrPercent::Int(1),
        paused: false,
        orphan: false,
        open: true,
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
/// Returns a host whose last attempt has failed, and that may be tried again.
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
/// Returns a host whose operation has begun and has changed something on it.
fn changed(candidate: Candidate) -> Candidate {
    Candidate { irrevocable: true, ..begun(candidate) }
}
fn changed_by(disruption: Disruption, candidate: Candidate) -> Candidate {
    Candidate {
        change: Some(PendingChange { version: V2.into(), disruption, services: vec!["kubelet".into()] }),
        ..candidate
    }
}
/// Returns a node that needs a change.
fn old(candidate: Candidate) -> Candidate {
    changed_by(Disruption::Drain, candidate)
}
/// Returns a node that has all files for its change.
fn staged(candidate: Candidate) -> Candidate {
    Candidate { staged: true, ..candidate }
}
fn ready_to_go(name: &str) -> Candidate {
    staged(old(node(name)))
}
/// Returns a host with a grant for a version.
fn to(version: &str, grant: GrantType, candidate: Candidate) -> Candidate {
    let grant_disruption = (grant == GrantType::Update).then_some(Disruption::Drain);
    Candidate { grant_version: Some(version.into()), grant_disruption, ..granted(candidate, grant) }
}
fn paused() -> Limits {
    Limits { paused: true, ..limits() }
}
fn closed() -> Limits {
    Limits { open: false, ..limits() }
}
fn up_to(max_unavailable: u32) -> Limits {
    Limits { max_unavailable: IntOrPercent::Int(max_unavailable), ..limits() }
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

/// Checks which grants change: a description, the candidates, the limits if they are not [`limits`], and the [`changes`].
macro_rules! check {
    ($($name:literal: $candidates:expr $(, $limits:expr)? => $expected:literal,)+) => {
        $(assert_eq!(changes(&$candidates, check!(@limits $($limits)?)), $expected, $name);)+
    };
    (@limits) => { &limits() };
    (@limits $limits:expr) => { $limits };
}

#[test]
fn hosts_join_and_leave_within_the_limits() {
    use GrantType::{Provision, Remove, Update};
    let orphan = Limits { orphan: true, ..limits() };
    check! {
        "new hosts up to the limit, by name": [new("c"), new("a"), new("b")] => "a Provision, b Provision",
        "a candidate that is taken counts": [granted(new("a"), Provision), new("b"), new("c")] => "b Provision",
        "who has failed goes last": [tried(new("a")), new("b"), new("c")] => "b Provision, c Provision",
        "who waits gives its candidate away":
            [waiting(granted(new("a"), Provision)), new("b"), new("c")] => "a -, b Provision, c Provision",
        "who waits is not taken": [waiting(new("a"))] => "",
        "who has joined gives its candidate back": [granted(node("a"), Provision)] => "a -",
        "nothing to do": [node("a"), node("b")] => "",
        "paused: nothing new": [new("a"), leaving(node("b"))], &paused() => "",
        "paused: what has begun goes on":
            [granted(new("a"), Provision), granted(leaving(node("b")), Remove)], &paused() => "",
        "a window that is closed does not concern them":
            [new("a"), leaving(node("b"))], &closed() => "a Provision, b Remove",
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
        "orphans go at once": [leaving(node("a")), held(leaving(node("b")))], &orphan => "a Orphan, b Orphan",
        "Orphan goes before a removal that was granted": [granted(leaving(node("a")), Remove)], &orphan => "a Orphan",
        "and before a change that has begun": [leaving(begun(to(V2, Update, old(dead("a")))))], &orphan => "a Orphan",
        "what is being deconfigured is finished":
            [held(Candidate { deconfiguring: true, ..granted(leaving(dead("a")), Remove) })], &orphan => "",
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

/// Returns a node that the operator has cordoned: Ready, and not available.
fn cordoned(candidate: Candidate) -> Candidate {
    Candidate { ready: true, available: false, down_since: None, ..candidate }
}

#[test]
fn nodes_that_come_back_in_the_middle_are_not_too_many() {
    use GrantType::{Remove, Update};
    let drains = |name: &str| Candidate { removing: true, ..granted(leaving(cordoned(node(name))), Remove) };
    let update = |name: &str| begun(to(V2, Update, cordoned(ready_to_go(name))));
    let wiped = |name: &str| Candidate { deconfiguring: true, ..drains(name) };
    check! {
        "of two that are drained at once, one is let alone": [drains("a"), drains("b")] => "b -",
        "it waits while its own cordon is there": [drains("a"), leaving(cordoned(node("b")))] => "",
        "what is wiped goes on": [wiped("b"), drains("a")] => "a -",
        "a change makes way, too": [update("a"), drains("b")] => "b -",
        "what is changed does not": [changed(update("b")), changed(update("a"))] => "",
        "a node that is still down costs nothing": [drains("a"), granted(leaving(dead("b")), Remove)] => "",
        "and is not begun with when it is up again": [drains("a"), leaving(cordoned(node("b")))] => "",
    }
}

#[test]
fn hosts_whose_joins_were_interrupted_leave_one_after_another() {
    let interrupted = |name| leaving(changed(node(name)));
    let removed = |candidate| granted(Candidate { removing: true, begun: false, ..candidate }, GrantType::Remove);
    check! {
        "none has its turn": [interrupted("a"), interrupted("b")] => "a Remove",
        "one has a cordon that was left": [cordoned(interrupted("a")), interrupted("b")] => "a Remove",
        "one has its turn": [removed(interrupted("a")), interrupted("b")] => "",
        "and drains": [removed(cordoned(interrupted("a"))), interrupted("b")] => "",
    }
}

#[test]
fn a_hold_does_not_make_room() {
    use GrantType::{Remove, Update};
    let held_change = held(changed(to(V2, Update, cordoned(ready_to_go("a")))));
    let held_removal = held(granted(leaving(node("a")), Remove));
    let being_removed_as = |name| Candidate { removing: true, ..leaving(node(name)) };
    let being_removed = being_removed_as("a");
    check! {
        "a change goes on under its hold": [held_change, ready_to_go("b")] => "",
        "a removal ends before its place is free": [held_removal, ready_to_go("b")] => "a -",
        "without its grant, too": [being_removed, held(ready_to_go("b"))] => "",
        "and it counts": [held(being_removed_as("a")), ready_to_go("b")] => "",
    }
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
    let decision = decide(&[node("a"), dead("b"), node("c")], &up_to(3), NOW);
    assert_eq!((decision.allowed_disruptions, decision.disrupting), (2, 0));
}

#[test]
fn unavailable_nodes_first_then_zone_after_zone_and_lost_ones_last() {
    let zoned = |zone: &str, candidate| Candidate { zone: zone.into(), ..old(candidate) };
    let mut candidates = vec![zoned("z1", silent("gone")), zoned("z9", dead("down"))];
    candidates.extend((0..3).map(|n| zoned("z1", node(&format!("a{n}")))));
    candidates.extend((0..3).map(|n| zoned("z0", node(&format!("b{n}")))));
    let limits = Limits { ignore_lost_after: Some(Duration::from_mins(1)), ..limits() };
    let order = decide(&candidates, &limits, NOW).waiting;
    assert_eq!(order, ["down", "b0", "b1", "b2", "a0", "a1", "a2", "gone"]);
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
    let decision = decide(&[back("a"), unwanted], &up_to(2), NOW);
    assert!(decision.placed.is_empty(), "what is taken back in the same decision is free in the next: {decision:?}");
}

#[path = "grants_certificate_tests.rs"]
mod certificates;
#[path = "grants_images_tests.rs"]
mod images;
#[path = "grants_key_tests.rs"]
mod keys;
#[path = "grants_maintenance_tests.rs"]
mod maintenance;
#[path = "grants_repair_tests.rs"]
mod repairs;
#[path = "grants_update_tests.rs"]
mod updates;
