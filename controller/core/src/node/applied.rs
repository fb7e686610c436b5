//! Record of the metadata that the operator puts on a Node for a pool and a host, and may later remove again. Pure.
//!
//! The record is in the instance's status, which only the operator writes. On the Node, kubelet could change it, and thereby make the
//! operator remove what kubelet itself must not remove.

use std::collections::BTreeSet;

use api::{TemplateApplied, names::key};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::desired_metadata::DesiredNodeMetadata;

/// Keys of the metadata that the operator has put on a Node, or is about to put on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Keys of labels.
    pub labels: BTreeSet<String>,
    /// Keys of annotations.
    pub annotations: BTreeSet<String>,
    /// Identifiers of taints, see [`taint_id`].
    pub taints: BTreeSet<String>,
}

/// Returns the identifier of a taint on a Node. The value is not part of it.
pub(crate) fn taint_id(key: &str, effect: &str) -> String {
    format!("{key}:{effect}")
}

impl Applied {
    /// Returns the metadata that the operator may remove from `node`. `recorded` is the record in the status of the instance.
    ///
    /// Without a record, only the default taint counts, and only on a Node without a pool's label: the kubelet of the legacy operator registers with
    /// this taint. A Node with a pool's label was already managed by this operator, and its record is lost, for example after a restore without
    /// status: nothing is removed from it.
    pub fn on(node: &Node, recorded: Option<&TemplateApplied>) -> Self {
        let Some(recorded) = recorded else {
            if node.labels().contains_key(key::POOL) {
                return Self::default();
            }
            let default = api::names::default_taint();
            return Self { taints: [taint_id(&default.key, default.effect.as_str())].into(), ..Self::default() };
        };
        let all = Self::from(recorded);
        if recorded.node_uid.is_some() && recorded.node_uid != node.metadata.uid {
            // The operator has not labelled or annotated a recreated Node yet, but kubelet registers with the taints of its configuration.
            return Self { taints: all.taints, ..Self::default() };
        }
        all
    }

    /// Returns the metadata of `wanted` that may later be removed from a Node.
    pub fn of(wanted: &DesiredNodeMetadata) -> Self {
        Self {
            labels: wanted.labels.keys().cloned().collect(),
            annotations: wanted.annotations.keys().filter(|k| !k.starts_with(api::names::GROUP)).cloned().collect(),
            taints: wanted.taints.iter().map(|t| taint_id(&t.key, t.effect.as_str())).collect(),
        }
    }

    /// Adds the keys of `other`. The union is stored before a Node changes: after a crash, it is unknown whether the change was made.
    pub fn and(mut self, other: &Self) -> Self {
        self.labels.extend(other.labels.iter().cloned());
        self.annotations.extend(other.annotations.iter().cloned());
        self.taints.extend(other.taints.iter().cloned());
        self
    }

    /// Returns the record in the form of the status.
    pub fn record(self, node_uid: Option<String>) -> TemplateApplied {
        let list = |keys: BTreeSet<String>| keys.into_iter().collect();
        TemplateApplied {
            node_uid,
            labels: list(self.labels),
            annotations: list(self.annotations),
            taints: list(self.taints),
        }
    }

    /// Reports whether a record exists and contains all of these keys for `node`.
    pub fn is_recorded(&self, node: &Node, recorded: Option<&TemplateApplied>) -> bool {
        recorded.is_some() && Self::on(node, recorded).and(self) == Self::on(node, recorded)
    }
}

impl From<&TemplateApplied> for Applied {
    fn from(recorded: &TemplateApplied) -> Self {
        let set = |keys: &[String]| keys.iter().cloned().collect();
        Self { labels: set(&recorded.labels), annotations: set(&recorded.annotations), taints: set(&recorded.taints) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(labels: &Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "w", "uid": "u", "labels": labels}})).unwrap()
    }

    fn applied(labels: &[&str], taints: &[&str]) -> Applied {
        let set = |keys: &[&str]| keys.iter().map(ToString::to_string).collect();
        Applied { labels: set(labels), annotations: set(labels), taints: set(taints) }
    }

    #[test]
    fn only_recorded_metadata_or_the_default_taint_may_be_removed() {
        let legacy = json!({"kubernetes.io/os": "windows"});
        let ours = json!({key::POOL: "a"});
        let record = |uid: Option<&str>| applied(&["x"], &["hall:NoSchedule"]).record(uid.map(Into::into));
        for (about, labels, recorded, expected) in [
            ("a node of the legacy operator", &legacy, None, applied(&[], &["os:NoSchedule"])),
            ("a node of this operator whose status is lost", &ours, None, applied(&[], &[])),
            ("recorded", &ours, Some(record(Some("u"))), applied(&["x"], &["hall:NoSchedule"])),
            ("recorded before kubelet registered", &legacy, Some(record(None)), applied(&["x"], &["hall:NoSchedule"])),
            ("the Node was created again", &legacy, Some(record(Some("v"))), applied(&[], &["hall:NoSchedule"])),
            ("an empty record", &legacy, Some(TemplateApplied::default()), applied(&[], &[])),
        ] {
            assert_eq!(Applied::on(&node(labels), recorded.as_ref()), expected, "{about}");
        }
    }

    #[test]
    fn the_record_is_stored_before_it_grows() {
        let node = node(&json!({}));
        let record = applied(&["x"], &[]).record(None);
        for (wants, recorded, expected) in [
            (applied(&["x"], &[]), Some(&record), true),
            (applied(&[], &[]), Some(&record), true),
            (applied(&["x", "y"], &[]), Some(&record), false),
            (applied(&["x"], &["os:NoSchedule"]), Some(&record), false),
            (applied(&[], &[]), None, false),
        ] {
            assert_eq!(wants.is_recorded(&node, recorded), expected, "{wants:?} {recorded:?}");
        }
    }
}
