//! Next actions on the host's services: a pure function of the desired and the observed state.
//!
//! A plan covers one pass: a service that depends on one that is still starting waits for the next pass.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::host::{SERVICE_DESCRIPTION_PREFIX, ServiceState, WICD_SERVICE};

use super::order::dependents;
use crate::host::{Recovery, ServiceInfo, ServiceSpec, StartType};
use crate::ownership::Ownership;

/// Desired state of a service.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DesiredService {
    /// Name of the service.
    pub name: String,
    /// Command line; `None` while a variable in it is not known. Then an existing service keeps its command line.
    pub command: Option<String>,
    /// Services that must run before this one, in order.
    pub dependencies: Vec<String>,
    /// Environment variables of the service in addition to those of the machine.
    pub environment: BTreeMap<String, String>,
    /// True if the service failed so recently that it must not be started yet.
    pub hold: bool,
    /// Progress of the service's prerequisites on the host.
    pub prepared: Prepared,
    /// True if drift of the service is reported and not corrected. The service is still started, unless it was deleted.
    pub left: bool,
}

/// Progress of a service's prerequisites on the host, see [`api::services::Prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Prepared {
    /// All prerequisites exist, or the service has none.
    #[default]
    Ready,
    /// A prerequisite of the running service must change, which happens after the service has stopped.
    Stale,
    /// A prerequisite does not exist yet.
    NotYet,
}

impl DesiredService {
    /// Returns the parts in which an existing service differs.
    pub fn differences(&self, actual: &ServiceInfo) -> Vec<&'static str> {
        let parts = [
            ("command", self.command.as_ref().is_some_and(|c| *c != actual.command)),
            ("dependencies", self.dependencies != actual.dependencies),
            ("variables", self.environment != actual.environment),
        ];
        parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part).collect()
    }

    /// Returns the configuration for the service manager. wicd starts the service, not Windows, so that the service does not start with the host
    /// while its configuration is outdated. The service manager restarts a service that fails, also while wicd itself does not run.
    pub fn spec(&self, command: &str) -> ServiceSpec {
        ServiceSpec {
            name: self.name.clone(),
            description: format!("{SERVICE_DESCRIPTION_PREFIX}{}", self.name),
            command: command.to_owned(),
            dependencies: self.dependencies.clone(),
            environment: self.environment.clone(),
            start: StartType::Demand,
            recovery: recovery(),
        }
    }
}

/// Returns the service manager's reaction when a service of the operator ends unexpectedly.
pub fn recovery() -> Recovery {
    Recovery { delays: [10, 60, 300].map(Duration::from_secs).to_vec(), reset: Duration::from_hours(1) }
}

/// Action on a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stop a service and those that depend on it.
    Stop(String),
    /// Delete a stopped service.
    Delete(String),
    /// Create or change a service. An earlier action has stopped the service if the change requires that.
    Put(ServiceSpec),
    /// Start a service.
    Start(String),
}

impl Action {
    /// Returns the name of the service that the action is about.
    pub fn service(&self) -> &str {
        match self {
            Self::Stop(name) | Self::Delete(name) | Self::Start(name) => name,
            Self::Put(spec) => &spec.name,
        }
    }
}

/// Reason why a service does not reach its desired state in this pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The service is starting or stopping.
    Pending,
    /// A dependency of the service does not run yet.
    Dependency,
    /// A variable in the service's command is not known.
    Variable,
    /// A prerequisite of the service does not exist on the host yet.
    Preparation,
    /// The service has failed, and is started again later.
    Failing,
    /// Another installer has created a service of this name.
    Foreign,
}

/// Plan of one pass over the services.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Plan {
    /// Actions, in this order. If one action on a service fails, its later ones are skipped.
    pub actions: Vec<Action>,
    /// Services that wait, with the reason.
    pub waiting: BTreeMap<String, Waiting>,
}

impl Plan {
    /// Reports whether all services match their desired state.
    pub fn is_settled(&self) -> bool {
        self.actions.is_empty() && self.waiting.is_empty()
    }
}

