//! Changes a node: gives it another version, restarts its host, or puts it right, by the steps that
//! [`operation::update`](wnp_core::operation::update) and [`operation::join`](wnp_core::operation::join) choose. A version that fails permanently
//! is rolled back.

use std::{sync::Arc, time::Duration};

use api::{
    Disruption, Grant, GrantType, Operation,
    names::{MANAGER_INSTANCE, key},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{
    drive::{Reached, STAGE, drive, look_and_stage},
    error::StepError,
    evacuate::{cordon, left_behind, pass, take_cordon, take_over_cordon},
    node::{self, ready},
    own::Found,
    register::dress,
    status::Situation,
    work::{Flow, Target, Work},
};
use crate::events::Level;
use wnp_core::{
    operation::update::{AfterFailure, Failure, Next, Seen, Step, after_failure, drains, next},
    render::Stored,
};

/// Sends the payload of a version ahead. The node continues unchanged.
pub async fn send_ahead(work: &mut Work, grant: &Grant) -> Result<Flow, StepError> {
    let Some(version) = &grant.version else { return Ok(Flow::Rest) };
    if let Some(wait) = work.waits() {
        return Ok(Flow::After(wait));
    }
    work.take_up(grant, STAGE);
    if let Some(operation) = &mut work.status.operation {
        operation.to_version = Some(version.clone());
    }
    let target = work.target(version).await?;
    look_and_stage(work, &target, STAGE).await?;
    work.status.staged_version = Some(version.clone());
    work.finish_operation();
    Ok(Flow::Rest)
}

/// Continues a change, until it is complete or a wait is needed.
pub async fn run(work: &mut Work, grant: &Grant) -> Result<Flow, StepError> {
    let begun = work.status.operation.as_ref().filter(|o| o.id == grant.id).map(|o| Step::parse(&o.step));
    let fresh = begun.is_none();
    if let Some(wait) = work.waits() {
        return Ok(Flow::After(wait));
    }
    let current = work.status.current_version.clone();
    let operation = work.take_up(grant, "");
    if fresh {
        operation.from_version.clone_from(&current);
        operation.to_version = grant.version.clone().or(current);
        let first =
            if drains(operation.type_, operation.disruption.unwrap_or_default()) { Step::Check } else { Step::Host };
        operation.step = first.as_str().into();
        take_over_cordon(work).await?;
    }
    let begun = begun.or_else(|| work.status.operation.as_ref().map(|o| Step::parse(&o.step)));
    // A missing version is detected before any disruption.
    let target = target(work).await?;
    if let Some(flow) = evacuate(work, begun, &target).await? {
        return Ok(flow);
    }
    if work.operation().type_ == GrantType::Repair && work.operation().services.is_empty() {
        // Which of them does not work is not known.
        let all = target.rendered.services.services.iter().map(|s| s.name.clone()).collect();
        if let Some(operation) = &mut work.status.operation {
            operation.services = all;
        }
    }
    // A change that was seen to work is only watched.
    let watched = work.operation().step == Step::Verify.as_str() || work.operation().step == Step::Uncordon.as_str();
    let node = work.cx.node(&work.name());
    let node = match node.filter(|n| watched && works(work, n, &target)) {
        Some(node) => Some(node),
        None => match drive(work, &target).await? {
            Reached::Works(node) => node,
            Reached::Waits(flow) => return Ok(flow),
            Reached::MustBeEmpty => return empty_first(work).await,
            // Only a host that joins is asked.
            Reached::AlreadyNode(_) => None,
        },
    };
    verify(work, node, &target).await
}

/// The host has to be restarted, for which its pods must be moved away first.
async fn empty_first(work: &mut Work) -> Result<Flow, StepError> {
    let operation = work.operation().clone();
    if operation.disruption.unwrap_or_default() == Disruption::None && !operation.applied {
        // It has no place in the budget. Nothing has been done yet: the restart is asked for, and both get their turn.
        request_restart(work).await?;
        work.finish_operation();
        return Ok(Flow::Rest);
    }
    if let Some(stored) = &mut work.status.operation {
        stored.disruption = Some(Disruption::Reboot);
    }
    work.begin(Step::Cordon.as_str(), "the host must be restarted: its pods are evicted first").await?;
    Ok(Flow::After(Duration::ZERO))
}

/// Requests a restart with the Node's annotation, as any client may.
async fn request_restart(work: &Work) -> Result<(), StepError> {
    let nodes: Api<Node> = Api::all(work.cx.cluster.client.clone());
    let patch = json!({"metadata": {"annotations": {key::REBOOT_REQUIRED: ""}}});
    let params = PatchParams { field_manager: Some(MANAGER_INSTANCE.into()), ..PatchParams::default() };
    work.cx.process.metrics.wrote("Node");
    nodes.patch(&work.name(), &params, &Patch::Merge(patch)).await.map_err(StepError::api("change the Node"))?;
    Ok(())
}

/// Until the node may be disturbed. `None` when it may. A host that cannot be changed is found out while its pods still run.
async fn evacuate(work: &mut Work, begun: Option<Step>, target: &Target) -> Result<Option<Flow>, StepError> {
    let mut seen = Seen { begun, ..Seen::default() };
    seen.drains = drains(work.operation().type_, work.operation().disruption.unwrap_or_default());
    loop {
        if work.cx.process.stop.is_cancelled() {
            return Ok(Some(Flow::Rest));
        }
        let found =
            if seen.drains && seen.begun < Some(Step::Host) { work.find_node_to_empty().await? } else { Found::None };
        seen.cordoned = matches!(&found, Found::Node(node) if cordon(work).is_held(node));
        match (next(seen), found) {
            (Next::Do(Step::Check), _) => {
                look_and_stage(work, target, Step::Check.as_str()).await?;
                seen.checked = true;
            }
            (Next::Do(Step::Cordon), Found::Node(node)) => {
                seen.drained = false;
                take_cordon(work, &node).await?;
            }
            (Next::Do(Step::Drain), Found::Node(node)) => match pass(work, &node).await? {
                None => seen.drained = true,
                Some(flow) => return Ok(Some(flow)),
            },
            (Next::Do(Step::Cordon | Step::Drain), Found::Gone) => return left_behind(work).await,
            // The host is no node: there is nothing to move away.
            _ => return Ok(None),
        }
    }
}

async fn target(work: &Work) -> Result<Target, StepError> {
    let operation = work.operation();
    work.target(operation.to_version.as_deref().unwrap_or_default()).await
}

/// Whether a Node is still as it was when the change was seen to work.
fn works(work: &Work, node: &Node, target: &Target) -> bool {
    let follows = node.metadata.annotations.as_ref().and_then(|a| a.get(key::VERSION));
    work.status.node_ref.as_ref().is_some_and(|r| Some(&r.uid) == node.metadata.uid.as_ref())
        && ready(node).0
        && follows == Some(&target.version)
}

/// The node works: it is watched for a while, and then takes pods again.
async fn verify(work: &mut Work, node: Option<Arc<Node>>, target: &Target) -> Result<Flow, StepError> {
    let hold = work.pool.spec.rollout().min_ready();
    let releasing = work.operation().step == Step::Uncordon.as_str();
    if !releasing && !hold.is_zero() {
        work.begin(Step::Verify.as_str(), &format!("watching whether the node stays Ready for {} s", hold.as_secs()))
            .await?;
    }
    let mut seen = Seen { begun: Some(Step::Verify), works: true, ..Seen::default() };
    seen.proven = releasing || hold.is_zero() || work.in_step() >= hold;
    if !seen.proven {
        return Ok(Flow::After(hold.saturating_sub(work.in_step()).max(Duration::from_millis(200))));
    }
    // The Node is fetched again: whether it has the operator's cordon must be certain.
    let operation = work.operation();
    let drained = drains(operation.type_, operation.disruption.unwrap_or_default());
    let id = operation.id.clone();
    let is_ours = |n: Arc<Node>| node::cordoned_by(&n) == Some(id.as_str());
    let cordoned = drained || work.cx.node(&work.name()).is_some_and(is_ours);
    let fresh = if cordoned { work.find_node().await?.node() } else { None };
    seen.our_cordon = fresh.as_ref().is_some_and(|n| node::cordoned_by(n) == Some(work.operation().id.as_str()));
    if next(seen) == Next::Do(Step::Uncordon)
        && let Some(fresh) = &fresh
    {
        work.begin(Step::Uncordon.as_str(), "uncordoning the node").await?;
        work.cx.process.metrics.wrote("Node");
        cordon(work).release(&work.cx.cluster.client, fresh).await.map_err(StepError::Drain)?;
    }
    done(work, node, target).await
}

async fn done(work: &mut Work, node: Option<Arc<Node>>, target: &Target) -> Result<Flow, StepError> {
    let operation = work.operation().clone();
    if work.status.current_version.as_ref() != Some(&target.version) {
        work.status.previous_version = work.status.current_version.replace(target.version.clone());
    }
    if operation.rolling_back {
        work.status.previous_version = None;
    } else if operation.type_ == GrantType::Update {
        work.status.failed_version = None;
    }
    work.status.staged_version = None;
    work.status.wicd = Some(work.cx.hosts.release.wicd.sha256.clone());
    if let Some(node) = &node {
        // Before the operation is forgotten: it knows whether a restart that was asked for in the Node has happened.
        dress(work, node).await?;
    }
    work.finish_operation();
    if let Some(node) = node {
        let (is_ready, _, says) = ready(&node);
        let up_to_date = work.up_to_date();
        work.say(&Situation::Node { ready: is_ready, says: &says, up_to_date });
    }
    work.save().await?;
    let (reason, level, note) = told(&operation, target);
    work.cx.events.say(&work.instance, level, reason, operation.type_.as_str(), &note);
    Ok(Flow::Rest)
}

fn told(operation: &Operation, target: &Target) -> (&'static str, Level, String) {
    match operation.type_ {
        _ if operation.rolling_back => {
            ("RolledBack", Level::Warning, format!("the node follows version {} again", target.version))
        }
        GrantType::Reboot => ("Rebooted", Level::Normal, "the host was restarted, and its node is Ready again".into()),
        GrantType::Repair => ("Repaired", Level::Normal, "the host was repaired, and its node is Ready again".into()),
        _ => ("Updated", Level::Normal, format!("the node follows version {}", target.version)),
    }
}

/// What follows from a failure. `true`: there is something to do at once, which is to take the change back.
pub async fn failed(work: &mut Work, error: &StepError) -> Result<bool, StepError> {
    let Some(operation) = work.status.operation.clone() else { return Ok(false) };
    if operation.type_ == GrantType::Stage {
        give_up(work).await?;
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
            give_up(work).await?;
            return Ok(false);
        }
        AfterFailure::Retry { attempts } => {
            if let Some(stored) = &mut work.status.operation {
                stored.attempts = attempts;
            }
            return Ok(false);
        }
    }
    let to = operation.to_version.clone().unwrap_or_default();
    work.status.failed_version = Some(to.clone());
    let way_back = match operation.from_version.as_deref().filter(|from| *from != to) {
        Some(from) => matches!(work.cx.hosts.versions.get(from).await?.as_deref(), Some(Stored::Ours(_))),
        None => false,
    };
    if !way_back {
        if let Some(stored) = &mut work.status.operation {
            stored.attempts = operation.attempts.saturating_add(1);
        }
        return Ok(false);
    }
    if let Some(stored) = &mut work.status.operation {
        stored.rolling_back = true;
        stored.to_version.clone_from(&operation.from_version);
        stored.applied = false;
        stored.attempts = 0;
        stored.boot_id_before = None;
        stored.boot_id_to_leave = None;
        stored.step = Step::Host.as_str().into();
    }
    work.retry_now();
    let back = operation.from_version.unwrap_or_default();
    let note = format!("version {to} does not work on this host, which returns to {back}: {error}");
    work.cx.events.say(&work.instance, Level::Warning, "RollingBack", "Update", &note);
    Ok(true)
}

/// Ends an operation that has changed nothing on the host, or whose grant was revoked before it did.
pub async fn give_up(work: &mut Work) -> Result<(), StepError> {
    let Some(operation) = work.status.operation.clone() else { return Ok(()) };
    if drains(operation.type_, operation.disruption.unwrap_or(Disruption::None))
        && let Some(node) = work.find_node().await?.node()
    {
        cordon(work).release(&work.cx.cluster.client, &node).await.map_err(StepError::Drain)?;
    }
    work.status.operation = None;
    Ok(())
}
