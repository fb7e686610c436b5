//! Tests of the status of an instance that is being reconciled.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::super::test_bed::{Bed, INSTANCE, LONG_AGO, operation};
use super::*;
use crate::fake_api::failure;

fn grant(id: &str) -> Value {
    json!({"id": id, "type": "Remove", "grantedTime": LONG_AGO})
}

#[tokio::test]
async fn no_step_begins_for_a_revoked_removal() {
    let bed = Bed::new().await;
    let leaving = json!({"since": LONG_AGO, "why": "it is no longer listed"});
    let marked = json!({"leaving": leaving, "grant": grant("g-1")});
    let deleted = json!({"deletionTimestamp": LONG_AGO});
    for (about, step, metadata, spec, goes_on) in [
        ("only another field has changed", "Cordon", json!({}), marked.clone(), true),
        ("the mark was taken away", "Cordon", json!({}), json!({"grant": grant("g-1")}), false),
        ("the grant was taken away", "Drain", json!({}), json!({"leaving": leaving}), false),
        ("it has another grant", "Drain", json!({}), json!({"leaving": leaving, "grant": grant("g-2")}), false),
        ("a user deletes it, and its turn was taken back", "Drain", deleted.clone(), json!({}), false),
        ("it is being deleted in its turn", "Drain", deleted.clone(), json!({"grant": grant("g-1")}), true),
        ("it is being deconfigured", "Deconfigure", deleted, json!({}), true),
    ] {
        let status = json!({"currentVersion": "1-a", "operation": operation("g-1", "Remove", step, &json!({}))});
        let instance = bed.instance(&json!({}), &marked, &status);
        let changed = bed.instance(&metadata, &spec, &status);
        let patch = format!("{INSTANCE}/status");
        let conflict = || failure(409, "Conflict", "it has changed", Value::Null);
        bed.api.forget("PATCH", &patch).on("PATCH", &patch, 409, conflict()).on("PATCH", &patch, 200, json!(changed));
        bed.api.forget("GET", INSTANCE).on("GET", INSTANCE, 200, json!(changed));

        let mut scope = bed.scope(instance.clone());
        let begun = scope.enter_step(step.into(), "moving pods away").await;
        assert_eq!(begun.is_ok(), goes_on, "{about}: {begun:?}");
        assert!(goes_on || matches!(begun, Err(StepError::Outdated)), "{about}: {begun:?}");

        // The revocation itself can always be stored.
        bed.api.forget("PATCH", &patch).on("PATCH", &patch, 409, conflict()).on("PATCH", &patch, 200, json!(changed));
        let mut scope = bed.scope(instance);
        if let Some(operation) = &mut scope.status.record().operation {
            operation.type_ = GrantType::Update;
        }
        scope.save().await.unwrap();
    }
}

/// An instance is gone after a removal, or because a user has deleted it: that is not an error.
#[tokio::test]
async fn a_deleted_instance_ends_the_reconcile_without_an_error() {
    let bed = Bed::new().await;
    let instance = bed.instance(&json!({}), &json!({}), &json!({}));
    let patch = format!("{INSTANCE}/status");
    bed.api.forget("PATCH", &patch).fail("PATCH", &patch, 404, "NotFound", "it is gone", Value::Null);
    let action = Box::pin(super::super::reconcile(instance.into(), bed.cx.clone())).await.unwrap();
    assert_eq!(action, kube::runtime::controller::Action::requeue(super::super::OUTDATED_RETRY));
    assert_eq!(bed.api.calls("PATCH", &patch).len(), 1, "it was not tried");
}

/// Steps often span several reconciles.
#[tokio::test]
async fn the_duration_of_a_step_spans_reconciles() {
    let bed = Bed::new().await;
    let begun = (Timestamp::now() - std::time::Duration::from_mins(1)).to_string();
    let operation = operation("g-1", "Update", "Drain", &json!({"startTime": begun, "stepStartTime": begun}));
    let mut scope = bed.scope_with(&json!({"operation": operation}));
    let _ = scope.enter_step(Step::Configure, "").await;
    scope.end_operation();
    let text = bed.cx.process.metrics.render();
    let sum = |step: &str| -> f64 {
        let sample = format!("windows_node_pool_step_duration_seconds_sum{{step=\"{step}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&sample)).unwrap().parse().unwrap()
    };
    assert!((60.0..70.0).contains(&sum("Drain")), "{text}");
    assert!((0.0..10.0).contains(&sum("Configure")), "{text}");
}

#[tokio::test]
async fn an_attempt_that_begins_clears_its_retry_time() {
    let bed = Bed::new().await;
    let failures = json!({"count": 2, "nextRetryTime": LONG_AGO, "lastReason": "x", "lastMessage": "y"});
    for (type_, status) in
        [("Provision", json!({"failures": failures})), ("RotateKey", json!({"keyRotation": {"failures": failures}}))]
    {
        let mut scope = bed.scope_with(&status);
        let grant = json!({"id": "g-1", "type": type_, "grantedTime": LONG_AGO});
        scope.start_operation(&serde_json::from_value(grant).unwrap(), Step::Connect);
        let _ = scope.enter_step(Step::Connect, "").await;
        let stored = serde_json::to_value(&*scope.status).unwrap().to_string();
        assert!(stored.contains("\"count\":2") && !stored.contains("nextRetryTime"), "{stored}");
    }
}

/// The operator's client sends a limited number of requests at once. A request of `work` that is not polled keeps its slot, which the write of the
/// status may wait for.
#[tokio::test]
async fn work_goes_on_while_its_step_is_stored() {
    let bed = Bed::new().await;
    let patch = format!("{INSTANCE}/status");
    let operation = operation("g-1", "Provision", "Connect", &json!({}));
    let instance = bed.instance(&json!({}), &json!({}), &json!({"operation": operation}));
    let stored = bed.api.forget("PATCH", &patch).hold("PATCH", &patch, json!(instance));
    let mut scope = bed.scope(instance);
    scope.announce_step(Step::Certify, "requesting certificates");
    let api = bed.api.clone();
    let work = async move {
        while api.calls("PATCH", &patch).is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        stored.notify_one();
        7
    };
    let done = tokio::time::timeout(std::time::Duration::from_secs(30), scope.run_showing_step(work)).await;
    assert_eq!(done.expect("the work waits for the status, and the status for the work").unwrap(), 7);
}

/// A used grant may be restored from a backup without its status.
#[tokio::test]
async fn no_host_of_a_paused_pool_joins() {
    let granted = json!({"grant": {"id": "join-1", "type": "Provision", "grantedTime": LONG_AGO}});
    let in_an_hour = Timestamp::now().checked_add(SignedDuration::from_hours(1)).unwrap();
    let rollouts = [
        ("not paused", json!({}), (true, false)),
        ("paused", json!({"paused": true}), (false, false)),
        ("paused for an hour", json!({"pausedUntil": in_an_hour}), (false, true)),
        ("was paused", json!({"pausedUntil": LONG_AGO}), (true, false)),
    ];
    let bed = Bed::new().await;
    for (about, rollout, expected) in rollouts {
        let mut scope = bed.scope(bed.instance(&json!({}), &granted, &json!({})));
        Arc::make_mut(&mut scope.pool).spec.rollout = serde_json::from_value(rollout).unwrap();
        let grant = scope.instance.spec.grant.clone().unwrap();
        assert_eq!((scope.may_start(&grant), scope.until_pause_ends().is_some()), expected, "{about}");
        let update = Grant { type_: GrantType::Update, ..grant };
        assert!(scope.may_start(&update), "{about}: its pool revokes it");
    }
}
