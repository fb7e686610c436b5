//! `stage`: unpacks payload files into blobs and verifies them. Running services are not affected.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};

use api::host::{Outcome, Stage, path};
use api::{Reason, payload};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::state::{blob, missing};
use super::{Failure, PAYLOADS};
use crate::files::{self, Access};
use crate::host::{Host, HostError};

/// Space that must stay free on `C:` beyond the payload, in bytes.
const RESERVE: u64 = 256 << 20;
/// Maximum memory to decompress a zstd frame, as a power of two (128 MiB). Frames that need more are refused.
const WINDOW_LOG_MAX: u32 = 27;

/// Record of the current and the previous payload, stored in [`PAYLOADS`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Payloads {
    current: Set,
    previous: Set,
}

/// Blobs of a payload.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
struct Set {
    digest: String,
    blobs: BTreeSet<String>,
}

impl Payloads {
    /// Makes `files` the current payload. Keeps the previous one for a rollback.
    fn with(self, files: &[payload::File]) -> Self {
        let current = Set { digest: payload::digest(files), blobs: files.iter().map(|f| f.sha256.clone()).collect() };
        let previous = if current.digest == self.current.digest { self.previous } else { self.current };
        Self { current, previous }
    }

    /// Records that `files` are about to become the current payload.
    pub(super) fn switch(host: &dyn Host, files: &[payload::File]) -> Result<(), HostError> {
        let payloads: Self = files::read_json(host, PAYLOADS).ok().flatten().unwrap_or_default();
        files::write_json(host, PAYLOADS, &payloads.with(files), Access::Inherited).map(drop)
    }
}

pub(super) fn stage(host: &dyn Host, body: &Stage) -> Result<Outcome, Failure> {
    check(&body.files)?;
    let archive = archive_path(&body.archive)?;
    files::make_directory(host, path::BLOBS)?;
    free_blobs(host, &body.files)?;
    let result = take_missing(host, body, &archive);
    // The archive is removed even if it was refused: the operator then sends another one with the missing files.
    let removed = files::remove(host, &archive);
    result?;
    removed?;
    Ok(Outcome::Done)
}

/// Refuses a list with a file whose hash or destination is invalid.
pub(super) fn check(files: &[payload::File]) -> Result<(), Failure> {
    let bad = files.iter().find(|f| !payload::is_sha256(&f.sha256) || !payload::is_host_path(&f.destination));
    bad.map_or(Ok(()), |f| {
        Err(Failure::new(
            Reason::PayloadInvalid,
            format!("the payload file {:?} has an invalid hash or destination; make the payload again (docs/guide/upgrade.md#the-payload)", f.path),
        ))
    })
}

fn archive_path(name: &str) -> Result<String, Failure> {
    let path = format!(r"{}\{name}", path::OPERATIONS);
    if name.contains('\\') || !payload::is_host_path(&path) {
        return Err(Failure::new(
            Reason::HashMismatch,
            format!(
                "the request to unpack payload files names the archive {name:?}, which is not a valid name; this is a bug in the operator: report it"
            ),
        ));
    }
    Ok(path)
}

fn take_missing(host: &dyn Host, body: &Stage, archive: &str) -> Result<(), Failure> {
    let missing_before = missing(host, &body.files)?;
    if missing_before.is_empty() {
        return Ok(());
    }
    let size_of = |sha256: &String| body.files.iter().find(|f| f.sha256 == *sha256).map_or(0, |f| f.size);
    let needed: u64 = missing_before.iter().map(size_of).fold(0, u64::saturating_add);
    let free = host.disk_free()?;
    if free < needed.saturating_add(RESERVE) {
        return Err(disk_full(needed, free));
    }
    let wanted: BTreeMap<String, u64> = body.files.iter().map(|f| (f.sha256.clone(), f.size)).collect();
    let file = files::open(&host.path(archive)?);
    let file = file.map_err(|e| invalid(format!("the archive cannot be opened: {e}")))?;
    unpack(host, io::BufReader::new(file), &wanted).map_err(|failure| match failure.reason {
        Reason::DiskFull => disk_full(needed, host.disk_free().unwrap_or(0)),
        _ => failure,
    })?;
    match missing(host, &body.files)?.as_slice() {
        [] => Ok(()),
        [first, ..] => Err(invalid(format!("it is incomplete: the file with the SHA-256 {first} is not in it"))),
    }
}

fn disk_full(needed: u64, free: u64) -> Failure {
    const MIB: u64 = 1 << 20;
    let message = format!(
        "the payload needs {} MiB on C: of the host, and {} MiB must stay free, but only {} MiB are free; free some space",
        needed.div_ceil(MIB),
        RESERVE / MIB,
        free / MIB
    );
    Failure::new(Reason::DiskFull, message)
}

