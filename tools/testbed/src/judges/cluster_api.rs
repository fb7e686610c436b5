//! Cluster API's core controllers, for a cluster that is its own workload cluster. The infrastructure is a kind without a controller:
//! [`ClusterApi::provide`] simulates it.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Module, answers, serving_certificate};
use crate::{
    ControlPlane,
    children::Daemon,
    deployment::{self, MachineApi},
    pki::Authority,
    ports::free_address,
};

const MODULE: Module = Module("cluster-api");
const REQUIRED: &str = "sigs.k8s.io/cluster-api";
/// Version of Cluster API that runs.
pub const VERSION: &str = "1.13.6";

/// Name of the cluster.
pub const CLUSTER: &str = "judged";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// Running controllers.
pub struct ClusterApi {
    /// Process of the controllers, dropped before its files.
    _daemon: Daemon,
    _files: TempDir,
    client: Client,
}

impl ClusterApi {
    /// Installs the kinds of Cluster API and of an infrastructure, the namespace with the operator's rights, and a Cluster, and starts the
    /// controllers.
    ///
    /// # Errors
    /// Fails when they cannot be found or built or started, or the API server refuses something.
    pub async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let program = tokio::task::spawn_blocking(|| MODULE.program("cluster-api", REQUIRED, &[], "about 2 minutes"));
        let program = program.await??;
        let namespace = MachineApi::ClusterApi.namespace();
        deployment::create_namespace(control_plane, namespace).await?;
        deployment::apply(control_plane, "cluster-api").await?;
        MODULE.install_crds(control_plane, REQUIRED, "config/crd/bases").await?;
        let client = control_plane.client().await?;
        for kind in ["BareCluster", "BareMachine", "BareMachineTemplate"] {
            deployment::apply_crds(control_plane, &bare_kind(kind).to_string()).await?;
        }
        make_cluster(control_plane, namespace).await?;

        let files = serving_certificate(&Authority::new("cluster-api")?)?;
        let (health, webhook) = (free_address()?, free_address()?);
        let mut command = Command::new(program);
        command
            .args(["--health-addr", &health.to_string(), "--webhook-port", &webhook.port().to_string()])
            .args(["--diagnostics-address", "127.0.0.1:0", "--insecure-diagnostics"])
            .arg("--webhook-cert-dir")
            .arg(files.path())
            // There is nothing to migrate, and no conversion webhook.
            .args(["--skip-crd-migration-phases", "StorageVersionMigration,CleanupManagedFields"])
            .env("KUBECONFIG", control_plane.kubeconfig())
            .env("POD_NAMESPACE", namespace)
            .env("POD_NAME", "cluster-api")
            .env("POD_UID", "0");
        let daemon = Daemon::start("cluster-api", control_plane.dir().join("cluster-api.log"), &command)?;
        answers(&daemon, health, "/readyz").await?;
        Ok(Self { _daemon: daemon, _files: files, client })
    }

    /// Returns a MachineSet of Windows Machines.
    pub fn machine_set(&self, name: &str, replicas: i32) -> Value {
        let namespace = MachineApi::ClusterApi.namespace();
        let labels = json!({"cluster.x-k8s.io/cluster-name": CLUSTER, "cluster.x-k8s.io/set-name": name, "node.cluster.x-k8s.io/os": "windows"});
        let template = json!({"apiGroup": INFRASTRUCTURE, "kind": "BareMachineTemplate", "name": "windows"});
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "clusterName": CLUSTER, "replicas": replicas,
                "selector": {"matchLabels": {"cluster.x-k8s.io/set-name": name}},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "clusterName": CLUSTER, "bootstrap": {"dataSecretName": "windows-user-data"}, "infrastructureRef": template,
                }},
            },
        })
    }

    /// Returns a MachineHealthCheck for a MachineSet, which replaces Machines whose Nodes have not reported for 20 seconds.
    pub fn health_check(&self, name: &str, set: &str) -> Value {
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck",
            "metadata": {"name": name, "namespace": MachineApi::ClusterApi.namespace()},
            "spec": {
                "clusterName": CLUSTER, "selector": {"matchLabels": {"cluster.x-k8s.io/set-name": set}},
                "checks": {"nodeStartupTimeoutSeconds": 1200, "unhealthyNodeConditions": [{"type": "Ready", "status": "Unknown", "timeoutSeconds": 20}]},
                "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": "100%"}},
            },
        })
    }

    /// Reports the infrastructure of a Machine as provisioned, with this provider ID and address.
    ///
    /// # Errors
    /// Fails when the API server refuses it.
    pub async fn provide(&self, machine: &str, provider_id: &str, address: &str) -> Result<()> {
        let gvk = GroupVersionKind::gvk(INFRASTRUCTURE, "v1beta1", "BareMachine");
        let namespace = MachineApi::ClusterApi.namespace();
        let all: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &ApiResource::from_gvk(&gvk));
        let status = json!({
            "initialization": {"provisioned": true},
            "addresses": [{"type": "InternalIP", "address": address}],
        });
        let patch = json!({"spec": {"providerID": provider_id}, "status": status});
        all.patch(machine, &PatchParams::default(), &Patch::Merge(patch)).await.context("patch the infrastructure")?;
        Ok(())
    }
}

/// Returns the CRD of a kind with arbitrary fields. The label declares the version of Cluster API's contract.
fn bare_kind(kind: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{INFRASTRUCTURE}"), "labels": {"cluster.x-k8s.io/v1beta2": "v1beta1"}},
        "spec": {
            "group": INFRASTRUCTURE, "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// Creates a Cluster that represents this cluster: its kubeconfig is in a Secret, and its control plane is initialized.
async fn make_cluster(control_plane: &ControlPlane, namespace: &str) -> Result<()> {
    let metadata = |name: &str| json!({"name": name, "namespace": namespace, "labels": {"cluster.x-k8s.io/cluster-name": CLUSTER}});
    let kubeconfig = fs::read_to_string(control_plane.kubeconfig())?;
    let address = control_plane.address();
    let objects = [
        json!({"apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": metadata(&format!("{CLUSTER}-kubeconfig")), "stringData": {"value": kubeconfig}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata("windows-user-data"), "stringData": {"value": "none"}}),
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata(CLUSTER), "spec": {
            "controlPlaneEndpoint": {"host": address.ip().to_string(), "port": address.port()},
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "BareCluster", "name": CLUSTER}}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "BareCluster",
            "metadata": metadata(CLUSTER), "status": {"initialization": {"provisioned": true}}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "BareMachineTemplate",
            "metadata": metadata("windows"), "spec": {"template": {"spec": {}}}}),
    ];
    for object in objects {
        control_plane.apply_yaml(&object.to_string()).await?;
    }
    let initialized = json!({"status": {
        "initialization": {"infrastructureProvisioned": true, "controlPlaneInitialized": true},
        "conditions": [{"type": "ControlPlaneInitialized", "status": "True", "reason": "Initialized", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }});
    let gvk = GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Cluster");
    let clusters: Api<DynamicObject> =
        Api::namespaced_with(control_plane.client().await?, namespace, &ApiResource::from_gvk(&gvk));
    clusters.patch_status(CLUSTER, &PatchParams::default(), &Patch::Merge(initialized)).await?;
    Ok(())
}
