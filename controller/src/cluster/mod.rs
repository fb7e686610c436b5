//! Cluster facts that the operator detects, so that users need not configure them.
//!
//! On OpenShift, most facts come from its configuration objects. Elsewhere, the service network comes from the ServiceCIDR object, and the API
//! server's URL is the one that the operator uses; in a pod, where that URL names a Service, it must be configured. Settings override detected facts.

pub(crate) mod crds;
pub(crate) mod release;
pub(crate) mod secrets;
pub(crate) mod texts;
pub(crate) mod versions;
pub mod wicd_rbac;

mod api_certificate;
mod api_servers;
pub(crate) mod images;
pub(crate) mod kept;
mod objects;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::{Reason, names::user};
use http::Uri;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::Value;

use crate::args::{NetworkArg, Run};
use wnp_core::{
    csr::claims::reserved::{Reserved, is_of_service},
    render::{Cluster, Found, Network, Platform, TlsProfile, Unusable},
};

/// Error of the detection of cluster facts.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    /// A request to the API server failed.
    #[error("failed to get {what}: {}", crate::runtime::errors::api_message(.source))]
    Api {
        /// Requested fact.
        what: &'static str,
        /// Cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// A value cannot be detected and must be set.
    #[error("{what} cannot be detected in this cluster; set it with {env}, or with {flag}")]
    Unknown {
        /// Name of the value.
        what: &'static str,
        /// Environment variable that sets the value.
        env: &'static str,
        /// Argument that sets the value.
        flag: &'static str,
    },
    /// The certificate of the API server could not be read.
    #[error(
        "failed to read the certificate of the API server at {url}: {problem}; check the network between the operator and the API server, and a proxy if there is one"
    )]
    NoAnswer {
        /// URL of the API server.
        url: String,
        /// Fault of the connection.
        problem: String,
    },
    /// The CA of the cluster does not verify the certificate of the API server.
    #[error(
        "the CA in the ConfigMap kube-root-ca.crt of the operator's namespace does not verify the certificate of the API server at {url}: {problem}. Nodes \
         keep the CA that they have. Find out who changed the ConfigMap, which kube-controller-manager maintains"
    )]
    Unproven {
        /// URL of the API server.
        url: String,
        /// Fault of the connection.
        problem: String,
    },
    /// A ConfigMap that Kubernetes writes has no text under a key.
    #[error(
        "the ConfigMap {namespace}/{name} has no text under the key {key}. Kubernetes writes it: for kube-root-ca.crt, check --root-ca-file of \
         kube-controller-manager; for extension-apiserver-authentication, check --client-ca-file of kube-apiserver"
    )]
    NoText {
        /// Namespace of the ConfigMap.
        namespace: String,
        /// Name of the ConfigMap.
        name: &'static str,
        /// Key without text.
        key: &'static str,
    },
    /// A value is not valid.
    #[error("{what} {value:?} cannot be used: {problem}")]
    Invalid {
        /// Name of the value.
        what: &'static str,
        /// Value that was found.
        value: String,
        /// Fault of the value.
        problem: &'static str,
    },
}

impl ClusterError {
    /// Returns the reason for conditions and events.
    #[expect(clippy::unused_self, reason = "like other error types, most of which have several reasons")]
    pub(crate) fn reason(&self) -> Reason {
        Reason::ClusterUnknown
    }
}

/// Wraps an error of the API server. `what` completes "failed to get …".
fn failed(what: &'static str) -> impl FnOnce(kube::Error) -> ClusterError {
    move |source| ClusterError::Api { what, source: Box::new(source) }
}

/// JSON pointer to the hybrid overlay in the `Network` of the network operator.
const HYBRID_OVERLAY: &str = "/spec/defaultNetwork/ovnKubernetesConfig/hybridOverlayConfig";

/// Oldest minor version of Kubernetes that the operator accepts without a warning.
pub const OLDEST_MINOR: u32 = 33;
/// Oldest minor version that serves `ValidatingAdmissionPolicy` v1.
const FIRST_WITH_POLICIES: u32 = 30;
/// Reason for an API server that is too old.
pub(crate) const TOO_OLD: Reason = Reason::ApiServerTooOld;

