//! Tests a node of an OpenShift cluster on Azure, in the hybrid overlay of OVN-Kubernetes, from its join to its removal on a Wine host. In
//! addition to kubelet, the node has the services of such a cluster. Each of them needs the command line, kubeconfig and HNS objects that the
//! operator has prepared. The test also changes each fact of the cluster while the node runs.
//!
//! The test does OpenShift's part: it approves the certificate of hybrid-overlay-node, gives the Node its part of the pod network, and grants
//! rights to nodes.

mod changes;
mod facts;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use api::{
    host::{WICD_SERVICE, path as host_path},
    names::key,
};
use k8s_openapi::api::{certificates::v1::CertificateSigningRequest, core::v1::Node, events::v1::Event};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, ControlPlaneOptions, Operator,
    deployment::{self, within},
    payload,
    wine::{HostNetwork, Service, WineHost, WineOptions, available},
};

use crate::wine::{ENVIRONMENT, cmd, is_ready, operator_options, tail};

const POOL: &str = "overlay";
const NODE: &str = "wine-o";
/// Network that hybrid-overlay-node makes.
const NETWORK: &str = "OVNKubernetesHybridOverlayNetwork";
/// Name of the HNS endpoint that is made for kube-proxy.
const ENDPOINT: &str = "VIPEndpoint";
/// Subnet of the Node in the pod network.
const SUBNET: &str = "10.132.7.0/24";
/// Services, each with a part of its processes' command lines.
const SERVICES: [(&str, &str); 6] = [
    (WICD_SERVICE, "wicd.exe service"),
    ("containerd", r"C:\k\containerd\containerd.exe"),
    ("kubelet", r"C:\k\kubelet.exe"),
    ("hybrid-overlay-node", r"C:\k\hybrid-overlay-node.exe"),
    ("kube-proxy", r"C:\k\kube-proxy.exe"),
    ("cloud-node-manager", r"C:\k\azure-cloud-node-manager.exe"),
];
/// Services that kube-log-runner runs.
const WITH_LOG_RUNNER: [&str; 2] = ["kubelet", "kube-proxy"];
/// Taint of a Node that a cloud has not initialised.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Variables that OpenShift sets on the machines of a cluster with a proxy. Nothing answers at the proxy's address.
const PROXY: [(&str, &str); 3] = [
    ("HTTP_PROXY", "http://proxy.example:3128"),
    ("HTTPS_PROXY", "http://proxy.example:3128"),
    ("NO_PROXY", ".cluster.local,.svc,10.132.0.0/14,10.96.0.0/16,127.0.0.1,198.18.0.0/15,localhost"),
];
/// Annotation that hybrid-overlay-node writes once it has made the network.
const MAC: &str = "k8s.ovn.org/hybrid-overlay-distributed-router-gateway-mac";
/// Time limit of each wait.
const PATIENCE: Duration = deployment::LIMIT;

struct World {
    host: WineHost,
    operator: Operator,
    client: Client,
    control_plane: ControlPlane,
    files: tempfile::TempDir,
    /// Certificates that the machines of the cluster trust: the first one, and later the second one.
    trusted: [rcgen::Certificate; 2],
}

impl World {
    async fn new() -> Result<Self> {
        let files = tempfile::tempdir()?;
        let network = Some(Arc::new(HostNetwork::create()?));
        let control_plane = ControlPlane::start(ControlPlaneOptions { network, ..Default::default() }).await?;
        deployment::install(&control_plane).await?;
        let key = deployment::new_key()?;
        deployment::store_key(&control_plane, &key).await?;
        deployment::install_openshift(&control_plane).await?;
        deployment::apply(&control_plane, "azure").await?;
        let trusted = [facts::certificate()?, facts::certificate()?];
        let objects = [
            facts::infrastructure(&control_plane.server()),
            facts::network(),
            facts::overlay(facts::VXLAN_PORTS[0]),
            facts::proxy(facts::PROXIES[0]),
            facts::mirrors(facts::MIRRORS[0]),
            facts::pull_secret(facts::PASSWORDS[0]),
            facts::trusted_ca(&trusted[0]),
        ];
        for object in objects.iter().chain(&rights()) {
            control_plane.apply_yaml(&object.to_string()).await?;
        }
        let payload = [payload::hybrid_overlay()?, payload::azure()?].concat();
        let options =
            operator_options(&control_plane, files.path(), payload, &[("--cluster-facts-interval", "500ms")])?;
        let host = WineHost::start(&control_plane, WineOptions::new(NODE)).await?;
        host.authorize(&key.public_key().to_openssh()?)?;
        let operator = Operator::start(&control_plane, &options)?;
        operator.leads().await?;
        let client = control_plane.client().await?;
        Ok(Self { host, operator, client, control_plane, files, trusted })
    }

