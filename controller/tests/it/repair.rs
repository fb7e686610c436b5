//! Faults on hosts: nodes that stop working, and users who change files and services.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use api::{
    GrantType, Step, WindowsInstance, WindowsNodePoolSpec, conditions,
    conditions::kind,
    host::{ServiceState, WICD_SERVICE},
    names::key,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use testbed::sim::{Fault, SimHost, SimOptions};

use crate::{
    fleet::{World, has, is_ready, pool_status, spec, spec_with, status},
    rollout::until_updated,
};

/// Seconds for which a node is not Ready before it is repaired: the minimum of `remediation.notReadySeconds`.
const NOT_READY_SECONDS: i64 = 30;

#[tokio::test(flavor = "multi_thread")]
async fn unhealthy_nodes_are_repaired() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    tokio::try_join!(
        nodes_are_repaired_unless_too_many_are_unhealthy(&world),
        a_requested_repair_begins_even_if_the_pool_repairs_nothing(&world),
        drift_of_files_and_services_is_corrected(&world),
        a_deleted_node_does_not_fail_its_version(&world),
    )?;
    Ok(())
}

/// Returns a pool with this type of remediation, which repairs nodes only while no more than one is unhealthy.
fn pool_with_remediation(hosts: &[SimHost], remedy: &str) -> WindowsNodePoolSpec {
    let remediation = json!({"type": remedy, "notReadySeconds": NOT_READY_SECONDS, "maxUnhealthy": 1});
    spec_with(hosts, json!({"remediation": remediation, "rollout": {"maxUnavailable": 1}}))
}

/// Stops wicd and kubelet on a host for good: only an external action starts them again.
pub(crate) fn stop_services(host: &SimHost) {
    for name in [WICD_SERVICE, "kubelet"] {
        if let Some(service) = host.windows().state().services.get_mut(name) {
            service.state = ServiceState::Stopped;
        }
    }
    // Wakes all tasks that wait for a change of the host.
    host.mend();
}

/// Sets the Node to the state that Kubernetes shows when kubelet no longer reports, without the minute that this takes.
pub(crate) async fn mark_node_not_ready(world: &World, name: &str) -> Result<()> {
    let ready = json!({
        "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.", "lastTransitionTime": Timestamp::now().to_string(),
    });
    let patch = json!({"status": {"conditions": [ready]}});
    Api::<Node>::all(world.client.clone())
        .patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    Ok(())
}

/// Waits until the services of a host run: its instance may become Ready a moment before.
async fn until_services_run(world: &World, host: &SimHost) -> Result<()> {
    let run = || async { host.services().values().all(|state| *state == ServiceState::Running) };
    world.eventually("its services run", run).await
}

async fn nodes_are_repaired_unless_too_many_are_unhealthy(world: &World) -> Result<()> {
    let (few, many) = (world.hosts("few", 2).await?, world.hosts("many", 3).await?);
    let one = world.hosts("one", 1).await?;
    let specs = [
        pool_with_remediation(&few, "Reconfigure"),
        pool_with_remediation(&many, "Reconfigure"),
        pool_with_remediation(&one, "Reboot"),
    ];
    tokio::try_join!(world.join("few", &specs[0]), world.join("many", &specs[1]), world.join("one", &specs[2]))?;
    // A user has cordoned one node: nothing is left of the budget.
    world.edit_node(few[1].name(), json!({"spec": {"unschedulable": true}})).await?;
    world.until("few", "the budget is used up", |p| pool_status(p).allowed_disruptions == 0).await?;
    // Measured from here, a repair can only seem later than it is.
    let down = Timestamp::now();
    for host in [&many[0], &many[1], &few[0], &one[0]] {
        stop_services(host);
        mark_node_not_ready(world, host.name()).await?;
    }

    // When the node of `few` is repaired, the nodes of `many` have been down for as long.
    let note = world.until_event(few[0].name(), "Repaired").await?;
    ensure!(note.contains("Ready again"), "{note}");
    let took = Timestamp::now().duration_since(down);
    ensure!(took >= SignedDuration::from_secs(NOT_READY_SECONDS - 1), "it was repaired too early, after {took:?}");
    world.until_joined(few[0].name()).await?;
    until_services_run(world, &few[0]).await?;
    ensure!(few[0].boots() == 1, "the host was restarted");

    // With the remediation type Reboot, the host is restarted once.
    world.until_event(one[0].name(), "Repaired").await?;
    world.until_joined(one[0].name()).await?;
    until_services_run(world, &one[0]).await?;
    ensure!(one[0].boots() == 2, "the host has booted {} times", one[0].boots());

    let message = |p: &api::WindowsNodePool, type_: &str| {
        let condition = conditions::find(&pool_status(p).conditions, type_).cloned();
        condition.map(|c| c.message).unwrap_or_default()
    };
    world
        .until("many", "says that there are too many", |p| {
            let conditions = pool_status(p).conditions;
            [kind::STALLED, kind::DEGRADED].iter().all(|k| has(&conditions, k, "True", "TooManyUnhealthy"))
                && [&many[0], &many[1]].iter().all(|h| message(p, kind::STALLED).contains(h.name()))
        })
        .await?;
    for host in &many[..2] {
        let instance = world.instance(host.name()).await?.context("no instance")?;
        let repair = instance.spec.grant.as_ref().filter(|g| g.type_ == GrantType::Repair);
        ensure!(repair.is_none() && status(&instance).operation.is_none(), "{} is being repaired", host.name());
        ensure!(host.services().get("kubelet") == Some(&ServiceState::Stopped), "{} was repaired", host.name());
    }
    // One host comes back by itself. The other one is then the only unhealthy one, and is repaired.
    many[1].reboot();
    world.until_event(many[0].name(), "Repaired").await?;
    world.until("many", "all are Ready", |p| is_ready(p) && pool_status(p).ready_nodes == 3).await
}

