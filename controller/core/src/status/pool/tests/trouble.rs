//! Tests of the column STATUS, which names the worst trouble first.

use api::{DrainStatus, Reason, Remediation, RemediationType, Step};

use super::*;

fn status_of(member: &mut Member) -> &mut WindowsInstanceStatus {
    Arc::get_mut(&mut member.instance).unwrap().status.as_mut().unwrap()
}

fn ready(name: &str) -> Member {
    member(name, Phase::Ready)
}

fn failed(name: &str) -> Member {
    let mut member = member(name, Phase::Failed);
    status_of(&mut member).failures.as_mut().unwrap().first_time = Some("2027-01-01T09:50:12Z".parse().unwrap());
    member
}

fn not_ready(name: &str) -> Member {
    let mut member = member(name, Phase::NotReady);
    member.candidate.down_since = Some("2027-01-01T03:10:30Z".parse().unwrap());
    member
}

/// A node whose Machine a MachineHealthCheck replaces.
fn checked(mut member: Member) -> Member {
    member.candidate.health_check = Some("MachineHealthCheck ns/c".into());
    member
}

fn draining(name: &str) -> Member {
    let mut member = ready(name);
    member.candidate.begun = true;
    member.candidate.grant = Some(GrantType::Update);
    let start_time = "2027-01-01T03:20:00Z".parse().unwrap();
    let blockers = vec!["shop/cart: its PodDisruptionBudget allows no eviction".into()];
    status_of(&mut member).operation = Some(Operation {
        type_: GrantType::Update,
        step: Step::Drain,
        drain: Some(DrainStatus { start_time, remaining: 2, blockers, ..DrainStatus::default() }),
        ..Operation::default()
    });
    member
}

fn held(name: &str) -> Member {
    let mut member = ready(name);
    member.candidate.held = true;
    member
}

/// A node whose host cannot use an account of its pool.
fn without_accounts(name: &str) -> Member {
    let mut member = ready(name);
    let conditions = &mut status_of(&mut member).conditions;
    api::conditions::set(conditions, kind::GMSA_READY, Status::False, Reason::AccountNotUsable, "", None, now());
    member
}

/// A node that does not work, and is being repaired.
fn repairing(name: &str) -> Member {
    let mut member = not_ready(name);
    (member.candidate.begun, member.candidate.grant) = (true, Some(GrantType::Repair));
    let operation = Operation { type_: GrantType::Repair, step: Step::Configure, ..Operation::default() };
    status_of(&mut member).operation = Some(operation);
    member
}

/// A node that waits for a restart.
fn to_restart(name: &str) -> Member {
    let mut member = ready(name);
    member.candidate.wants_reboot = true;
    member
}

/// A node whose wicd does not report.
fn silent(name: &str) -> Member {
    let mut member = ready(name);
    let conditions = &mut status_of(&mut member).conditions;
    api::conditions::set(conditions, kind::WICD_SILENT, Status::True, Reason::WicdSilent, "", None, now());
    member
}

/// A node whose entry now leads to another machine.
fn wrong_entry(name: &str) -> Member {
    let mut member = ready(name);
    status_of(&mut member).address_failures = Some(Failures {
        last_reason: "NotThisMachine".into(),
        last_message: "the machine at 10.0.0.9 is not h0".into(),
        ..Failures::default()
    });
    member
}

/// A leaving host that could not be deconfigured.
fn stuck(name: &str) -> Member {
    let mut member = failed(name);
    member.candidate.leaving = true;
    member
}

/// A pause until this second of Unix time.
fn until(second: i64) -> Rollout {
    Rollout { paused_until: Some(Timestamp::from_second(second).unwrap().into()), ..Rollout::default() }
}

/// Returns the columns READY and DEGRADED, with the message of READY.
fn columns(
    pool: &WindowsNodePool,
    members: &[Member],
    problems: &[EntryError],
    keys: Option<KeyRotationStatus>,
) -> String {
    let status = status(pool, members, problems, keys);
    let of = |type_| find(&status.conditions, type_).unwrap();
    let (ready, degraded) = (of(kind::READY), of(kind::DEGRADED));
    format!("{} {}: {}", ready.status, degraded.status, ready.message)
}

