//! Identity of hosts that were swapped, restarted or renamed, that belong to another cluster, or whose stored status was lost.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use api::{
    Host, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec,
    conditions::kind,
    host::{Marker, ServiceState},
    names::key,
};
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{
    deployment::operator_client,
    sim::{HostOptions, SimHost, SimOptions},
};

use crate::{
    fleet::{OUTLIVES_API_SERVER, World, entry, has, is_cordoned, spec, spec_with, status},
    removal::{budget, pod},
};

/// ID of a cluster other than the test's.
const ELSEWHERE: &str = "0b0d5b4c-7a0e-4f3b-9a53-6c6b7f0d9a11";

#[tokio::test(flavor = "multi_thread")]
async fn no_host_is_taken_for_another() -> Result<()> {
    let termination = Duration::from_millis(500);
    let world = World::new(SimOptions { termination, ..SimOptions::default() }, &[]).await?;
    tokio::try_join!(
        hosts_that_were_swapped_in_the_list_are_not_deconfigured(&world),
        a_host_that_gets_another_name_is_not_configured_before_the_old_one_is_gone(&world),
        a_host_of_another_cluster_is_not_taken_over_unasked(&world),
    )?;
    Ok(())
}

fn pool_of(hosts: Vec<Host>, fields: &Value) -> WindowsNodePoolSpec {
    let mut spec = spec(&[]);
    spec.inventory.hosts = Some(hosts);
    let mut value = json!(spec);
    if let (Some(value), Some(fields)) = (value.as_object_mut(), fields.as_object()) {
        value.extend(fields.clone());
    }
    serde_json::from_value(value).unwrap()
}

/// Returns an inventory entry that declares the host key.
fn declared(host: &SimHost) -> Result<Host> {
    Ok(Host { host_key: Some(host.host_key().to_openssh()?), ..entry(host) })
}

fn marker(host: &SimHost) -> Result<Marker> {
    Ok(serde_json::from_slice(&std::fs::read(host.drive_c().join("k/wicd/state.json"))?)?)
}

fn starts(host: &SimHost) -> BTreeMap<String, u32> {
    host.windows().state().starts.clone()
}

fn all_run(host: &SimHost) -> Result<()> {
    let services = host.services();
    let run = services.len() >= 2 && services.values().all(|s| *s == ServiceState::Running);
    ensure!(run, "{}: {services:?}", host.name());
    Ok(())
}

/// Swaps address and key of two hosts in the list, as by mistake, and then removes one of them.
async fn hosts_that_were_swapped_in_the_list_are_not_deconfigured(world: &World) -> Result<()> {
    let hosts = world.hosts("swap", 3).await?;
    let entries = hosts.iter().map(declared).collect::<Result<Vec<_>>>()?;
    world.join("swap", &pool_of(entries.clone(), &json!({}))).await?;
    let before: Vec<_> = hosts.iter().map(starts).collect();
    let named = |n: usize, like: usize| Host { name: entries[n].name.clone(), ..entries[like].clone() };
    let mut swapped = vec![named(0, 1), named(1, 0), entries[2].clone()];
    world.apply("swap", &pool_of(swapped.clone(), &json!({}))).await?;
    for host in &hosts[..2] {
        let note = world.until_event(host.name(), "AddressRefused").await?;
        ensure!(note.contains("NotThisMachine") && note.contains("machine id"), "{note}");
        let refused = |i: &WindowsInstance| has(&status(i).conditions, kind::REACHABLE, "False", "NotThisMachine");
        world.until_instance(host.name(), "says that its address is wrong", refused).await?;
    }
    swapped.remove(0);
    world.apply("swap", &pool_of(swapped, &json!({}))).await?;
    // The removed host is found at the address where it was proven, and leaves. The other host is not taken for it.
    world
        .eventually("the removed host leaves", || async { matches!(world.instance(hosts[0].name()).await, Ok(None)) })
        .await?;
    ensure!(marker(&hosts[0]).is_err() && hosts[0].services().is_empty(), "{:?}", hosts[0].services());
    for (host, before) in hosts.iter().zip(&before).skip(1) {
        all_run(host)?;
        ensure!(starts(host) == *before, "{}: {:?}", host.name(), starts(host));
        ensure!(marker(host)?.node_name == host.name(), "{:?}", marker(host)?);
    }
    // The mistake is corrected.
    world.apply("swap", &pool_of(entries[1..].to_vec(), &json!({}))).await?;
    let found = |i: &WindowsInstance| has(&status(i).conditions, kind::REACHABLE, "True", "AsExpected");
    world.until_instance(hosts[1].name(), "is found again", found).await?;
    hosts[1..].iter().try_for_each(all_run)
}

