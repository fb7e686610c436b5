//! State of an idle cluster, and checks that nothing was left behind. Only [`IdleState::of`] does I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use anyhow::Result;
use api::{WindowsInstance, names::SERVICES_CONFIG_MAP_PREFIX};
use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Node, Secret},
    events::v1::Event,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use serde::de::DeserializeOwned;
use wnp_core::csr::is_decided;

use super::super::{process::Usage, world::World};

/// Allowed growth of memory between half-time and end. Allocators keep memory for later use.
const MEMORY_MIB: f64 = 32.0;
/// Allowed growth of open files: the number of connections to the API server varies.
const FILES: usize = 4;
/// Number of versions in use after two changes of all hosts: the current version and the previous one.
pub(super) const VERSIONS: usize = 2;
/// Maximum number of objects' names in an error.
const MAX_NAMES: usize = 10;

/// Number of certificate requests of a host that joins: one of wicd, and two of kubelet, as a client and as a server. A change needs none, and a
/// renewal is due after days.
const REQUESTS_OF_JOIN: u32 = 3;
/// Maximum number of Kubernetes events about a host that joins.
const EVENTS_OF_JOIN: u32 = 4;
/// Maximum number of Kubernetes events about a removed host.
const EVENTS_OF_REMOVAL: u32 = 6;
/// Maximum number of Kubernetes events about a changed host.
const EVENTS_OF_CHANGE: u32 = 4;
/// Maximum number of Kubernetes events about an interrupted operation.
const EVENTS_OF_INTERRUPTION: u32 = 8;

const OPEN_CONNECTIONS: &str = "windows_node_pool_ssh_connections_open";

/// Causes of certificate requests and events so far, as numbers of affected hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Causes {
    pub(super) joins: u32,
    pub(super) removals: u32,
    pub(super) changes: u32,
    /// Hosts that were cut off, restarted, or in an operation when the operator or the API server ended.
    pub(super) interruptions: u32,
}

impl Causes {
    /// Returns the maximum number of certificate requests from these causes. An interrupted join may begin again.
    pub(super) fn requests(self) -> u32 {
        REQUESTS_OF_JOIN * (self.joins + self.interruptions)
    }

    /// Returns the maximum number of events from these causes.
    pub(super) fn events(self) -> u32 {
        EVENTS_OF_JOIN * self.joins
            + EVENTS_OF_REMOVAL * self.removals
            + EVENTS_OF_CHANGE * self.changes
            + EVENTS_OF_INTERRUPTION * self.interruptions
    }
}

/// State of an idle cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct IdleState {
    pub(super) rss_mib: f64,
    /// Open files and connections of the operator.
    pub(super) files: usize,
    open_connections: f64,
    /// Names of the objects of each kind, without those in the fields below.
    objects: BTreeMap<String, BTreeSet<String>>,
    versions: BTreeSet<String>,
    undecided_requests: BTreeSet<String>,
    pub(super) requests: u32,
    pub(super) events: u32,
}

impl IdleState {
    /// Reads the current state.
    pub(super) async fn of(world: &World) -> Result<Self> {
        let client = &world.client;
        let mut objects = BTreeMap::from([
            names::<Node>(client).await?,
            names::<WindowsInstance>(client).await?,
            names::<ConfigMap>(client).await?,
            names::<Secret>(client).await?,
            names::<Lease>(client).await?,
            names::<Role>(client).await?,
            names::<RoleBinding>(client).await?,
            names::<ClusterRole>(client).await?,
            names::<ClusterRoleBinding>(client).await?,
        ]);
        let is_version =
            |name: &String| name.rsplit('/').next().is_some_and(|n| n.starts_with(SERVICES_CONFIG_MAP_PREFIX));
        let config_maps = objects.remove(&*ConfigMap::kind(&())).unwrap_or_default();
        let (versions, config_maps) = config_maps.into_iter().partition(is_version);
        objects.insert(ConfigMap::kind(&()).into_owned(), config_maps);
        let requests = Api::<CertificateSigningRequest>::all(client.clone()).list(&ListParams::default()).await?.items;
        let (_, events) = names::<Event>(client).await?;
        let pid = world.operator.pid();
        Ok(Self {
            rss_mib: Usage::of(pid)?.rss_mib,
            files: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            open_connections: world.operator.metric(OPEN_CONNECTIONS).await?,
            objects,
            versions,
            undecided_requests: requests.iter().filter(|csr| !is_decided(csr)).map(ResourceExt::name_any).collect(),
            requests: u32::try_from(requests.len())?,
            events: u32::try_from(events.len())?,
        })
    }

    /// Lists what is still pending.
    pub(super) fn pending(&self) -> Vec<String> {
        let mut pending = Vec::new();
        if self.open_connections > 0.0 {
            pending.push(format!("{} open SSH connections", self.open_connections));
        }
        if !self.undecided_requests.is_empty() {
            pending.push(format!("undecided certificate requests: {}", list(&self.undecided_requests)));
        }
        if self.versions.len() > VERSIONS {
            let versions = list(&self.versions);
            pending.push(format!("{} versions, of which {VERSIONS} are in use: {versions}", self.versions.len()));
        }
        pending
    }

