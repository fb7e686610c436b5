//! Watch caches of the Machines of OpenShift's Machine API and of Cluster API.

use std::collections::{BTreeMap, BTreeSet};

use api::MachineGroup;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::reflector::{ObjectRef, Store},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use wnp_core::machines::{
    health_check::HealthCheck,
    read::{self, Machine, MachineSet},
};

/// Machine APIs with their known versions, the newest first.
pub(crate) const APIS: [(MachineGroup, &str, &[&str]); 2] = [
    (MachineGroup::OpenShift, "machine.openshift.io", &["v1beta1"]),
    (MachineGroup::ClusterApi, "cluster.x-k8s.io", &["v1beta2", "v1beta1"]),
];

/// Plural name of MachineHealthCheck, the kind that replaces Machines whose Nodes are not Ready.
pub(crate) const HEALTH_CHECKS: &str = "machinehealthchecks";

/// Watch caches of all Machine APIs.
#[derive(Default)]
pub(crate) struct Machines {
    watched: Mutex<BTreeMap<MachineGroup, Watched>>,
    /// Wakes the task that waits for changes on which pools of Machines may depend.
    pub(crate) changed: Notify,
}

/// Filled watch caches of one API.
#[derive(Clone)]
pub(crate) struct Watched {
    /// Kind of Machines.
    pub kind: ApiResource,
    pub machines: Store<DynamicObject>,
    pub sets: Store<DynamicObject>,
    /// MachineHealthChecks, if the API has that kind.
    pub health_checks: Option<Store<DynamicObject>>,
}

impl Watched {
    /// Returns the reference to a Machine of this API.
    pub(crate) fn reference(&self, namespace: &str, name: &str) -> ObjectRef<DynamicObject> {
        ObjectRef::new_with(name, self.kind.clone()).within(namespace)
    }
}

impl Machines {
    /// Signals a change that pools of Machines may depend on.
    pub(crate) fn notify_change(&self) {
        self.changed.notify_one();
    }

    /// Returns the watch caches of an API, if they are filled.
    pub(crate) fn of(&self, group: MachineGroup) -> Option<Watched> {
        self.watched.lock().get(&group).cloned()
    }

    /// Sets or removes the watch caches of an API.
    pub(crate) fn set(&self, group: MachineGroup, watched: Option<Watched>) {
        let mut all = self.watched.lock();
        match watched {
            Some(watched) => all.insert(group, watched),
            None => all.remove(&group),
        };
    }

    /// Returns the APIs whose watch caches are filled.
    pub(crate) fn groups(&self) -> BTreeSet<MachineGroup> {
        self.watched.lock().keys().copied().collect()
    }

    /// Returns the creation time of the Machine `<namespace>/<name>`, if it is known.
    pub(crate) fn created(&self, machine: &str) -> Option<Timestamp> {
        let groups = self.groups();
        groups.into_iter().flat_map(|g| self.machines(g)).find(|m| m.key() == machine).and_then(|m| m.created)
    }

    /// Returns the Machine with this name, DNS name or Node name, as `<namespace>/<name>`.
    pub(crate) fn named(&self, name: &str) -> Option<String> {
        let has = |m: &Machine| {
            let dns = |a: &&read::Address| a.kind.ends_with("DNS") || a.kind == "Hostname";
            let names = m.addresses.iter().filter(dns).map(|a| a.address.as_str()).chain(m.node.as_deref());
            names.chain([m.name.as_str()]).any(|n| n.eq_ignore_ascii_case(name))
        };
        self.groups().into_iter().flat_map(|g| self.machines(g)).find(has).map(|m| m.key())
    }

    pub(crate) fn machines(&self, group: MachineGroup) -> Vec<Machine> {
        let watched = self.of(group);
        watched.map(|w| w.machines.state().iter().map(|o| Machine::read(o, group)).collect()).unwrap_or_default()
    }

    /// Returns the addresses of the Machine `<namespace>/<name>` from its status, each with its type. The cloud reports them, not the host.
    pub(crate) fn addresses(&self, machine: &str) -> Vec<(String, String)> {
        let Some((namespace, name)) = machine.split_once('/') else { return Vec::new() };
        let found = self.groups().into_iter().filter_map(|group| {
            let watched = self.of(group)?;
            let object = watched.machines.get(&watched.reference(namespace, name))?;
            Some(Machine::read(&object, group))
        });
        found.flat_map(|m| m.addresses).map(|a| (a.kind, a.address)).collect()
    }

