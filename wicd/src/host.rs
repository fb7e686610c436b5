//! Interface to Windows, as a trait: a thin layer over the real interfaces on Windows, a fake in tests and on simulated hosts. All decisions are made
//! by the callers of the trait.
//!
//! All paths in this crate are Windows paths in text, such as `C:\k\kubelet.exe`; only [`Host::path`] maps them to real ones.

use api::Reason;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::host::{AccountState, Antivirus, Machine, RestartCause, ServiceState};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::access::{self, AccessList, Guard};
use crate::images::{ImageError, ImageStore};
use crate::reach;

/// Windows host. Calls other than [`Host::hns`] are idempotent: if the result exists already, they succeed.
pub trait Host: Send + Sync {
    /// Returns another handle to this host, for a thread that may outlive the caller.
    fn detached(&self) -> Arc<dyn Host>;
    /// Returns the real location of a Windows path: the path itself on Windows, below a directory in tests and on simulated hosts.
    /// Refuses paths that [`api::payload::is_host_path`] refuses, so that no path of a request leads out of `C:`.
    ///
    /// # Errors
    /// [`HostError::Path`] for a path that is refused.
    fn path(&self, windows_path: &str) -> Result<PathBuf, HostError>;
    /// Returns all facts of the host itself, for an answer to the operator.
    ///
    /// # Errors
    /// Fails when a fact cannot be read, for example the host name or the free space of `C:`.
    fn machine(&self) -> Result<Machine, HostError>;
    /// Boot ID of the host, which changes with each restart.
    ///
    /// # Errors
    /// Fails when the registry cannot be read.
    fn boot_id(&self) -> Result<String, HostError>;
    /// ID of this installation of Windows.
    ///
    /// # Errors
    /// Fails when the registry cannot be read.
    fn machine_id(&self) -> Result<String, HostError>;
    /// Free bytes on `C:`.
    ///
    /// # Errors
    /// Fails when Windows does not report it.
    fn disk_free(&self) -> Result<u64, HostError>;
    /// Reports whether this process has an administrator's rights.
    ///
    /// # Errors
    /// Fails when Windows does not report it.
    fn is_admin(&self) -> Result<bool, HostError>;
    /// Time of the host's clock, in Unix seconds.
    ///
    /// # Errors
    /// Fails when the clock cannot be read.
    fn now(&self) -> Result<i64, HostError>;

    /// Returns all Win32 services; only name and state of those that cannot be queried.
    ///
    /// # Errors
    /// Fails when the service manager does not list them.
    fn services(&self) -> Result<Vec<ServiceInfo>, HostError>;
    /// Service with this name, `None` if it does not exist.
    ///
    /// # Errors
    /// Fails when the service manager, or a service that exists, cannot be opened or queried.
    fn service(&self, name: &str) -> Result<Option<ServiceInfo>, HostError>;
    /// Creates a service from `spec`, or changes it where it differs. Returns whether anything was written. A running service continues with its old
    /// command line.
    ///
    /// # Errors
    /// Fails when the service cannot be opened, created or changed, for example because another process still has its deleted predecessor open.
    fn put_service(&self, spec: &ServiceSpec) -> Result<bool, HostError>;
    /// Starts a service, without waiting until it runs. A service that is running or starting is left alone.
    ///
    /// # Errors
    /// Fails when the service does not exist, or cannot be opened or started.
    fn start_service(&self, name: &str) -> Result<(), HostError>;
    /// Stops a service and waits until its process has ended. After two minutes, terminates the process with all its descendants except containers.
    /// A process that is shared with other services is neither awaited nor terminated. Stops services that depend on the service first, and returns
    /// their names in that order, so that the caller can start them again. A service that does not exist or does not run is success.
    ///
    /// # Errors
    /// Fails when the service, or one that depends on it, cannot be queried, stopped or terminated. [`HostError::Timeout`] if the service manager
    /// still does not report it as stopped after that.
    fn stop_service(&self, name: &str) -> Result<Vec<String>, HostError>;
    /// Deletes a stopped service and waits until the service manager no longer lists it. A missing one is success.
    ///
    /// # Errors
    /// Fails when the service cannot be opened or deleted. [`HostError::Timeout`] if a program keeps it open for too long.
    fn delete_service(&self, name: &str) -> Result<(), HostError>;

