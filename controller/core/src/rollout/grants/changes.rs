//! Grants for operations on nodes. [`super::decide`] considers them in the order of their precedence.

use api::{Disruption, GrantType, RemediationType};

use super::{Candidate, GrantDecision, Granting, PendingChange, Plan};
use crate::rollout::{
    budgets::Budget,
    candidate::{has, has_unused_maintenance, is_granted, is_maintained, is_repeated, later, number},
};

impl<'a> Plan<'a> {
    /// Grants maintenance that users and hosts request. The requester has chosen the time, so that windows, approvals and rollout steps do not apply;
    /// a pause does.
    pub(super) fn maintain(&mut self) {
        if self.limits.paused {
            return;
        }
        // A slot that the last maintenance has used becomes free in the next decision.
        let is_next = |s: &Candidate| has_unused_maintenance(s) || !(is_repeated(s) || is_maintained(s));
        let mut candidates = self.to_be_maintained(|s| is_next(s) && self.is_free(s));
        // Nodes that already have the grant go first. Of the others, nodes whose maintenance a user requests on the instance go first.
        candidates.sort_by_key(|s| (!has_unused_maintenance(s), s.maintenance, s.available, &s.name));
        self.give_maintenance(candidates);
    }

    /// Grants maintenance that hosts, or clients of their Nodes, request again since the last update. Updates come first: a host that ends its
    /// maintenance and begins the next would otherwise keep a slot forever, and no update would get its turn.
    pub(super) fn maintain_again(&mut self) {
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
    pub(super) fn renew(&mut self) {
        for candidate in self.candidates.clone() {
            let Some(version) = candidate.renews.clone().filter(|_| self.is_free(candidate)) else { continue };
            if !self.limits.paused && !candidate.withheld && self.charge(candidate, Disruption::None) {
                let (version, disruption) = (Some(version), Some(Disruption::None));
                self.give(candidate, Granting { version, disruption, ..GrantType::Update.into() });
            }
        }
    }

    /// Grants updates, and the copying of their files in advance.
    pub(super) fn update(&mut self) {
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
        let settled = number(self.candidates.iter().filter(settled));
        let mut room = self.limits.gate.limit.map_or(u32::MAX, |limit| limit.saturating_sub(settled));

        // A node of an abandoned rollout keeps its place among the first while its files are copied.
        let is_to_be_sent =
            |s: &Candidate| s.follows_abandoned_version && !s.staged && s.waits_until.is_none() && self.is_free(s);
        let reserved = number(candidates.iter().filter(|(s, _)| is_to_be_sent(s)));
        // Nodes with a grant go first, so that grants stay where they are.
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
                    let PendingChange { version, disruption, services } = (*wanted).clone();
                    let (version, disruption) = (Some(version), Some(disruption));
                    self.give(candidate, Granting { version, disruption, services, ..GrantType::Update.into() });
                }
            }
        }
        candidates.retain(|(candidate, _)| self.is_free(candidate));

        let ahead = self.cap.saturating_mul(2).saturating_add(self.limits.max_concurrent);
        let staging = candidates.iter().filter(|(s, w)| !s.staged && has(s, GrantType::Stage, w));
        let mut free = ahead.saturating_sub(number(staging));
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
        // As long as the update limit admits more nodes, nodes whose files are being copied, or that wait for their turn with all files, keep their
        // grant.
        for (candidate, wanted) in candidates {
            if room > 0 && has(candidate, GrantType::Stage, wanted) && !self.is_repaired_first(candidate) {
                self.keep(candidate);
            }
        }
    }

    /// Grants restarts that hosts request.
    pub(super) fn reboot(&mut self) {
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

    /// Grants repairs of nodes that have not been Ready for a long time, or whose repair a user requests. Nodes that already have the grant go first,
    /// then nodes that have been down the longest. A node whose last attempt has failed comes after nodes that were not tried yet: a few broken nodes
    /// must not block the others.
    pub(super) fn repair(&mut self) {
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
    pub(super) fn rotate_key(&mut self) {
        // A leaving host gives up its turn, even in the middle of a rotation.
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

    /// Grants image pulls ahead of use, on a few hosts at a time. No pod is disturbed, so that only the budget of pulls applies, and windows do not.
    pub(super) fn pull_images(&mut self) {
        if self.limits.paused {
            return;
        }
        let has = |s: &Candidate| s.grant == Some(GrantType::PullImages);
        let waits = |s: &Candidate| s.images_wait_until.is_some_and(|until| until > self.now);
        let is_wanted = |s: &Candidate| s.wants_images && !s.withheld && s.maintenance.is_none();
        let wants = |s: &&'a Candidate| is_wanted(s) && !s.pulling && s.ready && !waits(s) && self.is_idle(s);
        let mut candidates: Vec<&'a Candidate> = self.candidates.iter().copied().filter(wants).collect();
        // Hosts that already have the grant go first. Of the others, hosts whose pull has failed go last.
        candidates.sort_by_key(|s| (!has(s), s.images_wait_until.is_some(), s.images_wait_until, &s.name));
        for candidate in candidates {
            if self.budgets.take(Budget::Pulls) {
                self.give(candidate, GrantType::PullImages);
            }
        }
    }

    /// Reports whether the state of a node allows another operation to begin. A grant to stage does not prevent that if the node already has all
    /// files: the node may wait for its turn for days, and does not need the grant for that.
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

    pub(super) fn may_repair(&self, candidate: &Candidate) -> bool {
        !self.limits.paused && !self.too_many_down && self.is_repairable(candidate)
    }

    pub(super) fn is_repairable(&self, candidate: &Candidate) -> bool {
        self.limits.remediation != RemediationType::None && may_be_repaired(candidate)
    }

    /// Reports whether a node is repaired before files of another version are copied to its host. After a failed attempt it is not, unless a user
    /// requests the repair: perhaps only the other version can fix the node.
    fn is_repaired_first(&self, candidate: &Candidate) -> bool {
        (candidate.waits_until.is_none() || candidate.repair_requested) && self.is_to_be_repaired(candidate)
    }

    /// Returns the rank of a node that needs a change. Nodes whose last attempt has failed go last, followed only by lost nodes: they would delay
    /// other nodes. Of all other nodes, those that follow an abandoned version go first, to keep the number of versions in use low; then unavailable
    /// nodes, which have nothing to lose. Nodes of the same kind go zone by zone, and by name.
    pub(super) fn rank(&self, candidate: &Candidate) -> impl Ord + use<> {
        let place = match candidate {
            _ if self.lost.names.contains(&candidate.name) => 4,
            Candidate { waits_until: Some(_), .. } => 3,
            Candidate { follows_abandoned_version: true, .. } => 0,
            Candidate { available: false, .. } => 1,
            _ => 2,
        };
        (place, candidate.zone.clone(), candidate.name.clone())
    }
}

/// Reports whether a node that stays in the pool is not Ready, and [`Candidate::no_repair`] names no reason against its repair.
fn may_be_repaired(candidate: &Candidate) -> bool {
    candidate.joined && !candidate.leaving && !candidate.ready && candidate.no_repair().is_none()
}

/// Reports whether a node pulls its images before it is disturbed. One attempt is enough: a failing registry does not block a rollout. A node with
/// requested maintenance pulls none.
fn pulls_first(candidate: &Candidate, wanted: &PendingChange) -> bool {
    let is_tried = candidate.images_wait_until.is_some() || candidate.maintenance.is_some();
    wanted.disruption >= Disruption::Restart && candidate.ready && candidate.wants_images && !is_tried
}
