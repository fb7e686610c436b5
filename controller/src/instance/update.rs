//! Changes a node: gives it another version, restarts its host, or puts it right, by the steps that
//! [`operation::update`](wnp_core::operation::update) and [`operation::join`](wnp_core::operation::join) choose. A version that fails permanently
//! is rolled back.

use std::{sync::Arc, time::Duration};

use api::{Disruption, Grant, GrantType, Operation, names::key};
use k8s_openapi::api::core::v1::Node;
use kube::runtime::controller::Action;

use super::{
    converge::{Converged, STAGE, converge, look_and_stage},
    drain::{cordon, left_behind, pass, take_cordon, take_over_cordon},
    error::StepError,
    node::{self, ready},
    own::Found,
    register::{request_restart, sync_node_metadata},
    scope::{Scope, Target},
    status::Situation,
};
use crate::events::EventReason;
use wnp_core::{
    operation::update::{AfterFailure, Failure, Next, Seen, Step, after_failure, drains, next},
    render::Stored,
};

/// Sends the payload of a version ahead. The node continues unchanged.
pub async fn send_ahead(scope: &mut Scope, grant: &Grant) -> Result<Action, StepError> {
    let Some(version) = &grant.version else { return Ok(Action::await_change()) };
    if let Some(wait) = scope.retry_after() {
        return Ok(Action::requeue(wait));
    }
    scope.start_operation(grant, STAGE);
    if let Some(operation) = &mut scope.status.operation {
        operation.to_version = Some(version.clone());
    }
    let target = scope.target(version).await?;
    look_and_stage(scope, &target, STAGE).await?;
    scope.status.staged_version = Some(version.clone());
    scope.finish_operation();
    Ok(Action::await_change())
}

/// Continues a change, until it is complete or a wait is needed.
pub async fn run(scope: &mut Scope, grant: &Grant) -> Result<Action, StepError> {
    let begun = scope.status.operation.as_ref().filter(|o| o.id == grant.id).map(|o| Step::parse(&o.step));
    let fresh = begun.is_none();
    if let Some(wait) = scope.retry_after() {
        return Ok(Action::requeue(wait));
    }
    let current = scope.status.current_version.clone();
    let operation = scope.start_operation(grant, "");
    if fresh {
        operation.from_version.clone_from(&current);
        operation.to_version = grant.version.clone().or(current);
        let first =
            if drains(operation.type_, operation.disruption.unwrap_or_default()) { Step::Check } else { Step::Host };
        operation.step = first.as_str().into();
        take_over_cordon(scope).await?;
    }
    let begun = begun.or_else(|| scope.status.operation.as_ref().map(|o| Step::parse(&o.step)));
    // A missing version is detected before any disruption.
    let target = target(scope).await?;
    if let Some(action) = evacuate(scope, begun, &target).await? {
        return Ok(action);
    }
    if scope.operation().type_ == GrantType::Repair && scope.operation().services.is_empty() {
        // Which of them does not work is not known.
        let all = target.rendered.services.services.iter().map(|s| s.name.clone()).collect();
        if let Some(operation) = &mut scope.status.operation {
            operation.services = all;
        }
    }
    // A change that was seen to work is only watched.
    let watched = scope.operation().step == Step::Verify.as_str() || scope.operation().step == Step::Uncordon.as_str();
    let node = scope.cx.node(&scope.name());
    let node = match node.filter(|n| watched && works(scope, n, &target)) {
        Some(node) => Some(node),
        None => match converge(scope, &target).await? {
            Converged::Works(node) => node,
            Converged::Waits(action) => return Ok(action),
            Converged::MustBeEmpty => return empty_first(scope).await,
            // Only a host that joins is asked.
            Converged::AlreadyNode(_) => None,
        },
    };
    verify(scope, node, &target).await
}

/// The host has to be restarted, for which its pods must be moved away first.
async fn empty_first(scope: &mut Scope) -> Result<Action, StepError> {
    if scope.operation().disruption.unwrap_or_default() == Disruption::None {
        // It has no place in the budget. Nothing has been done yet: the restart is asked for, and both get their turn.
        request_restart(scope).await?;
        scope.finish_operation();
        return Ok(Action::await_change());
    }
    if let Some(stored) = &mut scope.status.operation {
        stored.disruption = Some(Disruption::Reboot);
    }
    scope.enter_step(Step::Cordon.as_str(), "the host must be restarted: its pods are evicted first").await?;
    Ok(Action::requeue(Duration::ZERO))
}

