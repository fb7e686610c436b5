//! Command `status`: shows pools and their hosts as a tree, the worst first.

use std::{borrow::Borrow, fmt::Write as _, process::ExitCode, time::Duration};

use anyhow::{Context as _, bail};
use api::{
    Phase, Reason, RefusedEntry, Step, Time, WindowsInstance, WindowsNodePool, WindowsNodePoolStatus,
    act::Act,
    conditions::{find, is_true, kind},
    names::LEASE,
    services_version::short,
    text,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde::Serialize;
use wnp_core::enumeration::counted;

use crate::{
    args::{self, Output, Status, StatusOutput, host_key_policy::shown_key, output},
    client::api_server,
    commands::{
        age::{age, with_ages},
        check::{leader, server_time},
    },
    runtime::operator_namespace,
};

pub(in crate::commands) mod live;
mod watch;

/// Maximum number of Ready hosts of a pool that are listed one by one.
const FEW: usize = 10;
/// Delay after which a scheduled attempt that was not made is overdue.
const OVERDUE: SignedDuration = SignedDuration::from_mins(1);

/// Prints the pools and their hosts, and returns the exit status.
///
/// # Errors
/// Fails when `--watch` is combined with an output other than a tree, there is no configuration for the API server, it refuses a request or does not
/// answer, a named pool does not exist, or the answer cannot be printed.
pub async fn run(args: Status, cluster: &args::Cluster) -> anyhow::Result<ExitCode> {
    if args.watch {
        if !matches!(args.output, StatusOutput::Table | StatusOutput::Wide) {
            bail!("--watch prints a tree: leave --output out, or set it to wide");
        }
        // A watch receives nothing as long as nothing changes, so it has no timeout.
        let unbounded = args::Cluster { request_timeout: Duration::ZERO, ..cluster.clone() };
        return Box::pin(watch::run(&args, &api_server::client(&unbounded).await?)).await;
    }
    let client = api_server::client(cluster).await?;
    let all = ListParams::default();
    let pools: Api<WindowsNodePool> = Api::all(client.clone());
    let mut pools = pools.list(&all).await.context("failed to list the WindowsNodePools")?.items;
    if let Some(missing) = args.pools.iter().find(|name| pools.iter().all(|p| p.name_any() != **name)) {
        bail!("there is no WindowsNodePool {missing}; see: kubectl get windowsnodepools");
    }
    pools.retain(|pool| args.selects(pool));
    let instances: Api<WindowsInstance> = Api::all(client.clone());
    let instances = instances.list(&all).await.context("failed to list the WindowsInstances")?.items;
    let seen = ClusterState::of(&args, &client, &pools, &instances).await;
    let machine = match args.output {
        StatusOutput::Table | StatusOutput::Wide => {
            output::print(&seen.text(Layout::of(&args)))?;
            return Ok(exit(&seen.pools, &seen.operator).into());
        }
        StatusOutput::Name => {
            let names = seen.pools.iter().map(|pool| format!("windowsnodepool.{}/{}\n", api::names::GROUP, pool.name));
            names.collect()
        }
        StatusOutput::Json => output::answer(Output::Json, &seen.pools, String::new)?,
        StatusOutput::Yaml => output::answer(Output::Yaml, &seen.pools, String::new)?,
    };
    if let Some(warning) = seen.warning() {
        eprintln!("Warning: {warning}");
    }
    output::print(&machine)?;
    Ok(exit(&seen.pools, &seen.operator).into())
}

impl Status {
    fn selects(&self, pool: &WindowsNodePool) -> bool {
        self.pools.is_empty() || self.pools.contains(&pool.name_any())
    }
}

/// Snapshot of the pools, the worst first, and of the operator's state.
pub(in crate::commands) struct ClusterState {
    pub pools: Vec<Pool>,
    operator: Operator,
    /// Time of the API server, or the local time if that is unknown.
    now: Timestamp,
}

impl ClusterState {
    async fn of(
        args: &Status,
        client: &Client,
        pools: &[impl Borrow<WindowsNodePool>],
        instances: &[impl Borrow<WindowsInstance>],
    ) -> Self {
        let (operator, now) = operator_now(args, client).await;
        Self { pools: summarize(pools, instances, now), operator, now }
    }

    /// Returns the warning about the operator, if any, and the tree.
    fn text(&self, layout: Layout) -> String {
        let mut text = String::new();
        if let Some(warning) = self.warning() {
            write_wrapped(&mut text, "", "", warning, layout.width);
        }
        text + &tree(&self.pools, self.now, layout)
    }

    /// Returns the warning that no operator works, or that its state is unknown.
    pub(in crate::commands) fn warning(&self) -> Option<&str> {
        self.operator.warning()
    }
}

/// Returns the state of the operator and the time of the API server, or the local time if that is unknown.
async fn operator_now(args: &Status, client: &Client) -> (Operator, Timestamp) {
    let now = server_time(client).await.unwrap_or_else(Timestamp::now);
    (operator(client, &args.namespace, now).await, now)
}

/// Layout of a tree.
#[derive(Clone, Copy)]
struct Layout {
    /// True if each host has its own line, with its address and version.
    wide: bool,
    /// Number of columns at which lines wrap.
    width: usize,
    has_colours: bool,
}

impl Layout {
    /// Returns the layout for the arguments and the terminal. `NO_COLOR` is as defined in <https://no-color.org>.
    fn of(args: &Status) -> Self {
        let terminal = terminal();
        Self {
            wide: args.output == StatusOutput::Wide,
            width: terminal.map_or(args.columns, |(columns, _)| columns),
            has_colours: terminal.is_some() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        }
    }

    fn paint(self, text: &str, colour: u8) -> String {
        if self.has_colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Returns the columns and lines of the terminal; `None` if standard output is not a terminal.
fn terminal() -> Option<(usize, usize)> {
    let (width, height) = terminal_size::terminal_size_of(std::io::stdout())?;
    Some((usize::from(width.0), usize::from(height.0))).filter(|(columns, _)| *columns > 0)
}

/// State of the operator. While no operator works, no status is updated.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    /// An operator holds the Lease and renews it.
    Leads,
    /// No operator leads: a sentence with the remedy.
    Missing(String),
    /// Unknown state: a sentence with the reason.
    Unknown(String),
}

impl Operator {
    fn warning(&self) -> Option<&str> {
        match self {
            Self::Leads => None,
            Self::Missing(warning) | Self::Unknown(warning) => Some(warning),
        }
    }
}

async fn operator(client: &Client, namespace: &str, now: Timestamp) -> Operator {
    let home = operator_namespace::find(client, namespace).await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), &home.name);
    let lease = leases.get_opt(LEASE).await.map_err(|error| crate::runtime::errors::plain(&error));
    judge(lease.as_ref().map(Option::as_ref).map_err(String::as_str), &home.name, &home.remedy(), now)
}

