//! Tests that all forms of the installation, rendered by the tools of users, contain the same objects, except for the differences listed here.

use std::collections::BTreeMap;

use api::names::DEFAULT_NAMESPACE;
use clap::{CommandFactory as _, Parser as _};
use controller::args::Run;
use serde_json::{Map, Value, json};
use testbed::{binaries, registry::Registry};

use super::{
    Platform, VERSION, chart, crds,
    dashboards_tests::GRAFANA,
    kustomize_tests::{build, folder},
    manifest, values,
};
use crate::yaml::documents;

/// Objects by kind, namespace and name.
pub(super) type Objects = BTreeMap<(String, String, String), Value>;

/// Difference of a form from the installation by Helm: its reason, and the change of the objects.
pub(super) type Difference = (&'static str, fn(&mut Objects));

const NAME: &str = "registry.example.com/a";
const DIGEST_ALONE: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const DIGEST: &str = "registry.example.com/a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Differences of all other forms from Helm's.
const WITHOUT_HELM: &[Difference] = &[
    ("Helm has a test", |objects| objects.retain(|(kind, ..), _| kind != "Pod")),
    ("the objects belong to no Helm release", |objects| {
        for (_, object) in objects.iter_mut() {
            let labels = object["metadata"]["labels"].as_object_mut().unwrap();
            labels.retain(|key, _| key != "app.kubernetes.io/instance" && key != "helm.sh/chart");
        }
    }),
    ("only Helm needs an annotation to keep the CRDs when it uninstalls", |objects| {
        let crds = objects.iter_mut().filter(|((kind, ..), _)| kind == "CustomResourceDefinition");
        for (_, crd) in crds {
            assert_eq!(crd["metadata"]["annotations"], json!({"helm.sh/resource-policy": "keep"}));
            crd["metadata"].as_object_mut().unwrap().remove("annotations");
        }
    }),
    ("the URL of the API server is not set", |objects| {
        let env = &mut of_deployment(objects)["containers"][0]["env"];
        env.as_array_mut().unwrap().retain(|variable| variable["name"] != "WINDOWS_NODE_POOLS_API_SERVER");
    }),
];
const OF_KUSTOMIZE: &[Difference] =
    &[("kustomize manages the objects", |objects| label(objects, "app.kubernetes.io/managed-by", "kustomize"))];
const OF_DIST: &[Difference] =
    &[("kubectl manages the objects", |objects| label(objects, "app.kubernetes.io/managed-by", "kubectl"))];

pub(super) fn of_deployment(objects: &mut Objects) -> &mut Value {
    let deployment = objects.iter_mut().find(|((kind, ..), _)| kind == "Deployment").unwrap().1;
    &mut deployment["spec"]["template"]["spec"]
}

pub(super) fn label(objects: &mut Objects, key: &str, value: &str) {
    for object in objects.iter_mut() {
        object.1["metadata"]["labels"][key] = json!(value);
    }
}

/// Returns the objects of the chart with these values and with the differences of another tool. Includes the namespace, which the chart lacks.
pub(super) fn expected(platform: Platform, values: &[&str], differences: &[Difference]) -> Objects {
    let platform_value = format!("platform={}", platform.name());
    let api_server = "operator.apiServer=https://api.example.com:6443";
    let always = [platform_value.as_str(), api_server];
    let always = if platform == Platform::Kubernetes { &always[..] } else { &always[..1] };
    let mut objects = read(&helm(&[always, values].concat()).unwrap());
    for (_, apply) in WITHOUT_HELM.iter().chain(differences) {
        apply(&mut objects);
    }
    let (key, value) = platform.of_namespace();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DEFAULT_NAMESPACE, "labels": {key: value}}});
    objects.extend(by_name([namespace].into_iter()));
    objects
}

/// Parses objects in YAML.
pub(super) fn read(yaml: &str) -> Objects {
    by_name(documents(yaml).into_iter())
}

