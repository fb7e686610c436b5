//! The Machine API's own webhooks and controllers beside the operator.

use anyhow::{Context as _, Result, ensure};
use api::WindowsNodePool;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, ControlPlaneOptions,
    deployment::MachineApi,
    judges::machine_api::{self, Controller, MachineSets},
    sim::{HostOptions, SimHost, SimOptions},
};

use crate::{
    fleet::{World, pool_status},
    machines::{ARGS, set_port, until_made, until_ready},
    repair::{mark_node_not_ready, stop_services},
    transcripts::root,
};

/// Applies an object in a dry run with strict validation, and returns the answer of the API server and the webhooks.
async fn apply(control_plane: &ControlPlane, object: &str) -> Result<std::result::Result<Value, String>> {
    let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
    std::fs::write(file.path(), object)?;
    let path = file.path().to_str().context("path is not UTF-8")?;
    let args = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-o", "json", "-f", path];
    let output = control_plane.kubectl(&args).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(if output.status.success() { Ok(serde_json::from_slice(&output.stdout)?) } else { Err(said) })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhooks_admit_each_example_of_a_machine_set() -> Result<()> {
    let control_plane = &Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    testbed::deployment::install(control_plane).await?;
    machine_api::install(control_plane).await?;
    // Each case is the name of a platform, and a field without which the webhook refuses a Machine of that platform.
    for (platform, needed) in
        [("AWS", "ami"), ("Azure", "osDisk"), ("GCP", "region"), ("VSphere", "template"), ("Nutanix", "image")]
    {
        let _judge = MachineSets::start(control_plane, platform).await?;
        let prefix = platform.to_lowercase();
        let mut count = 0;
        for entry in std::fs::read_dir(root().join("examples/machines"))? {
            let path = entry?.path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)) {
                continue;
            }
            let text = std::fs::read_to_string(&path)?;
            let taken = apply(control_plane, &text).await?;
            taken.map_err(|said| anyhow::anyhow!("{platform}: {}: {said}", path.display()))?;
            // The webhook must be in force: it refuses the example without the field.
            let mut wrong: Value = serde_yaml::from_str(&text)?;
            let spec = wrong.pointer_mut("/spec/template/spec/providerSpec/value").context("no providerSpec")?;
            spec.as_object_mut()
                .context("no object")?
                .remove(needed)
                .with_context(|| format!("{platform}: {needed}"))?;
            let refused = apply(control_plane, &wrong.to_string()).await?.err();
            ensure!(refused.is_some_and(|said| said.contains("admission webhook")), "{platform}: without {needed}");
            count += 1;
        }
        ensure!(count > 0, "no MachineSet for {platform}");
    }
    Ok(())
}

const SET: &str = "win";

fn kind(world: &World, kind: &str) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("machine.openshift.io", "v1beta1", kind);
    Api::namespaced_with(world.client.clone(), MachineApi::OpenShift.namespace(), &ApiResource::from_gvk(&gvk))
}

/// Waits for `count` Machines without a host, starts a host for each, and sets the Machine's status to provisioned.
async fn provide(world: &World, count: usize, hosts: &mut Vec<SimHost>) -> Result<()> {
    let machines = kind(world, "Machine");
    let without_host = async || -> Vec<String> {
        let all = machines.list(&ListParams::default()).await.map(|all| all.items).unwrap_or_default();
        let names = all.iter().map(ResourceExt::name_any);
        names.filter(|name| !hosts.iter().any(|host| host.name() == name)).collect()
    };
    world.eventually("the MachineSet has made its Machines", || async { without_host().await.len() == count }).await?;
    for name in without_host().await {
        let host = world.sim.host(HostOptions::named(&name)).await?;
        let id = Patch::Merge(json!({"spec": {"providerID": format!("bare:///{name}")}}));
        machines.patch(&name, &PatchParams::default(), &id).await?;
        let addresses = json!([{"type": "InternalIP", "address": host.address().to_string()}]);
        let status = Patch::Merge(json!({"status": {"phase": "Provisioned", "addresses": addresses}}));
        machines.patch_status(&name, &PatchParams::default(), &status).await?;
        hosts.push(host);
    }
    Ok(())
}

