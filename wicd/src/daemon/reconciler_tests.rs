//! Tests of the reconciler of services, variables and certificates.

use super::*;
use crate::fake::{FakeHost, ServiceEvent};
use crate::files::Access;
use crate::host::Adapter;
use crate::network;
use crate::operation::require_reboot;
use api::services::{HostFact, HostVariable, NodeVariable, OvnHybridNetwork, Prepare, Service, ServicesConfig};
use serde_json::json;

#[test]
fn a_restart_that_has_happened_is_forgotten_and_quiet_passes_make_few_calls() {
    let mut test_host = TestHost::new();
    test_host.desire("1", three());
    require_reboot(&test_host.host, "a test").unwrap();
    assert_eq!(test_host.settle().reboot.as_deref(), Some("a test"));
    test_host.host.state().machine.boot_id = "2".into();
    assert_eq!(test_host.pass().reboot, None);
    test_host.host.state().counts.clear();
    for _ in 0..20 {
        assert_eq!(test_host.pass().reboot, None);
    }
    let counts = test_host.host.state().counts.clone();
    for name in ["machine", "boot_id", "enable_containers", "services"] {
        assert_eq!(counts.get(name), None, "{name}: {counts:?}");
    }
}

pub(super) fn cleaned(host: &FakeHost) -> api::host::Outcome {
    let body = api::host::Body::Cleanup(api::host::Cleanup {});
    crate::operation::run(host, &crate::operation::tests::request("leave-1", 1, body)).outcome
}

/// hybrid-overlay-node keeps an existing network with its port.
#[test]
fn another_vxlan_port_takes_effect() {
    let overlay = |port: Option<u16>| {
        let flag = port.map(|port| format!(" --hybrid-overlay-vxlan-port {port}")).unwrap_or_default();
        let path = format!(r"C:\k\hybrid-overlay-node.exe --node win-1{flag}");
        vec![Service { path, ..service(network::OVERLAY_SERVICE, 2, &[]) }]
    };
    let sweeps = |test_host: &TestHost| test_host.host.state().sweeps;
    // Also on a host whose network is older than the record: the command line of its service has the port.
    for has_record in [true, false] {
        let mut test_host = TestHost::new();
        test_host.host.on_service({
            let host = test_host.host.clone();
            move |event, service| {
                let networks = host.state().hns.get("/networks").cloned().unwrap_or_default();
                if event == ServiceEvent::Started && networks.as_array().is_none_or(Vec::is_empty) {
                    let network = json!([{"Name": network::HNS_NETWORK, "MadeBy": service.command}]);
                    host.state().hns.insert("/networks".into(), network);
                }
            }
        });
        let made_by =
            |test_host: &TestHost| test_host.host.state().hns["/networks"][0]["MadeBy"].as_str().unwrap().to_owned();
        test_host.desire("1", overlay(None));
        test_host.settle();
        if !has_record {
            Ownership::update(&test_host.host, |owned| owned.vxlan_port = None).unwrap();
        }
        // The network stays with another version with the same port, and when the service ends.
        test_host.desire("2", overlay(Some(4789)));
        test_host.settle();
        test_host.kill(network::OVERLAY_SERVICE);
        test_host.settle();
        assert_eq!((sweeps(&test_host), made_by(&test_host).contains("4789")), ((0, 0), false));
        test_host.desire("3", overlay(Some(9898)));
        test_host.settle();
        assert_eq!(
            (sweeps(&test_host), made_by(&test_host).contains("9898")),
            ((1, 1), true),
            "the containers end with the old network"
        );
        test_host.kill(network::OVERLAY_SERVICE);
        test_host.settle();
        assert_eq!(sweeps(&test_host), (1, 1));
        // If HNS refuses the removal, it is retried, and the service does not start with the old network.
        test_host.host.state().refused.insert("remove_networks ".into());
        test_host.desire("4", overlay(None));
        test_host.passes(5);
        assert_ne!(test_host.state(network::OVERLAY_SERVICE), ServiceState::Running);
        test_host.host.state().refused.clear();
        test_host.passes(60);
        test_host.settle();
        assert!(!made_by(&test_host).contains("9898"));
    }
}

