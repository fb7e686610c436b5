//! Carries out what was decided for a pool: all its writes, but that of the status.

use std::sync::Arc;

use api::{
    Reason, WindowsNodePool,
    names::{FINALIZER_POOL, MANAGER_POOL, key},
};
use jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{
    PoolContext, PoolError, failed, instances, plan::Plan, snapshot::Snapshot, store_status, write_finalizers,
};
use crate::runtime::events::EventReason;
use wnp_core::{
    acts,
    enumeration::counted,
    inventory::{
        EntryError,
        instances::{can_have_instances, writes},
        removals,
    },
};

/// Result of applying a plan.
pub(super) struct Applied {
    /// Time when the next host without a name is asked for it.
    pub next_contact: Option<Timestamp>,
}

/// Applies the plan. `None` if the pool was changed meanwhile, so that its plan is out of date.
pub(super) async fn apply(
    pool: &Arc<WindowsNodePool>,
    seen: &Snapshot,
    plan: &Plan,
    cx: &Arc<PoolContext>,
    now: Timestamp,
) -> Result<Option<Applied>, PoolError> {
    let deleting = pool.metadata.deletion_timestamp.is_some();
    let wait = cx.sources.names.ask(pool, &seen.list.to_ask, &cx.shared);
    if !deleting && !can_have_instances(pool) && !add_finalizer(pool, cx).await? {
        return Ok(None);
    }
    if !deleting && removals::is_announcement_spent(pool) && !remove_annotation(pool, key::ANNOUNCE_REMOVAL, cx).await?
    {
        return Ok(None);
    }
    if acts::is_used_up(pool, key::APPROVE_REMOVAL) {
        remove_annotation(pool, key::APPROVE_REMOVAL, cx).await?;
        return Ok(None);
    }
    // It confirms one removal, and goes first: what is not carried out then is asked for again.
    if let Some(spent) = &seen.list.spent
        && !use_approval(pool, spent, seen.list.confirmed.len(), cx).await?
    {
        return Ok(None);
    }
    let writes = writes(&plan.changes, &seen.mine, &seen.list, &plan.decision, now);
    instances::apply(pool, writes, &cx.shared).await?;
    // That a list is about to be read is no event, nor is a host that is about to go over from another pool.
    let is_news = |p: &&EntryError| p.reason != Reason::Fetching && !seen.list.going_over.contains(&p.host);
    for problem in seen.list.problems.iter().filter(is_news) {
        cx.events.say(&**pool, EventReason::Inventory(problem.reason), "ReadInventory", &problem.message);
    }
    for weak in seen.keys.weak() {
        cx.events.say(&**pool, EventReason::WeakPrivateKey, "ReadSecret", weak);
    }
    Ok(Some(Applied { next_contact: wait.and_then(|wait| now.checked_add(wait).ok()) }))
}

/// Adds the finalizer. Returns whether the pool was unchanged: one that is gone would leave the instances behind that are written for it.
async fn add_finalizer(pool: &WindowsNodePool, cx: &PoolContext) -> Result<bool, PoolError> {
    let mut finalizers = pool.finalizers().to_vec();
    finalizers.push(FINALIZER_POOL.into());
    write_finalizers(pool, cx, &finalizers).await
}

/// Removes an annotation from a pool as it was seen. Returns whether the pool was unchanged.
async fn remove_annotation(pool: &WindowsNodePool, key: &str, cx: &PoolContext) -> Result<bool, PoolError> {
    let api: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    let patch = json!({"metadata": {"resourceVersion": pool.resource_version(), "annotations": {key: null}}});
    let params = PatchParams { field_manager: Some(MANAGER_POOL.into()), ..PatchParams::default() };
    match api.patch(&pool.name_any(), &params, &Patch::Merge(patch)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
        Err(error) => Err(failed("remove an annotation of the pool")(error)),
    }
}

/// Uses up the act by which a user has confirmed a removal, of `hosts` hosts or of none. Returns whether the pool was unchanged.
async fn use_approval(
    pool: &WindowsNodePool,
    approved: &str,
    hosts: usize,
    cx: &PoolContext,
) -> Result<bool, PoolError> {
    let mut status = pool.status.clone().unwrap_or_default();
    acts::use_up(&mut status.acts, key::APPROVE_REMOVAL);
    let stored =
        store_status(&cx.cluster.client, pool, &status).await.map_err(failed("store that an approval is used"))?;
    let Some(written) = stored else { return Ok(false) };
    // If it is changed in between, the next reconcile removes it.
    if written.annotations().contains_key(key::APPROVE_REMOVAL) {
        remove_annotation(&written, key::APPROVE_REMOVAL, cx).await?;
    }
    if hosts > 0 {
        let note = format!(
            "the removal of {} was confirmed with the annotation {}",
            counted(hosts, "host"),
            key::APPROVE_REMOVAL
        );
        cx.events.say(pool, EventReason::RemovalConfirmed, "ReadInventory", &note);
    } else {
        let note = format!(
            "the annotation {}={approved} confirms no removal that waits, and is used up; the condition InventorySynced says what to confirm",
            key::APPROVE_REMOVAL
        );
        cx.events.say(pool, EventReason::ConfirmationUnused, "ReadInventory", &note);
    }
    Ok(true)
}
