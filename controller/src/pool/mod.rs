//! The pool controller: from the inventory to instances, grants, and the pool's status. Works on no host.

pub(crate) mod disruption_budget;

mod apply;
mod audit;
mod context;
#[cfg(test)]
mod cost_tests;
mod debouncer;
mod desired_state;
#[cfg(test)]
mod finalizer_tests;
mod instances;
mod keys;
mod letting_go;
mod list;
mod names;
mod plan;
#[cfg(test)]
mod refusal_tests;
mod snapshot;
mod source;
mod timers;
pub(crate) mod unread;

use std::{sync::Arc, time::Duration};

use api::{
    Reason, WindowsInstance, WindowsNodePool, WindowsNodePoolStatus,
    names::{FINALIZER_POOL, MANAGER_POOL, key},
};
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, CustomResourceExt as _, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    core::DeserializeGuard,
    runtime::{controller::Action, reflector::ObjectRef},
};
use serde_json::json;

use crate::{
    cluster::{crds, release::Warning, versions::VersionError},
    runtime::{clock, events::EventReason},
};
use wnp_core::{
    acts,
    csr::pending,
    inventory::{list::List, strays::strays},
    render::RenderError,
    rollout::grants::Decision,
    status::{
        policies,
        pool::{self as status, refuse},
    },
};

pub(crate) use context::PoolContext;
pub(crate) use debouncer::Debouncer;
pub(crate) use snapshot::plan;

use plan::Plan;
use snapshot::Snapshot;
use timers::Timers;

/// Purpose of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    /// The pool is carried out: versions that are new are stored.
    Apply,
    /// The operator only reports what it would do, without a write.
    DryRun,
}

/// Error of the reconcile of a pool.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PoolError {
    /// A request to the API server failed.
    #[error("failed to {doing}: {}", crate::runtime::errors::said(.source))]
    Api {
        /// Request, in words that complete "failed to …".
        doing: &'static str,
        /// Error of the request.
        #[source]
        source: kube::Error,
    },
    /// The services of the pool's hosts cannot be rendered.
    #[error("{0}")]
    Render(#[from] RenderError),
    /// The services of the pool's hosts cannot be stored or read.
    #[error("{0}")]
    Version(#[from] VersionError),
}

impl PoolError {
    /// Reason for conditions.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Api { .. } => Reason::ApiError,
            Self::Render(e) => e.reason(),
            Self::Version(e) => e.reason(),
        }
    }

    /// Reports whether the API server has refused a request, and will do so again
    /// until a user changes something: a quota, a policy, a webhook or a right.
    fn is_refusal(&self) -> bool {
        let source = match self {
            Self::Api { source, .. } => source,
            Self::Version(VersionError::Api { source, .. }) => source,
            Self::Render(_) | Self::Version(_) => return false,
        };
        matches!(source, kube::Error::Api(status) if matches!(status.code, 400 | 403 | 422))
    }
}

fn failed(doing: &'static str) -> impl FnOnce(kube::Error) -> PoolError {
    move |source| PoolError::Api { doing, source }
}

/// Time after which a pool with an error is reconciled again without a change.
const REFUSED_RETRY: Duration = Duration::from_mins(1);
/// Time after which a pool is reconciled again when the API server fails.
const API_RETRY: Duration = Duration::from_secs(5);

/// Returns the next action after an error.
pub(crate) fn error_policy(pool: Arc<WindowsNodePool>, error: &PoolError, cx: Arc<PoolContext>) -> Action {
    tracing::warn!(pool = pool.name_any(), %error, "the pool is reconciled again");
    cx.process
        .metrics
        .reconcile_errors
        .get_or_create(&crate::runtime::metrics::KindLabel { kind: "WindowsNodePool" })
        .inc();
    Action::requeue(API_RETRY)
}

/// Reconciles one pool.
pub(crate) async fn reconcile(pool: Arc<WindowsNodePool>, cx: Arc<PoolContext>) -> Result<Action, PoolError> {
    let now = clock::now();
    match reconcile_pool(&pool, &cx, now).await {
        // What a user or a payload has to correct is in the status.
        Err(error) if !matches!(error, PoolError::Api { .. } | PoolError::Version(VersionError::Api { .. })) => {
            store(&pool, refused(&pool, error.reason(), &error.to_string(), &cx), &cx).await?;
            Ok(Action::requeue(REFUSED_RETRY))
        }
        // So does what the API server will refuse again, for example because of a quota. It is tried again as after any other failure.
        Err(error) if error.is_refusal() => {
            store(&pool, refused(&pool, error.reason(), &error.to_string(), &cx), &cx).await?;
            Err(error)
        }
        done => done,
    }
}

