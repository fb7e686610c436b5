//! Instance controller: works on one host, and writes its `WindowsInstance.status`.
//!
//! Only one reconcile runs for a host at a time, and it uses at most one connection to the host at a time. It does not wait for a restart of the host
//! or a change of its Node, but returns, and the next reconcile continues.
//! Essential state is stored before it takes effect, so a reconcile can be interrupted at any point.

pub(crate) mod wmco_versions;

mod address;
pub(crate) mod claims;
mod converge;
mod drain;
mod error;
#[cfg(test)]
mod executor_tests;
mod failures;
mod health;
mod host_steps;
mod identity;
mod idle_session;
mod join;
mod login;
mod maintenance;
#[cfg(test)]
mod maintenance_tests;
mod node_events;
#[cfg(test)]
mod node_events_tests;
mod node_metadata;
pub(crate) mod node_ownership;
mod orphan;
#[cfg(test)]
mod other_operator_tests;
mod own_status;
mod pull;
mod register;
mod remove;
mod restored;
mod rotate;
mod scope;
mod suitability;
#[cfg(test)]
pub(crate) mod test_bed;
mod update;
#[cfg(test)]
mod version_tests;
mod without_pool;
#[cfg(test)]
mod writes_tests;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use api::{
    DeletionPolicy, Disruption, Grant, GrantType, Reason, WindowsInstance,
    act::Act,
    conditions::{self, Status, kind},
    names::key,
    services_version::short,
};
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt, runtime::controller::Action};

pub(crate) use error::StepError;
pub(crate) use login::{CONNECT_TIMEOUT, check as check_host_key, credentials, open_without_slot, trusted_key};
use scope::Scope;

use crate::{
    caches::machines,
    context::Context,
    drain::release_cordon,
    instance::wmco_versions::{WmcoVersions, adopted_version},
    runtime::{clock, events::EventReason},
};
use remote::facts;
use wnp_core::{
    drain::cordon::{Cordon, cordoned_by},
    node::{
        self,
        owner::{NodeOwner, whose},
    },
    rollout::{lost_settings, member::is_held},
    status::{
        annotations::{OF_INSTANCE, OF_NODE, without_effect},
        instance::{Situation, beside_kubelet, is_untried},
    },
    wait::Idle,
};

/// Delay before an instance is reconciled again after an error of the API server.
const API_RETRY: Duration = Duration::from_secs(5);

/// Maximum delay before an instance is reconciled again after its observed state was out of date.
const OUTDATED_RETRY: Duration = Duration::from_secs(30);

/// Interval at which the operator checks whether the Machine of a leaving host is deleted.
const MACHINE_POLL: Duration = Duration::from_secs(5);

/// Reconciles one instance.
pub(crate) async fn reconcile(instance: Arc<WindowsInstance>, cx: Arc<Context>) -> Result<Action, StepError> {
    let stop = cx.process.stop.clone();
    // Cancelling in the middle is like a crash, which is allowed at any point.
    tokio::select! {
        action = reconcile_instance(&instance, &cx) => match action {
            // The instance was changed, which triggers another reconcile, or deleted. An API server that briefly does not serve the kind reports the
            // same, so the instance is reconciled again in any case.
            Err(StepError::Outdated) => Ok(Action::requeue(OUTDATED_RETRY)),
            action => action,
        },
        () = stop.cancelled() => Ok(Action::await_change()),
    }
}

/// Returns the next action after an error that could not be stored in the instance's status.
pub(crate) fn error_policy(instance: Arc<WindowsInstance>, error: &StepError, cx: Arc<Context>) -> Action {
    let reason = error.reason().as_str();
    tracing::warn!(instance = instance.name_any(), reason, %error, "a reconcile of the WindowsInstance failed; the operator retries it");
    cx.process.metrics.reconcile_failed("WindowsInstance");
    Action::requeue(API_RETRY)
}

