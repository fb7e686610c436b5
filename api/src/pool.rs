use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{IntOrPercent, names};

/// What a person asks for: a set of Windows hosts that shall be nodes of this cluster, how to reach them, what their
/// nodes shall look like, and how careful to be.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[kube(
    group = "windowsmachineconfig.openshift.io",
    version = "v1alpha1",
    kind = "WindowsNodePool",
    plural = "windowsnodepools",
    shortname = "wnp",
    doc = "A set of Windows hosts that shall be nodes of this cluster, how to reach them, what their nodes shall look like, and how careful to be.",
    category = "windows",
    status = "WindowsNodePoolStatus",
    derive = "PartialEq",
    validation = ("size(self.metadata.name) <= 63", "the name of a pool is used as a label value: at most 63 characters"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyNodes"),
    printcolumn(name = "UpToDate", type_ = "integer", json_path = ".status.upToDateNodes"),
    printcolumn(name = "Unavailable", type_ = "integer", json_path = ".status.unavailableNodes"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failedNodes"),
    printcolumn(name = "Updating", type_ = "string", json_path = ".status.conditions[?(@.type==\"Updating\")].status"),
    printcolumn(name = "Degraded", type_ = "string", json_path = ".status.conditions[?(@.type==\"Degraded\")].status"),
    printcolumn(name = "Joining", type_ = "integer", json_path = ".status.joiningNodes", priority = 1),
    printcolumn(name = "Removing", type_ = "integer", json_path = ".status.removingNodes", priority = 1),
    printcolumn(name = "Allowed", type_ = "integer", json_path = ".status.allowedDisruptions", priority = 1),
    printcolumn(name = "MaxUnavailable", type_ = "string", json_path = ".status.effective.maxUnavailable", priority = 1),
    printcolumn(name = "Paused", type_ = "string", json_path = ".status.conditions[?(@.type==\"Paused\")].status", priority = 1),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.desiredVersion", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.ssh) || !has(self.ssh.hostKeyPolicy) || self.ssh.hostKeyPolicy != 'Strict' || has(self.ssh.knownHostsRef) || self.inventory.hosts.all(h, has(h.hostKey))", "hostKeyPolicy Strict needs ssh.knownHostsRef, or a hostKey on every host")
)]
pub struct WindowsNodePoolSpec {
    /// Where the hosts of the pool come from.
    pub inventory: Inventory,
    /// How to log in to the hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Ssh>,
    /// What the nodes shall look like. Changes are made in place; no node is drained for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<NodeTemplate>,
    /// How new hosts are joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<Provisioning>,
    /// How many nodes may be disturbed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// How pods are moved away before a node is disturbed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// What happens to the hosts when they leave the pool or the pool is deleted. Deconfigure if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,
}

/// Exactly one source of hosts.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("has(self.hosts)", "exactly one source of hosts must be set: hosts"))]
pub struct Inventory {
    /// The hosts themselves. For more than 1000, use several pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1000))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub hosts: Option<Vec<Host>>,
}

/// One Windows host.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Host {
    /// Name of the host, and of its Node: lower-case letters, digits and `-`.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// IPv4 or IPv6 address, or DNS name, to reach the host's SSH server at.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^([0-9A-Za-z]([-.0-9A-Za-z]*[0-9A-Za-z])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*)$")
    )]
    pub address: String,
    /// Port of the SSH server, if not the pool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
    /// User to log in as, if not the pool's. Must be an administrator of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 104), regex(pattern = r#"^[^\s"/:;|=,+*?<>]+$"#))]
    pub username: Option<String>,
    /// Host key to insist on: `SHA256:…` fingerprint, or `<type> <base64>` as in a known_hosts file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 2048),
        regex(pattern = r"^(SHA256:[0-9A-Za-z+/]{43}=?|(ssh|ecdsa|sk)-[-a-z0-9@.]+ [0-9A-Za-z+/]+=*)$")
    )]
    pub host_key: Option<String>,
    /// Private key for this host alone, instead of the pool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_key_secret_ref: Option<SecretKeyRef>,
    /// Labels for this host's Node, beside those of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32))]
    pub labels: Option<BTreeMap<String, String>>,
}

