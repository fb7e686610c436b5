//! Host network that kube-proxy and CNI need in the hybrid overlay of OVN-Kubernetes, set up without scripts.
//!
//! `hybrid-overlay-node` creates the network [`HNS_NETWORK`] in the Host Networking Service (HNS). The CNI configuration follows from it, and
//! kube-proxy needs a source address (source VIP) in it: the address of an HNS endpoint attached to the host. One call of [`prepare`] observes the
//! host and takes the next step; [`steps`] decides.
//!
//! WMCO does this with a script, and this module uses the same paths, settings, and names of network and endpoint. Unlike the script, this module
//! also attaches an endpoint that was created but not attached, and uses an address only if it is in the network.

use std::net::Ipv4Addr;

use api::services::{OvnHybridNetwork, Prepare, ServicesConfig};
use serde_json::{Value, json};
use tracing::info;

use crate::files::{self, Access};
use crate::host::{Adapter, HnsRequest, Host, HostError};
use crate::ownership::Ownership;

/// Name of the pod network, as in WMCO.
pub const HNS_NETWORK: &str = "OVNKubernetesHybridOverlayNetwork";
/// Names of all overlay networks, as in WMCO. Their endpoints are removed with them.
pub const HNS_NETWORKS: [&str; 2] = ["BaseOVNKubernetesHybridOverlayNetwork", HNS_NETWORK];
/// Name of the service that creates the overlay networks, as in WMCO.
pub const OVERLAY_SERVICE: &str = "hybrid-overlay-node";
/// Flag of [`OVERLAY_SERVICE`] that sets the VXLAN port of its networks.
const PORT_FLAG: &str = "hybrid-overlay-vxlan-port";
/// VXLAN port of the networks without [`PORT_FLAG`].
const USUAL_PORT: u16 = 4789;
/// Name of the endpoint whose address kube-proxy uses, as in WMCO.
pub const ENDPOINT: &str = "VIPEndpoint";
/// Path of the CNI configuration, as in WMCO.
pub const CNI_CONF: &str = r"C:\k\cni\config\cni.conf";
/// Path of kube-proxy's configuration, as in WMCO.
pub const KUBE_PROXY_CONF: &str = r"C:\k\kube-proxy.conf";
/// Annotation of the Node with its pod subnet, such as `10.132.1.0/24`. OVN-Kubernetes writes it.
pub const NODE_SUBNET: &str = "k8s.ovn.org/hybrid-overlay-node-subnet";

/// Directory of the CNI configuration, and of hybrid-overlay-node's certificates and keys.
const CNI_DIRECTORY: &str = r"C:\k\cni\config";
/// Network compartment of the host. Containers have others.
const HOST_COMPARTMENT: u16 = 1;

/// Parameters of the desired files and endpoint.
#[derive(Clone, Copy, Debug)]
pub struct DesiredNetwork<'a> {
    /// Settings from the services ConfigMap.
    pub config: &'a OvnHybridNetwork,
    /// Name of the Node.
    pub node_name: &'a str,
    /// Value of [`NODE_SUBNET`]. `None`, for example without an API server, stands for the subnet of the HNS network, which hybrid-overlay-node
    /// derived from the annotation.
    pub node_subnet: Option<&'a str>,
}

/// Observed networks, endpoints and adapters of the host.
#[derive(Clone, Debug, Default)]
pub struct ObservedNetwork {
    /// List of networks from HNS.
    pub networks: Value,
    /// List of endpoints from HNS.
    pub endpoints: Value,
    /// Network adapters.
    pub adapters: Vec<Adapter>,
}

/// Next steps for CNI and kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Content of [`CNI_CONF`], as soon as it is known: pods need it, not kube-proxy.
    pub cni_conf: Option<String>,
    /// Next step for kube-proxy.
    pub next: Next,
}

/// Next step for kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// No step, because of this missing prerequisite.
    Wait(String),
    /// Request that creates the endpoint.
    MakeEndpoint(HnsRequest),
    /// Request that attaches the endpoint to the host.
    AttachEndpoint(HnsRequest),
    /// Last step: write [`KUBE_PROXY_CONF`] with this content.
    Write(String),
}

/// Progress of a [`prepare`] call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All files and the endpoint match the desired state.
    Ready,
    /// Configuration of the running kube-proxy that must change: stop kube-proxy, then call again.
    Stale,
    /// Step that was taken, whose result will be visible soon.
    Moving,
    /// No step was taken, because of this missing prerequisite.
    Waiting(String),
}

