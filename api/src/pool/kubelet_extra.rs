//! Fields of kubelet's configuration that few pools need.

use std::{borrow::Cow, collections::BTreeMap};

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::EvictionThresholds;

/// A duration as kubelet reads it, for example `1m30s`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(transparent)]
pub struct KubeletDuration(pub String);

impl JsonSchema for KubeletDuration {
    fn schema_name() -> Cow<'static, str> {
        "KubeletDuration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 32,
            "x-kubernetes-validations": [{
                "rule": r"self.matches(r'^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$') && duration(self) <= duration('87600h')",
                "message": "must be a duration with units of at most 87600h, for example 30s or 1h30m",
            }],
        })
    }
}

/// Fields of `KubeletConfiguration` (`kubelet.config.k8s.io/v1beta1`) that few pools need. The operator passes them on as they are, and
/// refuses values with which kubelet would not start.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "!has(self.evictionSoft) || (!has(self.evictionSoft.memory__dot__available) || has(self.evictionSoftGracePeriod) && has(self.evictionSoftGracePeriod.memory__dot__available)) && (!has(self.evictionSoft.nodefs__dot__available) || has(self.evictionSoftGracePeriod) && has(self.evictionSoftGracePeriod.nodefs__dot__available)) && (!has(self.evictionSoft.imagefs__dot__available) || has(self.evictionSoftGracePeriod) && has(self.evictionSoftGracePeriod.imagefs__dot__available))",
    "each signal of evictionSoft must have a grace period in evictionSoftGracePeriod"
), validation = (
    "!has(self.evictionMinimumReclaim) || (!has(self.evictionMinimumReclaim.memory__dot__available) || type(self.evictionMinimumReclaim.memory__dot__available) == int || !self.evictionMinimumReclaim.memory__dot__available.matches('^0+%$')) && (!has(self.evictionMinimumReclaim.nodefs__dot__available) || type(self.evictionMinimumReclaim.nodefs__dot__available) == int || !self.evictionMinimumReclaim.nodefs__dot__available.matches('^0+%$')) && (!has(self.evictionMinimumReclaim.imagefs__dot__available) || type(self.evictionMinimumReclaim.imagefs__dot__available) == int || !self.evictionMinimumReclaim.imagefs__dot__available.matches('^0+%$'))",
    "evictionMinimumReclaim must not be 0%: remove the signal"
), validation = (
    "!has(self.imageMaximumGCAge) || duration(self.imageMaximumGCAge) == duration('0s') || duration(self.imageMaximumGCAge) > (has(self.imageMinimumGCAge) && duration(self.imageMinimumGCAge) > duration('0s') ? duration(self.imageMinimumGCAge) : duration('2m'))",
    "imageMaximumGCAge must be more than imageMinimumGCAge (2m if not set)"
), validation = (
    "!has(self.containerLogMonitorInterval) || duration(self.containerLogMonitorInterval) >= duration('3s')",
    "containerLogMonitorInterval must be at least 3s"
), validation = (
    "(!has(self.shutdownGracePeriod) || duration(self.shutdownGracePeriod) == duration('0s') || duration(self.shutdownGracePeriod) >= duration('1s')) && (!has(self.shutdownGracePeriodCriticalPods) || duration(self.shutdownGracePeriodCriticalPods) == duration('0s') || duration(self.shutdownGracePeriodCriticalPods) >= duration('1s'))",
    "shutdownGracePeriod and shutdownGracePeriodCriticalPods must be 0s or at least 1s"
), validation = (
    "!has(self.shutdownGracePeriodCriticalPods) || duration(self.shutdownGracePeriodCriticalPods) <= (has(self.shutdownGracePeriod) ? duration(self.shutdownGracePeriod) : duration('0s'))",
    "shutdownGracePeriodCriticalPods must not be more than shutdownGracePeriod (0s if not set)"
), validation = (
    "!has(self.featureGates) || !('GracefulNodeShutdown' in self.featureGates) || self.featureGates['GracefulNodeShutdown'] || !has(self.shutdownGracePeriod) || duration(self.shutdownGracePeriod) == duration('0s')",
    "shutdownGracePeriod needs the feature gate GracefulNodeShutdown"
), validation = (
    "!has(self.featureGates) || !('ImageMaximumGCAge' in self.featureGates) || self.featureGates['ImageMaximumGCAge'] || !has(self.imageMaximumGCAge) || duration(self.imageMaximumGCAge) == duration('0s')",
    "imageMaximumGCAge needs the feature gate ImageMaximumGCAge"
))]
pub struct KubeletExtraConfig {
    /// Feature gates of kubelet. Those that the operator sets, `NodeLogQuery` and `RotateKubeletServerCertificate`, cannot be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32))]
    #[x_kube(validation = ("self.all(k, k != 'NodeLogQuery' && k != 'RotateKubeletServerCertificate')", "the operator sets NodeLogQuery and RotateKubeletServerCertificate"))]
    pub feature_gates: Option<BTreeMap<String, bool>>,
    /// Thresholds at which kubelet evicts pods after the grace period of the same signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_soft: Option<EvictionThresholds>,
    /// Time for which a soft threshold must be met before kubelet evicts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_soft_grace_period: Option<EvictionGracePeriods>,
    /// What kubelet frees at least when it evicts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_minimum_reclaim: Option<EvictionThresholds>,
    /// Time for which kubelet keeps a pressure condition after its cause is gone. 5m if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_pressure_transition_period: Option<KubeletDuration>,
    /// Longest grace period in seconds of a pod that a soft threshold evicts. 0, the grace period of the pod, if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3_600))]
    pub eviction_max_pod_grace_period: Option<i32>,
    /// Age below which an unused image is not deleted. 2m if not set.
    #[serde(default, rename = "imageMinimumGCAge", skip_serializing_if = "Option::is_none")]
    pub image_minimum_gc_age: Option<KubeletDuration>,
    /// Age above which an unused image is deleted. No limit if not set.
    #[serde(default, rename = "imageMaximumGCAge", skip_serializing_if = "Option::is_none")]
    pub image_maximum_gc_age: Option<KubeletDuration>,
    /// Number of images that are pulled at once. No limit if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_parallel_image_pulls: Option<i32>,
    /// Image pulls each second; 0 means no limit. 5 if not set.
    #[serde(default, rename = "registryPullQPS", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub registry_pull_qps: Option<i32>,
    /// Image pulls in a burst. 10 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub registry_burst: Option<i32>,
    /// Events each second; 0 means no limit. 50 if not set.
    #[serde(default, rename = "eventRecordQPS", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub event_record_qps: Option<i32>,
    /// Events in a burst. 100 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub event_burst: Option<i32>,
    /// Requests to the API server each second. 50 if not set.
    #[serde(default, rename = "kubeAPIQPS", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub kube_api_qps: Option<i32>,
    /// Requests to the API server in a burst. 100 if not set.
    #[serde(default, rename = "kubeAPIBurst", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub kube_api_burst: Option<i32>,
    /// Maximum number of pods for each core, where that is less than `maxPods`; 0 means no limit, also if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000))]
    pub pods_per_core: Option<i32>,
    /// Interval at which kubelet computes the status of its Node. 10s if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_status_update_frequency: Option<KubeletDuration>,
    /// Interval at which kubelet reports a status that has not changed. 5m if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_status_report_frequency: Option<KubeletDuration>,
    /// Longest time between two syncs of a running pod. 1m if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_frequency: Option<KubeletDuration>,
    /// Interval at which the disk usage of volumes is measured. 1m if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_stats_agg_period: Option<KubeletDuration>,
    /// Interval at which the sizes of container logs are checked. 10s if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_log_monitor_interval: Option<KubeletDuration>,
    /// Number of container logs that are rotated at once. 1 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub container_log_max_workers: Option<i32>,
    /// Timeout of requests to containerd, except for pulls, logs, exec and attach. 10m if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_request_timeout: Option<KubeletDuration>,
    /// Time for which kubelet delays a shutdown of the host so that pods end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_grace_period: Option<KubeletDuration>,
    /// Part of `shutdownGracePeriod` that critical pods have at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_grace_period_critical_pods: Option<KubeletDuration>,
}

/// Time for which each soft threshold must be met.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
pub struct EvictionGracePeriods {
    /// For free memory.
    #[serde(default, rename = "memory.available", skip_serializing_if = "Option::is_none")]
    pub memory: Option<KubeletDuration>,
    /// For free space on the disk with volumes and logs of pods.
    #[serde(default, rename = "nodefs.available", skip_serializing_if = "Option::is_none")]
    pub nodefs: Option<KubeletDuration>,
    /// For free space on the disk with images.
    #[serde(default, rename = "imagefs.available", skip_serializing_if = "Option::is_none")]
    pub imagefs: Option<KubeletDuration>,
}
