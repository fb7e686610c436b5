//! Objects that this operator cannot read, for example because a newer version of the operator wrote them.
//!
//! The watch caches do not have such objects, or have an older state that could be read. A pool with such an instance or Node must not be reconciled:
//! its budget might not count that host, and the host might be mistaken for a new one.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use tokio::sync::Notify;

use api::names::key;

/// Maximum number of characters that are shown of an error.
const MAX_ERROR: usize = 200;

/// Objects that cannot currently be read.
#[derive(Clone, Default)]
pub(crate) struct Unreadable(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// Number of list operations for each kind.
    lists: BTreeMap<String, u64>,
    objects: BTreeMap<(String, String), Object>,
}

/// Object that cannot be read.
#[derive(Clone, Debug)]
struct Object {
    pool: Option<String>,
    error: String,
    /// Number of the kind's list operation in which the object was seen, or after which a watch event had it.
    list: u64,
}

impl Unreadable {
    /// Records that a list operation of a kind begins.
    pub(crate) fn list_begins(&self, kind: &str) {
        *self.lock().lists.entry(kind.to_owned()).or_default() += 1;
    }

    /// Records that a list operation of a kind is complete, and forgets objects that were not in the list.
    pub(crate) fn list_ends(&self, kind: &str) {
        let mut state = self.lock();
        let current = state.lists.get(kind).copied().unwrap_or_default();
        state.objects.retain(|(k, _), object| k != kind || object.list >= current);
        drop(state);
        self.0.changed.notify_one();
    }

    /// Records an object that cannot be read.
    pub(crate) fn note(&self, kind: &str, meta: &ObjectMeta, error: &str) {
        let name = meta.name.clone().unwrap_or_default();
        let pool = meta.labels.as_ref().and_then(|l| l.get(key::POOL)).cloned();
        let error = error.chars().filter(|c| !c.is_control()).take(MAX_ERROR).collect();
        let mut state = self.lock();
        let list = state.lists.get(kind).copied().unwrap_or_default();
        state.objects.insert((kind.to_owned(), name), Object { pool, error, list });
        drop(state);
        self.0.changed.notify_one();
    }

    /// Forgets an object that can be read again or was deleted.
    pub(crate) fn forget(&self, kind: &str, name: &str) {
        let mut state = self.lock();
        if !state.objects.is_empty() && state.objects.remove(&(kind.to_owned(), name.to_owned())).is_some() {
            drop(state);
            self.0.changed.notify_one();
        }
    }

    /// Returns the fault and the remedy if an instance or a Node of the pool cannot be read.
    pub(crate) fn of_pool(&self, pool: &str) -> Option<String> {
        let state = self.lock();
        let ((kind, name), object) = state.objects.iter().find(|(_, o)| o.pool.as_deref() == Some(pool))?;
        Some(format!(
            "the {kind} {name} cannot be read, so no operation begins in this pool: {}. If a newer version of the operator has written it, install \
             that version again; otherwise, correct the object",
            object.error
        ))
    }

    /// Reports whether the object cannot be read.
    pub(crate) fn has(&self, kind: &str, name: &str) -> bool {
        self.lock().objects.keys().any(|(k, n)| k == kind && n == name)
    }

    /// Returns the names of the objects of a kind that cannot be read.
    pub(crate) fn names(&self, kind: &str) -> Vec<String> {
        self.of_kind(kind).into_iter().map(|(name, _)| name).collect()
    }

    /// Returns the names and the errors of the objects of a kind that cannot be read.
    pub(crate) fn of_kind(&self, kind: &str) -> Vec<(String, String)> {
        let state = self.lock();
        let of_kind = state.objects.iter().filter(|((k, _), _)| k == kind);
        of_kind.map(|((_, name), object)| (name.clone(), object.error.clone())).collect()
    }

    /// Returns the pools that have an object that cannot be read.
    pub(crate) fn pools(&self) -> Vec<String> {
        self.lock().objects.values().filter_map(|o| o.pool.clone()).collect()
    }

    /// Waits until the set of unreadable objects may have changed.
    pub(crate) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, State> {
        self.0.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "WindowsInstance";

    fn meta(name: &str, pool: &str) -> ObjectMeta {
        let labels = BTreeMap::from([(key::POOL.to_owned(), pool.to_owned())]);
        ObjectMeta { name: Some(name.into()), labels: Some(labels), ..ObjectMeta::default() }
    }

    #[test]
    fn a_pool_has_an_unreadable_instance_until_it_can_be_read() {
        let unreadable = Unreadable::default();
        assert_eq!((unreadable.of_pool("a"), unreadable.names(KIND)), (None, Vec::new()));
        unreadable.note(KIND, &meta("win-1", "a"), "unknown variant `Reimage`\u{1b}");
        assert_eq!(unreadable.names(KIND), ["win-1"]);
        assert_eq!(unreadable.names("WindowsNodePool"), Vec::<String>::new());
        let message = unreadable.of_pool("a").unwrap();
        assert!(message.contains("win-1") && message.contains("`Reimage`") && !message.contains('\u{1b}'), "{message}");
        assert_eq!((unreadable.of_pool("b"), unreadable.pools()), (None, vec!["a".to_owned()]));
        unreadable.forget(KIND, "win-2");
        assert!(unreadable.of_pool("a").is_some());
        unreadable.note("Node", &meta("win-3", "c"), "x");
        assert!(unreadable.of_pool("c").unwrap().starts_with("the Node win-3 cannot be read"));
        unreadable.forget("Node", "win-3");
        unreadable.forget(KIND, "win-1");
        assert_eq!(unreadable.of_pool("a"), None);
    }

    #[test]
    fn an_object_that_is_not_in_a_new_list_is_forgotten() {
        let unreadable = Unreadable::default();
        unreadable.list_begins(KIND);
        unreadable.note(KIND, &meta("win-1", "a"), "x");
        unreadable.note(KIND, &meta("win-2", "b"), "x");
        unreadable.list_ends(KIND);
        unreadable.list_begins(KIND);
        unreadable.note(KIND, &meta("win-2", "b"), "x");
        assert!(unreadable.of_pool("a").is_some(), "it is not forgotten before the list is complete");
        unreadable.list_ends(KIND);
        assert_eq!(unreadable.pools(), ["b"]);
    }
}
