//! Progress of a rollout, and the number of nodes that it may have changed by now.
//!
//! A change reaches the nodes in steps. Each step waits for its nodes, and then for a time or an approval. The nodes are not chosen here: the limit
//! says how many may have been changed, and decisions about grants obey it.

use api::{FailureAction, IntOrPercent, RolloutStatus, RolloutStep, Time};
use jiff::{SignedDuration, Timestamp};

use crate::operation::times::begun;

/// Observed nodes of a pool. The numbers count only nodes that have joined and are not on hold, withheld, lost or leaving.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedNodes {
    /// Total number of nodes.
    pub total: u32,
    /// Number of nodes that follow the version, are Ready, and are not being changed.
    pub changed: u32,
    /// Number of nodes that follow the version, whatever their state.
    pub following: u32,
    /// Number of nodes that failed to follow the version.
    pub failed: u32,
    /// Version that most nodes follow, including those on hold, withheld or lost; `None` if there are no nodes.
    pub current: Option<String>,
    /// True if `current` is a version of another operator, so that no node can go back to it.
    pub foreign: bool,
}

/// Rollout settings of the pool.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// Steps of a rollout.
    pub steps: &'a [RolloutStep],
    /// Versions that a user has approved.
    pub approved: &'a [&'a str],
    /// Number of failed nodes that counts as too many.
    pub max_failures: IntOrPercent,
    /// Action when too many nodes have failed.
    pub action: FailureAction,
}

/// Limit on the number of nodes that may have been changed by now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateLimit {
    /// Number of nodes that may follow the target, be changing to it, or have failed; `None`: all nodes.
    pub limit: Option<u32>,
    /// Reason why no more nodes are changed.
    pub hold: BlockedBy,
}

/// Reason why no more nodes are changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BlockedBy {
    /// Nothing blocks the rollout.
    #[default]
    None,
    /// The nodes of the step follow the version, and the pause of the step is not over.
    Soaking {
        /// End of the pause.
        until: Timestamp,
    },
    /// The nodes of the step follow the version, and no user has approved the version.
    Approval,
    /// Too many nodes failed to follow the version.
    FailureLimit {
        /// Number of nodes that failed.
        failed: u32,
        /// True if all nodes go back to the previous version.
        rolled_back: bool,
    },
}

/// Progress of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rollout status to store.
    pub status: Option<RolloutStatus>,
    /// Version that nodes must follow. For joining hosts, see [`Progress::in_force`].
    pub target: String,
    /// Limit on the number of nodes that may follow the target by now.
    pub gate: UpdateLimit,
    /// Time of the next reconcile without an event.
    pub next: Option<Timestamp>,
}

impl Progress {
    /// Returns the version for joining hosts; the caller checks that this operator has its files. It is the target only once all nodes may follow it:
    /// a version that waits for its first steps, an approval or a window, or that has failed, is not given to new or rebuilt hosts. Without an
    /// earlier version, the result is the target.
    pub fn in_force(&self, open: bool) -> &str {
        let Some(status) = &self.status else { return &self.target };
        let gated = !status.completed && (self.gate.limit.is_some() || !open);
        status.from_version.as_deref().filter(|_| gated).unwrap_or(&self.target)
    }

    /// Reports whether a version is neither the target nor the version that the rollout began with. False if the rollout began without a version.
    pub fn is_astray(&self, version: &str) -> bool {
        let from = self.status.as_ref().and_then(|s| s.from_version.as_deref());
        version != self.target && from.is_some_and(|from| from != version)
    }
}

