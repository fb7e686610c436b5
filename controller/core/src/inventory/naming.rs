//! Names for hosts that are listed without one. Pure.
//!
//! A host with an instance or a Node keeps its name, however its entry is written and whatever it reports later: it is found by its address and port,
//! by another of its addresses, or by its proven identity. A host that is not found gets the name that it reports, not its name in DNS. A reported
//! name is only a claim and never replaces another host.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

use api::{FirstContact, Host, Reason};

use super::{Entry, EntryError, address::canonical};
use crate::node::permitted::is_label;

/// Canonical address and port of a host.
pub type Endpoint = (String, i32);

/// Reason and message of a fault.
pub type Why = (Reason, String);

/// Host that has an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    /// Name of the host.
    pub name: String,
    /// Canonical address and port of the host.
    pub place: Endpoint,
    /// True if the host belongs to another pool.
    pub is_foreign: bool,
    /// Identity that the host proved at a login. `None` before the first login.
    pub identity: Option<Identity>,
}

/// Identity of a host, which distinguishes it even from its clones: they have the same key, name and machine id, but another boot id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Host key fingerprint.
    pub host_key: String,
    /// Hostname that the host reports.
    pub hostname: String,
    /// Machine id.
    pub machine_id: String,
    /// Boot id.
    pub boot_id: String,
}

impl Identity {
    /// Returns the identity that a first contact has shown. `None` if a part of it is missing.
    pub fn of(contact: &FirstContact) -> Option<Self> {
        let identity = Self {
            host_key: contact.host_key.clone(),
            hostname: contact.hostname.clone()?,
            machine_id: contact.machine_id.clone()?,
            boot_id: contact.boot_id.clone()?,
        };
        identity.is_whole().then_some(identity)
    }

    fn is_whole(&self) -> bool {
        !self.host_key.is_empty() && !self.machine_id.is_empty() && !self.boot_id.is_empty()
    }
}

/// Known facts from which [`name`] finds the names of hosts.
pub struct Names<'a> {
    /// Hosts of all pools that have an instance.
    pub existing: &'a [Existing],
    /// Names of the Nodes at an address. Only Nodes that this operator or the legacy one created count.
    pub nodes_at: &'a dyn Fn(&str) -> Vec<String>,
    /// Addresses of a DNS name. `None` if they are not known yet.
    pub resolved: &'a dyn Fn(&str) -> Option<Vec<String>>,
    /// Reason why a host must not be asked for its name.
    pub forbidden: &'a dyn Fn(&Entry) -> Option<Why>,
    /// First contact with the host at an address and port, if there was one.
    pub contact: &'a dyn Fn(&Endpoint) -> Option<FirstContact>,
    /// Reason why the host at an address and port could not be asked for its name.
    pub failure: &'a dyn Fn(&Endpoint) -> Option<Why>,
    /// Description of a name's owner; an error if the owner cannot be determined.
    pub owner: &'a dyn Fn(&str) -> Result<Option<String>, String>,
}

/// Entries with names, and hosts whose names are not known.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Entries, each with a name.
    pub entries: Vec<Entry>,
    /// Entries of hosts without a known name. Each may be an existing host.
    pub unnamed: Vec<Entry>,
    /// Entries of unnamed hosts to ask for their names.
    pub to_ask: Vec<Entry>,
    /// Faults of unnamed hosts that could not be asked, or have no usable name.
    pub problems: Vec<EntryError>,
    /// True if the name of an unnamed host depends on a pending DNS lookup.
    pub is_pending: bool,
}

/// Returns the endpoint of a host. `port` is the default for entries without a port.
pub fn endpoint(host: &Host, port: i32) -> Endpoint {
    (canonical(&host.address), host.port.unwrap_or(port))
}

/// Names each entry that has no name, as far as its name is known. `port` is the default for entries without a port.
pub fn name(entries: Vec<Entry>, port: i32, names: &Names<'_>) -> Named {
    let places: Vec<Endpoint> = entries.iter().map(|e| endpoint(&e.host, port)).collect();
    let mut search = Search::new(&entries, &places, names);
    for find in [Search::by_place, Search::by_address, Search::by_resolved_address, Search::by_node] {
        for n in 0..entries.len() {
            if search.found[n].is_none()
                && !search.is_pending[n]
                && let Some(name) = find(&mut search, n)
            {
                search.settle(n, name);
            }
        }
    }
    let mut reported: BTreeMap<usize, Result<Option<String>, Why>> = BTreeMap::new();
    for n in 0..entries.len() {
        if search.found[n].is_none() && !search.is_pending[n] {
            let result = search.reported(n);
            if let Ok(Some(name)) = &result {
                search.settle(n, name.clone());
            }
            reported.insert(n, result);
        }
    }
    let found = search.found;
    let mut named = Named::default();
    for (n, (mut entry, found)) in entries.into_iter().zip(found).enumerate() {
        if let Some(name) = found {
            entry.host.name = name;
            named.entries.push(entry);
            continue;
        }
        let is_forbidden = match reported.remove(&n) {
            // The entry waits for a DNS lookup.
            None => {
                named.is_pending = true;
                true
            }
            Some(Ok(_)) => false,
            Some(Err((reason, message))) => {
                named.problems.push(EntryError { host: entry.host.address.clone(), reason, message });
                (names.forbidden)(&entry).is_some()
            }
        };
        if !is_forbidden {
            named.to_ask.push(entry.clone());
        }
        named.unnamed.push(entry);
    }
    named
}

