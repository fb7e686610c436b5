//! Drain of a node, for removals and changes.

use std::{collections::BTreeMap, time::Duration};

use api::{DrainStatus, Operation, Step};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use kube::runtime::controller::Action;

use super::{error::StepError, node_events, scope::Scope};
use crate::{
    drain::{self, Drain, DrainError, State},
    runtime::{clock, events::EventReason},
};
use wnp_core::{
    drain::{
        Options,
        cordon::{Cordon, is_cordoned, is_of_the_legacy_operator},
        settings::options,
    },
    enumeration::counted,
    node::ready,
    operation::remove::is_deconfiguring,
};

/// Interval between drain passes while the drain options do not allow the eviction of a pod.
const BLOCKED_POLL: Duration = Duration::from_secs(20);
/// Interval at which the pods of a deleted Node are listed again.
const LEFT_BEHIND_POLL: Duration = Duration::from_secs(5);

/// Returns the cordon of the current operation.
pub(super) fn cordon(scope: &Scope) -> Cordon {
    let pre_cordoned = scope.status.operation.as_ref().is_some_and(|o| o.pre_cordoned);
    Cordon { operation_id: scope.operation_id(), pre_cordoned }
}

/// Lifts the cordon of the current operation from its Node.
pub(super) async fn lift_cordon(scope: &Scope, node: &Node) -> Result<(), StepError> {
    Ok(drain::release_cordon(&cordon(scope), &scope.cx.cluster.client, node).await?)
}

/// Reports whether the Node has a leftover cordon of the legacy operator, and the host does not run this operator's wicd yet.
pub(super) fn is_legacy_cordon(scope: &Scope, node: &Node) -> bool {
    scope.status.wicd.is_none() && is_of_the_legacy_operator(node)
}

/// Takes over a leftover cordon of the legacy operator for the current operation, which removes it at its end.
pub(super) async fn take_over_cordon(scope: &mut Scope) -> Result<(), StepError> {
    if !scope.cx.node(&scope.name()).is_some_and(|n| is_legacy_cordon(scope, &n)) {
        return Ok(());
    }
    if let Some(node) = scope.find_node().await?.node().filter(|n| is_legacy_cordon(scope, n)) {
        drain::take_over_cordon(&cordon(scope), &scope.cx.cluster.client, &node).await?;
    }
    Ok(())
}

/// Interval at which an operation without a slot in the disruption budget checks for one. Its pool also triggers a reconcile.
const PLACE_POLL: Duration = Duration::from_secs(5);

/// Returns the drain options of the pool.
fn pool_options(scope: &Scope) -> Options {
    options(&scope.pool.spec.drain())
}

/// Reports whether the operation was granted without a slot in the disruption budget, because the node accepted no pods. Returns false for an
/// operation that has changed the host, because it must be completed in any case.
fn is_outside_budget(scope: &Scope) -> bool {
    let is_irrevocable = |o: &Operation| o.is_irrevocable() || is_deconfiguring(o);
    let Some(operation) = scope.status.operation.as_ref().filter(|o| !is_irrevocable(o)) else { return false };
    scope.instance.spec.grant.as_ref().is_some_and(|g| g.id == operation.id && g.without_place)
}

/// Reports whether new pods may be scheduled to the node.
fn takes_pods(node: &Node) -> bool {
    ready(node).0 && !is_cordoned(node)
}

/// Cordons the node. Returns the operation's wait if the node accepts pods again and has no slot in the disruption budget.
pub(super) async fn take_cordon(scope: &mut Scope, node: &Node) -> Result<Option<Action>, StepError> {
    let may_cordon = {
        let is_outside_budget = is_outside_budget(scope);
        move |node: &Node| !is_outside_budget || !takes_pods(node)
    };
    if !may_cordon(node) {
        return wait_for_place(scope).await.map(Some);
    }
    match &mut scope.status.record().operation {
        // A drain has begun, so the node was cordoned before.
        Some(operation) if operation.drain.is_some() => record_lost_cordon(scope, clock::now()),
        Some(operation) => {
            operation.pre_cordoned = Cordon::plan(node, operation.id.clone()).pre_cordoned;
        }
        None => {}
    }
    scope.enter_step(Step::Cordon, "cordoning the node").await?;
    let cordon = cordon(scope);
    let node = drain::take_cordon(&cordon, &scope.cx.cluster.client, node, may_cordon).await?;
    if cordon.is_held(&node) { Ok(None) } else { wait_for_place(scope).await.map(Some) }
}