async fn reconcile_instance(cached: &Arc<WindowsInstance>, cx: &Arc<Context>) -> Result<Action, StepError> {
    // The cached instance must include this operator's last write. Otherwise, that write is about to trigger another reconcile.
    if !cx.writes.instances.is_caught_up(cached) {
        return Ok(Action::await_change());
    }
    // Without its pool, the settings to reach the host are unknown. The pool's finalizer keeps the pool while it has instances, unless a user
    // removes the finalizer.
    let Some(pool) = cx.pool_of(cached) else {
        return Box::pin(without_pool::reconcile(cached, cx)).await;
    };
    let mut scope = Scope::new(cx.clone(), cached.clone(), pool);
    Box::pin(work(&mut scope)).await
}

/// Does the work of a reconcile, and stores its progress or its failure.
async fn work(scope: &mut Scope) -> Result<Action, StepError> {
    match Box::pin(act(scope)).await {
        Ok(action) => {
            scope.save_at_end().await?;
            Ok(action)
        }
        Err(StepError::Outdated) => Err(StepError::Outdated),
        Err(error @ StepError::Api { .. }) if scope.status.operation.is_none() => Err(error),
        Err(error) if scope.is_in_progress(GrantType::RotateKey) => {
            rotate::failed(scope, &error).await.map(Action::requeue)
        }
        Err(error) if scope.is_in_progress(GrantType::PullImages) => {
            pull::failed(scope, &error).await.map(Action::requeue)
        }
        Err(error) => {
            let is_change = scope.operation_type().is_some_and(|t| t != GrantType::Provision);
            let wait = scope.fail(&error).await?;
            let mut at_once = false;
            if !scope.removes() {
                if is_change {
                    at_once = update::failed(scope, &error).await?;
                } else {
                    // The next attempt observes the host again.
                    scope.drop_operation();
                }
                scope.save().await?;
            }
            Ok(Action::requeue(if at_once { Duration::ZERO } else { wait }))
        }
    }
}

/// Reports user annotations that have no effect.
fn report_annotations(scope: &Scope) {
    let node = scope.cx.node(&scope.name());
    let on_node = node.iter().flat_map(|n| without_effect(n.annotations(), OF_NODE, "Node"));
    for note in without_effect(scope.instance.annotations(), OF_INSTANCE, "WindowsInstance").into_iter().chain(on_node)
    {
        scope.say(EventReason::AnnotationWithoutEffect, "Reconcile", &note);
    }
}

/// Works on the host as its state and its grant require: removes it, joins it, or works on its node.
async fn act(scope: &mut Scope) -> Result<Action, StepError> {
    report_annotations(scope);
    health::follow(scope);
    let grant = scope.instance.spec.grant.clone().filter(|g| scope.may_start(g));
    if scope.leaving() {
        return Box::pin(leave(scope, grant)).await;
    }
    remove::take_back(scope).await?;
    // While wicd may get no certificate, only a key rotation begins: most other operations would stop halfway. A change of the pool's status triggers
    // the next reconcile.
    let rights_problem = scope.cx.wicd.rights.problem().filter(|_| scope.status.operation.is_none());
    let grant = grant.filter(|g| rights_problem.is_none() || g.type_ == GrantType::RotateKey);
    if scope.status.current_version.is_some() {
        return node(scope, grant).await;
    }
    if let Some(wait) = scope.retry_after() {
        return Ok(Action::requeue(wait));
    }
    match grant.filter(|g| g.type_ == GrantType::Provision && !scope.has_used(g)) {
        Some(grant) => join::run(scope, &grant).await,
        None if scope.status.failures.is_some() => Ok(requeue(scope.until_pause_ends())),
        None => {
            if let Some(remaining) = undecided_for(scope) {
                return Ok(Action::requeue(remaining));
            }
            let wait = Idle { lacks_policies: rights_problem.is_some(), ..idle(scope) }.wait(&scope.name());
            scope.set_conditions(&Situation::Waiting { leaving: false, why: &wait.message });
            Ok(requeue(scope.until_pause_ends()))
        }
    }
}

