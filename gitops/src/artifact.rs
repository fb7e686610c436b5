//! Flux artifacts: a tar.gz archive of a source, and the digest that the source object names. Nothing is written to disk.
//!
//! Size limits apply to the bytes that are read, whatever the headers claim. No content is returned before the digest of the whole
//! archive is verified.

mod digest;

use std::{
    collections::BTreeSet,
    io::{self, Read},
};

use api::{Reason, text};
use flate2::read::GzDecoder;
use tar::{Archive, EntryType, PaxExtensions};

use crate::{File, Limits, is_inventory, shown_size};
pub use digest::{Checked, Digest, DigestError};

/// Maximum number of bytes of a name, or of the extension header of an entry. Both are held in memory.
const MAX_EXTENSION: u64 = 64 << 10;

/// Reason why an artifact is not used.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// Artifact whose digest differs from the one in the source object.
    #[error(
        "the digest of the artifact differs from the one in the status of the source: the artifact was changed in transit, or replaced in the \
         meantime; the operator retries"
    )]
    Digest,
    /// Artifact that could not be read to its end.
    #[error("the artifact could not be read to its end: {0}; the operator retries")]
    Read(#[source] io::Error),
    /// Artifact that is not a tar.gz archive, or has an entry that is not accepted.
    #[error("the artifact cannot be unpacked: {0}; check the tool that made it")]
    Malformed(&'static str),
    /// Artifact larger than the limits.
    #[error(
        "the artifact is too large: {0}; configure the source to ignore files that are not part of the inventory, or use several pools"
    )]
    TooLarge(String),
    /// Entry name that leads out of the archive, or has a character that no path may have.
    #[error(
        "the artifact has the entry {}, whose name is absolute, or has `..`, a backslash or a NUL in it: check the tool that made it",
        text::quote(.0, 200)
    )]
    Escape(String),
    /// File that the archive contains twice.
    #[error("the artifact has {} twice: check the tool that made it", text::quote(.0, 200))]
    Twice(String),
    /// Path in the pool that leads out of the artifact, or has a character that no path may have.
    #[error(
        "inventory.sourceRef.path {} cannot be used: write it from the root of the artifact, without `/` at its beginning, `..` and backslashes",
        text::quote(.0, 200)
    )]
    PathInvalid(String),
    /// Path at which the artifact has no entry.
    #[error("the artifact has no file or directory {}: correct inventory.sourceRef.path", text::quote(.0, 200))]
    PathNotFound(String),
}

impl ArtifactError {
    /// Returns the stable reason for conditions, events and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Digest
            | Self::Read(_)
            | Self::Malformed(_)
            | Self::Escape(_)
            | Self::Twice(_)
            | Self::TooLarge(_) => Reason::ArtifactNotReadable,
            Self::PathInvalid(_) | Self::PathNotFound(_) => Reason::SourceInvalid,
        }
    }

    /// Reports whether the error persists until a user acts. Other errors may disappear at the next attempt.
    pub fn stalls(&self) -> bool {
        !matches!(self, Self::Digest | Self::Read(_))
    }
}

/// Returns the inventory files of an archive, sorted by path: the file at `path`, or all `*.yaml`, `*.yml` and `*.json` below it. An empty
/// `path` means the whole archive. Links and devices are skipped. `bytes` is read to its end, so that a [`Checked`] verifies the digest.
///
/// # Errors
/// [`ArtifactError::PathInvalid`] when `path` leads out of the archive. [`ArtifactError::Digest`] when `bytes` is a
/// [`Checked`] and has another digest. [`ArtifactError::Read`] when `bytes` cannot be read to its end.
/// [`ArtifactError::Malformed`], [`ArtifactError::Escape`] or [`ArtifactError::Twice`] when the archive is damaged, or has an
/// entry that is not accepted. [`ArtifactError::TooLarge`] when it exceeds a limit. [`ArtifactError::PathNotFound`] when
/// there is no entry at `path`.
pub fn unpack(mut bytes: impl Read, path: &str, limits: &Limits) -> Result<Vec<File>, ArtifactError> {
    let wanted = normal(path).ok_or_else(|| ArtifactError::PathInvalid(path.to_owned()))?;
    let mut bytes = Bounded { inner: Watched { inner: &mut bytes, fault: None }, left: limits.transfer };
    let mut unpacked = Bounded { inner: GzDecoder::new(&mut bytes), left: limits.transfer };
    let files = entries(&mut unpacked, &wanted, limits);
    let rest = io::copy(&mut bytes, &mut io::sink()).map_err(|error| classify(&error, limits));
    // A wrong digest or a failed download takes precedence over faults in the archive.
    if let Some(fault) = bytes.inner.fault {
        let is_other = fault.get_ref().and_then(|e| e.downcast_ref::<DigestError>()).is_some();
        return Err(if is_other { ArtifactError::Digest } else { ArtifactError::Read(fault) });
    }
    let (files, is_there) = files.and_then(|files| rest.map(|_| files))?;
    if !is_there {
        return Err(ArtifactError::PathNotFound(path.to_owned()));
    }
    Ok(files)
}

