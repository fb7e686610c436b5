//! Templates of the chart: the objects, with actions at the fields that values set.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    super::{
        dashboards,
        kustomize::HEADER,
        marks::{mark, template},
        object::{NAME, Object, Site},
        payload,
        platform::Platform,
        windows_exporter,
        yaml::{self, INSIDE, Note, Notes, emit},
    },
    values::{Form, OperatorSetting},
};

/// Fields of the pod that a value sets, and otherwise the platform.
const POD_FIELDS: [&str; 5] = ["affinity", "imagePullSecrets", "nodeSelector", "priorityClassName", "tolerations"];

/// The image of the payload.
const PAYLOAD_IMAGE: &str = "{{ .Values.payload.image }}";

/// Further arguments of the operator.
const EXTRA_ARGS: &str = "{{- range .Values.extraArgs }}\n- {{ . | quote }}\n{{- end }}";

/// Whether metrics are served without TLS.
const PLAIN_METRICS: &str = "eq (toString .Values.operator.metricsTls) \"false\"";

/// A template of objects as they are installed by Helm.
pub(super) fn site() -> Site {
    Site {
        namespace: mark("{{.Release.Namespace}}"),
        service_account: mark("{{.Values.serviceAccount.name}}"),
        runbooks: mark("{{.Values.monitoring.runbookBaseUrl}}"),
        managed_by: mark("{{.Release.Service}}"),
        labels: vec![
            ("app.kubernetes.io/instance", mark("{{.Release.Name}}")),
            ("helm.sh/chart", mark("{{.Chart.Name}}-{{.Chart.Version}}")),
        ],
    }
}

/// Files below `templates/`, one for each file of `deploy/`.
pub(super) fn files(objects: &[Object]) -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    // Helm makes the namespace of the release, if it is asked to.
    for object in objects.iter().filter(|object| object.kind() != "Namespace") {
        let text = files.entry(file_name(object)).or_insert_with(|| HEADER.to_owned());
        text.push_str(&document(object));
    }
    files
}

fn file_name(object: &Object) -> String {
    let (folder, file) = object.file.rsplit_once('/').unwrap_or(("", object.file));
    match folder {
        "machine-api" | "cluster-api" => format!("{folder}.yaml"),
        dashboards::GRAFANA | dashboards::CONSOLE => folder.trim_start_matches("components/").to_owned() + ".yaml",
        _ => file.to_owned(),
    }
}

/// A CustomResourceDefinition.
pub(super) fn crd(crd: &Value) -> String {
    let keep = "{{- if .Values.crds.keep }}\nannotations:\n  helm.sh/resource-policy: keep\n{{- end }}";
    let notes = [("/metadata".into(), Note { append: vec![mark(keep)], ..Note::default() })].into();
    guarded(Some(".Values.crds.enabled"), &template(&emit(crd, &notes)))
}

fn document(object: &Object) -> String {
    let mut notes: Notes = holes(object);
    for (pointer, why) in &object.whys {
        (*why).clone_into(&mut notes.entry(pointer.clone()).or_default().comment);
    }
    let text = yaml::comment(object.about, 0, 120) + &emit(&object.value, &notes);
    guarded(condition(object).as_deref(), &template(&text))
}

fn guarded(condition: Option<&str>, text: &str) -> String {
    match condition {
        Some(condition) => format!("{{{{- if {condition} }}}}\n---\n{text}{{{{- end }}}}\n"),
        None => format!("---\n{text}"),
    }
}

