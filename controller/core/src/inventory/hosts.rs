//! Hosts of a list with the pool's settings filled in, and the entries that cannot be used. Pure.

use std::collections::{BTreeMap, BTreeSet};

use api::{HostKeyPolicy, InstanceHost, Origin, Reason, WindowsInstance, WindowsNodePoolSpec};
use kube::ResourceExt;

use super::{
    Entry, EntryError,
    address::{canonical, is_address},
    naming::Endpoint,
};
use crate::{node::permitted, operation::host_key_problem::HostKeyProblem};

/// Existing host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Name of the host.
    pub name: String,
    /// Address of the host.
    pub address: String,
    /// Port of the host.
    pub port: i32,
    /// Pool of the host.
    pub pool: String,
    /// True if the host was last reached at another address or port than its entry names, so the entry may be wrong and does not block hosts of other
    /// pools. Without this exception, two hosts whose entries were swapped between two pools would block each other's correction.
    pub is_elsewhere: bool,
}

impl Known {
    /// Returns the known host of an instance.
    pub fn of(instance: &WindowsInstance) -> Self {
        let host = &instance.spec.host;
        let proven = instance.status.as_ref().and_then(|s| s.proven_at.as_ref());
        Self {
            name: instance.name_any(),
            address: host.address.clone(),
            port: host.port,
            pool: instance.spec.pool_ref.name.clone(),
            is_elsewhere: proven.is_some_and(|p| (&p.address, p.port) != (&host.address, host.port)),
        }
    }
}

/// Lookup of the existing hosts of all pools. Only the hosts with a given name, or with a given address and port, are searched, so that a pool does
/// not slow down the others.
pub trait KnownHosts {
    /// Returns the host with this name.
    fn named(&self, name: &str) -> Option<Known>;

    /// Returns the hosts whose entries have this address and port.
    fn at(&self, place: &Endpoint) -> Vec<Known>;
}

/// Hosts that have no instance yet, such as those of pools in mode Plan.
#[derive(Debug, Default)]
pub struct PlannedHosts {
    by_name: BTreeMap<String, Known>,
    by_place: BTreeMap<Endpoint, BTreeSet<String>>,
}

impl Extend<Known> for PlannedHosts {
    /// Adds hosts. Of several hosts with one name, the first stays.
    fn extend<I: IntoIterator<Item = Known>>(&mut self, hosts: I) {
        for known in hosts {
            if !self.by_name.contains_key(&known.name) {
                let place = (canonical(&known.address), known.port);
                self.by_place.entry(place).or_default().insert(known.name.clone());
                self.by_name.insert(known.name.clone(), known);
            }
        }
    }
}

impl KnownHosts for PlannedHosts {
    fn named(&self, name: &str) -> Option<Known> {
        self.by_name.get(name).cloned()
    }

    fn at(&self, place: &Endpoint) -> Vec<Known> {
        self.by_place.get(place).into_iter().flatten().filter_map(|name| self.named(name)).collect()
    }
}

/// Existing and planned hosts. A planned host that exists already is left out.
pub struct WithPlanned<'a> {
    /// Existing hosts.
    pub there: &'a (dyn KnownHosts + Sync),
    /// Planned hosts.
    pub planned: &'a PlannedHosts,
}

impl KnownHosts for WithPlanned<'_> {
    fn named(&self, name: &str) -> Option<Known> {
        self.there.named(name).or_else(|| self.planned.named(name))
    }

    fn at(&self, place: &Endpoint) -> Vec<Known> {
        let planned = self.planned.at(place).into_iter().filter(|k| self.there.named(&k.name).is_none());
        self.there.at(place).into_iter().chain(planned).collect()
    }
}

/// Lookups of host keys.
pub struct HostKeys<'a> {
    /// Reports whether a key of the host with this name is known other than from its entry.
    pub is_known: &'a dyn Fn(&str) -> bool,
    /// Parses a key that an entry declares; an error if it is invalid.
    pub read: &'a dyn Fn(&str) -> Result<(), String>,
}

/// Hosts that can be used, and entries that cannot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resolved {
    /// Hosts by name.
    pub hosts: BTreeMap<String, InstanceHost>,
    /// Origins of the hosts' entries, by name.
    pub origins: BTreeMap<String, Origin>,
    /// Entries that are not used.
    pub problems: Vec<EntryError>,
    /// Pools that have the hosts of refused entries, by the names of the entries.
    pub owners: BTreeMap<String, String>,
    /// Names of refused entries whose name, not only their address, belongs to a host of another pool.
    pub taken_names: BTreeSet<String>,
}

