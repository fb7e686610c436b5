//! Tests of `apply`.

use api::host::{Body, CertificateKind, ConfigFile, Feature, Owner};
use api::services::Service;

use super::*;
use crate::access::Guard;
use crate::operation::run;
use crate::operation::tests::{
    CLUSTER, KUBELET, TestHost, ca_pem, crash_anywhere, message, payload_files, reason, request, wanted,
};

#[test]
fn apply_places_all_files_and_settings() {
    let test_host = TestHost::staged("1");
    let answer = test_host.apply(wanted("1"));
    assert_eq!((&answer.outcome, answer.warnings.as_slice()), (&Outcome::Done, &[][..]));
    for (file, content) in payload_files("1") {
        assert_eq!(test_host.read(&file.destination).unwrap().into_bytes(), content);
    }
    assert_eq!(test_host.read(r"C:\k\kubelet.conf").unwrap(), "{} 1");
    assert_eq!(test_host.state().env, [("HTTP_PROXY".to_string(), "http://proxy".to_string())].into());
    assert_eq!(test_host.state().trusted.len(), 1);
    assert!(test_host.exists(r"C:\var\log\kubelet") && test_host.exists(r"C:\var\log\wicd"));
    assert!(test_host.state().excluded.contains(CONTAINERD));
    assert_eq!(answer.requests.keys().copied().collect::<Vec<_>>(), [CertificateKind::Kubelet, CertificateKind::Wicd]);
    let marker = answer.state.unwrap().marker.unwrap();
    assert_eq!((marker.version.as_str(), marker.node_name.as_str(), marker.epoch), ("1", "win-1", 1));
    assert_eq!(marker.payload, payload::digest(&wanted("1").files));
    // Nothing is started.
    assert!(test_host.state().services.is_empty());
}

#[test]
fn applying_again_changes_nothing() {
    let test_host = TestHost::staged("1");
    let first = test_host.apply(wanted("1"));
    let (tree, rest) = (test_host.tree(), test_host.rest());
    let owned = Ownership::load(&test_host.host).unwrap();
    let second = test_host.apply(wanted("1"));
    assert_eq!((second.outcome, test_host.tree(), test_host.rest()), (first.outcome, tree, rest));
    assert_eq!(Ownership::load(&test_host.host).unwrap(), owned);
    // The requests are for the same keys; only signatures differ.
    let key = |csr: &str| {
        use rcgen::PublicKeyData;
        rcgen::CertificateSigningRequestParams::from_pem(csr).unwrap().public_key.der_bytes().to_vec()
    };
    for (kind, csr) in &first.requests {
        assert_eq!(key(csr), key(&second.requests[kind]), "{kind:?}");
    }
}

/// No other user can read secrets.
#[test]
fn secrets_are_protected_and_in_no_answer() {
    let test_host = TestHost::staged("1");
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let inner = seen.clone();
    test_host
        .on_protect(move |path| inner.lock().unwrap().push(path.file_name().unwrap().to_string_lossy().into_owned()));
    let answer = test_host.apply(wanted("1"));
    let seen = seen.lock().unwrap();
    for name in ["tls.key.new", "desired.json.new", "kubelet-first.key.new", "wicd-client.key.new"] {
        assert!(seen.iter().any(|s| s == name), "{name} in {seen:?}");
    }
    let root = test_host.path(path::ROOT).unwrap();
    assert!(test_host.state().access[&root].is(Guard::Private));
    let told = serde_json::to_string(&answer).unwrap();
    assert!(!told.contains("hunter2") && !told.contains("PRIVATE KEY"));
}

