//! Nodes of WMCO that no pool has adopted. Pure.

use api::names::key;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::{enumeration::first_names, node::owner::has_annotation};

/// Returns the sorted names of the Nodes that WMCO created and that do not belong to this operator. Nodes with an instance belong to it, and so do
/// released Nodes whose version it has rendered: `is_ours` returns whether this operator has rendered a version.
pub fn wmco_nodes<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    has_instance: &dyn Fn(&str) -> bool,
    is_ours: &dyn Fn(&str) -> bool,
) -> Vec<String> {
    let is_marked = |node: &Node| node.labels().get(key::BYOH).is_some_and(|v| v == "true") || has_annotation(node);
    let of_wmco = |node: &&Node| {
        is_marked(node)
            && !has_instance(&node.name_any())
            && !node.annotations().get(key::VERSION).is_some_and(|version| is_ours(version))
    };
    let mut names: Vec<String> = nodes.filter(of_wmco).map(ResourceExt::name_any).collect();
    names.sort();
    names
}

/// Returns the instruction for a user to end mode Plan, with its command.
pub fn how_to_begin(pool: &str) -> String {
    format!(r#"set its mode to Apply: kubectl patch wnp {pool} --type merge -p '{{"spec":{{"mode":"Apply"}}}}'"#)
}

/// Returns the message about a pool that the operator created in mode Plan: the cause, and how the takeover begins.
pub fn takeover_waits(pool: &str, nodes: &[String]) -> String {
    format!(
        "nodes of the Windows Machine Config Operator are in this cluster ({}), so the operator created this pool in mode Plan: read its \
         status.plan; to begin, {}",
        first_names(nodes),
        how_to_begin(pool)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_node_of_wmco_has_its_mark_and_no_instance() {
        let cases: &[(&str, Value, Value, bool)] = &[
            ("listed", json!({key::BYOH: "true"}), json!({key::VERSION: "11.0.0-1b759bf"}), true),
            ("of-a-machine", json!({}), json!({key::VERSION: "11.0.0-1b759bf"}), true),
            ("half-configured", json!({}), json!({key::USERNAME: "x"}), true),
            ("without-annotations", json!({key::BYOH: "true"}), json!({}), true),
            ("not-listed", json!({key::BYOH: "false"}), json!({}), false),
            ("claimed", json!({key::BYOH: "true"}), json!({key::VERSION: "11.0.0-1b759bf"}), false),
            ("released", json!({key::BYOH: "true", key::POOL: "p"}), json!({key::VERSION: "ours"}), false),
            ("given-back", json!({key::BYOH: "true", key::POOL: "p"}), json!({key::VERSION: "11.0.0-1b759bf"}), true),
            ("of-another", json!({}), json!({}), false),
        ];
        for (name, labels, annotations, expected) in cases {
            let node = json!({"metadata": {"name": name, "labels": labels, "annotations": annotations}});
            let node: Node = serde_json::from_value(node).unwrap();
            let found = wmco_nodes([&node].into_iter(), &|n| n == "claimed", &|version| version == "ours");
            assert_eq!(found == [(*name).to_owned()], *expected, "{name}: {found:?}");
        }
    }
}
