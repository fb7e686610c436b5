//! Tests of grants for changes of nodes to another version.

use super::*;

#[test]
fn updates_begin_within_the_limits() {
    use GrantType::{Reboot, Stage, Update};
    let capped = |n| Limits {
        others: Some(Share { left: n, ..Share::default() }),
        max_unavailable: IntOrPercent::Int(2),
        ..limits()
    };
    let none = |name| staged(changed_by(Disruption::None, node(name)));
    let quiet = |name| Candidate { grant_disruption: Some(Disruption::None), ..to(V2, Update, none(name)) };
    check! {
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
        "so much is allowed": [ready_to_go("a"), ready_to_go("b")], &up_to(2) => "a Update, b Update",
        "a removal comes first": [leaving(node("b")), ready_to_go("a")] => "b Remove",
        "the cap over all pools": [ready_to_go("a"), ready_to_go("b")], &capped(1) => "a Update",
        "the cap over all pools is reached": [ready_to_go("a")], &capped(0) => "",
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
        "and blocks no other host":
            [Candidate { failed: true, ..to(V2, Update, ready_to_go("a")) },
                ready_to_go("b")], &up_to(2) => "a -, b Update",
        "who is held is left alone": [held(to(V2, Update, ready_to_go("a")))] => "a -",
        "and counts nowhere": [held(dead("a")), ready_to_go("b")] => "b Update",
        "paused: only what has begun goes on":
            [to(V2, Update, ready_to_go("a")), changed(to(V2, Update, ready_to_go("b"))),
                old(node("c"))], &paused() => "a -",
        "closed: only operations that have begun, or are not disruptive, continue":
            [to(V2, Update, ready_to_go("a")), changed(granted(node("b"), Reboot)), to(V2, Stage, old(node("c"))),
                old(node("d")), granted(node("e"), Reboot)], &closed() => "a -, e -",
    }
}

#[test]
fn the_gate_limits_the_number_of_changed_nodes() {
    use GrantType::{Reboot, Remove, Stage, Update};
    let lost =
        Limits { ignore_lost_after: Some(Duration::from_hours(1)), remediation: RemediationType::None, ..gated(3) };
    let wants = |candidate| Candidate { wants_reboot: true, ..candidate };
    check! {
        "as many as it lets pass": [old(node("a")), old(node("b"))], &gated(1) => "a Stage",
        "no node":
            [to(V2, Update, ready_to_go("a")), to(V2, Stage, old(node("b"))), old(node("c"))], &gated(0) => "a -, b -",
        "who follows counts": [node("a"), ready_to_go("b")], &gated(1) => "",
        "who gave up counts": [Candidate { failed: true, ..old(node("a")) }, ready_to_go("b")], &gated(1) => "",
        "who is on its way counts": [begun(to(V2, Update, old(node("a")))), old(node("b"))], &gated(1) => "",
        "who is granted goes before who would be first":
            [to(V2, Update, ready_to_go("b")), ready_to_go("a")],
            &Limits { max_unavailable: IntOrPercent::Int(2), ..gated(1) } => "",
        "neither who leaves nor who is held counts":
            [begun(granted(leaving(dead("a")), Remove)), held(node("b")), old(node("c"))], &gated(1) => "c Stage",
        "a lost one takes no place":
            [to(V2, Update, staged(old(silent("a")))), old(node("b")), node("c"), node("d")], &lost => "a -, b Stage",
        "a restart is not part of the change": [wants(old(node("a")))], &gated(0) => "a Reboot",
        "it waits for the change that is next": [wants(old(node("a")))], &gated(1) => "a Stage",
        "the change covers it": [wants(ready_to_go("a"))] => "a Update",
        "one restart at a time": [wants(node("a")), wants(node("b")), node("c")] => "a Reboot",
        "it is over": [granted(node("a"), Reboot)] => "a -",
    }
}

#[test]
fn a_change_that_has_changed_nothing_is_given_up() {
    use GrantType::{Reboot, Update};
    let draining = |candidate: Candidate| begun(Candidate { available: false, ..to(V2, Update, candidate) });
    let blocked = || draining(ready_to_go("a"));
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
    check! {
        "a drain goes on": [blocked()] => "",
        "the node is held": [held(blocked())] => "a -",
        "the pool is paused": [blocked()], &paused() => "a -",
        "the window closes": [blocked()], &closed() => "a -",
        "the template is taken back": [back(blocked())] => "a -",
        "it follows another version now, which is there": [other(blocked())] => "a Update",
        "and one that has to be sent first": [Candidate { staged: false, ..other(blocked()) }] => "a Stage",
        "the version failed elsewhere": [blocked()], &failed(false) => "a -",
        "the way back is not stopped by it": [blocked()], &failed(true) => "",
        "a host that was changed is brought to its end": [changed(held(blocked()))], &paused() => "",
        "also when its window closes": [changed(back(blocked()))], &closed() => "",
        "a restart goes on": [restart(node("a"))] => "",
        "a restart is given up": [restart(node("a"))], &paused() => "a -",
        "no change needs it any more": [Candidate { wants_reboot: false, ..restart(node("a")) }] => "a -",
        "one that is on its way is not": [changed(restart(node("a")))], &paused() => "",
        "a repair goes on, in no window": [repaired(long_dead("a"))], &closed() => "",
        "the node is Ready again by itself": [repaired(node("a"))] => "a -",
        "a user holds the node": [held(repaired(long_dead("a")))] => "a -",
        "the pool is paused": [repaired(long_dead("a"))], &paused() => "a -",
        "nothing is repaired any more": [repaired(long_dead("a"))], &no_repairs() => "a -",
        "a repair that has changed the host is finished": [changed(repaired(node("a")))], &paused() => "",
    }
}

#[test]
fn the_slot_of_a_host_that_fails_goes_to_another() {
    use GrantType::Update;
    let waits = |candidate: Candidate| Candidate { waits_until: at(60), ..candidate };
    check! {
        "at once":
            [to(V2, Update, waits(ready_to_go("a"))), ready_to_go("b")],
            &up_to(2) => "a -, b Update",
        "one that was tried in vain goes after the others": [tried(ready_to_go("a")), ready_to_go("b")] => "b Update",
        "and then again": [tried(ready_to_go("a"))] => "a Update",
    }
}

#[test]
fn nodes_of_an_abandoned_rollout_go_first() {
    let follows_abandoned_version = |candidate: Candidate| Candidate { follows_abandoned_version: true, ..candidate };
    check! {
        "before all others": [ready_to_go("a"), follows_abandoned_version(ready_to_go("b"))], &gated(1) => "b Update",
        "also if they have to be sent it first":
            [ready_to_go("a"), follows_abandoned_version(old(node("b")))], &gated(1) => "b Stage",
        "which holds up no other node where there is room":
            [ready_to_go("a"), follows_abandoned_version(old(node("b")))] => "a Update, b Stage",
        "but not if they were tried in vain":
            [ready_to_go("a"), tried(follows_abandoned_version(ready_to_go("b")))], &gated(1) => "a Update",
    }
}
