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
    /// Hosts that are no nodes yet, and failed.
    pub failing: Vec<String>,
    /// Hosts whose removal failed.
    pub stuck: Vec<String>,
    /// Nodes that are not Ready and should be. A node that is being changed is not expected to be.
    pub not_ready: Vec<String>,
    /// Hosts that join.
    pub joining: Vec<String>,
    /// Hosts that wait to join.
    pub waiting: Vec<String>,
    /// Hosts that leave, or wait to.
    pub leaving: Vec<String>,
    /// Ready nodes that stay.
    pub ready: Vec<String>,
    /// Nodes that have been Ready for long enough, take pods, and stay.
    pub available: Vec<String>,
    /// Ready nodes that stay, and follow the desired version.
    pub up_to_date: Vec<String>,
    /// Nodes that are not available.
    pub unavailable: Vec<String>,
    /// Nodes that are being changed.
    pub updating: Vec<String>,
    /// Nodes that do not work, and are being repaired.
    pub repairing: Vec<String>,
    /// Nodes that are to be restarted, because Windows or a user requests it, and that wait for their turn.
    pub to_restart: Vec<String>,
    /// Nodes that are drained for maintenance, or are about to be. Nothing is expected of them.
    pub maintained: Vec<String>,
    /// Nodes that are being sent what their change needs.
    pub staging: Vec<String>,
    /// Hosts that have been on their way for longer than the pool allows.
    pub overdue: Vec<String>,
    /// Nodes that do not follow the desired version.
    pub outdated: Vec<String>,
    /// Number of nodes that follow the desired version, Ready or not.
    pub updated: usize,
    /// All hosts that failed.
    pub failed: Vec<String>,
    /// Hosts that have failed for so long, or so often, that the pool counts as failed while the operator continues to try.
    pub lasting: Vec<String>,
    /// Number of listed hosts that had no instance yet when the pool was observed.
    pub new: usize,
}

