//! Files of a commit. Sizes are checked before reading, and symbolic links and submodules are never followed.

use gix::{ObjectId, Repository, bstr::ByteSlice, objs::Kind, objs::tree::EntryKind};

use super::{GitError, error::excerpt};
use crate::{File, Limits, is_inventory, shown_size};

/// Maximum depth of directories, and maximum number of names in a path.
const DEEP: usize = 64;

/// Maximum number of entries of all directories below the path. A few bytes can describe very many entries, as a directory may contain
/// another one many times.
const ENTRIES: usize = 500_000;

/// Maximum number of bytes of a tree object, which lists the entries of one directory.
const TREE: u64 = 16 << 20;

/// Beginning of a Git LFS pointer, which is at most [`LFS_SIZE`] bytes long.
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/";
const LFS_SIZE: usize = 1024;

/// File of an inventory, not yet read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub path: String,
    pub blob: ObjectId,
}

/// Splits a path in a repository into names. The root has none. Fails if the path leads upwards, has control characters, or has more than [`DEEP`]
/// names.
pub(super) fn words(path: &str) -> Result<Vec<&str>, GitError> {
    let words: Vec<&str> = path.split('/').filter(|word| !word.is_empty() && *word != ".").collect();
    if words.contains(&"..") || path.chars().any(char::is_control) || words.len() > DEEP {
        return Err(GitError::PathInvalid { path: path.to_owned() });
    }
    Ok(words)
}

/// Returns the object at a path of a commit, and its kind. `None` if the path does not exist. Fails at a symbolic link or submodule.
pub(super) fn at(repo: &Repository, commit: ObjectId, path: &str) -> Result<Option<(ObjectId, EntryKind)>, GitError> {
    let words = words(path)?;
    let mut here = (root(repo, commit)?, EntryKind::Tree);
    let mut name = String::new();
    for word in words {
        if here.1 != EntryKind::Tree {
            return Ok(None);
        }
        let tree = tree(repo, here.0, &name)?;
        let entries = tree.decode().map_err(|error| GitError::damaged(error.error()))?;
        let Some(entry) = entries.entries.iter().find(|entry| entry.filename == word) else { return Ok(None) };
        here = (entry.oid.to_owned(), entry.mode.kind());
        name = join(&name, word);
        refuse(here.1, &name)?;
    }
    Ok(Some(here))
}

/// Lists the inventory files at a path: one file, or all files with an inventory extension below a directory.
pub(super) fn list(repo: &Repository, commit: ObjectId, path: &str, limits: &Limits) -> Result<Vec<Listed>, GitError> {
    let shown = words(path)?.join("/");
    match at(repo, commit, path)? {
        None => Err(GitError::PathNotFound { path: shown }),
        Some((id, EntryKind::Tree)) => {
            let mut walk = Walk { repo, limits, entries: 0, listed: Vec::new() };
            walk.below(id, &shown, 0)?;
            Ok(walk.listed)
        }
        Some((blob, _)) => Ok(vec![Listed { path: shown, blob }]),
    }
}

/// Reads listed files, within the limits.
pub(super) fn read(repo: &Repository, listed: &[Listed], limits: &Limits) -> Result<Vec<File>, GitError> {
    let mut total = 0_u64;
    let mut files = Vec::new();
    for Listed { path, blob } in listed {
        let too_large = |what| GitError::InventoryTooLarge { path: excerpt(path), what };
        let size = size(repo, *blob, Kind::Blob, path)?;
        if size > limits.file {
            return Err(too_large(format!("a file may have at most {}: split it", shown_size(limits.file))));
        }
        total = total.saturating_add(size);
        if total > limits.total {
            return Err(too_large(format!(
                "together with the files before it, it has more than {}: use several pools",
                shown_size(limits.total)
            )));
        }
        let mut object = repo.find_object(*blob).map_err(|error| GitError::damaged(error.error()))?;
        let bytes = std::mem::take(&mut object.data);
        if bytes.len() <= LFS_SIZE && bytes.starts_with(LFS) {
            return Err(GitError::LfsPointer { path: excerpt(path) });
        }
        files.push(File { path: path.clone(), bytes });
    }
    Ok(files)
}

struct Walk<'r> {
    repo: &'r Repository,
    limits: &'r Limits,
    entries: usize,
    listed: Vec<Listed>,
}