/// Waits until the pool finds a slot for the operation or revokes its grant. A pool in mode Plan does neither, so the operation ends; the host was
/// not changed yet.
async fn wait_for_place(scope: &mut Scope) -> Result<Action, StepError> {
    if scope.is_plan() {
        scope.drop_operation();
        return Ok(Action::await_change());
    }
    scope.enter_step(Step::Cordon, "waiting until one more node may be disrupted (rollout.maxUnavailable)").await?;
    Ok(Action::requeue(PLACE_POLL))
}

/// Records and reports that the node lost its cordon during the drain: another client uncordoned it, or its Node was created again. The new cordon
/// belongs to the operator, whoever owned the old one, and the scheduler gets time to observe the new one.
fn record_lost_cordon(scope: &mut Scope, now: Timestamp) {
    if let Some(operation) = &mut scope.status.record().operation {
        operation.pre_cordoned = false;
        if let Some(drain) = &mut operation.drain {
            drain.cordoned_time = Some(now.into());
        }
    }
    let note = "the node was no longer cordoned during its drain, because another client uncordoned it or its Node was created again; the operator \
         cordons it again";
    scope.say(EventReason::ExternalUncordon, "Drain", note);
}

/// Waits until no pod is bound to the name of a missing Node. Such pods run as long as the host does, until the cluster removes them, or the Node is
/// created again and drained. Returns `None` when no pod is left.
pub(super) async fn left_behind(scope: &mut Scope) -> Result<Option<Action>, StepError> {
    let options = pool_options(scope);
    let pods = drain::left_behind(&scope.cx.hosts.drainer, &scope.name(), clock::now(), &options).await?;
    let Some(first) = pods.first() else { return Ok(None) };
    let what = format!(
        "the Node {} does not exist, and pods are still bound to its name ({}, for example {first}); waiting until the cluster has removed them, or \
         the Node exists again",
        scope.name(),
        counted(pods.len(), "pod")
    );
    scope.enter_step(Step::Drain, &what).await?;
    Ok(Some(Action::requeue(LEFT_BEHIND_POLL)))
}