/// When an object is a part of the release.
fn condition(object: &Object) -> Option<String> {
    let on_openshift = |values: &str| {
        let enabled = format!(".Values.{values}.enabled");
        format!("or {enabled} (and (kindIs \"invalid\" {enabled}) (eq .Values.platform \"openshift\"))")
    };
    let of_folder = match object.folder() {
        "azure" => Some(".Values.azure.enabled".to_owned()),
        "cluster-api" => Some(".Values.clusterApi.enabled".to_owned()),
        "machine-api" => Some(on_openshift("machineApi")),
        "openshift-config" => Some(on_openshift("openshiftConfig")),
        dashboards::GRAFANA => Some(".Values.dashboards.grafana".to_owned()),
        dashboards::CONSOLE => Some(".Values.dashboards.openshift".to_owned()),
        "components/guards" => Some(".Values.guards.enabled".to_owned()),
        "components/monitoring" => Some(on_openshift("monitoring")),
        windows_exporter::FOLDER if object.kind() == "Service" => Some(on_openshift("windowsExporter")),
        windows_exporter::FOLDER => {
            Some(format!("and ({}) ({})", on_openshift("monitoring"), on_openshift("windowsExporter")))
        }
        "components/network-policy" => Some(".Values.networkPolicy.enabled".to_owned()),
        "components/view-roles" => Some(".Values.viewRoles.enabled".to_owned()),
        _ => None,
    };
    let is_rbac = object.value["apiVersion"].as_str().is_some_and(|version| version.starts_with("rbac."));
    let name = object.value["metadata"]["name"].as_str().unwrap_or_default();
    let of_object = match object.kind() {
        _ if is_rbac => Some(".Values.rbac.create"),
        "ServiceAccount" if object.folder() == "base" => Some(".Values.serviceAccount.create"),
        "Service" if name.ends_with("-metrics") => Some(".Values.metrics.service"),
        _ => None,
    };
    match (of_object, of_folder) {
        (Some(one), Some(other)) => Some(format!("and {one} ({other})")),
        (one, other) => one.map(str::to_owned).or(other),
    }
}

/// Where values come into an object.
fn holes(object: &Object) -> Notes {
    let instead =
        |pointer: &str, text: &str| (pointer.to_owned(), Note { instead: Some(mark(text)), ..Note::default() });
    let append = |pointer: &str, texts: &[String]| (pointer.to_owned(), append(texts));
    match (object.kind(), object.folder()) {
        ("Deployment", _) => deployment_holes(object),
        ("Pod", _) => {
            let mut notes = pod_holes("/spec");
            notes.insert("/spec/containers/0/args".into(), self::append(&[EXTRA_ARGS.into()]));
            notes
        }
        ("ServiceAccount", "base") => {
            let annotations = format!(
                "{{{{- with .Values.serviceAccount.annotations }}}}\n{{{{- dict \"annotations\" . | toYaml | nindent {INSIDE} }}}}\n{{{{- end }}}}"
            );
            [append("/metadata", &[annotations])].into()
        }
        ("ValidatingAdmissionPolicyBinding", "components/guards") => {
            let actions =
                "validationActions: {{ eq .Values.guards.action \"Warn\" | ternary \"[Warn, Audit]\" \"[Deny]\" }}";
            [instead("/spec/validationActions", actions)].into()
        }
        ("ServiceMonitor", "components/monitoring") => {
            [append("/metadata/labels", &[with("monitoring.labels")]), instead("/spec/endpoints", &endpoints(object))]
                .into()
        }
        ("ServiceMonitor" | "PrometheusRule", _) => [append("/metadata/labels", &[with("monitoring.labels")])].into(),
        ("RoleBinding" | "ClusterRoleBinding", "components/monitoring") => ["name", "namespace"]
            .map(|field| {
                let value = format!("{field}: {{{{ .Values.monitoring.serviceAccount.{field} | quote }}}}");
                instead(&format!("/subjects/0/{field}"), &value)
            })
            .into(),
        _ => Notes::new(),
    }
}

fn deployment_holes(object: &Object) -> Notes {
    let of_template = "/spec/template";
    let mut notes = pod_holes(&format!("{of_template}/spec"));
    for (pointer, texts) in [
        (format!("{of_template}/metadata/labels"), vec![with("podLabels")]),
        (format!("{of_template}/metadata/annotations"), vec![announcement(object), with("podAnnotations")]),
        (format!("{of_template}/spec/containers/0/args"), vec![EXTRA_ARGS.to_owned()]),
    ] {
        notes.insert(pointer, append(&texts));
    }
    notes
}