/// Returns the state of the operator according to its Lease in the namespace.
fn judge(lease: Result<Option<&Lease>, &str>, namespace: &str, remedy: &str, now: Timestamp) -> Operator {
    let place = format!("the Lease {LEASE} in the namespace {namespace}");
    match lease.map(|lease| leader(lease, now)) {
        Ok(Ok(_)) => Operator::Leads,
        Ok(Err(problem)) => Operator::Missing(format!(
            "NO OPERATOR WORKS: {place} {problem}. Nodes keep running, but none is added, changed or repaired, and the status below may be outdated. Remedy: {remedy}."
        )),
        Err(error) => {
            Operator::Unknown(format!("Whether an operator works is not known: {place} cannot be read: {error}."))
        }
    }
}

/// Pool with its reported state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::commands) struct Pool {
    pub name: String,
    ready: String,
    degraded: bool,
    stalled: bool,
    reason: String,
    message: String,
    /// True if the operator has observed the current generation of the pool.
    observed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_version: Option<String>,
    pub hosts: Vec<Host>,
    refused: Vec<RefusedEntry>,
    asks: Vec<Ask>,
    /// Reason why outdated hosts wait for their update.
    #[serde(skip)]
    waits: String,
}

impl Pool {
    /// Returns the number of the pool's colour on a terminal.
    fn colour(&self) -> u8 {
        match self.ready.as_str() {
            "False" => State::Failed.colour(),
            _ if self.degraded || self.stalled => State::NotReady.colour(),
            "True" => State::Done.colour(),
            _ => State::Change.colour(),
        }
    }
}

/// Host of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::commands) struct Host {
    pub name: String,
    address: String,
    pub phase: Option<Phase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// True if the host follows the version of its pool, or the pool has none.
    up_to_date: bool,
    failures: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_retry_time: Option<Time>,
    reason: String,
    message: String,
    /// True for a Ready node with nothing more to report.
    #[serde(skip)]
    is_fine: bool,
}

impl Host {
    /// Reports whether the host has a version, but not the desired one.
    pub(super) fn is_outdated(&self) -> bool {
        self.version.is_some() && !self.up_to_date
    }

