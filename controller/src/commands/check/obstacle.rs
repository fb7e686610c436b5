//! What stands in the way of a takeover.

use api::Reason;
use std::path::Path;

use super::row::Problem;
use crate::{cluster::release::ReleaseError, wmco::lock};

/// What is wrong. What to do about it is its [`Obstacle::remedy`].
#[derive(Debug, thiserror::Error)]
pub(super) enum Obstacle {
    /// Its lock is held. The message has the remedy.
    #[error("{0}")]
    Runs(String),
    /// Something that starts it is there.
    #[error("the {kind} {namespace}/{name} of WMCO is there")]
    Installed { kind: String, namespace: String, name: String },
    /// A node is being changed.
    #[error("the Node {0} has the label upgrading=true")]
    Upgrading(String),
    /// It says itself that it is busy.
    #[error("WMCO is not upgradeable: {0}")]
    NotUpgradeable(String),
    /// No private key.
    #[error("{message}")]
    Key { reason: Reason, message: String },
    /// Nothing to take over.
    #[error("no Node of WMCO is in this cluster")]
    NoNodes,
    /// It names no version.
    #[error("the Node {0} has no annotation {version}", version = api::names::key::VERSION)]
    NoVersion(String),
    /// Its host key is not on record.
    #[error("the host key of the Node {0} is on record nowhere, so that it would not be adopted")]
    Unproven(String),
    /// A host key is damaged.
    #[error("the host key of the Node {0} cannot be read: {1}")]
    HostKey(String, String),
    /// A user cannot be decrypted.
    #[error("the private key does not read the user in the annotation of the Node {0}")]
    Username(String),
    /// Services of a version are missing.
    #[error("the ConfigMap {name}: {error}")]
    Services { name: String, error: String },
    /// There is no payload.
    #[error("there is no payload in {0}, so that what nodes would lose is not known")]
    NoPayload(String),
    /// Nothing can be rendered.
    #[error("{message}")]
    Release { reason: Reason, message: String },
    /// A node would lose settings. The message has the remedies.
    #[error("{node}: {message}")]
    Losses { node: String, message: String },
    /// No certificate.
    #[error("the Secret {0}/{name} is missing or empty: hosts would serve their metrics as plain HTTP", name = api::names::EXPORTER_CERTIFICATE)]
    NoCertificate(String),
    /// Not allowed, or the API server does not answer.
    #[error("{what} cannot be read: {error}")]
    NotReadable { what: String, error: String },
}

impl Obstacle {
    pub(super) fn installed(kind: &str, name: &str, namespace: &str) -> Self {
        Self::Installed { kind: kind.into(), name: name.into(), namespace: namespace.into() }
    }

    pub(super) fn not_readable(what: &str, error: &kube::Error) -> Self {
        Self::NotReadable { what: what.into(), error: crate::runtime::errors::said(error) }
    }

    pub(super) fn of_release(error: &ReleaseError, payload: &Path) -> Self {
        if payload.exists() {
            Self::Release { reason: error.reason(), message: error.to_string() }
        } else {
            Self::NoPayload(payload.display().to_string())
        }
    }
}

impl Problem for Obstacle {
    fn reason(&self) -> Reason {
        match self {
            Self::Runs(_) => lock::REASON,
            Self::Installed { .. } | Self::Upgrading(_) | Self::NotUpgradeable(_) => Reason::AnotherOperator,
            Self::NoNodes => Reason::SourceNotFound,
            Self::NoVersion(_) => Reason::Outdated,
            Self::Unproven(_) => Reason::HostUnproven,
            Self::HostKey(..) => Reason::HostKeyInvalid,
            Self::Username(_) => Reason::CredentialsUnavailable,
            Self::Services { .. } => Reason::VersionUnreadable,
            Self::NoPayload(_) => Reason::PayloadInvalid,
            Self::Losses { .. } => Reason::SettingsWouldBeLost,
            Self::NoCertificate(_) => Reason::CertificateInvalid,
            Self::NotReadable { .. } => Reason::ApiError,
            Self::Key { reason, .. } | Self::Release { reason, .. } => *reason,
        }
    }

    /// A takeover may begin all the same where nothing is disturbed by it, or the operator waits by itself.
    fn is_warning(&self) -> bool {
        !matches!(
            self,
            Self::Upgrading(_)
                | Self::NotUpgradeable(_)
                | Self::Key { .. }
                | Self::HostKey(..)
                | Self::Unproven(_)
                | Self::Release { .. }
        )
    }

    fn remedy(&self) -> Option<String> {
        let text = match self {
            Self::Runs(_) | Self::Key { .. } | Self::Release { .. } | Self::Losses { .. } => return None,
            Self::Installed { kind, namespace, name } => {
                format!("before you begin: kubectl delete -n {namespace} {} {name}", kind.to_lowercase())
            }
            Self::Upgrading(_) | Self::NotUpgradeable(_) => {
                "wait until WMCO has ended its change; if it runs no more, remove the label from the Node and uncordon it".into()
            }
            Self::NoNodes => "install the operator as on a new cluster".into(),
            Self::NoVersion(_) => "nothing, or let WMCO finish it: the node is drained and changed in its turn".into(),
            Self::Unproven(_) => "give the pool the host keys: docs/guide/from-wmco.md#host-keys".into(),
            Self::HostKey(..) => "correct the annotation ssh-host-key of the Node, or remove it".into(),
            Self::Username(_) => "check that the Secret cloud-private-key has the key that the hosts accept".into(),
            Self::Services { .. } => "restore the ConfigMap; without it the nodes stay as they are until the loss is accepted".into(),
            Self::NoPayload(_) => "run the command in the operator's image, or name a payload with --payload".into(),
            Self::NoCertificate(_) => "apply deploy/components/windows-exporter; on other clusters than OpenShift there is none".into(),
            Self::NotReadable { .. } => "run the command with rights of cluster-admin".into(),
        };
        Some(text)
    }
}
