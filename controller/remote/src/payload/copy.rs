//! Copy of a payload to a volume, by an init container, for clusters in which a pod cannot mount the payload's image.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use api::payload::{MANIFEST, Manifest};

use super::{Payload, PayloadError};

/// Marker file of a directory for copies. A copy removes all files in such a directory that are not in the payload.
const MARK: &str = ".windows-node-pools-payload";

impl Payload {
    /// Copies the payload in `from` to `to`, verifies all contents and returns the copy. Other files in `to` are removed, and links are not followed.
    /// Blocks for seconds.
    ///
    /// # Errors
    /// Fails when [`Payload::open`] refuses `from`, when `to` is neither empty nor an earlier copy ([`PayloadError::Occupied`]), when a file cannot
    /// be written ([`PayloadError::Unwritable`]), and when [`Payload::verify_all`] refuses the copy.
    pub fn copy(from: &Path, to: &Path) -> Result<Self, PayloadError> {
        // Manifests are copied last, because a directory without a manifest is not a payload.
        let (mut files, mut manifests) = (Vec::new(), Vec::new());
        for (_, source) in Self::directories(from) {
            let (manifest, _) = Self::open_one(&source)?;
            let folder = source.strip_prefix(from).unwrap_or(Path::new(""));
            files.extend(manifest.files.iter().map(|file| folder.join(format!("{}.zst", file.path))));
            manifests.push(folder.join(MANIFEST));
        }
        files.append(&mut manifests);
        let unwritable = |source| PayloadError::Unwritable { path: to.to_owned(), source };
        fs::create_dir_all(to).map_err(unwritable)?;
        if !is_for_copies(to).map_err(unwritable)? {
            return Err(PayloadError::Occupied { path: to.to_owned() });
        }
        fs::write(to.join(MARK), "").map_err(unwritable)?;
        let named: BTreeSet<PathBuf> = files.iter().map(|name| to.join(name)).chain([to.join(MARK)]).collect();
        clear(to, &named).map_err(unwritable)?;
        for name in &files {
            copy_file(&from.join(name), to.join(name))?;
        }
        let copy = Self::open(to)?;
        copy.verify_all()?;
        Ok(copy)
    }
}

/// Reports whether a directory may be overwritten: it is empty, or holds a complete or partial copy. Any other directory may belong to a user.
fn is_for_copies(directory: &Path) -> io::Result<bool> {
    // The caller overwrites the marker, so it must not be a link to another file.
    if let Ok(mark) = fs::symlink_metadata(directory.join(MARK)) {
        return Ok(mark.is_file());
    }
    let parsed = |one: &PathBuf| fs::read(one.join(MANIFEST)).is_ok_and(|json| Manifest::parse(&json).is_ok());
    Ok(Payload::directories(directory).values().any(parsed) || fs::read_dir(directory)?.next().is_none())
}

/// Removes everything except the named files and their directories. A link is removed, its target is kept.
fn clear(directory: &Path, named: &BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        let is_named = named.contains(&path);
        // In sorted order, the path of a directory comes right before the paths below it.
        let leads_there =
            named.range(path.clone()..).next().is_some_and(|file| *file != path && file.starts_with(&path));
        if kind.is_dir() && leads_there {
            clear(&path, named)?;
        } else if kind.is_dir() {
            fs::remove_dir_all(path)?;
        } else if !kind.is_file() || !is_named {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Copies a file under a temporary name and renames it.
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
        [(r"C:\k\kubelet.exe", kubelet), (r"C:\k\cni\win-overlay.exe", b"overlay".as_slice())]
            .map(|(path, content)| Entry::with(path, Content::Bytes(content.into())))
            .into()
    }

    #[test]
    fn a_copy_equals_the_payload_and_can_be_repeated() {
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

    /// Returns the relative paths of all files below a directory.
    fn tree(directory: &Path) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                all.extend(tree(&path).into_iter().map(|file| format!("{name}/{file}")));
            } else {
                all.insert(path.file_name().unwrap().to_str().unwrap().to_owned());
            }
        }
        all
    }

    #[test]
    fn files_of_an_earlier_payload_are_removed_and_links_are_not_followed() {
        let (from, to, outside) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, to) = (from.path(), to.path().join("payload"));
        let precious = outside.path().join("win-overlay.exe.zst");
        fs::write(&precious, "precious").unwrap();
        write(from, &entries(b"one"), LEVEL_FAST).unwrap();
        Payload::copy(from, &to).unwrap();
        let of_one = tree(&to);

        // The payload now has two minor versions.
        fs::remove_dir_all(from).unwrap();
        for minor in ["1.35", "1.36"] {
            write(&from.join(minor), &entries(minor.as_bytes()), LEVEL_FAST).unwrap();
        }
        fs::remove_dir_all(to.join("cni")).unwrap();
        for name in ["cni", "old"] {
            std::os::unix::fs::symlink(outside.path(), to.join(name)).unwrap();
        }
        let copy = Payload::copy(from, &to).unwrap();
        assert_eq!(copy.by_minor().keys().copied().collect::<Vec<_>>(), [Some(35), Some(36)]);
        let left = tree(&to);
        assert!(left.iter().all(|file| file.starts_with("1.3") || file == MARK), "{left:?}");

        // The payload has one version again, while a directory and a file of the copy are links.
        fs::remove_dir_all(from).unwrap();
        write(from, &entries(b"one"), LEVEL_FAST).unwrap();
        std::os::unix::fs::symlink(outside.path(), to.join("cni")).unwrap();
        std::os::unix::fs::symlink(&precious, to.join("kubelet.exe.zst")).unwrap();
        // A copy that was interrupted has no manifests.
        for minor in ["1.35", "1.36"] {
            fs::remove_file(to.join(minor).join(MANIFEST)).unwrap();
        }
        Payload::copy(from, &to).unwrap();
        assert_eq!(tree(&to), of_one);
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_with_other_files_is_not_overwritten() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(from.path(), &entries(b"one"), LEVEL_FAST).unwrap();
        fs::write(to.path().join("letter"), "dear").unwrap();
        // Manifest of another program.
        fs::write(to.path().join(MANIFEST), "{}").unwrap();
        assert!(matches!(Payload::copy(from.path(), to.path()), Err(PayloadError::Occupied { .. })));
        assert_eq!(tree(to.path()), ["letter", MANIFEST].map(str::to_owned).into());
        std::os::unix::fs::symlink(from.path(), to.path().join(MARK)).unwrap();
        assert!(matches!(Payload::copy(from.path(), to.path()), Err(PayloadError::Occupied { .. })));
    }

    #[test]
    fn a_copy_that_fails_or_is_damaged_is_an_error() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert!(matches!(Payload::copy(from.path(), to.path()), Err(PayloadError::Unreadable { .. })));
        write(from.path(), &entries(b"kubelet"), LEVEL_FAST).unwrap();
        let in_the_way = to.path().join("file");
        fs::write(&in_the_way, "").unwrap();
        assert!(matches!(Payload::copy(from.path(), &in_the_way), Err(PayloadError::Unwritable { .. })));
        // Other content of the same size.
        let blob = from.path().join("kubelet.exe.zst");
        let mut bytes = fs::read(&blob).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&blob, bytes).unwrap();
        assert!(matches!(Payload::copy(from.path(), &to.path().join("new")), Err(PayloadError::WrongContent { .. })));
    }
}
