//! Writes that align a pool's instances with its list and with the decided grants. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{
    Desired, Grant, GrantType, InstanceHost, Leaving, Origin, PoolRef, WindowsInstance, WindowsInstanceSpec,
    WindowsNodePool,
    names::{FINALIZER_INSTANCE, FINALIZER_POOL, key},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{list::List, orphaning::is_owned_by};
use crate::rollout::grants::{Decision, Granting};

/// Changes that align the instances with the list.
#[derive(Debug, Default)]
pub struct Changes {
    /// Instances to create.
    pub create: Vec<WindowsInstance>,
    /// Instances to change.
    pub update: Vec<Update>,
    /// Names of hosts that must be marked as leaving.
    pub leave: Vec<String>,
}

/// Change of an instance.
#[derive(Clone, Debug, Default)]
pub struct Update {
    /// Name of the instance.
    pub name: String,
    /// Merge patch.
    pub patch: Value,
    /// True if the entry of the host has changed.
    pub changed: bool,
    /// Move of the instance to another pool.
    pub moves: Option<Move>,
    /// True if the host was marked as leaving, and its removal is revoked.
    pub returns: bool,
}

/// Move of an instance to another pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// Name of the other pool.
    pub to: String,
    /// UID of the other pool: a pool that was deleted and created again does not own the instance.
    pub uid: Option<String>,
    /// Merge patch, without a resource version, that returns the instance to its pool.
    pub back: Value,
}

/// Returns the required changes. A host that has not joined yet follows `version`; a node gets another version only with a grant. `pools` returns
/// the pool with a name.
pub fn changes(
    list: &List,
    mine: &[Arc<WindowsInstance>],
    version: &str,
    pool: &WindowsNodePool,
    pools: &dyn Fn(&str) -> Option<Arc<WindowsNodePool>>,
) -> Changes {
    let mut changes = Changes::default();
    let existing: BTreeMap<String, &Arc<WindowsInstance>> = mine.iter().map(|i| (i.name_any(), i)).collect();
    let own: BTreeSet<&str> = pool.spec.hosts().iter().map(|h| h.name.as_str()).collect();
    for (name, host) in &list.hosts {
        let origin = list.origins.get(name);
        match existing.get(name) {
            None => changes.create.push(new_instance(pool, host, origin, version, list.first_keys.get(name))),
            Some(instance) if instance.is_deleting() => {}
            Some(instance) => {
                let joined = instance.status.as_ref().is_some_and(|s| s.current_version.is_some());
                // A node that has joined keeps the version that it follows.
                let stale = !joined && instance.spec.desired.as_ref().is_none_or(|d| d.version != version);
                let mut spec = Map::new();
                let changed = instance.spec.host != *host;
                if changed {
                    spec.insert("host".into(), replaced_host(&instance.spec.host, host));
                }
                if let Some(origin) = origin.filter(|o| changed || is_elsewhere(instance.spec.origin.as_ref(), o)) {
                    spec.insert("origin".into(), replaced(json!(instance.spec.origin), json!(origin)));
                }
                // A host that the pool itself lists comes from no other source, and must not leave with a Machine.
                if own.contains(name.as_str()) && instance.spec.origin.is_some() {
                    spec.insert("origin".into(), Value::Null);
                }
                if stale {
                    spec.insert("desired".into(), json!({"version": version}));
                }
                let returns = instance.spec.leaving.is_some();
                if returns {
                    spec.extend(returned(instance));
                }
                let mut patch = json!({"spec": spec});
                // For a pool that is being deleted, a missing owner reference means that the hosts stay (`--cascade=orphan`).
                let is_owned = is_owned_by(instance, pool) || pool.metadata.deletion_timestamp.is_some();
                if !is_owned {
                    patch["metadata"] = json!({"ownerReferences": pool.controller_owner_ref(&()).map(|o| vec![o])});
                }
                if !is_owned || !spec.is_empty() {
                    changes.update.push(Update { name: name.clone(), patch, changed, returns, ..Update::default() });
                }
            }
        }
    }
    let gone = mine.iter().filter(|i| !i.is_deleting() && !list.hosts.contains_key(&i.name_any()));
    for instance in gone {
        let name = instance.name_any();
        let to = list.moves.get(&name).map(|to| (to, pools(to)));
        let update = |patch| Update { name: name.clone(), patch, ..Update::default() };
        match to {
            None if instance.spec.leaving.as_ref().is_some_and(|l| !l.confirmed && list.confirmed.contains(&name)) => {
                changes.update.push(update(json!({"spec": {"leaving": {"confirmed": true}}})));
            }
            None if instance.spec.leaving.is_some() => {}
            None => changes.leave.push(name),
            // A removal in progress is revoked first.
            Some(_) if instance.spec.leaving.is_some() => {
                changes.update.push(Update { returns: true, ..update(json!({"spec": returned(instance)})) });
            }
            Some((to, Some(other))) if takes_over(&other, instance) => {
                let moves = Some(Move { to: to.clone(), uid: other.uid(), back: moved(pool) });
                let mut patch = moved(&other);
                patch["metadata"]["resourceVersion"] = json!(instance.resource_version());
                changes.update.push(Update { moves, ..update(patch) });
            }
            // The instance moves as soon as the other pool can take it.
            Some(_) => {}
        }
    }
    changes
}

