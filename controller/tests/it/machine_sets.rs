//! Examples of MachineSets, and output of the command `machineset`, applied to an API server with the kinds of the Machine API.

use anyhow::{Context as _, Result, ensure};
use api::names::key;
use serde_json::{Value, json};
use testbed::{
    ControlPlane, ControlPlaneOptions,
    deployment::{self, MachineApi},
};

use crate::transcripts::root;

/// Applies an object in a dry run with strict validation, and returns the API server's answer.
async fn apply(control_plane: &ControlPlane, object: &str) -> Result<std::result::Result<Value, String>> {
    let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
    std::fs::write(file.path(), object)?;
    let path = file.path().to_str().context("path is not UTF-8")?;
    let args = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-o", "json", "-f", path];
    let output = control_plane.kubectl(&args).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(if output.status.success() && !said.contains("Warning") {
        Ok(serde_json::from_slice(&output.stdout)?)
    } else {
        Err(said)
    })
}

/// Stores a MachineSet as one of Linux workers, and returns the MachineSet that the command `machineset` derives from it.
async fn from_worker(control_plane: &ControlPlane, windows: &Value) -> Result<String> {
    let mut worker = windows.clone();
    worker["metadata"]["name"] = json!("ocp-7x2kq-worker-a");
    let labels = worker.pointer_mut("/spec/template/metadata/labels").and_then(Value::as_object_mut);
    labels.context("no labels")?.remove(key::MACHINE_OS);
    let file = tempfile::NamedTempFile::with_suffix(".json")?;
    std::fs::write(file.path(), worker.to_string())?;
    let path = file.path().to_str().context("path is not UTF-8")?;
    let replaced = control_plane.kubectl(&["replace", "--force", "-f", path]).await?;
    ensure!(replaced.status.success(), "{}", String::from_utf8_lossy(&replaced.stderr));
    let made = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .args(["machineset", "win", "--image", "an-image"])
        .env("KUBECONFIG", control_plane.kubeconfig_as("a-user", &["system:masters"])?)
        .output()
        .await?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(String::from_utf8(made.stdout)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_example_for_machines_is_accepted_by_the_api_server() -> Result<()> {
    // The test has a control plane of its own, because the kinds of the Machine API change what operators of other tests do.
    let control_plane = &ControlPlane::start(ControlPlaneOptions::default()).await?;
    deployment::install(control_plane).await?;
    deployment::install_machines(control_plane, MachineApi::OpenShift).await?;
    let mut first = None;
    for file in std::fs::read_dir(root().join("examples/machines"))? {
        let path = file?.path();
        let text = std::fs::read_to_string(&path)?;
        if !text.contains("providerSpec") {
            // The file defines an autoscaler or a MachineHealthCheck.
            control_plane.apply_yaml(&text).await?;
            continue;
        }
        let taken = apply(control_plane, &text).await?.map_err(|said| anyhow::anyhow!("{}: {said}", path.display()))?;
        let given: Value = serde_yaml::from_str(&text)?;
        ensure!(taken["spec"] == given["spec"], "{}: the API server changed it: {}", path.display(), taken["spec"]);
        let made = from_worker(control_plane, &given).await?;
        apply(control_plane, &made).await?.map_err(|said| anyhow::anyhow!("{}: {said}\n{made}", path.display()))?;
        first.get_or_insert(given);
    }
    // A misplaced field is refused.
    let mut wrong = first.context("there is no example")?;
    wrong["spec"]["template"]["spec"]["taint"] = json!([]);
    let said = apply(control_plane, &wrong.to_string()).await?.err().context("a misplaced field is accepted")?;
    ensure!(said.contains("taint"), "{said}");
    Ok(())
}
