//! The command `check host`: whether a host can become a node, without a cluster and without a change of the host.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use api::host::{self, HostState, Verb, path};
use jiff::Timestamp;
use remote::{
    Operator, RemoteError, Session, Traffic, facts,
    payload::{Payload, Wicd},
};
use serde_json::{Value, json};
use wnp_core::operation::{
    preflight::{self, Preflight},
    windows_versions,
};

use crate::{
    args::{CheckHost, Output},
    ssh_target,
};

/// Exit status when the host cannot become a node.
const UNFIT: u8 = 1;
/// For log-in and for each answer.
const LIMIT: Duration = Duration::from_mins(1);

/// A check and its result.
struct Row {
    check: &'static str,
    fault: Option<(String, String)>,
    note: String,
}

/// Checks a host, prints the results, and returns the exit status.
///
/// # Errors
/// When the key or `wicd.exe` cannot be read, or the results cannot be printed. A host that cannot become a node is no error: the exit
/// status reports it.
pub async fn host(args: CheckHost) -> anyhow::Result<ExitCode> {
    let rows = rows(&args).await?;
    let fit = rows.iter().all(|row| row.fault.is_none());
    let text = match args.output {
        Output::Table => table(&rows),
        Output::Json => serde_json::to_string_pretty(&rows.iter().map(object).collect::<Vec<_>>())? + "\n",
    };
    crate::output::print(&text)?;
    Ok(if fit { ExitCode::SUCCESS } else { UNFIT.into() })
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
    let asked =
        host::Facts { files: Vec::new(), api_server: args.api_server.clone(), ports: vec![preflight::KUBELET_PORT] };
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
            Row { check: "login", fault: None, note: format!("as {}, host key {key}", args.login.user) }
        }
        Err(error) => failed("login", error),
    }
}

fn failed(check: &'static str, error: &RemoteError) -> Row {
    Row { check, fault: Some((error.reason().to_owned(), error.to_string())), note: String::new() }
}

fn of_state(args: &CheckHost, state: &HostState) -> Vec<Row> {
    let asked = Preflight {
        cluster_id: "",
        user: &args.login.user,
        api_server: args.api_server.as_deref(),
        needed: args.needed_mib.saturating_mul(1 << 20),
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
    let row = |(check, fault): (&'static str, Option<preflight::Fault>)| Row {
        check,
        note: note(check),
        fault: fault.map(|f| (f.reason().to_owned(), f.to_string())),
    };
    preflight::results(&asked, state).into_iter().map(row).collect()
}

fn windows(os_name: &str, os_build: &str) -> String {
    let name = facts::short(&format!("{os_name} {os_build}"), 100);
    match windows_versions::find(os_name, os_build) {
        Some(version) => format!("{name}, base images {}, supported until {}", version.image, version.support_ends),
        None => name,
    }
}

fn table(rows: &[Row]) -> String {
    let row = |Row { check, fault, note }: &Row| match fault {
        None => [(*check).to_owned(), "passed".to_owned(), note.clone()],
        Some((reason, message)) => [(*check).to_owned(), "failed".to_owned(), format!("{reason}: {message}")],
    };
    let head = ["CHECK", "RESULT", "MESSAGE"].map(str::to_owned);
    crate::output::aligned(&[head].into_iter().chain(rows.iter().map(row)).collect::<Vec<_>>())
}

fn object(row: &Row) -> Value {
    let Row { check, fault, note } = row;
    match fault {
        None => json!({"check": check, "result": "passed", "message": note}),
        Some((reason, message)) => json!({"check": check, "result": "failed", "reason": reason, "message": message}),
    }
}
