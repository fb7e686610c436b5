//! Errors of a step on a host.

use api::{Reason, act::Act};

use crate::{
    caches::wicd_rights::RightsProblem,
    cluster::{secrets::SecretError, versions::VersionError},
    csr::CsrError,
    drain::DrainError,
    wmco::host_keys::WmcoHostKeysError,
};
use remote::{
    RemoteError,
    ssh::{HostKeyError, SshError},
};
use wnp_core::{
    node::owner::Mismatch,
    operation::{host_key_problem::HostKeyProblem, identity::Refusal, preflight::Faults, update::Blame},
    render::RenderError,
};

/// Reasons of wicd that count against the version: its content is invalid, or a call of Windows or a service failed with it. Every other reason of
/// wicd is a fault of the host, even an unknown one.
const OF_THE_VERSION: [Reason; 2] = [Reason::PayloadInvalid, Reason::HostCallFailed];

/// Error of a step on a host. Each error has a message with the remedy and a stable reason.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// The host could not be reached or queried, or reported a failure.
    #[error("{0}")]
    Remote(#[from] RemoteError),
    /// The operator trusts no host key of the host, or a declared or stored key cannot be used.
    #[error("{0}")]
    HostKey(#[from] HostKeyProblem),
    /// The declared host key of the pool's jump host is invalid.
    #[error(
        "ssh.jumpHost.hostKey of the pool: {0}; until it is corrected, the operator cannot log in to the hosts of the pool"
    )]
    JumpHostKey(HostKeyError),
    /// A private key or the known hosts cannot be read.
    #[error("{0}")]
    Secret(#[from] SecretError),
    /// A certificate was not issued.
    #[error("{0}")]
    Csr(#[from] CsrError),
    /// wicd has no rights now, so it gets no certificate, for example because an admission policy is not in force.
    #[error("{0}")]
    Rights(#[from] RightsProblem),
    /// The configuration of the host cannot be rendered.
    #[error("{0}")]
    Render(#[from] RenderError),
    /// A stored version cannot be read.
    #[error("{0}")]
    Version(#[from] VersionError),
    /// A version is not stored, or was not created by this operator.
    #[error(
        "the ConfigMap windows-services-{version} in the operator's namespace does not exist or was not written by this operator, so the operator \
         cannot bring the host to this version. The operator retries, and stores the ConfigMap again if it still has the content. If this lasts, \
         restore the ConfigMap from a backup, and find the client that deleted or replaced it"
    )]
    NoVersion { version: String },
    /// The drain failed.
    #[error("{0}")]
    Drain(#[from] DrainError),
    /// Pods did not leave in time, and the pool sets `onTimeout: Abort`.
    #[error(
        "the drain took longer than drain.timeoutSeconds, so the operator aborted it and retries it later. Obstacles: {blockers}. Remove them, or \
         raise drain.timeoutSeconds"
    )]
    DrainTimedOut { blockers: String },
    /// A request to the API server failed.
    #[error("failed to {doing}: {}", crate::runtime::errors::api_message(.source))]
    Api {
        /// Request, in words that complete "failed to …".
        doing: &'static str,
        #[source]
        source: kube::Error,
    },
    /// The instance has changed or was deleted since it was read.
    #[error("the WindowsInstance has changed since it was read; the operator reads it again")]
    Outdated,
    /// The host does not meet the requirements of a node.
    #[error("{0}")]
    Unfit(#[from] Faults),
    /// Another host answered, or the host is not proven to be the expected one.
    #[error("{0}")]
    Identity(#[from] Refusal),
    /// A Node with the host's name exists, and is not proven to belong to the host.
    #[error("the Node {name} exists and is not proven to belong to this host: {why}")]
    NodeNameTaken {
        name: String,
        /// Reason why the Node is not proven to be the host's, and the remedy.
        why: Mismatch,
    },
    /// The host may be a node, and the Node with its name is not proven to belong to it.
    #[error(
        "the operator cannot prove that the Node {name} belongs to this host, so it changes neither: {why}. To take the host out of its pool \
         and leave both unchanged, remove it from the list of the pool if it is still there, then {}",
        Act::Abandon(name)
    )]
    NodeUnproven {
        name: String,
        /// Reason why the Node is not proven to be the host's, and the remedy.
        why: Mismatch,
    },
    /// The version needs files that no payload of this operator has.
    #[error(
        "the host lacks files of version {version} that are in no payload of this operator ({count}, for example {file}); the operator has payloads \
         for {payloads}. End the rollback or pause that keeps the pool at this version, or install an operator whose payload has these files"
    )]
    VersionFilesMissing {
        version: String,
        count: usize,
        /// First of the missing files.
        file: String,
        payloads: String,
    },
    /// The Node did not register in time.
    #[error("{0}")]
    NotRegistered(String),
    /// The API server refuses the labels, annotations or taints of the Node.
    #[error(
        "the API server refuses the labels, annotations and taints of the Node {name}: {why}. Correct the template of the pool or the entry of the \
         host, or the admission policy or webhook that refuses them"
    )]
    NodeRefused { name: String, why: String },
    /// The Node was deleted during a change, and has not been registered again.
    #[error(
        "the Node {name} was deleted during a change of the host, and kubelet has not registered it again within {seconds} s; the \
         operator retries. If this lasts, see C:\\var\\log\\kubelet on the host"
    )]
    NodeDeleted { name: String, seconds: u64 },
    /// No file with authorized keys has the line of the key that the host accepts.
    #[error(
        "the operator cannot replace the SSH key {key}, which the host accepts, because none of the files {files} contains it: add the public key of \
         the first private key in ssh.privateKeySecretRefs to the file from which the SSH server of the host reads keys (AuthorizedKeysFile in \
         sshd_config). Until then, the operator logs in with the old key"
    )]
    KeyLineNotFound { key: String, files: String },
    /// User data of another operator may write the accepted key again at each start of the host.
    #[error(
        "the operator does not replace the SSH key {key} of the host: the user data of the Machine {machine}, which this operator did not set up, may \
         write this key again at each start. Keep the key in the list of private keys; or, to get a host with the first key of the list, store that \
         key in the Secret cloud-private-key and delete the Machine, so that its MachineSet creates another one (docs/guide/maintenance.md#machines)"
    )]
    KeyOfUserData {
        /// `<namespace>/<name>` of the Machine.
        machine: String,
        key: String,
    },
    /// The host does not accept the new key, although it was added next to the accepted one.
    #[error(
        "the host does not accept the key {key}, although it is now in {files}, so the operator logs in with the old key: check the permissions of \
         the file, and the event log OpenSSH/Operational of the host"
    )]
    KeyNotTaken { key: String, files: String },
    /// The image is missing, although the host reports no error.
    #[error(
        "the image {image} is missing on the host, although it was there before or its pull reported no error; the operator pulls it again later. \
         If this happens again, check whether another program on the host deletes images"
    )]
    ImageNotKept { image: String },
    /// The host did not answer in time after its restart.
    #[error(
        "the SSH server of the host did not answer within {minutes} min after the operator requested the restart; the operator keeps \
         trying. Check the console of the host"
    )]
    NotRestarted { minutes: u64 },
    /// The host answers, but has not restarted in time.
    #[error(
        "the host answers, but has not restarted within {minutes} min after the operator requested it; restart the host by hand, and the operator \
         continues. The event log System of the host may show the cause"
    )]
    StillRunning { minutes: u64 },
}

