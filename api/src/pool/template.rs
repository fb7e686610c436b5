//! Metadata and settings of the nodes of a pool.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ImageMirror, ProxySettings};
use crate::{
    Quantity,
    rule::{all_match, matches},
};

/// Rule for the keys of [`Reserved`].
const RESERVED: (&str, &str) = (
    "self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",
    "must have no other keys than cpu, memory and ephemeral-storage",
);

/// Rule for the number of CPUs. Refuses a size of memory, with which no pod would fit on the node.
const CPU: (&str, &str) = (
    "!('cpu' in self) || (type(self['cpu']) == int ? self['cpu'] >= 0 && self['cpu'] < 1000 : isQuantity(self['cpu']) && !quantity(self['cpu']).isLessThan(quantity('0')) && quantity(self['cpu']).isLessThan(quantity('1k')))",
    "cpu must be a quantity of CPUs, 0 or more and below 1000, for example 500m or 2",
);

/// Rule for sizes, which must be 0 or plausible: `2048m`, for example, is a mistake and means two bytes.
const SIZES: (&str, &str) = (
    "self.all(k, k == 'cpu' || (type(self[k]) == int ? self[k] == 0 || self[k] >= 1024 : isQuantity(self[k]) && (quantity(self[k]).compareTo(quantity('0')) == 0 || !quantity(self[k]).isLessThan(quantity('1Ki')))))",
    "memory and ephemeral-storage must be 0 or a quantity of at least 1Ki, for example 2Gi",
);

/// Rule for the keys of [`EvictionThresholds`].
const SIGNALS: (&str, &str) = (
    "self.all(k, k in ['memory.available', 'nodefs.available', 'imagefs.available'])",
    "must have no other keys than memory.available, nodefs.available and imagefs.available",
);

/// Rule for a size of at least 1Ki: a smaller one is a mistake.
const POSITIVE_SIZE: (&str, &str) = (
    "type(self) == int ? self >= 1024 : isQuantity(self) && !quantity(self).isLessThan(quantity('1Ki'))",
    "must be a quantity of at least 1Ki, for example 50Mi",
);

/// Rule for the size of a log. kubelet needs whole bytes, and does not start with a fraction.
const LOG_SIZE: (&str, &str) = (
    "type(self) == int ? self >= 1024 : isQuantity(self) && quantity(self).isInteger() && !quantity(self).isLessThan(quantity('1Ki'))",
    "must be a quantity of at least 1Ki without a fraction, for example 50Mi",
);

/// Rule for the values of [`EvictionThresholds`]. kubelet does not start with 0, and treats 0% as no threshold.
const THRESHOLDS: (&str, &str) = (
    "self.all(k, type(self[k]) == int ? self[k] >= 1024 : self[k].matches('^[0-9]{1,2}%$') || isQuantity(self[k]) && !quantity(self[k]).isLessThan(quantity('1Ki')))",
    "each threshold must be a quantity of at least 1Ki or a percentage from 0% to 99%, for example 500Mi or 10%",
);

/// Metadata and settings of the nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct NodeTemplate {
    /// Labels and annotations of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Taints of the nodes, and settings of kubelet, containerd and logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<TemplateSpec>,
}

