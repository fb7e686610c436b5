//! SSH target of a command, from its arguments.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use remote::ssh::{HostKeyCheck, Identity, Target};

use crate::args::Login;

/// Returns the SSH target for an address and the login options. `limit` is the timeout of the connection and of each command.
///
/// # Errors
/// Fails when the private key cannot be read, or the host key is invalid.
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
