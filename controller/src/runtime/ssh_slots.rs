//! Slots for work that is limited in number, shared so that one pool cannot take them all.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Places for work. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    all: usize,
    share: Share,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Places that each pool has taken.
    taken: BTreeMap<String, usize>,
    /// Work of each pool that waits for a place, the oldest first.
    waiting: BTreeMap<String, VecDeque<oneshot::Sender<Place>>>,
}

/// Number of places that one pool can take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Share {
    /// At most this many places.
    AtMost(usize),
    /// Number of places for each free one, so that a pool leaves some to the others; and one in any case, even beyond the limit, so that each pool
    /// makes progress whatever the others take.
    ForEachFree(usize),
}

/// Place for work, taken until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pool: String,
    places: Places,
}

impl Places {
    /// Returns `all` places; a pool can take its share of them.
    pub(crate) fn new(all: usize, share: Share) -> Self {
        Self(Arc::new(Shared { all, share, state: Mutex::default() }))
    }

    /// Number of places, taken or free.
    pub(crate) fn all(&self) -> usize {
        self.0.all
    }

    /// Takes a place for work of a pool, if one is free for it.
    pub(crate) fn take(&self, pool: &str) -> Option<Place> {
        self.take_from(&mut self.0.state.lock(), pool)
    }

    /// Waits for a place. The work of one pool gets its places in order of arrival.
    pub(crate) async fn acquire(&self, pool: &str) -> Place {
        loop {
            let place = {
                let mut state = self.0.state.lock();
                let is_next = !state.waiting.contains_key(pool);
                if let Some(place) = is_next.then(|| self.take_from(&mut state, pool)).flatten() {
                    return place;
                }
                let (sender, place) = oneshot::channel();
                state.waiting.entry(pool.to_owned()).or_default().push_back(sender);
                place
            };
            if let Ok(place) = place.await {
                return place;
            }
        }
    }

    fn take_from(&self, state: &mut State, pool: &str) -> Option<Place> {
        let free = self.0.all.saturating_sub(state.taken.values().sum());
        let of_pool = state.taken.get(pool).copied().unwrap_or_default();
        let may = match self.0.share {
            Share::AtMost(most) => free > 0 && of_pool < most,
            Share::ForEachFree(number) => of_pool == 0 || of_pool < free.saturating_mul(number),
        };
        may.then(|| {
            *state.taken.entry(pool.to_owned()).or_default() += 1;
            Place { pool: pool.to_owned(), places: self.clone() }
        })
    }

    /// Hands places over to waiting work, the pools with the fewest places first.
    fn hand_over(&self, state: &mut State) -> Vec<(oneshot::Sender<Place>, Place)> {
        let mut given = Vec::new();
        loop {
            let before = given.len();
            let mut pools: Vec<String> = state.waiting.keys().cloned().collect();
            pools.sort_by_key(|pool| state.taken.get(pool).copied().unwrap_or_default());
            for pool in pools {
                let Some(sender) = state.waiting.get_mut(&pool).and_then(VecDeque::pop_front) else { continue };
                match self.take_from(state, &pool) {
                    Some(place) => given.push((sender, place)),
                    None => state.waiting.entry(pool).or_default().push_front(sender),
                }
            }
            state.waiting.retain(|_, waiting| !waiting.is_empty());
            if given.len() == before {
                break;
            }
        }
        given
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let given = {
            let mut state = self.places.0.state.lock();
            if let Some(count) = state.taken.get_mut(&self.pool) {
                *count = count.saturating_sub(1);
            }
            state.taken.retain(|_, count| *count > 0);
            self.places.hand_over(&mut state)
        };
        for (sender, place) in given {
            // Work that waits no longer gives its place to the next.
            let _ = sender.send(place);
        }
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
    async fn work_that_waits_gets_the_place_that_is_freed_in_its_order() {
        let places = Places::new(2, Share::ForEachFree(9));
        let (one, two) = (places.acquire("a").await, places.acquire("b").await);
        let [mut first, mut gone, mut last] = [(); 3].map(|()| Box::pin(places.acquire("a")));
        for waits in [&mut first, &mut gone, &mut last] {
            assert!(futures::poll!(waits).is_pending());
        }
        drop(gone);
        drop(two);
        let first = first.await;
        assert!(futures::poll!(&mut last).is_pending());
        drop(one);
        last.await;
        drop(first);
        let state = places.0.state.lock();
        assert!(state.taken.is_empty() && state.waiting.is_empty(), "{state:?}");
    }
}
