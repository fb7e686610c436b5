//! Makes a host a node.

use api::Grant;
use k8s_openapi::api::core::v1::Node;

use super::{
    drive::{FoundNode, Reached, drive},
    error::StepError,
    evacuate::take_over_cordon,
    node::ready,
    register::dress,
    status::Situation,
    work::{Flow, Target, Work},
};
use crate::events::Level;
use wnp_core::operation::join::Step;

/// Continues the join of a host, until it is a node or a wait is needed.
pub async fn run(work: &mut Work, grant: &Grant) -> Result<Flow, StepError> {
    work.take_up(grant, Step::Connect.as_str());
    let version = work.instance.spec.desired.as_ref().map(|d| d.version.clone()).unwrap_or_default();
    let target = work.target(&version).await?;
    match drive(work, &target).await? {
        Reached::Waits(flow) => Ok(flow),
        Reached::Works(node) => joined(work, node.as_deref(), &target).await,
        Reached::AlreadyNode(node) => adopted(work, node).await,
        // Only a node that changes is asked.
        Reached::MustBeEmpty => Ok(Flow::Rest),
    }
}

async fn joined(work: &mut Work, node: Option<&Node>, target: &Target) -> Result<Flow, StepError> {
    take_over_cordon(work).await?;
    work.status.wicd = Some(work.cx.hosts.release.wicd.sha256.clone());
    is_node(work, node, target.version.clone()).await?;
    let note = format!("the host is a node and follows version {}", target.version);
    work.cx.events.say(&work.instance, Level::Normal, "Joined", "Join", &note);
    Ok(Flow::Rest)
}

/// The host was a node of another operator. It stays one unchanged, and gets this operator's version like any other
/// node: in its turn, and drained if that is needed.
async fn adopted(work: &mut Work, found: FoundNode) -> Result<Flow, StepError> {
    let FoundNode { version, wicd } = found;
    work.status.wicd = wicd;
    let node = work.cx.node(&work.name());
    work.status.node_ref = node.as_ref().map(|n| super::node::reference(n));
    is_node(work, node.as_deref(), version.clone()).await?;
    let note = format!("the host is already a node of version {version}; the operator adopted it unchanged");
    work.cx.events.say(&work.instance, Level::Normal, "Adopted", "Join", &note);
    Ok(Flow::Rest)
}

async fn is_node(work: &mut Work, node: Option<&Node>, version: String) -> Result<(), StepError> {
    work.status.current_version = Some(version);
    work.finish_operation();
    if let Some(node) = node {
        dress(work, node).await?;
        let (is_ready, _, says) = ready(node);
        let up_to_date = work.up_to_date();
        work.say(&Situation::Node { ready: is_ready, says: &says, up_to_date });
    }
    super::remove::forget_unclean(work).await?;
    work.save().await
}
