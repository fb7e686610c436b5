//! Waits that a host or a pool reports: the test creates and ends the cause of each, and checks that this wakes the host or pool. `WAIT` selects the
//! causes whose name contains it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use api::{
    Reason, Time, WindowsNodePool, WindowsNodePoolSpec,
    conditions::kind,
    names::{DEFAULT_NAMESPACE, key},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::{SignedDuration, Timestamp, Unit};
use k8s_openapi::api::{admissionregistration::v1::ValidatingAdmissionPolicyBinding, core::v1::ConfigMap};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{
    deployment,
    sim::{Fault, SimHost, SimOptions},
};
use wnp_core::wait::{Cause, Hold};

use crate::{
    another_operator::{start_wmco, stop_wmco},
    fleet::{World, entry, has, pool_status, spec_with, status},
    pairs::is_quiet,
    removal::{budget, delete_budget, delete_pool, pod},
    repair::mark_node_not_ready,
};

/// Time within which a wait must end once its cause has ended, on a busy machine. It is shorter than the minute after which a pool is reconciled
/// without an event; a host gets its turn from its pool.
const WOKEN: Duration = Duration::from_secs(50);

/// Pool that waits for one cause.
struct Subject<'a> {
    world: &'a World,
    cause: Cause,
    name: String,
    hosts: Vec<SimHost>,
}

impl<'a> Subject<'a> {
    async fn new(world: &'a World, cause: Cause, hosts: usize) -> Result<Self> {
        let name = format!("wait-{}", Cause::ALL.iter().position(|c| *c == cause).context("it is not listed")?);
        let hosts = world.hosts(&name, hosts).await?;
        Ok(Self { world, cause, name, hosts })
    }

    /// Returns a pool that is paused, so that its host waits to join.
    async fn paused(world: &'a World, cause: Cause) -> Result<Self> {
        let it = Self::new(world, cause, 1).await?;
        it.declare(it.declared(json!({"rollout": {"paused": true}}))).await?;
        it.host_waits(0, "rollout.paused").await?;
        Ok(it)
    }

    fn host(&self, n: usize) -> &str {
        self.hosts[n].name()
    }

    fn declared(&self, more: Value) -> Value {
        json!(spec_with(&self.hosts, more))
    }

    /// Replaces the spec of the pool.
    async fn declare(&self, spec: Value) -> Result<()> {
        self.declare_as(&self.name, spec).await
    }

    async fn declare_as(&self, name: &str, spec: Value) -> Result<()> {
        let pools: Api<WindowsNodePool> = Api::all(self.world.client.clone());
        let spec: WindowsNodePoolSpec = serde_json::from_value(spec)?;
        self.world
            .eventually("the pool is stored", || async {
                let mut pool = WindowsNodePool::new(name, spec.clone());
                let stored = match pools.get_opt(name).await {
                    Ok(Some(found)) => {
                        pool.metadata = found.metadata;
                        pools.replace(name, &PostParams::default(), &pool).await
                    }
                    _ => pools.create(&PostParams::default(), &pool).await,
                };
                stored.is_ok()
            })
            .await
    }

    async fn join(&self, more: Value) -> Result<()> {
        self.declare(self.declared(more)).await?;
        for host in &self.hosts {
            self.world.until_joined(host.name()).await?;
        }
        Ok(())
    }

    /// Waits until host `n` reports that it waits, with `words` in the message.
    async fn host_waits(&self, n: usize, words: &str) -> Result<()> {
        let what = format!("it waits: {words}");
        let waits = |i: &api::WindowsInstance| {
            status(i).conditions.iter().any(|c| c.reason == Reason::Waiting && c.message.contains(words))
        };
        self.world.until_instance(self.host(n), &what, waits).await?;
        Ok(())
    }

