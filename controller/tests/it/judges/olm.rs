//! Real Operator Lifecycle Manager (OLM): it installs the bundle by the guide, delays an upgrade while a host joins, and leaves objects behind that
//! the guide's commands remove.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use api::WindowsNodePool;
use k8s_openapi::api::{core::v1::Service, rbac::v1::ClusterRole};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{
    ControlPlane, ControlPlaneOptions,
    deployment::{self, NAMESPACE, within},
    judges::olm::{Bundle, Catalog, Olm, write_annotations},
    sim::{Fault, HostOptions, SimOptions},
};
use tokio::task::JoinSet;

use crate::{
    cluster::kubectl,
    fleet::{LIMIT, World, entries, is_ready, pool_status, spec},
    guide::Guide,
    olm::left,
    transcripts::root,
};

const PACKAGE: &str = "windows-node-pools";
const WMCO: &str = "windows-machine-config-operator";
const OLM_GROUP: &str = "operators.coreos.com";

/// OLM in a cluster whose Pods are reported as Ready.
struct Judged {
    client: Client,
    files: TempDir,
    /// Served catalogs, including earlier ones: OLM switches to the last one of a package.
    catalogs: Vec<Catalog>,
    _olm: Olm,
    _pods: JoinSet<()>,
}

impl Judged {
    async fn new() -> Result<(ControlPlane, Self)> {
        let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
        let client = control_plane.client().await?;
        let olm = Olm::start(&control_plane).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        control_plane.apply_yaml(&namespace.to_string()).await?;
        let pods = Olm::run_pods(client.clone(), NAMESPACE);
        Ok((control_plane, Self { client, files: tempfile::tempdir()?, catalogs: Vec::new(), _olm: olm, _pods: pods }))
    }

    fn all(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk(OLM_GROUP, version, kind);
        Api::namespaced_with(self.client.clone(), NAMESPACE, &ApiResource::from_gvk(&gvk))
    }

    fn subscriptions(&self) -> Api<DynamicObject> {
        self.all("v1alpha1", "Subscription")
    }

    fn plans(&self) -> Api<DynamicObject> {
        self.all("v1alpha1", "InstallPlan")
    }

    fn versions(&self) -> Api<DynamicObject> {
        self.all("v1alpha1", "ClusterServiceVersion")
    }

    async fn eventually<F: Future<Output = bool>>(&self, what: &str, ask: impl Fn() -> F) -> Result<()> {
        let Err(error) = within(LIMIT, what, ask).await else { return Ok(()) };
        let mut shown = String::new();
        for all in [self.subscriptions(), self.plans(), self.versions()] {
            for object in all.list(&ListParams::default()).await? {
                shown = format!("{shown}{}: {}\n", object.name_any(), object.data["status"]);
            }
        }
        Err(error.context(shown))
    }

    /// Serves a catalog of these bundles in place of the one before, as a new catalog image would.
    async fn offer(&mut self, control_plane: &ControlPlane, bundles: &[Bundle]) -> Result<()> {
        let catalog = Catalog::serve(bundles).await?;
        control_plane.apply_yaml(&catalog.source(bundles[0].package).to_string()).await?;
        self.catalogs.push(catalog);
        Ok(())
    }

    /// Creates the objects of the guide, except the CatalogSource, which names an image, and the kinds in `there`, which exist already.
    async fn subscribe(&self, control_plane: &ControlPlane, there: &[&str]) -> Result<()> {
        let guide = Guide::open(control_plane, "install.md", "judges/olm")?;
        for document in guide.block("### 3. Subscribe", "yaml")?.split("---\n") {
            let object: Value = serde_yaml::from_str(document)?;
            let kind = object["kind"].as_str().context("an object has no kind")?;
            if kind != "CatalogSource" && !there.contains(&kind) {
                control_plane.apply_yaml(&object.to_string()).await?;
            }
        }
        Ok(())
    }

