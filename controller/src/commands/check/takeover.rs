//! Command `check takeover`: reports whether the nodes of WMCO can be taken over now, and what prevents it. It changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use api::{
    HostKeyPolicy, Reason, SecretKeyRef, Ssh, TemplateSpec, WindowsInstance, WindowsNodePool,
    names::{DEFAULT_KEY_SECRET, EXPORTER_CERTIFICATE, SERVICES_CONFIG_MAP_PREFIX, key},
    services_version::UnverifiedError,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Node, Secret},
};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use remote::ssh::{HostKey, HostKeyCheck};
use wnp_core::{
    enumeration::counted,
    inventory::{address::canonical, wmco_nodes::wmco_nodes},
    node::username::decrypt_username,
    render::{ImageSources, Rendered, Stored},
    rollout::lost_settings::{self, Loss, images, losses},
};

use super::{
    installation::{read_version, read_wmco},
    row::{Finding, Outcome, Read, read},
};
use crate::{
    cluster::{
        release::{Release, ReleaseError},
        secrets::{Key, SecretError, Secrets},
    },
    context::WINDOWS_NODES,
    wmco::{
        host_keys::{self, WmcoHostKeys},
        lock::{self, Holder},
    },
};

/// Name of WMCO's package and Deployment.
const WMCO: &str = "windows-machine-config-operator";
/// Prefix of the package name in OKD's catalog.
const OF_OKD: &str = "community-";

/// Stored services by version, or the reason why they cannot be read. `None` without a ConfigMap.
type Versions = BTreeMap<String, Result<Option<Stored>, String>>;
type Services = api::services::ServicesConfig;

/// Services and image sources that nodes of a pool would get.
pub(super) struct Target {
    pub(super) services: Services,
    pub(super) image_sources: ImageSources,
}

impl Target {
    fn of(release: &Release, template: &TemplateSpec) -> Result<Self, ReleaseError> {
        let services = release.render(template)?.services;
        Ok(Self { services, image_sources: ImageSources::of(&release.cluster, template) })
    }
}

/// Facts about a cluster with nodes of WMCO.
pub(super) struct Facts {
    wmco: Read<Option<Holder>>,
    /// Objects that would start WMCO again, by kind and name.
    package: Vec<Read<(&'static str, String)>>,
    /// Windows nodes.
    nodes: Read<Vec<Node>>,
    /// Names of the nodes of WMCO.
    theirs: BTreeSet<String>,
    /// Names of the nodes without a recorded host key, which no pool adopts unless its list declares their key.
    unproven: BTreeSet<String>,
    conditions: Read<Vec<DynamicObject>>,
    key: Result<Arc<Key>, SecretError>,
    /// Stored services of each version that a node names, or the reason why they cannot be read.
    services: Versions,
    pub(super) version: Read<Info>,
    /// Target of the nodes in each pool.
    targets: Read<Vec<Target>>,
    pools: Vec<WindowsNodePool>,
    certificate: Read<Option<Secret>>,
    namespace: String,
}

/// Reads all facts except `targets`.
pub(super) async fn observe(client: &Client, namespace: &str) -> Facts {
    let here = ClusterReader { client: client.clone(), namespace: namespace.to_owned() };
    let nodes = here.nodes().await;
    let all = nodes.as_deref().unwrap_or_default();
    let (services, instances, pools) = (here.services(all).await, here.instances().await, here.pools().await);
    let is_ours = |version: &str| matches!(services.get(version), Some(Ok(Some(Stored::Ours(_)))));
    let theirs: BTreeSet<String> = wmco_nodes(all.iter(), &|n| instances.contains(n), &is_ours).into_iter().collect();
    let of_wmco: Vec<&Node> = all.iter().filter(|node| theirs.contains(&node.name_any())).collect();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let reference = SecretKeyRef { name: DEFAULT_KEY_SECRET.into(), key: None };
    Facts {
        wmco: read_wmco(client, namespace).await,
        package: here.package().await,
        unproven: here.unproven(&of_wmco, &pools).await,
        conditions: here.of_olm("OperatorCondition", "operatorconditions", "v2").await,
        key: Secrets::new(client.clone(), namespace).key(&reference).await,
        version: read_version(client).await,
        certificate: read("the certificate of windows_exporter", secrets.get_opt(EXPORTER_CERTIFICATE)).await,
        targets: Ok(Vec::new()),
        namespace: namespace.to_owned(),
        nodes,
        theirs,
        services,
        pools,
    }
}

impl Facts {
    /// Records the configuration that nodes would get in each pool; without pools, in one with default settings.
    pub(super) fn observe_release(&mut self, release: Result<&Release, &ReleaseError>, payload: &Path) {
        let mut templates: Vec<TemplateSpec> = self.pools.iter().map(|pool| pool.spec.template_spec()).collect();
        if templates.is_empty() {
            templates.push(TemplateSpec::default());
        }
        let unreleased = |error: &ReleaseError| Finding::of_release(error, payload);
        self.targets = release.map_err(unreleased).and_then(|release| {
            let targets: Result<_, _> = templates.iter().map(|template| Target::of(release, template)).collect();
            targets.map_err(|error| unreleased(&error))
        });
    }

