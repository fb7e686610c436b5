//! Values of facts that were last in force. A fact that cannot be used now keeps this value. The operator stores the values ([`Kept`]), so that they
//! survive its restart.
//!
//! Stored values are untrusted input: any client that may write Secrets in the namespace may have written them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Cluster, MirrorRule, Proxy, PullSecret, TlsPair, check};

/// Facts as read from the cluster.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Facts that can be used. A fact that is unusable as a whole is left out.
    pub cluster: Cluster,
    /// Facts that are unusable as a whole.
    pub unusable: Vec<Unusable>,
}

impl From<Cluster> for Found {
    fn from(cluster: Cluster) -> Self {
        Self { cluster, unusable: Vec::new() }
    }
}

/// Unusable fact, which keeps its earlier value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Fact that cannot be used.
    pub fact: Fact,
    /// Faulty object, its fault, and the remedy. Contains no secrets.
    pub problem: String,
    /// True if the fact's object is missing, which is a fault only if the object existed before.
    pub is_missing: bool,
}

/// Fact that keeps its earlier value independently of other facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Proxy of the cluster.
    Proxy,
    /// Certificates that hosts trust.
    TrustedCa,
    /// Mirrors of registries with this origin.
    Mirrors(String),
    /// Logins of registries.
    PullSecret,
    /// Certificate with which windows_exporter serves.
    ExporterTls,
}

/// Values of facts that were last in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Minor version of Kubernetes that nodes follow.
    kubernetes_minor: Option<u32>,
    proxy: Proxy,
    trusted_ca: Option<String>,
    mirrors: Vec<MirrorRule>,
    pull_secret: PullSecret,
    exporter_tls: Option<TlsPair>,
}

/// Error for stored facts that cannot be read. It quotes nothing from them. The caller names the object and the remedy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("its content is damaged")]
pub struct KeptError;

/// Stored form of [`Kept`].
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Wire {
    kubernetes_minor: Option<u32>,
    http_proxy: Option<String>,
    https_proxy: Option<String>,
    no_proxy: Option<String>,
    trusted_ca: Option<String>,
    mirrors: Vec<MirrorRule>,
    logins: Option<Value>,
    logins_revision: String,
    exporter_certificate: Option<String>,
    exporter_key: Option<String>,
}

impl Kept {
    /// Returns the values to keep from the facts of a cluster that are in force.
    pub fn of(cluster: &Cluster) -> Self {
        Self {
            kubernetes_minor: cluster.kubernetes_minor,
            proxy: cluster.proxy.clone(),
            trusted_ca: cluster.trusted_ca.clone(),
            mirrors: cluster.mirrors.clone(),
            pull_secret: cluster.pull_secret.clone(),
            exporter_tls: cluster.exporter_tls.clone(),
        }
    }

    /// Creates kept values of which only the minor version of Kubernetes that nodes follow is known.
    pub fn of_nodes(kubernetes_minor: u32) -> Self {
        Self { kubernetes_minor: Some(kubernetes_minor), ..Self::default() }
    }

    /// Returns the facts as JSON to store. Parts of it are secret.
    pub fn to_json(&self) -> String {
        let Self { kubernetes_minor, proxy, trusted_ca, mirrors, pull_secret, exporter_tls } = self.clone();
        let (exporter_certificate, exporter_key) = exporter_tls.map(|tls| (tls.certificate, tls.key)).unzip();
        let wire = Wire {
            kubernetes_minor,
            http_proxy: proxy.http,
            https_proxy: proxy.https,
            no_proxy: proxy.no,
            trusted_ca,
            mirrors,
            logins: pull_secret.file(),
            logins_revision: pull_secret.revision().to_owned(),
            exporter_certificate,
            exporter_key,
        };
        // Serialization does not fail: all keys are strings.
        serde_json::to_string(&wire).unwrap_or_default()
    }

