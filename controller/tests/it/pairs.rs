//! Everything that may happen to a pool, in pairs: the first, then the second, then both are taken back. Whatever the two are, at the end the hosts are
//! the nodes that they were, nothing is cordoned, the status is true, and nothing is left to do.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use api::{WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, conditions::kind, names::key};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::{core::v1::Node, policy::v1::PodDisruptionBudget};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::sim::{SimHost, SimOptions};

use crate::{
    fleet::{World, has, is_cordoned, is_ready, pool_status, spec_with},
    removal::pod,
    repair::{fell, say_not_ready},
};

/// Something that happens to one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Deleted,
    Renamed,
    Paused,
    InPlan,
    Emptied,
    Orphaned,
    HostsMoved,
    ListUnreadable,
    DrainBlocked,
    WindowClosed,
    HostOff,
    HostBack,
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

/// A pool of three hosts, and what happened to it.
struct Subject<'a> {
    world: &'a World,
    name: String,
    hosts: Vec<SimHost>,
    nodes: BTreeMap<String, Option<String>>,
    /// As it is declared now.
    now: Value,
    happened: Vec<Event>,
}

impl<'a> Subject<'a> {
    async fn new(world: &'a World, name: &str) -> Result<Self> {
        let hosts = world.hosts(name, 3).await?;
        let now = serde_json::to_value(spec_with(&hosts, json!({"rollout": {"order": "Name"}})))?;
        let mut subject = Self { world, name: name.into(), hosts, nodes: BTreeMap::new(), now, happened: Vec::new() };
        world.join(name, &subject.declared()?).await?;
        pod(world, "guarded", subject.hosts[0].name(), &[("guards", name)]).await?;
        for host in &subject.hosts {
            let node = world.node(host.name()).await?.context("no Node")?;
            subject.nodes.insert(host.name().into(), node.uid());
        }
        Ok(subject)
    }

    fn declared(&self) -> Result<WindowsNodePoolSpec> {
        Ok(serde_json::from_value(self.now.clone())?)
    }

    fn pools(&self) -> Api<WindowsNodePool> {
        Api::all(self.world.client.clone())
    }

    /// Name of the pool that takes the place of this one, or one of its hosts.
    fn other(&self) -> String {
        format!("{}-other", self.name)
    }

    /// Replaces parts of the declaration, and applies it where the pool is still there.
    async fn declare(&mut self, change: Value) -> Result<()> {
        merge(&mut self.now, change);
        let deleting = self.pools().get_opt(&self.name).await?.is_none_or(|p| p.metadata.deletion_timestamp.is_some());
        if deleting { Ok(()) } else { self.put(&self.name).await }
    }

    async fn put(&self, name: &str) -> Result<()> {
        // As `kubectl replace` does: the declaration alone.
        for _ in 0..50 {
            let mut pool = WindowsNodePool::new(name, self.declared()?);
            let found = self.pools().get_opt(name).await?;
            let stored = match found {
                Some(found) => {
                    pool.metadata = found.metadata;
                    self.pools().replace(name, &PostParams::default(), &pool).await
                }
                None => self.pools().create(&PostParams::default(), &pool).await,
            };
            match stored {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {}
                Err(error) => return Err(error.into()),
            }
        }
        bail!("{name} is changed all the time")
    }

