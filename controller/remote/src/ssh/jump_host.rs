//! Connection to a host through a jump host, as with OpenSSH's `ProxyJump`.
//!
//! The SSH session with the host runs inside a channel of the connection to the jump host, encrypted end to end: the jump host sees no more than a
//! router, and is offered none of the operator's keys for hosts.

use std::{net::IpAddr, sync::Arc};

use russh::ChannelOpenFailure;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, copy, duplex, split},
    time::{Instant, timeout},
};

use super::{
    HostKeyCheck, HostKeyError, Identity, SshError, Target,
    handshake::{LoggedIn, direct, in_turn, resolve, share},
};

/// Size of the buffer between the two connections in each direction, in bytes: more than a host may send ahead on both channels of an operation.
/// Otherwise the tasks of the outer and the inner connection could wait for each other forever.
const BETWEEN: usize = 1024 * 1024;

/// Jump host through which hosts are reached, with the settings to log in to it.
#[derive(Debug, Clone)]
pub struct JumpHost {
    address: String,
    port: u16,
    username: String,
    key: Arc<Identity>,
    host_key: HostKeyCheck,
}

impl JumpHost {
    /// Returns a jump host with its only log-in key and its only accepted host key: `ssh-ed25519 AAAA…`, `AAAA…` or `SHA256:…`. The host key is
    /// never trusted on first use.
    ///
    /// # Errors
    /// Fails when [`HostKeyCheck::pinned`] cannot read `host_key`.
    pub fn new(
        address: &str,
        port: u16,
        username: &str,
        key: Arc<Identity>,
        host_key: &str,
    ) -> Result<Self, HostKeyError> {
        let host_key = HostKeyCheck::pinned(host_key)?;
        Ok(Self { address: address.to_owned(), port, username: username.to_owned(), key, host_key })
    }

    /// Returns the jump host as a log-in target with the time limits of `host`.
    fn target(&self, host: &Target) -> Target {
        Target {
            address: self.address.clone(),
            port: self.port,
            username: self.username.clone(),
            keys: vec![Arc::clone(&self.key)],
            host_key: self.host_key.clone(),
            jump_host: None,
            ..host.clone()
        }
    }
}

/// Connection to a jump host that carries one connection to a host.
pub(super) struct Tunnel {
    logged_in: LoggedIn,
    address: String,
}

impl Tunnel {
    /// Logs in to the jump host and makes it connect to the host. The operator resolves the name of the host, so that the jump host cannot choose the
    /// destination. Returns the stream to the host and its address.
    pub(super) async fn open(
        host: &Target,
        jump_host: &JumpHost,
        deadline: Instant,
    ) -> Result<(Self, DuplexStream, IpAddr), SshError> {
        let addresses = resolve(host, deadline).await?;
        let target = jump_host.target(host);
        let (logged_in, _) = direct(&target, deadline).await.map_err(|error| of_jump_host(&target, error))?;
        let tunnel = Self { logged_in, address: target.address };
        let mut failure = SshError::NameNotResolved { address: host.address.clone(), source: None };
        for (left, peer) in in_turn(addresses) {
            let ip = peer.ip().to_canonical();
            let place =
                if ip.to_string() == host.address { ip.to_string() } else { format!("{} ({ip})", host.address) };
            let unreachable = |why: String| SshError::UnreachableFromJumpHost {
                jump_host: tunnel.address.clone(),
                address: place.clone(),
                port: host.port,
                why,
            };
            let share = share(deadline, left);
            // OpenSSH's ProxyJump names the same originator.
            let open = tunnel.logged_in.handle.channel_open_direct_tcpip(
                ip.to_string(),
                u32::from(host.port),
                "127.0.0.1",
                65535,
            );
            failure = match timeout(share, open).await {
                Ok(Ok(channel)) => return Ok((tunnel, carry(channel.into_stream()), peer.ip())),
                Ok(Err(russh::Error::ChannelOpenFailure(ChannelOpenFailure::ConnectFailed))) => {
                    unreachable("the connection failed".to_owned())
                }
                Ok(Err(russh::Error::ChannelOpenFailure(reason))) => SshError::JumpHostRefused {
                    jump_host: tunnel.address.clone(),
                    address: place,
                    port: host.port,
                    why: meaning(&reason),
                },
                Ok(Err(_)) => return Err(tunnel.broken("it closed the connection".to_owned())),
                Err(_) => unreachable(format!("no connection within {} s", share.as_secs_f32().ceil())),
            };
        }
        Err(failure)
    }

    /// Returns the error to report: if the connection to the jump host is broken as well, the jump host is at fault.
    pub(super) fn blame(&self, error: SshError) -> SshError {
        let ends = matches!(error, SshError::Disconnected { .. } | SshError::ConnectTimeout { .. });
        match self.logged_in.seen.end() {
            Some(why) if ends => self.broken(why),
            _ => error,
        }
    }

    fn broken(&self, why: String) -> SshError {
        let address = self.address.clone();
        SshError::JumpHostUnreachable { fault: Box::new(SshError::Disconnected { address, why }) }
    }

    pub(super) async fn close(self) {
        self.logged_in.close().await;
    }
}

/// Converts the error of a log-in to the jump host into one that names the jump host.
fn of_jump_host(target: &Target, error: SshError) -> SshError {
    let jump_host = target.address.clone();
    match error {
        SshError::HostKeyMismatch { expected, offered, .. } => {
            SshError::JumpHostKeyMismatch { jump_host, expected: expected.join(" or "), offered }
        }
        SshError::AuthenticationFailed { username, tried, .. } => {
            SshError::JumpHostAuthenticationFailed { jump_host, username, tried }
        }
        error => SshError::JumpHostUnreachable { fault: Box::new(error) },
    }
}

/// Describes the refusal. Text from the jump host is not repeated.
fn meaning(reason: &ChannelOpenFailure) -> String {
    match reason {
        ChannelOpenFailure::AdministrativelyProhibited => "administratively prohibited".to_owned(),
        ChannelOpenFailure::ConnectFailed => "the connection failed".to_owned(),
        ChannelOpenFailure::UnknownChannelType => "it does not support forwarding".to_owned(),
        ChannelOpenFailure::ResourceShortage => "it lacks resources".to_owned(),
        ChannelOpenFailure::Other { code, .. } => format!("code {code}"),
    }
}

/// Copies bytes between the channel and the connection inside it, until either ends: SSH does not use half-closed connections.
fn carry<S: AsyncRead + AsyncWrite + Send + 'static>(channel: S) -> DuplexStream {
    let (near, far) = duplex(BETWEEN);
    tokio::spawn(async move {
        let (mut from_host, mut to_host) = split(channel);
        let (mut from_operator, mut to_operator) = split(far);
        tokio::select! {
            _ = copy(&mut from_host, &mut to_operator) => {}
            _ = copy(&mut from_operator, &mut to_host) => {}
        }
    });
    near
}
