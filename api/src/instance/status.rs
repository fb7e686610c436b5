//! Observed state of an instance.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Disruption, Grant, GrantType};
use crate::{Reason, Step, Time};

/// Observed state of the host, and the operation in progress.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct WindowsInstanceStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary of the host's state in one word, for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Conditions of the instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Version that the host fully follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_version: Option<String>,
    /// Version that the host followed before, to which it can be rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_version: Option<String>,
    /// Version whose payload is complete on the host and waits for an update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged_version: Option<String>,
    /// Version that the host failed to follow. It is not retried unless a user requests it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_version: Option<String>,
    /// SHA-256 of the `wicd.exe` that the host runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wicd: Option<String>,
    /// End of validity of wicd's newest certificate. wicd renews the certificate by itself while the host runs; once it has expired, only the
    /// operator can install another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wicd_certificate_expires: Option<Time>,
    /// The Node of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeRef>,
    /// Metadata that the operator put on the Node from the pool's template and the host's entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_applied: Option<TemplateApplied>,
    /// The user name in the Node's legacy annotation `username`, as last observed or written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 104))]
    pub annotated_username: Option<String>,
    /// True if the host holds the name of its Node although `nodeRef` is not set: the API server had no Node of that name when the host was about
    /// to get its identity, or the Node was deleted since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds_node_name: bool,
    /// The IP address at which the host was last reached, with its pinned host key and its machine id. Certificates
    /// name only this address and those of the host's Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub proven_address: Option<String>,
    /// The IP address that the host's kubelet was given for its Node. If the host has another one by now, the Node gets that with a restart
    /// of kubelet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub node_ip: Option<String>,
    /// The pinned host key: the one that the host showed when it was last proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<PinnedHostKey>,
    /// Address and port at which the host was last proven. When its entry names another address, the operator only
    /// verifies the new address and does not change the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven_at: Option<ProvenAt>,
    /// Failures to verify the new address of a node since its entry changed. They do not delay any other operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_failures: Option<Failures>,
    /// The private key that the host accepted: lower-case hex SHA-256 of the authorized_keys form of its public key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key_hash: Option<String>,
    /// Progress of a key rotation, if one is not finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_rotation: Option<KeyRotation>,
    /// Images of the pool's `provisioning.prePullImages` on the host. Set before the operator requests the first pull.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_pulled: Option<PrePulled>,
    /// Set while the host refuses every key of its list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_refusal: Option<KeyRefusal>,
    /// Facts that the host reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<HostFacts>,
    /// The operation in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// Name of the last finished operation: its grant has been used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<String>,
    /// Time when the last maintenance of the node ended, was withdrawn, or was given up after its drain had begun. Absent if the node was updated
    /// since. While it is set, further maintenance that the host requests waits for pending updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_maintenance_time: Option<Time>,
    /// Failures since the last success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
    /// Values of the annotations `retry` and `trust-host-key` that were last acted upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_retry: Option<String>,
}

/// Progress of a key rotation.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct KeyRotation {
    /// The key whose line must still be removed from the host, as in `publicKeyHash`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retiring_key_hash: Option<String>,
    /// Failures since the last success. They do not delay any other operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
}

/// Images that the host pulls ahead.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PrePulled {
    /// Images of the last attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub requested: Vec<String>,
    /// Images of the last attempt that were on the host, and pinned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub images: Vec<String>,
    /// Time of the operator's last request to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_time: Option<Time>,
    /// Failures since the last success, for these images. They do not delay any other operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
}

/// Record of a host that refuses every key of its list.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct KeyRefusal {
    /// The keys of the host's list, as in `publicKeyHash`. The record does not apply to a list that has changed since.
    pub key_hashes: Vec<String>,
    /// Time of the first refusal.
    pub first_time: Time,
    /// Time of the last refusal.
    pub last_time: Time,
}

/// Summary of a host's state in one word, for users and field selectors. The operator bases no decision on it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Host that waits for its turn.
    Pending,
    /// Host that is being made a node.
    Joining,
    /// Node that is Ready.
    Ready,
    /// Node that is not Ready.
    NotReady,
    /// Host whose last attempt failed, and that waits for the next.
    Failed,
    /// Node that is being changed or restarted.
    Updating,
    /// Node that is being repaired.
    Repairing,
    /// Node that is being drained for maintenance, is in maintenance, or returns from it.
    Maintenance,
    /// Host that is being removed or waits for its removal.
    Removing,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Joining,
        Self::Ready,
        Self::NotReady,
        Self::Failed,
        Self::Updating,
        Self::Repairing,
        Self::Maintenance,
        Self::Removing,
    ];
}

/// Reference to a Node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct NodeRef {
    /// Name of the Node.
    pub name: String,
    /// UID, which distinguishes the Node from another of the same name.
    pub uid: String,
}

/// Metadata that the operator put on a Node from a pool's template and a host's entry. The operator removes only this from the
/// Node. It is stored before the Node is changed, so it is always complete.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct TemplateApplied {
    /// UID of the Node. Not set until the Node is observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// Keys of labels, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub labels: Vec<String>,
    /// Keys of annotations, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub annotations: Vec<String>,
    /// Taints as `<key>:<effect>`, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub taints: Vec<String>,
}

/// Address and port at which a host was proven.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ProvenAt {
    /// Address, as in the host's entry.
    pub address: String,
    /// Port of the SSH server.
    pub port: i32,
}

