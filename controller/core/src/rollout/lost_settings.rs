//! Settings of a legacy operator's node that a version of this operator would remove. Pure.
//!
//! The legacy operator reads the cluster's proxy, its cloud provider and more by itself; this operator gets some of them as
//! arguments. If an argument is missing, a change of version would remove the setting without an error. So a node with such a
//! difference stays as it was adopted, until the setting is provided or a user accepts the loss.
//!
//! | setting of the legacy version | lost if the target has |
//! |---|---|
//! | a service | no service of that name |
//! | an environment variable that is not empty | no variable of that name, or an empty one; another value is not a loss |
//! | a cloud-node-manager | a cloud-node-manager whose ServiceAccount is missing |
//! | the sandbox image of WMCO's containerd | another configuration of containerd, and the pool names no sandbox image |
//! | mirrors of registries | no mirrors for a source, because containerd cannot follow its rule |
//! | a kubelet flag that describes the cluster, see [`FLAGS`] | no such flag, or another value |
//!
//! Trusted certificates are not lost: wicd keeps those that the legacy operator has imported for as long as the host is a
//! node.

use std::{collections::BTreeMap, fmt};

use api::{
    names::{key, user},
    services::ServicesConfig,
};

use crate::{
    enumeration::first_names,
    render::{ImageSources, program::CONTAINERD_CONFIG},
};

/// kubelet flags that describe the cluster. This operator sets WMCO's other flags, too, or they only say how kubelet is started.
const FLAGS: [&str; 4] =
    ["cloud-provider", "cloud-config", "image-credential-provider-config", "image-credential-provider-bin-dir"];
/// Sandbox image in the containerd configuration of WMCO's current releases. WMCO's ConfigMap does not name the image.
const WMCO_SANDBOX: &str = "mcr.microsoft.com/oss/kubernetes/pause:3.9";
/// Name in the annotation that accepts another sandbox image.
const SANDBOX: &str = "sandbox-image";
/// Name in the annotation that accepts the loss of mirrors.
const MIRRORS: &str = "image-mirrors";
/// Service that initialises Nodes of a cloud.
const NODE_MANAGER: &str = "cloud-node-manager";
/// Value of the annotation that accepts every loss.
const ALL: &str = "all";
/// Maximum length of a name or value in a message, in characters: the ConfigMap is untrusted.
const LONGEST: usize = 80;

/// Setting that would be lost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Service of this name.
    Service(String),
    /// Running cloud-node-manager, whose replacement would wait for a missing ServiceAccount.
    NodeManager,
    /// Machine-wide environment variable of this name. Its value may hold a password.
    Variable(String),
    /// kubelet flag: its name without dashes, and its value.
    Flag(String, String),
    /// Sandbox image, without which no pod starts.
    Sandbox,
    /// Mirrors of these sources.
    Mirrors(Vec<String>),
    /// Settings of a version that cannot be read now, with the cause.
    Unreadable(String),
    /// Settings of this version, which are unknown because its ConfigMap is gone.
    Gone(String),
}

impl Loss {
    /// Returns the name in the annotation that accepts the loss.
    fn name(&self) -> &str {
        match self {
            Self::Service(name) | Self::Variable(name) | Self::Flag(name, _) => name,
            Self::NodeManager => NODE_MANAGER,
            Self::Sandbox => SANDBOX,
            Self::Mirrors(_) => MIRRORS,
            Self::Unreadable(_) => "unreadable",
            Self::Gone(_) => "unknown",
        }
    }

