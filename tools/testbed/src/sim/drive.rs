//! Paths of a simulated host: `C:\k\x` (in programs) and `/C:/k/x` (over SFTP) are `k/x` below one directory.

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// Parsed SFTP path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SftpPath {
    /// `/`, which lists the drives.
    Root,
    /// Parts below the drive, or below `/` of a host that is not a Windows host.
    Below(Vec<String>),
    /// Another drive, or an invalid path.
    Nowhere,
}

/// Parses an SFTP path as OpenSSH on Windows does: absolute paths begin with `/C:`, relative ones start at the user's home.
/// `windows` is false for a host that has no drives.
pub(super) fn place(path: &str, windows: bool) -> SftpPath {
    let path = path.replace('\\', "/");
    let absolute = match path.strip_prefix('/') {
        Some(rest) => rest.to_string(),
        None if windows && is_drive(path.split('/').next().unwrap_or_default()) => path,
        None if windows => format!("C:/Users/Administrator/{path}"),
        None => format!("home/administrator/{path}"),
    };
    let mut parts: Vec<String> = Vec::new();
    for part in absolute.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ if part.contains('\0') => return SftpPath::Nowhere,
            _ => parts.push(part.to_string()),
        }
    }
    match parts.first() {
        None => SftpPath::Root,
        Some(_) if !windows => SftpPath::Below(parts),
        Some(drive) if drive.eq_ignore_ascii_case("C:") => SftpPath::Below(parts.split_off(1)),
        Some(_) => SftpPath::Nowhere,
    }
}

/// Returns a path in the spelling of the host.
pub(super) fn spell(place: &SftpPath, windows: bool) -> String {
    match place {
        SftpPath::Below(parts) if windows => {
            if parts.is_empty() {
                "/C:".into()
            } else {
                format!("/C:/{}", parts.join("/"))
            }
        }
        SftpPath::Below(parts) => format!("/{}", parts.join("/")),
        SftpPath::Root | SftpPath::Nowhere => "/".into(),
    }
}

/// Returns the content of a file, by the path that programs use.
pub(super) fn read(root: &Path, windows_path: &str) -> Result<Vec<u8>> {
    let parts: Vec<&str> = windows_path.split('\\').skip(1).collect();
    std::fs::read(find(root, &parts)).with_context(|| format!("cannot read {windows_path}"))
}

/// Finds `parts` below `root` without regard to case, as Windows does. Missing parts are used as they are
/// written. The only link on a drive is that of kubelet, to a file beside it, so no path leaves
/// `root`.
pub(super) fn find<S: AsRef<str>>(root: &Path, parts: &[S]) -> PathBuf {
    parts.iter().fold(root.to_path_buf(), |dir, part| {
        let part = part.as_ref();
        let exact = dir.join(part);
        if exact.symlink_metadata().is_ok() {
            return exact;
        }
        entry_of_other_case(&dir, part).unwrap_or(exact)
    })
}

fn entry_of_other_case(dir: &Path, name: &str) -> Option<PathBuf> {
    let same = |e: &std::fs::DirEntry| e.file_name().to_str().is_some_and(|n| n.eq_ignore_ascii_case(name));
    dir.read_dir().ok()?.flatten().find(same).map(|e| e.path())
}

/// Creates the directories that exist before the first log-in.
pub(super) fn format(drive: &Path, linux: &Path) -> io::Result<()> {
    for dir in ["windows/system32", "Users/Administrator", "Program Files", "ProgramData/ssh"] {
        std::fs::create_dir_all(drive.join(dir))?;
    }
    for dir in ["etc", "home/administrator", "tmp"] {
        std::fs::create_dir_all(linux.join(dir))?;
    }
    Ok(())
}

fn is_drive(part: &str) -> bool {
    matches!(part.as_bytes(), [letter, b':'] if letter.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_parsed_as_on_windows() {
        let below = |parts: &[&str]| SftpPath::Below(parts.iter().map(ToString::to_string).collect());
        for (path, expected) in [
            ("/", SftpPath::Root),
            ("", below(&["Users", "Administrator"])),
            (".", below(&["Users", "Administrator"])),
            ("/C:", below(&[])),
            ("/C:/", below(&[])),
            ("/c:/k/x", below(&["k", "x"])),
            (r"C:\k\x", below(&["k", "x"])),
            ("C:/k", below(&["k"])),
            ("/C:/k/../x/./y", below(&["x", "y"])),
            ("/C:/../../etc/passwd", SftpPath::Nowhere),
            ("/D:/k", SftpPath::Nowhere),
            ("/etc", SftpPath::Nowhere),
        ] {
            assert_eq!(place(path, true), expected, "{path}");
        }
        assert_eq!(place("/C:/windows", false), below(&["C:", "windows"]));
        assert_eq!(place("/../etc", false), below(&["etc"]));
        assert_eq!(spell(&place("/c:/K", true), true), "/C:/K");
    }

    #[test]
    fn names_are_found_in_any_case() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("Windows/System32")).unwrap();
        assert_eq!(find(dir.path(), &["windows", "SYSTEM32", "New"]), dir.path().join("Windows/System32/New"));
    }
}