    /// Returns the state under which the page of `ui` counts the host, and which decides its colour on a terminal.
    pub(super) fn state(&self) -> State {
        match self.phase {
            Some(Phase::Failed) => State::Failed,
            Some(Phase::NotReady) => State::NotReady,
            _ if self.next_retry_time.is_some() => State::Failed,
            None | Some(Phase::Pending) => State::New,
            Some(Phase::Ready) if self.step.is_none() && self.is_outdated() => State::Waiting,
            Some(Phase::Ready) if self.step.is_none() => State::Done,
            Some(_) => State::Change,
        }
    }

    /// Returns the reason of a host in trouble: one that has failed, is not Ready, or whose update has failed.
    pub(super) fn trouble(&self) -> Option<Reason> {
        let reason: Reason = self.reason.parse().ok()?;
        let is_in_trouble = matches!(self.state(), State::Failed | State::NotReady) || reason == Reason::UpdateFailed;
        is_in_trouble.then_some(reason)
    }

    /// Returns the message about the host; empty for a working node that is up to date.
    pub(super) fn news(&self, pool: &Pool) -> String {
        match (self.is_fine, self.is_outdated()) {
            (true, true) => format!("to be updated ({})", pool.waits),
            (true, false) => String::new(),
            (false, _) => self.message.clone(),
        }
    }
}

/// State of a host. The web page of `ui` counts hosts by it, and the terminal colours them by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::commands) enum State {
    Failed,
    NotReady,
    Change,
    Waiting,
    New,
    Done,
}

impl State {
    /// Returns the number of the [colour](https://en.wikipedia.org/wiki/ANSI_escape_code#Colors) on a terminal.
    fn colour(self) -> u8 {
        match self {
            Self::Failed => 31,
            Self::NotReady => 33,
            Self::Change => 36,
            Self::Waiting => 90,
            Self::New => 35,
            Self::Done => 32,
        }
    }
}

/// Decision that a pool waits for, with its command, or a fault that no retry can fix, without a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Ask {
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

/// Returns the status, reason and message of the condition `Ready`.
fn ready_of(conditions: &[Condition]) -> (String, String, String) {
    find(conditions, kind::READY).map_or_else(
        || ("Unknown".into(), "Pending".into(), "the operator has not reported on it yet".into()),
        |c| (c.status.clone(), c.reason.clone(), text::lines(&c.message).replace('\n', " ")),
    )
}

/// Returns the state of the pools and their hosts, the worst first.
fn summarize(
    pools: &[impl Borrow<WindowsNodePool>],
    instances: &[impl Borrow<WindowsInstance>],
    now: Timestamp,
) -> Vec<Pool> {
    let mut all: Vec<Pool> = pools
        .iter()
        .map(Borrow::borrow)
        .map(|pool: &WindowsNodePool| {
            let status = pool.status.clone().unwrap_or_default();
            let (mut ready, reason, message) = ready_of(&status.conditions);
            let observed = status.observed_generation == pool.metadata.generation;
            if !observed {
                "Unknown".clone_into(&mut ready);
            }
            let name = pool.name_any();
            let of_pool = instances.iter().map(Borrow::borrow).filter(|i| i.spec.pool_ref.name == name);
            let members: Vec<&WindowsInstance> = of_pool.collect();
            let asks = asks(&name, &status, &members);
            let mut hosts: Vec<Host> =
                members.into_iter().map(|i| host(i, status.desired_version.as_ref(), now)).collect();
            hosts.sort_by_key(|host| (rank(host), host.is_outdated(), host.name.clone()));
            let refused = status.refused.iter().map(|entry| RefusedEntry {
                host: text::line(&entry.host, 253),
                message: text::line(&entry.message, 1_000),
                ..entry.clone()
            });
            let refused = refused.collect();
            let degraded = is_true(&status.conditions, kind::DEGRADED);
            let stalled = is_true(&status.conditions, kind::STALLED);
            let waits = find(&status.conditions, kind::UPDATED).map(|c| c.reason.clone()).unwrap_or_default();
            let desired_version = status.desired_version;
            Pool {
                name,
                ready,
                degraded,
                stalled,
                reason,
                message,
                observed,
                desired_version,
                hosts,
                refused,
                asks,
                waits,
            }
        })
        .collect();
    all.sort_by_key(|pool| (pool.ready != "False", !pool.degraded, pool.ready != "Unknown", pool.name.clone()));
    all
}

/// Version that waits for an approval.
pub(super) struct WaitingVersion<'a> {
    pub version: &'a str,
    /// Message of the operator that says what the version changes.
    pub message: String,
}

