//! Parts of the process that do not depend on the logic of pools: log, metrics, events, clock, HTTP endpoints, Lease and supervision.

pub(crate) mod clock;
pub mod errors;
pub(crate) mod events;
pub(crate) mod http;
pub(crate) mod lease;
pub mod metrics;
pub(crate) mod operator_namespace;
pub(crate) mod reconcile_trigger;
pub(crate) mod scrape;
pub(crate) mod ssh_slots;
pub(crate) mod supervision;
pub(crate) mod telemetry;
#[cfg(test)]
mod work_tests;