    /// Waits until host `n` no longer waits.
    async fn host_goes_on(&self, n: usize) -> Result<()> {
        let goes = || async {
            let instance = self.world.instance(self.host(n)).await;
            instance.is_ok_and(|i| i.is_none_or(|i| !status(&i).conditions.iter().any(|c| c.reason == Reason::Waiting)))
        };
        self.woken(goes).await
    }

    /// Waits until another host is gone, and then until host `n` no longer waits.
    async fn host_goes_on_without(&self, n: usize, other: usize) -> Result<()> {
        let (world, other) = (self.world, self.host(other));
        world.eventually("the other one is gone", || async { matches!(world.instance(other).await, Ok(None)) }).await?;
        self.host_goes_on(n).await
    }

    /// Waits until the pool reports that it waits.
    async fn pool_waits(&self) -> Result<()> {
        let what = format!("it says {}", self.cause.reason());
        self.world.until(&self.name, &what, |p| says(p, self.cause)).await
    }

    /// Waits until the pool no longer waits.
    async fn pool_goes_on(&self) -> Result<()> {
        let goes = || async {
            let pool = Api::<WindowsNodePool>::all(self.world.client.clone()).get_opt(&self.name).await;
            pool.is_ok_and(|p| p.is_none_or(|p| !says(&p, self.cause)))
        };
        self.woken(goes).await
    }

    async fn woken<F: Future<Output = bool>>(&self, goes: impl Fn() -> F) -> Result<()> {
        let what = format!("the wait ends after {:?} has ended", self.cause);
        if let Err(error) = deployment::within(WOKEN, &what, goes).await {
            anyhow::bail!("{error}\n{}", self.world.show().await);
        }
        Ok(())
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.world.client.clone(), DEFAULT_NAMESPACE)
    }

    /// Creates a ConfigMap with all hosts.
    async fn list(&self) -> Result<()> {
        let data: BTreeMap<String, String> =
            self.hosts.iter().map(|h| (h.address().to_string(), "username=Administrator".into())).collect();
        self.fill(&self.name, data).await
    }

    async fn fill(&self, name: &str, data: BTreeMap<String, String>) -> Result<()> {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
        self.maps().patch(name, &PatchParams::apply("a-person").force(), &Patch::Apply(map)).await?;
        Ok(())
    }

    /// Creates a pool that reads the ConfigMap of its hosts, and waits until all are Ready.
    async fn join_by_list(&self) -> Result<()> {
        self.list().await?;
        let port = self.hosts[0].port();
        self.declare(json!({"inventory": {"configMapRef": {"name": self.name}}, "ssh": {"port": port}})).await?;
        let count = i32::try_from(self.hosts.len())?;
        self.world.until(&self.name, "all are Ready", |p| pool_status(p).ready_nodes == count).await
    }
}

fn says(pool: &WindowsNodePool, cause: Cause) -> bool {
    pool_status(pool).conditions.iter().any(|c| c.reason == cause.reason())
}

/// Returns a maintenance window of an hour each day, from this minute on.
pub(crate) fn daily(opens: Timestamp) -> Value {
    json!({"schedule": opens.strftime("%M %H * * *").to_string(), "durationSeconds": 3600})
}

/// Returns fields of a change whose rollout drains the nodes.
fn change(rollout: Value) -> Value {
    json!({"template": {"spec": {"containerd": {"maxConcurrentDownloads": 5}}}, "rollout": rollout})
}

