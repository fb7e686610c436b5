//! Tests of kubelet's credentials, with the simulated start of kubelet.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::TemplateSpec;
use api::host::{Apply, Body, CertificateKind, Desired, Outcome, ServiceState, Start};
use k8s_openapi::ByteString;
use serde_json::json;
use wnp_core::render::{
    Cluster, Network, Platform, Settings, TlsPair,
    fixtures::{PROGRAMS, cluster, host, payload},
    render,
};

use super::*;
use crate::access::{self, Guard};
use crate::certificates;
use crate::daemon::reconciler::Reconciler;
use crate::fake::ServiceEvent;
use crate::network;
use crate::operation::tests::{CLUSTER, TestHost, crash_anywhere, exe, wanted};

/// Directories that programs create and write to.
const OUTPUT: [&str; 3] = [path::LOGS, path::KUBELET_PKI, r"C:\k\cni\config"];

/// Returns the files that a service cannot read, among those that its command line names and those that these files name.
fn unreadable(host: &FakeHost, command: &str) -> Vec<String> {
    let is_file = |word: &&str| word.starts_with(r"C:\") && !OUTPUT.iter().any(|output| is_below(word, output));
    let mut left: Vec<String> = command.split([' ', '=', '"']).filter(is_file).map(String::from).collect();
    let (mut seen, mut missing) = (BTreeSet::new(), Vec::new());
    while let Some(path) = left.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        // All services run as SYSTEM.
        let place = host.place(&host.path(&path).unwrap()).unwrap();
        let may_read = place.is_some_and(|place| place.access.entries.iter().any(|entry| entry.sid == access::SYSTEM));
        match files::size(host, &path).unwrap() {
            _ if !may_read => missing.push(path),
            Some(_) => {
                let config: Value = files::read_json(host, &path).ok().flatten().unwrap_or_default();
                strings(&config, &mut |text| left.extend(is_file(&text).then(|| text.to_owned())));
            }
            // Directories with programs.
            None if [path::ROOT, path::VOLUME_PLUGINS].contains(&path.as_str()) => {}
            None => missing.push(path),
        }
    }
    missing
}

fn is_below(file: &str, directory: &str) -> bool {
    file.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('\\'))
        && file != path::KUBELET_CURRENT_CERT
}

fn strings(value: &Value, each: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => each(text),
        Value::Array(items) => items.iter().for_each(|item| strings(item, each)),
        Value::Object(fields) => fields.values().for_each(|item| strings(item, each)),
        _ => {}
    }
}

/// Configures a host of this cluster, including the start of wicd's service.
fn join(test_host: &TestHost, cluster: &Cluster) -> Desired {
    let mut manifest = payload(&PROGRAMS);
    let contents: Vec<Vec<u8>> = manifest.files.iter().map(|file| file.destination.clone().into_bytes()).collect();
    for (file, content) in manifest.files.iter_mut().zip(&contents) {
        *file = api::payload::File {
            platforms: file.platforms.clone(),
            ..crate::operation::tests::file(&file.destination, content)
        };
    }
    let rendered = render(cluster, &manifest, &Settings::default(), &TemplateSpec::default()).unwrap();
    let files = rendered.files().to_vec();
    test_host.stage_all(&files.iter().map(|f| (f.clone(), f.destination.clone().into_bytes())).collect::<Vec<_>>());
    let desired = Desired {
        cluster_id: CLUSTER.into(),
        node_name: host().node_name,
        node_ip: host().node_ip,
        version: "1".into(),
        services: rendered.services.clone(),
        ..Desired::default()
    };
    let configs = rendered.configs(cluster, &host()).unwrap();
    let certificates = vec![CertificateKind::Kubelet, CertificateKind::Wicd];
    let apply = Apply { desired: desired.clone(), files, configs, certificates, wicd_sha256: exe("1") };
    assert_eq!(test_host.apply_and_start("1", apply), Outcome::Done);
    desired
}

