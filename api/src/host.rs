//! Protocol between the operator and `wicd.exe` while the operator works on a host over SSH.
//!
//! For each [`Verb`] the operator writes a [`Request`] to `<operation directory>\<verb>.request.json` over SFTP, starts
//! `C:\windows\wicd\<sha256 of the exe>\wicd.exe <verb> <operation id>`, and reads the [`Answer`] from
//! `<operation directory>\<verb>.answer.json`. The exit status reports whether an answer exists: with [`EXIT_ANSWERED`]
//! it does (and may report a failure); with any other status it does not. The output of the process is only logged.
//!
//! Requests may contain secrets (files such as TLS keys). Answers never do, because private keys that a host creates stay on it.

mod answer;
mod survey;

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{payload, services::ServicesConfig};
pub use answer::*;
pub use survey::*;

/// Version of this protocol. wicd refuses any other; operator and wicd are always delivered together.
pub const PROTOCOL: u32 = 2;
/// Interval at which wicd's service writes the time of its last check of the host to the Node.
pub const REPORT_INTERVAL: Duration = Duration::from_mins(10);
/// Exit status of `wicd.exe` when it has written an answer.
pub const EXIT_ANSWERED: u32 = 0;
/// Maximum size of an answer that the operator reads, in bytes.
pub const MAX_ANSWER: usize = 1 << 20;

/// Paths on a host. Paths marked "Legacy" are those of WMCO.
pub mod path {
    /// Root directory of most of the operator's files. Legacy.
    pub const ROOT: &str = r"C:\k";
    /// Directory of the files that the operator uploads over SFTP: `<sha256>\wicd.exe`, which it starts, and [`OPERATIONS`]. Only administrators can
    /// write below `C:\Windows`, so no other user can own a file there; wicd also restricts reading before the operator sends the first secret.
    pub const LAUNCH: &str = r"C:\windows\wicd";
    /// Directory with the uploaded archive, and with a subdirectory for the requests and answers of each operation in progress.
    pub const OPERATIONS: &str = r"C:\windows\wicd\operations";
    /// Directory of wicd's service: `<sha256>\wicd.exe`, and its records such as [`STATE`] and [`OWNED`]. wicd creates and protects the directory.
    pub const WICD: &str = r"C:\k\wicd";
    /// Lock file that serialises changes of the host.
    pub const LOCK: &str = r"C:\k\wicd\lock";
    /// File with the newest epoch of an operator that the host has received.
    pub const EPOCH: &str = r"C:\k\wicd\epoch";
    /// File with the version that the host follows, as wicd last wrote it: a [`super::Marker`].
    pub const STATE: &str = r"C:\k\wicd\state.json";
    /// Ownership record: file with the paths, services, variables and certificates that wicd has put on the host and a cleanup removes.
    pub const OWNED: &str = r"C:\k\wicd\owned.json";
    /// File with the last good copy of the desired state that the service maintains: a [`super::Desired`].
    pub const DESIRED: &str = r"C:\k\wicd\desired.json";
    /// Directory of the payload files, named by the SHA-256 of their content. Destinations are hard links to them.
    pub const BLOBS: &str = r"C:\k\wicd\blobs";
    /// Directory of hybrid-overlay-node's certificates and keys. Legacy.
    pub const OVERLAY_CERTS: &str = r"C:\k\cni\config";
    /// Directory of wicd's certificates and keys.
    pub const WICD_CERTS: &str = r"C:\k\wicd-certs";
    /// wicd's current certificate and key, in one PEM file. Legacy.
    pub const WICD_CERT: &str = r"C:\k\wicd-certs\wicd-client-current.pem";
    /// kubeconfig of wicd's service; names [`WICD_CERT`]. Legacy.
    pub const WICD_KUBECONFIG: &str = r"C:\k\wicd-kubeconfig";
    /// kubelet's kubeconfig, which wicd derives from [`NODE_KUBECONFIG`] by embedding kubelet's first certificate and key. Legacy.
    pub const KUBELET_KUBECONFIG: &str = r"C:\k\kubeconfig";
    /// kubeconfig for clients other than kubelet that authenticate as the Node; names [`KUBELET_CURRENT_CERT`].
    pub const NODE_KUBECONFIG: &str = r"C:\k\node-kubeconfig";
    /// kubeconfig of the cloud-node-manager; names [`NODE_MANAGER_TOKEN`].
    pub const NODE_MANAGER_KUBECONFIG: &str = r"C:\k\cloud-node-manager-kubeconfig";
    /// Token of the cloud-node-manager, which wicd requests and renews.
    pub const NODE_MANAGER_TOKEN: &str = r"C:\k\cloud-node-manager-token";
    /// kubelet's first certificate and key, in one PEM file. kubelet stores a copy in [`KUBELET_PKI`] at its start, and renews it there.
    pub const KUBELET_FIRST_CERT: &str = r"C:\k\kubelet-first.pem";
    /// Registry logins, which kubelet reads from its root directory.
    pub const REGISTRY_LOGINS: &str = r"C:\var\lib\kubelet\config.json";
    /// kubelet's configuration. Legacy.
    pub const KUBELET_CONFIG: &str = r"C:\k\kubelet.conf";
    /// CA with which kubelet verifies its clients. Legacy.
    pub const KUBELET_CA: &str = r"C:\k\kubelet-ca.crt";
    /// CA of the API server. Legacy.
    pub const API_CA: &str = r"C:\k\bootstrap-ca.crt";
    /// Directory of kubelet's own certificates. Legacy.
    pub const KUBELET_PKI: &str = r"C:\var\lib\kubelet\pki";
    /// kubelet's newest certificate and key: a symbolic link that kubelet creates at its start, and updates with each renewal.
    pub const KUBELET_CURRENT_CERT: &str = r"C:\var\lib\kubelet\pki\kubelet-client-current.pem";
    /// Directory of the libraries of plugins of Container Credential Guard. Windows loads a registered library even after the host was released,
    /// so only administrators may be able to create files here. A registration is wicd's if its library is in this directory.
    pub const CREDENTIAL_PLUGINS: &str = r"C:\windows\wicd-ccg";
    /// Directory of FlexVolume drivers, whose programs kubelet starts.
    pub const VOLUME_PLUGINS: &str = r"C:\k\volume-plugins";
    /// Directory of logs. Legacy.
    pub const LOGS: &str = r"C:\var\log";
}

