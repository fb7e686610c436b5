//! Validation of SFTP paths and exec command lines for a host.

use super::{SshError, tail};

/// Maximum length of a path: Windows' `MAX_PATH` without the terminating NUL. Longer paths need a prefix that Windows' sftp-server does not add.
const MAX_PATH: usize = 259;

/// Maximum length of a command, well below the 8,191 characters that cmd.exe accepts.
const MAX_COMMAND: usize = 1024;

/// Converts an absolute Windows path, `C:\k\x`, to the form that Windows' sftp-server expects, `/C:/k/x`.
///
/// Refuses everything that Windows would interpret as another path: `.` and `..`, names that end in a dot or a space, device names, alternate
/// streams, and anything that is not printable ASCII. The error describes the problem.
///
/// # Errors
/// Fails when `windows` does not begin with a drive such as `C:\`, is longer than 259 characters, or has an empty part or one that Windows would
/// interpret as another name.
pub fn sftp_path(windows: &str) -> Result<String, &'static str> {
    if windows.len() > MAX_PATH {
        return Err("is longer than 259 characters");
    }
    let mut chars = windows.chars();
    let (Some(drive), Some(':'), Some('\\')) = (chars.next(), chars.next(), chars.next()) else {
        return Err(r"does not begin with a drive such as C:\");
    };
    if !drive.is_ascii_alphabetic() {
        return Err(r"does not begin with a drive such as C:\");
    }
    let rest = chars.as_str();
    if rest.is_empty() {
        return Ok(format!("/{drive}:/"));
    }
    for name in rest.split('\\') {
        check_name(name)?;
    }
    Ok(format!("/{drive}:/{}", rest.replace('\\', "/")))
}

/// Converts a path of the sftp-server, `/C:/k/x`, to a Windows path. Returns `None` if [`sftp_path`] refuses it.
pub(super) fn windows_path(sftp: &str) -> Option<String> {
    let windows = sftp.strip_prefix('/')?.replace('/', "\\");
    sftp_path(&windows).is_ok().then_some(windows)
}

pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("has an empty part");
    }
    if !name.chars().all(|c| c.is_ascii_graphic() || c == ' ') {
        return Err("has a character that is not printable ASCII");
    }
    if name.contains(['<', '>', ':', '"', '/', '|', '?', '*']) {
        return Err(r#"has one of the characters < > : " / | ? *"#);
    }
    if name.ends_with(['.', ' ']) {
        return Err("has a part that ends in a dot or a space, for example . or ..");
    }
    if api::payload::is_device_name(name) {
        return Err("has the name of a device, for example NUL or COM1");
    }
    Ok(())
}

/// Returns the parent directory of a path from [`sftp_path`], or `None` at the root of a drive.
pub(super) fn parent(sftp: &str) -> Option<&str> {
    let (directory, name) = sftp.rsplit_once('/')?;
    // "/C:" is not a directory that can be created, and its root always exists.
    (!name.is_empty() && directory.len() > "/C:".len()).then_some(directory)
}

/// Returns the command in the form for bash and other POSIX shells, in which a backslash starts an escape sequence.
pub(super) fn for_posix_shell(command: &str) -> String {
    command.replace('\\', r"\\")
}

/// Checks that a command line means the same in cmd.exe, in PowerShell and, in the form of [`for_posix_shell`], in POSIX shells: words of letters,
/// digits and `\ : . _ - / = +`, separated by single spaces. The error describes the problem.
///
/// # Errors
/// Fails when `command` is empty, is longer than 1,024 characters, or has other characters, two spaces in a row or a space at either end.
pub fn check_command(command: &str) -> Result<(), &'static str> {
    if command.is_empty() {
        return Err("is empty");
    }
    if command.len() > MAX_COMMAND {
        return Err("is longer than 1024 characters");
    }
    if !command.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
        return Err("has a character that is not printable ASCII");
    }
    if !command.bytes().all(|b| b.is_ascii_alphanumeric() || br"\:._-/=+ ".contains(&b)) {
        return Err("has a character that is special to a shell");
    }
    if command.split(' ').any(str::is_empty) {
        return Err("has two spaces in a row, or one at an end");
    }
    Ok(())
}

