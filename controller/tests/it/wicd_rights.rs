//! Rights of wicd on hosts, and the policies on which these rights depend.

use anyhow::{Context as _, Result, ensure};
use api::{DeletionPolicy, WindowsInstance, conditions::kind, names::key};
use controller::cluster::wicd_rbac::{BINDING, OWNER_POLICY};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    certificates::v1::CertificateSigningRequest,
    core::v1::Node,
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{deployment, sim::SimOptions};

use crate::{
    access::merge_patch,
    csr::forge::Forged,
    fleet::{World, has, is_ready, pool_status, spec, spec_with, status},
    removal::{delete_pool, until_pool_gone},
};

const NODES_POLICY: &str = "windows-node-pools-operator-nodes";
const REQUESTS_POLICY: &str = "windows-node-pools-wicd-requests";

async fn binding(world: &World) -> Result<Option<ClusterRoleBinding>> {
    Ok(Api::<ClusterRoleBinding>::all(world.client.clone()).get_opt(BINDING).await?)
}

/// Waits until wicd has no rights on any host, and the pool reports why.
async fn until_withheld(world: &World, pool: &str) -> Result<()> {
    world.eventually("the rights are gone", || async { matches!(binding(world).await, Ok(None)) }).await?;
    world
        .until(pool, "it says that a policy is missing", |p| {
            let conditions = &pool_status(p).conditions;
            has(conditions, kind::POLICIES_IN_FORCE, "False", "PolicyMissing")
                && has(conditions, kind::READY, "False", "PolicyMissing")
        })
        .await
}

