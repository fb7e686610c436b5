//! Desired hosts of a pool: the named, usable entries of its source, and hosts that must not leave yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{FirstContact, GrantType, InstanceHost, InventoryStatus, Origin, Reason, WindowsInstance, WindowsNodePool};
use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    Departures, Entry, EntryError, SourceError,
    address::canonical,
    naming::{self, Endpoint},
    ownership::HostOwners,
    removals::Presence,
};

/// Maximum number of hosts of one list that are asked for their names at a time. Further hosts wait until the names of some of these hosts are known.
pub const MAX_ASKED: usize = 1000;

/// Observed state of a list.
#[derive(Clone, Debug, Default)]
pub struct ObservedList {
    /// Presence of the list.
    pub presence: Presence,
    /// Reason why there is no list.
    pub trouble: Option<String>,
    /// Entries without a known name, which may be any host.
    pub nameless: Nameless,
    /// Hosts that leave because of their Machines, for a list of Machines.
    pub departures: Option<Departures>,
    /// True if the pool is being deleted, which means that all hosts leave.
    pub deleting: bool,
}

/// Addresses of entries without a known name.
#[derive(Clone, Debug, Default)]
pub struct Nameless {
    /// Hosts that have not reported their names yet.
    pub unnamed: Vec<String>,
    /// Entries that cannot be read.
    pub broken: Vec<String>,
}

impl Nameless {
    /// Returns the addresses of all nameless entries, sorted.
    pub fn all(&self) -> Vec<String> {
        let mut all: Vec<String> = self.unnamed.iter().chain(&self.broken).cloned().collect();
        all.sort();
        all
    }
}

/// Desired hosts of a pool.
#[derive(Debug, Default)]
pub struct List {
    /// Hosts by name.
    pub hosts: BTreeMap<String, InstanceHost>,
    /// Origins of the hosts' entries, by name.
    pub origins: BTreeMap<String, Origin>,
    /// Faults of the source, which come first, and of entries.
    pub problems: Vec<EntryError>,
    /// Entries that are refused until their hosts move from another pool, which no longer lists them or is being deleted.
    pub pending_moves: BTreeSet<String>,
    /// Hosts without a known name. Each may be any host of the pool that no other entry is matched with.
    pub unnamed: Vec<(Endpoint, Entry)>,
    /// Hosts without a known name that are asked for it.
    pub to_ask: Vec<(Endpoint, Entry)>,
    /// First contacts with hosts that have no instance yet.
    pub contacts: Vec<FirstContact>,
    /// Fingerprints of the keys that hosts showed at their first contact, by name.
    pub first_keys: BTreeMap<String, String>,
    /// Hosts that are no longer listed, with the pool that lists them now.
    pub moves: BTreeMap<String, String>,
    /// Number of hosts that are no longer listed, and stay until a user confirms their removal.
    pub to_confirm: usize,
    /// Hosts that leave together with their Machines. They are neither changed nor counted.
    pub vanishing: BTreeSet<String>,
    /// True if all hosts leave because the pool is being deleted.
    pub deleting: bool,
    /// Hosts whose removal a user has just confirmed.
    pub confirmed: BTreeSet<String>,
    /// Approval of a user that is used up or matches no removal.
    pub spent: Option<String>,
    /// Source of the list, as the pool's status shows it.
    pub status: Option<InventoryStatus>,
    /// Time of the next read of the source, if it reports no change before.
    pub next: Option<Timestamp>,
    /// True if the fault of the source, or the cause for which hosts stay, is transient.
    pub is_transient: bool,
}

/// Reports whether the source has no fault and was only not read yet, as after a start of the operator.
pub(super) fn is_no_news(trouble: &SourceError) -> bool {
    trouble.reason == Reason::Fetching
}

/// Reports whether a list of the pool was in force before.
fn pool_has_list(pool: &WindowsNodePool) -> bool {
    pool.status.as_ref().is_some_and(|s| s.inventory.is_some())
}

/// Returns the unreadable entries of a ConfigMap that match no existing host: they have no names, so each may be any host.
pub fn broken(pool: &WindowsNodePool, mine: &[Arc<WindowsInstance>], problems: &[EntryError]) -> Vec<String> {
    if pool.spec.inventory.config_map_ref.is_none() {
        return Vec::new();
    }
    let is_there = |p: &EntryError| mine.iter().any(|i| canonical(&i.spec.host.address) == canonical(&p.host));
    problems.iter().filter(|p| !p.host.is_empty() && !is_there(p)).map(|p| p.host.clone()).collect()
}

