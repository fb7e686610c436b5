//! Debouncer of pool reconciles.
//!
//! Changes that arrive together are reconciled together. Otherwise, a fleet that joins would keep its pool busy. A reconcile waits until nothing
//! has changed for a while, but not forever, unlike kube's own debounce: in a large pool, something always changes.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Time without a change before a pool is reconciled.
const QUIET: Duration = Duration::from_millis(50);
/// Maximum delay of a reconcile. A free slot in the disruption budget may stay unused for this time.
const LONGEST: Duration = Duration::from_millis(400);

/// Time of the last change of each pool.
#[derive(Debug, Default)]
pub(crate) struct Debouncer(Mutex<HashMap<String, Instant>>);

impl Debouncer {
    /// Records a change of a pool.
    pub(crate) fn changed(&self, pool: &str, now: Instant) {
        let mut changes = self.0.lock();
        if let Some(last) = changes.get_mut(pool) {
            *last = now;
        } else {
            // Entries without a recent change are no longer needed, for example those of deleted pools.
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
    fn a_reconcile_waits_for_quiet_but_not_forever() {
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
