//! Decision about which hosts get a grant.
//!
//! A grant is a slot: it is written on the instance, so that it can be counted, observed and revoked. Joins disrupt no node and are bounded by
//! `provisioning.maxConcurrent` alone. Disruptions of a working node, for example an update, a restart or a removal, are bounded by
//! `rollout.maxUnavailable`; operations on a node that does not work are not charged to it.
//!
//! If a revoked grant may disrupt a node, its slot goes to another host only in the next decision: the write may fail because the operation has begun
//! in between, and then two nodes would be down instead of one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::{Disruption, GrantType, IntOrPercent, RemediationType};
use jiff::Timestamp;

use super::{
    budgets::{Budget, Budgets, Charge},
    candidate::{count, disturbs, has_pods, is_silent, later, waits},
    progress::{BlockedBy, UpdateLimit},
    shared_limit::Share,
};

mod changes;

pub use super::candidate::{Candidate, Lost, PendingChange, lost};

/// Limits on the operations of a pool.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent limit")]
pub struct Limits {
    /// Maximum number of hosts that may join at once. The same number applies separately to repairs, to changes without a disruption, to changes of
    /// unavailable nodes, and to removals that disturb no available node.
    pub max_concurrent: u32,
    /// Number of nodes that may be unavailable at once.
    pub max_unavailable: IntOrPercent,
    /// Number of hosts that may pull images ahead of use at once.
    pub max_pulling: u32,
    /// True if no operation may begin, except the release of a host without deconfiguration.
    pub paused: bool,
    /// True if leaving hosts are released without being deconfigured.
    pub orphan: bool,
    /// True if changes may begin now: a maintenance window is open, or none is defined.
    pub open: bool,
    /// Time after which a rollout no longer waits for a lost node; `None`: it always waits.
    pub ignore_lost_after: Option<Duration>,
    /// Limit on the number of nodes that may have been changed by now.
    pub gate: UpdateLimit,
    /// Remediation of nodes that have not been Ready for a long time.
    pub remediation: RemediationType,
    /// Time after which a node that is not Ready is repaired.
    pub not_ready_after: Duration,
    /// Maximum number of nodes that are not Ready. If there are more, the cause is assumed to be elsewhere, and no node is repaired unless a user
    /// requests it.
    pub max_unhealthy: IntOrPercent,
    /// Remaining share of the limit over all pools; `None`: no such limit applies.
    pub others: Option<Share>,
    /// True if there is a version for joining hosts. False if the version has failed in this pool, and the files of the one before are missing.
    pub joins: bool,
}

/// Cause that keeps all waiting nodes from being changed, while no working node is being changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsedUp {
    /// Nodes that are not Ready or are cordoned use up `maxUnavailable`.
    Unavailable {
        /// Names of the unavailable nodes.
        nodes: Vec<String>,
        /// Number of nodes that may be unavailable at once.
        cap: u32,
        /// Time when the last of the nodes stopped being Ready.
        since: Option<Timestamp>,
    },
    /// Other pools use up the limit over all pools.
    OtherPools(Share),
}

impl UsedUp {
    /// Returns the time since which the nodes wait.
    pub fn since(&self) -> Option<Timestamp> {
        match self {
            Self::Unavailable { since, .. } => *since,
            Self::OtherPools(share) => share.since,
        }
    }
}

/// Grant to write to an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granting {
    /// Type of the grant.
    pub type_: GrantType,
    /// Version of the grant, for grants to stage or update.
    pub version: Option<String>,
    /// Disruption of an update. For a repair: `Reboot` if the host is restarted, too.
    pub disruption: Option<Disruption>,
    /// Services that an update restarts.
    pub services: Vec<String>,
    /// True if the node takes no pods now, so that the grant is not charged to the pod budget.
    pub without_place: bool,
}

impl From<GrantType> for Granting {
    fn from(type_: GrantType) -> Self {
        Self { type_, version: None, disruption: None, services: Vec::new(), without_place: false }
    }
}

