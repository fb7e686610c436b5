//! Tests of the command `check`.

use std::sync::Arc;

use base64::Engine as _;
use russh::keys::{Algorithm, PrivateKey, key::safe_rng, ssh_key::LineEnding};
use serde_json::{Value, json};

use super::*;
use crate::{
    commands::check::{before, catalog},
    fake_api::FakeApi,
    runtime::operator_namespace,
};

const VERSION: &str = "/version";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const POOL_CRD: &str = "windowsnodepools.windowsmachineconfig.openshift.io";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/windows-node-pools";
const LOCK: &str = "/api/v1/namespaces/ns/configmaps/windows-machine-config-operator-lock";
const WMCO_LOCK: &str =
    "/api/v1/namespaces/openshift-windows-machine-config-operator/configmaps/windows-machine-config-operator-lock";
const KEY: &str = "/api/v1/namespaces/ns/secrets/cloud-private-key";
const POOLS: &str = "/apis/windowsmachineconfig.openshift.io/v1alpha1/windowsnodepools";
const NODES: &str = "/api/v1/nodes";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const NETWORK: &str = "/apis/config.openshift.io/v1/networks/cluster";
const INFRASTRUCTURE: &str = "/apis/config.openshift.io/v1/infrastructures/cluster";
const NETWORK_OPERATOR: &str = "/apis/operator.openshift.io/v1/networks/cluster";

fn version(minor: &str) -> Value {
    json!({"major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.0"), "gitCommit": "c", "gitTreeState": "clean", "buildDate": "d",
        "goVersion": "g", "compiler": "gc", "platform": "linux/amd64"})
}

fn lease(renewed: Timestamp, holder: &str) -> Value {
    let spec = json!({"holderIdentity": holder, "renewTime": format!("{renewed:.6}"), "leaseDurationSeconds": 15});
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "windows-node-pools"}, "spec": spec})
}

fn pools(ready: &[&str]) -> Value {
    let pool = |(n, ready): (usize, &&str)| {
        let condition = |type_, status| json!({"type": type_, "status": status, "reason": "X", "message": "", "lastTransitionTime": "2027-01-01T00:00:00Z"});
        json!({"apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsNodePool", "metadata": {"name": format!("p-{n}")},
            "spec": {"inventory": {}}, "status": {"conditions": [condition("Ready", *ready), condition("Updated", "True")]}})
    };
    let items: Vec<Value> = ready.iter().enumerate().map(pool).collect();
    json!({"apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsNodePoolList", "metadata": {}, "items": items})
}

fn nodes(kubelets: &[&str]) -> Value {
    let node = |(n, kubelet): (usize, &&str)| {
        json!({"metadata": {"name": format!("win-{n}")}, "status": {"nodeInfo": {
        "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": kubelet,
        "machineID": "", "operatingSystem": "windows", "osImage": "", "systemUUID": ""}}})
    };
    json!({"metadata": {}, "items": kubelets.iter().enumerate().map(node).collect::<Vec<_>>()})
}

fn private_key() -> Value {
    let key = PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).unwrap();
    let pem = base64::engine::general_purpose::STANDARD.encode(&**key.to_openssh(LineEnding::LF).unwrap());
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"private-key.pem": pem}})
}

/// Returns the rows that `-o json` prints, and asserts that each links to its section in the reference.
fn rows(facts: catalog::Facts<'_>) -> Vec<Value> {
    let rows = catalog::objects(&catalog::outcomes(facts));
    for row in &rows {
        assert_eq!(
            row["link"],
            format!("docs/reference/conditions.md#check-{}", row["check"].as_str().unwrap()).as_str()
        );
    }
    rows
}

struct Bed(FakeApi);

impl Bed {
    /// Returns a cluster without a fault.
    fn new() -> Self {
        let bed = Self(FakeApi::new());
        let api = &bed.0;
        api.on("GET", VERSION, 200, version("36"));
        for crd in api::crds() {
            let mut crd = json!(crd);
            crd["status"] =
                json!({"storedVersions": ["v1alpha1"], "conditions": [], "acceptedNames": crd["spec"]["names"]});
            api.on("GET", &format!("{CRDS}/{}", crd["metadata"]["name"].as_str().unwrap()), 200, crd);
        }
        api.on("GET", LEASE, 200, lease(Timestamp::now(), "pod-1"));
        api.on("GET", KEY, 200, private_key());
        api.on("GET", POOLS, 200, pools(&["True", "True"]));
        api.on("GET", NODES, 200, nodes(&["v1.36.2", "v1.36.0"]));
        let user = wicd_policy::default_user("ns");
        for guard in wicd_policy::shipped("ns").iter().chain(&wicd_policy::others("ns", &user)) {
            bed.listed(POLICIES, &guard.name, &[json!(guard.policy)]);
            bed.listed(BINDINGS, &guard.name, &[json!(guard.binding)]);
        }
        api.on("POST", REVIEWS, 201, json!({"spec": {}, "status": {"allowed": true}}));
        let me = json!({"userInfo": {"username": "system:serviceaccount:ns:windows-node-pools"}});
        api.on("POST", WHO, 201, json!({"metadata": {}, "status": me}));
        for path in [LOCK, WMCO_LOCK, NETWORK, NETWORK_OPERATOR, INFRASTRUCTURE] {
            bed.gone(path);
        }
        bed
    }