fn status(
    pool: &WindowsNodePool,
    members: &[Member],
    problems: &[EntryError],
    keys: Option<KeyRotationStatus>,
) -> WindowsNodePoolStatus {
    let deleting = pool.metadata.deletion_timestamp.is_some();
    let hosts = if deleting { 0 } else { pool.spec.hosts().len() };
    let (decision, course, list) = (Decision::default(), course(BlockedBy::None), listed(hosts, problems));
    next(pool, &ObservedPool { deleting, keys, ..observed(&list, members, &decision, &course) }, None, now())
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
    let source = EntryError { host: String::new(), reason: Reason::GitOperationFailed, message: "no answer".into() };
    let of = |members: &[Member]| columns(&pool(2), members, &[], None);
    for (columns, expected) in [
        (
            of(&[ready("h0"), failed("h1")]),
            "False True: 1 of 2 nodes Ready; 1 of 2 failed: h1: Connect: no answer within 15 s (since 2027-01-01T09:50:12Z)",
        ),
        (
            of(&[not_ready("h0"), ready("h1")]),
            "False True: 1 of 2 nodes Ready; not Ready: h0 since 2027-01-01T03:10:30Z, its repair begins at 2027-01-01T03:20:30Z",
        ),
        (
            of(&[checked(not_ready("h0")), ready("h1")]),
            "False True: 1 of 2 nodes Ready; not Ready: h0 since 2027-01-01T03:10:30Z, left to MachineHealthCheck ns/c, which replaces its Machine",
        ),
        (
            of(&[draining("h0"), ready("h1")]),
            "Unknown True: 2 of 2 nodes Ready; the drain of h0 is blocked since 2027-01-01T03:20:00Z: shop/cart: its PodDisruptionBudget allows no \
             eviction; h0: Drain, 2 pods left; 1 updating: h0",
        ),
        (
            columns(&pool(2), &[failed("h0"), not_ready("h1")], &[conflict()], None),
            "False True: 0 of 2 nodes Ready; 1 of 2 failed: h0: Connect: no answer within 15 s (since 2027-01-01T09:50:12Z); not Ready: h1 since \
             2027-01-01T03:10:30Z, its repair begins at 2027-01-01T03:20:30Z; host h1: address 10.0.0.0 port 22 already belongs to h0",
        ),
        (
            columns(&pool(2), &[failed("h0"), ready("h1")], &[source], None),
            "False True: 1 of 2 nodes Ready; no answer; 1 of 2 failed: h0: Connect: no answer within 15 s (since 2027-01-01T09:50:12Z)",
        ),
        (of(&[held("h0"), ready("h1")]), "True False: 2 of 2 nodes Ready; 1 on hold: h0"),
        (
            of(&[repairing("h0"), ready("h1")]),
            "Unknown True: 1 of 2 nodes Ready; not Ready: h0 since 2027-01-01T03:10:30Z, being repaired; h0: Configure; 1 being repaired: h0",
        ),
        (of(&[to_restart("h0"), ready("h1")]), "True False: 2 of 2 nodes Ready; 1 to be restarted: h0"),
        (
            of(&[silent("h0"), ready("h1")]),
            "True False: 2 of 2 nodes Ready; 1 without reports of wicd (WicdSilent): h0",
        ),
        (
            of(&[wrong_entry("h0"), ready("h1")]),
            "False True: 2 of 2 nodes Ready; the entry of h0 is refused: the machine at 10.0.0.9 is not h0",
        ),
        (
            of(&[ready("h0"), ready("h1"), stuck("h2"), failed("h3")]),
            "False True: 2 of 2 nodes Ready; 1 of 2 failed: h3: Connect: no answer within 15 s (since 2027-01-01T09:50:12Z); \
             1 not removed: h2: Connect: no answer within 15 s (since 2027-01-01T09:50:12Z)",
        ),
        (
            of(&[without_accounts("h0"), ready("h1")]),
            "True False: 2 of 2 nodes Ready; 1 cannot use their gMSA accounts (GMSAReady): h0",
        ),
        (
            columns(&pool(2), &[ready("h0"), ready("h1")], &[], Some(refuses)),
            "True True: 2 of 2 nodes Ready; 1 of 2 hosts accept an old key: h0; h0: Connect: Administrator cannot log in",
        ),
        (
            columns(&pool(2), &[ready("h0"), ready("h1")], &[], Some(unread)),
            "True True: 2 of 2 nodes Ready; the Secret x does not exist",
        ),
    ] {
        assert_eq!(columns, expected);
    }
}