/// State of a host in the pool that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// The pool lists the host, or may list it because the pool cannot be read.
    Listed,
    /// The pool no longer lists the host, or is being deleted.
    Released,
    /// The pool does not exist, because a client has removed its finalizer.
    WithoutPool,
}

impl Resolved {
    /// Returns the entries that are refused only until their hosts move to this pool, because the pools that have the hosts release them. Updates
    /// the messages of these entries, and of entries whose hosts belong to a pool that does not exist. `state` returns the state of a host in its
    /// pool.
    pub fn pending_moves(&mut self, state: impl Fn(&str, &str) -> OwnerState) -> BTreeSet<String> {
        let mut going = BTreeSet::new();
        for problem in self.problems.iter_mut().filter(|p| self.taken_names.contains(&p.host)) {
            let host = &problem.host;
            let Some(pool) = self.owners.get(host) else { continue };
            problem.message = match state(pool, host) {
                OwnerState::Listed => continue,
                OwnerState::Released => {
                    going.insert(host.clone());
                    format!(
                        "host {host} still belongs to pool {pool}, which no longer lists the host or is being deleted: the host moves when that pool releases it"
                    )
                }
                OwnerState::WithoutPool => format!(
                    "host {host} still belongs to pool {pool}, which does not exist: create that pool again with this host and then move the host, or forget the host: `kubectl describe windowsinstance {host}` has the command"
                ),
            };
        }
        going
    }
}