/// Returns the reason why the operator cannot be installed on an API server of this version, if it is too old.
pub(crate) fn lacks_policies(major: &str, minor: &str) -> Option<String> {
    let (Some(1), Some(minor)) = (number(major), number(minor)) else { return None };
    (minor < FIRST_WITH_POLICIES).then(|| {
        format!(
            "the API server is version 1.{minor}, and versions before 1.{FIRST_WITH_POLICIES} have no ValidatingAdmissionPolicy v1, without which \
             hosts get no rights. Upgrade the cluster"
        )
    })
}

/// Returns a warning if the API server is older than the tested versions, or its version is unreadable. The operator continues.
pub(crate) fn version_warning(major: &str, minor: &str) -> Option<(Reason, String)> {
    match (number(major), number(minor)) {
        (Some(1), Some(minor)) if minor < OLDEST_MINOR => Some((
            TOO_OLD,
            format!(
                "the API server is version 1.{minor}; versions before 1.{OLDEST_MINOR} are not tested. Upgrade the cluster"
            ),
        )),
        (Some(_), Some(_)) => None,
        _ => Some((
            Reason::ApiServerTooOld,
            format!(
                "the API server reports the version {major:?}.{minor:?}, which cannot be read; check which server answers at its URL"
            ),
        )),
    }
}

/// Parses a part of a version, for example `36+` as 36.
fn number(text: &str) -> Option<u32> {
    text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()
}

/// Reports whether OVN-Kubernetes provides the pod network of hosts, which it does on Windows only through its hybrid overlay. Fails for a provider
/// that gives pods on Windows no network.
fn has_overlay(network_type: Option<&str>, is_hybrid: bool) -> Result<bool, ClusterError> {
    match network_type {
        Some("OVNKubernetes") if !is_hybrid => Err(ClusterError::Invalid {
            what: "the network provider",
            value: "OVNKubernetes".into(),
            problem: "it has no hybrid overlay, without which pods on Windows have no network; set \
                      spec.defaultNetwork.ovnKubernetesConfig.hybridOverlayConfig.hybridClusterNetwork of the Network cluster of \
                      operator.openshift.io, or --network external if another component provides the network",
        }),
        Some(sdn @ "OpenShiftSDN") => Err(ClusterError::Invalid {
            what: "the network provider",
            value: sdn.into(),
            problem: "it gives pods on Windows no network; migrate the cluster to OVNKubernetes with the hybrid overlay",
        }),
        _ => Ok(is_hybrid),
    }
}

/// Reports whether OVN-Kubernetes provides the pod network of hosts, by `choice` or else by the `Network` objects of the cluster and of its network
/// operator.
fn overlay(
    choice: Option<NetworkArg>,
    network: Option<&DynamicObject>,
    operator: Option<&DynamicObject>,
) -> Result<bool, ClusterError> {
    if let Some(choice) = choice {
        return Ok(choice == NetworkArg::OvnHybrid);
    }
    let network_type = network.and_then(|n| n.data.pointer("/status/networkType")).and_then(Value::as_str);
    has_overlay(network_type, operator.is_some_and(|o| is_hybrid(&o.data)))
}

/// Reports whether the `Network` of the network operator has a hybrid overlay. An overlay with an empty list of node networks does not count; the
/// network operator sets a default only for a missing list.
fn is_hybrid(operator: &Value) -> bool {
    let config = operator.pointer(HYBRID_OVERLAY).filter(|config| config.is_object());
    config.is_some_and(|c| !c["hybridClusterNetwork"].as_array().is_some_and(Vec::is_empty))
}

