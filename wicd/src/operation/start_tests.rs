//! Tests of `start`.

use std::collections::BTreeMap;

use api::host::{Body, CertificateKind};

use super::*;
use crate::operation::tests::{TestHost, crash_anywhere, exe, message, reason, wanted};

fn applied(test_host: &TestHost, v: &str) -> Start {
    test_host.stage_version(v);
    let answer = test_host.apply(wanted(v));
    test_host.start_body(v, &answer)
}

/// Checks that certificates and keys are in the same files, and that no key is pending.
fn assert_certificates_are_installed(test_host: &TestHost, body: &Start, about: &str) {
    for (&kind, chain) in &body.certificates {
        let pem = test_host.read(certificates::paths(kind)[0]).unwrap();
        assert!(pem.starts_with(chain.trim_end()) && pem.contains("PRIVATE KEY"), "{kind:?} {about}");
        assert!(!test_host.exists(certificates::key_path(kind)), "{kind:?} {about}");
    }
}

/// The recovery delays are in seconds, not milliseconds.
#[test]
fn the_service_starts_and_has_recovery_delays() {
    let test_host = TestHost::new();
    let body = applied(&test_host, "1");
    assert_eq!(test_host.run(Body::Start(body)).outcome, Outcome::Done);
    let spec = test_host.state().specs[WICD_SERVICE].clone();
    assert_eq!(spec.command, format!(r"C:\k\wicd\{}\wicd.exe service", exe("1")));
    assert_eq!(spec.start, StartType::Auto);
    assert_eq!(
        spec.recovery.delays.iter().map(Duration::as_millis).collect::<Vec<_>>(),
        [10_000, 30_000, 60_000, 120_000]
    );
    assert_eq!(test_host.state().services[WICD_SERVICE].state, ServiceState::Running);
    let settings: Settings = files::read_json(&test_host.host, SETTINGS).unwrap().unwrap();
    assert_eq!(settings.certificate_seconds, 3600);
}

/// Windows loads libraries from the directory of a program first.
#[test]
fn other_files_beside_the_program_of_the_service_are_removed() {
    let test_host = TestHost::new();
    let body = applied(&test_host, "1");
    let directory = format!(r"{}\{}", path::WICD, exe("1"));
    for theirs in ["bcrypt.dll", r"wicd.exe.local\crypt32.dll", "WICD.EXE.config"] {
        test_host.write(&format!(r"{directory}\{theirs}"), b"theirs");
    }
    assert_eq!(test_host.run(Body::Start(body)).outcome, Outcome::Done);
    assert_eq!(files::list(&test_host.host, &directory).unwrap(), ["wicd.exe"]);
}

#[test]
fn certificates_and_keys_are_installed_together() {
    let test_host = TestHost::new();
    let body = applied(&test_host, "1");
    for _twice in 0..2 {
        assert_eq!(test_host.run(Body::Start(body.clone())).outcome, Outcome::Done);
        assert_certificates_are_installed(&test_host, &body, "");
        // A file with the time in its name, and the current one.
        assert_eq!(files::list(&test_host.host, path::WICD_CERTS).unwrap().len(), 2);
    }
}

#[test]
fn an_invalid_certificate_is_refused() {
    let test_host = TestHost::new();
    let good = applied(&test_host, "1");
    let other_host = TestHost::new();
    let other_key = applied(&other_host, "1");
    let (kubelet, wicd) = (&good.certificates[&CertificateKind::Kubelet], &good.certificates[&CertificateKind::Wicd]);
    for (name, chain, expected) in [
        ("other key", other_key.certificates[&CertificateKind::Kubelet].as_str(), "CertificateInvalid"),
        ("other kind", wicd, "CertificateInvalid"),
        ("cut off", &kubelet[..kubelet.len() - 40], "CertificateInvalid"),
        ("empty", "", "CertificateInvalid"),
    ] {
        let certificates = BTreeMap::from([(CertificateKind::Kubelet, chain.to_string())]);
        let answer = test_host.run(Body::Start(Start { certificates, ..good.clone() }));
        assert_eq!(reason(&answer), expected, "{name}: {}", message(&answer));
        assert!(!test_host.exists(path::KUBELET_FIRST_CERT), "{name}");
        assert!(!test_host.state().services.contains_key(WICD_SERVICE), "{name}");
    }
    test_host.state().machine.clock_ms = 2 * 86_400_000;
    let expired = test_host.run(Body::Start(good.clone()));
    assert_eq!(reason(&expired), "CertificateInvalid");
    assert!(message(&expired).contains("clocks"));
    test_host.state().machine.clock_ms = 0;
    // The pending key is still there for the right certificate.
    assert_eq!(test_host.run(Body::Start(good)).outcome, Outcome::Done);
}

