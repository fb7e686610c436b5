//! The limit of disruptions over all pools.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;
use wnp_core::rollout::grants::{Decision, Share};

/// How many nodes each pool disturbs, as it last decided.
#[derive(Debug, Default)]
pub(crate) struct GlobalDisruptionBudget(Mutex<HashMap<String, Known>>);

/// What is known of a pool.
#[derive(Debug, Default)]
struct Known {
    /// Nodes that it disturbs.
    disrupts: u32,
    /// Since when nothing is left to it.
    spent: Option<Instant>,
}

impl GlobalDisruptionBudget {
    /// Has a pool decide, with what the others leave it. One pool at a time: two that decide at once would each take what is left.
    /// `granted` says how many nodes each pool that has instances was granted to disrupt.
    pub(crate) fn decide(
        &self,
        pool: &str,
        cap: Option<u32>,
        granted: &HashMap<String, u32>,
        now: Timestamp,
        decide: impl FnOnce(Option<Share>) -> Decision,
    ) -> Decision {
        let Some(cap) = cap else { return decide(None) };
        let mut known = self.0.lock();
        // Of a pool that has not decided in this process, what it was granted before counts.
        let disrupts = |p: &String, n: &u32| known.get(p).map_or(0, |of_pool| of_pool.disrupts).max(*n);
        let taken = granted.iter().filter(|(p, _)| *p != pool).map(|(p, n)| (p, disrupts(p, n)));
        let mut pools: Vec<(&String, u32)> = taken.filter(|(_, n)| *n > 0).collect();
        pools.sort();
        let left = cap.saturating_sub(pools.iter().map(|(_, n)| n).sum());
        let before = known.get(pool).and_then(|of_pool| of_pool.spent);
        let spent = (left == 0).then(|| before.unwrap_or_else(Instant::now));
        let since = spent.and_then(|since| now.checked_sub(SignedDuration::try_from(since.elapsed()).ok()?).ok());
        let pools = pools.into_iter().map(|(p, _)| p.clone()).collect();
        let decision = decide(Some(Share { left, cap, pools, since }));
        known.insert(pool.to_string(), Known { disrupts: decision.disrupting, spent });
        known.retain(|p, _| granted.contains_key(p));
        decision
    }

    /// Of a pool that is not carried out only what it was granted before counts.
    pub(crate) fn forget(&self, pool: &str) {
        self.0.lock().remove(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left to a pool.
    fn left(
        known: &GlobalDisruptionBudget,
        pool: &str,
        granted: &HashMap<String, u32>,
        disrupting: u32,
    ) -> Option<u32> {
        let mut seen = None;
        known.decide(pool, Some(3), granted, Timestamp::UNIX_EPOCH, |others| {
            seen = others.map(|share| share.left);
            Decision { disrupting, ..Decision::default() }
        });
        seen
    }

    fn granted(a: u32, b: u32) -> HashMap<String, u32> {
        [("a".to_owned(), a), ("b".to_owned(), b)].into()
    }

    #[test]
    fn pools_share_what_there_is() {
        for (of_a, expected) in [(0, 3), (1, 2), (3, 0), (4, 0)] {
            let granted = granted(of_a, 0);
            assert_eq!(left(&GlobalDisruptionBudget::default(), "b", &granted, 0), Some(expected), "{of_a}");
            let own = left(&GlobalDisruptionBudget::default(), "a", &granted, 0);
            assert_eq!(own, Some(3), "{of_a}: its own are not counted");
        }
        let mut seen = Some(0);
        GlobalDisruptionBudget::default().decide("a", None, &HashMap::new(), Timestamp::UNIX_EPOCH, |others| {
            seen = others.map(|share| share.left);
            Decision::default()
        });
        assert_eq!(seen, None, "there is no limit");
    }

    #[test]
    fn who_uses_the_limit_is_known_and_since_when_nothing_is_left() {
        let (known, now) = (GlobalDisruptionBudget::default(), "2027-01-01T00:00:00Z".parse().unwrap());
        let share = |granted: &HashMap<String, u32>| {
            let mut seen = None;
            known.decide("b", Some(3), granted, now, |share| {
                seen = share;
                Decision::default()
            });
            seen.unwrap()
        };
        assert_eq!(share(&granted(1, 0)), Share { left: 2, cap: 3, pools: vec!["a".into()], since: None });
        assert_eq!(share(&granted(0, 2)).pools, [""; 0], "its own nodes are not another pool's");
        let spent = share(&granted(3, 0));
        assert!(spent.left == 0 && spent.since.is_some_and(|since| since <= now), "{spent:?}");
        assert_eq!(share(&granted(2, 0)).since, None);
    }

    #[test]
    fn what_was_decided_counts_before_it_is_seen() {
        let (known, granted) = (GlobalDisruptionBudget::default(), granted(0, 0));
        assert_eq!(left(&known, "a", &granted, 2), Some(3));
        assert_eq!(left(&known, "b", &granted, 0), Some(1));
        assert_eq!(left(&known, "a", &granted, 0), Some(3));
        assert_eq!(left(&known, "b", &granted, 3), Some(3));
        assert_eq!(left(&known, "a", &granted, 0), Some(0));
        known.forget("b");
        assert_eq!(left(&known, "a", &granted, 0), Some(3));
    }
}
