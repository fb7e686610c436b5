//! Changes a node: updates its version, restarts its host, repairs it, or drains it for maintenance, by the steps that
//! [`operation::update`](wnp_core::operation::update) and [`operation::join`](wnp_core::operation::join) choose. Rolls back a version that fails
//! permanently.

use std::{sync::Arc, time::Duration};

use api::{Disruption, Grant, GrantType, Operation, Step, names::key, services_version::short};
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, runtime::controller::Action};

use super::{
    converge::{Converged, converge},
    drain::{cordon, left_behind, lift_cordon, pass, take_cordon, take_over_cordon},
    error::StepError,
    host_steps::look_and_stage,
    maintenance, node_events,
    node_ownership::Found,
    register::{request_restart, sync_node_metadata},
    scope::{Scope, Target},
};
use crate::runtime::{clock, events::EventReason};
use wnp_core::{
    drain::cordon::cordoned_by,
    node::ready,
    operation::update::{
        AfterFailure, ChangePhase, Failure, Maintenance, Next, ObservedChange, after_failure, drains, first_step, next,
    },
    rollout::{maintenance_window, member::is_held},
};

/// Interval at which a node in maintenance is checked without a change, to find a removed cordon.
const MAINTENANCE_POLL: Duration = Duration::from_mins(1);

/// Sends the payload of a version ahead of its update. The node continues unchanged.
pub(super) async fn send_ahead(scope: &mut Scope, grant: &Grant) -> Result<Action, StepError> {
    let Some(version) = &grant.version else { return Ok(Action::await_change()) };
    if let Some(wait) = scope.retry_after() {
        return Ok(Action::requeue(wait));
    }
    scope.start_operation(grant, Step::Stage);
    if let Some(operation) = &mut scope.status.record().operation {
        operation.to_version = Some(version.clone());
    }
    let target = scope.target(version).await?;
    look_and_stage(scope, &target, Step::Stage).await?;
    scope.status.record().staged_version = Some(version.clone());
    scope.finish_operation();
    Ok(Action::await_change())
}

/// Continues a change, until it is complete or a wait is needed.
pub(super) async fn run(scope: &mut Scope, grant: &Grant) -> Result<Action, StepError> {
    if is_needless(scope, grant) {
        scope.drop_operation();
        scope.status.record().last_operation = Some(grant.id.clone());
        return Ok(Action::requeue(Duration::ZERO));
    }
    if is_withdrawn(scope, grant).await? {
        abort_operation(scope).await?;
        scope.status.record().last_operation = Some(grant.id.clone());
        return Ok(Action::requeue(Duration::ZERO));
    }
    let is_asked = scope.awaits_repair();
    if let Some(wait) = scope.retry_after().filter(|_| !is_requested_again(scope) && !is_asked) {
        return Ok(Action::requeue(wait));
    }
    if is_asked {
        scope.take_retry();
    }
    take_up(scope, grant).await?;
    // A missing version is detected before any disruption.
    let target = target(scope).await?;
    let (mut seen, mut working) = begin(scope, &target);
    loop {
        if scope.cx.process.stop.is_cancelled() {
            return Ok(Action::await_change());
        }
        let found = observe(scope, &mut seen).await?;
        if let Found::Node(node) = &found
            && maintenance::show(scope, node, &seen).await?
        {
            continue;
        }
        let is_gone = matches!(found, Found::Gone);
        let node = found.node();
        match next(node.clone(), seen) {
            Next::Check => {
                look_and_stage(scope, &target, Step::Check).await?;
                seen.checked = true;
            }
            Next::Cordon(node) => {
                if scope.step() == Step::Maintain {
                    maintenance::note_uncordon(scope);
                }
                seen.drained = false;
                if let Some(action) = take_cordon(scope, &node).await? {
                    return Ok(action);
                }
            }
            Next::Drain(node) => match pass(scope, &node).await? {
                None => seen.drained = true,
                Some(action) => return Ok(action),
            },
            Next::Maintain => {
                let is_shown = scope.step() == Step::Maintain;
                maintenance::keep(scope, node.as_ref()).await?;
                seen.begun = ChangePhase::Maintain;
                if is_shown {
                    return Ok(Action::requeue(MAINTENANCE_POLL));
                }
            }
            Next::Converge => {
                if is_gone && let Some(action) = left_behind(scope).await? {
                    return Ok(action);
                }
                name_services(scope, &target);
                seen.begun = ChangePhase::Converge;
                working = match Box::pin(converge(scope, &target)).await? {
                    Converged::Works(node) => node,
                    Converged::Waits(action) => return Ok(action),
                    Converged::MustBeEmpty => return empty_first(scope).await,
                    // Only a host that joins gives this result.
                    Converged::AlreadyNode(_) => None,
                };
                // A node that was converged again is watched again.
                (seen.works, seen.proven) = (true, scope.pool.spec.rollout().min_ready().is_zero());
            }
            Next::Verify => {
                if let Some(wait) = watch(scope).await? {
                    return Ok(Action::requeue(wait));
                }
                seen.proven = true;
            }
            Next::Uncordon(node) => uncordon(scope, &node).await?,
            Next::Done => return done(scope, working, &target).await,
        }
    }
}

