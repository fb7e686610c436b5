//! Tests of the message of the condition Ready (column MESSAGE), which names the worst trouble first.

use api::{DrainStatus, Reason, Remediation, RemediationType, Step};

use super::*;
use crate::node::maintenance::By;

fn failed(name: &str) -> Member {
    changed(member(name, Phase::Failed), |_, status| {
        status.failures.as_mut().unwrap().first_time = Some("2027-01-01T09:50:12Z".parse().unwrap());
    })
}

fn not_ready(name: &str) -> Member {
    changed(member(name, Phase::NotReady), |candidate, _| {
        candidate.down_since = Some("2027-01-01T03:10:30Z".parse().unwrap());
    })
}

/// Returns a node whose Machine a MachineHealthCheck replaces.
fn checked(name: &str) -> Member {
    changed(not_ready(name), |candidate, _| candidate.health_check = Some("MachineHealthCheck ns/c".into()))
}

/// Returns a node for which a user requests maintenance.
fn to_maintain(name: &str) -> Member {
    changed(not_ready(name), |candidate, _| candidate.maintenance = Some(By::Person))
}

fn changing(member: Member, type_: GrantType, step: Step, drain: Option<DrainStatus>) -> Member {
    changed(member, |candidate, status| {
        (candidate.begun, candidate.grant) = (true, Some(type_));
        status.operation = Some(Operation { type_, step, drain, ..Operation::default() });
    })
}

fn draining(name: &str) -> Member {
    let start_time = "2027-01-01T03:20:00Z".parse().unwrap();
    let blockers = vec!["shop/cart: its PodDisruptionBudget allows no eviction".into()];
    let drain = DrainStatus { start_time, remaining: 2, blockers, ..DrainStatus::default() };
    changing(ready(name), GrantType::Update, Step::Drain, Some(drain))
}

/// Returns a node that does not work, and is being repaired.
fn repairing(name: &str) -> Member {
    changing(not_ready(name), GrantType::Repair, Step::Configure, None)
}

fn held(name: &str) -> Member {
    changed(ready(name), |candidate, _| candidate.held = true)
}

/// Returns a node that waits for a restart.
fn to_restart(name: &str) -> Member {
    changed(ready(name), |candidate, _| candidate.wants_reboot = true)
}

fn with(name: &str, type_: &'static str, status: Status, reason: Reason) -> Member {
    changed(ready(name), |_, s| api::conditions::set(&mut s.conditions, type_, status, reason, "", None, now()))
}

/// Returns a node whose entry now leads to another machine.
fn wrong_entry(name: &str) -> Member {
    changed(ready(name), |_, status| {
        status.address_failures = Some(Failures {
            last_reason: "NotThisMachine".into(),
            last_message: "the machine at 10.0.0.9 is not h0".into(),
            ..Failures::default()
        });
    })
}

/// Returns the columns READY and DEGRADED, with the message of READY.
fn columns(scene: &Scene) -> String {
    let status = scene.status();
    let (ready, _, message) = condition(&status, kind::READY);
    format!("{ready} {}: {message}", condition(&status, kind::DEGRADED).0)
}

fn of(members: impl Into<Vec<Member>>) -> String {
    columns(&Scene::of(pool(2), members))
}

fn of_list(members: impl Into<Vec<Member>>, problem: EntryError) -> String {
    columns(&Scene { list: listed(2, &[problem]), ..Scene::of(pool(2), members) })
}

