//! Sources of the hosts of a pool.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SecretRef, Taint};
use crate::{IntOrPercent, rule::matches};

/// Exactly one source of hosts, and the limit for the removal of hosts.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "[has(self.hosts), has(self.configMapRef), has(self.machineSetRef), has(self.git), has(self.sourceRef)].filter(x, x).size() == 1",
    "exactly one source of hosts must be set: hosts, configMapRef, machineSetRef, git or sourceRef",
))]
pub struct Inventory {
    /// List of the hosts. For more than 1000, use several pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1000))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub hosts: Option<Vec<Host>>,
    /// ConfigMap in the operator's namespace: each key is the address of a host, each value `username=<name>`. The ConfigMap `windows-instances` of
    /// the Windows Machine Config Operator is one; the operator creates a pool for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ConfigMapRef>,
    /// The Windows Machines of a MachineSet, or those that no MachineSet owns. The operator creates pools for MachineSets with Windows Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_set_ref: Option<MachineSetRef>,
    /// A Git repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSource>,
    /// An object of Flux whose artifact contains the host list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ref: Option<SourceRef>,
    /// Number of hosts that one change of the list may remove, or a percentage of the existing hosts, rounded down but at least one. If more would
    /// leave, none leaves until the annotation `approve-removal` of the pool names the number or the revision. If not set, it is `10%` for `git` and
    /// `sourceRef`; for `hosts` and `configMapRef`, a change that removes at least three hosts, and half of them or more, waits for the annotation.
    /// With any value, a missing or empty list removes no host until that annotation confirms it, and the deletion of a Machine removes its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_removals: Option<IntOrPercent>,
}

/// A ConfigMap in the operator's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapRef {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = matches(OBJECT_NAME_PATTERN, OBJECT_NAME_RULE))]
    pub name: String,
}

/// The Windows Machines of a MachineSet, or those that no MachineSet owns.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineSetRef {
    /// API group of the Machines. Defaults to `machine.openshift.io`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<MachineGroup>,
    /// Namespace of the Machines. Defaults to `openshift-machine-api`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = matches(OBJECT_NAME_PATTERN, OBJECT_NAME_RULE))]
    pub namespace: Option<String>,
    /// Name of the MachineSet. If not set: the Machines of the namespace that no MachineSet owns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = matches(OBJECT_NAME_PATTERN, OBJECT_NAME_RULE))]
    pub name: Option<String>,
}

/// API group of Machines. Defaults to `machine.openshift.io`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum MachineGroup {
    /// Machine API of OpenShift.
    #[default]
    #[serde(rename = "machine.openshift.io")]
    OpenShift,
    /// Cluster API.
    #[serde(rename = "cluster.x-k8s.io")]
    ClusterApi,
}

/// A Git repository. Fields and Secret keys are the same as in Flux's `GitRepository`, except that durations are in seconds.
/// Pools that name the same repository share the fetched data.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct GitSource {
    /// URL of the repository: `https://…` or `ssh://…`. Without a password or token, which belong in the Secret. Only an ssh URL may have a user
    /// name.
    #[schemars(length(min = 9, max = 2048))]
    #[x_kube(validation = matches(
        r"^(https://[^@?#\s]+|ssh://([^@:/?#\s]+@)?[^@?#\s]+)$",
        "must begin with https:// or ssh:// and have no password, token, query, fragment or space: put credentials into the Secret of secretRef"
    ))]
    pub url: String,
    /// Branch, tag, version range or commit. Defaults to the branch of the server's HEAD.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<GitRef>,
    /// File or directory in the repository with the hosts. Defaults to the whole repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = ("!self.split('/').exists(word, word == '..')", "must not contain `..`: name a path below the root"))]
    pub path: Option<String>,
    /// Seconds between two fetches; each is up to 5 % earlier or later, so that not all pools fetch at once. Defaults to 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub interval_seconds: Option<i32>,
    /// Secret with the credentials. For https `username` and `password`, or `bearerToken`; `tls.crt` and `tls.key`;
    /// `ca.crt`. For ssh `identity` and `known_hosts`, and `password` if the identity has a passphrase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
    /// Secret with the proxy to use for https: `address`, and `username` and `password` if the proxy requires them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_secret_ref: Option<SecretRef>,
    /// Signature that a revision must have. A revision without it is not used, and the previous revision stays in
    /// force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<GitVerify>,
    /// Use a revision although it does not descend from the one in use (for example after a force push), or has
    /// a lower version. Defaults to `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_non_fast_forward: Option<bool>,
}

