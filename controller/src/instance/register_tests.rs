//! Tests of the registration of a Node, and of its failures.

use serde_json::json;

use super::super::test_bed::{Bed, NODE, operation};
use super::*;
use wnp_core::operation::update::{AfterFailure, Blame, Failure, after_failure};

/// Returns the consequence of this error for an update that has changed the host.
fn follows(error: &StepError) -> AfterFailure {
    after_failure(Failure {
        type_: api::GrantType::Update,
        irrevocable: true,
        rolling_back: false,
        blame: error.blame(),
        is_api_failure: error.is_api_failure(),
        is_final: error.is_final(),
        attempts: 0,
    })
}

fn facts() -> serde_json::Value {
    json!({"hostname": "win-1", "bootId": "1", "machineId": "m", "osBuild": "10.0.20348", "osName": "Windows"})
}

#[tokio::test]
async fn an_unreachable_host_is_not_blamed_on_its_version() {
    let mut bed = Bed::new().await;
    let address = bed.host.address().to_string();
    bed.node("n-1", &address, &json!({}));
    let more = json!({"changed": true, "applied": true, "fromVersion": "1-a", "toVersion": "2-b"});
    let operation = operation("g-1", "Update", "Register", &more);
    let status = json!({"currentVersion": "1-a", "nodeRef": {"name": "win-1", "uid": "n-1"}, "operation": operation});
    let wanted = || DesiredJoin {
        cluster_id: String::new(),
        node_name: "win-1".into(),
        version: "2-b".into(),
        payload: String::new(),
        configs: String::new(),
        wicd: String::new(),
        restarts: false,
        moves: false,
        leaves_boot: None,
    };
    let instance = bed.instance(&json!({}), &json!({}), &status);
    let node = bed.cx.node("win-1").unwrap();

    let mut scope = bed.scope(instance.clone());
    let error = register(&mut scope, Some(&node), &wanted()).await.unwrap_err();
    assert!(matches!(error, StepError::NotRegistered(_)), "{error}");
    assert_eq!(follows(&error), AfterFailure::TakeBack, "a host that can be reached says something of its version");

    // The cached Node is out of date.
    bed.api.forget("GET", NODE).on("GET", NODE, 200, json!({"metadata": {"name": "win-1", "resourceVersion": "8"}}));
    let mut scope = bed.scope(instance.clone());
    let action = register(&mut scope, Some(&node), &wanted()).await.unwrap();
    assert_eq!(action, Action::requeue(REGISTER_POLL), "a watch that is behind says nothing of the host");
    bed.node("n-1", &address, &json!({}));

    bed.host.power_off();
    let mut scope = bed.scope(instance);
    let error = register(&mut scope, Some(&node), &wanted()).await.unwrap_err();
    assert!(error.is_unreachable() && error.blame() == Blame::Host, "{error:?}");
    assert_eq!(follows(&error), AfterFailure::Retry { attempts: 0 });
    // A host that is back is verified first, and its services get the full timeout again.
    assert_eq!(scope.step(), Step::Connect);
    assert!(scope.in_step() < Duration::from_mins(1), "{:?}", scope.in_step());
}

/// The pool may want another version while a host joins. Waiting for the Node is then useless, because the old version is in place.
#[tokio::test]
async fn a_host_that_joins_is_given_the_version_that_its_pool_wants_meanwhile() {
    let bed = Bed::new().await;
    for (type_, placed, expected) in [
        ("Provision", Some("1-a"), false),
        ("Provision", Some("2-b"), true),
        // An earlier operator did not record the version.
        ("Provision", None, true),
        ("Update", Some("1-a"), true),
    ] {
        let operation = operation("g-1", type_, "Register", &json!({"applied": true, "toVersion": placed}));
        let scope = bed.scope_with(&json!({"facts": facts(), "operation": operation}));
        assert_eq!(scope.is_registering("2-b"), expected, "{type_} {placed:?}");
        if let Some(placed) = placed {
            assert_eq!(scope.version_for_wicd(), Some(placed), "never a version whose files are not in place");
        }
    }
}

/// A Ready node may already have pods, and must not be changed while they run.
#[tokio::test]
async fn a_host_that_is_a_ready_node_ends_its_join_with_the_version_in_place() {
    let mut bed = Bed::new().await;
    let address = bed.host.address().to_string();
    for (step, ready, expected) in [
        ("Register", Some("True"), "1-a"),
        ("Register", Some("False"), "2-b"),
        ("Configure", Some("True"), "2-b"),
        ("Register", None, "2-b"),
    ] {
        bed.restart_operator();
        bed.no_node();
        if let Some(ready) = ready {
            bed.node_that_is(ready, "n-1", &address, &json!({}));
        }
        let operation = operation("g-1", "Provision", step, &json!({"applied": true, "toVersion": "1-a"}));
        let status = json!({"facts": facts(), "provenAddress": address, "holdsNodeName": true, "operation": operation});
        let desired = json!({"desired": {"version": "2-b"}});
        let mut scope = bed.scope(bed.instance(&json!({}), &desired, &status));
        assert_eq!(scope.version_to_join().unwrap(), expected, "{step}, Ready is {ready:?}");
    }
}

/// A cloud controller manager sets the provider ID in its own format.
#[tokio::test]
async fn the_provider_id_of_a_machine_is_left_to_a_cloud_controller_manager() {
    let mut bed = Bed::new().await;
    let address = bed.host.address().to_string();
    bed.node("n-1", &address, &json!({}));
    let node = bed.cx.node("win-1").unwrap();
    let of_machine = json!({"origin": {"source": "s", "machine": "ns/m", "providerID": "bare:///m"}});
    for (origin, cloud, expected) in [
        (&of_machine, json!(null), Some("bare:///m")),
        (&of_machine, json!("None"), Some("bare:///m")),
        (&of_machine, json!("External"), None),
        (&json!({}), json!(null), None),
    ] {
        let mut scope = bed.scope(bed.instance(&json!({}), origin, &json!({})));
        let template = json!({"spec": {"kubelet": {"cloudProvider": cloud}}});
        Arc::make_mut(&mut scope.pool).spec.template = serde_json::from_value(template).unwrap();
        assert_eq!(wanted_node(&scope, &node).await.provider_id.as_deref(), expected, "{cloud}");
    }
}
