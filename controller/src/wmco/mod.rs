//! Integration with the Windows Machine Config Operator: its lock, its host keys, and the user annotation of its Nodes.

pub(crate) mod host_keys;
pub(crate) mod lock;
pub mod username;
