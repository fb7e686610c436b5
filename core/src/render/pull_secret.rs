//! The pull secret: what kubelet and containerd log in to registries with.

use std::{collections::BTreeMap, fmt};

use api::{ClusterPullSecret, PullSecretMode};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

/// kubelet reads it from its root directory, again after five minutes.
pub(super) const PATH: &str = api::host::path::REGISTRY_LOGINS;
/// What Red Hat identifies a cluster with. It is no registry.
const TELEMETRY: &str = "cloud.openshift.com";
/// Docker Hub goes by three names.
const DOCKER_HUB: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// Logins of registries.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PullSecret {
    /// Registry as it is written, perhaps with a path, and `user:password` in Base64.
    entries: BTreeMap<String, String>,
    /// Which state of which Secret it is: a hash over passwords would let them be guessed.
    revision: String,
}

impl fmt::Debug for PullSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PullSecret").field("registries", &self.entries.keys()).finish_non_exhaustive()
    }
}

/// The text is no pull secret. What is wrong is not quoted from it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("it must be JSON with the logins of registries in `auths`, as `.dockerconfigjson`")]
pub struct PullSecretError;

#[derive(Deserialize)]
struct DockerConfig {
    auths: BTreeMap<String, Value>,
}

impl PullSecret {
    /// Reads `.dockerconfigjson`. Beside it come the registries whose logins cannot be used.
    ///
    /// # Errors
    /// [`PullSecretError`] when it is something else.
    pub fn parse(text: &[u8], revision: &str) -> Result<(Self, Vec<String>), PullSecretError> {
        let config: DockerConfig = serde_json::from_slice(text).map_err(|_| PullSecretError)?;
        let (mut entries, mut unusable) = (BTreeMap::new(), Vec::new());
        for (registry, entry) in config.auths {
            let name = location(&registry);
            if name.split('/').next() == Some(TELEMETRY) {
                continue;
            }
            let fine = |b: u8| b.is_ascii_alphanumeric() || b".-_:/*[]".contains(&b);
            match basic(&entry) {
                Some(basic) if !name.is_empty() && registry.len() <= 255 && registry.bytes().all(fine) => {
                    entries.insert(registry, basic);
                }
                _ => unusable.push(registry.chars().filter(char::is_ascii_graphic).take(100).collect()),
            }
        }
        Ok((Self::new(entries, revision), unusable))
    }

    /// Without logins there is no revision: each state of the Secret gives hosts the same.
    fn new(entries: BTreeMap<String, String>, revision: &str) -> Self {
        let revision = if entries.is_empty() { String::new() } else { revision.to_owned() };
        Self { entries, revision }
    }

    /// What the hosts of a pool get of it.
    pub(super) fn of_pool(&self, pool: &ClusterPullSecret) -> Self {
        let chosen = pool.registries.as_deref().unwrap_or_default();
        let is_chosen = |registry: &str, chosen: &str| {
            let ((host, path), (chosen_host, chosen_path)) = (host_and_path(registry), host_and_path(chosen));
            names(chosen_host).contains(&host) && is_below(path, chosen_path)
        };
        let is_wanted = |registry: &str| match pool.mode.unwrap_or_default() {
            PullSecretMode::Ignore => false,
            PullSecretMode::Use => chosen.is_empty() || chosen.iter().any(|c| is_chosen(registry, c)),
        };
        let entries = self.entries.iter().filter(|(registry, _)| is_wanted(registry));
        Self::new(entries.map(|(r, b)| (r.clone(), b.clone())).collect(), &self.revision)
    }

    /// The same without anything secret, but different wherever the secret may be.
    pub(super) fn redacted(&self) -> Self {
        let entries = self.entries.keys().map(|registry| (registry.clone(), self.revision.clone())).collect();
        Self { entries, revision: self.revision.clone() }
    }

    /// The login of a registry, or of the longest path that `path` begins with.
    pub(super) fn of(&self, registry: &str, path: &str) -> Option<&str> {
        let names = names(registry);
        let found = self.entries.iter().filter_map(|(key, basic)| {
            let (host, rest) = host_and_path(key);
            (names.contains(&host) && is_below(path, rest)).then_some((rest.len(), basic))
        });
        found.max_by_key(|(length, _)| *length).map(|(_, basic)| basic.as_str())
    }

    /// Which state of which Secret it is.
    pub(super) fn revision(&self) -> &str {
        &self.revision
    }

    /// kubelet's file, if there is any login.
    pub(super) fn file(&self) -> Option<Value> {
        let auths: BTreeMap<&String, Value> =
            self.entries.iter().map(|(registry, basic)| (registry, json!({ "auth": basic }))).collect();
        (!auths.is_empty()).then(|| json!({ "auths": auths }))
    }
}

/// All names of a registry.
fn names(registry: &str) -> Vec<&str> {
    if DOCKER_HUB.contains(&registry) { DOCKER_HUB.to_vec() } else { vec![registry] }
}

/// Whether a path is another one, or goes on after it.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| above.is_empty() || rest.is_empty() || rest.starts_with('/'))
}

/// Registry of a key, and the path, if it has one.
fn host_and_path(key: &str) -> (&str, &str) {
    let location = location(key);
    location.split_once('/').unwrap_or((location, ""))
}

/// Registry and path of a key, which may be a URL: Docker Hub's is `https://index.docker.io/v1/`.
fn location(key: &str) -> &str {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest).trim_end_matches('/');
    rest.strip_suffix("/v1").or_else(|| rest.strip_suffix("/v2")).unwrap_or(rest)
}

/// `user:password` in Base64, from either form of an entry.
fn basic(entry: &Value) -> Option<String> {
    let text = |field: &str| entry[field].as_str().filter(|text| !text.is_empty());
    let login = match (text("auth"), text("username"), text("password")) {
        (Some(auth), ..) => STANDARD.decode(auth.trim()).ok()?,
        (None, Some(user), Some(password)) => format!("{user}:{password}").into_bytes(),
        _ => return None,
    };
    // Windows' and Linux' programs cut it at the first colon.
    let colon = login.iter().position(|b| *b == b':')?;
    (colon > 0 && !login.contains(&b'\n')).then(|| STANDARD.encode(login))
}

#[cfg(test)]
#[path = "pull_secret_tests.rs"]
mod tests;