/// Labels and annotations that the operator maintains on every node of the pool.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.labels) || self.labels.all(k, !k.startsWith('windowsmachineconfig.openshift.io/') && k != 'node-role.kubernetes.io/control-plane' && k != 'node-role.kubernetes.io/master' && (!(k.contains('kubernetes.io/') || k.contains('k8s.io/')) || k.startsWith('node-role.kubernetes.io/') || k.startsWith('node.kubernetes.io/') || k.startsWith('topology.kubernetes.io/')))", "labels with a key under kubernetes.io, k8s.io or windowsmachineconfig.openshift.io are reserved; only node-role.kubernetes.io/, node.kubernetes.io/ and topology.kubernetes.io/ may be set, and a Windows node cannot have the role of a control plane"),
    validation = (r"!has(self.labels) || self.labels.all(k, k.matches(r'^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$') && self.labels[k].matches(r'^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$'))", "labels must have keys of letters, digits, -, _ and ., perhaps with a domain and / before them, and values of at most 63 letters, digits, -, _ and ."),
    validation = (r"!has(self.annotations) || self.annotations.all(k, k.matches(r'^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$'))", "annotations must have keys of letters, digits, -, _ and ., perhaps with a domain and / before them"),
    validation = ("!has(self.annotations) || self.annotations.all(k, !k.startsWith('windowsmachineconfig.openshift.io/') && !k.contains('kubernetes.io/') && !k.contains('k8s.io/'))", "annotations with a key under kubernetes.io, k8s.io or windowsmachineconfig.openshift.io are reserved")
)]
pub struct TemplateMetadata {
    /// Labels of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 64, "additionalProperties" = serde_json::json!({"type": "string", "maxLength": 63})))]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 64))]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Taints of the nodes, and settings of their services.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct TemplateSpec {
    /// Taints of the nodes, which the operator maintains in place. Defaults to `os=Windows:NoSchedule`; an empty list means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into(), "effect".into()]))]
    pub taints: Option<Vec<Taint>>,
    /// Settings of kubelet. A change restarts kubelet; no pod is moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletSettings>,
    /// Settings of containerd. A change drains the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containerd: Option<ContainerdSettings>,
    /// Rotation and level of the logs of the services on the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<LogRotation>,
    /// Registries of the cluster's pull secret whose logins the nodes get, for kubelet and containerd, each with a port or a path if it has one.
    /// Defaults to all; an empty list means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 255)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[x_kube(validation = all_match("^[A-Za-z0-9][A-Za-z0-9._:/-]*$", "must be registries, for example registry.example.com:5000"))]
    pub pull_secret_registries: Option<Vec<String>>,
    /// Proxy of the hosts of this pool, if it is not the cluster's. If it has no fields, the hosts have no proxy. Defaults to the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxySettings>,
    /// PEM certificates that the hosts of this pool trust machine-wide, in addition to the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    #[x_kube(validation = ("self.contains('-----BEGIN CERTIFICATE-----') && !self.contains('PRIVATE KEY')", "must be certificates in PEM, without a private key"))]
    pub trusted_certificates: Option<String>,
    /// Mirrors of image registries for the hosts of this pool. They come before those of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub image_mirrors: Option<Vec<ImageMirror>>,
    /// Group Managed Service Accounts (gMSA) that pods on these nodes use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gmsa: Option<GmsaSettings>,
}

/// Group Managed Service Accounts (gMSA) that pods use. Accounts change nothing on a host; a plugin is installed.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct GmsaSettings {
    /// Accounts whose passwords each host of the pool must be able to retrieve. The condition `GMSAReady` of an instance reports
    /// those that its host cannot use; such a host becomes a node nevertheless. Each is the sAMAccountName without the `$` at
    /// its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 15)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[x_kube(validation = (
        "self.all(a, a.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_-])?$'))",
        "must be names of accounts without a domain and without $ at the end: at most 15 letters, digits, -, _ and ."
    ))]
    pub accounts: Option<Vec<String>>,
    /// Plugin of Container Credential Guard, with which hosts in no domain retrieve passwords. It comes from the payload. Defaults to no plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<CredentialPlugin>,
}

/// Plugin of Container Credential Guard: a COM class in a library. Windows runs it with access to credentials of Active Directory.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct CredentialPlugin {
    /// Name of the library in the directory `ccg` of the payload.
    #[schemars(length(min = 5, max = 64))]
    #[x_kube(validation = matches(
        "^[A-Za-z0-9][A-Za-z0-9._-]*[.]dll$",
        "must be the name of a file: letters, digits, -, _ and ., with .dll at its end"
    ))]
    pub file: String,
    /// Class of the plugin, in braces, as in the field `PluginGUID` of a credential specification.
    #[schemars(length(min = 38, max = 38))]
    #[x_kube(validation = matches(
        "^[{][0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}[}]$",
        "must be a GUID in braces, for example {CCC2A336-D7F3-4818-A213-272B7924213E}"
    ))]
    pub clsid: String,
}

