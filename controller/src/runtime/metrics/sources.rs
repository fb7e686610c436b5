//! Whether the source of each pool's hosts succeeds, and when it last did, as this process knows it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use parking_lot::Mutex;

/// What is known of the source of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourceState {
    /// Field of `spec.inventory` that names it.
    kind: &'static str,
    /// The last success.
    pub(super) last_success: Option<Timestamp>,
    /// Whether the last attempt succeeded.
    pub(super) is_up: bool,
}

/// By pool.
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

    /// What is known of the source that the pool names now.
    pub(super) fn of(&self, pool: &str, kind: &str) -> Option<SourceState> {
        self.0.lock().get(pool).filter(|known| known.kind == kind).copied()
    }

    /// Drops pools that are not among these.
    pub(super) fn keep(&self, pools: &HashSet<String>) {
        self.0.lock().retain(|pool, _| pools.contains(pool));
    }
}