/// Of a pod with the operator's program.
fn pod_holes(of_pod: &str) -> Notes {
    let of_container = format!("{of_pod}/containers/0");
    let of_payload = |item: Value| {
        format!("{{{{- if .Values.payload.image }}}}\n{}{{{{- end }}}}", emit(&json!([item]), &Notes::new()))
    };
    let mut notes = Notes::new();
    for (pointer, text) in [
        (format!("{of_pod}/nodeSelector"), String::new()),
        (
            format!("{of_container}/image"),
            format!(
                "image: {{{{ include \"windows-node-pools.image\" . | quote }}}}\n{}",
                pull_policy("imagePullPolicy")
            ),
        ),
        (
            format!("{of_container}/resources"),
            format!("resources:\n  {{{{- toYaml .Values.resources | nindent {INSIDE} }}}}"),
        ),
    ] {
        notes.insert(pointer, Note { instead: Some(mark(&text)), ..Note::default() });
    }
    let volumes = payload::Form::ALL.map(|form| {
        let notes = match form {
            payload::Form::Volume => [("/0/image".into(), append(&[pull_policy("pullPolicy")]))].into(),
            payload::Form::InitContainers => Notes::new(),
        };
        of_form(form, &json!(form.volumes(PAYLOAD_IMAGE)), &notes)
    });
    for (pointer, texts) in [
        (of_pod.to_owned(), vec![init_containers(), pod_fields()]),
        (format!("{of_pod}/volumes"), volumes.into_iter().chain([with("extraVolumes")]).collect()),
        (format!("{of_container}/volumeMounts"), vec![of_payload(payload::volume_mount()), with("extraVolumeMounts")]),
        (
            format!("{of_container}/env"),
            vec![
                of_payload(payload::variable()),
                format!("{{{{- include \"windows-node-pools.env\" . | trim | nindent {INSIDE} }}}}"),
                with("extraEnv"),
            ],
        ),
    ] {
        notes.insert(pointer, append(&texts));
    }
    notes
}

fn append(texts: &[String]) -> Note {
    Note { append: texts.iter().map(|text| mark(text)).collect(), ..Note::default() }
}

/// What a value holds, if it is set.
fn with(value: &str) -> String {
    format!("{{{{- with .Values.{value} }}}}\n{{{{- toYaml . | nindent {INSIDE} }}}}\n{{{{- end }}}}")
}

/// What is there if the payload comes in this form.
fn of_form(form: payload::Form, value: &Value, notes: &Notes) -> String {
    format!(
        "{{{{- if and .Values.payload.image (eq .Values.payload.by {:?}) }}}}\n{}{{{{- end }}}}",
        form.value(),
        emit(value, notes)
    )
}

/// When an image is pulled, if the value says it.
fn pull_policy(field: &str) -> String {
    format!("{{{{- with .Values.image.pullPolicy }}}}\n{field}: {{{{ . }}}}\n{{{{- end }}}}")
}

fn init_containers() -> String {
    let form = payload::Form::InitContainers;
    // Quoted so that no quotation mark has to be escaped in YAML.
    let operator = format!("{{{{ include `{NAME}.image` . }}}}");
    let containers = form.init_containers(&operator, PAYLOAD_IMAGE);
    let pulled = |at| (format!("/initContainers/{at}"), append(&[pull_policy("imagePullPolicy")]));
    let notes = (0..containers.len()).map(pulled).collect();
    of_form(form, &json!({"initContainers": containers}), &notes)
}

/// The fields of the pod that the values and the platform set.
fn pod_fields() -> String {
    let names: Vec<_> = POD_FIELDS.iter().map(|name| format!("{name:?}")).collect();
    format!(
        "{{{{- $defaults := include \"windows-node-pools.podDefaults\" . | fromYaml }}}}\n\
         {{{{- range $field := list {} }}}}\n\
         {{{{- $value := index $.Values $field }}}}\n\
         {{{{- if kindIs \"invalid\" $value }}}}{{{{ $value = index $defaults $field }}}}{{{{ end }}}}\n\
         {{{{- with $value }}}}\n\
         {{{{- dict $field . | toYaml | nindent {INSIDE} }}}}\n\
         {{{{- end }}}}\n\
         {{{{- end }}}}",
        names.join(" ")
    )
}

/// What a ServiceMonitor reads, by the platform and by whether there is TLS.
fn endpoints(object: &Object) -> String {
    let of = |monitor: &Value| emit(&json!({"endpoints": monitor["spec"]["endpoints"]}), &Notes::new());
    let plain = json!({"spec": {"endpoints": [{"port": object.value["spec"]["endpoints"][0]["port"]}]}});
    format!(
        "{{{{- if {PLAIN_METRICS} }}}}\n{}{{{{- else if eq .Values.platform \"openshift\" }}}}\n{}{{{{- else }}}}\n{}{{{{- end }}}}",
        of(&plain),
        of(&patched(object, Platform::OpenShift)),
        of(&object.value),
    )
}

