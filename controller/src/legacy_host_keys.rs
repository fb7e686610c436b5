//! Host keys that the legacy operator has seen and not yet written to a Node: the ConfigMap `windows-ssh-host-keys`, address to base64 of
//! the SSH wire format. Read only: what it pins is pinned in the instance's status afterwards.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use api::names::LEGACY_HOST_KEYS;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};

use crate::{inventory::hosts::canonical, ssh::HostKey};

/// A hundred hosts that join at once shall not ask for the same ConfigMap a hundred times.
const REMEMBER_FOR: Duration = Duration::from_secs(10);

/// Reads the ConfigMap.
pub struct LegacyHostKeys {
    api: Api<ConfigMap>,
    seen: Mutex<Option<(Instant, BTreeMap<String, String>)>>,
}

impl LegacyHostKeys {
    /// That of `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), seen: Mutex::default() }
    }

    /// The key that was seen at an address. Not being able to read the ConfigMap is an error: a pin must not be lost.
    pub async fn of(&self, address: &str) -> kube::Result<Option<HostKey>> {
        let remembered = || {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.as_ref().filter(|(at, _)| at.elapsed() < REMEMBER_FOR).map(|(_, data)| find(data, address))
        };
        if let Some(found) = remembered() {
            return Ok(found);
        }
        let data = self.api.get_opt(LEGACY_HOST_KEYS).await?.and_then(|c| c.data).unwrap_or_default();
        let found = find(&data, address);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), data));
        Ok(found)
    }
}

fn find(data: &BTreeMap<String, String>, address: &str) -> Option<HostKey> {
    let address = canonical(address);
    let (_, key) = data.iter().find(|(at, _)| canonical(at) == address)?;
    HostKey::parse(key).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_the_address_however_it_is_written() {
        let key = "AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";
        let data = BTreeMap::from([
            ("win-1.example.com".to_string(), key.to_string()),
            ("10.0.0.2".to_string(), "no key".to_string()),
        ]);
        assert_eq!(find(&data, "WIN-1.example.com.").map(|k| k.key_type), Some("ssh-ed25519".into()));
        assert!(find(&data, "10.0.0.2").is_none() && find(&data, "10.0.0.3").is_none());
    }
}
