//! How often a pool is looked at.
//!
//! What changes together is looked at together, or a fleet that joins would have its pool do nothing else. kube's own debounce begins
//! its time anew with every change, so that a pool in which something always changes would never be looked at: here a look is
//! delayed once.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

/// The time between the end of a look and the next one.
const SPAN: Duration = Duration::from_millis(300);

/// When the last look at each pool ended.
#[derive(Debug, Default)]
pub struct Pace(Mutex<HashMap<String, Instant>>);

impl Pace {
    /// Waits until a pool may be looked at.
    pub async fn wait(&self, pool: &str) {
        if let Some(at) = self.next(pool) {
            sleep_until(at).await;
        }
    }

    /// A look at a pool has ended.
    pub fn ended(&self, pool: &str, now: Instant) {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of pools that are gone are of no use any more.
        ends.retain(|_, end| *end + SPAN > now);
        ends.insert(pool.to_owned(), now);
    }

    fn next(&self, pool: &str) -> Option<Instant> {
        Some(*self.0.lock().unwrap_or_else(PoisonError::into_inner).get(pool)? + SPAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_pool_is_looked_at_at_once() {
        let (pace, start) = (Pace::default(), Instant::now());
        assert_eq!(pace.next("a"), None);
        pace.ended("a", start);
        assert_eq!((pace.next("a"), pace.next("b")), (Some(start + SPAN), None));
        pace.ended("b", start + SPAN);
        assert_eq!((pace.next("a"), pace.next("b")), (None, Some(start + SPAN * 2)), "only what counts is kept");
    }
}
