//! The host that a command logs in to, from its arguments.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use remote::ssh::{HostKeyCheck, Identity, Target};

use crate::args::Login;

/// A host and all that is needed to log in to it. `limit` is for log-in and for each answer.
///
/// # Errors
/// When the key cannot be read, or the fingerprint is none.
pub(crate) fn new(address: &str, login: &Login, limit: Duration) -> anyhow::Result<Target> {
    let Login { identity, port, user, host_key } = login;
    let pem = std::fs::read(identity).with_context(|| format!("cannot read {}", identity.display()))?;
    let key = Identity::from_pem(&identity.display().to_string(), &pem)?;
    let host_key = match host_key {
        None => HostKeyCheck::TrustOnFirstUse,
        Some(key) if key.starts_with("SHA256:") => HostKeyCheck::PinnedFingerprint(key.clone()),
        Some(key) => {
            bail!("{key:?} is no fingerprint of a host key, such as SHA256:a5dbhnVDVV+wzA3hzpgP7k0GfTkN0yYuMJrxQhl8wrE")
        }
    };
    Ok(Target {
        address: address.to_owned(),
        port: *port,
        username: user.clone(),
        keys: vec![Arc::new(key)],
        host_key,
        jump_host: None,
        connect_timeout: limit,
        command_timeout: limit,
    })
}
