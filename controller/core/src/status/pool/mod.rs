//! Status and conditions of a pool. Pure.

mod blocked;
mod conditions;
mod events;
mod groups;
mod held;
mod trouble;
mod windows;

use std::collections::BTreeMap;

use api::{
    PlannedHost, Reason, RefusedEntry, Time, VersionCount, WindowsNodePool, WindowsNodePoolStatus,
    conditions::{Status, kind, remove, set},
    names::key,
    services_version::short,
    text::line,
};
use jiff::Timestamp;
use kube::ResourceExt;

use super::shown;
use crate::{
    enumeration::counted,
    inventory::{EntryError, list::List, wmco_nodes::how_to_begin},
    rollout::{
        grants::Decision,
        key_rotation::KeyRotationStatus,
        maintenance_window::{WindowError, Windows},
        member::Member,
        preview,
        progress::Progress,
    },
};
use conditions::{Next, View};
pub use events::events;
pub use groups::next_deadline;
use groups::{Groups, current};

/// Maximum number of refused entries in the status.
const MAX_REFUSED: usize = 50;
/// Maximum length of a text about a refused entry, in characters.
const MAX_TEXT_CHARS: usize = 500;

/// Observed state of a pool.
pub struct ObservedPool<'a> {
    /// Names of Nodes that the legacy operator has listed and no list names now.
    pub strays: &'a [String],
    /// Desired hosts of the pool.
    pub list: &'a List,
    /// Instances of the pool.
    pub members: &'a [Member],
    /// Decision about grants.
    pub decision: &'a Decision,
    /// Progress of the change to another version.
    pub course: &'a Progress,
    /// Differences between the desired version and the one from which it differs most, in words. Empty if they are unknown.
    pub changes: &'a str,
    /// State of the maintenance windows, or the fault of one.
    pub window: Result<&'a Windows, &'a WindowError>,
    /// True if the pool is being deleted.
    pub deleting: bool,
    /// True if all hosts that leave the pool are released unchanged.
    pub orphan: bool,
    /// State of the hosts' SSH keys, if it must be reported.
    pub keys: Option<KeyRotationStatus>,
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Records the numbers of nodes by state.
fn count_nodes(status: &mut WindowsNodePoolStatus, groups: &Groups) {
    let size = |names: &[String]| count(names.len());
    status.ready_nodes = size(&groups.ready);
    status.available_nodes = size(&groups.available);
    status.up_to_date_nodes = size(&groups.up_to_date);
    status.unavailable_nodes = size(&groups.unavailable);
    status.joining_nodes = size(&groups.joining);
    status.updating_nodes = size(&groups.updating);
    status.removing_nodes = size(&groups.leaving);
    status.failed_nodes = size(&groups.failed);
    status.failed_node_names = groups.failed.iter().take(10).cloned().collect();
}

/// Returns the failure of a host as text for the status of the pool.
fn failure(member: &Member) -> Option<String> {
    let status = member.instance.status.as_ref()?;
    if let (None, Some(version)) = (&status.failures, &status.failed_version) {
        return Some(format!("{}: version {} did not work and was rolled back", member.candidate.name, short(version)));
    }
    let failures = status.failures.as_ref()?;
    let since = failures.first_time.and_then(Time::known).map(|at| format!(" (since {})", shown(at)));
    Some(format!("{}: {}{}", member.candidate.name, failures.summary(), since.unwrap_or_default()))
}

