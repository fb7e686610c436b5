//! Program `acceptance`: tests the whole life of a node on a real Windows host, in a cluster where the operator runs. It is part of the test bed,
//! and is not in any image.

mod acts;
mod environments;
mod first_acts;
mod first_hour;
mod host;
mod judge;
mod last_acts;
mod networks;
mod prepared;
mod rows;
mod world;

use std::{net::IpAddr, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow};
use clap::{CommandFactory as _, Parser};
use controller::{
    args::{self, Cluster, Login, output},
    client::api_server::{self, Chosen},
    commands::host_session,
    runtime::errors,
};
use kube::Client;
use parking_lot::Mutex;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, timeout},
};

use self::{
    acts::{NotHere, Run},
    host::{Host, Kind},
    judge::{FAILED, Outcome, Output, PASSED, SKIPPED, failed, passed, skipped},
    rows::{How, Need, ROWS, Row},
    world::{HostObjects, Names, World, error_text},
};

/// Timeout of a log-in and of each answer.
const LOGIN: Duration = Duration::from_mins(1);
/// Time within which a node that was Ready before the row must be Ready again.
const READY: Duration = Duration::from_secs(20);
/// Row after which the host is a node.
const JOIN: &str = "join";
/// Row after which the host is no longer a node.
const REMOVAL: &str = "removal";

/// Run the whole life of a node on a real Windows host, from the join to the removal, and report what works. Restarts the host. You must be
/// allowed to write WindowsNodePools, Secrets, Nodes and pods.
#[derive(Parser)]
#[command(
    version,
    after_help = "Exit status:\n  0  every row passed or is skipped\n  1  an error, an interruption, a row that failed, or something that is left"
)]
struct Args {
    /// Cluster to use.
    #[command(flatten)]
    cluster: Cluster,
    /// IP address or DNS name of the host, which is in no pool yet.
    #[arg(long, value_name = "ADDRESS")]
    host: String,
    /// Credentials for the host.
    #[command(flatten)]
    login: Login,
    /// Namespace of the operator.
    #[arg(short, long, env = "WATCH_NAMESPACE", default_value = api::names::DEFAULT_NAMESPACE)]
    namespace: String,
    /// Windows image with `cmd.exe`, `curl.exe` and, for the row `memory`, PowerShell, that matches the host's Windows. No pod runs if not set.
    #[arg(long)]
    image: Option<String>,
    /// The `wicd.exe` that checks the host before it joins. The host is not checked if not set.
    #[arg(long, env = "WICD_EXE", value_name = "FILE")]
    wicd: Option<PathBuf>,
    /// Payload for a minor version of Kubernetes, whose programs are tried before the host joins. May be repeated.
    #[arg(long, value_name = "DIRECTORY")]
    payload: Vec<PathBuf>,
    /// User of the host who is no administrator, and whom the same private key lets log in, for the row `ordinary-user`.
    #[arg(long, value_name = "NAME")]
    ordinary_user: Option<String>,
    /// Library of the payload and its class, for the row `credential-plugin`.
    #[arg(long, value_name = "FILE=CLSID")]
    credential_plugin: Option<String>,
    /// Run only the rows that answer the ten checks of the first hour on a real host, and print one page for the project.
    #[arg(long)]
    first_hour: bool,
    /// File to which the result is also written.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Domain of the cluster's DNS.
    #[arg(long, env = "WINDOWS_NODE_POOLS_CLUSTER_DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
    /// Time that each row and the removal may take, for example 45m.
    #[arg(long, value_parser = controller::args::duration, default_value = "45m")]
    timeout: Duration,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    // Must come first: without exactly one provider in the process, the first TLS connection panics.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match args::parse(Args::command()) {
        Ok(args) => errors::exit(Box::pin(run(args)).await),
        Err(status) => status,
    }
}

