//! Tests of work on a host while the legacy operator also runs in the cluster.

use api::GrantType;
use kube::runtime::controller::Action;
use serde_json::{Value, json};
use testbed::sim::Fault;

use super::{
    executor_tests::{World, is_cordoned},
    reconcile_instance,
};

const EVICTION: &str = "/api/v1/namespaces/shop/pods/cart/eviction";
const LONG_AGO: &str = "2026-01-01T00:00:00Z";

/// Reconciles once, without the wait after a failure. Returns the action, and the number of new connections.
async fn reconcile(world: &mut World) -> (Action, u64) {
    world.edit(|i| {
        if let Some(failures) = i["status"]["failures"].as_object_mut() {
            failures.insert("nextRetryTime".into(), json!(LONG_AGO));
        }
    });
    let before = world.bed.host.stats().connections;
    let instance = world.bed.sync().unwrap().into();
    let action = Box::pin(reconcile_instance(&instance, &world.bed.cx)).await.unwrap();
    (action, world.bed.host.stats().connections - before)
}

fn operation(world: &World) -> Value {
    world.instance().unwrap()["status"]["operation"].clone()
}

fn has_failed(world: &World) -> bool {
    world.instance().is_some_and(|i| i["status"]["failures"]["count"].is_number())
}

/// The grant of a failed join remains, because its refused pool revokes nothing.
#[tokio::test]
async fn a_failed_join_is_not_begun_again() {
    let mut world = World::new().await;
    let version = world.publish(110);
    world.bed.host.fault(Fault::Refuse);
    world.grant("join-1", GrantType::Provision, &version, &json!({}));
    world.works_until("it fails", has_failed).await;
    world.bed.cx.other_operator.set(true);
    world.bed.host.mend();
    for _ in 0..2 {
        assert_eq!(reconcile(&mut world).await, (Action::await_change(), 0));
    }
    world.bed.cx.other_operator.set(false);
    world.works_until("it joins", |w| w.follows(&version)).await;
}

#[tokio::test]
async fn a_host_that_has_a_grant_waits_and_says_for_what() {
    let mut world = World::new().await;
    let version = world.publish(110);
    world.grant("join-1", GrantType::Provision, &version, &json!({}));
    world.bed.cx.other_operator.set(true);
    assert_eq!(reconcile(&mut world).await, (Action::await_change(), 0));
    let conditions = world.instance().unwrap()["status"]["conditions"].to_string();
    assert!(conditions.contains("waits until no other operator is active in the cluster"), "{conditions}");
}

#[tokio::test]
async fn no_kind_of_operation_is_begun_on_a_node() {
    for (type_, more) in [
        (GrantType::Stage, json!({})),
        (GrantType::Update, json!({"disruption": "None"})),
        (GrantType::Update, json!({"disruption": "Drain"})),
        (GrantType::Reboot, json!({})),
        (GrantType::Repair, json!({})),
        (GrantType::RotateKey, json!({})),
        (GrantType::PullImages, json!({})),
        (GrantType::Remove, json!({})),
    ] {
        let (mut world, _) = World::joined().await;
        let version = world.publish(120);
        let mut more = more;
        more["version"] = json!(version);
        world.bed.cx.other_operator.set(true);
        if type_ == GrantType::Remove {
            world.take_out();
        } else {
            world.grant("g-1", type_, &version, &more);
        }
        let (writes, node) = (world.bed.disturbed(), world.node());
        assert_eq!(reconcile(&mut world).await.1, 0, "{type_:?}");
        assert_eq!((world.bed.disturbed(), world.node()), (writes, node), "{type_:?}");
        assert_eq!(operation(&world), Value::Null, "{type_:?}");
    }
}

/// A node that is being drained is not changed yet.
#[tokio::test]
async fn a_drain_is_given_up_and_a_change_is_completed() {
    for (about, changed) in [("only cordoned", false), ("changed", true)] {
        let (mut world, old) = World::joined().await;
        world.run_pod("cart");
        let starts = world.bed.host.kubelet_starts();
        let version = world.publish(120);
        world.grant("u-1", GrantType::Update, &version, &json!({"version": version, "disruption": "Drain"}));
        let has_begun = |w: &World| {
            let operation = operation(w);
            if changed { operation["changed"] == true } else { is_cordoned(&w.node().unwrap()) }
        };
        if changed {
            world.bed.host.fault(Fault::NeedsReboot);
        } else {
            world.bed.api.fail("POST", EVICTION, 429, "TooManyRequests", "its budget does not allow it", Value::Null);
        }
        world.works_until(about, has_begun).await;
        world.bed.cx.other_operator.set(true);
        let expected = if changed { &version } else { &old };
        world.works_until(about, |w| w.follows(expected) && operation(w).is_null()).await;
        assert_eq!(world.bed.host.kubelet_starts() != starts, changed, "{about}");
    }
}
