//! Answers from a host. Untrusted until checked.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{AccountState, Antivirus, Owner, RestartCause};

/// Kind of a certificate that a host gets.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum CertificateKind {
    /// kubelet's client certificate: `system:node:<node>`.
    Kubelet,
    /// wicd's client certificate: `system:wicd-node:<node>`.
    Wicd,
}

/// Answer from `wicd.exe`. Untrusted until checked: a host can send any content.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Protocol version, [`super::PROTOCOL`].
    pub protocol: u32,
    /// ID of the operation, as in the request.
    pub operation: String,
    /// Outcome of the operation.
    pub outcome: Outcome,
    /// State of the host afterwards. Absent if it could not be determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<HostState>,
    /// PEM certificate requests, after `apply`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<CertificateKind, String>,
    /// Warnings for users about problems that did not stop the operation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Images of the request that the host does not have, after `pull`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_images: Vec<String>,
}

/// Outcome of the operation.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Operation that has succeeded.
    Done,
    /// Operation that has succeeded, and that takes full effect only after a restart of the host.
    RebootRequired {
        /// Reason for the restart, in a sentence.
        why: String,
    },
    /// Operation that has failed.
    Failed {
        /// Reason as a PascalCase word, for example `DiskFull`, `HashMismatch`, `StaleEpoch`, `HostCallFailed`.
        reason: String,
        /// Message with the cause and the remedy.
        message: String,
    },
}

/// State of a host.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct HostState {
    /// Facts about the host itself.
    pub machine: Machine,
    /// Version and owner on record, if the operator has configured the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marker: Option<Marker>,
    /// SHA-256 of the payload files in the request that the host lacks.
    #[serde(default)]
    pub missing: Vec<String>,
    /// State of wicd's service.
    pub wicd: ServiceState,
    /// SHA-256 of the `wicd.exe` that wicd's service runs, from its command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wicd_sha256: Option<String>,
    /// States of the operator's other services.
    #[serde(default)]
    pub services: BTreeMap<String, ServiceState>,
    /// Expiry times of the certificates on the host, in Unix seconds. For kubelet, the later time of its first and its rotated certificate.
    #[serde(default)]
    pub certificates: BTreeMap<CertificateKind, i64>,
    /// Reason why the host must be restarted before it can be a node. Absent if no restart is necessary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_required: Option<String>,
    /// Services that another installer has created under names that the operator uses, for example a kubelet.
    #[serde(default)]
    pub foreign_services: Vec<String>,
    /// Services of other container runtimes and node agents that are not disabled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_runtimes: Vec<String>,
    /// Reason why the host cannot reach the API server of the request. Absent if it can. This field and those after it are set only in answers to
    /// requests for facts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_server: Option<String>,
    /// Ports in the request that cannot be bound: a program listens on them, or Windows reserves them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports_in_use: Vec<u16>,
    /// Causes for which Windows itself waits for a restart.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub restart_causes: BTreeSet<RestartCause>,
    /// Antivirus programs of the host.
    #[serde(default)]
    pub antivirus: Antivirus,
    /// States of the accounts in the request, on a host that is a member of a domain.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_accounts: BTreeMap<String, AccountState>,
    /// Plugins of Container Credential Guard that other installers registered, by class, with the library or the registry key that was
    /// found. Includes the class in the request if any part of such a registration exists.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub foreign_credential_plugins: BTreeMap<String, String>,
}

/// Facts about a host.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Host name that Windows reports.
    pub hostname: String,
    /// Machine ID: registry `HKLM\SOFTWARE\Microsoft\Cryptography` `MachineGuid`.
    pub machine_id: String,
    /// Boot ID: registry `…\Memory Management\PrefetchParameters` `BootId`, as kubelet reports it.
    pub boot_id: String,
    /// Version of Windows, for example `10.0.20348.2527`.
    pub os_build: String,
    /// Name of Windows, for example `Windows Server 2022 Datacenter`.
    pub os_name: String,
    /// Time of the host's clock, in Unix milliseconds.
    pub clock_ms: i64,
    /// Milliseconds since the last start of the host; 0 if unknown.
    #[serde(default)]
    pub uptime_ms: i64,
    /// IP addresses of the host, without loopback and link-local ones.
    pub addresses: Vec<String>,
    /// Address of the interface that has the default route, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_address: Option<String>,
    /// Free bytes on C:.
    pub disk_free: u64,
    /// True if wicd runs with administrator rights.
    pub is_admin: bool,
    /// State of the Windows feature Containers.
    pub containers_feature: Feature,
    /// DNS name of the host's Active Directory domain, if any.
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
    /// Installed feature.
    Enabled,
    /// Feature that is not installed.
    Disabled,
    /// State that could not be determined.
    #[default]
    Unknown,
}

/// State of a Windows service.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub enum ServiceState {
    /// Service that does not exist.
    #[default]
    Missing,
    /// Stopped service.
    Stopped,
    /// Service that is starting or stopping.
    Pending,
    /// Running service.
    Running,
}

/// Record of the version that a host follows, of its owner, and of the last operation. Written by wicd.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Marker {
    /// ID of the last operation that configured the host.
    pub operation: String,
    /// Epoch of that operation, or a lower one of a request that declared it void.
    pub epoch: i64,
    /// ID of the cluster: UID of its Namespace `kube-system`.
    #[serde(default)]
    pub cluster_id: String,
    /// Name of the Node.
    pub node_name: String,
    /// Name of the pool.
    pub pool: String,
    /// Version of the services.
    pub version: String,
    /// Digest of the payload on the host.
    pub payload: String,
    /// SHA-256 over paths and contents of the configuration files on the host, see [`super::configs_digest`].
    pub configs: String,
}

impl Marker {
    /// Returns the owner of the host.
    pub fn owner(&self) -> Owner {
        Owner { cluster_id: self.cluster_id.clone(), node_name: self.node_name.clone() }
    }
}
