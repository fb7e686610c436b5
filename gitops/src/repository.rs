//! Git repository on disk, and the fetches that add to it.
//!
//! No program is started: gix speaks Git, reqwest and russh carry it. No setting of this machine applies, no prompt
//! asks for a password, and credentials go to the URL's own server only.
//!
//! The server is not trusted with more than its own content:
//! * Time, and the bytes that it sends, are bounded ([`Request`]); names of branches and tags, which are kept in memory, by less.
//!   A [stop](Repository::fetch) ends every wait within a moment.
//! * An object that unpacks to more than 64 MiB, which takes few bytes to send, is refused before it is kept; files that are read
//!   have limits of their own, which are checked before unpacking.
//! * Names from the server never become names of files here.
//!
//! Not covered: a pack within the limit of bytes may keep one CPU busy with unpacking until the time is over, and needs as much
//! space on disk as was sent.
//!
//! On disk, `git` is the repository in use. After 50 fetches a new one is made beside it and takes its place.

mod access;
mod error;
mod exchange;
mod history;
mod https;
mod link;
mod read;
mod resolve;
mod signed;
mod ssh;
mod store;
mod tls;
mod url;

use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::Duration,
};

use gix::{
    ObjectId,
    protocol::transport::{
        Protocol,
        client::{
            blocking_io::{Transport, http},
            git::{ConnectMode, blocking_io::Connection},
        },
    },
};
use parking_lot::RwLock;

/// Parsers of arbitrary bytes, public for the fuzzer.
#[cfg(fuzzing)]
pub use self::signed::{split_commit, split_tag};
pub use self::{
    access::{Access, AccessError, Proxy},
    error::GitError,
    resolve::compare_versions,
};
use self::{
    exchange::Talk,
    https::Https,
    link::Link,
    resolve::{Found, Wanted},
    store::{Peeled, Store},
    url::Place,
};
use crate::{File, Limits, hosts::Entry, verify::Signed};

/// Fetches after which a repository is recreated: each leaves a pack behind, and no pack is ever removed.
const PACKS: usize = 50;

/// Bare repository in a directory. One process may use a directory, through one `Repository`.
pub struct Repository {
    root: PathBuf,
    /// Lock that is held for writing while one repository takes the place of another.
    swap: RwLock<()>,
}

/// Fetch request.
#[derive(Clone, Debug)]
pub struct Request {
    /// URL of the repository: `https://…` or `ssh://…`.
    pub url: String,
    /// Branch, tag, range of versions, or commit.
    pub reference: api::GitRef,
    /// Credentials, known hosts and proxy.
    pub access: Access,
    /// Time limit.
    pub timeout: Duration,
    /// Size limits.
    pub limits: Limits,
}

/// Commit to which a reference resolves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Revision: `main@sha1:<commit>`, `v1.2.3@sha1:<commit>`, or `sha1:<commit>`; `sha256:` if the ids are SHA-256.
    pub revision: String,
    /// Name of the branch or tag. `None` for a commit.
    pub name: Option<String>,
    /// Full commit hash.
    pub commit: String,
    /// Object id of the annotated tag.
    pub tag: Option<String>,
    /// Bytes that the server has sent.
    pub received: u64,
}

impl Repository {
    /// Opens the repository in a directory, which is created if it does not exist.
    ///
    /// # Errors
    /// [`GitError::Disk`] when the directory cannot be made, or what a crash has left in it cannot be removed or renamed.
    pub fn open(dir: &Path) -> Result<Self, GitError> {
        fs::create_dir_all(dir).map_err(GitError::Disk)?;
        let repository = Self { root: dir.to_owned(), swap: RwLock::new(()) };
        // What a crash has left. Between the two steps of a swap only the old one is there.
        store::remove(&repository.part("new"))?;
        if repository.part("git").exists() {
            store::remove(&repository.part("old"))?;
        } else if repository.part("old").exists() {
            fs::rename(repository.part("old"), repository.part("git")).map_err(GitError::Disk)?;
        }
        Store::at(&repository.part("git")).tidy()?;
        Ok(repository)
    }

