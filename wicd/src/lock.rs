//! Lock file of the host, held by the one operation or service that changes the host.

use std::fs::{File, OpenOptions, TryLockError};
use std::time::{Duration, Instant};

use crate::files;
use crate::host::{Host, HostError};

/// Path of the lock file. The file stays when the lock is released, which the operating system does when a process ends.
pub const LOCK: &str = api::host::path::LOCK;

/// Lock of the host, held until dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the open file is the lock")] File);

/// Takes the lock, and retries for up to `patience`. `None` if another process holds it for all that time.
///
/// # Errors
/// Fails when the lock file or its directory cannot be created, opened or locked. A lock that another process holds is no
/// error.
pub fn take(host: &dyn Host, patience: Duration) -> Result<Option<Lock>, HostError> {
    const AGAIN: Duration = Duration::from_millis(100);
    files::make_directory(host, api::host::path::WICD)?;
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(host.path(LOCK)?);
    let file = file.map_err(HostError::system("open", LOCK))?;
    let until = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(Lock(file))),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return Ok(None),
            Err(TryLockError::WouldBlock) => std::thread::sleep(AGAIN),
            Err(TryLockError::Error(e)) => return Err(HostError::system("lock", LOCK)(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let host = crate::fake::FakeHost::new(dir.path());
        let held = take(&host, Duration::ZERO).unwrap();
        assert!(held.is_some());
        assert!(take(&host, Duration::ZERO).unwrap().is_none());
        drop(held);
        assert!(take(&host, Duration::ZERO).unwrap().is_some());
    }
}