/// Converts a path with [`sftp_path`], and returns an [`SshError`] if it is refused.
pub(super) fn checked(windows: &str) -> Result<String, SshError> {
    sftp_path(windows).map_err(|problem| SshError::BadPath { path: tail::excerpt(windows), problem })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn windows_paths_become_sftp_paths() {
        for (windows, sftp) in [
            (r"C:\k\x", "/C:/k/x"),
            (r"c:\k", "/c:/k"),
            (r"C:\", "/C:/"),
            (r"D:\Program Files\a.b\c-d_e", "/D:/Program Files/a.b/c-d_e"),
            (r"C:\k\wicd\..x", "/C:/k/wicd/..x"),
            (r"C:\k\console\com10", "/C:/k/console/com10"),
        ] {
            assert_eq!(sftp_path(windows), Ok(sftp.to_owned()), "{windows}");
        }
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        let long = format!(r"C:\{}", "a".repeat(260));
        for bad in [
            "",
            "C:",
            "C",
            r"\k\x",
            "/C:/k",
            "k",
            r"1:\k",
            r"CC:\k",
            r"C:k",
            r"C:/k/x",
            r"C:\k\..\x",
            r"C:\k\.\x",
            r"C:\..",
            r"C:\k\",
            r"C:\k\\x",
            r"\\host\share\x",
            r"\\?\C:\k",
            r"C:\k\x:stream",
            "C:\\k\\x\0",
            "C:\\k\\x\n",
            r"C:\k\é",
            r"C:\k\x.",
            r"C:\k\x ",
            r"C:\k\NUL",
            r"C:\k\con.txt",
            r"C:\k\Com1",
            r"C:\k\lpt9.log",
            r"C:\k\*",
            r"C:\k\a/b",
            r#"C:\k\"x""#,
            &long,
        ] {
            assert!(sftp_path(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn paths_of_a_host_are_checked() {
        for (sftp, windows) in [
            ("/C:/Users/Administrator", Some(r"C:\Users\Administrator")),
            ("/C:/Users/A. B", Some(r"C:\Users\A. B")),
            ("/C:/Users/../x", None),
            ("/C:/Users/\u{e4}", None),
            ("/home/x", None),
            ("C:/x", None),
            ("", None),
        ] {
            assert_eq!(windows_path(sftp).as_deref(), windows, "{sftp}");
        }
    }

    #[test]
    fn parents_end_at_the_drive() {
        for (path, directory) in [("/C:/k/x", Some("/C:/k")), ("/C:/k", None), ("/C:/", None)] {
            assert_eq!(parent(path), directory, "{path}");
        }
    }

    #[test]
    fn commands_are_plain_words() {
        for good in [r"C:\k\wicd\0a1b\wicd.exe facts", r"C:\k\wicd.exe apply op-1 --epoch=7", "true"] {
            assert_eq!(check_command(good), Ok(()), "{good}");
        }
        for shell in "&|<>^%\"';$`()[]{}*?!~#@,\n\r\t\0é".chars() {
            assert!(check_command(&format!("wicd.exe a{shell}b")).is_err(), "{shell:?}");
        }
        for bad in ["", " ", " a", "a ", "a  b", &"a".repeat(1025)] {
            assert!(check_command(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_path_stays_below_its_drive(path in "([A-Za-z]:)?[\\\\./:A-Za-z0-9 \u{0}-\u{ff}]{0,40}") {
            if let Ok(sftp) = sftp_path(&path) {
                prop_assert!(sftp.starts_with('/') && sftp.is_ascii() && !sftp.contains(['\\', '\0']));
                prop_assert!(sftp.split('/').all(|part| part != ".." && part != "."));
                prop_assert_eq!(sftp.matches(':').count(), 1);
            }
        }

        #[test]
        fn an_accepted_command_has_no_shell_characters(command in any::<String>()) {
            if check_command(&command).is_ok() {
                prop_assert!(!command.contains(['&', '|', '<', '>', '^', '%', '"', '\'', ';', '$', '`', '\n', '\r']));
            }
        }
    }
}
