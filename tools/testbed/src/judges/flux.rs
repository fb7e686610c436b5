//! Flux: source-controller and kustomize-controller, with the flags of Flux's installation.

use std::{net::SocketAddr, process::Command};

use anyhow::Result;

use super::{Module, answers};
use crate::{ControlPlane, children::Daemon, deployment, ports::free_address, run_dir::RunDir};

/// Namespace of Flux.
pub const NAMESPACE: &str = "flux-system";

/// Two controllers of Flux, which end on drop.
pub struct Flux {
    controllers: [Daemon; 2],
    /// Folder of the controllers, dropped after them.
    _dir: RunDir,
}

impl Flux {
    /// Installs the kinds and starts the controllers with the rights of an administrator, as Flux has them by default.
    ///
    /// # Errors
    /// Fails when a program cannot be built or does not start.
    pub async fn start(control_plane: &ControlPlane) -> Result<Self> {
        deployment::create_namespace(control_plane, NAMESPACE).await?;
        let dir = RunDir::new("flux")?;
        let storage = free_address()?.to_string();
        let data = dir.join("data").display().to_string();
        std::fs::create_dir_all(&data)?;
        let sources = ["--storage-addr", &storage, "--storage-adv-addr", &storage, "--storage-path", &data];
        let controllers = [
            controller(control_plane, &dir, "source-controller", &sources).await?,
            controller(control_plane, &dir, "kustomize-controller", &[]).await?,
        ];
        Ok(Self { controllers, _dir: dir })
    }

    /// Returns the last lines of the controllers' logs.
    pub fn last_lines(&self) -> String {
        self.controllers.iter().map(Daemon::last_lines).collect::<Vec<_>>().join("\n")
    }
}

async fn controller(control_plane: &ControlPlane, dir: &RunDir, name: &'static str, more: &[&str]) -> Result<Daemon> {
    let module = Module(name);
    let package = format!("github.com/fluxcd/{name}");
    module.install_crds(control_plane, &package, "config/crd/bases").await?;
    let [health, metrics]: [SocketAddr; 2] = [free_address()?, free_address()?];
    let mut command = Command::new(module.program(name, &package, &[], "about 3 minutes")?);
    command
        .args(["--health-addr", &health.to_string(), "--metrics-addr", &metrics.to_string()])
        .args(more)
        .env("KUBECONFIG", control_plane.kubeconfig())
        .env("RUNTIME_NAMESPACE", NAMESPACE)
        // These folders replace those of Flux's containers.
        .env("HOME", dir.path())
        .env("TMPDIR", dir.path())
        .env("TUF_ROOT", dir.join("sigstore"));
    let daemon = Daemon::start(name, dir.join(&format!("{name}.log")), &command)?;
    answers(&daemon, health, "/readyz").await?;
    Ok(daemon)
}