    /// Returns the nodes of WMCO.
    fn theirs(&self) -> Vec<&Node> {
        let nodes = self.nodes.as_deref().unwrap_or_default();
        nodes.iter().filter(|node| self.theirs.contains(&node.name_any())).collect()
    }
}

/// Reader of the cluster, with the namespace of both operators.
struct ClusterReader {
    client: Client,
    namespace: String,
}

impl ClusterReader {
    async fn nodes(&self) -> Read<Vec<Node>> {
        let windows = ListParams::default().labels(WINDOWS_NODES);
        let nodes: Api<Node> = Api::all(self.client.clone());
        read("the Nodes", nodes.list(&windows)).await.map(|list| list.items)
    }

    /// Reads the names of the instances; none if they cannot be listed, as before the operator's CRDs are installed.
    async fn instances(&self) -> BTreeSet<String> {
        let all = Api::<WindowsInstance>::all(self.client.clone()).list_metadata(&ListParams::default()).await;
        all.map(|all| all.items.iter().map(ResourceExt::name_any).collect()).unwrap_or_default()
    }

    async fn package(&self) -> Vec<Read<(&'static str, String)>> {
        let mut found = Vec::new();
        for (kind, plural) in [("Subscription", "subscriptions"), ("ClusterServiceVersion", "clusterserviceversions")] {
            match self.of_olm(kind, plural, "v1alpha1").await {
                Ok(objects) => {
                    let of_wmco = |o: &&DynamicObject| {
                        is_of_package(&o.name_any()) || o.data["spec"]["name"].as_str().is_some_and(is_of_package)
                    };
                    found.extend(objects.iter().filter(of_wmco).map(|o| Ok((kind, o.name_any()))));
                }
                Err(finding) => found.push(Err(finding)),
            }
        }
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let deployment = read("the Deployment of WMCO", deployments.get_opt(WMCO)).await;
        found.extend(deployment.map(|found| found.map(|_| ("Deployment", WMCO.to_owned()))).transpose());
        found
    }

