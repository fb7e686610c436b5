//! Registration of a host's Node: waits for the Node, and applies its metadata.

use std::{sync::Arc, time::Duration};

use api::{
    GrantType, Step,
    names::{MANAGER_INSTANCE, key},
    services_version::short,
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    runtime::controller::Action,
};
use serde_json::json;

use super::{
    error::StepError,
    login::{self, login},
    node_metadata::wanted_node,
    scope::{REGISTER_QUIET, Scope},
};
use crate::runtime::{clock, errors::is_refused};
use wnp_core::{
    node::{
        applied::Applied,
        metadata::{patch, template},
        owner::{NodeOwner, whose},
        ready, reference,
    },
    operation::join::DesiredJoin,
};

/// Interval at which a host that registers is reconciled even if its Node has not changed.
const REGISTER_POLL: Duration = Duration::from_secs(10);

/// Returns the host's Node from the cache, and records it in the status. Every change of the Node that a decision depends on triggers another reconcile.
/// Fails if a Node with that name exists and is not proven to belong to the host.
pub(super) fn own_node(scope: &mut Scope) -> Result<Option<Arc<Node>>, StepError> {
    let Some(node) = scope.cx.node(&scope.name()) else { return Ok(None) };
    match whose(Some(&node), &scope.evidence()) {
        NodeOwner::Hosts(_) => scope.status.record().node_ref = Some(reference(&node)),
        NodeOwner::Others(why) => return Err(StepError::NodeNameTaken { name: scope.name(), why }),
        NodeOwner::Nobodys => return Ok(None),
    }
    Ok(Some(node))
}

/// Waits for the Node to appear, to be Ready, and for all services of the host to follow the desired version. Applies the Node's metadata, which
/// names the version that wicd must follow. Fails after the time limit.
pub(super) async fn register(
    scope: &mut Scope,
    node: Option<&Node>,
    wanted: &DesiredJoin,
) -> Result<Action, StepError> {
    if node.is_none() {
        // The cache has only Windows Nodes: a Node of another operating system would never appear.
        scope.claim_name(None).await?;
    }
    let what = match node {
        None => format!("waiting for the Node {} to appear", wanted.node_name),
        Some(node) => match ready(node) {
            (true, ..) => format!("waiting until all services of the host follow version {}", short(&wanted.version)),
            (false, _, says) => format!("waiting for the Node to be Ready: {says}"),
        },
    };
    if scope.step() != Step::Register {
        scope.announce_step(Step::Register, &what);
        // For a join, the end of the reconcile may keep the step in memory.
        if scope.operation_type() != Some(GrantType::Provision) {
            scope.save().await?;
        }
    } else if scope.in_step() >= REGISTER_QUIET {
        scope.enter_step(Step::Register, &what).await?;
    }
    if let Some(node) = node {
        sync_node_metadata(scope, node).await?;
    }
    let limit = scope.cx.process.args.register_timeout;
    if scope.in_step() > limit {
        // A delayed watch says nothing about the host: the awaited change may have happened long ago.
        let nodes: Api<Node> = Api::all(scope.cx.cluster.client.clone());
        let current = nodes.get_opt(&scope.name()).await.map_err(StepError::api("get the Node"))?;
        if current.and_then(|n| n.resource_version()) != node.and_then(ResourceExt::resource_version) {
            return Ok(Action::requeue(REGISTER_POLL.min(limit)));
        }
        // A host that was a node has a Node, unless the Node was deleted, which does not count against the version.
        if node.is_none() && scope.status.current_version.is_some() {
            return Err(StepError::NodeDeleted { name: scope.name(), seconds: limit.as_secs() });
        }
        check_reachable(scope).await?;
        return Err(StepError::NotRegistered(not_registered(node, wanted, limit)));
    }
    Ok(Action::requeue(REGISTER_POLL.min(limit)))
}

