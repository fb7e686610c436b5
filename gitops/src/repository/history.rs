//! Commits that last changed the entries of an inventory. History is visited only as far as it was fetched, and within limits: if an entry did not
//! change in the visited commits, the oldest of them is reported. It has the mark "or older", unless it is the root commit.

use std::collections::{BTreeMap, HashSet, VecDeque};

use api::{Host, text};
use gix::{ObjectId, Repository};

use super::{
    GitError,
    read::{self, Listed},
    store,
};
use crate::{File, Limits, hosts::Entry};

/// Maximum number of commits at which the inventory is read for changes.
const READ: usize = 200;

/// Maximum number of commits that are visited.
const WALKED: usize = 20_000;

/// Maximum number of characters of an author and of a subject in the API.
const LINE: usize = 512;

/// Key of an entry: path of its file, and name of its host, or address if the host has no name.
pub(super) type Key = (String, String);

/// Reports whether `new` is `old` or descends from it. `None` if too little history was fetched, or the history is too long.
pub(super) fn follows(repo: &Repository, new: ObjectId, old: ObjectId) -> Result<Option<bool>, GitError> {
    let (mut seen, mut next, mut complete) = (HashSet::from([new]), VecDeque::from([new]), true);
    while let Some(id) = next.pop_front() {
        if id == old {
            return Ok(Some(true));
        }
        if seen.len() > WALKED {
            return Ok(None);
        }
        match store::parents(repo, id)? {
            Some(parents) => next.extend(parents.into_iter().filter(|parent| seen.insert(*parent))),
            None => complete = false,
        }
    }
    Ok(complete.then_some(false))
}

/// Returns the author, time and subject of a commit.
pub(super) fn commit(repo: &Repository, id: ObjectId, or_older: bool) -> Result<api::Commit, GitError> {
    let object = repo.find_object(id).map_err(|error| GitError::damaged(error.error()))?;
    let commit =
        object.try_into_commit().map_err(|_| GitError::WrongObject { id: id.to_string(), wanted: "commit" })?;
    let author = commit.author().map_err(|error| GitError::damaged(error.error()))?;
    let seconds = author.time().map(|time| time.seconds).unwrap_or_default();
    let time = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let message = commit.message_raw_sloppy().to_string();
    Ok(api::Commit {
        id: id.to_string(),
        author: text::line(&format!("{} <{}>", author.name, author.email), LINE),
        time: time.into(),
        subject: text::line(message.trim_start().lines().next().unwrap_or_default(), LINE),
        or_older,
    })
}

/// Entries of a file whose last change is not found yet.
struct Pending {
    /// Content of the file at the commit `since`.
    blob: ObjectId,
    /// Oldest visited commit at which the entries are unchanged.
    since: ObjectId,
    entries: BTreeMap<String, Host>,
}

/// Parser of files into entries. Returns `None` if a file cannot be parsed.
pub(super) type Read<'f> = &'f dyn Fn(&[File]) -> Option<Vec<Entry>>;

/// Returns the commit that last changed each entry, along first parents: changes that a merge brought count as the merge commit's.
pub(super) fn last_changes(
    repo: &Repository,
    newest: ObjectId,
    path: &str,
    limits: &Limits,
    read: Read<'_>,
) -> Result<BTreeMap<Key, api::Commit>, GitError> {
    let mut found: BTreeMap<Key, (ObjectId, bool)> = BTreeMap::new();
    let mut pending = BTreeMap::new();
    for listed in read::list(repo, newest, path, limits)? {
        if let Some(entries) = entries(repo, &listed, limits, read)?.filter(|entries| !entries.is_empty()) {
            pending.insert(listed.path, Pending { blob: listed.blob, since: newest, entries });
        }
    }
    let mut place = read::at(repo, newest, path)?;
    let (mut at, mut reads) = (newest, 0);
    let mut ended = false;
    for _ in 0..WALKED {
        if pending.is_empty() || reads >= READ {
            break;
        }
        let parent = store::parents(repo, at)?.unwrap_or_default().first().copied();
        let Some(parent) = parent else {
            // The root commit: no older one exists.
            ended = true;
            break;
        };
        if !repo.has_object(parent) {
            break;
        }
        // An older commit with a symbolic link or a submodule on the way to `path`, or whose files cannot be listed, is skipped.
        match read::at(repo, parent, path) {
            Ok(older) if older == place => {
                pending.values_mut().filter(|p| p.since == at).for_each(|p| p.since = parent);
            }
            Ok(None) => settle_all(&mut found, std::mem::take(&mut pending), |_| false),
            Ok(older @ Some(_)) => {
                place = older;
                reads += 1;
                if let Ok(listed) = read::list(repo, parent, path, limits) {
                    compare(repo, parent, &listed, limits, read, &mut pending, &mut found)?;
                }
            }
            Err(GitError::SymbolicLink { .. } | GitError::Submodule { .. }) => place = None,
            Err(error) => return Err(error),
        }
        at = parent;
    }
    settle_all(&mut found, pending, |since| !(ended && since == at));
    let mut commits = BTreeMap::new();
    for (key, (id, or_older)) in found {
        commits.insert(key, commit(repo, id, or_older)?);
    }
    Ok(commits)
}

fn settle_all(
    found: &mut BTreeMap<Key, (ObjectId, bool)>,
    pending: BTreeMap<String, Pending>,
    or_older: impl Fn(ObjectId) -> bool,
) {
    for (file, Pending { since, entries, .. }) in pending {
        let settled = entries.into_keys().map(|name| ((file.clone(), name), (since, or_older(since))));
        found.extend(settled);
    }
}

/// Moves the entries that an older commit lacks, or has with other values, from `pending` to `found`.
fn compare(
    repo: &Repository,
    older: ObjectId,
    listed: &[Listed],
    limits: &Limits,
    read: Read<'_>,
    pending: &mut BTreeMap<String, Pending>,
    found: &mut BTreeMap<Key, (ObjectId, bool)>,
) -> Result<(), GitError> {
    let blobs: BTreeMap<&str, &Listed> = listed.iter().map(|listed| (listed.path.as_str(), listed)).collect();
    for (file, pending) in pending.iter_mut() {
        let before = match blobs.get(file.as_str()) {
            None => BTreeMap::new(),
            Some(listed) if listed.blob == pending.blob => {
                pending.since = older;
                continue;
            }
            Some(listed) => match entries(repo, listed, limits, read)? {
                Some(entries) => {
                    pending.blob = listed.blob;
                    entries
                }
                None => continue,
            },
        };
        let (same, changed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut pending.entries).into_iter().partition(|(name, host)| before.get(name) == Some(host));
        found.extend(changed.into_keys().map(|name| ((file.clone(), name), (pending.since, false))));
        pending.entries = same;
        pending.since = older;
    }
    pending.retain(|_, pending| !pending.entries.is_empty());
    Ok(())
}

/// Returns the hosts of a file by name, or by address if they have none. `None` if the file cannot be read.
fn entries(
    repo: &Repository,
    listed: &Listed,
    limits: &Limits,
    read: Read<'_>,
) -> Result<Option<BTreeMap<String, Host>>, GitError> {
    let files = match read::read(repo, std::slice::from_ref(listed), limits) {
        Ok(files) => files,
        Err(error @ GitError::Damaged { .. }) => return Err(error),
        Err(_) => return Ok(None),
    };
    let name = |host: &Host| if host.name.is_empty() { host.address.clone() } else { host.name.clone() };
    Ok(read(&files).map(|entries| entries.into_iter().map(|entry| (name(&entry.host), entry.host)).collect()))
}
