//! Random walk over the real operator, API server and simulated hosts: users edit lists, swap and rename entries, restart, cut, repair, cordon,
//! hold, pause and delete, in any order and at any moment, and the operator is killed in between. The test checks that, whatever they do:
//!
//! * no container of a Ready node ends without a drain, unless a user has restarted the host or switched it off,
//! * no host is deconfigured whose name is listed, unless a user has deleted its WindowsInstance,
//! * no host changes from one Node name to another without having been deconfigured,
//! * no more Ready nodes of a pool than `maxUnavailable` are cordoned by the operator,
//! * once users stop, and do what messages request, every listed host becomes a Ready node.
//!
//! `WALK_SEED` repeats the users' acts of a walk, `WALK_STEPS` sets its length.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use api::{
    Host, Step, WindowsInstance, WindowsNodePoolSpec,
    host::{Marker, ServiceState},
    names::key,
};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use russh::keys::HashAlg;
use serde_json::{Value, json};
use testbed::sim::{Fault, SimHost, SimOptions};
use tokio::task::JoinHandle;

use crate::{
    fleet::{World, entry, is_cordoned, is_cordoned_by_us, is_ready, spec_with},
    pairs::is_quiet,
    rollout::{create_workload, node_is_ready, schedule},
};

const POOLS: [&str; 2] = ["east", "west"];
/// Number of hosts of each pool.
const HOSTS: usize = 3;
/// Numbers of steps of the walk with the fixed seed, and of the one with a fresh seed.
const STEPS: [usize; 2] = [50, 20];
/// Interval at which the hosts are read.
const POLL: Duration = Duration::from_millis(10);
/// Time for which a name must have been listed for a deconfiguration of its host to be a violation: earlier reasons are over by then.
const LISTED: Duration = Duration::from_secs(30);
/// Time for which a user's act on a host explains that its containers end.
const EXPLAINED: Duration = Duration::from_secs(15);
/// Time after which a watch has caught up.
const CAUGHT_UP: Duration = Duration::from_secs(5);

/// Current intent of the users.
struct Model {
    /// Entries of each pool: name, and number of the host to which the address leads.
    lists: [BTreeMap<String, usize>; 2],
    /// Number of concurrent downloads of each pool. Changing this number drains the nodes.
    downloads: [i32; 2],
    paused: [bool; 2],
    renamed: usize,
    off: BTreeSet<usize>,
}

/// Observations of independent watchers.
#[derive(Default)]
struct Seen {
    nodes: BTreeMap<String, Node>,
    ready_since: BTreeMap<String, Instant>,
    /// Nodes that were Ready when the operator cordoned them.
    cordoned_while_ready: BTreeSet<String>,
    /// Node and name of each running pod that is not being deleted, by UID.
    pods: BTreeMap<String, (String, String)>,
    /// Time since which each name has been listed.
    listed: BTreeMap<String, Instant>,
    /// Time since which each host has been deconfigured, by name. An entry that returns later does not stop that: its host joins again.
    deconfiguring: BTreeMap<String, Instant>,
    /// Hosts that a user has rebuilt by deleting an instance.
    rebuilt: BTreeSet<String>,
    /// Time of a user's last act on each host that ends its containers.
    explained: BTreeMap<usize, Instant>,
    /// Ends of a host's containers while it had pods: the time, a description, and the UIDs of the pods.
    suspects: Vec<(Instant, String, Vec<String>)>,
    /// Last state of each object, and recent changes, with the second of the walk.
    history: History,
    violations: Vec<String>,
}

impl Seen {
    fn violation(&mut self, what: &str) {
        self.violations.push(format!("{what}\nthe last changes:\n{}", self.history));
    }
}

/// History that a developer needs to find out why a walk failed.
struct History {
    begin: Instant,
    states: BTreeMap<String, String>,
    changes: VecDeque<String>,
}

impl Default for History {
    fn default() -> Self {
        Self { begin: Instant::now(), states: BTreeMap::new(), changes: VecDeque::new() }
    }
}

impl History {
    fn record(&mut self, of: String, state: String) {
        if self.states.get(&of) == Some(&state) {
            return;
        }
        self.changes.push_back(format!("{:>6.1} {of}: {state}", self.begin.elapsed().as_secs_f32()));
        if self.changes.len() > 150 {
            self.changes.pop_front();
        }
        self.states.insert(of, state);
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.changes.iter().try_for_each(|change| writeln!(f, "{change}"))
    }
}