/// Settings of kubelet: `cloudProvider`, and others with the names and units of `KubeletConfiguration`. A setting that is absent has the
/// operator's default for all nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "(has(self.imageGCLowThresholdPercent) ? self.imageGCLowThresholdPercent : 80) < (has(self.imageGCHighThresholdPercent) ? self.imageGCHighThresholdPercent : 85)",
    "imageGCLowThresholdPercent (80 if not set) must be less than imageGCHighThresholdPercent (85 if not set)"
))]
pub struct KubeletSettings {
    /// Maximum number of pods on a node. Defaults to 250.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_pods: Option<i32>,
    /// Resources reserved for Windows and all processes outside pods. Windows has no out-of-memory killer: without a reservation the system runs out
    /// of memory. Defaults to `cpu: 500m`, `memory: 2Gi` and `ephemeral-storage: 1Gi`, each by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 3, "x-kubernetes-map-type" = "granular"))]
    #[x_kube(validation = RESERVED, validation = CPU, validation = SIZES)]
    pub system_reserved: Option<Reserved>,
    /// Resources reserved for kubelet and containerd, with the keys of `systemReserved`. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 3, "x-kubernetes-map-type" = "granular"))]
    #[x_kube(validation = RESERVED, validation = CPU, validation = SIZES)]
    pub kube_reserved: Option<Reserved>,
    /// Thresholds at which kubelet evicts pods at once: free memory, free space on the disk with volumes and logs of pods, and free space on the disk
    /// with images. Defaults to `memory.available: 500Mi`, `nodefs.available: 10%` and `imagefs.available: 15%`, each by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 3, "x-kubernetes-map-type" = "granular"))]
    #[x_kube(validation = SIGNALS, validation = THRESHOLDS)]
    pub eviction_hard: Option<EvictionThresholds>,
    /// Disk usage in percent above which kubelet deletes unused images. Defaults to 85.
    #[serde(default, rename = "imageGCHighThresholdPercent", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub image_gc_high_threshold_percent: Option<i32>,
    /// Disk usage in percent at which kubelet stops deleting unused images. Defaults to 80.
    #[serde(default, rename = "imageGCLowThresholdPercent", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 99))]
    pub image_gc_low_threshold_percent: Option<i32>,
    /// Size in bytes at which the log of a container is rotated. Defaults to 50Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = LOG_SIZE)]
    pub container_log_max_size: Option<Quantity>,
    /// Number of log files kept for each container. Defaults to 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 100))]
    pub container_log_max_files: Option<i32>,
    /// Program that initialises the nodes of this pool, if that differs from the cluster: `None` for hosts that the cloud does not know, for example
    /// in a factory. Their nodes would stay uninitialised otherwise, and a cloud controller deletes a Node that is NotReady and whose machine it does
    /// not find. Defaults to the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_provider: Option<CloudProvider>,
}

/// Program that initialises nodes. External: a cloud controller manager. None: kubelet itself.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudProvider {
    /// Initialisation by a cloud controller manager.
    External,
    /// Initialisation by kubelet itself.
    None,
}

/// Reserved resources by name.
pub type Reserved = BTreeMap<String, Quantity>;

/// Eviction thresholds by signal: the space that must remain free, as a quantity of bytes or a percentage.
pub type EvictionThresholds = BTreeMap<String, Quantity>;

/// Settings of containerd. The configuration in the payload imports them.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ContainerdSettings {
    /// Image of the sandbox container of each pod. Defaults to the image that the payload names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = matches(
        "^[a-z0-9][-a-zA-Z0-9._:/@]*$",
        "must be the name of an image, for example mcr.microsoft.com/oss/kubernetes/pause:3.10"
    ))]
    pub sandbox_image: Option<String>,
    /// Number of layers of an image that are fetched at once. Defaults to 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub max_concurrent_downloads: Option<i32>,
}

/// Rotation and level of the logs of services. Logs are rotated by default.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct LogRotation {
    /// Size in bytes at which a log is rotated. Defaults to the operator's `--services-log-file-size`, or 100Mi if that is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = POSITIVE_SIZE)]
    pub max_size: Option<Quantity>,
    /// Seconds after which a rotated log is deleted. Defaults to the operator's `--services-log-file-age`, or 604800 (a week) if that is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 3600, max = 315_360_000))]
    pub max_age_seconds: Option<i32>,
    /// Level of the logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<LogLevel>,
}

/// Level of the logs of kubelet, kube-proxy, csi-proxy, windows_exporter and hybrid-overlay-node. Info (default): the usual messages. Debug: all
/// details. A change restarts these services, and drains nodes that run hybrid-overlay-node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Usual messages.
    #[default]
    Info,
    /// Detailed messages.
    Debug,
}

/// Taint of a node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!self.key.startsWith('node.kubernetes.io/') && !self.key.startsWith('windowsmachineconfig.openshift.io/')", "taints with a key under node.kubernetes.io or windowsmachineconfig.openshift.io are reserved"))]
pub struct Taint {
    /// Key of the taint.
    #[schemars(length(min = 1, max = 316))]
    #[x_kube(validation = matches(
        "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        "must be letters, digits, `-`, `_` and `.`, with or without a lower-case domain and `/` before it, for example example.com/line"
    ))]
    pub key: String,
    /// Value of the taint. Defaults to empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = matches(
        "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        "must be letters, digits, `-`, `_` and `.`, and begin and end with a letter or digit"
    ))]
    pub value: Option<String>,
    /// Effect on pods that do not tolerate the taint.
    pub effect: TaintEffect,
}

/// Effect of a taint.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaintEffect {
    /// The scheduler places no new pods on the node.
    NoSchedule,
    /// The scheduler places new pods on the node only if no other node can take them.
    PreferNoSchedule,
    /// No pods run on the node.
    NoExecute,
}

impl TaintEffect {
    /// Name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}