/// Returns the remaining time in which a new instance does not report its wait yet. Its pool decides soon, and a short wait is not worth a write.
fn undecided_for(scope: &Scope) -> Option<Duration> {
    let created = scope.instance.creation_timestamp().filter(|_| scope.status.conditions.is_empty())?;
    let age = Duration::try_from(clock::now().duration_since(created.0)).unwrap_or_default();
    scope.cx.process.args.show_step_after.checked_sub(age).filter(|remaining| !remaining.is_zero())
}

/// Returns the observations that explain why no operation begins on the host.
fn idle(scope: &Scope) -> Idle {
    let node = scope.cx.node(&scope.name());
    Idle {
        is_node: scope.status.current_version.is_some(),
        is_plan: scope.is_plan(),
        has_other_operator: !scope.cx.other_operator.is_gone(),
        pause: scope.pool.spec.rollout().pause(clock::now()),
        held: is_held(&scope.instance, node.as_deref()),
        ..Idle::default()
    }
}

/// Works on a host that must leave. The host stays a node until its removal or release is granted, a user abandons it, or its Machine is gone.
async fn leave(scope: &mut Scope, grant: Option<Grant>) -> Result<Action, StepError> {
    let grant = grant.filter(|g| !scope.has_used(g));
    scope.forget_failures_before_leaving();
    if remove::is_abandoned(&scope.instance) {
        return remove::abandon(scope).await;
    }
    if let Some(begun) = remove::irrevocable(scope) {
        if let Some(wait) = scope.retry_after() {
            return Ok(Action::requeue(wait));
        }
        return remove::run(scope, &begun).await;
    }
    let is_alone = scope.cx.other_operator.is_gone();
    let machine = scope.instance.spec.origin.as_ref().and_then(|o| o.machine.clone());
    let orphan = scope.pool.spec.deletion_policy() == DeletionPolicy::Orphan;
    let set = scope.pool.spec.inventory.machine_set_ref.as_ref();
    if let (Some(machine), Some(set), false, true) = (machine.as_deref(), set, orphan, is_alone)
        && machines::is_gone(&scope.cx.cluster.client, set.group.unwrap_or_default(), machine).await
    {
        return remove::vanished(scope).await;
    }
    // A released host is neither changed nor contacted.
    let is_released = orphan || grant.as_ref().is_some_and(|g| g.type_ == GrantType::Orphan);
    if is_alone && !is_released && restored::is_lost(scope) {
        if let Some(wait) = scope.retry_after() {
            return Ok(Action::requeue(wait));
        }
        if let Some(wait) = restored::recover(scope).await? {
            return Ok(Action::requeue(wait));
        }
        if let Some(grant) = grant.as_ref().filter(|_| scope.status.current_version.is_some()) {
            // The grant was given when nothing was known about the host. The removal of a node needs a new grant, within the disruption budget.
            scope.status.record().last_operation = Some(grant.id.clone());
            return Ok(Action::await_change());
        }
    }
    match &grant {
        // A released host is not changed, so earlier failures cause no wait.
        Some(grant) if grant.type_ == GrantType::Orphan => return remove::release(scope, grant).await,
        Some(grant) if grant.type_ == GrantType::Remove => {
            if let Some(wait) = scope.retry_after() {
                return Ok(Action::requeue(wait));
            }
            return remove::run(scope, grant).await;
        }
        _ => remove::take_back(scope).await?,
    }
    if scope.status.current_version.is_some() {
        let operation_id = scope.status.operation.as_ref().map(|o| o.id.clone());
        let action = node(scope, grant.filter(|g| g.type_.is_change() && Some(&g.id) == operation_id.as_ref())).await?;
        if scope.status.operation.is_some() {
            return Ok(action);
        }
    }
    // A host that leaves during its join may already be a node.
    let idle = idle(scope);
    let is_node = idle.is_node || scope.status.node_ref.is_some();
    let wait = Idle { leaves: true, has_machine: machine.is_some(), is_node, ..idle }.wait(&scope.name());
    scope.set_conditions(&Situation::Waiting { leaving: true, why: &wait.message });
    // No watch reports the deletion of a Machine whose Node was deleted before.
    Ok(if machine.is_some() { Action::requeue(MACHINE_POLL) } else { Action::await_change() })
}

