//! Record of what wicd has put on the host, so that a cleanup removes exactly that.
//!
//! An entry is written before the object itself, so that every object of the operator has one; an entry without an
//! object is harmless. What was there before (a variable's value, a trusted certificate, a directory) is never
//! overwritten in the record by what we made of it.

use std::collections::{BTreeMap, BTreeSet};

use api::host::{SERVICE_DESCRIPTION_PREFIX, path};
use serde::{Deserialize, Serialize};

use crate::files::{self, Access};
use crate::host::{Host, HostError, Route, ServiceInfo};

/// Names of the services that this operator and WMCO run on a host (contract section 3.1).
const SERVICE_NAMES: [&str; 8] = [
    api::host::WICD_SERVICE,
    "containerd",
    "kubelet",
    "windows_exporter",
    "hybrid-overlay-node",
    "csi-proxy",
    "kube-proxy",
    "cloud-node-manager",
];
/// Names of services that the owner of a host may run beside a node whose payload has no program for them: what they do is no part of the node.
const BESIDE: [&str; 2] = ["windows_exporter", "csi-proxy"];

/// Names that no service of others may have on a node with `wanted` services.
pub fn reserved<'a>(wanted: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    SERVICE_NAMES.into_iter().filter(|name| !BESIDE.contains(name)).chain(wanted)
}

/// Variables that WMCO sets (contract section 3.7).
const LEGACY_VARIABLES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
/// Copies of certificates that WMCO has made trusted (contract section 4.6).
const LEGACY_IMPORTED_CERTS: &str = r"C:\k\imported-certs.pem";
/// Mirrors of image registries, as WMCO writes them (contract section 7.4).
const LEGACY_REGISTRIES: &str = r"C:\k\containerd\registries";
/// Files of WMCO in a directory that is not its own (contract section 2.2). The directory itself is never touched.
const LEGACY_FILES: [&str; 4] = [
    r"C:\Temp\gcp-get-hostname.ps1",
    r"C:\Temp\windows-defender-exclusion.ps1",
    r"C:\Temp\hns.psm1",
    r"C:\Temp\network-conf.ps1",
];
/// Directories of WMCO outside `C:\k` whose whole content is its own or its services' (contract section 2.1).
const LEGACY_TREES: [&str; 11] = [
    r"C:\var\log\kubelet",
    r"C:\var\log\csi-proxy",
    r"C:\var\log\kube-proxy",
    r"C:\var\log\wicd",
    r"C:\var\log\hybrid-overlay",
    r"C:\var\log\containerd",
    r"C:\var\log\windows_exporter",
    r"C:\var\log\pods",
    r"C:\var\log\containers",
    r"C:\var\lib\cni",
    path::KUBELET_PKI,
];

/// Copy of the record of ownership. Without one, a host of ours looks like one of WMCO's.
const COPY: &str = r"C:\k\wicd\owned.copy.json";

/// Record of ownership: content of [`api::host::path::OWNED`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Ownership {
    /// Services of ours.
    pub services: BTreeSet<String>,
    /// Payload and configuration files of the last `apply`.
    pub placed: BTreeSet<String>,
    /// Other files.
    pub files: BTreeSet<String>,
    /// Directories that were not there before, and go only when they are empty.
    pub directories: BTreeSet<String>,
    /// Directories that were not there before, and whose whole content is ours or our services': logs, state.
    pub trees: BTreeSet<String>,
    /// Environment variables, and what they were before (`None`: not there).
    pub env_vars: BTreeMap<String, Option<String>>,
    /// Certificates (lower-case hex of the DER) that were not trusted before.
    pub trusted: BTreeSet<String>,
    /// Certificates that WMCO has made trusted. They stay as long as the host is a node: the operator does not know
    /// which of them the cluster still needs.
    pub adopted_trust: BTreeSet<String>,
    /// Keys of the registry, below `HKLM`, that were not there before.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub keys: BTreeSet<String>,
    /// Keys of the registry, below `HKLM`, that are open for writing: previous owner and access list, a security descriptor in hex.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub opened_keys: BTreeMap<String, String>,
    /// Programs that no policy excluded from the antivirus before.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded: BTreeSet<String>,
    /// VXLAN port that the networks of the hybrid overlay were made with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vxlan_port: Option<u16>,
    /// Routes that were not there before.
    #[serde(skip_serializing_if = "Routes::is_empty")]
    pub routes: Routes,
    /// Files of the owner in place of ours, and the paths where they are kept.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kept: BTreeMap<String, String>,
    /// Images that were not pinned before, as they are listed, and their ids.
    pub pinned: BTreeMap<String, String>,
}