    /// Parses stored facts. A value that could not have been in force is left out.
    ///
    /// # Errors
    /// [`KeptError`] if `json` does not have the stored form.
    pub fn parse(json: &[u8]) -> Result<Self, KeptError> {
        let wire: Wire = serde_json::from_slice(json).map_err(|_| KeptError)?;
        let proxy = Proxy { http: wire.http_proxy, https: wire.https_proxy, no: wire.no_proxy };
        let logins = wire.logins.map(|logins| logins.to_string()).unwrap_or_default();
        let pair = wire.exporter_certificate.zip(wire.exporter_key);
        Ok(Self {
            kubernetes_minor: wire.kubernetes_minor,
            proxy: Some(proxy).filter(|proxy| check::proxy(proxy).is_ok()).unwrap_or_default(),
            trusted_ca: wire.trusted_ca.filter(|pem| check::certificates(pem.as_bytes()).is_ok()),
            mirrors: wire.mirrors,
            pull_secret: PullSecret::parse(logins.as_bytes(), &wire.logins_revision)
                .map(|(s, _)| s)
                .unwrap_or_default(),
            exporter_tls: pair.map(|(certificate, key)| TlsPair { certificate, key }).filter(TlsPair::is_usable),
        })
    }

    /// Copies the kept value of a fact into a cluster. Returns true if there is one.
    fn restore(&self, fact: &Fact, cluster: &mut Cluster) -> bool {
        match fact {
            Fact::Proxy => {
                cluster.proxy.clone_from(&self.proxy);
                self.proxy != Proxy::default()
            }
            Fact::TrustedCa => {
                // Without a kept value, the certificates that are usable, for example those of registries, stay in force.
                if self.trusted_ca.is_some() {
                    cluster.trusted_ca.clone_from(&self.trusted_ca);
                }
                self.trusted_ca.is_some()
            }
            Fact::Mirrors(origin) => {
                let kept: Vec<_> = self.mirrors.iter().filter(|rule| rule.origin == *origin).cloned().collect();
                let is_there = !kept.is_empty();
                cluster.mirrors.splice(0..0, kept);
                is_there
            }
            Fact::PullSecret => {
                cluster.pull_secret.clone_from(&self.pull_secret);
                self.pull_secret.file().is_some()
            }
            Fact::ExporterTls => {
                cluster.exporter_tls.clone_from(&self.exporter_tls);
                self.exporter_tls.is_some()
            }
        }
    }
}

/// Returns the facts in force: those that were read, earlier values of those that are unusable, and the earlier Kubernetes version while an upgrade
/// of the control plane is not complete.
pub fn settled(before: Option<&Kept>, found: Found) -> Cluster {
    let Found { mut cluster, unusable } = found;
    let nothing = Kept::default();
    let before = before.unwrap_or(&nothing);
    for Unusable { fact, problem, is_missing } in unusable {
        let was_there = before.restore(&fact, &mut cluster);
        let instead = match (was_there, is_missing) {
            (true, _) => "hosts keep what was in force before",
            (false, false) => "hosts get none, because none was in force before",
            (false, true) => continue,
        };
        cluster.held.push(format!("{problem}; until then {instead}"));
    }
    let minor = minor(before.kubernetes_minor, &cluster);
    cluster.next_minor = cluster.kubernetes_minor.filter(|next| Some(*next) != minor);
    if cluster.next_minor.is_none() {
        // No node waits for these API servers.
        cluster.silent_api_servers.clear();
    }
    cluster.kubernetes_minor = minor;
    cluster
}

/// Returns the minor version that nodes follow. Without an earlier version, that is the version that was found. A new version is followed only when
/// the whole control plane has it, and not while an upgrade may still be reverted.
fn minor(before: Option<u32>, found: &Cluster) -> Option<u32> {
    match (before, found.kubernetes_minor) {
        (Some(before), _) if found.is_upgrading => Some(before),
        // A silent API server may be an older one that is restarting.
        (Some(before), Some(now)) if !found.silent_api_servers.is_empty() => Some(before.min(now)),
        (_, now) => now,
    }
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