    async fn happens(&mut self, event: Event) -> Result<()> {
        self.happened.push(event);
        // A change that takes a drain.
        let drastic = json!({"template": {"spec": {"containerd": {"maxConcurrentDownloads": 5}}}});
        match event {
            Event::Deleted => {
                let _ = self.pools().delete(&self.name, &DeleteParams::default()).await;
                Ok(())
            }
            Event::Renamed => {
                let _ = self.pools().delete(&self.name, &DeleteParams::default()).await;
                self.put(&self.other()).await
            }
            Event::Paused => self.declare(json!({"rollout": {"paused": true}})).await,
            Event::InPlan => self.declare(json!({"mode": "Plan"})).await,
            Event::Emptied => self.declare(json!({"inventory": {"hosts": [], "configMapRef": null}})).await,
            Event::Orphaned => {
                let hosts = entries(&self.hosts[..2]);
                self.declare(json!({"deletionPolicy": "Orphan", "inventory": {"hosts": hosts, "configMapRef": null}}))
                    .await
            }
            Event::HostsMoved => {
                let (stay, move_) = (entries(&self.hosts[..2]), entries(&self.hosts[2..]));
                self.declare(json!({"inventory": {"hosts": stay, "configMapRef": null}})).await?;
                let mut other: Value = self.now.clone();
                other["inventory"] = json!({"hosts": move_});
                for field in ["mode", "rollout", "deletionPolicy"] {
                    other.as_object_mut().context("it is an object")?.remove(field);
                }
                self.world.apply(&self.other(), &serde_json::from_value(other)?).await
            }
            Event::ListUnreadable => {
                let gone = json!({"configMapRef": {"name": format!("{}-gone", self.name)}, "hosts": null});
                self.declare(json!({"inventory": gone})).await
            }
            Event::DrainBlocked => {
                let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(self.world.client.clone());
                let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": self.name},
                    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"guards": self.name}}}});
                budgets.patch(&self.name, &PatchParams::apply("a-person"), &Patch::Apply(budget)).await?;
                self.declare(drastic).await
            }
            Event::WindowClosed => {
                let far = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(12);
                let schedule = far.strftime("%M %H * * *").to_string();
                let windows = json!([{"name": "calm", "schedule": schedule, "durationSeconds": 3600}]);
                let mut change = drastic;
                merge(&mut change, json!({"rollout": {"maintenanceWindows": windows}}));
                self.declare(change).await
            }
            Event::HostOff => {
                self.hosts[1].power_off();
                let _ = say_not_ready(self.world, self.hosts[1].name()).await;
                Ok(())
            }
            Event::HostBack => {
                self.hosts[1].power_off();
                let _ = say_not_ready(self.world, self.hosts[1].name()).await;
                self.hosts[1].power_on();
                Ok(())
            }
            Event::BudgetUsedUp => {
                fell(&self.hosts[1]);
                let _ = say_not_ready(self.world, self.hosts[1].name()).await;
                self.declare(drastic).await
            }
        }
    }

    /// The status of the pool is true: it has seen its declaration, and its numbers are those of the cluster.
    async fn has_a_true_status(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.world.client.clone());
        let seen = || async {
            let Ok(Some(pool)) = self.pools().get_opt(&self.name).await else { return true };
            let of_pool = ListParams::default().labels(&format!("{}={}", key::POOL, self.name));
            let Ok(nodes) = nodes.list(&of_pool).await else { return false };
            let status = pool_status(&pool);
            let ready = nodes.items.iter().filter(|node| wnp_core::node::ready(node).0).count();
            let is_seen = status.observed_generation == pool.metadata.generation;
            // A pool that is being deleted counts no node as its own any more.
            is_seen
                && (pool.metadata.deletion_timestamp.is_some()
                    || status.ready_nodes <= i32::try_from(ready).unwrap_or(0))
        };
        self.world.eventually(&format!("{}: its status is true after {:?}", self.name, self.happened), seen).await
    }

    /// Takes everything back.
    async fn take_back(&mut self) -> Result<()> {
        self.hosts.iter().for_each(SimHost::power_on);
        let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(self.world.client.clone());
        let _ = budgets.delete(&self.name, &DeleteParams::default()).await;
        self.now = serde_json::to_value(spec_with(&self.hosts, json!({"rollout": {"order": "Name"}})))?;
        // A deletion cannot be taken back. A pause would keep it from its end.
        let is_going = || async {
            matches!(self.pools().get_opt(&self.name).await, Ok(Some(p)) if p.metadata.deletion_timestamp.is_some())
        };
        if is_going().await {
            let go_on = json!({"spec": {"rollout": {"paused": false}}});
            let _ = self.pools().patch(&self.name, &PatchParams::default(), &Patch::Merge(go_on)).await;
            let is_gone = || async { !is_going().await };
            self.world.eventually(&format!("{} is gone after {:?}", self.name, self.happened), is_gone).await?;
        }
        self.put(&self.name).await?;
        let _ = self.pools().delete(&self.other(), &DeleteParams::default()).await;
        Ok(())
    }

    /// All is as it was.
    async fn is_as_before(&self) -> Result<()> {
        let done = |p: &WindowsNodePool| {
            let status = pool_status(p);
            is_ready(p)
                && (status.hosts, status.ready_nodes, status.up_to_date_nodes) == (3, 3, 3)
                && (status.unavailable_nodes, status.failed_nodes, status.removing_nodes) == (0, 0, 0)
                && has(&status.conditions, kind::DEGRADED, "False", "AsExpected")
                && status.conditions.iter().all(|c| c.type_ != kind::STALLED && c.type_ != kind::RECONCILING)
        };
        self.world.until(&self.name, &format!("{} is as before after {:?}", self.name, self.happened), done).await?;
        // A cordon that was on its way is lifted again.
        let no_cordon = || async {
            let nodes = futures::future::join_all(self.hosts.iter().map(|host| self.world.node(host.name()))).await;
            nodes.into_iter().all(|node| matches!(node, Ok(Some(node)) if !is_cordoned(&node)))
        };
        self.world
            .eventually(&format!("{}: no node is cordoned after {:?}", self.name, self.happened), no_cordon)
            .await?;
        let is_rebuilt = self.happened.iter().any(|event| [Event::Deleted, Event::Renamed].contains(event));
        for host in &self.hosts {
            let node = self.world.node(host.name()).await?.context("no Node")?;
            let is_same = self.nodes.get(host.name()) == Some(&node.uid());
            ensure!(is_same || is_rebuilt, "{} was rebuilt by {:?}", host.name(), self.happened);
            let stays = |i: &WindowsInstance| !i.is_leaving() && i.spec.pool_ref.name == self.name;
            self.world.until_instance(host.name(), &format!("it stays after {:?}", self.happened), stays).await?;
        }
        Ok(())
    }
}

