//! The pool controller: from the inventory to instances, grants, and the pool's status. Works on no host.

mod audit;
mod blocked;
mod context;
mod debouncer;
mod departing;
mod desired_state;
mod instances;
mod keys;
mod letting_go;
mod list;
mod members;
mod names;
mod preview;
mod rights;
mod snapshot;
mod source;
mod status;
mod strays;

use std::{sync::Arc, time::Duration};

use api::{
    WindowsInstance, WindowsNodePool, WindowsNodePoolStatus,
    names::{FINALIZER_POOL, MANAGER_POOL, key},
};
use jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::controller::Action,
};
use serde_json::json;

use crate::{
    events::EventReason,
    inventory::hosts::{EntryError, Known},
    versions::VersionError,
};
use wnp_core::{
    render::RenderError,
    rollout::grants::{Candidate, Limits, decide},
};

pub use context::PoolContext;
pub use debouncer::Debouncer;
pub use preview::{is_idle, summary};
pub use snapshot::{Planned, plan};
pub use status::refuse;

use members::{Member, soonest_available};
use snapshot::Snapshot;

/// Purpose of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    /// To carry it out: versions that are new are stored.
    Apply,
    /// To report what the operator would do, without a write.
    DryRun,
}

/// The first names of a list, and how many more there are: a message must not grow with the pool.
fn some(names: &[String]) -> String {
    let shown = names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        0..=3 => shown,
        n => format!("{shown} and {} more", n - 3),
    }
}

/// A pool could not be reconciled.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The API server did not do what was asked.
    #[error("failed to {doing}: {}", crate::errors::said(.source))]
    Api {
        /// What was asked.
        doing: &'static str,
        /// Why not.
        #[source]
        source: kube::Error,
    },
    /// The services of its hosts cannot be rendered.
    #[error("{0}")]
    Render(#[from] RenderError),
    /// The services of its hosts cannot be stored or read.
    #[error("{0}")]
    Version(#[from] VersionError),
}

impl PoolError {
    /// Reason for conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Api { .. } => "ApiError",
            Self::Render(e) => e.reason(),
            Self::Version(e) => e.reason(),
        }
    }
}

fn failed(doing: &'static str) -> impl FnOnce(kube::Error) -> PoolError {
    move |source| PoolError::Api { doing, source }
}

/// Time after which a pool with an error is reconciled again without a change.
const REFUSED_RETRY: Duration = Duration::from_mins(1);
/// When the API server fails us, look again after this time.
const API_RETRY: Duration = Duration::from_secs(5);

/// What to do after an error.
pub fn error_policy(pool: Arc<WindowsNodePool>, error: &PoolError, cx: Arc<PoolContext>) -> Action {
    tracing::warn!(pool = pool.name_any(), %error, "the pool is reconciled again");
    cx.process.metrics.reconcile_errors.get_or_create(&crate::metrics::KindLabel { kind: "WindowsNodePool" }).inc();
    Action::requeue(API_RETRY)
}