/// Until the node may be disturbed. `None` when it may. A host that cannot be changed is found out while its pods still run.
async fn evacuate(scope: &mut Scope, begun: Option<Step>, target: &Target) -> Result<Option<Action>, StepError> {
    let mut seen = Seen { begun, ..Seen::default() };
    seen.drains = drains(scope.operation().type_, scope.operation().disruption.unwrap_or_default());
    loop {
        if scope.cx.process.stop.is_cancelled() {
            return Ok(Some(Action::await_change()));
        }
        let found =
            if seen.drains && seen.begun < Some(Step::Host) { scope.find_node_to_empty().await? } else { Found::None };
        seen.cordoned = matches!(&found, Found::Node(node) if cordon(scope).is_held(node));
        match (next(seen), found) {
            (Next::Do(Step::Check), _) => {
                look_and_stage(scope, target, Step::Check.as_str()).await?;
                seen.checked = true;
            }
            (Next::Do(Step::Cordon), Found::Node(node)) => {
                seen.drained = false;
                if let Some(action) = take_cordon(scope, &node).await? {
                    return Ok(Some(action));
                }
            }
            (Next::Do(Step::Drain), Found::Node(node)) => match pass(scope, &node).await? {
                None => seen.drained = true,
                Some(action) => return Ok(Some(action)),
            },
            (Next::Do(Step::Cordon | Step::Drain), Found::Gone) => return left_behind(scope).await,
            // The host is no node: there is nothing to move away.
            _ => return Ok(None),
        }
    }
}

async fn target(scope: &Scope) -> Result<Target, StepError> {
    let operation = scope.operation();
    scope.target(operation.to_version.as_deref().unwrap_or_default()).await
}

/// Whether a Node is still as it was when the change was seen to work.
fn works(scope: &Scope, node: &Node, target: &Target) -> bool {
    let follows = node.metadata.annotations.as_ref().and_then(|a| a.get(key::VERSION));
    scope.status.node_ref.as_ref().is_some_and(|r| Some(&r.uid) == node.metadata.uid.as_ref())
        && ready(node).0
        && follows == Some(&target.version)
}

/// The node works: it is watched for a while, and then takes pods again.
async fn verify(scope: &mut Scope, node: Option<Arc<Node>>, target: &Target) -> Result<Action, StepError> {
    let hold = scope.pool.spec.rollout().min_ready();
    let releasing = scope.operation().step == Step::Uncordon.as_str();
    if !releasing && !hold.is_zero() {
        scope
            .enter_step(
                Step::Verify.as_str(),
                &format!("watching whether the node stays Ready for {} s", hold.as_secs()),
            )
            .await?;
    }
    let mut seen = Seen { begun: Some(Step::Verify), works: true, ..Seen::default() };
    seen.proven = releasing || hold.is_zero() || scope.in_step() >= hold;
    if !seen.proven {
        return Ok(Action::requeue(hold.saturating_sub(scope.in_step()).max(Duration::from_millis(200))));
    }
    // The Node is fetched again: whether it has the operator's cordon must be certain.
    let operation = scope.operation();
    let drained = drains(operation.type_, operation.disruption.unwrap_or_default());
    let id = operation.id.clone();
    let is_ours = |n: Arc<Node>| node::cordoned_by(&n) == Some(id.as_str());
    let cordoned = drained || scope.cx.node(&scope.name()).is_some_and(is_ours);
    let fresh = if cordoned { scope.find_node().await?.node() } else { None };
    seen.our_cordon = fresh.as_ref().is_some_and(|n| node::cordoned_by(n) == Some(scope.operation().id.as_str()));
    if next(seen) == Next::Do(Step::Uncordon)
        && let Some(fresh) = &fresh
    {
        scope.enter_step(Step::Uncordon.as_str(), "uncordoning the node").await?;
        scope.cx.process.metrics.wrote("Node");
        cordon(scope).release(&scope.cx.cluster.client, fresh).await.map_err(StepError::Drain)?;
    }
    done(scope, node, target).await
}

