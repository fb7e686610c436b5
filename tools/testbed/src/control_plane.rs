//! Real control plane: etcd, kube-apiserver and kube-controller-manager.
//!
//! The controller manager provides real garbage collection, namespaces, taint eviction, certificate signing and
//! PodDisruptionBudget status. A start takes about 5 s; memory is 450 MB.

mod authorities;
mod records;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use devenv::AUDIT_DIR;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::{sync::OnceCell, task::spawn_blocking};

use self::authorities::Authorities;
pub use self::authorities::CaRotation;
pub(crate) use self::records::Records;
use crate::{
    apply,
    binaries::{self, ControlPlaneBinaries},
    children::Daemon,
    host_network::HostNetwork,
    http,
    lock::lock,
    pki::Identity,
    ports::{free_address, free_address_on},
    run_dir::RunDir,
};

/// User of the operator's service account, whose requests are audited.
pub const OPERATOR: &str = "system:serviceaccount:openshift-windows-machine-config-operator:windows-node-pools";
/// Time limit for the start of a control plane, on a busy machine.
const START: Duration = Duration::from_mins(3);
/// Maximum number of restarts of kube-controller-manager while a control plane starts.
const RESTARTS: u32 = 20;

/// Options of a control plane.
#[derive(Clone, Debug, Default)]
pub struct ControlPlaneOptions {
    /// Version of the programs, one of [`binaries::KUBERNETES`]. Defaults to the newest.
    pub kubernetes: Option<&'static str>,
    /// Network through which hosts reach the control plane. Defaults to loopback.
    pub network: Option<Arc<HostNetwork>>,
    /// True if an audit log is written of the operator's requests and of approvals of certificate requests, even without [`AUDIT_DIR`].
    pub audit: bool,
    /// Additional flags for kube-controller-manager.
    pub controller_manager_flags: Vec<String>,
}

/// Running control plane, ended on drop. Where possible, tests of one binary share [`ControlPlane::shared`], with objects whose names are their own.
#[derive(Debug)]
pub struct ControlPlane {
    // Fields are declared in the order in which they have to end.
    controller_manager: Mutex<Option<Daemon>>,
    apiserver: Mutex<Option<Daemon>>,
    etcd: Mutex<Option<Daemon>>,
    authorities: Authorities,
    binaries: ControlPlaneBinaries,
    options: ControlPlaneOptions,
    address: SocketAddr,
    etcd_address: SocketAddr,
    etcd_peer_address: SocketAddr,
    kubeconfig: PathBuf,
    kubeconfigs: AtomicU32,
    /// True if a program was stopped, or has other certificates than at its start.
    is_changed: AtomicBool,
    dir: RunDir,
}

impl ControlPlane {
    /// Starts a control plane and waits until `/readyz` reports ok and the `default` service account exists. Builds missing
    /// programs first.
    ///
    /// # Errors
    /// Fails when a program cannot be built or started, etcd or the API server ends, the controller manager ends too often, or the control plane is
    /// not ready within 3 minutes.
    pub async fn start(options: ControlPlaneOptions) -> Result<Self> {
        let control_plane = spawn_blocking(move || Self::spawn(options)).await??;
        control_plane.wait_until_ready().await?;
        Ok(control_plane)
    }

