//! Tests of the decisions of commands about an object.

use super::*;

const NOW: &str = "2027-01-15T02:00:00Z";
const VERSION: &str = "1.0.0-5c9a1f0e7b64d2380f1ac95be2370d68";
const OLD: &str = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const NEW: &str = "SHA256:BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA";

fn pool(metadata: &Value, rollout: &Value, status: &Value) -> WindowsNodePool {
    let mut metadata = metadata.clone();
    metadata["name"] = "factory".into();
    metadata["generation"] = 7.into();
    serde_json::from_value(json!({
        "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1",
        "kind": "WindowsNodePool",
        "metadata": metadata,
        "spec": {"inventory": {"hosts": []}, "rollout": rollout},
        "status": status,
    }))
    .unwrap()
}

fn instance(annotations: &Value, spec: &Value, status: &Value) -> WindowsInstance {
    let mut object = json!({
        "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1",
        "kind": "WindowsInstance",
        "metadata": {"name": "win-1", "resourceVersion": "42", "annotations": annotations},
        "spec": {
            "poolRef": {"name": "factory"},
            "host": {"name": "win-1", "address": "10.0.0.1", "port": 22, "username": "Administrator", "privateKeys": [],
                "labels": {}, "annotations": {}, "taints": []},
            "leaving": spec["leaving"],
        },
        "status": status,
    });
    if let Some(key) = spec.get("hostKey") {
        object["spec"]["host"]["hostKey"] = key.clone();
    }
    serde_json::from_value(object).unwrap()
}

fn waits(version: bool, removals: usize) -> Value {
    let reason = if version { "WaitingForApproval" } else { "Progressing" };
    let act = api::act::Act::ApproveVersion("factory", VERSION);
    let message = format!("1 to be updated waits until version 1.0.0-5c9a1f0e (kubelet's settings) is approved: {act}");
    let held: Vec<&str> = ["win-1", "win-2"].into_iter().take(removals).collect();
    json!({
        "observedGeneration": 7,
        "desiredVersion": VERSION,
        "removalsToConfirm": removals,
        "inventory": {"source": "the list", "verdict": "NotAsked", "heldRemovals": held},
        "conditions": [
            {"type": "Updated", "status": "False", "reason": reason, "message": "2 of 3 nodes", "lastTransitionTime": NOW},
            {"type": "Updating", "status": "False", "reason": reason, "message": message, "lastTransitionTime": NOW},
        ],
    })
}

fn failed(reason: &str, message: &str) -> Value {
    json!({"count": 2, "lastReason": reason, "lastMessage": message, "step": "Connect", "nextRetryTime": NOW})
}

/// Returns the patch, or `refused`, with the message.
fn outcome_of(decided: Decided) -> (Value, String) {
    match decided {
        Ok(change) => (change.patch.unwrap_or_default(), change.message),
        Err(why) => (json!("refused"), why),
    }
}

fn annotation(key: &str, value: impl Into<Value>) -> Value {
    Change::annotate(key, value, "").patch.unwrap()
}

