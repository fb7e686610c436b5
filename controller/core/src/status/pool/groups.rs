//! Groups of a pool's hosts by their state.

use api::{Failures, GrantType, Operation, Phase, RolloutStatus, WindowsNodePool};
use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    super::failing::{lasts, lasts_from},
    ObservedPool,
};
use crate::{
    node::maintenance::By,
    rollout::{grants::Decision, member::Member},
};

/// Names of the hosts of each group, sorted. A host may be in several.
pub(super) struct Groups {
    /// Hosts that failed before they became nodes.
    pub failing: Vec<String>,
    /// Hosts whose removal failed.
    pub stuck: Vec<String>,
    /// Nodes that are not Ready, but should be. A node that is being changed is left out, unless it is being repaired.
    pub not_ready: Vec<String>,
    /// Hosts that join.
    pub joining: Vec<String>,
    /// Hosts that wait to join.
    pub waiting: Vec<String>,
    /// Hosts that leave, or wait to leave.
    pub leaving: Vec<String>,
    /// Ready nodes that stay.
    pub ready: Vec<String>,
    /// Nodes that have been Ready for long enough, take pods, and stay.
    pub available: Vec<String>,
    /// Ready nodes that stay, and follow the desired version.
    pub up_to_date: Vec<String>,
    /// Nodes that stay, and are not available.
    pub unavailable: Vec<String>,
    /// Nodes that stay, and are being changed or restarted. Maintenance, repairs, and retries on nodes that are not Ready are left out.
    pub updating: Vec<String>,
    /// Nodes that do not work, and are being repaired.
    pub repairing: Vec<String>,
    /// Nodes that stay, and wait for a restart that Windows or a user requests. Held nodes are left out.
    pub to_restart: Vec<String>,
    /// Nodes that are drained for maintenance, or are about to be. They are not expected to work.
    pub maintained: Vec<String>,
    /// Nodes that receive the files for their change in advance.
    pub staging: Vec<String>,
    /// Hosts that have exceeded the progress deadline of the pool.
    pub overdue: Vec<String>,
    /// Nodes that stay and need a change, mostly because they do not follow the desired version.
    pub outdated: Vec<String>,
    /// Number of nodes that stay and need no change, Ready or not.
    pub updated: usize,
    /// Hosts that stay, and failed while they joined or while their nodes were changed, or failed to follow the version of the rollout.
    pub failed: Vec<String>,
    /// Hosts that have failed for so long, or so often, that the pool counts as failed while the operator continues to try.
    pub lasting: Vec<String>,
    /// Number of listed hosts that had no instance, or only one that leaves, when the pool was observed.
    pub new: usize,
}