#[test]
fn another_version_of_wicd_replaces_the_old_one() {
    let test_host = TestHost::new();
    test_host.join("1");
    let stops = test_host.record(|event, service| (event, service.command.clone()));
    test_host.join("2");
    use crate::fake::ServiceEvent::{Started, Stopped};
    let command = |v| service_spec(&exe(v)).command;
    assert_eq!(*stops.lock().unwrap(), [(Stopped, command("1")), (Started, command("2"))]);
    assert!(!test_host.exists(&api::host::exe_path(&exe("1"))) && test_host.exists(&api::host::exe_path(&exe("2"))));
    test_host.join("2");
    assert_eq!(stops.lock().unwrap().len(), 2, "nothing differs, so nothing is restarted");
}

/// A program with other content may have the right size, for example after a power failure.
#[test]
fn the_service_never_runs_a_damaged_program() {
    let test_host = TestHost::new();
    let body = applied(&test_host, "1");
    let place = api::host::exe_path(&exe("1"));
    for _twice in 0..2 {
        test_host.write(&place, b"?");
        assert_eq!(test_host.run(Body::Start(body.clone())).outcome, Outcome::Done);
        assert_eq!(test_host.read(&place).unwrap(), "1");
    }
}

#[test]
fn services_to_restart_are_stopped_before_wicds_service_starts() {
    let test_host = TestHost::new();
    test_host.join("1");
    for (name, description) in [("kubelet", "OpenShift managed kubelet"), ("spooler", "Prints")] {
        test_host.add_service(name, description, &[]);
    }
    let events = test_host.record(|event, service| (event, service.name.clone()));
    let restart = ["kubelet", "spooler", "missing"].map(String::from).to_vec();
    let body = Start { restart, wicd_sha256: exe("1"), ..Start::default() };
    assert_eq!(test_host.run(Body::Start(body)).outcome, Outcome::Done);
    use crate::fake::ServiceEvent::{Started, Stopped};
    let expected = [(Stopped, WICD_SERVICE), (Stopped, "kubelet"), (Started, WICD_SERVICE)];
    assert_eq!(*events.lock().unwrap(), expected.map(|(event, name)| (event, name.to_string())));
}

/// On a host of WMCO, WMCO's service becomes the operator's.
#[test]
fn the_service_of_wmco_becomes_the_operators() {
    let test_host = TestHost::staged("1");
    test_host.add_service(WICD_SERVICE, "OpenShift managed windows-instance-config-daemon", &[]);
    // Services are running, so they see the new proxy only after a restart of the host.
    assert!(matches!(test_host.apply_and_start("1", wanted("1")), Outcome::RebootRequired { .. }));
    assert_eq!(test_host.state().services[WICD_SERVICE].command, service_spec(&exe("1")).command);
}

#[test]
fn start_needs_the_program_and_a_desired_state() {
    for (about, wicd_sha256, sent) in [
        ("no program", exe("1"), None),
        ("no hash", "..".to_owned(), None),
        ("another program than its name says", exe("1"), Some("2")),
        ("no desired state", exe("1"), Some("1")),
    ] {
        let test_host = TestHost::new();
        if let Some(sent) = sent {
            test_host.write(&api::host::launcher_path(&exe("1")), sent.as_bytes());
        }
        let answer = test_host.run(Body::Start(Start { wicd_sha256, ..Start::default() }));
        assert_eq!(reason(&answer), "HostFilesChanged", "{about}");
    }
}

#[test]
fn a_service_that_ends_after_its_start_is_reported() {
    for (state, part) in [(ServiceState::Stopped, "ended right after"), (ServiceState::Pending, "did not start within")]
    {
        let test_host = TestHost::new();
        test_host.state().started_state = Some(state);
        test_host.host.put_service(&service_spec(&exe("1"))).unwrap();
        test_host.host.start_service(WICD_SERVICE).unwrap();
        let failure = wait_until_running(&test_host.host, Duration::ZERO).unwrap_err();
        assert_eq!(failure.reason, "HostCallFailed");
        assert!(failure.message.contains(part), "{}", failure.message);
    }
}

/// After a crash at any point, starting again leads to a running service, installed certificates and no pending key.
#[test]
fn start_converges_after_a_crash_anywhere() {
    let arrange = || {
        let test_host = TestHost::new();
        let body = applied(&test_host, "1");
        (test_host, body)
    };
    let (straight, body) = arrange();
    assert_eq!(straight.run(Body::Start(body)).outcome, Outcome::Done);
    let act = |test_host: &TestHost, body: &Start| drop(test_host.run(Body::Start(body.clone())));
    crash_anywhere(arrange, act, 1, |test_host, body, about| {
        assert_eq!(test_host.run(Body::Start(body.clone())).outcome, Outcome::Done, "{about}");
        assert_eq!(test_host.rest(), straight.rest(), "{about}");
        assert_certificates_are_installed(test_host, body, about);
    });
}
