//! Machine-wide store of trusted root certificates.

use std::collections::BTreeSet;
use std::io;
use std::ptr::null;

use schannel::RawPointer;
use schannel::cert_context::CertContext;
use schannel::cert_store::{CertAdd, CertStore};
use windows_sys::Win32::Security::Cryptography::{CERT_STORE_CTRL_COMMIT, CertControlStore};

use super::wide::check;
use crate::host::HostError;

const STORE: &str = "the machine's ROOT certificate store";

fn store() -> Result<CertStore, HostError> {
    CertStore::open_local_machine("Root").map_err(HostError::system("open", STORE))
}

/// Returns all trusted root certificates (DER).
pub(super) fn trusted() -> Result<BTreeSet<Vec<u8>>, HostError> {
    Ok(store()?.certs().map(|c| c.to_der().to_vec()).collect())
}

/// Adds a trusted root certificate.
pub(super) fn trust(der: &[u8]) -> Result<(), HostError> {
    let failed = || HostError::system("add a certificate to", STORE);
    let certificate = CertContext::new(der).map_err(failed())?;
    store()?.add_cert(&certificate, CertAdd::ReplaceExisting).map_err(failed())?;
    Ok(())
}

/// Removes exactly this trusted root certificate.
pub(super) fn untrust(der: &[u8]) -> Result<(), HostError> {
    let failed = || HostError::system("remove a certificate from", STORE);
    // The certificates are listed completely before the first deletion, while the store stays open.
    let store = store()?;
    let found: Vec<CertContext> = store.certs().filter(|c| c.to_der() == der).collect();
    for certificate in found {
        certificate.delete().map_err(failed())?;
        commit(&store).map_err(failed())?;
    }
    Ok(())
}

/// Commits changes of the store. Windows writes at once. Wine writes additions when the store is closed, and deletions only on request.
fn commit(store: &CertStore) -> io::Result<()> {
    // SAFETY: the store is open; this kind of control takes no parameter.
    check(unsafe { CertControlStore(store.as_ptr(), 0, CERT_STORE_CTRL_COMMIT, null()) })
}