impl From<SshError> for StepError {
    fn from(error: SshError) -> Self {
        RemoteError::from(error).into()
    }
}

impl From<WmcoHostKeysError> for StepError {
    fn from(error: WmcoHostKeysError) -> Self {
        match error {
            WmcoHostKeysError::Api(source) => {
                Self::Api { doing: "get the ConfigMap windows-ssh-host-keys with known host keys", source }
            }
            WmcoHostKeysError::Key(problem) => Self::HostKey(problem),
        }
    }
}

impl StepError {
    /// Wraps an error of the API server. `doing` completes "failed to …".
    pub(crate) fn api(doing: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { doing, source }
    }

    /// Returns the reason for conditions, events and metrics.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Remote(e) => e.reason(),
            Self::HostKey(e) => e.reason(),
            Self::JumpHostKey(_) => Reason::HostKeyInvalid,
            Self::Secret(e) => e.reason(),
            Self::Csr(e) => e.reason(),
            Self::Rights(e) => e.reason(),
            Self::Render(e) => e.reason(),
            Self::Version(e) => e.reason(),
            Self::NoVersion { .. } => Reason::VersionUnreadable,
            Self::VersionFilesMissing { .. } => Reason::VersionFilesMissing,
            Self::Drain(e) => e.reason(),
            Self::DrainTimedOut { .. } => Reason::DrainBlocked,
            Self::Api { .. } => Reason::ApiError,
            Self::Outdated => Reason::Conflict,
            Self::Identity(refusal) => refusal.reason(),
            Self::NodeNameTaken { .. } | Self::NodeUnproven { .. } => Reason::HostConflict,
            Self::Unfit(faults) => faults.reason(),
            Self::KeyLineNotFound { .. } | Self::KeyNotTaken { .. } | Self::KeyOfUserData { .. } => {
                Reason::KeyRotationFailed
            }
            Self::ImageNotKept { .. } => Reason::PrePullFailed,
            Self::NotRegistered(_) | Self::NodeDeleted { .. } => Reason::NotRegistered,
            Self::NodeRefused { .. } => Reason::NodeRefused,
            Self::NotRestarted { .. } => Reason::Unreachable,
            Self::StillRunning { .. } => Reason::HostCallFailed,
        }
    }

    /// Returns the part at fault. Only an error that is the fault of the version counts against the version.
    pub(crate) fn blame(&self) -> Blame {
        match self {
            Self::Remote(RemoteError::Host { reason, .. }) if OF_THE_VERSION.contains(reason) => Blame::Version,
            Self::Remote(error) if error.is_own_fault() => Blame::Cluster,
            _ if self.is_of_jump_host() => Blame::Cluster,
            Self::Remote(_)
            | Self::Csr(CsrError::Refused { .. })
            | Self::Unfit(_)
            | Self::HostKey(_)
            | Self::Identity(_)
            | Self::NodeNameTaken { .. }
            | Self::NodeUnproven { .. }
            | Self::KeyLineNotFound { .. }
            | Self::KeyNotTaken { .. }
            | Self::KeyOfUserData { .. }
            | Self::ImageNotKept { .. }
            | Self::NotRestarted { .. }
            | Self::StillRunning { .. } => Blame::Host,
            Self::NotRegistered(_) => Blame::Version,
            Self::JumpHostKey(_)
            | Self::Secret(_)
            | Self::Csr(_)
            | Self::Render(_)
            | Self::Version(_)
            | Self::NoVersion { .. }
            | Self::VersionFilesMissing { .. }
            | Self::Drain(_)
            | Self::DrainTimedOut { .. }
            | Self::NodeRefused { .. }
            | Self::NodeDeleted { .. }
            | Self::Rights(_)
            | Self::Api { .. }
            | Self::Outdated => Blame::Cluster,
        }
    }

    /// Reports whether the error is a failed API request or depends on the API server's state, so that the operation is retried and not aborted.
    pub(crate) fn is_api_failure(&self) -> bool {
        matches!(
            self,
            Self::Api { .. }
                | Self::Rights(_)
                | Self::Outdated
                | Self::Drain(_)
                | Self::Version(VersionError::Api { .. })
                | Self::Secret(SecretError::Api { .. })
                | Self::Csr(CsrError::Api { .. })
        )
    }

    /// Reports whether the Node did not register within its time limit, so that another attempt with the same version is useless.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::NotRegistered(_))
    }

    /// Reports whether the pool's jump host is at fault, so that nothing is known about the host.
    pub(crate) fn is_of_jump_host(&self) -> bool {
        match self {
            Self::Remote(RemoteError::Ssh(error)) => error.is_of_jump_host(),
            Self::JumpHostKey(_) => true,
            _ => false,
        }
    }

    /// Reports whether the host did not answer, also in time after a restart. The jump host may be at fault.
    pub(crate) fn is_unreachable(&self) -> bool {
        match self {
            Self::Remote(RemoteError::Ssh(error)) => error.is_no_answer(),
            Self::NotRestarted { .. } => true,
            _ => false,
        }
    }

    /// Reports whether an SSH operation failed, or the host did not answer in time after a restart.
    pub(crate) fn is_of_ssh(&self) -> bool {
        matches!(self, Self::Remote(RemoteError::Ssh(_)) | Self::NotRestarted { .. })
    }

    /// Returns what the error shows about the host.
    pub(crate) fn contact(&self) -> Contact {
        match self {
            error if error.is_unreachable() => Contact::Failed,
            // Another machine answers at the address.
            Self::Identity(_) => Contact::Failed,
            Self::HostKey(_) => Contact::NotTried,
            Self::Remote(error) if !error.is_own_fault() => Contact::Answered,
            error if error.blame() == Blame::Cluster => Contact::NotTried,
            _ => Contact::Answered,
        }
    }
}

