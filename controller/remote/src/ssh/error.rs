//! Errors of SSH operations on a host.

use api::Reason;
use std::{io, time::Duration};

use api::act::{Act, FINGERPRINT};

use super::PERMISSION_DENIED;

/// Action and path that an error message names.
#[derive(Clone, Copy)]
pub(super) struct Doing<'a> {
    pub(super) action: &'static str,
    pub(super) path: &'a str,
}

/// Error that an SSH operation returns. The text is safe to publish: it holds no key material, and at most a sanitised excerpt of the host's output.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each field is named in its variant's message")]
pub enum SshError {
    /// Nothing listens on the port.
    #[error(
        "{address} port {port} refuses connections: check that the OpenSSH server runs there and listens on this port"
    )]
    ConnectRefused {
        address: String,
        port: u16,
        #[source]
        source: io::Error,
    },
    /// The host did not answer in time. `phase` names the step that timed out.
    #[error("{address} did not answer within {} s (waited for {phase}): {}", .after.as_secs(), after_silence(phase))]
    ConnectTimeout { address: String, phase: &'static str, after: Duration },
    /// The host cannot be reached: no route, or another network error.
    #[error("{address} cannot be reached: check its address, and the network between it and the operator")]
    Unreachable {
        address: String,
        #[source]
        source: io::Error,
    },
    /// The name cannot be resolved.
    #[error("the name {address} cannot be resolved: check the name and the cluster's DNS, or give an IP address")]
    NameNotResolved {
        address: String,
        #[source]
        source: Option<io::Error>,
    },
    /// The two sides have no algorithm in common, or the peer does not speak SSH.
    #[error("{address} and the operator cannot negotiate a secure SSH connection: {why}")]
    HandshakeFailed {
        address: String,
        why: String,
        #[source]
        source: Box<russh::Error>,
    },
    /// The host proved another key than the known one. Another machine may intercept the connection.
    #[error(
        "the host key of {address} does not match: expected {}, got {offered}; if the host was reinstalled on purpose, {}",
        .expected.join(" or "), if_reinstalled(host.as_deref(), offered)
    )]
    HostKeyMismatch { host: Option<String>, address: String, expected: Vec<String>, offered: String },
    /// The host key must be listed in `known_hosts`, and no key of the host is.
    #[error(
        "{address} offers the host key {offered}, which is not in the known_hosts of the Secret in ssh.knownHostsSecretRef: verify the key, and add it there"
    )]
    HostKeyUnknown { address: String, offered: String },
    /// The host accepted none of the keys.
    #[error("{username} cannot log in to {address} {}", refused(tried, HOST_KEYS))]
    AuthenticationFailed { address: String, username: String, tried: Vec<RefusedKey> },
    /// The operator cannot connect to the jump host, or the connection broke. `fault` names the cause and the remedy.
    #[error("the jump host cannot be used, so the operator has no connection to the host behind it: {fault}")]
    JumpHostUnreachable { fault: Box<SshError> },
    /// The jump host proved another key than the declared one. Another machine may intercept the connection.
    #[error(
        "the jump host {jump_host} shows the host key {offered}, and ssh.jumpHost.hostKey of the pool declares {expected}: another \
         machine may intercept the connection. If its key was changed on purpose, correct ssh.jumpHost.hostKey"
    )]
    JumpHostKeyMismatch { jump_host: String, expected: String, offered: String },
    /// The jump host does not accept the operator's key.
    #[error("{username} cannot log in to the jump host {jump_host} {}", refused(tried, JUMP_HOST_KEYS))]
    JumpHostAuthenticationFailed { jump_host: String, username: String, tried: Vec<RefusedKey> },
    /// The jump host does not forward connections to the host.
    #[error(
        "the jump host {jump_host} refuses to forward to {address} port {port} ({why}): check AllowTcpForwarding and PermitOpen in \
         its sshd_config, the options of the key in authorized_keys (restrict, permitopen), and its load"
    )]
    JumpHostRefused { jump_host: String, address: String, port: u16, why: String },
    /// The jump host cannot connect to the host.
    #[error(
        "the jump host {jump_host} cannot connect to {address} port {port} ({why}): check that the host is up, that its OpenSSH \
         server listens on this port, and that no firewall is between the two"
    )]
    UnreachableFromJumpHost { jump_host: String, address: String, port: u16, why: String },
    /// The connection broke.
    #[error(
        "the connection to {address} broke: {why}. The operator tries again; if that repeats, check whether the host restarts, and check the log of its SSH server \
         and the network between the host and the operator"
    )]
    Disconnected { address: String, why: String },
    /// The command exceeded its time limit. `log` is the end of its output.
    #[error("{command} did not end on {address} within {} s; check the load of the host", .after.as_secs())]
    CommandTimeout { address: String, command: String, after: Duration, log: String },
    /// The server did not start the command.
    #[error(
        "{address} refuses to run commands for this user: check ForceCommand in its sshd_config, and the shell of the user"
    )]
    CommandRefused { address: String },
    /// A file operation failed.
    #[error("cannot {action} {path} on {address}: {why}; {}", after_transfer(why))]
    TransferFailed { address: String, action: &'static str, path: String, why: String },
    /// The host's drive has no space left.
    #[error("cannot write {path} on {address}: its disk is full; free some space")]
    DiskFull { address: String, path: String },
    /// The server offers no SFTP, or something else answers in its place.
    #[error("{address} does not offer SFTP: {why}")]
    NotASftpServer { address: String, why: String },
    /// The path must not be sent to a host: a fault of the operator or of its input.
    #[error(
        "the operator does not use the path {path:?} on a host, because it {problem}; this is a bug in the operator: report it"
    )]
    BadPath { path: String, problem: &'static str },
    /// The command must not be sent to a host: a fault of the operator or of its input.
    #[error(
        "the operator does not run the command {command:?}, because it {problem}; this is a bug in the operator: report it"
    )]
    BadCommand { command: String, problem: &'static str },
    /// A file on the host, or its new content, is larger than the limit.
    #[error("{path} on {address}, or its new content, is larger than {} KiB; remove what is not needed from it", limit >> 10)]
    TooLarge { address: String, path: String, limit: usize },
    /// A directory on the host has more entries than are read.
    #[error("{path} on {address} has more than {limit} entries: remove files that do not belong to the operator")]
    TooManyEntries { address: String, path: String, limit: usize },
    /// The local source of an upload cannot be read.
    #[error(
        "the operator cannot read its own files for {path} on the host; check its payload (docs/guide/upgrade.md#the-payload)"
    )]
    Source {
        path: String,
        #[source]
        source: io::Error,
    },
}

