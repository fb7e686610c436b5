//! Keys, requests and certificates of kubelet and of wicd. Keys are ECDSA P-256; they never leave the host.
//!
//! A key waits in a file of its own ([`key_path`]) until its certificate is there; then both go into one PEM file, as
//! kubelet and client-go like it.

use api::host::{CertificateKind, path};
use api::names::user;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData};
use x509_parser::{certificate::X509Certificate, pem::Pem, prelude::FromDer};

use crate::files::{self, Access};
use crate::host::{Host, HostError};

/// Remaining validity below which a certificate is requested again, in seconds.
pub const RENEW_BELOW: i64 = 3600;
/// How many earlier certificates of wicd are kept.
const KEEP: usize = 2;
/// kubelet's own current certificate and key.
pub const KUBELET_CURRENT: &str = r"C:\var\lib\kubelet\pki\kubelet-client-current.pem";
const CERTIFICATE: &str = "CERTIFICATE";

/// A certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Not PEM certificates.
    #[error("certificate {0} of the PEM text cannot be read, or the text is cut off; none of its certificates is used")]
    Pem(usize),
    /// The text holds none.
    #[error("the PEM text has no certificate")]
    Empty,
    /// For another subject.
    #[error("the certificate is for {got:?}, not for {wanted:?}")]
    Name {
        /// Its common name.
        got: String,
        /// The right one.
        wanted: String,
    },
    /// Not made from our request.
    #[error("the certificate does not match the pending key on the host; apply again to get a new request")]
    Key,
    /// There is no key waiting.
    #[error("the host has no pending key for this certificate; apply again to get a new request")]
    NoKey,
    /// Over, or not begun.
    #[error("the certificate is not valid now; compare the clocks of host and cluster")]
    Validity,
    /// Keys could not be made or read.
    #[error("cannot make a key or a certificate request")]
    Crypto(#[source] rcgen::Error),
    /// The host refused.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl CertificateError {
    /// Reason for conditions and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Pem(_) | Self::Empty => "CertificateInvalid",
            Self::Name { .. } | Self::Key | Self::NoKey => "CertificateMismatch",
            Self::Validity => "CertificateExpired",
            Self::Crypto(_) => "CryptoFailed",
            Self::Host(e) => e.reason(),
        }
    }
}

/// Common name and organisation of a certificate.
pub fn subject(kind: CertificateKind, node: &str) -> (String, &'static str) {
    match kind {
        CertificateKind::Kubelet => (format!("{}{node}", user::NODE_PREFIX), user::NODES_GROUP),
        CertificateKind::Wicd => (format!("{}{node}", user::WICD_PREFIX), user::WICD_GROUP),
    }
}

/// Where a key waits for its certificate.
pub fn key_path(kind: CertificateKind) -> &'static str {
    match kind {
        CertificateKind::Kubelet => r"C:\k\kubelet-first.key",
        CertificateKind::Wicd => r"C:\k\wicd-certs\wicd-client.key",
    }
}

/// Where certificate and key are, the newest last.
pub fn paths(kind: CertificateKind) -> &'static [&'static str] {
    match kind {
        CertificateKind::Kubelet => &[path::KUBELET_FIRST_CERT, KUBELET_CURRENT],
        CertificateKind::Wicd => &[path::WICD_CERT],
    }
}

/// A certificate request (PEM) for the key that waits, which is made if there is none. Asking again gives the same key.
///
/// # Errors
/// When the key's file cannot be read or written, or no key or request can be made.
pub fn request(host: &dyn Host, kind: CertificateKind, node: &str) -> Result<String, CertificateError> {
    let key = if let Some(key) = waiting_key(host, kind)? {
        key
    } else {
        let key = KeyPair::generate().map_err(CertificateError::Crypto)?;
        files::write(host, key_path(kind), key.serialize_pem().as_bytes(), Access::Protected)?;
        key
    };
    let mut params = CertificateParams::default();
    let (name, organisation) = subject(kind, node);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, organisation);
    params.distinguished_name.push(DnType::CommonName, name);
    params.serialize_request(&key).and_then(|r| r.pem()).map_err(CertificateError::Crypto)
}

