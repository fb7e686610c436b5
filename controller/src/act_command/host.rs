//! Decisions about one host. Pure.

use std::collections::BTreeMap;

use api::{Failures, Phase, Reason, WindowsInstance, WindowsInstanceStatus, WindowsNodePool, names::key, text};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::decision::{Change, Decided, Refusal};
use crate::host_key_policy::{is_fingerprint, shown_key};

/// Longest message of a host that is repeated.
const MOST: usize = 400;

type Annotations = BTreeMap<String, String>;

fn annotate(key: &str, value: impl Into<Value>) -> Value {
    json!({"metadata": {"annotations": {key: value.into()}}})
}

/// The record of what went wrong, the operation in progress first.
fn failures(status: &WindowsInstanceStatus) -> impl Iterator<Item = &Failures> {
    let of_key = status.key_rotation.as_ref().and_then(|k| k.failures.as_ref());
    let of_images = status.pre_pulled.as_ref().and_then(|p| p.failures.as_ref());
    [status.failures.as_ref(), status.address_failures.as_ref(), of_key, of_images].into_iter().flatten()
}

/// Tries the host again at once.
pub(super) fn retry(instance: &WindowsInstance) -> Decided {
    let status = instance.status.clone().unwrap_or_default();
    // Any new value counts, and the resource version changes with each.
    let patch = annotate(key::RETRY, instance.resource_version().unwrap_or_default());
    if let Some(failures) = failures(&status).next() {
        let before = text::line(&failures.summary(), MOST);
        let times =
            if failures.count == 1 { "failed once".to_owned() } else { format!("failed {} times", failures.count) };
        let next = match failures.next_retry_time {
            Some(next) => format!("the next try was at {next}"),
            None => "a try is under way".to_owned(),
        };
        return Ok(Change::new(
            patch,
            format!("{times}, and {next}; now it is tried at once. It failed with: {before}"),
        ));
    }
    match status.failed_version {
        Some(version) => {
            Ok(Change::new(patch, format!("it did not follow version {version}, and waited; now it is tried again")))
        }
        None if status.phase == Some(Phase::NotReady) => {
            let message = "its Node is not Ready, and would be repaired later; now it is repaired at once, unless its pool is paused";
            Ok(Change::new(patch, message))
        }
        None => Err(Refusal::new("it has not failed, so there is nothing to retry; see: windows-node-pools status")),
    }
}

/// Whether the annotation is there and has an effect.
pub(super) fn has_hold(annotations: &Annotations) -> bool {
    annotations.get(key::HOLD).is_some_and(|value| value == "true")
}

/// Holds the object with these annotations.
pub(super) fn hold(annotations: &Annotations) -> Change {
    if has_hold(annotations) {
        return Change::none("it is on hold already");
    }
    let message = "it was not on hold; now no operation begins on it, until: windows-node-pools release";
    Change::new(annotate(key::HOLD, "true"), message)
}

/// Ends the hold of the object with these annotations.
pub(super) fn release(annotations: &Annotations) -> Change {
    if !has_hold(annotations) {
        return Change::none("it is not on hold");
    }
    Change::new(annotate(key::HOLD, Value::Null), "it was on hold; now the operator works on it again")
}

/// Gives the host up. `pool` is its pool, if that exists.
pub(super) fn abandon(instance: &WindowsInstance, pool: Option<&WindowsNodePool>) -> Decided {
    let name = instance.name_any();
    if instance.annotations().get(key::ABANDON).is_some_and(|value| value == "true") {
        return Ok(Change::none("it is given up already"));
    }
    if let Some(pool) = pool
        && !instance.is_leaving()
    {
        let pool = pool.name_any();
        return Err(Refusal::new(format!(
            "it is a host of the pool {pool}, and only a host that is leaving can be given up: take it out of the list of {pool} first"
        )));
    }
    let last = instance.status.as_ref().and_then(|status| status.failures.as_ref());
    let last = last.map_or_else(
        || "The operator has not failed to clean it: wait, unless the host is gone.".to_owned(),
        |failures| format!("The last attempt failed with: {}.", text::line(&failures.summary(), MOST)),
    );
    let danger = format!(
        "the host is given up without a connection to it. {last} The Node {name} and its pods' records are deleted at once, without a drain. \
         Services and files of the operator stay on the host: make sure that it is off, or its kubelet registers again. This cannot be undone"
    );
    let message = "it waited for its host; now its Node is deleted and the host is forgotten without being cleaned";
    Ok(Change { danger: Some(danger), ..Change::new(annotate(key::ABANDON, "true"), message) })
}

