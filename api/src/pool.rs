//! Kind WindowsNodePool: Windows hosts to run as nodes, and their settings.

mod cluster_facts;
mod drain;
mod effective;
mod inventory;
mod pause;
mod rollout;
mod status;
mod template;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use cluster_facts::*;
pub use drain::*;
pub use inventory::*;
pub use pause::*;
pub use rollout::*;
pub use status::*;
pub use template::*;

use self::inventory::{
    ADDRESS_PATTERN, ADDRESS_RULE, HOST_KEY_PATTERN, HOST_KEY_RULE, OBJECT_NAME_PATTERN, OBJECT_NAME_RULE,
};
use crate::{
    names,
    rule::{all_match, matches},
};

/// Declares Windows hosts to run as nodes: inventory, SSH access, node template and rollout policy.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[kube(
    group = "windowsmachineconfig.openshift.io",
    version = "v1alpha1",
    kind = "WindowsNodePool",
    plural = "windowsnodepools",
    shortname = "wnp",
    doc = "Declares Windows hosts to run as nodes: inventory, SSH access, node template and rollout policy.",
    category = "windows",
    status = "WindowsNodePoolStatus",
    derive = "PartialEq",
    validation = ("size(self.metadata.name) <= 63", "the name of a pool must have at most 63 characters, because it is the value of a label"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Updating", type_ = "string", json_path = ".status.conditions[?(@.type==\"Updating\")].status"),
    printcolumn(name = "Degraded", type_ = "string", json_path = ".status.conditions[?(@.type==\"Degraded\")].status"),
    printcolumn(name = "Stalled", type_ = "string", json_path = ".status.conditions[?(@.type==\"Stalled\")].status"),
    printcolumn(name = "Hosts", type_ = "integer", json_path = ".status.hosts"),
    printcolumn(name = "ReadyNodes", type_ = "integer", json_path = ".status.readyNodes"),
    printcolumn(name = "UpToDate", type_ = "integer", json_path = ".status.upToDateNodes"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failedNodes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Unavailable", type_ = "integer", json_path = ".status.unavailableNodes", priority = 1),
    printcolumn(name = "Paused", type_ = "string", json_path = ".status.conditions[?(@.type==\"Paused\")].status", priority = 1),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.desiredVersion", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.ssh) || !has(self.ssh.hostKeyPolicy) || self.ssh.hostKeyPolicy != 'Strict' || has(self.ssh.knownHostsSecretRef) || !has(self.inventory.hosts) || self.inventory.hosts.all(h, has(h.hostKey))", "hostKeyPolicy Strict needs ssh.knownHostsSecretRef, or a hostKey on every host")
)]
pub struct WindowsNodePoolSpec {
    /// Mode in which the operator works on the pool. Defaults to Apply. Plan: only report in the status what the operator would do. It completes
    /// operations in progress and begins no new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Source of the pool's hosts.
    pub inventory: Inventory,
    /// SSH access to the hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Ssh>,
    /// Metadata and settings of the nodes. A change is as little disruptive as possible: a change of labels,
    /// annotations or taints is not disruptive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<NodeTemplate>,
    /// Limits for hosts that join, are removed or are repaired, and images that hosts pull ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<Provisioning>,
    /// Limits and approval of changes to the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Eviction of pods before a disruption of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// Reaction to unhealthy nodes and to drift.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<Remediation>,
    /// Clusters that no longer exist and whose hosts this pool takes over: the UIDs of their `kube-system` Namespaces,
    /// as the refusal of such a host reports them, or `unknown` for hosts whose record names no cluster. Only hosts
    /// whose SSH host key is declared are taken over: by `hostKey` in their entry, by `ssh.knownHostsSecretRef` with
    /// hostKeyPolicy Strict, or by the annotation `trust-host-key` of their instance. They join within the limit of
    /// `provisioning.maxConcurrent`, and their pods of the other cluster end. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 63)))]
    #[x_kube(
        merge_strategy = ListMerge::Set,
        validation = all_match(
            "^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|unknown)$",
            "each must be the UID of a cluster's kube-system Namespace, or `unknown`"
        )
    )]
    pub take_over_from: Option<Vec<String>>,
    /// Treatment of hosts when they leave the pool or the pool is deleted. Defaults to Deconfigure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,
}

