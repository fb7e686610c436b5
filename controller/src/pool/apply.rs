//! Carries out the plan of a pool: makes all its writes, except the report in the status.

use std::sync::Arc;

use api::{
    Reason, WindowsNodePool,
    names::{FINALIZER_POOL, key},
};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

use super::{
    PoolContext, PoolError, failed, instances, plan::Plan, snapshot::Snapshot, store_status, write_finalizers,
    write_metadata,
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
    /// Time of the next contact with a host to learn its name, if one is due.
    pub next_contact: Option<Timestamp>,
}

/// Applies the plan. Returns `None` if the plan is out of date: the pool has changed, or a used annotation was removed from it.
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
    // An approval confirms one removal, and is used up first: a removal that fails afterwards needs a new approval.
    if let Some(spent) = &seen.list.spent
        && !use_approval(pool, spent, seen.list.confirmed.len(), cx).await?
    {
        return Ok(None);
    }
    let writes = writes(&plan.changes, &seen.mine, &seen.list, &plan.decision, now);
    instances::apply(pool, writes, &cx.shared).await?;
    // No event is reported for a list that is still being fetched, or for a host that is about to move here from another pool.
    let is_news = |p: &&EntryError| p.reason != Reason::Fetching && !seen.list.pending_moves.contains(&p.host);
    for problem in seen.list.problems.iter().filter(is_news) {
        cx.events.say(&**pool, EventReason::Inventory(problem.reason), "ReadInventory", &problem.message);
    }
    for weak in seen.keys.weak() {
        cx.events.say(&**pool, EventReason::WeakPrivateKey, "ReadSecret", weak);
    }
    Ok(Some(Applied { next_contact: wait.and_then(|wait| now.checked_add(wait).ok()) }))
}

/// Adds the finalizer. Returns false if the pool has changed or is gone: instances written for a deleted pool would be left behind.
async fn add_finalizer(pool: &WindowsNodePool, cx: &PoolContext) -> Result<bool, PoolError> {
    let mut finalizers = pool.finalizers().to_vec();
    finalizers.push(FINALIZER_POOL.into());
    write_finalizers(pool, cx, &finalizers).await
}

/// Removes an annotation from the pool as it was read. Returns false if the pool has changed since.
async fn remove_annotation(pool: &WindowsNodePool, key: &str, cx: &PoolContext) -> Result<bool, PoolError> {
    write_metadata(pool, cx, json!({"annotations": {key: null}}), "remove an annotation of the pool").await
}

/// Records that the approval of a removal is used up. `hosts` is the number of hosts whose removal it confirms, or 0 if it matches no pending
/// removal. Returns false if the pool has changed since.
async fn use_approval(
    pool: &WindowsNodePool,
    approved: &str,
    hosts: usize,
    cx: &PoolContext,
) -> Result<bool, PoolError> {
    let mut status = pool.status.clone().unwrap_or_default();
    acts::use_up(&mut status.acts, key::APPROVE_REMOVAL);
    let stored = store_status(&cx.cluster.client, pool, &status)
        .await
        .map_err(failed("record in the pool's status that an approval is used up"))?;
    let Some(written) = stored else { return Ok(false) };
    // If the pool changes in between, the next reconcile removes the annotation.
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
            "the annotation {}={approved} has no effect, because it does not match a removal that waits for an approval. If a removal waits, the \
             condition InventorySynced has the number of its hosts",
            key::APPROVE_REMOVAL
        );
        cx.events.say(pool, EventReason::ConfirmationUnused, "ReadInventory", &note);
    }
    Ok(true)
}