    /// Value of a machine-wide environment variable, from the registry; `None` if it does not exist.
    ///
    /// # Errors
    /// Fails when the registry cannot be read, or the value is not text.
    fn env_var(&self, name: &str) -> Result<Option<String>, HostError>;
    /// Sets or (`None`) deletes a machine-wide environment variable.
    ///
    /// # Errors
    /// Fails when the registry cannot be written.
    fn set_env_var(&self, name: &str, value: Option<&str>) -> Result<(), HostError>;

    /// Returns all certificates (DER) in the machine's ROOT store.
    ///
    /// # Errors
    /// Fails when the store cannot be opened.
    fn trusted(&self) -> Result<BTreeSet<Vec<u8>>, HostError>;
    /// Adds a certificate to the machine's ROOT store.
    ///
    /// # Errors
    /// Fails when `der` is not a certificate, or the store cannot be opened or written.
    fn trust(&self, der: &[u8]) -> Result<(), HostError>;
    /// Removes exactly this certificate from the machine's ROOT store.
    ///
    /// # Errors
    /// Fails when the store cannot be opened or written.
    fn untrust(&self, der: &[u8]) -> Result<(), HostError>;

    /// Returns the entry at a path (from [`Host::path`]); `None` if it does not exist. A link in the last part of the path is not followed.
    ///
    /// # Errors
    /// Fails when kind, owner or access list of the entry cannot be read.
    fn place(&self, path: &Path) -> Result<Option<PathEntry>, HostError>;
    /// Creates a directory in an existing one, together with its access list. An existing directory is left as it is.
    ///
    /// # Errors
    /// Fails when the directory cannot be created, for example because its parent is missing.
    fn make_guarded(&self, path: &Path, guard: Guard) -> Result<(), HostError>;
    /// Makes Administrators the owner of a file or directory and sets the access list of this guard; a file always becomes private. The content of a
    /// directory stays as it is. A link is refused.
    ///
    /// # Errors
    /// Fails when the path is a link, or owner and access list cannot be changed.
    fn protect(&self, path: &Path, guard: Guard) -> Result<(), HostError>;
    /// Makes Administrators the owner of a file or directory, with this access list. A link is refused.
    ///
    /// # Errors
    /// Fails when the path is a link, or owner and access list cannot be changed.
    fn set_access(&self, path: &Path, list: &AccessList) -> Result<(), HostError>;
    /// Makes Administrators the owner of a directory's content, without `except` and its content, with only the access that a private directory
    /// passes on. Links are changed as well, and not followed. A file with more than one name (hard links) stays as it is.
    ///
    /// # Errors
    /// Fails when a directory cannot be listed, or an entry cannot be changed. [`HostError::Refused`] for a file with more than one
    /// name that is not [out of reach](PathEntry::is_out_of_reach). An entry that is removed meanwhile is not an error.
    fn reset_below(&self, path: &Path, except: Option<&Path>) -> Result<(), HostError>;
    /// Reports whether the Windows feature Containers is installed on the host.
    fn has_containers(&self) -> bool;
    /// Enables the Windows feature Containers. Returns whether the host must be restarted for it. Takes seconds, because Windows opens a servicing
    /// session.
    ///
    /// # Errors
    /// Fails when Windows cannot report the state of the feature, or cannot enable it.
    fn enable_containers(&self) -> Result<bool, HostError>;
    /// Starts a restart of the host and returns.
    ///
    /// # Errors
    /// Fails when Windows refuses the restart.
    fn reboot(&self) -> Result<(), HostError>;
    /// Sends a request to the Host Networking Service (HNS). Returns the `Output` of its answer, null if there is none; a refusal is an error with
    /// HNS' own text. Not idempotent by itself: the caller queries first.
    ///
    /// # Errors
    /// Fails when the host has no HNS, or the answer is a refusal or is not JSON.
    fn hns(&self, request: &HnsRequest) -> Result<Value, HostError>;
    /// Returns the reason why the API server at this URL cannot be reached; `None` if it can.
    fn unreachable(&self, url: &str) -> Option<String> {
        reach::unreachable(url)
    }
    /// Reports whether a TCP port cannot be used: a program listens on it, or Windows reserves it.
    fn is_in_use(&self, port: u16) -> bool {
        reach::is_in_use(port)
    }
    /// Network adapters in the host's own compartment.
    ///
    /// # Errors
    /// Fails when Windows does not list them.
    fn adapters(&self) -> Result<Vec<Adapter>, HostError>;
    /// IPv4 routes of the host.
    ///
    /// # Errors
    /// Fails when Windows does not list them.
    fn routes(&self) -> Result<Vec<Route>, HostError>;
    /// Creates a route that lasts until the next restart of the host. An existing one is success.
    ///
    /// # Errors
    /// Fails when Windows refuses it.
    fn add_route(&self, route: &Route) -> Result<(), HostError>;
    /// Removes a route. A missing one is success.
    ///
    /// # Errors
    /// Fails when Windows refuses it.
    fn remove_route(&self, route: &Route) -> Result<(), HostError>;
    /// Removes the HNS networks that the operator's services create.
    ///
    /// # Errors
    /// Fails when HNS exists, and does not list its networks or refuses to remove one.
    fn remove_networks(&self) -> Result<(), HostError>;
    /// Excludes the files that a program (Windows path) opens from Windows Defender's real-time checks. A host without Windows Defender is success.
    ///
    /// # Errors
    /// Fails when the service of Windows Defender cannot be queried, or the exclusion cannot be written.
    fn exclude_from_antivirus(&self, windows_path: &str) -> Result<(), HostError>;
    /// Reports whether a policy excludes the files that a program (Windows path) opens from Windows Defender's real-time checks, or the host has no
    /// Windows Defender.
    ///
    /// # Errors
    /// Fails when the service of Windows Defender or its exclusions cannot be read.
    fn is_excluded_from_antivirus(&self, windows_path: &str) -> Result<bool, HostError>;
    /// Removes a program's (Windows path) exclusion by policy from Windows Defender's real-time checks. A missing one is success.
    ///
    /// # Errors
    /// Fails when the exclusion cannot be removed.
    fn include_in_antivirus(&self, windows_path: &str) -> Result<(), HostError>;
    /// Text and binary values of a registry key below `HKLM`; `None` if it does not exist. Values of other types are skipped.
    ///
    /// # Errors
    /// Fails when the registry cannot be read.
    fn registry_key(&self, key: &str) -> Result<Option<RegistryValues>, HostError>;
    /// Names of the subkeys of a registry key below `HKLM`; none if it does not exist.
    ///
    /// # Errors
    /// Fails when the registry cannot be read.
    fn registry_keys(&self, key: &str) -> Result<Vec<String>, HostError>;
    /// Owner and access list of a registry key below `HKLM`, as Windows stores them.
    ///
    /// # Errors
    /// Fails when the key does not exist, or its owner and access list cannot be read.
    fn registry_key_access(&self, key: &str) -> Result<Vec<u8>, HostError>;
    /// Makes Administrators the owner of a registry key below `HKLM`, and lets them write in it. Subkeys stay as they are.
    ///
    /// # Errors
    /// Fails when the key does not exist, or Windows refuses it.
    fn open_registry_key(&self, key: &str) -> Result<(), HostError>;
    /// Restores owner and access list of a registry key below `HKLM`, from [`Self::registry_key_access`]. A missing key is success.
    ///
    /// # Errors
    /// Fails when `access` is not a valid security descriptor of a registry key, or Windows refuses it.
    fn restore_registry_key(&self, key: &str, access: &[u8]) -> Result<(), HostError>;
    /// Creates a registry key below `HKLM`, unless it exists, and sets these values in it. Others stay.
    ///
    /// # Errors
    /// Fails when the registry cannot be written, for example without [`Self::open_registry_key`] of the parent key.
    fn put_registry_key(&self, key: &str, values: &RegistryValues) -> Result<(), HostError>;
    /// Removes a registry key below `HKLM`, and returns whether it no longer exists: a key with subkeys stays.
    ///
    /// # Errors
    /// Fails when the registry cannot be written, for example without [`Self::open_registry_key`].
    fn remove_registry_key(&self, key: &str) -> Result<bool, HostError>;
    /// Causes for which Windows itself waits for a restart, as far as they can be determined.
    fn restart_causes(&self) -> BTreeSet<RestartCause>;
    /// Antivirus programs of the host, and whether Defender excludes this program (Windows path), as far as it can be determined.
    fn antivirus(&self, windows_path: &str) -> Antivirus;
    /// Reports whether the host can use a group Managed Service Account.
    fn service_account(&self, name: &str) -> AccountState;
    /// Image store of containerd.
    ///
    /// # Errors
    /// Fails when containerd does not answer.
    fn images(&self) -> Result<Box<dyn ImageStore>, ImageError>;
    /// Last exit code of a service, `None` if the service does not exist.
    ///
    /// # Errors
    /// Fails when the service cannot be opened or queried.
    fn exit_code(&self, service: &str) -> Result<Option<u32>, HostError>;
    /// Returns at most `most` events of a Windows event log channel that match an XPath query, newest first, each as XML.
    ///
    /// # Errors
    /// Fails when the channel does not exist, or cannot be read.
    fn events(&self, channel: &str, query: &str, most: usize) -> Result<Vec<String>, HostError>;
    /// Names of the installed Windows updates.
    ///
    /// # Errors
    /// Fails when the registry cannot be read.
    fn updates(&self) -> Result<Vec<String>, HostError>;
    /// Enables the privileges that let administrators remove any file regardless of its access list, such as image layers.
    fn remove_any(&self) {}
    /// Ends the operator's containerd shims, which outlive its services.
    ///
    /// # Errors
    /// Fails when the processes cannot be listed, or one of them does not end.
    fn kill_leftovers(&self) -> Result<(), HostError>;
    /// Ends processes of these programs (Windows paths) whose parent process has ended, with all their descendants except containers. Returns the
    /// programs of the ended processes, without those of the descendants.
    ///
    /// # Errors
    /// Fails when the processes cannot be listed, or one of them does not end.
    fn end_orphans(&self, programs: &[&str]) -> Result<Vec<String>, HostError>;
}

