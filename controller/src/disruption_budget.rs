//! The limit of disruptions over all pools.

use std::collections::HashMap;

use parking_lot::Mutex;

use wnp_core::rollout::grants::Decision;

/// How many nodes each pool disturbs, as it last decided.
#[derive(Debug, Default)]
pub(crate) struct GlobalDisruptionBudget(Mutex<HashMap<String, u32>>);

impl GlobalDisruptionBudget {
    /// Has a pool decide, with what the others leave it. One pool at a time: two that decide at once would each take what is left.
    /// `granted` says how many nodes each pool that has instances was granted to disrupt.
    pub(crate) fn decide(
        &self,
        pool: &str,
        cap: Option<u32>,
        granted: &HashMap<String, u32>,
        decide: impl FnOnce(Option<u32>) -> Decision,
    ) -> Decision {
        let Some(cap) = cap else { return decide(None) };
        let mut known = self.0.lock();
        // Of a pool that has not decided in this process, what it was granted before counts.
        let taken: u32 = granted
            .iter()
            .filter(|(p, _)| *p != pool)
            .map(|(p, n)| known.get(p).copied().unwrap_or_default().max(*n))
            .sum();
        let decision = decide(Some(cap.saturating_sub(taken)));
        known.insert(pool.to_string(), decision.disrupting);
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
        known.decide(pool, Some(3), granted, |others| {
            seen = others;
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
        GlobalDisruptionBudget::default().decide("a", None, &HashMap::new(), |others| {
            seen = others;
            Decision::default()
        });
        assert_eq!(seen, None, "there is no limit");
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
