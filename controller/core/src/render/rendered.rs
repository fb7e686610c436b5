//! Rendered configuration of a pool, and its version.

use std::{collections::BTreeMap, fmt::Write as _, net::Ipv4Addr};

use api::{
    CloudProvider, ImageMirror, TemplateSpec,
    host::{ConfigFile, CredentialPlugin, LogRotation, path},
    payload::{self, File, Manifest},
    services::ServicesConfig,
    services_version,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    Cluster, HostParams, METADATA_ADDRESS, Platform, RenderError, Settings, check, containerd,
    context::Context,
    credential_plugin, credential_provider,
    files::{self, Programs},
    kubelet, pool_facts, prerequisites, program,
    services::{has_node_manager, services},
};

/// Version of the algorithm of [`Rendered::hash`], raised with each change of the algorithm. The number is stored with each version, but is not part
/// of the hash.
pub const HASH_VERSION: u32 = 1;

/// Rendered configuration of a pool, without the parts that depend on the host. Immutable once stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// Services of the hosts.
    pub services: ServicesConfig,
    /// Configuration apart from the services.
    pub shared: Shared,
}

/// Part of [`Rendered`] apart from the services.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Shared {
    /// [`HASH_VERSION`] of the operator that rendered the version.
    pub hash_version: u32,
    /// Payload files for the cluster's platform. Of the plugins of Container Credential Guard, only the pool's is among them.
    pub files: Vec<File>,
    /// `KubeletConfiguration` without `registerWithTaints`: taints depend on the host and are changed in place.
    pub kubelet: Value,
    /// Drop-in for containerd, in TOML. `None` if the pool has no settings of containerd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containerd: Option<String>,
    /// Rotation of logs that wicd rotates. `None` if log rotation is disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<LogRotation>,
    /// Address of the cloud's metadata service. `None` if the hosts are not in a cloud that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_address: Option<Ipv4Addr>,
    /// Registries whose logins hosts get. `None` if the pool has no list, so that hosts get all logins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_secret_registries: Option<Vec<String>>,
    /// PEM certificates that hosts trust in addition to those of the cluster. `None` if the pool has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted_certificates: Option<String>,
    /// Mirrors of registries that come before those of the cluster. `None` if the pool has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_mirrors: Option<Vec<ImageMirror>>,
    /// gMSA accounts that hosts are checked for. Hosts do not get them; a change makes a new version, so that hosts are checked again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_accounts: Vec<String>,
    /// Plugin of Container Credential Guard. `None` if the pool names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential_plugin: Option<CredentialPlugin>,
    /// Path and SHA-256 of each file that depends on the cluster, and on the pool's logins, certificates and mirrors, apart from the exporter's
    /// private key. Contains neither contents nor secrets.
    pub cluster_files: BTreeMap<String, String>,
}

/// Renders the configuration of a pool's hosts. The operator's settings take precedence over the defaults, the pool's settings over both.
///
/// # Errors
/// [`RenderError::Fact`] if a fact of `cluster` cannot be used. [`RenderError::Setting`] or [`RenderError::Metadata`] if a setting of `template`
/// cannot be used. [`RenderError::NoPrograms`] if `payload` lacks a program that the cluster needs. [`RenderError::Skew`] if the API server does not
/// support its kubelet.
pub fn render(
    cluster: &Cluster,
    payload: &Manifest,
    settings: &Settings,
    template: &TemplateSpec,
) -> Result<Rendered, RenderError> {
    check::files(cluster)?;
    let cluster = &pool_facts::of_pool(cluster, template)?;
    let logs = settings.logs.of_pool(template.logs.as_ref())?;
    let settings = &Settings { logs, ..settings.clone() };
    let plugin = credential_plugin::of_pool(template);
    // Filtered before use: the services must not list files that hosts must not have.
    let files = credential_plugin::files(payload.files.clone(), plugin.as_ref())?;
    let payload = &Manifest { files, ..payload.clone() };
    let context = Context { cluster, payload, settings };
    let containerd = template.containerd.clone().unwrap_or_default();
    let has_containerd = context.has(program::CONTAINERD) && context.has(program::CONTAINERD_CONFIG);
    let services = services(cluster, payload, settings)?;
    let programs = Programs {
        credential_providers: credential_provider::config(|file| context.has(file)),
        node_manager: has_node_manager(&services),
    };
    let shared = Shared {
        hash_version: HASH_VERSION,
        files: payload.for_platform(cluster.platform.as_str()),
        kubelet: kubelet::config(
            cluster,
            prerequisites::kubelet(payload).map(|(_, minor)| minor),
            settings,
            &template.kubelet.clone().unwrap_or_default(),
        )?,
        containerd: containerd::drop_in(&containerd, has_containerd)?,
        logs: settings.logs.rotation(),
        metadata_address: metadata_address(cluster, template),
        cluster_files: files::hashes(
            cluster,
            &programs,
            &cluster.pull_secret.of_hosts(template.pull_secret_registries.as_deref()),
        ),
        pull_secret_registries: template.pull_secret_registries.clone(),
        trusted_certificates: template.trusted_certificates.clone(),
        image_mirrors: template.image_mirrors.clone(),
        service_accounts: service_accounts(template),
        credential_plugin: plugin,
    };
    Ok(Rendered { services, shared })
}

