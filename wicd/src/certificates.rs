//! Keys, requests and certificates of kubelet and of wicd. Keys are ECDSA P-256; they never leave the host.
//!
//! A pending key is in a file of its own ([`key_path`]) until its certificate arrives; then both go into one PEM file, as kubelet and client-go
//! expect.
//!
//! kubelet's first certificate is embedded in kubelet's own kubeconfig: at its start, kubelet stores an embedded certificate in
//! [`path::KUBELET_PKI`], but not one that the kubeconfig names as a file. The stored certificate has the file name of all later ones, to which
//! [`path::NODE_KUBECONFIG`] refers. wicd does not write that file itself: kubelet expects its own symbolic link at
//! [`path::KUBELET_CURRENT_CERT`], and cannot replace a regular file.

use api::host::{CertificateKind, path};
use api::{Reason, names::user};
use k8s_openapi::ByteString;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData};
use serde_json::Value;
use x509_parser::{certificate::X509Certificate, pem::Pem, prelude::FromDer};

use crate::files::{self, Access};
use crate::host::{Host, HostError};

/// Remaining validity below which a certificate is requested again, in seconds.
pub const RENEW_BELOW: i64 = 3600;
/// Number of earlier certificates that are kept beside the newest.
const KEEP: usize = 2;
/// Format of the time in a certificate's file name, as in client-go's certificate store. wicd writes UTC.
const TIME: &str = "%Y-%m-%d-%H-%M-%S";
/// File name prefix of kubelet's client certificates.
const KUBELET_CLIENT: &str = "kubelet-client";
const CERTIFICATE: &str = "CERTIFICATE";

/// Reason why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// PEM text that cannot be read or is cut off, with the number of the bad certificate.
    #[error(
        "certificate {0} of the PEM text cannot be read, or the text is truncated; none of its certificates is used"
    )]
    Pem(usize),
    /// PEM text without a certificate.
    #[error("the issued PEM text has no certificate in it; check the signer that issued it")]
    Empty,
    /// Certificate for another subject.
    #[error("the certificate is for {got:?}, not for {wanted:?}; check the signer that issued it")]
    Name {
        /// Common name of the certificate.
        got: String,
        /// Common name that is expected.
        wanted: String,
    },
    /// Certificate that does not match the pending key.
    #[error(
        "the certificate does not match the pending key on the host; the operator requests another at its next attempt"
    )]
    Key,
    /// Certificate without a pending key.
    #[error("the host has no pending key for this certificate; the operator requests another at its next attempt")]
    NoKey,
    /// Certificate that has expired or is not valid yet.
    #[error("the certificate has expired or is not valid yet; compare the clocks of the host and of the API servers")]
    Validity,
    /// Key or certificate request that could not be created.
    #[error("cannot create a private key or a certificate request")]
    Crypto(#[source] rcgen::Error),
    /// Kubeconfig of kubelet that cannot be created from [`path::NODE_KUBECONFIG`].
    #[error(
        "{} is missing, or is not a kubeconfig in JSON with exactly one user; the operator writes it again at its next attempt",
        path::NODE_KUBECONFIG
    )]
    Kubeconfig,
    /// First certificate of kubelet on the host that is damaged, so that kubelet's kubeconfig cannot be created from it.
    #[error(
        "{} does not have a certificate and its key; delete this file, and the operator requests a new certificate at its next attempt",
        path::KUBELET_FIRST_CERT
    )]
    FirstCertificate,
    /// Failure on the host.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl CertificateError {
    /// Reason for conditions and events.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Pem(_)
            | Self::Empty
            | Self::Name { .. }
            | Self::Key
            | Self::NoKey
            | Self::Validity
            | Self::Crypto(_) => Reason::CertificateInvalid,
            Self::Kubeconfig | Self::FirstCertificate => Reason::HostFilesChanged,
            Self::Host(e) => e.reason(),
        }
    }
}

