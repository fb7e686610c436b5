//! Operator whose watch is refused, whose CRDs are outdated, or that runs beside another installation: it begins nothing new, and reports why.

use anyhow::{Context as _, Result, ensure};
use api::{WindowsNodePool, conditions::kind};
use k8s_openapi::api::{
    core::v1::Namespace,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{Api, api::PostParams};
use serde_json::json;
use testbed::{Operator, sim::SimOptions};

use crate::{
    access::create,
    fleet::{OUTLIVES_API_SERVER, World, has, is_ready, pool_status, spec_with},
    rollout::with_downloads,
    upgrade::older_crds,
};

const ROLE: &str = "windows-node-pools";

fn refused(pool: &WindowsNodePool, why: &str, words: &str) -> bool {
    let conditions = &pool_status(pool).conditions;
    has(conditions, kind::READY, "False", why) && conditions.iter().any(|c| c.message.contains(words))
}

async fn probe(operator: &Operator, words: &str) -> bool {
    operator.get("/readyz").await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 503") && answer.contains(words))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_refused_is_reported_and_blames_no_version() -> Result<()> {
    let world =
        World::new(SimOptions::default(), &[&["--register-timeout", "20s"], &OUTLIVES_API_SERVER[..]].concat()).await?;
    let hosts = world.hosts("blind", 2).await?;
    world.join("blind", &with_downloads(&hosts, 3, &json!({}))).await?;
    let roles: Api<ClusterRole> = Api::all(world.client.clone());
    let role = roles.get(ROLE).await?;
    let mut less = role.clone();
    for rule in less.rules.iter_mut().flatten() {
        if rule.resources.as_ref().is_some_and(|resources| resources.iter().any(|r| r == "nodes")) {
            rule.verbs.retain(|verb| verb != "watch" && verb != "list");
        }
    }
    ensure!(less.rules != role.rules, "the role has no such rule");
    roles.replace(ROLE, &PostParams::default(), &less).await?;
    // Open watches continue. After a restart of the API server, they are refused.
    world.control_plane.restart_apiserver().await?;
    world.until("blind", "it says what is not seen", |p| refused(p, "ApiError", "the watch of nodes")).await?;
    world.apply("blind", &with_downloads(&hosts, 4, &json!({}))).await?;
    world.eventually("the probe reports the watch", || probe(&world.operator, "the watch of nodes")).await?;

    let mut back = roles.get(ROLE).await?;
    back.rules = role.rules;
    roles.replace(ROLE, &PostParams::default(), &back).await?;
    world.until("blind", "the change is complete", |p| is_ready(p) && pool_status(p).up_to_date_nodes == 2).await?;
    let log = world.operator.log();
    ensure!(!log.contains("NotRegistered") && !log.contains("RollingBack"), "a version was blamed: {log}");
    ensure!(!probe(&world.operator, "").await, "the probe still reports the watch");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn old_crds_and_another_installation_are_reported() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    crds_of_an_earlier_release_are_reported_until_they_are_replaced(&mut world).await?;
    a_second_installation_waits_and_a_deleted_lease_ends_the_lead_at_once(&mut world).await
}

async fn crds_of_an_earlier_release_are_reported_until_they_are_replaced(world: &mut World) -> Result<()> {
    let hosts = world.hosts("old", 1).await?;
    world.join("old", &spec_with(&hosts, json!({}))).await?;
    for crd in older_crds()? {
        world.control_plane.apply_yaml(&crd.to_string()).await?;
    }
    world.start_operator().await?;
    world
        .until("old", "it says which CRD is old", |p| refused(p, "CrdInvalid", "kubectl apply --server-side -k crds"))
        .await?;
    ensure!(has(&pool_status(&world.pool("old").await?).conditions, kind::DEGRADED, "True", "CrdInvalid"));
    for crd in api::crds() {
        world.control_plane.apply_yaml(&serde_yaml::to_string(&crd)?).await?;
    }
    world
        .until("old", "it works again", |p| {
            is_ready(p) && !has(&pool_status(p).conditions, kind::STALLED, "True", "CrdInvalid")
        })
        .await
}

async fn a_second_installation_waits_and_a_deleted_lease_ends_the_lead_at_once(world: &mut World) -> Result<()> {
    create::<Namespace>(&world.client, json!({"metadata": {"name": "second"}})).await?;
    create::<ClusterRoleBinding>(
        &world.client,
        json!({
            "metadata": {"name": "second"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "windows-node-pools", "namespace": "second"}],
        }),
    )
    .await?;
    let second = Operator::start_in(&world.control_plane, &world.options, "second")?;
    world.eventually("the second one waits", || probe(&second, "AnotherOperator")).await?;
    ensure!(second.metric("windows_node_pool_leader").await? == 0.0, "both lead");

    let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
        Api::namespaced(world.client.clone(), api::names::DEFAULT_NAMESPACE);
    leases.delete(api::names::LEASE, &kube::api::DeleteParams::default()).await?;
    crate::crash::ended(&mut world.operator, crate::fleet::LIMIT).await?;
    let log = world.operator.log();
    ensure!(log.contains("was deleted; this process exits"), "{log}");
    second.leads().await.context("the second operator does not lead")?;
    world.start_operator().await?;
    world.eventually("now the first one waits", || probe(&world.operator, "second/windows-node-pools")).await
}
