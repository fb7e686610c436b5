//! Condition types and reasons, and the function that sets a condition.
//!
//! Semantics are those of apimachinery's `SetStatusCondition`: `lastTransitionTime` moves only when `status` does.
//! `Reconciling` and `Stalled` follow kstatus: they exist only while they are true, and never both.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Condition types of pools and instances.
pub mod kind {
    /// Everything that the spec declares is in place and works.
    pub const READY: &str = "Ready";
    /// The operator acts, or will act without a person or a maintenance window. Present only while true.
    pub const RECONCILING: &str = "Reconciling";
    /// The operator cannot proceed until a person acts. Present only while true.
    pub const STALLED: &str = "Stalled";
    /// Pool: all nodes follow the desired version (name as in MachineConfigPool).
    pub const UPDATED: &str = "Updated";
    /// Pool: nodes are being joined, changed or removed (name as in MachineConfigPool).
    pub const UPDATING: &str = "Updating";
    /// Pool: the pool has a fault, whether or not the operator can repair it (name as in MachineConfigPool).
    pub const DEGRADED: &str = "Degraded";
    /// Pool: the host list was read and every entry of it is in use.
    pub const INVENTORY_SYNCED: &str = "InventorySynced";
    /// Pool: the revision of the inventory that is in force carries a signature by a trusted key (name as in Flux).
    pub const SOURCE_VERIFIED: &str = "SourceVerified";
    /// Pool: the operator begins no new operation, because `rollout.paused` is true.
    pub const PAUSED: &str = "Paused";
    /// Instance: the host answered over SSH at the last attempt.
    pub const REACHABLE: &str = "Reachable";
    /// Instance: its Node is Ready.
    pub const NODE_HEALTHY: &str = "NodeHealthy";
    /// Instance: the host follows the version that the pool wants.
    pub const UP_TO_DATE: &str = "UpToDate";
    /// Instance: Windows, or a user who annotated the Node, requests a restart of the host. Present only while true.
    pub const REBOOT_REQUIRED: &str = "RebootRequired";
    /// Instance: the state of the host differs, or differed, from what the operator configured. Present only while
    /// true.
    pub const DRIFTED: &str = "Drifted";
    /// Instance: the node keeps the version of the legacy operator, because a change would lose settings that it has. Present
    /// only while true.
    pub const UPDATE_WITHHELD: &str = "UpdateWithheld";
    /// Pool: all hosts take the first key of their list. Absent where there are no hosts.
    pub const KEYS_CURRENT: &str = "KeysCurrent";
    /// Pool: the admission policies that hold the hosts' daemons are in force. While they are not, the daemons have no rights and get no
    /// certificates, and no host is joined or changed.
    pub const POLICIES_IN_FORCE: &str = "PoliciesInForce";
    /// Pool: a limit or a compatibility note that stops no operation, for example an unsupported version of the API
    /// server.
    pub const WARNING: &str = "Warning";
}