    /// Lists objects that did not exist after the hosts had joined, and numbers that `causes` do not explain.
    pub(super) fn left_behind(&self, joined: &Self, causes: Causes) -> Vec<String> {
        let mut left = self.pending();
        let none = BTreeSet::new();
        for (kind, now) in &self.objects {
            let new: BTreeSet<String> = now.difference(joined.objects.get(kind).unwrap_or(&none)).cloned().collect();
            if !new.is_empty() {
                left.push(format!("{} of kind {kind}: {}", new.len(), list(&new)));
            }
        }
        for (what, number, most) in
            [("certificate requests", self.requests, causes.requests()), ("events", self.events, causes.events())]
        {
            if number > most {
                left.push(format!("{number} {what}, more than {most}"));
            }
        }
        left
    }

    /// Lists the resources whose usage has grown since `then`.
    pub(super) fn grown(&self, then: &Self) -> Vec<String> {
        let mut grown = Vec::new();
        if self.rss_mib > then.rss_mib + MEMORY_MIB {
            grown.push(format!("memory in MiB: {:.0}, then {:.0}", then.rss_mib, self.rss_mib));
        }
        if self.files > then.files + FILES {
            grown.push(format!("open files: {}, then {}", then.files, self.files));
        }
        grown
    }
}

fn list(names: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
    let more = if names.len() > MAX_NAMES { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Returns the kind, and the names of all its objects, with their namespaces.
async fn names<K>(client: &Client) -> Result<(String, BTreeSet<String>)>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let list = Api::<K>::all(client.clone()).list_metadata(&ListParams::default()).await?;
    let name = |object: &kube::core::PartialObjectMeta<K>| match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    };
    Ok((K::kind(&()).into_owned(), list.items.iter().map(name).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn objects(config_maps: &[&str]) -> IdleState {
        IdleState { objects: BTreeMap::from([("ConfigMap".to_owned(), set(config_maps))]), ..IdleState::default() }
    }

    #[test]
    fn new_objects_and_unexplained_numbers_are_left_behind() {
        let joined = objects(&["a/one", "a/two"]);
        // One join explains 3 requests and 4 events.
        let causes = Causes { joins: 1, ..Causes::default() };
        let eleven: Vec<String> = (10..21).map(|n| n.to_string()).collect();
        let eleven: Vec<&str> = eleven.iter().map(String::as_str).collect();
        for (now, expected) in [
            (joined.clone(), vec![]),
            (objects(&["a/two"]), vec![]),
            // The number of objects is the same, but one is new.
            (objects(&["a/two", "b/one"]), vec!["1 of kind ConfigMap: b/one"]),
            (objects(&eleven), vec!["11 of kind ConfigMap: 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, …"]),
            (IdleState { requests: 3, events: 4, ..joined.clone() }, vec![]),
            (
                IdleState { requests: 4, events: 5, ..joined.clone() },
                vec!["4 certificate requests, more than 3", "5 events, more than 4"],
            ),
            (IdleState { versions: set(&["services-1", "services-2"]), ..joined.clone() }, vec![]),
            (
                IdleState { versions: set(&["v1", "v2", "v3"]), ..joined.clone() },
                vec!["3 versions, of which 2 are in use: v1, v2, v3"],
            ),
            (
                IdleState { undecided_requests: set(&["csr-1"]), ..joined.clone() },
                vec!["undecided certificate requests: csr-1"],
            ),
            (IdleState { open_connections: 1.0, ..joined.clone() }, vec!["1 open SSH connections"]),
            // Memory and files of different processes cannot be compared.
            (IdleState { rss_mib: 1000.0, files: 1000, ..joined.clone() }, vec![]),
        ] {
            assert_eq!(now.left_behind(&joined, causes), expected, "{now:?}");
        }
        let without = IdleState::default();
        assert_eq!(joined.left_behind(&without, causes), ["2 of kind ConfigMap: a/one, a/two"]);
    }

    #[test]
    fn a_process_may_grow_a_little() {
        let process = |rss_mib, files| IdleState { rss_mib, files, ..IdleState::default() };
        let half = process(100.0, 20);
        for (end, expected) in [
            (process(131.0, 24), vec![]),
            (process(90.0, 10), vec![]),
            (process(133.0, 20), vec!["memory in MiB: 100, then 133"]),
            (process(100.0, 25), vec!["open files: 20, then 25"]),
        ] {
            assert_eq!(end.grown(&half), expected);
        }
    }

    #[test]
    fn each_cause_has_its_bound() {
        for (causes, requests, events) in [
            (Causes::default(), 0, 0),
            (Causes { joins: 100, ..Causes::default() }, 300, 400),
            (Causes { removals: 1, ..Causes::default() }, 0, 6),
            (Causes { changes: 1, ..Causes::default() }, 0, 4),
            (Causes { joins: 1, interruptions: 2, ..Causes::default() }, 9, 20),
        ] {
            assert_eq!((causes.requests(), causes.events()), (requests, events), "{causes:?}");
        }
    }
}
