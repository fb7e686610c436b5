//! Private keys for log-in.

use std::{fmt, sync::Arc};

use russh::keys::{Algorithm, HashAlg, PrivateKey};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::HostKey;

/// Maximum size of a private key in bytes. Keys are smaller, but a Secret may hold up to 1 MiB of any data.
const MAX_PEM: usize = 64 * 1024;

/// Minimum length of an RSA key in bits. Shorter keys can be broken.
const MIN_RSA_BITS: usize = 2048;

/// Error for an unusable private key. `name` is the name of the key for users (Secret and key). Key material is never quoted.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The key is empty.
    #[error("{name} is empty: store an SSH private key without a passphrase there")]
    Empty {
        /// Name of the key for users.
        name: String,
    },
    /// The key is protected by a passphrase, which the operator does not have.
    #[error("{name} is protected by a passphrase: store a copy without one (ssh-keygen -p -N '' -f COPY)")]
    Encrypted {
        /// Name of the key for users.
        name: String,
    },
    /// The text is not a private key, or has an unknown format.
    #[error("{name} is not a usable SSH private key: {problem}")]
    Unusable {
        /// Name of the key for users.
        name: String,
        /// Fault and remedy.
        problem: &'static str,
        /// Error of the parser.
        #[source]
        source: Option<russh::keys::Error>,
    },
}

/// Private key with its name for users. Wiped from memory when dropped.
pub struct Identity {
    name: String,
    key: Arc<PrivateKey>,
    public: HostKey,
}

impl Identity {
    /// Parses a private key in OpenSSH, PKCS#1, PKCS#8 or SEC1 format (PEM). `name` appears in error messages.
    ///
    /// # Errors
    /// [`KeyError::Empty`] when `pem` is blank. [`KeyError::Encrypted`] when the key has a passphrase. [`KeyError::Unusable`] when `pem` is larger
    /// than 64 KiB, is not a private key in one of these formats, or its type is not Ed25519, ECDSA or RSA.
    pub fn from_pem(name: &str, pem: &[u8]) -> Result<Self, KeyError> {
        let unusable = |problem, source| KeyError::Unusable { name: name.to_owned(), problem, source };
        if pem.len() > MAX_PEM {
            return Err(unusable("it is larger than 64 KiB: store only the private key there", None));
        }
        let text = api::text::decode(pem)
            .map_err(|_| unusable("it is not PEM text (-----BEGIN …): save it in UTF-8", None))?;
        let text = Zeroizing::new(text.into_owned());
        // The parser requires the markers alone on their lines, but Secrets made on Windows have carriage returns.
        let mut lines = Zeroizing::new(String::with_capacity(text.len() + 1));
        for line in text.lines().map(str::trim) {
            lines.push_str(line);
            lines.push('\n');
        }
        let text = lines.trim();
        if text.is_empty() {
            return Err(KeyError::Empty { name: name.to_owned() });
        }
        if text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || text.contains("Proc-Type: 4,ENCRYPTED") {
            return Err(KeyError::Encrypted { name: name.to_owned() });
        }
        if text.starts_with("PuTTY-User-Key-File-") {
            return Err(unusable("it is in the format of PuTTY: export it as an OpenSSH key with puttygen", None));
        }
        if !text.contains("PRIVATE KEY-----") {
            let public = text.starts_with("ssh-") || text.starts_with("ecdsa-") || text.contains("PUBLIC KEY-----");
            return Err(unusable(
                if public {
                    "it is a public key: store the private one"
                } else {
                    "it is not in PEM form (-----BEGIN …): store an OpenSSH private key there"
                },
                None,
            ));
        }
        let key = russh::keys::decode_secret_key(text, None).map_err(|error| match error {
            russh::keys::Error::KeyIsEncrypted => KeyError::Encrypted { name: name.to_owned() },
            error => {
                unusable("it cannot be parsed: store an unencrypted Ed25519, ECDSA or RSA key in PEM form", Some(error))
            }
        })?;
        if !matches!(key.algorithm(), Algorithm::Ed25519 | Algorithm::Ecdsa { .. } | Algorithm::Rsa { .. }) {
            return Err(unusable("its type is not supported: use Ed25519, ECDSA or RSA", None));
        }
        let public = HostKey::of(key.public_key())
            .ok_or_else(|| unusable("its public half cannot be encoded: use another key", None))?;
        Ok(Self { name: name.to_owned(), key: Arc::new(key), public })
    }

    /// Returns the name of the key for users.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the fingerprint of the public key, `SHA256:…`.
    pub fn fingerprint(&self) -> String {
        self.public.fingerprint()
    }

    /// Returns the type and the base64 of the public key.
    pub fn public_key(&self) -> (&str, &str) {
        (&self.public.key_type, &self.public.public_key_base64)
    }

    /// Returns the value of the `pub-key-hash` annotation: lower-case hex SHA-256 of [`Self::authorized_key`].
    pub fn public_key_hash(&self) -> String {
        hex::encode(Sha256::digest(self.authorized_key()))
    }

    /// Returns the line for `authorized_keys` of a host: `type base64`, without comment and newline.
    pub fn authorized_key(&self) -> String {
        format!("{} {}", self.public.key_type, self.public.public_key_base64)
    }

    /// Returns the key with the hash for RSA signatures. Other key types ignore the hash.
    pub(super) fn signing(&self, rsa_hash: HashAlg) -> russh::keys::PrivateKeyWithHashAlg {
        russh::keys::PrivateKeyWithHashAlg::new(Arc::clone(&self.key), Some(rsa_hash))
    }

    /// Returns a warning for a key that is too weak. The key is still used.
    pub fn weakness(&self) -> Option<String> {
        let n = self.key.public_key().key_data().rsa()?.n();
        // Number of bits without leading zeros and without the sign byte.
        let bits = n.as_positive_bytes().map_or(0, |bytes| {
            let first = bytes.first().copied().unwrap_or_default();
            (bytes.len() * 8).saturating_sub(first.leading_zeros() as usize)
        });
        (bits < MIN_RSA_BITS).then(|| {
            format!(
                "the RSA key in {} has {bits} bits, fewer than {MIN_RSA_BITS}: replace it, preferably with an Ed25519 key",
                self.name
            )
        })
    }

    pub(super) fn is_rsa(&self) -> bool {
        matches!(self.key.algorithm(), Algorithm::Rsa { .. })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.fingerprint()).finish()
    }
}