/// A key in a Secret of the operator's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in it. `private-key.pem` if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub key: Option<String>,
}

impl SecretKeyRef {
    /// Key in the Secret.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(names::DEFAULT_KEY_SECRET_KEY)
    }
}

/// A Secret of the operator's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// How to log in to the hosts.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Ssh {
    /// Private keys, tried in this order. The Secret `cloud-private-key` if not set. Keys must not have a passphrase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 8))]
    pub private_key_secret_refs: Option<Vec<SecretKeyRef>>,
    /// Port of the SSH server. 22 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
    /// User to log in as. Administrator if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 104), regex(pattern = r#"^[^\s"/:;|=,+*?<>]+$"#))]
    pub username: Option<String>,
    /// Which host keys are believed. TrustOnFirstUse if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key_policy: Option<HostKeyPolicy>,
    /// Secret whose key `known_hosts` lists host keys in the format of OpenSSH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_hosts_ref: Option<SecretRef>,
    /// Seconds until a host that does not answer, or does not finish the log-in, is given up for this attempt. 15 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub connect_timeout_seconds: Option<i32>,
    /// Seconds that one command on a host may take. 600 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 7200))]
    pub command_timeout_seconds: Option<i32>,
}

/// Which host keys are believed. TrustOnFirstUse if not set: the first key that a host shows is remembered, and no other is
/// believed afterwards. Strict: only keys that are declared, on the host or in the known hosts Secret.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HostKeyPolicy {
    /// Only keys that are declared: on the host, or in the known hosts Secret.
    Strict,
    /// The first key that a host shows is remembered, and no other is believed afterwards.
    #[default]
    TrustOnFirstUse,
}

/// What the nodes shall look like.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct NodeTemplate {
    /// Labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Taints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<TemplateSpec>,
}

/// Labels and annotations that are kept true on every node of the pool.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.labels) || self.labels.all(k, !k.startsWith('windowsmachineconfig.openshift.io/') && (!(k.contains('kubernetes.io/') || k.contains('k8s.io/')) || k.startsWith('node-role.kubernetes.io/') || k.startsWith('node.kubernetes.io/') || k.startsWith('topology.kubernetes.io/')))", "labels with a key under kubernetes.io, k8s.io or windowsmachineconfig.openshift.io belong to others; only node-role.kubernetes.io/, node.kubernetes.io/ and topology.kubernetes.io/ may be set"),
    validation = ("!has(self.annotations) || self.annotations.all(k, !k.startsWith('windowsmachineconfig.openshift.io/') && !k.contains('kubernetes.io/') && !k.contains('k8s.io/'))", "annotations with a key under kubernetes.io, k8s.io or windowsmachineconfig.openshift.io belong to others")
)]
pub struct TemplateMetadata {
    /// Labels of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 64))]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 64))]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Taints that are kept true on every node of the pool.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct TemplateSpec {
    /// Taints of the nodes. `os=Windows:NoSchedule` if not set; an empty list means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into(), "effect".into()]))]
    pub taints: Option<Vec<Taint>>,
}

/// A taint of a node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!self.key.startsWith('node.kubernetes.io/') && !self.key.startsWith('windowsmachineconfig.openshift.io/')", "taints with a key under node.kubernetes.io or windowsmachineconfig.openshift.io belong to others"))]
pub struct Taint {
    /// Key.
    #[schemars(
        length(min = 1, max = 316),
        regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub key: String,
    /// Value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"))]
    pub value: Option<String>,
    /// Effect on pods that do not tolerate it.
    pub effect: TaintEffect,
}

/// Effect of a taint.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaintEffect {
    /// No new pods.
    NoSchedule,
    /// No new pods if it can be helped.
    PreferNoSchedule,
    /// No pods.
    NoExecute,
}

impl TaintEffect {
    /// As the API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

/// How new hosts are joined. Joining disturbs nobody, so it is not bounded by `rollout.maxUnavailable`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Provisioning {
    /// How many hosts join at the same time. 10 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_concurrent: Option<i32>,
}

