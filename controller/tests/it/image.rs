//! Container image, built and run as a cluster runs it: as another user, without capabilities, on a read-only root, with a ServiceAccount token.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use remote::payload::Payload;
use serde_json::{Value, json};
use testbed::{
    ControlPlane, ControlPlaneOptions,
    deployment::{self, NAMESPACE, within},
    image::{self, Arch, Compiler, Files, Images, Profile, Store},
    payload,
    sim::{HostOptions, Sim, SimOptions},
};

use crate::{
    cluster::kubectl,
    fleet::{LIMIT, entries, is_ready, spec},
};

/// User id in the range that OpenShift gives to a namespace.
const USER: u32 = 1_000_730_000;

/// Reports whether the programs that a test needs are installed. Fails if they are not and no test may be skipped.
fn can(programs: &[&'static str]) -> Result<bool> {
    let missing = image::missing(Arch::Amd64, programs);
    if !missing.is_empty() {
        testbed::skip(&format!("no {}; `cargo xtask setup` installs what is missing", missing.join(", ")))?;
    }
    Ok(missing.is_empty())
}

fn files(folder: &Path, operator: PathBuf) -> Result<Files> {
    let files = Files {
        client: operator.clone(),
        operator,
        client_for_windows: None,
        wicd: folder.join("wicd.exe"),
        payload: folder.join("payload"),
        revision: Some("0123456789abcdef".into()),
        arch: Arch::Amd64,
    };
    payload::write(&files.payload, &entries(b"kubelet"), payload::LEVEL_FAST)?;
    fs::write(&files.wicd, b"wicd, for hosts that only compare its hash")?;
    Ok(files)
}

/// Reads a JSON blob of an image.
fn blob(built: &image::Built, digest: &str) -> Result<Value> {
    Ok(serde_json::from_slice(&fs::read(built.layout.join("blobs").join(digest.replace(':', "/")))?)?)
}

/// Returns the configuration of an image.
fn config(built: &image::Built) -> Result<Value> {
    let manifest = blob(built, &built.digest)?;
    blob(built, manifest["config"]["digest"].as_str().context("the image has no configuration")?)
}

/// Returns the digests of an image's layers, the lowest first.
fn layers(built: &image::Built) -> Result<Vec<String>> {
    let manifest = blob(built, &built.digest)?;
    let layers = manifest["layers"].as_array().context("the image has no layers")?;
    Ok(layers.iter().map(|layer| layer["digest"].to_string()).collect())
}

#[test]
fn the_same_files_are_the_same_images_and_the_payload_is_the_lower_layer() -> Result<()> {
    if !can(&["buildah"])? {
        return Ok(());
    }
    let build = |mode: &str| -> Result<(tempfile::TempDir, Images)> {
        let folder = tempfile::tempdir()?;
        let program = folder.path().join("operator");
        fs::write(&program, "a program")?;
        let files = files(folder.path(), program)?;
        // Gives the files the modes that another umask would have given them.
        let status = Command::new("chmod").args(["-R", mode]).arg(&files.payload).status()?;
        ensure!(status.success(), "chmod: {status}");
        let images = image::build(&Store::new(&folder.path().join("store"))?, &files, &folder.path().join("out"))?;
        Ok((folder, images))
    };
    let (one_folder, one) = build("u=rwX,go=rX")?;
    let (_other_folder, other) = build("u=rwX,go=")?;
    for (one, other) in [(&one.operator, &other.operator), (&one.slim, &other.slim), (&one.payload, &other.payload)] {
        ensure!(one.digest == other.digest, "{}: {} and {}", one.name, one.digest, other.digest);
    }
    let (full, slim, payload) = (layers(&one.operator)?, layers(&one.slim)?, layers(&one.payload)?);
    ensure!(full.len() == 2 && full[0] == payload[0] && full[1] == slim[0], "{full:?} {slim:?} {payload:?}");

    // Another program changes the image, and not the payload's layer below it.
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("operator");
    fs::write(&program, "another program")?;
    let files = files(folder.path(), program)?;
    let third = image::build(&Store::new(&folder.path().join("store"))?, &files, &folder.path().join("out"))?;
    ensure!(third.payload.digest == one.payload.digest);
    ensure!(third.operator.digest != one.operator.digest && layers(&third.operator)?[0] == full[0]);

    // An image for another architecture names it, and has the same payload layer.
    let other = image::build(
        &Store::new(&folder.path().join("store"))?,
        &Files { arch: Arch::Arm64, ..files },
        &folder.path().join("arm64"),
    )?;
    for (built, arch) in
        [(&one.operator, "amd64"), (&other.operator, "arm64"), (&other.slim, "arm64"), (&other.payload, "arm64")]
    {
        ensure!(config(built)?["architecture"] == arch, "{}: {}", built.name, config(built)?);
    }
    let config = config(&other.operator)?;
    ensure!(config["config"]["Labels"]["org.opencontainers.image.title"] == image::OPERATOR, "{config}");
    ensure!(other.operator.name.ends_with("-arm64") && layers(&other.operator)?[0] == full[0]);
    drop(one_folder);
    Ok(())
}

/// Operator in a container, which is removed on drop.
struct Container {
    podman: Child,
    store: Store,
    name: String,
    log: PathBuf,
}

impl Container {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns a field that podman reports about the container.
    fn inspect(&self, format: &str) -> Result<String> {
        let output = self.store.command("podman").args(["inspect", "--format", format, &self.name]).output()?;
        ensure!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), self.log());
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// Returns a value that the kernel reports about the container's process, by the key of a line of `/proc/<pid>/status`.
    fn status(&self, key: &str) -> Result<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.inspect("{{.State.Pid}}")?))?;
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        Ok(line.context("no such key")?.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.store.command("podman").args(["rm", "--force", "--time", "0", &self.name]).output();
        let _ = self.podman.wait();
    }
}