    /// Returns the title of a MachineHealthCheck that would replace the Machine `<namespace>/<name>` in the current state of its Node.
    pub(crate) fn health_check(&self, machine: &str, node: Option<&Node>) -> Option<String> {
        let (namespace, name) = machine.split_once('/')?;
        self.groups().into_iter().find_map(|group| {
            let watched = self.of(group)?;
            let checks = watched.health_checks.as_ref()?.state();
            let object = watched.machines.get(&watched.reference(namespace, name)).filter(|_| !checks.is_empty())?;
            let machine = Machine::read(&object, group);
            let mut covering: Vec<String> = checks
                .iter()
                .filter_map(|c| HealthCheck::read(c, group))
                .filter(|c| c.covers(&machine, node))
                .map(|c| c.title())
                .collect();
            covering.sort();
            covering.into_iter().next()
        })
    }

    pub(crate) fn sets(&self, group: MachineGroup) -> Vec<MachineSet> {
        let watched = self.of(group);
        watched.map(|w| w.sets.state().iter().map(|o| MachineSet::read(o, group)).collect()).unwrap_or_default()
    }
}

/// Reports whether the Machine `<namespace>/<name>` no longer exists, and with it its host. Returns false if that is not certain: the Machine's `own`
/// API must answer, because the other API may never have had the Machine.
pub(crate) async fn is_gone(client: &Client, own: MachineGroup, machine: &str) -> bool {
    let Some((namespace, name)) = machine.split_once('/') else { return false };
    for (group, ..) in APIS {
        let resource = match served(client, group).await {
            Ok(Some(resource)) => resource,
            Ok(None) if group != own => continue,
            Ok(None) | Err(_) => return false,
        };
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource.machines);
        // The pool may have been switched from one API to the other.
        if !matches!(api.get_metadata_opt(name).await, Ok(None)) {
            return false;
        }
    }
    true
}

/// Kinds of an API, in a version that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub machines: ApiResource,
    pub sets: ApiResource,
    pub health_checks: Option<ApiResource>,
}

/// Queries the served kinds of an API, in its newest known version. Returns `None` if no known version serves both Machines and MachineSets.
pub(crate) async fn served(client: &Client, group: MachineGroup) -> kube::Result<Option<Served>> {
    for (_, name, versions) in APIS.iter().filter(|a| a.0 == group) {
        for version in *versions {
            let resources = match client.list_api_group_resources(&format!("{name}/{version}")).await {
                Ok(list) => list.resources,
                Err(kube::Error::Api(status)) if status.code == 404 => continue,
                Err(error) => return Err(error),
            };
            // A CRD that is being deleted no longer offers `create`. Its objects are deleted with it, which says nothing about their hosts.
            let is_served =
                |plural: &str| resources.iter().any(|r| r.name == plural && r.verbs.iter().any(|v| v == "create"));
            if ["machines", "machinesets"].iter().all(|p| is_served(p)) {
                let of = |kind: &str, plural: &str| {
                    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(name, version, kind), plural)
                };
                return Ok(Some(Served {
                    machines: of("Machine", "machines"),
                    sets: of("MachineSet", "machinesets"),
                    health_checks: is_served(HEALTH_CHECKS).then(|| of("MachineHealthCheck", HEALTH_CHECKS)),
                }));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_api::FakeApi;

    const OPENSHIFT: &str = "/apis/machine.openshift.io/v1beta1";
    const CLUSTER_APIS: [&str; 2] = ["/apis/cluster.x-k8s.io/v1beta2", "/apis/cluster.x-k8s.io/v1beta1"];

    fn serves(api: &FakeApi, path: &str) {
        let kinds = ["machines", "machinesets"].map(|plural| {
            json!({"name": plural, "singularName": "", "namespaced": true, "kind": "x", "verbs": ["create", "get"]})
        });
        api.on("GET", path, 200, json!({"groupVersion": "x", "resources": kinds}));
    }

    fn is_missing(api: &FakeApi, path: &str) {
        api.fail("GET", path, 404, "NotFound", "there is none", Value::Null);
    }

    /// Cluster API may be removed from a cluster that also has OpenShift's Machine API.
    #[tokio::test]
    async fn a_machine_is_gone_only_if_its_own_api_says_so() {
        let api = FakeApi::new();
        serves(&api, OPENSHIFT);
        is_missing(&api, &format!("{OPENSHIFT}/namespaces/ns/machines/m"));
        for path in CLUSTER_APIS {
            is_missing(&api, path);
        }
        assert!(!is_gone(&api.client(), MachineGroup::ClusterApi, "ns/m").await);
        assert!(is_gone(&api.client(), MachineGroup::OpenShift, "ns/m").await);
        assert!(!is_gone(&api.client(), MachineGroup::OpenShift, "m").await, "it is not the name of a Machine");
        // The Machine exists in the API that the pool used before.
        api.forget("GET", CLUSTER_APIS[0]);
        serves(&api, CLUSTER_APIS[0]);
        let there = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "m"}});
        api.on("GET", &format!("{}/namespaces/ns/machines/m", CLUSTER_APIS[0]), 200, there);
        assert!(!is_gone(&api.client(), MachineGroup::OpenShift, "ns/m").await);
    }
}
