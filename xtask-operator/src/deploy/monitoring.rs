//! What is optional: monitoring by Prometheus, a network policy, roles for people.

use api::names::{METRICS_CA, METRICS_CA_KEY, METRICS_SERVICE};
use k8s_openapi::{
    api::networking::v1::{
        NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPort, NetworkPolicySpec,
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use serde_json::{Value, json};

use super::{
    alerts,
    object::{NAME, Object, Site},
    rights,
    workload::selector,
};

/// All of them, each in a component of kustomize.
pub(super) fn objects(site: &Site) -> Vec<Object> {
    let file = "components/monitoring/monitoring.yaml";
    let mut objects = vec![service_monitor(site, file)];
    objects.extend(rights::prometheus(site, file));
    objects.push(rights::of_prometheus_to_read(site, file));
    objects.push(alerts::object(site, "components/monitoring/alerts.yaml"));
    objects.push(network_policy(site));
    objects.extend(rights::for_people(site, "components/view-roles/roles.yaml"));
    objects
}

/// A kind of the Prometheus operator.
fn service_monitor(site: &Site, file: &'static str) -> Object {
    let endpoint = json!({
        "port": "metrics",
        "scheme": "https",
        "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "tlsConfig": {
            "serverName": format!("{METRICS_SERVICE}.{}.svc", site.namespace),
            "ca": {"configMap": {"name": METRICS_CA, "key": METRICS_CA_KEY}},
        },
    });
    let monitor = json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": site.namespaced(NAME, "monitoring"),
        "spec": {"selector": {"matchLabels": selector()}, "endpoints": [endpoint]},
    });
    Object::new(file, "", &monitor).why(
        "/spec/endpoints/0/tlsConfig/ca",
        "The operator keeps it, as long as no other program makes its certificate.",
    )
}

/// The authority of the certificates that service-ca makes: OpenShift keeps it in each namespace.
pub(super) fn service_ca() -> Value {
    json!({"configMap": {"name": "openshift-service-ca.crt", "key": "service-ca.crt"}})
}

fn network_policy(site: &Site) -> Object {
    let port = |name: &str| NetworkPolicyPort {
        port: Some(IntOrString::String(name.into())),
        protocol: Some("TCP".into()),
        end_port: None,
    };
    let ingress =
        NetworkPolicyIngressRule { ports: Some(vec![port("probes"), port("metrics"), port("webhook")]), from: None };
    let policy = NetworkPolicy {
        metadata: site.namespaced(NAME, "operator"),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector { match_labels: Some(selector()), ..LabelSelector::default() }),
            policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
            ingress: Some(vec![ingress]),
            egress: Some(vec![NetworkPolicyEgressRule::default()]),
        }),
    };
    Object::new("components/network-policy/network-policy.yaml", "What reaches the operator's pod.", &policy).why(
        "/spec/egress",
        "Open: the API server, hosts, jump hosts and Git servers have addresses that no policy knows, and ports that pools choose.",
    )
}
