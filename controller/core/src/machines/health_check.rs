//! MachineHealthChecks, which replace unhealthy Machines. The operator does not repair the hosts of these Machines: two controllers that repair
//! one node at the same time would undo each other's work. Pure.

use api::MachineGroup;
use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::{
    ResourceExt,
    core::{DynamicObject, Selector, SelectorExt as _},
};
use serde::Deserialize;
use serde_json::Value;

use super::read::{Condition, Machine};
use crate::node::conditions as conditions_of;

/// Annotation that pauses a MachineHealthCheck in both APIs, and excludes a Machine of Cluster API from replacement.
const PAUSED: &str = "cluster.x-k8s.io/paused";
/// Annotation that excludes a Machine of Cluster API from replacement.
const SKIPPED: &str = "cluster.x-k8s.io/skip-remediation";
/// Label of a Machine of Cluster API with the name of its cluster.
const CLUSTER: &str = "cluster.x-k8s.io/cluster-name";

/// Condition of a Node whose status changes during a repair.
const READY: &str = "Ready";
/// Phase of a Machine that every MachineHealthCheck replaces, whatever the state of its Node.
const FAILED: &str = "Failed";
/// Condition of a MachineHealthCheck that is False while too many Machines are unhealthy for a replacement.
const ALLOWED: &str = "RemediationAllowed";

/// Active MachineHealthCheck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    group: MachineGroup,
    namespace: String,
    name: String,
    cluster: Option<String>,
    selector: Selector,
    /// Conditions of a Node for which its Machine is replaced once one lasts for its timeout.
    of_nodes: Vec<Condition>,
    /// Conditions of a Machine for which it is replaced once one lasts for its timeout.
    of_machines: Vec<Condition>,
    refrains: bool,
}

impl HealthCheck {
    /// Reads a MachineHealthCheck; `None` if it is paused, is being deleted, or has an invalid selector, which its own API rejects, too.
    pub fn read(object: &DynamicObject, group: MachineGroup) -> Option<Self> {
        if object.annotations().contains_key(PAUSED) || object.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let selector = object.data.pointer("/spec/selector").map(LabelSelector::deserialize);
        let cluster = object.data.pointer("/spec/clusterName").and_then(|v| v.as_str());
        // In `v1beta2` of Cluster API, the conditions are below `checks`.
        let of_nodes = ["/spec/unhealthyConditions", "/spec/checks/unhealthyNodeConditions"];
        Some(Self {
            group,
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            cluster: cluster.filter(|_| group == MachineGroup::ClusterApi).map(Into::into),
            selector: selector.transpose().ok()?.unwrap_or_default().try_into().ok()?,
            of_nodes: of_nodes.iter().flat_map(|path| conditions(object, path)).collect(),
            of_machines: conditions(object, "/spec/checks/unhealthyMachineConditions"),
            refrains: refrains(object),
        })
    }

    /// Reports whether the check replaces this Machine if nothing changes: at once, or after its timeout. `node` is the Machine's Node, if there
    /// is one.
    pub fn covers(&self, machine: &Machine, node: Option<&Node>) -> bool {
        let here = machine.source.as_ref().is_some_and(|s| s.group == self.group && s.namespace == self.namespace);
        let of_cluster = self.cluster.as_ref().is_none_or(|c| machine.labels.get(CLUSTER) == Some(c));
        // Annotations of a Machine that only Cluster API reads.
        let spared = [PAUSED, SKIPPED].iter().any(|key| machine.annotations.contains_key(*key));
        let is_spared = spared && self.group == MachineGroup::ClusterApi;
        let selects = here && of_cluster && !is_spared && self.selector.matches(&machine.labels);
        selects && !self.refrains && self.is_unhealthy(machine, node)
    }

    /// Reports whether the check considers the Machine unhealthy, apart from its timeouts.
    fn is_unhealthy(&self, machine: &Machine, node: Option<&Node>) -> bool {
        // A Machine whose Node was deleted is replaced; a Machine that never had a Node is replaced after its startup timeout.
        let Some(node) = node else { return true };
        let of_node = conditions_of(node);
        let node_has = |c: &Condition| of_node.iter().any(|found| found.type_ == c.kind && found.status == c.status);
        // During a repair, Ready may change between False and Unknown, so a check for either status covers every node that is not Ready.
        let is_down = of_node.iter().any(|found| found.type_ == READY && found.status != "True");
        machine.phase == FAILED
            || self.of_nodes.iter().any(|c| node_has(c) || is_down && c.kind == READY)
            || self.of_machines.iter().any(|c| machine.conditions.contains(c))
    }

    /// Returns the kind, namespace and name of the check, for messages.
    pub fn title(&self) -> String {
        format!("MachineHealthCheck {}/{}", self.namespace, self.name)
    }
}

fn conditions(object: &DynamicObject, path: &str) -> Vec<Condition> {
    let listed = object.data.pointer(path).and_then(Value::as_array).into_iter().flatten();
    listed.filter_map(|condition| Condition::deserialize(condition).ok()).collect()
}

