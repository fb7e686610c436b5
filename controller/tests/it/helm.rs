//! Helm chart, installed on a real API server in a namespace other than the default one.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use api::{Reason, WindowsNodePool};
use controller::cluster::wicd_rbac::BINDING;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Namespace, Pod},
        rbac::v1::ClusterRoleBinding,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testbed::{
    ControlPlane, ControlPlaneOptions, Operator, OperatorOptions, binaries,
    deployment::{eventually, within},
    payload,
};

use crate::{
    another_operator,
    cluster::kubectl,
    fleet::{LIMIT, entries, has},
    transcripts::copied,
};

const NAMESPACE: &str = "windows";
const RELEASE: &str = "a-release";

/// Runs Helm; returns its standard error if it fails.
async fn helm(control_plane: &ControlPlane, args: &[&str]) -> Result<Result<(), String>> {
    let kubeconfig = control_plane.kubeconfig();
    let mut args: Vec<String> = args.iter().map(ToString::to_string).collect();
    args.extend(["--namespace".into(), NAMESPACE.into()]);
    // Blocks for long if Helm has to be built first.
    let output = tokio::task::spawn_blocking(move || {
        let mut helm = Command::new(binaries::helm()?);
        Ok::<_, anyhow::Error>(helm.args(args).env("KUBECONFIG", kubeconfig).output()?)
    });
    let output = output.await??;
    Ok(if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) })
}

async fn release(control_plane: &ControlPlane, command: &str, values: &[&str]) -> Result<Result<(), String>> {
    let chart = chart();
    let chart = chart.to_str().context("path is not UTF-8")?;
    let always = [
        "platform=kubernetes",
        "operator.apiServer=https://api.example.com:6443",
        // Optional objects are enabled, so that the API server checks them.
        "networkPolicy.enabled=true",
        "viewRoles.enabled=true",
        "azure.enabled=true",
    ];
    let mut args: Vec<&str> = command.split(' ').chain([RELEASE, chart]).collect();
    args.extend(always.iter().chain(values).flat_map(|value| ["--set", value]));
    if command == "install" {
        args.push("--create-namespace");
    }
    helm(control_plane, &args).await
}

