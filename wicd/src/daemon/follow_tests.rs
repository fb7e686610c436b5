//! Tests of the service that follows the API server.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use api::services::Service;
use api::{Reason, host::ServiceState};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::super::cluster::ServicesConfigMap;
use super::super::fake_cluster::FakeCluster;
use super::*;
use crate::fake::FakeHost;

#[test]
fn only_a_version_that_can_be_part_of_a_name_has_a_config_map() {
    for (version, expected) in [
        ("10.18.0-abc123", true),
        ("v1", true),
        ("", false),
        ("../x", false),
        ("a..b", false),
        ("a/b", false),
        ("A", false),
        ("-a", false),
        ("a-", false),
        ("a\n", false),
        (&"a".repeat(300), false),
    ] {
        assert_eq!(config_map_name(version).is_some(), expected, "{version:?}");
    }
}

#[test]
fn the_version_is_reported_once_the_host_matches_it() {
    let node = |annotations: Value, ready: &str| {
        json!({"metadata": {"annotations": annotations},
        "status": {"conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": ready}]}})
    };
    let report = |version: &str, settled, reboot: Option<&str>| Report {
        version: Some(version.into()),
        settled,
        reboot: reboot.map(String::from),
        ..Report::default()
    };
    let (wants, restart) =
        (json!({key::DESIRED_VERSION: "v2"}), json!({key::DESIRED_VERSION: "v2", key::REBOOT_REQUIRED: ""}));
    let stamp = vec![(key::VERSION, "v2")];
    let at = |version: &str| json!({key::DESIRED_VERSION: "v2", key::VERSION: version});
    let cases = [
        ("done", wants.clone(), "True", report("v2", true, None), stamp.clone()),
        ("reported already", at("v2"), "True", report("v2", true, None), vec![]),
        ("from an older one", at("v1"), "True", report("v2", true, None), stamp),
        ("not Ready", wants.clone(), "Unknown", report("v2", true, None), vec![]),
        ("not settled", wants.clone(), "True", report("v2", false, None), vec![]),
        ("still another version", wants.clone(), "True", report("v1", true, None), vec![]),
        ("no client asks", json!({}), "True", report("v2", true, None), vec![]),
        ("no annotations", Value::Null, "True", report("v2", true, None), vec![]),
        // No version is written while a restart is pending.
        ("a restart is needed", wants, "True", report("v2", true, Some("x")), vec![(key::REBOOT_REQUIRED, "")]),
        ("a needed restart is reported already", restart.clone(), "True", report("v2", true, Some("x")), vec![]),
        ("another client awaits one", restart, "True", report("v2", true, None), vec![]),
    ];
    for (name, on_node, ready, report, expected) in cases {
        let got = annotations(&node(on_node, ready), &report);
        let got: Vec<_> = got.iter().map(|(k, v)| (*k, v.as_deref().unwrap())).collect();
        assert_eq!(got, expected, "{name}");
    }
}

fn config(command: &str) -> ServicesConfig {
    let service = Service { name: "kubelet".into(), path: command.into(), bootstrap: true, ..Service::default() };
    ServicesConfig { services: vec![service], ..ServicesConfig::default() }
}

/// Host that follows v1, and an API server.
struct TestHost {
    host: FakeHost,
    cluster: FakeCluster,
    stop: CancellationToken,
}

impl TestHost {
    fn new() -> Self {
        let host = FakeHost::temporary();
        let desired = Desired {
            node_name: "win-1".into(),
            namespace: "ns".into(),
            version: "v1".into(),
            services: config("kubelet v1"),
            ..Desired::default()
        };
        files::write_json(&host, path::DESIRED, &desired, Access::Protected).unwrap();
        crate::ownership::Ownership::default().save(&host).unwrap();
        let marker = Marker { operation: "join-1".into(), version: "v1".into(), ..Marker::default() };
        files::write_json(&host, path::STATE, &marker, Access::Inherited).unwrap();
        Self { host, cluster: FakeCluster::new(), stop: CancellationToken::new() }
    }

    fn start(&self) -> tokio::task::JoinHandle<()> {
        let cluster = Arc::new(self.cluster.clone());
        tokio::spawn(super::super::run(Arc::new(self.host.clone()), cluster, self.stop.clone()))
    }

