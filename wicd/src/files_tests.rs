//! Tests of file operations, under a crash or a simulated antivirus.

use super::*;
use crate::fake::FakeHost;

const FILE: &str = r"C:\k\x\y.txt";

thread_local! {
    /// Simulated antivirus: number of refused attempts for each file, and the attempts so far by file.
    static ANTIVIRUS: std::cell::RefCell<Option<(u32, std::collections::HashMap<PathBuf, u32>)>> = const { std::cell::RefCell::new(None) };
}

/// Simulates an antivirus on this thread that refuses this number of attempts for each file.
pub(crate) fn antivirus(attempts: u32) {
    ANTIVIRUS.with_borrow_mut(|held| *held = Some((attempts, std::collections::HashMap::new())));
}

/// Number of files that the simulated antivirus has held.
pub(crate) fn held_files() -> usize {
    ANTIVIRUS.with_borrow(|held| held.as_ref().map_or(0, |(_, files)| files.len()))
}

/// Fails in place of the operating system for a file that the simulated antivirus holds.
pub(super) fn held_by_others(path: &Path) -> io::Result<()> {
    const SHARING_VIOLATION: i32 = 32;
    ANTIVIRUS.with_borrow_mut(|held| {
        let Some((attempts, files)) = held.as_mut().filter(|_| path.is_file()) else { return Ok(()) };
        let seen = files.entry(path.to_path_buf()).or_default();
        *seen += 1;
        if *seen > *attempts { Ok(()) } else { Err(io::Error::from_raw_os_error(SHARING_VIOLATION)) }
    })
}

