//! The operator as the Operator Lifecycle Manager installs it: it creates its policies, and says when an upgrade has to wait.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{conditions::kind, names::key};
use controller::{
    release_policies::{self, MARKER},
    wicd_policy::{self, Guard, Shipped},
    wicd_rbac,
};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, Validation},
    apps::v1::Deployment,
    core::v1::{ConfigMap, Node},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, ControlPlaneOptions,
    deployment::{self, NAMESPACE, OPERATOR},
    sim::{HostOptions, SimOptions},
};

use crate::{
    access::{FORBIDDEN, create, merge, object, refused},
    cluster::{eventually, operator},
    fleet::{World, entries, has, is_ready, pool_status, spec},
};

const OLD: &str = "0.0.1-old";
const CONDITION: &str = "windows-node-pools.v0.1.0";

/// Policies of an earlier release, which lets no daemon change its Node.
fn of_old() -> Vec<Shipped> {
    let mut guards = wicd_policy::shipped(NAMESPACE);
    guards.retain(|guard| guard.name == wicd_rbac::OWNER_POLICY);
    let validations = guards[0].policy.spec.as_mut().and_then(|spec| spec.validations.as_mut()).unwrap();
    let refusal = Some("the old release refuses this".into());
    validations.insert(0, Validation { expression: "false".into(), message: refusal, ..Validation::default() });
    release_policies::of_release(guards, OLD, NAMESPACE)
}

async fn create_policies(operator: &Client, guards: &[Shipped]) -> Result<()> {
    for Guard { policy, binding, .. } in guards {
        Api::<ValidatingAdmissionPolicy>::all(operator.clone()).create(&PostParams::default(), policy).await?;
        Api::<ValidatingAdmissionPolicyBinding>::all(operator.clone()).create(&PostParams::default(), binding).await?;
    }
    Ok(())
}

/// As OLM does when it installs a release.
async fn install(admin: &Client, release: &str) -> Result<()> {
    let annotations = json!({key::POLICIES: release});
    let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
    merge(&Api::<Deployment>::namespaced(admin.clone(), NAMESPACE), "windows-node-pools", patch).await?;
    Ok(())
}

async fn put_in_force(client: &Client, release: &str) -> kube::Result<ConfigMap> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let marker =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MARKER}, "data": {"policies": release}});
    maps.patch(MARKER, &PatchParams::apply("windows-node-pools-pool").force(), &Patch::Apply(marker)).await
}

async fn in_force(client: &Client) -> Option<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    maps.get_opt(MARKER).await.ok()??.data?.remove("policies")
}

/// What the daemon of a Node is answered when it says which version it follows.
async fn says_its_version(wicd: &Client) -> Result<(), String> {
    let patch = json!({"metadata": {"annotations": {key::VERSION: "1"}}});
    merge(&Api::<Node>::all(wicd.clone()), "n-1", patch).await.map(drop).map_err(|error| error.to_string())
}