#[test]
fn a_repair_is_no_update() {
    let status = described(&pool(2), &[repairing("h0"), ready("h1")], &[]);
    let of = |type_| find(&status.conditions, type_).map(|c| (c.status.as_str(), c.reason.as_str())).unwrap();
    assert_eq!((of(kind::UPDATING), of(kind::DEGRADED)), (("True", "Progressing"), ("True", "NodeNotReady")));
    assert_eq!(status.updating_nodes, 0);
}

#[test]
fn a_restart_that_waits_for_its_window_names_it() {
    let opens = "2028-02-29T03:00:00Z".parse().unwrap();
    let closed = Windows { open: false, closes: None, opens: Some(opens) };
    let (pool, course) = (pool(1), course(BlockedBy::None));
    let status = described_in(&pool, &[to_restart("h0")], &[], &Decision::default(), &course, Ok(&closed), now());
    let ready = find(&status.conditions, kind::READY).unwrap();
    assert_eq!(
        ready.message,
        "1 of 1 nodes Ready; 1 to be restarted in a maintenance window; the next opens at 2028-02-29T03:00:00Z: h0"
    );
}

#[test]
fn a_node_that_is_not_repaired_reads_why() {
    let of = |change: &dyn Fn(&mut WindowsNodePool)| {
        let mut pool = pool(1);
        change(&mut pool);
        columns(&pool, &[not_ready("h0")], &[], None)
    };
    let none = Some(Remediation { type_: Some(RemediationType::None), ..Remediation::default() });
    for (said, expected) in [
        (of(&|p| p.spec.remediation.clone_from(&none)), "not repaired: remediation.type is None"),
        (
            of(&|p| p.spec.rollout = Some(Rollout { paused: Some(true), ..Rollout::default() })),
            "not repaired: paused (rollout.paused)",
        ),
        (
            of(&|p| p.spec.rollout = Some(until(1_000_001))),
            "not repaired: paused until 1970-01-12T13:46:41Z (rollout.pausedUntil)",
        ),
    ] {
        assert!(said.ends_with(expected), "{said}");
    }
}

#[test]
fn a_paused_pool_that_is_being_deleted_reads_why_it_stays() {
    let mut pool = pool(1);
    pool.metadata.deletion_timestamp = Some(Time(now()));
    let mut leaves = ready("h0");
    leaves.candidate.leaving = true;
    let said = |pool: &WindowsNodePool| columns(pool, std::slice::from_ref(&leaves), &[], None);
    assert_eq!(said(&pool), "Unknown False: being deleted; 1 leaving: h0");
    pool.spec.rollout = Some(Rollout { paused: Some(true), ..Rollout::default() });
    assert_eq!(
        said(&pool),
        "Unknown False: being deleted; rollout.paused keeps its nodes: set it to false, or spec.deletionPolicy to Orphan, so that they stay as \
         they are; 1 leaving: h0"
    );
    pool.spec.rollout = Some(until(1_000_001));
    assert_eq!(
        said(&pool),
        "Unknown False: being deleted; rollout.pausedUntil keeps its nodes until 1970-01-12T13:46:41Z: set it to null, or spec.deletionPolicy to \
         Orphan, so that they stay as they are; 1 leaving: h0"
    );
    let reason = |pool: &WindowsNodePool, members: &[Member]| {
        find(&status(pool, members, &[], None).conditions, kind::READY).unwrap().reason.clone()
    };
    assert_eq!(reason(&pool, std::slice::from_ref(&leaves)), "Paused");
    assert_eq!(reason(&pool, &[]), "Progressing", "no host is left that the pause could keep");
    pool.spec.rollout = Some(until(1_000_000));
    assert_eq!(said(&pool), "Unknown False: being deleted; 1 leaving: h0");
    assert_eq!(reason(&pool, std::slice::from_ref(&leaves)), "Progressing");
}

