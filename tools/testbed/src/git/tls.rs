//! Certificate authority and its certificates.

use std::sync::Arc;

use rustls::{RootCertStore, ServerConfig, crypto::ring, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use crate::pki::{self, Identity};

pub struct Authority {
    authority: pki::Authority,
    pub pem: String,
}

impl Authority {
    pub fn new() -> Self {
        // A unique name: with the name of a known authority, clients would report a bad signature instead of an unknown authority.
        let authority = pki::Authority::new(&format!("{:x}", rand::random::<u64>())).unwrap();
        Self { pem: authority.identity().certificate, authority }
    }

    /// Returns a certificate for a server or a client with this name.
    pub fn sign(&self, name: &str) -> Identity {
        self.authority.peer(name).unwrap()
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
