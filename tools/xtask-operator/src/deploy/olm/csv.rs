//! ClusterServiceVersion of the bundle.

use anyhow::{Context as _, Result};
use api::names::{DEFAULT_KEY_SECRET, DEFAULT_KEY_SECRET_KEY, DEFAULT_NAMESPACE};
use serde_json::{Map, Value, json};

use super::{NAME, Release, Sorted, VERSION, csv_name, openshift_version};

/// Name of the property with the newest OpenShift version.
pub(super) const MAX_OPENSHIFT: &str = "olm.maxOpenShiftVersion";
/// Short description: one sentence.
pub(super) const DESCRIPTION: &str = "Turns Windows hosts into nodes of the cluster, over SSH, and removes them again.";

/// Long description, in Markdown.
const LONG: &str = "\
You write a WindowsNodePool with a list of hosts. The operator joins them in parallel, rolls changes out with cordon and drain inside a
disruption budget, approves the certificates of proven hosts alone, and deconfigures a host that leaves the list.

## Before you install

- Install into the namespace `openshift-windows-machine-config-operator`. The rights of the operator are bound there.
- Remove the Windows Machine Config Operator first, its Subscription and its ClusterServiceVersion: until its Pod is gone, this operator
  begins nothing.
- Store the SSH key of your hosts in the Secret `cloud-private-key`, key `private-key.pem`.
- The cluster must have the kinds `ServiceMonitor` and `PrometheusRule` of the Prometheus operator, as OpenShift has: the bundle has objects of
  both, and without the kinds its InstallPlan fails.

## After you have installed

A bundle cannot hold admission policies. Apply those of this release, after each upgrade, too: until then the operator gives the daemons of hosts no
rights, and begins nothing on a host.

    kubectl apply --server-side --force-conflicts -f deploy/base/policies.yaml

Not proven on real Windows: the tests run under Wine and on simulated hosts.";

/// Features that certification asks for, with their current support.
const FEATURES: [(&str, bool); 10] = [
    // Every image is named by its digest, and hosts follow the cluster's mirrors.
    ("disconnected", true),
    // The TLS library is not a validated module.
    ("fips-compliant", false),
    // Hosts use the cluster's Proxy. Connections to Git repositories use it by the variables that OLM sets.
    ("proxy-aware", true),
    // The operator's own ports do not follow the TLS profile of the APIServer.
    ("tls-profiles", false),
    ("token-auth-aws", false),
    ("token-auth-azure", false),
    ("token-auth-gcp", false),
    ("cnf", false),
    ("cni", false),
    ("csi", false),
];

/// Returns the range of versions that this version replaces directly.
pub(super) fn skip_range() -> String {
    format!("<{VERSION}")
}

/// Returns the whole ClusterServiceVersion.
pub(super) fn csv(release: &Release<'_>, sorted: &Sorted) -> Result<Value> {
    let minimum = openshift_version::oldest_kubernetes(release.kubernetes).context("a payload has no kubelet")?;
    Ok(json!({
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": csv_name(),
            "namespace": "placeholder",
            "annotations": annotations(release)?,
            "labels": {"operatorframework.io/arch.amd64": "supported", "operatorframework.io/os.linux": "supported"},
        },
        "spec": {
            "displayName": "Windows node pools",
            "description": LONG,
            "version": VERSION,
            "maturity": "alpha",
            "minKubeVersion": minimum,
            "keywords": ["windows", "nodes", "containers"],
            "provider": {"name": "Windows node pools"},
            "installModes": install_modes(),
            "customresourcedefinitions": {"owned": owned()?},
            "relatedImages": related_images(release),
            "install": {"strategy": "deployment", "spec": {
                "clusterPermissions": [{"serviceAccountName": NAME, "rules": sorted.cluster_rules}],
                "deployments": [deployment(&sorted.deployment)],
            }},
        },
    }))
}

fn related_images(release: &Release<'_>) -> Vec<Value> {
    let images =
        [("operator", Some(release.image)), ("payload", release.payload), ("must-gather", release.must_gather)];
    images.into_iter().filter_map(|(name, image)| Some(json!({"name": name, "image": image?}))).collect()
}

/// Returns the install modes. The operator's kinds are cluster-scoped, and its own namespace is that of its Pod, in both supported modes.
fn install_modes() -> Value {
    let mode = |(mode, supported)| json!({"type": mode, "supported": supported});
    let modes =
        [("OwnNamespace", true), ("SingleNamespace", false), ("MultiNamespace", false), ("AllNamespaces", true)];
    modes.map(mode).into()
}

