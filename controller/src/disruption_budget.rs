//! The limits of disruptions that pools share.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use wnp_core::rollout::{
    grants::Decision,
    shared_limit::{Share, Sharer, share},
};

/// What each pool takes of the limits, as it last decided.
#[derive(Debug, Default)]
pub(crate) struct GlobalDisruptionBudget(Mutex<HashMap<String, Taken>>);

#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// Nodes that it disrupts.
    nodes: u32,
    /// Whether it waits for another pool.
    waits: bool,
}

impl GlobalDisruptionBudget {
    /// Has a pool decide, with what the others leave it. One pool at a time: two that decide at once would each take what is left.
    /// Returns the decision, and the pools to reconcile because they waited for what this one has given back.
    pub(crate) fn decide(
        &self,
        pool: &str,
        max_disruptions: Option<u32>,
        sharers: &BTreeMap<String, Sharer>,
        decide: impl FnOnce(Option<u32>) -> Decision,
    ) -> (Decision, Vec<String>) {
        let mut known = self.0.lock();
        known.retain(|p, _| sharers.contains_key(p));
        // Of a pool that has not decided in this process, what it was granted before counts.
        let share = share(pool, sharers, max_disruptions, &|p| known.get(p).map_or(0, |taken| taken.nodes));
        let Some(Share { left, holder }) = share else {
            drop(known);
            let decision = decide(None);
            let mut known = self.0.lock();
            // A pool that does not share a limit any more leaves its place.
            let next = if known.remove(pool).is_some() { waiting(&known, pool) } else { Vec::new() };
            return (decision, next);
        };
        let mut decision = decide(Some(left));
        let granted = sharers.get(pool).map_or(0, |sharer| sharer.disrupting);
        let taken = Taken { nodes: decision.disrupting.max(granted), waits: holder.is_some() };
        decision.turn_of = holder.filter(|_| !decision.waiting.is_empty());
        let before = known.insert(pool.to_owned(), taken).unwrap_or_default();
        let next = if taken.nodes < before.nodes { waiting(&known, pool) } else { Vec::new() };
        (decision, next)
    }

    /// Of a pool that is not carried out only what it was granted before counts.
    pub(crate) fn forget(&self, pool: &str) {
        self.0.lock().remove(pool);
    }
}

/// Pools other than this one that wait.
fn waiting(known: &HashMap<String, Taken>, pool: &str) -> Vec<String> {
    known.iter().filter(|(p, taken)| *p != pool && taken.waits).map(|(p, _)| p.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left to a pool that disrupts so many nodes by its decision, and which pools follow.
    fn left(
        known: &GlobalDisruptionBudget,
        pool: &str,
        granted: &BTreeMap<String, Sharer>,
        disrupting: u32,
    ) -> (Option<u32>, Option<String>, Vec<String>) {
        let mut seen = None;
        let (decision, next) = known.decide(pool, Some(3), granted, |others| {
            seen = others;
            Decision { disrupting, waiting: vec!["w".into()], ..Decision::default() }
        });
        (seen, decision.turn_of, next)
    }

    fn granted(a: u32, b: u32) -> BTreeMap<String, Sharer> {
        [("a", a), ("b", b)].map(|(p, disrupting)| (p.to_owned(), Sharer { disrupting, ..Sharer::default() })).into()
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
        let (decision, next) = known.decide("b", None, &granted(0, 3), |others| {
            assert_eq!(others, None);
            Decision::default()
        });
        assert_eq!((decision.turn_of, next), (None, vec!["a".to_owned()]));
    }
}
