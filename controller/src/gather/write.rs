//! The folder that is gathered. Every byte that is written passes `Folder::write`: redacted, then under pseudonyms, then bounded.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use serde_json::Value;

use super::{anonymise::Pseudonyms, redact};

/// Largest file: an hour of a log at level `debug`. What is too much is left out at the beginning, because a fault is at the end.
pub(super) const MOST_OF_A_FILE: usize = 10 << 20;
/// All files together. An archive of text is a tenth of it: what can still be attached to a support case.
const MOST_OF_ALL: u64 = 1 << 30;
/// Files: a host may send as many as its archive may have, and a fleet has hosts.
const MOST_FILES: usize = 50_000;

/// Why something is not in the folder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The folder has something in it.
    #[error("{} is not empty; name another folder with --dest", .0.display())]
    NotEmpty(PathBuf),
    /// The limit of all files is reached.
    #[error("it is left out: the folder has {} MiB or {MOST_FILES} files already", MOST_OF_ALL >> 20)]
    Full,
    /// A file or folder cannot be written.
    #[error("cannot write {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The folder, and what became of each part.
pub(crate) struct Folder {
    root: PathBuf,
    pseudonyms: Option<Pseudonyms>,
    bytes: u64,
    files: usize,
    log: Vec<String>,
    failures: Vec<String>,
}

impl Folder {
    /// Makes the folder, for its owner alone: a folder that is there must be empty.
    pub(crate) fn create(root: &Path, pseudonyms: Option<Pseudonyms>) -> Result<Self, WriteError> {
        let failed = |source| WriteError::Io { path: root.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(failed)?;
        if fs::read_dir(root).map_err(failed)?.next().is_some() {
            return Err(WriteError::NotEmpty(root.to_owned()));
        }
        let (log, failures) = (Vec::new(), Vec::new());
        let folder = Self { root: root.to_owned(), pseudonyms, bytes: 0, files: 0, log, failures };
        // Before anything is gathered: a table that cannot be written would be missed at the end. One that is there is of another archive.
        folder.write_table(File::options().write(true).create_new(true))?;
        Ok(folder)
    }

    /// Where it is.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Files so far.
    pub(crate) fn files(&self) -> usize {
        self.files
    }

    /// What failed so far, redacted.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// The text as it may be written and printed.
    fn clean(&self, text: &str) -> String {
        let text = redact::text(text);
        self.pseudonyms.as_ref().map_or(text.clone(), |pseudonyms| pseudonyms.apply(&text))
    }

    /// Writes a text. `path` has `/` between its parts; what must not be in a name of a file is replaced.
    pub(crate) fn text(&mut self, path: &str, text: &str) -> Result<(), WriteError> {
        self.write(path, newest(text))
    }

    /// Writes a text whose first lines are the newest.
    pub(crate) fn newest_first(&mut self, path: &str, text: &str) -> Result<(), WriteError> {
        self.write(path, beginning(text))
    }

    /// `text` is within the limit of a file.
    fn write(&mut self, path: &str, text: &str) -> Result<(), WriteError> {
        let text = self.clean(text);
        if self.files >= MOST_FILES || self.bytes + text.len() as u64 > MOST_OF_ALL {
            return Err(WriteError::Full);
        }
        let path = self.place(path);
        let write = || -> io::Result<()> {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(path.parent().unwrap_or(&self.root))?;
            let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            file.write_all(text.as_bytes())
        };
        write().map_err(|source| WriteError::Io { path: path.clone(), source })?;
        self.bytes += text.len() as u64;
        self.files += 1;
        Ok(())
    }

    /// Writes an object as YAML, without what only the API server needs.
    pub(crate) fn object(&mut self, path: &str, mut object: Value) -> Result<(), WriteError> {
        let without = |object: &mut Value| {
            object
                .pointer_mut("/metadata")
                .and_then(Value::as_object_mut)
                .map(|metadata| metadata.remove("managedFields"));
        };
        without(&mut object);
        object.pointer_mut("/items").and_then(Value::as_array_mut).into_iter().flatten().for_each(without);
        redact::value(&mut object);
        let yaml = serde_yaml::to_string(&object).unwrap_or_else(|_| object.to_string());
        self.text(path, &yaml)
    }

    /// The place of a file: no part leads out of the folder, and none has a name that another system refuses.
    fn place(&self, path: &str) -> PathBuf {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.fold(self.root.clone(), |place, part| place.join(file_name(&self.clean(part))))
    }

    /// Records what was gathered.
    pub(crate) fn note(&mut self, what: &str, result: &str) {
        let line = self.clean(&format!("{} {what}: {result}", Timestamp::now().strftime("%FT%TZ")));
        self.log.push(line);
    }

    /// Records what could not be gathered, and why.
    pub(crate) fn failed(&mut self, what: &str, why: &str) {
        self.note(what, &format!("failed: {why}"));
        let failure = self.clean(&format!("{what}: {why}"));
        self.failures.push(failure);
    }

    /// Records a result: what could not be written has failed.
    pub(crate) fn keep(&mut self, what: &str, result: Result<(), WriteError>) {
        if let Err(error) = result {
            self.failed(what, &error.to_string());
        }
    }

    /// Writes `gather.log`.
    pub(crate) fn finish(&mut self) -> Result<(), WriteError> {
        let log = self.log.join("\n") + "\n";
        self.text("gather.log", &log)
    }

    /// Packs the folder into `<folder>.tar.gz` beside it, and returns where that is.
    pub(crate) fn pack(&self) -> Result<PathBuf, WriteError> {
        let mut name = self.root.clone().into_os_string();
        name.push(".tar.gz");
        let path = PathBuf::from(name);
        let pack = || -> io::Result<()> {
            let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            let mut tar = tar::Builder::new(GzEncoder::new(file, Compression::default()));
            tar.append_dir_all(self.root.file_name().unwrap_or("gather".as_ref()), &self.root)?;
            tar.into_inner()?.finish()?.sync_all()
        };
        pack().map(|()| path.clone()).map_err(|source| WriteError::Io { path, source })
    }

    /// Writes what the pseudonyms stand for, with the addresses that were met, and returns where that is.
    pub(crate) fn finish_table(&self) -> Result<Option<PathBuf>, WriteError> {
        self.write_table(File::options().write(true).truncate(true))
    }

    /// The table is beside the folder, for its owner alone.
    fn write_table(&self, options: &mut OpenOptions) -> Result<Option<PathBuf>, WriteError> {
        let Some(pseudonyms) = &self.pseudonyms else { return Ok(None) };
        let mut name = self.root.clone().into_os_string();
        name.push(".names.yaml");
        let path = PathBuf::from(name);
        let table = serde_yaml::to_string(&pseudonyms.table()).unwrap_or_default();
        let mut write = || options.mode(0o600).open(&path)?.write_all(table.as_bytes());
        write().map(|()| Some(path.clone())).map_err(|source| WriteError::Io { path, source })
    }
}

/// A part of a path that every system takes.
fn file_name(part: &str) -> String {
    let name: String = part
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-@()+=".contains(c) { c } else { '_' })
        .take(200)
        .collect();
    if name.chars().all(|c| c == '.') { "_".into() } else { name }
}

/// The last whole lines of a text that is too long.
fn newest(text: &str) -> &str {
    let Some(mut from) = text.len().checked_sub(MOST_OF_A_FILE) else { return text };
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].find('\n').map_or(&text[from..], |line| &text[from + line + 1..])
}

