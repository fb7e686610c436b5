//! Watches of the Flux objects that pools name, so that a change of an object triggers its pools at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{SourceKind, SourceRef, WindowsNodePool};
use futures::StreamExt;
use kube::{Api, ResourceExt, api::DynamicObject, core::PartialObjectMeta};
use tokio_util::task::AbortOnDropHandle;

use super::{Flux, object::resource};
use crate::{
    caches::watch::{self, Changes},
    context::Context,
    runtime::supervision::catch,
};

/// Maximum number of pool events that are handled together.
const TOGETHER: usize = 64;
/// Pause before a watch that has ended restarts.
const RESTART: std::time::Duration = std::time::Duration::from_secs(10);

/// Kind, namespace and name of a Flux object.
type Key = (SourceKind, String, String);

fn key(from: &SourceRef) -> Key {
    (from.kind, from.namespace.clone(), from.name.clone())
}

fn named_by(pool: &WindowsNodePool) -> Option<Key> {
    pool.spec.inventory.source_ref.as_ref().map(key)
}

/// Watches each Flux object for as long as a pool names it, until the process stops.
pub(crate) async fn run(cx: Arc<Context>, flux: Arc<Flux>, pools: Changes<WindowsNodePool>) {
    let mut watches: BTreeMap<Key, AbortOnDropHandle<()>> = BTreeMap::new();
    let mut changes = pools.ready_chunks(TOGETHER);
    while let Some(Some(_)) = cx.process.stop.run_until_cancelled(changes.next()).await {
        let (mut wanted, mut names) = (BTreeSet::new(), BTreeSet::new());
        for pool in cx.caches.pools.state() {
            if let Some(key) = named_by(&pool) {
                wanted.insert(key);
                names.insert(pool.name_any());
            }
        }
        flux.keep_only(&names);
        watches.retain(|key, _| wanted.contains(key));
        for key in wanted {
            let begin = || AbortOnDropHandle::new(tokio::spawn(keep_watching(cx.clone(), key.clone())));
            watches.entry(key.clone()).or_insert_with(begin);
        }
    }
}

/// Watches an object forever. After a panic, only this watch restarts, and all other tasks go on.
async fn keep_watching(cx: Arc<Context>, key: Key) {
    loop {
        if let Err(fault) = catch(watch(cx.clone(), key.clone())).await {
            tracing::error!(kind = ?key.0, namespace = key.1, name = key.2, %fault, "the watch of a Flux object failed; it restarts");
        }
        tokio::time::sleep(RESTART).await;
    }
}

/// Triggers the pools that name the object whenever it is created, changed or deleted.
async fn watch(cx: Arc<Context>, key: Key) {
    let (kind, namespace, name) = &key;
    let api: Api<PartialObjectMeta<DynamicObject>> =
        Api::namespaced_with(cx.cluster.client.clone(), namespace, &resource(*kind));
    let mut changes = std::pin::pin!(watch::object(api, name));
    while let Some(change) = changes.next().await {
        match change {
            Ok(_) => {
                for pool in cx.caches.pools.state().iter().filter(|p| named_by(p).as_ref() == Some(&key)) {
                    cx.wake.pool(&pool.name_any());
                }
            }
            // Flux or this kind is not installed, which the pool reports. Either may be installed later.
            Err(error) if error.is_unknown_kind() => {}
            Err(error) => {
                tracing::warn!(?kind, namespace, name, %error, "the watch of a Flux object failed; it restarts");
            }
        }
    }
}
