//! Verifies the host of a node soon after the address or host key in its entry, or the IP address of its DNS name, has changed, and before its
//! removal. So an error in a list is reported while its author still remembers the change. Does not change the configuration of the host.

use std::{net::IpAddr, sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use api::{Failures, Step};

use super::{
    error::{Contact, StepError},
    failures::until,
    idle_session,
    scope::Scope,
};
use crate::{args::host_key_policy::fingerprint_of, runtime::events::EventReason};
use wnp_core::operation::identity::{Identity, Purpose};

/// Delay before the next lookup of the DNS name of a node's host, without jitter. The address of the name may change at any time.
const NAME_INTERVAL: Duration = Duration::from_mins(1);
/// Maximum wait for a DNS lookup.
const LOOKUP: Duration = Duration::from_secs(5);

/// Reports whether the address or port in the host's entry differs from where the host was last proven.
fn is_elsewhere(scope: &Scope) -> bool {
    let host = &scope.instance.spec.host;
    scope.status.proven_at.as_ref().is_some_and(|p| (&p.address, p.port) != (&host.address, host.port))
}

/// Proves a host whose address has changed before it is removed: a node must not be drained because of another machine. If the host is not proven at
/// the address of its entry, tries the last proven address with the host key and the machine ID recorded there. If that succeeds, the rest of this
/// reconcile uses that address. An error of the API server ends the attempt.
pub(super) async fn verify_before_removal(scope: &mut Scope) -> Result<(), StepError> {
    let Some(place) = scope.status.proven_at.clone().filter(|_| is_elsewhere(scope)) else { return Ok(()) };
    let error = match verify_identity_at_entry(scope, Purpose::Remove, true).await {
        Err(error) if !matches!(error, StepError::Api { .. }) => error,
        proven => return proven,
    };
    let entry = scope.instance.spec.host.clone();
    let host = &mut Arc::make_mut(&mut scope.instance).spec.host;
    // A host key in the entry belongs to the machine at the entry's address.
    (host.address, host.port, host.host_key) = (place.address, place.port, None);
    verify_identity_at_entry(scope, Purpose::Remove, true).await.map_err(|_| {
        Arc::make_mut(&mut scope.instance).spec.host = entry;
        // Only the error at the entry's address is returned, because the author of the list can correct it.
        error
    })
}

/// Returns the fingerprint of the proven host key, if the entry declares another one.
fn other_key(scope: &Scope) -> Option<String> {
    let pinned = scope.status.host_key.as_ref()?;
    let declared = scope.instance.spec.host.host_key.as_deref()?;
    (fingerprint_of(declared).as_ref() != Some(&pinned.fingerprint)).then(|| pinned.fingerprint.clone())
}

/// Permits for concurrent DNS lookups. Each lookup holds a thread until the resolver returns, even after the timeout.
static LOOKUPS: Semaphore = Semaphore::const_new(16);

/// Reports whether the DNS name of a host resolves to other addresses than the one at which the host was last proven. Returns `Some(false)` if the
/// entry has no DNS name or the host has no proven address, and `None` if the lookup has no answer or too many lookups are pending.
async fn leads_elsewhere(scope: &Scope) -> Option<bool> {
    let host = &scope.instance.spec.host;
    let proven = scope.status.proven_address.as_deref().and_then(|a| a.parse::<IpAddr>().ok());
    let (Some(proven), Ok(port), true) = (proven, u16::try_from(host.port), is_name(&host.address)) else {
        return Some(false);
    };
    // With so many pending lookups, no answer can be expected. The next attempt comes soon.
    let permit = LOOKUPS.try_acquire().ok()?;
    let name = host.address.clone();
    let lookup = tokio::spawn(async move {
        let _permit = permit;
        tokio::net::lookup_host((name, port)).await.map(Iterator::collect::<Vec<_>>)
    });
    let Ok(Ok(Ok(found))) = tokio::time::timeout(LOOKUP, lookup).await else { return None };
    let found: Vec<IpAddr> = found.into_iter().map(|a| a.ip().to_canonical()).collect();
    (!found.is_empty()).then(|| !found.contains(&proven.to_canonical()))
}

fn is_name(address: &str) -> bool {
    address.parse::<IpAddr>().is_err()
}

/// Returns the wait before the next DNS lookup, with jitter to spread the lookups of all hosts.
fn next_lookup() -> Duration {
    NAME_INTERVAL.mul_f64(1.0 + rand::random::<f64>() / 4.0)
}

/// Verifies the host if its address or host key differs from the proven one. Returns the wait until the next check, if one is due: after a failure,
/// without a free SSH slot, or before the next DNS lookup.
pub(super) async fn verify(scope: &mut Scope) -> Result<Option<Duration>, StepError> {
    let again = verify_place(scope).await?;
    let is_named = is_name(&scope.instance.spec.host.address);
    Ok(again.or_else(|| is_named.then(next_lookup)))
}

async fn verify_place(scope: &mut Scope) -> Result<Option<Duration>, StepError> {
    let known = other_key(scope);
    if known.is_none() && !is_elsewhere(scope) {
        match leads_elsewhere(scope).await {
            Some(true) => {}
            Some(false) => {
                if scope.status.record().address_failures.take().is_some() {
                    // The entry was changed back, or its name resolves to the proven address again.
                    scope.mark_reachable();
                }
                return Ok(None);
            }
            // Without an answer of the resolver, an earlier failure stays.
            None => return Ok(None),
        }
    }
    // An entry that has changed since the failure is verified at once.
    let same = scope.status.address_failures.as_ref().filter(|f| f.host_digest == Some(scope.host_digest()));
    if let Some(wait) = same.and_then(|f| until(f, scope.cx.process.args.backoff_max)) {
        return Ok(Some(wait));
    }
    let _slot = match idle_session::take_slot(scope) {
        Ok(slot) => slot,
        Err(wait) => return Ok(Some(wait)),
    };
    let host = scope.instance.spec.host.clone();
    let place = format!("{} port {}", host.address, host.port);
    let is_moved = is_elsewhere(scope);
    match idle_session::in_time(&host.address, verify_identity_at_entry(scope, Purpose::Keep, false)).await {
        Ok(()) => {
            scope.mark_reachable();
            let key = if known.is_some() { "the host key that its entry declares" } else { "a trusted host key" };
            let note = format!("the host answers at {place} with {key} and is the same machine as before");
            scope.say(EventReason::AddressVerified, Step::VerifyAddress.as_str(), &note);
            Ok(None)
        }
        Err(error @ StepError::Api { .. }) => Err(error),
        Err(error) => {
            let (failures, wait) = scope.next_failure(scope.status.address_failures.as_ref(), &error);
            let reason = failures.reason();
            let what = unverified(known.as_deref(), is_moved, &host.address, host.port);
            let last_message = format!("{what}: {}", failures.last_message);
            scope.status.record().address_failures =
                Some(Failures { step: Step::VerifyAddress, last_message, ..failures });
            match error.contact() {
                Contact::Failed => scope.mark_unreachable(&error),
                Contact::Answered => scope.mark_reachable(),
                Contact::NotTried => {}
            }
            scope.cx.process.metrics.failed(&scope.instance.spec.pool_ref.name, reason);
            let note = format!("{reason}: {what}: {error}");
            scope.say(EventReason::AddressRefused, Step::VerifyAddress.as_str(), &note);
            Ok(Some(wait))
        }
    }
}

/// Returns a message about the part of the entry that could not be verified. `known_key` is the proven host key if the entry declares another one.
/// `is_moved` is true if the address or port of the entry has changed. If it is false and the host key is the proven one, the DNS name of the entry
/// resolves to another address.
fn unverified(known_key: Option<&str>, is_moved: bool, address: &str, port: i32) -> String {
    match known_key {
        Some(known) => {
            format!(
                "the entry of the host declares another host key than the known one, {known}; the node stays as it is, and the operator retries"
            )
        }
        None if is_moved => format!(
            "the host could not be verified at its new address {address} port {port}; the node stays as it is, and the operator retries"
        ),
        None => format!(
            "the name {address} resolves to another IP address than before, and the host could not be verified there; the node stays as it is, and the \
             operator retries"
        ),
    }
}

/// Logs in to the host at the address of its entry, and identifies the host. Records its host key and its facts, unless it belongs to another owner.
/// `granted` selects the kind of SSH slot, as in [`idle_session::open`].
pub(super) async fn verify_identity_at_entry(
    scope: &mut Scope,
    purpose: Purpose,
    granted: bool,
) -> Result<(), StepError> {
    let mut session = idle_session::open(scope, granted).await?;
    let (identity, _, facts) = idle_session::ask(scope, &mut session, purpose).await?;
    if matches!(identity, Identity::ExpectedHost | Identity::Supersedes(_)) {
        scope.record_identity(session.connection());
        scope.status.record().facts = Some(facts);
    }
    session.close().await;
    Ok(())
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
