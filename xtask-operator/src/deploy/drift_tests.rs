//! Every form of the installation, rendered by the tools of its users, holds the same objects: but for what is named here.

use std::{collections::BTreeMap, process::Command};

use api::names::DEFAULT_NAMESPACE;
use serde_json::{Value, json};
use testbed::{binaries, registry::Registry};

use super::{
    Object, Platform, Site, VERSION, chart, crds,
    kustomize_tests::{build, folder},
    manifest, objects, payload, workload,
};

/// Objects by kind, namespace and name.
pub(super) type Objects = BTreeMap<(String, String, String), Value>;

/// What a form has otherwise than the source, and how.
pub(super) type Difference = (&'static str, fn(&mut Objects));

const NAME: &str = "registry.example.com/a";
const DIGEST_ALONE: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const DIGEST: &str = "registry.example.com/a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const API_SERVER: &str = "https://api.example.com:6443";

const OF_DIST: &[Difference] = &[
    ("the image is named by its digest", |objects| of_deployment(objects)["containers"][0]["image"] = json!(DIGEST)),
    ("kubectl keeps the objects", |objects| label(objects, "app.kubernetes.io/managed-by", "kubectl")),
];

const OF_HELM: &[Difference] = &[
    ("Helm has a test", |objects| {
        let test = chart::test_pod(&Site::default(), of_deployment(objects));
        objects.extend(by_name([test.value].into_iter()));
    }),
    ("Helm makes the namespace", |objects| objects.retain(|(kind, ..), _| kind != "Namespace")),
    ("Helm keeps the objects", |objects| label(objects, "app.kubernetes.io/managed-by", "Helm")),
    ("they belong to a release", |objects| label(objects, "app.kubernetes.io/instance", "a-release")),
    ("they belong to a chart", |objects| {
        label(objects, "helm.sh/chart", concat!("windows-node-pools-", env!("CARGO_PKG_VERSION")));
    }),
    ("CRDs stay when the release goes", |objects| {
        let crds = objects.iter_mut().filter(|((kind, ..), _)| kind == "CustomResourceDefinition");
        crds.for_each(|(_, crd)| crd["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"}));
    }),
];

pub(super) fn of_deployment(objects: &mut Objects) -> &mut Value {
    let deployment = objects.iter_mut().find(|((kind, ..), _)| kind == "Deployment").unwrap().1;
    &mut deployment["spec"]["template"]["spec"]
}

pub(super) fn label(objects: &mut Objects, key: &str, value: &str) {
    // The namespace has none: it may be that of another operator.
    for object in objects.iter_mut().filter(|((kind, ..), _)| kind != "Namespace") {
        object.1["metadata"]["labels"][key] = json!(value);
    }
}

/// The source, with differences.
fn source(objects: &[Object], differences: &[Difference]) -> Objects {
    let all = crds(&Site::default()).unwrap();
    let mut objects = by_name(all.iter().chain(objects).map(|object| object.value.clone()));
    for (_, apply) in differences {
        apply(&mut objects);
    }
    objects
}

/// Objects in YAML.
fn read(yaml: &str) -> Objects {
    let documents = serde_yaml::Deserializer::from_str(yaml).map(|one| serde::Deserialize::deserialize(one).unwrap());
    by_name(documents.filter(|value: &Value| !value.is_null()))
}

pub(super) fn by_name(values: impl Iterator<Item = Value>) -> Objects {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut objects = Objects::new();
    for mut value in values {
        normalise(&mut value);
        let metadata = &value["metadata"];
        let key = (text(&value["kind"]), text(&metadata["namespace"]), text(&metadata["name"]));
        assert!(objects.insert(key.clone(), value).is_none(), "{key:?} is there twice");
    }
    objects
}

/// Whole numbers as such, whatever wrote them.
fn normalise(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(normalise),
        Value::Array(items) => items.iter_mut().for_each(normalise),
        Value::Number(number) => *value = json!(number.as_f64()),
        _ => {}
    }
}

