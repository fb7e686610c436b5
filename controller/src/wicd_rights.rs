//! Whether the daemons of hosts (wicd) may have rights and certificates now. [`wicd_binding`](crate::wicd_binding) finds it out.

use tokio::sync::watch;

use crate::{errors::said, wicd_policy, wicd_rbac};

/// Why the hosts' daemons have no rights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct RightsProblem {
    reason: &'static str,
    message: String,
}

impl RightsProblem {
    /// Reason for conditions and events.
    pub(crate) fn reason(&self) -> &'static str {
        self.reason
    }

    pub(crate) fn policy(fault: &wicd_policy::PolicyFault) -> Self {
        let message = format!(
            "{fault}; until it matches this release, the hosts' daemons (wicd) have no rights and get no certificates, and no host is \
             joined or changed. Apply deploy/base of this release again"
        );
        Self { reason: "PolicyMissing", message }
    }

    pub(crate) fn write(doing: &str, error: &kube::Error) -> Self {
        let message = format!("failed to {doing} the ClusterRoleBinding {}: {}", wicd_rbac::BINDING, said(error));
        Self { reason: "RightsNotStored", message }
    }
}

/// How it stands with the rights of the hosts' daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    NotRead,
    Given,
    Withheld(RightsProblem),
}

/// Whether the hosts' daemons may have rights.
#[derive(Debug)]
pub(crate) struct WicdRights(watch::Sender<Standing>);

impl Default for WicdRights {
    /// For commands that issue nothing: nothing is known to be wrong.
    fn default() -> Self {
        Self(watch::channel(Standing::Given).0)
    }
}

impl WicdRights {
    /// Nothing is known yet, and so nothing is issued.
    pub(crate) fn unknown() -> Self {
        Self(watch::channel(Standing::NotRead).0)
    }

    /// Why no certificate of a wicd is to be issued now; `None` if it may be.
    pub(crate) fn problem(&self) -> Option<RightsProblem> {
        match &*self.0.borrow() {
            Standing::Given => None,
            Standing::Withheld(problem) => Some(problem.clone()),
            Standing::NotRead => Some(RightsProblem {
                reason: "PolicyUnknown",
                message: "the admission policies have not been read yet".into(),
            }),
        }
    }

    /// Waits until the API server has answered once.
    pub(crate) async fn known(&self) {
        // The sender lives as long as this.
        let _ = self.0.subscribe().wait_for(|standing| *standing != Standing::NotRead).await;
    }

    pub(crate) fn set(&self, standing: Standing) -> bool {
        self.0.send_if_modified(|before| std::mem::replace(before, standing.clone()) != standing)
    }
}
