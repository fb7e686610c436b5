//! Contact with one host that is listed without a name.

use std::{net::IpAddr, sync::Arc, time::Duration};

use api::{FirstContact, InstanceHost, Reason, WindowsInstance, WindowsInstanceSpec, host::Verb, text::line};
use sha2::{Digest as _, Sha256};

use super::{Ask, host_key_of};
use crate::{
    args::host_key_policy::HostKeySource,
    context::Context,
    instance::{StepError, check_host_key, credentials, open_without_slot},
};
use remote::RemoteError;
use remote::ssh::{HostKeyCheck, SshError};

/// Time limit for one contact, so that a deliberately slow host does not block others.
const LIMIT: Duration = Duration::from_mins(3);
/// Upper limit for the time limit of connecting and logging in.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for one DNS look-up.
const LOOKUP_LIMIT: Duration = Duration::from_secs(10);

/// Failure of a host to report its name.
#[derive(Debug)]
pub(super) struct Failure {
    /// Reason of the failure.
    pub reason: Reason,
    /// Fault and remedy.
    pub message: String,
}

/// Returns the addresses of a DNS name, or none if the look-up fails.
pub(super) async fn look_up(name: &str) -> Vec<IpAddr> {
    match tokio::time::timeout(LOOKUP_LIMIT, tokio::net::lookup_host((name, 0))).await {
        Ok(Ok(found)) => found.map(|a| a.ip()).collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

/// Logs in to a host. If its host key was not known before, returns only the key; otherwise, queries the name and the ids of the host, too.
pub(super) async fn contact(cx: &Arc<Context>, ask: &Ask) -> Result<FirstContact, Failure> {
    if let Ok(result) = tokio::time::timeout(LIMIT, try_contact(cx, ask)).await {
        return result.map_err(|error| failure(ask, &error));
    }
    let message = format!(
        "the host at {} has not reported its name within {} s: check that the host is healthy and its network is fast enough; the operator retries",
        ask.entry.host.address,
        LIMIT.as_secs()
    );
    Err(Failure { reason: Reason::HostnameUnknown, message })
}

/// Reports whether the expected host key is that of the first contact.
fn is_key_of_first_contact(ask: &Ask) -> bool {
    let source = host_key_of(&ask.entry, ask.stored.as_ref(), &ask.pool);
    let is_other = ask.entry.host.host_key.is_some() || matches!(source, Ok(HostKeySource::KnownHosts(_)));
    ask.stored.is_some() && !is_other
}

fn failure(ask: &Ask, error: &StepError) -> Failure {
    let address = &ask.entry.host.address;
    match error {
        StepError::HostKey(problem) => Failure { reason: problem.reason(), message: problem.to_string() },
        StepError::Remote(RemoteError::Ssh(SshError::HostKeyMismatch { expected, offered, .. }))
            if is_key_of_first_contact(ask) =>
        {
            let message = format!(
                "the host at {address} shows the host key {offered}, and showed {} at its first contact: it was reinstalled, or another machine intercepts the connection. Compare the new key with the one on the console of the host. If it is right, declare it as hostKey of the entry; in a ConfigMap, remove the entry, and add it again a minute later",
                expected.join(" or ")
            );
            Failure { reason: Reason::HostKeyMismatch, message }
        }
        StepError::Remote(RemoteError::Ssh(SshError::HostKeyMismatch { .. })) => {
            Failure { reason: Reason::HostKeyMismatch, message: error.to_string() }
        }
        StepError::Remote(RemoteError::Ssh(SshError::HostKeyUnknown { .. })) => {
            Failure { reason: Reason::HostKeyUnknown, message: error.to_string() }
        }
        error => Failure {
            reason: Reason::HostnameUnknown,
            message: format!("the host at {address} has not reported its name yet: {error}"),
        },
    }
}

async fn try_contact(cx: &Arc<Context>, ask: &Ask) -> Result<FirstContact, StepError> {
    let (host, ssh, pool) = (&ask.entry.host, ask.pool.spec.ssh(), &ask.pool);
    let source = host_key_of(&ask.entry, ask.stored.as_ref(), pool)?;
    let check = check_host_key(cx, source, &host.address, ask.place.1, None).await?;
    let is_first = check == HostKeyCheck::TrustOnFirstUse;
    let instance_host = InstanceHost {
        name: String::new(),
        address: host.address.clone(),
        port: ask.place.1,
        username: host.username.clone().unwrap_or_else(|| ssh.username().into()),
        host_key: host.host_key.clone(),
        private_keys: ssh.private_keys(),
        ..InstanceHost::default()
    };
    let spec = WindowsInstanceSpec { host: instance_host, ..WindowsInstanceSpec::default() };
    let instance = WindowsInstance::new("", spec);
    let mut login = credentials(cx, &instance, pool, check).await?;
    login.connect_timeout = login.connect_timeout.min(CONNECT_LIMIT);
    login.command_timeout = login.command_timeout.min(LIMIT);
    let id = hex::encode(Sha256::digest(format!("{} {}", ask.place.0, ask.place.1)));
    let session = open_without_slot(cx, &instance, &format!("name-{}", &id[..10]), &login).await?;
    let mut contact = FirstContact {
        address: ask.place.0.clone(),
        port: ask.place.1,
        host_key: session.connection().host_key().fingerprint(),
        dialed: session.connection().peer_address().to_canonical().to_string(),
        ..FirstContact::default()
    };
    if is_first {
        // The key must be stored before anything is put on the host.
        session.close().await;
        return Ok(contact);
    }
    session.prepare().await?;
    let machine = session.look(&[]).await?.machine;
    session.tidy(&[Verb::Facts]).await?;
    session.close().await;
    contact.hostname = Some(line(&machine.hostname, 63));
    contact.machine_id = Some(line(&machine.machine_id, 64));
    contact.boot_id = Some(line(&machine.boot_id, 64));
    Ok(contact)
}