/// How many nodes may be disturbed at once.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// Nodes that may be unavailable at once because of the operator: a number, or a share of the pool that is rounded
    /// down but is at least one. 1 if not set. Nodes that are unavailable for other reasons count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrPercent>,
    /// Seconds that a node must have been Ready to count as available. 0 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub min_ready_seconds: Option<i32>,
    /// Seconds after which an operation on a host that has not ended makes the pool Stalled. It goes on being tried.
    /// 3600 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 604_800))]
    pub progress_deadline_seconds: Option<i32>,
    /// Begin no new operation on any host. What has begun is finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// How pods are moved away before a node is disturbed.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.onTimeout) || self.onTimeout != 'Force' || (has(self.timeoutSeconds) && self.timeoutSeconds >= 60)", "onTimeout Force deletes pods against their budgets: say a timeoutSeconds of at least 60"))]
pub struct Drain {
    /// Seconds that a drain may take before `onTimeout` applies; 0 means for ever. 3600 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub timeout_seconds: Option<i32>,
    /// What to do then. Wait if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// Grace period for every pod, instead of the pods' own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub grace_period_seconds: Option<i32>,
    /// Whether pods with emptyDir volumes may be evicted, which loses those volumes. true if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_empty_dir_data: Option<bool>,
    /// Whether pods that no controller would make again may be evicted. true if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evict_unmanaged: Option<bool>,
    /// Only these pods are evicted. All if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// Pods that have been terminating for longer than this are not waited for; 0 means that all are. 0 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub skip_wait_for_delete_timeout_seconds: Option<i32>,
    /// Whether to wait until the volumes of evicted pods are detached. true if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_volume_detach: Option<bool>,
    /// Exceptions for some pods. The first rule that fits a pod counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub pod_rules: Option<Vec<PodRule>>,
}

/// What to do when a drain takes too long. Wait if not set: go on waiting, and say so. Abort: give the drain up, lift the cordon,
/// try again later. Force: delete the pods that are left, whatever their budgets say, with the grace period that they ask for.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnTimeout {
    /// Go on waiting, and say so.
    #[default]
    Wait,
    /// Give the drain up, lift the cordon, try again later.
    Abort,
    /// Delete the pods that are left, whatever their budgets say, with the grace period that they ask for.
    Force,
}

/// An exception for some pods.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PodRule {
    /// Pods that the rule is for. All if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Namespaces that the rule is for. All if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// What is done with the pods.
    pub behavior: PodBehavior,
    /// Pods with a lower number go first; the next ones wait until they are gone. 0 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub order: Option<i32>,
}

/// What a drain does with a pod. Drain: evict it. Skip: leave it. WaitCompleted: wait until it ends by itself.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PodBehavior {
    /// Evict it.
    #[default]
    Drain,
    /// Leave it.
    Skip,
    /// Wait until it ends by itself.
    WaitCompleted,
}

/// What happens to hosts when they leave the pool or the pool is deleted. Deconfigure if not set: drain the node, take away
/// everything that the operator put on the host, delete the Node. Orphan: leave host and Node as they are, running.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeletionPolicy {
    /// Drain the node, take away everything that the operator put on the host, delete the Node.
    #[default]
    Deconfigure,
    /// Leave host and Node as they are, running.
    Orphan,
}

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
    /// Some of the hosts that failed, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub failed_node_names: Vec<String>,
    /// Hosts that were given up without being deconfigured, and may still run what was put on them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub unclean_hosts: Vec<UncleanHost>,
    /// The values in force where the spec says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,
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

fn seconds(value: Option<i32>, default: u32) -> Duration {
    Duration::from_secs(u64::from(value.and_then(|v| u32::try_from(v).ok()).unwrap_or(default)))
}