/// Private key that did not log in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fingerprint}{}", .why.note())]
pub struct RefusedKey {
    /// SHA-256 fingerprint of the public key.
    pub fingerprint: String,
    /// Cause, as far as it is known.
    pub why: Refusal,
}

/// Cause of the refusal of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The user has no such public key.
    Unknown,
    /// The host closed the connection.
    Closed,
    /// The host accepts RSA with SHA-1 only.
    Sha1,
    /// The host accepts the key, and requires another factor.
    Factor,
}

impl Refusal {
    /// Returns the note that follows the key in a message: the cause, and its remedy unless that is to add the public key to the host.
    fn note(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Closed => " (the host closed the connection)",
            Self::Sha1 => " (the host accepts RSA with SHA-1 only: use an Ed25519 or ECDSA key)",
            Self::Factor => {
                " (accepted, but the host requires another factor: allow `publickey` alone in AuthenticationMethods of its sshd_config)"
            }
        }
    }
}

/// Files with the public keys that a host accepts.
const HOST_KEYS: &str = "the user's authorized keys on the host (administrators_authorized_keys for an administrator)";
/// File with the public keys that a jump host accepts.
const JUMP_HOST_KEYS: &str = "the user's authorized_keys on the jump host";

/// Phase in which the host has not accepted a connection yet.
pub(super) const TCP: &str = "the TCP connection";

/// Returns what to check after a host has not answered in a phase.
fn after_silence(phase: &str) -> &'static str {
    if phase == TCP {
        "check that the host is up and that no firewall is in between"
    } else {
        "it has accepted the connection, so check the load of the host, its OpenSSH server and the log of that server"
    }
}

/// Returns what to check after a failed file operation.
fn after_transfer(why: &str) -> &'static str {
    if why == PERMISSION_DENIED {
        "check that the user is an administrator of the host, and who may access this path"
    } else {
        "check the load of the host, and whether another program, for example an antivirus, uses or removes files there"
    }
}

/// Returns the refused keys and the remedy: to add a public key to `files`, unless the note of each key names its own remedy.
fn refused(tried: &[RefusedKey], files: &str) -> String {
    let keys = tried.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let adds_key = tried.iter().any(|key| matches!(key.why, Refusal::Unknown | Refusal::Closed));
    match tried.len() {
        0 => "without a private key: name a Secret with one in the ssh settings of the pool".to_owned(),
        _ if !adds_key => format!("with {keys}"),
        1 => format!("with {keys}: add this public key to {files}"),
        _ => format!("with {keys}: add one of these public keys to {files}"),
    }
}

/// Returns the remedy for a changed host key. Only the key of a host with an instance, whose name is `host`, can be trusted by a command.
fn if_reinstalled(host: Option<&str>, offered: &str) -> String {
    // A host that offers no key of a known type shows the types of its keys, not a fingerprint.
    let fingerprint = if offered.starts_with("SHA256:") { offered } else { FINGERPRINT };
    match host {
        Some(host) => format!(
            "correct its hostKey or known_hosts entry if it has one, otherwise trust the new key: {}",
            Act::TrustHostKey(host, fingerprint)
        ),
        None => "correct the key that is declared for it (hostKey, known_hosts, or --host-key of a command)".to_owned(),
    }
}