/// Works on a host that is a node: changes it as its pool has granted, and otherwise keeps its state.
async fn node(scope: &mut Scope, grant: Option<Grant>) -> Result<Action, StepError> {
    let stored = scope.status.operation.clone();
    if stored.is_none() {
        adopt_reported_version(scope).await;
    }
    let of_node =
        |t: GrantType| t.is_change() || matches!(t, GrantType::Stage | GrantType::RotateKey | GrantType::PullImages);
    let grant = grant.filter(|g| !scope.has_used(g) && of_node(g.type_));
    // A disruptive update to the version that the host already follows has one of two purposes: a host that must be restarted also gets a new wicd,
    // or a moved host gets its new address with a restart of kubelet. Any other such grant was given for an older status, and its pool is about to
    // revoke it.
    let in_vain = |g: &Grant| {
        let node = scope.cx.node(&scope.name());
        let wants_reboot = node.is_some_and(|n| n.annotations().contains_key(key::REBOOT_REQUIRED));
        g.type_ == GrantType::Update
            && g.version == scope.status.current_version
            && g.disruption > Some(Disruption::None)
            && !(g.disruption == Some(Disruption::Reboot) && wants_reboot)
            && scope.moved().is_none()
    };
    let grant = grant.filter(|g| stored.is_some() || !in_vain(g));
    let other = |g: &Grant| stored.as_ref().is_some_and(|o| o.id != g.id);
    if let Some(operation) = &stored
        && grant.as_ref().is_none_or(other)
    {
        // An operation that has changed the host is completed, even without its grant.
        if operation.is_irrevocable() {
            return update::run(scope, &operation.as_grant()).await;
        }
        update::withdraw(scope).await?;
    }
    let Some(grant) = grant else { return sync_idle_node(scope).await.map(requeue) };
    let wait = match grant.type_ {
        GrantType::RotateKey => scope.key_waits(),
        GrantType::PullImages => scope.images_wait(),
        _ => None,
    };
    if let Some(wait) = wait {
        // The pool revokes the grant if it sees the host before the wait is over. Otherwise, the grant stays.
        let again = sync_idle_node(scope).await?;
        return Ok(requeue(again.into_iter().chain([wait]).min()));
    }
    match grant.type_ {
        GrantType::Stage => update::send_ahead(scope, &grant).await,
        GrantType::RotateKey => rotate::run(scope, &grant).await,
        GrantType::PullImages => pull::run(scope, &grant).await,
        _ => update::run(scope, &grant).await,
    }
}

/// Returns the action that waits for the next change, but not longer than `again`, if that is set.
fn requeue(again: Option<Duration>) -> Action {
    again.map_or_else(Action::await_change, Action::requeue)
}

/// Adopts the version that wicd reports in the Node, if this operator has stored that version. The host's report is more reliable than the status,
/// which may be outdated, for example after a restore of the cluster's data from a backup.
async fn adopt_reported_version(scope: &mut Scope) {
    let Some(node) = scope.cx.node(&scope.name()) else { return };
    let Some(follows) = node.annotations().get(key::VERSION).filter(|_| scope.is_recorded(&node)) else { return };
    if scope.status.current_version.as_ref() == Some(follows) {
        return;
    }
    if scope.cx.own_version(follows).await.ok().flatten().is_none() {
        return;
    }
    let before = scope.status.record().current_version.replace(follows.clone()).unwrap_or_default();
    let note = format!(
        "wicd on the host reports version {}; status.currentVersion was {} and is corrected",
        short(follows),
        short(&before)
    );
    scope.say(EventReason::VersionCorrected, "Keep", &note);
}

