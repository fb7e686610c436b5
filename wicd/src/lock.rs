//! Lock file of the host, so that operations and checks of the services do not change the host at the same time. Image downloads, log rotation, and
//! the renewal of certificates and tokens run without it.

use std::fs::{File, OpenOptions, TryLockError};
use std::time::{Duration, Instant};

use api::host::path::{LOCK, WICD};

use crate::files;
use crate::host::{Host, HostError};

/// Lock of the host, held until dropped. The file stays; the operating system releases the lock when the process ends.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the open file is the lock")] File);

/// Takes the lock, and retries for up to `patience`. `None` if it is held elsewhere for all that time.
///
/// # Errors
/// Fails when the lock file or its directory cannot be created, opened or locked. A lock that is held elsewhere is not an error.
pub fn take(host: &dyn Host, patience: Duration) -> Result<Option<Lock>, HostError> {
    const AGAIN: Duration = Duration::from_millis(100);
    files::make_directory(host, WICD)?;
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
    fn the_lock_has_one_holder() {
        let host = crate::fake::FakeHost::temporary();
        let held = take(&host, Duration::ZERO).unwrap();
        assert!(held.is_some());
        assert!(take(&host, Duration::ZERO).unwrap().is_none());
        drop(held);
        assert!(take(&host, Duration::ZERO).unwrap().is_some());
    }
}