    /// Reads objects of OLM in the operator's namespace; none without OLM.
    async fn of_olm(&self, kind: &str, plural: &str, version: &str) -> Read<Vec<DynamicObject>> {
        let kind_of_olm = GroupVersionKind::gvk("operators.coreos.com", version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind_of_olm, plural);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        match api.list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            // Without the API group, the answer is a plain 404, which the client does not recognise as NotFound.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => {
                Err(Finding::unreadable(&format!("the {plural} of OLM"), &crate::runtime::errors::api_message(&error)))
            }
        }
    }

    /// Reads the pools; none if they cannot be listed, as before the operator's CRDs are installed.
    async fn pools(&self) -> Vec<WindowsNodePool> {
        let pools = Api::<WindowsNodePool>::all(self.client.clone()).list(&ListParams::default()).await;
        pools.map(|pools| pools.items).unwrap_or_default()
    }

    /// Returns the names of the nodes whose host key is neither on the Node, nor in WMCO's ConfigMap, nor in a pool: in an entry of its own list, or,
    /// with the policy `Strict`, in its known hosts. Returns no name if a pool trusts host keys at the adoption.
    async fn unproven(&self, nodes: &[&Node], pools: &[WindowsNodePool]) -> BTreeSet<String> {
        let lacks_key = |node: &&&Node| node.annotations().get(key::SSH_HOST_KEY).is_none_or(String::is_empty);
        let is_key = |text: &String| HostKeyCheck::pinned(text).is_ok();
        let with_key =
            pools.iter().flat_map(|pool| pool.spec.hosts()).filter(|host| host.host_key.as_ref().is_some_and(is_key));
        let declared: BTreeSet<String> = with_key.map(|host| canonical(&host.address)).collect();
        let pools: Vec<Ssh> = pools.iter().map(|pool| pool.spec.ssh()).collect();
        if pools.iter().any(|ssh| ssh.host_key_policy == Some(HostKeyPolicy::TrustOnAdoption)) {
            return BTreeSet::new();
        }
        let noted = WmcoHostKeys::new(self.client.clone(), &self.namespace).read().await.unwrap_or_default();
        let secrets = Secrets::new(self.client.clone(), &self.namespace);
        let mut unproven = BTreeSet::new();
        for node in nodes.iter().filter(lacks_key) {
            let is_known = async {
                for address in names_of(node) {
                    let is_declared = declared.contains(&canonical(&address));
                    if is_declared || host_keys::find(&noted, &address, None).is_ok_and(|key| key.is_some()) {
                        return true;
                    }
                    for ssh in pools.iter().filter(|ssh| ssh.host_key_policy == Some(HostKeyPolicy::Strict)) {
                        let Some(secret) = &ssh.known_hosts_secret_ref else { continue };
                        let keys = secrets.known_hosts(&secret.name, &address, ssh.port()).await;
                        if keys.is_ok_and(|keys| !keys.is_empty()) {
                            return true;
                        }
                    }
                }
                false
            };
            if !is_known.await {
                unproven.insert(node.name_any());
            }
        }
        unproven
    }

    /// Reads the stored services of each version that a Node names.
    async fn services(&self, nodes: &[Node]) -> Versions {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut all = BTreeMap::new();
        for version in nodes.iter().filter_map(|n| n.annotations().get(key::VERSION)).collect::<BTreeSet<_>>() {
            let found = maps.get_opt(&format!("{SERVICES_CONFIG_MAP_PREFIX}{version}")).await;
            let read = found.map_err(|error| crate::runtime::errors::api_message(&error)).and_then(|map| {
                let Some(mut map) = map else { return Ok(None) };
                // Without a digest in its name, the ConfigMap is not trusted to be the operator's, whatever its annotations claim.
                if let Err(UnverifiedError::NoDigest) = Rendered::verify(version, &map) {
                    map.metadata.annotations = None;
                }
                Rendered::from_config_map(&map).map(Some).map_err(|error| error.to_string())
            });
            all.insert(version.clone(), read);
        }
        all
    }
}

/// Returns the Node's addresses and name, under which its host key may be recorded.
fn names_of(node: &Node) -> Vec<String> {
    let addresses = node.status.as_ref().and_then(|s| s.addresses.clone()).unwrap_or_default();
    addresses.into_iter().map(|a| a.address).chain([node.name_any()]).collect()
}

pub(super) fn wmco(facts: &Facts) -> Outcome {
    let runs = |holder: &Holder| Finding::warning(lock::REASON, holder.message());
    Outcome::judged(&facts.wmco, |holder| Outcome::of(holder.as_ref().map(runs), "no Pod of WMCO holds its lock"))
}

pub(super) fn package(facts: &Facts) -> Outcome {
    let namespace = &facts.namespace;
    let finding = |found: &Read<(&str, String)>| match found {
        Ok((kind, name)) => {
            let message = format!("the {kind} {namespace}/{name} of WMCO exists, and can start it again");
            let command = format!("kubectl delete -n {namespace} {} {name}", kind.to_lowercase());
            Finding::warning(Reason::AnotherOperator, message).remedy(format!("before you begin, run {command}"))
        }
        Err(finding) => finding.clone(),
    };
    Outcome::of(
        facts.package.iter().map(finding),
        format!("no object in the namespace {namespace} can start WMCO again"),
    )
}