#[test]
fn certificate_requests_name_only_the_node() {
    let test_host = TestHost::staged("1");
    let answer = test_host.apply(wanted("1"));
    for (kind, expected) in [
        (CertificateKind::Kubelet, "O=system:nodes, CN=system:node:win-1"),
        (CertificateKind::Wicd, "O=system:wicd-nodes, CN=system:wicd-node:win-1"),
    ] {
        use x509_parser::prelude::FromDer;
        let (_, pem) = x509_parser::pem::parse_x509_pem(answer.requests[&kind].as_bytes()).unwrap();
        let (_, csr) = x509_parser::certification_request::X509CertificationRequest::from_der(&pem.contents).unwrap();
        csr.verify_signature().unwrap();
        assert_eq!(csr.certification_request_info.subject.to_string(), expected);
        assert!(csr.requested_extensions().is_none_or(|mut e| e.next().is_none()), "{kind:?} has extensions");
    }
}

#[test]
fn a_valid_certificate_is_not_requested_again() {
    let test_host = TestHost::new();
    test_host.join("1");
    let requests = |node: &str, before: &str| {
        let mut body = wanted("1");
        body.desired.node_name = node.into();
        let mut request = request("join-1", 1, Body::Apply(Box::new(body)));
        request.recipient.node_name = node.into();
        request.supersedes = Some(Owner { cluster_id: CLUSTER.into(), node_name: before.into() });
        run(&test_host.host, &request).requests.into_keys().collect::<Vec<_>>()
    };
    let both = [CertificateKind::Kubelet, CertificateKind::Wicd];
    assert_eq!(requests("win-1", "win-1"), []);
    assert_eq!(requests("win-2", "win-1"), both, "of another name");
    test_host.state().machine.clock_ms = (86_400 - 1_800) * 1000;
    assert_eq!(requests("win-1", "win-2"), both, "half an hour before the end");
}

#[test]
fn services_of_another_installer_do_not_change() {
    let test_host = TestHost::staged("1");
    for name in ["containerd", "kube-proxy"] {
        test_host.add_service(name, "a user's", &[]);
    }
    let before = (test_host.tree(), test_host.rest());
    let answer = test_host.apply(wanted("1"));
    assert_eq!(reason(&answer), "ForeignServices");
    assert!(message(&answer).contains("containerd, kube-proxy"), "{}", message(&answer));
    assert_eq!((test_host.tree(), test_host.rest()), before);
}

/// The owner may run their own windows_exporter unless the payload has one, which needs the same name.
#[test]
fn the_owner_may_run_a_service_that_the_node_does_not_need() {
    let test_host = TestHost::staged("1");
    test_host.add_service("windows_exporter", "the owner's", &[]);
    assert_eq!(reason(&test_host.apply(wanted("1"))), "Done");
    let mut with_exporter = wanted("1");
    with_exporter.desired.services.services.push(Service { name: "windows_exporter".into(), ..Service::default() });
    let answer = test_host.apply(with_exporter);
    assert_eq!(reason(&answer), "ForeignServices");
    assert!(message(&answer).contains("windows_exporter"), "{}", message(&answer));
}

#[test]
fn an_invalid_request_changes_nothing() {
    let config = ConfigFile { path: r"C:\k\..\x".into(), ..ConfigFile::default() };
    let base = wanted("1");
    // A cut-off bundle is not silently shortened.
    let (pem, _) = ca_pem("x");
    let desired = Desired { trusted_ca: format!("{pem}{}", &pem[..90]), ..base.desired.clone() };
    for (expected, body) in [
        ("PayloadInvalid", Apply { configs: vec![config], ..base.clone() }),
        ("HostFilesChanged", Apply { files: wanted("2").files, ..base.clone() }),
        ("CertificateInvalid", Apply { desired, ..base }),
    ] {
        let test_host = TestHost::staged("1");
        let before = (test_host.tree(), test_host.rest());
        assert_eq!(reason(&test_host.apply(body)), expected);
        assert_eq!((test_host.tree(), test_host.rest()), before, "{expected}");
    }
}

