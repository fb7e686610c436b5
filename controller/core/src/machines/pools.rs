//! Desired pools for MachineSets. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{MachineGroup, WindowsNodePool};
use kube::ResourceExt;
use sha2::{Digest as _, Sha256};

use super::{
    CLUSTER_API, MACHINE_API,
    read::{Machine, MachineSet, Source},
};
use crate::inventory::source_pool::{self, ObservedSource, PoolChange};

/// Maximum length of a pool's name.
const LONGEST: usize = 63;

/// Action on a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// The pool must be created.
    Make(String, Source),
    /// No free name is left for the pool.
    Taken(String, Source),
    /// The pool is no longer needed.
    Drop(String),
}

/// Returns the sources that get a pool automatically: those in OpenShift's own namespaces. Machines of Cluster API in other namespaces may belong
/// to other clusters.
pub fn sources(sets: &[MachineSet], machines: &[Machine]) -> BTreeSet<Source> {
    let own = |s: &Source| match s.group {
        MachineGroup::OpenShift => s.namespace == MACHINE_API,
        MachineGroup::ClusterApi => s.namespace == CLUSTER_API,
    };
    let of_sets = sets.iter().filter(|s| s.windows && !s.ignored).map(|s| s.source.clone());
    let of_machines = machines.iter().filter(|m| m.windows && !m.ignored).filter_map(|m| m.source.clone());
    let mut all: BTreeSet<Source> = of_sets.chain(of_machines.filter(|s| s.set.is_none())).filter(own).collect();
    // OpenShift shows a MachineSet that moves from one API to the other in both.
    let twins: BTreeSet<Option<String>> =
        all.iter().filter(|s| s.group == MachineGroup::OpenShift).map(|s| s.set.clone()).collect();
    all.retain(|s| s.group == MachineGroup::OpenShift || s.set.is_none() || !twins.contains(&s.set));
    all
}

/// Returns the actions that give each source a pool, and remove pools that are no longer needed. Pools for sources of API groups that are not watched
/// stay.
pub fn acts(
    sources: &BTreeSet<Source>,
    watched: &BTreeSet<MachineGroup>,
    pools: &[Arc<WindowsNodePool>],
    has_instances: impl Fn(&str) -> bool,
) -> Vec<Act> {
    let by_name: BTreeMap<String, &WindowsNodePool> = pools.iter().map(|p| (p.name_any(), &**p)).collect();
    let read: BTreeSet<Source> = pools.iter().filter_map(|p| reads(p)).collect();
    let mut given = BTreeSet::new();
    let mut acts = Vec::new();
    for source in sources.difference(&read) {
        let names = names(source);
        match names.iter().find(|n| !by_name.contains_key(*n) && !given.contains(*n)) {
            // A pool that is being deleted frees its name soon.
            None if names.iter().any(|n| by_name.get(n).is_some_and(|p| p.metadata.deletion_timestamp.is_some())) => {}
            None => acts.push(Act::Taken(names[0].clone(), source.clone())),
            Some(name) => {
                given.insert(name.clone());
                acts.push(Act::Make(name.clone(), source.clone()));
            }
        }
    }
    for pool in pools {
        let Some(source) = reads(pool).filter(|s| watched.contains(&s.group)) else { continue };
        let name = pool.name_any();
        let seen = ObservedSource {
            source: sources.contains(&source),
            pool: Some(pool),
            reads: true,
            has_instances: has_instances(&name),
            ..ObservedSource::default()
        };
        if source_pool::decide(&seen) == PoolChange::Drop {
            acts.push(Act::Drop(name));
        }
    }
    acts
}

/// Returns the source of Machines that a pool reads.
pub fn reads(pool: &WindowsNodePool) -> Option<Source> {
    pool.spec.inventory.machine_set_ref.as_ref().map(Source::of)
}

/// Returns the names that the pool of a source may have, the preferred one first.
fn names(source: &Source) -> [String; 2] {
    let (name, prefix) = match (&source.set, source.group) {
        (Some(set), MachineGroup::OpenShift) => (set.clone(), "machines"),
        (Some(set), MachineGroup::ClusterApi) => (set.clone(), "cluster-api"),
        (None, MachineGroup::OpenShift) => ("windows-machines".into(), "machines"),
        (None, MachineGroup::ClusterApi) => ("windows-machines-cluster-api".into(), "cluster-api"),
    };
    [short(&name), short(&format!("{prefix}-{name}"))]
}

