//! Rendered versions as they are stored: an immutable ConfigMap each. Its data is WMCO's format, so that wicd and WMCO can
//! read it; all the rest is an annotation.
//!
//! Stored data is outside input: any client that may write ConfigMaps in the namespace may have written it.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    names::{COMPONENT, MANAGED_BY, SERVICES_CONFIG_MAP_PREFIX, key},
    payload::{Manifest, ManifestError, is_host_path, is_sha256},
    services::{ServicesConfig, ServicesError},
    services_version::{self, UnverifiedError},
};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{Rendered, Shared, kubelet};

/// Maximum number of bytes of annotations that the API server takes.
const MAX_ANNOTATION: usize = 256 << 10;
/// Maximum size of a ConfigMap that the API server takes, in bytes.
const MAX_DATA: usize = 1 << 20;
/// Maximum number of files of a payload: far more than any has.
const MAX_FILES: usize = 1000;
/// Maximum size of the settings of containerd, in bytes: far more than they need.
const MAX_CONTAINERD: usize = 16 << 10;

/// A services ConfigMap.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one is made for each version, and nearly all are ours")]
pub enum Stored {
    /// ConfigMap rendered by this operator or another version of it.
    Ours(Rendered),
    /// ConfigMap of WMCO, which knows of services alone.
    Legacy(ServicesConfig),
}

/// A stored version cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// The ConfigMap is larger than it can have been made.
    #[error("the services ConfigMap is too large; delete it once no node follows it")]
    TooLarge,
    /// The services cannot be read.
    #[error("{0}")]
    Services(#[from] ServicesError),
    /// The annotation is not JSON of the right form.
    #[error(
        "the annotation {key} of the services ConfigMap cannot be read; delete the ConfigMap once no node follows it",
        key = key::RENDERED
    )]
    Syntax(#[source] serde_json::Error),
    /// A payload file in the ConfigMap is not acceptable.
    #[error("{0}")]
    Files(#[from] ManifestError),
    /// The content of the ConfigMap is not acceptable.
    #[error("the {what} in the services ConfigMap: {problem}; delete the ConfigMap once no node follows it")]
    Content {
        /// Part that is not acceptable.
        what: &'static str,
        /// Fault of the part.
        problem: &'static str,
    },
}

impl Rendered {
    /// Returns the ConfigMap that stores the rendered services under the version `name`.
    pub fn to_config_map(&self, name: &str, namespace: &str) -> ConfigMap {
        let shared = self.annotation();
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(format!("{SERVICES_CONFIG_MAP_PREFIX}{name}")),
                namespace: Some(namespace.to_owned()),
                annotations: Some(BTreeMap::from([(key::RENDERED.to_owned(), shared)])),
                labels: Some(BTreeMap::from([(MANAGED_BY.to_owned(), COMPONENT.to_owned())])),
                ..ObjectMeta::default()
            },
            immutable: Some(true),
            data: Some(self.services.to_data()),
            ..ConfigMap::default()
        }
    }

    /// Checks that a ConfigMap holds what its version says.
    ///
    /// # Errors
    /// [`UnverifiedError::NoDigest`] when `version` carries no digest. [`UnverifiedError::Differs`] when the content has
    /// another digest, or the annotation is missing.
    pub fn verify(version: &str, config_map: &ConfigMap) -> Result<(), UnverifiedError> {
        let data = config_map.data.clone().unwrap_or_default();
        services_version::verify(version, &data, Self::annotation_of(config_map).map(String::as_str))
    }

    fn annotation_of(config_map: &ConfigMap) -> Option<&String> {
        config_map.metadata.annotations.as_ref().and_then(|all| all.get(key::RENDERED))
    }

    /// Reads a services ConfigMap and checks all that is in it, but for who has written it.
    ///
    /// # Errors
    /// [`StoredError::TooLarge`] when the data or the annotation is larger than the API server takes.
    /// [`StoredError::Services`] when the data are not valid services. [`StoredError::Syntax`] when the annotation is not
    /// JSON of the right form. [`StoredError::Files`] or [`StoredError::Content`] when a value in it is not acceptable.
    pub fn from_config_map(config_map: &ConfigMap) -> Result<Stored, StoredError> {
        let no_data = BTreeMap::new();
        let data = config_map.data.as_ref().unwrap_or(&no_data);
        if data.iter().map(|(key, text)| key.len() + text.len()).sum::<usize>() > MAX_DATA {
            return Err(StoredError::TooLarge);
        }
        let services = ServicesConfig::from_data(data)?;
        let Some(annotation) = Self::annotation_of(config_map) else { return Ok(Stored::Legacy(services)) };
        if annotation.len() > MAX_ANNOTATION {
            return Err(StoredError::TooLarge);
        }
        let shared: Shared = serde_json::from_str(annotation).map_err(StoredError::Syntax)?;
        Ok(Stored::Ours(Rendered { services, shared: checked(shared)? }))
    }
}

fn checked(mut shared: Shared) -> Result<Shared, StoredError> {
    let refuse = |what, problem| Err(StoredError::Content { what, problem });
    if shared.files.len() > MAX_FILES {
        return refuse("list of payload files", "it has too many");
    }
    // The rules for files are the manifest's.
    let manifest = Manifest { schema: 1, files: shared.files };
    let text = serde_json::to_vec(&manifest).map_err(StoredError::Syntax)?;
    shared.files = Manifest::parse(&text)?.files;

    let Some(config) = shared.kubelet.as_object() else {
        return refuse("configuration of kubelet", "it must be an object");
    };
    if config.contains_key(kubelet::TAINTS) {
        return refuse("configuration of kubelet", "it must have no taints, because those depend on the host");
    }
    if shared.containerd.as_ref().is_some_and(|text| text.len() > MAX_CONTAINERD) {
        return refuse("configuration of containerd", "it is too large");
    }
    if shared.cluster_files.iter().any(|(path, sha256)| !is_host_path(path) || !is_sha256(sha256)) {
        return refuse("list of the cluster's files", "it must be paths on C: and SHA-256 in hex");
    }
    Ok(shared)
}

/// Returns which of the stored versions may be deleted: those of this operator that nothing refers to. `stored` says of each whether it is this
/// operator's, as [`Stored::Ours`]. Names are of the same form on both sides: versions, or ConfigMaps.
pub fn collectable(stored: &[(String, bool)], referenced: &BTreeSet<String>) -> Vec<String> {
    let free = stored.iter().filter(|(name, ours)| *ours && !referenced.contains(name));
    free.map(|(name, _)| name.clone()).collect()
}

/// Reports whether an object with these labels is this operator's.
pub fn is_ours(labels: &BTreeMap<String, String>) -> bool {
    labels.get(MANAGED_BY).is_some_and(|by| by == COMPONENT)
}

#[cfg(test)]
#[path = "stored_tests.rs"]
mod tests;
