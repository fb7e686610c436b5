//! Limits that all drains of one operator share: the eviction rate, and one eviction at a time per namespace.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::Instant;

/// Maximum number of evictions per second, over all drains together.
const RATE: u32 = 20;
/// Maximum burst of evictions after an idle period.
const BURST: u32 = 40;

/// Token bucket that gives each caller the time of its turn.
#[derive(Debug)]
struct Bucket {
    /// Turn of the next caller, which lies in the past while the bucket holds spare tokens. `None` for a full bucket.
    next: Option<Instant>,
}

impl Bucket {
    const INTERVAL: Duration = Duration::from_millis(1000 / RATE as u64);

    /// Returns the wait until the caller's turn. Each call takes one turn.
    fn turn(&mut self, now: Instant) -> Duration {
        // A full bucket is a turn that is `BURST - 1` intervals in the past.
        let full = now.checked_sub(Self::INTERVAL * (BURST - 1)).unwrap_or(now);
        let turn = self.next.map_or(full, |next| next.max(full));
        self.next = Some(turn + Self::INTERVAL);
        turn.saturating_duration_since(now)
    }
}

/// Turn that was taken. A caller that is cancelled before its turn returns it. Otherwise, drains that wait in vain would delay all others
/// more and more.
struct Turn<'a> {
    bucket: &'a Mutex<Bucket>,
    is_used: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            let mut bucket = self.bucket.lock();
            bucket.next = bucket.next.and_then(|next| next.checked_sub(Bucket::INTERVAL));
        }
    }
}

/// Limits that all drains share.
#[derive(Debug)]
pub(super) struct Limits {
    bucket: Mutex<Bucket>,
    namespaces: Mutex<HashMap<String, Weak<AsyncMutex<()>>>>,
}

impl Limits {
    pub(super) fn new() -> Self {
        Self { bucket: Mutex::new(Bucket { next: None }), namespaces: Mutex::default() }
    }

    /// Waits until one more eviction in `namespace` may be sent. It counts as in flight until the guard is dropped.
    ///
    /// The lock is per namespace, which is coarser than per PodDisruptionBudget (a budget applies to one namespace): which budget selects a
    /// pod is known only after a refusal. Two concurrent evictions under one budget make the server retry its own writes for seconds.
    pub(super) async fn permit(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let lock = self.namespace(namespace);
        let guard = lock.lock_owned().await;
        let wait = self.bucket.lock().turn(Instant::now());
        let mut turn = Turn { bucket: &self.bucket, is_used: false };
        tokio::time::sleep(wait).await;
        turn.is_used = true;
        guard
    }

    fn namespace(&self, namespace: &str) -> Arc<AsyncMutex<()>> {
        let mut locks = self.namespaces.lock();
        if let Some(lock) = locks.get(namespace).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(AsyncMutex::new(()));
        locks.insert(namespace.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_burst_is_free_and_then_the_rate_holds() {
        // One hour ahead, so that subtraction works on a machine that has just started.
        let now = Instant::now() + Duration::from_hours(1);
        let mut bucket = Bucket { next: None };
        for _ in 0..BURST {
            assert_eq!(bucket.turn(now), Duration::ZERO);
        }
        for n in 1..=100 {
            assert_eq!(bucket.turn(now), Bucket::INTERVAL * n);
        }
    }

    #[test]
    fn spare_tokens_come_back_with_time_and_never_exceed_the_burst() {
        let now = Instant::now() + Duration::from_hours(1);
        let mut bucket = Bucket { next: None };
        for _ in 0..BURST {
            bucket.turn(now);
        }
        let second_later = now + Duration::from_secs(1);
        let free = (0..100).filter(|_| bucket.turn(second_later).is_zero()).count();
        assert_eq!(free, RATE as usize);
        let much_later = now + Duration::from_secs(1000);
        let free = (0..100).filter(|_| bucket.turn(much_later).is_zero()).count();
        assert_eq!(free, BURST as usize);
    }

    #[tokio::test]
    async fn one_eviction_at_a_time_in_a_namespace() {
        let limits = Limits::new();
        let shop = limits.permit("shop").await;
        let _bank = limits.permit("bank").await;
        assert!(limits.namespace("shop").try_lock().is_err());
        drop(shop);
        let _shop = limits.permit("shop").await;
    }

    #[tokio::test]
    async fn a_cancelled_wait_returns_its_turn() {
        let limits = Limits::new();
        let turn = || limits.bucket.lock().turn(Instant::now());
        while turn().is_zero() {}
        for n in 0..1000 {
            let name = format!("ns-{n}");
            assert!(limits.permit(&name).now_or_never().is_none());
        }
        assert!(turn() <= Bucket::INTERVAL * 3);
    }

    #[test]
    fn locks_of_quiet_namespaces_are_forgotten() {
        let limits = Limits::new();
        for n in 0..100 {
            drop(limits.namespace(&format!("ns-{n}")));
        }
        assert!(limits.namespaces.lock().len() <= 1);
    }
}
