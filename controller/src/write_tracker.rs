//! Whether what the cache has of an instance is new enough to be acted upon. Pure, but for its memory.

use std::collections::{BTreeSet, HashMap};

use api::WindowsInstance;
use kube::ResourceExt;
use parking_lot::Mutex;

/// The newest version of each instance that this process has written. What the cache has of it may be older for a moment, and
/// acting on that would repeat the last step. By name: a recreated instance has a newer version than the old one.
#[derive(Debug, Default)]
pub(crate) struct WriteTracker(Mutex<HashMap<String, u64>>);

impl WriteTracker {
    /// Notes what the API server answered to a write.
    pub(crate) fn note(&self, instance: &WindowsInstance) {
        let mut newest = self.0.lock();
        let version = newest.entry(instance.name_any()).or_default();
        *version = (*version).max(version_of(instance));
    }

    /// Forgets deleted instances.
    pub(crate) fn keep(&self, names: &BTreeSet<String>) {
        self.0.lock().retain(|name, _| names.contains(name));
    }

    /// Whether the instance is at least as new as what was written last. If not, the watch is about to bring a newer one.
    pub(crate) fn is_caught_up(&self, instance: &WindowsInstance) -> bool {
        let newest = self.0.lock();
        newest.get(&instance.name_any()).is_none_or(|written| version_of(instance) >= *written)
    }
}

/// Resource versions of one kind can be compared as numbers since Kubernetes 1.35, and could before in every API server that
/// keeps its objects in etcd.
fn version_of(instance: &WindowsInstance) -> u64 {
    instance.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(u64::MAX)
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
    fn older_than_the_last_write_is_too_old() {
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
