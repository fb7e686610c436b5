//! Budgets of a pool: the number of further nodes that may be granted an operation, for each kind of limit. Pure.
//!
//! | budget | bounds | limit |
//! |---|---|---|
//! | [`Budget::Unavailable`] | available nodes that a grant makes unavailable | `rollout.maxUnavailable` minus nodes that are unavailable or have such a grant; shared limit |
//! | [`Budget::Reserved`] | available nodes with such a grant that has not begun | `rollout.maxUnavailable` minus nodes that are unavailable or whose operation has begun |
//! | [`Budget::Pods`] | nodes whose pods are disturbed, available or not | `rollout.maxUnavailable` |
//! | [`Budget::UnavailableAlready`] | changes of unavailable nodes, which have nothing to lose | `provisioning.maxConcurrent`, and `rollout.maxUnavailable` if too many nodes are down |
//! | [`Budget::NonDisruptive`] | changes without a disruption | `provisioning.maxConcurrent` |
//! | [`Budget::Joins`], [`Budget::Removals`], [`Budget::Repairs`] | hosts to join, remove or repair | `provisioning.maxConcurrent` each |
//! | [`Budget::Pulls`] | hosts that pull images ahead of use | [`MAX_PULLING`](super::image_pull::MAX_PULLING) |
//!
//! A node counts as unavailable from the grant on, not only from the start of the operation. Until the operation starts, another grant may replace
//! this one.

use std::collections::{BTreeMap, BTreeSet};

use api::{Disruption, GrantType};
use jiff::Timestamp;

use super::{
    candidate::{
        Candidate, Lost, count, has_pods, is_busy, is_changed_while_unavailable, is_changed_without_disruption,
        is_disturbed, is_drained, is_reserved, is_revocable, waits,
    },
    grants::Limits,
};

/// Kind of limit on the number of nodes with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Budget {
    Unavailable,
    Reserved,
    Pods,
    UnavailableAlready,
    NonDisruptive,
    Joins,
    Removals,
    Repairs,
    Pulls,
}

/// Operation for which budgets are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    /// A change, a restart, a maintenance, or the removal of an available node.
    Disruption(Disruption),
    /// Removal of a host that has not joined, is unavailable, or is already disturbed by a change.
    Removal,
}

/// Remaining budgets of a pool.
#[derive(Debug)]
pub(super) struct Budgets<'a> {
    left: BTreeMap<Budget, u32>,
    /// Nodes that exceed the pod budget, for example because they became Ready after an uncharged grant.
    exceeding: BTreeSet<&'a str>,
}

impl<'a> Budgets<'a> {
    /// Creates the budgets of a pool in which at most `cap` nodes may be unavailable.
    pub(super) fn new(
        candidates: &'a [Candidate],
        limits: &Limits,
        cap: u32,
        lost: &Lost,
        too_many_down: bool,
        now: Timestamp,
    ) -> Self {
        // A hold during an operation neither lifts the cordon nor frees the budget.
        let counts = |s: &Candidate| s.joined && if s.held { is_disturbed(s) } else { !lost.names.contains(&s.name) };
        let busy = count(candidates, |s| counts(s) && is_busy(s));
        let begun = count(candidates, |s| counts(s) && is_busy(s) && !is_reserved(s));
        let shared = limits.others.as_ref().map_or(u32::MAX, |share| share.left);
        let (pods, exceeding) = disturbed(candidates, cap);
        let max = limits.max_concurrent;
        // If too many nodes are down, they might all come back at any moment: no more of them are changed at once than if they worked.
        let unavailable = if too_many_down { max.min(cap) } else { max };
        // Until its next attempt, a host in backoff does not block other hosts with its grant.
        let busy_with = |which: &dyn Fn(&Candidate) -> bool| count(candidates, |s| which(s) && !waits(s, now));
        let changes_unavailable = busy_with(&|s| is_changed_while_unavailable(s) && !is_drained(s));
        let removals = busy_with(&|s| s.leaving && s.grant == Some(GrantType::Remove) && !s.available);
        let repairs = busy_with(&|s| s.grant == Some(GrantType::Repair) && s.begun);
        let left = [
            (Budget::Unavailable, cap.saturating_sub(busy).min(shared)),
            (Budget::Reserved, cap.saturating_sub(begun)),
            (Budget::Pods, pods),
            (Budget::UnavailableAlready, unavailable.saturating_sub(changes_unavailable)),
            (Budget::NonDisruptive, max.saturating_sub(busy_with(&is_changed_without_disruption))),
            (Budget::Joins, max),
            (Budget::Removals, max.saturating_sub(removals)),
            (Budget::Repairs, max.saturating_sub(repairs)),
            (Budget::Pulls, limits.max_pulling.saturating_sub(count(candidates, |s| s.pulling))),
        ];
        Self { left: left.into(), exceeding }
    }

    pub(super) fn left(&self, budget: Budget) -> u32 {
        self.left.get(&budget).copied().unwrap_or(0)
    }

    /// Takes one from a budget. Returns false if none is left.
    pub(super) fn take(&mut self, budget: Budget) -> bool {
        self.take_all(&[budget])
    }

    /// Charges all budgets of an operation on a node. Returns false and charges nothing if one of them is used up, or if the operation is disruptive
    /// and the node exceeds the pod budget.
    pub(super) fn charge(&mut self, candidate: &Candidate, charge: Charge) -> bool {
        let is_disruptive = charge != Charge::Disruption(Disruption::None);
        !(is_disruptive && self.exceeds_pod_budget(candidate)) && self.take_all(&charged(candidate, charge))
    }

