//! Certificates for `/metrics`: those that the operator makes, and those in files.

use std::{io, path::Path, sync::Arc, time::Duration};

use api::{Reason, names::METRICS_SERVICE};
use jiff::Timestamp;
use parking_lot::RwLock;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

/// Clocks of others may be so much behind.
const SKEW: Duration = Duration::from_mins(5);

/// A certificate cannot be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    /// A file is there and cannot be read.
    #[error("{file}: {source}; check the volume at --metrics-tls-directory")]
    File {
        /// Its name.
        file: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{file}: {problem}; replace the Secret of the volume at --metrics-tls-directory")]
    Invalid {
        /// Its name.
        file: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// None can be made.
    #[error("no certificate for metrics can be made: {0}")]
    Make(String),
}

impl CertificateError {
    /// Reason for the log.
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::File { .. } | Self::Invalid { .. } => Reason::CertificateInvalid,
            Self::Make(_) => Reason::InternalError,
        }
    }
}

/// The certificate that new connections get.
#[derive(Debug, Default)]
pub(super) struct Served(RwLock<Option<Arc<CertifiedKey>>>);

impl Served {
    pub(super) fn swap(&self, key: Arc<CertifiedKey>) {
        *self.0.write() = Some(key);
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

/// A certificate with an authority of its own, whose key is forgotten as soon as it has signed.
#[derive(Clone)]
pub(super) struct Pair {
    /// When it was made.
    pub made: Timestamp,
    /// The authority, in PEM.
    pub authority: String,
    /// Certificate and key.
    pub key: Arc<CertifiedKey>,
}

impl Pair {
    /// Makes one for the Service of the metrics in this namespace.
    pub(super) fn make(
        namespace: &str,
        domain: &str,
        made: Timestamp,
        lifetime: Duration,
    ) -> Result<Self, CertificateError> {
        Self::try_make(namespace, domain, made, lifetime).map_err(|error| CertificateError::Make(error.to_string()))
    }

    fn try_make(namespace: &str, domain: &str, made: Timestamp, lifetime: Duration) -> anyhow::Result<Self> {
        let service = format!("{METRICS_SERVICE}.{namespace}");
        let mut params = CertificateParams::new(Vec::new())?;
        // Each has a name of its own: by the name a verifier finds the authority among several.
        params.distinguished_name = named(&format!("{service} {:08x}", rand::random::<u32>()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        limit(&mut params, made, lifetime);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;

        let names =
            [METRICS_SERVICE.to_owned(), service.clone(), format!("{service}.svc"), format!("{service}.svc.{domain}")];
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = named(METRICS_SERVICE);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        limit(&mut params, made, lifetime);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        let key = CertifiedKey::from_der(vec![certificate.der().clone()], key, &ring::default_provider())?;
        Ok(Self { made, authority: authority.pem(), key: Arc::new(key) })
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut of = DistinguishedName::new();
    of.push(DnType::CommonName, name);
    of
}

/// Sets the time in which a certificate is valid.
fn limit(params: &mut CertificateParams, made: Timestamp, lifetime: Duration) {
    let since_epoch = Duration::from_secs(u64::try_from(made.as_second()).unwrap_or_default());
    let made = rcgen::date_time_ymd(1970, 1, 1) + since_epoch;
    (params.not_before, params.not_after) = (made - SKEW, made + lifetime);
}

/// Certificate and key in a directory, as text.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Files {
    certificate: Vec<u8>,
    key: zeroize::Zeroizing<Vec<u8>>,
}

impl Files {
    /// Reads them. `None` if they are not there.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>, CertificateError> {
        let read = |file: &'static str| match std::fs::read(directory.join(file)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(CertificateError::File { file, source }),
        };
        let (Some(certificate), Some(key)) = (read("tls.crt")?, read("tls.key")?) else { return Ok(None) };
        Ok(Some(Self { certificate, key: key.into() }))
    }

    /// What is served of them.
    pub(super) fn parse(&self) -> Result<CertifiedKey, CertificateError> {
        let invalid = |file, problem: &dyn ToString| CertificateError::Invalid { file, problem: problem.to_string() };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<_, _>>()
            .map_err(|error| invalid("tls.crt", &error))?;
        if chain.is_empty() {
            return Err(invalid("tls.crt", &"it holds no certificate in PEM form"));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| invalid("tls.key", &"it holds no private key in PEM form without a passphrase"))?;
        CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| invalid("tls.key", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_served_when_they_fit_each_other() {
        let authority = testbed::pki::Authority::new("test").unwrap();
        let [one, other] = ["one", "other"].map(|name| authority.server(name, &[], &[name]).unwrap());
        for (about, certificate, key, problem) in [
            ("they fit", Some(&one.certificate), Some(&one.key), None),
            ("the key of another", Some(&one.certificate), Some(&other.key), Some("tls.key")),
            ("no certificate", Some(&one.key), Some(&one.key), Some("tls.crt")),
            ("no key", Some(&one.certificate), Some(&one.certificate), Some("tls.key")),
        ] {
            let directory = tempfile::tempdir().unwrap();
            for (file, text) in [("tls.crt", certificate), ("tls.key", key)] {
                std::fs::write(directory.path().join(file), text.unwrap()).unwrap();
            }
            let parsed = Files::read(directory.path()).unwrap().unwrap().parse();
            match (parsed, problem) {
                (Ok(_), None) => {}
                (Err(CertificateError::Invalid { file, .. }), Some(expected)) => assert_eq!(file, expected, "{about}"),
                (other, _) => panic!("{about}: {:?}", other.map(|_| ()).map_err(|error| error.to_string())),
            }
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(Files::read(empty.path()).unwrap().is_none());
        std::fs::write(empty.path().join("tls.crt"), &one.certificate).unwrap();
        assert!(Files::read(empty.path()).unwrap().is_none(), "half of them is none");
    }

    #[test]
    fn no_error_shows_a_key() {
        let key = testbed::pki::Authority::new("test").unwrap().server("a", &[], &[]).unwrap().key;
        let files = Files { certificate: key.clone().into_bytes(), key: key.clone().into_bytes().into() };
        let error = files.parse().unwrap_err().to_string();
        assert!(!error.contains(key.lines().nth(1).unwrap()), "{error}");
    }
}