/// Keeps the desired metadata in the Node of a host without an operation, and reports the state of the host. Contacts the host if its address or
/// the host key in its entry has changed, or if it is unknown whether the host answers. Returns the time after which the host is reconciled again
/// even without a change.
async fn sync_idle_node(scope: &mut Scope) -> Result<Option<Duration>, StepError> {
    // Called for its effect: it handles a user's request for another attempt.
    let _ = scope.retry_after();
    let name = scope.name();
    if let Some(end) = scope.cx.wicd.renewals.end(&name) {
        scope.note_wicd_certificate(end);
    }
    let Some(node) = scope.cx.node(&name) else {
        // The Node was deleted: the host must register again.
        scope.status.record().current_version = None;
        let why = idle(scope).deleted_node(&name);
        if scope.status.record().node_ref.take().is_some() {
            scope.status.record().holds_node_name = true;
            scope.say(EventReason::NodeDeleted, "Keep", &why);
        }
        report_node(scope, &Situation::Waiting { leaving: false, why: &why });
        return Ok(None);
    };
    // A changed address of the host does not change the owner of its Node.
    if let NodeOwner::Others(why) = whose(Some(&node), &scope.evidence()) {
        let says = format!("the Node {name} does not belong to this host any more: {why}");
        report_node(scope, &Situation::Node { ready: false, says: &says, up_to_date: true });
        return Ok(None);
    }
    scope.status.record().node_ref = Some(node::reference(&node));
    if let Some(operation) = cordoned_by(&node) {
        // The operation of this cordon is finished or unknown.
        let left = Cordon { operation_id: operation.into(), pre_cordoned: false };
        release_cordon(&left, &scope.cx.cluster.client, &node).await?;
    }
    report_host(scope, &node);
    let look = health::update_wicd_silence(scope, &node, Instant::now());
    report_lost_settings(scope).await;
    let (ready, _, mut says) = node::ready(&node);
    let mut is_outdated = false;
    if !scope.only_watches() {
        match register::sync_node_metadata(scope, &node).await {
            Ok(is_there) => is_outdated = !is_there,
            Err(error) => {
                let Some(wait) = scope.same_failure(&error) else { return Err(error) };
                // A Node that is not Ready is more important to report.
                if !ready {
                    report_idle_node(scope, &node, &says);
                }
                return Ok(Some(wait));
            }
        }
    }
    // Also in mode Plan: a waiting client must not mistake an old state for the current one.
    is_outdated |= maintenance::show_idle(scope, &node).await?;
    if let Some(waits) = maintenance::waits(scope, &node) {
        says = format!("{says}; {waits}");
    }
    if is_held(&scope.instance, Some(&node)) {
        let end = Act::Release(&scope.name()).command();
        says =
            format!("{says}; on hold: the annotation {}=true keeps it as it is. To end the hold, run {end}", key::HOLD);
    }
    let is_asked = maintenance::requested(scope, Some(&node)).request.is_some();
    if ready && scope.up_to_date() && !is_asked && !node.annotations().contains_key(key::REBOOT_REQUIRED) {
        // The desired state is reached, so earlier failures no longer apply.
        scope.status.record().failures = None;
    }
    let was_ready = conditions::is_true(&scope.status.conditions, kind::READY);
    report_idle_node(scope, &node, &says);
    if was_ready && !ready {
        scope.say(EventReason::NodeNotReady, "Keep", &says);
    }
    // A concurrent write by another client may be a heartbeat, which triggers no reconcile.
    let again = look.into_iter().chain(is_outdated.then_some(API_RETRY)).min();
    if scope.only_watches() {
        return Ok(again);
    }
    if is_untried(&scope.status) {
        // Saved first, because a host that does not answer takes time.
        scope.save().await?;
    }
    let looks = [address::verify(scope).await?, health::try_host(scope, &node).await?];
    if let Some(moved) = scope.moved() {
        says = format!(
            "{says}; {moved}: the Node gets the new address with a restart of kubelet, in its turn (rollout.maxUnavailable)"
        );
    }
    report_idle_node(scope, &node, &says);
    Ok(again.into_iter().chain(looks.into_iter().flatten()).min())
}