struct Search<'a> {
    entries: &'a [Entry],
    places: &'a [Endpoint],
    names: &'a Names<'a>,
    at: BTreeMap<&'a Endpoint, Vec<&'a Existing>>,
    found: Vec<Option<String>>,
    /// True for each entry that waits for the DNS lookup of its own address, or of a host that it may be.
    is_pending: Vec<bool>,
    /// Names of this pool's hosts that no entry is matched with yet.
    free: BTreeSet<&'a str>,
    given: BTreeSet<String>,
    /// Number of unnamed entries with an address of a Node, by the Node's name.
    rivals: OnceCell<BTreeMap<String, usize>>,
}

impl<'a> Search<'a> {
    fn new(entries: &'a [Entry], places: &'a [Endpoint], names: &'a Names<'a>) -> Self {
        let found: Vec<Option<String>> =
            entries.iter().map(|e| (!e.host.name.is_empty()).then(|| e.host.name.clone())).collect();
        let given: BTreeSet<String> = found.iter().flatten().cloned().collect();
        let mine = names.existing.iter().filter(|e| !e.is_foreign).map(|e| e.name.as_str());
        let free = mine.filter(|name| !given.contains(*name)).collect();
        let mut at: BTreeMap<&Endpoint, Vec<&Existing>> = BTreeMap::new();
        for host in names.existing {
            at.entry(&host.place).or_default().push(host);
        }
        Self {
            entries,
            places,
            names,
            at,
            is_pending: vec![false; entries.len()],
            found,
            free,
            given,
            rivals: OnceCell::new(),
        }
    }

    fn settle(&mut self, n: usize, name: String) {
        self.free.remove(name.as_str());
        self.given.insert(name.clone());
        self.found[n] = Some(name);
    }