impl List {
    /// Returns the list while the source is unknown: everything stays unchanged. Leaving hosts of Machines stay, too, unless their instances are
    /// being deleted or their removal is granted: whether they still leave is known only once the Machines can be read.
    pub fn unknown(pool: &WindowsNodePool, mine: &[Arc<WindowsInstance>], trouble: &SourceError) -> Self {
        let is_of_machines = pool.spec.inventory.machine_set_ref.is_some();
        let removes = |i: &WindowsInstance| i.spec.grant.as_ref().is_some_and(|g| g.type_ == GrantType::Remove);
        let stays = |i: &&Arc<WindowsInstance>| !i.is_leaving() || (is_of_machines && !i.is_deleting() && !removes(i));
        Self {
            hosts: mine.iter().filter(stays).map(|i| (i.name_any(), i.spec.host.clone())).collect(),
            is_transient: !trouble.stalls,
            problems: if is_no_news(trouble) && pool_has_list(pool) { Vec::new() } else { vec![trouble.into()] },
            ..Self::as_before(pool)
        }
    }

    /// Returns the list for a missing source, which alone does not mean that any host must be removed.
    pub fn missing(pool: &WindowsNodePool, trouble: &SourceError) -> Self {
        Self { problems: vec![trouble.into()], ..Self::as_before(pool) }
    }

    /// Returns a list without hosts, with the contacts and the source in the pool's status.
    fn as_before(pool: &WindowsNodePool) -> Self {
        Self {
            contacts: pool.status.as_ref().map(|s| s.contacts.clone()).unwrap_or_default(),
            status: pool.status.as_ref().and_then(|s| s.inventory.clone()),
            ..Self::default()
        }
    }

    /// Keeps the first contacts with hosts until these have instances, which take over the host keys.
    pub fn keep_contacts(
        &mut self,
        contacts: Vec<FirstContact>,
        named: &[Entry],
        port: i32,
        mine: &[Arc<WindowsInstance>],
    ) {
        let names: BTreeMap<Endpoint, &str> =
            named.iter().map(|e| (naming::endpoint(&e.host, port), e.host.name.as_str())).collect();
        for contact in contacts {
            let name = names.get(&(contact.address.clone(), contact.port));
            if let Some(name) = name {
                self.first_keys.insert((*name).to_owned(), contact.host_key.clone());
            }
            if !mine.iter().any(|i| name.is_some_and(|n| i.name_any() == *n)) {
                self.contacts.push(contact);
            }
        }
    }

    /// Limits the number of hosts to ask to [`MAX_ASKED`]. Reports a problem if further hosts must wait.
    pub fn limit_queries(&mut self) {
        let Some((place, _)) = self.to_ask.get(MAX_ASKED) else { return };
        let message = format!(
            "the names of {} hosts of the list are unknown, and the operator contacts only the first {MAX_ASKED} of them; {} and the following entries come next when the names of others are known: remove hosts that do not answer, or use several pools",
            self.to_ask.len(),
            place.0
        );
        self.problems.push(EntryError { host: place.0.clone(), reason: Reason::HostnameUnknown, message });
        self.to_ask.truncate(MAX_ASKED);
    }

    /// Keeps each host unchanged whose entry is still listed but unusable: a host leaves only if a user removes its entry.
    pub fn keep_hosts_of_faulty_entries(&mut self, mine: &[Arc<WindowsInstance>]) {
        let names: BTreeSet<String> = self.problems.iter().map(|p| p.host.clone()).collect();
        let addresses: BTreeSet<String> = names.iter().map(|host| canonical(host)).collect();
        for instance in mine.iter().filter(|i| !i.is_deleting()) {
            let name = instance.name_any();
            if names.contains(&name) || addresses.contains(&canonical(&instance.spec.host.address)) {
                self.hosts.entry(name).or_insert_with(|| instance.spec.host.clone());
            }
        }
    }

    /// Hands over each host that another pool lists now. The host remains a node.
    pub fn hand_over(
        &mut self,
        pool: &WindowsNodePool,
        mine: &[Arc<WindowsInstance>],
        pools: &[Arc<WindowsNodePool>],
        owners: &HostOwners,
    ) {
        for instance in mine.iter().filter(|i| !i.is_deleting() && !self.hosts.contains_key(&i.name_any())) {
            let name = instance.name_any();
            let Some(to) = owners.other(&pool.name_any(), &name, &instance.spec.host.address, pools) else {
                continue;
            };
            if pools.iter().any(|p| p.name_any() == to && p.spec.is_plan()) {
                let message = format!(
                    "pool {to}, which is in mode Plan, lists host {name} now: the host stays in this pool until that pool is in mode Apply; set spec.mode of pool {to} to Apply, or remove the host from its list"
                );
                self.problems.push(EntryError { host: name.clone(), reason: Reason::HandOverWaits, message });
            }
            self.moves.insert(name, to);
        }
    }
}
