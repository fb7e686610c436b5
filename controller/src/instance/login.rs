//! How to log in to a host: which keys, and which host key is believed.

use api::{HostKeyPolicy, WindowsInstance, WindowsNodePool, conditions::reason, names::key};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{error::StepError, session::Login};
use crate::{
    context::Context,
    events::Level,
    ssh::{HostKey, HostKeyCheck},
};

/// Where the belief in a host key comes from, the strongest first.
#[derive(Debug, PartialEq, Eq)]
pub enum Belief {
    /// A check that can be made with what is known already.
    Check(HostKeyCheck),
    /// The known hosts Secret of this name has to be asked.
    KnownHosts(String),
}

/// Decides which host key is believed: what the inventory declares; what a person allowed for this host alone; with
/// `Strict` what the known hosts Secret lists; what was seen before; what the legacy operator saw before; the first one.
pub fn belief(instance: &WindowsInstance, pool: &WindowsNodePool, node: Option<&Node>) -> Belief {
    let pinned = |text: &str| HostKeyCheck::pinned(text).ok().map(Belief::Check);
    if let Some(belief) = instance.spec.host.host_key.as_deref().and_then(pinned) {
        return belief;
    }
    if let Some(belief) = instance.annotations().get(key::TRUST_HOST_KEY).map(String::as_str).and_then(pinned) {
        return belief;
    }
    let ssh = pool.spec.ssh();
    if ssh.host_key_policy == Some(HostKeyPolicy::Strict)
        && let Some(secret) = ssh.known_hosts_ref
    {
        return Belief::KnownHosts(secret.name);
    }
    let seen = instance.status.as_ref().and_then(|s| s.host_key.as_ref());
    if let Some(seen) = seen {
        return Belief::Check(HostKeyCheck::Pinned(HostKey {
            key_type: seen.key_type.clone(),
            public_key_base64: seen.public_key.clone(),
        }));
    }
    let legacy = node.and_then(|n| n.annotations().get(key::SSH_HOST_KEY)).and_then(|k| HostKey::parse(k).ok());
    Belief::Check(legacy.map_or(HostKeyCheck::TrustOnFirstUse, HostKeyCheck::Pinned))
}

/// Gathers what a log-in needs. A key that cannot be had is told, but stops nothing while another can.
pub async fn login(cx: &Context, instance: &WindowsInstance, pool: &WindowsNodePool) -> Result<Login, StepError> {
    let host = &instance.spec.host;
    let (keys, problems) = cx.secrets.keys(&host.private_keys).await?;
    for problem in problems {
        cx.events.say(pool, Level::Warning, reason::CREDENTIALS_UNAVAILABLE, "ReadSecret", &problem.to_string());
    }
    let check = match belief(instance, pool, cx.node(&instance.name_any()).as_deref()) {
        Belief::Check(HostKeyCheck::TrustOnFirstUse) => {
            let legacy =
                cx.legacy_host_keys.of(&host.address).await.map_err(StepError::api("show the known host keys"))?;
            legacy.map_or(HostKeyCheck::TrustOnFirstUse, HostKeyCheck::Pinned)
        }
        Belief::Check(check) => check,
        Belief::KnownHosts(secret) => {
            let port = u16::try_from(host.port).unwrap_or(22);
            HostKeyCheck::AnyOf(cx.secrets.known_hosts(&secret, &host.address, port).await?)
        }
    };
    let ssh = pool.spec.ssh();
    Ok(Login { keys, check, connect_timeout: ssh.connect_timeout(), command_timeout: ssh.command_timeout() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{
        InstanceHost, PinnedHostKey, SecretRef, Ssh, WindowsInstanceSpec, WindowsInstanceStatus, WindowsNodePoolSpec,
    };
    use std::collections::BTreeMap;

    const DECLARED: &str = "SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";
    const ALLOWED: &str = "SHA256:AAAAvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";
    const SEEN: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";

    #[test]
    fn the_strongest_belief_counts() {
        let pool = |strict: bool| {
            let ssh = Ssh {
                host_key_policy: Some(if strict { HostKeyPolicy::Strict } else { HostKeyPolicy::TrustOnFirstUse }),
                known_hosts_ref: strict.then(|| SecretRef { name: "known".into() }),
                ..Ssh::default()
            };
            WindowsNodePool::new("p", WindowsNodePoolSpec { ssh: Some(ssh), ..WindowsNodePoolSpec::default() })
        };
        let instance = |declared: bool, allowed: bool, seen: bool| {
            let host = InstanceHost { host_key: declared.then(|| DECLARED.into()), ..InstanceHost::default() };
            let mut i = WindowsInstance::new("w", WindowsInstanceSpec { host, ..WindowsInstanceSpec::default() });
            i.metadata.annotations = allowed.then(|| BTreeMap::from([(key::TRUST_HOST_KEY.into(), ALLOWED.into())]));
            let host_key = seen.then(|| PinnedHostKey {
                public_key: SEEN.into(),
                key_type: "ssh-ed25519".into(),
                ..PinnedHostKey::default()
            });
            i.status = Some(WindowsInstanceStatus { host_key, ..WindowsInstanceStatus::default() });
            i
        };
        let node = |with: bool| Node {
            metadata: kube::api::ObjectMeta {
                annotations: with.then(|| BTreeMap::from([(key::SSH_HOST_KEY.into(), SEEN.into())])),
                ..Default::default()
            },
            ..Node::default()
        };
        let fingerprint = |f: &str| Belief::Check(HostKeyCheck::PinnedFingerprint(f.into()));
        let is_pinned = |b: &Belief| matches!(b, Belief::Check(HostKeyCheck::Pinned(k)) if k.public_key_base64.trim_end_matches('=') == SEEN);
        assert_eq!(belief(&instance(true, true, true), &pool(true), None), fingerprint(DECLARED));
        assert_eq!(belief(&instance(false, true, true), &pool(true), None), fingerprint(ALLOWED));
        assert_eq!(belief(&instance(false, false, true), &pool(true), None), Belief::KnownHosts("known".into()));
        assert!(is_pinned(&belief(&instance(false, false, true), &pool(false), Some(&node(false)))));
        assert!(is_pinned(&belief(&instance(false, false, false), &pool(false), Some(&node(true)))));
        assert_eq!(
            belief(&instance(false, false, false), &pool(false), Some(&node(false))),
            Belief::Check(HostKeyCheck::TrustOnFirstUse)
        );
    }
}