/// A host key that was pinned.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PinnedHostKey {
    /// Type of the key, for example `ssh-ed25519`.
    pub key_type: String,
    /// The public key: base64 of the SSH wire format.
    pub public_key: String,
    /// Fingerprint of the key, `SHA256:…`.
    pub fingerprint: String,
}

/// Facts that a host reported when it was proven.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// Host name that Windows reports.
    pub hostname: String,
    /// Machine id: `MachineGuid` in the registry.
    pub machine_id: String,
    /// Build of Windows, for example `10.0.20348.2527`.
    pub os_build: String,
    /// Name of Windows, for example `Windows Server 2022 Datacenter`.
    pub os_name: String,
    /// DNS name of the Active Directory domain of the host, in lower case. Absent if it is in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub domain: Option<String>,
    /// Language of Windows, for example `de-DE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 35))]
    pub language: Option<String>,
    /// Boot id, which changes with each start of the host.
    pub boot_id: String,
    /// Time of the last start of the host, by its own clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_time: Option<Time>,
    /// IP address of the Node.
    #[serde(default)]
    pub node_ip: String,
    /// IP addresses of the host.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub addresses: Vec<String>,
    /// Seconds by which the host's clock is ahead of the operator's; negative if it is behind.
    #[serde(default)]
    pub clock_skew_seconds: i64,
}

/// The operation in progress. Its step and clocks are stored before the step's first side effect.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Name, from the grant.
    pub id: String,
    /// Kind, from the grant.
    #[serde(rename = "type")]
    pub type_: GrantType,
    /// Step of the operation.
    pub step: Step,
    /// Start of the step.
    pub step_start_time: Time,
    /// Start of the operation.
    pub start_time: Time,
    /// Epoch of the operator that performs it. Hosts refuse requests of an older epoch.
    #[serde(default)]
    pub epoch: i64,
    /// Version before an update, to which a rollback returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_version: Option<String>,
    /// Version to which an update goes. For a host that joins, the version whose files are in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_version: Option<String>,
    /// Disruption that the operation causes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<Disruption>,
    /// Services that the operation restarts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub services: Vec<String>,
    /// True if the host has all files and settings of the new version, so that services which start now are the new
    /// ones.
    #[serde(default)]
    pub applied: bool,
    /// True if the host may have been changed. Stored before the first request that changes it; from then on the
    /// operation is completed even if its grant is revoked.
    #[serde(default)]
    pub changed: bool,
    /// True if a removal may have deconfigured the host in part. From then on the removal is completed, also if it has to drain the
    /// node again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deconfiguring: bool,
    /// Attempts that failed because of the version, since the host was changed.
    #[serde(default)]
    pub attempts: i32,
    /// True if the operation failed and the host returns to `fromVersion`.
    #[serde(default)]
    pub rolling_back: bool,
    /// True if another client had cordoned the node when the operation began.
    #[serde(default)]
    pub pre_cordoned: bool,
    /// Boot id that the host must no longer have at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id_to_leave: Option<String>,
    /// Boot id before the operator requested a restart of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id_before: Option<String>,
    /// The drain, once it has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
}

impl Operation {
    /// Reports whether the operation is a change of a node that must be completed. While the host is unchanged, the operation can be aborted: only
    /// the cordon must be lifted.
    pub fn is_irrevocable(&self) -> bool {
        self.type_.is_change() && self.has_changed_the_host()
    }

    /// Reports whether the operation may have changed the host.
    pub fn has_changed_the_host(&self) -> bool {
        self.changed || self.rolling_back
    }

    /// Returns a grant for the operation, from the values that the operation stores. `without_place` is not stored, and is always false.
    pub fn as_grant(&self) -> Grant {
        Grant {
            id: self.id.clone(),
            type_: self.type_,
            granted_time: self.start_time,
            version: self.to_version.clone(),
            disruption: self.disruption,
            services: self.services.clone(),
            without_place: false,
        }
    }

    /// Reports whether the restart of the host is the purpose of the operation, and not only a part of a step.
    pub fn must_restart(&self) -> bool {
        self.type_ == GrantType::Reboot
            || (self.type_.is_change() && self.disruption == Some(Disruption::Reboot) && !self.rolling_back)
    }
}

/// Progress of a drain.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// Start of the drain. Survives restarts of the operator.
    pub start_time: Time,
    /// Time when the operator cordoned the node again after another client had uncordoned it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordoned_time: Option<Time>,
    /// Number of pods that still run on the node.
    #[serde(default)]
    pub remaining: i32,
    /// Reasons why these pods do not leave, at most five, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub blockers: Vec<String>,
}

/// Failures since the last success.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Failures {
    /// Number of consecutive failures.
    pub count: i32,
    /// Time of the first failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_time: Option<Time>,
    /// Time of the next attempt. Absent while an attempt is under way or due at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry_time: Option<Time>,
    /// Reason of the last failure, a PascalCase word.
    pub last_reason: String,
    /// Message of the last failure, with the remedy.
    pub last_message: String,
    /// Step that failed.
    #[serde(default)]
    pub step: Step,
    /// Digest of `spec.host` at the last failure. When that changes, the next attempt is made at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_digest: Option<String>,
}

impl Failures {
    /// Returns the reason of the last failure, or `HostFailed` if this release does not know the stored reason.
    pub fn reason(&self) -> Reason {
        self.last_reason.parse().unwrap_or(Reason::HostFailed)
    }

    /// Summary of the last failure in one line: the failed step, if it is known, and the message.
    pub fn summary(&self) -> String {
        match self.step {
            Step::Unknown => self.last_message.clone(),
            step => format!("{step}: {}", self.last_message),
        }
    }
}
