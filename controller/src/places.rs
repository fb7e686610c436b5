//! Places for work of which only so much is done at a time, so shared that one pool cannot have them all.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Places for work. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    all: usize,
    share: Share,
    taken: Mutex<BTreeMap<String, usize>>,
    freed: Notify,
}

/// Number of places that one pool can take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Share {
    /// At most this many.
    AtMost(usize),
    /// This many for each place that is free, so that a pool leaves some to the others; and one in any case, even beyond the limit, so that each pool gets on
    /// whatever the others take.
    ForEachFree(usize),
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pool: String,
    places: Places,
}

impl Places {
    /// `all` places, of which one pool can take its share.
    pub(crate) fn new(all: usize, share: Share) -> Self {
        Self(Arc::new(Shared { all, share, taken: Mutex::default(), freed: Notify::new() }))
    }

    /// Number of places, taken or free.
    pub(crate) fn all(&self) -> usize {
        self.0.all
    }

    /// Takes a place for work of a pool, if one is free for it.
    pub(crate) fn take(&self, pool: &str) -> Option<Place> {
        let mut taken = self.0.taken.lock();
        let free = self.0.all.saturating_sub(taken.values().sum());
        let of_pool = taken.get(pool).copied().unwrap_or_default();
        let may = match self.0.share {
            Share::AtMost(most) => free > 0 && of_pool < most,
            Share::ForEachFree(number) => of_pool == 0 || of_pool < free.saturating_mul(number),
        };
        may.then(|| {
            *taken.entry(pool.to_owned()).or_default() += 1;
            Place { pool: pool.to_owned(), places: self.clone() }
        })
    }

    /// Waits for a place.
    pub(crate) async fn acquire(&self, pool: &str) -> Place {
        loop {
            let freed = self.0.freed.notified();
            if let Some(place) = self.take(pool) {
                return place;
            }
            freed.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let shared = &self.places.0;
        let mut taken = shared.taken.lock();
        if let Some(count) = taken.get_mut(&self.pool) {
            *count = count.saturating_sub(1);
        }
        taken.retain(|_, count| *count > 0);
        drop(taken);
        // Whose share has room is known only when each has tried.
        shared.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Places, pool: &str, number: usize) -> Vec<Place> {
        (0..number).filter_map(|_| places.take(pool)).collect()
    }

    #[test]
    fn one_pool_cannot_take_all_places() {
        let places = Places::new(5, Share::AtMost(2));
        let held = take(&places, "a", 10);
        assert_eq!(held.len(), 2);
        let others: Vec<Place> = ["b", "b", "c", "c"].into_iter().filter_map(|pool| places.take(pool)).collect();
        assert_eq!(others.len(), 3, "there are five");
        drop(held);
        assert!(places.take("a").is_some() && places.take("c").is_some());
    }

    #[test]
    fn each_pool_gets_on_whatever_the_others_take() {
        for (all, pools, first) in [(100, 1, 90), (100, 10, 90), (10, 3, 9), (2, 1, 2), (1, 5, 1)] {
            let places = Places::new(all, Share::ForEachFree(9));
            let held: Vec<Vec<Place>> = (0..pools).map(|n| take(&places, &format!("greedy-{n}"), 200)).collect();
            assert_eq!(held[0].len(), first, "{all} {pools}");
            let beyond = held.iter().map(Vec::len).sum::<usize>().saturating_sub(all);
            assert!(beyond < pools, "{all} {pools}: {beyond} beyond the limit");
            assert!(places.take("patient").is_some(), "{all} {pools}");
        }
    }

    #[tokio::test]
    async fn who_waits_gets_the_place_that_is_freed() {
        let places = Places::new(2, Share::ForEachFree(9));
        let (one, two) = (places.acquire("a").await, places.acquire("b").await);
        let mut waits = Box::pin(places.acquire("a"));
        assert!(futures::poll!(&mut waits).is_pending());
        drop(two);
        waits.await;
        drop(one);
    }
}