/// Reports whether the operation is a maintenance that is no longer requested and has changed nothing on the host. Its pool is about to revoke the
/// grant.
async fn is_withdrawn(scope: &mut Scope, grant: &Grant) -> Result<bool, StepError> {
    if grant.type_ != GrantType::Maintenance || is_irrevocable(scope) {
        return Ok(false);
    }
    let node = scope.find_node().await?.node();
    Ok(maintenance::requested(scope, node.as_ref()).request.is_none())
}

/// Reports whether a new maintenance is requested for a node that is not verified after the last one. Such a node does not wait for a retry.
fn is_requested_again(scope: &Scope) -> bool {
    let node = scope.cx.node(&scope.name());
    scope.operation_type() == Some(GrantType::Maintenance)
        && is_irrevocable(scope)
        && ChangePhase::from(scope.step()) >= ChangePhase::Converge
        && maintenance::requested(scope, node.as_deref()).request.is_some()
}

fn is_irrevocable(scope: &Scope) -> bool {
    scope.status.operation.as_ref().is_some_and(Operation::is_irrevocable)
}

/// Reports whether a repair that has changed nothing yet would disturb a recovered node, by restarting services under its pods.
fn is_needless(scope: &Scope, grant: &Grant) -> bool {
    grant.type_ == GrantType::Repair
        && !is_irrevocable(scope)
        && scope.cx.node(&scope.name()).is_some_and(|node| scope.is_recorded(&node) && ready(&node).0)
}

/// Starts or continues the change. A new change records the version that the host follows.
async fn take_up(scope: &mut Scope, grant: &Grant) -> Result<(), StepError> {
    let is_new = scope.status.operation.as_ref().is_none_or(|o| o.id != grant.id);
    let current = scope.status.current_version.clone();
    let is_drained = drains(grant.type_, grant.disruption.unwrap_or_default());
    let operation = scope.start_operation(grant, first_step(grant.type_, is_drained));
    if is_new {
        operation.from_version.clone_from(&current);
        operation.to_version = grant.version.clone().or(current);
        take_over_cordon(scope).await?;
    }
    Ok(())
}

/// Returns the initial observation of the change. If the change was already observed to work, also returns the Node, which is then only watched.
fn begin(scope: &Scope, target: &Target) -> (ObservedChange, Option<Arc<Node>>) {
    let begun = scope.step().into();
    let is_maintenance = scope.operation_type() == Some(GrantType::Maintenance);
    let working = scope.cx.node(&scope.name()).filter(|n| begun >= ChangePhase::Verify && works(scope, n, target));
    let seen = ObservedChange {
        begun,
        drains: scope.drains(),
        maintenance: if is_maintenance { Maintenance::Over } else { Maintenance::None },
        checked: false,
        cordoned: false,
        drained: is_maintenance && begun == ChangePhase::Maintain,
        works: working.is_some(),
        proven: begun == ChangePhase::Uncordon || scope.pool.spec.rollout().min_ready().is_zero(),
        our_cordon: false,
    };
    (seen, working)
}

/// Observes what other clients may change at any time. Reads the Node from the API server in the phases that depend on its cordon or on a maintenance
/// request.
async fn observe(scope: &mut Scope, seen: &mut ObservedChange) -> Result<Found, StepError> {
    let found = if seen.maintenance != Maintenance::None {
        let found = scope.find_node_to_empty().await?;
        let node = if let Found::Node(node) = &found { Some(&**node) } else { None };
        seen.maintenance = maintenance::observed(scope, node);
        found
    } else if seen.is_before_drain() {
        scope.find_node_to_empty().await?
    } else if seen.works && seen.proven && may_have_our_cordon(scope) {
        scope.find_node().await?
    } else {
        Found::None
    };
    if let Found::Node(node) = &found {
        seen.cordoned = cordon(scope).is_held(node);
        seen.our_cordon = is_our_cordon(scope, node);
    }
    Ok(found)
}

fn may_have_our_cordon(scope: &Scope) -> bool {
    scope.drains() || scope.cx.node(&scope.name()).is_some_and(|n| is_our_cordon(scope, &n))
}

fn is_our_cordon(scope: &Scope, node: &Node) -> bool {
    scope.status.operation.as_ref().is_some_and(|o| cordoned_by(node) == Some(o.id.as_str()))
}

