//! Watches Machines and MachineSets, keeps a pool for each MachineSet with Windows Machines, and replaces Machines whose hosts refuse
//! every key.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use api::{Inventory, MachineGroup, WindowsInstance, WindowsNodePool};
use futures::{StreamExt, future};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Preconditions, TypeMeta},
    runtime::{
        WatchStreamExt,
        reflector::{self, Store, store::Writer},
        watcher::{self, Event},
    },
};
use tokio::task::AbortHandle;

use super::{
    super::{
        adapter::{drop_pool, has_instances, make},
        user_data,
    },
    APIS, Served, Watched,
    pools::{Act, acts, reads, sources},
    read::{Machine, MachineSet, Source, reference},
    replace::{Member, Verdict, verdicts},
    served,
};
use crate::{context::Context, events::Level, instance::node};

/// Changes that come together are looked at together.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// Runs until it is stopped from outside; what it has started ends with it.
pub(in crate::legacy_sources) async fn run(cx: &Arc<Context>) {
    let mut watches: BTreeMap<MachineGroup, (Served, Watch)> = BTreeMap::new();
    let mut refusing = Refusing::default();
    loop {
        for (group, ..) in APIS {
            match served(&cx.client, group).await {
                Ok(Some(found)) if watches.get(&group).is_some_and(|(before, _)| *before == found) => {}
                Ok(Some(found)) => {
                    tracing::info!(api = found.machines.api_version, "Machines are watched");
                    let watch = Watch::start(cx.clone(), group, &found);
                    watches.insert(group, (found, watch));
                }
                Ok(None) => {
                    if watches.remove(&group).is_some() {
                        cx.machines.set(group, None);
                        wake_pools(cx, |s| s.group == group);
                    }
                }
                Err(error) => tracing::warn!(%error, "whether there are Machines is asked again"),
            }
        }
        if !watches.is_empty() {
            user_data::keep(cx).await;
        }
        let next = tokio::time::sleep(cx.args.machine_discovery_interval);
        tokio::pin!(next);
        loop {
            keep_pools(cx).await;
            replace(cx, &mut refusing).await;
            tokio::select! {
                () = &mut next => break,
                () = cx.machines.stirred.notified() => tokio::time::sleep(DEBOUNCE).await,
            }
        }
    }
}

/// A running watch; it ends when this is dropped.
struct Watch(AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Watch {
    fn start(cx: Arc<Context>, group: MachineGroup, served: &Served) -> Self {
        let (machines, follow_machines) = follow(cx.clone(), &served.machines, group);
        let (sets, follow_sets) = follow(cx.clone(), &served.sets, group);
        let task = tokio::spawn(async move {
            let filled = async {
                if machines.wait_until_ready().await.is_ok() && sets.wait_until_ready().await.is_ok() {
                    // From now on, what is not in the caches is not there.
                    cx.machines.set(group, Some(Watched { machines, sets }));
                    wake_pools(&cx, |s| s.group == group);
                    cx.machines.stir();
                }
                future::pending::<()>().await;
            };
            tokio::join!(follow_machines, follow_sets, filled);
        });
        Self(task.abort_handle())
    }
}

/// Fills a cache, and wakes the pools whose Machines have changed.
fn follow(
    cx: Arc<Context>,
    resource: &ApiResource,
    group: MachineGroup,
) -> (Store<DynamicObject>, impl Future<Output = ()> + Send + 'static) {
    let writer = Writer::new(resource.clone());
    let store = writer.as_reader();
    let api: Api<DynamicObject> = Api::all_with(cx.client.clone(), resource);
    let is_machines = resource.plural == "machines";
    let types = TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() };
    let events = kube::runtime::watcher(api, watcher::Config::default()).default_backoff().modify(move |object| {
        object.metadata.managed_fields = None;
        object.types.get_or_insert_with(|| types.clone());
    });
    let follow = reflector::reflector(writer, events).for_each(move |event| {
        match event {
            Ok(Event::Apply(object) | Event::Delete(object)) if is_machines => {
                let machine = Machine::read(&object, group);
                wake_pools(&cx, |s| machine.source.as_ref() == Some(s));
                cx.machines.stir();
            }
            Ok(Event::Apply(_) | Event::Delete(_)) => cx.machines.stir(),
            Ok(Event::InitDone) => {
                wake_pools(&cx, |s| s.group == group);
                cx.machines.stir();
            }
            Ok(Event::Init | Event::InitApply(_)) => {}
            Err(error) => tracing::warn!(%error, "a watch of Machines broke; it is begun anew"),
        }
        future::ready(())
    });
    (store, follow)
}

fn wake_pools(cx: &Context, is_of: impl Fn(&Source) -> bool) {
    for pool in cx.pools.state() {
        if reads(&pool).is_some_and(|s| is_of(&s)) {
            cx.wake.pool(&pool.name_any());
        }
    }
}