/// Resolves the entries of a pool to hosts with the pool's settings filled in, and to problems. A faulty entry does not affect others. `known` looks
/// up the existing hosts of all pools, which keep their names and addresses.
pub fn resolve(
    pool: &str,
    spec: &WindowsNodePoolSpec,
    entries: &[Entry],
    known: &dyn KnownHosts,
    keys: &HostKeys<'_>,
) -> Resolved {
    let (mut hosts, mut problems) = (BTreeMap::<String, InstanceHost>::new(), Vec::new());
    let (mut origins, mut owners, mut taken_names) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    let mut entries: Vec<(&Entry, Option<Known>)> = entries.iter().map(|e| (e, known.named(&e.host.name))).collect();
    // Known hosts of this pool come first, so that a new entry with the same address cannot displace them.
    entries.sort_by_key(|(_, owner)| owner.as_ref().is_none_or(|k| k.pool != pool));

    let ssh = spec.ssh();
    // The API server has already checked this rule for hosts in the pool's own list.
    let is_strict = ssh.host_key_policy == Some(HostKeyPolicy::Strict) && ssh.known_hosts_secret_ref.is_none();
    let mut taken: BTreeMap<Endpoint, &str> = BTreeMap::new();
    let other_at = |place: &Endpoint| known.at(place).into_iter().find(|k| k.pool != pool && !k.is_elsewhere);
    let mut names = BTreeSet::new();
    for (Entry { host: entry, origin }, owner) in entries {
        let mut refuse = |reason, message| problems.push(EntryError { host: entry.name.clone(), reason, message });
        if !names.insert(entry.name.clone()) {
            refuse(Reason::HostConflict, format!("host {} is listed twice; remove one entry", entry.name));
            continue;
        }
        if let Some(owner) = owner.filter(|k| k.pool != pool) {
            owners.insert(entry.name.clone(), owner.pool.clone());
            taken_names.insert(entry.name.clone());
            refuse(
                Reason::HostConflict,
                format!("host {} already belongs to pool {}; remove it from one of the two", entry.name, owner.pool),
            );
            continue;
        }
        if let Some(Err(error)) = entry.host_key.as_deref().map(keys.read) {
            refuse(Reason::InvalidInventory, format!("host {}: hostKey: {error}", entry.name));
            continue;
        }
        if !is_address(&entry.address) {
            let message = format!(
                "host {}: {} is neither an IPv4 or IPv6 address nor a DNS name; correct the address",
                entry.name,
                api::text::quote(&entry.address, 253)
            );
            refuse(Reason::InvalidInventory, message);
            continue;
        }
        if let Some((field, problem)) = permitted::host_problem(entry) {
            refuse(Reason::InvalidInventory, format!("host {}: {field}: {problem}", entry.name));
            continue;
        }
        if is_strict && entry.host_key.is_none() && !(keys.is_known)(&entry.name) {
            let problem = HostKeyProblem::NotDeclared { address: entry.address.clone() };
            refuse(problem.reason(), format!("host {}: {problem}", entry.name));
            continue;
        }
        let port = entry.port.unwrap_or_else(|| i32::from(ssh.port()));
        let place = (canonical(&entry.address), port);
        let own = taken.get(&place).map(|name| (*name).to_owned());
        let other = if own.is_none() { other_at(&place) } else { None };
        owners.extend(other.iter().map(|k| (entry.name.clone(), k.pool.clone())));
        if let Some(other) = own.or_else(|| other.map(|k| format!("{} of pool {}", k.name, k.pool))) {
            let message = format!(
                "host {}: address {} port {port} already belongs to {other}; remove one of the two",
                entry.name, entry.address
            );
            refuse(Reason::HostConflict, message);
            continue;
        }
        taken.insert(place, &entry.name);
        origins.extend(origin.clone().map(|origin| (entry.name.clone(), origin)));
        hosts.insert(
            entry.name.clone(),
            InstanceHost {
                name: entry.name.clone(),
                address: entry.address.clone(),
                port,
                username: entry.username.clone().unwrap_or_else(|| ssh.username().into()),
                host_key: entry.host_key.clone(),
                private_keys: ssh.private_keys(),
                labels: entry.labels.clone().unwrap_or_default(),
                taints: entry.taints.clone().unwrap_or_default(),
            },
        );
    }
    problems.sort_by(|a, b| a.host.cmp(&b.host));
    Resolved { hosts, origins, problems, owners, taken_names }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, sync::Arc};

    use super::*;
    use crate::inventory::fleet::Fleet;
    use api::{Host, Inventory, SecretKeyRef, Ssh};
    use proptest::prelude::*;

    fn host(name: &str, address: &str) -> Host {
        Host { name: name.into(), address: address.into(), ..Host::default() }
    }
    fn spec(hosts: Vec<Host>) -> WindowsNodePoolSpec {
        WindowsNodePoolSpec {
            inventory: Inventory { hosts: Some(hosts), ..Inventory::default() },
            ..WindowsNodePoolSpec::default()
        }
    }
    /// Resolves the list in the spec of pool `p`.
    fn resolved(spec: &WindowsNodePoolSpec, known: &dyn KnownHosts) -> Resolved {
        let entries: Vec<Entry> = spec.hosts().iter().map(|h| Entry { host: h.clone(), origin: None }).collect();
        let read = |key: &str| if key.len() > 20 { Ok(()) } else { Err("it is not a key".to_owned()) };
        resolve("p", spec, &entries, known, &HostKeys { is_known: &|name| name == "pinned", read: &read })
    }
    fn planned(hosts: impl IntoIterator<Item = Known>) -> PlannedHosts {
        let mut planned = PlannedHosts::default();
        planned.extend(hosts);
        planned
    }
    fn known(name: &str, address: &str, pool: &str) -> Known {
        Known { name: name.into(), address: address.into(), port: 22, pool: pool.into(), is_elsewhere: false }
    }

    #[test]
    fn an_invalid_entry_affects_only_itself() {
        let bad_key = Host { host_key: Some("SHA256:short".into()), ..host("k", "10.0.0.9") };
        let bad_label = |key: &str, value: &str| Host {
            labels: Some([(key.to_owned(), value.to_owned())].into()),
            ..host("l", "10.0.0.8")
        };
        let other_port = Host { port: Some(2222), ..host("b", "10.0.0.1") };
        let labelled = |key, value| vec![host("a", "10.0.0.1"), bad_label(key, value)];
        let a = || vec![host("a", "10.0.0.1")];
        let two = |name: &str, address: &str| vec![host("a", "10.0.0.1"), host(name, address)];
        let spelled = [("a", "fd00::1"), ("b", "fd00:0:0::1"), ("c", "X.example.com"), ("d", "x.example.com.")];
        let faulty = [("a", "10.0.0.256"), ("b", "-x.example.com"), ("c", "a..b")];
        let all = |hosts: &[(&str, &str)]| hosts.iter().map(|(name, address)| host(name, address)).collect();
        let elsewhere = Known { is_elsewhere: true, ..known("x", "10.0.0.1", "q") };
        for (about, hosts, others, expected) in [
            ("two valid entries", two("b", "10.0.0.2"), vec![], "a, b"),
            ("same address", two("b", "10.0.0.1"), vec![], "a, b: HostConflict"),
            ("a label that no Node can have", labelled("line", "x y"), vec![], "a, l: InvalidInventory"),
            (
                "a label of the operating system",
                labelled("kubernetes.io/os", "linux"),
                vec![],
                "a, l: InvalidInventory",
            ),
            ("same address, other port", vec![host("a", "10.0.0.1"), other_port], vec![], "a, b"),
            ("same address, written otherwise", all(&spelled), vec![], "a, c, b: HostConflict, d: HostConflict"),
            (
                "a new host is first in the list",
                all(&[("new", "10.0.0.1"), ("old", "10.0.0.1")]),
                vec![known("old", "10.0.0.1", "p")],
                "old, new: HostConflict",
            ),
            ("address in another pool", a(), vec![known("x", "10.0.0.1", "q")], "a: HostConflict"),
            ("address in another pool, whose host was reached elsewhere", a(), vec![elsewhere], "a"),
            ("name in another pool", two("b", "10.0.0.2"), vec![known("a", "10.9.9.9", "q")], "b, a: HostConflict"),
            ("the host has an instance of this pool", a(), vec![known("a", "10.0.0.1", "p")], "a"),
            ("listed twice", two("a", "10.0.0.2"), vec![], "a, a: HostConflict"),
            ("bad key", vec![bad_key], vec![], "k: InvalidInventory"),
            ("bad address", all(&faulty), vec![], "a: InvalidInventory, b: InvalidInventory, c: InvalidInventory"),
        ] {
            let Resolved { hosts, problems, .. } = resolved(&spec(hosts), &planned(others));
            let refused = problems.iter().map(|p| format!("{}: {}", p.host, p.reason.as_str()));
            assert_eq!(hosts.into_keys().chain(refused).collect::<Vec<_>>().join(", "), expected, "{about}");
        }
    }

    /// Lookup of known hosts that records its queries.
    struct Counting<'a> {
        fleet: &'a Fleet,
        asked: RefCell<Vec<String>>,
    }

    impl KnownHosts for Counting<'_> {
        fn named(&self, name: &str) -> Option<Known> {
            self.asked.borrow_mut().push(name.to_owned());
            self.fleet.named(name)
        }
        fn at(&self, place: &Endpoint) -> Vec<Known> {
            self.asked.borrow_mut().push(format!("{}:{}", place.0, place.1));
            self.fleet.at(place)
        }
    }

    #[test]
    fn a_pool_looks_up_only_its_own_names_and_addresses() {
        let instance = |n: u32, pool: &str| {
            let address = format!("10.0.{}.{}", n / 250, n % 250);
            let host = InstanceHost { address, port: 22, ..InstanceHost::default() };
            let pool_ref = api::PoolRef { name: pool.into() };
            let spec = api::WindowsInstanceSpec { host, pool_ref, ..api::WindowsInstanceSpec::default() };
            Arc::new(WindowsInstance::new(&format!("w{n}"), spec))
        };
        let fleet: Fleet = (0..5000).map(|n| instance(n, if n < 10 { "p" } else { "q" })).collect();
        // The last two have an address and a name of the other pool.
        let hosts: Vec<Host> = (0..10)
            .map(|n| host(&format!("w{n}"), &format!("10.0.0.{n}")))
            .chain([host("new", "10.0.0.10"), host("w11", "10.9.9.9")])
            .collect();
        let counting = Counting { fleet: &fleet, asked: RefCell::default() };
        let resolved = resolved(&spec(hosts.clone()), &counting);
        let refused: Vec<&str> = resolved.problems.iter().map(|p| p.message.as_str()).collect();
        assert!(refused[0].contains("already belongs to w10 of pool q"), "{refused:?}");
        assert!(refused[1].contains("host w11 already belongs to pool q"), "{refused:?}");
        assert_eq!((resolved.hosts.len(), refused.len()), (10, 2));

        let mut asked = counting.asked.into_inner();
        asked.sort();
        // The entry with a name of the other pool is refused before its address matters.
        let own = hosts.iter().map(|h| h.name.clone());
        let places = hosts.iter().filter(|h| h.name != "w11").map(|h| format!("{}:22", h.address));
        let mut expected: Vec<String> = own.chain(places).collect();
        expected.sort();
        assert_eq!(asked, expected);
    }

    /// Covers the state after one `kubectl apply` of both pools: the other pool has not released the host yet.
    #[test]
    fn a_host_that_its_pool_no_longer_lists_is_a_pending_move() {
        let known = [("a", 1, "q"), ("b", 2, "q"), ("other", 3, "q"), ("d", 4, "gone")]
            .map(|(name, n, pool)| known(name, &format!("10.0.0.{n}"), pool));
        let hosts = [("a", 1), ("b", 2), ("c", 3), ("d", 4)].map(|(name, n)| host(name, &format!("10.0.0.{n}")));
        let mut resolved = resolved(&spec(hosts.to_vec()), &planned(known));
        // Pool q lists b and no longer a. The address of c belongs to another of its hosts.
        let state = |pool: &str, host: &str| match (pool, host) {
            ("q", "b") => OwnerState::Listed,
            ("q", _) => OwnerState::Released,
            _ => OwnerState::WithoutPool,
        };
        let going = resolved.pending_moves(state);
        assert_eq!(going, ["a".to_owned()].into());
        let messages: Vec<&str> = resolved.problems.iter().map(|p| p.message.as_str()).collect();
        assert!(messages[0].contains("which no longer lists the host"), "{messages:?}");
        assert!(messages[1].contains("remove it from one of the two"), "{messages:?}");
        assert!(messages[2].contains("already belongs to other of pool q"), "{messages:?}");
        assert!(messages[3].contains("pool gone, which does not exist"), "{messages:?}");
    }

    #[test]
    fn planned_hosts_keep_names_and_addresses_unless_they_exist_already() {
        let there = planned([known("a", "10.0.0.1", "p")]);
        let planned = planned([known("a", "10.0.0.9", "q"), known("b", "10.0.0.2", "q"), known("c", "10.0.0.1", "q")]);
        let both = WithPlanned { there: &there, planned: &planned };
        let at = |address: &str| both.at(&(address.into(), 22)).into_iter().map(|k| k.name).collect::<Vec<_>>();
        assert_eq!(both.named("a").map(|k| k.pool).as_deref(), Some("p"));
        assert_eq!(both.named("b").map(|k| k.pool).as_deref(), Some("q"));
        assert_eq!(at("10.0.0.1"), ["a", "c"]);
        assert_eq!(at("10.0.0.2"), ["b"]);
        assert!(at("10.0.0.9").is_empty(), "the host exists at another address");
    }

    #[test]
    fn the_pools_settings_are_filled_in_unless_an_entry_has_its_own() {
        let key = |name: &str| SecretKeyRef { name: name.into(), key: None };
        let mut spec = spec(vec![
            host("a", "10.0.0.1"),
            Host { port: Some(2222), username: Some("bob".into()), ..host("b", "10.0.0.2") },
        ]);
        let seen = |spec: &WindowsNodePoolSpec, name: &str| {
            let host = resolved(spec, &PlannedHosts::default()).hosts.remove(name).unwrap();
            (host.port, host.username, host.private_keys.into_iter().map(|key| key.name).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(seen(&spec, "a"), (22, "Administrator".into(), "cloud-private-key".into()));
        spec.ssh = Some(Ssh {
            port: Some(22022),
            username: Some("core".into()),
            private_key_secret_refs: Some(vec![key("x"), key("y")]),
            ..Ssh::default()
        });
        assert_eq!(seen(&spec, "a"), (22022, "core".into(), "x y".into()));
        assert_eq!(seen(&spec, "b"), (2222, "bob".into(), "x y".into()));
    }

    #[test]
    fn strict_host_keys_apply_to_entries_without_a_known_key() {
        let key = "SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";
        let with_key = Host { host_key: Some(key.into()), ..host("a", "10.0.0.1") };
        let mut spec = spec(vec![with_key, host("b", "10.0.0.2"), host("pinned", "10.0.0.3")]);
        spec.ssh = Some(Ssh { host_key_policy: Some(HostKeyPolicy::Strict), ..Ssh::default() });
        let Resolved { hosts, problems, .. } = resolved(&spec, &PlannedHosts::default());
        assert_eq!(hosts.into_keys().collect::<Vec<_>>(), ["a", "pinned"]);
        assert_eq!((problems[0].host.as_str(), problems[0].reason.as_str()), ("b", "HostKeyUnknown"));
    }

    proptest! {
        #[test]
        fn any_entries_are_used_or_refused(entries in proptest::collection::vec((".{0,8}", ".{0,20}"), 0..8)) {
            let hosts: Vec<Host> = entries.iter().map(|(n, a)| host(n, a)).collect();
            let found = resolved(&spec(hosts.clone()), &PlannedHosts::default());
            prop_assert_eq!(found.hosts.len() + found.problems.len(), hosts.len());
        }
    }
}
