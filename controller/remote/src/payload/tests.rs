//! Tests of payload directories and of the archive for a host.

use std::collections::BTreeSet;

use proptest::prelude::*;
use testbed::payload::{Content, Entry, LEVEL_FAST, write};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use super::*;

/// Returns a payload with a small file, an empty file, a file of more than two chunks, a file for a platform, and a duplicate.
fn payload() -> (tempfile::TempDir, Payload) {
    let dir = tempfile::tempdir().unwrap();
    let entries = [
        Entry::new(r"C:\k\kubelet.exe", "kubelet".repeat(100)).services(&["kubelet"]),
        Entry::new(r"C:\k\empty", ""),
        Entry::with(r"C:\k\containerd\containerd.exe", Content::Random { size: 600_000, seed: 1 }),
        Entry::new(r"C:\k\ecr-credential-provider.exe", "ecr").platforms(&["aws"]),
        Entry::new(r"C:\k\copy.exe", "kubelet".repeat(100)),
    ];
    write(dir.path(), &entries, LEVEL_FAST).unwrap();
    let payload = Payload::open(dir.path()).unwrap();
    (dir, payload)
}

fn hashes(payload: &Payload) -> BTreeSet<String> {
    payload.manifest(None).unwrap().files.iter().map(|f| f.sha256.clone()).collect()
}

async fn read_from(payload: &Payload, missing: &BTreeSet<String>, offset: u64) -> Vec<u8> {
    let mut archive = Archive::new(payload, missing).unwrap();
    assert_eq!(archive.seek(io::SeekFrom::Start(offset)).await.unwrap(), offset);
    let mut bytes = Vec::new();
    archive.read_to_end(&mut bytes).await.unwrap();
    bytes
}

#[test]
fn the_platform_selects_the_files() {
    let (_dir, payload) = payload();
    let files = |platform: &str| payload.manifest(None).unwrap().for_platform(platform);
    assert_eq!((files("aws").len(), files("none").len(), files("azure").len()), (5, 4, 4));
    payload.verify_all().unwrap();
}

#[test]
fn the_newest_payload_that_is_not_newer_than_the_api_server_is_selected() {
    let dir = tempfile::tempdir().unwrap();
    for minor in ["1.34", "1.36", "1.9"] {
        write(&dir.path().join(minor), &[Entry::new(r"C:\k\kubelet.exe", minor)], LEVEL_FAST).unwrap();
    }
    // Directories that are not payloads: one with another name, and one without a manifest.
    write(&dir.path().join("1.x"), &[Entry::new(r"C:\k\kubelet.exe", "x")], LEVEL_FAST).unwrap();
    fs::create_dir(dir.path().join("1.35")).unwrap();
    let payload = Payload::open(dir.path()).unwrap();
    let of = |text: &str| hex::encode(Sha256::digest(text));
    for (server, expected) in [
        (Some(37), "1.36"),
        (Some(36), "1.36"),
        (Some(35), "1.34"),
        (Some(10), "1.9"),
        (Some(8), "1.9"),
        (None, "1.36"),
    ] {
        assert_eq!(payload.manifest(server).unwrap().files[0].sha256, of(expected), "{server:?}");
    }
    assert!(["1.34", "1.36", "1.9"].iter().all(|text| payload.has(&of(text))) && !payload.has(&of("1.x")));
    payload.verify_all().unwrap();

    // A manifest for all versions takes precedence over directories.
    write(dir.path(), &[Entry::new(r"C:\k\kubelet.exe", "all")], LEVEL_FAST).unwrap();
    let payload = Payload::open(dir.path()).unwrap();
    assert_eq!(payload.manifest(Some(34)).unwrap().files[0].sha256, of("all"));
    let error = Payload::open(&dir.path().join("1.35")).unwrap_err().to_string();
    assert!(error.contains("manifest.json"), "{error}");
    assert!(Payload::default().manifest(None).is_none());
}

