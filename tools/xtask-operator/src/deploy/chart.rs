//! Helm chart: its rendered objects, and its one generated part.

use std::{
    collections::BTreeMap,
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use api::names::DEFAULT_NAMESPACE;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use testbed::binaries;

use super::{VERSION, object::Object};

/// Name of the chart, of the Deployment, and of most objects of the operator's own.
pub(super) const NAME: &str = api::names::COMPONENT;
/// Folder of the chart, from the root of the repository.
pub(super) const FOLDER: &str = "deploy/chart/windows-node-pools";
/// Placeholder for the URL of the API server, which the chart requires. It is removed from the rendered objects.
const NO_API_SERVER: &str = "https://without.example.com";

/// Returns the values that the chart requires for a platform, with a placeholder for the API server.
pub(super) fn values(platform: &str) -> Value {
    match platform {
        "kubernetes" => json!({"platform": platform, "operator": {"apiServer": NO_API_SERVER}}),
        other => json!({"platform": other}),
    }
}

/// Renders the chart with values and further arguments, or fails with the message of Helm.
pub(super) fn helm(values: &Value, args: &[&str]) -> Result<String> {
    let mut helm = Command::new(binaries::helm()?);
    let version = binaries::KUBERNETES_VERSION;
    helm.args(["template", "a-release", "--namespace", DEFAULT_NAMESPACE, "--kube-version", version, "--values", "-"]);
    helm.arg(devenv::workspace_root().join(FOLDER))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = helm.spawn().context("cannot start helm")?;
    running.stdin.take().context("helm has no input")?.write_all(values.to_string().as_bytes())?;
    let output = running.wait_with_output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "helm template: {}: {}", output.status, error.trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the objects of the chart without the CRDs and the test, as managed by another tool than Helm.
pub(super) fn render(managed_by: &str, mut values: Value) -> Result<Vec<Object>> {
    values["crds"] = json!({"enabled": false});
    let indent = " ".repeat(12);
    let placeholder = format!("{indent}- name: WINDOWS_NODE_POOLS_API_SERVER\n{indent}  value: {NO_API_SERVER:?}\n");
    let rendered = helm(&values, &[])?.replace(&placeholder, "");
    let documents = rendered.split("---\n# Source: windows-node-pools/templates/").skip(1);
    let object = |document: &str| {
        let (file, text) = document.split_once('\n')?;
        (!file.starts_with("tests/")).then(|| Object::read(file, &kept_by(managed_by, text)))
    };
    documents.filter_map(object).collect()
}

/// Returns the object as managed by another tool, without the labels of a Helm release.
fn kept_by(managed_by: &str, text: &str) -> String {
    let is_of_helm = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("app.kubernetes.io/instance:") || line.starts_with("helm.sh/chart:")
    };
    let lines: Vec<&str> = text.lines().filter(|line| !is_of_helm(line)).collect();
    lines
        .join("\n")
        .replace("app.kubernetes.io/managed-by: \"Helm\"", &format!("app.kubernetes.io/managed-by: {managed_by}"))
}

/// Returns the CRDs of the chart, each on one line: Helm reads no file outside of a chart. Users read those in `crds/`.
pub(super) fn crds() -> Result<BTreeMap<String, String>> {
    let file = |crd: CustomResourceDefinition| {
        let mut value = serde_yaml::to_value(&crd)?;
        crate::yaml::tidy(&mut value);
        let path = format!("{FOLDER}/files/crds/{}.json", crd.spec.names.plural);
        Ok((path, serde_json::to_string(&value)? + "\n"))
    };
    api::crds().into_iter().map(file).collect()
}

/// Returns the image as values of the chart.
pub(super) fn image(image: &str) -> Value {
    match image.split_once('@') {
        Some((repository, digest)) => json!({"repository": repository, "digest": digest}),
        None => json!({"repository": image.trim_end_matches(&format!(":{VERSION}"))}),
    }
}