/// Returns the provider of the pod network with its settings.
fn pod_network(
    args: &Run,
    network: Option<&DynamicObject>,
    operator: Option<&DynamicObject>,
) -> Result<Network, ClusterError> {
    let is_hybrid = overlay(args.network, network, operator)?;
    let of_cluster =
        operator.and_then(|o| o.data.pointer(HYBRID_OVERLAY)).and_then(|h| h.get("hybridOverlayVXLANPort"));
    let of_cluster = of_cluster.and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
    match args.vxlan_port {
        Some(port) if !is_hybrid => Err(ClusterError::Invalid {
            what: "the VXLAN port",
            value: port.to_string(),
            problem: "another component provides the pods' network; remove the setting, or set --network ovn-hybrid",
        }),
        own if is_hybrid => Ok(Network::OvnHybrid { vxlan_port: own.or(of_cluster) }),
        _ => Ok(Network::External),
    }
}

/// Returns the fault of the pod network, if any, for a check before the installation.
pub(crate) async fn network_fault(client: &Client, choice: Option<NetworkArg>) -> Option<ClusterError> {
    let (network, operator) = match networks(client).await {
        Ok(both) => both,
        Err(error) => return Some(error),
    };
    overlay(choice, network.as_ref(), operator.as_ref()).err()
}

/// Reports whether the cluster is OpenShift. An error counts as no.
pub(crate) async fn is_openshift(client: &Client) -> bool {
    infrastructure(client).await.is_ok_and(|found| found.is_some())
}

/// Reads the `Infrastructure` object, if the cluster is OpenShift.
async fn infrastructure(client: &Client) -> Result<Option<DynamicObject>, ClusterError> {
    openshift(client, "config.openshift.io", "Infrastructure", "infrastructures", "Infrastructure/cluster").await
}

/// Reads the `Network` objects of the cluster and of its network operator.
async fn networks(client: &Client) -> Result<(Option<DynamicObject>, Option<DynamicObject>), ClusterError> {
    let network = openshift(client, "config.openshift.io", "Network", "networks", "Network/cluster").await?;
    Ok((
        network,
        openshift(client, "operator.openshift.io", "Network", "networks", "Network/cluster of operator.openshift.io")
            .await?,
    ))
}

/// Reads the id of the cluster, which is the UID of the Namespace `kube-system`.
pub(crate) async fn id(client: &Client) -> Result<String, ClusterError> {
    const WHAT: &str = "the id of the cluster (UID of the Namespace kube-system)";
    let namespace = Api::<Namespace>::all(client.clone()).get("kube-system").await.map_err(failed(WHAT))?;
    let uid = namespace.metadata.uid.filter(|uid| !uid.is_empty());
    uid.ok_or_else(|| ClusterError::Invalid { what: WHAT, value: String::new(), problem: "it is empty" })
}

/// Addresses of the API server, the service network and the cluster DNS.
struct Addresses {
    api_server: String,
    service_cidr: String,
    cluster_dns: Vec<String>,
}

impl Addresses {
    async fn of(
        client: &Client,
        config: &Config,
        args: &Run,
        infrastructure: Option<&DynamicObject>,
        network: Option<&DynamicObject>,
    ) -> Result<Self, ClusterError> {
        let service_cidr = match args.service_cidr.clone().or_else(|| list(network, "/spec/serviceNetwork")) {
            Some(cidr) => cidr,
            None => service_cidr(client).await?,
        };
        let api_server = args
            .api_server
            .clone()
            .or_else(|| text(infrastructure, "/status/apiServerInternalURI"))
            .map_or_else(|| as_hosts_reach_it(&config.cluster_url, &service_cidr), Ok)?;
        let first = service_cidr.split(',').next().unwrap_or_default().trim();
        let cluster_dns = tenth_address(first).map(|ip| vec![ip.to_string()])?;
        Ok(Self { api_server, service_cidr, cluster_dns })
    }
}

/// Returns the texts of a list, separated by commas; `None` if there are none.
fn list(object: Option<&DynamicObject>, path: &str) -> Option<String> {
    let texts: Vec<_> = object?.data.pointer(path)?.as_array()?.iter().filter_map(Value::as_str).collect();
    (!texts.is_empty()).then(|| texts.join(","))
}

fn text(object: Option<&DynamicObject>, path: &str) -> Option<String> {
    object.and_then(|o| o.data.pointer(path)).and_then(Value::as_str).map(str::to_string)
}

