//! Tests of `apply`.

use api::host::{Body, CertificateKind, ConfigFile, Feature, Owner};
use api::services::Service;

use super::*;
use crate::access::Guard;
use crate::operation::run;
use crate::operation::tests::{
    Bed, CLUSTER, KUBELET, ca_pem, message, payload_files, reason, request, service, wanted,
};

fn staged(v: &str) -> Bed {
    let bed = Bed::new();
    assert_eq!(bed.stage_version(v).outcome, Outcome::Done);
    bed
}

#[test]
fn everything_is_put_in_place() {
    let bed = staged("1");
    let answer = bed.apply(wanted("1"));
    assert_eq!((&answer.outcome, answer.warnings.as_slice()), (&Outcome::Done, &[][..]));
    for (file, content) in payload_files("1") {
        assert_eq!(bed.read(&file.destination).unwrap().into_bytes(), content);
    }
    assert_eq!(bed.read(r"C:\k\kubelet.conf").unwrap(), "{} 1");
    assert_eq!(bed.host.state().env, [("HTTP_PROXY".to_string(), "http://proxy".to_string())].into());
    assert_eq!(bed.host.state().trusted.len(), 1);
    assert!(bed.exists(r"C:\var\log\kubelet") && bed.exists(r"C:\var\log\wicd"));
    assert!(bed.host.state().excluded.contains(CONTAINERD));
    assert_eq!(answer.requests.keys().copied().collect::<Vec<_>>(), [CertificateKind::Kubelet, CertificateKind::Wicd]);
    let marker = answer.state.unwrap().marker.unwrap();
    assert_eq!((marker.version.as_str(), marker.node_name.as_str(), marker.epoch), ("1", "win-1", 1));
    assert_eq!(marker.payload, payload::digest(&wanted("1").files));
    // Nothing is started.
    assert!(bed.host.state().services.is_empty());
}