pub(super) fn assert_same(form: &str, rendered: &Objects, expected: &Objects) {
    assert_eq!(rendered.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{form}");
    for (name, object) in expected {
        assert_eq!(&rendered[name], object, "{form}: {name:?}");
    }
}

/// What Helm renders, or its error.
fn helm(values: &[&str]) -> Result<String, String> {
    let mut helm = Command::new(binaries::helm().unwrap());
    let version = binaries::KUBERNETES_VERSION;
    helm.args(["template", "a-release", "--namespace", DEFAULT_NAMESPACE, "--kube-version", version]);
    helm.arg(devenv::workspace_root().join(chart::FOLDER));
    helm.args(values.iter().flat_map(|value| ["--set", value]));
    let output = helm.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// As a person installs it from a registry.
#[test]
fn a_chart_in_a_registry_is_the_same() {
    let (registry, folder) = (Registry::start().unwrap(), tempfile::tempdir().unwrap());
    let run = |args: &[&str]| {
        let mut helm = Command::new(binaries::helm().unwrap());
        let output =
            helm.current_dir(folder.path()).env("HELM_CONFIG_HOME", folder.path()).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let chart = devenv::workspace_root().join(chart::FOLDER);
    let (archive, charts) =
        (format!("windows-node-pools-{VERSION}.tgz"), format!("oci://{}/charts", registry.address()));
    run(&["package", chart.to_str().unwrap()]);
    run(&["push", &archive, &charts, "--plain-http"]);
    let (pushed, version) = (format!("{charts}/windows-node-pools"), binaries::KUBERNETES_VERSION);
    let namespace = ["--namespace", DEFAULT_NAMESPACE, "--kube-version", version];
    let rendered =
        run(&[&["template", "a-release", &pushed, "--version", VERSION, "--plain-http"], &namespace[..]].concat());
    assert_eq!(read(&rendered), read(&helm(&[]).unwrap()));
}

#[test]
fn overlays_chart_and_manifests_of_a_release_are_the_same_objects() {
    let all = objects(&Site::default());
    for platform in Platform::ALL {
        let name = platform.name();
        let expected = platform.objects(&all);
        let folder = devenv::workspace_root().join("deploy").join(name);
        assert_same("kustomize", &read(&build(&folder).unwrap()), &source(&expected, &[]));
        assert_same("dist", &read(&manifest(platform, DIGEST, None).unwrap()), &source(&expected, OF_DIST));
        let mut of_helm = expected.clone();
        let (set, api_server) = (format!("platform={name}"), format!("operator.apiServer={API_SERVER}"));
        let mut values = vec![set.as_str()];
        if platform == Platform::Kubernetes {
            // The overlay has it as a comment.
            values.push(&api_server);
            let variable = json!({"name": "WINDOWS_NODE_POOLS_API_SERVER", "value": API_SERVER});
            let deployment = of_helm.iter_mut().find(|object| object.kind() == "Deployment").unwrap();
            let container = deployment.value.pointer_mut("/spec/template/spec/containers/0").unwrap();
            container["env"].as_array_mut().unwrap().push(variable);
        }
        assert_same("helm", &read(&helm(&values).unwrap()), &source(&of_helm, OF_HELM));
    }
}

#[test]
fn all_that_is_optional_is_the_same_by_kustomize_and_by_helm() {
    let folder = folder(&[]);
    let kustomization = "\
resources: [../../deploy/openshift, ../../deploy/cluster-api, ../../deploy/azure]
components:
- ../../deploy/components/dashboard-grafana
- ../../deploy/components/dashboard-openshift
- ../../deploy/components/guards
- ../../deploy/components/network-policy
- ../../deploy/components/view-roles
";
    std::fs::write(folder.path().join("kustomization.yaml"), kustomization).unwrap();
    let by_kustomize = read(&build(folder.path()).unwrap());
    let mut expected = objects(&Site::default());
    for patch in Platform::OpenShift.patches() {
        for object in &mut expected {
            patch.apply(object);
        }
    }
    assert_same("kustomize", &by_kustomize, &source(&expected, &[]));
    let enabled =
        ["clusterApi", "azure", "guards", "networkPolicy", "viewRoles"].map(|what| format!("{what}.enabled=true"));
    let dashboards = ["dashboards.grafana=true", "dashboards.openshift=true"];
    let values: Vec<&str> = enabled.iter().map(String::as_str).chain(dashboards).collect();
    let by_helm = helm(&values).unwrap();
    assert_same("helm", &read(&by_helm), &source(&expected, OF_HELM));
}

/// The objects for OpenShift with the payload in an image of its own, rendered by kustomize and by Helm.
fn assert_same_with_payload(form: payload::Form) -> Vec<Object> {
    let folder = folder(&[]);
    let kustomization = json!({
        "resources": ["../../deploy/openshift"], "components": [format!("../../deploy/{}", form.component())],
        "images": [{"name": payload::IMAGE, "newName": NAME, "digest": DIGEST_ALONE}],
    });
    std::fs::write(folder.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let mut expected = Platform::OpenShift.objects(&objects(&Site::default()));
    for object in &mut expected {
        for patch in form.patches(&workload::default_image(), DIGEST) {
            patch.apply(object);
        }
    }
    assert_same("kustomize", &read(&build(folder.path()).unwrap()), &source(&expected, &[]));
    let by_helm = helm(&[&format!("payload.image={DIGEST}"), &format!("payload.by={}", form.value())]).unwrap();
    assert_same("helm", &read(&by_helm), &source(&expected, OF_HELM));
    expected
}

#[test]
fn the_payload_as_a_volume_is_the_same_in_each_form() {
    let expected = assert_same_with_payload(payload::Form::Volume);
    let by_dist = manifest(Platform::OpenShift, DIGEST, Some(DIGEST)).unwrap();
    assert_same("dist", &read(&by_dist), &source(&expected, OF_DIST));
    let mut volumes = of_deployment(&mut source(&expected, &[]))["volumes"].clone();
    assert_eq!(volumes.as_array_mut().unwrap().pop().unwrap()["image"]["reference"], DIGEST);
}

#[test]
fn init_containers_that_copy_the_payload_are_the_same_by_kustomize_and_by_helm() {
    let mut expected = source(&assert_same_with_payload(payload::Form::InitContainers), &[]);
    let pod = of_deployment(&mut expected);
    let (program, files) = (&pod["initContainers"][0], &pod["initContainers"][1]);
    assert_eq!((&program["image"], &files["image"]), (&pod["containers"][0]["image"], &json!(DIGEST)));
    assert_eq!(program["securityContext"], pod["containers"][0]["securityContext"]);
    assert_eq!(program["securityContext"], files["securityContext"]);
    // What one writes, the next one reads.
    assert_eq!(program["args"][3], program["volumeMounts"][0]["mountPath"]);
    let to = files["args"][3].as_str().unwrap();
    assert!(pod["containers"][0]["env"].as_array().unwrap().contains(&json!({"name": "PAYLOAD_DIR", "value": to})));
    assert!(to.starts_with(files["volumeMounts"][1]["mountPath"].as_str().unwrap()));
    // The operator's image, set by a value, is that of the program, too.
    let values = ["payload.by=initContainers".to_owned(), format!("payload.image={DIGEST}"), "image.tag=x".to_owned()];
    let mut by_helm = read(&helm(&values.each_ref().map(String::as_str)).unwrap());
    assert_eq!(of_deployment(&mut by_helm)["initContainers"][0]["image"], "windows-node-pools:x");
}

#[test]
fn a_value_reaches_its_field() {
    let deployment = "/spec/template/spec";
    let container = "/spec/template/spec/containers/0";
    for (value, kind, pointer, expected) in [
        (
            "image.registry=mirror.example.com",
            "Deployment",
            format!("{container}/image"),
            json!(concat!("mirror.example.com/windows-node-pools:", env!("CARGO_PKG_VERSION"))),
        ),
        ("image.tag=x", "Deployment", format!("{container}/image"), json!("windows-node-pools:x")),
        ("image.pullPolicy=Always", "Deployment", format!("{container}/imagePullPolicy"), json!("Always")),
        (
            "image.pullPolicy=Always,payload.image=p:1,payload.by=initContainers",
            "Deployment",
            format!("{deployment}/initContainers/0/imagePullPolicy"),
            json!("Always"),
        ),
        (
            "image.pullPolicy=Always,payload.image=p:1,payload.by=initContainers",
            "Pod",
            "/spec/initContainers/1/imagePullPolicy".into(),
            json!("Always"),
        ),
        (
            "image.pullPolicy=Never,payload.image=p:1",
            "Deployment",
            format!("{deployment}/volumes/2/image/pullPolicy"),
            json!("Never"),
        ),
        ("imagePullSecrets[0].name=a", "Deployment", format!("{deployment}/imagePullSecrets"), json!([{"name": "a"}])),
        ("serviceAccount.name=a", "Deployment", format!("{deployment}/serviceAccountName"), json!("a")),
        ("serviceAccount.name=a", "ClusterRoleBinding", "/subjects/0/name".into(), json!("a")),
        ("serviceAccount.annotations.a=b", "ServiceAccount", "/metadata/annotations".into(), json!({"a": "b"})),
        ("resources.limits.memory=2Gi", "Deployment", format!("{container}/resources/limits/memory"), json!("2Gi")),
        ("nodeSelector.a=b", "Deployment", format!("{deployment}/nodeSelector"), json!({"a": "b"})),
        ("priorityClassName=a", "Deployment", format!("{deployment}/priorityClassName"), json!("a")),
        ("tolerations[0].key=a", "Deployment", format!("{deployment}/tolerations"), json!([{"key": "a"}])),
        ("affinity.nodeAffinity.a=b", "Deployment", format!("{deployment}/affinity/nodeAffinity/a"), json!("b")),
        ("podLabels.a=b", "Deployment", "/spec/template/metadata/labels/a".into(), json!("b")),
        ("podAnnotations.a=b", "Deployment", "/spec/template/metadata/annotations/a".into(), json!("b")),
        ("extraArgs[0]=--x", "Deployment", format!("{container}/args"), json!(["run", "--x"])),
        ("extraArgs[0]=--x", "Pod", "/spec/containers/0/args".into(), json!(["check", "--x"])),
        ("extraEnv[0].name=A", "Pod", "/spec/containers/0/env/2".into(), json!({"name": "A"})),
        ("extraEnv[0].name=A", "Deployment", format!("{container}/env/2"), json!({"name": "A"})),
        ("extraVolumes[0].name=a", "Deployment", format!("{deployment}/volumes/2"), json!({"name": "a"})),
        ("extraVolumeMounts[0].name=a", "Deployment", format!("{container}/volumeMounts/2"), json!({"name": "a"})),
        ("operator.maxConnections=2000000", "Deployment", format!("{container}/env/2/value"), json!("2000000")),
        ("operator.maxDisruptions=0", "Deployment", format!("{container}/env/2/value"), json!("0")),
        ("operator.externalCloudProvider=false", "Deployment", format!("{container}/env/2/value"), json!("false")),
        ("operator.artifactHosts={a,b}", "Deployment", format!("{container}/env/2/value"), json!("a,b")),
        (
            "operator.metricsTls=false",
            "Deployment",
            format!("{container}/env/2"),
            json!({"name": "WINDOWS_NODE_POOLS_METRICS_TLS", "value": "false"}),
        ),
        ("operator.metricsTls=false", "ServiceMonitor", "/spec/endpoints".into(), json!([{"port": "metrics"}])),
        (
            "operator.metricsTls=true",
            "ServiceMonitor",
            "/spec/endpoints/0/tlsConfig/ca/configMap/name".into(),
            json!("openshift-service-ca.crt"),
        ),
        ("monitoring.serviceAccount.name=a", "ClusterRoleBinding", "/subjects/0/name".into(), json!("a")),
        (
            "guards.enabled=true,guards.action=Warn",
            "ValidatingAdmissionPolicyBinding",
            "/spec/validationActions".into(),
            json!(["Warn", "Audit"]),
        ),
        ("monitoring.labels.release=a", "ServiceMonitor", "/metadata/labels/release".into(), json!("a")),
        ("monitoring.labels.release=a", "PrometheusRule", "/metadata/labels/release".into(), json!("a")),
    ] {
        let rendered = read(&helm(&[value]).unwrap());
        let of_kind: Vec<_> = rendered.iter().filter(|((one, ..), _)| one == kind).map(|(_, object)| object).collect();
        let found = of_kind.iter().filter_map(|object| object.pointer(&pointer)).any(|found| *found == expected);
        assert!(found, "{value}: no {kind} has {expected} at {pointer}");
    }
    let by_digest = read(&helm(&[&format!("image.digest={}", DIGEST.split_once('@').unwrap().1)]).unwrap());
    let image = &by_digest.iter().find(|((kind, ..), _)| kind == "Deployment").unwrap().1["spec"]["template"]["spec"]["containers"]
        [0]["image"];
    assert!(image.as_str().unwrap().starts_with("windows-node-pools@sha256:"), "{image}");
}

#[test]
fn a_value_takes_objects_out() {
    for (value, gone) in [
        ("rbac.create=false", ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"].as_slice()),
        ("serviceAccount.create=false", &["ServiceAccount"]),
        ("crds.enabled=false", &["CustomResourceDefinition"]),
        ("monitoring.enabled=false", &["ServiceMonitor", "PrometheusRule"]),
    ] {
        let rendered = read(&helm(&[value]).unwrap());
        assert!(rendered.len() > 10 && !rendered.keys().any(|(kind, ..)| gone.contains(&kind.as_str())), "{value}");
    }
    let rendered = read(&helm(&["windowsExporter.enabled=false"]).unwrap());
    let names: Vec<&str> = rendered.keys().map(|(.., name)| name.as_str()).collect();
    assert!(
        names.len() > 10
            && !["windows-exporter", "windows-prometheus-k8s-rules"].iter().any(|gone| names.contains(gone))
    );
    let rendered = read(&helm(&["crds.keep=false"]).unwrap());
    let crds = rendered.iter().filter(|((kind, ..), _)| kind == "CustomResourceDefinition");
    assert!(crds.clone().count() == 2 && crds.into_iter().all(|(_, crd)| crd["metadata"]["annotations"].is_null()));
}

#[test]
fn a_wrong_value_is_refused_with_its_name() {
    for (value, part) in [
        ("imge.tag=x", "'imge'"),
        ("operator.logLevle=debug", "'logLevle'"),
        ("operator.logFormat=xml", "/operator/logFormat"),
        ("operator.backoffBase=soon", "/operator/backoffBase"),
        ("operator.maxConnections=many", "/operator/maxConnections"),
        ("image.digest=latest", "/image/digest"),
        ("serviceAccount.name=a\"b", "/serviceAccount/name"),
        ("platform=kubernetes", "operator.apiServer is missing"),
        ("platform=vanilla", "/platform"),
        ("guards.action=Ignore", "/guards/action"),
        ("operator.payload=/payload,payload.image=a", "operator.payload and payload.image are both set"),
        ("monitoring.runbookBaseUrl=docs/runbooks", "/monitoring/runbookBaseUrl"),
        ("monitoring.runbookBaseUrl=https://wiki.example.com/", "/monitoring/runbookBaseUrl"),
    ] {
        let error = helm(&[value]).unwrap_err();
        assert!(error.contains(part), "{value}: {error}");
    }
}