/// Reasons that more than one place uses. Reasons of errors come from the errors themselves.
pub mod reason {
    /// The observed state matches the spec.
    pub const SUCCEEDED: &str = "Succeeded";
    /// An operation is in progress.
    pub const PROGRESSING: &str = "Progressing";
    /// An operation is in progress again after a failure.
    pub const PROGRESSING_WITH_RETRY: &str = "ProgressingWithRetry";
    /// No fault.
    pub const AS_EXPECTED: &str = "AsExpected";
    /// Paused by its owner.
    pub const PAUSED: &str = "Paused";
    /// A source is not fetched, because its owner suspended it.
    pub const SUSPENDED: &str = "Suspended";
    /// A source is fetched for the first time.
    pub const FETCHING: &str = "Fetching";
    /// Not paused.
    pub const NOT_PAUSED: &str = "NotPaused";
    /// Instances failed and are tried again.
    pub const NODES_FAILED: &str = "NodesFailed";
    /// Nodes joined once and are not Ready now.
    pub const NODES_NOT_READY: &str = "NodesNotReady";
    /// A host is claimed twice.
    pub const HOST_CONFLICT: &str = "HostConflict";
    /// The host list is wrong.
    pub const INVALID_INVENTORY: &str = "InvalidInventory";
    /// More hosts would be removed than the pool allows.
    pub const MASS_REMOVAL_BLOCKED: &str = "MassRemovalBlocked";
    /// The list names no host, and removes none until a person confirms it.
    pub const INVENTORY_EMPTY: &str = "InventoryEmpty";
    /// The names of some listed hosts are not known yet, so no host is removed.
    pub const NAMES_UNKNOWN: &str = "NamesUnknown";
    /// Instance: its pool does not exist.
    pub const POOL_MISSING: &str = "PoolMissing";
    /// The spec cannot be followed.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// A Secret, or a key in it, is missing or cannot be read.
    pub const CREDENTIALS_UNAVAILABLE: &str = "CredentialsUnavailable";
    /// The payload of the operator is incomplete.
    pub const PAYLOAD_INVALID: &str = "PayloadInvalid";
    /// An operation has been going on for longer than `rollout.progressDeadlineSeconds`.
    pub const PROGRESS_DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
    /// Waiting for a slot.
    pub const WAITING: &str = "Waiting";
    /// A drain makes no progress.
    pub const DRAIN_BLOCKED: &str = "DrainBlocked";
    /// Nodes join.
    pub const PROVISIONING: &str = "Provisioning";
    /// Nodes leave.
    pub const REMOVING: &str = "Removing";
    /// All nodes follow the desired version.
    pub const UP_TO_DATE: &str = "UpToDate";
    /// Some nodes follow another version.
    pub const OUTDATED: &str = "Outdated";
    /// A change reaches the nodes.
    pub const ROLLING_OUT: &str = "RollingOut";
    /// A change is rolled back.
    pub const ROLLING_BACK: &str = "RollingBack";
    /// Too many nodes could not be changed.
    pub const FAILURE_LIMIT_REACHED: &str = "FailureLimitReached";
    /// Changes wait until a maintenance window opens.
    pub const WAITING_FOR_WINDOW: &str = "WaitingForWindow";
    /// A change waits for an approval.
    pub const WAITING_FOR_APPROVAL: &str = "WaitingForApproval";
    /// A change would lose settings of the legacy operator's.
    pub const SETTINGS_WOULD_BE_LOST: &str = "SettingsWouldBeLost";
    /// Nodes that a person has cordoned exhaust the disruption budget.
    pub const BLOCKED_BY_CORDON: &str = "BlockedByCordon";
    /// A change waits between two steps.
    pub const SOAKING: &str = "Soaking";
    /// Too many nodes are not Ready for any to be repaired.
    pub const TOO_MANY_UNHEALTHY: &str = "TooManyUnhealthy";
    /// Nodes are lost, and the rollout no longer waits for them.
    pub const NODES_LOST: &str = "NodesLost";
    /// Mode Plan.
    pub const PLANNED: &str = "Planned";
}

/// Looks a condition up by its type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition is present with status `True`.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == "True")
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `True`
    True,
    /// `False`
    False,
    /// `Unknown`
    Unknown,
}

impl Status {
    /// As the API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Status {
    fn from(b: bool) -> Self {
        if b { Self::True } else { Self::False }
    }
}

/// Sets a condition. The time moves only when the status changes. A message is cut at 32 KiB, the API's limit.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: Status,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    let message: String = message.chars().take(8192).collect();
    let status = status.as_str();
    match conditions.iter_mut().find(|c| c.type_ == type_) {
        Some(c) => {
            if c.status != status {
                c.status = status.into();
                c.last_transition_time = Time(now);
            }
            c.reason = reason.into();
            c.message = message;
            c.observed_generation = generation;
        }
        None => conditions.push(Condition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.into(),
            message,
            observed_generation: generation,
            last_transition_time: Time(now),
        }),
    }
}

/// Removes a condition, if it is present.
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) {
    conditions.retain(|c| c.type_ != type_);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_moves_only_with_the_status() {
        let (t1, t2) = (Timestamp::from_second(1000).unwrap(), Timestamp::from_second(2000).unwrap());
        let mut list = Vec::new();
        set(&mut list, kind::READY, Status::False, "A", "first", Some(1), t1);
        set(&mut list, kind::READY, Status::False, "B", "second", Some(2), t2);
        assert_eq!(list.len(), 1);
        assert_eq!(
            (list[0].last_transition_time.0, list[0].reason.as_str(), list[0].message.as_str()),
            (t1, "B", "second")
        );
        assert_eq!(list[0].observed_generation, Some(2));
        set(&mut list, kind::READY, Status::True, "C", "", Some(2), t2);
        assert_eq!(list[0].last_transition_time.0, t2);
        assert!(is_true(&list, kind::READY));
        remove(&mut list, kind::READY);
        assert!(find(&list, kind::READY).is_none());
    }
}