pub(super) fn idle(facts: &Facts) -> Outcome {
    let wait = |message: String, otherwise: String| {
        let remedy = format!("wait until WMCO has ended its change; if WMCO no longer runs, {otherwise}");
        Finding::failed(Reason::AnotherOperator, message).remedy(remedy)
    };
    let is_upgraded = |node: &&Node| node.labels().get(key::UPGRADING).is_some_and(|v| v == "true");
    let upgraded = facts.nodes.iter().flatten().filter(is_upgraded);
    let upgraded = upgraded.map(|node| {
        let name = node.name_any();
        let otherwise = format!("run kubectl label node {name} {}- and kubectl uncordon {name}", key::UPGRADING);
        wait(format!("WMCO has begun to change the Node {name}, as its label {}=true shows", key::UPGRADING), otherwise)
    });
    let busy = facts.conditions.iter().flatten().filter_map(|condition| {
        let (name, message) = (condition.name_any(), busy(condition)?);
        let otherwise = format!("run kubectl delete -n {} operatorcondition {name}", facts.namespace);
        Some(wait(
            format!("WMCO may be changing a node, as its OperatorCondition {name} reports: {message}"),
            otherwise,
        ))
    });
    let unread = facts.conditions.as_ref().err().cloned();
    Outcome::of(upgraded.chain(busy).chain(unread), "no node is being changed")
}

/// Reports whether a name is that of WMCO's package or of one of its versions.
fn is_of_package(name: &str) -> bool {
    name.strip_prefix(OF_OKD).unwrap_or(name).starts_with(WMCO)
}

/// Returns the message of WMCO's OperatorCondition if WMCO is not upgradeable, as while it changes a node.
fn busy(condition: &DynamicObject) -> Option<&str> {
    let all = condition.data["spec"]["conditions"].as_array().filter(|_| is_of_package(&condition.name_any()))?;
    let upgradeable = all.iter().find(|c| c["type"] == "Upgradeable" && c["status"] == "False")?;
    Some(upgradeable["message"].as_str().unwrap_or_default())
}

pub(super) fn key(facts: &Facts) -> Outcome {
    let finding = facts.key.as_ref().err().map(|error| Finding::failed(error.reason(), error));
    Outcome::of(finding, format!("the Secret {DEFAULT_KEY_SECRET} has a private key"))
}

pub(super) fn nodes(facts: &Facts) -> Outcome {
    let nodes = facts.theirs();
    let none = Finding::warning(Reason::SourceNotFound, "this cluster has no Node of WMCO")
        .remedy("install the operator as on a new cluster");
    let mut findings: Vec<Finding> = nodes.is_empty().then_some(none).into_iter().collect();
    for node in &nodes {
        let (name, annotations) = (node.name_any(), node.annotations());
        if annotations.get(key::VERSION).is_none_or(String::is_empty) {
            let message = format!("WMCO has not finished the Node {name}, which has no annotation {}", key::VERSION);
            let remedy = "no action is needed, because the operator drains and changes the node in its turn; or let WMCO finish the node first";
            findings.push(Finding::warning(Reason::Outdated, message).remedy(remedy));
        }
        match annotations.get(key::SSH_HOST_KEY).filter(|k| !k.is_empty()).map(|text| HostKey::parse(text)) {
            None if facts.unproven.contains(&name) => {
                let message =
                    format!("the host key of the Node {name} is not recorded, so the node would not be adopted");
                let remedy = "give the pool the host keys: docs/guide/from-wmco.md#host-keys";
                findings.push(Finding::failed(Reason::HostUnproven, message).remedy(remedy));
            }
            Some(Err(error)) => {
                let message = format!("the host key of the Node {name} cannot be read: {error}");
                let remedy = format!("correct the annotation {} of the Node, or remove it", key::SSH_HOST_KEY);
                findings.push(Finding::failed(Reason::HostKeyInvalid, message).remedy(remedy));
            }
            None | Some(Ok(_)) => {}
        }
    }
    let note = format!(
        "{} of WMCO, each with its version, and with a recorded host key or a pool that trusts keys on adoption",
        counted(nodes.len(), "node")
    );
    Outcome::judged(&facts.nodes, |_| Outcome::of(findings, note))
}

