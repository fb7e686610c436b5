//! The command `acceptance`: the whole life of a node, on a real Windows host and a cluster where the operator runs.

mod acts;
mod host;
mod judge;
mod patching;
mod report;
mod rows;
mod spec;
mod world;

use std::{
    io::{BufRead as _, IsTerminal as _, Write as _},
    net::IpAddr,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, timeout},
};

use self::{
    acts::Run,
    host::Host,
    judge::Outcome,
    report::{Ended, Report, Versions},
    rows::{Act, How, ROWS, Row},
    world::{Names, Seen, World, said},
};
use crate::{
    api_server::{self, Chosen},
    args::{Acceptance, Cluster, Output},
    ssh_target,
};

/// Exit status when a row failed or something is left.
const FAILED: u8 = 1;
/// For log-in and for each answer.
const LOGIN: Duration = Duration::from_mins(1);
/// For what is only said in the result.
const VERSION: Duration = Duration::from_secs(20);

/// Runs all rows, removes what it made, prints the result, and returns the exit status.
///
/// # Errors
/// When the host or the cluster cannot be used, the user does not agree, or the result cannot be written. A row that fails is no error: the
/// exit status reports it.
pub async fn run(args: Acceptance, cluster: &Cluster) -> anyhow::Result<ExitCode> {
    let Chosen { config, title } = api_server::choose(cluster).await?;
    agree(&args, &title)?;
    let client = Client::try_from(config).context("cannot make a client")?;
    let world = World {
        client,
        namespace: args.namespace.clone(),
        names: Names::new(),
        address: args.host.clone(),
        limit: args.timeout,
        cluster: cluster.clone(),
    };
    let run = Box::pin(prepare(args, world)).await?;
    let mut report = Report {
        versions: Versions { kit: crate::args::version().to_owned(), host: run.kind.as_str(), ..Versions::default() },
        begin: Timestamp::now().to_string(),
        rows: Vec::new(),
        left: Vec::new(),
        interrupted: false,
    };
    let (rows, versions) = (Mutex::new(Vec::new()), Mutex::new(std::mem::take(&mut report.versions)));
    let mut ended = Box::pin(interruption()?);
    tokio::select! {
        () = Box::pin(run_rows(&run, &rows, &versions)) => {}
        () = &mut ended => {
            eprintln!("interrupted: removing what was made; interrupt again to leave it");
            report.interrupted = true;
        }
    }
    (report.rows, report.versions) = (rows.into_inner(), versions.into_inner());
    // A removal that has failed has had its time.
    let has_failed = report.rows.iter().any(|row| row.id == "removal" && matches!(row.outcome, Outcome::Failed(_)));
    let limit = if has_failed { LOGIN.min(run.args.timeout) } else { run.args.timeout };
    let removed = tokio::select! {
        removed = Box::pin(timeout(limit + VERSION, run.world.remove(&run.world.names))) => {
            removed.unwrap_or_else(|_| Err(anyhow::anyhow!("the host was not released in time")))
        }
        () = Box::pin(interruption()?) => Err(anyhow::anyhow!("interrupted")),
    };
    if let Err(error) = removed {
        let (name, why) = (run.world.names.name(), said(&error));
        let kinds = "the WindowsNodePool, WindowsInstance, Node, Secret and pods of this name, as far as they exist";
        let left = format!("{name}: {kinds}: {why}; to remove them, run the command again");
        report.left.push(api::text::line(&left, 1_000));
    }
    let forgotten = timeout(LOGIN, run.forget_restart()).await;
    if let Err(error) = forgotten.unwrap_or_else(|_| Err(anyhow::anyhow!("the host did not answer in time"))) {
        let left = format!(
            "on the host, HKLM\\{}, by which Windows waits for a restart: {}",
            judge::RESTART_REQUIRED,
            said(&error)
        );
        report.left.push(api::text::line(&left, 1_000));
    }
    write(&run.args, &report)?;
    Ok(if report.is_good() { ExitCode::SUCCESS } else { FAILED.into() })
}

/// Ends when a person or the system asks this process to end.
fn interruption() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot receive signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot receive signals")?;
    // The terminal was closed.
    let mut hangup = signal(SignalKind::hangup()).context("cannot receive signals")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

/// Says what is done, and asks whether it may be.
fn agree(args: &Acceptance, cluster: &str) -> anyhow::Result<()> {
    eprintln!(
        "This makes the host {} a node of the {cluster}, restarts it several times, has it drained for maintenance, changes its settings, and removes it again. On the \
         cluster it makes one WindowsNodePool, one Secret with the key in the namespace {}, a PodDisruptionBudget and pods, and removes them; it changes no other node.\n\
         What cannot be undone: the Windows feature Containers stays enabled, the host restarts, and what runs on it ends.",
        args.host, args.namespace
    );
    ask(args, "Continue?")
}

fn ask(args: &Acceptance, question: &str) -> anyhow::Result<()> {
    if args.yes {
        return Ok(());
    }
    ensure!(
        std::io::stdin().is_terminal(),
        "standard input is no terminal on which to confirm this: confirm with --yes"
    );
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "not confirmed; nothing was changed");
    Ok(())
}

