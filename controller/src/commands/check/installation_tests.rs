//! Tests of the command `check`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::{
    commands::check::{
        before, catalog,
        fake_cluster::{KEY, LOCK, NODES, POOLS, VERSION, WMCO_LOCK, faults, pem, secret, version},
    },
    fake_api::FakeApi,
    runtime::operator_namespace,
};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const POOL_CRD: &str = "windowsnodepools.windowsmachineconfig.openshift.io";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/windows-node-pools";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const NETWORK: &str = "/apis/config.openshift.io/v1/networks/cluster";
const INFRASTRUCTURE: &str = "/apis/config.openshift.io/v1/infrastructures/cluster";
const NETWORK_OPERATOR: &str = "/apis/operator.openshift.io/v1/networks/cluster";

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

/// Returns a CRD with the status that the API server gives it.
fn established(crd: &CustomResourceDefinition) -> Value {
    let mut crd = json!(crd);
    crd["status"] = json!({"storedVersions": ["v1alpha1"], "conditions": [], "acceptedNames": crd["spec"]["names"]});
    crd
}

/// Returns the API server of a cluster without a fault.
fn healthy() -> FakeApi {
    let api = FakeApi::new();
    api.on("GET", VERSION, 200, version("36"));
    for crd in api::crds() {
        api.on("GET", &format!("{CRDS}/{}", crd.name_any()), 200, established(&crd));
    }
    api.on("GET", LEASE, 200, lease(Timestamp::now(), "pod-1"));
    api.on("GET", KEY, 200, secret(&[("private-key.pem", &pem())]));
    api.on("GET", POOLS, 200, pools(&["True", "True"]));
    api.on("GET", NODES, 200, nodes(&["v1.36.2", "v1.36.0"]));
    let user = wicd_policy::default_user("ns");
    for guard in wicd_policy::shipped("ns").iter().chain(&wicd_policy::others("ns", &user)) {
        list_one(&api, POLICIES, &guard.name, &[json!(guard.policy)]);
        list_one(&api, BINDINGS, &guard.name, &[json!(guard.binding)]);
    }
    api.on("POST", REVIEWS, 201, json!({"spec": {}, "status": {"allowed": true}}));
    let me = json!({"userInfo": {"username": "system:serviceaccount:ns:windows-node-pools"}});
    api.on("POST", WHO, 201, json!({"metadata": {}, "status": me}));
    for path in [LOCK, WMCO_LOCK, NETWORK, NETWORK_OPERATOR, INFRASTRUCTURE] {
        api.gone(path);
    }
    api
}

/// Sets the answer to a list request by name: the operator may list policies by name, but not get them.
fn list_one(api: &FakeApi, path: &str, name: &str, items: &[Value]) {
    let path = format!("{path}?fieldSelector=metadata.name={name}");
    api.instead(&path, json!({"metadata": {}, "items": items}));
}

/// Changes the CRD of pools.
fn change_crd(api: &FakeApi, change: impl Fn(&mut Value)) {
    let mut crd = established(api::crds().iter().find(|crd| crd.name_any() == POOL_CRD).unwrap());
    change(&mut crd);
    api.instead(&format!("{CRDS}/{POOL_CRD}"), crd);
}

/// Returns the settings of the operator.
fn run() -> Run {
    let cli = <crate::args::Cli as clap::Parser>::try_parse_from(["x", "check", "--namespace", "ns"]);
    match cli.unwrap().command {
        crate::args::Command::Check { installation, .. } => installation.run,
        _ => unreachable!(),
    }
}

/// Reads the facts about the installation.
async fn observed(api: &FakeApi) -> Facts {
    observe(&api.client(), operator_namespace::find(&api.client(), "ns").await).await
}

async fn installation_rows(api: &FakeApi) -> Vec<Value> {
    rows(catalog::Facts::Installation(&observed(api).await))
}

/// Name of a case, the check that reports a fault with its result and reason (empty if none may), and the change that causes the fault.
type Case = (&'static str, &'static str, fn(&FakeApi));