/// Performs one pass of the drain. Returns `None` when the node is empty.
pub(super) async fn pass(scope: &mut Scope, node: &Node) -> Result<Option<Action>, StepError> {
    let now = clock::now();
    let cordon = cordon(scope);
    let stored = scope.status.operation.as_ref().and_then(|o| o.drain.clone());
    let (started, fresh) = match stored.as_ref().and_then(|d| d.start_time.known()) {
        Some(started) => (started, false),
        None => (now, true),
    };
    if fresh {
        if let Some(operation) = &mut scope.status.record().operation {
            operation.drain = Some(DrainStatus { start_time: started.into(), ..DrainStatus::default() });
        }
        scope.enter_step(Step::Drain, "evicting pods").await?;
        node_events::draining(scope);
    }
    // The scheduler may not have observed a cordon that was just renewed.
    let cordoned_at = stored.as_ref().and_then(|d| d.cordoned_time?.known()).unwrap_or(started);
    let options = pool_options(scope);
    let may_cordon = !is_outside_budget(scope);
    let drain = Drain { node, cordon: &cordon, may_cordon, started, now, cordoned_at, options: &options };
    let progress = match drain::pass(&scope.cx.hosts.drainer, &drain).await {
        // Another client has uncordoned the node, which is not a failure of the host.
        Err(DrainError::CordonConflict { .. }) if !may_cordon => return wait_for_place(scope).await.map(Some),
        progress => progress?,
    };
    if let Some(status) = scope.status.record().operation.as_mut().and_then(|o| o.drain.as_mut()) {
        status.remaining = progress.remaining;
        status.blockers.clone_from(&progress.blockers);
    }
    if progress.recordoned {
        record_lost_cordon(scope, now);
    }
    for warning in by_text(&progress.warnings) {
        scope.say(EventReason::DrainWarning, "Drain", &warning);
    }
    for forced in &progress.forced {
        let note = format!(
            "the drain took longer than drain.timeoutSeconds, so the operator deleted a pod despite its disruption budget: {forced}"
        );
        node_events::say(scope, EventReason::DrainForced, "Drain", &note);
    }
    let mut blockers = progress.blockers.join("; ");
    match progress.state {
        State::Drained => return Ok(None),
        State::TimedOut => {
            // No pod is evicted after the timeout: the blockers are those of the previous pass.
            if let Some(known) = stored.filter(|d| !d.blockers.is_empty()) {
                blockers = known.blockers.join("; ");
            }
            drain::release_cordon(&cordon, &scope.cx.cluster.client, node).await?;
            if let Some(operation) = &mut scope.status.record().operation {
                operation.drain = None;
            }
            if blockers.is_empty() {
                "the remaining pods have not terminated".clone_into(&mut blockers);
            }
            return Err(StepError::DrainTimedOut { blockers });
        }
        State::Waiting | State::Refused => {}
    }
    let what = match (progress.remaining, blockers.is_empty()) {
        (0, true) => "no pod left; waiting until the scheduler has seen the cordon".to_string(),
        (1, true) => "1 pod left".to_string(),
        (n, true) => format!("{n} pods left"),
        (0, false) => format!("no pod left; {blockers}"),
        (n, false) => format!("pods left: {n}; {blockers}"),
    };
    // The same blockers are reported once; the number of remaining pods would make each pass a new event.
    if !blockers.is_empty() {
        let overdue = if progress.overdue {
            "; the drain takes longer than drain.timeoutSeconds, and the operator continues it"
        } else {
            ""
        };
        node_events::say(scope, EventReason::DrainBlocked, "Drain", &format!("{blockers}{overdue}"));
    }
    scope.enter_step(Step::Drain, &what).await?;
    let wait = if progress.state == State::Refused { BLOCKED_POLL } else { progress.next };
    Ok(Some(Action::requeue(wait.max(Duration::from_millis(500)))))
}

/// Maximum number of pods that one event names.
const NAMED: usize = 3;

/// Combines the warnings of a pass, `<pod>: <text>` or `<text>`, by text: many pods have no controller, and each would cause its own event.
fn by_text(warnings: &[String]) -> Vec<String> {
    let mut pods: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for warning in warnings {
        let (pod, text) = warning.split_once(": ").unwrap_or(("", warning));
        pods.entry(text).or_default().push(pod);
    }
    let tell = |(text, pods): (&str, Vec<&str>)| {
        let more = pods.len().saturating_sub(NAMED);
        let named = pods.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        match (named.is_empty(), more) {
            (true, _) => text.to_owned(),
            (false, 0) => format!("{named}: {text}"),
            (false, more) => format!("{named} and {more} more: {text}"),
        }
    };
    pods.into_iter().map(tell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_many_pods_are_one_event() {
        let bare = |pod: &str| format!("shop/{pod}: no controller recreates it");
        let cases = [
            (vec![], vec![]),
            (vec![bare("a")], vec![bare("a")]),
            (
                vec![bare("a"), "the node had been uncordoned".into(), bare("b"), bare("c"), bare("d"), bare("e")],
                vec![
                    "shop/a, shop/b, shop/c and 2 more: no controller recreates it".to_owned(),
                    "the node had been uncordoned".into(),
                ],
            ),
        ];
        for (warnings, expected) in cases {
            assert_eq!(by_text(&warnings), expected);
        }
    }
}