/// Revision of a repository: the first of commit, semver, tag and branch that is set.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct GitRef {
    /// Branch: its newest commit is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub branch: Option<String>,
    /// Tag: its commit is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub tag: Option<String>,
    /// Range of versions, for example `>=1.0.0 <2.0.0`: the highest tag in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub semver: Option<String>,
    /// Full commit hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = matches("^([0-9a-f]{40}|[0-9a-f]{64})$", "must be a full commit hash: 40 or 64 digits and letters a to f"))]
    pub commit: Option<String>,
}

/// Signature that a revision must have.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct GitVerify {
    /// Objects that must be signed: the commit, the tag, or both. Defaults to HEAD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<VerifyMode>,
    /// Secret with the trusted keys: OpenPGP public keys in keys that end in `.asc`, SSH public keys as in an
    /// `authorized_keys` file in keys that end in `.sshpub`.
    pub secret_ref: SecretRef,
}

/// Object that must be signed. Defaults to HEAD: the commit. Tag: the tag. `TagAndHEAD`: both.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum VerifyMode {
    /// Signature of the commit.
    #[default]
    #[serde(rename = "HEAD")]
    Head,
    /// Signature of the tag.
    Tag,
    /// Signatures of tag and commit.
    #[serde(rename = "TagAndHEAD")]
    TagAndHead,
}

/// An object of Flux whose artifact contains the host list.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "self.kind != 'ExternalArtifact' || !has(self.requireVerified) || !self.requireVerified",
    "Flux does not verify an ExternalArtifact: leave requireVerified out, or name the GitRepository or OCIRepository from which it is made",
))]
pub struct SourceRef {
    /// Kind of the object.
    pub kind: SourceKind,
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = matches(OBJECT_NAME_PATTERN, OBJECT_NAME_RULE))]
    pub name: String,
    /// Namespace of the object.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = matches(OBJECT_NAME_PATTERN, OBJECT_NAME_RULE))]
    pub namespace: String,
    /// File or directory in the artifact with the hosts. Defaults to the whole artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = ("!self.split('/').exists(word, word == '..')", "must not contain `..`: name a path below the root"))]
    pub path: Option<String>,
    /// Use only an artifact whose signature Flux has verified. Defaults to `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_verified: Option<bool>,
}

/// Kind of Flux that has an artifact.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum SourceKind {
    /// A Git repository.
    #[default]
    GitRepository,
    /// An OCI artifact.
    OCIRepository,
    /// An artifact of another controller.
    ExternalArtifact,
}

/// Pattern for names of Windows users, optionally with a domain before them: no control characters and none of
/// `" / \ [ ] : ; | = , + * ? < >`, no space at either end, and not only dots and spaces.
pub const USERNAME_PATTERN: &str = r#"^([^\x00-\x20\x7f-\x9f"/\\\[\]:;|=,+*?<>]+\\)?([^\x00-\x20\x7f-\x9f"/\\\[\]:;|=,+*?<>.]|\.[^\x00-\x1f\x7f-\x9f"/\\\[\]:;|=,+*?<>]*[^\x00-\x20\x7f-\x9f"/\\\[\]:;|=,+*?<>.])([^\x00-\x1f\x7f-\x9f"/\\\[\]:;|=,+*?<>]*[^\x00-\x20\x7f-\x9f"/\\\[\]:;|=,+*?<>])?$"#;

/// Message for a text that does not match [`USERNAME_PATTERN`].
pub(super) const USERNAME_RULE: &str = r#"must be a Windows user name, with or without a domain and \ before it, that has no space at its ends, no control character and none of " / \ [ ] : ; | = , + * ? < >"#;

