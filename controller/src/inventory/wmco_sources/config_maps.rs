//! Watch of ConfigMaps with hosts. It triggers the pools that read a changed ConfigMap, reports bad entries, and creates and deletes the pool of
//! `windows-instances`.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::{
    ConfigMapRef, Inventory, WindowsNodePool,
    names::{WINDOWS_INSTANCES, key},
};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::{
    Api, ResourceExt,
    core::PartialObjectMeta,
    runtime::reflector::{ObjectRef, Store},
};

use super::{
    adapter::{drop_pool, make},
    config_map,
};
use crate::{
    caches::watch::{self, Changes, Event},
    context::Context,
    runtime::events::EventReason,
};
use wnp_core::inventory::source_pool::{ObservedSource, PoolChange, decide, has_instances};

/// Pause before the pool of `windows-instances` is checked again after a failed write, or while the other operator runs.
const RETRY: Duration = Duration::from_secs(5);

type Meta = PartialObjectMeta<ConfigMap>;

/// Watches the ConfigMaps of the operator's namespace until the future is dropped.
pub(super) async fn run(cx: &Context, mut pools: Changes<WindowsNodePool>) {
    // Only metadata is cached; the content is requested when it is needed.
    let api: Api<Meta> = Api::namespaced(cx.cluster.client.clone(), &cx.process.args.namespace);
    let (maps, events) = watch::cache(api, (), |_| {});
    let mut events = std::pin::pin!(events);
    let (mut is_filled, mut must_retry) = (false, false);
    loop {
        let looks = tokio::select! {
            event = events.next() => match event {
                Some(event) => changed(cx, &maps, event, &mut is_filled).await,
                None => return,
            },
            pool = pools.next() => match pool {
                Some(pool) => is_named_or_reads(&pool, WINDOWS_INSTANCES),
                None => return,
            },
            () = tokio::time::sleep(RETRY), if must_retry => true,
        };
        // Before the cache is filled, a missing ConfigMap proves nothing.
        if is_filled && looks && !cx.other_operator.is_gone() {
            // No watch event reports the end of the other operator.
            must_retry = true;
        } else if is_filled && looks {
            let result = keep_pool(cx, &maps).await;
            must_retry = result.is_err();
            if let Err(error) = result {
                tracing::warn!(%error, "the pool of the ConfigMap {WINDOWS_INSTANCES} could not be created or deleted; the operator retries");
            }
        }
    }
}

/// Triggers the pools that read the changed ConfigMaps, and reports bad entries. Returns true if the pool of `windows-instances` may have to be
/// created or deleted.
async fn changed(cx: &Context, maps: &Store<Meta>, event: Event<Meta>, is_filled: &mut bool) -> bool {
    let names: BTreeSet<String> = match event {
        Event::Init | Event::InitApply(_) => return false,
        Event::Apply(map) | Event::Delete(map) => BTreeSet::from([map.name_any()]),
        Event::InitDone => {
            *is_filled = true;
            let read = cx.caches.pools.state().iter().filter_map(|p| reads(p).map(str::to_owned)).collect::<Vec<_>>();
            read.into_iter().chain([WINDOWS_INSTANCES.to_owned()]).collect()
        }
    };
    for name in &names {
        let readers: Vec<_> = cx.caches.pools.state().into_iter().filter(|p| reads(p) == Some(name)).collect();
        for pool in &readers {
            cx.wake.pool(&pool.name_any());
        }
        if name == WINDOWS_INSTANCES || !readers.is_empty() {
            report_bad_entries(cx, maps, name).await;
        }
    }
    names.contains(WINDOWS_INSTANCES)
}

/// Reports bad entries as events on the ConfigMap, because the authors of the ConfigMap may not see events on a pool.
async fn report_bad_entries(cx: &Context, maps: &Store<Meta>, name: &str) {
    let Some(meta) = find(cx, maps, name) else { return };
    let api: Api<ConfigMap> = Api::namespaced(cx.cluster.client.clone(), &cx.process.args.namespace);
    // The pool reports that the ConfigMap cannot be read.
    let Ok(Some(map)) = api.get_opt(name).await else { return };
    let listing = config_map::read(map);
    for problem in listing.problems {
        cx.events.say_of(reference(&meta), EventReason::Inventory(problem.reason), "ReadInventory", &problem.message);
    }
}

/// Creates or deletes the pool of `windows-instances`, as the ConfigMap requires.
async fn keep_pool(cx: &Context, maps: &Store<Meta>) -> kube::Result<()> {
    // A ConfigMap that a user has excluded, for example to hand its nodes back, needs no pool.
    let is_ignored = |m: &Arc<Meta>| m.labels().get(key::IGNORE).is_some_and(|v| v == "true");
    let map = find(cx, maps, WINDOWS_INSTANCES).filter(|m| !is_ignored(m));
    let pool = cx.caches.pools.get(&ObjectRef::new(WINDOWS_INSTANCES));
    let is_read = |p: &WindowsNodePool| reads(p) == Some(WINDOWS_INSTANCES);
    let seen = ObservedSource {
        source: map.is_some(),
        reads: pool.as_deref().is_some_and(is_read),
        other_reads: cx.caches.pools.state().iter().any(|p| p.name_any() != WINDOWS_INSTANCES && is_read(p)),
        has_instances: has_instances(&cx.caches.instances.state(), WINDOWS_INSTANCES),
        pool: pool.as_deref(),
    };
    match (decide(&seen), map) {
        (PoolChange::Make, _) => {
            let config_map_ref = Some(ConfigMapRef { name: WINDOWS_INSTANCES.into() });
            Box::pin(make(cx, WINDOWS_INSTANCES, Inventory { config_map_ref, ..Inventory::default() })).await
        }
        (PoolChange::Drop, _) => drop_pool(cx, WINDOWS_INSTANCES).await,
        (PoolChange::Taken, Some(map)) => {
            let note = format!(
                "no pool reads this ConfigMap, so its hosts do not become nodes: the pool {WINDOWS_INSTANCES} has another source of hosts. To use these \
                 hosts, name {WINDOWS_INSTANCES} in inventory.configMapRef of a pool; otherwise delete the ConfigMap"
            );
            cx.events.say_of(reference(&map), EventReason::PoolTaken, "AdaptSource", &note);
            Ok(())
        }
        (PoolChange::Nothing | PoolChange::Taken, _) => Ok(()),
    }
}

fn find(cx: &Context, maps: &Store<Meta>, name: &str) -> Option<Arc<Meta>> {
    maps.get(&ObjectRef::new(name).within(&cx.process.args.namespace))
}

fn reads(pool: &WindowsNodePool) -> Option<&str> {
    pool.spec.inventory.config_map_ref.as_ref().map(|r| r.name.as_str())
}

fn is_named_or_reads(pool: &WindowsNodePool, name: &str) -> bool {
    pool.name_any() == name || reads(pool) == Some(name)
}

fn reference(meta: &Meta) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("ConfigMap".into()),
        name: meta.metadata.name.clone(),
        namespace: meta.metadata.namespace.clone(),
        uid: meta.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}
