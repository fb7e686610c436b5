//! Rights of wicd on the hosts, and the operator's condition for the Operator Lifecycle Manager.

pub(crate) mod operator_condition;
pub(crate) mod wicd_binding;
