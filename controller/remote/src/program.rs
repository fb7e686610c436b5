//! Program that the operator starts on a host. It is uploaded, and its hash proves that the host has exactly this
//! program.
//!
//! Only administrators can write to its directory ([`api::host::path::LAUNCH`]), so that no other user can replace it,
//! or add a library, after the check. The check finds files that a power failure left with wrong content.

use api::host;

use crate::{
    RemoteError,
    payload::Wicd,
    ssh::{Connection, PERMISSION_DENIED, SshError},
};

/// Maximum number of uploads. A resumed upload may be damaged, so a second one starts from the beginning.
const ATTEMPTS: usize = 2;

/// Reports whether the host has exactly this program at [`host::launcher_path`].
///
/// # Errors
/// [`RemoteError::Ssh`] when the file cannot be read.
pub(crate) async fn is_there(connection: &Connection, wicd: &Wicd) -> Result<bool, RemoteError> {
    Ok(connection.holds(&host::launcher_path(&wicd.sha256), wicd.size, &wicd.sha256).await?)
}

/// Uploads exactly this program to [`host::launcher_path`]. Returns the number of bytes sent.
///
/// # Errors
/// [`RemoteError::ProgramDamaged`] if the host returns other bytes than were sent, [`RemoteError::NotAdministrator`] if
/// `user` cannot write where only administrators can, [`RemoteError::OwnFile`] or [`RemoteError::Payload`] if the
/// operator's own file cannot be read or has changed, [`RemoteError::Ssh`] for any other failure of the transfer.
pub(crate) async fn send(connection: &Connection, wicd: &Wicd, user: &str) -> Result<u64, RemoteError> {
    let path = host::launcher_path(&wicd.sha256);
    // A complete program has its final name. An interrupted upload lies beside it and is resumed.
    let partial = format!("{path}.partial");
    let mut sent = 0;
    for _ in 0..ATTEMPTS {
        let mut file = tokio::fs::File::open(&wicd.path).await.map_err(|source| RemoteError::OwnFile { source })?;
        sent += connection.upload(&partial, wicd.size, &mut file).await.map_err(|error| refused(error, user))?;
        if connection.holds(&partial, wicd.size, &wicd.sha256).await? {
            connection.rename(&partial, &path).await?;
            return Ok(sent);
        }
        connection.remove(&partial).await?;
    }
    // Before the error blames the host, check that the operator's own file is unchanged.
    let own = wicd.path.clone();
    let own = tokio::task::spawn_blocking(move || Wicd::open(&own)).await;
    if let Ok(own) = own
        && own? != *wicd
    {
        let source = std::io::Error::other("it has changed since the operator started");
        return Err(RemoteError::OwnFile { source });
    }
    Err(RemoteError::ProgramDamaged { path })
}

fn refused(error: SshError, user: &str) -> RemoteError {
    match error {
        SshError::TransferFailed { why, .. } if why == PERMISSION_DENIED => {
            RemoteError::NotAdministrator { user: user.to_owned() }
        }
        error => error.into(),
    }
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
