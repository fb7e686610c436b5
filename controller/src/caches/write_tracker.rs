//! Writes of this process that the watch caches may not have yet, and statuses that are not written yet. With them, no decision is based on an older
//! object.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use api::{WindowsInstance, WindowsInstanceStatus};
use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

/// Newest resource version of each instance that this process has written, by name. A cached instance may be older for a moment, and acting on it
/// would repeat the last step. A recreated instance has a newer resource version than the deleted one.
#[derive(Debug, Default)]
pub(crate) struct WriteTracker(Mutex<HashMap<String, u64>>);

impl WriteTracker {
    /// Records the API server's response to a write of an instance.
    pub(crate) fn note(&self, instance: &WindowsInstance) {
        let mut newest = self.0.lock();
        let version = newest.entry(instance.name_any()).or_default();
        *version = (*version).max(version_of(instance));
    }

    /// Forgets instances that are not in `names`.
    pub(crate) fn keep(&self, names: &BTreeSet<String>) {
        self.0.lock().retain(|name, _| names.contains(name));
    }

    /// Reports whether the instance is at least as new as the last write. If not, the watch is about to deliver a newer one.
    pub(crate) fn is_caught_up(&self, instance: &WindowsInstance) -> bool {
        let newest = self.0.lock();
        newest.get(&instance.name_any()).is_none_or(|written| version_of(instance) >= *written)
    }
}

/// Nodes that this process has written and whose cached version is older. kubelet and others write a new Node many times, and each write triggers a
/// reconcile, which would repeat writes that the cache does not have yet.
#[derive(Debug, Default)]
pub(crate) struct WrittenNodes(Mutex<HashMap<String, Arc<Node>>>);

impl WrittenNodes {
    /// Records the API server's response to a write of a Node.
    pub(crate) fn note(&self, written: Node) {
        self.0.lock().insert(written.name_any(), Arc::new(written));
    }

    /// Returns the written Node if `cached` is an older state of it. Otherwise, forgets the written Node.
    pub(crate) fn newer_than(&self, cached: &Node) -> Option<Arc<Node>> {
        let mut nodes = self.0.lock();
        let written = nodes.get(&cached.name_any())?;
        if written.uid() == cached.uid() && version_of(cached) < version_of(&**written) {
            return Some(written.clone());
        }
        nodes.remove(&cached.name_any());
        None
    }

    /// Forgets Nodes that are not in `names`.
    pub(crate) fn keep(&self, names: &BTreeSet<String>) {
        self.0.lock().retain(|name, _| names.contains(name));
    }
}

/// Statuses that this process has not stored, by instance name. A status is kept here only if its loss costs no more than another observation of the
/// host.
#[derive(Debug, Default)]
pub(crate) struct UnsavedStatuses(Mutex<HashMap<String, UnsavedStatus>>);

#[derive(Debug)]
struct UnsavedStatus {
    uid: Option<String>,
    /// Status on which the unsaved one is based, as the API server has it.
    stored: WindowsInstanceStatus,
    desired: WindowsInstanceStatus,
}

impl UnsavedStatuses {
    /// Keeps the `desired` status until the next reconcile of the instance. `stored` is the status in the API server.
    pub(crate) fn keep(
        &self,
        instance: &WindowsInstance,
        stored: &WindowsInstanceStatus,
        desired: &WindowsInstanceStatus,
    ) {
        let unsaved = UnsavedStatus { uid: instance.uid(), stored: stored.clone(), desired: desired.clone() };
        self.0.lock().insert(instance.name_any(), unsaved);
    }

    /// Removes and returns the status that was kept for the instance, unless another status was stored in the meantime.
    pub(crate) fn take(&self, instance: &WindowsInstance) -> Option<WindowsInstanceStatus> {
        let unsaved = self.0.lock().remove(&instance.name_any())?;
        // Compared as JSON, so that times have the same precision on both sides.
        let is_same = unsaved.uid == instance.uid() && json!(instance.status) == json!(unsaved.stored);
        is_same.then_some(unsaved.desired)
    }