impl Groups {
    /// Groups the hosts of a pool.
    pub(super) fn of(pool: &WindowsNodePool, seen: &ObservedPool<'_>, now: Timestamp) -> Self {
        // Hosts that move to another pool count in that pool.
        let own = |m: &&Member| !seen.list.moves.contains_key(&m.candidate.name);
        let names = |f: &dyn Fn(&&Member) -> bool| -> Vec<String> {
            let own = seen.members.iter().filter(own).filter(f);
            let mut names: Vec<String> = own.map(|m| m.candidate.name.clone()).collect();
            names.sort();
            names
        };
        let phase = |m: &Member| m.instance.status.as_ref().and_then(|s| s.phase);
        let stays = |m: &Member| !m.candidate.leaving;
        let joins = |m: &Member| !m.candidate.joined && stays(m);
        // Grants of this reconcile already count: otherwise a pool would stay Ready after a change of its template until its first node is seen
        // to have its grant.
        let granted = |m: &Member| match seen.decision.changes.get(&m.candidate.name) {
            Some(change) => change.as_ref().map(|g| g.type_),
            None => m.candidate.grant,
        };
        // An operation whose grant is revoked counts until it has ended: the node need not be Ready again.
        let change = |m: &Member| {
            let operation = m.instance.status.as_ref().and_then(|s| s.operation.as_ref()).map(|o| o.type_);
            let begun = operation.filter(|_| m.candidate.begun);
            granted(m).filter(|g| g.is_change()).or(begun)
        };
        let rollout = seen.course.status.as_ref();
        let tried = rollout.map(|r| r.to_version.as_str());
        // Failures also count during a rollback of all nodes: a user must know that the version was tried and failed.
        let gave_up = |m: &Member| {
            tried.is_some() && m.instance.status.as_ref().and_then(|s| s.failed_version.as_deref()) == tried
        };
        // Failures also count between two attempts, so that the numbers do not change with every retry.
        let is_to_do = |m: &Member| m.candidate.begun || !m.candidate.ready || is_kept_waiting(m);
        let update_fails = |m: &Member| m.candidate.joined && !m.candidate.held && fails(m) && is_to_do(m);
        let failing = |m: &Member| joins(m) && fails(m);
        let failed = |m: &Member| stays(m) && (failing(m) || gave_up(m) || update_fails(m));
        let stuck = |m: &Member| m.candidate.leaving && fails(m);
        Self {
            not_ready: names(&|m| {
                let is_expected = m.candidate.begun && change(m) != Some(GrantType::Repair);
                m.candidate.joined && !m.candidate.ready && stays(m) && !is_expected
            }),
            joining: names(&|m| joins(m) && !fails(m) && phase(m) == Some(Phase::Joining)),
            waiting: names(&|m| joins(m) && !fails(m) && phase(m) != Some(Phase::Joining)),
            leaving: names(&|m| !stays(m)),
            ready: names(&|m| m.candidate.ready && stays(m)),
            available: names(&|m| m.candidate.available && stays(m)),
            up_to_date: names(&|m| {
                m.candidate.ready && stays(m) && current(m).as_deref() == Some(seen.course.target.as_str())
            }),
            unavailable: names(&|m| m.candidate.joined && !m.candidate.available && stays(m)),
            updating: names(&|m| {
                let is_update = |g: GrantType| !matches!(g, GrantType::Maintenance | GrantType::Repair);
                // A retry on a node that is not Ready is not progress: the host may be off.
                change(m).is_some_and(is_update) && stays(m) && (m.candidate.ready || !fails(m))
            }),
            repairing: names(&|m| change(m) == Some(GrantType::Repair) && stays(m)),
            to_restart: names(&|m| m.candidate.wants_reboot && !m.candidate.held && stays(m) && change(m).is_none()),
            maintained: names(&|m| change(m) == Some(GrantType::Maintenance) && stays(m)),
            staging: names(&|m| granted(m) == Some(GrantType::Stage) && !m.candidate.staged && stays(m)),
            overdue: names(&|m| is_overdue(m, pool, rollout, now)),
            outdated: names(&|m| m.candidate.joined && stays(m) && m.candidate.change.is_some()),
            updated: names(&|m| m.candidate.joined && stays(m) && m.candidate.change.is_none()).len(),
            new: seen.list.hosts.len().saturating_sub(names(&|m| stays(m)).len()),
            lasting: names(&|m| (failed(m) || stuck(m)) && failures(m).is_some_and(|failures| lasts(failures, now))),
            failing: names(&|m| failing(m)),
            stuck: names(&|m| stuck(m)),
            failed: names(&|m| failed(m)),
        }
    }
}

/// Returns the version that a host follows.
pub(super) fn current(member: &Member) -> Option<String> {
    member.instance.status.as_ref().and_then(|s| s.current_version.clone())
}

/// Returns the failures of a host since its last success.
fn failures(member: &Member) -> Option<&Failures> {
    member.instance.status.as_ref()?.failures.as_ref()
}

/// Reports whether a host has failed since its last success. It counts as failed until an attempt succeeds, so that the numbers do not change
/// with every retry.
fn fails(member: &Member) -> bool {
    failures(member).is_some()
}

