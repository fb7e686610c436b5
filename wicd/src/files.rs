//! Reading, writing and placing files. A file is replaced atomically: a crash leaves the old content or the new one. Exception: a file in use is
//! moved away first, so that a crash may leave no file at its path.
//!
//! All paths are Windows paths in text; see [`Host::path`].

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use crate::access::Guard;
use crate::host::{Host, HostError};

/// Access to a file: inherited from its directory, or for SYSTEM and administrators only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Access that the file inherits from its directory.
    Inherited,
    /// Access for SYSTEM and administrators only, set before the first byte is written.
    Protected,
}

/// Maximum size of a file for [`read`], in bytes. wicd's own files are much smaller.
pub const READ_LIMIT: u64 = 64 << 20;

/// Content of a file, `None` if there is none.
///
/// # Errors
/// Fails when `path` is refused, the file cannot be opened or read, or it is larger than [`READ_LIMIT`].
pub fn read(host: &dyn Host, path: &str) -> Result<Option<Vec<u8>>, HostError> {
    let real = host.path(path)?;
    let failed = |e| HostError::system("read", path)(e);
    let Some(file) = if_there(open(&real)).map_err(failed)? else { return Ok(None) };
    let mut content = Vec::new();
    file.take(READ_LIMIT + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > READ_LIMIT {
        return Err(failed(io::Error::new(ErrorKind::FileTooLarge, "larger than 64 MiB")));
    }
    Ok(Some(content))
}

/// Content of a JSON file, `None` if there is none.
///
/// # Errors
/// Fails when the file cannot be read, or its content is not JSON of this type.
pub fn read_json<T: DeserializeOwned>(host: &dyn Host, path: &str) -> Result<Option<T>, HostError> {
    let Some(content) = read(host, path)? else { return Ok(None) };
    serde_json::from_slice(&content).map(Some).map_err(HostError::system("parse", path))
}

/// Writes a file through a temporary file beside it, unless the file has this content already; then only protects it if `access` requires that.
/// Creates missing directories. Returns whether the content was written.
///
/// # Errors
/// Fails when the current content cannot be read, the new content cannot be written or protected, or a parent directory of a file that changes is a
/// link.
pub fn write(host: &dyn Host, path: &str, content: &[u8], access: Access) -> Result<bool, HostError> {
    if read(host, path)?.as_deref() == Some(content) {
        if access == Access::Protected {
            host.protect(&host.path(path)?, Guard::Private)?;
        }
        return Ok(false);
    }
    make_parent(host, path)?;
    let _held = parents(host, path)?;
    let real = host.path(path)?;
    let temporary = beside(&real, ".new");
    let failed = |e| HostError::system("write", path)(e);
    let mut file = make(&temporary).map_err(failed)?;
    if access == Access::Protected {
        host.protect(&temporary, Guard::Private)?;
    }
    file.write_all(content).and_then(|()| file.sync_all()).map_err(failed)?;
    drop(file);
    replace(&temporary, &real, rename, patience()).map_err(failed)?;
    Ok(true)
}

/// Writes a value as JSON, as [`write()`] does.
///
/// # Errors
/// Fails when `value` cannot be serialized to JSON, or [`write()`] fails.
pub fn write_json<T: Serialize>(host: &dyn Host, path: &str, value: &T, access: Access) -> Result<bool, HostError> {
    let content = serde_json::to_vec_pretty(value).map_err(HostError::system("write", path))?;
    write(host, path, &content, access)
}

/// Places the content of `source` at `path`, as a hard link, or as a copy if linking fails. A file that is in use there is moved away, see
/// [`remove_old`].
///
/// # Errors
/// Fails when a parent directory of `path` is a link or cannot be created, `source` can be neither linked nor copied, or the file at `path` can be
/// neither replaced nor moved away.
pub fn place(host: &dyn Host, source: &str, path: &str) -> Result<(), HostError> {
    make_parent(host, path)?;
    let _held = parents(host, path)?;
    let (from, to) = (host.path(source)?, host.path(path)?);
    let temporary = beside(&to, ".new");
    let copy = || remove_real(&temporary).and_then(|()| link_or_copy(&from, &temporary));
    let placed = while_held(copy, &mut patience()).and_then(|()| replace(&temporary, &to, rename, patience()));
    placed.map_err(HostError::system("place", path))
}

/// Moves `new` to `path`. Windows lets a running program be renamed but not replaced: the old file is then moved to `<path>.old-<n>`. Waits a limited
/// time for files that another program holds. After a failure, moves the old file back.
fn replace(
    new: &Path,
    path: &Path,
    rename: impl Fn(&Path, &Path) -> io::Result<()>,
    mut pause: impl FnMut() -> bool,
) -> io::Result<()> {
    // A file that is only held for a moment need not be moved away.
    while_shared(|| rename(new, path), &mut pause).or_else(|_| while_held(|| swap(new, path, &rename), &mut pause))
}

fn swap(new: &Path, path: &Path, rename: &impl Fn(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    let Err(refused) = rename(new, path) else { return Ok(()) };
    if !path.is_file() {
        return Err(refused);
    }
    let aside = old_files(path).find(|old| !old.exists() || fs::remove_file(old).is_ok());
    let Some(aside) = aside else { return Err(refused) };
    rename(path, &aside)?;
    let Err(refused) = rename(new, path) else { return Ok(()) };
    // The old file was just moved, so it can be moved back; if an antivirus holds it already, after a retry.
    while_held(|| rename(&aside, path), &mut patience())?;
    Err(refused)
}

/// Opens a file to read it. Waits a limited time for a file that another program holds.
pub(crate) fn open(path: &Path) -> io::Result<fs::File> {
    while_shared(|| held_by_others(path).and_then(|()| fs::File::open(path)), &mut patience())
}

/// Retries as [`while_held`] does, but not if access is denied: that error may be permanent, and Windows returns it for a running program.
fn while_shared<T>(mut attempt: impl FnMut() -> io::Result<T>, pause: &mut impl FnMut() -> bool) -> io::Result<T> {
    loop {
        match attempt() {
            Err(e) if is_held(&e) && e.raw_os_error() != Some(ACCESS_DENIED) && pause() => {}
            result => return result,
        }
    }
}

/// Creates a file in place of one that a crash has left. Waits a limited time for a file that another program holds.
pub(crate) fn make(path: &Path) -> io::Result<fs::File> {
    while_held(|| remove_real(path).and_then(|()| fs::File::create_new(path)), &mut patience())
}

fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    held_by_others(from)?;
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))
}

