//! What the Windows Machine Config Operator has left on Nodes and in Secrets.

pub(crate) mod host_keys;
pub mod username;