#[test]
fn every_file_in_a_command_line_exists_when_its_service_starts() {
    let tls = TlsPair { certificate: "cert".into(), key: "key".into() };
    for network in
        [Network::External, Network::OvnHybrid { vxlan_port: None }, Network::OvnHybrid { vxlan_port: Some(9898) }]
    {
        for platform in [Platform::None, Platform::Aws, Platform::Azure] {
            let about = format!("{network:?} {platform:?}");
            let cluster = Cluster { network, platform, exporter_tls: Some(tls.clone()), ..cluster() };
            let test_host = TestHost::new();
            let desired = join(&test_host, &cluster);
            network::tests::make_network(&test_host);
            let (missing, host) = (Arc::new(Mutex::new(Vec::new())), test_host.host.clone());
            let seen = missing.clone();
            test_host.on_service(move |event, service| {
                if event == ServiceEvent::Started {
                    seen.lock()
                        .unwrap()
                        .extend(unreadable(&host, &service.command).into_iter().map(|f| (service.name.clone(), f)));
                }
            });
            let mut reconciler = Reconciler::new(Arc::new(test_host.host.clone()));
            for second in 0..20 {
                // kubelet takes a moment to store its first certificate. Services that need the certificate must not start meanwhile.
                if second == 10 {
                    start(&test_host.host).unwrap();
                }
                reconciler.reconcile_once(None, Duration::from_secs(second));
            }
            let state = |name: &str| test_host.state().services[name].state;
            for service in &desired.services.services {
                assert_eq!(state(&service.name), ServiceState::Running, "{about}: {}", service.name);
            }
            assert_eq!(*missing.lock().unwrap(), [], "{about}");
        }
    }
}

