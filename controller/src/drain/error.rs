//! Errors of a drain.

use api::Reason;
use std::time::Duration;

use wnp_core::drain::InvalidRule;

/// Error of a pass, a cordon or an uncordon. All are safe to retry: a drain keeps no essential state outside of the cluster.
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
    #[error("cannot {what}: the API server did not answer all requests of this attempt to drain the node within {} s; the operator retries. If this lasts, check the load of the API server", .limit.as_secs())]
    Slow {
        /// Request, for example "list the pods of node win-1".
        what: String,
        limit: Duration,
    },
    /// The operator may not evict this pod, by its role or by an admission policy. The pass continues with the other pods.
    #[error(
        "the operator may not evict the pod {pod}: {message}; grant the operator the verb create on pods/eviction, or correct the admission policy \
         or webhook that denies the eviction"
    )]
    EvictionForbidden {
        /// `namespace/name` of the pod.
        pod: String,
        message: String,
    },
    /// The API server rejects the eviction. The pass continues with the other pods.
    #[error(
        "the API server rejects the eviction of the pod {pod}: {message}; the operator retries. If the error persists, delete the pod by hand"
    )]
    EvictionRejected {
        /// `namespace/name` of the pod.
        pod: String,
        message: String,
    },
    /// The Node was deleted, or deleted and created again, since the caller read it.
    #[error(
        "the Node {node} no longer exists, or was replaced by another Node with the same name; the operator reads it again"
    )]
    NodeGone { node: String },
    /// The Node changed during every attempt to patch it, or lost its cordon in a drain that may not cordon it again.
    #[error(
        "the cordon of the Node {node} could not be changed, because other clients change the Node at the same time; the operator retries. If this lasts, find the client that keeps changing the Node"
    )]
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
