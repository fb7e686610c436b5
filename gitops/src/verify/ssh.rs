//! SSH signatures, in the format of `ssh-keygen -Y sign`.

use russh::keys::ssh_key::{Algorithm, HashAlg, PublicKey, SshSig, public::KeyData};

use super::{MIN_RSA_BITS, RejectReason, VerifyError};

/// Namespace of signatures of Git objects. Signatures for files have another namespace and are refused.
const NAMESPACE: &str = "git";

/// Parses SSH public keys, one per line. Fails on options before a key, as they would silently have no effect.
pub(super) fn keys(bytes: &[u8]) -> Result<Vec<PublicKey>, String> {
    let text = api::text::decode(bytes).map_err(|error| format!("{error}; add SSH public keys, one a line"))?;
    let mut keys = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = PublicKey::from_openssh(line).map_err(|_| {
            let mend = "write `<type> <base64>` as in a .pub file, without options or names before it";
            format!("line {}: it is not an SSH public key: {mend}", number + 1)
        })?;
        keys.push(key);
    }
    Ok(keys)
}

pub(super) fn verify(text: &[u8], data: &[u8], keys: &[PublicKey]) -> Result<String, VerifyError> {
    let signature = SshSig::from_pem(text)
        .map_err(|_| VerifyError::Malformed("it is a damaged SSH signature: sign the commit or tag again"))?;
    // The signature does not cover its version.
    if signature.version() != SshSig::VERSION {
        return Err(VerifyError::Malformed("it is an SSH signature of an unknown version: sign with ssh-keygen"));
    }
    let signer = format!("SSH {}", signature.public_key().fingerprint(HashAlg::Sha256));
    let refuse = |doubt| Err(VerifyError::Untrusted { signer: signer.clone(), doubt });
    // From here on, use the key from the Secret, not the one in the signature.
    let Some(key) = keys.iter().find(|k| k.key_data() == signature.public_key()) else {
        return refuse(RejectReason::Unknown);
    };
    if is_weak(key.key_data()) {
        return refuse(RejectReason::WeakKey);
    }
    if signature.algorithm() == (Algorithm::Rsa { hash: None }) {
        return refuse(RejectReason::WeakHash);
    }
    if signature.namespace() != NAMESPACE {
        return refuse(RejectReason::OtherUse);
    }
    if key.verify(NAMESPACE, data, &signature).is_err() {
        return refuse(RejectReason::Bad);
    }
    Ok(signer)
}

fn is_weak(key: &KeyData) -> bool {
    match key {
        KeyData::Rsa(key) => key.key_size() < u32::from(MIN_RSA_BITS),
        KeyData::Dsa(_) => true,
        _ => false,
    }
}