/// Reports whether a check replaces nothing, because its limit is 0, or because too many Machines are unhealthy. `remediationsAllowed` does not show
/// this: it is also 0 while the check replaces the last Machine that it may.
fn refrains(object: &DynamicObject) -> bool {
    let limits = ["/spec/maxUnhealthy", "/spec/remediation/triggerIf/unhealthyLessThanOrEqualTo"];
    let limit = limits.iter().find_map(|path| IntOrString::deserialize(object.data.pointer(path)?).ok());
    if limit
        .as_ref()
        .is_some_and(|limit| matches!(limit, IntOrString::Int(0)) || *limit == IntOrString::String("0%".into()))
    {
        return true;
    }
    let said = conditions(object, "/status/conditions").into_iter().find(|c| c.kind == ALLOWED);
    if let Some(said) = said {
        return said.status == "False";
    }
    // Without that condition, the check's controller is an old one, or has not processed the check yet.
    let number = |path: &str| object.data.pointer(path)?.as_i64();
    let Some((expected, healthy)) = number("/status/expectedMachines").zip(number("/status/currentHealthy")) else {
        return false;
    };
    let most = match limit {
        Some(IntOrString::Int(most)) => Some(i64::from(most)),
        Some(IntOrString::String(share)) => {
            let percent = share.strip_suffix('%').and_then(|percent| percent.parse::<u8>().ok());
            percent.and_then(|percent| expected.checked_mul(percent.into())).map(|share| share / 100)
        }
        None => None,
    };
    most.is_some_and(|most| expected.saturating_sub(healthy) > most)
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

    fn node(conditions: &[(&str, &str)]) -> Node {
        let conditions: Vec<Value> =
            conditions.iter().map(|(kind, status)| json!({"type": kind, "status": status})).collect();
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": conditions}})).unwrap()
    }

    /// Checks which controller repairs a node. The expected value is true if the MachineHealthCheck does.
    #[test]
    fn a_node_that_is_not_ready_is_repaired_by_one_controller() {
        use MachineGroup::{ClusterApi, OpenShift};
        let ready = |status: &str| json!({"type": "Ready", "status": status, "timeout": "5m"});
        let both = json!({"unhealthyConditions": [ready("False"), ready("Unknown")]});
        let silent = json!({"unhealthyConditions": [ready("Unknown")]});
        let disk = json!({"unhealthyConditions": [{"type": "DiskPressure", "status": "True", "timeout": "5m"}]});
        let with = |mut spec: Value, more: Value| {
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        let nested = json!({"checks": {"unhealthyNodeConditions": [ready("False")]}});
        let triggered = |most: Value| {
            with(nested.clone(), json!({"remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": most}}}))
        };
        let of_machine =
            json!({"checks": {"unhealthyMachineConditions": [{"type": "InfrastructureReady", "status": "False"}]}});
        let (none, gone) = (json!({}), Value::Null);
        let down = json!([["Ready", "False"], ["DiskPressure", "False"]]);
        let unknown = json!([["Ready", "Unknown"], ["DiskPressure", "Unknown"]]);
        let full = json!([["Ready", "False"], ["DiskPressure", "True"]]);
        let counts = |expected: i32, healthy: i32| json!({"expectedMachines": expected, "currentHealthy": healthy, "remediationsAllowed": 0});
        let says =
            |allowed: &str| json!({"remediationsAllowed": 0, "conditions": [{"type": ALLOWED, "status": allowed}]});
        let failed = json!({"phase": "Failed"});
        let unready = json!({"conditions": [{"type": "InfrastructureReady", "status": "False"}]});
        let limited = |most: Value| with(both.clone(), json!({"maxUnhealthy": most}));
        for (about, group, spec, of_check, of_machine, conditions, expected) in [
            ("not Ready", OpenShift, both.clone(), &none, &none, &down, true),
            ("silent", OpenShift, both.clone(), &none, &none, &unknown, true),
            ("a check for Unknown, and Ready is Unknown", OpenShift, silent.clone(), &none, &none, &unknown, true),
            ("a check for Unknown, and Ready is False", OpenShift, silent.clone(), &none, &none, &down, true),
            ("a condition that the Node does not have", OpenShift, disk.clone(), &none, &none, &down, false),
            ("a condition that the Node has", OpenShift, disk, &none, &none, &full, true),
            ("a Node without conditions", OpenShift, both.clone(), &none, &none, &json!([]), false),
            ("no conditions", OpenShift, json!({}), &none, &none, &down, false),
            ("no conditions, and the Node is gone", OpenShift, json!({}), &none, &none, &gone, true),
            ("a Machine that failed", OpenShift, silent.clone(), &none, &failed, &down, true),
            (
                "malformed conditions",
                OpenShift,
                json!({"unhealthyConditions": [7, {"type": 7}]}),
                &none,
                &none,
                &down,
                false,
            ),
            ("a condition below spec.checks", ClusterApi, nested.clone(), &none, &none, &down, true),
            (
                "a condition below spec.checks, with another status",
                ClusterApi,
                nested.clone(),
                &none,
                &none,
                &unknown,
                true,
            ),
            ("a condition that the Machine has", ClusterApi, of_machine.clone(), &none, &unready, &down, true),
            ("a condition that the Machine does not have", ClusterApi, of_machine, &none, &none, &down, false),
            ("too many are unhealthy", OpenShift, both.clone(), &says("False"), &none, &down, false),
            ("too many, and the Node is gone", OpenShift, both.clone(), &says("False"), &none, &gone, false),
            ("the last one that it may replace", OpenShift, limited(json!(1)), &says("True"), &none, &down, true),
            ("a limit of 0", OpenShift, limited(json!(0)), &says("True"), &none, &down, false),
            ("a limit of 0%", OpenShift, limited(json!("0%")), &none, &none, &down, false),
            ("no Machine is counted yet", OpenShift, limited(json!("40%")), &none, &none, &down, true),
            ("as many as the limit", OpenShift, limited(json!(2)), &counts(5, 3), &none, &down, true),
            ("more than the limit", OpenShift, limited(json!(2)), &counts(5, 2), &none, &down, false),
            ("a percentage, rounded down", OpenShift, limited(json!("40%")), &counts(2, 1), &none, &down, false),
            ("a percentage", OpenShift, limited(json!("40%")), &counts(5, 3), &none, &down, true),
            ("a malformed limit", OpenShift, limited(json!("many")), &counts(5, 0), &none, &down, true),
            ("no limit", OpenShift, both, &counts(5, 0), &none, &down, true),
            ("as many as the trigger allows", ClusterApi, triggered(json!(2)), &counts(5, 3), &none, &down, true),
            ("more than the trigger allows", ClusterApi, triggered(json!("20%")), &counts(5, 3), &none, &down, false),
        ] {
            let check = object(json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": spec, "status": of_check}));
            let machine = object(json!({"metadata": {"name": "m", "namespace": "ns"}, "status": of_machine}));
            let (check, machine) = (HealthCheck::read(&check, group).unwrap(), Machine::read(&machine, group));
            let conditions: Option<Vec<(String, String)>> = serde_json::from_value(conditions.clone()).unwrap();
            let node =
                conditions.map(|all| node(&all.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>()));
            assert_eq!(check.covers(&machine, node.as_ref()), expected, "{about}");
        }
    }

    #[test]
    fn a_health_check_covers_what_it_selects() {
        use MachineGroup::{ClusterApi, OpenShift};
        let (win, none) = (json!({"os": "windows", CLUSTER: "c"}), json!({}));
        let by = |selector: Value| json!({"selector": selector});
        let all = || by(json!({}));
        let labelled = |os: &str| by(json!({"matchLabels": {"os": os}}));
        let expression = |operator: &str| {
            by(json!({"matchExpressions": [{"key": "os", "operator": operator, "values": ["windows"]}]}))
        };
        let of_cluster = |name: &str| json!({"clusterName": name, "selector": {}});
        let (paused, skipped) = (json!({PAUSED: ""}), json!({SKIPPED: ""}));
        for (about, group, spec, of_check, labels, of_machine, expected) in [
            ("by a label", OpenShift, labelled("windows"), &none, &win, &none, true),
            ("another label", OpenShift, labelled("linux"), &none, &win, &none, false),
            ("an expression", OpenShift, expression("In"), &none, &win, &none, true),
            ("without labels", OpenShift, expression("In"), &none, &none, &none, false),
            ("everything", OpenShift, all(), &none, &none, &none, true),
            ("no selector", OpenShift, json!({}), &none, &none, &none, true),
            ("a malformed selector", OpenShift, by(json!(7)), &none, &win, &none, false),
            ("an unknown operator", OpenShift, expression("Near"), &none, &win, &none, false),
            ("paused", OpenShift, all(), &paused, &win, &none, false),
            ("its cluster", ClusterApi, of_cluster("c"), &none, &win, &none, true),
            ("another cluster", ClusterApi, of_cluster("d"), &none, &win, &none, false),
            ("skipped", ClusterApi, all(), &none, &win, &skipped, false),
            ("a paused Machine", ClusterApi, all(), &none, &win, &paused, false),
            ("an annotation that only Cluster API reads", OpenShift, all(), &none, &win, &skipped, true),
        ] {
            let check = json!({"metadata": {"name": "c", "namespace": "ns", "annotations": of_check}, "spec": spec});
            let check = HealthCheck::read(&object(check), group);
            let machine = machine(group, labels, of_machine);
            assert_eq!(check.is_some_and(|c| c.covers(&machine, None)), expected, "{about}");
        }
    }

    #[test]
    fn a_health_check_covers_its_own_namespace_and_api_alone() {
        let check = object(json!({"metadata": {"name": "c", "namespace": "ns"}}));
        let check = HealthCheck::read(&check, MachineGroup::OpenShift).unwrap();
        assert_eq!(check.title(), "MachineHealthCheck ns/c");
        let (none, mut elsewhere) = (json!({}), machine(MachineGroup::OpenShift, &json!({}), &json!({})));
        assert!(check.covers(&elsewhere, None));
        elsewhere.source.as_mut().unwrap().namespace = "other".into();
        assert!(!check.covers(&elsewhere, None));
        assert!(!check.covers(&machine(MachineGroup::ClusterApi, &none, &none), None));
    }
}
