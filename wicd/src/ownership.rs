//! Record of what wicd has put on the host, so that a cleanup removes exactly that.
//!
//! An entry is written before its object is created, so that every object of the operator has an entry; an entry without an object is harmless. The
//! original state (a variable's value, a trusted certificate, a directory) is recorded once, and never overwritten by a later change.

use std::collections::{BTreeMap, BTreeSet};

use api::host::{SERVICE_DESCRIPTION_PREFIX, path};
use serde::{Deserialize, Serialize};

use crate::files::{self, Access};
use crate::host::{Host, HostError, Route, ServiceInfo};

/// Names of the services that this operator and WMCO run on a host.
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
/// Names of services that a host's owner may run themselves if the payload has no program for them: a node works without them.
const BESIDE: [&str; 2] = ["windows_exporter", "csi-proxy"];

/// Returns the service names that others must not use on a node with the services `wanted`.
pub fn reserved<'a>(wanted: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    SERVICE_NAMES.into_iter().filter(|name| !BESIDE.contains(name)).chain(wanted)
}

/// Variables that WMCO sets.
const LEGACY_VARIABLES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
/// File with copies of the certificates that WMCO has added to the trusted ones.
const LEGACY_IMPORTED_CERTS: &str = r"C:\k\imported-certs.pem";
/// Directory of WMCO's registry mirror configuration.
const LEGACY_REGISTRIES: &str = r"C:\k\containerd\registries";
/// Files of WMCO in a shared directory, which itself is never touched.
const LEGACY_FILES: [&str; 4] = [
    r"C:\Temp\gcp-get-hostname.ps1",
    r"C:\Temp\windows-defender-exclusion.ps1",
    r"C:\Temp\hns.psm1",
    r"C:\Temp\network-conf.ps1",
];
/// Directories of WMCO outside of `C:\k` whose whole content is from WMCO or its services.
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

/// Path of the record's copy. Without a record, the services of the operator look like those of WMCO.
const COPY: &str = r"C:\k\wicd\owned.copy.json";

/// Record of the operator's objects on the host, stored in [`api::host::path::OWNED`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Ownership {
    /// Names of the operator's services.
    pub services: BTreeSet<String>,
    /// Payload and configuration files, which the next `apply` removes unless they are still desired.
    pub placed: BTreeSet<String>,
    /// Other files that wicd has created, and those of WMCO.
    pub files: BTreeSet<String>,
    /// Directories that did not exist before. A cleanup removes those that are empty.
    pub directories: BTreeSet<String>,
    /// Directories that a cleanup removes with their content, such as logs and state: those that did not exist before, those with certificates, and
    /// those of WMCO.
    pub trees: BTreeSet<String>,
    /// Machine-wide environment variables with their original values; `None` if they did not exist, or WMCO replaced an unknown value.
    pub env_vars: BTreeMap<String, Option<String>>,
    /// Certificates (lower-case hex of the DER) that were not trusted before.
    pub trusted: BTreeSet<String>,
    /// Certificates (lower-case hex of the DER) that WMCO has added. They stay while the host is a node: the operator does not know which of them
    /// the cluster still needs.
    pub adopted_trust: BTreeSet<String>,
    /// Registry keys below `HKLM` of the credential plugins that wicd registers.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub keys: BTreeSet<String>,
    /// Registry keys below `HKLM` that wicd has opened for writing, with the previous owner and access list as a security descriptor in hex.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub opened_keys: BTreeMap<String, String>,
    /// Programs for which wicd has created an exclusion from Windows Defender.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded: BTreeSet<String>,
    /// VXLAN port of the hybrid overlay networks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vxlan_port: Option<u16>,
    /// Routes that wicd has created.
    #[serde(skip_serializing_if = "Routes::is_empty")]
    pub routes: Routes,
    /// Files of the owner that wicd has replaced, with the paths of their copies.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kept: BTreeMap<String, String>,
    /// IDs of images that wicd has pinned, by listed name.
    pub pinned: BTreeMap<String, String>,
}

/// Routes that wicd has created. Windows drops them at a restart of the host, so later routes are another program's.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Routes {
    /// ID of the boot in which the routes were created.
    pub boot_id: String,
    /// Routes that wicd has created in that boot.
    pub made: Vec<Route>,
}

impl Routes {
    fn is_empty(&self) -> bool {
        self.made.is_empty()
    }
}

impl Ownership {
    /// Loads the record, or the copy if the record is missing or damaged. `None` if both are missing.
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

    /// Writes the record. Writes the copy first, so that one of them is always intact.
    ///
    /// # Errors
    /// Fails when the copy or the record cannot be written.
    pub fn save(&self, host: &dyn Host) -> Result<(), HostError> {
        for file in [COPY, path::OWNED] {
            files::write_json(host, file, self, Access::Protected)?;
        }
        Ok(())
    }