/// Common name and organisation of a certificate.
fn subject(kind: CertificateKind, node: &str) -> (String, &'static str) {
    match kind {
        CertificateKind::Kubelet => (format!("{}{node}", user::NODE_PREFIX), user::NODES_GROUP),
        CertificateKind::Wicd => (format!("{}{node}", user::WICD_PREFIX), user::WICD_GROUP),
    }
}

/// Path of the pending key.
pub fn key_path(kind: CertificateKind) -> &'static str {
    match kind {
        CertificateKind::Kubelet => r"C:\k\kubelet-first.key",
        CertificateKind::Wicd => r"C:\k\wicd-certs\wicd-client.key",
    }
}

/// Paths of the files with certificate and key, the newest last.
pub fn paths(kind: CertificateKind) -> &'static [&'static str] {
    match kind {
        CertificateKind::Kubelet => &[path::KUBELET_FIRST_CERT, path::KUBELET_CURRENT_CERT],
        CertificateKind::Wicd => &[path::WICD_CERT],
    }
}

/// Returns a certificate request (PEM) for the pending key, which is created if there is none. Repeated calls use the same key.
///
/// # Errors
/// Fails when the key's file cannot be read or written, or no key or request can be created.
pub fn request(host: &dyn Host, kind: CertificateKind, node: &str) -> Result<String, CertificateError> {
    let key = if let Some(key) = waiting_key(host, kind)? {
        key
    } else {
        let key = KeyPair::generate().map_err(CertificateError::Crypto)?;
        files::write(host, key_path(kind), key.serialize_pem().as_bytes(), Access::Protected)?;
        key
    };
    request_for(&key, kind, node).map_err(CertificateError::Crypto)
}

/// Returns a certificate request (PEM) for a key.
///
/// # Errors
/// Fails when the request cannot be created.
pub fn request_for(key: &KeyPair, kind: CertificateKind, node: &str) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::default();
    let (name, organisation) = subject(kind, node);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, organisation);
    params.distinguished_name.push(DnType::CommonName, name);
    params.serialize_request(key)?.pem()
}

/// Pending key. `None` if it is missing or damaged: no certificate depends on it yet.
fn waiting_key(host: &dyn Host, kind: CertificateKind) -> Result<Option<KeyPair>, HostError> {
    let content = files::read(host, key_path(kind))?;
    Ok(content.and_then(|pem| String::from_utf8(pem).ok()).and_then(|pem| KeyPair::from_pem(&pem).ok()))
}

/// Returns the argument of [`install`]: a certificate chain (PEM, leaf first) with the pending key. `None` if the first certificate of the
/// chain is installed already.
///
/// # Errors
/// Fails when `chain` is empty or damaged, when its first certificate is for another subject or is not valid at `now`, when a certificate that
/// is not installed yet does not match the pending key, and when a file cannot be read.
pub fn with_key(
    host: &dyn Host,
    kind: CertificateKind,
    node: &str,
    chain: &str,
    now: i64,
) -> Result<Option<String>, CertificateError> {
    let ders = bundle(chain.as_bytes())?;
    let leaf = ders.first().ok_or(CertificateError::Empty)?;
    check(leaf, kind, node, now)?;
    let installed = files::read(host, paths(kind)[0])?.unwrap_or_default();
    if bundle(&installed).is_ok_and(|there| there.first() == Some(leaf)) {
        return Ok(None);
    }
    let key = waiting_key(host, kind)?.ok_or(CertificateError::NoKey)?;
    joined(chain, &key)?.ok_or(CertificateError::Key).map(Some)
}

/// Returns a certificate chain (PEM, leaf first) and its key in one PEM text; `None` if the certificate is for another key.
///
/// # Errors
/// Fails when `chain` is empty or damaged.
pub fn joined(chain: &str, key: &KeyPair) -> Result<Option<String>, CertificateError> {
    let ders = bundle(chain.as_bytes())?;
    let leaf = ders.first().ok_or(CertificateError::Empty)?;
    let (_, leaf) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::Pem(1))?;
    let is_of_key = leaf.public_key().raw == key.subject_public_key_info();
    Ok(is_of_key.then(|| format!("{}\n{}", chain.trim_end(), key.serialize_pem())))
}