/// The status of a pool that cannot be worked on, with what is seen of its nodes all the same.
pub(crate) fn refused(
    pool: &WindowsNodePool,
    reason: Reason,
    message: &str,
    cx: &PoolContext,
) -> WindowsNodePoolStatus {
    let name = pool.name_any();
    let (mine, granted) = cx.caches.instances.of_pool_and_granted(&name);
    if mine.iter().all(|i| cx.writes.grants.is_caught_up(i)) {
        cx.keep_disruptions(&name, granted);
    }
    let is_ready = |name: &String| cx.node(name).is_some_and(|node| wnp_core::node::ready(&node).0);
    let ready = mine.iter().filter(|i| !i.is_leaving()).map(|i| i.name_any()).filter(is_ready).count();
    refuse(pool, reason, message, Some(ready), clock::now())
}

async fn reconcile_pool(
    pool: &Arc<WindowsNodePool>,
    cx: &Arc<PoolContext>,
    now: Timestamp,
) -> Result<Action, PoolError> {
    let name = pool.name_any();
    let deleting = pool.metadata.deletion_timestamp.is_some();
    let (mine, granted) = cx.caches.instances.of_pool_and_granted(&name);
    if deleting {
        cx.sources.names.forget(&name);
    }
    if deleting && mine.is_empty() {
        return finish(pool, cx).await;
    }
    // A grant that was given and is not seen yet would be given a second time, to another host.
    if !mine.iter().all(|i| cx.writes.grants.is_caught_up(i)) {
        return Ok(Action::await_change());
    }
    if acts::to_record(pool, now.into()).is_some() {
        return record_acts(pool, cx, now).await;
    }
    let is_plan = pool.spec.is_plan() && !deleting;
    let intent = if is_plan { Intent::DryRun } else { Intent::Apply };
    let seen = Snapshot::observe(pool, mine, &cx.caches.instances, intent, cx, now).await?;
    if is_plan {
        return report_plan(pool, &seen, granted, cx, now).await;
    }
    // Hosts are sent only what is stored, so nothing is granted of a version that cannot be.
    seen.desired.publish(cx).await?;
    let plan = plan::decide(pool, &seen, cx, now);
    let Some(applied) = apply::apply(pool, &seen, &plan, cx, now).await? else {
        return Ok(Action::requeue(API_RETRY));
    };
    let next = report(pool, &seen, &plan, cx, now);
    store(pool, next, cx).await?;
    let observed = seen.timers(pool, &plan.decision, cx, now);
    Ok(Timers { grant: plan.decision.next, contact: applied.next_contact, ..observed }.action(now))
}

/// Records the acts of users before anything is decided by them: the tool that applies the pool may remove their annotations at any time. The record
/// brings the next reconcile.
async fn record_acts(pool: &WindowsNodePool, cx: &PoolContext, now: Timestamp) -> Result<Action, PoolError> {
    let api: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    // Caches do not keep who wrote what, and when.
    let Some(pool) = api.get_opt(&pool.name_any()).await.map_err(failed("get the pool"))? else {
        return Ok(Action::await_change());
    };
    if let Some(acts) = acts::to_record(&pool, now.into()) {
        let status = WindowsNodePoolStatus { acts, ..pool.status.clone().unwrap_or_default() };
        let stored = store_status(&cx.cluster.client, &pool, &status).await;
        stored.map_err(failed("record the acts of users"))?;
    }
    Ok(Action::requeue(API_RETRY))
}

/// Reports whether a pool sets its own limit of unavailable nodes.
fn has_own_limit(pool: &str, cx: &PoolContext) -> bool {
    let pool = cx.caches.pools.get(&ObjectRef::new(pool));
    pool.is_some_and(|p| p.spec.rollout().max_unavailable.is_some())
}

