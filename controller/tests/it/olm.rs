//! The operator with the objects of its OLM bundle, without OLM itself: it waits for its policies.

use std::os::unix::fs::symlink;

use anyhow::{Result, ensure};
use api::{WindowsNodePool, conditions::kind};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, Node, Service, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use testbed::{
    ControlPlane, ControlPlaneOptions,
    deployment::{self, NAMESPACE},
    sim::SimOptions,
};

use crate::{
    access::object,
    fleet::{World, entries, has, is_ready, pool_status, spec},
    guide::Guide,
    transcripts::root,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_joins_hosts_once_the_policies_are_applied_by_the_guide() -> Result<()> {
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    deployment::install_by_olm(&control_plane).await?;
    // Created before a policy reserves these names for the operator.
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

/// Returns the names of the operator's objects that are left, except the ConfigMaps of versions and the Lease.
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

    // Deletes the objects that OLM has made from the ClusterServiceVersion and deletes with it.
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
    world.new_operator().await?;
    world
        .until("olm", "is Ready, with the policies of kustomize", |pool| {
            is_ready(pool) && has(&pool_status(pool).conditions, kind::POLICIES_IN_FORCE, "True", "AsExpected")
        })
        .await?;
    ensure!(nodes.get(node).await?.uid() == before, "the node is another one");

    // Uninstall, in the order of the guide. The namespace stays.
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
