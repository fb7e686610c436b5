//! From values to the manifest of a MachineSet. Pure.
//!
//! Each platform has a form, its `providerSpec`, in which `${…}` stands for the argument of that name. With a MachineSet of Linux workers, that
//! one's `providerSpec` stays, except what an argument names and what must differ for Windows.

use std::collections::{BTreeMap, BTreeSet};

use api::names::{default_taint, key};
use serde_json::{Map, Value, json};

use super::{
    refusal::{DNS_LABEL, NETBIOS, Refusal, SUFFIX},
    workers::Worker,
};
use crate::args::MachinePlatform;

/// Namespace of the Machine API.
pub(super) const NAMESPACE: &str = "openshift-machine-api";
/// Label with the name of the infrastructure.
const CLUSTER: &str = "machine.openshift.io/cluster-api-cluster";
/// Label with the name of the MachineSet.
const SET: &str = "machine.openshift.io/cluster-api-machineset";
/// Annotations that the autoscaler reads while there is no node: OpenShift's, and those of the autoscaler itself.
const CPUS: &str = "machine.openshift.io/vCPU";
const MEMORY: &str = "machine.openshift.io/memoryMb";
const GPUS: &str = "machine.openshift.io/GPU";
const CAPACITY_LABELS: &str = "capacity.cluster-autoscaler.kubernetes.io/labels";
const CAPACITY_TAINTS: &str = "capacity.cluster-autoscaler.kubernetes.io/taints";

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub platform: MachinePlatform,
    pub name: &'a str,
    pub replicas: u16,
    pub gpus: Option<u16>,
    /// Name of the infrastructure of the cluster, if that was read.
    pub infrastructure: Option<&'a str>,
    /// A MachineSet of Linux workers to begin with.
    pub worker: Option<&'a Worker>,
    /// Arguments.
    pub values: &'a BTreeMap<&'static str, String>,
}

/// A form, and where it goes before what Linux workers have.
struct Form {
    text: &'static str,
    /// Pointers of what must differ for Windows.
    windows: &'static [&'static str],
    /// Whether the name of a Machine becomes the name of its host.
    names_hosts: bool,
}

fn form(platform: MachinePlatform) -> Result<Form, Refusal> {
    let of = |text, windows, names_hosts| Ok(Form { text, windows, names_hosts });
    match platform {
        MachinePlatform::Aws => of(include_str!("forms/aws.yaml"), &["/ami", "/userDataSecret"], false),
        MachinePlatform::Azure => {
            of(include_str!("forms/azure.yaml"), &["/image", "/osDisk/osType", "/userDataSecret"], true)
        }
        MachinePlatform::Gcp => of(include_str!("forms/gcp.yaml"), &["/disks/0/image", "/userDataSecret"], false),
        MachinePlatform::Vsphere => of(include_str!("forms/vsphere.yaml"), &["/template", "/userDataSecret"], true),
        MachinePlatform::Nutanix => of(include_str!("forms/nutanix.yaml"), &["/image", "/userDataSecret"], false),
        MachinePlatform::None => Err(Refusal::NoMachines),
    }
}

