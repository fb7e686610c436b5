//! The chart's values: one list, of which `values.yaml`, its schema and the README are written.

use std::{any::TypeId, time::Duration};

use clap::{Arg, CommandFactory as _};
use controller::args::Run;
use serde_json::{Map, Value, json};

use super::super::{
    kustomize::HEADER,
    object::{NAME, Object, RUNBOOKS},
    payload,
    yaml::{self, Notes, emit},
};

/// Settings of the operator that follow from its pod, and what sets them.
const FIXED: &[(&str, &str)] = &[
    ("namespace", "the namespace of the release"),
    ("identity", "the name of the pod"),
    ("listen", "the port of probes"),
    ("metrics_listen", "the port of metrics"),
    ("metrics_tls_directory", "the volume of the certificate"),
    ("webhook_listen", "the port of the Service for webhooks"),
    ("cache", "the volume of the cache"),
    ("create_policies", "the chart holds the policies"),
    ("operator_condition", "OLM sets it"),
];

/// A value, which a user may set.
pub(super) struct Setting {
    /// Keys, as in `.Values`.
    pub path: String,
    /// What it is for.
    pub about: String,
    /// What it is if a user sets nothing. Null: what `about` says.
    pub default: Value,
    /// JSON schema of what it may be.
    pub schema: Value,
}

/// A setting of the operator.
pub(super) struct OperatorSetting {
    /// Key below `operator`.
    pub key: String,
    /// Environment variable.
    pub variable: String,
    /// Form of its value.
    pub form: Form,
    about: String,
}

/// Form of the value of an environment variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Duration,
    Whole,
    Bool,
    List,
    OneOf(Vec<String>),
}

impl Form {
    fn of(arg: &Arg) -> Self {
        let is = |id: TypeId| arg.get_value_parser().type_id() == id;
        if is(TypeId::of::<bool>()) {
            Self::Bool
        } else if is(TypeId::of::<Duration>()) {
            Self::Duration
        } else if is(TypeId::of::<usize>()) || is(TypeId::of::<u32>()) || is(TypeId::of::<u16>()) {
            Self::Whole
        } else if arg.get_value_delimiter().is_some() {
            Self::List
        } else {
            let names: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
            if names.is_empty() { Self::Text } else { Self::OneOf(names) }
        }
    }

    fn schema(&self) -> Value {
        match self {
            Self::Text => json!({"type": ["string", "null"]}),
            Self::Duration => json!({"type": ["string", "null"], "pattern": "^[0-9]+(ms|s|m|h)?$"}),
            Self::Whole => json!({"type": ["integer", "null"], "minimum": 0}),
            Self::Bool => json!({"type": ["boolean", "null"]}),
            Self::List => json!({"type": "array", "items": {"type": "string"}}),
            Self::OneOf(names) => {
                json!({"enum": names.iter().map(|name| json!(name)).chain([Value::Null]).collect::<Vec<_>>()})
            }
        }
    }

    fn default(&self) -> Value {
        if *self == Self::List { json!([]) } else { Value::Null }
    }
}

/// The arguments of `run` that are not [`FIXED`].
pub(super) fn of_operator() -> Vec<OperatorSetting> {
    let is_fixed = |arg: &Arg| FIXED.iter().any(|(id, _)| *id == arg.get_id().as_str());
    let command = Run::command();
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set() && !is_fixed(arg));
    args.filter_map(|arg| {
        let variable = arg.get_env()?.to_str()?.to_owned();
        let mut about = arg.get_help().map(ToString::to_string).unwrap_or_default();
        if !about.ends_with('.') {
            about.push('.');
        }
        if let Some(default) = arg.get_default_values().first().and_then(|value| value.to_str()) {
            about += " `";
            about += default;
            about += "` if not set.";
        }
        Some(OperatorSetting { key: camel(arg.get_id().as_str()), variable, form: Form::of(arg), about })
    })
    .collect()
}

fn camel(id: &str) -> String {
    let mut words = id.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |key, word| key + &word[..1].to_uppercase() + &word[1..])
}

fn setting(path: &str, default: Value, schema: Value, about: &str) -> Setting {
    Setting { path: path.into(), about: about.into(), default, schema }
}

fn of_type(names: &[&str]) -> Value {
    match names {
        [one] => json!({"type": one}),
        several => json!({"type": several}),
    }
}

fn bool() -> Value {
    of_type(&["boolean"])
}

/// Not set: as is usual on the platform.
fn maybe() -> Value {
    of_type(&["boolean", "null"])
}

fn text() -> Value {
    of_type(&["string"])
}

fn object() -> Value {
    of_type(&["object"])
}

