//! Simulated start of kubelet with the credentials in its kubeconfig. Accepts and refuses the same input as client-go's `certificate_store.go` and
//! `certificate_manager.go`.

use std::fs;
use std::path::Path;

use api::host::path;
use kube::config::{AuthInfo, Kubeconfig};
use serde_json::Value;
use x509_parser::certificate::X509Certificate;
use x509_parser::pem::Pem;
use x509_parser::time::ASN1Time;

use crate::certificates::split;
use crate::fake::FakeHost;
use crate::files;
use crate::host::Host as _;

const UPDATED: &str = r"C:\var\lib\kubelet\pki\kubelet-client-updated.pem";

/// Starts kubelet with the host's kubeconfig. Returns certificates and key (PEM) that kubelet uses for the API server, and writes the files that
/// kubelet stores in [`path::KUBELET_PKI`].
///
/// # Errors
/// Returns the reason for which kubelet exits right after its start.
pub fn start(host: &FakeHost) -> Result<String, String> {
    let given = given(host)?;
    if !files::exists(host, path::KUBELET_CURRENT_CERT).map_err(text)? && is_link(host, UPDATED)? {
        let (updated, current) = (real(host, UPDATED)?, real(host, path::KUBELET_CURRENT_CERT)?);
        fs::rename(updated, current).map_err(text)?;
    }
    if let Some(pem) = read(host, path::KUBELET_CURRENT_CERT)? {
        split(&pem).ok_or_else(|| format!("could not convert data from {}", path::KUBELET_CURRENT_CERT))?;
        if is_leaf_valid(host, &pem) {
            return Ok(pem);
        }
    } else if let Given::Files(pem) = given {
        // kubelet stores nothing if the kubeconfig names files.
        return Ok(pem);
    }
    match given {
        Given::Inline(pem) => {
            // kubelet only logs a failure to store the certificate, and renews nothing then.
            let _logged = store(host, &pem);
            Ok(pem)
        }
        Given::Files(_) => Err("no valid client certificate is found".into()),
    }
}

/// Certificate and key of the kubeconfig's user, inline or from files.
enum Given {
    Inline(String),
    Files(String),
}

fn given(host: &FakeHost) -> Result<Given, String> {
    let kubeconfig = read(host, path::KUBELET_KUBECONFIG)?.ok_or("there is no kubeconfig")?;
    let kubeconfig = Kubeconfig::from_yaml(&kubeconfig).map_err(text)?;
    let user = kubeconfig.auth_infos.into_iter().find_map(|named| named.auth_info).ok_or("it has no user")?;
    let whole = |pem: String| split(&pem).map(|_| pem).ok_or("certificate and key are not PEM");
    let json = serde_json::to_value(&user).map_err(text)?;
    if let (Some(chain), Some(key)) = (data(&json, "client-certificate-data"), data(&json, "client-key-data")) {
        return Ok(Given::Inline(whole(chain + &key)?));
    }
    let AuthInfo { client_certificate: Some(chain), client_key: Some(key), .. } = user else {
        return Err("the kubeconfig has no credentials".into());
    };
    let named = |file: &str| read(host, file)?.ok_or_else(|| format!("{file} does not exist"));
    Ok(Given::Files(whole(if chain == key { named(&key)? } else { named(&chain)? + &named(&key)? })?))
}

fn data(user: &Value, field: &str) -> Option<String> {
    let encoded = user.get(field).filter(|value| value.is_string())?;
    let bytes: k8s_openapi::ByteString = serde_json::from_value(encoded.clone()).ok()?;
    String::from_utf8(bytes.0).ok()
}

/// Stores a certificate with its key in a new file, and points the symbolic link to it.
fn store(host: &FakeHost, pem: &str) -> Result<(), String> {
    const NAME: &str = "kubelet-client-2026-01-01-00-00-00.pem";
    let current = real(host, path::KUBELET_CURRENT_CERT)?;
    fs::create_dir_all(real(host, path::KUBELET_PKI)?).map_err(text)?;
    fs::write(current.with_file_name(NAME), pem).map_err(text)?;
    for link in [path::KUBELET_CURRENT_CERT, UPDATED] {
        if files::exists(host, link).map_err(text)? && !is_link(host, link)? {
            return Err(format!("expected {link} to be a symlink but it is a file"));
        }
        let _missing = fs::remove_file(real(host, link)?);
    }
    link(Path::new(NAME), &current).map_err(text)
}

#[cfg(unix)]
fn link(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn link(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

fn is_leaf_valid(host: &FakeHost, pem: &str) -> bool {
    let leaf = Pem::iter_from_buffer(pem.as_bytes()).flatten().find(|block| block.label == "CERTIFICATE");
    leaf.is_some_and(|leaf| leaf.parse_x509().is_ok_and(|leaf| is_valid(host, &leaf)))
}

/// Reports whether a certificate is valid by the host's clock.
pub fn is_valid(host: &FakeHost, certificate: &X509Certificate<'_>) -> bool {
    let now = host.now().ok().and_then(|now| ASN1Time::from_timestamp(now).ok());
    now.is_some_and(|now| certificate.validity().is_valid_at(now))
}

fn read(host: &FakeHost, path: &str) -> Result<Option<String>, String> {
    let content = files::read(host, path).map_err(text)?;
    Ok(content.map(|content| String::from_utf8_lossy(&content).into_owned()))
}

fn is_link(host: &FakeHost, path: &str) -> Result<bool, String> {
    Ok(real(host, path)?.symlink_metadata().is_ok_and(|meta| meta.is_symlink()))
}

fn real(host: &FakeHost, path: &str) -> Result<std::path::PathBuf, String> {
    host.path(path).map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
#[path = "fake_kubelet_tests.rs"]
mod tests;