/// Observes the host's network, and takes the next step for CNI and kube-proxy. While kube-proxy is `running`, its configuration is not touched.
///
/// The caller holds the [`crate::lock`].
///
/// # Errors
/// Fails when HNS does not list networks and endpoints or refuses the step, the adapters cannot be listed, or a file or the ownership record
/// cannot be read or written.
pub fn prepare(host: &dyn Host, wish: DesiredNetwork<'_>, running: bool) -> Result<Progress, HostError> {
    let get = |path: &str| host.hns(&HnsRequest { method: "GET", path: path.into(), body: String::new() });
    let seen =
        ObservedNetwork { networks: get("/networks")?, endpoints: get("/endpoints")?, adapters: host.adapters()? };
    let Steps { cni_conf, next } = steps(&seen, wish);
    if let Some(conf) = cni_conf {
        put(host, CNI_CONF, &conf)?;
    }
    match next {
        Next::Wait(missing) => Ok(Progress::Waiting(missing)),
        Next::MakeEndpoint(request) => {
            info!(endpoint = ENDPOINT, "creating the HNS endpoint of kube-proxy");
            host.hns(&request).map(|_| Progress::Moving)
        }
        Next::AttachEndpoint(request) => {
            info!(endpoint = ENDPOINT, "attaching the HNS endpoint of kube-proxy to the host");
            host.hns(&request).map(|_| Progress::Moving)
        }
        Next::Write(conf) if running && !is(host, KUBE_PROXY_CONF, &conf)? => Ok(Progress::Stale),
        Next::Write(conf) => put(host, KUBE_PROXY_CONF, &conf).map(|()| Progress::Ready),
    }
}

/// VXLAN port of networks that [`OVERLAY_SERVICE`] creates with this command line. `None` if the port cannot be parsed.
pub fn vxlan_port(command: &str) -> Option<u16> {
    let mut words = command.split([' ', '=']).filter(|word| !word.is_empty());
    if words.any(|word| word.trim_start_matches('-') == PORT_FLAG) {
        return words.next()?.trim_matches('"').parse().ok();
    }
    Some(USUAL_PORT)
}

/// Removes the overlay networks if their recorded VXLAN port is not that of this command line, before [`OVERLAY_SERVICE`] starts with it: the service
/// would keep the networks with their port. First ends the containers, whose endpoints are removed with the networks; kubelet recreates the
/// containers. Records the new port.
///
/// The caller holds the [`crate::lock`].
///
/// # Errors
/// Fails when HNS refuses to remove a network, a container cannot be ended, or the ownership record cannot be read or written.
pub fn renew(host: &dyn Host, command: &str) -> Result<(), HostError> {
    let port = vxlan_port(command);
    let before = Ownership::load_or_adopt(host)?.vxlan_port;
    if before == port || port.is_none() {
        return Ok(());
    }
    if let Some(before) = before {
        info!(before, port, "removing the networks of the overlay, whose VXLAN port changes");
        host.kill_leftovers()?;
        host.remove_networks()?;
    }
    note_port(host, command)
}

/// Records the VXLAN port of the networks that this command line creates or has created.
///
/// # Errors
/// Fails when the ownership record cannot be read or written.
pub fn note_port(host: &dyn Host, command: &str) -> Result<(), HostError> {
    Ownership::update(host, |owned| owned.vxlan_port = vxlan_port(command))
}

/// Value of the annotation [`NODE_SUBNET`] of the Node, if there is one.
pub fn node_subnet(node: Option<&Value>) -> Option<&str> {
    node?.get("metadata")?.get("annotations")?.get(NODE_SUBNET)?.as_str()
}

/// CNI directory, if a service needs it. A cleanup removes it with its content, unless the directory existed before.
pub fn trees(services: &ServicesConfig) -> Option<String> {
    let prepared = |p: &Prepare| matches!(p, Prepare::OvnHybridNetwork(_));
    services.services.iter().filter_map(|s| s.prepare.as_ref()).any(prepared).then(|| CNI_DIRECTORY.to_owned())
}

fn is(host: &dyn Host, path: &str, content: &str) -> Result<bool, HostError> {
    Ok(files::read(host, path)?.as_deref() == Some(content.as_bytes()))
}