/// Returns the message about a host that is not a working node after the time limit.
fn not_registered(node: Option<&Node>, wanted: &DesiredJoin, limit: Duration) -> String {
    let (name, seconds) = (&wanted.node_name, limit.as_secs());
    let what = match node.map(ready) {
        None => format!("kubelet has not registered the Node {name} within {seconds} s"),
        Some((true, ..)) => {
            format!(
                "the Node {name} is Ready, but not all services of the host follow version {} after {seconds} s",
                short(&wanted.version)
            )
        }
        Some((false, _, says)) => {
            format!("the Node {name} is not Ready after {seconds} s: {}", says.trim_end_matches('.'))
        }
    };
    format!("{what}; see the logs in C:\\var\\log\\kubelet and C:\\var\\log\\wicd on the host")
}

/// Requests a restart with the Node's annotation, as any client may.
pub(super) async fn request_restart(scope: &Scope) -> Result<(), StepError> {
    let nodes: Api<Node> = Api::all(scope.cx.cluster.client.clone());
    let patch = json!({"metadata": {"annotations": {key::REBOOT_REQUIRED: ""}}});
    let params = PatchParams::apply(MANAGER_INSTANCE);
    nodes.patch(&scope.name(), &params, &Patch::Merge(patch)).await.map_err(StepError::api("change the Node"))?;
    Ok(())
}

/// Logs in once before the failure counts against the version: an unreachable host proves nothing about its version. If the log-in fails, the next
/// attempt begins with the step `Connect`, and its services get the full time again.
async fn check_reachable(scope: &mut Scope) -> Result<(), StepError> {
    let opened = match login(&scope.cx, &scope.instance, &scope.pool).await {
        Ok(login) => login::open(scope, "reach", &login, "logging in, to see whether the host answers").await,
        Err(error) => Err(error),
    };
    match opened {
        Ok(session) => {
            session.close().await;
            Ok(())
        }
        Err(error) => {
            if let Some(operation) = &mut scope.status.record().operation {
                operation.step = Step::Connect;
                operation.step_start_time = clock::now().into();
            }
            Err(error)
        }
    }
}

/// Applies the desired metadata to the Node. Returns false if the Node was changed or deleted since it was read, so that it must be observed again.
pub(super) async fn sync_node_metadata(scope: &mut Scope, node: &Node) -> Result<bool, StepError> {
    let written = scope.cx.writes.nodes.newer_than(node);
    let node = written.as_deref().unwrap_or(node);
    let wanted = wanted_node(scope, node).await;
    let record = scope.status.template_applied.clone();
    let before = Applied::on(node, record.as_ref());
    let after = Applied::of(&wanted);
    if let Some(patch) = patch(node, &wanted, &before) {
        let is_recorded = after.is_recorded(node, record.as_ref());
        scope.status.record().template_applied = Some(before.and(&after).record(node.uid()));
        if !is_recorded {
            scope.save().await?;
        }
        let nodes: Api<Node> = Api::all(scope.cx.cluster.client.clone());
        let params = PatchParams::apply(MANAGER_INSTANCE);
        match nodes.patch(&node.name_any(), &params, &Patch::Merge(&patch)).await {
            Ok(written) => scope.cx.writes.nodes.note(written),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => return Ok(false),
            // The API server would refuse the same patch again.
            Err(kube::Error::Api(status)) if is_refused(&status) => {
                let why = api::text::line(&status.message, 500);
                return Err(StepError::NodeRefused { name: node.name_any(), why });
            }
            Err(error) => return Err(StepError::api("change the Node")(error)),
        }
    }
    scope.status.record().template_applied = Some(after.record(node.uid()));
    scope.status.record().annotated_username = wanted.username;
    Ok(true)
}

/// Records the template's metadata before kubelet registers the Node with it and before it is applied to the Node. The caller stores the record.
pub(super) fn record_template(scope: &mut Scope) {
    let after = Applied::of(&template(&scope.pool, &scope.instance.spec.host, scope.status.facts.as_ref()));
    let recorded = scope.status.record().template_applied.take();
    let (before, uid) = match scope.cx.node(&scope.name()) {
        Some(node) => (Applied::on(&node, recorded.as_ref()), node.uid()),
        None => (recorded.as_ref().map(Applied::from).unwrap_or_default(), recorded.and_then(|r| r.node_uid)),
    };
    scope.status.record().template_applied = Some(before.and(&after).record(uid));
}

#[cfg(test)]
#[path = "register_tests.rs"]
mod tests;