async fn a_requested_repair_begins_even_if_the_pool_repairs_nothing(world: &World) -> Result<()> {
    let asked = world.hosts("asked", 1).await?;
    world.join("asked", &pool_with_remediation(&asked, "None")).await?;
    stop_services(&asked[0]);
    mark_node_not_ready(world, "asked-0").await?;
    world.until_instance("asked-0", "it is not Ready", |i| status(i).phase == Some(api::Phase::NotReady)).await?;
    world.annotate("asked-0", key::RETRY, "now").await?;
    world.until_event("asked-0", "Repairing").await?;
    world.until_event("asked-0", "Repaired").await?;
    world.until("asked", "it is Ready again", is_ready).await
}

async fn drift_of_files_and_services_is_corrected(world: &World) -> Result<()> {
    let hosts = world.hosts("bent", 1).await?;
    let host = &hosts[0];
    world.join("bent", &spec(&hosts)).await?;
    let kubelet = host.drive_c().join("k/kubelet.exe");
    let command = || host.windows().state().services.get("kubelet").map(|s| s.command.clone());
    let right = command().context("there is no kubelet")?;

    // The first check by wicd records the right state.
    let settled = host.drive_c().join("k/wicd/settled.json");
    world
        .eventually("wicd has seen all right", || async {
            host.mend();
            std::fs::read_to_string(&settled).is_ok_and(|text| text.contains("kubelet.exe"))
        })
        .await?;
    std::fs::remove_file(&kubelet)?;
    std::fs::write(&kubelet, "a user's own")?;
    if let Some(service) = host.windows().state().services.get_mut("kubelet") {
        service.command = r"C:\k\kubelet.exe --v=9".into();
    }
    // Instead of periodically, the simulated wicd checks whenever something happens on the host.
    let on_node = || async {
        host.mend();
        let node = world.node(host.name()).await.ok().flatten();
        node.and_then(|n| n.annotations().get(key::DRIFT).cloned()).unwrap_or_default()
    };
    let both =
        |text: &str| text.contains(r"file C:\k\kubelet.exe (healed)") && text.contains("service kubelet: command");
    world.eventually("the Node reports both", || async { both(&on_node().await) }).await?;
    let instance = world
        .until_instance(host.name(), "has drifted", |i| {
            let drifted = conditions::find(&status(i).conditions, kind::DRIFTED).cloned();
            drifted.is_some_and(|c| c.status == "True" && both(&c.message))
        })
        .await?;
    ensure!(has(&status(&instance).conditions, kind::READY, "True", "Succeeded"), "{:?}", status(&instance).conditions);
    world.until_note(host.name(), "Drifted", both).await?;
    let counted = world.operator.metric("windows_node_pool_drift_total").await?;
    ensure!(counted > 0.0, "drift is not counted");
    ensure!(std::fs::read(&kubelet)? == b"kubelet", "the file is not back");
    ensure!(command().as_ref() == Some(&right), "the command is not back: {:?}", command());
    Ok(())
}

fn started(host: &SimHost) -> BTreeMap<String, u32> {
    host.windows().state().starts.clone()
}

/// Deletes the Node while the operator waits for its registration. The host has been configured with the new version already.
async fn a_deleted_node_does_not_fail_its_version(world: &World) -> Result<()> {
    let hosts = world.hosts("deleted", 1).await?;
    let (host, name) = (&hosts[0], hosts[0].name());
    let pool = |pods: i32| spec_with(&hosts, json!({"template": {"spec": {"kubelet": {"maxPods": pods}}}}));
    world.join("deleted", &pool(100)).await?;
    host.fault(Fault::NeverRegisters);
    world.apply("deleted", &pool(101)).await?;
    let registers = |i: &WindowsInstance| status(i).operation.is_some_and(|o| o.step == Step::Register);
    world.until_instance(name, "waits for its Node", registers).await?;
    let starts = started(host);
    Api::<Node>::all(world.client.clone()).delete(name, &DeleteParams::default()).await?;
    // kubelet registers only when it starts.
    world.eventually("kubelet is restarted", || async { started(host)["kubelet"] > starts["kubelet"] }).await?;
    host.mend();
    until_updated(world, "deleted").await?;
    let instance = world.until_joined(name).await?;
    ensure!(status(&instance).failed_version.is_none(), "{:?}", status(&instance));
    let rollout = pool_status(&world.pool("deleted").await?).rollout;
    ensure!(rollout.as_ref().is_none_or(|r| !r.rolled_back), "{rollout:?}");
    Ok(())
}
