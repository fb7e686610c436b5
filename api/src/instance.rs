#![expect(clippy::struct_excessive_bools, reason = "each is a thing of its own that is so or not")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SecretKeyRef;

/// One host of a pool: what the pool wants of it, and what the operator has found and is doing. Written by the operator
/// only; to change a host, change its pool.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[kube(
    group = "windowsmachineconfig.openshift.io",
    version = "v1alpha1",
    kind = "WindowsInstance",
    plural = "windowsinstances",
    shortname = "wi",
    doc = "One host of a pool: what the pool wants of it, and what the operator has found and is doing. Written by the operator only; to change a host, change its pool.",
    category = "windows",
    status = "WindowsInstanceStatus",
    derive = "PartialEq",
    validation = ("self.metadata.name == self.spec.host.name", "the name of an instance is the name of its host"),
    selectable = ".spec.poolRef.name",
    selectable = ".status.phase",
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.poolRef.name"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "UpToDate", type_ = "string", json_path = ".status.conditions[?(@.type==\"UpToDate\")].status"),
    printcolumn(name = "Step", type_ = "string", json_path = ".status.operation.step"),
    printcolumn(name = "Since", type_ = "date", json_path = ".status.operation.stepStartTime"),
    printcolumn(name = "Failures", type_ = "integer", json_path = ".status.failures.count"),
    printcolumn(name = "Next-Try", type_ = "string", json_path = ".status.failures.nextRetryTime"),
    printcolumn(name = "Address", type_ = "string", json_path = ".spec.host.address", priority = 1),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeRef.name", priority = 1),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.currentVersion", priority = 1),
    printcolumn(name = "To", type_ = "string", json_path = ".status.operation.toVersion", priority = 1),
    printcolumn(name = "Reboot", type_ = "string", json_path = ".status.conditions[?(@.type==\"RebootRequired\")].status", priority = 1),
    printcolumn(name = "OS-Build", type_ = "string", json_path = ".status.facts.osBuild", priority = 1),
    printcolumn(name = "Hostname", type_ = "string", json_path = ".status.facts.hostname", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message")
)]
#[serde(rename_all = "camelCase")]
pub struct WindowsInstanceSpec {
    /// The pool that the host belongs to.
    pub pool_ref: PoolRef,
    /// The host, with the pool's settings filled in.
    pub host: InstanceHost,
    /// Where the entry of the host stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// What the host shall follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<Desired>,
    /// Permission to work on the host now. Written and taken back by the pool controller only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    /// That the host is to leave. It can be taken back until the host is being deconfigured: only then is the instance deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Leaving>,
}

impl WindowsInstance {
    /// Whether the host is to leave: it is marked, or the instance is being deleted.
    pub fn is_leaving(&self) -> bool {
        self.spec.leaving.is_some() || self.is_deleting()
    }

    /// Whether the instance is being deleted, which cannot be taken back.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

/// That a host is to leave its pool.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Leaving {
    /// Since when, RFC 3339.
    #[schemars(length(min = 1, max = 64))]
    pub since: String,
    /// Why, in a sentence.
    #[schemars(length(max = 1024))]
    pub why: String,
    /// Whether a person has confirmed this very removal. It is not held for any other reason any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
}

/// Reference to a pool.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PoolRef {
    /// Name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// A host with the pool's settings filled in.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct InstanceHost {
    /// Name of the host and of its Node.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = ("self == oldSelf", "a host keeps its name"))]
    pub name: String,
    /// Address to reach it at.
    #[schemars(length(min = 1, max = 253))]
    pub address: String,
    /// Port of its SSH server.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// User to log in as.
    #[schemars(length(min = 1, max = 104))]
    pub username: String,
    /// Host key to insist on, see the pool's `hosts[].hostKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub host_key: Option<String>,
    /// Private keys to try, in order.
    #[schemars(length(max = 8))]
    pub private_keys: Vec<SecretKeyRef>,
    /// Labels for this host's Node alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub labels: BTreeMap<String, String>,
}

/// Where the entry of a host stood when it was last changed. An entry that only moves in its file keeps it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// The source, as in the pool's `status.inventory`.
    pub source: String,
    /// The revision from which the entry was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub revision: Option<String>,
    /// File in it, from its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub file: Option<String>,
    /// Line in the file, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<i32>,
    /// For Git: the commit that last changed the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// For Machines: the Machine, as `<namespace>/<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}

/// A commit, as far as it tells where a host comes from.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Commit {
    /// Its id.
    #[schemars(length(max = 64))]
    pub id: String,
    /// Who made it, as `Name <address>`.
    #[schemars(length(max = 512))]
    pub author: String,
    /// When, RFC 3339.
    pub time: String,
    /// Its first line.
    #[schemars(length(max = 512))]
    pub subject: String,
    /// Whether older commits, which were not fetched, may have made the entry as it is.
    #[serde(default)]
    pub or_older: bool,
}

/// What a host shall follow.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Desired {
    /// Version: the services are those of the ConfigMap `windows-services-<version>`.
    #[schemars(length(min = 1, max = 128))]
    pub version: String,
}

