//! `kubectl windows-node-pools`, the program of people: see `--help`.

use std::{env, process::ExitCode};

use controller::{
    args::{self, Check, Cli, Command},
    client, errors,
};

#[tokio::main]
async fn main() -> ExitCode {
    // The first line: two providers in one process, or none, make the first TLS connection panic.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut words = env::args_os();
    if client::is_completion(words.next().as_deref()) {
        // Nothing can be reported to who has pressed the tabulator.
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
        Command::Plan(args) => Box::pin(controller::plan_command::run(*args, cluster)).await,
        Command::Explain(args) => controller::explain_command::run(args, cluster).await.map(|()| ExitCode::SUCCESS),
        Command::Check { what: None, installation } => {
            Box::pin(controller::check_command::installation(*installation, cluster)).await
        }
        Command::Check { what: Some(Check::Host(args)), .. } => Box::pin(controller::check_command::host(args)).await,
        Command::Check { what: Some(Check::Takeover(args)), .. } => {
            Box::pin(controller::check_command::takeover(*args, cluster)).await
        }
        Command::Lint(args) => controller::lint_command::run(&args),
        Command::Status(args) => controller::status_command::run(args, cluster).await,
        Command::Act(args) => Box::pin(controller::act_command::run(args, cluster)).await,
        Command::Gather(args) => Box::pin(controller::gather::run(*args, cluster)).await,
        Command::MachineSet(args) => controller::machineset_command::run(args, cluster).await,
        Command::Crds => crds().map(|()| ExitCode::SUCCESS),
    }
}

fn crds() -> anyhow::Result<()> {
    for crd in api::crds() {
        print!("---\n{}", serde_yaml::to_string(&crd)?);
    }
    Ok(())
}