async fn until_given(world: &World, pool: &str) -> Result<()> {
    world.eventually("the rights are back", || async { matches!(binding(world).await, Ok(Some(_))) }).await?;
    world
        .until(pool, "it says that the policies are in force", |p| {
            has(&pool_status(p).conditions, kind::POLICIES_IN_FORCE, "True", "AsExpected") && is_ready(p)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_daemon_has_rights_or_gets_a_certificate_while_a_policy_is_not_in_force() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("held", 2).await?;
    world.join("held", &spec(&hosts[..1])).await?;
    ensure!(binding(&world).await?.is_some(), "a host has joined, and its daemon has no rights");
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(world.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.client.clone());

    // A policy is weakened, and then a binding. The binding stays so while a request and a join are tried.
    merge_patch(&policies, OWNER_POLICY, json!({"spec": {"failurePolicy": "Ignore"}})).await?;
    until_withheld(&world, "held").await?;
    deployment::apply(&world.control_plane, "base").await?;
    until_given(&world, "held").await?;

    merge_patch(&bindings, REQUESTS_POLICY, json!({"spec": {"validationActions": ["Audit"]}})).await?;
    until_withheld(&world, "held").await?;
    // A valid request for wicd waits.
    let wicd = world.control_plane.client_as("system:wicd-node:held-0", &["system:wicd-nodes"]).await?;
    let requests: Api<CertificateSigningRequest> = Api::all(world.client.clone());
    let node: Api<Node> = Api::all(wicd);
    let own = ListParams::default().fields("metadata.name=held-0");
    world.eventually("the daemon has no rights", || async { node.list(&own).await.is_err() }).await?;
    let pem = Forged::new("system:wicd-node:held-0", &["system:wicd-nodes"]).pem();
    let operator = deployment::operator_client(&world.control_plane).await?;
    let request: CertificateSigningRequest = serde_json::from_value(json!({
        "metadata": {"name": "held"},
        "spec": {
            "request": k8s_openapi::ByteString(pem.into()), "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["digital signature", "client auth"], "expirationSeconds": 3600,
        },
    }))?;
    Api::<CertificateSigningRequest>::all(operator).create(&PostParams::default(), &request).await?;
    // A host that would join waits, too.
    world.apply("held", &spec(&hosts)).await?;
    let says = |i: &WindowsInstance| {
        let message = status(i).conditions.into_iter().find(|c| c.type_ == kind::READY).map(|c| c.message);
        message.is_some_and(|m| m.contains("admission policies"))
    };
    world.until_instance("held-1", "waits for the policies", says).await?;
    let decided = |r: &CertificateSigningRequest| r.status.as_ref().is_some_and(|s| s.conditions.is_some());
    let is_approved = |r: &CertificateSigningRequest| {
        let conditions = r.status.iter().flat_map(|s| s.conditions.iter().flatten());
        conditions.map(|c| c.type_.as_str()).eq(["Approved"])
    };
    ensure!(!decided(&requests.get("held").await?), "a certificate of a daemon was approved or denied");

    deployment::apply(&world.control_plane, "base").await?;
    until_given(&world, "held").await?;
    world.until_joined("held-1").await?;
    world
        .eventually("the request is approved", || async { requests.get("held").await.is_ok_and(|r| is_approved(&r)) })
        .await?;

    // When the policy's binding is deleted, the rights are removed even while no operator runs.
    let mut world = world;
    world.stop().await?;
    bindings.delete(OWNER_POLICY, &DeleteParams::default()).await?;
    world
        .eventually("the garbage collector deletes the binding", || async { matches!(binding(&world).await, Ok(None)) })
        .await?;
    world.new_operator().await?;
    until_withheld(&world, "held").await?;
    deployment::apply(&world.control_plane, "base").await?;
    until_given(&world, "held").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn daemons_keep_their_rights_while_the_policies_that_limit_them_are_in_force() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    tokio::try_join!(
        a_missing_policy_that_limits_no_daemon_is_reported_and_stops_nothing(&world),
        a_daemon_keeps_its_rights_when_its_instance_is_another_one(&world),
    )?;
    Ok(())
}

async fn a_missing_policy_that_limits_no_daemon_is_reported_and_stops_nothing(world: &World) -> Result<()> {
    let hosts = world.hosts("limit", 2).await?;
    world.join("limit", &spec(&hosts[..1])).await?;
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.client.clone());
    let metric = async |value: u8| -> Result<bool> {
        let line = format!("windows_node_pool_policy_in_force{{policy=\"{NODES_POLICY}\"}} {value}");
        Ok(world.operator.get("/metrics").await?.contains(&line))
    };
    ensure!(metric(1).await?, "{}", world.operator.get("/metrics").await?);
    bindings.delete(NODES_POLICY, &DeleteParams::default()).await?;
    world
        .until("limit", "it says that a policy is missing", |p| {
            let conditions = &pool_status(p).conditions;
            let said = conditions.iter().find(|c| c.type_ == kind::POLICIES_IN_FORCE).map(|c| c.message.clone());
            has(conditions, kind::POLICIES_IN_FORCE, "False", "PoliciesMissing")
                && said.is_some_and(|message| message.contains(NODES_POLICY))
        })
        .await?;
    ensure!(metric(0).await?, "{}", world.operator.get("/metrics").await?);
    world.join("limit", &spec(&hosts)).await?;
    deployment::apply(&world.control_plane, "base").await?;
    until_given(world, "limit").await?;
    ensure!(metric(1).await?, "{}", world.operator.get("/metrics").await?);
    Ok(())
}

async fn a_daemon_keeps_its_rights_when_its_instance_is_another_one(world: &World) -> Result<()> {
    let hosts = world.hosts("again", 2).await?;
    world.join("again", &spec_with(&hosts, json!({"deletionPolicy": DeletionPolicy::Orphan}))).await?;
    let uid = async |name: &str| -> Result<String> {
        world.instance(name).await?.and_then(|i| i.uid()).context("there is no instance")
    };
    // Both hosts are released and taken again. Then the instance of the second one is deleted by force.
    let orphan = uid("again-0").await?;
    let instances: Api<WindowsInstance> = Api::all(world.client.clone());
    delete_pool(world, "again").await?;
    until_pool_gone(world, "again").await?;
    world.join("again", &spec(&hosts)).await?;
    ensure!(uid("again-0").await? != orphan, "it has the same instance");
    let forced = uid("again-1").await?;
    let finalizers = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    instances.delete("again-1", &DeleteParams::default()).await?;
    let _ = instances.patch("again-1", &PatchParams::default(), &finalizers).await;
    world.until_instance("again-1", "was created again", |i| i.uid() != Some(forced.clone())).await?;
    world.until_joined("again-1").await?;

    // A change of the template reaches both, and waits for the versions that wicd reports in their Nodes.
    let before = pool_status(&world.pool("again").await?).desired_version;
    let change: Value = json!({"template": {"spec": {"kubelet": {"maxPods": 77}}}});
    world.apply("again", &spec_with(&hosts, change)).await?;
    world
        .until("again", "both follow another version", |p| {
            is_ready(p) && pool_status(p).desired_version != before && pool_status(p).up_to_date_nodes == 2
        })
        .await?;
    for name in ["again-0", "again-1"] {
        let node = world.node(name).await?.context("there is no Node")?;
        ensure!(
            node.annotations().get(key::VERSION) == pool_status(&world.pool("again").await?).desired_version.as_ref()
        );
    }
    Ok(())
}
