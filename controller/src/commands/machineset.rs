//! Command `machineset`: prints a Windows MachineSet for OpenShift's Machine API, made from a MachineSet of Linux workers. It changes nothing in
//! the cluster.

use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use api::names::{default_taint, key};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use serde_json::{Map, Value, json};

use crate::{
    args::{Cluster, MachineSet},
    client::api_server,
    runtime::errors::plain,
};

/// Namespace of the Machine API.
const NAMESPACE: &str = "openshift-machine-api";
/// Label with the infrastructure name of the cluster.
const INFRASTRUCTURE: &str = "machine.openshift.io/cluster-api-cluster";
/// Label with the name of the MachineSet.
const SET: &str = "machine.openshift.io/cluster-api-machineset";
/// Label with the role of the nodes.
const ROLE: &str = "machine.openshift.io/cluster-api-machine-role";
/// Annotations with the node size, which the autoscaler reads while the MachineSet has no node.
const SIZES: [&str; 3] = ["machine.openshift.io/vCPU", "machine.openshift.io/memoryMb", "machine.openshift.io/GPU"];
/// Annotation with the labels of future nodes, which the autoscaler reads while the MachineSet has no node.
const CAPACITY_LABELS: &str = "capacity.cluster-autoscaler.kubernetes.io/labels";
/// Annotation with the taints of future nodes, which the autoscaler reads while the MachineSet has no node.
const CAPACITY_TAINTS: &str = "capacity.cluster-autoscaler.kubernetes.io/taints";
/// Maximum length of a Windows host name (NetBIOS).
const NETBIOS: usize = 15;
/// Length of the suffix that the Machine API adds to a MachineSet's name for each Machine: a dash and five characters.
const SUFFIX: usize = 6;
/// Maximum length of a MachineSet name, so that the names of its Machines are DNS labels.
const DNS_LABEL: usize = 63 - SUFFIX;

/// Prints the Windows MachineSet.
///
/// # Errors
/// Fails when there is no configuration for the API server, no MachineSet of Linux workers exists or has the given name, it cannot be changed to
/// Windows, the new name is invalid or does not fit the platform, or the API server refuses a request or does not answer.
pub async fn run(args: MachineSet, chosen: &Cluster) -> anyhow::Result<ExitCode> {
    let config = api_server::bounded_config(chosen).await?;
    let client = Client::try_from(config).context("cannot make a client for the API server")?;
    let kind = GroupVersionKind::gvk("machine.openshift.io", "v1beta1", "MachineSet");
    let kind = ApiResource::from_gvk_with_plural(&kind, "machinesets");
    let sets = Api::<DynamicObject>::namespaced_with(client, NAMESPACE, &kind).list(&ListParams::default()).await;
    let sets = match sets {
        Ok(sets) => sets.items,
        // The cluster has no Machine API.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => bail!("failed to list the MachineSets: {}", plain(&error)),
    };
    let worker = chosen_worker(&sets, args.from.as_deref())?;
    let manifest = serde_yaml::to_string(&windows_set(worker, &args)?)?;
    let from = worker.name_any();
    crate::args::output::print(&format!(
        "# Made from the MachineSet {from}. Check it, and apply it: oc apply -f FILE\n{manifest}"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the MachineSet of Linux workers with this name; without a name, the first in alphabetical order.
fn chosen_worker<'a>(sets: &'a [DynamicObject], name: Option<&str>) -> anyhow::Result<&'a DynamicObject> {
    let mut workers: Vec<&DynamicObject> = sets.iter().filter(|set| is_of_linux_workers(set)).collect();
    workers.sort_by_key(|set| set.name_any());
    let none = "the cluster has no MachineSet of Linux workers";
    let Some(name) = name else {
        return workers.first().copied().with_context(|| {
            format!("{none} to copy: list the hosts in a WindowsNodePool, or write the MachineSet by hand (examples/machines)")
        });
    };
    let names: Vec<String> = workers.iter().map(|set| api::text::line(&set.name_any(), 80)).collect();
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let found = workers.into_iter().find(|set| set.name_any() == name);
    found.with_context(|| format!("{none} with the name {name:?}; it has {known}"))
}

fn is_of_linux_workers(set: &DynamicObject) -> bool {
    let label = |key: &str| set.data["spec"]["template"]["metadata"]["labels"][key].as_str();
    label(ROLE) == Some("worker") && label(key::MACHINE_OS) != Some("Windows")
}

/// Returns the Windows MachineSet: the Linux one with another name, image and user data, and with the labels and the taint of Windows nodes.
fn windows_set(worker: &DynamicObject, args: &MachineSet) -> anyhow::Result<Value> {
    let template = &worker.data["spec"]["template"];
    let mut provider = template["spec"]["providerSpec"]["value"].clone();
    let kind = provider["kind"].as_str().unwrap_or_default().to_owned();
    let image = args.image.as_str();
    let machine_name_is_host_name = match kind.as_str() {
        "AWSMachineProviderConfig" => {
            provider["ami"] = json!({"id": image});
            false
        }
        "AzureMachineProviderSpec" => {
            provider["image"] = if image.starts_with('/') {
                json!({"publisher": "", "offer": "", "sku": "", "version": "", "resourceID": image})
            } else {
                json!({"publisher": "MicrosoftWindowsServer", "offer": "WindowsServer", "sku": image, "version": "latest", "resourceID": ""})
            };
            provider["osDisk"]["osType"] = json!("Windows");
            true
        }
        "GCPMachineProviderSpec" => {
            let mut has_boot_disk = false;
            for disk in provider["disks"].as_array_mut().into_iter().flatten().filter(|disk| disk["boot"] == true) {
                disk["image"] = json!(image);
                has_boot_disk = true;
            }
            ensure!(
                has_boot_disk,
                "no disk of the MachineSet {} has boot: true, so the command cannot replace the image of Linux: name another MachineSet with --from, or \
                 write the Windows MachineSet by hand (examples/machines)",
                worker.name_any()
            );
            false
        }
        "VSphereMachineProviderSpec" => {
            provider["template"] = json!(image);
            true
        }
        "NutanixMachineProviderConfig" => {
            provider["image"] = json!({"type": "name", "name": image});
            false
        }
        _ => bail!(
            "the providerSpec of the MachineSet {} has the kind {:?}, which this command does not support: write the Windows MachineSet by hand \
             (examples/machines)",
            worker.name_any(),
            api::text::line(&kind, 80)
        ),
    };
    check_name(&args.name, machine_name_is_host_name)?;
    provider["userDataSecret"]["name"] = json!("windows-user-data");
    let infrastructure = template["metadata"]["labels"][INFRASTRUCTURE].clone();
    let selected = json!({INFRASTRUCTURE: infrastructure, SET: args.name});
    let mut labels = selected.clone();
    labels[ROLE] = json!("worker");
    labels["machine.openshift.io/cluster-api-machine-type"] = json!("worker");
    labels[key::MACHINE_OS] = json!("Windows");
    Ok(json!({
        "apiVersion": "machine.openshift.io/v1beta1",
        "kind": "MachineSet",
        "metadata": {
            "name": args.name,
            "namespace": NAMESPACE,
            "labels": {INFRASTRUCTURE: infrastructure},
            "annotations": capacity(worker),
        },
        "spec": {
            "replicas": args.replicas,
            "selector": {"matchLabels": selected},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "metadata": {"labels": {key::WORKER_ROLE: ""}},
                    "taints": [default_taint()],
                    "providerSpec": {"value": provider},
                },
            },
        },
    }))
}

