//! Decisions about hosts that are no longer listed: whether they may leave. Pure.
//!
//! A host leaves only if this is intended. A list with one entry less shows the intent. A list that is missing, has become empty, lacks many hosts at
//! once, or has an entry that may be any host does not: then all hosts stay until a user confirms exactly this removal.

use api::{IntOrPercent, WindowsNodePool, names::key};

use crate::wait::Hold;

/// Minimum number of removed hosts for which a removal of half of the hosts or more needs confirmation, if the pool sets no limit.
pub(super) const MASS: usize = 3;

/// Change of the list that removes hosts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change<'a> {
    /// Number of hosts that are no longer listed, and are not confirmed to leave.
    pub gone: usize,
    /// Number of hosts of the pool that are not leaving.
    pub of: usize,
    /// Presence of the list.
    pub list: Presence,
    /// True if an entry has no known name: it may be one of the hosts.
    pub nameless: bool,
    /// State of the lists of the other pools: a host may have moved to one of them.
    pub others: Others,
    /// Maximum number of hosts that one change may remove; `None`: fewer than three, or fewer than half.
    pub limit: Option<IntOrPercent>,
    /// Revision of the list.
    pub revision: Option<&'a str>,
    /// Approval of a user: a number of hosts, or a revision.
    pub approved: Option<&'a str>,
}

/// Presence of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// The list names hosts.
    #[default]
    Filled,
    /// The list names no hosts.
    Empty,
    /// The list does not exist.
    Missing,
    /// The entries are Machines, and those of the missing hosts are neither deleted nor excluded.
    Machines,
}

/// State of the lists of the other pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Others {
    /// All other lists have been read since the hosts were missed.
    #[default]
    Read,
    /// Lists of other pools are about to be read.
    Pending,
    /// Lists of other pools cannot be read.
    Unreadable,
}

/// Decision about hosts that are no longer listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalDecision {
    /// The hosts may leave.
    Go,
    /// The hosts may leave, because a user has confirmed their number, or the revision.
    Confirmed,
    /// The hosts stay.
    Held(Hold),
}

/// Decides whether the hosts may leave.
pub fn decide(change: Change<'_>) -> RemovalDecision {
    let Change { gone, of, list, nameless, others, limit, revision, approved } = change;
    if gone == 0 {
        return RemovalDecision::Go;
    }
    if others == Others::Pending {
        return RemovalDecision::Held(Hold::Pending);
    }
    let number = approved.filter(|a| is_number(a)).and_then(|a| a.parse::<usize>().ok());
    if number == Some(gone) {
        return RemovalDecision::Confirmed;
    }
    // Digits alone are a number of hosts, never a revision, because revisions of ConfigMaps are digits, too. A revision confirms its removals
    // only if the names of all its hosts are known.
    if revision.is_some_and(|r| Some(r) == approved && !is_number(r)) && list != Presence::Missing && !nameless {
        return RemovalDecision::Confirmed;
    }
    let too_many = || match limit {
        Some(limit) => gone > usize::try_from(limit.of(count(of))).unwrap_or(usize::MAX),
        None => gone >= MASS && gone.saturating_mul(2) >= of,
    };
    match list {
        Presence::Missing => RemovalDecision::Held(Hold::Missing),
        Presence::Machines => RemovalDecision::Held(Hold::Machines),
        _ if nameless => RemovalDecision::Held(Hold::Nameless),
        Presence::Empty => RemovalDecision::Held(Hold::Empty),
        Presence::Filled if too_many() => RemovalDecision::Held(Hold::TooMany),
        Presence::Filled if others == Others::Unreadable => RemovalDecision::Held(Hold::Unreadable),
        Presence::Filled => RemovalDecision::Go,
    }
}

/// Reports whether a user's approval is used up: by this decision, or because it does not match the removal. If it stayed in force, it would confirm
/// a later removal of as many hosts. An approval of another revision waits for that revision, and one of a revision with unnamed hosts waits for
/// their names.
pub(crate) fn is_spent(change: &Change<'_>) -> bool {
    let fits = |a: &str| is_number(a) || change.revision == Some(a) && !(change.nameless && change.gone > 0);
    change.others != Others::Pending && change.approved.is_some_and(fits)
}

