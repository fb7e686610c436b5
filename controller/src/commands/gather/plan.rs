//! Plan of the objects that are gathered from a cluster. Pure functions.

use std::collections::BTreeSet;

use api::names::{GROUP, LEASE, SERVICES_CONFIG_MAP_PREFIX};
use serde_json::{Value, json};
use wnp_core::{csr::Kind, machines::read::CLUSTER_API_OS};

const MACHINE_API: &str = "openshift-machine-api";
/// Name prefixes of the objects of the operator and of WMCO.
const OURS: &[&str] = &[LEASE, "windows-machine-config", "windows-instance-config-daemon"];
const CRDS: &[&str] = &["windowsnodepools.", "windowsinstances."];
const CONFIG_MAPS: &[&str] = &[
    SERVICES_CONFIG_MAP_PREFIX,
    api::names::WINDOWS_INSTANCES,
    api::names::LEGACY_HOST_KEYS,
    api::names::WMCO_LOCK,
    LEASE,
    "trusted-ca",
];

/// Gathered kinds: API version, plural names, namespace (`.` for the operator's, empty for all namespaces and cluster-scoped kinds), selection of
/// objects, and form.
const KINDS: &[(&str, &str, &str, Keep, Form)] = &[
    ("windowsmachineconfig.openshift.io/v1alpha1", "windowsnodepools windowsinstances", "", Keep::All, Form::Whole),
    ("v1", "nodes", "", Keep::Nodes, Form::Whole),
    ("coordination.k8s.io/v1", "leases", "kube-node-lease", Keep::Nodes, Form::Whole),
    ("v1", "events", "default", Keep::Events, Form::List),
    ("v1", "namespaces", "", Keep::Namespace, Form::Whole),
    ("apiextensions.k8s.io/v1", "customresourcedefinitions", "", Keep::Prefixes(CRDS), Form::Whole),
    ("certificates.k8s.io/v1", "certificatesigningrequests", "", Keep::Signers, Form::Whole),
    ("policy/v1", "poddisruptionbudgets", "", Keep::All, Form::Whole),
    ("admissionregistration.k8s.io/v1", POLICIES, "", Keep::Prefixes(OURS), Form::Whole),
    ("rbac.authorization.k8s.io/v1", "clusterroles clusterrolebindings", "", Keep::Prefixes(OURS), Form::Whole),
    ("machine.openshift.io/v1beta1", "machines machinesets", MACHINE_API, Keep::Windows, Form::Whole),
    ("machine.openshift.io/v1beta1", "machinehealthchecks", MACHINE_API, Keep::All, Form::Whole),
    // Both versions of the Cluster API, as far as the cluster serves them.
    ("cluster.x-k8s.io/v1beta1", "machines machinesets machinedeployments", "", Keep::Windows, Form::Whole),
    ("cluster.x-k8s.io/v1beta1", "machinehealthchecks", "", Keep::All, Form::Whole),
    ("cluster.x-k8s.io/v1beta2", "machines machinesets machinedeployments", "", Keep::Windows, Form::Whole),
    ("cluster.x-k8s.io/v1beta2", "machinehealthchecks", "", Keep::All, Form::Whole),
    ("operator.openshift.io/v1", "networks", "", Keep::All, Form::Whole),
    ("config.openshift.io/v1", "networks infrastructures clusterversions proxies dnses", "", Keep::All, Form::Whole),
    ("v1", "configmaps", ".", Keep::Prefixes(CONFIG_MAPS), Form::Whole),
    ("v1", "secrets", ".", Keep::All, Form::Secret),
    ("v1", "services serviceaccounts", ".", Keep::All, Form::Whole),
    ("v1", "pods", ".", Keep::All, Form::Pod),
    ("v1", "events", ".", Keep::All, Form::List),
    ("apps/v1", "deployments replicasets daemonsets", ".", Keep::All, Form::Whole),
    ("coordination.k8s.io/v1", "leases", ".", Keep::All, Form::Whole),
    ("networking.k8s.io/v1", "networkpolicies", ".", Keep::All, Form::Whole),
    ("rbac.authorization.k8s.io/v1", "roles rolebindings", ".", Keep::Prefixes(OURS), Form::Whole),
    ("operators.coreos.com/v1alpha1", "subscriptions clusterserviceversions installplans", ".", Keep::All, Form::Whole),
    ("operators.coreos.com/v2", "operatorconditions", ".", Keep::All, Form::Whole),
];
const POLICIES: &str = "validatingadmissionpolicies validatingadmissionpolicybindings";

