//! Prometheus, and `promtool`, which checks and tests its rules.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{Run as _, built_once, cache_dir, find, say};

/// Finds promtool in `$PATH`, or extracts it from Debian's package `prometheus`, without installing the package.
///
/// # Errors
/// Fails when it is missing and cannot be downloaded, or the cache cannot be written.
pub fn promtool() -> Result<PathBuf> {
    of_package("promtool")
}

/// Finds Prometheus in the same places as [`promtool`].
///
/// # Errors
/// Fails as [`promtool`] does.
pub fn prometheus() -> Result<PathBuf> {
    of_package("prometheus")
}

fn of_package(program: &str) -> Result<PathBuf> {
    if let Some(path) = find(program) {
        return Ok(path);
    }
    let dir = cache_dir()?.join("promtool-debian");
    built_once(&dir, program, |out| {
        say(&format!("downloading {program} (Debian's package prometheus)"));
        let files = tempfile::tempdir_in(&dir)?;
        Command::new("apt-get").args(["download", "prometheus"]).current_dir(files.path()).run()?;
        let mut packages = std::fs::read_dir(files.path())?;
        let package = packages.next().context("apt-get has downloaded nothing")??.path();
        Command::new("dpkg").arg("-x").arg(package).arg(files.path()).run()?;
        std::fs::rename(files.path().join(Path::new("usr/bin").join(program)), out)?;
        Ok(())
    })
}