    /// Stores a services ConfigMap, and returns its version.
    fn publish(&self, release: &str, config: &ServicesConfig) -> String {
        let version = format!("{release}-{}", services_version::digest(&config.to_data(), "{}"));
        self.store(&version, config);
        version
    }

    /// Stores a services ConfigMap under a version.
    fn store(&self, version: &str, config: &ServicesConfig) {
        let stored = ServicesConfigMap { data: config.to_data(), rendered: Some("{}".into()) };
        self.cluster.config_maps.lock().unwrap().insert(format!("windows-services-{version}"), stored);
    }

    /// Follows `version` as the Node's desired version.
    async fn follow(&self, version: &str) -> Result<Annotations, Reason> {
        self.cluster.set_node(&[(key::DESIRED_VERSION, version)]);
        let node = json!({"metadata": {"annotations": {key::DESIRED_VERSION: version}}});
        let host: Arc<dyn Host> = Arc::new(self.host.clone());
        let report = Report { version: Some("v1".into()), ..Report::default() };
        sync(&host, &self.cluster, &self.copy(), &node, &report).await.map_err(|e| e.reason())
    }

    /// Returns the last good copy of the desired state.
    fn copy(&self) -> Desired {
        files::read_json(&self.host, path::DESIRED).unwrap().unwrap()
    }

    fn command(&self) -> String {
        self.host.service("kubelet").unwrap().filter(|s| s.state == ServiceState::Running).unwrap_or_default().command
    }
}

/// Awaits a condition.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), wait).await.unwrap_or_else(|_| panic!("never came: {what}"));
}

