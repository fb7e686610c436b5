//! Services ConfigMap `windows-services-<version>`: the Windows services of a host, in WMCO's format.
//!
//! Its data keys `services`, `files`, `environmentVars` and `watchedEnvironmentVars` each hold a JSON text. This
//! operator adds the optional fields `environment`, `hostVariablesInCommand` and `prepare` to a service; readers of the
//! legacy format skip them.

use crate::Reason;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Content of a services ConfigMap.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ServicesConfig {
    /// Services of the host, sorted by priority.
    pub services: Vec<Service>,
    /// Files that the services need, with their hashes.
    pub files: Vec<FileInfo>,
    /// Machine-wide environment variables to set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment_vars: BTreeMap<String, String>,
    /// Variables that the operator owns: those that are not in `environment_vars` must not exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watched_environment_vars: Vec<String>,
}

impl ServicesConfig {
    /// Reports whether there are services and each has its own value of this variable, so that none uses the machine-wide value. Ignores the case of
    /// names, as Windows does.
    pub fn is_own_variable(&self, name: &str) -> bool {
        let has = |s: &Service| s.environment.keys().any(|own| own.eq_ignore_ascii_case(name));
        !self.services.is_empty() && self.services.iter().all(has)
    }
}

/// Windows service.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Name of the service in the service manager.
    pub name: String,
    /// Command line with unexpanded variables. The name of the field is a legacy of WMCO.
    pub path: String,
    /// Variables in the command line with values from the Node.
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub node_variables_in_command: Vec<NodeVariable>,
    /// Variables in the command line whose values the host determines itself.
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub host_variables_in_command: Vec<HostVariable>,
    /// Scripts that WMCO's daemon runs before the service, for values in its command. Always empty in ConfigMaps of this operator, which does not use
    /// PowerShell; [`ServicesConfig::validate_for_host`] refuses others. Legacy.
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub powershell_pre_scripts: Vec<serde_json::Value>,
    /// Variables of the service, in addition to those of the machine or in place of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Files and endpoints that wicd creates before the service starts. Replaces the legacy scripts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare: Option<Prepare>,
    /// Services that must run before this one.
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<String>,
    /// True if the host needs the service to become a node.
    pub bootstrap: bool,
    /// Priority of the start: services with a lower one start first.
    pub priority: u32,
}

/// Reads a list that Go may have written as `null`.
fn or_null<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<Vec<T>>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Files and endpoints that wicd creates before it starts a service.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Prepare {
    /// Configuration of CNI and kube-proxy, and kube-proxy's own address in the pod network.
    OvnHybridNetwork(OvnHybridNetwork),
    /// Token with which the service authenticates to the API server.
    ServiceAccountToken(ServiceAccountToken),
}

/// Token of a ServiceAccount in the operator's namespace, bound to the host's Node.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountToken {
    /// Name of the ServiceAccount.
    pub service_account: String,
    /// Path of the file from which the service reads the token.
    pub path: String,
}

/// Network configuration of a host in the hybrid overlay of OVN-Kubernetes, without the values that the host determines itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct OvnHybridNetwork {
    /// Service network, IPv4, for example `172.30.0.0/16`.
    pub service_cidr: String,
    /// kubeconfig of kube-proxy on the host.
    pub kubeconfig: String,
    /// Log level of kube-proxy: klog's `-v`.
    pub verbosity: u32,
}

/// Variable with a value from the Node.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeVariable {
    /// Text in the command that is replaced.
    pub name: String,
    /// JSON path in the Node, for example `{.metadata.name}`; text without braces is literal.
    pub node_object_json_path: String,
}

/// Variable whose value the host determines itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HostVariable {
    /// Text in the command that is replaced.
    pub name: String,
    /// Fact that replaces the text.
    pub fact: HostFact,
}

/// Value that the host determines itself.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFact {
    /// Name of the Node.
    NodeName,
    /// Address of the Node.
    NodeIp,
}

/// File with its hash.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FileInfo {
    /// Path of the file on the host.
    pub path: String,
    /// SHA-256 of the content, in lower-case hex.
    pub checksum: String,
}

