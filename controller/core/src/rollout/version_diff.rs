//! Differences between versions: the disruption of a change on a host, and the services to restart.
//!
//! | difference | disruption | services to restart |
//! |---|---|---|
//! | nothing: the hashes are equal | None | |
//! | certificates and kubeconfigs of the cluster, apart from the next row | None | |
//! | CA or address of the API server, which programs read when they start | Restart | those that connect to the API server |
//! | settings of credential providers, which kubelet reads when it starts | Restart | kubelet |
//! | rotation of logs by wicd | None | |
//! | accounts that hosts are checked for | None | |
//! | the route to the metadata service, the use of the pull secret, and the pool's trusted certificates and mirrors | None | |
//! | the plugin of Container Credential Guard, which Windows loads for each use, and its library | None | |
//! | a service's place in the start order | None | |
//! | command, dependencies, variables or preparation of a service | as the service | the service |
//! | a payload file that services read: changed, new or removed | as the services | the services |
//! | kubelet's program: Kubernetes requires a drain for a new minor version, which the hash does not show | Drain | kubelet |
//! | a payload file below `C:\k\cni` that no service reads | Drain | |
//! | any other payload file that no service reads | None | |
//! | kubelet's configuration | Restart | kubelet |
//! | containerd's settings, or its network configuration | Drain | containerd |
//! | a new or removed service | Drain if bootstrap, otherwise Restart | |
//! | machine-wide environment variables | Reboot, or None for a removed variable that each service now sets itself | |
//! | the list of environment variables that wicd keeps | None | |
//!
//! "As the service" means Drain for containerd and hybrid-overlay-node, without which pods have no runtime or no network, and for unknown services;
//! Restart for the others. Services that depend on a restarted service are restarted with it, because Windows stops them with it. That alone is only
//! a Restart: they come back as they were. The greatest disruption counts.
//!
//! WMCO's versions contain neither the configuration of kubelet and containerd nor the readers of each file: kubelet is restarted in any case, and
//! files count for the services that read them now.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use api::{
    Disruption,
    host::path,
    payload::File,
    services::{Service, ServicesConfig},
};
use serde_json::Value;

use crate::render::{CREDENTIAL_PROVIDER_CONFIG, Rendered, Stored, program};

const KUBELET: &str = "kubelet";
const CONTAINERD: &str = "containerd";
const NODE_MANAGER: &str = "cloud-node-manager";
/// Files of the cluster that programs read only when they start, with these programs. Services that depend on kubelet are restarted with it. (kubelet
/// reads the CA again since 1.36; older versions notice a new CA of the API server too late.) wicd reads its own files at each connection.
const READ_AT_START: [(&str, &[&str]); 3] = [
    (path::API_CA, &[KUBELET, NODE_MANAGER]),
    (path::NODE_KUBECONFIG, &[KUBELET]),
    (path::NODE_MANAGER_KUBECONFIG, &[NODE_MANAGER]),
];
/// Directory of the CNI plugins, in lower case. Plugins are started for each new pod; running pods keep the network that an older plugin made.
const CNI: &str = r"c:\k\cni\";
/// Maximum number of differences in a message; the others are only counted.
const SHOWN: usize = 5;

/// Effect of a change of version on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Disruption that the change causes.
    pub disruption: Disruption,
    /// Names of the services to restart.
    pub services: BTreeSet<String>,
    /// Differences, for users: the most disruptive first, then in alphabetical order. After five, only the number of the others.
    pub why: Vec<String>,
}

/// Returns the change from the version that a host follows to the desired one.
pub fn change(from: &Stored, to: &Rendered) -> Change {
    let mut seen = Differences::default();
    match from {
        Stored::Ours(from) if from.hash() == to.hash() => return Change::default(),
        Stored::Ours(from) => {
            seen.services(&from.services, &to.services);
            seen.variables(&from.services, &to.services);
            seen.files(ours(from), to);
            seen.shared(from, to);
        }
        Stored::Legacy(from) => {
            seen.services(from, &to.services);
            seen.variables(from, &to.services);
            seen.files(legacy(from), to);
            seen.add(Disruption::Restart, [KUBELET], format!("{KUBELET}'s settings"));
            if to.shared.containerd.is_some() {
                seen.add(Disruption::Drain, [CONTAINERD], format!("{CONTAINERD}'s settings"));
            }
        }
    }
    seen.change(&to.services.services)
}

/// Returns the change of a host whose current version is unknown.
pub fn unknown() -> Change {
    Change {
        disruption: Disruption::Drain,
        services: BTreeSet::new(),
        why: vec!["the version that the host follows is unknown".to_owned()],
    }
}

/// State of one payload file in a version.
struct Known {
    name: String,
    sha256: String,
    services: BTreeSet<String>,
}

/// Payload files by destination in lower case.
type Files = BTreeMap<String, Known>;

fn ours(rendered: &Rendered) -> Files {
    let known =
        |f: &File| Known { name: f.destination.clone(), sha256: f.sha256.clone(), services: f.services.clone() };
    rendered.files().iter().map(|f| (f.destination.to_ascii_lowercase(), known(f))).collect()
}

