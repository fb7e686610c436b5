//! Folder of gathered files, with limits. All text in the folder, and the list of failures, are redacted here.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use api::payload::is_device_name;
use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::redact;

/// Maximum size of a file in bytes, apart from what redaction adds: about one hour of the log at level `debug`. Longer text is cut at the beginning,
/// because faults are at the end.
pub(super) const MAX_FILE_BYTES: usize = 10 << 20;
/// Maximum size of all files in bytes. The archive is about a tenth as large, so it can still be attached to a support case.
const MAX_TOTAL_BYTES: u64 = 1 << 30;
/// Maximum number of files in the folder. Each host's archive is limited, too, but there may be many hosts.
const MAX_FILES: usize = 50_000;
/// Name of the file with the results of gathering. The limits have room for it.
const LOG: &str = "gather.log";
/// Maximum length of a part of a path. File systems allow 255 bytes, and programs that unpack the archive may add to them.
const MAX_NAME: usize = 200;
/// Maximum length of an extension that is kept when a name is shortened.
const MAX_EXTENSION: usize = 8;

/// Folder of gathered files, with the result of each part.
pub(crate) struct Folder {
    pub(super) root: PathBuf,
    bytes: u64,
    /// Number of files so far.
    pub(super) files: usize,
    log: Vec<String>,
    /// Failures so far, redacted.
    pub(super) failures: Vec<String>,
}

impl Folder {
    /// Creates the folder with access for its owner only, or uses an existing one, which must be empty.
    pub(crate) fn create(root: &Path) -> anyhow::Result<Self> {
        let failed = || format!("cannot write {}", root.display());
        private_folder().create(root).with_context(failed)?;
        if fs::read_dir(root).with_context(failed)?.next().is_some() {
            bail!("{} is not empty; name another folder with --dest", root.display());
        }
        Ok(Self { root: root.to_owned(), bytes: 0, files: 0, log: Vec::new(), failures: Vec::new() })
    }

    /// Writes a text whose secrets were removed, unless only the room for `gather.log` is left.
    fn write(&mut self, path: &str, text: &str) -> anyhow::Result<()> {
        let room = MAX_TOTAL_BYTES - MAX_FILE_BYTES as u64;
        if self.files + 1 >= MAX_FILES || self.bytes + text.len() as u64 > room {
            bail!(
                "the file is left out, because the folder has reached its limit of {} MiB or {MAX_FILES} files",
                MAX_TOTAL_BYTES >> 20
            );
        }
        self.write_anyway(path, text)
    }