    /// Removes the record and its copy. The caller has removed all recorded objects.
    ///
    /// # Errors
    /// Fails when the copy or the record cannot be removed.
    pub fn forget(host: &dyn Host) -> Result<(), HostError> {
        [COPY, path::OWNED].into_iter().try_for_each(|file| files::remove(host, file))
    }

    /// Loads the record. Without one, returns the known objects of WMCO on a host of WMCO, and otherwise an empty record. A record that has only
    /// leftovers of a cleanup counts as none, because WMCO may have used the host since; the leftovers stay in the result.
    ///
    /// # Errors
    /// [`HostError::RecordLost`] on a host of the operator whose record is lost: treated as a host of WMCO, it would lose more than the operator
    /// has put there. Also fails when the record, or an object to adopt, cannot be read.
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

    /// Creates the record of a clean host on which only these directories are left.
    pub fn only_left(trees: BTreeSet<String>) -> Self {
        Self { trees, ..Self::default() }
    }

    fn is_only_left(&self) -> bool {
        *self == Self::only_left(self.trees.clone())
    }

    /// Loads, changes and writes the record. The caller holds the [`crate::lock`].
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
            let services = services.into_iter().collect::<Vec<_>>().join(", ");
            return Err(HostError::RecordLost { path: path::OWNED.to_string(), services });
        }
        let mut owned = Self {
            services,
            files: LEGACY_FILES.map(String::from).into(),
            trees: LEGACY_TREES.map(String::from).into(),
            // WMCO keeps no copy of the original values.
            env_vars: LEGACY_VARIABLES.map(|name| (name.to_string(), None)).into(),
            ..Self::default()
        };
        for name in files::list(host, path::ROOT)? {
            let child = format!(r"{}\{name}", path::ROOT);
            if child != path::WICD && api::payload::is_host_path(&child) {
                owned.trees.insert(child);
            }
        }
        // containerd reads all mirror files, so those that the cluster no longer has must be removed.
        for registry in files::list(host, LEGACY_REGISTRIES)? {
            let file = format!(r"{LEGACY_REGISTRIES}\{registry}\hosts.toml");
            if api::payload::is_host_path(&file) && files::exists(host, &file)? {
                owned.placed.insert(file);
            }
        }
        let imported = files::read(host, LEGACY_IMPORTED_CERTS)?.unwrap_or_default();
        // WMCO writes this copy after it has changed the store; with a damaged copy, no certificate is removed.
        let certificates = crate::certificates::bundle(&imported).unwrap_or_default();
        owned.adopted_trust.extend(certificates.iter().map(hex::encode));
        Ok(owned)
    }

    /// Claims the missing parent directories of a file. `C:\k` and `C:\k\wicd` are never claimed: the operator removes them after the cleanup.
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

    /// Claims a directory with its future content, unless it exists already.
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

    /// Claims a variable that is about to be set to `value`, if that changes it.
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

    /// Claims a certificate that is about to be trusted, unless WMCO has added it.
    pub fn claim_trust(&mut self, der: &[u8]) {
        if !self.adopted_trust.contains(&hex::encode(der)) {
            self.trusted.insert(hex::encode(der));
        }
    }

    /// Reports whether a service is the operator's. A recorded service without a description counts: a crash right after its creation left it.
    pub fn is_ours(&self, service: &ServiceInfo) -> bool {
        is_tagged(service) || (self.services.contains(&service.name) && service.description.is_empty())
    }
}

/// Reports whether the description marks the service as the operator's or WMCO's.
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
    fn a_service_is_the_operators_by_its_description_or_the_record() {
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

    /// The operator's services look like those of WMCO, which must not matter however the record is lost.
    #[test]
    fn a_host_of_the_operator_is_never_treated_as_one_of_wmco() {
        let host = FakeHost::temporary();
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
        let error = Ownership::load_or_adopt(&host).unwrap_err();
        assert!(error.reason() == "RecordLost" && error.to_string().contains("the services kubelet ("), "{error}");
        // A host of WMCO has no state of the operator.
        files::remove(&host, path::STATE).unwrap();
        assert!(Ownership::load_or_adopt(&host).unwrap().env_vars.contains_key("NO_PROXY"));
    }

    #[test]
    fn a_record_with_only_leftovers_of_a_cleanup_counts_as_none() {
        let host = FakeHost::temporary();
        let left = Ownership::only_left([r"C:\x".to_owned()].into());
        left.save(&host).unwrap();
        assert_eq!(Ownership::load_or_adopt(&host).unwrap(), left);
        host.state().services.insert("kubelet".into(), service("kubelet", "OpenShift managed kubelet"));
        let owned = Ownership::load_or_adopt(&host).unwrap();
        assert!(owned.env_vars.contains_key("NO_PROXY") && owned.trees.contains(r"C:\x"));
    }

    #[test]
    fn the_original_value_is_recorded_once() {
        let host = FakeHost::temporary();
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
    fn only_directories_that_did_not_exist_are_claimed() {
        let host = FakeHost::temporary();
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