type Shared = Arc<Mutex<Seen>>;

/// Tasks that end on drop.
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

fn watch_nodes(world: &World, seen: Shared) -> JoinHandle<()> {
    let nodes = watcher(Api::<Node>::all(world.client.clone()), watcher::Config::default()).default_backoff();
    tokio::spawn(async move {
        let mut nodes = std::pin::pin!(nodes);
        while let Some(event) = nodes.next().await {
            let mut seen = seen.lock().unwrap();
            match event {
                Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) => {
                    let name = node.name_any();
                    if node_is_ready(&node) {
                        seen.ready_since.entry(name.clone()).or_insert_with(Instant::now);
                    } else {
                        seen.ready_since.remove(&name);
                    }
                    let state = format!(
                        "pool {:?}, Ready {}, unschedulable {}, cordoned by the operator {}",
                        node.labels().get(key::POOL),
                        node_is_ready(&node),
                        is_cordoned(&node),
                        is_cordoned_by_us(&node),
                    );
                    seen.history.record(format!("Node {name}"), state);
                    if !is_cordoned(&node) {
                        seen.cordoned_while_ready.remove(&name);
                    } else if node_is_ready(&node) && seen.nodes.get(&name).is_some_and(|before| !is_cordoned(before)) {
                        seen.cordoned_while_ready.insert(name.clone());
                    }
                    seen.nodes.insert(name, node);
                }
                Ok(watcher::Event::Delete(node)) => {
                    seen.history.record(format!("Node {}", node.name_any()), "deleted".into());
                    seen.nodes.remove(&node.name_any());
                    seen.ready_since.remove(&node.name_any());
                    seen.cordoned_while_ready.remove(&node.name_any());
                }
                _ => {}
            }
            for pool in POOLS {
                let of_pool = |n: &&Node| n.labels().get(key::POOL).is_some_and(|p| p == pool);
                let cordoned: Vec<String> = seen
                    .nodes
                    .values()
                    .filter(of_pool)
                    .filter(|n| is_cordoned_by_us(n) && is_cordoned(n))
                    .map(ResourceExt::name_any)
                    .collect();
                // A node that was not Ready when it was cordoned uses no budget. If it becomes Ready, the operator aborts its operation, which
                // takes a moment.
                let ready = |n: &&String| seen.ready_since.contains_key(*n) && seen.cordoned_while_ready.contains(*n);
                let counted = cordoned.iter().filter(ready).count();
                if counted > 1 {
                    seen.violation(&format!("pool {pool}: {cordoned:?} are cordoned at once"));
                }
            }
        }
    })
}

fn watch_instances(world: &World, seen: Shared) -> JoinHandle<()> {
    let instances = watcher(Api::<WindowsInstance>::all(world.client.clone()), watcher::Config::default());
    tokio::spawn(async move {
        let mut instances = std::pin::pin!(instances.default_backoff());
        while let Some(event) = instances.next().await {
            let (instance, deleted) = match event {
                Ok(watcher::Event::Apply(instance) | watcher::Event::InitApply(instance)) => (instance, ""),
                Ok(watcher::Event::Delete(instance)) => (instance, ", deleted"),
                _ => continue,
            };
            let status = instance.status.clone().unwrap_or_default();
            let state = format!(
                "pool {}, leaving {}, grant {:?}, operation {:?}, version {:?}, retry {:?}{deleted}",
                instance.spec.pool_ref.name,
                instance.is_leaving(),
                instance.spec.grant.as_ref().map(|g| g.type_),
                status.operation.as_ref().map(|o| (o.type_, o.step.as_str())),
                status.current_version,
                status.failures.map(|f| f.next_retry_time),
            );
            let (mut seen, name) = (seen.lock().unwrap(), instance.name_any());
            seen.history.record(format!("WindowsInstance {name}"), state);
            if status.operation.is_some_and(|o| o.step == Step::Deconfigure) {
                seen.deconfiguring.entry(name).or_insert_with(Instant::now);
            } else if instance.metadata.deletion_timestamp.is_none() {
                seen.deconfiguring.remove(&name);
            }
        }
    })
}

