//! Tests of the maintenance of a node, from the request to its end, interrupted at each write.

use api::{GrantType, names::key};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use testbed::sim::Fault;

use super::{
    executor_tests::{World, grant, interrupted, is_cordoned},
    test_bed::Bed,
};

fn annotate(world: &World, name: &str, value: Value) {
    world.edit_node(|n| n["metadata"]["annotations"][name] = value);
}

fn withdraw(world: &World, name: &str) {
    world.edit_node(|n| drop(n["metadata"]["annotations"].as_object_mut().unwrap().remove(name)));
}

fn state(world: &World) -> Option<String> {
    world.node()?["metadata"]["annotations"][key::MAINTENANCE_STATE].as_str().map(String::from)
}

/// Reports whether the node was maintained since its last update.
fn was_maintained(world: &World) -> bool {
    world.status()["lastMaintenanceTime"].is_string()
}

fn message(world: &World) -> String {
    world.condition("Ready")["message"].as_str().unwrap_or_default().to_owned()
}

/// Returns a node with a pod, for which maintenance is requested and granted.
async fn node_to_maintain() -> (World, String) {
    let (world, version) = World::joined().await;
    world.run_pod("cart");
    annotate(&world, key::MAINTENANCE, json!("disk"));
    world.grant("maintenance-1", GrantType::Maintenance, &version, &json!({}));
    (world, version)
}

async fn wait_until_drained(world: &mut World) {
    let is_empty = |w: &World| {
        let is_drained = state(w).as_deref() == Some("Drained");
        assert!(!is_drained || (!w.has_pods() && is_cordoned(&w.node().unwrap())), "it is not drained");
        is_drained
    };
    world.works_until("it is drained", is_empty).await;
}

