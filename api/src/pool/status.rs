//! Status of a pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeletionPolicy, Drift, FailureAction, HostKeyPolicy, OnTimeout, RemediationType, Taint};
use crate::Time;

/// Observed state of the pool, and its operations in progress.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct WindowsNodePoolStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Hosts that the inventory lists and the operator accepts, whether or not their nodes have joined. Entries that it refuses
    /// do not count.
    #[serde(default)]
    pub hosts: i32,
    /// Number of entries of the inventory that the operator refuses. The inventory lists `hosts` and `refusedHosts` together.
    #[serde(default)]
    pub refused_hosts: i32,
    /// Number of hosts that are no longer listed and stay until a user confirms their removal: the value for the annotation `approve-removal`.
    #[serde(default)]
    pub removals_to_confirm: i32,
    /// The first entries that the operator refuses, in the order of the inventory. The command `plan` lists all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub refused: Vec<RefusedEntry>,
    /// Hosts whose node has joined and is Ready, without those that leave.
    #[serde(default)]
    pub ready_nodes: i32,
    /// Schedulable nodes that have been Ready for `minReadySeconds`, without those that leave.
    #[serde(default)]
    pub available_nodes: i32,
    /// Ready nodes that follow the desired version, without those that leave.
    #[serde(default)]
    pub up_to_date_nodes: i32,
    /// Nodes that have joined and are not available now, without those that leave.
    #[serde(default)]
    pub unavailable_nodes: i32,
    /// Hosts that are joining and have not failed since the join began.
    #[serde(default)]
    pub joining_nodes: i32,
    /// Nodes that are being changed or restarted, without those that leave. Repairs and maintenance do not count.
    #[serde(default)]
    pub updating_nodes: i32,
    /// Hosts that are being removed or wait for removal.
    #[serde(default)]
    pub removing_nodes: i32,
    /// Hosts that have failed to join or to be changed since their last success, or to follow the version of the rollout, without those that leave.
    #[serde(default)]
    pub failed_nodes: i32,
    /// Number of further nodes that the operator may disrupt now.
    #[serde(default)]
    pub allowed_disruptions: i32,
    /// Version of the services that hosts must follow: `windows-services-<version>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_version: Option<String>,
    /// Number of nodes for each version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["version".into()]))]
    pub versions: Vec<VersionCount>,
    /// Number of hosts for each build of Windows that hosts report. The build shows the last patch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["build".into()]))]
    pub windows_builds: Vec<WindowsBuild>,
    /// Number of hosts that lack patches: their build is older than that of another host of the pool with the same version of Windows.
    #[serde(default)]
    pub hosts_behind_on_patches: i32,
    /// The rollout in progress, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// Operations that the operator would perform, in mode Plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// The host list in force, and its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<InventoryStatus>,
    /// Value of the annotation `reconcile.fluxcd.io/requestedAt` that was last acted upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
    /// User actions from annotations of the pool, one for each annotation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["annotation".into()]))]
    pub acts: Vec<RecordedAct>,
    /// Set once the operator has observed that the pool is being deleted and its hosts must stay as they are. It stays set until the pool no
    /// longer exists.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hosts_stay: bool,
    /// First ten failed hosts, sorted, without those being removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub failed_node_names: Vec<String>,
    /// Hosts that were abandoned without being deconfigured. The operator's services may still run on them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub unclean_hosts: Vec<UncleanHost>,
    /// Hosts of a list without names that were contacted and have no instance yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["address".into(), "port".into()]))]
    pub contacts: Vec<FirstContact>,
    /// Effective values, including defaults for fields that the spec does not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,
}

/// User action, recorded when the operator saw the annotation. It stays in force when the annotation is removed, for example by a tool that
/// applies the pool from Git. Another value of the annotation replaces it; an empty one revokes it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RecordedAct {
    /// Annotation without the group, for example `approve`.
    #[schemars(length(max = 63))]
    pub annotation: String,
    /// Value of the annotation.
    #[schemars(length(max = 1024))]
    pub value: String,
    /// Time when the annotation was written, as the API server recorded it.
    pub time: Time,
    /// Field manager that wrote the annotation, for example `kubectl-annotate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub by: Option<String>,
    /// Set once the action has taken effect, if it takes effect only once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub used: bool,
}

/// Hosts with one build of Windows.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct WindowsBuild {
    /// The build, for example `10.0.20348.2527`.
    pub build: String,
    /// Version of Windows to which the build belongs, if the operator knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<String>,
    /// Number of hosts.
    pub hosts: i32,
}

/// The host list in force, and its source.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct InventoryStatus {
    /// The source, for example `git https://git.example.com/hosts` or `ConfigMap windows-instances`.
    pub source: String,
    /// Revision of the source: for example `main@sha1:<commit>` for Git and Flux, and the resource version for a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Author of the revision, as recorded in the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// Time of the revision, as recorded in the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// Key of the revision's verified signature: `SSH SHA256:…` or `OpenPGP <fingerprint>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// Result of the signature check.
    pub verdict: SignatureCheck,
    /// Newer revision that is not used. The condition `InventorySynced` has the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_revision: Option<String>,
    /// Hosts that are no longer listed, and are kept until the removal is approved; at most ten, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub held_removals: Vec<String>,
}