/// Returns the status of a pool for the observed state. `warning` has the reason and the message of the condition Warning.
pub fn next(
    pool: &WindowsNodePool,
    seen: &ObservedPool<'_>,
    warning: Option<&(Reason, String)>,
    now: Timestamp,
) -> WindowsNodePoolStatus {
    let before = pool.status.clone().unwrap_or_default();
    let (generation, groups) = (pool.metadata.generation, Groups::of(pool, seen, now));
    let builds = windows::builds(seen.members.iter().filter_map(|m| m.instance.status.as_ref()?.facts.as_ref()));
    let mut status = WindowsNodePoolStatus {
        observed_generation: generation,
        hosts: count(seen.list.hosts.len()),
        refused_hosts: count(refused(&seen.list.problems).count()),
        removals_to_confirm: count(seen.list.to_confirm),
        refused: refused_entries(&seen.list.problems),
        allowed_disruptions: i32::try_from(seen.decision.allowed_disruptions).unwrap_or(i32::MAX),
        desired_version: Some(seen.course.target.clone()),
        versions: versions(seen.members.iter().filter_map(current)),
        hosts_behind_on_patches: windows::behind(&builds),
        windows_builds: windows::shown(builds),
        rollout: seen.course.status.clone(),
        plan: None,
        inventory: seen.list.status.clone(),
        // A tool may remove the annotation again.
        last_handled_reconcile_at: pool
            .annotations()
            .get(key::RECONCILE_REQUESTED)
            .cloned()
            .or(before.last_handled_reconcile_at),
        acts: before.acts,
        hosts_stay: before.hosts_stay || (seen.deleting && seen.orphan),
        unclean_hosts: before.unclean_hosts,
        contacts: seen.list.contacts.clone(),
        effective: Some(pool.spec.effective()),
        conditions: before.conditions,
        ..WindowsNodePoolStatus::default()
    };
    count_nodes(&mut status, &groups);
    let view = View::of(pool, seen, &groups, now);
    let warning = warning.map(|(why, message)| Next::Set(Status::True, *why, message.clone()));
    for (type_, next) in [
        (kind::INVENTORY_SYNCED, view.inventory_synced()),
        (kind::SOURCE_VERIFIED, view.source_verified()),
        (kind::PAUSED, view.paused()),
        (kind::DEGRADED, view.degraded()),
        (kind::UPDATED, view.updated()),
        (kind::UPDATING, view.updating()),
        (kind::READY, view.ready()),
        (kind::STALLED, view.stalled()),
        (kind::RECONCILING, view.reconciling()),
        (kind::KEYS_CURRENT, view.keys_current()),
        (kind::IMAGES_PULLED, view.images_pulled()),
        (kind::WARNING, warning.unwrap_or(Next::Remove)),
    ] {
        match next {
            Next::Set(s, why, message) => set(&mut status.conditions, type_, s, why, &message, generation, now),
            Next::Remove => remove(&mut status.conditions, type_),
            Next::Keep => {}
        }
    }
    status
}

/// Sets or removes the warning of a pool in mode Plan.
pub fn warn(status: &mut WindowsNodePoolStatus, warning: Option<&(Reason, String)>, now: Timestamp) {
    let generation = status.observed_generation;
    match warning {
        Some((why, message)) => {
            set(&mut status.conditions, kind::WARNING, Status::True, *why, message, generation, now);
        }
        None => remove(&mut status.conditions, kind::WARNING),
    }
}

/// Returns the problems of entries, without those of the source.
fn refused(problems: &[EntryError]) -> impl Iterator<Item = &EntryError> {
    problems.iter().filter(|p| !p.host.is_empty())
}

/// Returns the first refused entries of the list, for the status.
fn refused_entries(problems: &[EntryError]) -> Vec<RefusedEntry> {
    let entry = |p: &EntryError| RefusedEntry {
        host: line(&p.host, MAX_TEXT_CHARS),
        reason: p.reason.into(),
        message: line(&p.message, MAX_TEXT_CHARS),
    };
    refused(problems).take(MAX_REFUSED).map(entry).collect()
}

/// Returns the number of nodes for each version, for the first 32 versions.
fn versions(current: impl Iterator<Item = String>) -> Vec<VersionCount> {
    let mut counts: BTreeMap<String, i32> = BTreeMap::new();
    for version in current {
        *counts.entry(version).or_default() += 1;
    }
    counts.into_iter().map(|(version, nodes)| VersionCount { version, nodes }).take(32).collect()
}