/// Succeeds: outside of tests, the operating system itself fails for a file that another program holds.
#[cfg(not(any(test, feature = "fake")))]
#[expect(clippy::unnecessary_wraps, reason = "as in tests")]
fn held_by_others(_path: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(all(feature = "fake", not(test)))]
use crate::held::held_by_others;
#[cfg(test)]
use tests::held_by_others;

/// Moves a file. Replaces the file at the destination, if any, which must not be in use. Waits a limited time for files that another program holds.
pub(crate) fn rename_file(from: &Path, to: &Path) -> io::Result<()> {
    while_held(|| rename(from, to), &mut patience())
}

/// Retries `attempt` while another program holds the file, until the time is over.
fn while_held<T>(mut attempt: impl FnMut() -> io::Result<T>, pause: &mut impl FnMut() -> bool) -> io::Result<T> {
    loop {
        match attempt() {
            Err(e) if is_held(&e) && pause() => {}
            result => return result,
        }
    }
}

/// Reports whether Windows may have returned this error because another program has opened or locked the file: access denied, sharing violation,
/// or lock violation. Antivirus and backup programs open new files for moments.
fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(ACCESS_DENIED | 32 | 33))
        && (cfg!(windows) || cfg!(test) || cfg!(feature = "fake"))
}

/// Returns a function that sleeps for a moment, and returns false once the time limit is reached.
fn patience() -> impl FnMut() -> bool {
    let mut left = MAX_HELD.as_millis() / AGAIN.as_millis();
    move || {
        let waits = left > 0;
        if waits {
            left -= 1;
            std::thread::sleep(AGAIN);
        }
        waits
    }
}

/// Time limit of the wait for a file that another program holds.
const MAX_HELD: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 100 });
/// Windows' error for denied access, and for a file that is deleted as soon as another program closes it. Elsewhere, where tests run, the
/// corresponding error.
const ACCESS_DENIED: i32 = if cfg!(windows) { 5 } else { 13 };

/// Returns the paths to which a file in use can be moved.
fn old_files(path: &Path) -> impl Iterator<Item = PathBuf> {
    /// Maximum number of old versions of a file that can be in use at once.
    const MAX_OLD_VERSIONS: u32 = 8;
    (0..MAX_OLD_VERSIONS).map(|n| beside(path, &format!(".old-{n}")))
}

/// Removes the files that [`write()`], [`place`] and [`remove`] have moved away, unless a program still runs from them. Waits a limited time for
/// files that another program has open. Returns whether all are removed.
///
/// # Errors
/// Fails when `path` is refused, or a parent directory is a link. A file that cannot be removed is not an error.
pub fn remove_old(host: &dyn Host, path: &str) -> Result<bool, HostError> {
    let _held = parents(host, path)?;
    let real = host.path(path)?;
    let removed = old_files(&real).map(|old| while_shared(|| remove_real(&old), &mut patience()));
    Ok(removed.filter(Result::is_err).count() == 0)
}