/// Pattern for names of Kubernetes objects (DNS subdomains), and of hosts, after which their Nodes are named.
pub(super) const OBJECT_NAME_PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// Message for a text that does not match [`OBJECT_NAME_PATTERN`].
pub(super) const OBJECT_NAME_RULE: &str = "must be the name of an object: lower-case letters, digits and `-`, with `.` between parts that begin and end with a letter or digit";

/// Pattern for addresses, as far as a regular expression can check them.
pub(super) const ADDRESS_PATTERN: &str =
    r"^([0-9A-Za-z_]([-._0-9A-Za-z]*[0-9A-Za-z_])?\.?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*)$";

/// Message for a text that does not match [`ADDRESS_PATTERN`].
pub(super) const ADDRESS_RULE: &str = "must be an IPv4 address, an IPv6 address without brackets and zone, or a DNS name: set `port` and `username` for the rest";

/// Pattern for [`Host::host_key`], as far as a regular expression can check it.
pub(super) const HOST_KEY_PATTERN: &str =
    r"^(SHA256:[0-9A-Za-z+/]{43}=?|(ssh|ecdsa|sk)-[-a-z0-9@.]+ [0-9A-Za-z+/]+=*)$";

/// Message for a text that does not match [`HOST_KEY_PATTERN`].
pub(super) const HOST_KEY_RULE: &str = "must be the fingerprint `SHA256:…`, or the type and the base64 text of the key as in a known_hosts file, without address and comment";

/// One Windows host.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Host {
    /// Name of the host, and of its Node: lower-case letters, digits, `-`, and `.` between them.
    #[schemars(length(min = 1, max = 63), regex(pattern = OBJECT_NAME_PATTERN))]
    #[x_kube(validation = matches(
        OBJECT_NAME_PATTERN,
        "must be lower-case letters, digits and `-`, with `.` between parts that begin and end with a letter or digit, for example win-1"
    ))]
    pub name: String,
    /// IPv4 or IPv6 address, or DNS name, of the host's SSH server.
    #[schemars(length(min = 1, max = 253), regex(pattern = ADDRESS_PATTERN))]
    #[x_kube(validation = matches(ADDRESS_PATTERN, ADDRESS_RULE))]
    pub address: String,
    /// Port of the SSH server, if not the pool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
    /// User to log in as, if not the pool's. Must be an administrator of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 104), regex(pattern = USERNAME_PATTERN))]
    #[x_kube(validation = matches(USERNAME_PATTERN, USERNAME_RULE))]
    pub username: Option<String>,
    /// Required host key: `SHA256:…` fingerprint, or `<type> <base64>` as in a known_hosts file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = HOST_KEY_PATTERN))]
    // The pattern is split and less strict, because the whole one exceeds the API server's cost limit for 1000 hosts.
    #[x_kube(validation = (
        r"self.startsWith('SHA256:') ? self.matches('^SHA256:[0-9A-Za-z+/]{43}=?$') : self.matches(r'^(ssh|ecdsa|sk)-\S+ [\w+/]+=*$')",
        HOST_KEY_RULE
    ))]
    pub host_key: Option<String>,
    /// Labels for this host's Node, in addition to those of the template. They take precedence over labels of the template with the same key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = serde_json::json!({"type": "string", "maxLength": 63})))]
    // CEL assumes no limit for the length of keys, so only a comparison of prefixes is cheap enough for 1000 hosts. The operator checks the rest.
    #[x_kube(
        validation = ("self.all(k, !k.startsWith('windowsmachineconfig.openshift.io/') && !k.startsWith('kubernetes.io/') && !k.startsWith('node-role.kubernetes.io/control-plane') && !k.startsWith('node-role.kubernetes.io/master'))", "labels with a key under kubernetes.io or windowsmachineconfig.openshift.io are reserved, and a Windows node cannot have the role of a control plane"),
        validation = (r"self.all(k, self[k].matches(r'^([A-Za-z0-9]([\w.-]*[A-Za-z0-9])?)?$'))", "labels must have values of at most 63 letters, digits, -, _ and ., with a letter or digit at both ends")
    )]
    pub labels: Option<BTreeMap<String, String>>,
    /// Taints for this host's Node, in addition to those of the template. A taint of the template with the same key and effect gets the
    /// value of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into(), "effect".into()]))]
    pub taints: Option<Vec<Taint>>,
}
