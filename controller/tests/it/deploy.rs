//! Manifests in `deploy/`, as a user would apply them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::ControlPlane;

use crate::{
    cluster::{kubectl, shared},
    transcripts::root,
};

/// Returns the output of `kubectl kustomize` for a folder in `deploy/`.
fn rendered(folder: &str) -> Result<Vec<Value>> {
    let mut kubectl = Command::new(testbed::binaries::control_plane()?.kubectl);
    let output = kubectl.arg("kustomize").arg(root().join("deploy").join(folder)).output()?;
    ensure!(output.status.success(), "{folder}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split("\n---\n").map(serde_yaml::from_str).collect::<Result<_, _>>()?)
}

fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

#[tokio::test]
async fn the_api_server_accepts_each_overlay_and_component() -> Result<()> {
    overlays_are_accepted(shared().await?, "the newest").await
}

/// Checks that an API server accepts each overlay and each component of `deploy/`, except `payload-volume` before Kubernetes 1.35.
pub(crate) async fn overlays_are_accepted(control_plane: &ControlPlane, version: &str) -> Result<()> {
    // The overlay for OpenShift and the component for monitoring have objects of the Prometheus operator's kinds.
    testbed::deployment::install_monitoring(control_plane).await?;
    let target = root().join("target");
    fs::create_dir_all(&target)?;
    let overlays = tempfile::tempdir_in(target)?;
    let mut folders = Vec::new();
    for kustomization in kustomizations(&root().join("deploy"))? {
        folders.push(kustomization.to_str().context("path is not UTF-8")?.to_owned());
    }
    for component in kustomizations(&root().join("deploy/components"))? {
        let name = component.file_name().context("a component has no name")?.to_str().context("name is not UTF-8")?;
        // Kubernetes before 1.35 mounts no images: the guide names `payload-init` for such a cluster.
        if name == "payload-volume" && ["v1.33.", "v1.34."].iter().any(|older| version.starts_with(older)) {
            continue;
        }
        let overlay = overlays.path().join(name);
        fs::create_dir(&overlay)?;
        let text =
            format!("resources: [../../../deploy/kubernetes]\ncomponents: [../../../deploy/components/{name}]\n");
        fs::write(overlay.join("kustomization.yaml"), text)?;
        folders.push(overlay.to_str().context("path is not UTF-8")?.to_owned());
    }
    ensure!(folders.len() > 10, "only {folders:?} were found");
    for folder in folders {
        is_accepted(control_plane, &folder).await.with_context(|| format!("{version}: {folder}"))?;
    }
    Ok(())
}

/// Returns the folders directly in `folder` that have a `kustomization.yaml`.
fn kustomizations(folder: &Path) -> Result<Vec<PathBuf>> {
    let folders = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(folders.into_iter().filter(|folder| folder.join("kustomization.yaml").exists()).collect())
}

async fn is_accepted(control_plane: &ControlPlane, folder: &str) -> Result<()> {
    let objects = rendered(folder)?;
    for namespace in objects.iter().filter_map(|object| object["metadata"]["namespace"].as_str()) {
        let made = control_plane.kubectl(&["create", "namespace", namespace]).await?;
        let error = String::from_utf8_lossy(&made.stderr);
        ensure!(made.status.success() || error.contains("AlreadyExists"), "{error}");
    }
    let text = objects.iter().map(serde_yaml::to_string).collect::<Result<Vec<_>, _>>()?.join("---\n");
    let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
    fs::write(file.path(), text)?;
    let path = file.path().to_str().context("path is not UTF-8")?;
    let args = ["apply", "--server-side", "--dry-run=server", "--force-conflicts", "--validate=strict", "-f", path];
    let output = control_plane.kubectl(&args).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    // A warning names what the restricted Pod Security Standard would refuse.
    ensure!(!said.contains("Warning"), "{said}");
    Ok(())
}

/// Checks that the overlay keeps labels of another field manager: the namespace may be WMCO's, with labels that WMCO's pod needs.
#[tokio::test]
async fn the_overlay_of_openshift_keeps_the_namespace_labels_of_wmco() -> Result<()> {
    let control_plane = shared().await?;
    let apply = async |manager: &str, namespace: &Value| {
        let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
        fs::write(file.path(), serde_yaml::to_string(namespace)?)?;
        let path = file.path().to_str().context("path is not UTF-8")?;
        let manager = format!("--field-manager={manager}");
        kubectl(control_plane, &["apply", "--server-side", &manager, "-f", path]).await
    };
    let name = "namespace-of-the-legacy-operator";
    let labels = serde_json::json!({
        "openshift.io/cluster-monitoring": "true",
        "pod-security.kubernetes.io/enforce": "privileged",
        "security.openshift.io/scc.podSecurityLabelSync": "false",
    });
    let theirs =
        serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    apply("olm", &theirs).await?;
    let mut ours = find(&rendered("openshift")?, "Namespace").clone();
    ours["metadata"]["name"] = name.into();
    apply("a-person", &ours).await?;
    let now: Value = serde_json::from_str(&kubectl(control_plane, &["get", "namespace", name, "-o", "json"]).await?)?;
    for (key, value) in labels.as_object().context("no labels")? {
        ensure!(&now["metadata"]["labels"][key] == value, "{key}: {}", now["metadata"]["labels"]);
    }
    Ok(())
}

#[test]
fn the_operators_container_has_the_arguments_and_ports_of_its_program() -> Result<()> {
    for folder in ["base", "kubernetes", "openshift"] {
        let objects = rendered(folder)?;
        let container = &find(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        let mut command_line = vec!["windows-node-pools".to_owned()];
        command_line
            .extend(container["args"].as_array().context("no args")?.iter().filter_map(Value::as_str).map(Into::into));
        let cli = <controller::args::Operator as clap::Parser>::try_parse_from(&command_line)?;
        let controller::args::OperatorCommand::Run(run) = cli.command else { panic!("{folder}: {command_line:?}") };
        for (at, address) in [run.listen, run.metrics_listen, run.webhook_listen].iter().enumerate() {
            assert_eq!(container["ports"][at]["containerPort"], address.port(), "{folder}");
        }
        assert!(run.metrics_tls, "{folder}");
        let mounts = container["volumeMounts"].as_array().context("no volumeMounts")?;
        assert!(
            mounts.iter().any(|mount| mount["mountPath"] == run.metrics_tls_directory.to_str().unwrap()),
            "{folder}"
        );
        for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
            assert_eq!(container[probe]["httpGet"]["path"], path, "{folder}");
            assert_eq!(container[probe]["httpGet"]["port"], "probes", "{folder}");
        }
        // The image has the tag of this release: a moving tag could change hosts at any restart.
        let release = format!("windows-node-pools:{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(container["image"], release, "{folder}");
        // The Service of the exporter on hosts has no selector.
        let is_of_operator = |o: &&Value| o["kind"] == "Service" && o["metadata"]["name"] != "windows-exporter";
        let service = objects.iter().find(is_of_operator).context("no Service")?;
        let labels = &find(&objects, "Deployment")["spec"]["template"]["metadata"]["labels"];
        assert_eq!(&service["spec"]["selector"], labels, "{folder}");
    }
    Ok(())
}

/// Checks that sync waves apply the CRDs before the operator, as in the guide.
#[test]
fn argo_cd_applies_the_crds_first() -> Result<()> {
    let objects = rendered("../examples/gitops/operator")?;
    ensure!(objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition").count() == 2, "no CRDs");
    for object in objects {
        let annotations = &object["metadata"]["annotations"];
        let wave = if object["kind"] == "CustomResourceDefinition" { "-2" } else { "-1" };
        ensure!(annotations["argocd.argoproj.io/sync-wave"] == wave, "{object}");
    }
    Ok(())
}

/// Returns the objects of an example for GitOps.
fn example(name: &str) -> Result<Vec<Value>> {
    let text = fs::read_to_string(root().join("examples/gitops").join(name))?;
    let documents = serde_yaml::Deserializer::from_str(&text);
    documents.map(|document| Ok(serde::Deserialize::deserialize(document)?)).collect()
}

/// Checks that the chart renders with the values of the examples, and that its schema accepts them.
#[test]
fn the_chart_accepts_the_values_of_the_examples() -> Result<()> {
    let flux = example("flux-helm.yaml")?;
    let release = flux.iter().find(|object| object["kind"] == "HelmRelease").context("no release")?;
    let application = &example("argocd-helm.yaml")?[0];
    for (values, namespace) in [
        (&release["spec"]["values"], &release["spec"]["targetNamespace"]),
        (&application["spec"]["source"]["helm"]["valuesObject"], &application["spec"]["destination"]["namespace"]),
    ] {
        let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
        fs::write(file.path(), serde_json::to_string(values)?)?;
        let mut helm = Command::new(testbed::binaries::helm()?);
        helm.arg("template").arg(root().join("deploy/chart/windows-node-pools")).arg("--values").arg(file.path());
        let output = helm.args(["--namespace", namespace.as_str().context("no namespace")?]).output()?;
        ensure!(output.status.success(), "{values}: {}", String::from_utf8_lossy(&output.stderr));
        let image = format!("registry.example.com/you/windows-node-pools:{}", env!("CARGO_PKG_VERSION"));
        ensure!(String::from_utf8_lossy(&output.stdout).contains(&image), "the rendered chart lacks {image}");
    }
    Ok(())
}

/// Checks that the guide and the example for OLM have the same objects. Another test installs the guide's objects with OLM.
#[test]
fn the_example_for_olm_is_that_of_the_guide() -> Result<()> {
    let guide = fs::read_to_string(root().join("docs/guide/install.md"))?;
    let block = guide.split("```yaml\n").find(|block| block.contains("kind: CatalogSource")).context("no block")?;
    let block = block.split("```").next().unwrap_or_default();
    let objects: Vec<Value> = serde_yaml::Deserializer::from_str(block)
        .map(|document| Ok(serde::Deserialize::deserialize(document)?))
        .collect::<Result<_>>()?;
    ensure!(objects.len() == 3 && example("olm.yaml")? == objects, "{objects:?}");
    Ok(())
}

/// Checks that no example removes nodes without a user's confirmation.
#[test]
fn examples_for_gitops_prune_nothing() -> Result<()> {
    let application = &example("argocd.yaml")?[0];
    let set = &example("argocd-applicationset.yaml")?[0];
    let operator = &example("argocd-helm.yaml")?[0];
    for spec in [&application["spec"], &set["spec"]["template"]["spec"], &operator["spec"]] {
        ensure!(spec["syncPolicy"]["automated"]["prune"] == false, "{spec}");
    }
    ensure!(set["spec"]["syncPolicy"]["preserveResourcesOnDeletion"] == true, "{set}");
    let pool = &example("argocd-pool.yaml")?[0];
    let options = pool["metadata"]["annotations"]["argocd.argoproj.io/sync-options"].as_str().unwrap_or_default();
    ensure!(options.contains("Prune=confirm") && options.contains("Delete=confirm"), "{options}");
    let flux = example("flux.yaml")?;
    let pools = flux.iter().find(|object| object["metadata"]["name"] == "windows-node-pools").context("no pools")?;
    ensure!(pools["spec"]["prune"] == false && pools["spec"]["wait"] == true, "{pools}");
    ensure!(pools["spec"]["timeout"].is_string(), "{pools}");
    Ok(())
}