#[tokio::test]
async fn each_fault_of_an_installation_is_found_by_its_check() {
    let cases: &[Case] = &[
        ("nothing", "", |_| {}),
        ("an old API server", "version warning ApiServerTooOld", |api| api.instead(VERSION, version("30"))),
        ("no CRD", "crds failed CrdInvalid", |api| api.gone(&format!("{CRDS}/{POOL_CRD}"))),
        ("objects of a version of the future", "crds failed CrdInvalid", |api| {
            change_crd(api, |crd| crd["status"]["storedVersions"] = json!(["v1alpha1", "v2"]));
        }),
        ("a version that is not served", "crds failed CrdInvalid", |api| {
            change_crd(api, |crd| crd["spec"]["versions"][0]["served"] = false.into());
        }),
        ("a CRD without a property of this release", "crds failed CrdInvalid", |api| {
            change_crd(api, |crd| {
                let properties =
                    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/rollout/properties";
                let rollout = crd.pointer_mut(properties).unwrap();
                rollout.as_object_mut().unwrap().remove("pausedUntil").unwrap();
            });
        }),
        ("no Lease", "leader failed NoLeader", |api| api.gone(LEASE)),
        ("a Lease that was given back", "leader failed NoLeader", |api| {
            api.instead(LEASE, lease(Timestamp::now(), ""));
        }),
        ("a dead leader", "leader failed NoLeader", |api| {
            api.instead(LEASE, lease(Timestamp::now() - jiff::SignedDuration::from_mins(10), "pod-1"));
        }),
        ("WMCO", "other-operator failed AnotherOperator", |api| api.wmco_runs()),
        ("no policy that holds hosts", "policies failed PolicyMissing", |api| {
            list_one(api, POLICIES, "windows-node-pools-wicd-nodes", &[]);
        }),
        ("a policy that only warns", "policies warning PoliciesMissing", |api| {
            let user = wicd_policy::default_user("ns");
            let guard = wicd_policy::others("ns", &user).remove(0);
            let mut binding = json!(guard.binding);
            binding["spec"]["validationActions"] = json!(["Warn"]);
            list_one(api, BINDINGS, &guard.name, &[binding]);
        }),
        ("no key", "keys failed CredentialsUnavailable", |api| api.gone(KEY)),
        ("a pool that is not Ready", "pools warning PoolsNotReady", |api| {
            api.instead(POOLS, pools(&["True", "False"]));
        }),
        ("a pool that is being changed", "upgrade warning Outdated", |api| {
            let mut pools = pools(&["True", "True"]);
            pools["items"][1]["status"]["conditions"][1]["status"] = "False".into();
            api.instead(POOLS, pools);
        }),
        ("a node of an older version", "upgrade warning KubeletVersionSkew", |api| {
            api.instead(NODES, nodes(&["v1.36.2", "v1.34.9"]));
        }),
        ("a pool that only plans", "", |api| {
            let mut pools = pools(&["True"]);
            pools["items"][0]["spec"]["mode"] = "Plan".into();
            pools["items"][0]["status"]["conditions"][1]["status"] = "False".into();
            api.instead(POOLS, pools);
        }),
        ("no pools", "", |api| api.instead(POOLS, pools(&[]))),
        ("a managed API server, and a node that has not reported", "", |api| {
            api.instead(VERSION, version("36+"));
            api.instead(NODES, json!({"metadata": {}, "items": [{"metadata": {"name": "win-0"}}]}));
        }),
        ("nodes that cannot be listed", "upgrade warning ApiError", |api| api.forbidden(NODES)),
    ];
    for (about, expected, break_it) in cases {
        let api = healthy();
        break_it(&api);
        let rows = installation_rows(&api).await;
        assert_eq!(faults(&rows), *expected, "{about}: {rows:#?}");
        assert_eq!(api.unexpected(), Vec::<String>::new(), "{about}");
        let is_harmless = api.all_calls().iter().all(|call| call.method == "GET" || call.path == WHO);
        assert!(is_harmless, "{about}: it changes something");
    }
    let api = healthy();
    api.instead(NODES, nodes(&["v1.35.1", "v1.34.9"]));
    let row = installation_rows(&api).await.into_iter().find(|row| row["check"] == "upgrade").unwrap();
    let message = "nodes older than the API server, which is of version 1.36: win-0 (v1.35.1), win-1 (v1.34.9)";
    assert_eq!(row["message"], message);
    assert!(row["remedy"].as_str().unwrap().contains("may go up to 1.37"), "{row}");
}

