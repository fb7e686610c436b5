//! What the operator says of a pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeletionPolicy, Drift, FailureAction, HostKeyPolicy, OnTimeout, Order, RemediationType, Taint};

/// What the operator sees and does.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct WindowsNodePoolStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What is so, since when, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Hosts in the inventory.
    #[serde(default)]
    pub nodes: i32,
    /// Hosts whose node has joined and is Ready.
    #[serde(default)]
    pub ready_nodes: i32,
    /// Ready nodes that have been so for `minReadySeconds` and take pods.
    #[serde(default)]
    pub available_nodes: i32,
    /// Ready nodes that follow the desired version.
    #[serde(default)]
    pub up_to_date_nodes: i32,
    /// Nodes that joined once and are not available now.
    #[serde(default)]
    pub unavailable_nodes: i32,
    /// Hosts that are being joined.
    #[serde(default)]
    pub joining_nodes: i32,
    /// Nodes that are being changed, restarted or repaired.
    #[serde(default)]
    pub updating_nodes: i32,
    /// Hosts that are being removed, or wait for it.
    #[serde(default)]
    pub removing_nodes: i32,
    /// Hosts whose last attempt failed and that wait for the next.
    #[serde(default)]
    pub failed_nodes: i32,
    /// How many more nodes the operator may disturb now.
    #[serde(default)]
    pub allowed_disruptions: i32,
    /// Version of the services that hosts shall follow: `windows-services-<version>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_version: Option<String>,
    /// How many nodes follow which version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["version".into()]))]
    pub versions: Vec<VersionCount>,
    /// The change that reaches the nodes, or was the last to do so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// In mode Plan: what would be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// The host list that is in force, and where it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<InventoryStatus>,
    /// Value of the annotation `reconcile.fluxcd.io/requestedAt` that was last acted upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
    /// Some of the hosts that failed, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub failed_node_names: Vec<String>,
    /// Hosts that were given up without being deconfigured, and may still run what was put on them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub unclean_hosts: Vec<UncleanHost>,
    /// Hosts of a list without names that were contacted and have no instance yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["address".into(), "port".into()]))]
    pub contacts: Vec<FirstContact>,
    /// The values in force where the spec says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,
}

/// The host list that is in force, and where it comes from.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct InventoryStatus {
    /// The source, as `git https://git.example.com/hosts` or `ConfigMap windows-instances`.
    pub source: String,
    /// Its revision: for Git and Flux as `main@sha1:<commit>`, for an object its resource version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Who made the revision, as the commit says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// When it was made, as the commit says; RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Whose key has signed it: `SSH SHA256:…` or `OpenPGP <fingerprint>`, once that was checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// What came of the check of the signature.
    pub verdict: Verdict,
    /// Newer revision that is not used. Why is in the condition `InventorySynced`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_revision: Option<String>,
    /// Hosts that are not listed any more, and are kept until the removal is approved; at most ten, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub held_removals: Vec<String>,
}

/// What came of the check of a signature. `NotAsked`: the pool asks for none.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Verdict {
    /// The pool asks for none.
    #[default]
    NotAsked,
    /// It is by a key that is believed.
    Verified,
}

/// How many nodes follow a version.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct VersionCount {
    /// The version.
    pub version: String,
    /// How many.
    pub nodes: i32,
}

/// How a change reaches the nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Version before it: what is gone back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_version: Option<String>,
    /// Version that it leads to.
    pub to_version: String,
    /// When it began, RFC 3339.
    pub start_time: String,
    /// The step that it is in, from 0; as many as there are steps once all are passed.
    #[serde(default)]
    pub step: i32,
    /// When the nodes of the step were all there, RFC 3339: the pause counts from then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_reached_time: Option<String>,
    /// Whether all nodes have got there once.
    #[serde(default)]
    pub completed: bool,
    /// Whether too many nodes failed, so that all go back to `fromVersion`. The version is not tried again.
    #[serde(default)]
    pub rolled_back: bool,
}

/// What would be done.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatus {
    /// In a sentence.
    pub summary: String,
    /// For each host, at most the first hundred that something would be done with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["host".into()]))]
    pub hosts: Vec<PlannedHost>,
}

/// What would be done with a host.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PlannedHost {
    /// Its name.
    pub host: String,
    /// What, for example `Join`, `Update`, `Remove` or `Adopt`; `Withhold` for a node whose change would lose settings.
    pub action: String,
    /// How disruptive: `None`, `Restart`, `Drain` or `Reboot`.
    pub disruption: String,
    /// Why.
    pub why: String,
}

/// A host that was given up without being deconfigured.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct UncleanHost {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// When it was given up, RFC 3339.
    pub time: String,
}

/// What a host of a list without names showed and said when it was contacted to ask for its name. The key is stored before anything is
/// put on the host, and the host has to show the same one when it joins. The rest is the host's own word.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct FirstContact {
    /// Its address, as listed.
    #[schemars(length(min = 1, max = 253))]
    pub address: String,
    /// Port of its SSH server.
    pub port: i32,
    /// Fingerprint of its host key, `SHA256:…`.
    #[schemars(length(max = 64))]
    pub host_key: String,
    /// The IP address that answered.
    #[schemars(length(max = 64))]
    pub dialed: String,
    /// What it calls itself, once it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub hostname: Option<String>,
    /// Its machine id, once it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub machine_id: Option<String>,
    /// Its boot id, once it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
}

/// The values in force.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Effective {
    /// `ssh.port`
    pub ssh_port: i32,
    /// `ssh.username`
    pub ssh_username: String,
    /// `ssh.hostKeyPolicy`
    pub host_key_policy: HostKeyPolicy,
    /// `ssh.connectTimeoutSeconds`
    pub connect_timeout_seconds: i32,
    /// `ssh.commandTimeoutSeconds`
    pub command_timeout_seconds: i32,
    /// `provisioning.maxConcurrent`
    pub max_concurrent: i32,
    /// `rollout.maxUnavailable`
    pub max_unavailable: String,
    /// `rollout.minReadySeconds`
    pub min_ready_seconds: i32,
    /// `rollout.progressDeadlineSeconds`
    pub progress_deadline_seconds: i32,
    /// `rollout.order`
    pub order: Order,
    /// `rollout.ignoreLostAfterSeconds`
    pub ignore_lost_after_seconds: i32,
    /// `rollout.failurePolicy.maxFailures`
    pub max_failures: String,
    /// `rollout.failurePolicy.action`
    pub failure_action: FailureAction,
    /// `remediation.type`
    pub remediation_type: RemediationType,
    /// `remediation.unreachableSeconds`
    pub unreachable_seconds: i32,
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