#[test]
fn the_worst_comes_first_with_the_host_the_time_and_what_follows() {
    let refuses = KeyRotationStatus {
        total: 2,
        old: vec!["h0".into()],
        failed: vec![("h0".into(), "Connect: Administrator cannot log in".into())],
        problem: None,
    };
    let unread =
        KeyRotationStatus { problem: Some("the Secret x does not exist".into()), ..KeyRotationStatus::default() };
    let with_keys = |keys| columns(&Scene { keys: Some(keys), ..Scene::of(pool(2), [ready("h0"), ready("h1")]) });
    for (columns, expected) in [
        (
            of([ready("h0"), failed("h1")]),
            "False True: 1 of 2 nodes Ready; 1 of 2 failed: h1: Connect: no answer within 15 s (since 2027-01-01T09:50:12Z)",
        ),
        (
            of([not_ready("h0"), ready("h1")]),
            "False True: 1 of 2 nodes Ready; not Ready: h0 since 2027-01-01T03:10:30Z, its repair begins at 2027-01-01T03:20:30Z",
        ),
        (
            of([not_ready("h0"), not_ready("h1")]),
            "False True: 0 of 2 nodes Ready; not Ready: h0, h1; h0 since 2027-01-01T03:10:30Z, its repair begins at 2027-01-01T03:20:30Z",
        ),
        (
            of([checked("h0"), ready("h1")]),
            "False True: 1 of 2 nodes Ready; not Ready: h0 since 2027-01-01T03:10:30Z, left to MachineHealthCheck ns/c, which replaces its Machine",
        ),
        (
            of([to_maintain("h0"), ready("h1")]),
            "False True: 1 of 2 nodes Ready; not Ready: h0 since 2027-01-01T03:10:30Z, not repaired: its maintenance is requested",
        ),
        (
            of([draining("h0"), ready("h1")]),
            "Unknown True: 2 of 2 nodes Ready; the drain of h0 is blocked since 2027-01-01T03:20:00Z: shop/cart: its PodDisruptionBudget allows no \
             eviction; h0: Drain, 2 pods left; 1 updating: h0",
        ),
        (
            of_list([failed("h0"), not_ready("h1")], conflict()),
            "False True: 0 of 2 nodes Ready; 1 of 2 failed: h0: Connect: no answer within 15 s (since 2027-01-01T09:50:12Z); not Ready: h1 since \
             2027-01-01T03:10:30Z, its repair begins at 2027-01-01T03:20:30Z; host h1: address 10.0.0.0 port 22 already belongs to h0",
        ),
        (
            of_list([failed("h0"), ready("h1")], trouble_with_the_source(Reason::GitOperationFailed)),
            "False True: 1 of 2 nodes Ready; no answer; 1 of 2 failed: h0: Connect: no answer within 15 s (since 2027-01-01T09:50:12Z)",
        ),
        (of([held("h0"), ready("h1")]), "True False: 2 of 2 nodes Ready; 1 on hold: h0"),
        (
            of([repairing("h0"), ready("h1")]),
            "Unknown True: 1 of 2 nodes Ready; not Ready: h0 since 2027-01-01T03:10:30Z, being repaired; h0: Configure; 1 being repaired: h0",
        ),
        (of([to_restart("h0"), ready("h1")]), "True False: 2 of 2 nodes Ready; 1 to be restarted: h0"),
        (
            of([with("h0", kind::WICD_SILENT, Status::True, Reason::WicdSilent), ready("h1")]),
            "True False: 2 of 2 nodes Ready; 1 without reports of wicd (WicdSilent): h0",
        ),
        (
            of([wrong_entry("h0"), ready("h1")]),
            "False True: 2 of 2 nodes Ready; the entry of h0 is refused: the machine at 10.0.0.9 is not h0",
        ),
        (
            of([ready("h0"), ready("h1"), leaving(failed("h2")), failed("h3")]),
            "False True: 2 of 2 nodes Ready; 1 of 2 failed: h3: Connect: no answer within 15 s (since 2027-01-01T09:50:12Z); \
             1 not removed: h2: Connect: no answer within 15 s (since 2027-01-01T09:50:12Z)",
        ),
        (
            of([with("h0", kind::GMSA_READY, Status::False, Reason::AccountNotUsable), ready("h1")]),
            "True False: 2 of 2 nodes Ready; 1 with an unusable gMSA account (GMSAReady): h0",
        ),
        (
            with_keys(refuses),
            "True True: 2 of 2 nodes Ready; 1 of 2 hosts accept an old key: h0; h0: Connect: Administrator cannot log in",
        ),
        (with_keys(unread), "True True: 2 of 2 nodes Ready; the Secret x does not exist"),
    ] {
        assert_eq!(columns, expected);
    }
}