/// Name of wicd's Windows service. Legacy.
pub const WICD_SERVICE: &str = "windows-instance-config-daemon";
/// Default lifetime of wicd's certificates. A running host renews its certificate so early that at least three fifths of the lifetime are left, which
/// is longer than a long weekend for which the host may be switched off.
pub const WICD_CERTIFICATE_LIFE: Duration = Duration::from_hours(7 * 24);
/// Maximum lifetime that the operator approves for a certificate of wicd.
pub const MAX_WICD_CERTIFICATE_LIFE: Duration = Duration::from_hours(7 * 24);
/// Prefix of the descriptions of the operator's services. Legacy.
pub const SERVICE_DESCRIPTION_PREFIX: &str = "OpenShift managed ";

/// Command that the operator gives to `wicd.exe`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Report facts without a change of the host: [`Facts`].
    Facts,
    /// Unpack and verify payload files: [`Stage`].
    Stage,
    /// Put files in place, write configuration, create keys and certificate requests: [`Apply`].
    Apply,
    /// Install certificates, install and start wicd's service: [`Start`].
    Start,
    /// Restart the host: [`Reboot`].
    Reboot,
    /// Pull and pin images: [`Pull`].
    Pull,
    /// Remove everything that the ownership record lists: [`Cleanup`].
    Cleanup,
    /// Collect support data in an archive, without another change of the host: [`Support`].
    Support,
}

impl Verb {
    /// Name of the verb on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Facts => "facts",
            Self::Stage => "stage",
            Self::Apply => "apply",
            Self::Start => "start",
            Self::Reboot => "reboot",
            Self::Pull => "pull",
            Self::Cleanup => "cleanup",
            Self::Support => "support",
        }
    }
}

/// Path of the `wicd.exe` with this content hash that the operator sends, verifies and starts.
pub fn launcher_path(sha256: &str) -> String {
    format!(r"{}\{sha256}\wicd.exe", path::LAUNCH)
}

/// Path of the `wicd.exe` with this content hash that the service runs. wicd puts it there.
pub fn exe_path(sha256: &str) -> String {
    format!(r"{}\{sha256}\wicd.exe", path::WICD)
}

/// Directory of an operation.
pub fn operation_dir(id: &str) -> String {
    format!(r"{}\{id}", path::OPERATIONS)
}

/// Path of a request.
pub fn request_path(id: &str, verb: Verb) -> String {
    format!(r"{}\{}.request.json", operation_dir(id), verb.as_str())
}

/// Path of the archive that [`Verb::Support`] writes.
pub fn support_path(id: &str) -> String {
    format!(r"{}\support.tar.zst", operation_dir(id))
}

/// Path of an answer.
pub fn answer_path(id: &str, verb: Verb) -> String {
    format!(r"{}\{}.answer.json", operation_dir(id), verb.as_str())
}

/// Command line that starts `wicd.exe`: short, ASCII, without characters that a shell interprets.
pub fn command(exe_sha256: &str, verb: Verb, id: &str) -> String {
    format!("{} {} {id}", launcher_path(exe_sha256), verb.as_str())
}

