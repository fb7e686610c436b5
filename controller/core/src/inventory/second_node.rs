//! Check whether a new host is already a Node with another name. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{WindowsInstance, names::key};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::address::canonical;
use crate::node::addresses as node_addresses;

/// Result of the check whether a new host would be a second Node of the same machine.
#[derive(Debug, PartialEq, Eq)]
pub enum Second {
    /// The host's own Node has one of its addresses, or no Node without an instance has one.
    No,
    /// The addresses of the host are not known yet.
    Unknown,
    /// The named Node has an address of the host, and no instance.
    Of(String),
}

/// Decides whether a new host with this name and these addresses would be a second Node. `has_instance` returns whether a Node has an instance.
pub fn second_node(
    name: &str,
    addresses: Option<&[String]>,
    nodes: &NodesByAddress,
    has_instance: &dyn Fn(&str) -> bool,
) -> Second {
    let Some(addresses) = addresses else { return Second::Unknown };
    let at: BTreeSet<&str> = addresses.iter().flat_map(|a| nodes.at(a)).map(String::as_str).collect();
    if at.contains(name) {
        return Second::No;
    }
    at.into_iter().find(|node| !has_instance(node)).map_or(Second::No, |node| Second::Of(node.to_owned()))
}

/// Names of the Nodes that an operator has created for hosts, by canonical address.
pub struct NodesByAddress(BTreeMap<String, Vec<String>>);

impl NodesByAddress {
    /// Indexes the Nodes of hosts. Kubelets report the addresses of their Nodes. For a Node with an instance, only the proven address and the
    /// address of its entry count.
    pub fn of(nodes: &[Arc<Node>], instance: &dyn Fn(&str) -> Option<Arc<WindowsInstance>>) -> Self {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in nodes.iter().filter(|n| is_made_by_an_operator(n)) {
            let addresses: Vec<String> = match instance(&node.name_any()) {
                Some(instance) => {
                    let proven = instance.status.as_ref().and_then(|s| s.proven_address.clone());
                    proven.into_iter().chain([instance.spec.host.address.clone()]).collect()
                }
                None => node_addresses(node).map(str::to_owned).collect(),
            };
            for address in addresses.iter().map(|a| canonical(a)).collect::<BTreeSet<_>>() {
                all.entry(address).or_default().push(node.name_any());
            }
        }
        Self(all)
    }

    /// Returns the names of the Nodes that have an address.
    pub fn at(&self, address: &str) -> &[String] {
        self.0.get(address).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Reports whether this operator or the legacy one has created the Node.
fn is_made_by_an_operator(node: &Node) -> bool {
    [key::BYOH, key::POOL].iter().any(|k| node.labels().contains_key(*k))
        || node.annotations().contains_key(key::VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{InstanceHost, WindowsInstanceSpec, WindowsInstanceStatus};
    use serde_json::json;

    #[test]
    fn a_new_host_with_the_address_of_an_operators_node_would_be_a_second_node() {
        let node = |name: &str, labels: serde_json::Value, annotations: serde_json::Value, address: &str| {
            let node = json!({
                "metadata": {"name": name, "labels": labels, "annotations": annotations},
                "status": {"addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}]},
            });
            Arc::new(serde_json::from_value::<Node>(node).unwrap())
        };
        let nodes = [
            node("byoh", json!({key::BYOH: "true"}), json!({}), "10.0.0.1"),
            node("ours", json!({key::POOL: "p"}), json!({}), "fd00:0::1"),
            node("machine", json!({}), json!({key::VERSION: "10.19.0-a"}), "10.0.0.1"),
            node("theirs", json!({}), json!({}), "10.0.0.9"),
            node("joined", json!({key::POOL: "p"}), json!({}), "10.0.0.1"),
        ];
        let joined = |name: &str| {
            (name == "joined").then(|| {
                let host = InstanceHost { address: "joined.example.com".into(), ..InstanceHost::default() };
                let spec = WindowsInstanceSpec { host, ..WindowsInstanceSpec::default() };
                let mut instance = WindowsInstance::new(name, spec);
                let proven_address = Some("10.0.0.4".into());
                instance.status = Some(WindowsInstanceStatus { proven_address, ..WindowsInstanceStatus::default() });
                Arc::new(instance)
            })
        };
        let nodes = NodesByAddress::of(&nodes, &joined);
        for (name, addresses, expected) in [
            ("new", Some(vec!["10.0.0.8"]), Second::No),
            ("new", Some(vec!["10.0.0.9"]), Second::No),
            ("new", Some(vec![]), Second::No),
            ("new", None, Second::Unknown),
            ("new", Some(vec!["10.0.0.8", "10.0.0.1"]), Second::Of("byoh".into())),
            ("byoh", Some(vec!["10.0.0.1"]), Second::No),
            // The Node has an instance, which is about to leave or is the same machine: the login distinguishes them.
            ("new", Some(vec!["fd00::1"]), Second::No),
        ] {
            let addresses = addresses.map(|a| a.into_iter().map(str::to_owned).collect::<Vec<_>>());
            let second = second_node(name, addresses.as_deref(), &nodes, &|node| node == "ours");
            assert_eq!(second, expected, "{name} {addresses:?}");
        }
        for (address, expected) in [
            ("10.0.0.1", &["byoh", "machine"][..]),
            ("fd00::1", &["ours"]),
            ("byoh", &["byoh"]),
            ("10.0.0.9", &[]),
            ("10.0.0.4", &["joined"]),
        ] {
            assert_eq!(nodes.at(address), expected, "{address}");
        }
    }
}