/// Runs all rows, removes what they have created, prints the result, and returns the exit status.
async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Chosen { config, title } = api_server::choose(&args.cluster).await?;
    let danger = format!(
        "This makes the host {} a node of the {title}, restarts it several times, runs a pod that uses all of its memory, drains it for maintenance, kills and suspends kubelet, kills its log runner, replaces `kubelet.exe` for some minutes, pulls an image, changes its settings, removes it, and lets it join and leave once more. On the \
         cluster it creates one WindowsNodePool, one Secret with the key in the namespace {}, a PodDisruptionBudget and pods, and removes them; it changes no other node.\n\
         What cannot be undone: the Windows feature Containers stays enabled, the host restarts, and what runs on it ends.",
        args.host, args.namespace
    );
    output::ask(args.yes, &danger)?;
    let world = World {
        client: Client::try_from(config).context("cannot create a client for the API server")?,
        namespace: args.namespace.clone(),
        names: Names::new(),
        address: args.host.clone(),
        limit: args.timeout,
        cluster: args.cluster.clone(),
    };
    let run = Box::pin(prepare(args, world)).await?;
    let rows = Mutex::new(Vec::new());
    let interrupted = tokio::select! {
        () = Box::pin(run_rows(&run, &rows)) => false,
        () = Box::pin(interruption()?) => {
            eprintln!("interrupted: removing the objects of this run; interrupt again to leave them");
            true
        }
    };
    let rows = rows.into_inner();
    run.remember().await;
    let left = remove(&run, &rows).await?;
    let result = if run.args.first_hour {
        let last = run.last.lock();
        first_hour::page(&run.args.host, &run.host.version, last.as_ref(), &rows, &end(&left, interrupted))
    } else {
        table(&rows, &left, interrupted)
    };
    output::print(&result)?;
    if let Some(file) = &run.args.out {
        std::fs::write(file, &result).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let is_good = !interrupted && left.is_empty() && !rows.iter().any(Ended::has_failed);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a future that ends on SIGTERM, SIGINT or SIGHUP.
fn interruption() -> anyhow::Result<impl Future<Output = ()>> {
    let asked = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let mut signals = asked.into_iter().map(signal).collect::<Result<Vec<_>, _>>().context("cannot receive signals")?;
    Ok(async move {
        futures::future::select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
    })
}

/// Checks that the host and the cluster can be used, and removes what an earlier run has left.
async fn prepare(args: Args, world: World) -> anyhow::Result<Run> {
    world.check_operator().await?;
    let leftovers = world.leftovers().await.context("cannot look for what an earlier run left")?;
    if !leftovers.is_empty() {
        let names: Vec<String> = leftovers.iter().map(Names::name).collect();
        let names = names.join(", ");
        let left = format!(
            "An earlier run for this host, or one that still runs, has left objects with these names: {names}. This command removes them."
        );
        output::ask(args.yes, &left)?;
        for names in &leftovers {
            world.remove(names).await.with_context(|| format!("cannot remove {}", names.name()))?;
        }
    }
    // No address is found if this machine cannot resolve the name.
    let found = tokio::net::lookup_host((args.host.as_str(), args.login.port)).await;
    let addresses: Vec<IpAddr> = found.into_iter().flatten().map(|address| address.ip()).collect();
    world.check_host_is_free(args.login.port, &addresses).await?;
    let target = host_session::target(&args.host, &args.login, LOGIN)?;
    let (host, fingerprint, kind) = Host::open(target).await.context("cannot use the host")?;
    let pool = Mutex::new(acts::pool(&world, &args, &fingerprint));
    let mut run = Run {
        args,
        world,
        host,
        kind,
        before: Vec::new(),
        pool,
        first_version: Mutex::default(),
        last: Mutex::default(),
        lacks_exclusion: Mutex::default(),
    };
    run.forget().await.context("cannot remove from the host what an earlier run left")?;
    run.before = run.host.directories().await.context("cannot use the host")?;
    Ok(run)
}

/// Result of a row that has ended.
struct Ended {
    id: &'static str,
    outcome: Outcome,
    took: Duration,
    /// Commands of a failed row, with their outputs.
    printed: Vec<(&'static str, Output)>,
}

impl Ended {
    fn has_failed(&self) -> bool {
        self.outcome.result == FAILED
    }

    fn cells(&self) -> [String; 4] {
        let Outcome { result, text } = &self.outcome;
        [self.id.to_owned(), (*result).to_owned(), format!("{} s", self.took.as_secs()), text.clone()]
    }
}

/// Runs the rows in order. Rows that need a node are skipped once the node is lost. No row runs after a failed removal.
async fn run_rows(run: &Run, rows: &Mutex<Vec<Ended>>) {
    let (mut lost, mut has_node) = (None, false);
    let all = if run.args.first_hour { first_hour::rows() } else { ROWS.iter().collect() };
    for row in all {
        if row.id == REMOVAL {
            run.remember().await;
        }
        let begin = Instant::now();
        let (outcome, printed) = match lost {
            Some(id) if matches!(row.needs, Need::Node | Need::Image) => {
                (skipped(format!("there is no Ready node after the row {id}")), Vec::new())
            }
            _ => {
                eprintln!("{} …", row.id);
                Box::pin(run_row(run, row)).await
            }
        };
        let ended = Ended { id: row.id, outcome, took: begin.elapsed(), printed };
        eprintln!("{}", ended.cells().join(": "));
        let has_failed = ended.has_failed();
        rows.lock().push(ended);
        has_node |= row.id == JOIN;
        if row.id == REMOVAL {
            if has_failed {
                return;
            }
            has_node = false;
        }
        if has_failed && lost.is_none() && has_node && !is_node(run).await {
            lost = Some(row.id);
        }
    }
}

/// Reports whether the host is a Ready node without an operation. Waits for a while, because a failed change may still be in progress.
async fn is_node(run: &Run) -> bool {
    let node = run.world.until_seen("the node is Ready", HostObjects::follows);
    timeout(READY.min(run.args.timeout), node).await.is_ok_and(|node| node.is_ok())
}

/// Runs a row. Returns its outcome and, if it has failed, its commands with their outputs.
async fn run_row(run: &Run, row: &Row) -> (Outcome, Vec<(&'static str, Output)>) {
    if !row.on.contains(&run.kind) {
        let host = if run.kind == Kind::Wine { "Wine" } else { "a simulated host" };
        return (skipped(format!("not shown by {host}")), Vec::new());
    }
    let missing = match row.needs {
        Need::Image if run.args.image.is_none() => Some("needs --image"),
        Need::Wicd if run.args.wicd.is_none() => Some("needs --wicd"),
        Need::Payload if run.args.payload.is_empty() => Some("needs --payload"),
        _ => None,
    };
    if let Some(missing) = missing {
        return (skipped(missing), Vec::new());
    }
    let (result, printed) = match &row.how {
        How::Act(act) => (act(run).await.map(passed), Vec::new()),
        How::Host(commands, judge) => match run.host.run(commands).await {
            Ok(outputs) => {
                (Ok(judge::outcome(judge, &outputs)), commands.iter().copied().zip(outputs).collect::<Vec<_>>())
            }
            Err(error) => (Err(error), Vec::new()),
        },
    };
    let outcome = result.unwrap_or_else(|error| match error.downcast_ref() {
        Some(NotHere(why)) => skipped(why),
        None => failed(error_text(&error)),
    });
    let has_failed = outcome.result == FAILED;
    (outcome, if has_failed { printed } else { Vec::new() })
}

/// Removes what the run has created. Returns what could not be removed, with the reasons.
async fn remove(run: &Run, rows: &[Ended]) -> anyhow::Result<Vec<String>> {
    // A removal that has failed has already used its time.
    let has_failed = rows.iter().any(|row| row.id == REMOVAL && row.has_failed());
    let limit = if has_failed { LOGIN.min(run.args.timeout) } else { run.args.timeout };
    // The operator cannot remove the host while its directory belongs to users.
    let _ = timeout(LOGIN, run.forget()).await;
    let of_cluster = tokio::select! {
        removed = Box::pin(timeout(limit + READY, run.world.remove(&run.world.names))) => {
            removed.unwrap_or_else(|_| Err(anyhow!("the host was not released in time")))
        }
        () = Box::pin(interruption()?) => Err(anyhow!("interrupted")),
    };
    let of_host = timeout(LOGIN, run.forget()).await;
    let of_host = of_host.unwrap_or_else(|_| Err(anyhow!("the host did not answer in time")));
    let objects = format!(
        "{}: the WindowsNodePool, WindowsInstance, Node, Secret and pods of this name, as far as they exist; to remove them, run the command again",
        run.world.names.name()
    );
    let marks = format!(
        "on the host, perhaps files C:\\k\\acceptance*, or the value {} of the registry key HKLM\\{}, because of which Windows waits for a restart; to remove them, run the command again; if kubelet hangs, end its process",
        judge::MARK,
        judge::RESTART_REQUIRED
    );
    let left = [(of_cluster, objects), (of_host, marks)].into_iter().filter_map(|(removed, what)| {
        let why = error_text(&removed.err()?);
        Some(api::text::line(&format!("{what}: {why}"), 1_000))
    });
    Ok(left.collect())
}

fn table(rows: &[Ended], left: &[String], interrupted: bool) -> String {
    let head = ["ROW", "RESULT", "TIME", "EVIDENCE"].map(str::to_owned);
    let cells: Vec<_> = [head].into_iter().chain(rows.iter().map(Ended::cells)).collect();
    let count = |of: &str| format!("{} {of}", rows.iter().filter(|row| row.outcome.result == of).count());
    let counts = [PASSED, FAILED, SKIPPED].map(count).join(", ");
    format!("{}\n{counts}\n{}", output::aligned(&cells), end(left, interrupted))
}

/// Returns the last lines of the result: whether the run was interrupted, and what is left.
fn end(left: &[String], interrupted: bool) -> String {
    let interrupted = if interrupted { "The run was interrupted.\n" } else { "" };
    let nothing = if left.is_empty() { "Nothing is left.\n" } else { "" };
    let left: Vec<String> = left.iter().map(|what| format!("Left: {what}\n")).collect();
    [interrupted, &left.concat(), nothing].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_one_table_and_what_is_left() {
        let ended = |outcome| Ended { id: "join", outcome, took: Duration::from_millis(2_500), printed: Vec::new() };
        let rows = [ended(passed("fine")), ended(skipped("needs --image"))];
        assert_eq!(
            table(&rows, &[], false),
            "ROW    RESULT    TIME   EVIDENCE\njoin   passed    2 s    fine\njoin   skipped   2 s    needs --image\n\n\
             1 passed, 0 failed, 1 skipped\nNothing is left.\n"
        );
        let text = table(&rows, &["the pool x".into()], true);
        assert!(text.ends_with("The run was interrupted.\nLeft: the pool x\n"), "{text}");
    }
}
