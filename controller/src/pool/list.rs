//! The hosts that a pool shall have: what its source lists, with names, without what cannot be used, and with what must not go yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{
    FirstContact, InstanceHost, InventoryStatus, Origin, WindowsInstance, WindowsNodePool, conditions::reason,
    names::key,
};
use jiff::Timestamp;
use kube::{ResourceExt, runtime::reflector::ObjectRef};

use super::{
    names::{self, Naming},
    status::some,
};
use crate::{
    context::Context,
    inventory::{
        self, Asked, Entry, Listing, Problem, Trouble,
        asking::MAX_ASKED,
        hosts::{self, Known, canonical},
        naming::{self, Place},
        removals::{self, Change},
    },
};

/// The hosts that a pool shall have.
#[derive(Debug, Default)]
pub(super) struct List {
    /// Hosts by name.
    pub hosts: BTreeMap<String, InstanceHost>,
    /// Where their entries stand, by name.
    pub origins: BTreeMap<String, Origin>,
    /// What is wrong: with the source, which then comes first, and with entries.
    pub problems: Vec<Problem>,
    /// Hosts whose names are not known: each may be any host of the pool that no other entry means.
    pub unnamed: Vec<(Place, Entry)>,
    /// Those of them that are asked.
    pub to_ask: Vec<(Place, Entry)>,
    /// First contacts with hosts that have no instance yet.
    pub contacts: Vec<FirstContact>,
    /// Fingerprints of the keys that hosts showed at their first contact, by name.
    pub first_keys: BTreeMap<String, String>,
    /// Every name that is listed, whether or not it is used.
    pub claimed: BTreeSet<String>,
    /// Hosts that are not listed any more, and which pool lists them now.
    pub moves: BTreeMap<String, String>,
    /// Where the list comes from.
    pub status: Option<InventoryStatus>,
    /// When the source is to be asked again, if nothing of it is heard before.
    pub next: Option<Timestamp>,
    /// Whether what is wrong with the source mends itself.
    pub mends_itself: bool,
}

/// Asks the pool's source, and makes the best of it. `known` are the hosts of all pools.
pub(super) async fn list(pool: &WindowsNodePool, mine: &[Arc<WindowsInstance>], known: &[Known], cx: &Context) -> List {
    if pool.metadata.deletion_timestamp.is_some() {
        return List::default();
    }
    match inventory::ask(pool, cx).await {
        Asked::Unknown(trouble, next) => List { next, ..unknown(pool, mine, trouble) },
        Asked::Listed(listing) => listed(pool, mine, known, *listing, cx).await,
    }
}

/// Nobody knows what is listed: everything stays as it is.
fn unknown(pool: &WindowsNodePool, mine: &[Arc<WindowsInstance>], trouble: Trouble) -> List {
    let stay = mine.iter().filter(|i| i.metadata.deletion_timestamp.is_none());
    let hosts: BTreeMap<String, InstanceHost> = stay.map(|i| (i.name_any(), i.spec.host.clone())).collect();
    List {
        claimed: hosts.keys().cloned().collect(),
        hosts,
        mends_itself: !trouble.stalls,
        problems: if is_no_news(&trouble) && pool_has_list(pool) { Vec::new() } else { vec![about_source(&trouble)] },
        status: pool.status.as_ref().and_then(|s| s.inventory.clone()),
        contacts: pool.status.as_ref().map(|s| s.contacts.clone()).unwrap_or_default(),
        ..List::default()
    }
}

/// Whether nothing is wrong with a list that was in force before: who has suspended the source knows, and an operator that has just
/// started has not looked yet.
fn is_no_news(trouble: &Trouble) -> bool {
    [reason::SUSPENDED, reason::FETCHING].contains(&trouble.reason)
}

/// Whether a list of the pool was in force before.
fn pool_has_list(pool: &WindowsNodePool) -> bool {
    pool.status.as_ref().is_some_and(|s| s.inventory.is_some())
}

fn about_source(trouble: &Trouble) -> Problem {
    Problem { host: String::new(), reason: trouble.reason, message: trouble.message.clone() }
}

async fn listed(
    pool: &WindowsNodePool,
    mine: &[Arc<WindowsInstance>],
    known: &[Known],
    listing: Listing,
    cx: &Context,
) -> List {
    let (name, port) = (pool.name_any(), i32::from(pool.spec.ssh().port()));
    let Listing { entries, problems, status, trouble, next } = listing;
    let is_empty = entries.is_empty() && problems.is_empty();
    let naming = Naming::of(pool, entries, cx).await;
    let (named, owners) = (naming.named, naming.owners);
    let has_key = |host: &str| has_host_key(host, cx);
    let mut resolved = hosts::resolve(&name, &pool.spec, &named.entries, known, &has_key);
    let again = names::keep_second_nodes_out(&name, &mut resolved, cx).await;
    let place = |entry: Entry| (naming::place(&entry.host, port), entry);
    let mut list = List {
        claimed: named.entries.iter().map(|e| e.host.name.clone()).collect(),
        unnamed: named.unnamed.into_iter().map(place).collect(),
        to_ask: named.to_ask.into_iter().map(place).collect(),
        mends_itself: trouble.as_ref().is_some_and(|t| !t.stalls),
        problems: trouble.iter().map(about_source).collect(),
        hosts: resolved.hosts,
        origins: resolved.origins,
        next: [owners.next(next), again].into_iter().flatten().min(),
        status,
        ..List::default()
    };
    list.problems.extend(problems.into_iter().chain(named.problems).chain(resolved.problems));
    list.keep_contacts(naming.contacts, &named.entries, port, mine);
    list.say_if_too_long();
    let staying: Vec<&Arc<WindowsInstance>> = mine.iter().filter(|i| i.metadata.deletion_timestamp.is_none()).collect();
    list.keep_what_is_only_wrong(&staying);
    list.hand_over(&name, &staying, cx);
    list.hold_removals(pool, &staying, is_empty);
    list
}

