//! World of the operator: a control plane of its own, simulated hosts, a payload, and the operator as a process.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use api::{
    Host, Inventory, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, conditions, conditions::kind, names::key,
};
use futures::StreamExt as _;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Node, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use russh::keys::PrivateKey;
use serde_json::{Value, json};
use testbed::{
    Cluster, ControlPlane, Operator, OperatorOptions,
    deployment::{self, within},
    payload::{self, Entry},
    sim::{HostOptions, Sim, SimHost, SimOptions},
};
use tokio::time::timeout;

use crate::statuses::Statuses;

/// Time limit of each wait.
pub(crate) const LIMIT: Duration = deployment::LIMIT;

/// Arguments with which the operator survives a restart of the API server on a busy machine. The operator cannot renew its Lease meanwhile: with a
/// short Lease, the process would exit, and no kubelet restarts it here.
pub(crate) const OUTLIVES_API_SERVER: [&str; 2] = ["--lease-duration", "4m"];

/// Content of `wicd.exe` for simulated hosts, which only compare its hash.
pub(crate) const WICD: &[u8] = b"wicd, for hosts that only compare its hash";

/// Control plane, simulated hosts, and the operator.
pub(crate) struct World {
    pub operator: Operator,
    pub sim: Sim,
    pub client: Client,
    pub control_plane: Cluster,
    pub options: OperatorOptions,
    pub key: PrivateKey,
    files: tempfile::TempDir,
    pub statuses: Statuses,
}

impl World {
    /// Creates a world with the operator leading. `args` are further arguments of the operator.
    pub(crate) async fn new(sim: SimOptions, args: &[&str]) -> Result<Self> {
        let world = Self::without_leader(sim, args).await?;
        world.operator.leads().await?;
        Ok(world)
    }

    /// Creates a world as [`World::new`] does, but does not wait until the operator leads.
    pub(crate) async fn without_leader(sim: SimOptions, args: &[&str]) -> Result<Self> {
        let control_plane = Box::pin(Cluster::installed()).await?;
        Box::pin(Self::installed(control_plane, sim, &entries(b"kubelet"), None, args)).await
    }

    /// Creates a world as [`World::without_leader`] does, on a running control plane, with this payload, and with this wicd instead of [`WICD`], if
    /// given.
    pub(crate) async fn on(
        control_plane: ControlPlane,
        sim: SimOptions,
        payload: &[Entry],
        wicd: Option<PathBuf>,
        args: &[&str],
    ) -> Result<Self> {
        deployment::install(&control_plane).await?;
        Self::installed(control_plane, sim, payload, wicd, args).await
    }

