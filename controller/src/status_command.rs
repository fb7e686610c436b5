//! The command `status`: pools and their hosts as a tree, the worst first.

use std::{fmt::Write as _, process::ExitCode};

use anyhow::{Context as _, bail};
use api::{
    Phase, Time, WindowsInstance, WindowsNodePool,
    conditions::{find, is_true, kind},
    text,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde::Serialize;

use crate::{
    api_server,
    args::{self, Output, Status},
};

/// Ready hosts of a pool that are shown one by one.
const FEW: usize = 10;

/// Prints the tree.
///
/// # Errors
/// When there is no configuration for the API server, it refuses a request or does not answer, or there is no pool of a name.
pub async fn run(args: Status, cluster: &args::Cluster) -> anyhow::Result<ExitCode> {
    let client =
        Client::try_from(api_server::config(cluster).await?).context("cannot make a client for the API server")?;
    let all = ListParams::default();
    let pools: Api<WindowsNodePool> = Api::all(client.clone());
    let mut pools = pools.list(&all).await.context("failed to list the WindowsNodePools")?.items;
    if let Some(missing) = args.pools.iter().find(|name| pools.iter().all(|p| p.name_any() != **name)) {
        bail!("there is no WindowsNodePool {missing}; see: kubectl get windowsnodepools");
    }
    pools.retain(|pool| args.pools.is_empty() || args.pools.contains(&pool.name_any()));
    let instances: Api<WindowsInstance> = Api::all(client);
    let instances = instances.list(&all).await.context("failed to list the WindowsInstances")?.items;
    let pools = summarize(&pools, &instances);
    let text = match args.output {
        Output::Table => tree(&pools, args.all, args.width),
        Output::Json => serde_json::to_string_pretty(&pools)? + "\n",
    };
    crate::output::print(&text)?;
    Ok(exit(&pools).into())
}

/// A pool and what it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pool {
    name: String,
    ready: String,
    degraded: bool,
    reason: String,
    message: String,
    hosts: Vec<Host>,
    refused: Vec<Refused>,
}

/// A host of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Host {
    name: String,
    phase: Option<Phase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_retry_time: Option<Time>,
    message: String,
    /// A node that is Ready, and of which there is no more to be said.
    #[serde(skip)]
    is_fine: bool,
}

/// An entry that is no host of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Refused {
    host: String,
    reason: String,
    message: String,
}

fn ready_of(conditions: &[Condition]) -> (String, String, String) {
    find(conditions, kind::READY).map_or_else(
        || ("Unknown".into(), "Pending".into(), "the operator has not reported on it yet".into()),
        |c| (c.status.clone(), c.reason.clone(), text::lines(&c.message).replace('\n', " ")),
    )
}

fn summarize(pools: &[WindowsNodePool], instances: &[WindowsInstance]) -> Vec<Pool> {
    let mut all: Vec<Pool> = pools
        .iter()
        .map(|pool| {
            let status = pool.status.clone().unwrap_or_default();
            let (mut ready, reason, message) = ready_of(&status.conditions);
            if status.observed_generation != pool.metadata.generation {
                "Unknown".clone_into(&mut ready);
            }
            let name = pool.name_any();
            let mut hosts: Vec<Host> = instances.iter().filter(|i| i.spec.pool_ref.name == name).map(host).collect();
            hosts.sort_by_key(|host| (rank(host), host.name.clone()));
            let refused = status.refused.iter().map(|entry| Refused {
                host: text::line(&entry.host, 253),
                reason: entry.reason.clone(),
                message: text::line(&entry.message, 1_000),
            });
            let degraded = is_true(&status.conditions, kind::DEGRADED);
            Pool { name, ready, degraded, reason, message, hosts, refused: refused.collect() }
        })
        .collect();
    all.sort_by_key(|pool| (pool.ready != "False", !pool.degraded, pool.ready != "Unknown", pool.name.clone()));
    all
}

fn host(instance: &WindowsInstance) -> Host {
    let status = instance.status.clone().unwrap_or_default();
    let (ready, _, message) = ready_of(&status.conditions);
    let since = match (&status.failures, &status.operation) {
        (Some(failures), _) => failures.first_time,
        (None, Some(operation)) => Some(operation.step_start_time),
        (None, None) => find(&status.conditions, kind::READY)
            .filter(|c| c.status != "True")
            .map(|c| c.last_transition_time.0.into()),
    };
    // What kubelet says of a node that works is no news; what the operator adds is.
    let is_fine = ready == "True" && status.failures.is_none() && status.operation.is_none() && !message.contains("; ");
    Host {
        name: instance.name_any(),
        phase: status.phase,
        since,
        next_retry_time: status.failures.and_then(|f| f.next_retry_time),
        message,
        is_fine,
    }
}

/// The worst first.
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

fn exit(pools: &[Pool]) -> u8 {
    if pools.iter().any(|pool| pool.ready == "False" || pool.degraded) {
        1
    } else if pools.iter().any(|pool| pool.ready != "True") {
        2
    } else {
        0
    }
}

fn tree(pools: &[Pool], all: bool, width: usize) -> String {
    if pools.is_empty() {
        return "There is no WindowsNodePool.\n".into();
    }
    let mut text = String::new();
    for pool in pools {
        put(&mut text, &format!("{}  ", pool.name), "  ", &pool.message, width);
        let fine = pool.hosts.iter().filter(|host| host.is_fine).count();
        let folds = !all && fine > FEW;
        let names = pool.hosts.iter().map(|h| &h.name).chain(pool.refused.iter().map(|r| &r.host));
        let column = names.map(|name| name.chars().count()).max().unwrap_or_default().min(40);
        let mut rows: Vec<(String, String)> = Vec::new();
        for host in pool.hosts.iter().filter(|host| !(folds && host.is_fine)) {
            let phase = host.phase.map_or_else(|| "New".into(), |phase| format!("{phase:?}"));
            let since =
                host.since.and_then(Time::known).map(|at| format!(" (since {})", at.strftime("%Y-%m-%d %H:%M:%SZ")));
            let said = if host.is_fine { String::new() } else { host.message.clone() + &since.unwrap_or_default() };
            rows.push((format!("{:column$}  {phase:9}", host.name), said));
        }
        for entry in &pool.refused {
            rows.push((format!("{:column$}  {:9}", entry.host, "Refused"), entry.message.clone()));
        }
        if folds {
            rows.push((format!("{fine} more are Ready"), String::new()));
        }
        let last = rows.len().saturating_sub(1);
        for (n, (head, said)) in rows.iter().enumerate() {
            let (branch, below) = if n == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            put(&mut text, &format!("{branch}{head}  "), &format!("{below}    "), said, width);
        }
    }
    text
}

/// A text after its head, wrapped at the width, with its further lines below.
fn put(into: &mut String, head: &str, below: &str, said: &str, width: usize) {
    let mut line = head.to_owned();
    let mut is_empty = true;
    for word in said.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > width {
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
#[path = "status_command_tests.rs"]
mod tests;
