//! Writes the instances of a pool: creates, changes and marks them as leaving according to the host list, and grants operations according to the
//! plan.

use std::sync::Arc;

use api::{WindowsInstance, WindowsNodePool, names::MANAGER_POOL};
use futures::{StreamExt, stream};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    runtime::reflector::ObjectRef,
};

use super::{PoolError, audit::HostEvent, failed};
use crate::{context::Context, runtime::errors::unless_changed};
use serde_json::json;
use wnp_core::inventory::instances::{Move, Update, Write, can_have_instances};

/// Maximum number of concurrent writes to the API server for one pool.
const WRITES: usize = 16;
/// Maximum number of attempts to return an instance from a pool that is gone.
const MOVES_BACK: usize = 10;

/// Writes the changes that follow from the inventory and the plan.
pub(super) async fn apply(pool: &WindowsNodePool, writes: Vec<Write>, cx: &Arc<Context>) -> Result<(), PoolError> {
    let results: Vec<Result<Option<WindowsInstance>, PoolError>> =
        stream::iter(writes).map(|w| write(cx.clone(), w)).buffer_unordered(WRITES).collect().await;
    let mut new: Vec<WindowsInstance> = results.iter().flatten().flatten().cloned().collect();
    new.sort_by_key(ResourceExt::name_any);
    cx.record_admitted(pool, &new);
    results.into_iter().try_for_each(|result| result.map(|_| ()))
}

/// Carries out a write. Returns the instance if it was created.
async fn write(cx: Arc<Context>, write: Write) -> Result<Option<WindowsInstance>, PoolError> {
    let api: Api<WindowsInstance> = Api::all(cx.cluster.client.clone());
    let params = PatchParams::apply(MANAGER_POOL);
    match write {
        Write::Create(instance) => {
            let params = PostParams { field_manager: Some(MANAGER_POOL.into()), ..PostParams::default() };
            match api.create(&params, &instance).await {
                Ok(written) => {
                    cx.record_host_event(&written, &HostEvent::Admitted);
                    return Ok(Some(written));
                }
                // Another pool was faster, or the cache is stale: the next reconcile observes it.
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(error) => return Err(failed("create a WindowsInstance")(error)),
            }
        }
        // The other pool may have been deleted since the move was decided.
        Write::Update(Update { moves: Some(Move { to, .. }), .. })
            if cx.caches.unreadable.has("WindowsNodePool", &to)
                || !cx.caches.pools.get(&ObjectRef::new(&to)).is_some_and(|to| can_have_instances(&to)) => {}
        Write::Update(Update { name, patch, changed, moves, returns }) => {
            // A move is not retried automatically, because the other pool may be gone by then.
            let api = if moves.is_some() { Api::all(cx.cluster.direct.clone()) } else { api };
            let written = unless_changed(api.patch(&name, &params, &Patch::Merge(patch)).await);
            let Some(written) = written.map_err(failed("change a WindowsInstance"))? else { return Ok(None) };
            if returns {
                cx.writes.grants.note(&written);
                cx.record_host_event(&written, &HostEvent::Returned);
            }
            match moves {
                Some(moves) if is_received(&cx, &moves).await? => {
                    cx.record_host_event(&written, &HostEvent::Moved { to: moves.to });
                }
                Some(moves) => move_back(&cx, &written, moves).await?,
                None if changed => cx.record_host_event(&written, &HostEvent::Changed),
                None => {}
            }
        }
        Write::Grant { name, patch } => {
            let written = unless_changed(api.patch(&name, &params, &Patch::Merge(patch)).await);
            if let Some(written) = written.map_err(failed("grant an operation to a WindowsInstance"))? {
                cx.writes.grants.note(&written);
            }
        }
        Write::Leave { name, patch, mark, why, revision } => {
            let written = match (api.patch(&name, &params, &Patch::Merge(patch)).await, mark) {
                (Err(kube::Error::Api(status)), Some(mark)) if status.is_conflict() => {
                    api.patch(&name, &params, &Patch::Merge(mark)).await
                }
                (written, _) => written,
            };
            if let Some(written) = unless_changed(written).map_err(failed("mark a WindowsInstance as leaving"))? {
                cx.writes.grants.note(&written);
                cx.record_host_event(&written, &HostEvent::Dismissed { why, revision });
            }
        }
    }
    Ok(None)
}

