//! The operator beside another one: WMCO, which must not work at the same time, and replicas of its own with a broken payload.

use anyhow::{Result, ensure};
use api::{
    WindowsNodePool,
    conditions::{self, kind},
    names::{DEFAULT_NAMESPACE, key},
};
use controller::csr::Kind;
use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    core::v1::{ConfigMap, Node, Pod, ServiceAccount},
    events::v1::Event,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use testbed::{ControlPlane, ControlPlaneOptions, Operator, deployment, sim::SimOptions};

use crate::{
    cluster::kubelet,
    csr::{
        self, Post,
        forge::{Forged, Name},
    },
    fleet::{World, entries, is_ready, pool_status, spec},
};

const LOCK: &str = "windows-machine-config-operator-lock";
const FAULT: &str = r#"windows_node_pool_fault{reason="AnotherOperator"}"#;

/// Makes the Windows Machine Config Operator the leader.
pub(crate) async fn start_wmco(control_plane: &ControlPlane, pod: &str) -> Result<()> {
    legacy_leads_in(control_plane, DEFAULT_NAMESPACE, pod).await
}

/// Creates WMCO's Pod in a namespace, and the lock that belongs to it.
pub(crate) async fn legacy_leads_in(control_plane: &ControlPlane, namespace: &str, pod: &str) -> Result<()> {
    let client = control_plane.client().await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let is_there = || async { matches!(accounts.get_opt("default").await, Ok(Some(_))) };
    deployment::within(crate::fleet::LIMIT, "pods can be made", is_there).await?;
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod, "labels": {"name": "windows-machine-config-operator"}},
        "spec": {"containers": [{"name": "manager", "image": "wmco"}], "automountServiceAccountToken": false}});
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid()});
    let lock = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": LOCK, "ownerReferences": [owner]}});
    let locks: Api<ConfigMap> = Api::namespaced(client, namespace);
    locks.create(&PostParams::default(), &serde_json::from_value(lock)?).await?;
    Ok(())
}

/// Deletes WMCO's Pod, and waits until the lock is gone with it.
pub(crate) async fn stop_wmco(world: &World, pod: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), DEFAULT_NAMESPACE);
    pods.delete(pod, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
    let locks: Api<ConfigMap> = Api::namespaced(world.client.clone(), DEFAULT_NAMESPACE);
    world.eventually("the lock is gone", || async { matches!(locks.get_opt(LOCK).await, Ok(None)) }).await
}

fn waits(pool: &WindowsNodePool, part: &str) -> bool {
    let ready = conditions::find(&pool_status(pool).conditions, kind::READY).cloned();
    ready.is_some_and(|c| c.status == "False" && c.reason == "AnotherOperator" && c.message.contains(part))
}

/// Posts the requests with which the kubelet of a node renews its certificates, and returns their names.
pub(crate) async fn renew(world: &World, node: &str, address: &str) -> Result<[String; 2]> {
    let client = kubelet(&world.control_plane, node).await?;
    let of_node = || Forged::new(&format!("system:node:{node}"), &["system:nodes"]);
    let serving = of_node().names(&[Name::Ip(address)]).pem();
    let posts = [
        Post::of(Kind::KubeletClient, "its identity", &client, of_node().pem()),
        Post::of(Kind::KubeletServing, "its server", &client, serving),
    ];
    Ok([posts[0].send().await?.name_any(), posts[1].send().await?.name_any()])
}

