//! Commands of the guide from WMCO and back, step by step, on a cluster with WMCO's Deployment, its lock and the kinds of OLM.

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsNodePool,
    conditions::{self, kind},
    names::{DEFAULT_NAMESPACE, MANAGER_ADAPTER, WINDOWS_INSTANCES, key},
};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicy,
    core::v1::{ConfigMap, Namespace, Pod},
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{deployment, sim::SimOptions};

use crate::{
    config_map,
    fleet::{LIMIT, World, has, pool_status},
    guide::Guide,
    takeover::{Legacy, SAME, can_be_taken_by_the_legacy_operator},
    transcripts::root,
};

const LOCK: &str = "windows-machine-config-operator-lock";
const WMCO: &str = "windows-machine-config-operator";

/// Installs WMCO with or without OLM: a Deployment whose Pod is on the host network, and the lock that this Pod owns.
async fn wmco_starts(world: &World, by_olm: bool) -> Result<()> {
    let labels = json!({"name": WMCO});
    let mut metadata = json!({"name": WMCO, "namespace": DEFAULT_NAMESPACE});
    if by_olm {
        for kind in ["Subscription", "ClusterServiceVersion"] {
            let plural = format!("{}s", kind.to_lowercase());
            let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
            let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.operators.coreos.com")},
                "spec": {"group": "operators.coreos.com", "scope": "Namespaced", "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                    "versions": [{"name": "v1alpha1", "served": true, "storage": true, "schema": schema}]}});
            world.control_plane.apply_yaml(&crd.to_string()).await?;
        }
        let csv = format!("{WMCO}.v11.0.0");
        let olm = |kind: &str, name: &str| {
            json!({"apiVersion": "operators.coreos.com/v1alpha1", "kind": kind,
                "metadata": {"name": name, "namespace": DEFAULT_NAMESPACE}, "status": {"installedCSV": csv}})
        };
        let objects = [olm("ClusterServiceVersion", &csv), olm("Subscription", WMCO)];
        for object in &objects {
            let made = || async { world.control_plane.apply_yaml(&object.to_string()).await.is_ok() };
            deployment::within(LIMIT, "the kinds of OLM are served", made).await?;
        }
        let args = ["get", "-n", DEFAULT_NAMESPACE, "clusterserviceversions.operators.coreos.com", &csv, "-o", "json"];
        let csv: Value = serde_json::from_slice(&world.control_plane.kubectl(&args).await?.stdout)?;
        metadata["ownerReferences"] = json!([{"apiVersion": csv["apiVersion"], "kind": csv["kind"],
            "name": csv["metadata"]["name"], "uid": csv["metadata"]["uid"]}]);
    }
    monitoring_of_wmco(world, metadata.get("ownerReferences")).await?;
    let pod = json!({"metadata": {"labels": labels}, "spec": {"hostNetwork": true, "automountServiceAccountToken": false,
        "containers": [{"name": "manager", "image": "wmco"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": pod}});
    world.control_plane.apply_yaml(&deployment.to_string()).await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), DEFAULT_NAMESPACE);
    let its_own = ListParams::default().labels(&format!("name={WMCO}"));
    let is_there = || async { pods.list(&its_own).await.is_ok_and(|l| !l.items.is_empty()) };
    world.eventually("the Pod of WMCO is admitted", is_there).await?;
    let pod = pods.list(&its_own).await?.items.pop().context("no Pod")?;
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid()});
    let lock = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": LOCK, "ownerReferences": [owner]}});
    maps(world).create(&PostParams::default(), &serde_json::from_value(lock)?).await?;
    Ok(())
}

/// Creates WMCO's ServiceMonitor again, as WMCO does if the object differs, and the rules of its package, which OLM deletes with the package.
async fn monitoring_of_wmco(world: &World, package: Option<&Value>) -> Result<()> {
    let endpoint = json!({"port": "https-metrics", "interval": "30s", "scheme": "https"});
    let rules = json!([{"record": "node_cpu_info", "expr": "windows_cpu_info"}]);
    let rules = json!({"groups": [{"name": "windows.rules", "rules": rules}]});
    for (kind, name, spec, owners) in [
        ("ServiceMonitor", "windows-exporter", json!({"endpoints": [endpoint], "selector": {}}), None),
        ("PrometheusRule", "windows-prometheus-k8s-rules", rules, package),
    ] {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("monitoring.coreos.com", "v1", kind));
        let objects: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), DEFAULT_NAMESPACE, &kind);
        let object = json!({"apiVersion": kind.api_version, "kind": kind.kind, "spec": spec,
            "metadata": {"name": name, "ownerReferences": owners}});
        if objects.get_opt(name).await?.is_some() {
            objects.delete(name, &DeleteParams::default()).await?;
        }
        let by_wmco = PostParams { field_manager: Some(WMCO.into()), ..PostParams::default() };
        objects.create(&by_wmco, &serde_json::from_value(object)?).await?;
    }
    Ok(())
}

