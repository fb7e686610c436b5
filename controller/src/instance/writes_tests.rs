//! Tests of the API writes of an operation: the operator's own, without those of the pool controller and the certificate approver.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::runtime::controller::Action;
use serde_json::json;

use super::{executor_tests::World, reconcile_instance};
use crate::fake_api::Call;

/// Returns the writes after the first `before` calls, as "METHOD resource step". Only writes of a status have a step.
fn writes(world: &World, before: usize) -> Vec<String> {
    let calls = world.bed.api.all_calls().split_off(before);
    let step = |call: &Call| call.body["status"]["operation"]["step"].as_str().unwrap_or_default().to_owned();
    let resource = |path: &str| path.split('/').filter(|part| PLURALS.contains(part)).collect::<Vec<_>>().join("/");
    let written = calls.iter().filter(|c| c.method != "GET");
    written.map(|c| format!("{} {} {}", c.method, resource(&c.path), step(c)).trim_end().to_owned()).collect()
}

const PLURALS: [&str; 6] = ["windowsinstances", "status", "nodes", "certificatesigningrequests", "approval", "events"];

#[tokio::test]
async fn a_join_and_a_change_write_what_must_be_remembered() {
    let mut world = World::new().await;
    let version = world.begin_join();
    world.works_until("it joins", |w| w.follows(&version)).await;
    let request = ["POST certificatesigningrequests", "PATCH certificatesigningrequests/approval"];
    let mut expected = vec![
        // Includes the host key, before the host is changed.
        "PATCH windowsinstances/status Connect",
        "PATCH windowsinstances/status Configure",
        request[0],
        request[0],
        request[1],
        request[1],
        "PATCH nodes",
        "PATCH windowsinstances/status",
        "POST events",
    ];
    assert_eq!(sorted(writes(&world, 0)), sorted(expected.drain(..).map(str::to_owned).collect()));

    let before = world.bed.api.all_calls().len();
    let version = world.begin_update("Restart");
    world.works_until("it is updated", |w| w.follows(&version)).await;
    let expected = [
        "PATCH windowsinstances/status Configure",
        // Annotation with the version that wicd must follow.
        "PATCH nodes",
        "PATCH windowsinstances/status Register",
        "PATCH windowsinstances/status",
        "POST events",
    ];
    assert_eq!(sorted(writes(&world, before)), sorted(expected.map(str::to_owned).to_vec()));
}

#[tokio::test]
async fn a_registering_host_is_left_alone_unless_the_operator_restarts() {
    for (about, restarts, connections) in [("it goes on", false, 1), ("it restarts", true, 2)] {
        let mut world = World::new().await;
        let version = world.begin_join();
        world.works_until("kubelet starts", |w| w.bed.host.kubelet_starts() > 0).await;
        assert_eq!(world.operation()["step"], "Configure", "{about}: that it registers is not stored yet");
        if restarts {
            world.bed.restart_operator();
        }
        world.works_until("it joins", |w| w.follows(&version)).await;
        assert_eq!(world.bed.host.stats().connections, connections, "{about}");
        assert_eq!(world.bed.host.kubelet_starts(), 1, "{about}");
    }
}

#[tokio::test]
async fn a_new_instance_says_what_it_waits_for_once_that_lasts() {
    let mut world = World::new().await;
    let cx = world.bed.cx.clone();
    for (created, expected) in [
        (Timestamp::now().to_string(), &[][..]),
        ("2026-01-01T00:00:00Z".to_owned(), &["PATCH windowsinstances/status"]),
    ] {
        world.edit(|i| i["metadata"]["creationTimestamp"] = json!(created));
        let before = world.bed.api.all_calls().len();
        let instance = Arc::new(world.bed.sync().unwrap());
        let action = Box::pin(reconcile_instance(&instance, &cx)).await.unwrap();
        assert_eq!(writes(&world, before), expected, "{created}: {action:?}");
        assert_eq!(
            action == Action::await_change(),
            !expected.is_empty(),
            "it is reconciled again by itself: {action:?}"
        );
    }
}

/// A renewal also costs the approval, which `csr::approver` counts, and the request, which is wicd's own.
#[tokio::test]
async fn a_renewal_of_wicds_certificate_costs_one_write_of_a_status() {
    let (mut world, _) = World::joined().await;
    let cx = world.bed.cx.clone();
    let reconcile = |world: &mut World| {
        let instance = Arc::new(world.bed.sync().unwrap());
        let cx = cx.clone();
        async move { Box::pin(reconcile_instance(&instance, &cx)).await.unwrap() }
    };
    reconcile(&mut world).await;
    reconcile(&mut world).await;
    let before = world.bed.api.all_calls().len();
    reconcile(&mut world).await;
    assert_eq!(writes(&world, before), [""; 0], "it is idle");

    let request = serde_json::from_value(json!({
        "metadata": {},
        "spec": {"username": "system:wicd-node:win-1", "expirationSeconds": 432_000, "request": "", "signerName": "x"},
    }));
    let in_four_days = Timestamp::now().checked_add(SignedDuration::from_hours(96)).unwrap();
    cx.wicd.renewals.note(&request.unwrap(), in_four_days);
    for _ in 0..3 {
        reconcile(&mut world).await;
    }
    assert_eq!(writes(&world, before), ["PATCH windowsinstances/status"]);
    let stored = cx.wicd.renewals.end("win-1").map(api::Time::from);
    assert_eq!(world.status()["wicdCertificateExpires"], json!(stored));
    assert_eq!(world.bed.host.stats().connections, 1, "the join's");
}

/// Sorts requests, because concurrent ones have no order.
fn sorted(mut list: Vec<String>) -> Vec<String> {
    list.sort();
    list
}
