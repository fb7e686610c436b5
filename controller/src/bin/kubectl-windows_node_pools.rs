//! Client program `kubectl windows-node-pools`. See `--help`.

use std::{env, process::ExitCode};

use controller::{
    args::{self, Check, Cli, Command},
    client,
    commands::{act, check, explain, gather, machineset, plan, status, ui, version},
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
        Command::Plan(args) => Box::pin(plan::run(*args, cluster)).await,
        Command::Explain(args) => explain::run(args, cluster).await.map(|()| ExitCode::SUCCESS),
        Command::Check { what: None, installation } => Box::pin(check::installation(*installation, cluster)).await,
        Command::Check { what: Some(Check::Host(args)), .. } => Box::pin(check::host(args)).await,
        Command::Check { what: Some(Check::Files(args)), .. } => check::files(&args),
        Command::Check { what: Some(Check::Takeover(args)), .. } => Box::pin(check::takeover(*args, cluster)).await,
        Command::Status(args) => status::run(args, cluster).await,
        Command::Ui(args) => Box::pin(ui::run(args, cluster)).await.map(|()| ExitCode::SUCCESS),
        Command::Act(args) => Box::pin(act::run(args, cluster)).await,
        Command::Gather(args) => Box::pin(gather::run(*args, cluster)).await,
        Command::MachineSet(args) => machineset::run(args, cluster).await,
        Command::Version(args) => version::run(&args, cluster).await.map(|()| ExitCode::SUCCESS),
    }
}
