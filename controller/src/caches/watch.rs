//! Watch caches of kinds, and watches of single objects.
//!
//! kube's own shared streams do not report deletions, on which the pool controller depends, because a deleted host frees a slot. Here, every listener
//! gets every change, including deletions, after the cache has applied it.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    hash::Hash,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use api::WindowsInstance;
use futures::{
    Stream, StreamExt, TryStreamExt,
    channel::mpsc,
    future,
    stream::{self, BoxStream},
};
use k8s_openapi::api::core::v1::Node;
pub(crate) use kube::runtime::watcher::Event;
use kube::{
    Api, Client, Resource,
    api::ListParams,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store, store::Writer},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use wnp_core::node::essentials::{differs, keep_essentials};

use crate::{
    caches::{instances::Instances, unreadable::Unreadable},
    runtime::errors::api_message,
};

/// Pause before the list that follows an expired resource version, so that an API server that rejects every version is not queried in a tight loop.
const RELIST_PAUSE: Duration = Duration::from_secs(1);

/// Pause before the watch of one object restarts after a first refusal.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause before the watch of one object restarts. Pauses grow while refusals follow one another.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Stream of the objects that were added, changed or deleted, for a controller.
pub(crate) type Changes<K> = stream::BoxStream<'static, Arc<K>>;

/// Watches a kind. Returns the cache, a stream of changes for each listener, and the future that drives the watch. [`readable`] describes how
/// unreadable objects are handled.
pub(crate) fn watch<K, const LISTENERS: usize>(
    client: Client,
    unreadable: &Unreadable,
) -> (Store<K>, [Changes<K>; LISTENERS], impl Future<Output = ()> + Send + 'static)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + DeserializeOwned + 'static,
{
    let (store, events) = readable(client, watcher::Config::default(), unreadable, |_| (), |_| true);
    listen(store.clone(), changes(store, events))
}

/// Watches instances like [`watch`]. The index has each change before the listeners get it.
pub(crate) fn watch_instances<const LISTENERS: usize>(
    client: Client,
    unreadable: &Unreadable,
) -> (Instances, [Changes<WindowsInstance>; LISTENERS], impl Future<Output = ()> + Send + 'static) {
    let (store, events) = readable(client, watcher::Config::default(), unreadable, |_| (), |_| true);
    let instances = Instances::new(store.clone());
    let events = events.inspect({
        let instances = instances.clone();
        move |event| instances.observe(event)
    });
    let (_, listeners, drive) = listen(store.clone(), changes(store, events));
    (instances, listeners, drive)
}

/// Watches Nodes with these labels like [`watch`]. Listeners get only changes that a decision depends on, so that heartbeats trigger nothing. The
/// cache has the newest resource version of each Node.
pub(crate) fn watch_nodes<const LISTENERS: usize>(
    client: Client,
    labels: &str,
    unreadable: &Unreadable,
) -> (Store<Node>, [Changes<Node>; LISTENERS], impl Future<Output = ()> + Send + 'static) {
    let config = watcher::Config::default().labels(labels);
    let (store, events) = readable(client, config, unreadable, keep_essentials, |_| true);
    listen(store.clone(), news(store.clone(), changes(store, events), differs))
}

/// Returns the changes that are new to listeners, and deletions. `differs` compares the object that listeners saw last with the current one.
pub(crate) fn news<K>(
    store: Store<K>,
    changes: impl Stream<Item = Arc<K>> + Send + 'static,
    differs: fn(&K, &K) -> bool,
) -> Changes<K>
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let mut seen = HashMap::new();
    changes.filter(move |object| future::ready(is_news(&mut seen, &store, object, differs))).boxed()
}

