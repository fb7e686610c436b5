//! Limits for hosts that join and for changes of nodes.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    IntOrPercent, Time,
    rule::{after_epoch, all_match, matches},
};

/// Limits for hosts that join, are removed or are repaired, and images that hosts pull ahead. A join is not disruptive, so `rollout.maxUnavailable`
/// does not apply to it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Provisioning {
    /// Number of hosts that may join at the same time. The same limit applies separately to repairs, to changes of nodes that are not available, to
    /// removals of such nodes, and to changes without disruption. The next payload is sent at the same time to that many nodes and twice
    /// `rollout.maxUnavailable`. Defaults to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_concurrent: Option<i32>,
    /// Images that hosts pull before pods need them: after a join, and before a change of the node that restarts services or moves pods.
    /// Each has its registry and a tag or digest. A tag is pulled once: to have hosts pull another image, list another tag or a digest.
    /// Hosts keep the images: kubelet does not delete them when the disk is full. An image that is taken out of the list is released for
    /// deletion. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 512)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[x_kube(validation = all_match(IMAGE, "must be images with a registry and a tag or digest, for example mcr.microsoft.com/windows/servercore:ltsc2022"))]
    pub pre_pull_images: Option<Vec<String>>,
}

/// Pattern for images: a registry, which has a dot or a port or is localhost, a repository, and a tag or digest or both.
const IMAGE: &str = "^(localhost|[a-zA-Z0-9-]+([.][a-zA-Z0-9-]+)+|[a-zA-Z0-9.-]+:[0-9]+)(/[a-z0-9]+([._-]+[a-z0-9]+)*)+(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}|(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?@sha256:[0-9a-f]{64})$";

/// Limits and approval of changes to the nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// Nodes that may be unavailable at once because of the operator: a number, or a percentage of the pool, rounded
    /// down but at least one. Defaults to 1. Nodes that are unavailable for other reasons count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrPercent>,
    /// Seconds that a node must have been Ready to count as available. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub min_ready_seconds: Option<i32>,
    /// Seconds after which an unfinished operation on a host makes the pool Stalled. The operator continues to retry
    /// it. Defaults to 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 604_800))]
    pub progress_deadline_seconds: Option<i32>,
    /// Seconds after which the rollout no longer waits for a node that is not Ready and whose host does not answer: the
    /// node counts neither as a member of the pool nor as unavailable. 0 means never. If more nodes are lost in this way
    /// than `remediation.maxUnhealthy`, the rollout waits for all of them. Defaults to 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub ignore_lost_after_seconds: Option<i32>,
    /// Steps of a rollout: the rollout changes the nodes of a step, and then waits. After the last step, it changes all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub steps: Option<Vec<RolloutStep>>,
    /// Version that may pass the steps that wait for an approval: the value of `status.desiredVersion`. It names the
    /// version, so that an old approval does not apply to a new change. The annotation `approve` of the pool does the
    /// same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub approved_version: Option<String>,
    /// Times when changes may begin. Defaults to any time. When a window closes, a drain that has not ended is aborted and its node uncordoned; a
    /// change that has begun on a host is completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub maintenance_windows: Option<Vec<MaintenanceWindow>>,
    /// Number of failed nodes at which `onFailure` applies. With 1, the first failure is enough. Defaults to 1. A node that fails after its change
    /// is rolled back to its previous version in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<IntOrPercent>,
    /// Reaction when `maxFailures` is reached. Defaults to Pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<FailureAction>,
    /// Begin no new operation on any host, except the release of hosts. Joins, removals and changes that have begun on a host are completed; a
    /// change that has only begun to drain its node is aborted. Defaults to `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Time until which the operator begins no new operation on any host, as with `paused`. The pool continues by itself at that time. A time that
    /// has passed has no effect. `paused: true` has no end, even if pausedUntil is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = after_epoch())]
    pub paused_until: Option<Time>,
}

/// Step of a rollout.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("has(self.pauseSeconds) != (has(self.approval) && self.approval)", "a step has either pauseSeconds or approval: true"))]
pub struct RolloutStep {
    /// Nodes changed at the end of this step, including those of the previous steps: a number, or a percentage of the pool.
    pub nodes: IntOrPercent,
    /// Seconds to wait after the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_592_000))]
    pub pause_seconds: Option<i32>,
    /// Wait after the step until `rollout.approvedVersion` names the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<bool>,
}

/// Period in which changes may begin.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceWindow {
    /// Opening times: a cron expression of five fields (minute, hour, day of month, month, day of week).
    #[schemars(length(min = 9, max = 128))]
    // The operator checks the ranges of the numbers, and that the times exist (`InvalidWindow`).
    #[x_kube(validation = matches(
        "^ *[0-9*,/-]+ +[0-9*,/-]+ +[0-9*,/?LW-]+ +[0-9A-Za-z*,/-]+ +[0-9A-Za-z*,/?#-]+ *$",
        "must be a cron expression of five fields (minute, hour, day of month, month, day of week), for example 0 22 * * FRI"
    ))]
    pub schedule: String,
    /// Seconds that the window stays open.
    // Only the API server requires the field: a stored object without it must stay readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(required, range(min = 900, max = 604_800))]
    pub duration_seconds: Option<i32>,
    /// Time zone of the schedule, for example `Europe/Paris`. Defaults to UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = matches("^[A-Za-z0-9_+/-]+$", "must be the name of a time zone, for example Europe/Paris"))]
    pub time_zone: Option<String>,
}

/// Reaction when `maxFailures` nodes have failed. Pause (default): change no further node. Rollback: return the changed nodes to their
/// previous version. Continue: change the remaining nodes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FailureAction {
    /// Change no further node.
    #[default]
    Pause,
    /// Return the changed nodes to their previous version.
    Rollback,
    /// Change the remaining nodes.
    Continue,
}

/// Reaction to unhealthy nodes and to drift.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Remediation {
    /// Reaction to a node that has not been Ready for `notReadySeconds`. Defaults to Reconfigure.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<RemediationType>,
    /// Seconds that a node is not Ready, for whatever reason, before the operator reacts. Defaults to 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 604_800))]
    pub not_ready_seconds: Option<i32>,
    /// Number or percentage of nodes that are not Ready above which the operator assumes a common cause: it repairs none, and the rollout waits for
    /// lost nodes. Defaults to 20%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unhealthy: Option<IntOrPercent>,
    /// Reaction to files, services and variables on a host that another process or user changed. Defaults to Heal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
}

/// Reaction to a node that has not been Ready for long. Reconfigure (default): restore the configuration of the host and restart its services.
/// Reboot: the same, and restart the host. None: only report it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RemediationType {
    /// Report without a repair.
    None,
    /// Restore the configuration of the host and restart its services.
    #[default]
    Reconfigure,
    /// Restore the configuration of the host, and restart the host.
    Reboot,
}

/// Reaction to drift, a change on a host that the operator did not make. Heal (default): restore it and report it. Report: only report it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Drift {
    /// Restore the changed objects and report the drift.
    #[default]
    Heal,
    /// Report the drift only.
    Report,
}