    /// Approves the InstallPlan of a version, as a user does.
    async fn approve(&self, version: &str) -> Result<()> {
        let plan = self.plan(version, "RequiresApproval").await?;
        let approved = Patch::Merge(json!({"spec": {"approved": true}}));
        self.plans().patch(&plan.name_any(), &PatchParams::default(), &approved).await?;
        Ok(())
    }

    /// Waits until the Subscription refers to an InstallPlan of a version, in this phase, and returns the plan.
    async fn plan(&self, version: &str, phase: &str) -> Result<DynamicObject> {
        let found = async || self.plan_now(version, phase).await;
        self.eventually(&format!("the InstallPlan of {version} is {phase}"), || async { found().await.is_some() })
            .await?;
        found().await.context("the InstallPlan disappeared")
    }

    /// Returns the InstallPlan of a version, if the Subscription refers to it and it is in this phase.
    async fn plan_now(&self, version: &str, phase: &str) -> Option<DynamicObject> {
        let subscription = self.subscriptions().get(PACKAGE).await.ok()?;
        let name = subscription.data["status"]["installPlanRef"]["name"].as_str()?.to_owned();
        let plan = self.plans().get(&name).await.ok()?;
        let names = plan.data["spec"]["clusterServiceVersionNames"].as_array()?;
        let is_it = names.contains(&json!(version)) && plan.data["status"]["phase"] == phase;
        is_it.then_some(plan)
    }

    async fn until(&self, version: &str, phase: &str, reason: &str) -> Result<()> {
        let all = self.versions();
        self.eventually(&format!("{version} is {phase} because of {reason}"), || async {
            all.get_opt(version).await.ok().flatten().is_some_and(|csv| {
                let status = &csv.data["status"];
                status["phase"] == phase && status["reason"] == reason
            })
        })
        .await
    }

    async fn until_succeeded(&self, version: &str) -> Result<()> {
        self.until(version, "Succeeded", "InstallSucceeded").await
    }

    /// Returns a copy of this repository's bundle with another version.
    fn bundle(&self, version: &str, replaces: Option<&str>) -> Result<Bundle> {
        let folder = self.files.path().join(version);
        let manifests = folder.join("manifests");
        fs::create_dir_all(&manifests)?;
        write_annotations(&folder, PACKAGE, "candidate")?;
        for entry in fs::read_dir(root().join("deploy/olm/manifests"))? {
            let entry = entry?;
            let mut object: Value = serde_yaml::from_str(&fs::read_to_string(entry.path())?)?;
            if object["kind"] == "ClusterServiceVersion" {
                object["metadata"]["name"] = name_of(version).into();
                object["metadata"]["annotations"]["olm.skipRange"] = format!("<{version}").into();
                object["spec"]["version"] = version.into();
            }
            fs::write(manifests.join(entry.file_name()), serde_yaml::to_string(&object)?)?;
        }
        for crd in api::crds() {
            fs::write(manifests.join(format!("{}.yaml", crd.name_any())), serde_yaml::to_string(&crd)?)?;
        }
        Ok(Bundle {
            package: PACKAGE,
            channel: "candidate",
            name: name_of(version),
            replaces: replaces.map(name_of),
            folder,
        })
    }
}

fn name_of(version: &str) -> String {
    format!("{PACKAGE}.v{version}")
}

/// Installs a release, and starts the operator with the rights that OLM gave it.
async fn installed(control_plane: ControlPlane, judged: &Judged, version: &str) -> Result<World> {
    let name = name_of(version);
    judged.approve(&name).await?;
    judged.until_succeeded(&name).await?;
    control_plane.apply_file(&root().join("deploy/base/policies.yaml")).await?;
    let args = ["--operator-condition", &name];
    let payload = entries(b"kubelet");
    let world = Box::pin(World::installed(control_plane, SimOptions::default(), &payload, None, &args)).await?;
    world.operator.leads().await?;
    Ok(world)
}