/// Creates one cause, ends it, and checks that the host or pool that waited continues.
#[expect(clippy::too_many_lines, reason = "each cause has an arm of its own")]
async fn goes_on(world: &World, cause: Cause) -> Result<()> {
    let subject = |hosts| Subject::new(world, cause, hosts);
    match cause {
        Cause::Plan => {
            let it = Subject::paused(world, cause).await?;
            it.declare(it.declared(json!({"mode": "Plan"}))).await?;
            it.host_waits(0, "mode Plan").await?;
            it.declare(it.declared(json!({}))).await?;
            it.host_goes_on(0).await
        }
        Cause::Pause => {
            let it = Subject::paused(world, cause).await?;
            // A pause until a time ends by itself, in mode Plan, too.
            let until = |end: Time, mode: &str| it.declared(json!({"mode": mode, "rollout": {"pausedUntil": end}}));
            let later = Time::from(Timestamp::now() + SignedDuration::from_hours(12));
            let words = format!("paused until {later}");
            it.declare(until(later, "Apply")).await?;
            it.host_waits(0, &words).await?;
            world
                .until(&it.name, "it names the end of its pause", |p| {
                    let conditions = pool_status(p).conditions;
                    has(&conditions, kind::PAUSED, "True", Reason::Paused)
                        && has(&conditions, kind::READY, "Unknown", Reason::Paused)
                        && conditions.iter().any(|c| c.type_ == kind::READY && c.message.contains(&words))
                })
                .await?;
            ensure!(it.hosts[0].stats().connections == 0, "a host of a paused pool was logged in to");
            for mode in ["Plan", "Apply"] {
                let soon = Time::from(Timestamp::now() + SignedDuration::from_secs(8));
                it.declare(until(soon, mode)).await?;
                let is_over = |p: &WindowsNodePool| {
                    let status = pool_status(p);
                    status.observed_generation == p.metadata.generation
                        && has(&status.conditions, kind::PAUSED, "False", Reason::AsExpected)
                };
                world.until(&it.name, "the pause is over", is_over).await?;
                ensure!(Time::now() >= soon, "the pause in mode {mode} was over before {soon}");
            }
            it.host_goes_on(0).await
        }
        Cause::Hold => {
            let it = Subject::paused(world, cause).await?;
            world.annotate(it.host(0), key::HOLD, "true").await?;
            it.host_waits(0, key::HOLD).await?;
            it.declare(it.declared(json!({}))).await?;
            it.host_waits(0, key::HOLD).await?;
            world.annotate(it.host(0), key::HOLD, "false").await?;
            it.host_goes_on(0).await
        }
        Cause::TurnToJoin => {
            let it = subject(2).await?;
            it.hosts[0].fault(Fault::HangInCommand);
            it.declare(it.declared(json!({"provisioning": {"maxConcurrent": 1}}))).await?;
            it.host_waits(1, "its turn to join").await?;
            it.hosts[0].mend();
            world.until_joined(it.host(0)).await?;
            it.host_goes_on(1).await
        }
        Cause::TurnToLeave => {
            let it = subject(2).await?;
            it.hosts.iter().for_each(|host| host.fault(Fault::NeverRegisters));
            it.declare(it.declared(json!({"provisioning": {"maxConcurrent": 2}}))).await?;
            for host in &it.hosts {
                let registers = |i: &api::WindowsInstance| {
                    status(i).operation.as_ref().is_some_and(|o| o.step == api::Step::Register)
                };
                world.until_instance(host.name(), "waits for kubelet to register", registers).await?;
                host.fault(Fault::HangInCommand);
            }
            it.declare(it.declared(json!({"provisioning": {"maxConcurrent": 1}}))).await?;
            delete_pool(world, &it.name).await?;
            let waiting = || async {
                let mut waits = Vec::new();
                for (n, host) in it.hosts.iter().enumerate() {
                    let instance = world.instance(host.name()).await.ok().flatten();
                    let says = |c: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
                        c.message.contains("its turn to be deconfigured")
                    };
                    waits.extend(instance.filter(|i| status(i).conditions.iter().any(says)).map(|_| n));
                }
                waits
            };
            world.eventually("one of them waits", || async { waiting().await.len() == 1 }).await?;
            let n = waiting().await.into_iter().next().context("none waits")?;
            it.hosts.iter().for_each(SimHost::mend);
            it.host_goes_on_without(n, 1 - n).await
        }
        Cause::Disruption => {
            let it = subject(3).await?;
            it.join(json!({"rollout": {"maxUnavailable": 1}, "inventory": {"maxRemovals": 3}})).await?;
            for n in 0..2 {
                pod(world, "guarded", it.host(n), &[("app", &it.name)]).await?;
            }
            budget(world, &it.name, &it.name).await?;
            let rest = json!(it.hosts[2..].iter().map(entry).collect::<Vec<_>>());
            let mut spec = it.declared(json!({"rollout": {"maxUnavailable": 1}}));
            spec["inventory"] = json!({"maxRemovals": 3, "hosts": rest});
            it.declare(spec).await?;
            let waits = |n: usize| {
                let it = &it;
                async move {
                    let instance = world.instance(it.host(n)).await.ok().flatten();
                    instance.is_some_and(|i| {
                        status(&i).conditions.iter().any(|c| c.message.contains("one more node may be disrupted"))
                    })
                }
            };
            world.eventually("one of them waits", || async { waits(0).await || waits(1).await }).await?;
            let n = usize::from(waits(1).await);
            delete_budget(world, &it.name).await?;
            it.host_goes_on_without(n, 1 - n).await
        }
        Cause::Window => {
            let it = subject(1).await?;
            it.join(json!({})).await?;
            let before = it.hosts[0].stats();
            // The window opens late enough for the wait to be seen, and soon enough for a test.
            let opens = (Timestamp::now() + SignedDuration::from_secs(90)).round(Unit::Minute)?;
            it.declare(it.declared(change(json!({"maintenanceWindows": [daily(opens)]})))).await?;
            it.pool_waits().await?;
            let is_as_before = it.hosts[0].stats() == before;
            ensure!(is_as_before || Timestamp::now() >= opens, "the host was changed before its window was open");
            let is_open = || async { Timestamp::now() >= opens };
            world.eventually("the window opens", is_open).await?;
            it.pool_goes_on().await
        }
        Cause::Approval => {
            let it = subject(2).await?;
            it.join(json!({})).await?;
            let steps = json!([{"nodes": 1, "approval": true}]);
            it.declare(it.declared(change(json!({"steps": steps})))).await?;
            it.pool_waits().await?;
            let version = pool_status(&world.pool(&it.name).await?).desired_version.context("no version")?;
            it.declare(it.declared(change(json!({"steps": steps, "approvedVersion": version})))).await?;
            it.pool_goes_on().await
        }
        Cause::Soak => {
            let it = subject(2).await?;
            it.join(json!({})).await?;
            let steps = json!([{"nodes": 1, "pauseSeconds": 5}]);
            it.declare(it.declared(change(json!({"steps": steps})))).await?;
            it.pool_waits().await?;
            it.pool_goes_on().await
        }
        Cause::Cordon => {
            let it = subject(2).await?;
            it.join(json!({"rollout": {"maxUnavailable": 1}})).await?;
            world.annotate(it.host(0), key::HOLD, "true").await?;
            world.until_on_hold(it.host(0)).await?;
            it.declare(it.declared(change(json!({"maxUnavailable": 1})))).await?;
            world
                .until(&it.name, "the other one is changed", |p| {
                    pool_status(p).up_to_date_nodes == 1 && says(p, Cause::Hold)
                })
                .await?;
            world.edit_node(it.host(1), json!({"spec": {"unschedulable": true}})).await?;
            world.until(&it.name, "it sees the cordon", |p| pool_status(p).unavailable_nodes >= 1).await?;
            world.annotate(it.host(0), key::HOLD, "false").await?;
            it.pool_waits().await?;
            world.edit_node(it.host(1), json!({"spec": {"unschedulable": false}})).await?;
            it.pool_goes_on().await
        }
        Cause::NotWorking => {
            let it = subject(2).await?;
            let settings = json!({"maxUnavailable": 1});
            it.join(json!({"rollout": settings, "remediation": {"type": "None"}})).await?;
            it.hosts[1].power_off();
            mark_node_not_ready(world, it.host(1)).await?;
            world.until(&it.name, "it sees that the node is down", |p| pool_status(p).ready_nodes == 1).await?;
            let mut spec = change(settings);
            spec["remediation"] = json!({"type": "None"});
            it.declare(it.declared(spec)).await?;
            it.pool_waits().await?;
            it.hosts[1].power_on();
            let is_back = || async {
                world.node(it.host(1)).await.ok().flatten().is_some_and(|node| wnp_core::node::ready(&node).0)
            };
            world.eventually("the node is back", is_back).await?;
            it.pool_goes_on().await
        }
        Cause::Removal(Hold::Missing) => {
            let it = subject(1).await?;
            it.join_by_list().await?;
            it.maps().delete(&it.name, &DeleteParams::default()).await?;
            it.pool_waits().await?;
            it.list().await?;
            it.pool_goes_on().await
        }
        Cause::Removal(Hold::Empty) => {
            let it = subject(1).await?;
            it.join_by_list().await?;
            it.maps().patch(&it.name, &PatchParams::default(), &Patch::Merge(json!({"data": null}))).await?;
            it.pool_waits().await?;
            it.list().await?;
            it.pool_goes_on().await
        }
        Cause::Removal(Hold::Nameless) => {
            let it = subject(2).await?;
            it.join_by_list().await?;
            // The entry of a host is replaced by a DNS name that does not exist.
            let [stays, goes] = [0, 1].map(|n| it.hosts[n].address().to_string());
            let data = json!({"data": {goes: null, "gone.example.invalid": "username=Administrator"}});
            it.maps().patch(&it.name, &PatchParams::default(), &Patch::Merge(data)).await?;
            it.pool_waits().await?;
            ensure!(world.pool(&it.name).await?.status.is_some_and(|s| s.hosts == 2), "{stays} is alone");
            let back = json!({"data": {"gone.example.invalid": null, it.hosts[1].address().to_string(): "username=Administrator"}});
            it.maps().patch(&it.name, &PatchParams::default(), &Patch::Merge(back)).await?;
            it.pool_goes_on().await
        }
        Cause::Removal(Hold::TooMany) => {
            let it = subject(4).await?;
            it.join(json!({})).await?;
            let mut spec = it.declared(json!({}));
            spec["inventory"]["hosts"] = json!([entry(&it.hosts[0])]);
            it.declare(spec).await?;
            it.pool_waits().await?;
            it.declare(it.declared(json!({}))).await?;
            it.pool_goes_on().await
        }
        Cause::Removal(Hold::Unreadable) => {
            let it = subject(2).await?;
            it.join(json!({})).await?;
            // Another pool has a list that cannot be read.
            let other = format!("{}-other", it.name);
            let git =
                json!({"git": {"url": "https://127.0.0.1:1/hosts.git", "ref": {"branch": "main"}, "path": "hosts"}});
            it.declare_as(&other, json!({"inventory": git})).await?;
            let unreadable = |p: &WindowsNodePool| {
                has(&pool_status(p).conditions, kind::INVENTORY_SYNCED, "False", "GitOperationFailed")
            };
            world.until(&other, "its list cannot be read", unreadable).await?;
            let mut spec = it.declared(json!({}));
            spec["inventory"]["hosts"] = json!([entry(&it.hosts[0])]);
            it.declare(spec).await?;
            it.pool_waits().await?;
            delete_pool(world, &other).await?;
            it.pool_goes_on().await
        }
        // `Pending` ends before a test could change anything: `two_pools` fails if it does not end.
        // `machines::pools_follow_the_machines_of_their_machine_sets` covers Machines, and
        // `takeover::nodes_of_the_legacy_operator_are_adopted` covers lost settings. `OtherOperator` and `Policies` hold up all pools, so
        // [`all_go_on`] tests them one after another. The last test of this file covers `OtherPool`.
        Cause::Removal(Hold::Pending | Hold::Machines)
        | Cause::Machine
        | Cause::LostSettings
        | Cause::OtherOperator
        | Cause::Policies
        | Cause::OtherPool => Ok(()),
    }
}

