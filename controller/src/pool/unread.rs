//! Reports pools that this operator cannot read. Their current state is in no cache, so no reconcile can report it.

use api::{
    Reason, WindowsNodePool,
    conditions::{self, Status, kind},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Client, api::DynamicObject, core::ApiResource};
use serde_json::json;

use super::status_patch;
use crate::runtime::{
    clock,
    errors::{api_message, unless_changed},
};

/// Reason of the conditions.
const REASON: Reason = Reason::ObjectUnreadable;

/// Reports in a pool's status that the pool cannot be read, so that no waiting client mistakes an old status for the current one. Returns true if the
/// report is stored or the pool no longer exists, and false if the report must be repeated.
pub(crate) async fn report(client: &Client, name: &str, error: &str) -> bool {
    let message = format!(
        "the pool cannot be read, and the operator does nothing for it: {error}. If a newer version of the operator has written the pool, install that \
         version again; otherwise, correct the pool"
    );
    tracing::error!(pool = name, reason = REASON.as_str(), "{message}");
    match store(client, name, &message).await {
        Ok(is_stored) => is_stored,
        Err(error) => {
            let reason = REASON.as_str();
            tracing::warn!(
                pool = name,
                reason,
                "the pool's status could not be stored; the operator retries: {}",
                api_message(&error)
            );
            false
        }
    }
}

/// Stores the conditions. Returns false if the pool was changed in the meantime. The whole status is applied, because server-side apply removes the
/// fields that it omits.
async fn store(client: &Client, name: &str, message: &str) -> kube::Result<bool> {
    let resource = ApiResource::erase::<WindowsNodePool>(&());
    let pools: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let Some(pool) = pools.get_opt(name).await? else { return Ok(true) };
    let mut status = pool.data["status"].as_object().cloned().unwrap_or_default();
    let known = status.get("conditions").cloned().unwrap_or_default();
    let mut conditions: Vec<Condition> = serde_json::from_value(known).unwrap_or_default();
    let before = conditions.clone();
    let (generation, now) = (pool.metadata.generation, clock::now());
    for (type_, status) in [(kind::READY, Status::False), (kind::DEGRADED, Status::True), (kind::STALLED, Status::True)]
    {
        conditions::set(&mut conditions, type_, status, REASON, message, generation, now);
    }
    conditions::remove(&mut conditions, kind::RECONCILING);
    if conditions == before {
        return Ok(true);
    }
    status.insert("observedGeneration".into(), json!(generation));
    status.insert("conditions".into(), json!(conditions));
    let (params, patch) = status_patch(&pool.metadata, wnp_core::status::apply::body(&status));
    Ok(unless_changed(pools.patch_status(name, &params, &patch).await)?.is_some())
}
