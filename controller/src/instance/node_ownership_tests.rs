//! Tests of the ownership of Nodes.

use api::{Grant, WindowsInstanceStatus};
use serde_json::{Value, json};

use super::super::{
    remove, sync_idle_node,
    test_bed::{Bed, INSTANCE, NODE},
};
use super::*;

/// Returns the status of a node that is reached at another address than its own, as behind NAT.
fn status(bed: &Bed) -> Value {
    json!({
        "currentVersion": "1-a",
        "nodeRef": {"name": "win-1", "uid": "n-1"},
        "provenAddress": bed.host.address().to_string(),
        "provenAt": {"address": bed.host.address().to_string(), "port": bed.host.port()},
        "facts": {
            "hostname": "WIN-1", "machineId": "m-1", "osBuild": "", "osName": "", "bootId": "1",
            "nodeIp": "10.0.0.7", "addresses": ["10.0.0.7"], "clockSkewSeconds": 0,
        },
    })
}

fn uid(status: &WindowsInstanceStatus) -> Option<&str> {
    status.node_ref.as_ref().map(|r| r.uid.as_str())
}

#[tokio::test]
async fn a_recreated_node_belongs_to_its_host_at_any_address() {
    for was_seen_gone in [true, false] {
        let mut bed = Bed::new().await;
        let instance = bed.instance(&json!({}), &json!({}), &status(&bed));
        let mut scope = bed.scope(instance);
        if was_seen_gone {
            bed.no_node();
            assert!(matches!(scope.find_node().await.unwrap(), Found::Gone));
            assert!(
                scope.status.node_ref.is_none() && scope.status.holds_node_name,
                "the recorded Node does not exist"
            );
        }
        bed.node("n-2", "10.0.0.7", &json!({}));
        let mut idle = bed.scope(scope.instance.clone());
        sync_idle_node(&mut idle).await.unwrap();
        assert_eq!(uid(&idle.status), Some("n-2"), "{:?}", idle.status.conditions);
        assert!(matches!(scope.find_node_to_empty().await.unwrap(), Found::Node(_)));
        assert_eq!(uid(&scope.status), Some("n-2"));
    }
}

/// Pods may run on a host whose Node is unproven, and could not be evicted.
#[tokio::test]
async fn no_host_is_cleaned_while_its_node_is_unproven() {
    let mut bed = Bed::new().await;
    let leaving = json!({"since": "2026-01-01T00:00:00Z", "why": "it is no longer listed"});
    let granted = json!({"id": "g-1", "type": "Remove", "grantedTime": "2026-01-01T00:00:00Z"});
    let instance = bed.instance(
        &json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        &json!({"leaving": leaving, "grant": granted}),
        &status(&bed),
    );
    let grant: Grant = instance.spec.grant.clone().unwrap();
    for address in ["10.9.9.9", "10.0.0.7"] {
        bed.node("n-2", address, &json!({}));
        let mut scope = bed.scope(instance.clone());
        if address == "10.9.9.9" {
            let error = remove::run(&mut scope, &grant).await.unwrap_err();
            assert!(matches!(error, StepError::NodeUnproven { .. }), "{error}");
            assert_eq!(bed.disturbed(), 0, "{:?}", bed.api.all_calls());
        } else {
            // The attempt to cordon the Node shows that the removal proceeds.
            bed.api.forget("PATCH", NODE).fail("PATCH", NODE, 403, "Forbidden", "no", Value::Null);
            let error = remove::run(&mut scope, &grant).await.unwrap_err();
            assert!(matches!(error, StepError::Drain(_)), "{error}");
            assert!(bed.disturbed() > 0, "its own Node was not cordoned");
        }
        assert_eq!(bed.host.stats().connections, 0, "it was taken for a host without pods");
        assert_eq!(bed.api.calls("DELETE", INSTANCE), []);
    }
    // For a host that never was a node, an unproven Node does not matter.
    let mut joins = status(&bed);
    joins.as_object_mut().unwrap().retain(|k, _| k.starts_with("proven"));
    bed.node("n-2", "10.9.9.9", &json!({}));
    let mut scope = bed.scope_with(&joins);
    assert!(matches!(scope.find_node_to_empty().await.unwrap(), Found::None));
}
