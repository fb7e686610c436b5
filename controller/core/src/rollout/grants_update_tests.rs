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
        "files are copied first, to a limited number of nodes":
            ["a", "b", "c", "d", "e", "f"].map(|n| old(node(n))) => "a Stage, b Stage, c Stage, d Stage",
        "a node that has all files counts among those that are next":
            [ready_to_go("a"), ready_to_go("b"), old(node("c")), old(node("d")), old(node("e")), old(node("f")),
                old(node("g"))] => "a Update, c Stage, d Stage, e Stage",
        "a grant to update replaces a grant to stage":
            [to(V2, Stage, ready_to_go("a")), to(V2, Stage, ready_to_go("b")),
                to(V2, Stage, old(node("c")))] => "a Update",
        "a grant to stage another version is replaced or revoked":
            [to("1-a", Stage, old(node("a"))), to("1-a", Stage, node("b"))] => "a Stage, b -",
        "a granted update uses up the budget": [to(V2, Update, ready_to_go("b")), ready_to_go("a")] => "",
        "a node that is not Ready uses up the budget": [dead("a"), ready_to_go("b")] => "",
        "as many nodes are updated as maxUnavailable allows": [ready_to_go("a"), ready_to_go("b")], &up_to(2) => "a Update, b Update",
        "a removal comes before an update": [leaving(node("b")), ready_to_go("a")] => "b Remove",
        "the limit over all pools applies": [ready_to_go("a"), ready_to_go("b")], &capped(1) => "a Update",
        "the limit over all pools is used up": [ready_to_go("a")], &capped(0) => "",
        "nodes that are not Ready are not charged to maxUnavailable, and come first":
            [ready_to_go("a"), node("x"), node("y"), staged(old(dead("d"))), staged(old(dead("c"))),
                staged(old(dead("b")))] => "b Update, c Update",
        "if too many nodes are not Ready, maxUnavailable limits their updates, too":
            [ready_to_go("a"), staged(old(dead("d"))), staged(old(dead("c"))), staged(old(dead("b")))] => "b Update",
        "if too many nodes are not Ready, they are updated one after the other":
            [begun(to(V2, Update, staged(old(dead("d"))))), staged(old(dead("c"))), staged(old(dead("b")))] => "",
        "updates of nodes that are not Ready are limited by maxConcurrent":
            [node("x"), node("y"), begun(to(V2, Update, staged(old(dead("c"))))), staged(old(dead("d"))),
                staged(old(dead("b")))] => "b Update",
        "a failed update does not count against maxConcurrent during its backoff":
            [node("x"), node("y"), waiting(begun(to(V2, Update, staged(old(dead("c")))))), staged(old(dead("d"))),
                staged(old(dead("b")))] => "b Update, d Update",
        "changes without disruption are not charged to maxUnavailable":
            [dead("x"), none("a"), none("b"), none("c")] => "a Update, b Update",
        "changes without disruption are limited by maxConcurrent": [quiet("a"), none("b"), none("c")] => "b Update",
        "a grant without disruption is revoked if the change is disruptive now":
            [dead("x"), Candidate { change: ready_to_go("a").change, ..quiet("a") }] => "a -",
        "the grant of a node that follows the target is revoked": [to(V2, Update, node("a"))] => "a -",
        "the grant stays until the begun update ends": [changed(to(V2, Update, node("a")))] => "",
        "the grant of a node in backoff is revoked, and its slot is free in the next decision":
            [waiting(to(V2, Update, ready_to_go("a"))), ready_to_go("b")] => "a -",
        "a begun update keeps its grant during a backoff": [waiting(begun(to(V2, Update, ready_to_go("a"))))] => "",
        "a grant to update to another version is replaced": [to("1-a", Update, ready_to_go("a"))] => "a Update",
        "a grant to update to another version is replaced by a grant to stage if files are missing": [to("1-a", Update, old(node("a")))] => "a Stage",
        "an update that has changed its host continues to its version": [changed(to("1-a", Update, ready_to_go("a")))] => "",
        "an update that has not begun is revoked when another node is not Ready": [dead("x"), to(V2, Update, ready_to_go("a"))] => "a -",
        "a node that failed to follow the version is not retried": [Candidate { failed: true, ..ready_to_go("a") }] => "",
        "a node that failed to follow the version blocks no other node":
            [Candidate { failed: true, ..to(V2, Update, ready_to_go("a")) },
                ready_to_go("b")], &up_to(2) => "a -, b Update",
        "the grant of a node on hold is revoked": [held(to(V2, Update, ready_to_go("a")))] => "a -",
        "a node on hold does not count as unavailable": [held(dead("a")), ready_to_go("b")] => "b Update",
        "in a paused pool, only begun operations continue":
            [to(V2, Update, ready_to_go("a")), changed(to(V2, Update, ready_to_go("b"))),
                old(node("c"))], &paused() => "a -",
        "in a closed window, only operations that have begun, or are not disruptive, continue":
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
        "no more nodes than the limit are staged": [old(node("a")), old(node("b"))], &gated(1) => "a Stage",
        "a limit of 0 admits no node":
            [to(V2, Update, ready_to_go("a")), to(V2, Stage, old(node("b"))), old(node("c"))], &gated(0) => "a -, b -",
        "a node that follows the target counts": [node("a"), ready_to_go("b")], &gated(1) => "",
        "a node that failed to follow the target counts": [Candidate { failed: true, ..old(node("a")) }, ready_to_go("b")], &gated(1) => "",
        "a node that is being updated counts": [begun(to(V2, Update, old(node("a")))), old(node("b"))], &gated(1) => "",
        "a granted update comes before a node that is first by name":
            [to(V2, Update, ready_to_go("b")), ready_to_go("a")],
            &Limits { max_unavailable: IntOrPercent::Int(2), ..gated(1) } => "",
        "neither a leaving node nor a node on hold counts":
            [begun(granted(leaving(dead("a")), Remove)), held(node("b")), old(node("c"))], &gated(1) => "c Stage",
        "a lost node does not count, and gets no grant":
            [to(V2, Update, staged(old(silent("a")))), old(node("b")), node("c"), node("d")], &lost => "a -, b Stage",
        "a requested restart does not count": [wants(old(node("a")))], &gated(0) => "a Reboot",
        "a requested restart waits if the change of the node is next": [wants(old(node("a")))], &gated(1) => "a Stage",
        "a change includes the requested restart": [wants(ready_to_go("a"))] => "a Update",
        "one restart at a time": [wants(node("a")), wants(node("b")), node("c")] => "a Reboot",
        "the grant is revoked after the restart": [granted(node("a"), Reboot)] => "a -",
    }
}