async fn done(scope: &mut Scope, node: Option<Arc<Node>>, target: &Target) -> Result<Action, StepError> {
    let operation = scope.operation().clone();
    if scope.status.current_version.as_ref() != Some(&target.version) {
        scope.status.previous_version = scope.status.current_version.replace(target.version.clone());
    }
    if operation.rolling_back {
        scope.status.previous_version = None;
    } else if operation.type_ == GrantType::Update {
        scope.status.failed_version = None;
    }
    scope.status.staged_version = None;
    scope.status.wicd = Some(scope.cx.hosts.release.wicd.sha256.clone());
    if let Some(node) = &node {
        // Before the operation is forgotten: it knows whether a restart that was asked for in the Node has happened.
        sync_node_metadata(scope, node).await?;
    }
    scope.finish_operation();
    if let Some(node) = node {
        let (is_ready, _, says) = ready(&node);
        let up_to_date = scope.up_to_date();
        scope.set_conditions(&Situation::Node { ready: is_ready, says: &says, up_to_date });
    }
    scope.save().await?;
    let (reason, note) = told(&operation, target);
    scope.cx.events.say(&scope.instance, reason, operation.type_.as_str(), &note);
    Ok(Action::await_change())
}

fn told(operation: &Operation, target: &Target) -> (EventReason, String) {
    match operation.type_ {
        _ if operation.rolling_back => {
            (EventReason::RolledBack, format!("the node follows version {} again", target.version))
        }
        GrantType::Reboot => (EventReason::Rebooted, "the host was restarted, and its node is Ready again".into()),
        GrantType::Repair => (EventReason::Repaired, "the host was repaired, and its node is Ready again".into()),
        _ => (EventReason::Updated, format!("the node follows version {}", target.version)),
    }
}

/// What follows from a failure. `true`: there is something to do at once, which is to take the change back.
pub async fn failed(scope: &mut Scope, error: &StepError) -> Result<bool, StepError> {
    let Some(operation) = scope.status.operation.clone() else { return Ok(false) };
    if operation.type_ == GrantType::Stage {
        abort_operation(scope).await?;
        return Ok(false);
    }
    let failure = Failure {
        type_: operation.type_,
        past_return: operation.is_past_return(),
        rolling_back: operation.rolling_back,
        blame: error.blame(),
        is_of_the_api: error.is_of_the_api(),
        is_final: error.is_final(),
        attempts: operation.attempts,
    };
    match after_failure(failure) {
        AfterFailure::TakeBack => {}
        AfterFailure::GiveUp => {
            abort_operation(scope).await?;
            return Ok(false);
        }
        AfterFailure::Retry { attempts } => {
            if let Some(stored) = &mut scope.status.operation {
                stored.attempts = attempts;
            }
            return Ok(false);
        }
    }
    let to = operation.to_version.clone().unwrap_or_default();
    scope.status.failed_version = Some(to.clone());
    let way_back = match operation.from_version.as_deref().filter(|from| *from != to) {
        Some(from) => matches!(scope.cx.hosts.versions.get(from).await?.as_deref(), Some(Stored::Ours(_))),
        None => false,
    };
    if !way_back {
        if let Some(stored) = &mut scope.status.operation {
            stored.attempts = operation.attempts.saturating_add(1);
        }
        return Ok(false);
    }
    if let Some(stored) = &mut scope.status.operation {
        stored.rolling_back = true;
        stored.to_version.clone_from(&operation.from_version);
        stored.applied = false;
        stored.attempts = 0;
        stored.boot_id_before = None;
        stored.boot_id_to_leave = None;
        stored.step = Step::Host.as_str().into();
    }
    scope.retry_now();
    let back = operation.from_version.unwrap_or_default();
    let note = format!("version {to} does not work on this host, which returns to {back}: {error}");
    scope.cx.events.say(&scope.instance, EventReason::RollingBack, "Update", &note);
    Ok(true)
}

/// Ends an operation that has changed nothing on the host, or whose grant was revoked before it did.
pub async fn abort_operation(scope: &mut Scope) -> Result<(), StepError> {
    let Some(operation) = scope.status.operation.clone() else { return Ok(()) };
    if drains(operation.type_, operation.disruption.unwrap_or(Disruption::None))
        && let Some(node) = scope.find_node().await?.node()
    {
        cordon(scope).release(&scope.cx.cluster.client, &node).await.map_err(StepError::Drain)?;
    }
    scope.status.operation = None;
    Ok(())
}
