//! Requests over the SFTP channel, and the server's answers as the operator's errors.

use std::time::Duration;

use russh_sftp::{
    client::{RawSftpSession, error::Error},
    protocol::{Packet, Status, StatusCode},
};

use super::tail;

/// Bytes of data in one read or write request. With its header it is one packet of SSH: OpenSSH takes 32 KiB of data in each. Larger requests
/// (OpenSSH allows 255 KiB) were slower, 330 MiB/s instead of 420, since sshd passes on nothing of a request before it has all of it.
pub(super) const CHUNK: usize = 32 * 1024 - 256;

pub(super) const POSIX_RENAME: &str = "posix-rename@openssh.com";

/// Maximum wait for a file that another program of the host holds, such as wicd's own.
const HELD_AT_MOST: Duration = Duration::from_secs(5);
/// Interval between attempts to replace a file.
const AGAIN: Duration = Duration::from_millis(250);

/// Open SFTP channel.
pub(super) struct Sftp {
    pub(super) raw: RawSftpSession,
    pub(super) posix_rename: bool,
    pub(super) statvfs: bool,
    /// Bytes that the server takes in one request, [`CHUNK`] at most.
    pub(super) chunk: usize,
}

impl Sftp {
    pub(super) fn close(&self) {
        // It fails only if it is closed.
        let _ = self.raw.close_session();
    }

    /// Puts `from` in place of `to`, which may exist. Waits for a file that another program of the host holds: an antivirus opens files that were
    /// just written.
    pub(super) async fn replace(&self, from: &str, to: &str) -> Result<(), Error> {
        let mut left = HELD_AT_MOST.as_millis() / AGAIN.as_millis();
        loop {
            match self.replace_now(from, to).await {
                // The protocol has no code for a file that is held.
                Err(Error::Status(Status {
                    status_code: StatusCode::Failure | StatusCode::PermissionDenied, ..
                })) if left > 0 => left -= 1,
                ended => return ended,
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Puts `from` in place of `to`, once. Atomic if the server supports it; otherwise the file is missing for the moment between a removal and a
    /// rename, as SFTP version 3 knows no other way.
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
            // A server that has it may still fail where Windows does not replace an open file: try the other way.
        }
        found(self.raw.remove(to).await)?;
        self.raw.rename(from, to).await.map(drop)
    }

    /// Reports whether a failed write may be for want of space. SFTP version 3 has no code for that: OpenSSH says "Failure".
    pub(super) async fn is_full(&self, error: &Error, directory: &str) -> bool {
        let Error::Status(Status { status_code: StatusCode::Failure, error_message, .. }) = error else { return false };
        let message = error_message.to_ascii_lowercase();
        if ["no space", "disk full", "not enough space", "quota"].iter().any(|words| message.contains(words)) {
            return true;
        }
        // Less than a chunk: the rest would not have fitted.
        self.statvfs
            && self
                .raw
                .statvfs(directory)
                .await
                .is_ok_and(|fs| fs.blocks_avail.saturating_mul(fs.fragment_size) < CHUNK as u64)
    }
}

/// Returns `None` if the server reports that there is no such file.
pub(super) fn found<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Status(Status { status_code: StatusCode::NoSuchFile, .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Text in `SshError::TransferFailed` if the user's rights do not suffice.
pub const PERMISSION_DENIED: &str = "permission denied";

/// Returns a request's error in words, without the server's control characters.
pub(super) fn why(error: &Error) -> String {
    match error {
        Error::Status(Status { status_code: StatusCode::PermissionDenied, .. }) => PERMISSION_DENIED.to_owned(),
        Error::Status(Status { status_code: StatusCode::NoSuchFile, .. }) => "no such file or directory".to_owned(),
        Error::Status(status) => format!("the host reports {:?}", tail::excerpt(&status.error_message)),
        Error::Timeout => "the host did not answer in time".to_owned(),
        other => tail::excerpt(&other.to_string()),
    }
}
