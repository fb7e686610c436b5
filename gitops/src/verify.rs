//! Verification that a trusted key signed a commit or tag. No I/O, except for the clock.
//!
//! The keys come from a Secret and are trusted; the signature itself is untrusted input. No key comes from a key
//! server, and no key is trusted because the key of another owner signed it.

mod openpgp;
mod ssh;

use std::{collections::BTreeMap, time::SystemTime};

use russh::keys::ssh_key::PublicKey;

/// Maximum length of a signature text, in bytes. An RSA signature with 4096 bits takes about 1 KiB.
const MAX_SIGNATURE: usize = 64 << 10;
/// Minimum number of bits of an RSA key.
const MIN_RSA_BITS: u16 = 2048;

/// Commit or tag, split into signed data and signature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signed {
    /// Signature text as stored in the object, such as an armored OpenPGP or SSH signature. `None` if the object is not signed.
    pub signature: Option<Vec<u8>>,
    /// Signed data: the object without its signature.
    pub data: Vec<u8>,
}

/// Trusted keys.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    ssh: Vec<PublicKey>,
    openpgp: Vec<pgp::composed::SignedPublicKey>,
}

/// Reason why a signer is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// The key is not in the Secret.
    #[error(
        "this key is not in the Secret of inventory.git.verify.secretRef: add it if you trust its owner, otherwise sign with a key of the Secret"
    )]
    Unknown,
    /// The signature is for other content, or was changed.
    #[error("the signature does not match the signed content: sign it again")]
    Bad,
    /// The key was revoked.
    #[error("the key was revoked: sign with another key")]
    Revoked,
    /// The key was not valid at the time of the signature.
    #[error(
        "the key was not valid at the time of the signature: sign with another key, or extend its validity and add the new public key to the Secret"
    )]
    Expired,
    /// The signature has expired.
    #[error("the signature has expired: sign it again")]
    SignatureExpired,
    /// The signature uses a hash that can be forged.
    #[error("the signature uses a hash that can be forged: sign with SHA-256 or better")]
    WeakHash,
    /// The key is too short, or has an obsolete type.
    #[error("the key is too weak: sign with Ed25519, ECDSA, or RSA of at least 2048 bits")]
    WeakKey,
    /// No valid signature of the owner allows signing with the key.
    #[error(
        "no valid signature of its owner allows signing with the key: sign with a key that may sign, whose own signatures use SHA-256 or better"
    )]
    NotForSigning,
    /// The signature is for something other than a Git object.
    #[error("the signature is not for Git: sign the commit or tag itself")]
    OtherUse,
}

/// Reason why an object does not count as signed by a trusted key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The Secret has no keys.
    #[error(
        "the Secret of inventory.git.verify.secretRef has no public keys: add SSH public keys under a key that ends in .sshpub, or OpenPGP public \
         keys under one that ends in .asc"
    )]
    NoKeys,
    /// A key of the Secret cannot be used.
    #[error("the key {name:?} of the Secret of inventory.git.verify.secretRef cannot be used: {problem}")]
    BadKey {
        /// Key in the Secret.
        name: String,
        /// Fault and remedy.
        problem: String,
    },
    /// The object has no signature.
    #[error("it is not signed: sign it with a key that is in the Secret of inventory.git.verify.secretRef")]
    Unsigned,
    /// The signature cannot be read.
    #[error("the signature cannot be read: {0}")]
    Malformed(&'static str),
    /// The signer is not trusted.
    #[error("its signature names {signer}, but {doubt}")]
    Untrusted {
        /// Signer, as the signature claims.
        signer: String,
        /// Reason why the signer is not trusted.
        doubt: RejectReason,
    },
}

impl Keys {
    /// Parses the data of a Secret. `*.sshpub`: SSH public keys, one per line. `*.asc` and keys without a suffix: OpenPGP public keys,
    /// armored or binary. Other keys of the Secret are ignored.
    ///
    /// # Errors
    /// [`VerifyError::BadKey`] for the first value that cannot be parsed as public keys. [`VerifyError::NoKeys`] when there are
    /// none in the Secret.
    pub fn from_secret(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, VerifyError> {
        let mut keys = Self::default();
        for (name, bytes) in data {
            let bad = |problem| VerifyError::BadKey { name: name.clone(), problem };
            let is = |suffix| name.rsplit_once('.').is_some_and(|(_, s)| s == suffix);
            if is("sshpub") {
                keys.ssh.extend(ssh::keys(bytes).map_err(bad)?);
            } else if is("asc") || !name.contains('.') {
                keys.openpgp.extend(openpgp::keys(bytes).map_err(bad)?);
            }
        }
        if keys.ssh.is_empty() && keys.openpgp.is_empty() {
            return Err(VerifyError::NoKeys);
        }
        Ok(keys)
    }
}

/// Returns the signer if one of `keys` made the signature: `SSH SHA256:…`, or `OpenPGP` and the fingerprint of the key or subkey in hex. For an
/// unknown OpenPGP key, the error may have the key id instead, if the signature names only that.
///
/// # Errors
/// [`VerifyError::Unsigned`] when there is no signature. [`VerifyError::Malformed`] when it is longer than 64 KiB, cannot be
/// read, or is neither an SSH nor an OpenPGP signature. [`VerifyError::Untrusted`] when its key is not one of `keys`, or
/// there is another [`RejectReason`] about the key or the signature.
pub fn verify(signed: &Signed, keys: &Keys) -> Result<String, VerifyError> {
    verify_at(signed, keys, SystemTime::now())
}

fn verify_at(signed: &Signed, keys: &Keys, now: SystemTime) -> Result<String, VerifyError> {
    let text = signed.signature.as_deref().map(<[u8]>::trim_ascii).filter(|s| !s.is_empty());
    let text = text.ok_or(VerifyError::Unsigned)?;
    if text.len() > MAX_SIGNATURE {
        return Err(VerifyError::Malformed("it is longer than 64 KiB: sign the commit or tag again"));
    }
    if text.starts_with(b"-----BEGIN SSH SIGNATURE-----") {
        ssh::verify(text, &signed.data, &keys.ssh)
    } else if text.starts_with(b"-----BEGIN PGP SIGNATURE-----") {
        openpgp::verify(text, &signed.data, &keys.openpgp, now)
    } else if text.starts_with(b"-----BEGIN SIGNED MESSAGE-----") {
        Err(VerifyError::Malformed("X.509 signatures are not supported: sign with an SSH or OpenPGP key"))
    } else {
        Err(VerifyError::Malformed("it is neither an SSH nor an OpenPGP signature: sign with one of them"))
    }
}

#[cfg(test)]
#[path = "verify/tests.rs"]
mod tests;
