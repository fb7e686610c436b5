//! One watch for each kind, shared by all controllers.
//!
//! kube's own shared streams do not report deletions, on which the pool controller depends: a deleted host frees a
//! slot. Here every change goes to every listener, after the cache has it.

use std::{fmt::Debug, sync::Arc};

use futures::{Stream, StreamExt, future, stream};
use kube::{
    Api, Client, Resource,
    api::ListParams,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt,
        reflector::{self, Store, store::Writer},
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::unreadable::Unreadable;

/// What a controller listens to: every object that came, changed or went.
pub(crate) type Changes<K> = stream::BoxStream<'static, Arc<K>>;

/// Begins to watch a kind. Returns the cache, as many streams of changes as there are listeners, and the future that drives
/// it all. Managed fields are not kept, because they are never read.
///
/// An object that cannot be read is logged, noted in `unreadable` and left out: it must not end the watch for all others.
pub(crate) fn watch<K, const LISTENERS: usize>(
    client: Client,
    config: watcher::Config,
    unreadable: &Unreadable,
) -> (Store<K>, [Changes<K>; LISTENERS], impl Future<Output = ()> + Send + 'static)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + DeserializeOwned + 'static,
{
    let writer: Writer<K> = Writer::default();
    let store = writer.as_reader();
    let api: Api<DeserializeGuard<K>> = Api::all(client);
    let unreadable = unreadable.clone();
    let events = kube::runtime::watcher(api, config)
        .default_backoff()
        .filter_map(move |event| future::ready(read(event, &unreadable)));
    let events = reflector::reflector(writer, events);

    let (senders, receivers): (Vec<_>, Vec<_>) = (0..LISTENERS).map(|_| mpsc::unbounded_channel::<Arc<K>>()).unzip();
    let mut receivers = receivers.into_iter();
    let changes = std::array::from_fn(|_| match receivers.next() {
        Some(receiver) => received(receiver).boxed(),
        None => stream::empty().boxed(),
    });
    let seen = store.clone();
    let drive = events.for_each(move |event| {
        let changed = match event {
            Ok(Event::Apply(object) | Event::Delete(object)) => vec![Arc::new(object)],
            // Only now does the cache have what was listed.
            Ok(Event::InitDone) => seen.state(),
            Ok(Event::Init | Event::InitApply(_)) => Vec::new(),
            Err(error) => {
                tracing::warn!(%error, kind = %K::kind(&()), "a watch failed; it restarts");
                Vec::new()
            }
        };
        for object in changed {
            for sender in &senders {
                // A listener that has ended wants nothing more.
                let _ = sender.send(object.clone());
            }
        }
        future::ready(())
    });
    (store, changes, drive)
}

/// Fills a cache once with what is there now.
pub(crate) async fn list<K>(client: Client, params: &ListParams, unreadable: &Unreadable) -> kube::Result<Store<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + DeserializeOwned + 'static,
{
    let mut writer: Writer<K> = Writer::default();
    let api: Api<DeserializeGuard<K>> = Api::all(client);
    writer.apply_watcher_event(&Event::Init);
    for guard in api.list(params).await? {
        if let Some(Ok(event)) = read(Ok(Event::InitApply(guard)), unreadable) {
            writer.apply_watcher_event(&event);
        }
    }
    writer.apply_watcher_event(&Event::InitDone);
    Ok(writer.as_reader())
}

fn received<T: Send + 'static>(receiver: mpsc::UnboundedReceiver<T>) -> impl Stream<Item = T> + Send + 'static {
    stream::unfold(receiver, |mut receiver| async move { receiver.recv().await.map(|item| (item, receiver)) })
}

fn read<K>(
    event: watcher::Result<Event<DeserializeGuard<K>>>,
    unreadable: &Unreadable,
) -> Option<watcher::Result<Event<K>>>
where
    K: Resource<DynamicType = ()>,
{
    let kind = K::kind(&());
    let object = |guard: DeserializeGuard<K>| match guard.0 {
        Ok(mut object) => {
            object.meta_mut().managed_fields = None;
            unreadable.forget(&kind, object.meta().name.as_deref().unwrap_or_default());
            Some(object)
        }
        Err(invalid) => {
            let name = invalid.metadata.name.as_deref().unwrap_or_default();
            tracing::error!(%kind, name, error = %invalid, "an object cannot be read and is left out");
            unreadable.note(&kind, &invalid.metadata, &invalid.to_string());
            None
        }
    };
    Some(Ok(match event {
        Err(error) => return Some(Err(error)),
        Ok(Event::Apply(guard)) => Event::Apply(object(guard)?),
        Ok(Event::Delete(guard)) => {
            let name = guard.0.as_ref().map_or_else(|e| e.metadata.name.clone(), |o| o.meta().name.clone());
            let object = object(guard);
            unreadable.forget(&kind, &name.unwrap_or_default());
            Event::Delete(object?)
        }
        Ok(Event::InitApply(guard)) => Event::InitApply(object(guard)?),
        Ok(Event::Init) => {
            unreadable.list_begins(&kind);
            Event::Init
        }
        Ok(Event::InitDone) => {
            unreadable.list_ends(&kind);
            Event::InitDone
        }
    }))
}
