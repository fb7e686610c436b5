//! Agent of the operator on a Windows host.
//!
//! * [`access`]: access lists of files and directories.
//! * [`host`]: interface to Windows, as a trait.
//! * [`operation`]: operations that the operator requests over SSH: facts, stage, apply, start, reboot, pull, cleanup, support.
//! * [`ownership`]: record of what wicd has put on the host, so that a cleanup removes exactly that.
//! * [`secure`]: verifies that the operator's directories are real directories, and that only administrators can change
//!   their content.
//! * [`credential_plugin`]: registration of a plugin of Container Credential Guard.
//! * [`certificates`]: keys, requests and certificates of kubelet and of wicd.
//! * [`lock`]: lock file, held by what changes the host: one at a time.
//! * [`maintenance`]: requests of an administrator of the host: to have the node drained, and to hand it back.
//! * [`network`]: host network that kube-proxy needs, made before kube-proxy starts.
//! * [`processes`]: families of processes.
//! * [`daemon`]: Windows service that keeps the host in its desired state.
//! * [`kept_files`]: files of the owner in place of ours, which come back afterwards.
//! * [`files`]: reading, writing and placing files such that a crash leaves the old file or the new one.

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
