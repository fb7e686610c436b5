//! Places for work of which only so much is done at a time, so shared that one pool cannot have them all. Pure.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

/// Places for work. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    all: usize,
    of_one_pool: usize,
    taken: Arc<Mutex<BTreeMap<String, usize>>>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pool: String,
    places: Places,
}

impl Places {
    /// `all` places, of which one pool can take `of_one_pool`.
    pub(crate) fn new(all: usize, of_one_pool: usize) -> Self {
        Self { all, of_one_pool, taken: Arc::default() }
    }

    /// Takes a place for work of a pool, if one is free.
    pub(crate) fn take(&self, pool: &str) -> Option<Place> {
        let mut taken = self.taken.lock();
        let (all, of_pool) = (taken.values().sum::<usize>(), taken.get(pool).copied().unwrap_or_default());
        (all < self.all && of_pool < self.of_one_pool).then(|| {
            *taken.entry(pool.to_owned()).or_default() += 1;
            Place { pool: pool.to_owned(), places: self.clone() }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if let Some(count) = taken.get_mut(&self.pool) {
            *count = count.saturating_sub(1);
        }
        taken.retain(|_, count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pool_cannot_take_all_places() {
        let places = Places::new(5, 2);
        let held: Vec<Place> = (0..10).filter_map(|_| places.take("a")).collect();
        assert_eq!(held.len(), 2);
        let others: Vec<Place> = ["b", "b", "c", "c"].into_iter().filter_map(|pool| places.take(pool)).collect();
        assert_eq!(others.len(), 3, "there are five");
        drop(held);
        assert!(places.take("a").is_some() && places.take("c").is_some());
    }
}
