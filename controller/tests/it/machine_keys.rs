//! Rotation of the SSH key for hosts of Machines: a user replaces the content of `cloud-private-key`, as with WMCO, and the operator replaces
//! Machines whose hosts refuse the new key, one after another.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result, ensure};
use api::{
    conditions::{self, kind},
    names::{USER_DATA_SECRET, key},
};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject},
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use remote::ssh::Identity;
use russh::keys::{PrivateKey, ssh_key::LineEnding};
use serde_json::{Value, json};
use testbed::{
    deployment::{self, MachineApi},
    sim::{HostOptions, SimHost, SimOptions},
};

use crate::{
    fleet::{World, has, is_cordoned, pool_status, status},
    machines::{ARGS, Maker, provisioned, set_port, until_made, until_ready, user_data},
    removal::until_forgotten,
    takeover::{Legacy, SAME},
};

const POOL: &str = "winworker";
const RESTRICTED: &str = "MachineDeletionRestricted";

/// Record of a watch on the Machines of a MachineSet with three replicas.
#[derive(Default)]
struct Seen {
    /// Machines by name: true if the Machine is being deleted, and its phase.
    machines: BTreeMap<String, (bool, String)>,
    /// Deleted Machines in order, each with its resource version at the deletion.
    deleted: Vec<(String, u64)>,
    /// Deletions while the other two Machines were not both there and running.
    too_many: Vec<String>,
}

impl Seen {
    fn note(&mut self, machine: &DynamicObject) {
        let (name, goes) = (machine.name_any(), machine.metadata.deletion_timestamp.is_some());
        let phase = machine.data.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default().to_owned();
        let before = self.machines.insert(name.clone(), (goes, phase));
        if !goes || before.is_some_and(|(went, _)| went) {
            return;
        }
        let others: Vec<_> = self.machines.iter().filter(|(other, _)| **other != name).collect();
        if others.len() != 2 || others.iter().any(|(_, (goes, phase))| *goes || phase != "Running") {
            self.too_many.push(format!("{name} went, with {others:?}"));
        }
        self.deleted.push((name, version(machine.resource_version())));
    }
}

fn version(text: Option<String>) -> u64 {
    text.and_then(|v| v.parse().ok()).unwrap_or_default()
}

fn watch(maker: &Maker) -> Arc<Mutex<Seen>> {
    let (seen, all) = (Arc::<Mutex<Seen>>::default(), maker.machines());
    let into = seen.clone();
    tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher(all, watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(machine) | Event::InitApply(machine)) => into.lock().unwrap().note(&machine),
                Ok(Event::Delete(machine)) => drop(into.lock().unwrap().machines.remove(&machine.name_any())),
                Ok(Event::Init | Event::InitDone) | Err(_) => {}
            }
        }
    });
    seen
}

fn hash(key: &PrivateKey) -> Result<String> {
    Ok(Identity::from_pem("a key", key.to_openssh(LineEnding::LF)?.as_bytes())?.public_key_hash())
}

/// Creates a host with this key, and its Machine.
async fn made_with(world: &World, maker: &Maker, set: &DynamicObject, name: &str, key: &PrivateKey) -> Result<SimHost> {
    let authorized_keys = Some(vec![key.public_key().clone()]);
    let host = world.sim.host(HostOptions { authorized_keys, ..HostOptions::named(name) }).await?;
    maker.machine(name, Some(set), provisioned(&host)).await?;
    Ok(host)
}

async fn edit_spec(world: &World, spec: Value) -> Result<()> {
    world.edit_pool(POOL, json!({"spec": spec})).await
}

async fn edit_rollout(world: &World, rollout: Value) -> Result<()> {
    edit_spec(world, json!({"rollout": rollout})).await
}

/// Waits until the operator deletes a Machine because its host refuses every key.
async fn until_deleted(world: &World, maker: &Maker, host: &SimHost) -> Result<()> {
    let name = host.name();
    world.eventually(&format!("Machine {name} is deleted"), || maker.goes(name)).await?;
    world.until_note(name, "MachineDeleted", |note| note.contains("refuses every key")).await?;
    Ok(())
}

async fn let_go(world: &World, maker: &Maker, host: &SimHost) -> Result<()> {
    host.power_off();
    maker.let_go(host.name()).await?;
    until_forgotten(world, host.name()).await
}