/// The manifest.
///
/// # Errors
/// When the platform has no Machines, the name does not fit, or values are missing.
pub(super) fn manifest(wanted: &Wanted<'_>) -> Result<Value, Refusal> {
    let form = form(wanted.platform)?;
    let name = wanted.name;
    check_name(name, &form)?;
    let mut values = wanted.values.clone();
    if let Some(infrastructure) = wanted.infrastructure {
        values.entry("infrastructure").or_insert_with(|| infrastructure.to_owned());
    }
    // A zone that is that of the worker changes nothing of it.
    let zone = wanted.worker.and_then(Worker::zone);
    let other_zone = zone.is_some() && values.get("zone").is_some_and(|wanted| Some(wanted.as_str()) != zone);
    let mut filling = Filling {
        values: &values,
        form: &form,
        other_zone,
        has_worker: wanted.worker.is_some(),
        missing: BTreeSet::new(),
    };
    let text: Value = serde_yaml::from_str(form.text).unwrap_or_default();
    if let Some(worker) = wanted.worker {
        let (found, kind) = (super::text_at(&worker.provider, "/kind"), super::text_at(&text, "/kind"));
        if found != kind {
            let found = api::text::line(&found.unwrap_or_default(), 80);
            let name = worker.name.clone();
            return Err(Refusal::OtherKind { name, found, wanted: kind.unwrap_or_default() });
        }
    }
    let provider = filling.fill(&text, wanted.worker.map(|worker| &worker.provider), "");
    let infrastructure = filling.value("infrastructure");
    if !filling.missing.is_empty() {
        let missing: Vec<String> = filling.missing.iter().map(|name| format!("--{name}")).collect();
        return Err(Refusal::Missing { missing: missing.join(", ") });
    }
    let mut provider = provider.unwrap_or_default();
    of_azure_image(wanted.platform, &values, &mut provider);
    let taint = default_taint();
    let selected = json!({CLUSTER: infrastructure, SET: name});
    let mut labels = selected.clone();
    labels["machine.openshift.io/cluster-api-machine-role"] = "worker".into();
    labels["machine.openshift.io/cluster-api-machine-type"] = "worker".into();
    labels[key::MACHINE_OS] = "Windows".into();
    Ok(json!({
        "apiVersion": "machine.openshift.io/v1beta1",
        "kind": "MachineSet",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {CLUSTER: infrastructure},
            "annotations": capacity(wanted, &provider, &values),
        },
        "spec": {
            "replicas": wanted.replicas,
            "selector": {"matchLabels": selected},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "metadata": {"labels": {key::WORKER_ROLE: ""}},
                    "taints": [taint],
                    "providerSpec": {"value": provider},
                },
            },
        },
    }))
}

fn check_name(name: &str, form: &Form) -> Result<(), Refusal> {
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let is_name = !name.is_empty() && name.bytes().all(fits) && !name.starts_with('-') && !name.ends_with('-');
    if !is_name || name.len() > DNS_LABEL {
        return Err(Refusal::NotAName { name: api::text::line(name, 80) });
    }
    if form.names_hosts && name.len() + SUFFIX > NETBIOS {
        return Err(Refusal::LongForWindows { name: name.to_owned() });
    }
    Ok(())
}

/// Fills a form.
struct Filling<'a> {
    values: &'a BTreeMap<&'static str, String>,
    form: &'a Form,
    /// Whether the zone is not that of the worker, so that its subnet is of no use.
    other_zone: bool,
    has_worker: bool,
    missing: BTreeSet<String>,
}

impl Filling<'_> {
    fn value(&mut self, name: &str) -> String {
        let value = self.values.get(name).cloned();
        if value.is_none() {
            self.missing.insert(name.to_owned());
        }
        value.unwrap_or_default()
    }

    /// What stands at this place: of the worker, unless an argument names it or Windows needs another one. `None` if nothing does.
    fn fill(&mut self, form: &Value, worker: Option<&Value>, at: &str) -> Option<Value> {
        // What must be replaced is replaced as a whole.
        if self.has_worker && (self.form.windows.contains(&at) || (self.other_zone && at == "/subnet")) {
            let mut alone = Filling { has_worker: false, missing: BTreeSet::new(), ..*self };
            let filled = alone.fill(form, None, at);
            self.missing.extend(alone.missing);
            return filled;
        }
        match form {
            Value::Object(fields) => {
                let mut filled = worker.and_then(Value::as_object).cloned().unwrap_or_default();
                for (field, form) in fields {
                    let worker = worker.and_then(|worker| worker.get(field));
                    if let Some(value) = self.fill(form, worker, &format!("{at}/{field}")) {
                        filled.insert(field.clone(), value);
                    }
                }
                (!filled.is_empty()).then_some(Value::Object(filled))
            }
            Value::Array(items) => {
                let mut filled = worker.and_then(Value::as_array).cloned().unwrap_or_default();
                for (index, form) in items.iter().enumerate() {
                    let worker = worker.and_then(|worker| worker.get(index));
                    match (self.fill(form, worker, &format!("{at}/{index}")), filled.get_mut(index)) {
                        (Some(value), Some(place)) => *place = value,
                        (Some(value), None) => filled.push(value),
                        (None, _) => {}
                    }
                }
                (!filled.is_empty()).then_some(Value::Array(filled))
            }
            Value::String(text) => self.of_text(text, worker),
            constant => self.otherwise(worker, constant),
        }
    }

    /// The worker's, if there is a worker.
    fn otherwise(&self, worker: Option<&Value>, value: &Value) -> Option<Value> {
        if self.has_worker { worker.cloned() } else { Some(value.clone()) }
    }

    fn of_text(&mut self, text: &str, worker: Option<&Value>) -> Option<Value> {
        let names = placeholders(text);
        let is_named = names.iter().any(|name| name != "infrastructure" && self.values.contains_key(name.as_str()));
        if self.has_worker && !is_named {
            return worker.cloned();
        }
        let mut filled = text.to_owned();
        for name in &names {
            let value = self.value(name);
            filled = filled.replace(&format!("${{{name}}}"), &value);
        }
        let is_number = matches!(text, "${cpus}" | "${memory-mib}");
        Some(filled.parse::<u64>().ok().filter(|_| is_number).map_or(Value::String(filled), Value::from))
    }
}