/// Item of the plan: objects of one kind.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// API group and version, such as `apps/v1`.
    version: &'static str,
    /// Plural name of the kind.
    resource: &'static str,
    /// Namespace of the objects. `None` for all namespaces, or for a cluster-scoped kind.
    pub namespace: Option<String>,
    pub keep: Keep,
    pub form: Form,
}

/// Selection of the objects that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    All,
    /// Objects whose name has one of these prefixes.
    Prefixes(&'static [&'static str]),
    /// Windows Nodes, and objects with their names.
    Nodes,
    /// Namespace of the operator.
    Namespace,
    /// Certificate requests to the signers that hosts use.
    Signers,
    /// Events of the operator's objects and of Windows Nodes.
    Events,
    /// Windows Machines, and the sets that create them.
    Windows,
}

/// Form in which an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Whole objects, one file for each.
    Whole,
    /// Whole objects, all in one file.
    List,
    /// Pod with its logs.
    Pod,
    /// Names of the Secret's keys, without values.
    Secret,
}

/// Names that decide which objects are kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    /// Namespace of the operator.
    pub namespace: String,
    /// Names of the Windows Nodes.
    pub nodes: BTreeSet<String>,
}

/// Returns all items that are gathered.
pub(super) fn items(namespace: &str) -> Vec<Item> {
    let items = |&(version, resources, place, keep, form): &(&'static str, &'static str, &str, Keep, Form)| {
        let place = if place == "." { namespace } else { place };
        let namespace = (!place.is_empty()).then(|| place.to_owned());
        let item = move |resource| Item { version, resource, namespace: namespace.clone(), keep, form };
        resources.split(' ').map(item)
    };
    KINDS.iter().flat_map(items).collect()
}

impl Item {
    /// Returns the API group of the kind; empty for the core group.
    fn group(&self) -> &str {
        self.version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Returns the API path of the list.
    pub(super) fn path(&self) -> String {
        let place = self.namespace.as_ref().map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
        let root = if self.group().is_empty() { "api" } else { "apis" };
        format!("/{root}/{}/{place}{}", self.version, self.resource)
    }

    /// Returns the API group and version.
    pub(super) fn version(&self) -> &'static str {
        self.version
    }

    /// Returns the name of the kind for messages.
    pub(super) fn name(&self) -> String {
        let group = if self.group().is_empty() { String::new() } else { format!(".{}", self.group()) };
        let place = self.namespace.as_ref().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        format!("{}{group}{place}", self.resource)
    }

    /// Returns the folder of the objects, in the layout of `oc adm inspect`.
    pub(super) fn folder(&self, namespace: Option<&str>) -> String {
        let namespace = namespace.or(self.namespace.as_deref());
        let root = namespace.map_or_else(|| "cluster-scoped-resources".to_owned(), |n| format!("namespaces/{n}"));
        let group = if self.group().is_empty() { "core" } else { self.group() };
        format!("{root}/{group}/{}", self.resource)
    }

    /// Reports whether an object is kept.
    pub(super) fn keeps(&self, object: &Value, scope: &Scope) -> bool {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = text("/metadata/name");
        match self.keep {
            Keep::All => true,
            Keep::Prefixes(prefixes) => prefixes.iter().any(|prefix| name.starts_with(prefix)),
            Keep::Nodes => scope.nodes.contains(name),
            Keep::Namespace => name == scope.namespace,
            Keep::Signers => Kind::of_signer(text("/spec/signerName")).is_some(),
            Keep::Events => {
                let is_of_node = text("/involvedObject/kind") == "Node";
                text("/involvedObject/apiVersion").starts_with(&format!("{GROUP}/"))
                    || is_of_node && scope.nodes.contains(text("/involvedObject/name"))
            }
            Keep::Windows => {
                let labels =
                    ["/metadata/labels", "/spec/template/metadata/labels", "/spec/template/spec/metadata/labels"];
                let key = if self.group() == "cluster.x-k8s.io" { CLUSTER_API_OS } else { api::names::key::MACHINE_OS };
                let has = |labels: &Value, key: &str| {
                    labels[key].as_str().is_some_and(|os| os.eq_ignore_ascii_case("windows"))
                };
                let mut labels = labels.iter().filter_map(|pointer| object.pointer(pointer));
                labels.any(|labels| has(labels, key) || has(labels, api::names::key::MACHINE_OS))
            }
        }
    }
}

