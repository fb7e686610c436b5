//! Detects that the CRDs of the operator are being deleted, and with them all objects of their kinds.

use std::sync::Arc;

use api::{WindowsInstance, WindowsNodePool, names::GROUP};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;

use super::{PoolError, failed};
use crate::context::Context;
use wnp_core::{inventory::orphaning::DeletedKinds, operation::remove::is_irrevocable};

/// Returns the kinds whose CRDs are being deleted or are gone. Queries the CRDs only while an object is being deleted that can still be released.
pub(super) async fn deleted_kinds(
    pool: &WindowsNodePool,
    mine: &[Arc<WindowsInstance>],
    cx: &Context,
) -> Result<DeletedKinds, PoolError> {
    let is_pool_deleted = pool.metadata.deletion_timestamp.is_some();
    let can_be_released = |i: &Arc<WindowsInstance>| i.is_deleting() && !is_irrevocable(i);
    let pools = is_pool_deleted && is_crd_deleted("windowsnodepools", cx).await?;
    let instances = mine.iter().any(can_be_released) && is_crd_deleted("windowsinstances", cx).await?;
    Ok(DeletedKinds { pools, instances })
}

async fn is_crd_deleted(plural: &str, cx: &Context) -> Result<bool, PoolError> {
    let crds: Api<CustomResourceDefinition> = Api::all(cx.cluster.client.clone());
    let crd = crds
        .get_opt(&format!("{plural}.{GROUP}"))
        .await
        .map_err(failed("get the CustomResourceDefinitions of the operator"))?;
    Ok(crd.is_none_or(|crd| crd.metadata.deletion_timestamp.is_some()))
}