    /// Creates a world as [`World::on`] does, on a control plane with the operator's manifests installed.
    pub(crate) async fn installed(
        control_plane: impl Into<Cluster>,
        sim: SimOptions,
        payload: &[Entry],
        wicd: Option<PathBuf>,
        args: &[&str],
    ) -> Result<Self> {
        let control_plane = control_plane.into();
        let key = deployment::new_key()?;
        deployment::store_key(&control_plane, &key).await?;
        let client = control_plane.client().await?;
        let files = tempfile::tempdir()?;
        let sim = Sim::start(client.clone(), SimOptions { authorized_keys: vec![key.public_key().clone()], ..sim })?;
        let unless_set = |these: &'static [&'static str]| if args.contains(&these[0]) { &[][..] } else { these };
        let backoff = unless_set(&["--backoff-base", "1s", "--backoff-max", "4s"]);
        // On a busy machine an API server may not answer for seconds; an operator that loses its Lease meanwhile exits.
        let lease = unless_set(&["--lease-duration", "60s"]);
        // Statuses show each step at once, so that tests see steps of milliseconds.
        let shown = unless_set(&["--show-step-after", "0s"]);
        let options = OperatorOptions {
            program: PathBuf::from(env!("CARGO_BIN_EXE_windows-node-pools")),
            payload: files.path().join("payload"),
            wicd: wicd.unwrap_or_else(|| files.path().join("wicd.exe")),
            args: backoff.iter().chain(lease).chain(shown).chain(args).map(ToString::to_string).collect(),
        };
        payload::write(&options.payload, payload, payload::LEVEL_FAST)?;
        std::fs::write(files.path().join("wicd.exe"), WICD)?;
        let operator = Operator::start(&control_plane, &options)?;
        let statuses = Statuses::watch(&client);
        Ok(Self { operator, sim, client, control_plane, options, key, files, statuses })
    }

    /// Kills the operator if it still runs, starts another one, and waits until it leads.
    pub(crate) async fn new_operator(&mut self) -> Result<()> {
        self.start_operator().await?;
        self.operator.leads().await
    }

    /// Starts another operator as [`World::new_operator`] does, but does not wait until it leads.
    pub(crate) async fn start_operator(&mut self) -> Result<()> {
        self.operator.kill();
        self.expire_lease().await?;
        self.operator = Operator::start(&self.control_plane, &self.options)?;
        Ok(())
    }

    /// Frees the Lease if the killed operator still holds it, as if it had expired.
    async fn expire_lease(&self) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), api::names::DEFAULT_NAMESPACE);
        let holder = leases.get_opt(api::names::LEASE).await?.and_then(|l| l.spec?.holder_identity);
        if holder.is_some_and(|holder| self.operator.is_holder(&holder)) {
            let free = json!({"spec": {"holderIdentity": ""}});
            leases.patch(api::names::LEASE, &PatchParams::default(), &Patch::Merge(free)).await?;
        }
        Ok(())
    }

    /// Stops the operator with SIGTERM, as Kubernetes does, and starts another one.
    pub(crate) async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.new_operator().await
    }

    /// Stops the operator with SIGTERM, as Kubernetes does, and waits until it has exited.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.operator.signal("TERM")?;
        crate::crash::ended(&mut self.operator, LIMIT).await?;
        Ok(())
    }

    /// Writes another payload, which the next operator gives to hosts.
    pub(crate) fn give(&mut self, name: &str, entries: &[Entry]) -> Result<()> {
        self.options.payload = self.files.path().join(name);
        payload::write(&self.options.payload, entries, payload::LEVEL_FAST)?;
        Ok(())
    }

    pub(crate) async fn hosts(&self, prefix: &str, count: usize) -> Result<Vec<SimHost>> {
        let mut hosts = Vec::new();
        for n in 0..count {
            hosts.push(self.sim.host(HostOptions::named(format!("{prefix}-{n}"))).await?);
        }
        Ok(hosts)
    }

    pub(crate) async fn apply(&self, name: &str, spec: &WindowsNodePoolSpec) -> Result<()> {
        let pools: Api<WindowsNodePool> = Api::all(self.client.clone());
        // The pool is boxed, because it is large and would enlarge every future that awaits this one.
        let pool = Box::new(WindowsNodePool::new(name, spec.clone()));
        pools.patch(name, &PatchParams::apply("a-person").force(), &Patch::Apply(&*pool)).await?;
        Ok(())
    }

    /// Removes all hosts from a pool, and confirms the removal. (Server-side apply cannot: when the last owned item of a list is removed, the API
    /// server drops the list and its parent, and then misses the `spec`.)
    pub(crate) async fn empty(&self, name: &str) -> Result<()> {
        let count = self.pool(name).await?.spec.hosts().len();
        let patch = json!({
            "metadata": {"annotations": {key::APPROVE_REMOVAL: count.to_string()}},
            "spec": {"inventory": {"hosts": []}},
        });
        self.edit_pool(name, patch).await
    }

    /// Applies a pool, and waits until it is Ready with all its hosts.
    pub(crate) async fn join(&self, name: &str, spec: &WindowsNodePoolSpec) -> Result<()> {
        let count = i32::try_from(spec.hosts().len())?;
        self.apply(name, spec).await?;
        self.until(name, "all are Ready", |p| is_ready(p) && p.status.as_ref().is_some_and(|s| s.ready_nodes == count))
            .await
    }

    pub(crate) async fn pool(&self, name: &str) -> Result<WindowsNodePool> {
        Ok(Api::all(self.client.clone()).get(name).await?)
    }

    pub(crate) async fn instance(&self, name: &str) -> Result<Option<WindowsInstance>> {
        Ok(Api::all(self.client.clone()).get_opt(name).await?)
    }

    pub(crate) async fn node(&self, name: &str) -> Result<Option<Node>> {
        Ok(Api::all(self.client.clone()).get_opt(name).await?)
    }

    /// Merges a patch into a pool, as `kubectl patch` and `kubectl annotate` do.
    pub(crate) async fn edit_pool(&self, name: &str, patch: Value) -> Result<()> {
        let pools: Api<WindowsNodePool> = Api::all(self.client.clone());
        pools.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    pub(crate) async fn edit_node(&self, name: &str, patch: Value) -> Result<()> {
        Api::<Node>::all(self.client.clone()).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Annotates an instance, as a user does.
    pub(crate) async fn annotate(&self, name: &str, key: &str, value: &str) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {key: value}}});
        let instances = Api::<WindowsInstance>::all(self.client.clone());
        instances.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Waits for a condition, and fails with the state of the world on a timeout.
    pub(crate) async fn eventually<F: Future<Output = bool>>(&self, what: &str, ask: impl Fn() -> F) -> Result<()> {
        self.or_show(within(LIMIT, what, ask).await).await
    }

    async fn or_show(&self, waited: Result<()>) -> Result<()> {
        let Err(error) = waited else { return Ok(()) };
        bail!("{error}\n{}\n{}", self.show().await, tail(&self.operator.log()));
    }

    /// Waits as [`World::eventually`] does, and calls `ask` again at each change of the pool or instance of this name.
    async fn until_says<F: Future<Output = bool>>(&self, name: &str, what: &str, ask: impl Fn() -> F) -> Result<()> {
        let waited = timeout(LIMIT, self.statuses.poll_on_change(name, ask)).await;
        self.or_show(waited.with_context(|| format!("not true after {} s: {what}", LIMIT.as_secs()))).await
    }

    /// Waits for a condition of a pool.
    pub(crate) async fn until(&self, pool: &str, what: &str, is_so: impl Fn(&WindowsNodePool) -> bool) -> Result<()> {
        self.until_says(pool, &format!("{pool}: {what}"), || async { self.pool(pool).await.is_ok_and(|p| is_so(&p)) })
            .await
    }

    /// Waits for a condition of an instance, and returns the instance.
    pub(crate) async fn until_instance(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&WindowsInstance) -> bool,
    ) -> Result<WindowsInstance> {
        let found = Mutex::new(None);
        self.until_says(name, &format!("{name}: {what}"), || async {
            let instance = self.instance(name).await.ok().flatten().filter(|i| is_so(i));
            let is_so = instance.is_some();
            *found.lock().unwrap() = instance;
            is_so
        })
        .await?;
        found.into_inner().unwrap().context("the instance disappeared")
    }

    /// Waits until an instance is a Ready node.
    pub(crate) async fn until_joined(&self, name: &str) -> Result<WindowsInstance> {
        self.until_instance(name, "is a Ready node", |i| {
            !i.is_leaving() && conditions::is_true(&status(i).conditions, kind::READY)
        })
        .await
    }

    /// Waits until an instance reports that it is on hold. Without this wait, the operator may see the test's next change first.
    pub(crate) async fn until_on_hold(&self, name: &str) -> Result<()> {
        let says = |i: &_| ready_condition(i).is_ok_and(|c| c.message.contains("on hold"));
        self.until_instance(name, "says that it is on hold", says).await.map(drop)
    }

    /// Waits until an instance reports that it failed for this reason, and returns the message.
    pub(crate) async fn until_failed(&self, name: &str, reason: &str) -> Result<String> {
        let failed = |i: &WindowsInstance| has(&status(i).conditions, kind::READY, "False", reason);
        let instance = self.until_instance(name, reason, failed).await?;
        Ok(ready_condition(&instance)?.message)
    }

    /// Waits until instance and Node are gone, and checks that the host has no directory `C:\k` and no services left.
    pub(crate) async fn until_gone(&self, host: &SimHost) -> Result<()> {
        let name = host.name();
        self.eventually(&format!("{name} is gone"), || async {
            matches!(self.instance(name).await, Ok(None)) && matches!(self.node(name).await, Ok(None))
        })
        .await?;
        let left = files_below(&host.drive_c().join("k"));
        ensure!(!host.drive_c().join("k").exists(), "{name} still has a C:\\k with {left:?}");
        ensure!(host.services().is_empty(), "{name} still has services: {:?}", host.services());
        Ok(())
    }

    /// Waits for an event with this reason about an object with this name, and returns its note.
    pub(crate) async fn until_event(&self, name: &str, reason: &str) -> Result<String> {
        self.until_note(name, reason, |_| true).await
    }

    /// Waits for an event with this reason and a matching note about an object with this name, and returns the note.
    pub(crate) async fn until_note(&self, name: &str, reason: &str, is_so: impl Fn(&str) -> bool) -> Result<String> {
        let found = Mutex::new(None);
        self.eventually(&format!("an event {reason} about {name}"), || async {
            let all = Api::<Event>::all(self.client.clone()).list(&ListParams::default()).await;
            let about = |e: &Event| {
                e.reason.as_deref() == Some(reason)
                    && e.regarding.as_ref().is_some_and(|r| r.name.as_deref() == Some(name))
            };
            let events = all.map(|all| all.items).unwrap_or_default();
            let note = events.into_iter().filter(about).filter_map(|e| e.note).find(|note| is_so(note));
            let is_there = note.is_some();
            *found.lock().unwrap() = note;
            is_there
        })
        .await?;
        found.into_inner().unwrap().context("the event disappeared")
    }

    /// Returns tables of pools, instances, Nodes, pods and certificate requests, for the message of a failed test.
    pub(crate) async fn show(&self) -> String {
        let mut text = String::new();
        for args in [["get", "wnp,wi", "-o", "wide"], ["get", "nodes,pods", "-o", "wide"], ["get", "csr", "-o", "wide"]]
        {
            if let Ok(output) = self.control_plane.kubectl(&args).await {
                text += &unhealthy(&String::from_utf8_lossy(&output.stdout));
            }
        }
        text
    }
}

