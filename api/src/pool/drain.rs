//! Drain settings.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Eviction of pods before a disruption of a node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.onTimeout) || self.onTimeout != 'Force' || (has(self.timeoutSeconds) && self.timeoutSeconds >= 60)", "onTimeout Force deletes pods against their disruption budgets: set timeoutSeconds to at least 60"))]
pub struct Drain {
    /// Seconds that a drain may take before `onTimeout` applies; 0 means no limit. Defaults to 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub timeout_seconds: Option<i32>,
    /// Reaction to a drain that exceeds `timeoutSeconds`. Defaults to Wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// Grace period in seconds for every evicted pod. Defaults to each pod's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub grace_period_seconds: Option<i32>,
    /// Allow eviction of pods with emptyDir volumes, which loses those volumes. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_empty_dir_data: Option<bool>,
    /// Allow eviction of pods without a controller, which are not recreated. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evict_unmanaged: Option<bool>,
    /// Exceptions for some pods. The first rule that matches a pod applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub pod_rules: Option<Vec<PodRule>>,
}

/// Reaction to a drain that exceeds its timeout. Wait (default): continue to wait, and report it. Abort: abort the drain, lift the cordon, retry
/// later. Force: delete the remaining pods without regard to disruption budgets, with `gracePeriodSeconds` or, if that is not set, their own grace
/// period.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnTimeout {
    /// Continue to wait for the pods, and report it.
    #[default]
    Wait,
    /// Abort the drain, lift the cordon, retry later.
    Abort,
    /// Delete the remaining pods without regard to disruption budgets, with `gracePeriodSeconds` or, if that is not set, their own grace period.
    Force,
}

/// Exception for some pods.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PodRule {
    /// Pods to which the rule applies. Defaults to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Namespaces to which the rule applies. Defaults to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Treatment of the pods.
    pub behavior: PodBehavior,
    /// Order of the pods in a drain: pods with a lower number leave first; pods with a higher number wait until they have left. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub order: Option<i32>,
}

/// Treatment of a pod by a drain. Drain: evict it. Skip: leave it. WaitCompleted: wait until it ends by itself.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PodBehavior {
    /// Evict the pod.
    #[default]
    Drain,
    /// Leave the pod on the node.
    Skip,
    /// Wait until the pod ends by itself.
    WaitCompleted,
}
