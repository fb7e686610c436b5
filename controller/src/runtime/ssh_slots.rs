//! Slots that limit concurrent work on hosts. Pools share them, so that no pool keeps others from working.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Set of slots. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct SshSlots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    all: usize,
    share: Share,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of slots that each pool has taken.
    taken: BTreeMap<String, usize>,
    /// Waiting work of each pool, the oldest first.
    waiting: BTreeMap<String, VecDeque<oneshot::Sender<SshSlot>>>,
}

/// Limit of slots for one pool.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Share {
    /// Fixed maximum of slots.
    AtMost(usize),
    /// Multiple of the slots that are free, so that a pool leaves some to others. Each pool may always take one slot, even beyond the total, so that
    /// it makes progress however many slots the others take.
    ForEachFree(usize),
}

/// Slot that is taken until it is dropped.
#[derive(Debug)]
pub(crate) struct SshSlot {
    pool: String,
    places: SshSlots,
}

impl SshSlots {
    /// Creates `all` slots. Each pool can take its `share` of them.
    pub(crate) fn new(all: usize, share: Share) -> Self {
        Self(Arc::new(Shared { all, share, state: Mutex::default() }))
    }

    /// Returns the number of slots, taken or free.
    pub(crate) fn all(&self) -> usize {
        self.0.all
    }

    /// Takes a slot for work of a pool, if one is free for it.
    pub(crate) fn take(&self, pool: &str) -> Option<SshSlot> {
        self.take_from(&mut self.0.state.lock(), pool)
    }

    /// Waits for a slot. Work of one pool gets its slots in order of arrival.
    pub(crate) async fn acquire(&self, pool: &str) -> SshSlot {
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

    fn take_from(&self, state: &mut State, pool: &str) -> Option<SshSlot> {
        let free = self.0.all.saturating_sub(state.taken.values().sum());
        let of_pool = state.taken.get(pool).copied().unwrap_or_default();
        let may = match self.0.share {
            Share::AtMost(most) => free > 0 && of_pool < most,
            Share::ForEachFree(number) => of_pool == 0 || of_pool < free.saturating_mul(number),
        };
        may.then(|| {
            *state.taken.entry(pool.to_owned()).or_default() += 1;
            SshSlot { pool: pool.to_owned(), places: self.clone() }
        })
    }

    /// Takes slots for waiting work, starting with the pools that have the fewest slots. The caller must send each slot on its channel.
    fn hand_over(&self, state: &mut State) -> Vec<(oneshot::Sender<SshSlot>, SshSlot)> {
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

impl Drop for SshSlot {
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
            // If the work no longer waits, its slot is dropped and goes to the next.
            let _ = sender.send(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &SshSlots, pool: &str, number: usize) -> Vec<SshSlot> {
        (0..number).filter_map(|_| places.take(pool)).collect()
    }

    #[test]
    fn one_pool_cannot_take_all_slots() {
        let places = SshSlots::new(5, Share::AtMost(2));
        let held = take(&places, "a", 10);
        assert_eq!(held.len(), 2);
        let others: Vec<SshSlot> = ["b", "b", "c", "c"].into_iter().filter_map(|pool| places.take(pool)).collect();
        assert_eq!(others.len(), 3, "there are five slots");
        drop(held);
        assert!(places.take("a").is_some() && places.take("c").is_some());
    }

    #[test]
    fn each_pool_gets_a_slot_whatever_the_others_take() {
        for (all, pools, first) in [(100, 1, 90), (100, 10, 90), (10, 3, 9), (2, 1, 2), (1, 5, 1)] {
            let places = SshSlots::new(all, Share::ForEachFree(9));
            let held: Vec<Vec<SshSlot>> = (0..pools).map(|n| take(&places, &format!("greedy-{n}"), 200)).collect();
            assert_eq!(held[0].len(), first, "{all} {pools}");
            let beyond = held.iter().map(Vec::len).sum::<usize>().saturating_sub(all);
            assert!(beyond < pools, "{all} {pools}: {beyond} beyond the limit");
            assert!(places.take("patient").is_some(), "{all} {pools}");
        }
    }

    #[tokio::test]
    async fn waiting_work_gets_freed_slots_in_order() {
        let places = SshSlots::new(2, Share::ForEachFree(9));
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