    /// Returns the control plane that all tests of this process share. It ends with the process.
    ///
    /// # Errors
    /// Fails when [`ControlPlane::start`] fails. The next call tries again.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::start(ControlPlaneOptions::default())).await
    }

    fn spawn(options: ControlPlaneOptions) -> Result<Self> {
        let binaries = binaries::control_plane_of(options.kubernetes.unwrap_or(binaries::KUBERNETES_VERSION))?;
        let dir = RunDir::new("control-plane")?;
        let ip = options.network.as_ref().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |network| network.gateway().into());
        let authorities = Authorities::new()?;
        authorities.write(dir.path(), ip)?;

        let (etcd_address, etcd_peer_address) = (free_address()?, free_address()?);
        let address = free_address_on(ip)?;
        let kubeconfig = dir.path().join("admin.kubeconfig");
        let control_plane = Self {
            controller_manager: Mutex::new(None),
            apiserver: Mutex::new(None),
            etcd: Mutex::new(None),
            authorities,
            binaries,
            options,
            address,
            etcd_address,
            etcd_peer_address,
            kubeconfig: kubeconfig.clone(),
            kubeconfigs: AtomicU32::new(0),
            is_changed: AtomicBool::new(false),
            dir,
        };
        let roots = control_plane.authorities.all_roots();
        control_plane.write_kubeconfig(&kubeconfig, "testbed-admin", &["system:masters"], &roots)?;
        control_plane.start_programs()?;
        Ok(control_plane)
    }

    fn start_programs(&self) -> Result<()> {
        *lock(&self.etcd) = Some(self.start_etcd()?);
        *lock(&self.apiserver) = Some(self.start_apiserver()?);
        *lock(&self.controller_manager) = Some(self.start_controller_manager()?);
        Ok(())
    }

    /// Returns the URL of the API server, `https://address:port`.
    pub fn server(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Returns the address and port of the API server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the certificate, in PEM, of the authority that signs the certificates of clients and nodes and, until a rotation, of the API server.
    pub fn ca_pem(&self) -> String {
        self.authorities.first.identity().certificate
    }

    /// Returns the network of the hosts, if the control plane was started with one.
    pub fn network(&self) -> Option<&Arc<HostNetwork>> {
        self.options.network.as_ref()
    }

    /// Returns the folder with keys, data and logs (`etcd.log`, `kube-apiserver.log`, `kube-controller-manager.log`).
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns an administrator's client for the current runtime, without retries.
    ///
    /// # Errors
    /// Fails when the kubeconfig cannot be read, or no client can be made from it.
    pub async fn client(&self) -> Result<Client> {
        client(&self.kubeconfig, false).await
    }

    /// Returns an administrator's client that retries requests which the API server cannot answer yet, for example after its start.
    ///
    /// # Errors
    /// Fails when the kubeconfig cannot be read, or no client can be made from it.
    pub async fn retrying_client(&self) -> Result<Client> {
        client(&self.kubeconfig, true).await
    }

    /// Returns an administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// Returns a kubeconfig for `user` in `groups` (at most two), with a client certificate of its own.
    ///
    /// # Errors
    /// Fails when there are more than two groups, or the certificate or the file cannot be made.
    pub fn kubeconfig_as(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        let number = self.kubeconfigs.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.path().join(format!("user-{number}.kubeconfig"));
        // Like a pod, it trusts the authorities that the cluster publishes now.
        self.write_kubeconfig(&path, user, groups, &fs::read_to_string(self.dir.path().join("roots.crt"))?)?;
        Ok(path)
    }

    /// Returns a client for `user` in `groups` (at most two), for the current runtime.
    ///
    /// # Errors
    /// Fails when there are more than two groups, or the certificate, the kubeconfig or the client cannot be made.
    pub async fn client_as(&self, user: &str, groups: &[&str]) -> Result<Client> {
        client(&self.kubeconfig_as(user, groups)?, false).await
    }

    /// Returns a client certificate for `user` in `groups` (at most two).
    ///
    /// # Errors
    /// Fails when there are more than two groups, or the certificate cannot be made.
    pub fn client_certificate(&self, user: &str, groups: &[&str]) -> Result<Identity> {
        self.authorities.first.client(user, groups)
    }

    /// Returns the path of kubectl.
    pub fn kubectl_program(&self) -> &Path {
        &self.binaries.kubectl
    }

    /// Runs kubectl as the administrator. A failing kubectl is not an error: check the output's status.
    ///
    /// # Errors
    /// Fails when kubectl cannot be started, or its output cannot be read.
    pub async fn kubectl(&self, args: &[&str]) -> Result<Output> {
        let mut kubectl = tokio::process::Command::new(&self.binaries.kubectl);
        kubectl.args(args).env("KUBECONFIG", &self.kubeconfig).stdin(Stdio::null()).kill_on_drop(true);
        // Its discovery cache is in the home folder.
        kubectl.env("HOME", self.dir.path()).output().await.context("cannot start kubectl")
    }

    /// Applies manifests with server-side apply, and overrides other field managers, as kubectl does.
    ///
    /// # Errors
    /// Fails when a manifest is not an object, or the API server refuses one.
    pub async fn apply_yaml(&self, manifests: &str) -> Result<()> {
        apply::yaml(&self.client().await?, manifests).await
    }

    /// Applies a file as [`ControlPlane::apply_yaml`] does.
    ///
    /// # Errors
    /// Fails when the file cannot be read, a manifest is not an object, or the API server refuses one.
    pub async fn apply_file(&self, path: &Path) -> Result<()> {
        self.apply_yaml(&fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?).await
    }

    /// Returns the sum of a metric of etcd over all its labels.
    ///
    /// # Errors
    /// Fails when etcd does not answer, or has no such metric.
    pub async fn etcd_metric(&self, name: &str) -> Result<f64> {
        let (_, text) = http::request(self.etcd_address, "GET", "/metrics", "").await?;
        http::metric(&text, name).with_context(|| format!("etcd has no metric {name}"))
    }

    /// Reports whether no call has stopped a program or changed certificates since the start.
    pub(crate) fn is_as_started(&self) -> bool {
        !self.is_changed.load(Ordering::Relaxed)
    }

    /// Returns the ids of the running processes: etcd, API server and controller manager.
    pub fn processes(&self) -> Vec<u32> {
        [&self.etcd, &self.apiserver, &self.controller_manager]
            .iter()
            .filter_map(|d| Some(lock(d).as_ref()?.pid()))
            .collect()
    }

    /// Kills the API server: every connection breaks, and new ones are refused.
    pub fn stop_apiserver(&self) {
        self.is_changed.store(true, Ordering::Relaxed);
        *lock(&self.apiserver) = None;
    }

    /// Kills the API server if it runs, starts it on the same port and waits until it is ready.
    ///
    /// # Errors
    /// Fails when the API server cannot be started, etcd or the API server ends, or the control plane is not ready within 3 minutes.
    pub async fn restart_apiserver(&self) -> Result<()> {
        self.stop_apiserver();
        *lock(&self.apiserver) = Some(self.start_apiserver()?);
        self.wait_until_ready().await
    }

    /// Restarts all programs on the same data. The API server and the controller manager get another of the versions [`binaries::KUBERNETES`].
    ///
    /// # Errors
    /// Fails when a program cannot be built or started, or the control plane is not ready within 3 minutes. It may be down then.
    pub async fn upgrade(&mut self, kubernetes: &'static str) -> Result<()> {
        self.binaries = spawn_blocking(move || binaries::control_plane_of(kubernetes)).await??;
        self.while_down(|_| Ok(())).await
    }

    /// Copies etcd's data. The control plane is stopped meanwhile: every connection to it breaks.
    ///
    /// # Errors
    /// Fails when the data cannot be copied, or the control plane does not start again within 3 minutes. It may be down then.
    pub async fn back_up(&self) -> Result<TempDir> {
        let backup = tempfile::tempdir()?;
        self.while_down(|data| copy_dir(data, backup.path())).await?;
        Ok(backup)
    }

    /// Replaces etcd's data with a backup, without raising revisions, and starts the control plane again.
    ///
    /// # Errors
    /// Fails when the data cannot be replaced, or the control plane does not start again within 3 minutes. It may be down then.
    pub async fn restore(&self, backup: &TempDir) -> Result<()> {
        let replace = |data: &Path| {
            fs::remove_dir_all(data)?;
            copy_dir(backup.path(), data)
        };
        self.while_down(replace).await
    }

    async fn while_down(&self, change: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        self.is_changed.store(true, Ordering::Relaxed);
        for daemon in [&self.controller_manager, &self.apiserver, &self.etcd] {
            *lock(daemon) = None;
        }
        change(&self.dir.path().join("etcd"))?;
        self.start_programs()?;
        self.wait_until_ready().await
    }

    fn start_etcd(&self) -> Result<Daemon> {
        let url = format!("http://{}", self.etcd_address);
        let peer = format!("http://{}", self.etcd_peer_address);
        let mut command = Command::new(&self.binaries.etcd);
        command
            .arg(format!("--data-dir={}", self.dir.join("etcd").display()))
            .args([format!("--listen-client-urls={url}"), format!("--advertise-client-urls={url}")])
            .args([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")])
            .arg(format!("--initial-cluster=default={peer}"))
            .arg("--unsafe-no-fsync");
        self.start_component("etcd", &command)
    }

    fn start_apiserver(&self) -> Result<Daemon> {
        let pki = |name: &str| self.dir.path().join(name).display().to_string();
        let mut command = Command::new(&self.binaries.apiserver);
        command
            .arg(format!("--etcd-servers=http://{}", self.etcd_address))
            .arg(format!("--bind-address={}", self.address.ip()))
            .arg(format!("--advertise-address={}", self.address.ip()))
            .arg(format!("--secure-port={}", self.address.port()))
            .arg(format!("--tls-cert-file={}", pki("server.crt")))
            .arg(format!("--tls-private-key-file={}", pki("server.key")))
            .arg(format!("--client-ca-file={}", pki("clients.crt")))
            .arg(format!("--kubelet-certificate-authority={}", pki("ca.crt")))
            .arg(format!("--kubelet-client-certificate={}", pki("kubelet-client.crt")))
            .arg(format!("--kubelet-client-key={}", pki("kubelet-client.key")))
            .arg("--authorization-mode=Node,RBAC")
            .arg("--enable-admission-plugins=NodeRestriction")
            .arg("--enable-bootstrap-token-auth")
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(format!("--service-account-key-file={}", pki("token.pub")))
            .arg(format!("--service-account-signing-key-file={}", pki("token.key")))
            .arg("--service-cluster-ip-range=10.96.0.0/16")
            .arg("--allow-privileged=true")
            .arg("--kubelet-preferred-address-types=InternalIP")
            .arg("--endpoint-reconciler-type=none") // a loopback address is not a valid endpoint
            .arg("--profiling=false")
            .args(self.audit_flags()?);
        self.start_component("kube-apiserver", &command)
    }

    /// Returns the path of the audit log, if there is one. With [`AUDIT_DIR`], the log outlives the control plane.
    pub fn audit_log(&self) -> Option<PathBuf> {
        match std::env::var_os(AUDIT_DIR).map(PathBuf::from) {
            Some(dir) => Some(dir.join(format!("{}-{}.log", std::process::id(), self.address.port()))),
            None => self.options.audit.then(|| self.dir.path().join("audit.log")),
        }
    }

    /// Returns the flags for an audit log of metadata, without contents. Returns none without an audit log.
    fn audit_flags(&self) -> Result<Vec<String>> {
        let Some(log) = self.audit_log() else { return Ok(Vec::new()) };
        let policy = self.dir.path().join("audit-policy.yaml");
        let approvals = json!([{"group": "certificates.k8s.io", "resources": ["certificatesigningrequests/approval"]}]);
        let rules = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "Metadata", "users": [OPERATOR]},
                {"level": "Metadata", "resources": approvals},
                {"level": "None"},
            ],
        });
        fs::write(&policy, rules.to_string())?;
        Ok(vec![
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log.display()),
            "--audit-log-mode=blocking".to_owned(),
        ])
    }

    fn start_controller_manager(&self) -> Result<Daemon> {
        let pki = |name: &str| self.dir.path().join(name).display().to_string();
        let mut command = Command::new(&self.binaries.controller_manager);
        command
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .arg("--use-service-account-credentials")
            .arg(format!("--service-account-private-key-file={}", pki("token.key")))
            .arg(format!("--root-ca-file={}", pki("roots.crt")))
            .arg(format!("--cluster-signing-cert-file={}", pki("ca.crt")))
            .arg(format!("--cluster-signing-key-file={}", pki("ca.key")))
            .arg("--leader-elect=false")
            .arg("--secure-port=0")
            .arg("--profiling=false")
            .args(&self.options.controller_manager_flags);
        self.start_component("kube-controller-manager", &command)
    }

    fn start_component(&self, name: &str, command: &Command) -> Result<Daemon> {
        Daemon::start(name, self.dir.join(&format!("{name}.log")), command)
    }

    async fn wait_until_ready(&self) -> Result<()> {
        let client = self.client().await?;
        let deadline = Instant::now() + START;
        let mut restarts = 0;
        loop {
            let check = |daemon: &Mutex<Option<Daemon>>| {
                lock(daemon)
                    .as_mut()
                    .context("a program of the control plane was stopped before the control plane was ready")
                    .and_then(Daemon::check)
            };
            check(&self.etcd)?;
            check(&self.apiserver)?;
            // The controller manager exits if the API server takes more than 10 s to be healthy, as on a busy machine. A kubelet would restart it.
            match check(&self.controller_manager) {
                Ok(()) => {}
                Err(error) if restarts == RESTARTS => return Err(error),
                Err(_) => {
                    restarts += 1;
                    *lock(&self.controller_manager) = Some(self.start_controller_manager()?);
                }
            }
            match ready(&client).await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(error.context(format!("the control plane is not ready after {START:?}")));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn write_kubeconfig(&self, path: &Path, user: &str, groups: &[&str], roots: &str) -> Result<()> {
        use base64::{Engine as _, prelude::BASE64_STANDARD};
        let Identity { certificate, key } = self.authorities.first.client(user, groups)?;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": {
                "server": self.server(),
                "certificate-authority-data": BASE64_STANDARD.encode(roots),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate-data": BASE64_STANDARD.encode(certificate),
                "client-key-data": BASE64_STANDARD.encode(key),
            }}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
            "current-context": "testbed",
        });
        fs::write(path, serde_yaml::to_string(&kubeconfig)?).with_context(|| format!("cannot write {}", path.display()))
    }
}

async fn ready(client: &Client) -> Result<()> {
    let get = |path: &str| ::http::Request::get(path).body(Vec::new());
    client.request_text(get("/readyz")?).await?;
    // The controller manager creates this account: until then a pod is refused.
    client.request_text(get("/api/v1/namespaces/default/serviceaccounts/default")?).await?;
    Ok(())
}

/// Returns a client. Without retries, a blocked eviction is the 429 that a test wants to see.
async fn client(kubeconfig: &Path, retries: bool) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = retries;
    Ok(Client::try_from(config)?)
}

fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

pub(crate) fn succeeded(output: Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    bail!("kubectl: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())
}
