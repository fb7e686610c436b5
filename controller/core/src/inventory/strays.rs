//! Nodes with the label that the legacy operator gives to listed hosts, although no list names them now. Pure.

use std::collections::BTreeSet;

use api::names::key;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::address::canonical;
use crate::node::addresses;

/// Returns the sorted names of Nodes with the label [`key::BYOH`] that are not hosts of any pool. `hosts` are the names of all instances and all
/// listed hosts; `unnamed` are addresses of entries whose hosts have not reported their names yet. If one of these addresses is a DNS name, any Node
/// may be its host, so the result is empty.
pub fn strays<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    hosts: &BTreeSet<String>,
    unnamed: &BTreeSet<String>,
) -> Vec<String> {
    if unnamed.iter().any(|a| a.parse::<std::net::IpAddr>().is_err()) {
        return Vec::new();
    }
    let is_listed =
        |node: &Node| hosts.contains(&node.name_any()) || addresses(node).any(|a| unnamed.contains(&canonical(a)));
    let is_of_a_list = |node: &&Node| node.labels().get(key::BYOH).is_some_and(|v| v == "true");
    let mut names: Vec<String> =
        nodes.filter(is_of_a_list).filter(|n| !is_listed(n)).map(ResourceExt::name_any).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_that_no_list_names_is_a_stray() {
        let node = |name: &str, byoh: &str, address: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {key::BYOH: byoh}},
                "status": {"addresses": [{"type": "InternalIP", "address": address}]},
            }))
            .unwrap()
        };
        let nodes = [
            node("listed", "true", "10.0.0.1"),
            node("left", "true", "10.0.0.2"),
            node("asked", "true", "10.0.0.3"),
            node("machine", "false", "10.0.0.4"),
        ];
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        for (unnamed, expected) in
            [(&["10.0.0.3"][..], vec!["left"]), (&[], vec!["asked", "left"]), (&["win-9.example.com"], vec![])]
        {
            assert_eq!(strays(nodes.iter(), &set(&["listed"]), &set(unnamed)), expected, "{unnamed:?}");
        }
    }
}
