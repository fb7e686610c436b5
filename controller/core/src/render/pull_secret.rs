//! Pull secret: registry logins of kubelet and containerd.

use std::{collections::BTreeMap, fmt};

use api::registries::{is_below, location, names, specificity, split};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

/// Path of kubelet's logins, in its root directory. kubelet reads the file again after five minutes.
pub(super) const PATH: &str = api::host::path::REGISTRY_LOGINS;
/// Entry by which Red Hat identifies a cluster. It is not a registry.
const TELEMETRY: &str = "cloud.openshift.com";

/// Logins of registries.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PullSecret {
    /// Logins as `user:password` in Base64, by the registry as the Secret writes it, optionally with a path.
    entries: BTreeMap<String, String>,
    /// Revision of the Secret with the logins. It replaces a hash, which would let passwords be guessed.
    revision: String,
}

impl fmt::Debug for PullSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PullSecret").field("registries", &self.entries.keys()).finish_non_exhaustive()
    }
}

/// Error for a text that is not a pull secret. It quotes nothing from the text.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the key .dockerconfigjson is missing or is not JSON with registry logins in `auths`")]
pub struct PullSecretError;

#[derive(Deserialize)]
struct DockerConfig {
    auths: BTreeMap<String, Value>,
}

impl PullSecret {
    /// Parses `.dockerconfigjson`. Also returns the registries whose logins cannot be used.
    ///
    /// # Errors
    /// [`PullSecretError`] if the text does not have that form.
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

    /// Creates a pull secret. Without logins it has no revision: all revisions of the Secret then mean the same.
    fn new(entries: BTreeMap<String, String>, revision: &str) -> Self {
        let revision = if entries.is_empty() { String::new() } else { revision.to_owned() };
        Self { entries, revision }
    }

    /// Returns the logins that hosts get if their pool names these registries. Hosts of a pool without a list get all logins.
    pub(super) fn of_hosts(&self, registries: Option<&[String]>) -> Self {
        let Some(registries) = registries else { return self.clone() };
        let is_chosen = |registry: &str, chosen: &str| {
            let ((host, path), (chosen_host, chosen_path)) = (split(location(registry)), split(location(chosen)));
            names(chosen_host).contains(&host) && is_below(path, chosen_path)
        };
        let entries = self.entries.iter().filter(|(registry, _)| registries.iter().any(|c| is_chosen(registry, c)));
        Self::new(entries.map(|(r, b)| (r.clone(), b.clone())).collect(), &self.revision)
    }

    /// Returns the pull secret with its revision in place of each login, so that revisions stay distinct.
    pub(super) fn redacted(&self) -> Self {
        let entries = self.entries.keys().map(|registry| (registry.clone(), self.revision.clone())).collect();
        Self { entries, revision: self.revision.clone() }
    }

    /// Returns the login that kubelet would use for images below a path of a registry.
    pub(super) fn of(&self, registry: &str, path: &str) -> Option<&str> {
        let fits = self.entries.iter().filter_map(|(key, basic)| Some((specificity(key, registry, path)?, basic)));
        fits.max_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, basic)| basic.as_str())
    }

    /// Returns the revision of the Secret that the logins are from; empty without logins.
    pub(super) fn revision(&self) -> &str {
        &self.revision
    }

    /// Returns the content of kubelet's file, if there is any login.
    pub(super) fn file(&self) -> Option<Value> {
        let auths: BTreeMap<&String, Value> =
            self.entries.iter().map(|(registry, basic)| (registry, json!({ "auth": basic }))).collect();
        (!auths.is_empty()).then(|| json!({ "auths": auths }))
    }
}

/// Returns `user:password` in Base64, from either form of an entry.
fn basic(entry: &Value) -> Option<String> {
    let text = |field: &str| entry[field].as_str().filter(|text| !text.is_empty());
    let login = match (text("auth"), text("username"), text("password")) {
        (Some(auth), ..) => STANDARD.decode(auth.trim()).ok()?,
        (None, Some(user), Some(password)) => format!("{user}:{password}").into_bytes(),
        _ => return None,
    };
    // Programs on Windows and Linux split the login at the first colon.
    let colon = login.iter().position(|b| *b == b':')?;
    (colon > 0 && !login.contains(&b'\n')).then(|| STANDARD.encode(login))
}

#[cfg(test)]
#[path = "pull_secret_tests.rs"]
mod tests;