#[test]
fn applying_again_changes_nothing() {
    let bed = staged("1");
    let first = bed.apply(wanted("1"));
    let (tree, rest) = (bed.tree(), bed.rest());
    let owned = Ownership::load(&bed.host).unwrap();
    let second = bed.apply(wanted("1"));
    assert_eq!((second.outcome, bed.tree(), bed.rest()), (first.outcome, tree, rest));
    assert_eq!(Ownership::load(&bed.host).unwrap(), owned);
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
fn secrets_are_protected_and_not_shown() {
    let bed = staged("1");
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let inner = seen.clone();
    bed.host
        .on_protect(move |path| inner.lock().unwrap().push(path.file_name().unwrap().to_string_lossy().into_owned()));
    let answer = bed.apply(wanted("1"));
    let seen = seen.lock().unwrap();
    for name in ["tls.key.new", "desired.json.new", "kubelet-first.key.new", "wicd-client.key.new"] {
        assert!(seen.iter().any(|s| s == name), "{name} in {seen:?}");
    }
    let root = bed.host.path(path::ROOT).unwrap();
    assert!(bed.host.state().access[&root].is(Guard::Private));
    let told = serde_json::to_string(&answer).unwrap();
    assert!(!told.contains("hunter2") && !told.contains("PRIVATE KEY"));
}

#[test]
fn requests_name_the_node_and_nothing_else() {
    let bed = staged("1");
    let answer = bed.apply(wanted("1"));
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
fn certificates_that_are_good_are_not_asked_for_again() {
    let bed = Bed::new();
    bed.join("1");
    let requests = |node: &str, before: &str| {
        let mut body = wanted("1");
        body.desired.node_name = node.into();
        let mut request = request("join-1", 1, Body::Apply(Box::new(body)));
        request.recipient.node_name = node.into();
        request.supersedes = Some(Owner { cluster_id: CLUSTER.into(), node_name: before.into() });
        run(&bed.host, &request).requests.into_keys().collect::<Vec<_>>()
    };
    let both = [CertificateKind::Kubelet, CertificateKind::Wicd];
    assert_eq!(requests("win-1", "win-1"), []);
    assert_eq!(requests("win-2", "win-1"), both, "of another name");
    bed.host.state().machine.clock_ms = (86_400 - 1_800) * 1000;
    assert_eq!(requests("win-1", "win-2"), both, "half an hour before the end");
}

#[test]
fn services_of_others_are_left_alone() {
    let bed = staged("1");
    for name in ["containerd", "kube-proxy"] {
        bed.host.state().services.insert(name.into(), service(name, "a user's", &[]));
    }
    let before = (bed.tree(), bed.rest());
    let answer = bed.apply(wanted("1"));
    assert_eq!(reason(&answer), "ForeignServices");
    assert!(message(&answer).contains("containerd, kube-proxy"), "{}", message(&answer));
    assert_eq!((bed.tree(), bed.rest()), before);
}

/// The owner may run their own windows_exporter unless the payload has one, which needs the same name.
#[test]
fn a_service_of_the_owner_that_the_node_does_not_have_may_stay() {
    let bed = staged("1");
    bed.host.state().services.insert("windows_exporter".into(), service("windows_exporter", "the owner's", &[]));
    assert_eq!(reason(&bed.apply(wanted("1"))), "Done");
    let mut with_exporter = wanted("1");
    with_exporter.desired.services.services.push(Service { name: "windows_exporter".into(), ..Service::default() });
    let answer = bed.apply(with_exporter);
    assert_eq!(reason(&answer), "ForeignServices");
    assert!(message(&answer).contains("windows_exporter"), "{}", message(&answer));
}

#[test]
fn what_is_refused_before_anything_is_done() {
    let config = ConfigFile { path: r"C:\k\..\x".into(), ..ConfigFile::default() };
    let (pem, _) = ca_pem("x");
    let base = wanted("1");
    for (expected, body) in [
        ("PayloadInvalid", Apply { configs: vec![config], ..base.clone() }),
        ("HostFilesChanged", Apply { files: wanted("2").files, ..base.clone() }),
        // A cut-off bundle is not silently shortened.
        (
            "CertificateInvalid",
            Apply {
                desired: Desired { trusted_ca: format!("{pem}{}", &pem[..90]), ..base.desired.clone() },
                ..base.clone()
            },
        ),
    ] {
        let bed = staged("1");
        let before = (bed.tree(), bed.rest());
        assert_eq!(reason(&bed.apply(body)), expected);
        assert_eq!((bed.tree(), bed.rest()), before, "{expected}");
    }
}

/// Damaged files are repaired; if the staged copy is damaged, too, the operator sends it again.
#[test]
fn damage_is_repaired() {
    let bed = Bed::new();
    bed.join("1");
    let (kubelet, content) = payload_files("1").remove(0);
    // An antivirus replaces the file: the staged copy is still good.
    files::remove(&bed.host, KUBELET).unwrap();
    bed.write(KUBELET, b"damaged");
    assert_eq!(bed.apply(wanted("1")).outcome, Outcome::Done);
    assert_eq!(bed.read(KUBELET).unwrap().into_bytes(), content);
    // The disk damages the file: the staged copy is a hard link to it.
    std::fs::write(bed.host.path(KUBELET).unwrap(), "x".repeat(content.len())).unwrap();
    let answer = bed.apply(wanted("1"));
    assert_eq!((reason(&answer), answer.state.clone().unwrap().missing), ("HashMismatch", vec![kubelet.sha256]));
    bed.join("1");
    assert_eq!(bed.read(KUBELET).unwrap().into_bytes(), content);
}

#[test]
fn what_the_next_version_does_not_have_goes() {
    let bed = Bed::new();
    bed.join("1");
    assert_eq!(bed.stage_version("2").outcome, Outcome::Done);
    let mut next = wanted("2");
    let dropped = next.files.pop().unwrap().destination;
    let config = next.configs.pop().unwrap().path;
    assert_eq!(bed.apply(next).outcome, Outcome::Done);
    assert!(!bed.exists(&dropped) && !bed.exists(&config));
    assert!(bed.read(KUBELET).unwrap().ends_with('2'));
}

/// Variables that existed before get their values back, and certificates that were trusted before stay trusted.
#[test]
fn variables_and_certificates_of_before_come_back() {
    let bed = Bed::new();
    let body = wanted("1");
    let theirs = certificates::bundle(body.desired.trusted_ca.as_bytes()).unwrap().remove(0);
    bed.host.state().trusted.insert(theirs.clone());
    bed.host.state().env =
        [("NO_PROXY", "theirs"), ("HTTP_PROXY", "theirs too")].map(|(n, v)| (n.into(), v.into())).into();
    let before = bed.host.state().env.clone();
    bed.join("1");
    assert_eq!(bed.host.state().env, [("HTTP_PROXY".to_string(), "http://proxy".to_string())].into());
    // No longer a proxy, and another CA.
    let mut next = wanted("1");
    next.desired.services.environment_vars.clear();
    next.desired.services.watched_environment_vars.clear();
    next.desired.trusted_ca = ca_pem("other").0;
    assert_eq!(reason(&bed.apply(next)), "RebootRequired");
    assert_eq!(bed.host.state().env, before);
    assert_eq!(bed.host.state().trusted.len(), 2);
    let mut none = wanted("1");
    none.desired.trusted_ca.clear();
    bed.apply(none);
    assert_eq!(bed.host.state().trusted, [theirs].into());
}

/// Services with their own proxy variables do not see the machine's, which stay because the legacy operator would restart the host to restore
/// them.
#[test]
fn a_variable_of_the_machine_stays_while_each_service_has_its_own() {
    let bed = Bed::new();
    bed.join("1");
    let machine = bed.host.state().env.clone();
    let mut next = wanted("1");
    next.desired.services.environment_vars.clear();
    next.desired.services.watched_environment_vars.clear();
    for service in &mut next.desired.services.services {
        service.environment.insert("HTTP_PROXY".into(), "http://proxy".into());
    }
    let mut without = next.clone();
    without.desired.services.services[0].environment.clear();
    assert_eq!(reason(&bed.apply(next)), "Done");
    assert_eq!(bed.host.state().env, machine);
    assert_eq!(reason(&bed.apply(without)), "RebootRequired", "the machine's reaches a service that has none");
    assert!(bed.host.state().env.is_empty());
}

#[test]
fn a_restart_is_asked_for_until_it_has_happened() {
    let bed = staged("1");
    bed.host.set_containers_feature(Feature::Disabled);
    for _twice in 0..2 {
        let answer = bed.apply(wanted("1"));
        assert_eq!(
            (reason(&answer), message(&answer)),
            ("RebootRequired", "the Windows feature Containers has been enabled")
        );
        assert_eq!(
            answer.state.unwrap().reboot_required.as_deref(),
            Some("the Windows feature Containers has been enabled")
        );
        assert_eq!(answer.requests.len(), 2, "the rest was done nevertheless");
    }
    bed.host.reboot().unwrap();
    assert_eq!(bed.run(Body::Facts(api::host::Facts::default())).state.unwrap().reboot_required, None);
    assert_eq!(bed.apply(wanted("1")).outcome, Outcome::Done);
}

/// Windows locks the servicing of its features while an update is installed.
#[test]
fn windows_is_asked_for_its_feature_once_a_boot_and_only_a_host_without_containers_needs_the_answer() {
    let asked = |bed: &Bed| bed.host.state().counts.get("enable_containers").copied().unwrap_or_default();
    let bed = staged("1");
    for _twice in 0..2 {
        assert_eq!(bed.apply(wanted("1")).outcome, Outcome::Done);
    }
    assert_eq!(asked(&bed), 1);
    bed.host.reboot().unwrap();
    bed.host.state().refused.insert("enable_containers ".into());
    for times in [2, 3] {
        let answer = bed.apply(wanted("1"));
        assert_eq!((answer.outcome, answer.warnings.len(), asked(&bed)), (Outcome::Done, 1, times));
    }
    bed.host.set_containers_feature(Feature::Disabled);
    assert_eq!(reason(&bed.apply(wanted("1"))), "HostCallFailed");
}

#[test]
fn an_antivirus_that_refuses_is_only_a_warning() {
    let bed = staged("1");
    bed.host.state().refused.insert(format!("exclude_from_antivirus {CONTAINERD}"));
    let answer = bed.apply(wanted("1"));
    assert_eq!((answer.outcome, answer.warnings.len()), (Outcome::Done, 1));
}

/// After a crash at any point, applying again leads to the same host as without a crash.
#[test]
fn apply_converges_after_a_crash_anywhere() {
    let arrange = || {
        let bed = staged("1");
        bed.host.set_containers_feature(Feature::Disabled);
        bed.host.state().env.insert("NO_PROXY".into(), "theirs".into());
        bed
    };
    let straight = arrange();
    straight.host.fail_after(None);
    assert_eq!(reason(&straight.apply(wanted("1"))), "RebootRequired");
    let calls = straight.host.state().calls;
    let (tree, rest, owned) = (straight.tree(), straight.rest(), Ownership::load(&straight.host).unwrap());
    assert!(calls > 100, "{calls}");
    for n in 0..calls {
        let bed = arrange();
        bed.host.fail_after(Some(n));
        bed.apply(wanted("1"));
        bed.host.fail_after(None);
        assert_eq!(reason(&bed.apply(wanted("1"))), "RebootRequired", "after call {n}");
        assert_eq!((bed.tree(), bed.rest()), (tree.clone(), rest.clone()), "after call {n}");
        assert_eq!(Ownership::load(&bed.host).unwrap(), owned, "after call {n}");
    }
}

#[test]
fn directories_of_logs() {
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
