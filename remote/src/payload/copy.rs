//! A payload, copied to another directory: for an init container, where a pod cannot mount the image that has it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use api::payload::MANIFEST;

use super::{Payload, PayloadError};

impl Payload {
    /// Copies the payload in `from` to `to`, and returns the copy, of which every content was checked. What is there already is replaced. Blocks for
    /// seconds.
    ///
    /// # Errors
    /// When [`Payload::open`] refuses `from`, when a file cannot be written ([`PayloadError::Unwritable`]), and when [`Payload::verify_all`]
    /// refuses the copy.
    pub fn copy(from: &Path, to: &Path) -> Result<Self, PayloadError> {
        for (_, source) in Self::directories(from) {
            let (manifest, _) = Self::open_one(&source)?;
            let target = to.join(source.strip_prefix(from).unwrap_or(Path::new("")));
            for file in &manifest.files {
                let name = format!("{}.zst", file.path);
                copy_file(&source.join(&name), target.join(&name))?;
            }
            // The last: without it there is no payload.
            copy_file(&source.join(MANIFEST), target.join(MANIFEST))?;
        }
        let copy = Self::open(to)?;
        copy.verify_all()?;
        Ok(copy)
    }
}

/// Copies a file under another name, and then gives it its own.
fn copy_file(from: &Path, to: PathBuf) -> Result<(), PayloadError> {
    let mut input =
        fs::File::open(from).map_err(|source| PayloadError::Unreadable { path: from.to_owned(), source })?;
    let mut write = || {
        fs::create_dir_all(to.parent().unwrap_or(&to))?;
        let mut part = to.clone().into_os_string();
        part.push(".part");
        io::copy(&mut input, &mut fs::File::create(&part)?)?;
        fs::rename(part, &to)
    };
    write().map_err(|source| PayloadError::Unwritable { path: to.clone(), source })
}

#[cfg(test)]
mod tests {
    use testbed::payload::{Content, Entry, LEVEL_FAST, write};

    use super::*;

    fn entries(kubelet: &[u8]) -> Vec<Entry> {
        [(r"C:\k\kubelet.exe", kubelet), (r"C:\k\cni\win-bridge.exe", b"bridge".as_slice())]
            .map(|(path, content)| Entry::with(path, Content::Bytes(content.into())))
            .into()
    }

    #[test]
    fn a_copy_is_the_same_payload_and_may_be_made_again() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let to = to.path().join("payload");
        for kubelet in [b"one".as_slice(), b"another"] {
            write(from.path(), &entries(kubelet), LEVEL_FAST).unwrap();
            fs::write(from.path().join("not in the manifest"), "").unwrap();
            let copy = Payload::copy(from.path(), &to).unwrap();
            assert_eq!(copy.by_minor(), Payload::open(from.path()).unwrap().by_minor());
            assert!(!to.join("not in the manifest").exists());
        }
    }

    #[test]
    fn payloads_of_several_minor_versions_keep_their_directories() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for minor in ["1.35", "1.36"] {
            write(&from.path().join(minor), &entries(minor.as_bytes()), LEVEL_FAST).unwrap();
        }
        let copy = Payload::copy(from.path(), to.path()).unwrap();
        assert_eq!(copy.by_minor().keys().copied().collect::<Vec<_>>(), [Some(35), Some(36)]);
        assert_eq!(copy.by_minor(), Payload::open(from.path()).unwrap().by_minor());
    }

    #[test]
    fn what_cannot_be_copied_or_is_wrong_is_an_error() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert!(matches!(Payload::copy(from.path(), to.path()), Err(PayloadError::Unreadable { .. })));
        write(from.path(), &entries(b"kubelet"), LEVEL_FAST).unwrap();
        let in_the_way = to.path().join("file");
        fs::write(&in_the_way, "").unwrap();
        assert!(matches!(Payload::copy(from.path(), &in_the_way), Err(PayloadError::Unwritable { .. })));
        // Of the same size.
        let blob = from.path().join("kubelet.exe.zst");
        let mut bytes = fs::read(&blob).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&blob, bytes).unwrap();
        assert!(matches!(Payload::copy(from.path(), to.path()), Err(PayloadError::WrongContent { .. })));
    }
}
