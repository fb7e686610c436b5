//! Services of a host.

use std::collections::BTreeMap;

use api::{
    host::path,
    names::user,
    payload::Manifest,
    services::{
        FileInfo, HostFact, HostVariable, OvnHybridNetwork, Prepare, Service, ServiceAccountToken, ServicesConfig,
    },
};

use super::{
    Cluster, METADATA_ADDRESS, Network, Platform, Proxy, RenderError, Settings, check,
    context::{Context, NODE_IP, NODE_NAME},
    kubelet, prerequisites, program,
};

const NODE_MANAGER: &str = "cloud-node-manager";

/// Returns the content of the services ConfigMap: a service for each program that the payload has and the cluster can use.
///
/// kubelet is required, and so are the programs of the hybrid overlay and of Azure where the cluster needs them. containerd is not: a host may have
/// its own container runtime.
///
/// # Errors
/// [`RenderError::Fact`] if a fact cannot be used. [`RenderError::NoPrograms`] if the payload lacks a required program. [`RenderError::Skew`] if the
/// API server does not support its kubelet.
pub(super) fn services(
    cluster: &Cluster,
    payload: &Manifest,
    settings: &Settings,
) -> Result<ServicesConfig, RenderError> {
    check::services(cluster)?;
    let context = Context { cluster, payload, settings };
    prerequisites::check(&context)?;
    let all =
        [containerd, kubelet_service, csi_proxy, hybrid_overlay, windows_exporter, cloud_node_manager, kube_proxy];
    let mut services: Vec<Service> = all.iter().filter_map(|service| service(&context)).collect();
    // Windows does not start a service whose dependency does not exist.
    let names: Vec<String> = services.iter().map(|s| s.name.clone()).collect();
    let environment = proxy_variables(cluster);
    for service in &mut services {
        service.dependencies.retain(|d| names.contains(d));
        service.environment.clone_from(&environment);
    }
    services.sort_by(|a, b| (a.priority, &a.name).cmp(&(b.priority, &b.name)));

    let mut files: Vec<FileInfo> = payload
        .for_platform(cluster.platform.as_str())
        .into_iter()
        .map(|f| FileInfo { path: f.destination, checksum: f.sha256 })
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));

    // Machine-wide variables stay unset: they belong to the owner of the host, and other services read them, too.
    Ok(ServicesConfig { services, files, ..ServicesConfig::default() })
}

/// Returns the proxy variables of each service. Without a proxy, `NO_PROXY` is not set either.
fn proxy_variables(cluster: &Cluster) -> BTreeMap<String, String> {
    let Proxy { http, https, no } = &cluster.proxy;
    let set = |(name, value): (&str, &Option<String>)| {
        value.as_ref().filter(|v| !v.is_empty()).map(|v| (name.to_owned(), v.clone()))
    };
    let mut variables: BTreeMap<String, String> =
        [("HTTP_PROXY", http), ("HTTPS_PROXY", https)].into_iter().filter_map(set).collect();
    if !variables.is_empty() {
        variables.insert("NO_PROXY".to_owned(), without_proxy(cluster, no.as_deref().unwrap_or_default()));
    }
    variables
}

/// Returns the value of `NO_PROXY`: the given entries, and those that every node needs. A proxy might not know the cluster's internal addresses,
/// and the metadata service identifies a client by its address.
fn without_proxy(cluster: &Cluster, given: &str) -> String {
    let host = cluster.api_server.trim_start_matches("https://").split('/').next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(name, port)| if port.ends_with(']') { host } else { name });
    let metadata = METADATA_ADDRESS.to_string();
    let services = cluster.service_cidr.split(',').map(str::trim);
    let needed = ["localhost", "127.0.0.1", ".svc", host.trim_matches(['[', ']'])].into_iter();
    let needed = needed.chain(services).chain([metadata.as_str()]);
    let mut list: Vec<&str> = given.split(',').map(str::trim).filter(|entry| !entry.is_empty()).collect();
    for entry in needed {
        if !entry.is_empty() && !list.contains(&entry) {
            list.push(entry);
        }
    }
    list.join(",")
}

/// Returns a service with the fields that all services have.
fn service(name: &str, priority: u32, path: String, dependencies: &[&str]) -> Service {
    let variables = [(NODE_NAME, HostFact::NodeName), (NODE_IP, HostFact::NodeIp)];
    let used = |(text, fact): (&str, HostFact)| path.contains(text).then(|| HostVariable { name: text.into(), fact });
    Service {
        name: name.into(),
        host_variables_in_command: variables.into_iter().filter_map(used).collect(),
        path,
        dependencies: dependencies.iter().map(ToString::to_string).collect(),
        priority,
        ..Service::default()
    }
}