/// Plans one pass over the services.
///
/// `wanted` has the desired services in start order, `all` the services of the host; `owned` identifies the operator's services. With
/// `assure`, settings that `all` does not show (recovery) are written, too.
pub fn plan(wanted: &[DesiredService], all: &[ServiceInfo], owned: &Ownership, assure: bool) -> Plan {
    let mut plan = Plan::default();
    // State of the services after the actions so far.
    let mut now: Vec<ServiceInfo> = all.to_vec();
    let mut restart: BTreeSet<String> = BTreeSet::new();

    for service in all {
        let kept = wanted.iter().any(|w| w.name.eq_ignore_ascii_case(&service.name));
        if kept || service.name.eq_ignore_ascii_case(WICD_SERVICE) || !owned.is_ours(service) {
            continue;
        }
        restart.extend(stop(&mut plan, &mut now, &service.name));
        plan.actions.push(Action::Delete(service.name.clone()));
        now.retain(|s| s.name != service.name);
    }

    // All stops come before all starts, in reverse order of start.
    for service in wanted.iter().rev() {
        let must_stop = |a: &&ServiceInfo| differs(service, a) || service.prepared == Prepared::Stale;
        if let Some(actual) = find(&now, &service.name).filter(|a| owned.is_ours(a)).filter(must_stop)
            && actual.state == ServiceState::Running
        {
            let name = actual.name.clone();
            restart.extend(stop(&mut plan, &mut now, &name));
        }
    }

    for service in wanted {
        if let Some(waiting) = plan_service(&mut plan.actions, service, &now, wanted, owned, assure) {
            plan.waiting.insert(service.name.clone(), waiting);
        }
    }

    // Start other services that had to stop because they depend on services of the operator.
    for name in restart {
        let ours = wanted.iter().any(|w| w.name.eq_ignore_ascii_case(&name));
        if !ours && find(&now, &name).is_some() {
            plan.actions.push(Action::Start(name));
        }
    }
    plan
}

/// Plans the actions on one desired service, whose necessary stop is planned already.
fn plan_service(
    actions: &mut Vec<Action>,
    service: &DesiredService,
    now: &[ServiceInfo],
    wanted: &[DesiredService],
    owned: &Ownership,
    assure: bool,
) -> Option<Waiting> {
    let actual = find(now, &service.name);
    if actual.is_some_and(|a| !owned.is_ours(a)) {
        return Some(Waiting::Foreign);
    }
    let state = actual.map_or(ServiceState::Missing, |a| a.state);
    let Some(command) = service.command.as_deref().or(actual.map(|a| a.command.as_str())) else {
        return Some(Waiting::Variable);
    };
    let spec = service.spec(command);
    let same =
        actual.is_some_and(|a| !differs(service, a) && a.description == spec.description && a.start == spec.start);
    if state == ServiceState::Pending && actual.is_some_and(|a| differs(service, a)) {
        return Some(Waiting::Pending);
    }
    if service.left && state == ServiceState::Missing {
        return None;
    }
    if !service.left && (!same || assure) {
        actions.push(Action::Put(spec));
    }
    match state {
        ServiceState::Running => (service.prepared != Prepared::Ready).then_some(Waiting::Preparation),
        ServiceState::Pending => Some(Waiting::Pending),
        ServiceState::Stopped | ServiceState::Missing => {
            // The service manager would start dependencies, too, but would attribute their failures to this service.
            let blocked = service.dependencies.iter().any(|d| {
                wanted.iter().any(|w| w.name.eq_ignore_ascii_case(d))
                    && find(now, d).is_none_or(|a| a.state != ServiceState::Running)
            });
            if blocked {
                Some(Waiting::Dependency)
            } else if service.prepared != Prepared::Ready {
                Some(Waiting::Preparation)
            } else if service.hold {
                Some(Waiting::Failing)
            } else {
                actions.push(Action::Start(service.name.clone()));
                None
            }
        }
    }
}

/// Reports whether a service must be stopped to reach its desired state.
fn differs(wanted: &DesiredService, actual: &ServiceInfo) -> bool {
    !wanted.left && !wanted.differences(actual).is_empty()
}