/// Damaged files are repaired; if the staged copy is damaged, too, the operator sends it again.
#[test]
fn a_damaged_file_is_repaired() {
    let test_host = TestHost::new();
    test_host.join("1");
    let (kubelet, content) = payload_files("1").remove(0);
    // An antivirus replaces the file: the staged copy is still good.
    files::remove(&test_host.host, KUBELET).unwrap();
    test_host.write(KUBELET, b"damaged");
    assert_eq!(test_host.apply(wanted("1")).outcome, Outcome::Done);
    assert_eq!(test_host.read(KUBELET).unwrap().into_bytes(), content);
    // The disk damages the file: the staged copy is a hard link to it.
    std::fs::write(test_host.path(KUBELET).unwrap(), "x".repeat(content.len())).unwrap();
    let answer = test_host.apply(wanted("1"));
    assert_eq!((reason(&answer), answer.state.clone().unwrap().missing), ("HashMismatch", vec![kubelet.sha256]));
    test_host.join("1");
    assert_eq!(test_host.read(KUBELET).unwrap().into_bytes(), content);
}

#[test]
fn files_that_the_next_version_does_not_have_are_removed() {
    let test_host = TestHost::new();
    test_host.join("1");
    test_host.stage_version("2");
    let mut next = wanted("2");
    let dropped = next.files.pop().unwrap().destination;
    let config = next.configs.pop().unwrap().path;
    assert_eq!(test_host.apply(next).outcome, Outcome::Done);
    assert!(!test_host.exists(&dropped) && !test_host.exists(&config));
    assert!(test_host.read(KUBELET).unwrap().ends_with('2'));
}

/// Returns the desired state without machine-wide variables.
fn without_proxy() -> Apply {
    let mut apply = wanted("1");
    apply.desired.services.environment_vars.clear();
    apply.desired.services.watched_environment_vars.clear();
    apply
}

/// Variables that existed before get their values back, and certificates that were trusted before stay trusted.
#[test]
fn earlier_variables_and_certificates_are_restored() {
    let test_host = TestHost::new();
    let body = wanted("1");
    let theirs = certificates::bundle(body.desired.trusted_ca.as_bytes()).unwrap().remove(0);
    test_host.state().trusted.insert(theirs.clone());
    test_host.state().env =
        [("NO_PROXY", "theirs"), ("HTTP_PROXY", "theirs too")].map(|(n, v)| (n.into(), v.into())).into();
    let before = test_host.state().env.clone();
    test_host.join("1");
    assert_eq!(test_host.state().env, [("HTTP_PROXY".to_string(), "http://proxy".to_string())].into());
    // The next desired state has no proxy, and another CA.
    let mut next = without_proxy();
    next.desired.trusted_ca = ca_pem("other").0;
    assert_eq!(reason(&test_host.apply(next)), "RebootRequired");
    assert_eq!(test_host.state().env, before);
    assert_eq!(test_host.state().trusted.len(), 2);
    let mut none = wanted("1");
    none.desired.trusted_ca.clear();
    test_host.apply(none);
    assert_eq!(test_host.state().trusted, [theirs].into());
}

/// Services with their own proxy variables do not see the machine's, which stay because WMCO would restart the host to set them again.
#[test]
fn a_variable_of_the_machine_stays_while_each_service_has_its_own() {
    let test_host = TestHost::new();
    test_host.join("1");
    let machine = test_host.state().env.clone();
    let mut next = without_proxy();
    for service in &mut next.desired.services.services {
        service.environment.insert("HTTP_PROXY".into(), "http://proxy".into());
    }
    let mut without = next.clone();
    without.desired.services.services[0].environment.clear();
    assert_eq!(reason(&test_host.apply(next)), "Done");
    assert_eq!(test_host.state().env, machine);
    assert_eq!(reason(&test_host.apply(without)), "RebootRequired", "the machine's reaches a service that has none");
    assert!(test_host.state().env.is_empty());
}