/// Value in the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryValue {
    /// Text. Written as `REG_SZ`, and read from `REG_SZ` or `REG_EXPAND_SZ`.
    Text(String),
    /// Binary data, `REG_BINARY`.
    Bytes(Vec<u8>),
}

/// Values of a registry key by name; the default value has the empty name.
pub type RegistryValues = BTreeMap<String, RegistryValue>;

/// Kind of the entry at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// Directory.
    #[default]
    Directory,
    /// Symbolic link or junction.
    Link,
    /// Any other entry.
    File,
}

impl Route {
    /// Reports whether both are the same route for Windows. Metrics may differ: the metric of an existing route includes that of its network
    /// adapter.
    pub fn is(&self, other: &Self) -> bool {
        (self.destination, self.length, self.next_hop, self.interface)
            == (other.destination, other.length, other.next_hop, other.interface)
    }
}

impl From<fs::FileType> for Kind {
    fn from(of: fs::FileType) -> Self {
        match of {
            _ if of.is_symlink() => Self::Link,
            _ if of.is_dir() => Self::Directory,
            _ => Self::File,
        }
    }
}

/// Entry at a path: its kind, owner and access list.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PathEntry {
    /// Kind of the entry.
    pub kind: Kind,
    /// SID of the owner.
    pub owner: String,
    /// True if the owner is the user that runs wicd.
    pub is_own: bool,
    /// Access list of the entry.
    pub access: AccessList,
}

