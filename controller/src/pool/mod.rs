//! The pool controller: from the inventory to instances, grants, and the pool's status. Works on no host.

mod status;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{
    DeletionPolicy, Desired, Grant, GrantType, InstanceHost, PoolRef, WindowsInstance, WindowsInstanceSpec,
    WindowsNodePool, WindowsNodePoolStatus,
    names::{FINALIZER_INSTANCE, FINALIZER_POOL, MANAGER_POOL, key},
};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
    runtime::controller::Action,
};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    context::Context,
    drain,
    events::Level,
    instance::node,
    inventory::hosts::{self, Known, Problem},
    plan::grants::{Decision, Limits, Slot, decide},
};

pub use status::refuse;

/// Writes to the API server that are under way at once for one pool.
const WRITES: usize = 16;

/// The API server did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not {doing}: {}", crate::errors::said(.source))]
pub struct PoolError {
    doing: &'static str,
    #[source]
    source: kube::Error,
}

fn failed(doing: &'static str) -> impl FnOnce(kube::Error) -> PoolError {
    move |source| PoolError { doing, source }
}

/// When the API server fails us, look again after this time.
const API_RETRY: Duration = Duration::from_secs(5);

/// What to do after an error.
pub fn error_policy(pool: Arc<WindowsNodePool>, error: &PoolError, cx: Arc<Context>) -> Action {
    tracing::warn!(pool = pool.name_any(), %error, "the pool is looked at again");
    cx.metrics.reconcile_errors.get_or_create(&crate::metrics::KindLabel { kind: "WindowsNodePool" }).inc();
    Action::requeue(API_RETRY)
}

/// One host of the pool, with what is seen of it.
pub(crate) struct Member {
    /// The instance.
    pub instance: Arc<WindowsInstance>,
    /// What counts of it.
    pub slot: Slot,
    /// Whether its Node is Ready.
    pub ready: bool,
}

/// Looks at one pool.
pub async fn reconcile(pool: Arc<WindowsNodePool>, cx: Arc<Context>) -> Result<Action, PoolError> {
    let now = Timestamp::now();
    let name = pool.name_any();
    let deleting = pool.metadata.deletion_timestamp.is_some();

    // Dereference.
    let all = cx.instances.state();
    let mine: Vec<Arc<WindowsInstance>> = all.iter().filter(|i| i.spec.pool_ref.name == name).cloned().collect();
    if deleting && mine.is_empty() {
        return finish(&pool, &cx).await;
    }
    let known: Vec<Known> = all.iter().map(|i| known(i)).collect();

    // Validate.
    let (hosts, problems) =
        if deleting { (BTreeMap::new(), Vec::new()) } else { hosts::resolve(&name, &pool.spec, &known) };

    // Plan.
    let changes = changes(&hosts, &mine, &cx.release.version, &pool);
    let min_ready = pool.spec.rollout().min_ready();
    let members: Vec<Member> = mine
        .iter()
        .map(|i| member(i, !hosts.contains_key(&i.name_any()), cx.node(&i.name_any()).as_deref(), min_ready, now))
        .collect();
    let total = u32::try_from(members.iter().filter(|m| m.slot.joined).count()).unwrap_or(u32::MAX);
    let rollout = pool.spec.rollout();
    let limits = Limits {
        max_concurrent: pool.spec.max_concurrent(),
        max_unavailable: rollout.max_unavailable().of(total),
        paused: rollout.paused(),
        orphan: pool.spec.deletion_policy() == DeletionPolicy::Orphan,
    };
    let slots: Vec<Slot> = members.iter().map(|m| m.slot.clone()).collect();
    let decision = decide(&slots, limits, now);

    // Apply.
    if !deleting && !pool.finalizers().iter().any(|f| f == FINALIZER_POOL) {
        add_finalizer(&pool, &cx).await?;
    }
    apply(changes, &mine, &decision, &cx, now).await?;
    tell_of(&problems, &pool, &cx);

    // Status.
    let seen =
        status::Seen { hosts: hosts.len(), problems: &problems, members: &members, decision: &decision, deleting };
    let next = status::next(&pool, &seen, &cx.release.version, cx.warning.as_ref(), now);
    store(&pool, next, &cx).await?;
    record(&name, &members, &cx);
    let wake = [decision.next, soonest_available(&members, min_ready, now, &cx)].into_iter().flatten().min();
    Ok(wake.map_or_else(Action::await_change, |at| {
        Action::requeue(Duration::try_from(at.duration_since(now)).unwrap_or_default().max(Duration::from_millis(200)))
    }))
}

