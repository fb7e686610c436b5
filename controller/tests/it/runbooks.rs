//! Commands of the page about alerts, on a pool with one node: kubectl and the API server accept their kinds, names and options.

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::sim::{HostOptions, SimOptions};

use crate::{
    another_operator::legacy_leads_in,
    cluster::NAMESPACE,
    fleet::{World, spec},
    guide::Guide,
};

const POOL: &str = "factory";
const HOST: &str = "win-1";
/// Namespace of WMCO's Pod.
const ELSEWHERE: &str = "of-wmco";
/// Name of WMCO's Pod.
const WMCO: &str = "wmco-1";

const PAGE: &str = "../reference/alerts.md";

/// Sections with a block of commands for this test.
const SECTIONS: &[&str] = &[
    "# Alerts",
    "## WindowsNodePoolCertificateExpiring",
    "## WindowsNodePoolDegraded",
    "## WindowsNodePoolDrainBlocked",
    "## WindowsNodePoolHostKeyChanged",
    "## WindowsNodePoolNodesUnavailable",
    "## WindowsNodePoolOperationSlow",
    "## WindowsNodePoolRemovalHeld",
    "## WindowsNodePoolSourceStale",
    "## WindowsNodePoolStalled",
    "## WindowsNodePoolsDown",
    "## WindowsNodePoolsErrors",
    "## WindowsNodePoolsNoLeader",
    "## WindowsNodePoolsOtherOperator",
    "## WindowsNodePoolsPoliciesMissing",
];

/// Replaces the placeholders of a command with the names of this test. Removes the pipe, because `grep` fails if it finds nothing.
fn command(line: &str) -> String {
    let command = line.split(" | ").next().unwrap_or_default();
    [("NAMESPACE", NAMESPACE), ("POOL", POOL), ("HOST", HOST), ("NODE", HOST)]
        .iter()
        .fold(command.to_owned(), |command, (word, name)| command.replace(word, name))
}

/// Creates objects that some commands show: the operator's Deployment, and those of a leading WMCO.
async fn install(world: &World) -> Result<()> {
    let labels = json!({"app.kubernetes.io/name": "windows-node-pools"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "operator", "image": "example.com/operator"}]}});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "windows-node-pools", "namespace": NAMESPACE, "labels": labels},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    });
    world.control_plane.apply_yaml(&deployment.to_string()).await?;
    // WMCO need not be in the namespace of this operator.
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}});
    world.control_plane.apply_yaml(&namespace.to_string()).await?;
    legacy_leads_in(&world.control_plane, ELSEWHERE, WMCO).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_accepts_each_command_of_the_runbooks() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let host = world.sim.host(HostOptions::named(HOST)).await?;
    world.join(POOL, &spec(&[host])).await?;
    install(&world).await?;
    let mut faults = Vec::new();
    let page = Guide::open(&world.control_plane, PAGE, "runbooks")?;
    for section in SECTIONS {
        for line in page.block(section, "sh")?.lines() {
            let output = page.output(&world, &command(line)).await?;
            if !output.status.success() {
                faults.push(format!("{section}: {line}: {}", String::from_utf8_lossy(&output.stderr)));
            }
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    for line in page.block("## WindowsNodePoolsOtherOperator", "sh")?.lines() {
        let output = page.output(&world, line).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(text.contains(ELSEWHERE) && text.contains(WMCO), "{line}: {text}");
    }
    Ok(())
}
