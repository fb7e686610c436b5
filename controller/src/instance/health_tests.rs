//! Tests of the conditions of a host between operations.

use api::{WindowsInstance, conditions::find};
use serde_json::{Value, json};

use super::{
    super::test_bed::{Bed, operation},
    *,
};

/// Returns the status of a node of the version `1-a`, with these conditions: type, status, reason.
fn status(bed: &Bed, conditions: &[(&str, &str, &str)], more: &Value) -> Value {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(type_, status, reason)| {
            json!({"type": type_, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        })
        .collect();
    let mut status = json!({
        "currentVersion": "1-a",
        "nodeRef": {"name": "win-1", "uid": "n-1"},
        "provenAt": {"address": bed.host.address(), "port": bed.host.port()},
        "hostKey": bed.pinned_key(),
        "conditions": conditions,
    });
    status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    status
}

/// Reconciles an instance without a grant, and returns its status afterwards.
async fn reconciled(bed: &Bed, instance: WindowsInstance) -> api::WindowsInstanceStatus {
    let mut scope = bed.scope(instance);
    let done = Box::pin(super::super::act(&mut scope)).await;
    done.unwrap();
    scope.status.clone()
}

fn condition(status: &api::WindowsInstanceStatus, type_: &str) -> (String, String) {
    find(&status.conditions, type_).map(|c| (c.status.clone(), c.reason.clone())).unwrap_or_default()
}

fn says(status: &api::WindowsInstanceStatus) -> String {
    find(&status.conditions, kind::READY).map(|c| c.message.clone()).unwrap_or_default()
}

/// A result from before kubelet stopped, or from before the Node was Ready again, says nothing about the host now.
#[tokio::test]
async fn a_host_is_contacted_when_kubelet_stops_and_when_its_node_is_ready_again() {
    let failures = json!({"failures": {"count": 8, "lastReason": "Unreachable", "lastMessage": "refuses connections",
        "nextRetryTime": jiff::Timestamp::now() + jiff::SignedDuration::from_mins(9)}});
    let (healthy, unhealthy) = (("NodeHealthy", "True", "AsExpected"), ("NodeHealthy", "False", "NodeNotReady"));
    let (reached, refused) = (("Reachable", "True", "AsExpected"), ("Reachable", "False", "Unreachable"));
    let (found, lost, without_kubelet) =
        (("True", "AsExpected"), ("False", "Unreachable"), ("True", "AnswersWithoutKubelet"));
    // Ready status of the Node, known conditions, whether the host answers; expected attempts, Reachable, text of Ready, failures.
    for (about, node, known, answers, tried, reachable, words, fails) in [
        ("kubelet works", "True", [healthy, reached], true, 0, found, "", false),
        ("it is off", "Unknown", [healthy, reached], false, 1, lost, "cannot log in to the host either", false),
        ("kubelet has stopped", "Unknown", [healthy, reached], true, 1, without_kubelet, "answers over SSH", false),
        ("it was off before", "Unknown", [unhealthy, refused], false, 0, lost, "cannot log in to the host", true),
        ("it is back", "True", [unhealthy, refused], true, 1, found, "", false),
        ("its Node is back alone", "True", [unhealthy, refused], false, 1, lost, "", false),
        ("its SSH server alone is off", "True", [healthy, refused], false, 0, lost, "", true),
    ] {
        let mut bed = Bed::new().await;
        bed.node_that_is(node, "n-1", &bed.host.address().to_string(), &json!({}));
        let more = if known.contains(&refused) { failures.clone() } else { json!({}) };
        let mut instance = bed.instance(&json!({}), &json!({}), &status(&bed, &known, &more));
        if !answers {
            let gone = std::net::TcpListener::bind((bed.host.address(), 0)).unwrap();
            let port = i32::from(gone.local_addr().unwrap().port());
            instance.spec.host.port = port;
            instance.status.as_mut().unwrap().proven_at.as_mut().unwrap().port = port;
        }
        let before = bed.cx.hosts.operator.traffic.connections.get();
        let status = reconciled(&bed, instance).await;
        assert_eq!(bed.cx.hosts.operator.traffic.connections.get() - before, tried, "{about}");
        let (status_now, reason) = condition(&status, kind::REACHABLE);
        assert_eq!((status_now.as_str(), reason.as_str()), reachable, "{about}");
        assert!(says(&status).contains(words), "{about}: {}", says(&status));
        assert_eq!(status.failures.is_some(), fails, "{about}");
    }
}

/// The host is contacted once, although the operator cannot use it.
#[tokio::test]
async fn a_host_with_a_full_disk_answers() {
    let mut bed = Bed::new().await;
    bed.node_that_is("Unknown", "n-1", &bed.host.address().to_string(), &json!({}));
    bed.host.fault(testbed::sim::Fault::DiskFull);
    let known = [("NodeHealthy", "True", "AsExpected"), ("Reachable", "True", "AsExpected")];
    let told = reconciled(&bed, bed.instance(&json!({}), &json!({}), &status(&bed, &known, &json!({})))).await;
    assert_eq!(condition(&told, kind::REACHABLE), ("True".to_owned(), "AnswersWithoutKubelet".to_owned()));
    let text = &find(&told.conditions, kind::REACHABLE).unwrap().message;
    assert!(text.contains("its disk is full"), "{text}");
    let connections = bed.host.stats().connections;
    let again = reconciled(&bed, bed.instance(&json!({}), &json!({}), &json!(told))).await;
    assert_eq!(json!(again), json!(told));
    assert_eq!(bed.host.stats().connections, connections);
}

/// A host that the operator could not try to contact is neither lost nor found.
#[tokio::test]
async fn a_missing_secret_says_nothing_about_the_host() {
    let mut bed = Bed::new().await;
    bed.node_that_is("Unknown", "n-1", &bed.host.address().to_string(), &json!({}));
    let secret = "/api/v1/namespaces/operator/secrets/key";
    bed.api.forget("GET", secret).fail("GET", secret, 404, "NotFound", "there is none", Value::Null);
    let known = [("NodeHealthy", "True", "AsExpected"), ("Reachable", "True", "AsExpected")];
    let mut scope = bed.scope(bed.instance(&json!({}), &json!({}), &status(&bed, &known, &json!({}))));
    let next = Box::pin(super::super::act(&mut scope)).await.unwrap();
    assert_eq!(next, kube::runtime::controller::Action::requeue(CREDENTIALS_BACKOFF_MAX));
    let reachable = find(&scope.status.conditions, kind::REACHABLE).unwrap();
    assert_eq!((reachable.status.as_str(), reachable.reason.as_str()), ("Unknown", "CredentialsUnavailable"));
    assert!(reachable.message.contains("the Secret operator/key does not exist"), "{}", reachable.message);
    assert_eq!(bed.host.stats().connections, 0);
}

/// An operation that waits after a failure continues at once when the host is back.
#[tokio::test]
async fn a_host_that_is_back_ends_the_wait_of_its_operation() {
    let mut bed = Bed::new().await;
    bed.node_that_is("True", "n-1", &bed.host.address().to_string(), &json!({}));
    let later = (jiff::Timestamp::now() + jiff::SignedDuration::from_mins(9)).to_string();
    let more = json!({
        "failures": {"count": 3, "lastReason": "Unreachable", "lastMessage": "x", "nextRetryTime": later},
        "operation": operation("g-1", "Update", "Connect", &json!({"changed": true})),
    });
    for (was, waits) in [("False", false), ("True", true)] {
        let known = [("NodeHealthy", was, "x"), ("Reachable", "False", "Unreachable")];
        let mut scope = bed.scope_with(&status(&bed, &known, &more));
        follow(&mut scope);
        let failures = scope.status.failures.as_ref().expect("the operation has not succeeded yet");
        assert_eq!(failures.next_retry_time.is_some(), waits, "{was}");
    }
}

/// The host key of an entry is compared with the proven one as soon as the entry is written, and not only at the next repair.
#[tokio::test]
async fn a_wrong_host_key_in_an_entry_is_reported_at_once() {
    const OTHER: &str = "SHA256:AAAAvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";
    let mut bed = Bed::new().await;
    bed.node_that_is("True", "n-1", &bed.host.address().to_string(), &json!({}));
    let known = [("NodeHealthy", "True", "AsExpected"), ("Reachable", "True", "AsExpected")];
    let mut instance = bed.instance(&json!({}), &json!({}), &status(&bed, &known, &json!({})));
    instance.spec.host.host_key = Some(OTHER.into());
    let told = reconciled(&bed, instance.clone()).await;
    let pinned = told.host_key.clone().unwrap().fingerprint;
    assert_eq!(condition(&told, kind::REACHABLE), ("False".to_owned(), "HostKeyMismatch".to_owned()));
    let text = says(&told);
    assert!(
        text.contains("the entry of the host in its list is refused") && text.contains(OTHER) && text.contains(&pinned),
        "{text}"
    );
    assert!(text.contains("trust-host-key win-1"), "the remedy names the host: {text}");

    // The entry gets another wrong key, which is verified without a wait.
    let other = OTHER.replace("AAAA", "BBBB");
    (instance.status, instance.spec.host.host_key) = (Some(told), Some(other.clone()));
    let told = reconciled(&bed, instance.clone()).await;
    assert!(says(&told).contains(&other), "{}", says(&told));

    // The entry is corrected.
    instance.status = Some(told);
    instance.spec.host.host_key = Some(pinned);
    let told = reconciled(&bed, instance).await;
    assert_eq!(condition(&told, kind::REACHABLE), ("True".to_owned(), "AsExpected".to_owned()));
    assert!(told.address_failures.is_none() && !says(&told).contains("refused"), "{}", says(&told));
}

/// A stopped wicd reports nothing, while everything else looks healthy.
#[tokio::test]
async fn a_wicd_that_stops_reporting_gets_a_condition() {
    let bed = Bed::new().await;
    let mut scope = bed.scope_with(&status(&bed, &[], &json!({})));
    let node = |ready: &str, reported: Option<&str>| -> Node {
        let annotations: std::collections::BTreeMap<_, _> =
            reported.map(|at| (key::WICD_REPORTED, at)).into_iter().collect();
        serde_json::from_value(json!({"metadata": {"name": "win-1", "annotations": annotations},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    };
    let (first, second) = ("2027-01-15T02:00:00Z", "2027-01-15T02:10:00Z");
    let begin = Instant::now();
    let at = |minutes| begin + Duration::from_mins(minutes);
    let silent = |scope: &Scope| conditions::is_true(&scope.status.conditions, kind::WICD_SILENT);

    assert!(update_wicd_silence(&mut scope, &node("True", Some(first)), at(0)).is_some() && !silent(&scope));
    update_wicd_silence(&mut scope, &node("True", Some(first)), at(29));
    assert!(!silent(&scope));
    update_wicd_silence(&mut scope, &node("True", Some(first)), at(30));
    assert!(silent(&scope), "three reports did not come");
    let message = find(&scope.status.conditions, kind::WICD_SILENT).unwrap().message.clone();
    assert!(message.contains(api::host::WICD_SERVICE) && message.contains(first), "{message}");

    // The operator restarts.
    scope.cx.wicd.reports.forget("win-1");
    update_wicd_silence(&mut scope, &node("True", Some(first)), at(31));
    assert!(silent(&scope), "it does not forget what was reported");
    update_wicd_silence(&mut scope, &node("True", Some(second)), at(31));
    assert!(!silent(&scope), "wicd reports again");

    // A host that is off reports nothing, which another condition shows. When it is back, wicd has time to report.
    assert_eq!(update_wicd_silence(&mut scope, &node("Unknown", Some(second)), at(71)), None);
    update_wicd_silence(&mut scope, &node("True", Some(second)), at(72));
    assert!(!silent(&scope));
    // The wicd of an older release never reports.
    assert_eq!(update_wicd_silence(&mut scope, &node("True", None), at(112)), None);
    assert!(!silent(&scope));
}