/// Returns the value of `LOG_LEVEL` in the Deployment.
async fn log_level(client: &Client) -> Result<Option<String>> {
    let deployment = Api::<Deployment>::namespaced(client.clone(), NAMESPACE).get("windows-node-pools").await?;
    let pod = deployment.spec.template.spec.context("no Pod spec")?;
    let mut variables = pod.containers.into_iter().flat_map(|container| container.env.unwrap_or_default());
    Ok(variables.find(|variable| variable.name == "LOG_LEVEL").and_then(|variable| variable.value))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_in_another_namespace_works_is_upgraded_and_leaves_pools_behind() -> Result<()> {
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    let client = control_plane.client().await?;
    let refused = release(&control_plane, "install", &["operator.logLevle=debug"]).await?.unwrap_err();
    ensure!(refused.contains("'logLevle'"), "{refused}");
    let ours = concat!("Client Version: ", env!("CARGO_PKG_VERSION"), "\n");
    ensure!(versions(&control_plane)? == (false, ours.to_owned()), "{:?}", versions(&control_plane)?);
    release(&control_plane, "install", &[]).await?.map_err(anyhow::Error::msg)?;
    let both = format!("{ours}Operator Version: {}\n", env!("CARGO_PKG_VERSION"));
    ensure!(versions(&control_plane)? == (true, both), "{:?}", versions(&control_plane)?);
    ensure!(log_level(&client).await?.is_none());

    operates(&control_plane, &client).await?;

    test(&control_plane, &client).await?;

    rolls_out(&control_plane, &client).await?;

    goes_back(&control_plane, &client).await?;

    helm(&control_plane, &["uninstall", RELEASE]).await?.map_err(anyhow::Error::msg)?;
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    eventually("the Deployment is gone", || async {
        matches!(deployments.get_opt("windows-node-pools").await, Ok(None))
    })
    .await?;
    for crd in api::crds() {
        let name = crd.metadata.name.context("a CRD has no name")?;
        let there = Api::<CustomResourceDefinition>::all(client.clone()).get(&name).await?;
        ensure!(there.metadata.deletion_timestamp.is_none(), "{name} is being deleted");
    }
    let pool = Api::<WindowsNodePool>::all(client).get("kept").await?;
    ensure!(pool.metadata.deletion_timestamp.is_none(), "the pool is being deleted");
    Ok(())
}

/// Returns success and output of the command `version`.
fn versions(control_plane: &ControlPlane) -> Result<(bool, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .arg("version")
        .env("KUBECONFIG", control_plane.kubeconfig_as("a-person", &["system:masters"])?)
        .output()?;
    Ok((output.status.success(), String::from_utf8(output.stdout)?))
}

/// Runs `helm test`, which creates a pod and waits for its success. There is no kubelet: this function reports the success.
async fn test(control_plane: &ControlPlane, client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let ends = async {
        within(LIMIT, "the pod is there", || async {
            matches!(pods.get_opt("windows-node-pools-test").await, Ok(Some(_)))
        })
        .await?;
        let pod = pods.get("windows-node-pools-test").await?.spec.context("no Pod spec")?;
        ensure!(pod.containers[0].args == Some(vec!["check".into()]), "{:?}", pod.containers[0].args);
        let succeeded = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
        pods.patch_status("windows-node-pools-test", &PatchParams::default(), &succeeded).await?;
        Ok(())
    };
    let (tested, ended) = tokio::join!(helm(control_plane, &["test", RELEASE]), ends);
    ended?;
    tested?.map_err(anyhow::Error::msg)
}

/// Returns to the chart of an earlier release, whose CRDs lack a field. Without an update of the CRDs, the stored value stays.
async fn goes_back(control_plane: &ControlPlane, client: &Client) -> Result<()> {
    let pools: Api<WindowsNodePool> = Api::all(client.clone());
    let newer = Patch::Merge(json!({"spec": {"provisioning": {"prePullImages": ["registry.example.com/base:1"]}}}));
    pools.patch("kept", &PatchParams::default(), &newer).await?;
    let folder = tempfile::tempdir()?;
    let before = copied("deploy/chart/windows-node-pools", folder.path())?;
    let file = before.join("files/crds/windowsnodepools.json");
    let crd = std::fs::read_to_string(&file)?;
    ensure!(crd.contains("\"prePullImages\":"), "the chart has no such field");
    std::fs::write(&file, crd.replace("\"prePullImages\":", "\"gone\":"))?;
    let before = before.to_str().context("path is not UTF-8")?;
    let back = ["upgrade", RELEASE, before, "--reset-then-reuse-values", "--set", "crds.enabled=false"];
    helm(control_plane, &back).await?.map_err(anyhow::Error::msg)?;
    let stored = pools
        .patch("kept", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}})))
        .await?;
    ensure!(
        stored.spec.provisioning.is_some_and(|provisioning| provisioning.pre_pull_images.is_some()),
        "a field of the newer release is lost"
    );
    release(control_plane, "upgrade", &["crds.enabled=true"]).await?.map_err(anyhow::Error::msg)
}

/// Checks that Helm installs the operator although a user has applied the CRDs with kubectl.
#[tokio::test(flavor = "multi_thread")]
async fn helm_takes_over_crds_that_kubectl_has_applied() -> Result<()> {
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    let client = control_plane.client().await?;
    let crds = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crds");
    let crds = ["apply", "--server-side", "-k", crds.to_str().context("path is not UTF-8")?];
    kubectl(&control_plane, &crds).await?;

    let chart = chart();
    let chart = chart.to_str().context("path is not UTF-8")?;
    let for_openshift = helm(&control_plane, &["install", RELEASE, chart, "--create-namespace"]).await?.unwrap_err();
    ensure!(for_openshift.contains("set platform=kubernetes and operator.apiServer"), "{for_openshift}");

    let refused = release(&control_plane, "install --take-ownership --create-namespace", &[]).await?.unwrap_err();
    ensure!(refused.contains("conflict"), "{refused}");
    helm(&control_plane, &["uninstall", RELEASE]).await?.map_err(anyhow::Error::msg)?;
    let both = "install --take-ownership --force-conflicts --create-namespace";
    release(&control_plane, both, &[]).await?.map_err(anyhow::Error::msg)?;
    crds_stay(&control_plane, &client).await
}

