//! Upgrades of the operator to the next release and back to the previous one, and of the control plane over two minor versions.

use std::{collections::BTreeMap, path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use api::{
    Reason, WindowsInstance, WindowsNodePool,
    conditions::kind,
    names::{DEFAULT_NAMESPACE, KEPT_FACTS, key},
};
use k8s_openapi::{
    api::core::v1::{Pod, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use remote::payload::{Payload, Wicd};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, ControlPlaneOptions,
    binaries::KUBERNETES,
    deployment::install,
    payload::LEVEL_FAST,
    sim::{SimHost, SimOptions},
};
use wnp_core::rollout::release_file::ReleaseFile;

use crate::{
    fleet::{OUTLIVES_API_SERVER, World, entries, has, is_cordoned, pool_status, spec, spec_with},
    guide::Guide,
    removal::pod,
    rollout::{Watcher, until_updated},
    transcripts::copied,
};

/// Schema paths of a spec field and a status field that CRDs of an earlier release lack.
const LATER: [&str; 2] =
    ["spec/properties/provisioning/properties/prePullImages", "status/properties/removalsToConfirm"];

/// Returns CRDs of an earlier release: those of this one without fields that came later.
pub(crate) fn older_crds() -> Result<Vec<Value>> {
    let mut crds = Vec::new();
    for crd in api::crds() {
        let mut crd = serde_json::to_value(&crd)?;
        for field in LATER {
            let (parent, name) = field.rsplit_once('/').context("the field has no parent")?;
            let parent = format!("/spec/versions/0/schema/openAPIV3Schema/properties/{parent}");
            if let Some(fields) = crd.pointer_mut(&parent).and_then(Value::as_object_mut) {
                fields.remove(name);
            }
        }
        crds.push(crd);
    }
    Ok(crds)
}

/// Content of `kubelet.exe` in the next release, whose rollout drains every node.
const NEXT: &[u8] = b"kubelet of the next release";

/// Writes the file `release.json` of a release with this payload.
fn release_file(world: &World, kubelet: &[u8]) -> Result<tempfile::NamedTempFile> {
    let folder = tempfile::tempdir()?;
    testbed::payload::write(folder.path(), &entries(kubelet), LEVEL_FAST)?;
    let manifests = Payload::open(folder.path())?.by_minor().clone();
    let wicd = Wicd::open(&world.options.wicd)?;
    let file = tempfile::NamedTempFile::with_suffix(".json")?;
    let release = ReleaseFile::new("0.9.0", &wicd.sha256, manifests)?;
    std::fs::write(file.path(), serde_json::to_vec(&release)?)?;
    Ok(file)
}

/// Runs `plan --release`, without the payload of an operator. Returns exit status, standard output and standard error.
async fn plan(world: &World, file: &std::path::Path) -> Result<(Option<i32>, String, String)> {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .args(["plan", "--payload", "/nonexistent", "--wicd", "/nonexistent", "--release"])
        .arg(file)
        .env("CACHE_DIR", world.control_plane.dir())
        .env("KUBECONFIG", world.control_plane.kubeconfig_as("a-person", &["system:masters"])?)
        .stdin(Stdio::null())
        .output()
        .await?;
    Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

/// Returns the UIDs of Nodes and instances, and checks that no Node is cordoned.
async fn standing(world: &World, hosts: &[SimHost]) -> Result<BTreeMap<String, (Option<String>, Option<String>)>> {
    let mut all = BTreeMap::new();
    for host in hosts {
        let node = world.node(host.name()).await?.context("no Node")?;
        ensure!(!is_cordoned(&node), "{} is cordoned", host.name());
        let instance = world.instance(host.name()).await?.context("no instance")?;
        all.insert(host.name().to_owned(), (node.uid(), instance.uid()));
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_planned_and_waits_for_windows_pauses_and_approvals() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    let far = (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(12)).strftime("%M %H * * *").to_string();
    let shut = json!({"maintenanceWindows": [{"schedule": far, "durationSeconds": 3600}]});
    let steps = json!({"steps": [{"nodes": 1, "approval": true}], "order": "Name"});
    let pools = [("shut", 1, shut), ("held", 1, json!({})), ("steps", 2, steps)];
    let mut hosts = BTreeMap::new();
    for (name, count, rollout) in &pools {
        let of_pool = world.hosts(name, *count).await?;
        world.join(name, &spec_with(&of_pool, json!({"rollout": rollout}))).await?;
        hosts.insert(*name, of_pool);
    }
    let stats = |name: &str| hosts[name].iter().map(SimHost::stats).collect::<Vec<_>>();
    let before = ["shut", "held", "steps"].map(stats);

    // The release is planned before it is installed.
    let same = release_file(&world, b"kubelet")?;
    let (status, out, err) = plan(&world, same.path()).await?;
    ensure!(status == Some(0) && out.contains("release 0.9.0: nothing to do for 2 hosts"), "{status:?}\n{out}\n{err}");
    let next = release_file(&world, NEXT)?;
    let (status, out, err) = plan(&world, next.path()).await?;
    ensure!(status == Some(2), "{status:?}\n{out}\n{err}");
    for name in ["shut-0", "held-0", "steps-0", "steps-1"] {
        let row = out.lines().find(|line| line.starts_with(name)).with_context(|| out.clone())?;
        ensure!(row.contains("Update") && row.contains("Drain") && row.contains("kubelet.exe"), "{row}");
    }
    std::fs::write(next.path(), "{\"schema\": 1}")?;
    let (status, _, err) = plan(&world, next.path()).await?;
    ensure!(
        status == Some(1) && err.contains("use the release.json that is published with the release"),
        "{status:?} {err}"
    );

    // This patch is the command of the guide, but for one pool instead of all.
    world.edit_pool("held", json!({"spec": {"rollout": {"paused": true}}})).await?;
    world.give("next", &entries(NEXT))?;
    world.restart().await?;
    world
        .until("shut", "it waits for its window", |p| {
            has(&pool_status(p).conditions, kind::READY, "Unknown", Reason::WaitingForWindow)
        })
        .await?;
    world
        .until("held", "it is held", |p| {
            let status = pool_status(p);
            has(&status.conditions, kind::UPDATED, "False", Reason::Paused)
                && has(&status.conditions, kind::READY, "Unknown", Reason::Paused)
        })
        .await?;
    world
        .until("steps", "one is changed and the other waits", |p| {
            has(&pool_status(p).conditions, kind::READY, "Unknown", Reason::WaitingForApproval)
        })
        .await?;
    ensure!([stats("shut"), stats("held")] == before[..2], "a host was worked on");
    ensure!(stats("steps")[1] == before[2][1], "the second node was worked on before the approval");
    for of_pool in hosts.values() {
        standing(&world, of_pool).await?;
    }

    world.edit_pool("held", json!({"spec": {"rollout": {"paused": false}}})).await?;
    let version = desired_version(&world.pool("steps").await?);
    approve(&world, "steps", &version).await?;
    until_updated(&world, "held").await?;
    ensure!(stats("shut") == before[0], "a host was worked on outside of its window");
    Ok(())
}

/// Brings the cluster into the state that an earlier release has left: its CRDs, and objects that were written with them, without later
/// fields.
async fn go_back(world: &World) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    for older in older_crds()? {
        let mut older: CustomResourceDefinition = serde_json::from_value(older)?;
        older.metadata.resource_version = crds.get(&older.name_any()).await?.resource_version();
        crds.replace(&older.name_any(), &PostParams::default(), &older).await?;
    }
    let pools: Api<DynamicObject> = Api::all_with(world.client.clone(), &ApiResource::erase::<WindowsNodePool>(&()));
    let has_gone = || async {
        let again = write_again::<WindowsInstance>(world, "older").await;
        let kept = write_again::<WindowsNodePool>(world, "older").await.and(again);
        let pool = pools.get("kept").await;
        kept.is_ok() && pool.is_ok_and(|p| p.data["status"].get("removalsToConfirm").is_none())
    };
    world.eventually("the older CRDs are in force", has_gone).await
}

async fn write_again<K: Resource<DynamicType = ()>>(world: &World, release: &str) -> Result<()> {
    let objects: Api<DynamicObject> = Api::all_with(world.client.clone(), &ApiResource::erase::<K>(&()));
    let patch = Patch::Merge(json!({"metadata": {"labels": {"example.com/written-by": release}}}));
    for object in objects.list(&kube::api::ListParams::default()).await? {
        objects.patch(&object.name_any(), &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_stay_with_the_next_release_and_back_by_one() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("kept", 2).await?;
    let spec = spec_with(&hosts, json!({"rollout": {"steps": [{"nodes": 1, "approval": true}]}}));
    world.join("kept", &spec).await?;
    let before = standing(&world, &hosts).await?;
    let first = desired_version(&world.pool("kept").await?);

    world.stop().await?;
    go_back(&world).await?;
    install(&world.control_plane).await?;
    world.give("next", &entries(NEXT))?;
    world.new_operator().await?;
    let next = until_one_waits(&world, &first).await?;
    ensure!(standing(&world, &hosts).await? == before, "a Node or an instance was created again");
    approve(&world, "kept", &next).await?;
    ensure!(standing(&world, &hosts).await? == before, "a Node or an instance was created again");

    // Back to the previous release: the newer CRDs and the stored values stay, and the earlier payload has its earlier version again.
    let pools: Api<DynamicObject> = Api::all_with(world.client.clone(), &ApiResource::erase::<WindowsNodePool>(&()));
    let later = json!({
        "mode": "Plan",
        "inventory": {"hosts": [{"name": "weld-1", "address": "10.20.0.21"}]},
        "provisioning": {"prePullImages": ["registry.example.com/base:1"]},
    });
    world.apply("later", &serde_json::from_value(later)?).await?;
    back_by_one(&world).await?;
    world.give("first", &entries(b"kubelet"))?;
    world.restart().await?;
    let again = until_one_waits(&world, &next).await?;
    ensure!(again == first, "{again} is not the earlier version {first}");
    approve(&world, "kept", &first).await?;
    ensure!(standing(&world, &hosts).await? == before, "a Node or an instance was created again");
    let stored = pools.get("later").await?;
    ensure!(
        stored.data["spec"]["provisioning"]["prePullImages"][0] == "registry.example.com/base:1",
        "a field of the newer release is lost: {:?}",
        stored.data
    );
    Ok(())
}

/// Applies an earlier release, with CRDs of its own, by the command of the guide.
async fn back_by_one(world: &World) -> Result<()> {
    let guide = Guide::open(&world.control_plane, "upgrade.md", "upgrade")?;
    copied("deploy", guide.folder())?;
    let folder = |name: &str, resources: Vec<String>| -> Result<PathBuf> {
        let folder = guide.folder().join(name);
        std::fs::create_dir_all(&folder)?;
        let kustomization = json!({"resources": resources});
        std::fs::write(folder.join("kustomization.yaml"), kustomization.to_string())?;
        Ok(folder)
    };
    folder("deploy/mine", vec!["../base".into()])?;
    let mut files = Vec::new();
    for mut crd in older_crds()? {
        crd["metadata"]["labels"] = json!({"app.kubernetes.io/component": "api"});
        files.push((crd["metadata"]["name"].as_str().context("a CRD has no name")?.to_owned() + ".yaml", crd));
    }
    let crds = folder("crds", files.iter().map(|(name, _)| name.clone()).collect())?;
    for (name, crd) in &files {
        std::fs::write(crds.join(name), crd.to_string())?;
    }
    let applied = guide.run(world, "## Return to the previous release").await?;
    ensure!(applied.contains("deployment.apps/windows-node-pools serverside-applied"), "{applied}");
    ensure!(!applied.contains("customresourcedefinition"), "{applied}");
    Ok(())
}

fn desired_version(pool: &WindowsNodePool) -> String {
    pool_status(pool).desired_version.unwrap_or_default()
}

/// Waits until the first node is changed and the second waits. Returns the version, which is not `before`.
async fn until_one_waits(world: &World, before: &str) -> Result<String> {
    world
        .until("kept", "one is changed and the other waits", |p| {
            desired_version(p) != before
                && has(&pool_status(p).conditions, kind::READY, "Unknown", Reason::WaitingForApproval)
        })
        .await?;
    Ok(desired_version(&world.pool("kept").await?))
}

/// Approves a version, and waits until all nodes of the pool follow it.
async fn approve(world: &World, pool: &str, version: &str) -> Result<()> {
    world.edit_pool(pool, json!({"metadata": {"annotations": {key::APPROVE: version}}})).await?;
    until_updated(world, pool).await
}

const TWO_MINORS: &str = "## Two minor versions at once: EUS to EUS";

/// Gives the next operator a payload for the minor version of each of these versions of Kubernetes.
fn give_each(world: &mut World, versions: &[&str]) -> Result<()> {
    for version in versions {
        let mut files = entries(version.as_bytes());
        files[0] = files[0].clone().version(Some(version));
        let (minor, _) =
            version.trim_start_matches('v').rsplit_once('.').context("the version has no minor version")?;
        world.give(&format!("each/{minor}"), &files)?;
    }
    ensure!(world.options.payload.pop(), "the payload is in no folder");
    Ok(())
}

/// Waits until the operator has stored the API server's version in its facts.
async fn until_known(world: &World, version: &str) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), DEFAULT_NAMESPACE);
    let minor: u32 = version.split('.').nth(1).context("the version has no minor version")?.parse()?;
    let is_known = |secret: Secret| {
        let facts: Option<Value> = serde_json::from_slice(&secret.data?.get("facts.json")?.0).ok();
        Some(facts?["kubernetesMinor"] == minor)
    };
    let known = || async { secrets.get(KEPT_FACTS).await.is_ok_and(|secret| is_known(secret) == Some(true)) };
    world.eventually(&format!("the operator knows {version}"), known).await
}

/// Upgrades a control plane over two minor versions while pods run on nodes. The operator has payloads for `versions`. With `is_paused`, the pools
/// are paused meanwhile.
async fn go_over_two_minor_versions(versions: &[&str], is_paused: bool) -> Result<()> {
    let [.., last, middle, first] = KUBERNETES;
    let options = ControlPlaneOptions { kubernetes: Some(first), ..ControlPlaneOptions::default() };
    let args = [&["--cluster-facts-interval", "500ms"], &OUTLIVES_API_SERVER[..]].concat();
    let mut world =
        World::on(ControlPlane::start(options).await?, SimOptions::default(), &entries(b"of none"), None, &args)
            .await?;
    world.operator.leads().await?;
    give_each(&mut world, versions)?;
    world.restart().await?;
    let hosts = world.hosts("win", 2).await?;
    world.join("kept", &spec(&hosts)).await?;
    for host in &hosts {
        pod(&world, "kept", host.name(), &[]).await?;
    }
    let guide = Guide::open(&world.control_plane, "upgrade.md", "upgrade")?;
    let blocks = guide.blocks(TWO_MINORS, "sh");
    let [pause, resume, look] = &blocks[..] else { anyhow::bail!("unexpected commands: {blocks:?}") };
    let count = |text: &str, part: &str| text.lines().filter(|line| line.contains(part)).count();
    let stands = async |world: &World| -> Result<()> {
        let seen = guide.run_block(world, look).await?;
        ensure!(count(&seen, first) == hosts.len() && count(&seen, "Draining") == 0, "{seen}");
        standing(world, &hosts).await.map(drop)
    };
    stands(&world).await?;
    let watcher = Watcher::of(&world.client, "kept");
    if is_paused {
        guide.run_block(&world, pause).await?;
        world
            .until("kept", "it is paused", |p| has(&pool_status(p).conditions, kind::PAUSED, "True", Reason::Paused))
            .await?;
    }

    world.control_plane.upgrade(middle).await?;
    until_known(&world, middle).await?;
    stands(&world).await?;
    world.control_plane.upgrade(last).await?;
    until_known(&world, last).await?;
    if is_paused {
        stands(&world).await?;
        guide.run_block(&world, resume).await?;
    }
    let runs_last = async |host: &SimHost| -> Result<bool> {
        let info = world.node(host.name()).await?.and_then(|node| node.status?.node_info);
        Ok(info.is_some_and(|info| info.kubelet_version == last))
    };
    for host in &hosts {
        world
            .eventually("its kubelet is of the last version", async || runs_last(host).await.is_ok_and(|is| is))
            .await?;
        world.until_event(host.name(), "Draining").await?;
    }
    until_updated(&world, "kept").await?;
    let seen = guide.run_block(&world, look).await?;
    ensure!(count(&seen, last) == hosts.len() && count(&seen, "Draining") == hosts.len(), "{seen}");
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    for host in &hosts {
        ensure!(pods.get_opt(&format!("kept-{}", host.name())).await?.is_none(), "{} was not drained", host.name());
    }
    let cordons = watcher.seen.lock().unwrap().cordons.clone();
    let once: BTreeMap<String, usize> = hosts.iter().map(|host| (host.name().to_owned(), 1)).collect();
    ensure!(cordons == once, "{cordons:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it runs by night"]
async fn nodes_skip_a_version_that_the_payload_does_not_have() -> Result<()> {
    let [.., last, _, first] = KUBERNETES;
    Box::pin(go_over_two_minor_versions(&[first, last], false)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it runs by night"]
async fn nodes_skip_a_version_while_pools_are_paused() -> Result<()> {
    let [.., last, middle, first] = KUBERNETES;
    Box::pin(go_over_two_minor_versions(&[first, middle, last], true)).await
}
