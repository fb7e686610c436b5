//! Pool controller: derives instances, grants and the pool's status from the inventory. Does not change hosts.

pub(crate) mod disruption_budget;

mod apply;
mod audit;
mod context;
mod crd_deletion;
mod debouncer;
mod desired_state;
mod instances;
mod keys;
mod list;
mod names;
mod plan;
mod snapshot;
mod source;
#[cfg(test)]
mod tests;
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
    core::{DeserializeGuard, ObjectMeta},
    runtime::{controller::Action, reflector::ObjectRef},
};
use serde_json::json;

use crate::{
    cluster::{crds, release::Warning, versions::VersionError},
    runtime::{clock, errors::unless_changed, events::EventReason},
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

/// Mode of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    /// The pool is applied, and new versions are stored.
    Apply,
    /// The operator only reports what it would do, and changes nothing.
    DryRun,
}

/// Error of the reconcile of a pool.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PoolError {
    /// A request to the API server failed.
    #[error("failed to {doing}: {}", crate::runtime::errors::api_message(.source))]
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
    /// Returns the reason for conditions.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Api { .. } => Reason::ApiError,
            Self::Render(e) => e.reason(),
            Self::Version(e) => e.reason(),
        }
    }

    /// Reports whether the API server has refused a request and will refuse it again until a user changes something, for example a quota, a policy, a
    /// webhook or a permission.
    fn is_refusal(&self) -> bool {
        let source = match self {
            Self::Api { source, .. } => source,
            Self::Version(VersionError::Api { source, .. }) => source,
            Self::Render(_) | Self::Version(_) => return false,
        };
        matches!(source, kube::Error::Api(status) if matches!(status.code, 400 | 403 | 422))
    }
}

/// Wraps an error of the API server. `doing` completes "failed to …".
fn failed(doing: &'static str) -> impl FnOnce(kube::Error) -> PoolError {
    move |source| PoolError::Api { doing, source }
}

/// Delay before a pool is reconciled again after an error that a user must correct.
const REFUSED_RETRY: Duration = Duration::from_mins(1);
/// Delay before a pool is reconciled again after an error of the API server.
const API_RETRY: Duration = Duration::from_secs(5);

/// Returns the next action after an error of the API server.
pub(crate) fn error_policy(pool: Arc<WindowsNodePool>, error: &PoolError, cx: Arc<PoolContext>) -> Action {
    tracing::warn!(pool = pool.name_any(), %error, "the pool could not be reconciled; the operator retries");
    cx.process.metrics.reconcile_failed("WindowsNodePool");
    Action::requeue(API_RETRY)
}

/// Reconciles one pool.
pub(crate) async fn reconcile(pool: Arc<WindowsNodePool>, cx: Arc<PoolContext>) -> Result<Action, PoolError> {
    let now = clock::now();
    match reconcile_pool(&pool, &cx, now).await {
        // The status reports errors that need a correction by a user, or another payload.
        Err(error) if !matches!(error, PoolError::Api { .. } | PoolError::Version(VersionError::Api { .. })) => {
            store(&pool, refused(&pool, error.reason(), &error.to_string(), &cx), &cx).await?;
            Ok(Action::requeue(REFUSED_RETRY))
        }
        // The status also reports refusals that will repeat, for example because of a quota. They are retried like any other failure.
        Err(error) if error.is_refusal() => {
            let message = format!(
                "{}. The operator retries; if this lasts, correct what refuses the request, for example a quota, an admission policy or a webhook",
                error.to_string().trim_end_matches('.')
            );
            store(&pool, refused(&pool, error.reason(), &message, &cx), &cx).await?;
            Err(error)
        }
        done => done,
    }
}

