//! Decision about which hosts get a grant.
//!
//! A grant is a slot: it is written on the instance, so that it can be counted, observed and revoked. Joins disrupt no node and are bounded by
//! `provisioning.maxConcurrent` alone. Disruptions of a working node, for example an update, a restart or its removal, are bounded by
//! `rollout.maxUnavailable`; operations on a node that does not work are not charged to it.
//!
//! The slot of a revoked grant goes to another host only in the next decision: the write may fail because the operation has begun in between, and
//! then two nodes would be down instead of one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::{Disruption, GrantType, IntOrPercent, Order, RemediationType};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::{
    budgets::{Budget, Budgets, Charge},
    candidate::{
        count, disturbs, has, has_its_maintenance, has_pods, is_granted, is_maintained, is_repeated, is_silent, later,
        waits,
    },
    progress::{BlockedBy, UpdateLimit},
    shared_limit::Share,
};

pub use super::candidate::{Candidate, Lost, PendingChange, lost};

/// Limits on the operations of a pool.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent limit")]
pub struct Limits {
    /// Number of hosts that may join, be repaired, or be changed or removed without a disruption at once.
    pub max_concurrent: u32,
    /// Number of nodes that may be unavailable at once.
    pub max_unavailable: IntOrPercent,
    /// Number of hosts that may pull images ahead of use at once.
    pub max_pulling: u32,
    /// True if no operation may begin.
    pub paused: bool,
    /// True if hosts that are to be removed are released without being deconfigured.
    pub orphan: bool,
    /// True if changes may begin now: a maintenance window is open, or none is defined.
    pub open: bool,
    /// Order in which nodes are changed.
    pub order: Order,
    /// Time after which a rollout no longer waits for a lost node; `None`: it always waits.
    pub ignore_lost_after: Option<Duration>,
    /// Limit on the number of nodes that may have been changed by now.
    pub gate: UpdateLimit,
    /// Remediation of nodes that have not been Ready for a long time.
    pub remediation: RemediationType,
    /// Time after which a node that is not Ready is repaired.
    pub not_ready_after: Duration,
    /// Maximum number of nodes that are not Ready. If there are more, the cause is assumed to be elsewhere, and none is repaired.
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
    /// True if the node takes no pods now, so that the grant is not charged to the budget.
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
    /// True if too many nodes are not Ready or lost, so that none is repaired or none is written off.
    pub too_many_unhealthy: bool,
    /// Names of the nodes that wait for a grant for their change, in their order.
    pub waiting: Vec<String>,
    /// Cause that keeps all waiting nodes from their turn, although nothing blocks the rollout.
    pub used_up: Option<UsedUp>,
}

