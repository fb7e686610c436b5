//! Certificate authorities for tests, the certificates that they sign, and keys for tokens.

use std::{
    fmt,
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Result, bail};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::{RootCertStore, ServerConfig, crypto::ring, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

/// Certificate and its private key, both in PEM (the key in PKCS #8).
#[derive(Clone)]
pub struct Identity {
    /// PEM block `CERTIFICATE`.
    pub certificate: String,
    /// PEM block `PRIVATE KEY`.
    pub key: String,
}

/// Certificate authority with an ECDSA P-256 key.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority") // without its key
    }
}

impl Authority {
    /// Creates a new authority.
    ///
    /// # Errors
    /// Fails when no key or certificate can be made.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = distinguished_name(name, &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    /// Returns the certificate and the key of the authority itself.
    pub fn identity(&self) -> Identity {
        Identity { certificate: self.issuer.pem(), key: self.issuer.key().serialize_pem() }
    }

    /// Returns a client certificate for a Kubernetes user (common name) in up to two groups (organizations).
    ///
    /// # Errors
    /// Fails when there are more than two groups, or no key or certificate can be made.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<Identity> {
        self.sign(client_params(user, groups)?)
    }

    /// Returns a client certificate as [`Authority::client`] does, issued `age` ago and valid for `life`.
    pub(crate) fn old_client(&self, user: &str, groups: &[&str], age: Duration, life: Duration) -> Result<Identity> {
        let mut params = client_params(user, groups)?;
        let issued = SystemTime::now() - age;
        (params.not_before, params.not_after) = (issued.into(), (issued + life).into());
        self.sign(params)
    }

    /// Returns a server certificate for addresses and DNS names.
    ///
    /// # Errors
    /// Fails when a DNS name is not ASCII, or no key or certificate can be made.
    pub fn server(&self, name: &str, addresses: &[IpAddr], dns_names: &[&str]) -> Result<Identity> {
        let mut params = CertificateParams::new(dns_names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        params.distinguished_name = distinguished_name(name, &[])?;
        params.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// Returns a certificate for a server or a client with this DNS name.
    pub(crate) fn peer(&self, name: &str) -> Result<Identity> {
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Identity> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn client_params(user: &str, groups: &[&str]) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = distinguished_name(user, groups)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}

/// Returns a key pair for service-account tokens: private and public key in PEM.
pub(crate) fn token_keys() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

/// Returns the configuration of a TLS server with a certificate chain and its key, both in PEM. If there are `authorities`, in PEM, clients need a
/// certificate of one of them.
pub(crate) fn server_config(chain: &str, key: &str, authorities: Option<&[u8]>) -> Result<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = if let Some(authorities) = authorities {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(authorities) {
            roots.add(authority?)?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<_, _>>()?;
    Ok(builder.with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes())?)?)
}

fn distinguished_name(name: &str, organizations: &[&str]) -> Result<DistinguishedName> {
    // rcgen keeps one value for each type of attribute; the same type, given by its number, counts as another one.
    let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
    if organizations.len() > types.len() {
        bail!(
            "{name} has {} groups, but a certificate of the test bed names at most {}",
            organizations.len(),
            types.len()
        );
    }
    let mut dn = DistinguishedName::new();
    for (ty, organization) in types.into_iter().zip(organizations) {
        dn.push(ty, *organization);
    }
    dn.push(DnType::CommonName, name);
    Ok(dn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_certificate_names_user_and_groups() {
        let authority = Authority::new("test").unwrap();
        let client = authority.client("system:node:a", &["one", "two"]).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(client.certificate.as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        let subject = certificate.subject();
        let organizations: Vec<_> = subject.iter_organization().map(|o| o.as_str().unwrap()).collect();
        assert_eq!(organizations, ["one", "two"]);
        assert_eq!(subject.iter_common_name().next().unwrap().as_str().unwrap(), "system:node:a");
        assert!(authority.client("a", &["1", "2", "3"]).is_err());
    }
}
