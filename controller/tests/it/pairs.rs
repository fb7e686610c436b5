//! Events of a pool, in pairs: the first, then the second, then both are reverted. After each pair, the hosts are nodes of the pool as before, no
//! node is cordoned, and the status is correct. Unless the pool was deleted or renamed, they are also the same Nodes. In the end, no reconcile
//! repeats without a change.
//!
//! `PAIR` selects one pair by its number.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use api::{WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, conditions::kind, names::key};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRole,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::sim::{SimHost, SimOptions};

use crate::{
    fleet::{OUTLIVES_API_SERVER, World, has, is_cordoned, is_ready, pool_status, spec},
    removal::pod,
    repair::{mark_node_not_ready, stop_services},
};

/// Event that happens to one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Deleted,
    Renamed,
    Paused,
    InPlan,
    Emptied,
    /// The deletion policy becomes Orphan, and a host is removed from the list.
    Orphaned,
    HostsMoved,
    ListUnreadable,
    DrainBlocked,
    WindowClosed,
    HostOff,
    /// A host was off, and its Node is still reported as not Ready.
    HostBack,
    /// A node does not work, and a change of the others has to wait for it.
    BudgetUsedUp,
}

const EVENTS: [Event; 13] = [
    Event::Deleted,
    Event::Renamed,
    Event::Paused,
    Event::InPlan,
    Event::Emptied,
    Event::Orphaned,
    Event::HostsMoved,
    Event::ListUnreadable,
    Event::DrainBlocked,
    Event::WindowClosed,
    Event::HostOff,
    Event::HostBack,
    Event::BudgetUsedUp,
];

/// Pool of three hosts, and the events that happened to it.
#[derive(Clone)]
struct Subject {
    name: String,
    hosts: Vec<SimHost>,
    nodes: BTreeMap<String, Option<String>>,
    /// Current spec of the pool.
    now: Value,
    happened: Vec<Event>,
}

impl Subject {
    async fn new(world: &World, name: &str) -> Result<Self> {
        let hosts = world.hosts(name, 3).await?;
        let now = serde_json::to_value(spec(&hosts))?;
        let mut subject = Self { name: name.into(), hosts, nodes: BTreeMap::new(), now, happened: Vec::new() };
        world.join(name, &subject.declared()?).await?;
        pod(world, "guarded", subject.hosts[0].name(), &[("guards", name)]).await?;
        for host in &subject.hosts {
            let node = world.node(host.name()).await?.context("no Node")?;
            subject.nodes.insert(host.name().into(), node.uid());
        }
        Ok(subject)
    }

    /// Returns a subject with the same hosts, and without events.
    async fn again(&self, world: &World) -> Result<Self> {
        let now = serde_json::to_value(spec(&self.hosts))?;
        let mut subject = Self { nodes: BTreeMap::new(), now, happened: Vec::new(), ..self.clone() };
        for host in &self.hosts {
            let node = world.node(host.name()).await?.context("no Node")?;
            subject.nodes.insert(host.name().into(), node.uid());
        }
        // The last drain may have evicted the pod.
        let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
        if pods.get_opt(&format!("guarded-{}", self.hosts[0].name())).await?.is_none() {
            pod(world, "guarded", self.hosts[0].name(), &[("guards", &self.name)]).await?;
        }
        Ok(subject)
    }

    fn declared(&self) -> Result<WindowsNodePoolSpec> {
        Ok(serde_json::from_value(self.now.clone())?)
    }

    fn pools(world: &World) -> Api<WindowsNodePool> {
        Api::all(world.client.clone())
    }

    /// Returns the name of the pool that takes over the hosts of this one, or one of them.
    fn other(&self) -> String {
        format!("{}-other", self.name)
    }

    /// Replaces parts of the declaration, and applies it unless the pool is missing or being deleted.
    async fn declare(&mut self, world: &World, change: Value) -> Result<()> {
        merge(&mut self.now, change);
        let deleting =
            Self::pools(world).get_opt(&self.name).await?.is_none_or(|p| p.metadata.deletion_timestamp.is_some());
        if deleting { Ok(()) } else { self.put(world, &self.name).await }
    }

    async fn put(&self, world: &World, name: &str) -> Result<()> {
        // Replaces the whole spec, as `kubectl replace` does.
        for _ in 0..50 {
            let mut pool = WindowsNodePool::new(name, self.declared()?);
            let found = Self::pools(world).get_opt(name).await?;
            let stored = match found {
                Some(found) => {
                    pool.metadata = found.metadata;
                    Self::pools(world).replace(name, &PostParams::default(), &pool).await
                }
                None => Self::pools(world).create(&PostParams::default(), &pool).await,
            };
            match stored {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {}
                Err(error) => return Err(error.into()),
            }
        }
        bail!("{name} is changed all the time")
    }