    /// Returns the remedy that keeps the setting.
    fn remedy(&self) -> &'static str {
        match self {
            Self::Service(name) if matches!(name.as_str(), "hybrid-overlay-node" | "kube-proxy") => {
                "add its program to the payload, and run the operator with --network ovn-hybrid"
            }
            Self::Service(_) => "add its program to the payload",
            Self::NodeManager => "apply deploy/azure, which creates it",
            Self::Sandbox => {
                "if hosts can pull the image that the payload names, accept the loss; otherwise set template.spec.containerd.sandboxImage of \
                 the pool to an image that they can pull"
            }
            Self::Mirrors(_) => {
                "name mirrors in template.spec.imageMirrors of the pool, each with a path that ends with the whole path of its source"
            }
            Self::Variable(name) => match name.as_str() {
                "HTTP_PROXY" => {
                    "name a proxy that asks for no user name and no password in template.spec.proxy.httpProxy of the pool, or run the \
                     operator with --http-proxy"
                }
                "HTTPS_PROXY" => {
                    "name a proxy that asks for no user name and no password in template.spec.proxy.httpsProxy of the pool, or run the \
                     operator with --https-proxy"
                }
                "NO_PROXY" => "set template.spec.proxy.noProxy of the pool, or run the operator with --no-proxy",
                _ => "the operator has no setting for this variable",
            },
            Self::Flag(name, value) if name == "cloud-provider" && value == "external" => {
                "set template.spec.kubelet.cloudProvider of the pool to External, or run the operator with --external-cloud-provider"
            }
            Self::Flag(name, _) if name.starts_with("image-credential") => "add the credential provider to the payload",
            Self::Flag(..) => "the operator has no setting for this flag",
            Self::Unreadable(_) => "correct or restore the ConfigMap",
            Self::Gone(_) => "restore the ConfigMap from a backup",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => write!(f, "service {}", short(name)),
            Self::NodeManager => {
                write!(f, "service {NODE_MANAGER}, because its ServiceAccount {} is missing", user::NODE_MANAGER)
            }
            Self::Variable(name) => write!(f, "variable {}", short(name)),
            Self::Flag(name, value) => write!(f, "kubelet's --{name}={}", short(value)),
            Self::Sandbox => write!(f, "the image of sandbox containers {WMCO_SANDBOX}, without which no pod starts"),
            Self::Mirrors(sources) => {
                let sources: Vec<String> = sources.iter().map(|source| short(source)).collect();
                write!(f, "the mirrors of {}", first_names(&sources))
            }
            Self::Unreadable(why) => write!(f, "its settings cannot be compared: {why}"),
            Self::Gone(version) => {
                write!(f, "its settings are unknown: the ConfigMap windows-services-{} does not exist", short(version))
            }
        }
    }
}

/// Returns the loss of a running cloud-node-manager, if the ServiceAccount of its replacement is missing.
pub fn node_manager(from: &ServicesConfig, to: &ServicesConfig, is_lacking: bool) -> Option<Loss> {
    let runs = |config: &ServicesConfig| config.services.iter().any(|s| s.name.eq_ignore_ascii_case(NODE_MANAGER));
    (is_lacking && runs(from) && runs(to)).then_some(Loss::NodeManager)
}

/// Returns the image sources that a node would lose by a change from `from` to `to`.
pub fn images(from: &ServicesConfig, to: &ServicesConfig, sources: &ImageSources) -> Vec<Loss> {
    let settings =
        |config: &ServicesConfig| config.files.iter().find(|f| f.path == CONTAINERD_CONFIG).map(|f| f.checksum.clone());
    let (before, after) = (settings(from), settings(to));
    let sandbox = (after.is_some() && before != after && !sources.names_sandbox).then_some(Loss::Sandbox);
    let mirrors = (!sources.without_mirrors.is_empty()).then(|| Loss::Mirrors(sources.without_mirrors.clone()));
    sandbox.into_iter().chain(mirrors).collect()
}

