//! The test bed: a real control plane, Windows hosts under Wine, simulated hosts, and the operator as a process.

pub mod binaries;
mod children;
pub mod control_plane;
pub mod deployment;
pub mod operator;
pub mod payload;
pub mod pki;
mod run_dir;
pub mod setup;
pub mod sim;
pub mod wine;

pub use control_plane::{ControlPlane, ControlPlaneOptions};
pub use operator::{Operator, OperatorOptions};