/// Returns the address of the metadata service. A pool whose hosts the cloud does not know has none.
fn metadata_address(cluster: &Cluster, template: &TemplateSpec) -> Option<Ipv4Addr> {
    let chosen = template.kubelet.as_ref().and_then(|kubelet| kubelet.cloud_provider);
    let is_there = matches!(cluster.platform, Platform::Aws | Platform::Azure | Platform::Gcp);
    (is_there && chosen != Some(CloudProvider::None)).then_some(METADATA_ADDRESS)
}

/// Returns the gMSA accounts that the hosts of a pool are checked for, sorted.
fn service_accounts(template: &TemplateSpec) -> Vec<String> {
    let mut accounts = template.gmsa.as_ref().and_then(|gmsa| gmsa.accounts.clone()).unwrap_or_default();
    accounts.sort();
    accounts.dedup();
    accounts
}

impl Rendered {
    /// Reports whether a cloud controller manager is responsible for the Nodes.
    pub fn has_cloud_controller(&self) -> bool {
        self.services.services.iter().any(|s| s.name == "kubelet" && s.path.contains(kubelet::EXTERNAL_CLOUD))
    }

    /// Returns the hash of the version's effect on a host, in 64 hex digits. The order of a list in which order has no meaning, and fields that only
    /// the operator uses, do not count.
    /// Comparable only with hashes of the same operator, see [`HASH_VERSION`]: a stored version is hashed again.
    pub fn hash(&self) -> String {
        let Shared {
            hash_version: _,
            files,
            kubelet,
            containerd,
            logs,
            metadata_address,
            pull_secret_registries,
            trusted_certificates,
            image_mirrors,
            service_accounts,
            credential_plugin,
            cluster_files,
        } = &self.shared;
        let mut hash = Sha256::new();
        // Lengths separate one text from the next.
        let mut add = |key: &str, text: &str| hash.update(format!("{key} {}\n{text}\n", text.len()));
        for (key, text) in canonical_services(&self.services).to_data() {
            add(&key, &text);
        }
        add("payload", &payload::digest(files));
        add("kubelet", &canonical_json(kubelet));
        if let Some(text) = containerd {
            add("containerd", text);
        }
        if let Some(LogRotation { max_bytes, max_age_seconds }) = logs {
            add("logs", &format!("{max_bytes} {max_age_seconds}"));
        }
        if let Some(address) = metadata_address {
            add("metadata address", &address.to_string());
        }
        // The logins may be the same today, but differ when the secret changes.
        if let Some(registries) = pull_secret_registries {
            add("pull secret", &format!("{registries:?}"));
        }
        // The files may be the same today, but differ when the cluster changes.
        if let Some(pem) = trusted_certificates {
            add("trusted certificates", pem.trim());
        }
        if let Some(mirrors) = image_mirrors {
            add("image mirrors", &format!("{mirrors:?}"));
        }
        if !service_accounts.is_empty() {
            add("service accounts", &service_accounts.join(" "));
        }
        if let Some(CredentialPlugin { clsid, library }) = credential_plugin {
            add("credential plugin", &format!("{clsid} {library}"));
        }
        for (path, sha256) in cluster_files {
            add(path, sha256);
        }
        hex::encode(hash.finalize())
    }

    /// Returns everything that is not in the data of the ConfigMap that stores the version, as JSON.
    pub(super) fn annotation(&self) -> String {
        // Serialization does not fail: all keys are strings.
        serde_json::to_string(&self.shared).unwrap_or_default()
    }

    /// Returns the name of the version, valid in object names: `<operator version>-<digest of the stored content>`.
    pub fn name(&self, operator_version: &str) -> String {
        // Build metadata, as in `1.2.3+abc`, is valid in a version but not in a name.
        let fit = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' { c } else { '-' };
        let version: String = operator_version.to_ascii_lowercase().chars().map(fit).collect();
        let digest = services_version::digest(&self.services.to_data(), &self.annotation());
        format!("{}-{digest}", version.trim_matches(['-', '.']))
    }