async fn until_old_refuses(wicd: &Client) -> Result<()> {
    eventually(|| async { says_its_version(wicd).await.is_err_and(|e| e.contains("the old release refuses this")) })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policies_of_one_release_are_in_force_and_the_installer_says_of_which() -> Result<()> {
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    deployment::install_by_olm(&control_plane).await?;
    let (admin, operator) = (control_plane.client().await?, operator(&control_plane).await?);
    let node = json!({"metadata": {"name": "n-1", "labels": {"kubernetes.io/os": "windows"}}});
    create::<Node>(&admin, node).await?;
    let group = "rbac.authorization.k8s.io";
    let to_daemons = json!({"metadata": {"name": "it-wicd"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": wicd_rbac::BINDING},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": "system:wicd-nodes"}]});
    create::<ClusterRoleBinding>(&admin, to_daemons).await?;
    let wicd = control_plane.client_as("system:wicd-node:n-1", &["system:wicd-nodes"]).await?;

    // An earlier release, by the rights of the operator.
    install(&admin, OLD).await?;
    eventually(|| async { Api::<ConfigMap>::namespaced(operator.clone(), NAMESPACE).get_opt(MARKER).await.is_ok() })
        .await?;
    create_policies(&operator, &release_policies::lasting(NAMESPACE, OPERATOR)).await?;
    create_policies(&operator, &of_old()).await?;
    // As soon as the policies hold, nothing but this release can be put in force. Each attempt has another name: a write that changes nothing passes.
    let attempt = std::sync::atomic::AtomicU32::new(0);
    let another = || format!("another-{}", attempt.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    eventually(|| async { put_in_force(&operator, &another()).await.is_err() }).await?;
    put_in_force(&operator, OLD).await?;
    until_old_refuses(&wicd).await?;

    // The upgrade begins, and the new operator does not run yet: the old policies hold.
    let new = release_policies::release();
    install(&admin, &new).await?;
    until_old_refuses(&wicd).await?;
    refused(put_in_force(&operator, "bogus").await, "can be put in force, and no other");
    let maps: Api<ConfigMap> = Api::namespaced(operator.clone(), NAMESPACE);
    refused(maps.delete(MARKER, &DeleteParams::default()).await, "and stays");
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]);
    create::<ClusterRole>(&admin, json!({"metadata": {"name": "it-config-maps"}, "rules": rules})).await?;
    let to_alice = json!({"metadata": {"name": "it-config-maps"}, "subjects": [{"apiGroup": group, "kind": "User", "name": "alice"}],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "it-config-maps"}});
    create::<ClusterRoleBinding>(&admin, to_alice).await?;
    let alice = control_plane.client_as("alice", &[]).await?;
    // Neither as one of a collection, whose request has no name, nor by the garbage collector, which deletes what has lost its owner.
    let by_name = ListParams::default().fields(&format!("metadata.name={MARKER}"));
    let of_alice: Api<ConfigMap> = Api::namespaced(alice.clone(), NAMESPACE);
    eventually(|| async {
        let deleted = of_alice.delete_collection(&DeleteParams::default(), &by_name).await;
        deleted.is_err_and(|e| e.to_string().contains("and stays"))
    })
    .await?;
    let owner =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "6ecda518-0000-4000-8000-000000000000"}]);
    refused(merge(&maps, MARKER, json!({"metadata": {"ownerReferences": owner}})).await, "has no owner");
    refused(merge(&maps, MARKER, json!({"immutable": true})).await, "can be changed by the next release");
    let collector = control_plane.client_as("system:serviceaccount:kube-system:generic-garbage-collector", &[]).await?;
    let of_collector: Api<ConfigMap> = Api::namespaced(collector, NAMESPACE);
    refused(of_collector.delete(MARKER, &DeleteParams::default()).await, "and stays");
    eventually(|| async {
        put_in_force(&alice, &new).await.is_err_and(|e| e.to_string().contains("the operator alone"))
    })
    .await?;
    let services = |name: &str| object::<ConfigMap>(json!({"metadata": {"name": format!("windows-services-{name}")}}));
    of_alice
        .create(&PostParams::default(), &services("of-alice"))
        .await
        .context("the old release has no policy for it")?;
    of_alice.delete("windows-services-of-alice", &DeleteParams::default()).await?;

    // The new operator creates its policies and puts them in force: it is neither blocked by those of the old one, nor are its own weaker.
    let mut world =
        World::installed(control_plane, SimOptions::default(), &entries(b"kubelet"), None, &["--create-policies"])
            .await?;
    world.operator.leads().await?;
    world.eventually("the new release is in force", || async { in_force(&admin).await == Some(new.clone()) }).await?;
    world
        .eventually("the daemon is free of the old release", || async { says_its_version(&wicd).await.is_ok() })
        .await?;
    let nodes: Api<Node> = Api::all(wicd.clone());
    refused(merge(&nodes, "n-1", json!({"metadata": {"labels": {"a": "b"}}})).await, "may not change the labels");
    refused(of_alice.create(&PostParams::default(), &services("of-alice")).await, "only the operator may write them");
    let hosts = world.hosts("olm", 1).await?;
    world.join("olm", &spec(&hosts)).await?;
    ensure!(has(&pool_status(&world.pool("olm").await?).conditions, kind::POLICIES_IN_FORCE, "True", "AsExpected"));

    // It cannot loosen what it created.
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(operator.clone());
    for guard in of_old() {
        let name = guard.policy.name_any();
        refused(policies.delete(&name, &DeleteParams::default()).await, FORBIDDEN);
        refused(merge(&policies, &name, json!({"spec": {"failurePolicy": "Ignore"}})).await, FORBIDDEN);
    }
    refused(put_in_force(&operator, OLD).await, "can be put in force, and no other");

    // The downgrade: the policies of the old release are there, and those of the new one hold no more.
    world.stop().await?;
    install(&admin, OLD).await?;
    eventually(|| async { put_in_force(&operator, OLD).await.is_ok() }).await?;
    until_old_refuses(&wicd).await?;
    eventually(|| async { of_alice.create(&PostParams::default(), &services("of-alice")).await.is_ok() }).await?;

    // And up again: the operator finds its policies there.
    install(&admin, &new).await?;
    world.new_operator().await?;
    world.eventually("the new release is in force", || async { in_force(&admin).await == Some(new.clone()) }).await?;
    world.until("olm", "is Ready", is_ready).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_waits_while_a_host_joins() -> Result<()> {
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    deployment::install_operator_conditions(&control_plane).await?;
    let admin = control_plane.client().await?;
    let args = ["--operator-condition", CONDITION];
    let world = World::on(control_plane, SimOptions::default(), &entries(b"kubelet"), None, &args).await?;
    // As OLM makes them.
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("operators.coreos.com", "v2", "OperatorCondition"));
    let conditions: Api<DynamicObject> = Api::namespaced_with(admin.clone(), NAMESPACE, &resource);
    let of_another = json!({"type": "Other", "status": "True", "reason": "Because", "message": "", "lastTransitionTime": "2027-01-01T00:00:00Z"});
    let condition = json!({"apiVersion": "operators.coreos.com/v2", "kind": "OperatorCondition",
        "metadata": {"name": CONDITION}, "spec": {"conditions": [of_another]}});
    conditions.create(&PostParams::default(), &object(condition)).await?;
    let group = "rbac.authorization.k8s.io";
    let rules = json!([{"apiGroups": ["operators.coreos.com"], "resources": ["operatorconditions"],
        "resourceNames": [CONDITION], "verbs": ["get", "update", "patch"]}]);
    let role = object(json!({"metadata": {"name": CONDITION}, "rules": rules}));
    Api::<Role>::namespaced(admin.clone(), NAMESPACE).create(&PostParams::default(), &role).await?;
    let binding = object(
        json!({"metadata": {"name": CONDITION}, "roleRef": {"apiGroup": group, "kind": "Role", "name": CONDITION},
        "subjects": [{"kind": "ServiceAccount", "name": "windows-node-pools", "namespace": NAMESPACE}]}),
    );
    Api::<RoleBinding>::namespaced(admin.clone(), NAMESPACE).create(&PostParams::default(), &binding).await?;

    let upgradeable = async || -> Option<Value> {
        let object = conditions.get(CONDITION).await.ok()?;
        let all = object.data["spec"]["conditions"].as_array()?.clone();
        assert_eq!(all[0]["type"], "Other", "the condition of another client stays");
        all.into_iter().find(|condition| condition["type"] == "Upgradeable")
    };
    let is = async |status: &str| upgradeable().await.is_some_and(|condition| condition["status"] == status);
    world.eventually("it may be upgraded", || is("True")).await?;
    let slow = HostOptions { boot: Some(Duration::from_secs(20)), ..HostOptions::named("slow") };
    let host = world.sim.host(slow).await?;
    world.apply("olm", &spec(&[host])).await?;
    world.eventually("it says why not", || is("False")).await?;
    let message = upgradeable().await.context("the condition")?["message"].to_string();
    ensure!(message.contains("pool olm: 1 joining"), "{message}");
    world.until("olm", "is Ready", is_ready).await?;
    world.eventually("it may be upgraded again", || is("True")).await?;
    Ok(())
}
