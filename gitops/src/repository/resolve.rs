//! Resolution of a pool's reference to a commit of a server, without I/O.

use std::cmp::Ordering;

use api::GitRef;
use gix::{ObjectId, bstr::ByteSlice, protocol::handshake::Ref};
use semver::{Version, VersionReq};

use super::GitError;

/// Requested branch, tag, range or commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RefRequest {
    /// Branch that the server's HEAD points to.
    Default,
    /// Branch.
    Branch(String),
    /// Tag.
    Tag(String),
    /// Highest tag in a range of versions.
    Range(VersionReq),
    /// Commit.
    Commit(ObjectId),
}

/// Object on the server for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Id of a commit or an annotated tag.
    pub id: ObjectId,
    /// Name of the branch or tag. `None` for a commit.
    pub name: Option<String>,
    /// Key under which the commit is recorded.
    pub key: String,
}

impl RefRequest {
    /// Returns the request for the first of commit, semver, tag and branch that is set.
    pub(super) fn of(reference: &GitRef) -> Result<Self, GitError> {
        let invalid =
            |what, problem: &str| GitError::ReferenceInvalid { what, problem: super::error::excerpt(problem) };
        if let Some(commit) = &reference.commit {
            let id = ObjectId::from_hex(commit.as_bytes())
                .map_err(|_| invalid(format!("commit {commit:?}"), "write all of its 40 or 64 hexadecimal digits"))?;
            return Ok(Self::Commit(id));
        }
        if let Some(range) = &reference.semver {
            return match VersionReq::parse(&comma_separated(range)) {
                Ok(range) => Ok(Self::Range(range)),
                Err(error) => {
                    Err(invalid(format!("semver {range:?}"), &format!("{error}; write for example >=1.2.0, <2.0.0")))
                }
            };
        }
        let checked = |kind: &str, folder: &str, name: &str| {
            let name = name.strip_prefix(folder).unwrap_or(name);
            match gix::validate::reference::name(format!("{folder}{name}").as_str().into()) {
                Ok(_) => Ok(name.to_owned()),
                Err(_) => Err(invalid(format!("{kind} {name:?}"), "Git does not allow this name: correct it")),
            }
        };
        match (&reference.tag, &reference.branch) {
            (Some(tag), _) => checked("tag", TAGS, tag).map(Self::Tag),
            (None, Some(branch)) => checked("branch", HEADS, branch).map(Self::Branch),
            (None, None) => Ok(Self::Default),
        }
    }

    /// Returns the prefix of the references to request. `None` for a commit, which needs no reference. The server may send more.
    pub(super) fn prefix(&self) -> Option<String> {
        match self {
            Self::Default => Some("HEAD".to_owned()),
            Self::Branch(branch) => Some(format!("{HEADS}{branch}")),
            Self::Tag(tag) => Some(format!("{TAGS}{tag}")),
            Self::Range(_) => Some(TAGS.to_owned()),
            Self::Commit(_) => None,
        }
    }

    /// Finds the wanted reference among the references of a server.
    pub(super) fn find(&self, refs: &[Ref]) -> Result<Found, GitError> {
        let missing = |what: String| GitError::RevisionNotFound { what };
        let by_name =
            |name: &str| refs.iter().find_map(|r| target(r).filter(|(full, _)| *full == name).map(|(_, id)| id));
        match self {
            Self::Commit(id) => Ok(Found { id: *id, name: None, key: id.to_string() }),
            Self::Branch(branch) => {
                let key = format!("{HEADS}{branch}");
                let id = by_name(&key).ok_or_else(|| missing(format!("branch {branch:?}{REMEDY}")))?;
                Ok(Found { id, name: Some(branch.clone()), key })
            }
            Self::Tag(tag) => {
                let key = format!("{TAGS}{tag}");
                let id = by_name(&key).ok_or_else(|| missing(format!("tag {tag:?}{REMEDY}")))?;
                Ok(Found { id, name: Some(tag.clone()), key })
            }
            Self::Range(range) => {
                let tags = refs.iter().filter_map(target).filter_map(|(full, id)| Some((full.strip_prefix(TAGS)?, id)));
                let (tag, id) =
                    highest(range, tags).ok_or_else(|| missing(format!("tag in the range {range}{REMEDY}")))?;
                Ok(Found { id, name: Some(tag.to_owned()), key: format!("{TAGS}{tag}") })
            }
            Self::Default => {
                let id = by_name("HEAD").ok_or_else(|| {
                    missing("commits, or its HEAD names none: set inventory.git.ref.branch".to_owned())
                })?;
                let named = refs.iter().find_map(|r| match r {
                    Ref::Symbolic { full_ref_name, target, .. } if full_ref_name == "HEAD" => {
                        let name = gix::validate::reference::name(target.as_bstr()).ok()?;
                        name.to_str().ok()?.strip_prefix(HEADS).filter(|name| name.len() <= 255).map(ToOwned::to_owned)
                    }
                    _ => None,
                });
                let name = named.unwrap_or_else(|| "HEAD".to_owned());
                Ok(Found { id, key: format!("{HEADS}{name}"), name: Some(name) })
            }
        }
    }
}

/// Remedy for a missing branch or tag.
const REMEDY: &str = ": correct inventory.git.ref, or push it";
const HEADS: &str = "refs/heads/";
const TAGS: &str = "refs/tags/";

/// Returns the name and object id of a reference. For an annotated tag, the id of the tag object.
fn target(reference: &Ref) -> Option<(&str, ObjectId)> {
    let (name, id, _) = reference.unpack();
    Some((name.to_str().ok()?, id?.to_owned()))
}

/// Compares the version of the tag `new` with the version of the tag `old`. Returns `None` if `reference` has no range, or one of the tags is not in
/// the range because the user changed the range.
pub fn compare_versions(reference: &GitRef, old: &str, new: &str) -> Option<Ordering> {
    let Ok(RefRequest::Range(range)) = RefRequest::of(reference) else { return None };
    Some(version(&range, new)?.cmp_precedence(&version(&range, old)?))
}

fn version(range: &VersionReq, tag: &str) -> Option<Version> {
    Version::parse(tag.strip_prefix('v').unwrap_or(tag)).ok().filter(|v| range.matches(v))
}

/// Returns the tag with the highest version in a range. Among tags with the same version (`1.0.0` and `v1.0.0`, or other build metadata),
/// returns the last one in alphabetical order, so that the result is stable.
fn highest<'a, T>(range: &VersionReq, tags: impl Iterator<Item = (&'a str, T)>) -> Option<(&'a str, T)> {
    let versions = tags.filter_map(|(tag, id)| Some((version(range, tag)?, tag, id)));
    versions.max_by(|a, b| a.0.cmp_precedence(&b.0).then_with(|| a.1.cmp(b.1))).map(|(_, tag, id)| (tag, id))
}

/// Rewrites `>=1.0.0 <2.0.0` as `>=1.0.0, <2.0.0`: both are common, and only the latter can be parsed.
fn comma_separated(range: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in range.split([' ', ',']).filter(|word| !word.is_empty()) {
        match words.last_mut() {
            // An operator that stands alone belongs to the next word.
            Some(last) if last.chars().all(|c| "<>=~^".contains(c)) => last.push_str(word),
            _ => words.push(word.to_owned()),
        }
    }
    words.join(", ")
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
