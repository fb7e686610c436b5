//! Digest of an artifact, such as `sha256:<hex>`.

use std::{
    fmt,
    io::{self, Read},
    str::FromStr,
};

use ring::digest::{Algorithm, Context, SHA256, SHA384, SHA512};

/// Names of the supported hash algorithms.
const ALGORITHMS: [(&str, &Algorithm); 3] = [("sha256", &SHA256), ("sha384", &SHA384), ("sha512", &SHA512)];

/// Reason why a digest cannot be checked, or does not match.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// Text that is not `<algorithm>:<hex>`.
    #[error(
        "{0:?} is not a digest such as sha256:<64 hex digits>: check the controller that writes the status of the source"
    )]
    Malformed(String),
    /// Unsupported hash algorithm.
    #[error(
        "the digest of the artifact has the algorithm {0:?}, and only sha256, sha384 and sha512 are supported: set the controller of the source to sha256 (Flux: start \
         source-controller with --artifact-digest-algo=sha256)"
    )]
    Unsupported(String),
    /// Bytes with another digest.
    #[error("the digest is not {0}")]
    Mismatch(Digest),
}

/// Hash that the bytes of an artifact must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    name: &'static str,
    algorithm: &'static Algorithm,
    bytes: Vec<u8>,
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let malformed = || DigestError::Malformed(text.chars().take(160).collect());
        let (wanted, digits) = text.split_once(':').ok_or_else(malformed)?;
        let unsupported = || DigestError::Unsupported(wanted.chars().take(32).collect());
        let (name, algorithm) = ALGORITHMS.into_iter().find(|(name, _)| *name == wanted).ok_or_else(unsupported)?;
        let is_whole = |bytes: &Vec<u8>| bytes.len() == algorithm.output_len();
        let bytes = hex::decode(digits).ok().filter(is_whole).ok_or_else(malformed)?;
        Ok(Self { name, algorithm, bytes })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, hex::encode(&self.bytes))
    }
}

impl Digest {
    /// Returns a reader that fails at the end of `inner` if the bytes do not have this digest. The caller must not use bytes before the end.
    pub fn check<R: Read>(self, inner: R) -> Checked<R> {
        Checked { inner, hash: Context::new(self.algorithm), digest: self }
    }
}

/// Reader that verifies the digest at its end; see [`Digest::check`].
pub struct Checked<R> {
    inner: R,
    hash: Context,
    digest: Digest,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        if read > 0 || buffer.is_empty() {
            return Ok(read);
        }
        // Callers may read again after the end.
        if self.hash.clone().finish().as_ref() == self.digest.bytes {
            Ok(0)
        } else {
            Err(io::Error::other(DigestError::Mismatch(self.digest.clone())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn digests_are_checked() {
        for text in [
            ABC,
            "sha384:cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7",
            "sha512:ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        ] {
            let digest: Digest = text.parse().unwrap();
            assert_eq!(digest.to_string(), text);
            let read = |bytes: &[u8]| io::copy(&mut digest.clone().check(bytes), &mut io::sink());
            assert_eq!(read(b"abc").unwrap(), 3);
            assert!(read(b"abcd").is_err() && read(b"ab").is_err() && read(b"").is_err());
        }
    }

    #[test]
    fn other_digests_are_refused() {
        for (text, part) in [
            ("blake3:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85", "\"blake3\""),
            ("sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709", "\"sha1\""),
            ("sha256:abc", "is not a digest"),
            ("sha256:", "is not a digest"),
            ("abc", "is not a digest"),
            ("", "is not a digest"),
        ] {
            let error = text.parse::<Digest>().unwrap_err();
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(sha256:)?\\PC{0,80}") {
            if let Ok(digest) = text.parse::<Digest>() {
                prop_assert_eq!(digest.to_string(), text.to_lowercase());
            }
        }
    }
}
