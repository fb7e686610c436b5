//! The limits of disruptions that pools share.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;
use wnp_core::rollout::{
    grants::Decision,
    shared_limit::{Share, Sharer, share},
};

/// Share of the limits that each pool takes, as it last decided.
#[derive(Debug, Default)]
pub(crate) struct GlobalDisruptionBudget(Mutex<HashMap<String, Taken>>);

#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// Nodes that the pool disrupts.
    nodes: u32,
    /// Time since which the pool waits for another pool.
    waits: Option<Instant>,
}

impl GlobalDisruptionBudget {
    /// Runs a pool's decision with what the other pools leave it. One pool at a time: two that decide at once would each take what is left. Returns
    /// the decision, and the pools to reconcile because they waited for what this one has given back.
    pub(crate) fn decide(
        &self,
        pool: &str,
        max_disruptions: Option<u32>,
        sharers: &BTreeMap<String, Sharer>,
        now: Timestamp,
        decide: impl FnOnce(Option<Share>) -> Decision,
    ) -> (Decision, Vec<String>) {
        let mut known = self.0.lock();
        known.retain(|p, _| sharers.contains_key(p));
        // Of a pool that has not decided in this process, what it was granted before counts.
        let share = share(pool, sharers, max_disruptions, &|p| known.get(p).map_or(0, |taken| taken.nodes));
        let Some(mut share) = share else {
            drop(known);
            let decision = decide(None);
            let mut known = self.0.lock();
            // A pool that no longer shares a limit leaves its place.
            let next = if known.remove(pool).is_some() { waiting(&known, pool) } else { Vec::new() };
            return (decision, next);
        };
        let before = known.get(pool).copied().unwrap_or_default();
        let waits = share.holder.is_some().then(|| before.waits.unwrap_or_else(Instant::now));
        share.since = waits.and_then(|since| now.checked_sub(SignedDuration::try_from(since.elapsed()).ok()?).ok());
        let decision = decide(Some(share));
        let granted = sharers.get(pool).map_or(0, |sharer| sharer.disrupting);
        let taken = Taken { nodes: decision.disrupting.max(granted), waits };
        known.insert(pool.to_owned(), taken);
        let next = if taken.nodes < before.nodes { waiting(&known, pool) } else { Vec::new() };
        (decision, next)
    }

    /// Forgets the decision of a pool that is not carried out: only what it was granted before counts.
    pub(crate) fn forget(&self, pool: &str) {
        self.0.lock().remove(pool);
    }
}

/// Pools other than this one that wait.
fn waiting(known: &HashMap<String, Taken>, pool: &str) -> Vec<String> {
    known.iter().filter(|(p, taken)| *p != pool && taken.waits.is_some()).map(|(p, _)| p.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is left to a pool that disrupts so many nodes by its decision, the pool that it waits for, and those that follow.
    fn left(
        known: &GlobalDisruptionBudget,
        pool: &str,
        granted: &BTreeMap<String, Sharer>,
        disrupting: u32,
    ) -> (Option<u32>, Option<String>, Vec<String>) {
        let (mut left, mut holder) = (None, None);
        let (_, next) = known.decide(pool, Some(3), granted, Timestamp::UNIX_EPOCH, |share| {
            left = share.as_ref().map(|share| share.left);
            holder = share.and_then(|share| share.holder);
            Decision { disrupting, waiting: vec!["w".into()], ..Decision::default() }
        });
        (left, holder, next)
    }

    fn granted(a: u32, b: u32) -> BTreeMap<String, Sharer> {
        [("a", a), ("b", b)].map(|(p, disrupting)| (p.to_owned(), Sharer { disrupting, ..Sharer::default() })).into()
    }

    #[test]
    fn since_when_nothing_is_left_is_known() {
        let (known, now) = (GlobalDisruptionBudget::default(), "2027-01-01T00:00:00Z".parse().unwrap());
        let share = |granted: &BTreeMap<String, Sharer>| {
            let mut seen = None;
            known.decide("b", Some(3), granted, now, |share| {
                seen = share;
                Decision::default()
            });
            seen.unwrap()
        };
        assert_eq!(share(&granted(1, 0)).since, None);
        let spent = share(&granted(3, 0));
        assert!(spent.left == 0 && spent.since.is_some_and(|since| since <= now), "{spent:?}");
        assert_eq!(share(&granted(2, 0)).since, None);
    }

    #[test]
    fn what_was_decided_counts_before_it_is_seen() {
        let (known, none) = (GlobalDisruptionBudget::default(), granted(0, 0));
        assert_eq!(left(&known, "a", &none, 2), (Some(3), None, vec![]));
        assert_eq!(left(&known, "b", &none, 0), (Some(1), None, vec![]));
        assert_eq!(left(&known, "b", &none, 3), (Some(1), None, vec![]));
        assert_eq!(left(&known, "a", &none, 0), (Some(0), Some("b".into()), vec![]));
        known.forget("b");
        assert_eq!(left(&known, "a", &none, 0), (Some(3), None, vec![]));
    }

    #[test]
    fn who_waits_follows_when_a_place_is_given_back() {
        let known = GlobalDisruptionBudget::default();
        left(&known, "b", &granted(0, 3), 3);
        assert_eq!(left(&known, "a", &granted(0, 3), 0), (Some(0), Some("b".into()), vec![]));
        assert_eq!(left(&known, "b", &granted(0, 3), 2), (Some(0), None, vec![]), "it is taken back, and not seen yet");
        assert_eq!(left(&known, "b", &granted(0, 2), 2), (Some(1), None, vec!["a".into()]));
        assert_eq!(left(&known, "a", &granted(0, 2), 0), (Some(1), None, vec![]));
        assert_eq!(left(&known, "b", &granted(0, 0), 0), (Some(3), None, vec![]), "none waits any more");

        // Without a limit nothing is shared.
        left(&known, "b", &granted(0, 3), 3);
        left(&known, "a", &granted(0, 3), 0);
        let (_, next) = known.decide("b", None, &granted(0, 3), Timestamp::UNIX_EPOCH, |others| {
            assert_eq!(others, None);
            Decision::default()
        });
        assert_eq!(next, ["a".to_owned()]);
    }
}
