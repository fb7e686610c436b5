//! Kind WindowsInstance: one host of a pool, with its grant and its status.

#![expect(clippy::struct_excessive_bools, reason = "each field is an independent flag")]

mod status;

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{SecretKeyRef, Taint, Time};
pub use status::*;

/// One host of a pool: its desired state, and what the operator observes and does. Only the operator writes it; to
/// change a host, change its pool.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[kube(
    group = "windowsmachineconfig.openshift.io",
    version = "v1alpha1",
    kind = "WindowsInstance",
    plural = "windowsinstances",
    shortname = "wi",
    doc = "One host of a pool: its desired state, and what the operator observes and does. Only the operator writes it; to change a host, change its pool.",
    category = "windows",
    status = "WindowsInstanceStatus",
    derive = "PartialEq",
    validation = ("self.metadata.name == self.spec.host.name", "metadata.name must be the name of the host, spec.host.name"),
    selectable = ".spec.poolRef.name",
    selectable = ".status.phase",
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.poolRef.name"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "UpToDate", type_ = "string", json_path = ".status.conditions[?(@.type==\"UpToDate\")].status"),
    printcolumn(name = "Step", type_ = "string", json_path = ".status.operation.step"),
    printcolumn(name = "Since", type_ = "date", json_path = ".status.operation.stepStartTime"),
    printcolumn(name = "Failures", type_ = "integer", json_path = ".status.failures.count"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Address", type_ = "string", json_path = ".spec.host.address", priority = 1),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.currentVersion", priority = 1),
    printcolumn(name = "Reboot", type_ = "string", json_path = ".status.conditions[?(@.type==\"RebootRequired\")].status", priority = 1),
    printcolumn(name = "OS-Build", type_ = "string", json_path = ".status.facts.osBuild", priority = 1),
    printcolumn(name = "Next-Try", type_ = "string", json_path = ".status.failures.nextRetryTime", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct WindowsInstanceSpec {
    /// The pool that the host belongs to.
    pub pool_ref: PoolRef,
    /// The host, with the pool's settings filled in.
    pub host: InstanceHost,
    /// Location of the host's entry in the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The version that the host must follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<Desired>,
    /// Permission to work on the host. Only the pool controller writes and revokes it. It is used up when `status.lastOperation` names it, and may
    /// stay here until the next grant takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    /// Set if the host must leave the pool. The removal can be cancelled until the operator begins to deconfigure the host; only then is the instance
    /// deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Leaving>,
}

impl WindowsInstance {
    /// Reports whether the host must leave: it is marked, or the instance is being deleted.
    pub fn is_leaving(&self) -> bool {
        self.spec.leaving.is_some() || self.is_deleting()
    }

    /// Reports whether the instance is being deleted, which cannot be revoked.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Reports whether the operation of the grant is the last one that has finished.
    pub fn has_used(&self, grant: &Grant) -> bool {
        self.status.as_ref().is_some_and(|s| s.last_operation.as_ref() == Some(&grant.id))
    }

    /// Grant of the instance, unless the operation of the grant is over.
    pub fn open_grant(&self) -> Option<&Grant> {
        self.spec.grant.as_ref().filter(|g| !self.has_used(g))
    }
}

/// Mark of a host that must leave its pool.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Leaving {
    /// Time when the host was marked for removal.
    pub since: Time,
    /// The cause, in a sentence.
    #[schemars(length(max = 1024))]
    pub why: String,
    /// True if a user has confirmed this removal, so that the removal guard does not hold it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
}

/// Reference to a pool.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PoolRef {
    /// Name of the pool.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// A host with the pool's settings filled in.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct InstanceHost {
    /// Name of the host and of its Node.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = ("self == oldSelf", "the name of a host cannot be changed"))]
    pub name: String,
    /// Address at which SSH reaches the host.
    #[schemars(length(min = 1, max = 253))]
    pub address: String,
    /// Port of the host's SSH server.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// User to log in as.
    #[schemars(length(min = 1, max = 104))]
    pub username: String,
    /// Required host key, see the pool's `hosts[].hostKey`.
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
    /// Taints for this host's Node alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub taints: Vec<Taint>,
}

/// Location of a host's entry at its last change. An entry that only moves within its file keeps its recorded location.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// The source, as in the pool's `status.inventory`.
    pub source: String,
    /// The revision from which the entry was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub revision: Option<String>,
    /// File in the source, from its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub file: Option<String>,
    /// Line in the file, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<i32>,
    /// Commit that last changed the entry, for Git.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// Machine of the host, as `<namespace>/<name>`, for Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// `spec.providerID` of the host's Machine, for Machines. The Node gets it if no cloud controller manager sets one.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub provider_id: Option<String>,
}

/// The commit that last changed the entry of a host.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Commit {
    /// Id of the commit.
    #[schemars(length(max = 64))]
    pub id: String,
    /// Author, as `Name <address>`.
    #[schemars(length(max = 512))]
    pub author: String,
    /// Commit time.
    pub time: Time,
    /// First line of the commit message.
    #[schemars(length(max = 512))]
    pub subject: String,
    /// True if an older commit, which was not fetched, may be the origin of the entry.
    #[serde(default)]
    pub or_older: bool,
}

/// The version that a host must follow.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Desired {
    /// Version, as in the name of the ConfigMap `windows-services-<version>` with the services.
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
    /// Kind of the operation.
    #[serde(rename = "type")]
    pub type_: GrantType,
    /// Time of the grant.
    pub granted_time: Time,
    /// Version to go to, for `Stage` and `Update`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub version: Option<String>,
    /// Disruption that the operation causes, for `Update`, and for a `Repair` that restarts the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<Disruption>,
    /// Services that read the changed files and settings and are restarted, for `Update`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub services: Vec<String>,
    /// True if the node accepted no pods when this was granted, because it was not Ready or was cordoned, so that the grant does not count towards
    /// `rollout.maxUnavailable`. If the node accepts pods again, the operator cordons it only after the pool has counted it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_place: bool,
}

/// Disruption that a change causes. Each value includes the previous ones.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Disruption {
    /// No running process is affected.
    #[default]
    None,
    /// Services are restarted; pods continue to run.
    Restart,
    /// Pods are moved away first.
    Drain,
    /// Pods are moved away first, and the host is restarted.
    Reboot,
}

impl Disruption {
    /// Name in the API.
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
    /// Send the payload of another version. Not disruptive.
    Stage,
    /// Change the node to another version.
    Update,
    /// Restart the host, as its node requested.
    Reboot,
    /// Repair a node that does not work.
    Repair,
    /// Drain the node for the maintenance that a user, a program or the host requests, keep it drained, and return it to service.
    Maintenance,
    /// Drain the node, deconfigure the host, delete the Node.
    Remove,
    /// Release the host as it is.
    Orphan,
    /// Have the host accept the first key of its list, and no longer its current key. Not disruptive.
    RotateKey,
    /// Have the host pull and pin the images of its pool's `provisioning.prePullImages`. Not disruptive.
    PullImages,
}

impl GrantType {
    /// Reports whether the operation changes or repairs a node, which must work at the end.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Update | Self::Reboot | Self::Repair | Self::Maintenance)
    }

    /// Name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provision => "Provision",
            Self::Stage => "Stage",
            Self::Update => "Update",
            Self::Reboot => "Reboot",
            Self::Repair => "Repair",
            Self::Maintenance => "Maintenance",
            Self::Remove => "Remove",
            Self::Orphan => "Orphan",
            Self::RotateKey => "RotateKey",
            Self::PullImages => "PullImages",
        }
    }
}
