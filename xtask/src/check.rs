//! `cargo xtask check`: all that CI checks, in the order in which it fails soonest.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use testbed::binaries::forget_caller;

use crate::{deny, execute, fuzz, r#gen, rights, words, workspace_root};

const WINDOWS: &str = "x86_64-pc-windows-gnu";

/// Runs all that CI checks: format, words, clippy for both targets, cargo-deny, generated files, tests, the operator's rights, fuzz targets for
/// half a minute each.
#[derive(clap::Args)]
pub struct Args {}

type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("format", || cargo(&["fmt", "--all", "--check"])),
    ("format of the fuzz targets", || cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])),
    ("generated files", || r#gen::run(&r#gen::Args { check: true })),
    ("dependencies", || deny::run(&deny::Args {})),
    ("words", || words::run(&words::Args {})),
    ("clippy", || cargo(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"])),
    ("clippy for Windows", clippy_for_windows),
    ("tests", tests),
    ("the operator's rights", || rights::run(&rights::Args { logs: rights::logs(), partial: false })),
    ("fuzz targets", || fuzz::run(&fuzz::Args { seconds: 30, input: None, targets: Vec::new() })),
];

/// Runs every step; the first that fails ends it.
pub fn run(_: &Args) -> Result<()> {
    let begin = Instant::now();
    for (name, step) in STEPS {
        println!("\n== {name} (after {} s)", begin.elapsed().as_secs());
        step().with_context(|| format!("check failed: {name}"))?;
    }
    Ok(())
}

fn cargo(args: &[&str]) -> Result<()> {
    let mut cargo = Command::new("cargo");
    forget_caller(&mut cargo);
    execute(cargo.args(args).current_dir(workspace_root()))
}

fn clippy_for_windows() -> Result<()> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).current_dir(workspace_root()).output()?.stdout;
    if !Path::new(String::from_utf8(sysroot)?.trim()).join("lib/rustlib").join(WINDOWS).is_dir() {
        println!(
            "LEFT OUT: the Rust toolchain has no {WINDOWS}, and rustup could not add it. The tests still build wicd.exe."
        );
        return Ok(());
    }
    cargo(&["clippy", "--locked", "-p", "wicd", "-p", "api", "--target", WINDOWS, "--", "-D", "warnings"])
}

/// All tests. The last line sums up what the many test binaries say.
fn tests() -> Result<()> {
    let mut command = Command::new("cargo");
    forget_caller(&mut command);
    command.args(["test", "--locked", "--workspace", "--no-fail-fast"]).current_dir(workspace_root());
    command.env(testbed::AUDIT_DIR, rights::fresh_logs()?);
    let mut child = command.stdout(Stdio::piped()).spawn().context("start cargo test")?;
    let mut sum = Tally::default();
    for line in BufReader::new(child.stdout.take().context("cargo test has no output")?).lines() {
        let line = line?;
        println!("{line}");
        sum.add(&line);
    }
    let status = child.wait()?;
    println!("\n{} passed, {} failed, {} skipped", sum.passed, sum.failed, sum.ignored);
    ensure!(status.success(), "cargo test: {status}");
    ensure!(sum.passed > 0, "no test ran");
    Ok(())
}

#[derive(Default, Debug, PartialEq, Eq)]
struct Tally {
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl Tally {
    /// Adds up lines as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s`.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
            return;
        };
        for count in counts.split("; ") {
            match count.split_once(' ').map(|(number, what)| (number.parse().unwrap_or(0), what)) {
                Some((n, "passed")) => self.passed += n,
                Some((n, "failed")) => self.failed += n,
                Some((n, "ignored")) => self.ignored += n,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_of_all_binaries_are_added_up() {
        let mut sum = Tally::default();
        for line in [
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s",
            "test result: FAILED. 40 passed; 2 failed; 0 ignored; 0 measured; 5 filtered out; finished in 1.00s",
            "test test result: ok ... ok",
            "running 7 tests",
        ] {
            sum.add(line);
        }
        assert_eq!(sum, Tally { passed: 43, failed: 2, ignored: 1 });
    }
}