#[tokio::test]
async fn each_obstacle_to_an_installation_is_found_by_its_check() {
    let cases: &[Case] = &[
        ("nothing", "", |_| {}),
        ("no CRD yet", "", |api| api.gone(&format!("{CRDS}/{POOL_CRD}"))),
        ("a CRD of another operator", "crds failed CrdInvalid", |api| {
            change_crd(api, |crd| crd["spec"]["scope"] = "Namespaced".into());
        }),
        ("an older release", "", |api| change_crd(api, |crd| crd["spec"]["versions"][0]["served"] = false.into())),
        ("few rights", "rights failed RightsMissing", |api| {
            api.forget("POST", REVIEWS).on("POST", REVIEWS, 201, json!({"spec": {}, "status": {"allowed": false}}));
        }),
        ("no right in a namespace", "rights failed RightsMissing", |api| {
            let answer = |allowed: bool| json!({"spec": {}, "status": {"allowed": allowed}});
            api.forget("POST", REVIEWS);
            for _ in 0..5 {
                api.on("POST", REVIEWS, 201, answer(true));
            }
            api.on("POST", REVIEWS, 201, answer(false)).on("POST", REVIEWS, 201, answer(true));
        }),
        ("an untested API server", "version warning ApiServerTooOld", |api| {
            api.instead(VERSION, version("30"));
        }),
        ("an API server without policies", "version failed ApiServerTooOld", |api| {
            api.instead(VERSION, version("29"));
        }),
        ("WMCO, beside which the operator waits", "other-operator warning AnotherOperator", |api| api.wmco_runs()),
        ("OVN without a hybrid overlay", "network failed ClusterUnknown", |api| {
            let network = json!({"apiVersion": "config.openshift.io/v1", "kind": "Network", "metadata": {"name": "cluster"},
            "status": {"networkType": "OVNKubernetes"}});
            api.instead(NETWORK, network);
        }),
    ];
    for (about, expected, break_it) in cases {
        let api = healthy();
        break_it(&api);
        let rows = rows(catalog::Facts::Before(&before::observe(&api.client(), &run()).await));
        assert_eq!(faults(&rows), *expected, "{about}: {rows:#?}");
        assert_eq!(api.unexpected(), Vec::<String>::new(), "{about}");
    }
}

#[tokio::test]
async fn a_payload_that_cannot_be_given_to_hosts_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let there = dir.path().join("payload");
    std::fs::create_dir(&there).unwrap();
    let api = healthy();
    let mut facts = observed(&api).await;
    for (about, path, expected) in [
        ("there is none, as on a laptop", dir.path().join("none"), "payload warning PayloadInvalid"),
        ("it is not whole", there, "payload failed PayloadInvalid"),
    ] {
        let error = ReleaseError::from(remote::payload::Payload::open(&path).map(|_| ()).unwrap_err());
        let mut run = run();
        run.payload = path;
        facts.observe_release(Err(&error), &run).await;
        let rows = rows(catalog::Facts::Installation(&facts));
        assert_eq!(faults(&rows), expected, "{about}: {rows:#?}");
        assert!(rows.iter().all(|row| row["check"] != "certificate"), "{about}: there is no URL to ask");
    }
}

#[tokio::test]
async fn a_clock_that_differs_is_found() {
    let api = healthy();
    let mut facts = observed(&api).await;
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
        assert_eq!(found.as_ref().map(|finding| finding.reason.as_str()), reason, "{about}: {found:?}");
    }
}