    async fn happens(&mut self, world: &World, event: Event) -> Result<()> {
        self.happened.push(event);
        // The rollout of this change drains the nodes.
        let drastic = json!({"template": {"spec": {"containerd": {"maxConcurrentDownloads": 5}}}});
        match event {
            Event::Deleted => {
                let _ = Self::pools(world).delete(&self.name, &DeleteParams::default()).await;
                Ok(())
            }
            Event::Renamed => {
                let _ = Self::pools(world).delete(&self.name, &DeleteParams::default()).await;
                self.put(world, &self.other()).await
            }
            Event::Paused => self.declare(world, json!({"rollout": {"paused": true}})).await,
            Event::InPlan => self.declare(world, json!({"mode": "Plan"})).await,
            Event::Emptied => self.declare(world, json!({"inventory": {"hosts": [], "configMapRef": null}})).await,
            Event::Orphaned => {
                let hosts = entries(&self.hosts[..2]);
                self.declare(
                    world,
                    json!({"deletionPolicy": "Orphan", "inventory": {"hosts": hosts, "configMapRef": null}}),
                )
                .await
            }
            Event::HostsMoved => {
                let (stay, move_) = (entries(&self.hosts[..2]), entries(&self.hosts[2..]));
                self.declare(world, json!({"inventory": {"hosts": stay, "configMapRef": null}})).await?;
                let mut other: Value = self.now.clone();
                other["inventory"] = json!({"hosts": move_});
                for field in ["mode", "rollout", "deletionPolicy"] {
                    other.as_object_mut().context("it is not an object")?.remove(field);
                }
                world.apply(&self.other(), &serde_json::from_value(other)?).await
            }
            Event::ListUnreadable => {
                let gone = json!({"configMapRef": {"name": format!("{}-gone", self.name)}, "hosts": null});
                self.declare(world, json!({"inventory": gone})).await
            }
            Event::DrainBlocked => {
                let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(world.client.clone());
                let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": self.name},
                    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"guards": self.name}}}});
                budgets.patch(&self.name, &PatchParams::apply("a-person"), &Patch::Apply(budget)).await?;
                self.declare(world, drastic).await
            }
            Event::WindowClosed => {
                let far = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(12);
                let schedule = far.strftime("%M %H * * *").to_string();
                let windows = json!([{"schedule": schedule, "durationSeconds": 3600}]);
                let mut change = drastic;
                merge(&mut change, json!({"rollout": {"maintenanceWindows": windows}}));
                self.declare(world, change).await
            }
            Event::HostOff => {
                self.hosts[1].power_off();
                let _ = mark_node_not_ready(world, self.hosts[1].name()).await;
                Ok(())
            }
            Event::HostBack => {
                self.hosts[1].power_off();
                let _ = mark_node_not_ready(world, self.hosts[1].name()).await;
                self.hosts[1].power_on();
                Ok(())
            }
            Event::BudgetUsedUp => {
                stop_services(&self.hosts[1]);
                let _ = mark_node_not_ready(world, self.hosts[1].name()).await;
                self.declare(world, drastic).await
            }
        }
    }

    /// Waits until the status of the pool is correct: it has observed the current generation, and counts no more Ready nodes than there are.
    async fn has_a_true_status(&self, world: &World) -> Result<()> {
        let nodes: Api<Node> = Api::all(world.client.clone());
        let seen = || async {
            let Ok(Some(pool)) = Self::pools(world).get_opt(&self.name).await else { return true };
            let of_pool = ListParams::default().labels(&format!("{}={}", key::POOL, self.name));
            let Ok(nodes) = nodes.list(&of_pool).await else { return false };
            let status = pool_status(&pool);
            let ready = nodes.items.iter().filter(|node| wnp_core::node::ready(node).0).count();
            let is_seen = status.observed_generation == pool.metadata.generation;
            // The last status of a pool that is being deleted may count Nodes that the pool has lost since.
            is_seen
                && (pool.metadata.deletion_timestamp.is_some()
                    || status.ready_nodes <= i32::try_from(ready).unwrap_or(0))
        };
        world.eventually(&format!("{}: its status is true after {:?}", self.name, self.happened), seen).await
    }

    /// Reverts all events.
    async fn take_back(&mut self, world: &World) -> Result<()> {
        self.hosts.iter().for_each(SimHost::power_on);
        let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(world.client.clone());
        let _ = budgets.delete(&self.name, &DeleteParams::default()).await;
        self.now = serde_json::to_value(spec(&self.hosts))?;
        // A deletion cannot be reverted, and a pause would hold it up.
        let is_going = || async {
            matches!(Self::pools(world).get_opt(&self.name).await, Ok(Some(p)) if p.metadata.deletion_timestamp.is_some())
        };
        if is_going().await {
            let go_on = json!({"spec": {"rollout": {"paused": false}}});
            let _ = Self::pools(world).patch(&self.name, &PatchParams::default(), &Patch::Merge(go_on)).await;
            let is_gone = || async { !is_going().await };
            world.eventually(&format!("{} is gone after {:?}", self.name, self.happened), is_gone).await?;
        }
        self.put(world, &self.name).await?;
        let _ = Self::pools(world).delete(&self.other(), &DeleteParams::default()).await;
        Ok(())
    }

    /// Waits until everything is as before the events.
    async fn is_as_before(&self, world: &World) -> Result<()> {
        let done = |p: &WindowsNodePool| {
            let status = pool_status(p);
            is_ready(p)
                && (status.hosts, status.ready_nodes, status.up_to_date_nodes) == (3, 3, 3)
                && (status.unavailable_nodes, status.failed_nodes, status.removing_nodes) == (0, 0, 0)
                && has(&status.conditions, kind::DEGRADED, "False", "AsExpected")
                && status.conditions.iter().all(|c| c.type_ != kind::STALLED && c.type_ != kind::RECONCILING)
        };
        world.until(&self.name, &format!("{} is as before after {:?}", self.name, self.happened), done).await?;
        // A cordon that was just being set is removed again.
        let no_cordon = || async {
            let nodes = futures::future::join_all(self.hosts.iter().map(|host| world.node(host.name()))).await;
            nodes.into_iter().all(|node| matches!(node, Ok(Some(node)) if !is_cordoned(&node)))
        };
        world.eventually(&format!("{}: no node is cordoned after {:?}", self.name, self.happened), no_cordon).await?;
        let is_rebuilt = self.happened.iter().any(|event| [Event::Deleted, Event::Renamed].contains(event));
        for host in &self.hosts {
            let node = world.node(host.name()).await?.context("no Node")?;
            let is_same = self.nodes.get(host.name()) == Some(&node.uid());
            ensure!(is_same || is_rebuilt, "{} was rebuilt by {:?}", host.name(), self.happened);
            let stays = |i: &WindowsInstance| !i.is_leaving() && i.spec.pool_ref.name == self.name;
            world.until_instance(host.name(), &format!("it stays after {:?}", self.happened), stays).await?;
        }
        Ok(())
    }
}