impl PathEntry {
    /// Reports whether only administrators and the user that runs wicd can change the entry.
    pub fn is_out_of_reach(&self) -> bool {
        let is_trusted = |sid: &str| access::is_trusted(sid) || (self.is_own && sid == self.owner);
        is_trusted(&self.owner) && !self.access.grants(is_trusted, access::CHANGE)
    }
}

/// Request to the Host Networking Service, for `HNSCall` of `vmcompute.dll`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HnsRequest {
    /// Method: `GET` or `POST`.
    pub method: &'static str,
    /// Path of the request, such as `/networks`.
    pub path: String,
    /// Body of the request in JSON, empty for `GET`.
    pub body: String,
}

/// Network adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// MAC address; empty if the adapter has none.
    pub mac: Vec<u8>,
    /// IPv4 addresses, without loopback and link-local ones.
    pub ipv4: Vec<Ipv4Addr>,
}

/// IPv4 route.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// Address of the destination network.
    pub destination: Ipv4Addr,
    /// Prefix length of the destination; 0 for the default route.
    pub length: u8,
    /// Gateway of the route.
    pub next_hop: Ipv4Addr,
    /// Index of the network adapter.
    pub interface: u32,
    /// Metric of the route: among routes with the same destination, Windows prefers the one with the lowest metric. Includes the metric of the network
    /// adapter for an existing route, but not for a new one.
    pub metric: u32,
}

