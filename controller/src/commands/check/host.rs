//! Command `check host`: reports whether a host can become a node. It needs no cluster, and leaves the host unchanged.

use api::Reason;
use std::time::Duration;

use api::host::{self, Feature, HostState, Verb};
use jiff::Timestamp;
use remote::{RemoteError, Session, facts};
use wnp_core::operation::{
    preflight::{self, Preflight},
    preflight_warnings::{self, Asked},
    service_accounts, windows_versions,
};

use super::row::{Finding, Outcome};
use crate::{
    args::{CheckHost, output::progress},
    commands::host_session,
};

/// Timeout of the connection and of each command.
const LIMIT: Duration = Duration::from_mins(1);

/// Facts about a host, which the checks judge.
pub(super) struct Facts {
    args: CheckHost,
    /// Fingerprint of the host key, or the reason why the log-in failed.
    login: Result<String, RemoteError>,
    /// State of the host, present after a log-in.
    state: Option<Result<HostState, RemoteError>>,
    now: Timestamp,
}

/// Logs in and queries the host.
///
/// # Errors
/// Fails when the private key or `wicd.exe` cannot be read, or the host key is invalid.
pub(super) async fn observe(args: CheckHost) -> anyhow::Result<Facts> {
    let target = host_session::target(&args.address, &args.login, LIMIT)?;
    let operator = host_session::operator(&args.wicd)?;
    let operation = format!("check-{}", std::process::id());
    progress(&format!("logging in to {}", args.address));
    let (login, state) = match Session::open(&operator, &target, "", &operation, None).await {
        Err(error) => (Err(error), None),
        Ok(session) => {
            let asked = host::Facts {
                files: Vec::new(),
                api_server: args.api_server.clone(),
                ports: vec![preflight::KUBELET_PORT],
                service_accounts: args.gmsa.clone(),
                credential_plugin: None,
            };
            progress("checking the host with wicd.exe, which is copied to it if it is missing there");
            let state =
                Box::pin(host_session::query_host(&session, &operation, Verb::Facts, session.facts(asked))).await;
            let login = Ok(session.connection().host_key().fingerprint());
            session.close().await;
            (login, Some(state))
        }
    };
    Ok(Facts { args, login, state, now: Timestamp::now() })
}

impl Facts {
    fn state(&self) -> Option<&HostState> {
        self.state.as_ref()?.as_ref().ok()
    }
}

fn of_remote(error: &RemoteError) -> Outcome {
    Outcome::of([Finding::failed(error.reason(), error)], "")
}

pub(super) fn login(facts: &Facts, _: &str) -> Outcome {
    match &facts.login {
        Ok(key) => Outcome::of([], format!("logged in as {}, host key {key}", facts.args.login.user)),
        Err(error) => of_remote(error),
    }
}

/// Judges whether wicd answers. An answer has no row of its own: the other rows show it.
pub(super) fn program(facts: &Facts, _: &str) -> Outcome {
    match &facts.state {
        Some(Err(error)) => of_remote(error),
        _ => Outcome::default(),
    }
}

/// Returns the outcome of a check whose fault prevents the host from becoming a node.
pub(super) fn fault(facts: &Facts, check: &str) -> Outcome {
    let Some(state) = facts.state() else { return Outcome::default() };
    let (args, machine) = (&facts.args, &state.machine);
    let asked = Preflight {
        cluster_id: "",
        user: &args.login.user,
        api_server: args.api_server.as_deref(),
        needed: args.needed_mib.saturating_mul(1 << 20),
        credential_plugin: None,
        vxlan_port: args.vxlan_port,
        now: facts.now,
    };
    let results = preflight::results(&asked, state);
    let Some((_, fault)) = results.into_iter().find(|(id, _)| *id == check) else { return Outcome::default() };
    let note = match check {
        "windows" => windows(&machine.os_name, &machine.os_build),
        "rights" => "the user is an administrator".to_owned(),
        "services" => "no service of another installer has a name that the operator needs".to_owned(),
        "port" => format!("port {} is free", preflight::KUBELET_PORT),
        "clock" => format!(
            "the clocks of the host and of this machine differ by {} s",
            facts::clock_skew_ms(machine, facts.now) / 1000
        ),
        "disk" => format!("{} MiB are free on C:", machine.disk_free >> 20),
        "api-server" => format!("the host opens a connection to {}", args.api_server.as_deref().unwrap_or_default()),
        _ => String::new(),
    };
    Outcome::of(fault.map(|fault| Finding::failed(fault.reason(), fault)), note)
}

