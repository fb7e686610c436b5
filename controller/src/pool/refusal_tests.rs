//! Tests of the status of a pool when the API server refuses what the operator stores for it.

use std::sync::Arc;

use api::{Host, Inventory, WindowsNodePool, WindowsNodePoolSpec};
use serde_json::{Value, json};

use super::{PoolContext, reconcile};
use crate::instance::test_bed::Bed;

/// Returns the conditions of a pool with one host after a failed reconcile, in which ConfigMap writes get this status code.
async fn conditions(code: u16, reason: &str) -> Value {
    let mut bed = Bed::with_objects().await;
    let role = json!({"metadata": {"name": "windows-node-pools-wicd-services", "namespace": "operator"}});
    bed.api.objects(|o| o.put("roles", role));
    bed.sync();
    let host = Host { name: "w1".into(), address: "10.0.0.1".into(), ..Host::default() };
    let inventory = Inventory { hosts: Some(vec![host]), ..Inventory::default() };
    let mut pool = WindowsNodePool::new("p", WindowsNodePoolSpec { inventory, ..WindowsNodePoolSpec::default() });
    pool.metadata.uid = Some("p-1".into());
    bed.api.objects(|o| o.put("windowsnodepools", json!(pool)));
    let path = "/api/v1/namespaces/operator/configmaps";
    bed.api.fail("POST", path, code, reason, "exceeded quota: namespace-limits", Value::Null);

    let done = reconcile(Arc::new(pool), Arc::new(PoolContext::new(bed.cx.clone(), None))).await;
    assert!(done.is_err(), "it is not tried again: {done:?}");
    bed.api.objects(|o| o.get("windowsnodepools", "p").unwrap()["status"]["conditions"].clone())
}

#[tokio::test]
async fn a_request_that_is_refused_is_in_the_status_and_an_outage_is_not() {
    let refused = conditions(403, "Forbidden").await;
    let of = |kind: &str| refused.as_array().unwrap().iter().find(|c| c["type"] == kind).cloned().unwrap_or_default();
    for (kind, status) in [("Ready", "False"), ("Stalled", "True")] {
        let condition = of(kind);
        assert_eq!((&condition["status"], &condition["reason"]), (&json!(status), &json!("ApiError")), "{refused}");
        assert!(condition["message"].to_string().contains("exceeded quota: namespace-limits"), "{condition}");
    }
    assert_eq!(conditions(500, "InternalError").await, Value::Null);
}
