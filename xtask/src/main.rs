//! Tasks for developers and CI: `cargo xtask <task>`. Each has a file of its own, with its arguments and a `run`.

mod payload;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks for developers and CI.")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Payload(payload::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Payload(args) => payload::run(args),
    }
}