/// Returns the outcome of a check whose fault does not prevent the host from becoming a node.
pub(super) fn warning(facts: &Facts, check: &str) -> Outcome {
    let Some(state) = facts.state() else { return Outcome::default() };
    let results = preflight_warnings::results(&Asked { now: facts.now, ..Asked::default() }, state);
    let Some((_, warning)) = results.into_iter().find(|(id, _)| *id == check) else { return Outcome::default() };
    let is_known = windows_versions::find(&state.machine.os_name, &state.machine.os_build).is_some();
    let note = match check {
        "support" | "updates" if !is_known => {
            "not checked, because a host with this version of Windows cannot be a node"
        }
        "restart" => "no restart of Windows that needs a user is pending",
        "antivirus" => "no antivirus needs an exclusion that the operator does not add itself",
        "support" => "Microsoft supports this version of Windows beyond this year",
        "updates" => "Windows has the update that nodes need",
        _ => "no other container runtime is installed",
    };
    Outcome::of(warning.map(|warning| Finding::warning(Reason::HostWarning, warning)), note)
}

/// Warns if the join must enable the feature Containers, and therefore restart the host.
pub(super) fn feature(facts: &Facts, _: &str) -> Outcome {
    let Some(state) = facts.state() else { return Outcome::default() };
    let missing = (state.machine.containers_feature == Feature::Disabled).then(|| {
        Finding::warning(
            Reason::HostWarning,
            "the feature Containers is not enabled: the join enables it and restarts the host",
        )
        .remedy("to restart before the join, run Install-WindowsFeature -Name Containers -Restart on the host")
    });
    let is_known = state.machine.containers_feature != Feature::Unknown;
    Outcome::of(
        missing,
        if is_known {
            "the feature Containers is enabled"
        } else {
            "Windows does not report whether the feature Containers is enabled"
        },
    )
}

pub(super) fn accounts(facts: &Facts, _: &str) -> Outcome {
    let Some(state) = facts.state().filter(|_| !facts.args.gmsa.is_empty()) else { return Outcome::default() };
    let fault = service_accounts::check(&facts.args.gmsa, None, state).err();
    Outcome::of(
        fault.map(|fault| Finding::warning(fault.reason(), fault)),
        format!("the host can use {}", facts.args.gmsa.join(", ")),
    )
}

