//! Files of simulated hosts that another program holds: Windows locks open files, Linux does not.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// File that another program holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Another program has opened the file exclusively, for this number of attempts to use it.
    Open(u32),
    /// An antivirus denies access to the file, for this number of attempts.
    Denied(u32),
}

/// Held files of all simulated hosts of this process, by real path.
static HELD: Mutex<BTreeMap<PathBuf, Held>> = Mutex::new(BTreeMap::new());

/// Simulates that another program holds the file at this real path. `None` releases the file.
pub(crate) fn put(path: PathBuf, by: Option<Held>) {
    match by {
        Some(by) => held().insert(path, by),
        None => held().remove(&path),
    };
}

fn held() -> MutexGuard<'static, BTreeMap<PathBuf, Held>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails as Windows does for a file that another program holds.
///
/// # Errors
/// Fails when the file exists and is held. Each call is an attempt.
pub fn held_by_others(path: &Path) -> io::Result<()> {
    const SHARING_VIOLATION: i32 = 32;
    // Error code of Linux, where simulated hosts run, for [`io::ErrorKind::PermissionDenied`].
    const ACCESS_DENIED: i32 = 13;
    let mut held = held();
    let Some(by) = held.get_mut(path).filter(|_| path.is_file()) else { return Ok(()) };
    let (Held::Open(left) | Held::Denied(left)) = by;
    if *left == 0 {
        return Ok(());
    }
    *left -= 1;
    let code = if matches!(by, Held::Open(_)) { SHARING_VIOLATION } else { ACCESS_DENIED };
    Err(io::Error::from_raw_os_error(code))
}