/// Returns the verdict on a request: the types of its conditions.
pub(crate) async fn verdict(world: &World, name: &str) -> Vec<String> {
    let requests: Api<CertificateSigningRequest> = Api::all(world.client.clone());
    let found = requests.get(name).await;
    found.map(|r| csr::conditions(&r).into_iter().map(|(type_, _)| type_).collect()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_begins_while_the_legacy_operator_lives() -> Result<()> {
    let control_plane = ControlPlane::start(ControlPlaneOptions::default()).await?;
    deployment::install(&control_plane).await?;
    let nodes: Api<Node> = Api::all(control_plane.client().await?);
    let of_legacy =
        json!({"metadata": {"name": "legacy", "labels": {"kubernetes.io/os": "windows", key::BYOH: "true"}}});
    nodes.create(&PostParams::default(), &serde_json::from_value(of_legacy)?).await?;
    let mut world = World::on(control_plane, SimOptions::default(), &entries(b"kubelet"), None, &[]).await?;
    world.operator.leads().await?;
    let hosts = world.hosts("win", 2).await?;
    world.apply("factory", &spec(&hosts[..1])).await?;

    // WMCO has a Node but no Pod: a drain may have evicted both operators, and this one is back first.
    world.until("factory", "it waits for the other one", |p| waits(p, "may be replaced")).await?;
    start_wmco(&world.control_plane, "wmco-1").await?;
    // The operator is ready and reports why it waits. It has begun nothing: the pool has no finalizer.
    world.until("factory", "it waits", |p| waits(p, "wmco-1")).await?;
    nodes.delete("legacy", &DeleteParams::default()).await?;
    ensure!(world.operator.get("/readyz").await?.contains("200 OK"), "the operator is not ready");
    ensure!(world.operator.metric(FAULT).await? > 0.0, "the metric does not report the fault");
    ensure!(world.pool("factory").await?.finalizers().is_empty(), "the pool has a finalizer");
    ensure!(world.instance("win-0").await?.is_none(), "there is an instance");
    ensure!(hosts[0].stats().connections == 0, "the host was logged in to");
    let events: Api<Event> = Api::namespaced(world.client.clone(), DEFAULT_NAMESPACE);
    world
        .eventually("there is an event", || async {
            let all = events.list(&ListParams::default()).await.map(|l| l.items).unwrap_or_default();
            let is_it = |e: &Event| e.reason.as_deref() == Some("AnotherOperator");
            all.iter().any(|e| is_it(e) && e.regarding.as_ref().is_some_and(|r| r.name.as_deref() == Some(LOCK)))
        })
        .await?;

    stop_wmco(&world, "wmco-1").await?;
    world.until("factory", "it joins", is_ready).await?;

    // WMCO returns while this operator works: nothing more begins, and nodes stay.
    start_wmco(&world.control_plane, "wmco-2").await?;
    world.until("factory", "it waits again", |p| waits(p, "wmco-2")).await?;
    world.apply("factory", &spec(&hosts)).await?;
    let generation = world.pool("factory").await?.metadata.generation;
    let is_seen = |p: &WindowsNodePool| pool_status(p).observed_generation == generation && waits(p, "wmco-2");
    world.until("factory", "the new host waits", is_seen).await?;
    ensure!(world.instance("win-1").await?.is_none(), "there is an instance of the new host");
    ensure!(world.node("win-0").await?.is_some(), "the node is gone");

    // An operator process that starts beside WMCO begins nothing either, but renews the certificates of its nodes. It denies no request: the
    // request may be for WMCO.
    world.restart().await?;
    world.until("factory", "the next process waits", |p| waits(p, "wmco-2")).await?;
    let wrong = Forged::new("system:node:win-0", &["system:nodes", "system:masters"]).pem();
    let as_node = kubelet(&world.control_plane, "win-0").await?;
    let wrong = Post::of(Kind::KubeletClient, "with a forbidden group", &as_node, wrong).send().await?.name_any();
    for name in renew(&world, "win-0", &hosts[0].address().to_string()).await? {
        world.eventually("a renewal is approved", || async { verdict(&world, &name).await == ["Approved"] }).await?;
    }
    ensure!(verdict(&world, &wrong).await.is_empty(), "a request was denied beside the other operator");
    ensure!(world.instance("win-1").await?.is_none(), "there is an instance of the new host");

    stop_wmco(&world, "wmco-2").await?;
    world.until("factory", "both are there", |p| is_ready(p) && pool_status(p).ready_nodes == 2).await?;
    world.eventually("the wrong request is denied", || async { verdict(&world, &wrong).await == ["Denied"] }).await?;
    ensure!(world.operator.metric(FAULT).await? == 0.0, "the metric still reports the fault");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_cannot_work_is_not_ready_unless_it_leads() -> Result<()> {
    // An operator that cannot work waits for two Lease durations before it leads.
    let mut world = World::new(SimOptions::default(), &["--lease-duration", "10s"]).await?;
    let hosts = world.hosts("win", 2).await?;
    world.join("factory", &spec(&hosts[..1])).await?;

    // The next release has a broken payload: a rolling update waits for it, and the working process stays.
    let empty = tempfile::tempdir()?;
    let mut options = world.options.clone();
    options.payload = empty.path().into();
    let broken = Operator::start(&world.control_plane, &options)?;
    let says = async |operator: &Operator, status: &str, part: &str| -> bool {
        operator.get("/readyz").await.is_ok_and(|t| t.contains(status) && t.contains(part))
    };
    world
        .eventually("the broken process is not ready", || async { says(&broken, "503", "PayloadInvalid").await })
        .await?;
    // The Lease is free for a moment, and the broken process does not take it.
    world.restart().await?;
    ensure!(says(&broken, "503", "PayloadInvalid").await, "{:?}", broken.get("/readyz").await);
    ensure!(broken.metric("windows_node_pool_leader").await? == 0.0, "the broken process leads");
    world.until("factory", "nothing has changed", is_ready).await?;

    // Alone, it leads to report the fault, and is ready: the rollout of its Deployment must not wait forever.
    world.stop().await?;
    broken.leads().await?;
    ensure!(says(&broken, "200", "leading").await, "{:?}", broken.get("/readyz").await);
    let is_refused = |p: &WindowsNodePool| {
        let ready = conditions::find(&pool_status(p).conditions, kind::READY).cloned();
        ready.is_some_and(|c| c.status == "False" && c.reason == "PayloadInvalid")
    };
    world.until("factory", "it says what is wrong", is_refused).await?;
    let metric = broken.metric(r#"windows_node_pool_fault{reason="PayloadInvalid"}"#).await?;
    ensure!(metric > 0.0, "the metric does not report the fault");

    // The operator contacts no host, but renews the certificates of nodes.
    world.apply("late", &spec(&hosts[1..])).await?;
    world.until("late", "it says what is wrong", is_refused).await?;
    ensure!(hosts[1].stats().connections == 0, "the host was logged in to");
    let [identity, _] = renew(&world, "win-0", &hosts[0].address().to_string()).await?;
    world.eventually("a renewal is approved", || async { verdict(&world, &identity).await == ["Approved"] }).await?;
    drop(broken);
    world.new_operator().await?;
    for pool in ["factory", "late"] {
        world.until(pool, "it is Ready", is_ready).await?;
    }
    Ok(())
}
