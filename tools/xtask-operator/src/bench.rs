//! `cargo xtask bench`: benchmarks of release builds. They print their results. Only `soak` fails because of its results.

mod aims;
mod idle;
mod join;
mod process;
mod proxy;
mod report;
mod rollout;
mod soak;
mod tally;
mod upload;
mod world;

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

/// Measures the operator: `join`, `rollout`, `upload`, `idle` or `soak`. docs/reference/limits.md describes each one and its output.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand)]
enum Bench {
    /// Measures how simulated hosts join.
    Join(join::Args),
    /// Measures how a kubelet change reaches the nodes of simulated hosts.
    Rollout(rollout::Args),
    /// Compares the operator's upload with OpenSSH's sftp and scp, to the same OpenSSH server.
    Upload(upload::Args),
    /// Measures the resource usage for Ready instances without changes.
    Idle(idle::Args),
    /// Causes random events, by default for an hour, and checks that they leave nothing behind.
    Soak(soak::Args),
}

/// Required limit of open files: a simulated host has a port and connections.
const FILES: u32 = 8192;

/// Environment variable with the path of a built operator. Tests set it to skip the release build: they check what a benchmark reports, not
/// the times.
const GIVEN_OPERATOR: &str = "WNP_BENCH_OPERATOR";

/// Runs a benchmark. A debug build of this program builds and runs its release build instead, unless [`GIVEN_OPERATOR`] is set.
pub(crate) fn run(args: &Args) -> Result<()> {
    if cfg!(debug_assertions) && std::env::var_os(GIVEN_OPERATOR).is_none() {
        return run_release();
    }
    allow_files()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match &args.bench {
            Bench::Join(args) => join::run(args).await,
            Bench::Rollout(args) => rollout::run(args).await,
            Bench::Upload(args) => upload::run(args).await,
            Bench::Idle(args) => idle::run(args).await,
            Bench::Soak(args) => Box::pin(soak::run(args)).await,
        }
    })
}

fn run_release() -> Result<()> {
    let mut cargo = devenv::cargo();
    cargo.args(["run", "--release", "--locked", "-p", "xtask-operator", "--"]);
    devenv::execute(cargo.args(std::env::args_os().skip(1)))
}

fn allow_files() -> Result<()> {
    let limits = std::fs::read_to_string("/proc/self/limits").context("this needs Linux")?;
    if open_files(&limits).is_some_and(|soft| soft >= FILES) {
        return Ok(());
    }
    let pid = std::process::id().to_string();
    let raised = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={FILES}:")]).status();
    ensure!(raised.is_ok_and(|s| s.success()), "this needs {FILES} open files: run `ulimit -n {FILES}` as root first");
    Ok(())
}

/// Returns the soft limit of open files from the text of `/proc/<pid>/limits`.
fn open_files(limits: &str) -> Option<u32> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_whitespace().next()?;
    if soft == "unlimited" { Some(u32::MAX) } else { soft.parse().ok() }
}

/// Returns the machine's load average over one minute, for the report.
fn load() -> String {
    let text = std::fs::read_to_string(Path::new("/proc/loadavg")).unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