/// Reports whether the pool to which an instance was moved will have seen the instance before the pool is gone. A pool that was deleted before the
/// move may have listed its instances already.
async fn is_received(cx: &Context, moves: &Move) -> Result<bool, PoolError> {
    let pools: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    let to = pools.get_opt(&moves.to).await.map_err(failed("get the pool to which a WindowsInstance was moved"))?;
    Ok(to.is_some_and(|to| to.uid() == moves.uid && can_have_instances(&to)))
}

/// Returns an instance to its pool, unless the instance no longer belongs to the other pool, is marked as leaving or is being deleted. After a
/// conflict with another write, for example of its status, tries again.
async fn move_back(cx: &Context, moved: &WindowsInstance, moves: Move) -> Result<(), PoolError> {
    let api: Api<WindowsInstance> = Api::all(cx.cluster.client.clone());
    let (name, params, mut patch) = (moved.name_any(), PatchParams::apply(MANAGER_POOL), moves.back);
    for _ in 0..MOVES_BACK {
        let found = api.get_opt(&name).await.map_err(failed("get a moved WindowsInstance"))?;
        let Some(found) = found.filter(|found| {
            let is_same = found.uid() == moved.uid() && found.spec.pool_ref.name == moves.to;
            is_same && found.spec.leaving.is_none() && !found.is_deleting()
        }) else {
            return Ok(());
        };
        patch["metadata"]["resourceVersion"] = json!(found.resource_version());
        let written = unless_changed(api.patch(&name, &params, &Patch::Merge(&patch)).await);
        if written.map_err(failed("return a WindowsInstance to its pool"))?.is_some() {
            return Ok(());
        }
    }
    let (instance, pool) = (name, moves.to);
    tracing::warn!(
        instance,
        pool,
        "the WindowsInstance was moved to a pool that is gone, and could not be returned to its own pool, because other clients keep changing it. \
         If the other pool stays gone, the condition Ready of the WindowsInstance names the remedies"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use api::WindowsNodePoolSpec;
    use jiff::Timestamp;
    use kube::ResourceExt;
    use serde_json::json;
    use wnp_core::{
        inventory::{
            instances::{Changes, writes},
            list::List,
        },
        rollout::grants::Decision,
    };

    use super::*;
    use crate::instance::test_bed::{Bed, INSTANCE};

    /// A confirmation is used up before the removal is marked. A conflict with a write of the host's status must not require another confirmation.
    #[tokio::test]
    async fn a_confirmed_removal_is_marked_although_the_status_changes_meanwhile() {
        let bed = Bed::new().await;
        let instance = Arc::new(bed.instance(&json!({}), &json!({}), &json!({})));
        for (about, confirmed, count) in [("confirmed", true, 2), ("to be decided again", false, 1)] {
            bed.api.forget("PATCH", INSTANCE).fail("PATCH", INSTANCE, 409, "Conflict", "it was changed", json!(null));
            bed.api.on("PATCH", INSTANCE, 200, json!(&*instance));
            let before = bed.api.calls("PATCH", INSTANCE).len();
            let list =
                List { confirmed: confirmed.then(|| instance.name_any()).into_iter().collect(), ..List::default() };
            let changes = Changes { leave: vec![instance.name_any()], ..Changes::default() };
            let (mine, now) = ([instance.clone()], Timestamp::now());
            let pool = WindowsNodePool::new("p", WindowsNodePoolSpec::default());
            apply(&pool, writes(&changes, &mine, &list, &Decision::default(), now), &bed.cx).await.unwrap();
            let calls = bed.api.calls("PATCH", INSTANCE).split_off(before);
            assert_eq!(calls.len(), count, "{about}: {calls:#?}");
            let last = &calls[count - 1].body;
            assert_eq!(last["spec"]["leaving"]["confirmed"].as_bool().unwrap_or_default(), confirmed, "{about}");
            assert_eq!(last["metadata"]["resourceVersion"].is_null(), confirmed, "{about}: {last}");
            assert_eq!(last["metadata"]["uid"] == "i-1", confirmed, "{about}: another instance of the name: {last}");
        }
    }
}
