//! Errors of a repository, with remedies. Messages of a server are truncated and sanitised, and an error never contains a
//! secret or the user name of an https URL.

use std::{io, time::Duration};

use api::{Reason, text};

use super::AccessError;
use crate::known_hosts::KnownHostsError;

/// Maximum number of characters of a server's message in an error.
const EXCERPT: usize = 300;

/// Reason why a repository cannot be fetched or read.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The URL cannot be used.
    #[error("inventory.git.url cannot be used: {problem}")]
    UrlInvalid {
        /// Fault of the URL, and the remedy.
        problem: &'static str,
    },
    /// The reference cannot be used.
    #[error("inventory.git.ref: {what} cannot be used: {problem}")]
    ReferenceInvalid {
        /// Field and value.
        what: String,
        /// Fault of the value, and the remedy.
        problem: String,
    },
    /// The Secret cannot be used.
    #[error("inventory.git.secretRef does not name a usable Secret: {0}")]
    AccessInvalid(#[from] AccessError),
    /// The known hosts cannot be used.
    #[error("the Secret in inventory.git.secretRef cannot be used: {0}")]
    KnownHosts(#[from] KnownHostsError),
    /// The server's key is not in the known hosts.
    #[error(
        "{host} offers the SSH host key {offered}, which known_hosts does not list for this server{}: check that the key is the right one, and \
         add it to known_hosts of the Secret in inventory.git.secretRef",
        unread(.damaged)
    )]
    HostKeyUnknown {
        /// Name of the server, as in `known_hosts`.
        host: String,
        /// Lines of `known_hosts` for the server that cannot be read, from 1.
        damaged: Vec<usize>,
        /// Description of the offered key, such as its type and fingerprint.
        offered: String,
    },
    /// The server or the proxy rejects the credentials, or requires some.
    #[error("{host} refuses access: {problem}")]
    AuthenticationFailed {
        /// Name of the server or proxy.
        host: String,
        /// Attempted log-in, and the remedy.
        problem: String,
    },
    /// No TLS connection: the server's certificate is not trusted, the server rejects the client's, or the handshake fails for another reason.
    #[error("no secure connection to {host}: {problem}")]
    CertificateInvalid {
        /// Name of the server.
        host: String,
        /// Fault of the certificate or the handshake, and the remedy.
        problem: String,
    },
    /// The repository does not exist, or the credentials may not read it.
    #[error(
        "the repository does not exist on {host}, or the pool may not read it: check inventory.git.url and inventory.git.secretRef"
    )]
    RepositoryNotFound {
        /// Name of the server.
        host: String,
    },
    /// The server redirects to a URL that must not get the credentials.
    #[error(
        "{host} redirects to {to}, which is not followed because it is another server or not https: if the repository has moved there, change \
         inventory.git.url"
    )]
    RedirectRefused {
        /// Name of the server.
        host: String,
        /// Scheme, host and port of the redirect.
        to: String,
    },
    /// Any other failure between the operator and the server.
    #[error(
        "fetching from {host} failed: {problem}: check the URL, the server, the network and the proxy; the operator retries, and keeps the hosts that it has"
    )]
    Failed {
        /// Name of the server.
        host: String,
        /// Known details of the failure.
        problem: String,
    },
    /// The fetch exceeded its time limit.
    #[error(
        "fetching from {host} timed out after {}s: check the server, the network and the proxy; the operator retries, and keeps the hosts that it has",
        .after.as_secs_f32()
    )]
    Timeout {
        /// Name of the server.
        host: String,
        /// Time limit of the fetch.
        after: Duration,
    },
    /// The caller cancelled the fetch.
    #[error("fetching was stopped")]
    Stopped,
    /// The repository has no such branch, tag or commit.
    #[error("the repository has no {what}")]
    RevisionNotFound {
        /// Kind and name of the missing reference, and the remedy.
        what: String,
    },
    /// The repository is larger than the limits.
    #[error("the repository is too large: {what}; keep the hosts in a repository of their own")]
    RepositoryTooLarge {
        /// Part that is too large, and the limit.
        what: String,
    },
    /// A part of the inventory is too large.
    #[error("{path} is too large: {what}")]
    InventoryTooLarge {
        /// File, or the path that is read.
        path: String,
        /// Fault, the limit, and the remedy.
        what: String,
    },
    /// The path is outside the repository, has control characters, or is too deep.
    #[error(
        "inventory.git.path {} cannot be used: write it from the root of the repository, without `..` and control characters, at most 64 \
         directories deep",
        text::quote(.path, EXCERPT)
    )]
    PathInvalid {
        /// Path that the pool configures.
        path: String,
    },
    /// A directory has an entry whose path looks like the path of another file, or has a control character in it.
    #[error("the commit has an entry {}, which is not a valid name for a file of hosts: remove it", text::quote(.path, EXCERPT))]
    NameInvalid {
        /// Path of the entry.
        path: String,
    },
    /// The commit has nothing at the path.
    #[error("the commit has no file or directory {}: check inventory.git.path, or add the file", text::quote(.path, EXCERPT))]
    PathNotFound {
        /// Path that the pool configures.
        path: String,
    },
    /// Symbolic link, which is never followed.
    #[error("{path} is a symbolic link, which is not followed: replace it with the file itself, or remove it")]
    SymbolicLink {
        /// Path of the link.
        path: String,
    },
    /// Submodule, which is never fetched.
    #[error(
        "{path} is a submodule, which is not fetched: put the files themselves there, or set inventory.git.url to its repository"
    )]
    Submodule {
        /// Path of the submodule.
        path: String,
    },
    /// A file is a Git LFS pointer.
    #[error("{path} is a Git LFS pointer, whose content is not fetched: store the file itself in the repository")]
    LfsPointer {
        /// Path of the pointer.
        path: String,
    },
    /// The object has another type than required.
    #[error("{id} is not a {wanted} of the repository: check the repository on its server with git fsck")]
    WrongObject {
        /// Id of the object.
        id: String,
        /// Required type.
        wanted: &'static str,
    },
    /// The reference leads to a directory, to a file, or through more than 5 nested tags.
    #[error("{id} is neither a commit nor a tag of one: name a commit, or a tag of a commit, in inventory.git.ref")]
    NotACommit {
        /// Id of the object.
        id: String,
    },
    /// A tag has another name than the one it was signed for.
    #[error(
        "the tag {name:?} was made for the name {made_for:?}: a signed tag is valid only under its own name; sign a tag with this name"
    )]
    TagRenamed {
        /// Name of the reference.
        name: String,
        /// Name in the tag itself.
        made_for: String,
    },
    /// Fetched data are no longer on disk, or cannot be read.
    #[error("the fetched data can no longer be read ({problem}): the operator fetches them again")]
    Damaged {
        /// Known details of the damage.
        problem: String,
    },
    /// The directory on disk cannot be used.
    #[error(
        "the operator's cache directory for repositories (--cache) cannot be used: {0}: check that its volume has space and is writable; the operator \
         retries, and keeps the hosts that it has"
    )]
    Disk(#[source] io::Error),
}