fn watch_pods(world: &World, seen: Shared) -> JoinHandle<()> {
    let pods =
        watcher(Api::<Pod>::default_namespaced(world.client.clone()), watcher::Config::default()).default_backoff();
    tokio::spawn(async move {
        let mut pods = std::pin::pin!(pods);
        while let Some(event) = pods.next().await {
            let mut seen = seen.lock().unwrap();
            match event {
                Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => {
                    let uid = pod.uid().unwrap_or_default();
                    let node = pod.spec.as_ref().and_then(|s| s.node_name.clone());
                    let runs = pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
                    match node.filter(|_| runs && pod.metadata.deletion_timestamp.is_none()) {
                        Some(node) => seen.pods.insert(uid, (node, pod.name_any())),
                        None => seen.pods.remove(&uid),
                    };
                }
                Ok(watcher::Event::Delete(pod)) => {
                    seen.pods.remove(&pod.uid().unwrap_or_default());
                }
                _ => {}
            }
        }
    })
}

/// State of a host at one moment.
#[derive(Clone, Default, PartialEq)]
struct Look {
    runs: bool,
    starts: u32,
    boots: u32,
    node: Option<String>,
}

impl Look {
    fn at(host: &SimHost) -> Self {
        let (runs, starts) = {
            let state = host.windows().state();
            let runs = state.services.get("containerd").is_some_and(|s| s.state == ServiceState::Running);
            (runs, state.starts.get("containerd").copied().unwrap_or_default())
        };
        let marker = std::fs::read(host.drive_c().join("k/wicd/state.json")).ok();
        let node = marker.and_then(|m| Some(serde_json::from_slice::<Marker>(&m).ok()?.node_name));
        Self { runs, starts, boots: host.boots(), node }
    }
}

/// Watches the simulated hosts directly, without the API.
fn watch_hosts(hosts: Vec<SimHost>, seen: Shared) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut before: Vec<Look> = hosts.iter().map(Look::at).collect();
        loop {
            for (number, host) in hosts.iter().enumerate() {
                let mut now = Look::at(host);
                // A marker that is being replaced cannot be read for a moment.
                if now.node.is_none() && host.drive_c().join("k/wicd/state.json").exists() {
                    now.node.clone_from(&before[number].node);
                }
                if now != before[number] {
                    judge(&mut seen.lock().unwrap(), number, host.name(), &before[number], &now);
                    before[number] = now;
                }
            }
            settle_suspects(&mut seen.lock().unwrap());
            tokio::time::sleep(POLL).await;
        }
    })
}

fn judge(seen: &mut Seen, number: usize, host: &str, before: &Look, now: &Look) {
    let ended = before.runs && (!now.runs || now.starts > before.starts || now.boots > before.boots);
    let explained = seen.explained.get(&number).is_some_and(|at| at.elapsed() < EXPLAINED);
    if let Some(node) = before.node.as_ref().filter(|_| ended && !explained) {
        let was_ready = seen.ready_since.get(node).is_some_and(|at| at.elapsed() > CAUGHT_UP);
        let there: Vec<(String, String)> = seen
            .pods
            .iter()
            .filter(|(_, (on, _))| on == node)
            .map(|(uid, (_, name))| (uid.clone(), name.clone()))
            .collect();
        if was_ready && !there.is_empty() {
            let names: Vec<&String> = there.iter().map(|(_, name)| name).collect();
            let what = format!("containers of {host} (Node {node}) ended under {names:?}");
            seen.suspects.push((Instant::now(), what, there.into_iter().map(|(uid, _)| uid).collect()));
        }
    }
    match (&before.node, &now.node) {
        (Some(a), Some(b)) if a != b => {
            seen.violation(&format!("{host} went from Node {a} to {b} without having been deconfigured"));
        }
        (Some(name), None) => {
            let begun = seen.deconfiguring.get(name).copied().unwrap_or_else(Instant::now);
            let listed = seen.listed.get(name).is_some_and(|since| begun.saturating_duration_since(*since) > LISTED);
            if listed && !seen.rebuilt.contains(name) {
                seen.violation(&format!("{host} was deconfigured, though {name} is listed"));
            }
        }
        (None, Some(name)) => {
            seen.rebuilt.remove(name);
        }
        _ => {}
    }
}

/// Reports suspects as violations if their pods are still there when the watch has caught up: they were not drained.
fn settle_suspects(seen: &mut Seen) {
    let (over, wait): (Vec<_>, Vec<_>) =
        std::mem::take(&mut seen.suspects).into_iter().partition(|(since, ..)| since.elapsed() > CAUGHT_UP);
    seen.suspects = wait;
    for (_, what, uids) in over {
        if uids.iter().any(|uid| seen.pods.contains_key(uid)) {
            seen.violation(&what);
        }
    }
}

