//! Integrity of payload files: their content is checked periodically, and restored or reported after a change by another process.
//!
//! Programs are large, so a file is read only if its size or modification time differs from when it was last right. A running service is not
//! restarted when its file is restored: the running program keeps the old content, and the reconciler starts stopped services anyway.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use api::payload::{is_host_path, is_sha256};
use api::services::FileInfo;
use tracing::{info, warn};

use super::THOROUGH;
use super::drift::{CheckKind, Drift};
use crate::files::{self, Stamp};
use crate::host::{Host, HostError};
use crate::operation::blob;

/// Number of bytes after which a pass reads no further file: a pass holds the lock, for which the operator waits only a limited time.
const BUDGET: u64 = 128 << 20;

/// Problem of a file that cannot be restored.
const LOST: &str = "neither the file nor its staged copy has the right content; the operator sends the file again when it next configures the host";

/// Result of the check of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Right(Stamp),
    PutBack(Stamp),
    /// Wrong file with its stamp, or missing file.
    Wrong(Option<Stamp>),
}

/// Check of payload files, in rounds of one or more passes.
#[derive(Debug, Default)]
pub struct FileIntegrity {
    /// Files still to be checked in this round.
    queue: VecDeque<FileInfo>,
    /// Files of this round that have drifted and were not corrected.
    left: BTreeSet<String>,
    /// Stamps of wrong files, so that these are not read in every round.
    wrong: BTreeMap<String, Stamp>,
    /// Number of passes since the last round began; `None` if there was none.
    passes: Option<u32>,
    problems: BTreeMap<String, String>,
}

impl FileIntegrity {
    /// Makes one pass: continues the round, or begins one if it is due. With `heal`, corrects drift. A file that was never right under this desired
    /// state is corrected even without `heal`.
    pub fn check(&mut self, host: &dyn Host, files: &[FileInfo], heal: bool, drift: &mut Drift, now: Duration) {
        let due = self.passes.is_none_or(|p| p + 1 >= THOROUGH) && drift.is_settled();
        self.passes = self.passes.map(|p| p.saturating_add(1));
        if self.queue.is_empty() {
            if !due {
                return;
            }
            self.passes = Some(0);
            self.queue = files.iter().filter(|f| is_sha256(&f.checksum) && is_host_path(&f.path)).cloned().collect();
        }
        let (mut healed, mut read) = (BTreeSet::new(), 0);
        while let Some(file) = self.queue.pop_front() {
            let right = drift.right_file(&file.path);
            let wrong = self.wrong.get(&file.path).copied();
            let found = look(host, &file, right, wrong, heal || right.is_none(), &mut read);
            let text = format!("file {}", file.path);
            match found {
                Ok(Found::Right(stamp)) => self.right(&file, stamp, drift),
                Ok(Found::PutBack(stamp)) => {
                    info!(file = file.path, "the file has been restored from its staged copy");
                    self.right(&file, stamp, drift);
                    if right.is_some() {
                        healed.insert(text);
                    }
                }
                Ok(Found::Wrong(stamp)) => {
                    self.wrong.remove(&file.path);
                    self.wrong.extend(stamp.map(|s| (file.path.clone(), s)));
                    if right.is_some() {
                        self.left.insert(text);
                    } else {
                        self.complain(&file.path, LOST.to_owned());
                    }
                }
                Err(e) => {
                    self.complain(&file.path, super::chain(&e));
                    if right.is_some() {
                        self.left.insert(text);
                    }
                }
            }
            if read >= BUDGET {
                break;
            }
        }
        if self.queue.is_empty() {
            drift.found(CheckKind::Files, healed, std::mem::take(&mut self.left), now);
        } else {
            drift.healed(healed, now);
        }
    }

    fn right(&mut self, file: &FileInfo, stamp: Stamp, drift: &mut Drift) {
        drift.file_is_right(&file.path, stamp);
        self.wrong.remove(&file.path);
        self.problems.remove(&file.path);
    }

    /// Logs a problem of a file, unless it is the same as before.
    fn complain(&mut self, file: &str, text: String) {
        if self.problems.get(file) != Some(&text) {
            warn!(file, "{text}");
            self.problems.insert(file.to_owned(), text);
        }
    }
}

/// Checks one file, and restores it if `heal`. `right` and `wrong` are its stamps when its content was right and when it was wrong. Adds the number
/// of bytes read to `read`.
fn look(
    host: &dyn Host,
    file: &FileInfo,
    right: Option<Stamp>,
    wrong: Option<Stamp>,
    heal: bool,
    read: &mut u64,
) -> Result<Found, HostError> {
    let mut is_right = |path: &str, size: u64| {
        *read = read.saturating_add(size);
        files::sha256(host, path).map(|hash| hash.as_deref() == Some(&file.checksum))
    };
    let stamp = files::stamp(host, &file.path)?;
    if let Some(stamp) = stamp
        && (right == Some(stamp) || (wrong != Some(stamp) && is_right(&file.path, stamp.size)?))
    {
        return Ok(Found::Right(stamp));
    }
    if !heal {
        return Ok(Found::Wrong(stamp));
    }
    let blob = blob(&file.checksum);
    let Some(staged) = files::stamp(host, &blob)? else { return Ok(Found::Wrong(stamp)) };
    if !is_right(&blob, staged.size)? {
        // Files are hard links to their blobs, so a write into a file damages its blob. Once it is removed, the operator sees that the blob is
        // missing and sends it again.
        files::remove(host, &blob)?;
        return Ok(Found::Wrong(stamp));
    }
    files::place(host, &blob, &file.path)?;
    Ok(files::stamp(host, &file.path)?.map_or(Found::Wrong(None), Found::PutBack))
}

#[cfg(test)]
#[path = "file_integrity_tests.rs"]
mod tests;
