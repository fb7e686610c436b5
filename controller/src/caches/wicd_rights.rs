//! State of the rights of the hosts' daemons (wicd). [`wicd_binding`](crate::rights::wicd_binding) sets it. No wicd gets a certificate without
//! rights.

use api::Reason;
use parking_lot::Mutex;
use tokio::sync::watch;
use wnp_core::status::policies::Policies;

use crate::{caches::wicd_policy, cluster::wicd_rbac, runtime::errors::api_message};

/// Reason why the hosts' daemons have no rights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct RightsProblem {
    reason: Reason,
    message: String,
}

impl RightsProblem {
    /// Returns the reason for conditions and events.
    pub(crate) fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns the problem of a policy that is not in force.
    pub(crate) fn policy(fault: &wicd_policy::PolicyFault) -> Self {
        let message = format!(
            "{fault}; until it matches this release, the hosts' daemons (wicd) have no rights and get no certificates, and no operation \
             begins on a host except a removal or a key rotation; {}",
            wicd_policy::REMEDY
        );
        Self { reason: Reason::PolicyMissing, message }
    }

    /// Returns the problem of a ClusterRoleBinding that must be deleted before the operator creates it again.
    pub(crate) fn replaced() -> Self {
        let message = format!(
            "the ClusterRoleBinding {} is being deleted, or refers to another role: the operator creates it again once it is gone, and the hosts' \
             daemons (wicd) get no certificates meanwhile; if it stays, check its finalizers",
            wicd_rbac::BINDING
        );
        Self { reason: Reason::PolicyMissing, message }
    }

    /// Returns the problem of a ClusterRoleBinding that cannot be written. `doing` completes "failed to …".
    pub(crate) fn write(doing: &str, error: &kube::Error) -> Self {
        let message = format!(
            "failed to {doing} the ClusterRoleBinding {}: {}; the operator retries, and the hosts' daemons (wicd) get no certificates meanwhile",
            wicd_rbac::BINDING,
            api_message(error)
        );
        Self { reason: Reason::PolicyMissing, message }
    }
}

/// State of the rights of the hosts' daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RightsState {
    /// Not known yet: the API server has not returned all policies, or new policies do not take effect yet.
    NotRead,
    /// The rights are given.
    Given,
    /// The rights are withheld because of this problem.
    Withheld(RightsProblem),
}

/// Rights of the hosts' daemons, and the fault of other policies.
#[derive(Debug)]
pub(crate) struct WicdRights {
    standing: watch::Sender<RightsState>,
    /// Fault of policies that do not restrict wicd.
    others: Mutex<Option<String>>,
}

impl Default for WicdRights {
    /// Returns given rights, for commands that issue no certificates.
    fn default() -> Self {
        Self::new(RightsState::Given)
    }
}

impl WicdRights {
    fn new(standing: RightsState) -> Self {
        Self { standing: watch::channel(standing).0, others: Mutex::default() }
    }

    /// Returns the state before the first check, in which no certificate is issued.
    pub(crate) fn unknown() -> Self {
        Self::new(RightsState::NotRead)
    }

    /// Returns the state of all policies, as pools report it.
    pub(crate) fn policies(&self) -> Policies {
        match (self.problem(), self.others.lock().clone()) {
            (Some(problem), _) => Policies::Withheld(problem.reason, problem.message),
            (None, Some(others)) => Policies::Missing(others),
            (None, None) => Policies::InForce,
        }
    }

    /// Records the fault of policies that do not restrict wicd. Reports whether it changed.
    pub(crate) fn set_others(&self, others: Option<String>) -> bool {
        std::mem::replace(&mut *self.others.lock(), others.clone()) != others
    }

    /// Returns the problem that keeps every wicd from getting a certificate now, or `None`.
    pub(crate) fn problem(&self) -> Option<RightsProblem> {
        match &*self.standing.borrow() {
            RightsState::Given => None,
            RightsState::Withheld(problem) => Some(problem.clone()),
            RightsState::NotRead => Some(RightsProblem {
                reason: Reason::PolicyMissing,
                message: "the operator has not checked its admission policies yet, and the hosts' daemons (wicd) get no certificates meanwhile; if this lasts, check the API server"
                    .into(),
            }),
        }
    }

    /// Waits until the rights are given or withheld for the first time.
    pub(crate) async fn known(&self) {
        // The sender lives as long as `self`.
        let _ = self.standing.subscribe().wait_for(|standing| *standing != RightsState::NotRead).await;
    }

    /// Records the state of the rights. Reports whether it changed.
    pub(crate) fn set(&self, standing: RightsState) -> bool {
        self.standing.send_if_modified(|before| std::mem::replace(before, standing.clone()) != standing)
    }
}
