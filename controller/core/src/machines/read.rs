//! Fields of Machines and MachineSets that the operator reads, the same for both APIs. Pure.
//!
//! OpenShift's Machine API marks Machines that run Windows with the label `machine.openshift.io/os-id=Windows`. Cluster API has no such label. For
//! its Machines, the label of OpenShift counts as well (OpenShift keeps the label when a MachineSet moves to Cluster API), and so does
//! `node.cluster.x-k8s.io/os=windows`: Cluster API propagates labels of this domain to Nodes.

use std::{collections::BTreeMap, fmt};

use api::{MachineGroup, MachineSetRef, names::key};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{ResourceExt, core::DynamicObject};
use serde::Deserialize;

use super::MACHINE_API;

/// Label of a Machine of Cluster API with its operating system.
pub const CLUSTER_API_OS: &str = "node.cluster.x-k8s.io/os";

/// Source of Machines: a MachineSet or, without a name, all Machines of a namespace that no MachineSet owns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// API of the Machines.
    pub group: MachineGroup,
    /// Namespace of the Machines.
    pub namespace: String,
    /// Name of the MachineSet. `None` for the Machines that no MachineSet owns.
    pub set: Option<String>,
}

impl Source {
    /// Returns the source that a pool names.
    pub fn of(reference: &MachineSetRef) -> Self {
        Self {
            group: reference.group.unwrap_or_default(),
            namespace: reference.namespace.clone().unwrap_or_else(|| MACHINE_API.into()),
            set: reference.name.clone(),
        }
    }

    /// Returns the reference with which a pool names the source.
    pub fn reference(&self) -> MachineSetRef {
        let group = (self.group != MachineGroup::default()).then_some(self.group);
        let namespace = (self.namespace != MACHINE_API).then(|| self.namespace.clone());
        MachineSetRef { group, namespace, name: self.set.clone() }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let api = match self.group {
            MachineGroup::OpenShift => "",
            MachineGroup::ClusterApi => "Cluster API ",
        };
        match &self.set {
            Some(set) => write!(f, "{api}MachineSet {}/{set}", self.namespace),
            None => write!(f, "{api}Machines of {}", self.namespace),
        }
    }
}

/// A Machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Source of the Machine.
    pub source: Option<Source>,
    /// Name of the Machine.
    pub name: String,
    /// UID of the Machine.
    pub uid: String,
    /// Time when the Machine was created.
    pub created: Option<Timestamp>,
    /// True if the Machine runs Windows.
    pub windows: bool,
    /// True if a user has excluded the Machine from the operator.
    pub ignored: bool,
    /// Labels, which the selectors of MachineHealthChecks match.
    pub labels: BTreeMap<String, String>,
    /// Annotations, which may exclude the Machine from every MachineHealthCheck.
    pub annotations: BTreeMap<String, String>,
    /// True if the Machine is being deleted.
    pub deleting: bool,
    /// Provider ID in the spec of the Machine, not validated.
    pub provider_id: Option<String>,
    /// Phase of the Machine.
    pub phase: String,
    /// Addresses of the Machine, with their types.
    pub addresses: Vec<Address>,
    /// Name of the Machine's Node.
    pub node: Option<String>,
    /// Conditions that the Machine's controllers report. A MachineHealthCheck of Cluster API may depend on them.
    pub conditions: Vec<Condition>,
}

/// A condition of a Machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Condition {
    /// Type of the condition.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Status of the condition: `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: String,
}

/// An address of a Machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Address {
    /// Type of the address: `InternalIP`, `InternalDNS` and others.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// IP address or DNS name.
    #[serde(default)]
    pub address: String,
}

/// A MachineSet.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineSet {
    /// MachineSet as a source of hosts.
    pub source: Source,
    /// True if the Machines of the MachineSet run Windows.
    pub windows: bool,
    /// True if a user has excluded the MachineSet, so that it needs no pool.
    pub ignored: bool,
    /// Desired number of Machines.
    pub replicas: usize,
    /// Secret with the user data of the Machines, if the MachineSet names one.
    pub user_data: Option<String>,
    /// True if the MachineSet is being deleted.
    pub deleting: bool,
    /// Reference to the MachineSet, for events.
    pub reference: ObjectReference,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct MachineStatus {
    phase: Option<String>,
    addresses: Vec<Address>,
    node_ref: Option<NodeRef>,
    conditions: Vec<Condition>,
}