impl Groups {
    /// Sorts the hosts of a pool.
    pub(super) fn of(pool: &WindowsNodePool, seen: &ObservedPool<'_>, now: Timestamp) -> Self {
        // What goes over to another pool is that pool's.
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
        // What was granted in this reconcile counts already: otherwise a pool would be Ready from a change of its template until its first
        // node is seen to have its grant.
        let granted = |m: &Member| match seen.decision.changes.get(&m.candidate.name) {
            Some(change) => change.as_ref().map(|g| g.type_),
            None => m.candidate.grant,
        };
        let rollout = seen.course.status.as_ref();
        let tried = rollout.map(|r| r.to_version.as_str());
        // Also during a rollback of all nodes: a user must know that the version was tried and failed.
        let gave_up = |m: &Member| m.instance.status.as_ref().and_then(|s| s.failed_version.as_deref()) == tried;
        let failing = names(&|m| joins(m) && fails(m));
        let stuck = names(&|m| m.candidate.leaving && fails(m));
        let taken_back = names(&|m| tried.is_some() && gave_up(m) && stays(m));
        // Between two attempts, too: the numbers must not dance.
        let is_to_do = |m: &Member| m.candidate.begun || !m.candidate.ready || is_kept_waiting(m);
        let update_fails = names(&|m| m.candidate.joined && !m.candidate.held && fails(m) && stays(m) && is_to_do(m));
        let mut failed: Vec<String> =
            failing.iter().chain(&stuck).chain(&taken_back).chain(&update_fails).cloned().collect();
        failed.sort();
        failed.dedup();
        Self {
            not_ready: names(&|m| {
                let is_expected = m.candidate.begun && granted(m) != Some(GrantType::Repair);
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
            unavailable: names(&|m| m.candidate.joined && !m.candidate.available),
            updating: names(&|m| {
                let is_update =
                    |g: GrantType| g.is_change() && !matches!(g, GrantType::Maintenance | GrantType::Repair);
                // An attempt with a host that is off, and was tried in vain before, is no progress.
                granted(m).is_some_and(is_update) && stays(m) && (m.candidate.ready || !fails(m))
            }),
            repairing: names(&|m| granted(m) == Some(GrantType::Repair) && stays(m)),
            to_restart: names(&|m| {
                m.candidate.wants_reboot
                    && !m.candidate.held
                    && stays(m)
                    && !granted(m).is_some_and(GrantType::is_change)
            }),
            maintained: names(&|m| granted(m) == Some(GrantType::Maintenance) && stays(m)),
            staging: names(&|m| granted(m) == Some(GrantType::Stage) && !m.candidate.staged && stays(m)),
            overdue: names(&|m| is_overdue(m, pool, rollout, now)),
            outdated: names(&|m| m.candidate.joined && stays(m) && m.candidate.change.is_some()),
            updated: names(&|m| m.candidate.joined && stays(m) && m.candidate.change.is_none()).len(),
            new: seen.list.hosts.len().saturating_sub(names(&|m| stays(m)).len()),
            lasting: names(&|m| {
                failed.contains(&m.candidate.name) && failures(m).is_some_and(|failures| lasts(failures, now))
            }),
            failing,
            stuck,
            failed,
        }
    }
}

/// The version that a host follows.
pub(super) fn current(member: &Member) -> Option<String> {
    member.instance.status.as_ref().and_then(|s| s.current_version.clone())
}

/// Failures of a host since its last success.
fn failures(member: &Member) -> Option<&Failures> {
    member.instance.status.as_ref()?.failures.as_ref()
}

/// Reports whether a host has failed since its last success. A host counts as failed until an attempt succeeds: the numbers must not dance with every
/// retry.
fn fails(member: &Member) -> bool {
    failures(member).is_some()
}

/// Reports whether a node has failures, and still is to be changed or restarted: its host cannot be reached, sent what it needs, or is not fit for
/// it. Nothing is being done with it for most of the time.
fn is_kept_waiting(member: &Member) -> bool {
    let candidate = &member.candidate;
    fails(member)
        && candidate.joined
        && !candidate.leaving
        && !candidate.held
        && (candidate.change.is_some() || candidate.wants_reboot)
}

/// Reports whether a user keeps the host in maintenance, for as long as they like. Maintenance that a host keeps on requesting is reported.
fn is_in_maintenance(operation: &Operation, member: &Member) -> bool {
    operation.type_ == GrantType::Maintenance && member.candidate.maintenance == Some(By::Person)
}

/// Reports whether a host has been on its way for as long as the pool allows.
fn is_overdue(member: &Member, pool: &WindowsNodePool, rollout: Option<&RolloutStatus>, now: Timestamp) -> bool {
    deadline(member, pool, rollout).is_some_and(|at| at <= now)
}

/// Time when the next of these hosts, or the change of all, will have been on its way for as long as the pool allows, or will have failed for so long
/// that it counts as failed. No other event may come with that time: a host that hangs reports nothing.
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

/// Time when a host will have been on its way for as long as the pool allows; `None` if it is not on its way.
fn deadline(member: &Member, pool: &WindowsNodePool, rollout: Option<&RolloutStatus>) -> Option<Timestamp> {
    on_its_way_since(member, rollout)?.checked_add(pool.spec.rollout().progress_deadline()).ok()
}

fn on_its_way_since(member: &Member, rollout: Option<&RolloutStatus>) -> Option<Timestamp> {
    let status = member.instance.status.as_ref();
    let failures = failures(member);
    let operation = status
        .and_then(|s| s.operation.as_ref())
        .filter(|o| member.candidate.leaving || (o.type_.is_change() && !is_in_maintenance(o, member)));
    // A node that is handed back has had all the time of its maintenance before.
    let is_handed_back = |o: &Operation| o.type_ == GrantType::Maintenance && member.candidate.maintenance.is_none();
    let began = |o: &Operation| if is_handed_back(o) { o.step_start_time } else { o.start_time };
    let under_way = operation.and_then(|o| began(o).known());
    let failing = if is_kept_waiting(member) {
        // Operations that fail before a disruption are short: the clock is that of the first failure in this rollout.
        let first = failures.and_then(|f| f.first_time?.known());
        first.max(rollout.and_then(|r| r.start_time.known()))
    } else if member.candidate.joined || member.candidate.leaving {
        None
    } else {
        // The same for a host that joins, which has been on its way since it was first wanted.
        failures.and_then(|_| member.instance.creation_timestamp()).map(|t| t.0)
    };
    [under_way, failing].into_iter().flatten().min()
}

/// Time when a change counts as stuck that no node makes progress with.
pub(super) fn standstill(pool: &WindowsNodePool, decision: &Decision) -> Option<Timestamp> {
    decision.used_up.as_ref()?.since()?.checked_add(pool.spec.rollout().progress_deadline()).ok()
}
