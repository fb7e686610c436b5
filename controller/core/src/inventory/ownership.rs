//! Owners of hosts: which pool lists which hosts, so that a host that changes pools is handed over and not removed.
//!
//! The list in a pool's own spec is always current. Any other list is known as it was last read, together with the time of the last attempt:
//! before a host leaves, every other list must have been read since the host was first missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{Reason, WindowsNodePool};
use kube::ResourceExt;

use super::{address::canonical, instances::can_have_instances, removals::Others};

/// Lists of the pools, as each was last read.
#[derive(Debug, Default)]
pub struct HostOwners {
    /// Logical clock, which orders reads and the times when hosts were first missing.
    clock: u64,
    pools: BTreeMap<String, Claim>,
    /// Logical time when each host was first missing from its pool's list, by pool.
    missed: BTreeMap<String, BTreeMap<String, u64>>,
    /// Pools that wait for reads of other lists, with the logical time since which they wait.
    waiting: BTreeMap<String, u64>,
    /// Entries that are refused because another pool has the host, by pool.
    refused: BTreeMap<String, Refused>,
}

/// Refused entries of a pool, with the pool's state at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refused {
    generation: Option<i64>,
    /// True if the pool could have instances.
    is_able: bool,
    /// Pools that have the hosts, by entry.
    owners: BTreeMap<String, String>,
}

/// Hosts that a pool lists.
#[derive(Clone, Debug, Default)]
struct Claim {
    hosts: BTreeSet<String>,
    /// Addresses of entries without a known name.
    addresses: BTreeSet<String>,
    /// Generation of the pool at the last attempt to read the list.
    generation: Option<i64>,
    /// Logical time when the last attempt to read the list began. An attempt with a pending DNS lookup does not count.
    tried: u64,
    /// Logical time when the last successful read of the list began.
    read: u64,
}

impl Claim {
    /// Reports whether a read of the pool in this generation has been attempted since `since`, and whether one has succeeded.
    fn standing(&self, since: u64, generation: Option<i64>) -> (bool, bool) {
        let is_new = |at: u64| at >= since && self.generation == generation;
        (is_new(self.tried), is_new(self.read))
    }
}

/// Result of a read of a pool's list.
#[derive(Clone, Debug)]
pub enum Reading {
    /// List with the names of hosts, and the addresses of entries without a name.
    List(BTreeSet<String>, BTreeSet<String>),
    /// Older list (hosts and addresses as in [`Reading::List`]): a newer one exists and cannot be used.
    Old(BTreeSet<String>, BTreeSet<String>),
    /// List (hosts and addresses as in [`Reading::List`]) with a pending DNS lookup for an entry, which may be any host.
    Pending(BTreeSet<String>, BTreeSet<String>),
    /// No list: the pool lists no hosts other than those that it already has.
    Nothing,
    /// List that is not known yet, or cannot be read now.
    Unknown,
}

/// Returns the reading of a source without a list, by its reason.
pub fn unknown(reason: Reason) -> Reading {
    // A source that does not exist lists no host.
    match reason {
        Reason::SourceNotFound => Reading::Nothing,
        _ => Reading::Unknown,
    }
}

/// Read of a list that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadStart {
    at: u64,
    /// Logical time since which another pool waits for a read.
    awaited: Option<u64>,
}

impl ReadStart {
    /// Reports whether another pool waits for a read that is newer than `last`, the last attempt.
    pub fn is_awaited(&self, last: Option<Self>) -> bool {
        self.awaited.is_some_and(|since| last.is_none_or(|last| last.at < since))
    }
}

/// Lists of other pools that have not been read since a host was missed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Pools whose read is still pending.
    pub pending: Vec<String>,
    /// Pools whose lists are not known although a read was attempted, and pools that cannot be read themselves.
    pub unknown: Vec<String>,
}

impl Unread {
    /// Returns the state of the other lists, for the decision about removals.
    pub fn others(&self) -> Others {
        match (self.pending.is_empty(), self.unknown.is_empty()) {
            (false, _) => Others::Pending,
            (true, false) => Others::Unreadable,
            (true, true) => Others::Read,
        }
    }

    /// Returns the names of all unread pools.
    pub fn names(&self) -> Vec<String> {
        self.pending.iter().chain(&self.unknown).cloned().collect()
    }
}

impl HostOwners {
    /// Begins a read of a pool's list.
    pub fn begin(&mut self, pool: &str) -> ReadStart {
        self.clock += 1;
        let awaited = self.waiting.iter().filter(|(waiting, _)| *waiting != pool).map(|(_, since)| *since).max();
        ReadStart { at: self.clock, awaited }
    }

