//! OpenPGP signatures, as GnuPG makes them.
//!
//! The owner of a key declares its uses and its expiry in signatures by the primary key. Each of these is verified, with the same requirements
//! for its hash, before it is used. A revocation applies whatever its reason and date, because an attacker who has the key can backdate signatures.

use std::time::{Duration, SystemTime};

use pgp::{
    composed::{Deserializable as _, DetachedSignature, SignedPublicKey, SignedPublicSubKey},
    crypto::hash::HashAlgorithm,
    packet::{Signature, SignatureType, SubpacketData},
    ser::Serialize as _,
    types::{KeyDetails, PublicParams, Tag},
};

use super::{MIN_RSA_BITS, RejectReason, VerifyError};

const ARMOR: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";

/// Parses one or several OpenPGP certificates, binary or in one or several armored blocks.
pub(super) fn keys(bytes: &[u8]) -> Result<Vec<SignedPublicKey>, String> {
    let bad = "it is not an OpenPGP public key: add the output of `gpg --export --armor`";
    let armored = api::text::decode(bytes).ok().filter(|text| text.contains(ARMOR));
    let mut keys = Vec::new();
    match &armored {
        Some(text) => {
            for rest in text.split(ARMOR).skip(1) {
                let block = format!("{ARMOR}{rest}");
                let (found, _) = SignedPublicKey::from_armor_many(block.as_bytes()).map_err(|_| bad)?;
                for key in found {
                    keys.push(key.map_err(|_| bad)?);
                }
            }
        }
        None => {
            for key in SignedPublicKey::from_bytes_many(bytes).map_err(|_| bad)? {
                keys.push(key.map_err(|_| bad)?);
            }
        }
    }
    if keys.is_empty() { Err(bad.into()) } else { Ok(keys) }
}

pub(super) fn verify(
    text: &[u8],
    data: &[u8],
    keys: &[SignedPublicKey],
    now: SystemTime,
) -> Result<String, VerifyError> {
    let damaged = |_| VerifyError::Malformed("it is a damaged OpenPGP signature: sign the commit or tag again");
    let (found, _) = DetachedSignature::from_armor_many(text).map_err(damaged)?;
    let found: Vec<_> = found.take(2).collect::<Result<_, _>>().map_err(damaged)?;
    let [DetachedSignature { signature }] = found.as_slice() else {
        return Err(VerifyError::Malformed(
            "it is not exactly one OpenPGP signature: sign the commit or tag again, with one key",
        ));
    };
    let Some(fingerprint) = issuer(signature) else {
        return Err(VerifyError::Malformed("it does not name its key: sign the commit or tag again with GnuPG"));
    };
    let key = keys.iter().find_map(|key| SigningKey::find(key, signature));
    let signer = format!("OpenPGP {}", key.map_or(fingerprint, |key| key.fingerprint()));
    match key.ok_or(RejectReason::Unknown).and_then(|key| key.check_trust(signature, data, now)) {
        Ok(()) => Ok(signer),
        Err(doubt) => Err(VerifyError::Untrusted { signer, doubt }),
    }
}

/// Returns the fingerprint or key id that a signature names.
fn issuer(signature: &Signature) -> Option<String> {
    let fingerprint = signature.issuer_fingerprint().first().map(|f| format!("{f:x}"));
    fingerprint.or_else(|| signature.issuer_key_id().first().map(hex::encode))
}

/// Key that a signature names: a primary key, or a subkey with its primary key.
#[derive(Clone, Copy)]
struct SigningKey<'a> {
    owner: &'a SignedPublicKey,
    subkey: Option<&'a SignedPublicSubKey>,
}

impl<'a> SigningKey<'a> {
    fn find(owner: &'a SignedPublicKey, signature: &Signature) -> Option<Self> {
        let is = |key: &dyn KeyDetails| {
            let fingerprints = signature.issuer_fingerprint();
            // An attacker can create a key with the key id of another key: the key id is used only if the signature has no fingerprint.
            if fingerprints.is_empty() {
                signature.issuer_key_id().contains(&&key.legacy_key_id())
            } else {
                fingerprints.contains(&&key.fingerprint())
            }
        };
        if is(&owner.primary_key) {
            return Some(Self { owner, subkey: None });
        }
        owner.public_subkeys.iter().find(|s| is(&s.key)).map(|subkey| Self { owner, subkey: Some(subkey) })
    }

    fn fingerprint(&self) -> String {
        match self.subkey {
            Some(subkey) => format!("{:x}", subkey.key.fingerprint()),
            None => format!("{:x}", self.owner.primary_key.fingerprint()),
        }
    }

    /// Fails if the signature of the data by this key is not trusted.
    fn check_trust(&self, signature: &Signature, data: &[u8], now: SystemTime) -> Result<(), RejectReason> {
        if !is_strong(signature) {
            return Err(RejectReason::WeakHash);
        }
        // A text signature also matches data with other line ends.
        if signature.typ() != Some(SignatureType::Binary) {
            return Err(RejectReason::OtherUse);
        }
        let is_signed = match self.subkey {
            None => signature.verify(&self.owner.primary_key, data),
            Some(subkey) => signature.verify(&subkey.key, data),
        };
        is_signed.map_err(|_| RejectReason::Bad)?;
        let at: SystemTime = signature.created().ok_or(RejectReason::Bad)?.into();
        self.check_primary(at)?;
        if let Some(subkey) = self.subkey {
            self.check_subkey(subkey, at)?;
        }
        match lasts(signature.signature_expiration_time().map(pgp::types::Duration::as_secs)) {
            Some(life) if at + life <= now => Err(RejectReason::SignatureExpired),
            _ => Ok(()),
        }
    }

