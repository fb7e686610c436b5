//! Pool that Flux applies from Git: Flux installs the operator and waits for nodes, and user actions outside Git last.

use anyhow::{Result, ensure};
use api::{
    Reason, WindowsNodePool,
    conditions::{is_true, kind},
    names::key,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, ControlPlaneOptions,
    deployment::{NAMESPACE, eventually},
    sim::{SimHost, SimOptions},
};

use super::{add, gated, repository::Repository};
use crate::{
    act_command::Plugin,
    cluster::kubectl,
    fleet::{World, all_up_to_date, entries, entry, has, is_ready, pool_status},
};

const POOL: &str = "factory";
const POOLS: &str = "windows-node-pools";

/// Commits a pool to Git.
fn commit(repository: &Repository, hosts: &[SimHost], fields: &Value) {
    let hosts: Vec<_> = hosts.iter().map(entry).collect();
    let mut spec = json!({"inventory": {"hosts": hosts}});
    crate::crd::merge(&mut spec, fields);
    let version = "windowsmachineconfig.openshift.io/v1alpha1";
    let pool = json!({"apiVersion": version, "kind": "WindowsNodePool", "metadata": {"name": POOL}, "spec": spec});
    repository.origin.commit("windows-node-pools/factory.yaml", pool.to_string(), "The pool");
}

/// Sets the Pods of the operator to Running and Ready, as a kubelet would. The operator itself runs outside the cluster.
async fn pods_run(client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    eventually("the Deployment has a pod", || async {
        pods.list(&ListParams::default()).await.is_ok_and(|pods| !pods.items.is_empty())
    })
    .await?;
    for pod in pods.list(&ListParams::default()).await? {
        let ready = json!({"type": "Ready", "status": "True"});
        let status = Patch::Strategic(json!({"status": {"phase": "Running", "conditions": [ready]}}));
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &status).await?;
    }
    Ok(())
}

/// Checks that Flux applies the operator, the pools and the workloads of the example, one after another.
#[tokio::test(flavor = "multi_thread")]
async fn the_operator_its_pools_and_workloads_come_in_order() -> Result<()> {
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    let repository = Repository::start(&control_plane).await?;
    for folder in ["deploy", "crds"] {
        add(&repository.origin, folder)?;
    }
    repository.origin.write("windows-operator/kustomization.yaml", "resources: [../deploy/kubernetes]\n");
    let workload =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "workload", "namespace": "default"}});
    repository.origin.write("windows-workloads/workload.yaml", workload.to_string());
    // Git has no pool yet: the operator and the hosts start later.
    repository.origin.write("windows-node-pools/README.md", "No pool yet.");
    repository.origin.commit_all("The operator");
    repository.apply_example("10s").await?;
    let client = control_plane.client().await?;
    pods_run(&client).await?;
    repository.until_says("Kustomization", "windows-operator", "True", "ReconciliationSucceeded").await?;

    let payload = entries(b"kubelet");
    let world = World::installed(control_plane, SimOptions::default(), &payload, None, &[]);
    let world = Box::pin(world).await?;
    world.operator.leads().await?;
    let hosts = world.hosts("win", 3).await?;
    hosts[2].power_off();
    commit(&repository, &hosts, &json!({}));
    repository.request("GitRepository", "cluster").await?;
    repository.until_says("Kustomization", POOLS, "False", "HealthCheckFailed").await?;
    let pool = world.pool(POOL).await?;
    ensure!(!is_ready(&pool), "Flux says that it is not Ready, and it is: {:?}", pool.status);
    let workloads: Api<ConfigMap> = Api::namespaced(client, "default");
    ensure!(workloads.get_opt("workload").await?.is_none(), "the workload is there before the nodes");

    // The host that is off is removed from the list.
    commit(&repository, &hosts[..2], &json!({}));
    repository.request("GitRepository", "cluster").await?;
    repository.until_says("Kustomization", POOLS, "True", "ReconciliationSucceeded").await?;
    world.until(POOL, "two are left", all_up_to_date(2)).await?;
    world.eventually("the workload is there", || async { workloads.get("workload").await.is_ok() }).await
}

/// Creates a world with a running operator and a pool that Flux applies.
async fn scene(hosts: usize, fields: &Value) -> Result<(World, Repository, Vec<SimHost>)> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let repository = Repository::start(&world.control_plane).await?;
    let hosts = world.hosts("win", hosts).await?;
    commit(&repository, &hosts, fields);
    let mut source = json!({"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
        "metadata": {"name": "cluster"}, "spec": {"interval": "1h"}});
    crate::crd::merge(&mut source["spec"], &repository.git());
    repository.apply(&source).await?;
    let kustomization = json!({"apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
        "metadata": {"name": POOLS}, "spec": {"interval": "1h", "path": "./windows-node-pools", "prune": true,
            "sourceRef": {"kind": "GitRepository", "name": "cluster"}}});
    repository.apply(&kustomization).await?;
    let count = i32::try_from(hosts.len())?;
    world.until(POOL, "all are nodes", all_up_to_date(count)).await?;
    Ok((world, repository, hosts))
}