/// Trusts the host key that the host showed.
pub(super) fn trust(instance: &WindowsInstance, fingerprint: &str) -> Decided {
    if !is_fingerprint(fingerprint) {
        return Err(Refusal::new(format!(
            "{fingerprint} is no whole fingerprint, which is SHA256: and 43 characters: copy it whole from the console of the host"
        )));
    }
    let status = instance.status.clone().unwrap_or_default();
    if instance.annotations().get(key::TRUST_HOST_KEY).is_some_and(|trusted| trusted == fingerprint) {
        return Ok(Change::none("this key is trusted already"));
    }
    if instance.spec.host.host_key.is_some() {
        return Err(Refusal::new("its list declares the host key, and that one counts: change hostKey there"));
    }
    if let Some(mismatch) = failures(&status).find(|failures| failures.last_reason == Reason::HostKeyMismatch) {
        if shown_key(&mismatch.last_message) != Some(fingerprint) {
            let message = text::line(&mismatch.last_message, MOST);
            return Err(Refusal::new(format!(
                "the host showed another key than {fingerprint}; compare it on the console of the host: {message}"
            )));
        }
    // Other faults whose remedy is this annotation name it.
    } else if !failures(&status).any(|failures| failures.last_message.contains("trust-host-key")) {
        return Err(Refusal::new("its host key is not in question; see: windows-node-pools status"));
    }
    let before = status.host_key.map_or_else(|| "no key".to_owned(), |key| key.fingerprint);
    let message = format!("{before} was trusted; now {fingerprint} is, and the host is tried at once");
    Ok(Change::new(annotate(key::TRUST_HOST_KEY, fingerprint), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    const NEW: &str = "SHA256:BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA";

    fn instance(changes: &Value) -> WindowsInstance {
        let mut object = json!({
            "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1",
            "kind": "WindowsInstance",
            "metadata": {"name": "win-1", "resourceVersion": "42"},
            "spec": {
                "poolRef": {"name": "factory"},
                "host": {"name": "win-1", "address": "10.0.0.1", "port": 22, "username": "Administrator", "privateKeys": [],
                    "labels": {}, "annotations": {}, "taints": []},
            },
        });
        json_patch(&mut object, changes);
        serde_json::from_value(object).unwrap()
    }

    fn json_patch(into: &mut Value, from: &Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                from.iter().for_each(|(key, value)| json_patch(into.entry(key).or_insert(Value::Null), value));
            }
            (into, from) => *into = from.clone(),
        }
    }

    fn failed(reason: &str, message: &str) -> Value {
        json!({"count": 2, "lastReason": reason, "lastMessage": message, "step": "Connect", "nextRetryTime": "2027-01-15T02:00:00Z"})
    }

    /// The annotations of the patch, or what is said without one.
    fn outcome_of(decided: Decided) -> (Value, String) {
        match decided {
            Ok(change) => {
                let patch = change.patch.map_or(Value::Null, |patch| patch["metadata"]["annotations"].clone());
                (patch, change.message)
            }
            Err(refusal) => (json!("refused"), refusal.to_string()),
        }
    }

    #[test]
    fn only_what_has_failed_or_does_not_work_is_retried() {
        let refusal = failed("Unreachable", "10.0.0.1 refuses");
        let retries = json!({key::RETRY: "42"});
        for (about, status, patch, message) in [
            ("new", json!({}), json!("refused"), "it has not failed"),
            (
                "an operation",
                json!({"failures": refusal}),
                retries.clone(),
                "failed 2 times, and the next try was at 2027-01-15T02:00:00Z; now",
            ),
            ("the message", json!({"failures": refusal}), retries.clone(), "It failed with: Connect: 10.0.0.1 refuses"),
            ("a key", json!({"keyRotation": {"failures": refusal}}), retries.clone(), "failed 2 times"),
            ("images", json!({"prePulled": {"failures": refusal}}), retries.clone(), "failed 2 times"),
            ("an address", json!({"addressFailures": refusal}), retries.clone(), "failed 2 times"),
            ("a node that does not work", json!({"phase": "NotReady"}), retries.clone(), "now it is repaired at once"),
            ("a version", json!({"failedVersion": "1.0.0-x"}), retries.clone(), "it did not follow version 1.0.0-x"),
        ] {
            let (found, said) = outcome_of(retry(&instance(&json!({"status": status}))));
            assert_eq!(found, patch, "{about}");
            assert!(said.contains(message), "{about}: {said}");
        }
    }

    #[test]
    fn a_hold_is_set_and_lifted_where_it_has_an_effect() {
        let with =
            |value: Option<&str>| -> Annotations { value.map(|v| (key::HOLD.into(), v.into())).into_iter().collect() };
        let (set, gone) = (json!({key::HOLD: "true"}), json!({key::HOLD: null}));
        for (about, own, held, released) in [
            ("none", None, set.clone(), Value::Null),
            ("on hold", Some("true"), Value::Null, gone),
            ("without effect", Some("yes"), set, Value::Null),
        ] {
            assert_eq!(outcome_of(Ok(hold(&with(own)))).0, held, "{about}");
            assert_eq!(outcome_of(Ok(release(&with(own)))).0, released, "{about}");
        }
    }

    #[test]
    fn only_a_host_that_is_leaving_is_given_up() {
        let pool = WindowsNodePool::new("factory", api::WindowsNodePoolSpec::default());
        let leaving = json!({"spec": {"leaving": {"since": "2027-01-15T02:00:00Z", "why": "no longer listed"}}});
        let given_up = json!({"metadata": {"annotations": {key::ABANDON: "true"}}});
        let set = json!({key::ABANDON: "true"});
        for (about, changes, pool, patch, message) in [
            ("listed", json!({}), Some(&pool), json!("refused"), "take it out of the list of factory first"),
            ("leaving", leaving.clone(), Some(&pool), set.clone(), "the host is forgotten"),
            ("without a pool", json!({}), None, set, "the host is forgotten"),
            ("given up", given_up, Some(&pool), Value::Null, "it is given up already"),
        ] {
            let (found, said) = outcome_of(abandon(&instance(&changes), pool));
            assert_eq!(found, patch, "{about}");
            assert!(said.contains(message), "{about}: {said}");
        }
        let danger = |changes: &Value| abandon(&instance(changes), None).unwrap().danger.unwrap();
        assert!(danger(&json!({})).contains("has not failed to clean it"));
        let failing = json!({"status": {"failures": failed("Unreachable", "10.0.0.1 refuses")}});
        assert!(danger(&failing).contains("failed with: Connect: 10.0.0.1 refuses."));
    }

    #[test]
    fn only_the_key_that_the_host_showed_is_trusted() {
        let mismatch =
            failed("HostKeyMismatch", &format!("the host key of 10.0.0.1 changed: expected {OLD}, got {NEW}; if"));
        let unproven = failed("HostUnproven", "declare it, or annotate the instance with trust-host-key");
        let set = json!({key::TRUST_HOST_KEY: NEW});
        let pinned = json!({"keyType": "ssh-ed25519", "publicKey": "AAAA", "fingerprint": OLD});
        for (about, changes, fingerprint, patch, message) in [
            (
                "it changed",
                json!({"status": {"failures": mismatch}}),
                NEW,
                set.clone(),
                "no key was trusted; now SHA256:BBB",
            ),
            (
                "it was pinned",
                json!({"status": {"failures": mismatch, "hostKey": pinned}}),
                NEW,
                set.clone(),
                "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA was trusted; now",
            ),
            (
                "at another address",
                json!({"status": {"addressFailures": mismatch}}),
                NEW,
                set.clone(),
                "now SHA256:BBB",
            ),
            (
                "the old one",
                json!({"status": {"failures": mismatch}}),
                OLD,
                json!("refused"),
                "the host showed another key",
            ),
            (
                "the beginning of it",
                json!({"status": {"failures": mismatch}}),
                &NEW[..49],
                json!("refused"),
                "no whole fingerprint",
            ),
            (
                "the beginning of any",
                json!({"status": {"failures": unproven}}),
                "SHA256:",
                json!("refused"),
                "no whole fingerprint",
            ),
            ("unproven", json!({"status": {"failures": unproven}}), NEW, set, "now SHA256:BBB"),
            ("not in question", json!({}), NEW, json!("refused"), "not in question"),
            (
                "the jump host",
                json!({"status": {"failures": failed("JumpHostKeyMismatch", &format!("got {NEW}"))}}),
                NEW,
                json!("refused"),
                "not in question",
            ),
            (
                "declared",
                json!({"spec": {"host": {"hostKey": "ssh-ed25519 AAAA"}}, "status": {"failures": mismatch}}),
                NEW,
                json!("refused"),
                "change hostKey there",
            ),
            (
                "trusted",
                json!({"metadata": {"annotations": {key::TRUST_HOST_KEY: NEW}}}),
                NEW,
                Value::Null,
                "trusted already",
            ),
        ] {
            let (found, said) = outcome_of(trust(&instance(&changes), fingerprint));
            assert_eq!(found, patch, "{about}: {said}");
            assert!(said.contains(message), "{about}: {said}");
        }
    }
}