/// Installs the result of [`with_key`], and removes the pending key. Without a certificate, only removes the pending key. kubelet must not run
/// while its certificate is installed: it reads its certificate and kubeconfig only at its start, and would continue with the ones that are
/// removed here.
///
/// # Errors
/// Fails when a file cannot be read, written or removed, and when kubelet's kubeconfig cannot be created from the certificate and
/// [`path::NODE_KUBECONFIG`].
pub fn install(host: &dyn Host, kind: CertificateKind, pem: Option<&str>, now: i64) -> Result<(), CertificateError> {
    match (kind, pem) {
        (CertificateKind::Kubelet, Some(pem)) => {
            let kubeconfig = kubelet_kubeconfig(host, pem)?;
            // kubelet prefers its stored certificate to that of the kubeconfig, even a damaged one or one of another cluster.
            for name in files::list(host, path::KUBELET_PKI)?.iter().filter(|name| name.starts_with(KUBELET_CLIENT)) {
                files::remove(host, &format!(r"{}\{name}", path::KUBELET_PKI))?;
            }
            files::write(host, path::KUBELET_KUBECONFIG, &kubeconfig, Access::Protected)?;
            // This file is written last, because it marks the certificate as installed.
            files::write(host, path::KUBELET_FIRST_CERT, pem.as_bytes(), Access::Protected)?;
        }
        (CertificateKind::Wicd, Some(pem)) => install_wicd(host, pem.as_bytes(), now)?,
        (_, None) => {}
    }
    files::remove(host, key_path(kind))?;
    Ok(())
}

/// Content of kubelet's kubeconfig according to the current [`path::NODE_KUBECONFIG`] and the installed first certificate, if the file differs.
/// `None` without such a certificate.
///
/// # Errors
/// [`CertificateError::Kubeconfig`] if [`path::NODE_KUBECONFIG`] is missing or damaged, [`CertificateError::FirstCertificate`] for a damaged
/// certificate. Also fails when a file cannot be read.
pub fn other_kubelet_kubeconfig(host: &dyn Host) -> Result<Option<Vec<u8>>, CertificateError> {
    let Some(pem) = files::read(host, path::KUBELET_FIRST_CERT)? else { return Ok(None) };
    let wanted = kubelet_kubeconfig(host, &String::from_utf8_lossy(&pem))?;
    Ok((files::read(host, path::KUBELET_KUBECONFIG)?.as_ref() != Some(&wanted)).then_some(wanted))
}

/// Content of kubelet's kubeconfig: [`path::NODE_KUBECONFIG`] with this certificate and key embedded.
fn kubelet_kubeconfig(host: &dyn Host, pem: &str) -> Result<Vec<u8>, CertificateError> {
    let (chain, key) = split(pem).ok_or(CertificateError::FirstCertificate)?;
    let template = files::read(host, path::NODE_KUBECONFIG)?.and_then(|json| serde_json::from_slice(&json).ok());
    let kubeconfig = template.and_then(|template| inline(template, &chain, &key));
    kubeconfig.and_then(|config| serde_json::to_vec_pretty(&config).ok()).ok_or(CertificateError::Kubeconfig)
}

/// Embeds credentials in a kubeconfig. `None` unless it has exactly one user.
fn inline(mut kubeconfig: Value, chain: &str, key: &str) -> Option<Value> {
    let [user] = kubeconfig.get_mut("users")?.as_array_mut()?.as_mut_slice() else { return None };
    *user.get_mut("user")? = serde_json::json!({
        "client-certificate-data": ByteString(chain.as_bytes().to_vec()),
        "client-key-data": ByteString(key.as_bytes().to_vec()),
    });
    Some(kubeconfig)
}

/// Certificates and key of a PEM text that holds both.
pub(crate) fn split(pem: &str) -> Option<(String, String)> {
    let (mut chain, mut key) = (String::new(), String::new());
    let mut inside: Option<bool> = None;
    for line in pem.lines() {
        if let Some(label) = line.strip_prefix("-----BEGIN ") {
            inside = Some(label.starts_with(CERTIFICATE));
        }
        if let Some(is_certificate) = inside {
            let part = if is_certificate { &mut chain } else { &mut key };
            part.push_str(line);
            part.push('\n');
        }
        if line.starts_with("-----END ") {
            inside = None;
        }
    }
    (!chain.is_empty() && !key.is_empty()).then_some((chain, key))
}

