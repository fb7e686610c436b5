//! Git repository on disk, and the fetches that add to it.
//!
//! No external program is started: gix implements Git, and reqwest and russh are the transports. Git settings of this machine do
//! not apply, no prompt asks for a password, and credentials are sent only to the server of the URL.
//!
//! The server is trusted only with its own content:
//! * Time and received bytes are limited ([`Request`]). Names of branches and tags are kept in memory and have a lower limit.
//!   A [stop](Repository::fetch) ends every wait within a moment.
//! * An object that unpacks to more than 64 MiB, although few bytes were sent, is refused before it is stored. Files that are read
//!   have their own limits, which are checked before unpacking.
//! * Names from the server are never used as file names.
//!
//! Not covered: a pack within the byte limit can use one CPU for unpacking until the time limit, and needs as much disk space as
//! was sent.
//!
//! The directory `git` holds the repository in use. If it has 50 packs, is damaged, or has another hash algorithm than the server, the next fetch
//! of new objects creates a repository beside it, which replaces it.

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
    exchange::GitSession,
    https::Https,
    link::Link,
    resolve::{Found, RefRequest},
    store::{Peeled, Store},
    url::Location,
};
use crate::{File, Limits, hosts::Entry, verify::Signed};

/// Number of packs at which a repository is recreated. Each fetch of new objects adds a pack, and packs are never removed.
const PACKS: usize = 50;

/// Bare repository in a directory. Only one process may use the directory, through one `Repository`.
pub struct Repository {
    root: PathBuf,
    /// Lock that is held for writing while the repository in use is replaced.
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
    /// Revision: `main@sha1:<commit>`, `v1.2.3@sha1:<commit>`, or `sha1:<commit>`; with `sha256:` for SHA-256 object ids.
    pub revision: String,
    /// Name of the branch or tag. `None` for a commit.
    pub name: Option<String>,
    /// Full commit hash.
    pub commit: String,
    /// Object id of the annotated tag.
    pub tag: Option<String>,
    /// Number of bytes that the server sent.
    pub received: u64,
}