thread_local! {
    /// Names of files that cannot be removed.
    static STUCK: std::cell::RefCell<Vec<&'static str>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Prevents files of these names from being removed with their directory, on this thread.
pub(crate) fn stuck(names: &[&'static str]) {
    STUCK.set(names.to_vec());
}

/// Removes a directory in place of the operating system: everything that can be removed, even if the rest cannot.
pub(super) fn remove_dir_all(path: &Path) -> io::Result<()> {
    fn remove_but(path: &Path, stuck: &[&str]) -> io::Result<()> {
        let mut result = Ok(());
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let removed = match entry.file_type()?.is_dir() {
                true => remove_but(&entry.path(), stuck),
                false if stuck.iter().any(|name| entry.file_name() == *name) => Err(io::Error::other("it is mounted")),
                false => fs::remove_file(entry.path()),
            };
            result = result.and(removed);
        }
        result.and_then(|()| fs::remove_dir(path))
    }
    remove_but(path, &STUCK.with_borrow(Clone::clone))
}

#[test]
fn a_held_file_is_used_when_it_is_released() {
    let host = FakeHost::temporary();
    host.write(FILE, b"1");
    antivirus(2);
    assert_eq!(read(&host, FILE).unwrap().unwrap(), b"1");
    antivirus(2);
    assert!(sha256(&host, FILE).unwrap().is_some());
    antivirus(2);
    assert!(write(&host, FILE, b"2", Access::Inherited).unwrap());
    place(&host, FILE, r"C:\k\x\z.txt").unwrap();
    remove(&host, FILE).unwrap();
    assert_eq!(list(&host, r"C:\k\x").unwrap(), ["z.txt"]);
    antivirus(u32::MAX);
    let error = read(&host, r"C:\k\x\z.txt").unwrap_err();
    assert!(error.to_string().contains("z.txt"), "{error}");
}

#[test]
fn only_differences_are_written() {
    let host = FakeHost::temporary();
    assert_eq!(read(&host, FILE).unwrap(), None);
    assert!(write(&host, FILE, b"1", Access::Inherited).unwrap());
    assert!(!write(&host, FILE, b"1", Access::Inherited).unwrap());
    assert!(write(&host, FILE, b"2", Access::Protected).unwrap());
    assert_eq!(read(&host, FILE).unwrap().unwrap(), b"2");
    assert_eq!(list(&host, r"C:\k\x").unwrap(), ["y.txt"]);
}

#[test]
fn a_secret_is_protected_before_it_is_written() {
    let host = FakeHost::temporary();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let inner = seen.clone();
    host.on_protect(move |path| inner.lock().unwrap().push(fs::read(path).unwrap()));
    write(&host, FILE, b"secret", Access::Protected).unwrap();
    assert_eq!(*seen.lock().unwrap(), [Vec::<u8>::new()]);
}

/// Windows refuses to replace a running program, but lets it be renamed.
#[test]
fn a_file_in_use_is_moved_away() {
    let host = FakeHost::temporary();
    host.write(FILE, b"old");
    write(&host, r"C:\k\x\new", b"new", Access::Inherited).unwrap();
    let rename = |from: &Path, to: &Path| {
        if to.exists() { Err(io::Error::from(ErrorKind::PermissionDenied)) } else { fs::rename(from, to) }
    };
    replace(&host.path(r"C:\k\x\new").unwrap(), &host.path(FILE).unwrap(), rename, || false).unwrap();
    assert_eq!(read(&host, FILE).unwrap().unwrap(), b"new");
    assert_eq!(read(&host, r"C:\k\x\y.txt.old-0").unwrap().unwrap(), b"old");
    assert!(remove_old(&host, FILE).unwrap());
    assert_eq!(list(&host, r"C:\k\x").unwrap(), ["y.txt"]);
}

/// An antivirus holds new files while it scans them.
#[test]
fn a_held_file_is_replaced_or_removed_when_it_is_released() {
    for (about, held_for, code, expected) in [
        ("not", 0, 32, true),
        ("once", 1, 32, true),
        ("twice", 2, ACCESS_DENIED, true),
        ("for a moment", 3, 32, true),
        ("locked", 3, 33, true),
        ("forever", 1000, ACCESS_DENIED, false),
        ("another error", 3, 9, false),
    ] {
        let host = FakeHost::temporary();
        host.write(FILE, b"old");
        host.write(r"C:\k\x\new", b"new");
        let (new, path) = (host.path(r"C:\k\x\new").unwrap(), host.path(FILE).unwrap());
        let attempts = std::cell::Cell::new(0);
        let refuse = || if attempts.get() <= held_for { Err(io::Error::from_raw_os_error(code)) } else { Ok(()) };

        // The new file is held, the old one can be moved.
        let rename = |from: &Path, to: &Path| {
            attempts.set(attempts.get() + usize::from(from == new));
            if from == new { refuse().and_then(|()| fs::rename(from, to)) } else { fs::rename(from, to) }
        };
        let mut pauses = 0;
        let pause = || {
            pauses += 1;
            assert_eq!(fs::read(&path).unwrap(), b"old", "{about}: the old file exists all the time");
            pauses < 10
        };
        assert_eq!(replace(&new, &path, rename, pause).is_ok(), expected, "{about}");
        assert_eq!(host.read(FILE).unwrap(), if expected { "new" } else { "old" }, "{about}");

        let _moved = fs::remove_file(&new);
        attempts.set(0);
        let remove = |path: &Path| {
            attempts.set(attempts.get() + 1);
            refuse().and_then(|()| fs::remove_file(path))
        };
        let rename = |from: &Path, to: &Path| refuse().and_then(|()| fs::rename(from, to));
        let mut pauses = 0..10;
        let gone = while_held(|| remove_or_move(&path, remove, rename), &mut || pauses.next().is_some());
        assert_eq!((gone.is_ok(), host.exists(FILE)), (expected, !expected), "{about}");
    }
}

#[cfg(unix)]
#[test]
fn nothing_is_written_or_removed_behind_a_link() {
    let host = FakeHost::temporary();
    write(&host, r"C:\theirs\a\b", b"1", Access::Inherited).unwrap();
    std::os::unix::fs::symlink(host.path(r"C:\theirs").unwrap(), host.path(r"C:\link").unwrap()).unwrap();
    type Act = fn(&FakeHost) -> Result<(), HostError>;
    let acts: [(&str, Act); 8] = [
        ("remove", |h| remove(h, r"C:\link\a\b")),
        ("remove_tree", |h| remove_tree(h, r"C:\link\a")),
        ("remove_empty", |h| remove_empty(h, r"C:\link\a").map(drop)),
        ("remove_if_unused", |h| remove_if_unused(h, r"C:\link\a\b")),
        ("remove_old", |h| remove_old(h, r"C:\link\a\b").map(drop)),
        ("write", |h| write(h, r"C:\link\a\b", b"2", Access::Inherited).map(drop)),
        ("place", |h| place(h, r"C:\theirs\a\b", r"C:\link\a\c")),
        ("make_directory", |h| make_directory(h, r"C:\link")),
    ];
    for (about, act) in acts {
        let error = act(&host).unwrap_err();
        assert!(
            error.reason() == "DirectoryRefused" && error.to_string().contains(r"C:\link is a symbolic link"),
            "{about}: {error}"
        );
        assert_eq!(list(&host, r"C:\theirs\a").unwrap(), ["b"], "{about}");
        assert_eq!(read(&host, r"C:\theirs\a\b").unwrap().unwrap(), b"1", "{about}");
    }
    // The link itself can be removed.
    remove_tree(&host, r"C:\link").unwrap();
    assert!(!exists(&host, r"C:\link").unwrap() && exists(&host, r"C:\theirs\a\b").unwrap());
}

#[test]
fn writing_a_file_over_a_directory_is_an_error() {
    let host = FakeHost::temporary();
    make_directory(&host, FILE).unwrap();
    assert!(write(&host, FILE, b"1", Access::Inherited).is_err());
}

#[cfg(unix)]
#[test]
fn trees_are_removed_without_following_links() {
    let host = FakeHost::temporary();
    write(&host, r"C:\user\precious", b"1", Access::Inherited).unwrap();
    make_directory(&host, r"C:\k\t\sub").unwrap();
    std::os::unix::fs::symlink(host.path(r"C:\user").unwrap(), host.path(r"C:\k\t\sub\link").unwrap()).unwrap();
    remove_tree(&host, r"C:\k\t").unwrap();
    remove_tree(&host, r"C:\k\t").unwrap();
    assert!(!exists(&host, r"C:\k\t").unwrap());
    assert!(exists(&host, r"C:\user\precious").unwrap());
}

#[test]
fn the_parent_of_a_path_is_a_directory_below_c() {
    assert_eq!(parent(r"C:\k\x\y"), Some(r"C:\k\x"));
    assert_eq!(parent(r"C:\k"), None);
}