/// Reconciles one pool.
pub async fn reconcile(pool: Arc<WindowsNodePool>, cx: Arc<PoolContext>) -> Result<Action, PoolError> {
    let now = Timestamp::now();
    let name = pool.name_any();
    let deleting = pool.metadata.deletion_timestamp.is_some();

    // Dereference, validate, plan.
    let all = cx.caches.instances.state();
    let mine: Vec<Arc<WindowsInstance>> = all.iter().filter(|i| i.spec.pool_ref.name == name).cloned().collect();
    if deleting {
        cx.sources.names.forget(&name);
    }
    if deleting && mine.is_empty() {
        cx.sources.claims.forget(&name);
        return finish(&pool, &cx).await;
    }
    // A grant that was given and is not seen yet would be given a second time, to another host.
    if !mine.iter().all(|i| cx.writes.grants.is_caught_up(i)) {
        return Ok(Action::await_change());
    }
    let known: Vec<Known> = all.iter().map(|i| known(i)).collect();
    let is_plan = pool.spec.is_plan() && !deleting;
    let intent = if is_plan { Intent::DryRun } else { Intent::Apply };
    let look = match Snapshot::observe(&pool, mine, &known, intent, &cx, now).await {
        Ok(look) => look,
        Err(error) if error.reason() == "ApiError" => return Err(error),
        Err(error) => {
            let status = refuse(&pool, error.reason(), &error.to_string(), now);
            store(&pool, status, &cx).await?;
            return Ok(Action::requeue(REFUSED_RETRY));
        }
    };
    if is_plan {
        cx.disruptions.forget(&name);
        // Names are looked up, and no host is asked.
        cx.sources.names.ask(&pool, &[], &cx.shared);
        let list = look.preview(&pool, &cx);
        let mut status = status::planned(&pool, &list, look.list.hosts.len(), &look.members, &look.list.problems, now);
        rights::say(&mut status, cx.wicd.rights.problem().as_ref(), true, now);
        store(&pool, status, &cx).await?;
        record(&name, &look.members, &cx);
        return Ok(Action::await_change());
    }
    let Snapshot { mine, list, window, desired, members, limits, keys, .. } = look;
    let asked_again = cx.sources.names.ask(&pool, &list.to_ask, &cx.shared).and_then(|wait| now.checked_add(wait).ok());
    let changes = instances::changes(&list, &mine, &desired.for_new_hosts(limits.open, &cx), &pool, &cx.caches.pools);
    let candidates: Vec<Candidate> = members.iter().map(|m| m.candidate.clone()).collect();
    let cap = cx.process.args.max_disruptions;
    let decision =
        cx.disruptions.decide(&name, cap, &all, |others| decide(&candidates, &Limits { others, ..limits }, now));

    // Apply.
    if !deleting && !pool.finalizers().iter().any(|f| f == FINALIZER_POOL) {
        add_finalizer(&pool, &cx).await?;
    }
    // It confirms one removal, and goes first: what is not carried out then is asked for again.
    if let Some(spent) = &list.spent
        && !use_approval(&pool, spent, list.confirmed.len(), &cx).await?
    {
        return Ok(Action::requeue(API_RETRY));
    }
    instances::apply(changes, &mine, &list, &decision, &cx.shared, now).await?;
    tell_of(&list.problems, &pool, &cx);
    for weak in keys.weak() {
        cx.events.say(&*pool, EventReason::WeakPrivateKey, "ReadSecret", weak);
    }

    // Status.
    let seen = status::ObservedPool {
        strays: &strays_of(&pool, &list, &all, &cx),
        list: &list,
        members: &members,
        decision: &decision,
        course: &desired.course,
        window: window.as_ref(),
        deleting,
        keys: keys.standing(&members),
    };
    let mut next = status::next(&pool, &seen, cx.warning.as_ref(), now);
    rights::say(&mut next, cx.wicd.rights.problem().as_ref(), deleting, now);
    tell_of_course(&pool, &next, &cx);
    store(&pool, next, &cx).await?;
    record(&name, &members, &cx);
    let window_changes = window.ok().and_then(|w| w.closes.or_else(|| w.opens.map(|o| o.1)));
    let soonest = soonest_available(&members, pool.spec.rollout().min_ready(), now, &cx);
    let keys_again = keys.look_again().and_then(|wait| now.checked_add(wait).ok());
    // An instance that has gone over to another pool wakes that one, and not the pool that is only waiting to be rid of it.
    let handed_over = (deleting && !list.moves.is_empty()).then(|| now + jiff::SignedDuration::from_secs(1));
    let certificates =
        members.iter().filter_map(|m| desired_state::wicd_certificate_end(&m.instance)).filter(|at| *at > now).min();
    let wake = [
        decision.next,
        certificates,
        keys_again,
        desired.course.next,
        window_changes,
        soonest,
        asked_again,
        list.next,
        handed_over,
    ]
    .into_iter()
    .flatten()
    .filter(|at| *at > now)
    .min();
    Ok(wake.map_or_else(Action::await_change, |at| {
        Action::requeue(Duration::try_from(at.duration_since(now)).unwrap_or_default().max(Duration::from_millis(200)))
    }))
}

