//! Folders of a process, which are removed even if the process is killed.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result};

use crate::binaries::{cache_dir, lock, lock_file};

/// Folder in the cache, removed on drop. Folders of killed processes are removed when the next one is created. (A value
/// in a `static` is never dropped, so its folder stays until then.)
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    // The kernel releases the lock when the process ends, so that other processes know that the folder is unused.
    _lock: File,
}

impl RunDir {
    /// Creates a folder whose name starts with `prefix`.
    pub(crate) fn new(prefix: &str) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let root = cache_dir()?.join("run");
        // No sweep runs between the creation of a folder and its lock.
        let _making = lock(&root.join(".lock"))?;
        sweep(&root)?;
        let path = root.join(format!("{prefix}-{}-{}", process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
        let lock = lock(&path.join(".lock"))?;
        Ok(Self { path, _lock: lock })
    }

    /// Returns the path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file or folder in this folder.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // A later sweep removes what remains.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn sweep(root: &Path) -> Result<()> {
    for entry in fs::read_dir(root).with_context(|| format!("cannot list {}", root.display()))? {
        let path = entry?.path();
        if path.is_dir() && lock_file(&path.join(".lock")).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(&path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_holder_is_removed() {
        let held = RunDir::new("test-held").unwrap();
        let left = held.path().parent().unwrap().join(format!("test-left-{}", process::id()));
        fs::create_dir_all(&left).unwrap();
        let next = RunDir::new("test-next").unwrap();
        assert!(!left.exists());
        assert!(held.path().exists());
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists());
    }
}
