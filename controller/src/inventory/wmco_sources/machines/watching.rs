//! Watch of Machines, MachineSets and MachineHealthChecks. It keeps a pool for each MachineSet with Windows Machines and the user data of new
//! Machines, and replaces Machines whose hosts refuse every key.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{Inventory, MachineGroup};
use futures::{FutureExt as _, StreamExt, future};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, TypeMeta},
    runtime::reflector::Store,
};
use tokio::task::AbortHandle;

use super::{
    super::{
        adapter::{drop_pool, make},
        user_data,
    },
    replacing::{Restrictions, replace},
};
use crate::{
    caches::{
        machines::{APIS, HEALTH_CHECKS, Served, Watched, served},
        watch::{self, Event},
    },
    context::Context,
    runtime::{events::EventReason, supervision::catch},
};
use wnp_core::{
    inventory::source_pool::has_instances,
    machines::{
        pools::{Act, acts, reads, sources},
        read::{Machine, MachineSet, Source},
    },
};

/// Delay that combines several changes into one reconcile.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// Watches Machines until the future is dropped, which also ends the watches that it started.
pub(in crate::inventory::wmco_sources) async fn run(cx: &Arc<Context>) {
    let mut watches: BTreeMap<MachineGroup, (Served, Watch)> = BTreeMap::new();
    let mut restrictions = Restrictions::default();
    loop {
        for (group, ..) in APIS {
            match served(&cx.cluster.client, group).await {
                Ok(Some(found)) if watches.get(&group).is_some_and(|(before, w)| *before == found && w.runs()) => {}
                Ok(Some(found)) => {
                    tracing::info!(api = found.machines.api_version, "watching Machines");
                    let watch = Watch::start(cx.clone(), group, &found);
                    watches.insert(group, (found, watch));
                }
                Ok(None) => {
                    if watches.remove(&group).is_some() {
                        cx.caches.machines.set(group, None);
                        wake_pools(cx, |s| s.group == group);
                    }
                }
                Err(error) => tracing::warn!(%error, "failed to discover the APIs of Machines; the operator retries"),
            }
        }
        if !watches.is_empty() && cx.other_operator.is_gone() && user_data::keep(cx).await {
            // The user data was written, so the key may have changed. Pools would detect that only later, because they do not watch Secrets.
            wake_pools(cx, |_| true);
        }
        let next = tokio::time::sleep(cx.process.args.machine_discovery_interval);
        tokio::pin!(next);
        loop {
            // The other operator manages the same Secret and Machines.
            if cx.other_operator.is_gone() {
                keep_pools(cx).await;
                replace(cx, &mut restrictions).await;
            }
            tokio::select! {
                () = &mut next => break,
                () = cx.caches.machines.changed.notified() => tokio::time::sleep(DEBOUNCE).await,
            }
        }
    }
}

