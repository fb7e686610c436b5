//! Tests that a bundle meets the requirements of OLM, and contains the objects of the other forms. OLM itself does not run here.

use std::collections::BTreeMap;

use api::{WindowsInstance, WindowsNodePool};
use serde_json::{Value, json};
use testbed::deployment::created_by_olm;

use super::{
    super::{
        Platform,
        drift_tests::{Difference, Objects, assert_same, by_name, expected, label, of_deployment},
    },
    *,
};

const IMAGE: &str = "registry.example.com/a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const MUST_GATHER: &str =
    "registry.example.com/c@sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const BUNDLE_IMAGE: &str =
    "registry.example.com/b@sha256:fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";
const RELEASE: Release<'_> = Release { image: IMAGE, must_gather: Some(MUST_GATHER), payload: None, kubernetes: &[37] };

const PAYLOAD: &str = "registry.example.com/p@sha256:ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";
/// Release whose operator's image has no payload.
const WITH_PAYLOAD: Release<'_> = Release { payload: Some(PAYLOAD), ..RELEASE };

/// Kinds that a bundle of format registry+v1 may contain, and whether they are in a namespace: `supportedResources` of operator-registry, which
/// OLM v1 uses, too.
const SUPPORTED: [(&str, bool); 22] = [
    ("ClusterServiceVersion", true),
    ("CustomResourceDefinition", false),
    ("ClusterRole", false),
    ("ClusterRoleBinding", false),
    ("Service", true),
    ("ServiceAccount", true),
    ("Role", true),
    ("RoleBinding", true),
    ("PrometheusRule", true),
    ("ServiceMonitor", true),
    ("Secret", true),
    ("ConfigMap", true),
    ("PodDisruptionBudget", true),
    ("PriorityClass", false),
    ("VerticalPodAutoscaler", false),
    ("ConsoleYAMLSample", false),
    ("ConsoleQuickStart", false),
    ("ConsoleCLIDownload", false),
    ("ConsoleLink", false),
    ("ConsolePlugin", false),
    ("NetworkPolicy", true),
    ("PodMonitor", true),
];

fn manifests() -> Vec<(String, Value)> {
    manifests_of(&RELEASE)
}

fn manifests_of(release: &Release<'_>) -> Vec<(String, Value)> {
    let files = bundle(release).unwrap().into_iter().filter(|(path, _)| path.starts_with("manifests/"));
    files.map(|(path, text)| (path, serde_yaml::from_str(&text).unwrap())).collect()
}

fn the_csv() -> Value {
    csv_of(&RELEASE)
}

fn csv_of(release: &Release<'_>) -> Value {
    manifests_of(release).into_iter().find(|(_, object)| object["kind"] == "ClusterServiceVersion").unwrap().1
}

#[test]
fn olm_supports_every_kind_of_the_bundle_in_its_namespace() {
    let manifests = manifests();
    assert!(manifests.len() > 8, "{}", manifests.len());
    for (path, object) in &manifests {
        let kind = object["kind"].as_str().unwrap();
        let supported = SUPPORTED.iter().find(|(name, _)| *name == kind);
        let (_, namespaced) = supported.unwrap_or_else(|| panic!("{path}: OLM does not take a {kind}"));
        if *namespaced && kind != "ClusterServiceVersion" {
            // OLM installs all of them there, whatever their namespace is.
            assert_eq!(object["metadata"]["namespace"], api::names::DEFAULT_NAMESPACE, "{path}");
        }
    }
}

/// Differences of the bundle's objects from those of `deploy/openshift`.
const DIFFERENCES: &[Difference] = &[
    ("users apply the policies, because a bundle cannot hold them", |objects| {
        objects.retain(|(kind, ..), _| !kind.starts_with("ValidatingAdmissionPolicy"));
    }),
    ("OLM manages the objects", |objects| label(objects, "app.kubernetes.io/managed-by", "olm")),
    ("OLM writes no labels of ours where it makes an object from the ClusterServiceVersion", |objects| {
        for ((kind, _, name), object) in objects.iter_mut() {
            let from_csv = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"].contains(&kind.as_str());
            if from_csv && name == "windows-node-pools" {
                object["metadata"].as_object_mut().unwrap().remove("labels");
            }
        }
    }),
    ("roles for other namespaces become rules of the ClusterRole, because a bundle has one namespace", |objects| {
        let is_elsewhere = |(kind, namespace, name): &(String, String, String)| {
            kind.starts_with("Role") && namespace != api::names::DEFAULT_NAMESPACE && name == "windows-node-pools"
        };
        let rules: Vec<Value> = objects
            .iter()
            .filter(|(key, _)| is_elsewhere(key))
            .filter_map(|(_, object)| object["rules"].as_array())
            .flatten()
            .cloned()
            .collect();
        // Each rule is only for objects that it names.
        assert!(rules.len() == 4 && rules.iter().all(|rule| rule["resourceNames"].is_array()), "{rules:?}");
        objects.retain(|key, _| !is_elsewhere(key));
        cluster_rules(objects).extend(rules);
    }),
    ("OLM adds fields to the Deployment", |objects| {
        let csv = the_csv();
        let deployment = objects.iter_mut().find(|((kind, ..), _)| kind == "Deployment").unwrap().1;
        deployment["spec"]["revisionHistoryLimit"] = json!(1.0);
        let annotations = &mut deployment["spec"]["template"]["metadata"]["annotations"];
        for (key, value) in csv["metadata"]["annotations"].as_object().unwrap() {
            annotations[key] = value.clone();
        }
        let condition = json!({"name": "OPERATOR_CONDITION_NAME", "value": csv["metadata"]["name"]});
        let container = &mut of_deployment(objects)["containers"][0];
        container["env"].as_array_mut().unwrap().push(condition);
        container["image"] = json!(IMAGE);
    }),
];

