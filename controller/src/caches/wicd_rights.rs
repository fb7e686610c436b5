//! Rights and certificates of the hosts' daemons (wicd): whether they may have them now. [`wicd_binding`](crate::rights::wicd_binding) finds it out.

use api::Reason;
use parking_lot::Mutex;
use tokio::sync::watch;
use wnp_core::status::policies::Policies;

use crate::{caches::wicd_policy, cluster::wicd_rbac, runtime::errors::said};

/// Reason for which the hosts' daemons have no rights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct RightsProblem {
    reason: Reason,
    message: String,
}

impl RightsProblem {
    /// Reason for conditions and events.
    pub(crate) fn reason(&self) -> Reason {
        self.reason
    }

    pub(crate) fn policy(fault: &wicd_policy::PolicyFault) -> Self {
        let message = format!(
            "{fault}; until it matches this release, the hosts' daemons (wicd) have no rights and get no certificates, and no host is \
             joined or changed; {}",
            wicd_policy::REMEDY
        );
        Self { reason: Reason::PolicyMissing, message }
    }

    pub(crate) fn write(doing: &str, error: &kube::Error) -> Self {
        let message = format!("failed to {doing} the ClusterRoleBinding {}: {}", wicd_rbac::BINDING, said(error));
        Self { reason: Reason::PolicyMissing, message }
    }
}

/// State of the rights of the hosts' daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    NotRead,
    Given,
    Withheld(RightsProblem),
}

/// Rights of the hosts' daemons.
#[derive(Debug)]
pub(crate) struct WicdRights {
    standing: watch::Sender<Standing>,
    /// Fault of policies that do not hold wicd.
    others: Mutex<Option<String>>,
}

impl Default for WicdRights {
    /// Returns rights in which no fault is known, for commands that issue nothing.
    fn default() -> Self {
        Self::new(Standing::Given)
    }
}

impl WicdRights {
    fn new(standing: Standing) -> Self {
        Self { standing: watch::channel(standing).0, others: Mutex::default() }
    }

    /// Returns the rights before they are known: nothing is issued.
    pub(crate) fn unknown() -> Self {
        Self::new(Standing::NotRead)
    }

    /// State of all policies, for the pools.
    pub(crate) fn policies(&self) -> Policies {
        match (self.problem(), self.others.lock().clone()) {
            (Some(problem), _) => Policies::Withheld(problem.reason, problem.message),
            (None, Some(others)) => Policies::Missing(others),
            (None, None) => Policies::InForce,
        }
    }

    /// Records the fault of policies that do not hold wicd. Returns whether it is new.
    pub(crate) fn set_others(&self, others: Option<String>) -> bool {
        std::mem::replace(&mut *self.others.lock(), others.clone()) != others
    }

    /// Problem for which no certificate of a wicd is to be issued now; `None` if it may be.
    pub(crate) fn problem(&self) -> Option<RightsProblem> {
        match &*self.standing.borrow() {
            Standing::Given => None,
            Standing::Withheld(problem) => Some(problem.clone()),
            Standing::NotRead => Some(RightsProblem {
                reason: Reason::PolicyMissing,
                message: "the admission policies have not been read yet".into(),
            }),
        }
    }

    /// Waits until the API server has answered once.
    pub(crate) async fn known(&self) {
        // The sender lives as long as this.
        let _ = self.standing.subscribe().wait_for(|standing| *standing != Standing::NotRead).await;
    }

    pub(crate) fn set(&self, standing: Standing) -> bool {
        self.standing.send_if_modified(|before| std::mem::replace(before, standing.clone()) != standing)
    }
}