/// Returns the annotations that describe future nodes to the autoscaler while the MachineSet has none.
fn capacity(worker: &DynamicObject) -> Map<String, Value> {
    let taint = default_taint();
    let taint = format!("{}={}:{:?}", taint.key, taint.value.unwrap_or_default(), taint.effect);
    // Without these labels, the autoscaler assumes Linux.
    let labels = "kubernetes.io/arch=amd64,kubernetes.io/os=windows".to_owned();
    let sizes = SIZES.into_iter().filter_map(|key| Some((key, worker.annotations().get(key)?.clone())));
    let all = sizes.chain([(CAPACITY_LABELS, labels), (CAPACITY_TAINTS, taint)]);
    all.map(|(key, value)| (key.to_owned(), json!(value))).collect()
}

fn check_name(name: &str, machine_name_is_host_name: bool) -> anyhow::Result<()> {
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let is_name = !name.is_empty() && name.bytes().all(fits) && !name.starts_with('-') && !name.ends_with('-');
    ensure!(
        is_name && name.len() <= DNS_LABEL,
        "{:?} is not a name for a MachineSet: use at most {DNS_LABEL} lower-case letters, digits and dashes, with a letter or digit at both ends",
        api::text::line(name, 80)
    );
    ensure!(
        !machine_name_is_host_name || name.len() + SUFFIX <= NETBIOS,
        "the name {name} has {} characters, and on this platform at most {} are allowed: the name of a Machine, which has {SUFFIX} more, becomes the name of \
         the host, and Windows allows {NETBIOS} characters there (NetBIOS)",
        name.len(),
        NETBIOS - SUFFIX
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(name: &str, image: &str) -> MachineSet {
        MachineSet { name: name.into(), image: image.into(), from: None, replicas: 2 }
    }

    fn set(name: &str, labels: &Value, provider: &Value) -> DynamicObject {
        let mut labels = labels.clone();
        labels[INFRASTRUCTURE] = json!("ocp-7x2kq");
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": {SIZES[0]: "4", "example.com/other": "x"}},
            "spec": {"template": {"metadata": {"labels": labels}, "spec": {"providerSpec": {"value": provider}}}},
        }))
        .unwrap()
    }

    fn worker(provider: &Value) -> DynamicObject {
        set("ocp-7x2kq-worker-a", &json!({ROLE: "worker"}), provider)
    }

    #[test]
    fn the_first_worker_machineset_is_copied_unless_one_is_named() {
        let none = json!({});
        let sets = [
            set("c", &json!({ROLE: "worker"}), &none),
            set("b", &json!({ROLE: "worker"}), &none),
            set("a", &json!({ROLE: "worker", key::MACHINE_OS: "Windows"}), &none),
            set("0", &json!({ROLE: "infra"}), &none),
        ];
        for (sets, name, expected) in [
            (&sets[..], None, Ok("b")),
            (&sets[..], Some("c"), Ok("c")),
            (&sets[..], Some("a"), Err("with the name \"a\"; it has b, c")),
            (&sets[2..], None, Err("no MachineSet of Linux workers to copy: ")),
        ] {
            match (chosen_worker(sets, name), expected) {
                (Ok(found), Ok(name)) => assert_eq!(found.name_any(), name),
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn image_user_data_labels_and_taints_differ_and_the_rest_stays() {
        for (kind, own, pointer, image) in [
            ("AWSMachineProviderConfig", json!({"ami": {"id": "linux", "filters": []}}), "/ami/id", "ami-1"),
            (
                "AzureMachineProviderSpec",
                json!({"osDisk": {"osType": "Linux", "diskSizeGB": 128}}),
                "/image/sku",
                "2022-datacenter",
            ),
            (
                "AzureMachineProviderSpec",
                json!({"osDisk": {"osType": "Linux", "diskSizeGB": 128}}),
                "/image/resourceID",
                "/images/w",
            ),
            ("GCPMachineProviderSpec", json!({"disks": [{"boot": true, "image": "linux"}]}), "/disks/0/image", "w"),
            ("VSphereMachineProviderSpec", json!({"template": "rhcos"}), "/template", "golden"),
            ("NutanixMachineProviderConfig", json!({"image": {"type": "uuid", "uuid": "1"}}), "/image/name", "w"),
        ] {
            let mut provider = own;
            provider["kind"] = json!(kind);
            provider["zone"] = json!("a");
            provider["userDataSecret"] = json!({"name": "worker-user-data", "namespace": "x"});
            let made = windows_set(&worker(&provider), &args("win", image)).unwrap();
            let found = &made["spec"]["template"]["spec"]["providerSpec"]["value"];
            assert_eq!(found.pointer(pointer).and_then(Value::as_str), Some(image), "{kind}: {found}");
            assert_eq!(found["userDataSecret"], json!({"name": "windows-user-data", "namespace": "x"}), "{kind}");
            assert_eq!(found["zone"], "a", "{kind}");
            assert!(
                kind != "AzureMachineProviderSpec"
                    || found["osDisk"] == json!({"osType": "Windows", "diskSizeGB": 128})
            );
            assert_eq!(made["metadata"]["annotations"][SIZES[0]], "4", "{kind}");
            assert_eq!(made["metadata"]["annotations"].as_object().unwrap().len(), 3, "{kind}");
            assert_eq!(made["spec"]["replicas"], 2, "{kind}");
            let labels = &made["spec"]["template"]["metadata"]["labels"];
            assert_eq!(
                (&labels[key::MACHINE_OS], &labels[SET], &labels[INFRASTRUCTURE]),
                (&json!("Windows"), &json!("win"), &json!("ocp-7x2kq"))
            );
            assert_eq!(made["spec"]["template"]["spec"]["taints"][0]["effect"], "NoSchedule", "{kind}");
        }
    }

    #[test]
    fn a_machineset_that_cannot_be_made_is_refused_with_a_remedy() {
        let of = |kind: &str, name: &str| windows_set(&worker(&json!({"kind": kind})), &args(name, "x"));
        for (kind, name, words) in [
            ("PowerVSMachineProviderConfig", "win", "PowerVSMachineProviderConfig"),
            ("GCPMachineProviderSpec", "win", "no disk of the MachineSet ocp-7x2kq-worker-a has boot: true"),
            ("VSphereMachineProviderSpec", "ten-letter", "at most 9 are allowed"),
            ("AWSMachineProviderConfig", "Win", "is not a name for a MachineSet"),
            ("AWSMachineProviderConfig", &"w".repeat(58), "is not a name for a MachineSet"),
        ] {
            assert!(of(kind, name).unwrap_err().to_string().contains(words), "{kind} {name}");
        }
        assert!(of("AWSMachineProviderConfig", "ten-letter").is_ok());
        let disks =
            json!({"kind": "GCPMachineProviderSpec", "disks": [{"boot": false, "image": "linux"}, {"image": "linux"}]});
        let error = windows_set(&worker(&disks), &args("win", "x")).unwrap_err().to_string();
        assert!(error.contains("boot: true"), "{error}");
    }
}
