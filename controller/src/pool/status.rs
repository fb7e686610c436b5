//! What a person reads of a pool. Pure.

use std::collections::BTreeMap;

use api::{
    GrantType, Phase, PlannedHost, RolloutStatus, Verdict, VersionCount, WindowsNodePool, WindowsNodePoolStatus,
    conditions::{Status, kind, reason, remove, set},
    names::key,
};
use jiff::Timestamp;
use kube::ResourceExt;

use super::{Member, blocked, keys::Standing, list::List, some};
use crate::inventory::hosts::EntryError;
use wnp_core::rollout::{
    grants::Decision,
    maintenance_window::{WindowError, Windows},
    progress::{BlockedBy, Progress},
};

/// The observed state of the pool.
pub(crate) struct Seen<'a> {
    /// Nodes that the legacy operator has put on its list, and that no list names.
    pub strays: &'a [String],
    /// Its desired hosts.
    pub list: &'a List,
    /// Instances.
    pub members: &'a [Member],
    /// What the plan decided.
    pub decision: &'a Decision,
    /// How far the change to another version may have got.
    pub course: &'a Progress,
    /// Whether changes may begin now.
    pub window: Result<&'a Windows, &'a WindowError>,
    /// Whether the pool is being deleted.
    pub deleting: bool,
    /// State of the hosts' SSH keys, if it must be reported.
    pub keys: Option<Standing>,
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// A failed host in words, for the pool.
fn failure(member: &Member) -> Option<String> {
    let status = member.instance.status.as_ref()?;
    if let (None, Some(version)) = (&status.failures, &status.failed_version) {
        return Some(format!("{}: version {version} did not work and was rolled back", member.candidate.name));
    }
    let failures = status.failures.as_ref()?;
    Some(format!("{}: {}: {}", member.candidate.name, failures.step, failures.last_message))
}