/// Detects the names and addresses that no host may have in a certificate. The certificate approver needs no other cluster facts.
pub(crate) async fn reserved(client: &Client, config: &Config, args: &Run) -> Result<Reserved, ClusterError> {
    let infrastructure = infrastructure(client).await?;
    let network = openshift(client, "config.openshift.io", "Network", "networks", "Network/cluster").await?;
    let Addresses { api_server, service_cidr, cluster_dns } =
        Addresses::of(client, config, args, infrastructure.as_ref(), network.as_ref()).await?;
    let cluster_domain = args.cluster_domain.clone();
    let own_names = own_names(config, infrastructure.as_ref()).await?;
    let cluster = Cluster { api_server, service_cidr, cluster_dns, cluster_domain, own_names, ..Cluster::default() };
    Ok(Reserved::of(&cluster, args.loopback_hosts))
}

/// Returns the names and addresses of the API server, and the domain of the ingress. No host may have a serving certificate for them.
async fn own_names(config: &Config, infrastructure: Option<&DynamicObject>) -> Result<Vec<String>, ClusterError> {
    let mut names = api_certificate::names(config).await?;
    for path in ["/status/apiServerURL", "/status/apiServerInternalURI"] {
        let host = text(infrastructure, path).and_then(|url| url.parse::<Uri>().ok()?.host().map(str::to_owned));
        // OpenShift derives both names from one domain: `api.<domain>` and `*.apps.<domain>`.
        let ingress = host.as_ref().and_then(|host| Some(format!("*.apps.{}", host.split_once('.')?.1)));
        names.extend(host.into_iter().chain(ingress).map(|name| name.to_ascii_lowercase()));
    }
    Ok(names.into_iter().collect())
}

/// Returns a fact. If it cannot be used, records the problem, and returns the default.
fn usable<T: Default>(found: Result<T, Unusable>, unusable: &mut Vec<Unusable>) -> T {
    found.unwrap_or_else(|problem| {
        unusable.push(problem);
        T::default()
    })
}

/// Detects all cluster facts.
pub(crate) async fn discover(client: &Client, config: &Config, args: &Run) -> Result<Found, ClusterError> {
    let namespace = &args.namespace;
    let infrastructure = infrastructure(client).await?;
    let (network, operator) = networks(client).await?;
    let proxies = openshift(client, "config.openshift.io", "Proxy", "proxies", "Proxy/cluster").await?;
    let server = openshift(client, "config.openshift.io", "APIServer", "apiservers", "APIServer/cluster").await?;
    let Addresses { api_server, service_cidr, cluster_dns } =
        Addresses::of(client, config, args, infrastructure.as_ref(), network.as_ref()).await?;
    let network = pod_network(args, network.as_ref(), operator.as_ref())?;
    let api_servers = Box::pin(api_servers::versions(client, config)).await?;
    let platform = args.platform.map_or_else(
        || Platform::from_name(&text(infrastructure.as_ref(), "/status/platformStatus/type").unwrap_or_default()),
        Platform::from,
    );
    let images = Box::pin(images::discover(client, namespace, infrastructure.is_some())).await?;
    let (mut unusable, mut left_out) = (images.unusable, images.left_out);
    let trusted_ca = usable(objects::trusted_ca(client, namespace).await?, &mut unusable) + &images.trusted;
    let exporter_tls = usable(objects::exporter_tls(client, namespace).await?, &mut unusable);
    let proxy = usable(objects::proxy(proxies.as_ref(), args), &mut unusable);
    let external_cloud_provider = args
        .external_cloud_provider
        .unwrap_or_else(|| infrastructure.as_ref().is_some_and(|i| has_cloud_controller(&i.data)));
    let tls_profile = server.map(|server| {
        let (profile, refused) = TlsProfile::of_cluster(server.data.pointer("/spec/tlsSecurityProfile"));
        left_out.extend(refused);
        profile
    });
    let needs_node_manager = platform == Platform::Azure && external_cloud_provider;
    let missing = if needs_node_manager { node_manager(client, namespace).await? } else { None };
    let lacks_node_manager = missing.is_some();
    left_out.extend(missing);
    let api_ca =
        config_map_key(client, namespace, "kube-root-ca.crt", "ca.crt", "the cluster's CA (kube-root-ca.crt)").await?;
    // Outside the cluster, as with the kubeconfig of a user, the API server's certificate may be from another CA.
    if is_inside(&config.cluster_url, &service_cidr) {
        api_certificate::prove(config, &api_ca).await?;
    }
    let own_names = own_names(config, infrastructure.as_ref()).await?;
    let cluster = Cluster {
        api_server,
        own_names,
        api_ca,
        kubelet_client_ca: config_map_key(
            client,
            "kube-system",
            "extension-apiserver-authentication",
            "client-ca-file",
            "the CA of the API server's clients (kube-system/extension-apiserver-authentication)",
        )
        .await?,
        service_cidr,
        cluster_dns,
        kubernetes_minor: api_servers.oldest,
        is_upgrading: infrastructure.is_some() && is_upgrading(client).await?,
        next_minor: None,
        silent_api_servers: api_servers.silent,
        cluster_domain: args.cluster_domain.clone(),
        platform,
        external_cloud_provider,
        network,
        cni_bin_dir: args.cni_bin_dir.clone(),
        cni_conf_dir: args.cni_conf_dir.clone(),
        proxy,
        exporter_tls,
        trusted_ca: Some(trusted_ca).filter(|pem| !pem.is_empty()),
        mirrors: images.mirrors,
        pull_secret: images.pull_secret,
        tls_profile,
        lacks_node_manager,
        unusable: left_out,
        held: Vec::new(),
    };
    Ok(Found { cluster, unusable })
}