/// Waits until a condition holds for the pool, and checks that it still holds each time that Flux has applied the pool again.
async fn stays(
    world: &World,
    repository: &Repository,
    who: &str,
    is_so: impl Fn(&WindowsNodePool) -> bool,
) -> Result<()> {
    world.until(POOL, who, &is_so).await?;
    for _ in 0..2 {
        repository.reconcile(POOLS).await?;
        let pool = world.pool(POOL).await?;
        let is_seen = pool_status(&pool).observed_generation == pool.metadata.generation;
        ensure!(is_seen && is_so(&pool), "Flux has reverted an action by {who}: {:?}", pool.spec.rollout);
    }
    Ok(())
}

/// Annotates the pool as a user does without the plugin.
async fn annotate(world: &World, key: &str, value: &str) -> Result<()> {
    let annotate = ["annotate", "--overwrite", "wnp", POOL, &format!("{key}={value}")];
    kubectl(&world.control_plane, &annotate).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn user_actions_survive_each_reconcile() -> Result<()> {
    let (world, repository, hosts) = scene(4, &gated(3)).await?;
    let plugin = Plugin::new(&world)?;

    // A pause by the plugin, or by kubectl with another field manager, lasts. Flux reverts one by kubectl with its default field manager.
    let is_paused = |p: &WindowsNodePool| is_true(&pool_status(p).conditions, kind::PAUSED);
    let patch = |paused: bool| json!({"spec": {"rollout": {"paused": paused}}}).to_string();
    for paused in [true, false] {
        plugin.run_ok(&[if paused { "pause" } else { "resume" }, POOL])?;
        stays(&world, &repository, "our command", |p| is_paused(p) == paused).await?;
    }
    for paused in [true, false] {
        let by_hand = ["patch", "wnp", POOL, "--field-manager=on-call", "--type", "merge", "-p", &patch(paused)];
        kubectl(&world.control_plane, &by_hand).await?;
        stays(&world, &repository, "a user", |p| is_paused(p) == paused).await?;
    }
    kubectl(&world.control_plane, &["patch", "wnp", POOL, "--type", "merge", "-p", &patch(true)]).await?;
    world.until(POOL, "kubectl pauses it", is_paused).await?;
    repository.reconcile(POOLS).await?;
    world.until(POOL, "Flux reverts the pause", |p| !is_paused(p)).await?;

    // One approval covers all steps of a version, although Flux applies the pool again at each.
    commit(&repository, &hosts, &gated(6));
    repository.reconcile(POOLS).await?;
    let waits =
        |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::READY, "Unknown", Reason::WaitingForApproval);
    world.until(POOL, "it waits for an approval", waits).await?;
    let version = pool_status(&world.pool(POOL).await?).desired_version.unwrap_or_default();
    annotate(&world, key::APPROVE, &version).await?;
    let mut updated = 1;
    while updated < 4 {
        repository.reconcile(POOLS).await?;
        let more = |p: &WindowsNodePool| pool_status(p).up_to_date_nodes > updated;
        world.until(POOL, "the rollout continues", more).await?;
        updated = pool_status(&world.pool(POOL).await?).up_to_date_nodes;
    }
    world.until(POOL, "all follow", all_up_to_date(4)).await?;

    // A user confirms the removal of three hosts.
    commit(&repository, &hosts[..1], &gated(6));
    repository.reconcile(POOLS).await?;
    let held = |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::STALLED, "True", Reason::RemovalBlocked);
    world.until(POOL, "the removal waits", held).await?;
    annotate(&world, key::APPROVE_REMOVAL, "3").await?;
    repository.reconcile(POOLS).await?;
    for host in &hosts[1..] {
        world.until_gone(host).await?;
    }
    world.until(POOL, "one is left", all_up_to_date(1)).await?;

    // This Kustomization prunes: it deletes a pool that Git no longer has.
    repository.origin.git(&["rm", "-q", "windows-node-pools/factory.yaml"]);
    repository.origin.commit("windows-node-pools/README.md", "No pool.", "Take the pool out");
    repository.reconcile(POOLS).await?;
    world.until_gone(&hosts[0]).await?;
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    world.eventually("the pool is gone", || async { matches!(pools.get_opt(POOL).await, Ok(None)) }).await
}
