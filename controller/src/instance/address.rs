//! Verifies a node's host soon after its address has changed, rather than with the next operation: an error in a list
//! is reported while its author still remembers it. The host is not changed.

use std::time::Duration;

use api::{Failures, Step};

use super::{
    error::StepError,
    look,
    scope::{Scope, until},
};
use crate::events::EventReason;
use wnp_core::operation::identity::{Identity, Purpose};

/// Whether the entry of the host names another place than the one where it was proven.
fn is_elsewhere(scope: &Scope) -> bool {
    let host = &scope.instance.spec.host;
    scope.status.proven_at.as_ref().is_some_and(|p| (&p.address, p.port) != (&host.address, host.port))
}

/// Proves a host whose address has changed before it is taken out: its node must not be drained for another machine's sake. An entry that
/// leads to another machine by now no longer says where the host is: then it is sought where it was proven last, by the key and the machine
/// id that it had there. Found there, it is reached there for the rest of this reconcile.
pub(super) async fn verify_before_removal(scope: &mut Scope) -> Result<(), StepError> {
    let Some(place) = scope.status.proven_at.clone().filter(|_| is_elsewhere(scope)) else { return Ok(()) };
    let error = match look_there(scope, Purpose::Remove, true).await {
        Err(error) if !matches!(error, StepError::Api { .. }) => error,
        proven => return proven,
    };
    let entry = scope.instance.spec.host.clone();
    let host = &mut scope.instance.spec.host;
    // A key that the entry declares is that of the machine to which the entry leads now.
    (host.address, host.port, host.host_key) = (place.address, place.port, None);
    look_there(scope, Purpose::Remove, true).await.map_err(|_| {
        scope.instance.spec.host = entry;
        // What its author can correct.
        error
    })
}

/// Looks, if the host's address is another one than it was proven at. Returns how long the next look waits, if it does.
pub(super) async fn verify(scope: &mut Scope) -> Result<Option<Duration>, StepError> {
    if !is_elsewhere(scope) {
        if scope.status.address_failures.take().is_some() {
            // It was changed back.
            scope.mark_reachable();
        }
        return Ok(None);
    }
    if let Some(wait) = scope.status.address_failures.as_ref().and_then(|f| until(f, scope.cx.process.args.backoff_max))
    {
        return Ok(Some(wait));
    }
    let _one_of_few = match look::place(scope) {
        Ok(place) => place,
        Err(wait) => return Ok(Some(wait)),
    };
    let host = scope.instance.spec.host.clone();
    let place = format!("{} port {}", host.address, host.port);
    match look::in_time(&host.address, look_there(scope, Purpose::Keep, false)).await {
        Ok(()) => {
            scope.mark_reachable();
            let note = format!("the host answers at {place} with its known host key and machine id");
            scope.cx.events.say(&scope.instance, EventReason::AddressVerified, Step::VerifyAddress.as_str(), &note);
            Ok(None)
        }
        Err(error @ StepError::Api { .. }) => Err(error),
        Err(error) => {
            let (failures, wait) = scope.next_failure(scope.status.address_failures.as_ref(), &error);
            let reason = failures.last_reason.clone();
            scope.status.address_failures = Some(Failures { step: Step::VerifyAddress, ..failures });
            scope.mark_unreachable(&error);
            scope.cx.process.metrics.failed(&scope.instance.spec.pool_ref.name, &reason);
            let note = format!("{reason}: the host does not answer at {place}, its new address in the list: {error}");
            scope.cx.events.say(&scope.instance, EventReason::AddressRefused, Step::VerifyAddress.as_str(), &note);
            Ok(Some(wait))
        }
    }
}

async fn look_there(scope: &mut Scope, purpose: Purpose, granted: bool) -> Result<(), StepError> {
    let mut session = look::open(scope, granted).await?;
    let (identity, _, facts) = look::ask(scope, &mut session, purpose).await?;
    if matches!(identity, Identity::Meant | Identity::Supersedes(_)) {
        scope.record_identity(session.connection());
        scope.status.facts = Some(facts);
    }
    session.close().await;
    Ok(())
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
