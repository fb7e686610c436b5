//! The Windows service `windows-instance-config-daemon`: keeps the host true to what its Node's annotation names.

pub mod backoff;
pub mod order;
pub mod plan;
pub mod variables;
