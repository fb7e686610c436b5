//! Installation of the operator's kinds, rights and policies on a control plane, of other projects' kinds, and of the SSH key for hosts.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::{
    api::{authentication::v1::TokenRequest, core::v1::ServiceAccount},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams},
    runtime::{conditions, wait::await_condition},
};
use russh::keys::{Algorithm, PrivateKey, ssh_key::LineEnding};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::ControlPlane;
pub use crate::control_plane::OPERATOR;

/// Namespace of the operator.
pub const NAMESPACE: &str = api::names::DEFAULT_NAMESPACE;
/// Policy in `deploy/base` that is applied last.
const LAST_POLICY: &str = "windows-node-pools-wicd-tokens";
/// Groups of the operator's user.
pub const OPERATOR_GROUPS: [&str; 2] =
    ["system:serviceaccounts", "system:serviceaccounts:openshift-windows-machine-config-operator"];

/// Installs the CRDs and `deploy/base`, and waits until they are in force.
///
/// # Errors
/// Fails when the API server refuses an object, or an object is not in force within a minute.
pub async fn install(control_plane: &ControlPlane) -> Result<()> {
    apply_own_crds(control_plane).await?;
    apply(control_plane, "base").await?;
    policies_in_force(control_plane).await
}

async fn apply_own_crds(control_plane: &ControlPlane) -> Result<()> {
    for crd in api::crds() {
        apply_crds(control_plane, &serde_yaml::to_string(&crd)?).await?;
    }
    Ok(())
}

/// Applies the CRDs of a stream of YAML documents, and waits until their kinds are served.
pub(crate) async fn apply_crds(control_plane: &ControlPlane, crds: &str) -> Result<()> {
    control_plane.apply_yaml(crds).await?;
    let client = control_plane.client().await?;
    for crd in serde_yaml::Deserializer::from_str(crds) {
        if let Some(name) = Value::deserialize(crd)?["metadata"]["name"].as_str() {
            served(&client, name).await?;
        }
    }
    Ok(())
}

/// Applies the CRDs of a file in `crds/`, as [`apply_crds`] does.
async fn apply_crd_file(control_plane: &ControlPlane, file: &str) -> Result<()> {
    let path = crate::source_dir().join(format!("crds/{file}.yaml"));
    apply_crds(control_plane, &std::fs::read_to_string(path)?).await
}

/// Creates a namespace if there is none with this name.
pub(crate) async fn create_namespace(control_plane: &ControlPlane, name: &str) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    control_plane.apply_yaml(&namespace.to_string()).await
}

/// Applies a folder of `deploy/`, as kubectl's kustomize renders it.
///
/// # Errors
/// Fails when kustomize cannot render the folder, or the API server refuses something.
pub async fn apply(control_plane: &ControlPlane, folder: &str) -> Result<()> {
    static RENDERED: Mutex<BTreeMap<String, String>> = Mutex::const_new(BTreeMap::new());
    let mut rendered = RENDERED.lock().await;
    if !rendered.contains_key(folder) {
        let path = devenv::workspace_root().join("deploy").join(folder);
        let output = control_plane.kubectl(&["kustomize", path.to_str().context("path is not UTF-8")?]).await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        rendered.insert(folder.to_owned(), String::from_utf8(output.stdout)?);
    }
    let manifests = rendered[folder].clone();
    drop(rendered);
    control_plane.apply_yaml(&manifests).await
}

/// Installs the CRDs and the content of the bundle as the Operator Lifecycle Manager does. The bundle contains no policies.
///
/// # Errors
/// Fails when the API server refuses something.
pub async fn install_by_olm(control_plane: &ControlPlane) -> Result<()> {
    install_monitoring(control_plane).await?;
    apply_own_crds(control_plane).await?;
    create_namespace(control_plane, NAMESPACE).await?;
    for entry in std::fs::read_dir(devenv::workspace_root().join("deploy/olm/manifests"))? {
        let object: Value = serde_yaml::from_str(&std::fs::read_to_string(entry?.path())?)?;
        for object in created_by_olm(object) {
            control_plane.apply_yaml(&object.to_string()).await?;
        }
    }
    Ok(())
}