fn entries(hosts: &[SimHost]) -> Value {
    json!(hosts.iter().map(crate::fleet::entry).collect::<Vec<_>>())
}

/// Applies a JSON merge patch.
fn merge(value: &mut Value, change: Value) {
    match (value, change) {
        (Value::Object(map), Value::Object(change)) => {
            for (name, change) in change {
                if change.is_null() {
                    map.remove(&name);
                } else {
                    merge(map.entry(name).or_insert(Value::Null), change);
                }
            }
        }
        (value, change) => *value = change,
    }
}

/// Waits until the operator makes almost no reconciles. Fails if reconciles repeat without a change.
pub(crate) async fn is_quiet(world: &World) -> Result<()> {
    let reconciles = || world.operator.metric("windows_node_pool_reconciles_total");
    let pools = Api::<WindowsNodePool>::all(world.client.clone()).list(&ListParams::default()).await?.items.len();
    // The reconciles that the last changes have triggered are over once a period has almost none.
    let rests = || async {
        let before = reconciles().await.unwrap_or_default();
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        let made = reconciles().await.map(|after| after - before);
        println!("{made:?} reconciles in 5 s of {pools} pools");
        made.is_ok_and(|made| made <= f64::from(u32::try_from(pools).unwrap_or(u32::MAX)) / 4.0)
    };
    world.eventually("no reconcile repeats without a change", rests).await
}

