//! Debouncer of pool reconciles.
//!
//! Changes that arrive together are reconciled together, because a fleet that joins would keep its pool busy otherwise: a reconcile waits until
//! nothing has changed for a while. Unlike kube's own debounce it does not wait forever: in a large pool there is always something that changes.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Time without a change before a pool is reconciled.
const QUIET: Duration = Duration::from_millis(50);
/// Maximum delay of a reconcile. A place in the budget is free for as long as this, until the next host gets it.
const LONGEST: Duration = Duration::from_millis(400);

/// Time of the last change of each pool.
#[derive(Debug, Default)]
pub(crate) struct Debouncer(Mutex<HashMap<String, Instant>>);

impl Debouncer {
    /// Records that something of a pool has changed.
    pub(crate) fn changed(&self, pool: &str, now: Instant) {
        let mut changes = self.0.lock();
        if let Some(last) = changes.get_mut(pool) {
            *last = now;
        } else {
            // Entries of pools that are gone are no longer of use.
            changes.retain(|_, last| *last + QUIET > now);
            changes.insert(pool.to_owned(), now);
        }
    }

    /// Waits until a pool that has just changed is due for a reconcile.
    pub(crate) async fn wait(&self, pool: &str) {
        let start = Instant::now();
        self.changed(pool, start);
        while let Some(at) = self.next(pool, start).filter(|at| *at > Instant::now()) {
            sleep_until(at).await;
        }
    }

    fn next(&self, pool: &str, start: Instant) -> Option<Instant> {
        let last = *self.0.lock().get(pool)?;
        Some((last + QUIET).min(start + LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_waits_for_quiet_and_not_for_ever() {
        let (pace, start) = (Debouncer::default(), Instant::now());
        assert_eq!(pace.next("a", start), None);
        pace.changed("a", start);
        assert_eq!(pace.next("a", start), Some(start + QUIET));
        for more in [QUIET / 2, QUIET, QUIET * 3] {
            pace.changed("a", start + more);
            assert_eq!(pace.next("a", start), Some(start + more + QUIET));
        }
        pace.changed("a", start + LONGEST);
        assert_eq!(pace.next("a", start), Some(start + LONGEST));
        pace.changed("b", start + LONGEST + QUIET);
        assert_eq!((pace.next("a", start), pace.next("b", start).is_some()), (None, true), "only what counts is kept");
    }
}