    /// Forgets the statuses of instances that are not in `names`.
    pub(crate) fn keep_only(&self, names: &BTreeSet<String>) {
        self.0.lock().retain(|name, _| names.contains(name));
    }
}

/// Returns the resource version as a number; a version that is not a number counts as the newest. Versions of one kind can be compared as numbers
/// since Kubernetes 1.35, and before with every API server that stores its objects in etcd.
fn version_of(object: &impl Resource) -> u64 {
    object.meta().resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::WindowsInstanceSpec;

    fn instance(name: &str, version: &str) -> WindowsInstance {
        let mut instance = WindowsInstance::new(name, WindowsInstanceSpec::default());
        instance.metadata.resource_version = Some(version.into());
        instance
    }

    #[test]
    fn a_written_node_replaces_an_older_cached_one() {
        let node = |uid: &str, version: &str| {
            let mut node = Node::default();
            node.metadata.name = Some("a".into());
            (node.metadata.uid, node.metadata.resource_version) = (Some(uid.into()), Some(version.into()));
            node
        };
        for (about, uid, version, expected) in [
            ("older", "u-1", "9", true),
            ("the same", "u-1", "10", false),
            ("newer", "u-1", "11", false),
            ("another of its name", "u-2", "9", false),
            ("not to be compared", "u-1", "?", false),
        ] {
            let written = WrittenNodes::default();
            assert!(written.newer_than(&node("u-1", "1")).is_none(), "nothing was written yet");
            written.note(node("u-1", "10"));
            for again in ["", " again"] {
                assert_eq!(written.newer_than(&node(uid, version)).is_some(), expected, "{about}{again}");
            }
            assert_eq!(written.newer_than(&node("u-1", "9")).is_some(), expected, "{about}: it is forgotten");
            written.keep(&BTreeSet::new());
            assert!(written.newer_than(&node("u-1", "9")).is_none());
        }
    }

    #[test]
    fn an_unsaved_status_continues_only_the_stored_one() {
        let status = |version: &str| WindowsInstanceStatus {
            current_version: Some(version.into()),
            ..WindowsInstanceStatus::default()
        };
        let stored_as = |uid: &str, version: &str| {
            let mut instance = instance("a", "1");
            instance.metadata.uid = Some(uid.into());
            instance.status = Some(status(version));
            instance
        };
        for (about, uid, version, is_kept) in [
            ("as it was", "u-1", "1-a", true),
            ("another status was stored", "u-1", "2-b", false),
            ("another instance of its name", "u-2", "1-a", false),
        ] {
            let unsaved = UnsavedStatuses::default();
            unsaved.keep(&stored_as("u-1", "1-a"), &status("1-a"), &status("3-c"));
            assert_eq!(unsaved.take(&stored_as(uid, version)), is_kept.then(|| status("3-c")), "{about}");
            assert_eq!(unsaved.take(&stored_as(uid, version)), None, "{about}: it is taken once");
            unsaved.keep(&stored_as("u-1", "1-a"), &status("1-a"), &status("3-c"));
            unsaved.keep_only(&BTreeSet::from(["b".to_owned()]));
            assert_eq!(unsaved.take(&stored_as("u-1", "1-a")), None, "{about}: it is forgotten");
        }
    }

    #[test]
    fn an_instance_older_than_the_last_write_is_not_current() {
        let written = WriteTracker::default();
        assert!(written.is_caught_up(&instance("a", "1")), "nothing was written yet");
        written.note(&instance("a", "10"));
        written.note(&instance("a", "9"));
        for (name, version, fresh) in
            [("a", "9", false), ("a", "10", true), ("a", "11", true), ("b", "1", true), ("a", "?", true)]
        {
            assert_eq!(written.is_caught_up(&instance(name, version)), fresh, "{name} {version}");
        }
        written.keep(&BTreeSet::from(["a".into()]));
        assert!(!written.is_caught_up(&instance("a", "9")), "what is there is not forgotten");
        written.keep(&BTreeSet::new());
        assert!(written.is_caught_up(&instance("a", "9")), "what is gone is forgotten");
    }
}
