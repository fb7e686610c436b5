//! Stored versions, each in an immutable ConfigMap. Its data has WMCO's format, so that wicd and WMCO can read it; everything else is in an
//! annotation.
//!
//! Stored data is untrusted input: any client that may write ConfigMaps in the namespace may have written it.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    names::{COMPONENT, MANAGED_BY, SERVICES_CONFIG_MAP_PREFIX, key},
    payload::{FileError, check_files, is_host_path, is_sha256},
    services::{ServicesConfig, ServicesError},
    services_version::{self, UnverifiedError},
};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{Rendered, Shared, kubelet};

/// Maximum size of annotations that the API server accepts, in bytes.
const MAX_ANNOTATION: usize = 256 << 10;
/// Maximum size of a ConfigMap that the API server accepts, in bytes.
const MAX_DATA: usize = 1 << 20;
/// Maximum number of files of a payload, far more than any payload has.
const MAX_FILES: usize = 1000;
/// Maximum size of containerd's settings, in bytes, far more than they need.
const MAX_CONTAINERD: usize = 16 << 10;

/// Content of a services ConfigMap.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one is made for each version, and nearly all are ours")]
pub enum Stored {
    /// ConfigMap of this operator, from this or another release.
    Ours(Rendered),
    /// ConfigMap of WMCO, which has only services.
    Legacy(ServicesConfig),
}

/// Error for a stored version that cannot be used. The caller names the object and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// The ConfigMap is larger than the API server accepts.
    #[error("its content is larger than the API server accepts")]
    TooLarge,
    /// The services cannot be read.
    #[error("{0}")]
    Services(#[from] ServicesError),
    /// The annotation is not JSON of the right form.
    #[error("the annotation {key} cannot be read", key = key::RENDERED)]
    Syntax(#[source] serde_json::Error),
    /// The entry of a payload file is invalid.
    #[error("{0}")]
    File(#[from] FileError),
    /// Other content of the annotation is invalid.
    #[error("{0}")]
    Content(&'static str),
}

/// Stored version, of this operator or of WMCO.
#[derive(Clone, Debug)]
pub struct StoredVersion {
    /// Version, or name of its ConfigMap.
    pub name: String,
    /// True for [`Stored::Ours`].
    pub is_ours: bool,
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

    /// Checks that the content of a ConfigMap has the digest that its version names.
    ///
    /// # Errors
    /// [`UnverifiedError::NoDigest`] if `version` has no digest. [`UnverifiedError::Differs`] if the content has another digest, or the annotation is
    /// missing.
    pub fn verify(version: &str, config_map: &ConfigMap) -> Result<(), UnverifiedError> {
        let data = config_map.data.clone().unwrap_or_default();
        services_version::verify(version, &data, Self::annotation_of(config_map).map(String::as_str))
    }

    fn annotation_of(config_map: &ConfigMap) -> Option<&String> {
        config_map.metadata.annotations.as_ref().and_then(|all| all.get(key::RENDERED))
    }

    /// Reads a services ConfigMap and checks its content, but not who has written it.
    ///
    /// # Errors
    /// [`StoredError::TooLarge`] if the data or the annotation is larger than the API server accepts. [`StoredError::Services`] if the data are not
    /// valid services. [`StoredError::Syntax`] if the annotation is not JSON of the right form. [`StoredError::File`] or [`StoredError::Content`] if
    /// a value in it is invalid.
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

fn checked(shared: Shared) -> Result<Shared, StoredError> {
    let refuse = |problem| Err(StoredError::Content(problem));
    if shared.files.len() > MAX_FILES {
        return refuse("the list of payload files has more than 1,000 entries");
    }
    check_files(&shared.files)?;
    let Some(config) = shared.kubelet.as_object() else {
        return refuse("kubelet's configuration is not an object");
    };
    if config.contains_key(kubelet::TAINTS) {
        return refuse("kubelet's configuration has taints, which depend on the host");
    }
    if shared.containerd.as_ref().is_some_and(|text| text.len() > MAX_CONTAINERD) {
        return refuse("containerd's configuration has more than 16 KiB");
    }
    if shared.cluster_files.iter().any(|(path, sha256)| !is_host_path(path) || !is_sha256(sha256)) {
        return refuse("an entry of the cluster's files is not a path on C: with a SHA-256 in hex");
    }
    Ok(shared)
}

/// Returns the stored versions that may be deleted: those of this operator without references. The names in both arguments have the same form:
/// versions, or ConfigMaps.
pub fn collectable(stored: &[StoredVersion], referenced: &BTreeSet<String>) -> Vec<String> {
    let free = stored.iter().filter(|version| version.is_ours && !referenced.contains(&version.name));
    free.map(|version| version.name.clone()).collect()
}

/// Reports whether an object with these labels belongs to this operator.
pub fn is_ours(labels: &BTreeMap<String, String>) -> bool {
    labels.get(MANAGED_BY).is_some_and(|by| by == COMPONENT)
}

#[cfg(test)]
#[path = "stored_tests.rs"]
mod tests;