/// Returns the services, variables and flags that a node would lose by a change from `from` to `to`, sorted.
pub fn losses(from: &ServicesConfig, to: &ServicesConfig) -> Vec<Loss> {
    let runs = |name: &str| to.services.iter().any(|s| s.name.eq_ignore_ascii_case(name));
    let services = from.services.iter().filter(|s| !runs(&s.name)).map(|s| Loss::Service(s.name.clone()));
    // Windows ignores the case of variable names.
    let of_machine =
        |name: &str| to.environment_vars.iter().any(|(n, v)| n.eq_ignore_ascii_case(name) && !v.is_empty());
    let sets = |name: &str| of_machine(name) || to.is_own_variable(name);
    let variables = from.environment_vars.iter().filter(|(name, value)| !value.is_empty() && !sets(name));
    let variables = variables.map(|(name, _)| Loss::Variable(name.clone()));
    let kept = flags(to);
    let flags =
        flags(from).into_iter().filter(|(name, value)| !kept.get(name).is_some_and(|v| v.eq_ignore_ascii_case(value)));
    let mut all: Vec<Loss> =
        services.chain(variables).chain(flags.map(|(name, value)| Loss::Flag(name, value))).collect();
    all.sort();
    all
}

/// Returns the [`FLAGS`] of kubelet's command with their values. `--name=value` and `--name value` are equal, with one dash or two.
fn flags(config: &ServicesConfig) -> BTreeMap<String, String> {
    let Some(kubelet) = config.services.iter().find(|s| s.name.eq_ignore_ascii_case("kubelet")) else {
        return BTreeMap::new();
    };
    let mut found = BTreeMap::new();
    let mut words = kubelet.path.split_whitespace().map(|w| w.trim_matches('"')).peekable();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else { continue };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.trim_matches('"')),
            None => (flag, words.next_if(|w| !w.starts_with('-')).unwrap_or_default()),
        };
        // A flag with an empty value means the same as a missing flag.
        if FLAGS.contains(&name) && !value.is_empty() {
            found.insert(name.to_owned(), value.to_owned());
        }
    }
    found
}

/// Returns the losses that are not accepted. `accepted` has the annotations of the pool and the instance: names separated by
/// commas, spaces or line breaks, or `all`.
pub fn unaccepted(losses: &[Loss], accepted: &[Option<&String>]) -> Vec<Loss> {
    let words: Vec<&str> = accepted
        .iter()
        .flatten()
        .flat_map(|text| text.split([',', ' ', '\n']))
        .map(|w| w.trim().trim_start_matches('-'))
        .collect();
    let is_accepted = |loss: &Loss| words.iter().any(|w| *w == ALL || w.eq_ignore_ascii_case(loss.name()));
    losses.iter().filter(|l| !is_accepted(l)).cloned().collect()
}

/// Returns a sentence about all losses with their remedies; `None` if there are none.
pub fn message(losses: &[Loss]) -> Option<String> {
    let names: Vec<&str> = losses.iter().map(Loss::name).collect();
    let each: Vec<String> = losses.iter().map(|l| format!("{l} ({})", l.remedy())).collect();
    let is_unknown = |loss: &Loss| matches!(loss, Loss::Unreadable(_) | Loss::Gone(_));
    let may = if losses.iter().all(is_unknown) { "may" } else { "would" };
    (!losses.is_empty()).then(|| {
        format!(
            "the node keeps its version, because the change {may} lose settings that it has: {}. Provide them, or accept the loss with the annotation {}: \"{}\" on the pool or the instance",
            each.join(", "),
            key::ACCEPT_LOST_SETTINGS,
            names.join(",")
        )
    })
}

