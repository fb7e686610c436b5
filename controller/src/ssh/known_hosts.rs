//! The keys that a `known_hosts` text lists for a host.

pub use gitops::known_hosts::KnownHostsError;

use super::HostKey;

/// The keys that `text` lists for a host; none if it has no line for it.
pub fn known_hosts(text: &str, address: &str, port: u16) -> Result<Vec<HostKey>, KnownHostsError> {
    gitops::known_hosts::known_hosts(text, address, port, |key| HostKey::parse(key).ok())
}