#[test]
fn a_repair_is_not_an_update() {
    let status = described(pool(2), [repairing("h0"), ready("h1")]);
    let of = |type_| (condition(&status, type_).0, condition(&status, type_).1);
    assert_eq!((of(kind::UPDATING), of(kind::DEGRADED)), (("True", "Progressing"), ("True", "NodeNotReady")));
    assert_eq!(status.updating_nodes, 0);
}

#[test]
fn a_restart_that_waits_for_its_window_names_it() {
    let window = Ok(Windows { open: false, closes: None, opens: Some("2028-02-29T03:00:00Z".parse().unwrap()) });
    let status = Scene { window, ..Scene::of(pool(1), [to_restart("h0")]) }.status();
    assert_eq!(
        condition(&status, kind::READY).2,
        "1 of 1 nodes Ready; 1 to be restarted in a maintenance window; the next opens at 2028-02-29T03:00:00Z: h0"
    );
}

#[test]
fn the_reason_why_a_node_is_not_repaired_is_named() {
    let mut without = pool(1);
    without.spec.remediation = Some(Remediation { type_: Some(RemediationType::None), ..Remediation::default() });
    for (pool, expected) in [
        (without, "not repaired: remediation.type is None"),
        (pool_with(1, paused()), "not repaired: paused (rollout.paused)"),
        (pool_with(1, until(1_000_001)), "not repaired: paused until 1970-01-12T13:46:41Z (rollout.pausedUntil)"),
    ] {
        let said = columns(&Scene::of(pool, [not_ready("h0")]));
        assert!(said.ends_with(expected), "{said}");
    }
}

#[test]
fn the_reason_why_a_paused_pool_is_not_deleted_is_named() {
    for (rollout, reason, expected) in [
        (None, "Progressing", "being deleted; 1 leaving: h0"),
        (
            Some(paused()),
            "Paused",
            "being deleted; rollout.paused delays the removal of the nodes: set it to false to remove them, \
             or spec.deletionPolicy to Orphan to leave them as they are; 1 leaving: h0",
        ),
        (
            Some(until(1_000_001)),
            "Paused",
            "being deleted; rollout.pausedUntil delays the removal of the nodes until 1970-01-12T13:46:41Z: set it to null to remove them, \
             or spec.deletionPolicy to Orphan to leave them as they are; 1 leaving: h0",
        ),
        (Some(until(1_000_000)), "Progressing", "being deleted; 1 leaving: h0"),
    ] {
        let mut pool = pool(1);
        pool.metadata.deletion_timestamp = Some(Time(now()));
        pool.spec.rollout = rollout;
        let mut scene = Scene::of(pool, [leaving(ready("h0"))]);
        let status = scene.status();
        assert_eq!(condition(&status, kind::READY), ("Unknown", reason, expected));
        assert_eq!(condition(&status, kind::DEGRADED).0, "False", "{expected}");
        scene.members.clear();
        assert_eq!(condition(&scene.status(), kind::READY).1, "Progressing", "no host is left that a pause could keep");
    }
}

