//! Release file: hashes of the files that a release installs on hosts, and its renderings, published with the release. A plan uses the file to show
//! the effect of the release on each node before the release is installed. Pure.
//!
//! Hosts get the payload and `wicd.exe`: the file has their hashes, and the plan renders with them as with its own. Hosts also get what the release
//! renders, which only the release itself can do: the file has its renderings for reference clusters that every release knows, and the plan compares
//! them with its own.
//!
//! The file is untrusted input.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
};

use api::{
    TemplateSpec,
    payload::{Manifest, check_files, is_sha256},
    text::line,
};
use k8s_openapi::api::core::v1::ConfigMap;
use serde::{Deserialize, Serialize};

use super::version_diff::{Change, change};
use crate::render::{Cluster, Network, Platform, RenderError, Rendered, Settings, Stored, StoredError, render};

/// Version of the file format.
const SCHEMA: u32 = 1;
/// Maximum size of a file, in bytes: far more than any release needs.
pub const MAX_BYTES: usize = 8 << 20;
/// Maximum number of payloads: far more than the number of minor versions that a release supports.
const MAX_PAYLOADS: usize = 32;
/// Maximum number of references: two for each platform, and room for new platforms.
const MAX_REFERENCES: usize = 64;
/// Maximum length of the operator's version, and of a platform in an error message, in characters.
const MAX_VERSION: usize = 64;
/// Maximum length of a problem in an error message, in characters.
const MAX_PROBLEM: usize = 300;

const PLATFORMS: [Platform; 6] =
    [Platform::None, Platform::Aws, Platform::Azure, Platform::Gcp, Platform::Vsphere, Platform::Nutanix];

/// Release file: hashes of the files that a release installs on hosts, and its renderings.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseFile {
    /// Version of the file format, always 1.
    schema: u32,
    /// Version of the operator.
    pub version: String,
    /// SHA-256 of `wicd.exe`, in lower-case hex.
    pub wicd: String,
    /// Payloads of the release, one for each minor version of Kubernetes.
    payloads: Vec<MinorPayload>,
    /// Renderings of the release for the reference clusters.
    references: Vec<Reference>,
}

/// Payload for a minor version of Kubernetes.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
struct MinorPayload {
    /// Minor version of Kubernetes, for example 36 for `1.36`. `None`: any version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kubernetes_minor: Option<u32>,
    manifest: Manifest,
}

/// Rendering of a release for a reference cluster.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Reference {
    platform: String,
    /// True if the cluster has a hybrid overlay.
    hybrid_overlay: bool,
    /// ConfigMap as stored in a cluster, without the files of the payload.
    config_map: ConfigMap,
}

/// Fault of a release file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseFileError {
    /// The file is larger than any release makes it.
    #[error("it has more than {} MiB; use the release.json that is published with the release", MAX_BYTES >> 20)]
    TooLarge,
    /// The file is not JSON of the right form.
    #[error("it is not valid: {0}; use the release.json that is published with the release")]
    Syntax(String),
    /// The file has another version of the format.
    #[error("it has schema {0}; this program reads {SCHEMA}. Run `plan` with the program of that release")]
    Schema(u32),
    /// A payload in the file is invalid.
    #[error(
        "it is damaged (payload for Kubernetes {minor}): {problem}; use the release.json that is published with the release",
        minor = minor.map_or("of any version".to_owned(), |minor| format!("1.{minor}"))
    )]
    Payload {
        /// Minor version of Kubernetes; `None`: any.
        minor: Option<u32>,
        /// Fault of the payload.
        problem: String,
    },
    /// A rendering of the release is invalid.
    #[error("it is damaged (platform {platform}): {problem}; use the release.json that is published with the release")]
    Reference {
        /// Platform of the rendering.
        platform: String,
        /// Fault of the rendering.
        problem: String,
    },
    /// Other content of the file is invalid.
    #[error("the {what} {problem}; use the release.json that is published with the release")]
    Content {
        /// Name of the content.
        what: &'static str,
        /// Fault of the content.
        problem: &'static str,
    },
}

