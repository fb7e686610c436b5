//! When the source of each pool's hosts last succeeded, as this process knows it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use parking_lot::Mutex;

/// Successes by pool: the kind of its source, and when.
#[derive(Clone, Default)]
pub(super) struct Sources(Arc<Mutex<HashMap<String, (&'static str, Timestamp)>>>);

impl Sources {
    pub(super) fn succeeded(&self, pool: &str, source: &'static str, at: Timestamp) {
        self.0.lock().insert(pool.to_owned(), (source, at));
    }

    /// The last success with the source that the pool names now.
    pub(super) fn last_success(&self, pool: &str, source: &str) -> Option<Timestamp> {
        self.0.lock().get(pool).filter(|(known, _)| *known == source).map(|(_, at)| *at)
    }

    /// Drops pools that are not among these.
    pub(super) fn keep(&self, pools: &HashSet<String>) {
        self.0.lock().retain(|pool, _| pools.contains(pool));
    }
}