/// The first whole lines of a text that is too long.
fn beginning(text: &str) -> &str {
    if text.len() <= MOST_OF_A_FILE {
        return text;
    }
    let mut end = MOST_OF_A_FILE;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].rfind('\n').map_or(&text[..end], |line| &text[..=line])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_newest_lines_of_a_log_stay() {
        assert_eq!(newest("a\nb"), "a\nb");
        let long = format!("{}\nlast ä\n", "ä".repeat(MOST_OF_A_FILE / 2));
        assert_eq!(newest(&long), "last ä\n");
        let long = format!("first ä\n{}", "ä".repeat(MOST_OF_A_FILE / 2));
        assert_eq!(beginning(&long), "first ä\n");
        assert_eq!(beginning("a\nb"), "a\nb");
        assert_eq!(beginning(&"ä".repeat(MOST_OF_A_FILE)).len(), MOST_OF_A_FILE);
    }

    #[test]
    fn a_folder_and_its_archive_are_for_their_owner_and_without_secrets() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let mut names = super::super::anonymise::Names::default();
        names.host("win-1");
        let mut folder = Folder::create(&dir.path().join("x"), Some(Pseudonyms::new(&names))).unwrap();
        folder.text("a/../win-1.log", "x password=hunter2 on win-1").unwrap();
        let config = serde_json::json!({"metadata": {"managedFields": [1]}, "data": {"token": "hunter2"}});
        folder.object("b.yaml", config).unwrap();
        folder.failed("win-1", "https://me:hunter2@x/ refuses");
        folder.finish().unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join("x").join(name)).unwrap();
        assert_eq!(read("a/_/x-host-1-x.log"), "x password=(redacted) on x-host-1-x");
        assert_eq!(read("b.yaml"), "data:\n  token: (redacted)\nmetadata: {}\n");
        assert!(read("gather.log").ends_with("x-host-1-x: failed: https://(redacted)@x/ refuses\n"));
        let table = dir.path().join("x.names.yaml");
        assert!(fs::read_to_string(&table).unwrap().contains("win-1"), "it is there if the rest is interrupted");
        assert_eq!(folder.finish_table().unwrap().unwrap(), table);
        assert_eq!(fs::read_to_string(&table).unwrap(), "x-host-1-x: win-1\n");
        for path in [table, folder.pack().unwrap(), dir.path().join("x/b.yaml"), dir.path().join("x")] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0, "{}", path.display());
        }
        assert!(matches!(Folder::create(&dir.path().join("x"), None), Err(WriteError::NotEmpty(_))));
    }

    #[test]
    fn nothing_is_gathered_whose_table_of_pseudonyms_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("x.names.yaml"), "of an earlier archive").unwrap();
        let none = Pseudonyms::new(&super::super::anonymise::Names::default());
        let created = Folder::create(&dir.path().join("x"), Some(none));
        assert!(matches!(created, Err(WriteError::Io { path, .. }) if path.ends_with("x.names.yaml")));
        assert_eq!(fs::read_to_string(dir.path().join("x.names.yaml")).unwrap(), "of an earlier archive");
    }

    proptest! {
        #[test]
        fn no_name_leads_out_of_the_folder(path in "[a-z./:\\\\\u{0}ä*]{0,40}") {
            let dir = tempfile::tempdir().unwrap();
            let folder = Folder::create(dir.path(), None).unwrap();
            let place = folder.place(&path);
            prop_assert!(place.starts_with(dir.path()));
            prop_assert!(place.components().all(|part| !matches!(part, std::path::Component::ParentDir)));
        }
    }
}