#[test]
fn the_first_refused_entries_are_in_the_status_with_their_reasons() {
    let of = |n: usize| EntryError { host: format!("r{n}"), ..conflict() };
    let mut problems: Vec<EntryError> = (0..60).map(of).collect();
    problems.insert(0, trouble_with_the_source(Reason::Fetching));
    let status = Scene { list: listed(1, &problems), ..Scene::of(pool(1), [ready("h0")]) }.status();
    assert_eq!((status.hosts, status.refused_hosts, status.refused.len()), (1, 60, 50));
    assert_eq!((status.refused[0].host.as_str(), status.refused[0].reason.as_str()), ("r0", "HostConflict"));
    let message = condition(&status, kind::INVENTORY_SYNCED).2;
    assert!(message.ends_with("(and 58 more: see status.refused)"), "{message}");
    let planned = planned(&pool(1), &[], 1, &[], &problems, None, now());
    assert_eq!((planned.refused_hosts, planned.refused), (60, status.refused));
    assert_eq!(described(pool(1), [ready("h0")]).refused_hosts, 0);
}

#[test]
fn a_node_that_would_not_be_adopted_is_named_before_the_takeover() {
    let with = |node| planned(&pool(1), &[], 1, &[], &[], node, now());
    let refused = with(Some((Reason::HostUnproven, "h0: list its key".to_owned())));
    let (ready, reason, message) = condition(&refused, kind::READY);
    assert_eq!((ready, reason), ("False", "HostUnproven"));
    assert!(message.ends_with("Before that, correct h0: list its key"), "{message}");
    assert_eq!(condition(&with(None), kind::READY).0, "True");
}

#[test]
fn too_many_nodes_that_are_not_ready_stall_a_pool_whatever_else_is_wrong() {
    for problems in [vec![], vec![trouble_with_the_source(Reason::GitOperationFailed)], vec![conflict()]] {
        let list = List { is_transient: true, ..listed(1, &problems) };
        let decision = Decision { too_many_unhealthy: true, ..Decision::default() };
        let status = Scene { list, decision, ..Scene::of(pool(1), [not_ready("h0")]) }.status();
        let (_, reason, message) = condition(&status, kind::STALLED);
        assert_eq!(reason, "TooManyUnhealthy", "{problems:?}");
        assert!(
            message.contains("not Ready: h0; that is more than remediation.maxUnhealthy (20%), so none is"),
            "{message}"
        );
        assert_eq!(condition(&status, kind::RECONCILING).0, "");
    }
}

#[test]
fn a_node_in_maintenance_is_no_trouble_unless_its_host_never_ends_it() {
    use crate::node::maintenance::By;

    let long_ago = seconds_ago(48 * 3600);
    for (name, by, handed_back, failures, degraded, stalled) in [
        ("a user may take long", Some(By::Person), long_ago, false, "False", ""),
        ("a client that may write only the Node may not", Some(By::Node), long_ago, false, "False", "True"),
        ("a host may not", Some(By::Host), long_ago, false, "False", "True"),
        ("it was handed back just now", None, now(), false, "False", ""),
        ("it was handed back long ago", None, long_ago, false, "False", "True"),
        ("it does not work", None, now(), true, "True", ""),
    ] {
        let maintained = member("h0", if failures { Phase::Failed } else { Phase::Ready });
        let maintained = changed(maintained, |candidate, status| {
            status.phase = Some(Phase::Maintenance);
            status.current_version = Some(VERSION.into());
            status.operation = Some(Operation {
                type_: GrantType::Maintenance,
                start_time: long_ago.into(),
                step_start_time: handed_back.into(),
                changed: true,
                ..Operation::default()
            });
            (candidate.grant, candidate.maintenance) = (Some(GrantType::Maintenance), by);
            (candidate.begun, candidate.irrevocable, candidate.joined) = (true, true, true);
            (candidate.ready, candidate.available) = (false, false);
        });
        let s = described(pool(2), [maintained, ready("h1")]);
        let seen = (condition(&s, kind::DEGRADED).0, condition(&s, kind::STALLED).0);
        assert_eq!(seen, (degraded, stalled), "{name}: {:?}", s.conditions);
        let (_, _, message) = condition(&s, kind::READY);
        assert!(message.contains("1 in maintenance: h0"), "{name}: {message}");
        assert_eq!((s.updating_nodes, s.unavailable_nodes), (0, 1), "{name}");
    }
}
