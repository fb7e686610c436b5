//! The control plane with this operator's kinds, rights and admission policies in force.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use api::{WindowsInstance, WindowsNodePool};
use k8s_openapi::{
    api::rbac::v1::ClusterRole, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
    runtime::{conditions, wait::await_condition},
};
use testbed::ControlPlane;
use tokio::sync::OnceCell;

pub const NAMESPACE: &str = api::names::DEFAULT_NAMESPACE;
pub const OPERATOR: &str = "system:serviceaccount:openshift-windows-machine-config-operator:windows-node-pools";

/// The shared control plane, with `deploy/base` applied and working.
pub async fn shared() -> Result<&'static ControlPlane> {
    static READY: OnceCell<()> = OnceCell::const_new();
    let control_plane = ControlPlane::shared().await?;
    READY.get_or_try_init(|| deploy(control_plane)).await?;
    Ok(control_plane)
}

async fn deploy(control_plane: &ControlPlane) -> Result<()> {
    let client = control_plane.client().await?;
    for crd in api::crds() {
        control_plane.apply_yaml(&serde_yaml::to_string(&crd)?).await?;
        let name = crd.metadata.name.context("a CRD has a name")?;
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        await_condition(crds, &name, conditions::is_crd_established()).await?;
    }
    // Established is said a little before the kinds are served.
    let (pools, instances) = (Api::<WindowsNodePool>::all(client.clone()), Api::<WindowsInstance>::all(client));
    let all = ListParams::default();
    eventually(|| async { pools.list(&all).await.is_ok() && instances.list(&all).await.is_ok() }).await?;
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base");
    let base = base.to_str().context("path is not UTF-8")?;
    let output = control_plane.kubectl(&["apply", "--server-side", "-k", base]).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    policies_in_force(control_plane).await
}

/// The API server takes policies up in one go, some time after they were written: when one that is easy to probe refuses, the others do.
async fn policies_in_force(control_plane: &ControlPlane) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(operator(control_plane).await?);
    let probe: ClusterRole = serde_json::from_value(serde_json::json!({"metadata": {"name": "probe"}, "rules": []}))?;
    let dry_run = PostParams { dry_run: true, ..Default::default() };
    eventually(|| async {
        match roles.create(&dry_run, &probe).await {
            Err(kube::Error::Api(status)) => status.message.contains("windows-node-pools-operator-rbac"),
            _ => false,
        }
    })
    .await
}

/// Asks again and again until the answer is yes.
pub async fn eventually<F: Future<Output = bool>>(ask: impl Fn() -> F) -> Result<()> {
    let asking = async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), asking).await.context("still not so after a minute")
}

pub async fn operator(control_plane: &ControlPlane) -> Result<Client> {
    let groups = ["system:serviceaccounts", "system:serviceaccounts:openshift-windows-machine-config-operator"];
    control_plane.client_as(OPERATOR, &groups).await
}

pub async fn wicd(control_plane: &ControlPlane, node: &str) -> Result<Client> {
    control_plane.client_as(&format!("system:wicd-node:{node}"), &["system:wicd-nodes"]).await
}

pub async fn kubelet(control_plane: &ControlPlane, node: &str) -> Result<Client> {
    control_plane.client_as(&format!("system:node:{node}"), &["system:nodes"]).await
}
