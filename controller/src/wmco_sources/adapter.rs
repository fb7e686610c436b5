//! Pools that are made for sources of the legacy operator: written by server-side apply, so that a person may set every other field
//! of such a pool, and deleted only if no other client has ever written to it.

use api::{
    Inventory, WindowsNodePool,
    names::{GROUP, MANAGER_ADAPTER, VERSION},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;

use crate::context::Context;
use wnp_core::inventory::source_pool::is_only_ours;

/// Creates a pool whose hosts come from this source; the operator owns only this field.
pub(super) async fn make(cx: &Context, name: &str, inventory: &Inventory) -> kube::Result<()> {
    let api: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    let pool = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "WindowsNodePool",
        "metadata": {"name": name},
        "spec": {"inventory": inventory},
    });
    api.patch(name, &PatchParams::apply(MANAGER_ADAPTER), &Patch::Apply(pool)).await?;
    tracing::info!(pool = name, "created a pool for its source of hosts");
    Ok(())
}

/// Deletes a pool, unless another client has written to it. The cache does not have the owners of fields.
pub(super) async fn drop_pool(cx: &Context, name: &str) -> kube::Result<()> {
    let api: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    let Some(pool) = api.get_opt(name).await? else { return Ok(()) };
    if pool.metadata.deletion_timestamp.is_some() || !is_only_ours(pool.managed_fields()) {
        return Ok(());
    }
    let unchanged = Preconditions { uid: pool.uid(), resource_version: pool.resource_version() };
    match api.delete(name, &DeleteParams::default().preconditions(unchanged)).await {
        Ok(_) => {
            tracing::info!(pool = name, "the pool was deleted because its source of hosts does not exist any more");
            Ok(())
        }
        // Its change brings us here again.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}
