//! Status of the operator's kinds, as generic tools compute it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};

use crate::conditions::{find, is_true, kind};

/// Status of an object, as [kstatus](https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus) computes it. Flux and Helm 4
/// wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kstatus {
    /// The object is being deleted.
    Terminating,
    /// The object does not have its desired state yet.
    InProgress,
    /// A user must act.
    Failed,
    /// The object has its desired state, or no condition that denies it.
    Current,
}

impl Kstatus {
    /// Computes the status by the rules for any kind. `observed` is the object's observed generation.
    pub fn of(meta: &ObjectMeta, observed: Option<i64>, conditions: &[Condition]) -> Self {
        if meta.deletion_timestamp.is_some() {
            return Self::Terminating;
        }
        let is_old = observed.is_some_and(|observed| Some(observed) != meta.generation);
        if is_old || is_true(conditions, kind::RECONCILING) {
            return Self::InProgress;
        }
        if is_true(conditions, kind::STALLED) {
            return Self::Failed;
        }
        match find(conditions, kind::READY).map(|c| c.status.as_str()) {
            Some("False" | "Unknown") => Self::InProgress,
            _ => Self::Current,
        }
    }
}
