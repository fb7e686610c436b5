//! The command `machineset`: prints a MachineSet of OpenShift's Machine API for Windows. Nothing is written.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::ValueEnum as _;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use serde_json::Value;

use crate::{
    api_server,
    args::{self, MachinePlatform, MachineSet},
    errors::plain,
};

mod manifest;
mod refusal;
mod workers;

use manifest::{NAMESPACE, Wanted, manifest};
use workers::{Cluster, Worker};

/// Prints the manifest.
///
/// # Errors
/// When a value is not known, the name does not fit the platform, the cluster is on another platform, or the API server refuses a request or
/// does not answer.
pub async fn run(args: MachineSet, chosen: &args::Cluster) -> anyhow::Result<ExitCode> {
    let cluster = if chosen.is_named() {
        let config = api_server::bounded_config(chosen).await?;
        Some(read(Client::try_from(config).context("cannot make a client for the API server")?).await?)
    } else {
        None
    };
    crate::output::print(&text(&args, cluster.as_ref())?)?;
    Ok(ExitCode::SUCCESS)
}

fn text(args: &MachineSet, cluster: Option<&Cluster>) -> anyhow::Result<String> {
    let values = args.values.given();
    let platform = name_of(args.platform);
    let worker = match cluster {
        Some(cluster) => cluster.worker(&platform, values.get("zone").map(String::as_str))?,
        None => None,
    };
    let wanted = Wanted {
        platform: args.platform,
        name: &args.name,
        replicas: args.replicas,
        gpus: args.gpus,
        infrastructure: cluster.and_then(|cluster| cluster.infrastructure.as_deref()),
        worker,
        values: &values,
    };
    let manifest = serde_yaml::to_string(&manifest(&wanted)?)?;
    let from = worker.map(|worker| format!("# What no argument names is that of the MachineSet {}.\n", worker.name));
    Ok(format!("# Check it, and apply it: oc apply -f FILE\n{}{manifest}", from.unwrap_or_default()))
}

fn name_of(platform: MachinePlatform) -> String {
    platform.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

async fn read(client: Client) -> anyhow::Result<Cluster> {
    let api = |group: &str, version: &str, kind: &str, plural: &str| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    };
    let infrastructures = api("config.openshift.io", "v1", "Infrastructure", "infrastructures");
    let infrastructure = Api::<DynamicObject>::all_with(client.clone(), &infrastructures).get_opt("cluster").await;
    let infrastructure =
        infrastructure.map_err(|e| anyhow::anyhow!("failed to get the Infrastructure: {}", plain(&e)))?;
    let sets = api("machine.openshift.io", "v1beta1", "MachineSet", "machinesets");
    let sets = Api::<DynamicObject>::namespaced_with(client, NAMESPACE, &sets).list(&ListParams::default()).await;
    let sets = match sets {
        Ok(sets) => sets.items,
        // A cluster without the Machine API.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => anyhow::bail!("failed to list the MachineSets: {}", plain(&error)),
    };
    let infrastructure = infrastructure.map(|object| object.data).unwrap_or_default();
    Ok(Cluster::new(&infrastructure, sets.iter().filter_map(Worker::read).collect()))
}

/// A text in an object.
fn text_at(value: &Value, pointer: &str) -> Option<String> {
    value.pointer(pointer).and_then(Value::as_str).map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests;