fn legacy(config: &ServicesConfig) -> Files {
    let known = |f: &api::services::FileInfo| Known {
        name: f.path.clone(),
        sha256: f.checksum.to_ascii_lowercase(),
        services: BTreeSet::new(),
    };
    config.files.iter().map(|f| (f.path.to_ascii_lowercase(), known(f))).collect()
}

#[derive(Default)]
struct Differences {
    found: BTreeSet<(Reverse<Disruption>, String)>,
    restart: BTreeSet<String>,
}

impl Differences {
    fn add<'a>(&mut self, disruption: Disruption, restart: impl IntoIterator<Item = &'a str>, why: String) {
        self.found.insert((Reverse(disruption), why));
        self.restart.extend(restart.into_iter().map(str::to_owned));
    }

    fn services(&mut self, from: &ServicesConfig, to: &ServicesConfig) {
        let (old, new) = (by_name(from), by_name(to));
        for (key, service) in &new {
            match old.get(key) {
                Some(before) => self.service(before, service),
                None => self.add(presence(service), [], format!("the new service {}", service.name)),
            }
        }
        for service in old.iter().filter(|(key, _)| !new.contains_key(*key)).map(|(_, service)| service) {
            self.add(presence(service), [], format!("removal of the service {}", service.name));
        }
    }

    fn service(&mut self, from: &Service, to: &Service) {
        let name = to.name.as_str();
        let node = |s: &Service| s.node_variables_in_command.iter().map(|v| format!("{v:?}")).collect::<BTreeSet<_>>();
        let host = |s: &Service| s.host_variables_in_command.iter().map(|v| format!("{v:?}")).collect::<BTreeSet<_>>();
        let scripts = |s: &Service| s.powershell_pre_scripts.clone();
        if (&from.path, node(from), host(from)) != (&to.path, node(to), host(to)) {
            self.add(of_service(name), [name], format!("the command of {name}"));
        }
        let dependencies = |s: &Service| s.dependencies.iter().cloned().collect::<BTreeSet<_>>();
        if dependencies(from) != dependencies(to) {
            self.add(of_service(name), [name], format!("the dependencies of {name}"));
        }
        let variables = differing(&from.environment, &to.environment);
        if !variables.is_empty() {
            self.add(of_service(name), [name], format!("the variables of {name} ({})", list(&variables)));
        }
        if (&from.prepare, scripts(from)) != (&to.prepare, scripts(to)) {
            self.add(of_service(name), [name], format!("the steps before the start of {name}"));
        }
        if (from.priority, from.bootstrap) != (to.priority, to.bootstrap) {
            self.add(Disruption::None, [], format!("the start order of {name}"));
        }
    }

    /// Adds the differences of environment variables, by name only: a value may hold a password.
    fn variables(&mut self, from: &ServicesConfig, to: &ServicesConfig) {
        let mut values = differing(&from.environment_vars, &to.environment_vars);
        // wicd leaves a machine-wide variable in place if every service has its own.
        values.retain(|name| to.environment_vars.contains_key(name) || !to.is_own_variable(name));
        if !values.is_empty() {
            self.add(Disruption::Reboot, [], format!("environment variables ({})", list(&values)));
        }
        // It is unknown here whether a host has one of these variables. If it has, wicd requests a restart after a change of the value.
        let watched = |c: &ServicesConfig| c.watched_environment_vars.iter().cloned().collect::<BTreeSet<_>>();
        let names: BTreeSet<String> =
            watched(from).symmetric_difference(&watched(to)).filter(|n| !values.contains(*n)).cloned().collect();
        if !names.is_empty() {
            self.add(Disruption::None, [], format!("environment variables that wicd keeps ({})", list(&names)));
        }
    }

    fn files(&mut self, old: Files, to: &Rendered) {
        let new = ours(to);
        let running = by_name(&to.services);
        let all: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in all {
            let (before, after) = (old.get(key), new.get(key));
            let Some(file) = after.or(before) else { continue };
            if before.map(|f| &f.sha256) == after.map(|f| &f.sha256) {
                continue;
            }
            let claims: BTreeSet<&str> =
                [before, after].into_iter().flatten().flat_map(|f| &f.services).map(String::as_str).collect();
            // A service that hosts do not run, because the cluster does not need it, is not affected.
            let restart: Vec<&str> =
                claims.iter().copied().filter(|s| running.contains_key(&s.to_ascii_lowercase())).collect();
            let is_kubelet = key.eq_ignore_ascii_case(program::KUBELET);
            let disruption = if is_kubelet || (claims.is_empty() && key.starts_with(CNI)) {
                Disruption::Drain
            } else {
                restart.iter().map(|s| of_service(s)).max().unwrap_or_default()
            };
            let name = file.name.rsplit('\\').next().unwrap_or(&file.name);
            self.add(disruption, restart, name.to_owned());
        }
    }

    fn shared(&mut self, from: &Rendered, to: &Rendered) {
        let services = &to.services.services;
        let (from, to) = (&from.shared, &to.shared);
        if from.kubelet != to.kubelet {
            let why = match differing_keys(&from.kubelet, &to.kubelet) {
                keys if keys.is_empty() => format!("{KUBELET}'s settings"),
                keys => format!("{KUBELET}'s settings ({})", list(&keys)),
            };
            self.add(Disruption::Restart, [KUBELET], why);
        }
        if from.containerd != to.containerd {
            self.add(Disruption::Drain, [CONTAINERD], format!("{CONTAINERD}'s settings"));
        }
        for (is_other, why) in [
            (from.logs != to.logs, "the rotation of logs"),
            (from.metadata_address != to.metadata_address, "the route to the metadata service"),
            (from.pull_secret_registries != to.pull_secret_registries, "the use of the pull secret"),
            (from.trusted_certificates != to.trusted_certificates, "the certificates that the pool trusts"),
            (from.image_mirrors != to.image_mirrors, "the mirrors of the pool"),
            (from.service_accounts != to.service_accounts, "the accounts that hosts are checked for"),
            (from.credential_plugin != to.credential_plugin, "the plugin of Container Credential Guard"),
        ] {
            if is_other {
                self.add(Disruption::None, [], why.to_owned());
            }
        }
        let runs = |name: &str| services.iter().any(|s| s.name == name);
        let paths: BTreeSet<&String> = from.cluster_files.keys().chain(to.cluster_files.keys()).collect();
        for path in paths.into_iter().filter(|p| from.cluster_files.get(*p) != to.cluster_files.get(*p)) {
            let why = path.rsplit('\\').next().unwrap_or(path).to_owned();
            if path.eq_ignore_ascii_case(CREDENTIAL_PROVIDER_CONFIG) {
                self.add(Disruption::Restart, [KUBELET], why);
            } else if path.eq_ignore_ascii_case(program::CONTAINERD_NETWORK) {
                self.add(Disruption::Drain, [CONTAINERD], why);
            } else if let Some((_, readers)) = READ_AT_START.iter().find(|(file, _)| path.eq_ignore_ascii_case(file)) {
                // If the file is added or removed, so are its readers.
                let is_other = from.cluster_files.contains_key(path) && to.cluster_files.contains_key(path);
                let running: Vec<&str> = readers.iter().copied().filter(|s| is_other && runs(s)).collect();
                let disruption = if running.is_empty() { Disruption::None } else { Disruption::Restart };
                self.add(disruption, running, why);
            } else {
                self.add(Disruption::None, [], why);
            }
        }
    }

    fn change(self, services: &[Service]) -> Change {
        let mut restart = self.restart;
        // Each round adds at least one service or is the last.
        loop {
            let depends =
                |s: &&Service| !restart.contains(&s.name) && s.dependencies.iter().any(|d| restart.contains(d));
            let more: Vec<String> = services.iter().filter(depends).map(|s| s.name.clone()).collect();
            if more.is_empty() {
                break;
            }
            restart.extend(more);
        }
        let disruption = self.found.first().map(|(Reverse(d), _)| *d).unwrap_or_default();
        Change { disruption, services: restart, why: first(self.found.iter().map(|(_, why)| why)) }
    }
}

