//! Tests of the integrity of payload files.

use super::*;
use crate::fake::FakeHost;
use sha2::{Digest, Sha256};
use std::time::{SystemTime, UNIX_EPOCH};

const KUBELET: &str = r"C:\k\kubelet.exe";
const PROXY: &str = r"C:\k\kube-proxy.exe";

struct TestHost {
    host: FakeHost,
    files: Vec<FileInfo>,
    integrity: FileIntegrity,
    drift: Drift,
}

impl TestHost {
    /// Creates a host with two files that are in place and were found right.
    fn new() -> Self {
        let host = FakeHost::temporary();
        let place = |path: &str| {
            let checksum = hex::encode(Sha256::digest(path));
            host.write(&blob(&checksum), path.as_bytes());
            files::place(&host, &blob(&checksum), path).unwrap();
            FileInfo { path: path.into(), checksum }
        };
        let files = [KUBELET, PROXY].map(place).to_vec();
        let mut test_host = Self { host, files, integrity: FileIntegrity::default(), drift: Drift::default() };
        test_host.drift.settle(&[]);
        assert_eq!(test_host.round(true), [""; 0]);
        test_host
    }

    /// Runs one round, and returns its report.
    fn round(&mut self, heal: bool) -> Vec<String> {
        self.integrity.passes = None;
        self.integrity.check(&self.host, &self.files, heal, &mut self.drift, Duration::ZERO);
        self.drift.texts(Duration::ZERO)
    }
}

#[test]
fn a_changed_or_missing_file_is_restored_or_only_reported() {
    for (heal, end, contents) in [(true, "healed", [Some(KUBELET), Some(PROXY)]), (false, "left", [Some("mine"), None])]
    {
        let mut test_host = TestHost::new();
        test_host.host.write(KUBELET, b"mine");
        files::remove(&test_host.host, PROXY).unwrap();
        let texts = [format!("file {PROXY} ({end})"), format!("file {KUBELET} ({end})")];
        assert_eq!(test_host.round(heal), texts);
        assert_eq!(test_host.round(heal), texts, "for ten minutes, or until it is restored");
        assert_eq!([KUBELET, PROXY].map(|path| test_host.host.read(path)), contents.map(|text| text.map(String::from)));
        test_host.host.write(KUBELET, KUBELET.as_bytes());
        assert_eq!(test_host.round(heal), texts[..if heal { 2 } else { 1 }]);
    }
}

#[test]
fn a_file_that_never_matched_is_not_drift_and_is_always_corrected() {
    let mut test_host = TestHost::new();
    test_host.drift = Drift::default();
    test_host.drift.settle(&[]);
    test_host.host.write(KUBELET, b"of the version before");
    assert_eq!(test_host.round(false), [""; 0]);
    assert_eq!(test_host.host.read(KUBELET).as_deref(), Some(KUBELET));
}

/// Writing into a file changes its blob too, because they are the same file, so the content cannot be restored.
#[test]
fn a_file_that_was_written_to_is_left_and_its_blob_removed() {
    let mut test_host = TestHost::new();
    let real = test_host.host.path(KUBELET).unwrap();
    std::fs::write(&real, "mine").unwrap();
    assert_eq!(test_host.round(true), [format!("file {KUBELET} (left)")]);
    let blob = blob(&test_host.files[0].checksum);
    assert_eq!((test_host.host.read(KUBELET).as_deref(), test_host.host.read(&blob)), (Some("mine"), None));
    test_host.host.write(&blob, KUBELET.as_bytes());
    assert_eq!(test_host.round(true), [format!("file {KUBELET} (healed)")]);
}

#[test]
fn only_files_with_another_size_or_time_are_read() {
    let mut test_host = TestHost::new();
    let real = test_host.host.path(KUBELET).unwrap();
    let touch = |content: &str, time: SystemTime| {
        std::fs::write(&real, content).unwrap();
        std::fs::File::options().write(true).open(&real).unwrap().set_modified(time).unwrap();
    };
    let right = test_host.drift.right_file(KUBELET).unwrap();
    let other = "x".repeat(KUBELET.len());
    // With the same size and time, the file is not read, and its wrong content is not noticed.
    touch(&other, UNIX_EPOCH + Duration::from_nanos(right.modified));
    assert_eq!(test_host.round(false), [""; 0]);
    touch(&other, UNIX_EPOCH);
    assert_eq!(test_host.round(false), [format!("file {KUBELET} (left)")]);
    touch(KUBELET, UNIX_EPOCH);
    assert_eq!(
        test_host.round(false),
        [format!("file {KUBELET} (left)")],
        "a file that was found wrong is not read again"
    );
    touch(KUBELET, UNIX_EPOCH + Duration::from_secs(1));
    assert_eq!(test_host.round(false), [""; 0]);
    assert_eq!(test_host.drift.right_file(KUBELET).unwrap().modified, 1_000_000_000, "it is known by its new time");
}

#[test]
fn files_are_checked_after_some_passes_and_only_once_the_host_matches() {
    let mut test_host = TestHost::new();
    test_host.host.write(KUBELET, b"mine");
    let passes_until_told = |test_host: &mut TestHost| {
        let told = |_: &u32| {
            test_host.integrity.check(&test_host.host, &test_host.files, false, &mut test_host.drift, Duration::ZERO);
            !test_host.drift.texts(Duration::ZERO).is_empty()
        };
        (1..100).find(told)
    };
    assert_eq!(passes_until_told(&mut test_host), Some(24));
    (test_host.integrity, test_host.drift) = Default::default();
    assert_eq!(passes_until_told(&mut test_host), None);
    assert_eq!(test_host.host.read(KUBELET).as_deref(), Some("mine"), "services may still be on their way up");
}

#[test]
fn files_with_an_invalid_path_or_checksum_are_skipped() {
    let mut test_host = TestHost::new();
    test_host.files[0].path = r"C:\k\..\windows\x".into();
    test_host.files[1].checksum = "..".into();
    test_host.host.write(PROXY, b"mine");
    assert_eq!(test_host.round(true), [""; 0]);
    assert_eq!(test_host.host.read(PROXY).as_deref(), Some("mine"));
}
