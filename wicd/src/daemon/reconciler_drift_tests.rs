//! Tests of the reconciler's reaction to drift.

use super::tests::*;
use super::*;
use crate::files::Access;
use api::services::{FileInfo, ServicesConfig};
use sha2::{Digest, Sha256};

const FILE: &str = r"C:\k\kubelet.exe";

/// Creates a host in its desired state: three services, a variable and a file.
fn settled(drift: api::Drift) -> TestHost {
    let mut test_host = TestHost::new();
    test_host.desire_all("v1", config(), drift);
    let blob = crate::operation::blob(&hex::encode(Sha256::digest("kubelet")));
    files::write(&test_host.host, &blob, b"kubelet", Access::Inherited).unwrap();
    files::place(&test_host.host, &blob, FILE).unwrap();
    test_host.host.state().env.insert("HTTP_PROXY".into(), "proxy".into());
    let report = test_host.check_everything();
    assert_eq!((report.drift, report.reboot), (Vec::new(), None));
    test_host
}

fn config() -> ServicesConfig {
    ServicesConfig {
        services: three(),
        files: vec![FileInfo { path: FILE.into(), checksum: hex::encode(Sha256::digest("kubelet")) }],
        environment_vars: [("HTTP_PROXY".to_owned(), "proxy".to_owned())].into(),
        ..ServicesConfig::default()
    }
}

/// Changes three services, a variable and a file.
fn change_one_of_each_kind(test_host: &TestHost) {
    test_host.change("kubelet", |s| s.command = "mine".into());
    test_host.change("containerd", |s| s.dependencies = vec!["rpcss".into()]);
    let mut state = test_host.host.state();
    state.services.remove("kube-proxy");
    state.env.insert("HTTP_PROXY".into(), "mine".into());
    drop(state);
    files::write(&test_host.host, FILE, b"mine", Access::Inherited).unwrap();
}

fn texts(end: &str) -> Vec<String> {
    [
        r"file C:\k\kubelet.exe",
        "service containerd: dependencies",
        "service kube-proxy: deleted",
        "service kubelet: command",
        "variable HTTP_PROXY",
    ]
    .map(|what| format!("{what} ({end})"))
    .to_vec()
}

fn content(test_host: &TestHost) -> Vec<u8> {
    files::read(&test_host.host, FILE).unwrap().unwrap()
}

#[test]
fn drift_is_corrected_and_reported_for_ten_minutes() {
    let mut test_host = settled(api::Drift::Heal);
    change_one_of_each_kind(&test_host);
    let report = test_host.check_everything();
    assert_eq!(report.drift, texts("healed"));
    assert_eq!(
        (test_host.command("kubelet").as_str(), content(&test_host)),
        (r"C:\k\kubelet.exe --node win-1", b"kubelet".to_vec())
    );
    assert_eq!(test_host.host.service("containerd").unwrap().unwrap().dependencies, [""; 0]);
    assert_eq!(test_host.state("kube-proxy"), ServiceState::Running);
    assert_eq!(test_host.host.env_var("HTTP_PROXY").unwrap().as_deref(), Some("proxy"));
    test_host.clock += Duration::from_mins(11);
    assert_eq!(test_host.check_everything().drift, [""; 0]);
}

#[test]
fn drift_is_left_and_reported_until_it_is_over() {
    let mut test_host = settled(api::Drift::Report);
    change_one_of_each_kind(&test_host);
    let look = |test_host: &mut TestHost| {
        let report = test_host.check_everything();
        assert_eq!((report.drift, report.reboot), (texts("left"), None));
        assert_eq!((test_host.command("kubelet").as_str(), content(test_host)), ("mine", b"mine".to_vec()));
        assert_eq!(test_host.host.service("containerd").unwrap().unwrap().dependencies, ["rpcss"]);
        assert_eq!(test_host.state("kube-proxy"), ServiceState::Missing);
        assert_eq!(test_host.host.env_var("HTTP_PROXY").unwrap().as_deref(), Some("mine"));
    };
    look(&mut test_host);
    test_host.clock += Duration::from_hours(1);
    look(&mut test_host);

    // After a restart of the host, the drift is still reported, and stopped services start with their changed settings.
    test_host.kill("containerd");
    test_host.kill("kubelet");
    test_host.reconciler = Reconciler::new(Arc::new(test_host.host.clone()));
    assert_eq!(test_host.pass().drift, texts("left"), "from the first pass on");
    look(&mut test_host);
    assert_eq!(
        (test_host.state("containerd"), test_host.state("kubelet")),
        (ServiceState::Running, ServiceState::Running)
    );

    // Drift that is left does not make passes expensive: after a full pass, the next one reads little.
    while test_host.reconciler.settled.as_ref().is_none_or(|(_, passes)| *passes > 0) {
        test_host.pass();
    }
    test_host.host.state().refused.insert("services ".into());
    assert!(test_host.pass().settled, "the list of all services is not read");
    test_host.host.state().refused.clear();

    // A user restores one of them.
    test_host.change("kubelet", |s| s.command = r"C:\k\kubelet.exe --node win-1".into());
    let report = test_host.check_everything();
    assert_eq!(report.drift.len(), 4, "{:?}", report.drift);
}

#[test]
fn a_new_desired_state_corrects_drift_that_was_left() {
    let mut test_host = settled(api::Drift::Report);
    change_one_of_each_kind(&test_host);
    test_host.check_everything();
    let mut services = config();
    services.services[0].path = "containerd v2".into();
    test_host.desire_all("v2", services, api::Drift::Report);
    assert_eq!(test_host.check_everything().drift, [""; 0]);
    assert_eq!(
        (test_host.command("containerd").as_str(), test_host.command("kubelet").as_str()),
        ("containerd v2", r"C:\k\kubelet.exe --node win-1")
    );
    assert_eq!((test_host.state("kube-proxy"), content(&test_host)), (ServiceState::Running, b"kubelet".to_vec()));
}

#[test]
fn an_operation_of_the_operator_corrects_drift_that_was_left() {
    let mut test_host = settled(api::Drift::Report);
    test_host.change("kubelet", |s| s.command = "mine".into());
    assert_eq!(test_host.check_everything().drift, ["service kubelet: command (left)"]);
    let marker = api::host::Marker { operation: "repair-1".into(), ..Default::default() };
    files::write_json(&test_host.host, path::STATE, &marker, Access::Inherited).unwrap();
    test_host.pass();
    assert_eq!(test_host.settle().drift, [""; 0]);
    assert_eq!(test_host.command("kubelet"), r"C:\k\kubelet.exe --node win-1");
}

#[test]
fn drift_stays_reported_after_a_pass_that_fails() {
    let mut test_host = settled(api::Drift::Report);
    test_host.change("kubelet", |s| s.command = "mine".into());
    let left = test_host.check_everything().drift;
    assert_eq!(left, ["service kubelet: command (left)"]);
    let lock = lock::take(&test_host.host, Duration::ZERO).unwrap();
    assert_eq!(test_host.pass().drift, left);
    drop(lock);
    test_host.host.state().refused.insert("service kubelet".into());
    assert_eq!(test_host.pass().drift, left);
}
