//! Tests of the detection of cluster facts.

use serde_json::json;

use super::*;

#[test]
fn the_cluster_dns_has_the_tenth_address() {
    for (cidr, expected) in [
        ("172.30.0.0/16", "172.30.0.10"),
        ("10.0.0.0/24", "10.0.0.10"),
        ("10.0.0.99/24", "10.0.0.10"),
        ("fd02::/112", "fd02::a"),
        ("0.0.0.0/0", "0.0.0.10"),
    ] {
        assert_eq!(tenth_address(cidr).unwrap().to_string(), expected, "{cidr}");
    }
    for bad in ["", "172.30.0.0", "x/16", "10.0.0.0/29", "10.0.0.0/99", "10.0.0.0/-1"] {
        assert!(tenth_address(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_url_of_a_service_is_refused_for_hosts() {
    let of = |url: &str, cidr: &str| as_hosts_reach_it(&url.parse().unwrap(), cidr);
    for outside in [
        "https://10.0.0.1:6443/",
        "https://127.0.0.1:6443",
        "https://[fd00::1]:6443",
        "https://api.example.com",
        "https://10.112.0.1",
    ] {
        assert_eq!(of(outside, "10.96.0.0/12,fd02::/112").unwrap(), outside.trim_end_matches('/'));
    }
    // Addresses that a pod gets in KUBERNETES_SERVICE_HOST.
    for (inside, cidr) in [
        ("https://kubernetes.default.svc/", "10.96.0.0/12"),
        ("https://kubernetes.default.svc:443", "10.96.0.0/12"),
        ("https://kubernetes.default.svc.cluster.local", "10.96.0.0/12"),
        ("https://10.96.0.1/", "10.96.0.0/12"),
        ("https://10.96.0.1:443", "10.96.0.0/12"),
        ("https://[fd02::1]:443/", "fd02::/112"),
        ("https://[::ffff:10.96.0.1]/", "10.96.0.0/12"),
    ] {
        assert!(of(inside, cidr).unwrap_err().to_string().contains("--api-server"), "{inside}");
    }
}

#[test]
fn ovn_without_its_hybrid_overlay_is_refused() {
    for (network_type, is_hybrid, expected) in [
        (None, false, Some(false)),
        (None, true, Some(true)),
        (Some("OVNKubernetes"), true, Some(true)),
        (Some("OVNKubernetes"), false, None),
        (Some("OpenShiftSDN"), false, None),
        (Some("Calico"), false, Some(false)),
    ] {
        assert_eq!(has_overlay(network_type, is_hybrid).ok(), expected, "{network_type:?} {is_hybrid}");
    }
}

#[test]
fn an_overlay_without_node_networks_does_not_count() {
    let network = json!([{"cidr": "10.132.0.0/14", "hostPrefix": 23}]);
    for (config, expected) in [
        (json!({"hybridClusterNetwork": network}), true),
        (json!({"hybridOverlayVXLANPort": 9898}), true),
        (json!({"hybridClusterNetwork": [], "hybridOverlayVXLANPort": 9898}), false),
        (json!(null), false),
    ] {
        let operator = json!({"spec": {"defaultNetwork": {"ovnKubernetesConfig": {"hybridOverlayConfig": config}}}});
        assert_eq!(is_hybrid(&operator), expected, "{operator}");
    }
    assert!(!is_hybrid(&json!({"spec": {"defaultNetwork": {}}})));
}

#[test]
fn an_upgrade_of_openshift_is_detected() {
    let of = |status: &str| {
        let conditions = json!([{"type": "Available", "status": "True"}, {"type": "Progressing", "status": status}]);
        is_progressing(&json!({"status": {"conditions": conditions}}))
    };
    assert!(of("True") && !of("False") && !of("Unknown") && !is_progressing(&json!({})));
}

#[test]
fn a_cloud_controller_of_openshift_is_detected() {
    let of = |platform: Value| has_cloud_controller(&json!({"status": {"platformStatus": platform}}));
    let external = |state: &str| json!({"type": "External", "external": {"cloudControllerManager": {"state": state}}});
    for (platform, expected) in [
        (json!({"type": "AWS"}), true),
        (json!({"type": "VSphere"}), true),
        (json!({"type": "KubeVirt"}), true),
        (json!({"type": "BareMetal"}), false),
        (json!({"type": "None"}), false),
        (external("External"), true),
        (external("None"), false),
        (json!({"type": "External"}), false),
        (json!({}), false),
        (json!("AWS"), false),
    ] {
        assert_eq!(of(platform.clone()), expected, "{platform}");
    }
}

#[test]
fn an_old_api_server_is_reported() {
    assert_eq!(version_warning("1", "36"), None);
    assert_eq!(version_warning("1", "33+"), None);
    assert_eq!(version_warning("1", "32").unwrap().0, "ApiServerTooOld");
    assert_eq!(version_warning("1", "27+").unwrap().0, "ApiServerTooOld");
    for (minor, lacks) in [("29", true), ("29+", true), ("30", false), ("36", false), ("", false)] {
        assert_eq!(lacks_policies("1", minor).is_some(), lacks, "{minor}");
    }
    assert_eq!(version_warning("", "").unwrap().0, "ApiServerTooOld");
}
