//! Keeps the host's services, variables and trusted certificates as [`path::DESIRED`] says, with or without an API server.
//!
//! One [`Keeper::pass`] looks, does what can be done at once and returns; it is called again and again. Between passes only
//! what is needed for backing off is remembered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::host::{Desired, ServiceState, path};
use serde_json::Value;
use tracing::{error, info, warn};

use super::backoff::Backoff;
use super::environment;
use super::order::start_order;
use super::plan::{Action, Plan, Waiting, Wanted, plan};
use super::variables::{self, HostFacts};
use crate::host::{Host, HostError, ServiceInfo, ServiceSpec};
use crate::operation::pending_reboot;
use crate::owned::Owned;
use crate::{files, lock};

/// Every so many quiet passes everything is looked at, not only our own services.
const THOROUGH: u32 = 24;

/// How a pass found the host.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// The version that the host follows, if any.
    pub version: Option<String>,
    /// Whether all was as it shall be, so that nothing had to be done.
    pub settled: bool,
    /// Why the host must be restarted, if it must.
    pub reboot: Option<String>,
}

/// See the module.
pub struct Keeper {
    host: Arc<dyn Host>,
    backoffs: BTreeMap<String, Backoff>,
    desired: Option<Desired>,
    /// Whether settings that cannot be seen have been written since the desired state last changed.
    assured: bool,
    /// What was wanted when all was last found well, and how many passes ago everything was looked at.
    settled: Option<(Vec<Wanted>, u32)>,
    waiting: BTreeMap<String, Waiting>,
    complaints: BTreeMap<String, String>,
    /// Services that read back otherwise than they were written: as written, and as read back.
    odd: BTreeMap<String, (ServiceSpec, ServiceInfo)>,
    moving: bool,
}

impl Keeper {
    /// For a host.
    pub fn new(host: Arc<dyn Host>) -> Self {
        Self {
            host,
            backoffs: BTreeMap::new(),
            desired: None,
            assured: false,
            settled: None,
            waiting: BTreeMap::new(),
            complaints: BTreeMap::new(),
            odd: BTreeMap::new(),
            moving: false,
        }
    }

    /// Whether something is on its way, so that the next pass should follow soon.
    pub fn is_moving(&self) -> bool {
        self.moving
    }

    /// One pass. `now` is a clock that only goes forward; `node` is the Node, if it is known.
    pub fn pass(&mut self, node: Option<&Value>, now: Duration) -> Report {
        match self.try_pass(node, now) {
            Ok(report) => report,
            Err(e) => {
                self.settled = None;
                self.complain("pass", &e);
                Report { version: self.desired.as_ref().map(|d| d.version.clone()), ..Report::default() }
            }
        }
    }

    fn try_pass(&mut self, node: Option<&Value>, now: Duration) -> Result<Report, HostError> {
        self.moving = false;
        // An operation of the operator may be half-way through its files: services wait until it is done.
        let Some(_lock) = lock::take(&*self.host, Duration::ZERO)? else {
            self.moving = true;
            let version = self.desired.as_ref().map(|d| d.version.clone());
            return Ok(Report { version, ..Report::default() });
        };
        self.load();
        let Some(desired) = self.desired.clone() else {
            return Ok(Report::default());
        };
        let mut report = Report { version: Some(desired.version.clone()), ..Report::default() };

        let wanted = self.wanted(&desired, node, now);
        report.settled = if self.is_quiet(&wanted)? {
            true
        } else {
            environment::keep(&*self.host, &desired)?;
            self.services(wanted, now)?
        };
        report.reboot = pending_reboot(&*self.host)?;
        self.complaints.remove("pass");
        Ok(report)
    }

