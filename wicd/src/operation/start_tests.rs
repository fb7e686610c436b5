//! Tests of `start`.

use std::collections::BTreeMap;

use api::host::{Body, CertificateKind};

use super::*;
use crate::operation::tests::{Bed, exe, message, reason, service, wanted};

fn applied(bed: &Bed, v: &str) -> Start {
    assert_eq!(bed.stage_version(v).outcome, Outcome::Done);
    let answer = bed.apply(wanted(v));
    bed.start_body(v, &answer)
}

/// The recovery delays are in seconds, not milliseconds.
#[test]
fn the_service_comes_up_and_comes_back() {
    let bed = Bed::new();
    let body = applied(&bed, "1");
    assert_eq!(bed.run(Body::Start(body)).outcome, Outcome::Done);
    let spec = bed.host.state().specs[WICD_SERVICE].clone();
    assert_eq!(spec.command, format!(r"C:\k\wicd\{}\wicd.exe service", exe("1")));
    assert_eq!(spec.start, StartType::Auto);
    let recovery = spec.recovery.unwrap();
    assert_eq!(recovery.delays.iter().map(Duration::as_millis).collect::<Vec<_>>(), [10_000, 30_000, 60_000, 120_000]);
    assert_eq!(bed.host.state().services[WICD_SERVICE].state, ServiceState::Running);
    let settings: Settings = files::read_json(&bed.host, SETTINGS).unwrap().unwrap();
    assert_eq!(settings.certificate_seconds, 3600);
}

/// Windows loads libraries from the directory of a program first.
#[test]
fn nothing_of_others_stays_beside_the_program_of_the_service() {
    let bed = Bed::new();
    let body = applied(&bed, "1");
    let directory = format!(r"{}\{}", path::WICD, exe("1"));
    for theirs in ["bcrypt.dll", r"wicd.exe.local\crypt32.dll", "WICD.EXE.config"] {
        bed.write(&format!(r"{directory}\{theirs}"), b"theirs");
    }
    assert_eq!(bed.run(Body::Start(body)).outcome, Outcome::Done);
    assert_eq!(files::list(&bed.host, &directory).unwrap(), ["wicd.exe"]);
}

#[test]
fn certificates_and_keys_lie_together_and_no_key_waits_any_more() {
    let bed = Bed::new();
    let body = applied(&bed, "1");
    for _twice in 0..2 {
        assert_eq!(bed.run(Body::Start(body.clone())).outcome, Outcome::Done);
        for (kind, chain) in &body.certificates {
            let pem = bed.read(certificates::paths(*kind)[0]).unwrap();
            assert!(pem.starts_with(chain.trim_end()) && pem.contains("PRIVATE KEY"), "{kind:?}");
            assert!(!bed.exists(certificates::key_path(*kind)), "{kind:?}");
        }
        // A file with the time in its name, and the current one.
        assert_eq!(files::list(&bed.host, path::WICD_CERTS).unwrap().len(), 2);
    }
}

#[test]
fn certificates_of_others_are_refused() {
    let bed = Bed::new();
    let good = applied(&bed, "1");
    let other_host = Bed::new();
    let other_key = applied(&other_host, "1");
    let (kubelet, wicd) = (&good.certificates[&CertificateKind::Kubelet], &good.certificates[&CertificateKind::Wicd]);
    for (name, chain, expected) in [
        ("other key", other_key.certificates[&CertificateKind::Kubelet].as_str(), "CertificateInvalid"),
        ("other kind", wicd, "CertificateInvalid"),
        ("cut off", &kubelet[..kubelet.len() - 40], "CertificateInvalid"),
        ("empty", "", "CertificateInvalid"),
    ] {
        let certificates = BTreeMap::from([(CertificateKind::Kubelet, chain.to_string())]);
        let answer = bed.run(Body::Start(Start { certificates, ..good.clone() }));
        assert_eq!(reason(&answer), expected, "{name}: {}", message(&answer));
        assert!(!bed.exists(path::KUBELET_FIRST_CERT), "{name}");
        assert!(!bed.host.state().services.contains_key(WICD_SERVICE), "{name}");
    }
    // The pending key is still there for the right certificate.
    assert_eq!(bed.run(Body::Start(good)).outcome, Outcome::Done);
}

#[test]
fn a_certificate_that_is_over_is_refused() {
    let bed = Bed::new();
    let body = applied(&bed, "1");
    bed.host.state().machine.clock_ms = 2 * 86_400_000;
    let answer = bed.run(Body::Start(body));
    assert_eq!(reason(&answer), "CertificateInvalid");
    assert!(message(&answer).contains("clocks"));
}

#[test]
fn another_exe_is_taken_up_and_the_old_one_goes() {
    let bed = Bed::new();
    bed.join("1");
    let stops = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = stops.clone();
    bed.host.on_service(move |event, service| seen.lock().unwrap().push((event, service.command.clone())));
    bed.join("2");
    use crate::fake::ServiceEvent::{Started, Stopped};
    let command = |v| service_spec(&exe(v)).command;
    assert_eq!(*stops.lock().unwrap(), [(Stopped, command("1")), (Started, command("2"))]);
    assert!(!bed.exists(&api::host::exe_path(&exe("1"))) && bed.exists(&api::host::exe_path(&exe("2"))));
    bed.join("2");
    assert_eq!(stops.lock().unwrap().len(), 2, "nothing differs, so nothing is restarted");
}

