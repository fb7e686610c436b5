//! Reports pools that this operator cannot read. They are in no cache, so no reconcile can report them.

use api::{
    Reason, WindowsNodePool,
    conditions::{self, Status, kind},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client, Resource,
    api::{DynamicObject, Patch, PatchParams},
    core::ApiResource,
};
use serde_json::json;

use crate::runtime::{clock, errors::api_message};

/// Reason of the conditions.
const REASON: Reason = Reason::ObjectUnreadable;

/// Reports in a pool's status that the pool cannot be read, so that no waiting client mistakes an old status for the current one. Returns
/// whether the status was stored.
pub(crate) async fn report(client: &Client, name: &str, error: &str) -> bool {
    let message = format!(
        "the pool cannot be read, and the operator does nothing for it: {error}; a newer operator may have written it: install that version again"
    );
    tracing::error!(pool = name, reason = REASON.as_str(), "{message}");
    let stored = store(client, name, &message).await;
    if let Err(error) = &stored {
        tracing::warn!(
            pool = name,
            reason = REASON.as_str(),
            "the pool's status could not be stored: {}",
            api_message(error)
        );
    }
    stored.is_ok()
}

async fn store(client: &Client, name: &str, message: &str) -> kube::Result<()> {
    let resource = ApiResource::erase::<WindowsNodePool>(&());
    let pools: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let Some(pool) = pools.get_opt(name).await? else { return Ok(()) };
    let known = pool.data["status"]["conditions"].clone();
    let mut conditions: Vec<Condition> = serde_json::from_value(known).unwrap_or_default();
    let before = conditions.clone();
    let (generation, now) = (pool.meta().generation, clock::now());
    for (type_, status) in [(kind::READY, Status::False), (kind::DEGRADED, Status::True), (kind::STALLED, Status::True)]
    {
        conditions::set(&mut conditions, type_, status, REASON, message, generation, now);
    }
    conditions::remove(&mut conditions, kind::RECONCILING);
    if conditions != before {
        let patch = json!({"status": {"observedGeneration": generation, "conditions": conditions}});
        pools.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    Ok(())
}