/// Returns the version of a pool that waits for an approval, if there is one.
pub(super) fn waiting_version<'a>(pool: &str, status: &'a WindowsNodePoolStatus) -> Option<WaitingVersion<'a>> {
    let waits = |type_| find(&status.conditions, type_).filter(|c| c.reason == Reason::WaitingForApproval);
    waits(kind::UPDATED)?;
    // Users paste commands with the version into a shell. No version of the operator has other characters.
    let is_plain = |version: &&str| version.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b));
    let version = status.desired_version.as_deref().filter(is_plain)?;
    let remedy = format!(": {}", Act::ApproveVersion(pool, version));
    // During other operations on the pool, this condition is about them.
    let message = waits(kind::UPDATING).map_or_else(
        || format!("version {} waits for an approval", short(version)),
        |c| text::line(c.message.strip_suffix(&remedy).unwrap_or(&c.message), 1_000),
    );
    Some(WaitingVersion { version, message })
}

/// Returns the decisions that a pool waits for, each with its command. Without any, returns the message of a stalled pool.
fn asks(pool: &str, status: &WindowsNodePoolStatus, members: &[&WindowsInstance]) -> Vec<Ask> {
    let ask = |what: String, act: Act<'_>| Ask { what, command: Some(act.command()) };
    let mut asks = Vec::new();
    if let Some(WaitingVersion { version, message }) = waiting_version(pool, status) {
        asks.push(ask(message, Act::ApproveVersion(pool, version)));
    }
    let removals = usize::try_from(status.removals_to_confirm).unwrap_or_default();
    if removals > 0 {
        let what = format!("the removal of {} waits for an approval", counted(removals, "host"));
        asks.push(ask(what, Act::ApproveRemovals(pool, removals)));
    }
    for member in members {
        let failures = member.status.as_ref().and_then(|status| status.failures.as_ref());
        let shown = failures.filter(|f| f.last_reason == Reason::HostKeyMismatch).map(|f| shown_key(&f.last_message));
        if let Some(Some(key)) = shown {
            let name = member.name_any();
            let what =
                format!("{name} shows another host key: compare it with the one on its console before you trust it");
            asks.push(ask(what, Act::TrustHostKey(&name, key)));
        }
    }
    // Another fault that no retry can fix: its message has the remedy.
    if let Some(stalled) = find(&status.conditions, kind::STALLED).filter(|c| c.status == "True" && asks.is_empty()) {
        asks.push(Ask { what: text::line(&stalled.message, 1_000), command: None });
    }
    asks
}

fn host(instance: &WindowsInstance, desired: Option<&String>, now: Timestamp) -> Host {
    let status = instance.status.clone().unwrap_or_default();
    let (ready, reason, mut message) = ready_of(&status.conditions);
    let since = match (&status.failures, &status.operation) {
        (Some(failures), _) => failures.first_time,
        (None, Some(operation)) => Some(operation.step_start_time),
        (None, None) => find(&status.conditions, kind::READY)
            .filter(|c| c.status != "True")
            .map(|c| c.last_transition_time.0.into()),
    };
    // The kubelet's message about a working node is not shown, unless the operator has added to it.
    let is_fine = ready == "True" && status.failures.is_none() && status.operation.is_none() && !message.contains("; ");
    let next = status.failures.as_ref().and_then(|f| f.next_retry_time);
    if next.and_then(Time::known).is_some_and(|at| now.duration_since(at) > OVERDUE) {
        message += " (that attempt is overdue: check the operator with kubectl windows-node-pools check)";
    }
    Host {
        name: instance.name_any(),
        address: instance.spec.host.address.clone(),
        phase: status.phase,
        step: status.operation.map(|o| o.step),
        since,
        up_to_date: desired.is_none() || status.current_version.as_ref() == desired,
        version: status.current_version,
        failures: status.failures.map_or(0, |f| f.count),
        next_retry_time: next,
        reason,
        message,
        is_fine,
    }
}

/// Returns the sort rank of a host: the worst has the lowest.
fn rank(host: &Host) -> u8 {
    match host.phase {
        _ if host.is_fine => 5,
        Some(Phase::Failed) => 0,
        Some(Phase::NotReady) => 1,
        _ if host.next_retry_time.is_some() => 2,
        Some(Phase::Pending) | None => 4,
        Some(_) => 3,
    }
}