    /// Writes a text whose secrets were removed, regardless of the limits. `path` has `/` between its parts; characters that a file name must not
    /// have are replaced.
    fn write_anyway(&mut self, path: &str, text: &str) -> anyhow::Result<()> {
        let path = self.path_in_folder(path);
        let write = || -> io::Result<()> {
            private_folder().create(path.parent().unwrap_or(&self.root))?;
            let mut file = private_file().open(&path)?;
            file.write_all(text.as_bytes())
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        self.bytes += text.len() as u64;
        self.files += 1;
        Ok(())
    }

    /// Returns the path of a file in the folder. No part leads out of the folder, and each is a name that all operating systems accept. Paths that
    /// differ stay different, unless they differ only in secrets.
    fn path_in_folder(&self, path: &str) -> PathBuf {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.fold(self.root.clone(), |place, part| place.join(file_name(&redact::text(part))))
    }

    /// Records a result of gathering.
    pub(crate) fn note(&mut self, what: &str, result: &str) {
        let time = Timestamp::now().strftime("%FT%TZ");
        self.log.push(redact::text(&format!("{time} {what}: {result}")));
    }

    /// Records that `what` could not be gathered, with the cause.
    pub(crate) fn failed(&mut self, what: &str, why: &str) {
        self.note(what, &format!("failed: {why}"));
        self.failures.push(redact::text(&format!("{what}: {why}")));
    }

    /// Redacts and writes a text, without its first lines if it is too long.
    pub(crate) fn text(&mut self, path: &str, text: &str) {
        let written = self.write(path, &redact::text(newest(text)));
        self.record_failed_write(path, written);
    }

    /// Redacts an object by the names of its fields, and writes it as YAML, without its managed fields, and without its first lines if it is too
    /// long.
    pub(crate) fn object(&mut self, path: &str, mut object: Value) {
        let items = object.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take);
        let mut items = items.unwrap_or_default();
        for object in items.iter_mut().chain([&mut object]) {
            if let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
                metadata.remove("managedFields");
            }
        }
        if !items.is_empty() {
            object["items"] = items.into();
        }
        redact::value(&mut object);
        let yaml = serde_yaml::to_string(&object).unwrap_or_else(|_| object.to_string());
        let written = self.write(path, newest(&yaml));
        self.record_failed_write(path, written);
    }

    /// Records a failure if the file could not be written.
    fn record_failed_write(&mut self, path: &str, written: anyhow::Result<()>) {
        if let Err(error) = written {
            self.failed(path, &format!("{error:#}"));
        }
    }

    /// Writes `gather.log`, also when the folder has reached its limits.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        let log = self.log.join("\n") + "\n";
        self.write_anyway(LOG, &redact::text(newest(&log)))
    }

    /// Packs the folder into `<folder>.tar.gz` beside it, and returns the path of the archive.
    pub(crate) fn pack(&self) -> anyhow::Result<PathBuf> {
        let mut name = self.root.clone().into_os_string();
        name.push(".tar.gz");
        let path = PathBuf::from(name);
        let pack = || -> io::Result<()> {
            let file = private_file().open(&path)?;
            let mut tar = tar::Builder::new(GzEncoder::new(file, Compression::default()));
            tar.append_dir_all(self.root.file_name().unwrap_or("gather".as_ref()), &self.root)?;
            tar.into_inner()?.finish()?.sync_all()
        };
        pack().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// Returns a part of a path as a file name that every operating system accepts. A name that was changed or shortened has a hash of the whole part
/// before its extension, so that different parts have different names.
fn file_name(part: &str) -> String {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-@()+=".contains(c);
    let mut name: String = part.chars().map(|c| if fine(c) { c } else { '_' }).collect();
    // Windows removes dots at the end of a name.
    let dots = name.len() - name.trim_end_matches('.').len();
    name.truncate(name.len() - dots);
    name.push_str(&"_".repeat(dots));
    if is_device_name(&name) {
        name.insert(0, '_');
    }
    if name == part && name.len() <= MAX_NAME {
        return name;
    }
    let hash = hex::encode(Sha256::digest(part));
    let hash = &hash[..8];
    let (stem, extension) = match name.rsplit_once('.') {
        Some((stem, extension)) if extension.len() <= MAX_EXTENSION => (stem, format!(".{extension}")),
        _ => (name.as_str(), String::new()),
    };
    let room = MAX_NAME - hash.len() - extension.len() - 1;
    format!("{}-{hash}{extension}", &stem[..stem.len().min(room)])
}

/// Returns the last whole lines that fit into [`MAX_FILE_BYTES`].
fn newest(text: &str) -> &str {
    let Some(from) = text.len().checked_sub(MAX_FILE_BYTES) else { return text };
    let text = &text[text.ceil_char_boundary(from)..];
    text.find('\n').map_or(text, |line| &text[line + 1..])
}

/// Options for creating a folder that no other user may read. On Windows it has the access rights of the folder in which it is made.
fn private_folder() -> fs::DirBuilder {
    let mut folder = fs::DirBuilder::new();
    folder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder
}

/// Options for creating a file that no other user may read. On Windows it has the access rights of its folder.
fn private_file() -> fs::OpenOptions {
    let mut file = File::options();
    file.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut file, 0o600);
    file
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_newest_lines_of_a_log_stay() {
        assert_eq!(newest("a\nb"), "a\nb");
        let long = format!("{}\nlast ä\n", "ä".repeat(MAX_FILE_BYTES / 2));
        assert_eq!(newest(&long), "last ä\n");
    }

    #[test]
    fn a_folder_and_its_archive_are_for_their_owner_and_without_secrets() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let mut folder = Folder::create(&dir.path().join("x")).unwrap();
        folder.text("a/../win-1.log", "x password=hunter2 on win-1");
        let config = serde_json::json!({"metadata": {"managedFields": [1]}, "data": {"token": "hunter2"}});
        folder.object("b.yaml", config);
        folder.failed("win-1", "https://me:hunter2@x/ refuses");
        folder.finish().unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join("x").join(name)).unwrap();
        let log = fs::read_to_string(folder.path_in_folder("a/../win-1.log")).unwrap();
        assert_eq!(log, "x password=(redacted)");
        assert_eq!(read("b.yaml"), "data:\n  token: (redacted)\nmetadata: {}\n");
        assert!(read("gather.log").ends_with("win-1: failed: https://(redacted)@x/ refuses\n"));
        for path in [folder.pack().unwrap(), dir.path().join("x/b.yaml"), dir.path().join("x")] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0, "{}", path.display());
        }
        assert!(Folder::create(&dir.path().join("x")).is_err_and(|error| error.to_string().contains("is not empty")));
    }

    #[test]
    fn the_log_is_written_into_a_full_folder() {
        let dir = tempfile::tempdir().unwrap();
        for (about, files, bytes) in [
            ("files", MAX_FILES - 1, 0),
            ("bytes", 0, MAX_TOTAL_BYTES - MAX_FILE_BYTES as u64),
            ("both", MAX_FILES, MAX_TOTAL_BYTES),
        ] {
            let mut folder = Folder::create(&dir.path().join(about)).unwrap();
            (folder.files, folder.bytes) = (files, bytes);
            folder.text("win-1.log", "x");
            assert!(
                folder.failures.concat().contains("win-1.log: the file is left out"),
                "{about}: {:?}",
                folder.failures
            );
            folder.finish().unwrap();
            let log = fs::read_to_string(dir.path().join(about).join(LOG)).unwrap();
            assert!(log.contains("win-1.log: failed: "), "{about}: {log}");
        }
    }

    #[test]
    fn names_are_accepted_by_windows_and_stay_different() {
        for name in ["win-1.log", "a.b_c-d@(e)+=f", ".hidden", "console.log"] {
            assert_eq!(file_name(name), name);
        }
        let long = "x".repeat(MAX_NAME);
        let changed = [
            "con.yaml",
            "CON.yaml",
            "con",
            "aux",
            "nul",
            "com1.tar.gz",
            "win-1.",
            "win-1..",
            "win-1 ",
            "..",
            ".",
            "a:b.log",
            "a_b.log.",
            "a?b.log",
            "ä",
            "ö",
        ];
        let changed = changed.map(str::to_owned).into_iter();
        let changed: Vec<String> = changed.chain(["a.log", "b.log", "b"].map(|end| format!("{long}{end}"))).collect();
        let is_log = |name: &str| name.rsplit('.').next() == Some("log");
        let names: Vec<String> = changed.iter().map(|name| file_name(name)).collect();
        for (name, from) in names.iter().zip(&changed) {
            assert!(!is_device_name(name) && !name.ends_with('.') && name.len() <= MAX_NAME, "{from}: {name}");
            assert!(name != from && is_log(name) == is_log(from), "{from}: {name}");
            assert_eq!(names.iter().filter(|other| other.eq_ignore_ascii_case(name)).count(), 1, "{from}: {name}");
        }
    }

    proptest! {
        #[test]
        fn no_name_leads_out_of_the_folder(path in "[a-z./:\\\\\u{0}ä*]{0,40}") {
            let dir = tempfile::tempdir().unwrap();
            let folder = Folder::create(dir.path()).unwrap();
            let place = folder.path_in_folder(&path);
            prop_assert!(place.starts_with(dir.path()));
            prop_assert!(place.components().all(|part| !matches!(part, std::path::Component::ParentDir)));
        }
    }
}