/// Returns a note about the first damaged line for the server, which may hold the missing key. Empty if there is none.
fn unread(lines: &[usize]) -> String {
    lines.first().map_or_else(String::new, |line| format!(" (line {line} is for this server, and cannot be read)"))
}

impl GitError {
    /// Returns the stable reason for conditions and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::UrlInvalid { .. }
            | Self::ReferenceInvalid { .. }
            | Self::RepositoryNotFound { .. }
            | Self::RevisionNotFound { .. }
            | Self::PathInvalid { .. }
            | Self::PathNotFound { .. } => Reason::SourceInvalid,
            Self::AccessInvalid(_) => Reason::CredentialsUnavailable,
            Self::KnownHosts(error) => error.reason(),
            Self::HostKeyUnknown { .. } => Reason::HostKeyUnknown,
            Self::AuthenticationFailed { .. } => Reason::AuthenticationFailed,
            Self::CertificateInvalid { .. } => Reason::CertificateInvalid,
            Self::RedirectRefused { .. }
            | Self::Failed { .. }
            | Self::Timeout { .. }
            | Self::Stopped
            | Self::RepositoryTooLarge { .. }
            | Self::WrongObject { .. }
            | Self::NotACommit { .. }
            | Self::Damaged { .. }
            | Self::Disk(_) => Reason::GitOperationFailed,
            Self::InventoryTooLarge { .. }
            | Self::NameInvalid { .. }
            | Self::SymbolicLink { .. }
            | Self::Submodule { .. }
            | Self::LfsPointer { .. } => Reason::InvalidInventory,
            Self::TagRenamed { .. } => Reason::VerificationError,
        }
    }

    /// Reports whether the error persists until a user acts: another fetch of the same revision fails in the same way. `false` if a
    /// change of the Secret, the network or the server can resolve the error.
    pub fn stalls(&self) -> bool {
        matches!(
            self,
            Self::UrlInvalid { .. }
                | Self::ReferenceInvalid { .. }
                | Self::RedirectRefused { .. }
                | Self::RepositoryTooLarge { .. }
                | Self::InventoryTooLarge { .. }
                | Self::PathInvalid { .. }
                | Self::NameInvalid { .. }
                | Self::PathNotFound { .. }
                | Self::SymbolicLink { .. }
                | Self::Submodule { .. }
                | Self::LfsPointer { .. }
                | Self::WrongObject { .. }
                | Self::NotACommit { .. }
                | Self::TagRenamed { .. }
        )
    }

    pub(super) fn damaged(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Damaged { problem: excerpt(&innermost(error)) }
    }
}

/// Returns the beginning of an external message, on one line.
pub(super) fn excerpt(words: &str) -> String {
    text::line(words, EXCERPT)
}

/// Joins the messages of an error and its sources, without repetitions.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let more = error.to_string();
        if !words.iter().any(|said| said.contains(&more)) {
            words.push(more);
        }
        next = error.source();
    }
    excerpt(&words.join(": "))
}

/// Returns the message of the innermost source of an error.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_server_are_sanitised() {
        let cases = [
            ("  fatal: no\r\nsuch repository \n", "fatal: no  such repository"),
            ("\u{1b}[31mred\u{202e}der\u{7}", "[31mredder"),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(excerpt(text), expected);
        }
        assert_eq!(excerpt(&"ä".repeat(5000)).chars().count(), EXCERPT);
    }
}
