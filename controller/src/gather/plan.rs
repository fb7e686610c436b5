//! What of a cluster is gathered. Pure.

use std::collections::BTreeSet;

use api::names::{GROUP, LEASE, SERVICES_CONFIG_MAP_PREFIX};
use serde_json::{Value, json};
use wnp_core::{csr::Kind, machines::read::CLUSTER_API_OS};

/// Group of Cluster API.
const CLUSTER_API: &str = "cluster.x-k8s.io";

/// Objects of one kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Item {
    /// Group, empty for that of the core.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// An earlier version, for a cluster that does not have the first.
    pub earlier: Option<&'static str>,
    /// Plural name.
    pub resource: &'static str,
    /// Namespace; all if there is none and the kind has namespaces.
    pub namespace: Option<String>,
    /// Query for the API server, as `labelSelector=…`.
    pub query: &'static str,
    /// Which of them are kept.
    pub keep: Keep,
    /// What of each of them is kept.
    pub form: Form,
}

/// Which objects are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Keep {
    /// All.
    #[default]
    All,
    /// Those whose name has one of these prefixes.
    Prefixes(&'static [&'static str]),
    /// Those of these names.
    Names(BTreeSet<String>),
    /// Certificate requests to the signers of hosts.
    Signers,
    /// Events of our objects and of these Nodes.
    EventsOf(BTreeSet<String>),
    /// Machines with Windows, and the sets that make them.
    WindowsMachines,
    /// Those in these namespaces.
    Namespaces(BTreeSet<String>),
}

/// What of an object is written, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    /// Everything, a file for each object.
    #[default]
    Whole,
    /// Everything, in one file with all.
    List,
    /// Without the schemas: they are those of a release.
    Crd,
    /// A pod with its logs.
    Pod,
    /// The names of the Secret's keys. The values are never read.
    Secret,
}

const fn item(group: &'static str, version: &'static str, resource: &'static str) -> Item {
    Item { group, version, earlier: None, resource, namespace: None, query: "", keep: Keep::All, form: Form::Whole }
}

impl Item {
    /// The same in the earlier version, if there is one.
    pub(super) fn in_earlier_version(&self) -> Option<Self> {
        Some(Self { version: self.earlier?, earlier: None, ..self.clone() })
    }

    /// Path of its group and version in the API.
    pub(super) fn group_version(&self) -> String {
        let Self { group, version, .. } = self;
        if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
    }

    /// Path of the list in the API.
    pub(super) fn path(&self) -> String {
        let (root, resource) = (self.group_version(), self.resource);
        match &self.namespace {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{resource}"),
            None => format!("{root}/{resource}"),
        }
    }

    /// For messages.
    pub(super) fn name(&self) -> String {
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        let place = self.namespace.as_ref().map(|n| format!(" in {n}")).unwrap_or_default();
        format!("{}{group}{place}", self.resource)
    }

    /// Folder of its objects, as `oc adm inspect` has it.
    pub(super) fn folder(&self, namespace: Option<&str>) -> String {
        let root = namespace.map_or_else(|| "cluster-scoped-resources".to_owned(), |n| format!("namespaces/{n}"));
        let group = if self.group.is_empty() { "core" } else { self.group };
        format!("{root}/{group}/{}", self.resource)
    }

    /// Whether an object is kept.
    pub(super) fn keeps(&self, object: &Value) -> bool {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        match &self.keep {
            Keep::All => true,
            Keep::Prefixes(prefixes) => prefixes.iter().any(|prefix| name.starts_with(prefix)),
            Keep::Names(names) => names.contains(name),
            Keep::Signers => Kind::of_signer(text("/spec/signerName")).is_some(),
            Keep::EventsOf(nodes) => {
                let of_ours = text("/involvedObject/apiVersion").starts_with(&format!("{GROUP}/"));
                of_ours || (text("/involvedObject/kind") == "Node" && nodes.contains(text("/involvedObject/name")))
            }
            Keep::WindowsMachines => {
                let labels =
                    ["/metadata/labels", "/spec/template/metadata/labels", "/spec/template/spec/metadata/labels"];
                let has = |labels: &Value| {
                    let label = |key: &str| labels[key].as_str();
                    let of_cluster_api = label(CLUSTER_API_OS).filter(|_| self.group == CLUSTER_API);
                    label(api::names::key::MACHINE_OS) == Some("Windows")
                        || of_cluster_api.is_some_and(|os| os.eq_ignore_ascii_case("windows"))
                };
                labels.iter().filter_map(|pointer| object.pointer(pointer)).any(has)
            }
            Keep::Namespaces(namespaces) => namespaces.contains(text("/metadata/namespace")),
        }
    }
}