/// Renames a host that has restarted since the operator's last login, so that its boot id differs.
async fn a_host_that_gets_another_name_is_not_configured_before_the_old_one_is_gone(world: &World) -> Result<()> {
    let host = world.sim.host(HostOptions::named("old-name")).await?;
    world.join("renamed", &pool_of(vec![entry(&host)], &json!({}))).await?;
    pod(world, "guarded", "old-name", &[("app", "guarded")]).await?;
    budget(world, "guarded", "guarded").await?;
    host.reboot();
    world
        .eventually("kubelet runs again", || async {
            let ready = world.node("old-name").await.ok().flatten();
            let boot = ready.and_then(|n| n.status?.node_info).map(|i| i.boot_id);
            host.boots() == 2 && boot.as_deref() == Some("2")
        })
        .await?;
    world.until_joined("old-name").await?;
    let before = starts(&host);
    let renamed = Host { name: "new-name".into(), ..entry(&host) };
    world.apply("renamed", &pool_of(vec![renamed], &json!({}))).await?;
    let instances: Api<WindowsInstance> = Api::all(world.client.clone());
    // The pool reports the conflict if no instance is made for the address.
    world
        .eventually("the new name is refused", || async {
            let instance = instances.get_opt("new-name").await.ok().flatten();
            let refused = |i: WindowsInstance| has(&status(&i).conditions, kind::READY, "False", "HostConflict");
            let pool = world.pool("renamed").await.ok().and_then(|p| p.status).unwrap_or_default();
            let told = pool.conditions.iter().any(|c| c.reason == "HostConflict");
            instance.is_some_and(refused) || told
        })
        .await?;
    world
        .until_instance("old-name", "waits for its pod", |i| {
            status(i).operation.and_then(|o| o.drain).is_some_and(|d| d.remaining == 1)
        })
        .await?;
    ensure!(starts(&host) == before && marker(&host)?.node_name == "old-name", "{:?}", marker(&host)?);
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    ensure!(
        pods.get("guarded-old-name").await?.metadata.deletion_timestamp.is_none(),
        "the PodDisruptionBudget was violated"
    );

    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(world.client.clone());
    budgets.delete("guarded", &DeleteParams::default()).await?;
    world.eventually("the old name is gone", || async { matches!(world.node("old-name").await, Ok(None)) }).await?;
    world.until_joined("new-name").await?;
    all_run(&host)?;
    ensure!(marker(&host)?.node_name == "new-name", "{:?}", marker(&host)?);
    Ok(())
}

