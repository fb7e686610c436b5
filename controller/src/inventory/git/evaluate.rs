//! Evaluation of a fetched revision: its list, or the reason why it is not used. Reads only the repository on disk.

use std::collections::BTreeMap;

use api::{GitSource, InventoryStatus, SignatureCheck, VerifyMode};
use gitops::{
    Limits,
    hosts::{self, Finding},
    repository::{GitError, Head, Repository, compare_versions},
    verify::{self, Keys, VerifyError},
};

use crate::inventory::files::{placed, refused};
use wnp_core::inventory::{
    HostList, SourceError,
    revision_policy::{Newest, commit, name, reject},
};

/// Revision to evaluate, with the data that the evaluation needs.
pub(super) struct Task {
    /// Git settings of the pool.
    pub git: GitSource,
    /// Head of the reference on the server.
    pub head: Head,
    /// Revision in force for the pool, if there is one.
    pub before: Option<String>,
    /// Keys in the pool's Secret for signatures, or `None` if the pool names no Secret.
    pub keys: Option<BTreeMap<String, Vec<u8>>>,
}

/// Returns the host list at the head of the reference. Fails if the signature, the history or the content of the revision does not allow its use.
pub(super) fn evaluate(repository: &Repository, task: &Task) -> Result<HostList, SourceError> {
    let Task { git, head, before, keys } = task;
    let signer = match keys {
        None => Ok(None),
        Some(keys) => signer(repository, git, head, keys).map(Some),
    };
    let old = before.as_deref().and_then(commit);
    let follows = match old {
        Some(old) => repository.follows(&head.commit, old).map_err(|e| trouble(&e))?,
        None => None,
    };
    let versions = before.as_deref().and_then(name).zip(head.name.as_deref());
    let version = versions.and_then(|(old, new)| compare_versions(git.reference.as_ref()?, old, new));
    let newest = Newest {
        revision: &head.revision,
        before: before.as_deref(),
        follows,
        version,
        may_jump: git.allow_non_fast_forward == Some(true),
        distrust: signer.as_ref().err().map(ToString::to_string),
    };
    if let Some(objection) = reject(&newest) {
        return Err(objection);
    }
    read(repository, git, &head.revision, &head.commit, signer.ok().flatten())
}

/// Reads the host list at a revision from the repository on disk. Does not check whether the revision may be used. `signer` is the verified signer,
/// if the pool requires one.
pub(super) fn read(
    repository: &Repository,
    git: &GitSource,
    revision: &str,
    commit: &str,
    signer: Option<String>,
) -> Result<HostList, SourceError> {
    let limits = Limits::default();
    let files = repository.files(commit, git.path(), &limits).map_err(|e| unused(revision, &e))?;
    let entries = hosts::read(&files).map_err(|findings: Vec<Finding>| refused(revision, &findings))?;
    let source = source(git);
    let changes = repository
        .last_changes(commit, git.path(), &limits, &|files| hosts::read(files).ok())
        .map_err(|e| unused(revision, &e))?;
    let made = repository.commit(commit).map_err(|e| unused(revision, &e))?;
    let status = InventoryStatus {
        source: source.clone(),
        revision: Some(revision.into()),
        author: Some(made.author),
        time: Some(made.time),
        verdict: if signer.is_some() { SignatureCheck::Verified } else { SignatureCheck::NotAsked },
        signer,
        refused_revision: None,
        held_removals: Vec::new(),
    };
    let entries = placed(entries, &source, revision, &changes);
    Ok(HostList { entries, status: Some(status), ..HostList::default() })
}

/// Returns the name of the source for the pool's status.
pub(super) fn source(git: &GitSource) -> String {
    format!("git {}", git.url)
}

/// Returns the verified signers of the tag, the commit or both, as the pool's `verify.mode` requires.
fn signer(
    repository: &Repository,
    git: &GitSource,
    head: &Head,
    keys: &BTreeMap<String, Vec<u8>>,
) -> Result<String, Distrust> {
    let mode = git.verify.as_ref().and_then(|v| v.mode).unwrap_or_default();
    let keys = Keys::from_secret(keys)?;
    let of_tag = || -> Result<String, Distrust> {
        let tag = head.tag.as_deref().ok_or(Distrust::NoTag)?;
        Ok(verify::verify(&repository.signed_tag(tag, head.name.as_deref())?, &keys)?)
    };
    let of_commit =
        || -> Result<String, Distrust> { Ok(verify::verify(&repository.signed_commit(&head.commit)?, &keys)?) };
    match mode {
        VerifyMode::Head => of_commit(),
        VerifyMode::Tag => of_tag(),
        VerifyMode::TagAndHead => {
            let (tag, commit) = (of_tag()?, of_commit()?);
            Ok(if tag == commit { tag } else { format!("{tag} and {commit}") })
        }
    }
}

/// Reason why a signature is not trusted.
#[derive(Debug, thiserror::Error)]
enum Distrust {
    #[error("{0}")]
    Verify(#[from] VerifyError),
    #[error("{0}")]
    Git(#[from] GitError),
    #[error(
        "inventory.git.verify requires a signed tag, and inventory.git.ref selects none: create a tag with git tag -s, and let inventory.git.ref select it"
    )]
    NoTag,
}

/// Converts an error of the repository to an error of the source that says which revision is not used because of it.
fn unused(revision: &str, error: &GitError) -> SourceError {
    SourceError { message: format!("{revision} is not used: {error}"), ..trouble(error) }
}

/// Converts an error of the repository to an error of the source.
pub(super) fn trouble(error: &GitError) -> SourceError {
    SourceError { reason: error.reason(), message: error.to_string(), stalls: error.stalls() }
}
