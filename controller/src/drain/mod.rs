//! Cordon, drain and uncordon of one Node.
//!
//! [`pass`] performs one bounded round and returns: it lists the pods of the node, evicts those that may leave, and reports the remaining ones, the
//! reasons, and when to call again. It keeps no essential state between rounds, so a crash costs nothing. The caller stores the times (`started`,
//! `cordoned_at`) and the [`Cordon`].
//!
//! Filters and defaults follow `kubectl drain`. In addition, all pods are checked before the first eviction (all or nothing), each eviction is bound
//! to the listed UID, the report names the budgets, and no grace period is 0.

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

/// Time limit of one pass for its API calls.
const PASS_BUDGET: Duration = Duration::from_secs(10);

/// Input of a drain pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain<'a> {
    /// Node to drain. May be slightly stale, as from a cache.
    pub node: &'a Node,
    /// Cordon, as stored before the node was cordoned.
    pub cordon: &'a Cordon,
    /// True if a node that another client has uncordoned may be cordoned again. Otherwise, the pass fails with a conflict.
    pub may_cordon: bool,
    /// Time when the drain began, as stored.
    pub started: Timestamp,
    /// Current time.
    pub now: Timestamp,
    /// Time from which the node counts as cordoned, as stored.
    pub cordoned_at: Timestamp,
    /// Drain options of the pool.
    pub options: &'a Options,
}

/// Result of one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// State of the drain.
    pub state: State,
    /// Number of pods that still have to leave, including terminating ones.
    pub remaining: i32,
    /// Obstacles, at most 5, sorted: "shop/cart-7c9: budget cart needs 3 healthy pods and has 3". The text of an obstacle does not change between
    /// passes, so that the caller can report each new set once.
    pub blockers: Vec<String>,
    /// True if the drain has exceeded its timeout.
    pub overdue: bool,
    /// Time until the next call. Zero after [`State::Drained`] and [`State::TimedOut`].
    pub next: Duration,
    /// Pods that this pass deleted despite a refusal, each with the refusal. The caller reports each one.
    pub forced: Vec<String>,
    /// Warnings about losses and leftovers, sorted: "shop/tool: no controller recreates it".
    pub warnings: Vec<String>,
    /// True if another client had uncordoned the node, and the pass cordoned it again. The caller stores `now` as the new `cordoned_at` and clears
    /// `pre_cordoned`: the cordon of the other client is gone, and the new one is the operator's.
    pub recordoned: bool,
}

/// State of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No pod has to leave, the scheduler has had time to see the cordon, and no attached volume is awaited.
    Drained,
    /// The drain is not complete yet.
    Waiting,
    /// The drain has exceeded its timeout, and stops. Only with `OnTimeout::Abort`.
    TimedOut,
    /// Eviction of a pod is not allowed under these options, so this pass evicted no pod. The blockers name the pod and the remedy.
    Refused,
}

/// State that all drains of one operator share. Create only one; clones are cheap.
#[derive(Clone)]
pub(crate) struct Drainer {
    client: Client,
    limits: Arc<limit::Limits>,
    budget: Duration,
    /// Pod at which the last pass stopped early, by node name. Only for fairness: without it, a pass starts at the first pod.
    resume: Arc<Mutex<HashMap<String, String>>>,
}

impl Drainer {
    /// Creates a drainer. The client must be built with `Config::default_retry = false`: the default client retries for minutes when a disruption
    /// budget refuses an eviction with status 429.
    pub(crate) fn new(client: Client) -> Self {
        Self { client, limits: Arc::new(limit::Limits::new()), budget: PASS_BUDGET, resume: Arc::default() }
    }
}
