//! Connection to a host, directly or through a jump host.

use std::{fmt, net::IpAddr, time::Duration};

use russh::{Channel, client};
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout},
};

use super::{
    HostKey, Identity, JumpHost, SshError, Target,
    handshake::{Attempts, LoggedIn, direct, establish},
    jump_host::Tunnel,
    sftp::Sftp,
    tail,
};

/// Time limit for a disconnect.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Logged-in connection to a host that proved its key. Its methods may be used concurrently.
pub struct Connection {
    logged_in: LoggedIn,
    /// Connection to the jump host, if the host is reached through one.
    tunnel: Option<Tunnel>,
    peer: IpAddr,
    address: String,
    pub(super) request_timeout: Duration,
    pub(super) sftp: OnceCell<Sftp>,
}

impl Connection {
    /// Connects to a host and logs in.
    ///
    /// # Errors
    /// [`SshError::NameNotResolved`] when the name has no address. [`SshError::ConnectRefused`] or [`SshError::Unreachable`]
    /// when the last of the addresses accepts no connection. [`SshError::ConnectTimeout`] when the host does not answer
    /// within `target.connect_timeout`. [`SshError::HandshakeFailed`] when the two sides have no algorithm in common, or the
    /// host does not speak SSH. [`SshError::HostKeyMismatch`] or [`SshError::HostKeyUnknown`] when `target.host_key` does not
    /// accept the key of the host. [`SshError::AuthenticationFailed`] when the host accepts none of `target.keys`.
    /// [`SshError::Disconnected`] when the connection breaks before log-in ends.
    ///
    /// Through a jump host: an error whose name begins with `JumpHost` when the operator cannot use the jump host, and
    /// [`SshError::UnreachableFromJumpHost`] when the jump host cannot connect to the host.
    pub async fn connect(target: &Target) -> Result<Self, SshError> {
        let deadline = Instant::now() + target.connect_timeout;
        let (logged_in, peer, tunnel) = if let Some(jump_host) = &target.jump_host {
            // Boxed because the future is large, which would make every future that contains it large.
            let (logged_in, peer, tunnel) = Box::pin(through(target, jump_host, deadline)).await?;
            (logged_in, peer, Some(tunnel))
        } else {
            let (logged_in, peer) = Box::pin(direct(target, deadline)).await?;
            (logged_in, peer, None)
        };
        Ok(Self {
            logged_in,
            tunnel,
            peer,
            address: target.address.clone(),
            request_timeout: target.command_timeout,
            sftp: OnceCell::new(),
        })
    }

    /// Returns the key that the host proved.
    pub fn host_key(&self) -> &HostKey {
        &self.logged_in.host_key
    }

    /// Returns the identity that the host accepted.
    pub fn identity(&self) -> &Identity {
        &self.logged_in.identity
    }

    /// Returns the address that was connected to, directly or by the jump host.
    pub fn peer_address(&self) -> IpAddr {
        self.peer
    }

    /// Disconnects. A connection that is dropped instead ends as well, but only after its last bytes are sent.
    pub async fn close(self) {
        if let Some(sftp) = self.sftp.get() {
            sftp.close();
        }
        let goodbye = async {
            self.logged_in.close().await;
            if let Some(tunnel) = self.tunnel {
                tunnel.close().await;
            }
        };
        let _ = timeout(CLOSE_TIMEOUT, goodbye).await;
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) async fn open_channel(&self) -> Result<Channel<client::Msg>, SshError> {
        self.logged_in.handle.channel_open_session().await.map_err(|error| self.lost(&error))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.logged_in.handle.is_closed()
    }

    /// Runs work until the connection closes. An SFTP request that is made while the connection breaks would otherwise wait for its timeout.
    pub(super) async fn while_open<T>(&self, work: impl Future<Output = Result<T, SshError>>) -> Result<T, SshError> {
        // Boxed because the future is large, which would make every future that contains it large.
        let work = Box::pin(work);
        tokio::select! {
            biased;
            result = work => result,
            () = self.logged_in.seen.over.cancelled() => Err(self.disconnected("it ended in the middle of a transfer")),
        }
    }

    /// Returns the error for a connection that ended, with the cause `otherwise` if the connection's task has not reported one.
    pub(super) fn disconnected(&self, otherwise: &str) -> SshError {
        let why = self.logged_in.seen.end().unwrap_or_else(|| otherwise.to_owned());
        let error = SshError::Disconnected { address: self.address.clone(), why };
        match &self.tunnel {
            Some(tunnel) => tunnel.blame(error),
            None => error,
        }
    }

    /// Returns the error for a connection that ended, once its task has reported the cause.
    pub(crate) fn broken(&self) -> Option<SshError> {
        self.is_closed().then(|| self.logged_in.seen.end()).flatten().map(|why| self.disconnected(&why))
    }

    pub(super) fn lost(&self, error: &russh::Error) -> SshError {
        self.disconnected(&tail::excerpt(&error.to_string()))
    }
}

/// Logs in to the host through the jump host.
async fn through(
    target: &Target,
    jump_host: &JumpHost,
    deadline: Instant,
) -> Result<(LoggedIn, IpAddr, Tunnel), SshError> {
    let mut attempts = Attempts::of(target);
    loop {
        let (tunnel, stream, peer) = Tunnel::open(target, jump_host, deadline).await?;
        match establish(target, stream, deadline, attempts.algorithms()).await {
            Ok(logged_in) => return Ok((logged_in, peer, tunnel)),
            Err(error) => attempts.fail(tunnel.blame(error))?,
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("address", &self.address)
            .field("peer", &self.peer)
            .field("host_key", self.host_key())
            .field("identity", self.identity())
            .finish_non_exhaustive()
    }
}