struct Walk {
    world: World,
    hosts: Vec<SimHost>,
    model: Model,
    rng: StdRng,
    journal: Vec<String>,
    seen: Shared,
    _tasks: Tasks,
}

impl Walk {
    async fn new(seed: u64) -> Result<Self> {
        let termination = Duration::from_millis(100);
        let sim = SimOptions { termination, restart: Duration::from_millis(200), ..SimOptions::default() };
        // The timeout is short, because a walk has no time for longer waits.
        let world = World::new(sim, &["--register-timeout", "60s"]).await?;
        let hosts = world.hosts("w", HOSTS * POOLS.len()).await?;
        let list = |range: std::ops::Range<usize>| range.map(|n| (hosts[n].name().to_owned(), n)).collect();
        let model = Model {
            lists: [list(0..HOSTS), list(HOSTS..2 * HOSTS)],
            downloads: [3, 3],
            paused: [false, false],
            renamed: 0,
            off: BTreeSet::new(),
        };
        let seen = Shared::default();
        let tasks = Tasks(vec![
            watch_nodes(&world, seen.clone()),
            watch_instances(&world, seen.clone()),
            watch_pods(&world, seen.clone()),
            watch_hosts(hosts.clone(), seen.clone()),
            schedule(world.client.clone()),
        ]);
        let rng = StdRng::seed_from_u64(seed);
        let mut walk = Self { world, hosts, model, rng, journal: Vec::new(), seen, _tasks: tasks };
        walk.apply(0).await?;
        walk.apply(1).await?;
        Box::pin(walk.converges()).await?;
        create_workload(&walk.world.client, "shop", 8).await?;
        Ok(walk)
    }

    fn spec(&self, pool: usize) -> WindowsNodePoolSpec {
        let mut spec = spec_with(
            &[],
            json!({
                "template": {"spec": {"containerd": {"maxConcurrentDownloads": self.model.downloads[pool]}}},
                "rollout": {"maxUnavailable": 1, "paused": self.model.paused[pool], "maxFailures": 100},
            }),
        );
        let entries = self.model.lists[pool].iter();
        let named = entries.map(|(name, host)| Host { name: name.clone(), ..entry(&self.hosts[*host]) });
        spec.inventory.hosts = Some(named.collect());
        spec
    }

    async fn apply(&mut self, pool: usize) -> Result<()> {
        let names: BTreeSet<String> = self.model.lists.iter().flat_map(|l| l.keys().cloned()).collect();
        {
            let mut seen = self.seen.lock().unwrap();
            seen.listed.retain(|name, _| names.contains(name));
            for name in names {
                seen.listed.entry(name).or_insert_with(Instant::now);
            }
        }
        self.world.apply(POOLS[pool], &self.spec(pool)).await
    }

    fn explain(&self, host: usize) {
        self.seen.lock().unwrap().explained.insert(host, Instant::now());
    }

    /// Returns a listed name, and the pool that lists it.
    fn any_name(&mut self) -> Option<(usize, String)> {
        let pool = self.rng.random_range(0..2);
        let names: Vec<&String> = self.model.lists[pool].keys().collect();
        names.choose(&mut self.rng).map(|name| (pool, (*name).clone()))
    }