/// Returns a Secret's name, namespace and creation time, and the names of its keys according to its managed fields. The result has no values, even
/// if the API server has returned the whole object.
pub(super) fn names_of_keys(secret: &Value) -> Value {
    let metadata = &secret["metadata"];
    let managed = metadata["managedFields"].as_array().into_iter().flatten();
    let fields = managed.filter_map(|managed| managed["fieldsV1"]["f:data"].as_object());
    let keys: BTreeSet<&str> =
        fields.flat_map(|fields| fields.keys().filter_map(|key| key.strip_prefix("f:"))).collect();
    let [name, namespace, created] = ["name", "namespace", "creationTimestamp"].map(|field| &metadata[field]);
    let metadata = json!({"name": name, "namespace": namespace, "creationTimestamp": created});
    json!({"kind": "Secret", "contains": keys, "metadata": metadata})
}

/// Returns the newest events that fit into `most` bytes of JSON, the oldest first. The API server lists them by name.
pub(super) fn newest_events(mut events: Vec<Value>, most: usize) -> Vec<Value> {
    let time = |event: &Value| {
        let times = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
        times.iter().find_map(|path| event.pointer(path)?.as_str()?.parse::<jiff::Timestamp>().ok())
    };
    events.sort_by_cached_key(time);
    let mut bytes = 0;
    let fits = |event: &&Value| {
        bytes += event.to_string().len();
        bytes <= most
    };
    let kept = events.iter().rev().take_while(fits).count();
    events.split_off(events.len() - kept)
}

/// Returns a summary of a pod on a Windows node: the fields that show why it stays there, without its containers.
pub(super) fn summary(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    json!({
        "namespace": metadata["namespace"], "name": metadata["name"], "node": pod["spec"]["nodeName"],
        "phase": pod["status"]["phase"], "reason": pod["status"]["reason"],
        "owners": owners.map(|owner| json!({"kind": owner["kind"], "name": owner["name"]})).collect::<Vec<_>>(),
        "labels": metadata["labels"], "priorityClassName": pod["spec"]["priorityClassName"],
        "creationTimestamp": metadata["creationTimestamp"], "deletionTimestamp": metadata["deletionTimestamp"],
        "finalizers": metadata["finalizers"],
    })
}

