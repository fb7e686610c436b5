//! `promtool`, which checks and tests rules of Prometheus.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use super::{Run as _, built_once, cache_dir, find, say};

/// Finds promtool on the PATH, or takes it out of Debian's package `prometheus`, without installing that.
///
/// # Errors
/// When it is missing and cannot be downloaded, or the cache cannot be written.
pub fn promtool() -> Result<PathBuf> {
    if let Some(path) = find("promtool") {
        return Ok(path);
    }
    let dir = cache_dir()?.join("promtool-debian");
    built_once(&dir, "promtool", |out| {
        say("downloading promtool (Debian's package prometheus)");
        let files = tempfile::tempdir_in(&dir)?;
        Command::new("apt-get").args(["download", "prometheus"]).current_dir(files.path()).run()?;
        let mut packages = std::fs::read_dir(files.path())?;
        let package = packages.next().context("apt-get has downloaded nothing")??.path();
        Command::new("dpkg").arg("-x").arg(package).arg(files.path()).run()?;
        std::fs::rename(files.path().join("usr/bin/promtool"), out)?;
        Ok(())
    })
}