/// Differences between what a release renders and what this program renders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderChange {
    /// Change on a host.
    pub change: Change,
    /// Message for users about a part that cannot be compared.
    pub unknown: Option<String>,
}

impl ReleaseFile {
    /// Creates the release file of this program, with this version, hash of `wicd.exe` and payloads.
    ///
    /// # Errors
    /// Fails if the services cannot be rendered from the newest payload for the least demanding reference cluster.
    pub fn new(version: &str, wicd: &str, payloads: BTreeMap<Option<u32>, Manifest>) -> Result<Self, RenderError> {
        let newest = payloads.values().next_back().cloned().unwrap_or_default();
        // The payload may lack programs that other clusters need.
        rendered(Platform::None, Network::External, &newest)?;
        let reference = |(platform, network)| {
            let rendered = rendered(platform, network, &newest).ok()?;
            Some(Reference {
                platform: platform.as_str().to_owned(),
                hybrid_overlay: network != Network::External,
                config_map: rendered.to_config_map("reference", "reference"),
            })
        };
        let references = references().filter_map(reference).collect();
        let payload = |(kubernetes_minor, manifest)| MinorPayload { kubernetes_minor, manifest };
        let payloads = payloads.into_iter().map(payload).collect();
        Ok(Self { schema: SCHEMA, version: version.to_owned(), wicd: wicd.to_owned(), payloads, references })
    }

    /// Reads and checks a release file.
    ///
    /// # Errors
    /// Fails if the file is too large, is not JSON of this form, has another schema, or has content that no release has.
    pub fn parse(json: &[u8]) -> Result<Self, ReleaseFileError> {
        /// Schema of a file, read first because other schemas have other fields.
        #[derive(Deserialize)]
        struct Head {
            schema: u32,
        }
        if json.len() > MAX_BYTES {
            return Err(ReleaseFileError::TooLarge);
        }
        let Head { schema } = serde_json::from_slice(json).map_err(|e| syntax(&e))?;
        if schema != SCHEMA {
            return Err(ReleaseFileError::Schema(schema));
        }
        let file: Self = serde_json::from_slice(json).map_err(|e| syntax(&e))?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), ReleaseFileError> {
        let refuse = |what, problem| Err(ReleaseFileError::Content { what, problem });
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
        if self.version.is_empty() || self.version.len() > MAX_VERSION || !self.version.chars().all(fits) {
            return refuse("version", "is not that of a release");
        }
        if !is_sha256(&self.wicd) {
            return refuse("hash of wicd.exe", "is not 64 lower-case hex digits");
        }
        if self.payloads.is_empty() || self.payloads.len() > MAX_PAYLOADS {
            return refuse("list of payloads", "is empty or too long");
        }
        let minors: BTreeSet<Option<u32>> = self.payloads.iter().map(|p| p.kubernetes_minor).collect();
        if minors.len() < self.payloads.len() {
            return refuse("list of payloads", "has two for one version of Kubernetes");
        }
        for MinorPayload { kubernetes_minor: minor, manifest } in &self.payloads {
            let invalid = |problem| ReleaseFileError::Payload { minor: *minor, problem };
            if manifest.schema != 1 {
                return Err(invalid("its schema is not 1".into()));
            }
            check_files(&manifest.files).map_err(|e| invalid(safe_message(&e)))?;
        }
        if self.references.len() > MAX_REFERENCES {
            return refuse("list of references", "is too long");
        }
        for reference in &self.references {
            reference.rendered()?;
        }
        Ok(())
    }

    /// Returns the payloads by minor version of Kubernetes.
    pub fn payloads(&self) -> BTreeMap<Option<u32>, Manifest> {
        self.payloads.iter().map(|p| (p.kubernetes_minor, p.manifest.clone())).collect()
    }