/// Plans a stop; returns the dependents that stop too.
fn stop(plan: &mut Plan, now: &mut [ServiceInfo], name: &str) -> Vec<String> {
    let stopped = dependents(now, name);
    if find(now, name).is_some_and(ServiceInfo::is_up) {
        plan.actions.push(Action::Stop(name.to_owned()));
    }
    for service in now.iter_mut() {
        if service.name.eq_ignore_ascii_case(name) || stopped.contains(&service.name) {
            service.state = ServiceState::Stopped;
        }
    }
    stopped
}

/// Returns the service of this name, which is not case-sensitive.
pub fn find<'a>(services: &'a [ServiceInfo], name: &str) -> Option<&'a ServiceInfo> {
    services.iter().find(|s| s.name.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ServiceState::{Missing, Pending, Running, Stopped};

    fn wanted(name: &str, dependencies: &[&str]) -> DesiredService {
        DesiredService {
            name: name.into(),
            command: Some(format!(r"C:\k\{name}.exe")),
            dependencies: dependencies.iter().map(ToString::to_string).collect(),
            ..DesiredService::default()
        }
    }

    fn actual(wanted: &DesiredService, state: ServiceState) -> ServiceInfo {
        wanted.spec(wanted.command.as_deref().unwrap_or("old")).service(state)
    }

    /// Returns the actions and the waiting services as a short text.
    fn short(plan: &Plan) -> String {
        let word = |a: &Action| match a {
            Action::Stop(_) => "stop",
            Action::Delete(_) => "delete",
            Action::Put(_) => "put",
            Action::Start(_) => "start",
        };
        let actions = plan.actions.iter().map(|a| format!("{} {}", word(a), a.service()));
        let waiting = plan.waiting.iter().map(|(name, why)| format!("{name}: {why:?}"));
        actions.chain(waiting).collect::<Vec<_>>().join(", ")
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of cases")]
    fn each_service_gets_the_actions_that_are_possible_at_once() {
        let c = &wanted("containerd", &[]);
        let k = &wanted("kubelet", &["containerd"]);
        let p = &wanted("kube-proxy", &["kubelet"]);
        let changed = |w: &DesiredService| DesiredService { command: Some("new".into()), ..w.clone() };
        let proxied =
            |w: &DesiredService| DesiredService { environment: [("A".to_owned(), "b".to_owned())].into(), ..w.clone() };
        let unknown = |w: &DesiredService| DesiredService { command: None, ..w.clone() };
        let hold = |w: &DesiredService| DesiredService { hold: true, ..w.clone() };
        let left = |w: &DesiredService| DesiredService { left: true, ..changed(w) };
        let prepared = |w: &DesiredService, prepared| DesiredService { prepared, ..w.clone() };
        let foreign = |name: &str, dependencies: &[&str]| ServiceInfo {
            description: "of another installer".into(),
            ..actual(&wanted(name, dependencies), Running)
        };
        let check = |about: &str, wanted: &[&DesiredService], all: &[ServiceInfo], expected: &str| {
            let wanted: Vec<DesiredService> = wanted.iter().copied().cloned().collect();
            assert_eq!(short(&plan(&wanted, all, &Ownership::default(), false)), expected, "{about}");
        };

        type Case<'a> = (&'a str, [&'a DesiredService; 3], [ServiceState; 3], &'a str);
        let cases: [Case<'_>; 15] = [
            ("the host matches", [c, k, p], [Running; 3], ""),
            (
                "no service exists",
                [c, k, p],
                [Missing; 3],
                "put containerd, start containerd, put kubelet, put kube-proxy, kube-proxy: Dependency, kubelet: Dependency",
            ),
            ("one is starting", [c, k, p], [Running, Pending, Stopped], "kube-proxy: Dependency, kubelet: Pending"),
            ("after a restart of the host", [c, k, p], [Running, Stopped, Running], "start kubelet"),
            (
                "a failing one waits, and so do its dependents",
                [c, &hold(k), p],
                [Running, Stopped, Stopped],
                "kube-proxy: Dependency, kubelet: Failing",
            ),
            (
                "a change stops dependents first and starts them again",
                [c, &changed(k), p],
                [Running; 3],
                "stop kubelet, put kubelet, start kubelet, kube-proxy: Dependency",
            ),
            (
                "so does another variable",
                [c, &proxied(k), p],
                [Running; 3],
                "stop kubelet, put kubelet, start kubelet, kube-proxy: Dependency",
            ),
            ("drift is left", [c, &left(k), p], [Running; 3], ""),
            (
                "dependents of a deleted service wait",
                [c, &left(k), p],
                [Running, Missing, Stopped],
                "kube-proxy: Dependency",
            ),
            (
                "of two changed ones, the last started is the first stopped",
                [&changed(c), k, &changed(p)],
                [Running; 3],
                "stop kube-proxy, stop containerd, put containerd, start containerd, put kube-proxy, \
                 kube-proxy: Dependency, kubelet: Dependency",
            ),
            (
                "an unknown variable keeps the old command",
                [c, k, &unknown(p)],
                [Running, Running, Stopped],
                "start kube-proxy",
            ),
            (
                "an unknown variable of a missing service",
                [c, k, &unknown(p)],
                [Running, Running, Missing],
                "kube-proxy: Variable",
            ),
            (
                "a prerequisite does not exist yet",
                [c, k, &prepared(p, Prepared::NotYet)],
                [Running, Running, Missing],
                "put kube-proxy, kube-proxy: Preparation",
            ),
            (
                "a service without its prerequisite continues, and that is reported",
                [c, k, &prepared(p, Prepared::NotYet)],
                [Running; 3],
                "kube-proxy: Preparation",
            ),
            (
                "a prerequisite changes after the service has stopped",
                [c, k, &prepared(p, Prepared::Stale)],
                [Running; 3],
                "stop kube-proxy, kube-proxy: Preparation",
            ),
        ];
        for (about, wanted, states, expected) in cases {
            let exist = [c, k, p].into_iter().zip(states).filter(|(_, state)| *state != Missing);
            check(about, &wanted, &exist.map(|(w, state)| actual(w, state)).collect::<Vec<_>>(), expected);
        }

        let running = [c, k, p].map(|w| actual(w, Running));
        let with = |more: ServiceInfo| running.iter().cloned().chain([more]).collect::<Vec<_>>();
        let two = |state| [actual(c, Running), actual(k, state)];
        check("drift is started as it is", &[c, &left(k)], &two(Stopped), "start kubelet");
        check("a deleted service stays deleted", &[c, &left(k)], &two(Running)[..1], "");
        check("a starting one is changed once it runs", &[c, &changed(k)], &two(Pending), "kubelet: Pending");
        check("no longer desired", &[c], &running, "stop kubelet, delete kubelet, delete kube-proxy");
        let theirs = [actual(c, Running), foreign("kubelet", &[]), actual(p, Running)];
        check("another installer's service of the same name stays", &[c, k, p], &theirs, "kubelet: Foreign");
        check("others stay", &[c, k, p], &with(foreign("spooler", &[])), "");
        check(
            "others that depend on the operator's are started again",
            &[c, k, &changed(p)],
            &with(foreign("monitor", &["kube-proxy"])),
            "stop kube-proxy, put kube-proxy, start kube-proxy, start monitor",
        );
        let automatic = ServiceInfo { start: StartType::Auto, ..actual(c, Running) };
        check("another start type", &[c], &[automatic], "put containerd");
    }

    #[test]
    fn wicd_never_removes_itself_and_owns_what_is_on_record() {
        let own = ServiceInfo {
            name: WICD_SERVICE.into(),
            description: format!("{SERVICE_DESCRIPTION_PREFIX}{WICD_SERVICE}"),
            state: Running,
            ..ServiceInfo::default()
        };
        let stripped = ServiceInfo { name: "old".into(), state: Stopped, ..ServiceInfo::default() };
        let owned = Ownership { services: ["old".to_string()].into(), ..Ownership::default() };
        let plan = plan(&[], &[own, stripped], &owned, false);
        assert_eq!(short(&plan), "delete old");
    }

    #[test]
    fn settings_that_cannot_be_read_back_are_written_without_a_stop() {
        let c = wanted("containerd", &[]);
        let plan = plan(std::slice::from_ref(&c), &[actual(&c, Running)], &Ownership::default(), true);
        assert_eq!(short(&plan), "put containerd");
    }
}
