//! Desired hosts of a pool: queries its source, and gathers the input of [`List`].

use std::{collections::BTreeSet, sync::Arc};

use api::{WindowsInstance, WindowsNodePool, names::key};
use kube::{ResourceExt, runtime::reflector::ObjectRef};

use super::names::{self, ASK_AGAIN, Naming};
use super::{PoolContext, source};
use crate::runtime::clock;
use remote::ssh::HostKeyCheck;
use wnp_core::inventory::{
    Entry, EntryError, HostList, SourceError, SourceOutcome,
    address::canonical,
    hosts::{self, HostKeys, KnownHosts, OwnerState},
    list::{List, Nameless, ObservedList, broken},
    naming,
    ownership::{self, Reading, Unread},
    removals::Presence,
};

/// Queries the pool's source, and creates the list of desired hosts from the result. A pool that is being deleted has no desired hosts. `known` finds
/// the hosts of all pools.
pub(super) async fn list(
    pool: &WindowsNodePool,
    mine: &[Arc<WindowsInstance>],
    known: &(dyn KnownHosts + Sync),
    cx: &PoolContext,
) -> List {
    let name = pool.name_any();
    if pool.metadata.deletion_timestamp.is_some() {
        cx.wake.pools(cx.sources.owners().release(&name));
        let mut list = List::default();
        hand_over(&mut list, pool, mine, cx);
        depart(&mut list, pool, mine, &ObservedList { deleting: true, ..ObservedList::default() }, cx);
        return list;
    }
    let mut begun = cx.sources.owners().begin(&name);
    let outcome = source::ask(pool, begun, cx).await;
    if let Some(source) = pool.spec.inventory.source() {
        match outcome.success() {
            Some(at) => cx.process.metrics.source_succeeded(&name, source, at),
            None if outcome.is_failure() => cx.process.metrics.source_failed(&name, source),
            None => {}
        }
    }
    let (list, reading) = match outcome {
        SourceOutcome::Unknown(trouble, next) => {
            let reading = ownership::unknown(trouble.reason);
            (List { next, ..List::unknown(pool, mine, &trouble) }, reading)
        }
        SourceOutcome::Missing(trouble) => (missing(pool, mine, &trouble, cx), Reading::Nothing),
        SourceOutcome::Listed(listing) => {
            begun = listing.as_of.unwrap_or(begun);
            listed(pool, mine, known, *listing, cx).await
        }
    };
    cx.wake.pools(cx.sources.owners().end(pool, begun, reading));
    list
}

/// Returns the list of a pool whose source is missing, which alone is not a reason to remove hosts.
fn missing(pool: &WindowsNodePool, mine: &[Arc<WindowsInstance>], trouble: &SourceError, cx: &PoolContext) -> List {
    let mut list = List::missing(pool, trouble);
    hand_over(&mut list, pool, mine, cx);
    let seen =
        ObservedList { presence: Presence::Missing, trouble: Some(trouble.message.clone()), ..ObservedList::default() };
    depart(&mut list, pool, mine, &seen, cx);
    list
}

