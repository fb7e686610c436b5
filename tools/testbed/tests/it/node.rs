//! Test of the whole test bed: a kubelet that runs as a Windows service on a Wine host makes the host a node.

use std::{fs, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, runtime::wait::await_condition};
use serde_json::json;
use testbed::{
    ControlPlane, ControlPlaneOptions,
    binaries::{Platform, host_kubelet},
    wine::{HostNetwork, WineHost, WineOptions, available},
};

fn is_ready(node: Option<&Node>) -> bool {
    let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"))
}

async fn cmd(host: &WineHost, line: &str) -> Result<()> {
    let output = host.cmd(line).await?;
    ensure!(output.status.success(), "{line}: {output:?}\n{}", fs::read_to_string(host.log())?);
    Ok(())
}

#[tokio::test]
async fn a_wine_host_becomes_a_ready_windows_node() -> Result<()> {
    if let Err(reason) = available() {
        return testbed::skip(&reason);
    }
    let options = ControlPlaneOptions { network: Some(Arc::new(HostNetwork::create()?)), ..Default::default() };
    let control_plane = ControlPlane::start(options).await?;
    let host = WineHost::start(&control_plane, WineOptions::new("node-a")).await?;

    let k = host.drive_c().join("k");
    fs::create_dir(&k)?;
    fs::copy(host_kubelet(Platform::Windows)?, k.join("kubelet.exe"))?;
    fs::copy(control_plane.kubeconfig_as("system:node:node-a", &["system:nodes"])?, k.join("kubeconfig"))?;
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": host.address(),
        "healthzPort": 0,
        "podLogsDir": r"C:\k\logs",
        "volumePluginDir": r"C:\k\plugins",
        "containerRuntimeEndpoint": "npipe:////./pipe/containerd",
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
    });
    fs::write(k.join("config.json"), config.to_string())?;
    let line = format!(
        r"C:\k\kubelet.exe --windows-service --config=C:\k\config.json --kubeconfig=C:\k\kubeconfig --cert-dir=C:\k\pki --root-dir=C:\k\root --node-ip={}",
        host.address()
    );
    cmd(&host, &format!("sc create kubelet start= auto binPath= \"{line}\"")).await?;
    cmd(&host, "sc start kubelet").await?;

    let nodes: Api<Node> = Api::all(control_plane.client().await?);
    let ready = await_condition(nodes.clone(), "node-a", is_ready);
    let node = tokio::time::timeout(testbed::deployment::LIMIT, ready)
        .await
        .with_context(|| format!("node is not ready:\n{}", fs::read_to_string(host.log()).unwrap_or_default()))??;
    let node = node.context("node is gone")?;
    let info = node.status.and_then(|status| status.node_info).context("the Node has no node info")?;
    assert_eq!(info.operating_system, "windows");
    Ok(())
}