pub(super) fn by_name(values: impl Iterator<Item = Value>) -> Objects {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut objects = Objects::new();
    for mut value in values {
        normalise(&mut value);
        let metadata = &value["metadata"];
        let key = (text(&value["kind"]), text(&metadata["namespace"]), text(&metadata["name"]));
        assert!(objects.insert(key.clone(), value).is_none(), "{key:?} is listed twice");
    }
    objects
}

/// Makes numbers comparable, whichever tool wrote them.
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

/// Renders the chart with values as arguments.
fn helm(values: &[&str]) -> anyhow::Result<String> {
    helm_with(&values.iter().flat_map(|value| ["--set", value]).collect::<Vec<_>>())
}

fn helm_with(args: &[&str]) -> anyhow::Result<String> {
    chart::helm(&json!({}), args)
}

/// Renders the chart from an archive and from a registry, as Helm does for a user.
#[test]
fn a_chart_in_a_registry_is_the_same() {
    let (registry, folder) = (Registry::start().unwrap(), tempfile::tempdir().unwrap());
    let run = |args: &[&str]| {
        let mut helm = std::process::Command::new(binaries::helm().unwrap());
        helm.current_dir(folder.path()).env("HELM_CONFIG_HOME", folder.path());
        devenv::read(helm.args(args)).unwrap()
    };
    let chart = devenv::workspace_root().join(chart::FOLDER);
    let (archive, charts) =
        (format!("windows-node-pools-{VERSION}.tgz"), format!("oci://{}/charts", registry.address()));
    run(&["package", chart.to_str().unwrap()]);
    let of_build = format!("{VERSION}+git.abc");
    run(&["package", chart.to_str().unwrap(), "--version", &of_build]);
    let of_build = format!("windows-node-pools-{of_build}.tgz");
    let version = binaries::KUBERNETES_VERSION;
    let namespace = ["--namespace", DEFAULT_NAMESPACE, "--kube-version", version];
    let rendered = run(&[&["template", "a-release", &of_build], &namespace[..]].concat());
    let label = format!("windows-node-pools-{VERSION}_git.abc");
    assert!(read(&rendered).values().all(|object| object["metadata"]["labels"]["helm.sh/chart"] == label.as_str()));
    run(&["push", &archive, &charts, "--plain-http"]);
    let pushed = format!("{charts}/windows-node-pools");
    let rendered =
        run(&[&["template", "a-release", &pushed, "--version", VERSION, "--plain-http"], &namespace[..]].concat());
    assert_eq!(read(&rendered), read(&helm(&[]).unwrap()));
}

#[test]
fn overlays_chart_and_manifests_of_a_release_are_the_same_objects() {
    for platform in Platform::ALL {
        let folder = devenv::workspace_root().join("deploy").join(platform.name());
        assert_same("kustomize", &read(&build(&folder).unwrap()), &expected(platform, &[], OF_KUSTOMIZE));
        let image = ["image.repository=registry.example.com/a", &format!("image.digest={DIGEST_ALONE}")];
        let by_dist = read(&manifest(platform, DIGEST, None).unwrap());
        assert_same("dist", &by_dist, &expected(platform, &image, OF_DIST));
    }
}

#[test]
fn optional_objects_are_the_same_by_kustomize_and_by_helm() {
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
    let enabled =
        ["clusterApi", "azure", "guards", "networkPolicy", "viewRoles"].map(|what| format!("{what}.enabled=true"));
    let dashboards = ["dashboards.grafana=true", "dashboards.openshift=true"];
    let values: Vec<&str> = enabled.iter().map(String::as_str).chain(dashboards).collect();
    assert_same("kustomize", &by_kustomize, &expected(Platform::OpenShift, &values, OF_KUSTOMIZE));
}

