//! The decisions of the operator, as pure functions: no clock, no network, no disk. The same input gives the same answer.
//!
//! * [`inventory`]: which hosts a pool has, by the list that names them.
//! * [`rollout`]: which hosts of a pool may be worked on now, and the progress of a change.
//! * [`machines`]: which Machines are hosts, and which are replaced.
//! * [`node`]: whose a Node is, and the metadata that it must have.
//! * [`operation`]: the next step of a join, an update, a removal or a key rotation on one host.
//! * [`status`]: what people read of a pool and of an instance.
//! * [`drain`]: which pods leave a node, and what the answer to an eviction means.
//! * [`acts`]: acts of users by annotations, and their records.
//! * [`csr`]: which certificate requests are approved, and which are denied.
//! * [`render`]: the services and configuration files of hosts.
//! * [`wait`]: what hosts and pools wait for, and what ends each wait.
//! * [`yaml`]: YAML that others may write, read within limits.
//! * [`mod@backoff`]: when what failed is tried again.

pub mod acts;
pub mod backoff;
pub mod csr;
pub mod drain;
pub mod enumeration;
#[cfg(test)]
mod golden_tests;
pub mod inventory;
pub mod machines;
pub mod node;
pub mod operation;
pub mod render;
pub mod rollout;
pub mod status;
pub mod wait;
pub mod yaml;
