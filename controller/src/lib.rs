//! The operator that turns Windows hosts into Kubernetes nodes.

pub mod payload;
pub mod render;
