//! The operator that turns Windows hosts into Kubernetes nodes, and the commands of users. Each module may use those below it:
//!
//! * [`run()`](run::run): the process: Lease, caches, controllers. [`commands`]: what users run.
//! * [`rights`]: what the nodes' daemons may, and what is told to the Operator Lifecycle Manager.
//! * [`pool`]: from a pool's inventory to instances, grants and the pool's status. Works on no host.
//! * [`inventory`]: where hosts come from.
//! * [`instance`]: works on one host over SSH, one step after another.
//! * [`context`]: what all controllers share.
//! * [`wmco`]: what only a cluster of the Windows Machine Config Operator has. [`csr`], [`drain`]: certificates, and moving pods away.
//! * [`caches`], [`cluster`], [`client`]: the objects that are watched, the facts of the cluster, the connection to its API server.
//! * [`runtime`]: the process's log, metrics, events, Lease and SSH slots. [`args`]: its settings.
//!
//! Two more crates: `wnp-core`, the decisions, pure; `remote`, the way to a host.

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
