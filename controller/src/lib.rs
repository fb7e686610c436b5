//! The operator that turns Windows hosts into Kubernetes nodes.
//!
//! * [`pool`]: from a pool's inventory to instances, grants and the pool's status. Works on no host.
//! * [`inventory`]: where hosts come from.
//! * [`instance`]: works on one host over SSH, one step after another.
//! * `wnp-core`, a crate of its own: the decisions of both, pure.
//! * [`csr`], [`drain`], [`ssh`], [`payload`]: what they need for it, each usable by itself.
//! * [`run()`](run::run): the process: Lease, caches, controllers.

pub mod args;
pub mod cluster;
pub mod context;
pub mod csr;
pub mod disruption_budget;
pub mod drain;
pub mod errors;
pub mod events;
pub mod explain_command;
#[cfg(test)]
mod fake_api;
pub mod host_key_policy;
pub mod http;
pub mod instance;
pub mod inventory;
pub mod lease;
pub mod legacy;
pub mod legacy_host_keys;
pub mod legacy_sources;
pub mod lint_command;
pub mod machines;
pub mod metrics;
pub mod places;
pub mod plan_command;
pub mod pool;
pub mod reconcile_trigger;
pub mod release;
pub mod run;
pub mod secrets;
pub mod supervision;
pub mod telemetry;
pub mod unreadable;
pub mod versions;
pub mod versions_in_use;
pub mod watch;
pub mod webhook;
pub mod whose;
pub mod wicd_binding;
pub mod wicd_policy;
pub mod wicd_rbac;
pub mod wicd_rights;
pub mod withheld;
pub mod write_tracker;
