//! Desired metadata of Nodes.

use std::collections::BTreeMap;

use api::Taint;

/// Desired metadata of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredNodeMetadata {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Annotations that are written only when they are missing, because the same content has many forms.
    pub annotations_if_missing: BTreeMap<String, String>,
    /// Labels and annotations of the operator's own, or of the one before it, that must no longer be there.
    pub stale: Vec<&'static str>,
    /// Provider ID of the machine, for a Node that has none: the API server lets it be written once.
    pub provider_id: Option<String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// User name in the desired legacy annotation, if it is known.
    pub username: Option<String>,
}
