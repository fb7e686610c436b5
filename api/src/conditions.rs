//! Condition types and reasons, and the function that sets a condition.
//!
//! Semantics are those of apimachinery's `SetStatusCondition`: `lastTransitionTime` moves only when `status` does.
//! `Reconciling` and `Stalled` follow kstatus: they exist only while they are true, and never both.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Makes the constants and their table from one list, so that none is without a condition, a meaning and a remedy.
macro_rules! condition_reasons {
    ($($(#[doc = $meaning:literal])+ $name:ident = $word:literal on $conditions:literal; $remedy:literal;)+) => {
        $($(#[doc = $meaning])+ pub const $name: &str = $word;)+

        /// All of these reasons.
        pub const TABLE: &[Reason] = &[$(Reason {
            word: $word,
            conditions: $conditions,
            meaning: concat!($($meaning),+),
            remedy: $remedy,
        }),+];
    };
}

/// Condition types of pools and instances.
pub mod kind {
    crate::documented::documented! {
        /// Everything that the spec declares is in place and works.
        READY = "Ready";
        /// The operator acts, or will act without a person or a maintenance window. Present only while true.
        RECONCILING = "Reconciling";
        /// The operator cannot proceed until a person acts, or a host fails again and again. Present only while true.
        STALLED = "Stalled";
        /// Pool: all nodes follow the desired version (name as in MachineConfigPool).
        UPDATED = "Updated";
        /// Pool: nodes are being joined, changed or removed (name as in MachineConfigPool).
        UPDATING = "Updating";
        /// Pool: the pool has a fault, whether or not the operator can repair it (name as in MachineConfigPool).
        DEGRADED = "Degraded";
        /// Pool: the host list was read and every entry of it is in use.
        INVENTORY_SYNCED = "InventorySynced";
        /// Pool: the revision of the inventory that is in force carries a signature by a trusted key (name as in Flux).
        SOURCE_VERIFIED = "SourceVerified";
        /// Pool: the operator begins no new operation, because `rollout.paused` is true or `rollout.pausedUntil` is to come.
        PAUSED = "Paused";
        /// Instance: the host answered over SSH at the last attempt. Unknown while nothing is known of the present: kubelet has stopped since, or the
        /// Node is Ready again, and the host was not tried yet.
        REACHABLE = "Reachable";
        /// Instance: the host had all that a node needs when the operator last began to change it: rights, Windows, disk, clock, ports, a way
        /// to the API server. The message has all that it lacks, and a host does not join before it has it. On a host that is configured, Windows,
        /// ports and the way to the API server do not count: a repair or a restart may be what it needs. While true, the message has the
        /// [warnings](../guide/hosts.md#warnings), which stop nothing.
        PREFLIGHT_PASSED = "PreflightPassed";
        /// Instance: the host can use the [group Managed Service Accounts](../guide/gmsa.md) that its pool lists, as the host last reported. Present
        /// only if the pool lists any. With a plugin in the pool, a host in no domain is not checked. The host is a node in any case.
        GMSA_READY = "GMSAReady";
        /// Instance: its Node is Ready.
        NODE_HEALTHY = "NodeHealthy";
        /// Instance: the host follows the version that the pool wants.
        UP_TO_DATE = "UpToDate";
        /// Instance: Windows, or a user who annotated the Node, requests a restart of the host. Present only while true.
        REBOOT_REQUIRED = "RebootRequired";
        /// Instance: the state of the host differs, or differed, from what the operator configured. Present only while
        /// true.
        DRIFTED = "Drifted";
        /// Instance: wicd, the daemon of the host, has reported nothing for half an hour, although the Node is Ready. Present only while true.
        WICD_SILENT = "WicdSilent";
        /// Instance: the node keeps the version of the legacy operator, because a change would lose settings that it has. Present
        /// only while true.
        UPDATE_WITHHELD = "UpdateWithheld";
        /// Pool: all hosts take the first key of their list. Absent where there are no hosts.
        KEYS_CURRENT = "KeysCurrent";
        /// Pool: all hosts have the images of `provisioning.prePull`. Absent where that is not set.
        IMAGES_PULLED = "ImagesPulled";
        /// Pool: the admission policies are in force as they ship. While one is not that holds the hosts' daemons, the daemons have no rights
        /// and get no certificates, and no host is joined or changed. While another one is not, nothing stops.
        POLICIES_IN_FORCE = "PoliciesInForce";
        /// Pool: a limit or a compatibility note that stops no operation, for example an unsupported version of the API
        /// server.
        WARNING = "Warning";
    }
}

/// Reasons that more than one place uses. The others are those of errors: [`crate::reasons`].
pub mod reason {
    use crate::reasons::Reason;

    condition_reasons! {
        /// The observed state matches the spec.
        SUCCEEDED = "Succeeded" on "`Ready=True`, `InventorySynced=True`, `SourceVerified=True`"; "No action is needed.";
        /// The host has all that a node needs, and warnings, which the message has. They stop nothing.
        PASSED_WITH_WARNINGS = "PassedWithWarnings" on "instance: `PreflightPassed=True`"; "Follow the message, or leave it: see [warnings](../guide/hosts.md#warnings).";
        /// An operation is in progress.
        PROGRESSING = "Progressing" on "`Ready=Unknown`, `Reconciling=True`"; "No action is needed.";
        /// An operation is in progress again after a failure.
        PROGRESSING_WITH_RETRY = "ProgressingWithRetry" on "`Ready=Unknown`, `Reconciling=True`"; "Follow the message if the failure repeats.";
        /// No fault exists.
        AS_EXPECTED = "AsExpected" on "`Degraded=False`, `PoliciesInForce=True`"; "No action is needed.";
        /// `rollout.paused` is true or `rollout.pausedUntil` is to come, so the operator begins no operation. The message names the end, if there is one.
        PAUSED = "Paused" on "`Paused=True`; `Ready`, `Updated`, `Updating`, `KeysCurrent`"; "Set `paused` to false, or `pausedUntil` to null, to continue at once.";
        /// The source is not fetched, because its owner suspended it, and the operator has no list of before.
        SUSPENDED = "Suspended" on "`InventorySynced=False`"; "Set `suspend` of the source to false.";
        /// The source is fetched for the first time.
        FETCHING = "Fetching" on "`InventorySynced=False`"; "No action is needed.";
        /// The pool is not paused.
        NOT_PAUSED = "NotPaused" on "`Paused=False`"; "No action is needed.";
        /// Operations on hosts failed, and the operator retries them. The message has the first one. `Stalled` once a host has failed three times or for ten minutes.
        NODES_FAILED = "NodesFailed" on "pool: `Degraded=True`, `Ready=False`, `Stalled=True`"; "Correct the cause that the message names; see [a host](#a-host).";
        /// Nodes that had joined are not Ready now.
        NODES_NOT_READY = "NodesNotReady" on "pool: `Degraded=True`, `Ready=False`"; "Check the nodes that the message names.";
        /// A file of the list cannot be read; its message has file and line. The list that was used before stays in force.
        INVALID_INVENTORY = "InvalidInventory" on "pool: `InventorySynced=False`, `Degraded=True`, `Stalled=True`"; "Correct the file, and check it with `kubectl windows-node-pools lint`.";
        /// The list lacks more hosts than one change may remove (`maxRemovals`). All stay.
        MASS_REMOVAL_BLOCKED = "MassRemovalBlocked" on "pool: `InventorySynced=False`, `Degraded=True`, `Stalled=True`"; "Correct the list, or [confirm the removal](../guide/git.md#when-hosts-disappear-from-the-list).";
        /// The list names no host any more. All stay.
        INVENTORY_EMPTY = "InventoryEmpty" on "pool: `InventorySynced=False`, `Degraded=True`, `Stalled=True`"; "Correct the list, or [confirm the removal](../guide/removal.md#remove-several-hosts-or-all).";
        /// An entry of the list has no known name and may be one of the hosts that the list lacks. No host is removed.
        NAMES_UNKNOWN = "NamesUnknown" on "pool: `InventorySynced=False`, `Degraded=True`, `Stalled=True`"; "Make the host answer, correct or remove the entry, or [confirm the removal](../guide/removal.md#remove-several-hosts-or-all).";
        /// The pool of the instance does not exist. The operator does not change the host.
        POOL_MISSING = "PoolMissing" on "instance: `Ready=Unknown`, `Stalled=True`"; "Create the pool again, or [give the host up](../guide/removal.md#what-is-deleted-by-the-way).";
        /// A Secret, a key in it or its content is missing or cannot be used.
        CREDENTIALS_UNAVAILABLE = "CredentialsUnavailable" on "pool: `InventorySynced=False`, `KeysCurrent=Unknown`; instance: `Ready=False`, `Reachable=False`"; "Correct the Secret that the message names.";
        /// An operation takes longer than `rollout.progressDeadlineSeconds`. The operator continues with it.
        PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded" on "pool: `Stalled=True`"; "Check the host that the message names: `kubectl describe wi HOST`.";
        /// The host waits for its turn.
        WAITING = "Waiting" on "instance: `Ready=Unknown`, `Reconciling=True`"; "No action is needed.";
        /// A drain makes no progress.
        DRAIN_BLOCKED = "DrainBlocked" on "pool: `Degraded=True`, `Ready=False`"; "See [a drain that is blocked](../guide/rollouts.md#a-drain-that-is-blocked).";
        /// Hosts join.
        PROVISIONING = "Provisioning" on "pool: `Updating=True`, `Updated=False`"; "No action is needed.";
        /// Nodes that do not work are repaired.
        REPAIRING = "Repairing" on "pool: `Updating=True`"; "No action is needed.";
        /// Nodes leave.
        REMOVING = "Removing" on "pool: `Updating=True`"; "No action is needed.";
        /// The nodes follow the desired version.
        UP_TO_DATE = "UpToDate" on "pool: `Updating=False`; instance: `UpToDate=True`"; "No action is needed.";
        /// The node follows another version than its pool wants.
        OUTDATED = "Outdated" on "instance: `UpToDate=False`"; "No action is needed, unless the message has a failure.";
        /// A change reaches the nodes.
        ROLLING_OUT = "RollingOut" on "pool: `Updating=True`, `Updated=False`; instance: `UpToDate=False`"; "No action is needed.";
        /// A change is rolled back.
        ROLLING_BACK = "RollingBack" on "pool: `Updating=True`"; "Correct the change before you try it again; see [a version that fails](../guide/rollouts.md#a-version-that-fails).";
        /// A version failed on too many nodes.
        FAILURE_LIMIT_REACHED = "FailureLimitReached" on "pool: `Stalled=True`, `Ready=False`, `Updated=False`, `Updating=False`"; "See [a version that fails](../guide/rollouts.md#a-version-that-fails).";
        /// Changes wait until a [maintenance window](../guide/rollouts.md#maintenance-windows) opens. The message names the next one.
        WAITING_FOR_WINDOW = "WaitingForWindow" on "pool: `Updated=False`, `Updating=False`, `Ready=Unknown`, `Reconciling=True`"; "No action is needed.";
        /// A change waits for an approval.
        WAITING_FOR_APPROVAL = "WaitingForApproval" on "pool: `Updated=False`, `Updating=False`, `Ready=Unknown`, `Reconciling=True`"; "Check the changed nodes, then [approve](../guide/rollouts.md#steps-and-approval): `kubectl windows-node-pools approve POOL`.";
        /// A change would lose settings that nodes have from WMCO. The condition `UpdateWithheld` of each instance names them.
        SETTINGS_WOULD_BE_LOST = "SettingsWouldBeLost" on "pool: `Updated=False`, `Updating=False`, `Ready=Unknown`, `Reconciling=True`; instance: `UpdateWithheld=True`"; "[Add them to the pool, or accept the loss](../guide/from-wmco.md#what-a-node-has-and-what-it-would-lose).";
        /// Nodes that a person has cordoned use up `rollout.maxUnavailable`. The message names them.
        BLOCKED_BY_CORDON = "BlockedByCordon" on "pool: `Updated=False`, `Updating=False`, `Ready=Unknown`, `Reconciling=True`"; "Uncordon them, or hold each of them: `kubectl windows-node-pools pause --host HOST`, or the annotation `windowsmachineconfig.openshift.io/hold=true` of its Node.";
        /// No node gets its turn to be changed: nodes that do not work use up `rollout.maxUnavailable`, or other pools the limit over all pools
        /// (`--max-disruptions`). The message names them.
        DISRUPTIONS_USED_UP = "DisruptionsUsedUp" on "pool: `Updated=False`, `Updating=False`, `Ready=Unknown`, `Reconciling=True`"; "Repair the nodes that are named, or hold them so that they do not count; or see what keeps the other pools.";
        /// The only nodes that do not follow the desired version are those that a person holds with the annotation `hold`. The message names them.
        ON_HOLD = "OnHold" on "pool: `Updated=False`, `Updating=False`, `Ready=True`"; "End the hold of each: `kubectl windows-node-pools resume --host HOST`, or remove the annotation `windowsmachineconfig.openshift.io/hold`.";
        /// Nodes are in maintenance, and nothing is to be done with the others. The message names them.
        IN_MAINTENANCE = "InMaintenance" on "pool: `Ready=True`"; "[Hand them back](../guide/maintenance.md#hand-the-node-back) when they are patched.";
        /// A change waits between two steps.
        SOAKING = "Soaking" on "pool: `Updated=False`"; "No action is needed.";
        /// Too many nodes are not Ready, so the operator repairs none.
        TOO_MANY_UNHEALTHY = "TooManyUnhealthy" on "pool: `Degraded=True`, `Ready=False`, `Stalled=True`"; "Look for a common cause: network, API server, the last change.";
        /// Nodes are not Ready and their hosts do not answer, and the rollout no longer waits for them.
        NODES_LOST = "NodesLost" on "pool: `Degraded=True`, `Ready=False`"; "See [repair](../guide/rollouts.md#repair).";
        /// The pool is in mode Plan, so the operator begins no operation.
        PLANNED = "Planned" on "pool: `Ready=True`, `Updating=False`"; "Check `status.plan`, then set the mode to Apply.";
    }
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
