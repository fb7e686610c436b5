//! Names for hosts of lists that have none. Pure.
//!
//! A host that is there already keeps the name that it has, however its entry is written and whatever it says later: it is found by where
//! it answers, by its addresses, and by what it has proven. Only a host that is found nowhere gets the name that it calls itself, not the
//! one that DNS has for it. That name is a claim of the host and wins against nothing.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

use api::{FirstContact, Host, Reason};

use super::{Entry, EntryError, address::canonical};

/// Place where a host answers: its address in one form for all ways to write it, and its port.
pub type Place = (String, i32);

/// Reason and message of a fault.
pub type Why = (Reason, String);

/// A host that has an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    /// Name of the host.
    pub name: String,
    /// Place where the host answers.
    pub place: Place,
    /// True if the host is of another pool.
    pub is_foreign: bool,
    /// Identity that the host has proven, if it was ever logged in to.
    pub identity: Option<Identity>,
}

/// Identity of a host, which distinguishes it even from its clones: they have the same key, name and machine id, but
/// not the same run.
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
    /// Returns the identity of a host that has answered.
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

/// Known facts about names.
pub struct Names<'a> {
    /// Hosts that have an instance, of all pools.
    pub existing: &'a [Existing],
    /// Names of the Nodes at an address that were made by the legacy operator, or by this one.
    pub nodes_at: &'a dyn Fn(&str) -> Vec<String>,
    /// Addresses of a DNS name. `None` if they are not known yet.
    pub resolved: &'a dyn Fn(&str) -> Option<Vec<String>>,
    /// Reason why a host must not be asked.
    pub forbidden: &'a dyn Fn(&Entry) -> Option<Why>,
    /// The first contact with the host at a place.
    pub contact: &'a dyn Fn(&Place) -> Option<FirstContact>,
    /// Reason why the host at a place could not be asked.
    pub failure: &'a dyn Fn(&Place) -> Option<Why>,
    /// Owner of a name, in words; an error if that cannot be found out.
    pub owner: &'a dyn Fn(&str) -> Result<Option<String>, String>,
}

/// Entries with names, and hosts whose names are not known.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Entries, each with a name.
    pub entries: Vec<Entry>,
    /// Entries of hosts without a known name. Each may be a host that is there already.
    pub unnamed: Vec<Entry>,
    /// Entries of unnamed hosts that are to be asked.
    pub to_ask: Vec<Entry>,
    /// Faults of unnamed hosts that could not be asked, or have no usable name.
    pub problems: Vec<EntryError>,
    /// True if an address is being looked up on which the name of an unnamed host depends.
    pub is_pending: bool,
}

/// Returns the place where a host answers. `port` holds if its entry has none.
pub fn place(host: &Host, port: i32) -> Place {
    (canonical(&host.address), host.port.unwrap_or(port))
}

/// Gives a name to each entry that has none, as far as it is known. `port` is that of entries without one.
pub fn name(entries: Vec<Entry>, port: i32, names: &Names<'_>) -> Named {
    let places: Vec<Place> = entries.iter().map(|e| place(&e.host, port)).collect();
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
            // Its name is being looked up.
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
    places: &'a [Place],
    names: &'a Names<'a>,
    at: BTreeMap<&'a Place, Vec<&'a Existing>>,
    found: Vec<Option<String>>,
    /// Entries that nothing can be said of before their addresses, or those of hosts that they may be, are known.
    is_pending: Vec<bool>,
    /// Names of hosts of this pool that no entry has been found to mean.
    free: BTreeSet<&'a str>,
    given: BTreeSet<String>,
    /// Number of entries without a name that have an address of a Node, by the name of the Node.
    rivals: OnceCell<BTreeMap<String, usize>>,
}

impl<'a> Search<'a> {
    fn new(entries: &'a [Entry], places: &'a [Place], names: &'a Names<'a>) -> Self {
        let found: Vec<Option<String>> =
            entries.iter().map(|e| (!e.host.name.is_empty()).then(|| e.host.name.clone())).collect();
        let given: BTreeSet<String> = found.iter().flatten().cloned().collect();
        let mine = names.existing.iter().filter(|e| !e.is_foreign).map(|e| e.name.as_str());
        let free = mine.filter(|name| !given.contains(*name)).collect();
        let mut at: BTreeMap<&Place, Vec<&Existing>> = BTreeMap::new();
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

    /// Hosts of this pool that no entry means, and hosts of other pools.
    fn candidates(&self) -> impl Iterator<Item = &'a Existing> {
        let existing: &'a [Existing] = self.names.existing;
        existing.iter().filter(|e| e.is_foreign || self.free.contains(e.name.as_str()))
    }

    fn by_place(&mut self, n: usize) -> Option<String> {
        let at = self.at.get(&self.places[n])?;
        let at = at.iter().filter(|e| e.is_foreign || self.free.contains(e.name.as_str()));
        at.min_by_key(|e| e.is_foreign).map(|e| e.name.clone())
    }

    /// Finds the host of this pool at the address of an entry, if there is only one: another port of the pool does not make another host of it.
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
        let mut candidates: Vec<&Existing> = self.candidates().collect();
        candidates.sort_by_key(|e| e.is_foreign);
        let (mine, foreign): (Vec<&Existing>, Vec<&Existing>) = candidates.into_iter().partition(|e| !e.is_foreign);
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

    /// Finds the Node at the addresses of an entry. A kubelet writes the addresses of its Node: they name no entry beside another that the Node may
    /// mean just as well.
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

    /// Returns the name that the host itself reports, as far as it was asked.
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
        // Each Node reports its own addresses, so that any may name those of another. The one that has the name of the host, too, is meant.
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
                    "the host at {address} reports the name {name}, which belongs to {owner}, and is not proven to be it: rename the host, or give it another name in inventory.hosts"
                );
                Err((Reason::HostConflict, message))
            }
        }
    }
}

/// Returns the name if all names are the same.
fn only(names: impl Iterator<Item = String>) -> Option<String> {
    let names: BTreeSet<String> = names.collect();
    if names.len() == 1 { names.into_iter().next() } else { None }
}

/// Returns the name of a Node for the hostname that a host reports. Windows likes capitals, Kubernetes takes none.
fn usable(host: &Host, said: &str) -> Result<String, Why> {
    let name = said.to_ascii_lowercase();
    let label = |l: &str| {
        !l.is_empty()
            && l.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    // A name with a domain would be one of DNS, which nothing proves to be the host's, and its certificates would have it.
    if name.len() <= 63 && label(&name) {
        return Ok(name);
    }
    let message = format!(
        "the host at {} reports the name {:?}, which is not a valid name of a Node: rename the host",
        host.address,
        said.chars().take(64).collect::<String>()
    );
    Err((Reason::InvalidInventory, message))
}

#[cfg(test)]
#[path = "naming_tests.rs"]
mod tests;
