//! Command `check`: finds what prevents an installation, a host or a takeover from working. It changes nothing.

mod before;
pub mod catalog;
#[cfg(test)]
mod fake_cluster;
mod files;
mod host;
mod installation;
mod row;
mod takeover;

use std::{process::ExitCode, sync::Arc};

pub use files::run as files;
pub(crate) use installation::{leader, server_time};
use serde_json::Value;

use self::catalog::Facts;
use crate::{
    args::{self, CheckHost, CheckInstallation, CheckTakeover},
    client::api_server,
    context::Cluster,
    runtime::operator_namespace,
};

/// Checks an installation, or with `--pre` the cluster before it, prints the results, and returns the exit status.
///
/// # Errors
/// Fails when there is no configuration for the API server, it does not answer, or the results cannot be printed. A failed check is not an error:
/// the exit status reports it.
pub async fn installation(mut args: CheckInstallation, cluster: &args::Cluster) -> anyhow::Result<ExitCode> {
    let cluster = connect(cluster).await?;
    if args.pre {
        return catalog::print(Facts::Before(&before::observe(&cluster.client, &args.run).await), args.output);
    }
    let home = operator_namespace::find(&cluster.client, &args.run.namespace).await;
    args.run.namespace.clone_from(&home.name);
    let mut facts = installation::observe(&cluster.client, home).await;
    facts.observe_release(Box::pin(cluster.release(&args.run)).await.as_ref(), &args.run).await;
    catalog::print(Facts::Installation(&facts), args.output)
}

/// Checks a host, prints the results, and returns the exit status.
///
/// # Errors
/// Fails when the private key or `wicd.exe` cannot be read, the host key is invalid, or the results cannot be printed. A host that cannot become a
/// node is not an error: the exit status reports it.
pub async fn host(args: CheckHost) -> anyhow::Result<ExitCode> {
    let output = args.output;
    catalog::print(Facts::Host(&host::observe(args).await?), output)
}

/// Checks a host, and returns the results that `-o json` prints.
///
/// # Errors
/// Fails when the private key or `wicd.exe` cannot be read, or the host key is invalid. A host that cannot become a node is not an error.
pub async fn host_results(args: CheckHost) -> anyhow::Result<Vec<Value>> {
    Ok(catalog::objects(&catalog::outcomes(Facts::Host(&host::observe(args).await?))))
}

/// Checks for obstacles to a takeover, prints the results, and returns the exit status.
///
/// # Errors
/// Fails when there is no configuration for the API server, it does not answer, or the results cannot be printed. An obstacle is not an error: the
/// exit status reports it.
pub async fn takeover(args: CheckTakeover, cluster: &args::Cluster) -> anyhow::Result<ExitCode> {
    let cluster = connect(cluster).await?;
    let release = cluster.release(&args.run).await;
    let mut facts = takeover::observe(&cluster.client, &args.run.namespace).await;
    facts.observe_release(release.as_ref(), &args.run.payload);
    catalog::print(Facts::Takeover(&facts), args.output)
}

/// Connects to the cluster, and verifies that its API server answers.
async fn connect(cluster: &args::Cluster) -> anyhow::Result<Cluster> {
    let cluster = Cluster::new(api_server::bounded_config(cluster).await?, &Arc::default())?;
    cluster.client.apiserver_version().await?;
    Ok(cluster)
}