/// Reports whether the current state of an object is new to listeners.
fn is_news<K>(
    seen: &mut HashMap<String, Arc<K>>,
    store: &Store<K>,
    object: &Arc<K>,
    differs: fn(&K, &K) -> bool,
) -> bool
where
    K: Resource<DynamicType = ()> + Clone,
{
    let name = object.meta().name.clone().unwrap_or_default();
    let Some(kept) = store.get(&ObjectRef::new(&name)) else {
        seen.remove(&name);
        return true;
    };
    // The cache's own object is kept, so that no object is in memory twice.
    let before = seen.insert(name, kept.clone());
    before.is_none_or(|before| differs(&before, &kept))
}

/// Returns a stream of changes for each listener, and the future that drives them.
fn listen<K, const LISTENERS: usize>(
    store: Store<K>,
    changes: impl Stream<Item = Arc<K>> + Send + 'static,
) -> (Store<K>, [Changes<K>; LISTENERS], impl Future<Output = ()> + Send + 'static)
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let mut senders = Vec::new();
    let listeners = std::array::from_fn(|_| {
        let (sender, receiver) = mpsc::unbounded();
        senders.push(sender);
        receiver.boxed()
    });
    let drive = changes.for_each(move |object: Arc<K>| {
        for sender in &senders {
            // Fails only if the listener has ended.
            let _ = sender.unbounded_send(object.clone());
        }
        future::ready(())
    });
    (store, listeners, drive)
}

