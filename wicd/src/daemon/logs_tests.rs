//! Tests of the rotation of logs.

use super::*;
use crate::fake::FakeHost;
use crate::files::Access;
use api::services::{Service, ServicesConfig};
use proptest::prelude::*;
use std::io::Write;

const LOG: &str = r"C:\var\log\containerd\containerd.log";
const ASIDE: &str = r"C:\var\log\containerd\containerd-20260728T101500.log";
const ROTATION: LogRotation = LogRotation { max_bytes: 100, max_age_seconds: 3600 };

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn logs_are_named_in_command_lines() {
    let cases: [(&str, &[&str]); 9] = [
        (
            r"C:\k\containerd.exe --config C:\k\c.toml --log-file C:\var\log\containerd\containerd.log --run-service",
            &[LOG],
        ),
        (
            r"C:\k\csi-proxy.exe -log_file=C:\var\log\csi-proxy\csi-proxy.log --v=2",
            &[r"C:\var\log\csi-proxy\csi-proxy.log"],
        ),
        (r"x.exe --a C:\var\log\a.log --b c:\VAR\log\b\b.txt", &[r"C:\var\log\a.log", r"c:\VAR\log\b\b.txt"]),
        (r#"x.exe --log "C:\var\log\with space\x.log" --v"#, &[r"C:\var\log\with space\x.log"]),
        (r"C:\k\kube-log-runner.exe -log-file=C:\var\log\kubelet\kubelet.log C:\k\kubelet.exe", &[]),
        (r#""C:\k\Kube-Log-Runner.exe" -log-file=C:\var\log\kubelet\kubelet.log C:\k\kubelet.exe"#, &[]),
        (r"x.exe --log C:\var\log\..\..\windows\win.ini", &[]),
        (r"x.exe --log C:\k\x.log", &[]),
        ("", &[]),
    ];
    for (command, expected) in cases {
        assert_eq!(named(command), expected, "{command}");
    }
}

#[test]
fn large_logs_are_rotated_and_old_copies_deleted() {
    let logs = BTreeSet::from([LOG.to_owned(), r"C:\var\log\x\x.txt".to_owned()]);
    let now = at("2026-07-28T10:15:00Z");
    let rotate = |from: &str, to: &str| vec![Action::CopyTruncate { from: from.into(), to: to.into() }];
    let delete = |path: &str| vec![Action::Delete(path.into())];
    let beside = |name: &str| format!(r"C:\var\log\containerd\{name}");
    let cases = [
        (LOG.to_owned(), 99, vec![]),
        (LOG.to_owned(), 100, rotate(LOG, ASIDE)),
        (
            LOG.to_ascii_uppercase(),
            100,
            rotate(&LOG.to_ascii_uppercase(), r"C:\VAR\LOG\CONTAINERD\CONTAINERD-20260728T101500.log"),
        ),
        (
            r"C:\var\log\x\x.txt".to_owned(),
            100,
            rotate(r"C:\var\log\x\x.txt", r"C:\var\log\x\x.txt-20260728T101500.log"),
        ),
        (r"C:\var\log\x\y.txt".to_owned(), 100, vec![]),
        (beside("containerd-20260728T091500.log"), 500, vec![]),
        (beside("containerd-20260728T091459.log"), 500, delete(&beside("containerd-20260728T091459.log"))),
        (beside("containerd-20270728T091459.log"), 500, vec![]),
        // Old files with other names.
        (beside("containerd-20200101-000000.log"), 500, vec![]),
        (beside("containerd-20201301T000000.log"), 500, vec![]),
        (beside("containerd-20200101T000000.txt"), 500, vec![]),
        (beside("containerd-20200101T000000.log.gz"), 500, vec![]),
        (beside("other-20200101T000000.log"), 500, vec![]),
        (beside("containerd20200101T000000.log"), 500, vec![]),
    ];
    for (path, size, expected) in cases {
        assert_eq!(
            plan_rotation(&logs, &[LogFile { path: path.clone(), size }], ROTATION, now),
            expected,
            "{path} {size}"
        );
    }
    let empty = LogFile { path: LOG.into(), size: 0 };
    assert_eq!(plan_rotation(&logs, &[empty], LogRotation { max_bytes: 0, ..ROTATION }, now), []);
}

#[test]
fn a_log_with_the_name_of_a_copy_is_not_deleted() {
    let old = r"C:\var\log\containerd\containerd-20200101T000000.log".to_owned();
    let logs = BTreeSet::from([LOG.to_owned(), old.clone()]);
    assert_eq!(plan_rotation(&logs, &[LogFile { path: old, size: 1 }], ROTATION, at("2026-07-28T10:15:00Z")), []);
}

proptest! {
    /// Only logs are rotated, and only their copies are deleted, before any rotation.
    #[test]
    fn other_files_do_not_change(names in proptest::collection::vec(r"(containerd)?[-.a-zT0-9é]{0,20}(\.log)?", 0..8)) {
        let logs = BTreeSet::from([LOG.to_owned()]);
        let mut found = vec![LogFile { path: LOG.into(), size: 100 }];
        found.extend(names.iter().map(|n| LogFile { path: format!(r"C:\var\log\containerd\{n}"), size: 1000 }));
        let actions = plan_rotation(&logs, &found, ROTATION, at("2026-07-28T10:15:00Z"));
        for action in &actions {
            match action {
                Action::CopyTruncate { from, .. } => prop_assert_eq!(from, LOG),
                Action::Delete(path) => prop_assert!(put_aside(LOG, path).is_some() && path != LOG),
            }
        }
        let last_rotates = matches!(actions.last(), Some(Action::CopyTruncate { .. }));
        prop_assert!(last_rotates);
    }
}

struct TestHost {
    host: FakeHost,
    complaints: BTreeMap<String, String>,
}

impl TestHost {
    fn new(logs: Option<LogRotation>) -> Self {
        let host = FakeHost::temporary();
        let service = Service { name: "containerd".into(), path: format!("x --log {LOG}"), ..Service::default() };
        let services = ServicesConfig { services: vec![service], ..ServicesConfig::default() };
        let desired = Desired { services, logs, ..Desired::default() };
        files::write_json(&host, path::DESIRED, &desired, Access::Protected).unwrap();
        Self { host, complaints: BTreeMap::new() }
    }

    fn pass(&mut self, now: &str) {
        pass(&self.host, at(now), &mut self.complaints);
    }
}

#[test]
fn an_open_log_is_copied_and_continues() {
    let mut test_host = TestHost::new(Some(ROTATION));
    test_host.host.write(LOG, &[b'a'; 150]);
    test_host.host.write(r"C:\var\log\containerd\containerd-20200101T000000.log", b"old");
    test_host.host.write(r"C:\var\log\containerd\mine.txt", &[b'm'; 500]);
    let mut service = OpenOptions::new().append(true).open(test_host.host.path(LOG).unwrap()).unwrap();
    test_host.pass("2026-07-28T10:15:00Z");
    assert_eq!(test_host.complaints, BTreeMap::new());
    service.write_all(b"next").unwrap();
    assert_eq!(test_host.host.read(ASIDE).unwrap(), "a".repeat(150));
    assert_eq!(test_host.host.read(LOG).unwrap(), "next", "the service goes on in the same file");
    let names = files::list(&test_host.host, r"C:\var\log\containerd").unwrap();
    assert_eq!(names, ["containerd-20260728T101500.log", "containerd.log", "mine.txt"], "the old one is gone");
    // After an hour, the copy is deleted, too.
    test_host.pass("2026-07-28T11:15:01Z");
    assert_eq!((test_host.host.read(ASIDE), test_host.host.read(LOG)), (None, Some("next".into())));
}

#[test]
fn without_settings_no_log_is_rotated() {
    let mut test_host = TestHost::new(None);
    test_host.host.write(LOG, &[b'a'; 150]);
    test_host.pass("2026-07-28T10:15:00Z");
    assert_eq!(test_host.host.read(LOG).unwrap().len(), 150);
}

#[test]
fn without_free_space_a_log_is_truncated_without_a_copy() {
    let mut test_host = TestHost::new(Some(ROTATION));
    for (free, copied) in [(RESERVE + 149, false), (RESERVE + 150, true)] {
        test_host.host.write(LOG, &[b'a'; 150]);
        test_host.host.state().machine.disk_free = free;
        test_host.pass("2026-07-28T10:15:00Z");
        assert_eq!(test_host.host.read(LOG).unwrap(), "", "{free}");
        assert_eq!(test_host.host.read(ASIDE).is_some(), copied, "{free}");
    }
}

#[test]
fn a_program_that_does_not_append_keeps_its_log() {
    let mut test_host = TestHost::new(Some(ROTATION));
    let content = "\0".repeat(600) + "line";
    test_host.host.write(LOG, content.as_bytes());
    test_host.pass("2026-07-28T10:15:00Z");
    assert_eq!((test_host.host.read(LOG), test_host.host.read(ASIDE)), (Some(content), None));
    assert!(test_host.complaints[LOG].contains("does not append"), "{:?}", test_host.complaints);
}

#[test]
fn an_earlier_copy_is_not_overwritten() {
    let mut test_host = TestHost::new(Some(ROTATION));
    test_host.host.write(LOG, &[b'a'; 150]);
    test_host.host.write(ASIDE, b"precious");
    test_host.pass("2026-07-28T10:15:00Z");
    assert_eq!(
        (test_host.host.read(ASIDE).unwrap(), test_host.host.read(LOG).unwrap().len()),
        ("precious".into(), 150)
    );
    test_host.pass("2026-07-28T10:16:00Z");
    assert_eq!(test_host.host.read(LOG).unwrap(), "");
    assert_eq!(test_host.complaints, BTreeMap::new());
}

/// A link would redirect the truncation to another file.
#[cfg(unix)]
#[test]
fn a_link_is_not_rotated() {
    let mut test_host = TestHost::new(Some(ROTATION));
    test_host.host.write(r"C:\user\precious", &[b'p'; 500]);
    files::make_directory(&test_host.host, r"C:\var\log\containerd").unwrap();
    std::os::unix::fs::symlink(test_host.host.path(r"C:\user\precious").unwrap(), test_host.host.path(LOG).unwrap())
        .unwrap();
    test_host.pass("2026-07-28T10:15:00Z");
    assert_eq!(test_host.host.read(r"C:\user\precious").unwrap().len(), 500);
}

#[cfg(unix)]
#[test]
fn logs_behind_a_link_are_not_rotated() {
    let mut test_host = TestHost::new(Some(ROTATION));
    test_host.host.write(r"C:\user\containerd\containerd.log", &[b'p'; 500]);
    test_host.host.write(r"C:\user\containerd\containerd-20200101T000000.log", b"old");
    files::make_directory(&test_host.host, r"C:\var").unwrap();
    std::os::unix::fs::symlink(test_host.host.path(r"C:\user").unwrap(), test_host.host.path(path::LOGS).unwrap())
        .unwrap();
    test_host.pass("2026-07-28T10:15:00Z");
    assert_eq!(test_host.host.read(r"C:\user\containerd\containerd.log").unwrap().len(), 500);
    assert_eq!(files::list(&test_host.host, r"C:\user\containerd").unwrap().len(), 2);
}
