//! Tests of the command `check takeover`.

use base64::Engine as _;
use russh::keys::{Algorithm, PrivateKey, PublicKeyBase64 as _, key::safe_rng, ssh_key::LineEnding};
use serde_json::{Value, json};

use super::{super::catalog, *};
use crate::{fake_api::FakeApi, wmco::username::encrypt_username};
use api::services::{FileInfo, Service};

const NODES: &str = "/api/v1/nodes";
const LOCK: &str = "/api/v1/namespaces/ns/configmaps/windows-machine-config-operator-lock";
const WMCO_LOCK: &str =
    "/api/v1/namespaces/openshift-windows-machine-config-operator/configmaps/windows-machine-config-operator-lock";
const SERVICES: &str = "/api/v1/namespaces/ns/configmaps/windows-services-11.0.0-1b759bf";
const KEY: &str = "/api/v1/namespaces/ns/secrets/cloud-private-key";
const CERTIFICATE: &str = "/api/v1/namespaces/ns/secrets/windows-machine-config-operator-tls";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/ns/deployments/windows-machine-config-operator";
const SUBSCRIPTIONS: &str = "/apis/operators.coreos.com/v1alpha1/namespaces/ns/subscriptions";
const CSVS: &str = "/apis/operators.coreos.com/v1alpha1/namespaces/ns/clusterserviceversions";
const CONDITIONS: &str = "/apis/operators.coreos.com/v2/namespaces/ns/operatorconditions";
const INSTANCES: &str = "/apis/windowsmachineconfig.openshift.io/v1alpha1/windowsinstances";
const POOLS: &str = "/apis/windowsmachineconfig.openshift.io/v1alpha1/windowsnodepools";
const HOST_KEYS: &str = "/api/v1/namespaces/ns/configmaps/windows-ssh-host-keys";
const VERSION: &str = "/version";

fn pem() -> String {
    let key = PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).unwrap();
    key.to_openssh(LineEnding::LF).unwrap().to_string()
}

fn host_key() -> String {
    PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).unwrap().public_key_base64()
}

fn secret(data: &[(&str, &str)]) -> Value {
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let data: serde_json::Map<_, _> = data.iter().map(|(k, v)| ((*k).to_owned(), json!(encode(v)))).collect();
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": data})
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

fn version(minor: &str) -> Value {
    json!({"major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.0"), "gitCommit": "c", "gitTreeState": "clean", "buildDate": "d",
        "goVersion": "g", "compiler": "gc", "platform": "linux/amd64"})
}

struct Bed {
    api: FakeApi,
    annotations: Value,
}

impl Bed {
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
            api.fail("GET", path, 404, "NotFound", "there is none", Value::Null);
        }
        // There is no OLM.
        for path in [SUBSCRIPTIONS, CSVS, CONDITIONS] {
            api.fail("GET", path, 404, "Failed to parse error data", "404 page not found", Value::Null);
        }
        Self { api, annotations }
    }

    fn instead(&self, path: &str, body: Value) {
        self.api.forget("GET", path).on("GET", path, 200, body);
    }

    fn nodes(&self, labels: &Value, change: &[(&str, Value)]) {
        let mut annotations = self.annotations.clone();
        for (key, value) in change {
            match value {
                Value::Null => drop(annotations.as_object_mut().unwrap().remove(*key)),
                value => annotations[*key] = value.clone(),
            }
        }
        self.instead(NODES, node(labels, &annotations));
    }

    fn pool(&self, ssh: &Value) {
        let spec = json!({"inventory": {"configMapRef": {"name": "windows-instances"}}, "ssh": ssh});
        let pool = json!({"metadata": {"name": "windows-instances"}, "spec": spec});
        self.instead(POOLS, list("WindowsNodePool", "windowsmachineconfig.openshift.io/v1alpha1", &[pool]));
    }

    fn gone(&self, path: &str) {
        self.api.forget("GET", path).fail("GET", path, 404, "NotFound", "there is none", Value::Null);
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
async fn only_what_no_pool_keeps_is_lost() {
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
        let rows = Bed::new().rows(Ok(targets)).await;
        let row = rows.iter().find(|r| r["check"] == "settings").unwrap();
        let message = row["message"].as_str().unwrap();
        assert!(expected.is_none_or(|words| message.contains(words)), "{message}");
        assert_eq!(row["result"] == "passed", expected.is_none(), "{row}");
    }
}

