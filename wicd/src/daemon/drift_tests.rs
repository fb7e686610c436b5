//! Tests of drift: which changes of a host are reported.

use super::*;
use crate::fake::FakeHost;
use proptest::prelude::*;

fn wanted(command: Option<&str>, dependencies: &[&str]) -> DesiredService {
    DesiredService {
        name: "kubelet".into(),
        command: command.map(String::from),
        dependencies: dependencies.iter().map(ToString::to_string).collect(),
        ..DesiredService::default()
    }
}

fn actual(command: &str, dependencies: &[&str], start: StartType) -> ServiceInfo {
    let dependencies = dependencies.iter().map(ToString::to_string).collect();
    ServiceInfo { name: "kubelet".into(), command: command.into(), dependencies, start, ..ServiceInfo::default() }
}

fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(ToString::to_string).collect()
}

#[test]
fn a_service_that_never_matched_has_not_drifted() {
    let right = wanted(Some("k v1"), &["containerd"]);
    let as_wanted = actual("k v1", &["containerd"], StartType::Demand);
    let other = actual("mine", &[], StartType::Auto);
    let proxy: BTreeMap<String, String> = [("HTTP_PROXY".into(), "x".into())].into();
    let proxied = ServiceInfo { environment: proxy.clone(), ..as_wanted.clone() };
    let cases = [
        ("as it was", right.clone(), Some(&as_wanted), vec![]),
        ("everything", right.clone(), Some(&other), vec!["command", "dependencies", "start type"]),
        (
            "another variable is wanted by now",
            DesiredService { environment: proxy.clone(), ..right.clone() },
            Some(&other),
            vec![],
        ),
        ("a variable", right.clone(), Some(&proxied), vec!["variables"]),
        ("gone", right.clone(), None, vec!["deleted"]),
        ("another command is wanted by now", wanted(Some("k v2"), &["containerd"]), Some(&other), vec![]),
        ("other dependencies are wanted by now", wanted(Some("k v1"), &[]), Some(&other), vec![]),
        ("a variable is not known", wanted(None, &["containerd"]), Some(&other), vec!["dependencies", "start type"]),
    ];
    let mut drift = Drift::default();
    assert_eq!(drift.of_service(&right, None), Vec::<&str>::new(), "it was never there");
    drift.settle(std::slice::from_ref(&right));
    // While the variable is not known, the last known command stays on record.
    drift.settle(&[wanted(None, &["containerd"])]);
    for (name, wanted, actual, expected) in cases {
        assert_eq!(drift.of_service(&wanted, actual), expected, "{name}");
    }
}

#[test]
fn the_record_survives_a_restart_but_not_an_operation_or_another_desired_state() {
    let host = FakeHost::temporary();
    let desired = Desired { version: "v1".into(), ..Desired::default() };
    let stamp = Stamp { size: 1, modified: 2 };
    let mut drift = Drift::default();
    drift.follow(&host, &desired, "join-1");
    assert!(!drift.is_settled());
    drift.settle(&[wanted(Some("k"), &[])]);
    drift.file_is_right(r"C:\k\x", stamp);
    drift.save(&host).unwrap();

    let later = |desired: &Desired, operation: &str| {
        let mut drift = Drift::default();
        drift.follow(&host, desired, operation);
        (drift.is_settled(), drift.right_file(r"C:\k\x"))
    };
    assert_eq!(later(&desired, "join-1"), (true, Some(stamp)));
    assert_eq!(later(&desired, "repair-1"), (false, None));
    assert_eq!(later(&Desired { version: "v2".into(), ..desired.clone() }, "join-1"), (false, None));
    files::write(&host, SETTLED, b"{", Access::Inherited).unwrap();
    assert_eq!(later(&desired, "join-1"), (false, None));
}

#[test]
fn corrected_drift_is_reported_for_ten_minutes_and_left_drift_until_it_is_over() {
    let mut drift = Drift::default();
    let at = Duration::from_mins;
    drift.found(CheckKind::Services, set(&["service b: command"]), set(&["service a: deleted"]), at(0));
    drift.found(CheckKind::Files, set(&["file z"]), set(&[]), at(5));
    assert_eq!(drift.texts(at(9)), ["file z (healed)", "service a: deleted (left)", "service b: command (healed)"]);
    assert_eq!(drift.texts(at(10)), ["file z (healed)", "service a: deleted (left)"]);
    // An entry that was restored before and is now left is reported once.
    drift.found(CheckKind::Files, set(&[]), set(&["file z"]), at(11));
    assert_eq!(drift.texts(at(11)), ["file z (left)", "service a: deleted (left)"]);
    drift.found(CheckKind::Services, set(&[]), set(&[]), at(20));
    assert_eq!(drift.texts(at(20)), ["file z (left)"], "a check of one kind does not affect the other kinds");
}

#[test]
fn at_most_ten_items_are_reported_and_left_ones_first() {
    let mut drift = Drift::default();
    let many = |prefix: &str, n: u32| (0..n).map(|i| format!("{prefix}{i}")).collect::<BTreeSet<_>>();
    drift.found(CheckKind::Files, many("a", 9), many("b", 8), Duration::ZERO);
    let texts = drift.texts(Duration::ZERO);
    assert_eq!(texts.len(), 10);
    assert_eq!(texts.iter().filter(|t| t.ends_with("(left)")).count(), 8);
    assert!(texts.is_sorted());
}

#[test]
fn the_annotation_has_as_many_items_as_fit() {
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(annotation(&[]), None);
    assert_eq!(annotation(&texts(&["a (left)", "b (healed)"])).as_deref(), Some("a (left); b (healed)"));
    let long = "x".repeat(1020);
    assert_eq!(annotation(&texts(&[&long, "abcd", "ab"])), Some(format!("{long}; ab")), "as many as fit");
}

proptest! {
    #[test]
    fn the_annotation_is_never_too_long(texts in proptest::collection::vec(".{0,400}", 0..10)) {
        prop_assert!(annotation(&texts).is_none_or(|a| !a.is_empty() && a.len() <= LONGEST));
    }
}