    async fn kubectl(&self, args: &[&str]) -> Result<String> {
        let output = self.control_plane.kubectl(args).await?;
        ensure!(output.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    async fn apply(&self, template: Value) -> Result<()> {
        let hosts = [json!({"name": NODE, "address": self.host.address().to_string()})];
        let pool = json!({
            "apiVersion": format!("{}/{}", api::names::GROUP, api::names::VERSION),
            "kind": "WindowsNodePool",
            "metadata": {"name": POOL},
            "spec": {"inventory": {"hosts": hosts}, "template": template},
        });
        let file = self.files.path().join("pool.yaml");
        fs::write(&file, serde_yaml::to_string(&pool)?)?;
        self.kubectl(&["apply", "-f", file.to_str().context("path is not UTF-8")?]).await.map(drop)
    }

    async fn node(&self) -> Result<Node> {
        Ok(Api::all(self.client.clone()).get(NODE).await?)
    }

    /// Returns the number of starts of kube-proxy that reached the API server.
    async fn proxy_starts(&self) -> Result<usize> {
        let events: Api<Event> = Api::default_namespaced(self.client.clone());
        let by_proxy = |e: &Event| e.reporting_controller.as_deref() == Some("kube-proxy");
        let here = |e: &Event| e.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some(NODE);
        let all = events.list(&ListParams::default()).await?;
        Ok(all.iter().filter(|e| by_proxy(e) && here(e) && e.reason.as_deref() == Some("Starting")).count())
    }

    /// Reports whether all services run and the Node is Ready.
    async fn is_complete(&self) -> Result<bool> {
        let services = self.host.services().await?;
        let processes = changes::processes(self).await?;
        // Wine also reports a service as running whose process has ended.
        let runs = |(name, _): &(&str, &str)| {
            let expected = if WITH_LOG_RUNNER.contains(name) { 2 } else { 1 };
            let is_running = services.iter().any(|s| s.name == *name && s.state == "RUNNING");
            is_running && processes[name].len() == expected
        };
        Ok(SERVICES.iter().all(runs) && is_ready(&self.node().await?))
    }

    async fn wait<F: Future<Output = Result<bool>>>(&self, what: &str, ask: impl Fn() -> F) -> Result<()> {
        within(PATIENCE, what, || async { ask().await.unwrap_or(false) }).await
    }

    /// Returns the objects of a kind in HNS.
    fn hns(&self, kind: &str) -> Result<Vec<Value>> {
        let Ok(files) = fs::read_dir(self.host.drive_c().join("testbed/hns").join(kind)) else { return Ok(Vec::new()) };
        files.map(|file| Ok(serde_json::from_slice(&fs::read(file?.path())?)?)).collect()
    }

    /// Returns diagnostics for a failure.
    async fn show(&self) -> String {
        let mut text = Vec::new();
        for what in ["wnp,wi", "nodes", "csr", "events"] {
            text.push(self.kubectl(&["get", what, "-o", "wide"]).await.unwrap_or_default());
        }
        text.push(format!("--- operator\n{}", tail(&self.operator.log(), 40)));
        text.push(format!("--- services: {:?}", self.host.services().await));
        text.push(format!("--- processes: {:?}", self.host.processes().await));
        let log = |path: &Path| tail(&fs::read_to_string(path).unwrap_or_default(), 40);
        let logs = [
            "wicd/windows-instance-config-daemon.exe.INFO",
            "hybrid-overlay/hybrid-overlay.log",
            "kubelet/kubelet.log",
            "kube-proxy/kube-proxy.log",
        ];
        for file in logs {
            text.push(format!("--- {file}\n{}", log(&self.host.drive_c().join("var/log").join(file))));
        }
        text.push(format!("--- what services print\n{}", log(&self.host.log())));
        text.join("\n")
    }
}

/// Returns the roles and bindings that OpenShift grants to nodes: kube-proxy acts as the Node, hybrid-overlay-node as a user of its own.
fn rights() -> [Value; 3] {
    let rbac = |kind: &str, name: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    let with = |mut object: Value, parts: Value| {
        object.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
        object
    };
    let binding = |name: &str, role: &str, group: &str| {
        let parts = json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
        });
        with(rbac("ClusterRoleBinding", name), parts)
    };
    let verbs = ["get", "list", "watch", "patch"];
    let rules = json!({"rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": verbs}]});
    [
        binding("system:node-proxiers", "system:node-proxier", "system:nodes"),
        with(rbac("ClusterRole", "ovn-nodes"), rules),
        binding("ovn-nodes", "ovn-nodes", "system:ovn-nodes"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn wine_overlay_node_works_and_leaves_nothing() -> Result<()> {
    if let Err(reason) = available() {
        return testbed::skip(&reason);
    }
    let world = World::new().await?;
    if let Err(error) = story(&world).await {
        bail!("{error:#}\n{}", world.show().await);
    }
    Ok(())
}

async fn story(world: &World) -> Result<()> {
    let clock = std::time::Instant::now();
    let done = |what: &str| println!("{:>6.1} s  {what}", clock.elapsed().as_secs_f32());
    joins(world).await.context("the host becomes a node")?;
    done("the node is Ready");
    services_can_work(world).await.context("services can work")?;
    every_named_file_exists(world).await.context("files that the services name")?;
    logs_are_written(world).context("logs of the services")?;
    node_manager_works(world).await.context("the cloud-node-manager")?;
    changes::were_there_from_the_start(world).await.context("facts of the cluster")?;
    done("services can work, with the facts of the cluster");
    changes::reach_the_node(world).await.context("changes of the cluster")?;
    done("each fact of the cluster has changed");
    works_behind_a_proxy(world).await.context("behind a proxy")?;
    done("it works with the variables of a proxy");
    leaves(world).await.context("the host leaves")?;
    done("nothing is left");
    Ok(())
}

async fn joins(world: &World) -> Result<()> {
    world.apply(json!({})).await?;
    world.wait("the Node is there", async || Ok(world.node().await.is_ok())).await?;
    let nodes: Api<Node> = Api::all(world.client.clone());
    let subnet = json!({"metadata": {"annotations": {"k8s.ovn.org/hybrid-overlay-node-subnet": SUBNET}}});
    nodes.patch(NODE, &PatchParams::default(), &Patch::Merge(subnet)).await?;
    world.wait("hybrid-overlay-node requests its certificate", async || approve(world).await).await?;
    let complete =
        async || Ok(world.is_complete().await? && world.proxy_starts().await? > 0 && !is_tainted(&world.node().await?));
    world.wait("all services run on a Ready Node", complete).await?;
    let (pool, limit) = (format!("wnp/{POOL}"), format!("--timeout={}s", PATIENCE.as_secs()));
    world.kubectl(&["wait", "--for=condition=Ready", &pool, &limit]).await.map(drop)
}

/// Approves a request of hybrid-overlay-node, as OVN-Kubernetes does: a kubelet may request this identity for its own node. Reports whether
/// there was a request.
async fn approve(world: &World) -> Result<bool> {
    let requests: Api<CertificateSigningRequest> = Api::all(world.client.clone());
    for request in requests.list(&ListParams::default()).await? {
        let (_, pem) = x509_parser::pem::parse_x509_pem(&request.spec.request.0)?;
        let is_theirs = String::from_utf8_lossy(&pem.contents).contains(&format!("system:ovn-node:{NODE}"));
        if !is_theirs || request.spec.username.as_deref() != Some(&format!("system:node:{NODE}")) {
            continue;
        }
        // The requested lifetime is the one in the command line.
        assert_eq!(request.spec.expiration_seconds, Some(24 * 60 * 60));
        let approved = json!({"type": "Approved", "status": "True", "reason": "Test", "message": ""});
        let approval = Patch::Merge(json!({"status": {"conditions": [approved]}}));
        requests.patch_approval(&request.name_any(), &PatchParams::default(), &approval).await?;
        return Ok(true);
    }
    Ok(false)
}

async fn services_can_work(world: &World) -> Result<()> {
    // Each service has done its own work with the identity in its kubeconfig.
    ensure!(world.node().await?.annotations().contains_key(MAC), "hybrid-overlay-node has not annotated the Node");
    ensure!(world.proxy_starts().await? > 0, "kube-proxy has not started with Services and EndpointSlices");

    let networks = world.hns("networks")?;
    let network = networks.iter().find(|n| n["Name"] == NETWORK).context("there is no network")?;
    assert_eq!(network["Subnets"][0]["AddressPrefix"], SUBNET);
    let endpoint = the_endpoint(world)?;
    assert_eq!(endpoint["VirtualNetwork"], network["ID"]);
    assert_eq!(endpoint["State"], 2, "the endpoint is not attached");
    let conf: Value = serde_json::from_slice(&fs::read(on_drive(world, r"C:\k\kube-proxy.conf")?)?)?;
    assert_eq!(conf["winkernel"]["sourceVip"], endpoint["IPAddress"]);
    assert_eq!(conf["clusterCIDR"], SUBNET);
    ensure!(has_adapter(world, &endpoint).await?, "no adapter has the address of the endpoint");
    let cni: Value = serde_json::from_slice(&fs::read(on_drive(world, r"C:\k\cni\config\cni.conf")?)?)?;
    assert_eq!(cni["ipam"]["subnet"], SUBNET);
    assert_eq!(cni["policies"][2]["value"]["settings"]["providerAddress"], world.host.address().to_string());
    Ok(())
}

/// Checks that kube-log-runner writes the output of its service to the log.
fn logs_are_written(world: &World) -> Result<()> {
    for (service, line) in [("kubelet", "Starting kubelet"), ("kube-proxy", "has Services and EndpointSlices")] {
        let file = on_drive(world, &format!(r"{}\{service}\{service}.log", host_path::LOGS))?;
        let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        ensure!(text.contains(line), "{service}.log: {}", tail(&text, 5));
    }
    Ok(())
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == UNINITIALIZED)
}

/// Checks that the cloud-node-manager has initialised the Node with rights that only it has, and that it does not run without its files.
async fn node_manager_works(world: &World) -> Result<()> {
    let node = world.node().await?;
    let spec = node.spec.as_ref().context("no spec")?;
    ensure!(spec.provider_id.as_deref().is_some_and(|id| id.starts_with("azure://")), "{:?}", spec.provider_id);
    assert_eq!(node.labels().get("topology.kubernetes.io/zone").map(String::as_str), Some("westeurope-1"));
    assert!(node.annotations().contains_key(key::VERSION));
    let addresses = node.status.as_ref().and_then(|s| s.addresses.clone()).unwrap_or_default();
    let has = |kind: &str, address: &str| addresses.iter().any(|a| a.type_ == kind && a.address == address);
    ensure!(has("InternalIP", &world.host.address().to_string()) && has("Hostname", NODE), "{addresses:?}");

    let token = on_drive(world, host_path::NODE_MANAGER_TOKEN)?;
    let kubeconfig = fs::read_to_string(on_drive(world, host_path::NODE_MANAGER_KUBECONFIG)?)?;
    let escaped = |path: &str| path.replace('\\', r"\\");
    let without = kubeconfig.replace(&escaped(host_path::NODE_MANAGER_TOKEN), &escaped(r"C:\missing"));
    ensure!(without != kubeconfig && token.exists(), "the kubeconfig names no token: {kubeconfig}");
    fs::write(on_drive(world, r"C:\without-token")?, without)?;
    for kubeconfig in [r"C:\missing", r"C:\without-token"] {
        let line = format!(r"C:\k\azure-cloud-node-manager.exe --windows-service --kubeconfig={kubeconfig}");
        let output = world.host.cmd(&line).await?;
        let printed = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && printed.contains(r"C:\missing"), "{kubeconfig}: {printed}");
    }
    Ok(fs::remove_file(on_drive(world, r"C:\without-token")?)?)
}