/// Decision about the grants of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Grants to write, by host; `None` revokes the grant.
    pub changes: BTreeMap<String, Option<Granting>>,
    /// Nodes that take pods again after an uncharged grant, and for which the budget now has a slot.
    pub placed: BTreeSet<String>,
    /// Number of available nodes that may still be disturbed now.
    pub allowed_disruptions: u32,
    /// Number of nodes that are disturbed because of a grant, or may be at any moment.
    pub disrupting: u32,
    /// Time of the next reconcile without an event.
    pub next: Option<Timestamp>,
    /// Names of lost nodes, for which the rollout does not wait.
    pub lost: Vec<String>,
    /// True if too many nodes are not Ready or lost: the cause is assumed to be elsewhere.
    pub too_many_unhealthy: bool,
    /// Names of the nodes that wait for a grant to update, in the order of their turns.
    pub waiting: Vec<String>,
    /// Cause that keeps all waiting nodes from their turn, although nothing blocks the rollout.
    pub used_up: Option<UsedUp>,
}

/// Decides about the grants of a pool. Decisions ignore vanishing hosts. The same state gives the same decision, whatever the order of `candidates`.
pub fn decide(candidates: &[Candidate], limits: &Limits, now: Timestamp) -> Decision {
    if candidates.iter().any(|s| s.vanishing) {
        let remaining: Vec<Candidate> = candidates.iter().filter(|s| !s.vanishing).cloned().collect();
        return decide(&remaining, limits, now);
    }
    let mut plan = Plan::new(candidates, limits, now);
    plan.join();
    plan.leave();
    plan.maintain();
    plan.renew();
    plan.update();
    plan.reboot();
    plan.maintain_again();
    plan.repair();
    plan.rotate_key();
    plan.pull_images();
    plan.decision()
}

/// Decision about the grant of one host.
enum GrantDecision {
    /// The host keeps its current grant.
    Keep,
    /// The host gets a new grant.
    Give(Granting),
}

/// Decision in progress. A host without an entry in `decisions` gets no grant.
struct Plan<'a> {
    limits: &'a Limits,
    now: Timestamp,
    /// Hosts, sorted by name.
    candidates: Vec<&'a Candidate>,
    lost: Lost,
    /// True if so many nodes are down that the cause is assumed to be elsewhere.
    too_many_down: bool,
    decisions: BTreeMap<&'a str, GrantDecision>,
    /// Nodes that the update limit admits and that wait for their turn: a separate restart now would be one disruption too many.
    admitted: BTreeSet<&'a str>,
    /// Number of nodes that may be unavailable at once.
    cap: u32,
    budgets: Budgets<'a>,
}

impl<'a> Plan<'a> {
    fn new(candidates: &'a [Candidate], limits: &'a Limits, now: Timestamp) -> Self {
        let lost = lost(candidates, limits.ignore_lost_after, limits.max_unhealthy, now);
        let base = |s: &Candidate| s.joined && !s.held && !lost.names.contains(&s.name);
        let cap = limits.max_unavailable.of(count(candidates, base));
        let too_many_down = is_too_many_down(candidates, limits.max_unhealthy);
        let budgets = Budgets::new(candidates, limits, cap, &lost, too_many_down, now);
        let mut sorted: Vec<&Candidate> = candidates.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        let mut plan = Self {
            limits,
            now,
            candidates: sorted,
            decisions: BTreeMap::new(),
            admitted: BTreeSet::new(),
            cap,
            budgets,
            too_many_down,
            lost,
        };
        // An operation that has begun continues to its end: a node must not be left half changed. As long as nothing on the host has changed, the
        // operation can be aborted, which lifts the cordon. The change of a leaving host is not finished first. A host whose removal is revoked is
        // not removed, unless it is already being deconfigured.
        for candidate in plan.candidates.clone() {
            let changes = candidate.begun
                && !candidate.leaving
                && !matches!(candidate.grant, Some(GrantType::Remove | GrantType::Orphan))
                && !plan.should_abort(candidate);
            if candidate.grant.is_some() && (changes || (candidate.leaving && candidate.deconfiguring)) {
                plan.keep(candidate);
            }
        }
        // A key rotation takes seconds, and a pull can end between two images; the next host gets its turn when the operation is over.
        for candidate in plan.candidates.clone() {
            let pulls_on = candidate.pulling && !limits.paused && !candidate.held && candidate.maintenance.is_none();
            let goes_on = (candidate.rotating && candidate.grant == Some(GrantType::RotateKey))
                || (pulls_on && candidate.grant == Some(GrantType::PullImages));
            if goes_on && candidate.joined && !candidate.leaving {
                plan.keep(candidate);
            }
        }
        plan
    }

