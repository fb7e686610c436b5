//! How pods are moved away.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