/// Returns the progress of the rollout to `rendered_version`. If `before` is missing or about another version, a new rollout begins.
pub fn course(
    before: Option<&RolloutStatus>,
    rendered_version: &str,
    seen: &ObservedNodes,
    settings: Settings<'_>,
    now: Timestamp,
) -> Progress {
    let mut status = match before {
        Some(before) if before.to_version == rendered_version => before.clone(),
        _ => begin(before, rendered_version, seen, now),
    };
    // Nodes that join the pool with another version, for example adopted ones, are changed from the first step on. They can go back only to the
    // version that they follow now, and only if it is a version of this operator.
    if status.completed && seen.current.as_ref().is_some_and(|current| *current != status.to_version) {
        let from_version = seen.current.clone().filter(|_| !seen.foreign);
        status = RolloutStatus { completed: false, step: 0, from_version, ..status };
    }
    let all = i32::try_from(settings.steps.len()).unwrap_or(i32::MAX);
    status.step = status.step.clamp(0, all);
    let from = status.from_version.clone().filter(|from| *from != status.to_version);
    let too_many = seen.failed > 0 && seen.failed >= settings.max_failures.of(seen.total);
    let stops = too_many && settings.action != FailureAction::Continue;

    // A completed rollout is not rolled back because of a node that comes back late.
    if stops && settings.action == FailureAction::Rollback && !status.completed && from.is_some() {
        status.rolled_back = true;
    }
    if let (true, Some(from)) = (status.rolled_back, from) {
        let hold = BlockedBy::FailureLimit { failed: seen.failed, rolled_back: true };
        // The previous version is known to work: only the budget limits the rollback.
        return Progress { status: Some(status), target: from, gate: UpdateLimit { limit: None, hold }, next: None };
    }

    if !stops && seen.total > 0 && seen.following.saturating_add(seen.failed) >= seen.total {
        status.completed = true;
    }
    if status.completed {
        status.step = all;
        status.step_reached_time = None;
    }
    let mut course =
        Progress { target: status.to_version.clone(), status: None, gate: UpdateLimit::default(), next: None };
    if stops {
        let hold = BlockedBy::FailureLimit { failed: seen.failed, rolled_back: false };
        course.gate = UpdateLimit { limit: Some(0), hold };
    } else if !status.completed {
        (course.gate, course.next) = pass_steps(&mut status, seen, settings, now);
    }
    course.status = Some(status);
    course
}

fn begin(before: Option<&RolloutStatus>, to: &str, seen: &ObservedNodes, now: Timestamp) -> RolloutStatus {
    // A version that was never reached cannot be a version to go back to.
    let from = match before {
        Some(before) if before.completed => Some(before.to_version.clone()),
        Some(before) => before.from_version.clone(),
        None => seen.current.clone().filter(|current| current != to && !seen.foreign),
    };
    // A pool without nodes needs no rollout, and a version that all nodes have followed needs no steps.
    RolloutStatus {
        completed: seen.current.is_none(),
        step: if from.as_deref() == Some(to) { i32::MAX } else { 0 },
        from_version: from,
        to_version: to.into(),
        start_time: now.into(),
        ..RolloutStatus::default()
    }
}

/// Passes the steps whose conditions are met. Returns the limit of the next step, and the time of the next check.
fn pass_steps(
    status: &mut RolloutStatus,
    seen: &ObservedNodes,
    settings: Settings<'_>,
    now: Timestamp,
) -> (UpdateLimit, Option<Timestamp>) {
    let mut index = usize::try_from(status.step).unwrap_or(0);
    let mut gate = UpdateLimit::default();
    let mut next = None;
    while let Some(step) = settings.steps.get(index) {
        let nodes = step.nodes.of(seen.total).max(1);
        // A failed node proves nothing: another one is tried in its place, until too many have failed.
        gate.limit = Some(nodes.saturating_add(seen.failed));
        if seen.changed < nodes.min(seen.total.saturating_sub(seen.failed)) {
            break;
        }
        let reached = status.step_reached_time.and_then(Time::known).map_or(now, |stored| begun(stored, now));
        status.step_reached_time = Some(reached.into());
        if step.approval == Some(true) {
            if !settings.approved.contains(&status.to_version.as_str()) {
                gate.hold = BlockedBy::Approval;
                break;
            }
        } else {
            let pause = SignedDuration::from_secs(step.pause_seconds.unwrap_or(0).into());
            let until = reached.checked_add(pause).unwrap_or(Timestamp::MAX);
            if until > now {
                gate.hold = BlockedBy::Soaking { until };
                next = Some(until);
                break;
            }
        }
        gate.limit = None;
        status.step_reached_time = None;
        index += 1;
    }
    status.step = i32::try_from(index).unwrap_or(i32::MAX);
    (gate, next)
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