/// Returns the part of a merge patch for the spec that revokes a removal.
fn returned(instance: &WindowsInstance) -> Map<String, Value> {
    let leaves = |g: &Grant| matches!(g.type_, GrantType::Remove | GrantType::Orphan);
    let grant = instance.spec.grant.as_ref().filter(|g| leaves(g)).map(|_| "grant");
    ["leaving"].into_iter().chain(grant).map(|k| (k.to_owned(), Value::Null)).collect()
}

/// Reports whether an entry comes from another place than before: another source, file, Machine or provider ID. A new line number or revision does
/// not count: otherwise one inserted line would cause a write to thousands of instances.
fn is_elsewhere(before: Option<&Origin>, now: &Origin) -> bool {
    let place = |o: &Origin| (o.source.clone(), o.file.clone(), o.machine.clone(), o.provider_id.clone());
    before.is_none_or(|before| place(before) != place(now))
}

/// Returns the merge patch that replaces one host by another. It sets the host key and the taints in any case, because the stored host may be newer
/// than `before`.
fn replaced_host(before: &InstanceHost, now: &InstanceHost) -> Value {
    let mut value = replaced(json!(before), json!(now));
    value["hostKey"] = json!(now.host_key);
    value["taints"] = json!(now.taints);
    value
}

/// Returns the merge patch that replaces one value by another: fields that are no longer set become null.
fn replaced(before: Value, now: Value) -> Value {
    let (Value::Object(before), Value::Object(mut now)) = (before, now.clone()) else { return now };
    for (key, before) in before {
        let value = now.remove(&key).map_or(Value::Null, |now| replaced(before, now));
        now.insert(key, value);
    }
    Value::Object(now)
}

/// Reports whether an instance may move to a pool now: during an operation it belongs to the pool that began it.
fn takes_over(pool: &WindowsNodePool, instance: &WindowsInstance) -> bool {
    let busy = instance.status.as_ref().is_some_and(|s| s.operation.is_some());
    can_have_instances(pool) && !pool.spec.is_plan() && !busy
}

/// Reports whether a pool can have instances: without the finalizer, a deletion of the pool would leave them behind.
pub fn can_have_instances(pool: &WindowsNodePool) -> bool {
    pool.metadata.deletion_timestamp.is_none() && pool.finalizers().iter().any(|f| f == FINALIZER_POOL)
}

/// Returns the merge patch that moves an instance to another pool. The instance loses its grant.
fn moved(to: &WindowsNodePool) -> Value {
    json!({
        "metadata": {
            "labels": {key::POOL: to.name_any()},
            "ownerReferences": to.controller_owner_ref(&()).map(|o| vec![o]),
        },
        "spec": {"poolRef": {"name": to.name_any()}, "grant": null},
    })
}

fn new_instance(
    pool: &WindowsNodePool,
    host: &InstanceHost,
    origin: Option<&Origin>,
    version: &str,
    first_key: Option<&String>,
) -> WindowsInstance {
    WindowsInstance {
        metadata: ObjectMeta {
            annotations: first_key.map(|k| BTreeMap::from([(key::FIRST_HOST_KEY.to_string(), k.clone())])),
            name: Some(host.name.clone()),
            labels: Some(BTreeMap::from([(key::POOL.to_string(), pool.name_any())])),
            finalizers: Some(vec![FINALIZER_INSTANCE.into()]),
            owner_references: pool.controller_owner_ref(&()).map(|o| vec![o]),
            ..ObjectMeta::default()
        },
        spec: WindowsInstanceSpec {
            pool_ref: PoolRef { name: pool.name_any() },
            host: host.clone(),
            origin: origin.cloned(),
            desired: Some(Desired { version: version.into() }),
            grant: None,
            leaving: None,
        },
        status: None,
    }
}