/// Error of an unusable services ConfigMap.
#[derive(Debug, thiserror::Error)]
pub enum ServicesError {
    /// Missing key of the ConfigMap.
    #[error("the services ConfigMap has no key {0:?}")]
    MissingKey(&'static str),
    /// Key that is not part of the format.
    #[error("the services ConfigMap has the unknown key {0:?}")]
    UnknownKey(String),
    /// Text under a key that is not JSON of the right form.
    #[error("the text under key {key:?} of the services ConfigMap cannot be read")]
    Syntax {
        /// Key of the ConfigMap.
        key: &'static str,
        /// Cause of the failure.
        #[source]
        source: serde_json::Error,
    },
    /// Invalid service.
    #[error("the service {service:?} of the services ConfigMap is invalid: {problem}")]
    Service {
        /// Name of the service.
        service: String,
        /// Problem with the service.
        problem: &'static str,
    },
}

impl ServicesError {
    /// Reason for conditions and events.
    pub fn reason(&self) -> Reason {
        Reason::VersionUnreadable
    }
}

const KEYS: [&str; 4] = ["services", "files", "environmentVars", "watchedEnvironmentVars"];

impl ServicesConfig {
    /// Reads the data of a ConfigMap, checks it and sorts the services by priority (equal ones keep their order).
    ///
    /// # Errors
    /// [`ServicesError::UnknownKey`] when `data` has a key that is not part of the format. [`ServicesError::MissingKey`] when it has no `services` or
    /// no `files`. [`ServicesError::Syntax`] when the text under a key is not JSON of the right form. Also fails when [`ServicesConfig::validate`]
    /// fails.
    pub fn from_data(data: &BTreeMap<String, String>) -> Result<Self, ServicesError> {
        if let Some(unknown) = data.keys().find(|k| !KEYS.contains(&k.as_str())) {
            return Err(ServicesError::UnknownKey(unknown.clone()));
        }
        // Go writes a nil list or map as `null`.
        fn read<T: serde::de::DeserializeOwned + Default>(text: &str, key: &'static str) -> Result<T, ServicesError> {
            let read: Result<Option<T>, _> = serde_json::from_str(text);
            read.map(Option::unwrap_or_default).map_err(|source| ServicesError::Syntax { key, source })
        }
        let required = |key| data.get(key).ok_or(ServicesError::MissingKey(key));
        let optional = |key| data.get(key).map_or("null", String::as_str);
        let mut config = Self {
            services: read(required("services")?, "services")?,
            files: read(required("files")?, "files")?,
            environment_vars: read(optional("environmentVars"), "environmentVars")?,
            watched_environment_vars: read(optional("watchedEnvironmentVars"), "watchedEnvironmentVars")?,
        };
        config.services.sort_by_key(|s| s.priority);
        config.validate()?;
        Ok(config)
    }

    /// Returns the data of the ConfigMap, which is the same text for the same content.
    pub fn to_data(&self) -> BTreeMap<String, String> {
        fn text<T: Serialize>(value: &T) -> String {
            serde_json::to_string(value).unwrap_or_default()
        }
        let mut data = BTreeMap::from([
            ("services".into(), text(&self.services)),
            ("files".into(), text(&self.files)),
            ("watchedEnvironmentVars".into(), text(&self.watched_environment_vars)),
        ]);
        if !self.environment_vars.is_empty() {
            data.insert("environmentVars".into(), text(&self.environment_vars));
        }
        data
    }

    /// Checks the rules of the format: unique names; a bootstrap service uses no Node variable and depends on no other
    /// kind of service; bootstrap services come strictly first; no service depends on itself, directly or indirectly.
    /// Dependencies on services outside the list are allowed.
    ///
    /// # Errors
    /// [`ServicesError::Service`] when a service breaks one of these rules, its name is not acceptable, or its command is
    /// empty or has more than one line.
    pub fn validate(&self) -> Result<(), ServicesError> {
        let refuse = |s: &Service, problem| Err(ServicesError::Service { service: s.name.clone(), problem });
        let by_name: BTreeMap<String, &Service> =
            self.services.iter().map(|s| (s.name.to_ascii_lowercase(), s)).collect();
        let mut seen = BTreeSet::new();
        let last_bootstrap = self.services.iter().filter(|s| s.bootstrap).map(|s| s.priority).max();
        for service in &self.services {
            if !is_service_name(&service.name) {
                return refuse(
                    service,
                    "the name must have 1 to 80 characters, only letters, digits, `-`, `_` and `.`",
                );
            }
            if !seen.insert(service.name.to_ascii_lowercase()) {
                return refuse(service, "the name is listed twice");
            }
            if service.path.trim().is_empty() || service.path.contains(['\0', '\r', '\n']) {
                return refuse(service, "the command is empty or has more than one line");
            }
            if service.bootstrap {
                if !service.node_variables_in_command.is_empty() {
                    return refuse(
                        service,
                        "a bootstrap service cannot have variables of the Node, because it starts before the Node exists",
                    );
                }
                if service
                    .dependencies
                    .iter()
                    .any(|d| by_name.get(&d.to_ascii_lowercase()).is_some_and(|s| !s.bootstrap))
                {
                    return refuse(
                        service,
                        "a bootstrap service cannot depend on a service that is not a bootstrap service",
                    );
                }
            } else if last_bootstrap.is_some_and(|p| service.priority <= p) {
                return refuse(service, "its priority must be higher than that of every bootstrap service");
            }
        }
        match self.cycle() {
            Some(service) => refuse(service, "the service, or one that it depends on, depends on itself"),
            None => Ok(()),
        }
    }