    /// Ends a read of a pool's list. `begun` is the start of the read of the source itself, which may be earlier. Returns the pools that wait for
    /// this list, if it has anything new for them.
    pub fn end(&mut self, pool: &WindowsNodePool, begun: ReadStart, reading: Reading) -> Vec<String> {
        let name = pool.name_any();
        let claim = self.pools.entry(name.clone()).or_default();
        let before = claim.clone();
        if !matches!(reading, Reading::Pending(..)) {
            claim.tried = begun.at;
            claim.generation = pool.metadata.generation;
        }
        match reading {
            Reading::List(hosts, addresses) => {
                (claim.hosts, claim.addresses) = (hosts, addresses);
                claim.read = begun.at;
            }
            Reading::Old(hosts, addresses) | Reading::Pending(hosts, addresses) => {
                (claim.hosts, claim.addresses) = (hosts, addresses);
            }
            Reading::Nothing => claim.read = begun.at,
            Reading::Unknown => {}
        }
        let after = claim.clone();
        let is_news = |since: u64| {
            let standing =
                |c: &Claim| (c.standing(since, pool.metadata.generation), c.hosts.clone(), c.addresses.clone());
            standing(&before) != standing(&after)
        };
        let waiting = self.waiting.iter().filter(|(w, since)| **w != name && is_news(**since));
        waiting.map(|(w, _)| w.clone()).collect()
    }

    /// Releases the hosts of a pool that is being deleted and lists none any more. The times since which its hosts are missing are kept:
    /// otherwise every reconcile would find all other lists outdated, and the pool would wait forever. Returns the pools to reconcile: those that
    /// wait for its list, and those that have the hosts of its refused entries.
    pub fn release(&mut self, pool: &str) -> BTreeSet<String> {
        let listed = self.pools.remove(pool).is_some();
        let waiting = self.waiting.keys().filter(|waiting| listed && *waiting != pool).cloned();
        let owners = self.refused.remove(pool).into_iter().flat_map(|refused| refused.owners.into_values());
        waiting.chain(owners).collect()
    }

    /// Removes a deleted pool. Returns the pools to reconcile, as [`HostOwners::release`] does.
    pub fn forget(&mut self, pool: &str) -> BTreeSet<String> {
        self.missed.remove(pool);
        self.waiting.remove(pool);
        self.release(pool)
    }

    /// Records the entries of a pool that are refused because other pools have the hosts, each with its owner. Returns the owners whose hosts are
    /// newly refused or no longer refused, and all owners after a change of the pool: they must decide again whether to hand over these hosts.
    pub fn refuse(&mut self, pool: &WindowsNodePool, entries: BTreeMap<String, String>) -> BTreeSet<String> {
        let now = Refused {
            generation: pool.metadata.generation,
            is_able: can_have_instances(pool),
            owners: entries.clone(),
        };
        let known = |then: &Refused| (then.generation, then.is_able) == (now.generation, now.is_able);
        let before = self.refused.insert(pool.name_any(), now.clone());
        // The pool no longer lists these entries, or has got their hosts.
        let gone =
            before.iter().flat_map(|before| &before.owners).filter(|(entry, _)| !now.owners.contains_key(*entry));
        let gone: Vec<String> = gone.map(|(_, owner)| owner.clone()).collect();
        let before = before.filter(known);
        let is_new =
            |entry: &String, owner: &String| before.as_ref().is_none_or(|b| b.owners.get(entry) != Some(owner));
        let new = entries.into_iter().filter(|(entry, owner)| is_new(entry, owner)).map(|(_, owner)| owner);
        new.chain(gone).collect()
    }

    /// Returns the first other pool, by name, that lists a host and is not being deleted.
    pub fn other(&self, pool: &str, host: &str, address: &str, pools: &[Arc<WindowsNodePool>]) -> Option<String> {
        let address = canonical(address);
        let lists = |other: &&WindowsNodePool| self.lists(other, host, &address);
        let mut others: Vec<String> = live(pool, pools).filter(lists).map(ResourceExt::name_any).collect();
        others.sort();
        others.into_iter().next()
    }

    /// Reports whether a pool lists a host by its name. In a list outside of the spec, an entry without a known name counts, too, if it has the
    /// host's canonical `address`.
    pub fn lists(&self, pool: &WindowsNodePool, host: &str, address: &str) -> bool {
        if let Some(hosts) = &pool.spec.inventory.hosts {
            return hosts.iter().any(|h| h.name == host);
        }
        let claim = self.pools.get(&pool.name_any());
        claim.is_some_and(|c| c.hosts.contains(host) || c.addresses.contains(address))
    }

