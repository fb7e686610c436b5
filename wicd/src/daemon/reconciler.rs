//! Reconciles the host's services, variables and trusted certificates with [`path::DESIRED`], with or without an API server.
//!
//! Each [`Reconciler::reconcile_once`] observes the host, takes the actions that are possible at once, and returns; it is called repeatedly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::host::{Desired, REPORT_INTERVAL, ServiceState, path};
use serde_json::Value;
use tracing::{error, info, warn};

use super::THOROUGH;
use super::backoff::Backoff;
use super::drift::{CheckKind, Drift};
use super::environment;
use super::file_integrity::FileIntegrity;
use super::metadata_route;
use super::order::start_order;
use super::plan::{Action, DesiredService, Plan, Prepared, Waiting, find, plan};
use super::variables;
use crate::host::{Host, HostError, ServiceInfo, ServiceSpec};
use crate::operation::{marker, settle_reboot};
use crate::ownership::Ownership;
use crate::processes::programs;
use crate::{files, lock, network};

mod preparation;

/// Log subject for problems of a whole pass.
const CHECK: &str = "check of the services";
/// Log subject for problems with [`path::DESIRED`].
const DESIRED_STATE: &str = "desired state";

/// State in which a pass found the host.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// Version that the host follows, if any.
    pub version: Option<String>,
    /// True if the host matched its desired state, without an action.
    pub settled: bool,
    /// Reason why the host must be restarted, if it must.
    pub reboot: Option<String>,
    /// Drift of the host, for example `file C:\k\kubelet.exe (healed)`, `service kubelet: command (left)`. Corrected items are reported for ten
    /// minutes, others until they are corrected.
    pub drift: Vec<String>,
    /// Number of the [`REPORT_INTERVAL`] of the pass, since the service started. Each new number makes wicd check whether a new report is due.
    pub interval: u64,
}

/// Reconciler of the host's services, variables and trusted certificates with the desired state.
pub struct Reconciler {
    host: Arc<dyn Host>,
    backoffs: BTreeMap<String, Backoff>,
    desired: Option<Desired>,
    /// True if settings that cannot be read back were written since the desired state last changed.
    assured: bool,
    /// Desired services of the last pass that found all of them running, and the number of passes since the last full check.
    settled: Option<(Vec<DesiredService>, u32)>,
    waiting: BTreeMap<String, Waiting>,
    complaints: BTreeMap<String, String>,
    /// Services that the service manager stores differently than written, each with the written configuration and the one that was read back.
    odd: BTreeMap<String, (ServiceSpec, ServiceInfo)>,
    /// Operation that applied the desired state.
    operation: String,
    drift: Drift,
    integrity: FileIntegrity,
    /// Services whose drift is reported and not corrected, as they were found; `None` for deleted ones.
    left: BTreeMap<String, Option<ServiceInfo>>,
    moving: bool,
}

