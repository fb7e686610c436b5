//! Reasons why the operator trusts no host key and does not log in.

use api::Reason;

/// Reason why no host key is trusted, so that the operator does not log in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostKeyProblem {
    /// The host key policy is strict, and no key is declared.
    #[error(
        "ssh.hostKeyPolicy is Strict and no key of {address} is declared, so the operator does not log in: add hostKey to its entry, \
         or set ssh.knownHostsSecretRef to a Secret that lists the key"
    )]
    NotDeclared {
        /// Address of the host.
        address: String,
    },
    /// A host key cannot be read.
    #[error("{place}: {error}. The operator does not log in to the host until this key is corrected")]
    Unusable {
        /// Location of the host key.
        place: String,
        /// Fault of the host key.
        error: String,
    },
}

impl HostKeyProblem {
    /// Returns the reason for conditions and events.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotDeclared { .. } => Reason::HostKeyUnknown,
            Self::Unusable { .. } => Reason::HostKeyInvalid,
        }
    }
}
