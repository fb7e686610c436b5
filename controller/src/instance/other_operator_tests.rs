//! Tests of work on a host while the legacy operator also runs in the cluster.

use api::GrantType;
use kube::runtime::controller::Action;
use serde_json::{Value, json};
use testbed::sim::Fault;

use super::{
    executor_tests::{World, is_cordoned},
    reconcile_instance,
    test_bed::LONG_AGO,
};

const EVICTION: &str = "/api/v1/namespaces/shop/pods/cart/eviction";

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

/// The grant of a failed join remains, because no pool is reconciled while the legacy operator runs, and so none revokes its grants.
#[tokio::test]
async fn a_failed_join_is_not_begun_again() {
    let mut world = World::new().await;
    world.bed.host.fault(Fault::Refuse);
    let version = world.begin_join();
    world.works_until("it fails", World::has_failed).await;
    world.bed.cx.other_operator.set(true);
    world.bed.host.mend();
    for _ in 0..2 {
        assert_eq!(reconcile(&mut world).await, (Action::await_change(), 0));
    }
    world.bed.cx.other_operator.set(false);
    world.works_until("it joins", |w| w.follows(&version)).await;
}

#[tokio::test]
async fn a_granted_host_reports_that_it_waits_for_the_other_operator() {
    let mut world = World::new().await;
    world.begin_join();
    world.bed.cx.other_operator.set(true);
    assert_eq!(reconcile(&mut world).await, (Action::await_change(), 0));
    let conditions = world.status()["conditions"].to_string();
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
        assert_eq!(world.operation(), Value::Null, "{type_:?}");
    }
}

/// A host whose node is only being drained is not changed yet, so its operation can be aborted.
#[tokio::test]
async fn a_drain_is_aborted_and_a_begun_change_is_completed() {
    for (about, changed) in [("only cordoned", false), ("changed", true)] {
        let (mut world, old) = World::joined().await;
        world.run_pod("cart");
        let starts = world.bed.host.kubelet_starts();
        let version = world.begin_update("Drain");
        let has_begun = |w: &World| {
            let operation = w.operation();
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
        world.works_until(about, |w| w.follows(expected) && w.operation().is_null()).await;
        assert_eq!(world.bed.host.kubelet_starts() != starts, changed, "{about}");
    }
}