/// Whether a host key is known that no entry declares: one that the host has proven, that a person has allowed, or that the legacy operator
/// has left on the Node.
fn has_host_key(host: &str, cx: &Context) -> bool {
    let instance = cx.instances.get(&ObjectRef::new(host));
    let has = |i: &WindowsInstance| {
        let annotations = i.annotations();
        i.status.as_ref().is_some_and(|s| s.host_key.is_some())
            || [key::TRUST_HOST_KEY, key::FIRST_HOST_KEY].iter().any(|k| annotations.contains_key(*k))
    };
    instance.is_some_and(|i| has(&i)) || cx.node(host).is_some_and(|n| n.annotations().contains_key(key::SSH_HOST_KEY))
}

impl List {
    /// Keeps what is known of hosts from their first contact, until they have an instance, which gets the key.
    fn keep_contacts(
        &mut self,
        contacts: Vec<FirstContact>,
        named: &[Entry],
        port: i32,
        mine: &[Arc<WindowsInstance>],
    ) {
        let names: BTreeMap<Place, &str> =
            named.iter().map(|e| (naming::place(&e.host, port), e.host.name.as_str())).collect();
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

    /// Asks of no more hosts than can be asked, and says so.
    fn say_if_too_long(&mut self) {
        let Some((place, _)) = self.to_ask.get(MAX_ASKED) else { return };
        let message = format!(
            "{} hosts of the list have no name that is known, and {MAX_ASKED} of them are asked; {} and those behind it are asked as others \
             become nodes: take hosts out that do not answer, or use several pools",
            self.to_ask.len(),
            place.0
        );
        self.problems.push(Problem { host: place.0.clone(), reason: "TooManyUnknownHosts", message });
        self.to_ask.truncate(MAX_ASKED);
    }

    /// A host whose entry is there and cannot be used any more stays as it is: only who takes the entry out wants the host to go.
    fn keep_what_is_only_wrong(&mut self, staying: &[&Arc<WindowsInstance>]) {
        for instance in staying {
            let (name, address) = (instance.name_any(), canonical(&instance.spec.host.address));
            let wrong = self.problems.iter().any(|p| p.host == name || canonical(&p.host) == address);
            if wrong {
                self.hosts.entry(name).or_insert_with(|| instance.spec.host.clone());
            }
        }
    }

    /// A host that another pool lists now goes over to it, and stays the node that it is.
    fn hand_over(&mut self, pool: &str, staying: &[&Arc<WindowsInstance>], cx: &Context) {
        for instance in staying.iter().filter(|i| !self.hosts.contains_key(&i.name_any())) {
            let name = instance.name_any();
            let is_there = |other: &String| {
                cx.pools.get(&ObjectRef::new(other)).is_some_and(|p| p.metadata.deletion_timestamp.is_none())
            };
            if let Some(other) = cx.claims.other(pool, &name).filter(is_there) {
                self.moves.insert(name, other);
            }
        }
    }

    /// Too many hosts that would go at once stay until a person says so.
    fn hold_removals(&mut self, pool: &WindowsNodePool, staying: &[&Arc<WindowsInstance>], is_empty: bool) {
        let gone: Vec<&&Arc<WindowsInstance>> = staying
            .iter()
            .filter(|i| !self.hosts.contains_key(&i.name_any()) && !self.moves.contains_key(&i.name_any()))
            .collect();
        if !gone.is_empty() && !self.unnamed.is_empty() {
            let names: Vec<String> = gone.iter().map(|i| i.name_any()).collect();
            let unnamed: Vec<String> = self.unnamed.iter().map(|(place, _)| place.0.clone()).collect();
            let message = format!(
                "no entry has the name of {}, and it is not known yet which hosts {} are: they may be the same, so all stay. Mend those \
                 entries, or take them out",
                some(&names),
                some(&unnamed)
            );
            self.hosts.extend(gone.iter().map(|i| (i.name_any(), i.spec.host.clone())));
            self.problems.push(Problem { host: String::new(), reason: "HostnameUnknown", message });
            return;
        }
        let limit = pool.spec.inventory.max_removals();
        // The pool's own list is as old as the pool's spec.
        let own = || pool.metadata.generation.map(|g| format!("generation-{g}"));
        let revision = self.status.as_ref().map_or_else(own, |s| s.revision.clone());
        let change = Change {
            gone: gone.len(),
            of: staying.len(),
            empty: is_empty,
            limit,
            revision: revision.as_deref(),
            approved: pool.annotations().get(key::APPROVE_REMOVAL).map(String::as_str),
        };
        if !removals::are_held(change) {
            return;
        }
        let mut names: Vec<String> = gone.iter().map(|i| i.name_any()).collect();
        names.sort();
        let limit = limit.map(|l| l.to_string()).unwrap_or_default();
        let revision = revision.unwrap_or_else(|| "the list".into());
        let message = format!(
            "{revision} does not list {} of {} hosts any more, and one change may remove {limit}: {}; they all stay. If they shall go, \
             annotate the pool with {}={revision}, else mend the list",
            names.len(),
            staying.len(),
            some(&names),
            key::APPROVE_REMOVAL,
        );
        self.hosts.extend(gone.iter().map(|i| (i.name_any(), i.spec.host.clone())));
        self.problems.insert(0, Problem { host: String::new(), reason: reason::MASS_REMOVAL_BLOCKED, message });
        self.mends_itself = false;
        names.truncate(10);
        if let Some(status) = &mut self.status {
            status.held_removals = names;
        }
    }
}
