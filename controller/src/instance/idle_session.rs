//! Sessions in which the operator observes a host and proves its identity. A session sends `wicd.exe` if it is missing, and changes nothing else on
//! the host.

use std::time::Duration;

use api::{
    HostFacts,
    host::{HostState, Verb},
};
use sha2::{Digest, Sha256};

use super::{
    error::StepError,
    identity::prove,
    login::{login, open_without_slot},
    scope::Scope,
};
use crate::runtime::{clock, ssh_slots::SshSlot};
use remote::{Session, facts, ssh::SshError};
use wnp_core::operation::identity::{Identity, Purpose};

/// Time limit of one observation of a host.
const LIMIT: Duration = Duration::from_mins(3);
/// Minimum wait when all slots are taken. The maximum is twice as long.
const SLOT_WAIT: Duration = Duration::from_secs(15);

/// Takes an SSH slot for an observation without a grant. Fails with the wait until the next attempt if no slot is free. Does not queue, because work
/// that is granted to the host in the meantime would wait, too.
pub(super) fn take_slot(scope: &Scope) -> Result<SshSlot, Duration> {
    let pool = &scope.instance.spec.pool_ref.name;
    scope.cx.hosts.looks.take(pool).ok_or_else(until_next_slot)
}

/// Returns the wait before the next attempt to take a slot.
pub(super) fn until_next_slot() -> Duration {
    SLOT_WAIT.mul_f64(1.0 + rand::random::<f64>())
}

/// Awaits an observation until its time limit: a host that answers very slowly must not keep its slot for hours.
pub(super) async fn in_time<T>(
    address: &str,
    look: impl Future<Output = Result<T, StepError>>,
) -> Result<T, StepError> {
    let done = tokio::time::timeout(LIMIT, Box::pin(look)).await;
    done.unwrap_or_else(|_| {
        let command = "the log-in and the check of the host's identity".to_owned();
        Err(SshError::CommandTimeout { address: address.to_owned(), command, after: LIMIT, log: String::new() }.into())
    })
}

/// Logs in to the host. If `granted` is true, waits for an SSH slot of granted work. Otherwise, the caller holds a slot from [`take_slot`].
pub(super) async fn open(scope: &Scope, granted: bool) -> Result<Session, StepError> {
    let host = &scope.instance.spec.host;
    let id = hex::encode(Sha256::digest(format!("{} {} {}", scope.name(), host.address, host.port)));
    let operation = format!("look-{}", &id[..10]);
    let login = login(&scope.cx, &scope.instance, &scope.pool).await?;
    if !granted {
        return open_without_slot(&scope.cx, &scope.instance, &operation, &login).await;
    }
    // The wait is not shown, because no step is announced.
    let slot = scope.cx.hosts.connections.acquire(&scope.instance.spec.pool_ref.name).await;
    Ok(Session::open(&scope.cx.hosts.operator, &login, &host.name, &operation, Some(Box::new(slot))).await?)
}

/// Queries the facts of the host, and identifies the host. Fails if it is not the expected host. Only for [`Purpose::Remove`] without a Node, returns
/// [`Identity::OtherOwner`] for the host of another owner instead.
pub(super) async fn ask(
    scope: &mut Scope,
    session: &mut Session,
    purpose: Purpose,
) -> Result<(Identity, HostState, HostFacts), StepError> {
    session.prepare().await?;
    let state = session.look(&[]).await?;
    let peer = session.connection().peer_address();
    let facts = facts::parse_facts(&state.machine, &scope.instance.spec.host.address, peer, clock::now())?;
    let proven = prove(scope, session, &state, purpose);
    session.tidy(&[Verb::Facts]).await?;
    Ok((proven?, state, facts))
}
