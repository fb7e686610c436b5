//! Rollout of a change to a whole pool while users' pods run on it: 20 simulated hosts and, where Wine is available, one with real Windows parts.
//! Also, how long the operator stores the versions that hosts followed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use api::{
    Host, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec,
    conditions::kind,
    host::{launcher_path, path as host_path},
    names::key,
    payload::{MANIFEST, Manifest},
};
use futures::StreamExt as _;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Binding, ConfigMap, Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use testbed::{
    ControlPlane, ControlPlaneOptions,
    binaries::{Platform, host_containerd, host_kubelet, wicd_exe},
    deployment::operator_client,
    payload::{Content, Entry},
    sim::{SimHost, SimOptions},
    wine::{HostNetwork, Process, WineHost, WineOptions, available},
};
use tokio::task::JoinHandle;

use crate::fleet::{World, entries, has, is_cordoned, is_cordoned_by_us, nodes, pool_status, spec_with};

const POOL: &str = "factory";
/// Grace period of pods, in seconds.
const GRACE: i64 = 3;
/// Number of pods of each workload. The pods of the three workloads outnumber the nodes.
const REPLICAS: i32 = 8;

/// Returns a pool of these hosts with a number of concurrent downloads and with further fields. Changing this number drains the nodes.
pub(crate) fn with_downloads(hosts: &[SimHost], downloads: i32, more: &Value) -> WindowsNodePoolSpec {
    let mut fields = json!({"template": {"spec": {"containerd": {"maxConcurrentDownloads": downloads}}}});
    crate::crd::merge(&mut fields, more);
    spec_with(hosts, fields)
}

/// Checks that a node is there and is not cordoned, and returns it.
pub(crate) async fn uncordoned_node(world: &World, name: &str) -> Result<Node> {
    let node = world.node(name).await?.with_context(|| format!("the Node {name} is gone"))?;
    ensure!(!is_cordoned(&node) && !is_cordoned_by_us(&node), "{name} is cordoned");
    Ok(node)
}

/// Creates a Deployment, and a budget that allows one of its `replicas` pods to be unavailable.
pub(crate) async fn create_workload(client: &Client, name: &str, replicas: i32) -> Result<()> {
    let labels = json!({"app": name});
    let deployment = json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": GRACE,
                    "automountServiceAccountToken": false,
                    "containers": [{"name": "c", "image": "example.com/image"}],
                    "tolerations": [{"key": "os", "operator": "Exists"}],
                },
            },
        },
    });
    let budget = json!({
        "metadata": {"name": name},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
    });
    let params = PostParams::default();
    Api::<Deployment>::default_namespaced(client.clone()).create(&params, &serde_json::from_value(deployment)?).await?;
    Api::<PodDisruptionBudget>::default_namespaced(client.clone())
        .create(&params, &serde_json::from_value(budget)?)
        .await?;
    Ok(())
}

