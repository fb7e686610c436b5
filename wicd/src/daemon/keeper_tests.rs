use super::*;
use crate::fake::FakeHost;
use crate::files::Access;
use api::services::{HostFact, HostVariable, NodeVariable, Service, ServicesConfig};
use serde_json::json;

struct Bed {
    _dir: tempfile::TempDir,
    host: FakeHost,
    keeper: Keeper,
    clock: Duration,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = FakeHost::new(dir.path());
        let keeper = Keeper::new(Arc::new(host.clone()));
        Self { _dir: dir, host, keeper, clock: Duration::ZERO }
    }

    fn desire(&self, version: &str, services: Vec<Service>) {
        let services = ServicesConfig { services, ..ServicesConfig::default() };
        let desired = Desired {
            node_name: "win-1".into(),
            node_ip: "10.0.0.1".into(),
            version: version.into(),
            services,
            ..Desired::default()
        };
        files::write_json(&self.host, path::DESIRED, &desired, Access::Protected).unwrap();
    }

    /// Passes until nothing is left to do.
    fn settle(&mut self) -> Report {
        for _ in 0..20 {
            let report = self.pass();
            if report.settled {
                return report;
            }
        }
        panic!("does not settle: {:?} {:?}", self.keeper.waiting, self.keeper.complaints);
    }

    fn pass(&mut self) -> Report {
        self.clock += Duration::from_secs(1);
        self.keeper.pass(None, self.clock)
    }

    fn state(&self, name: &str) -> ServiceState {
        self.host.service(name).unwrap().map(|s| s.state).unwrap_or_default()
    }

    fn kill(&self, name: &str) {
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

fn three() -> Vec<Service> {
    vec![service("containerd", 0, &[]), service("kubelet", 1, &["containerd"]), service("kube-proxy", 2, &["kubelet"])]
}

#[test]
fn a_host_comes_up_without_an_api_server() {
    let mut bed = Bed::new();
    assert_eq!(bed.pass(), Report::default(), "nothing is known yet");
    bed.desire("v1", three());
    let report = bed.settle();
    assert_eq!(report, Report { version: Some("v1".into()), settled: true, reboot: None });
    let kubelet = bed.host.service("kubelet").unwrap().unwrap();
    assert_eq!(kubelet.command, r"C:\k\kubelet.exe --node win-1");
    assert_eq!(kubelet.description, "OpenShift managed kubelet");
    assert!(bed.host.state().specs["kubelet"].recovery.is_some());
    assert!(Owned::load(&bed.host).unwrap().unwrap().services.contains("kubelet"));

    // A restart of the host: nothing of ours runs, wicd begins anew.
    for name in ["containerd", "kubelet", "kube-proxy"] {
        bed.kill(name);
    }
    bed.keeper = Keeper::new(Arc::new(bed.host.clone()));
    bed.settle();
    assert_eq!(bed.state("kube-proxy"), ServiceState::Running);
}

#[test]
fn one_that_ends_is_started_again_and_then_less_and_less_often() {
    let mut bed = Bed::new();
    bed.desire("v1", three());
    bed.settle();
    bed.kill("kubelet");
    assert!(!bed.pass().settled);
    assert_eq!(bed.state("kubelet"), ServiceState::Running, "the first time at once");
    bed.pass();
    bed.kill("kubelet");
    bed.pass();
    assert_eq!(bed.state("kubelet"), ServiceState::Stopped, "the second time later");
    assert_eq!(bed.keeper.waiting.get("kubelet"), Some(&Waiting::Failing));
    bed.clock += Duration::from_secs(10);
    bed.settle();
    assert_eq!(bed.state("kubelet"), ServiceState::Running);
}

#[test]
fn a_change_disturbs_only_what_depends_on_it() {
    let mut bed = Bed::new();
    bed.desire("v1", three());
    bed.settle();
    let events = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = events.clone();
    bed.host.on_service(move |event, service| seen.lock().unwrap().push(format!("{event:?} {}", service.name)));
    let mut services = three();
    services[1].path = r"C:\k\kubelet.exe --v=4".into();
    bed.desire("v2", services);
    assert_eq!(bed.settle().version.as_deref(), Some("v2"));
    assert_eq!(
        *events.lock().unwrap(),
        ["Stopped kube-proxy", "Stopped kubelet", "Started kubelet", "Started kube-proxy"]
    );
    assert_eq!(bed.keeper.backoffs["kube-proxy"].failures, 0, "a stop of ours is no failure");
}

#[test]
fn what_is_not_wanted_any_more_goes() {
    let mut bed = Bed::new();
    bed.desire("v1", three());
    bed.settle();
    bed.desire("v2", vec![service("containerd", 0, &[])]);
    bed.settle();
    assert_eq!(bed.state("kubelet"), ServiceState::Missing);
    assert_eq!(bed.state("containerd"), ServiceState::Running);
    assert!(!Owned::load(&bed.host).unwrap().unwrap().services.contains("kubelet"));
}

#[test]
fn a_desired_state_that_cannot_be_used_changes_nothing() {
    let mut bed = Bed::new();
    bed.desire("v1", three());
    bed.settle();
    bed.desire("v2", vec![service("a", 0, &["a"])]);
    assert_eq!(bed.settle().version.as_deref(), Some("v1"));
    files::write(&bed.host, path::DESIRED, b"{", Access::Protected).unwrap();
    assert_eq!(bed.settle().version.as_deref(), Some("v1"));
    bed.kill("kubelet");
    bed.settle();
    assert_eq!(bed.state("kubelet"), ServiceState::Running);
}

#[test]
fn services_wait_while_the_operator_works_on_the_host() {
    let mut bed = Bed::new();
    bed.desire("v1", three());
    let lock = lock::take(&bed.host, Duration::ZERO).unwrap();
    assert!(!bed.pass().settled);
    assert_eq!(bed.state("containerd"), ServiceState::Missing);
    drop(lock);
    bed.settle();
}

#[test]
fn a_service_that_cannot_be_started_does_not_hold_up_the_others() {
    let mut bed = Bed::new();
    bed.host.state().refused.insert("start_service kubelet".into());
    bed.desire("v1", [three(), vec![service("exporter", 3, &[])]].concat());
    for _ in 0..5 {
        bed.pass();
    }
    assert_eq!(bed.state("kubelet"), ServiceState::Stopped);
    assert_eq!(bed.state("exporter"), ServiceState::Running);
    assert_eq!(bed.keeper.waiting.get("kube-proxy"), Some(&Waiting::Dependency));
    bed.host.state().refused.clear();
    bed.clock += Duration::from_mins(5);
    bed.settle();
}

#[test]
fn a_node_variable_waits_for_the_node_and_keeps_its_value_without() {
    let mut bed = Bed::new();
    let mut services = three();
    services[2].node_variables_in_command =
        vec![NodeVariable { name: "SUBNET".into(), node_object_json_path: "{.metadata.annotations.subnet}".into() }];
    services[2].path = "proxy SUBNET".into();
    bed.desire("v1", services);
    for _ in 0..5 {
        bed.pass();
    }
    assert_eq!(bed.keeper.waiting.get("kube-proxy"), Some(&Waiting::Variable));
    let node = json!({"metadata": {"annotations": {"subnet": "10.1.0.0/24"}}});
    bed.keeper.pass(Some(&node), bed.clock);
    assert_eq!(bed.host.service("kube-proxy").unwrap().unwrap().command, "proxy 10.1.0.0/24");
    bed.settle();
    bed.kill("kube-proxy");
    bed.settle();
    assert_eq!(bed.state("kube-proxy"), ServiceState::Running, "it keeps what it had");
}

#[test]
fn a_quiet_pass_is_cheap() {
    let mut bed = Bed::new();
    bed.desire("v1", three());
    bed.settle();
    bed.host.state().refused.insert("services ".into());
    assert!(bed.pass().settled, "the list of all services is not asked for");
}

#[test]
fn what_reads_back_otherwise_is_not_written_for_ever() {
    let mut bed = Bed::new();
    let written = ServiceSpec { name: "x".into(), command: "a  b".into(), ..ServiceSpec::default() };
    let read = ServiceInfo { name: "x".into(), command: "a b".into(), ..ServiceInfo::default() };
    bed.keeper.odd.insert("x".into(), (written, read.clone()));
    assert_eq!(bed.keeper.as_written(read.clone()).command, "a  b");
    let changed = ServiceInfo { command: "c".into(), ..read };
    assert_eq!(bed.keeper.as_written(changed.clone()), changed, "what somebody else wrote is seen");
}
