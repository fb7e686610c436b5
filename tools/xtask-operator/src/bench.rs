//! `cargo xtask bench`: measurements, in release builds. They print, and pass or fail nothing, but for `soak`.

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

/// Measures the operator: `join`, `rollout`, `upload`, `idle` or `soak`. What each does and how to read it is in docs/reference/limits.md.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand)]
enum Bench {
    /// Simulated hosts join.
    Join(join::Args),
    /// A change of the kubelet reaches the nodes of simulated hosts.
    Rollout(rollout::Args),
    /// The operator's upload compared with OpenSSH's sftp and scp, to the same OpenSSH server.
    Upload(upload::Args),
    /// Ready instances that nothing happens to.
    Idle(idle::Args),
    /// Events at random for an hour, and what they leave behind.
    Soak(soak::Args),
}

/// Open files that this process asks for: a simulated host has a port and connections.
const FILES: u32 = 8192;

/// Variable with the path of a built operator. With it a benchmark is not built again for release: a test sees what a benchmark reports, not how fast
/// anything is.
const GIVEN_OPERATOR: &str = "WNP_BENCH_OPERATOR";

/// Runs a benchmark. A debug build builds a release and runs that instead.
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
    let mut cargo = Command::new("cargo");
    testbed::binaries::forget_caller(&mut cargo);
    cargo.current_dir(devenv::workspace_root()).args(["run", "--release", "--locked", "-p", "xtask-operator", "--"]);
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

/// The soft limit of open files in the text of `/proc/<pid>/limits`.
fn open_files(limits: &str) -> Option<u32> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_whitespace().next()?;
    if soft == "unlimited" { Some(u32::MAX) } else { soft.parse().ok() }
}

/// Average load of the machine, for the report.
fn load() -> String {
    let text = std::fs::read_to_string(Path::new("/proc/loadavg")).unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_read() {
        let line = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 524288               files\n";
        assert_eq!(open_files(line), Some(1024));
        assert_eq!(
            open_files("Max open files            unlimited            unlimited            files\n"),
            Some(u32::MAX)
        );
        assert_eq!(open_files(""), None);
    }
}