impl Reconciler {
    /// Creates the reconciler of a host.
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
            operation: String::new(),
            drift: Drift::default(),
            integrity: FileIntegrity::default(),
            left: BTreeMap::new(),
            moving: false,
        }
    }

    /// Reports whether a change is in progress, so that the next pass should follow soon.
    pub fn is_moving(&self) -> bool {
        self.moving
    }

    /// Makes one pass. `now` is the time of a monotonic clock; `node` is the Node, if it is known.
    pub fn reconcile_once(&mut self, node: Option<&Value>, now: Duration) -> Report {
        let report = self.try_pass(node, now).unwrap_or_else(|e| {
            self.settled = None;
            self.complain(CHECK, &e);
            self.report(now)
        });
        Report { interval: now.as_secs() / REPORT_INTERVAL.as_secs(), ..report }
    }

    /// Returns a report without observing the host.
    fn report(&mut self, now: Duration) -> Report {
        let version = self.desired.as_ref().map(|d| d.version.clone());
        Report { version, drift: self.drift.texts(now), ..Report::default() }
    }

    fn try_pass(&mut self, node: Option<&Value>, now: Duration) -> Result<Report, HostError> {
        self.moving = false;
        // An operation of the operator may have written only some of its files: services wait until it is done.
        let Some(_lock) = lock::take(&*self.host, Duration::ZERO)? else {
            self.moving = true;
            return Ok(self.report(now));
        };
        self.load();
        let Some(desired) = self.desired.clone() else {
            return Ok(Report::default());
        };
        // The route comes first, because a failure below must not prevent a running node from getting its credentials.
        let had_route = self.has_metadata_route(&desired);
        let heals = desired.drift == api::Drift::Heal;
        let wanted = self.wanted(&desired, node, now);
        let settled = if self.is_quiet(&wanted)? {
            had_route
        } else {
            self.environment(&desired, heals, now)?;
            let settled = self.services(wanted, &desired, node, now)?;
            // A service that starts or stops may have changed the networks, and with them the routes.
            self.has_metadata_route(&desired) && had_route && settled
        };
        self.integrity.check(&*self.host, &desired.services.files, heals, &mut self.drift, now);
        self.drift.save(&*self.host)?;
        let reboot = settle_reboot(&*self.host)?;
        self.complaints.remove(CHECK);
        Ok(Report { settled, reboot, ..self.report(now) })
    }

    /// Checks variables and certificates. Differences are drift only after the host was in the desired state.
    fn environment(&mut self, desired: &Desired, heals: bool, now: Duration) -> Result<(), HostError> {
        let was_right = self.drift.is_settled();
        let found = environment::keep(&*self.host, desired, heals || !was_right)?;
        let (healed, left) = match (was_right, heals) {
            (false, _) => Default::default(),
            (true, true) => (found, BTreeSet::new()),
            (true, false) => (BTreeSet::new(), found),
        };
        self.drift.found(CheckKind::Environment, healed, left, now);
        Ok(())
    }

    /// Creates the route to the metadata service if it is missing. Reports whether the route existed or the host needs none: a node without the route
    /// does not match its desired state.
    fn has_metadata_route(&mut self, desired: &Desired) -> bool {
        const ABOUT: &str = "route to the metadata service";
        let Some(address) = desired.metadata_address else { return true };
        match metadata_route::keep(&*self.host, address) {
            Ok(was_there) => {
                self.complaints.remove(ABOUT);
                self.moving |= !was_there;
                was_there
            }
            Err(e) => {
                self.complain(ABOUT, &e);
                false
            }
        }
    }

    /// Reads the desired state. An unusable one is logged and ignored.
    fn load(&mut self) {
        let read = files::read_json::<Desired>(&*self.host, path::DESIRED);
        let operation = marker(&*self.host).map(|m| m.operation).unwrap_or_default();
        match read {
            Ok(Some(desired)) if self.desired.as_ref() == Some(&desired) => {
                if self.operation != operation {
                    self.begin(&desired, operation);
                }
            }
            Ok(Some(desired)) => match desired.services.validate_for_host() {
                Ok(()) => {
                    self.begin(&desired, operation);
                    info!(
                        version = desired.version,
                        node = desired.node_name,
                        "following this version of the desired state"
                    );
                    self.complaints.remove(DESIRED_STATE);
                    self.desired = Some(desired);
                    self.assured = false;
                    self.backoffs.clear();
                }
                Err(e) => self.complain(DESIRED_STATE, &e),
            },
            // The operator has cleaned up the host.
            Ok(None) => {
                self.desired = None;
                self.drift = Drift::default();
            }
            Err(e) => self.complain(DESIRED_STATE, &e),
        }
    }

    /// Resets the records for a desired state, also if the operator has applied the same one again: differences count as drift only once the host has
    /// matched the desired state.
    fn begin(&mut self, desired: &Desired, operation: String) {
        self.drift.follow(&*self.host, desired, &operation);
        self.integrity = FileIntegrity::default();
        self.left.clear();
        self.settled = None;
        self.operation = operation;
    }

    fn wanted(&mut self, desired: &Desired, node: Option<&Value>, now: Duration) -> Vec<DesiredService> {
        let mut wanted = Vec::new();
        for service in start_order(&desired.services.services) {
            let about = format!("variables of {}", service.name);
            let command = match variables::command(service, desired, node) {
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
            wanted.push(DesiredService {
                name: service.name.clone(),
                command,
                dependencies: service.dependencies.clone(),
                environment: service.environment.clone(),
                hold,
                ..DesiredService::default()
            });
        }
        wanted
    }

    /// Reports whether the services are still as in the last pass that found all of them running, by a few cheap queries. Returns false after
    /// [`THOROUGH`] passes, so that a full check follows.
    fn is_quiet(&mut self, wanted: &[DesiredService]) -> Result<bool, HostError> {
        let Some((before, passes)) = &mut self.settled else { return Ok(false) };
        *passes += 1;
        if *passes >= THOROUGH || before != wanted {
            return Ok(false);
        }
        for service in wanted {
            let actual = self.host.service(&service.name)?.map(|a| self.as_written(a));
            let is_as_before = match self.left.get(&service.name) {
                Some(left) => actual == left.clone().map(|a| ServiceInfo { state: ServiceState::Running, ..a }),
                None => actual.is_some_and(|a| {
                    a.state == ServiceState::Running
                        && service.command.as_ref().is_none_or(|c| *c == a.command)
                        && service.environment == a.environment
                }),
            };
            if !is_as_before {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks all services and performs the actions that are possible at once. Returns whether all services match their desired state.
    fn services(
        &mut self,
        mut wanted: Vec<DesiredService>,
        desired: &Desired,
        node: Option<&Value>,
        now: Duration,
    ) -> Result<bool, HostError> {
        let all: Vec<ServiceInfo> = self.host.services()?.into_iter().map(|s| self.as_written(s)).collect();
        let owned = Ownership::load_or_adopt(&*self.host)?;
        let mut changed: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        self.left.clear();
        for service in &mut wanted {
            let actual = find(&all, &service.name);
            let (state, ours) = (actual.map(|a| a.state), actual.is_none_or(|a| owned.is_ours(a)));
            let backoff = self.backoffs.entry(service.name.clone()).or_default();
            match state {
                Some(ServiceState::Running) => backoff.runs(now),
                Some(ServiceState::Stopped) if backoff.stopped(now) => {
                    let wait = backoff.not_before.saturating_sub(now).as_secs();
                    warn!(
                        service = service.name,
                        failures = backoff.failures,
                        "the service ended unexpectedly; starting it in {wait} s"
                    );
                }
                _ => {}
            }
            service.hold = !backoff.may_start(now);
            // The port is recorded before the command line changes: the existing networks were created with the current command line.
            if let Some(actual) = actual.filter(|_| ours && service.name == network::OVERLAY_SERVICE)
                && owned.vxlan_port.is_none()
            {
                network::note_port(&*self.host, &actual.command)?;
            }
            if ours {
                service.prepared = self.prepare(service, &all, desired, node);
                changed.insert(service.name.clone(), self.drift.of_service(service, actual));
                service.left = desired.drift == api::Drift::Report && !changed[&service.name].is_empty();
            }
            if service.left {
                self.left.insert(service.name.clone(), actual.cloned());
            }
        }
        let plan = plan(&wanted, &all, &owned, !self.assured);
        self.tell_waiting(&plan);
        let failed = self.execute(&plan, now)?;
        let done = failed.is_empty();
        let is_put = |name: &str| {
            plan.actions.iter().any(|a| matches!(a, Action::Put(spec) if spec.name == name)) && !failed.contains(name)
        };
        let texts = changed.iter().flat_map(|(name, parts)| parts.iter().map(move |part| (name, part)));
        let (healed, left): (Vec<_>, Vec<_>) = texts.partition(|(name, _)| is_put(name));
        let text = |(name, part): (&String, &&str)| format!("service {name}: {part}");
        self.drift.found(
            CheckKind::Services,
            healed.into_iter().map(text).collect(),
            left.into_iter().map(text).collect(),
            now,
        );
        self.moving |= (done && !plan.actions.is_empty()) || plan.waiting.values().any(|w| *w == Waiting::Pending);
        let settled = plan.is_settled();
        self.assured |= done;
        for service in &mut wanted {
            service.left = false;
        }
        if settled {
            self.drift.settle(&wanted);
        }
        self.settled = settled.then_some((wanted, 0));
        Ok(settled)
    }

    fn tell_waiting(&mut self, plan: &Plan) {
        for (service, why) in plan.waiting.iter().filter(|(s, why)| self.waiting.get(*s) != Some(why)) {
            match why {
                Waiting::Pending => info!(service, "waiting: the service is starting or stopping"),
                Waiting::Dependency => info!(service, "waiting: a dependency of the service does not run yet"),
                Waiting::Variable => info!(service, "waiting: a variable in the service's command has no usable value"),
                // The missing prerequisite was logged when it was found missing.
                Waiting::Preparation => {}
                Waiting::Failing => warn!(
                    service,
                    "waiting: the service keeps failing, and wicd starts it again after a pause; see the service's log below C:\\var\\log"
                ),
                Waiting::Foreign => error!(
                    service,
                    "a service of this name, which the operator did not install, is on the host and stays unchanged: stop and delete it (sc.exe \
                     stop {service}, sc.exe delete {service}); wicd then installs the operator's service"
                ),
            }
        }
        self.waiting.clone_from(&plan.waiting);
    }

    /// Performs the planned actions. After a failure, which is logged, the actions on other services are still performed. Returns the
    /// services with a failed action.
    fn execute(&mut self, plan: &Plan, now: Duration) -> Result<BTreeSet<String>, HostError> {
        let mut failed = BTreeSet::new();
        let is_put = |action: &&Action| matches!(action, Action::Put(_));
        let made: Vec<String> = plan.actions.iter().filter(is_put).map(|put| put.service().to_owned()).collect();
        if !made.is_empty() {
            Ownership::update(&*self.host, |owned| owned.services.extend(made))?;
        }
        for action in &plan.actions {
            let service = action.service();
            if failed.contains(service) {
                continue;
            }
            match self.act(action) {
                Ok(()) => {
                    if matches!(action, Action::Start(_)) {
                        // The service may end before a pass sees it running, which counts as a failure, too.
                        self.backoffs.entry(service.to_owned()).or_default().runs(now);
                    }
                    self.complaints.remove(service);
                }
                Err(e) => {
                    failed.insert(service.to_owned());
                    if matches!(action, Action::Start(_)) {
                        self.backoffs.entry(service.to_owned()).or_default().failed(now);
                    }
                    self.complain(service, &e);
                }
            }
        }
        Ok(failed)
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
                info!(service, "deleting the service, which the desired state does not include");
                self.host.delete_service(service)?;
                Ownership::update(&*self.host, |owned| {
                    owned.services.remove(service);
                })?;
                self.backoffs.remove(service);
            }
            Action::Put(spec) => {
                if self.host.put_service(spec)? {
                    info!(service = spec.name, command = spec.command, "the service has been configured");
                }
                self.odd.remove(&spec.name);
                if let Some(read) = self.host.service(&spec.name)?.filter(|read| !is_as(read, spec)) {
                    warn!(
                        service = spec.name,
                        command = read.command,
                        "Windows stores the configuration of the service in another form than wicd wrote it; wicd accepts this, and nobody has to act"
                    );
                    self.odd.insert(spec.name.clone(), (spec.clone(), read));
                }
            }
            Action::Start(service) => {
                self.remove_leftovers(service)?;
                info!(service, "starting");
                self.host.start_service(service)?;
            }
        }
        Ok(())
    }

    /// Ends programs that an earlier run of a service has left, and removes networks with which the service would not reach its desired state.
    fn remove_leftovers(&self, service: &str) -> Result<(), HostError> {
        let Some(command) = self.host.service(service)?.map(|s| s.command) else { return Ok(()) };
        let ended = self.host.end_orphans(&programs(&command))?;
        if !ended.is_empty() {
            warn!(service, ?ended, "ended programs that an earlier run of the service has left");
        }
        if service == network::OVERLAY_SERVICE {
            network::renew(&*self.host, &command)?;
        }
        Ok(())
    }

    /// Returns a service with the configuration that wicd wrote, if the service manager still reports the same as right after that write. Returns any
    /// other service unchanged. Without this, a service that the service manager stores differently would be stopped, written and started forever.
    fn as_written(&self, mut actual: ServiceInfo) -> ServiceInfo {
        if let Some((spec, read)) = self.odd.get(&actual.name)
            && actual.command == read.command
            && actual.dependencies == read.dependencies
            && actual.environment == read.environment
        {
            actual.command.clone_from(&spec.command);
            actual.dependencies.clone_from(&spec.dependencies);
            actual.environment.clone_from(&spec.environment);
        }
        actual
    }

    /// Logs a problem, unless it is the same as before.
    fn complain(&mut self, about: &str, error: &dyn std::error::Error) {
        let text = super::chain(error);
        if self.complaints.get(about) != Some(&text) {
            warn!(about, "{text}; wicd tries again at its next check");
            self.complaints.insert(about.to_owned(), text);
        }
    }
}

fn is_as(actual: &ServiceInfo, spec: &ServiceSpec) -> bool {
    (&actual.command, &actual.dependencies, &actual.environment)
        == (&spec.command, &spec.dependencies, &spec.environment)
}

#[cfg(test)]
#[path = "reconciler_drift_tests.rs"]
mod drift_tests;
#[cfg(test)]
#[path = "reconciler_route_tests.rs"]
mod route_tests;
#[cfg(test)]
#[path = "reconciler_tests.rs"]
mod tests;