/// Reports a node without an operation.
fn report_idle_node(scope: &mut Scope, node: &Node, says: &str) {
    let (says, up_to_date) = (with_host(scope, says, node), scope.up_to_date());
    report_node(scope, &Situation::Node { ready: node::ready(node).0, says: &says, up_to_date });
}

/// Returns the message about a node: kubelet's own message, followed by other known facts.
fn with_host(scope: &Scope, says: &str, node: &Node) -> String {
    let silent = conditions::is_true(&scope.status.conditions, kind::WICD_SILENT);
    let silent = silent.then(|| format!("wicd reports nothing: see the condition {}", kind::WICD_SILENT));
    let beside = beside_kubelet(&scope.status, node::is_ready_unknown(node));
    let more: Vec<String> = [silent, beside].into_iter().flatten().collect();
    if more.is_empty() {
        return says.to_owned();
    }
    // kubelet's message is a full sentence.
    format!("{}; {}", says.trim_end_matches('.'), more.join("; "))
}

/// Reports the health of a node. Does nothing for a node that must leave, because its removal is reported instead.
fn report_node(scope: &mut Scope, situation: &Situation<'_>) {
    if !scope.leaving() {
        scope.set_conditions(situation);
    }
}

/// Reports what wicd has written to the Node: a required restart, and the drift of the host.
fn report_host(scope: &mut Scope, node: &Node) {
    if node.annotations().contains_key(key::REBOOT_REQUIRED) {
        let message = idle(scope).restart(&scope.name());
        scope.set_condition(kind::REBOOT_REQUIRED, Status::True, Reason::Waiting, &message);
    } else {
        scope.remove_condition(kind::REBOOT_REQUIRED);
    }
    let Some(drift) = node.annotations().get(key::DRIFT) else { return scope.remove_condition(kind::DRIFTED) };
    // The host provides this text, so it is sanitized.
    let drift = format!(
        "the host differs, or did recently, from what the operator configured; wicd has restored what is healed and left the rest: {}. Find the program or the user that changes it",
        facts::message(drift)
    );
    if scope.set_condition(kind::DRIFTED, Status::True, Reason::Drifted, &drift).as_ref() != Some(&drift) {
        scope.cx.process.metrics.drift.inc();
        scope.say(EventReason::Drifted, "Keep", &drift);
    }
}

/// Sets or removes the condition for a node that keeps its legacy version because the next change would lose settings.
async fn report_lost_settings(scope: &mut Scope) {
    let target = scope.pool.status.as_ref().and_then(|s| s.desired_version.clone());
    let message = match (adopted_version(&scope.instance), target) {
        (Some(version), Some(target)) => {
            let wmco_versions = WmcoVersions::read([version.clone()].into(), &scope.pool, &scope.cx).await;
            let Some(to) = scope.cx.own_version(&target).await.ok().flatten() else { return };
            lost_settings::message(&wmco_versions.losses_of(&scope.instance, &to.services))
        }
        (Some(_), None) => return,
        (None, _) => None,
    };
    let Some(message) = message else { return scope.remove_condition(kind::UPDATE_WITHHELD) };
    let before = scope.set_condition(kind::UPDATE_WITHHELD, Status::True, Reason::SettingsWouldBeLost, &message);
    if before.as_ref() != Some(&message) {
        scope.say(EventReason::SettingsWouldBeLost, "Update", &message);
    }
}