/// Returns the list of a pool whose source was read, and the names and addresses in it for the ownership of hosts.
async fn listed(
    pool: &WindowsNodePool,
    mine: &[Arc<WindowsInstance>],
    known: &(dyn KnownHosts + Sync),
    listing: HostList,
    cx: &PoolContext,
) -> (List, Reading) {
    let (name, port) = (pool.name_any(), i32::from(pool.spec.ssh().port()));
    let HostList { entries, problems, status, trouble, as_of: _, read_at: _, next, departures } = listing;
    let is_empty = entries.is_empty();
    let naming = Naming::of(pool, entries, cx).await;
    let (named, owners) = (naming.named, naming.owners);
    let mut resolved = {
        let keys = HostKeys { is_known: &|host| has_host_key(host, cx), read: &read_host_key };
        hosts::resolve(&name, &pool.spec, &named.entries, known, &keys)
    };
    let pending_moves = resolved.pending_moves(|pool, host| {
        let (pools, instance) = (&cx.caches.pools, cx.caches.instances.get(&ObjectRef::new(host)));
        let address = instance.map(|i| canonical(&i.spec.host.address)).unwrap_or_default();
        // The host of a missing pool is not moved to another pool automatically.
        let Some(pool) = pools.get(&ObjectRef::new(pool)) else {
            return if cx.caches.unreadable.has("WindowsNodePool", pool) {
                OwnerState::Listed
            } else {
                OwnerState::WithoutPool
            };
        };
        let lists = pool.metadata.deletion_timestamp.is_none() && cx.sources.owners().lists(&pool, host, &address);
        if lists { OwnerState::Listed } else { OwnerState::Released }
    });
    // A pool whose finalizer was removed by a user disappears without a reconcile, so the hosts that it owned are checked again later.
    let gone = if resolved.owners.is_empty() { None } else { clock::now().checked_add(ASK_AGAIN).ok() };
    cx.wake.pools(cx.sources.owners().refuse(pool, std::mem::take(&mut resolved.owners)));
    let again = names::keep_second_nodes_out(&name, &mut resolved, cx).await;
    let names: BTreeSet<String> = named.entries.iter().map(|e| e.host.name.clone()).collect();
    let addresses: BTreeSet<String> = named.unnamed.iter().map(|e| canonical(&e.host.address)).collect();
    let reading = match trouble {
        Some(_) => Reading::Old(names, addresses),
        None if named.is_pending => Reading::Pending(names, addresses),
        None => Reading::List(names, addresses),
    };
    let unnamed: Vec<String> = named.unnamed.iter().map(|e| e.host.address.clone()).collect();
    let nameless = Nameless { broken: broken(pool, mine, &problems), unnamed };
    let place = |entry: Entry| (naming::endpoint(&entry.host, port), entry);
    let mut list = List {
        pending_moves,
        unnamed: named.unnamed.into_iter().map(place).collect(),
        to_ask: named.to_ask.into_iter().map(place).collect(),
        is_transient: trouble.as_ref().is_some_and(|t| !t.stalls),
        problems: trouble.iter().map(EntryError::from).collect(),
        hosts: resolved.hosts,
        origins: resolved.origins,
        next: [owners.next(next), again, gone].into_iter().flatten().min(),
        status,
        ..List::default()
    };
    list.problems.extend(problems.into_iter().chain(named.problems).chain(resolved.problems));
    list.keep_contacts(naming.contacts, &named.entries, port, mine);
    list.limit_queries();
    list.keep_hosts_of_faulty_entries(mine);
    hand_over(&mut list, pool, mine, cx);
    let presence = match (&departures, is_empty) {
        (Some(_), _) => Presence::Machines,
        (None, true) => Presence::Empty,
        (None, false) => Presence::Filled,
    };
    let seen = ObservedList { presence, nameless, departures, ..ObservedList::default() };
    depart(&mut list, pool, mine, &seen, cx);
    (list, reading)
}

/// Calls [`List::hand_over`] with the current lists of other pools.
fn hand_over(list: &mut List, pool: &WindowsNodePool, mine: &[Arc<WindowsInstance>], cx: &PoolContext) {
    list.hand_over(pool, mine, &cx.caches.pools.state(), &cx.sources.owners());
}

/// Calls [`List::depart`]. Triggers reads of the lists of other pools that were not read since a host went missing.
fn depart(
    list: &mut List,
    pool: &WindowsNodePool,
    mine: &[Arc<WindowsInstance>],
    seen: &ObservedList,
    cx: &PoolContext,
) {
    list.depart(pool, mine, seen, |missed| {
        // A command that runs once reads no lists of other pools.
        let mut unread = if cx.process.is_one_shot {
            Unread::default()
        } else {
            cx.sources.owners().unread(&pool.name_any(), missed, &cx.caches.pools.state())
        };
        // The current state of an unreadable pool is in no cache, and may list any host.
        unread.unknown.extend(cx.caches.unreadable.names("WindowsNodePool"));
        cx.wake.pools(&unread.pending);
        unread
    });
}

fn read_host_key(text: &str) -> Result<(), String> {
    HostKeyCheck::pinned(text).map(|_| ()).map_err(|error| error.to_string())
}

/// Reports whether a host key is known without an entry that declares it: a key that the host has proven, that a user has allowed, or that an
/// annotation of the Node records.
fn has_host_key(host: &str, cx: &PoolContext) -> bool {
    let instance = cx.caches.instances.get(&ObjectRef::new(host));
    let has = |i: &WindowsInstance| {
        let annotations = i.annotations();
        i.status.as_ref().is_some_and(|s| s.host_key.is_some())
            || [key::TRUST_HOST_KEY, key::FIRST_HOST_KEY].iter().any(|k| annotations.contains_key(*k))
    };
    instance.is_some_and(|i| has(&i)) || cx.node(host).is_some_and(|n| n.annotations().contains_key(key::SSH_HOST_KEY))
}