/// Contact with a host before an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contact {
    /// The host is not at fault: the operator could not try, for example because it lacks the key.
    NotTried,
    /// The host that is expected at the address has not answered.
    Failed,
    /// The host has answered.
    Answered,
}

#[cfg(test)]
mod tests {
    use super::*;
    use remote::{payload::PayloadError, ssh::HostKeyCheck};
    use wnp_core::{operation::preflight::Fault, render::StoredError};

    fn ssh(error: SshError) -> StepError {
        error.into()
    }

    fn lost_jump_host() -> SshError {
        let why = "the host closed it".to_owned();
        let fault = SshError::Disconnected { address: "jump.example.com".to_owned(), why };
        SshError::JumpHostUnreachable { fault: Box::new(fault) }
    }

    fn says(reason: &str) -> StepError {
        RemoteError::host(reason, "").into()
    }

    fn no_api() -> kube::Error {
        kube::Error::LinesCodecMaxLineLengthExceeded
    }

    #[test]
    fn each_error_has_one_blame() {
        use Blame::{Cluster, Host, Version};
        let address = || "10.0.0.1".to_owned();
        let text = String::new;
        for (error, expected) in [
            (ssh(SshError::AuthenticationFailed { address: address(), username: text(), tried: Vec::new() }), Host),
            (ssh(SshError::Disconnected { address: address(), why: text() }), Host),
            (ssh(lost_jump_host()), Cluster),
            (ssh(SshError::JumpHostKeyMismatch { jump_host: address(), expected: text(), offered: text() }), Cluster),
            (
                ssh(SshError::JumpHostAuthenticationFailed {
                    jump_host: address(),
                    username: text(),
                    tried: Vec::new(),
                }),
                Cluster,
            ),
            (
                ssh(SshError::JumpHostRefused { jump_host: address(), address: address(), port: 22, why: text() }),
                Cluster,
            ),
            (
                ssh(SshError::UnreachableFromJumpHost {
                    jump_host: address(),
                    address: address(),
                    port: 22,
                    why: text(),
                }),
                Host,
            ),
            (StepError::JumpHostKey(HostKeyCheck::pinned("").unwrap_err()), Cluster),
            (ssh(SshError::DiskFull { address: address(), path: text() }), Host),
            (ssh(SshError::HostKeyUnknown { address: address(), offered: text() }), Host),
            (ssh(SshError::BadPath { path: text(), problem: "" }), Cluster),
            (ssh(SshError::BadCommand { command: text(), problem: "" }), Cluster),
            (ssh(SshError::Source { path: text(), source: std::io::Error::other("") }), Cluster),
            (RemoteError::NotWindows { address: address() }.into(), Host),
            (Faults::from(Fault::ClockSkew { seconds: 600, direction: "ahead" }).into(), Host),
            (StepError::HostKey(HostKeyProblem::NotDeclared { address: address() }), Host),
            (StepError::Identity(Refusal::NotThisNode { address: address(), name: text(), other: text() }), Host),
            (StepError::NodeNameTaken { name: text(), why: Mismatch::Unmarked }, Host),
            (StepError::NodeUnproven { name: text(), why: Mismatch::Unmarked }, Host),
            (RemoteError::NotAdministrator { user: text() }.into(), Host),
            (RemoteError::NoAddress.into(), Host),
            (RemoteError::NoAnswer { verb: "apply", status: text(), log: text() }.into(), Host),
            (RemoteError::BadAnswer { verb: "apply" }.into(), Host),
            (StepError::KeyLineNotFound { key: text(), files: text() }, Host),
            (StepError::ImageNotKept { image: text() }, Host),
            (StepError::KeyNotTaken { key: text(), files: text() }, Host),
            (StepError::KeyOfUserData { machine: text(), key: text() }, Host),
            (StepError::NotRestarted { minutes: 1 }, Host),
            (StepError::StillRunning { minutes: 1 }, Host),
            (StepError::Csr(CsrError::Refused { reason: Reason::UnknownHost, message: text() }), Host),
            (StepError::Csr(CsrError::TimedOut { name: text() }), Cluster),
            (StepError::Secret(SecretError::Missing { namespace: text(), name: text() }), Cluster),
            (RemoteError::from(PayloadError::NotInPayload { sha256: text() }).into(), Cluster),
            (StepError::Version(VersionError::Unreadable { name: text(), problem: StoredError::TooLarge }), Cluster),
            (StepError::NoVersion { version: text() }, Cluster),
            (RemoteError::OwnFile { source: std::io::Error::other("") }.into(), Cluster),
            (StepError::Drain(DrainError::NodeGone { node: text() }), Cluster),
            (StepError::DrainTimedOut { blockers: text() }, Cluster),
            (StepError::api("get the Node")(no_api()), Cluster),
            (StepError::Outdated, Cluster),
            (StepError::NodeDeleted { name: text(), seconds: 1 }, Cluster),
            (StepError::NodeRefused { name: text(), why: text() }, Cluster),
            (StepError::NotRegistered(text()), Version),
            // Errors that wicd reports.
            (says("StaleEpoch"), Host),
            (says("HostBusy"), Host),
            (says("HostFilesChanged"), Host),
            (says("NotAdministrator"), Host),
            (says("ForeignServices"), Host),
            (says("DiskFull"), Host),
            (says("AccessDenied"), Host),
            (says("HashMismatch"), Host),
            (says("CertificateInvalid"), Host),
            (says("HostFailed"), Host),
            (says("SomethingNew"), Host),
            (says("HostCallFailed"), Version),
            (says("PayloadInvalid"), Version),
        ] {
            assert_eq!(error.blame(), expected, "{error:?}");
            assert!(!error.is_final() || expected == Version, "{error:?}");
            assert!(!error.is_api_failure() || expected == Cluster, "{error:?}");
        }
    }

