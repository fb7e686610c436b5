//! Tests of the command `check takeover`.

use russh::keys::{Algorithm, PrivateKey, PublicKeyBase64 as _, key::safe_rng};
use serde_json::{Value, json};

use super::{
    super::{
        catalog,
        fake_cluster::{KEY, LOCK, NODES, POOLS, VERSION, WMCO_LOCK, faults, pem, secret, version},
    },
    *,
};
use crate::fake_api::FakeApi;
use api::services::{FileInfo, Service};
use wnp_core::node::username::encrypt_username;

const SERVICES: &str = "/api/v1/namespaces/ns/configmaps/windows-services-11.0.0-1b759bf";
const CERTIFICATE: &str = "/api/v1/namespaces/ns/secrets/windows-machine-config-operator-tls";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/ns/deployments/windows-machine-config-operator";
const SUBSCRIPTIONS: &str = "/apis/operators.coreos.com/v1alpha1/namespaces/ns/subscriptions";
const CSVS: &str = "/apis/operators.coreos.com/v1alpha1/namespaces/ns/clusterserviceversions";
const CONDITIONS: &str = "/apis/operators.coreos.com/v2/namespaces/ns/operatorconditions";
const INSTANCES: &str = "/apis/windowsmachineconfig.openshift.io/v1alpha1/windowsinstances";
const HOST_KEYS: &str = "/api/v1/namespaces/ns/configmaps/windows-ssh-host-keys";

fn host_key() -> String {
    PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).unwrap().public_key_base64()
}

fn node(labels: &Value, annotations: &Value) -> Value {
    let status = json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]});
    let node = json!({"metadata": {"name": "win-1", "labels": labels, "annotations": annotations}, "status": status});
    json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {}, "items": [node]})
}

fn list(kind: &str, api_version: &str, items: &[Value]) -> Value {
    let item = |v: &Value| {
        let mut item = v.clone();
        item["apiVersion"] = api_version.into();
        item["kind"] = kind.into();
        item
    };
    json!({"apiVersion": api_version, "kind": format!("{kind}List"), "metadata": {}, "items": items.iter().map(item).collect::<Vec<_>>()})
}