#[derive(Deserialize, Default)]
struct NodeRef {
    name: Option<String>,
}

impl Machine {
    /// Reads a Machine. A malformed provider ID or status counts as missing, because other controllers write them.
    pub fn read(object: &DynamicObject, group: MachineGroup) -> Self {
        let status = object.data.get("status").and_then(|s| MachineStatus::deserialize(s).ok()).unwrap_or_default();
        let set = object.owner_references().iter().find(|o| o.kind == "MachineSet").map(|o| o.name.clone());
        let namespace = object.namespace().unwrap_or_default();
        Self {
            source: Some(Source { group, namespace, set }),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            created: object.creation_timestamp().map(|t| t.0),
            windows: is_windows(|key| object.labels().get(key).map(String::as_str), group),
            ignored: is_ignored(object),
            labels: object.labels().clone(),
            annotations: object.annotations().clone(),
            deleting: object.metadata.deletion_timestamp.is_some(),
            provider_id: object
                .data
                .pointer("/spec/providerID")
                .and_then(|v| v.as_str())
                .filter(|id| !id.is_empty())
                .map(Into::into),
            phase: status.phase.unwrap_or_default(),
            addresses: status.addresses,
            node: status.node_ref.and_then(|n| n.name).filter(|n| !n.is_empty()),
            conditions: status.conditions,
        }
    }

    /// Returns the key of the Machine: `<namespace>/<name>`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.source.as_ref().map(|s| s.namespace.as_str()).unwrap_or_default(), self.name)
    }
}

impl MachineSet {
    /// Reads a MachineSet.
    pub fn read(object: &DynamicObject, group: MachineGroup) -> Self {
        let labels = object.data.pointer("/spec/template/metadata/labels");
        let label = |key: &str| labels?.get(key)?.as_str();
        let source = Source { group, namespace: object.namespace().unwrap_or_default(), set: Some(object.name_any()) };
        let replicas = object.data.pointer("/spec/replicas").and_then(serde_json::Value::as_u64);
        let user_data = match group {
            MachineGroup::OpenShift => "/spec/template/spec/providerSpec/value/userDataSecret/name",
            MachineGroup::ClusterApi => "/spec/template/spec/bootstrap/dataSecretName",
        };
        Self {
            source,
            windows: is_windows(label, group),
            ignored: is_ignored(object),
            // Both APIs default to one replica.
            replicas: replicas.and_then(|n| usize::try_from(n).ok()).unwrap_or(1),
            user_data: object.data.pointer(user_data).and_then(|v| v.as_str()).map(Into::into),
            deleting: object.metadata.deletion_timestamp.is_some(),
            reference: reference(object),
        }
    }
}