/// Record of the instances that meet a condition at the same time.
#[derive(Default)]
pub(crate) struct AtOnce {
    now: BTreeSet<String>,
    /// Largest number of instances at the same time.
    pub most: usize,
    /// Names of the instances that have met the condition at any time.
    pub ever: BTreeSet<String>,
}

impl AtOnce {
    /// Watches all instances until the test ends.
    pub(crate) fn watch(
        client: &Client,
        is_so: impl Fn(&WindowsInstance) -> bool + Send + 'static,
    ) -> Arc<Mutex<Self>> {
        let seen = Arc::<Mutex<Self>>::default();
        let (all, into) = (Api::<WindowsInstance>::all(client.clone()), seen.clone());
        tokio::spawn(async move {
            let mut instances = pin!(watcher(all, watcher::Config::default()).default_backoff().applied_objects());
            while let Some(instance) = instances.next().await {
                let Ok(instance) = instance else { continue };
                let mut seen = into.lock().unwrap();
                if is_so(&instance) {
                    seen.now.insert(instance.name_any());
                    seen.ever.insert(instance.name_any());
                } else {
                    seen.now.remove(&instance.name_any());
                }
                seen.most = seen.most.max(seen.now.len());
            }
        });
        seen
    }
}

/// Returns a table, without the rows of healthy objects if it has more than 40 lines.
fn unhealthy(table: &str) -> String {
    let is_long = table.lines().count() > 40;
    let is_dull = |line: &str| [" Ready ", " Approved,Issued"].iter().any(|s| line.contains(s));
    table.split_inclusive('\n').filter(|l| !is_long || !is_dull(l)).collect()
}

