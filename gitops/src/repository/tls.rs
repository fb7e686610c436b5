//! Trusted authorities and client certificates for https.

use std::{error::Error, io, sync::Arc};

use rustls::{AlertDescription, ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::{Access, AccessError, GitError};

/// Returns the TLS configuration. It always uses ring, not the default provider of the process.
pub(super) fn config(access: &Access) -> Result<ClientConfig, GitError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| GitError::Failed { host: "TLS".to_owned(), problem: error.to_string() })?
        .with_root_certificates(roots(access.authority.as_deref())?);
    let Some((certificates, key)) = &access.client_certificate else { return Ok(builder.with_no_client_auth()) };
    let unusable = |key, problem| AccessError::Unusable { key, problem };
    let chain = certificates_of(certificates).filter(|chain| !chain.is_empty());
    let chain = chain.ok_or(unusable(
        "tls.crt",
        "it has no certificate in PEM form, or one that cannot be read: store the certificate and its chain in PEM form",
    ))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        unusable(
            "tls.key",
            "it has no private key in PEM form, or one with a passphrase: store a key in PEM form without a passphrase",
        )
    })?;
    let config = builder.with_client_auth_cert(chain, key);
    Ok(config.map_err(|_| {
        unusable(
            "tls.key",
            "it is not the key of the certificate in tls.crt, or its kind is not supported: use RSA, ECDSA or Ed25519",
        )
    })?)
}

fn roots(authority: Option<&[u8]>) -> Result<RootCertStore, GitError> {
    let mut roots = RootCertStore::empty();
    let Some(pem) = authority else {
        // Certificates of the system's bundle that cannot be parsed are skipped.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let unusable = AccessError::Unusable {
        key: "ca.crt",
        problem: "it has no certificate in PEM form, or one that is not valid: store the certificate of the authority in PEM form",
    };
    for certificate in certificates_of(pem).ok_or_else(|| unusable.clone())? {
        roots.add(certificate).map_err(|_| unusable.clone())?;
    }
    if roots.is_empty() { Err(unusable.into()) } else { Ok(roots) }
}

fn certificates_of(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()
}

/// Returns the TLS fault with a remedy, if the error comes from TLS.
pub(super) fn problem(error: &(dyn Error + 'static)) -> Option<String> {
    let tls = find(error)?;
    let advice = match tls {
        rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer) => {
            "no trusted authority has signed its certificate: add the certificate of the authority to ca.crt of the Secret in inventory.git.secretRef"
        }
        rustls::Error::InvalidCertificate(
            rustls::CertificateError::NotValidForName | rustls::CertificateError::NotValidForNameContext { .. },
        ) => "its certificate is not valid for this host: correct the URL, or replace the certificate",
        rustls::Error::InvalidCertificate(_) => {
            "its certificate is not valid: replace it, or correct the clock of the operator's node"
        }
        rustls::Error::AlertReceived(alert) if is_about_client(*alert) => {
            "it rejects the client certificate, or requires one: check tls.crt and tls.key of the Secret"
        }
        _ => "the TLS handshake failed: check that the URL names an https server with TLS 1.2 or 1.3",
    };
    Some(format!("{advice} ({})", super::error::excerpt(&tls.to_string())))
}

/// Reports whether a server sends this alert because of the client's certificate.
fn is_about_client(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
    )
}

/// Finds the error of rustls in a chain: I/O errors may wrap it without naming it as their source.
fn find<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(tls);
        }
        if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref)
            && let Some(tls) = find(inner)
        {
            return Some(tls);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use rustls::{AlertDescription, CertificateError, Error};

    use super::problem;

    #[test]
    fn each_fault_of_a_handshake_has_its_own_remedy() {
        for (error, part) in [
            (
                Error::InvalidCertificate(CertificateError::UnknownIssuer),
                "no trusted authority has signed its certificate",
            ),
            (Error::InvalidCertificate(CertificateError::NotValidForName), "not valid for this host: correct the URL"),
            (Error::InvalidCertificate(CertificateError::Expired), "its certificate is not valid: replace it"),
            (Error::AlertReceived(AlertDescription::CertificateRequired), "check tls.crt and tls.key"),
            (Error::AlertReceived(AlertDescription::UnknownCA), "check tls.crt and tls.key"),
            (Error::AlertReceived(AlertDescription::HandshakeFailure), "the TLS handshake failed"),
            (Error::AlertReceived(AlertDescription::ProtocolVersion), "the TLS handshake failed"),
        ] {
            let words = problem(&error).unwrap_or_default();
            assert!(words.starts_with(part) || words.contains(part), "{part}: {words}");
        }
        assert_eq!(problem(&std::io::Error::other("no TLS")), None);
    }
}