#[test]
fn only_a_waiting_version_or_removal_is_approved() {
    let none = json!({});
    let approved = json!({"annotations": {key::APPROVE: VERSION}});
    let older = json!({"annotations": {key::APPROVE: "0.9.0-a"}});
    let confirmed = json!({"annotations": {key::APPROVE_REMOVAL: "2"}});
    let (version, removal) = (annotation(key::APPROVE, VERSION), annotation(key::APPROVE_REMOVAL, "2"));
    let (refused, nothing, named) = (json!("refused"), Value::Null, Some(VERSION));
    for (metadata, status, asked, number, patch, message) in [
        (&none, json!({}), None, None, &refused, "has not observed the last change of the pool yet"),
        (
            &none,
            json!({"observedGeneration": 6}),
            None,
            None,
            &refused,
            "has not observed the last change of the pool yet",
        ),
        (&none, waits(false, 0), None, None, &refused, "nothing waits for an approval"),
        (&none, waits(false, 2), named, None, &refused, "no version waits"),
        (&none, waits(true, 0), None, Some(2), &refused, "no removal waits"),
        (&none, waits(true, 0), None, None, &version, "no version was approved; now version 1.0.0-"),
        (&older, waits(true, 2), named, None, &version, "version 0.9.0-a was approved; now"),
        (&none, waits(true, 0), Some("2"), None, &refused, "version 1.0.0-5c9a1f0e waits for an approval, not 2"),
        (&none, waits(true, 0), Some("5c9a1f0"), None, &version, "no version was approved; now version 1.0.0-"),
        (&approved, waits(true, 0), None, None, &nothing, "is approved already"),
        (&approved, waits(false, 0), Some("1.0.0-5c9a1f0e"), None, &nothing, "is approved already"),
        (&none, waits(true, 2), None, None, &refused, "--version 1.0.0-5c9a1f0e or --removals 2"),
        (&none, waits(false, 2), None, None, &removal, "of 2 hosts waited; now it is approved: win-1, win-2"),
        (&none, waits(true, 2), None, Some(2), &removal, "now it is approved"),
        (&none, waits(false, 2), None, Some(3), &refused, "of 2 hosts waits, not of 3: win-1, win-2"),
        (&none, waits(false, 5), None, Some(2), &refused, "win-1, win-2, 3 more"),
        (&confirmed, waits(false, 2), None, None, &nothing, "is approved already"),
    ] {
        let decided = approve(&pool(metadata, &none, &status), &[], asked, number);
        let asks = decided.as_ref().is_ok_and(|change| change.question.is_some());
        let (found, said) = outcome_of(decided);
        assert_eq!(found, *patch, "{said}");
        assert!(said.contains(message), "{said}");
        assert_eq!(asks, found.is_object(), "each approval is confirmed: {said}");
    }
    for (status, expected) in [
        (waits(false, 1), "1 host will be drained and deconfigured, and its Node deleted: win-1."),
        (waits(true, 0), "1 to be updated waits until version 1.0.0-5c9a1f0e (kubelet's settings) is approved. After"),
    ] {
        let question = approve(&pool(&none, &none, &status), &[], None, None).unwrap().question.unwrap();
        assert!(question.starts_with(expected), "{question}");
    }
}

#[test]
fn hosts_that_left_the_pools_own_list_are_named() {
    let mut status = waits(false, 2);
    status["inventory"] = Value::Null;
    let mut pool = pool(&json!({}), &json!({}), &status);
    pool.spec.inventory.hosts = Some(vec![api::Host { name: "win-2".into(), ..api::Host::default() }]);
    let members = ["win-3", "win-2", "win-1"].map(ToOwned::to_owned);
    let (_, said) = outcome_of(approve(&pool, &members, None, None));
    assert!(said.ends_with("now it is approved: win-1, win-3"), "{said}");
}