/// Nodes of the legacy list that no list names, for the pool of that list.
fn strays_of(pool: &WindowsNodePool, list: &list::List, all: &[Arc<WindowsInstance>], cx: &PoolContext) -> Vec<String> {
    let inventory = &pool.spec.inventory;
    if pool.metadata.deletion_timestamp.is_some()
        || inventory.config_map_ref.as_ref().is_none_or(|r| r.name != api::names::WINDOWS_INSTANCES)
    {
        return Vec::new();
    }
    let hosts = all.iter().map(|i| i.name_any()).chain(list.hosts.keys().cloned()).collect();
    let unnamed = list.unnamed.iter().map(|(place, _)| place.0.clone()).collect();
    let nodes = cx.caches.nodes.state();
    strays::strays(nodes.iter().map(|n| &**n), &hosts, &unnamed)
}

/// Reports once when a change begins, is rolled back and is complete.
fn tell_of_course(pool: &WindowsNodePool, next: &WindowsNodePoolStatus, cx: &PoolContext) {
    let before = pool.status.as_ref().and_then(|s| s.rollout.as_ref());
    let Some(now) = &next.rollout else { return };
    let same = before.is_some_and(|b| b.to_version == now.to_version);
    let from = now.from_version.as_deref().unwrap_or("another version");
    if !same && !now.completed {
        let note = format!("nodes change from {from} to version {}", now.to_version);
        cx.events.say(pool, EventReason::RolloutStarted, "Rollout", &note);
    }
    if same && now.rolled_back && !before.is_some_and(|b| b.rolled_back) {
        let note = format!("too many nodes failed to follow version {}; all return to {from}", now.to_version);
        cx.events.say(pool, EventReason::RolledBack, "Rollout", &note);
    }
    if same && now.completed && !before.is_some_and(|b| b.completed) {
        let note = format!("all nodes follow version {}", now.to_version);
        cx.events.say(pool, EventReason::RolloutCompleted, "Rollout", &note);
    }
}

pub(crate) fn known(instance: &WindowsInstance) -> Known {
    let host = &instance.spec.host;
    let proven = instance.status.as_ref().and_then(|s| s.proven_at.as_ref());
    Known {
        name: instance.name_any(),
        address: host.address.clone(),
        port: host.port,
        pool: instance.spec.pool_ref.name.clone(),
        is_elsewhere: proven.is_some_and(|p| (&p.address, p.port) != (&host.address, host.port)),
    }
}

/// A deletion or a change in between triggers another reconcile by itself.
fn gone_is_fine<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

fn tell_of(problems: &[EntryError], pool: &WindowsNodePool, cx: &PoolContext) {
    for problem in problems {
        cx.events.say(pool, EventReason::Inventory(problem.reason), "ReadInventory", &problem.message);
    }
}

async fn add_finalizer(pool: &WindowsNodePool, cx: &PoolContext) -> Result<(), PoolError> {
    let mut finalizers = pool.finalizers().to_vec();
    finalizers.push(FINALIZER_POOL.into());
    write_finalizers(pool, cx, &finalizers).await
}