/// Caches the objects of a kind for which `is_wanted` is true, after `adjust` has changed them. Returns the cache and its events, each after the
/// cache has applied it. An object that is no longer wanted counts as deleted. `config` selects the objects and the type of watch. Managed fields are
/// dropped, because nothing reads them.
///
/// An object that cannot be read is logged, recorded in `unreadable` and left out, so that it does not end the watch for all others. The cache keeps
/// a state of such an object that was read before, until the object is deleted or the next list.
pub(crate) fn readable<K>(
    client: Client,
    config: watcher::Config,
    unreadable: &Unreadable,
    adjust: impl Fn(&mut K) + Send + 'static,
    is_wanted: impl Fn(&K) -> bool + Send + 'static,
) -> (Store<K>, impl Stream<Item = Event<K>> + Send + 'static)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + DeserializeOwned + 'static,
{
    let api: Api<DeserializeGuard<K>> = Api::all(client);
    let unreadable = unreadable.clone();
    fill(api, config, (), move |event, store| only(read(event, &unreadable, store)?.modify(&adjust), &is_wanted))
}

/// Caches the objects of `api` after `adjust` has changed them, like [`readable`], but for kinds whose objects can always be read. Managed fields are
/// dropped.
pub(crate) fn cache<K>(
    api: Api<K>,
    kind: K::DynamicType,
    mut adjust: impl FnMut(&mut K) + Send + 'static,
) -> (Store<K>, impl Stream<Item = Event<K>> + Send + 'static)
where
    K: Resource + Clone + Debug + Send + Sync + DeserializeOwned + 'static,
    K::DynamicType: Eq + Hash + Clone + Send + Sync + 'static,
{
    let adjusted = move |event: Event<K>, _: &Store<K>| {
        Some(event.modify(|object| {
            object.meta_mut().managed_fields = None;
            adjust(object);
        }))
    };
    fill(api, watcher::Config::default(), kind, adjusted)
}

/// Fills a cache with the results of `read`, which converts or drops each event, as long as the returned stream is polled.
fn fill<W, K>(
    api: Api<W>,
    config: watcher::Config,
    kind: K::DynamicType,
    mut read: impl FnMut(Event<W>, &Store<K>) -> Option<Event<K>> + Send + 'static,
) -> (Store<K>, impl Stream<Item = Event<K>> + Send + 'static)
where
    W: Resource + Clone + Debug + Send + DeserializeOwned + 'static,
    K: Resource + Clone + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Send + Sync + 'static,
{
    let writer: Writer<K> = Writer::new(kind.clone());
    let store = writer.as_reader();
    let known = writer.as_reader();
    let events = restarting(watcher::watcher(api, config))
        .filter_map(move |event| future::ready(event.map(|event| read(event, &known)).transpose()));
    let logged = move |event: watcher::Result<Event<K>>| {
        let log = |error: &_| tracing::warn!(%error, kind = %K::kind(&kind), "failed to watch the objects of this kind; the operator retries, and uses their last known state meanwhile");
        future::ready(event.inspect_err(log).ok())
    };
    (store, reflector::reflector(writer, events).filter_map(logged))
}

/// Streams the objects that were added, changed or deleted, including deletions while the watch was interrupted. After each list, streams all
/// objects.
pub(crate) fn changes<K>(store: Store<K>, events: impl Stream<Item = Event<K>>) -> impl Stream<Item = Arc<K>>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    fn key<K: Resource>(object: &K) -> (Option<&str>, Option<&str>) {
        (object.meta().namespace.as_deref(), object.meta().name.as_deref())
    }
    let mut before = Vec::new();
    events.flat_map(move |event| {
        stream::iter(match event {
            Event::Apply(object) | Event::Delete(object) => vec![Arc::new(object)],
            // Until the list is complete, the cache has the previous objects.
            Event::Init => {
                before = store.state();
                Vec::new()
            }
            Event::InitApply(_) => Vec::new(),
            Event::InitDone => {
                let objects = store.state();
                let there: HashSet<_> = objects.iter().map(|object| key(&**object)).collect();
                let gone: Vec<_> =
                    mem::take(&mut before).into_iter().filter(|object| !there.contains(&key(&**object))).collect();
                [objects, gone].concat()
            }
        })
    })
}

/// Watches one object: its current state and each change, or `None` while it does not exist. After a failure, the watch restarts.
pub(crate) fn object<K>(api: Api<K>, name: &str) -> impl Stream<Item = Result<Option<K>, WatchError>> + Send + use<K>
where
    K: Resource + Clone + Debug + Send + DeserializeOwned + 'static,
{
    let name = name.to_owned();
    restarting(anew(move || watcher::watch_object(api.clone(), &name).boxed())).map_err(WatchError)
}

/// Starts a watch again after each refusal. Consumers that saw the refusal need the current object, and a resumed watch would report only changes.
/// The backoff of [`restarting`] is reset by each successful list, even if a refusal follows at once, so refusals have separate pauses here.
fn anew<T: Send + 'static>(
    begin: impl Fn() -> BoxStream<'static, watcher::Result<T>>,
) -> impl Stream<Item = watcher::Result<T>> {
    let state = (begin(), Instant::now(), Duration::ZERO);
    stream::unfold((state, begin), |((mut events, mut begun, mut pause), begin)| async move {
        let event = events.next().await?.map_err(WatchError);
        if event.as_ref().is_err_and(|error| error.refusal().is_some()) {
            pause = pause_after_refusal(pause, begun.elapsed());
            let wait = stream::once(tokio::time::sleep(pause)).filter_map(|()| future::ready(None));
            events = wait.chain(begin()).boxed();
            begun = Instant::now();
        }
        Some((event.map_err(|WatchError(error)| error), ((events, begun, pause), begin)))
    })
}

/// Returns the pause before a refused watch restarts. `lasted` is the duration of the watch, including the pause `before` it.
fn pause_after_refusal(before: Duration, lasted: Duration) -> Duration {
    let is_soon = lasted < before + LONGEST_PAUSE;
    if is_soon { (before * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE) } else { FIRST_PAUSE }
}

/// Restarts a watch that fails, with backoff.
///
/// An expired resource version is not a failure, and often the first answer after failures. The watch then restarts with a list after a short pause,
/// not after the long pause that is due by then.
pub(crate) fn restarting<T: Send>(
    events: impl Stream<Item = watcher::Result<T>> + Send,
) -> impl Stream<Item = watcher::Result<T>> + Send {
    let known = |event: watcher::Result<T>| async {
        let is_old = matches!(&event, Err(watcher::Error::WatchError(status)) if status.code == 410);
        if is_old {
            tokio::time::sleep(RELIST_PAUSE).await;
        }
        (!is_old).then_some(event)
    };
    events.filter_map(known).default_backoff()
}

/// Error of a watch of one object.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct WatchError(watcher::Error);

impl WatchError {
    /// Reports whether the cluster does not serve the kind.
    pub(crate) fn is_unknown_kind(&self) -> bool {
        matches!(&self.0, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
    }

    /// Returns the error message if the API server refuses the watch or the object cannot be read, so that a retry would fail again. A broken
    /// connection is not a refusal.
    pub(crate) fn refusal(&self) -> Option<String> {
        use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
        match &self.0 {
            InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => match error {
                kube::Error::Api(status) if matches!(status.code, 403 | 404) => Some(api_message(error)),
                kube::Error::SerdeError(_) => Some(error.to_string()),
                _ => None,
            },
            WatchError(status) if matches!(status.code, 403 | 404) => Some(status.message.clone()),
            WatchError(_) => None,
            NoResourceVersion => Some(self.to_string()),
        }
    }
}

/// Lists the current objects into a cache that is not updated. Records objects that cannot be read in `unreadable`, and leaves them out.
///
/// # Errors
/// Fails when the API server refuses the request or does not answer.
pub(crate) async fn list<K>(client: Client, params: &ListParams, unreadable: &Unreadable) -> kube::Result<Store<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + DeserializeOwned + 'static,
{
    let mut writer: Writer<K> = Writer::default();
    let store = writer.as_reader();
    let api: Api<DeserializeGuard<K>> = Api::all(client);
    writer.apply_watcher_event(&Event::Init);
    for guard in api.list(params).await? {
        if let Some(event) = read(Event::InitApply(guard), unreadable, &store) {
            writer.apply_watcher_event(&event);
        }
    }
    writer.apply_watcher_event(&Event::InitDone);
    Ok(store)
}

/// Converts an event for the cache `store`. Returns `None` if its object cannot be read, and records such an object. The deletion of an object needs
/// no more than its name.
fn read<K>(event: Event<DeserializeGuard<K>>, unreadable: &Unreadable, store: &Store<K>) -> Option<Event<K>>
where
    K: Resource<DynamicType = ()> + Clone,
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
            tracing::error!(%kind, name, error = %invalid, "the operator cannot read this object and does not use it: if a newer version of the operator wrote it, install that version again; otherwise, correct the object");
            unreadable.note(&kind, &invalid.metadata, &invalid.to_string());
            None
        }
    };
    Some(match event {
        Event::Apply(guard) => Event::Apply(object(guard)?),
        Event::Delete(guard) => {
            let meta = guard.0.as_ref().map_or_else(|invalid| &invalid.metadata, |object| object.meta());
            let name = meta.name.as_deref().unwrap_or_default();
            unreadable.forget(&kind, name);
            let mut key = ObjectRef::new(name);
            key.namespace.clone_from(&meta.namespace);
            // Without a state in the cache, there is nothing to delete.
            let known = || store.get(&key).map(|object| (*object).clone());
            Event::Delete(guard.0.ok().or_else(known)?)
        }
        Event::InitApply(guard) => Event::InitApply(object(guard)?),
        Event::Init => {
            unreadable.list_begins(&kind);
            Event::Init
        }
        Event::InitDone => {
            unreadable.list_ends(&kind);
            Event::InitDone
        }
    })
}

