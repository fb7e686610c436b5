//! Private keys and known hosts from Secrets in the operator's namespace.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use api::{Reason, SecretKeyRef};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use gitops::known_hosts::Known;
use remote::ssh::{HostKey, Identity, KeyError};

/// Time for which a private key is cached, unless the caller accepts an older one. A hundred hosts that join at once must not fetch the same Secret a
/// hundred times, but a changed key must take effect for log-ins within seconds.
const CACHE_DURATION: Duration = Duration::from_secs(10);

/// Error of a Secret that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    /// The Secret does not exist.
    #[error("the Secret {namespace}/{name} does not exist; create it, or name another Secret in spec.ssh of the pool")]
    Missing {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
    },
    /// The Secret has no such key.
    #[error(
        "the Secret {namespace}/{name} has no key {key:?} (it has: {has}): add this key, or change spec.ssh of the pool"
    )]
    NoKey {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// Missing key.
        key: String,
        /// Keys that the Secret has.
        has: String,
    },
    /// The Secret has no usable private key.
    #[error("{0}")]
    Key(KeyError),
    /// The Secret has no usable list of known hosts.
    #[error("the known hosts in the Secret {namespace}/{name} cannot be used: {problem}. Correct the Secret")]
    KnownHosts {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// Fault of the list.
        problem: String,
    },
    /// The API server did not return the Secret.
    #[error("the Secret {namespace}/{name} could not be read: {}; check the API server, and the right to read this Secret", crate::runtime::errors::api_message(.source))]
    Api {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// Cause.
        #[source]
        source: kube::Error,
    },
}

impl SecretError {
    /// Returns the reason for conditions and events.
    #[expect(clippy::unused_self, reason = "like other error types, most of which have several reasons")]
    pub(crate) fn reason(&self) -> Reason {
        Reason::CredentialsUnavailable
    }
}

/// Private key and its PEM text, with which the legacy `username` annotation is encrypted.
pub(crate) struct Key {
    /// Key for SSH.
    pub identity: Arc<Identity>,
    /// PEM text of the key.
    pub pem: Zeroizing<Vec<u8>>,
}

/// Time of the read, and the key.
type CachedKey = (Instant, Arc<Key>);

/// Reader of Secrets, with a cache of private keys.
pub(crate) struct Secrets {
    api: Api<Secret>,
    namespace: String,
    cache: Mutex<HashMap<(String, String), CachedKey>>,
}

impl Secrets {
    /// Returns a reader of Secrets in `namespace`.
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), namespace: namespace.into(), cache: Mutex::default() }
    }

    async fn read(&self, name: &str, key: &str) -> Result<Zeroizing<Vec<u8>>, SecretError> {
        let secret = self
            .api
            .get_opt(name)
            .await
            .map_err(|source| SecretError::Api { namespace: self.namespace.clone(), name: name.into(), source })?
            .ok_or_else(|| SecretError::Missing { namespace: self.namespace.clone(), name: name.into() })?;
        let mut data = secret.data.unwrap_or_default();
        match data.remove(key) {
            Some(value) => Ok(Zeroizing::new(value.0)),
            None => Err(SecretError::NoKey {
                namespace: self.namespace.clone(),
                name: name.into(),
                key: key.into(),
                has: if data.is_empty() { "none".into() } else { data.into_keys().collect::<Vec<_>>().join(", ") },
            }),
        }
    }

    /// Reads one private key. A cached key is used if it is younger than [`CACHE_DURATION`].
    pub(crate) async fn key(&self, from: &SecretKeyRef) -> Result<Arc<Key>, SecretError> {
        self.key_not_older(from, CACHE_DURATION).await
    }

    /// Reads one private key. A cached key is used if it is younger than `old` or [`CACHE_DURATION`], whichever is longer.
    pub(crate) async fn key_not_older(&self, from: &SecretKeyRef, old: Duration) -> Result<Arc<Key>, SecretError> {
        let id = (from.name.clone(), from.key().to_string());
        if let Some((at, key)) = self.cache.lock().get(&id)
            && at.elapsed() < old.max(CACHE_DURATION)
        {
            return Ok(key.clone());
        }
        let pem = self.read(&id.0, &id.1).await?;
        let name = format!("the key {} of the Secret {}/{}", id.1, self.namespace, id.0);
        let identity = Arc::new(Identity::from_pem(&name, &pem).map_err(SecretError::Key)?);
        let key = Arc::new(Key { identity, pem });
        self.cache.lock().insert(id, (Instant::now(), key.clone()));
        Ok(key)
    }

    /// Reads the available private keys in order, and returns the errors of the others as well. If no key is available, fails with the first error.
    pub(crate) async fn keys(&self, from: &[SecretKeyRef]) -> Result<(Vec<Arc<Key>>, Vec<SecretError>), SecretError> {
        let (mut keys, mut problems) = (Vec::new(), Vec::new());
        for reference in from {
            match self.key(reference).await {
                Ok(key) => keys.push(key),
                Err(problem) => problems.push(problem),
            }
        }
        if keys.is_empty() && !problems.is_empty() {
            return Err(problems.swap_remove(0));
        }
        Ok((keys, problems))
    }

    /// Drops these keys from the cache, so that the next access reads them again.
    pub(crate) fn forget(&self, keys: &[SecretKeyRef]) {
        let mut cache = self.cache.lock();
        cache.retain(|(name, key), _| !keys.iter().any(|k| k.name == *name && k.key() == key));
    }

    /// Returns the hashes of all public keys in order. Fails if a key cannot be read.
    pub(crate) async fn hashes(&self, from: &[SecretKeyRef]) -> Result<Vec<String>, SecretError> {
        let mut hashes = Vec::new();
        for reference in from {
            hashes.push(self.key(reference).await?.identity.public_key_hash());
        }
        Ok(hashes)
    }

    /// Reads the host keys for an address from a Secret with known hosts.
    pub(crate) async fn known_hosts(&self, name: &str, address: &str, port: u16) -> Result<Vec<HostKey>, SecretError> {
        let text = self.read(name, api::names::KNOWN_HOSTS_SECRET_KEY).await?;
        let known = known_hosts(&text, address, port);
        let namespace = || self.namespace.clone();
        let known =
            known.map_err(|problem| SecretError::KnownHosts { namespace: namespace(), name: name.into(), problem })?;
        for line in known.damaged {
            tracing::warn!(
                secret = name,
                address,
                line,
                "a damaged line of the known hosts is ignored: correct or remove it"
            );
        }
        Ok(known.keys)
    }
}

/// Returns the host keys for an address from a text of known hosts.
pub(crate) fn known_hosts(text: &[u8], address: &str, port: u16) -> Result<Known<HostKey>, String> {
    let text = api::text::decode(text).map_err(|error| error.to_string())?;
    let parse = |key: &str| HostKey::parse(key).ok();
    gitops::known_hosts::known_hosts(&text, address, port, parse).map_err(|error| error.to_string())
}
