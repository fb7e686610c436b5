//! Causes, other than their turn, for which nodes that must be changed are not changed now. Pure.

use api::{
    Pause, Reason, WindowsNodePool,
    act::{Act, HOST},
    services_version::short,
};
use jiff::Timestamp;

use super::{
    super::shown,
    ObservedPool, blocked,
    conditions::in_brackets,
    groups::{Groups, standstill},
    trouble::{Trouble, invalid_window, too_many_unhealthy},
};
use crate::{
    enumeration::{counted, first_names},
    rollout::progress::BlockedBy,
    wait::{Cause, Wait},
};

/// Cause, other than their turn, for which nodes that must be changed are not changed now.
pub(super) enum Held {
    /// Wait of the nodes.
    Waits(Wait),
    /// Fault that only a user can correct.
    Stalled {
        reason: Reason,
        message: String,
        /// True if the nodes are still changed: back to the previous version.
        passes: bool,
    },
}

impl Held {
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::Waits(wait) => wait.cause.reason(),
            Self::Stalled { reason, .. } => *reason,
        }
    }

    pub(super) fn message(&self) -> &str {
        match self {
            Self::Waits(Wait { message, .. }) | Self::Stalled { message, .. } => message,
        }
    }

    /// Reports whether only a user can help.
    pub(super) fn stalls(&self) -> bool {
        matches!(self, Self::Stalled { .. })
    }

    /// Reports whether the nodes count as about to change nevertheless.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Waits(wait) => wait.cause == Cause::Soak,
            Self::Stalled { passes, .. } => *passes,
        }
    }

    /// Reports whether a pool counts as progressing because of the wait, see [`Cause::counts_as_progress`].
    pub(super) fn counts_as_progress(&self) -> bool {
        matches!(self, Self::Waits(wait) if wait.cause.counts_as_progress())
    }
}

/// Returns the cause for which the nodes of a pool are not changed now, if any.
pub(super) fn held(
    pool: &WindowsNodePool,
    seen: &ObservedPool<'_>,
    pause: Option<Pause>,
    now: Timestamp,
) -> Option<Held> {
    let waiting = &seen.decision.waiting;
    let stalled = |reason, message, passes| Some(Held::Stalled { reason, message, passes });
    let version = &seen.course.target;
    if let BlockedBy::FailureLimit { failed, rolled_back } = &seen.course.gate.hold {
        let tried = seen.course.status.as_ref().map(|r| r.to_version.clone()).unwrap_or_default();
        let (what, todo) = if *rolled_back {
            (
                "all nodes return to their previous version",
                "Correct the template, or install another release of the operator".to_string(),
            )
        } else {
            let again = format!(
                "Correct the template, or install another release of the operator; or, to try a host again, {}",
                Act::Retry(HOST)
            );
            ("no further node is changed", again)
        };
        let message = format!(
            "version {} failed on {}; {what}. {todo}",
            short(&tried),
            counted(usize::try_from(*failed).unwrap_or(usize::MAX), "node")
        );
        return stalled(Reason::FailureLimitReached, message, *rolled_back);
    }
    if let Err(error) = seen.window {
        return stalled(error.reason(), invalid_window(error), false);
    }
    if waiting.is_empty() {
        return blocked::withheld(seen.members).or_else(|| blocked::on_hold(seen.members)).map(Held::Waits);
    }
    let waits = |cause, message| Some(Held::Waits(Wait::new(cause, message)));
    let n = waiting.len();
    if let Some(pause) = pause {
        return waits(Cause::Pause, format!("{pause}; {n} to be updated: {}", first_names(waiting)));
    }
    let n = format!("{n} to be updated {}", if n == 1 { "waits" } else { "wait" });
    if let Ok(window) = seen.window
        && !window.open
    {
        let opens = window.opens.map(|at| format!("the next opens at {}", shown(at)));
        return waits(Cause::Window, format!("{n} for a maintenance window; {}", opens.unwrap_or_default()));
    }
    match &seen.course.gate.hold {
        BlockedBy::Approval => {
            let name = pool.metadata.name.as_deref().unwrap_or_default();
            let act = Act::ApproveVersion(name, version);
            let changes = in_brackets(seen.changes);
            waits(Cause::Approval, format!("{n} until version {}{changes} is approved: {act}", short(version)))
        }
        BlockedBy::Soaking { until } => {
            waits(Cause::Soak, format!("{n} for the end of the rollout step at {}", shown(*until)))
        }
        _ => {
            let by_cordon = blocked::by_cordon(seen.members, seen.decision);
            let wait = by_cordon.or_else(|| blocked::used_up(seen.decision))?;
            // The cause may pass by itself, but must not be waited for indefinitely.
            if standstill(pool, seen.decision).is_some_and(|at| at <= now) {
                return stalled(Reason::ProgressDeadlineExceeded, wait.message, false);
            }
            Some(Held::Waits(wait))
        }
    }
}

/// Returns the first fault that only a user can correct.
pub(super) fn stalled(
    pool: &WindowsNodePool,
    seen: &ObservedPool<'_>,
    groups: &Groups,
    held: Option<&Held>,
) -> Option<(Reason, String)> {
    if let Some(held) = held.filter(|h| h.stalls()) {
        return Some((held.reason(), held.message().into()));
    }
    if let Some(Trouble { reason, message }) = too_many_unhealthy(pool, seen, groups) {
        return Some((reason, message));
    }
    let first = seen.list.problems.first().filter(|p| !(p.host.is_empty() && seen.list.is_transient));
    first.map(|first| (first.reason, first.message.clone()))
}