    /// Checks the services for a host: the rules of the format, and that no service needs a script, without which its command would start with an
    /// unexpanded variable.
    ///
    /// # Errors
    /// [`ServicesError::Service`], as [`ServicesConfig::validate`], and when a service has a script.
    pub fn validate_for_host(&self) -> Result<(), ServicesError> {
        self.validate()?;
        match self.services.iter().find(|service| !service.powershell_pre_scripts.is_empty()) {
            Some(service) => Err(ServicesError::Service {
                service: service.name.clone(),
                problem: "it needs a PowerShell script (powershellPreScripts), which this operator does not run: the services are of the Windows Machine Config \
                          Operator; take the node over, or leave it to that operator",
            }),
            None => Ok(()),
        }
    }

    /// Returns a service that depends on itself, directly or indirectly, or on such a service.
    fn cycle(&self) -> Option<&Service> {
        // Repeatedly removes services that depend on no remaining service. A service that cannot be removed is in a
        // cycle or behind one.
        let mut left: Vec<&Service> = self.services.iter().collect();
        loop {
            let names_left: BTreeSet<String> = left.iter().map(|s| s.name.to_ascii_lowercase()).collect();
            let before = left.len();
            left.retain(|s| s.dependencies.iter().any(|d| names_left.contains(&d.to_ascii_lowercase())));
            if left.len() == before {
                return left.into_iter().next();
            }
        }
    }
}

fn is_service_name(name: &str) -> bool {
    (1..=80).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn service(name: &str, priority: u32, bootstrap: bool, dependencies: &[&str]) -> Service {
        Service {
            name: name.into(),
            path: format!(r"C:\k\{name}.exe"),
            bootstrap,
            priority,
            dependencies: dependencies.iter().map(ToString::to_string).collect(),
            ..Service::default()
        }
    }

    fn data_of<'a>(texts: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
        texts.into_iter().map(|(key, text)| (key.to_owned(), text.to_owned())).collect()
    }

    fn check(services: Vec<Service>) -> Result<(), String> {
        ServicesConfig { services, ..ServicesConfig::default() }.validate().map_err(|e| e.to_string())
    }

    #[test]
    fn a_service_that_breaks_a_rule_is_refused() {
        let (c, k) = (service("containerd", 0, true, &[]), service("kubelet", 1, true, &["containerd"]));
        let cases: [(&str, Vec<Service>, Option<&str>); 12] = [
            ("usual", vec![c.clone(), k.clone(), service("x", 2, false, &["kubelet", "dhcp"])], None),
            // WMCO wrongly reports a cycle here.
            (
                "order does not matter",
                vec![service("a", 1, false, &["b"]), service("b", 1, false, &[]), service("c", 1, false, &["a"])],
                None,
            ),
            (
                "diamond",
                vec![
                    service("a", 1, false, &["b", "c"]),
                    service("b", 1, false, &["d"]),
                    service("c", 1, false, &["d"]),
                    service("d", 1, false, &[]),
                ],
                None,
            ),
            ("self", vec![service("a", 1, false, &["a"])], Some("depends on itself")),
            (
                "in another case, which Windows ignores",
                vec![service("a", 1, false, &["B"]), service("b", 1, false, &["A"])],
                Some("depends on itself"),
            ),
            (
                "long way round",
                vec![service("a", 1, false, &["b"]), service("b", 1, false, &["c"]), service("c", 1, false, &["a"])],
                Some("depends on itself"),
            ),
            (
                "cycle in the second dependency",
                vec![service("a", 1, false, &["x", "b"]), service("x", 1, false, &[]), service("b", 1, false, &["a"])],
                Some("depends on itself"),
            ),
            ("twice", vec![c.clone(), service("Containerd", 0, true, &[])], Some("twice")),
            (
                "bootstrap on other",
                vec![service("a", 0, true, &["x"]), service("x", 1, false, &[])],
                Some("cannot depend"),
            ),
            ("priority", vec![k.clone(), service("x", 1, false, &[])], Some("priority")),
            ("name", vec![service("a b", 1, false, &[])], Some("name")),
            ("command", vec![Service { path: "a\nb".into(), ..service("a", 1, false, &[]) }], Some("one line")),
        ];
        for (name, services, expected) in cases {
            let fault = check(services).err();
            assert_eq!(fault.is_some(), expected.is_some(), "{name}: {fault:?}");
            assert!(fault.unwrap_or_default().contains(expected.unwrap_or_default()), "{name}");
        }
    }