#[test]
fn kubelet_stores_only_a_certificate_that_is_in_its_kubeconfig() {
    let test_host = TestHost::new();
    let valid = |seconds| {
        let request = certificates::request(&test_host.host, CertificateKind::Kubelet, "win-1").unwrap();
        let key = test_host.read(certificates::key_path(CertificateKind::Kubelet)).unwrap();
        test_host.sign(&request, seconds) + &key
    };
    let (first, stored, over) = (valid(86_400), valid(7200), expired(&test_host));
    let (chain, key) = split(&first).unwrap();
    let inline = json!({"client-certificate-data": data(&chain), "client-key-data": data(&key)});
    let file = json!({"client-certificate": path::KUBELET_FIRST_CERT, "client-key": path::KUBELET_FIRST_CERT});
    enum Stored<'a> {
        Nothing,
        Link(&'a str),
        Plain(&'a str),
    }
    use Stored::{Link, Nothing, Plain};
    // Credentials for the API server, and those that are stored afterwards.
    for (about, user, before, expected) in [
        ("inline", &inline, Nothing, Ok((&first, Some(&first)))),
        ("as a file", &file, Nothing, Ok((&first, None))),
        ("restart", &inline, Link(&stored), Ok((&stored, Some(&stored)))),
        ("restart after the stored one is over", &inline, Link(&over), Ok((&first, Some(&first)))),
        ("a plain file is never replaced", &inline, Plain(&over), Ok((&first, Some(&over)))),
        ("as a file, the stored one is over", &file, Link(&over), Err("no valid client certificate")),
        ("damaged", &inline, Link("?"), Err("could not convert data")),
        ("no credentials", &json!({}), Nothing, Err("no credentials")),
    ] {
        files::remove_tree(&test_host.host, path::KUBELET_PKI).unwrap();
        test_host.write(path::KUBELET_FIRST_CERT, first.as_bytes());
        let kubeconfig = json!({"users": [{"name": "system:node:win-1", "user": user}]});
        test_host.write(path::KUBELET_KUBECONFIG, kubeconfig.to_string().as_bytes());
        match before {
            Nothing => {}
            Link(pem) => store(&test_host.host, pem).unwrap(),
            Plain(pem) => test_host.write(path::KUBELET_CURRENT_CERT, pem.as_bytes()),
        }
        match (start(&test_host.host), expected) {
            (Ok(used), Ok((expected, left))) => {
                assert_eq!(&used, expected, "{about}");
                assert_eq!(test_host.read(path::KUBELET_CURRENT_CERT).as_ref(), left, "{about}");
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{about}: {error}"),
            (got, _) => panic!("{about}: {got:?}"),
        }
    }
}

/// Creates a host that was a node of WMCO or of another cluster under the same name, and whose kubelet still runs.
fn former_node() -> (TestHost, Start) {
    let test_host = TestHost::new();
    let other_ca = TestHost::new();
    let request = certificates::request(&test_host.host, CertificateKind::Kubelet, "win-1").unwrap();
    let key = test_host.read(certificates::key_path(CertificateKind::Kubelet)).unwrap();
    files::remove(&test_host.host, certificates::key_path(CertificateKind::Kubelet)).unwrap();
    let user =
        json!({"client-certificate-data": data(&other_ca.sign(&request, 86_400)), "client-key-data": data(&key)});
    let kubeconfig = json!({"users": [{"name": "default-auth", "user": user}]});
    test_host.write(path::KUBELET_KUBECONFIG, kubeconfig.to_string().as_bytes());
    super::start(&test_host.host).unwrap();
    test_host.add_service("kubelet", "OpenShift managed kubelet", &[]);
    test_host.stage_version("1");
    let applied = test_host.apply(wanted("1"));
    let body = test_host.start_body("1", &applied);
    (test_host, body)
}

fn data(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}

/// wicd's service may start kubelet whenever no operation is in progress, and kubelet must still get the new certificate.
#[test]
fn a_former_node_gets_its_new_certificate_after_a_crash_anywhere() {
    let arrange = || {
        let (test_host, body) = former_node();
        let key = test_host.read(certificates::key_path(CertificateKind::Kubelet)).unwrap();
        (test_host, (body, key))
    };
    let act = |test_host: &TestHost, (body, key): &(Start, String)| {
        let answer = test_host.run(Body::Start(body.clone()));
        let told = serde_json::to_string(&answer).unwrap();
        let secrets = [json!(data(key)).to_string(), key.lines().nth(1).unwrap().to_owned()];
        assert!(secrets.iter().all(|secret| !told.contains(secret.as_str())), "{told}");
        answer.outcome
    };
    let check = |test_host: &TestHost, arranged: &(Start, String), about: &str| {
        let mut goes_with = super::start(&test_host.host);
        test_host.host.start_service("kubelet").unwrap();
        assert_eq!(act(test_host, arranged), Outcome::Done, "{about}");
        if test_host.state().services["kubelet"].state == ServiceState::Stopped {
            goes_with = super::start(&test_host.host);
        }
        let goes_with = goes_with.unwrap();
        assert!(goes_with.starts_with(arranged.0.certificates[&CertificateKind::Kubelet].trim_end()), "{about}");
        assert_eq!(test_host.read(path::KUBELET_CURRENT_CERT).unwrap(), goes_with, "{about}");
        for path in [path::KUBELET_KUBECONFIG, path::KUBELET_FIRST_CERT] {
            // Both keep the access list of their temporary file.
            let written = test_host.path(&format!("{path}.new")).unwrap();
            assert!(test_host.state().access[&written].is(Guard::Private), "{path} {about}");
        }
    };
    crash_anywhere(arrange, |test_host, arranged| drop(act(test_host, arranged)), 1, check);
}

#[test]
fn kubelet_restarts_only_if_it_has_stored_no_certificate() {
    let (test_host, body) = former_node();
    assert_eq!(test_host.run(Body::Start(body)).outcome, Outcome::Done);
    super::start(&test_host.host).unwrap();
    let again = || {
        test_host.host.start_service("kubelet").unwrap();
        assert_eq!(test_host.apply_and_start("1", wanted("1")), Outcome::Done);
        test_host.state().services["kubelet"].state
    };
    assert_eq!(again(), ServiceState::Running, "nothing has changed");
    let named = json!({"users": [{"user": {"client-certificate": path::KUBELET_FIRST_CERT}}]});
    let right = test_host.read(path::KUBELET_KUBECONFIG).unwrap();
    for (stores, expected) in [(true, ServiceState::Running), (false, ServiceState::Stopped)] {
        test_host.write(path::KUBELET_KUBECONFIG, named.to_string().as_bytes());
        if !stores {
            files::remove(&test_host.host, path::KUBELET_CURRENT_CERT).unwrap();
        }
        assert_eq!(again(), expected, "stored: {stores}");
        assert_eq!(test_host.read(path::KUBELET_KUBECONFIG).unwrap(), right);
    }
}

/// Returns an expired certificate with its key.
fn expired(test_host: &TestHost) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2020, 1, 2);
    params.signed_by(&key, &test_host.ca).unwrap().pem() + &key.serialize_pem()
}
