//! Operator that turns Windows hosts into Kubernetes nodes, and the commands for users. A module may use only the modules below it in this list:
//!
//! * [`run()`](run::run): the process with its Lease, caches and controllers. [`commands`]: the commands for users.
//! * [`rights`]: the rights of the nodes' daemons, and reports to the Operator Lifecycle Manager.
//! * [`pool`]: the pool controller, which derives instances, grants and the pool's status from the inventory. Changes no host.
//! * [`inventory`]: sources of hosts.
//! * [`instance`]: operations on one host over SSH, step by step.
//! * [`context`]: data that all controllers share.
//! * [`wmco`]: features for clusters of the Windows Machine Config Operator. [`csr`]: certificate requests. [`drain`]: eviction of pods.
//! * [`caches`]: watch caches. [`cluster`]: facts of the cluster. [`client`]: connection to its API server.
//! * [`runtime`]: the process's log, metrics, events, Lease and SSH slots. [`args`]: its settings.
//!
//! Two more crates: `wnp-core` has the decisions, without I/O; `remote` has the access to hosts.

pub mod args;
pub mod caches;
pub mod client;
pub mod cluster;
pub mod commands;
mod context;
pub mod csr;
mod drain;
#[cfg(test)]
mod fake_api;
mod instance;
mod inventory;
mod pool;
pub mod rights;
pub mod run;
pub mod runtime;
pub mod wmco;

pub use cluster::OLDEST_MINOR as OLDEST_KUBERNETES;
