//! Watch caches of cluster objects, and the data derived from them.

pub(crate) mod instances;
pub(crate) mod machines;
pub(crate) mod name_owner;
pub(crate) mod unreadable;
pub(crate) mod watch;
pub mod wicd_policy;
pub(crate) mod wicd_rights;
pub(crate) mod write_tracker;
