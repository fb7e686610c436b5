//! What is wrong with an installation, or in its way.

use super::row::Problem;
use crate::{
    cluster::{self, ClusterError},
    crds::CrdFault,
    release::ReleaseError,
    secrets::SecretError,
    wmco::lock,
};
use api::Reason;

/// What is wrong. What to do about it is its remedy.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The API server is older than what the operator needs. The message has the remedy.
    #[error("{0}")]
    VersionRefused(String),
    /// The API server is older than what is tested.
    #[error("{message}")]
    Version { reason: Reason, message: String },
    /// A CRD is not that of this release.
    #[error("{0}")]
    Crd(#[from] CrdFault),
    /// No process leads.
    #[error("no operator leads: the Lease {namespace}/{name} {problem}", name = api::names::LEASE)]
    NoLeader { namespace: String, problem: String, remedy: String },
    /// Clocks differ.
    #[error("the clock here and that of the API server differ by {0} s")]
    Clock(i64),
    /// WMCO works. The message has the remedy.
    #[error("{0}")]
    AnotherOperator(String),
    /// WMCO works, which does not keep this operator from being installed.
    #[error("the Windows Machine Config Operator runs in the Pod {0}")]
    WmcoRuns(String),
    /// Policies on which the rights of hosts depend.
    #[error("{0}")]
    PolicyMissing(String),
    /// Other policies.
    #[error("{0}")]
    PoliciesMissing(String),
    /// There is no payload.
    #[error("there is no payload in {0}, so that what hosts get is not checked")]
    NoPayload(String),
    /// Nothing can be rendered. The message has the remedy.
    #[error("{message}")]
    Release { reason: Reason, message: String },
    /// The certificate of the API server is not for the URL that hosts use.
    #[error("hosts cannot check the certificate of {url}: {problem}")]
    Certificate { url: String, problem: String },
    /// The URL that hosts use does not answer here.
    #[error("{url} does not answer here: {problem}")]
    NoAnswer { url: String, problem: String },
    /// A private key. The message has the remedy.
    #[error("{message}")]
    Key { reason: Reason, message: String },
    /// Pools that are not Ready.
    #[error("{0}")]
    Pools(String),
    /// Rights that are missing.
    #[error("you lack {count} of the rights that the operator gets: {some}")]
    Rights { count: usize, some: String },
    /// Not allowed, or the API server does not answer.
    #[error("{what} cannot be read: {error}")]
    NotReadable { what: String, error: String },
}

impl Fault {
    pub(super) fn not_readable(what: &str, error: &kube::Error) -> Self {
        Self::NotReadable { what: what.into(), error: crate::errors::said(error) }
    }

    pub(super) fn of_release(error: &ReleaseError, payload: &std::path::Path) -> Self {
        if matches!(error, ReleaseError::Payload(_)) && !payload.exists() {
            return Self::NoPayload(payload.display().to_string());
        }
        Self::Release { reason: error.reason(), message: error.to_string() }
    }

    pub(super) fn of_cluster(error: &ClusterError) -> Self {
        Self::Release { reason: error.reason(), message: error.to_string() }
    }

    pub(super) fn of_secret(error: &SecretError) -> Self {
        Self::Key { reason: error.reason(), message: error.to_string() }
    }
}

impl Problem for Fault {
    fn reason(&self) -> Reason {
        match self {
            Self::Crd(fault) => fault.reason(),
            Self::NoLeader { .. } => Reason::NoLeader,
            Self::Clock(_) => Reason::ClockSkew,
            Self::VersionRefused(_) => cluster::TOO_OLD,
            Self::AnotherOperator(_) | Self::WmcoRuns(_) => lock::REASON,
            Self::PolicyMissing(_) => Reason::PolicyMissing,
            Self::PoliciesMissing(_) => Reason::PoliciesMissing,
            Self::NoPayload(_) => Reason::PayloadInvalid,
            Self::Certificate { .. } => Reason::CertificateInvalid,
            Self::NoAnswer { .. } => Reason::ApiServerUnreachable,
            Self::Pools(_) => Reason::PoolsNotReady,
            Self::Rights { .. } => Reason::RightsMissing,
            Self::NotReadable { .. } => Reason::ApiError,
            Self::Version { reason, .. } | Self::Release { reason, .. } | Self::Key { reason, .. } => *reason,
        }
    }

    /// Where the operator works all the same, or it cannot be said from here.
    fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::Version { .. }
                | Self::WmcoRuns(_)
                | Self::PoliciesMissing(_)
                | Self::NoPayload(_)
                | Self::NoAnswer { .. }
                | Self::Pools(_)
                | Self::NotReadable { .. }
        )
    }

    fn remedy(&self) -> Option<String> {
        let text = match self {
            Self::Version { .. }
            | Self::VersionRefused(_)
            | Self::AnotherOperator(_)
            | Self::Release { .. }
            | Self::Key { .. } => return None,
            Self::Crd(fault) => fault.remedy(),
            Self::NoLeader { remedy, .. } => remedy.clone(),
            Self::WmcoRuns(_) => "install all the same: the operator begins nothing while that Pod lives, and continues by itself when you have deleted the \
                                  Subscription and the ClusterServiceVersion of WMCO, or its Deployment (docs/guide/from-wmco.md, step 2)".into(),
            Self::Clock(_) => "set the clock; certificates and the Lease depend on it".into(),
            Self::PolicyMissing(_) | Self::PoliciesMissing(_) => {
                crate::wicd_policy::REMEDY.into()
            }
            Self::NoPayload(_) => "run the command in the operator's image, or name a payload with --payload".into(),
            Self::Certificate { .. } => {
                "name with --api-server a URL whose host is in the certificate, or correct the ConfigMap kube-root-ca.crt".into()
            }
            Self::NoAnswer { .. } => "run the command in the operator's pod; hosts must reach this URL".into(),
            Self::Pools(_) => "kubectl windows-node-pools status shows the hosts, the worst first".into(),
            Self::Rights { .. } => "install as cluster-admin: the API server lets no user grant rights that they lack".into(),
            Self::NotReadable { .. } => "run the command in the operator's pod, or with rights of cluster-admin".into(),
        };
        Some(text)
    }
}
