//! Which pods leave a node, in which order, and what the answer to an eviction means.

pub mod answer;
pub mod classify;
pub mod cordon;
pub mod put_back;
pub mod settings;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// A pod rule has a selector that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("drain.podRules[{index}] has a selector that cannot be read: {message}; correct or remove it")]
pub struct InvalidRule {
    /// Position in [`Options::rules`], from 0.
    pub index: usize,
    /// What is wrong with it.
    pub message: String,
}

/// How a pool wants its nodes drained.
#[derive(Clone, Debug)]
pub struct Options {
    /// From the stored start; `None` or zero = no deadline.
    pub timeout: Option<Duration>,
    /// What happens at the deadline.
    pub on_timeout: OnTimeout,
    /// Instead of each pod's own grace period. 0 is taken as 1: 0 kills. Negative is taken as `None`.
    pub grace_period_seconds: Option<i64>,
    /// Evict pods with emptyDir volumes, whose data is lost.
    pub delete_empty_dir_data: bool,
    /// Evict pods that no controller recreates, and those of a deleted DaemonSet.
    pub evict_unmanaged: bool,
    /// The first that selects a pod holds.
    pub rules: Vec<Rule>,
}

/// The defaults of the pool's API: an hour, then continue to wait and report it.
impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Some(Duration::from_hours(1)),
            on_timeout: OnTimeout::Wait,
            grace_period_seconds: None,
            delete_empty_dir_data: true,
            evict_unmanaged: true,
            rules: Vec::new(),
        }
    }
}

/// What happens at the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTimeout {
    /// Continue, and report that it is overdue. Disruption budgets are always respected.
    Wait,
    /// Stop. The caller uncordons and tries again later.
    Abort,
    /// Delete the pods that a budget still holds, with their full grace period.
    Force,
}

/// An exception for some pods.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Selects pods; empty = all.
    pub pod_selector: LabelSelector,
    /// Selects the pods' namespaces; empty = all.
    pub namespace_selector: LabelSelector,
    /// What happens to them.
    pub behavior: Behavior,
    /// All pods of a lower order leave before any of a higher order is evicted. Pods without a rule have 0.
    pub order: i32,
}

/// What happens to the pods of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// They are evicted.
    Drain,
    /// They stay, and the drain does not wait for them.
    Skip,
    /// They run to their end, which is waited for.
    WaitCompleted,
}

/// From `from` to `to`; zero when `to` is earlier.
pub fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
