//! Registry of images and charts.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};

use crate::binaries;

/// Registry in memory, on loopback and without TLS. It ends on drop.
#[derive(Debug)]
pub struct Registry {
    crane: Child,
    address: String,
}

impl Registry {
    /// Starts a registry.
    ///
    /// # Errors
    /// Fails when crane cannot be built or started.
    pub fn start() -> Result<Self> {
        let mut command = Command::new(binaries::crane()?);
        command.args(["registry", "serve", "--address", "127.0.0.1:0"]).env_remove("PORT").stderr(Stdio::piped());
        let mut crane = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("cannot start crane")?;
        let log = crane.stderr.take().context("crane has no log")?;
        let mut this = Self { crane, address: String::new() };
        // The line with the port is `serving on port 12345`.
        let mut lines = BufReader::new(log).lines().map_while(Result::ok);
        let port = lines.find_map(|line| Some(line.split_once("serving on port ")?.1.trim().to_owned()));
        this.address = format!("127.0.0.1:{}", port.context("crane serves no port")?);
        // Reads the log to its end, so that crane does not block while it writes.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(this)
    }

    /// Returns the host and port of the registry.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.crane.kill();
        let _ = self.crane.wait();
    }
}
