//! Conditions of a host between operations, and after a failed attempt. Contacts a host soon after its kubelet stops reporting or reports again, and
//! detects a wicd that has stopped reporting. Does not change the configuration of the host.

use std::time::{Duration, Instant};

use api::{
    Reason,
    conditions::{self, Status, kind},
    names::key,
};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{
    address::verify_identity_at_entry,
    error::{Contact, StepError},
    failures::CREDENTIALS_BACKOFF_MAX,
    idle_session,
    scope::Scope,
};
use crate::runtime::clock;
use crate::runtime::events::EventReason;
use wnp_core::{
    node::{
        is_ready_unknown, ready,
        silence::{next_look, silence},
    },
    operation::identity::Purpose,
    status::instance::{answers_without_kubelet, follow_node, is_untried, not_tried},
};

/// Updates the host's conditions from its Node. During an operation, does so only if an attempt has failed.
pub(super) fn follow(scope: &mut Scope) {
    if scope.status.operation.is_some() && scope.status.failures.is_none() {
        return;
    }
    let Some(node) = scope.cx.node(&scope.name()).filter(|n| scope.is_recorded(n)) else { return };
    let (is_ready, _, says) = ready(&node);
    let generation = scope.instance.metadata.generation;
    follow_node(scope.status.record(), (is_ready, is_ready_unknown(&node)), &says, generation, clock::now());
}

/// Contacts a host if it is unknown whether it answers, and records the result. Returns the wait if no SSH slot is free, or if the
/// operator could not try.
pub(super) async fn try_host(scope: &mut Scope, node: &Node) -> Result<Option<Duration>, StepError> {
    if !is_untried(&scope.status) {
        return Ok(None);
    }
    let _slot = match idle_session::take_slot(scope) {
        Ok(slot) => slot,
        Err(wait) => return Ok(Some(wait)),
    };
    let address = scope.instance.spec.host.address.clone();
    match idle_session::in_time(&address, verify_identity_at_entry(scope, Purpose::Keep, false)).await {
        Ok(()) if is_ready_unknown(node) => {
            answers_without_kubelet(scope.status.record(), None, scope.instance.metadata.generation, clock::now());
        }
        Ok(()) => scope.mark_reachable(),
        Err(error @ StepError::Api { .. }) => return Err(error),
        Err(error) => {
            scope.cx.process.metrics.failed(&scope.instance.spec.pool_ref.name, error.reason());
            match error.contact() {
                Contact::Failed => scope.mark_unreachable(&error),
                Contact::Answered if is_ready_unknown(node) => {
                    let (generation, why) = (scope.instance.metadata.generation, error.to_string());
                    answers_without_kubelet(scope.status.record(), Some(&why), generation, clock::now());
                }
                Contact::Answered => scope.mark_reachable(),
                Contact::NotTried => {
                    let generation = scope.instance.metadata.generation;
                    let (reason, message) = (error.reason(), error.to_string());
                    not_tried(scope.status.record(), reason, &message, generation, clock::now());
                    // No watch reports the correction, for example of a Secret.
                    return Ok(Some(CREDENTIALS_BACKOFF_MAX));
                }
            }
        }
    }
    Ok(None)
}

/// Sets or removes the condition for a wicd that has stopped reporting. Returns the time until the next check, if one is needed.
pub(super) fn update_wicd_silence(scope: &mut Scope, node: &Node, now: Instant) -> Option<Duration> {
    let name = scope.name();
    let Some(reported) = node.annotations().get(key::WICD_REPORTED).filter(|_| ready(node).0) else {
        scope.cx.wicd.reports.forget(&name);
        scope.remove_condition(kind::WICD_SILENT);
        return None;
    };
    let unchanged = scope.cx.wicd.reports.unchanged(&name, reported, now);
    let told = conditions::find(&scope.status.conditions, kind::WICD_SILENT).map(|c| c.message.clone());
    let Some(message) = silence(reported, unchanged, told.as_deref()) else {
        scope.remove_condition(kind::WICD_SILENT);
        return Some(next_look(false));
    };
    if scope.set_condition(kind::WICD_SILENT, Status::True, Reason::WicdSilent, &message).is_none() {
        scope.say(EventReason::WicdSilent, "Keep", &message);
    }
    Some(next_look(true))
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