async fn a_host_of_another_cluster_is_not_taken_over_unasked(world: &World) -> Result<()> {
    let host = world.sim.host(HostOptions::named("lent")).await?;
    let record = Marker {
        cluster_id: ELSEWHERE.into(),
        node_name: "lent".into(),
        version: "1-elsewhere".into(),
        epoch: 1_900_000_000,
        ..Marker::default()
    };
    let state = host.drive_c().join("k/wicd/state.json");
    std::fs::create_dir_all(state.parent().context("the path has no parent")?)?;
    std::fs::write(&state, serde_json::to_vec(&record)?)?;
    std::fs::write(host.drive_c().join("k/wicd/epoch"), format!("1900000000 {ELSEWHERE}"))?;
    world.apply("lent", &pool_of(vec![entry(&host)], &json!({}))).await?;
    let message = world.until_failed("lent", "HostOfAnotherCluster").await?;
    ensure!(message.contains(ELSEWHERE) && message.contains("takeOverFrom"), "{message}");

    // A host key that was trusted on first use is not enough.
    let take_over = json!({"takeOverFrom": [ELSEWHERE]});
    world.apply("lent", &pool_of(vec![entry(&host)], &take_over)).await?;
    world
        .until_instance("lent", "requires a declared host key", |i| {
            status(i).failures.is_some_and(|f| f.last_message.contains("only hosts with a declared host key"))
        })
        .await?;
    ensure!(marker(&host)? == record && host.services().is_empty(), "something was changed on the host");
    ensure!(!host.drive_c().join("k/wicd/owned.json").exists(), "something was put on the host");

    world.apply("lent", &pool_of(vec![declared(&host)?], &take_over)).await?;
    world.until_joined("lent").await?;
    all_run(&host)?;
    let kube_system =
        Api::<k8s_openapi::api::core::v1::Namespace>::all(world.client.clone()).get("kube-system").await?;
    ensure!(Some(marker(&host)?.cluster_id) == kube_system.uid(), "{:?}", marker(&host)?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_whose_status_was_lost_are_not_joined_again() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("lost", 5).await?;
    let (proven, unproven, leaving) = (&hosts[..3], &hosts[3], &hosts[4]);
    let careless = json!({"rollout": {"maxUnavailable": 3}});
    world.join("lost", &spec_with(&hosts, careless.clone())).await?;
    for host in &hosts {
        pod(&world, "stays", host.name(), &[]).await?;
    }
    let joined: Vec<_> = instances(&world).await?;
    let nodes = crate::fleet::nodes(&world.client).await?;
    world.stop().await?;

    lose_all_status(&world).await?;
    // No record of this host's key is left.
    let nothing = json!({key::SSH_HOST_KEY: null, key::SSH_HOST_KEY_TYPE: null});
    world.edit_node(unproven.name(), json!({"metadata": {"annotations": nothing}})).await?;
    // The last host is removed from the list while no operator runs.
    world.apply("lost", &spec_with(&hosts[..4], careless)).await?;
    let before: Vec<_> = hosts.iter().map(|h| (starts(h), h.stats().processes)).collect();
    world.new_operator().await?;

    for host in proven {
        let instance = world.until_joined(host.name()).await?;
        let (now, was) = (status(&instance), joined.iter().find(|i| i.name_any() == host.name()).map(status));
        let was = was.context("the instance is new")?;
        ensure!(
            (&now.current_version, &now.wicd, &now.host_key, &now.node_ref, &now.proven_at)
                == (&was.current_version, &was.wicd, &was.host_key, &was.node_ref, &was.proven_at),
            "{now:?} {was:?}"
        );
    }
    let message = world.until_failed(unproven.name(), "HostUnproven").await?;
    ensure!(message.contains("trust-host-key"), "{message}");
    world.until_gone(leaving).await?;

    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    for (host, (starts_before, processes)) in hosts[..4].iter().zip(&before) {
        let name = host.name();
        ensure!(starts(host) == *starts_before && host.boots() == 1, "{name} was restarted: {:?}", starts(host));
        let asked = host.stats().processes - processes;
        ensure!(asked == u64::from(name != unproven.name()), "{name} was asked {asked} times");
        ensure!(pods.get(&format!("stays-{name}")).await?.metadata.deletion_timestamp.is_none(), "{name} was drained");
        let node = world.node(name).await?.context("the Node is gone")?;
        let was = nodes.iter().find(|n| n.name_any() == name).and_then(ResourceExt::uid).context("the Node is new")?;
        ensure!(node.uid() == Some(was) && !is_cordoned(&node), "{name} is another Node, or cordoned");
    }
    // A user confirms the host key.
    let key = unproven.host_key().fingerprint(russh::keys::HashAlg::Sha256).to_string();
    world.annotate(unproven.name(), key::TRUST_HOST_KEY, &key).await?;
    world.until_joined(unproven.name()).await?;
    ensure!(starts(unproven) == before[3].0, "services were restarted: {:?}", starts(unproven));
    Ok(())
}

/// Restores etcd, which lowers the resource versions of all objects. Watches would wait for changes that never come.
#[tokio::test(flavor = "multi_thread")]
async fn no_operator_goes_on_blindly_after_a_restore_of_etcd() -> Result<()> {
    // The Lease is so long that it does not expire before the operator reads it after the restore, however slow the machine is.
    let mut world = World::new(SimOptions::default(), &OUTLIVES_API_SERVER).await?;
    let hosts = world.hosts("etcd", 2).await?;
    let labelled = |value: &str| spec_with(&hosts, json!({"template": {"metadata": {"labels": {"era": value}}}}));
    world.join("etcd", &labelled("before")).await?;
    for host in &hosts {
        pod(&world, "stays", host.name(), &[]).await?;
    }
    let backup = world.control_plane.back_up().await?;
    let lease = crate::crash::lease(&world).await?.metadata.resource_version;
    world.apply("etcd", &labelled("after")).await?;
    for host in &hosts {
        has_label(&world, host, "after").await?;
    }
    // The operator detects a restore when the Lease is older than the one that it has written.
    let is_renewed =
        || async { crate::crash::lease(&world).await.is_ok_and(|now| now.metadata.resource_version != lease) };
    world.eventually("the Lease is renewed after the backup", is_renewed).await?;
    let before: Vec<_> = hosts.iter().map(starts).collect();
    let nodes = crate::fleet::nodes(&world.client).await?;

    world.control_plane.restore(&backup).await?;
    crate::crash::ended(&mut world.operator, crate::fleet::LIMIT).await?;
    let log = world.operator.log();
    ensure!(
        log.contains("the cluster's data were restored from a backup"),
        "the operator does not say why it ended: {log}"
    );
    world.new_operator().await?;
    world.apply("etcd", &labelled("restored")).await?;
    for (host, before) in hosts.iter().zip(&before) {
        has_label(&world, host, "restored").await?;
        ensure!(starts(host) == *before && host.boots() == 1, "{} was disturbed: {:?}", host.name(), starts(host));
        let node = world.node(host.name()).await?.context("the Node is gone")?;
        let was = nodes.iter().find(|n| n.name_any() == host.name()).and_then(ResourceExt::uid);
        ensure!(node.uid() == was && !is_cordoned(&node), "{} is another Node, or cordoned", host.name());
    }
    Ok(())
}

async fn has_label(world: &World, host: &SimHost, era: &str) -> Result<()> {
    world
        .eventually("the Node has the label", || async {
            let node = world.node(host.name()).await.ok().flatten();
            node.is_some_and(|n| n.labels().get("era").is_some_and(|v| v == era))
        })
        .await
}

async fn instances(world: &World) -> Result<Vec<WindowsInstance>> {
    Ok(Api::<WindowsInstance>::all(world.client.clone()).list(&ListParams::default()).await?.items)
}

/// Removes the status of all instances and pools, as after a restore by a backup tool that leaves out statuses.
async fn lose_all_status(world: &World) -> Result<()> {
    let nothing = Patch::Merge(json!({"status": null}));
    let all: Api<WindowsInstance> = Api::all(operator_client(&world.control_plane).await?);
    for instance in instances(world).await? {
        all.patch_status(&instance.name_any(), &PatchParams::default(), &nothing).await?;
        let left = all.get(&instance.name_any()).await?.status;
        ensure!(left.is_none_or(|s| s.current_version.is_none()), "the status of {} stayed", instance.name_any());
    }
    let pools: Api<WindowsNodePool> = Api::all(operator_client(&world.control_plane).await?);
    for pool in pools.list(&ListParams::default()).await?.items {
        pools.patch_status(&pool.name_any(), &PatchParams::default(), &nothing).await?;
    }
    Ok(())
}