fn known(instance: &WindowsInstance) -> Known {
    Known {
        name: instance.name_any(),
        address: instance.spec.host.address.clone(),
        port: instance.spec.host.port,
        pool: instance.spec.pool_ref.name.clone(),
    }
}

/// What has to be written for the instances to be those of the inventory.
#[derive(Debug, Default)]
struct Changes {
    create: Vec<WindowsInstance>,
    update: Vec<(String, serde_json::Value)>,
    delete: Vec<String>,
}

fn changes(
    hosts: &BTreeMap<String, InstanceHost>,
    mine: &[Arc<WindowsInstance>],
    version: &str,
    pool: &WindowsNodePool,
) -> Changes {
    let mut changes = Changes::default();
    let existing: BTreeMap<String, &Arc<WindowsInstance>> = mine.iter().map(|i| (i.name_any(), i)).collect();
    for (name, host) in hosts {
        match existing.get(name) {
            None => changes.create.push(new_instance(pool, host, version)),
            Some(instance) if instance.metadata.deletion_timestamp.is_some() => {}
            Some(instance) => {
                let joined = instance.status.as_ref().is_some_and(|s| s.current_version.is_some());
                // A node that has joined keeps the version that it follows.
                let stale = !joined && instance.spec.desired.as_ref().is_none_or(|d| d.version != version);
                let mut spec = serde_json::Map::new();
                if instance.spec.host != *host {
                    spec.insert("host".into(), replaced(&instance.spec.host, host));
                }
                if stale {
                    spec.insert("desired".into(), json!({"version": version}));
                }
                if !spec.is_empty() {
                    changes.update.push((name.clone(), json!({"spec": spec})));
                }
            }
        }
    }
    let gone = mine.iter().filter(|i| i.metadata.deletion_timestamp.is_none() && !hosts.contains_key(&i.name_any()));
    changes.delete = gone.map(|i| i.name_any()).collect();
    changes
}

/// The merge patch value that turns one host into another: what is no longer set is set to null.
fn replaced(old: &InstanceHost, new: &InstanceHost) -> serde_json::Value {
    let mut value = json!(new);
    if new.host_key.is_none() {
        value["hostKey"] = serde_json::Value::Null;
    }
    let labels: BTreeMap<&String, Option<&String>> =
        old.labels.keys().map(|k| (k, None)).chain(new.labels.iter().map(|(k, v)| (k, Some(v)))).collect();
    value["labels"] = json!(labels);
    value
}

fn new_instance(pool: &WindowsNodePool, host: &InstanceHost, version: &str) -> WindowsInstance {
    WindowsInstance {
        metadata: ObjectMeta {
            name: Some(host.name.clone()),
            labels: Some(BTreeMap::from([(key::POOL.to_string(), pool.name_any())])),
            finalizers: Some(vec![FINALIZER_INSTANCE.into()]),
            owner_references: pool.controller_owner_ref(&()).map(|o| vec![o]),
            ..ObjectMeta::default()
        },
        spec: WindowsInstanceSpec {
            pool_ref: PoolRef { name: pool.name_any() },
            host: host.clone(),
            desired: Some(Desired { version: version.into() }),
            grant: None,
        },
        status: None,
    }
}

fn member(
    instance: &Arc<WindowsInstance>,
    unwanted: bool,
    node: Option<&Node>,
    min_ready: Duration,
    now: Timestamp,
) -> Member {
    let status = instance.status.clone().unwrap_or_default();
    let joined = status.current_version.is_some();
    let (ready, since, _) = node.map_or((false, None, String::new()), node::ready);
    let ready = ready && joined;
    let held = since.is_some_and(|t| Duration::try_from(now.duration_since(t)).unwrap_or_default() >= min_ready);
    let slot = Slot {
        name: instance.name_any(),
        grant: instance.spec.grant.as_ref().map(|g| g.type_),
        leaving: unwanted || instance.metadata.deletion_timestamp.is_some(),
        joined,
        available: ready && held && node.is_some_and(|n| !drain::is_cordoned(n)),
        waits_until: status.failures.as_ref().and_then(|f| f.next_retry_time.parse().ok()),
    };
    Member { instance: instance.clone(), slot, ready }
}

/// When the next node will have been Ready for long enough.
fn soonest_available(members: &[Member], min_ready: Duration, now: Timestamp, cx: &Context) -> Option<Timestamp> {
    let span = jiff::SignedDuration::try_from(min_ready).ok()?;
    let waiting = members.iter().filter(|m| m.ready && !m.slot.available);
    waiting.filter_map(|m| node::ready(&*cx.node(&m.slot.name)?).1?.checked_add(span).ok()).filter(|at| *at > now).min()
}

