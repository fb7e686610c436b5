//! Watch cache of instances, with an index by pool, name and address.

use std::{collections::BTreeMap, sync::Arc};

use api::WindowsInstance;
use kube::runtime::{
    reflector::{ObjectRef, Store, store::WriterDropped},
    watcher::Event,
};
use parking_lot::RwLock;
use wnp_core::{
    inventory::{
        fleet::Fleet,
        hosts::{Known, KnownHosts},
        naming::Endpoint,
    },
    rollout::shared_limit::Sharer,
};

/// Instances of all pools. With the index, a pool finds its own instances, and those with a name or an address in its list, without reading all
/// others.
#[derive(Clone)]
pub(crate) struct Instances {
    store: Store<WindowsInstance>,
    fleet: Arc<RwLock<Fleet>>,
    /// Number of instances that were returned to callers.
    #[cfg(test)]
    pub returned: Arc<std::sync::atomic::AtomicUsize>,
}

impl Instances {
    /// Indexes the instances of a watch cache. The index then changes only with [`observe`](Self::observe) and [`refill`](Self::refill).
    pub(crate) fn new(store: Store<WindowsInstance>) -> Self {
        let instances = Self {
            store,
            fleet: Arc::default(),
            #[cfg(test)]
            returned: Arc::default(),
        };
        instances.refill();
        instances
    }

    /// Applies an event to the index after the cache has applied it.
    pub(crate) fn observe(&self, event: &Event<WindowsInstance>) {
        match event {
            Event::Apply(instance) | Event::Delete(instance) => {
                // The cache is read under the lock, so that no older state replaces a newer one.
                let mut fleet = self.fleet.write();
                match self.store.get(&ObjectRef::from_obj(instance)) {
                    Some(instance) => fleet.put(instance),
                    None => fleet.remove(instance.metadata.name.as_deref().unwrap_or_default()),
                }
            }
            Event::InitDone => self.refill(),
            Event::Init | Event::InitApply(_) => {}
        }
    }

    /// Rebuilds the index from the cache.
    pub(crate) fn refill(&self) {
        let mut fleet = self.fleet.write();
        *fleet = self.store.state().into_iter().collect();
    }

    /// Waits until the cache and the index are complete.
    ///
    /// # Errors
    /// Fails if the watch ends before they are complete.
    pub(crate) async fn wait_until_ready(&self) -> Result<(), WriterDropped> {
        self.store.wait_until_ready().await?;
        // The event that completed the cache may not have been observed yet.
        self.refill();
        Ok(())
    }

    /// Returns the watch cache.
    pub(crate) fn store(&self) -> Store<WindowsInstance> {
        self.store.clone()
    }

    /// Returns an instance from the cache, if it is there.
    pub(crate) fn get(&self, instance: &ObjectRef<WindowsInstance>) -> Option<Arc<WindowsInstance>> {
        self.count(1);
        self.store.get(instance)
    }

    /// Returns the instances of all pools. The fleet may be large: prefer the methods that use the index.
    pub(crate) fn state(&self) -> Vec<Arc<WindowsInstance>> {
        self.count(self.store.len());
        self.store.state()
    }

    /// Returns the instances of a pool in the order of their names.
    pub(crate) fn of_pool(&self, pool: &str) -> Vec<Arc<WindowsInstance>> {
        let instances = self.fleet.read().of_pool(pool);
        self.count(instances.len());
        instances
    }

    /// Returns the instances of a pool and, from the same state, the number of its nodes that open grants may disrupt.
    pub(crate) fn of_pool_and_granted(&self, pool: &str) -> (Vec<Arc<WindowsInstance>>, u32) {
        let fleet = self.fleet.read();
        let instances = fleet.of_pool(pool);
        self.count(instances.len());
        (instances, fleet.disrupting(pool))
    }

    /// Returns all pools that have instances, with the data for the limits that pools share. `has_own_limit` reports whether a pool sets
    /// `rollout.maxUnavailable`.
    pub(crate) fn sharers(&self, has_own_limit: &dyn Fn(&str) -> bool) -> BTreeMap<String, Sharer> {
        self.fleet.read().sharers(has_own_limit)
    }

    fn count(&self, instances: usize) {
        #[cfg(test)]
        self.returned.fetch_add(instances, std::sync::atomic::Ordering::Relaxed);
        let _ = (self, instances);
    }
}

