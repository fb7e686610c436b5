//! Index of the instances of all pools by name, by address and port, and by pool, so that a decision about a pool does not cost more in a large
//! fleet. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use api::{Disruption, GrantType, WindowsInstance};
use kube::ResourceExt;

use super::{
    address::canonical,
    hosts::{Known, KnownHosts},
    naming::Endpoint,
};
use crate::rollout::shared_limit::Sharer;

/// Index of the instances of all pools.
#[derive(Debug, Default)]
pub struct Fleet {
    hosts: HashMap<String, Arc<WindowsInstance>>,
    /// Names of instances, by the address and port in their entries.
    places: HashMap<Endpoint, BTreeSet<String>>,
    pools: HashMap<String, OfPool>,
}

/// Instances of one pool.
#[derive(Debug, Default)]
struct OfPool {
    instances: BTreeMap<String, Arc<WindowsInstance>>,
    disrupting: u32,
    adopted: u32,
}

impl Fleet {
    /// Adds or replaces an instance. Its pool and place may differ from before.
    pub fn put(&mut self, instance: Arc<WindowsInstance>) {
        let name = instance.name_any();
        self.remove(&name);
        self.places.entry(endpoint(&instance)).or_default().insert(name.clone());
        let pool = self.pools.entry(instance.spec.pool_ref.name.clone()).or_default();
        pool.disrupting += u32::from(disrupts(&instance));
        pool.adopted += u32::from(adopted_version(&instance).is_some());
        pool.instances.insert(name.clone(), instance.clone());
        self.hosts.insert(name, instance);
    }

    /// Removes an instance.
    pub fn remove(&mut self, name: &str) {
        let Some(before) = self.hosts.remove(name) else { return };
        let place = endpoint(&before);
        if let Some(names) = self.places.get_mut(&place) {
            names.remove(name);
            if names.is_empty() {
                self.places.remove(&place);
            }
        }
        let pool = &before.spec.pool_ref.name;
        if let Some(of_pool) = self.pools.get_mut(pool) {
            of_pool.instances.remove(name);
            of_pool.disrupting -= u32::from(disrupts(&before));
            of_pool.adopted -= u32::from(adopted_version(&before).is_some());
            if of_pool.instances.is_empty() {
                self.pools.remove(pool);
            }
        }
    }

    /// Returns the instances of a pool, sorted by name.
    pub fn of_pool(&self, pool: &str) -> Vec<Arc<WindowsInstance>> {
        self.pools.get(pool).map(|p| p.instances.values().cloned().collect()).unwrap_or_default()
    }

    /// Returns the number of a pool's nodes that open grants may disrupt.
    pub fn disrupting(&self, pool: &str) -> u32 {
        self.pools.get(pool).map_or(0, |of_pool| of_pool.disrupting)
    }

    /// Returns the pools that have instances, for the limits that pools share. `has_own_limit` returns whether a pool sets `rollout.maxUnavailable`.
    pub fn sharers(&self, has_own_limit: &dyn Fn(&str) -> bool) -> BTreeMap<String, Sharer> {
        let sharer = |pool: &String, of_pool: &OfPool| Sharer {
            disrupting: of_pool.disrupting,
            has_adopted: of_pool.adopted > 0,
            has_own_limit: has_own_limit(pool),
        };
        self.pools.iter().map(|(pool, of_pool)| (pool.clone(), sharer(pool, of_pool))).collect()
    }
}

impl FromIterator<Arc<WindowsInstance>> for Fleet {
    fn from_iter<I: IntoIterator<Item = Arc<WindowsInstance>>>(instances: I) -> Self {
        let mut fleet = Self::default();
        instances.into_iter().for_each(|instance| fleet.put(instance));
        fleet
    }
}

impl KnownHosts for Fleet {
    fn named(&self, name: &str) -> Option<Known> {
        self.hosts.get(name).map(|i| Known::of(i))
    }

