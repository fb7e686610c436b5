//! Manifest of the files that a host needs: `manifest.json` in the payload directory.
//!
//! The directory holds each file as `<path>.zst` (one zstd frame), so that the operator sends it without compressing.
//! `sha256` and `size` are those of the uncompressed file.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Name of the manifest in the payload directory.
pub const MANIFEST: &str = "manifest.json";

/// Content of `manifest.json`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Version of this format; 1.
    pub schema: u32,
    /// Files of the payload, sorted by path.
    pub files: Vec<File>,
}

/// File of the payload.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Path in the payload directory, without `.zst`: a relative path with `/` between its parts.
    pub path: String,
    /// Destination on the host, for example `C:\k\kubelet.exe`.
    pub destination: String,
    /// SHA-256 of the uncompressed file, in lower-case hex.
    pub sha256: String,
    /// Size of the uncompressed file, in bytes.
    pub size: u64,
    /// Size of `<path>.zst` in bytes.
    pub compressed_size: u64,
    /// Platforms that need the file, in lower case, for example `aws` or `azure`. Empty means all.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub platforms: BTreeSet<String>,
    /// Version of the program, for example `1.36.3`, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Services that read the file, and that must be restarted when it changes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub services: BTreeSet<String>,
}

/// Reason why a manifest is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Text that is not JSON of the manifest's form.
    #[error("the payload manifest cannot be read; make the payload again (docs/guide/upgrade.md#the-payload)")]
    Syntax(#[source] serde_json::Error),
    /// Manifest of another version of the tool.
    #[error(
        "the payload manifest has schema {0}, but this operator reads schema 1; make the payload again (docs/guide/upgrade.md#the-payload)"
    )]
    Schema(u32),
    /// Invalid entry of the manifest.
    #[error("{0}; make the payload again (docs/guide/upgrade.md#the-payload)")]
    File(#[from] FileError),
}

/// Reason why an entry in a list of payload files is unusable. The caller adds the remedy.
#[derive(Debug, thiserror::Error)]
#[error("payload file {path:?}: {problem}")]
pub struct FileError {
    /// Path of the entry.
    path: String,
    /// Problem with the entry.
    problem: &'static str,
}

impl Manifest {
    /// Reads and checks a manifest.
    ///
    /// # Errors
    /// [`ManifestError::Syntax`] when `json` is not JSON of this form. [`ManifestError::Schema`] when its schema is not 1.
    /// [`ManifestError::File`] as [`check_files`].
    pub fn parse(json: &[u8]) -> Result<Self, ManifestError> {
        let manifest: Self = serde_json::from_slice(json).map_err(ManifestError::Syntax)?;
        if manifest.schema != 1 {
            return Err(ManifestError::Schema(manifest.schema));
        }
        check_files(&manifest.files)?;
        Ok(manifest)
    }

    /// Returns the files that a host on `platform` needs.
    pub fn for_platform(&self, platform: &str) -> Vec<File> {
        let wanted = |f: &&File| f.platforms.is_empty() || f.platforms.contains(platform);
        self.files.iter().filter(wanted).cloned().collect()
    }

    /// Reports whether the manifest has a file with this destination.
    pub fn has_destination(&self, destination: &str) -> bool {
        self.files.iter().any(|f| f.destination.eq_ignore_ascii_case(destination))
    }
}

/// Checks a list of payload files.
///
/// # Errors
/// Fails when a path, destination or hash of a file is not acceptable, or two files have the same destination.
pub fn check_files(files: &[File]) -> Result<(), FileError> {
    let mut destinations = BTreeSet::new();
    for file in files {
        let refuse = |problem| Err(FileError { path: file.path.clone(), problem });
        if !is_relative_path(&file.path) {
            return refuse("the path must be relative, with `/` between parts and no `..`");
        }
        if !is_host_path(&file.destination) {
            return refuse(
                "the destination must begin with C:\\, have fewer than 240 ASCII characters, no part that is empty or ends with a dot or a space, no part that is a device name such as NUL, and none of / : * ? \" < > |",
            );
        }
        if !is_sha256(&file.sha256) {
            return refuse("the hash must be 64 lower-case hex digits");
        }
        if !destinations.insert(file.destination.to_ascii_lowercase()) {
            return refuse("another file has the same destination");
        }
    }
    Ok(())
}