#[test]
fn drift_is_reported_until_it_is_over() {
    let node = |drift: Option<&str>| {
        let annotations: BTreeMap<&str, &str> = drift.map(|d| (key::DRIFT, d)).into_iter().collect();
        json!({"metadata": {"annotations": annotations}})
    };
    let report = |drift: &[&str], reboot: Option<&str>| Report {
        version: Some("v1".into()),
        drift: drift.iter().map(ToString::to_string).collect(),
        reboot: reboot.map(String::from),
        ..Report::default()
    };
    let to = |value: Option<&str>| Annotations::from([(key::DRIFT, value.map(String::from))]);
    let nothing = Annotations::new();
    let cases = [
        ("new", None, report(&["a (left)", "b (healed)"], None), to(Some("a (left); b (healed)"))),
        ("reported already", Some("a (left)"), report(&["a (left)"], None), nothing.clone()),
        ("less of it", Some("a (left); b (left)"), report(&["a (left)"], None), to(Some("a (left)"))),
        ("over", Some("a (left)"), report(&[], None), to(None)),
        ("none", None, report(&[], None), nothing.clone()),
        ("nothing is known yet", Some("a (left)"), Report::default(), nothing),
    ];
    for (name, on_node, report, expected) in cases {
        assert_eq!(annotations(&node(on_node), &report), expected, "{name}");
    }
    let both = annotations(&node(None), &report(&["a (left)"], Some("x")));
    assert_eq!(both.len(), 2, "drift is reported while a restart is needed: {both:?}");
    // Patch as the API server gets it.
    assert_eq!(json!(to(None)).to_string(), format!(r#"{{"{}":null}}"#, key::DRIFT));
}

#[test]
fn written_annotations_are_in_the_local_copy_of_the_node() {
    let written = Annotations::from([(key::VERSION, Some("v1".into())), (key::DRIFT, None)]);
    for before in [
        json!({"metadata": {}}),
        json!({"metadata": {"annotations": null}}),
        json!({"metadata": {"annotations": {key::DRIFT: "x"}}}),
    ] {
        let mut node = before;
        annotate(&mut node, &written);
        assert_eq!(node["metadata"]["annotations"], json!({key::VERSION: "v1"}));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_joins_follows_and_stops() {
    let test_host = TestHost::new();
    // Without an API server, the host starts with its last desired state.
    test_host.cluster.down.store(true, Ordering::SeqCst);
    let daemon = test_host.start();
    until("the service runs without an API server", || test_host.command() == "kubelet v1").await;

    // The Node is missing at first: that is normal.
    test_host.cluster.down.store(false, Ordering::SeqCst);
    until("a connection", || test_host.cluster.connections.load(Ordering::SeqCst) > 1).await;
    test_host.cluster.set_node(&[(key::DESIRED_VERSION, "v1")]);
    until("v1 is stamped", || test_host.cluster.annotation(key::VERSION).as_deref() == Some("v1")).await;

    let v2 = test_host.publish("v2", &config("kubelet v2"));
    test_host.cluster.set_node(&[(key::DESIRED_VERSION, &v2), (key::VERSION, "v1")]);
    until("v2 is stamped", || test_host.cluster.annotation(key::VERSION).as_ref() == Some(&v2)).await;
    assert_eq!(test_host.command(), "kubelet v2");
    let copy = test_host.copy();
    assert_eq!((copy.version.as_str(), copy.node_name.as_str()), (v2.as_str(), "win-1"));
    let marker = crate::operation::marker(&test_host.host).unwrap();
    assert_eq!(
        (marker.version.as_str(), marker.operation.as_str()),
        (v2.as_str(), "join-1"),
        "the operator reads the same"
    );

    // wicd stops when requested, and the services continue.
    test_host.stop.cancel();
    tokio::time::timeout(Duration::from_secs(30), daemon).await.unwrap().unwrap();
    assert_eq!(test_host.command(), "kubelet v2");
    let patches = test_host.cluster.patches.lock().unwrap();
    assert_eq!(patches.iter().filter(|p| p.contains_key(key::VERSION)).count(), 2, "each version is stamped once");
    assert_eq!(patches[0].len(), 2, "the time of the first report goes with it: {patches:?}");
}

#[test]
fn a_report_is_renewed_about_once_in_each_interval() {
    let now: Timestamp = "2027-01-15T02:00:00Z".parse().unwrap();
    for (reported, due) in [
        (None, true),
        (Some("yesterday"), true),
        (Some("2027-01-15T01:50:02Z"), true),
        (Some("2027-01-15T01:54:59Z"), true),
        (Some("2027-01-15T01:58:00Z"), false),
        (Some("2027-01-15T02:00:00Z"), false),
        (Some("2027-01-15T03:00:00Z"), true),
    ] {
        assert_eq!(is_report_due(reported, now), due, "{reported:?}");
    }
    let reconciler = || super::super::reconciler::Reconciler::new(Arc::new(TestHost::new().host));
    let at = |seconds| reconciler().reconcile_once(None, Duration::from_secs(seconds)).interval;
    assert_eq!([at(0), at(599), at(600), at(1_799)], [0, 0, 1, 2], "each interval has a report of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_that_cannot_be_used_leaves_the_last_good_copy() {
    let test_host = TestHost::new();
    let before = test_host.copy();
    let mut scripted = config("kube-proxy.exe --cluster-cidr=ENDPOINT");
    scripted.services[0]
        .powershell_pre_scripts
        .push(json!({"variableName": "ENDPOINT", "path": "x.ps1", "NodeArgs": null}));
    for version in [
        format!("v2-{}", "0".repeat(32)),
        test_host.publish("v2", &config("two\nlines")),
        test_host.publish("v2", &scripted),
    ] {
        assert_eq!(test_host.follow(&version).await, Err(Reason::VersionUnreadable), "{version}");
    }
    assert_eq!(test_host.copy(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_that_differs_from_the_digest_in_its_name_is_refused() {
    let test_host = TestHost::new();
    let before = test_host.copy();
    let good = config("kubelet v2");
    let version = test_host.publish("v2", &good);
    let name = format!("windows-services-{version}");

    test_host.store(&version, &config("kubelet.exe --x=PWNED"));
    assert_eq!(test_host.follow(&version).await, Err(Reason::VersionUnreadable));
    for rendered in [Some("{ }"), None] {
        test_host.store(&version, &good);
        test_host.cluster.config_maps.lock().unwrap().get_mut(&name).unwrap().rendered = rendered.map(String::from);
        assert_eq!(test_host.follow(&version).await, Err(Reason::VersionUnreadable), "{rendered:?}");
    }
    assert_eq!(test_host.copy(), before, "the last good copy stays");
    let drift = test_host.cluster.annotation(key::DRIFT);
    assert_eq!(drift, Some(format!("ConfigMap {name} (refused)")), "and the operator is notified");

    // A version of the Windows Machine Config Operator has no digest.
    test_host.store("10.18.0", &good);
    assert_eq!(test_host.follow("10.18.0").await, Err(Reason::VersionUnreadable));

    test_host.store(&version, &good);
    test_host.follow(&version).await.unwrap();
    assert_eq!((test_host.copy().version, test_host.copy().services), (version, good));
}