/// Checks that host and cluster can be used, and removes what an earlier run left.
async fn prepare(args: Acceptance, world: World) -> anyhow::Result<Run> {
    world.operator_works().await?;
    let leftovers = world.leftovers().await.context("cannot look for what an earlier run left")?;
    if !leftovers.is_empty() {
        let names: Vec<String> = leftovers.iter().map(Names::name).collect();
        eprintln!("An earlier run for this host, or one that still runs, has left {}.", names.join(", "));
        ask(&args, "Remove it?")?;
        for names in &leftovers {
            world.remove(names).await.with_context(|| format!("cannot remove {}", names.name()))?;
        }
    }
    world.host_is_free(args.login.port, &addresses(&args).await).await?;
    let target = ssh_target::new(&args.host, &args.login, LOGIN)?;
    let (host, fingerprint, kind) = Host::open(target).await.context("cannot use the host")?;
    let before = host.directories().await.context("cannot use the host")?;
    let run = Run {
        args,
        world,
        host,
        kind,
        fingerprint,
        before,
        template: Mutex::default(),
        images: Mutex::default(),
        first_version: Mutex::default(),
    };
    run.forget_restart().await.context("cannot remove from the host what an earlier run left")?;
    Ok(run)
}

/// The addresses of the host, as far as this machine can resolve its name.
async fn addresses(args: &Acceptance) -> Vec<IpAddr> {
    let found = tokio::net::lookup_host((args.host.as_str(), args.login.port)).await;
    found.map(|found| found.map(|address| address.ip()).collect()).unwrap_or_default()
}

/// Runs the rows in order. Those that need a node are skipped once there is none.
async fn run_rows(run: &Run, rows: &Mutex<Vec<Ended>>, versions: &Mutex<Versions>) {
    let mut lost: Option<&'static str> = None;
    let mut is_removed = false;
    for row in ROWS {
        let begin = Instant::now();
        let of_removal = is_removed || matches!(row.how, How::Cluster(Act::Removal));
        let outcome = match lost {
            Some(id) if !of_removal => Outcome::skipped(format!("there is no Ready node after the row {id}")),
            _ => {
                eprintln!("{}: {}", row.id, row.title);
                Box::pin(run_row(run, row)).await
            }
        };
        let has_failed = matches!(outcome, Outcome::Failed(_));
        let (result, text) = report::parts(&outcome);
        eprintln!("{}: {result}: {text}", row.id);
        rows.lock().push(Ended { id: row.id, title: row.title, outcome, took: begin.elapsed() });
        match row.how {
            How::Cluster(Act::Join) => learn(run, versions).await,
            How::Cluster(Act::Removal) if has_failed => return,
            How::Cluster(Act::Removal) => is_removed = true,
            _ => {}
        }
        if has_failed && lost.is_none() && !is_removed && !is_node(run).await {
            lost = Some(row.id);
        }
    }
}

/// Whether the host is a Ready node, to which nothing is done. A change that came to nothing may take it a moment.
async fn is_node(run: &Run) -> bool {
    let node = run.world.until_seen("the node is Ready", Seen::follows);
    timeout(VERSION.min(run.args.timeout), node).await.is_ok_and(|node| node.is_ok())
}

async fn run_row(run: &Run, row: &Row) -> Outcome {
    match (&row.how, run.kind.shows_nothing()) {
        (How::Cluster(act), _) => run.act(*act).await,
        (How::Host(..), Some(why)) => Outcome::skipped(why),
        (How::Host(commands, judge), None) => match run.host.run(commands).await {
            Ok(outputs) => judge(&outputs),
            Err(error) => Outcome::failed(said(&error)),
        },
    }
}

/// Notes the versions, which the result needs: a row does not fail without them.
async fn learn(run: &Run, versions: &Mutex<Versions>) {
    if let Ok(Ok(info)) = timeout(VERSION, run.world.client.apiserver_version()).await {
        versions.lock().cluster = Some(api::text::line(&info.git_version, 100));
    }
    if let Ok(Ok(seen)) = timeout(VERSION, run.world.see()).await {
        // The version of the operator begins that of the services.
        let desired = seen.pool.status.and_then(|status| status.desired_version);
        let operator = desired.and_then(|version| version.rsplit_once('-').map(|(operator, _)| operator.to_owned()));
        let facts = seen.instance.and_then(|instance| instance.status?.facts);
        let mut versions = versions.lock();
        versions.operator = operator;
        versions.windows = facts.map(|f| api::text::line(&format!("{} {}", f.os_name, f.os_build), 200));
    }
}

fn write(args: &Acceptance, report: &Report) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(&report.json())? + "\n";
    let text = if args.output == Output::Json { &json } else { &report.table() };
    crate::output::print(text)?;
    if let Some(file) = &args.json
        && let Err(error) = std::fs::write(file, &json)
    {
        bail!("cannot write {}: {error}", file.display());
    }
    Ok(())
}