/// Removes a file; a missing one is success. A file that is in use is moved away, see [`remove_old`]. Waits a limited time if neither is possible.
///
/// # Errors
/// Fails when `path` is refused, a parent directory is a link, or the file can be neither removed nor moved away.
pub fn remove(host: &dyn Host, path: &str) -> Result<(), HostError> {
    let _held = parents(host, path)?;
    let real = host.path(path)?;
    // A file that is only held for a moment need not be moved away.
    let gone = while_shared(|| remove_real(&real), &mut patience())
        .or_else(|_| while_held(|| remove_or_move(&real, remove_real, rename), &mut patience()));
    gone.map_err(HostError::system("remove", path))
}

fn remove_or_move(
    real: &Path,
    remove: impl Fn(&Path) -> io::Result<()>,
    rename: impl Fn(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let Err(refused) = remove(real) else { return Ok(()) };
    let aside = old_files(real).find(|old| !old.exists());
    match aside {
        Some(aside) if real.is_file() => rename(real, &aside),
        _ => Err(refused),
    }
}

/// Removes a file if that is possible now.
///
/// # Errors
/// Fails when `path` is refused, or a parent directory is a link. A file that cannot be removed is not an error.
pub fn remove_if_unused(host: &dyn Host, path: &str) -> Result<(), HostError> {
    let _held = parents(host, path)?;
    let _in_use = remove_real(&host.path(path)?);
    Ok(())
}

/// Removes a directory with its content; a missing one is success. Waits a limited time for files that another program holds. Links and junctions are
/// removed, never followed.
///
/// # Errors
/// Fails when `path` is refused, a parent directory is a link, or a file or directory in the tree cannot be removed.
pub fn remove_tree(host: &dyn Host, path: &str) -> Result<(), HostError> {
    let _held = parents(host, path)?;
    let real = host.path(path)?;
    let remove = || if fs::symlink_metadata(&real)?.is_dir() { remove_dir_all(&real) } else { fs::remove_file(&real) };
    while_held(remove, &mut patience()).or_else(ignore_missing).map_err(HostError::system("remove", path))
}

#[cfg(not(test))]
use std::fs::remove_dir_all;
#[cfg(test)]
use tests::remove_dir_all;

/// Moves a directory with its content atomically. Waits a limited time for files that another program holds.
///
/// # Errors
/// Fails when a path is refused, a parent directory of `from` is a link, `from` does not exist, or Windows refuses the move.
pub fn move_tree(host: &dyn Host, from: &str, to: &str) -> Result<(), HostError> {
    let _held = parents(host, from)?;
    let (real, aside) = (host.path(from)?, host.path(to)?);
    while_held(|| fs::rename(&real, &aside), &mut patience()).map_err(HostError::system("move", from))
}

/// Removes a directory if it is empty. Returns whether it no longer exists.
///
/// # Errors
/// Fails when `path` is refused, a parent directory is a link, or the empty directory cannot be removed.
pub fn remove_empty(host: &dyn Host, path: &str) -> Result<bool, HostError> {
    let _held = parents(host, path)?;
    match fs::remove_dir(host.path(path)?).or_else(ignore_missing) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => Ok(false),
        Err(e) => Err(HostError::system("remove", path)(e)),
    }
}

/// Size of a file, `None` if there is none.
///
/// # Errors
/// Fails when `path` is refused, or the file cannot be inspected.
pub fn size(host: &dyn Host, path: &str) -> Result<Option<u64>, HostError> {
    let meta = if_there(fs::metadata(host.path(path)?)).map_err(HostError::system("inspect", path))?;
    Ok(meta.filter(fs::Metadata::is_file).map(|meta| meta.len()))
}

/// Stamp that detects a change of a file without a read of its content.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Size in bytes.
    pub size: u64,
    /// Modification time, in nanoseconds since 1970.
    pub modified: u64,
}

/// Stamp of a regular file; `None` if there is none, or an entry of another kind, for example a link.
///
/// # Errors
/// Fails when `path` is refused, or the file cannot be inspected.
pub fn stamp(host: &dyn Host, path: &str) -> Result<Option<Stamp>, HostError> {
    let failed = |e| HostError::system("inspect", path)(e);
    let meta = if_there(fs::symlink_metadata(host.path(path)?)).map_err(failed)?;
    let Some(meta) = meta.filter(fs::Metadata::is_file) else { return Ok(None) };
    let since = meta.modified().map_err(failed)?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Some(Stamp { size: meta.len(), modified: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) }))
}