/// Start type of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StartType {
    /// Start with the host.
    Auto,
    /// Start on demand.
    #[default]
    Demand,
    /// No start.
    Disabled,
}

/// Desired configuration of a service, which runs as LocalSystem in its own process.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ServiceSpec {
    /// Name and display name of the service.
    pub name: String,
    /// Description of the service. Begins with [`api::host::SERVICE_DESCRIPTION_PREFIX`] for services of the operator.
    pub description: String,
    /// Command line of the service.
    pub command: String,
    /// Services that must run before this one, in order.
    pub dependencies: Vec<String>,
    /// Start type of the service.
    pub start: StartType,
    /// Variables to set for the service, in addition to those of the machine and to those that the host's owner has set for the service.
    pub environment: BTreeMap<String, String>,
    /// Actions of the service manager when the service ends unexpectedly.
    pub recovery: Recovery,
}

impl ServiceSpec {
    /// Returns a service with this configuration, as the service manager reports it.
    pub fn service(&self, state: ServiceState) -> ServiceInfo {
        let Self { name, description, command, dependencies, start, environment, recovery: _ } = self.clone();
        ServiceInfo { name, description, command, dependencies, environment, start, state }
    }
}

/// Restarts of a service by the service manager: after a crash of its process, and after the service stops with an error.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Delay before the first, second, … restart. The last one applies to all further restarts.
    pub delays: Vec<Duration>,
    /// Time without failure after which the count of failures is reset.
    pub reset: Duration,
}

/// Current state of a service.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ServiceInfo {
    /// Name of the service.
    pub name: String,
    /// Description, empty if the service has none.
    pub description: String,
    /// Command line of the service.
    pub command: String,
    /// Services that must run before this one, in order.
    pub dependencies: Vec<String>,
    /// Variables that the operator has set for the service, in addition to those of the machine.
    pub environment: BTreeMap<String, String>,
    /// Start type of the service.
    pub start: StartType,
    /// Current state of the service.
    pub state: ServiceState,
}

impl ServiceInfo {
    /// Reports whether the service runs, or is starting or stopping.
    pub fn is_up(&self) -> bool {
        matches!(self.state, ServiceState::Running | ServiceState::Pending)
    }
}

/// Failure of an operation on the host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Path that wicd may not use.
    #[error(
        "the path {path:?} cannot be used on a host: it must begin with C:\\, have fewer than 240 ASCII characters, and have no part that is empty, ends with a dot or a space, or is a device name such as NUL, and none of / : * ? \" < > |"
    )]
    Path {
        /// Refused path.
        path: String,
    },
    /// Link in place of a path's parent directory.
    #[error(
        "{path} is left unchanged because {link} is a symbolic link or a junction, which the operator does not follow; remove the link"
    )]
    Link {
        /// Path below the link.
        path: String,
        /// Path of the link.
        link: String,
    },
    /// Entry that cannot be used, for example in place of one of wicd's directories.
    #[error("{path} cannot be used: {problem}")]
    Refused {
        /// Path of the entry.
        path: String,
        /// Problem with the entry, and what to do.
        problem: String,
    },
    /// Ownership record that is missing although other files of the operator exist.
    #[error(
        "{path} and its copy are missing, so the host cannot be cleaned automatically. Stop and delete the services {services} (`sc.exe stop NAME`, `sc.exe delete NAME`), then delete C:\\k"
    )]
    RecordLost {
        /// Path of the record.
        path: String,
        /// Names of the operator's services on the host.
        services: String,
    },
    /// Failed call of the operating system.
    #[error("cannot {action} {object}")]
    System {
        /// Action that was attempted, such as `start service`.
        action: &'static str,
        /// Object of the action, such as `kubelet`.
        object: String,
        /// Cause of the failure.
        #[source]
        source: std::io::Error,
    },
    /// Event that did not happen in time.
    #[error("timed out after {seconds} s while waiting for {what}")]
    Timeout {
        /// Event that was waited for, such as `service kubelet to stop`.
        what: String,
        /// Time waited, in seconds.
        seconds: u64,
    },
}

