//! Tests of unpacking artifacts, including malicious ones.

use api::Reason;
use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};
use tar::{Builder, Header};

use super::*;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns a tar header with an unchanged name: the builder would refuse some names.
fn header(name: &[u8], kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    header
}

fn entry(name: &str, kind: EntryType, content: &[u8]) -> Vec<u8> {
    let mut bytes = header(name.as_bytes(), kind, content.len() as u64).as_bytes().to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    gzip(&[entries.concat(), vec![0; 1024]].concat())
}

fn file(name: &str) -> Vec<u8> {
    entry(name, EntryType::Regular, name.as_bytes())
}

fn paths(bytes: &[u8], path: &str) -> Vec<String> {
    let files = unpack(bytes, path, &Limits::default()).unwrap_or_else(|error| panic!("{path}: {error} ({error:?})"));
    assert!(files.iter().all(|f| f.path.ends_with(str::from_utf8(&f.bytes).unwrap().trim_start_matches("./"))));
    files.into_iter().map(|f| f.path).collect()
}

#[test]
fn inventory_files_below_the_path_are_read() {
    let bytes = archive(&[
        entry("./", EntryType::Directory, b""),
        file("./hosts/b.yaml"),
        file("hosts/a.yml"),
        file("hosts/deep/c.json"),
        file("hosts/README.md"),
        file("hosts-old/d.yaml"),
        file("list"),
        entry("empty/", EntryType::Directory, b""),
        entry("hosts/link.yaml", EntryType::Symlink, b""),
        entry("hosts/hard.yaml", EntryType::Link, b""),
        entry("hosts/pipe.yaml", EntryType::Fifo, b""),
        entry("hosts/device.yaml", EntryType::Block, b""),
    ]);
    for (path, found) in [
        ("hosts", vec!["hosts/a.yml", "hosts/b.yaml", "hosts/deep/c.json"]),
        ("./hosts/", vec!["hosts/a.yml", "hosts/b.yaml", "hosts/deep/c.json"]),
        ("hosts/deep", vec!["hosts/deep/c.json"]),
        ("hosts/a.yml", vec!["hosts/a.yml"]),
        ("list", vec!["list"]),
        ("empty", vec![]),
        ("", vec!["hosts-old/d.yaml", "hosts/a.yml", "hosts/b.yaml", "hosts/deep/c.json"]),
        (".", vec!["hosts-old/d.yaml", "hosts/a.yml", "hosts/b.yaml", "hosts/deep/c.json"]),
    ] {
        assert_eq!(paths(&bytes, path), found, "{path:?}");
    }
}

#[test]
fn long_names_are_read() {
    let long = format!("{}/{}.yaml", "d".repeat(120), "f".repeat(120));
    let mut gnu = Builder::new(Vec::new());
    let mut head = Header::new_gnu();
    head.set_size(long.len() as u64);
    gnu.append_data(&mut head, &long, long.as_bytes()).unwrap();
    assert_eq!(paths(&gzip(&gnu.into_inner().unwrap()), ""), std::slice::from_ref(&long));
    let line = |n: usize| format!("{n} path={long}\n");
    let pax = line(line(100).len());
    let bytes = archive(&[
        entry("x", EntryType::XGlobalHeader, b"21 comment=something\n"),
        entry("x", EntryType::XHeader, pax.as_bytes()),
        entry("short", EntryType::Regular, long.as_bytes()),
        file("z.yaml"),
    ]);
    assert_eq!(paths(&bytes, ""), [long, "z.yaml".into()]);
}

