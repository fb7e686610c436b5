//! Objects that OLM creates from a bundle, as far as its source code shows.

use std::collections::BTreeMap;

use api::names::DEFAULT_NAMESPACE;
use serde_json::{Value, json};

/// Expands a bundle to its objects, in no order. Objects whose names OLM generates get the name of their ServiceAccount.
pub(super) fn expand(files: &BTreeMap<String, String>) -> Vec<Value> {
    let manifests = files.iter().filter(|(path, _)| path.starts_with("manifests/"));
    let (csvs, mut objects): (Vec<Value>, Vec<Value>) = manifests
        .map(|(path, text)| serde_yaml::from_str::<Value>(text).unwrap_or_else(|error| panic!("{path}: {error}")))
        .partition(|object| object["kind"] == "ClusterServiceVersion");
    for csv in csvs {
        let install = &csv["spec"]["install"]["spec"];
        // If the operator watches all namespaces, OLM turns `permissions` into rules for the whole cluster.
        assert!(install["permissions"].is_null(), "rights in one namespace");
        for permission in install["clusterPermissions"].as_array().into_iter().flatten() {
            objects.extend(of_permission(permission));
        }
        for deployment in install["deployments"].as_array().into_iter().flatten() {
            objects.push(of_deployment(deployment, &csv));
        }
    }
    objects
}

fn of_permission(permission: &Value) -> [Value; 3] {
    let name = &permission["serviceAccountName"];
    let rbac = "rbac.authorization.k8s.io";
    let metadata = json!({"name": name});
    [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": DEFAULT_NAMESPACE}}),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": metadata, "rules": permission["rules"]}),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": DEFAULT_NAMESPACE}]}),
    ]
}

fn of_deployment(deployment: &Value, csv: &Value) -> Value {
    let mut spec = deployment["spec"].clone();
    let annotations = csv["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    for (key, value) in annotations {
        spec["template"]["metadata"]["annotations"][key] = value;
    }
    spec["revisionHistoryLimit"] = json!(1);
    let name = json!({"name": "OPERATOR_CONDITION_NAME", "value": csv["metadata"]["name"]});
    spec["template"]["spec"]["containers"][0]["env"].as_array_mut().unwrap().push(name);
    let metadata = json!({"name": deployment["name"], "namespace": DEFAULT_NAMESPACE, "labels": deployment["label"]});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
}