async fn keep_pools(cx: &Context) {
    let watched = cx.machines.groups();
    let sets: Vec<MachineSet> = watched.iter().flat_map(|g| cx.machines.sets(*g)).collect();
    let machines: Vec<Machine> = watched.iter().flat_map(|g| cx.machines.machines(*g)).collect();
    let (pools, instances) = (cx.pools.state(), cx.instances.state());
    let sources = sources(&sets, &machines);
    for act in acts(&sources, &watched, &pools, |pool| has_instances(&instances, pool)) {
        let result = match &act {
            Act::Make(name, source) => {
                let inventory = Inventory { machine_set_ref: Some(source.reference()), ..Inventory::default() };
                make(cx, name, &inventory).await
            }
            Act::Drop(name) => drop_pool(cx, name).await,
            Act::Taken(name, source) => {
                let note = format!(
                    "no pool reads {source}: the pool {name} has another source of hosts. Set inventory.machineSetRef of a pool to it"
                );
                if let Some(set) = sets.iter().find(|s| s.source == *source) {
                    cx.events.say_of(set.reference.clone(), Level::Warning, "PoolTaken", "AdaptSource", &note);
                }
                Ok(())
            }
        };
        if let Err(error) = result {
            tracing::warn!(%error, ?act, "a pool for Machines is looked at again");
        }
    }
}

/// Since when hosts have refused every key, by their Machines. A restart begins anew, which only delays what is done about it.
#[derive(Default)]
struct Refusing(HashMap<String, Instant>);

impl Refusing {
    /// Whether this Machine's host has refused for at least so long.
    fn since(&mut self, machine: &Machine, refuses: bool, at_least: Duration) -> bool {
        if !refuses {
            self.0.remove(&machine.uid);
            return false;
        }
        self.0.entry(machine.uid.clone()).or_insert_with(Instant::now).elapsed() >= at_least
    }
}

async fn replace(cx: &Context, refusing: &mut Refusing) {
    let instances = cx.instances.state();
    let of_machine: BTreeMap<&str, &Arc<WindowsInstance>> =
        instances.iter().filter_map(|i| Some((i.spec.origin.as_ref()?.machine.as_deref()?, i))).collect();
    let mut seen = BTreeSet::new();
    for group in cx.machines.groups() {
        let machines = cx.machines.machines(group);
        seen.extend(machines.iter().map(|m| m.uid.clone()));
        let windows: Vec<&Machine> = machines.iter().filter(|m| m.windows).collect();
        let sets: BTreeSet<Option<&Source>> = windows.iter().map(|m| m.source.as_ref()).collect();
        for set in sets {
            let members: Vec<Member<'_>> = windows
                .iter()
                .filter(|m| m.source.as_ref() == set)
                .map(|machine| {
                    let refuses = of_machine.get(machine.key().as_str()).is_some_and(|i| refuses_every_key(i));
                    Member {
                        machine,
                        ready: is_ready(cx, machine),
                        refuses: refusing.since(machine, refuses, cx.args.machine_refusal_timeout),
                    }
                })
                .collect();
            for (machine, verdict) in verdicts(&members) {
                let instance = of_machine.get(machine.key().as_str());
                carry_out(cx, group, machine, instance.and_then(|i| cx.pool_of(i)).as_deref(), verdict).await;
            }
        }
    }
    refusing.0.retain(|uid, _| seen.contains(uid));
}

/// Whether a host that is no node yet lets nobody in. One that is a node works on, and is not taken away for a key.
fn refuses_every_key(instance: &WindowsInstance) -> bool {
    let status = instance.status.clone().unwrap_or_default();
    status.current_version.is_none() && status.failures.is_some_and(|f| f.last_reason == "AuthenticationFailed")
}

fn is_ready(cx: &Context, machine: &Machine) -> bool {
    machine.node.as_deref().and_then(|name| cx.node(name)).is_some_and(|n| node::ready(&n).0)
}

async fn carry_out(
    cx: &Context,
    group: MachineGroup,
    machine: &Machine,
    pool: Option<&WindowsNodePool>,
    verdict: Verdict,
) {
    let Some(watched) = cx.machines.of(group) else { return };
    let found = watched.machines.find(|o| o.uid().as_deref() == Some(machine.uid.as_str()));
    let (Some(object), Some(pool)) = (found, pool) else { return };
    // A pool that is only planned changes nothing.
    if pool.spec.is_plan() {
        return;
    }
    let tell = |level, reason, note: &str| {
        cx.events.say_of(reference(&object), level, reason, "ReplaceMachine", note);
        cx.events.say(pool, level, reason, "ReplaceMachine", note);
    };
    let refuses = format!("the host of Machine {} refuses every key", machine.key());
    let Verdict::Restricted(why) = verdict else {
        let Some(types) = &object.types else { return };
        let Ok(gvk) = types.try_into() else { return };
        let resource = ApiResource::from_gvk_with_plural(&gvk, "machines");
        let api: Api<DynamicObject> =
            Api::namespaced_with(cx.client.clone(), &object.namespace().unwrap_or_default(), &resource);
        let only_this = Preconditions { uid: object.uid(), resource_version: None };
        cx.metrics.wrote("Machine");
        match api.delete(&machine.name, &DeleteParams::default().preconditions(only_this)).await {
            Ok(_) => tell(
                Level::Normal,
                "MachineDeleted",
                &format!("{refuses}; it was deleted, for its MachineSet to make another"),
            ),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => {
                let note = format!("{refuses}; it could not be deleted: {}", crate::errors::said(&error));
                tell(Level::Warning, "MachineDeletionFailed", &note);
            }
        }
        return;
    };
    tell(Level::Warning, "MachineDeletionRestricted", &format!("{refuses}; it is not deleted: {why}"));
}
