//! The operator that turns Windows hosts into Kubernetes nodes.

pub mod csr;
pub mod wicd_rbac;
