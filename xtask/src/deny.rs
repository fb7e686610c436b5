//! `cargo xtask deny`: cargo-deny over deny.toml, at a pinned version that is built once and kept.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use devenv::{execute, workspace_root};

use crate::tools::CARGO_DENY;

/// Time to fetch the advisories.
const FETCH: Duration = Duration::from_mins(2);

/// Checks licenses, sources, duplicates and, where their database can be fetched, known vulnerabilities of dependencies with cargo-deny, which is
/// built first if need be (minutes).
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs cargo-deny.
pub(crate) fn run(_: &Args) -> Result<()> {
    let program = CARGO_DENY.program()?;
    let deny = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--manifest-path").arg(workspace_root().join("Cargo.toml")).args(args);
        command
    };
    execute(&mut deny(&["check", "bans", "licenses", "sources"]))?;
    if !succeeds_within(FETCH, &mut deny(&["fetch", "db"]))? {
        println!(
            "LEFT OUT: the advisories (github.com/RustSec/advisory-db) cannot be fetched; known vulnerabilities were not looked up."
        );
        return Ok(());
    }
    execute(&mut deny(&["check", "--disable-fetch", "advisories"]))
}

/// Whether a program succeeds in this time. It is ended if it takes longer.
fn succeeds_within(limit: Duration, command: &mut Command) -> Result<bool> {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start cargo-deny")?;
    let begin = Instant::now();
    while begin.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    child.kill()?;
    child.wait()?;
    Ok(false)
}