/// Routes that wicd has made. They last until the host restarts: what is there after it, another program has made.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Routes {
    /// Boot of the host in which the routes were made.
    pub boot_id: String,
    /// Routes that wicd has made.
    pub made: Vec<Route>,
}

impl Routes {
    fn is_empty(&self) -> bool {
        self.made.is_empty()
    }
}

impl Ownership {
    /// Loads the record, or the copy if the record is gone or damaged. `None` if there is neither.
    ///
    /// # Errors
    /// Fails when the record or the copy is damaged or cannot be read, and the other one is missing or no better.
    pub fn load(host: &dyn Host) -> Result<Option<Self>, HostError> {
        match files::read_json(host, path::OWNED) {
            Ok(Some(owned)) => Ok(Some(owned)),
            Ok(None) => files::read_json(host, COPY),
            Err(damaged) => files::read_json(host, COPY).ok().flatten().map(Some).ok_or(damaged),
        }
    }

    /// Writes the record. The copy first: at no time is the only one not whole.
    ///
    /// # Errors
    /// Fails when the copy or the record cannot be written.
    pub fn save(&self, host: &dyn Host) -> Result<(), HostError> {
        for file in [COPY, path::OWNED] {
            files::write_json(host, file, self, Access::Protected)?;
        }
        Ok(())
    }

    /// Removes the record, when nothing of ours is left.
    ///
    /// # Errors
    /// Fails when the copy or the record cannot be removed.
    pub fn forget(host: &dyn Host) -> Result<(), HostError> {
        [COPY, path::OWNED].into_iter().try_for_each(|file| files::remove(host, file))
    }

    /// Loads the record; on a host of WMCO's, which has no record, the known content of WMCO; otherwise an empty one.
    /// What a cleanup could not remove is not a record of what is ours now: WMCO may have had the host since.
    ///
    /// # Errors
    /// [`HostError::RecordLost`] on a host that we have configured, and whose record is gone: it must not be mistaken for one of WMCO's, from which
    /// more would be taken away than we have put there.
    pub fn load_or_adopt(host: &dyn Host) -> Result<Self, HostError> {
        match Self::load(host)? {
            Some(left) if left.is_only_left() => {
                let mut owned = Self::adopt(host)?;
                owned.trees.extend(left.trees);
                Ok(owned)
            }
            Some(owned) => Ok(owned),
            None => Self::adopt(host),
        }
    }

    /// Record of a host from which all has been removed but these directories.
    pub fn only_left(trees: BTreeSet<String>) -> Self {
        Self { trees, ..Self::default() }
    }

    fn is_only_left(&self) -> bool {
        *self == Self::only_left(self.trees.clone())
    }

    /// Changes the record. The caller holds the [`crate::lock`].
    ///
    /// # Errors
    /// Fails when [`Ownership::load_or_adopt`] fails, or the record cannot be written.
    pub fn update(host: &dyn Host, change: impl FnOnce(&mut Self)) -> Result<(), HostError> {
        let mut owned = Self::load_or_adopt(host)?;
        change(&mut owned);
        owned.save(host)
    }

