//! `cargo xtask deny`: cargo-deny over deny.toml, at a pinned version that is built once and kept.

use std::{fs, path::PathBuf, process::Command};

use anyhow::Result;

use crate::{execute, workspace_root};

const VERSION: &str = "0.20.2";

/// Checks licenses, sources and duplicates of dependencies with cargo-deny, which is built first if need be (minutes).
#[derive(clap::Args)]
pub struct Args {}

/// Runs cargo-deny.
pub fn run(_: &Args) -> Result<()> {
    let manifest = workspace_root().join("Cargo.toml");
    execute(
        Command::new(program()?).arg("--manifest-path").arg(manifest).args(["check", "bans", "licenses", "sources"]),
    )
}

/// The pinned cargo-deny.
fn program() -> Result<PathBuf> {
    let root = testbed::binaries::cache_dir()?.join(format!("cargo-deny-{VERSION}"));
    let program = root.join("bin/cargo-deny");
    if program.is_file() {
        return Ok(program);
    }
    eprintln!("building cargo-deny {VERSION} (minutes, once)");
    let target = root.join("target");
    // Debug: half the time to build, and it runs for two seconds either way.
    let install = ["install", "cargo-deny", "--version", VERSION, "--locked", "--debug", "--root"];
    execute(Command::new("cargo").args(install).arg(&root).env("CARGO_TARGET_DIR", &target))?;
    fs::remove_dir_all(target)?;
    Ok(program)
}