impl KnownHosts for Instances {
    fn named(&self, name: &str) -> Option<Known> {
        let known = self.fleet.read().named(name);
        self.count(known.iter().len());
        known
    }

    fn at(&self, place: &Endpoint) -> Vec<Known> {
        let known = self.fleet.read().at(place);
        self.count(known.len());
        known
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use api::{InstanceHost, PoolRef, WindowsInstanceSpec};
    use kube::{ResourceExt, runtime::reflector::store::Writer};

    use super::*;

    fn instance(name: &str, address: &str, pool: &str) -> WindowsInstance {
        let host = InstanceHost { address: address.into(), port: 22, ..InstanceHost::default() };
        let pool_ref = PoolRef { name: pool.into() };
        WindowsInstance::new(name, WindowsInstanceSpec { host, pool_ref, ..WindowsInstanceSpec::default() })
    }

    /// Returns the content of the index for the pools `p` and `q`, and for the address 10.0.0.1.
    fn seen(instances: &Instances) -> [Vec<String>; 3] {
        let names = |pool: &str| instances.of_pool(pool).iter().map(|i| i.name_any()).collect();
        let at = instances.at(&("10.0.0.1".into(), 22)).into_iter().map(|k| k.name).collect();
        [names("p"), names("q"), at]
    }

    /// Name of the case, the event, and the expected result of [`seen`].
    type Case = (&'static str, Event<WindowsInstance>, [&'static [&'static str]; 3]);

    #[test]
    fn the_index_follows_the_cache() {
        let mut writer = Writer::default();
        let instances = Instances::new(writer.as_reader());
        let (a, b) = (instance("a", "10.0.0.1", "p"), instance("b", "10.0.0.2", "p"));
        let cases: Vec<Case> = vec![
            ("a list begins", Event::Init, [&[], &[], &[]]),
            ("it is not complete", Event::InitApply(a.clone()), [&[], &[], &[]]),
            ("it is", Event::InitDone, [&["a"], &[], &["a"]]),
            ("another", Event::Apply(b.clone()), [&["a", "b"], &[], &["a"]]),
            (
                "it moves to an address in use",
                Event::Apply(instance("b", "10.0.0.1", "p")),
                [&["a", "b"], &[], &["a", "b"]],
            ),
            ("it changes pools", Event::Apply(instance("b", "10.0.0.1", "q")), [&["a"], &["b"], &["a", "b"]]),
            ("the first one goes", Event::Delete(a), [&[], &["b"], &["b"]]),
            ("the watch begins again", Event::Init, [&[], &["b"], &["b"]]),
            ("and has none", Event::InitDone, [&[], &[], &[]]),
        ];
        for (about, event, expected) in cases {
            writer.apply_watcher_event(&event);
            instances.observe(&event);
            assert_eq!(
                seen(&instances),
                expected.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>()),
                "{about}"
            );
        }
    }

    /// Caches are ready before their last event is observed. Until then, the index would look empty.
    #[tokio::test]
    async fn the_index_is_complete_when_it_is_ready() {
        let mut writer = Writer::default();
        let instances = Instances::new(writer.as_reader());
        for event in [Event::Init, Event::InitApply(instance("a", "10.0.0.1", "p")), Event::InitDone] {
            writer.apply_watcher_event(&event);
        }
        instances.wait_until_ready().await.unwrap();
        assert_eq!(seen(&instances)[0], ["a"]);
    }

    #[test]
    fn returned_instances_are_counted() {
        let mut writer = Writer::default();
        for (name, pool) in [("a", "p"), ("b", "q"), ("c", "q")] {
            writer.apply_watcher_event(&Event::Apply(instance(name, "10.0.0.1", pool)));
        }
        let instances = Instances::new(writer.as_reader());
        let count = |work: &dyn Fn()| {
            work();
            instances.returned.swap(0, Ordering::Relaxed)
        };
        assert_eq!(count(&|| drop(instances.of_pool("p"))), 1);
        assert_eq!(count(&|| drop(instances.named("a"))), 1);
        assert_eq!(count(&|| drop(instances.at(&("10.0.0.1".into(), 22)))), 3);
        assert_eq!(count(&|| drop(instances.state())), 3);
    }
}