/// Reports whether there is a file, directory or link at a path.
///
/// # Errors
/// Fails when `path` is refused or cannot be inspected.
pub fn exists(host: &dyn Host, path: &str) -> Result<bool, HostError> {
    let meta = if_there(fs::symlink_metadata(host.path(path)?));
    meta.map(|meta| meta.is_some()).map_err(HostError::system("inspect", path))
}

/// Names of the entries of a directory, sorted; none if it does not exist. Names that are not Unicode are skipped.
///
/// # Errors
/// Fails when `path` is refused, or the directory cannot be read.
pub fn list(host: &dyn Host, path: &str) -> Result<Vec<String>, HostError> {
    let failed = |e| HostError::system("list", path)(e);
    let Some(entries) = if_there(fs::read_dir(host.path(path)?)).map_err(failed)? else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// Lower-case hex SHA-256 of a file, `None` if there is none.
///
/// # Errors
/// Fails when `path` is refused, or the file cannot be opened or read.
pub fn sha256(host: &dyn Host, path: &str) -> Result<Option<String>, HostError> {
    let failed = |e| HostError::system("read", path)(e);
    let Some(mut file) = if_there(open(&host.path(path)?)).map_err(failed)? else { return Ok(None) };
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash).map_err(failed)?;
    Ok(Some(hex::encode(hash.finalize())))
}

/// Creates a directory and its parents. None of them may be a link.
///
/// # Errors
/// Fails when `path` is refused, or one of the directories is a link or cannot be created.
pub fn make_directory(host: &dyn Host, path: &str) -> Result<(), HostError> {
    let _held = parents(host, &format!(r"{path}\x"))?;
    fs::create_dir_all(host.path(path)?).map_err(HostError::system("create directory", path))
}

/// Parent directory of a Windows path, `None` for an entry directly on `C:`.
pub fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('\\').map(|(parent, _)| parent).filter(|parent| parent.contains('\\'))
}

/// Parent directories of a path. Those that can be opened are held open until this value is dropped, so that Windows lets no other program replace
/// them.
pub(crate) struct Parents(#[expect(dead_code, reason = "what is open cannot be renamed")] Vec<fs::File>);

/// Holds the parent directories of `path` open, as far as possible. Fails if one of them is a link, with which a user could redirect wicd to other
/// files.
pub(crate) fn parents(host: &dyn Host, path: &str) -> Result<Parents, HostError> {
    let mut held = Vec::new();
    let mut above: Vec<&str> = std::iter::successors(parent(path), |directory| parent(directory)).collect();
    above.reverse();
    for directory in above {
        let real = host.path(directory)?;
        held.extend(hold(&real));
        let meta = if_there(fs::symlink_metadata(&real)).map_err(HostError::system("inspect", directory))?;
        let Some(meta) = meta else { break };
        if meta.is_symlink() {
            return Err(HostError::Link { path: path.to_string(), link: directory.to_string() });
        }
    }
    Ok(Parents(held))
}

/// Opens a directory such that no other program can rename or delete it. `None` if that fails: the caller still checks the directory.
#[cfg(windows)]
fn hold(directory: &Path) -> Option<fs::File> {
    use std::os::windows::fs::OpenOptionsExt;
    const FILE_LIST_DIRECTORY: u32 = 0x1;
    const FILE_SHARE_READ_WRITE: u32 = 0x3;
    const FILE_FLAG_BACKUP_SEMANTICS: u32 = 0x0200_0000;
    const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;
    fs::OpenOptions::new()
        .access_mode(FILE_LIST_DIRECTORY)
        .share_mode(FILE_SHARE_READ_WRITE)
        .custom_flags(FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT)
        .open(directory)
        .ok()
}

#[cfg(not(windows))]
fn hold(_directory: &Path) -> Option<fs::File> {
    None
}

fn make_parent(host: &dyn Host, path: &str) -> Result<(), HostError> {
    parent(path).map_or(Ok(()), |parent| make_directory(host, parent))
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    held_by_others(from)?;
    held_by_others(to)?;
    fs::rename(from, to)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn remove_real(path: &Path) -> io::Result<()> {
    held_by_others(path)?;
    fs::remove_file(path).or_else(ignore_missing)
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    if_there(Err(error)).map(|_: Option<()>| ())
}

/// Returns `None` if the result is the error for a missing file or directory.
pub(crate) fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        result => result.map(Some),
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
pub(crate) mod tests;
