//! Serving certificate of `/metrics`: from mounted files, or else self-signed by this process.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use api::{Reason, names::METRICS_SERVICE};
use parking_lot::Mutex;
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

/// Error for mounted files that cannot be used.
#[derive(Debug, thiserror::Error)]
enum CertificateError {
    /// A file exists, but cannot be read.
    #[error("{file}: {source}; check the volume at --metrics-tls-directory")]
    File {
        /// Name of the file.
        file: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// A file is not valid.
    #[error("{file}: {problem}; replace the Secret of the volume at --metrics-tls-directory")]
    Invalid {
        /// Name of the file.
        file: &'static str,
        /// Fault of the file.
        problem: String,
    },
}

/// Resolver of the certificate for new connections. It reads the mounted files for each connection, so that a changed Secret needs neither a watch
/// nor a restart.
#[derive(Debug)]
pub(super) struct Served {
    directory: PathBuf,
    own: Arc<CertifiedKey>,
    mounted: Mutex<Mounted>,
}

/// Mounted files in use, and the last reported fault.
#[derive(Debug, Default)]
struct Mounted {
    served: Option<(Files, Arc<CertifiedKey>)>,
    /// Fault that was reported, so that it is logged once while it lasts.
    reported: String,
}

impl Served {
    /// Creates the resolver for a directory. While the directory has no certificate, a self-signed certificate for the metrics Service in `namespace`
    /// is served.
    ///
    /// # Errors
    /// Fails when no key can be generated.
    pub(super) fn new(directory: &Path, namespace: &str) -> anyhow::Result<Self> {
        Ok(Self { directory: directory.to_owned(), own: Arc::new(self_signed(namespace)?), mounted: Mutex::default() })
    }

    /// Returns the certificate for a new connection. Unusable files leave the earlier certificate in place.
    fn now(&self) -> Arc<CertifiedKey> {
        let mut mounted = self.mounted.lock();
        let problem = mounted.update(&self.directory).err().map(|error| error.to_string()).unwrap_or_default();
        if !problem.is_empty() && mounted.reported != problem {
            tracing::warn!(
                reason = Reason::CertificateInvalid.as_str(),
                "the certificate for metrics cannot be used, so /metrics keeps the earlier one: {problem}"
            );
        }
        mounted.reported = problem;
        mounted.served.as_ref().map_or_else(|| self.own.clone(), |(_, key)| key.clone())
    }
}

impl Mounted {
    /// Reads the files of the directory, and parses them if they have changed.
    fn update(&mut self, directory: &Path) -> Result<(), CertificateError> {
        let Some(files) = Files::read(directory)? else {
            if self.served.take().is_some() {
                tracing::info!(directory = %directory.display(), "tls.crt or tls.key is gone: /metrics is served with a self-signed certificate, which clients cannot verify");
            }
            return Ok(());
        };
        if self.served.as_ref().is_none_or(|(served, _)| *served != files) {
            let key = files.parse()?;
            tracing::info!(directory = %directory.display(), "/metrics is served with the certificate of the directory");
            self.served = Some((files, Arc::new(key)));
        }
        Ok(())
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }
}

/// Returns a certificate for the lifetime of this process, which no client can verify.
fn self_signed(namespace: &str) -> anyhow::Result<CertifiedKey> {
    let pair = rcgen::generate_simple_self_signed([format!("{METRICS_SERVICE}.{namespace}.svc")])?;
    let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    Ok(CertifiedKey::from_der(vec![pair.cert.der().clone()], key, &ring::default_provider())?)
}

/// Certificate and key of a directory in PEM.
#[derive(Clone, PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: zeroize::Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").finish_non_exhaustive()
    }
}

impl Files {
    /// Reads the files of a directory. Returns `None` unless both exist.
    fn read(directory: &Path) -> Result<Option<Self>, CertificateError> {
        let read = |file: &'static str| match std::fs::read(directory.join(file)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(CertificateError::File { file, source }),
        };
        let (Some(certificate), Some(key)) = (read("tls.crt")?, read("tls.key")?) else { return Ok(None) };
        Ok(Some(Self { certificate, key: key.into() }))
    }

    /// Parses the certificate and the key, which must match.
    fn parse(&self) -> Result<CertifiedKey, CertificateError> {
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
    fn each_connection_gets_the_current_certificate() {
        let authority = testbed::pki::Authority::new("test").unwrap();
        let [one, other] = ["one", "other"].map(|name| authority.server(name, &[], &[name]).unwrap());
        let directory = tempfile::tempdir().unwrap();
        let served = Served::new(directory.path(), "ns").unwrap();
        let own = served.own.cert[0].clone();
        let [of_one, of_other] =
            [&one, &other].map(|of| CertificateDer::from_pem_slice(of.certificate.as_bytes()).unwrap());
        let secret = one.key.lines().nth(1).unwrap();
        for (about, certificate, key, expected, fault) in [
            ("no files", None, None, &own, None),
            ("half of them is none", Some(&one.certificate), None, &own, None),
            ("no key", Some(&one.certificate), Some(&one.certificate), &own, Some("tls.key: ")),
            ("both", Some(&one.certificate), Some(&one.key), &of_one, None),
            ("again", Some(&one.certificate), Some(&one.key), &of_one, None),
            ("the key of another", Some(&other.certificate), Some(&one.key), &of_one, Some("tls.key: ")),
            ("no certificate", Some(&one.key), Some(&one.key), &of_one, Some("tls.crt: ")),
            ("others", Some(&other.certificate), Some(&other.key), &of_other, None),
            ("gone", None, None, &own, None),
        ] {
            for (file, text) in [("tls.crt", certificate), ("tls.key", key)] {
                let path = directory.path().join(file);
                match text {
                    Some(text) => std::fs::write(path, text).unwrap(),
                    None => drop(std::fs::remove_file(path)),
                }
            }
            assert_eq!(&served.now().cert[0], expected, "{about}");
            let reported = served.mounted.lock().reported.clone();
            assert_eq!(reported.starts_with(fault.unwrap_or("a fault")), fault.is_some(), "{about}: {reported}");
            assert!(!reported.contains(secret) && !format!("{served:?}").contains(secret), "{about}: a key is shown");
        }
    }
}
