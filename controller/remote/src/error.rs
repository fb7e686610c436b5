//! Errors of requests to a host.

use api::{Reason, text};

use crate::{payload::PayloadError, ssh::SshError};

/// Maximum number of characters that are shown of a host's message.
pub(crate) const MAX_MESSAGE: usize = 600;

/// Error that a request to a host returns. Every variant has a stable reason.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The host could not be reached, the connection broke, or a request over SSH failed.
    #[error(transparent)]
    Ssh(#[from] SshError),
    /// The operator's payload is invalid.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The operator's own `wicd.exe` cannot be read, or has changed.
    #[error(
        "the operator's own wicd.exe cannot be read, or has changed since the operator started; restart the operator's pods, and if that does not help, \
         replace the operator's image"
    )]
    OwnFile {
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The program on the host differs from the one that was sent.
    #[error(
        "{path} on the host differs from the file that was sent, so it was not started: check whether an antivirus changes files, and check the disk"
    )]
    ProgramDamaged {
        /// Path of the program on the host.
        path: String,
    },
    /// The machine at the address has no `C:\windows\system32`, or offers no SFTP.
    #[error(
        "the machine at {address} does not show C:\\Windows over SFTP: it is not a Windows host, or its SSH server does not offer SFTP; check the address, \
         and the line \"Subsystem sftp\" in its sshd_config"
    )]
    NotWindows {
        /// Address of the host.
        address: String,
    },
    /// The user is not an administrator of the host.
    #[error(
        "user {user} does not have administrator rights on the host; add the user to the group Administrators, or set another username in the pool or in the entry of the host"
    )]
    NotAdministrator {
        /// User that logged in.
        user: String,
    },
    /// The host reported no address that a node can use.
    #[error(
        "the host reported no address that its node can use; check the network adapters of the host (ipconfig /all)"
    )]
    NoAddress,
    /// The caller has not proven the identity of the host.
    #[error(
        "the identity of the host is not verified, so nothing was changed; this is a bug in the operator: report it"
    )]
    NotProven,
    /// The log-in shell of the user does not start Windows programs.
    #[error(
        "the log-in shell of user {user} on the host does not start a Windows program by its path (exit status 127); set the default shell of its SSH server to cmd.exe or PowerShell"
    )]
    ShellNotSupported {
        /// User that logged in.
        user: String,
    },
    /// wicd ended without an answer.
    #[error(
        "wicd {verb} ended with {status} and no answer{log}; check whether an antivirus, AppLocker or App Control on the host stops wicd.exe"
    )]
    NoAnswer {
        /// Verb of the request.
        verb: &'static str,
        /// Exit status.
        status: String,
        /// Output of wicd.
        log: String,
    },
    /// The answer of wicd is incomplete or invalid, or its archive of support data is missing.
    #[error(
        "the answer of wicd {verb} on the host is incomplete or cannot be read; the operator retries. If that repeats, check whether another program changes files in C:\\k\\wicd"
    )]
    BadAnswer {
        /// Verb of the request.
        verb: &'static str,
    },
    /// wicd reported a failure.
    #[error("{message}")]
    Host {
        /// Reason that wicd gave.
        reason: Reason,
        /// Failure that wicd reported.
        message: String,
    },
}

impl RemoteError {
    /// Returns the error for a failure that a host reports. The untrusted message is truncated and sanitised.
    pub fn host(reason: &str, message: &str) -> Self {
        Self::Host { reason: reason.parse().unwrap_or(Reason::HostFailed), message: text::line(message, MAX_MESSAGE) }
    }

    /// Returns the error for a wicd that ended without an answer. The untrusted output of wicd is truncated and sanitised.
    pub(crate) fn no_answer(verb: api::host::Verb, status: Option<u32>, log: &str) -> Self {
        let status = status.map_or_else(|| "no exit status".into(), |s| format!("exit status {s}"));
        let tail: String =
            text::line(log, usize::MAX).chars().rev().take(300).collect::<Vec<_>>().into_iter().rev().collect();
        let log = if tail.is_empty() { String::new() } else { format!("; it printed: {tail}") };
        Self::NoAnswer { verb: verb.as_str(), status, log }
    }

    /// Returns the reason for conditions, events and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Ssh(e) => e.reason(),
            Self::Payload(_) | Self::OwnFile { .. } => Reason::PayloadInvalid,
            Self::ProgramDamaged { .. } | Self::BadAnswer { .. } => Reason::HostFilesChanged,
            Self::NotWindows { .. } => Reason::WindowsNotSupported,
            Self::NotAdministrator { .. } => Reason::NotAdministrator,
            Self::NoAddress => Reason::NoAddress,
            Self::NotProven => Reason::HostUnproven,
            Self::ShellNotSupported { .. } => Reason::SshServerUnfit,
            Self::NoAnswer { .. } => Reason::NoAnswer,
            Self::Host { reason, .. } => *reason,
        }
    }

    /// Reports whether the operator is at fault: a request was invalid, or a file to send could not be read.
    pub fn is_own_fault(&self) -> bool {
        matches!(
            self,
            Self::Ssh(SshError::BadPath { .. } | SshError::BadCommand { .. } | SshError::Source { .. })
                | Self::Payload(_)
                | Self::OwnFile { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_host_are_sanitised() {
        let error = RemoteError::host("x\u{1b}[31m", &format!("\u{1b}[2J\r\n\u{202e}boo{}", "!".repeat(5000)));
        assert_eq!(error.reason(), "HostFailed");
        let shown = error.to_string();
        assert!(shown.chars().all(|c| !c.is_control() && !text::is_deceptive(c)) && shown.len() <= 600, "{shown}");
        assert_eq!(RemoteError::host("DiskFull", "no room").reason(), "DiskFull");
    }
}
