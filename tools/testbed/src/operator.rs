//! Operator as a separate process, so that it can be killed.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result};

use crate::{
    ControlPlane,
    children::Daemon,
    deployment::{OPERATOR, OPERATOR_GROUPS, within},
    http,
    ports::free_address,
};

/// Options for running the operator.
#[derive(Clone, Debug)]
pub struct OperatorOptions {
    /// Program of the operator.
    pub program: PathBuf,
    /// Payload directory.
    pub payload: PathBuf,
    /// Path of `wicd.exe`.
    pub wicd: PathBuf,
    /// Further arguments of the operator.
    pub args: Vec<String>,
}

/// Running operator.
pub struct Operator {
    daemon: Daemon,
    address: SocketAddr,
    metrics: SocketAddr,
    admin: SocketAddr,
    webhook: SocketAddr,
    log: PathBuf,
    number: u32,
}

/// Returns the pod name of the operator with this number.
fn pod_name(number: u32) -> String {
    format!("operator-{number}")
}

/// Builds the operator and the kubectl plugin in the same profile as this program, which is xtask-operator, and returns the operator's path. Both are
/// placed beside this program. Cargo's progress goes to standard error.
///
/// # Errors
/// Fails when cargo cannot build the programs.
pub fn build() -> Result<PathBuf> {
    // With the caller in the same command, dependencies keep the features of its build, and none is built twice.
    let packages = ["build", "--locked", "-p", "controller", "-p", "xtask-operator"];
    let mut cargo = devenv::cargo();
    cargo.args(packages).args(["--bin", "windows-node-pools", "--bin", "kubectl-windows_node_pools"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let status = cargo.status().context("cannot start cargo")?;
    anyhow::ensure!(status.success(), "cargo cannot build the operator: {status}");
    Ok(std::env::current_exe()?.with_file_name("windows-node-pools"))
}

impl Operator {
    /// Starts the operator with the rights of its service account.
    ///
    /// # Errors
    /// Fails when it cannot be started.
    pub fn start(control_plane: &ControlPlane, options: &OperatorOptions) -> Result<Self> {
        Self::start_with(control_plane, options, control_plane.kubeconfig_as(OPERATOR, &OPERATOR_GROUPS)?)
    }

    /// Starts the operator in another namespace, with the rights of its service account there.
    ///
    /// # Errors
    /// Fails when it cannot be started.
    pub fn start_in(control_plane: &ControlPlane, options: &OperatorOptions, namespace: &str) -> Result<Self> {
        let user = format!("system:serviceaccount:{namespace}:windows-node-pools");
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")];
        let mut options = options.clone();
        options.args.extend(["--namespace".into(), namespace.into()]);
        Self::start_with(control_plane, &options, control_plane.kubeconfig_as(&user, &groups)?)
    }

    fn start_with(control_plane: &ControlPlane, options: &OperatorOptions, kubeconfig: PathBuf) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (address, admin, webhook) = (free_address()?, free_address()?, free_address()?);
        let log = control_plane.dir().join(format!("operator-{number}.log"));
        let is_set = |name: &str| options.args.iter().any(|arg| arg == name);
        let metrics = if is_set("--metrics-tls") { free_address()? } else { address };
        // A short Lease shortens the wait of tests. On a busy machine, the operator may lose its Lease: long tests set a longer duration.
        let patient = is_set("--lease-duration");
        let mut command = Command::new(&options.program);
        command
            .arg("run")
            .args(["--log-format", "text"])
            // Tests serve the artifacts of Flux at this address.
            .args(["--artifact-host", "127.0.0.1"])
            .args(["--listen", &address.to_string(), "--admin-listen", &admin.to_string()])
            .args(["--metrics-listen", &metrics.to_string()])
            .args(if metrics == address { &["--metrics-tls", "false"][..] } else { &[] })
            .args(["--webhook-listen", &webhook.to_string()])
            .arg("--payload")
            .arg(&options.payload)
            .arg("--wicd")
            .arg(&options.wicd)
            .arg("--cache")
            .arg(control_plane.dir().join("cache"))
            .args(&options.args)
            .args(if patient { &[][..] } else { &["--lease-duration", "10s"] })
            .env("KUBECONFIG", kubeconfig)
            .env("POD_NAME", pod_name(number))
            .env_remove("HTTP_PROXY")
            .env_remove("HTTPS_PROXY")
            .env_remove("NO_PROXY");
        let daemon = Daemon::start("the operator", log.clone(), &command)?;
        Ok(Self { daemon, address, metrics, admin, webhook, log, number })
    }

    /// Reports whether a Lease with this holder belongs to this process.
    pub fn is_holder(&self, identity: &str) -> bool {
        identity.strip_prefix(&pod_name(self.number)).is_some_and(|rest| rest.starts_with('_'))
    }

    /// Returns the process id of the operator.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Returns the log of the operator so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns the address of the probes and, unless the options have `--metrics-tls`, of `/metrics` without TLS.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of `/metrics`.
    pub fn metrics_address(&self) -> SocketAddr {
        self.metrics
    }

    /// Returns the address that receives webhooks for pushes, while there is a token.
    pub fn webhook_address(&self) -> SocketAddr {
        self.webhook
    }

    /// Returns the address at which the log level is changed: `PUT /log-level`.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Returns the path of the operator's log.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Fails if the operator has ended by itself.
    ///
    /// # Errors
    /// Fails with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        self.daemon.check()
    }

    /// Sends the operator a signal, such as `TERM` or `STOP`.
    ///
    /// # Errors
    /// Fails when there is no such signal or process.
    pub fn signal(&self, name: &str) -> Result<()> {
        let status = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status()?;
        anyhow::ensure!(status.success(), "kill -s {name} failed");
        Ok(())
    }

    /// Returns the exit status of the operator, if it has ended.
    ///
    /// # Errors
    /// Fails when the status cannot be determined.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.daemon.ended()
    }

    /// Kills the operator, as a crash does, unless it has ended.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Returns the response at a path of the operator's HTTP server.
    ///
    /// # Errors
    /// Fails when it does not answer.
    pub async fn get(&self, path: &str) -> Result<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
        http::exchange(self.address, &request).await
    }

    /// Returns the sum of a metric over all its labels, or 0 if the operator does not serve the metric without TLS.
    ///
    /// # Errors
    /// Fails when the operator does not answer.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        Ok(http::metric(&self.get("/metrics").await?, name).unwrap_or_default())
    }

    /// Waits until the operator is the leader.
    ///
    /// # Errors
    /// Fails after three minutes: an operator that was killed may hold its Lease for a minute.
    pub async fn leads(&self) -> Result<()> {
        let limit = std::time::Duration::from_mins(3);
        within(limit, "the operator is the leader", || async {
            self.metric("windows_node_pool_leader").await.is_ok_and(|n| n > 0.0)
        })
        .await
        .with_context(|| self.log())
    }
}
