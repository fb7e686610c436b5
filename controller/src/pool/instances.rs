//! The instances of a pool: made, changed and deleted as the inventory says, and granted operations as the plan says.

use std::{collections::BTreeMap, sync::Arc};

use api::{
    Desired, Grant, GrantType, InstanceHost, PoolRef, WindowsInstance, WindowsInstanceSpec, WindowsNodePool,
    names::{FINALIZER_INSTANCE, MANAGER_POOL, key},
};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{PoolError, failed, gone_is_fine};
use crate::{
    context::Context,
    plan::grants::{Decision, Granting},
};

/// Writes to the API server that are under way at once for one pool.
const WRITES: usize = 16;

/// What has to be written for the instances to be those of the inventory.
#[derive(Debug, Default)]
pub struct Changes {
    pub create: Vec<WindowsInstance>,
    pub update: Vec<(String, serde_json::Value)>,
    pub delete: Vec<String>,
}

/// What has to be written. A host that has not joined yet shall follow `version`; a node gets another one with its grant.
pub fn changes(
    hosts: &BTreeMap<String, InstanceHost>,
    mine: &[Arc<WindowsInstance>],
    version: &str,
    pool: &WindowsNodePool,
) -> Changes {
    let mut changes = Changes::default();
    let existing: BTreeMap<String, &Arc<WindowsInstance>> = mine.iter().map(|i| (i.name_any(), i)).collect();
    for (name, host) in hosts {
        match existing.get(name) {
            None => changes.create.push(new_instance(pool, host, version)),
            Some(instance) if instance.metadata.deletion_timestamp.is_some() => {}
            Some(instance) => {
                let joined = instance.status.as_ref().is_some_and(|s| s.current_version.is_some());
                // A node that has joined keeps the version that it follows.
                let stale = !joined && instance.spec.desired.as_ref().is_none_or(|d| d.version != version);
                let mut spec = serde_json::Map::new();
                if instance.spec.host != *host {
                    spec.insert("host".into(), replaced(&instance.spec.host, host));
                }
                if stale {
                    spec.insert("desired".into(), json!({"version": version}));
                }
                if !spec.is_empty() {
                    changes.update.push((name.clone(), json!({"spec": spec})));
                }
            }
        }
    }
    let gone = mine.iter().filter(|i| i.metadata.deletion_timestamp.is_none() && !hosts.contains_key(&i.name_any()));
    changes.delete = gone.map(|i| i.name_any()).collect();
    changes
}

/// The merge patch value that turns one host into another: what is no longer set is set to null.
fn replaced(old: &InstanceHost, new: &InstanceHost) -> serde_json::Value {
    let mut value = json!(new);
    if new.host_key.is_none() {
        value["hostKey"] = serde_json::Value::Null;
    }
    let labels: BTreeMap<&String, Option<&String>> =
        old.labels.keys().map(|k| (k, None)).chain(new.labels.iter().map(|(k, v)| (k, Some(v)))).collect();
    value["labels"] = json!(labels);
    value
}

fn new_instance(pool: &WindowsNodePool, host: &InstanceHost, version: &str) -> WindowsInstance {
    WindowsInstance {
        metadata: ObjectMeta {
            name: Some(host.name.clone()),
            labels: Some(BTreeMap::from([(key::POOL.to_string(), pool.name_any())])),
            finalizers: Some(vec![FINALIZER_INSTANCE.into()]),
            owner_references: pool.controller_owner_ref(&()).map(|o| vec![o]),
            ..ObjectMeta::default()
        },
        spec: WindowsInstanceSpec {
            pool_ref: PoolRef { name: pool.name_any() },
            host: host.clone(),
            desired: Some(Desired { version: version.into() }),
            grant: None,
        },
        status: None,
    }
}