/// The key that waits. One that cannot be read is as good as none: it was made for nothing yet.
fn waiting_key(host: &dyn Host, kind: CertificateKind) -> Result<Option<KeyPair>, HostError> {
    let content = files::read(host, key_path(kind))?;
    Ok(content.and_then(|pem| String::from_utf8(pem).ok()).and_then(|pem| KeyPair::from_pem(&pem).ok()))
}

/// Puts a certificate chain (PEM, leaf first) and the key that waits for it in place, and forgets the waiting key. Doing so
/// again with the same chain changes nothing.
///
/// # Errors
/// When `chain` is empty or damaged, or its first certificate is for another subject or is not valid at `now`. When the
/// certificate is not installed yet, and the key that waits is missing or is another one. When a file cannot be read, written
/// or removed.
pub fn install(
    host: &dyn Host,
    kind: CertificateKind,
    node: &str,
    chain: &str,
    now: i64,
) -> Result<(), CertificateError> {
    let ders = bundle(chain.as_bytes())?;
    let leaf = ders.first().ok_or(CertificateError::Empty)?;
    check(leaf, kind, node, now)?;
    let place = paths(kind)[0];
    let installed = files::read(host, place)?.unwrap_or_default();
    if bundle(&installed).is_ok_and(|there| there.first() == Some(leaf)) {
        files::remove(host, key_path(kind))?;
        return Ok(());
    }
    let key = waiting_key(host, kind)?.ok_or(CertificateError::NoKey)?;
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::Pem(1))?;
    if parsed.public_key().raw != key.subject_public_key_info() {
        return Err(CertificateError::Key);
    }
    let pem = format!("{}\n{}", chain.trim_end(), key.serialize_pem());
    match kind {
        CertificateKind::Kubelet => {
            files::write(host, place, pem.as_bytes(), Access::Protected)?;
            // kubelet prefers the one that it has rotated to, however bad it is.
            let rotated = files::read(host, KUBELET_CURRENT)?.unwrap_or_default();
            if !rotated.is_empty() && !is_good(&rotated, kind, node, now, 0) {
                files::remove(host, KUBELET_CURRENT)?;
            }
        }
        CertificateKind::Wicd => install_wicd(host, pem.as_bytes(), now)?,
    }
    files::remove(host, key_path(kind))?;
    Ok(())
}

/// Puts a certificate of wicd (chain and key in one PEM text) in place: a file with the time in its name, as WMCO does it, and
/// the current one. Of the earlier ones the newest two are kept. `now` is in Unix seconds.
///
/// # Errors
/// When a file of a certificate cannot be written, listed or removed.
pub fn install_wicd(host: &dyn Host, pem: &[u8], now: i64) -> Result<(), HostError> {
    let time = jiff::Timestamp::from_second(now).unwrap_or_default().strftime("%Y-%m-%d-%H-%M-%S").to_string();
    let dated =
        |name: &String| name.starts_with("wicd-client-2") && name.len() == "wicd-client-2006-01-02-15-04-05.pem".len();
    files::write(host, &format!(r"{}\wicd-client-{time}.pem", path::WICD_CERTS), pem, Access::Protected)?;
    files::write(host, path::WICD_CERT, pem, Access::Protected)?;
    let mut earlier: Vec<String> = files::list(host, path::WICD_CERTS)?.into_iter().filter(dated).collect();
    earlier.truncate(earlier.len().saturating_sub(KEEP + 1));
    for name in earlier {
        files::remove(host, &format!(r"{}\{name}", path::WICD_CERTS))?;
    }
    Ok(())
}