    fn adopt(host: &dyn Host) -> Result<Self, HostError> {
        let services: BTreeSet<String> = host.services()?.into_iter().filter(is_tagged).map(|s| s.name).collect();
        if services.is_empty() {
            return Ok(Self::default());
        }
        if files::exists(host, path::STATE)? {
            return Err(HostError::RecordLost { path: path::OWNED.to_string() });
        }
        let mut owned = Self {
            services,
            files: LEGACY_FILES.map(String::from).into(),
            trees: LEGACY_TREES.map(String::from).into(),
            // What WMCO found there it has overwritten or deleted, and kept no copy.
            env_vars: LEGACY_VARIABLES.map(|name| (name.to_string(), None)).into(),
            ..Self::default()
        };
        for name in files::list(host, path::ROOT)? {
            let child = format!(r"{}\{name}", path::ROOT);
            if child != path::WICD && api::payload::is_host_path(&child) {
                owned.trees.insert(child);
            }
        }
        // A mirror that the cluster no longer has must go, and containerd reads all that is there.
        for registry in files::list(host, LEGACY_REGISTRIES)? {
            let file = format!(r"{LEGACY_REGISTRIES}\{registry}\hosts.toml");
            if api::payload::is_host_path(&file) && files::exists(host, &file)? {
                owned.placed.insert(file);
            }
        }
        let imported = files::read(host, LEGACY_IMPORTED_CERTS)?.unwrap_or_default();
        // WMCO writes this copy after the store; a damaged one has no information, and then nothing is removed.
        let certificates = crate::certificates::bundle(&imported).unwrap_or_default();
        owned.adopted_trust.extend(certificates.iter().map(hex::encode));
        Ok(owned)
    }

    /// Claims those directories above `path`, a file, that are not there yet.
    /// `C:\k` and `C:\k\wicd` are never claimed: the operator makes and removes them.
    ///
    /// # Errors
    /// Fails when a directory cannot be inspected.
    pub fn claim_parents(&mut self, host: &dyn Host, path: &str) -> Result<(), HostError> {
        let mut above = files::parent(path);
        while let Some(directory) = above {
            if directory == path::ROOT || directory == path::WICD || files::exists(host, directory)? {
                break;
            }
            self.directories.insert(directory.to_string());
            above = files::parent(directory);
        }
        Ok(())
    }

    /// Claims a directory with all that will be in it, unless it is there already.
    ///
    /// # Errors
    /// Fails when a directory cannot be inspected.
    pub fn claim_tree(&mut self, host: &dyn Host, directory: &str) -> Result<(), HostError> {
        if !files::exists(host, directory)? {
            self.trees.insert(directory.to_string());
            self.claim_parents(host, directory)?;
        }
        Ok(())
    }

    /// Claims a variable whose value is about to become `value`.
    ///
    /// # Errors
    /// Fails when the variable cannot be read.
    pub fn claim_env_var(&mut self, host: &dyn Host, name: &str, value: Option<&str>) -> Result<(), HostError> {
        let current = host.env_var(name)?;
        if current.as_deref() != value && !self.env_vars.contains_key(name) {
            self.env_vars.insert(name.to_string(), current);
        }
        Ok(())
    }

    /// Claims a certificate that is not trusted yet and is about to be.
    pub fn claim_trust(&mut self, der: &[u8]) {
        if !self.adopted_trust.contains(&hex::encode(der)) {
            self.trusted.insert(hex::encode(der));
        }
    }

    /// Reports whether a service of a name of ours is ours. One that is on record but has no description yet was left behind by a crash right after
    /// it was made.
    pub fn is_ours(&self, service: &ServiceInfo) -> bool {
        is_tagged(service) || (self.services.contains(&service.name) && service.description.is_empty())
    }
}