impl HostError {
    /// Creates a [`HostError::System`] from a failed call of the operating system, for `map_err`.
    pub fn system<E: Into<std::io::Error>>(action: &'static str, object: impl Into<String>) -> impl FnOnce(E) -> Self {
        let object = object.into();
        move |source| Self::System { action, object, source: source.into() }
    }

    /// Reason for conditions and events.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Path { .. } => Reason::PayloadInvalid,
            Self::Link { .. } | Self::Refused { .. } => Reason::DirectoryRefused,
            Self::RecordLost { .. } => Reason::RecordLost,
            Self::System { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                Reason::AccessDenied
            }
            Self::System { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => Reason::DiskFull,
            Self::System { .. } | Self::Timeout { .. } => Reason::HostCallFailed,
        }
    }
}

/// Returns the messages of an error and its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Parts of a Windows path after `C:\`, for implementations of [`Host::path`].
///
/// # Errors
/// [`HostError::Path`] for a path that [`api::payload::is_host_path`] refuses.
pub fn path_parts(windows_path: &str) -> Result<impl Iterator<Item = &str>, HostError> {
    if !api::payload::is_host_path(windows_path) {
        return Err(HostError::Path { path: windows_path.to_string() });
    }
    Ok(windows_path[3..].split('\\'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Entry;
    use proptest::prelude::*;

    #[test]
    fn a_full_disk_and_denied_access_have_their_own_reasons() {
        let error = |kind| HostError::system("write", r"C:\k\x")(std::io::Error::from(kind));
        assert_eq!(error(std::io::ErrorKind::StorageFull).reason(), "DiskFull");
        assert_eq!(error(std::io::ErrorKind::PermissionDenied).reason(), "AccessDenied");
        assert_eq!(error(std::io::ErrorKind::NotFound).reason(), "HostCallFailed");
    }

    /// A hard link may refer to a file of any owner, for example Windows or another user.
    #[test]
    fn a_file_with_more_than_one_name_stays_only_if_no_user_can_change_it() {
        const USER: &str = "S-1-5-21-1-2-3-1001";
        let place = |owner: &str, is_own, entries: &[Entry]| {
            let mut access = AccessList::of(Guard::Readable);
            access.entries.extend(entries.to_vec());
            PathEntry { kind: Kind::File, owner: owner.into(), is_own, access }
        };
        let write = |sid: &str| Entry::grant(sid, 0x0013_01bf, 0);
        for (about, place, expected) in [
            ("Windows' own", place(access::TRUSTED[2], false, &[]), true),
            ("an administrator's", place(access::ADMINISTRATORS, false, &[]), true),
            ("ours", place(USER, true, &[write(USER)]), true),
            ("a user's", place(USER, false, &[]), false),
            ("an administrator's that a user may change", place(access::ADMINISTRATORS, false, &[write(USER)]), false),
            ("ours that all may change", place(USER, true, &[write(access::EVERYONE)]), false),
            ("of an entry that is not known", place(access::ADMINISTRATORS, false, &[write("")]), false),
        ] {
            assert_eq!(place.is_out_of_reach(), expected, "{about}");
        }
    }

    proptest! {
        #[test]
        fn no_path_leads_upwards(rest in r"[a-z.:/\\ ]{0,40}") {
            if let Ok(parts) = path_parts(&format!(r"C:\{rest}")) {
                for part in parts {
                    prop_assert!(!part.is_empty() && part != "." && part != ".." && !part.contains(['/', '\\', ':']));
                }
            }
        }
    }
}