/// One write of an instance. The writes of a look are independent of one another.
enum Write {
    Create(Box<WindowsInstance>),
    Patch { name: String, patch: serde_json::Value, doing: &'static str },
    Delete(String),
}

async fn apply(
    changes: Changes,
    mine: &[Arc<WindowsInstance>],
    decision: &Decision,
    cx: &Arc<Context>,
    now: Timestamp,
) -> Result<(), PoolError> {
    let Changes { create, update, delete } = changes;
    let mut writes: Vec<Write> = Vec::new();
    writes.extend(create.into_iter().map(|i| Write::Create(Box::new(i))));
    writes.extend(update.into_iter().map(|(name, patch)| Write::Patch { name, patch, doing: "change an instance" }));
    writes.extend(delete.into_iter().map(Write::Delete));
    for instance in mine {
        if let Some(type_) = decision.changes.get(&instance.name_any()) {
            let grant = type_.map(|type_| new_grant(instance, type_, now));
            // The resource version makes sure that the grant is given on what was seen.
            let patch = json!({"metadata": {"resourceVersion": instance.resource_version()}, "spec": {"grant": grant}});
            writes.push(Write::Patch { name: instance.name_any(), patch, doing: "grant an operation" });
        }
    }
    let results: Vec<Result<(), PoolError>> =
        stream::iter(writes).map(|w| write(cx.clone(), w)).buffer_unordered(WRITES).collect().await;
    results.into_iter().collect()
}

async fn write(cx: Arc<Context>, write: Write) -> Result<(), PoolError> {
    let api: Api<WindowsInstance> = Api::all(cx.client.clone());
    cx.metrics.wrote("WindowsInstance");
    match write {
        Write::Create(instance) => {
            let params = PostParams { field_manager: Some(MANAGER_POOL.into()), ..PostParams::default() };
            match api.create(&params, &instance).await {
                Ok(_) => Ok(()),
                // Another pool was faster, or our cache is behind: the next look tells.
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
                Err(error) => Err(failed("create an instance")(error)),
            }
        }
        Write::Patch { name, patch, doing } => {
            let params = PatchParams { field_manager: Some(MANAGER_POOL.into()), ..PatchParams::default() };
            gone_is_fine(api.patch(&name, &params, &Patch::Merge(patch)).await).map_err(failed(doing))
        }
        Write::Delete(name) => {
            gone_is_fine(api.delete(&name, &DeleteParams::default()).await).map_err(failed("delete an instance"))
        }
    }
}

/// What is gone, or was changed in between, is looked at again because of that very change.
fn gone_is_fine<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

fn new_grant(instance: &WindowsInstance, type_: GrantType, now: Timestamp) -> Grant {
    let granted_time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let seed =
        format!("{} {} {}", instance.uid().unwrap_or_default(), instance.resource_version().unwrap_or_default(), now);
    let hash = hex::encode(Sha256::digest(seed));
    let verb = match type_ {
        GrantType::Provision => "join",
        GrantType::Stage => "stage",
        GrantType::Update => "update",
        GrantType::Reboot => "reboot",
        GrantType::Repair => "repair",
        GrantType::Remove => "remove",
        GrantType::Orphan => "orphan",
    };
    Grant {
        id: format!("{verb}-{}", &hash[..10]),
        type_,
        granted_time,
        version: None,
        disruption: None,
        services: Vec::new(),
    }
}

fn tell_of(problems: &[Problem], pool: &WindowsNodePool, cx: &Context) {
    for problem in problems {
        cx.events.say(pool, Level::Warning, problem.reason, "ReadInventory", &problem.message);
    }
}

async fn add_finalizer(pool: &WindowsNodePool, cx: &Context) -> Result<(), PoolError> {
    let mut finalizers = pool.finalizers().to_vec();
    finalizers.push(FINALIZER_POOL.into());
    write_finalizers(pool, cx, &finalizers).await
}

/// The pool's last instance is gone.
async fn finish(pool: &WindowsNodePool, cx: &Context) -> Result<Action, PoolError> {
    let left: Vec<String> = pool.finalizers().iter().filter(|f| *f != FINALIZER_POOL).cloned().collect();
    if left.len() != pool.finalizers().len() {
        write_finalizers(pool, cx, &left).await?;
    }
    Ok(Action::await_change())
}

async fn write_finalizers(pool: &WindowsNodePool, cx: &Context, finalizers: &[String]) -> Result<(), PoolError> {
    let api: Api<WindowsNodePool> = Api::all(cx.client.clone());
    let patch = json!({"metadata": {"resourceVersion": pool.resource_version(), "finalizers": finalizers}});
    cx.metrics.wrote("WindowsNodePool");
    let params = PatchParams { field_manager: Some(MANAGER_POOL.into()), ..PatchParams::default() };
    gone_is_fine(api.patch(&pool.name_any(), &params, &Patch::Merge(patch)).await)
        .map_err(failed("store the pool's finalizer"))
}

async fn store(pool: &WindowsNodePool, next: WindowsNodePoolStatus, cx: &Context) -> Result<(), PoolError> {
    if pool.status.as_ref() == Some(&next) {
        return Ok(());
    }
    cx.metrics.wrote("WindowsNodePool");
    store_status(&cx.client, pool, &next).await.map_err(failed("store the pool's status"))
}

/// Stores the status of a pool; `uncleanHosts` is not ours to write. Always as an apply: what was written in another way
/// would belong to another entry of the managed fields, and stay when it is left out here.
pub async fn store_status(client: &Client, pool: &WindowsNodePool, next: &WindowsNodePoolStatus) -> kube::Result<()> {
    let api: Api<WindowsNodePool> = Api::all(client.clone());
    let mut value = json!(next);
    if let Some(map) = value.as_object_mut() {
        map.remove("uncleanHosts");
    }
    let patch = json!({
        "apiVersion": format!("{}/{}", api::names::GROUP, api::names::VERSION),
        "kind": "WindowsNodePool",
        "metadata": {"name": pool.name_any()},
        "status": value,
    });
    let params = PatchParams::apply(MANAGER_POOL).force();
    gone_is_fine(api.patch_status(&pool.name_any(), &params, &Patch::Apply(patch)).await)
}

fn record(pool: &str, members: &[Member], cx: &Context) {
    use crate::metrics::PoolState;
    let count = |f: &dyn Fn(&&Member) -> bool| i64::try_from(members.iter().filter(f).count()).unwrap_or(i64::MAX);
    for (state, value) in [
        ("ready", count(&|m| m.ready)),
        ("available", count(&|m| m.slot.available)),
        ("joined", count(&|m| m.slot.joined)),
        ("leaving", count(&|m| m.slot.leaving)),
        ("failed", count(&|m| m.slot.waits_until.is_some())),
        ("total", count(&|_| true)),
    ] {
        cx.metrics.nodes.get_or_create(&PoolState { pool: pool.into(), state }).set(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{Host, Inventory, WindowsNodePoolSpec};

    fn pool(hosts: &[(&str, &str)]) -> WindowsNodePool {
        let hosts =
            hosts.iter().map(|(n, a)| Host { name: (*n).into(), address: (*a).into(), ..Host::default() }).collect();
        let inventory = Inventory { hosts: Some(hosts) };
        WindowsNodePool::new("p", WindowsNodePoolSpec { inventory, ..WindowsNodePoolSpec::default() })
    }

    fn plan(pool: &WindowsNodePool, mine: &[Arc<WindowsInstance>]) -> Changes {
        let known: Vec<Known> = mine.iter().map(|i| known(i)).collect();
        changes(&hosts::resolve("p", &pool.spec, &known).0, mine, "1-a", pool)
    }

    #[test]
    fn instances_follow_the_inventory() {
        let first = pool(&[("a", "10.0.0.1"), ("b", "10.0.0.2")]);
        let made = plan(&first, &[]);
        assert_eq!(made.create.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["a", "b"]);
        assert!(made.create.iter().all(|i| i.finalizers() == [FINALIZER_INSTANCE]));
        let mine: Vec<_> = made.create.into_iter().map(Arc::new).collect();

        let same = plan(&first, &mine);
        assert!(same.create.is_empty() && same.update.is_empty() && same.delete.is_empty(), "{same:?}");

        let moved = plan(&pool(&[("a", "10.0.0.9")]), &mine);
        assert_eq!(moved.delete, ["b"]);
        assert_eq!(moved.update[0].1["spec"]["host"]["address"], "10.0.0.9");
    }

    #[test]
    fn what_is_no_longer_set_is_taken_back() {
        let old = InstanceHost {
            host_key: Some("k".into()),
            labels: BTreeMap::from([("a".into(), "1".into())]),
            ..InstanceHost::default()
        };
        let new = InstanceHost { labels: BTreeMap::from([("b".into(), "2".into())]), ..InstanceHost::default() };
        let value = replaced(&old, &new);
        assert!(value["hostKey"].is_null() && value["labels"]["a"].is_null());
        assert_eq!(value["labels"]["b"], "2");
    }
}
