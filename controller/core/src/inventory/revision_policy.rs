//! Choice between the newest revision of a source and the one in use. Pure.

use api::Reason;
use std::cmp::Ordering;

use super::SourceError;

/// Known facts about the newest revision.
#[derive(Clone, Debug)]
pub struct Newest<'a> {
    /// Newest revision, as `main@sha1:…`.
    pub revision: &'a str,
    /// Revision in force, if there is one.
    pub before: Option<&'a str>,
    /// True if the newest revision descends from the one in force; `None` if that is unknown.
    pub follows: Option<bool>,
    /// Comparison of the newest version with the one in force. `None` if the pool selects no range of versions, or if one of the two is not in the
    /// range.
    pub version: Option<Ordering>,
    /// True if the pool accepts a revision that does not descend from the one in force, or has a lower version.
    pub may_jump: bool,
    /// Reason why the signature is not trusted. `None` if it is trusted, or if the pool requires none.
    pub distrust: Option<String>,
}

/// Returns the reason why the newest revision is not used; `None` if it is.
pub fn reject(newest: &Newest<'_>) -> Option<SourceError> {
    let Newest { revision, before, follows, version, may_jump, distrust } = newest;
    if let Some(why) = distrust {
        let message = format!("{revision} is not used: {why}");
        return Some(SourceError { reason: Reason::VerificationError, message, stalls: true });
    }
    let before = before.filter(|b| b != revision)?;
    if *version == Some(Ordering::Less) && !may_jump {
        let message = format!(
            "{revision} is not used: its version is lower than that of {before}, which is in use. The tag of {before} was deleted, or the server no longer lists it. To use the lower version, set inventory.git.allowNonFastForward to true, or a range that ends below {before}"
        );
        return Some(SourceError { reason: Reason::HistoryRewritten, message, stalls: true });
    }
    // The same version under another tag is not newer.
    if !same_reference(before, revision) && *version != Some(Ordering::Equal) {
        return None;
    }
    let why = match follows {
        Some(true) => return None,
        _ if *may_jump => return None,
        Some(false) => format!("it does not descend from {before}, which is in use: history was rewritten"),
        None => format!(
            "it is unknown whether it descends from {before}, which is in use: that revision is no longer in the repository, or too far back"
        ),
    };
    Some(SourceError {
        reason: Reason::HistoryRewritten,
        message: format!("{revision} is not used: {why}. To use it, set inventory.git.allowNonFastForward to true"),
        stalls: true,
    })
}

/// Returns the branch or tag of a revision; `None` for a commit without one.
pub fn name(revision: &str) -> Option<&str> {
    revision.rsplit_once('@').map(|(name, _)| name)
}

/// Returns the commit of a revision.
pub fn commit(revision: &str) -> Option<&str> {
    revision.rsplit_once(':').map(|(_, commit)| commit)
}

/// Reports whether two revisions are of the same branch or tag: a pool that names another one intends the change.
fn same_reference(a: &str, b: &str) -> bool {
    // A revision without a name is a commit that the pool sets itself, which is intended, too.
    name(a).is_some() && name(a) == name(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Newest<'_> {
        /// Returns the case without a comparison of versions, as if one of the two were not in the range.
        fn unranged(self) -> Self {
            Self { version: None, ..self }
        }
    }

    #[test]
    fn only_a_trusted_revision_that_follows_the_one_in_force_is_used() {
        let (old, new) = ("main@sha1:0a", "main@sha1:0b");
        let newest = Newest {
            revision: new,
            before: Some(old),
            follows: Some(true),
            version: None,
            may_jump: false,
            distrust: None,
        };
        let version = |old: &'static str, new: &'static str, order| Newest {
            revision: new,
            before: Some(old),
            follows: None,
            version: Some(order),
            ..newest.clone()
        };
        let (v1, v2) = ("v1.0.0@sha1:0a", "v2.0.0@sha1:0b");
        for (about, newest, reason) in [
            ("it descends from the revision in force", newest.clone(), None),
            ("the first revision", Newest { before: None, follows: None, ..newest.clone() }, None),
            ("the same revision", Newest { before: Some(new), follows: None, ..newest.clone() }, None),
            ("history was rewritten", Newest { follows: Some(false), ..newest.clone() }, Some("HistoryRewritten")),
            ("descent is unknown", Newest { follows: None, ..newest.clone() }, Some("HistoryRewritten")),
            (
                "history was rewritten, which the pool allows",
                Newest { follows: Some(false), may_jump: true, ..newest.clone() },
                None,
            ),
            ("another branch", Newest { before: Some("old@sha1:0a"), follows: Some(false), ..newest.clone() }, None),
            ("a higher version", version(v1, v2, Ordering::Greater), None),
            ("a lower version", version(v2, v1, Ordering::Less), Some("HistoryRewritten")),
            (
                "a lower version, which the pool allows",
                Newest { may_jump: true, ..version(v2, v1, Ordering::Less) },
                None,
            ),
            (
                "the same version under another tag, with an unknown descent",
                version(v1, "1.0.0@sha1:0c", Ordering::Equal),
                Some("HistoryRewritten"),
            ),
            (
                "the same version under another tag, which descends from the revision in force",
                Newest { follows: Some(true), ..version(v1, "1.0.0@sha1:0c", Ordering::Equal) },
                None,
            ),
            ("the same tag and commit", version(v1, v1, Ordering::Equal), None),
            (
                "a range that ends below the version in force",
                Newest { follows: None, ..version(v2, v1, Ordering::Less) }.unranged(),
                None,
            ),
            (
                "a commit that the pool sets",
                Newest { revision: "sha1:0c", follows: Some(false), ..newest.clone() },
                None,
            ),
            (
                "not trusted",
                Newest { distrust: Some("no signature".into()), ..newest.clone() },
                Some("VerificationError"),
            ),
            (
                "not trusted, and history was rewritten, which the pool allows",
                Newest { follows: Some(false), may_jump: true, distrust: Some("x".into()), ..newest.clone() },
                Some("VerificationError"),
            ),
        ] {
            assert_eq!(reject(&newest).map(|t| t.reason.as_str()), reason, "{about}");
        }
        assert_eq!((name("a@b@sha1:0c"), name("sha1:0c")), (Some("a@b"), None));
        assert_eq!(commit(new), Some("0b"));
        assert_eq!(commit("sha256:0c"), Some("0c"));
    }
}