/// Returns the instances in the pool of a cause, for the message of a failure.
async fn instances_of(world: &World, cause: Cause) -> Result<String> {
    let pool = Subject::new(world, cause, 0).await?.name;
    let instances = Api::<api::WindowsInstance>::all(world.client.clone()).list(&ListParams::default()).await?;
    Ok(serde_yaml::to_string(
        &instances.items.into_iter().filter(|i| i.spec.pool_ref.name == pool).collect::<Vec<_>>(),
    )?)
}

/// Checks the causes that hold up all pools.
async fn all_go_on(world: &World) -> Result<()> {
    let it = Subject::paused(world, Cause::OtherOperator).await?;
    start_wmco(&world.control_plane, "legacy").await?;
    it.host_waits(0, "no other operator").await?;
    it.declare(it.declared(json!({}))).await?;
    stop_wmco(world, "legacy").await?;
    // WMCO's Pod may be being replaced, so WMCO counts as gone only a minute later.
    let is_gone = |p: &WindowsNodePool| pool_status(p).conditions.iter().all(|c| c.reason != "AnotherOperator");
    world.until(&it.name, "the other operator is gone", is_gone).await?;
    it.host_goes_on(0).await?;

    let it = Subject::paused(world, Cause::Policies).await?;
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.client.clone());
    let found = bindings.list(&ListParams::default()).await?.items;
    let mut binding = found.into_iter().find(|b| b.name_any().contains("wicd-nodes")).context("no such policy")?;
    bindings.delete(&binding.name_any(), &DeleteParams::default()).await?;
    it.host_waits(0, "admission policies").await?;
    it.declare(it.declared(json!({}))).await?;
    (binding.metadata.resource_version, binding.metadata.uid) = (None, None);
    bindings.create(&PostParams::default(), &binding).await?;
    it.host_goes_on(0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_wait_ends_with_its_cause() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let only = std::env::var("WAIT").ok();
    let chosen = Cause::ALL.into_iter().filter(|c| only.as_ref().is_none_or(|only| format!("{c:?}").contains(only)));
    stream::iter(chosen)
        .map(|cause| {
            let world = &world;
            async move {
                let Err(error) = Box::pin(goes_on(world, cause)).await else { return Ok(()) };
                let hosts = instances_of(world, cause).await.unwrap_or_default();
                Err(error.context(format!("WAIT={cause:?}: {hosts}")))
            }
        })
        .buffer_unordered(8)
        .try_collect::<Vec<()>>()
        .await?;
    if only.is_none() {
        Box::pin(all_go_on(&world)).await?;
        is_quiet(&world).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_continues_when_another_pool_ends_its_disruption() -> Result<()> {
    let world = World::new(SimOptions::default(), &["--max-disruptions", "1"]).await?;
    let it = Subject::new(&world, Cause::OtherPool, 2).await?;
    let pools = ["first", "second"];
    for (name, host) in pools.iter().zip(&it.hosts) {
        it.declare_as(name, json!(spec_with(std::slice::from_ref(host), json!({})))).await?;
        world.until_joined(host.name()).await?;
    }
    pod(&world, "guarded", it.host(0), &[("app", "guarded")]).await?;
    budget(&world, "guarded", "guarded").await?;
    for (name, host) in pools.iter().zip(&it.hosts) {
        it.declare_as(name, json!(spec_with(std::slice::from_ref(host), change(json!({}))))).await?;
        if *name == "first" {
            let blocked = |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::DEGRADED, "True", "DrainBlocked");
            world.until("first", "its drain is blocked", blocked).await?;
        }
    }
    world.until("second", "it says who has the turn", |p| says(p, Cause::OtherPool)).await?;
    delete_budget(&world, "guarded").await?;
    world.until("first", "it gives the turn back", |p| pool_status(p).up_to_date_nodes == 1).await?;
    let it = Subject { name: "second".into(), ..it };
    it.pool_goes_on().await
}