/// Returns the files, and whether the archive has an entry at the path.
fn entries(tar: impl Read, wanted: &str, limits: &Limits) -> Result<(Vec<File>, bool), ArtifactError> {
    let fail = |error: io::Error| classify(&error, limits);
    let (mut files, mut total, mut is_there) = (Vec::<File>::new(), 0_u64, wanted.is_empty());
    let mut seen = BTreeSet::new();
    let mut long_name: Option<Vec<u8>> = None;
    let mut archive = Archive::new(tar);
    // Raw entries: otherwise names longer than a header are read into memory without a limit.
    for entry in archive.entries().map_err(fail)?.raw(true) {
        let mut entry = entry.map_err(fail)?;
        let (kind, size) = (entry.header().entry_type(), entry.size());
        match kind {
            EntryType::GNULongName => {
                let mut name = extension(entry, size, limits)?;
                name.truncate(name.iter().position(|b| *b == 0).unwrap_or(name.len()));
                long_name = Some(name);
                continue;
            }
            EntryType::XHeader => {
                let text = extension(entry, size, limits)?;
                if let Some(name) = pax_name(&text)? {
                    long_name = Some(name);
                }
                continue;
            }
            EntryType::GNULongLink | EntryType::XGlobalHeader => continue,
            EntryType::GNUSparse => return Err(ArtifactError::Malformed("it has a sparse file")),
            _ => {}
        }
        let name = long_name.take().unwrap_or_else(|| entry.path_bytes().into_owned());
        let name = String::from_utf8(name).map_err(|_| ArtifactError::Malformed("it has a name that is not UTF-8"))?;
        let path = normal(&name).ok_or_else(|| ArtifactError::Escape(name.clone()))?;
        let Some(is_itself) = place(&path, wanted) else { continue };
        is_there = true;
        let is_file = kind.is_file() && !name.ends_with('/');
        if !is_file || !(is_itself || is_inventory(&path)) {
            continue;
        }
        if !seen.insert(path.clone()) {
            return Err(ArtifactError::Twice(path));
        }
        if files.len() >= limits.files {
            return Err(ArtifactError::TooLarge(format!("more than {} files", limits.files)));
        }
        let mut content = Vec::new();
        entry.by_ref().take(limits.file + 1).read_to_end(&mut content).map_err(fail)?;
        let length = content.len() as u64;
        if length > limits.file {
            return Err(ArtifactError::TooLarge(format!(
                "{} has more than {}",
                text::quote(&path, 200),
                shown_size(limits.file)
            )));
        }
        if length < size {
            return Err(ArtifactError::Malformed("it ends within a file"));
        }
        total += length;
        if total > limits.total {
            return Err(ArtifactError::TooLarge(format!(
                "the files have more than {} in total",
                shown_size(limits.total)
            )));
        }
        files.push(File { path, bytes: content });
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((files, is_there))
}

/// Returns the content of an extension header, which describes the next entry.
fn extension(entry: impl Read, size: u64, limits: &Limits) -> Result<Vec<u8>, ArtifactError> {
    if size > MAX_EXTENSION {
        return Err(ArtifactError::Malformed("it has a name of more than 64 KiB"));
    }
    let mut bytes = Vec::new();
    entry.take(MAX_EXTENSION).read_to_end(&mut bytes).map_err(|error| classify(&error, limits))?;
    Ok(bytes)
}

/// Returns the name in a pax header. Fails if the header has a size, which would make the start of the next entry ambiguous.
fn pax_name(text: &[u8]) -> Result<Option<Vec<u8>>, ArtifactError> {
    let mut name = None;
    for pair in PaxExtensions::new(text) {
        let pair = pair.map_err(|_| ArtifactError::Malformed("it has a damaged header"))?;
        match pair.key_bytes() {
            b"path" => name = Some(pair.value_bytes().to_owned()),
            b"size" => {
                return Err(ArtifactError::Malformed("it has a pax header with a file size, which is not supported"));
            }
            _ => {}
        }
    }
    Ok(name)
}

/// Returns true if the path is `wanted` itself, false if the path is below `wanted`, and `None` otherwise.
fn place(path: &str, wanted: &str) -> Option<bool> {
    if wanted.is_empty() {
        return Some(false);
    }
    let rest = path.strip_prefix(wanted)?;
    if rest.is_empty() { Some(true) } else { rest.starts_with('/').then_some(false) }
}

/// Returns the path without `.` and needless `/`. `None` if the path is absolute or leads upwards, on any operating system, or has a NUL in it.
fn normal(path: &str) -> Option<String> {
    if path.starts_with('/') || path.contains(['\\', '\0']) {
        return None;
    }
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    (!parts.contains(&"..")).then(|| parts.join("/"))
}

/// Returns the fault of an archive whose bytes could be read.
fn classify(error: &io::Error, limits: &Limits) -> ArtifactError {
    if error.get_ref().and_then(|e| e.downcast_ref::<Exceeded>()).is_some() {
        ArtifactError::TooLarge(format!("more than {}", shown_size(limits.transfer)))
    } else {
        ArtifactError::Malformed("it is damaged or cut off")
    }
}

/// Reader that keeps the error of its source: libraries that unpack an archive replace it with their own.
struct Watched<R> {
    inner: R,
    fault: Option<io::Error>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).map_err(|error| {
            let kind = error.kind();
            if kind != io::ErrorKind::Interrupted {
                self.fault.get_or_insert(error);
            }
            kind.into()
        })
    }
}

/// Error with which a [`Bounded`] reader fails at its limit.
#[derive(Debug, thiserror::Error)]
#[error("more bytes than allowed")]
struct Exceeded;

/// Reader that fails at its limit. [`io::Take`] would report a normal end.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| io::Error::other(Exceeded))?;
        Ok(read)
    }
}

#[cfg(test)]
#[path = "artifact/tests.rs"]
mod tests;