/// Claims and writes a file if it differs.
fn put(host: &dyn Host, path: &str, content: &str) -> Result<(), HostError> {
    if is(host, path, content)? {
        return Ok(());
    }
    let mut owned = Ownership::load_or_adopt(host)?;
    owned.claim_parents(host, path)?;
    owned.files.insert(path.to_owned());
    owned.save(host)?;
    info!(path, "writing the file");
    files::write(host, path, content.as_bytes(), Access::Inherited).map(drop)
}

/// Decides the next steps. All output of HNS is checked before it goes into a file or a request.
pub fn steps(seen: &ObservedNetwork, wish: DesiredNetwork<'_>) -> Steps {
    match Network::find(&seen.networks).and_then(|network| Ok((cni_conf(&network, wish)?, network))) {
        Err(missing) => Steps { cni_conf: None, next: Next::Wait(missing) },
        Ok((cni_conf, network)) => {
            Steps { cni_conf: Some(cni_conf), next: next(&network, seen, wish).unwrap_or_else(Next::Wait) }
        }
    }
}

fn next(network: &Network, seen: &ObservedNetwork, wish: DesiredNetwork<'_>) -> Result<Next, String> {
    let Some(endpoint) = list(&seen.endpoints).find(|e| e["Name"] == ENDPOINT && network.has(e)) else {
        let body = json!({"Name": ENDPOINT, "VirtualNetwork": network.id}).to_string();
        return Ok(Next::MakeEndpoint(HnsRequest { method: "POST", path: "/endpoints".into(), body }));
    };
    let untold = |what| format!("HNS does not report the {what} of its endpoint {ENDPOINT}");
    let mac = endpoint["MacAddress"].as_str().and_then(mac).ok_or_else(|| untold("MAC address"))?;
    let state = endpoint["State"].as_u64();
    let adapters = || seen.adapters.iter().filter(|a| a.mac == mac);
    // An adapter without an address may be left from an endpoint that had the same MAC address and was removed with its network.
    let is_detached = state == Some(1) && adapters().all(|a| a.ipv4.is_empty());
    let Some(adapter) =
        adapters().max_by_key(|a| a.ipv4.iter().any(|ip| network.subnet.contains(*ip))).filter(|_| !is_detached)
    else {
        // States 2 and 3: attached. The adapter appears a moment later.
        if matches!(state, Some(2 | 3)) {
            return Err(format!("the host has no network adapter for the HNS endpoint {ENDPOINT} yet"));
        }
        let id = endpoint["ID"].as_str().filter(|id| is_id(id)).ok_or_else(|| untold("ID"))?;
        let body = json!({"SystemType": "Host", "CompartmentId": HOST_COMPARTMENT}).to_string();
        return Ok(Next::AttachEndpoint(HnsRequest { method: "POST", path: format!("/endpoints/{id}/attach"), body }));
    };
    let address = adapter.ipv4.iter().find(|ip| network.subnet.contains(**ip));
    let source_vip = address.ok_or_else(|| {
        format!("the network adapter of the HNS endpoint {ENDPOINT} has no address in {} yet", network.subnet)
    })?;
    kube_proxy_conf(network, *source_vip, wish).map(Next::Write)
}

/// Properties of [`HNS_NETWORK`].
struct Network {
    id: String,
    subnet: Ipv4Network,
    /// Address of the host that the overlay uses.
    provider: Ipv4Addr,
}

impl Network {
    fn find(networks: &Value) -> Result<Self, String> {
        let network = list(networks).find(|n| n["Name"] == HNS_NETWORK).ok_or_else(|| {
            format!("hybrid-overlay-node has not created the network {HNS_NETWORK} yet; see its log in C:\\var\\log\\hybrid-overlay")
        })?;
        let untold = |what| format!("HNS does not report the {what} of the network {HNS_NETWORK} yet");
        let id = network["ID"].as_str().filter(|id| is_id(id)).ok_or_else(|| untold("ID"))?;
        let subnet = list(&network["Subnets"]).find_map(|s| Ipv4Network::parse(s["AddressPrefix"].as_str()?));
        let provider = network["ManagementIP"].as_str().and_then(|ip| ip.parse().ok());
        Ok(Self {
            id: id.to_owned(),
            subnet: subnet.ok_or_else(|| untold("IPv4 subnet"))?,
            provider: provider.ok_or_else(|| untold("management address"))?,
        })
    }

