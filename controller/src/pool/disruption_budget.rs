//! Disruption limits that pools share.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;
use wnp_core::rollout::{
    grants::Decision,
    shared_limit::{Share, Sharer, share},
};

/// Slots of the shared limits that each pool takes, according to its last decision.
#[derive(Debug, Default)]
pub(crate) struct GlobalDisruptionBudget(Mutex<HashMap<String, Taken>>);

/// Slots that one pool takes.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// Number of nodes that the pool disrupts.
    nodes: u32,
    /// Start of the pool's wait for a slot of another pool, if it waits.
    waits: Option<Instant>,
}

impl GlobalDisruptionBudget {
    /// Runs a pool's decision with the share that other pools leave. Pools that share a limit decide one at a time, because two concurrent decisions
    /// would each take all free slots. Returns the decision, and the pools to reconcile because they waited for slots that are free now. `sharers` is
    /// called under the lock: an older view might miss a pool that has decided since, and its slot would be given to another pool.
    pub(crate) fn decide(
        &self,
        pool: &str,
        max_disruptions: Option<u32>,
        sharers: impl FnOnce() -> BTreeMap<String, Sharer>,
        now: Timestamp,
        decide: impl FnOnce(Option<Share>) -> Decision,
    ) -> (Decision, Vec<String>) {
        let mut known = self.0.lock();
        let sharers = sharers();
        // The slots of a pool without instances are free, too.
        let is_freed = known.iter().any(|(p, taken)| taken.nodes > 0 && !sharers.contains_key(p));
        known.retain(|p, _| sharers.contains_key(p));
        // For a pool that has not decided in this process, its existing grants count.
        let share = share(pool, &sharers, max_disruptions, &|p| known.get(p).map_or(0, |taken| taken.nodes));
        let Some(mut share) = share else {
            drop(known);
            let decision = decide(None);
            let mut known = self.0.lock();
            // A pool that no longer shares a limit frees its slots.
            let next = if known.remove(pool).is_some() || is_freed { waiting(&known, pool) } else { Vec::new() };
            return (decision, next);
        };
        let before = known.get(pool).copied().unwrap_or_default();
        let waits = share.holder.is_some().then(|| before.waits.unwrap_or_else(Instant::now));
        share.since = waits.and_then(|since| now.checked_sub(SignedDuration::try_from(since.elapsed()).ok()?).ok());
        let decision = decide(Some(share));
        let granted = sharers.get(pool).map_or(0, |sharer| sharer.disrupting);
        let taken = Taken { nodes: decision.disrupting.max(granted), waits };
        known.insert(pool.to_owned(), taken);
        let next = if taken.nodes < before.nodes || is_freed { waiting(&known, pool) } else { Vec::new() };
        (decision, next)
    }

    /// Frees the slots of a decision that is not carried out, except those of existing grants. Returns the pools to reconcile because they waited for
    /// these slots.
    pub(crate) fn keep(&self, pool: &str, granted: u32) -> Vec<String> {
        let mut known = self.0.lock();
        let Some(taken) = known.get_mut(pool) else { return Vec::new() };
        let before = std::mem::replace(taken, Taken { nodes: granted, waits: None });
        if granted < before.nodes { waiting(&known, pool) } else { Vec::new() }
    }
}