impl SshError {
    /// Reports whether the host did not answer: the connection or the log-in failed, the connection broke, or a command did not end. Otherwise, the
    /// host has answered, or the operator is at fault.
    pub fn is_no_answer(&self) -> bool {
        match self {
            Self::ConnectRefused { .. }
            | Self::ConnectTimeout { .. }
            | Self::Unreachable { .. }
            | Self::NameNotResolved { .. }
            | Self::HandshakeFailed { .. }
            | Self::HostKeyMismatch { .. }
            | Self::HostKeyUnknown { .. }
            | Self::AuthenticationFailed { .. }
            | Self::JumpHostUnreachable { .. }
            | Self::JumpHostKeyMismatch { .. }
            | Self::JumpHostAuthenticationFailed { .. }
            | Self::JumpHostRefused { .. }
            | Self::UnreachableFromJumpHost { .. }
            | Self::Disconnected { .. }
            | Self::CommandTimeout { .. } => true,
            Self::CommandRefused { .. }
            | Self::TransferFailed { .. }
            | Self::DiskFull { .. }
            | Self::NotASftpServer { .. }
            | Self::BadPath { .. }
            | Self::BadCommand { .. }
            | Self::TooLarge { .. }
            | Self::TooManyEntries { .. }
            | Self::Source { .. } => false,
        }
    }

    /// Adds the name of the host, which the remedy for a changed host key needs.
    #[must_use]
    pub fn of_host(mut self, name: &str) -> Self {
        if let Self::HostKeyMismatch { host, .. } = &mut self {
            *host = Some(name.to_owned()).filter(|name| !name.is_empty());
        }
        self
    }

    /// Returns the stable reason for conditions and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::ConnectRefused { .. }
            | Self::ConnectTimeout { .. }
            | Self::Unreachable { .. }
            | Self::NameNotResolved { .. }
            | Self::UnreachableFromJumpHost { .. }
            | Self::Disconnected { .. } => Reason::Unreachable,
            Self::HandshakeFailed { .. } | Self::CommandRefused { .. } | Self::NotASftpServer { .. } => {
                Reason::SshServerUnfit
            }
            Self::HostKeyMismatch { .. } => Reason::HostKeyMismatch,
            Self::HostKeyUnknown { .. } => Reason::HostKeyUnknown,
            Self::AuthenticationFailed { .. } => Reason::AuthenticationFailed,
            Self::JumpHostUnreachable { .. }
            | Self::JumpHostAuthenticationFailed { .. }
            | Self::JumpHostRefused { .. } => Reason::JumpHostUnreachable,
            Self::JumpHostKeyMismatch { .. } => Reason::JumpHostKeyMismatch,
            Self::CommandTimeout { .. } => Reason::HostCallFailed,
            Self::TransferFailed { .. } | Self::TooLarge { .. } => Reason::TransferFailed,
            Self::DiskFull { .. } => Reason::DiskFull,
            Self::BadPath { .. } | Self::BadCommand { .. } => Reason::InternalError,
            Self::TooManyEntries { .. } => Reason::HostFilesChanged,
            Self::Source { .. } => Reason::PayloadInvalid,
        }
    }

    /// Reports whether the jump host or its configuration is at fault. The state of the host is then unknown.
    pub fn is_of_jump_host(&self) -> bool {
        matches!(
            self,
            Self::JumpHostUnreachable { .. }
                | Self::JumpHostKeyMismatch { .. }
                | Self::JumpHostAuthenticationFailed { .. }
                | Self::JumpHostRefused { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_key_has_its_own_remedy_or_must_be_added() {
        use Refusal::{Closed, Factor, Sha1, Unknown};
        for (refusals, expected) in [
            (&[][..], "name a Secret"),
            (&[Unknown], "SHA256:0: add this public key to authorized_keys"),
            (&[Unknown, Factor], "in AuthenticationMethods of its sshd_config): add one of these public keys to"),
            (&[Factor], "in AuthenticationMethods of its sshd_config)"),
            (&[Sha1, Factor], "use an Ed25519 or ECDSA key), SHA256:1 (accepted"),
            // A closed connection has no other known remedy.
            (&[Sha1, Closed], "(the host closed the connection): add one of these public keys to"),
        ] {
            let key = |(i, why): (usize, &Refusal)| RefusedKey { fingerprint: format!("SHA256:{i}"), why: *why };
            let text = refused(&refusals.iter().enumerate().map(key).collect::<Vec<_>>(), "authorized_keys");
            assert!(text.contains(expected), "{text}");
            let adds_key = refusals.iter().any(|why| matches!(why, Unknown | Closed));
            assert_eq!(text.contains("add "), adds_key, "{text}");
        }
    }

    #[test]
    fn only_a_fingerprint_is_part_of_the_command() {
        for (offered, shown) in [("SHA256:abc", "SHA256:abc"), ("only keys of type ssh-rsa", FINGERPRINT)] {
            let (address, expected) = ("10.0.0.1".to_owned(), vec!["SHA256:x".to_owned()]);
            let error = SshError::HostKeyMismatch { host: None, address, expected, offered: offered.to_owned() };
            let message = error.of_host("win-1").to_string();
            assert!(message.contains(&format!("trust-host-key win-1 {shown} (")), "{message}");
        }
    }
}