/// Shortens a text from a ConfigMap, and makes it safe for a message.
fn short(text: &str) -> String {
    let mut cut: String = text.chars().filter(char::is_ascii_graphic).take(LONGEST).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::services::{FileInfo, Service};
    use proptest::prelude::*;

    fn config(services: &[(&str, &str)], variables: &[(&str, &str)]) -> ServicesConfig {
        let service =
            |(name, path): &(&str, &str)| Service { name: (*name).into(), path: (*path).into(), ..Service::default() };
        ServicesConfig {
            services: services.iter().map(service).collect(),
            environment_vars: variables.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            ..ServicesConfig::default()
        }
    }

    /// Returns `config` with a variable set for each service.
    fn own(mut config: ServicesConfig, name: &str) -> ServicesConfig {
        for service in &mut config.services {
            service.environment.insert(name.into(), "x".into());
        }
        config
    }

    fn names(losses: &[Loss]) -> Vec<String> {
        losses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn services_variables_and_flags_that_the_target_lacks_are_lost() {
        let kubelet = r"C:\k\kubelet.exe --config=C:\k\kubelet.conf --v=2";
        let with = |flags: &str| format!("{kubelet} {flags}");
        let of = |flags: &str| config(&[("kubelet", &with(flags))], &[]);
        let plain = config(&[("kubelet", kubelet)], &[]);
        let proxy = |name, value| config(&[("kubelet", kubelet)], &[(name, value)]);
        let more = config(&[("kubelet", kubelet), ("csi-proxy", "c"), ("hybrid-overlay-node", "h")], &[]);
        for (about, from, to, expected) in [
            ("the same", &plain, &plain, vec![]),
            ("a new service", &plain, &more, vec![]),
            (
                "a variable of the machine becomes one of the services",
                &proxy("HTTP_PROXY", "x"),
                &own(plain.clone(), "HTTP_PROXY"),
                vec![],
            ),
            ("services", &more, &plain, vec!["service csi-proxy", "service hybrid-overlay-node"]),
            (
                "services whose names differ in case",
                &more,
                &config(&[("Kubelet", kubelet), ("CSI-Proxy", "c"), ("Hybrid-Overlay-Node", "h")], &[]),
                vec![],
            ),
            (
                "how it is started is not a setting",
                &of(r"--bootstrap-kubeconfig=C:\k\b --node-ip=NODE_IP"),
                &plain,
                vec![],
            ),
            ("a variable", &proxy("HTTP_PROXY", "http://a:b@c"), &plain, vec!["variable HTTP_PROXY"]),
            ("a variable that is empty", &proxy("NO_PROXY", ""), &plain, vec![]),
            ("a variable with another value is provided", &proxy("NO_PROXY", "a"), &proxy("NO_PROXY", "b"), vec![]),
            (
                "a variable that would be empty",
                &proxy("NO_PROXY", "a"),
                &proxy("NO_PROXY", ""),
                vec!["variable NO_PROXY"],
            ),
            ("a cloud provider", &of("--cloud-provider=external"), &plain, vec!["kubelet's --cloud-provider=external"]),
            (
                "a cloud provider as a separate argument",
                &of("--cloud-provider external"),
                &of("-cloud-provider=external"),
                vec![],
            ),
            (
                "another cloud provider",
                &of("--cloud-provider=aws"),
                &of("--cloud-provider=external"),
                vec!["kubelet's --cloud-provider=aws"],
            ),
            ("an empty cloud provider", &of("--cloud-provider= --x"), &plain, vec![]),
            (
                "settings of a cloud provider",
                &of(r"--cloud-config=C:\k\cloud.conf"),
                &plain,
                vec![r"kubelet's --cloud-config=C:\k\cloud.conf"],
            ),
            (
                "a flag of another service",
                &config(&[("kubelet", kubelet), ("x", "x --cloud-provider=external")], &[]),
                &config(&[("kubelet", kubelet), ("x", "x")], &[]),
                vec![],
            ),
        ] {
            assert_eq!(names(&losses(from, to)), expected, "{about}");
        }
    }

    #[test]
    fn a_sandbox_image_or_mirrors_that_hosts_may_need_are_losses() {
        let with = |checksum: Option<&str>| {
            let file = |c: &str| FileInfo { path: CONTAINERD_CONFIG.into(), checksum: c.into() };
            ServicesConfig { files: checksum.map(file).into_iter().collect(), ..ServicesConfig::default() }
        };
        let none = ImageSources::default;
        let named = ImageSources { names_sandbox: true, ..none() };
        let without = ImageSources { without_mirrors: vec!["quay.io/a".into(), "x/b".into()], ..named.clone() };
        let mirrors = Loss::Mirrors(without.without_mirrors.clone());
        for (about, from, to, sources, expected) in [
            ("WMCO names no files", None, Some("1"), none(), vec![Loss::Sandbox]),
            ("other settings of containerd", Some("0"), Some("1"), none(), vec![Loss::Sandbox]),
            ("the same ones", Some("1"), Some("1"), none(), vec![]),
            ("a payload without containerd", None, None, none(), vec![]),
            ("the pool names an image", None, Some("1"), named, vec![]),
            ("mirrors that are not followed", None, Some("1"), without, vec![mirrors.clone()]),
        ] {
            assert_eq!(images(&with(from), &with(to), &sources), expected, "{about}");
        }
        let text = message(&[Loss::Sandbox, mirrors]).unwrap();
        for part in ["pause:3.9", "sandboxImage", "quay.io/a, x/b", "imageMirrors", "\"sandbox-image,image-mirrors\""] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_node_manager_is_lost_if_the_service_account_of_its_replacement_is_missing() {
        let (with, without) = (config(&[("cloud-node-manager", "c")], &[]), config(&[("kubelet", "k")], &[]));
        for (about, from, to, is_lacking, is_lost) in [
            ("the ServiceAccount is there", &with, &with, false, false),
            ("it is missing", &with, &with, true, true),
            ("the node had none", &without, &with, true, false),
            ("the node gets none, which counts as a lost service", &with, &without, true, false),
        ] {
            let found = node_manager(from, to, is_lacking);
            assert_eq!(found.is_some(), is_lost, "{about}");
            if let Some(loss) = found {
                let text = message(&[loss]).unwrap();
                assert!(text.contains("deploy/azure") && text.contains(user::NODE_MANAGER), "{text}");
            }
        }
    }

    #[test]
    fn losses_are_accepted_by_name_or_all_at_once() {
        let all = [
            Loss::Service("csi-proxy".into()),
            Loss::Variable("HTTP_PROXY".into()),
            Loss::Flag("cloud-provider".into(), "external".into()),
            Loss::Gone("10.19.0-a".into()),
        ];
        let (pool, instance) = ("csi-proxy, http_proxy".to_string(), "--cloud-provider".to_string());
        for (accepted, left) in [
            (vec![None, None], 4),
            (vec![Some(&pool), None], 2),
            (vec![None, Some(&instance)], 3),
            (vec![Some(&pool), Some(&instance)], 1),
            (vec![Some(&"unknown".to_string())], 3),
            (vec![Some(&"all".to_string())], 0),
            (vec![Some(&"true".to_string())], 4),
            (vec![Some(&String::new())], 4),
        ] {
            assert_eq!(unaccepted(&all, &accepted).len(), left, "{accepted:?}");
        }
    }

    #[test]
    fn the_message_names_each_loss_and_no_value_of_a_variable() {
        let many: Vec<(String, String)> = (0..20).map(|n| (format!("V{n}"), "hunter2".to_string())).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let found = losses(&config(&[("csi-proxy", "c")], &many), &ServicesConfig::default());
        let text = message(&found).unwrap();
        for (name, _) in &many {
            assert!(text.contains(&format!("variable {name} ")), "{name}: {text}");
        }
        assert!(text.contains("csi-proxy") && text.contains(key::ACCEPT_LOST_SETTINGS), "{text}");
        assert!(!text.contains("hunter2") && text.contains("would lose"), "{text}");
        assert!(message(&[Loss::Gone("10.19.0-a".into())]).is_some_and(|text| text.contains("may lose")));
        assert_eq!(message(&[]), None);
    }

    proptest! {
        #[test]
        fn any_command_is_compared(path in ".{0,80}", name in ".{0,20}") {
            let from = config(&[("kubelet", &path), (&name, "x")], &[(&name, &path)]);
            let found = losses(&from, &ServicesConfig::default());
            prop_assert!(losses(&from, &from).is_empty());
            prop_assert!(unaccepted(&found, &[Some(&"all".to_string())]).is_empty());
        }
    }
}
