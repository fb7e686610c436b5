//! Pools as Argo CD shows them: health, and actions that users start from its pages. `UPDATE_TESTDATA=1` stores the objects beside the
//! scripts, for Argo CD's own tests.

use std::{fmt::Write as _, path::PathBuf, sync::Mutex};

use anyhow::{Context as _, Result, ensure};
use api::{
    Reason, WindowsInstance, WindowsNodePool,
    conditions::{is_true, kind},
    names::{GROUP, key},
};

use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::{
    binaries::run_lua,
    sim::{SimHost, SimOptions},
};

use crate::{
    cluster::kubectl,
    fleet::{World, entry, has, is_ready, pool_status, status},
};

const POOL: &str = "factory";
const TRACKING: &str = "argocd.argoproj.io/tracking-id";
const INSTANCE: &str = "app.kubernetes.io/instance";

/// Health of an object, as Argo CD's script for its kind computes it.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    pub status: String,
    pub message: String,
}

/// Returns the folder with Argo CD's scripts for a kind.
fn folder(kind: &str) -> PathBuf {
    let all = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/argocd/resource_customizations");
    all.join(GROUP).join(kind)
}

/// Returns the health that Argo CD computes for objects of one kind.
pub(crate) fn health(objects: &[Value]) -> Result<Vec<Health>> {
    let Some(kind) = objects.first().and_then(|object| object["kind"].as_str()) else { return Ok(Vec::new()) };
    let script = std::fs::read_to_string(folder(kind).join("health.lua"))?;
    run_lua(&script, objects)?.into_iter().map(|health| Ok(serde_json::from_value(health)?)).collect()
}

/// Returns the disagreement between Argo CD and kstatus about an object, if there is one.
pub(crate) fn disagreement(object: &Value, kstatus: &str, health: &str) -> Option<String> {
    let conditions = object["status"]["conditions"].as_array();
    let is = |type_: &str, status: &str| {
        conditions.is_some_and(|all| all.iter().any(|c| c["type"] == type_ && c["status"] == status))
    };
    let agree = match (kstatus, health) {
        // Argo CD itself reports objects that are being deleted.
        ("Terminating", _)
        | ("Failed", "Degraded")
        | ("InProgress", "Progressing" | "Suspended")
        | ("Current", "Healthy" | "Suspended") => true,
        // The operator does not work on the fault; kstatus has no status for that.
        ("InProgress", "Degraded") => is(kind::READY, "False") && !is(kind::RECONCILING, "True"),
        ("Current", "Progressing") => is(kind::READY, "Unknown"),
        _ => false,
    };
    (!agree).then(|| format!("kstatus says {kstatus}, and Argo CD {health}"))
}

/// Returns the merge patch that turns `from` into `to`.
fn difference(from: &Value, to: &Value) -> Value {
    let (Some(before), Some(after)) = (from.as_object(), to.as_object()) else { return to.clone() };
    let gone = before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let other = after.iter().filter(|(key, value)| before.get(*key) != Some(value));
    let other =
        other.map(|(key, value)| (key.clone(), before.get(key).map_or(value.clone(), |b| difference(b, value))));
    gone.chain(other).collect::<serde_json::Map<_, _>>().into()
}

/// Returns the names of the actions that users may start.
fn possible<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Result<Vec<String>> {
    let script = std::fs::read_to_string(folder(&K::kind(&())).join("actions/discovery.lua"))?;
    let found = run_lua(&script, &[json!(object)])?.remove(0);
    let found = found.as_object().context("no actions")?;
    Ok(found.iter().filter(|(_, action)| action["disabled"] == false).map(|(name, _)| name.clone()).collect())
}

/// Starts an action, and stores the object that results from it.
async fn act_and_store<K>(world: &World, object: &K, action: &str) -> Result<K>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    let path = format!("actions/testdata/{action}.yaml");
    store(&K::kind(&()), &path, &changed(&json!(object), &K::kind(&()), action)?)?;
    act(world, object, action).await
}

/// Returns the object that results from the script of an action.
fn changed(object: &Value, kind: &str, action: &str) -> Result<Value> {
    let script = std::fs::read_to_string(folder(kind).join(format!("actions/{action}/action.lua")))?;
    Ok(run_lua(&script, std::slice::from_ref(object))?.remove(0))
}

/// Starts an action as Argo CD does: the script changes the object, and the difference becomes a patch.
async fn act<K>(world: &World, object: &K, action: &str) -> Result<K>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    ensure!(
        possible(object)?.iter().any(|name| name == action),
        "{action} is not possible: {object:?}",
        object = object.meta()
    );
    let before = json!(object);
    let after = changed(&before, &K::kind(&()), action)?;
    let params = PatchParams { field_manager: Some("argocd-server".into()), ..PatchParams::default() };
    let patch = Patch::Merge(difference(&before, &after));
    Ok(Api::all(world.client.clone()).patch(&object.name_any(), &params, &patch).await?)
}

