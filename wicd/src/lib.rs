//! Agent of the operator on a Windows host.
//!
//! * [`access`]: access lists of files and directories.
//! * [`host`]: interface to Windows, as a trait.
//! * [`operation`]: operations that the operator requests over SSH: facts, stage, apply, start, reboot, pull, cleanup, support.
//! * [`ownership`]: record of what wicd has put on the host, so that a cleanup removes exactly that.
//! * [`secure`]: verifies that the operator's directories are real directories, and that only administrators can change
//!   their content.
//! * [`credential_plugin`]: registration of a Container Credential Guard plugin.
//! * [`certificates`]: keys, requests and certificates of kubelet and of wicd.
//! * [`lock`]: lock file, so that operations and checks of the services do not change the host at the same time.
//! * [`maintenance`]: maintenance requests of a host administrator, to drain the node and to hand it back.
//! * [`network`]: host network for kube-proxy, created before kube-proxy starts.
//! * [`processes`]: process trees.
//! * [`daemon`]: Windows service that keeps the host in its desired state.
//! * [`kept_files`]: backup of the host owner's files that wicd replaces, restored once wicd no longer needs its own.
//! * [`files`]: reading, and atomic writing and placing of files.
//! * [`images`]: image store of containerd.
//! * [`reach`]: checks of connections and ports in the host's network.

pub mod access;
pub mod certificates;
pub mod credential_plugin;
pub mod daemon;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
#[cfg(any(test, feature = "fake"))]
pub mod fake_images;
#[cfg(any(test, feature = "fake"))]
pub mod fake_kubelet;
pub mod files;
#[cfg(any(test, feature = "fake"))]
pub mod held;
pub mod host;
pub mod images;
pub mod kept_files;
pub mod lock;
pub mod maintenance;
pub mod network;
pub mod operation;
pub mod ownership;
pub mod processes;
pub mod reach;
pub mod secure;
#[cfg(windows)]
pub mod windows;
