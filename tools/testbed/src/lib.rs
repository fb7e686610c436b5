//! The test bed: a real control plane, Windows hosts under Wine, simulated hosts, and the operator as a process.

mod apply;
pub mod binaries;
mod children;
mod cluster;
pub mod control_plane;
pub mod deployment;
pub mod git;
mod host_network;
pub mod image;
pub mod judges;
mod lock;
pub mod openssh;
pub mod operator;
pub mod payload;
pub mod pki;
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

/// The folder of this crate. Cargo passes the current workspace to the running program; the one that was compiled in is that of the last build, where
/// two clones share a target folder.
pub(crate) fn source_dir() -> PathBuf {
    devenv::workspace_root().join("tools/testbed")
}