    /// Reports whether an operation that has not changed anything on its host yet is aborted. The reasons depend on the type of the operation: a user
    /// has put the node on hold or paused the pool, no window is open now, the version has failed elsewhere, the pod budget is exceeded, or the
    /// operation is no longer needed, such as the repair of a node that is Ready again.
    fn should_abort(&self, candidate: &Candidate) -> bool {
        let is_wanted = match candidate.grant {
            Some(GrantType::Update) if candidate.renews.is_some() && candidate.renews == candidate.grant_version => {
                return !candidate.irrevocable && (self.limits.paused || candidate.held);
            }
            Some(GrantType::Update) => {
                let same = |w: &PendingChange| candidate.grant_version.as_ref() == Some(&w.version);
                !candidate.failed && candidate.change.as_ref().is_some_and(same)
            }
            Some(GrantType::Reboot) => candidate.wants_reboot,
            // The requester has chosen the time, so that windows do not apply.
            Some(GrantType::Maintenance) => {
                let is_held = self.limits.paused || candidate.held || candidate.withheld;
                let is_wanted = candidate.maintenance.is_some() && !is_held;
                return !candidate.irrevocable && (!is_wanted || self.budgets.exceeds_pod_budget(candidate));
            }
            // Windows restrict changes, not repairs.
            Some(GrantType::Repair) => return !candidate.irrevocable && !self.may_repair(candidate),
            _ => return false,
        };
        let is_stopped = candidate.grant == Some(GrantType::Update)
            && matches!(self.limits.gate.hold, BlockedBy::FailureLimit { rolled_back: false, .. });
        let goes_on = is_wanted && !is_stopped && self.may_change() && !candidate.held && !candidate.withheld;
        !candidate.irrevocable && !candidate.leaving && (!goes_on || self.budgets.exceeds_pod_budget(candidate))
    }

    fn is_base(&self, candidate: &Candidate) -> bool {
        candidate.joined && !candidate.held && !self.lost.names.contains(&candidate.name)
    }

    /// Reports whether a node may be one of the first to be changed. A lost node would take the place of a node that shows whether the version works.
    fn can_be_first(&self, candidate: &Candidate) -> bool {
        self.limits.gate.limit.is_none() || !self.lost.names.contains(&candidate.name)
    }

    fn waits(&self, candidate: &Candidate) -> bool {
        waits(candidate, self.now)
    }

    fn may_change(&self) -> bool {
        self.limits.open && !self.limits.paused
    }

    /// Reports whether the state of a node allows another operation to begin. Need and budgets are not checked.
    fn is_free(&self, candidate: &Candidate) -> bool {
        candidate.joined
            && !candidate.leaving
            && !candidate.held
            && !self.waits(candidate)
            && !self.decisions.contains_key(candidate.name.as_str())
    }

    fn keep(&mut self, candidate: &'a Candidate) {
        self.decisions.insert(&candidate.name, GrantDecision::Keep);
    }

    fn give(&mut self, candidate: &'a Candidate, grant: impl Into<Granting>) {
        let mut grant: Granting = grant.into();
        grant.without_place = disturbs(Some(grant.type_), grant.disruption) && !has_pods(candidate);
        let same = candidate.grant == Some(grant.type_)
            && !candidate.grant_used
            && candidate.grant_version == grant.version
            && (candidate.grant_disruption.is_none() || candidate.grant_disruption == grant.disruption);
        self.decisions.insert(&candidate.name, if same { GrantDecision::Keep } else { GrantDecision::Give(grant) });
    }