    #[test]
    fn a_host_that_answers_without_a_restart_is_not_reported_as_lost() {
        for (error, is_unreachable) in
            [(StepError::NotRestarted { minutes: 30 }, true), (StepError::StillRunning { minutes: 30 }, false)]
        {
            assert_eq!(
                (error.is_unreachable(), error.reason() == "Unreachable"),
                (is_unreachable, is_unreachable),
                "{error}"
            );
        }
    }

    #[test]
    fn an_error_shows_whether_the_host_has_answered() {
        let address = || "10.0.0.1".to_owned();
        let secret = SecretError::Missing { namespace: "ns".to_owned(), name: "key".to_owned() };
        for (error, expected) in [
            (ssh(SshError::Disconnected { address: address(), why: String::new() }), Contact::Failed),
            (ssh(lost_jump_host()), Contact::Failed),
            (ssh(SshError::DiskFull { address: address(), path: String::new() }), Contact::Answered),
            (ssh(SshError::CommandRefused { address: address() }), Contact::Answered),
            (
                ssh(SshError::CommandTimeout {
                    address: address(),
                    command: String::new(),
                    after: std::time::Duration::ZERO,
                    log: String::new(),
                }),
                Contact::Failed,
            ),
            (says("HostCallFailed"), Contact::Answered),
            (StepError::StillRunning { minutes: 30 }, Contact::Answered),
            (secret.into(), Contact::NotTried),
        ] {
            assert_eq!(error.contact(), expected, "{error:?}");
            assert_eq!(error.is_unreachable(), expected == Contact::Failed, "{error:?}");
        }
    }

    #[test]
    fn a_lost_jump_host_is_retried_like_a_lost_host() {
        let error = ssh(lost_jump_host());
        assert!(error.is_unreachable() && error.is_of_jump_host() && !error.is_final() && !error.is_api_failure());
        assert_eq!(error.reason(), "JumpHostUnreachable");
    }
}