/// Converts an event for a cache of wanted objects only: an object that is not wanted counts as deleted.
fn only<K>(event: Event<K>, is_wanted: impl Fn(&K) -> bool) -> Option<Event<K>> {
    match event {
        Event::Apply(object) if !is_wanted(&object) => Some(Event::Delete(object)),
        Event::InitApply(object) if !is_wanted(&object) => None,
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{ResourceExt, core::Status};
    use serde_json::json;

    use super::*;

    fn map(name: &str, value: &str) -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": name}, "data": {"key": value}})).unwrap()
    }

    #[tokio::test]
    async fn listeners_get_all_changes_also_those_during_an_interruption() {
        let mut writer = Writer::default();
        let store = writer.as_reader();
        let events = [
            Event::Init,
            Event::InitApply(map("a", "1")),
            Event::InitApply(map("b", "1")),
            Event::InitDone,
            Event::Apply(map("a", "2")),
            Event::Delete(map("b", "1")),
            Event::Apply(map("c", "1")),
            // The watch restarts.
            Event::Init,
            Event::InitApply(map("a", "3")),
            Event::InitDone,
        ];
        let applied = stream::iter(events).inspect(|event| writer.apply_watcher_event(event));
        let mut changed: Vec<_> = changes(store, applied)
            .map(|m| format!("{}={}", m.name_any(), m.data.as_ref().unwrap()["key"]))
            .collect()
            .await;
        changed[..2].sort();
        assert_eq!(changed, ["a=1", "b=1", "a=2", "b=1", "c=1", "a=3", "c=1"], "c was deleted during the interruption");
    }

    #[test]
    fn heartbeats_are_not_changes() {
        let node = |uid: &str, version: u8, unschedulable: bool| -> Node {
            let metadata = json!({"name": "w", "uid": uid, "resourceVersion": version.to_string()});
            serde_json::from_value(json!({"metadata": metadata, "spec": {"unschedulable": unschedulable}})).unwrap()
        };
        let mut writer = Writer::default();
        let store = writer.as_reader();
        let mut seen = HashMap::new();
        for (about, event, expected) in [
            ("it came", Event::Apply(node("u1", 1, false)), true),
            ("a heartbeat", Event::Apply(node("u1", 2, false)), false),
            ("a cordon", Event::Apply(node("u1", 3, true)), true),
            ("a heartbeat afterwards", Event::Apply(node("u1", 4, true)), false),
            ("it went", Event::Delete(node("u1", 5, true)), true),
            ("it came again", Event::Apply(node("u1", 6, true)), true),
            ("another of that name", Event::Apply(node("u2", 7, true)), true),
        ] {
            writer.apply_watcher_event(&event);
            let (Event::Apply(node) | Event::Delete(node)) = event else { continue };
            assert_eq!(is_news(&mut seen, &store, &Arc::new(node), differs), expected, "{about}");
        }
        assert_eq!(seen.len(), 1);
    }

    /// Otherwise, the deletion would be missed, and the old state would stay in the cache.
    #[test]
    fn an_object_that_cannot_be_read_can_be_deleted() {
        let unreadable = Unreadable::default();
        let guard = |name: &str, data: serde_json::Value| {
            let map = json!({"metadata": {"name": name, "namespace": "n"}, "data": data});
            serde_json::from_value::<DeserializeGuard<ConfigMap>>(map).unwrap()
        };
        let mut writer = Writer::default();
        let store: Store<ConfigMap> = writer.as_reader();
        let mut next = |event| {
            let event = read(event, &unreadable, &store);
            if let Some(event) = &event {
                writer.apply_watcher_event(event);
            }
            (event.is_some(), store.state().len(), unreadable.names("ConfigMap"))
        };
        let nothing = Vec::<String>::new();
        next(Event::Init);
        next(Event::InitDone);
        assert_eq!(next(Event::Apply(guard("a", json!({})))), (true, 1, nothing.clone()));
        assert_eq!(next(Event::Apply(guard("a", json!(1)))), (false, 1, vec!["a".to_owned()]));
        assert_eq!(next(Event::Delete(guard("a", json!(1)))), (true, 0, nothing.clone()));
        assert_eq!(next(Event::Apply(guard("b", json!(1)))), (false, 0, vec!["b".to_owned()]));
        assert_eq!(next(Event::Delete(guard("b", json!(1)))), (false, 0, nothing));
    }

    #[test]
    fn an_object_that_is_no_longer_wanted_counts_as_deleted() {
        let shown = |event| match only(event, |map: &ConfigMap| map.data.as_ref().unwrap()["key"] == "wanted") {
            Some(Event::Apply(_)) => "apply",
            Some(Event::Delete(_)) => "delete",
            Some(Event::InitApply(_)) => "listed",
            Some(Event::Init | Event::InitDone) => "list",
            None => "nothing",
        };
        for (event, expected) in [
            (Event::Apply(map("a", "wanted")), "apply"),
            (Event::Apply(map("a", "other")), "delete"),
            (Event::Delete(map("a", "wanted")), "delete"),
            (Event::InitApply(map("a", "wanted")), "listed"),
            (Event::InitApply(map("a", "other")), "nothing"),
            (Event::InitDone, "list"),
        ] {
            assert_eq!(shown(event), expected);
        }
    }

    /// A failure that is passed on causes the next pause of the backoff, and an expired resource version must not cause it.
    #[tokio::test]
    async fn an_expired_resource_version_is_not_a_failure() {
        let status = |code| Box::new(Status::failure("no", "Any").with_code(code));
        for (code, expected) in [(410, vec![true]), (403, vec![false, true])] {
            let events = stream::iter([Err(watcher::Error::WatchError(status(code))), Ok("listed")]);
            let seen: Vec<bool> = restarting(events).map(|event| event.is_ok()).collect().await;
            assert_eq!(seen, expected, "{code}");
        }
    }

    #[tokio::test]
    async fn a_watch_starts_again_only_after_a_refusal() {
        let status = |code| Box::new(Status::failure("no", "Any").with_code(code));
        for (code, expected) in
            [(403, vec!["there", "failed", "there", "failed", "there"]), (503, vec!["there", "failed", "on"])]
        {
            let begin = || stream::iter([Ok("there"), Err(watcher::Error::WatchError(status(code))), Ok("on")]).boxed();
            let seen: Vec<&str> =
                anew(begin).take(expected.len()).map(|event| event.unwrap_or("failed")).collect().await;
            assert_eq!(seen, expected, "{code}");
        }
    }

    #[test]
    fn repeated_refusals_lengthen_the_pause() {
        for (before, lasted, expected) in [
            (0, 0, 1),
            (0, 3_600, 1),
            (1, 2, 2),
            (2, 3, 4),
            (16, 17, 30),
            (30, 31, 30),
            (30, 59, 30),
            (30, 60, 1),
            (4, 3_600, 1),
        ] {
            let [before, lasted, expected] = [before, lasted, expected].map(Duration::from_secs);
            assert_eq!(pause_after_refusal(before, lasted), expected, "{before:?} {lasted:?}");
        }
    }

    #[test]
    fn a_refusal_is_distinguished_from_a_broken_connection() {
        use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError as InWatch, WatchFailed};
        let status = |code| Box::new(Status::failure("no", "Any").with_code(code));
        let api = |code| kube::Error::Api(status(code));
        let unreadable = || kube::Error::SerdeError(serde_json::from_str::<u8>("x").unwrap_err());
        for (about, error, is_refused, is_unknown_kind) in [
            ("the kind is not served", InitialListFailed(api(404)), true, true),
            ("the right is missing", InitialListFailed(api(403)), true, false),
            ("an outage", InitialListFailed(api(503)), false, false),
            ("the kind went", WatchFailed(api(404)), true, false),
            ("the object cannot be read", WatchFailed(unreadable()), true, false),
            ("an event without the right", InWatch(status(403)), true, false),
            ("too old", InWatch(status(410)), false, false),
            ("no version", NoResourceVersion, true, false),
        ] {
            let error = WatchError(error);
            assert_eq!((error.refusal().is_some(), error.is_unknown_kind()), (is_refused, is_unknown_kind), "{about}");
        }
    }
}
