//! Answers of a host. Untrusted until checked.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{AccountState, Antivirus, Owner, RestartCause};

/// Kinds of certificates that a host gets.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum CertificateKind {
    /// kubelet's client certificate: `system:node:<node>`.
    Kubelet,
    /// wicd's client certificate: `system:wicd-node:<node>`.
    Wicd,
}

/// Answer of `wicd.exe`. Untrusted until checked: a host can send any content.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The operation, repeated.
    pub operation: String,
    /// Outcome of the request.
    pub outcome: Outcome,
    /// State of the host afterwards. Absent if it could not be determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<HostState>,
    /// PEM certificate requests, after `apply`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<CertificateKind, String>,
    /// Warnings for users: problems that did not stop the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Images of the request that the host does not have, after `pull`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_images: Vec<String>,
}

/// Outcome of the request.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Done.
    Done,
    /// Done, and the host must be restarted before it takes full effect.
    RebootRequired {
        /// Reason, in a sentence.
        why: String,
    },
    /// Failed.
    Failed {
        /// PascalCase word, for example `DiskFull`, `HashMismatch`, `StaleEpoch`, `HostCallFailed`.
        reason: String,
        /// A sentence, with what to do.
        message: String,
    },
}

/// State of a host.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct HostState {
    /// The host itself.
    pub machine: Machine,
    /// The version and owner on record, if the operator has configured the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marker: Option<Marker>,
    /// SHA-256 of those payload files of the request that the host lacks.
    #[serde(default)]
    pub missing: Vec<String>,
    /// State of wicd's service.
    pub wicd: ServiceState,
    /// SHA-256 of the exe that wicd's service runs, from its command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wicd_sha256: Option<String>,
    /// State of the other services of the operator.
    #[serde(default)]
    pub services: BTreeMap<String, ServiceState>,
    /// Certificates on the host: kind and end of validity, Unix seconds. kubelet's is the newest of first and rotated.
    #[serde(default)]
    pub certificates: BTreeMap<CertificateKind, i64>,
    /// Reason why the host must be restarted before it can be a node. Absent if it need not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_required: Option<String>,
    /// Services with names that the operator uses, but that it did not install, for example a kubelet of another
    /// installer.
    #[serde(default)]
    pub foreign_services: Vec<String>,
    /// Services of container runtimes and node agents of others that are not disabled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_runtimes: Vec<String>,
    /// Reason why the host cannot reach the API server of the request. Absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_server: Option<String>,
    /// Ports of the request on which a program listens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports_in_use: Vec<u16>,
    /// Causes for which Windows itself waits for a restart. This and what follows are only in answers to requests for facts.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub restart_causes: BTreeSet<RestartCause>,
    /// Program that checks files for malware.
    #[serde(default)]
    pub antivirus: Antivirus,
    /// State of the accounts of the request, on a host that is a member of a domain.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_accounts: BTreeMap<String, AccountState>,
    /// Plugins of Container Credential Guard that other installers registered: class, and the library or what else was found. Also the class
    /// of the request, if any part of such a registration is there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub foreign_credential_plugins: BTreeMap<String, String>,
}

/// Facts about a host.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Host name of the host itself.
    pub hostname: String,
    /// Machine id: registry `HKLM\SOFTWARE\Microsoft\Cryptography` `MachineGuid`.
    pub machine_id: String,
    /// Boot id: registry `…\Memory Management\PrefetchParameters` `BootId`, as kubelet reports it.
    pub boot_id: String,
    /// Version of Windows, for example `10.0.20348.2527`.
    pub os_build: String,
    /// Name of Windows, for example `Windows Server 2022 Datacenter`.
    pub os_name: String,
    /// Clock, Unix milliseconds.
    pub clock_ms: i64,
    /// Milliseconds since the last start; 0 if unknown.
    #[serde(default)]
    pub uptime_ms: i64,
    /// Addresses, without loopback and link-local ones.
    pub addresses: Vec<String>,
    /// Address of the interface that has the default route, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_address: Option<String>,
    /// Free bytes on C:.
    pub disk_free: u64,
    /// True if wicd runs with administrator's rights.
    pub is_admin: bool,
    /// State of the Windows feature Containers.
    pub containers_feature: Feature,
    /// DNS name of the Active Directory domain that it is a member of, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Language of Windows, for example `de-DE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
}

/// State of a Windows feature.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub enum Feature {
    /// Installed.
    Enabled,
    /// Not installed.
    Disabled,
    /// Could not be determined.
    #[default]
    Unknown,
}

/// State of a Windows service.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub enum ServiceState {
    /// Does not exist.
    #[default]
    Missing,
    /// Stopped.
    Stopped,
    /// Starting or stopping.
    Pending,
    /// Running.
    Running,
}

/// Version and operation that a host follows, as wicd last wrote them.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Marker {
    /// The last operation that changed the host.
    pub operation: String,
    /// Newest epoch that the host has received.
    pub epoch: i64,
    /// Id of the cluster: UID of its Namespace `kube-system`.
    #[serde(default)]
    pub cluster_id: String,
    /// Name of the Node.
    pub node_name: String,
    /// The pool.
    pub pool: String,
    /// Version of the services.
    pub version: String,
    /// Digest of the payload that is in place.
    pub payload: String,
    /// SHA-256 over paths and contents of the configuration files that are in place, see [`configs_digest`].
    pub configs: String,
}

impl Marker {
    /// The owner of the host.
    pub fn owner(&self) -> Owner {
        Owner { cluster_id: self.cluster_id.clone(), node_name: self.node_name.clone() }
    }
}
