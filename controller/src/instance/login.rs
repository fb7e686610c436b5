//! How to log in to a host: which keys, and which host key is believed.

use api::{WindowsInstance, WindowsNodePool, names::key};
use jiff::Timestamp;
use kube::ResourceExt;

use super::error::StepError;
use crate::{
    context::Context,
    events::EventReason,
    host_key_policy::{HostKeySource, KnownKeys, host_key_source},
};
use remote::{
    Session,
    ssh::{HostKeyCheck, Target},
};
use wnp_core::operation::identity::Refusal;

/// Gathers the credentials of a log-in. A missing key is reported, but does not stop the log-in while another key
/// exists.
pub(super) async fn login(
    cx: &Context,
    instance: &WindowsInstance,
    pool: &WindowsNodePool,
) -> Result<Target, StepError> {
    let host = &instance.spec.host;
    let (name, annotations) = (instance.name_any(), instance.annotations());
    let node = cx.node(&name);
    let known = KnownKeys {
        address: &host.address,
        declared: host.host_key.as_deref(),
        allowed: annotations.get(key::TRUST_HOST_KEY).map(String::as_str),
        pinned: instance.status.as_ref().and_then(|s| s.host_key.as_ref()),
        first_contact: annotations.get(key::FIRST_HOST_KEY).map(String::as_str),
        node: node.as_ref().and_then(|n| Some((name.as_str(), n.annotations().get(key::SSH_HOST_KEY)?.as_str()))),
    };
    let source = host_key_source(&known, &pool.spec.ssh())?;
    let machine = instance.spec.origin.as_ref().and_then(|o| o.machine.as_deref());
    let since = machine.and_then(|m| cx.caches.machines.created(m));
    let check = check(cx, source, &host.address, host.port, since).await?;
    // A host that is a node was seen before: its key is not believed for being the first that is seen now.
    if node.is_some() && check == HostKeyCheck::TrustOnFirstUse {
        return Err(Refusal::KeyUnproven { name, address: host.address.clone() }.into());
    }
    credentials(cx, instance, pool, check).await
}

/// Whether a person has declared the host key: in the inventory, for this host alone, or in the known hosts Secret.
pub(super) fn is_key_declared(instance: &WindowsInstance, pool: &WindowsNodePool) -> bool {
    let known = KnownKeys {
        address: &instance.spec.host.address,
        declared: instance.spec.host.host_key.as_deref(),
        allowed: instance.annotations().get(key::TRUST_HOST_KEY).map(String::as_str),
        ..KnownKeys::default()
    };
    host_key_source(&known, &pool.spec.ssh()).is_ok_and(|source| source != HostKeySource::FirstUse)
}

/// Asks the source of a host key. `since` is the moment before which nothing can have been seen of the host.
pub(crate) async fn check(
    cx: &Context,
    source: HostKeySource,
    address: &str,
    port: i32,
    since: Option<Timestamp>,
) -> Result<HostKeyCheck, StepError> {
    match source {
        HostKeySource::Check(check) => Ok(check),
        HostKeySource::KnownHosts(secret) => {
            let port = u16::try_from(port).unwrap_or(22);
            Ok(HostKeyCheck::AnyOf(cx.hosts.secrets.known_hosts(&secret, address, port).await?))
        }
        HostKeySource::FirstUse => {
            let legacy = cx.hosts.wmco_host_keys.of(address, since).await?;
            Ok(legacy.map_or(HostKeyCheck::TrustOnFirstUse, HostKeyCheck::Pinned))
        }
    }
}

/// The private keys for a log-in that believes the host keys of `check`.
pub(crate) async fn credentials(
    cx: &Context,
    instance: &WindowsInstance,
    pool: &WindowsNodePool,
    check: HostKeyCheck,
) -> Result<Target, StepError> {
    let (keys, problems) = cx.hosts.secrets.keys(&instance.spec.host.private_keys).await?;
    for problem in problems {
        cx.events.say(pool, EventReason::CredentialsUnavailable, "ReadSecret", &problem.to_string());
    }
    let (host, ssh) = (&instance.spec.host, pool.spec.ssh());
    Ok(Target {
        address: host.address.clone(),
        port: u16::try_from(host.port).unwrap_or(22),
        username: host.username.clone(),
        keys: keys.iter().map(|k| k.identity.clone()).collect(),
        host_key: check,
        connect_timeout: ssh.connect_timeout(),
        command_timeout: ssh.command_timeout(),
    })
}

/// Logs in with one of the operator's connection slots, once one is free. `operation` names the files of requests on the host.
pub(super) async fn open(
    cx: &Context,
    instance: &WindowsInstance,
    operation: &str,
    target: &Target,
) -> Result<Session, StepError> {
    let slot = cx.hosts.connections.clone().acquire_owned().await.ok();
    Ok(Session::open(&cx.hosts.operator, target, &instance.spec.host.name, operation, slot).await?)
}

/// Logs in without a slot: these are for work that was granted. The caller bounds how many such connections there are.
pub(crate) async fn open_apart(
    cx: &Context,
    instance: &WindowsInstance,
    operation: &str,
    target: &Target,
) -> Result<Session, StepError> {
    Ok(Session::open(&cx.hosts.operator, target, &instance.spec.host.name, operation, None).await?)
}
