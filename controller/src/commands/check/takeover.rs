//! The command `check takeover`: whether the nodes of WMCO can be taken over now, and what stands in the way. Changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    sync::Arc,
};

use api::{
    HostKeyPolicy, SecretKeyRef, Ssh, TemplateSpec, WindowsInstance, WindowsNodePool,
    names::{DEFAULT_KEY_SECRET, EXPORTER_CERTIFICATE, SERVICES_CONFIG_MAP_PREFIX, key},
    services_version::UnverifiedError,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Node, Secret},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use remote::ssh::HostKey;
use wnp_core::{
    inventory::wmco_nodes::wmco_nodes,
    render::{ImageSources, Rendered, Stored},
    rollout::lost_settings::{self, Loss, images, losses},
};

use super::{
    catalog::Scope,
    installation::version,
    obstacle::Obstacle,
    row::{self, Row},
};
use crate::{
    args::{self, CheckTakeover},
    client::api_server,
    cluster::{
        release::{Release, ReleaseError},
        secrets::{Key, SecretError, Secrets},
    },
    context::{Cluster, WINDOWS_NODES},
    wmco::{host_keys::WmcoHostKeys, lock, username::decrypt_username},
};

const WMCO: &str = "windows-machine-config-operator";

/// Checks, prints the results, and returns the exit status.
///
/// # Errors
/// When there is no configuration for the API server, it does not answer, or the results cannot be printed. What is in the way is no error:
/// the exit status reports it.
pub async fn takeover(args: CheckTakeover, cluster: &args::Cluster) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::new(api_server::bounded_config(cluster).await?, &Arc::default())?;
    cluster.client.apiserver_version().await?;
    let release = cluster.release(&args.run).await;
    let check = Check { client: cluster.client, namespace: args.run.namespace };
    let targets = match release {
        Err(error) => Err(error),
        Ok(release) => check.templates().await.iter().map(|template| Target::of(&release, template)).collect(),
    };
    let rows = check.rows(targets.map_err(|error| Obstacle::of_release(&error, &args.run.payload))).await;
    row::print(&rows, args.output, Scope::Takeover)
}

/// One run of the command.
pub(super) struct Check {
    pub(super) client: Client,
    pub(super) namespace: String,
}

type Services = api::services::ServicesConfig;

/// What nodes of a pool would get.
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

impl Check {
    /// All results. `targets` are what nodes would get in each of the pools.
    pub(super) async fn rows(&self, targets: Result<Vec<Target>, Obstacle>) -> Vec<Row> {
        let nodes = self.nodes().await;
        let (nodes, unread) = match nodes {
            Ok(nodes) => (nodes, None),
            Err(error) => (Vec::new(), Some(Row::of("nodes", &[Obstacle::not_readable("the Nodes", &error)], ""))),
        };
        let services = self.services(&nodes).await;
        let ours: BTreeSet<&String> = services
            .iter()
            .filter(|(_, s)| matches!(s, Ok(Some(Stored::Ours(_)))))
            .map(|(version, _)| version)
            .collect();
        let instances = self.instances().await;
        let names = wmco_nodes(nodes.iter(), &|n| instances.contains(n), &|version| ours.contains(&version.to_owned()));
        let theirs: Vec<&Node> = nodes.iter().filter(|n| names.contains(&n.name_any())).collect();
        let (key, unproven) = (self.key().await, self.unproven(&theirs).await);
        let mut rows = vec![self.lock().await, self.package().await, self.idle(&nodes).await, of_key(&key)];
        rows.extend([
            unread.unwrap_or_else(|| of_nodes(&theirs, &unproven)),
            of_usernames(&theirs, key.ok().as_deref()),
            of_services(&theirs, &services),
            version(&self.client).await,
            of_settings(&theirs, &services, targets),
            self.certificate().await,
        ]);
        rows
    }

    async fn nodes(&self) -> kube::Result<Vec<Node>> {
        let windows = ListParams::default().labels(WINDOWS_NODES);
        Ok(Api::<Node>::all(self.client.clone()).list(&windows).await?.items)
    }

    /// Names of those that are there. Before the operator is installed, there is no such kind.
    async fn instances(&self) -> BTreeSet<String> {
        let all = Api::<WindowsInstance>::all(self.client.clone()).list_metadata(&ListParams::default()).await;
        all.map(|all| all.items.iter().map(ResourceExt::name_any).collect()).unwrap_or_default()
    }

    async fn lock(&self) -> Row {
        match lock::holder(&self.client, &self.namespace).await {
            Ok(None) => Row::passed("wmco", "its lock is not held"),
            Ok(Some(holder)) => Row::of("wmco", &[Obstacle::Runs(holder.message())], ""),
            Err(error) => Row::of("wmco", &[Obstacle::not_readable("the lock of WMCO", &error)], ""),
        }
    }

