//! SFTP channel of a connection, and the capabilities of its server.

use russh::ChannelMsg;
use russh_sftp::{
    client::{Config, RawSftpSession, error::Error, rawsession::Limits},
    extensions,
};
use tokio::time::timeout;

use super::{
    Connection, SshError,
    sftp::{CHUNK, POSIX_RENAME, Sftp},
};

const NO_SUBSYSTEM: &str =
    "it has no such subsystem: add the line \"Subsystem sftp sftp-server.exe\" to its sshd_config";
const NOT_SFTP: &str = "the program that it starts for SFTP does not speak SFTP: remove ForceCommand from its sshd_config, or correct the program after \
                        \"Subsystem sftp\"";

impl Connection {
    /// Returns the connection's SFTP channel, which is opened at first use.
    pub(super) async fn sftp(&self) -> Result<&Sftp, SshError> {
        self.sftp
            .get_or_try_init(|| async {
                let late = |_| {
                    let limit = self.request_timeout.as_secs();
                    let why = format!(
                        "it did not start SFTP within {limit} s: check its load, and ForceCommand and \"Subsystem sftp\" in its sshd_config"
                    );
                    SshError::NotASftpServer { address: self.address().to_owned(), why }
                };
                timeout(self.request_timeout, self.open_sftp()).await.map_err(late)?
            })
            .await
    }

    /// Opens a channel, starts the SFTP subsystem, and queries the server's capabilities.
    async fn open_sftp(&self) -> Result<Sftp, SshError> {
        let refused = |why: &str| SshError::NotASftpServer { address: self.address().to_owned(), why: why.to_owned() };
        let mut channel = self.open_channel().await?;
        channel.request_subsystem(true, "sftp").await.map_err(|error| self.lost(&error))?;
        loop {
            match channel.wait().await {
                Some(ChannelMsg::Success) => break,
                Some(ChannelMsg::Failure) => return Err(refused(NO_SUBSYSTEM)),
                None | Some(ChannelMsg::Close) if self.is_closed() => {
                    return Err(self.disconnected("it ended while SFTP was being started"));
                }
                None | Some(ChannelMsg::Close) => return Err(refused(NOT_SFTP)),
                Some(_) => {}
            }
        }
        let config = Config { request_timeout_secs: self.request_timeout.as_secs().max(1), ..Config::default() };
        let mut raw = RawSftpSession::new_with_config(channel.into_stream(), config);
        let unusable = |_: Error| {
            if self.is_closed() {
                self.disconnected("it ended while SFTP was being started")
            } else {
                refused(NOT_SFTP)
            }
        };
        // Both requests are sent together: servers handle requests in order, and refuse those that they do not know.
        let (version, limits) = tokio::join!(biased; raw.init(), raw.limits());
        let version = version.map_err(unusable)?;
        let has = |name: &str, revision: &str| version.extensions.get(name).is_some_and(|r| r == revision);
        let mut chunk = CHUNK;
        if has(extensions::LIMITS, "1") {
            let limits = Limits::from(limits.map_err(unusable)?);
            raw.set_limits(limits);
            let least = [limits.write_len, limits.read_len].into_iter().flatten().min();
            chunk = least.and_then(|n| usize::try_from(n).ok()).map_or(CHUNK, |n| n.clamp(1, CHUNK));
        }
        Ok(Sftp { raw, posix_rename: has(POSIX_RENAME, "1"), statvfs: has(extensions::STATVFS, "2"), chunk })
    }
}
