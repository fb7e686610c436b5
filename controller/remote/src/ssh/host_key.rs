//! Host keys, and the check of the key that a host proves.

use std::fmt;

use api::text;
use base64::{Engine, engine::general_purpose};
use russh::keys::{Algorithm, HashAlg, PublicKey};
use sha2::{Digest, Sha256};

/// Error for text that is not a host key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is not an SSH host key: {problem}; give {forms}", text::quote(.text, 200))]
pub struct HostKeyError {
    text: String,
    problem: &'static str,
    /// Forms that a host key may have here.
    forms: &'static str,
}

/// Forms of a whole host key.
const WHOLE: &str = "\"ssh-ed25519 AAAA…\" or its base64 part";
/// Forms of a host key, or of its fingerprint.
const ANY: &str = "\"ssh-ed25519 AAAA…\", its base64 part, or \"SHA256:…\"";

/// Public key of a host, as in the `ssh-host-key` annotations: the key type, and the SSH wire format in base64.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HostKey {
    /// Key type in the wire format: `ssh-ed25519`, `ecdsa-sha2-nistp256`, `ssh-rsa`, …
    pub key_type: String,
    /// Padded standard base64 of the wire format, as in `known_hosts`.
    pub public_key_base64: String,
}

impl HostKey {
    /// Parses `ssh-ed25519 AAAA… [comment]` or the base64 part alone.
    ///
    /// # Errors
    /// Fails when `text` is empty, has no public key in base64, or names another type than the key has.
    pub fn parse(text: &str) -> Result<Self, HostKeyError> {
        let error = |problem| HostKeyError { text: text.to_owned(), problem, forms: WHOLE };
        let mut words = text.split_ascii_whitespace();
        let (key_type, base64) = match (words.next(), words.next()) {
            (Some(key_type), Some(base64)) => (Some(key_type), base64),
            (Some(base64), None) => (None, base64),
            (None, _) => return Err(error("it is empty")),
        };
        let blob = decode_base64(base64).ok_or_else(|| error("it is not base64"))?;
        let key = russh::keys::key::parse_public_key(&blob).map_err(|_| error("it does not hold a public key"))?;
        let key = Self::of(&key).ok_or_else(|| error("it does not hold a public key"))?;
        if key_type.is_some_and(|t| t != key.key_type) {
            return Err(error("the stated key type differs from the type in the key"));
        }
        Ok(key)
    }

    pub(super) fn of(key: &PublicKey) -> Option<Self> {
        let blob = key.to_bytes().ok()?;
        // The wire format names an RSA key "ssh-rsa", whichever hash signs with it.
        let length = usize::try_from(u32::from_be_bytes(blob.get(..4)?.try_into().ok()?)).ok()?;
        let key_type = str::from_utf8(blob.get(4..4 + length)?).ok()?.to_owned();
        Some(Self { key_type, public_key_base64: general_purpose::STANDARD.encode(&blob) })
    }

    /// Returns the fingerprint `SHA256:…`, as `ssh-keygen -l` prints it.
    pub fn fingerprint(&self) -> String {
        let blob = decode_base64(&self.public_key_base64).unwrap_or_default();
        format!("SHA256:{}", general_purpose::STANDARD_NO_PAD.encode(Sha256::digest(blob)))
    }

    /// Reports whether both are the same key, regardless of base64 padding.
    fn same(&self, other: &Self) -> bool {
        let blob = decode_base64(&self.public_key_base64);
        blob.is_some() && blob == decode_base64(&other.public_key_base64)
    }
}

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key_type, self.fingerprint())
    }
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    general_purpose::STANDARD_NO_PAD.decode(text.trim().trim_end_matches('=')).ok()
}

/// Policy for the check of a host key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostKeyCheck {
    /// Accepts only this key.
    Pinned(HostKey),
    /// Accepts only the key with this fingerprint, `SHA256:…`.
    PinnedFingerprint(String),
    /// Accepts any of the keys that a user lists. A host without an entry is refused.
    AnyOf(Vec<HostKey>),
    /// Accepts any key. The caller then pins the key that the host proved ([`Connection::host_key`](super::Connection::host_key)).
    TrustOnFirstUse,
}