    fn part(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Resolves a reference on the server, and fetches its commit if it is not here. Blocks; `stop` ends the fetch.
    ///
    /// # Errors
    /// [`GitError::UrlInvalid`], [`GitError::ReferenceInvalid`], [`GitError::AccessInvalid`] or [`GitError::KnownHosts`] when
    /// the request cannot be used. [`GitError::HostKeyUnknown`] when the key of the server is not a known one.
    /// [`GitError::CertificateInvalid`] when the server's certificate is not trusted, or the server rejects the client's.
    /// [`GitError::AuthenticationFailed`] when the server or the proxy rejects the credentials. [`GitError::RedirectRefused`]
    /// when the server redirects to another server, or not to https. [`GitError::RepositoryNotFound`] or
    /// [`GitError::RevisionNotFound`] when the server does not have the repository or the reference.
    /// [`GitError::WrongObject`] when the reference leads to no commit. [`GitError::RepositoryTooLarge`] when the server
    /// sends more than is allowed. [`GitError::Timeout`] after `request.timeout`, [`GitError::Stopped`] after a stop.
    /// [`GitError::Disk`] when the directory cannot be read or written. [`GitError::Failed`] for any other failure of the
    /// connection or the server.
    pub fn fetch(&self, request: &Request, stop: &AtomicBool) -> Result<Head, GitError> {
        let place = Place::parse(&request.url)?;
        let wanted = Wanted::of(&request.reference)?;
        if let Wanted::Commit(id) = &wanted
            && let Some(store) = self.current(id.kind())
            && let Ok(Some(peeled)) = store.open().and_then(|repo| store::peel(&repo, *id))
        {
            return Ok(head(&wanted.find(&[])?, peeled, 0));
        }
        let link = Link::new(place.host(), request.timeout, request.limits.transfer, stop)?;
        let attempt = |anew| {
            // gix is written for servers that keep to the protocol: a panic in it is the answer to one that does not.
            let attempt = AssertUnwindSafe(|| self.attempt(&link, &place, &wanted, request, anew));
            catch_unwind(attempt).unwrap_or_else(|_| Err(link.failed("its answer cannot be parsed")))
        };
        match attempt(false) {
            // What is here does not fit what is sent, so it is no help.
            Err(GitError::Damaged { .. }) if link.over().is_none() => match attempt(true) {
                // So it is the server.
                Err(GitError::Damaged { problem }) => Err(link.failed(problem)),
                result => result,
            },
            result => result,
        }
    }

    fn attempt(
        &self,
        link: &Link<'_>,
        place: &Place,
        wanted: &Wanted,
        request: &Request,
        anew: bool,
    ) -> Result<Head, GitError> {
        match place {
            Place::Https(url) => {
                let https = Https::new(link, url, &request.access)?;
                let url = gix::url::parse(url.as_str()).map_err(|error| link.failed(error.to_string()))?;
                self.talk(link, http::Transport::new_http(https, url, Protocol::V2, false), wanted, anew)
            }
            Place::Ssh(ssh) => {
                let (reader, writer) = ssh::connect(link, ssh, &request.access)?;
                let no_host = None::<(String, Option<u16>)>;
                let connection = Connection::new(
                    reader,
                    writer,
                    Protocol::V2,
                    ssh.path.as_str(),
                    no_host,
                    ConnectMode::Process,
                    false,
                );
                self.talk(link, connection, wanted, anew)
            }
        }
    }

    fn talk<T: Transport>(&self, link: &Link<'_>, transport: T, wanted: &Wanted, anew: bool) -> Result<Head, GitError> {
        let mut talk = Talk::begin(link, transport)?;
        let hash = talk.hash()?;
        let found = wanted.find(&talk.references(wanted)?)?;
        let current = self.current(hash).filter(|_| !anew);
        if let Some(store) = &current
            && let Ok(Some(peeled)) = store.open().and_then(|repo| store::peel(&repo, found.id))
        {
            talk.end();
            store.remember(&found.key, peeled.commit)?;
            return Ok(head(&found, peeled, link.received()));
        }
        let current = current.filter(|store| store.open().is_ok() && store.packs() < PACKS);
        let peeled = if let Some(store) = current {
            bring(&mut talk, &store, &found)?
        } else {
            let store = Store::create(&self.part("new"), hash)?;
            match bring(&mut talk, &store, &found) {
                Ok(peeled) => {
                    self.replace()?;
                    peeled
                }
                Err(error) => {
                    // A full disk is not to stay full.
                    store::remove(&self.part("new"))?;
                    return Err(error);
                }
            }
        };
        talk.end();
        Ok(head(&found, peeled, link.received()))
    }

    /// Returns the repository in use, if there is one with ids of this kind.
    fn current(&self, hash: gix::hash::Kind) -> Option<Store> {
        let store = Store::at(&self.part("git"));
        store.open().is_ok_and(|repo| repo.object_hash() == hash).then_some(store)
    }

    /// Replaces the repository in use by the new one.
    fn replace(&self) -> Result<(), GitError> {
        let _swap = self.swap.write();
        store::remove(&self.part("old"))?;
        if self.part("git").exists() {
            fs::rename(self.part("git"), self.part("old")).map_err(GitError::Disk)?;
        }
        fs::rename(self.part("new"), self.part("git")).map_err(GitError::Disk)?;
        store::remove(&self.part("old"))
    }

    /// Calls `read` with the repository in use. A damaged repository is removed, so that the next fetch brings it again.
    fn reading<T>(&self, read: impl FnOnce(&gix::Repository) -> Result<T, GitError>) -> Result<T, GitError> {
        let result = {
            let _here = self.swap.read();
            Store::at(&self.part("git")).open().and_then(|repo| read(&repo))
        };
        if let Err(GitError::Damaged { .. }) = result {
            let _swap = self.swap.write();
            store::remove(&self.part("git"))?;
        }
        result
    }

    /// Returns author, time and subject of a commit.
    ///
    /// # Errors
    /// [`GitError::WrongObject`] when `id` is not that of a commit. [`GitError::Damaged`] when the commit is not here or
    /// cannot be read: the repository in use is then removed, so that the next fetch brings it again. [`GitError::Disk`] when
    /// it cannot be removed.
    pub fn commit(&self, id: &str) -> Result<api::Commit, GitError> {
        let id = parse(id, "commit")?;
        self.reading(|repo| history::commit(repo, id, false))
    }

    /// Returns the signed part of a commit, and the signature.
    ///
    /// # Errors
    /// [`GitError::WrongObject`], [`GitError::Damaged`] or [`GitError::Disk`], as [`Repository::commit`].
    pub fn signed_commit(&self, id: &str) -> Result<Signed, GitError> {
        let id = parse(id, "commit")?;
        self.reading(|repo| signed::commit(repo, id))
    }

    /// Returns the signed part of an annotated tag, and the signature. The signed name must be `name`, that of the reference: any user
    /// who may push can put any tag under any name. `name` is `None` if the tag was requested by its id.
    ///
    /// # Errors
    /// [`GitError::WrongObject`] when `id` is not that of an annotated tag. [`GitError::TagRenamed`] when the tag was signed
    /// for another name. [`GitError::Damaged`] or [`GitError::Disk`] when it is not here or cannot be read, as in
    /// [`Repository::commit`].
    pub fn signed_tag(&self, id: &str, name: Option<&str>) -> Result<Signed, GitError> {
        let id = parse(id, "tag")?;
        self.reading(|repo| signed::tag(repo, id, name))
    }

    /// Returns the file at a path, or all `*.yaml`, `*.yml` and `*.json` below it if the path is a directory.
    ///
    /// # Errors
    /// [`GitError::WrongObject`] when `commit` is not the id of a commit. [`GitError::PathInvalid`] when `path` leads out of
    /// the repository. [`GitError::PathNotFound`] when the commit has no such path. [`GitError::SymbolicLink`],
    /// [`GitError::Submodule`], [`GitError::NameInvalid`] or [`GitError::LfsPointer`] when an entry on the way to `path` or
    /// below it is not a file or directory that may be read. [`GitError::InventoryTooLarge`] when a limit is exceeded.
    /// [`GitError::Damaged`] or [`GitError::Disk`] when an object is not here or cannot be read, as in
    /// [`Repository::commit`].
    pub fn files(&self, commit: &str, path: &str, limits: &Limits) -> Result<Vec<File>, GitError> {
        let id = parse(commit, "commit")?;
        self.reading(|repo| read::read(repo, &read::list(repo, id, path, limits)?, limits))
    }

    /// Reports whether a commit is another one, or comes after it. `None` if the fetched history does not show it.
    ///
    /// # Errors
    /// [`GitError::WrongObject`] when `new` or `old` is not an id. [`GitError::Damaged`] or [`GitError::Disk`] when an object
    /// cannot be read, as in [`Repository::commit`]. An id that is not here is no error.
    pub fn follows(&self, new: &str, old: &str) -> Result<Option<bool>, GitError> {
        let (new, old) = (parse(new, "commit")?, parse(old, "commit")?);
        self.reading(|repo| history::follows(repo, new, old))
    }

    /// Returns the commit that made each entry as it is, by file, and name (or address) of the host. `read` parses files into entries,
    /// or returns `None`. It is called for the files that changed, commit by commit.
    ///
    /// # Errors
    /// Fails as in [`Repository::files`], but a file that is too large, or a pointer of Git LFS, is no error: its entries are missing from the
    /// result. Of an older commit, only [`GitError::Damaged`], or [`GitError::InventoryTooLarge`] when a directory on the way to `path` has too many
    /// entries.
    pub fn last_changes(
        &self,
        commit: &str,
        path: &str,
        limits: &Limits,
        read: &dyn Fn(&[File]) -> Option<Vec<Entry>>,
    ) -> Result<BTreeMap<(String, String), api::Commit>, GitError> {
        let id = parse(commit, "commit")?;
        self.reading(|repo| history::last_changes(repo, id, path, limits, read))
    }
}

/// Fetches the found object into a store.
fn bring<T: Transport>(talk: &mut Talk<'_, T>, store: &Store, found: &Found) -> Result<Peeled, GitError> {
    let before = store.tip(&found.key);
    talk.fetch(store, found.id, exchange::DEPTH)?;
    let repo = store.open()?;
    let missing = || GitError::Damaged { problem: "the server did not send the requested objects".to_owned() };
    let peeled = store::peel(&repo, found.id)?.ok_or_else(missing)?;
    if let Some(before) = before
        && history::follows(&repo, peeled.commit, before)?.is_none()
        && talk.can_ask_again()
    {
        // A branch that went far ahead: more of its history shows whether it did, or was replaced. If that does not
        // work, it stays unknown.
        let _ = talk.fetch(store, found.id, exchange::FAR);
    }
    store.remember(&found.key, peeled.commit)?;
    Ok(peeled)
}

fn head(found: &Found, peeled: Peeled, received: u64) -> Head {
    let commit = peeled.commit.to_string();
    let digest = format!("{}:{commit}", peeled.commit.kind());
    let revision = found.name.as_ref().map_or_else(|| digest.clone(), |name| format!("{name}@{digest}"));
    Head { revision, name: found.name.clone(), commit, tag: peeled.tag.map(|tag| tag.to_string()), received }
}

fn parse(id: &str, wanted: &'static str) -> Result<ObjectId, GitError> {
    ObjectId::from_hex(id.as_bytes()).map_err(|_| GitError::WrongObject { id: error::excerpt(id), wanted })
}