/// Returns a podman command that runs a container of a pod as a kubelet of OpenShift does, but on the network of this machine.
fn podman_run(store: &Store, pod: &Value, container: &Value, name: &str) -> Result<Command> {
    let mut podman = store.command("podman");
    podman.args(["--runtime", "runc", "--cgroup-manager", "cgroupfs", "run", "--rm", "--name", name]);
    // Without these limits, podman would raise its own, which may be forbidden. The timeout ends containers whose test was killed.
    podman.args(["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1000:1000", "--timeout", "900"]);
    podman.args(["--network", "host", "--pull", "never"]);
    podman.args(["--user", &USER.to_string()]);
    let security = &container["securityContext"];
    ensure!(pod["securityContext"]["runAsNonRoot"] == true && security["readOnlyRootFilesystem"] == true, "{pod}");
    podman.args(["--read-only", "--read-only-tmpfs=false"]);
    ensure!(
        security["capabilities"]["drop"] == json!(["ALL"]) && security["allowPrivilegeEscalation"] == false,
        "{pod}"
    );
    podman.args(["--cap-drop", "all", "--security-opt", "no-new-privileges"]);
    Ok(podman)
}

/// Runs the first container of a Deployment's pod.
fn run(deployment: &Deployment, control_plane: &ControlPlane, store: &Store, account: &Path) -> Result<Container> {
    let pod = serde_json::to_value(&deployment.spec.template.spec)?;
    let container = &pod["containers"][0];
    let name = format!("windows-node-pools-{}", std::process::id());
    let mut podman = podman_run(store, &pod, container, &name)?;
    for mount in container["volumeMounts"].as_array().context("the container has no volumeMounts")? {
        let volume = pod["volumes"]
            .as_array()
            .context("the pod has no volumes")?
            .iter()
            .find(|one| one["name"] == mount["name"]);
        // An optional Secret that is not there is an empty folder.
        let is_empty = |one: &Value| one["emptyDir"].is_object() || one["secret"]["optional"] == true;
        ensure!(volume.is_some_and(is_empty), "{mount}");
        let path = mount["mountPath"].as_str().context("no mountPath")?;
        podman.args(["--mount", &format!("type=tmpfs,destination={path},tmpfs-mode=0777")]);
    }
    let account = account.display();
    podman.args(["--volume", &format!("{account}:/var/run/secrets/kubernetes.io/serviceaccount:ro")]);
    let (host, port) = (control_plane.address().ip().to_string(), control_plane.address().port().to_string());
    let mut env = vec![("KUBERNETES_SERVICE_HOST", host), ("KUBERNETES_SERVICE_PORT", port)];
    for variable in container["env"].as_array().context("the container has no env")? {
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("metadata.namespace") => NAMESPACE.to_owned(),
            Some("metadata.name") => name.clone(),
            _ => variable["value"].as_str().with_context(|| format!("{variable}"))?.to_owned(),
        };
        env.push((variable["name"].as_str().context("the variable has no name")?, value));
    }
    // The default ports may be in use on this machine.
    for variable in [
        "WINDOWS_NODE_POOLS_LISTEN",
        "WINDOWS_NODE_POOLS_METRICS_LISTEN",
        "WINDOWS_NODE_POOLS_ADMIN_LISTEN",
        "WINDOWS_NODE_POOLS_WEBHOOK_LISTEN",
    ] {
        env.push((variable, testbed::free_address()?.to_string()));
    }
    for (name, value) in env {
        podman.args(["--env", &format!("{name}={value}")]);
    }
    podman.arg(container["image"].as_str().context("the container has no image")?);
    podman.args(container["args"].as_array().context("the container has no args")?.iter().filter_map(Value::as_str));
    let log = control_plane.dir().join("container.log");
    let out = File::create(&log)?;
    let podman =
        podman.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).spawn().context("failed to start podman")?;
    Ok(Container { podman, store: store.clone(), name, log })
}

