//! Which Machines a MachineHealthCheck replaces once their Nodes are not Ready: the operator leaves their hosts to it. Two that repair one
//! node at the same time would each undo what the other does. Pure.

use api::MachineGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    ResourceExt,
    core::{DynamicObject, Selector, SelectorExt as _},
};
use serde::Deserialize;

use super::read::Machine;

/// Annotation of a MachineHealthCheck that replaces nothing for now, in both APIs, and of a Machine of Cluster API.
const PAUSED: &str = "cluster.x-k8s.io/paused";
/// Annotation of a Machine of Cluster API that no MachineHealthCheck replaces.
const SKIPPED: &str = "cluster.x-k8s.io/skip-remediation";
/// Label of a Machine of Cluster API with the name of its cluster.
const CLUSTER: &str = "cluster.x-k8s.io/cluster-name";

/// A MachineHealthCheck that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    group: MachineGroup,
    namespace: String,
    name: String,
    cluster: Option<String>,
    selector: Selector,
}

impl HealthCheck {
    /// Reads one; `None`: it is paused, is being deleted, or selects nothing that can be understood, which the API that has it refuses,
    /// too.
    pub fn read(object: &DynamicObject, group: MachineGroup) -> Option<Self> {
        if object.annotations().contains_key(PAUSED) || object.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let selector = object.data.pointer("/spec/selector").map(LabelSelector::deserialize);
        let cluster = object.data.pointer("/spec/clusterName").and_then(|v| v.as_str());
        Some(Self {
            group,
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            cluster: cluster.filter(|_| group == MachineGroup::ClusterApi).map(Into::into),
            selector: selector.transpose().ok()?.unwrap_or_default().try_into().ok()?,
        })
    }

    /// Whether it replaces this Machine once the Node is not Ready.
    pub fn covers(&self, machine: &Machine) -> bool {
        let here = machine.source.as_ref().is_some_and(|s| s.group == self.group && s.namespace == self.namespace);
        let of_cluster = self.cluster.as_ref().is_none_or(|c| machine.labels.get(CLUSTER) == Some(c));
        // Annotations of a Machine that only Cluster API reads.
        let spared = [PAUSED, SKIPPED].iter().any(|key| machine.annotations.contains_key(*key));
        let is_spared = spared && self.group == MachineGroup::ClusterApi;
        here && of_cluster && !is_spared && self.selector.matches(&machine.labels)
    }

    /// As messages name it.
    pub fn title(&self) -> String {
        format!("MachineHealthCheck {}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    fn machine(group: MachineGroup, labels: &Value, annotations: &Value) -> Machine {
        let metadata = json!({"name": "m", "namespace": "ns", "labels": labels, "annotations": annotations});
        Machine::read(&object(json!({"metadata": metadata})), group)
    }

    #[test]
    fn a_health_check_covers_what_it_selects() {
        use MachineGroup::{ClusterApi, OpenShift};
        let (win, none) = (json!({"os": "windows", CLUSTER: "c"}), json!({}));
        let all = json!({});
        let expression = json!({"matchExpressions": [{"key": "os", "operator": "In", "values": ["windows"]}]});
        for (about, group, spec, of_check, labels, of_machine, expected) in [
            (
                "by a label",
                OpenShift,
                json!({"selector": {"matchLabels": {"os": "windows"}}}),
                &none,
                &win,
                &none,
                true,
            ),
            (
                "another label",
                OpenShift,
                json!({"selector": {"matchLabels": {"os": "linux"}}}),
                &none,
                &win,
                &none,
                false,
            ),
            ("an expression", OpenShift, json!({"selector": expression}), &none, &win, &none, true),
            ("without labels", OpenShift, json!({"selector": expression}), &none, &none, &none, false),
            ("everything", OpenShift, json!({"selector": all}), &none, &none, &none, true),
            ("no selector", OpenShift, json!({}), &none, &none, &none, true),
            ("nonsense", OpenShift, json!({"selector": 7}), &none, &win, &none, false),
            (
                "an unknown operator",
                OpenShift,
                json!({"selector": {"matchExpressions": [{"key": "os", "operator": "Near"}]}}),
                &none,
                &win,
                &none,
                false,
            ),
            ("paused", OpenShift, json!({"selector": all}), &json!({PAUSED: ""}), &win, &none, false),
            ("its cluster", ClusterApi, json!({"clusterName": "c", "selector": all}), &none, &win, &none, true),
            ("another cluster", ClusterApi, json!({"clusterName": "d", "selector": all}), &none, &win, &none, false),
            ("skipped", ClusterApi, json!({"selector": all}), &none, &win, &json!({SKIPPED: ""}), false),
            ("a paused Machine", ClusterApi, json!({"selector": all}), &none, &win, &json!({PAUSED: ""}), false),
            (
                "what only Cluster API reads",
                OpenShift,
                json!({"selector": all}),
                &none,
                &win,
                &json!({SKIPPED: ""}),
                true,
            ),
        ] {
            let check = json!({"metadata": {"name": "c", "namespace": "ns", "annotations": of_check}, "spec": spec});
            let check = HealthCheck::read(&object(check), group);
            let machine = machine(group, labels, of_machine);
            assert_eq!(check.is_some_and(|c| c.covers(&machine)), expected, "{about}");
        }
    }

    #[test]
    fn a_health_check_covers_its_own_namespace_and_api_alone() {
        let check = object(json!({"metadata": {"name": "c", "namespace": "ns"}}));
        let check = HealthCheck::read(&check, MachineGroup::OpenShift).unwrap();
        assert_eq!(check.title(), "MachineHealthCheck ns/c");
        let (none, mut elsewhere) = (json!({}), machine(MachineGroup::OpenShift, &json!({}), &json!({})));
        assert!(check.covers(&elsewhere));
        elsewhere.source.as_mut().unwrap().namespace = "other".into();
        assert!(!check.covers(&elsewhere));
        assert!(!check.covers(&machine(MachineGroup::ClusterApi, &none, &none)));
    }
}
