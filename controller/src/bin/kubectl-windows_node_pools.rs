//! Client program `kubectl windows-node-pools`. See `--help`.

use std::{env, process::ExitCode};

use controller::{
    args::{self, Check, Cli, Command},
    client,
    runtime::errors,
};

#[tokio::main]
async fn main() -> ExitCode {
    // Must come first: without exactly one provider in the process, the first TLS connection panics.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut words = env::args_os();
    if client::is_completion(words.next().as_deref()) {
        // Shell completion cannot show an error.
        return client::complete(words).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    match args::parse(client::command()) {
        Ok(cli) => errors::exit(Box::pin(run(cli)).await),
        Err(status) => status,
    }
}

async fn run(Cli { cluster, command }: Cli) -> anyhow::Result<ExitCode> {
    let cluster = &cluster;
    match command {
        Command::Plan(args) => Box::pin(controller::commands::plan::run(*args, cluster)).await,
        Command::Explain(args) => controller::commands::explain::run(args, cluster).await.map(|()| ExitCode::SUCCESS),
        Command::Check { what: None, installation } => {
            Box::pin(controller::commands::check::installation(*installation, cluster)).await
        }
        Command::Check { what: Some(Check::Host(args)), .. } => Box::pin(controller::commands::check::host(args)).await,
        Command::Check { what: Some(Check::Files(args)), .. } => controller::commands::check::files(&args),
        Command::Check { what: Some(Check::Takeover(args)), .. } => {
            Box::pin(controller::commands::check::takeover(*args, cluster)).await
        }
        Command::Status(args) => controller::commands::status::run(args, cluster).await,
        Command::Ui(args) => Box::pin(controller::commands::ui::run(args, cluster)).await.map(|()| ExitCode::SUCCESS),
        Command::Act(args) => Box::pin(controller::commands::act::run(args, cluster)).await,
        Command::Gather(args) => Box::pin(controller::commands::gather::run(*args, cluster)).await,
        Command::MachineSet(args) => controller::commands::machineset::run(args, cluster).await,
        Command::Version(args) => controller::commands::version::run(&args, cluster).await.map(|()| ExitCode::SUCCESS),
    }
}