/// Permission to work on a host.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Name of the operation that is permitted.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub id: String,
    /// Its kind.
    #[serde(rename = "type")]
    pub type_: GrantType,
    /// When it was given, RFC 3339.
    pub granted_time: String,
    /// For `Stage` and `Update`: the version to go to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub version: Option<String>,
    /// For `Update`: how disruptive it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<Disruption>,
    /// For `Update`: services that read what changes, and are started afresh.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub services: Vec<String>,
}

/// How disruptive a change is; each includes those before.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Disruption {
    /// Nothing that runs notices.
    #[default]
    None,
    /// Services are restarted; pods go on running.
    Restart,
    /// Pods are moved away first.
    Drain,
    /// Pods are moved away first, and the host is restarted.
    Reboot,
}

impl Disruption {
    /// As the API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Restart => "Restart",
            Self::Drain => "Drain",
            Self::Reboot => "Reboot",
        }
    }
}

/// Kind of an operation.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum GrantType {
    /// Make the host a node.
    #[default]
    Provision,
    /// Send the payload of another version. Disturbs nobody.
    Stage,
    /// Give the node another version.
    Update,
    /// Restart the host of the node, which has asked for it.
    Reboot,
    /// Put a node that does not work right.
    Repair,
    /// Drain the node, deconfigure the host, delete the Node.
    Remove,
    /// Let the host go as it is.
    Orphan,
    /// Have the host take the first key of its list, and no longer the one that it takes now. Disturbs nobody.
    RotateKey,
}

impl GrantType {
    /// Whether a node that works is worked on, and shall work again at the end.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Update | Self::Reboot | Self::Repair)
    }

    /// As the API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provision => "Provision",
            Self::Stage => "Stage",
            Self::Update => "Update",
            Self::Reboot => "Reboot",
            Self::Repair => "Repair",
            Self::Remove => "Remove",
            Self::Orphan => "Orphan",
            Self::RotateKey => "RotateKey",
        }
    }
}

/// What the operator has found and is doing.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct WindowsInstanceStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// For people: one word for where the host stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What is so, since when, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Version that the host follows completely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_version: Option<String>,
    /// Version that it followed before, and can go back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_version: Option<String>,
    /// Version whose payload is all on the host, waiting for its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged_version: Option<String>,
    /// Version that the host could not follow. It is not tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_version: Option<String>,
    /// SHA-256 of the `wicd.exe` that the host runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wicd: Option<String>,
    /// When the certificate ends that wicd was last issued, RFC 3339. wicd renews it by itself for as long as the host runs; once it has
    /// ended, only the operator can bring another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wicd_certificate_expires: Option<String>,
    /// The Node of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeRef>,
    /// What was put on the Node because of the pool's template and the host's entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_applied: Option<TemplateApplied>,
    /// The user name that the Node's legacy annotation `username` was last seen or written with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 104))]
    pub annotated_username: Option<String>,
    /// Whether the host holds the name of its Node although `nodeRef` is not there: the API server had no Node of that name when the
    /// host was about to get its identity.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds_node_name: bool,
    /// The IP address at which the host was last reached, with its pinned host key and its machine id. Certificates name this one, those
    /// of the host's Machine, and no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub proven_address: Option<String>,
    /// The host key that was pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<PinnedHostKey>,
    /// Where the host was proven last. When its entry names another place, that is looked at, and nothing is done to the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven_at: Option<ProvenAt>,
    /// Failures of looking at the new place of a node, since its entry has changed. They hold up nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_failures: Option<Failures>,
    /// Which private key the host took: lower-case hex SHA-256 of the authorized_keys form of its public key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key_hash: Option<String>,
    /// How giving the host another key stands, if that is not through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_rotation: Option<KeyRotation>,
    /// That the host refuses every key of its list, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_refusal: Option<KeyRefusal>,
    /// What the host said of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<HostFacts>,
    /// The operation that is going on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// Name of the operation that was finished last: its grant has been used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<String>,
    /// Failures since the last success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
    /// Values of the annotations `retry` and `trust-host-key` that were last acted upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_retry: Option<String>,
}

/// How giving a host another key stands.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct KeyRotation {
    /// The key whose line is still to be removed from the host, as in `publicKeyHash`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retiring_key_hash: Option<String>,
    /// Failures since the last success. They hold up nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
}

/// That a host refuses every key of its list.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct KeyRefusal {
    /// The keys of its list, as in `publicKeyHash`. Of a list that has changed since, it says nothing.
    pub key_hashes: Vec<String>,
    /// When it refused them first.
    pub first_time: String,
    /// When it refused them last.
    pub last_time: String,
}

/// Where a host stands, in a word. For people and field selectors; nothing is decided by it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits for its turn.
    Pending,
    /// Being made a node.
    Joining,
    /// A node, and Ready.
    Ready,
    /// A node that is not Ready.
    NotReady,
    /// The last attempt failed; waits for the next.
    Failed,
    /// Being changed, or restarted.
    Updating,
    /// Being repaired.
    Repairing,
    /// Being removed, or waiting for it.
    Removing,
}

