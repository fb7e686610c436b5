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

use crate::{
    context::Context,
    inventory::{
        Entry,
        asking::host_key_of,
        hosts::canonical,
        naming::{self, Existing, Identity, Named, Names, Place},
    },
    ssh::HostKey,
};

/// Nodes that are asked for at once.
const REQUESTS: usize = 16;
/// Nodes of other systems and Machines tell nobody that they are gone: whether a name is free is asked again after this time.
const ASK_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// When the API server fails us, ask again after this time.
const RETRY: SignedDuration = SignedDuration::from_secs(5);

/// Entries with names.
pub(super) struct Naming {
    /// The entries.
    pub named: Named,
    /// Who has the names that hosts call themselves.
    pub owners: Owners,
    /// First contacts with hosts that are listed without a name.
    pub contacts: Vec<FirstContact>,
}

impl Naming {
    /// Names the entries of a pool.
    pub async fn of(pool: &WindowsNodePool, entries: Vec<Entry>, cx: &Context) -> Self {
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
            cx.instances.state().iter().map(|i| existing(i, &name, !said.is_empty())).collect();
        if cx.looks_once {
            let all = places.iter().chain(existing.iter().map(|e| &e.place)).map(|(address, _)| address.clone());
            cx.asking.look_up(all.filter(|a| a.parse::<std::net::IpAddr>().is_err()).collect()).await;
        }
        let owners = Owners::of(&said, cx).await;
        let nodes = NodesByAddress::of(&cx.nodes.state());
        let names = Names {
            existing: &existing,
            nodes_at: &|address| nodes.0.get(address).cloned().unwrap_or_default(),
            resolved: &|dns| cx.asking.addresses(&name, dns),
            forbidden: &|entry| {
                let stored = stored.iter().find(|c| at(c) == naming::place(&entry.host, port));
                host_key_of(entry, stored, pool).err().map(|problem| (problem.reason(), problem.to_string()))
            },
            contact: &|place| stored.iter().find(|c| at(c) == *place).cloned(),
            failure: &|place| cx.asking.failure(&name, place),
            owner: &|host| owners.owner(host),
        };
        let named = naming::name(entries, port, &names);
        Self { named, contacts: cx.asking.contacts(&name, &stored, &places), owners }
    }
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
    fn of(nodes: &[Arc<Node>]) -> Self {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in nodes.iter().filter(|n| is_made_by_an_operator(n)) {
            for address in node.status.as_ref().and_then(|s| s.addresses.as_deref()).unwrap_or_default() {
                all.entry(canonical(&address.address)).or_default().push(node.name_any());
            }
        }
        Self(all)
    }
}

/// Whether an operator has made this Node of a host: this one, or the legacy one.
fn is_made_by_an_operator(node: &Node) -> bool {
    [key::BYOH, key::POOL].iter().any(|k| node.labels().contains_key(*k))
        || node.annotations().contains_key(key::VERSION)
}

/// Who has the names that hosts call themselves.
#[derive(Debug, Default)]
pub(super) struct Owners(BTreeMap<String, Result<Option<String>, String>>);

impl Owners {
    /// Of the names that these contacts say.
    async fn of(contacts: &[&FirstContact], cx: &Context) -> Self {
        let names: BTreeSet<String> =
            contacts.iter().filter_map(|c| c.hostname.as_ref()).map(|name| name.to_ascii_lowercase()).collect();
        let owners = stream::iter(names).map(|name| async move {
            let owner = owner(&name, cx).await;
            (name, owner)
        });
        Self(owners.buffer_unordered(REQUESTS).collect().await)
    }

    fn owner(&self, name: &str) -> Result<Option<String>, String> {
        self.0.get(name).cloned().unwrap_or_else(|| Err(format!("who has the name {name} is not known yet")))
    }

    /// When to look again, at the latest.
    pub fn next(&self, other: Option<Timestamp>) -> Option<Timestamp> {
        let wait = |owner: &Result<Option<String>, String>| match owner {
            Ok(None) => None,
            Ok(Some(_)) => Some(ASK_AGAIN),
            Err(_) => Some(RETRY),
        };
        let soonest = self.0.values().filter_map(wait).min().and_then(|wait| Timestamp::now().checked_add(wait).ok());
        soonest.into_iter().chain(other).min()
    }
}

/// Who has a name, in words. Nodes are asked of the API server: the cache has only those that run Windows.
async fn owner(name: &str, cx: &Context) -> Result<Option<String>, String> {
    if let Some(instance) = cx.instances.get(&ObjectRef::new(name)) {
        let (pool, address) = (&instance.spec.pool_ref.name, &instance.spec.host.address);
        return Ok(Some(format!("the WindowsInstance {name} of pool {pool} at {address}")));
    }
    if let Some(machine) = cx.machines.named(name) {
        return Ok(Some(format!("the Machine {machine}")));
    }
    match Api::<Node>::all(cx.client.clone()).get_metadata_opt(name).await {
        Ok(node) => Ok(node.map(|_| format!("the Node {name}"))),
        Err(error) => Err(format!("the API server did not show the Node {name}: {}", crate::errors::said(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_nodes_that_an_operator_has_made_are_found_by_address() {
        let node = |name: &str, labels: serde_json::Value, annotations: serde_json::Value, address: &str| {
            let node = json!({
                "metadata": {"name": name, "labels": labels, "annotations": annotations},
                "status": {"addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}]},
            });
            Arc::new(serde_json::from_value::<Node>(node).unwrap())
        };
        let nodes = NodesByAddress::of(&[
            node("byoh", json!({key::BYOH: "true"}), json!({}), "10.0.0.1"),
            node("ours", json!({key::POOL: "p"}), json!({}), "fd00:0::1"),
            node("machine", json!({}), json!({key::VERSION: "10.19.0-a"}), "10.0.0.1"),
            node("theirs", json!({}), json!({}), "10.0.0.9"),
        ]);
        for (address, expected) in
            [("10.0.0.1", &["byoh", "machine"][..]), ("fd00::1", &["ours"]), ("byoh", &["byoh"]), ("10.0.0.9", &[])]
        {
            assert_eq!(nodes.0.get(address).map(Vec::as_slice).unwrap_or_default(), expected, "{address}");
        }
    }
}