fn windows(os_name: &str, os_build: &str) -> String {
    let name = api::text::line(&format!("{os_name} {os_build}"), 100);
    match windows_versions::find(os_name, os_build) {
        Some(version) => format!(
            "{name}, base images {}, extended support by Microsoft until {}",
            version.image, version.support_ends
        ),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use api::host::Machine;

    use super::{
        super::{catalog, fake_cluster::faults},
        *,
    };

    /// Name of a case, a change that breaks one thing on a host, and the check that finds it, with its result and reason.
    type Case = (&'static str, fn(&mut HostState), &'static str);

    fn args() -> CheckHost {
        CheckHost {
            address: "10.0.0.1".into(),
            login: crate::args::Login {
                identity: "key".into(),
                port: 22,
                user: "Administrator".into(),
                host_key: None,
            },
            api_server: Some("https://api:6443".into()),
            vxlan_port: None,
            needed_mib: 1024,
            gmsa: Vec::new(),
            wicd: "wicd.exe".into(),
            output: crate::args::Output::Table,
        }
    }

    #[test]
    fn a_host_with_the_windows_of_2019_is_refused_with_another_vxlan_port() {
        let machine = Machine {
            os_name: "Windows Server 2019 Datacenter".into(),
            os_build: "10.0.17763.6000".into(),
            ..Machine::default()
        };
        let state = HostState { machine, ..HostState::default() };
        for (port, expected) in [(None, "passed"), (Some(4789), "passed"), (Some(9898), "failed")] {
            let args = CheckHost { vxlan_port: port, ..args() };
            let facts = Facts { args, login: Ok(String::new()), state: Some(Ok(state.clone())), now: Timestamp::now() };
            let rows = catalog::objects(&catalog::outcomes(catalog::Facts::Host(&facts)));
            let row = rows.iter().find(|row| row["check"] == "windows").unwrap();
            assert_eq!(row["result"], expected, "{port:?}: {row}");
        }
    }

    #[test]
    fn the_support_of_a_windows_that_cannot_be_a_node_is_not_judged() {
        let machine =
            Machine { os_name: "Windows 10 Pro".into(), os_build: "10.0.19045.4000".into(), ..Machine::default() };
        let state = HostState { machine, ..HostState::default() };
        let facts = Facts { args: args(), login: Ok(String::new()), state: Some(Ok(state)), now: Timestamp::now() };
        let rows = catalog::objects(&catalog::outcomes(catalog::Facts::Host(&facts)));
        for check in ["support", "updates"] {
            let row = rows.iter().find(|row| row["check"] == check).unwrap();
            assert!(row["message"].as_str().unwrap().starts_with("not checked"), "{row}");
        }
    }

    #[test]
    fn each_fault_of_a_host_is_found_by_its_check() {
        let args = args();
        let cases: [Case; 10] = [
            ("nothing", |_| (), ""),
            ("no administrator", |s| s.machine.is_admin = false, "rights failed NotAdministrator"),
            ("another build", |s| s.machine.os_build = "10.0.25398.1".into(), "windows failed WindowsNotSupported"),
            ("a desktop", |s| s.machine.os_name = "Windows 10 Pro".into(), "windows failed WindowsNotSupported"),
            ("a full disk", |s| s.machine.disk_free = 1 << 29, "disk failed DiskFull"),
            ("another kubelet", |s| s.foreign_services.push("kubelet".into()), "services failed ForeignServices"),
            ("a clock that is off", |s| s.machine.clock_ms += 3_600_000, "clock failed ClockSkew"),
            ("a port in use", |s| s.ports_in_use.push(10250), "port failed PortInUse"),
            ("no feature", |s| s.machine.containers_feature = Feature::Disabled, "feature warning HostWarning"),
            ("no route", |s| s.api_server = Some("timed out".into()), "api-server failed ApiServerUnreachable"),
        ];
        for (about, break_it, expected) in cases {
            let machine = Machine {
                is_admin: true,
                os_name: "Windows Server 2022 Datacenter".into(),
                os_build: "10.0.20348.2527".into(),
                clock_ms: Timestamp::now().as_millisecond(),
                disk_free: 2 << 30,
                ..Machine::default()
            };
            let mut state = HostState { machine, ..HostState::default() };
            break_it(&mut state);
            let (login, state) = (Ok("SHA256:x".into()), Some(Ok(state)));
            let facts = Facts { args: args.clone(), login, state, now: Timestamp::now() };
            let rows = catalog::objects(&catalog::outcomes(catalog::Facts::Host(&facts)));
            assert_eq!(rows.len(), 14, "{about}");
            assert_eq!(faults(&rows), expected, "{about}");
            for row in rows {
                let link = format!("docs/reference/conditions.md#check-host-{}", row["check"].as_str().unwrap());
                assert_eq!(row["link"], link.as_str(), "{row}");
            }
        }
    }
}
