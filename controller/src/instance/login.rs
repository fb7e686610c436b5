//! Log-in to a host: private keys, trusted host key, and jump host.

use std::time::Duration;

use api::{Ssh, WindowsInstance, WindowsNodePool, names::key};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{error::StepError, scope::Scope};
use crate::{
    args::host_key_policy::{HostKeySource, KnownKeys, host_key_source, may_adopt},
    context::Context,
    runtime::events::EventReason,
};
use remote::{
    Session,
    ssh::{Connection, HostKeyCheck, JumpHost, SshError, Target},
};
use wnp_core::{operation::identity::Refusal, render::Stored};

/// Time limit for connecting and logging in, to a jump host and the host together.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit of one command on a host.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(10);

/// Gathers the host key to trust and the credentials for a log-in. A missing private key is reported, but does not prevent the log-in while another
/// one exists.
pub(super) async fn login(
    cx: &Context,
    instance: &WindowsInstance,
    pool: &WindowsNodePool,
) -> Result<Target, StepError> {
    let check = trusted_key(cx, instance, pool).await?;
    credentials(cx, instance, pool, check).await
}

/// Returns the host key that the operator trusts for an instance. The instance need not be stored.
///
/// # Errors
/// Fails if the operator trusts no key, or cannot read the known keys.
pub(crate) async fn trusted_key(
    cx: &Context,
    instance: &WindowsInstance,
    pool: &WindowsNodePool,
) -> Result<HostKeyCheck, StepError> {
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
    // A host that is a node was seen before: its key is accepted on first use only if the host may be adopted.
    if let Some(node) = &node
        && check == HostKeyCheck::TrustOnFirstUse
        && !may_adopt(instance, &pool.spec.ssh(), is_ours(cx, node).await)
    {
        // Boxed, because the future is large and rarely used.
        let shown = Box::pin(shown_key(cx, instance, pool)).await;
        let has_instance = instance.metadata.uid.is_some();
        return Err(Refusal::KeyUnproven { name, address: host.address.clone(), shown, has_instance }.into());
    }
    Ok(check)
}

/// Reports whether the Node may follow a version of this operator, which records the host key of each of its nodes. Returns true if the version
/// cannot be read.
async fn is_ours(cx: &Context, node: &Node) -> bool {
    let Some(version) = node.annotations().get(key::VERSION) else { return false };
    !matches!(cx.hosts.versions.get(version).await.as_ref().map(|v| v.as_deref()), Ok(None | Some(Stored::Legacy(_))))
}

/// Returns the fingerprint of the key that a host offers, so that a user can compare it. No key is trusted, so no log-in follows.
async fn shown_key(cx: &Context, instance: &WindowsInstance, pool: &WindowsNodePool) -> Option<String> {
    let target = credentials(cx, instance, pool, HostKeyCheck::AnyOf(Vec::new())).await.ok()?;
    match Connection::connect(&target).await {
        Err(SshError::HostKeyUnknown { offered, .. }) => Some(offered),
        _ => None,
    }
}

/// Reports whether a user has declared the host key: in the inventory, for this host alone, or in the known hosts Secret.
pub(super) fn is_key_declared(instance: &WindowsInstance, pool: &WindowsNodePool) -> bool {
    let known = KnownKeys {
        address: &instance.spec.host.address,
        declared: instance.spec.host.host_key.as_deref(),
        allowed: instance.annotations().get(key::TRUST_HOST_KEY).map(String::as_str),
        ..KnownKeys::default()
    };
    host_key_source(&known, &pool.spec.ssh()).is_ok_and(|source| source != HostKeySource::FirstUse)
}

/// Resolves the source of a host key. Keys that the legacy operator recorded before `since` do not count.
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

/// Returns the log-in target: the address, the private keys, the jump host, and the host keys to trust (`check`).
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
        jump_host: jump_host(cx, &ssh).await?,
        connect_timeout: CONNECT_TIMEOUT,
        command_timeout: COMMAND_TIMEOUT,
    })
}

/// Returns the jump host of a pool, with its key. An unusable jump host is an error: the operator never bypasses it.
async fn jump_host(cx: &Context, ssh: &Ssh) -> Result<Option<JumpHost>, StepError> {
    let Some(declared) = &ssh.jump_host else { return Ok(None) };
    let key = cx.hosts.secrets.key(&declared.private_key_secret_ref).await?;
    let api::JumpHost { address, username, host_key, .. } = declared;
    let jump_host = JumpHost::new(address, declared.port(), username, key.identity.clone(), host_key);
    Ok(Some(jump_host.map_err(StepError::JumpHostKey)?))
}