/// Write to an instance. The writes of a reconcile are independent of one another.
#[derive(Debug)]
pub enum Write {
    /// New instance.
    Create(Box<WindowsInstance>),
    /// Changed entry, origin, version, mark or owner of an instance, or move to another pool.
    Update(Update),
    /// Grant that is given, changed or revoked.
    Grant {
        /// Name of the instance.
        name: String,
        /// Merge patch.
        patch: Value,
    },
    /// Mark of a leaving host.
    Leave {
        /// Name of the instance.
        name: String,
        /// Merge patch.
        patch: Value,
        /// Part of the patch that applies even if the instance has changed meanwhile. `None` unless a user has confirmed the removal.
        mark: Option<Value>,
        /// Reason why the host leaves.
        why: String,
        /// Revision of the list that no longer has the host.
        revision: Option<String>,
    },
}

/// Returns all writes of a reconcile.
pub fn writes(
    changes: &Changes,
    mine: &[Arc<WindowsInstance>],
    list: &List,
    decision: &Decision,
    now: Timestamp,
) -> Vec<Write> {
    let Changes { create, update, leave } = changes;
    let leave: BTreeSet<&str> = leave.iter().map(String::as_str).collect();
    let mut writes: Vec<Write> = Vec::new();
    writes.extend(create.iter().map(|i| Write::Create(Box::new(created(i, decision, now)))));
    writes.extend(update.iter().cloned().map(Write::Update));
    for instance in mine {
        let name = instance.name_any();
        let leaving = leave.contains(name.as_str()).then(|| leaving(list, instance, now));
        let granting = decision.changes.get(&name);
        let mut spec = granting.map_or_else(|| json!({}), |g| granted(instance, g.as_ref(), now));
        let is_placed = decision.placed.contains(&name);
        if is_placed {
            spec["grant"] = json!({"withoutPlace": null});
        }
        if let Some(leaving) = &leaving {
            spec["leaving"] = json!(leaving);
        }
        // The resource version rejects a grant that was decided on an outdated instance.
        let patch = json!({"metadata": {"resourceVersion": instance.resource_version()}, "spec": spec});
        match (leaving, granting) {
            (Some(leaving), _) => {
                let revision = list.status.as_ref().and_then(|s| s.revision.clone());
                // The confirmation is used up, so a concurrent write of the status must not prevent the mark of the host.
                let mark = leaving
                    .confirmed
                    .then(|| json!({"metadata": {"uid": instance.uid()}, "spec": {"leaving": leaving}}));
                writes.push(Write::Leave { name, patch, mark, why: leaving.why, revision });
            }
            (None, granting) if granting.is_some() || is_placed => writes.push(Write::Grant { name, patch }),
            (None, _) => {}
        }
    }
    writes
}

/// Returns an instance to create, with its grant if it has one.
fn created(instance: &WindowsInstance, decision: &Decision, now: Timestamp) -> WindowsInstance {
    let mut instance = instance.clone();
    let granting = decision.changes.get(&instance.name_any()).and_then(Option::as_ref);
    instance.spec.grant = granting.map(|granting| new_grant(&instance, granting, now));
    instance
}

/// Returns the mark of a leaving host.
fn leaving(list: &List, instance: &WindowsInstance, now: Timestamp) -> Leaving {
    let name = instance.name_any();
    Leaving { since: now.into(), why: list.why_leaving(&name), confirmed: list.confirmed.contains(&name) }
}

/// Returns the part of an instance's spec that gives or revokes a grant.
fn granted(instance: &WindowsInstance, granting: Option<&Granting>, now: Timestamp) -> Value {
    let grant = granting.map(|granting| new_grant(instance, granting, now));
    let mut spec = json!({"grant": null});
    if let Some(grant) = &grant {
        // Fields of the last grant that this one lacks must be removed.
        let empty = json!({"version": null, "disruption": null, "services": null, "withoutPlace": null});
        spec["grant"] = merged(empty, json!(grant));
        if let Some(version) = &grant.version {
            spec["desired"] = json!({"version": version});
        }
    }
    spec
}

fn merged(mut base: Value, over: Value) -> Value {
    if let (Some(base), Value::Object(over)) = (base.as_object_mut(), over) {
        base.extend(over);
    }
    base
}