/// A program with other content may have the right size, for example after a power failure.
#[test]
fn the_service_never_runs_a_program_of_other_bytes() {
    let bed = Bed::new();
    let body = applied(&bed, "1");
    let place = api::host::exe_path(&exe("1"));
    bed.write(&place, b"?");
    assert_eq!(bed.run(Body::Start(body.clone())).outcome, Outcome::Done);
    assert_eq!(bed.read(&place).unwrap(), "1");
    bed.write(&place, b"?");
    assert_eq!(bed.run(Body::Start(body)).outcome, Outcome::Done);
    assert_eq!(bed.read(&place).unwrap(), "1");
}

#[test]
fn services_that_must_start_afresh_are_stopped_before_wicds_service_starts() {
    let bed = Bed::new();
    bed.join("1");
    for (name, description) in [("kubelet", "OpenShift managed kubelet"), ("spooler", "Prints")] {
        bed.host.state().services.insert(name.into(), service(name, description, &[]));
    }
    let events = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = events.clone();
    bed.host.on_service(move |event, service| seen.lock().unwrap().push((event, service.name.clone())));
    let restart = ["kubelet", "spooler", "missing"].map(String::from).to_vec();
    let body = Start { restart, wicd_sha256: exe("1"), ..Start::default() };
    assert_eq!(bed.run(Body::Start(body)).outcome, Outcome::Done);
    use crate::fake::ServiceEvent::{Started, Stopped};
    let expected = [(Stopped, WICD_SERVICE), (Stopped, "kubelet"), (Started, WICD_SERVICE)];
    assert_eq!(*events.lock().unwrap(), expected.map(|(event, name)| (event, name.to_string())));
}

/// On a host of WMCO, WMCO's service becomes the operator's.
#[test]
fn the_service_of_wmco_is_taken_over() {
    let bed = Bed::new();
    let theirs = service(WICD_SERVICE, "OpenShift managed windows-instance-config-daemon", &[]);
    bed.host.state().services.insert(WICD_SERVICE.into(), theirs);
    // Services are running, so they see the new proxy only after a restart of the host.
    assert_eq!(bed.stage_version("1").outcome, Outcome::Done);
    let answer = bed.apply(wanted("1"));
    assert_eq!(reason(&answer), "RebootRequired");
    assert_eq!(bed.run(Body::Start(bed.start_body("1", &answer))).outcome, Outcome::Done);
    assert_eq!(bed.host.state().services[WICD_SERVICE].command, service_spec(&exe("1")).command);
}

#[test]
fn what_must_be_there_first() {
    let bed = Bed::new();
    let body = Start { wicd_sha256: exe("1"), ..Start::default() };
    assert_eq!(reason(&bed.run(Body::Start(body.clone()))), "HostFilesChanged");
    assert_eq!(reason(&bed.run(Body::Start(Start { wicd_sha256: "..".into(), ..body.clone() }))), "HostFilesChanged");
    bed.write(&api::host::launcher_path(&exe("1")), b"2");
    assert_eq!(
        reason(&bed.run(Body::Start(body.clone()))),
        "HostFilesChanged",
        "it is another program than its name says"
    );
    bed.write(&api::host::launcher_path(&exe("1")), b"1");
    assert_eq!(reason(&bed.run(Body::Start(body))), "HostFilesChanged");
}

#[test]
fn a_service_that_does_not_stay_up_is_reported() {
    for (state, part) in [(ServiceState::Stopped, "ended right after"), (ServiceState::Pending, "in time")] {
        let bed = Bed::new();
        bed.host.state().started_state = Some(state);
        bed.host.put_service(&service_spec(&exe("1"))).unwrap();
        bed.host.start_service(WICD_SERVICE).unwrap();
        let failure = wait_until_running(&bed.host, Duration::ZERO).unwrap_err();
        assert_eq!(failure.reason, "HostCallFailed");
        assert!(failure.message.contains(part), "{}", failure.message);
    }
}

/// After a crash at any point, starting again leads to a running service, installed certificates and no pending key.
#[test]
fn start_converges_after_a_crash_anywhere() {
    let arrange = || {
        let bed = Bed::new();
        let body = applied(&bed, "1");
        (bed, Body::Start(body))
    };
    let (straight, body) = arrange();
    straight.host.fail_after(None);
    assert_eq!(straight.run(body).outcome, Outcome::Done);
    let calls = straight.host.state().calls;
    assert!(calls > 30, "{calls}");
    for n in 0..calls {
        let (bed, body) = arrange();
        bed.host.fail_after(Some(n));
        bed.run(body.clone());
        bed.host.fail_after(None);
        assert_eq!(bed.run(body.clone()).outcome, Outcome::Done, "after call {n}");
        assert_eq!(bed.rest(), straight.rest(), "after call {n}");
        let Body::Start(Start { certificates, .. }) = body else { unreachable!() };
        for (kind, chain) in certificates {
            let pem = bed.read(certificates::paths(kind)[0]).unwrap();
            assert!(pem.starts_with(chain.trim_end()) && pem.contains("PRIVATE KEY"), "{kind:?} after call {n}");
            assert!(!bed.exists(certificates::key_path(kind)), "{kind:?} after call {n}");
        }
    }
}
