//! The command `check`: what stands in the way of something, found without a change.

mod before;
pub mod catalog;
mod fault;
mod host;
mod installation;
mod obstacle;
mod row;
mod takeover;

use std::{process::ExitCode, sync::Arc};

pub use host::host;
pub(crate) use installation::{leader, server_time};
pub use takeover::takeover;

use self::catalog::Scope;
use crate::{
    args::{self, CheckInstallation},
    client::api_server,
    context::Cluster,
    runtime::operator_namespace,
};

/// Checks an installation, or what is in the way of one, prints the results, and returns the exit status.
///
/// # Errors
/// When there is no configuration for the API server, it does not answer, or the results cannot be printed. What is wrong is no error: the
/// exit status reports it.
pub async fn installation(mut args: CheckInstallation, cluster: &args::Cluster) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::new(api_server::bounded_config(cluster).await?, &Arc::default())?;
    cluster.client.apiserver_version().await?;
    let rows = if args.pre {
        before::rows(&cluster.client, &args.run).await
    } else {
        let home = operator_namespace::find(&cluster.client, &args.run.namespace).await;
        args.run.namespace.clone_from(&home.name);
        installation::rows(cluster, &args.run, home).await
    };
    row::print(&rows, args.output, Scope::Installation)
}