    /// Reads the desired state. What cannot be used is said and not used.
    fn load(&mut self) {
        let read = files::read_json::<Desired>(&*self.host, path::DESIRED);
        match read {
            Ok(Some(desired)) if self.desired.as_ref() == Some(&desired) => {}
            Ok(Some(desired)) => match desired.services.validate() {
                Ok(()) => {
                    info!(version = desired.version, node = desired.node_name, "following this desired state");
                    self.complaints.remove("desired");
                    self.desired = Some(desired);
                    self.assured = false;
                    self.settled = None;
                    self.backoffs.clear();
                }
                Err(e) => self.complain("desired", &e),
            },
            // The operator has taken everything away.
            Ok(None) => self.desired = None,
            Err(e) => self.complain("desired", &e),
        }
    }

    fn wanted(&mut self, desired: &Desired, node: Option<&Value>, now: Duration) -> Vec<Wanted> {
        let facts = HostFacts { node_name: &desired.node_name, node_ip: &desired.node_ip };
        let mut wanted = Vec::new();
        for service in start_order(&desired.services.services) {
            let about = format!("variables of {}", service.name);
            let command = match variables::command(service, facts, node) {
                Ok(command) => {
                    self.complaints.remove(&about);
                    Some(command)
                }
                Err(e) => {
                    self.complain(&about, &e);
                    None
                }
            };
            let hold = self.backoffs.get(&service.name).is_some_and(|b| !b.may_start(now));
            let dependencies = service.dependencies.clone();
            wanted.push(Wanted { name: service.name.clone(), command, dependencies, hold });
        }
        wanted
    }

