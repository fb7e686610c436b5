//! Addresses and names of other hosts, which a host must not have in its certificates.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use api::WindowsInstance;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::node;

/// Known owners of addresses, and names in use.
#[derive(Debug, Default)]
pub struct Neighbours {
    addresses: HashMap<IpAddr, BTreeSet<String>>,
    names: HashSet<String>,
    /// Nodes that report an address or a name in their status.
    reported: HashMap<String, BTreeSet<String>>,
}

impl Neighbours {
    /// Collects the addresses and names of all hosts and Nodes. For a host of a pool, only the address at which it was reached counts: its Node could
    /// report another host's address to take it away from that host. A Node without an instance could do the same, so its addresses count only if it
    /// is a control plane node: no kubelet can set the role label on its own Node.
    pub fn gather<'a>(instances: &[Arc<WindowsInstance>], nodes: impl IntoIterator<Item = &'a Node>) -> Self {
        let mut found = Self::default();
        for instance in instances {
            let name = instance.name_any();
            let reached = instance.status.as_ref().and_then(|s| s.proven_address.as_ref()?.parse::<IpAddr>().ok());
            if let Some(ip) = reached {
                found.addresses.entry(ip.to_canonical()).or_default().insert(name.clone());
            }
            found.names.insert(name);
        }
        for node in nodes {
            let name = node.name_any();
            for address in node::addresses(node) {
                found.reported.entry(spelled(address)).or_default().insert(name.clone());
            }
            if found.names.insert(name.clone()) && is_of_the_control_plane(node) {
                for ip in node::owner::addresses(node) {
                    found.addresses.entry(ip).or_default().insert(name.clone());
                }
            }
        }
        found
    }

    /// Reports whether a host or control plane node other than `host` has the address.
    pub fn has_address(&self, ip: IpAddr, host: &str) -> bool {
        self.addresses.get(&ip.to_canonical()).is_some_and(|owners| owners.iter().any(|owner| owner != host))
    }

    /// Reports whether a Node other than that of `host` reports the address or name.
    pub fn is_reported_by_another(&self, address: &str, host: &str) -> bool {
        self.reported.get(&spelled(address)).is_some_and(|nodes| nodes.iter().any(|node| node != host))
    }

    /// Reports whether a host or Node other than `host` has the name.
    pub fn has_name(&self, name: &str, host: &str) -> bool {
        // TLS ignores case, and the names of Nodes are lower case.
        let name = name.to_ascii_lowercase();
        name != host && self.names.contains(&name)
    }
}

/// Returns the canonical spelling of an address or a name.
fn spelled(address: &str) -> String {
    match address.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().to_string(),
        Err(_) => address.to_ascii_lowercase(),
    }
}

fn is_of_the_control_plane(node: &Node) -> bool {
    let roles = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
    roles.iter().any(|role| node.labels().contains_key(*role))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{WindowsInstanceSpec, WindowsInstanceStatus};
    use serde_json::json;

    #[test]
    fn a_host_cannot_take_an_address_from_another_by_saying_that_it_has_it() {
        let host = |name: &str, address: &str| {
            let mut instance = WindowsInstance::new(name, WindowsInstanceSpec::default());
            instance.status = Some(WindowsInstanceStatus {
                proven_address: Some(address.into()),
                ..WindowsInstanceStatus::default()
            });
            Arc::new(instance)
        };
        let node = |name: &str, address: &str| -> Node {
            let addresses = json!([{"type": "InternalIP", "address": address}]);
            let role = if name.starts_with("master") { "node-role.kubernetes.io/control-plane" } else { "x" };
            let metadata = json!({"name": name, "labels": {role: ""}});
            serde_json::from_value(json!({"metadata": metadata, "status": {"addresses": addresses}})).unwrap()
        };
        let all = Neighbours::gather(
            &[
                host("win-1", "10.0.0.1"),
                host("win-2", "::ffff:10.0.0.2"),
                host("nat-1", "10.9.0.1"),
                host("nat-2", "10.9.0.1"),
            ],
            &[
                node("win-1", "10.0.0.1"),
                node("win-2", "10.0.0.1"),
                node("master-0", "10.0.0.9"),
                node("linux-0", "10.0.0.2"),
            ],
        );
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (address, host, expected) in [
            ("10.0.0.1", "win-1", false),
            ("10.0.0.1", "win-2", true),
            ("10.0.0.2", "win-2", false),
            ("10.0.0.9", "win-1", true),
            ("10.9.0.1", "nat-1", true),
            ("10.7.7.7", "win-1", false),
        ] {
            assert_eq!(all.has_address(ip(address), host), expected, "{address} for {host}");
        }
        assert!(all.has_name("master-0", "win-1") && all.has_name("WIN-2", "win-1"));
        assert!(!all.has_name("Win-1", "win-1") && !all.has_name("win-9", "win-1"));
    }
}