pub(crate) fn files_below(dir: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Returns the last 60 lines of a log, and all warnings before them.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let (before, end) = lines.split_at(lines.len().saturating_sub(60));
    let warnings = before.iter().filter(|l| l.contains(" WARN "));
    warnings.chain(end).copied().collect::<Vec<_>>().join("\n")
}

/// Returns the files of a small payload with this `kubelet.exe`.
pub(crate) fn entries(kubelet: &[u8]) -> Vec<Entry> {
    vec![
        Entry::new(r"C:\k\kubelet.exe", kubelet).services(&["kubelet"]),
        Entry::new(r"C:\k\containerd\containerd.exe", *b"containerd").services(&["containerd"]),
        Entry::new(r"C:\k\containerd\containerd_conf.toml", *b"version = 3").services(&["containerd"]),
    ]
}

/// Returns the inventory entry of a host.
pub(crate) fn entry(host: &SimHost) -> Host {
    Host {
        name: host.name().into(),
        address: host.address().to_string(),
        port: Some(i32::from(host.port())),
        ..Host::default()
    }
}

/// Returns the spec of a pool of these hosts.
pub(crate) fn spec(hosts: &[SimHost]) -> WindowsNodePoolSpec {
    let hosts = hosts.iter().map(entry).collect();
    WindowsNodePoolSpec {
        inventory: Inventory { hosts: Some(hosts), ..Inventory::default() },
        ..WindowsNodePoolSpec::default()
    }
}