/// Begins a drain for a host that turns out to need a restart. An operation without a slot in the disruption budget ends instead, and requests the
/// restart.
async fn empty_first(scope: &mut Scope) -> Result<Action, StepError> {
    if scope.disruption() == Disruption::None {
        // Nothing was changed yet. The restart is requested on the Node, and the pool grants it together with the change later.
        request_restart(scope).await?;
        scope.finish_operation();
        return Ok(Action::await_change());
    }
    if let Some(stored) = &mut scope.status.record().operation {
        stored.disruption = Some(Disruption::Reboot);
    }
    scope.enter_step(Step::Cordon, "the host must be restarted: its pods are evicted first").await?;
    Ok(Action::requeue(Duration::ZERO))
}

/// Adds all services of the version to a repair that names none, because it is unknown which service is broken.
fn name_services(scope: &mut Scope, target: &Target) {
    if let Some(operation) = &mut scope.status.record().operation
        && operation.type_ == GrantType::Repair
        && operation.services.is_empty()
    {
        operation.services = target.rendered.services.services.iter().map(|s| s.name.clone()).collect();
    }
}

async fn target(scope: &Scope) -> Result<Target, StepError> {
    let version = scope.status.operation.as_ref().and_then(|o| o.to_version.clone());
    scope.target(&version.unwrap_or_default()).await
}

/// Reports whether the Node is on record for the host, is Ready, and follows the target version.
fn works(scope: &Scope, node: &Node, target: &Target) -> bool {
    scope.is_recorded(node) && ready(node).0 && node.annotations().get(key::VERSION) == Some(&target.version)
}

/// Enters the step `Verify`, in which the node must stay Ready for the pool's `minReadySeconds`. Returns the remaining time, if any.
async fn watch(scope: &mut Scope) -> Result<Option<Duration>, StepError> {
    let min_ready = scope.pool.spec.rollout().min_ready();
    let what = format!("watching whether the node stays Ready for {} s", min_ready.as_secs());
    scope.enter_step(Step::Verify, &what).await?;
    let watched = scope.in_step();
    Ok((watched < min_ready).then(|| min_ready.saturating_sub(watched).max(Duration::from_millis(200))))
}

async fn uncordon(scope: &mut Scope, node: &Node) -> Result<(), StepError> {
    scope.enter_step(Step::Uncordon, "uncordoning the node").await?;
    lift_cordon(scope, node).await
}

async fn done(scope: &mut Scope, node: Option<Arc<Node>>, target: &Target) -> Result<Action, StepError> {
    let operation = scope.status.operation.clone().unwrap_or_default();
    if scope.status.current_version.as_ref() != Some(&target.version) {
        scope.status.record().previous_version = scope.status.record().current_version.replace(target.version.clone());
    }
    // An update to the same version, for example to renew a certificate, proves nothing about another version that failed.
    let is_renewal =
        operation.from_version == operation.to_version && scope.status.failed_version.as_ref() != Some(&target.version);
    if operation.rolling_back {
        scope.status.record().previous_version = None;
    } else if operation.type_ == GrantType::Update && !is_renewal {
        scope.status.record().failed_version = None;
    }
    if operation.type_ == GrantType::Maintenance {
        scope.status.record().last_maintenance_time = Some(clock::now().into());
    } else if operation.type_ == GrantType::Update && !is_renewal && !operation.rolling_back {
        scope.status.record().last_maintenance_time = None;
    }
    scope.status.record().staged_version = None;
    scope.status.record().wicd = Some(scope.cx.hosts.release.get().wicd.sha256.clone());
    if let Some(node) = &node {
        // Written before the operation is cleared, because the operation shows whether a requested restart has happened.
        sync_node_metadata(scope, node).await?;
    }
    let was_drained = scope.drains();
    scope.finish_operation();
    if let Some(node) = node {
        scope.describe_node(&node);
    }
    scope.save().await?;
    let (reason, note) = completion_event(&operation, target);
    if reason == EventReason::Updated && !was_drained {
        // A restart of services was reported on the Node when it began. Without a restart, users of the node notice nothing.
        scope.say(reason, operation.type_.as_str(), &note);
    } else {
        node_events::say(scope, reason, operation.type_.as_str(), &note);
    }
    Ok(Action::await_change())
}

fn completion_event(operation: &Operation, target: &Target) -> (EventReason, String) {
    match operation.type_ {
        _ if operation.rolling_back => {
            (EventReason::RolledBack, format!("the node follows version {} again", short(&target.version)))
        }
        GrantType::Reboot => (EventReason::Rebooted, "the host was restarted, and its node is Ready again".into()),
        GrantType::Maintenance => {
            (EventReason::MaintenanceEnded, "the maintenance is over, and the node is Ready again".into())
        }
        GrantType::Repair => (EventReason::Repaired, "the host was repaired, and its node is Ready again".into()),
        _ => (EventReason::Updated, format!("the node follows version {}", short(&target.version))),
    }
}