/// Effective values: what is set, else the documented default. The CRD itself has no defaults, because a value that the
/// API server adds makes a GitOps tool see a difference for ever.
impl WindowsNodePoolSpec {
    /// Hosts of the inventory.
    pub fn hosts(&self) -> &[Host] {
        self.inventory.hosts.as_deref().unwrap_or_default()
    }
    /// SSH settings.
    pub fn ssh(&self) -> Ssh {
        self.ssh.clone().unwrap_or_default()
    }
    /// Rollout settings.
    pub fn rollout(&self) -> Rollout {
        self.rollout.clone().unwrap_or_default()
    }
    /// Drain settings.
    pub fn drain(&self) -> Drain {
        self.drain.clone().unwrap_or_default()
    }
    /// Deletion policy.
    pub fn deletion_policy(&self) -> DeletionPolicy {
        self.deletion_policy.unwrap_or_default()
    }
    /// How many hosts join at once.
    pub fn max_concurrent(&self) -> u32 {
        self.provisioning.as_ref().and_then(|p| p.max_concurrent).and_then(|n| u32::try_from(n).ok()).unwrap_or(10)
    }
    /// Labels of the template.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.template.as_ref().and_then(|t| t.metadata.as_ref()).and_then(|m| m.labels.clone()).unwrap_or_default()
    }
    /// Annotations of the template.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.template.as_ref().and_then(|t| t.metadata.as_ref()).and_then(|m| m.annotations.clone()).unwrap_or_default()
    }
    /// Taints of the template.
    pub fn taints(&self) -> Vec<Taint> {
        let set = self.template.as_ref().and_then(|t| t.spec.as_ref()).and_then(|s| s.taints.clone());
        set.unwrap_or_else(|| vec![names::default_taint()])
    }
    /// Everything that is in force, for the status.
    pub fn effective(&self) -> Effective {
        let (ssh, rollout, drain) = (self.ssh(), self.rollout(), self.drain());
        let int = |d: Duration| i32::try_from(d.as_secs()).unwrap_or(i32::MAX);
        Effective {
            ssh_port: i32::from(ssh.port()),
            ssh_username: ssh.username().into(),
            host_key_policy: ssh.host_key_policy.unwrap_or_default(),
            connect_timeout_seconds: int(ssh.connect_timeout()),
            command_timeout_seconds: int(ssh.command_timeout()),
            max_concurrent: i32::try_from(self.max_concurrent()).unwrap_or(i32::MAX),
            max_unavailable: rollout.max_unavailable().to_string(),
            min_ready_seconds: int(rollout.min_ready()),
            progress_deadline_seconds: int(rollout.progress_deadline()),
            drain_timeout_seconds: int(drain.timeout()),
            drain_on_timeout: drain.on_timeout.unwrap_or_default(),
            deletion_policy: self.deletion_policy(),
            taints: self.taints(),
        }
    }
}

impl Ssh {
    /// Port, 1 to 65535.
    pub fn port(&self) -> u16 {
        self.port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0).unwrap_or(22)
    }
    /// User to log in as.
    pub fn username(&self) -> &str {
        self.username.as_deref().unwrap_or("Administrator")
    }
    /// Private keys, in order.
    pub fn private_keys(&self) -> Vec<SecretKeyRef> {
        self.private_key_secret_refs
            .clone()
            .unwrap_or_else(|| vec![SecretKeyRef { name: names::DEFAULT_KEY_SECRET.into(), key: None }])
    }
    /// Limit of connecting and logging in.
    pub fn connect_timeout(&self) -> Duration {
        seconds(self.connect_timeout_seconds, 15)
    }
    /// Limit of one command.
    pub fn command_timeout(&self) -> Duration {
        seconds(self.command_timeout_seconds, 600)
    }
}

impl Rollout {
    /// Nodes that may be unavailable at once.
    pub fn max_unavailable(&self) -> IntOrPercent {
        self.max_unavailable.unwrap_or(IntOrPercent::Int(1))
    }
    /// Time until a Ready node counts as available.
    pub fn min_ready(&self) -> Duration {
        seconds(self.min_ready_seconds, 0)
    }
    /// Limit of one operation.
    pub fn progress_deadline(&self) -> Duration {
        seconds(self.progress_deadline_seconds, 3600)
    }
    /// Whether nothing new is begun.
    pub fn paused(&self) -> bool {
        self.paused.unwrap_or(false)
    }
}

impl Drain {
    /// Limit of a drain; zero means none.
    pub fn timeout(&self) -> Duration {
        seconds(self.timeout_seconds, 3600)
    }
}