    /// Reports whether a node exceeds the pod budget, for example because it became Ready after an uncharged grant.
    pub(super) fn exceeds_pod_budget(&self, candidate: &Candidate) -> bool {
        self.exceeding.contains(candidate.name.as_str())
    }

    fn take_all(&mut self, budgets: &[Budget]) -> bool {
        let is_left = budgets.iter().all(|budget| self.left(*budget) > 0);
        for budget in budgets.iter().filter(|_| is_left) {
            self.left.entry(*budget).and_modify(|left| *left -= 1);
        }
        is_left
    }
}

/// Returns the budgets to charge for an operation on a node, without those that are already charged for the node.
fn charged(candidate: &Candidate, charge: Charge) -> Vec<Budget> {
    // A disturbed node already counts against the pod budget.
    let is_counted = is_disturbed(candidate) && !is_reserved(candidate) && !is_changed_without_disruption(candidate);
    let pods = (has_pods(candidate) && !is_counted).then_some(Budget::Pods);
    let node = match charge {
        Charge::Disruption(disruption) if disruption < Disruption::Restart => {
            return (!is_changed_without_disruption(candidate)).then_some(Budget::NonDisruptive).into_iter().collect();
        }
        Charge::Disruption(_) if candidate.available && is_reserved(candidate) => Some(Budget::Reserved),
        Charge::Disruption(_) if candidate.available => Some(Budget::Unavailable),
        Charge::Disruption(_) => (!is_changed_while_unavailable(candidate)).then_some(Budget::UnavailableAlready),
        Charge::Removal => Some(Budget::Removals),
    };
    pods.into_iter().chain(node).collect()
}

/// Returns the remaining pod budget, and the nodes that exceed it. A grant to a node that was not Ready was not charged, and the node may have become
/// Ready since then. A node that exceeds the budget is uncordoned, and waits for its turn.
fn disturbed(candidates: &[Candidate], cap: u32) -> (u32, BTreeSet<&str>) {
    let counts =
        |s: &&Candidate| has_pods(s) && is_disturbed(s) && !is_reserved(s) && !is_changed_without_disruption(s);
    let (mut revocable, fixed): (Vec<&Candidate>, Vec<&Candidate>) =
        candidates.iter().filter(counts).partition(|s| is_revocable(s));
    let left = (cap as usize).saturating_sub(fixed.len());
    // Uncharged grants are revoked first, then grants whose operation has not begun.
    revocable.sort_by_key(|s| (s.grant_without_place, !(s.begun || s.removing), &s.name));
    let kept = revocable.len().min(left);
    let exceeding = revocable[kept..].iter().map(|s| s.name.as_str()).collect();
    (u32::try_from(left - kept).unwrap_or(u32::MAX), exceeding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_charged_to_the_budgets_of_the_nodes_state() {
        use Budget::{NonDisruptive, Pods, Removals, Reserved, Unavailable, UnavailableAlready};
        let up = Candidate { joined: true, ready: true, available: true, ..Candidate::default() };
        let down = Candidate { ready: false, available: false, ..up.clone() };
        let granted = |s: &Candidate, disruption| Candidate {
            grant: Some(GrantType::Update),
            grant_disruption: Some(disruption),
            ..s.clone()
        };
        let begun = |s: Candidate| Candidate { begun: true, available: false, ..s };
        let (drain, none) = (Charge::Disruption(Disruption::Drain), Charge::Disruption(Disruption::None));
        for (about, candidate, charge, expected) in [
            ("an available node", up.clone(), drain, &[Pods, Unavailable][..]),
            ("a node with a granted drain", granted(&up, Disruption::Drain), drain, &[Pods, Reserved]),
            ("a node that is being drained", begun(granted(&up, Disruption::Drain)), drain, &[]),
            (
                "a node with a granted change without disruption",
                granted(&up, Disruption::None),
                drain,
                &[Pods, Unavailable],
            ),
            (
                "a node that a user has cordoned",
                Candidate { cordoned: true, available: false, ..up.clone() },
                drain,
                &[UnavailableAlready],
            ),
            ("a node that is down", down.clone(), drain, &[UnavailableAlready]),
            ("a node that is changed while it is down", granted(&down, Disruption::Drain), drain, &[]),
            ("a change without disruption", up.clone(), none, &[NonDisruptive]),
            ("a change without disruption that is granted already", granted(&up, Disruption::None), none, &[]),
            ("the removal of a node that is down", down, Charge::Removal, &[Removals]),
            (
                "the removal of a node that is being drained",
                begun(granted(&up, Disruption::Drain)),
                Charge::Removal,
                &[Removals],
            ),
            (
                "the removal of a node that was Ready for a moment while it joined",
                Candidate { available: false, ..up },
                Charge::Removal,
                &[Pods, Removals],
            ),
        ] {
            assert_eq!(charged(&candidate, charge), expected, "{about}");
        }
    }

    #[test]
    fn a_charge_takes_one_from_each_budget_or_from_none() {
        let node = Candidate { joined: true, ready: true, available: true, ..Candidate::default() };
        let left = [(Budget::Pods, 0), (Budget::Unavailable, 2)].into();
        let mut budgets = Budgets { left, exceeding: BTreeSet::new() };
        assert!(!budgets.charge(&node, Charge::Disruption(Disruption::Drain)));
        assert_eq!(budgets.left(Budget::Unavailable), 2);
        budgets.left.insert(Budget::Pods, 1);
        assert!(budgets.charge(&node, Charge::Disruption(Disruption::Drain)));
        assert_eq!((budgets.left(Budget::Pods), budgets.left(Budget::Unavailable)), (0, 1));
    }
}
