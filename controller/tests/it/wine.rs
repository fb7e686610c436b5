//! Path from pool to node on Wine hosts, with the real operator, API server, OpenSSH, `wicd.exe` and kubelet: only Windows itself is replaced.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use api::{
    WindowsInstance, WindowsNodePool,
    conditions::kind,
    host::{WICD_SERVICE, path as host_path},
    names::key,
};
use k8s_openapi::{
    api::{certificates::v1::CertificateSigningRequest, coordination::v1::Lease, core::v1::Node},
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, ObjectMeta},
};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, ControlPlaneOptions, Operator, OperatorOptions,
    binaries::{Platform, host_kubelet, wicd_exe},
    deployment::{self, OPERATOR, within},
    payload::{self, Content, Entry},
    wine::{HostNetwork, Process, Shell, WineHost, WineOptions, available},
};

const POOL: &str = "factory";
/// Proxy variable: its name, its value for the operator's services, and the owner's value on one host.
const VARIABLE: (&str, &str, &str) = ("NO_PROXY", "198.18.0.0/15", "owner.example");
/// Files of the host's owner, below `C:\`.
const OWNERS_FILES: [&str; 3] = ["Temp/mine.txt", "var/log/mine.log", "k/mine.txt"];
/// Time limit of each wait.
const PATIENCE: Duration = deployment::LIMIT;

/// Control plane, operator, and two Wine hosts.
pub(crate) struct World {
    pub(crate) hosts: [WineHost; 2],
    /// Registry of the first host before it joined.
    registry: BTreeSet<String>,
    operator: Option<Operator>,
    options: OperatorOptions,
    /// Template of the pool.
    template: Value,
    pub(crate) client: Client,
    pub(crate) control_plane: ControlPlane,
    files: tempfile::TempDir,
}

