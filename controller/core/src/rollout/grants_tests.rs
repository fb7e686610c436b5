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
/// Returns a host whose last attempt has failed, and whose backoff is over.
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
/// Returns a node that needs a change with a drain.
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
        "a granted join counts against the limit": [granted(new("a"), Provision), new("b"), new("c")] => "b Provision",
        "a host whose join failed comes last": [tried(new("a")), new("b"), new("c")] => "b Provision, c Provision",
        "a host in backoff passes its slot to another host":
            [waiting(granted(new("a"), Provision)), new("b"), new("c")] => "a -, b Provision, c Provision",
        "a host in backoff gets no grant": [waiting(new("a"))] => "",
        "the grant of a joined host is revoked": [granted(node("a"), Provision)] => "a -",
        "nodes that need nothing get no grant": [node("a"), node("b")] => "",
        "in a paused pool, nothing begins": [new("a"), leaving(node("b"))], &paused() => "",
        "in a paused pool, granted joins and removals continue":
            [granted(new("a"), Provision), granted(leaving(node("b")), Remove)], &paused() => "",
        "a closed window restricts neither joins nor removals":
            [new("a"), leaving(node("b"))], &closed() => "a Provision, b Remove",
        "one node is removed at a time": [leaving(node("a")), leaving(node("b")), node("c")] => "a Remove",
        "a granted removal counts against the budget": [granted(leaving(node("a")), Remove), leaving(node("b"))] => "",
        "a node that is not Ready uses up the budget": [dead("a"), leaving(node("b"))] => "",
        "a node whose removal could not begin passes its slot to another node":
            [waiting(granted(leaving(node("a")), Remove)), leaving(node("b"))] => "a -",
        "while it waits for its next attempt, another node is removed": [waiting(leaving(node("a"))), leaving(node("b"))] => "b Remove",
        "a cordoned node keeps its slot while it waits":
            [Candidate { removing: true, ..waiting(granted(leaving(cordoned(node("a"))), Remove)) },
                leaving(node("b"))] => "",
        "the removal of a node that is not Ready is not charged to maxUnavailable": [leaving(dead("a")), node("b")] => "a Remove",
        "the removal of a host that never joined is not charged to maxUnavailable":
            [dead("x"), leaving(new("a")), leaving(new("b")), leaving(new("c"))] => "a Remove, b Remove",
        "a failed removal blocks no other host":
            [waiting(granted(leaving(dead("a")), Remove)), granted(leaving(dead("b")), Remove), leaving(dead("c")),
                leaving(dead("d"))] => "c Remove",
        "all leaving hosts are orphaned at once, even on hold": [leaving(node("a")), held(leaving(node("b")))], &orphan => "a Orphan, b Orphan",
        "a grant to orphan replaces a grant to remove": [granted(leaving(node("a")), Remove)], &orphan => "a Orphan",
        "a grant to orphan replaces a begun update": [leaving(begun(to(V2, Update, old(dead("a")))))], &orphan => "a Orphan",
        "a host that is being deconfigured keeps its grant to remove":
            [held(Candidate { deconfiguring: true, ..granted(leaving(dead("a")), Remove) })], &orphan => "",
        "a host that no user has deleted is orphaned, even in a pool that deconfigures":
            [held(leaving(Candidate { let_go: true, ..node("a") })), leaving(node("b")),
                node("c")] => "a Orphan, b Remove",
        "a host that is removed with its machine is ignored, and blocks no other host":
            [leaving(Candidate { vanishing: true, ..granted(dead("a"), Update) }), leaving(node("b")),
                node("c")] => "b Remove",
        "a host that leaves while it joins is removed": [granted(leaving(new("a")), Provision)] => "a Remove",
        "the removal of a host that stays is revoked": [granted(node("a"), Remove)] => "a -",
        "the removal of a host that stays is revoked even after its drain": [granted(Candidate { available: false, ..node("a") }, Remove)] => "a -",
        "a host on hold neither joins nor leaves":
            [held(new("a")), held(leaving(node("b"))), held(granted(new("c"), Provision))] => "c -",
        "a removal replaces an update that has not begun": [leaving(to(V2, Update, ready_to_go("a")))] => "a Remove",
        "a removal takes over the slot of a begun update":
            [leaving(begun(to(V2, Update, old(dead("a"))))), node("b")] => "a Remove",
        "a removal does not get a slot from a change without disruption, which has none":
            [Candidate { grant_disruption: Some(Disruption::None), ..leaving(begun(to(V2, Update, old(node("a"))))) },
                dead("b")] => "",
        "a begun update on hold continues before the removal": [held(leaving(begun(to(V2, Update, old(dead("a"))))))] => "",
    }
}

/// Returns a node that the operator has cordoned: Ready, and not available.
fn cordoned(candidate: Candidate) -> Candidate {
    Candidate { ready: true, available: false, down_since: None, ..candidate }
}

#[test]
fn no_more_nodes_than_allowed_are_disturbed_when_nodes_become_ready_again() {
    use GrantType::{Remove, Update};
    let drains = |name: &str| Candidate { removing: true, ..granted(leaving(cordoned(node(name))), Remove) };
    let update = |name: &str| begun(to(V2, Update, cordoned(ready_to_go(name))));
    let wiped = |name: &str| Candidate { deconfiguring: true, ..drains(name) };
    check! {
        "of two nodes that are drained at once, one is uncordoned": [drains("a"), drains("b")] => "b -",
        "its removal waits while it is still cordoned": [drains("a"), leaving(cordoned(node("b")))] => "",
        "a deconfiguration continues, and a drain is aborted": [wiped("b"), drains("a")] => "a -",
        "of an update and a removal, the second by name is aborted": [update("a"), drains("b")] => "b -",
        "updates that have changed their hosts continue": [changed(update("b")), changed(update("a"))] => "",
        "the removal of a node that is not Ready continues": [drains("a"), granted(leaving(dead("b")), Remove)] => "",
        "its removal waits when it is Ready again": [drains("a"), leaving(cordoned(node("b")))] => "",
    }
}