/// Checks the health of an object, and stores the object as test data under `name`.
fn check_health_and_store<K: Resource<DynamicType = ()> + Serialize>(
    object: &K,
    status: &str,
    name: &str,
) -> Result<()> {
    let object = json!(object);
    let health = health(std::slice::from_ref(&object))?.remove(0);
    ensure!(health.status == status, "{name}: {health:?}, not {status}: {}", object["status"]);
    store(&K::kind(&()), &format!("testdata/{name}.yaml"), &object)
}

/// Stores an object for Argo CD's own tests, if `UPDATE_TESTDATA` is set.
fn store(kind: &str, path: &str, object: &Value) -> Result<()> {
    if std::env::var_os("UPDATE_TESTDATA").is_none() {
        return Ok(());
    }
    let mut object = object.clone();
    for (part, left_out) in [("metadata", "managedFields"), ("status", "effective"), ("status", "facts")] {
        object[part].as_object_mut().context("no object")?.remove(left_out);
    }
    let path = folder(kind).join(path);
    std::fs::create_dir_all(path.parent().context("no folder")?)?;
    Ok(std::fs::write(path, serde_yaml::to_string(&object)?)?)
}

/// Waits until the pool meets the condition at its current generation, and returns the pool.
async fn seen(world: &World, what: &str, is_so: impl Fn(&WindowsNodePool) -> bool) -> Result<WindowsNodePool> {
    let found = Mutex::new(None);
    let note = |pool: &WindowsNodePool| {
        let is_so = is_so(pool) && pool_status(pool).observed_generation == pool.metadata.generation;
        if is_so {
            *found.lock().unwrap() = Some(pool.clone());
        }
        is_so
    };
    world.until(POOL, what, note).await?;
    found.into_inner().ok().flatten().context("nothing was seen")
}

/// Returns the pool's manifest in Git, with the metadata that Argo CD adds.
fn manifest(hosts: &[SimHost], downloads: i32) -> Value {
    let hosts: Vec<_> = hosts.iter().map(entry).collect();
    json!({
        "apiVersion": format!("{GROUP}/v1alpha1"),
        "kind": "WindowsNodePool",
        "metadata": {
            "name": POOL,
            "labels": {INSTANCE: "windows"},
            "annotations": {TRACKING: format!("windows:{GROUP}/WindowsNodePool:/factory")},
        },
        "spec": {
            "inventory": {"hosts": hosts, "maxRemovals": 1},
            "template": {"spec": {"containerd": {"maxConcurrentDownloads": downloads}}},
            "rollout": {"steps": [{"nodes": 1, "approval": true}]},
        },
    })
}

/// Applies the manifest without force, as Argo CD does for a sync and for self-heal.
async fn sync(world: &World, manifest: &Value) -> Result<WindowsNodePool> {
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    Ok(pools.patch(POOL, &PatchParams::apply("argocd-controller"), &Patch::Apply(manifest)).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_shown_and_steered_from_argo_cd() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 3).await?;
    let in_git = manifest(&hosts, 3);
    sync(&world, &in_git).await?;
    let joins = |p: &WindowsNodePool| is_true(&pool_status(p).conditions, kind::RECONCILING);
    check_health_and_store(&seen(&world, "it joins hosts", joins).await?, "Progressing", "progressing")?;
    let all = |p: &WindowsNodePool| is_ready(p) && pool_status(p).up_to_date_nodes == 3;
    let pool = seen(&world, "all are nodes", all).await?;
    check_health_and_store(&pool, "Healthy", "healthy")?;
    ensure!(possible(&pool)? == ["pause"], "{:?}", possible(&pool)?);
    nothing_is_tracked(&world, &hosts).await?;
    let same = sync(&world, &in_git).await?.metadata.generation == pool.metadata.generation;
    ensure!(same, "the operator has changed the spec");

    // Self-heal undoes neither action.
    let is_paused = |p: &WindowsNodePool| is_ready(p) && is_true(&pool_status(p).conditions, kind::PAUSED);
    act_and_store(&world, &pool, "pause").await?;
    sync(&world, &in_git).await?;
    let pool = seen(&world, "it is paused", is_paused).await?;
    check_health_and_store(&pool, "Suspended", "suspended_paused")?;
    act_and_store(&world, &pool, "resume").await?;
    sync(&world, &in_git).await?;
    let pool = seen(&world, "it continues", |p| is_ready(p) && !is_paused(p)).await?;
    ensure!(possible(&pool)? == ["pause"], "{:?}", possible(&pool)?);

    let in_git = manifest(&hosts, 6);
    sync(&world, &in_git).await?;
    let waits =
        |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::READY, "Unknown", Reason::WaitingForApproval);
    let pool = seen(&world, "it waits for an approval", waits).await?;
    check_health_and_store(&pool, "Suspended", "suspended_approval")?;
    act_and_store(&world, &pool, "approve").await?;
    sync(&world, &in_git).await?;
    seen(&world, "all follow", all).await?;

    let in_git = manifest(&hosts[..1], 6);
    sync(&world, &in_git).await?;
    let held = |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::STALLED, "True", Reason::RemovalBlocked);
    let pool = seen(&world, "the removal waits", held).await?;
    check_health_and_store(&pool, "Degraded", "degraded_removal")?;
    act_and_store(&world, &pool, "confirm-removal").await?;
    sync(&world, &in_git).await?;
    for host in &hosts[1..] {
        world.until_gone(host).await?;
    }
    let pool = seen(&world, "one is left", |p| is_ready(p) && pool_status(p).hosts == 1).await?;
    ensure!(pool_status(&pool).removals_to_confirm == 0, "{:?}", pool.status);
    Ok(())
}