    /// Reports whether an endpoint is in this network. An endpoint whose network HNS does not report counts as well, so that it is not created
    /// repeatedly.
    fn has(&self, endpoint: &Value) -> bool {
        let digits = |id: &str| id.replace(['{', '}', '-'], "").to_ascii_lowercase();
        endpoint["VirtualNetwork"].as_str().is_none_or(|id| digits(id) == digits(&self.id))
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// Reports whether a text has only characters of a GUID, so that it is safe in a path.
fn is_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// Parses a MAC address such as `00-15-5D-0A-0B-0C`.
fn mac(text: &str) -> Option<Vec<u8>> {
    let bytes = hex::decode(text.replace(['-', ':'], "")).ok()?;
    (bytes.len() == 6).then_some(bytes)
}

/// IPv4 network, such as `10.132.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ipv4Network {
    address: Ipv4Addr,
    length: u32,
}

impl Ipv4Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/')?;
        let digits = length.bytes().all(|b| b.is_ascii_digit());
        let length = length.parse().ok().filter(|l| digits && *l <= 32)?;
        Some(Self { address: address.parse().ok()?, length })
    }

    /// Parses a network, or returns an error message that names the source of the text, `what`.
    fn expect(text: &str, what: &str) -> Result<Self, String> {
        let start: String = text.chars().take(50).collect();
        Self::parse(text)
            .ok_or_else(|| format!("the {what} is {start:?}, which is not an IPv4 network such as 10.132.0.0/24"))
    }

    fn contains(self, ip: Ipv4Addr) -> bool {
        let differ = u32::from(self.address) ^ u32::from(ip);
        differ.checked_shr(32 - self.length).unwrap_or(0) == 0
    }
}

impl std::fmt::Display for Ipv4Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Configuration for the CNI plugin win-overlay, in the format of version 2 of the HNS API.
fn cni_conf(network: &Network, wish: DesiredNetwork<'_>) -> Result<String, String> {
    let services = Ipv4Network::expect(&wish.config.service_cidr, "service network in the services ConfigMap")?;
    let policy =
        |kind: &str, settings: Value| json!({"name": "EndpointPolicy", "value": {"type": kind, "settings": settings}});
    let conf = json!({
        "cniVersion": "0.2.0",
        "name": HNS_NETWORK,
        "type": "win-overlay",
        "apiVersion": 2,
        "capabilities": {"portMappings": true, "dns": true},
        "ipam": {"type": "host-local", "subnet": network.subnet.to_string()},
        "policies": [
            // Pods use the host's address outside of the cluster, and their own through the overlay to services.
            policy("OutBoundNAT", json!({
                "exceptionList": [services.to_string()],
                "destinationPrefix": "",
                "needEncap": false,
            })),
            policy("SDNRoute", json!({
                "exceptionList": [],
                "destinationPrefix": services.to_string(),
                "needEncap": true,
            })),
            policy("ProviderAddress", json!({"providerAddress": network.provider.to_string()})),
        ],
    });
    Ok(format!("{conf:#}\n"))
}

/// Configuration of kube-proxy: kind `KubeProxyConfiguration`, `kubeproxy.config.k8s.io/v1alpha1`, in JSON, which is YAML.
/// Omitted fields have their defaults. The feature gates WinDSR and WinOverlay are both on by default since Kubernetes 1.33, and are not set because
/// later versions may remove them.
fn kube_proxy_conf(network: &Network, source_vip: Ipv4Addr, wish: DesiredNetwork<'_>) -> Result<String, String> {
    let subnet = match wish.node_subnet {
        Some(text) => Ipv4Network::expect(text, &format!("annotation {NODE_SUBNET} of the Node"))?,
        None => network.subnet,
    };
    let conf = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": wish.config.kubeconfig},
        "logging": {"verbosity": wish.config.verbosity},
        "hostnameOverride": wish.node_name,
        "mode": "kernelspace",
        "winkernel": {"networkName": HNS_NETWORK, "sourceVip": source_vip.to_string(), "enableDSR": true},
        "clusterCIDR": subnet.to_string(),
    });
    Ok(format!("{conf:#}\n"))
}

#[cfg(test)]
#[path = "network_tests.rs"]
pub(crate) mod tests;