/// Returns the names of the variables that differ. Values are left out: they may hold passwords.
fn differing(from: &BTreeMap<String, String>, to: &BTreeMap<String, String>) -> BTreeSet<String> {
    from.keys().chain(to.keys()).filter(|name| from.get(*name) != to.get(*name)).cloned().collect()
}

/// Returns the disruption of a change of a service.
fn of_service(name: &str) -> Disruption {
    match name {
        KUBELET | "kube-proxy" | "csi-proxy" | "windows_exporter" | NODE_MANAGER => Disruption::Restart,
        _ => Disruption::Drain,
    }
}

/// Returns the disruption of a new or removed service.
fn presence(service: &Service) -> Disruption {
    if service.bootstrap { Disruption::Drain } else { Disruption::Restart }
}

/// Returns the services by name in lower case: Windows ignores the case of names.
fn by_name(config: &ServicesConfig) -> BTreeMap<String, &Service> {
    config.services.iter().map(|s| (s.name.to_ascii_lowercase(), s)).collect()
}

fn differing_keys(from: &Value, to: &Value) -> BTreeSet<String> {
    let keys =
        |value: &Value| value.as_object().map(|m| m.keys().cloned().collect::<BTreeSet<_>>()).unwrap_or_default();
    keys(from).union(&keys(to)).filter(|k| from.get(k.as_str()) != to.get(k.as_str())).cloned().collect()
}

fn list(names: &BTreeSet<String>) -> String {
    first(names.iter()).join(", ")
}

/// Returns the first texts, and the number of the others.
fn first<'a>(texts: impl ExactSizeIterator<Item = &'a String>) -> Vec<String> {
    let others = texts.len().saturating_sub(SHOWN);
    let others = (others > 0).then(|| format!("and {others} more"));
    texts.take(SHOWN).cloned().chain(others).collect()
}

#[cfg(test)]
#[path = "version_diff_tests.rs"]
mod tests;
