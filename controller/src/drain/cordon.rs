//! Cordons and uncordons a Node. [`Cordon`] decides who owns a cordon.

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use wnp_core::drain::cordon::Cordon;

use super::error::DrainError;

/// Maximum number of attempts to patch a Node that other clients change.
const ATTEMPTS: usize = 4;

/// Cordons the Node unless it is cordoned, and returns the resulting Node. Leaves a Node unchanged that `may_cordon` rejects;
/// `may_cordon` is called again whenever the Node has changed.
pub(crate) async fn take_cordon(
    cordon: &Cordon,
    client: &Client,
    node: &Node,
    may_cordon: impl Fn(&Node) -> bool,
) -> Result<Node, DrainError> {
    patch(client, node, "cordon", |node| cordon.take_patch(node).filter(|_| may_cordon(node))).await
}

/// Takes over a leftover cordon of the legacy operator. The caller has verified its owner.
pub(crate) async fn take_over_cordon(cordon: &Cordon, client: &Client, node: &Node) -> Result<Node, DrainError> {
    patch(client, node, "take over the cordon of", |node| cordon.take_over_patch(node)).await
}

/// Gives up the cordon, if this operation holds it. The Node stays cordoned if another client had cordoned it before, or if an annotation keeps it
/// cordoned. A deleted Node is not an error.
pub(crate) async fn release_cordon(cordon: &Cordon, client: &Client, node: &Node) -> Result<(), DrainError> {
    match patch(client, node, "uncordon", |node| cordon.release_patch(node)).await {
        Ok(_) | Err(DrainError::NodeGone { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Patches the Node under its `resourceVersion`. After a conflict, reads the Node and calls `decide` again.
async fn patch(
    client: &Client,
    node: &Node,
    verb: &str,
    decide: impl Fn(&Node) -> Option<Value>,
) -> Result<Node, DrainError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let name = node.name_any();
    let mut node = node.clone();
    for _ in 0..ATTEMPTS {
        let Some(mut patch) = decide(&node) else { return Ok(node) };
        patch["metadata"]["resourceVersion"] = json!(node.resource_version());
        match nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(patched) => return Ok(patched),
            Err(kube::Error::Api(status)) if status.is_not_found() => return Err(DrainError::NodeGone { node: name }),
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                node = reread(client, &node).await?;
            }
            Err(source) => {
                return Err(DrainError::Api { what: format!("{verb} node {name}"), source: Box::new(source) });
            }
        }
    }
    Err(DrainError::CordonConflict { node: name })
}

/// Reads a Node again. Fails if the Node is gone, or another Node has its name.
pub(super) async fn reread(client: &Client, node: &Node) -> Result<Node, DrainError> {
    let name = node.name_any();
    match Api::<Node>::all(client.clone()).get_opt(&name).await {
        Ok(Some(fresh)) if node.uid().is_none() || node.uid() == fresh.uid() => Ok(fresh),
        Ok(_) => Err(DrainError::NodeGone { node: name }),
        Err(source) => Err(DrainError::Api { what: format!("read node {name}"), source: Box::new(source) }),
    }
}
