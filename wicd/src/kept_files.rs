//! Backup of the host owner's files that wicd replaces. A copy is kept beside each of them until wicd no longer needs its own file, and is then
//! restored.
//!
//! A copy enters the record together with wicd's claim to the file, and leaves it together with the claim, so that the owner's file and wicd's are
//! never confused.

use std::collections::BTreeSet;

use api::host::path;
use tracing::info;

use crate::files::{self, Access};
use crate::host::{Host, HostError};
use crate::ownership::Ownership;

/// Maximum size of a file to back up, in bytes. Configuration files are smaller.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Path of a file's copy.
fn copy_of(path: &str) -> String {
    format!("{path}.before-wicd")
}

/// Backs up those of `paths` that exist and that wicd has not written. Files in `C:\k` are always wicd's. The caller must save the record before it
/// writes the files.
///
/// # Errors
/// [`HostError::Refused`] for a file that is too large. Also fails when a file cannot be read or copied.
pub fn keep<'a>(
    host: &dyn Host,
    paths: impl IntoIterator<Item = &'a str>,
    owned: &mut Ownership,
) -> Result<(), HostError> {
    let root = format!(r"{}\", path::ROOT);
    for path in paths {
        let is_ours = path.starts_with(&root) || owned.placed.contains(path) || owned.files.contains(path);
        if is_ours || owned.kept.contains_key(path) {
            continue;
        }
        let Some(size) = files::size(host, path)? else { continue };
        if size > MAX_FILE_BYTES {
            let problem = format!(
                "the operator did not write it, and it is larger than {} MiB and so too large for a backup; move it to another directory",
                MAX_FILE_BYTES >> 20
            );
            return Err(HostError::Refused { path: path.to_owned(), problem });
        }
        let Some(content) = files::read(host, path)? else { continue };
        let copy = copy_of(path);
        info!(path, copy, "backing up a file that the operator did not write and now replaces");
        files::write(host, &copy, &content, Access::Protected)?;
        owned.kept.insert(path.to_owned(), copy);
    }
    Ok(())
}

/// Restores the files of the owner, except where a file of wicd (`ours`) stays. The caller has removed the other files of wicd.
///
/// # Errors
/// Fails when a copy cannot be read or removed, or a file or the record cannot be written.
pub fn restore(host: &dyn Host, owned: &mut Ownership, ours: &BTreeSet<String>) -> Result<(), HostError> {
    let back: Vec<(String, String)> =
        owned.kept.iter().filter(|(path, _)| !ours.contains(*path)).map(|(p, c)| (p.clone(), c.clone())).collect();
    for (path, copy) in back {
        if let Some(content) = files::read(host, &copy)? {
            info!(path, "restoring the original file from its backup");
            files::write(host, &path, &content, Access::Protected)?;
        }
        // From here on, the file is the owner's, and only the copy is wicd's and must be removed.
        owned.placed.remove(&path);
        owned.kept.remove(&path);
        owned.files.insert(copy.clone());
        owned.save(host)?;
        files::remove(host, &copy)?;
        owned.files.remove(&copy);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use api::host::{Apply, ConfigFile, Outcome};

    use super::*;
    use crate::operation::tests::{TestHost, crash_anywhere, reason, wanted};

    const LOGINS: &str = path::REGISTRY_LOGINS;

    fn with_logins(content: &str) -> Apply {
        let mut apply = wanted("1");
        apply.configs.push(ConfigFile { path: LOGINS.into(), content: content.into(), secret: true });
        apply
    }

    fn test_host() -> TestHost {
        let test_host = TestHost::new();
        test_host.write(LOGINS, b"theirs");
        test_host.stage_version("1");
        test_host
    }

    #[test]
    fn a_file_of_the_owner_is_restored_by_a_cleanup_and_once_the_cluster_has_no_logins() {
        let test_host = test_host();
        for content in ["ours", "ours, later"] {
            assert_eq!(test_host.apply(with_logins(content)).outcome, Outcome::Done);
            assert_eq!(test_host.read(LOGINS).as_deref(), Some(content));
        }
        assert_eq!(test_host.apply(wanted("1")).outcome, Outcome::Done);
        assert_eq!((test_host.read(LOGINS).as_deref(), test_host.exists(&copy_of(LOGINS))), (Some("theirs"), false));
        assert_eq!(test_host.apply(with_logins("ours")).outcome, Outcome::Done);
        assert_eq!(test_host.clean_up().outcome, Outcome::Done);
        assert_eq!((test_host.read(LOGINS).as_deref(), test_host.exists(&copy_of(LOGINS))), (Some("theirs"), false));
    }

    #[test]
    fn a_file_that_did_not_exist_before_is_removed() {
        let test_host = TestHost::staged("1");
        for content in ["ours", "ours, later"] {
            assert_eq!(test_host.apply(with_logins(content)).outcome, Outcome::Done);
        }
        assert!(!test_host.exists(&copy_of(LOGINS)));
        assert_eq!(test_host.clean_up().outcome, Outcome::Done);
        assert!(!test_host.exists(LOGINS));
    }

    #[test]
    fn a_file_that_is_too_large_is_refused_and_stays() {
        let test_host = TestHost::staged("1");
        let large = vec![b'x'; usize::try_from(MAX_FILE_BYTES).unwrap() + 1];
        test_host.write(LOGINS, &large);
        assert_eq!(reason(&test_host.apply(with_logins("ours"))), "DirectoryRefused");
        assert_eq!(test_host.read(LOGINS).map(|content| content.len()), Some(large.len()));
    }

    /// No crash of wicd loses content of the owner, or leaves a file of wicd after the next cleanup.
    #[test]
    fn a_file_of_the_owner_is_restored_after_a_crash_anywhere() {
        let is_restored = |test_host: &TestHost, about: &str| {
            assert_eq!(test_host.clean_up().outcome, Outcome::Done, "{about}");
            assert_eq!(test_host.read(LOGINS).as_deref(), Some("theirs"), "{about}");
            assert!(!test_host.exists(&copy_of(LOGINS)), "{about}");
        };
        let apply = |test_host: &TestHost, (): &()| drop(test_host.apply(with_logins("ours")));
        crash_anywhere(
            || (test_host(), ()),
            apply,
            13,
            |test_host, (), about| {
                apply(test_host, &());
                is_restored(test_host, about);
            },
        );
        let applied = || {
            let test_host = test_host();
            apply(&test_host, &());
            (test_host, ())
        };
        crash_anywhere(
            applied,
            |test_host, ()| drop(test_host.clean_up()),
            13,
            |test_host, (), about| is_restored(test_host, about),
        );
    }
}