#[test]
fn an_operation_that_has_changed_nothing_is_aborted_if_it_is_not_wanted() {
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
        "a drain continues": [blocked()] => "",
        "a hold aborts a drain": [held(blocked())] => "a -",
        "a pause aborts a drain": [blocked()], &paused() => "a -",
        "a closed window aborts a drain": [blocked()], &closed() => "a -",
        "a reverted template aborts a drain": [back(blocked())] => "a -",
        "a drain for another version is replaced by an update to the target": [other(blocked())] => "a Update",
        "a drain for another version is replaced by a grant to stage the target": [Candidate { staged: false, ..other(blocked()) }] => "a Stage",
        "a drain for a version that failed elsewhere is aborted": [blocked()], &failed(false) => "a -",
        "failures do not stop a rollback": [blocked()], &failed(true) => "",
        "an update that has changed its host continues despite a hold and a pause": [changed(held(blocked()))], &paused() => "",
        "an update that has changed its host continues in a closed window": [changed(back(blocked()))], &closed() => "",
        "a restart continues": [restart(node("a"))] => "",
        "a pause aborts a restart": [restart(node("a"))], &paused() => "a -",
        "a restart that is no longer requested is aborted": [Candidate { wants_reboot: false, ..restart(node("a")) }] => "a -",
        "a restart that has changed its host continues": [changed(restart(node("a")))], &paused() => "",
        "a repair continues in a closed window": [repaired(long_dead("a"))], &closed() => "",
        "a repair is aborted when the node is Ready again": [repaired(node("a"))] => "a -",
        "a hold aborts a repair": [held(repaired(long_dead("a")))] => "a -",
        "a pause aborts a repair": [repaired(long_dead("a"))], &paused() => "a -",
        "a repair is aborted when the pool has no remediation any more": [repaired(long_dead("a"))], &no_repairs() => "a -",
        "a repair that has changed its host continues": [changed(repaired(node("a")))], &paused() => "",
    }
}

#[test]
fn the_slot_of_a_host_that_fails_goes_to_another() {
    use GrantType::Update;
    let waits = |candidate: Candidate| Candidate { waits_until: at(60), ..candidate };
    check! {
        "the slot of a node in backoff goes to another node":
            [to(V2, Update, waits(ready_to_go("a"))), ready_to_go("b")],
            &up_to(2) => "a -, b Update",
        "a node whose update failed comes last": [tried(ready_to_go("a")), ready_to_go("b")] => "b Update",
        "a node whose update failed is retried": [tried(ready_to_go("a"))] => "a Update",
    }
}

#[test]
fn nodes_of_an_abandoned_rollout_go_first() {
    let follows_abandoned_version = |candidate: Candidate| Candidate { follows_abandoned_version: true, ..candidate };
    check! {
        "they come before all other nodes": [ready_to_go("a"), follows_abandoned_version(ready_to_go("b"))], &gated(1) => "b Update",
        "they come first even if files are missing":
            [ready_to_go("a"), follows_abandoned_version(old(node("b")))], &gated(1) => "b Stage",
        "copying their files delays no other node that the limit admits":
            [ready_to_go("a"), follows_abandoned_version(old(node("b")))] => "a Update, b Stage",
        "they do not come first after a failed attempt":
            [ready_to_go("a"), tried(follows_abandoned_version(ready_to_go("b")))], &gated(1) => "a Update",
    }
}
