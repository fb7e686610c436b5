//! Services and files of hosts. [`render`] turns facts of the cluster, the payload, the operator's settings and a pool's
//! template into the configuration that all hosts of the pool share. A ConfigMap stores it ([`Stored`]), and
//! [`Rendered::configs`] returns the configuration files of one host. Pure: no clock, no network, no disk; the same input
//! gives the same bytes.
//!
//! Service names, command lines and paths are WMCO's unless there is a reason against it, so that a cluster can be taken
//! over in place. The differences: no PowerShell; kubelet always gets its node name and address, because the operator
//! chooses them; variables are looked up on the host, not in the Node, so that a host comes up without the API server; and
//! kubelet and wicd authenticate with certificates, without tokens on the host.

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
pub use stored::{Stored, StoredError, StoredVersion, collectable, is_ours};
pub use tls_profile::TlsProfile;

#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(test)]
mod tests;