fn new_grant(instance: &WindowsInstance, granting: &Granting, now: Timestamp) -> Grant {
    // An instance that is not created yet has only a name.
    let (uid, version) = (instance.uid().unwrap_or_default(), instance.resource_version().unwrap_or_default());
    let seed = format!("{} {uid} {version} {now}", instance.name_any());
    let hash = hex::encode(Sha256::digest(seed));
    let verb = match granting.type_ {
        GrantType::Provision => "join",
        GrantType::Stage => "stage",
        GrantType::Update => "update",
        GrantType::Reboot => "reboot",
        GrantType::Repair => "repair",
        GrantType::Maintenance => "maintenance",
        GrantType::Remove => "remove",
        GrantType::Orphan => "orphan",
        GrantType::RotateKey => "rotate-key",
        GrantType::PullImages => "pull-images",
    };
    Grant {
        id: format!("{verb}-{}", &hash[..10]),
        type_: granting.type_,
        granted_time: now.into(),
        version: granting.version.clone(),
        disruption: granting.disruption,
        services: granting.services.clone(),
        without_place: granting.without_place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{
        Entry,
        fleet::Fleet,
        hosts::{self, HostKeys},
    };
    use api::{Host, Inventory, WindowsNodePoolSpec};

    fn pool(hosts: &[(&str, &str)]) -> WindowsNodePool {
        let hosts =
            hosts.iter().map(|(n, a)| Host { name: (*n).into(), address: (*a).into(), ..Host::default() }).collect();
        let inventory = Inventory { hosts: Some(hosts), ..Inventory::default() };
        WindowsNodePool::new("p", WindowsNodePoolSpec { inventory, ..WindowsNodePoolSpec::default() })
    }

    fn plan(pool: &WindowsNodePool, mine: &[Arc<WindowsInstance>]) -> Changes {
        let known: Fleet = mine.iter().cloned().collect();
        let entries: Vec<Entry> = pool.spec.hosts().iter().map(|h| Entry { host: h.clone(), origin: None }).collect();
        let keys = HostKeys { is_known: &|_| false, read: &|_| Ok(()) };
        let list = List { hosts: hosts::resolve("p", &pool.spec, &entries, &known, &keys).hosts, ..List::default() };
        changes(&list, mine, "1-a", pool, &|_| None)
    }

    #[test]
    fn instances_follow_the_inventory() {
        let first = pool(&[("a", "10.0.0.1"), ("b", "10.0.0.2")]);
        let made = plan(&first, &[]);
        assert_eq!(made.create.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["a", "b"]);
        assert!(made.create.iter().all(|i| i.finalizers() == [FINALIZER_INSTANCE]));
        let mine: Vec<_> = made.create.into_iter().map(Arc::new).collect();

        let same = plan(&first, &mine);
        assert!(same.create.is_empty() && same.update.is_empty() && same.leave.is_empty(), "{same:?}");

        let moved = plan(&pool(&[("a", "10.0.0.9")]), &mine);
        assert_eq!(moved.leave, ["b"]);
        assert_eq!(moved.update[0].patch["spec"]["host"]["address"], "10.0.0.9");
    }

    #[test]
    fn new_instances_are_created_with_their_grants() {
        let made = plan(&pool(&[("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")]), &[]);
        let changes =
            ["a", "b"].map(|name| (name.to_owned(), Some(Granting::from(GrantType::Provision)))).into_iter().collect();
        let decision = Decision { changes, ..Decision::default() };
        let writes = writes(&made, &[], &List::default(), &decision, Timestamp::UNIX_EPOCH);
        let grants = writes.iter().map(|write| match write {
            Write::Create(instance) => instance.spec.grant.as_ref().map(|g| (g.type_, g.id.clone())),
            other => panic!("{other:?}"),
        });
        let [Some((a, first)), Some((b, second)), None] = &grants.collect::<Vec<_>>()[..] else { panic!("{writes:?}") };
        assert_eq!([*a, *b], [GrantType::Provision; 2]);
        assert_ne!(first, second, "each grant has an id of its own");
    }

    #[test]
    fn a_host_that_is_listed_again_stays() {
        let first = pool(&[("a", "10.0.0.1"), ("b", "10.0.0.2")]);
        let b = WindowsInstance::new("b", WindowsInstanceSpec::default());
        let grant = |type_| Some(new_grant(&b, &Granting::from(type_), Timestamp::UNIX_EPOCH));
        for (grant, expected) in [
            (None, json!({"leaving": null})),
            (grant(GrantType::Remove), json!({"leaving": null, "grant": null})),
            (grant(GrantType::Update), json!({"leaving": null})),
        ] {
            let mine: Vec<_> = plan(&first, &[])
                .create
                .into_iter()
                .map(|mut i| {
                    if i.name_any() == "b" {
                        (i.spec.leaving, i.spec.grant) = (Some(Leaving::default()), grant.clone());
                    }
                    Arc::new(i)
                })
                .collect();
            let out = plan(&pool(&[("a", "10.0.0.1")]), &mine);
            assert!(out.leave.is_empty() && out.update.is_empty(), "the host is marked already: {out:?}");
            let again = plan(&first, &mine);
            assert!(again.leave.is_empty() && again.create.is_empty(), "{again:?}");
            assert_eq!(again.update.iter().map(|u| (u.name.as_str(), u.returns)).collect::<Vec<_>>(), [("b", true)]);
            assert_eq!(again.update[0].patch, json!({"spec": expected}));
        }
    }

    /// Checks that a pool without the finalizer gets no instance: if it is deleted, it is gone at once, and its instances would have no pool.
    #[test]
    fn a_host_moves_only_to_a_pool_that_can_have_instances() {
        let since = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
        for (about, finalizer, deleted, mode, expected) in [
            ("it is new", None, None, None, 0),
            ("it has the finalizer", Some(FINALIZER_POOL), None, None, 1),
            ("it has a finalizer of another controller", Some("example.com/f"), None, None, 0),
            ("it is being deleted", Some(FINALIZER_POOL), Some(since), None, 0),
            ("it is in mode Plan", Some(FINALIZER_POOL), None, Some(api::Mode::Plan), 0),
        ] {
            let instance = plan(&pool(&[("a", "10.0.0.1")]), &[]).create.remove(0);
            let mut to = pool(&[("a", "10.0.0.1")]);
            (to.metadata.name, to.metadata.deletion_timestamp) = (Some("q".into()), deleted);
            (to.metadata.finalizers, to.spec.mode) = (finalizer.map(|f: &str| vec![f.to_owned()]), mode);
            let (list, to) = (List { moves: [("a".into(), "q".into())].into(), ..List::default() }, Arc::new(to));
            let changes = changes(&list, &[Arc::new(instance)], "1-a", &pool(&[]), &|_| Some(to.clone()));
            assert!(changes.leave.is_empty() && changes.create.is_empty(), "{about}: {changes:?}");
            assert_eq!(changes.update.len(), expected, "{about}: {changes:?}");
        }
    }

    /// Checks that a pool does not add the owner references again that the garbage collector removes from its instances after a deletion with
    /// `--cascade=orphan`.
    #[test]
    fn a_deleted_pool_does_not_become_an_owner_again() {
        for (deleted, expected) in [(false, 1), (true, 0)] {
            let mut pool = pool(&[("a", "10.0.0.1")]);
            pool.metadata.uid = Some("1".into());
            let mut instance = plan(&pool, &[]).create.remove(0);
            instance.metadata.owner_references = None;
            let since = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
            pool.metadata.deletion_timestamp = deleted.then_some(since);
            let changes = plan(&pool, &[Arc::new(instance)]);
            assert_eq!(changes.update.len(), expected, "{changes:?}");
        }
    }

    /// Checks that a host in the pool's own list does not count as gone with its Machine.
    #[test]
    fn the_origin_of_a_host_in_the_pools_own_list_is_removed() {
        let first = pool(&[("a", "10.0.0.1")]);
        let mut made = plan(&first, &[]).create.remove(0);
        made.spec.origin = Some(Origin { machine: Some("ns/a".into()), ..Origin::default() });
        let changes = plan(&first, &[Arc::new(made)]);
        assert_eq!(changes.update.iter().map(|u| &u.patch).collect::<Vec<_>>(), [&json!({"spec": {"origin": null}})]);
    }

    #[test]
    fn fields_that_are_no_longer_set_become_null() {
        let labels = |key: &str| BTreeMap::from([(key.to_owned(), "1".to_owned())]);
        let old = InstanceHost { host_key: Some("k".into()), labels: labels("a"), ..InstanceHost::default() };
        let new = InstanceHost { labels: labels("b"), ..InstanceHost::default() };
        let value = replaced(json!(old), json!(new));
        assert_eq!((&value["hostKey"], &value["labels"]), (&Value::Null, &json!({"a": null, "b": "1"})));
        let none = replaced(json!(new), json!(InstanceHost::default()));
        assert_eq!(none["labels"], Value::Null);
        assert_eq!(replaced(json!(null), json!(new)), json!(new));
        let unchanged = replaced_host(&new, &new);
        assert_eq!((&unchanged["hostKey"], &unchanged["taints"]), (&Value::Null, &json!([])));
    }
}
