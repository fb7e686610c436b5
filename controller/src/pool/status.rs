//! What a person reads of a pool. Pure.

use api::{
    Phase, WindowsNodePool, WindowsNodePoolStatus,
    conditions::{Status, kind, reason, remove, set},
};
use jiff::Timestamp;
use kube::ResourceExt;

use super::Member;
use crate::{inventory::hosts::Problem, plan::grants::Decision};

/// What a look at the pool has found.
pub(crate) struct Seen<'a> {
    /// Hosts of the inventory that are used.
    pub hosts: usize,
    /// Entries that are not.
    pub problems: &'a [Problem],
    /// Instances.
    pub members: &'a [Member],
    /// What the plan decided.
    pub decision: &'a Decision,
    /// Whether the pool is being deleted.
    pub deleting: bool,
}

/// The first names of a list, and how many more there are: a message must not grow with the pool.
fn some(names: &[String]) -> String {
    let shown = names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        0..=3 => shown,
        n => format!("{shown} and {} more", n - 3),
    }
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// A failed host in words, for the pool.
fn failure(member: &Member) -> Option<String> {
    let failures = member.instance.status.as_ref()?.failures.as_ref()?;
    Some(format!("{}: {}: {}", member.slot.name, failures.step, failures.last_message))
}

/// The status that follows from what was seen.
pub(crate) fn next(
    pool: &WindowsNodePool,
    seen: &Seen<'_>,
    version: &str,
    warning: Option<&(&'static str, String)>,
    now: Timestamp,
) -> WindowsNodePoolStatus {
    let before = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation;
    let names = |f: &dyn Fn(&&Member) -> bool| -> Vec<String> {
        let mut names: Vec<String> = seen.members.iter().filter(f).map(|m| m.slot.name.clone()).collect();
        names.sort();
        names
    };
    let phase = |m: &Member| m.instance.status.as_ref().and_then(|s| s.phase);
    let current = |m: &Member| m.instance.status.as_ref().and_then(|s| s.current_version.clone());
    // A host counts as failed until an attempt succeeds: the numbers must not dance with every retry.
    let fails = |m: &Member| m.instance.status.as_ref().is_some_and(|s| s.failures.is_some());
    let failing = names(&|m| !m.slot.joined && !m.slot.leaving && fails(m));
    let stuck = names(&|m| m.slot.leaving && m.instance.status.as_ref().is_some_and(|s| s.failures.is_some()));
    let not_ready = names(&|m| m.slot.joined && !m.ready && !m.slot.leaving);
    let joining = names(&|m| !m.slot.joined && !m.slot.leaving && !fails(m) && phase(m) == Some(Phase::Joining));
    let waiting = names(&|m| !m.slot.joined && !m.slot.leaving && !fails(m) && phase(m) != Some(Phase::Joining));
    let leaving = names(&|m| m.slot.leaving);
    let ready = names(&|m| m.ready && !m.slot.leaving);
    let overdue = names(&|m| is_overdue(m, pool, now));
    let outdated = names(&|m| m.slot.joined && !m.slot.leaving && current(m).as_deref() != Some(version));
    // Hosts of the inventory that have no instance yet: it is made after this was seen.
    let new = seen.hosts.saturating_sub(names(&|m| !m.slot.leaving).len());
    let mut failed: Vec<String> = failing.iter().chain(&stuck).cloned().collect();
    failed.sort();

    let mut status = WindowsNodePoolStatus {
        observed_generation: generation,
        nodes: count(seen.hosts),
        ready_nodes: count(ready.len()),
        available_nodes: count(names(&|m| m.slot.available && !m.slot.leaving).len()),
        up_to_date_nodes: count(names(&|m| m.ready && !m.slot.leaving && current(m).as_deref() == Some(version)).len()),
        unavailable_nodes: count(names(&|m| m.slot.joined && !m.slot.available).len()),
        joining_nodes: count(joining.len()),
        removing_nodes: count(leaving.len()),
        failed_nodes: count(failed.len()),
        allowed_disruptions: i32::try_from(seen.decision.allowed_disruptions).unwrap_or(i32::MAX),
        desired_version: Some(version.into()),
        updating_nodes: 0,
        versions: Vec::new(),
        rollout: before.rollout.clone(),
        plan: None,
        failed_node_names: failed.iter().take(10).cloned().collect(),
        unclean_hosts: before.unclean_hosts.clone(),
        effective: Some(pool.spec.effective()),
        conditions: before.conditions,
    };
    let mut put = |type_, s: Status, why: &str, message: &str| {
        set(&mut status.conditions, type_, s, why, message, generation, now);
    };

    let problem = seen.problems.first();
    match problem {
        None => put(kind::INVENTORY_SYNCED, Status::True, reason::SUCCEEDED, &format!("{} hosts", seen.hosts)),
        Some(first) => {
            let all = seen.problems.iter().map(|p| p.message.as_str()).take(3).collect::<Vec<_>>().join("; ");
            put(kind::INVENTORY_SYNCED, Status::False, first.reason, &all);
        }
    }

    let paused = pool.spec.rollout().paused();
    put(kind::PAUSED, paused.into(), if paused { reason::PAUSED } else { reason::NOT_PAUSED }, "");

    // What is wrong, the worst first.
    let told = |names: &[String]| {
        let first = seen.members.iter().find(|m| Some(&m.slot.name) == names.first());
        first.and_then(failure).unwrap_or_default()
    };
    let more = |n: usize| if n > 1 { format!(" (and {} more)", n - 1) } else { String::new() };
    let trouble: Option<(String, String)> = if let Some(first) = problem {
        Some((first.reason.into(), format!("{}{}", first.message, more(seen.problems.len()))))
    } else if !failed.is_empty() {
        Some((
            reason::NODES_FAILED.into(),
            format!("{} of {} failed: {}{}", failed.len(), seen.members.len(), told(&failed), more(failed.len())),
        ))
    } else if !not_ready.is_empty() {
        Some((reason::NODES_NOT_READY.into(), format!("not Ready: {}", some(&not_ready))))
    } else {
        let blocked = seen.members.iter().find_map(|m| {
            let drain = m.instance.status.as_ref()?.operation.as_ref()?.drain.as_ref()?;
            (!drain.blockers.is_empty()).then(|| format!("{}: {}", m.slot.name, drain.blockers.join("; ")))
        });
        blocked.map(|text| (reason::DRAIN_BLOCKED.to_string(), text))
    };
    match &trouble {
        Some((why, message)) => put(kind::DEGRADED, Status::True, why, message),
        None => put(kind::DEGRADED, Status::False, reason::AS_EXPECTED, ""),
    }

    match outdated.is_empty() && failing.is_empty() && joining.is_empty() && waiting.is_empty() && new == 0 {
        true => put(kind::UPDATED, Status::True, "AllNodesUpdated", ""),
        false if !outdated.is_empty() => {
            put(
                kind::UPDATED,
                Status::False,
                reason::OUTDATED,
                &format!("follow another version: {}", some(&outdated)),
            );
        }
        false => put(kind::UPDATED, Status::False, reason::PROVISIONING, ""),
    }

    // What is happening.
    let mut doing = Vec::new();
    for (names, verb) in
        [(&joining, "joining"), (&leaving, "leaving"), (&failing, "tried again later"), (&waiting, "waiting to join")]
    {
        if !names.is_empty() {
            doing.push(format!("{} {verb}: {}", names.len(), some(names)));
        }
    }
    if new > 0 {
        doing.push(format!("{new} new"));
    }
    let act = doing.join("; ");
    let why = if joining.is_empty() && failing.is_empty() && waiting.is_empty() && new == 0 {
        reason::REMOVING
    } else {
        reason::PROVISIONING
    };
    if act.is_empty() {
        put(kind::UPDATING, Status::False, reason::UP_TO_DATE, "");
    } else {
        put(kind::UPDATING, Status::True, why, &act);
    }

    // The sum of it, for those who read one condition only. It is Unknown, not False, as long as the operator gets on.
    let nodes = format!("{} of {} nodes Ready", ready.len(), seen.hosts);
    let hopeful = act.is_empty() || (failing.is_empty() && stuck.is_empty());
    let stalled = if overdue.is_empty() {
        problem.map(|first| (first.reason.to_string(), first.message.clone()))
    } else {
        let limit = pool.spec.rollout().progress_deadline().as_secs();
        Some((
            reason::PROGRESS_DEADLINE_EXCEEDED.to_string(),
            format!("for more than {limit} s: {}", told_or_names(&overdue, &told)),
        ))
    };
    match (&trouble, act.is_empty()) {
        (None, true) => put(kind::READY, Status::True, if paused { reason::PAUSED } else { reason::SUCCEEDED }, &nodes),
        (Some((why, message)), _) if !hopeful || act.is_empty() || problem.is_some() => {
            put(kind::READY, Status::False, why, &format!("{nodes}; {message}"));
        }
        _ if paused => put(kind::READY, Status::True, reason::PAUSED, &format!("{nodes}; paused; {act}")),
        _ => put(kind::READY, Status::Unknown, reason::PROGRESSING, &format!("{nodes}; {act}")),
    }
    match (stalled, act.is_empty() || paused) {
        (Some((why, message)), _) => {
            put(kind::STALLED, Status::True, &why, &message);
            remove(&mut status.conditions, kind::RECONCILING);
        }
        (None, true) => {
            remove(&mut status.conditions, kind::STALLED);
            remove(&mut status.conditions, kind::RECONCILING);
        }
        (None, false) => {
            let why = if failed.is_empty() { reason::PROGRESSING } else { reason::PROGRESSING_WITH_RETRY };
            put(kind::RECONCILING, Status::True, why, &act);
            remove(&mut status.conditions, kind::STALLED);
        }
    }
    match warning {
        Some((why, message)) => set(&mut status.conditions, kind::WARNING, Status::True, why, message, generation, now),
        None => remove(&mut status.conditions, kind::WARNING),
    }
    if seen.deleting {
        set(
            &mut status.conditions,
            kind::READY,
            Status::Unknown,
            "Deleting",
            &format!("being deleted; {act}"),
            generation,
            now,
        );
    }
    status
}

fn told_or_names(names: &[String], told: &dyn Fn(&[String]) -> String) -> String {
    let told = told(names);
    if told.is_empty() { some(names) } else { told }
}

/// Whether a host has been on its way for longer than the pool allows.
fn is_overdue(member: &Member, pool: &WindowsNodePool, now: Timestamp) -> bool {
    let limit = pool.spec.rollout().progress_deadline();
    let since = |text: &str| text.parse::<Timestamp>().ok();
    let status = member.instance.status.as_ref();
    let began = match (member.slot.joined || member.slot.leaving, status.and_then(|s| s.operation.as_ref())) {
        (_, Some(operation)) if member.slot.leaving => since(&operation.start_time),
        (true, _) => None,
        // Operations of a host that fails are short; the host has been on its way since it was first wanted.
        (false, _) => {
            status.and_then(|s| s.failures.as_ref()).and_then(|_| member.instance.creation_timestamp()).map(|t| t.0)
        }
    };
    began.is_some_and(|t| std::time::Duration::try_from(now.duration_since(t)).unwrap_or_default() > limit)
}

/// The status of a pool that cannot be worked on at all.
pub fn refuse(pool: &WindowsNodePool, why: &str, message: &str, now: Timestamp) -> WindowsNodePoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation;
    status.observed_generation = generation;
    for (type_, s) in [(kind::READY, Status::False), (kind::DEGRADED, Status::True), (kind::STALLED, Status::True)] {
        set(&mut status.conditions, type_, s, why, message, generation, now);
    }
    remove(&mut status.conditions, kind::RECONCILING);
    status
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