#[test]
fn a_restart_is_required_until_it_has_happened() {
    let test_host = TestHost::staged("1");
    test_host.state().machine.containers_feature = Feature::Disabled;
    const WHY: &str = "the Windows feature Containers has been enabled";
    for _twice in 0..2 {
        let answer = test_host.apply(wanted("1"));
        assert_eq!((reason(&answer), message(&answer)), ("RebootRequired", WHY));
        assert_eq!(answer.state.unwrap().reboot_required.as_deref(), Some(WHY));
        assert_eq!(answer.requests.len(), 2, "all other steps were performed");
    }
    test_host.reboot().unwrap();
    assert_eq!(test_host.run(Body::Facts(api::host::Facts::default())).state.unwrap().reboot_required, None);
    assert_eq!(test_host.apply(wanted("1")).outcome, Outcome::Done);
}

/// Windows locks the servicing of its features while an update is installed.
#[test]
fn the_feature_containers_is_queried_once_per_boot_and_needed_only_by_a_host_without_it() {
    let asked = |test_host: &TestHost| test_host.state().counts.get("enable_containers").copied().unwrap_or_default();
    let test_host = TestHost::staged("1");
    for _twice in 0..2 {
        assert_eq!(test_host.apply(wanted("1")).outcome, Outcome::Done);
    }
    assert_eq!(asked(&test_host), 1);
    test_host.reboot().unwrap();
    test_host.state().refused.insert("enable_containers ".into());
    for times in [2, 3] {
        let answer = test_host.apply(wanted("1"));
        assert_eq!((answer.outcome, answer.warnings.len(), asked(&test_host)), (Outcome::Done, 1, times));
    }
    test_host.state().machine.containers_feature = Feature::Disabled;
    assert_eq!(reason(&test_host.apply(wanted("1"))), "HostCallFailed");
}

#[test]
fn a_refused_exclusion_from_the_antivirus_is_a_warning() {
    let test_host = TestHost::staged("1");
    test_host.state().refused.insert(format!("exclude_from_antivirus {CONTAINERD}"));
    let answer = test_host.apply(wanted("1"));
    assert_eq!((answer.outcome, answer.warnings.len()), (Outcome::Done, 1));
}

/// After a crash at any point, applying again leads to the same host as without a crash.
#[test]
fn apply_converges_after_a_crash_anywhere() {
    let arrange = || {
        let test_host = TestHost::staged("1");
        test_host.state().machine.containers_feature = Feature::Disabled;
        test_host.state().env.insert("NO_PROXY".into(), "theirs".into());
        (test_host, ())
    };
    let found = |test_host: &TestHost| (test_host.tree(), test_host.rest(), Ownership::load(&test_host.host).unwrap());
    let (straight, ()) = arrange();
    assert_eq!(reason(&straight.apply(wanted("1"))), "RebootRequired");
    let expected = found(&straight);
    let act = |test_host: &TestHost, (): &()| drop(test_host.apply(wanted("1")));
    crash_anywhere(arrange, act, 1, |test_host, (), about| {
        assert_eq!(reason(&test_host.apply(wanted("1"))), "RebootRequired", "{about}");
        assert_eq!(found(test_host), expected, "{about}");
    });
}

#[test]
fn log_directories_are_those_in_command_lines() {
    let desired = |path: &str| Desired {
        services: ServicesConfig {
            services: vec![Service { path: path.into(), ..Service::default() }],
            ..ServicesConfig::default()
        },
        ..Desired::default()
    };
    for (command, expected) in [
        (r"x -log-file=C:\var\log\kubelet\kubelet.log y", Some(r"C:\var\log\kubelet")),
        (r#"x "C:\var\log\csi-proxy\a b.log""#, Some(r"C:\var\log\csi-proxy")),
        (r"x --log=C:\var\log\x.log", None),
        (r"x --log=C:\var\log\..\x.log", None),
        (r"x --log=D:\var\log\x\x.log", None),
    ] {
        let mut directories = log_directories(&desired(command));
        assert!(directories.remove(r"C:\var\log\wicd"));
        assert_eq!(
            directories.iter().map(String::as_str).collect::<Vec<_>>(),
            expected.into_iter().collect::<Vec<_>>(),
            "{command}"
        );
    }
}
