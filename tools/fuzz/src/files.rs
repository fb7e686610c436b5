//! Fuzz targets for files: host lists, `known_hosts`, artifacts, stored cluster settings, and release files.

use std::{collections::BTreeMap, io::Write as _};

use flate2::{Compression, write::GzEncoder};
use gitops::{
    File, Limits,
    artifact::{ArtifactError, unpack},
    known_hosts::known_hosts as keys_of,
};
use wnp_core::{
    inventory::address::canonical,
    render::{Cluster, Found, Kept, settled},
    rollout::release_file::ReleaseFile,
};

/// Limits of an artifact, small so that the fuzzer reaches them.
const LIMITS: Limits = Limits { transfer: 1 << 16, files: 8, file: 1 << 12, total: 1 << 13 };

/// Fuzzes a host list, as YAML and as JSON.
pub fn hosts(data: &[u8]) {
    let file = |path: &str| File { path: path.into(), bytes: data.to_vec() };
    for path in ["a.yaml", "a.json"] {
        match gitops::hosts::read(&[file(path)]) {
            Ok(entries) => {
                let lines = data.split(|b| b"\r\n".contains(b)).count();
                for entry in entries {
                    assert!((1..=lines).contains(&entry.line), "line {} of {lines}", entry.line);
                    assert!(!entry.host.address.is_empty());
                    let address = canonical(&entry.host.address);
                    assert_eq!(canonical(&address), address);
                }
            }
            Err(findings) => {
                assert!(!findings.is_empty());
                findings.iter().for_each(|finding| crate::assert_fit_for_people(&finding.to_string(), 1000));
            }
        }
    }
}

/// Fuzzes `windows-instances`: each entry is a key and a value, on two lines.
pub fn windows_instances(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let entry = |entry: &str| entry.split_once('\n').map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
    let list: BTreeMap<String, Vec<u8>> = text.split('\0').filter_map(entry).collect();
    let (hosts, bad) = gitops::hosts::windows_instances(&list);
    assert_eq!(hosts.len() + bad.len(), list.len());
    for (address, username) in hosts {
        assert!(!address.is_empty() && !username.is_empty());
        assert!(!username.contains(char::is_control), "{username:?}");
    }
}

/// Fuzzes an artifact of Flux, as a tar.gz archive.
pub fn artifact(data: &[u8]) {
    for path in ["", "clusters/a", "hosts.yaml"] {
        check(unpack(data, path, &LIMITS));
    }
}

/// Fuzzes the tar archive of an artifact, which the fuzzer cannot reach through the checksums of gzip.
pub fn artifact_tar(data: &[u8]) {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::none());
    if gzip.write_all(data).is_ok()
        && let Ok(bytes) = gzip.finish()
    {
        artifact(&bytes);
    }
}

fn check(unpacked: Result<Vec<File>, ArtifactError>) {
    let files = match unpacked {
        Ok(files) => files,
        Err(error) => {
            assert!(!matches!(error, ArtifactError::Digest | ArtifactError::PathInvalid(_)), "{error}");
            return;
        }
    };
    assert!(files.len() <= LIMITS.files);
    assert!(files.iter().map(|f| f.bytes.len() as u64).sum::<u64>() <= LIMITS.total);
    assert!(files.is_sorted_by(|a, b| a.path < b.path), "a path occurs twice, or the order is wrong");
    for file in files {
        assert!(file.bytes.len() as u64 <= LIMITS.file);
        let leads_out = |part: &str| ["", ".", ".."].contains(&part);
        assert!(!file.path.split('/').any(leads_out) && !file.path.contains('\\'), "{:?}", file.path);
    }
}

/// Fuzzes `known_hosts`, with the key parsers for Git servers and for hosts.
pub fn known_hosts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for (address, port) in [("git.example.com", 22), ("fd00::1", 2222)] {
        let parse = |key: &str| russh::keys::ssh_key::PublicKey::from_openssh(key).ok();
        let _ = keys_of(&text, address, port, parse);
        let _ = keys_of(&text, address, port, |key| remote::ssh::HostKey::parse(key).ok());
    }
}

/// Fuzzes the last valid cluster settings, as an earlier operator stored them.
pub fn kept(data: &[u8]) {
    if let Ok(kept) = Kept::parse(data) {
        let again = Kept::parse(kept.to_json().as_bytes());
        assert_eq!(again.map(|again| again.to_json()), Ok(kept.to_json()));
        let _ = settled(Some(&kept), Found::default()).problems();
    }
}

/// Fuzzes the release file from which an upgrade plan is made.
pub fn release(data: &[u8]) {
    match ReleaseFile::parse(data) {
        Ok(file) => {
            assert!(!file.payloads().is_empty());
            let _ = file.render_change(&Cluster::default());
        }
        Err(error) => crate::assert_fit_for_people(&error.to_string(), 2000),
    }
}
