//! Certificate authority and its certificates.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::{RootCertStore, ServerConfig, crypto::ring, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

pub struct Signed {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // A unique name: with the name of a known authority, clients would report a bad signature instead of an unknown authority.
        params.distinguished_name.push(DnType::CommonName, format!("{:x?}", &key.public_key_raw()[..8]));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    pub fn sign(&self, name: &str) -> Signed {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Signed { certificate, key: key.serialize_pem() }
    }

    /// Returns the configuration of a server with a certificate for `localhost`, which requires client certificates if `clients` is true.
    pub fn server(&self, clients: bool) -> Arc<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let signed = self.sign("localhost");
        let chain = vec![CertificateDer::from_pem_slice(signed.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(signed.key.as_bytes()).unwrap();
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions().unwrap();
        let builder = if clients {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        Arc::new(builder.with_single_cert(chain, key).unwrap())
    }
}