    /// Performs a random act of a user, or a random event.
    #[expect(clippy::too_many_lines, reason = "one act after the other")]
    async fn act(&mut self) -> Result<String> {
        let host = self.rng.random_range(0..self.hosts.len());
        let pool = self.rng.random_range(0..2);
        Ok(match self.rng.random_range(0..20) {
            0 | 1 => {
                self.model.downloads[pool] = 11 - self.model.downloads[pool] % 8;
                self.apply(pool).await?;
                format!("{}: a change that takes a drain", POOLS[pool])
            }
            2 | 3 if self.model.lists[pool].len() > 1 => {
                let Some(name) = self.model.lists[pool].keys().next().cloned() else { return Ok("nothing".into()) };
                self.model.lists[pool].remove(&name);
                self.apply(pool).await?;
                format!("{name} is taken out of {}", POOLS[pool])
            }
            4..=6 => {
                let listed: BTreeSet<usize> = self.model.lists.iter().flat_map(|l| l.values().copied()).collect();
                let Some(free) = (0..self.hosts.len()).find(|n| !listed.contains(n)) else {
                    return Ok("nothing".into());
                };
                let name = self.hosts[free].name().to_owned();
                self.model.lists[pool].insert(name.clone(), free);
                self.apply(pool).await?;
                format!("{name} is listed by {}", POOLS[pool])
            }
            7 => {
                let Some((from, name)) = self.any_name() else { return Ok("nothing".into()) };
                if self.model.lists[from].len() < 2 {
                    return Ok("nothing".into());
                }
                let Some(host) = self.model.lists[from].remove(&name) else { return Ok("nothing".into()) };
                self.model.lists[1 - from].insert(name.clone(), host);
                let first = self.rng.random_range(0..2);
                self.apply(first).await?;
                self.apply(1 - first).await?;
                format!("{name} moves to {}, {} is applied first", POOLS[1 - from], POOLS[first])
            }
            8 => {
                let Some((pool, name)) = self.any_name() else { return Ok("nothing".into()) };
                let Some(host) = self.model.lists[pool].remove(&name) else { return Ok("nothing".into()) };
                self.model.renamed += 1;
                let other = format!("r-{}", self.model.renamed);
                self.model.lists[pool].insert(other.clone(), host);
                self.apply(pool).await?;
                format!("{name} is renamed to {other}")
            }
            9 if self.model.lists[pool].len() > 1 => {
                let names: Vec<String> = self.model.lists[pool].keys().take(2).cloned().collect();
                let list = &mut self.model.lists[pool];
                let (a, b) = (list[&names[0]], list[&names[1]]);
                list.extend([(names[0].clone(), b), (names[1].clone(), a)]);
                self.apply(pool).await?;
                format!("the addresses of {names:?} are swapped")
            }
            10 | 11 => {
                self.explain(host);
                self.hosts[host].reboot();
                format!("{} is restarted by a user", self.hosts[host].name())
            }
            12 => {
                self.explain(host);
                let name = self.hosts[host].name().to_owned();
                if self.model.off.remove(&host) {
                    self.hosts[host].power_on();
                    format!("{name} is switched on")
                } else {
                    self.model.off.insert(host);
                    self.hosts[host].power_off();
                    format!("{name} is switched off")
                }
            }
            13 => {
                let Some((_, name)) = self.any_name() else { return Ok("nothing".into()) };
                let cordon = self.rng.random_bool(0.5);
                let patched = self.world.edit_node(&name, json!({"spec": {"unschedulable": cordon}})).await;
                format!("Node {name}: unschedulable {cordon} ({})", if patched.is_ok() { "done" } else { "not there" })
            }
            14 => {
                let faults = [
                    Fault::Refuse,
                    Fault::Hang,
                    Fault::WrongKey,
                    Fault::ChangedHostKey,
                    Fault::DiskFull,
                    Fault::ClockAhead(Duration::from_mins(20)),
                    Fault::CutAfterBytes { bytes: 30_000, once: true },
                ];
                let fault = faults.choose(&mut self.rng).context("there are no faults")?.clone();
                let text = format!("{}: {fault:?}", self.hosts[host].name());
                self.hosts[host].fault(fault);
                text
            }
            15 => {
                self.hosts[host].mend();
                format!("{} is repaired", self.hosts[host].name())
            }
            16 => {
                self.model.paused[pool] = !self.model.paused[pool];
                self.apply(pool).await?;
                format!("{}: paused {}", POOLS[pool], self.model.paused[pool])
            }
            17 => {
                let Some((_, name)) = self.any_name() else { return Ok("nothing".into()) };
                let hold = self.rng.random_bool(0.5).then_some("true");
                let done = self.annotate(&name, key::HOLD, &json!(hold)).await;
                format!("{name}: hold {hold:?} ({done})")
            }
            18 => {
                let Some((_, name)) = self.any_name() else { return Ok("nothing".into()) };
                if self.rng.random_bool(0.5) {
                    let _ = Api::<Node>::all(self.world.client.clone()).delete(&name, &DeleteParams::default()).await;
                    // Kubernetes deletes the pods of a Node that is gone.
                    format!("Node {name} is deleted by a user")
                } else {
                    self.seen.lock().unwrap().rebuilt.insert(name.clone());
                    let instances = Api::<WindowsInstance>::all(self.world.client.clone());
                    let _ = instances.delete(&name, &DeleteParams::default()).await;
                    format!("WindowsInstance {name} is deleted by a user")
                }
            }
            _ => {
                self.world.operator.signal("KILL")?;
                self.world.new_operator().await?;
                "the operator is killed and started".into()
            }
        })
    }