async fn none_goes(maker: &Maker, hosts: &[SimHost], world: &World) -> Result<()> {
    for host in hosts {
        ensure!(!maker.goes(host.name()).await, "{} was deleted", host.name());
        let node = world.node(host.name()).await?.context("it has no Node")?;
        ensure!(!is_cordoned(&node), "{} was cordoned", host.name());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_that_refuse_a_new_key_are_replaced_one_after_another() -> Result<()> {
    let world = World::new(SimOptions::default(), ARGS).await?;
    let maker = Maker::install(&world, MachineApi::OpenShift).await?;
    let hosts = world.hosts("old", 3).await?;
    let set = maker.set_of(POOL, 3).await?;
    for host in &hosts {
        maker.machine(host.name(), Some(&set), provisioned(host)).await?;
    }
    until_made(&world, POOL).await?;
    set_port(&world, POOL, &hosts[0]).await?;
    until_ready(&world, POOL, 3).await?;
    for host in &hosts {
        maker.runs(host.name()).await?;
    }
    let seen = watch(&maker);

    // Outside of maintenance windows, and in a paused pool, refusals are reported and no Machine is deleted.
    let window = json!([{"schedule": "0 3 29 2 *", "durationSeconds": 900}]);
    edit_rollout(&world, json!({"maintenanceWindows": window.clone()})).await?;
    let new = deployment::new_key()?;
    deployment::store_key(&world.control_plane, &new).await?;
    for host in &hosts {
        world.until_note(host.name(), RESTRICTED, |note| note.contains("the next opens at")).await?;
    }
    world
        .until(POOL, "the hosts that refuse the new key are reported", |p| {
            let told = conditions::find(&pool_status(p).conditions, kind::KEYS_CURRENT).cloned();
            told.is_some_and(|c| {
                c.reason == "KeyRotationFailed"
                    && c.message.starts_with("3 of 3 hosts accept an old key: old-0, old-1, old-2; old-0: Connect: ")
                    && c.message.contains("to see whether the Machine openshift-machine-api/old-0 is replaced")
            })
        })
        .await?;
    edit_rollout(&world, json!({"maintenanceWindows": null, "paused": true})).await?;
    for host in &hosts {
        world.until_note(host.name(), RESTRICTED, |note| note.contains("rollout.paused")).await?;
    }
    none_goes(&maker, &hosts, &world).await?;
    ensure!(seen.lock().unwrap().deleted.is_empty(), "{:?}", seen.lock().unwrap().deleted);

    // No Machine is deleted for a key that new Machines would refuse, or may refuse.
    deployment::store_key_as(&world.control_plane, "elsewhere", &deployment::new_key()?).await?;
    let elsewhere = json!({"privateKeySecretRefs": [{"name": "elsewhere"}]});
    edit_spec(&world, json!({"ssh": elsewhere, "rollout": {"paused": null}})).await?;
    world.until_note("old-0", RESTRICTED, |note| note.contains("has none of the keys of its pool")).await?;
    maker.set_provider_spec(POOL, json!({"value": {"userDataSecret": {"name": "mine"}}})).await?;
    world.until_note("old-0", RESTRICTED, |note| note.contains("of its own, in the Secret mine")).await?;
    let with_window = json!({"maintenanceWindows": window});
    edit_spec(&world, json!({"ssh": {"privateKeySecretRefs": null}, "rollout": with_window})).await?;
    maker.set_provider_spec(POOL, Value::Null).await?;
    let of_new = [hash(&new)?];
    for host in &hosts {
        world
            .until_instance(host.name(), "has refused the new key for long enough", |i| {
                status(i).key_refusal.is_some_and(|r| r.key_hashes == of_new && r.first_time != r.last_time)
            })
            .await?;
    }
    none_goes(&maker, &hosts, &world).await?;
    ensure!(seen.lock().unwrap().deleted.is_empty(), "{:?}", seen.lock().unwrap().deleted);

    // One Machine is deleted. The next one waits until a replacement runs.
    edit_rollout(&world, json!({"maintenanceWindows": null})).await?;
    until_deleted(&world, &maker, &hosts[0]).await?;
    let refuses = format!("{}/old-0 refuses every key", maker.api.namespace());
    world.until_note(POOL, "MachineDeleted", |note| note.contains(&refuses)).await?;
    world.until_note("old-1", RESTRICTED, |note| note.contains("(old-0), and only one")).await?;
    let_go(&world, &maker, &hosts[0]).await?;
    world.until_note("old-1", RESTRICTED, |note| note.contains("2 of 3 Machines")).await?;

    // A replacement that refuses the key, too, is deleted first: a key that no host accepts costs one node at most.
    let odd = made_with(&world, &maker, &set, "odd", &deployment::new_key()?).await?;
    world.until_note("old-1", RESTRICTED, |note| note.contains("(odd)")).await?;
    until_deleted(&world, &maker, &odd).await?;
    let_go(&world, &maker, &odd).await?;
    none_goes(&maker, &hosts[1..], &world).await?;

    for (n, old) in [None, Some(&hosts[1]), Some(&hosts[2])].into_iter().enumerate() {
        if let Some(old) = old {
            until_deleted(&world, &maker, old).await?;
            let_go(&world, &maker, old).await?;
        }
        let host = made_with(&world, &maker, &set, &format!("new-{n}"), &new).await?;
        world.until_joined(host.name()).await?;
        maker.runs(host.name()).await?;
    }
    until_ready(&world, POOL, 3).await?;
    world
        .until(POOL, "all keys are current", |p| {
            has(&pool_status(p).conditions, kind::KEYS_CURRENT, "True", "AsExpected")
        })
        .await?;
    for n in 0..3 {
        let node = world.node(&format!("new-{n}")).await?.context("it has no Node")?;
        ensure!(node.annotations().get(key::PUB_KEY_HASH) == Some(&hash(&new)?), "{:?}", node.annotations());
    }
    let Seen { deleted, too_many, .. } = std::mem::take(&mut *seen.lock().unwrap());
    ensure!(too_many.is_empty(), "{too_many:?}");
    let names: Vec<&str> = deleted.iter().map(|(name, _)| name.as_str()).collect();
    ensure!(names == ["old-0", "odd", "old-1", "old-2"], "{names:?}");

    // The user data have the new key before the first Machine is deleted.
    let line = new.public_key().to_openssh()?;
    let text = user_data(&world, maker.api).await.context("there is no user data")?;
    ensure!(text.contains(line.trim()), "{text}");
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), maker.api.namespace());
    let written = version(secrets.get(USER_DATA_SECRET).await?.resource_version());
    ensure!(written < deleted[0].1, "the user data were written at {written}, after a deletion: {deleted:?}");
    Ok(())
}