/// Reports what would be done for a pool in mode Plan. `granted` is the number of nodes that it disrupts with what was granted before.
async fn report_plan(
    pool: &Arc<WindowsNodePool>,
    seen: &Snapshot,
    granted: u32,
    cx: &Arc<PoolContext>,
    now: Timestamp,
) -> Result<Action, PoolError> {
    let name = pool.name_any();
    cx.keep_disruptions(&name, granted);
    // Names are looked up, and no host is asked.
    cx.sources.names.ask(pool, &[], &cx.shared);
    let list = seen.preview(pool, cx);
    let hosts = seen.list.hosts.len();
    let mut next = status::planned(pool, &list, hosts, &seen.members, &seen.list.problems, seen.refused(), now);
    status::warn(&mut next, warning(seen, cx).as_ref(), now);
    policies::describe(&mut next, &cx.wicd.rights.policies(), true, now);
    store(pool, next, cx).await?;
    Ok(seen.timers(pool, &Decision::default(), cx, now).action(now))
}

/// Warning of a pool in addition to its own state: requests of its nodes that are left to users, and faults of the operator and the cluster.
fn warning(seen: &Snapshot, cx: &PoolContext) -> Option<Warning> {
    let is_of_pool = |node: &str| seen.list.hosts.contains_key(node) || seen.mine.iter().any(|i| i.name_any() == node);
    let requests = pending::warning(&cx.wicd.left_to_people.all(), &is_of_pool);
    match (requests, cx.warning()) {
        (Some((why, requests)), Some((_, others))) => Some((why, format!("{requests}; {others}"))),
        (requests, others) => requests.or(others),
    }
}

/// The status of a pool whose plan was applied.
fn report(
    pool: &WindowsNodePool,
    seen: &Snapshot,
    plan: &Plan,
    cx: &PoolContext,
    now: Timestamp,
) -> WindowsNodePoolStatus {
    let deleting = pool.metadata.deletion_timestamp.is_some();
    let observed = status::ObservedPool {
        strays: &strays_of(pool, &seen.list, cx),
        list: &seen.list,
        members: &seen.members,
        decision: &plan.decision,
        course: &seen.desired.course,
        window: seen.window.as_ref(),
        deleting,
        orphan: seen.limits.orphan,
        keys: seen.keys.standing(&seen.members),
    };
    let mut next = status::next(pool, &observed, warning(seen, cx).as_ref(), now);
    policies::describe(&mut next, &cx.wicd.rights.policies(), deleting, now);
    record_events(pool, &next, cx);
    next
}

/// Nodes of the legacy list that no list names, for the pool of that list.
fn strays_of(pool: &WindowsNodePool, list: &List, cx: &PoolContext) -> Vec<String> {
    let inventory = &pool.spec.inventory;
    if pool.metadata.deletion_timestamp.is_some()
        || inventory.config_map_ref.as_ref().is_none_or(|r| r.name != api::names::WINDOWS_INSTANCES)
    {
        return Vec::new();
    }
    let all = cx.caches.instances.state();
    let hosts = all.iter().map(|i| i.name_any()).chain(list.hosts.keys().cloned()).collect();
    let unnamed = list.unnamed.iter().map(|(place, _)| place.0.clone()).collect();
    let nodes = cx.caches.nodes.state();
    strays(nodes.iter().map(|n| &**n), &hosts, &unnamed)
}

/// Reports once what begins with the next status: a change of version, its end, or a wait; and an approval that has no effect.
fn record_events(pool: &WindowsNodePool, next: &WindowsNodePoolStatus, cx: &PoolContext) {
    let before = pool.status.clone().unwrap_or_default();
    for (reason, note) in status::events(&before, next) {
        cx.events.say(pool, reason, "Rollout", &note);
    }
    if let Some(note) = next.rollout.as_ref().and_then(|rollout| acts::approval_in_vain(pool, rollout)) {
        cx.events.say(pool, EventReason::AnnotationWithoutEffect, "Approve", &note);
    }
}

