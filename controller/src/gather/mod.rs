//! The command `gather`: what a person needs who looks for the cause of a fault from afar. It changes nothing in the cluster.
//!
//! * [`plan`]: which objects. Pure.
//! * [`collect`]: reads them, with logs and metrics.
//! * [`hosts`]: what hosts report over SSH.
//! * [`redact`], [`anonymise`]: what must not leave the cluster. Pure.
//! * [`write`]: the folder and its archive, with their limits.

mod anonymise;
mod collect;
mod hosts;
mod plan;
mod redact;
mod write;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::Client;

use self::{
    anonymise::{Names, Pseudonyms},
    collect::{Reader, Since},
    write::Folder,
};
use crate::{
    api_server,
    args::{self, Gather},
    operator_namespace,
};

/// Folder that `oc adm must-gather` copies from its Pod, and the only one: what lies beside it is lost.
const OF_MUST_GATHER: &str = "/must-gather";
/// Exit status when nothing was gathered.
const NOTHING: u8 = 1;
/// What `version` begins with: the product, for who sorts archives of several.
const PRODUCT: &str = "windows-node-pools/must-gather";
/// What the reader of the folder must know.
const README: &str = include_str!("README.txt");

/// Gathers, prints where it is and what failed, and returns the exit status.
///
/// # Errors
/// When there is no configuration for the API server, or the folder cannot be written. What cannot be read is no error.
pub async fn run(mut args: Gather, cluster: &args::Cluster) -> anyhow::Result<ExitCode> {
    let now = Timestamp::now();
    let since = since(&args, now)?;
    keeps_table(&args)?;
    let mut config = api_server::bounded_config(cluster).await?;
    config.default_retry = false;
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config).context("cannot make a client for the API server")?;
    let reader = Reader::new(client.clone());
    let found = operator_namespace::find(&client, &args.namespace).await;
    args.namespace.clone_from(&found.name);

    let pseudonyms = if args.anonymise { Some(pseudonyms(&reader, &args, &server).await?) } else { None };
    let root = args
        .dest
        .clone()
        .unwrap_or_else(|| PathBuf::from(now.strftime("windows-node-pools-%Y%m%d-%H%M%S").to_string()));
    let mut folder = Folder::create(&root, pseudonyms)?;
    folder.text("version", &format!("{PRODUCT}\n{}\n", args::version()))?;
    folder.text("README", README)?;
    folder.note("namespace of the operator", &found.note());
    // Every user of the cluster may get it: that is no support data.
    reader.version(&mut folder).await;
    let of_ours = folder.files();
    of_cluster(&reader, &args.namespace, since, &mut folder).await;
    if let Some(asked) = &args.hosts {
        hosts::gather(&client, &args, asked, &mut folder).await;
    }
    let gathered = folder.files() - of_ours;
    folder.finish()?;
    report(&folder, &args, gathered)
}

/// From when logs are wanted. An empty variable is none: `oc adm must-gather` may set it.
fn since(args: &Gather, now: Timestamp) -> anyhow::Result<Since> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let time = match (given(&args.since_time), given(&args.since)) {
        (Some(time), _) => Some(
            time.parse()
                .with_context(|| format!("--since-time {time:?} is not a time such as 2026-01-31T12:00:00Z"))?,
        ),
        (None, Some(since)) => {
            let duration: SignedDuration =
                since.parse().with_context(|| format!("--since {since:?} is not a duration such as 90m or 24h"))?;
            Some(now.checked_sub(duration.abs()).context("--since is too long")?)
        }
        (None, None) => None,
    };
    Ok(Since(time))
}

/// Whether a person gets the table of pseudonyms: not from a Pod that ends.
fn keeps_table(args: &Gather) -> anyhow::Result<()> {
    let is_in_pod = args.dest.as_deref() == Some(Path::new(OF_MUST_GATHER));
    ensure!(
        !(args.anonymise && is_in_pod),
        "oc adm must-gather does not copy the table of pseudonyms, without which no answer can be understood: anonymise from a laptop, with \
         windows-node-pools gather --anonymise, or leave --anonymise out"
    );
    Ok(())
}

/// Pseudonyms for all names that the cluster knows. An error if some cannot be known: an archive of which a person believes that it has no
/// names must have none.
async fn pseudonyms(reader: &Reader, args: &Gather, server: &str) -> anyhow::Result<Pseudonyms> {
    let mut names = Names::default();
    names.url(server);
    for item in plan::with_names(&args.namespace) {
        reader.names(&item).await?.iter().for_each(|object| names.learn(object));
    }
    let pseudonyms = Pseudonyms::new(&names);
    if !pseudonyms.is_complete() {
        bail!("there are too many names for pseudonyms; gather without --anonymise");
    }
    Ok(pseudonyms)
}

async fn of_cluster(reader: &Reader, namespace: &str, since: Since, folder: &mut Folder) {
    let name = |node: &serde_json::Value| node["metadata"]["name"].as_str().map(str::to_owned);
    let nodes: BTreeSet<String> = reader.readable(&plan::nodes()).await.iter().filter_map(name).collect();
    let namespaces = reader.pods_on(&nodes, folder).await;
    let items = plan::items(namespace, &nodes, &namespaces);
    for (n, item) in items.iter().enumerate() {
        // On standard error: what standard output has is the result.
        eprintln!("[{}/{}] {}", n + 1, items.len(), item.resource);
        reader.gather(item, since, folder).await;
    }
}

/// Packs, and prints what a person needs to know.
fn report(folder: &Folder, args: &Gather, gathered: usize) -> anyhow::Result<ExitCode> {
    let mut text = format!("{gathered} files in {}\n", folder.root().display());
    if let Some(table) = folder.finish_table()? {
        let _ = writeln!(text, "Names of the pseudonyms, to keep: {}", table.display());
    }
    if !args.no_archive {
        let _ = writeln!(text, "To send: {}", folder.pack()?.display());
    }
    for failure in folder.failures() {
        let _ = writeln!(text, "Not gathered: {failure}");
    }
    crate::output::print(&text)?;
    Ok(if gathered > 0 { ExitCode::SUCCESS } else { NOTHING.into() })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