impl Walk<'_> {
    fn below(&mut self, id: ObjectId, path: &str, depth: usize) -> Result<(), GitError> {
        let too_large = |what: String| GitError::InventoryTooLarge {
            path: if path.is_empty() { "the repository".to_owned() } else { excerpt(path) },
            what,
        };
        if depth > DEEP {
            return Err(too_large(format!(
                "its directories are more than {DEEP} deep: name a directory with the hosts in inventory.git.path"
            )));
        }
        let tree = tree(self.repo, id, path)?;
        let entries = tree.decode().map_err(|error| GitError::damaged(error.error()))?;
        self.entries += entries.entries.len();
        if self.entries > ENTRIES {
            return Err(too_large(format!(
                "it has more than {ENTRIES} entries: name a directory with the hosts alone in inventory.git.path"
            )));
        }
        for entry in entries.entries {
            let name = entry.filename.to_str_lossy();
            let path = join(path, &name);
            if is_unsafe_name(&name) {
                return Err(GitError::NameInvalid { path });
            }
            refuse(entry.mode.kind(), &path)?;
            if entry.mode.is_tree() {
                self.below(entry.oid.to_owned(), &path, depth + 1)?;
            } else if is_inventory(&name) {
                // Messages show the path to users on one line.
                if path.chars().any(char::is_control) {
                    return Err(GitError::NameInvalid { path });
                }
                self.listed.push(Listed { path, blob: entry.oid.to_owned() });
                if self.listed.len() > self.limits.files {
                    return Err(too_large(format!(
                        "it has more than {} files of hosts: combine them, or use several pools",
                        self.limits.files
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Reports whether an entry's name makes its path look like the path of another file. Git creates no such names, but a server can
/// send them. No file is ever written under these names, but users read them in messages and act on them.
fn is_unsafe_name(name: &str) -> bool {
    matches!(name, "" | "." | "..") || name.contains('/')
}

fn refuse(kind: EntryKind, path: &str) -> Result<(), GitError> {
    match kind {
        EntryKind::Link => Err(GitError::SymbolicLink { path: excerpt(path) }),
        EntryKind::Commit => Err(GitError::Submodule { path: excerpt(path) }),
        EntryKind::Tree | EntryKind::Blob | EntryKind::BlobExecutable => Ok(()),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

fn root(repo: &Repository, commit: ObjectId) -> Result<ObjectId, GitError> {
    let object = repo.find_object(commit).map_err(|error| GitError::damaged(error.error()))?;
    let commit =
        object.try_into_commit().map_err(|_| GitError::WrongObject { id: commit.to_string(), wanted: "commit" })?;
    Ok(commit.tree_id().map_err(|error| GitError::damaged(error.error()))?.detach())
}

fn tree<'r>(repo: &'r Repository, id: ObjectId, path: &str) -> Result<gix::Tree<'r>, GitError> {
    let size = size(repo, id, Kind::Tree, path)?;
    if size > TREE {
        let path = if path.is_empty() { "the root of the repository".to_owned() } else { excerpt(path) };
        let what =
            format!("the directory takes more than {} MiB: move some of its entries to other directories", TREE >> 20);
        return Err(GitError::InventoryTooLarge { path, what });
    }
    repo.find_tree(id).map_err(|error| GitError::damaged(error.error()))
}

/// Returns the size of an object, without reading it.
fn size(repo: &Repository, id: ObjectId, kind: Kind, path: &str) -> Result<u64, GitError> {
    let header = repo.find_header(id).map_err(|error| GitError::damaged(error.error()))?;
    if header.kind() != kind {
        // The server's fault: another download would bring the same object.
        let wanted = if kind == Kind::Tree { "tree" } else { "blob" };
        return Err(GitError::WrongObject { id: format!("{} ({id})", excerpt(path)), wanted });
    }
    Ok(header.size())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_outside_the_repository_is_refused() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            (".", &[]),
            ("/", &[]),
            ("./a//b/", &["a", "b"]),
            ("/a/./b.yaml", &["a", "b.yaml"]),
            ("..a/b..", &["..a", "b.."]),
        ];
        for (path, expected) in cases {
            assert_eq!(words(path).unwrap(), *expected, "{path}");
        }
        for path in ["..", "../x", "a/../../x", "a/..", "a\n", "a\0b"] {
            assert!(matches!(words(path), Err(GitError::PathInvalid { .. })), "{path:?}");
        }
    }

    #[test]
    fn a_name_that_is_part_of_a_path_is_unsafe() {
        for name in ["", ".", "..", "../a.yaml", "/a.yaml", "a/b.yaml", "a/"] {
            assert!(is_unsafe_name(name), "{name:?}");
        }
        for name in ["a.yaml", "..a", "a..", "...", ".yaml", "Icon\r"] {
            assert!(!is_unsafe_name(name), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn no_path_climbs(path in "[./a]{0,20}") {
            if let Ok(words) = words(&path) {
                prop_assert!(words.iter().all(|word| !word.is_empty() && *word != "." && *word != ".."));
            }
        }
    }
}
