//! Versions of the services, whose names contain the digest of the content.
//!
//! A version is the suffix of the name of a services ConfigMap, `windows-services-<version>`. An immutable ConfigMap
//! can be deleted and recreated with other content, so every reader, operator or host, computes the digest again and
//! ignores content that does not match. Versions of the Windows Machine Config Operator have no digest.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// Number of hex digits of the digest in a name: 128 bits, so that no other content with the same digest can be found.
pub const DIGITS: usize = 32;

/// Reason why the content of a services ConfigMap does not match its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnverifiedError {
    /// The name has no digest.
    #[error("its name has no digest: only the Windows Machine Config Operator writes such a ConfigMap")]
    NoDigest,
    /// The ConfigMap was replaced or damaged, or has lost its annotation.
    #[error("its content does not match the digest in its name: a client other than the operator wrote it")]
    Differs,
}

/// Returns the digest of a services ConfigMap's data and annotation [`RENDERED`](crate::names::key::RENDERED). The
/// digest of the same bytes must never change between releases.
pub fn digest(data: &BTreeMap<String, String>, rendered: &str) -> String {
    let mut hash = Sha256::new();
    // Lengths separate the texts from each other.
    let mut add = |key: &str, text: &str| {
        hash.update(format!("{} {}\n", key.len(), text.len()));
        hash.update(key);
        hash.update(text);
    };
    add("", rendered);
    for (key, text) in data {
        add(key, text);
    }
    let mut digits = hex::encode(hash.finalize());
    digits.truncate(DIGITS);
    digits
}

/// Number of digest digits in a short version, as in short commit hashes of Git.
const SHORT: usize = 8;

/// Returns the short form of a version, for people. The digest, or any other text after the last `-`, is cut to 8 characters.
pub fn short(version: &str) -> String {
    match version.rsplit_once('-') {
        Some((release, digest)) => format!("{release}-{}", digest.chars().take(SHORT).collect::<String>()),
        None => version.to_owned(),
    }
}

/// Returns the digest in a version. `None` for versions of the Windows Machine Config Operator.
pub fn carried(version: &str) -> Option<&str> {
    let (_, digits) = version.rsplit_once('-')?;
    let is_hex = digits.len() == DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then_some(digits)
}

/// Checks that the content of a services ConfigMap matches the digest in its version.
///
/// # Errors
/// Fails when the content does not match, or the version has no digest.
pub fn verify(version: &str, data: &BTreeMap<String, String>, rendered: Option<&str>) -> Result<(), UnverifiedError> {
    let carried = carried(version).ok_or(UnverifiedError::NoDigest)?;
    match rendered {
        Some(rendered) if digest(data, rendered) == carried => Ok(()),
        _ => Err(UnverifiedError::Differs),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_version_is_shortened() {
        for (version, expected) in [
            ("1.0.0-rc.1-5c9a1f0e7b64d2380f1ac95be2370d68", "1.0.0-rc.1-5c9a1f0e"),
            ("10.18.0-abc", "10.18.0-abc"),
            ("unknown", "unknown"),
        ] {
            assert_eq!(short(version), expected);
        }
    }

    #[test]
    fn only_a_whole_digest_counts() {
        let digits = "0123456789abcdef".repeat(2);
        for (version, expected) in [
            (format!("0.1.0-{digits}"), true),
            (format!("1.2.3-rc.1-{digits}"), true),
            (digits.clone(), false),
            (format!("0.1.0-{}", &digits[1..]), false),
            (format!("0.1.0-{digits}0"), false),
            (format!("0.1.0-{}", digits.to_uppercase()), false),
            (format!("0.1.0-{digits}-"), false),
            ("10.18.0-0a1b2c3d".to_owned(), false),
            ("10.18.0".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(carried(&version).is_some(), expected, "{version}");
        }
    }

    #[test]
    fn the_digest_never_changes() {
        let data = BTreeMap::from([("services".to_owned(), "[]".to_owned()), ("files".to_owned(), "[]".to_owned())]);
        assert_eq!(digest(&data, "{}"), "a8833aa4da6ed4c9ef787fe4a7ac0331");
    }

    #[test]
    fn the_digest_depends_on_the_borders_of_the_texts() {
        let of = |pairs: &[(&str, &str)], rendered| {
            let data = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            digest(&data, rendered)
        };
        let all = [
            of(&[("a", "bc")], ""),
            of(&[("ab", "c")], ""),
            of(&[("a", "b"), ("c", "")], ""),
            of(&[("a", "b")], "c"),
            of(&[("a", "")], "bc"),
            of(&[], "abc"),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
    }

    proptest! {
        #[test]
        fn only_the_same_content_matches_the_digest(
            data in proptest::collection::btree_map(".{0,5}", ".{0,9}", 0..4),
            other in proptest::collection::btree_map(".{0,5}", ".{0,9}", 0..4),
            rendered in ".{0,9}",
            other_rendered in ".{0,9}",
        ) {
            let version = format!("0.1.0-{}", digest(&data, &rendered));
            prop_assert_eq!(verify(&version, &data, Some(&rendered)), Ok(()));
            prop_assert_eq!(verify(&version, &data, None), Err(UnverifiedError::Differs));
            let same = (&other, &other_rendered) == (&data, &rendered);
            prop_assert_eq!(verify(&version, &other, Some(&other_rendered)).is_ok(), same);
        }
    }
}