/// Judges the user names of nodes. Without the private key, the check does not apply.
pub(super) fn users(facts: &Facts) -> Outcome {
    let Ok(private) = &facts.key else { return Outcome::default() };
    let unreadable = |node: &&Node| {
        let annotation = node.annotations().get(key::USERNAME);
        annotation.is_some_and(|text| decrypt_username(text, &private.pem).is_err())
    };
    let finding = |node: &Node| {
        let message =
            format!("the private key cannot decrypt the user name in the annotation of the Node {}", node.name_any());
        Finding::warning(Reason::CredentialsUnavailable, message)
            .remedy("check that the Secret cloud-private-key has the key that the hosts accept")
    };
    let findings = facts.theirs().into_iter().filter(unreadable).map(finding);
    Outcome::of(findings, "the private key decrypts the user names in the annotations of nodes")
}

pub(super) fn services(facts: &Facts) -> Outcome {
    let nodes = facts.theirs();
    let followed: BTreeSet<&String> = nodes.iter().filter_map(|n| n.annotations().get(key::VERSION)).collect();
    let finding = |version: &String| {
        let error = match facts.services.get(version)? {
            Ok(Some(_)) => return None,
            Ok(None) => "it does not exist",
            Err(error) => error,
        };
        let message = format!("the ConfigMap {SERVICES_CONFIG_MAP_PREFIX}{version}: {error}");
        let remedy =
            "restore the ConfigMap; without it the nodes stay as they are until you accept the loss of their settings";
        Some(Finding::warning(Reason::VersionUnreadable, message).remedy(remedy))
    };
    let findings = followed.into_iter().filter_map(finding);
    Outcome::of(findings, "the services of each version of a node can be read")
}

/// Judges which settings the first change of each node would lose. Before its adoption, a node's pool is not known: a setting that any pool keeps
/// does not count as lost.
pub(super) fn settings(facts: &Facts) -> Outcome {
    let lost = |node: &Node, targets: &[Target]| {
        let Some(Ok(Some(Stored::Legacy(from)))) = facts.services.get(node.annotations().get(key::VERSION)?) else {
            return None;
        };
        let of = |Target { services, image_sources }: &Target| -> BTreeSet<Loss> {
            losses(from, services).into_iter().chain(images(from, services, image_sources)).collect()
        };
        let lost = targets.iter().map(of).reduce(|lost, other| &lost & &other).unwrap_or_default();
        let message = lost_settings::message(&lost.into_iter().collect::<Vec<_>>())?;
        Some(Finding::warning(Reason::SettingsWouldBeLost, format!("{}: {message}", node.name_any())))
    };
    Outcome::judged(&facts.targets, |targets| {
        let findings = facts.theirs().into_iter().filter_map(|node| lost(node, targets));
        Outcome::of(findings, "no node would lose a setting")
    })
}

pub(super) fn certificate(facts: &Facts) -> Outcome {
    let name = format!("the Secret {}/{EXPORTER_CERTIFICATE}", facts.namespace);
    Outcome::judged(&facts.certificate, |secret| {
        let lacks = |secret: &Secret| {
            let is_there = |key: &&str| secret.data.iter().any(|data| data.contains_key(*key));
            ["tls.crt", "tls.key"].into_iter().find(|key| !is_there(key))
        };
        let problem = match secret {
            None => Some(("is missing".to_owned(), "on OpenShift, apply deploy/components/windows-exporter; elsewhere, create it with tls.crt and tls.key, or ignore this warning")),
            Some(secret) => lacks(secret).map(|key| {
                (format!("has no {key}"), "on OpenShift, delete it, so that it is created again; elsewhere, add the key, unless you want plain HTTP")
            }),
        };
        let finding = problem.map(|(what, remedy)| {
            let message = format!("{name} {what}: hosts would serve their metrics as plain HTTP");
            Finding::warning(Reason::CertificateInvalid, message).remedy(remedy)
        });
        Outcome::of(finding, "the Secret with the certificate of windows_exporter exists")
    })
}

#[cfg(test)]
#[path = "takeover_tests.rs"]
mod tests;