fn maps(world: &World) -> Api<ConfigMap> {
    Api::namespaced(world.client.clone(), DEFAULT_NAMESPACE)
}

fn waits_for_wmco(pool: &WindowsNodePool) -> bool {
    has(&pool_status(pool).conditions, kind::READY, "False", "AnotherOperator")
}

/// Reports whether a pool in mode Plan plans to adopt exactly `count` hosts.
fn plans_to_adopt(pool: &WindowsNodePool, count: usize) -> bool {
    let hosts = pool_status(pool).plan.unwrap_or_default().hosts;
    hosts.len() == count && hosts.iter().all(|h| h.action == "Adopt")
}

/// Returns the text that a user sees in the column STATUS.
fn shown(pool: &WindowsNodePool) -> String {
    conditions::find(&pool_status(pool).conditions, kind::READY).map(|c| c.message.clone()).unwrap_or_default()
}

/// Checks that no host has an instance, and that none was logged in to.
async fn is_untouched(world: &World, legacy: &Legacy, before: &[u64]) -> Result<()> {
    for host in &legacy.hosts {
        ensure!(world.instance(host.name()).await?.is_none(), "{} has an instance", host.name());
    }
    ensure!(connections(legacy) == before, "a host was logged in to");
    Ok(())
}

fn connections(legacy: &Legacy) -> Vec<u64> {
    legacy.hosts.iter().map(|h| h.stats().connections).collect()
}

/// Returns the namespace as a user has applied it for WMCO.
fn namespace_of_user() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DEFAULT_NAMESPACE,
        "labels": {"team": "windows"}, "annotations": {"example.com/contact": "windows@example.com"}}})
}

/// Checks that the installation has kept the user's labels and annotations on the namespace.
async fn namespace_is_kept(world: &World) -> Result<()> {
    let namespace = Api::<Namespace>::all(world.client.clone()).get(DEFAULT_NAMESPACE).await?;
    let (labels, annotations) = (namespace.labels(), namespace.annotations());
    ensure!(labels.contains_key("team") && annotations.contains_key("example.com/contact"), "{:?}", namespace.metadata);
    ensure!(labels.contains_key("openshift.io/cluster-monitoring"), "{labels:?}");
    Ok(())
}

/// Creates the objects of OpenShift, and the overlay of the installation page.
async fn openshift(world: &World, guide: &Guide) -> Result<()> {
    deployment::install_monitoring(&world.control_plane).await?;
    for name in ["openshift-machine-api", "openshift-config"] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        world.control_plane.apply_yaml(&namespace.to_string()).await?;
    }
    let file = guide.folder().join("namespace.json");
    std::fs::write(&file, namespace_of_user().to_string())?;
    let output = world.control_plane.kubectl(&["apply", "-f", file.to_str().context("path is not UTF-8")?]).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let deploy = guide.folder().join("deploy");
    std::fs::create_dir_all(deploy.join("mine"))?;
    std::os::unix::fs::symlink(root().join("deploy/openshift"), deploy.join("openshift"))?;
    let overlay = Guide::open(&world.control_plane, "install.md", "takeover_guide")?;
    let overlay = overlay.block("### 1. Describe the installation", "yaml")? + &guide.block("## 3. Install", "yaml")?;
    Ok(std::fs::write(deploy.join("mine/kustomization.yaml"), overlay)?)
}