/// Reports whether the announcement of a removal to the removal guard is used up: the spec has changed since the last reconcile, so the removal was
/// made or given up. If the announcement stayed in force, it would allow a later removal of as many hosts.
pub fn is_announcement_spent(pool: &WindowsNodePool) -> bool {
    let seen = pool.status.as_ref().and_then(|status| status.observed_generation);
    pool.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(key::ANNOUNCE_REMOVAL))
        && seen != pool.metadata.generation
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_leave_only_if_this_is_intended() {
        use RemovalDecision::{Confirmed, Go, Held};
        let (int, percent) = (IntOrPercent::Int, IntOrPercent::Percent);
        let ten = |gone| Change { gone, of: 10, revision: Some("r2"), ..Change::default() };
        let limited = |gone, limit| Change { limit: Some(limit), ..ten(gone) };
        let approved = |change, approved| Change { approved: Some(approved), ..change };
        let with = |list| Change { list, ..ten(3) };
        let nameless = Change { nameless: true, ..ten(1) };
        let others = |others| Change { others, ..ten(1) };
        for (about, change, expected) in [
            ("no host is missing", limited(0, int(1)), Go),
            ("one entry is removed", ten(1), Go),
            ("fewer than half are removed", ten(4), Go),
            ("half are removed", ten(5), Held(Hold::TooMany)),
            ("half are removed, within the limit of the pool", limited(5, percent(100)), Go),
            ("half of a few are removed", Change { of: 4, ..ten(2) }, Go),
            ("three of four are removed", Change { of: 4, ..ten(3) }, Held(Hold::TooMany)),
            (
                "three of four are removed, and the number is confirmed",
                approved(Change { of: 4, ..ten(3) }, "3"),
                Confirmed,
            ),
            ("as many as the limit", limited(1, int(1)), Go),
            ("one more than the limit", limited(2, int(1)), Held(Hold::TooMany)),
            ("as many as the percentage", Change { of: 20, ..limited(2, percent(10)) }, Go),
            ("one more than the percentage", Change { of: 20, ..limited(3, percent(10)) }, Held(Hold::TooMany)),
            ("a percentage allows at least one", Change { of: 3, ..limited(1, percent(10)) }, Go),
            ("the revision is approved", approved(limited(9, percent(10)), "r2"), Confirmed),
            ("an older revision is approved", approved(limited(9, percent(10)), "r1"), Held(Hold::TooMany)),
            ("the number is confirmed", approved(limited(9, percent(10)), "9"), Confirmed),
            ("another number is confirmed", approved(limited(9, percent(10)), "8"), Held(Hold::TooMany)),
            ("the list is empty", with(Presence::Empty), Held(Hold::Empty)),
            ("the list is empty, and the number is confirmed", approved(with(Presence::Empty), "3"), Confirmed),
            ("the list is empty, and its revision is approved", approved(with(Presence::Empty), "r2"), Confirmed),
            ("the list is empty, and the pool has no hosts", Change { gone: 0, ..with(Presence::Empty) }, Go),
            ("the list is missing", with(Presence::Missing), Held(Hold::Missing)),
            ("the list is missing, and the number is confirmed", approved(with(Presence::Missing), "3"), Confirmed),
            ("a missing list has no revision", approved(with(Presence::Missing), "r2"), Held(Hold::Missing)),
            ("an entry may be any host", nameless, Held(Hold::Nameless)),
            (
                "an entry may be any host, and the list has no other",
                Change { list: Presence::Empty, ..nameless },
                Held(Hold::Nameless),
            ),
            ("an entry may be any host, and the number is confirmed", approved(nameless, "1"), Confirmed),
            ("an entry may be any host, and the revision is approved", approved(nameless, "r2"), Held(Hold::Nameless)),
            ("the Machines of the hosts exist", with(Presence::Machines), Held(Hold::Machines)),
            (
                "the Machines of the hosts exist, and the number is confirmed",
                approved(with(Presence::Machines), "3"),
                Confirmed,
            ),
            ("another pool is about to be read", others(Others::Pending), Held(Hold::Pending)),
            (
                "another pool is about to be read, and the number is confirmed",
                approved(others(Others::Pending), "1"),
                Held(Hold::Pending),
            ),
            ("another pool cannot be read", others(Others::Unreadable), Held(Hold::Unreadable)),
            (
                "another pool cannot be read, and the number is confirmed",
                approved(others(Others::Unreadable), "1"),
                Confirmed,
            ),
        ] {
            assert_eq!(decide(change), expected, "{about}");
        }
        let digits = Change { revision: Some("42"), approved: Some("42"), ..with(Presence::Empty) };
        assert_eq!(decide(digits), Held(Hold::Empty), "the revision of a ConfigMap is not a number of hosts");
        let no_revision = Change { revision: None, ..with(Presence::Empty) };
        assert_eq!(decide(no_revision), Held(Hold::Empty), "no approval is not an approval of no revision");
    }

    #[test]
    fn an_approval_is_spent_when_it_is_used_or_matches_no_removal() {
        let change = Change { gone: 3, of: 10, revision: Some("r2"), ..Change::default() };
        let approved = |approved| Change { approved: Some(approved), ..change };
        for (about, change, expected) in [
            ("there is no approval", change, false),
            ("the number matches", approved("3"), true),
            ("the number does not match", approved("4"), true),
            ("no host is missing", Change { gone: 0, ..approved("4") }, true),
            ("the revision matches", approved("r2"), true),
            ("the revision matches, and no host is missing", Change { gone: 0, ..approved("r2") }, true),
            ("the revision does not match", approved("r3"), false),
            ("the revision matches, and a name is unknown", Change { nameless: true, ..approved("r2") }, false),
            ("another pool is about to be read", Change { others: Others::Pending, ..approved("3") }, false),
        ] {
            assert_eq!(is_spent(&change), expected, "{about}");
        }
    }

    #[test]
    fn an_announcement_lasts_until_the_spec_changes() {
        for (about, announced, generation, seen, expected) in [
            ("nothing is announced", false, 2, Some(1), false),
            ("the spec has not changed", true, 1, Some(1), false),
            ("the spec has changed", true, 2, Some(1), true),
            ("the pool was created with the announcement", true, 1, None, true),
        ] {
            let mut pool = WindowsNodePool::new("factory", api::WindowsNodePoolSpec::default());
            pool.metadata.generation = Some(generation);
            pool.metadata.annotations = announced.then(|| [(key::ANNOUNCE_REMOVAL.into(), "3".into())].into());
            pool.status = Some(api::WindowsNodePoolStatus { observed_generation: seen, ..Default::default() });
            assert_eq!(is_announcement_spent(&pool), expected, "{about}");
        }
    }

    proptest! {
        #[test]
        fn only_the_exact_number_confirms_a_removal(approved in ".{0,6}|[0-9]{1,30}", gone in 1..2000usize) {
            let change = Change { gone, of: gone, list: Presence::Empty, approved: Some(&approved), ..Change::default() };
            let is_it = approved.bytes().all(|b| b.is_ascii_digit()) && approved.parse() == Ok(gone);
            prop_assert_eq!(decide(change) == RemovalDecision::Confirmed, is_it);
        }
    }
}