    /// Returns the digest of the payload files.
    pub fn payload_digest(&self) -> String {
        payload::digest(&self.shared.files)
    }

    /// Returns the payload files.
    pub fn files(&self) -> &[File] {
        &self.shared.files
    }

    /// Returns the PEM certificates that hosts trust machine-wide: those of the cluster as it is now, and of the pool.
    pub fn trusted_ca(&self, cluster: &Cluster) -> String {
        self.of_version(cluster).trusted_ca.unwrap_or_default()
    }

    /// Returns the cluster with the certificates and mirrors of the version's pool.
    fn of_version(&self, cluster: &Cluster) -> Cluster {
        let Shared { trusted_certificates, image_mirrors, .. } = &self.shared;
        pool_facts::with_files(cluster.clone(), trusted_certificates.as_deref(), image_mirrors.as_deref())
    }

    /// Returns the configuration files of one host, sorted by path. kubelet's configuration, apart from its taints, and the pool's settings of
    /// containerd are as they were rendered, so that a host can go back to an older version. Files of the cluster are as the cluster is now, because
    /// older ones would be useless.
    ///
    /// # Errors
    /// [`RenderError::Fact`] if a fact of `cluster`, or the name or address of the node in `host`, cannot be used.
    pub fn configs(&self, cluster: &Cluster, host: &HostParams) -> Result<Vec<ConfigFile>, RenderError> {
        check::files(cluster)?;
        check::host(host)?;
        let cluster = &self.of_version(cluster);
        let has = |destination: &str| self.files().iter().any(|f| f.destination.eq_ignore_ascii_case(destination));
        let programs = Programs {
            credential_providers: credential_provider::config(has),
            node_manager: has_node_manager(&self.services),
        };
        let mut configs = files::of_cluster(cluster, &programs, &host.node_name);
        let kubelet = kubelet::with_taints(self.shared.kubelet.clone(), &host.taints);
        configs.push(files::file(path::KUBELET_CONFIG, files::text(&kubelet)));
        let logins = cluster.pull_secret.of_hosts(self.shared.pull_secret_registries.as_deref());
        configs.extend(files::of_registries(cluster, &logins));
        configs.extend(self.shared.containerd.clone().map(|text| files::file(program::CONTAINERD_DROP_IN, text)));
        configs.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(configs)
    }
}

/// Returns the name of the version for a rendering: the `current` name if that version has the same effect on a host, otherwise the name of the
/// rendering itself. A new operator that renders the same thus changes no host.
pub fn version_for(rendered: &Rendered, operator_version: &str, current: Option<(&str, &Rendered)>) -> String {
    match current {
        Some((name, current)) if current.hash() == rendered.hash() => name.to_owned(),
        _ => rendered.name(operator_version),
    }
}

/// Returns the services with each list sorted whose order has no meaning.
fn canonical_services(services: &ServicesConfig) -> ServicesConfig {
    let mut canonical = services.clone();
    canonical.services.sort_by(|a, b| (a.priority, &a.name).cmp(&(b.priority, &b.name)));
    for service in &mut canonical.services {
        service.dependencies.sort();
        service.node_variables_in_command.sort_by(|a, b| a.name.cmp(&b.name));
        service.host_variables_in_command.sort_by(|a, b| a.name.cmp(&b.name));
    }
    canonical.files.sort_by(|a, b| a.path.cmp(&b.path));
    canonical.watched_environment_vars.sort();
    canonical
}

/// Returns a text for a JSON value in which keys are sorted, whatever the order of the map. The text is for hashes, and is not valid JSON.
fn canonical_json(value: &Value) -> String {
    fn write(value: &Value, out: &mut String) {
        match value {
            Value::Object(map) => {
                let sorted: BTreeMap<&String, &Value> = map.iter().collect();
                out.push('{');
                for (key, value) in sorted {
                    // Writing to a string does not fail.
                    let _ = write!(out, "{}:", Value::from(key.as_str()));
                    write(value, out);
                    out.push(',');
                }
                out.push('}');
            }
            Value::Array(items) => {
                out.push('[');
                for item in items {
                    write(item, out);
                    out.push(',');
                }
                out.push(']');
            }
            scalar => {
                let _ = write!(out, "{scalar}");
            }
        }
    }
    let mut out = String::new();
    write(value, &mut out);
    out
}

#[cfg(test)]
#[path = "rendered_tests.rs"]
mod tests;
