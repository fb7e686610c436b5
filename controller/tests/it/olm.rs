//! The operator with the objects of its OLM bundle, without OLM itself: it waits for its policies, and reports when an upgrade has to wait.

use std::{os::unix::fs::symlink, time::Duration};

use anyhow::{Context as _, Result, ensure};
use api::{WindowsNodePool, conditions::kind};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, Node, Service, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, ControlPlaneOptions,
    deployment::{self, NAMESPACE},
    sim::{HostOptions, SimOptions},
};

use crate::{
    access::object,
    fleet::{World, entries, has, is_ready, pool_status, spec},
    guide::Guide,
    transcripts::root,
};

const CONDITION: &str = "windows-node-pools.v0.1.0";

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_joins_hosts_once_the_policies_are_applied_by_the_guide() -> Result<()> {
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    deployment::install_by_olm(&control_plane).await?;
    // This ConfigMap is created before a policy reserves such names for the operator.
    let maps = Api::<ConfigMap>::namespaced(control_plane.client().await?, NAMESPACE);
    let of_another = object(json!({"metadata": {"name": "windows-services-of-alice"}}));
    maps.create(&PostParams::default(), &of_another).await?;
    let payload = entries(b"kubelet");
    let mut world = World::installed(control_plane, SimOptions::default(), &payload, None, &[]).await?;
    world.operator.leads().await?;
    let hosts = world.hosts("olm", 1).await?;
    world.apply("olm", &spec(&hosts)).await?;
    world
        .until("olm", "names the command that applies the policies", |pool| {
            let conditions = pool_status(pool).conditions;
            conditions.iter().any(|one| one.reason == "PolicyMissing" && one.message.contains("kubectl apply"))
        })
        .await?;
    let guide = Guide::open(&world.control_plane, "install.md", "olm")?;
    symlink(root().join("deploy"), guide.folder().join("deploy"))?;
    guide.run(&world, "### 4. Apply the admission policies").await?;
    world
        .until("olm", "is Ready", |pool| {
            is_ready(pool) && has(&pool_status(pool).conditions, kind::POLICIES_IN_FORCE, "True", "AsExpected")
        })
        .await?;
    the_guide_leads_from_olm_to_kustomize_and_away(&mut world, hosts[0].name()).await
}

/// Returns the kind and name of each remaining object of the kinds below whose name begins with `windows-node-pools`.
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

/// Moves the installation from OLM to kustomize and uninstalls it, with the commands of the guide. `node` stays a node until its pool is deleted.
async fn the_guide_leads_from_olm_to_kustomize_and_away(world: &mut World, node: &str) -> Result<()> {
    let guide = Guide::open(&world.control_plane, "removal.md", "olm")?;
    let admin = world.client.clone();
    let nodes: Api<Node> = Api::all(admin.clone());
    let before = nodes.get(node).await?.uid();

    // Deletes the objects that OLM has made from the ClusterServiceVersion, as OLM does when the ClusterServiceVersion is deleted.
    world.stop().await?;
    for kind in ["deployment", "serviceaccount", "clusterrole", "clusterrolebinding"] {
        let args = ["delete", "-n", NAMESPACE, kind, "windows-node-pools"];
        let output = world.control_plane.kubectl(&args).await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    ensure!(left(&admin).await?.len() > 10, "fewer objects are left than expected");
    guide.run(world, "### What OLM may leave").await?;
    guide.run(world, "### What the operator created").await?;
    ensure!(left(&admin).await? == ["Role windows-node-pools-wicd-services"], "{:?}", left(&admin).await?);

    deployment::install(&world.control_plane).await?;
    world.new_operator().await?;
    world
        .until("olm", "is Ready, with the policies of kustomize", |pool| {
            is_ready(pool) && has(&pool_status(pool).conditions, kind::POLICIES_IN_FORCE, "True", "AsExpected")
        })
        .await?;
    ensure!(nodes.get(node).await?.uid() == before, "the Node was recreated");

    // The operator is uninstalled in the order of the guide. The namespace stays.
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
    ensure!(versions == ["windows-services-of-alice"], "only the user's ConfigMap should stay: {versions:?}");
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
    // OLM makes these objects for an operator.
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
        assert_eq!(all[0]["type"], "Other", "the condition of another client is gone");
        all.into_iter().find(|condition| condition["type"] == "Upgradeable")
    };
    let is = async |status: &str| upgradeable().await.is_some_and(|condition| condition["status"] == status);
    world.eventually("the operator may be upgraded", || is("True")).await?;
    let slow = HostOptions { boot: Some(Duration::from_secs(20)), ..HostOptions::named("slow") };
    let host = world.sim.host(slow).await?;
    world.apply("olm", &spec(&[host])).await?;
    world.eventually("the operator says that an upgrade must wait", || is("False")).await?;
    let message = upgradeable().await.context("the condition Upgradeable is gone")?["message"].to_string();
    ensure!(message.contains("pool olm: 1 joining"), "{message}");
    world.until("olm", "is Ready", is_ready).await?;
    world.eventually("the operator may be upgraded again", || is("True")).await?;
    Ok(())
}