/// Returns the exit status: 1 without a working operator or if a pool is Degraded or not Ready, 2 while work is in progress, and 0 if every pool
/// is Ready.
fn exit(pools: &[Pool], operator: &Operator) -> u8 {
    let is_missing = matches!(operator, Operator::Missing(_));
    if is_missing || pools.iter().any(|pool| pool.ready == "False" || pool.degraded) {
        1
    } else if pools.iter().any(|pool| pool.ready != "True") {
        2
    } else {
        0
    }
}

/// Returns the head and the text of a host's row.
fn row(
    host: &Host,
    pool: &Pool,
    now: Timestamp,
    column: usize,
    with_version: bool,
    layout: Layout,
) -> (String, String) {
    let phase = host.phase.map_or_else(|| "New".into(), |phase| format!("{phase:?}"));
    let version = match (with_version, &host.version) {
        (true, version) => format!("  {:14}", version.as_deref().map(short).unwrap_or_default()),
        (false, _) => String::new(),
    };
    let address = if layout.wide { format!("  {:15}", text::line(&host.address, 253)) } else { String::new() };
    let since = host.since.and_then(Time::known).map(|at| format!(" (for {})", age(at, now)));
    let said = with_ages(&host.news(pool), now) + &since.filter(|_| !host.is_fine).unwrap_or_default();
    let phase = layout.paint(&format!("{phase:9}"), host.state().colour());
    (format!("{:column$}{address}  {phase}{version}", host.name), said)
}

fn tree(pools: &[Pool], now: Timestamp, layout: Layout) -> String {
    let Layout { wide, width, .. } = layout;
    if pools.is_empty() {
        return "There is no WindowsNodePool.\n".into();
    }
    let mut text = String::new();
    for pool in pools {
        let old = if pool.observed { "" } else { "the operator has not observed the latest change; previous status: " };
        write_wrapped(
            &mut text,
            &format!("{}  ", layout.paint(&pool.name, pool.colour())),
            "  ",
            &format!("{old}{}", with_ages(&pool.message, now)),
            width,
        );
        let with_version = pool.hosts.iter().any(Host::is_outdated);
        if let Some(version) = pool.desired_version.as_ref().filter(|_| with_version) {
            write_wrapped(&mut text, "│  ", "│  ", &format!("to version {}", short(version)), width);
        }
        let (old, new): (Vec<&Host>, Vec<&Host>) =
            pool.hosts.iter().filter(|host| host.is_fine).partition(|host| host.is_outdated());
        let folds = !wide && old.len() + new.len() > FEW;
        let names = pool.hosts.iter().map(|h| &h.name).chain(pool.refused.iter().map(|r| &r.host));
        let column = names.map(|name| name.chars().count()).max().unwrap_or_default().min(40);
        let shown = pool.hosts.iter().filter(|host| !(folds && host.is_fine));
        let mut rows: Vec<(String, String)> =
            shown.map(|host| row(host, pool, now, column, with_version || wide, layout)).collect();
        for entry in &pool.refused {
            rows.push((format!("{:column$}  {:9}", entry.host, "Refused"), entry.message.clone()));
        }
        for hosts in [&new, &old].into_iter().filter(|hosts| folds && !hosts.is_empty()) {
            let more = if rows.is_empty() { "" } else { "more " };
            let verb = if hosts.len() == 1 { "is" } else { "are" };
            let to_be =
                hosts.iter().any(|host| host.is_outdated()).then(|| format!(", to be updated ({})", pool.waits));
            rows.push((format!("{} {more}{verb} Ready{}", hosts.len(), to_be.unwrap_or_default()), String::new()));
        }
        let last = rows.len().saturating_sub(1);
        for (n, (head, said)) in rows.iter().enumerate() {
            let (branch, below) = if n == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            write_wrapped(&mut text, &format!("{branch}{head}  "), &format!("{below}    "), said, width);
        }
    }
    text
}

/// Returns the number of columns that a text takes on a terminal, without its colour codes.
fn columns(text: &str) -> usize {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default();
    let rest = parts.map(|part| part.split_once('m').map_or(part, |(_, text)| text));
    [first].into_iter().chain(rest).map(|text| text.chars().count()).sum()
}

/// Writes a text after its head, wrapped at `width`. Each further line begins with `below`.
fn write_wrapped(into: &mut String, head: &str, below: &str, said: &str, width: usize) {
    let mut line = head.to_owned();
    let mut is_empty = true;
    for word in said.split_whitespace() {
        if !is_empty && columns(&line) + 1 + word.chars().count() > width {
            let _ = writeln!(into, "{}", line.trim_end());
            below.clone_into(&mut line);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    let _ = writeln!(into, "{}", line.trim_end());
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