/// Only kube-log-runner has ended: the kubelet that it started continues, and occupies the port.
#[test]
fn programs_of_an_earlier_run_end_before_a_service_starts() {
    let mut test_host = TestHost::new();
    let path = r"C:\k\kube-log-runner.exe -log-file=x C:\k\kubelet.exe --config=C:\k\kubelet.conf".to_owned();
    test_host.desire("1", vec![Service { path, ..service("kubelet", 1, &[]) }]);
    test_host.settle();
    test_host.kill("kubelet");
    test_host.host.state().orphans = vec![r"C:\k\kubelet.exe".into(), r"C:\k\kube-proxy.exe".into()];
    let host = test_host.host.clone();
    let left = test_host.host.record(move |_, _| host.state().orphans.clone());
    test_host.settle();
    assert_eq!(left.lock().unwrap().last().unwrap(), &[r"C:\k\kube-proxy.exe"], "programs of other services stay");
}

pub(super) struct TestHost {
    pub host: FakeHost,
    pub reconciler: Reconciler,
    pub clock: Duration,
}

impl TestHost {
    pub(super) fn new() -> Self {
        let host = FakeHost::temporary();
        let reconciler = Reconciler::new(Arc::new(host.clone()));
        Self { host, reconciler, clock: Duration::ZERO }
    }

    /// Returns a host that matches a desired state with three services.
    fn settled() -> Self {
        let mut test_host = Self::new();
        test_host.desire("v1", three());
        test_host.settle();
        test_host
    }

    pub(super) fn desire(&self, version: &str, services: Vec<Service>) {
        let services = ServicesConfig { services, ..ServicesConfig::default() };
        self.desire_all(version, services, api::Drift::Heal);
    }

    pub(super) fn desire_all(&self, version: &str, services: ServicesConfig, drift: api::Drift) {
        let desired = Desired {
            node_name: "win-1".into(),
            node_ip: "10.0.0.1".into(),
            version: version.into(),
            services,
            drift,
            ..Desired::default()
        };
        files::write_json(&self.host, path::DESIRED, &desired, Access::Protected).unwrap();
    }

    /// Runs passes until the host matches its desired state.
    pub(super) fn settle(&mut self) -> Report {
        for _ in 0..20 {
            let report = self.pass();
            if report.settled {
                return report;
            }
        }
        panic!("does not settle: {:?} {:?}", self.reconciler.waiting, self.reconciler.complaints);
    }

    pub(super) fn pass(&mut self) -> Report {
        self.clock += Duration::from_secs(1);
        self.reconciler.reconcile_once(None, self.clock)
    }

    pub(super) fn passes(&mut self, count: u32) {
        (0..count).for_each(|_| drop(self.pass()));
    }

    /// Runs passes until one is a full check.
    pub(super) fn check_everything(&mut self) -> Report {
        self.passes(THOROUGH);
        self.settle()
    }

    /// Changes a service, as another program does.
    pub(super) fn change(&self, name: &str, change: impl FnOnce(&mut ServiceInfo)) {
        change(self.host.state().services.get_mut(name).unwrap());
    }

    pub(super) fn command(&self, name: &str) -> String {
        self.host.service(name).unwrap().unwrap().command
    }

    pub(super) fn state(&self, name: &str) -> ServiceState {
        self.host.service(name).unwrap().map(|s| s.state).unwrap_or_default()
    }

    pub(super) fn kill(&self, name: &str) {
        self.host.state().services.get_mut(name).unwrap().state = ServiceState::Stopped;
    }
}

fn service(name: &str, priority: u32, dependencies: &[&str]) -> Service {
    Service {
        name: name.into(),
        path: format!(r"C:\k\{name}.exe --node NODE"),
        host_variables_in_command: vec![HostVariable { name: "NODE".into(), fact: HostFact::NodeName }],
        dependencies: dependencies.iter().map(ToString::to_string).collect(),
        priority,
        ..Service::default()
    }
}