/// Mode in which the operator works on a pool. Defaults to Apply. Plan: only report in the status what the operator would do.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// Apply the pool.
    #[default]
    Apply,
    /// Preview in the status; the operator begins no operation.
    Plan,
}

/// A key in a Secret of the operator's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = matches(OBJECT_NAME_PATTERN, OBJECT_NAME_RULE))]
    pub name: String,
    /// Key in the Secret. Defaults to `private-key.pem`.
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
    #[x_kube(validation = matches(OBJECT_NAME_PATTERN, OBJECT_NAME_RULE))]
    pub name: String,
}

/// SSH access to the hosts.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Ssh {
    /// Private keys, tried in this order. A host that accepts another key than the first gets the first. The Secret defaults to `cloud-private-key`.
    /// Keys must not have a passphrase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 8))]
    pub private_key_secret_refs: Option<Vec<SecretKeyRef>>,
    /// Port of the SSH server. Defaults to 22.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
    /// User to log in as. Defaults to Administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 104))]
    #[x_kube(validation = matches(USERNAME_PATTERN, USERNAME_RULE))]
    pub username: Option<String>,
    /// Policy for trust in host keys. Defaults to TrustOnFirstUse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key_policy: Option<HostKeyPolicy>,
    /// Secret whose key `known_hosts` lists host keys in the format of OpenSSH. Used with hostKeyPolicy Strict only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_hosts_secret_ref: Option<SecretRef>,
    /// Jump host through which the operator reaches all hosts of the pool, as with OpenSSH's ProxyJump: the SSH session
    /// with a host runs inside the connection to the jump host, which cannot read or change it. Defaults to a direct connection. The
    /// operator does not connect through a chain of jump hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jump_host: Option<JumpHost>,
}

/// A machine with an SSH server through which the operator reaches hosts. The operator runs no command on it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct JumpHost {
    /// IPv4 or IPv6 address, or DNS name, at which the operator's pod reaches the SSH server of the jump host.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = matches(ADDRESS_PATTERN, ADDRESS_RULE))]
    pub address: String,
    /// Port of the jump host's SSH server. Defaults to 22.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
    /// User to log in to the jump host as. The user only needs the right to forward TCP connections to the hosts.
    #[schemars(length(min = 1, max = 104))]
    #[x_kube(validation = matches(
        r"^[^\x00-\x20\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\x00-\x20\x7f-\x9f])?$",
        "must be a user name without a space at its ends and without control characters"
    ))]
    pub username: String,
    /// Private key to log in to the jump host with, in a Secret of the operator's namespace. The operator offers no other
    /// key to the jump host, and does not log in to hosts with this one. It must not have a passphrase.
    pub private_key_secret_ref: SecretKeyRef,
    /// Host key that the jump host must show: `SHA256:…` fingerprint, or `<type> <base64>` as in a known_hosts file. The
    /// operator trusts no other key, whatever hostKeyPolicy is.
    #[schemars(length(max = 2048))]
    #[x_kube(validation = matches(HOST_KEY_PATTERN, HOST_KEY_RULE))]
    pub host_key: String,
}

/// Policy for trust in host keys. TrustOnFirstUse (default): the operator records the first key that a host shows, and trusts no other afterwards; a
/// host that is a node already must have a recorded key. TrustOnAdoption: the operator also trusts the first key that the host of a node of the
/// Windows Machine Config Operator shows at an address of the Node, if no key is recorded. Strict: the operator trusts only declared keys, on the
/// host or in the known hosts Secret.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HostKeyPolicy {
    /// The operator trusts only declared keys: on the host, or in the known hosts Secret.
    Strict,
    /// The operator records the first key that a host shows, and trusts no other afterwards.
    #[default]
    TrustOnFirstUse,
    /// TrustOnFirstUse, also for hosts that are nodes of the Windows Machine Config Operator and have no recorded key.
    TrustOnAdoption,
}

/// Treatment of hosts when they leave the pool or the pool is deleted. Deconfigure (default): drain the node, remove everything that the operator put
/// on the host, delete the Node. Orphan: leave host and Node unchanged and running.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeletionPolicy {
    /// Drain the node, remove everything that the operator put on the host, delete the Node.
    #[default]
    Deconfigure,
    /// Leave host and Node unchanged and running.
    Orphan,
}
