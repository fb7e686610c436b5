//! The shared control plane, with this operator's kinds, rights and admission policies in force.

use anyhow::{Result, ensure};
use kube::Client;
use testbed::{ControlPlane, deployment};
use tokio::sync::OnceCell;

pub(crate) use testbed::deployment::{NAMESPACE, OPERATOR};

/// Returns the shared control plane, with `deploy/base` applied and in force.
pub(crate) async fn shared() -> Result<&'static ControlPlane> {
    static READY: OnceCell<()> = OnceCell::const_new();
    let control_plane = ControlPlane::shared().await?;
    READY.get_or_try_init(|| deployment::install(control_plane)).await?;
    Ok(control_plane)
}

/// Waits until `ask` returns true. Fails after [`deployment::LIMIT`].
pub(crate) async fn eventually<F: Future<Output = bool>>(ask: impl Fn() -> F) -> Result<()> {
    deployment::eventually("what the test waits for", ask).await
}

/// Runs kubectl as an administrator, and returns its output. If kubectl fails, the error contains its standard error.
pub(crate) async fn kubectl(control_plane: &ControlPlane, args: &[&str]) -> Result<String> {
    let output = control_plane.kubectl(args).await?;
    ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

pub(crate) async fn operator(control_plane: &ControlPlane) -> Result<Client> {
    deployment::operator_client(control_plane).await
}

pub(crate) async fn wicd(control_plane: &ControlPlane, node: &str) -> Result<Client> {
    control_plane.client_as(&format!("system:wicd-node:{node}"), &["system:wicd-nodes"]).await
}

pub(crate) async fn kubelet(control_plane: &ControlPlane, node: &str) -> Result<Client> {
    control_plane.client_as(&format!("system:node:{node}"), &["system:nodes"]).await
}
