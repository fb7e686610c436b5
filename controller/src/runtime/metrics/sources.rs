//! State of each pool's host source: result of the last attempt, and time of the last success.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use parking_lot::Mutex;

/// Known state of one pool's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourceState {
    /// Field of `spec.inventory` that names the source.
    kind: &'static str,
    /// Time of the last success.
    pub(super) last_success: Option<Timestamp>,
    /// True if the last attempt succeeded.
    pub(super) is_up: bool,
}

/// State of each source, by pool.
#[derive(Clone, Default)]
pub(super) struct Sources(Arc<Mutex<HashMap<String, SourceState>>>);

impl Sources {
    pub(super) fn succeeded(&self, pool: &str, kind: &'static str, at: Timestamp) {
        self.0.lock().insert(pool.to_owned(), SourceState { kind, last_success: Some(at), is_up: true });
    }

    pub(super) fn failed(&self, pool: &str, kind: &'static str) {
        let last_success = self.of(pool, kind).and_then(|state| state.last_success);
        self.0.lock().insert(pool.to_owned(), SourceState { kind, last_success, is_up: false });
    }

    /// Returns the known state of the pool's source, if it is of this kind.
    pub(super) fn of(&self, pool: &str, kind: &str) -> Option<SourceState> {
        self.0.lock().get(pool).filter(|known| known.kind == kind).copied()
    }

    /// Drops all pools except these.
    pub(super) fn keep(&self, pools: &HashSet<String>) {
        self.0.lock().retain(|pool, _| pools.contains(pool));
    }
}
