//! Tests of the reconciler's reaction to drift.

use super::tests::*;
use super::*;
use crate::files::Access;
use api::services::{FileInfo, ServicesConfig};
use sha2::{Digest, Sha256};

const FILE: &str = r"C:\k\kubelet.exe";

/// Creates a host in its desired state: three services, a variable and a file.
fn settled(drift: api::Drift) -> Bed {
    let mut bed = Bed::new();
    bed.desire_all("v1", config(), drift);
    let blob = crate::operation::blob(&hex::encode(Sha256::digest("kubelet")));
    files::write(&bed.host, &blob, b"kubelet", Access::Inherited).unwrap();
    files::place(&bed.host, &blob, FILE).unwrap();
    bed.host.state().env.insert("HTTP_PROXY".into(), "proxy".into());
    let report = bed.check_everything();
    assert_eq!((report.drift, report.reboot), (Vec::new(), None));
    bed
}

fn config() -> ServicesConfig {
    ServicesConfig {
        services: three(),
        files: vec![FileInfo { path: FILE.into(), checksum: hex::encode(Sha256::digest("kubelet")) }],
        environment_vars: [("HTTP_PROXY".to_owned(), "proxy".to_owned())].into(),
        ..ServicesConfig::default()
    }
}

/// Changes one item of each kind.
fn change_one_of_each_kind(bed: &Bed) {
    bed.change("kubelet", |s| s.command = "mine".into());
    bed.change("containerd", |s| s.dependencies = vec!["rpcss".into()]);
    let mut state = bed.host.state();
    state.services.remove("kube-proxy");
    state.env.insert("HTTP_PROXY".into(), "mine".into());
    drop(state);
    files::write(&bed.host, FILE, b"mine", Access::Inherited).unwrap();
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

fn content(bed: &Bed) -> Vec<u8> {
    files::read(&bed.host, FILE).unwrap().unwrap()
}

#[test]
fn drift_is_corrected_and_reported_for_ten_minutes() {
    let mut bed = settled(api::Drift::Heal);
    change_one_of_each_kind(&bed);
    let report = bed.check_everything();
    assert_eq!(report.drift, texts("healed"));
    assert_eq!(
        (bed.command("kubelet").as_str(), content(&bed)),
        (r"C:\k\kubelet.exe --node win-1", b"kubelet".to_vec())
    );
    assert_eq!(bed.host.service("containerd").unwrap().unwrap().dependencies, [""; 0]);
    assert_eq!(bed.state("kube-proxy"), ServiceState::Running);
    assert_eq!(bed.host.env_var("HTTP_PROXY").unwrap().as_deref(), Some("proxy"));
    bed.clock += Duration::from_mins(11);
    assert_eq!(bed.check_everything().drift, [""; 0]);
}

#[test]
fn drift_is_left_and_reported_until_it_is_over() {
    let mut bed = settled(api::Drift::Report);
    change_one_of_each_kind(&bed);
    let look = |bed: &mut Bed| {
        let report = bed.check_everything();
        assert_eq!((report.drift, report.reboot), (texts("left"), None));
        assert_eq!((bed.command("kubelet").as_str(), content(bed)), ("mine", b"mine".to_vec()));
        assert_eq!(bed.host.service("containerd").unwrap().unwrap().dependencies, ["rpcss"]);
        assert_eq!(bed.state("kube-proxy"), ServiceState::Missing);
        assert_eq!(bed.host.env_var("HTTP_PROXY").unwrap().as_deref(), Some("mine"));
    };
    look(&mut bed);
    bed.clock += Duration::from_hours(1);
    look(&mut bed);

    // After a restart of the host, it is still drift, and stopped services are started as they are.
    bed.kill("containerd");
    bed.kill("kubelet");
    bed.reconciler = Reconciler::new(Arc::new(bed.host.clone()));
    assert_eq!(bed.pass().drift, texts("left"), "from the first pass on");
    look(&mut bed);
    assert_eq!((bed.state("containerd"), bed.state("kubelet")), (ServiceState::Running, ServiceState::Running));

    // Drift that is left does not make passes expensive: after a full pass, the next one reads little.
    while bed.reconciler.settled.as_ref().is_none_or(|(_, passes)| *passes > 0) {
        bed.pass();
    }
    bed.host.state().refused.insert("services ".into());
    assert!(bed.pass().settled, "the list of all services is not asked for");
    bed.host.state().refused.clear();

    // A user restores one of them.
    bed.change("kubelet", |s| s.command = r"C:\k\kubelet.exe --node win-1".into());
    let report = bed.check_everything();
    assert_eq!(report.drift.len(), 4, "{:?}", report.drift);
}

#[test]
fn a_new_desired_state_corrects_drift_that_was_left() {
    let mut bed = settled(api::Drift::Report);
    change_one_of_each_kind(&bed);
    bed.check_everything();
    let mut services = config();
    services.services[0].path = "containerd v2".into();
    bed.desire_all("v2", services, api::Drift::Report);
    assert_eq!(bed.check_everything().drift, [""; 0]);
    assert_eq!(
        (bed.command("containerd").as_str(), bed.command("kubelet").as_str()),
        ("containerd v2", r"C:\k\kubelet.exe --node win-1")
    );
    assert_eq!((bed.state("kube-proxy"), content(&bed)), (ServiceState::Running, b"kubelet".to_vec()));
}

#[test]
fn an_operation_of_the_operator_corrects_drift_that_was_left() {
    let mut bed = settled(api::Drift::Report);
    bed.change("kubelet", |s| s.command = "mine".into());
    assert_eq!(bed.check_everything().drift, ["service kubelet: command (left)"]);
    let marker = api::host::Marker { operation: "repair-1".into(), ..Default::default() };
    files::write_json(&bed.host, path::STATE, &marker, Access::Inherited).unwrap();
    bed.pass();
    assert_eq!(bed.settle().drift, [""; 0]);
    assert_eq!(bed.command("kubelet"), r"C:\k\kubelet.exe --node win-1");
}

#[test]
fn drift_stays_reported_after_a_pass_that_fails() {
    let mut bed = settled(api::Drift::Report);
    bed.change("kubelet", |s| s.command = "mine".into());
    let left = bed.check_everything().drift;
    assert_eq!(left, ["service kubelet: command (left)"]);
    let lock = lock::take(&bed.host, Duration::ZERO).unwrap();
    assert_eq!(bed.pass().drift, left);
    drop(lock);
    bed.host.state().refused.insert("service kubelet".into());
    assert_eq!(bed.pass().drift, left);
}
