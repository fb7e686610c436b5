//! `windows-node-pools`: see `--help`.

use std::process::ExitCode;

use controller::{
    args::{self, Check, Command},
    plugin::{self, Role},
};

/// See `.cargo/config.toml` for its options.
#[cfg(all(target_env = "musl", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What did not work, also a command line that is wrong: 2 is an answer of the command `plan`.
const FAILED: u8 = 1;

#[tokio::main]
async fn main() -> ExitCode {
    // The first line: two providers in one process, or none, make the first TLS connection panic.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut words = std::env::args_os();
    let role = Role::of(words.next().as_deref());
    if role == Role::Completion {
        let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
        // Nothing can be reported to who has pressed the tabulator.
        return plugin::complete(&words).await.map_or(FAILED.into(), |()| ExitCode::SUCCESS);
    }
    let commands = if role == Role::Plugin { plugin::command() } else { args::command() };
    let cli = match args::parse(commands) {
        Ok(cli) => cli,
        Err(error) => {
            // Help is an answer, too. A write error of a closed pipe cannot be reported.
            let _ = error.print();
            return if error.use_stderr() { FAILED.into() } else { ExitCode::SUCCESS };
        }
    };
    let cluster = &cli.cluster;
    let result = match cli.command {
        Command::Run(args) => Box::pin(controller::run::run(*args, cluster)).await.map(|()| ExitCode::SUCCESS),
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
        Command::Payload { copy } => controller::payload_command::run(&copy),
        Command::MachineSet(args) => controller::machineset_command::run(args, cluster).await,
        Command::Crds => crds().map(|()| ExitCode::SUCCESS),
        Command::Completion { shell } => args::complete(shell).map(|()| ExitCode::SUCCESS).map_err(Into::into),
    };
    result.unwrap_or_else(|error| {
        eprintln!("Error: {}", controller::errors::in_lines(&error));
        FAILED.into()
    })
}

fn crds() -> anyhow::Result<()> {
    for crd in api::crds() {
        print!("---\n{}", serde_yaml::to_string(&crd)?);
    }
    Ok(())
}