impl World {
    /// Creates a world with the operator, and two hosts in no pool.
    pub(crate) async fn new() -> Result<Self> {
        let files = tempfile::tempdir()?;
        let control_plane = ControlPlane::start(ControlPlaneOptions {
            network: Some(Arc::new(HostNetwork::create()?)),
            audit: true,
            ..ControlPlaneOptions::default()
        })
        .await?;
        deployment::install(&control_plane).await?;
        let key = deployment::new_key()?;
        deployment::store_key(&control_plane, &key).await?;
        let options = options(&control_plane, files.path())?;
        let plain = WineHost::start(&control_plane, WineOptions::new("wine-a"));
        let hostile = WineOptions { shell: Shell::Hostile, build: 26100, ..WineOptions::new("wine-b") };
        let hostile = WineHost::start(&control_plane, hostile);
        let (plain, hostile) = tokio::try_join!(plain, hostile)?;
        let hosts = [plain, hostile];
        for host in &hosts {
            host.authorize(&key.public_key().to_openssh()?)?;
            for file in OWNERS_FILES {
                let file = host.drive_c().join(file);
                fs::create_dir_all(file.parent().context("the file has no folder")?)?;
                fs::write(file, "mine")?;
            }
        }
        cmd(&hosts[0], &format!(r#"reg add "{ENVIRONMENT}" /v {} /d {}"#, VARIABLE.0, VARIABLE.2)).await?;
        let registry = registry(&hosts[0]).await?;
        let operator = Operator::start(&control_plane, &options)?;
        operator.leads().await?;
        let client = control_plane.client().await?;
        Ok(Self {
            hosts,
            registry,
            operator: Some(operator),
            options,
            template: json!({}),
            client,
            control_plane,
            files,
        })
    }

    /// Runs `kubectl apply` for a pool of these hosts, as a user does, then `kubectl wait`.
    async fn pool(&self, hosts: &[&WineHost]) -> Result<()> {
        self.apply(hosts).await?;
        let (pool, limit) = (format!("wnp/{POOL}"), format!("--timeout={}s", PATIENCE.as_secs()));
        self.kubectl(&["wait", "--for=condition=Ready", &pool, &limit]).await.map(drop)
    }

    async fn apply(&self, hosts: &[&WineHost]) -> Result<()> {
        let list = hosts.iter().map(|h| json!({"name": h.name(), "address": h.address().to_string()}));
        let pool = json!({
            "apiVersion": format!("{}/{}", api::names::GROUP, api::names::VERSION),
            "kind": "WindowsNodePool",
            "metadata": {"name": POOL},
            "spec": {"inventory": {"hosts": list.collect::<Vec<_>>()}, "template": self.template},
        });
        let file = self.files.path().join("pool.yaml");
        fs::write(&file, serde_yaml::to_string(&pool)?)?;
        self.kubectl(&["apply", "-f", file.to_str().context("path is not UTF-8")?]).await.map(drop)
    }

    /// Waits until all nodes follow a version other than `old`, and returns the version.
    async fn updated_from(&self, old: &str) -> Result<String> {
        let pools: Api<WindowsNodePool> = Api::all(self.client.clone());
        let version = async || {
            let pool = pools.get(POOL).await?;
            let status = pool.status.unwrap_or_default();
            let updated = status.observed_generation == pool.metadata.generation
                && api::conditions::is_true(&status.conditions, kind::UPDATED)
                && api::conditions::is_true(&status.conditions, kind::READY);
            Ok::<_, anyhow::Error>(status.desired_version.filter(|v| updated && v != old))
        };
        self.wait("all nodes are updated", async || Ok(version().await?.is_some())).await?;
        version().await?.context("the update was undone")
    }

    async fn kubectl(&self, args: &[&str]) -> Result<String> {
        let output = self.control_plane.kubectl(args).await?;
        ensure!(output.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    async fn node(&self, host: &WineHost) -> Result<Node> {
        Ok(Api::all(self.client.clone()).get(host.name()).await?)
    }

    async fn wait<F: Future<Output = Result<bool>>>(&self, what: &str, ask: impl Fn() -> F) -> Result<()> {
        within(PATIENCE, what, || async { ask().await.unwrap_or(false) }).await
    }

    /// Returns diagnostics for a failure.
    pub(crate) async fn show(&self) -> String {
        let mut text = Vec::new();
        for args in [["get", "wnp,wi", "-o", "wide"], ["get", "nodes", "-o", "wide"], ["get", "csr", "-o", "wide"]] {
            text.push(self.kubectl(&args).await.unwrap_or_default());
        }
        if let Some(operator) = &self.operator {
            text.push(format!("--- operator\n{}", tail(&operator.log(), 80)));
        }
        for host in &self.hosts {
            text.push(format!("--- {}: {:?}", host.name(), host.services().await));
            for log in ["wicd/windows-instance-config-daemon.exe.INFO", "kubelet/kubelet.log"] {
                let log = host.drive_c().join("var/log").join(log);
                text.push(tail(&fs::read_to_string(log).unwrap_or_default(), 60));
            }
        }
        text.join("\n")
    }
}

pub(crate) const ENVIRONMENT: &str = r"HKLM\System\CurrentControlSet\Control\Session Manager\Environment";

fn options(control_plane: &ControlPlane, dir: &Path) -> Result<OperatorOptions> {
    let more = [
        ("--no-proxy", VARIABLE.1),
        // Nothing answers at this address. kubelet heeds `--no-proxy`, and wicd never uses a proxy for the API server.
        ("--https-proxy", "http://proxy.example:3128"),
    ];
    operator_options(control_plane, dir, Vec::new(), &more)
}

/// Returns options of an operator for Wine hosts, with a payload of kubelet and `others`.
pub(crate) fn operator_options(
    control_plane: &ControlPlane,
    dir: &Path,
    others: Vec<Entry>,
    more: &[(&str, &str)],
) -> Result<OperatorOptions> {
    let kubelet =
        Entry::with(r"C:\k\kubelet.exe", Content::File(host_kubelet(Platform::Windows)?)).services(&["kubelet"]);
    let entries: Vec<Entry> = others.into_iter().chain([kubelet]).collect();
    payload::write(&dir.join("payload"), &entries, payload::LEVEL_FAST)?;
    // Wine takes a rooted path without a drive for a Linux path.
    let patch = json!({"podLogsDir": r"C:\var\log\pods"});
    let patch_file = dir.join("kubelet.json").display().to_string();
    fs::write(&patch_file, patch.to_string())?;
    let server = control_plane.server();
    let args = [("--api-server", server.as_str()), ("--kubelet-config-patch", &patch_file), ("--backoff-base", "1s")];
    Ok(OperatorOptions {
        program: PathBuf::from(env!("CARGO_BIN_EXE_windows-node-pools")),
        payload: dir.join("payload"),
        wicd: wicd_exe()?,
        args: args.iter().chain(more).flat_map(|(flag, value)| [(*flag).to_owned(), (*value).to_owned()]).collect(),
    })
}

/// Parts of registry keys that a start of Wine changes, or that Windows has and Wine lacks.
const NOT_OURS: [&str; 7] = [
    r"\Software\Testbed]",
    r"\Control\CCG]",
    r"\Control\CCG\COMClasses]",
    r"\Control\Class\",
    r"\Control\Video\",
    r"\Control\ServiceCurrent]",
    r"\Memory Management\PrefetchParameters]",
];

/// Returns the keys and values below `HKLM` in the registry of a host, a line each, without the keys in [`NOT_OURS`].
async fn registry(host: &WineHost) -> Result<BTreeSet<String>> {
    cmd(host, r"reg export HKLM C:\registry.reg /y").await?;
    let bytes = fs::read(host.drive_c().join("registry.reg"))?;
    let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    // Long values continue on the next line.
    let text = String::from_utf16(&units)?.replace("\\\r\n", "");
    let mut key = "";
    let mut lines = BTreeSet::new();
    for line in text.lines().skip(1).filter(|line| !line.is_empty()) {
        if line.starts_with('[') {
            key = line;
        }
        if !NOT_OURS.iter().any(|part| key.contains(part)) {
            lines.insert(format!("{key} {line}"));
        }
    }
    Ok(lines)
}

pub(crate) async fn cmd(host: &WineHost, line: &str) -> Result<String> {
    let output = host.cmd(line).await?;
    ensure!(output.status.success(), "{line} on {}: {output:?}", host.name());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

async fn is_running(host: &WineHost, service: &str) -> Result<bool> {
    Ok(host.services().await?.iter().any(|s| s.name == service && s.state == "RUNNING"))
}

async fn process(host: &WineHost, part: &str) -> Result<Option<Process>> {
    Ok(host.processes().await?.into_iter().find(|p| p.command.contains(part)))
}

#[tokio::test(flavor = "multi_thread")]
async fn wine_hosts_become_nodes_and_leave() -> Result<()> {
    if let Err(reason) = available() {
        return testbed::skip(&reason);
    }
    let mut world = World::new().await?;
    let result = story(&mut world).await;
    if let Err(error) = result {
        bail!("{error:#}\n{}", world.show().await);
    }
    Ok(())
}

async fn story(world: &mut World) -> Result<()> {
    let clock = std::time::Instant::now();
    let done = |what: &str| println!("{:>6.1} s  {what}", clock.elapsed().as_secs_f32());
    let [a, b] = &world.hosts;
    world.pool(&[a, b]).await.context("both hosts become nodes")?;
    done("two nodes are Ready");
    for host in [a, b] {
        joined(world, host).await.with_context(|| format!("{} joined", host.name()))?;
    }
    requests_were_approved_by_the_operator(world).await?;
    done("both joined as they should");
    services_are_kept(world, b).await.context("services are kept")?;
    done("services are kept");
    changes(world).await.context("both nodes change")?;
    done("both nodes have changed twice");
    plugin(world).await.context("both nodes get a plugin")?;
    done("both nodes have a plugin of Container Credential Guard");
    // The next step runs without the operator.
    if let Some(mut operator) = world.operator.take() {
        operator.kill();
    }
    let [a, b] = &world.hosts;
    comes_up_without_a_cluster(world, b).await.context("a host comes up without a cluster")?;
    done("a host came up without a cluster");
    let operator = Operator::start(&world.control_plane, &world.options)?;
    operator.leads().await?;
    world.operator = Some(operator);
    leaves(world, a, b).await.context("one host leaves")?;
    done("one host is gone");
    Ok(())
}

async fn joined(world: &World, host: &WineHost) -> Result<()> {
    for service in [WICD_SERVICE, "kubelet"] {
        ensure!(is_running(host, service).await?, "{service} does not run: {:?}", host.services().await?);
    }
    let node = world.node(host).await?;
    ensure!(is_ready(&node), "the Node is not Ready");
    let annotations = node.annotations();
    ensure!(annotations.get(key::VERSION).is_some(), "no version");
    assert_eq!(annotations.get(key::VERSION), annotations.get(key::DESIRED_VERSION));
    assert!(!annotations.contains_key(key::REBOOT_REQUIRED));
    let by_wicd = node.managed_fields().iter().filter(|entry| {
        let fields =
            entry.fields_v1.as_ref().map(|f| &f.0["f:metadata"]["f:annotations"][format!("f:{}", key::VERSION)]);
        fields.is_some_and(|f| !f.is_null())
    });
    let writers: Vec<_> = by_wicd.filter_map(|entry| entry.manager.clone()).collect();
    assert_eq!(writers, ["wicd"], "writers of the version");
    assert_eq!(node.labels().get("kubernetes.io/os").map(String::as_str), Some("windows"));
    assert_eq!(node.labels().get(key::POOL).map(String::as_str), Some(POOL));
    // The join has enabled the feature Containers, which takes one restart.
    assert_eq!(host.boots(), 2);
    // The proxy is set for the services only: the variables of the machine are the owner's.
    let service = r"HKLM\SYSTEM\CurrentControlSet\Services\kubelet";
    let variables = cmd(host, &format!("reg query {service} /v Environment")).await?;
    ensure!(variables.contains(&format!("{}={}", VARIABLE.0, VARIABLE.1)), "{variables}");
    // Services that act in the Node's name use kubelet's certificate, which must exist from the start.
    let stored = fs::read_to_string(host.drive_c().join("var/lib/kubelet/pki/kubelet-client-current.pem"))?;
    ensure!(
        stored.contains("BEGIN CERTIFICATE") && stored.contains("PRIVATE KEY"),
        "kubelet has stored no certificate"
    );
    Ok(())
}

/// Checks in the API server's audit log, instead of a condition's claim, that the operator approved all requests.
async fn requests_were_approved_by_the_operator(world: &World) -> Result<()> {
    let log = fs::read_to_string(world.control_plane.audit_log().context("there is no audit log")?)?;
    let mut approvers = BTreeMap::new();
    for line in log.lines() {
        let entry: Value = serde_json::from_str(line)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let is_approval = entry["objectRef"]["subresource"] == "approval" && entry["verb"] != "get";
        if is_approval && entry["responseStatus"]["code"] == 200 {
            approvers.insert(text(&entry["objectRef"]["name"]), text(&entry["user"]["username"]));
        }
    }
    let requests: Api<CertificateSigningRequest> = Api::all(world.client.clone());
    let requests = requests.list(&ListParams::default()).await?.items;
    for host in &world.hosts {
        for signer in ["kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"] {
            let subject = format!("system:node:{}", host.name());
            let serving = requests.iter().any(|r| {
                r.spec.signer_name == signer
                    && String::from_utf8_lossy(&pem_body(&r.spec.request.0)).contains(&subject)
                    && r.status.as_ref().is_some_and(|s| s.certificate.is_some())
            });
            ensure!(serving, "{subject} has no certificate of {signer}");
        }
    }
    for request in &requests {
        let approver = approvers.get(&request.name_any()).map(String::as_str);
        assert_eq!(approver, Some(OPERATOR), "approver of {}", request.name_any());
    }
    Ok(())
}

/// Returns the DER of a PEM text; names in the DER are plain text.
fn pem_body(pem: &[u8]) -> Vec<u8> {
    x509_parser::pem::parse_x509_pem(pem).map(|(_, pem)| pem.contents).unwrap_or_default()
}

async fn services_are_kept(world: &World, host: &WineHost) -> Result<()> {
    // A user stops kubelet: wicd restarts it.
    cmd(host, "sc stop kubelet").await?;
    world.wait("kubelet has stopped", async || Ok(process(host, "kubelet.exe").await?.is_none())).await?;
    // Wine may report RUNNING for a while after the process has ended, so both are checked.
    let again = async || Ok(is_running(host, "kubelet").await? && process(host, "kubelet.exe").await?.is_some());
    world.wait("wicd starts kubelet again", again).await?;
    let kubelet = process(host, "kubelet.exe").await?.context("no kubelet")?;
    // wicd stops on request, leaves its services running, and continues after a start.
    cmd(host, &format!("sc stop {WICD_SERVICE}")).await?;
    world
        .wait("the process of wicd has ended", async || Ok(process(host, "wicd.exe service").await?.is_none()))
        .await?;
    assert_eq!(process(host, "kubelet.exe").await?, Some(kubelet));
    cmd(host, &format!("sc start {WICD_SERVICE}")).await?;
    world.wait("wicd runs again", async || is_running(host, WICD_SERVICE).await).await
}

/// Makes two changes with real parts: a setting, for which kubelet is restarted, and another kubelet.exe, for which the node is drained and a
/// file in use is replaced.
async fn changes(world: &mut World) -> Result<()> {
    let [a, b] = &world.hosts;
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    let first = pools.get(POOL).await?.status.and_then(|s| s.desired_version).context("no version")?;
    let before = process(a, "kubelet.exe").await?.context("no kubelet")?;
    world.template = json!({"spec": {"kubelet": {"maxPods": 77}}});
    world.apply(&[a, b]).await?;
    let second = world.updated_from(&first).await.context("update for a changed setting")?;
    ensure!(process(a, "kubelet.exe").await?.context("no kubelet")? != before, "kubelet was not restarted");
    for host in [a, b] {
        let node = world.node(host).await?;
        let pods = node.status.as_ref().and_then(|s| s.capacity.as_ref()?.get("pods").cloned());
        ensure!(pods.is_some_and(|q| q.0 == "77"), "the Node allows another number of pods");
        ensure!(is_ready(&node) && !cordoned(&node), "the Node is not Ready, or is cordoned");
    }

    // The new kubelet is the same program for Windows, with another hash.
    let exe = world.files.path().join("kubelet.exe");
    let mut bytes = fs::read(host_kubelet(Platform::Windows)?)?;
    bytes.extend(b"changed");
    fs::write(&exe, &bytes)?;
    let kubelet = Entry::with(r"C:\k\kubelet.exe", Content::File(exe)).services(&["kubelet"]);
    world.options.payload = world.files.path().join("payload-2");
    let library = Entry::new(r"C:\windows\wicd-ccg\plugin.dll", *b"library");
    payload::write(&world.options.payload, &[kubelet, library], payload::LEVEL_FAST)?;
    if let Some(mut operator) = world.operator.take() {
        operator.kill();
    }
    let operator = Operator::start(&world.control_plane, &world.options)?;
    operator.leads().await?;
    world.operator = Some(operator);
    world.updated_from(&second).await.context("update for another kubelet.exe")?;
    for host in &world.hosts {
        ensure!(!host.drive_c().join("windows/wicd-ccg").exists(), "a host has a plugin that its pool does not name");
        let placed = fs::metadata(host.drive_c().join("k/kubelet.exe"))?.len();
        ensure!(placed == bytes.len() as u64, "kubelet.exe was not replaced");
        let node = world.node(host).await?;
        ensure!(is_ready(&node) && !cordoned(&node), "the Node is not Ready, or is cordoned");
        ensure!(!node.annotations().contains_key(key::CORDONED_BY), "a cordon is left");
        assert_eq!(host.boots(), 2, "{} was restarted", host.name());
    }
    let log = world.operator.as_ref().map(Operator::log).unwrap_or_default();
    ensure!(log.contains("evicting pods"), "nothing was drained for another kubelet");
    Ok(())
}

/// CLSID of the gMSA plugin.
const PLUGIN: &str = "{0A1B2C3D-0000-4000-8000-00000000000F}";
/// Returns the registry keys of the plugin.
fn plugin_keys() -> [String; 4] {
    [
        format!(r"HKLM\Software\Classes\AppID\{PLUGIN}"),
        format!(r"HKLM\Software\Classes\CLSID\{PLUGIN}"),
        format!(r"HKLM\Software\Classes\CLSID\{PLUGIN}\InprocServer32"),
        format!(r"HKLM\System\CurrentControlSet\Control\CCG\COMClasses\{PLUGIN}"),
    ]
}

/// Adds a plugin of Container Credential Guard. One host has a registration of another installer, which stays until a user removes it.
async fn plugin(world: &mut World) -> Result<()> {
    let [a, b] = &world.hosts;
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    let before = pools.get(POOL).await?.status.and_then(|s| s.desired_version).context("no version")?;
    let kubelets = (process(a, "kubelet.exe").await?, process(b, "kubelet.exe").await?);
    let [_, _, theirs, _] = plugin_keys();
    cmd(b, &format!(r"reg add {theirs} /ve /d C:\theirs.dll")).await?;
    world.template["spec"]["gmsa"] = json!({"plugin": {"file": "plugin.dll", "clsid": PLUGIN.to_ascii_lowercase()}});
    world.apply(&[a, b]).await?;
    let instances: Api<WindowsInstance> = Api::all(world.client.clone());
    let says = async || {
        let status = instances.get(b.name()).await?.status.unwrap_or_default();
        Ok(status.conditions.iter().any(|c| c.message.contains("another installer registered the plugin")))
    };
    world.wait("the foreign registration is reported", says).await?;
    let value = cmd(b, &format!("reg query {theirs} /ve")).await?;
    ensure!(value.contains(r"C:\theirs.dll"), "{value}");
    ensure!(!cordoned(&world.node(b).await?), "the node was drained for a plugin that the host refuses");
    let list = b.cmd(&format!("reg query {}", plugin_keys()[3])).await?;
    ensure!(!list.status.success(), "it was registered beside another registration");
    cmd(b, &format!(r"reg delete HKLM\Software\Classes\CLSID\{PLUGIN} /f")).await?;
    world.updated_from(&before).await.context("update for a plugin")?;
    for host in [a, b] {
        ensure!(
            fs::read(host.drive_c().join("windows/wicd-ccg/plugin.dll"))? == b"library",
            "the library is not there"
        );
        let value = cmd(host, &format!("reg query {theirs} /ve")).await?;
        ensure!(value.contains(r"C:\windows\wicd-ccg\plugin.dll"), "{value}");
        for key in plugin_keys() {
            cmd(host, &format!("reg query {key}")).await?;
        }
        let rights = cmd(host, &format!("reg query {} /v LaunchPermission", plugin_keys()[0])).await?;
        ensure!(rights.contains("REG_BINARY") && rights.contains("01000480"), "{rights}");
    }
    let after = (process(a, "kubelet.exe").await?, process(b, "kubelet.exe").await?);
    ensure!(after == kubelets, "a plugin restarted kubelet");
    Ok(())
}

fn cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true)
}

async fn comes_up_without_a_cluster(world: &World, host: &WineHost) -> Result<()> {
    world.control_plane.stop_apiserver();
    host.reboot().await?;
    world.wait("wicd started kubelet", async || is_running(host, "kubelet").await).await?;
    let started = Timestamp::now();
    world.control_plane.restart_apiserver().await?;
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "kube-node-lease");
    world
        .wait("the Node is Ready again", async || {
            let lease = leases.get(host.name()).await?;
            let renewed = lease.spec.and_then(|spec| spec.renew_time);
            Ok(renewed.is_some_and(|time| time.0 > started) && is_ready(&world.node(host).await?))
        })
        .await
}

async fn leaves(world: &World, leaver: &WineHost, stays: &WineHost) -> Result<()> {
    let before = (stays.processes().await?, uid(&world.node(stays).await?.metadata));
    world.pool(&[stays]).await?;
    let gone = async || Ok(!world.kubectl(&["get", "wi,nodes", "-o", "name"]).await?.contains(leaver.name()));
    world.wait("instance and Node are gone", gone).await?;
    let names: Vec<String> = leaver.services().await?.into_iter().map(|s| s.name).collect();
    ensure!(!names.iter().any(|name| [WICD_SERVICE, "kubelet"].contains(&name.as_str())), "{names:?}");
    let registry = registry(leaver).await?;
    let changed: Vec<&String> = world.registry.symmetric_difference(&registry).collect();
    ensure!(changed.is_empty(), "the registry is another one than before the host joined: {changed:#?}");
    let ours: Vec<Process> =
        leaver.processes().await?.into_iter().filter(|p| p.command.starts_with(host_path::ROOT)).collect();
    ensure!(ours.is_empty(), "{ours:?}");
    for file in OWNERS_FILES {
        assert_eq!(fs::read_to_string(leaver.drive_c().join(file))?, "mine", "{file}");
    }
    let left = |folder: &str| -> Result<Vec<String>> {
        let entries = fs::read_dir(leaver.drive_c().join(folder))?.collect::<Result<Vec<_>, _>>()?;
        Ok(entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    };
    for (folder, expected) in [("k", "mine.txt"), ("var/log", "mine.log"), ("var", "log")] {
        let left = left(folder)?;
        ensure!(left == [expected], "left in {folder}: {left:?}");
    }
    // The other host is not affected.
    let node = world.node(stays).await?;
    assert_eq!((stays.processes().await?, uid(&node.metadata)), before);
    ensure!(is_ready(&node), "the other Node is not Ready");
    Ok(())
}

fn uid(metadata: &ObjectMeta) -> Option<String> {
    metadata.uid.clone()
}