/// Returns the digest over contents and destinations of files. The order does not matter.
pub fn digest(files: &[File]) -> String {
    let lines: BTreeSet<String> = files.iter().map(|f| format!("{} {}\n", f.sha256, f.destination)).collect();
    hex::encode(lines.iter().fold(Sha256::new(), Digest::chain_update).finalize())
}

/// Reports whether `text` is a SHA-256 in lower-case hex.
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_relative_path(path: &str) -> bool {
    !path.is_empty()
        && !path.contains(['\\', ':', '\0'])
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Reports whether the operator may write a file to `path` on a host: `C:\`, then parts of printable ASCII in fewer than 240 characters. No part is
/// empty, ends with a dot or a space, is a device name such as `NUL`, or has one of `/ : * ? " < > |`.
pub fn is_host_path(path: &str) -> bool {
    let Some(rest) = path.strip_prefix(r"C:\").or_else(|| path.strip_prefix(r"c:\")) else { return false };
    let part_is_fine = |part: &str| {
        !part.is_empty()
            && !part.ends_with(['.', ' '])
            && part.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
            && !part.contains(['/', ':', '*', '?', '"', '<', '>', '|'])
            && !is_device_name(part)
    };
    path.len() < 240 && rest.split('\\').all(part_is_fine)
}

/// Reports whether Windows takes a file name for a device: `CON`, `PRN`, `AUX`, `NUL`, `COM0` to `COM9` or `LPT0` to `LPT9`, with any extension, in
/// every directory.
pub fn is_device_name(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name).trim_end().to_ascii_uppercase();
    let is_numbered = stem.len() == 4
        && (stem.starts_with("COM") || stem.starts_with("LPT"))
        && stem.ends_with(|c: char| c.is_ascii_digit());
    is_numbered || ["CON", "PRN", "AUX", "NUL"].contains(&stem.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(path: &str, destination: &str) -> File {
        File { path: path.into(), destination: destination.into(), sha256: "a".repeat(64), ..File::default() }
    }

    #[test]
    fn invalid_paths_are_refused() {
        for good in [r"C:\k\kubelet.exe", r"C:\Program Files\x", r"c:\k"] {
            assert!(is_host_path(good), "{good}");
        }
        for bad in [
            "",
            r"C:\",
            r"C:",
            r"D:\k",
            r"\k",
            r"C:\k\..\x",
            r"C:\k\.",
            r"C:\k\\x",
            r"C:\k\x ",
            r"C:\k\nul.txt",
            r"C:\Com1\x",
            r"C:\k\x:y",
            r"C:\k/x",
            "C:\\k\\\u{e9}",
            "C:\\k\\\0",
        ] {
            assert!(!is_host_path(bad), "{bad}");
        }
        for bad in ["", "/x", "../x", "a/../b", "a//b", r"a\b", "C:x"] {
            assert!(!is_relative_path(bad), "{bad}");
        }
    }

    #[test]
    fn invalid_entries_are_refused() {
        for (files, problem) in [
            (vec![file("../x", r"C:\k\x")], "relative"),
            (vec![file("x", r"D:\x")], "must begin with C:"),
            (vec![File { sha256: "A".repeat(64), ..file("x", r"C:\k\x") }], "hex"),
            (vec![file("x", r"C:\k\x"), file("y", r"C:\K\X")], "same destination"),
        ] {
            let json = serde_json::to_vec(&Manifest { schema: 1, files }).unwrap();
            assert!(Manifest::parse(&json).unwrap_err().to_string().contains(problem), "{problem}");
        }
        assert!(matches!(Manifest::parse(br#"{"schema":2,"files":[]}"#), Err(ManifestError::Schema(2))));
        assert!(matches!(Manifest::parse(b"x"), Err(ManifestError::Syntax(_))));
    }

    #[test]
    fn the_digest_depends_on_contents_and_destinations_alone() {
        let (a, b) = (file("a", r"C:\k\a"), file("b", r"C:\k\b"));
        assert_eq!(digest(&[a.clone(), b.clone()]), digest(&[b.clone(), a.clone()]));
        assert_ne!(digest(std::slice::from_ref(&a)), digest(&[b]));
        assert_eq!(digest(std::slice::from_ref(&a)), digest(&[File { path: "renamed".into(), ..a }]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Manifest::parse(&bytes);
        }
    }
}