pub(super) fn three() -> Vec<Service> {
    vec![service("containerd", 0, &[]), service("kubelet", 1, &["containerd"]), service("kube-proxy", 2, &["kubelet"])]
}

#[test]
fn services_start_without_an_api_server() {
    let mut test_host = TestHost::new();
    assert_eq!(test_host.pass(), Report::default(), "nothing is known yet");
    test_host.desire("v1", three());
    let report = test_host.settle();
    assert_eq!(report, Report { version: Some("v1".into()), settled: true, ..Report::default() });
    let kubelet = test_host.host.service("kubelet").unwrap().unwrap();
    assert_eq!(kubelet.command, r"C:\k\kubelet.exe --node win-1");
    assert_eq!(kubelet.description, "OpenShift managed kubelet");
    assert_eq!(test_host.host.state().specs["kubelet"].recovery, crate::daemon::plan::recovery());
    assert!(Ownership::load(&test_host.host).unwrap().unwrap().services.contains("kubelet"));

    // After a restart of the host, no service runs, and wicd starts without memory.
    for name in ["containerd", "kubelet", "kube-proxy"] {
        test_host.kill(name);
    }
    test_host.reconciler = Reconciler::new(Arc::new(test_host.host.clone()));
    test_host.settle();
    assert_eq!(test_host.state("kube-proxy"), ServiceState::Running);
}

#[test]
fn a_service_that_ends_is_restarted_after_growing_delays() {
    let mut test_host = TestHost::settled();
    test_host.kill("kubelet");
    assert!(!test_host.pass().settled);
    assert_eq!(test_host.state("kubelet"), ServiceState::Running, "the first time at once");
    test_host.pass();
    test_host.kill("kubelet");
    test_host.pass();
    assert_eq!(test_host.state("kubelet"), ServiceState::Stopped, "the second time later");
    assert_eq!(test_host.reconciler.waiting.get("kubelet"), Some(&Waiting::Failing));
    test_host.clock += Duration::from_secs(10);
    test_host.settle();
    assert_eq!(test_host.state("kubelet"), ServiceState::Running);
}

#[test]
fn a_change_restarts_only_the_service_and_its_dependents() {
    let mut test_host = TestHost::settled();
    let events = test_host.host.record(|event, service| format!("{event:?} {}", service.name));
    let mut services = three();
    services[1].path = r"C:\k\kubelet.exe --v=4".into();
    test_host.desire("v2", services);
    assert_eq!(test_host.settle().version.as_deref(), Some("v2"));
    assert_eq!(
        *events.lock().unwrap(),
        ["Stopped kube-proxy", "Stopped kubelet", "Started kubelet", "Started kube-proxy"]
    );
    assert_eq!(test_host.reconciler.backoffs["kube-proxy"].failures, 0, "a stop of ours counted as a failure");
}

#[test]
fn services_that_are_no_longer_desired_are_removed() {
    let mut test_host = TestHost::settled();
    test_host.desire("v2", vec![service("containerd", 0, &[])]);
    test_host.settle();
    assert_eq!(test_host.state("kubelet"), ServiceState::Missing);
    assert_eq!(test_host.state("containerd"), ServiceState::Running);
    assert!(!Ownership::load(&test_host.host).unwrap().unwrap().services.contains("kubelet"));
}

#[test]
fn an_invalid_desired_state_changes_nothing() {
    let mut test_host = TestHost::settled();
    test_host.desire("v2", vec![service("a", 0, &["a"])]);
    assert_eq!(test_host.settle().version.as_deref(), Some("v1"));
    let script = json!({"variableName": "ENDPOINT", "path": "x.ps1"});
    test_host.desire("v2", vec![Service { powershell_pre_scripts: vec![script], ..service("kubelet", 1, &[]) }]);
    assert_eq!(
        test_host.settle().version.as_deref(),
        Some("v1"),
        "no script is run, and the variable would stay in the command"
    );
    files::write(&test_host.host, path::DESIRED, b"{", Access::Protected).unwrap();
    assert_eq!(test_host.settle().version.as_deref(), Some("v1"));
    test_host.kill("kubelet");
    test_host.settle();
    assert_eq!(test_host.state("kubelet"), ServiceState::Running);
}