#[test]
fn hosts_whose_joins_were_interrupted_leave_one_after_another() {
    let interrupted = |name| leaving(changed(node(name)));
    let removed = |candidate| granted(Candidate { removing: true, begun: false, ..candidate }, GrantType::Remove);
    check! {
        "one of two hosts gets a grant": [interrupted("a"), interrupted("b")] => "a Remove",
        "a leftover cordon does not delay the removal": [cordoned(interrupted("a")), interrupted("b")] => "a Remove",
        "the second host waits for the first": [removed(interrupted("a")), interrupted("b")] => "",
        "the second host waits while the first is drained": [removed(cordoned(interrupted("a"))), interrupted("b")] => "",
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
        "a begun update on hold keeps its slot": [held_change, ready_to_go("b")] => "",
        "the slot of a revoked removal is free in the next decision": [held_removal, ready_to_go("b")] => "a -",
        "a removal in progress without a grant keeps its slot": [being_removed, held(ready_to_go("b"))] => "",
        "a removal in progress on hold keeps its slot": [held(being_removed_as("a")), ready_to_go("b")] => "",
    }
}

/// Covers a used grant. It must be replaced, because it has no further effect.
#[test]
fn a_used_grant_is_replaced() {
    let follows = |used| Candidate { grant_used: used, ..to(V2, GrantType::Update, ready_to_go("a")) };
    assert_eq!(changes(&[follows(false)], &limits()), "");
    assert_eq!(changes(&[follows(true)], &limits()), "a Update");
}

#[test]
fn a_grant_has_the_version_disruption_and_services_of_the_change() {
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
fn unavailable_nodes_come_first_then_zone_by_zone_and_lost_nodes_last() {
    let zoned = |zone: &str, candidate| Candidate { zone: zone.into(), ..old(candidate) };
    let mut candidates = vec![zoned("z1", silent("gone")), zoned("z9", dead("down"))];
    candidates.extend((0..3).map(|n| zoned("z1", node(&format!("a{n}")))));
    candidates.extend((0..3).map(|n| zoned("z0", node(&format!("b{n}")))));
    let limits = Limits { ignore_lost_after: Some(Duration::from_mins(1)), ..limits() };
    let order = decide(&candidates, &limits, NOW).waiting;
    assert_eq!(order, ["down", "b0", "b1", "b2", "a0", "a1", "a2", "gone"]);
}

#[test]
fn the_next_decision_is_due_at_the_earliest_deadline() {
    let wait = |s, candidate| Candidate { waits_until: at(s), ..candidate };
    let lost = Limits { ignore_lost_after: Some(Duration::from_secs(150)), ..limits() };
    let never = Limits { remediation: RemediationType::None, ..lost.clone() };
    let unreachable = Candidate { unreachable: true, ..dead("a") };
    for (name, candidates, limits, expected) in [
        ("nothing", vec![node("a")], limits(), None),
        ("the earliest backoff", vec![wait(90, new("a")), wait(60, new("b")), wait(-5, new("c"))], limits(), at(60)),
        ("a repair", vec![dead("a"), wait(900, new("b"))], limits(), at(500)),
        ("no repair, and a backoff", vec![dead("a"), wait(900, new("b"))], never.clone(), at(900)),
        ("a repair that is due", vec![long_dead("a"), held(dead("b"))], limits(), None),
        ("a node that counts as lost later", vec![unreachable.clone()], never, at(50)),
        ("a node that counts as lost before it is repaired", vec![unreachable], lost, at(50)),
    ] {
        assert_eq!(decide(&candidates, &limits, NOW).next, expected, "{name}");
    }
}

#[test]
fn a_node_that_would_lose_settings_is_not_changed() {
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
        assert!(
            !candidate.available || decision.changes.contains_key("b"),
            "the other node is not updated: {decision:?}"
        );
    }
    let key = withheld(Candidate { wants_key: true, ..ready_to_go("a") });
    let given = decide(&[key], &limits, NOW).changes.remove("a").flatten().map(|g| g.type_);
    assert_eq!(given, Some(GrantType::RotateKey));
    let leaves = decide(&[leaving(withheld(ready_to_go("a")))], &limits, NOW).changes.remove("a").flatten();
    assert_eq!(leaves.map(|g| g.type_), Some(GrantType::Remove));
}

/// Covers an uncharged grant that must get a slot: otherwise the operator would cordon the node just before its pool revokes the grant.
#[test]
fn an_uncharged_grant_is_marked_and_gets_a_slot_when_the_node_takes_pods_again() {
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
    assert_eq!(decision.changes, BTreeMap::from([("a".into(), None)]), "the node waits for its turn");

    // Another node has the slot and may be cordoned already, whichever is first by name.
    for (a, b) in [("a", "b"), ("b", "a")] {
        let waiting = Candidate { removing: true, ..back(a) };
        let working = Candidate { removing: true, ..granted(leaving(node(b)), Remove) };
        let decision = decide(&[waiting, working], &limits, NOW);
        assert!(decision.placed.is_empty() && decision.changes.keys().eq([a]), "{a}: {decision:?}");
    }
    let unwanted = granted(node("b"), GrantType::Reboot);
    let decision = decide(&[back("a"), unwanted], &up_to(2), NOW);
    assert!(
        decision.placed.is_empty(),
        "the slot of a grant that is revoked now is free in the next decision: {decision:?}"
    );
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