/// Checks that the chart drops the CRDs only after a release with `crds.keep=true`: Helm would delete them otherwise.
async fn crds_stay(control_plane: &ControlPlane, client: &Client) -> Result<()> {
    let there = async || -> Result<bool> {
        let crds = Api::<CustomResourceDefinition>::all(client.clone());
        let found = crds.get("windowsnodepools.windowsmachineconfig.openshift.io").await?;
        Ok(found.metadata.deletion_timestamp.is_none())
    };
    release(control_plane, "upgrade", &["crds.keep=false"]).await?.map_err(anyhow::Error::msg)?;
    for values in [["crds.enabled=false", "crds.keep=false"], ["crds.enabled=false", "crds.keep=true"]] {
        let refused = release(control_plane, "upgrade", &values).await?.unwrap_err();
        ensure!(refused.contains("upgrade with crds.keep=true and crds.enabled=true first"), "{values:?}: {refused}");
    }
    release(control_plane, "upgrade", &["crds.keep=true"]).await?.map_err(anyhow::Error::msg)?;
    release(control_plane, "upgrade", &["crds.enabled=false"]).await?.map_err(anyhow::Error::msg)?;
    ensure!(there().await?, "the CRDs are gone");
    Ok(())
}

fn chart() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart/windows-node-pools")
}

/// Checks that a rollout ends when the process is ready, for Helm and for kubectl, and not before.
async fn rolls_out(control_plane: &ControlPlane, client: &Client) -> Result<()> {
    let files = tempfile::tempdir()?;
    let mut options = options(files.path())?;
    // The operator runs as in a pod without `--api-server`, where the address of the API server is in the Service network, which hosts cannot
    // reach. A process with such a fault is not ready, unless it is alone for two Lease durations: then it leads.
    options.args = ["--service-cidr", "127.0.0.0/8", "--lease-duration", "60s"].map(Into::into).to_vec();
    let mut lost = Operator::start_in(control_plane, &options, NAMESPACE)?;
    let says = async |operator: &Operator, parts: [&str; 2]| {
        operator.get("/readyz").await.is_ok_and(|text| parts.iter().all(|part| text.contains(part)))
    };
    within(LIMIT, "the operator says what is missing", || says(&lost, ["503", "--api-server"]))
        .await
        .with_context(|| lost.log())?;
    let status = ["rollout", "status", "deployment/windows-node-pools", "-n", NAMESPACE];
    let waits = async || control_plane.kubectl(&[&status[..], &["--timeout=3s"]].concat()).await;
    let waited = while_probed(client, &lost, waits()).await??;
    ensure!(!waited.status.success(), "{}", String::from_utf8_lossy(&waited.stdout));
    lost.kill();

    options.args.clear();
    let mut operator = Operator::start_in(control_plane, &options, NAMESPACE)?;
    let upgrade = async {
        let values = ["operator.logLevel=debug"];
        release(control_plane, "upgrade --wait --timeout 5m", &values).await?.map_err(anyhow::Error::msg)?;
        ensure!(log_level(client).await?.as_deref() == Some("debug"));
        kubectl(control_plane, &[&status[..], &["--timeout=5m"]].concat()).await.map(drop)
    };
    while_probed(client, &operator, upgrade).await??;
    operator.kill();
    Ok(())
}

/// Runs `work`, and meanwhile stands in for a kubelet's probes: the operator's Pods are Ready while its process reports that it is ready.
async fn while_probed<T>(client: &Client, operator: &Operator, work: impl Future<Output = T>) -> Result<T> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let its_own = ListParams::default().labels("app.kubernetes.io/name=windows-node-pools");
    let probe = async {
        let mut period = tokio::time::interval(Duration::from_millis(500));
        loop {
            period.tick().await;
            let ready = operator.get("/readyz").await.is_ok_and(|text| text.contains("200 OK"));
            let condition = json!({"type": "Ready", "status": if ready { "True" } else { "False" }});
            let status = Patch::Merge(json!({"status": {"phase": "Running", "conditions": [condition]}}));
            for pod in pods.list(&its_own).await? {
                // The Pod may be gone by now.
                let _ = pods.patch_status(&pod.name_any(), &PatchParams::default(), &status).await;
            }
        }
    };
    tokio::select! {
        done = work => Ok(done),
        ended = probe => ended,
    }
}