/// The objects that name hosts and domains: read first, for the pseudonyms.
pub(super) fn with_names(namespace: &str) -> Vec<Item> {
    let of_openshift =
        ["infrastructures", "dnses", "proxies"].map(|resource| item("config.openshift.io", "v1", resource));
    let config_maps = Item {
        namespace: Some(namespace.to_owned()),
        keep: Keep::Prefixes(&[api::names::WINDOWS_INSTANCES]),
        ..item("", "v1", "configmaps")
    };
    // Linux nodes, too: their names stand in events, in Leases and in where the operator's Pods run.
    let all_nodes = item("", "v1", "nodes");
    let mut items = vec![
        all_nodes,
        ours("windowsnodepools"),
        ours("windowsinstances"),
        config_maps,
        machines("machines"),
        cluster_api("machines", Keep::WindowsMachines),
    ];
    items.extend(of_openshift);
    items
}

/// The Windows Nodes.
pub(super) fn nodes() -> Item {
    Item { query: "labelSelector=kubernetes.io%2Fos%3Dwindows", ..item("", "v1", "nodes") }
}

fn ours(resource: &'static str) -> Item {
    item(GROUP, api::names::VERSION, resource)
}

fn machines(resource: &'static str) -> Item {
    Item {
        namespace: Some("openshift-machine-api".into()),
        keep: Keep::WindowsMachines,
        ..item("machine.openshift.io", "v1beta1", resource)
    }
}

/// In all namespaces: there is none of its own.
fn cluster_api(resource: &'static str, keep: Keep) -> Item {
    Item { earlier: Some("v1beta1"), keep, ..item(CLUSTER_API, "v1beta2", resource) }
}

/// All that is gathered, once the names of the Windows Nodes are known, and the namespaces of the pods on them.
pub(super) fn items(namespace: &str, nodes: &BTreeSet<String>, pod_namespaces: &BTreeSet<String>) -> Vec<Item> {
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
    let here = |item: Item| Item { namespace: Some(namespace.to_owned()), ..item };
    let in_form = |form: Form, item: Item| Item { form, ..item };
    let kept = |keep: Keep, item: Item| Item { keep, ..item };
    let admission = |resource| kept(Keep::Prefixes(OURS), item("admissionregistration.k8s.io", "v1", resource));
    let rbac = |resource| kept(Keep::Prefixes(OURS), item("rbac.authorization.k8s.io", "v1", resource));
    let mut items = vec![
        ours("windowsnodepools"),
        ours("windowsinstances"),
        in_form(Form::Crd, kept(Keep::Prefixes(CRDS), item("apiextensions.k8s.io", "v1", "customresourcedefinitions"))),
        self::nodes(),
        Item {
            namespace: Some("kube-node-lease".into()),
            keep: Keep::Names(nodes.clone()),
            ..item("coordination.k8s.io", "v1", "leases")
        },
        Item {
            namespace: Some("default".into()),
            keep: Keep::EventsOf(nodes.clone()),
            form: Form::List,
            ..item("", "v1", "events")
        },
        kept(Keep::Signers, item("certificates.k8s.io", "v1", "certificatesigningrequests")),
        kept(Keep::Names([namespace.to_owned()].into()), item("", "v1", "namespaces")),
        here(kept(Keep::Prefixes(CONFIG_MAPS), item("", "v1", "configmaps"))),
        here(in_form(Form::Secret, item("", "v1", "secrets"))),
        here(item("", "v1", "services")),
        here(item("", "v1", "serviceaccounts")),
        here(item("coordination.k8s.io", "v1", "leases")),
        here(item("apps", "v1", "deployments")),
        here(item("apps", "v1", "replicasets")),
        here(item("apps", "v1", "daemonsets")),
        here(in_form(Form::Pod, item("", "v1", "pods"))),
        here(in_form(Form::List, item("", "v1", "events"))),
        here(item("networking.k8s.io", "v1", "networkpolicies")),
        kept(Keep::Namespaces(pod_namespaces.clone()), item("policy", "v1", "poddisruptionbudgets")),
        admission("validatingadmissionpolicies"),
        admission("validatingadmissionpolicybindings"),
        rbac("clusterroles"),
        rbac("clusterrolebindings"),
        here(rbac("roles")),
        here(rbac("rolebindings")),
        machines("machines"),
        machines("machinesets"),
        // They name no system: what they select, labels say.
        kept(Keep::All, machines("machinehealthchecks")),
        cluster_api("machines", Keep::WindowsMachines),
        cluster_api("machinesets", Keep::WindowsMachines),
        cluster_api("machinedeployments", Keep::WindowsMachines),
        cluster_api("machinehealthchecks", Keep::All),
        item("operator.openshift.io", "v1", "networks"),
    ];
    for resource in ["networks", "infrastructures", "clusterversions", "proxies", "dnses"] {
        items.push(item("config.openshift.io", "v1", resource));
    }
    for (version, resource) in [
        ("v1alpha1", "subscriptions"),
        ("v1alpha1", "clusterserviceversions"),
        ("v1alpha1", "installplans"),
        ("v2", "operatorconditions"),
    ] {
        items.push(here(item("operators.coreos.com", version, resource)));
    }
    items
}

