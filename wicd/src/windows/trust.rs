//! The machine's store of trusted root certificates.

use schannel::cert_context::CertContext;
use schannel::cert_store::{CertAdd, CertStore};

use crate::host::HostError;

const STORE: &str = "the machine's ROOT certificate store";

fn store() -> Result<CertStore, HostError> {
    CertStore::open_local_machine("Root").map_err(HostError::system("open", STORE))
}

/// Whether exactly this certificate is there.
pub fn trusted(der: &[u8]) -> Result<bool, HostError> {
    Ok(store()?.certs().any(|c| c.to_der() == der))
}

/// Adds a certificate.
pub fn trust(der: &[u8]) -> Result<(), HostError> {
    let failed = || HostError::system("add a certificate to", STORE);
    let certificate = CertContext::new(der).map_err(failed())?;
    store()?.add_cert(&certificate, CertAdd::ReplaceExisting).map_err(failed())?;
    Ok(())
}

/// Removes exactly this certificate.
pub fn untrust(der: &[u8]) -> Result<(), HostError> {
    // Deleting while the store is being listed would break the list.
    let found: Vec<CertContext> = store()?.certs().filter(|c| c.to_der() == der).collect();
    for certificate in found {
        certificate.delete().map_err(HostError::system("remove a certificate from", STORE))?;
    }
    Ok(())
}