/// Runs `check` with a kubeconfig, and returns the reasons of its failures.
fn check_fails(kubeconfig: &Path, options: &OperatorOptions, args: &[&str]) -> Result<Vec<String>> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"));
    command.args(["check", "--output", "json"]).args(args);
    command.arg("--payload").arg(&options.payload).arg("--wicd").arg(&options.wicd);
    command.env("KUBECONFIG", kubeconfig);
    let output = command.env_remove("HTTPS_PROXY").env_remove("HTTP_PROXY").output()?;
    let rows: Vec<serde_json::Value> =
        serde_json::from_slice(&output.stdout).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let failed = rows.iter().filter(|row| row["result"] == "failed");
    Ok(failed.map(|row| row["reason"].as_str().unwrap_or_default().to_owned()).collect())
}

/// Returns options for the operator, with a payload in `files`.
fn options(files: &Path) -> Result<OperatorOptions> {
    let options = OperatorOptions {
        program: PathBuf::from(env!("CARGO_BIN_EXE_windows-node-pools")),
        payload: files.join("payload"),
        wicd: files.join("wicd.exe"),
        args: Vec::new(),
    };
    payload::write(&options.payload, &entries(b"kubelet"), payload::LEVEL_FAST)?;
    std::fs::write(&options.wicd, b"wicd, for hosts that only compare its hash")?;
    Ok(options)
}

/// Runs the operator with the rights of its service account: it leads, finds its policies in force, writes a pool's status and binds the
/// rights of hosts.
async fn operates(control_plane: &ControlPlane, client: &Client) -> Result<()> {
    let files = tempfile::tempdir()?;
    let options = options(files.path())?;
    let mut operator = Operator::start_in(control_plane, &options, NAMESPACE)?;
    operator.leads().await?;
    let pools: Api<WindowsNodePool> = Api::all(client.clone());
    let pool: WindowsNodePool = serde_json::from_value(json!({
        "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsNodePool",
        "metadata": {"name": "kept"}, "spec": {"inventory": {"hosts": []}},
    }))?;
    pools.create(&PostParams::default(), &pool).await?;
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    within(LIMIT, "the rights of hosts are bound", || async { matches!(bindings.get_opt(BINDING).await, Ok(Some(_))) })
        .await
        .with_context(|| operator.log())?;
    within(LIMIT, "the policies of this namespace are in force", || async {
        let Ok(pool) = pools.get_status("kept").await else { return false };
        let conditions = pool.status.map(|status| status.conditions).unwrap_or_default();
        has(&conditions, api::conditions::kind::POLICIES_IN_FORCE, "True", "AsExpected")
    })
    .await
    .with_context(|| operator.log())?;
    // `helm test` runs this command. The installation lacks nothing but the SSH key.
    let user = format!("system:serviceaccount:{NAMESPACE}:windows-node-pools");
    let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{NAMESPACE}")];
    let as_operator = control_plane.kubeconfig_as(&user, &groups)?;
    let failed = check_fails(&as_operator, &options, &["--namespace", NAMESPACE])?;
    ensure!(failed == [Reason::CredentialsUnavailable], "{failed:?}");
    // A user need not name the namespace.
    let failed = check_fails(&control_plane.kubeconfig(), &options, &[])?;
    ensure!(failed == [Reason::CredentialsUnavailable], "{failed:?}");
    // WMCO is installed into its own namespace, which did not exist.
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": api::names::DEFAULT_NAMESPACE}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
    // WMCO works on OpenShift alone, which has this API group.
    let kind = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterversions.config.openshift.io"},
        "spec": {
            "group": "config.openshift.io", "scope": "Cluster",
            "names": {"kind": "ClusterVersion", "plural": "clusterversions"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    control_plane.apply_yaml(&kind.to_string()).await?;
    another_operator::start_wmco(control_plane, "wmco-1").await?;
    within(LIMIT, "the operator waits for WMCO", || async {
        let Ok(pool) = pools.get_status("kept").await else { return false };
        let conditions = pool.status.map(|status| status.conditions).unwrap_or_default();
        has(&conditions, api::conditions::kind::READY, "False", "AnotherOperator")
    })
    .await
    .with_context(|| operator.log())?;
    let failed = check_fails(&as_operator, &options, &["--namespace", NAMESPACE])?;
    ensure!(failed.iter().any(|reason| reason == "AnotherOperator"), "{failed:?}");
    operator.kill();
    Ok(())
}