/// Asserts that only the expected check reports a fault, and that nothing is written. With an empty expectation, no check may report one.
async fn finds(about: &str, expected: &str, break_it: impl FnOnce(&Bed)) {
    let bed = Bed::new();
    break_it(&bed);
    let rows = bed.rows(Ok(target())).await;
    let wrong: Vec<&Value> = rows.iter().filter(|r| r["result"] != "passed").collect();
    let word = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let found = wrong.iter().map(|row| ["check", "result", "reason"].map(|key| word(row, key)).join(" "));
    assert_eq!(found.collect::<Vec<_>>().join("; "), expected, "{about}: {rows:#?}");
    for row in wrong {
        assert!(word(row, "message").len() > 20, "{about}: {row}");
        let own = ["AnotherOperator", "CredentialsUnavailable", "ApiServerTooOld", "SettingsWouldBeLost"];
        assert!(row["remedy"].is_string() || own.contains(&&*word(row, "reason")), "{about}: {row}");
    }
    assert!(bed.api.all_calls().iter().all(|call| call.method == "GET"), "{about}: something was written");
    assert_eq!(bed.api.unexpected(), Vec::<String>::new(), "{about}");
}

#[tokio::test]
async fn wmco_and_what_starts_it_are_found() {
    finds("nothing", "", |_| {}).await;
    finds("WMCO runs", "wmco warning AnotherOperator", |bed| {
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "wmco-1", "uid": "1"}]);
        let name = "windows-machine-config-operator-lock";
        let metadata = json!({"name": name, "namespace": "ns", "ownerReferences": owner});
        bed.instead(LOCK, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}));
        let pod = json!({"metadata": {"name": "wmco-1", "uid": "1"}});
        bed.instead("/api/v1/namespaces/ns/pods", json!({"metadata": {}, "items": [pod]}));
    })
    .await;
    finds("its Subscription is there", "package warning AnotherOperator", |bed| {
        let subscription = json!({"metadata": {"name": "mine"}, "spec": {"name": "windows-machine-config-operator"}});
        bed.instead(SUBSCRIPTIONS, list("Subscription", "operators.coreos.com/v1alpha1", &[subscription]));
    })
    .await;
    finds("its Subscription in OKD is there", "package warning AnotherOperator", |bed| {
        let package = json!({"name": "community-windows-machine-config-operator"});
        let subscription = json!({"metadata": {"name": "mine"}, "spec": package});
        bed.instead(SUBSCRIPTIONS, list("Subscription", "operators.coreos.com/v1alpha1", &[subscription]));
    })
    .await;
    finds("its ClusterServiceVersion is there", "package warning AnotherOperator", |bed| {
        let csv = json!({"metadata": {"name": "windows-machine-config-operator.v11.0.0"}});
        bed.instead(CSVS, list("ClusterServiceVersion", "operators.coreos.com/v1alpha1", &[csv]));
    })
    .await;
    finds("its Deployment is there", "package warning AnotherOperator", |bed| {
        let deployment =
            json!({"metadata": {"name": "windows-machine-config-operator"}, "spec": {"selector": {}, "template": {}}});
        bed.instead(DEPLOYMENT, deployment);
    })
    .await;
    finds("a user may not read it", "package warning ApiError", |bed| {
        bed.api.forget("GET", CSVS).fail("GET", CSVS, 403, "Forbidden", "no", Value::Null);
    })
    .await;
    finds("a node is being upgraded", "idle failed AnotherOperator", |bed| {
        bed.nodes(&json!({key::BYOH: "true", key::UPGRADING: "true"}), &[]);
    })
    .await;
    finds("it says that it is busy", "idle failed AnotherOperator", |bed| {
        let condition = json!({"type": "Upgradeable", "status": "False", "message": "busy"});
        let metadata = json!({"name": "windows-machine-config-operator.v11.0.0"});
        let object = json!({"metadata": metadata, "spec": {"conditions": [condition]}});
        bed.instead(CONDITIONS, list("OperatorCondition", "operators.coreos.com/v2", &[object]));
    })
    .await;
}

