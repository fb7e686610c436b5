//! The cloud-node-manager of a host on Azure: an identity of its own, with which it initialises its own Node and no other.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsNodePool,
    conditions::{self, kind},
    host::{ServiceState, path},
    names::{DEFAULT_NAMESPACE, user},
};
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{Node, ServiceAccount},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use testbed::{
    control_plane::{ControlPlane, ControlPlaneOptions},
    deployment,
    payload::Entry,
    sim::{SimHost, SimOptions},
};
use wnp_core::render::program;

use crate::{
    cluster::wicd,
    fleet::{World, entries, is_ready, pool_status, spec},
};

const POOL: &str = "azure";
const TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Returns a client that uses the kubeconfig of the cloud-node-manager on the host's disk.
async fn as_node_manager(host: &SimHost) -> Result<Client> {
    let on_disk = |path: &str| host.drive_c().join(path.trim_start_matches(r"C:\").replace('\\', "/"));
    let mut kubeconfig = Kubeconfig::from_yaml(&fs::read_to_string(on_disk(path::NODE_MANAGER_KUBECONFIG))?)?;
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|c| c.cluster.as_mut()) {
        let ca = cluster.certificate_authority.take().context("the kubeconfig names no CA")?;
        cluster.certificate_authority = Some(on_disk(&ca).to_str().context("path is not UTF-8")?.to_owned());
    }
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|u| u.auth_info.as_mut()) {
        let token = user.token_file.take().context("the kubeconfig names no token")?;
        user.token_file = Some(on_disk(&token).to_str().context("path is not UTF-8")?.to_owned());
    }
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

async fn merge(client: &Client, node: &str, status: bool, patch: &Value) -> Result<Node, kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    if status { nodes.patch_status(node, &params, &patch).await } else { nodes.patch(node, &params, &patch).await }
}

async fn taints(client: &Client, node: &str) -> Result<Vec<Value>> {
    Ok(taints_of(&Api::<Node>::all(client.clone()).get(node).await?)?)
}

fn taints_of(node: &Node) -> Result<Vec<Value>, serde_json::Error> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    taints.into_iter().flatten().map(serde_json::to_value).collect()
}

/// Merges a patch with changed taints into a Node. Retries on conflict, because Kubernetes itself sets and removes taints.
async fn merge_taints(client: &Client, node: &str, patch: &Value, change: impl Fn(&mut Vec<Value>)) -> Result<()> {
    loop {
        let found = Api::<Node>::all(client.clone()).get(node).await?;
        let (mut patch, mut taints) = (patch.clone(), taints_of(&found)?);
        change(&mut taints);
        patch["spec"]["taints"] = json!(taints);
        patch["metadata"]["resourceVersion"] = json!(found.metadata.resource_version);
        match merge(client, node, false, &patch).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            other => return other.map(drop).context("failed to merge the taints"),
        }
    }
}