/// Returns the objects that OLM creates from an object of a bundle: those in a ClusterServiceVersion, and any other object itself. Objects whose names
/// OLM generates get the name of their ServiceAccount.
pub fn created_by_olm(object: Value) -> Vec<Value> {
    if object["kind"] != "ClusterServiceVersion" {
        return vec![object];
    }
    let install = &object["spec"]["install"]["spec"];
    let (rights, deployment) = (&install["clusterPermissions"][0], &install["deployments"][0]);
    let (name, group) = (&rights["serviceAccountName"], "rbac.authorization.k8s.io");
    let mut spec = deployment["spec"].clone();
    spec["revisionHistoryLimit"] = json!(1);
    for (key, value) in object["metadata"]["annotations"].as_object().into_iter().flatten() {
        spec["template"]["metadata"]["annotations"][key] = value.clone();
    }
    if let Some(env) = spec["template"]["spec"]["containers"][0]["env"].as_array_mut() {
        env.push(json!({"name": "OPERATOR_CONDITION_NAME", "value": object["metadata"]["name"]}));
    }
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}),
        json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rights["rules"]}),
        json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec,
            "metadata": {"name": deployment["name"], "namespace": NAMESPACE, "labels": deployment["label"]}}),
    ]
}

/// Installs the kinds of the Prometheus operator, which OpenShift has.
///
/// # Errors
/// Fails when the API server refuses a kind, or does not serve it within a minute.
pub async fn install_monitoring(control_plane: &ControlPlane) -> Result<()> {
    apply_crd_file(control_plane, "monitoring").await
}

/// Installs the kind with which operators report to the Operator Lifecycle Manager whether it may upgrade them.
///
/// # Errors
/// Fails when the API server refuses the kind, or does not serve it within a minute.
pub async fn install_operator_conditions(control_plane: &ControlPlane) -> Result<()> {
    apply_crd_file(control_plane, "olm").await
}

/// API that creates machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineApi {
    /// Machine API of OpenShift.
    OpenShift,
    /// Cluster API.
    ClusterApi,
}

impl MachineApi {
    /// Returns the namespace of the API's Machines on OpenShift.
    pub fn namespace(self) -> &'static str {
        match self {
            Self::OpenShift => "openshift-machine-api",
            Self::ClusterApi => "openshift-cluster-api",
        }
    }
}

/// Installs the CRDs of an API that creates machines, and creates its namespace with the operator's rights in it.
///
/// # Errors
/// Fails when the API server refuses an object, or does not serve a kind within a minute.
pub async fn install_machines(control_plane: &ControlPlane, api: MachineApi) -> Result<()> {
    let name = match api {
        MachineApi::OpenShift => "machine-api",
        MachineApi::ClusterApi => "cluster-api",
    };
    create_namespace(control_plane, api.namespace()).await?;
    // The operator uses its rights as soon as it finds the kinds.
    apply(control_plane, name).await?;
    apply_crd_file(control_plane, name).await
}

/// Installs the CRDs of OpenShift's kinds with cluster settings, and the operator's rights in `openshift-config`.
///
/// # Errors
/// Fails when the API server refuses an object, or does not serve a kind within a minute.
pub async fn install_openshift(control_plane: &ControlPlane) -> Result<()> {
    create_namespace(control_plane, "openshift-config").await?;
    apply(control_plane, "openshift-config").await?;
    apply_crd_file(control_plane, "openshift").await
}

/// Installs the CRDs of Flux's kinds that have an artifact, and creates the namespace of Flux.
///
/// # Errors
/// Fails when the API server refuses an object, or does not serve a kind within a minute.
pub async fn install_flux(control_plane: &ControlPlane) -> Result<()> {
    apply_crd_file(control_plane, "flux").await?;
    create_namespace(control_plane, "flux-system").await
}

