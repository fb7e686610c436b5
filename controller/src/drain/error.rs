//! Errors of a drain.

use api::Reason;
use std::time::Duration;

use wnp_core::drain::InvalidRule;

/// Error of a pass, a cordon or an uncordon. Each is safe to try again: nothing is remembered but what the cluster shows.
///
/// A drain that is refused or has timed out is a result, not an error: see [`State`](super::State).
#[derive(Debug, thiserror::Error)]
pub(crate) enum DrainError {
    /// The API server refused a call, or could not be reached.
    #[error("cannot {what}: {}; the operator retries", crate::runtime::errors::said(.source))]
    Api {
        /// Request, as in "list the pods of node win-1".
        what: String,
        /// The answer, or the fault of the connection.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer within the time that a pass may take.
    #[error("cannot {what}: the API server did not answer within {} s; the operator retries", .limit.as_secs())]
    Slow {
        /// Request, as in "list the pods of node win-1".
        what: String,
        /// The time that the whole pass had.
        limit: Duration,
    },
    /// The operator, or an admission policy for this pod, lacks the permission to evict. All other pods were still tried.
    #[error("may not evict pod {pod}: {message}; grant create on pods/eviction, or correct the policy that denies it")]
    EvictionForbidden {
        /// `namespace/name` of the pod.
        pod: String,
        /// The API server's text.
        message: String,
    },
    /// The API server will not take this eviction as it is. All other pods were still tried.
    #[error("the API server rejects the eviction of pod {pod}: {message}")]
    EvictionRejected {
        /// `namespace/name` of the pod.
        pod: String,
        /// The API server's text.
        message: String,
    },
    /// The Node was deleted, or deleted and made again, since the caller read it.
    #[error("node {node} no longer exists, or was replaced by another of the same name; read it again")]
    NodeGone {
        /// The Node's name.
        node: String,
    },
    /// The Node changed under every attempt to patch it.
    #[error("node {node} keeps changing while its cordon is written; the operator retries")]
    CordonConflict {
        /// The Node's name.
        node: String,
    },
    /// A pod rule has an invalid selector.
    #[error(transparent)]
    InvalidRule(#[from] InvalidRule),
}

impl DrainError {
    /// A stable PascalCase reason for conditions and events.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Api { .. } | Self::Slow { .. } => Reason::ApiError,
            Self::EvictionForbidden { .. } | Self::EvictionRejected { .. } => Reason::EvictionForbidden,
            Self::NodeGone { .. } | Self::CordonConflict { .. } => Reason::Conflict,
            Self::InvalidRule(_) => Reason::SpecInvalid,
        }
    }
}