fn cluster_rules(objects: &mut Objects) -> &mut Vec<Value> {
    let role = objects.iter_mut().find(|((kind, _, name), _)| kind == "ClusterRole" && name == "windows-node-pools");
    role.unwrap().1["rules"].as_array_mut().unwrap()
}

#[test]
fn a_bundle_has_the_objects_of_openshift_except_for_listed_differences() {
    let mut expected = expected(Platform::OpenShift, &[], DIFFERENCES);
    expected.retain(|(kind, ..), _| kind != "Namespace");
    let install = &the_csv()["spec"]["install"]["spec"];
    // If the operator watches all namespaces, OLM turns `permissions` into rules for the whole cluster.
    assert!(install["permissions"].is_null() && install["clusterPermissions"].as_array().unwrap().len() == 1);
    assert_eq!(install["deployments"].as_array().unwrap().len(), 1);
    let mut found = by_name(manifests().into_iter().flat_map(|(_, object)| created_by_olm(object)));
    // The order of rules does not matter.
    for object in found.values_mut().chain(expected.values_mut()) {
        if let Some(rules) = object.get_mut("rules").and_then(Value::as_array_mut) {
            rules.sort_by_key(Value::to_string);
        }
    }
    assert_same("olm", &found, &expected);
}

#[test]
fn every_image_of_a_release_has_a_digest_and_is_listed() {
    for release in [RELEASE, WITH_PAYLOAD] {
        let csv = csv_of(&release);
        let related = csv["spec"]["relatedImages"].as_array().unwrap();
        let related: Vec<_> = related.iter().map(|image| image["image"].as_str().unwrap()).collect();
        let pod = &csv["spec"]["install"]["spec"]["deployments"][0]["spec"]["template"]["spec"];
        let containers = ["containers", "initContainers"].iter().filter_map(|key| pod[*key].as_array()).flatten();
        for container in containers {
            let image = container["image"].as_str().unwrap();
            assert!(image.contains("@sha256:") && related.contains(&image), "{image}");
        }
        assert_eq!(csv["metadata"]["annotations"]["containerImage"], IMAGE);
        assert_eq!(csv["metadata"]["annotations"]["operators.openshift.io/must-gather-image"], MUST_GATHER);
        assert!(related.contains(&MUST_GATHER));
        assert_eq!(related.contains(&PAYLOAD), release.payload.is_some());
    }
}

/// Checks that a bundle copies the payload on all clusters, because many nodes cannot mount an image.
#[test]
fn a_bundle_copies_the_payload_from_an_image_of_its_own() {
    let csv = csv_of(&WITH_PAYLOAD);
    let pod = &csv["spec"]["install"]["spec"]["deployments"][0]["spec"]["template"]["spec"];
    let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let images: Vec<_> = list(&pod["initContainers"]).iter().map(|one| one["image"].clone()).collect();
    assert_eq!(images, [IMAGE, PAYLOAD]);
    assert!(list(&pod["volumes"]).iter().all(|volume| volume["image"].is_null()));
    let operator = &pod["containers"][0];
    assert_eq!(operator["image"], IMAGE);
    assert!(list(&operator["env"]).iter().any(|variable| variable["name"] == "PAYLOAD_DIR"));
    assert!(list(&operator["volumeMounts"]).iter().any(|mount| mount["name"] == "payload"));
    let pod = &the_csv()["spec"]["install"]["spec"]["deployments"][0]["spec"]["template"]["spec"];
    assert_eq!(pod["initContainers"], Value::Null);
}

