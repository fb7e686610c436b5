//! Drain of a node: which pods leave it, in which order, and what the response to an eviction means.

pub mod answer;
pub mod classify;
pub mod cordon;
pub mod put_back;
pub mod settings;

use std::time::Duration;

use api::{OnTimeout, PodRule};
use jiff::Timestamp;

/// Error for a pod rule with an invalid selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("drain.podRules[{index}] has a selector that cannot be read: {message}; correct or remove it")]
pub struct InvalidRule {
    /// Position in [`Options::rules`], from 0.
    pub index: usize,
    /// Fault of the selector.
    pub message: String,
}

/// Drain settings of a pool.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time from the stored start of the drain to its deadline; `None` or zero = no deadline.
    pub timeout: Option<Duration>,
    /// Action at the deadline.
    pub on_timeout: OnTimeout,
    /// Grace period that replaces each pod's own. 0, which would kill the pod at once, is treated as 1; a negative value as `None`.
    pub grace_period_seconds: Option<i64>,
    /// True if pods with emptyDir volumes are evicted. Their data is lost.
    pub delete_empty_dir_data: bool,
    /// True if pods without a controller and pods of a deleted DaemonSet are evicted.
    pub evict_unmanaged: bool,
    /// Rules for pods. The first that selects a pod applies.
    pub rules: Vec<PodRule>,
}

/// Defaults of the pool's API: a timeout of one hour, after which the drain continues and is reported as overdue.
impl Default for Options {
    fn default() -> Self {
        settings::options(&api::Drain::default())
    }
}

/// Returns the time from `from` to `to`; zero when `to` is earlier.
pub fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