/// Reports whether the description says that the service is ours (or WMCO's).
pub fn is_tagged(service: &ServiceInfo) -> bool {
    service.description.starts_with(SERVICE_DESCRIPTION_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;

    fn service(name: &str, description: &str) -> ServiceInfo {
        ServiceInfo { name: name.into(), description: description.into(), ..ServiceInfo::default() }
    }

    #[test]
    fn whose_service_is_it() {
        let owned = Ownership { services: ["kubelet".to_string()].into(), ..Ownership::default() };
        for (name, description, ours) in [
            ("kubelet", "OpenShift managed kubelet", true),
            ("kubelet", "", true),
            ("kubelet", "Kubernetes node agent", false),
            ("containerd", "OpenShift managed containerd", true),
            ("containerd", "", false),
            ("containerd", "not OpenShift managed", false),
        ] {
            assert_eq!(owned.is_ours(&service(name, description)), ours, "{name} {description}");
        }
    }

    /// A host of ours has services that look like WMCO's, however its record is lost.
    #[test]
    fn a_host_of_ours_is_never_taken_for_one_of_wmcos() {
        let dir = tempfile::tempdir().unwrap();
        let host = FakeHost::new(dir.path());
        host.state().services.insert("kubelet".into(), service("kubelet", "OpenShift managed kubelet"));
        let ours = Ownership { services: ["kubelet".to_string()].into(), ..Ownership::default() };
        ours.save(&host).unwrap();
        files::write(&host, path::STATE, b"{}", Access::Inherited).unwrap();
        for damage in [b"".as_slice(), b"{", &[0; 100]] {
            files::write(&host, path::OWNED, damage, Access::Inherited).unwrap();
            assert_eq!(Ownership::load_or_adopt(&host).unwrap(), ours, "{damage:?}");
        }
        files::remove(&host, path::OWNED).unwrap();
        assert_eq!(Ownership::load_or_adopt(&host).unwrap(), ours);
        files::remove(&host, COPY).unwrap();
        assert_eq!(Ownership::load_or_adopt(&host).unwrap_err().reason(), "RecordLost");
        // A host of WMCO's has nothing of ours.
        files::remove(&host, path::STATE).unwrap();
        assert!(Ownership::load_or_adopt(&host).unwrap().env_vars.contains_key("NO_PROXY"));
    }

    #[test]
    fn what_a_cleanup_has_left_is_no_record_of_what_came_since() {
        let dir = tempfile::tempdir().unwrap();
        let host = FakeHost::new(dir.path());
        let left = Ownership::only_left([r"C:\x".to_owned()].into());
        left.save(&host).unwrap();
        assert_eq!(Ownership::load_or_adopt(&host).unwrap(), left);
        host.state().services.insert("kubelet".into(), service("kubelet", "OpenShift managed kubelet"));
        let owned = Ownership::load_or_adopt(&host).unwrap();
        assert!(owned.env_vars.contains_key("NO_PROXY") && owned.trees.contains(r"C:\x"));
    }

    #[test]
    fn what_was_there_before_is_recorded_once() {
        let dir = tempfile::tempdir().unwrap();
        let host = FakeHost::new(dir.path());
        host.state().env.insert("NO_PROXY".into(), "theirs".into());
        let mut owned = Ownership::default();
        for value in ["ours", "ours later"] {
            owned.claim_env_var(&host, "NO_PROXY", Some(value)).unwrap();
            owned.claim_env_var(&host, "HTTP_PROXY", Some(value)).unwrap();
            host.set_env_var("NO_PROXY", Some(value)).unwrap();
        }
        owned.claim_env_var(&host, "UNSET", None).unwrap();
        let expected = [("NO_PROXY".to_string(), Some("theirs".to_string())), ("HTTP_PROXY".to_string(), None)];
        assert_eq!(owned.env_vars, expected.into());
    }

    #[test]
    fn only_new_directories_are_ours() {
        let dir = tempfile::tempdir().unwrap();
        let host = FakeHost::new(dir.path());
        files::make_directory(&host, r"C:\var").unwrap();
        let mut owned = Ownership::default();
        owned.claim_parents(&host, r"C:\var\log\x\y.log").unwrap();
        owned.claim_parents(&host, r"C:\k\wicd\state.json").unwrap();
        owned.claim_tree(&host, r"C:\k\a").unwrap();
        assert_eq!(owned.directories, [r"C:\var\log".to_string(), r"C:\var\log\x".to_string()].into());
        files::make_directory(&host, r"C:\k\b").unwrap();
        owned.claim_tree(&host, r"C:\k\b").unwrap();
        assert_eq!(owned.trees, [r"C:\k\a".to_string()].into());
    }
}
