//! Maintenance of a node: the requests for it, and its state in an annotation of the Node.

use api::{
    MaintenanceState, Step, Time,
    names::{MANAGER_INSTANCE, key},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{error::StepError, node_events, scope::Scope};
use crate::runtime::{clock, errors::unless_changed, events::EventReason};
use wnp_core::{
    node::maintenance::{Requests, idle_state, requests},
    operation::update::{Maintenance, ObservedChange},
    rollout::member::is_held,
};

/// Returns the maintenance requests in the annotations of the instance and of its Node, if it has one.
pub(super) fn requested(scope: &Scope, node: Option<&Node>) -> Requests {
    requests(&scope.instance, node)
}

/// Returns whether maintenance is requested or over, for the decisions of the current operation.
pub(super) fn observed(scope: &Scope, node: Option<&Node>) -> Maintenance {
    match requested(scope, node).request {
        Some(_) => Maintenance::Requested,
        None => Maintenance::Over,
    }
}

/// Writes the maintenance state of the operation to the Node, if it differs. Returns true if the state was written, or if the write failed because
/// the Node has changed: the Node must then be observed again.
///
/// The write is bound to the Node's `resourceVersion`. So a request that is made in the state `Drained` either prevents the node's return to use, or
/// comes after that return and no longer finds `Drained`.
pub(super) async fn show(scope: &Scope, node: &Node, seen: &ObservedChange) -> Result<bool, StepError> {
    let Some(state) = seen.maintenance_state() else { return Ok(false) };
    write(scope, node, Some(state)).await
}

/// Writes the maintenance state of a node without an operation to its Node. Returns true if the Node must be observed again, like [`show`].
pub(super) async fn show_idle(scope: &Scope, node: &Node) -> Result<bool, StepError> {
    let requests = requested(scope, Some(node));
    let state = idle_state(&requests, is_held(&scope.instance, Some(node)));
    write(scope, node, state).await
}

/// Removes the maintenance state from a Node that the operator releases.
pub(super) async fn withdraw(scope: &Scope, node: &Node) -> Result<(), StepError> {
    write(scope, node, None).await.map(drop)
}

/// Returns a message if maintenance is requested for a node without an operation: what the node waits for, or that a user refuses the request.
pub(super) fn waits(scope: &Scope, node: &Node) -> Option<String> {
    let requests = requested(scope, Some(node));
    let Some(request) = requests.request else {
        let why = "a user refuses the maintenance that the host requests";
        return requests.refused.then(|| format!("{why} (annotation {}=false)", key::MAINTENANCE));
    };
    let why = match () {
        () if is_held(&scope.instance, Some(node)) => "waits: on hold",
        () if scope.is_plan() => "waits: its pool is in mode Plan",
        () if scope.status.failures.is_some() => {
            "waits: the last attempt failed, and the next one follows after a delay"
        }
        () if scope.pool.spec.rollout().pause(clock::now()).is_some() => "waits: its pool is paused",
        () if scope.status.wicd.is_none() => {
            "waits: the operator must first update the node, which another operator created"
        }
        () => "waits until one more node may be disrupted (rollout.maxUnavailable)",
    };
    Some(format!("maintenance requested: {}; {why}", request.in_words()))
}

/// Writes the maintenance state to the Node, if it differs. Returns true if the Node must be observed again.
async fn write(scope: &Scope, node: &Node, state: Option<MaintenanceState>) -> Result<bool, StepError> {
    let word = state.map(MaintenanceState::as_str);
    if node.annotations().get(key::MAINTENANCE_STATE).map(String::as_str) == word {
        return Ok(false);
    }
    let nodes: Api<Node> = Api::all(scope.cx.cluster.client.clone());
    let patch = json!({"metadata": {
        "uid": node.metadata.uid,
        // The removal of the state is not bound to `resourceVersion`: only the operator writes the state, so no change of another client can be
        // overwritten, and after a conflict, a released Node would keep the state.
        "resourceVersion": word.and(node.metadata.resource_version.as_ref()),
        "annotations": {key::MAINTENANCE_STATE: word},
    }});
    let params = PatchParams::apply(MANAGER_INSTANCE);
    let written = nodes.patch(&node.name_any(), &params, &Patch::Merge(patch)).await;
    unless_changed(written).map(|_| true).map_err(StepError::api("change the Node"))
}

/// Keeps the node drained. The host may be changed from here on, so it is verified before it is used again.
pub(super) async fn keep(scope: &mut Scope, node: Option<&Node>) -> Result<(), StepError> {
    let reason = requested(scope, node).request.map(|r| r.in_words()).unwrap_or_default();
    let is_new = scope.step() != Step::Maintain;
    if let Some(operation) = &mut scope.status.record().operation {
        operation.changed = true;
        // The files of the version are in place. So if a removal begins and is revoked in the meantime, the node is verified.
        operation.applied = true;
        // If another client removes the cordon, the next drain starts its own timeout.
        operation.drain = None;
        // New patches may need another restart than earlier ones.
        operation.boot_id_to_leave = None;
    }
    // Earlier failures no longer apply.
    scope.status.record().failures = None;
    let stored = scope.status.operation.as_ref().filter(|_| !is_new).and_then(|o| o.step_start_time.known());
    let since = stored.map_or_else(Time::now, Time::from);
    scope.enter_step(Step::Maintain, &format!("drained for maintenance since {since}: {reason}")).await?;
    if is_new {
        let note = format!("the node is drained for maintenance: {reason}");
        node_events::say(scope, EventReason::DrainedForMaintenance, "Maintenance", &note);
    }
    Ok(())
}

/// Reports that a node in maintenance is no longer cordoned.
pub(super) fn note_uncordon(scope: &Scope) {
    let note = format!(
        "the node in maintenance is no longer cordoned, because another client uncordoned it or its Node was created again; the operator cordons it \
         again. To end the maintenance, remove the annotation {}, or set it to false on the WindowsInstance if the host requests the maintenance",
        key::MAINTENANCE
    );
    scope.say(EventReason::ExternalUncordon, "Maintenance", &note);
}