    async fn annotate(&self, name: &str, key: &str, value: &Value) -> &'static str {
        let patch = json!({"metadata": {"annotations": {key: value}}});
        let instances = Api::<WindowsInstance>::all(self.world.client.clone());
        let done = instances.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        if done.is_ok() { "done" } else { "not there" }
    }

    /// Does what the messages of an instance request: allows the host key, or abandons the host.
    async fn trust(&self, instance: &WindowsInstance) {
        // The host of a leaving instance is in no list: it is found by its marker.
        let name = instance.name_any();
        let runs = || self.hosts.iter().position(|h| Look::at(h).node.as_deref() == Some(&name));
        let host = self.model.lists.iter().find_map(|list| list.get(&name).copied()).or_else(runs);
        // A key that was allowed for an entry's earlier host stays the expected one until another key is allowed.
        let allowed = instance.annotations().get(key::TRUST_HOST_KEY);
        let pinned = instance.status.as_ref().and_then(|s| Some(&s.host_key.as_ref()?.fingerprint));
        // An instance that leaves, and whose entry led to another host before its own was configured, can only be abandoned.
        let fails = instance.status.as_ref().is_some_and(|s| s.failures.is_some());
        if instance.is_leaving() && runs().is_none() && fails {
            self.annotate(&name, key::ABANDON, &json!("true")).await;
            return;
        }
        let Some(host) = host else { return };
        let own = self.hosts[host].host_key().fingerprint(HashAlg::Sha256).to_string();
        // Without a key on record, a failed instance needs the key of its host.
        if allowed.or(pinned).map_or(fails, |expected| *expected != own) {
            self.annotate(&name, key::TRUST_HOST_KEY, &json!(own)).await;
        }
    }

    fn check(&self) -> Result<()> {
        let seen = self.seen.lock().unwrap();
        if let Some(violation) = seen.violations.first() {
            bail!("{violation}\nwhat was done:\n{}", self.journal.join("\n"));
        }
        Ok(())
    }

    /// Repairs everything, and waits until the world converges.
    async fn converges(&mut self) -> Result<()> {
        for number in 0..self.hosts.len() {
            self.hosts[number].mend();
            if self.model.off.remove(&number) {
                self.explain(number);
                self.hosts[number].power_on();
            }
        }
        self.model.paused = [false, false];
        self.correct_lists().await?;
        for node in Api::<Node>::all(self.world.client.clone()).list(&kube::api::ListParams::default()).await? {
            if is_cordoned(&node) && !is_cordoned_by_us(&node) {
                let _ = self.world.edit_node(&node.name_any(), json!({"spec": {"unschedulable": null}})).await;
            }
        }
        let instances = Api::<WindowsInstance>::all(self.world.client.clone());
        for instance in instances.list(&kube::api::ListParams::default()).await? {
            self.annotate(&instance.name_any(), key::HOLD, &Value::Null).await;
            let now = json!(format!("{:?}", Instant::now()));
            self.annotate(&instance.name_any(), key::RETRY, &now).await;
        }
        // A host that was already joining by an earlier entry becomes that node: the entries are corrected again.
        let mut attempts = 3;
        loop {
            let result = tokio::select! {
                result = self.all_are_ready() => result,
                () = self.trust_as_asked() => Ok(()),
            };
            attempts -= 1;
            match result {
                Err(_) if attempts > 0 && self.correct_lists().await? => {}
                result => break result?,
            }
        }
        self.check()
    }

    /// Makes each name unique, and its entry lead to the host whose marker has the name, or to any free host. Entries without a host are dropped.
    /// Reports whether a list has changed.
    async fn correct_lists(&mut self) -> Result<bool> {
        let mut free: BTreeSet<usize> = (0..self.hosts.len()).collect();
        let mut lists = self.model.lists.clone();
        // A name that both pools list is removed from one of them.
        let instances = Api::<WindowsInstance>::all(self.world.client.clone());
        let owned = instances.list(&kube::api::ListParams::default()).await?;
        let is_second = |name: &str| owned.iter().any(|i| i.name_any() == name && i.spec.pool_ref.name == POOLS[1]);
        let both: Vec<String> = lists[0].keys().filter(|name| lists[1].contains_key(*name)).cloned().collect();
        for name in both {
            lists[usize::from(!is_second(&name))].remove(&name);
        }
        let named: BTreeMap<String, usize> =
            self.hosts.iter().enumerate().filter_map(|(n, h)| Some((Look::at(h).node?, n))).collect();
        for host in lists.iter_mut().flat_map(BTreeMap::iter_mut) {
            if let Some(own) = named.get(host.0).filter(|n| free.remove(n)) {
                *host.1 = *own;
            } else {
                *host.1 = usize::MAX;
            }
        }
        for list in &mut lists {
            for host in list.values_mut().filter(|h| **h == usize::MAX) {
                *host = free.pop_first().unwrap_or(usize::MAX);
            }
            // No host is left for these entries.
            list.retain(|_, host| *host != usize::MAX);
        }
        // The API server refuses an applier whose list becomes empty.
        for pool in 0..2 {
            if lists[pool].is_empty()
                && let Some((name, host)) = lists[1 - pool].pop_last()
            {
                lists[pool].insert(name, host);
            }
        }
        let is_corrected = self.model.lists != lists;
        self.model.lists = lists;
        for pool in 0..2 {
            self.apply(pool).await?;
        }
        Ok(is_corrected)
    }

    async fn all_are_ready(&self) -> Result<()> {
        for (number, pool) in POOLS.iter().enumerate() {
            let count = i32::try_from(self.model.lists[number].len())?;
            let done = self
                .world
                .until(pool, "left alone, all are Ready", |p| {
                    is_ready(p)
                        && p.status.as_ref().is_some_and(|s| s.ready_nodes == count && s.up_to_date_nodes == count)
                })
                .await;
            done.with_context(|| format!("what was done:\n{}", self.journal.join("\n")))?;
        }
        Ok(())
    }

    /// Allows the host keys that instances report, without end. An entry that has led to another host before waits until a user allows the key.
    async fn trust_as_asked(&self) {
        let instances = Api::<WindowsInstance>::all(self.world.client.clone());
        loop {
            for instance in instances.list(&kube::api::ListParams::default()).await.into_iter().flatten() {
                self.trust(&instance).await;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
}

async fn walk(seed: u64, steps: usize) -> Result<()> {
    println!("WALK_SEED={seed} WALK_STEPS={steps}");
    let mut walk = Box::pin(Walk::new(seed)).await.with_context(|| format!("seed {seed}"))?;
    for step in 0..steps {
        let what = walk.act().await.with_context(|| format!("seed {seed}, step {step}"))?;
        walk.journal.push(format!("{step}: {what}"));
        walk.seen.lock().unwrap().history.record(format!("step {step}"), what);
        walk.check().with_context(|| format!("seed {seed}, step {step}"))?;
        // In about half of the cases, the operator has seen the last change before the next step.
        if walk.rng.random_bool(0.5) {
            let pool = POOLS[walk.rng.random_range(0..2)];
            let observed = |p: &api::WindowsNodePool| {
                p.status.as_ref().and_then(|s| s.observed_generation) == p.metadata.generation
            };
            walk.world.until(pool, "the operator has seen the last change", observed).await?;
        }
        if step % 50 == 49 {
            Box::pin(walk.converges()).await.with_context(|| format!("seed {seed}, step {step}"))?;
            walk.journal.push("all was repaired, and became Ready".into());
        }
    }
    Box::pin(walk.converges()).await.with_context(|| format!("seed {seed}"))?;
    // Left alone, no object is reconciled again without a change.
    is_quiet(&walk.world).await.with_context(|| format!("seed {seed}"))?;
    let seen = walk.seen.lock().unwrap();
    ensure!(!seen.nodes.is_empty() && !seen.pods.is_empty(), "the watchers saw nothing");
    Ok(())
}

fn steps(default: usize) -> usize {
    std::env::var("WALK_STEPS").ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_people_do_nothing_is_lost() -> Result<()> {
    Box::pin(walk(7, steps(STEPS[0]))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_people_do_this_time_nothing_is_lost() -> Result<()> {
    let seed = std::env::var("WALK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    Box::pin(walk(seed, steps(STEPS[1]))).await
}