/// Reports whether `id` may name an operation: lower-case letters, digits and `-`, 1 to 63.
pub fn is_operation_id(id: &str) -> bool {
    (1..=63).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Request for one verb.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Protocol version, [`PROTOCOL`].
    pub protocol: u32,
    /// ID of the operation.
    pub operation: String,
    /// Epoch of the operator's Lease. wicd refuses an epoch that is older than the newest that the host has received from this cluster.
    pub epoch: i64,
    /// Recipient of the request. wicd refuses a request for another recipient.
    #[serde(default)]
    pub recipient: Recipient,
    /// Owner of the host according to its own record, if this request transfers the host to the recipient. wicd refuses a request that changes the
    /// host if the record names another owner than the recipient or this one, and a cleanup if the record names another cluster or Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<Owner>,
    /// Epoch that a user has declared void. wicd ignores the newest epoch that the host has received if it equals this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void_epoch: Option<i64>,
    /// Requested operation with its parameters.
    pub body: Body,
}

/// Recipient of a request. [`Verb::Facts`] and [`Verb::Support`], which write only files of their operation, work without a recipient.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Recipient {
    /// ID of the cluster: UID of its Namespace `kube-system`.
    pub cluster_id: String,
    /// Name of the Node.
    pub node_name: String,
    /// Machine ID, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
}

/// Owner of a host according to the host's own record, see [`Marker::owner`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// ID of the cluster. Empty in a record that names none.
    pub cluster_id: String,
    /// Name of the Node.
    pub node_name: String,
}

/// Requested operation with its parameters.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum Body {
    /// Parameters of [`Verb::Facts`].
    Facts(Facts),
    /// Parameters of [`Verb::Stage`].
    Stage(Stage),
    /// Parameters of [`Verb::Apply`].
    Apply(Box<Apply>),
    /// Parameters of [`Verb::Start`].
    Start(Start),
    /// Parameters of [`Verb::Reboot`].
    Reboot(Reboot),
    /// Parameters of [`Verb::Pull`].
    Pull(Pull),
    /// Parameters of [`Verb::Cleanup`].
    Cleanup(Cleanup),
    /// Parameters of [`Verb::Support`].
    Support(Support),
}

impl Body {
    /// Returns the verb of the request.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Facts(_) => Verb::Facts,
            Self::Stage(_) => Verb::Stage,
            Self::Apply(_) => Verb::Apply,
            Self::Start(_) => Verb::Start,
            Self::Reboot(_) => Verb::Reboot,
            Self::Pull(_) => Verb::Pull,
            Self::Cleanup(_) => Verb::Cleanup,
            Self::Support(_) => Verb::Support,
        }
    }
}

/// Parameters of [`Verb::Facts`]: report facts without a change of the host.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// Files that the host must have: the answer reports which blobs are missing.
    pub files: Vec<payload::File>,
    /// URL of the API server, to which the host opens and closes a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_server: Option<String>,
    /// TCP ports that must be free.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// Names of group Managed Service Accounts (gMSA) whose passwords the host must be able to retrieve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_accounts: Vec<String>,
    /// Class of the plugin of Container Credential Guard that the host must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential_plugin: Option<String>,
}

/// Parameters of [`Verb::Stage`]: unpack and verify payload files.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// All files that the host must have.
    pub files: Vec<payload::File>,
    /// Name of the archive in [`path::OPERATIONS`]: a tar file whose entries are named by the SHA-256 of their content and hold one zstd frame each.
    /// wicd refuses an archive with other entries than those of `files`, and deletes the archive in any case.
    pub archive: String,
}

/// Parameters of [`Verb::Apply`]: put files in place, write configuration, create keys and certificate requests, without starting a service.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Apply {
    /// Desired state of the host; becomes [`path::DESIRED`].
    pub desired: Desired,
    /// All payload files; their blobs must exist on the host.
    pub files: Vec<payload::File>,
    /// Configuration files to write.
    pub configs: Vec<ConfigFile>,
    /// Certificates to request, unless the host already has a valid one.
    pub certificates: Vec<CertificateKind>,
    /// SHA-256 of the `wicd.exe` that the service must run.
    pub wicd_sha256: String,
}

/// Desired state of a host, which wicd's service maintains.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Desired {
    /// ID of the cluster: UID of its Namespace `kube-system`.
    #[serde(default)]
    pub cluster_id: String,
    /// Name of the Node.
    pub node_name: String,
    /// Address of the Node.
    pub node_ip: String,
    /// Name of the pool.
    pub pool: String,
    /// Namespace of the services ConfigMaps.
    pub namespace: String,
    /// Version of the services.
    pub version: String,
    /// Services, as in the ConfigMap `windows-services-<version>`.
    pub services: ServicesConfig,
    /// Digest of the payload, see [`payload::digest`].
    pub payload: String,
    /// PEM certificates to trust machine-wide.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trusted_ca: String,
    /// Address of the cloud's metadata service, to which the host must have a route. Absent outside of a cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_address: Option<Ipv4Addr>,
    /// Rotation of logs that services do not rotate themselves. If absent, they are not rotated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<LogRotation>,
    /// Reaction to changes on the host that the operator did not make.
    #[serde(default)]
    pub drift: crate::Drift,
    /// Plugin of Container Credential Guard, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential_plugin: Option<CredentialPlugin>,
    /// Directories outside of `C:\k` in which containerd finds CNI programs and their configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cni_directories: Vec<String>,
}

