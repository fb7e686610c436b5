//! What is optional: monitoring by Prometheus, a network policy, roles for people.

use k8s_openapi::{
    api::networking::v1::{
        NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPort, NetworkPolicySpec,
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use serde_json::json;

use super::{
    object::{NAME, Object, Site},
    rights,
    workload::selector,
};

/// All of them, each in a component of kustomize.
pub(super) fn objects(site: &Site) -> Vec<Object> {
    let file = "components/monitoring/monitoring.yaml";
    let mut objects = vec![service_monitor(site, file)];
    objects.extend(rights::prometheus(site, file));
    objects.push(network_policy(site));
    objects.extend(rights::for_people(site, "components/view-roles/roles.yaml"));
    objects
}

/// A kind of the Prometheus operator.
fn service_monitor(site: &Site, file: &'static str) -> Object {
    let monitor = json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": site.namespaced(NAME, "monitoring"),
        "spec": {"selector": {"matchLabels": selector()}, "endpoints": [{"port": "metrics"}]},
    });
    Object::new(file, "", &monitor)
}

fn network_policy(site: &Site) -> Object {
    let port = |name: &str| NetworkPolicyPort {
        port: Some(IntOrString::String(name.into())),
        protocol: Some("TCP".into()),
        end_port: None,
    };
    let ingress = NetworkPolicyIngressRule { ports: Some(vec![port("metrics"), port("webhook")]), from: None };
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