    fn instead(&self, path: &str, body: Value) {
        self.0.forget("GET", path).on("GET", path, 200, body);
    }

    fn gone(&self, path: &str) {
        self.0.forget("GET", path).fail("GET", path, 404, "NotFound", "there is none", Value::Null);
    }

    /// Sets the answer to a list request by name: the operator may list policies by name, but not get them.
    fn listed(&self, path: &str, name: &str, items: &[Value]) {
        let path = format!("{path}?fieldSelector=metadata.name={name}");
        self.0.forget("GET", &path).on("GET", &path, 200, json!({"metadata": {}, "items": items}));
    }

    fn crd(&self, change: impl Fn(&mut Value)) {
        let path = format!("{CRDS}/{POOL_CRD}");
        let mut crd = json!(api::crds().into_iter().find(|crd| crd.name_any() == POOL_CRD));
        crd["status"] =
            json!({"storedVersions": ["v1alpha1"], "conditions": [], "acceptedNames": crd["spec"]["names"]});
        change(&mut crd);
        self.instead(&path, crd);
    }

    fn run() -> Run {
        let cli = <crate::args::Cli as clap::Parser>::try_parse_from(["x", "check", "--namespace", "ns"]);
        match cli.unwrap().command {
            crate::args::Command::Check { installation, .. } => installation.run,
            _ => unreachable!(),
        }
    }

    async fn rows(&self) -> Vec<Value> {
        let home = operator_namespace::find(&self.0.client(), "ns").await;
        rows(catalog::Facts::Installation(&observe(&self.0.client(), home).await))
    }

    async fn before(&self) -> Vec<Value> {
        rows(catalog::Facts::Before(&before::observe(&self.0.client(), &Self::run()).await))
    }
}

fn wmco_runs(bed: &Bed) {
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "wmco-1", "uid": "1"}]);
    bed.instead(
        LOCK,
        json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "windows-machine-config-operator-lock", "namespace": "ns", "ownerReferences": owner}}),
    );
    let pod = json!({"metadata": {"name": "wmco-1", "uid": "1"}});
    bed.instead("/api/v1/namespaces/ns/pods", json!({"metadata": {}, "items": [pod]}));
}

/// Asserts that only the expected check reports a fault, with this result and reason. With an empty expectation, no check may report one.
fn assert_only(about: &str, rows: &[Value], expected: &str) {
    let word = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let wrong = rows.iter().filter(|row| row["result"] != "passed");
    let found = wrong.map(|row| ["check", "result", "reason"].map(|key| word(row, key)).join(" "));
    assert_eq!(found.collect::<Vec<_>>().join("; "), expected, "{about}: {rows:#?}");
}

/// Asserts which check reports a fault of an installation.
async fn finds(about: &str, expected: &str, break_it: impl FnOnce(&Bed)) {
    let bed = Bed::new();
    break_it(&bed);
    assert_only(about, &bed.rows().await, expected);
    assert_eq!(bed.0.unexpected(), Vec::<String>::new(), "{about}");
    let is_harmless = bed.0.all_calls().iter().all(|call| call.method == "GET" || call.path == WHO);
    assert!(is_harmless, "{about}: it changes something");
}

/// Asserts which check reports a fault before an installation.
async fn finds_before(about: &str, expected: &str, break_it: impl FnOnce(&Bed)) {
    let bed = Bed::new();
    break_it(&bed);
    assert_only(about, &bed.before().await, expected);
    assert_eq!(bed.0.unexpected(), Vec::<String>::new(), "{about}");
}

