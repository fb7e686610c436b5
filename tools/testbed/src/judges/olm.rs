//! Operator Lifecycle Manager, version 0: its two programs, and catalogs that `opm` serves. No Pod runs: [`Olm::run_pods`]
//! reports the Pods of a namespace as Ready.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpStream, task::spawn_blocking};

use super::Module;
use crate::{
    ControlPlane,
    binaries::Run as _,
    children::Daemon,
    deployment::{self, within},
    ports::free_address,
};

const MODULE: Module = Module("olm");
const REQUIRED: &str = "github.com/operator-framework/operator-lifecycle-manager";
const OPM: Module = Module("opm");
/// Build flags of `opm`, without which it needs C libraries.
const OPM_FLAGS: &[&str] = &["-tags", "json1,containers_image_openpgp,exclude_graphdriver_btrfs"];

/// Namespace of the catalogs that are available in all namespaces.
pub const CATALOGS: &str = "openshift-marketplace";

/// Running programs of OLM.
pub struct Olm {
    _versions: Daemon,
    _catalogs: Daemon,
    /// Listener that keeps both programs from serving metrics on all addresses. The programs continue without metrics. `None` if another program
    /// has the port.
    _no_metrics: Option<TcpListener>,
}

impl Olm {
    /// Installs the kinds, and starts the programs as an administrator.
    ///
    /// # Errors
    /// Fails when they cannot be found or built or started, or the API server refuses something.
    pub async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let program = |name: &'static str| {
            spawn_blocking(move || MODULE.program(name, &format!("{REQUIRED}/cmd/{name}"), &[], "about 7 minutes"))
        };
        let (olm, catalog) = (program("olm").await??, program("catalog").await??);
        MODULE.install_crds(control_plane, REQUIRED, "deploy/chart/crds").await?;
        for name in ["olm", CATALOGS] {
            deployment::create_namespace(control_plane, name).await?;
        }
        let no_metrics = TcpListener::bind("127.0.0.1:8080").ok();
        let start = |name: &str, program: PathBuf, args: &[&str]| {
            let mut command = Command::new(program);
            command.args(args).env("KUBECONFIG", control_plane.kubeconfig()).env("OPERATOR_NAMESPACE", "olm");
            Daemon::start(name, control_plane.dir().join(format!("{name}.log")), &command)
        };
        Ok(Self {
            _versions: start("olm", olm, &["--namespace", "olm"])?,
            _catalogs: start("catalog", catalog, &["--namespace", CATALOGS])?,
            _no_metrics: no_metrics,
        })
    }

    /// Reports all Pods of a namespace as Ready, including later ones, until the returned set is dropped.
    pub fn run_pods(client: Client, namespace: &str) -> tokio::task::JoinSet<()> {
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let mut running = tokio::task::JoinSet::new();
        running.spawn(async move {
            loop {
                let all = pods.list(&ListParams::default()).await.map(|all| all.items).unwrap_or_default();
                for pod in
                    all.iter().filter(|p| p.status.as_ref().is_none_or(|s| s.phase.as_deref() != Some("Running")))
                {
                    let ready = ["Ready", "ContainersReady"].map(
                        |kind| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}),
                    );
                    let status = Patch::Merge(json!({"status": {"phase": "Running", "conditions": ready}}));
                    // The Pod may be deleted meanwhile.
                    let _ = pods.patch_status(&pod.name_any(), &PatchParams::default(), &status).await;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        running
    }
}

/// Bundle: a folder with `manifests/` and `metadata/`.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// Name of the package.
    pub package: &'static str,
    /// Channel of the bundle.
    pub channel: &'static str,
    /// Name of the ClusterServiceVersion.
    pub name: String,
    /// ClusterServiceVersion that this one replaces.
    pub replaces: Option<String>,
    /// Folder of the bundle.
    pub folder: PathBuf,
}

/// Catalog that is served.
pub struct Catalog {
    _daemon: Daemon,
    address: String,
    _files: TempDir,
}

impl Catalog {
    /// Renders the bundles, which all belong to one package, validates the catalog, and serves it.
    ///
    /// # Errors
    /// Fails when `opm` cannot be built, refuses something, or does not serve within a minute.
    pub async fn serve(bundles: &[Bundle]) -> Result<Self> {
        let opm = spawn_blocking(|| {
            OPM.program("opm", "github.com/operator-framework/operator-registry/cmd/opm", OPM_FLAGS, "about 2 minutes")
        });
        let opm = opm.await??;
        let files = tempfile::tempdir()?;
        let catalog = files.path().join("catalog");
        fs::create_dir(&catalog)?;
        let first = bundles.first().context("no bundle")?;
        let entries: Vec<Value> = bundles
            .iter()
            .map(|b| json!({"name": b.name, "replaces": b.replaces.clone().unwrap_or_default()}))
            .collect();
        let documents = [
            json!({"schema": "olm.package", "name": first.package, "defaultChannel": first.channel}),
            json!({"schema": "olm.channel", "name": first.channel, "package": first.package, "entries": entries}),
        ];
        let mut text: String = documents.iter().map(ToString::to_string).collect();
        for bundle in bundles {
            let mut render = Command::new(&opm);
            text += &render.args(["render", "--output", "json"]).arg(&bundle.folder).read()?;
        }
        fs::write(catalog.join("catalog.json"), text)?;
        Command::new(&opm).arg("validate").arg(&catalog).run()?;

        let address = free_address()?;
        let mut command = Command::new(&opm);
        command
            .arg("serve")
            .arg(&catalog)
            .args(["--port", &address.port().to_string(), "--pprof-addr", "127.0.0.1:0"])
            .arg("--termination-log")
            .arg(files.path().join("end"))
            .env("TMPDIR", files.path());
        let daemon = Daemon::start("opm", files.path().join("log"), &command)?;
        within(Duration::from_mins(1), "opm serves", || async { TcpStream::connect(address).await.is_ok() })
            .await
            .with_context(|| daemon.last_lines())?;
        Ok(Self { _daemon: daemon, address: address.to_string(), _files: files })
    }

    /// Returns the CatalogSource that offers this catalog.
    pub fn source(&self, name: &str) -> Value {
        json!({
            "apiVersion": "operators.coreos.com/v1alpha1", "kind": "CatalogSource",
            "metadata": {"name": name, "namespace": CATALOGS}, "spec": {"sourceType": "grpc", "address": self.address},
        })
    }
}

/// Writes the annotations that mark a folder as a bundle.
///
/// # Errors
/// Fails when they cannot be written.
pub fn write_annotations(folder: &Path, package: &str, channel: &str) -> Result<()> {
    let annotations = json!({"annotations": {
        "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
        "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
        "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
        "operators.operatorframework.io.bundle.package.v1": package,
        "operators.operatorframework.io.bundle.channels.v1": channel,
    }});
    fs::create_dir_all(folder.join("metadata"))?;
    Ok(fs::write(folder.join("metadata/annotations.yaml"), annotations.to_string())?)
}