/// Reports whether an upgrade of OpenShift's control plane is in progress. Until it is done, versions differ, and it may be rolled back.
async fn is_upgrading(client: &Client) -> Result<bool, ClusterError> {
    let resource = resource("config.openshift.io", "ClusterVersion", "clusterversions");
    let version = custom_object(client, &resource, "version", "the ClusterVersion").await?;
    Ok(version.is_some_and(|object| is_progressing(&object.data)))
}

fn is_progressing(cluster_version: &Value) -> bool {
    let conditions = cluster_version["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|c| c["type"] == "Progressing" && c["status"] == "True")
}

/// Reports whether a cloud controller manager initialises the nodes of an OpenShift cluster, according to its `Infrastructure`. The rules are those
/// of <https://github.com/openshift/library-go/blob/master/pkg/cloudprovider/external.go> for kubelet on Linux.
fn has_cloud_controller(infrastructure: &Value) -> bool {
    const CLOUDS: [&str; 10] =
        ["AlibabaCloud", "AWS", "Azure", "GCP", "IBMCloud", "KubeVirt", "Nutanix", "OpenStack", "PowerVS", "VSphere"];
    let platform = &infrastructure["status"]["platformStatus"];
    match platform["type"].as_str() {
        Some("External") => platform["external"]["cloudControllerManager"]["state"] == "External",
        name => name.is_some_and(|name| CLOUDS.contains(&name)),
    }
}

/// Reports whether a URL names a Service, as the URL of the API server does in a pod.
fn is_inside(url: &Uri, service_cidr: &str) -> bool {
    let host = url.host().unwrap_or_default();
    match host.trim_matches(['[', ']']).parse() {
        Ok(ip) => is_of_service(service_cidr, ip),
        Err(_) => host.split('.').any(|label| label == "svc"),
    }
}

/// Returns the URL of the API server that the operator uses, if hosts can use it as well. In a pod, the URL names a Service: hosts cannot resolve the
/// name of a Service, and reach its address only once kube-proxy runs, which needs the API server.
fn as_hosts_reach_it(url: &Uri, service_cidr: &str) -> Result<String, ClusterError> {
    if is_inside(url, service_cidr) {
        return Err(ClusterError::Unknown {
            what: "the URL at which hosts reach the API server",
            env: "WINDOWS_NODE_POOLS_API_SERVER",
            flag: "--api-server",
        });
    }
    Ok(url.to_string().trim_end_matches('/').to_owned())
}

/// Reads an OpenShift object named `cluster`, if the cluster is OpenShift. `what` names the object in an error.
async fn openshift(
    client: &Client,
    group: &str,
    kind: &str,
    plural: &str,
    what: &'static str,
) -> Result<Option<DynamicObject>, ClusterError> {
    custom_object(client, &resource(group, kind, plural), "cluster", what).await
}

/// Returns the API resource of a kind in version v1.
fn resource(group: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural)
}

