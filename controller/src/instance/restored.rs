//! Recovers the state of a host whose status was lost, for example after a restore of the cluster's objects from a backup without statuses. A host
//! that stays is found to be a node when it joins. A host that leaves must be identified before its removal: otherwise, it would be released as
//! untouched while its node still runs.

use std::time::Duration;

use api::names::{UNKNOWN_VERSION, key};
use kube::ResourceExt;

use super::{error::StepError, idle_session, scope::Scope};
use crate::runtime::events::EventReason;
use wnp_core::{
    node::{owner::NodeOwner, reference},
    operation::identity::{Identity, Purpose},
};

/// Reports whether a Node with the host's name has the annotation for the desired version, but the host has no record of being that node: the
/// status was lost, or a join ended after the host key was pinned.
pub(super) fn is_lost(scope: &Scope) -> bool {
    let status = &scope.status;
    let blank = status.current_version.is_none() && status.facts.is_none() && status.node_ref.is_none();
    blank && scope.cx.node(&scope.name()).is_some_and(|n| n.annotations().contains_key(key::DESIRED_VERSION))
}

/// Queries the facts of the host, and adopts the host as the node that it reports, if that is proven. Does not change the configuration of the host.
/// Returns the wait if no SSH slot is free.
///
/// The host's own report is not a proof: the author of a list can give a malicious host the name of any Node. The Node must belong to the host that
/// was reached, before the host gets anything.
pub(super) async fn recover(scope: &mut Scope) -> Result<Option<Duration>, StepError> {
    let _slot = match idle_session::take_slot(scope) {
        Ok(slot) => slot,
        Err(wait) => return Ok(Some(wait)),
    };
    let address = scope.instance.spec.host.address.clone();
    idle_session::in_time(&address, query(scope)).await?;
    scope.save().await?;
    Ok(None)
}

async fn query(scope: &mut Scope) -> Result<(), StepError> {
    let mut session = idle_session::open(scope, false).await?;
    let (node, whose) = scope.ask_for_node(Some(session.connection().peer_address())).await?;
    if let NodeOwner::Others(why) = whose {
        session.close().await;
        return Err(StepError::NodeUnproven { name: scope.name(), why });
    }
    let (identity, state, facts) = idle_session::ask(scope, &mut session, Purpose::Remove).await?;
    // The host of a node that another operator created has no record of this operator. A Node with the address of the host is enough.
    let version = node.as_ref().and_then(|n| n.annotations().get(key::VERSION)).filter(|v| !v.is_empty()).cloned();
    let version = version.or_else(|| state.marker.as_ref().map(|m| m.version.clone()));
    let is_a_node = node.is_some() || state.marker.is_some();
    if is_a_node && matches!(identity, Identity::ExpectedHost | Identity::Supersedes(_)) {
        scope.record_identity(session.connection());
        scope.status.record().facts = Some(facts);
        // A Node that was deleted in the meantime may have left pods behind.
        scope.status.record().holds_node_name |= node.is_none();
        scope.status.record().current_version = Some(version.unwrap_or_else(|| UNKNOWN_VERSION.to_owned()));
        scope.status.record().node_ref = node.as_ref().map(reference);
        scope.status.record().failures = None;
        let note = "the status of the host was lost, and was recovered from the state of the host and the cluster";
        scope.say(EventReason::Recovered, "Connect", note);
    }
    session.close().await;
    Ok(())
}

#[cfg(test)]
#[path = "restored_tests.rs"]
mod tests;
