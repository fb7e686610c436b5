//! The command `gather`: secrets that are planted in the sources that it reads are in no file that it writes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;
use testbed::{
    deployment::NAMESPACE,
    sim::{SimHost, SimOptions},
};

use crate::{
    cluster::kubectl,
    fleet::{World, is_ready, spec},
};

/// Fake secret. Each place holds it with a number of its own, so that a failure names the place.
const CANARY: &str = "Canary7hunter2x";

/// Runs `gather`, and returns exit status and output.
async fn gather(world: &World, folder: &Path, args: &[&str]) -> Result<(Option<i32>, String)> {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .args(["gather", "--namespace", NAMESPACE, "--wicd"])
        .arg(&world.options.wicd)
        .args(args)
        .current_dir(folder)
        .env("KUBECONFIG", world.control_plane.kubeconfig_as("a-person", &["system:masters"])?)
        .output()
        .await?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), text))
}

fn files(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            found.push((path, text));
        }
    }
    Ok(found)
}

/// Returns the content of an archive as one text.
fn unpacked(archive: &Path) -> Result<String> {
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(archive)?));
    let mut text = String::new();
    for entry in tar.entries()? {
        let mut entry = entry?;
        text += &entry.path()?.display().to_string();
        std::io::Read::read_to_string(&mut entry, &mut text)?;
    }
    Ok(text)
}

/// Plants canaries in objects that are gathered.
async fn plant(world: &World) -> Result<()> {
    let jwt = format!("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.{CANARY}1");
    let dockercfg = BASE64_STANDARD.encode(format!(r#"{{"auths":{{"r.example.com":{{"auth":"{CANARY}2"}}}}}}"#));
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{CANARY}3\n-----END PRIVATE KEY-----\n");
    let annotations = json!({
        "example.com/proxy": format!("http://me:{CANARY}4@proxy.example.com:3128"),
        "example.com/api-key": format!("{CANARY}5"),
        "kubectl.kubernetes.io/last-applied-configuration": format!(r#"{{"x":"{CANARY}6"}}"#),
    });
    world.edit_pool("factory", json!({"metadata": {"annotations": annotations}})).await?;
    let meta = |name: &str| json!({"name": name, "namespace": NAMESPACE});
    let involved = json!({"kind": "Pod", "namespace": NAMESPACE, "name": "x"});
    let labels = json!({"app": "x"});
    let container = json!({
        "name": "x", "image": "x", "args": ["--password", format!("{CANARY}7"), format!("--token={CANARY}8")],
        "env": [{"name": "DB_PASSWORD", "value": format!("{CANARY}9")}, {"name": "CONFIG", "value": dockercfg}],
    });
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}});
    let objects = [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("windows-services-canary"), "data": {
            "private-key.pem": pem, "token": format!("{CANARY}10"), "x": format!("a: 1\npassword: |\n  {CANARY}11\n"), "z": jwt,
        }}),
        json!({"apiVersion": "v1", "kind": "Event", "metadata": meta("canary"), "involvedObject": involved, "type": "Warning",
            "reason": "Canary", "message": format!("GET https://x/ failed: Authorization: Bearer {CANARY}13")}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "canary", "namespace": NAMESPACE,
            "annotations": {"x": format!("{CANARY}14")}}, "stringData": {"the-key": format!("{CANARY}15")}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta("sh.helm.release.v1.canary.v1"), "type": "helm.sh/release.v1",
            "stringData": {"release": format!("{CANARY}24")}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("canary"),
            "spec": {"selector": {"matchLabels": labels}, "template": template}}),
    ];
    let file = world.control_plane.dir().join("canary.json");
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())?;
    kubectl(&world.control_plane, &["apply", "-f", file.to_str().context("path is not UTF-8")?]).await?;
    Ok(())
}

