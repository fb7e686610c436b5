//! Where the hosts of a pool come from.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SecretKeyRef, SecretRef};
use crate::IntOrPercent;

/// Exactly one source of hosts, and how careful to be when hosts leave it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "[has(self.hosts), has(self.configMapRef), has(self.machineSetRef), has(self.git), has(self.sourceRef)].filter(x, x).size() == 1",
    "exactly one source of hosts must be set: hosts, configMapRef, machineSetRef, git or sourceRef",
))]
pub struct Inventory {
    /// The hosts themselves. For more than 1000, use several pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1000))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub hosts: Option<Vec<Host>>,
    /// A ConfigMap in the operator's namespace: each key is the address of a host, each value `username=<name>`. The
    /// `windows-instances` of the Windows Machine Config Operator is one; a pool for it is made by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ConfigMapRef>,
    /// The Machines of a MachineSet. Pools for those with Windows Machines are made by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_set_ref: Option<MachineSetRef>,
    /// A Git repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSource>,
    /// An object of Flux whose artifact has the host list in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ref: Option<SourceRef>,
    /// What holds for hosts that are not listed any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal: Option<Removal>,
}

/// A ConfigMap in the operator's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// The Machines of a MachineSet.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineSetRef {
    /// Whose Machines. `machine.openshift.io` if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<MachineGroup>,
    /// Its namespace. `openshift-machine-api` if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
    /// Its name. The Machines that no MachineSet owns if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
}

/// An API that makes machines. `machine.openshift.io` if not set.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum MachineGroup {
    /// That of OpenShift.
    #[default]
    #[serde(rename = "machine.openshift.io")]
    OpenShift,
    /// Cluster API.
    #[serde(rename = "cluster.x-k8s.io")]
    ClusterApi,
}

/// A Git repository. Fields and Secret keys are those of Flux's `GitRepository`. Pools that name the same repository share what is
/// fetched.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct GitSource {
    /// `https://…` or `ssh://…`. No password and no token: they belong into the Secret. A user name for ssh only.
    #[schemars(length(min = 9, max = 2048), regex(pattern = r"^(https://[^@?#\s]+|ssh://([^@:/?#\s]+@)?[^@?#\s]+)$"))]
    pub url: String,
    /// What of it. The branch that the server's HEAD names if not set.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<GitRef>,
    /// File or directory in it with the hosts. The whole repository if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = ("!self.split('/').exists(word, word == '..')", "must stay inside: `..` leads out of it"))]
    pub path: Option<String>,
    /// How often to fetch, for example `5m`, at most `168h`; each time is up to 5 % earlier or later, so that not all pools fetch at once.
    /// `5m` if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    #[x_kube(validation = ("duration(self) <= duration('168h')", "must be at most 168h; set `suspend` to stop fetching"))]
    pub interval: Option<String>,
    /// How long one fetch may take, for example `60s`, at most `1h`. `60s` if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m))+$"))]
    #[x_kube(validation = ("duration(self) <= duration('1h')", "must be at most 1h"))]
    pub timeout: Option<String>,
    /// Secret to log in with. For https `username` and `password`, or `bearerToken`; `tls.crt` and `tls.key`; `ca.crt`. For ssh
    /// `identity` and `known_hosts`, and `password` if the identity has a passphrase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
    /// Secret with the proxy to use for https: `address`, and `username` and `password` if it wants them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_secret_ref: Option<SecretRef>,
    /// Whose signature a revision must have. What is not signed by them is not used, and what was used before stays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<GitVerify>,
    /// Do not look for anything new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Use a revision, too, that does not follow from the one that is in use, as after a force push, or that has a lower version.
    /// `false` if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_non_fast_forward: Option<bool>,
}

/// What of a repository: the first that is set of commit, semver, tag and branch.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct GitRef {
    /// Branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub branch: Option<String>,
    /// Tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub tag: Option<String>,
    /// Range of versions, as `>=1.0.0 <2.0.0`: the highest tag in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub semver: Option<String>,
    /// Commit, in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9a-f]{40}|[0-9a-f]{64})$"))]
    pub commit: Option<String>,
}

/// Whose signature a revision must have.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct GitVerify {
    /// What must be signed. HEAD if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<VerifyMode>,
    /// Secret with the keys that are believed: OpenPGP public keys in keys that end in `.asc`, SSH public keys as in an
    /// `authorized_keys` file in keys that end in `.sshpub`.
    pub secret_ref: SecretRef,
}

/// What must be signed. HEAD if not set: the commit. Tag: the tag. `TagAndHEAD`: both.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum VerifyMode {
    /// The commit.
    #[default]
    #[serde(rename = "HEAD")]
    Head,
    /// The tag.
    Tag,
    /// Tag and commit.
    #[serde(rename = "TagAndHEAD")]
    TagAndHead,
}

/// An object of Flux whose artifact has the host list in it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "self.kind != 'ExternalArtifact' || !has(self.requireVerified) || !self.requireVerified",
    "nobody verifies an ExternalArtifact: leave requireVerified out, or name the GitRepository or OCIRepository that it is made of",
))]
pub struct SourceRef {
    /// Its kind.
    pub kind: SourceKind,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// File or directory in the artifact with the hosts. The whole artifact if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = ("!self.split('/').exists(word, word == '..')", "must stay inside: `..` leads out of it"))]
    pub path: Option<String>,
    /// Use only an artifact whose signature Flux has verified. `false` if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_verified: Option<bool>,
}

/// A kind of Flux that has an artifact.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum SourceKind {
    /// A Git repository.
    #[default]
    GitRepository,
    /// An OCI artifact.
    OCIRepository,
    /// What another controller has made.
    ExternalArtifact,
}

/// What holds for hosts that are not listed any more.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Removal {
    /// How many hosts one change of the list may remove: a number, or a share of the hosts that are there, rounded down but at
    /// least one. If more would leave, none does until the annotation `approve-removal` of the pool says how many, or names the
    /// revision. `10%` for `git` and `sourceRef` if not set, otherwise no limit. Whatever is set, a list that is missing or empty
    /// removes no host until that annotation confirms it, and Machines that are deleted take their hosts with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_removals: Option<IntOrPercent>,
}

/// Names of Windows users, with a domain before them if there is one: no control characters and none of
/// `" / \ [ ] : ; | = , + * ? < >`, no space at either end, and not dots and spaces alone.
pub const USERNAME_PATTERN: &str = r#"^([^\x00-\x20\x7f"/\\\[\]:;|=,+*?<>]+\\)?([^\x00-\x20\x7f"/\\\[\]:;|=,+*?<>.]|\.[^\x00-\x1f\x7f"/\\\[\]:;|=,+*?<>]*[^\x00-\x20\x7f"/\\\[\]:;|=,+*?<>.])([^\x00-\x1f\x7f"/\\\[\]:;|=,+*?<>]*[^\x00-\x20\x7f"/\\\[\]:;|=,+*?<>])?$"#;

/// One Windows host.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Host {
    /// Name of the host, and of its Node: lower-case letters, digits, `-`, and `.` between them.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
    /// IPv4 or IPv6 address, or DNS name, to reach the host's SSH server at.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^([0-9A-Za-z_]([-._0-9A-Za-z]*[0-9A-Za-z_])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*)$")
    )]
    pub address: String,
    /// Port of the SSH server, if not the pool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
    /// User to log in as, if not the pool's. Must be an administrator of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 104), regex(pattern = USERNAME_PATTERN))]
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