/// An object in its form.
pub(super) fn formed(form: Form, mut object: Value) -> Value {
    match form {
        Form::Crd => {
            for version in object["spec"]["versions"].as_array_mut().into_iter().flatten() {
                version["schema"] = json!("left out");
            }
            object
        }
        Form::Secret => {
            // Also if an API server returns whole objects, which it must not.
            let metadata = &object["metadata"];
            let of_field = |managed: &Value| managed["fieldsV1"]["f:data"].as_object().cloned().unwrap_or_default();
            let managed = metadata["managedFields"].as_array().into_iter().flatten();
            let keys: BTreeSet<String> = managed
                .flat_map(|m| of_field(m).into_iter().map(|(key, _)| key))
                .filter_map(|key| Some(key.strip_prefix("f:")?.to_owned()))
                .collect();
            let part = |field: &str| metadata[field].clone();
            json!({
                "kind": "Secret", "contains": keys,
                "metadata": {"name": part("name"), "namespace": part("namespace"), "creationTimestamp": part("creationTimestamp")},
            })
        }
        Form::Whole | Form::List | Form::Pod => object,
    }
}

/// Events from the oldest to the newest, as far as the newest fit into `most` bytes of JSON. The API server lists them by name.
pub(super) fn newest_events(mut events: Vec<Value>, most: usize) -> Vec<Value> {
    let time = |event: &Value| {
        let times = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
        // Times of one form: they are in order as texts.
        times.iter().find_map(|path| event.pointer(path)?.as_str().map(str::to_owned)).unwrap_or_default()
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

/// What is written of a pod of another owner: what keeps it where it is, and nothing of what it runs with.
pub(super) fn summary(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    json!({
        "namespace": metadata["namespace"], "name": metadata["name"], "node": pod["spec"]["nodeName"],
        "phase": pod["status"]["phase"], "reason": pod["status"]["reason"],
        "owners": metadata["ownerReferences"].as_array().into_iter().flatten()
            .map(|owner| json!({"kind": owner["kind"], "name": owner["name"]})).collect::<Vec<_>>(),
        "labels": metadata["labels"], "priorityClassName": pod["spec"]["priorityClassName"],
        "creationTimestamp": metadata["creationTimestamp"], "deletionTimestamp": metadata["deletionTimestamp"],
        "finalizers": metadata["finalizers"],
    })
}

/// The containers of a pod, and whether each has a log of a run before the present one.
pub(super) fn containers(pod: &Value) -> Vec<(String, bool)> {
    let restarted = |name: &str| {
        ["containerStatuses", "initContainerStatuses"].iter().any(|statuses| {
            let statuses = pod["status"][*statuses].as_array().into_iter().flatten();
            statuses.filter(|s| s["name"] == name).any(|s| s["restartCount"].as_u64().is_some_and(|n| n > 0))
        })
    };
    let all =
        ["initContainers", "containers"].iter().flat_map(|field| pod["spec"][*field].as_array().into_iter().flatten());
    all.filter_map(|c| c["name"].as_str()).map(|name| (name.to_owned(), restarted(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(resource: &str, namespace: Option<&str>) -> Item {
        let nodes = [("win-1".to_owned())].into();
        let items = items("operator", &nodes, &["shop".to_owned()].into());
        items.into_iter().find(|i| i.resource == resource && i.namespace.as_deref() == namespace).unwrap()
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
            event("c", "2027-01-01T00:02:00Z"),
        ];
        let one = events[0].to_string().len();
        for (most, expected) in [(10_000, "b c e a"), (2 * one, "e a"), (one, "a"), (0, "")] {
            let kept = newest_events(events.clone(), most);
            let names: Vec<&str> = kept.iter().filter_map(|e| e["metadata"]["name"].as_str()).collect();
            assert_eq!(names.join(" "), expected, "{most}");
        }
    }

    #[test]
    fn what_is_kept_is_ours() {
        for (resource, namespace, object, expected) in [
            ("leases", Some("kube-node-lease"), json!({"metadata": {"name": "win-1"}}), true),
            ("leases", Some("kube-node-lease"), json!({"metadata": {"name": "linux"}}), false),
            ("configmaps", Some("operator"), json!({"metadata": {"name": "windows-services-1.0-abc"}}), true),
            ("configmaps", Some("operator"), json!({"metadata": {"name": "another"}}), false),
            ("events", Some("default"), json!({"involvedObject": {"kind": "Node", "name": "win-1"}}), true),
            ("events", Some("default"), json!({"involvedObject": {"kind": "Node", "name": "linux"}}), false),
            (
                "events",
                Some("default"),
                json!({"involvedObject": {"apiVersion": format!("{GROUP}/v1"), "kind": "X"}}),
                true,
            ),
            ("events", Some("operator"), json!({}), true),
            (
                "certificatesigningrequests",
                None,
                json!({"spec": {"signerName": "kubernetes.io/kubelet-serving"}}),
                true,
            ),
            ("certificatesigningrequests", None, json!({"spec": {"signerName": "example.com/x"}}), false),
            ("validatingadmissionpolicies", None, json!({"metadata": {"name": "windows-node-pools-services"}}), true),
            ("validatingadmissionpolicies", None, json!({"metadata": {"name": "other"}}), false),
            ("poddisruptionbudgets", None, json!({"metadata": {"namespace": "shop"}}), true),
            ("poddisruptionbudgets", None, json!({"metadata": {"namespace": "other"}}), false),
            (
                "machines",
                Some("openshift-machine-api"),
                json!({"metadata": {"labels": {"machine.openshift.io/os-id": "Windows"}}}),
                true,
            ),
            ("machines", Some("openshift-machine-api"), json!({"metadata": {"name": "linux"}}), false),
            (
                "machines",
                Some("openshift-machine-api"),
                json!({"metadata": {"labels": {"node.cluster.x-k8s.io/os": "windows"}}}),
                false,
            ),
            ("machines", None, json!({"metadata": {"labels": {"node.cluster.x-k8s.io/os": "windows"}}}), true),
            ("machines", None, json!({"metadata": {"labels": {"node.cluster.x-k8s.io/os": "linux"}}}), false),
            (
                "machinedeployments",
                None,
                json!({"spec": {"template": {"metadata": {"labels": {"machine.openshift.io/os-id": "Windows"}}}}}),
                true,
            ),
            ("machinehealthchecks", Some("openshift-machine-api"), json!({"metadata": {"name": "any"}}), true),
            ("machinehealthchecks", None, json!({"metadata": {"name": "any"}}), true),
        ] {
            assert_eq!(find(resource, namespace).keeps(&object), expected, "{resource} {object}");
        }
    }

    #[test]
    fn no_plan_reads_a_secret() {
        for item in items("operator", &BTreeSet::new(), &BTreeSet::new()).iter().chain(&with_names("operator")) {
            assert_eq!(item.resource == "secrets", item.form == Form::Secret);
        }
        let managed = json!([{"fieldsV1": {"f:data": {".": {}, "f:private-key.pem": {}}}}]);
        let secret = json!({"metadata": {"name": "k", "managedFields": managed, "annotations": {"a": "hunter2"}}, "data": {"x": "hunter2"}});
        let written = formed(Form::Secret, secret);
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
        assert_eq!(containers(&pod), [("c".to_owned(), true)]);
    }

    #[test]
    fn files_lie_where_other_tools_look() {
        let leases = find("leases", Some("operator"));
        assert_eq!(leases.path(), "/apis/coordination.k8s.io/v1/namespaces/operator/leases");
        assert_eq!(leases.folder(Some("operator")), "namespaces/operator/coordination.k8s.io/leases");
        assert_eq!(nodes().folder(None), "cluster-scoped-resources/core/nodes");
        assert_eq!(nodes().path(), "/api/v1/nodes");
    }
}