/// Upgrades a control plane from 1.33 over 1.34 to 1.35, as between two EUS releases of OpenShift. Each change of the payload changes all nodes.
#[test]
fn nodes_skip_a_minor_version_without_a_payload() {
    for (about, minors, changes) in
        [("without the version in the middle", &["1.33", "1.35"][..], 1), ("with it", &["1.33", "1.34", "1.35"], 2)]
    {
        let dir = tempfile::tempdir().unwrap();
        for minor in minors {
            write(&dir.path().join(minor), &[Entry::new(r"C:\k\kubelet.exe", *minor)], LEVEL_FAST).unwrap();
        }
        let payload = Payload::open(dir.path()).unwrap();
        let mut taken: Vec<_> =
            [33, 34, 35].map(|server| payload.manifest(Some(server)).unwrap().files[0].sha256.clone()).into();
        assert_eq!(taken[2], hex::encode(Sha256::digest("1.35")), "{about}");
        taken.dedup();
        assert_eq!(taken.len() - 1, changes, "{about}");
    }
}

#[test]
fn every_missing_file_is_named() {
    let (dir, _) = payload();
    for file in ["kubelet.exe.zst", "containerd/containerd.exe.zst"] {
        fs::remove_file(dir.path().join(file)).unwrap();
    }
    let error = Payload::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("lacks 2 of"), "{error}");
    assert!(error.contains("kubelet.exe.zst") && error.contains("containerd.exe.zst"), "{error}");
}

#[test]
fn a_fault_of_a_payload_is_named() {
    type Spoil = fn(&Path);
    let cases: [(&str, Spoil, &str); 5] = [
        ("no manifest", |dir| fs::remove_file(dir.join(MANIFEST)).unwrap(), "manifest.json"),
        ("bad manifest", |dir| fs::write(dir.join(MANIFEST), "{").unwrap(), "manifest"),
        ("no file", |dir| fs::remove_file(dir.join("kubelet.exe.zst")).unwrap(), "kubelet.exe.zst"),
        (
            "short file",
            |dir| {
                let file = fs::OpenOptions::new().write(true).open(dir.join("containerd/containerd.exe.zst")).unwrap();
                file.set_len(600_000).unwrap();
            },
            "containerd.exe.zst has 600000 bytes and should have",
        ),
        ("no directory", |dir| fs::remove_dir_all(dir).unwrap(), "manifest.json"),
    ];
    for (name, spoil, expected) in cases {
        let (dir, _) = payload();
        spoil(dir.path());
        let error = Payload::open(dir.path()).unwrap_err();
        assert!(error.to_string().contains(expected), "{name}: {error}");
        assert!(
            error.to_string().contains("again (docs/guide/upgrade.md#the-payload)"),
            "{name}: {error} does not say what to do"
        );
    }
}

#[test]
fn damaged_contents_are_detected() {
    let (dir, payload) = payload();
    let file =
        payload.manifest(None).unwrap().files.iter().find(|f| f.path == "containerd/containerd.exe").unwrap().clone();
    payload.verify(&file.sha256).unwrap();
    let path = dir.path().join("containerd/containerd.exe.zst");
    let good = fs::read(&path).unwrap();

    let mut flipped = good.clone();
    flipped[300_000] ^= 1;
    let longer = zstd::encode_all(vec![0; 3_000_000].as_slice(), 1).unwrap();
    for bad in [flipped, longer, b"not zstd".to_vec(), Vec::new()] {
        fs::write(&path, bad).unwrap();
        let error = payload.verify(&file.sha256).unwrap_err();
        assert!(
            matches!(&error, PayloadError::WrongContent { path } if path.ends_with("containerd.exe.zst")),
            "{error}"
        );
        assert!(payload.verify_all().is_err());
    }
    assert!(matches!(payload.verify(&"0".repeat(64)), Err(PayloadError::NotInPayload { .. })));
}