/// Follows the guide with a user's pool in Git, from WMCO under OLM and back; then from WMCO without OLM, with the pool that the operator
/// makes.
#[tokio::test(flavor = "multi_thread")]
async fn the_guide_leads_from_wmco_and_back() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    let guide = Guide::open(&world.control_plane, "from-wmco.md", "takeover_guide")?;
    openshift(&world, &guide).await?;
    let legacy = Legacy::new(&world, WINDOWS_INSTANCES, SAME, 2).await?;
    world.stop().await?;
    let before = connections(&legacy);

    // The pool of the page is applied before there is an operator or the ConfigMap. Maintenance window and port are those of this test.
    let mut pool: Value = serde_yaml::from_str(&guide.block("### A pool of your own", "yaml")?)?;
    ensure!(pool["spec"]["mode"] == "Plan" && pool["spec"]["rollout"]["maintenanceWindows"].is_array(), "{pool}");
    pool["spec"]["ssh"] = json!({"port": legacy.hosts[0].port()});
    pool["spec"]["rollout"]["maintenanceWindows"][0]["schedule"] = json!("0 0 29 2 *");
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    let git = PatchParams::apply("argocd-controller");
    pools.patch(WINDOWS_INSTANCES, &git, &Patch::Apply(&pool)).await?;
    wmco_starts(&world, true).await?;
    let blocked = guide.output(&world, &guide.block("## 1. Before you begin", "sh")?).await?;
    let table = String::from_utf8_lossy(&blocked.stdout);
    ensure!(blocked.status.code() == Some(1), "{table}");
    for (reason, rows) in [("AnotherOperator", 3), ("CertificateInvalid", 1)] {
        let names_it = |line: &&str| line.split_whitespace().nth(2).is_some_and(|word| word == format!("{reason}:"));
        let found = table.lines().filter(names_it).count();
        ensure!(found == rows, "{found} rows have {reason}: {table}");
    }
    for host in &legacy.hosts {
        world.edit_node(host.name(), json!({"metadata": {"labels": {key::UPGRADING: null}}})).await?;
    }
    guide.run(&world, "## 1. Before you begin").await?;

    // Installed beside WMCO, the operator waits.
    guide.run(&world, "## 3. Install").await?;
    namespace_is_kept(&world).await?;
    world.new_operator().await?;
    world.until(WINDOWS_INSTANCES, "it waits for WMCO", waits_for_wmco).await?;
    guide.run(&world, "### With OLM").await?;
    let missing = |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::READY, "False", "SourceNotFound");
    world.until(WINDOWS_INSTANCES, "there is no ConfigMap yet", missing).await?;
    config_map::create(&world, &legacy.hosts).await?;
    world.until(WINDOWS_INSTANCES, "it says what it would do", |p| plans_to_adopt(p, 2)).await?;
    let of_person = world.pool(WINDOWS_INSTANCES).await?;
    let owners: Vec<&str> = of_person.managed_fields().iter().filter_map(|f| f.manager.as_deref()).collect();
    ensure!(!owners.contains(&MANAGER_ADAPTER), "the operator has written to a user's pool: {owners:?}");
    let table = guide.run(&world, "## 4. See what happens").await?;
    for host in &legacy.hosts {
        ensure!(table.contains(&format!("{}: Adopt: it is a node of another operator", host.name())), "{table}");
    }
    is_untouched(&world, &legacy, &before).await?;

    // The user starts the takeover in Git. No maintenance window is open, so the nodes are adopted and not changed.
    pool["spec"]["mode"] = json!("Apply");
    pools.patch(WINDOWS_INSTANCES, &git, &Patch::Apply(&pool)).await?;
    are_adopted(&world, &legacy).await?;
    guide.run(&world, "## 6. Verify").await?;

    let mut names = maps(&world).list(&ListParams::default()).await?.items.into_iter().map(|map| map.name_any());
    let ours = names.find(|name| has_digest(name)).context("no services ConfigMap of the operator")?;
    guide.run(&world, "## 7. Go back").await?;
    world.stop().await?;
    are_as_wmco_needs_them(&world, &legacy).await?;
    may_delete(&world, &ours, false).await?;
    guide.run(&world, "### Delete this operator").await?;
    may_delete(&world, &ours, true).await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(world.client.clone());
    let left: Vec<_> =
        policies.list(&ListParams::default()).await?.items.iter().map(kube::ResourceExt::name_any).collect();
    ensure!(left.is_empty(), "left: {left:?}");

    // WMCO is installed again, without OLM. The operator makes the pool.
    wmco_starts(&world, false).await?;
    let ignored = Patch::Merge(json!({"metadata": {"labels": {key::IGNORE: null}}}));
    maps(&world).patch(WINDOWS_INSTANCES, &PatchParams::default(), &ignored).await?;
    let before = connections(&legacy);
    guide.run(&world, "### Without OLM").await?;
    guide.run(&world, "## 3. Install").await?;
    world.new_operator().await?;
    world.until_event(WINDOWS_INSTANCES, "TakeoverWaits").await?;
    let port = json!({"spec": {"ssh": {"port": legacy.hosts[0].port()}}});
    world.edit_pool(WINDOWS_INSTANCES, port).await?;
    world.until(WINDOWS_INSTANCES, "it says what it would do", |p| plans_to_adopt(p, 2)).await?;
    let waiting = world.pool(WINDOWS_INSTANCES).await?;
    ensure!(shown(&waiting).contains("kubectl patch wnp windows-instances --type merge"), "{}", shown(&waiting));
    // A restarted operator does not decide again.
    world.restart().await?;
    world.until(WINDOWS_INSTANCES, "it still waits", |p| plans_to_adopt(p, 2)).await?;
    is_untouched(&world, &legacy, &before).await?;

    // A user's choice meets no conflict and stays, also after a restart.
    let go = json!({"apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsNodePool",
        "metadata": {"name": WINDOWS_INSTANCES},
        "spec": {"mode": "Apply", "rollout": pool["spec"]["rollout"]}});
    pools.patch(WINDOWS_INSTANCES, &PatchParams::apply("a-person"), &Patch::Apply(go)).await?;
    are_adopted(&world, &legacy).await?;
    world.restart().await?;
    are_adopted(&world, &legacy).await?;
    ensure!(world.pool(WINDOWS_INSTANCES).await?.spec.mode == Some(api::Mode::Apply), "the mode was overwritten");
    world.edit_pool(WINDOWS_INSTANCES, json!({"spec": {"mode": "Plan"}})).await?;
    guide.run(&world, "## 5. Begin").await?;
    ensure!(world.pool(WINDOWS_INSTANCES).await?.spec.mode == Some(api::Mode::Apply), "the command sets no mode");
    Ok(())
}

