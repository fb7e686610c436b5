//! The operator that turns Windows hosts into Kubernetes nodes.
//!
//! * [`pool`]: from a pool's inventory to instances, grants and the pool's status. Works on no host.
//! * [`inventory`]: where hosts come from.
//! * [`instance`]: works on one host over SSH, one step after another.
//! * `wnp-core`, a crate of its own: the decisions of both, pure.
//! * [`csr`], [`drain`]: certificates, and moving pods away.
//! * [`wmco`], [`wmco_sources`], [`wmco_versions`]: what only a cluster of the Windows Machine Config Operator has.
//! * [`run()`](run::run): the process: Lease, caches, controllers.

pub mod act_command;
pub mod api_server;
pub mod args;
mod certificate_approval;
pub mod check_command;
pub mod client;
mod clock;
mod cluster;
mod cluster_facts;
mod context;
mod crds;
pub mod csr;
mod disruption_budget;
#[cfg(test)]
mod documented_commands_tests;
mod drain;
pub mod errors;
mod events;
pub mod explain_command;
#[cfg(test)]
mod fake_api;
pub mod gather;
mod host_key_policy;
mod http;
mod instance;
mod instances;
mod inventory;
mod lease;
pub mod lint_command;
mod machines;
pub mod machineset_command;
pub mod metrics;
mod operator_condition;
mod operator_namespace;
mod other_installation;
pub mod output;
pub mod payload_command;
mod places;
pub mod plan_command;
mod pool;
mod reconcile_trigger;
mod release;
pub mod run;
mod scrape;
mod secrets;
mod sight;
pub mod ssh_target;
pub mod status_command;
mod supervision;
mod telemetry;
mod texts;
mod unreadable;
mod versions;
mod watch;
pub mod webhook;
mod whose;
mod wicd_binding;
pub mod wicd_policy;
pub mod wicd_rbac;
mod wicd_reports;
mod wicd_rights;
pub mod wmco;
mod wmco_sources;
mod wmco_versions;
#[cfg(test)]
mod work_tests;
mod write_count;
mod write_tracker;

pub use cluster::OLDEST_MINOR as OLDEST_KUBERNETES;