/// Waits until the Machine API has linked a host's Machine and its Node.
async fn until_linked(world: &World, host: &SimHost) -> Result<()> {
    let machines = kind(world, "Machine");
    let name = host.name();
    world
        .eventually(&format!("the Machine {name} has its Node"), || async {
            machines.get(name).await.is_ok_and(|m| m.data["status"]["nodeRef"]["name"] == name)
        })
        .await?;
    let node = world.node(name).await?.context("no Node")?;
    let machine = node.annotations().get("machine.openshift.io/machine");
    ensure!(machine.is_some_and(|m| *m == format!("openshift-machine-api/{name}")), "{:?}", node.annotations());
    let id = node.spec.and_then(|s| s.provider_id);
    ensure!(id.is_some_and(|id| id == format!("bare:///{name}")), "the Node has no provider ID");
    Ok(())
}

/// Runs the real controllers, which make the Machines, link the Nodes, and execute the MachineHealthCheck.
#[tokio::test(flavor = "multi_thread")]
async fn machines_get_their_nodes_and_a_health_check_replaces_one() -> Result<()> {
    let world = World::new(SimOptions::default(), ARGS).await?;
    machine_api::install(&world.control_plane).await?;
    let _sets = MachineSets::start(&world.control_plane, "None").await?;
    let _links = Controller::node_link(&world.control_plane).await?;
    let labels = json!({"machine.openshift.io/os-id": "Windows", "set": SET});
    let set = json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet",
        "metadata": {"name": SET, "namespace": MachineApi::OpenShift.namespace()},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"set": SET}}, "template": {"metadata": {"labels": labels}, "spec": {}}},
    });
    world.control_plane.apply_yaml(&set.to_string()).await?;
    let mut hosts = Vec::new();
    provide(&world, 2, &mut hosts).await?;
    until_made(&world, SET).await?;
    set_port(&world, SET, &hosts[0]).await?;
    until_ready(&world, SET, 2).await?;
    for host in &hosts {
        until_linked(&world, host).await?;
    }

    // The pool could repair the node, too, and leaves it to the MachineHealthCheck.
    let remediation = json!({"type": "Reconfigure", "notReadySeconds": 30, "maxUnhealthy": 2});
    world.edit_pool(SET, json!({"spec": {"remediation": remediation}})).await?;
    let check = json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineHealthCheck",
        "metadata": {"name": "windows", "namespace": MachineApi::OpenShift.namespace()},
        "spec": {"selector": {"matchLabels": {"set": SET}}, "maxUnhealthy": 1, "nodeStartupTimeout": "20m",
            "unhealthyConditions": [{"type": "Ready", "status": "Unknown", "timeout": "20s"}]},
    });
    world.control_plane.apply_yaml(&check.to_string()).await?;
    let _checks = Controller::health_checks(&world.control_plane).await?;
    let first = hosts[0].name().to_owned();
    stop_services(&hosts[0]);
    mark_node_not_ready(&world, &first).await?;
    let says = |p: &WindowsNodePool| {
        let mut messages = pool_status(p).conditions.into_iter().map(|c| c.message);
        messages.any(|m| m.contains("left to MachineHealthCheck openshift-machine-api/windows"))
    };
    world.until(SET, "names what replaces the Machine", says).await?;
    let machines = kind(&world, "Machine");
    let replaced = async || matches!(machines.get_opt(&first).await, Ok(None));
    world.eventually("the Machine API deletes the Machine", &replaced).await?;
    provide(&world, 1, &mut hosts).await?;
    world
        .eventually(&format!("{first} is forgotten"), || async { matches!(world.instance(&first).await, Ok(None)) })
        .await?;
    until_ready(&world, SET, 2).await?;
    for host in &hosts[1..] {
        until_linked(&world, host).await?;
    }
    Ok(())
}