/// Checks the payload in an image of its own, mounted or copied by init containers.
#[test]
fn the_payload_in_an_image_of_its_own_is_the_same_in_each_form() {
    for (component, by) in [("payload-volume", "volume"), ("payload-init", "initContainers")] {
        let folder = folder(&[]);
        let kustomization = json!({
            "resources": ["../../deploy/openshift"], "components": [format!("../../deploy/components/{component}")],
            "images": [{"name": "windows-node-pools-payload", "newName": NAME, "digest": DIGEST_ALONE}],
        });
        std::fs::write(folder.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
        let values = [format!("payload.image={DIGEST}"), format!("payload.by={by}")];
        let values = values.each_ref().map(String::as_str);
        let by_kustomize = read(&build(folder.path()).unwrap());
        assert_same(component, &by_kustomize, &expected(Platform::OpenShift, &values, OF_KUSTOMIZE));
    }
    let values = [
        format!("payload.image={DIGEST}"),
        "image.repository=registry.example.com/a".to_owned(),
        format!("image.digest={DIGEST_ALONE}"),
    ];
    let by_dist = read(&manifest(Platform::OpenShift, DIGEST, Some(DIGEST)).unwrap());
    let values = values.each_ref().map(String::as_str);
    assert_same("dist", &by_dist, &expected(Platform::OpenShift, &values, OF_DIST));
}

#[test]
fn init_containers_copy_the_payload_to_where_the_operator_reads_it() {
    let values = ["payload.by=initContainers".to_owned(), format!("payload.image={DIGEST}"), "image.tag=x".to_owned()];
    let mut by_helm = read(&helm(&values.each_ref().map(String::as_str)).unwrap());
    let pod = of_deployment(&mut by_helm);
    let (program, files) = (&pod["initContainers"][0], &pod["initContainers"][1]);
    assert_eq!((&program["image"], &files["image"]), (&json!("windows-node-pools:x"), &json!(DIGEST)));
    assert_eq!(program["securityContext"], pod["containers"][0]["securityContext"]);
    assert_eq!(program["securityContext"], files["securityContext"]);
    // Each container writes to a volume that the next one reads.
    assert_eq!(program["args"][3], program["volumeMounts"][0]["mountPath"]);
    let to = files["args"][3].as_str().unwrap();
    assert!(pod["containers"][0]["env"].as_array().unwrap().contains(&json!({"name": "PAYLOAD_DIR", "value": to})));
    assert!(to.starts_with(files["volumeMounts"][1]["mountPath"].as_str().unwrap()));
}

/// Checks that the pod of `helm test` matches the operator's pod, and that no Service selects it.
#[test]
fn the_pod_of_the_test_is_the_operators_with_another_command() {
    let mut objects = read(&helm(&[]).unwrap());
    let mut operator = of_deployment(&mut objects).clone();
    let pod = objects.iter().find(|((kind, ..), _)| kind == "Pod").unwrap().1;
    for field in ["livenessProbe", "ports", "readinessProbe"] {
        assert!(operator["containers"][0].as_object_mut().unwrap().remove(field).is_some());
    }
    operator["containers"][0]["name"] = json!("check");
    operator["containers"][0]["command"] = json!(["kubectl-windows_node_pools"]);
    operator["containers"][0]["args"] = json!(["check"]);
    operator["restartPolicy"] = json!("Never");
    assert_eq!(pod["spec"], operator);
    let selectors = objects.values().filter(|object| object["kind"] == "Service").map(|s| &s["spec"]["selector"]);
    let matches = |selector: &Map<String, Value>| selector.iter().all(|(k, v)| pod["metadata"]["labels"][k] == *v);
    assert!(!selectors.filter_map(Value::as_object).any(matches));
}

/// Checks the parts of the chart that follow from the code: the version and the CRDs.
#[test]
fn the_chart_is_of_this_version() {
    let text = std::fs::read_to_string(devenv::workspace_root().join(chart::FOLDER).join("Chart.yaml")).unwrap();
    let about: Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!((&about["version"], &about["appVersion"]), (&json!(VERSION), &json!(VERSION)));
    let mut rendered = read(&helm(&[]).unwrap());
    rendered.retain(|(kind, ..), _| kind == "CustomResourceDefinition");
    for (_, apply) in &WITHOUT_HELM[1..3] {
        apply(&mut rendered);
    }
    let crds = by_name(crds("Helm").iter().map(|crd| serde_json::to_value(crd).unwrap()));
    assert_same("crds", &rendered, &crds);
}

/// Settings of the operator that follow from its pod, and what sets them.
const FIXED: &[(&str, &str)] = &[
    ("namespace", "the namespace of the release"),
    ("identity", "the name of the pod"),
    ("listen", "the port of probes"),
    ("metrics_listen", "the port of metrics"),
    ("metrics_tls_directory", "the volume of the certificate"),
    ("webhook_listen", "the port of the Service for webhooks"),
    ("cache", "the volume of the cache"),
    ("operator_condition", "OLM sets it"),
];

/// Checks that each setting is a value of the chart, which has the setting's help as its comment and sets the setting's variable.
#[test]
fn each_setting_of_the_operator_is_a_value() {
    let command = Run::command();
    for (id, why) in FIXED {
        assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{id} ({why}) is not a setting");
    }
    let is_fixed = |arg: &&clap::Arg| FIXED.iter().any(|(id, _)| *id == arg.get_id().as_str());
    let mut of_values: BTreeMap<String, values::Setting> = values::all()
        .into_iter()
        .filter_map(|setting| Some((setting.path.strip_prefix("operator.")?.to_owned(), setting)))
        .collect();
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && !is_fixed(arg)) {
        let Some(variable) = arg.get_env().and_then(|name| name.to_str()) else { continue };
        let mut words = arg.get_id().as_str().split('_');
        let first = words.next().unwrap().to_owned();
        let key = words.fold(first, |key, word| key + &word[..1].to_uppercase() + &word[1..]);
        let setting = of_values.remove(&key).unwrap_or_else(|| panic!("values.yaml has no operator.{key}"));
        let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default().replace('\n', " ");
        if !help.ends_with('.') {
            help.push('.');
        }
        if let Some(default) = arg.get_default_values().first().and_then(|value| value.to_str()) {
            help = format!("{help} Defaults to `{default}`.");
        }
        assert_eq!(setting.about, help, "operator.{key}");
        let is_list = arg.get_value_delimiter().is_some();
        assert_eq!(setting.default, if is_list { json!([]) } else { Value::Null }, "operator.{key}");
        let choice = arg.get_possible_values().first().map(|value| value.get_name().to_owned());
        let samples = ["10m", "4096", "false", "https://a:1", "10.96.0.0/12"].map(str::to_owned);
        let values = choice.into_iter().chain(samples).collect::<Vec<_>>();
        let set = values.iter().find_map(|value| {
            let value = if is_list { format!("operator.{key}={{{value}}}") } else { format!("operator.{key}={value}") };
            helm(&[&value]).ok()
        });
        let rendered = set.unwrap_or_else(|| panic!("operator.{key} takes no value"));
        assert!(rendered.contains(&format!("- name: {variable}\n")), "operator.{key} does not set {variable}");
    }
    assert!(of_values.is_empty(), "the operator has no {:?}", of_values.keys());
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
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
        ("commonLabels.a=b", "ClusterRole", "/metadata/labels/a".into(), json!("b")),
        ("commonLabels.a=b", "ValidatingAdmissionPolicyBinding", "/metadata/labels/a".into(), json!("b")),
        ("serviceAccount.labels.a=b", "ServiceAccount", "/metadata/labels/a".into(), json!("b")),
        ("replicaCount=2", "Deployment", "/spec/replicas".into(), json!(2.0)),
        ("replicaCount=2", "PodDisruptionBudget", "/spec/maxUnavailable".into(), json!(1.0)),
        ("podSecurityContext.fsGroup=1", "Deployment", format!("{deployment}/securityContext/fsGroup"), json!(1.0)),
        ("securityContext.runAsUser=1", "Pod", "/spec/containers/0/securityContext/runAsUser".into(), json!(1.0)),
        ("hostNetwork=true", "Deployment", format!("{deployment}/hostNetwork"), json!(true)),
        ("hostNetwork=true", "Deployment", format!("{deployment}/dnsPolicy"), json!("ClusterFirstWithHostNet")),
        ("dnsPolicy=Default", "Deployment", format!("{deployment}/dnsPolicy"), json!("Default")),
        ("dnsConfig.searches={a}", "Deployment", format!("{deployment}/dnsConfig/searches"), json!(["a"])),
        ("hostAliases[0].ip=a", "Pod", "/spec/hostAliases".into(), json!([{"ip": "a"}])),
        (
            "topologySpreadConstraints[0].maxSkew=1",
            "Deployment",
            format!("{deployment}/topologySpreadConstraints/0/maxSkew"),
            json!(1.0),
        ),
        ("monitoring.interval=30s", "ServiceMonitor", "/spec/endpoints/0/interval".into(), json!("30s")),
        (
            "monitoring.runbookUrl=https://a",
            "PrometheusRule",
            "/spec/groups/0/rules/0/annotations/runbook_url".into(),
            json!("https://a#windowsnodepooldegraded"),
        ),
        (
            "dashboards.grafana=true,monitoring.runbookUrl=https://a",
            "ConfigMap",
            "/data/windows-node-pools.json".into(),
            json!(
                GRAFANA
                    .trim_end()
                    .replace("https://windows-node-pools.example.com/docs/reference/alerts.md", "https://a")
            ),
        ),
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

/// Checks that Helm refuses the values that the operator would refuse when it starts.
#[test]
fn the_chart_has_the_bounds_of_the_operator() {
    for (key, argument, values) in [
        ("vxlanPort", "--vxlan-port", ["0", "1", "65535", "65536"].as_slice()),
        ("maxConnections", "--max-connections", &["0", "1", "100"]),
        ("maxDisruptions", "--max-disruptions", &["0", "4294967295", "4294967296"]),
        ("logFormat", "--log-format", &["json", "xml"]),
    ] {
        for value in values {
            let of_operator = Run::try_parse_from(["run", argument, value]).is_ok();
            let is_number = key.starts_with("max") || key.ends_with("Port");
            let set = if is_number { "--set" } else { "--set-string" };
            let of_helm = helm_with(&[set, &format!("operator.{key}={value}")]);
            assert_eq!(of_helm.is_ok(), of_operator, "operator.{key}={value}: {of_helm:?}");
        }
    }
}

#[test]
fn a_wrong_value_is_refused_with_its_name() {
    for (value, part) in [
        ("imge.tag=x", "'imge'"),
        ("operator.logLevle=debug", "'logLevle'"),
        ("operator.logFormat=xml", "/operator/logFormat"),
        ("operator.maxConnections=many", "/operator/maxConnections"),
        ("image.digest=latest", "/image/digest"),
        ("serviceAccount.name=a\"b", "/serviceAccount/name"),
        ("platform=kubernetes", "operator.apiServer is missing"),
        ("platform=vanilla", "/platform"),
        ("guards.action=Ignore", "/guards/action"),
        ("operator.payload=/payload,payload.image=a", "operator.payload and payload.image are both set"),
        ("crds.enabled=false,crds.keep=false", "crds.keep=true"),
        ("commonLabels.app\\.kubernetes\\.io/name=a", "/commonLabels"),
        ("podLabels.app\\.kubernetes\\.io/name=a", "/podLabels"),
        ("operator.apiServer=x:6443", "/operator/apiServer"),
        ("operator.apiServer=ftp://x", "/operator/apiServer"),
        ("operator.serviceCidr=banana", "/operator/serviceCidr"),
        ("monitoring.runbookUrl=docs/alerts.md", "/monitoring/runbookUrl"),
        ("monitoring.runbookUrl=https://wiki.example.com/", "/monitoring/runbookUrl"),
    ] {
        let error = helm(&[value]).unwrap_err().to_string();
        assert!(error.contains(part), "{value}: {error}");
    }
}
