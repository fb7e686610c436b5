//! The operator as the Operator Lifecycle Manager installs it: it creates its policies, and says when an upgrade has to wait.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{WindowsNodePool, conditions::kind, names::key};
use controller::{
    caches::wicd_policy::{self, Guard, Shipped},
    cluster::wicd_rbac,
    rights::release_policies::{self, MARKER},
};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, Validation},
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, Node, Service, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    Api, Client, ResourceExt,
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
    guide::Guide,
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
    the_guide_leads_from_olm_to_kustomize_and_away(&mut world, hosts[0].name()).await
}

/// What of an installation is there, but for the versions and the Lease.
pub(crate) async fn left(client: &Client) -> Result<Vec<String>> {
    async fn of<K>(api: Api<K>) -> Result<Vec<String>>
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let names = api.list_metadata(&ListParams::default()).await?.items.into_iter().map(|one| one.name_any());
        let ours = names.filter(|name| name.starts_with("windows-node-pools"));
        Ok(ours.map(|name| format!("{} {name}", K::kind(&()))).collect())
    }
    let here = || client.clone();
    Ok([
        of(Api::<ValidatingAdmissionPolicy>::all(here())).await?,
        of(Api::<ValidatingAdmissionPolicyBinding>::all(here())).await?,
        of(Api::<ClusterRole>::all(here())).await?,
        of(Api::<ClusterRoleBinding>::all(here())).await?,
        of(Api::<Role>::all(here())).await?,
        of(Api::<RoleBinding>::all(here())).await?,
        of(Api::<ConfigMap>::all(here())).await?,
        of(Api::<Service>::all(here())).await?,
        of(Api::<ServiceAccount>::all(here())).await?,
        of(Api::<Deployment>::all(here())).await?,
    ]
    .concat())
}

/// Runs the commands of the guide to uninstalling. `node` is a node all the while, until its pool is deleted.
async fn the_guide_leads_from_olm_to_kustomize_and_away(world: &mut World, node: &str) -> Result<()> {
    let guide = Guide::open(&world.control_plane, "uninstall.md", "olm")?;
    let admin = world.client.clone();
    let nodes: Api<Node> = Api::all(admin.clone());
    let before = nodes.get(node).await?.uid();

    // What OLM deletes with the ClusterServiceVersion is what it has made of it.
    world.stop().await?;
    for kind in ["deployment", "serviceaccount", "clusterrole", "clusterrolebinding"] {
        let args = ["delete", "-n", NAMESPACE, kind, "windows-node-pools"];
        let output = world.control_plane.kubectl(&args).await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    ensure!(left(&admin).await?.len() > 10, "the bundle and the operator have left something");
    guide.run(world, "### What OLM may leave").await?;
    guide.run(world, "### What the operator created").await?;
    ensure!(left(&admin).await? == ["Role windows-node-pools-wicd-services"], "{:?}", left(&admin).await?);

    deployment::install(&world.control_plane).await?;
    world.options.args.retain(|arg| arg != "--create-policies");
    world.new_operator().await?;
    world
        .until("olm", "is Ready, with the policies of kustomize", |pool| {
            is_ready(pool) && has(&pool_status(pool).conditions, kind::POLICIES_IN_FORCE, "True", "AsExpected")
        })
        .await?;
    ensure!(nodes.get(node).await?.uid() == before, "the node is another one");

    // And away, in the order of the guide. The namespace stays.
    let pools: Api<WindowsNodePool> = Api::all(admin.clone());
    pools.delete("olm", &DeleteParams::default()).await?;
    world.eventually("the pool is gone", || async { matches!(pools.get_opt("olm").await, Ok(None)) }).await?;
    world.stop().await?;
    let base = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/base");
    let args = ["delete", "-k", base, "-l", "app.kubernetes.io/part-of=windows-node-pools"];
    let output = world.control_plane.kubectl(&args).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    guide.run(world, "### What the operator created").await?;
    guide.run(world, "### What stays in the namespace").await?;
    ensure!(left(&admin).await?.is_empty(), "{:?}", left(&admin).await?);
    let maps = Api::<ConfigMap>::namespaced(admin.clone(), NAMESPACE).list_metadata(&ListParams::default()).await?;
    let versions: Vec<_> =
        maps.items.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("windows-services-")).collect();
    ensure!(versions == ["windows-services-of-alice"], "all that the operator created, and no more: {versions:?}");
    Api::<Namespace>::all(admin).get(NAMESPACE).await?;
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