#[test]
fn a_damaged_or_hostile_archive_is_refused() {
    let limits = Limits { transfer: 1 << 20, files: 2, file: 1000, total: 1500 };
    let big = |name, size| entry(name, EntryType::Regular, &vec![b'x'; size]);
    let liar = [header(b"a.yaml", EntryType::Regular, 1 << 40).as_bytes().to_vec(), vec![b'x'; 512]].concat();
    let long_name = entry("x", EntryType::GNULongName, &vec![b'a'; 65 << 10]);
    let refusal = |bytes: &[u8], path: &str| {
        let error = unpack(bytes, path, &limits).map(|f| f.len()).unwrap_err();
        (error.reason().as_str(), error.stalls())
    };
    for (about, bytes) in [
        ("upwards", archive(&[file("../a.yaml")])),
        ("upwards within", archive(&[file("a/../../b.yaml")])),
        ("absolute", archive(&[file("/etc/a.yaml")])),
        ("Windows", archive(&[file("..\\a.yaml")])),
        ("a directory upwards", archive(&[entry("../d/", EntryType::Directory, b"")])),
        ("twice", archive(&[file("a.yaml"), file("./a.yaml")])),
        ("a long name", archive(&[long_name, file("a.yaml")])),
        ("pax size", archive(&[entry("x", EntryType::XHeader, b"12 size=100\n"), file("a.yaml")])),
        ("sparse", archive(&[entry("a.yaml", EntryType::GNUSparse, b"")])),
        ("a large file", archive(&[big("a.yaml", 1001)])),
        ("large files", archive(&[big("a.yaml", 800), big("b.yaml", 800)])),
        ("many files", archive(&[file("a.yaml"), file("b.yaml"), file("c.yaml")])),
        ("a bomb", archive(&[big("a.bin", 2 << 20)])),
        ("a header that lies", gzip(&liar)),
        ("cut off", archive(&[big("a.yaml", 900)])[..20].to_vec()),
        ("no gzip", b"hello".to_vec()),
        ("nothing", Vec::new()),
        ("no tar", gzip(&[b'x'; 2000])),
    ] {
        assert_eq!(refusal(&bytes, ""), ("ArtifactNotReadable", true), "{about}");
    }
    for path in ["b", "a/../..", "/a.yaml"] {
        assert_eq!(refusal(&archive(&[file("a.yaml")]), path), ("SourceInvalid", true), "{path}");
    }
    // Files that are not part of the inventory count only towards the byte limit.
    let others = archive(&[big("a.bin", 5000), file("a.yaml"), file("b.txt"), file("c.txt")]);
    assert_eq!(unpack(others.as_slice(), "", &limits).unwrap().len(), 1);
}

#[test]
fn a_wrong_digest_takes_precedence_over_other_faults() {
    let good = archive(&[file("a.yaml")]);
    let digest: Digest = format!("sha256:{}", hex::encode(Sha256::digest(&good))).parse().unwrap();
    let read = |bytes: &[u8]| unpack(digest.clone().check(bytes), "", &Limits::default()).map(|f| f.len());
    assert_eq!(read(&good).unwrap(), 1);
    let more = [good.clone(), b"more".to_vec()].concat();
    for bytes in [&more, &good[..good.len() - 1], b"hello", b""] {
        let error = read(bytes).unwrap_err();
        assert_eq!((error.reason(), error.stalls()), (Reason::ArtifactNotReadable, false), "{error:?}");
    }
}

/// Checks that a failed download is never a damaged archive, wherever it fails and whatever the error of the client: some clients report each fault
/// with the kind `Other`.
#[test]
fn a_failed_download_does_not_stall() {
    struct Broken(io::ErrorKind);
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::new(self.0, "timed out"))
        }
    }
    use io::ErrorKind::{ConnectionReset, InvalidData, Other, TimedOut, UnexpectedEof};
    let good = archive(&[file("a.yaml"), entry("b.yaml", EntryType::Regular, &[7; 5000])]);
    for kind in [ConnectionReset, InvalidData, Other, TimedOut, UnexpectedEof] {
        for end in 0..=good.len() {
            let error = unpack(good[..end].chain(Broken(kind)), "", &Limits::default()).unwrap_err();
            assert!(matches!(error, ArtifactError::Read(_)), "{kind:?} after {end} bytes: {error:?}");
            assert!(error.to_string().contains("timed out"), "{error}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>, zipped: bool) {
        let bytes = if zipped { gzip(&bytes) } else { bytes };
        let _ = unpack(bytes.as_slice(), "", &Limits::default());
    }

    #[test]
    fn a_changed_byte_never_leads_out_of_the_archive(at in 0..4096_usize, byte: u8, path in "[a./]{0,6}") {
        let mut tar = [file("a/a.yaml"), entry("x", EntryType::XHeader, b"17 path=a/b.yaml\n"), file("c.yaml"), vec![0; 1024]].concat();
        let at = at % tar.len();
        tar[at] = byte;
        if let Ok(files) = unpack(gzip(&tar).as_slice(), &path, &Limits::default()) {
            prop_assert!(files.iter().all(|f| !f.path.starts_with('/') && !f.path.split('/').any(|p| p == "..")));
        }
    }
}