    /// Charges the budgets for a disruption of the node. Returns false if one of them is used up.
    fn charge(&mut self, candidate: &Candidate, disruption: Disruption) -> bool {
        self.budgets.charge(candidate, Charge::Disruption(disruption))
    }

    /// Grants joins. A host in backoff passes its slot to the next host, and is tried again after the hosts that were never tried.
    fn join(&mut self) {
        let mut new: Vec<&'a Candidate> = self.candidates.iter().copied().filter(|s| !s.leaving && !s.joined).collect();
        new.sort_by_key(|s| s.waits_until);
        for candidate in new.iter().filter(|s| s.grant == Some(GrantType::Provision)) {
            if candidate.begun || (!self.waits(candidate) && !candidate.held) {
                self.keep(candidate);
                self.budgets.take(Budget::Joins);
            }
        }
        for candidate in new.iter().filter(|s| s.grant.is_none() && !s.held) {
            if !self.limits.paused && self.limits.joins && !self.waits(candidate) && self.budgets.take(Budget::Joins) {
                self.give(candidate, GrantType::Provision);
            }
        }
    }

    /// Grants removals. A host that is released without being deconfigured is not touched, so that neither a pause, a hold nor a begun operation
    /// delays the release; a host that is already being deconfigured keeps its grant to remove. The slot of a begun change passes to the removal.
    fn leave(&mut self) {
        for candidate in self.candidates.clone().into_iter().filter(|s| s.leaving) {
            if self.decisions.contains_key(candidate.name.as_str()) {
                continue;
            }
            let orphan = self.limits.orphan || candidate.let_go;
            let wanted = if orphan { GrantType::Orphan } else { GrantType::Remove };
            // The removal of a working node has failed before the cordon, because its host cannot be reached or proven: another node uses its slot
            // until the next attempt.
            let is_in_vain = self.waits(candidate) && candidate.available && !candidate.removing;
            let must_wait = (candidate.held || self.budgets.exceeds_pod_budget(candidate) || is_in_vain) && !orphan;
            if !must_wait && candidate.grant == Some(wanted) {
                self.keep(candidate);
                continue;
            }
            let may_leave = if orphan {
                true
            } else if self.limits.paused || must_wait {
                false
            } else if candidate.joined
                && candidate.available
                && !(candidate.begun && disturbs(candidate.grant, candidate.grant_disruption))
            {
                self.charge(candidate, Disruption::Drain)
            } else {
                self.budgets.charge(candidate, Charge::Removal)
            };
            if may_leave {
                self.give(candidate, wanted);
            } else if candidate.begun && candidate.grant.is_some() && !self.budgets.exceeds_pod_budget(candidate) {
                self.keep(candidate);
            }
        }
    }

    fn next(&self) -> Option<Timestamp> {
        let of = |s: &&Candidate| {
            let repair = later(s.down_since, Some(self.limits.not_ready_after)).filter(|_| self.is_repairable(s));
            let lost = later(s.down_since, self.limits.ignore_lost_after).filter(|_| is_silent(s));
            let key = s.key_waits_until.filter(|_| s.wants_key);
            let images = s.images_wait_until.filter(|_| s.wants_images);
            [s.waits_until, repair, lost, key, images].into_iter().flatten().filter(|at| *at > self.now).min()
        };
        self.candidates.iter().filter_map(of).min()
    }

