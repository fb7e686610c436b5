//! Examples of workloads, applied to the API server, and their RuntimeClasses, which assign pods to the nodes of this operator.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use api::names::{default_taint, key};
use k8s_openapi::api::{
    autoscaling::v2::HorizontalPodAutoscaler,
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use wnp_core::operation::windows_versions::VERSIONS;

use crate::{
    cluster::{eventually, shared},
    transcripts::root,
};

fn folder() -> PathBuf {
    root().join("examples/workloads")
}

/// Returns the objects of an example.
fn objects(name: &str) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(folder().join(name))?;
    serde_yaml::Deserializer::from_str(&text).map(|one| Ok(serde::Deserialize::deserialize(one)?)).collect()
}

/// Returns a Pod with the spec of a Pod or of an object's pod template, or `None` for other objects.
fn pod_of(object: &Value) -> Option<Value> {
    let template = if object["kind"] == "Pod" { object } else { &object["spec"]["template"] };
    template["spec"]["containers"].is_array().then(|| {
        let name = object["metadata"]["name"].clone();
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]})
    })
}

/// Applies an object, and returns it. Fails if the API server warns.
async fn apply(text: &str, dry_run: &str) -> Result<Value> {
    let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
    std::fs::write(file.path(), text)?;
    let path = file.path().to_str().context("path is not UTF-8")?;
    let args = ["apply", "--server-side", "--force-conflicts", dry_run, "--validate=strict", "-o", "json", "-f", path];
    let output = shared().await?.kubectl(&args).await?;
    let warnings = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && !warnings.contains("Warning"), "{text}\n{warnings}");
    Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
}

#[tokio::test]
async fn the_api_server_accepts_the_examples_of_pools() -> Result<()> {
    for name in ["config-map", "machine-set", "cluster-api", "two-windows-versions"] {
        let text = std::fs::read_to_string(root().join(format!("examples/pools/{name}.yaml")))?;
        apply(&text, "--dry-run=server").await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_examples_schedule_pods_to_windows_nodes() -> Result<()> {
    let classes = objects("runtime-classes.yaml")?;
    let builds: Vec<String> = VERSIONS.iter().map(|version| format!("10.0.{}", version.build)).collect();
    let build = "node.kubernetes.io/windows-build";
    let listed: Vec<&Value> = classes.iter().map(|class| &class["scheduling"]["nodeSelector"][build]).collect();
    ensure!(json!(listed) == json!(builds), "{listed:?}");
    let runtime = std::fs::read_to_string(root().join("tools/xtask/payload/static/containerd_conf.toml"))?;
    for class in &classes {
        let line = format!("default_runtime_name = '{}'", class["handler"].as_str().context("no handler")?);
        ensure!(runtime.contains(&line), "containerd has no {line}");
        apply(&serde_yaml::to_string(class)?, "--dry-run=none").await?;
    }

    let taint = default_taint();
    let mut pods = 0;
    for file in std::fs::read_dir(folder())? {
        let name = file?.file_name().into_string().map_err(|name| anyhow::anyhow!("{name:?}"))?;
        apply(&std::fs::read_to_string(folder().join(&name))?, "--dry-run=server").await?;
        for mut pod in objects(&name)?.iter().filter_map(pod_of) {
            let class = pod["spec"]["runtimeClassName"].as_str().context("no RuntimeClass")?.to_owned();
            let at = classes.iter().position(|c| c["metadata"]["name"] == *class).context("no such class")?;
            let domain = &pod["spec"]["nodeSelector"][key::DOMAIN];
            ensure!(domain.is_string() == (name == "gmsa.yaml"), "{name} selects nodes of {domain}");
            let image = pod["spec"]["containers"][0]["image"].as_str().context("no image")?;
            ensure!(image.ends_with(VERSIONS[at].image), "{name}: {image} on {class}");
            // The ServiceAccount of the example does not exist in this cluster.
            if let Some(spec) = pod["spec"].as_object_mut() {
                spec.remove("serviceAccountName");
            }
            let pod = apply(&serde_json::to_string(&pod)?, "--dry-run=server").await?;
            ensure!(pod["spec"]["nodeSelector"][build] == builds[at], "{name}: {}", pod["spec"]["nodeSelector"]);
            let tolerations = pod["spec"]["tolerations"].as_array().context("no tolerations")?;
            let is_of_taint = |one: &Value| {
                one["key"] == taint.key && one["value"] == json!(taint.value) && one["effect"] == json!(taint.effect)
            };
            ensure!(tolerations.iter().any(is_of_taint), "{name}: {tolerations:?}");
            pods += 1;
        }
    }
    ensure!(pods == 4, "{pods} pods");
    controllers_process_the_examples().await?;
    the_claim_of_a_share_is_bound().await
}

/// Applies the examples of Deployments, and waits until the controllers have created the pods, the PodDisruptionBudget counts them, and the
/// autoscaler can read the scale.
async fn controllers_process_the_examples() -> Result<()> {
    let client = shared().await?.client().await?;
    let examples = ["web.yaml", "gmsa.yaml", "autoscaler.yaml"];
    for name in examples {
        for object in objects(name)? {
            apply(&serde_json::to_string(&object)?, "--dry-run=none").await?;
        }
    }
    let pods = Api::<Pod>::default_namespaced(client.clone());
    let created = async |app: &str| {
        let pods = pods.list(&ListParams::default().labels(&format!("app={app}"))).await.map(|pods| pods.items);
        let has_node_selector = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_selector.is_some());
        pods.map_or(0, |pods| pods.iter().filter(|pod| has_node_selector(pod)).count())
    };
    let budgets = Api::<PodDisruptionBudget>::default_namespaced(client.clone());
    let scalers = Api::<HorizontalPodAutoscaler>::default_namespaced(client);
    eventually(|| async {
        let guarded = budgets.get("web").await.ok().and_then(|budget| budget.status?.expected_pods);
        let conditions = scalers.get("web").await.ok().and_then(|scaler| scaler.status?.conditions);
        let is_read = conditions.into_iter().flatten().any(|c| c.type_ == "AbleToScale" && c.status == "True");
        (created("web").await, created("web-frontend").await, guarded, is_read) == (2, 1, Some(2), true)
    })
    .await?;
    for name in examples {
        let path = folder().join(name);
        let path = path.to_str().context("path is not UTF-8")?;
        let output = shared().await?.kubectl(&["delete", "--wait=false", "-f", path]).await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Applies the volume and the claim of the example, and waits until the claim is bound.
async fn the_claim_of_a_share_is_bound() -> Result<()> {
    let client = shared().await?.client().await?;
    let (volumes, claims) =
        (Api::<PersistentVolume>::all(client.clone()), Api::<PersistentVolumeClaim>::default_namespaced(client));
    for object in objects("storage.yaml")?.iter().filter(|object| object["kind"] != "Pod") {
        apply(&serde_json::to_string(object)?, "--dry-run=none").await?;
    }
    eventually(|| async {
        let phase = claims.get("recipes").await.ok().and_then(|claim| claim.status?.phase);
        phase.as_deref() == Some("Bound")
    })
    .await?;
    claims.delete("recipes", &DeleteParams::default()).await?;
    volumes.delete("recipes", &DeleteParams::default()).await?;
    Ok(())
}
