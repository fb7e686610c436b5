//! Host lists as files, and the Git repositories that hold them.
//!
//! * [`hosts`]: parses files into entries, and reports faults by file and line.
//! * [`repository`]: fetches from a server, reads files of a commit, and finds the commit that last changed an entry.
//! * [`verify`]: checks that a trusted key signed a commit or tag.
//! * [`artifact`]: reads the archive that Flux makes of a source.
//! * [`known_hosts`]: reads the trusted keys of SSH servers.
//! * [`push`]: reads and verifies push events.
//!
//! All input is untrusted until it is checked. This crate has no Kubernetes client.

pub mod artifact;
pub mod hosts;
pub mod known_hosts;
pub mod push;
pub mod repository;
pub mod verify;

/// File of an inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path from the root of the repository or artifact, with `/`.
    pub path: String,
    /// Content of the file.
    pub bytes: Vec<u8>,
}

/// Reports whether a file below the directory of an inventory belongs to it: its extension is `yaml`, `yml` or `json`, in lower case.
pub(crate) fn is_inventory(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rsplit_once('.').is_some_and(|(_, extension)| ["yaml", "yml", "json"].contains(&extension))
}

/// Limits for reading an inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of bytes that a Git server may send during one fetch, and that an artifact may have, compressed and unpacked.
    pub transfer: u64,
    /// Maximum number of files of the inventory.
    pub files: usize,
    /// Maximum number of bytes of one file.
    pub file: u64,
    /// Maximum number of bytes of all files together.
    pub total: u64,
}

impl Default for Limits {
    /// Returns limits far above the size of 5,000 hosts: 256 MiB of transfer, 10,000 files, 8 MiB per file and 64 MiB in total.
    fn default() -> Self {
        Self { transfer: 256 << 20, files: 10_000, file: 8 << 20, total: 64 << 20 }
    }
}

/// Formats a number of bytes for a message: in MiB, rounded down, or in bytes if it is less than 1 MiB.
pub fn shown_size(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{bytes} bytes") } else { format!("{} MiB", bytes >> 20) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_shown_in_a_unit_that_people_read() {
        assert_eq!([8 << 20, 1 << 20, 60].map(shown_size), ["8 MiB", "1 MiB", "60 bytes"]);
    }

    #[test]
    fn the_extension_decides_whether_a_file_is_inventory() {
        for path in ["a.yaml", "a.yml", "a.json", ".yaml", "a.b/c.yaml"] {
            assert!(is_inventory(path), "{path}");
        }
        for path in ["a.YAML", "a.yaml.bak", "yaml", "a.yaml/b", ""] {
            assert!(!is_inventory(path), "{path}");
        }
    }
}