    /// Returns the cause that uses up the budget of unavailable nodes, while no working node is being changed. A node that has just come back does
    /// not count as a cause: its slot becomes free by itself.
    fn used_up(&self) -> Option<UsedUp> {
        let is_granted = |s: &Candidate| {
            let (type_, disruption) = self.decided_grant(s);
            disturbs(type_, disruption)
        };
        let is_changed = |s: &&Candidate| s.joined && s.ready && (s.begun || is_granted(s));
        if !self.may_change() || self.budgets.left(Budget::Unavailable) > 0 || self.candidates.iter().any(is_changed) {
            return None;
        }
        if let Some(share) = self.limits.others.as_ref().filter(|share| share.left == 0 && share.holder.is_some()) {
            return Some(UsedUp::OtherPools(share.clone()));
        }
        let is_down = |s: &&&Candidate| self.is_base(s) && !s.available && (!s.ready || s.cordoned);
        let down: Vec<&Candidate> = self.candidates.iter().filter(is_down).copied().collect();
        let since = down.iter().filter_map(|s| s.down_since).max();
        let nodes = down.iter().map(|s| s.name.clone()).collect();
        (down.len() >= self.cap as usize).then_some(UsedUp::Unavailable { nodes, cap: self.cap, since })
    }

    /// Returns the type and disruption of a host's grant by this decision.
    fn decided_grant(&self, candidate: &Candidate) -> (Option<GrantType>, Option<Disruption>) {
        match self.decisions.get(candidate.name.as_str()) {
            None => (None, None),
            Some(GrantDecision::Keep) => (candidate.grant, candidate.grant_disruption),
            Some(GrantDecision::Give(grant)) => (Some(grant.type_), grant.disruption),
        }
    }

    fn decision(self) -> Decision {
        let mut decision = Decision {
            used_up: self.used_up(),
            allowed_disruptions: if self.may_change() { self.budgets.left(Budget::Unavailable) } else { 0 },
            next: self.next(),
            too_many_unhealthy: self.lost.too_many || self.too_many_down,
            ..Decision::default()
        };
        let mut waiting: Vec<&Candidate> = Vec::new();
        for candidate in &self.candidates {
            let (type_, disruption) = self.decided_grant(candidate);
            let disturbs = disturbs(candidate.grant, candidate.grant_disruption) || disturbs(type_, disruption);
            if candidate.joined && (candidate.begun || (candidate.available && disturbs)) {
                decision.disrupting += 1;
            }
            let wants = candidate.joined
                && !candidate.leaving
                && !candidate.held
                && !candidate.failed
                && !candidate.withheld
                && candidate.change.is_some();
            if wants && type_ != Some(GrantType::Update) {
                waiting.push(candidate);
            }
            match self.decisions.get(candidate.name.as_str()) {
                None if candidate.grant.is_some() => drop(decision.changes.insert(candidate.name.clone(), None)),
                Some(GrantDecision::Give(grant)) => {
                    drop(decision.changes.insert(candidate.name.clone(), Some(grant.clone())));
                }
                Some(GrantDecision::Keep) if candidate.grant_without_place && has_pods(candidate) => {
                    decision.placed.insert(candidate.name.clone());
                }
                None | Some(GrantDecision::Keep) => {}
            }
        }
        // A node whose grant is revoked now may still be cordoned for a moment: the next decision gives out its slot.
        let is_freed = |s: &&Candidate| {
            let is_taken_back = !self.decisions.contains_key(s.name.as_str());
            is_taken_back && has_pods(s) && disturbs(s.grant, s.grant_disruption)
        };
        if self.candidates.iter().any(is_freed) {
            decision.placed.clear();
        }
        if waiting.is_empty() {
            decision.used_up = None;
        }
        waiting.sort_by_cached_key(|s| self.rank(s));
        decision.waiting = waiting.into_iter().map(|s| s.name.clone()).collect();
        decision.lost = self.lost.names.into_iter().collect();
        decision
    }
}

/// Reports whether so many nodes are down that the cause is assumed to be elsewhere. Leaving nodes and nodes whose change has begun do not count as
/// down. Held nodes do not count at all.
fn is_too_many_down(candidates: &[Candidate], max_unhealthy: IntOrPercent) -> bool {
    let joined = |s: &Candidate| s.joined && !s.held;
    let down = count(candidates, |s| joined(s) && !s.leaving && !s.ready && !s.begun);
    down > max_unhealthy.of(count(candidates, joined))
}

#[cfg(test)]
#[path = "grants_tests.rs"]
pub(crate) mod tests;
#[cfg(test)]
#[path = "grants_walk_tests.rs"]
mod walk_tests;