    /// Returns the other pools that have not been read since each of these hosts was first missing, and records that the pool waits for them.
    pub fn unread(&mut self, pool: &str, missed: &BTreeSet<String>, pools: &[Arc<WindowsNodePool>]) -> Unread {
        let now = self.clock + 1;
        let known = self.missed.entry(pool.to_owned()).or_default();
        known.retain(|host, _| missed.contains(host));
        for host in missed {
            known.entry(host.clone()).or_insert(now);
        }
        let since = known.values().max().copied();
        let mut unread = Unread::default();
        if let Some(since) = since {
            // Reads that begin from now on are newer.
            self.clock = now;
            for other in live(pool, pools).filter(|p| p.spec.inventory.hosts.is_none()) {
                let name = other.name_any();
                let claim = self.pools.get(&name).cloned().unwrap_or_default();
                match claim.standing(since, other.metadata.generation) {
                    (_, true) => {}
                    (true, false) => unread.unknown.push(name),
                    (false, false) => unread.pending.push(name),
                }
            }
            unread.pending.sort();
            unread.unknown.sort();
        }
        if unread.others() == Others::Read {
            self.waiting.remove(pool);
        } else {
            self.waiting.insert(pool.to_owned(), since.unwrap_or_default());
        }
        unread
    }
}

