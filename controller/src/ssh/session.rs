//! The SFTP channel: what the server can do, and its answers as errors of ours.

use std::time::Duration;

use russh::ChannelMsg;
use russh_sftp::{
    client::{Config, RawSftpSession, error::Error, rawsession::Limits},
    extensions,
    protocol::{Packet, Status, StatusCode},
};

use super::{Connection, SshError, tail};

/// Data of one read or write request. With its header it is one packet of SSH: OpenSSH takes 32 KiB of data in each.
/// Larger requests (OpenSSH allows 255 KiB) were slower, 330 MiB/s instead of 420, since sshd passes on nothing of a request
/// before it has all of it.
pub(super) const CHUNK: usize = 32 * 1024 - 256;

const POSIX_RENAME: &str = "posix-rename@openssh.com";

/// An open SFTP channel.
pub(super) struct Sftp {
    pub(super) raw: RawSftpSession,
    posix_rename: bool,
    statvfs: bool,
    /// What the server takes in one request, [`CHUNK`] at most.
    pub(super) chunk: usize,
}

impl Sftp {
    /// Opens a channel, starts the subsystem in it, and asks what the server can do.
    pub(super) async fn open(connection: &Connection, request_timeout: Duration) -> Result<Self, SshError> {
        let refused =
            |why: &str| SshError::NotASftpServer { address: connection.address().to_owned(), why: why.to_owned() };
        let mut channel = connection.open_channel().await?;
        channel.request_subsystem(true, "sftp").await.map_err(|error| connection.lost(&error))?;
        loop {
            match channel.wait().await {
                Some(ChannelMsg::Success) => break,
                Some(ChannelMsg::Failure) => return Err(refused("it refuses the subsystem")),
                None | Some(ChannelMsg::Close) if connection.is_closed() => {
                    return Err(connection.disconnected("while SFTP was being started"));
                }
                None | Some(ChannelMsg::Close) => return Err(refused("the subsystem ended at once")),
                Some(_) => {}
            }
        }
        let config = Config { request_timeout_secs: request_timeout.as_secs().max(1), ..Config::default() };
        let mut raw = RawSftpSession::new_with_config(channel.into_stream(), config);
        let unusable = |error: Error| {
            if connection.is_closed() {
                connection.disconnected("while SFTP was being started")
            } else {
                refused(&tail::excerpt(&error.to_string()))
            }
        };
        let version = raw.init().await.map_err(unusable)?;
        let has = |name: &str, revision: &str| version.extensions.get(name).is_some_and(|r| r == revision);
        let mut chunk = CHUNK;
        if has(extensions::LIMITS, "1") {
            let limits = Limits::from(raw.limits().await.map_err(unusable)?);
            raw.set_limits(limits);
            let least = [limits.write_len, limits.read_len].into_iter().flatten().min();
            chunk = least.and_then(|n| usize::try_from(n).ok()).map_or(CHUNK, |n| n.clamp(1, CHUNK));
        }
        Ok(Self { raw, posix_rename: has(POSIX_RENAME, "1"), statvfs: has(extensions::STATVFS, "2"), chunk })
    }

    pub(super) fn close(&self) {
        // It fails only if it is closed.
        let _ = self.raw.close_session();
    }

    /// Puts `from` in the place of `to`, which may exist. Atomic where the server supports it; otherwise the file is
    /// missing for the moment between a removal and a rename, as SFTP version 3 knows no other way.
    pub(super) async fn replace(&self, from: &str, to: &str) -> Result<(), Error> {
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

    /// Whether a failed write may be for want of space. SFTP version 3 has no code for that: OpenSSH says "Failure".
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

/// `None` where the server says that there is no such file.
pub(super) fn found<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Status(Status { status_code: StatusCode::NoSuchFile, .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What [`SshError::TransferFailed`] says when the user's rights do not suffice.
pub const PERMISSION_DENIED: &str = "permission denied";

/// A request's error in words, without the server's control characters.
pub(super) fn why(error: &Error) -> String {
    match error {
        Error::Status(Status { status_code: StatusCode::PermissionDenied, .. }) => PERMISSION_DENIED.to_owned(),
        Error::Status(Status { status_code: StatusCode::NoSuchFile, .. }) => "no such file or directory".to_owned(),
        Error::Status(status) => format!("the host reports {:?}", tail::excerpt(&status.error_message)),
        Error::Timeout => "the host did not answer in time".to_owned(),
        other => tail::excerpt(&other.to_string()),
    }
}
