//! What is known of the names of hosts that are listed without one: instances, Nodes, Machines, DNS, and what hosts have said.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{FirstContact, WindowsInstance, WindowsNodePool, names::key};
use futures::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, runtime::reflector::ObjectRef};

use super::PoolContext;
use crate::inventory::hostname_probe::host_key_of;
use remote::ssh::HostKey;
use wnp_core::inventory::{
    Entry, EntryError,
    address::canonical,
    hosts::Resolved,
    naming::{self, Existing, Identity, Named, Names, Place},
};

/// Nodes that are asked for at once.
const REQUESTS: usize = 16;
/// No watch reports the deletion of Nodes of other systems and of Machines: a name is checked again after this time.
const ASK_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// When the API server fails us, ask again after this time.
const RETRY: SignedDuration = SignedDuration::from_secs(5);

/// Entries with names.
pub(super) struct Naming {
    /// The entries.
    pub named: Named,
    /// Owners of the names that hosts report.
    pub owners: Owners,
    /// First contacts with hosts that are listed without a name.
    pub contacts: Vec<FirstContact>,
}

impl Naming {
    /// Names the entries of a pool.
    pub(super) async fn of(pool: &WindowsNodePool, entries: Vec<Entry>, cx: &PoolContext) -> Self {
        let (name, port) = (pool.name_any(), i32::from(pool.spec.ssh().port()));
        let unnamed = entries.iter().filter(|e| e.host.name.is_empty());
        let places: BTreeSet<Place> = unnamed.map(|e| naming::place(&e.host, port)).collect();
        if places.is_empty() {
            let named = Named { entries, ..Named::default() };
            return Self { named, owners: Owners::default(), contacts: Vec::new() };
        }
        let stored = pool.status.as_ref().map(|s| s.contacts.clone()).unwrap_or_default();
        // A name counts only once it is stored beside the key of the host that said it.
        let said: Vec<&FirstContact> = stored.iter().filter(|c| places.contains(&at(c))).collect();
        let existing: Vec<Existing> =
            cx.caches.instances.state().iter().map(|i| existing(i, &name, !said.is_empty())).collect();
        if cx.process.looks_once {
            let all = places.iter().chain(existing.iter().map(|e| &e.place)).map(|(address, _)| address.clone());
            cx.sources.names.look_up(all.filter(|a| a.parse::<std::net::IpAddr>().is_err()).collect()).await;
        }
        let owners = Owners::of(&said, cx).await;
        let nodes =
            NodesByAddress::of(&cx.caches.nodes.state(), &|node| cx.caches.instances.get(&ObjectRef::new(node)));
        let names = Names {
            existing: &existing,
            nodes_at: &|address| nodes.0.get(address).cloned().unwrap_or_default(),
            resolved: &|dns| cx.sources.names.addresses(&name, dns),
            forbidden: &|entry| {
                let stored = stored.iter().find(|c| at(c) == naming::place(&entry.host, port));
                host_key_of(entry, stored, pool).err().map(|problem| (problem.reason(), problem.to_string()))
            },
            contact: &|place| stored.iter().find(|c| at(c) == *place).cloned(),
            failure: &|place| cx.sources.names.failure(&name, place),
            owner: &|host| owners.owner(host),
        };
        let named = naming::name(entries, port, &names);
        Self { named, contacts: cx.sources.names.contacts(&name, &stored, &places), owners }
    }
}

/// Keeps hosts out that have no instance yet and are Nodes of another name already: they would be joined a second time, and their pods would stay
/// behind on the first Node. What is kept out for good is a problem of its entry; returns when to look again.
pub(super) async fn keep_second_nodes_out(pool: &str, resolved: &mut Resolved, cx: &PoolContext) -> Option<Timestamp> {
    let has_instance = |name: &str| cx.caches.instances.get(&ObjectRef::new(name)).is_some();
    let hosts = resolved.hosts.values().map(|h| (h.name.clone(), canonical(&h.address)));
    let new: Vec<(String, String)> = hosts.filter(|(name, _)| !has_instance(name)).collect();
    if new.is_empty() {
        return None;
    }
    let is_name = |address: &&String| address.parse::<std::net::IpAddr>().is_err();
    if cx.process.looks_once {
        cx.sources.names.look_up(new.iter().map(|(_, address)| address).filter(is_name).cloned().collect()).await;
    }
    let nodes = NodesByAddress::of(&cx.caches.nodes.state(), &|node| cx.caches.instances.get(&ObjectRef::new(node)));
    let mut next = None;
    for (name, address) in new {
        let addresses =
            if is_name(&&address) { cx.sources.names.addresses(pool, &address) } else { Some(vec![address.clone()]) };
        match second_node(&name, addresses.as_deref(), &nodes, &has_instance) {
            Second::No => continue,
            Second::Unknown => {}
            Second::Of(node) => {
                let message = format!(
                    "host {name}: its address {address} belongs to the Node {node}, which an operator created for it: name the entry {node}, or delete that Node if it is a leftover"
                );
                resolved.problems.push(EntryError { host: name.clone(), reason: "HostConflict", message });
                next = Timestamp::now().checked_add(ASK_AGAIN).ok();
            }
        }
        resolved.hosts.remove(&name);
        resolved.origins.remove(&name);
    }
    next
}

/// Whether a new host would be a second Node of the same machine.
#[derive(Debug, PartialEq, Eq)]
enum Second {
    /// No Node has an address of it, or its own has. A Node that has an instance is left to that.
    No,
    /// Its addresses are not known yet.
    Unknown,
    /// This Node has its address.
    Of(String),
}