/// Checks nodes whose Machines WMCO was about to replace: after a key change, WMCO empties the Node's `pub-key-hash` before it replaces the Machine.
#[tokio::test(flavor = "multi_thread")]
async fn machines_that_the_legacy_operator_would_have_replaced_are_adopted_or_replaced() -> Result<()> {
    let world = World::new(SimOptions::default(), ARGS).await?;
    let legacy = Legacy::new(&world, "legacy", SAME, 3).await?;
    let [takes, refuses, broken] = legacy.hosts.as_slice() else { anyhow::bail!("there are not three hosts") };
    let foreign = deployment::new_key()?.public_key().to_openssh()?;
    for host in [refuses, broken] {
        std::fs::write(host.drive_c().join("ProgramData/ssh/administrators_authorized_keys"), &foreign)?;
    }
    for host in [takes, refuses] {
        let metadata = json!({"labels": {key::BYOH: null}, "annotations": {key::PUB_KEY_HASH: ""}});
        world.edit_node(host.name(), json!({"metadata": metadata})).await?;
    }
    let before = world.node(takes.name()).await?.context("it has no Node")?;

    let maker = Maker::install(&world, MachineApi::OpenShift).await?;
    let set = maker.set_of(POOL, 3).await?;
    for host in &legacy.hosts {
        maker.machine(host.name(), Some(&set), provisioned(host)).await?;
        maker.runs(host.name()).await?;
    }
    // WMCO's nodes exist: the new pool waits in mode Plan until a user starts the takeover.
    ensure!(until_made(&world, POOL).await?.spec.mode == Some(api::Mode::Plan), "the pool does not wait");
    set_port(&world, POOL, takes).await?;
    edit_spec(&world, json!({"mode": "Apply"})).await?;

    // A host that accepts the key is taken over unchanged.
    world.until_event(takes.name(), "Adopted").await?;
    world
        .eventually("the hash is written again", || async {
            let node = world.node(takes.name()).await.ok().flatten();
            node.is_some_and(|n| n.annotations().get(key::PUB_KEY_HASH) == hash(&world.key).ok().as_ref())
        })
        .await?;
    let node = world.node(takes.name()).await?.context("it has no Node")?;
    ensure!(node.uid() == before.uid() && !is_cordoned(&node), "{node:?}");

    // A host that refuses the key is replaced, unless it has accepted the key before: then its fault is unknown.
    until_deleted(&world, &maker, refuses).await?;
    world
        .until_note(broken.name(), RESTRICTED, |note| note.contains("the host accepted one of these keys before"))
        .await?;
    // The operator never took over this Node. In a cluster, the Machine API deletes the Node of a deleted Machine.
    Api::<Node>::all(world.client.clone()).delete(refuses.name(), &DeleteParams::default()).await?;
    let_go(&world, &maker, refuses).await?;
    let other = made_with(&world, &maker, &set, "other", &world.key).await?;
    world.until_joined(other.name()).await?;
    maker.runs(other.name()).await?;

    // The other host is taken over once it accepts the key again.
    let admitted = world.key.public_key().to_openssh()?;
    std::fs::write(broken.drive_c().join("ProgramData/ssh/administrators_authorized_keys"), admitted)?;
    world.until_event(broken.name(), "Adopted").await?;
    until_ready(&world, POOL, 3).await?;
    for host in [takes, broken] {
        ensure!(!maker.goes(host.name()).await, "{} was deleted", host.name());
        let instance = world.instance(host.name()).await?.context("it has no instance")?;
        ensure!(status(&instance).key_refusal.is_none(), "{:?}", status(&instance));
    }
    Ok(())
}