/// Returns the pools, other than `pool`, that wait for a slot.
fn waiting(known: &HashMap<String, Taken>, pool: &str) -> Vec<String> {
    known.iter().filter(|(p, taken)| *p != pool && taken.waits.is_some()).map(|(p, _)| p.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a decision of a pool that disrupts this many nodes. Returns its share, and the pools to reconcile next.
    fn decide(
        known: &GlobalDisruptionBudget,
        pool: &str,
        max_disruptions: Option<u32>,
        granted: &BTreeMap<String, Sharer>,
        disrupting: u32,
    ) -> (Option<Share>, Vec<String>) {
        let mut seen = None;
        let decide = |share| {
            seen = share;
            Decision { disrupting, waiting: vec!["w".into()], ..Decision::default() }
        };
        let (_, next) = known.decide(pool, max_disruptions, || granted.clone(), Timestamp::UNIX_EPOCH, decide);
        (seen, next)
    }

    /// Returns the share left to a pool that disrupts this many nodes, the pool that it waits for, and the pools to reconcile next.
    fn left(
        known: &GlobalDisruptionBudget,
        pool: &str,
        granted: &BTreeMap<String, Sharer>,
        disrupting: u32,
    ) -> (Option<u32>, Option<String>, Vec<String>) {
        let (share, next) = decide(known, pool, Some(3), granted, disrupting);
        (share.as_ref().map(|share| share.left), share.and_then(|share| share.holder), next)
    }

    fn granted(a: u32, b: u32) -> BTreeMap<String, Sharer> {
        [("a", a), ("b", b)].map(|(p, disrupting)| (p.to_owned(), Sharer { disrupting, ..Sharer::default() })).into()
    }

    #[test]
    fn the_start_of_a_wait_is_known() {
        let known = GlobalDisruptionBudget::default();
        let share = |granted: &BTreeMap<String, Sharer>| decide(&known, "b", Some(3), granted, 0).0.unwrap();
        assert_eq!(share(&granted(1, 0)).since, None);
        let spent = share(&granted(3, 0));
        assert!(spent.left == 0 && spent.since.is_some_and(|since| since <= Timestamp::UNIX_EPOCH), "{spent:?}");
        assert_eq!(share(&granted(2, 0)).since, None);
    }

    #[test]
    fn the_sharers_are_read_under_the_lock() {
        let known = GlobalDisruptionBudget::default();
        let sharers = || {
            assert!(known.0.is_locked(), "another pool may decide between the view and the decision");
            granted(0, 0)
        };
        known.decide("a", Some(3), sharers, Timestamp::UNIX_EPOCH, |_| Decision::default());
    }

    #[test]
    fn a_decision_counts_before_it_is_observed() {
        let (known, none) = (GlobalDisruptionBudget::default(), granted(0, 0));
        assert_eq!(left(&known, "a", &none, 2), (Some(3), None, vec![]));
        assert_eq!(left(&known, "b", &none, 0), (Some(1), None, vec![]));
        assert_eq!(left(&known, "b", &none, 3), (Some(1), None, vec![]));
        assert_eq!(left(&known, "a", &none, 0), (Some(0), Some("b".into()), vec![]));
        assert_eq!(known.keep("b", 1), ["a".to_owned()]);
        assert_eq!(left(&known, "a", &none, 0), (Some(2), None, vec![]), "its grant counts before it is seen");
        assert_eq!(known.keep("b", 1), [""; 0]);
        left(&known, "a", &granted(0, 3), 0);
        assert_eq!(known.keep("b", 0), ["a".to_owned()], "its operation has ended");
        assert_eq!(left(&known, "a", &none, 0), (Some(3), None, vec![]));
    }

    #[test]
    fn waiting_pools_are_reconciled_when_a_slot_is_freed() {
        let known = GlobalDisruptionBudget::default();
        left(&known, "b", &granted(0, 3), 3);
        assert_eq!(left(&known, "a", &granted(0, 3), 0), (Some(0), Some("b".into()), vec![]));
        assert_eq!(left(&known, "b", &granted(0, 3), 2), (Some(0), None, vec![]), "it is taken back, and not seen yet");
        assert_eq!(left(&known, "b", &granted(0, 2), 2), (Some(1), None, vec!["a".into()]));
        assert_eq!(left(&known, "a", &granted(0, 2), 0), (Some(1), None, vec![]));
        assert_eq!(left(&known, "b", &granted(0, 0), 0), (Some(3), None, vec![]), "none waits any more");

        // The last instance of `b` is gone, and `b` makes no more decisions.
        left(&known, "b", &granted(0, 3), 3);
        left(&known, "a", &granted(0, 3), 0);
        left(&known, "c", &granted(0, 3), 0);
        let without = |pool: &str| {
            let mut all = granted(0, 0);
            all.insert("c".into(), Sharer::default());
            all.remove(pool);
            all
        };
        assert_eq!(left(&known, "c", &without("b"), 0), (Some(3), None, vec!["a".into()]));
        left(&known, "a", &without(""), 0);

        // Without a limit, nothing is shared.
        left(&known, "b", &granted(0, 3), 3);
        left(&known, "a", &granted(0, 3), 0);
        let (share, next) = decide(&known, "b", None, &granted(0, 3), 0);
        assert_eq!((share, next), (None, vec!["a".to_owned()]));
    }
}
