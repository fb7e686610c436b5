//! Windows Machine Config Operator: its lock, and what it has left on Nodes and in Secrets.

pub(crate) mod host_keys;
pub(crate) mod lock;
pub mod username;
