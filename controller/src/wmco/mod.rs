//! Integration with the Windows Machine Config Operator: its lock and its host keys.

pub(crate) mod host_keys;
pub(crate) mod lock;