/// Returns the reference to an object, for events about it.
pub fn reference(object: &DynamicObject) -> ObjectReference {
    ObjectReference {
        api_version: object.types.as_ref().map(|t| t.api_version.clone()),
        kind: object.types.as_ref().map(|t| t.kind.clone()),
        name: object.metadata.name.clone(),
        namespace: object.metadata.namespace.clone(),
        uid: object.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

fn is_ignored(object: &DynamicObject) -> bool {
    object.labels().get(key::IGNORE).is_some_and(|v| v == "true")
}

fn is_windows<'a>(label: impl Fn(&str) -> Option<&'a str>, group: MachineGroup) -> bool {
    let of_cluster_api =
        group == MachineGroup::ClusterApi && label(CLUSTER_API_OS).is_some_and(|v| v.eq_ignore_ascii_case("windows"));
    of_cluster_api || label(key::MACHINE_OS) == Some("Windows")
}

#[cfg(test)]
mod tests {
    use super::super::CLUSTER_API;
    use super::*;
    use serde_json::{Value, json};

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn machines_of_both_apis_are_read() {
        let machine = object(json!({
            "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
            "metadata": {
                "name": "win-a", "namespace": "openshift-machine-api", "uid": "u1",
                "labels": {"machine.openshift.io/os-id": "Windows"},
                "ownerReferences": [{"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", "name": "win", "uid": "s"}],
            },
            "status": {
                "phase": "Running", "nodeRef": {"name": "node-a"},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}, {"address": 7}],
            },
        }));
        // One address of a wrong type invalidates only the status.
        assert_eq!(Machine::read(&machine, MachineGroup::OpenShift).phase, "");
        let mut machine = machine;
        machine.data["status"]["addresses"].as_array_mut().unwrap().pop();
        let read = Machine::read(&machine, MachineGroup::OpenShift);
        assert_eq!((read.phase.as_str(), read.node.as_deref(), read.windows), ("Running", Some("node-a"), true));
        assert_eq!(read.addresses, [Address { kind: "InternalIP".into(), address: "10.0.0.7".into() }]);
        assert_eq!(read.source.as_ref().unwrap().to_string(), "MachineSet openshift-machine-api/win");
        assert_eq!(read.key(), "openshift-machine-api/win-a");
        let bare =
            object(json!({"apiVersion": "x/v1", "kind": "Machine", "metadata": {"name": "m", "namespace": "n"}}));
        let bare = Machine::read(&bare, MachineGroup::ClusterApi);
        assert_eq!(bare.source.unwrap().to_string(), "Cluster API Machines of n");
        assert!(!bare.windows && bare.phase.is_empty());
    }

    #[test]
    fn what_runs_windows_says_so_with_a_label() {
        use MachineGroup::{ClusterApi, OpenShift};
        for (key, value, group, expected) in [
            ("machine.openshift.io/os-id", "Windows", OpenShift, true),
            ("machine.openshift.io/os-id", "Windows", ClusterApi, true),
            ("machine.openshift.io/os-id", "windows", OpenShift, false),
            ("node.cluster.x-k8s.io/os", "windows", ClusterApi, true),
            ("node.cluster.x-k8s.io/os", "windows", OpenShift, false),
            ("node.cluster.x-k8s.io/os", "linux", ClusterApi, false),
            ("kubernetes.io/os", "windows", ClusterApi, false),
        ] {
            let machine = object(json!({"metadata": {"name": "m", "namespace": "n", "labels": {(key): value}}}));
            assert_eq!(Machine::read(&machine, group).windows, expected, "{key}={value} of {group:?}");
            let set = object(json!({
                "metadata": {"name": "s", "namespace": "n"},
                "spec": {"template": {"metadata": {"labels": {(key): value}}}},
            }));
            assert_eq!(MachineSet::read(&set, group).windows, expected, "set: {key}={value} of {group:?}");
        }
    }

    #[test]
    fn the_replicas_and_user_data_of_a_machine_set_are_read() {
        use MachineGroup::{ClusterApi, OpenShift};
        let openshift = json!({"providerSpec": {"value": {"userDataSecret": {"name": "a"}}}});
        let cluster_api = json!({"bootstrap": {"dataSecretName": "b"}});
        for (group, replicas, template, expected) in [
            (OpenShift, json!(3), openshift.clone(), (3, Some("a"))),
            (ClusterApi, json!(0), cluster_api.clone(), (0, Some("b"))),
            (OpenShift, json!(null), cluster_api, (1, None)),
            (ClusterApi, json!("many"), openshift, (1, None)),
        ] {
            let set = object(json!({
                "metadata": {"name": "s", "namespace": "n"},
                "spec": {"replicas": replicas, "template": {"spec": template}},
            }));
            let set = MachineSet::read(&set, group);
            assert_eq!((set.replicas, set.user_data.as_deref()), expected, "{group:?}");
        }
    }

    #[test]
    fn a_pool_names_its_source_as_short_as_can_be() {
        for (group, namespace, expected) in [
            (MachineGroup::OpenShift, MACHINE_API, json!({"name": "s"})),
            (
                MachineGroup::ClusterApi,
                CLUSTER_API,
                json!({"group": "cluster.x-k8s.io", "namespace": CLUSTER_API, "name": "s"}),
            ),
        ] {
            let source = Source { group, namespace: namespace.into(), set: Some("s".into()) };
            assert_eq!(json!(source.reference()), expected);
            assert_eq!(Source::of(&source.reference()), source);
        }
    }
}