/// Starts the operator of the next release in place of the previous one.
async fn start_next_release(world: &mut World, version: &str) -> Result<()> {
    world.stop().await?;
    let condition = world.options.args.iter_mut().find(|arg| arg.starts_with(&name_of("")));
    *condition.context("no condition")? = name_of(version);
    world.new_operator().await
}

/// Offers the next release while a host joins, and checks that the upgrade waits. `is_approved` is true if upgrades are approved automatically.
async fn waits_for_a_host(judged: &mut Judged, world: &World, bundles: &[Bundle], is_approved: bool) -> Result<()> {
    let [.., old, new] = bundles else { bail!("no next release") };
    let options = HostOptions { faults: vec![Fault::HangInCommand], ..HostOptions::named(new.name.replace('.', "-")) };
    let host = world.sim.host(options).await?;
    world.apply(host.name(), &spec(std::slice::from_ref(&host))).await?;
    let conditions = judged.all("v2", "OperatorCondition");
    let is_held = async || {
        let object = conditions.get_opt(&old.name).await.ok().flatten();
        let all = object.and_then(|o| o.data["spec"]["conditions"].as_array().cloned()).unwrap_or_default();
        all.iter().any(|c| c["type"] == "Upgradeable" && c["status"] == "False")
    };
    world.eventually("the operator says that no upgrade may begin", &is_held).await?;
    judged.offer(&world.control_plane, bundles).await?;
    if !is_approved {
        judged.approve(&new.name).await?;
    }
    judged.until(&new.name, "Pending", "OperatorConditionNotUpgradeable").await?;
    let joins = pool_status(&world.pool(host.name()).await?);
    ensure!(joins.ready_nodes == 0 && is_held().await, "the upgrade did not wait: {joins:?}");
    ensure!(
        Api::<DynamicObject>::get_opt(&judged.versions(), &old.name).await?.is_some(),
        "the previous release is gone"
    );

    host.mend();
    world.until(host.name(), "is Ready", is_ready).await?;
    judged.until_succeeded(&new.name).await?;
    let gone = async || matches!(judged.versions().get_opt(&old.name).await, Ok(None));
    judged.eventually("the previous release is gone", &gone).await?;
    let subscription = judged.subscriptions().get(PACKAGE).await?;
    ensure!(subscription.data["status"]["installedCSV"] == new.name.as_str(), "{}", subscription.data["status"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_installs_upgrades_and_uninstalls() -> Result<()> {
    let (control_plane, mut judged) = Judged::new().await?;
    deployment::install_monitoring(&control_plane).await?;
    let mut bundles = vec![judged.bundle("0.1.0", None)?];
    judged.offer(&control_plane, &bundles).await?;
    judged.subscribe(&control_plane, &[]).await?;
    let mut world = installed(control_plane, &judged, "0.1.0").await?;
    let hosts = world.hosts("olm", 1).await?;
    world.join("olm", &spec(&hosts)).await?;
    let node = world.node(hosts[0].name()).await?.context("no Node")?.uid();
    for (next, before) in [("0.1.1", "0.1.0"), ("0.1.2", "0.1.1")] {
        let is_approved = next == "0.1.2";
        if is_approved {
            let automatic = Patch::Merge(json!({"spec": {"installPlanApproval": "Automatic"}}));
            judged.subscriptions().patch(PACKAGE, &PatchParams::default(), &automatic).await?;
        }
        bundles.push(judged.bundle(next, Some(before))?);
        waits_for_a_host(&mut judged, &world, &bundles, is_approved).await?;
        start_next_release(&mut world, next).await?;
        world.until("olm", "is Ready with the next release", is_ready).await?;
    }
    ensure!(world.node(hosts[0].name()).await?.and_then(|n| n.uid()) == node, "the Node was recreated");
    Box::pin(leaves_by_the_guide(&judged, world)).await
}

/// Returns the names of the ClusterRoles and Operator objects that OLM has made.
async fn what_olm_made(judged: &Judged) -> Result<Vec<String>> {
    let roles = Api::<ClusterRole>::all(judged.client.clone()).list_metadata(&ListParams::default()).await?;
    let names = roles.items.iter().map(ResourceExt::name_any);
    let mut found: Vec<String> = names.filter(|name| name.starts_with("windows")).collect();
    let gvk = GroupVersionKind::gvk(OLM_GROUP, "v1", "Operator");
    let operators = Api::<DynamicObject>::all_with(judged.client.clone(), &ApiResource::from_gvk(&gvk));
    let operators = operators.list(&ListParams::default()).await?;
    found.extend(operators.iter().map(|o| format!("Operator {}", o.name_any())));
    Ok(found)
}

async fn leaves_by_the_guide(judged: &Judged, mut world: World) -> Result<()> {
    let guide = Guide::open(&world.control_plane, "removal.md", "judges/olm")?;
    let shared = Guide::open(&world.control_plane, "removal.md", "olm")?;
    let pools: Api<WindowsNodePool> = Api::all(judged.client.clone());
    for pool in pools.list(&ListParams::default()).await? {
        pools.delete(&pool.name_any(), &DeleteParams::default()).await?;
    }
    let none = async || pools.list(&ListParams::default()).await.is_ok_and(|all| all.items.is_empty());
    world.eventually("all pools are gone", &none).await?;
    guide.run(&world, "### Delete the operator from OLM").await?;
    let no_version =
        async || judged.versions().list(&ListParams::default()).await.is_ok_and(|all| all.items.is_empty());
    judged.eventually("no version is left", &no_version).await?;
    world.stop().await?;
    shared.run(&world, "### What OLM may leave").await?;
    shared.run(&world, "### What the operator created").await?;
    shared.run(&world, "### What stays in the namespace").await?;
    // The CRDs stay for now, as in a move to another installer.
    let made = what_olm_made(judged).await?;
    for name in ["windowsnodepools.windowsmachineconfig.openshift.io-v1alpha1-edit", "Operator windows-node-pools"] {
        ensure!(made.iter().any(|one| one.starts_with(name)), "OLM does not keep {name}, but {made:?}");
    }
    guide.run(&world, "### What OLM keeps").await?;
    let nothing = async || {
        left(&judged.client).await.is_ok_and(|left| left.is_empty())
            && what_olm_made(judged).await.is_ok_and(|made| made.is_empty())
    };
    judged.eventually("nothing is left", &nothing).await.with_context(|| format!("of {made:?}"))?;
    let crds = root().join("crds");
    kubectl(&world.control_plane, &["delete", "-k", crds.to_str().context("path is not UTF-8")?]).await?;
    ensure!(nothing().await, "something is left after the CRDs are deleted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_kinds_of_the_prometheus_operator_the_plan_says_what_to_install() -> Result<()> {
    let (control_plane, mut judged) = Judged::new().await?;
    let bundles = [judged.bundle("0.1.0", None)?];
    judged.offer(&control_plane, &bundles).await?;
    judged.subscribe(&control_plane, &[]).await?;
    judged.approve(&bundles[0].name).await?;
    let plan = judged.plan(&bundles[0].name, "Failed").await?;
    ensure!(plan.data["status"].to_string().contains("monitoring.coreos.com/v1"), "{}", plan.data["status"]);
    // OLM does not retry the plan. It begins again only once Subscription, version and plan are gone.
    deployment::install_monitoring(&control_plane).await?;
    let gone = async || {
        let (plans, versions) = (judged.plans(), judged.versions());
        let is_empty = async |all: Api<DynamicObject>| {
            all.list(&ListParams::default()).await.is_ok_and(|all| all.items.is_empty())
        };
        is_empty(plans).await && is_empty(versions).await
    };
    // OLM may still see the deleted Subscription: then the new plan is deleted with it, and the guide says to begin again.
    let is_missing = async || {
        let subscription = judged.subscriptions().get(PACKAGE).await;
        subscription.is_ok_and(|s| s.data["status"].to_string().contains("ReferencedInstallPlanNotFound"))
    };
    let begins = async || is_missing().await || judged.plan_now(&bundles[0].name, "RequiresApproval").await.is_some();
    loop {
        judged.subscriptions().delete(PACKAGE, &DeleteParams::default()).await?;
        // In a second round, there is no version to delete.
        let _ = judged.versions().delete(&bundles[0].name, &DeleteParams::default()).await;
        judged.eventually("the plan and the version are gone", &gone).await?;
        judged.subscribe(&control_plane, &["OperatorGroup"]).await?;
        judged.eventually("OLM begins again", &begins).await?;
        if !is_missing().await {
            break;
        }
    }
    judged.approve(&bundles[0].name).await?;
    judged.until_succeeded(&bundles[0].name).await
}

/// Returns a stand-in for WMCO's package with the same names and kinds, without its rules and program: the registry with WMCO's own package
/// requires a login.
fn wmco(files: &std::path::Path) -> Result<Bundle> {
    let (folder, name) = (files.join(WMCO), format!("{WMCO}.v11.0.0"));
    fs::create_dir_all(folder.join("manifests"))?;
    write_annotations(&folder, WMCO, "stable")?;
    let rbac = |kind: &str, name: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    let role = |kind: &str, name: &str, resources: &[&str]| {
        let mut role = rbac(kind, name);
        role["rules"] = json!([{"apiGroups": [""], "resources": resources, "verbs": ["get", "list"]}]);
        role
    };
    let binding = |kind: &str, name: &str, subject: Value| {
        let mut binding = rbac(kind, name);
        let of = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind.replace("Binding", ""), "name": name});
        (binding["roleRef"], binding["subjects"]) = (of, json!([subject]));
        binding
    };
    let labels = json!({"name": WMCO});
    let daemons = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:wicd-nodes"});
    let prometheus = json!({"kind": "ServiceAccount", "name": "prometheus-k8s", "namespace": "openshift-monitoring"});
    let container = json!({"name": "manager", "image": "wmco", "env": []});
    let deployment = json!({"name": WMCO, "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {
        "metadata": {"labels": labels}, "spec": {"serviceAccountName": WMCO, "containers": [container]}}}});
    let modes =
        [("OwnNamespace", true), ("SingleNamespace", false), ("MultiNamespace", false), ("AllNamespaces", true)];
    let permissions =
        json!([{"serviceAccountName": WMCO, "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]}]);
    let objects = [
        json!({"apiVersion": "operators.coreos.com/v1alpha1", "kind": "ClusterServiceVersion", "metadata": {"name": name},
            "spec": {"displayName": "WMCO", "version": "11.0.0", "installModes": modes.map(|(mode, on)| json!({"type": mode, "supported": on})),
                "install": {"strategy": "deployment", "spec": {"clusterPermissions": permissions, "deployments": [deployment]}}}}),
        role("Role", "manager-role", &["secrets"]),
        role("Role", "prometheus-k8s", &["services", "endpoints", "pods"]),
        binding("RoleBinding", "prometheus-k8s", prometheus),
        role("ClusterRole", "system-wicd-nodes", &["configmaps", "nodes"]),
        binding("ClusterRoleBinding", "system-wicd-nodes", daemons),
        role("ClusterRole", "windows-instance-config-daemon", &["configmaps", "nodes"]),
        role("Role", "windows-instance-config-daemon", &["configmaps"]),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "windows-instance-config-daemon"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "windows-exporter"},
            "spec": {"ports": [{"name": "metrics", "port": 9182, "targetPort": 9182}]}}),
        json!({"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": "windows-prometheus-k8s-rules"},
            "spec": {"groups": []}}),
    ];
    for (number, object) in objects.iter().enumerate() {
        fs::write(folder.join(format!("manifests/{number}.yaml")), object.to_string())?;
    }
    Ok(Bundle { package: WMCO, channel: "stable", name, replaces: None, folder })
}