/// Writes a certificate of wicd (chain and key in one PEM text) to a file with the time in its name, as WMCO does, and to the current one. Keeps
/// the two newest of the earlier files. `now` is in Unix seconds.
///
/// # Errors
/// Fails when a file of a certificate cannot be written, listed or removed.
pub fn install_wicd(host: &dyn Host, pem: &[u8], now: i64) -> Result<(), HostError> {
    let time = jiff::Timestamp::from_second(now).unwrap_or_default().strftime(TIME).to_string();
    files::write(host, &format!(r"{}\wicd-client-{time}.pem", path::WICD_CERTS), pem, Access::Protected)?;
    files::write(host, path::WICD_CERT, pem, Access::Protected)?;
    prune(host, path::WICD_CERTS, "wicd-client-")
}

/// Removes certificates of hybrid-overlay-node except the three newest: the service stores a new one every day beside the earlier ones.
///
/// # Errors
/// Fails when one of them cannot be listed or removed.
pub fn prune_overlay(host: &dyn Host) -> Result<(), HostError> {
    prune(host, path::OVERLAY_CERTS, "ovnkube-client-")
}

/// Removes the certificates whose names have a time after the prefix, except the newest and [`KEEP`] earlier ones. Continues after a file that
/// cannot be removed.
fn prune(host: &dyn Host, directory: &str, prefix: &str) -> Result<(), HostError> {
    let is_dated = |name: &String| {
        let time = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(".pem"));
        time.is_some_and(|time| jiff::civil::DateTime::strptime(TIME, time).is_ok())
    };
    let mut dated: Vec<String> = files::list(host, directory)?.into_iter().filter(is_dated).collect();
    dated.truncate(dated.len().saturating_sub(KEEP + 1));
    let mut failed = Ok(());
    for name in dated {
        failed = failed.and(files::remove(host, &format!(r"{directory}\{name}")));
    }
    failed
}

/// Removes all certificates and keys of kubelet and of wicd.
///
/// # Errors
/// Fails at the first one that cannot be removed, so that others may stay, too.
pub fn forget(host: &dyn Host) -> Result<(), HostError> {
    for tree in [path::WICD_CERTS, path::KUBELET_PKI] {
        files::remove_tree(host, tree)?;
    }
    for file in [path::KUBELET_KUBECONFIG, path::KUBELET_FIRST_CERT, key_path(CertificateKind::Kubelet)] {
        files::remove(host, file)?;
    }
    Ok(())
}

/// Reports whether the host has a certificate of this kind, for this node, that is valid for at least another [`RENEW_BELOW`] seconds. Without
/// the first certificate of this kind, no certificate counts.
///
/// # Errors
/// Fails when a file of a certificate cannot be inspected or read. A damaged certificate is not an error, and does not count.
pub fn has_good(host: &dyn Host, kind: CertificateKind, node: &str, now: i64) -> Result<bool, HostError> {
    // Only the first certificate shows that the others are of this cluster.
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

/// Returns the latest expiry time (Unix seconds) of the host's certificates of this kind; `None` if there are none.
///
/// # Errors
/// Fails when a file of a certificate cannot be read. Damaged certificates are skipped.
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

/// Reports whether a PEM text holds a certificate (leaf first) of the right name, valid now and for another `seconds`.
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
    // Certificates are accepted five minutes before they are valid: clocks differ, and signers back-date certificates by as much.
    if now < validity.not_before.timestamp() - 300 || now >= validity.not_after.timestamp() {
        return Err(CertificateError::Validity);
    }
    Ok(())
}

/// Returns the certificates (DER) of a PEM text, in order. Skips text between blocks and blocks of other kinds. A certificate that cannot be
/// read is an error.
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