fn services(all: &[Service]) -> Value {
    let data = json!({"services": json!(all).to_string(), "files": "[]"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
}

/// Cluster with a node of WMCO, and the annotations of that Node.
struct TestCluster {
    api: FakeApi,
    annotations: Value,
}

impl TestCluster {
    /// Returns a cluster without obstacles.
    fn new() -> Self {
        let (api, pem) = (FakeApi::new(), pem());
        let annotations = json!({
            key::VERSION: "11.0.0-1b759bf",
            key::SSH_HOST_KEY: host_key(),
            key::USERNAME: encrypt_username("Administrator", pem.as_bytes()).unwrap(),
        });
        api.on("GET", NODES, 200, node(&json!({key::BYOH: "true"}), &annotations));
        api.on("GET", KEY, 200, secret(&[("private-key.pem", &pem)]));
        api.on("GET", CERTIFICATE, 200, secret(&[("tls.crt", "c"), ("tls.key", "k")]));
        api.on("GET", SERVICES, 200, services(&[kubelet()]));
        api.on("GET", VERSION, 200, version("36"));
        for path in [LOCK, WMCO_LOCK, DEPLOYMENT, INSTANCES, POOLS, HOST_KEYS] {
            api.gone(path);
        }
        // There is no OLM.
        for path in [SUBSCRIPTIONS, CSVS, CONDITIONS] {
            api.fail("GET", path, 404, "Failed to parse error data", "404 page not found", Value::Null);
        }
        Self { api, annotations }
    }

    /// Replaces an annotation of the Node, or removes it.
    fn annotate(&self, key: &str, value: Option<&str>) {
        let mut annotations = self.annotations.clone();
        let fields = annotations.as_object_mut().unwrap();
        fields.remove(key);
        fields.extend(value.map(|value| (key.to_owned(), json!(value))));
        self.api.instead(NODES, node(&json!({key::BYOH: "true"}), &annotations));
    }

    /// Adds a Subscription to a package.
    fn subscribe(&self, package: &str) {
        let subscription = json!({"metadata": {"name": "mine"}, "spec": {"name": package}});
        self.api.instead(SUBSCRIPTIONS, list("Subscription", "operators.coreos.com/v1alpha1", &[subscription]));
    }

    /// Adds a pool with these SSH settings.
    fn pool(&self, ssh: &Value) {
        let spec = json!({"inventory": {"configMapRef": {"name": "windows-instances"}}, "ssh": ssh});
        let pool = json!({"metadata": {"name": "windows-instances"}, "spec": spec});
        self.api.instead(POOLS, list("WindowsNodePool", "windowsmachineconfig.openshift.io/v1alpha1", &[pool]));
    }

    /// Adds a pool with a known host at this address.
    fn know(&self, address: &str) {
        self.pool(&json!({"hostKeyPolicy": "Strict", "knownHostsSecretRef": {"name": "known"}}));
        let line = format!("{address} ssh-ed25519 {}\n", host_key());
        self.api.instead("/api/v1/namespaces/ns/secrets/known", secret(&[("known_hosts", &line)]));
    }

    async fn rows(&self, targets: Read<Vec<Target>>) -> Vec<Value> {
        let mut facts = observe(&self.api.client(), "ns").await;
        facts.targets = targets;
        catalog::objects(&catalog::outcomes(catalog::Facts::Takeover(&facts)))
    }
}

fn kubelet() -> Service {
    Service { name: "kubelet".into(), path: r"C:\k\kubelet.exe".into(), ..Service::default() }
}

fn target() -> Vec<Target> {
    let services = Services { services: vec![kubelet()], ..Services::default() };
    vec![Target { services, image_sources: ImageSources::default() }]
}

#[tokio::test]
async fn only_settings_that_no_pool_keeps_are_lost() {
    let containerd = FileInfo { path: r"C:\k\containerd\containerd_conf.toml".into(), checksum: "1".into() };
    let of = |names_sandbox: bool, mirrors: &[&str]| {
        let mut all = target();
        all[0].services.files = vec![containerd.clone()];
        let without_mirrors = mirrors.iter().map(|m| (*m).to_owned()).collect();
        all[0].image_sources = ImageSources { names_sandbox, without_mirrors };
        all.remove(0)
    };
    for (targets, expected) in [
        (vec![of(false, &["quay.io/a"])], Some("\"sandbox-image,image-mirrors\"")),
        (vec![of(false, &[]), of(true, &["quay.io/a"])], None),
        (vec![of(false, &[]), of(false, &["quay.io/a"])], Some("\"sandbox-image\"")),
    ] {
        let rows = TestCluster::new().rows(Ok(targets)).await;
        let row = rows.iter().find(|r| r["check"] == "settings").unwrap();
        let message = row["message"].as_str().unwrap();
        assert!(expected.is_none_or(|words| message.contains(words)), "{message}");
        assert_eq!(row["result"] == "passed", expected.is_none(), "{row}");
    }
}

/// Name of a case, the check that reports a fault with its result and reason (empty if none may), and the change that causes the fault.
type Case = (&'static str, &'static str, fn(&TestCluster));

#[tokio::test]
async fn each_obstacle_to_a_takeover_is_found_by_its_check() {
    let cases: &[Case] = &[
        ("nothing", "", |_| {}),
        ("WMCO runs", "wmco warning AnotherOperator", |cluster| cluster.api.wmco_runs()),
        ("its Subscription is there", "package warning AnotherOperator", |cluster| {
            cluster.subscribe("windows-machine-config-operator");
        }),
        ("its Subscription in OKD is there", "package warning AnotherOperator", |cluster| {
            cluster.subscribe("community-windows-machine-config-operator");
        }),
        ("its ClusterServiceVersion is there", "package warning AnotherOperator", |cluster| {
            let csv = json!({"metadata": {"name": "windows-machine-config-operator.v11.0.0"}});
            cluster.api.instead(CSVS, list("ClusterServiceVersion", "operators.coreos.com/v1alpha1", &[csv]));
        }),
        ("its Deployment is there", "package warning AnotherOperator", |cluster| {
            let deployment = json!({"metadata": {"name": "windows-machine-config-operator"}, "spec": {"selector": {}, "template": {}}});
            cluster.api.instead(DEPLOYMENT, deployment);
        }),
        ("a user may not read it", "package warning ApiError", |cluster| cluster.api.forbidden(CSVS)),
        ("a node is being upgraded", "idle failed AnotherOperator", |cluster| {
            cluster.api.instead(NODES, node(&json!({key::BYOH: "true", key::UPGRADING: "true"}), &cluster.annotations));
        }),
        ("it says that it is busy", "idle failed AnotherOperator", |cluster| {
            let condition = json!({"type": "Upgradeable", "status": "False", "message": "busy"});
            let metadata = json!({"name": "windows-machine-config-operator.v11.0.0"});
            let object = json!({"metadata": metadata, "spec": {"conditions": [condition]}});
            cluster.api.instead(CONDITIONS, list("OperatorCondition", "operators.coreos.com/v2", &[object]));
        }),
        ("no private key", "key failed CredentialsUnavailable", |cluster| cluster.api.gone(KEY)),
        ("the Secret holds no key", "key failed CredentialsUnavailable", |cluster| {
            cluster.api.instead(KEY, secret(&[("private-key.pem", "x")]));
        }),
        ("the key is another one", "users warning CredentialsUnavailable", |cluster| {
            cluster.api.instead(KEY, secret(&[("private-key.pem", &pem())]));
        }),
        ("no node", "nodes warning SourceNotFound", |cluster| cluster.api.instead(NODES, list("Node", "v1", &[]))),
        ("nodes cannot be read", "nodes warning ApiError", |cluster| cluster.api.forbidden(NODES)),
        ("no version", "nodes warning Outdated", |cluster| cluster.annotate(key::VERSION, None)),
        ("a damaged host key", "nodes failed HostKeyInvalid", |cluster| {
            cluster.annotate(key::SSH_HOST_KEY, Some("x"));
        }),
        ("no services", "services warning VersionUnreadable", |cluster| cluster.api.gone(SERVICES)),
        ("damaged services", "services warning VersionUnreadable", |cluster| {
            cluster.api.instead(SERVICES, json!({"metadata": {"name": "m"}, "data": {"services": "x"}}));
        }),
        ("an old API server", "version warning ApiServerTooOld", |cluster| cluster.api.instead(VERSION, version("30"))),
        ("a service would be lost", "settings warning SettingsWouldBeLost", |cluster| {
            let csi = Service { name: "csi-proxy".into(), ..kubelet() };
            cluster.api.instead(SERVICES, services(&[kubelet(), csi]));
        }),
        ("no certificate", "exporter-certificate warning CertificateInvalid", |cluster| cluster.api.gone(CERTIFICATE)),
        ("no host key", "nodes failed HostUnproven", |cluster| cluster.annotate(key::SSH_HOST_KEY, None)),
        ("no host key, and WMCO has noted it", "", |cluster| {
            cluster.annotate(key::SSH_HOST_KEY, None);
            cluster.api.instead(HOST_KEYS, json!({"metadata": {"name": "m"}, "data": {"10.0.0.1": host_key()}}));
        }),
        ("no host key, and a pool trusts the first one", "", |cluster| {
            cluster.annotate(key::SSH_HOST_KEY, None);
            cluster.pool(&json!({"hostKeyPolicy": "TrustOnAdoption"}));
        }),
        ("no host key, and the entry in a pool declares it", "", |cluster| {
            cluster.annotate(key::SSH_HOST_KEY, None);
            let hosts = json!([{"name": "win-1", "address": "10.0.0.1", "hostKey": host_key()}]);
            let pool = json!({"metadata": {"name": "own"}, "spec": {"inventory": {"hosts": hosts}}});
            cluster.api.instead(POOLS, list("WindowsNodePool", "windowsmachineconfig.openshift.io/v1alpha1", &[pool]));
        }),
        ("no host key, and a pool has it among its known hosts", "", |cluster| {
            cluster.annotate(key::SSH_HOST_KEY, None);
            cluster.know("10.0.0.1");
        }),
        ("no host key, and the known hosts of a pool lack it", "nodes failed HostUnproven", |cluster| {
            cluster.annotate(key::SSH_HOST_KEY, None);
            cluster.know("10.0.0.9");
        }),
    ];
    for (about, expected, break_it) in cases {
        let cluster = TestCluster::new();
        break_it(&cluster);
        let rows = cluster.rows(Ok(target())).await;
        assert_eq!(faults(&rows), *expected, "{about}: {rows:#?}");
        for row in rows.iter().filter(|row| row["result"] != "passed") {
            assert!(row["message"].as_str().is_some_and(|message| message.len() > 20), "{about}: {row}");
            let own = ["AnotherOperator", "CredentialsUnavailable", "ApiServerTooOld", "SettingsWouldBeLost"];
            assert!(row["remedy"].is_string() || own.iter().any(|own| row["reason"] == *own), "{about}: {row}");
        }
        assert!(cluster.api.all_calls().iter().all(|call| call.method == "GET"), "{about}: something was written");
        assert_eq!(cluster.api.unexpected(), Vec::<String>::new(), "{about}");
    }
}