#[test]
fn the_first_refused_entries_are_in_the_status_with_their_reasons() {
    let of = |n: usize| EntryError { host: format!("r{n}"), ..conflict() };
    let mut problems: Vec<EntryError> = (0..60).map(of).collect();
    problems.insert(0, EntryError { host: String::new(), reason: Reason::Fetching, message: "old".into() });
    let status = described(&pool(1), &[ready("h0")], &problems);
    assert_eq!((status.hosts, status.refused_hosts, status.refused.len()), (1, 60, 50));
    assert_eq!((status.refused[0].host.as_str(), status.refused[0].reason.as_str()), ("r0", "HostConflict"));
    let synced = find(&status.conditions, kind::INVENTORY_SYNCED).unwrap();
    assert!(synced.message.ends_with("(and 58 more: see status.refused)"), "{}", synced.message);
    let planned = planned(&pool(1), &[], 1, &[], &problems, None, now());
    assert_eq!((planned.refused_hosts, planned.refused), (60, status.refused));
    assert_eq!(described(&pool(1), &[ready("h0")], &[]).refused_hosts, 0);
}

#[test]
fn a_node_that_would_not_be_adopted_is_said_before_the_takeover() {
    let refused = |node| {
        let status = planned(&pool(1), &[], 1, &[], &[], node, now());
        find(&status.conditions, kind::READY).map(|c| (c.status.clone(), c.reason.clone(), c.message.clone())).unwrap()
    };
    let (status, why, message) = refused(Some((Reason::HostUnproven, "h0: list its key".to_owned())));
    assert_eq!((status.as_str(), why.as_str()), ("False", "HostUnproven"));
    assert!(message.ends_with("Before, correct h0: list its key"), "{message}");
    assert_eq!(refused(None).0, "True");
}

#[test]
fn too_many_nodes_that_are_not_ready_stall_a_pool_whatever_else_is_wrong() {
    let source = EntryError { host: String::new(), reason: Reason::GitOperationFailed, message: "no answer".into() };
    let decision = Decision { too_many_unhealthy: true, ..Decision::default() };
    for problems in [vec![], vec![source], vec![conflict()]] {
        let list = List { is_transient: true, ..listed(1, &problems) };
        let (members, course) = ([not_ready("h0")], course(BlockedBy::None));
        let status = next(&pool(1), &observed(&list, &members, &decision, &course), None, now());
        let stalled = find(&status.conditions, kind::STALLED).unwrap();
        assert_eq!(stalled.reason, "TooManyUnhealthy", "{problems:?}");
        assert!(
            stalled.message.contains("not Ready: h0; that is more than remediation.maxUnhealthy (20%), so none is"),
            "{}",
            stalled.message
        );
        assert!(find(&status.conditions, kind::RECONCILING).is_none());
    }
}

#[test]
fn a_node_in_maintenance_is_no_trouble_unless_its_host_never_ends_it() {
    use crate::node::maintenance::By;

    let long_ago = now() - jiff::SignedDuration::from_hours(48);
    let pool = pool(2);
    for (name, by, handed_back, failures, degraded, stalled) in [
        ("a user may take long", Some(By::Person), long_ago, false, false, false),
        ("who may write the Node may not", Some(By::Node), long_ago, false, false, true),
        ("a host may not", Some(By::Host), long_ago, false, false, true),
        ("it was handed back just now", None, now(), false, false, false),
        ("it was handed back long ago", None, long_ago, false, false, true),
        ("it does not work", None, now(), true, true, false),
    ] {
        let mut maintained = member("h0", if failures { Phase::Failed } else { Phase::Ready });
        let mut instance = (*maintained.instance).clone();
        let status = instance.status.as_mut().unwrap();
        status.phase = Some(Phase::Maintenance);
        status.current_version = Some(VERSION.into());
        status.operation = Some(Operation {
            type_: GrantType::Maintenance,
            start_time: long_ago.into(),
            step_start_time: handed_back.into(),
            changed: true,
            ..Operation::default()
        });
        maintained.instance = Arc::new(instance);
        maintained.candidate = Candidate {
            grant: Some(GrantType::Maintenance),
            maintenance: by,
            begun: true,
            irrevocable: true,
            joined: true,
            ready: false,
            available: false,
            ..maintained.candidate
        };
        let s = described(&pool, &[maintained, member("h1", Phase::Ready)], &[]);
        let is = |kind: &str| find(&s.conditions, kind).is_some_and(|c| c.status == "True");
        assert_eq!((is(kind::DEGRADED), is(kind::STALLED)), (degraded, stalled), "{name}: {:?}", s.conditions);
        let ready = &find(&s.conditions, kind::READY).unwrap().message;
        assert!(ready.contains("1 in maintenance: h0"), "{name}: {ready}");
        assert_eq!((s.updating_nodes, s.unavailable_nodes), (0, 1), "{name}");
    }
}
