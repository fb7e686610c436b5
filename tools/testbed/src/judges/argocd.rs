//! Argo CD: repository server, application controller and API server, with Argo CD's default settings and this project's health checks and actions.

use std::{fs, net::SocketAddr, os::unix::fs::symlink, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Module, answers};
use crate::{
    ControlPlane, binaries::find, children::Daemon, control_plane::succeeded, deployment, http, ports::free_address,
    run_dir::RunDir,
};

/// Namespace of Argo CD.
pub const NAMESPACE: &str = "argocd";
/// Debian package with the program of Redis. (`redis-server` adds a service that starts at once.)
pub const REDIS_PACKAGE: &str = "redis-tools";

const MODULE: Module = Module("argocd");
const SOURCE: &str = "github.com/argoproj/argo-cd/v3";

/// All parts of Argo CD. They end on drop.
pub struct ArgoCd {
    _parts: [Daemon; 4],
    server: SocketAddr,
    dir: RunDir,
}

/// Returns the path of Redis, or of its check program, which is the same program under another name.
pub fn redis() -> Option<PathBuf> {
    find("redis-server").or_else(|| find("redis-check-rdb"))
}

impl ArgoCd {
    /// Installs the kinds and default settings of Argo CD, adds this project's settings as in the guide, and starts Argo CD. Argo CD trusts
    /// `authority` (PEM) for repositories on `localhost`.
    ///
    /// # Errors
    /// Fails when a program is missing, cannot be built or does not start.
    pub async fn start(control_plane: &ControlPlane, authority: &str) -> Result<Self> {
        install(control_plane).await?;
        let dir = RunDir::new("argocd")?;
        for folder in FOLDERS.map(|(_, folder)| folder).iter().chain(&["assets", "bin"]) {
            fs::create_dir_all(dir.join(folder))?;
        }
        fs::write(dir.join("tls/localhost"), authority)?;
        // The program is Redis only under this name.
        symlink(redis().with_context(|| format!("install {REDIS_PACKAGE}"))?, dir.join("bin/redis-server"))?;
        let kustomize = "sigs.k8s.io/kustomize/kustomize/v5";
        symlink(Module("kustomize").program("kustomize", kustomize, &[], "a minute")?, dir.join("bin/kustomize"))?;

        let port = |address: SocketAddr| address.port().to_string();
        let (redis, repositories, server, assets) =
            (free_address()?, free_address()?, free_address()?, dir.join("assets"));
        let (metrics, more_metrics) = (free_address()?, free_address()?);
        let part = |name: &str, args: &[&str]| part(control_plane, &dir, name, redis, args);
        let mut command = Command::new(dir.join("bin/redis-server"));
        command.args(["--bind", "127.0.0.1", "--port", &port(redis), "--save", "", "--appendonly", "no"]);
        let cache = Daemon::start("redis-server", dir.join("redis-server.log"), &command)?;
        let loopback = ["--address", "127.0.0.1", "--metrics-address", "127.0.0.1"];
        let args = ["--port", &port(repositories), "--metrics-port", &port(metrics)];
        let reader = part("argocd-repo-server", &[&loopback[..], &args].concat())?;
        answers(&reader, metrics, "/healthz").await?;
        let source = ["--namespace", NAMESPACE, "--repo-server", &repositories.to_string()];
        let args = ["--port", &port(server), "--metrics-port", &port(free_address()?)];
        let open =
            ["--insecure", "--disable-auth", "--enable-gzip=false", "--staticassets", &assets.display().to_string()];
        let pages = part("argocd-server", &[&loopback[..], &source, &args, &open].concat())?;
        // The API server creates what the controller needs: settings and the default project.
        answers(&pages, server, "/healthz").await?;
        // The address of the controller cannot be set.
        let args = ["--metrics-port", &port(more_metrics)];
        let controller = part("argocd-application-controller", &[&source[..], &args].concat())?;
        answers(&controller, more_metrics, "/healthz").await?;
        Ok(Self { _parts: [controller, pages, reader, cache], server, dir })
    }

    /// Begins a sync of an application, as a user does from its page.
    ///
    /// # Errors
    /// Fails when Argo CD refuses it.
    pub async fn sync(&self, application: &str) -> Result<()> {
        let body = json!({"name": application, "appNamespace": NAMESPACE});
        self.ask("POST", &format!("/api/v1/applications/{application}/sync"), &body.to_string()).await.map(drop)
    }

