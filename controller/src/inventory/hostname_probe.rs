//! Probe for the computer names of hosts that are listed only with an address.
//!
//! A host whose key is not known yet is contacted twice. The first log-in trusts any host key, only reads it, and puts nothing on the host. The key
//! is stored in the pool's status. Only then does the operator log in with that key as the trusted one, send wicd, and query the name. The name is
//! stored with the key for as long as the entry is listed and has no instance, so that a host with a usable name is queried only once, even after a
//! restart of the operator.

mod contact;
mod queue;

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use api::{FirstContact, WindowsNodePool};
use kube::ResourceExt;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    args::host_key_policy::{HostKeySource, KnownKeys, host_key_source},
    context::Context,
};
use contact::Failure;
use queue::Queue;
use wnp_core::{
    inventory::{
        Entry,
        list::MAX_ASKED,
        naming::{Endpoint, Why},
    },
    operation::host_key_problem::HostKeyProblem,
};

/// Initial backoff after a failed contact, doubled after each further failure.
const FIRST_RETRY: Duration = Duration::from_secs(10);
/// Maximum backoff after a failed contact.
const LAST_RETRY: Duration = Duration::from_mins(5);
/// Initial wait before a host with an unusable name is contacted again, because it may be renamed. The wait doubles after each further contact.
const FIRST_REVISIT: Duration = Duration::from_mins(5);
/// Maximum wait before a host with an unusable name is contacted again.
const LAST_REVISIT: Duration = Duration::from_hours(1);
/// Time after which a DNS result is refreshed while it is needed.
const LOOKUP_AGAIN: Duration = Duration::from_mins(1);
/// Time without use after which a DNS result is dropped.
const LOOKUP_FORGOTTEN: Duration = Duration::from_mins(10);

/// Probe for the names of hosts, with its tasks and the results that are not stored yet. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct HostnameProbe(Arc<Mutex<State>>);

type Key = (String, Endpoint);

#[derive(Default)]
struct State {
    queue: Queue<Task>,
    /// Hosts for which a contact was queued, by pool, address and port.
    asked: HashMap<Key, Arc<Ask>>,
    /// Contacts that the pool's status does not have yet.
    fresh: HashMap<Key, FirstContact>,
    failures: HashMap<Key, Failed>,
    /// Hosts with unusable names: number of further contacts, and time of the next.
    revisits: HashMap<Key, (u32, Instant)>,
    /// Results of DNS look-ups, by name.
    lookups: HashMap<String, Lookup>,
}

/// Task of the probe for a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Lookup(String),
    Contact(Endpoint),
}

/// Host to contact, with the data that the contact needs.
pub(crate) struct Ask {
    pool: Arc<WindowsNodePool>,
    place: Endpoint,
    entry: Entry,
    /// Contact with the host that the pool's status has.
    stored: Option<FirstContact>,
}

struct Failed {
    why: Why,
    again: Instant,
    count: u32,
}

#[derive(Default)]
struct Lookup {
    /// Addresses of the DNS name, or `None` until the first look-up.
    addresses: Option<Vec<String>>,
    at: Option<Instant>,
    needed: Option<Instant>,
}

/// Returns the source of the trusted host key for an entry without a name.
///
/// # Errors
/// Fails when the operator must not log in to the host.
pub(crate) fn host_key_of(
    entry: &Entry,
    stored: Option<&FirstContact>,
    pool: &WindowsNodePool,
) -> Result<HostKeySource, HostKeyProblem> {
    let known = KnownKeys {
        address: &entry.host.address,
        declared: entry.host.host_key.as_deref(),
        first_contact: stored.map(|c| c.host_key.as_str()),
        ..KnownKeys::default()
    };
    host_key_source(&known, &pool.spec.ssh())
}

impl HostnameProbe {
    /// Returns the reason and message of the last contact with the host at this address, if it failed.
    pub(crate) fn failure(&self, pool: &str, place: &Endpoint) -> Option<Why> {
        self.lock().failures.get(&(pool.to_owned(), place.clone())).map(|f| f.why.clone())
    }

    /// Returns the results of the contacts with the hosts at these addresses, at most [`MAX_ASKED`]: new results, or else those in `stored`.
    pub(crate) fn contacts(
        &self,
        pool: &str,
        stored: &[FirstContact],
        places: &BTreeSet<Endpoint>,
    ) -> Vec<FirstContact> {
        let state = self.lock();
        let of = |place: &Endpoint| {
            let fresh = state.fresh.get(&(pool.to_owned(), place.clone())).cloned();
            fresh.or_else(|| stored.iter().find(|c| is_at(c, place)).cloned())
        };
        places.iter().filter_map(of).take(MAX_ASKED).collect()
    }

