//! Desired metadata of Nodes.

use std::collections::BTreeMap;

use api::Taint;

/// Desired metadata of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredNodeMetadata {
    /// Labels of the Node.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the Node.
    pub annotations: BTreeMap<String, String>,
    /// Annotations that are written only if they are missing, because the same content has many encodings.
    pub annotations_if_missing: BTreeMap<String, String>,
    /// Labels and annotations of this or the legacy operator that must be removed.
    pub stale: Vec<&'static str>,
    /// Provider ID of the Machine, written only if the Node has none: the API server accepts it once.
    pub provider_id: Option<String>,
    /// Taints of the Node.
    pub taints: Vec<Taint>,
    /// User name in the desired legacy annotation, if it is known.
    pub username: Option<String>,
}