/// Returns the roles, bindings and ServiceAccounts of WMCO's package that are in the cluster.
async fn of_wmco(control_plane: &ControlPlane) -> Result<Vec<String>> {
    let cluster = ["get", "clusterroles,clusterrolebindings", "-o", "name"];
    let own = ["get", "-n", NAMESPACE, "roles,rolebindings,serviceaccounts", "-o", "name"];
    let mut found = Vec::new();
    for args in [&cluster[..], &own[..]] {
        let output = control_plane.kubectl(args).await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // These names exclude the ClusterRoles of WMCO's OperatorGroup, which serves this operator, too.
        let names = ["/system-wicd-nodes", "/windows-instance-config-daemon", "/manager-role", "/prometheus-k8s"];
        found.extend(text.lines().filter(|line| names.iter().any(|name| line.contains(name))).map(str::to_owned));
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn our_release_stands_beside_wmco_and_stays_when_wmco_goes() -> Result<()> {
    let (control_plane, mut judged) = Judged::new().await?;
    deployment::install_monitoring(&control_plane).await?;
    let wmco = wmco(judged.files.path())?;
    judged.offer(&control_plane, std::slice::from_ref(&wmco)).await?;
    let namespaced = |name: &str| json!({"name": name, "namespace": NAMESPACE});
    for object in [
        json!({"apiVersion": "operators.coreos.com/v1", "kind": "OperatorGroup", "metadata": namespaced(WMCO), "spec": {"targetNamespaces": [NAMESPACE]}}),
        json!({"apiVersion": "operators.coreos.com/v1alpha1", "kind": "Subscription", "metadata": namespaced(WMCO),
            "spec": {"source": WMCO, "sourceNamespace": testbed::judges::olm::CATALOGS, "name": WMCO, "channel": "stable"}}),
    ] {
        control_plane.apply_yaml(&object.to_string()).await?;
    }
    judged.until_succeeded(&wmco.name).await?;
    // WMCO itself binds the rights of the ServiceAccount when it starts.
    let bound = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "windows-instance-config-daemon"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "windows-instance-config-daemon"},
        "subjects": [{"kind": "ServiceAccount", "name": "windows-instance-config-daemon", "namespace": NAMESPACE}]});
    control_plane.apply_yaml(&bound.to_string()).await?;

    let bundles = [judged.bundle("0.1.0", None)?];
    judged.offer(&control_plane, &bundles).await?;
    judged.subscribe(&control_plane, &["OperatorGroup"]).await?;
    let world = installed(control_plane, &judged, "0.1.0").await?;
    judged.until_succeeded(&wmco.name).await?;
    let guide = Guide::open(&world.control_plane, "from-wmco.md", "takeover_guide")?;
    guide.run(&world, "### With OLM").await?;
    let gone = async || matches!(judged.versions().get_opt(&wmco.name).await, Ok(None));
    judged.eventually("WMCO's version is gone", &gone).await?;

    // This operator's release is complete, and works.
    judged.until_succeeded(&bundles[0].name).await?;
    let hosts = world.hosts("beside", 1).await?;
    world.join("beside", &spec(&hosts)).await?;
    let left = of_wmco(&world.control_plane).await?;
    for name in
        ["clusterrole.rbac.authorization.k8s.io/system-wicd-nodes", "role.rbac.authorization.k8s.io/manager-role"]
    {
        ensure!(left.iter().any(|one| one == name), "OLM deletes {name}, so the guide need not: {left:?}");
    }
    let guide = Guide::open(&world.control_plane, "from-wmco.md", "judges/olm")?;
    guide.run(&world, "### What WMCO leaves").await?;
    let nothing = async || of_wmco(&world.control_plane).await.is_ok_and(|left| left.is_empty());
    world.eventually("nothing of WMCO is left", &nothing).await?;
    let exporter = Api::<Service>::namespaced(judged.client.clone(), NAMESPACE).get("windows-exporter").await?;
    ensure!(exporter.owner_references().iter().all(|o| o.name == bundles[0].name), "{:?}", exporter.metadata);
    judged.until_succeeded(&bundles[0].name).await?;
    world.until("beside", "is Ready", is_ready).await
}