    /// Compares the renderings of the release and of this program for the reference cluster that is like `cluster`.
    ///
    /// # Errors
    /// Fails if the reference is invalid. If the file has no reference that is like `cluster`, or this program cannot render with the payload of the
    /// release, `unknown` says so.
    pub fn render_change(&self, cluster: &Cluster) -> Result<RenderChange, ReleaseFileError> {
        let is_like = |r: &&Reference| {
            r.platform == cluster.platform.as_str() && r.hybrid_overlay == (cluster.network != Network::External)
        };
        let unknown = |text: &str| Ok(RenderChange { change: Change::default(), unknown: Some(text.to_owned()) });
        let Some(reference) = self.references.iter().find(is_like) else {
            return unknown("the file does not say how the release renders services on this platform");
        };
        let theirs = reference.rendered()?;
        let newest = self.payloads().into_values().next_back().unwrap_or_default();
        let Ok(ours) = rendered(cluster.platform, overlay(reference.hybrid_overlay), &newest) else {
            return unknown("this program cannot render services from the payload of the release");
        };
        let change = change(&Stored::Ours(ours), &theirs);
        let unknown = (!reference.is_known(&theirs)).then(|| {
            "the release sets something that this program does not know: for the whole plan, run the program of the release".to_owned()
        });
        Ok(RenderChange { change, unknown })
    }
}

impl Reference {
    fn rendered(&self) -> Result<Rendered, ReleaseFileError> {
        let invalid = |e: StoredError| ReleaseFileError::Reference {
            platform: line(&self.platform, MAX_VERSION),
            problem: safe_message(&e),
        };
        match Rendered::from_config_map(&self.config_map).map_err(invalid)? {
            Stored::Ours(rendered) => Ok(rendered),
            Stored::Legacy(_) => {
                Err(ReleaseFileError::Content { what: "list of references", problem: "lacks the settings of hosts" })
            }
        }
    }

    /// Reports whether this program understands all of the reference.
    fn is_known(&self, understood: &Rendered) -> bool {
        let again = understood.to_config_map("reference", "reference");
        again.data == self.config_map.data && again.metadata.annotations == self.config_map.metadata.annotations
    }
}

fn syntax(error: &serde_json::Error) -> ReleaseFileError {
    ReleaseFileError::Syntax(safe_message(error))
}

/// Returns the text of an error, safe for a terminal: it may quote the file.
fn safe_message(error: &impl Display) -> String {
    line(&error.to_string(), MAX_PROBLEM)
}

fn overlay(has: bool) -> Network {
    if has { Network::OvnHybrid { vxlan_port: None } } else { Network::External }
}

fn references() -> impl Iterator<Item = (Platform, Network)> {
    PLATFORMS.into_iter().flat_map(|platform| [false, true].map(|has| (platform, overlay(has))))
}

/// Renders the configuration of a reference cluster. Its values are examples that never change.
fn rendered(platform: Platform, network: Network, payload: &Manifest) -> Result<Rendered, RenderError> {
    let certificate = "-----BEGIN CERTIFICATE-----\nreference\n-----END CERTIFICATE-----\n";
    let cluster = Cluster {
        api_server: "https://api.example.com:6443".into(),
        api_ca: certificate.into(),
        kubelet_client_ca: certificate.into(),
        service_cidr: "10.96.0.0/12".into(),
        cluster_dns: vec!["10.96.0.10".into()],
        cluster_domain: "cluster.local".into(),
        platform,
        network,
        external_cloud_provider: platform != Platform::None,
        ..Cluster::default()
    };
    let mut rendered = render(&cluster, payload, &Settings::default(), &TemplateSpec::default())?;
    // Payload files are compared one by one elsewhere.
    rendered.shared.files.clear();
    rendered.services.files.clear();
    Ok(rendered)
}

#[cfg(test)]
#[path = "release_file_tests.rs"]
mod tests;
