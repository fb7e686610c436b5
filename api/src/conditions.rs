//! Condition types, and functions that find, set and remove conditions.
//!
//! Conditions have the semantics of apimachinery's `SetStatusCondition`: `lastTransitionTime` changes only when `status` changes.
//! `Reconciling` and `Stalled` follow kstatus: they exist only while they are true, and never both.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::Reason;

/// Condition types of pools and instances.
pub mod kind {
    crate::documented::documented! {
        /// Pool: every listed host is a working node that follows the desired version, apart from nodes on hold or in maintenance; in mode Plan, the
        /// pool can be applied. Instance: its Node is Ready, with any version.
        READY = "Ready";
        /// Pool: the operator acts, or waits before it acts, also for a maintenance window or an approval, but not for the end of a hold or a pause.
        /// Instance: an operation is under way or waits. Never together with Stalled. Present only while true.
        RECONCILING = "Reconciling";
        /// The operator cannot proceed until a user acts, or an operation fails again and again or takes too long. Present only while true.
        STALLED = "Stalled";
        /// Pool: all hosts have joined and follow the desired version (name as in MachineConfigPool). Absent in mode Plan.
        UPDATED = "Updated";
        /// Pool: nodes are being joined, changed, repaired or removed, or wait for their turn (name as in MachineConfigPool).
        UPDATING = "Updating";
        /// Pool: the pool has a fault, whether or not the operator can repair it (name as in MachineConfigPool).
        DEGRADED = "Degraded";
        /// Pool: the host list was read and every entry of it is in use.
        INVENTORY_SYNCED = "InventorySynced";
        /// Pool: the revision of the inventory that is in force carries a signature by a trusted key (name as in Flux).
        SOURCE_VERIFIED = "SourceVerified";
        /// Pool: the operator begins no new operation except the release of hosts, because `rollout.paused` is true or `rollout.pausedUntil` is in
        /// the future.
        PAUSED = "Paused";
        /// Instance: the host answered over SSH at the last attempt. `Unknown` while that result may be outdated: since the attempt, kubelet has
        /// stopped or the Node has become Ready again, and the operator has not connected to the host yet, or could not try. The message then has
        /// the cause, for example a missing Secret.
        REACHABLE = "Reachable";
        /// Instance: the host met all requirements of a node when the operator last began to change it: rights, version of Windows, disk, clock,
        /// ports, no services and no plugin of another installer under the operator's names, and access to the API server. The message lists the
        /// unmet requirements; a host does not join before it meets them. On a configured host, the version of Windows, the ports and access to the
        /// API server are not required, because the operation may correct the fault. The message also has the
        /// [warnings](../guide/hosts.md#warnings), which stop no operation.
        PREFLIGHT_PASSED = "PreflightPassed";
        /// Instance: the host can use the [group Managed Service Accounts](../guide/workloads.md#group-managed-service-accounts-gmsa) that its
        /// pool lists, as the host last reported. Present only if the pool lists any. With a plugin in the pool, a host in no domain is not
        /// checked. The condition does not affect whether the host is a node.
        GMSA_READY = "GMSAReady";
        /// Instance: its Node is Ready.
        NODE_HEALTHY = "NodeHealthy";
        /// Instance: the host follows the version that the pool wants, and has this operator's wicd and the right address.
        UP_TO_DATE = "UpToDate";
        /// Instance: Windows, or a user who annotated the Node, requests a restart of the host. Present only while true.
        REBOOT_REQUIRED = "RebootRequired";
        /// Instance: the state of the host differs from what the operator configured, or did until recently. Present as
        /// long as wicd reports it.
        DRIFTED = "Drifted";
        /// Instance: wicd, the daemon of the host, has reported nothing for half an hour, although the Node is Ready. Present only while true.
        WICD_SILENT = "WicdSilent";
        /// Instance: the node keeps the version of the legacy operator, because a change would lose settings of that operator.
        /// Present only while true.
        UPDATE_WITHHELD = "UpdateWithheld";
        /// Pool: all nodes accept the first SSH key of their list, and the key that it replaced is removed from them. `Unknown` while a first key
        /// cannot be read. Absent in mode Plan, and in a pool without nodes.
        KEYS_CURRENT = "KeysCurrent";
        /// Pool: all hosts have the images of `provisioning.prePullImages`. Absent if that field is not set, and in mode
        /// Plan.
        IMAGES_PULLED = "ImagesPulled";
        /// Pool: the admission policies are in force as shipped. While a policy that restricts the hosts' daemons is not in force, the daemons have
        /// no rights and get no certificates, and no host is joined or changed. The absence of any other policy stops no operation.
        POLICIES_IN_FORCE = "PoliciesInForce";
        /// Pool: a limit or a fault that stops no operation, for example an unsupported version of the API server, a fact of the cluster that hosts
        /// cannot use, or a certificate request that waits for a user.
        WARNING = "Warning";
    }
}

/// Returns the condition of this type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Reports whether the condition is present with status `True`.
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
    /// Name in the API.
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

/// Sets a condition. The transition time changes only with the status. Truncates the message to 8192 characters, which is within the API's limit.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: Status,
    reason: Reason,
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
        set(&mut list, kind::READY, Status::False, Reason::DiskFull, "first", Some(1), t1);
        set(&mut list, kind::READY, Status::False, Reason::ClockSkew, "second", Some(2), t2);
        assert_eq!(list.len(), 1);
        assert_eq!(
            (list[0].last_transition_time.0, list[0].reason.as_str(), list[0].message.as_str()),
            (t1, "ClockSkew", "second")
        );
        assert_eq!(list[0].observed_generation, Some(2));
        set(&mut list, kind::READY, Status::True, Reason::Succeeded, "", Some(2), t2);
        assert_eq!(list[0].last_transition_time.0, t2);
        assert!(is_true(&list, kind::READY));
        remove(&mut list, kind::READY);
        assert!(find(&list, kind::READY).is_none());
    }
}
