//! Metadata and settings of the nodes of a pool.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rule::matches;

/// Metadata and settings of the nodes.
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

/// Labels and annotations that the operator maintains on every node of the pool.
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

/// Taints of the nodes, and settings of their services.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct TemplateSpec {
    /// Taints of the nodes, which the operator maintains in place. `os=Windows:NoSchedule` if not set; an empty list
    /// means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into(), "effect".into()]))]
    pub taints: Option<Vec<Taint>>,
    /// kubelet. A change restarts it; no pod is moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletSettings>,
    /// containerd. A change drains the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containerd: Option<ContainerdSettings>,
    /// Logs of all services that run on the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<LogRotation>,
}

/// Settings of kubelet, with the names of `KubeletConfiguration`. A setting that is absent has the operator's default
/// for all nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("(has(self.imageGCLowThresholdPercent) ? self.imageGCLowThresholdPercent : 80) < (has(self.imageGCHighThresholdPercent) ? self.imageGCHighThresholdPercent : 85)", "imageGCLowThresholdPercent (80 if not set) must be less than imageGCHighThresholdPercent (85 if not set)")
)]
pub struct KubeletSettings {
    /// Maximum number of pods on a node. 250 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_pods: Option<i32>,
    /// Resources reserved for Windows and all processes outside pods. Windows has no out-of-memory killer: without a
    /// reservation the system runs out of memory. 500m of CPU, 2Gi of memory and 1Gi of disk if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_reserved: Option<Reserved>,
    /// Resources reserved for kubelet and containerd. None if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_reserved: Option<Reserved>,
    /// Thresholds at which kubelet evicts pods at once. `nodefs.available` at 10% and `imagefs.available` at 15% if not
    /// set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_hard: Option<EvictionThresholds>,
    /// Disk usage in percent above which kubelet deletes unused images. 85 if not set.
    #[serde(default, rename = "imageGCHighThresholdPercent", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub image_gc_high_threshold_percent: Option<i32>,
    /// Disk usage in percent down to which it deletes them. 80 if not set.
    #[serde(default, rename = "imageGCLowThresholdPercent", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 99))]
    pub image_gc_low_threshold_percent: Option<i32>,
    /// Size at which the log of a container is rotated. 50Mi if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^[1-9][0-9]*(Ki|Mi|Gi|k|M|G)?$"))]
    pub container_log_max_size: Option<String>,
    /// Number of log files kept for each container. 5 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 100))]
    pub container_log_max_files: Option<i32>,
}

/// Reserved resources, each as a Kubernetes quantity.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Reserved {
    /// CPU, for example `500m` or `2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(\.[0-9]{1,3})?|[0-9]+m)$"))]
    pub cpu: Option<String>,
    /// Memory, for example `2Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^[0-9]+(Ki|Mi|Gi|k|M|G)?$"))]
    pub memory: Option<String>,
    /// Disk, for example `1Gi`.
    #[serde(default, rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^[0-9]+(Ki|Mi|Gi|k|M|G)?$"))]
    pub ephemeral_storage: Option<String>,
}

/// Eviction thresholds: what must remain free, as a quantity or a percentage.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
pub struct EvictionThresholds {
    /// Memory.
    #[serde(default, rename = "memory.available", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(Ki|Mi|Gi|k|M|G)?|[0-9]{1,2}%)$"))]
    pub memory: Option<String>,
    /// Disk of pods.
    #[serde(default, rename = "nodefs.available", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(Ki|Mi|Gi|k|M|G)?|[0-9]{1,2}%)$"))]
    pub nodefs: Option<String>,
    /// Disk of images.
    #[serde(default, rename = "imagefs.available", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(Ki|Mi|Gi|k|M|G)?|[0-9]{1,2}%)$"))]
    pub imagefs: Option<String>,
}

/// Settings of containerd. The configuration in the payload imports them.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ContainerdSettings {
    /// Image of the sandbox of pods. As in the payload if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = matches(
        "^[a-z0-9][-a-zA-Z0-9._:/@]*$",
        "must be the name of an image, for example mcr.microsoft.com/oss/kubernetes/pause:3.10"
    ))]
    pub sandbox_image: Option<String>,
    /// Number of layers of an image that are fetched at once. 3 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub max_concurrent_downloads: Option<i32>,
}

/// Rotation of the logs of services. On by default.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct LogRotation {
    /// Size at which a log is rotated. 100Mi if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^[1-9][0-9]*(Ki|Mi|Gi)$"))]
    pub max_size: Option<String>,
    /// Hours after which a rotated log is deleted. 168 (a week) if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 87_600))]
    pub max_age_hours: Option<i32>,
}

/// A taint of a node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!self.key.startsWith('node.kubernetes.io/') && !self.key.startsWith('windowsmachineconfig.openshift.io/')", "taints with a key under node.kubernetes.io or windowsmachineconfig.openshift.io belong to others"))]
pub struct Taint {
    /// Key.
    #[schemars(length(min = 1, max = 316))]
    #[x_kube(validation = matches(
        "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        "must be letters, digits, `-`, `_` and `.`, with or without a lower-case domain and `/` before it, for example example.com/line"
    ))]
    pub key: String,
    /// Value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = matches(
        "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        "must be letters, digits, `-`, `_` and `.`, and begin and end with a letter or digit"
    ))]
    pub value: Option<String>,
    /// Effect on pods that do not tolerate it.
    pub effect: TaintEffect,
}

/// Effect of a taint.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaintEffect {
    /// No new pods.
    NoSchedule,
    /// No new pods if other nodes can take them.
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