/// The annotations by which a Prometheus finds the pod.
fn announcement(object: &Object) -> String {
    let on_kubernetes = patched(object, Platform::Kubernetes);
    let pointer = "/spec/template/metadata/annotations";
    let mut annotations = on_kubernetes.pointer(pointer).and_then(Value::as_object).cloned().unwrap_or_default();
    let always = object.value.pointer(pointer).and_then(Value::as_object).cloned().unwrap_or_default();
    annotations.retain(|key, _| !always.contains_key(key));
    if let Some(scheme) = annotations.get_mut("prometheus.io/scheme") {
        *scheme = mark(&format!("{{{{ {PLAIN_METRICS} | ternary \"http\" \"https\" }}}}")).into();
    }
    let value = ".Values.metrics.podAnnotations";
    format!(
        "{{{{- if or {value} (and (kindIs \"invalid\" {value}) (ne .Values.platform \"openshift\")) }}}}\n{}{{{{- end }}}}",
        emit(&annotations.into(), &Notes::new())
    )
}

fn patched(object: &Object, platform: Platform) -> Value {
    let mut object = object.clone();
    platform.patches().iter().for_each(|patch| patch.apply(&mut object));
    object.value
}

/// `_helpers.tpl`.
pub(super) fn helpers(objects: &[Object], settings: &[OperatorSetting]) -> String {
    let deployment = objects.iter().find(|object| object.kind() == "Deployment");
    let defaults = |platform| {
        let value = deployment.map(|object| patched(object, platform)).unwrap_or_default();
        let fields = POD_FIELDS.iter().filter_map(|field| {
            Some(((*field).to_owned(), value.pointer(&format!("/spec/template/spec/{field}"))?.clone()))
        });
        emit(&Value::Object(fields.collect::<Map<_, _>>()), &Notes::new())
    };
    let variables: String = settings.iter().map(variable).collect();
    format!(
        "{{{{/* Generated by `cargo xtask gen`. */}}}}\n\n\
         {{{{/* The image, by digest or by tag. */}}}}\n\
         {{{{- define \"{NAME}.image\" -}}}}\n\
         {{{{- $image := .Values.image.repository -}}}}\n\
         {{{{- with .Values.image.registry }}}}{{{{ $image = printf \"%s/%s\" . $image }}}}{{{{ end -}}}}\n\
         {{{{- if .Values.image.digest }}}}{{{{ printf \"%s@%s\" $image .Values.image.digest }}}}\
         {{{{ else }}}}{{{{ printf \"%s:%s\" $image (.Values.image.tag | default .Chart.AppVersion) }}}}{{{{ end -}}}}\n\
         {{{{- end }}}}\n\n\
         {{{{/* What the platform sets in the pod, unless a value does. */}}}}\n\
         {{{{- define \"{NAME}.podDefaults\" -}}}}\n\
         {{{{- if eq .Values.platform \"openshift\" -}}}}\n{}{{{{- else -}}}}\n{}{{{{- end }}}}\n\
         {{{{- end }}}}\n\n\
         {{{{/* The environment variables of the values below `operator`. */}}}}\n\
         {{{{- define \"{NAME}.env\" -}}}}\n\
         {{{{- if and (eq .Values.platform \"kubernetes\") (not .Values.operator.apiServer) }}}}\n\
         {{{{- fail {:?} }}}}\n\
         {{{{- end }}}}\n\
         {{{{- if and .Values.operator.payload .Values.payload.image }}}}\n\
         {{{{- fail {:?} }}}}\n\
         {{{{- end }}}}\n\
         {variables}{{{{- end }}}}\n",
        defaults(Platform::OpenShift),
        defaults(Platform::Kubernetes),
        super::NO_API_SERVER,
        super::TWO_PAYLOADS,
    )
}

/// A variable that is there if its value is set.
fn variable(setting: &OperatorSetting) -> String {
    let OperatorSetting { key, variable, form, .. } = setting;
    let value = format!(".Values.operator.{key}");
    let (condition, text) = match form {
        Form::Text | Form::Duration | Form::OneOf(_) => (value.clone(), format!("{value} | quote")),
        Form::List => (value.clone(), format!("join \",\" {value} | quote")),
        Form::Bool => (format!("not (kindIs \"invalid\" {value})"), format!("{value} | quote")),
        Form::Whole => (format!("not (kindIs \"invalid\" {value})"), format!("{value} | int64 | quote")),
    };
    format!("{{{{- if {condition} }}}}\n- name: {variable}\n  value: {{{{ {text} }}}}\n{{{{- end }}}}\n")
}