/// Returns the names of a pod's containers.
pub(super) fn containers(pod: &Value) -> Vec<String> {
    let all = ["initContainers", "containers"]
        .into_iter()
        .flat_map(|field| pod["spec"][field].as_array().into_iter().flatten());
    all.filter_map(|container| container["name"].as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(resource: &str, namespace: Option<&str>, group: &str) -> Item {
        let is = |i: &Item| i.resource == resource && i.namespace.as_deref() == namespace && i.group() == group;
        items("operator").into_iter().find(is).unwrap()
    }

    #[test]
    fn the_newest_events_stay_and_the_last_is_the_newest() {
        let event = |name: &str, time: &str| json!({"metadata": {"name": name, "creationTimestamp": "2027-01-01T00:00:00Z"}, "lastTimestamp": time});
        let unnamed =
            json!({"metadata": {"name": "e", "creationTimestamp": "2027-01-01T00:02:30Z"}, "lastTimestamp": null});
        let events = vec![
            event("a", "2027-01-01T00:03:00Z"),
            event("b", "2027-01-01T00:01:00Z"),
            unnamed,
            // In text, a fraction comes before the `Z` of the whole second.
            event("c", "2027-01-01T00:01:00.500000Z"),
        ];
        let one = events[0].to_string().len();
        for (most, expected) in [(10_000, "b c e a"), (2 * one, "e a"), (one, "a"), (0, "")] {
            let kept = newest_events(events.clone(), most);
            let names: Vec<&str> = kept.iter().filter_map(|e| e["metadata"]["name"].as_str()).collect();
            assert_eq!(names.join(" "), expected, "{most}");
        }
    }

    #[test]
    fn only_objects_of_the_operator_and_of_windows_nodes_are_kept() {
        let scope = Scope { namespace: "operator".into(), nodes: ["win-1".to_owned()].into() };
        let (core, machine, capi) = ("", "machine.openshift.io", "cluster.x-k8s.io");
        let named = |name: &str| json!({"metadata": {"name": name}});
        let labelled = |key: &str, os: &str| json!({"metadata": {"labels": {key: os}}});
        let event = |object: Value| json!({"involvedObject": object});
        let signer = |name: &str| json!({"spec": {"signerName": name}});
        let csrs = ("certificatesigningrequests", None, "certificates.k8s.io");
        let policies = ("validatingadmissionpolicies", None, "admissionregistration.k8s.io");
        let leases = ("leases", Some("kube-node-lease"), "coordination.k8s.io");
        let (maps, events) = (("configmaps", Some("operator"), core), ("events", Some("default"), core));
        let (machines, of_capi) = (("machines", Some(MACHINE_API), machine), ("machines", None, capi));
        for ((resource, namespace, group), object, expected) in [
            (("nodes", None, core), named("win-1"), true),
            (("nodes", None, core), named("linux"), false),
            (("namespaces", None, core), named("operator"), true),
            (("namespaces", None, core), named("shop"), false),
            (leases, named("win-1"), true),
            (leases, named("linux"), false),
            (maps, named("windows-services-1.0-abc"), true),
            (maps, named("another"), false),
            (events, event(json!({"kind": "Node", "name": "win-1"})), true),
            (events, event(json!({"kind": "Node", "name": "linux"})), false),
            (events, event(json!({"apiVersion": format!("{GROUP}/v1"), "kind": "X"})), true),
            (("events", Some("operator"), core), json!({}), true),
            (csrs, signer("kubernetes.io/kubelet-serving"), true),
            (csrs, signer("example.com/x"), false),
            (policies, named("windows-node-pools-services"), true),
            (policies, named("other"), false),
            (machines, labelled("machine.openshift.io/os-id", "Windows"), true),
            (machines, named("linux"), false),
            (machines, labelled("node.cluster.x-k8s.io/os", "windows"), false),
            (of_capi, labelled("node.cluster.x-k8s.io/os", "windows"), true),
            (of_capi, labelled("node.cluster.x-k8s.io/os", "linux"), false),
            (("machinehealthchecks", None, capi), named("any"), true),
        ] {
            let item = find(resource, namespace, group);
            assert_eq!(item.keeps(&object, &scope), expected, "{resource} {object}");
        }
    }

    #[test]
    fn values_of_secrets_are_not_written() {
        for item in items("operator") {
            assert_eq!(item.resource == "secrets", item.form == Form::Secret);
        }
        let managed = json!([{"fieldsV1": {"f:data": {".": {}, "f:private-key.pem": {}}}}]);
        let secret = json!({"metadata": {"name": "k", "managedFields": managed, "annotations": {"a": "hunter2"}}, "data": {"x": "hunter2"}});
        let written = names_of_keys(&secret);
        assert_eq!(written["contains"], json!(["private-key.pem"]));
        assert!(!written.to_string().contains("hunter2"));
    }

    #[test]
    fn a_pod_on_a_node_is_written_without_its_variables() {
        let pod = json!({
            "metadata": {"name": "a", "namespace": "shop", "ownerReferences": [{"kind": "ReplicaSet", "name": "b", "uid": "u"}]},
            "spec": {"nodeName": "win-1", "containers": [{"name": "c", "env": [{"name": "X", "value": "hunter2"}]}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 2}]},
        });
        let summary = summary(&pod);
        assert!(!summary.to_string().contains("hunter2") && summary["owners"][0]["kind"] == "ReplicaSet", "{summary}");
        assert_eq!(containers(&pod), ["c"]);
    }

    #[test]
    fn files_have_the_layout_of_oc_adm_inspect() {
        let leases = find("leases", Some("operator"), "coordination.k8s.io");
        assert_eq!(leases.path(), "/apis/coordination.k8s.io/v1/namespaces/operator/leases");
        assert_eq!(leases.folder(Some("operator")), "namespaces/operator/coordination.k8s.io/leases");
        let machines = find("machines", None, "cluster.x-k8s.io");
        assert_eq!(machines.folder(Some("c")), "namespaces/c/cluster.x-k8s.io/machines");
        let nodes = find("nodes", None, "");
        assert_eq!(
            (nodes.path().as_str(), &*nodes.folder(None)),
            ("/api/v1/nodes", "cluster-scoped-resources/core/nodes")
        );
    }
}