    /// Starts an action on a cluster-scoped object of an application, as a user does from its page.
    ///
    /// # Errors
    /// Fails when Argo CD refuses it.
    pub async fn act(&self, application: &str, kind: &str, name: &str, action: &str) -> Result<()> {
        let path = format!("/api/v1/applications/{application}/resource/actions/v2");
        let body = json!({
            "name": application, "appNamespace": NAMESPACE, "resourceName": name, "version": "v1alpha1",
            "group": api::names::GROUP, "kind": kind, "action": action,
        });
        self.ask("POST", &path, &body.to_string()).await.map(drop)
    }

    /// Returns the names of the actions that a user may start now on a cluster-scoped object of an application.
    ///
    /// # Errors
    /// Fails when Argo CD does not list the actions.
    pub async fn actions(&self, application: &str, kind: &str, name: &str) -> Result<Vec<String>> {
        let group = api::names::GROUP;
        let path = format!(
            "/api/v1/applications/{application}/resource/actions?resourceName={name}&version=v1alpha1&group={group}&kind={kind}"
        );
        let said = self.ask("GET", &path, "").await?;
        let all = said["actions"].as_array().into_iter().flatten().filter(|action| action["disabled"] != true);
        Ok(all.filter_map(|action| action["name"].as_str().map(str::to_owned)).collect())
    }

    /// Returns the health of a cluster-scoped object of an application, with its reason.
    ///
    /// # Errors
    /// Fails when Argo CD does not know the object.
    pub async fn health(&self, application: &str, kind: &str, name: &str) -> Result<(String, String)> {
        let tree = self.ask("GET", &format!("/api/v1/applications/{application}/resource-tree"), "").await?;
        let mut nodes = tree["nodes"].as_array().into_iter().flatten();
        let node = nodes.find(|node| node["kind"] == kind && node["name"] == name).context("it is not in the tree")?;
        let text = |field: &str| node["health"][field].as_str().unwrap_or_default().to_owned();
        Ok((text("status"), text("message")))
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> Result<Value> {
        let (status, answer) = http::request(self.server, method, path, body).await?;
        ensure!(status == 200, "{method} {path}: {status} {answer}");
        serde_json::from_str(&answer).with_context(|| answer.clone())
    }

    /// Returns the log of a part so far, such as `argocd-application-controller`.
    pub fn log(&self, part: &str) -> String {
        fs::read_to_string(self.dir.join(&format!("{part}.log"))).unwrap_or_default()
    }
}

/// Environment variables of Argo CD, and the folders that replace those of its container.
const FOLDERS: [(&str, &str); 4] = [
    ("ARGOCD_TLS_DATA_PATH", "tls"),
    ("ARGOCD_SSH_DATA_PATH", "ssh"),
    ("ARGOCD_GNUPGHOME", "gpg"),
    ("ARGOCD_PLUGINSOCKFILEPATH", "plugins"),
];

fn part(control_plane: &ControlPlane, dir: &RunDir, name: &str, redis: SocketAddr, args: &[&str]) -> Result<Daemon> {
    let mut command = Command::new(MODULE.program("argocd", &format!("{SOURCE}/cmd"), &[], "about 6 minutes")?);
    command
        .args(["--redis", &redis.to_string()])
        .args(args)
        .env("ARGOCD_BINARY_NAME", name)
        .env("ARGOCD_FAKE_IN_CLUSTER", "true")
        .env("ARGOCD_GPG_ENABLED", "false")
        .env("KUBECONFIG", control_plane.kubeconfig())
        // The name ends with the number of the replica.
        .env("HOSTNAME", format!("{name}-0"))
        .env("HOME", dir.path())
        .env("TMPDIR", dir.path())
        .env("PATH", format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").unwrap_or_default()));
    for (variable, folder) in FOLDERS {
        command.env(variable, dir.join(folder));
    }
    Daemon::start(name, dir.join(&format!("{name}.log")), &command)
}

/// Installs Argo CD's kinds, its default settings, and this project's health checks and actions.
async fn install(control_plane: &ControlPlane) -> Result<()> {
    deployment::create_namespace(control_plane, NAMESPACE).await?;
    MODULE.install_crds(control_plane, SOURCE, "manifests/crds").await?;
    let settings = MODULE.source(SOURCE)?.join("manifests/base/config");
    let settings = settings.to_str().context("path is not UTF-8")?;
    // A user installs Argo CD with the same command.
    succeeded(control_plane.kubectl(&["apply", "-n", NAMESPACE, "-k", settings]).await?)?;
    let ours = devenv::workspace_root().join("deploy/argocd/argocd-cm-patch.yaml");
    let ours = ours.to_str().context("path is not UTF-8")?;
    let patch = ["patch", "configmap", "argocd-cm", "-n", NAMESPACE, "--type", "merge", "--patch-file", ours];
    succeeded(control_plane.kubectl(&patch).await?)
}