fn invalid(problem: impl std::fmt::Display) -> Failure {
    Failure::new(
        Reason::HashMismatch,
        format!("the archive with payload files was refused, and the operator sends it again: {problem}"),
    )
}

/// Unpacks the requested entries (hash and size) of a tar archive. Refuses any entry that is not a regular file named by a
/// requested hash, so that no entry can name a path.
fn unpack(host: &dyn Host, archive: impl Read, wanted: &BTreeMap<String, u64>) -> Result<(), Failure> {
    let mut archive = tar::Archive::new(archive);
    // Raw entries have no long names, sparse files or extended headers.
    for entry in archive.entries().map_err(invalid)?.raw(true) {
        let mut entry = entry.map_err(invalid)?;
        if entry.header().entry_type() != tar::EntryType::Regular {
            return Err(invalid("it holds an entry that is not a plain file"));
        }
        let name = String::from_utf8(entry.path_bytes().into_owned()).map_err(invalid)?;
        let Some(&size) = wanted.get(&name) else {
            let start: String = name.chars().take(80).collect();
            return Err(invalid(format!("it holds {start:?}, which was not requested")));
        };
        if files::size(host, &blob(&name))? == Some(size) {
            continue;
        }
        take(host, &mut entry, &name, size)?;
    }
    Ok(())
}

/// Unpacks one entry, through a temporary file.
fn take(host: &dyn Host, entry: &mut impl Read, sha256: &str, size: u64) -> Result<(), Failure> {
    let place = blob(sha256);
    let temporary = format!("{place}.part");
    files::remove(host, &temporary)?;
    let failure = match decompress(host, entry, &temporary, sha256, size) {
        Ok(hash) if hash == sha256 => {
            let (from, to) = (host.path(&temporary)?, host.path(&place)?);
            return Ok(files::rename_file(&from, &to).map_err(HostError::system("write", &place))?);
        }
        Ok(hash) => Failure::new(
            Reason::HashMismatch,
            format!("a payload file has the SHA-256 {hash} instead of {sha256}; the operator sends it again"),
        ),
        Err(failure) => failure,
    };
    files::remove(host, &temporary)?;
    Err(failure)
}

/// Decompresses one zstd frame to a new file of exactly `size` bytes, and refuses data after the frame. Returns the hash of the file.
fn decompress(host: &dyn Host, entry: &mut impl Read, path: &str, sha256: &str, size: u64) -> Result<String, Failure> {
    let refused = |problem: &dyn std::fmt::Display| {
        invalid(format!("the file with the SHA-256 {sha256} cannot be unpacked: {problem}"))
    };
    let unreadable = |e: io::Error| refused(&e);
    let failed = |e: io::Error| HostError::system("write", path)(e);
    let mut output = files::make(&host.path(path)?).map_err(failed)?;
    let mut decoder = zstd::stream::read::Decoder::new(entry).map_err(unreadable)?.single_frame();
    decoder.window_log_max(WINDOW_LOG_MAX).map_err(unreadable)?;
    let (mut hash, mut buffer, mut left) = (Sha256::new(), vec![0; 128 << 10], size);
    loop {
        let n = decoder.read(&mut buffer).map_err(unreadable)?;
        if n == 0 {
            break;
        }
        left = left.checked_sub(n as u64).ok_or_else(|| refused(&"it is larger than it should be"))?;
        hash.update(&buffer[..n]);
        output.write_all(&buffer[..n]).map_err(failed)?;
    }
    if left > 0 {
        return Err(refused(&"it is smaller than it should be"));
    }
    if decoder.finish().bytes().next().is_some() {
        return Err(refused(&"it has more than one zstd frame"));
    }
    output.sync_all().map_err(failed)?;
    Ok(hex::encode(hash.finalize()))
}

/// Removes blobs that neither `files` nor the current or previous payload needs, and leftovers of a crash.
fn free_blobs(host: &dyn Host, files: &[payload::File]) -> Result<(), HostError> {
    let payloads: Payloads = files::read_json(host, PAYLOADS).ok().flatten().unwrap_or_default();
    let needed: BTreeSet<&str> = files.iter().map(|f| f.sha256.as_str()).collect();
    for name in files::list(host, path::BLOBS)? {
        let keep = needed.contains(name.as_str())
            || payloads.current.blobs.contains(&name)
            || payloads.previous.blobs.contains(&name);
        if !keep {
            files::remove_if_unused(host, &blob(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "stage_tests.rs"]
mod tests;
