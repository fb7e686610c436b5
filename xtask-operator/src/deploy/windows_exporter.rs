//! What reads the windows_exporter of hosts on OpenShift. Names are those of WMCO's package, so that the console's pages of nodes find what
//! they show, and a cluster loses nothing when that package goes.

use api::names::EXPORTER_CERTIFICATE;
use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde_json::{Value, json};

use super::object::{Object, Site};

/// Folder of kustomize.
pub(super) const FOLDER: &str = "components/windows-exporter";
const FILE: &str = "components/windows-exporter/windows-exporter.yaml";
/// Name of the Service and of the ServiceMonitor.
const NAME: &str = "windows-exporter";
/// Port on hosts.
const PORT: i32 = 9182;

/// All of them.
pub(super) fn objects(site: &Site) -> Vec<Object> {
    vec![service(site), service_monitor(site), rules(site)]
}

fn service(site: &Site) -> Object {
    let mut metadata = site.namespaced(NAME, "windows-exporter");
    let certificate = ("service.alpha.openshift.io/serving-cert-secret-name".into(), EXPORTER_CERTIFICATE.into());
    metadata.annotations = Some([certificate].into());
    let port = ServicePort {
        name: Some("metrics".into()),
        port: PORT,
        target_port: Some(IntOrString::Int(PORT)),
        protocol: Some("TCP".into()),
        ..ServicePort::default()
    };
    let spec = ServiceSpec { ports: Some(vec![port]), ..ServiceSpec::default() };
    let about = "For its annotation: OpenShift writes the certificate with which hosts serve into the Secret. The Service selects nothing.";
    Object::new(FILE, about, &Service { metadata, spec: Some(spec), ..Service::default() })
}

/// Hosts are found as the endpoints of kubelet, which are those of all nodes.
fn service_monitor(site: &Site) -> Object {
    let relabelings = json!([
        {"action": "keep", "sourceLabels": ["__meta_kubernetes_node_label_kubernetes_io_os"], "regex": "windows"},
        {"action": "replace", "sourceLabels": ["__address__"], "regex": "(.+):[0-9]+", "replacement": format!("$1:{PORT}"), "targetLabel": "__address__"},
        {"action": "replace", "sourceLabels": ["__meta_kubernetes_endpointslice_address_target_name"], "targetLabel": "instance"},
        {"action": "replace", "replacement": NAME, "targetLabel": "job"},
    ]);
    let endpoint = json!({
        "port": "https-metrics",
        "scheme": "https",
        "path": "/metrics",
        "interval": "30s",
        "honorLabels": true,
        "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "tlsConfig": {
            "caFile": "/etc/prometheus/configmaps/serving-certs-ca-bundle/service-ca.crt",
            "serverName": format!("{NAME}.{}.svc", site.namespace),
        },
        "relabelings": relabelings,
    });
    let monitor = json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": site.namespaced(NAME, "windows-exporter"),
        "spec": {
            "attachMetadata": {"node": true},
            "serviceDiscoveryRole": "EndpointSlice",
            "namespaceSelector": {"matchNames": ["kube-system"]},
            "selector": {"matchLabels": {"k8s-app": "kubelet"}},
            "endpoints": [endpoint],
        },
    });
    Object::new(
        FILE,
        "Kubelet's endpoints in kube-system are those of all nodes: of Windows ones, the port of the exporter.",
        &monitor,
    )
}

/// Labels that kube-state-metrics knows of the pod of a container.
const OF_POD: &str =
    r#"* on (container_id) group_left (namespace, pod, container) kube_pod_container_info{container_id!=""}"#;

/// Record, and expression. Names on the left are those of the node exporter on Linux, which the console asks for.
pub(super) fn recordings() -> Vec<(&'static str, String)> {
    let plain = |record, expr: &str| (record, expr.to_owned());
    let of_pods = |record, series: &str| (record, format!("sum by (namespace, pod) ({series} {OF_POD})"));
    vec![
        plain(
            "instance:node_cpu_utilisation:rate1m",
            r#"1 - avg without (core, mode) (rate(windows_cpu_time_total{mode="idle"}[1m]))"#,
        ),
        // What is spent in interrupts and deferred calls is a part of `privileged`.
        plain(
            "instance:node_cpu:rate:sum",
            r#"sum by (instance) (rate(windows_cpu_time_total{mode=~"user|privileged"}[3m]))"#,
        ),
        plain("node_cpu_info", "windows_cpu_info"),
        plain("node_filesystem_size_bytes", "windows_logical_disk_size_bytes"),
        plain("node_filesystem_free_bytes", "windows_logical_disk_free_bytes"),
        plain("node_filesystem_avail_bytes", "windows_logical_disk_free_bytes"),
        plain("node_network_receive_bytes_total", "rate(windows_net_bytes_received_total[1m])"),
        plain("node_network_transmit_bytes_total", "rate(windows_net_bytes_sent_total[1m])"),
        plain("node_memory_MemAvailable_bytes", "windows_memory_available_bytes"),
        // The first from exporters that WMCO has installed, the second from those of this operator's payload.
        plain("node_memory_MemTotal_bytes", "windows_memory_physical_total_bytes or windows_os_visible_memory_bytes"),
        of_pods("pod:container_cpu_usage:sum", "rate(windows_container_cpu_usage_seconds_total[5m])"),
        (
            "container_memory_working_set_bytes",
            format!(
                r#"label_replace(windows_container_memory_usage_private_working_set_bytes {OF_POD}, "container", "", "", "")"#
            ),
        ),
        of_pods(
            "pod_interface_network:container_network_receive_bytes:irate5m",
            "irate(windows_container_network_receive_bytes_total[5m])",
        ),
        of_pods(
            "pod_interface_network:container_network_transmit_bytes_total:irate5m",
            "irate(windows_container_network_transmit_bytes_total[5m])",
        ),
    ]
}

fn rules(site: &Site) -> Object {
    let rules: Vec<Value> =
        recordings().into_iter().map(|(record, expr)| json!({"record": record, "expr": expr})).collect();
    let rule = json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": site.namespaced("windows-prometheus-k8s-rules", "windows-exporter"),
        "spec": {"groups": [{"name": "windows.rules", "rules": rules}]},
    });
    Object::new(FILE, "The series of the console's pages of nodes, from those of windows_exporter.", &rule)
}