/// Plugin of Container Credential Guard, whose library is a payload file.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct CredentialPlugin {
    /// Class of the plugin, in braces and upper case.
    pub clsid: String,
    /// Path of the plugin's library.
    pub library: String,
}

/// Conditions under which logs are rotated.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LogRotation {
    /// Size in bytes at which a log is rotated.
    pub max_bytes: u64,
    /// Seconds after which a rotated log is deleted.
    pub max_age_seconds: u64,
}

/// Configuration file.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ConfigFile {
    /// Path of the file on the host.
    pub path: String,
    /// Content of the file.
    pub content: String,
    /// True if only SYSTEM and administrators may read the file.
    #[serde(default)]
    pub secret: bool,
}

impl std::fmt::Debug for ConfigFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let content = if self.secret { "(secret)" } else { &self.content };
        f.debug_struct("ConfigFile").field("path", &self.path).field("content", &content).finish()
    }
}

/// Parameters of [`Verb::Start`]: install certificates, install and start wicd's service, which starts all others.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// PEM certificate chains for the requests from `apply`. The keys are on the host.
    pub certificates: BTreeMap<CertificateKind, String>,
    /// SHA-256 of the `wicd.exe` that the service must run.
    pub wicd_sha256: String,
    /// Validity of rotated certificates of wicd, in seconds.
    pub certificate_seconds: i32,
    /// Services to stop first, so that wicd's service restarts them: kubelet registers its Node only when it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restart: Vec<String>,
}

/// Parameters of [`Verb::Reboot`]: restart the host, unless it has been restarted already.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Reboot {
    /// Boot ID that the operator observed. If the host has another one, wicd does not restart it.
    pub boot_id: String,
}

/// Parameters of [`Verb::Pull`]: pin existing images, unpin those that wicd pinned and that are no longer listed, and pull at most one. The answer
/// names the missing images. The operator sends another request for each of them, so that no request takes longer than one pull.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Pull {
    /// All images that the host must have.
    pub images: Vec<String>,
    /// Image to pull, unless the host has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<String>,
    /// Time limit of the pull, in seconds.
    pub limit_seconds: u64,
}

/// Parameters of [`Verb::Cleanup`]: remove everything that the ownership record lists: first services, then variables and certificates, then files.
/// The operator removes `wicd.exe` over SFTP at the end, because a running program cannot delete itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Cleanup {}

/// Parameters of [`Verb::Support`]: collect support data in [`support_path`], a tar file in one zstd frame, without another change of the host. As
/// with facts, the request needs no recipient and no epoch. `index.json` in the archive lists missing parts. Logs of workloads are left out.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Support {
    /// Maximum age of Windows events to collect, in hours.
    pub hours: u32,
}

/// Returns the SHA-256 over paths and contents of configuration files, in lower-case hex. The order does not matter.
pub fn configs_digest(configs: &[ConfigFile]) -> String {
    use sha2::{Digest, Sha256};
    let mut sorted: Vec<&ConfigFile> = configs.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    let mut hash = Sha256::new();
    for c in sorted {
        for part in [&c.path, &c.content] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_command_has_no_characters_that_are_special_to_a_shell() {
        let line = command(&"a".repeat(64), Verb::Apply, "join-win-1-0");
        assert!(line.bytes().all(|b| b.is_ascii_alphanumeric() || br" -\:.".contains(&b)), "{line}");
        for bad in ["", "A", "a b", "a;b", "..", "a/b", &"a".repeat(64)] {
            assert!(!is_operation_id(bad), "{bad:?}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let file = ConfigFile { path: "p".into(), content: "hunter2".into(), secret: true };
        assert!(!format!("{file:?}").contains("hunter2"));
    }

    #[test]
    fn the_digest_distinguishes_paths_from_contents() {
        let file = |path: &str, content: &str| ConfigFile { path: path.into(), content: content.into(), secret: false };
        assert_eq!(
            configs_digest(&[file("a", "1"), file("b", "2")]),
            configs_digest(&[file("b", "2"), file("a", "1")])
        );
        assert_ne!(configs_digest(&[file("a", "1b2")]), configs_digest(&[file("a1", "b2")]));
    }

    proptest! {
        #[test]
        fn any_answer_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = serde_json::from_slice::<Answer>(&bytes);
        }
    }
}