/// The status that follows from what was seen.
pub(crate) fn next(
    pool: &WindowsNodePool,
    seen: &Seen<'_>,
    warning: Option<&(&'static str, String)>,
    now: Timestamp,
) -> WindowsNodePoolStatus {
    let before = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation;
    let names = |f: &dyn Fn(&&Member) -> bool| -> Vec<String> {
        let mut names: Vec<String> = seen.members.iter().filter(f).map(|m| m.candidate.name.clone()).collect();
        names.sort();
        names
    };
    let phase = |m: &Member| m.instance.status.as_ref().and_then(|s| s.phase);
    let current = |m: &Member| m.instance.status.as_ref().and_then(|s| s.current_version.clone());
    // A host counts as failed until an attempt succeeds: the numbers must not dance with every retry.
    let fails = |m: &Member| m.instance.status.as_ref().is_some_and(|s| s.failures.is_some());
    let version = seen.course.target.as_str();
    let failing = names(&|m| !m.candidate.joined && !m.candidate.leaving && fails(m));
    let stuck = names(&|m| m.candidate.leaving && m.instance.status.as_ref().is_some_and(|s| s.failures.is_some()));
    // Of a node that is being changed it is expected.
    let not_ready = names(&|m| m.candidate.joined && !m.candidate.ready && !m.candidate.leaving && !m.candidate.begun);
    let joining =
        names(&|m| !m.candidate.joined && !m.candidate.leaving && !fails(m) && phase(m) == Some(Phase::Joining));
    let waiting =
        names(&|m| !m.candidate.joined && !m.candidate.leaving && !fails(m) && phase(m) != Some(Phase::Joining));
    let leaving = names(&|m| m.candidate.leaving);
    let ready = names(&|m| m.candidate.ready && !m.candidate.leaving);
    let updating = names(&|m| m.candidate.grant.is_some_and(GrantType::is_change) && !m.candidate.leaving);
    let staging =
        names(&|m| m.candidate.grant == Some(GrantType::Stage) && !m.candidate.staged && !m.candidate.leaving);
    // Also during a rollback of all nodes: a person must know that the version was tried and failed.
    let tried = seen.course.status.as_ref().map(|r| r.to_version.as_str());
    let gave_up = |m: &Member| m.instance.status.as_ref().and_then(|s| s.failed_version.as_deref()) == tried;
    let taken_back = names(&|m| tried.is_some() && gave_up(m) && !m.candidate.leaving);
    let update_fails =
        names(&|m| m.candidate.joined && fails(m) && !m.candidate.leaving && (m.candidate.begun || is_kept_waiting(m)));
    let rollout = seen.course.status.as_ref();
    let overdue = names(&|m| is_overdue(m, pool, rollout, now));
    let outdated = names(&|m| m.candidate.joined && !m.candidate.leaving && m.candidate.change.is_some());
    // Hosts of the inventory that have no instance yet: it is made after this was seen.
    let new = seen.list.hosts.len().saturating_sub(names(&|m| !m.candidate.leaving).len());
    let mut failed: Vec<String> =
        failing.iter().chain(&stuck).chain(&taken_back).chain(&update_fails).cloned().collect();
    failed.sort();
    failed.dedup();

    let mut status = WindowsNodePoolStatus {
        observed_generation: generation,
        nodes: count(seen.list.hosts.len()),
        ready_nodes: count(ready.len()),
        available_nodes: count(names(&|m| m.candidate.available && !m.candidate.leaving).len()),
        up_to_date_nodes: count(
            names(&|m| m.candidate.ready && !m.candidate.leaving && current(m).as_deref() == Some(version)).len(),
        ),
        unavailable_nodes: count(names(&|m| m.candidate.joined && !m.candidate.available).len()),
        joining_nodes: count(joining.len()),
        removing_nodes: count(leaving.len()),
        failed_nodes: count(failed.len()),
        allowed_disruptions: i32::try_from(seen.decision.allowed_disruptions).unwrap_or(i32::MAX),
        desired_version: Some(version.into()),
        updating_nodes: count(updating.len()),
        versions: versions(seen.members.iter().filter_map(current)),
        rollout: seen.course.status.clone(),
        plan: None,
        inventory: seen.list.status.clone(),
        last_handled_reconcile_at: pool.annotations().get(key::RECONCILE_REQUESTED).cloned(),
        failed_node_names: failed.iter().take(10).cloned().collect(),
        unclean_hosts: before.unclean_hosts.clone(),
        contacts: seen.list.contacts.clone(),
        effective: Some(pool.spec.effective()),
        conditions: before.conditions,
    };
    let mut put = |type_, s: Status, why: &str, message: &str| {
        set(&mut status.conditions, type_, s, why, message, generation, now);
    };

    let problem = seen.list.problems.first();
    match problem {
        None => {
            let message = format!("{} hosts{}", seen.list.hosts.len(), told_of_strays(seen.strays));
            put(kind::INVENTORY_SYNCED, Status::True, reason::SUCCEEDED, &message);
        }
        Some(first) => {
            let all = seen.list.problems.iter().map(|p| p.message.as_str()).take(3).collect::<Vec<_>>().join("; ");
            put(kind::INVENTORY_SYNCED, Status::False, first.reason, &(all + &told_of_strays(seen.strays)));
        }
    }

    if let Some(status) = seen.list.status.as_ref().filter(|_| pool.spec.inventory.is_verified()) {
        let (is_so, why) = match status.verdict {
            Verdict::Verified => (Status::True, reason::SUCCEEDED),
            Verdict::NotAsked => (Status::False, "NotVerified"),
        };
        let signer = status.signer.as_deref().unwrap_or("an unknown key");
        let revision = status.revision.as_deref().unwrap_or_default();
        put(kind::SOURCE_VERIFIED, is_so, why, &format!("{revision} was signed by {signer}"));
    }

    let paused = pool.spec.rollout().paused();
    put(kind::PAUSED, paused.into(), if paused { reason::PAUSED } else { reason::NOT_PAUSED }, "");

    // What is wrong, the worst first.
    let told = |names: &[String]| {
        let first = seen.members.iter().find(|m| Some(&m.candidate.name) == names.first());
        first.and_then(failure).unwrap_or_default()
    };
    let more = |n: usize| if n > 1 { format!(" (and {} more)", n - 1) } else { String::new() };
    let lost = &seen.decision.lost;
    let trouble: Option<(String, String)> = if let Some(first) = problem {
        Some((first.reason.into(), format!("{}{}", first.message, more(seen.list.problems.len()))))
    } else if !failed.is_empty() {
        Some((
            reason::NODES_FAILED.into(),
            format!("{} of {} failed: {}{}", failed.len(), seen.members.len(), told(&failed), more(failed.len())),
        ))
    } else if seen.decision.too_many_unhealthy {
        Some((reason::TOO_MANY_UNHEALTHY.into(), format!("not Ready: {}", some(&not_ready))))
    } else if !lost.is_empty() {
        Some((reason::NODES_LOST.into(), format!("not Ready, and their hosts do not answer: {}", some(lost))))
    } else if !not_ready.is_empty() {
        Some((reason::NODES_NOT_READY.into(), format!("not Ready: {}", some(&not_ready))))
    } else {
        let blocked = seen.members.iter().find_map(|m| {
            let drain = m.instance.status.as_ref()?.operation.as_ref()?.drain.as_ref()?;
            (!drain.blockers.is_empty()).then(|| format!("{}: {}", m.candidate.name, drain.blockers.join("; ")))
        });
        blocked.map(|text| (reason::DRAIN_BLOCKED.to_string(), text))
    };
    match &trouble {
        Some((why, message)) => put(kind::DEGRADED, Status::True, why, message),
        None => put(kind::DEGRADED, Status::False, reason::AS_EXPECTED, ""),
    }

    // What nodes that are to be changed wait for, other than for their turn.
    let held = held(seen, paused);
    match outdated.is_empty() && failing.is_empty() && joining.is_empty() && waiting.is_empty() && new == 0 {
        true => put(kind::UPDATED, Status::True, "AllNodesUpdated", ""),
        false if !outdated.is_empty() => {
            let why = held.as_ref().map_or(reason::ROLLING_OUT, |h| h.reason);
            let message = format!(
                "{} of {} nodes do not follow version {version}: {}",
                outdated.len(),
                seen.list.hosts.len(),
                some(&outdated)
            );
            put(kind::UPDATED, Status::False, why, &message);
        }
        false => put(kind::UPDATED, Status::False, reason::PROVISIONING, ""),
    }

    // What is happening.
    let to_update = match &held {
        Some(held) if !held.passes => Vec::new(),
        _ => seen.decision.waiting.clone(),
    };
    let mut doing: Vec<String> = updating.first().and_then(|first| step_of(seen.members, first)).into_iter().collect();
    for (names, verb) in [
        (&updating, "updating"),
        (&staging, "staging"),
        (&to_update, "to be updated"),
        (&joining, "joining"),
        (&leaving, "leaving"),
        (&failing, "waiting to retry"),
        (&waiting, "waiting to join"),
    ] {
        if !names.is_empty() {
            doing.push(format!("{} {verb}: {}", names.len(), some(names)));
        }
    }
    if new > 0 {
        doing.push(format!("{new} new"));
    }
    let act = doing.join("; ");
    let rolled_back = seen.course.status.as_ref().is_some_and(|r| r.rolled_back);
    let why = if !(updating.is_empty() && staging.is_empty() && to_update.is_empty()) {
        if rolled_back { reason::ROLLING_BACK } else { reason::ROLLING_OUT }
    } else if joining.is_empty() && failing.is_empty() && waiting.is_empty() && new == 0 {
        reason::REMOVING
    } else {
        reason::PROVISIONING
    };
    if act.is_empty() {
        let (why, message) = held.as_ref().map_or((reason::UP_TO_DATE, ""), |h| (h.reason, h.message.as_str()));
        put(kind::UPDATING, Status::False, why, message);
    } else {
        put(kind::UPDATING, Status::True, why, &act);
    }

    // The sum of it, for those who read one condition only. It is Unknown, not False, as long as the operator gets on.
    let nodes = match outdated.len() {
        0 => format!("{} of {} nodes Ready", ready.len(), seen.list.hosts.len()),
        n => format!(
            "{} of {} nodes Ready, {} updated",
            ready.len(),
            seen.list.hosts.len(),
            seen.list.hosts.len().saturating_sub(n)
        ),
    };
    let hopeful = act.is_empty() || (failing.is_empty() && stuck.is_empty());
    let stalled = stalled(seen, held.as_ref(), trouble.as_ref()).or_else(|| {
        let limit = pool.spec.rollout().progress_deadline().as_secs();
        let message = || format!("for more than {limit} s: {}", told_or_names(&overdue, &told));
        (!overdue.is_empty()).then(|| (reason::PROGRESS_DEADLINE_EXCEEDED.to_string(), message()))
    });
    let with = |message: &str| if message.is_empty() { nodes.clone() } else { format!("{nodes}; {message}") };
    match (&trouble, &held, act.is_empty()) {
        (_, Some(held), _) if held.stalls => put(kind::READY, Status::False, held.reason, &with(&held.message)),
        (None, None, true) => {
            put(kind::READY, Status::True, if paused { reason::PAUSED } else { reason::SUCCEEDED }, &nodes);
        }
        (None, Some(held), true) => put(kind::READY, Status::True, held.reason, &with(&held.message)),
        (Some((why, message)), ..) if !hopeful || act.is_empty() || problem.is_some() => {
            put(kind::READY, Status::False, why, &with(message));
        }
        _ if paused => put(kind::READY, Status::True, reason::PAUSED, &format!("{nodes}; paused; {act}")),
        _ => put(kind::READY, Status::Unknown, reason::PROGRESSING, &with(&act)),
    }
    // The source is asked again, paused or not.
    let asked_again = problem.filter(|p| p.host.is_empty() && seen.list.mends_itself).map(|p| p.message.clone());
    match (stalled, (act.is_empty() || paused) && asked_again.is_none()) {
        (Some((why, message)), _) => {
            put(kind::STALLED, Status::True, &why, &message);
            remove(&mut status.conditions, kind::RECONCILING);
        }
        (None, true) => {
            remove(&mut status.conditions, kind::STALLED);
            remove(&mut status.conditions, kind::RECONCILING);
        }
        (None, false) => {
            let is_first = failed.is_empty() && asked_again.is_none();
            let why = if is_first { reason::PROGRESSING } else { reason::PROGRESSING_WITH_RETRY };
            put(kind::RECONCILING, Status::True, why, asked_again.as_ref().unwrap_or(&act));
            remove(&mut status.conditions, kind::STALLED);
        }
    }
    if !pool.spec.inventory.is_verified() {
        remove(&mut status.conditions, kind::SOURCE_VERIFIED);
    }
    match &seen.keys {
        Some(keys) => {
            let (s, why, message) = told_of_keys(keys, paused);
            set(&mut status.conditions, kind::KEYS_CURRENT, s, why, &message, generation, now);
        }
        None => remove(&mut status.conditions, kind::KEYS_CURRENT),
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

/// Report on Nodes that no list names: the legacy operator would deconfigure them.
fn told_of_strays(strays: &[String]) -> String {
    match strays.len() {
        0 => String::new(),
        n => format!(
            "; {n} nodes have the label {} and are in no list: {}. The operator ignores them: list them, or remove the label",
            key::BYOH,
            some(strays)
        ),
    }
}

/// Hosts that still accept an old key, and the cause. It is independent of the other conditions: the nodes work with
/// either key.
fn told_of_keys(keys: &Standing, paused: bool) -> (Status, &'static str, String) {
    let of = format!("{} of {} hosts accept an old key: {}", keys.old.len(), keys.total, some(&keys.old));
    match (keys.old.is_empty(), keys.failed.first(), &keys.problem) {
        (_, _, Some(problem)) => (Status::Unknown, reason::CREDENTIALS_UNAVAILABLE, problem.clone()),
        (true, ..) => {
            (Status::True, "AllKeysCurrent", format!("{} hosts accept the first key of their list", keys.total))
        }
        (false, Some((name, why)), _) => {
            let more =
                if keys.failed.len() > 1 { format!(" (and {} more)", keys.failed.len() - 1) } else { String::new() };
            (Status::False, "KeyRotationFailed", format!("{of}; {name}: {why}{more}"))
        }
        (false, None, _) if paused => (Status::False, reason::PAUSED, of),
        (false, None, _) => (Status::False, "RotatingKeys", of),
    }
}

/// What nodes that are to be changed wait for.
struct Held {
    reason: &'static str,
    message: String,
    /// Whether it passes by itself, soon.
    passes: bool,
    /// Whether a person must act.
    stalls: bool,
}

fn held(seen: &Seen<'_>, paused: bool) -> Option<Held> {
    let waiting = &seen.decision.waiting;
    let held = |reason, message, passes, stalls| Some(Held { reason, message, passes, stalls });
    let version = &seen.course.target;
    if let BlockedBy::FailureLimit { failed, rolled_back } = &seen.course.gate.hold {
        let tried = seen.course.status.as_ref().map(|r| r.to_version.clone()).unwrap_or_default();
        let (what, todo) = if *rolled_back {
            ("all nodes return to their previous version", "Change the template or the operator".to_string())
        } else {
            let again = format!("or retry the instances with the annotation {}", api::names::key::RETRY);
            ("no further node is changed", format!("Change the template or the operator, {again}"))
        };
        let message = format!("version {tried} failed on {}; {what}. {todo}", number(*failed, "node"));
        return held(reason::FAILURE_LIMIT_REACHED, message, *rolled_back, true);
    }
    if let Err(error) = seen.window {
        return held(error.reason(), error.to_string(), false, true);
    }
    if waiting.is_empty() {
        return blocked::withheld(seen.members).and_then(|(reason, message)| held(reason, message, false, false));
    }
    let n = waiting.len();
    if paused {
        return held(reason::PAUSED, format!("paused; {n} to be updated: {}", some(waiting)), false, false);
    }
    if let Ok(window) = seen.window
        && !window.open
    {
        let opens =
            window.opens.as_ref().map(|(name, at)| format!("{name} opens at {}", at.strftime("%Y-%m-%dT%H:%MZ")));
        let message = format!("{n} to be updated wait for a maintenance window; {}", opens.unwrap_or_default());
        return held(reason::WAITING_FOR_WINDOW, message, false, false);
    }
    match &seen.course.gate.hold {
        BlockedBy::Approval { .. } => {
            let message = format!(
                "{n} to be updated wait until version {version} is approved: set rollout.approvedVersion to it"
            );
            held(reason::WAITING_FOR_APPROVAL, message, false, false)
        }
        BlockedBy::Soaking { until } => {
            let message = format!("{n} to be updated wait until {}", until.strftime("%Y-%m-%dT%H:%M:%SZ"));
            held(reason::SOAKING, message, true, false)
        }
        _ => blocked::by_cordon(seen.members, seen.decision)
            .and_then(|(reason, message)| held(reason, message, false, false)),
    }
}

/// Faults that only a person can correct.
fn stalled(seen: &Seen<'_>, held: Option<&Held>, trouble: Option<&(String, String)>) -> Option<(String, String)> {
    if let Some(held) = held.filter(|h| h.stalls) {
        return Some((held.reason.into(), held.message.clone()));
    }
    if let Some((why, message)) = trouble.filter(|(why, _)| why == reason::TOO_MANY_UNHEALTHY) {
        let todo = "no node is repaired: when so many are not Ready at once, look for a common cause (network, API server, a change)";
        return Some((why.clone(), format!("{message}; {todo}")));
    }
    let first = seen.list.problems.first().filter(|p| !(p.host.is_empty() && seen.list.mends_itself));
    first.map(|first| (first.reason.to_string(), first.message.clone()))
}

fn number(n: u32, of: &str) -> String {
    if n == 1 { format!("1 {of}") } else { format!("{n} {of}s") }
}

/// What is being done with a node, in its own words.
fn step_of(members: &[Member], name: &str) -> Option<String> {
    let status = members.iter().find(|m| m.candidate.name == name)?.instance.status.as_ref()?;
    let operation = status.operation.as_ref().filter(|o| o.type_.is_change())?;
    let draining = operation.drain.as_ref().filter(|_| operation.step == "Drain");
    let pods = draining.map(|d| format!(", {} left", number(d.remaining.unsigned_abs(), "pod")));
    Some(format!("{name}: {}{}", operation.step, pods.unwrap_or_default()))
}

/// How many nodes follow which version.
fn versions(current: impl Iterator<Item = String>) -> Vec<VersionCount> {
    let mut counts: BTreeMap<String, i32> = BTreeMap::new();
    for version in current {
        *counts.entry(version).or_default() += 1;
    }
    counts.into_iter().map(|(version, nodes)| VersionCount { version, nodes }).take(32).collect()
}

/// The status of a pool in mode Plan.
pub(crate) fn planned(
    pool: &WindowsNodePool,
    list: &[PlannedHost],
    hosts: usize,
    members: &[Member],
    problems: &[EntryError],
    now: Timestamp,
) -> WindowsNodePoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation;
    status.observed_generation = generation;
    status.nodes = count(hosts);
    // The state of nodes is still reported; operations on them stop.
    let of = |f: &dyn Fn(&Member) -> bool| count(members.iter().filter(|m| f(m)).count());
    status.ready_nodes = of(&|m| m.candidate.ready && !m.candidate.leaving);
    status.available_nodes = of(&|m| m.candidate.available && !m.candidate.leaving);
    status.unavailable_nodes = of(&|m| m.candidate.joined && !m.candidate.available);
    status.effective = Some(pool.spec.effective());
    let plan = super::preview::status_of(list, hosts);
    let mut put = |type_, s: Status, why: &str, message: &str| {
        set(&mut status.conditions, type_, s, why, message, generation, now);
    };
    let message = format!("mode Plan, no operation begins: {}", plan.summary);
    match problems.first() {
        None => {
            put(kind::INVENTORY_SYNCED, Status::True, reason::SUCCEEDED, &format!("{hosts} hosts"));
            put(kind::READY, Status::True, reason::PLANNED, &message);
        }
        Some(first) => {
            put(kind::INVENTORY_SYNCED, Status::False, first.reason, &first.message);
            put(kind::READY, Status::False, first.reason, &first.message);
        }
    }
    put(kind::UPDATING, Status::False, reason::PLANNED, &message);
    remove(&mut status.conditions, kind::RECONCILING);
    remove(&mut status.conditions, kind::STALLED);
    status.plan = Some(plan);
    status
}

fn told_or_names(names: &[String], told: &dyn Fn(&[String]) -> String) -> String {
    let told = told(names);
    if told.is_empty() { some(names) } else { told }
}

/// Whether a node that works has failures, and still is to be changed or restarted: its host cannot be reached, sent what it needs, or
/// is not fit for it. Nothing is being done with it for most of the time, and nothing of it is to be seen in the Node.
fn is_kept_waiting(member: &Member) -> bool {
    let candidate = &member.candidate;
    let fails = member.instance.status.as_ref().is_some_and(|s| s.failures.is_some());
    fails
        && candidate.joined
        && candidate.ready
        && !candidate.leaving
        && !candidate.held
        && (candidate.change.is_some() || candidate.wants_reboot)
}

/// Whether a host has been on its way for longer than the pool allows.
fn is_overdue(member: &Member, pool: &WindowsNodePool, rollout: Option<&RolloutStatus>, now: Timestamp) -> bool {
    let limit = pool.spec.rollout().progress_deadline();
    let since = |text: &str| text.parse::<Timestamp>().ok();
    let status = member.instance.status.as_ref();
    let failures = status.and_then(|s| s.failures.as_ref());
    let operation =
        status.and_then(|s| s.operation.as_ref()).filter(|o| member.candidate.leaving || o.type_.is_change());
    let under_way = operation.and_then(|o| since(&o.start_time));
    let failing = if is_kept_waiting(member) {
        // Operations that fail before a disruption are short: the clock is that of the first failure in this rollout.
        let first = failures.and_then(|f| since(f.first_time.as_ref()?));
        first.max(rollout.and_then(|r| since(&r.start_time)))
    } else if member.candidate.joined || member.candidate.leaving {
        None
    } else {
        // The same for a host that joins, which has been on its way since it was first wanted.
        failures.and_then(|_| member.instance.creation_timestamp()).map(|t| t.0)
    };
    let began = [under_way, failing].into_iter().flatten().min();
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