#[tokio::test]
async fn what_the_operator_needs_and_lacks_is_found() {
    let byoh = || json!({key::BYOH: "true"});
    finds("no private key", "key failed CredentialsUnavailable", |bed| bed.gone(KEY)).await;
    finds("the Secret holds no key", "key failed CredentialsUnavailable", |bed| {
        bed.instead(KEY, secret(&[("private-key.pem", "x")]));
    })
    .await;
    finds("the key is another one", "users warning CredentialsUnavailable", |bed| {
        bed.instead(KEY, secret(&[("private-key.pem", &pem())]));
    })
    .await;
    finds("no node", "nodes warning SourceNotFound", |bed| bed.instead(NODES, list("Node", "v1", &[]))).await;
    finds("nodes cannot be read", "nodes warning ApiError", |bed| {
        bed.api.forget("GET", NODES).fail("GET", NODES, 403, "Forbidden", "no", Value::Null);
    })
    .await;
    finds("no version", "nodes warning Outdated", |bed| bed.nodes(&byoh(), &[(key::VERSION, Value::Null)])).await;
    finds("a damaged host key", "nodes failed HostKeyInvalid", |bed| {
        bed.nodes(&byoh(), &[(key::SSH_HOST_KEY, json!("x"))]);
    })
    .await;
    finds("no services", "services warning VersionUnreadable", |bed| bed.gone(SERVICES)).await;
    finds("damaged services", "services warning VersionUnreadable", |bed| {
        bed.instead(SERVICES, json!({"metadata": {"name": "m"}, "data": {"services": "x"}}));
    })
    .await;
    finds("an old API server", "version warning ApiServerTooOld", |bed| bed.instead(VERSION, version("30"))).await;
    finds("a service would be lost", "settings warning SettingsWouldBeLost", |bed| {
        let csi = Service { name: "csi-proxy".into(), ..kubelet() };
        bed.instead(SERVICES, services(&[kubelet(), csi]));
    })
    .await;
    finds("no certificate", "exporter-certificate warning CertificateInvalid", |bed| bed.gone(CERTIFICATE)).await;
}

#[tokio::test]
async fn a_host_key_is_found_wherever_it_is_on_record() {
    let byoh = || json!({key::BYOH: "true"});
    finds("no host key", "nodes failed HostUnproven", |bed| bed.nodes(&byoh(), &[(key::SSH_HOST_KEY, Value::Null)]))
        .await;
    finds("no host key, and WMCO has noted it", "", |bed| {
        bed.nodes(&byoh(), &[(key::SSH_HOST_KEY, Value::Null)]);
        bed.instead(HOST_KEYS, json!({"metadata": {"name": "m"}, "data": {"10.0.0.1": host_key()}}));
    })
    .await;
    finds("no host key, and a pool trusts the first one", "", |bed| {
        bed.nodes(&byoh(), &[(key::SSH_HOST_KEY, Value::Null)]);
        bed.pool(&json!({"hostKeyPolicy": "TrustOnAdoption"}));
    })
    .await;
    finds("no host key, and a pool has it among its known hosts", "", |bed| {
        bed.nodes(&byoh(), &[(key::SSH_HOST_KEY, Value::Null)]);
        bed.pool(&json!({"hostKeyPolicy": "Strict", "knownHostsSecretRef": {"name": "known"}}));
        let line = format!("10.0.0.1 ssh-ed25519 {}\n", host_key());
        bed.instead("/api/v1/namespaces/ns/secrets/known", secret(&[("known_hosts", &line)]));
    })
    .await;
    finds("no host key, and the known hosts of a pool lack it", "nodes failed HostUnproven", |bed| {
        bed.nodes(&byoh(), &[(key::SSH_HOST_KEY, Value::Null)]);
        bed.pool(&json!({"hostKeyPolicy": "Strict", "knownHostsSecretRef": {"name": "known"}}));
        let line = format!("10.0.0.9 ssh-ed25519 {}\n", host_key());
        bed.instead("/api/v1/namespaces/ns/secrets/known", secret(&[("known_hosts", &line)]));
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_rendered_is_said_and_a_missing_payload_is_no_failure() {
    let bed = Bed::new();
    let there = tempfile::tempdir().unwrap();
    for (path, result, reason) in
        [(there.path(), "failed", "PayloadInvalid"), (Path::new("/nowhere"), "warning", "PayloadInvalid")]
    {
        let error = ReleaseError::from(remote::payload::Payload::open(path).map(|_| ()).unwrap_err());
        let rows = bed.rows(Err(Finding::of_release(&error, path))).await;
        let row = rows.iter().find(|r| r["check"] == "settings").unwrap();
        assert_eq!((row["result"].as_str(), row["reason"].as_str()), (Some(result), Some(reason)));
    }
}