    /// Returns this pool's hosts that no entry is matched with yet, and all hosts of other pools.
    fn candidates(&self) -> impl Iterator<Item = &'a Existing> {
        let existing: &'a [Existing] = self.names.existing;
        existing.iter().filter(|e| e.is_foreign || self.free.contains(e.name.as_str()))
    }

    fn by_place(&mut self, n: usize) -> Option<String> {
        let at = self.at.get(&self.places[n])?;
        let at = at.iter().filter(|e| e.is_foreign || self.free.contains(e.name.as_str()));
        at.min_by_key(|e| e.is_foreign).map(|e| e.name.clone())
    }

    /// Finds the host of this pool at the address of an entry, if there is only one such host and only one such unnamed entry: a changed port does
    /// not make it another host.
    fn by_address(&mut self, n: usize) -> Option<String> {
        let address = &self.places[n].0;
        let entries =
            self.places.iter().zip(&self.found).filter(|(place, found)| found.is_none() && place.0 == *address);
        let at = self.candidates().filter(|e| !e.is_foreign && e.place.0 == *address);
        only(at.map(|e| e.name.clone())).filter(|_| entries.count() == 1)
    }

    fn by_resolved_address(&mut self, n: usize) -> Option<String> {
        let Some(addresses) = self.addresses(&self.places[n].0) else {
            self.is_pending[n] = true;
            return None;
        };
        let (mine, foreign): (Vec<&Existing>, Vec<&Existing>) = self.candidates().partition(|e| !e.is_foreign);
        let mut same = Vec::new();
        for host in mine {
            match self.addresses(&host.place.0) {
                Some(of_host) if of_host.iter().any(|a| addresses.contains(a)) => same.push(host.name.clone()),
                Some(_) => {}
                None => self.is_pending[n] = true,
            }
        }
        if self.is_pending[n] {
            return None;
        }
        let is_same = |e: &&Existing| e.place.1 == self.places[n].1 && addresses.contains(&e.place.0);
        only(same.into_iter()).or_else(|| only(foreign.into_iter().filter(is_same).map(|e| e.name.clone())))
    }

    /// Finds the Node with the addresses of an entry. Kubelets report these addresses, so a Node names an entry only if the Node matches no other
    /// unnamed entry.
    fn by_node(&mut self, n: usize) -> Option<String> {
        let name = self.node_of(n).filter(|name| !self.given.contains(name))?;
        let rivals = self.rivals.get_or_init(|| {
            let mut rivals = BTreeMap::new();
            let open = (0..self.entries.len()).filter(|n| self.found[*n].is_none());
            open.filter_map(|n| self.node_of(n)).for_each(|name| *rivals.entry(name).or_default() += 1);
            rivals
        });
        (rivals.get(&name) == Some(&1)).then_some(name)
    }

    fn node_of(&self, n: usize) -> Option<String> {
        let addresses = self.addresses(&self.places[n].0)?;
        only(addresses.iter().flat_map(|a| (self.names.nodes_at)(a)))
    }

    fn addresses(&self, address: &str) -> Option<Vec<String>> {
        match address.parse::<std::net::IpAddr>() {
            Ok(_) => Some(vec![address.to_owned()]),
            Err(_) => (self.names.resolved)(address),
        }
    }

    /// Returns the name of a host that was asked: the name of the Node at its address, the name of the instance with its identity, or the hostname
    /// that it reports. `None` if the host was not asked yet. Fails if the host must not or cannot be asked, or if its name cannot be used.
    fn reported(&self, n: usize) -> Result<Option<String>, Why> {
        let (entry, names) = (&self.entries[n], self.names);
        if let Some(why) = (names.forbidden)(entry) {
            return Err(why);
        }
        let contact = (names.contact)(&self.places[n]);
        let Some((contact, hostname)) = contact.as_ref().and_then(|c| Some((c, c.hostname.as_ref()?))) else {
            return (names.failure)(&self.places[n]).map_or(Ok(None), Err);
        };
        let address = &entry.host.address;
        let mut nodes: BTreeSet<String> = (names.nodes_at)(&contact.dialed).into_iter().collect();
        nodes.retain(|node| !self.given.contains(node));
        // Each Node reports its own addresses and may claim those of another. The Node with the name of the host takes precedence.
        if let Some(node) = nodes.get(&hostname.to_ascii_lowercase()) {
            return Ok(Some(node.clone()));
        }
        if nodes.len() > 1 {
            let nodes = nodes.into_iter().collect::<Vec<_>>().join(" and ");
            let message = format!(
                "the Nodes {nodes} all have the address {} of the host at {address}: delete the leftover Nodes",
                contact.dialed
            );
            return Err((Reason::HostConflict, message));
        }
        if let Some(node) = nodes.into_iter().next() {
            return Ok(Some(node));
        }
        let identity = Identity::of(contact);
        let same = self.candidates().filter(|e| !e.is_foreign && e.identity.is_some() && e.identity == identity);
        if let Some(name) = only(same.map(|e| e.name.clone())) {
            return Ok(Some(name));
        }
        let name = usable(&entry.host, hostname)?;
        let owner = if self.given.contains(&name) {
            Some("another entry of the list".to_owned())
        } else {
            (names.owner)(&name).map_err(|message| (Reason::ApiError, message))?
        };
        match owner {
            None => Ok(Some(name)),
            Some(owner) => {
                let message = format!(
                    "the host at {address} reports the name {name}, which belongs to {owner}, and nothing proves that both are the same host: rename the host, or list it under another name in the inventory.hosts of a pool"
                );
                Err((Reason::HostConflict, message))
            }
        }
    }
}

/// Returns the name if there is at least one name, and all names are the same.
fn only(names: impl Iterator<Item = String>) -> Option<String> {
    let names: BTreeSet<String> = names.collect();
    if names.len() == 1 { names.into_iter().next() } else { None }
}

/// Returns the Node name for a reported hostname, or the fault of a hostname that no Node can have. Windows prefers upper case, and Kubernetes
/// requires lower case.
fn usable(host: &Host, said: &str) -> Result<String, Why> {
    let name = said.to_ascii_lowercase();
    // A name with a domain would be a DNS name in the host's certificates, and nothing proves that it is the host's.
    if is_label(&name) {
        return Ok(name);
    }
    let message = format!(
        "the host at {} reports the name {:?}, which is not a valid name of a Node: rename the host to at most 63 letters, digits and `-`",
        host.address,
        said.chars().take(64).collect::<String>()
    );
    Err((Reason::InvalidInventory, message))
}

#[cfg(test)]
#[path = "naming_tests.rs"]
mod tests;