/// Result of the check of an offered key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HostKeyDecision {
    Accepted,
    /// The key differs from the expected keys, whose fingerprints are listed.
    Mismatch(Vec<String>),
    /// No key of the host is known.
    Unknown,
}

impl HostKeyCheck {
    /// Parses a pinned key in any of its forms: `ssh-ed25519 AAAA…`, `AAAA…` or `SHA256:…`.
    ///
    /// # Errors
    /// Fails when `SHA256:` is not followed by 32 bytes in base64. Without `SHA256:`, when [`HostKey::parse`] fails.
    pub fn pinned(text: &str) -> Result<Self, HostKeyError> {
        let text = text.trim();
        let Some(digest) = text.strip_prefix("SHA256:") else {
            return HostKey::parse(text).map(Self::Pinned).map_err(|error| HostKeyError { forms: ANY, ..error });
        };
        match decode_base64(digest) {
            Some(bytes) if bytes.len() == 32 => {
                Ok(Self::PinnedFingerprint(format!("SHA256:{}", digest.trim_end_matches('='))))
            }
            _ => Err(HostKeyError { text: text.to_owned(), problem: "it is not the base64 of 32 bytes", forms: ANY }),
        }
    }

    pub(super) fn verdict(&self, offered: &HostKey) -> HostKeyDecision {
        let accepted = match self {
            Self::TrustOnFirstUse => true,
            Self::PinnedFingerprint(pin) => *pin == offered.fingerprint(),
            Self::Pinned(_) | Self::AnyOf(_) => self.keys().iter().any(|key| key.same(offered)),
        };
        let expected = self.fingerprints();
        match (accepted, expected.is_empty()) {
            (true, _) => HostKeyDecision::Accepted,
            (false, true) => HostKeyDecision::Unknown,
            (false, false) => HostKeyDecision::Mismatch(expected),
        }
    }

    fn keys(&self) -> &[HostKey] {
        match self {
            Self::Pinned(key) => std::slice::from_ref(key),
            Self::AnyOf(keys) => keys,
            Self::PinnedFingerprint(_) | Self::TrustOnFirstUse => &[],
        }
    }

    /// Returns the fingerprints of the expected keys.
    pub(super) fn fingerprints(&self) -> Vec<String> {
        match self {
            Self::PinnedFingerprint(pin) => vec![pin.clone()],
            _ => self.keys().iter().map(HostKey::fingerprint).collect(),
        }
    }

    /// Returns the algorithms to request from the host, one set for each attempt. The first set has the types of all known keys, so that a host with
    /// several keys does not appear changed when its order of preference changes. If the host shows another key, each of the other types is requested
    /// alone before the key counts as changed. A fingerprint has no type, so all accepted types are requested for it.
    pub(super) fn attempts(&self) -> Vec<Vec<Algorithm>> {
        let is_known = |algorithm: &Algorithm| self.keys().iter().any(|key| key.key_type == type_of(algorithm));
        let of_known: Vec<_> = all().into_iter().filter(is_known).collect();
        let wanted = if of_known.is_empty() { all() } else { of_known };
        let each = wanted.chunk_by(|one, other| type_of(one) == type_of(other)).map(<[_]>::to_vec);
        std::iter::once(wanted.clone()).chain(each.skip(1)).collect()
    }
}

/// Returns all accepted algorithms in order of preference. RSA with SHA-1 is never accepted.
pub(super) fn all() -> Vec<Algorithm> {
    russh::Preferred::DEFAULT.key.iter().filter(|a| **a != Algorithm::Rsa { hash: None }).cloned().collect()
}

/// Returns the key type of an algorithm. For RSA, it differs from the names of the signature algorithms.
fn type_of(algorithm: &Algorithm) -> &str {
    match algorithm {
        Algorithm::Rsa { hash: None | Some(HashAlg::Sha256 | HashAlg::Sha512) } => "ssh-rsa",
        other => other.as_str(),
    }
}