#[tokio::test]
async fn the_archive_is_a_tar_of_frames() {
    let (_dir, payload) = payload();
    let all = hashes(&payload);
    assert_eq!(all.len(), 4, "identical contents are sent once");
    let archive = Archive::new(&payload, &all).unwrap();
    let bytes = read_from(&payload, &all, 0).await;
    assert_eq!(bytes.len() as u64, archive.size());

    let mut names = Vec::new();
    for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (0, 0, 0));
        assert_eq!(header.mode().unwrap(), 0o644);
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let content = zstd::decode_all(entry).unwrap();
        assert_eq!(hex::encode(Sha256::digest(content)), name);
        names.push(name);
    }
    assert_eq!(names, all.into_iter().collect::<Vec<_>>(), "sorted");
}

#[tokio::test]
async fn an_archive_of_nothing_is_an_empty_tar() {
    let (_dir, payload) = payload();
    assert_eq!(read_from(&payload, &BTreeSet::new(), 0).await, vec![0; 1024]);
}

#[test]
fn the_name_follows_from_the_entries() {
    let (_dir, payload) = payload();
    let all = hashes(&payload);
    let name = |missing: &BTreeSet<String>| Archive::new(&payload, missing).unwrap().name().to_owned();
    assert_eq!(name(&all), name(&all.clone()));
    let all_name = name(&all);
    let digits = all_name.strip_suffix(".tar").unwrap();
    assert!(digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{all_name}");
    let fewer: BTreeSet<String> = all.iter().skip(1).cloned().collect();
    assert_ne!(name(&all), name(&fewer));
    let foreign = BTreeSet::from(["0".repeat(64)]);
    assert!(matches!(Archive::new(&payload, &foreign), Err(PayloadError::NotInPayload { .. })));
}

#[tokio::test]
async fn a_file_that_shrinks_while_it_is_sent_is_named() {
    let (dir, payload) = payload();
    let mut archive = Archive::new(&payload, &hashes(&payload)).unwrap();
    fs::write(dir.path().join("containerd/containerd.exe.zst"), "x").unwrap();
    let error = archive.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert!(error.to_string().contains("containerd.exe.zst"), "{error}");
}

#[tokio::test]
async fn a_seek_during_a_read_moves_the_position() {
    let (_dir, payload) = payload();
    let all = hashes(&payload);
    let whole = read_from(&payload, &all, 0).await;
    let mut archive = Archive::new(&payload, &all).unwrap();
    let mut piece = [0; 700];
    for offset in [500_000_usize, 0, 511, 512, whole.len() - 700, 1_000] {
        archive.seek(io::SeekFrom::Start(offset as u64)).await.unwrap();
        archive.read_exact(&mut piece).await.unwrap();
        assert!(piece[..] == whole[offset..offset + 700], "{offset}");
    }
    let len = archive.size();
    assert!(archive.seek(io::SeekFrom::Start(len + 1)).await.is_err());
    assert_eq!(archive.seek(io::SeekFrom::End(0)).await.unwrap(), len);
    assert_eq!(archive.read(&mut piece).await.unwrap(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_offset_gives_the_rest(offsets in proptest::collection::vec(any::<prop::sample::Index>(), 4)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (_dir, payload) = payload();
            let all = hashes(&payload);
            let whole = read_from(&payload, &all, 0).await;
            for offset in offsets {
                let offset = offset.index(whole.len() + 1);
                let rest = read_from(&payload, &all, offset as u64).await;
                assert!(rest == whole[offset..], "from {offset}");
            }
        });
    }
}

#[test]
fn wicd_has_the_hash_of_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wicd.exe");
    assert!(Wicd::open(&path).unwrap_err().to_string().contains("wicd.exe"));
    fs::write(&path, "").unwrap();
    assert!(Wicd::open(&path).is_err());
    fs::write(&path, "abc").unwrap();
    let wicd = Wicd::open(&path).unwrap();
    assert_eq!(wicd.size, 3);
    assert_eq!(wicd.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}
