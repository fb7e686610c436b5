//! Git client for tests, with a request and a repository directory.

use std::{sync::atomic::AtomicBool, time::Duration};

use api::GitRef;
use gitops::{
    Limits,
    repository::{Access, GitError, Head, Repository, Request},
};
use tempfile::TempDir;

use crate::{origin::Origin, server::Server};

pub(crate) struct Client {
    pub dir: TempDir,
    pub repository: Repository,
    pub request: Request,
}

impl Client {
    pub(crate) fn new(url: String, access: Access) -> Self {
        let dir = TempDir::new().unwrap();
        let repository = Repository::open(dir.path()).unwrap();
        let (timeout, limits) = (Duration::from_secs(30), Limits::default());
        Self { dir, repository, request: Request { url, reference: GitRef::default(), access, timeout, limits } }
    }

    /// Returns a client that trusts the server's certificate authority.
    pub(crate) fn of(server: &Server) -> Self {
        Self::new(server.url(), access_trusting(server))
    }

    pub(crate) fn branch(mut self, name: &str) -> Self {
        self.request.reference = branch(name);
        self
    }

    pub(crate) fn fetch(&self) -> Result<Head, GitError> {
        self.repository.fetch(&self.request, &AtomicBool::new(false))
    }

    pub(crate) fn fetch_as(&mut self, reference: GitRef) -> Result<Head, GitError> {
        self.request.reference = reference;
        self.fetch()
    }

    /// Returns the path and text of each file below a path.
    pub(crate) fn files(&self, commit: &str, path: &str) -> Result<Vec<(String, String)>, GitError> {
        let files = self.repository.files(commit, path, &self.request.limits)?;
        Ok(files.into_iter().map(|file| (file.path, String::from_utf8(file.bytes).unwrap())).collect())
    }
}

/// Returns a repository with one commit, its server, and a client that trusts the server.
pub(crate) fn served() -> (Origin, Server, Client) {
    let origin = Origin::new();
    let server = Server::new(origin.root());
    let client = Client::of(&server);
    (origin, server, client)
}

/// Returns access that trusts the server's certificate authority.
pub(crate) fn access_trusting(server: &Server) -> Access {
    Access { authority: Some(server.authority.pem.clone().into_bytes()), ..Access::default() }
}

pub(crate) fn branch(name: &str) -> GitRef {
    GitRef { branch: Some(name.to_owned()), ..GitRef::default() }
}

pub(crate) fn tag(name: &str) -> GitRef {
    GitRef { tag: Some(name.to_owned()), ..GitRef::default() }
}

pub(crate) fn semver(range: &str) -> GitRef {
    GitRef { semver: Some(range.to_owned()), ..GitRef::default() }
}

pub(crate) fn commit(id: &str) -> GitRef {
    GitRef { commit: Some(id.to_owned()), ..GitRef::default() }
}