    /// What would start WMCO again.
    async fn package(&self) -> Row {
        let mut found = Vec::new();
        for (kind, plural) in [("Subscription", "subscriptions"), ("ClusterServiceVersion", "clusterserviceversions")] {
            match self.of_olm(kind, plural, "v1alpha1").await {
                Ok(objects) => {
                    let of_wmco = |o: &&DynamicObject| {
                        o.name_any().starts_with(WMCO) || o.data["spec"]["name"].as_str() == Some(WMCO)
                    };
                    found.extend(
                        objects
                            .iter()
                            .filter(of_wmco)
                            .map(|o| Obstacle::installed(kind, &o.name_any(), &self.namespace)),
                    );
                }
                Err(error) => found.push(Obstacle::not_readable(kind, &error)),
            }
        }
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        match deployments.get_opt(WMCO).await {
            Ok(None) => {}
            Ok(Some(_)) => found.push(Obstacle::installed("Deployment", WMCO, &self.namespace)),
            Err(error) => found.push(Obstacle::not_readable("the Deployment of WMCO", &error)),
        }
        Row::of("package", &found, "nothing of it is installed")
    }

    /// Objects of OLM in the operator's namespace; none where there is no OLM.
    async fn of_olm(&self, kind: &str, plural: &str, version: &str) -> kube::Result<Vec<DynamicObject>> {
        let resource = ApiResource {
            group: "operators.coreos.com".into(),
            version: version.into(),
            api_version: format!("operators.coreos.com/{version}"),
            kind: kind.into(),
            plural: plural.into(),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        match api.list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            // Where the whole group is missing the answer is a bare 404, which is no NotFound to the client.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Pools that are there. Before the operator is installed, there is no such kind.
    async fn pools(&self) -> Vec<WindowsNodePool> {
        let pools = Api::<WindowsNodePool>::all(self.client.clone()).list(&ListParams::default()).await;
        pools.map(|pools| pools.items).unwrap_or_default()
    }

    /// Templates of the pools that are there; otherwise the one of a pool that sets nothing.
    async fn templates(&self) -> Vec<TemplateSpec> {
        let templates: Vec<TemplateSpec> = self.pools().await.iter().map(|pool| pool.spec.template_spec()).collect();
        if templates.is_empty() { vec![TemplateSpec::default()] } else { templates }
    }

    /// Names of Nodes whose host key is on record nowhere, so that no pool of this cluster adopts them.
    async fn unproven(&self, nodes: &[&Node]) -> BTreeSet<String> {
        let without = |node: &&&Node| node.annotations().get(key::SSH_HOST_KEY).is_none_or(String::is_empty);
        let without: Vec<&&Node> = nodes.iter().filter(without).collect();
        if without.is_empty() {
            return BTreeSet::new();
        }
        let pools: Vec<Ssh> = self.pools().await.iter().map(|pool| pool.spec.ssh()).collect();
        if pools.iter().any(|ssh| ssh.host_key_policy == Some(HostKeyPolicy::TrustOnAdoption)) {
            return BTreeSet::new();
        }
        let (noted, secrets) = (
            WmcoHostKeys::new(self.client.clone(), &self.namespace),
            Secrets::new(self.client.clone(), &self.namespace),
        );
        let mut unproven = BTreeSet::new();
        for node in without {
            let is_known = async {
                for address in names_of(node) {
                    if noted.of(&address, None).await.is_ok_and(|key| key.is_some()) {
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

    async fn idle(&self, nodes: &[Node]) -> Row {
        let is_upgraded = |node: &&Node| node.labels().get(key::UPGRADING).is_some_and(|v| v == "true");
        let mut found: Vec<Obstacle> =
            nodes.iter().filter(is_upgraded).map(|node| Obstacle::Upgrading(node.name_any())).collect();
        match self.of_olm("OperatorCondition", "operatorconditions", "v2").await {
            Ok(conditions) => found.extend(conditions.iter().filter_map(busy)),
            Err(error) => found.push(Obstacle::not_readable("OperatorCondition", &error)),
        }
        Row::of("idle", &found, "no node is being changed")
    }

    async fn key(&self) -> Result<Arc<Key>, SecretError> {
        let reference = SecretKeyRef { name: DEFAULT_KEY_SECRET.into(), key: None };
        Secrets::new(self.client.clone(), &self.namespace).key(&reference).await
    }

    /// The stored services of each version that a node names; in words what cannot be read.
    async fn services(&self, nodes: &[Node]) -> BTreeMap<String, Result<Option<Stored>, String>> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut all = BTreeMap::new();
        for version in nodes.iter().filter_map(|n| n.annotations().get(key::VERSION)).collect::<BTreeSet<_>>() {
            let found = maps.get_opt(&format!("{SERVICES_CONFIG_MAP_PREFIX}{version}")).await;
            let read = found.map_err(|error| crate::runtime::errors::said(&error)).and_then(|map| {
                let Some(mut map) = map else { return Ok(None) };
                // What its name does not vouch for is not ours, whatever it says of itself.
                if let Err(UnverifiedError::NoDigest) = Rendered::verify(version, &map) {
                    map.metadata.annotations = None;
                }
                Rendered::from_config_map(&map).map(Some).map_err(|error| error.to_string())
            });
            all.insert(version.clone(), read);
        }
        all
    }

    async fn certificate(&self) -> Row {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = match secrets.get_opt(EXPORTER_CERTIFICATE).await {
            Ok(Some(secret)) => {
                let data = secret.data.unwrap_or_default();
                let has = ["tls.crt", "tls.key"].iter().all(|k| data.contains_key(*k));
                (!has).then(|| Obstacle::NoCertificate(self.namespace.clone()))
            }
            Ok(None) => Some(Obstacle::NoCertificate(self.namespace.clone())),
            Err(error) => Some(Obstacle::not_readable("the certificate of windows_exporter", &error)),
        };
        Row::of("exporter-certificate", found.as_slice(), "it is there")
    }
}

/// What WMCO says in its OperatorCondition while it changes a node.
fn busy(condition: &DynamicObject) -> Option<Obstacle> {
    let all = condition.data["spec"]["conditions"].as_array().filter(|_| condition.name_any().starts_with(WMCO))?;
    let upgradeable = all.iter().find(|c| c["type"] == "Upgradeable" && c["status"] == "False")?;
    Some(Obstacle::NotUpgradeable(upgradeable["message"].as_str().unwrap_or_default().into()))
}

fn of_key(key: &Result<Arc<Key>, SecretError>) -> Row {
    let found = key.as_ref().err().map(|error| Obstacle::Key { reason: error.reason(), message: error.to_string() });
    Row::of("key", found.as_slice(), &format!("the Secret {DEFAULT_KEY_SECRET} has a private key"))
}

/// Addresses and names of a Node, under which its host key may be noted.
fn names_of(node: &Node) -> Vec<String> {
    let addresses = node.status.as_ref().and_then(|s| s.addresses.clone()).unwrap_or_default();
    addresses.into_iter().map(|a| a.address).chain([node.name_any()]).collect()
}

fn of_nodes(nodes: &[&Node], unproven: &BTreeSet<String>) -> Row {
    if nodes.is_empty() {
        return Row::of("nodes", &[Obstacle::NoNodes], "");
    }
    let mut found = Vec::new();
    for node in nodes {
        let (name, annotations) = (node.name_any(), node.annotations());
        if annotations.get(key::VERSION).is_none_or(String::is_empty) {
            found.push(Obstacle::NoVersion(name.clone()));
        }
        match annotations.get(key::SSH_HOST_KEY).filter(|k| !k.is_empty()) {
            None if unproven.contains(&name) => found.push(Obstacle::Unproven(name)),
            None => {}
            Some(text) => found.extend(HostKey::parse(text).err().map(|e| Obstacle::HostKey(name, e.to_string()))),
        }
    }
    Row::of("nodes", &found, &format!("{} of WMCO, each with its version and a host key on record", nodes.len()))
}

fn of_usernames(nodes: &[&Node], key: Option<&Key>) -> Row {
    let Some(private) = key else { return Row::passed("users", "not checked without the private key") };
    let unreadable = |node: &&&Node| {
        let annotation = node.annotations().get(key::USERNAME);
        annotation.is_some_and(|text| decrypt_username(text, &private.pem).is_err())
    };
    let found: Vec<_> = nodes.iter().filter(unreadable).map(|node| Obstacle::Username(node.name_any())).collect();
    Row::of("users", &found, "the private key reads the users in the annotations of nodes")
}

fn of_services(nodes: &[&Node], services: &BTreeMap<String, Result<Option<Stored>, String>>) -> Row {
    let followed: BTreeSet<&String> = nodes.iter().filter_map(|n| n.annotations().get(key::VERSION)).collect();
    let found = followed.iter().filter_map(|version| {
        let error = match services.get(*version)? {
            Ok(Some(_)) => return None,
            Ok(None) => "it does not exist".to_owned(),
            Err(error) => error.clone(),
        };
        Some(Obstacle::Services { name: format!("{SERVICES_CONFIG_MAP_PREFIX}{version}"), error })
    });
    Row::of("services", &found.collect::<Vec<_>>(), "the services of each version of a node can be read")
}

/// What the first change of each node would lose. Which pool has a node is not known before it is adopted: what one of them keeps is not lost.
fn of_settings(
    nodes: &[&Node],
    services: &BTreeMap<String, Result<Option<Stored>, String>>,
    targets: Result<Vec<Target>, Obstacle>,
) -> Row {
    let targets = match targets {
        Ok(targets) => targets,
        Err(obstacle) => return Row::of("settings", &[obstacle], ""),
    };
    let found = nodes.iter().filter_map(|node| {
        let Some(Ok(Some(Stored::Legacy(from)))) = services.get(node.annotations().get(key::VERSION)?) else {
            return None;
        };
        let of = |Target { services, image_sources }: &Target| -> BTreeSet<Loss> {
            losses(from, services).into_iter().chain(images(from, services, image_sources)).collect()
        };
        let lost = targets.iter().map(of).reduce(|lost, other| &lost & &other).unwrap_or_default();
        let message = lost_settings::message(&lost.into_iter().collect::<Vec<_>>())?;
        Some(Obstacle::Losses { node: node.name_any(), message })
    });
    Row::of("settings", &found.collect::<Vec<_>>(), "no node would lose a setting")
}

#[cfg(test)]
#[path = "takeover_tests.rs"]
mod tests;
