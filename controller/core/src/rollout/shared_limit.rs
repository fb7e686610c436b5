//! Limits on disruptions that pools share. Pure.
//!
//! | | pools that share it | limit |
//! |---|---|---|
//! | `--max-disruptions` is set | all | its value |
//! | otherwise | those with nodes adopted from WMCO that are not updated yet, and without `rollout.maxUnavailable` | 1 |
//!
//! WMCO changes one node at a time over all its lists and MachineSets. Here, each of these is a pool with its own limit: without the second row, the
//! first rollout after a takeover would drain one node of each pool at once.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// Number of nodes that the pools with nodes adopted from WMCO, and without `rollout.maxUnavailable`, may disrupt at once, all together.
const WMCO_LIMIT: u32 = 1;

/// State of a pool, as far as shared limits depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharer {
    /// Number of nodes for whose disruption the pool has grants.
    pub disrupting: u32,
    /// True if the pool has nodes adopted from WMCO that are not updated yet.
    pub has_adopted: bool,
    /// True if the pool sets `rollout.maxUnavailable`.
    pub has_own_limit: bool,
}

impl Sharer {
    fn takes_turns(self) -> bool {
        self.has_adopted && !self.has_own_limit
    }
}

/// Remaining share of a pool in a shared limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Number of nodes that the pool may disrupt in addition to those with a grant.
    pub left: u32,
    /// Limit over all pools, if it is set. Otherwise pools with WMCO's nodes take turns.
    pub max_disruptions: Option<u32>,
    /// Time when the share was used up.
    pub since: Option<Timestamp>,
    /// Other pool with the most disrupted nodes, if nothing is left.
    pub holder: Option<String>,
}

/// Returns the share of a pool; `None` if the pool shares no limit. `decided` returns how many nodes a pool disrupts by its last decision, which may
/// not have been written yet.
pub fn share(
    pool: &str,
    pools: &BTreeMap<String, Sharer>,
    max_disruptions: Option<u32>,
    decided: &dyn Fn(&str) -> u32,
) -> Option<Share> {
    let own = pools.get(pool).copied().unwrap_or_default();
    let limit = match max_disruptions {
        Some(limit) => limit,
        None if own.takes_turns() => WMCO_LIMIT,
        None => return None,
    };
    let shares = |sharer: &Sharer| max_disruptions.is_some() || sharer.takes_turns();
    let others = pools.iter().filter(|(name, sharer)| *name != pool && shares(sharer));
    let taken: Vec<(u32, &String)> =
        others.map(|(name, sharer)| (sharer.disrupting.max(decided(name)), name)).filter(|(n, _)| *n > 0).collect();
    let left = limit.saturating_sub(taken.iter().map(|(n, _)| n).sum::<u32>()).saturating_sub(own.disrupting);
    let most = taken.iter().max_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(a.1)));
    Some(Share {
        left,
        max_disruptions,
        since: None,
        holder: most.filter(|_| left == 0).map(|(_, name)| (*name).clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_with_wmco_nodes_take_turns_and_a_limit_over_all_pools_is_shared() {
        let adopted = |disrupting| Sharer { disrupting, has_adopted: true, has_own_limit: false };
        let own_limit = |disrupting| Sharer { has_own_limit: true, ..adopted(disrupting) };
        let updated = |disrupting| Sharer { has_adopted: false, ..adopted(disrupting) };
        let taken = |left, holder: &str| Some(Share { left, holder: Some(holder.to_owned()), ..Share::default() });
        let free = |left| Some(Share { left, ..Share::default() });
        // The pool itself, two other pools, the limit, and the expected share.
        for (about, own, b, c, max, expected) in [
            ("nothing is disrupted", adopted(0), adopted(0), adopted(0), None, free(1)),
            ("another pool disrupts a node", adopted(0), adopted(1), adopted(0), None, taken(0, "b")),
            ("the pool itself disrupts a node", adopted(1), adopted(0), adopted(0), None, free(0)),
            ("a pool with its own limit does not count", adopted(0), own_limit(3), adopted(0), None, free(1)),
            ("a pool with its own limit does not wait", own_limit(0), adopted(1), adopted(0), None, None),
            ("a pool whose nodes are all updated does not count", adopted(0), updated(1), adopted(0), None, free(1)),
            ("a pool whose nodes are all updated does not wait", updated(0), adopted(1), adopted(0), None, None),
            ("a limit over all pools is set", adopted(0), adopted(1), updated(1), Some(3), free(1)),
            (
                "a limit over all pools applies to each pool",
                updated(0),
                own_limit(2),
                adopted(1),
                Some(3),
                taken(0, "b"),
            ),
            ("the nodes of the pool itself count", updated(2), adopted(0), adopted(0), Some(3), free(1)),
            ("more nodes than the limit are disrupted", updated(2), adopted(4), adopted(1), Some(3), taken(0, "b")),
        ] {
            let pools = [("a", own), ("b", b), ("c", c)].map(|(name, sharer)| (name.to_owned(), sharer)).into();
            let expected = expected.map(|share: Share| Share { max_disruptions: max, ..share });
            assert_eq!(share("a", &pools, max, &|_| 0), expected, "{about}");
        }
        let pools = [("a", adopted(0)), ("b", adopted(0))].map(|(name, sharer)| (name.to_owned(), sharer)).into();
        assert_eq!(share("a", &pools, None, &|_| 1), taken(0, "b"), "a decision that is not written yet counts");
    }
}