/// Reference to a Node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct NodeRef {
    /// Name.
    pub name: String,
    /// UID, so that a Node of the same name made by somebody else is not taken for it.
    pub uid: String,
}

/// What the operator has put on a Node because of a pool's template and a host's entry. Nothing else is ever removed from
/// the Node. It is stored before the Node is changed, so that it never names too little.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct TemplateApplied {
    /// UID of the Node. Not set as long as the Node has not been seen.
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

/// Where a host was proven.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ProvenAt {
    /// Address, as in its entry.
    pub address: String,
    /// Port.
    pub port: i32,
}

/// A host key that was pinned.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PinnedHostKey {
    /// Type, as `ssh-ed25519`.
    pub key_type: String,
    /// Base64 of the SSH wire format.
    pub public_key: String,
    /// `SHA256:…`
    pub fingerprint: String,
}

/// What a host said of itself when it was proven.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// Its own host name.
    pub hostname: String,
    /// Its machine id.
    pub machine_id: String,
    /// As `10.0.20348.2527`.
    pub os_build: String,
    /// As `Windows Server 2022 Datacenter`.
    pub os_name: String,
    /// Boot id: changes with each start of the host.
    pub boot_id: String,
    /// When the host was last started, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_time: Option<String>,
    /// The address that its Node has.
    #[serde(default)]
    pub node_ip: String,
    /// Its addresses.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub addresses: Vec<String>,
    /// How far its clock is ahead of the operator's, in seconds.
    #[serde(default)]
    pub clock_skew_seconds: i64,
}

/// The operation that is going on. Its step and clocks are stored before the step's first side effect.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Name, from the grant.
    pub id: String,
    /// Kind, from the grant.
    #[serde(rename = "type")]
    pub type_: GrantType,
    /// What is being done.
    pub step: String,
    /// Since when, RFC 3339.
    pub step_start_time: String,
    /// When the operation began, RFC 3339.
    pub start_time: String,
    /// Epoch of the operator that does it; hosts refuse an older one.
    #[serde(default)]
    pub epoch: i64,
    /// For an update: the version before, and the way back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_version: Option<String>,
    /// For an update: the version to go to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_version: Option<String>,
    /// How disruptive it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<Disruption>,
    /// Services that are started afresh.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub services: Vec<String>,
    /// Whether the host has got what it shall have, so that services which start now are the new ones.
    #[serde(default)]
    pub applied: bool,
    /// Whether something on the host may have been changed. Stored before the first request that does so; from then on the
    /// operation is brought to its end, whatever becomes of its grant.
    #[serde(default)]
    pub changed: bool,
    /// Attempts that failed because of the version, since something on the host was changed.
    #[serde(default)]
    pub attempts: i32,
    /// Whether the host is on its way back to `fromVersion`.
    #[serde(default)]
    pub rolling_back: bool,
    /// Whether the node was cordoned by somebody else when the operation began.
    #[serde(default)]
    pub pre_cordoned: bool,
    /// Boot id that the host must no longer have at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id_to_leave: Option<String>,
    /// Boot id before a restart of the host was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id_before: Option<String>,
    /// The drain, once it has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
}

impl Operation {
    /// Whether it is a change of a node that has to be brought to its end. Before that it can be given up: the host is as it was,
    /// and lifting the cordon is all that is to be done.
    pub fn is_past_return(&self) -> bool {
        self.type_.is_change() && (self.changed || self.rolling_back)
    }

    /// The grant that it has begun with.
    pub fn as_grant(&self) -> Grant {
        Grant {
            id: self.id.clone(),
            type_: self.type_,
            granted_time: self.start_time.clone(),
            version: self.to_version.clone(),
            disruption: self.disruption,
            services: self.services.clone(),
        }
    }
    /// Whether the host is to be restarted for its own sake, and not only where a step needs it.
    pub fn must_restart(&self) -> bool {
        self.type_ == GrantType::Reboot
            || (self.type_.is_change() && self.disruption == Some(Disruption::Reboot) && !self.rolling_back)
    }
}

/// How a drain stands.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// When it began, RFC 3339. Survives restarts of the operator.
    pub start_time: String,
    /// When the cordon was taken again, after somebody had lifted it; RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordoned_time: Option<String>,
    /// Pods that are still to go.
    #[serde(default)]
    pub remaining: i32,
    /// Why they do not, at most five, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub blockers: Vec<String>,
}

/// Failures since the last success.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Failures {
    /// How many, one after another.
    pub count: i32,
    /// When the first of them was, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_time: Option<String>,
    /// When the next attempt is made, RFC 3339.
    pub next_retry_time: String,
    /// Why the last one failed, a PascalCase word.
    pub last_reason: String,
    /// The same in a sentence, with what to do.
    pub last_message: String,
    /// Step that failed.
    #[serde(default)]
    pub step: String,
}