impl Repository {
    /// Opens the repository in a directory, which is created if it does not exist.
    ///
    /// # Errors
    /// [`GitError::Disk`] when the directory cannot be created, or remains of a crash in it cannot be removed or renamed.
    pub fn open(dir: &Path) -> Result<Self, GitError> {
        fs::create_dir_all(dir).map_err(GitError::Disk)?;
        let repository = Self { root: dir.to_owned(), swap: RwLock::new(()) };
        // Clean up after a crash. After a crash between the two renames of a replacement, the repository in use is in `old`.
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

    /// Resolves a reference on the server, and fetches its commit if it is not stored yet. Contacts no server for the id of a stored commit.
    /// Blocks; `stop` ends the fetch.
    ///
    /// # Errors
    /// [`GitError::UrlInvalid`], [`GitError::ReferenceInvalid`], [`GitError::AccessInvalid`] or [`GitError::KnownHosts`] when
    /// the request cannot be used. [`GitError::HostKeyUnknown`] when the server's key is not in the known hosts.
    /// [`GitError::CertificateInvalid`] when the server's certificate is not trusted, the server rejects the client's, or the TLS handshake fails.
    /// [`GitError::AuthenticationFailed`] when the server or the proxy rejects the credentials. [`GitError::RedirectRefused`]
    /// when the server redirects to another server, or not to https. [`GitError::RepositoryNotFound`] or
    /// [`GitError::RevisionNotFound`] when the server does not have the repository or the reference.
    /// [`GitError::NotACommit`] when the reference leads to no commit. [`GitError::RepositoryTooLarge`] when the server
    /// sends more than is allowed. [`GitError::Timeout`] after `request.timeout`, [`GitError::Stopped`] after a stop.
    /// [`GitError::Disk`] when the directory cannot be read or written. [`GitError::Damaged`] when stored objects are damaged, and the fetch must
    /// end before they are fetched again. [`GitError::Failed`] for any other failure of the connection or the server.
    pub fn fetch(&self, request: &Request, stop: &AtomicBool) -> Result<Head, GitError> {
        let place = Location::parse(&request.url)?;
        let wanted = RefRequest::of(&request.reference)?;
        if let RefRequest::Commit(id) = &wanted
            && let Some(store) = self.current(id.kind())
            && let Ok(Some(peeled)) = store.open().and_then(|repo| store::peel(&repo, *id))
        {
            return Ok(head(&wanted.find(&[])?, peeled, 0));
        }
        let link = Link::new(place.host(), request.timeout, request.limits.transfer, stop)?;
        let attempt = |anew| {
            // gix may panic when a server violates the protocol.
            let attempt = AssertUnwindSafe(|| self.attempt(&link, &place, &wanted, request, anew));
            catch_unwind(attempt).unwrap_or_else(|_| Err(link.failed("its answer cannot be parsed")))
        };
        match attempt(false) {
            // The stored objects do not match the sent ones: fetch into a new repository.
            Err(GitError::Damaged { .. }) if link.over().is_none() => match attempt(true) {
                // Damaged data in a new repository comes from the server.
                Err(GitError::Damaged { problem }) => Err(link.failed(problem)),
                result => result,
            },
            result => result,
        }
    }

    fn attempt(
        &self,
        link: &Link<'_>,
        place: &Location,
        wanted: &RefRequest,
        request: &Request,
        anew: bool,
    ) -> Result<Head, GitError> {
        match place {
            Location::Https(url) => {
                let https = Https::new(link, url, &request.access)?;
                let url = gix::url::parse(url.as_str()).map_err(|error| link.failed(error.to_string()))?;
                self.talk(link, http::Transport::new_http(https, url, Protocol::V2, false), wanted, anew)
            }
            Location::Ssh(ssh) => {
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

    fn talk<T: Transport>(
        &self,
        link: &Link<'_>,
        transport: T,
        wanted: &RefRequest,
        anew: bool,
    ) -> Result<Head, GitError> {
        let mut talk = GitSession::begin(link, transport)?;
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
            fetch_into(&mut talk, &store, &found)?
        } else {
            let store = Store::create(&self.part("new"), hash)?;
            match fetch_into(&mut talk, &store, &found) {
                Ok(peeled) => {
                    self.replace()?;
                    peeled
                }
                Err(error) => {
                    // Free the disk space of the failed fetch.
                    store::remove(&self.part("new"))?;
                    return Err(error);
                }
            }
        };
        talk.end();
        Ok(head(&found, peeled, link.received()))
    }

    /// Returns the repository in use, if it exists and uses this hash.
    fn current(&self, hash: gix::hash::Kind) -> Option<Store> {
        let store = Store::at(&self.part("git"));
        store.open().is_ok_and(|repo| repo.object_hash() == hash).then_some(store)
    }

    /// Replaces the repository in use with the new one.
    fn replace(&self) -> Result<(), GitError> {
        let _swap = self.swap.write();
        store::remove(&self.part("old"))?;
        if self.part("git").exists() {
            fs::rename(self.part("git"), self.part("old")).map_err(GitError::Disk)?;
        }
        fs::rename(self.part("new"), self.part("git")).map_err(GitError::Disk)?;
        store::remove(&self.part("old"))
    }

    /// Calls `read` with the repository in use. A damaged repository is removed, so that the next fetch downloads it again.
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

    /// Returns the author, time and subject of a commit.
    ///
    /// # Errors
    /// [`GitError::WrongObject`] when `id` is not the id of a commit. [`GitError::Damaged`] when the commit is missing or
    /// cannot be read: the repository in use is then removed, so that the next fetch downloads it again. [`GitError::Disk`]
    /// when it cannot be removed.
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

    /// Returns the signed part of an annotated tag, and the signature. The signed name must match `name`, the name of the reference:
    /// any user who may push can publish another user's signed tag under another name. `name` is `None` if the tag was requested by its id.
    ///
    /// # Errors
    /// [`GitError::WrongObject`] when `id` is not the id of an annotated tag. [`GitError::TagRenamed`] when the tag was signed
    /// for another name. [`GitError::Damaged`] or [`GitError::Disk`] when the tag is missing or cannot be read, as in
    /// [`Repository::commit`].
    pub fn signed_tag(&self, id: &str, name: Option<&str>) -> Result<Signed, GitError> {
        let id = parse(id, "tag")?;
        self.reading(|repo| signed::tag(repo, id, name))
    }

    /// Returns the file at a path, or all `*.yaml`, `*.yml` and `*.json` below it if the path is a directory.
    ///
    /// # Errors
    /// [`GitError::WrongObject`] when `commit` is not the id of a commit. [`GitError::PathInvalid`] when `path` leads out of
    /// the repository, has control characters, or is more than 64 directories deep.
    /// [`GitError::PathNotFound`] when the commit has no such path. [`GitError::SymbolicLink`],
    /// [`GitError::Submodule`], [`GitError::NameInvalid`] or [`GitError::LfsPointer`] when an entry on the way to `path` or
    /// below it is not a file or directory that may be read. [`GitError::InventoryTooLarge`] when a limit is exceeded.
    /// [`GitError::Damaged`] or [`GitError::Disk`] when an object is missing or cannot be read, as in
    /// [`Repository::commit`].
    pub fn files(&self, commit: &str, path: &str, limits: &Limits) -> Result<Vec<File>, GitError> {
        let id = parse(commit, "commit")?;
        self.reading(|repo| read::read(repo, &read::list(repo, id, path, limits)?, limits))
    }

    /// Reports whether the commit `new` is `old` or descends from it. `None` if too little history was fetched, or the history is too long.
    ///
    /// # Errors
    /// [`GitError::WrongObject`] when `new` or `old` is not an id. [`GitError::Damaged`] or [`GitError::Disk`] when an object
    /// cannot be read, as in [`Repository::commit`]. The id of a missing commit is not an error.
    pub fn follows(&self, new: &str, old: &str) -> Result<Option<bool>, GitError> {
        let (new, old) = (parse(new, "commit")?, parse(old, "commit")?);
        self.reading(|repo| history::follows(repo, new, old))
    }

    /// Returns the commit that last changed each entry, by file and host name (or address). `read` parses a file into entries, or returns `None`
    /// if it cannot. It is called with one file at a time: each file of `commit`, and each older version that differs.
    ///
    /// # Errors
    /// Fails as [`Repository::files`] does, but a file that is too large or a Git LFS pointer is not an error: its entries are missing from
    /// the result. Older commits can only cause [`GitError::Damaged`], [`GitError::WrongObject`] for an object of the wrong type, or
    /// [`GitError::InventoryTooLarge`] when a directory on the way to `path` has too many entries.
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
fn fetch_into<T: Transport>(talk: &mut GitSession<'_, T>, store: &Store, found: &Found) -> Result<Peeled, GitError> {
    let before = store.tip(&found.key);
    talk.fetch(store, found.id, exchange::DEPTH)?;
    let repo = store.open()?;
    let missing = || GitError::Damaged { problem: "the server did not send the requested objects".to_owned() };
    let peeled = store::peel(&repo, found.id)?.ok_or_else(missing)?;
    if let Some(before) = before
        && history::follows(&repo, peeled.commit, before)?.is_none()
        && talk.can_ask_again()
    {
        // The branch advanced far or was rewritten: more history shows which. If this fetch fails, the answer stays unknown.
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
