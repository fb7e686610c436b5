//! Cordon, drain and uncordon of one Node.
//!
//! [`pass`] performs one bounded round and returns: it lists the pods of the node, evicts those that may leave, and
//! reports what is still there, why, and when to call again. It keeps nothing that matters between rounds, so that a
//! crash costs nothing; the clocks (`started`, `cordoned_at`) and the [`Cordon`] are stored by the caller.
//!
//! Filters and defaults follow `kubectl drain`. In addition: one check of the whole node before the first eviction (all
//! or nothing), each eviction bound to the UID that was listed, budgets named in the report, and never a grace period
//! of 0.

mod ask;
mod clock;
mod cordon;
mod error;
mod evict;
mod limit;
mod pass;
mod volumes;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use parking_lot::Mutex;

pub(crate) use cordon::{release_cordon, take_cordon, take_over_cordon};
pub(crate) use error::DrainError;
pub(crate) use pass::{left_behind, pass};
use wnp_core::drain::{Options, cordon::Cordon};

/// API time that one pass may take.
const PASS_BUDGET: Duration = Duration::from_secs(10);

/// One drain: what a pass is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain<'a> {
    /// The Node; may be a little stale, as from a cache.
    pub node: &'a Node,
    /// Cordon, as stored before the node was cordoned.
    pub cordon: &'a Cordon,
    /// True if a node that another client has uncordoned may be cordoned again. Otherwise the pass ends.
    pub may_cordon: bool,
    /// Time when the drain began, as stored.
    pub started: Timestamp,
    /// Current time.
    pub now: Timestamp,
    /// Time when the node was seen cordoned first, as stored. `None` = when the drain began.
    pub cordoned_at: Option<Timestamp>,
    /// Drain options of the pool.
    pub options: &'a Options,
}

/// Result of one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// State of the drain.
    pub state: State,
    /// Pods that are still to leave, those included that are on their way.
    pub remaining: i32,
    /// Obstacles, sorted, at most 5: "shop/cart-7c9: budget cart needs 3 healthy pods and has 3". The text of one obstacle does not change from pass
    /// to pass, so that a caller can report a new set once.
    pub blockers: Vec<String>,
    /// True if some blocker will not go away by waiting.
    pub needs_help: bool,
    /// True if the deadline has passed.
    pub overdue: bool,
    /// Time until the next call. Zero when [`State::Drained`] or timed out.
    pub next: Duration,
    /// Pods that this pass deleted in spite of a refusal, each with the refusal; report each one.
    pub forced: Vec<String>,
    /// Losses and leftovers, sorted: "shop/tool: no controller recreates it".
    pub warnings: Vec<String>,
    /// True if another client had uncordoned the node, and it was cordoned again. The caller stores `now` as the new `cordoned_at` and, if the cordon
    /// was `pre_cordoned`, that it no longer is: the other one's cordon is gone, and this one is ours.
    pub recordoned: bool,
}

/// State of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No pod is left to leave: seen in a list made while the node was cordoned, long enough after the cordon.
    Drained,
    /// The drain is not complete yet.
    Waiting,
    /// The deadline has passed, and the drain stops. Only with [`OnTimeout::Abort`].
    TimedOut,
    /// Some pod may not be evicted under these options, so none was. The blockers name it and the remedy.
    Refused,
}

/// State that all drains of one operator share. Cheap to clone; make only one.
#[derive(Clone)]
pub(crate) struct Drainer {
    client: Client,
    limits: Arc<limit::Limits>,
    budget: Duration,
    /// Pod at which the last pass ran out of time, by node name. A hint for fairness, not a state: without it a pass starts at the first pod.
    resume: Arc<Mutex<HashMap<String, String>>>,
}

impl Drainer {
    /// Creates a drainer. The client must be built with `Config::default_retry = false`: the default client repeats a 429, which is how a budget
    /// refuses, for minutes before the status reports it.
    pub(crate) fn new(client: Client) -> Self {
        Self { client, limits: Arc::new(limit::Limits::new()), budget: PASS_BUDGET, resume: Arc::default() }
    }

    /// Sets another limit for the API time of a pass.
    #[cfg(test)]
    pub(crate) fn with_pass_budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }
}