/// Reports whether a services ConfigMap is this operator's.
fn has_digest(name: &str) -> bool {
    let digest = name.strip_prefix("windows-services-").and_then(|rest| rest.rsplit_once('-'));
    digest.is_some_and(|(_, digest)| digest.len() == 32 && digest.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Checks whether WMCO's account may delete a services ConfigMap of this operator, as WMCO does once no Node names the version.
async fn may_delete(world: &World, name: &str, expected: bool) -> Result<()> {
    let user = format!("system:serviceaccount:{DEFAULT_NAMESPACE}:{WMCO}");
    let subject = json!({"kind": "ServiceAccount", "name": WMCO, "namespace": DEFAULT_NAMESPACE});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": WMCO},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}, "subjects": [subject]});
    world.control_plane.apply_yaml(&binding.to_string()).await?;
    let client = world.control_plane.client_as(&user, &[]).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client, DEFAULT_NAMESPACE);
    let deletes = || async { maps.delete(name, &DeleteParams::default().dry_run()).await };
    if expected {
        // A new right and the deletion of a policy take effect after a delay.
        return world.eventually("WMCO may delete the ConfigMap", || async { deletes().await.is_ok() }).await;
    }
    let why = "only the operator may write them";
    let is_refused = || async { deletes().await.is_err_and(|error| error.to_string().contains(why)) };
    world.eventually("a policy refuses it", is_refused).await
}

/// Waits until the hosts are adopted, and checks that nothing has changed on them: no service was started, no host restarted, no node cordoned.
async fn are_adopted(world: &World, legacy: &Legacy) -> Result<()> {
    for host in &legacy.hosts {
        world.until_event(host.name(), "Adopted").await?;
        world.until_joined(host.name()).await?;
        let node = world.node(host.name()).await?.context("the Node is gone")?;
        ensure!(node.annotations().get(key::VERSION).map(String::as_str) == Some(SAME), "{:?}", node.annotations());
        ensure!(!crate::fleet::is_cordoned(&node), "{} is cordoned", host.name());
        for service in ["kubelet", "containerd"] {
            ensure!(legacy.starts_of(host, service) == 0, "{service} of {} was started", host.name());
        }
        ensure!(host.boots() == 1, "{} was restarted", host.name());
    }
    Ok(())
}

async fn are_as_wmco_needs_them(world: &World, legacy: &Legacy) -> Result<()> {
    for host in &legacy.hosts {
        ensure!(world.instance(host.name()).await?.is_none(), "{} has an instance", host.name());
        let node = world.node(host.name()).await?.context("the Node is gone")?;
        can_be_taken_by_the_legacy_operator(&node, SAME)?;
    }
    ensure!(maps(world).get_opt(WINDOWS_INSTANCES).await?.is_some(), "the list is gone");
    Ok(())
}
