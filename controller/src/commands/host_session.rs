//! SSH sessions with hosts, for the commands `check host` and `gather`, and for the program `acceptance`.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use api::host::{self, Verb, path};
use remote::{
    Operator, RemoteError, Session, Traffic,
    payload::{Payload, Wicd},
    ssh::{HostKeyCheck, Identity, Target},
};
use zeroize::Zeroizing;

use crate::args::Login;

/// Reads a private key from a file.
///
/// # Errors
/// Fails when the file cannot be read, or has no private key.
pub(super) fn identity(file: &Path) -> anyhow::Result<Arc<Identity>> {
    let pem = Zeroizing::new(std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?);
    Ok(Arc::new(Identity::from_pem(&file.display().to_string(), &pem)?))
}

/// Returns the SSH target for an address and the login options. `limit` is the timeout of the connection and of each command.
///
/// # Errors
/// Fails when the private key cannot be read, or the host key is invalid.
pub fn target(address: &str, login: &Login, limit: Duration) -> anyhow::Result<Target> {
    let host_key = login.host_key.as_deref().map_or(Ok(HostKeyCheck::TrustOnFirstUse), HostKeyCheck::pinned)?;
    Ok(Target {
        address: address.to_owned(),
        port: login.port,
        username: login.user.clone(),
        keys: vec![identity(&login.identity)?],
        host_key,
        jump_host: None,
        connect_timeout: limit,
        command_timeout: limit,
    })
}

/// Returns an operator without a cluster, which only queries hosts.
///
/// # Errors
/// Fails when `wicd.exe` cannot be read.
pub(super) fn operator(wicd: &Path) -> anyhow::Result<Arc<Operator>> {
    Ok(Arc::new(Operator {
        cluster_id: String::new(),
        epoch: 0,
        wicd: Wicd::open(wicd).context("cannot read wicd.exe of this release; name it with --wicd")?,
        payload: Payload::default(),
        traffic: Traffic::default(),
    }))
}

/// Sends wicd to the host if it is missing, waits for the answer to a request, and removes the files of the request. Removes wicd as well if the
/// host had no files of the operator before.
pub(super) async fn query_host<T>(
    session: &Session,
    operation: &str,
    verb: Verb,
    answer: impl Future<Output = Result<T, RemoteError>>,
) -> Result<T, RemoteError> {
    let connection = session.connection();
    let was_empty = connection.list(path::LAUNCH).await?.is_empty() && connection.list(path::WICD).await?.is_empty();
    let asked = async {
        session.prepare().await?;
        answer.await
    };
    let answer = asked.await;
    let cleanup = async {
        session.tidy(&[verb]).await?;
        connection.remove_dir(&host::operation_dir(operation)).await?;
        if was_empty {
            session.remove_wicd().await?;
        }
        Ok(())
    };
    let cleaned = cleanup.await;
    // A lost connection fails both: the first error has the cause.
    answer.and_then(|answer| cleaned.map(|()| answer))
}