/// Decides about the grants of a pool. The same state gives the same decision, whatever the order of `candidates`.
pub fn decide(candidates: &[Candidate], limits: &Limits, now: Timestamp) -> Decision {
    if candidates.iter().any(|s| s.vanishing) {
        let rest: Vec<Candidate> = candidates.iter().filter(|s| !s.vanishing).cloned().collect();
        return decide(&rest, limits, now);
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
        // An operation that has begun continues to its end: a node must not be left half changed. As long as nothing on its host has changed, it can
        // be aborted, which lifts the cordon. The change of a host that is to be removed is not finished first. A host that is to stay again is not
        // removed, unless it is already being deconfigured.
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

    /// Reports whether an operation that has not changed anything on its host yet is aborted: a user has put the node on hold or paused the pool, no
    /// window is open now, the version has failed elsewhere, or the operation is no longer needed, such as the repair of a node that is Ready again.
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
            // A user has chosen the time, so that windows do not apply.
            Some(GrantType::Maintenance) => {
                let is_held = self.limits.paused || candidate.held || candidate.withheld;
                let is_wanted = candidate.maintenance.is_some() && !is_held;
                return !candidate.irrevocable && (!is_wanted || self.budgets.has_recovered(candidate));
            }
            // Windows restrict changes, not repairs.
            Some(GrantType::Repair) => return !candidate.irrevocable && !self.may_repair(candidate),
            _ => return false,
        };
        let is_stopped = candidate.grant == Some(GrantType::Update)
            && matches!(self.limits.gate.hold, BlockedBy::FailureLimit { rolled_back: false, .. });
        let goes_on = is_wanted && !is_stopped && self.may_change() && !candidate.held && !candidate.withheld;
        !candidate.irrevocable && !candidate.leaving && (!goes_on || self.budgets.has_recovered(candidate))
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
    /// delays the release. The slot of a begun change passes to the removal.
    fn leave(&mut self) {
        for candidate in self.candidates.clone().into_iter().filter(|s| s.leaving) {
            if self.decisions.contains_key(candidate.name.as_str()) {
                continue;
            }
            let orphan = self.limits.orphan || candidate.let_go;
            let wanted = if orphan { GrantType::Orphan } else { GrantType::Remove };
            // A working node that is not cordoned yet, because its host cannot be reached or proven: another node uses its slot until the next
            // attempt.
            let is_in_vain = self.waits(candidate) && candidate.available && !candidate.removing;
            let held = (candidate.held || self.budgets.has_recovered(candidate) || is_in_vain) && !orphan;
            if !held && candidate.grant == Some(wanted) {
                self.keep(candidate);
                continue;
            }
            let may = if orphan {
                true
            } else if self.limits.paused || held {
                false
            } else if candidate.joined
                && candidate.available
                && !(candidate.begun && disturbs(candidate.grant, candidate.grant_disruption))
            {
                self.charge(candidate, Disruption::Drain)
            } else {
                self.budgets.charge(candidate, Charge::Removal)
            };
            if may {
                self.give(candidate, wanted);
            } else if candidate.begun && candidate.grant.is_some() && !self.budgets.has_recovered(candidate) {
                self.keep(candidate);
            }
        }
    }

    /// Grants maintenance that users and hosts request. The requester has chosen the time, so that windows, approvals and rollout steps do not apply;
    /// a pause does.
    fn maintain(&mut self) {
        if self.limits.paused {
            return;
        }
        // A slot that the last maintenance has used becomes free in the next decision.
        let is_next = |s: &Candidate| has_its_maintenance(s) || !(is_repeated(s) || is_maintained(s));
        let mut candidates = self.to_be_maintained(|s| is_next(s) && self.is_free(s));
        // Requests of users take precedence over requests of hosts.
        candidates.sort_by_key(|s| (!has_its_maintenance(s), s.maintenance, s.available, &s.name));
        self.give_maintenance(candidates);
    }

    /// Grants maintenance that hosts request again since their last update. Updates come first: a host that ends its maintenance and begins the next
    /// would otherwise keep a slot forever, and no update would get its turn.
    fn maintain_again(&mut self) {
        if self.limits.paused {
            return;
        }
        let mut candidates = self.to_be_maintained(|s| is_repeated(s) && !is_maintained(s) && self.is_idle(s));
        candidates.sort_by_key(|s| (s.maintained_at, s.available, &s.name));
        self.give_maintenance(candidates);
    }

    fn to_be_maintained(&self, which: impl Fn(&Candidate) -> bool) -> Vec<&'a Candidate> {
        let wants = |s: &&'a Candidate| s.maintenance.is_some() && !s.withheld && which(s);
        self.candidates.iter().copied().filter(wants).collect()
    }

    fn give_maintenance(&mut self, candidates: Vec<&'a Candidate>) {
        for candidate in candidates {
            if self.charge(candidate, Disruption::Reboot) {
                self.give(candidate, GrantType::Maintenance);
            }
        }
    }

    /// Grants renewals of wicd's expired certificates, which only the operator can renew. No pod is disturbed, so that windows and rollout steps do
    /// not apply.
    fn renew(&mut self) {
        for candidate in self.candidates.clone() {
            let Some(version) = candidate.renews.clone().filter(|_| self.is_free(candidate)) else { continue };
            if !self.limits.paused && !candidate.withheld && self.charge(candidate, Disruption::None) {
                let grant = Granting { version: Some(version), ..GrantType::Update.into() };
                self.give(candidate, Granting { disruption: Some(Disruption::None), ..grant });
            }
        }
    }

    /// Grants updates, and the copying of their files in advance.
    fn update(&mut self) {
        let mut candidates: Vec<(&'a Candidate, &'a PendingChange)> = self
            .candidates
            .iter()
            .filter(|s| self.is_free(s) && !s.failed && !s.withheld && self.can_be_first(s))
            .filter_map(|s| Some((*s, s.change.as_ref()?)))
            .collect();
        candidates.sort_by_cached_key(|(candidate, _)| self.rank(candidate));
        if !self.may_change() {
            // Copying that has begun may continue, because it is not disruptive.
            for (candidate, wanted) in candidates {
                if !self.is_repaired_first(candidate) && has(candidate, GrantType::Stage, wanted) {
                    self.keep(candidate);
                }
            }
            return;
        }

        let settled = |s: &&&Candidate| {
            let on_its_way = |w| s.begun && has(s, GrantType::Update, w);
            self.is_base(s) && !s.leaving && (s.failed || s.change.as_ref().is_none_or(on_its_way))
        };
        let settled = u32::try_from(self.candidates.iter().filter(settled).count()).unwrap_or(u32::MAX);
        let mut room = self.limits.gate.limit.map_or(u32::MAX, |limit| limit.saturating_sub(settled));

        // Nodes with a grant go first, so that grants stay where they are. A node of an abandoned rollout keeps its place among the first while its
        // files are copied.
        let is_to_be_sent =
            |s: &Candidate| s.follows_abandoned_version && !s.staged && s.waits_until.is_none() && self.is_free(s);
        let reserved = candidates.iter().filter(|(s, _)| is_to_be_sent(s)).count();
        let reserved = u32::try_from(reserved).unwrap_or(u32::MAX);
        for granted in [true, false] {
            for (candidate, wanted) in &candidates {
                let fits = if granted {
                    is_granted(candidate, wanted)
                } else {
                    candidate.staged && !pulls_first(candidate, wanted)
                };
                let reserved = if granted || candidate.follows_abandoned_version { 0 } else { reserved };
                if fits && room > reserved && self.is_free(candidate) && self.charge(candidate, wanted.disruption) {
                    room -= 1;
                    self.give(
                        candidate,
                        Granting {
                            version: Some(wanted.version.clone()),
                            disruption: Some(wanted.disruption),
                            services: wanted.services.clone(),
                            ..GrantType::Update.into()
                        },
                    );
                }
            }
        }
        candidates.retain(|(candidate, _)| self.is_free(candidate));

        let ahead = self.cap.saturating_mul(2).saturating_add(self.limits.max_concurrent);
        let staging = candidates.iter().filter(|(s, w)| !s.staged && has(s, GrantType::Stage, w)).count();
        let mut free = ahead.saturating_sub(u32::try_from(staging).unwrap_or(u32::MAX));
        for (place, (candidate, wanted)) in (0..room).zip(&candidates) {
            self.admitted.insert(&candidate.name);
            if place < ahead
                && !candidate.staged
                && !has(candidate, GrantType::Stage, wanted)
                && !self.is_repaired_first(candidate)
            {
                if free == 0 {
                    continue;
                }
                free -= 1;
                let version = Some(wanted.version.clone());
                self.give(candidate, Granting { version, ..GrantType::Stage.into() });
            }
        }
        // Nodes whose files are being copied, or that wait for their turn with all files, keep their grant.
        for (candidate, wanted) in candidates {
            if room > 0 && has(candidate, GrantType::Stage, wanted) && !self.is_repaired_first(candidate) {
                self.keep(candidate);
            }
        }
    }

    /// Grants restarts that hosts request.
    fn reboot(&mut self) {
        if !self.may_change() {
            return;
        }
        let asks = |s: &&'a Candidate| {
            s.wants_reboot && !s.withheld && self.is_free(s) && !self.admitted.contains(s.name.as_str())
        };
        let mut candidates: Vec<&'a Candidate> = self.candidates.iter().copied().filter(asks).collect();
        candidates.sort_by_cached_key(|s| (s.grant != Some(GrantType::Reboot), self.rank(s)));
        for candidate in candidates {
            if self.charge(candidate, Disruption::Reboot) {
                self.give(candidate, GrantType::Reboot);
            }
        }
    }

    /// Grants repairs of nodes that have not been Ready for a long time, the longest first. A node whose repair has failed comes after nodes that
    /// were not tried yet: a few broken nodes must not block the others.
    fn repair(&mut self) {
        let mut candidates: Vec<&'a Candidate> =
            self.candidates.iter().copied().filter(|s| self.is_free(s) && self.is_to_be_repaired(s)).collect();
        candidates.sort_by_key(|s| (s.grant != Some(GrantType::Repair), s.waits_until, s.down_since));
        let restarts = self.limits.remediation == RemediationType::Reboot;
        let disruption = restarts.then_some(Disruption::Reboot);
        for candidate in candidates {
            if self.budgets.take(Budget::Repairs) {
                self.give(candidate, Granting { disruption, ..GrantType::Repair.into() });
            }
        }
    }

    /// Grants key rotations, on one host at a time: a key that locks the operator out is detected on the first host. A rotation is not disruptive, so
    /// that windows and budgets do not apply.
    fn rotate_key(&mut self) {
        // A host that is to be removed gives up its turn, even in the middle of a rotation.
        if self.limits.paused || self.candidates.iter().any(|s| s.rotating && !s.leaving) {
            return;
        }
        let waits = |s: &Candidate| s.key_waits_until.is_some_and(|until| until > self.now);
        let has = |s: &Candidate| s.grant == Some(GrantType::RotateKey);
        let taken = self.candidates.iter().any(|s| has(s));
        let wants = |s: &&'a Candidate| s.wants_key && s.ready && has(s) == taken && !waits(s) && self.is_idle(s);
        // Hosts whose rotation has failed go last.
        let next = self.candidates.iter().copied().filter(wants).min_by_key(|s| (s.key_waits_until.is_some(), &s.name));
        if let Some(candidate) = next {
            self.give(candidate, GrantType::RotateKey);
        }
    }

    /// Grants image pulls ahead of use, on a few hosts at a time. No pod is disturbed: only the budget of pulls applies, and no window.
    fn pull_images(&mut self) {
        if self.limits.paused {
            return;
        }
        let has = |s: &Candidate| s.grant == Some(GrantType::PullImages);
        let waits = |s: &Candidate| s.images_wait_until.is_some_and(|until| until > self.now);
        let is_wanted = |s: &Candidate| s.wants_images && !s.withheld && s.maintenance.is_none();
        let wants = |s: &&'a Candidate| is_wanted(s) && !s.pulling && s.ready && !waits(s) && self.is_idle(s);
        let mut candidates: Vec<&'a Candidate> = self.candidates.iter().copied().filter(wants).collect();
        // Hosts whose pull has failed go last.
        candidates.sort_by_key(|s| (!has(s), s.images_wait_until.is_some(), s.images_wait_until, &s.name));
        for candidate in candidates {
            if self.budgets.take(Budget::Pulls) {
                self.give(candidate, GrantType::PullImages);
            }
        }
    }

    /// Reports whether an operation that disturbs no pod may begin on a node. A node that has all files for its change may wait for its turn for
    /// days, and needs no grant for that.
    fn is_idle(&self, candidate: &Candidate) -> bool {
        let idles = candidate.staged && candidate.grant == Some(GrantType::Stage) && self.is_kept(candidate);
        let is_ours = candidate.joined && !candidate.held && !candidate.leaving;
        self.is_free(candidate) || (idles && is_ours && !self.waits(candidate))
    }

    fn is_kept(&self, candidate: &Candidate) -> bool {
        matches!(self.decisions.get(candidate.name.as_str()), Some(GrantDecision::Keep))
    }

    fn is_to_be_repaired(&self, candidate: &Candidate) -> bool {
        let is_due = later(candidate.down_since, Some(self.limits.not_ready_after)).is_some_and(|at| at <= self.now);
        // A user who requests a repair knows whether many nodes are down for one cause.
        let is_requested = candidate.repair_requested && !self.limits.paused && may_be_repaired(candidate);
        is_requested || (self.may_repair(candidate) && is_due)
    }

    fn may_repair(&self, candidate: &Candidate) -> bool {
        !self.limits.paused && !self.too_many_down && self.is_repairable(candidate)
    }

    fn is_repairable(&self, candidate: &Candidate) -> bool {
        self.limits.remediation != RemediationType::None && may_be_repaired(candidate)
    }

    /// Reports whether a node is repaired before it is sent another version. After a failed attempt it is not: perhaps only the other version can fix
    /// it.
    fn is_repaired_first(&self, candidate: &Candidate) -> bool {
        (candidate.waits_until.is_none() || candidate.repair_requested) && self.is_to_be_repaired(candidate)
    }

    /// Returns the rank of a node that is to be changed. Nodes of an abandoned rollout go first, to keep the number of versions in use low; then
    /// unavailable nodes, which have nothing to lose. Nodes whose last attempt has failed and lost nodes go last: they would only delay the others.
    fn rank(&self, candidate: &Candidate) -> impl Ord + use<> {
        let place = match candidate {
            _ if self.lost.names.contains(&candidate.name) => 4,
            Candidate { waits_until: Some(_), .. } => 3,
            Candidate { follows_abandoned_version: true, .. } => 0,
            Candidate { available: false, .. } => 1,
            _ => 2,
        };
        // Names often follow the role of hosts, so that neighbours by name would change together; the hash spreads
        // them, differently for each version.
        let version = candidate.change.as_ref().map_or("", |w| w.version.as_str());
        let (zone, spread) = match self.limits.order {
            Order::Zone => (candidate.zone.clone(), Sha256::digest(format!("{}{version}", candidate.name)).to_vec()),
            Order::Name => (String::new(), Vec::new()),
        };
        (place, zone, spread, candidate.name.clone())
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

    /// Returns the cause that uses up the budget of unavailable nodes, while no working node is being changed. A node that has just come back is no
    /// cause: its slot becomes free by itself.
    fn used_up(&self) -> Option<UsedUp> {
        let is_granted = |s: &Candidate| match self.decisions.get(s.name.as_str()) {
            Some(GrantDecision::Keep) => disturbs(s.grant, s.grant_disruption),
            Some(GrantDecision::Give(grant)) => disturbs(Some(grant.type_), grant.disruption),
            None => false,
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
            let decided = self.decisions.get(candidate.name.as_str());
            let (type_, disruption) = match decided {
                None => (None, None),
                Some(GrantDecision::Keep) => (candidate.grant, candidate.grant_disruption),
                Some(GrantDecision::Give(grant)) => (Some(grant.type_), grant.disruption),
            };
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
            match decided {
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

/// Reports whether so many nodes are down that the cause is assumed to be elsewhere. Nodes that are down because of an operation do not count.
fn is_too_many_down(candidates: &[Candidate], max_unhealthy: IntOrPercent) -> bool {
    let joined = |s: &Candidate| s.joined && !s.held;
    let down = count(candidates, |s| joined(s) && !s.leaving && !s.ready && !s.begun);
    down > max_unhealthy.of(count(candidates, joined))
}

/// Reports whether a node is not Ready, and no user or other program is working on it.
fn may_be_repaired(candidate: &Candidate) -> bool {
    // A repair would install the target version, which a withheld node must not get yet.
    let is_ours = candidate.joined && !candidate.held && !candidate.leaving && !candidate.withheld;
    // The requester of a maintenance works on the node, or is about to.
    is_ours && candidate.maintenance.is_none() && candidate.health_check.is_none() && !candidate.ready
}

/// Reports whether a node pulls its images before it is disturbed. One attempt is enough: a failing registry does not block a rollout. A node with
/// requested maintenance pulls none.
fn pulls_first(candidate: &Candidate, wanted: &PendingChange) -> bool {
    let is_tried = candidate.images_wait_until.is_some() || candidate.maintenance.is_some();
    wanted.disruption >= Disruption::Restart && candidate.ready && candidate.wants_images && !is_tried
}

#[cfg(test)]
#[path = "grants_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "grants_walk_tests.rs"]
mod walk_tests;
