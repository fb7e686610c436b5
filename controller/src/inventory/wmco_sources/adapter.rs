//! Pools that the operator creates for sources of WMCO. Users may set every field of such a pool, but a pool with another source no longer belongs to
//! its source. The operator deletes such a pool only if no other client owns any of its fields.

use std::collections::HashSet;

use api::{
    Inventory, Mode, WindowsNodePool, WindowsNodePoolSpec,
    names::{MANAGER_ADAPTER, key},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::reflector::ObjectRef,
};
use serde_json::{Value, json};

use crate::{context::Context, runtime::events::EventReason};
use wnp_core::{
    inventory::{
        source_pool::is_only_ours,
        wmco_nodes::{takeover_waits, wmco_nodes},
    },
    render::Stored,
};

/// Creates a pool for this source. If WMCO has nodes, the pool starts in mode Plan, so that a user can check the planned changes to these nodes
/// first. Does nothing if a pool with this name exists.
pub(super) async fn make(cx: &Context, name: &str, inventory: Inventory) -> kube::Result<()> {
    let api: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    let nodes = nodes_of_wmco(cx).await;
    let mode = (!nodes.is_empty()).then_some(Mode::Plan);
    let pool = WindowsNodePool::new(name, WindowsNodePoolSpec { mode, inventory, ..WindowsNodePoolSpec::default() });
    let params = PostParams { field_manager: Some(MANAGER_ADAPTER.into()), ..PostParams::default() };
    let pool = match api.create(&params, &pool).await {
        Ok(pool) => pool,
        // The change of that pool triggers another check.
        Err(kube::Error::Api(status)) if status.is_already_exists() => return Ok(()),
        Err(error) => return Err(error),
    };
    tracing::info!(pool = name, ?mode, "created a pool for a source of hosts that no pool read");
    if mode.is_none() {
        return Ok(());
    }
    cx.events.say(&pool, EventReason::TakeoverWaits, "AdaptSource", &takeover_waits(name, &nodes));
    give_up_mode(&api, pool).await
}

/// Gives up the operator's ownership of `spec.mode`, so that a user's server-side apply of another mode has no conflict. The operator never writes
/// the field again.
async fn give_up_mode(api: &Api<WindowsNodePool>, mut pool: WindowsNodePool) -> kube::Result<()> {
    let name = pool.name_any();
    while let Some(patch) = without_mode(&pool) {
        match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => break,
            // Another client has changed the pool, for example the pool controller, which writes the first status.
            Err(kube::Error::Api(status)) if status.is_conflict() => match api.get_opt(&name).await? {
                Some(now) => pool = now,
                None => break,
            },
            Err(kube::Error::Api(status)) if status.is_not_found() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the patch that gives up the ownership of `spec.mode`, or `None` if the operator does not own it.
fn without_mode(pool: &WindowsNodePool) -> Option<Value> {
    let mut fields = pool.managed_fields().to_vec();
    let of_adapter = fields.iter_mut().find(|f| f.manager.as_deref() == Some(MANAGER_ADAPTER))?;
    of_adapter.fields_v1.as_mut()?.0.get_mut("f:spec")?.as_object_mut()?.remove("f:mode")?;
    Some(json!({"metadata": {"resourceVersion": pool.resource_version(), "managedFields": fields}}))
}

/// Returns the nodes of WMCO that no instance has taken over.
async fn nodes_of_wmco(cx: &Context) -> Vec<String> {
    let nodes = cx.caches.nodes.state();
    let mut ours = HashSet::new();
    for version in nodes.iter().filter_map(|n| n.annotations().get(key::VERSION)).collect::<HashSet<_>>() {
        // A version that cannot be read may be WMCO's.
        if matches!(cx.hosts.versions.get(version).await.ok().flatten().as_deref(), Some(Stored::Ours(_))) {
            ours.insert(version.clone());
        }
    }
    let has_instance = |name: &str| cx.caches.instances.get(&ObjectRef::new(name)).is_some();
    wmco_nodes(nodes.iter().map(|n| &**n), &has_instance, &|version| ours.contains(version))
}

/// Deletes a pool unless another client owns one of its fields. Reads the pool from the API server, because the cache has no managed fields.
pub(super) async fn drop_pool(cx: &Context, name: &str) -> kube::Result<()> {
    let api: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    let Some(pool) = api.get_opt(name).await? else { return Ok(()) };
    if pool.metadata.deletion_timestamp.is_some() || !is_only_ours(pool.managed_fields()) {
        return Ok(());
    }
    let unchanged = Preconditions { uid: pool.uid(), resource_version: pool.resource_version() };
    match api.delete(name, &DeleteParams::default().preconditions(unchanged)).await {
        Ok(_) => {
            tracing::info!(
                pool = name,
                "the pool was deleted, because its source of hosts is gone or excluded with a label, and it has no hosts"
            );
            Ok(())
        }
        // The change of the pool triggers another check.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::ConfigMapRef;

    #[test]
    fn the_mode_is_given_up_and_the_source_is_kept() {
        let pool = |fields: Value| -> WindowsNodePool {
            let config_map_ref = Some(ConfigMapRef { name: "windows-instances".into() });
            let inventory = Inventory { config_map_ref, ..Inventory::default() };
            let mut pool =
                WindowsNodePool::new("p", WindowsNodePoolSpec { inventory, ..WindowsNodePoolSpec::default() });
            pool.metadata.resource_version = Some("7".into());
            pool.metadata.managed_fields = serde_json::from_value(fields).unwrap();
            pool
        };
        let source = json!({"f:inventory": {"f:configMapRef": {"f:name": {}}}});
        let with_mode = json!({"f:inventory": source["f:inventory"], "f:mode": {}});
        let entry = |manager: &str, spec: &Value| json!({"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": spec}});
        let patch = without_mode(&pool(json!([entry("other", &with_mode), entry(MANAGER_ADAPTER, &with_mode)])));
        let expected = json!([entry("other", &with_mode), entry(MANAGER_ADAPTER, &source)]);
        assert_eq!(patch, Some(json!({"metadata": {"resourceVersion": "7", "managedFields": expected}})));
        assert_eq!(without_mode(&pool(json!([entry(MANAGER_ADAPTER, &source)]))), None);
        assert_eq!(without_mode(&pool(json!([]))), None);
    }
}