#[test]
fn a_time_does_not_end_a_pause_without_an_end() {
    let (past, soon, late) = ("2027-01-15T01:00:00Z", "2027-01-15T03:00:00Z", "2027-01-15T04:00:00Z");
    let rollout = |field: &str, value: Value| json!({"spec": {"rollout": {field: value}}});
    let (forever, until) = (rollout("paused", true.into()), |time: &str| rollout("pausedUntil", time.into()));
    let (refused, nothing) = (json!("refused"), Value::Null);
    for (before, asked, patch, message) in [
        (json!({}), None, forever.clone(), "finishes. To resume: kubectl windows-node-pools resume factory"),
        (json!({"pausedUntil": past}), None, forever.clone(), "paused. No new operation begins"),
        (json!({"pausedUntil": soon}), None, forever, "it was paused until 2027-01-15T03:00:00Z; now it is paused. "),
        (json!({"paused": true}), None, nothing.clone(), "paused without an end already"),
        (json!({}), Some(soon), until(soon), "paused until 2027-01-15T03:00:00Z. No new"),
        (json!({"pausedUntil": soon}), Some(late), until(late), "it was paused until 2027-01-15T03:00:00Z; now"),
        (json!({"pausedUntil": soon}), Some(soon), nothing, "already"),
        (json!({"paused": true}), Some(soon), refused.clone(), "resume it first"),
        (json!({}), Some(past), refused, "2027-01-15T01:00:00Z has passed"),
    ] {
        let asked = asked.map(|time| time.parse().unwrap());
        let (found, said) = outcome_of(pause(&pool(&json!({}), &before, &json!({})), asked, NOW.parse().unwrap()));
        assert_eq!(found, patch, "{said}");
        assert!(said.contains(message), "{said}");
    }
    let gone = json!({"spec": {"rollout": {"paused": null, "pausedUntil": null}}});
    for (before, patch, message) in [
        (json!({}), Value::Null, "it is not paused"),
        (json!({"pausedUntil": past}), Value::Null, "it is not paused"),
        (json!({"paused": true}), gone.clone(), "it was paused; now it continues"),
        (json!({"pausedUntil": soon}), gone, "it was paused until 2027-01-15T03:00:00Z; now"),
    ] {
        let (found, said) = outcome_of(Ok(resume(&pool(&json!({}), &before, &json!({})), NOW.parse().unwrap())));
        assert_eq!(found, patch, "{before}: {said}");
        assert!(said.starts_with(message), "{before}: {said}");
    }
}

#[test]
fn the_tool_that_has_set_a_field_is_named() {
    for (manager, field, is_named) in [
        ("kustomize-controller", "paused", true),
        ("argocd-controller", "paused", true),
        ("kustomize-controller", "steps", false),
        ("kubectl-edit", "paused", false),
        (MANAGER_COMMAND, "paused", false),
    ] {
        let fields = json!({"f:spec": {"f:rollout": {(format!("f:{field}")): {}}}});
        let pool = pool(&json!({"managedFields": [{"manager": manager, "fieldsV1": fields}]}), &json!({}), &json!({}));
        let warning = pause(&pool, None, NOW.parse().unwrap()).unwrap().warning;
        let says = format!("{manager} has set spec.rollout.paused of this pool. ");
        assert_eq!(warning.as_ref().is_some_and(|warning| warning.starts_with(&says)), is_named, "{warning:?}");
        assert_eq!(warning.is_some(), is_named);
    }
}

#[test]
fn only_failed_and_not_ready_hosts_are_retried() {
    let refusal = failed("Unreachable", "10.0.0.1 refuses");
    for (status, message) in [
        (json!({"failures": refusal}), "failed 2 times, and waited for its next try; now"),
        (json!({"failures": refusal}), "It failed with: Connect: 10.0.0.1 refuses"),
        (json!({"keyRotation": {"failures": refusal}}), "failed 2 times"),
        (json!({"prePulled": {"failures": refusal}}), "failed 2 times"),
        (json!({"addressFailures": refusal}), "failed 2 times"),
        (json!({"phase": "NotReady"}), "now it is repaired at once"),
        (json!({"failedVersion": "1.0.0-x"}), "version 1.0.0-x failed on the host"),
    ] {
        let (found, said) = outcome_of(retry(&instance(&json!({}), &json!({}), &status)));
        assert_eq!(found, annotation(key::RETRY, "42"), "{said}");
        assert!(said.contains(message), "{said}");
    }
    let (found, said) = outcome_of(retry(&instance(&json!({}), &json!({}), &json!({}))));
    assert!(found == "refused" && said.contains("it has not failed"), "{said}");
}

#[test]
fn a_hold_is_set_and_lifted_where_it_has_an_effect() {
    let (set, gone) = (annotation(key::HOLD, "true"), annotation(key::HOLD, Value::Null));
    for (own, held, released) in [
        (json!({}), &set, &Value::Null),
        (json!({key::HOLD: "true"}), &Value::Null, &gone),
        (json!({key::HOLD: "yes"}), &set, &Value::Null),
    ] {
        let instance = instance(&own, &json!({}), &json!({}));
        assert_eq!(outcome_of(Ok(hold(&instance))).0, *held, "{own}");
        assert_eq!(outcome_of(Ok(release(&instance))).0, *released, "{own}");
    }
}