    #[test]
    fn a_legacy_config_map_is_read() {
        let data = data_of([
            (
                "services",
                r#"[{"name":"kube-proxy","path":"C:\\k\\kube-proxy.exe","nodeVariablesInCommand":[{"name":"NODE_NAME","nodeObjectJsonPath":"{.metadata.name}"}],"powershellPreScripts":[{"path":"x.ps1","NodeArgs":null}],"dependencies":["kubelet"],"bootstrap":false,"priority":3},{"name":"kubelet","path":"k","bootstrap":true,"priority":1}]"#,
            ),
            ("files", "[]"),
            ("watchedEnvironmentVars", r#"["HTTP_PROXY"]"#),
        ]);
        let config = ServicesConfig::from_data(&data).unwrap();
        assert_eq!(config.services.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["kubelet", "kube-proxy"]);
        assert_eq!(ServicesConfig::from_data(&config.to_data()).unwrap(), config);
        // A legacy ConfigMap is only compared with the desired one; hosts do not follow it.
        let refused = config.validate_for_host().unwrap_err().to_string();
        assert!(refused.contains("kube-proxy") && refused.contains("powershellPreScripts"), "{refused}");
        let mut plain = config;
        plain.services[1].powershell_pre_scripts.clear();
        plain.validate_for_host().unwrap();
        plain.services[0].path.clear();
        assert!(plain.validate_for_host().is_err(), "a service without a command is accepted");
    }

    #[test]
    fn null_is_an_empty_list() {
        let kubelet = r#"[{"name":"kubelet","path":"k","nodeVariablesInCommand":null,"powershellPreScripts":null,"dependencies":null,"bootstrap":true,"priority":1}]"#;
        let data = |services| data_of(KEYS.map(|key| (key, if key == "services" { services } else { "null" })));
        let config = ServicesConfig::from_data(&data(kubelet)).unwrap();
        assert_eq!(config.services.len(), 1);
        assert_eq!(config, ServicesConfig { services: config.services.clone(), ..ServicesConfig::default() });
        assert_eq!(ServicesConfig::from_data(&data("null")).unwrap(), ServicesConfig::default());
    }

    #[test]
    fn fields_that_legacy_readers_do_not_know_are_left_out_if_empty() {
        let plain = serde_json::to_value(service("kubelet", 0, true, &[])).unwrap();
        assert!(plain.get("prepare").is_none() && plain.get("hostVariablesInCommand").is_none());
        let network = OvnHybridNetwork { service_cidr: "172.30.0.0/16".into(), kubeconfig: "k".into(), verbosity: 4 };
        let prepared =
            Service { prepare: Some(Prepare::OvnHybridNetwork(network)), ..service("kube-proxy", 1, false, &[]) };
        let text = serde_json::to_string(&prepared).unwrap();
        let expected =
            r#""prepare":{"ovnHybridNetwork":{"serviceCidr":"172.30.0.0/16","kubeconfig":"k","verbosity":4}}"#;
        assert!(text.contains(expected), "{text}");
        assert_eq!(serde_json::from_str::<Service>(&text).unwrap(), prepared);
    }

    #[test]
    fn missing_and_unknown_keys_are_named() {
        let refusal = |keys: &[&'static str]| {
            ServicesConfig::from_data(&data_of(keys.iter().map(|key| (*key, "[]")))).unwrap_err()
        };
        assert!(matches!(refusal(&["services"]), ServicesError::MissingKey("files")));
        assert!(matches!(refusal(&["services", "files", "x"]), ServicesError::UnknownKey(k) if k == "x"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(services in ".{0,200}", files in ".{0,40}") {
            let _ = ServicesConfig::from_data(&BTreeMap::from([("services".into(), services), ("files".into(), files)]));
        }
    }
}