fn entries(hosts: &[SimHost]) -> Value {
    json!(hosts.iter().map(crate::fleet::entry).collect::<Vec<_>>())
}

/// A JSON merge patch.
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

/// Nothing is reconciled again and again when all is done.
async fn is_quiet(world: &World) -> Result<()> {
    let reconciles = || world.operator.metric("windows_node_pool_reconciles_total");
    let pools = Api::<WindowsNodePool>::all(world.client.clone()).list(&ListParams::default()).await?.items.len();
    // What the last changes have set off is done when there is a moment without any.
    let rests = || async {
        let before = reconciles().await.unwrap_or_default();
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        reconciles()
            .await
            .is_ok_and(|after| after - before <= f64::from(u32::try_from(pools).unwrap_or(u32::MAX)) / 4.0)
    };
    world.eventually("no reconcile repeats without a change", rests).await
}

async fn pair(world: &World, number: usize, first: Event, second: Event) -> Result<()> {
    let mut subject = Subject::new(world, &format!("p{number}")).await?;
    subject.happens(first).await?;
    // Sometimes the second one comes at once, and sometimes the operator has reacted to the first.
    if number.is_multiple_of(2) {
        subject.has_a_true_status().await?;
    }
    subject.happens(second).await?;
    subject.has_a_true_status().await?;
    subject.take_back().await?;
    subject.is_as_before().await
}

#[tokio::test(flavor = "multi_thread")]
async fn any_two_things_that_happen_to_a_pool_can_be_taken_back() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let pairs = EVENTS.iter().flat_map(|first| EVENTS.iter().map(move |second| (*first, *second)));
    // Each pair once; the order is turned from one to the next.
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