/// One write of an instance. The writes of a look are independent of one another.
enum Write {
    Create(Box<WindowsInstance>),
    Patch { name: String, patch: serde_json::Value, doing: &'static str },
    Grant { name: String, patch: serde_json::Value },
    Delete(String),
}

/// Writes what the inventory and the plan say.
pub async fn apply(
    changes: Changes,
    mine: &[Arc<WindowsInstance>],
    decision: &Decision,
    cx: &Arc<Context>,
    now: Timestamp,
) -> Result<(), PoolError> {
    let Changes { create, update, delete } = changes;
    let mut writes: Vec<Write> = Vec::new();
    writes.extend(create.into_iter().map(|i| Write::Create(Box::new(i))));
    writes.extend(update.into_iter().map(|(name, patch)| Write::Patch { name, patch, doing: "change an instance" }));
    writes.extend(delete.into_iter().map(Write::Delete));
    for instance in mine {
        if let Some(granting) = decision.changes.get(&instance.name_any()) {
            let grant = granting.as_ref().map(|granting| new_grant(instance, granting, now));
            let mut spec = json!({"grant": null});
            if let Some(grant) = &grant {
                // What the last grant had and this one has not must go.
                let empty = json!({"version": null, "disruption": null, "services": null});
                spec["grant"] = merged(empty, json!(grant));
                if let Some(version) = &grant.version {
                    spec["desired"] = json!({"version": version});
                }
            }
            // The resource version makes sure that the grant is given on what was seen.
            let patch = json!({"metadata": {"resourceVersion": instance.resource_version()}, "spec": spec});
            writes.push(Write::Grant { name: instance.name_any(), patch });
        }
    }
    let results: Vec<Result<(), PoolError>> =
        stream::iter(writes).map(|w| write(cx.clone(), w)).buffer_unordered(WRITES).collect().await;
    results.into_iter().collect()
}

fn merged(mut base: serde_json::Value, over: serde_json::Value) -> serde_json::Value {
    if let (Some(base), serde_json::Value::Object(over)) = (base.as_object_mut(), over) {
        base.extend(over);
    }
    base
}

async fn write(cx: Arc<Context>, write: Write) -> Result<(), PoolError> {
    let api: Api<WindowsInstance> = Api::all(cx.client.clone());
    cx.metrics.wrote("WindowsInstance");
    match write {
        Write::Create(instance) => {
            let params = PostParams { field_manager: Some(MANAGER_POOL.into()), ..PostParams::default() };
            match api.create(&params, &instance).await {
                Ok(_) => Ok(()),
                // Another pool was faster, or our cache is behind: the next look tells.
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
                Err(error) => Err(failed("create an instance")(error)),
            }
        }
        Write::Patch { name, patch, doing } => {
            let params = PatchParams { field_manager: Some(MANAGER_POOL.into()), ..PatchParams::default() };
            gone_is_fine(api.patch(&name, &params, &Patch::Merge(patch)).await).map_err(failed(doing))
        }
        Write::Grant { name, patch } => {
            let params = PatchParams { field_manager: Some(MANAGER_POOL.into()), ..PatchParams::default() };
            match api.patch(&name, &params, &Patch::Merge(patch)).await {
                Ok(written) => {
                    cx.granted.note(&written);
                    Ok(())
                }
                other => gone_is_fine(other).map_err(failed("grant an operation")),
            }
        }
        Write::Delete(name) => {
            gone_is_fine(api.delete(&name, &DeleteParams::default()).await).map_err(failed("delete an instance"))
        }
    }
}

fn new_grant(instance: &WindowsInstance, granting: &Granting, now: Timestamp) -> Grant {
    let granted_time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let seed =
        format!("{} {} {}", instance.uid().unwrap_or_default(), instance.resource_version().unwrap_or_default(), now);
    let hash = hex::encode(Sha256::digest(seed));
    let verb = match granting.type_ {
        GrantType::Provision => "join",
        GrantType::Stage => "stage",
        GrantType::Update => "update",
        GrantType::Reboot => "reboot",
        GrantType::Repair => "repair",
        GrantType::Remove => "remove",
        GrantType::Orphan => "orphan",
    };
    Grant {
        id: format!("{verb}-{}", &hash[..10]),
        type_: granting.type_,
        granted_time,
        version: granting.version.clone(),
        disruption: granting.disruption,
        services: granting.services.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        inventory::hosts::{self, Known},
        pool::known,
    };
    use api::{Host, Inventory, WindowsNodePoolSpec};

    fn pool(hosts: &[(&str, &str)]) -> WindowsNodePool {
        let hosts =
            hosts.iter().map(|(n, a)| Host { name: (*n).into(), address: (*a).into(), ..Host::default() }).collect();
        let inventory = Inventory { hosts: Some(hosts) };
        WindowsNodePool::new("p", WindowsNodePoolSpec { inventory, ..WindowsNodePoolSpec::default() })
    }

    fn plan(pool: &WindowsNodePool, mine: &[Arc<WindowsInstance>]) -> Changes {
        let known: Vec<Known> = mine.iter().map(|i| known(i)).collect();
        changes(&hosts::resolve("p", &pool.spec, &known).0, mine, "1-a", pool)
    }

    #[test]
    fn instances_follow_the_inventory() {
        let first = pool(&[("a", "10.0.0.1"), ("b", "10.0.0.2")]);
        let made = plan(&first, &[]);
        assert_eq!(made.create.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["a", "b"]);
        assert!(made.create.iter().all(|i| i.finalizers() == [FINALIZER_INSTANCE]));
        let mine: Vec<_> = made.create.into_iter().map(Arc::new).collect();

        let same = plan(&first, &mine);
        assert!(same.create.is_empty() && same.update.is_empty() && same.delete.is_empty(), "{same:?}");

        let moved = plan(&pool(&[("a", "10.0.0.9")]), &mine);
        assert_eq!(moved.delete, ["b"]);
        assert_eq!(moved.update[0].1["spec"]["host"]["address"], "10.0.0.9");
    }

    #[test]
    fn what_is_no_longer_set_is_taken_back() {
        let old = InstanceHost {
            host_key: Some("k".into()),
            labels: BTreeMap::from([("a".into(), "1".into())]),
            ..InstanceHost::default()
        };
        let new = InstanceHost { labels: BTreeMap::from([("b".into(), "2".into())]), ..InstanceHost::default() };
        let value = replaced(&old, &new);
        assert!(value["hostKey"].is_null() && value["labels"]["a"].is_null());
        assert_eq!(value["labels"]["b"], "2");
    }
}