/// Removes the annotation with which a person has confirmed a removal, of `hosts` hosts or of none. Returns whether it was unchanged.
async fn use_approval(
    pool: &WindowsNodePool,
    approved: &str,
    hosts: usize,
    cx: &PoolContext,
) -> Result<bool, PoolError> {
    let api: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    let patch =
        json!({"metadata": {"resourceVersion": pool.resource_version(), "annotations": {key::APPROVE_REMOVAL: null}}});
    cx.process.metrics.wrote("WindowsNodePool");
    let params = PatchParams { field_manager: Some(MANAGER_POOL.into()), ..PatchParams::default() };
    match api.patch(&pool.name_any(), &params, &Patch::Merge(patch)).await {
        Ok(_) if hosts > 0 => {
            let note =
                format!("the removal of {hosts} hosts was confirmed with the annotation {}", key::APPROVE_REMOVAL);
            cx.events.say(pool, EventReason::RemovalConfirmed, "ReadInventory", &note);
            Ok(true)
        }
        Ok(_) => {
            let note = format!(
                "the annotation {}={approved} confirms no removal that waits, and was removed; the condition InventorySynced says what to confirm",
                key::APPROVE_REMOVAL
            );
            cx.events.say(pool, EventReason::ConfirmationUnused, "ReadInventory", &note);
            Ok(true)
        }
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
        Err(error) => Err(failed("remove an annotation of the pool")(error)),
    }
}

/// The pool's last instance is deleted.
async fn finish(pool: &WindowsNodePool, cx: &PoolContext) -> Result<Action, PoolError> {
    let left: Vec<String> = pool.finalizers().iter().filter(|f| *f != FINALIZER_POOL).cloned().collect();
    if left.len() != pool.finalizers().len() {
        write_finalizers(pool, cx, &left).await?;
    }
    Ok(Action::await_change())
}

async fn write_finalizers(pool: &WindowsNodePool, cx: &PoolContext, finalizers: &[String]) -> Result<(), PoolError> {
    let api: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    let patch = json!({"metadata": {"resourceVersion": pool.resource_version(), "finalizers": finalizers}});
    cx.process.metrics.wrote("WindowsNodePool");
    let params = PatchParams { field_manager: Some(MANAGER_POOL.into()), ..PatchParams::default() };
    gone_is_fine(api.patch(&pool.name_any(), &params, &Patch::Merge(patch)).await)
        .map_err(failed("store the pool's finalizer"))
}

async fn store(pool: &WindowsNodePool, next: WindowsNodePoolStatus, cx: &PoolContext) -> Result<(), PoolError> {
    if pool.status.as_ref() == Some(&next) {
        return Ok(());
    }
    cx.process.metrics.wrote("WindowsNodePool");
    store_status(&cx.cluster.client, pool, &next).await.map_err(failed("store the pool's status"))
}

/// Stores the status of a pool; `uncleanHosts` is not ours to write. Always as an apply: what was written in another way
/// would belong to another entry of the managed fields, and stay when it is left out here. It is stored on what was seen: the course of
/// a rollout must not be written over by an operator that was replaced. What has changed since brings us here again.
pub async fn store_status(client: &Client, pool: &WindowsNodePool, next: &WindowsNodePoolStatus) -> kube::Result<()> {
    let api: Api<WindowsNodePool> = Api::all(client.clone());
    let mut value = json!(next);
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
    gone_is_fine(api.patch_status(&pool.name_any(), &params, &Patch::Apply(patch)).await)
}

fn record(pool: &str, members: &[Member], cx: &PoolContext) {
    use crate::metrics::PoolState;
    let count = |f: &dyn Fn(&&Member) -> bool| i64::try_from(members.iter().filter(f).count()).unwrap_or(i64::MAX);
    for (state, value) in [
        ("ready", count(&|m| m.candidate.ready)),
        ("available", count(&|m| m.candidate.available)),
        ("joined", count(&|m| m.candidate.joined)),
        ("updated", count(&|m| m.candidate.joined && m.candidate.change.is_none())),
        ("leaving", count(&|m| m.candidate.leaving)),
        ("failed", count(&|m| m.candidate.waits_until.is_some() || m.candidate.failed)),
        ("total", count(&|_| true)),
    ] {
        cx.process.metrics.nodes.get_or_create(&PoolState { pool: pool.into(), state }).set(value);
    }
}