    /// Returns the addresses of a DNS name, or `None` until they are known. If they are missing or old, the next [`Self::ask`] looks up the name and
    /// then triggers the pool.
    pub(crate) fn addresses(&self, pool: &str, name: &str) -> Option<Vec<String>> {
        let mut state = self.lock();
        let now = Instant::now();
        let lookup = state.lookups.entry(name.to_owned()).or_default();
        lookup.needed = Some(now);
        let addresses = lookup.addresses.clone();
        if lookup.at.is_none_or(|at| now.duration_since(at) >= LOOKUP_AGAIN) {
            state.queue.push(pool, 0, Task::Lookup(name.to_owned()));
        }
        addresses
    }

    /// Looks up names immediately, for a command that runs once.
    pub(crate) async fn look_up(&self, names: BTreeSet<String>) {
        let looked_up = futures::future::join_all(names.into_iter().map(|name| async {
            let addresses = contact::look_up(&name).await;
            (name, addresses)
        }));
        for (name, addresses) in looked_up.await {
            self.resolved(name, addresses);
        }
    }

    /// Starts contacts with the hosts that are due, in the background, and triggers the pool when a task ends. Returns the time until the next host
    /// is due, or `None` if no host waits for a later contact.
    pub(crate) fn ask(
        &self,
        pool: &Arc<WindowsNodePool>,
        hosts: &[(Endpoint, Entry)],
        cx: &Arc<Context>,
    ) -> Option<Duration> {
        let next = self.queue(pool, hosts, Instant::now());
        self.begin(cx);
        next
    }

    /// Forgets the hosts and the waiting tasks of a pool.
    pub(crate) fn forget(&self, pool: &str) {
        let mut state = self.lock();
        state.keep(pool, &BTreeSet::new());
        state.queue.retain(pool, |_| false);
    }

    /// Queues contacts with the hosts that are due. Returns the time until the next host is due, if a host waits for a later contact.
    fn queue(&self, pool: &Arc<WindowsNodePool>, hosts: &[(Endpoint, Entry)], now: Instant) -> Option<Duration> {
        let name = pool.name_any();
        let mut state = self.lock();
        let hosts = &hosts[..hosts.len().min(MAX_ASKED)];
        state.keep(&name, &hosts.iter().map(|(place, _)| place.clone()).collect());
        state.lookups.retain(|_, l| l.needed.is_some_and(|at| now.duration_since(at) < LOOKUP_FORGOTTEN));
        let stored = pool.status.as_ref().map(|s| s.contacts.as_slice()).unwrap_or_default();
        let mut next: Option<Duration> = None;
        for (place, entry) in hosts {
            let key = (name.clone(), place.clone());
            let stored = stored.iter().find(|c| is_at(c, place)).cloned();
            if state.fresh.get(&key).is_some_and(|fresh| stored.as_ref() == Some(fresh)) {
                state.fresh.remove(&key);
            }
            // The result of the last contact must be stored first. Without a key to trust, the operator must not contact the host.
            if state.fresh.contains_key(&key) || host_key_of(entry, stored.as_ref(), pool).is_err() {
                continue;
            }
            let due = if let Some(failed) = state.failures.get(&key) {
                Some((failed.again, failed.count))
            } else if stored.as_ref().is_some_and(|c| c.hostname.is_some()) {
                let (count, again) = state.revisits.entry(key.clone()).or_insert((0, now + FIRST_REVISIT));
                Some((*again, *count))
            } else {
                None
            };
            if let Some((again, _)) = due.filter(|(again, _)| *again > now) {
                let wait = again.duration_since(now);
                next = Some(next.map_or(wait, |n| n.min(wait)));
                continue;
            }
            let ask = Ask { pool: pool.clone(), place: place.clone(), entry: entry.clone(), stored };
            state.asked.insert(key, Arc::new(ask));
            state.queue.push(&name, due.map_or(0, |(_, count)| count), Task::Contact(place.clone()));
        }
        next
    }

