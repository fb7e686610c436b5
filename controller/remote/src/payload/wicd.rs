//! `wicd.exe`, the only program that is sent to a host on its own, before all other files.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::PayloadError;

/// `wicd.exe` that this operator sends unchanged to [`api::host::launcher_path`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wicd {
    /// Path in the operator's image.
    pub path: PathBuf,
    /// SHA-256 of the file, in lower-case hex.
    pub sha256: String,
    /// Size in bytes.
    pub size: u64,
}

impl Wicd {
    /// Reads the file and computes its hash.
    ///
    /// # Errors
    /// [`PayloadError::Unreadable`] when the file cannot be opened or read, or is empty.
    pub fn open(path: &Path) -> Result<Self, PayloadError> {
        let unreadable = |source| PayloadError::Unreadable { path: path.to_owned(), source };
        let mut file = fs::File::open(path).map_err(unreadable)?;
        let mut hash = Sha256::new();
        let size = io::copy(&mut file, &mut hash).map_err(unreadable)?;
        if size == 0 {
            return Err(unreadable(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is empty")));
        }
        Ok(Self { path: path.to_owned(), sha256: hex::encode(hash.finalize()), size })
    }
}
