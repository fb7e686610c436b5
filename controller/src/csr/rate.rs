//! Rate limit for each requester. No I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;
use tracing::warn;

/// Maximum number of actions, for example denials, for one requester in each [`WINDOW`].
pub(super) const LIMIT: u32 = 10;
/// Time after which all counts start again.
pub(super) const WINDOW: Duration = Duration::from_mins(1);

/// Counts of each requester since `began`.
#[derive(Debug)]
pub(super) struct Rate {
    began: Instant,
    counts: BTreeMap<String, u32>,
    warned: BTreeSet<String>,
}

impl Rate {
    pub(super) fn new(began: Instant) -> Self {
        Self { began, counts: BTreeMap::new(), warned: BTreeSet::new() }
    }

    /// Reports whether the requester is below its limit.
    pub(super) fn allows(&mut self, requester: &str, now: Instant) -> bool {
        self.begin_again(now);
        let count = self.counts.get(requester).copied().unwrap_or_default();
        self.is_within_limit(requester, count.saturating_add(1))
    }

    /// Counts one more action of the requester, and reports whether it is allowed.
    pub(super) fn admit(&mut self, requester: &str, now: Instant) -> bool {
        self.begin_again(now);
        let count = self.counts.entry(requester.to_owned()).or_default();
        *count = count.saturating_add(1);
        let count = *count;
        self.is_within_limit(requester, count)
    }

    /// Reports whether a count is allowed. If not, logs it once for each requester in each window.
    fn is_within_limit(&mut self, requester: &str, count: u32) -> bool {
        if count > LIMIT && self.warned.insert(requester.to_owned()) {
            warn!(
                requester,
                "the requester has more than {LIMIT} certificate requests in a minute; the operator handles the others later. If this lasts, look at the \
                 requests: kubectl get csr"
            );
        }
        count <= LIMIT
    }

    fn begin_again(&mut self, now: Instant) {
        if now.duration_since(self.began) >= WINDOW {
            *self = Self::new(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_requester_has_a_limit() {
        let begin = Instant::now();
        let mut rate = Rate::new(begin);
        let later = begin + WINDOW / 2;
        let is_admitted = |rate: &mut Rate| {
            let is_allowed = rate.allows("system:wicd-node:a", later);
            assert_eq!(rate.admit("system:wicd-node:a", later), is_allowed);
            is_allowed
        };
        assert_eq!((0..1000).filter(|_| is_admitted(&mut rate)).count(), LIMIT as usize);
        assert!(rate.admit("system:wicd-node:b", later), "another one is not held up");
        assert!(rate.allows("system:wicd-node:a", begin + WINDOW));
    }
}
