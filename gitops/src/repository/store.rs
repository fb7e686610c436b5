//! Bare repository on disk. Names from the server are never used as file names: packs are named by their hash, and fetched
//! commits are recorded in one separate file.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fs, io,
    path::{Path, PathBuf},
};

use gix::{ObjectId, objs::Kind};

use super::GitError;

/// Maximum number of local commits that are reported to a server.
const HAVES: usize = 256;

/// Maximum number of nested tags that are followed.
const TAGS: usize = 5;

/// File with the commit that was last fetched for each reference.
const TIPS: &str = "fetched.json";

/// Commit, and the tag that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peeled {
    pub commit: ObjectId,
    pub tag: Option<ObjectId>,
}

#[derive(Clone, Debug)]
pub(super) struct Store {
    dir: PathBuf,
}

impl Store {
    /// Creates an empty repository, and removes any previous content of the directory.
    pub(super) fn create(dir: &Path, hash: gix::hash::Kind) -> Result<Self, GitError> {
        remove(dir)?;
        let options = gix::create::Options { object_hash: Some(hash), ..gix::create::Options::default() };
        gix::create::into(dir, gix::create::Kind::Bare, options)
            .map_err(|error| GitError::Disk(io::Error::other(super::error::chain(error.error()))))?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Returns the repository in a directory, which may be damaged.
    pub(super) fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Opens the repository, without any Git settings of this machine.
    pub(super) fn open(&self) -> Result<gix::Repository, GitError> {
        let options = gix::open::Options::isolated()
            .open_path_as_is(true)
            .with(gix::sec::Trust::Full)
            .config_overrides(["gitoxide.objects.allocLimit=67108864", "core.bare=true"]);
        gix::open_opts(&self.dir, options).map_err(|error| GitError::damaged(error.error()))
    }

    /// Returns the number of packs. Each fetch of new objects adds one.
    pub(super) fn packs(&self) -> usize {
        let entries = fs::read_dir(self.dir.join("objects/pack")).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "pack")).count()
    }

    /// Removes temporary files of a killed fetch.
    pub(super) fn tidy(&self) -> Result<(), GitError> {
        for entry in fs::read_dir(self.dir.join("objects/pack")).into_iter().flatten().flatten() {
            let path = entry.path();
            if !path.extension().is_some_and(|extension| extension == "pack" || extension == "idx") {
                fs::remove_file(path).map_err(GitError::Disk)?;
            }
        }
        Ok(())
    }

    fn tips(&self) -> BTreeMap<String, String> {
        let text = fs::read(self.dir.join(TIPS)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Returns the commit that was last fetched for a reference.
    pub(super) fn tip(&self, key: &str) -> Option<ObjectId> {
        ObjectId::from_hex(self.tips().get(key)?.as_bytes()).ok()
    }

    /// Records the fetched commit of a reference, atomically.
    pub(super) fn remember(&self, key: &str, commit: ObjectId) -> Result<(), GitError> {
        if self.tip(key) == Some(commit) {
            return Ok(());
        }
        let mut tips = self.tips();
        tips.insert(key.to_owned(), commit.to_string());
        let text = serde_json::to_vec(&tips).map_err(|error| GitError::Disk(error.into()))?;
        let mut file = tempfile::NamedTempFile::new_in(&self.dir).map_err(GitError::Disk)?;
        io::Write::write_all(&mut file, &text).map_err(GitError::Disk)?;
        file.persist(self.dir.join(TIPS)).map_err(|error| GitError::Disk(error.error))?;
        Ok(())
    }

    /// Returns local commits, starting with the last fetched ones.
    pub(super) fn haves(&self, repo: &gix::Repository) -> Result<Vec<ObjectId>, GitError> {
        let mut seen = HashSet::new();
        let mut haves = Vec::new();
        let tips = self.tips();
        let mut next: VecDeque<ObjectId> =
            tips.values().filter_map(|id| ObjectId::from_hex(id.as_bytes()).ok()).collect();
        while let Some(id) = next.pop_front().filter(|_| haves.len() < HAVES) {
            if seen.insert(id)
                && let Some(parents) = parents(repo, id)?
            {
                haves.push(id);
                next.extend(parents);
            }
        }
        Ok(haves)
    }
}

/// Returns the parents of a commit. `None` if the commit is not stored.
pub(super) fn parents(repo: &gix::Repository, id: ObjectId) -> Result<Option<Vec<ObjectId>>, GitError> {
    let Some(object) = repo.try_find_object(id).map_err(|error| GitError::damaged(error.error()))? else {
        return Ok(None);
    };
    if object.kind != Kind::Commit {
        return Ok(None);
    }
    Ok(Some(object.into_commit().parent_ids().map(gix::Id::detach).collect()))
}

/// Returns the commit with this id, or the commit that the tag with this id leads to. `None` if an object is not stored.
pub(super) fn peel(repo: &gix::Repository, id: ObjectId) -> Result<Option<Peeled>, GitError> {
    let mut at = id;
    for _ in 0..=TAGS {
        let Some(object) = repo.try_find_object(at).map_err(|error| GitError::damaged(error.error()))? else {
            return Ok(None);
        };
        match object.kind {
            Kind::Commit => return Ok(Some(Peeled { commit: at, tag: (at != id).then_some(id) })),
            Kind::Tag => {
                let tag = object.into_tag();
                at = tag.target_id().map_err(|error| GitError::damaged(error.error()))?.detach();
            }
            Kind::Tree | Kind::Blob => break,
        }
    }
    Err(GitError::NotACommit { id: id.to_string() })
}

/// Removes a directory, if it exists.
pub(super) fn remove(dir: &Path) -> Result<(), GitError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(GitError::Disk(error)),
        _ => Ok(()),
    }
}
