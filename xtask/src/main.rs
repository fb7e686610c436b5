//! Tasks for developers and CI: `cargo xtask <task>`. Each has a file of its own, with its arguments and a `run`.

mod bench;
mod check;
mod demo;
mod deny;
mod fuzz;
mod r#gen;
mod payload;
mod rights;
mod words;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks for developers and CI.")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Bench(bench::Args),
    Check(check::Args),
    Demo(demo::Args),
    Deny(deny::Args),
    Fuzz(fuzz::Args),
    Gen(r#gen::Args),
    Payload(payload::Args),
    Rights(rights::Args),
    Words(words::Args),
    /// Installs what the test bed needs on a Debian machine, as root; does nothing if all is there.
    Setup,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Bench(args) => bench::run(&args),
        Task::Check(args) => check::run(&args),
        Task::Demo(args) => demo::run(&args),
        Task::Deny(args) => deny::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Gen(args) => r#gen::run(&args),
        Task::Payload(args) => payload::run(args),
        Task::Rights(args) => rights::run(&args),
        Task::Words(args) => words::run(&args),
        Task::Setup => testbed::setup::setup(),
    }
}

/// The folder that holds the workspace's Cargo.toml. Cargo says at run time where it is; what is compiled in may be the path of
/// another clone that shares its target folder.
fn workspace_root() -> PathBuf {
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    xtask.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Runs a program to its end; an exit status other than 0 is an error.
fn execute(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("start {}", command.get_program().display()))?;
    ensure!(status.success(), "{}: {status}", command.get_program().display());
    Ok(())
}