/// Returns the spec of a pool of these hosts, with further fields as JSON.
pub(crate) fn spec_with(hosts: &[SimHost], fields: Value) -> WindowsNodePoolSpec {
    let mut value = json!(spec(hosts));
    crate::crd::merge(&mut value, &fields);
    serde_json::from_value(value).unwrap()
}

/// Returns an inventory file of these hosts, with one line for each.
pub(crate) fn inventory_file(hosts: &[SimHost]) -> String {
    let line = |h: &SimHost| format!("- {{name: {}, address: {}, port: {}}}\n", h.name(), h.address(), h.port());
    hosts.iter().map(line).collect()
}

/// Returns a check that a pool is Ready and has this number of hosts, all of them Ready nodes.
pub(crate) fn all_ready(count: i32) -> impl Fn(&WindowsNodePool) -> bool {
    move |pool| is_ready(pool) && pool_status(pool).ready_nodes == count && pool_status(pool).hosts == count
}

/// Returns a check that a pool is Ready and has this number of hosts, all of them up to date.
pub(crate) fn all_up_to_date(count: i32) -> impl Fn(&WindowsNodePool) -> bool {
    move |pool| is_ready(pool) && pool_status(pool).up_to_date_nodes == count && pool_status(pool).hosts == count
}

pub(crate) fn is_ready(pool: &WindowsNodePool) -> bool {
    let status = pool.status.clone().unwrap_or_default();
    status.observed_generation == pool.metadata.generation && conditions::is_true(&status.conditions, kind::READY)
}

pub(crate) fn status(instance: &WindowsInstance) -> api::WindowsInstanceStatus {
    instance.status.clone().unwrap_or_default()
}

pub(crate) fn pool_status(pool: &WindowsNodePool) -> api::WindowsNodePoolStatus {
    pool.status.clone().unwrap_or_default()
}

pub(crate) fn has(list: &[Condition], type_: &str, status: &str, reason: impl AsRef<str>) -> bool {
    conditions::find(list, type_).is_some_and(|c| c.status == status && c.reason == reason.as_ref())
}

pub(crate) fn ready_condition(instance: &WindowsInstance) -> Result<Condition> {
    conditions::find(&status(instance).conditions, kind::READY).cloned().context("the instance has no condition Ready")
}

pub(crate) fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true)
}

/// Reports whether this operator cordoned the node.
pub(crate) fn is_cordoned_by_us(node: &Node) -> bool {
    node.annotations().contains_key(key::CORDONED_BY)
}

/// Returns all Nodes.
pub(crate) async fn nodes(client: &Client) -> Result<Vec<Node>> {
    Ok(Api::<Node>::all(client.clone()).list(&ListParams::default()).await?.items)
}