#[test]
fn services_wait_while_an_operation_is_in_progress() {
    let mut test_host = TestHost::new();
    test_host.desire("v1", three());
    let lock = lock::take(&test_host.host, Duration::ZERO).unwrap();
    assert!(!test_host.pass().settled);
    assert_eq!(test_host.state("containerd"), ServiceState::Missing);
    drop(lock);
    test_host.settle();
}

/// A service may end before a pass sees it run, as kube-proxy does with a configuration that it refuses.
#[test]
fn a_service_that_ends_at_its_start_is_restarted_after_growing_delays() {
    let mut test_host = TestHost::new();
    test_host.desire("v1", vec![service("kubelet", 1, &[])]);
    test_host.host.state().started_state = Some(ServiceState::Stopped);
    let starts = |test_host: &TestHost| test_host.host.state().starts.get("kubelet").copied().unwrap_or_default();
    test_host.passes(20);
    let soon = starts(&test_host);
    assert!((1..=4).contains(&soon), "started {soon} times in 20 passes, one each second");
    assert!(test_host.reconciler.backoffs["kubelet"].failures >= soon, "an end is a failure");
    test_host.passes(300);
    assert!(starts(&test_host) > soon, "it is started again");
}

#[test]
fn a_service_that_cannot_be_started_does_not_delay_the_others() {
    let mut test_host = TestHost::new();
    test_host.host.state().refused.insert("start_service kubelet".into());
    test_host.desire("v1", [three(), vec![service("exporter", 3, &[])]].concat());
    test_host.passes(5);
    assert_eq!(test_host.state("kubelet"), ServiceState::Stopped);
    assert_eq!(test_host.state("exporter"), ServiceState::Running);
    assert_eq!(test_host.reconciler.waiting.get("kube-proxy"), Some(&Waiting::Dependency));
    test_host.host.state().refused.clear();
    test_host.clock += Duration::from_mins(5);
    test_host.settle();
}

#[test]
fn a_service_waits_for_its_node_variable_and_keeps_the_value() {
    let mut test_host = TestHost::new();
    let mut services = three();
    services[2].node_variables_in_command =
        vec![NodeVariable { name: "SUBNET".into(), node_object_json_path: "{.metadata.annotations.subnet}".into() }];
    services[2].path = "proxy SUBNET".into();
    test_host.desire("v1", services);
    test_host.passes(5);
    assert_eq!(test_host.reconciler.waiting.get("kube-proxy"), Some(&Waiting::Variable));
    let node = json!({"metadata": {"annotations": {"subnet": "10.1.0.0/24"}}});
    test_host.reconciler.reconcile_once(Some(&node), test_host.clock);
    assert_eq!(test_host.host.service("kube-proxy").unwrap().unwrap().command, "proxy 10.1.0.0/24");
    test_host.settle();
    test_host.kill("kube-proxy");
    test_host.settle();
    assert_eq!(test_host.state("kube-proxy"), ServiceState::Running, "it keeps what it had");
}

#[test]
fn a_service_that_reads_back_differently_is_not_written_again() {
    let mut test_host = TestHost::new();
    let written = ServiceSpec { name: "x".into(), command: "a  b".into(), ..ServiceSpec::default() };
    let read = ServiceInfo { name: "x".into(), command: "a b".into(), ..ServiceInfo::default() };
    test_host.reconciler.odd.insert("x".into(), (written, read.clone()));
    assert_eq!(test_host.reconciler.as_written(read.clone()).command, "a  b");
    let changed = ServiceInfo { command: "c".into(), ..read };
    assert_eq!(test_host.reconciler.as_written(changed.clone()), changed, "a write of another client is detected");
}

