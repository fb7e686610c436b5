//! Rights of the daemons on the nodes, and the policies that bound them.

pub(crate) mod operator_condition;
pub mod release_policies;
pub(crate) mod wicd_binding;