/// Checks that no Node or instance carries Argo CD's tracking metadata: Argo CD would prune it as an object of the application that Git lacks.
/// Also checks that the instances are Healthy.
async fn nothing_is_tracked(world: &World, hosts: &[SimHost]) -> Result<()> {
    for host in hosts {
        let (name, mut keys) = (host.name(), String::new());
        let instance = world.instance(name).await?.context("no instance")?;
        let node = world.node(name).await?.context("no Node")?;
        for meta in [&instance.metadata, &node.metadata] {
            let all = meta.annotations.iter().chain(&meta.labels).flat_map(|map| map.keys());
            all.for_each(|key| writeln!(keys, "{key}").unwrap_or_default());
        }
        ensure!(!keys.contains("argocd.argoproj.io") && !keys.contains(INSTANCE), "{name}: {keys}");
        check_health_and_store(&instance, "Healthy", "healthy")?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_fetched_and_a_failed_host_is_retried_from_argo_cd() -> Result<()> {
    let world = World::new(SimOptions::default(), &["--backoff-base", "1h", "--backoff-max", "1h"]).await?;
    let mut in_git = manifest(&[], 3);
    in_git["spec"]["inventory"] = json!({"git": {"url": "https://127.0.0.1:9/hosts.git"}});
    sync(&world, &in_git).await?;
    let fails = |p: &WindowsNodePool| has_status(p, kind::READY, "False") && has_status(p, kind::RECONCILING, "True");
    let pool = seen(&world, "the server does not answer", fails).await?;
    check_health_and_store(&pool, "Progressing", "progressing_source")?;
    let pool = act_and_store(&world, &pool, "fetch").await?;
    let value = pool.annotations().get(key::RECONCILE_REQUESTED).cloned();
    ensure!(value.is_some(), "{:?}", pool.metadata);
    seen(&world, "it is fetched", |p| pool_status(p).last_handled_reconcile_at == value).await?;

    // The pool gets a list of its own, with a host that is off.
    let hosts = world.hosts("win", 1).await?;
    hosts[0].power_off();
    sync(&world, &manifest(&hosts, 3)).await?;
    let failed = |i: &WindowsInstance| status(i).failures.is_some_and(|f| f.next_retry_time.is_some());
    let instance = world.until_instance("win-0", "it has failed", failed).await?;
    check_health_and_store(&instance, "Progressing", "progressing_retry")?;
    let pool = seen(&world, "it reports the host", |p| pool_status(p).failed_nodes == 1).await?;
    check_health_and_store(&pool, "Progressing", "progressing_retry")?;
    hosts[0].power_on();
    let instance: WindowsInstance = act_and_store(&world, &instance, "retry").await?;
    ensure!(instance.annotations().contains_key(key::RETRY), "{:?}", instance.metadata);
    world.until_joined("win-0").await?;
    Ok(())
}

/// Uses `kubectl apply`, which does the same three-way merge as Argo CD's client-side apply.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_survives_the_three_way_merge() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let mut in_git = manifest(&[], 3);
    in_git["spec"]["mode"] = "Plan".into();
    in_git["spec"]["inventory"]["hosts"] = json!([{"name": "win-0", "address": "127.0.0.1"}]);
    let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
    std::fs::write(file.path(), serde_yaml::to_string(&in_git)?)?;
    let path = file.path().to_str().context("path is not UTF-8")?;
    let apply = async || kubectl(&world.control_plane, &["apply", "-f", path]).await;
    apply().await?;
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/gitops/argocd-pool.yaml");
    let path = example.to_str().context("path is not UTF-8")?;
    let example = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", path];
    kubectl(&world.control_plane, &example).await?;
    let pool = seen(&world, "it is planned", |p| pool_status(p).plan.is_some()).await?;
    check_health_and_store(&pool, "Suspended", "suspended_plan")?;
    act(&world, &pool, "pause").await?;
    ensure!(apply().await?.trim().ends_with("unchanged"), "self-heal would undo the pause");
    ensure!(world.pool(POOL).await?.spec.rollout().paused == Some(true), "the pause is undone");
    Ok(())
}

fn has_status(pool: &WindowsNodePool, type_: &str, status: &str) -> bool {
    pool_status(pool).conditions.iter().any(|c| c.type_ == type_ && c.status == status)
}