#[tokio::test]
async fn each_fault_of_an_installation_is_found_by_its_check() {
    let long_ago = Timestamp::now() - jiff::SignedDuration::from_mins(10);
    finds("nothing", "", |_| {}).await;
    finds("an old API server", "version warning ApiServerTooOld", |bed| bed.instead(VERSION, version("30"))).await;
    finds("no CRD", "crds failed CrdInvalid", |bed| bed.gone(&format!("{CRDS}/{POOL_CRD}"))).await;
    finds("objects of a version of the future", "crds failed CrdInvalid", |bed| {
        bed.crd(|crd| crd["status"]["storedVersions"] = json!(["v1alpha1", "v2"]));
    })
    .await;
    finds("a version that is not served", "crds failed CrdInvalid", |bed| {
        bed.crd(|crd| crd["spec"]["versions"][0]["served"] = false.into());
    })
    .await;
    finds("a CRD without a property of this release", "crds failed CrdInvalid", |bed| {
        bed.crd(|crd| {
            let properties = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/rollout/properties";
            let rollout = crd.pointer_mut(properties).unwrap();
            rollout.as_object_mut().unwrap().remove("pausedUntil").unwrap();
        });
    })
    .await;
    finds("no Lease", "leader failed NoLeader", |bed| bed.gone(LEASE)).await;
    finds("a Lease that was given back", "leader failed NoLeader", |bed| {
        bed.instead(LEASE, lease(Timestamp::now(), ""));
    })
    .await;
    finds("a dead leader", "leader failed NoLeader", |bed| bed.instead(LEASE, lease(long_ago, "pod-1"))).await;
    finds("WMCO", "other-operator failed AnotherOperator", wmco_runs).await;
    finds("no policy that holds hosts", "policies failed PolicyMissing", |bed| {
        bed.listed(POLICIES, "windows-node-pools-wicd-nodes", &[]);
    })
    .await;
    finds("a policy that only warns", "policies warning PoliciesMissing", |bed| {
        let user = wicd_policy::default_user("ns");
        let guard = wicd_policy::others("ns", &user).remove(0);
        let mut binding = json!(guard.binding);
        binding["spec"]["validationActions"] = json!(["Warn"]);
        bed.listed(BINDINGS, &guard.name, &[binding]);
    })
    .await;
    finds("no key", "keys failed CredentialsUnavailable", |bed| bed.gone(KEY)).await;
    finds("a pool that is not Ready", "pools warning PoolsNotReady", |bed| {
        bed.instead(POOLS, pools(&["True", "False"]));
    })
    .await;
    finds("a pool that is being changed", "upgrade warning Outdated", |bed| {
        let mut pools = pools(&["True", "True"]);
        pools["items"][1]["status"]["conditions"][1]["status"] = "False".into();
        bed.instead(POOLS, pools);
    })
    .await;
    finds("a node of an older version", "upgrade warning KubeletVersionSkew", |bed| {
        bed.instead(NODES, nodes(&["v1.36.2", "v1.34.9"]));
    })
    .await;
    finds("a pool that only plans", "", |bed| {
        let mut pools = pools(&["True"]);
        pools["items"][0]["spec"]["mode"] = "Plan".into();
        pools["items"][0]["status"]["conditions"][1]["status"] = "False".into();
        bed.instead(POOLS, pools);
    })
    .await;
    finds("no pools", "", |bed| bed.instead(POOLS, pools(&[]))).await;
    finds("a managed API server, and a node that has not reported", "", |bed| {
        bed.instead(VERSION, version("36+"));
        bed.instead(NODES, json!({"metadata": {}, "items": [{"metadata": {"name": "win-0"}}]}));
    })
    .await;
    finds("nodes that cannot be listed", "upgrade warning ApiError", |bed| {
        bed.0.forget("GET", NODES).fail("GET", NODES, 403, "Forbidden", "no", Value::Null);
    })
    .await;
    let bed = Bed::new();
    bed.instead(NODES, nodes(&["v1.35.1", "v1.34.9"]));
    let row = bed.rows().await.into_iter().find(|row| row["check"] == "upgrade").unwrap();
    let message = "nodes older than the API server, which is of version 1.36: win-0 (v1.35.1), win-1 (v1.34.9)";
    assert_eq!(row["message"], message);
    assert!(row["remedy"].as_str().unwrap().contains("may go up to 1.37"), "{row}");
}