/// Returns the other pools that are not being deleted.
fn live<'a>(pool: &'a str, pools: &'a [Arc<WindowsNodePool>]) -> impl Iterator<Item = &'a WindowsNodePool> {
    pools.iter().map(|p| &**p).filter(move |p| p.name_any() != pool && p.metadata.deletion_timestamp.is_none())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use api::{ConfigMapRef, Host, Inventory, WindowsNodePoolSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    /// Returns a pool with a list in a ConfigMap, or with hosts of its own.
    fn pool(name: &str, hosts: Option<&[&str]>) -> WindowsNodePool {
        let host = |name: &&str| Host { name: (*name).into(), ..Host::default() };
        let hosts: Option<Vec<Host>> = hosts.map(|hosts| hosts.iter().map(host).collect());
        let config_map_ref = hosts.is_none().then(|| ConfigMapRef { name: name.into() });
        let inventory = Inventory { hosts, config_map_ref, ..Inventory::default() };
        let mut pool = WindowsNodePool::new(name, WindowsNodePoolSpec { inventory, ..WindowsNodePoolSpec::default() });
        pool.metadata.generation = Some(1);
        pool
    }

    fn list(names: &[&str]) -> Reading {
        Reading::List(set(names), BTreeSet::new())
    }

    fn pending(names: &[&str]) -> Unread {
        Unread { pending: names.iter().map(ToString::to_string).collect(), ..Unread::default() }
    }

    #[test]
    fn a_host_is_found_in_the_spec_or_the_last_list_of_another_pool() {
        let claims = RefCell::new(HostOwners::default());
        let begin = |pool: &str| claims.borrow_mut().begin(pool);
        let end = |pool: &WindowsNodePool, begun, reading| claims.borrow_mut().end(pool, begun, reading);
        let (own, far, mut going) = (pool("own", Some(&["x"])), pool("far", None), pool("going", Some(&["z"])));
        going.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        let pools = [own, far.clone(), going].map(Arc::new);
        let other = |of: &str, host: &str, address: &str| claims.borrow().other(of, host, address, &pools);
        assert_eq!(other("own", "x", "10.0.0.1"), None);
        assert_eq!(
            other("p", "x", "10.0.0.1").as_deref(),
            Some("own"),
            "the list in a spec counts although it was never read"
        );
        assert_eq!(other("p", "y", "10.0.0.2"), None);
        assert_eq!(other("p", "z", "10.0.0.3"), None, "a pool that is being deleted takes no host");
        let reading = Reading::List(set(&["y"]), set(&["10.0.0.4"]));
        end(&far, begin("far"), reading);
        assert_eq!(other("p", "y", "10.0.0.2").as_deref(), Some("far"));
        assert_eq!(
            other("p", "w", "10.0.0.4").as_deref(),
            Some("far"),
            "the address of an entry without a known name counts"
        );
        end(&far, begin("far"), Reading::Unknown);
        assert_eq!(other("p", "y", "10.0.0.2").as_deref(), Some("far"), "the last list counts");
        let _ = claims.borrow_mut().forget("far");
        assert_eq!(other("p", "y", "10.0.0.2"), None);
    }

    #[test]
    fn no_host_leaves_before_every_other_list_was_read_since_it_was_missed() {
        let claims = RefCell::new(HostOwners::default());
        let begin = |pool: &str| claims.borrow_mut().begin(pool);
        let end = |pool: &WindowsNodePool, begun, reading| claims.borrow_mut().end(pool, begun, reading);
        let (near, far) = (pool("near", Some(&[])), pool("far", None));
        let pools = [pool("p", None), near, far.clone()].map(Arc::new);
        let unread = |missed: &[&str]| claims.borrow_mut().unread("p", &set(missed), &pools);
        assert_eq!(unread(&[]), Unread::default(), "no host is missed");
        let early = begin("far");
        assert_eq!(unread(&["a"]), pending(&["far"]), "a list in a spec is always current");
        let news = |begun, reading| end(&far, begun, reading);
        assert_eq!(news(early, list(&[])), [""; 0]);
        assert_eq!(news(begin("far"), Reading::Pending(set(&[]), set(&[]))), [""; 0]);
        assert_eq!(unread(&["a"]), pending(&["far"]), "that read had begun before");
        let late = begin("far");
        assert!(late.is_awaited(Some(early)) && late.is_awaited(None), "an earlier read does not count");
        assert!(!begin("far").is_awaited(Some(late)) && !begin("p").is_awaited(None));
        assert_eq!(news(begin("far"), Reading::Unknown), ["p"]);
        // Otherwise two pools that wait for an unreadable third list would trigger each other's reconciles endlessly.
        assert_eq!(news(begin("far"), Reading::Unknown), [""; 0], "the failed read is known already");
        end(&far, begin("far"), Reading::Old(set(&["b"]), BTreeSet::new()));
        assert_eq!(unread(&["a"]), Unread { unknown: vec!["far".into()], ..Unread::default() });
        end(&far, begin("far"), list(&[]));
        assert_eq!(unread(&["a"]), Unread::default());
        assert_eq!(end(&far, begin("far"), list(&[])), [""; 0], "no pool waits for the list any more");
        assert_eq!(unread(&["a", "b"]), pending(&["far"]), "b was not missed before");
        end(&far, begin("far"), Reading::Nothing);
        assert_eq!(unread(&["a", "b"]), Unread::default());

        let mut edited = far;
        edited.metadata.generation = Some(2);
        let pools = [Arc::new(edited)];
        assert_eq!(
            claims.borrow_mut().unread("p", &set(&["a"]), &pools),
            pending(&["far"]),
            "the list of this generation was not read"
        );
    }

    /// Covers a pool that is being deleted: every reconcile releases its hosts again.
    #[test]
    fn a_pool_that_is_deleted_waits_for_one_read_of_each_other_list() {
        let mut claims = HostOwners::default();
        let far = pool("far", None);
        let pools = [pool("p", Some(&[])), far.clone()].map(Arc::new);
        for (about, expected) in [("before the read", pending(&["far"])), ("after the read", Unread::default())] {
            assert_eq!(claims.release("p"), set(&[]));
            assert_eq!(claims.unread("p", &set(&["a"]), &pools), expected, "{about}");
            let begun = claims.begin("far");
            let woken = claims.end(&far, begun, list(&[]));
            assert_eq!(woken.len(), expected.pending.len(), "{about}: {woken:?}");
        }
        assert_eq!(claims.unread("p", &set(&["a", "b"]), &pools), pending(&["far"]));
        assert_eq!(claims.release("far"), set(&["p"]), "the pool that waited for its list is reconciled");
        let _ = claims.forget("p");
        assert_eq!(claims.unread("p", &set(&["a"]), &pools), pending(&["far"]), "a new pool with the same name waits");
    }

    #[test]
    fn an_owner_is_reconciled_once_for_each_refused_host() {
        let mut claims = HostOwners::default();
        let mut pool = pool("p", Some(&["a"]));
        let of = |owner: &str| BTreeMap::from([("a".to_owned(), owner.to_owned())]);
        assert_eq!(claims.refuse(&pool, of("old")), set(&["old"]));
        assert_eq!(claims.refuse(&pool, of("old")), set(&[]), "two pools must not wake each other for ever");
        assert_eq!(claims.refuse(&pool, of("other")), set(&["other"]));
        pool.metadata.generation = Some(2);
        assert_eq!(claims.refuse(&pool, of("other")), set(&["other"]), "the mode of the pool may have changed");
        pool.metadata.finalizers = Some(vec![api::names::FINALIZER_POOL.into()]);
        assert_eq!(claims.refuse(&pool, of("other")), set(&["other"]), "the pool can have instances now");
        assert_eq!(claims.refuse(&pool, BTreeMap::new()), set(&["other"]), "the pool no longer lists the host");
        assert_eq!(claims.refuse(&pool, BTreeMap::new()), set(&[]));
        assert_eq!(claims.refuse(&pool, of("other")), set(&["other"]), "the host is refused again");
        assert_eq!(claims.release("p"), set(&["other"]), "the pool is being deleted");
        assert_eq!(claims.release("p"), set(&[]));
    }

    #[test]
    fn a_missing_source_lists_no_host() {
        for (reason, expected) in [(Reason::SourceNotFound, true), (Reason::Fetching, false), (Reason::ApiError, false)]
        {
            assert_eq!(matches!(unknown(reason), Reading::Nothing), expected, "{reason}");
        }
    }
}