/// Running watch of one API, which is aborted when it is dropped.
struct Watch(AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Watch {
    fn runs(&self) -> bool {
        !self.0.is_finished()
    }

    fn start(cx: Arc<Context>, group: MachineGroup, served: &Served) -> Self {
        let (machines, follow_machines) = follow(cx.clone(), &served.machines, group);
        let (sets, follow_sets) = follow(cx.clone(), &served.sets, group);
        let (health_checks, follow_health_checks) = match &served.health_checks {
            Some(resource) => {
                let (store, following) = follow(cx.clone(), resource, group);
                (Some(store), following.left_future())
            }
            None => (None, future::ready(()).right_future()),
        };
        let kind = served.machines.clone();
        let task = tokio::spawn(async move {
            let filled = async {
                let caches = [Some(&machines), Some(&sets), health_checks.as_ref()];
                if future::try_join_all(caches.into_iter().flatten().map(Store::wait_until_ready)).await.is_ok() {
                    // From now on, an object that is not in the caches does not exist.
                    cx.caches.machines.set(group, Some(Watched { kind, machines, sets, health_checks }));
                    wake_pools(&cx, |s| s.group == group);
                    cx.caches.machines.notify_change();
                }
                future::pending::<()>().await;
            };
            let watching = async { tokio::join!(follow_machines, follow_sets, follow_health_checks, filled) };
            if let Err(fault) = catch(Box::pin(watching)).await {
                // The caches are no longer up to date.
                tracing::error!(?group, %fault, "the watch of Machines failed; it restarts");
                cx.caches.machines.set(group, None);
                wake_pools(&cx, |s| s.group == group);
            }
        });
        Self(task.abort_handle())
    }
}

/// Returns a watch cache, and the future that fills it and triggers the pools whose Machines have changed.
fn follow(
    cx: Arc<Context>,
    resource: &ApiResource,
    group: MachineGroup,
) -> (Store<DynamicObject>, impl Future<Output = ()> + Send + 'static) {
    let api: Api<DynamicObject> = Api::all_with(cx.cluster.client.clone(), resource);
    let kind = resource.plural.clone();
    let types = TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() };
    // Objects in a list have no type.
    let (store, events) = watch::cache(api, resource.clone(), move |object: &mut DynamicObject| {
        object.types.get_or_insert_with(|| types.clone());
    });
    let follow = events.for_each(move |event| {
        match event {
            Event::Apply(object) | Event::Delete(object) if kind == "machines" => {
                let machine = Machine::read(&object, group);
                wake_pools(&cx, |s| machine.source.as_ref() == Some(s));
                cx.caches.machines.notify_change();
            }
            // Only the pools know which hosts they leave to the MachineHealthCheck.
            Event::Apply(_) | Event::Delete(_) if kind == HEALTH_CHECKS => wake_pools(&cx, |s| s.group == group),
            Event::Apply(_) | Event::Delete(_) => cx.caches.machines.notify_change(),
            Event::InitDone => {
                wake_pools(&cx, |s| s.group == group);
                cx.caches.machines.notify_change();
            }
            Event::Init | Event::InitApply(_) => {}
        }
        future::ready(())
    });
    (store, follow)
}

/// Triggers the pools that read a source for which `is_of` is true.
fn wake_pools(cx: &Context, is_of: impl Fn(&Source) -> bool) {
    for pool in cx.caches.pools.state() {
        if reads(&pool).is_some_and(|s| is_of(&s)) {
            cx.wake.pool(&pool.name_any());
        }
    }
}

/// Creates and deletes the pools of MachineSets, as the watched APIs require.
async fn keep_pools(cx: &Context) {
    let watched = cx.caches.machines.groups();
    let sets: Vec<MachineSet> = watched.iter().flat_map(|g| cx.caches.machines.sets(*g)).collect();
    let machines: Vec<Machine> = watched.iter().flat_map(|g| cx.caches.machines.machines(*g)).collect();
    let (pools, instances) = (cx.caches.pools.state(), cx.caches.instances.state());
    let sources = sources(&sets, &machines);
    for act in acts(&sources, &watched, &pools, |pool| has_instances(&instances, pool)) {
        let result = match &act {
            Act::Make(name, source) => {
                let inventory = Inventory { machine_set_ref: Some(source.reference()), ..Inventory::default() };
                Box::pin(make(cx, name, inventory)).await
            }
            Act::Drop(name) => drop_pool(cx, name).await,
            Act::Taken(name, source) => {
                let note = format!(
                    "no pool reads {source}, so its Machines do not become nodes: the pool {name} has another source of hosts. To use these Machines, name {source} in inventory.machineSetRef of a pool"
                );
                if let Some(set) = sets.iter().find(|s| s.source == *source) {
                    cx.events.say_of(set.reference.clone(), EventReason::PoolTaken, "AdaptSource", &note);
                }
                Ok(())
            }
        };
        if let Err(error) = result {
            tracing::warn!(%error, ?act, "the pool of a MachineSet could not be created or deleted; the operator retries");
        }
    }
}