/// Logs in with one of the operator's SSH slots, once one is free for the pool. The slot also covers the connection to a jump host.
/// `operation` names the request files on the host, and `what` describes the work that follows.
pub(super) async fn open(
    scope: &mut Scope,
    operation: &str,
    target: &Target,
    what: &str,
) -> Result<Session, StepError> {
    let (connections, pool) = (scope.cx.hosts.connections.clone(), scope.instance.spec.pool_ref.name.clone());
    let slot = if let Some(slot) = connections.take(&pool) {
        slot
    } else {
        let step = scope.step();
        let limit = connections.all();
        scope.announce_step(
            step,
            &format!("waiting for one of the {limit} SSH connections of all pools (--max-connections)"),
        );
        let slot = scope.run_showing_step(connections.acquire(&pool)).await?;
        scope.announce_step(step, what);
        slot
    };
    let (operator, name) = (scope.cx.hosts.operator.clone(), scope.instance.spec.host.name.clone());
    let opened = async move { Session::open(&operator, target, &name, operation, Some(Box::new(slot))).await };
    Ok(scope.run_showing_step(opened).await??)
}

/// Logs in without a slot of [`open`], for image pulls and for observations without a grant. The caller limits the number of such connections.
pub(crate) async fn open_without_slot(
    cx: &Context,
    instance: &WindowsInstance,
    operation: &str,
    target: &Target,
) -> Result<Session, StepError> {
    Ok(Session::open(&cx.hosts.operator, target, &instance.spec.host.name, operation, None).await?)
}

#[cfg(test)]
mod tests {
    use api::WindowsNodePoolSpec;
    use serde_json::{Value, json};

    use super::{super::test_bed::Bed, *};

    #[tokio::test]
    async fn an_unusable_jump_host_is_never_bypassed() {
        let bed = Bed::new().await;
        bed.api.fail("GET", "/api/v1/namespaces/operator/secrets/gone", 404, "NotFound", "no such Secret", Value::Null);
        let instance = bed.instance(&json!({}), &json!({}), &json!({}));
        let own = bed.host.host_key().to_openssh().unwrap();
        for (secret, host_key, reason) in [
            ("new-key", own.as_str(), None),
            ("gone", own.as_str(), Some("CredentialsUnavailable")),
            ("new-key", "SHA256:short", Some("HostKeyInvalid")),
        ] {
            let jump_host = api::JumpHost {
                address: "jump.example.com".into(),
                username: "relay".into(),
                private_key_secret_ref: api::SecretKeyRef { name: secret.into(), key: None },
                host_key: host_key.into(),
                port: None,
            };
            let ssh = Some(Ssh { jump_host: Some(jump_host), ..Ssh::default() });
            let pool = WindowsNodePool::new("p", WindowsNodePoolSpec { ssh, ..WindowsNodePoolSpec::default() });
            let target = credentials(&bed.cx, &instance, &pool, HostKeyCheck::TrustOnFirstUse).await;
            assert_eq!(target.as_ref().err().map(|e| e.reason().as_str()), reason, "{secret} {host_key}");
            assert_eq!(target.is_ok_and(|t| t.jump_host.is_some() && t.keys.len() == 1), reason.is_none());
        }
        assert_eq!(bed.host.stats().connections, 0);
    }

    /// Checks that the message names both remedies: to allow the key that the user has compared, and to delete a leftover Node.
    #[tokio::test]
    async fn the_error_for_an_unproven_host_key_names_the_offered_key() {
        let mut bed = Bed::new().await;
        let recorded = format!("/api/v1/namespaces/operator/configmaps/{}", api::names::LEGACY_HOST_KEYS);
        bed.api.fail("GET", &recorded, 404, "NotFound", "there is none", Value::Null);
        bed.node("n-1", "127.0.0.1", &json!({}));
        let mut instance = bed.instance(&json!({}), &json!({}), &json!({}));
        instance.spec.host.host_key = None;
        let pool = bed.cx.pool_of(&instance).unwrap();
        let error = login(&bed.cx, &instance, &pool).await.err().unwrap();
        let shown = bed.host.host_key().fingerprint(russh::keys::HashAlg::Sha256).to_string();
        let text = error.to_string();
        assert_eq!(error.reason(), "HostUnproven");
        assert!(text.contains(&format!("trust-host-key win-1 {shown}")), "{text}");
        assert!(text.contains("kubectl delete node win-1"), "{text}");
        assert_eq!(bed.host.stats().processes, 0, "nothing is run on it");
    }
}
