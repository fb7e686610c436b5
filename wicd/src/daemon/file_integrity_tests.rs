//! Tests of the integrity of payload files.

use super::*;
use crate::fake::FakeHost;
use crate::files::Access;
use sha2::{Digest, Sha256};
use std::time::{SystemTime, UNIX_EPOCH};

const KUBELET: &str = r"C:\k\kubelet.exe";
const PROXY: &str = r"C:\k\kube-proxy.exe";

struct Bed {
    _dir: tempfile::TempDir,
    host: FakeHost,
    files: Vec<FileInfo>,
    integrity: FileIntegrity,
    drift: Drift,
}

impl Bed {
    /// Creates a host with two files that are in place and were found right.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = FakeHost::new(dir.path());
        let place = |path: &str| {
            let checksum = hex::encode(Sha256::digest(path));
            files::write(&host, &blob(&checksum), path.as_bytes(), Access::Inherited).unwrap();
            files::place(&host, &blob(&checksum), path).unwrap();
            FileInfo { path: path.into(), checksum }
        };
        let files = [KUBELET, PROXY].map(place).to_vec();
        let mut bed = Self { _dir: dir, host, files, integrity: FileIntegrity::default(), drift: Drift::default() };
        bed.drift.settle(&[]);
        assert_eq!(bed.round(true), [""; 0]);
        bed
    }

    /// Runs one round, and returns its report.
    fn round(&mut self, heal: bool) -> Vec<String> {
        self.integrity.passes = None;
        self.integrity.check(&self.host, &self.files, heal, 24, &mut self.drift, Duration::ZERO);
        self.drift.texts(Duration::ZERO)
    }

    /// Replaces this file with another one.
    fn replace(&self, path: &str, content: &str) {
        files::write(&self.host, path, content.as_bytes(), Access::Inherited).unwrap();
    }

    fn read(&self, path: &str) -> Option<String> {
        files::read(&self.host, path).unwrap().map(|c| String::from_utf8(c).unwrap())
    }
}

#[test]
fn what_differs_or_is_missing_is_put_back() {
    let mut bed = Bed::new();
    bed.replace(KUBELET, "mine");
    files::remove(&bed.host, PROXY).unwrap();
    assert_eq!(bed.round(true), [format!("file {PROXY} (healed)"), format!("file {KUBELET} (healed)")]);
    assert_eq!((bed.read(KUBELET).as_deref(), bed.read(PROXY).as_deref()), (Some(KUBELET), Some(PROXY)));
}

#[test]
fn or_only_reported() {
    let mut bed = Bed::new();
    bed.replace(KUBELET, "mine");
    files::remove(&bed.host, PROXY).unwrap();
    let left = [format!("file {PROXY} (left)"), format!("file {KUBELET} (left)")];
    assert_eq!(bed.round(false), left);
    assert_eq!(bed.round(false), left, "until it is restored");
    assert_eq!((bed.read(KUBELET).as_deref(), bed.read(PROXY)), (Some("mine"), None));
    bed.replace(KUBELET, KUBELET);
    assert_eq!(bed.round(false), [format!("file {PROXY} (left)")]);
}

#[test]
fn what_was_never_right_is_no_drift_and_always_put_right() {
    let mut bed = Bed::new();
    bed.drift = Drift::default();
    bed.drift.settle(&[]);
    bed.replace(KUBELET, "of the version before");
    assert_eq!(bed.round(false), [""; 0]);
    assert_eq!(bed.read(KUBELET).as_deref(), Some(KUBELET));
}

/// Writing into a file changes its blob too, because they are the same file, so the content cannot be restored.
#[test]
fn a_file_that_was_written_into_is_left_and_its_blob_is_sent_again() {
    let mut bed = Bed::new();
    let real = bed.host.path(KUBELET).unwrap();
    std::fs::write(&real, "mine").unwrap();
    assert_eq!(bed.round(true), [format!("file {KUBELET} (left)")]);
    let blob = blob(&bed.files[0].checksum);
    assert_eq!((bed.read(KUBELET).as_deref(), bed.read(&blob)), (Some("mine"), None));
    bed.replace(&blob, KUBELET);
    assert_eq!(bed.round(true), [format!("file {KUBELET} (healed)")]);
}

#[test]
fn only_what_looks_changed_is_read() {
    let mut bed = Bed::new();
    let real = bed.host.path(KUBELET).unwrap();
    let touch = |content: &str, time: SystemTime| {
        std::fs::write(&real, content).unwrap();
        std::fs::File::options().write(true).open(&real).unwrap().set_modified(time).unwrap();
    };
    let right = bed.drift.right_file(KUBELET).unwrap();
    let other = "x".repeat(KUBELET.len());
    // With the same size and time, the file is not read, and its wrong content is not noticed.
    touch(&other, UNIX_EPOCH + Duration::from_nanos(right.modified));
    assert_eq!(bed.round(false), [""; 0]);
    touch(&other, UNIX_EPOCH);
    assert_eq!(bed.round(false), [format!("file {KUBELET} (left)")]);
    touch(KUBELET, UNIX_EPOCH);
    assert_eq!(bed.round(false), [format!("file {KUBELET} (left)")], "nor is what was found wrong");
    touch(KUBELET, UNIX_EPOCH + Duration::from_secs(1));
    assert_eq!(bed.round(false), [""; 0]);
    assert_eq!(bed.drift.right_file(KUBELET).unwrap().modified, 1_000_000_000, "it is known by its new time");
}

#[test]
fn rounds_come_now_and_then_and_only_when_all_has_been_well() {
    let mut bed = Bed::new();
    bed.replace(KUBELET, "mine");
    let passes_until_told = |bed: &mut Bed| {
        let told = |_: &u32| {
            bed.integrity.check(&bed.host, &bed.files, false, 24, &mut bed.drift, Duration::ZERO);
            !bed.drift.texts(Duration::ZERO).is_empty()
        };
        (1..100).find(told)
    };
    assert_eq!(passes_until_told(&mut bed), Some(24));
    (bed.integrity, bed.drift) = Default::default();
    assert_eq!(passes_until_told(&mut bed), None);
    assert_eq!(bed.read(KUBELET).as_deref(), Some("mine"), "services may still be on their way up");
}

#[test]
fn files_that_no_payload_has_are_not_looked_at() {
    let mut bed = Bed::new();
    bed.files[0].path = r"C:\k\..\windows\x".into();
    bed.files[1].checksum = "..".into();
    bed.replace(PROXY, "mine");
    assert_eq!(bed.round(true), [""; 0]);
    assert_eq!(bed.read(PROXY).as_deref(), Some("mine"));
}