    /// Whether our services are still as in the last pass that found all well: a few cheap queries.
    fn is_quiet(&mut self, wanted: &[Wanted]) -> Result<bool, HostError> {
        let Some((before, passes)) = &mut self.settled else { return Ok(false) };
        *passes += 1;
        if *passes >= THOROUGH || before != wanted {
            return Ok(false);
        }
        for service in wanted {
            let actual = self.host.service(&service.name)?.map(|a| self.as_written(a));
            if actual.is_none_or(|a| {
                a.state != ServiceState::Running || service.command.as_ref().is_some_and(|c| *c != a.command)
            }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Looks at all services and does what can be done at once. Returns whether there was nothing to do.
    fn services(&mut self, mut wanted: Vec<Wanted>, now: Duration) -> Result<bool, HostError> {
        let all: Vec<ServiceInfo> = self.host.services()?.into_iter().map(|s| self.as_written(s)).collect();
        for service in &mut wanted {
            let state = all.iter().find(|a| a.name.eq_ignore_ascii_case(&service.name)).map(|a| a.state);
            let backoff = self.backoffs.entry(service.name.clone()).or_default();
            match state {
                Some(ServiceState::Running) => backoff.runs(now),
                Some(ServiceState::Stopped) if backoff.stopped(now) => {
                    let wait = backoff.not_before.saturating_sub(now).as_secs();
                    warn!(
                        service = service.name,
                        failures = backoff.failures,
                        "ended unasked; starting it in {wait} s"
                    );
                }
                _ => {}
            }
            service.hold = !backoff.may_start(now);
        }
        let owned = Owned::load_or_adopt(&*self.host)?;
        let plan = plan(&wanted, &all, &owned, !self.assured);
        self.tell_waiting(&plan);
        let done = self.execute(&plan, now)?;
        self.moving = (done && !plan.actions.is_empty()) || plan.waiting.values().any(|w| *w == Waiting::Pending);
        let settled = plan.is_settled();
        self.assured |= done;
        self.settled = settled.then_some((wanted, 0));
        Ok(settled)
    }

    fn tell_waiting(&mut self, plan: &Plan) {
        for (service, why) in plan.waiting.iter().filter(|(s, why)| self.waiting.get(*s) != Some(why)) {
            match why {
                Waiting::Pending => info!(service, "waiting: it is on its way up or down"),
                Waiting::Dependency => info!(service, "waiting: a service that it depends on does not run yet"),
                Waiting::Variable => info!(service, "waiting: a variable in its command is not known yet"),
                Waiting::Failing => warn!(service, "waiting: it keeps failing; see its own log"),
                Waiting::Foreign => error!(
                    service,
                    "somebody else has made a service of this name; it is left alone: remove it, then ours is made"
                ),
            }
        }
        self.waiting.clone_from(&plan.waiting);
    }

    /// Does what is planned. What fails is said; the rest is done all the same. Returns whether nothing failed.
    fn execute(&mut self, plan: &Plan, now: Duration) -> Result<bool, HostError> {
        let mut failed: BTreeSet<&str> = BTreeSet::new();
        let made = plan.actions.iter().filter_map(|a| match a {
            Action::Put(spec) => Some(spec.name.clone()),
            _ => None,
        });
        let made: Vec<String> = made.collect();
        if !made.is_empty() {
            Owned::update(&*self.host, |owned| owned.services.extend(made))?;
        }
        for action in &plan.actions {
            let service = action.service();
            if failed.contains(service) {
                continue;
            }
            match self.act(action) {
                Ok(()) => drop(self.complaints.remove(service)),
                Err(e) => {
                    failed.insert(service);
                    if matches!(action, Action::Start(_)) {
                        self.backoffs.entry(service.to_owned()).or_default().failed(now);
                    }
                    self.complain(service, &e);
                }
            }
        }
        Ok(failed.is_empty())
    }

    fn act(&mut self, action: &Action) -> Result<(), HostError> {
        match action {
            Action::Stop(service) => {
                info!(service, "stopping");
                for stopped in self.host.stop_service(service)?.iter().chain([service]) {
                    self.backoffs.entry(stopped.clone()).or_default().stopped_on_purpose();
                }
            }
            Action::Delete(service) => {
                info!(service, "removing: it is not wanted any more");
                self.host.delete_service(service)?;
                Owned::update(&*self.host, |owned| {
                    owned.services.remove(service);
                })?;
                self.backoffs.remove(service);
            }
            Action::Put(spec) => {
                if self.host.put_service(spec)? {
                    info!(service = spec.name, command = spec.command, "configured");
                }
                self.odd.remove(&spec.name);
                if let Some(read) = self.host.service(&spec.name)?.filter(|read| !is_as(read, spec)) {
                    warn!(
                        service = spec.name,
                        command = read.command,
                        "the service manager keeps it otherwise than it was written"
                    );
                    self.odd.insert(spec.name.clone(), (spec.clone(), read));
                }
            }
            Action::Start(service) => {
                info!(service, "starting");
                self.host.start_service(service)?;
            }
        }
        Ok(())
    }

    /// Writing a service again does not help if it reads back otherwise than it was written: then it would be stopped,
    /// written and started for ever. So what reads back as it did after we wrote it counts as what we wrote.
    fn as_written(&self, mut actual: ServiceInfo) -> ServiceInfo {
        if let Some((spec, read)) = self.odd.get(&actual.name)
            && actual.command == read.command
            && actual.dependencies == read.dependencies
        {
            actual.command.clone_from(&spec.command);
            actual.dependencies.clone_from(&spec.dependencies);
        }
        actual
    }

    /// Says what is wrong, once for each new problem.
    fn complain(&mut self, about: &str, error: &dyn std::error::Error) {
        let text = super::chain(error);
        if self.complaints.get(about) != Some(&text) {
            warn!(about, "{text}");
            self.complaints.insert(about.to_owned(), text);
        }
    }
}

fn is_as(actual: &ServiceInfo, spec: &ServiceSpec) -> bool {
    actual.command == spec.command && actual.dependencies == spec.dependencies
}

#[cfg(test)]
mod tests {
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
        vec![
            service("containerd", 0, &[]),
            service("kubelet", 1, &["containerd"]),
            service("kube-proxy", 2, &["kubelet"]),
        ]
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
        services[2].node_variables_in_command = vec![NodeVariable {
            name: "SUBNET".into(),
            node_object_json_path: "{.metadata.annotations.subnet}".into(),
        }];
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
}