/// Reads an object of a kind that the cluster may not have. `what` names the object in an error.
async fn custom_object(
    client: &Client,
    resource: &ApiResource,
    name: &str,
    what: &'static str,
) -> Result<Option<DynamicObject>, ClusterError> {
    match Api::<DynamicObject>::all_with(client.clone(), resource).get(name).await {
        Ok(object) => Ok(Some(object)),
        // If the whole API group is missing, the response is a bare 404, which the client does not report as NotFound.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(failed(what)(error)),
    }
}

async fn service_cidr(client: &Client) -> Result<String, ClusterError> {
    let unknown = ClusterError::Unknown {
        what: "the service network",
        env: "WINDOWS_NODE_POOLS_SERVICE_CIDR",
        flag: "--service-cidr",
    };
    let api: Api<k8s_openapi::api::networking::v1::ServiceCIDR> = Api::all(client.clone());
    let found = api.get_opt("kubernetes").await.map_err(failed("the service network"))?;
    found.and_then(|c| c.spec).and_then(|s| s.cidrs).filter(|c| !c.is_empty()).map(|c| c.join(",")).ok_or(unknown)
}

async fn config_map_key(
    client: &Client,
    namespace: &str,
    name: &'static str,
    key: &'static str,
    what: &'static str,
) -> Result<String, ClusterError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = api.get(name).await.map_err(failed(what))?;
    let value = texts::of_config_map(found, key).ok().flatten().filter(|v| !v.trim().is_empty());
    value.ok_or_else(|| ClusterError::NoText { namespace: namespace.to_owned(), name, key })
}

/// Returns the missing prerequisite of the cloud-node-managers of hosts on Azure, if any.
async fn node_manager(client: &Client, namespace: &str) -> Result<Option<String>, ClusterError> {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let fault = match api.get_opt(user::NODE_MANAGER).await {
        Ok(Some(_)) => return Ok(None),
        Ok(None) => "is missing",
        // The Role of an older release lacks the permission. That release had no such ServiceAccount either.
        Err(kube::Error::Api(status)) if status.code == 403 => "is missing, or the operator may not read it",
        Err(error) => return Err(failed("the ServiceAccount of cloud-node-managers")(error)),
    };
    Ok(Some(format!(
        "the ServiceAccount {namespace}/{} {fault}, and hosts wait for its tokens: apply deploy/base and deploy/azure",
        user::NODE_MANAGER
    )))
}

/// Returns the tenth address of a network, by convention the address of the cluster DNS.
fn tenth_address(cidr: &str) -> Result<IpAddr, ClusterError> {
    let bad = |problem| ClusterError::Invalid { what: "the service network", value: cidr.into(), problem };
    let (address, length) =
        cidr.split_once('/').ok_or_else(|| bad("it has no prefix length, for example /16; correct --service-cidr"))?;
    let length: u32 = length.parse().map_err(|_| bad("its prefix length is not a number; correct --service-cidr"))?;
    match address.parse().map_err(|_| bad("it does not begin with an IP address; correct --service-cidr"))? {
        IpAddr::V4(ip) if length <= 28 => {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            Ok(Ipv4Addr::from((u32::from(ip) & mask) + 10).into())
        }
        IpAddr::V6(ip) if length <= 124 => {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            Ok(Ipv6Addr::from((u128::from(ip) & mask) + 10).into())
        }
        _ => Err(bad("it is too small to have a tenth address, which the cluster DNS has; correct --service-cidr")),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
