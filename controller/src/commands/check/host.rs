//! The command `check host`: whether a host can become a node, without a cluster and without a change of the host.

use api::Reason;
use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use api::host::{self, HostState, Verb, path};
use jiff::Timestamp;
use remote::{
    Operator, RemoteError, Session, Traffic, facts,
    payload::{Payload, Wicd},
};
use wnp_core::operation::{
    preflight::{self, Preflight},
    preflight_warnings::{self, Asked, Warning},
    service_accounts, windows_versions,
};

use super::{
    catalog::Scope,
    row::{self, Finding, Row},
};
use crate::{args::CheckHost, commands::ssh_target};

/// For log-in and for each answer.
const LIMIT: Duration = Duration::from_mins(1);

/// Checks a host, prints the results, and returns the exit status.
///
/// # Errors
/// When the key or `wicd.exe` cannot be read, or the results cannot be printed. A host that cannot become a node is no error: the exit
/// status reports it.
pub async fn host(args: CheckHost) -> anyhow::Result<ExitCode> {
    let rows = rows(&args).await?;
    row::print(&rows, args.output, Scope::Host)
}

async fn rows(args: &CheckHost) -> anyhow::Result<Vec<Row>> {
    let session = match open(args).await? {
        Ok(session) => session,
        Err(error) => return Ok(vec![login(args, Err(&error))]),
    };
    let mut rows = vec![login(args, Ok(&session))];
    match look(&session, args).await {
        Ok(state) => rows.extend(of_state(args, &state)),
        Err(error) => rows.push(failed("program", &error)),
    }
    session.close().await;
    Ok(rows)
}

async fn open(args: &CheckHost) -> anyhow::Result<Result<Session, RemoteError>> {
    let target = ssh_target::new(&args.address, &args.login, LIMIT)?;
    let operator = Operator {
        cluster_id: String::new(),
        epoch: 0,
        wicd: Wicd::open(&args.wicd).context("cannot read wicd.exe; name it with --wicd")?,
        payload: Payload::default(),
        traffic: Traffic::default(),
    };
    let operation = format!("check-{}", std::process::id());
    Ok(Session::open(&Arc::new(operator), &target, "", &operation, None).await)
}

/// Asks wicd, and leaves nothing on a host that had nothing of the operator.
async fn look(session: &Session, args: &CheckHost) -> Result<HostState, RemoteError> {
    let connection = session.connection();
    let was_empty = connection.list(path::LAUNCH).await?.is_empty() && connection.list(path::WICD).await?.is_empty();
    let asked = host::Facts {
        files: Vec::new(),
        api_server: args.api_server.clone(),
        ports: vec![preflight::KUBELET_PORT],
        service_accounts: args.gmsa.clone(),
        credential_plugin: None,
    };
    let found = async {
        session.prepare().await?;
        session.facts(asked).await
    };
    let found = found.await;
    session.tidy(&[Verb::Facts]).await?;
    if was_empty {
        session.remove_wicd().await?;
    }
    found
}

fn login(args: &CheckHost, result: Result<&Session, &RemoteError>) -> Row {
    match result {
        Ok(session) => {
            let key = session.connection().host_key().fingerprint();
            Row::passed("login", format!("as {}, host key {key}", args.login.user))
        }
        Err(error) => failed("login", error),
    }
}

fn failed(check: &'static str, error: &RemoteError) -> Row {
    finding(check, Some((false, error.reason(), error.to_string())), String::new())
}

/// A row with a finding (whether it is a warning, reason, message), or with a note if there is none.
fn finding(check: &'static str, found: Option<(bool, Reason, String)>, note: String) -> Row {
    let finding = found.map(|(is_warning, reason, message)| Finding { is_warning, reason, message, remedy: None });
    Row { check, finding, note }
}