    fn at(&self, place: &Endpoint) -> Vec<Known> {
        self.places.get(place).into_iter().flatten().filter_map(|name| self.named(name)).collect()
    }
}

/// Returns the endpoint in the entry of an instance.
fn endpoint(instance: &WindowsInstance) -> Endpoint {
    let host = &instance.spec.host;
    (canonical(&host.address), host.port)
}

/// Returns the version of a node that was adopted from another operator and has not been changed since.
pub fn adopted_version(instance: &WindowsInstance) -> Option<&String> {
    let status = instance.status.as_ref().filter(|s| s.wicd.is_none())?;
    status.current_version.as_ref()
}

/// Reports whether the open grant of an instance may disrupt a working node. An update without a known disruption does not count.
fn disrupts(instance: &WindowsInstance) -> bool {
    instance.open_grant().is_some_and(|g| match g.type_ {
        GrantType::Update => g.disruption > Some(Disruption::None),
        GrantType::Reboot | GrantType::Remove | GrantType::Maintenance => true,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use api::{Grant, InstanceHost, PoolRef, WindowsInstanceSpec};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn instance(name: &str, address: &str, pool: &str) -> WindowsInstance {
        let host = InstanceHost { name: name.into(), address: address.into(), port: 22, ..InstanceHost::default() };
        let pool_ref = PoolRef { name: pool.into() };
        WindowsInstance::new(name, WindowsInstanceSpec { host, pool_ref, ..WindowsInstanceSpec::default() })
    }

    fn granted(type_: GrantType, disruption: Option<Disruption>) -> WindowsInstance {
        let grant = Grant {
            id: "x".into(),
            type_,
            granted_time: api::Time::default(),
            without_place: false,
            version: None,
            disruption,
            services: Vec::new(),
        };
        let mut instance = instance("w", "10.0.0.1", "p");
        instance.spec.grant = Some(grant);
        instance
    }

    fn at(fleet: &Fleet, address: &str) -> Vec<String> {
        fleet.at(&(canonical(address), 22)).into_iter().map(|k| k.name).collect()
    }

    fn names(instances: &[Arc<WindowsInstance>]) -> Vec<String> {
        instances.iter().map(|i| i.name_any()).collect()
    }

    #[test]
    fn a_host_is_found_at_its_current_address_and_pool_only() {
        let mut fleet = Fleet::default();
        for (name, address, pool) in [("a", "fd00:0:0::1", "p"), ("b", "10.0.0.2", "p"), ("c", "10.0.0.3", "q")] {
            fleet.put(Arc::new(instance(name, address, pool)));
        }
        assert_eq!(
            (at(&fleet, "fd00::1"), names(&fleet.of_pool("p"))),
            (vec!["a".into()], vec!["a".into(), "b".into()])
        );
        assert!(fleet.at(&("fd00::1".into(), 2222)).is_empty(), "another port");

        fleet.put(Arc::new(instance("a", "10.0.0.2", "p")));
        assert_eq!(
            (at(&fleet, "fd00::1"), at(&fleet, "10.0.0.2")),
            (vec![], vec!["a".into(), "b".into()]),
            "the address of a has changed"
        );

        fleet.put(Arc::new(instance("b", "10.0.0.2", "q")));
        assert_eq!(fleet.named("b").map(|k| k.pool).as_deref(), Some("q"), "b belongs to another pool");
        assert_eq!(
            (names(&fleet.of_pool("p")), names(&fleet.of_pool("q"))),
            (vec!["a".into()], vec!["b".into(), "c".into()])
        );

        fleet.remove("b");
        fleet.remove("unknown");
        assert_eq!(
            (fleet.named("b"), at(&fleet, "10.0.0.2")),
            (None, vec!["a".into()]),
            "b is removed, and a stays at the same address"
        );
        fleet.remove("a");
        assert_eq!(fleet.pools.keys().collect::<Vec<_>>(), ["q"], "a pool without instances is removed");
        assert_eq!(fleet.places.len(), 1, "an address without instances is removed");
    }

    #[test]
    fn disruptive_grants_are_counted_by_pool() {
        use GrantType::{Maintenance, Provision, Reboot, Remove, Stage, Update};
        for (about, grant, expected) in [
            ("nothing granted", None, 0),
            ("a join is not disruptive", Some((Provision, None)), 0),
            ("copying files is not disruptive", Some((Stage, None)), 0),
            ("a change without disruption", Some((Update, Some(Disruption::None))), 0),
            ("a change with a drain", Some((Update, Some(Disruption::Drain))), 1),
            ("a restart", Some((Reboot, None)), 1),
            ("a removal", Some((Remove, None)), 1),
            ("a maintenance", Some((Maintenance, None)), 1),
        ] {
            let idle = instance("w", "10.0.0.1", "p");
            let instance = grant.map_or(idle.clone(), |(type_, disruption)| granted(type_, disruption));
            let mut fleet: Fleet = [Arc::new(instance)].into_iter().collect();
            let sharers = |disrupting| [("p".to_owned(), Sharer { disrupting, ..Sharer::default() })].into();
            assert_eq!(fleet.sharers(&|_| false), sharers(expected), "{about}");
            fleet.put(Arc::new(idle));
            assert_eq!(fleet.sharers(&|_| false), sharers(0), "{about}: the grant is revoked");
        }
    }

    #[test]
    fn a_pool_has_adopted_nodes_until_each_is_updated() {
        let with = |status: serde_json::Value| {
            let mut instance = instance("w", "10.0.0.1", "p");
            instance.status = serde_json::from_value(status).unwrap();
            Arc::new(instance)
        };
        let mut fleet = Fleet::default();
        for (about, status, expected) in [
            ("it is not a node", json!(null), false),
            ("it is adopted", json!({"currentVersion": "10.19.0-a"}), true),
            ("it is updated", json!({"currentVersion": "ours", "wicd": "x"}), false),
        ] {
            fleet.put(with(status));
            let sharer = Sharer { has_adopted: expected, has_own_limit: true, disrupting: 0 };
            assert_eq!(fleet.sharers(&|pool| pool == "p"), [("p".to_owned(), sharer)].into(), "{about}");
        }
    }

    proptest! {
        /// Compares the index after random changes with an index that is built from the remaining instances.
        #[test]
        fn the_index_matches_the_remaining_instances(
            events in proptest::collection::vec((0..4_usize, 0..3_usize, 0..3_usize, 0..3_u8), 0..40)
        ) {
            let mut fleet = Fleet::default();
            let mut there: BTreeMap<String, Arc<WindowsInstance>> = BTreeMap::new();
            for (name, address, pool, what) in events {
                let name = format!("w{name}");
                let mut instance = instance(&name, &format!("10.0.0.{address}"), &format!("p{pool}"));
                instance.spec.grant = (what == 2).then(|| granted(GrantType::Remove, None).spec.grant).flatten();
                if what == 0 {
                    fleet.remove(&name);
                    there.remove(&name);
                } else {
                    fleet.put(Arc::new(instance.clone()));
                    there.insert(name, Arc::new(instance));
                }
            }
            let fresh: Fleet = there.values().cloned().collect();
            prop_assert_eq!(format!("{:?}", sorted(&fleet)), format!("{:?}", sorted(&fresh)));
        }
    }

    /// Returns the content of an index in a fixed order.
    fn sorted(fleet: &Fleet) -> impl std::fmt::Debug + use<> {
        let places: BTreeMap<_, _> = fleet.places.clone().into_iter().collect();
        let pools: BTreeMap<_, _> = fleet.pools.keys().map(|p| (p.clone(), names(&fleet.of_pool(p)))).collect();
        let disrupting: BTreeMap<_, _> = fleet.sharers(&|_| false).into_iter().collect();
        let hosts: BTreeMap<_, _> = fleet.hosts.keys().map(|n| (n.clone(), fleet.named(n))).collect();
        (places, pools, disrupting, hosts)
    }
}
