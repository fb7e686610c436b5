//! Decisions of the operator, as functions that use neither clock nor network nor disk. The same input gives the same result; only the encryption in
//! [`node::username`] is randomised.
//!
//! * [`inventory`]: hosts of a pool, by the list that names them.
//! * [`rollout`]: hosts of a pool that may be worked on now, and the progress of a change.
//! * [`machines`]: Machines that are hosts, and Machines that are replaced.
//! * [`node`]: owner of a Node, and the metadata that it must have.
//! * [`operation`]: checks of a host, and the next step of its join, change or removal.
//! * [`status`]: status and conditions of pools and instances.
//! * [`drain`]: pods that leave a node, and the meaning of the response to an eviction.
//! * [`acts`]: user acts that are given as annotations, and their records.
//! * [`csr`]: certificate requests that are approved, and those that are denied.
//! * [`render`]: services and configuration files of hosts.
//! * [`wait`]: what hosts and pools wait for, and what ends each wait.
//! * [`yaml`]: parser for YAML that other clients may write, with limits.
//! * [`mod@backoff`]: time of the next attempt after a failure.
//! * [`enumeration`]: lists and counts for messages.

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