#[test]
fn only_a_host_that_is_leaving_is_abandoned() {
    let pool = WindowsNodePool::new("factory", api::WindowsNodePoolSpec::default());
    let leaving = json!({"leaving": {"since": NOW, "why": "no longer listed"}});
    let (none, set) = (json!({}), annotation(key::ABANDON, "true"));
    for (annotations, spec, pool, patch, message) in [
        (&none, &none, Some(&pool), json!("refused"), "take it out of the list of factory first"),
        (&none, &leaving, Some(&pool), set.clone(), "the host is forgotten"),
        (&none, &none, None, set, "the host is forgotten"),
        (&json!({key::ABANDON: "true"}), &none, Some(&pool), Value::Null, "it is abandoned already"),
    ] {
        let (found, said) = outcome_of(abandon(&instance(annotations, spec, &none), pool));
        assert_eq!(found, patch, "{said}");
        assert!(said.contains(message), "{said}");
    }
    let question = |status: &Value| abandon(&instance(&none, &none, status), None).unwrap().question.unwrap();
    assert!(question(&none).contains("No attempt to clean the host has failed yet"));
    let failing = json!({"failures": failed("Unreachable", "10.0.0.1 refuses")});
    assert!(question(&failing).contains("failed with: Connect: 10.0.0.1 refuses."));
    let advised = format!("10.0.0.1 refuses{IF_GONE}run kubectl windows-node-pools abandon win-1");
    let advised = question(&json!({"failures": failed("Unreachable", &advised)}));
    assert!(advised.contains("failed with: Connect: 10.0.0.1 refuses. The Node"), "{advised}");
}

#[test]
fn only_the_key_that_the_host_showed_is_trusted() {
    let shown = format!("the host key of 10.0.0.1 does not match: expected {OLD}, got {NEW}; if");
    let mismatch = failed("HostKeyMismatch", &shown);
    let unproven = failed("HostUnproven", "declare it, or annotate the instance with trust-host-key");
    let of_jump_host = failed("JumpHostKeyMismatch", &format!("got {NEW}"));
    let pinned = json!({"keyType": "ssh-ed25519", "publicKey": "AAAA", "fingerprint": OLD});
    let (none, set, refused) = (json!({}), annotation(key::TRUST_HOST_KEY, NEW), json!("refused"));
    let declared = json!({"hostKey": "ssh-ed25519 AAAA"});
    let before = format!("{OLD} was trusted; now");
    for (annotations, spec, status, fingerprint, patch, message) in [
        (&none, &none, json!({"failures": mismatch}), NEW, &set, "no key was trusted; now SHA256:BBB"),
        (&none, &none, json!({"failures": mismatch, "hostKey": pinned}), NEW, &set, before.as_str()),
        (&none, &none, json!({"addressFailures": mismatch}), NEW, &set, "now SHA256:BBB"),
        (&none, &none, json!({"failures": mismatch}), OLD, &refused, "the host did not show the key"),
        (&none, &none, json!({"failures": unproven}), NEW, &set, "now SHA256:BBB"),
        (&none, &none, json!({}), NEW, &refused, "no host key mismatch is pending"),
        (&none, &none, json!({"failures": of_jump_host}), NEW, &refused, "no host key mismatch is pending"),
        (&none, &declared, json!({"failures": mismatch}), NEW, &refused, "change hostKey in the list"),
        (&json!({key::TRUST_HOST_KEY: NEW}), &none, json!({}), NEW, &Value::Null, "trusted already"),
    ] {
        let (found, said) = outcome_of(trust(&instance(annotations, spec, &status), fingerprint));
        assert_eq!(found, *patch, "{said}");
        assert!(said.contains(message), "{said}");
    }
}
