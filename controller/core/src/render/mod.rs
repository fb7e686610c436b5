//! The services and files of a host: from facts of the cluster, the payload, the operator's settings and a pool's
//! template to what all hosts of the pool share ([`render`]), the ConfigMap that stores it ([`Stored`]) and the
//! configuration files of one host ([`Rendered::configs`]). Pure: no clock, no network, no disk, and the same input
//! gives the same bytes.
//!
//! Service names, command lines and paths are WMCO's wherever there is no reason against it, so that a cluster can be taken
//! over in place. The differences: no PowerShell; node name and address are always said to kubelet, because it is we who
//! choose them; variables are looked up on the host, not in the Node, so that a host comes up without the API server;
//! and no token lies on the host.

mod check;
mod containerd;
mod context;
mod credential_plugin;
mod credential_provider;
mod error;
mod facts;
mod files;
mod kept;
mod kubelet;
mod log_settings;
mod mirrors;
mod pool_facts;
mod prerequisites;
pub mod program;
mod pull_secret;
mod rendered;
mod services;
mod stored;
mod tls_profile;

pub use check::{certificates, proxy_problem};
pub(crate) use credential_provider::PATH as CREDENTIAL_PROVIDER_CONFIG;
pub use error::RenderError;
use facts::METADATA_ADDRESS;
pub use facts::{Cluster, HostParams, Network, Platform, Proxy, Settings, TlsPair};
pub use kept::{Fact, Found, Kept, KeptError, Unusable, settled};
pub use log_settings::{LogSettings, LogSettingsError};
pub use mirrors::MirrorRule;
pub use pool_facts::{ImageSources, has_cloud_controller};
pub use prerequisites::api_servers_of_kubelet;
pub use pull_secret::{PullSecret, PullSecretError};
pub use rendered::{HASH_VERSION, Rendered, Shared, render, version_for};
pub use stored::{Stored, StoredError, collectable, is_ours};
pub use tls_profile::TlsProfile;

#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(test)]
mod tests;
