//! Errors of a drain.

use api::Reason;
use std::time::Duration;

use wnp_core::drain::InvalidRule;

/// Error of a pass, a cordon or an uncordon. All are safe to retry: a drain keeps no state but that of the cluster.
///
/// A drain that is refused or has timed out is a result, not an error: see [`State`](super::State).
#[derive(Debug, thiserror::Error)]
pub(crate) enum DrainError {
    /// The API server refused a call, or could not be reached.
    #[error("cannot {what}: {}; the operator retries", crate::runtime::errors::api_message(.source))]
    Api {
        /// Request, for example "list the pods of node win-1".
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer within the time limit of a pass.
    #[error("cannot {what}: the API server did not answer within {} s; the operator retries", .limit.as_secs())]
    Slow {
        /// Request, for example "list the pods of node win-1".
        what: String,
        limit: Duration,
    },
    /// The operator may not evict this pod, by its role or by an admission policy. All other pods were still tried.
    #[error("may not evict pod {pod}: {message}; grant create on pods/eviction, or correct the policy that denies it")]
    EvictionForbidden {
        /// `namespace/name` of the pod.
        pod: String,
        message: String,
    },
    /// The API server rejects the eviction. All other pods were still tried.
    #[error("the API server rejects the eviction of pod {pod}: {message}")]
    EvictionRejected {
        /// `namespace/name` of the pod.
        pod: String,
        message: String,
    },
    /// The Node was deleted, or deleted and created again, since the caller read it.
    #[error("node {node} no longer exists, or was replaced by another of the same name; read it again")]
    NodeGone { node: String },
    /// The Node changed during every attempt to patch it.
    #[error("node {node} keeps changing while its cordon is written; the operator retries")]
    CordonConflict { node: String },
    /// A pod rule has an invalid selector.
    #[error(transparent)]
    InvalidRule(#[from] InvalidRule),
}

impl DrainError {
    /// Returns the stable reason for conditions and events.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Api { .. } | Self::Slow { .. } => Reason::ApiError,
            Self::EvictionForbidden { .. } | Self::EvictionRejected { .. } => Reason::EvictionForbidden,
            Self::NodeGone { .. } | Self::CordonConflict { .. } => Reason::Conflict,
            Self::InvalidRule(_) => Reason::SpecInvalid,
        }
    }
}
