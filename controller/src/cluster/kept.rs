//! Secret with the cluster facts in force. An operator that starts uses them in place of facts that are unusable at that time.

use std::collections::BTreeMap;

use api::names::{KEPT_FACTS, MANAGER_POOL, key};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Node, Secret},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, ObjectMeta, Patch, PatchParams},
};
use wnp_core::render::{Cluster, Kept};

use super::{ClusterError, failed, number};

const KEY: &str = "facts.json";

/// Loads the facts that the last operator stored. If there are none that can be used, returns only the version of Kubernetes from the nodes of pools,
/// or `None` without such nodes.
pub(crate) async fn load(client: &Client, namespace: &str) -> Result<Option<Kept>, ClusterError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = match api.get_opt(KEPT_FACTS).await {
        Ok(secret) => secret,
        // The Role is from an older release, or was changed by a user.
        Err(kube::Error::Api(status)) if status.code == 403 => None,
        Err(error) => return Err(failed("the Secret windows-node-pools-facts")(error)),
    };
    if let Some(text) = secret.and_then(|secret| secret.data?.remove(KEY)) {
        match Kept::parse(&text.0) {
            Ok(kept) => return Ok(Some(kept)),
            Err(error) => tracing::warn!(
                "the copy of the cluster's settings in the Secret {namespace}/{KEPT_FACTS} is not used: {error}. A setting that cannot be read now has no earlier value. The operator writes the Secret again when it starts, or when a setting changes"
            ),
        }
    }
    Ok(minor_of_nodes(client).await?.map(Kept::of_nodes))
}

/// Returns the newest minor version of Kubernetes among the nodes of pools.
async fn minor_of_nodes(client: &Client) -> Result<Option<u32>, ClusterError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let params = ListParams::default().labels(key::POOL);
    let nodes = nodes.list(&params).await.map_err(failed("the Nodes of pools, for their versions"))?;
    Ok(nodes.iter().filter(|node| node.labels().contains_key(key::POOL)).filter_map(minor).max())
}

fn minor(node: &Node) -> Option<u32> {
    let version = &node.status.as_ref()?.node_info.as_ref()?.kubelet_version;
    number(version.strip_prefix("v1.")?.split('.').next()?)
}

/// Stores the facts in force, unless they are equal to `stored`, the text that this process stored last.
pub(crate) async fn store(client: &Client, namespace: &str, cluster: &Cluster, stored: &mut String) {
    let text = Kept::of(cluster).to_json();
    if *stored == text {
        return;
    }
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(KEPT_FACTS.to_owned()),
            labels: Some([(api::names::MANAGED_BY.to_owned(), api::names::COMPONENT.to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(KEY.to_owned(), ByteString(text.clone().into_bytes()))])),
        ..Secret::default()
    };
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams::apply(MANAGER_POOL).force();
    match api.patch(KEPT_FACTS, &params, &Patch::Apply(&secret)).await {
        Ok(_) => *stored = text,
        Err(error) => tracing::warn!(
            error = crate::runtime::errors::api_message(&error),
            "failed to store a copy of the cluster's settings in the Secret {namespace}/{KEPT_FACTS}; the operator retries"
        ),
    }
}