#[test]
fn the_examples_are_objects_of_the_owned_kinds() {
    let csv = the_csv();
    let annotations = &csv["metadata"]["annotations"];
    let text = |key: &str| annotations[key].as_str().unwrap();
    let examples: Vec<Value> = serde_json::from_str(text("alm-examples")).unwrap();
    let owned = csv["spec"]["customresourcedefinitions"]["owned"].as_array().unwrap();
    assert_eq!(owned.len(), 2);
    for crd in owned {
        let of_kind: Vec<_> = examples.iter().filter(|example| example["kind"] == crd["kind"]).collect();
        assert!(of_kind.len() == 1 && crd["description"].as_str().is_some_and(|text| text.len() > 20), "{crd}");
        for example in of_kind {
            match crd["kind"].as_str().unwrap() {
                "WindowsNodePool" => drop(serde_json::from_value::<WindowsNodePool>(example.clone()).unwrap()),
                _ => drop(serde_json::from_value::<WindowsInstance>(example.clone()).unwrap()),
            }
        }
        for part in ["specDescriptors", "statusDescriptors"] {
            let described = crd[part].as_array().unwrap();
            assert!(
                !described.is_empty() && described.iter().all(|field| field["description"].is_string()),
                "{part}: {described:?}"
            );
        }
    }
    let first: WindowsNodePool = serde_json::from_str(text("operatorframework.io/initialization-resource")).unwrap();
    assert!(first.spec.inventory.hosts.is_some());
    let internal: Vec<String> = serde_json::from_str(text("operators.operatorframework.io/internal-objects")).unwrap();
    assert_eq!(internal, ["windowsinstances.windowsmachineconfig.openshift.io"]);
}

#[test]
fn the_csv_states_features_versions_and_install_modes() {
    let csv = the_csv();
    let annotations = csv["metadata"]["annotations"].as_object().unwrap();
    let claims: Vec<_> =
        annotations.iter().filter(|(key, _)| key.starts_with("features.operators.openshift.io/")).collect();
    assert_eq!(claims.len(), 10);
    assert!(claims.iter().all(|(_, value)| *value == "true" || *value == "false"));
    assert_eq!(annotations["features.operators.openshift.io/fips-compliant"], "false");
    assert_eq!(annotations["operatorframework.io/suggested-namespace"], api::names::DEFAULT_NAMESPACE);
    let properties: Value = serde_json::from_str(annotations["olm.properties"].as_str().unwrap()).unwrap();
    assert_eq!(properties, json!([{"type": "olm.maxOpenShiftVersion", "value": "5.4"}]));
    assert_eq!(csv["spec"]["minKubeVersion"], "1.37.0");
    let modes: BTreeMap<_, _> = csv["spec"]["installModes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mode| (mode["type"].as_str().unwrap(), mode["supported"].as_bool().unwrap()))
        .collect();
    assert_eq!(
        modes.into_iter().filter(|(_, supported)| *supported).map(|(mode, _)| mode).collect::<Vec<_>>(),
        ["AllNamespaces", "OwnNamespace"]
    );
    // OLM creates objects whose names begin with this one, and have at most 63 characters.
    assert!(csv["metadata"]["name"].as_str().unwrap().len() <= 40);
}

#[test]
fn the_catalog_leads_to_the_bundle() {
    let text = catalog(&RELEASE, BUNDLE_IMAGE).unwrap();
    let documents = crate::yaml::documents(&text);
    let [package, channel, bundle] = documents.as_slice() else { panic!("{text}") };
    assert_eq!((&package["schema"], &package["defaultChannel"]), (&json!("olm.package"), &channel["name"]));
    assert_eq!((&channel["package"], &channel["entries"][0]["name"]), (&package["name"], &bundle["name"]));
    assert_eq!(bundle["image"], BUNDLE_IMAGE);
    let types: Vec<_> =
        bundle["properties"].as_array().unwrap().iter().map(|property| property["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["olm.gvk", "olm.gvk", "olm.package", "olm.maxOpenShiftVersion", "olm.csv.metadata"]);
    let images: Vec<_> =
        bundle["relatedImages"].as_array().unwrap().iter().map(|image| image["image"].as_str().unwrap()).collect();
    assert_eq!(images, [IMAGE, MUST_GATHER, BUNDLE_IMAGE]);
    let annotations: Value =
        serde_yaml::from_str(&without_crds(&RELEASE).unwrap()["metadata/annotations.yaml"]).unwrap();
    assert_eq!(annotations["annotations"]["operators.operatorframework.io.bundle.package.v1"], package["name"]);
    assert_eq!(annotations["annotations"]["operators.operatorframework.io.bundle.channels.v1"], channel["name"]);
}
