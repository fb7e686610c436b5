//! Trouble of a pool, the worst first. Messages name the affected objects and, for some kinds of trouble, the start time and the remedy. Pure.

use api::{GrantType, Pause, Reason, RemediationType, WindowsNodePool};
use jiff::{SignedDuration, Timestamp};

use super::{super::shown, ObservedPool, failure, groups::Groups};
use crate::{
    enumeration::first_names,
    rollout::{maintenance_window::WindowError, member::Member},
};

/// Maximum number of kinds of trouble in a message.
const SHOWN: usize = 3;

/// One kind of trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    /// Reason for conditions.
    pub reason: Reason,
    /// Message that names the fault and the affected objects.
    pub message: String,
}

impl Trouble {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Returns the worst kind of trouble, with the next kinds in its message; `None` if nothing is wrong.
pub(super) fn worst(
    pool: &WindowsNodePool,
    pause: Option<Pause>,
    seen: &ObservedPool<'_>,
    groups: &Groups,
    now: Timestamp,
) -> Option<Trouble> {
    let all: Vec<Trouble> = [
        source(seen),
        window(seen),
        too_many_unhealthy(pool, seen, groups),
        failed(seen, groups),
        lost(seen),
        not_ready(pool, pause, seen, groups, now),
        wrong_entry(seen),
        drain_blocked(seen),
        refused(seen),
    ]
    .into_iter()
    .flatten()
    .collect();
    let messages: Vec<&str> = all.iter().map(|t| t.message.as_str()).take(SHOWN).collect();
    all.first().map(|worst| Trouble::new(worst.reason, messages.join("; ")))
}

/// Returns the trouble with the source, without which the desired hosts are unknown.
fn source(seen: &ObservedPool<'_>) -> Option<Trouble> {
    let problem = seen.list.problems.iter().find(|p| p.host.is_empty())?;
    Some(Trouble::new(problem.reason, &problem.message))
}

/// Returns the trouble with maintenance windows that cannot be read, so that nothing can be changed.
fn window(seen: &ObservedPool<'_>) -> Option<Trouble> {
    seen.window.err().map(|error| Trouble::new(error.reason(), invalid_window(error)))
}

/// Returns the message for a maintenance window that cannot be used, with its consequence.
pub(super) fn invalid_window(error: &WindowError) -> String {
    format!("{error}. Until then, no update of a node begins in this pool")
}

/// Returns the trouble with too many nodes that are not Ready: a user must find the common cause.
pub(super) fn too_many_unhealthy(pool: &WindowsNodePool, seen: &ObservedPool<'_>, groups: &Groups) -> Option<Trouble> {
    // A node whose change has begun may be lost, too.
    let names = if groups.not_ready.is_empty() { &groups.unavailable } else { &groups.not_ready };
    let message = || {
        format!(
            "not Ready: {}; that is more than remediation.maxUnhealthy ({}), so none is repaired unless a user requests it: find a common cause (network, API server, a change), or set a \
             higher limit",
            first_names(names),
            pool.spec.remediation().max_unhealthy()
        )
    };
    seen.decision.too_many_unhealthy.then(|| Trouble::new(Reason::TooManyUnhealthy, message()))
}

fn failed(seen: &ObservedPool<'_>, groups: &Groups) -> Option<Trouble> {
    let of = |names: &[String], what: &str| {
        let message = || format!("{} {what}: {}{}", names.len(), first_failure(names, seen), more(names.len()));
        (!names.is_empty()).then(message)
    };
    let failed = of(&groups.failed, &format!("of {} failed", seen.list.hosts.len()));
    let messages: Vec<String> = failed.into_iter().chain(of(&groups.stuck, "not removed")).collect();
    (!messages.is_empty()).then(|| Trouble::new(Reason::NodesFailed, messages.join("; ")))
}

fn lost(seen: &ObservedPool<'_>) -> Option<Trouble> {
    let lost = &seen.decision.lost;
    let message = || {
        let names = first_names(lost);
        format!(
            "not Ready for longer than rollout.ignoreLostAfterSeconds, and the operator has no connection to the hosts: {names}; start or repair these hosts, or remove them from the list"
        )
    };
    (!lost.is_empty()).then(|| Trouble::new(Reason::NodesLost, message()))
}

/// Returns the trouble with nodes that are not Ready, with the start time and the repair of the first one, if they are known.
fn not_ready(
    pool: &WindowsNodePool,
    pause: Option<Pause>,
    seen: &ObservedPool<'_>,
    groups: &Groups,
    now: Timestamp,
) -> Option<Trouble> {
    let others: Vec<String> = groups.not_ready.iter().filter(|n| !seen.decision.lost.contains(*n)).cloned().collect();
    if others.is_empty() || seen.decision.too_many_unhealthy {
        return None;
    }
    let first = others.first().and_then(|name| member(seen, name));
    let since = first.and_then(|m| Some((m, m.candidate.down_since?)));
    // With several nodes, the time and the repair are those of the first one alone.
    let whose = |m: &Member| if others.len() == 1 { String::new() } else { format!("; {}", m.candidate.name) };
    let since =
        since.map(|(m, since)| format!("{} since {}{}", whose(m), shown(since), repair(pool, pause, m, since, now)));
    Some(Trouble::new(
        Reason::NodeNotReady,
        format!("not Ready: {}{}", first_names(&others), since.unwrap_or_default()),
    ))
}

/// Returns text about the repair of a node that has not been Ready since `since`: the time when it begins, the reason why it does not, or the
/// MachineHealthCheck that replaces the node's Machine.
fn repair(pool: &WindowsNodePool, pause: Option<Pause>, member: &Member, since: Timestamp, now: Timestamp) -> String {
    let candidate = &member.candidate;
    let no_repair = candidate.no_repair();
    if let Some(why) = no_repair.as_ref().filter(|_| candidate.health_check.is_some()) {
        return format!(", {why}");
    }
    let remediation = pool.spec.remediation();
    if remediation.type_.unwrap_or_default() == RemediationType::None {
        return ", not repaired: remediation.type is None".into();
    }
    if let Some(pause) = pause {
        return format!(", not repaired: {pause} ({})", pause.field());
    }
    let wait = SignedDuration::try_from(remediation.not_ready_after()).ok();
    let at = wait.and_then(|wait| since.checked_add(wait).ok());
    match at {
        _ if candidate.grant == Some(GrantType::Repair) && !candidate.held => ", being repaired".into(),
        _ if let Some(why) = no_repair => format!(", {why}"),
        Some(at) if at > now => format!(", its repair begins at {}", shown(at)),
        _ if candidate.waits_until.is_some_and(|until| until > now) => {
            format!(", the last attempt failed, next try {}", candidate.waits_until.map(shown).unwrap_or_default())
        }
        Some(_) => ", waits for its turn to be repaired (provisioning.maxConcurrent)".into(),
        None => String::new(),
    }
}

/// Returns the trouble with nodes whose entries now lead to no host, to another machine, or to a host key that they do not declare.
fn wrong_entry(seen: &ObservedPool<'_>) -> Option<Trouble> {
    let refused =
        |m: &'_ Member| Some((m.candidate.name.clone(), m.instance.status.as_ref()?.address_failures.clone()?));
    let refused: Vec<_> = seen.members.iter().filter_map(refused).collect();
    let (name, failure) = refused.first()?;
    let message = format!("the entry of {name} is refused: {}{}", failure.last_message, more(refused.len()));
    Some(Trouble::new(failure.reason(), message))
}

/// Returns the trouble with the first drain that pods block.
fn drain_blocked(seen: &ObservedPool<'_>) -> Option<Trouble> {
    seen.members.iter().find_map(|m| {
        let drain = m.instance.status.as_ref()?.operation.as_ref()?.drain.as_ref()?;
        let since = drain.start_time.known().map(|t| format!(" since {}", shown(t))).unwrap_or_default();
        let message = || format!("the drain of {} is blocked{since}: {}", m.candidate.name, drain.blockers.join("; "));
        (!drain.blockers.is_empty()).then(|| Trouble::new(Reason::DrainBlocked, message()))
    })
}

/// Returns the trouble with entries of the list that are not used.
fn refused(seen: &ObservedPool<'_>) -> Option<Trouble> {
    let first = super::refused(&seen.list.problems).next()?;
    let number = super::refused(&seen.list.problems).count();
    Some(Trouble::new(first.reason, format!("{}{}", first.message, more(number))))
}

/// Returns a note on the number of further faults, if only the first of `n` faults is named; empty if there are none.
pub(super) fn more(n: usize) -> String {
    if n > 1 { format!(" (and {} more)", n - 1) } else { String::new() }
}

fn member<'a>(seen: &ObservedPool<'a>, name: &str) -> Option<&'a Member> {
    seen.members.iter().find(|m| m.candidate.name == name)
}

/// Returns the failure of the first of these hosts as text; empty if there is none.
pub(super) fn first_failure(names: &[String], seen: &ObservedPool<'_>) -> String {
    names.first().and_then(|name| member(seen, name)).and_then(failure).unwrap_or_default()
}
