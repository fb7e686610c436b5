//! Names of hosts that are listed without one, derived from instances, Nodes, Machines, DNS, and the reports of the hosts.

use std::collections::{BTreeMap, BTreeSet};

use api::{FirstContact, Reason, WindowsInstance, WindowsNodePool};
use futures::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, runtime::reflector::ObjectRef};

use super::PoolContext;
use crate::{inventory::hostname_probe::host_key_of, runtime::clock};
use remote::ssh::HostKey;
use wnp_core::inventory::{
    Entry, EntryError,
    address::canonical,
    hosts::Resolved,
    naming::{self, Endpoint, Existing, Identity, Named, Names},
    second_node::{NodesByAddress, Second, second_node},
};

/// Maximum number of concurrent requests for Nodes.
const REQUESTS: usize = 16;
/// Interval of checks for changes that no watch reports to the pool, such as the deletion of a Machine or of a Node with another operating system.
pub(super) const ASK_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// Time after which the owner of a name is checked again after an error of the API server.
const RETRY: SignedDuration = SignedDuration::from_secs(5);

/// Result of naming the entries of a pool.
pub(super) struct Naming {
    /// Entries with names, and entries without a name yet.
    pub named: Named,
    /// Owners of the names that hosts report.
    pub owners: Owners,
    /// First contacts with hosts that are listed without a name, to be stored in the pool's status.
    pub contacts: Vec<FirstContact>,
}

impl Naming {
    /// Names the entries of a pool.
    pub(super) async fn of(pool: &WindowsNodePool, entries: Vec<Entry>, cx: &PoolContext) -> Self {
        let (name, port) = (pool.name_any(), i32::from(pool.spec.ssh().port()));
        let unnamed = entries.iter().filter(|e| e.host.name.is_empty());
        let places: BTreeSet<Endpoint> = unnamed.map(|e| naming::endpoint(&e.host, port)).collect();
        if places.is_empty() {
            let named = Named { entries, ..Named::default() };
            return Self { named, owners: Owners::default(), contacts: Vec::new() };
        }
        let stored = pool.status.as_ref().map(|s| s.contacts.clone()).unwrap_or_default();
        // A name counts only once it is stored together with the key of the host that reported it.
        let said: Vec<&FirstContact> = stored.iter().filter(|c| places.contains(&at(c))).collect();
        let existing: Vec<Existing> =
            cx.caches.instances.state().iter().map(|i| existing(i, &name, !said.is_empty())).collect();
        if cx.process.is_one_shot {
            let all = places.iter().chain(existing.iter().map(|e| &e.place)).map(|(address, _)| address.clone());
            cx.sources.names.look_up(all.filter(|a| a.parse::<std::net::IpAddr>().is_err()).collect()).await;
        }
        let owners = Owners::of(&said, cx).await;
        let nodes =
            NodesByAddress::of(&cx.caches.nodes.state(), &|node| cx.caches.instances.get(&ObjectRef::new(node)));
        let names = Names {
            existing: &existing,
            nodes_at: &|address| nodes.at(address).to_vec(),
            resolved: &|dns| cx.sources.names.addresses(&name, dns),
            forbidden: &|entry| {
                let stored = stored.iter().find(|c| at(c) == naming::endpoint(&entry.host, port));
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

/// Excludes new hosts that are already Nodes under another name, and reports each as a problem of its entry: they would join a second time, and
/// their pods would stay on the first Node. Also excludes new hosts whose addresses are not known yet, without a report. Returns the time of the
/// next check if a host was reported.
pub(super) async fn keep_second_nodes_out(pool: &str, resolved: &mut Resolved, cx: &PoolContext) -> Option<Timestamp> {
    let has_instance = |name: &str| cx.caches.instances.get(&ObjectRef::new(name)).is_some();
    let hosts = resolved.hosts.values().map(|h| (h.name.clone(), canonical(&h.address)));
    let new: Vec<(String, String)> = hosts.filter(|(name, _)| !has_instance(name)).collect();
    if new.is_empty() {
        return None;
    }
    let is_name = |address: &&String| address.parse::<std::net::IpAddr>().is_err();
    if cx.process.is_one_shot {
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
                    "host {name}: its address {address} belongs to the Node {node}, which an operator created, so the host does not join: set the name of \
                     the entry to {node}, or delete that Node if its host no longer exists"
                );
                resolved.problems.push(EntryError { host: name.clone(), reason: Reason::HostConflict, message });
                next = clock::now().checked_add(ASK_AGAIN).ok();
            }
        }
        resolved.hosts.remove(&name);
        resolved.origins.remove(&name);
    }
    next
}

fn at(contact: &FirstContact) -> Endpoint {
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

/// Owner of each name that hosts report, in words. `None` if the name is free, and an error message if the owner is unknown.
#[derive(Debug, Default)]
pub(super) struct Owners(BTreeMap<String, Result<Option<String>, String>>);

impl Owners {
    /// Finds the owners of the names that these contacts report.
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
        self.0
            .get(name)
            .cloned()
            .unwrap_or_else(|| Err(format!("it is not known yet whether another host has the name {name}")))
    }

    /// Returns the time of the next check of the owners, or `other` if it comes first.
    pub(super) fn next(&self, other: Option<Timestamp>) -> Option<Timestamp> {
        let wait = |owner: &Result<Option<String>, String>| match owner {
            Ok(None) => None,
            Ok(Some(_)) => Some(ASK_AGAIN),
            Err(_) => Some(RETRY),
        };
        let soonest = self.0.values().filter_map(wait).min().and_then(|wait| clock::now().checked_add(wait).ok());
        soonest.into_iter().chain(other).min()
    }
}

/// Returns the owner of a name, in words, or `None` if the name is free. Reads the Node from the API server, because the cache has only Windows
/// Nodes.
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
        Err(error) => Err(format!("failed to get the Node {name}: {}", crate::runtime::errors::api_message(&error))),
    }
}
