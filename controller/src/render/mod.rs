//! What a host shall run and have: from facts of the cluster, the payload and the operator's settings to the services
//! ConfigMap ([`services`]) and the configuration files of one host ([`configs`]). Pure: no clock, no network, no disk, and
//! the same input gives the same bytes.
//!
//! Service names, command lines and paths are WMCO's wherever there is no reason against it, so that a cluster can be taken
//! over in place. The differences: no PowerShell; node name and address are always said to kubelet, because it is we who
//! choose them; variables are looked up on the host, not in the Node, so that a host comes up without the API server;
//! and no token lies on the host.

mod check;
mod credential_provider;
mod facts;
mod files;
mod kubelet;
mod log_settings;
pub mod program;
mod services;
mod version;

pub use check::RenderError;
pub use facts::{Cluster, HostParams, Network, Platform, Proxy, Settings, TlsPair};
pub use files::{NODE_KUBECONFIG, configs};
pub use log_settings::{LogSettings, LogSettingsError};
pub use services::services;
pub use version::services_version;

#[cfg(test)]
mod tests;
