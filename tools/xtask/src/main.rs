//! Tasks for developers and CI: `cargo xtask <task>`.
//!
//! Each task of this program has a file, with its arguments. The program is small, so that it starts within seconds in a fresh clone; tasks that need
//! the operator's code are in the crate `xtask-operator`, which this program builds and runs with cargo.

mod boundaries;
mod check;
mod demo;
mod deny;
mod docs;
mod fuzz;
mod modules;
mod setup;
mod tools;

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use devenv::{forget_caller, workspace_root};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks for developers and CI.")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measures the operator: `join`, `rollout`, `upload`, `idle` or `soak`.
    #[command(disable_help_flag = true)]
    Bench(Forwarded),
    Boundaries(boundaries::Args),
    Check(check::Args),
    /// Starts a control plane, hosts and the operator, and applies a pool.
    #[command(disable_help_flag = true)]
    Demo(Forwarded),
    Deny(deny::Args),
    /// Writes the manifests of a release, the OLM bundle and the lists of its images.
    #[command(disable_help_flag = true)]
    Dist(Forwarded),
    Docs(docs::Args),
    Fuzz(fuzz::Args),
    /// Builds the operator's images and their SBOM.
    #[command(disable_help_flag = true)]
    Image(Forwarded),
    /// Writes crds/, examples/, the reference pages and the schema of host lists from the code of api/ and controller/, the files of kustomize and OLM from the Helm chart, and the patches for Argo CD from its scripts.
    #[command(disable_help_flag = true)]
    Gen(Forwarded),
    Modules(modules::Args),
    /// Makes the payload: the programs and static files that hosts need, with their manifest.
    #[command(disable_help_flag = true)]
    Payload(Forwarded),
    /// Compares the operator's roles with the audit logs of API servers.
    #[command(disable_help_flag = true)]
    Rights(Forwarded),
    Setup(setup::Args),
}

/// Arguments of a task in `xtask-operator`.
#[derive(clap::Args)]
struct Forwarded {
    /// Arguments; `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

fn main() -> std::process::ExitCode {
    devenv::exit(run(Cli::parse().task))
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Bench(task) => become_operator_task("bench", &task),
        Task::Boundaries(args) => boundaries::run(&args),
        Task::Check(args) => check::run(&args),
        Task::Demo(task) => {
            if !task.args.iter().any(|arg| arg == "--help" || arg == "-h") {
                demo::build()?;
            }
            become_operator_task("demo", &task)
        }
        Task::Deny(args) => deny::run(&args),
        Task::Dist(task) => become_operator_task("dist", &task),
        Task::Docs(args) => docs::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Image(task) => become_operator_task("image", &task),
        Task::Gen(task) => become_operator_task("gen", &task),
        Task::Modules(args) => modules::run(&args),
        Task::Payload(task) => become_operator_task("payload", &task),
        Task::Rights(task) => become_operator_task("rights", &task),
        Task::Setup(args) => setup::setup(&args),
    }
}

/// Returns the paths of the tracked files that match the patterns.
fn tracked(patterns: &[&str]) -> anyhow::Result<Vec<String>> {
    let mut git = Command::new("git");
    let files = devenv::read(git.args(["ls-files", "--"]).args(patterns).current_dir(workspace_root()))?;
    Ok(files.lines().map(str::to_owned).collect())
}

/// Replaces this process with the task, so that Ctrl-C and the exit status are the task's own.
fn become_operator_task(name: &str, task: &Forwarded) -> anyhow::Result<()> {
    Err(operator_task(name).args(&task.args).exec()).context("cannot start cargo")
}

/// Returns a cargo command that builds `xtask-operator` and runs one of its tasks in the current folder.
fn operator_task(name: &str) -> Command {
    let mut cargo = Command::new("cargo");
    forget_caller(&mut cargo);
    cargo.args(["run", "--package", "xtask-operator", "--manifest-path"]).arg(workspace_root().join("Cargo.toml"));
    cargo.args(["--", name]);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_arguments_reach_the_task() {
        for line in ["demo --once --simulated", "demo --help", "payload verify dir", "gen"] {
            let Ok(cli) = Cli::try_parse_from(["xtask"].into_iter().chain(line.split(' '))) else {
                panic!("{line} is refused");
            };
            let (Task::Demo(task) | Task::Payload(task) | Task::Gen(task)) = cli.task else { panic!("{line}") };
            assert_eq!(task.args, line.split(' ').skip(1).collect::<Vec<_>>(), "{line}");
        }
    }
}
