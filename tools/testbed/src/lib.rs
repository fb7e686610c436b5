//! The test bed: a real control plane, Windows hosts under Wine, simulated hosts, and the operator as a process.

mod apply;
pub mod binaries;
mod children;
mod cluster;
pub mod control_plane;
pub mod deployment;
pub mod git;
mod host_network;
mod http;
pub mod image;
pub mod judges;
mod lock;
pub mod openssh;
pub mod operator;
pub mod payload;
pub mod pki;
mod ports;
pub mod prometheus;
pub mod registry;
mod run_dir;
pub mod sim;
pub mod wine;

use std::path::PathBuf;

pub use cluster::Cluster;
pub use control_plane::{CaRotation, ControlPlane, ControlPlaneOptions};
pub use devenv::{AUDIT_DIR, skip};

pub use operator::{Operator, OperatorOptions};
pub use ports::free_address;

/// Returns the folder of this crate. The workspace at run time takes precedence: the path at compile time may belong to another clone that shares
/// the target folder.
pub(crate) fn source_dir() -> PathBuf {
    devenv::workspace_root().join("tools/testbed")
}
