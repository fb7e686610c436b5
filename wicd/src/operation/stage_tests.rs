//! Tests of `stage`.

use proptest::prelude::*;

use super::*;
use crate::operation::tests::{ARCHIVE, TestHost, archive, file, frame, message, reason};

const DEST: &str = r"C:\k\x.exe";

#[test]
fn missing_blobs_are_unpacked() {
    let test_host = TestHost::new();
    let (x, y) = (file(DEST, b"x content"), file(r"C:\k\y.exe", b"y"));
    test_host.write(&blob(&y.sha256), b"y");
    let sent = archive(&[(&x.sha256, &frame(b"x content"))]);
    let answer = test_host.stage(&[x.clone(), y.clone()], &sent);
    assert_eq!((answer.outcome, answer.state.unwrap().missing), (Outcome::Done, Vec::new()));
    assert_eq!(test_host.read(&blob(&x.sha256)).unwrap(), "x content");
    assert!(!test_host.exists(&format!(r"{}\{ARCHIVE}", path::OPERATIONS)));
    assert!(!test_host.exists(DEST));
    // The second request has no archive, because no file is missing.
    let again = test_host.run(api::host::Body::Stage(Stage { files: vec![x, y], archive: ARCHIVE.into() }));
    assert_eq!(again.outcome, Outcome::Done);
}

/// Content is hashed while it is unpacked, and wrong content never gets the name of the blob.
#[test]
fn invalid_archives_are_refused() {
    let x = file(DEST, b"x content");
    let good = frame(b"x content");
    let tar = archive(&[(&x.sha256, &good)]);
    let with_type = |entry_type| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(entry_type);
        header.set_size(0);
        header.set_link_name("/etc/passwd").unwrap();
        let mut tar = tar::Builder::new(Vec::new());
        tar.append_data(&mut header, &x.sha256, &[][..]).unwrap();
        tar.into_inner().unwrap()
    };
    let two_frames = [good.clone(), good.clone()].concat();
    for (name, bytes, expected, part) in [
        ("empty", Vec::new(), "HashMismatch", "incomplete"),
        ("nothing in it", archive(&[]), "HashMismatch", "incomplete"),
        ("cut off in the header", tar[..100].to_vec(), "HashMismatch", ""),
        ("cut off in the content", tar[..512 + 10].to_vec(), "HashMismatch", ""),
        ("cut off frame", archive(&[(&x.sha256, &good[..good.len() - 3])]), "HashMismatch", ""),
        ("no zstd", archive(&[(&x.sha256, b"x content")]), "HashMismatch", ""),
        ("other content", archive(&[(&x.sha256, &frame(b"X content"))]), "HashMismatch", "sends it again"),
        ("bomb", archive(&[(&x.sha256, &frame(&vec![0; 8 << 20]))]), "HashMismatch", "larger"),
        ("short", archive(&[(&x.sha256, &frame(b"x"))]), "HashMismatch", "smaller"),
        ("two frames", archive(&[(&x.sha256, &two_frames)]), "HashMismatch", "more than one"),
        ("unknown entry", archive(&[("evil", &good)]), "HashMismatch", "not requested"),
        ("a path", archive(&[("k/evil.exe", &good)]), "HashMismatch", "not requested"),
        ("link", with_type(tar::EntryType::Symlink), "HashMismatch", "plain file"),
        ("hard link", with_type(tar::EntryType::Link), "HashMismatch", "plain file"),
        ("directory", with_type(tar::EntryType::Directory), "HashMismatch", "plain file"),
    ] {
        let test_host = TestHost::new();
        let answer = test_host.stage(std::slice::from_ref(&x), &bytes);
        assert_eq!(reason(&answer), expected, "{name}: {}", message(&answer));
        assert!(message(&answer).contains(part), "{name}: {}", message(&answer));
        assert_eq!(files::list(&test_host.host, path::BLOBS).unwrap(), Vec::<String>::new(), "{name}");
        assert_eq!(files::list(&test_host.host, path::OPERATIONS).unwrap(), Vec::<String>::new(), "{name}");
        // The next attempt succeeds with a good archive.
        assert_eq!(test_host.stage(std::slice::from_ref(&x), &tar).outcome, Outcome::Done, "{name}");
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let test_host = TestHost::new();
    for archive in ["", "..", r"..\x", r"a\b", "a:b", "/etc/passwd"] {
        let answer = test_host.run(api::host::Body::Stage(Stage { files: Vec::new(), archive: archive.into() }));
        assert_eq!(reason(&answer), "HashMismatch", "{archive}");
    }
    for bad in [
        payload::File { sha256: r"..\x".into(), ..file(DEST, b"") },
        payload::File { destination: r"C:\..\x".into(), ..file(DEST, b"") },
    ] {
        let answer = test_host.run(api::host::Body::Stage(Stage { files: vec![bad], archive: "a".into() }));
        assert_eq!(reason(&answer), "PayloadInvalid");
    }
}

#[test]
fn a_full_disk_is_reported_with_figures() {
    let test_host = TestHost::new();
    let x = payload::File { size: 300 << 20, ..file(DEST, b"") };
    test_host.state().machine.disk_free = 400 << 20;
    let answer = test_host.stage(&[x], &[]);
    assert_eq!(reason(&answer), "DiskFull");
    assert_eq!(
        message(&answer),
        "the payload needs 300 MiB on C: of the host, and 256 MiB must stay free, but only 400 MiB are free; free some space"
    );
}

#[test]
fn blobs_of_the_current_and_the_previous_payload_are_kept() {
    let test_host = TestHost::new();
    for v in ["1", "2", "3"] {
        test_host.join(v);
    }
    test_host.write(&blob("rubbish.part"), b"");
    let kept = |v: &str| {
        let files = crate::operation::tests::payload_files(v);
        files.iter().filter(|(f, _)| test_host.exists(&blob(&f.sha256))).count()
    };
    test_host.stage_version("3");
    assert_eq!([kept("1"), kept("2"), kept("3")], [0, 3, 3]);
    assert!(!test_host.exists(&blob("rubbish.part")));
    test_host.stage_version("4");
    assert_eq!([kept("2"), kept("3"), kept("4")], [3, 3, 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_are_unpacked_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let test_host = TestHost::new();
        let x = file(DEST, b"x content");
        test_host.stage(std::slice::from_ref(&x), &bytes);
        prop_assert_eq!(files::list(&test_host.host, path::BLOBS).unwrap(), Vec::<String>::new());
    }

    /// A wrong byte anywhere in an archive leads to the right file or none.
    #[test]
    fn damage_is_detected(at in any::<prop::sample::Index>(), flip in 1u8..) {
        let test_host = TestHost::new();
        let content = b"x content x content".repeat(50);
        let x = file(DEST, &content);
        let mut bytes = archive(&[(&x.sha256, &frame(&content))]);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let answer = test_host.stage(std::slice::from_ref(&x), &bytes);
        let got = files::read(&test_host.host, &blob(&x.sha256)).unwrap();
        // Damage after the file's content is noticed, too, but the file is right.
        prop_assert!(got.is_some() || answer.outcome != Outcome::Done);
        prop_assert!(got.is_none_or(|got| got == content));
        prop_assert!(files::list(&test_host.host, path::BLOBS).unwrap().iter().all(|name| *name == x.sha256));
    }
}