/// Returns the endpoint of kube-proxy, which is the only one.
fn the_endpoint(world: &World) -> Result<Value> {
    let mut endpoints = world.hns("endpoints")?;
    ensure!(endpoints.len() == 1 && endpoints[0]["Name"] == ENDPOINT, "endpoints: {endpoints:?}");
    Ok(endpoints.remove(0))
}

/// Reports whether an adapter has the endpoint's address. Wine continues to list a removed adapter, without addresses.
async fn has_adapter(world: &World, endpoint: &Value) -> Result<bool> {
    let address = endpoint["IPAddress"].as_str().context("the endpoint has no address")?;
    Ok(cmd(&world.host, "ipconfig /all").await?.contains(address))
}

/// Checks that each file exists that a command line of a service names, or a JSON file (such as a kubeconfig) that is named there. Paths of logs are
/// left out.
async fn every_named_file_exists(world: &World) -> Result<()> {
    let (mut named, mut seen) = (Vec::new(), BTreeSet::new());
    for (service, _) in SERVICES {
        let key = format!(r"HKLM\System\CurrentControlSet\Services\{service}");
        let line = cmd(&world.host, &format!("reg query {key} /v ImagePath")).await?;
        named.extend(line.split(|c: char| c.is_whitespace() || "=\"".contains(c)).filter_map(path_in));
    }
    while let Some(path) = named.pop() {
        if path.starts_with(host_path::LOGS) || !seen.insert(path.clone()) {
            continue;
        }
        let file = on_drive(world, &path)?;
        ensure!(file.exists(), "{path} is named and does not exist");
        // Folders and programs are not JSON.
        if let Ok(json) = serde_json::from_slice(&fs::read(file).unwrap_or_default()) {
            strings(&json, &mut |text| named.extend(path_in(text)));
        }
    }
    for expected in [
        host_path::NODE_KUBECONFIG,
        host_path::KUBELET_CURRENT_CERT,
        host_path::API_CA,
        host_path::NODE_MANAGER_KUBECONFIG,
        host_path::NODE_MANAGER_TOKEN,
        r"C:\k\kube-log-runner.exe",
    ] {
        ensure!(seen.contains(expected), "nothing names {expected}: {seen:?}");
    }
    Ok(())
}