/// Accepts a deletion or a change in between, which triggers another reconcile by itself. Returns whether there was none.
fn gone_is_fine<T>(result: kube::Result<T>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Releases a pool whose last instance is deleted.
async fn finish(pool: &WindowsNodePool, cx: &PoolContext) -> Result<Action, PoolError> {
    // One that was created or handed over a moment ago is in no cache yet.
    let name = pool.name_any();
    let of_pool = ListParams::default().labels(&format!("{}={name}", key::POOL));
    let api: Api<DeserializeGuard<WindowsInstance>> = Api::all(cx.cluster.client.clone());
    let left = match api.list(&of_pool).await {
        Ok(left) => left.items,
        // The kind is deleted, too.
        Err(kube::Error::Api(status)) if status.is_not_found() => Vec::new(),
        Err(error) => return Err(failed("list the pool's instances")(error)),
    };
    if left.into_iter().any(|instance| instance.0.map_or(true, |i| i.spec.pool_ref.name == name)) {
        return Ok(Action::requeue(API_RETRY));
    }
    for waiting in cx.sources.owners().forget(&name) {
        cx.wake.pool(&waiting);
    }
    cx.keep_disruptions(&name, 0);
    let left: Vec<String> = pool.finalizers().iter().filter(|f| *f != FINALIZER_POOL).cloned().collect();
    if left.len() != pool.finalizers().len() {
        write_finalizers(pool, cx, &left).await?;
    }
    Ok(Action::await_change())
}

/// Stores the finalizers of a pool as it was seen. kube's `finalizer` calls a deletion that lasts for hours an error; here it has a status.
async fn write_finalizers(pool: &WindowsNodePool, cx: &PoolContext, finalizers: &[String]) -> Result<bool, PoolError> {
    let api: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    let patch = json!({"metadata": {"resourceVersion": pool.resource_version(), "finalizers": finalizers}});
    let params = PatchParams { field_manager: Some(MANAGER_POOL.into()), ..PatchParams::default() };
    gone_is_fine(api.patch(&pool.name_any(), &params, &Patch::Merge(patch)).await)
        .map_err(failed("store the pool's finalizer"))
}

async fn store(pool: &WindowsNodePool, next: WindowsNodePoolStatus, cx: &PoolContext) -> Result<(), PoolError> {
    if pool.status.as_ref() == Some(&next) {
        return Ok(());
    }
    store_status(&cx.cluster.client, pool, &next).await.map_err(failed("store the pool's status")).map(|_| ())
}

/// Stores the status of a pool; `uncleanHosts` is not ours to write. Always as an apply: what was written in another way would belong to another
/// entry of the managed fields, and stay when it is left out here. It is stored on what was seen: the course of a rollout must not be written
/// over by an operator that was replaced. What has changed since brings us here again. Returns the pool as it was stored, if it was.
pub(crate) async fn store_status(
    client: &Client,
    pool: &WindowsNodePool,
    next: &WindowsNodePoolStatus,
) -> kube::Result<Option<WindowsNodePool>> {
    apply_status(client, pool, wnp_core::status::apply::body(next)).await
}

/// Stores of a status what the CRD of the API server has, which may be of an earlier release.
pub(crate) async fn store_known_status(
    client: &Client,
    pool: &WindowsNodePool,
    next: &WindowsNodePoolStatus,
) -> kube::Result<Option<WindowsNodePool>> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd = crds.get(WindowsNodePool::crd_name()).await?;
    let served = crd.spec.versions.iter().find(|version| version.name == api::names::VERSION);
    let schema = served.map(|version| json!(version.schema)).unwrap_or_default();
    let status = &schema["openAPIV3Schema"]["properties"]["status"];
    apply_status(client, pool, crds::known(&wnp_core::status::apply::body(next), status)).await
}

async fn apply_status(
    client: &Client,
    pool: &WindowsNodePool,
    mut value: serde_json::Value,
) -> kube::Result<Option<WindowsNodePool>> {
    let api: Api<WindowsNodePool> = Api::all(client.clone());
    if let Some(map) = value.as_object_mut() {
        map.remove("uncleanHosts");
    }
    let patch = json!({
        "apiVersion": format!("{}/{}", api::names::GROUP, api::names::VERSION),
        "kind": "WindowsNodePool",
        "metadata": {"name": pool.name_any(), "resourceVersion": pool.resource_version()},
        "status": value,
    });
    let params = PatchParams::apply(MANAGER_POOL).force();
    match api.patch_status(&pool.name_any(), &params, &Patch::Apply(patch)).await {
        Ok(written) => Ok(Some(written)),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(None),
        Err(error) => Err(error),
    }
}