fn annotations(release: &Release<'_>) -> Result<Value> {
    let minimal =
        api::examples().into_iter().find(|example| example.name == "minimal").context("no minimal example")?;
    let minimal = without_null(json!(minimal.pool));
    let mut annotations = json!({
        // There is one object of each kind, because consoles identify them by kind and name.
        "alm-examples": serde_json::to_string_pretty(&[&minimal, &instance()])?,
        "capabilities": "Full Lifecycle",
        "categories": "Cloud Provider, OpenShift Optional",
        "containerImage": release.image,
        "description": DESCRIPTION,
        "olm.skipRange": skip_range(),
        "operatorframework.io/cluster-monitoring": "true",
        "operatorframework.io/initialization-resource": minimal.to_string(),
        "operatorframework.io/suggested-namespace": DEFAULT_NAMESPACE,
        // Only the operator writes instances: consoles do not offer to create one.
        "operators.operatorframework.io/internal-objects": json!([instance_crd()?]).to_string(),
    });
    if let Some(newest) = openshift_version::newest_openshift(release.kubernetes) {
        annotations["olm.properties"] = json!([{"type": MAX_OPENSHIFT, "value": newest}]).to_string().into();
    }
    if let Some(image) = release.must_gather {
        // `oc adm must-gather --all-images` finds the image by this annotation.
        annotations["operators.openshift.io/must-gather-image"] = image.into();
    }
    for (feature, supported) in FEATURES {
        annotations[format!("features.operators.openshift.io/{feature}")] = supported.to_string().into();
    }
    Ok(annotations)
}

/// Returns an example of a WindowsInstance. Each kind needs an example, even one that only the operator creates.
fn instance() -> Value {
    let key = json!({"name": DEFAULT_KEY_SECRET, "key": DEFAULT_KEY_SECRET_KEY});
    json!({
        "apiVersion": format!("{}/{}", api::names::GROUP, api::names::VERSION),
        "kind": "WindowsInstance",
        "metadata": {"name": "win-1"},
        "spec": {
            "poolRef": {"name": "factory"},
            "host": {"name": "win-1", "address": "10.20.0.11", "port": 22, "username": "Administrator", "privateKeys": [key]},
        },
    })
}

fn instance_crd() -> Result<String> {
    let crds = api::crds();
    let crd = crds.iter().find(|crd| crd.spec.names.kind == "WindowsInstance").context("no CRD of instances")?;
    crd.metadata.name.clone().context("a CRD has no name")
}

/// Returns the owned kinds, with descriptions from their schemas.
fn owned() -> Result<Vec<Value>> {
    api::crds()
        .iter()
        .map(|crd| {
            let crd = serde_json::to_value(crd)?;
            let version = &crd["spec"]["versions"][0];
            let schema = &version["schema"]["openAPIV3Schema"];
            let kind = crd["spec"]["names"]["kind"].as_str().context("a CRD has no kind")?;
            let fields = |part: &str| descriptors(&schema["properties"][part]["properties"]);
            Ok(json!({
                "name": crd["metadata"]["name"],
                "kind": kind,
                "version": version["name"],
                "displayName": words(kind),
                "description": schema["description"],
                "resources": [{"kind": "Node", "version": "v1", "name": ""}, {"kind": "WindowsInstance", "version": version["name"], "name": ""}],
                "specDescriptors": fields("spec"),
                "statusDescriptors": fields("status"),
            }))
        })
        .collect()
}

/// Returns the descriptors that consoles show beside the fields of an object.
fn descriptors(properties: &Value) -> Vec<Value> {
    let descriptor = |(path, schema): (&String, &Value)| {
        let mut descriptor = json!({"path": path, "displayName": words(path), "description": schema["description"]});
        if path == "conditions" {
            descriptor["x-descriptors"] = json!(["urn:alm:descriptor:io.kubernetes.conditions"]);
        }
        without_null(descriptor)
    };
    properties.as_object().into_iter().flatten().map(descriptor).collect()
}

/// Returns a name in camel case as words: `deletionPolicy` becomes `Deletion Policy`.
fn words(name: &str) -> String {
    let mut words = String::new();
    for (at, c) in name.char_indices() {
        match (at, c.is_uppercase()) {
            (0, _) => words.extend(c.to_uppercase()),
            (_, true) => words.extend([' ', c]),
            (_, false) => words.push(c),
        }
    }
    words
}

fn deployment(deployment: &Value) -> Value {
    json!({"name": deployment["metadata"]["name"], "label": deployment["metadata"]["labels"], "spec": deployment["spec"]})
}

fn without_null(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_null(value)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.into_iter().map(without_null).collect::<Vec<_>>().into(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_fields_become_words() {
        for (name, expected) in
            [("deletionPolicy", "Deletion Policy"), ("ssh", "Ssh"), ("WindowsNodePool", "Windows Node Pool"), ("", "")]
        {
            assert_eq!(words(name), expected);
        }
    }
}
