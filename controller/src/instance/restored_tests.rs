//! Tests of hosts whose status was lost.

use api::{
    GrantType,
    host::{Marker, path},
};
use serde_json::{Value, json};

use super::super::{
    reconcile_instance,
    test_bed::{Bed, CLUSTER, INSTANCE, NODE},
};
use super::*;
use crate::runtime::ssh_slots::SshSlot;

/// Returns a test bed whose host reports to be the node `win-1`, and the spec of a leaving instance.
async fn bed() -> (Bed, Value) {
    let bed = Bed::new().await;
    let marker =
        Marker { cluster_id: CLUSTER.into(), node_name: "win-1".into(), version: "1-a".into(), ..Marker::default() };
    let state = bed.host.drive_c().join(path::STATE.trim_start_matches(r"C:\").replace('\\', "/"));
    std::fs::create_dir_all(state.parent().unwrap()).unwrap();
    std::fs::write(state, serde_json::to_vec(&marker).unwrap()).unwrap();
    let grant = json!({"id": "g-1", "type": GrantType::Remove.as_str(), "grantedTime": "2026-01-01T00:00:00Z"});
    let leaving = json!({"since": "2026-01-01T00:00:00Z", "why": "it is no longer listed"});
    (bed, json!({"leaving": leaving, "grant": grant}))
}

/// The author of a list can give a malicious host the name of any Node, and the host can report anything.
#[tokio::test]
async fn no_node_is_drained_because_another_host_claims_it() {
    let (mut bed, spec) = bed().await;
    bed.node("n-1", "10.9.9.9", &json!({key::DESIRED_VERSION: "1-a", key::VERSION: "1-a"}));
    let instance = bed.instance(&json!({}), &spec, &json!({}));
    let mut scope = bed.scope(instance.clone());
    assert!(is_lost(&scope));
    let error = recover(&mut scope).await.unwrap_err();
    assert!(matches!(error, StepError::NodeUnproven { .. }), "{error}");
    assert!(error.to_string().contains(key::ABANDON), "it does not say what to do: {error}");
    assert_eq!((&scope.status.node_ref, &scope.status.current_version), (&None, &None));
    assert_eq!(bed.host.stats().processes, 0, "the host was asked");

    // The host has a grant, and that Node still stays unchanged.
    Box::pin(reconcile_instance(&instance.clone().into(), &bed.cx)).await.unwrap();
    assert_eq!(bed.disturbed(), 0, "{:?}", bed.api.all_calls());
    assert_eq!(bed.api.calls("DELETE", INSTANCE), [], "it was released");
}

#[tokio::test]
async fn a_host_whose_status_was_lost_is_adopted_as_its_node() {
    let (mut bed, spec) = bed().await;
    let address = bed.host.address().to_string();
    bed.node("n-1", &address, &json!({key::DESIRED_VERSION: "1-a", key::VERSION: "1-b"}));
    let instance = bed.instance(&json!({}), &spec, &json!({}));
    let mut scope = bed.scope(instance.clone());
    assert_eq!(recover(&mut scope).await.unwrap(), None);
    assert_eq!(scope.status.node_ref.as_ref().unwrap().uid, "n-1");
    assert_eq!(scope.status.current_version.as_deref(), Some("1-b"));

    // The Node was deleted since it was last seen: its pods may still exist.
    bed.no_node();
    let mut scope = bed.scope(instance.clone());
    assert_eq!(recover(&mut scope).await.unwrap(), None);
    assert!(scope.status.holds_node_name && scope.status.node_ref.is_none() && scope.status.host_key.is_some());
    assert_eq!(scope.status.current_version.as_deref(), Some("1-a"));

    // Without a free slot, the host is not contacted.
    let places: Vec<SshSlot> = std::iter::from_fn(|| bed.cx.hosts.looks.take("p")).collect();
    let (before, asked) = (bed.host.stats().connections, bed.api.calls("GET", NODE).len());
    let mut scope = bed.scope(instance);
    assert!(recover(&mut scope).await.unwrap().is_some());
    assert_eq!((bed.host.stats().connections, bed.api.calls("GET", NODE).len()), (before, asked));
    drop(places);
}

/// The first join of another operator's node may end after the host key was pinned: by a timeout, a lost connection, or a crash.
#[tokio::test]
async fn no_host_is_cleaned_without_a_drain_because_its_node_is_not_recorded() {
    let (mut bed, spec) = bed().await;
    let address = bed.host.address().to_string();
    bed.node("n-1", &address, &json!({key::DESIRED_VERSION: "10.19.0-a", key::VERSION: "10.19.0-a"}));
    std::fs::remove_dir_all(bed.host.drive_c().join("k/wicd")).unwrap();
    let pinned = bed.pinned_key();
    for (about, status) in [
        ("it was reached", json!({"hostKey": pinned, "provenAddress": address})),
        ("its key is pinned, and no more", json!({"hostKey": pinned})),
    ] {
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let instance = bed.instance(&deleted, &spec, &status);
        bed.api.forget("PATCH", NODE).fail("PATCH", NODE, 403, "Forbidden", "no", Value::Null);
        let mut scope = bed.scope(instance.clone());
        let grant = scope.instance.spec.grant.clone().unwrap();
        let error = super::super::remove::run(&mut scope, &grant).await.unwrap_err();
        let (cordons, holds) = (matches!(error, StepError::Drain(_)), matches!(error, StepError::NodeUnproven { .. }));
        assert!(if status.get("provenAddress").is_some() { cordons } else { holds }, "{about}: {error}");
        assert_eq!(bed.host.stats().processes, 0, "{about}: the host was changed");
        // The lost state is recovered first: a Ready node needs a slot in the disruption budget.
        assert!(is_lost(&bed.scope(instance.clone())), "{about}");
    }
    let instance = bed.instance(&json!({}), &spec, &json!({"hostKey": pinned}));
    let mut scope = bed.scope(instance);
    assert_eq!(recover(&mut scope).await.unwrap(), None);
    assert_eq!(scope.status.current_version.as_deref(), Some("10.19.0-a"));
    assert_eq!(scope.status.node_ref.as_ref().map(|n| n.uid.as_str()), Some("n-1"));
}

/// The grant was given before the host was known to be a Ready node.
#[tokio::test]
async fn no_removal_begins_with_a_grant_from_before_the_host_was_known() {
    let (mut bed, spec) = bed().await;
    let address = bed.host.address().to_string();
    bed.node("n-1", &address, &json!({key::DESIRED_VERSION: "1-a", key::VERSION: "1-a"}));
    let instance = bed.instance(&json!({}), &spec, &json!({}));
    Box::pin(reconcile_instance(&instance.clone().into(), &bed.cx)).await.unwrap();
    assert_eq!(bed.disturbed(), 0, "{:?}", bed.api.all_calls());
    let patches = bed.api.calls("PATCH", &format!("{INSTANCE}/status"));
    let stored = &patches.last().unwrap().body["status"];
    assert_eq!((&stored["lastOperation"], &stored["currentVersion"]), (&json!("g-1"), &json!("1-a")), "{stored}");
}