/// Returns the status of a pool in mode Plan. `refused_node` is the first node of another operator that cannot be adopted, with the reason.
pub fn planned(
    pool: &WindowsNodePool,
    list: &[PlannedHost],
    hosts: usize,
    members: &[Member],
    problems: &[EntryError],
    refused_node: Option<(Reason, String)>,
    now: Timestamp,
) -> WindowsNodePoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let course = Progress {
        status: status.rollout.clone(),
        target: status.desired_version.clone().unwrap_or_default(),
        ..Progress::default()
    };
    let observed = ObservedPool {
        strays: &[],
        list: &List::default(),
        members,
        decision: &Decision::default(),
        course: &course,
        changes: "",
        window: Ok(&Windows { open: false, closes: None, opens: None }),
        deleting: false,
        orphan: false,
        keys: None,
    };
    let groups = Groups::of(pool, &observed, now);
    let generation = pool.metadata.generation;
    status.observed_generation = generation;
    status.hosts = count(hosts);
    status.refused_hosts = count(refused(problems).count());
    status.removals_to_confirm = 0;
    status.refused = refused_entries(problems);
    // The state of nodes is still reported; no operation begins on them.
    count_nodes(&mut status, &groups);
    status.allowed_disruptions = 0;
    status.effective = Some(pool.spec.effective());
    let plan = preview::status_of(list, hosts);
    let mut put = |type_, s: Status, why: Reason, message: &str| {
        set(&mut status.conditions, type_, s, why, message, generation, now);
    };
    let begin = how_to_begin(&pool.name_any());
    let message = format!("mode Plan, no operation begins: {}; to begin, {begin}", plan.summary);
    match problems.first() {
        None => {
            put(kind::INVENTORY_SYNCED, Status::True, Reason::Succeeded, &counted(hosts, "host"));
            match refused_node {
                None => put(kind::READY, Status::True, Reason::Planned, &message),
                Some((why, first)) => {
                    put(kind::READY, Status::False, why, &format!("{message}. Before that, correct {first}"));
                }
            }
        }
        Some(first) => {
            put(kind::INVENTORY_SYNCED, Status::False, first.reason, &first.message);
            put(kind::READY, Status::False, first.reason, &first.message);
        }
    }
    put(kind::UPDATING, Status::False, Reason::Planned, &message);
    // The end of a pause does not change the pool, so the condition must not wait for a change.
    let (paused, why, until) = conditions::pause_in_words(pool.spec.rollout().pause(now));
    put(kind::PAUSED, paused, why, &until);
    // In mode Plan, no operation updates nodes, and the plan shows what they lack.
    let of_operations = [kind::RECONCILING, kind::STALLED, kind::UPDATED, kind::KEYS_CURRENT, kind::IMAGES_PULLED];
    for type_ in of_operations {
        remove(&mut status.conditions, type_);
    }
    status.plan = Some(plan);
    status
}

/// Returns the status of a pool that the operator cannot work on. `ready_nodes` is the number of Ready nodes, if it is known: one fault must not
/// hide others.
pub fn refuse(
    pool: &WindowsNodePool,
    why: Reason,
    message: &str,
    ready_nodes: Option<usize>,
    now: Timestamp,
) -> WindowsNodePoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation;
    status.observed_generation = generation;
    status.ready_nodes = ready_nodes.map_or(status.ready_nodes, count);
    let ready =
        (status.hosts > 0).then(|| format!("{message}; {} of {} nodes Ready", status.ready_nodes, status.hosts));
    let mut put = |type_, s, message: &str| set(&mut status.conditions, type_, s, why, message, generation, now);
    put(kind::READY, Status::False, ready.as_deref().unwrap_or(message));
    put(kind::DEGRADED, Status::True, message);
    put(kind::STALLED, Status::True, message);
    put(kind::UPDATING, Status::False, message);
    remove(&mut status.conditions, kind::RECONCILING);
    status
}

#[cfg(test)]
mod tests;
