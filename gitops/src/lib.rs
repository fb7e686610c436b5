//! Host lists as files, and the Git repositories that hold them.
//!
//! * [`hosts`]: files to entries, or what is wrong with which line.
//! * [`repository`]: fetches from a server, reads files of a commit, and says which commit last changed an entry.
//! * [`verify`]: whether a trusted key signed a commit or tag.
//! * [`artifact`]: the archive that Flux makes of a source.
//! * [`known_hosts`]: the keys that SSH servers may have.
//!
//! All that comes in is hostile until it was checked. There is no Kubernetes client here.

pub mod artifact;
pub mod hosts;
pub mod known_hosts;
pub mod repository;
pub mod verify;

/// A file of an inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// From the root of the repository or artifact, with `/`.
    pub path: String,
    /// What is in it.
    pub bytes: Vec<u8>,
}

/// How much of an inventory is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes that a server may send for one look.
    pub transfer: u64,
    /// Most files below the path.
    pub files: usize,
    /// Most bytes of one file.
    pub file: u64,
    /// Most bytes of all files.
    pub total: u64,
}

impl Default for Limits {
    /// 256 MiB sent, 10,000 files of at most 8 MiB each and 64 MiB together: far more than 5,000 hosts take.
    fn default() -> Self {
        Self { transfer: 256 << 20, files: 10_000, file: 8 << 20, total: 64 << 20 }
    }
}
