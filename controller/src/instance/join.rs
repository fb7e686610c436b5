//! Makes a host a node.

use api::{Grant, Step, names::UNKNOWN_VERSION, services_version::short};
use k8s_openapi::api::core::v1::Node;

use kube::runtime::controller::Action;

use super::{
    converge::{Converged, FoundNode, converge},
    drain::take_over_cordon,
    error::StepError,
    register::sync_node_metadata,
    scope::{Scope, Target},
};
use crate::runtime::events::EventReason;
use wnp_core::node::reference;

/// Begins or continues the join of a host, until it is a node or a wait is needed.
pub(super) async fn run(scope: &mut Scope, grant: &Grant) -> Result<Action, StepError> {
    scope.start_operation(grant, Step::Connect);
    // Images that were pulled earlier may be missing: the host may be another machine, or have a new containerd.
    if let Some(pulled) = &mut scope.status.record().pre_pulled {
        pulled.images.clear();
    }
    let version = scope.version_to_join()?;
    let target = scope.target(&version).await?;
    match Box::pin(converge(scope, &target)).await? {
        Converged::Waits(action) => Ok(action),
        Converged::Works(node) => joined(scope, node.as_deref(), &target).await,
        Converged::AlreadyNode(node) => adopted(scope, node).await,
        // Only a node that changes gives this result.
        Converged::MustBeEmpty => Ok(Action::await_change()),
    }
}

async fn joined(scope: &mut Scope, node: Option<&Node>, target: &Target) -> Result<Action, StepError> {
    take_over_cordon(scope).await?;
    scope.status.record().wicd = Some(scope.cx.hosts.release.get().wicd.sha256.clone());
    is_node(scope, node, target.version.clone()).await?;
    let note = format!("the host is a node and follows version {}", short(&target.version));
    scope.say(EventReason::Joined, "Join", &note);
    Ok(Action::await_change())
}

/// Adopts a host that is already a node. The host stays unchanged, and gets the version of its pool later like any other node, with a drain if
/// needed. Its Node gets the metadata of the pool.
async fn adopted(scope: &mut Scope, found: FoundNode) -> Result<Action, StepError> {
    let FoundNode { version, wicd } = found;
    scope.status.record().wicd = wicd;
    let node = scope.cx.node(&scope.name());
    scope.status.record().node_ref = node.as_ref().map(|n| reference(n));
    is_node(scope, node.as_deref(), version.clone()).await?;
    let follows = if version == UNKNOWN_VERSION {
        "an unknown version".to_owned()
    } else {
        format!("version {}", short(&version))
    };
    let note = format!("the host is already a node and follows {follows}; the operator adopted it unchanged");
    scope.say(EventReason::Adopted, "Join", &note);
    Ok(Action::await_change())
}

/// Records that the host is a node that follows this version, and ends the operation.
async fn is_node(scope: &mut Scope, node: Option<&Node>, version: String) -> Result<(), StepError> {
    scope.status.record().current_version = Some(version);
    scope.finish_operation();
    if let Some(node) = node {
        sync_node_metadata(scope, node).await?;
        scope.describe_node(node);
    }
    super::remove::forget_unclean(scope).await?;
    scope.save().await
}
