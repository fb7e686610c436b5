//! Rights of the daemons on the nodes, and the policies that bound them.

pub(crate) mod operator_condition;
pub(crate) mod wicd_binding;
