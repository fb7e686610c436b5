//! Requests over the SFTP channel, and conversion of the server's errors.

use std::time::Duration;

use futures::FutureExt;
use russh_sftp::{
    client::{RawSftpSession, error::Error},
    protocol::{Packet, Status, StatusCode},
};

use super::tail;

/// Number of data bytes in one read or write request. With its header, a request fits into one SSH packet of OpenSSH (32 KiB). Larger requests
/// (OpenSSH allows 255 KiB) are slower, 330 instead of 420 MiB/s, because sshd forwards a request only when it is complete.
pub(super) const CHUNK: usize = 32 * 1024 - 256;

pub(super) const POSIX_RENAME: &str = "posix-rename@openssh.com";

/// Maximum wait for a file that another program on the host has open.
const MAX_HELD: Duration = Duration::from_secs(5);
/// Interval between attempts to replace a file.
const AGAIN: Duration = Duration::from_millis(250);

/// Open SFTP channel.
pub(super) struct Sftp {
    pub(super) raw: RawSftpSession,
    pub(super) posix_rename: bool,
    pub(super) statvfs: bool,
    /// Maximum number of bytes that the server accepts in one request, at most [`CHUNK`].
    pub(super) chunk: usize,
}

impl Sftp {
    pub(super) fn close(&self) {
        // Fails only if the session is already closed.
        let _ = self.raw.close_session();
    }

    /// Closes a file or directory to which nothing was written, without waiting for the answer. The host handles the request before any later one.
    pub(super) fn leave(&self, handle: String) {
        // A request is sent when it is first polled.
        let _ = self.raw.close(handle).now_or_never();
    }

    /// Renames `from` to `to`, and replaces an existing file. Waits a limited time while another program on the host has the file open, such as an
    /// antivirus that scans new files.
    pub(super) async fn replace(&self, from: &str, to: &str) -> Result<(), Error> {
        let mut left = MAX_HELD.as_millis() / AGAIN.as_millis();
        loop {
            match self.replace_now(from, to).await {
                // The protocol has no status code for a file that is in use.
                Err(Error::Status(Status {
                    status_code: StatusCode::Failure | StatusCode::PermissionDenied, ..
                })) if left > 0 => left -= 1,
                ended => return ended,
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Replaces `to` by `from` in a single attempt. Atomic if the server does that; otherwise the file is missing for a moment between the removal
    /// and the rename, because SFTP version 3 has no other way.
    async fn replace_now(&self, from: &str, to: &str) -> Result<(), Error> {
        if self.posix_rename {
            let mut names = Vec::with_capacity(8 + from.len() + to.len());
            for name in [from, to] {
                names.extend(u32::try_from(name.len()).unwrap_or_default().to_be_bytes());
                names.extend(name.as_bytes());
            }
            if let Ok(Packet::Status(Status { status_code: StatusCode::Ok, .. })) =
                self.raw.extended(POSIX_RENAME, names).await
            {
                return Ok(());
            }
            // A server with this extension may still fail if Windows does not replace an open file. The removal below may then succeed.
        }
        found(self.raw.remove(to).await)?;
        self.raw.rename(from, to).await.map(drop)
    }

    /// Reports whether a write may have failed for lack of space. SFTP version 3 has no status code for that: OpenSSH reports "Failure".
    pub(super) async fn is_full(&self, error: &Error, directory: &str) -> bool {
        let Error::Status(Status { status_code: StatusCode::Failure, error_message, .. }) = error else { return false };
        let message = error_message.to_ascii_lowercase();
        if ["no space", "disk full", "not enough space", "quota"].iter().any(|words| message.contains(words)) {
            return true;
        }
        // If less than a chunk is free, the disk was too small for the rest of the file.
        self.statvfs
            && self
                .raw
                .statvfs(directory)
                .await
                .is_ok_and(|fs| fs.blocks_avail.saturating_mul(fs.fragment_size) < CHUNK as u64)
    }
}

/// Converts the status "no such file" to `None`.
pub(super) fn found<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Status(Status { status_code: StatusCode::NoSuchFile, .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Text of `SshError::TransferFailed::why` if the user lacks the permission.
pub const PERMISSION_DENIED: &str = "permission denied";

/// Describes the error of a request, without control characters of the server.
pub(super) fn why(error: &Error) -> String {
    match error {
        Error::Status(Status { status_code: StatusCode::PermissionDenied, .. }) => PERMISSION_DENIED.to_owned(),
        Error::Status(Status { status_code: StatusCode::NoSuchFile, .. }) => "no such file or directory".to_owned(),
        Error::Status(status) => format!("the host reports {:?}", tail::excerpt(&status.error_message)),
        Error::Timeout => "the host did not answer in time".to_owned(),
        other => tail::excerpt(&other.to_string()),
    }
}