/// Plants canaries in logs and events of a host.
fn plant_on(host: &SimHost) -> Result<()> {
    let logs = host.drive_c().join("var/log/kubelet");
    fs::create_dir_all(&logs)?;
    fs::write(logs.join("kubelet.log"), format!("I0101 kubelet says so\nAuthorization: Basic {CANARY}16\n"))?;
    let utf16: Vec<u8> = format!("\u{feff}password={CANARY}17").encode_utf16().flat_map(u16::to_le_bytes).collect();
    fs::write(logs.join("script.log"), utf16)?;
    let events = [format!("<Event>token={CANARY}18</Event>")];
    host.windows().state().events.insert("System".into(), events.into());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_leaves_the_cluster_or_a_host() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 2).await?;
    world.join("factory", &spec(&hosts)).await?;
    world.until("factory", "it is Ready", is_ready).await?;
    plant(&world).await?;
    plant_on(&hosts[0])?;
    // The services of one host are stopped, so the cluster cannot get that host's logs.
    hosts[0].windows().state().services.values_mut().for_each(|s| s.state = api::host::ServiceState::Stopped);
    let epoch = fs::read(hosts[1].drive_c().join("k/wicd/epoch"))?;

    let folder = tempfile::tempdir()?;
    let (code, text) = gather(&world, folder.path(), &["--hosts"]).await?;
    ensure!(code == Some(0), "{text}");
    let written = fs::read_dir(folder.path())?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let is_archive = |path: &&PathBuf| path.extension().is_some_and(|end| end == "gz");
    let archive = written.iter().find(is_archive).context("no archive")?;
    let dest = written.iter().find(|path| path.is_dir()).context("no folder")?.clone();
    let all = files(&dest)?;
    let cluster = |path: &str| format!("cluster-scoped-resources/{path}");
    let own = |path: &str| format!("namespaces/{NAMESPACE}/{path}");
    let windows = |path: &str| cluster(&format!("windowsmachineconfig.openshift.io/{path}.yaml"));
    let admission =
        |path: &str| cluster(&format!("admissionregistration.k8s.io/{path}/windows-node-pools-services.yaml"));
    let crd = "windowsnodepools.windowsmachineconfig.openshift.io.yaml";
    for (path, content) in [
        ("version".to_owned(), "windows-node-pools"),
        (windows("windowsnodepools/factory"), "kind: WindowsNodePool"),
        (windows("windowsinstances/win-0"), "kind: WindowsInstance"),
        (cluster(&format!("apiextensions.k8s.io/customresourcedefinitions/{crd}")), "storedVersions"),
        (cluster("core/nodes/win-0.yaml"), "kind: Node"),
        (cluster("core/nodes/win-0.pods.yaml"), ""),
        (admission("validatingadmissionpolicies"), "spec"),
        (admission("validatingadmissionpolicybindings"), "spec"),
        (own("core/configmaps/windows-services-canary.yaml"), "(redacted)"),
        (own("core/events.yaml"), "reason: Canary"),
        (own("core/secrets/canary.yaml"), "the-key"),
        (own("core/secrets/sh.helm.release.v1.canary.v1.yaml"), "release"),
        (own("apps/deployments/canary.yaml"), "DB_PASSWORD"),
        (own("coordination.k8s.io/leases/windows-node-pools.yaml"), "holderIdentity"),
        ("hosts/win-0/logs/kubelet/kubelet.log".to_owned(), "kubelet says so"),
        ("hosts/win-0/logs/kubelet/script.log".to_owned(), "password="),
        ("hosts/win-0/events/System.xml".to_owned(), "<Event>"),
        ("hosts/win-0/services.json".to_owned(), "kubelet"),
        ("hosts/win-1/owned.json".to_owned(), "kubelet"),
        ("gather.log".to_owned(), "host win-0"),
    ] {
        let found = all.iter().find(|(file, _)| file.strip_prefix(&dest).is_ok_and(|file| file == Path::new(&path)));
        ensure!(found.is_some_and(|(_, text)| text.contains(content)), "{path}: {found:?}\n{text}");
    }
    let csrs = all.iter().filter(|(file, _)| file.to_string_lossy().contains("certificatesigningrequests/"));
    ensure!(csrs.count() > 0, "no certificate request was gathered");
    for (path, text) in &all {
        ensure!(!text.contains(CANARY), "{}: {text}", path.display());
    }
    ensure!(!unpacked(archive)?.contains(CANARY), "a canary is in the archive");
    ensure!(!text.contains(CANARY), "{text}");
    ensure!(fs::read(hosts[1].drive_c().join("k/wicd/epoch"))? == epoch, "gathering changed the epoch");
    let left = fs::read_dir(hosts[1].drive_c().join("windows/wicd/operations"))?;
    ensure!(
        left.flatten().all(|entry| !entry.file_name().to_string_lossy().starts_with("gather-")),
        "gather left an operation on the host"
    );

    // A user without rights gathers nothing.
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .args(["gather", "--dest"])
        .arg(folder.path().join("none"))
        .env("KUBECONFIG", world.control_plane.kubeconfig_as("a-stranger", &[])?)
        .output()
        .await?;
    ensure!(output.status.code() == Some(1), "{output:?}");
    ensure!(String::from_utf8_lossy(&output.stdout).contains("Not gathered: windowsnodepools"), "{output:?}");
    Ok(())
}
