//! Whether hosts that are not listed any more may go. Pure.

use api::IntOrPercent;

/// A change of the list that takes hosts out.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Hosts that are not listed any more, and are not leaving yet.
    pub gone: usize,
    /// Hosts of the pool that are not leaving.
    pub of: usize,
    /// Whether no host is listed at all.
    pub empty: bool,
    /// How many one change may take out; `None`: all, also the last.
    pub limit: Option<IntOrPercent>,
    /// The revision of the list.
    pub revision: Option<&'a str>,
    /// The revision whose removals a person has approved.
    pub approved: Option<&'a str>,
}

/// Whether the hosts stay for now.
pub fn are_held(change: Change<'_>) -> bool {
    let Change { gone, of, empty, limit, revision, approved } = change;
    let Some(limit) = limit else { return false };
    if gone == 0 || (revision.is_some() && revision == approved) {
        return false;
    }
    empty || gone > usize::try_from(limit.of(u32::try_from(of).unwrap_or(u32::MAX))).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_hosts_at_once_go_only_when_a_person_says_so() {
        let (int, percent) = (IntOrPercent::Int, IntOrPercent::Percent);
        for (about, gone, of, empty, limit, approved, held) in [
            ("nothing goes", 0, 10, false, Some(int(1)), None, false),
            ("as many as may", 1, 10, false, Some(int(1)), None, false),
            ("one too many", 2, 10, false, Some(int(1)), None, true),
            ("a share", 2, 20, false, Some(percent(10)), None, false),
            ("more than the share", 3, 20, false, Some(percent(10)), None, true),
            ("at least one", 1, 3, false, Some(percent(10)), None, false),
            ("approved", 10, 10, false, Some(percent(10)), Some("r2"), false),
            ("an older approval", 10, 10, false, Some(percent(10)), Some("r1"), true),
            ("no limit", 10, 10, true, None, None, false),
            ("an empty list removes nothing by itself", 1, 1, true, Some(percent(10)), None, true),
            ("but with an approval", 1, 1, true, Some(percent(10)), Some("r2"), false),
        ] {
            let change = Change { gone, of, empty, limit, revision: Some("r2"), approved };
            assert_eq!(are_held(change), held, "{about}");
        }
        let nameless = Change { gone: 9, of: 9, empty: true, limit: Some(int(1)), revision: None, approved: None };
        assert!(are_held(nameless), "no approval is not an approval of no revision");
    }
}