    fn check_primary(&self, at: SystemTime) -> Result<(), RejectReason> {
        let (primary, details) = (&self.owner.primary_key, &self.owner.details);
        if is_weak(primary) {
            return Err(RejectReason::WeakKey);
        }
        if details.revocation_signatures.iter().any(|s| s.verify_key(primary).is_ok()) {
            return Err(RejectReason::Revoked);
        }
        // Signatures of the owner about the key: over the key itself, or over a user id that is not revoked.
        let mut own: Vec<&Signature> = details
            .direct_signatures
            .iter()
            .filter(|s| s.typ() == Some(SignatureType::Key) && is_strong(s) && s.verify_key(primary).is_ok())
            .collect();
        for user in &details.users {
            let is_own = |s: &&Signature| s.verify_certification(primary, Tag::UserId, &user.id).is_ok();
            let is_revoked = |s: &Signature| s.typ() == Some(SignatureType::CertRevocation);
            if !user.signatures.iter().filter(|s| is_revoked(s)).any(|s| is_own(&s)) {
                own.extend(user.signatures.iter().filter(|s| !is_revoked(s) && is_strong(s)).filter(is_own));
            }
        }
        let newest = own.into_iter().max_by_key(|s| s.created()).ok_or(RejectReason::NotForSigning)?;
        check_life(primary, newest, at)?;
        // A key without usage flags may be used for everything, as in OpenPGP versions without flags.
        if self.subkey.is_none() && has_key_flags(newest) && !newest.key_flags().sign() {
            return Err(RejectReason::NotForSigning);
        }
        Ok(())
    }

    fn check_subkey(&self, subkey: &SignedPublicSubKey, at: SystemTime) -> Result<(), RejectReason> {
        let primary = &self.owner.primary_key;
        if is_weak(&subkey.key) {
            return Err(RejectReason::WeakKey);
        }
        let is_of = |s: &&Signature, typ| s.typ() == Some(typ) && s.verify_subkey_binding(primary, &subkey.key).is_ok();
        if subkey.signatures.iter().any(|s| is_of(&s, SignatureType::SubkeyRevocation)) {
            return Err(RejectReason::Revoked);
        }
        let bindings = subkey.signatures.iter().filter(|s| is_strong(s) && is_of(s, SignatureType::SubkeyBinding));
        let newest = bindings.max_by_key(|s| s.created()).ok_or(RejectReason::NotForSigning)?;
        // Without the subkey's own signature, an attacker could claim another owner's subkey.
        let agrees = newest
            .embedded_signature()
            .is_some_and(|s| is_strong(s) && s.verify_primary_key_binding(&subkey.key, primary).is_ok());
        if !agrees || !newest.key_flags().sign() {
            return Err(RejectReason::NotForSigning);
        }
        check_life(&subkey.key, newest, at)
    }
}

/// Fails if the key was not valid at a time, according to a signature by its owner.
fn check_life(key: &impl KeyDetails, says: &Signature, at: SystemTime) -> Result<(), RejectReason> {
    let begin: SystemTime = key.created_at().into();
    let life = lasts(says.key_expiration_time().map(pgp::types::Duration::as_secs));
    if at < begin || life.is_some_and(|life| begin + life <= at) { Err(RejectReason::Expired) } else { Ok(()) }
}

/// Returns the lifetime of a key or signature. `None` and 0 seconds both mean no expiry.
fn lasts(seconds: Option<u32>) -> Option<Duration> {
    seconds.filter(|s| *s != 0).map(|s| Duration::from_secs(s.into()))
}

fn has_key_flags(signature: &Signature) -> bool {
    let Some(config) = signature.config() else { return false };
    config.hashed_subpackets().any(|s| matches!(s.data, SubpacketData::KeyFlags(_)))
}

fn is_strong(signature: &Signature) -> bool {
    use HashAlgorithm::{Sha3_256, Sha3_512, Sha256, Sha384, Sha512};
    matches!(signature.hash_alg(), Some(Sha256 | Sha384 | Sha512 | Sha3_256 | Sha3_512))
}

fn is_weak(key: &impl KeyDetails) -> bool {
    match key.public_params() {
        // The serialized form begins with the size of the modulus in bits.
        PublicParams::RSA(rsa) => match rsa.to_bytes().as_deref() {
            Ok([high, low, ..]) => u16::from_be_bytes([*high, *low]) < MIN_RSA_BITS,
            _ => true,
        },
        PublicParams::ECDSA(_) | PublicParams::EdDSALegacy(_) | PublicParams::Ed25519(_) | PublicParams::Ed448(_) => {
            false
        }
        _ => true,
    }
}