/// Returns the status of a pool that cannot be reconciled, with the observed number of its ready nodes. Frees the disruption slots that none of the
/// pool's grants uses, once the cache has all its grants.
pub(crate) fn refused(
    pool: &WindowsNodePool,
    reason: Reason,
    message: &str,
    cx: &PoolContext,
) -> WindowsNodePoolStatus {
    let name = pool.name_any();
    let (mine, granted) = cx.caches.instances.of_pool_and_granted(&name);
    if mine.iter().all(|i| cx.writes.grants.is_caught_up(i)) {
        cx.release_ungranted_disruptions(&name, granted);
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
    // The pool would give the slot of a grant that is not in the cache yet to another host, too.
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
    // Hosts get only stored versions, so no operation is granted for a version that cannot be stored.
    seen.desired.publish(cx).await?;
    let plan = plan::decide(pool, &seen, cx, now);
    let Some(applied) = apply::apply(pool, &seen, &plan, cx, now).await? else {
        return Ok(Action::requeue(API_RETRY));
    };
    let next = report(pool, &seen, &plan, cx, now);
    store(pool, next, cx).await?;
    let times = seen.times_of_change(pool, &plan.decision, cx, now);
    Ok(timers::action(times.into_iter().chain([plan.decision.next, applied.next_contact]), now))
}

/// Records the annotations with which users act on the pool, before any decision depends on them: the tool that applies the pool may remove the
/// annotations at any time. The write of the record triggers the next reconcile.
async fn record_acts(pool: &WindowsNodePool, cx: &PoolContext, now: Timestamp) -> Result<Action, PoolError> {
    let api: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    // Caches drop the managed fields, which show who wrote what, and when.
    let Some(pool) = api.get_opt(&pool.name_any()).await.map_err(failed("get the pool"))? else {
        return Ok(Action::await_change());
    };
    if let Some(acts) = acts::to_record(&pool, now.into()) {
        let status = WindowsNodePoolStatus { acts, ..pool.status.clone().unwrap_or_default() };
        let stored = store_status(&cx.cluster.client, &pool, &status).await;
        stored.map_err(failed("record the annotations of users in the pool's status"))?;
    }
    Ok(Action::requeue(API_RETRY))
}

/// Reports whether a pool sets its own limit of unavailable nodes.
fn has_own_limit(pool: &str, cx: &PoolContext) -> bool {
    let pool = cx.caches.pools.get(&ObjectRef::new(pool));
    pool.is_some_and(|p| p.spec.rollout().max_unavailable.is_some())
}

/// Reports the planned changes of a pool in mode Plan. `granted` is the number of nodes that the pool's earlier grants disrupt.
async fn report_plan(
    pool: &Arc<WindowsNodePool>,
    seen: &Snapshot,
    granted: u32,
    cx: &Arc<PoolContext>,
    now: Timestamp,
) -> Result<Action, PoolError> {
    let name = pool.name_any();
    cx.release_ungranted_disruptions(&name, granted);
    // Names are looked up, but no host is contacted to learn its name.
    cx.sources.names.ask(pool, &[], &cx.shared);
    let list = seen.preview(pool, cx);
    let hosts = seen.list.hosts.len();
    let mut next = status::planned(pool, &list, hosts, &seen.members, &seen.list.problems, seen.refused(), now);
    status::warn(&mut next, warning(seen, cx).as_ref(), now);
    policies::describe(&mut next, &cx.wicd.rights.policies(), true, now);
    store(pool, next, cx).await?;
    Ok(timers::action(seen.times_of_change(pool, &Decision::default(), cx, now), now))
}

/// Returns the warning that a pool reports in addition to its own state: certificate requests of its nodes that wait for users, and faults of the
/// operator or the cluster.
fn warning(seen: &Snapshot, cx: &PoolContext) -> Option<Warning> {
    let is_of_pool = |node: &str| seen.list.hosts.contains_key(node) || seen.mine.iter().any(|i| i.name_any() == node);
    let requests = pending::warning(&cx.wicd.manual_requests.all(), &is_of_pool);
    match (requests, cx.warning()) {
        (Some((why, requests)), Some((_, others))) => Some((why, format!("{requests}; {others}"))),
        (requests, others) => requests.or(others),
    }
}

/// Returns the status of a pool whose plan was applied, and reports events for its changes.
fn report(
    pool: &WindowsNodePool,
    seen: &Snapshot,
    plan: &Plan,
    cx: &PoolContext,
    now: Timestamp,
) -> WindowsNodePoolStatus {
    let deleting = pool.metadata.deletion_timestamp.is_some();
    let changes = seen.desired.changes();
    let observed = status::ObservedPool {
        strays: &strays_of(pool, &seen.list, cx),
        list: &seen.list,
        members: &seen.members,
        decision: &plan.decision,
        course: &seen.desired.course,
        changes: &changes,
        window: seen.window.as_ref(),
        deleting,
        orphan: seen.limits.orphan,
        keys: seen.keys.standing(&seen.members),
    };
    let mut next = status::next(pool, &observed, warning(seen, cx).as_ref(), now);
    policies::describe(&mut next, &cx.wicd.rights.policies(), deleting, now);
    record_events(pool, &next, &changes, cx);
    next
}

/// Returns the names of Nodes that the legacy operator created from its list and that no pool lists. Empty unless the pool reads that list.
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

/// Reports events for the changes from the stored status to the `next` one, such as the start or the end of a version change. Also reports an
/// approval that has no effect.
fn record_events(pool: &WindowsNodePool, next: &WindowsNodePoolStatus, changes: &str, cx: &PoolContext) {
    let before = pool.status.clone().unwrap_or_default();
    for (reason, note) in status::events(&before, next, changes) {
        cx.events.say(pool, reason, "Rollout", &note);
    }
    if let Some(note) = next.rollout.as_ref().and_then(|rollout| acts::ineffective_approval_note(pool, rollout)) {
        cx.events.say(pool, EventReason::AnnotationWithoutEffect, "Approve", &note);
    }
}

/// Removes the finalizer of a deleted pool once its last instance is gone.
async fn finish(pool: &WindowsNodePool, cx: &PoolContext) -> Result<Action, PoolError> {
    // An instance that was just created or handed over may not be in the cache yet.
    let name = pool.name_any();
    let of_pool = ListParams::default().labels(&format!("{}={name}", key::POOL));
    let api: Api<DeserializeGuard<WindowsInstance>> = Api::all(cx.cluster.client.clone());
    let left = match api.list(&of_pool).await {
        Ok(left) => left.items,
        // The CRD is deleted, too.
        Err(kube::Error::Api(status)) if status.is_not_found() => Vec::new(),
        Err(error) => return Err(failed("list the WindowsInstances of the pool")(error)),
    };
    if left.into_iter().any(|instance| instance.0.map_or(true, |i| i.spec.pool_ref.name == name)) {
        return Ok(Action::requeue(API_RETRY));
    }
    cx.wake.pools(cx.sources.owners().forget(&name));
    cx.sources.git.forget(&name);
    cx.release_ungranted_disruptions(&name, 0);
    let left: Vec<String> = pool.finalizers().iter().filter(|f| *f != FINALIZER_POOL).cloned().collect();
    if left.len() != pool.finalizers().len() {
        write_finalizers(pool, cx, &left).await?;
    }
    Ok(Action::await_change())
}

/// Stores the finalizers of a pool as it was read. Returns false if the pool has changed since. kube's `finalizer` is not used, because it treats a
/// deletion that lasts for hours as an error.
async fn write_finalizers(pool: &WindowsNodePool, cx: &PoolContext, finalizers: &[String]) -> Result<bool, PoolError> {
    write_metadata(pool, cx, json!({"finalizers": finalizers}), "store the pool's finalizer").await
}

/// Changes the metadata of a pool as it was read. Returns false if the pool has changed since.
async fn write_metadata(
    pool: &WindowsNodePool,
    cx: &PoolContext,
    mut metadata: serde_json::Value,
    doing: &'static str,
) -> Result<bool, PoolError> {
    let api: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    metadata["resourceVersion"] = json!(pool.resource_version());
    let patch = Patch::Merge(json!({"metadata": metadata}));
    let written = unless_changed(api.patch(&pool.name_any(), &PatchParams::apply(MANAGER_POOL), &patch).await);
    Ok(written.map_err(failed(doing))?.is_some())
}

/// Stores the status, if it has changed.
async fn store(pool: &WindowsNodePool, next: WindowsNodePoolStatus, cx: &PoolContext) -> Result<(), PoolError> {
    if pool.status.as_ref() == Some(&next) {
        return Ok(());
    }
    store_status(&cx.cluster.client, pool, &next).await.map_err(failed("store the pool's status")).map(|_| ())
}

/// Stores the status of a pool except `uncleanHosts`, which the instance controller writes. Uses server-side apply, so that omitted fields are
/// removed. The write is bound to the resource version that was read: a replaced operator must not overwrite the rollout's progress. Returns the
/// stored pool, or `None` after a conflict, which triggers another reconcile.
pub(crate) async fn store_status(
    client: &Client,
    pool: &WindowsNodePool,
    next: &WindowsNodePoolStatus,
) -> kube::Result<Option<WindowsNodePool>> {
    apply_status(client, pool, wnp_core::status::apply::body(next)).await
}

/// Stores the fields of a status that the CRD in the API server has, because the CRD may be of an earlier release.
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
    value: serde_json::Value,
) -> kube::Result<Option<WindowsNodePool>> {
    let api: Api<WindowsNodePool> = Api::all(client.clone());
    let (params, patch) = status_patch(&pool.metadata, value);
    unless_changed(api.patch_status(&pool.name_any(), &params, &patch).await)
}

/// Returns the parameters and the patch that store a pool's status with server-side apply. Leaves out `uncleanHosts`, which the instance controller
/// writes.
fn status_patch(pool: &ObjectMeta, mut value: serde_json::Value) -> (PatchParams, Patch<serde_json::Value>) {
    if let Some(map) = value.as_object_mut() {
        map.remove("uncleanHosts");
    }
    let patch = json!({
        "apiVersion": format!("{}/{}", api::names::GROUP, api::names::VERSION),
        "kind": "WindowsNodePool",
        "metadata": {"name": pool.name, "resourceVersion": pool.resource_version},
        "status": value,
    });
    (PatchParams::apply(MANAGER_POOL).force(), Patch::Apply(patch))
}