/// Creates a folder for an overlay, from which `../../deploy` leads to the repository's manifests.
fn overlay() -> Result<tempfile::TempDir> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    fs::create_dir_all(&target)?;
    Ok(tempfile::tempdir_in(target)?)
}

/// Runs the init containers that copy the payload in clusters that cannot mount images, and checks the copy.
async fn init_containers_copy(control_plane: &ControlPlane, store: &Store, built: &Images) -> Result<()> {
    let overlay = overlay()?;
    let image = |name: &str, built: &image::Built| {
        let (repository, tag) = built.name.rsplit_once(':').context("the image has no tag")?;
        Ok::<_, anyhow::Error>(json!({"name": name, "newName": repository, "newTag": tag}))
    };
    let kustomization = json!({
        "resources": ["../../deploy/kubernetes"], "components": ["../../deploy/components/payload-init"],
        "images": [image(image::OPERATOR, &built.slim)?, image(image::PAYLOAD, &built.payload)?],
    });
    fs::write(overlay.path().join("kustomization.yaml"), kustomization.to_string())?;
    let rendered =
        kubectl(control_plane, &["kustomize", overlay.path().to_str().context("path is not UTF-8")?]).await?;
    let objects = serde_yaml::Deserializer::from_str(&rendered)
        .map(<Value as serde::Deserialize>::deserialize)
        .collect::<Result<Vec<_>, _>>()?;
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").context("there is no Deployment")?;
    let pod = &deployment["spec"]["template"]["spec"];

    let volumes = tempfile::tempdir()?;
    let volume = |mount: &Value| -> Result<PathBuf> {
        let path = volumes.path().join(mount["name"].as_str().context("the mount has no name")?);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        Ok(path)
    };
    let texts = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    for container in pod["initContainers"].as_array().context("the pod has no init containers")? {
        let name = format!("windows-node-pools-init-{}", std::process::id());
        let mut podman = podman_run(store, pod, container, &name)?;
        for mount in container["volumeMounts"].as_array().context("the container has no volumeMounts")? {
            let mode = if mount["readOnly"] == true { "ro" } else { "rw" };
            let to = mount["mountPath"].as_str().context("no mountPath")?;
            podman.args(["--volume", &format!("{}:{to}:{mode}", volume(mount)?.display())]);
        }
        if container["command"].is_array() {
            podman.args(["--entrypoint", &container["command"].to_string()]);
        }
        podman.arg(container["image"].as_str().context("the container has no image")?).args(texts(&container["args"]));
        let output = podman.output().context("failed to start podman")?;
        ensure!(output.status.success(), "{container}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let variables = pod["containers"][0]["env"].as_array().context("the container has no env")?;
    let directory =
        variables.iter().find(|one| one["name"] == "PAYLOAD_DIR").context("PAYLOAD_DIR is not set")?["value"].as_str();
    let mounts = pod["containers"][0]["volumeMounts"].as_array().context("the container has no volumeMounts")?;
    let mount = mounts.iter().find(|mount| mount["name"] == "payload").context("the payload is not mounted")?;
    let inside =
        directory.zip(mount["mountPath"].as_str()).and_then(|(directory, mount)| directory.strip_prefix(mount));
    let copy = Payload::open(
        &volume(mount)?.join(inside.context("PAYLOAD_DIR is not in the mounted volume")?.trim_start_matches('/')),
    )?;
    copy.verify_all()?;
    ensure!(copy.manifests().count() == 1);
    Ok(())
}

/// Gathers as `oc adm must-gather` does: bash starts the command, and tar sends what it wrote.
fn must_gather(control_plane: &ControlPlane, store: &Store, image: &str, account: &Path) -> Result<()> {
    let mut podman = store.command("podman");
    podman.args(["--runtime", "runc", "--cgroup-manager", "cgroupfs", "run", "--rm", "--timeout", "300"]);
    podman.args([
        "--ulimit",
        "nofile=4096:4096",
        "--ulimit",
        "nproc=1000:1000",
        "--network",
        "host",
        "--pull",
        "never",
    ]);
    podman.args(["--read-only", "--read-only-tmpfs=false", "--cap-drop", "all"]);
    podman.args(["--mount", "type=tmpfs,destination=/must-gather,tmpfs-mode=0777"]);
    podman.args(["--volume", &format!("{}:/var/run/secrets/kubernetes.io/serviceaccount:ro", account.display())]);
    let address = control_plane.address();
    podman.args(["--env", &format!("KUBERNETES_SERVICE_HOST={}", address.ip())]);
    podman.args(["--env", &format!("KUBERNETES_SERVICE_PORT={}", address.port()), "--env", "MUST_GATHER_SINCE=1h0m0s"]);
    let script =
        "/usr/bin/gather >&2; sync && sleep 0 && df -P /must-gather | awk 'NR==2' >&2; tar -C /must-gather -cf - .";
    let output = podman.args([image, "/bin/bash", "-c", script]).output().context("failed to start podman")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut tar = tar::Archive::new(output.stdout.as_slice());
    let names = tar.entries()?.map(|entry| Ok(entry?.path()?.display().to_string())).collect::<Result<Vec<_>>>()?;
    for name in ["version", "windowsnodepools/image.yaml", "nodes/image-1.yaml"] {
        ensure!(
            names.iter().any(|path| path.ends_with(name)),
            "{name}: {names:?} {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Applies `deploy/kubernetes` as the guide says: by an overlay with the image and the API server.
async fn deploy(control_plane: &ControlPlane, image: &str) -> Result<()> {
    let overlay = overlay()?;
    let (name, tag) = image.rsplit_once(':').context("the image has no tag")?;
    let api_server = json!([{
        "op": "add", "path": "/spec/template/spec/containers/0/env/-",
        "value": {"name": "WINDOWS_NODE_POOLS_API_SERVER", "value": control_plane.server()},
    }]);
    let kustomization = json!({
        "resources": ["../../deploy/kubernetes"],
        "images": [{"name": "windows-node-pools", "newName": name, "newTag": tag}],
        "patches": [{"target": {"kind": "Deployment"}, "patch": api_server.to_string()}],
    });
    fs::write(overlay.path().join("kustomization.yaml"), kustomization.to_string())?;
    let overlay = overlay.path().to_str().context("path is not UTF-8")?;
    kubectl(control_plane, &["apply", "--server-side", "-k", overlay]).await.map(drop)
}

/// Creates a ServiceAccount with all rights, as `oc adm must-gather` does.
async fn administrator(control_plane: &ControlPlane, name: &str) -> Result<()> {
    let user = format!("{NAMESPACE}:{name}");
    kubectl(control_plane, &["-n", NAMESPACE, "create", "serviceaccount", name]).await?;
    let binding = ["create", "clusterrolebinding", name, "--clusterrole", "cluster-admin", "--serviceaccount", &user];
    kubectl(control_plane, &binding).await.map(drop)
}

/// Writes the ServiceAccount files that a pod would have.
async fn account(control_plane: &ControlPlane, folder: &Path, name: &str) -> Result<()> {
    let token = kubectl(control_plane, &["-n", NAMESPACE, "create", "token", name]).await?;
    fs::create_dir_all(folder)?;
    fs::write(folder.join("token"), token.trim())?;
    fs::write(folder.join("ca.crt"), control_plane.ca_pem())?;
    fs::write(folder.join("namespace"), NAMESPACE)?;
    Ok(())
}

/// Checks the version resource of `wicd.exe`, by which application control identifies a program, and its manifest, from which Windows reads the
/// versions of Windows that the program supports.
#[test]
fn wicd_has_a_version_and_a_manifest() -> Result<()> {
    let exe = fs::read(testbed::binaries::wicd_exe()?)?;
    let has = |part: &[u8]| exe.windows(part.len()).any(|window| window == part);
    for text in ["OriginalFilename", "wicd.exe", "ProductVersion", env!("CARGO_PKG_VERSION")] {
        let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        ensure!(has(&wide), "no {text}");
    }
    ensure!(has(b"requestedExecutionLevel") && has(b"supportedOS"), "no manifest");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_join_with_the_shipped_image_and_manifests() -> Result<()> {
    if !can(&["buildah", "podman", "runc", "musl-gcc"])? {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let store = Store::new(&folder.path().join("store"))?;
    let building = {
        let (store, folder) = (store.clone(), folder.path().to_owned());
        tokio::task::spawn_blocking(move || {
            let [operator, client] = [image::OPERATOR, image::CLIENT]
                .map(|name| Compiler::new()?.program(name, Arch::Amd64, Profile::Test, None));
            let files = Files { client: client?, wicd: testbed::binaries::wicd_exe()?, ..files(&folder, operator?)? };
            image::build(&store, &files, &folder.join("out"))
        })
    };
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    let client = control_plane.client().await?;
    let built = building.await??;

    init_containers_copy(&control_plane, &store, &built).await?;
    deploy(&control_plane, &built.operator.name).await?;
    let key = deployment::new_key()?;
    deployment::store_key(&control_plane, &key).await?;
    let deployment: Deployment = Api::namespaced(client.clone(), NAMESPACE).get("windows-node-pools").await?;
    let pod = deployment.spec.template.spec.as_ref().context("the Deployment has no Pod spec")?;
    let files = folder.path().join("account");
    account(&control_plane, &files, pod.service_account_name.as_deref().context("the Pod has no ServiceAccount")?)
        .await?;

    let options = SimOptions { authorized_keys: vec![key.public_key().clone()], ..SimOptions::default() };
    let sim = Sim::start(client.clone(), options)?;
    let hosts = [sim.host(HostOptions::named("image-1")).await?, sim.host(HostOptions::named("image-2")).await?];
    let container = run(&deployment, &control_plane, &store, &files)?;
    let pools: Api<api::WindowsNodePool> = Api::all(client.clone());
    pools.create(&kube::api::PostParams::default(), &api::WindowsNodePool::new("image", spec(&hosts))).await?;
    within(LIMIT, "all nodes are Ready", || async {
        pools.get("image").await.is_ok_and(|pool| is_ready(&pool) && pool.status.is_some_and(|s| s.ready_nodes == 2))
    })
    .await
    .with_context(|| container.log())?;

    match &built.must_gather {
        Some(image) => {
            let gatherer = folder.path().join("gatherer");
            administrator(&control_plane, "must-gather").await?;
            account(&control_plane, &gatherer, "must-gather").await?;
            must_gather(&control_plane, &store, &image.name, &gatherer)?;
        }
        None => testbed::skip("no image for support data; `cargo xtask setup` installs what is missing")?,
    }

    ensure!(container.status("Uid")?.split(' ').all(|id| id == USER.to_string()), "{}", container.status("Uid")?);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        ensure!(container.status(set)? == "0000000000000000", "{set}: {}", container.status(set)?);
    }
    ensure!(container.status("NoNewPrivs")? == "1");
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", container.inspect("{{.State.Pid}}")?))?;
    let root = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|fields| fields[4] == "/");
    ensure!(root.context("the root is not mounted")?[5].split(',').any(|option| option == "ro"), "{mounts}");
    Ok(())
}
