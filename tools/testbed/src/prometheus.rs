//! Prometheus that scrapes one target over TLS with a token, as in a cluster.

use std::{
    fmt::Write as _,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{binaries, children::Daemon};

/// Running Prometheus, which scrapes its target and evaluates its rules every second.
pub struct Prometheus {
    /// Process of Prometheus, dropped before its files.
    _daemon: Daemon,
    address: SocketAddr,
    files: tempfile::TempDir,
}

/// Values of one series over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Labels of the series.
    pub labels: Value,
    /// Points of time, from 0 at the beginning to 1 at the end, and the values.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Returns the last value of the series.
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|(_, value)| *value)
    }
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
    /// Starts Prometheus with the groups of a rule file. It has no target yet, and trusts any certificate.
    ///
    /// # Errors
    /// Fails when it cannot be built or started.
    pub fn start(rules: &Value, token: &str) -> Result<Self> {
        let files = tempfile::tempdir()?;
        let path = |name: &str| -> PathBuf { files.path().join(name) };
        std::fs::write(path("token"), token)?;
        let secured = json!({
            "scheme": "https",
            "authorization": {"credentials_file": path("token")},
            "tls_config": {"insecure_skip_verify": true},
        });
        Self::run(files, rules, secured)
    }

    /// Starts Prometheus for a target that serves without TLS and asks for no token.
    ///
    /// # Errors
    /// Fails when it cannot be built or started.
    pub fn without_tls(rules: &Value) -> Result<Self> {
        Self::run(tempfile::tempdir()?, rules, json!({"scheme": "http"}))
    }

    fn run(files: tempfile::TempDir, rules: &Value, mut scrape: Value) -> Result<Self> {
        let path = |name: &str| -> PathBuf { files.path().join(name) };
        scrape["job_name"] = "operator".into();
        scrape["file_sd_configs"] = json!([{"files": [path("targets.json")]}]);
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [path("rules.yaml")],
            "scrape_configs": [scrape],
        });
        std::fs::write(path("targets.json"), "[]")?;
        std::fs::write(path("rules.yaml"), rules.to_string())?;
        std::fs::write(path("prometheus.yaml"), config.to_string())?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(binaries::prometheus()?);
        command
            .arg(format!("--config.file={}", path("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .arg(format!("--web.listen-address={address}"));
        let daemon = Daemon::start("Prometheus", path("log"), &command)?;
        Ok(Self { _daemon: daemon, address, files })
    }

    /// Scrapes this target from now on.
    ///
    /// # Errors
    /// Fails when its files cannot be written.
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

    /// Returns the series of a query up to now: `points` points after the first one.
    ///
    /// # Errors
    /// Fails when Prometheus does not answer, or the query is invalid.
    pub async fn range(&self, query: &str, step: Duration, points: u32) -> Result<Vec<Series>> {
        let end = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
        let span = (step * points).as_secs_f64();
        let (query, start, step) = (encoded(query), end - span, step.as_secs_f64());
        let path = format!("/api/v1/query_range?query={query}&start={start}&end={end}&step={step}");
        let answer = self.get(&path).await?;
        ensure!(answer["status"] == "success", "{query}: {answer}");
        let of = |one: &Value| {
            let point = |p: &Value| {
                let value = p[1].as_str()?.parse().ok().filter(|v: &f64| v.is_finite())?;
                let at = if span > 0.0 { (p[0].as_f64()? - start) / span } else { 1.0 };
                Some((at, value))
            };
            let points = one["values"].as_array().into_iter().flatten().filter_map(point).collect();
            Series { labels: one["metric"].clone(), points }
        };
        Ok(answer["data"]["result"].as_array().into_iter().flatten().map(of).collect())
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let mut stream = TcpStream::connect(self.address).await?;
        // An HTTP/1.0 response is not split into chunks.
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let (_, body) = text.split_once("\r\n\r\n").context("an answer without a body")?;
        serde_json::from_str(body).with_context(|| text.clone())
    }
}
