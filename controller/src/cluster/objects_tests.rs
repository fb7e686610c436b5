//! Tests of the cluster facts of an operator that starts while objects are broken or missing.

use clap::Parser as _;
use k8s_openapi::{
    api::core::v1::{Node, NodeStatus, NodeSystemInfo},
    apimachinery::pkg::version::Info,
};
use kube::{Config, api::DeleteParams};
use serde_json::json;
use wnp_core::render::{Cluster, Found, Kept, Network, Platform, settled};

use super::*;
use crate::{
    cluster::{discover, kept},
    fake_api::FakeApi,
};

const NAMESPACE: &str = "operator";

/// Simulated cluster whose facts an operator detects.
struct World {
    api: FakeApi,
    args: Run,
}

impl World {
    /// Returns a cluster, OpenShift or not, with a value of each fact.
    fn new(is_openshift: bool) -> Self {
        let args =
            ["run", "--namespace", NAMESPACE, "--api-server", "https://api:6443", "--service-cidr", "172.30.0.0/16"];
        // No settings from the environment of the test.
        let args = Run { http_proxy: None, https_proxy: None, no_proxy: None, ..Run::parse_from(args) };
        let world = Self { api: FakeApi::with_objects(), args };
        world.version("34");
        let ca = certificate("ca").0;
        world.put("configmaps", NAMESPACE, "kube-root-ca.crt", json!({"data": {"ca.crt": ca}}));
        let authentication = "extension-apiserver-authentication";
        world.put("configmaps", "kube-system", authentication, json!({"data": {"client-ca-file": ca}}));
        // The fake API server supports server-side apply only to existing objects.
        world.put("secrets", NAMESPACE, api::names::KEPT_FACTS, json!({}));
        world.trust(&certificate("registry").0);
        world.exporter(Some(certificate("exporter")));
        world.mirrors("mirrors.yaml", "imageTagMirrors:\n- source: docker.io\n  mirrors: [mirror.example.com]\n");
        if is_openshift {
            world.put("infrastructures", "", "cluster", json!({"status": {"platformStatus": {"type": "None"}}}));
            world.proxy("http://proxy.example.com:3128");
            world.logins("openshift-config", r#"{"auths": {"quay.io": {"auth": "YTpodW50ZXIy"}}}"#);
        } else {
            world.logins(NAMESPACE, r#"{"auths": {"quay.io": {"auth": "YTpodW50ZXIy"}}}"#);
        }
        world
    }

    fn put(&self, plural: &str, namespace: &str, name: &str, mut object: Value) {
        object["metadata"] = json!({"namespace": namespace, "name": name});
        self.api.objects(|objects| objects.put(plural, object));
    }

    /// Sets the API server's version of Kubernetes.
    fn version(&self, minor: &str) {
        let info = Info { major: "1".into(), minor: minor.into(), ..Info::default() };
        self.api.forget("GET", "/version").on("GET", "/version", 200, json!(info));
    }

    fn secret(&self, namespace: &str, name: &str, data: &[(&str, &str)]) {
        let data: std::collections::BTreeMap<_, _> =
            data.iter().map(|(key, text)| (*key, k8s_openapi::ByteString(text.as_bytes().to_vec()))).collect();
        self.put("secrets", namespace, name, json!({ "data": data }));
    }

    fn trust(&self, pem: &str) {
        self.put("configmaps", NAMESPACE, TRUSTED_CA, json!({"data": {"ca-bundle.crt": pem}}));
    }

    fn mirrors(&self, key: &str, text: &str) {
        self.put("configmaps", NAMESPACE, "image-mirrors", json!({"data": {key: text}}));
    }

    fn exporter(&self, pair: Option<(String, String)>) {
        let (certificate, key) = pair.unwrap_or_default();
        self.secret(NAMESPACE, api::names::EXPORTER_CERTIFICATE, &[("tls.crt", &certificate), ("tls.key", &key)]);
    }

    fn logins(&self, namespace: &str, config: &str) {
        self.secret(namespace, "pull-secret", &[(".dockerconfigjson", config)]);
    }

    fn proxy(&self, url: &str) {
        self.put("proxies", "", "cluster", json!({"status": {"httpsProxy": url}}));
    }

    async fn delete_secret(&self, namespace: &str, name: &str) {
        let secrets: Api<Secret> = Api::namespaced(self.api.client(), namespace);
        secrets.delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn delete_map(&self, name: &str) {
        let maps: Api<ConfigMap> = Api::namespaced(self.api.client(), NAMESPACE);
        maps.delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn found(&self) -> Result<Found, ClusterError> {
        let config = Config::new(http::Uri::from_static("http://localhost"));
        Box::pin(discover(&self.api.client(), &config, &self.args)).await
    }

    /// Starts an operator, which has only the facts that the last operator stored, and returns the facts in force.
    async fn start(&self) -> Cluster {
        let before = kept::load(&self.api.client(), NAMESPACE).await.unwrap();
        let cluster = settled(before.as_ref(), self.found().await.unwrap());
        kept::store(&self.api.client(), NAMESPACE, &cluster, &mut String::new()).await;
        cluster
    }
}

fn certificate(name: &str) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

#[tokio::test]
async fn an_unusable_fact_keeps_its_earlier_value_over_restarts() {
    for (about, named) in [
        ("junk to trust", "ConfigMap operator/trusted-ca"),
        ("a proxy with a password", "Proxy/cluster"),
        ("junk for mirrors", "ConfigMap operator/image-mirrors"),
        ("no key with mirrors", "ConfigMap operator/image-mirrors"),
        ("junk for logins", "Secret openshift-config/pull-secret"),
        ("own junk for logins", "Secret operator/pull-secret"),
        ("no pull secret", "Secret openshift-config/pull-secret"),
        ("no certificate of windows_exporter", "Secret operator/windows-machine-config-operator-tls"),
        ("half a certificate of windows_exporter", "Secret operator/windows-machine-config-operator-tls"),
    ] {
        let world = World::new(true);
        let good = world.start().await;
        assert_eq!((&good.unusable, &good.held), (&Vec::new(), &Vec::new()), "{about}");
        assert!(good.trusted_ca.is_some() && good.exporter_tls.is_some() && good.proxy.https.is_some(), "{about}");
        assert!(!good.mirrors.is_empty() && good.pull_secret != wnp_core::render::PullSecret::default(), "{about}");
        match about {
            "junk to trust" => world.trust("-----BEGIN CERTIFICATE-----\njunk"),
            "a proxy with a password" => world.proxy("http://user:hunter2@proxy.example.com:3128"),
            "junk for mirrors" => world.mirrors("mirrors.yaml", "]"),
            "no key with mirrors" => world.mirrors("mirrors", "{}"),
            "junk for logins" => world.logins("openshift-config", "hunter2"),
            "own junk for logins" => world.logins(NAMESPACE, "hunter2"),
            "no pull secret" => world.delete_secret("openshift-config", "pull-secret").await,
            "no certificate of windows_exporter" => {
                world.delete_secret(NAMESPACE, api::names::EXPORTER_CERTIFICATE).await;
            }
            _ => world.exporter(Some(("-----BEGIN CERTIFICATE-----".into(), String::new()))),
        }
        // The result is the same at each start.
        for _ in 0..2 {
            let now = world.start().await;
            assert_eq!(Kept::of(&now), Kept::of(&good), "{about}");
            assert_eq!(now.held.len(), 1, "{about}: {:?}", now.held);
            assert!(now.held[0].contains(named) && !now.held[0].contains("hunter2"), "{about}: {:?}", now.held);
        }
    }
}

#[tokio::test]
async fn changed_and_removed_facts_are_followed() {
    let world = World::new(false);
    world.start().await;
    let (trusted, pair) = (certificate("new"), certificate("rotated"));
    world.trust(&trusted.0);
    world.exporter(Some(pair.clone()));
    let now = world.start().await;
    assert_eq!(now.trusted_ca.as_deref().map(str::trim), Some(trusted.0.trim()));
    assert_eq!(now.exporter_tls, Some(TlsPair { certificate: pair.0, key: pair.1 }));

    world.delete_map(TRUSTED_CA).await;
    world.delete_map("image-mirrors").await;
    world.delete_secret(NAMESPACE, "pull-secret").await;
    world.exporter(None);
    let now = world.start().await;
    let nothing = Cluster { kubernetes_minor: Some(34), ..Cluster::default() };
    assert_eq!((Kept::of(&now), &now.held), (Kept::of(&nothing), &Vec::new()));
    // On OpenShift, users remove the logins with an empty pull secret.
    let world = World::new(true);
    world.start().await;
    world.logins("openshift-config", r#"{"auths": {}}"#);
    let now = world.start().await;
    assert_eq!(now.held, [""; 0]);
    world.delete_secret("openshift-config", "pull-secret").await;
    assert_eq!(world.start().await.held, [""; 0], "the logins were removed before");
}

/// Hosts must not continue without TLS or logins because the API server has a fault.
#[tokio::test]
async fn a_failed_read_does_not_count_as_missing() {
    for name in [api::names::EXPORTER_CERTIFICATE, "pull-secret", api::names::KEPT_FACTS] {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/secrets/{name}");
        for code in [500, 403, 429] {
            let world = World::new(true);
            world.start().await;
            world.api.fail("GET", &path, code, "Fault", "not now", Value::Null);
            let failed = match name {
                api::names::KEPT_FACTS => kept::load(&world.api.client(), NAMESPACE).await.is_err(),
                _ => world.found().await.is_err(),
            };
            // The Role of an older release has no permission to read the stored facts.
            assert_eq!(failed, name != api::names::KEPT_FACTS || code != 403, "{name} {code}");
        }
    }
}

#[tokio::test]
async fn an_operator_that_starts_in_the_middle_of_an_upgrade_waits_for_its_end() {
    let progressing = |status: &str| json!({"status": {"conditions": [{"type": "Progressing", "status": status}]}});
    let node_info = NodeSystemInfo { kubelet_version: "v1.34.2+abc".into(), ..NodeSystemInfo::default() };
    let mut node = Node::default();
    node.metadata.name = Some("win-1".into());
    node.metadata.labels = Some([(api::names::key::POOL.into(), "p".into())].into());
    node.status = Some(NodeStatus { node_info: Some(node_info), ..NodeStatus::default() });
    for has_stored in [true, false] {
        let world = World::new(true);
        if has_stored {
            world.start().await;
        } else {
            // State after an upgrade from a release of the operator that stored nothing.
            world.api.objects(|objects| objects.put("nodes", json!(node)));
        }
        world.put("clusterversions", "", "version", progressing("True"));
        world.version("36");
        for _ in 0..2 {
            let now = world.start().await;
            assert_eq!((now.kubernetes_minor, now.next_minor), (Some(34), Some(36)), "{has_stored}");
        }
        world.put("clusterversions", "", "version", progressing("False"));
        let now = world.start().await;
        assert_eq!((now.kubernetes_minor, now.next_minor), (Some(36), None), "{has_stored}");
    }
}

/// Addresses on which nothing listens represent a control-plane node that restarts.
#[tokio::test]
async fn a_silent_api_server_keeps_nodes_from_a_newer_version() {
    let world = World::new(false);
    world.start().await;
    let slice = json!({
        "addressType": "IPv4", "ports": [{"name": "https", "port": 1}],
        "endpoints": [{"addresses": ["127.0.0.1"]}, {"addresses": ["127.0.0.2"]}],
    });
    world.put("endpointslices", "default", "kubernetes", slice);
    for (minor, follows, waits, silent) in
        [("36", 34, Some(36), &["127.0.0.1:1", "127.0.0.2:1"][..]), ("34", 34, None, &[]), ("33", 33, None, &[])]
    {
        world.version(minor);
        let now = world.start().await;
        assert_eq!((now.kubernetes_minor, now.next_minor), (Some(follows), waits), "{minor}");
        assert_eq!(now.silent_api_servers, silent, "{minor}");
    }
}

#[tokio::test]
async fn platform_and_vxlan_port_can_be_configured() {
    let mut world = World::new(false);
    let now = world.start().await;
    assert_eq!((now.platform, now.network), (Platform::None, Network::External));
    let arguments = ["run", "--platform", "gcp", "--network", "ovn-hybrid", "--vxlan-port", "9898"];
    let Run { platform, network, vxlan_port, .. } = Run::parse_from(arguments);
    world.args = Run { network, vxlan_port, platform, ..world.args };
    let now = world.start().await;
    assert_eq!((now.platform, now.network), (Platform::Gcp, Network::OvnHybrid { vxlan_port: Some(9898) }));
    world.args.network = None;
    let error = world.found().await.unwrap_err().to_string();
    assert!(error.contains("9898") && error.contains("--network ovn-hybrid"), "{error}");
    assert!(Run::try_parse_from(["run", "--vxlan-port", "0"]).is_err());
    // A configured value takes precedence over a detected one.
    let mut world = World::new(true);
    world.args.platform = platform;
    assert_eq!(world.start().await.platform, Platform::Gcp);
}

#[test]
fn the_proxy_of_openshift_is_read_from_its_status() {
    let url = Some("http://proxy.example.com:3128".to_owned());
    for (about, status, expected) in [
        ("none", json!({}), None),
        ("empty", json!({"httpProxy": "", "httpsProxy": "", "noProxy": ""}), None),
        ("no proxy alone", json!({"noProxy": ".svc"}), None),
        ("no text", json!({"httpProxy": 3128}), None),
        ("HTTPS", json!({"httpsProxy": url}), Some(Proxy { https: url.clone(), ..Proxy::default() })),
        (
            "all",
            json!({"httpProxy": url, "httpsProxy": url, "noProxy": ".svc"}),
            Some(Proxy { http: url.clone(), https: url.clone(), no: Some(".svc".into()) }),
        ),
    ] {
        assert_eq!(proxy_of_object(&json!({"status": status})), expected, "{about}");
        // The spec has the request of a user, not the state of the cluster.
        assert_eq!(proxy_of_object(&json!({"spec": status})), None, "{about}");
    }
}
