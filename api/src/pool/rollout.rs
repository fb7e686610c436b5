//! How hosts join and how changes reach nodes.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::IntOrPercent;

/// How new hosts are joined. Joining disturbs nobody, so it is not bounded by `rollout.maxUnavailable`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Provisioning {
    /// How many hosts join at the same time. 10 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_concurrent: Option<i32>,
}

/// How changes reach the nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// Nodes that may be unavailable at once because of the operator: a number, or a share of the pool that is rounded
    /// down but is at least one. 1 if not set. Nodes that are unavailable for other reasons count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrPercent>,
    /// In which order nodes are changed. Zone if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Seconds that a node must have been Ready to count as available. 0 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub min_ready_seconds: Option<i32>,
    /// Seconds after which an operation on a host that has not ended makes the pool Stalled. It goes on being tried.
    /// 3600 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 604_800))]
    pub progress_deadline_seconds: Option<i32>,
    /// Seconds after which a node that is not Ready, on a host that does not answer either, is no longer waited for: it counts
    /// neither as one of the pool nor as unavailable. 0 means never. 3600 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub ignore_lost_after_seconds: Option<i32>,
    /// A change reaches so many nodes first, and then waits. After the last step all nodes follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub steps: Option<Vec<Step>>,
    /// The version that may pass the steps that wait for an approval: that of `status.desiredVersion`. It names the
    /// version, so that an old approval lets no new change pass. The annotation `approve` of the pool does the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub approved_version: Option<String>,
    /// When changes may begin. Always if not set. What has begun when a window closes is finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub maintenance_windows: Option<Vec<MaintenanceWindow>>,
    /// What follows from a node that could not be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// Begin no new operation on any host. What has begun is finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// Order of nodes. Zone if not set: zone after zone by the Node's label `topology.kubernetes.io/zone`, in each the nodes that
/// work least well first. Name: by name.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Order {
    /// Zone after zone.
    #[default]
    Zone,
    /// By name.
    Name,
}

/// A step of a rollout.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("has(self.pauseSeconds) != (has(self.approval) && self.approval)", "a step has either pauseSeconds or approval: true"))]
pub struct Step {
    /// Nodes that have been changed at the end of this step, with those of the steps before.
    pub nodes: IntOrPercent,
    /// Seconds to wait then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_592_000))]
    pub pause_seconds: Option<i32>,
    /// Wait for `rollout.approvedVersion`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<bool>,
}

/// A time in which changes may begin.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceWindow {
    /// Its name.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// When it opens: a cron expression of five fields (minute, hour, day of month, month, day of week).
    #[schemars(length(min = 9, max = 128))]
    pub schedule: String,
    /// For how many minutes.
    #[schemars(range(min = 15, max = 10_080))]
    pub duration_minutes: i32,
    /// Time zone of the schedule, as `Europe/Paris`. UTC if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9_+/-]+$"))]
    pub time_zone: Option<String>,
}

/// What follows from nodes that could not be changed. A node that fails after it was changed gets its previous version back in
/// any case.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// How many nodes may fail before `action` is taken. With 1, the first failure is enough. 1 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<IntOrPercent>,
    /// What is done then. Pause if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<FailureAction>,
}

/// What is done when too many nodes could not be changed. Pause if not set: change no further node. Rollback: give those that
/// were changed their previous version back. Continue: go on with the others.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FailureAction {
    /// Change no further node.
    #[default]
    Pause,
    /// Give those that were changed their previous version back.
    Rollback,
    /// Go on with the others.
    Continue,
}

/// What is done about nodes that are not as they should be.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Remediation {
    /// What is done with a node that has not been Ready for `unreachableSeconds`. Reconfigure if not set.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<RemediationType>,
    /// Seconds until then. 600 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 604_800))]
    pub unreachable_seconds: Option<i32>,
    /// When more nodes than this are not Ready, the cause is elsewhere, and none is repaired. 20% if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unhealthy: Option<IntOrPercent>,
    /// What is done with files, services and variables that somebody has changed on a host. Heal if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
}

/// What is done with a node that has not been Ready for long. Reconfigure if not set: put everything on the host right and
/// restart its services. Reboot: the same, and restart the host. None: only say so.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RemediationType {
    /// Only say so.
    None,
    /// Put everything on the host right and restart its services.
    #[default]
    Reconfigure,
    /// The same, and restart the host.
    Reboot,
}

/// What is done with what somebody has changed on a host. Heal if not set: put it right and say so. Report: only say so.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Drift {
    /// Put it right and say so.
    #[default]
    Heal,
    /// Only say so.
    Report,
}