fn refusal<T>(result: Result<T, kube::Error>) -> String {
    match result {
        Ok(_) => "it was allowed".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_node_manager_initialises_its_own_node_and_no_other() -> Result<()> {
    let control_plane = ControlPlane::start(ControlPlaneOptions::default()).await?;
    deployment::install_openshift(&control_plane).await?;
    let infrastructure = json!({"apiVersion": "config.openshift.io/v1", "kind": "Infrastructure",
        "metadata": {"name": "cluster"}, "status": {"platformStatus": {"type": "Azure"}}});
    control_plane.apply_yaml(&infrastructure.to_string()).await?;
    let manager = Entry::new(program::AZURE_NODE_MANAGER, "manager").services(&["cloud-node-manager"]);
    let payload: Vec<Entry> = entries(b"kubelet").into_iter().chain([manager]).collect();
    let arguments = ["--cluster-facts-interval", "500ms"];
    let world = World::on(control_plane, SimOptions::default(), &payload, None, &arguments).await?;
    world.operator.leads().await?;
    let hosts = world.hosts("win", 2).await?;
    world.apply(POOL, &spec(&hosts)).await?;
    let says = |p: &WindowsNodePool, part: &str| {
        conditions::find(&pool_status(p).conditions, kind::WARNING).is_some_and(|c| c.message.contains(part))
    };
    world.until(POOL, "it says what is missing", |p| says(p, "apply deploy/base and deploy/azure")).await?;
    deployment::apply(&world.control_plane, "azure").await?;
    world.until(POOL, "it is Ready", is_ready).await?;
    let runs = |host: &SimHost| {
        host.windows().state().services.get("cloud-node-manager").is_some_and(|s| s.state == ServiceState::Running)
    };
    world
        .eventually("cloud-node-manager has its token and runs on each host", || async { hosts.iter().all(runs) })
        .await?;

    // In a real cluster, the cloud controller manager sets this taint.
    let taint = json!({"key": TAINT, "value": "true", "effect": "NoSchedule"});
    for node in ["win-0", "win-1"] {
        merge_taints(&world.client, node, &json!({}), |taints| taints.push(taint.clone())).await?;
    }
    let client = as_node_manager(&hosts[0]).await?;
    let initialise = json!({
        "metadata": {"labels": {
            "topology.kubernetes.io/zone": "westeurope-1", "topology.kubernetes.azure.com/sub-fault-domain": "2",
        }},
        "spec": {"providerID": "azure:///vm-0"},
    });
    let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.7"}]}});
    merge_taints(&client, "win-0", &initialise, |taints| taints.retain(|t| t["key"] != TAINT)).await?;
    ensure!(taints(&client, "win-0").await?.iter().all(|t| t["key"] != TAINT), "the taint is still there");
    merge(&client, "win-0", true, &addresses).await?;

    for (about, node, status, patch, why) in [
        ("another node", "win-1", false, initialise.clone(), "the Node of its own host and no other"),
        ("the status of another", "win-1", true, addresses, "the Node of its own host and no other"),
        ("a cordon", "win-0", false, json!({"spec": {"unschedulable": true}}), "only set an empty providerID"),
        ("another providerID", "win-0", false, json!({"spec": {"providerID": "azure:///vm-1"}}), "spec.providerID"),
        (
            "a taint",
            "win-0",
            false,
            json!({"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}),
            "change no other",
        ),
        (
            "a role",
            "win-0",
            false,
            json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
            "only the labels that a cloud sets",
        ),
        (
            "an annotation",
            "win-0",
            false,
            json!({"metadata": {"annotations": {"x": "y"}}}),
            "may not change annotations",
        ),
        ("a condition", "win-0", true, json!({"status": {"conditions": []}}), "may not change conditions"),
        ("the capacity", "win-0", true, json!({"status": {"capacity": {"cpu": "64"}}}), "may not change conditions"),
    ] {
        let answer = refusal(merge(&client, node, status, &patch).await);
        ensure!(answer.contains(why), "{about}: {answer}");
    }
    let nodes: Api<Node> = Api::all(client);
    let deleted = refusal(nodes.delete("win-0", &DeleteParams::default()).await);
    ensure!(deleted.contains("forbidden"), "{deleted}");

    wicd_gets_tokens_only_for_its_own_node(&world).await?;

    // A host that leaves keeps no credentials of the cloud-node-manager.
    world.apply(POOL, &spec(&hosts[..1])).await?;
    let nodes: Api<Node> = Api::all(world.client.clone());
    world.eventually("the host has left", || async { matches!(nodes.get_opt("win-1").await, Ok(None)) }).await?;
    for file in [path::NODE_MANAGER_TOKEN, path::NODE_MANAGER_KUBECONFIG] {
        let file = file.rsplit('\\').next().unwrap_or(file);
        ensure!(!hosts[1].drive_c().join(Path::new("k")).join(file).exists(), "{file} is left on the host");
    }
    Ok(())
}

/// Checks that wicd gets tokens only for the identity of the cloud-node-manager, bound to its own Node, and valid for an hour at most.
async fn wicd_gets_tokens_only_for_its_own_node(world: &World) -> Result<()> {
    let daemon: Api<ServiceAccount> = Api::namespaced(wicd(&world.control_plane, "win-0").await?, DEFAULT_NAMESPACE);
    let request = |node: Option<&str>, seconds: i64| -> Result<TokenRequest> {
        let bound = node.map(|name| json!({"apiVersion": "v1", "kind": "Node", "name": name}));
        Ok(serde_json::from_value(json!({
            "metadata": {}, "spec": {"boundObjectRef": bound, "expirationSeconds": seconds, "audiences": []},
        }))?)
    };
    let params = PostParams::default();
    daemon.create_token_request(user::NODE_MANAGER, &params, &request(Some("win-0"), 3600)?).await?;
    for (about, account, request, why) in [
        ("another node", user::NODE_MANAGER, request(Some("win-1"), 3600)?, "bound to its own Node only"),
        ("no node", user::NODE_MANAGER, request(None, 3600)?, "bound to its own Node only"),
        ("a day", user::NODE_MANAGER, request(Some("win-0"), 86_400)?, "an hour at most"),
        ("the operator", "windows-node-pools", request(Some("win-0"), 3600)?, "forbidden"),
    ] {
        let answer = refusal(daemon.create_token_request(account, &params, &request).await);
        ensure!(answer.contains(why), "{about}: {answer}");
    }
    Ok(())
}