/// Waits until the kind of a CRD is served, which is a little later than the CRD's condition Established becomes true.
///
/// # Errors
/// Fails when the API server does not answer, or does not serve the kind within a minute after that condition.
pub async fn served(client: &Client, crd: &str) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    await_condition(crds.clone(), crd, conditions::is_crd_established()).await?;
    let spec = crds.get(crd).await?.spec;
    let version = spec.versions.iter().find(|v| v.served).context("no version is served")?;
    let kind = GroupVersionKind::gvk(&spec.group, &version.name, &spec.names.kind);
    let objects =
        Api::<DynamicObject>::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, &spec.names.plural));
    let one = ListParams::default().limit(1);
    eventually("the kind is served", || async { objects.list(&one).await.is_ok() }).await
}

/// Waits until the policies are in force. The API server loads all policies at once: when the last applied policy refuses a request, all are
/// active.
async fn policies_in_force(control_plane: &ControlPlane) -> Result<()> {
    let wicd = control_plane.client_as("system:wicd-node:probe", &["system:wicd-nodes", "system:masters"]).await?;
    let accounts: Api<ServiceAccount> = Api::default_namespaced(wicd);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    eventually("the policies are in force", || async {
        match accounts.create_token_request("default", &dry_run, &TokenRequest::default()).await {
            Err(kube::Error::Api(status)) => status.message.contains(LAST_POLICY),
            _ => false,
        }
    })
    .await
}

/// Group of clients that impersonate the operator to test its rights. The group has no rights of its own, and marks
/// their requests in an audit log.
pub const PROBES: &str = "testbed:probes";

/// Returns a client with the operator's own rights, for tests of those rights.
///
/// # Errors
/// Fails when no certificate or client can be made.
pub async fn operator_client(control_plane: &ControlPlane) -> Result<Client> {
    control_plane.client_as(OPERATOR, &["system:serviceaccounts", PROBES]).await
}

/// Returns a new SSH key.
///
/// # Errors
/// Does not fail in practice.
pub fn new_key() -> Result<PrivateKey> {
    Ok(PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519)?)
}

/// Stores a private key in the Secret that pools use by default.
///
/// # Errors
/// Fails when the API server refuses the Secret.
pub async fn store_key(control_plane: &ControlPlane, key: &PrivateKey) -> Result<()> {
    store_key_as(control_plane, api::names::DEFAULT_KEY_SECRET, key).await
}

/// Stores a private key in a Secret with this name.
///
/// # Errors
/// Fails when the API server refuses the Secret.
pub async fn store_key_as(control_plane: &ControlPlane, name: &str, key: &PrivateKey) -> Result<()> {
    let pem = key.to_openssh(LineEnding::LF)?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "stringData": {api::names::DEFAULT_KEY_SECRET_KEY: pem.as_str()},
    });
    control_plane.apply_yaml(&secret.to_string()).await
}

/// Time limit for everything that a test waits for. It is long, because a busy machine is slow, and it only ends a test that would fail anyway.
pub const LIMIT: Duration = Duration::from_mins(4);

/// Calls `ask` repeatedly until it returns true, for at most [`LIMIT`].
///
/// # Errors
/// Fails after that time.
pub async fn eventually<F: Future<Output = bool>>(what: &str, ask: impl Fn() -> F) -> Result<()> {
    within(LIMIT, what, ask).await
}

/// Calls `ask` repeatedly until it returns true, for at most `limit`.
///
/// # Errors
/// Fails after `limit`.
pub async fn within<F: Future<Output = bool>>(limit: Duration, what: &str, ask: impl Fn() -> F) -> Result<()> {
    let begin = Instant::now();
    // A pause is at most an eighth of the time waited so far: many tests wait at once, and share the processors with what they wait for.
    let pause = || (begin.elapsed() / 8).clamp(Duration::from_millis(20), Duration::from_millis(500));
    let asking = async {
        while !ask().await {
            tokio::time::sleep(pause()).await;
        }
    };
    tokio::time::timeout(limit, asking)
        .await
        .with_context(|| format!("still not true after {} s: {what}", limit.as_secs()))
}