#[test]
fn kube_proxy_starts_with_the_configuration_of_its_network() {
    const ID: &str = "8A6CE3D1-0F3B-4B7E-9C7E-1D2A3B4C5D6E";
    let mut test_host = TestHost::new();
    let config = OvnHybridNetwork { service_cidr: "172.30.0.0/16".into(), ..OvnHybridNetwork::default() };
    let mut services = three();
    services[2].prepare = Some(Prepare::OvnHybridNetwork(config));
    test_host.desire("v1", services);
    let conf = |test_host: &TestHost| files::read(&test_host.host, network::KUBE_PROXY_CONF).unwrap();
    let host = test_host.host.clone();
    let events = test_host.host.record(move |event, service| {
        let conf: Value = files::read_json(&host, network::KUBE_PROXY_CONF).unwrap().unwrap_or_default();
        (service.name == "kube-proxy").then(|| (event, conf["winkernel"]["sourceVip"].clone()))
    });
    // hybrid-overlay-node has not created the network yet, which is a wait, not a failure.
    test_host.passes(5);
    assert_eq!(test_host.reconciler.waiting.get("kube-proxy"), Some(&Waiting::Preparation));
    let said = &test_host.reconciler.complaints["network of kube-proxy"];
    assert!(said.contains("has not created the network OVNKubernetesHybridOverlayNetwork yet"), "{said}");
    assert_eq!(
        (test_host.state("kube-proxy"), test_host.state("kubelet")),
        (ServiceState::Stopped, ServiceState::Running)
    );
    assert_eq!(test_host.reconciler.backoffs["kube-proxy"].failures, 0);

    // The network exists: CNI is configured, and the endpoint is requested, then attached.
    let network = json!([{"ID": ID, "Name": network::HNS_NETWORK, "ManagementIP": "10.0.0.1",
        "Subnets": [{"AddressPrefix": "10.132.1.0/24"}]}]);
    test_host.host.state().hns.insert("/networks".into(), network);
    test_host.pass();
    assert!(test_host.reconciler.is_moving(), "the endpoint is looked for soon");
    assert!(files::read(&test_host.host, network::CNI_CONF).unwrap().is_some());
    let endpoint = |state: u8| json!([{"ID": "ab-1", "Name": network::ENDPOINT, "VirtualNetwork": ID, "MacAddress": "00-15-5D-00-00-09", "State": state}]);
    test_host.host.state().hns.insert("/endpoints".into(), endpoint(1));
    test_host.pass();
    test_host.host.state().hns.insert("/endpoints".into(), endpoint(2));
    test_host.passes(5);
    let asked: Vec<String> = test_host.host.state().hns_posts.iter().map(|r| r.path.clone()).collect();
    assert_eq!(asked, ["/endpoints", "/endpoints/ab-1/attach"]);
    assert_eq!((conf(&test_host), test_host.state("kube-proxy")), (None, ServiceState::Stopped));

    // The adapter of the endpoint has an address: all prerequisites exist.
    let adapter = |last| Adapter { mac: vec![0, 0x15, 0x5d, 0, 0, 9], ipv4: vec![[10, 132, 1, last].into()] };
    test_host.host.state().adapters = vec![adapter(2)];
    test_host.settle();
    assert_eq!(test_host.state("kube-proxy"), ServiceState::Running);

    // The endpoint gets another address later: kube-proxy is stopped before its configuration changes.
    test_host.host.state().adapters = vec![adapter(3)];
    test_host.passes(THOROUGH + 1);
    test_host.settle();
    let (started, stopped) = (ServiceEvent::Started, ServiceEvent::Stopped);
    let expected = [(started, json!("10.132.1.2")), (stopped, json!("10.132.1.2")), (started, json!("10.132.1.3"))];
    assert_eq!(events.lock().unwrap().iter().flatten().cloned().collect::<Vec<_>>(), expected);

    // HNS fails: kube-proxy continues, and the reason is kept.
    test_host.host.state().refused.insert("hns /networks".into());
    test_host.passes(THOROUGH + 1);
    assert_eq!(test_host.state("kube-proxy"), ServiceState::Running);
    assert_eq!(test_host.reconciler.waiting.get("kube-proxy"), Some(&Waiting::Preparation));
    test_host.host.state().refused.clear();
    test_host.settle();
}
