//! The operator's hands on a Windows host.
//!
//! * [`access`]: access lists of files and directories.
//! * [`host`]: what is needed of Windows, as a trait.
//! * [`operation`]: what the operator asks for over SSH: facts, stage, apply, start, reboot, cleanup.
//! * [`owned`]: what wicd has put on the host, so that a cleanup removes exactly that.
//! * [`secure`]: verifies that the operator's directories are real directories, and that only administrators can change
//!   their content.
//! * [`credential_plugin`]: the registration of a plugin of Container Credential Guard.
//! * [`certificates`]: keys, requests and certificates of kubelet and of wicd.
//! * [`lock`]: one at a time.
//! * [`maintenance`]: what an administrator of the host requests: to have the node drained, and to hand it back.
//! * [`network`]: what kube-proxy needs of the host's network, made before it starts.
//! * [`processes`]: which processes belong together.
//! * [`daemon`]: the Windows service that keeps the host so.
//! * [`kept_files`]: files of the owner in the place of ours, which come back afterwards.
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