/// Starts a task in place of the scheduler, until it is aborted: it binds waiting pods to Ready nodes that are not cordoned, the emptiest first.
pub(crate) fn schedule(client: Client) -> JoinHandle<()> {
    tokio::spawn(async move {
        // The default namespace has no pods of the operator's own Deployment.
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        loop {
            if let Err(error) = bind_waiting(&client, &pods).await {
                eprintln!("pods were not bound: {error:#}");
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    })
}

async fn bind_waiting(client: &Client, pods: &Api<Pod>) -> Result<()> {
    let all = pods.list(&ListParams::default()).await?.items;
    let is_bound = |p: &Pod| p.spec.as_ref().is_some_and(|s| s.node_name.is_some());
    let waiting: Vec<&Pod> = all.iter().filter(|p| !is_bound(p) && p.metadata.deletion_timestamp.is_none()).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    let mut load: BTreeMap<String, usize> = nodes(client)
        .await?
        .iter()
        .filter(|n| !is_cordoned(n) && node_is_ready(n))
        .map(|n| (n.name_any(), 0))
        .collect();
    for node in all.iter().filter_map(|p| p.spec.as_ref()?.node_name.as_ref()) {
        load.entry(node.clone()).and_modify(|n| *n += 1);
    }
    for pod in waiting {
        let Some(node) = load.iter().min_by_key(|(_, n)| **n).map(|(name, _)| name.clone()) else { return Ok(()) };
        load.entry(node.clone()).and_modify(|n| *n += 1);
        let binding: Binding = serde_json::from_value(json!({
            "metadata": {"name": pod.name_any()},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }))?;
        let bound: kube::Result<Value> =
            pods.create_subresource("binding", &pod.name_any(), &PostParams::default(), &binding).await;
        bound.map(drop).or_else(|error| match error {
            // The pod was bound or deleted meanwhile.
            kube::Error::Api(status) if matches!(status.code, 404 | 409) => Ok(()),
            other => Err(other),
        })?;
    }
    Ok(())
}

pub(crate) fn node_is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Observations of nodes, pods and budgets through the API, independent of the operator.
#[derive(Default)]
pub(crate) struct Observed {
    /// Nodes that are cordoned or not Ready now.
    disrupted: BTreeSet<String>,
    /// Maximum number of nodes that were cordoned or not Ready at once.
    pub most_disrupted: usize,
    /// Nodes that were ever cordoned or not Ready.
    pub ever_disrupted: BTreeSet<String>,
    /// Nodes that are cordoned now.
    cordoned: BTreeSet<String>,
    /// Nodes that are cordoned now, and were Ready when that began. A cordon of a node that was not Ready disturbs no pod and uses no budget.
    cordoned_while_ready: BTreeSet<String>,
    /// Maximum number of nodes that were cordoned while they were Ready, at once.
    pub most_cordoned: usize,
    /// Nodes that were ever cordoned.
    pub ever_cordoned: BTreeSet<String>,
    /// Number of times that each node became cordoned.
    pub cordons: BTreeMap<String, usize>,
    /// Grace periods of pods at their deletion, by uid.
    pub grace_periods: BTreeMap<String, Option<i64>>,
    /// PodDisruptionBudgets whose pods were healthy, and later had fewer healthy pods than desired, with both numbers.
    broken: Vec<String>,
}

impl Observed {
    /// Records the state of nodes at one moment.
    fn nodes(&mut self, nodes: &[Node]) {
        for node in nodes {
            let name = node.name_any();
            let is_cordoned = is_cordoned(node);
            let is_disrupted = is_cordoned || !node_is_ready(node);
            if is_cordoned && !self.cordoned.contains(&name) {
                *self.cordons.entry(name.clone()).or_default() += 1;
                if node_is_ready(node) {
                    self.cordoned_while_ready.insert(name.clone());
                }
            } else if !is_cordoned {
                self.cordoned_while_ready.remove(&name);
            }
            for (is_so, now, ever) in [
                (is_cordoned, &mut self.cordoned, &mut self.ever_cordoned),
                (is_disrupted, &mut self.disrupted, &mut self.ever_disrupted),
            ] {
                if is_so {
                    ever.insert(name.clone());
                    now.insert(name.clone());
                } else {
                    now.remove(&name);
                }
            }
        }
        self.most_cordoned = self.most_cordoned.max(self.cordoned_while_ready.len());
        self.most_disrupted = self.most_disrupted.max(self.disrupted.len());
    }

    /// Records the deletion of a node.
    fn deleted(&mut self, name: &str) {
        self.cordoned.remove(name);
        self.cordoned_while_ready.remove(name);
        self.disrupted.remove(name);
    }
}

/// Watcher of nodes, pods and budgets, until it is dropped.
pub(crate) struct Watcher {
    pub seen: Arc<Mutex<Observed>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Watcher {
    /// Watches the nodes of a pool, the pods of the default namespace, and budgets.
    pub(crate) fn of(client: &Client, pool: &str) -> Self {
        Self::of_nodes(client, &format!("{}={pool}", key::POOL))
    }

    /// Watches all Windows nodes, the pods of the default namespace, and budgets.
    pub(crate) fn of_all(client: &Client) -> Self {
        Self::of_nodes(client, "kubernetes.io/os=windows")
    }

    fn of_nodes(client: &Client, labels: &str) -> Self {
        let seen = Arc::<Mutex<Observed>>::default();
        let config = watcher::Config::default().labels(labels);
        let nodes = watcher(Api::<Node>::all(client.clone()), config);
        let into = seen.clone();
        let watch_nodes = tokio::spawn(async move {
            let mut nodes = std::pin::pin!(nodes);
            let mut listed = Vec::new();
            while let Some(event) = nodes.next().await {
                // A list after an outage is one state: its nodes did not change one after another.
                let changed = match event {
                    Ok(watcher::Event::Apply(node)) => vec![node],
                    Ok(watcher::Event::InitDone) => std::mem::take(&mut listed),
                    Ok(watcher::Event::InitApply(node)) => {
                        listed.push(node);
                        continue;
                    }
                    Ok(watcher::Event::Delete(node)) => {
                        into.lock().unwrap().deleted(&node.name_any());
                        continue;
                    }
                    Ok(watcher::Event::Init) => continue,
                    Err(_) => {
                        listed.clear();
                        // The delay is short, because the default backoff would miss changes after the API server is back.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                into.lock().unwrap().nodes(&changed);
            }
        });
        let pods = watcher(Api::<Pod>::default_namespaced(client.clone()), watcher::Config::default());
        let into = seen.clone();
        let watch_pods = tokio::spawn(async move {
            let mut pods = std::pin::pin!(pods.default_backoff().applied_objects());
            while let Some(pod) = pods.next().await {
                let Ok(pod) = pod else { continue };
                if pod.metadata.deletion_timestamp.is_some() {
                    let grace = pod.metadata.deletion_grace_period_seconds;
                    into.lock().unwrap().grace_periods.entry(pod.uid().unwrap_or_default()).or_insert(grace);
                }
            }
        });
        let budgets = watcher(Api::<PodDisruptionBudget>::all(client.clone()), watcher::Config::default());
        let into = seen.clone();
        let watch_budgets = tokio::spawn(async move {
            let mut budgets = std::pin::pin!(budgets.default_backoff().applied_objects());
            // A budget whose pods still start is not broken: it has never been healthy.
            let mut was_healthy = BTreeSet::new();
            while let Some(budget) = budgets.next().await {
                let Ok(budget) = budget else { continue };
                let Some(status) = &budget.status else { continue };
                let (healthy, desired) = (status.current_healthy.unwrap_or(0), status.desired_healthy.unwrap_or(0));
                if healthy >= desired && desired > 0 {
                    was_healthy.insert(budget.name_any());
                } else if was_healthy.contains(&budget.name_any()) {
                    into.lock().unwrap().broken.push(format!("{}: {healthy} of {desired}", budget.name_any()));
                }
            }
        });
        Self { seen, tasks: vec![watch_nodes, watch_pods, watch_budgets] }
    }
}

/// Waits until all nodes of the pool follow the pool's desired version. Because a rollout of many nodes may take long on a busy machine, the time
/// limit is for each node.
pub(crate) async fn until_updated(world: &World, pool: &str) -> Result<()> {
    let is_observed = |p: &WindowsNodePool| pool_status(p).observed_generation == p.metadata.generation;
    let is_over = |p: &WindowsNodePool| {
        let conditions = pool_status(p).conditions;
        is_observed(p)
            && has(&conditions, kind::UPDATED, "True", "AsExpected")
            && has(&conditions, kind::READY, "True", "Succeeded")
    };
    let updated = |p: &WindowsNodePool| if is_observed(p) { pool_status(p).up_to_date_nodes } else { -1 };
    let mut most = -1;
    loop {
        let goes_on = |p: &WindowsNodePool| is_over(p) || updated(p) > most;
        world.until(pool, "all nodes are updated, or one more is", goes_on).await?;
        let seen = world.pool(pool).await?;
        if is_over(&seen) {
            return Ok(());
        }
        most = most.max(updated(&seen));
    }
}

/// Fleet of simulated hosts and, where Wine is available, a Wine host with the real wicd and kubelet.
struct Fleet {
    wine: Option<WineHost>,
    simulated: Vec<SimHost>,
    world: World,
    _files: tempfile::TempDir,
}

impl Fleet {
    const SIMULATED: usize = 20;

    async fn new() -> Result<Self> {
        let termination = Duration::from_secs(1);
        let options = SimOptions { termination, ..SimOptions::default() };
        let files = tempfile::tempdir()?;
        if let Err(reason) = available() {
            eprintln!("without a Wine host: {reason}");
            let world = World::new(options, &[]).await?;
            return Ok(Self {
                wine: None,
                simulated: world.hosts("win", Self::SIMULATED).await?,
                world,
                _files: files,
            });
        }
        let network = Some(Arc::new(HostNetwork::create()?));
        let control_plane = ControlPlane::start(ControlPlaneOptions { network, ..Default::default() }).await?;
        let wine = WineHost::start(&control_plane, WineOptions::new("wine")).await?;

        // The programs are copied to the file system of the simulated hosts, so that the hosts can share these large files as hard links.
        let copy = |name: &str, program: &Path| {
            let copy = files.path().join(name);
            fs::copy(program, &copy).map(|_| copy)
        };
        let kubelet = copy("kubelet.exe", &host_kubelet(Platform::Windows)?)?;
        let wicd = copy("wicd.exe", &wicd_exe()?)?;
        let containerd = fs::read(host_containerd()?)?;
        let mut payload = entries(b"");
        payload[0] = Entry::with(r"C:\k\kubelet.exe", Content::File(kubelet.clone())).services(&["kubelet"]);
        payload[1] = Entry::new(r"C:\k\containerd\containerd.exe", containerd).services(&["containerd"]);
        // Wine takes a rooted path without a drive for a Linux path.
        let patch = json!({"podLogsDir": r"C:\var\log\pods"});
        let patch_file = files.path().join("kubelet.json");
        fs::write(&patch_file, patch.to_string())?;
        let server = control_plane.server();
        let patch_file = patch_file.display().to_string();
        let args = ["--api-server", &server, "--loopback-hosts", "--kubelet-config-patch", &patch_file];
        let world = World::on(control_plane, options, &payload, Some(wicd.clone()), &args).await?;
        world.operator.leads().await?;
        wine.authorize(&world.key.public_key().to_openssh()?)?;

        let simulated = world.hosts("win", Self::SIMULATED).await?;
        let manifest = Manifest::parse(&fs::read(world.options.payload.join(MANIFEST))?)?;
        let file = manifest.files.iter().find(|f| f.path == "kubelet.exe").context("no kubelet.exe")?;
        let exe = launcher_path(&hex::encode(Sha256::digest(fs::read(&wicd)?)));
        for host in &simulated {
            host.preload(&format!(r"{}\{}", host_path::BLOBS, file.sha256), &kubelet)?;
            host.preload(&exe, &wicd)?;
        }
        Ok(Self { wine: Some(wine), simulated, world, _files: files })
    }

    /// Returns the pool of the fleet with a number of concurrent downloads. Changing this number drains the nodes.
    fn pool(&self, downloads: i32) -> WindowsNodePoolSpec {
        let more = json!({"provisioning": {"maxConcurrent": 50}, "rollout": {"maxUnavailable": "10%"}});
        let mut spec = with_downloads(&self.simulated, downloads, &more);
        let wine = self.wine.as_ref().map(|w| Host {
            name: w.name().into(),
            address: w.address().to_string(),
            ..Host::default()
        });
        spec.inventory.hosts.get_or_insert_default().extend(wine);
        spec
    }

    fn size(&self) -> usize {
        self.simulated.len() + usize::from(self.wine.is_some())
    }

    /// Returns the UIDs of the pods on the Wine host, and the process that runs as its containerd.
    async fn state_on_wine(&self) -> Result<(BTreeSet<String>, Option<Process>)> {
        let Some(wine) = &self.wine else { return Ok((BTreeSet::new(), None)) };
        let there = ListParams::default().fields(&format!("spec.nodeName={}", wine.name()));
        let pods = Api::<Pod>::default_namespaced(self.world.client.clone()).list(&there).await?;
        let containerd = wine.processes().await?.into_iter().find(|p| p.command.contains("containerd.exe"));
        Ok((pods.items.iter().filter_map(ResourceExt::uid).collect(), containerd))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_reaches_a_fleet_within_its_budgets() -> Result<()> {
    let fleet = Box::pin(Fleet::new()).await?;
    let world = &fleet.world;
    world.join(POOL, &fleet.pool(3)).await?;
    let scheduler = schedule(world.client.clone());
    for name in ["cart", "paint", "press"] {
        create_workload(&world.client, name, REPLICAS).await?;
    }
    world
        .eventually("the workloads run", || async {
            let all = Api::<Deployment>::default_namespaced(world.client.clone()).list(&ListParams::default()).await;
            all.is_ok_and(|all| {
                all.items.iter().all(|d| d.status.as_ref().and_then(|s| s.ready_replicas) == Some(REPLICAS))
            })
        })
        .await?;

    let watcher = Watcher::of(&world.client, POOL);
    let (pods, containerd) = fleet.state_on_wine().await?;
    world.apply(POOL, &fleet.pool(6)).await?;
    until_updated(world, POOL).await?;
    scheduler.abort();

    for node in nodes(&world.client).await? {
        ensure!(!is_cordoned(&node) && !is_cordoned_by_us(&node), "a cordon stayed on {}", node.name_any());
    }
    let (_, containerd_now) = fleet.state_on_wine().await?;
    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.most_disrupted <= fleet.size() / 10, "{} nodes were disrupted at once", seen.most_disrupted);
    ensure!(seen.ever_disrupted.len() == fleet.size(), "only {} nodes were drained", seen.ever_disrupted.len());
    ensure!(seen.broken.is_empty(), "budgets were broken: {:?}", seen.broken);
    ensure!(!seen.grace_periods.is_empty(), "no pod was ever moved");
    let killed: Vec<_> = seen.grace_periods.values().filter(|g| **g != Some(GRACE)).collect();
    ensure!(killed.is_empty(), "pods did not get their grace period: {killed:?}");
    if let Some(wine) = &fleet.wine {
        ensure!(!pods.is_empty(), "there was no pod on the Wine host");
        ensure!(pods.iter().all(|uid| seen.grace_periods.contains_key(uid)), "pods on the Wine host were not deleted");
        let settings = fs::read_to_string(wine.drive_c().join("k/containerd/conf.d/pool.toml"))?;
        ensure!(settings.contains("max_concurrent_downloads = 6"), "{settings}");
        ensure!(containerd.is_some() && containerd_now.is_some() && containerd != containerd_now, "{containerd:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_kept_for_as_long_as_they_are_needed() -> Result<()> {
    let world = World::new(SimOptions::default(), &["--version-grace", "1s"]).await?;
    let hosts = world.hosts("win", 1).await?;
    let template = |pods: i32| spec_with(&hosts, json!({"template": {"spec": {"kubelet": {"maxPods": pods}}}}));
    let mut versions = Vec::new();
    for pods in [100, 101, 102] {
        world.apply(POOL, &template(pods)).await?;
        until_updated(&world, POOL).await?;
        let version = pool_status(&world.pool(POOL).await?).desired_version.context("no version")?;
        ensure!(!versions.contains(&version), "a changed spec got the same version {version}");
        versions.push(version);
    }
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), testbed::deployment::NAMESPACE);
    let stored =
        async |version: &str| matches!(maps.get_opt(&format!("windows-services-{version}")).await, Ok(Some(_)));
    world.eventually("the oldest version is gone", || async { !stored(&versions[0]).await }).await?;
    ensure!(stored(&versions[1]).await, "the previous version, needed for a rollback, is gone");
    ensure!(hosts[0].stats().connections == 3, "not one connection for each change: {:?}", hosts[0].stats());

    // A client deletes the version that hosts follow.
    maps.delete(&format!("windows-services-{}", versions[2]), &DeleteParams::default()).await?;
    world.eventually("it is stored again", || async { stored(&versions[2]).await }).await?;

    // An earlier spec has its version already, and makes no new one.
    world.apply(POOL, &template(101)).await?;
    until_updated(&world, POOL).await?;
    let version = pool_status(&world.pool(POOL).await?).desired_version;
    ensure!(version.as_ref() == Some(&versions[1]), "{version:?} {versions:?}");

    // A version that failed on a host is tried again when a user requests a retry.
    let instances: Api<WindowsInstance> = Api::all(world.client.clone());
    let mut gave_up = instances.get(hosts[0].name()).await?.status.context("no status")?;
    gave_up.failed_version = Some(versions[1].clone());
    let gave_up = json!({
        "apiVersion": format!("{}/{}", api::names::GROUP, api::names::VERSION),
        "kind": "WindowsInstance",
        "status": gave_up,
    });
    // The status is written as the operator's field manager, because the operator removes only fields of its own.
    let as_operator = PatchParams::apply(api::names::MANAGER_INSTANCE).force();
    let instances: Api<WindowsInstance> = Api::all(operator_client(&world.control_plane).await?);
    instances.patch_status(hosts[0].name(), &as_operator, &Patch::Apply(gave_up)).await?;
    world
        .until(POOL, "the pool stalls", |p| {
            has(&pool_status(p).conditions, kind::STALLED, "True", "FailureLimitReached")
        })
        .await?;
    world.annotate(hosts[0].name(), key::RETRY, "now").await?;
    until_updated(&world, POOL).await?;

    // A new operator process that changes nothing on hosts contacts none.
    let world = {
        let mut world = world;
        world.restart().await?;
        world
    };
    world
        .apply(
            POOL,
            &spec_with(
                &hosts,
                json!({"template": {
        "spec": {"kubelet": {"maxPods": 101}}, "metadata": {"labels": {"example.com/seen": "yes"}}}}),
            ),
        )
        .await?;
    world
        .eventually("the new operator has seen the pool", || async {
            let node = world.node(hosts[0].name()).await.ok().flatten();
            node.is_some_and(|n| n.labels().contains_key("example.com/seen"))
        })
        .await?;
    until_updated(&world, POOL).await?;
    ensure!(hosts[0].stats().connections == 4, "a host was logged in to without a change: {:?}", hosts[0].stats());
    Ok(())
}