async fn pair(world: &World, number: usize, first: Event, second: Event) -> Result<()> {
    let mut subject = Subject::new(world, &format!("p{number}")).await?;
    subject.happens(world, first).await?;
    // In every second pair, the operator has reacted to the first event before the second.
    if number.is_multiple_of(2) {
        subject.has_a_true_status(world).await?;
    }
    subject.happens(world, second).await?;
    subject.has_a_true_status(world).await?;
    subject.take_back(world).await?;
    subject.is_as_before(world).await
}

#[tokio::test(flavor = "multi_thread")]
async fn any_two_things_that_happen_to_a_pool_can_be_taken_back() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let pairs = EVENTS.iter().flat_map(|first| EVENTS.iter().map(move |second| (*first, *second)));
    // Each pair is tested once, every third one in reverse order.
    let pairs = pairs.filter(|(first, second)| first < second).enumerate();
    let pairs =
        pairs.map(|(n, (first, second))| if n.is_multiple_of(3) { (n, second, first) } else { (n, first, second) });
    let only = std::env::var("PAIR").ok().and_then(|n| n.parse::<usize>().ok());
    let failures: Vec<String> = stream::iter(pairs.filter(|(n, ..)| only.is_none_or(|only| only == *n)))
        .map(|(n, first, second)| {
            let world = &world;
            async move {
                pair(world, n, first, second).await.err().map(|e| format!("PAIR={n} {first:?}, {second:?}: {e:#}"))
            }
        })
        .buffer_unordered(20)
        .filter_map(|failure| async { failure })
        .collect()
        .await;
    ensure!(failures.is_empty(), "{} pairs failed:\n{}", failures.len(), failures.join("\n\n"));
    is_quiet(&world).await
}

/// Event that happens to all pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfAll {
    OperatorRestarted,
    ApiServerRestarted,
    WatchDead,
}

/// Removes the operator's right to list and watch Nodes, or restores it.
async fn let_see_nodes(world: &World, may: bool) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(world.client.clone());
    let mut role = roles.get("windows-node-pools").await?;
    for rule in role.rules.iter_mut().flatten() {
        if rule.resources.as_ref().is_some_and(|resources| resources.iter().any(|r| r == "nodes")) {
            rule.verbs.retain(|verb| verb != "watch" && verb != "list");
            if may {
                rule.verbs.extend(["list".to_owned(), "watch".to_owned()]);
            }
        }
    }
    roles.replace("windows-node-pools", &PostParams::default(), &role).await?;
    Ok(())
}

async fn of_each<F: Future<Output = Result<()>>>(
    subjects: &mut [(Event, Subject)],
    what: impl Fn(Event, Subject) -> F,
) -> Result<()> {
    let failures: Vec<String> = stream::iter(subjects.iter())
        .map(|(event, subject)| {
            let done = what(*event, subject.clone());
            async move {
                let failure = done.await.err().map(|e| format!("{event:?}: {e:#}"));
                // The failure is printed now, because the other subjects may take minutes more.
                failure.inspect(|failure| println!("{failure}"))
            }
        })
        .buffer_unordered(13)
        .filter_map(|failure| async { failure })
        .collect()
        .await;
    ensure!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes five minutes: it runs by night"]
async fn what_happens_to_a_pool_and_to_the_cluster_can_be_taken_back() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &OUTLIVES_API_SERVER).await?;
    let mut subjects = Vec::new();
    for event in EVENTS {
        subjects.push((event, Subject::new(&world, &format!("{event:?}").to_lowercase()).await?));
    }
    for of_all in [OfAll::OperatorRestarted, OfAll::ApiServerRestarted, OfAll::WatchDead] {
        for (event, subject) in &mut subjects {
            subject.happens(&world, *event).await?;
        }
        match of_all {
            OfAll::OperatorRestarted => world.restart().await?,
            OfAll::ApiServerRestarted => world.control_plane.restart_apiserver().await?,
            OfAll::WatchDead => {
                let_see_nodes(&world, false).await?;
                world.control_plane.restart_apiserver().await?;
                let blind = |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::READY, "False", "ApiError");
                world.until("paused", "it says that Nodes are not seen", blind).await?;
                let_see_nodes(&world, true).await?;
            }
        }
        let world = &world;
        let taken_back = |_, mut subject: Subject| async move {
            subject.has_a_true_status(world).await?;
            subject.take_back(world).await?;
            subject.is_as_before(world).await
        };
        of_each(&mut subjects, taken_back).await.with_context(|| format!("{of_all:?}"))?;
        for (_, subject) in &mut subjects {
            *subject = subject.again(world).await?;
        }
    }
    is_quiet(&world).await
}
