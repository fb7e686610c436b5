//! Host that a command logs in to, from its arguments.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use remote::ssh::{HostKeyCheck, Identity, Target};

use crate::args::Login;

/// Returns a host and all that is needed to log in to it. `limit` is for log-in and for each answer.
///
/// # Errors
/// Fails when the key cannot be read, or the host key is none.
pub fn new(address: &str, login: &Login, limit: Duration) -> anyhow::Result<Target> {
    let Login { identity, port, user, host_key } = login;
    let pem = std::fs::read(identity).with_context(|| format!("cannot read {}", identity.display()))?;
    let key = Identity::from_pem(&identity.display().to_string(), &pem)?;
    let host_key = host_key.as_deref().map_or(Ok(HostKeyCheck::TrustOnFirstUse), HostKeyCheck::pinned)?;
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