fn containerd(context: &Context<'_>) -> Option<Service> {
    let command = format!(
        r"{} --config {} --log-file {}\containerd\containerd.log --run-service --log-level info",
        program::CONTAINERD,
        program::CONTAINERD_CONFIG,
        path::LOGS,
    );
    context.has(program::CONTAINERD).then(|| Service { bootstrap: true, ..service("containerd", 0, command, &[]) })
}

#[expect(clippy::unnecessary_wraps, reason = "all functions for services have the same signature")]
fn kubelet_service(context: &Context<'_>) -> Option<Service> {
    let command = context.logged("kubelet", &kubelet::command(context));
    Some(Service { bootstrap: true, ..service("kubelet", 1, command, &["containerd"]) })
}

fn windows_exporter(context: &Context<'_>) -> Option<Service> {
    let collectors = "cpu,logical_disk,net,os,service,system,container,memory,cpu_info";
    let mut command = vec![program::WINDOWS_EXPORTER.to_owned(), format!("--collectors.enabled {collectors}")];
    if context.cluster.exporter_tls.is_some() && context.has(program::WINDOWS_EXPORTER_CONFIG) {
        command.push(format!("--web.config.file {}", program::WINDOWS_EXPORTER_CONFIG));
    }
    command.push(format!("--log.level {}", context.settings.logs.of_level("info", "debug")));
    command.push(format!(r"--log.file {}\windows_exporter\windows_exporter.log", path::LOGS));
    context.has(program::WINDOWS_EXPORTER).then(|| service("windows_exporter", 2, command.join(" "), &[]))
}

fn csi_proxy(context: &Context<'_>) -> Option<Service> {
    let command = format!(
        r"{} -log_file={}\csi-proxy\csi-proxy.log -logtostderr=false -windows-service --v={}",
        program::CSI_PROXY,
        path::LOGS,
        context.settings.logs.of_level(2, 4),
    );
    context.has(program::CSI_PROXY).then(|| service("csi-proxy", 2, command, &[]))
}

fn hybrid_overlay(context: &Context<'_>) -> Option<Service> {
    let Network::OvnHybrid { vxlan_port } = context.cluster.network else { return None };
    let mut command = vec![
        program::HYBRID_OVERLAY.to_owned(),
        format!("--node {NODE_NAME}"),
        format!("--bootstrap-kubeconfig={}", path::NODE_KUBECONFIG),
        format!("--cert-dir={} --cert-duration=24h --windows-service", path::OVERLAY_CERTS),
        format!(r"--logfile {}\hybrid-overlay\hybrid-overlay.log", path::LOGS),
        format!("--k8s-apiserver={} --k8s-cacert {}", context.cluster.api_server, path::API_CA),
    ];
    if let Some(port) = vxlan_port {
        command.push(format!("--hybrid-overlay-vxlan-port {port}"));
    }
    command.extend(context.settings.logs.of_level(None, Some("--loglevel 5".to_owned())));
    context.has(program::HYBRID_OVERLAY).then(|| service("hybrid-overlay-node", 2, command.join(" "), &["kubelet"]))
}

/// Returns the service of kube-proxy. wicd writes `C:\k\kube-proxy.conf` and CNI's configuration, because they depend on the host's network.
fn kube_proxy(context: &Context<'_>) -> Option<Service> {
    let Network::OvnHybrid { .. } = context.cluster.network else { return None };
    let command = format!(r"{} --config C:\k\kube-proxy.conf --windows-service", program::KUBE_PROXY);
    let command = context.logged("kube-proxy", &command);
    let network = OvnHybridNetwork {
        service_cidr: context.cluster.service_network().to_owned(),
        kubeconfig: path::NODE_KUBECONFIG.to_owned(),
        verbosity: context.settings.logs.of_level(0, 4),
    };
    context.has(program::KUBE_PROXY).then(|| Service {
        prepare: Some(Prepare::OvnHybridNetwork(network)),
        ..service("kube-proxy", 3, command, &["hybrid-overlay-node"])
    })
}

fn cloud_node_manager(context: &Context<'_>) -> Option<Service> {
    let command = format!(
        "{} --windows-service --node-name={NODE_NAME} --wait-routes=false --kubeconfig={}",
        program::AZURE_NODE_MANAGER,
        path::NODE_MANAGER_KUBECONFIG,
    );
    let token =
        ServiceAccountToken { service_account: user::NODE_MANAGER.into(), path: path::NODE_MANAGER_TOKEN.into() };
    let is_on_azure = context.cluster.platform == Platform::Azure && context.cluster.external_cloud_provider;
    (is_on_azure && context.has(program::AZURE_NODE_MANAGER)).then(|| Service {
        prepare: Some(Prepare::ServiceAccountToken(token)),
        ..service(NODE_MANAGER, 3, command, &[])
    })
}

/// Reports whether hosts run a cloud-node-manager.
pub(super) fn has_node_manager(services: &ServicesConfig) -> bool {
    services.services.iter().any(|s| s.name == NODE_MANAGER)
}
