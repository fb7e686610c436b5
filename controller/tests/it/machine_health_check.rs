//! MachineHealthChecks and the operator: they never repair the same node.

use anyhow::{Result, ensure};
use api::{GrantType, WindowsNodePool};
use serde_json::{Value, json};
use testbed::{
    deployment::MachineApi,
    sim::{HostOptions, SimOptions},
};

use crate::{
    fleet::{World, pool_status, status},
    machines::{ARGS, Maker, provisioned, set_port, until_made, until_ready},
    repair::{mark_node_not_ready, stop_services},
    transcripts::root,
};

const SPARED: &str = "example.com/spared";

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_machine_with_a_health_check_is_left_to_it() -> Result<()> {
    let world = World::new(SimOptions::default(), ARGS).await?;
    let maker = Maker::install(&world, MachineApi::OpenShift).await?;
    let [autoscaler, mut check] = ["autoscaler.yaml", "health-check.yaml"].map(example);
    world.control_plane.apply_yaml(&autoscaler.to_string()).await?;
    check["spec"]["selector"]["matchExpressions"] = json!([{"key": SPARED, "operator": "DoesNotExist"}]);
    world.control_plane.apply_yaml(&check.to_string()).await?;
    let set = maker.set_of("win", 2).await?;
    let mut hosts = Vec::new();
    for name in ["covered", "spared"] {
        let host = world.sim.host(HostOptions::named(name)).await?;
        maker.machine(name, Some(&set), provisioned(&host)).await?;
        hosts.push(host);
    }
    maker.edit("Machine", "spared", json!({"metadata": {"labels": {SPARED: ""}}})).await?;
    until_made(&world, "win").await?;
    set_port(&world, "win", &hosts[0]).await?;
    until_ready(&world, "win", 2).await?;
    let remediation = json!({"type": "Reconfigure", "notReadySeconds": 30, "maxUnhealthy": 2});
    world.edit_pool("win", json!({"spec": {"remediation": remediation}})).await?;

    for host in &hosts {
        stop_services(host);
        mark_node_not_ready(&world, host.name()).await?;
    }
    world.until_event("spared", "Repaired").await?;
    let says = |p: &WindowsNodePool| {
        pool_status(p).conditions.iter().any(|c| {
            c.message.contains("covered since")
                && c.message.contains("left to MachineHealthCheck openshift-machine-api/windows")
        })
    };
    world.until("win", "names what replaces the Machine", says).await?;
    let instance = world.instance("covered").await?.unwrap_or_else(|| panic!("no instance"));
    let repairs = instance.spec.grant.as_ref().is_some_and(|g| g.type_ == GrantType::Repair);
    ensure!(
        !repairs && status(&instance).operation.is_none(),
        "the operator repairs the covered node: {:?}",
        instance.spec.grant
    );

    // A user pauses the MachineHealthCheck, as before maintenance: now the operator repairs the node.
    let paused = json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}});
    maker.edit("MachineHealthCheck", "windows", paused).await?;
    world.until_event("covered", "Repaired").await?;
    until_ready(&world, "win", 2).await?;

    // The MachineHealthCheck, in force again, deletes a Machine whose Node is down. Here, the test deletes the Machine. The operator removes the host
    // without repairing it first.
    let goes_on = json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": null}}});
    maker.edit("MachineHealthCheck", "windows", goes_on).await?;
    stop_services(&hosts[0]);
    mark_node_not_ready(&world, "covered").await?;
    maker.delete("covered").await?;
    maker.let_go("covered").await?;
    world
        .eventually("the instance of the deleted Machine is gone", || async {
            matches!(world.instance("covered").await, Ok(None))
        })
        .await?;
    until_ready(&world, "win", 1).await
}

fn example(name: &str) -> Value {
    let text = std::fs::read_to_string(root().join("examples/machines").join(name)).expect("the example is there");
    serde_yaml::from_str(&text).expect("the example is YAML")
}
