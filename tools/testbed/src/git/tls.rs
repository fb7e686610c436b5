//! Certificate authority and its certificates.

use std::sync::Arc;

use rustls::ServerConfig;

use crate::pki::{self, Identity};

/// Certificate authority of a Git server.
pub struct Authority {
    authority: pki::Authority,
    pub pem: String,
}

impl Authority {
    pub fn new() -> Self {
        // The name is unique: with the name of a known authority, clients would report a bad signature instead of an unknown authority.
        let authority = pki::Authority::new(&format!("{:x}", rand::random::<u64>())).unwrap();
        Self { pem: authority.identity().certificate, authority }
    }

    /// Returns a certificate for a server or a client with this name.
    pub fn sign(&self, name: &str) -> Identity {
        self.authority.peer(name).unwrap()
    }

    /// Returns the configuration of a server with a certificate for `localhost`, which requires client certificates if `clients` is true.
    pub fn server(&self, clients: bool) -> Arc<ServerConfig> {
        let Identity { certificate, key } = self.sign("localhost");
        let config = pki::server_config(&certificate, &key, clients.then_some(self.pem.as_bytes()));
        Arc::new(config.unwrap())
    }
}
