//! Command `gather`: collects data for the remote diagnosis of a fault. It changes nothing in the cluster.
//!
//! * [`plan`]: selects the objects. Pure functions.
//! * [`collect`]: reads the objects and the logs of pods.
//! * [`hosts`]: collects data from hosts over SSH.
//! * [`redact`]: removes secrets. Pure functions.
//! * [`write`]: writes the folder and its archive, within limits.

mod collect;
mod hosts;
mod plan;
mod redact;
mod write;

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use kube::Client;

use self::{collect::Reader, plan::Scope, write::Folder};
use crate::{
    args::{self, Gather},
    client::api_server,
    runtime::operator_namespace,
};

/// Exit status when nothing was gathered.
const NOTHING: u8 = 1;
/// First line of the file `version`: the product from which the archive comes.
const PRODUCT: &str = "windows-node-pools/must-gather";
/// Introduction for readers of the folder.
const README: &str = include_str!("README.txt");

/// Gathers the data, prints the folder and what failed, and returns the exit status.
///
/// # Errors
/// Fails when `--since` or `--since-time` is invalid, there is no configuration for the API server, the folder, its log or its archive cannot be
/// written, or the result cannot be printed. Data that cannot be read is not an error.
pub async fn run(mut args: Gather, cluster: &args::Cluster) -> anyhow::Result<ExitCode> {
    let now = Timestamp::now();
    let since = since(&args, now)?;
    let mut config = api_server::bounded_config(cluster).await?;
    config.default_retry = false;
    let client = Client::try_from(config).context("cannot make a client for the API server")?;
    let reader = Reader { client: client.clone(), since };
    let found = operator_namespace::find(&client, &args.namespace).await;
    args.namespace.clone_from(&found.name);

    let root = args
        .dest
        .clone()
        .unwrap_or_else(|| PathBuf::from(now.strftime("windows-node-pools-%Y%m%d-%H%M%S").to_string()));
    let mut folder = Folder::create(&root)?;
    folder.text("version", &format!("{PRODUCT}\n{}\n", args::version()));
    folder.text("README", README);
    folder.note("namespace of the operator", &found.note());
    // Every user of the cluster may get the version, so it does not count as gathered data.
    reader.version(&mut folder).await;
    let files_before = folder.files;
    of_cluster(&reader, &args.namespace, &mut folder).await;
    if let Some(asked) = &args.hosts {
        hosts::gather(&client, &args, asked, &mut folder).await;
    }
    let gathered = folder.files - files_before;
    folder.finish()?;
    report(&folder, &args, gathered)
}

/// Returns the time of the oldest log lines. Empty values count as unset, because `oc adm must-gather` may set empty variables.
fn since(args: &Gather, now: Timestamp) -> anyhow::Result<Option<Timestamp>> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(time) = given(&args.since_time) {
        let parsed = time.parse();
        return parsed
            .map(Some)
            .with_context(|| format!("--since-time {time:?} is not a time such as 2026-01-31T12:00:00Z"));
    }
    let Some(since) = given(&args.since) else { return Ok(None) };
    let duration: SignedDuration =
        since.parse().with_context(|| format!("--since {since:?} is not a duration such as 90m or 24h"))?;
    now.checked_sub(duration.abs())
        .map(Some)
        .context("--since reaches too far back: name a shorter duration, for example 24h")
}

async fn of_cluster(reader: &Reader, namespace: &str, folder: &mut Folder) {
    let scope = Scope { namespace: namespace.to_owned(), nodes: reader.nodes().await };
    // Progress goes to standard error, because standard output has the result.
    for (n, node) in scope.nodes.iter().enumerate() {
        eprintln!("[{}/{}] pods on {node}", n + 1, scope.nodes.len());
        reader.pods_on(node, folder).await;
    }
    let items = plan::items(namespace);
    for (n, item) in items.iter().enumerate() {
        eprintln!("[{}/{}] {}", n + 1, items.len(), item.name());
        reader.gather(item, &scope, folder).await;
    }
}

/// Packs the folder, unless `--dest` names it, and prints its path and what is missing.
fn report(folder: &Folder, args: &Gather, gathered: usize) -> anyhow::Result<ExitCode> {
    let mut text = format!("{gathered} files in {}\n", folder.root.display());
    if args.dest.is_none() {
        let _ = writeln!(text, "To send: {}", folder.pack()?.display());
    }
    for failure in &folder.failures {
        let _ = writeln!(text, "Not gathered: {failure}");
    }
    crate::args::output::print(&text)?;
    Ok(if gathered > 0 { ExitCode::SUCCESS } else { NOTHING.into() })
}

#[cfg(test)]
pub(crate) use redact::text as redacted;

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