fn second_node(
    name: &str,
    addresses: Option<&[String]>,
    nodes: &NodesByAddress,
    has_instance: &dyn Fn(&str) -> bool,
) -> Second {
    let Some(addresses) = addresses else { return Second::Unknown };
    let at: BTreeSet<&str> = addresses.iter().filter_map(|a| nodes.0.get(a)).flatten().map(String::as_str).collect();
    if at.contains(name) {
        return Second::No;
    }
    at.into_iter().find(|node| !has_instance(node)).map_or(Second::No, |node| Second::Of(node.to_owned()))
}

fn at(contact: &FirstContact) -> Place {
    (contact.address.clone(), contact.port)
}

fn existing(instance: &WindowsInstance, pool: &str, with_identity: bool) -> Existing {
    let host = &instance.spec.host;
    Existing {
        name: instance.name_any(),
        place: (canonical(&host.address), host.port),
        is_foreign: instance.spec.pool_ref.name != pool,
        identity: if with_identity { identity(instance) } else { None },
    }
}

fn identity(instance: &WindowsInstance) -> Option<Identity> {
    let status = instance.status.as_ref()?;
    let (key, facts) = (status.host_key.as_ref()?, status.facts.as_ref()?);
    Some(Identity {
        host_key: HostKey { key_type: key.key_type.clone(), public_key_base64: key.public_key.clone() }.fingerprint(),
        hostname: facts.hostname.clone(),
        machine_id: facts.machine_id.clone(),
        boot_id: facts.boot_id.clone(),
    })
}

/// Names of the Nodes that an operator has made of hosts, by address in its one form.
struct NodesByAddress(BTreeMap<String, Vec<String>>);

impl NodesByAddress {
    /// Kubelets write the addresses of their Nodes. Of a Node with an instance, only the addresses at which that was proven count.
    fn of(nodes: &[Arc<Node>], instance: &dyn Fn(&str) -> Option<Arc<WindowsInstance>>) -> Self {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in nodes.iter().filter(|n| is_made_by_an_operator(n)) {
            let addresses = match instance(&node.name_any()) {
                Some(instance) => {
                    let proven = instance.status.as_ref().and_then(|s| s.proven_address.clone());
                    proven.into_iter().chain([instance.spec.host.address.clone()]).collect()
                }
                None => reported(node),
            };
            for address in addresses.iter().map(|a| canonical(a)).collect::<BTreeSet<_>>() {
                all.entry(address).or_default().push(node.name_any());
            }
        }
        Self(all)
    }
}

fn reported(node: &Node) -> Vec<String> {
    let addresses = node.status.as_ref().and_then(|s| s.addresses.as_deref()).unwrap_or_default();
    addresses.iter().map(|a| a.address.clone()).collect()
}

/// Whether an operator has made this Node of a host: this one, or the legacy one.
fn is_made_by_an_operator(node: &Node) -> bool {
    [key::BYOH, key::POOL].iter().any(|k| node.labels().contains_key(*k))
        || node.annotations().contains_key(key::VERSION)
}

/// Owners of the names that hosts report.
#[derive(Debug, Default)]
pub(super) struct Owners(BTreeMap<String, Result<Option<String>, String>>);

impl Owners {
    /// Of the names that these contacts say.
    async fn of(contacts: &[&FirstContact], cx: &PoolContext) -> Self {
        let names: BTreeSet<String> =
            contacts.iter().filter_map(|c| c.hostname.as_ref()).map(|name| name.to_ascii_lowercase()).collect();
        let owners = stream::iter(names).map(|name| async move {
            let owner = owner(&name, cx).await;
            (name, owner)
        });
        Self(owners.buffer_unordered(REQUESTS).collect().await)
    }

    fn owner(&self, name: &str) -> Result<Option<String>, String> {
        self.0.get(name).cloned().unwrap_or_else(|| Err(format!("the owner of the name {name} is not known yet")))
    }

    /// When to look again, at the latest.
    pub(super) fn next(&self, other: Option<Timestamp>) -> Option<Timestamp> {
        let wait = |owner: &Result<Option<String>, String>| match owner {
            Ok(None) => None,
            Ok(Some(_)) => Some(ASK_AGAIN),
            Err(_) => Some(RETRY),
        };
        let soonest = self.0.values().filter_map(wait).min().and_then(|wait| Timestamp::now().checked_add(wait).ok());
        soonest.into_iter().chain(other).min()
    }
}

/// The owner of a name, in words. Nodes are asked of the API server: the cache has only those that run Windows.
async fn owner(name: &str, cx: &PoolContext) -> Result<Option<String>, String> {
    if let Some(instance) = cx.caches.instances.get(&ObjectRef::new(name)) {
        let (pool, address) = (&instance.spec.pool_ref.name, &instance.spec.host.address);
        return Ok(Some(format!("the WindowsInstance {name} of pool {pool} at {address}")));
    }
    if let Some(machine) = cx.caches.machines.named(name) {
        return Ok(Some(format!("the Machine {machine}")));
    }
    match Api::<Node>::all(cx.cluster.client.clone()).get_metadata_opt(name).await {
        Ok(node) => Ok(node.map(|_| format!("the Node {name}"))),
        Err(error) => Err(format!("failed to get the Node {name}: {}", crate::errors::said(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{InstanceHost, WindowsInstanceSpec, WindowsInstanceStatus};
    use serde_json::json;

    #[test]
    fn only_nodes_that_an_operator_has_made_are_found_by_address_and_no_host_becomes_a_second_one() {
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
            // It has an instance, which is about to go, or is the same machine: the log-in distinguishes them.
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
            assert_eq!(nodes.0.get(address).map(Vec::as_slice).unwrap_or_default(), expected, "{address}");
        }
    }
}
