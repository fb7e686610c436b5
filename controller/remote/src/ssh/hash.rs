//! SHA-256 of a file on a host, computed by the operator: a hash that the host reports proves nothing.

use futures::{StreamExt, stream};
use russh_sftp::{
    client::error::Error,
    protocol::{FileAttributes, OpenFlags, Status, StatusCode},
};
use sha2::{Digest as _, Sha256};

use super::{Connection, SshError, error::Doing, path::checked, sftp::Sftp};

/// Number of read requests in flight: 512 KiB for each connection.
const DEPTH: usize = 16;

impl Connection {
    /// Reports whether the file at `path` on the host has this size and hash. Reads the whole file.
    ///
    /// # Errors
    /// [`SshError::BadPath`] when [`sftp_path`](super::sftp_path) refuses `path`. [`SshError::TransferFailed`] when the host
    /// refuses the request or does not answer in time. [`SshError::NotASftpServer`] when the host offers no SFTP.
    /// [`SshError::Disconnected`] when the connection breaks. A file that is missing or has another size is not an error.
    pub async fn holds(&self, path: &str, size: u64, sha256: &str) -> Result<bool, SshError> {
        let doing = Doing { action: "read back", path };
        let remote = checked(path)?;
        let open = async |sftp: &Sftp| sftp.raw.open(remote, OpenFlags::READ, FileAttributes::empty()).await;
        let hash = async |sftp: &Sftp, handle: &str| {
            let (attributes, hash) = tokio::join!(sftp.raw.fstat(handle), hash(sftp, handle, size));
            let has_size = attributes.is_ok_and(|attributes| attributes.attrs.size == Some(size));
            if has_size { hash.map_err(|error| self.failed(&error, doing)) } else { Ok(None) }
        };
        let found = self.with_open(doing, open, hash).await?.flatten();
        Ok(found.is_some_and(|hash| hash == sha256))
    }
}

/// Returns the hash of the first `size` bytes of an open file, or `None` if it has fewer.
async fn hash(sftp: &Sftp, handle: &str, size: u64) -> Result<Option<String>, Error> {
    let chunk = sftp.chunk as u64;
    let offsets = stream::iter((0..size.div_ceil(chunk)).map(|n| n * chunk));
    let mut parts = offsets.map(|offset| part(sftp, handle, offset, chunk.min(size - offset))).buffered(DEPTH);
    let mut hash = Sha256::new();
    while let Some(part) = parts.next().await {
        match part? {
            Some(bytes) => hash.update(bytes),
            None => return Ok(None),
        }
    }
    Ok(Some(hex::encode(hash.finalize())))
}

/// Reads `length` bytes at `offset`, which a server may return in pieces. Returns `None` at the end of the file.
async fn part(sftp: &Sftp, handle: &str, offset: u64, length: u64) -> Result<Option<Vec<u8>>, Error> {
    let mut bytes = Vec::new();
    loop {
        let have = bytes.len() as u64;
        let Some(missing) = length.checked_sub(have).and_then(|n| u32::try_from(n).ok()) else { return Ok(None) };
        if missing == 0 {
            return Ok(Some(bytes));
        }
        match sftp.raw.read(handle, offset + have, missing).await {
            Ok(data) if data.data.is_empty() => return Ok(None),
            Ok(data) => bytes.extend_from_slice(&data.data),
            Err(Error::Status(Status { status_code: StatusCode::Eof, .. })) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}