fn of_state(args: &CheckHost, state: &HostState) -> Vec<Row> {
    let asked = Preflight {
        cluster_id: "",
        user: &args.login.user,
        api_server: args.api_server.as_deref(),
        needed: args.needed_mib.saturating_mul(1 << 20),
        credential_plugin: None,
        now: Timestamp::now(),
    };
    let machine = &state.machine;
    let note = |check: &str| match check {
        "windows" => windows(&machine.os_name, &machine.os_build),
        "rights" => "an administrator".to_owned(),
        "services" => "none of another installer".to_owned(),
        "port" => format!("{} is free", preflight::KUBELET_PORT),
        "clock" => format!("{} s off", facts::clock_skew_ms(machine, asked.now) / 1000),
        "disk" => format!("{} MiB free on C:", machine.disk_free >> 20),
        "api-server" => args.api_server.clone().unwrap_or_default(),
        _ => String::new(),
    };
    let fault = |(check, fault): (&'static str, Option<preflight::Fault>)| {
        finding(check, fault.map(|f| (false, f.reason(), f.to_string())), note(check))
    };
    let warning = |(check, warning): (&'static str, Option<Warning>)| {
        let note = match check {
            "restart" => "Windows waits for none that needs you",
            "antivirus" => "nothing that needs you",
            "support" => "Microsoft supports this Windows",
            "updates" => "it has the update that nodes need",
            _ => "none of another installer",
        };
        finding(check, warning.map(|w| (true, Reason::HostWarning, w.to_string())), note.to_owned())
    };
    let faults = preflight::results(&asked, state).into_iter().map(fault);
    let warnings =
        preflight_warnings::results(&Asked { now: asked.now, ..Asked::default() }, state).into_iter().map(warning);
    faults.chain(warnings).chain(accounts(args, state)).collect()
}

/// Whether the host can use the accounts that were named. It can become a node in any case.
fn accounts(args: &CheckHost, state: &HostState) -> Option<Row> {
    let found =
        service_accounts::check(&args.gmsa, None, state).err().map(|fault| (true, fault.reason(), fault.to_string()));
    (!args.gmsa.is_empty()).then(|| finding("gmsa", found, args.gmsa.join(", ")))
}

fn windows(os_name: &str, os_build: &str) -> String {
    let name = facts::short(&format!("{os_name} {os_build}"), 100);
    match windows_versions::find(os_name, os_build) {
        Some(version) => format!("{name}, base images {}, supported until {}", version.image, version.support_ends),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use api::host::Machine;

    use super::*;

    /// A host of which only that is wrong, the check that says so, and its result.
    type Case = (&'static str, fn(&mut HostState), Option<(&'static str, &'static str, &'static str)>);

    #[test]
    fn each_fault_of_a_host_is_found_by_its_check() {
        let args = CheckHost {
            address: "10.0.0.1".into(),
            login: crate::args::Login {
                identity: "key".into(),
                port: 22,
                user: "Administrator".into(),
                host_key: None,
            },
            api_server: Some("https://api:6443".into()),
            needed_mib: 1024,
            gmsa: Vec::new(),
            wicd: "wicd.exe".into(),
            output: crate::args::Output::Table,
        };
        let cases: [Case; 9] = [
            ("nothing", |_| (), None),
            ("no administrator", |s| s.machine.is_admin = false, Some(("rights", "failed", "NotAdministrator"))),
            (
                "a build that is none of ours",
                |s| s.machine.os_build = "10.0.25398.1".into(),
                Some(("windows", "failed", "WindowsNotSupported")),
            ),
            (
                "a desktop",
                |s| s.machine.os_name = "Windows 10 Pro".into(),
                Some(("windows", "failed", "WindowsNotSupported")),
            ),
            ("a full disk", |s| s.machine.disk_free = 1 << 29, Some(("disk", "failed", "DiskFull"))),
            (
                "kubelet of another installer",
                |s| s.foreign_services.push("kubelet".into()),
                Some(("services", "failed", "ForeignServices")),
            ),
            ("a clock that is off", |s| s.machine.clock_ms += 3_600_000, Some(("clock", "failed", "ClockSkew"))),
            ("a port in use", |s| s.ports_in_use.push(10250), Some(("port", "failed", "PortInUse"))),
            (
                "no way to the API server",
                |s| s.api_server = Some("timed out".into()),
                Some(("api-server", "failed", "ApiServerUnreachable")),
            ),
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
            let rows: Vec<_> = of_state(&args, &state).iter().map(|row| row::object(row, Scope::Host)).collect();
            let wrong: Vec<_> = rows.iter().filter(|row| row["result"] != "passed").collect();
            let found: Vec<_> = wrong
                .iter()
                .map(|row| ["check", "result", "reason"].map(|k| row[k].as_str().unwrap_or_default()))
                .collect();
            let expected: Vec<_> =
                expected.into_iter().map(|(check, result, reason)| [check, result, reason]).collect();
            assert_eq!(found, expected, "{about}");
            for row in rows {
                let link = format!("docs/reference/checks.md#check-host-{}", row["check"].as_str().unwrap());
                assert_eq!(row["link"], link.as_str(), "{row}");
            }
        }
    }
}