/// Reports whether a node has failures and still must be changed or restarted: its host cannot be reached, lacks files, or is not fit for the change.
/// Most of the time, no operation is in progress on it. Leaving and held nodes are left out.
fn is_kept_waiting(member: &Member) -> bool {
    let candidate = &member.candidate;
    fails(member)
        && candidate.joined
        && !candidate.leaving
        && !candidate.held
        && (candidate.change.is_some() || candidate.wants_reboot)
}

/// Reports whether an operation is a maintenance that a user has requested on the instance. Such a maintenance may last for any time. One that the
/// host, or a client of its Node, requests is subject to the progress deadline.
fn is_in_maintenance(operation: &Operation, member: &Member) -> bool {
    operation.type_ == GrantType::Maintenance && member.candidate.maintenance == Some(By::Person)
}

/// Reports whether a host has exceeded the progress deadline of the pool.
fn is_overdue(member: &Member, pool: &WindowsNodePool, rollout: Option<&RolloutStatus>, now: Timestamp) -> bool {
    deadline(member, pool, rollout).is_some_and(|at| at <= now)
}

/// Returns the next time when one of these hosts, or the rollout, exceeds the progress deadline, or when a host's failures begin to count as
/// lasting. Without a timer, there might be no reconcile then: a host that hangs reports nothing.
pub fn next_deadline(
    members: &[Member],
    pool: &WindowsNodePool,
    rollout: Option<&RolloutStatus>,
    decision: &Decision,
    now: Timestamp,
) -> Option<Timestamp> {
    let lasts_from = |member: &Member| failures(member).and_then(lasts_from);
    let times = members.iter().flat_map(|member| [deadline(member, pool, rollout), lasts_from(member)]);
    times.flatten().chain(standstill(pool, decision)).filter(|at| *at > now).min()
}

/// Returns the time when a host exceeds the progress deadline of the pool; `None` if no deadline applies to it.
fn deadline(member: &Member, pool: &WindowsNodePool, rollout: Option<&RolloutStatus>) -> Option<Timestamp> {
    on_its_way_since(member, rollout)?.checked_add(pool.spec.rollout().progress_deadline()).ok()
}

fn on_its_way_since(member: &Member, rollout: Option<&RolloutStatus>) -> Option<Timestamp> {
    let status = member.instance.status.as_ref();
    let failures = failures(member);
    let operation = status
        .and_then(|s| s.operation.as_ref())
        .filter(|o| member.candidate.leaving || (o.type_.is_change() && !is_in_maintenance(o, member)));
    // The deadline of a node that returns from maintenance counts from its current step.
    let is_handed_back = |o: &Operation| o.type_ == GrantType::Maintenance && member.candidate.maintenance.is_none();
    let began = |o: &Operation| if is_handed_back(o) { o.step_start_time } else { o.start_time };
    let under_way = operation.and_then(|o| began(o).known());
    let failing = if is_kept_waiting(member) {
        // Operations that fail before a disruption are short, so the deadline counts from the first failure, or from the start of the rollout if that
        // is later.
        let first = failures.and_then(|f| f.first_time?.known());
        first.max(rollout.and_then(|r| r.start_time.known()))
    } else if member.candidate.joined || member.candidate.leaving {
        None
    } else {
        // The deadline of a host whose join has failed counts from the creation of its instance.
        failures.and_then(|_| member.instance.creation_timestamp()).map(|t| t.0)
    };
    [under_way, failing].into_iter().flatten().min()
}

/// Returns the time when a rollout counts as stuck because no node makes progress; `None` if nothing uses up its budget.
pub(super) fn standstill(pool: &WindowsNodePool, decision: &Decision) -> Option<Timestamp> {
    decision.used_up.as_ref()?.since()?.checked_add(pool.spec.rollout().progress_deadline()).ok()
}
