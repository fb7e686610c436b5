//! Prometheus that scrapes one target over TLS with a token, as in a cluster.

use std::{fmt::Write as _, net::SocketAddr, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{binaries, children::Daemon, http, ports::free_address};

/// Running Prometheus, which scrapes its target and evaluates its rules every second.
pub struct Prometheus {
    /// Process of Prometheus, dropped before its files.
    _daemon: Daemon,
    address: SocketAddr,
    files: tempfile::TempDir,
}

/// Encodes a query for a URL.
fn encoded(query: &str) -> String {
    let mut encoded = String::new();
    for byte in query.bytes() {
        // Writing to a String cannot fail.
        let _ = write!(encoded, "%{byte:02X}");
    }
    encoded
}

impl Prometheus {
    /// Starts Prometheus with a rule file. It has no target yet, trusts any certificate of a target, and sends the token to it.
    ///
    /// # Errors
    /// Fails when Prometheus cannot be found, downloaded or started, or a file cannot be written.
    pub fn start(rules: &Value, token: &str) -> Result<Self> {
        let files = tempfile::tempdir()?;
        let path = |name: &str| -> PathBuf { files.path().join(name) };
        std::fs::write(path("token"), token)?;
        let scrape = json!({
            "job_name": "operator", "file_sd_configs": [{"files": [path("targets.json")]}],
            "scheme": "https", "authorization": {"credentials_file": path("token")},
            "tls_config": {"insecure_skip_verify": true},
        });
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [path("rules.yaml")],
            "scrape_configs": [scrape],
        });
        std::fs::write(path("targets.json"), "[]")?;
        std::fs::write(path("rules.yaml"), rules.to_string())?;
        std::fs::write(path("prometheus.yaml"), config.to_string())?;
        let address = free_address()?;
        let mut command = Command::new(binaries::prometheus()?);
        command
            .arg(format!("--config.file={}", path("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .arg(format!("--web.listen-address={address}"));
        let daemon = Daemon::start("Prometheus", path("log"), &command)?;
        Ok(Self { _daemon: daemon, address, files })
    }

    /// Makes Prometheus scrape this target, and no other, from now on. Its series get the label `namespace`.
    ///
    /// # Errors
    /// Fails when the file with the target cannot be written.
    pub fn target(&self, target: SocketAddr, namespace: &str) -> Result<()> {
        let targets = json!([{"targets": [target.to_string()], "labels": {"namespace": namespace}}]);
        // Prometheus must not read half a file.
        std::fs::write(self.files.path().join("targets.new"), targets.to_string())?;
        std::fs::rename(self.files.path().join("targets.new"), self.files.path().join("targets.json"))?;
        Ok(())
    }

    /// Returns the log of Prometheus so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.files.path().join("log")).unwrap_or_default()
    }

    /// Returns all alerts that fire.
    ///
    /// # Errors
    /// Fails when Prometheus does not answer.
    pub async fn firing(&self) -> Result<Vec<Value>> {
        let alerts = self.get("/api/v1/alerts").await?["data"]["alerts"].take();
        let alerts = alerts.as_array().cloned().unwrap_or_default();
        Ok(alerts.into_iter().filter(|alert| alert["state"] == "firing").collect())
    }

    /// Returns the current samples of a query.
    ///
    /// # Errors
    /// Fails when Prometheus does not answer, or the query is invalid.
    pub async fn query(&self, query: &str) -> Result<Vec<Value>> {
        let answer = self.get(&format!("/api/v1/query?query={}", encoded(query))).await?;
        ensure!(answer["status"] == "success", "{query}: {answer}");
        Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let (_, answer) = http::request(self.address, "GET", path, "").await?;
        serde_json::from_str(&answer).with_context(|| answer.clone())
    }
}