#[tokio::test]
async fn what_is_in_the_way_of_an_installation_is_found_by_its_check() {
    finds_before("nothing", "", |_| {}).await;
    finds_before("no CRD yet", "", |bed| bed.gone(&format!("{CRDS}/{POOL_CRD}"))).await;
    finds_before("a CRD of another operator", "crds failed CrdInvalid", |bed| {
        bed.crd(|crd| crd["spec"]["scope"] = "Namespaced".into());
    })
    .await;
    finds_before("an older release", "", |bed| bed.crd(|crd| crd["spec"]["versions"][0]["served"] = false.into()))
        .await;
    finds_before("few rights", "rights failed RightsMissing", |bed| {
        bed.0.forget("POST", REVIEWS).on("POST", REVIEWS, 201, json!({"spec": {}, "status": {"allowed": false}}));
    })
    .await;
    finds_before("no right in a namespace", "rights failed RightsMissing", |bed| {
        let answer = |allowed: bool| json!({"spec": {}, "status": {"allowed": allowed}});
        bed.0.forget("POST", REVIEWS);
        for _ in 0..5 {
            bed.0.on("POST", REVIEWS, 201, answer(true));
        }
        bed.0.on("POST", REVIEWS, 201, answer(false)).on("POST", REVIEWS, 201, answer(true));
    })
    .await;
    finds_before("an untested API server", "version warning ApiServerTooOld", |bed| {
        bed.instead(VERSION, version("30"));
    })
    .await;
    finds_before("an API server without policies", "version failed ApiServerTooOld", |bed| {
        bed.instead(VERSION, version("29"));
    })
    .await;
    finds_before("WMCO, beside which the operator waits", "other-operator warning AnotherOperator", wmco_runs).await;
    finds_before("OVN without a hybrid overlay", "network failed ClusterUnknown", |bed| {
        let network = json!({"apiVersion": "config.openshift.io/v1", "kind": "Network", "metadata": {"name": "cluster"},
            "status": {"networkType": "OVNKubernetes"}});
        bed.instead(NETWORK, network);
    })
    .await;
}

#[tokio::test]
async fn a_payload_that_cannot_be_given_to_hosts_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let there = dir.path().join("payload");
    std::fs::create_dir(&there).unwrap();
    let bed = Bed::new();
    let mut facts = observe(&bed.0.client(), operator_namespace::find(&bed.0.client(), "ns").await).await;
    for (about, path, expected) in [
        ("there is none, as on a laptop", dir.path().join("none"), "payload warning PayloadInvalid"),
        ("it is not whole", there, "payload failed PayloadInvalid"),
    ] {
        let error = ReleaseError::from(remote::payload::Payload::open(&path).map(|_| ()).unwrap_err());
        let mut run = Bed::run();
        run.payload = path;
        facts.observe_release(Err(&error), &run).await;
        let rows = rows(catalog::Facts::Installation(&facts));
        assert_only(about, &rows, expected);
        assert!(rows.iter().all(|row| row["check"] != "certificate"), "{about}: there is no URL to ask");
    }
}

#[tokio::test]
async fn a_clock_that_differs_is_found() {
    let bed = Bed::new();
    let mut facts = observe(&bed.0.client(), operator_namespace::find(&bed.0.client(), "ns").await).await;
    facts.here = "2027-01-01T00:00:00Z".parse().unwrap();
    for (server, reason) in [
        (Some("2027-01-01T00:00:05Z"), None),
        (Some("2027-01-01T00:00:11Z"), Some("ClockSkew")),
        (Some("2026-12-31T23:00:00Z"), Some("ClockSkew")),
        (None, Some("ApiError")),
    ] {
        facts.server = server.map(|server| server.parse().unwrap());
        let row = clock(&facts).object("clock", "");
        assert_eq!(row["reason"].as_str(), reason, "{row}");
    }
}

#[test]
fn a_fault_of_tls_is_found_below_errors_of_input_and_output() {
    let tls = rustls::Error::InvalidCertificate(rustls::CertificateError::NotValidForName);
    let io = std::io::Error::other(std::io::Error::other(tls.clone()));
    assert_eq!(of_tls(&io), Some(&tls));
    assert_eq!(of_tls(&std::io::Error::other("refused")), None);
}

/// Starts a TLS server with a certificate for a name. Returns its port and the certificate.
async fn server(name: &str) -> (u16, String) {
    let pair = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(pair.signing_key.serialize_der()).unwrap();
    let config =
        rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(vec![pair.cert.der().clone()], key);
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config.unwrap()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                use tokio::io::AsyncWriteExt as _;
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                // Unknown clients are refused.
                let _ = stream.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}").await;
                let _ = stream.shutdown().await;
            });
        }
    });
    (port, pair.cert.pem())
}

#[tokio::test]
async fn a_certificate_is_checked_as_hosts_check_it() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (good, ca) = server("127.0.0.1").await;
    let (other, ca_of_other) = server("api.example.com").await;
    for (about, port, ca, reason) in [
        ("one that is trusted", good, &ca, None),
        ("one of another authority", good, &ca_of_other, Some("CertificateInvalid")),
        ("one for another name", other, &ca_of_other, Some("CertificateInvalid")),
        ("no server", 9, &ca, Some("ApiServerUnreachable")),
    ] {
        let found = certificate_fault(&format!("https://127.0.0.1:{port}"), ca).await;
        assert_eq!(found.as_ref().map(|finding| finding.reason().as_str()), reason, "{about}: {found:?}");
    }
}