fn name() -> Value {
    json!({"type": "string", "minLength": 1})
}

fn texts() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string"}})
}

fn list() -> Value {
    json!({"type": "array", "items": {"type": "object"}})
}

/// The value of a field of the one object of a kind.
fn of(objects: &[Object], kind: &str, pointer: &str) -> Value {
    let object = objects.iter().find(|object| object.kind() == kind);
    object.and_then(|object| object.value.pointer(pointer)).cloned().unwrap_or_default()
}

/// All values. Defaults that an object has are taken from it.
pub(super) fn all(objects: &[Object]) -> Vec<Setting> {
    let of_operator = of_operator().into_iter().map(|one| Setting {
        path: format!("operator.{}", one.key),
        default: one.form.default(),
        schema: one.form.schema(),
        about: one.about,
    });
    let rest = [of_program(objects), of_pod(objects), of_options(objects)];
    rest.into_iter().flatten().chain(of_operator).collect()
}

/// Which program runs, and as whom.
fn of_program(objects: &[Object]) -> Vec<Setting> {
    let image = of(objects, "Deployment", "/spec/template/spec/containers/0/image");
    let repository = image.as_str().and_then(|image| image.split(':').next()).unwrap_or(NAME).to_owned();
    vec![
        setting(
            "platform",
            json!("openshift"),
            json!({"enum": ["openshift", "kubernetes"]}),
            "The cluster. With `kubernetes`, set `operator.apiServer`, too.",
        ),
        setting("image.registry", json!(""), text(), "Registry of the image, for example that of a mirror."),
        setting("image.repository", json!(repository), name(), "Repository of the image."),
        setting("image.tag", json!(""), text(), "Tag. The chart's `appVersion` if empty."),
        setting(
            "image.digest",
            json!(""),
            json!({"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}),
            "Digest, as `sha256:…`, in the place of the tag.",
        ),
        setting(
            "image.pullPolicy",
            json!(""),
            json!({"enum": ["", "Always", "IfNotPresent", "Never"]}),
            "When the images of the operator and of the payload are pulled. Kubernetes decides if empty.",
        ),
        setting(
            "payload.image",
            json!(""),
            json!({"type": "string", "pattern": "^[^ \"'{}]*$"}),
            "Image of the payload by tag or digest, with its registry. If empty, the payload is in the operator's image.",
        ),
        setting(
            "payload.by",
            json!(payload::Form::Volume.value()),
            json!({"enum": payload::Form::ALL.map(payload::Form::value)}),
            "How the operator gets the files of `payload.image`: `volume` mounts it (Kubernetes 1.35 or newer), `initContainers` copy the files.",
        ),
        setting("imagePullSecrets", json!([]), list(), "Secrets with logins of the registry, as `[{name: mine}]`."),
        setting("serviceAccount.create", json!(true), bool(), "Whether the chart makes the operator's ServiceAccount."),
        setting(
            "serviceAccount.name",
            of(objects, "ServiceAccount", "/metadata/name"),
            // It becomes a part of expressions in policies.
            json!({"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}),
            "Its name. Roles and admission policies name it.",
        ),
        setting("serviceAccount.annotations", json!({}), texts(), "Its annotations."),
        setting(
            "rbac.create",
            json!(true),
            bool(),
            "Whether the chart makes roles and their bindings. Without them the operator reports each right that it lacks.",
        ),
    ]
}

/// Fields of the pod.
fn of_pod(objects: &[Object]) -> Vec<Setting> {
    let resources = of(objects, "Deployment", "/spec/template/spec/containers/0/resources");
    vec![
        setting("resources", resources, object(), "Requests and limits of the container."),
        setting(
            "nodeSelector",
            Value::Null,
            json!({"type": ["object", "null"], "additionalProperties": {"type": "string"}}),
            "Labels of the node that the pod runs on. If not set: Linux, and on OpenShift a control plane node.",
        ),
        setting(
            "tolerations",
            Value::Null,
            json!({"type": ["array", "null"], "items": {"type": "object"}}),
            "Taints that the pod tolerates. If not set: on OpenShift those of control plane nodes.",
        ),
        setting("affinity", json!({}), object(), "Affinity of the pod."),
        setting(
            "priorityClassName",
            Value::Null,
            json!({"type": ["string", "null"]}),
            "Priority class of the pod. If not set: `system-cluster-critical` on OpenShift.",
        ),
        setting("podAnnotations", json!({}), texts(), "Further annotations of the pod."),
        setting("podLabels", json!({}), texts(), "Further labels of the pod."),
        setting(
            "extraArgs",
            json!([]),
            json!({"type": "array", "items": {"type": "string"}}),
            "Further arguments of `windows-node-pools run`. They win over `operator`, and `helm test` has them, too; the commands `plan` and `check` in the pod do not see them.",
        ),
        setting("extraEnv", json!([]), list(), "Further environment variables, as in a container."),
        setting("extraVolumes", json!([]), list(), "Further volumes of the pod, as in a pod."),
        setting("extraVolumeMounts", json!([]), list(), "Further mounts of the container, as in a container."),
    ]
}

/// What is a part of the release.
#[expect(clippy::too_many_lines, reason = "a table")]
fn of_options(objects: &[Object]) -> Vec<Setting> {
    vec![
        setting(
            "metrics.podAnnotations",
            Value::Null,
            maybe(),
            "Whether the pod has the annotations `prometheus.io/scrape`, `prometheus.io/port` and `prometheus.io/scheme`. If not set: not on OpenShift.",
        ),
        setting("metrics.service", json!(true), bool(), "Whether there is a Service for metrics."),
        setting(
            "monitoring.enabled",
            Value::Null,
            maybe(),
            "Whether there are a ServiceMonitor and alerts, with the rights of the Prometheus that reads them. If not set: on OpenShift.",
        ),
        setting(
            "monitoring.labels",
            json!({}),
            texts(),
            "Further labels of ServiceMonitors and PrometheusRules, by which a Prometheus selects them.",
        ),
        setting(
            "monitoring.runbookBaseUrl",
            json!(RUNBOOKS),
            json!({"type": "string", "pattern": "^https?://[^ \"{}]*[^ \"{}/]$"}),
            "URL of the folder with the runbooks that alerts name in `runbook_url`, without a slash at its end: `runbooks` in your copy of the site, \
             which `cargo xtask docs` builds. The default is a placeholder.",
        ),
        setting(
            "monitoring.serviceAccount.name",
            of_prometheus(objects, "name"),
            name(),
            "ServiceAccount of Prometheus.",
        ),
        setting("monitoring.serviceAccount.namespace", of_prometheus(objects, "namespace"), name(), "Its namespace."),
        setting(
            "dashboards.grafana",
            json!(false),
            bool(),
            "Whether there is a ConfigMap with the dashboard of pools, for a Grafana whose sidecar collects those with the label `grafana_dashboard`.",
        ),
        setting(
            "dashboards.openshift",
            json!(false),
            bool(),
            "Whether the console of OpenShift has the dashboard of pools: a ConfigMap in `openshift-config-managed`.",
        ),
        setting(
            "windowsExporter.enabled",
            Value::Null,
            maybe(),
            "Whether there is a Service for the certificate of windows_exporter on hosts, and with `monitoring.enabled` what reads it. It needs \
             the service CA of OpenShift. If not set: on OpenShift.",
        ),
        setting(
            "guards.enabled",
            json!(false),
            bool(),
            "Whether changes of pools that are mistakes more often than not are guarded: a host in two pools, the removal of many hosts at once.",
        ),
        setting(
            "guards.action",
            json!("Deny"),
            json!({"enum": ["Deny", "Warn"]}),
            "Whether such a change is refused, or passes with a warning and an entry in the audit log.",
        ),
        setting(
            "networkPolicy.enabled",
            json!(false),
            bool(),
            "Whether a NetworkPolicy lets the pod be reached at the ports of probes, of metrics and of webhooks only.",
        ),
        setting(
            "viewRoles.enabled",
            json!(false),
            bool(),
            "Whether the roles `view` and `cluster-reader` show pools and instances, and there is a role `windows-node-pools-edit`.",
        ),
        setting(
            "machineApi.enabled",
            Value::Null,
            maybe(),
            "Whether the operator keeps the user data of Machines in `openshift-machine-api`. If not set: on OpenShift.",
        ),
        setting(
            "clusterApi.enabled",
            json!(false),
            bool(),
            "Whether the operator keeps the user data of Machines in `openshift-cluster-api`.",
        ),
        setting(
            "openshiftConfig.enabled",
            Value::Null,
            maybe(),
            "Whether the operator reads the pull secret in `openshift-config`. If not set: on OpenShift.",
        ),
        setting(
            "azure.enabled",
            json!(false),
            bool(),
            "Whether there is the identity of the cloud-node-manager on hosts of Azure.",
        ),
        setting("crds.enabled", json!(true), bool(), "Whether the release has the CustomResourceDefinitions."),
        setting(
            "crds.keep",
            json!(true),
            bool(),
            "Whether they stay, with all pools, when the release is uninstalled.",
        ),
    ]
}

/// The subject of the binding for Prometheus.
fn of_prometheus(objects: &[Object], field: &str) -> Value {
    let is_its = |object: &&Object| object.kind() == "RoleBinding" && object.folder() == "components/monitoring";
    objects.iter().find(is_its).map(|object| object.value["subjects"][0][field].clone()).unwrap_or_default()
}

/// `values.yaml`, in the order of the list.
pub(super) fn file(settings: &[Setting]) -> String {
    let mut lines = vec![HEADER.to_owned()];
    let mut open: Vec<&str> = Vec::new();
    for Setting { path, about, default, .. } in settings {
        let keys: Vec<&str> = path.split('.').collect();
        let (key, parents) = keys.split_last().unwrap_or((&"", &[]));
        let common = open.iter().zip(parents).take_while(|(a, b)| a == b).count();
        if keys.len() == 1 || common == 0 {
            lines.push("\n".into());
        }
        for (depth, parent) in parents.iter().enumerate().skip(common) {
            lines.push(format!("{:1$}{parent}:\n", "", depth * 2));
        }
        open = parents.to_vec();
        let column = parents.len() * 2;
        lines.push(yaml::comment(about, column, 110));
        let entry = emit(&Value::Object(Map::from_iter([((*key).to_owned(), default.clone())])), &Notes::new());
        lines.extend(entry.lines().map(|line| format!("{:column$}{line}\n", "")));
    }
    lines.concat()
}

/// `values.schema.json`: a value that the chart does not know is refused.
pub(super) fn schema(settings: &[Setting]) -> Value {
    let mut root = strict();
    // Helm adds it where the chart is a part of another.
    root["properties"]["global"] = json!({"type": "object"});
    for Setting { path, about, schema, .. } in settings {
        let mut keys: Vec<&str> = path.split('.').collect();
        let key = keys.pop().unwrap_or_default();
        let mut at = &mut root;
        for parent in keys {
            let there = &mut at["properties"][parent];
            if there.is_null() {
                *there = strict();
            }
            at = there;
        }
        let mut schema = schema.clone();
        schema["description"] = json!(about);
        at["properties"][key] = schema;
    }
    root["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    root
}

fn strict() -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": {}})
}

/// The table of values in the README.
pub(super) fn table(settings: &[Setting]) -> String {
    let row = |Setting { path, about, default, .. }: &Setting| {
        let default = if default.is_null() { String::new() } else { format!("`{default}`") };
        format!("| `{path}` | {default} | {} |\n", about.replace('|', "\\|"))
    };
    let rows: String = settings.iter().map(row).collect();
    format!("| value | default | meaning |\n|---|---|---|\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::{Site, objects},
        *,
    };

    #[test]
    fn settings_of_the_operator_have_the_form_that_it_reads() {
        let settings = of_operator();
        let form =
            |key: &str| settings.iter().find(|one| one.key == key).map(|one| (one.variable.as_str(), one.form.clone()));
        for (key, variable, expected) in [
            ("apiServer", "WINDOWS_NODE_POOLS_API_SERVER", Form::Text),
            ("maxConnections", "WINDOWS_NODE_POOLS_MAX_CONNECTIONS", Form::Whole),
            ("maxDisruptions", "WINDOWS_NODE_POOLS_MAX_DISRUPTIONS", Form::Whole),
            ("externalCloudProvider", "WINDOWS_NODE_POOLS_EXTERNAL_CLOUD_PROVIDER", Form::Bool),
            ("backoffBase", "WINDOWS_NODE_POOLS_BACKOFF_BASE", Form::Duration),
            ("leaseDuration", "WINDOWS_NODE_POOLS_LEASE_DURATION", Form::Duration),
            ("artifactHosts", "WINDOWS_NODE_POOLS_ARTIFACT_HOSTS", Form::List),
            ("logFormat", "LOG_FORMAT", Form::OneOf(vec!["json".into(), "text".into()])),
        ] {
            assert_eq!(form(key), Some((variable, expected)), "{key}");
        }
        for (id, why) in FIXED {
            assert!(Run::command().get_arguments().any(|arg| arg.get_id() == id), "{id} ({why}) is no setting");
            assert_eq!(form(&camel(id)), None);
        }
        assert_eq!(form("loopbackHosts"), None);
    }

    #[test]
    fn the_file_holds_every_value_with_its_default() {
        let settings = all(&objects(&Site::default()));
        let file: Value = serde_yaml::from_str(&file(&settings)).unwrap();
        for Setting { path, default, .. } in &settings {
            assert_eq!(file.pointer(&format!("/{}", path.replace('.', "/"))), Some(default), "{path}");
        }
    }
}