/// Decides what follows from a failure. Returns true if the change is rolled back at once.
pub(super) async fn failed(scope: &mut Scope, error: &StepError) -> Result<bool, StepError> {
    let Some(operation) = scope.status.operation.clone() else { return Ok(false) };
    if operation.type_ == GrantType::Stage {
        abort_operation(scope).await?;
        return Ok(false);
    }
    let failure = Failure {
        type_: operation.type_,
        irrevocable: operation.is_irrevocable(),
        rolling_back: operation.rolling_back,
        blame: error.blame(),
        is_api_failure: error.is_api_failure(),
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
            if let Some(stored) = &mut scope.status.record().operation {
                stored.attempts = attempts;
            }
            return Ok(false);
        }
    }
    let to = operation.to_version.clone().unwrap_or_default();
    scope.status.record().failed_version = Some(to.clone());
    let can_return = match operation.from_version.as_deref().filter(|from| *from != to) {
        Some(from) => scope.cx.own_version(from).await?.is_some(),
        None => false,
    };
    if !can_return {
        if let Some(stored) = &mut scope.status.record().operation {
            stored.attempts = operation.attempts.saturating_add(1);
        }
        return Ok(false);
    }
    if let Some(stored) = &mut scope.status.record().operation {
        stored.rolling_back = true;
        stored.to_version.clone_from(&operation.from_version);
        stored.applied = false;
        stored.attempts = 0;
        stored.boot_id_before = None;
        stored.boot_id_to_leave = None;
        stored.step = Step::Connect;
        stored.step_start_time = clock::now().into();
    }
    scope.retry_now();
    let back = operation.from_version.unwrap_or_default();
    let note = format!(
        "version {} does not work on this host, and the operator returns the host to version {}: {error}",
        short(&to),
        short(&back)
    );
    node_events::say(scope, EventReason::RollingBack, "Update", &note);
    Ok(true)
}

/// Ends an operation whose grant was revoked before it changed the host. Reports an aborted drain, except that of a maintenance.
pub(super) async fn withdraw(scope: &mut Scope) -> Result<(), StepError> {
    let drained = scope.status.operation.as_ref().filter(|o| o.drain.is_some()).map(|o| o.type_);
    abort_operation(scope).await?;
    if let Some(type_) = drained.filter(|type_| *type_ != GrantType::Maintenance) {
        let note =
            format!("the operator aborted the drain and no longer keeps the node cordoned: {}", revoked_because(scope));
        node_events::say(scope, EventReason::DrainAborted, type_.as_str(), &note);
    }
    Ok(())
}

/// Returns the reason why the pool revokes a grant, as far as the instance shows it.
fn revoked_because(scope: &Scope) -> String {
    let (node, pool) = (scope.cx.node(&scope.name()), &scope.instance.spec.pool_ref.name);
    if is_held(&scope.instance, node.as_deref()) {
        return format!("the annotation {}=true holds the host", key::HOLD);
    }
    if !scope.cx.other_operator.is_gone() {
        return "another operator is active in the cluster, or may be".to_owned();
    }
    if scope.is_plan() {
        return format!("pool {pool} is in mode Plan");
    }
    if let Some(pause) = scope.pool.spec.rollout().pause(clock::now()) {
        return format!("pool {pool} is {pause} ({})", pause.field());
    }
    let windows = maintenance_window::observe(scope.pool.spec.rollout().windows(), clock::now());
    match windows {
        Ok(windows) if !windows.open => {
            let opens = windows.opens.map(|at| format!("; the next opens at {}", api::Time::from(at)));
            format!("the maintenance window has closed{}", opens.unwrap_or_default())
        }
        Err(error) => error.to_string(),
        Ok(_) => format!(
            "pool {pool} has ended the operation, for example because the node no longer needs it; see the conditions of the pool"
        ),
    }
}

/// Ends an operation that has changed nothing on the host.
pub(super) async fn abort_operation(scope: &mut Scope) -> Result<(), StepError> {
    let Some(operation) = scope.status.operation.clone() else { return Ok(()) };
    if drains(operation.type_, operation.disruption.unwrap_or(Disruption::None))
        && let Some(node) = scope.find_node().await?.node()
    {
        lift_cordon(scope, &node).await?;
    }
    let node = scope.cx.node(&scope.name());
    let is_withdrawn = || maintenance::requested(scope, node.as_deref()).request.is_none();
    if operation.type_ == GrantType::Maintenance && (operation.drain.is_some() || is_withdrawn()) {
        // This maintenance counts as done. Otherwise, a maintenance that is requested and withdrawn again and again would always come first.
        scope.status.record().last_maintenance_time = Some(clock::now().into());
    }
    scope.drop_operation();
    Ok(())
}