    /// Starts all queued tasks that may start.
    fn begin(&self, cx: &Arc<Context>) {
        let mut begun = Vec::new();
        let mut state = self.lock();
        while let Some((pool, task)) = state.queue.next() {
            let ask = match &task {
                Task::Contact(place) => state.asked.get(&(pool.clone(), place.clone())).cloned(),
                Task::Lookup(_) => None,
            };
            begun.push((pool, task, ask));
        }
        // Unlocked before tasks are spawned: a runtime that shuts down drops a spawned task at once, and the drop of its `Turn` takes the lock.
        drop(state);
        for (pool, task, ask) in begun {
            let turn = Turn { asking: self.clone(), cx: cx.clone(), pool, task };
            tokio::spawn(work(turn, ask));
        }
    }

    fn resolved(&self, name: String, addresses: Vec<IpAddr>) {
        let mut state = self.lock();
        let now = Instant::now();
        let addresses = addresses.iter().map(|a| a.to_canonical().to_string()).collect();
        let needed = state.lookups.get(&name).and_then(|l| l.needed).unwrap_or(now);
        state.lookups.insert(name, Lookup { addresses: Some(addresses), at: Some(now), needed: Some(needed) });
    }

    /// Records the result of a contact.
    fn answered(&self, ask: &Ask, result: Result<FirstContact, Failure>, now: Instant) {
        let key = (ask.pool.name_any(), ask.place.clone());
        let mut state = self.lock();
        // The entry may have been removed in the meantime.
        if !state.asked.contains_key(&key) {
            return;
        }
        match result {
            Ok(contact) => {
                state.failures.remove(&key);
                if contact.hostname.is_some() {
                    let count = state.revisits.get(&key).map_or(0, |(count, _)| count + 1);
                    let wait = FIRST_REVISIT.saturating_mul(1 << count.min(8)).min(LAST_REVISIT);
                    state.revisits.insert(key.clone(), (count, now + wait));
                }
                if ask.stored.as_ref() != Some(&contact) {
                    state.fresh.insert(key, contact);
                }
            }
            Err(Failure { reason, message }) => {
                let before = state.failures.get(&key).map_or(0, |f| f.count);
                let wait = FIRST_RETRY.saturating_mul(1 << before.min(8)).min(LAST_RETRY);
                let why = (reason, message);
                state.failures.insert(key, Failed { why, again: now + wait, count: before + 1 });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    /// Forgets the hosts of a pool that are no longer listed.
    fn keep(&mut self, pool: &str, places: &BTreeSet<Endpoint>) {
        let stays = |key: &Key| key.0 != pool || places.contains(&key.1);
        self.asked.retain(|key, _| stays(key));
        self.fresh.retain(|key, _| stays(key));
        self.failures.retain(|key, _| stays(key));
        self.revisits.retain(|key, _| stays(key));
        self.queue.retain(pool, |task| match task {
            Task::Lookup(_) => true,
            Task::Contact(place) => places.contains(place),
        });
    }
}

fn is_at(contact: &FirstContact, place: &Endpoint) -> bool {
    (contact.address.as_str(), contact.port) == (place.0.as_str(), place.1)
}

/// Task in progress. When it is dropped, however the task ends, the next tasks start and the pool is triggered.
struct Turn {
    asking: HostnameProbe,
    cx: Arc<Context>,
    pool: String,
    task: Task,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.asking.lock().queue.done(&self.pool, &self.task);
        if !self.cx.process.stop.is_cancelled() {
            self.asking.begin(&self.cx);
            self.cx.wake.pool(&self.pool);
        }
    }
}

async fn work(turn: Turn, ask: Option<Arc<Ask>>) {
    let cx = &turn.cx;
    match (&turn.task, ask) {
        (Task::Lookup(name), _) => {
            let Some(addresses) = cx.process.stop.run_until_cancelled(contact::look_up(name)).await else { return };
            turn.asking.resolved(name.clone(), addresses);
        }
        (Task::Contact(_), Some(ask)) => {
            let Some(result) = Box::pin(cx.process.stop.run_until_cancelled(contact::contact(cx, &ask))).await else {
                return;
            };
            if let Err(failure) = &result {
                let (pool, address) = (turn.pool.as_str(), ask.place.0.as_str());
                tracing::warn!(pool, address, reason = failure.reason.as_str(), "{}", failure.message);
            }
            turn.asking.answered(&ask, result, Instant::now());
        }
        (Task::Contact(_), None) => {}
    }
}

#[cfg(test)]
#[path = "hostname_probe/tests.rs"]
mod tests;