/// Names of the arguments in a text.
fn placeholders(text: &str) -> Vec<String> {
    let parts = text.split("${").skip(1);
    parts.filter_map(|part| Some(part.split_once('}')?.0.to_owned())).collect()
}

/// An image of one's own on Azure has a resource ID, and no publisher.
fn of_azure_image(platform: MachinePlatform, values: &BTreeMap<&str, String>, provider: &mut Value) {
    if let Some(id) = values.get("image").filter(|image| platform == MachinePlatform::Azure && image.starts_with('/')) {
        provider["image"] = json!({"publisher": "", "offer": "", "sku": "", "version": "", "resourceID": id});
    }
}

/// What a node of the MachineSet will have, for the autoscaler as long as there is none.
fn capacity(wanted: &Wanted<'_>, provider: &Value, values: &BTreeMap<&str, String>) -> Map<String, Value> {
    let number = |pointer: &str| provider.pointer(pointer).and_then(Value::as_u64);
    let on_premises = |size: Option<u64>| size.map(|size| size.to_string());
    let sockets = number("/vcpuSockets").map(|sockets| sockets * number("/vcpusPerSocket").unwrap_or(1));
    let nutanix = provider.pointer("/memorySize").and_then(Value::as_str).and_then(mebibytes);
    // Those of the worker are right if the type is the same.
    let is_same_type = !values.contains_key("instance-type");
    let of_worker =
        |key: &str| wanted.worker.filter(|_| is_same_type).and_then(|worker| worker.annotations.get(key).cloned());
    let cpus =
        values.get("cpus").cloned().or_else(|| on_premises(number("/numCPUs").or(sockets))).or_else(|| of_worker(CPUS));
    let memory = values
        .get("memory-mib")
        .cloned()
        .or_else(|| on_premises(number("/memoryMiB").or(nutanix)))
        .or_else(|| of_worker(MEMORY));
    let gpus = wanted.gpus.map(|gpus| gpus.to_string()).or_else(|| of_worker(GPUS));
    let taint = default_taint();
    let taint = format!("{}={}:{:?}", taint.key, taint.value.unwrap_or_default(), taint.effect);
    // The autoscaler takes a node for one with Linux otherwise.
    let labels = "kubernetes.io/arch=amd64,kubernetes.io/os=windows".to_owned();
    let all =
        [(CPUS, cpus), (MEMORY, memory), (GPUS, gpus), (CAPACITY_LABELS, Some(labels)), (CAPACITY_TAINTS, Some(taint))];
    all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into()))).collect()
}

/// A quantity such as `16Gi` in MiB.
fn mebibytes(quantity: &str) -> Option<u64> {
    let of = |suffix: &str, factor: u64| quantity.strip_suffix(suffix)?.parse::<u64>().ok()?.checked_mul(factor);
    of("Mi", 1).or_else(|| of("Gi", 1024))
}