/// Takes all certificates and keys of kubelet and of wicd away.
///
/// # Errors
/// When one of them cannot be removed. Those after it stay, too.
pub fn forget(host: &dyn Host) -> Result<(), HostError> {
    for tree in [path::WICD_CERTS, path::KUBELET_PKI] {
        files::remove_tree(host, tree)?;
    }
    for file in [path::KUBELET_FIRST_CERT, key_path(CertificateKind::Kubelet)] {
        files::remove(host, file)?;
    }
    Ok(())
}

/// Whether the host has a certificate of this kind, for this node, that is valid for another [`RENEW_BELOW`].
///
/// # Errors
/// When a file of a certificate cannot be inspected or read. A damaged one is no error, and is not good.
pub fn has_good(host: &dyn Host, kind: CertificateKind, node: &str, now: i64) -> Result<bool, HostError> {
    // kubelet's kubeconfig names the first one, so it has to be there even if kubelet has rotated to another.
    if !files::exists(host, paths(kind)[0])? {
        return Ok(false);
    }
    for path in paths(kind) {
        if files::read(host, path)?.is_some_and(|pem| is_good(&pem, kind, node, now, RENEW_BELOW)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Latest end of validity (Unix seconds) of the certificates of this kind on the host.
///
/// # Errors
/// When a file of a certificate cannot be read. A damaged one is left out.
pub fn not_after(host: &dyn Host, kind: CertificateKind) -> Result<Option<i64>, HostError> {
    let mut latest = None;
    for path in paths(kind) {
        let pem = files::read(host, path)?.unwrap_or_default();
        let ders = bundle(&pem).unwrap_or_default();
        let leaf = ders.first().and_then(|der| X509Certificate::from_der(der).ok());
        latest = latest.max(leaf.map(|(_, leaf)| leaf.validity().not_after.timestamp()));
    }
    Ok(latest)
}

/// Whether a PEM text holds a certificate (leaf first) of the right name, valid now and for another `seconds`.
fn is_good(pem: &[u8], kind: CertificateKind, node: &str, now: i64, seconds: i64) -> bool {
    let leaf = bundle(pem).ok().and_then(|ders| ders.into_iter().next());
    leaf.is_some_and(|leaf| check(&leaf, kind, node, now).is_ok() && check(&leaf, kind, node, now + seconds).is_ok())
}

fn check(der: &[u8], kind: CertificateKind, node: &str, now: i64) -> Result<(), CertificateError> {
    let (_, leaf) = X509Certificate::from_der(der).map_err(|_| CertificateError::Pem(1))?;
    let (wanted, _) = subject(kind, node);
    let names: Vec<&str> = leaf.subject().iter_common_name().filter_map(|name| name.as_str().ok()).collect();
    if names != [wanted.as_str()] {
        return Err(CertificateError::Name { got: names.join(", "), wanted });
    }
    let validity = leaf.validity();
    // A little before its time is fine: clocks differ, and signers back-date by five minutes for that reason.
    if now < validity.not_before.timestamp() - 300 || now >= validity.not_after.timestamp() {
        return Err(CertificateError::Validity);
    }
    Ok(())
}

/// The certificates (DER) of a PEM text, in order. Text between blocks and blocks of other kinds are skipped. A damaged or
/// cut off block is an error: a bundle is never silently shortened.
///
/// # Errors
/// [`CertificateError::Pem`] with the number of the first certificate that cannot be read.
pub fn bundle(pem: &[u8]) -> Result<Vec<Vec<u8>>, CertificateError> {
    let begin = format!("-----BEGIN {CERTIFICATE}-----").into_bytes();
    let wanted = pem.windows(begin.len()).filter(|window| *window == begin).count();
    let mut ders = Vec::new();
    for block in Pem::iter_from_buffer(pem) {
        let Ok(block) = block else { break };
        if block.label == CERTIFICATE {
            X509Certificate::from_der(&block.contents).map_err(|_| CertificateError::Pem(ders.len() + 1))?;
            ders.push(block.contents);
        }
    }
    if ders.len() == wanted { Ok(ders) } else { Err(CertificateError::Pem(ders.len() + 1)) }
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
