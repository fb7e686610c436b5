//! Machine API of OpenShift: its webhooks with the controller of MachineSets, the controller that links Nodes, and MachineHealthChecks. No
//! provider creates machines: a test reports that they exist.

use std::{fs, path::Path, process::Command};

use anyhow::Result;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Module, answers, serving_certificate};
use crate::{
    ControlPlane,
    children::Daemon,
    deployment::{self, MachineApi as Api},
    pki::Authority,
    ports::free_address,
};

const MODULE: Module = Module("machine-api");
const REQUIRED: &str = "github.com/openshift/machine-api-operator";
const FILES: [&str; 3] = [
    "0000_30_machine-api-operator_02_machine.Default.crd.yaml",
    "0000_30_machine-api-operator_03_machineset.Default.crd.yaml",
    "0000_30_machine-api-operator_07_machinehealthcheck.crd.yaml",
];
/// Name of the platform's credentials and of the cluster, as the webhooks write them.
const INFRASTRUCTURE: &str = "judged-x7k2p";

/// Installs the kinds, and the namespace with the operator's rights.
///
/// # Errors
/// Fails when the files of the kinds cannot be found, or the API server refuses something.
pub async fn install(control_plane: &ControlPlane) -> Result<()> {
    deployment::create_namespace(control_plane, Api::OpenShift.namespace()).await?;
    deployment::apply(control_plane, "machine-api").await?;
    // With these kinds, the operator detects OpenShift, where it reads the pull secret.
    deployment::create_namespace(control_plane, "openshift-config").await?;
    deployment::apply(control_plane, "openshift-config").await?;
    let folder = MODULE.source(REQUIRED)?.join("install");
    for file in FILES {
        deployment::apply_crds(control_plane, &fs::read_to_string(folder.join(file))?).await?;
    }
    for (kind, plural) in [("Infrastructure", "infrastructures"), ("DNS", "dnses")] {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let name = format!("{plural}.config.openshift.io");
        let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name},
            "spec": {"group": "config.openshift.io", "scope": "Cluster", "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
        deployment::apply_crds(control_plane, &crd.to_string()).await?;
    }
    Ok(())
}

/// Controller of MachineSets, with the webhooks for a platform in force.
pub struct MachineSets {
    /// Process of the controller, dropped before its files.
    _daemon: Daemon,
    _files: TempDir,
}

impl MachineSets {
    /// Starts the controller for a platform, such as `AWS`, in place of one for another platform.
    ///
    /// # Errors
    /// Fails when it cannot be built or started, or the API server refuses something.
    pub async fn start(control_plane: &ControlPlane, platform: &str) -> Result<Self> {
        let objects = [
            json!({"apiVersion": "config.openshift.io/v1", "kind": "DNS", "metadata": {"name": "cluster"}, "spec": {}}),
            json!({"apiVersion": "config.openshift.io/v1", "kind": "Infrastructure", "metadata": {"name": "cluster"},
                "status": {"infrastructureName": INFRASTRUCTURE, "platformStatus": {"type": platform}}}),
        ];
        for object in objects {
            control_plane.apply_yaml(&object.to_string()).await?;
        }
        let authority = Authority::new("machine-api")?;
        let files = serving_certificate(&authority)?;
        let (health, webhook) = (free_address()?, free_address()?);
        let mut command = command(control_plane, "machineset").await?;
        command
            .args(["--health-addr", &health.to_string(), "--metrics-bind-address", "127.0.0.1:0"])
            .args(["--webhook-port", &webhook.port().to_string(), "--webhook-cert-dir"])
            .arg(files.path());
        let log = format!("machineset-{platform}.log");
        let daemon = Daemon::start("machineset", control_plane.dir().join(log), &command)?;
        answers(&daemon, health, "/readyz").await?;
        for configuration in webhooks(webhook.port(), &authority.identity().certificate) {
            control_plane.apply_yaml(&configuration.to_string()).await?;
        }
        Ok(Self { _daemon: daemon, _files: files })
    }
}

/// Returns both webhook configurations, as in a cluster except for the address and the failure policy: otherwise an unreachable webhook would
/// admit everything.
fn webhooks(port: u16, authority: &str) -> [Value; 2] {
    use base64::Engine as _;
    let authority = base64::engine::general_purpose::STANDARD.encode(authority);
    [("ValidatingWebhookConfiguration", "validate"), ("MutatingWebhookConfiguration", "mutate")].map(|(kind, verb)| {
        let webhook = |resource: &str| {
            json!({
                "name": format!("{verb}.{resource}.machine.openshift.io"), "sideEffects": "None", "failurePolicy": "Fail",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"caBundle": authority, "url": format!("https://127.0.0.1:{port}/{verb}-machine-openshift-io-v1beta1-{resource}")},
                "rules": [{"apiGroups": ["machine.openshift.io"], "apiVersions": ["v1beta1"], "resources": [format!("{resource}s")], "operations": ["CREATE", "UPDATE"]}],
            })
        };
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "machine-api"},
            "webhooks": [webhook("machine"), webhook("machineset")],
        })
    })
}

async fn command(control_plane: &ControlPlane, name: &'static str) -> Result<Command> {
    let program = tokio::task::spawn_blocking(move || {
        MODULE.program(name, &format!("{REQUIRED}/cmd/{name}"), &[], "about 2 minutes")
    });
    let mut command = Command::new(program.await??);
    command.env("KUBECONFIG", control_plane.kubeconfig());
    Ok(command)
}

/// Controller without webhooks.
pub struct Controller(#[expect(dead_code, reason = "it runs until it is dropped")] Daemon);

impl Controller {
    /// Starts the controller that links Machines and Nodes.
    ///
    /// # Errors
    /// Fails when it cannot be built or started.
    pub async fn node_link(control_plane: &ControlPlane) -> Result<Self> {
        let command = command(control_plane, "nodelink-controller").await?;
        Self::started("nodelink-controller", control_plane.dir(), &command)
    }

    /// Starts the controller of MachineHealthChecks.
    ///
    /// # Errors
    /// Fails when it cannot be built or started.
    pub async fn health_checks(control_plane: &ControlPlane) -> Result<Self> {
        let mut command = command(control_plane, "machine-healthcheck").await?;
        command.args(["--health-addr", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0"]);
        Self::started("machine-healthcheck", control_plane.dir(), &command)
    }

    fn started(name: &str, dir: &Path, command: &Command) -> Result<Self> {
        Ok(Self(Daemon::start(name, dir.join(format!("{name}.log")), command)?))
    }
}