#[tokio::test]
async fn a_maintenance_that_is_interrupted_anywhere_drains_waits_and_verifies() {
    let prepare = async || node_to_maintain().await.0;
    interrupted(prepare, async |world: &mut World| {
        wait_until_drained(world).await;
        assert_eq!(
            (world.operation()["step"].as_str(), world.operation()["changed"].as_bool()),
            (Some("Maintain"), Some(true))
        );
        let text = message(world);
        assert!(
            text.contains("drained for maintenance since") && text.ends_with(": disk (requested on the Node)"),
            "{text}"
        );
        // Simulates the work of a user on the host.
        world.bed.host.reboot();
        withdraw(world, key::MAINTENANCE);
        // The grant stays, because a pool does not revoke an operation that has changed the host.
        let is_back = |w: &World| {
            let node = w.node().unwrap();
            let is_ready = node["status"]["conditions"].to_string().contains(r#""status":"True","type":"Ready""#);
            assert!(
                is_cordoned(&node) || is_ready || w.bed.host.boots() < 2,
                "it was used before it was found to work"
            );
            w.operation().is_null() && state(w).is_none() && !is_cordoned(&node)
        };
        world.works_until("it is a node again", is_back).await;
        assert!(world.has_ended("maintenance-1"));
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_withdrawn_before_the_node_is_drained_leaves_it_as_it_was() {
    let (mut world, version) = node_to_maintain().await;
    // The pod stays, because a budget forbids its eviction.
    let eviction = "/api/v1/namespaces/shop/pods/cart/eviction";
    world.bed.api.fail("POST", eviction, 429, "TooManyRequests", "the budget cart forbids it", Value::Null);
    let is_draining = |w: &World| state(w).as_deref() == Some("Draining") && w.operation()["drain"].is_object();
    world.works_until("it is being drained", is_draining).await;
    withdraw(&world, key::MAINTENANCE);
    world.works_until("it is as it was", |w| w.follows(&version) && state(w).is_none()).await;
    assert!(world.has_pods());
    // The request counts as a maintenance. Otherwise, a host could disturb its node again and again before any update gets its turn.
    assert!(was_maintained(&world));
}

#[tokio::test]
async fn a_maintenance_counts_until_the_next_update() {
    let (mut world, version) = node_to_maintain().await;
    wait_until_drained(&mut world).await;
    assert!(!was_maintained(&world));
    withdraw(&world, key::MAINTENANCE);
    world.works_until("it is a node again", |w| w.follows(&version) && state(w).is_none()).await;
    assert!(was_maintained(&world));
    for (id, version, expected) in [("the-same-again", version, true), ("update-1", world.publish(120), false)] {
        let change = json!({"version": version, "disruption": "None"});
        world.grant(id, GrantType::Update, &version, &change);
        world.works_until(id, |w| w.has_ended(id) && w.follows(&version)).await;
        assert_eq!(was_maintained(&world), expected, "{id}");
    }
}

/// Many patching programs leave a host that must be restarted: the operator restarts it while the node is empty. A cause that remains after the
/// restart is reported, and the node is used.
#[tokio::test]
async fn a_host_that_was_patched_and_not_restarted_is_restarted_once_before_it_is_used() {
    use api::host::RestartCause::{NameOrDomain, Servicing, WindowsUpdate};
    for (causes, stays, expected) in [
        (vec![WindowsUpdate], false, 1),
        (vec![Servicing], false, 1),
        (vec![WindowsUpdate, Servicing], true, 1),
        (vec![NameOrDomain], false, 0),
        (vec![], false, 0),
    ] {
        let (mut world, version) = node_to_maintain().await;
        wait_until_drained(&mut world).await;
        let set = |w: &World| w.bed.host.windows().state().restart_causes.extend(causes.iter().copied());
        set(&world);
        let boots = world.bed.host.boots();
        withdraw(&world, key::MAINTENANCE);
        let restarts = |w: &World| w.bed.host.boots() - boots;
        let is_back = |w: &World| {
            if stays {
                set(w);
            }
            let is_used = !is_cordoned(&w.node().unwrap());
            assert!(!is_used || restarts(w) == expected, "{causes:?}: it was used after {} restarts", restarts(w));
            is_used && w.follows(&version) && state(w).is_none()
        };
        world.works_until("it is a node again", is_back).await;
        assert_eq!(restarts(&world), expected, "{causes:?}");
        let condition = world.status()["conditions"].to_string();
        let is_reported = condition.contains("Windows waits for a restart");
        assert_eq!(is_reported, stays || causes == [NameOrDomain], "{causes:?}: {condition}");
    }
}

/// Each maintenance may install other patches.
#[tokio::test]
async fn a_maintenance_that_is_requested_again_may_need_another_restart() {
    let (mut world, version) = node_to_maintain().await;
    let boots = world.bed.host.boots();
    for expected in 1..=2 {
        wait_until_drained(&mut world).await;
        world.bed.host.windows().state().restart_causes.insert(api::host::RestartCause::WindowsUpdate);
        withdraw(&world, key::MAINTENANCE);
        world.works_until("it is restarted", |w| w.bed.host.boots() - boots == expected).await;
        if expected == 1 {
            annotate(&world, key::MAINTENANCE, json!("more patches"));
        }
    }
    world.works_until("it is a node again", |w| w.follows(&version) && state(w).is_none()).await;
}

#[tokio::test]
async fn a_node_is_drained_again_if_maintenance_is_requested_on_its_way_back() {
    let (mut world, version) = node_to_maintain().await;
    wait_until_drained(&mut world).await;
    let logins = world.bed.host.stats().connections;
    world.bed.host.fault(Fault::Refuse);
    withdraw(&world, key::MAINTENANCE);
    let returns = |w: &World| state(w).as_deref() == Some("Returning") && !w.status()["failures"].is_null();
    world.works_until("it is handed back", returns).await;
    annotate(&world, key::MAINTENANCE_REQUEST, json!("fan"));
    wait_until_drained(&mut world).await;
    assert!(message(&world).ends_with(": fan (requested on the host)"), "{}", message(&world));
    world.bed.host.mend();
    withdraw(&world, key::MAINTENANCE_REQUEST);
    world.works_until("it is a node again", |w| w.follows(&version) && state(w).is_none()).await;
    assert!(world.bed.host.stats().connections > logins, "its host was not verified");
}

#[tokio::test]
async fn a_cordon_that_another_client_lifts_comes_back_and_one_that_was_there_stays() {
    let (mut world, _) = node_to_maintain().await;
    wait_until_drained(&mut world).await;
    world.edit_node(|n| n["spec"] = json!({}));
    world.run_pod("late");
    let is_drained =
        |w: &World| !w.has_pods() && is_cordoned(&w.node().unwrap()) && state(w).as_deref() == Some("Drained");
    world.works_until("it is drained again", is_drained).await;

    let (mut world, _) = node_to_maintain().await;
    world.edit_node(|n| n["spec"] = json!({"unschedulable": true}));
    wait_until_drained(&mut world).await;
    withdraw(&world, key::MAINTENANCE);
    world.works_until("it is a node again", |w| w.operation().is_null() && state(w).is_none()).await;
    assert!(is_cordoned(&world.node().unwrap()), "a user's cordon was lifted");
}

#[tokio::test]
async fn a_request_shows_its_obstacle_or_its_refusal() {
    let (mut world, version) = World::joined().await;
    annotate(&world, key::MAINTENANCE_REQUEST, json!("patches"));
    world.works_until("it waits", |w| state(w).as_deref() == Some("Waiting")).await;
    let says_so =
        |w: &World| message(w).contains("maintenance requested: patches (requested on the host); waits until");
    world.works_until("it says so", says_so).await;
    annotate(&world, key::HOLD, json!("true"));
    let is_held = |w: &World| state(w).as_deref() == Some("Held") && message(w).contains("waits: on hold");
    world.works_until("it is held", is_held).await;
    withdraw(&world, key::HOLD);
    world.edit(|i| i["metadata"]["annotations"] = json!({key::MAINTENANCE: "false"}));
    world.works_until("it is refused", |w| state(w).as_deref() == Some("Held") && message(w).contains("refuses")).await;
    withdraw(&world, key::MAINTENANCE_REQUEST);
    world.works_until("nothing is left", |w| w.follows(&version) && state(w).is_none()).await;
}

#[tokio::test]
async fn a_host_that_is_removed_in_its_maintenance_leaves_nothing() {
    let (mut world, _) = node_to_maintain().await;
    wait_until_drained(&mut world).await;
    world.take_out();
    world.works_until("it leaves", World::is_gone).await;
}

#[tokio::test]
async fn a_host_that_stays_after_all_is_verified_before_it_is_used() {
    let (mut world, version) = node_to_maintain().await;
    wait_until_drained(&mut world).await;
    world.bed.host.fault(Fault::Refuse);
    world.take_out();
    world.works_until("its removal fails", |w| w.operation()["type"] == "Remove").await;
    world.edit(|i| {
        i["spec"]["leaving"] = Value::Null;
        i["spec"]["grant"] = Value::Null;
    });
    // The maintenance continues.
    let stays = |w: &World| {
        assert!(is_cordoned(&w.node().unwrap()), "it is used in its maintenance");
        w.operation()["type"] == "Maintenance" && w.operation()["step"] == "Maintain"
    };
    world.works_until("it stays", stays).await;
    assert_eq!(state(&world).as_deref(), Some("Drained"));
    withdraw(&world, key::MAINTENANCE);
    let returns = |w: &World| {
        assert!(is_cordoned(&w.node().unwrap()), "it is used before it was found to work");
        state(w).as_deref() == Some("Returning")
    };
    world.works_until("it is handed back", returns).await;
    world.bed.host.mend();
    world.works_until("it is a node again", |w| w.follows(&version)).await;
}

#[tokio::test]
async fn a_node_that_is_released_in_its_maintenance_does_not_look_drained() {
    let (mut world, _) = node_to_maintain().await;
    wait_until_drained(&mut world).await;
    world.edit(|i| {
        i["spec"]["leaving"] = json!({"since": "2026-01-01T00:00:00Z", "why": "its pool releases it"});
        i["spec"]["grant"] = grant("orphan-1", GrantType::Orphan, &json!({}));
    });
    let is_released = |w: &World| {
        assert!(is_cordoned(&w.node().unwrap()) || state(w).is_none(), "it takes pods, and looks drained");
        w.instance().is_none()
    };
    world.works_until("it is released", is_released).await;
    assert!(!is_cordoned(&world.node().unwrap()) && state(&world).is_none());
}

#[tokio::test]
async fn a_released_node_loses_its_state_although_another_client_has_changed_it() {
    let bed = Bed::with_objects().await;
    let metadata = json!({"name": "win-1", "annotations": {key::MAINTENANCE_STATE: "Drained"}});
    let stored =
        bed.api.objects(|all| all.put("nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})));
    let read: Node = serde_json::from_value(stored).unwrap();
    bed.api.objects(|all| all.edit("nodes", "win-1", |n| n["metadata"]["labels"] = json!({"rack": "7"})));
    super::maintenance::withdraw(&bed.scope_with(&json!({})), &read).await.unwrap();
    let left = bed.api.objects(|all| all.get("nodes", "win-1").cloned()).unwrap();
    assert!(
        left["metadata"]["annotations"][key::MAINTENANCE_STATE].is_null() && left["metadata"]["labels"]["rack"] == "7",
        "{left}"
    );
}