/// Shortens a name that is too long for a pool, and appends a hash of the whole name.
fn short(name: &str) -> String {
    if name.len() <= LONGEST {
        return name.into();
    }
    let hash = hex::encode(Sha256::digest(name));
    let head: String = name.chars().take(LONGEST - 9).collect();
    format!("{}-{}", head.trim_end_matches(['-', '.']), &hash[..8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{Inventory, WindowsNodePoolSpec};
    use k8s_openapi::api::core::v1::ObjectReference;

    fn source(group: MachineGroup, set: Option<&str>) -> Source {
        let namespace = match group {
            MachineGroup::OpenShift => MACHINE_API,
            MachineGroup::ClusterApi => CLUSTER_API,
        };
        Source { group, namespace: namespace.into(), set: set.map(Into::into) }
    }
    fn ours(set: &str) -> Source {
        source(MachineGroup::OpenShift, Some(set))
    }
    fn pool(name: &str, source: Option<&Source>) -> Arc<WindowsNodePool> {
        let inventory = match source {
            Some(s) => Inventory { machine_set_ref: Some(s.reference()), ..Inventory::default() },
            None => Inventory { hosts: Some(Vec::new()), ..Inventory::default() },
        };
        Arc::new(WindowsNodePool::new(name, WindowsNodePoolSpec { inventory, ..WindowsNodePoolSpec::default() }))
    }

    #[test]
    fn each_source_has_one_pool() {
        let (a, b, capi) = (ours("a"), ours("b"), source(MachineGroup::ClusterApi, Some("a")));
        let make = |name: &str, source: &Source| Act::Make(name.into(), source.clone());
        for (about, sources, pools, expected) in [
            ("nothing", vec![], vec![], vec![]),
            ("two new sources", vec![&a, &b], vec![], vec![make("a", &a), make("b", &b)]),
            ("its pool exists", vec![&a], vec![pool("a", Some(&a))], vec![]),
            ("a user's pool reads it", vec![&a], vec![pool("mine", Some(&a))], vec![]),
            ("its name is taken", vec![&a], vec![pool("a", None)], vec![make("machines-a", &a)]),
            (
                "its name is taken by the other API",
                vec![&a, &capi],
                vec![],
                vec![make("a", &a), make("cluster-api-a", &capi)],
            ),
            (
                "both names are taken",
                vec![&a],
                vec![pool("a", None), pool("machines-a", Some(&b))],
                vec![Act::Taken("a".into(), a.clone()), Act::Drop("machines-a".into())],
            ),
            ("a pool that is not needed", vec![], vec![pool("a", Some(&a))], vec![Act::Drop("a".into())]),
            ("a pool that is not needed, but has hosts", vec![], vec![pool("busy", Some(&a))], vec![]),
            ("a pool of an API that is not watched", vec![], vec![pool("a", Some(&capi))], vec![]),
        ] {
            let sources = sources.into_iter().cloned().collect();
            let watched = BTreeSet::from([MachineGroup::OpenShift]);
            assert_eq!(acts(&sources, &watched, &pools, |name| name == "busy"), expected, "{about}");
        }
    }

    #[test]
    fn only_what_runs_windows_here_is_a_source() {
        let set = |source: Source, windows| MachineSet {
            source,
            windows,
            ignored: false,
            replicas: 1,
            user_data: None,
            deleting: false,
            reference: ObjectReference::default(),
        };
        let other = Source { namespace: "tenant".into(), ..source(MachineGroup::ClusterApi, Some("t")) };
        let capi = |name: &str| source(MachineGroup::ClusterApi, Some(name));
        let sets = [
            set(ours("win"), true),
            set(ours("linux"), false),
            set(other, true),
            set(capi("win"), true),
            set(capi("only"), true),
            MachineSet { ignored: true, ..set(ours("handed-back"), true) },
        ];
        let machine =
            |source: Source, ignored| Machine { source: Some(source), windows: true, ignored, ..Machine::default() };
        let lone = source(MachineGroup::OpenShift, None);
        let machines = [machine(ours("win"), false), machine(lone.clone(), false)];
        assert_eq!(sources(&sets, &machines), BTreeSet::from([ours("win"), lone.clone(), capi("only")]));
        assert!(sources(&[], &[machine(lone, true)]).is_empty(), "a Machine that is not ours needs no pool");
    }

    #[test]
    fn names_are_short_enough_and_differ() {
        let [a, b] = [names(&ours(&format!("{}-1", "a".repeat(80)))), names(&ours(&format!("{}-2", "a".repeat(80))))];
        assert!(a.iter().chain(&b).all(|n| n.len() <= LONGEST), "{a:?} {b:?}");
        assert_ne!(a[0], b[0]);
        assert_eq!(names(&source(MachineGroup::OpenShift, None))[0], "windows-machines");
    }
}