fn path_in(text: &str) -> Option<String> {
    text.starts_with(r"C:\").then(|| text.to_owned())
}

/// Calls `each` with each string in a JSON value.
fn strings(value: &Value, each: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => each(text),
        Value::Array(list) => list.iter().for_each(|v| strings(v, each)),
        Value::Object(map) => map.values().for_each(|v| strings(v, each)),
        _ => {}
    }
}

fn on_drive(world: &World, path: &str) -> Result<PathBuf> {
    let below = path.strip_prefix(r"C:\").context("the path is on another drive")?;
    Ok(world.host.drive_c().join(below.replace('\\', "/")))
}

/// Sets the proxy variables for all services with a restart of the host. Afterwards, services that heed them reach the API server by `NO_PROXY`,
/// and wicd, which does not, follows a change of the pool.
async fn works_behind_a_proxy(world: &World) -> Result<()> {
    let before = (the_endpoint(world)?, world.proxy_starts().await?);
    for (name, value) in PROXY {
        cmd(&world.host, &format!(r#"reg add "{ENVIRONMENT}" /v {name} /d {value} /f"#)).await?;
    }
    world.host.reboot().await?;
    for (name, value) in PROXY {
        ensure!(cmd(&world.host, &format!("set {name}")).await?.contains(value), "{name} is not set");
    }
    let again = async || Ok(world.is_complete().await? && world.proxy_starts().await? > before.1);
    world.wait("all services run again", again).await?;
    assert_eq!(the_endpoint(world)?, before.0, "the endpoint is another one");

    let old = changes::reached(&changes::pool(world).await?).context("the pool is not done")?;
    world.apply(json!({"spec": {"kubelet": {"maxPods": 77}}})).await?;
    changes::follows_another(world, &old).await?;
    world.wait("all services run after a change", async || world.is_complete().await).await
}

async fn leaves(world: &World) -> Result<()> {
    let endpoint = the_endpoint(world)?;
    let limit = format!("--timeout={}s", PATIENCE.as_secs());
    world.kubectl(&["delete", &format!("wnp/{POOL}"), &limit]).await?;
    let gone = async || Ok(!world.kubectl(&["get", "wi,nodes", "-o", "name"]).await?.contains(NODE));
    world.wait("instance and Node are gone", gone).await?;
    for kind in ["networks", "endpoints"] {
        let left = world.hns(kind)?;
        ensure!(left.is_empty(), "{kind} are left: {left:?}");
    }
    world.wait("the adapter is gone", async || Ok(!has_adapter(world, &endpoint).await?)).await?;
    let services = world.host.services().await?;
    let is_ours = |service: &Service| SERVICES.iter().any(|(name, _)| *name == service.name);
    ensure!(!services.iter().any(is_ours), "services are left: {services:?}");
    let processes = world.host.processes().await?;
    ensure!(!processes.iter().any(|p| p.command.starts_with(host_path::ROOT)), "processes are left: {processes:?}");
    ensure!(!world.host.drive_c().join("k").exists(), "{} is left", host_path::ROOT);
    for (name, value) in PROXY {
        let variable = cmd(&world.host, &format!(r#"reg query "{ENVIRONMENT}" /v {name}"#)).await?;
        ensure!(variable.contains(value), "{name} was the owner's: {variable}");
    }
    Ok(())
}
