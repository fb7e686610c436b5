//! Program that the operator starts on a host: it is sent, and its hash proves that the host has exactly this program.
//!
//! It lies where Windows lets only administrators write ([`api::host::path::LAUNCH`]), so that between the proof and the
//! start no other user can exchange it, nor put a library beside it. The proof is needed all the same: a power cut leaves
//! files of the right size and wrong content.

use api::host;

use crate::{
    RemoteError,
    payload::Wicd,
    ssh::{Connection, PERMISSION_DENIED, SshError},
};

/// Number of uploads: a resumed upload may be damaged, one from the start is not.
const ATTEMPTS: usize = 2;

/// Makes sure that the host has exactly this program at [`host::launcher_path`]. Returns how many bytes were sent.
///
/// # Errors
/// [`RemoteError::ProgramDamaged`] if the host gives back other bytes than it was sent, [`RemoteError::NotAdministrator`] if
/// `user` cannot write where only administrators can.
pub(crate) async fn ensure(connection: &Connection, wicd: &Wicd, user: &str) -> Result<u64, RemoteError> {
    let path = host::launcher_path(&wicd.sha256);
    if connection.holds(&path, wicd.size, &wicd.sha256).await? {
        return Ok(0);
    }
    // A complete program has its own name; an interrupted upload lies beside it and is resumed.
    let partial = format!("{path}.partial");
    let mut sent = 0;
    for _ in 0..ATTEMPTS {
        let mut file = tokio::fs::File::open(&wicd.path).await.map_err(|source| RemoteError::OwnFile { source })?;
        let uploaded = connection.upload(&partial, wicd.size, &mut file, |_| ()).await;
        sent += uploaded.map_err(|error| refused(error, user))?.sent;
        if connection.holds(&partial, wicd.size, &wicd.sha256).await? {
            connection.rename(&partial, &path).await?;
            return Ok(sent);
        }
        connection.remove(&partial).await?;
    }
    // Whose fault is it? Our own file is read again before a host is blamed.
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