/// Result of a signature check. `NotAsked`: the pool requires no signature.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SignatureCheck {
    /// The pool requires no signature.
    #[default]
    NotAsked,
    /// The signature is by a trusted key.
    Verified,
}

/// Number of nodes that follow a version.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct VersionCount {
    /// The version.
    pub version: String,
    /// Number of nodes.
    pub nodes: i32,
}

/// Progress of a rollout.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Version before the rollout, to which a rollback returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_version: Option<String>,
    /// Version that is rolled out.
    pub to_version: String,
    /// Start of the rollout.
    pub start_time: Time,
    /// Index of the current step, from 0; the number of steps once all are passed.
    #[serde(default)]
    pub step: i32,
    /// Time when all nodes of the step followed the version: the pause begins then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_reached_time: Option<Time>,
    /// True once all nodes have followed the version, apart from nodes that failed, are on hold, are lost or would lose settings.
    #[serde(default)]
    pub completed: bool,
    /// True if too many nodes failed, so that all return to `fromVersion`. The version is not retried.
    #[serde(default)]
    pub rolled_back: bool,
}

/// An entry of the inventory that the operator refuses.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RefusedEntry {
    /// Name of the host, or its address as long as it has no name.
    pub host: String,
    /// Reason in PascalCase.
    pub reason: String,
    /// Message with the fault and the remedy.
    pub message: String,
}

/// Result of mode Plan.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatus {
    /// Summary in a sentence.
    pub summary: String,
    /// One entry for each host with an action, at most the first hundred.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["host".into()]))]
    pub hosts: Vec<PlannedHost>,
}

/// Action of the plan for a host.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PlannedHost {
    /// Name of the host.
    pub host: String,
    /// Action, for example `Join`, `Update`, `Remove` or `Adopt`; `Withhold` for a node whose change would lose
    /// settings; `Refuse` for a node of another operator that cannot be adopted.
    pub action: String,
    /// Disruption that the action causes: `None`, `Restart`, `Drain` or `Reboot`.
    pub disruption: String,
    /// Cause of the action, in a sentence.
    pub why: String,
}

/// A host that was abandoned without being deconfigured.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct UncleanHost {
    /// Name of the host.
    pub name: String,
    /// Address of the host.
    pub address: String,
    /// Time when the host was abandoned.
    pub time: Time,
}

/// Identity of a host in a list without names, as recorded at the first contact. The key is stored before the operator writes to the host, and the
/// host must show the same key when it joins. The other fields are not verified.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct FirstContact {
    /// Address of the host, as listed.
    #[schemars(length(min = 1, max = 253))]
    pub address: String,
    /// Port of the host's SSH server.
    pub port: i32,
    /// Fingerprint of the key that the host showed, `SHA256:…`.
    #[schemars(length(max = 64))]
    pub host_key: String,
    /// The IP address that answered.
    #[schemars(length(max = 64))]
    pub dialed: String,
    /// Host name that the host reported. Absent until the operator has queried it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub hostname: Option<String>,
    /// Machine id that the host reported. Absent until the operator has queried it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub machine_id: Option<String>,
    /// Boot id that the host reported. Absent until the operator has queried it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
}

/// Effective values.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Effective {
    /// `ssh.port`
    pub ssh_port: i32,
    /// `ssh.username`
    pub ssh_username: String,
    /// `ssh.hostKeyPolicy`
    pub host_key_policy: HostKeyPolicy,
    /// `ssh.jumpHost.port`, if there is a jump host
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jump_host_port: Option<i32>,
    /// `provisioning.maxConcurrent`
    pub max_concurrent: i32,
    /// `rollout.maxUnavailable`
    pub max_unavailable: String,
    /// `rollout.minReadySeconds`
    pub min_ready_seconds: i32,
    /// `rollout.progressDeadlineSeconds`
    pub progress_deadline_seconds: i32,
    /// `rollout.ignoreLostAfterSeconds`
    pub ignore_lost_after_seconds: i32,
    /// `rollout.maxFailures`
    pub max_failures: String,
    /// `rollout.onFailure`
    pub failure_action: FailureAction,
    /// `remediation.type`
    pub remediation_type: RemediationType,
    /// `remediation.notReadySeconds`
    // A stored status may lack the field.
    #[serde(default)]
    pub not_ready_seconds: i32,
    /// `remediation.maxUnhealthy`
    pub max_unhealthy: String,
    /// `remediation.drift`
    pub drift: Drift,
    /// `drain.timeoutSeconds`
    pub drain_timeout_seconds: i32,
    /// `drain.onTimeout`
    pub drain_on_timeout: OnTimeout,
    /// `deletionPolicy`
    pub deletion_policy: DeletionPolicy,
    /// `template.spec.taints`
    #[schemars(length(max = 32))]
    pub taints: Vec<Taint>,
}
