//! User acts that are given as annotations: acts on a pool, with their records, and requests for another attempt on a host. Pure.
//!
//! GitOps tools remove annotations that they did not write, some within seconds. Therefore an act on a pool is recorded in the pool's status when it
//! is seen, and only another act revokes it.

use api::{
    RecordedAct, RolloutStatus, Time, WindowsInstance, WindowsNodePool,
    act::Act,
    names::{GROUP, key},
    services_version,
    text::line,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt;

/// Annotation keys of a pool that are user acts.
pub const OF_POOL: &[&str] = &[key::APPROVE, key::APPROVE_REMOVAL, key::ACCEPT_LOST_SETTINGS, key::VOID_EPOCH];

/// Maximum length of a recorded value, in bytes. A longer value is not recorded, and is in force only while the annotation exists.
const MAX_VALUE_BYTES: usize = 1024;
/// Maximum length of a field manager's name in a record, and of a value in a message, in characters.
const MAX_NAME_LEN: usize = 128;

/// Returns the annotation key without its group, as the status records it.
fn short(key: &str) -> &str {
    key.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/')).unwrap_or(key)
}

fn recorded<'a>(pool: &'a WindowsNodePool, key: &str) -> Option<&'a RecordedAct> {
    pool.status.as_ref()?.acts.iter().find(|act| act.annotation == short(key))
}

/// Returns the value of the act with the annotation `key`, if the act is in force: the value of the annotation or, without one, the recorded value.
/// A used act is not in force, and an empty value revokes the act.
pub fn in_force<'a>(pool: &'a WindowsNodePool, key: &str) -> Option<&'a str> {
    let (written, recorded) = (pool.annotations().get(key), recorded(pool, key));
    let value = match (written, recorded) {
        (Some(written), Some(recorded)) if *written == recorded.value => (!recorded.used).then_some(written),
        (Some(written), _) => Some(written),
        (None, Some(recorded)) => (!recorded.used).then_some(&recorded.value),
        (None, None) => None,
    };
    value.map(String::as_str).filter(|value| !value.is_empty())
}

/// Reports whether the annotation of a used act still exists. It must be removed, so that the next act with the same value is recognised.
pub fn is_used_up(pool: &WindowsNodePool, key: &str) -> bool {
    recorded(pool, key).is_some_and(|act| act.used && pool.annotations().get(key) == Some(&act.value))
}

/// Returns a note about an approval without effect: it was given during this rollout, and names another version. An earlier approval has had its
/// effect, or is meant for a later version.
pub fn ineffective_approval_note(pool: &WindowsNodePool, rollout: &RolloutStatus) -> Option<String> {
    let act = recorded(pool, key::APPROVE).filter(|act| !act.value.is_empty() && !act.used)?;
    let is_older = act.time.known() < rollout.start_time.known();
    if is_older || rollout.completed || act.value == rollout.to_version {
        return None;
    }
    let (version, value) = (&rollout.to_version, line(&act.value, MAX_NAME_LEN));
    let act = Act::ApproveVersion(pool.metadata.name.as_deref().unwrap_or_default(), version);
    Some(format!(
        "the approval of {value} (annotation {}) has no effect: the pool changes to version {}. If this version waits for an approval, {act}",
        key::APPROVE,
        services_version::short(version)
    ))
}

/// Returns a user's requests for another attempt on a host, joined by a space; `None` without any. An annotation that trusts a host key counts as a
/// request.
pub fn retry_requested(instance: &WindowsInstance) -> Option<String> {
    let requested: Vec<&str> = retries(instance).collect();
    (!requested.is_empty()).then(|| requested.join(" "))
}

fn retries(instance: &WindowsInstance) -> impl Iterator<Item = &str> {
    let annotations = instance.annotations();
    [key::RETRY, key::TRUST_HOST_KEY].into_iter().filter_map(|k| annotations.get(k)).map(String::as_str)
}

/// Reports whether a user requests another attempt that has not been made yet. If one of two handled requests is removed, the other stays handled.
pub fn is_retry_open(instance: &WindowsInstance, last_handled: Option<&String>) -> bool {
    retries(instance).any(|requested| !is_handled(requested, last_handled))
}

/// Reports whether the value of an annotation is among the handled requests, which are joined by spaces.
pub fn is_handled(requested: &str, last_handled: Option<&String>) -> bool {
    last_handled.is_some_and(|handled| {
        // A fingerprint has no space, but the value of a retry may have some.
        let parts = handled.rsplit_once(' ').filter(|(_, key)| key.starts_with("SHA256:"));
        handled == requested || parts.is_some_and(|(retry, key)| [retry, key].contains(&requested))
    })
}

/// Returns the acts to store in the status, or `None` if the stored acts are up to date. Time and manager come from the managed fields, which caches
/// drop: without them, the time is `now` and the manager is unknown.
pub fn to_record(pool: &WindowsNodePool, now: Time) -> Option<Vec<RecordedAct>> {
    let before = pool.status.as_ref().map(|status| &status.acts[..]).unwrap_or_default();
    let next: Vec<RecordedAct> = OF_POOL.iter().filter_map(|key| next(pool, key, now)).collect();
    (next != before).then_some(next)
}

/// Returns the record to store for one annotation. Without an annotation, an earlier record stays unless its act is used or revoked.
fn next(pool: &WindowsNodePool, key: &str, now: Time) -> Option<RecordedAct> {
    let before = recorded(pool, key);
    let Some(written) = pool.annotations().get(key).filter(|value| value.len() <= MAX_VALUE_BYTES) else {
        return before.filter(|act| !act.used && !act.value.is_empty()).cloned();
    };
    if let Some(same) = before.filter(|act| act.value == *written) {
        return Some(same.clone());
    }
    let writer = pool.managed_fields().iter().find(|entry| owns(entry, key));
    Some(RecordedAct {
        annotation: short(key).to_owned(),
        value: written.clone(),
        time: writer.and_then(|entry| entry.time.as_ref()).map_or(now, |time| time.0.into()),
        by: writer.and_then(|entry| entry.manager.as_deref()).map(|name| line(name, MAX_NAME_LEN)),
        used: false,
    })
}

/// Reports whether a managed fields entry lists an annotation.
fn owns(entry: &ManagedFieldsEntry, key: &str) -> bool {
    let annotations = entry.fields_v1.as_ref().map(|fields| &fields.0["f:metadata"]["f:annotations"]);
    annotations.is_some_and(|annotations| annotations.get(format!("f:{key}")).is_some())
}

/// Marks the recorded act of an annotation as used.
pub fn use_up(acts: &mut [RecordedAct], key: &str) {
    acts.iter_mut().filter(|act| act.annotation == short(key)).for_each(|act| act.used = true);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2027-01-15T02:00:00Z";

    fn now() -> Time {
        NOW.parse().unwrap()
    }

    /// Returns a pool with the annotation `approve-removal` and a record of it.
    fn pool(written: Option<&str>, act: Option<(&str, bool)>) -> WindowsNodePool {
        let mut pool = WindowsNodePool::new("factory", api::WindowsNodePoolSpec::default());
        pool.metadata.annotations = written.map(|value| [(key::APPROVE_REMOVAL.into(), value.into())].into());
        let acts = act.map(|(value, used)| RecordedAct {
            annotation: "approve-removal".into(),
            value: value.into(),
            time: now(),
            by: Some("kubectl-annotate".into()),
            used,
        });
        let acts = acts.into_iter().collect();
        pool.status = Some(api::WindowsNodePoolStatus { acts, ..api::WindowsNodePoolStatus::default() });
        pool
    }

    #[test]
    fn only_another_act_revokes_an_act() {
        let long = "9".repeat(MAX_VALUE_BYTES + 1);
        // Columns: case, annotation, record, value in force, next record.
        for (about, written, recorded, force, next) in [
            ("no act", None, None, None, None),
            ("a new act", Some("3"), None, Some("3"), Some(("3", false))),
            ("a recorded act", Some("3"), Some(("3", false)), Some("3"), Some(("3", false))),
            ("a recorded act whose annotation a tool removed", None, Some(("3", false)), Some("3"), Some(("3", false))),
            ("another value replaces it", Some("4"), Some(("3", false)), Some("4"), Some(("4", false))),
            ("an empty value revokes it", Some(""), Some(("3", false)), None, Some(("", false))),
            ("a recorded revocation", Some(""), Some(("", false)), None, Some(("", false))),
            ("a revocation whose annotation was removed", None, Some(("", false)), None, None),
            ("a used act whose annotation still exists", Some("3"), Some(("3", true)), None, Some(("3", true))),
            ("a used act whose annotation was removed", None, Some(("3", true)), None, None),
            ("another value after a used act", Some("4"), Some(("3", true)), Some("4"), Some(("4", false))),
            ("a value that is too long to be recorded", Some(&*long), None, Some(&*long), None),
        ] {
            let pool = pool(written, recorded);
            assert_eq!(in_force(&pool, key::APPROVE_REMOVAL), force, "{about}");
            let acts = to_record(&pool, now()).unwrap_or_else(|| pool.status.clone().unwrap().acts);
            let found: Vec<_> = acts.iter().map(|act| (act.value.as_str(), act.used)).collect();
            assert_eq!(found, next.into_iter().collect::<Vec<_>>(), "{about}");
            let is_used_up = is_used_up(&pool, key::APPROVE_REMOVAL);
            assert_eq!(is_used_up, about == "a used act whose annotation still exists", "{about}");
        }
    }

    #[test]
    fn a_removed_request_for_a_retry_leaves_the_other_handled() {
        let instance = |retry: Option<&str>, key: Option<&str>| {
            let mut instance = WindowsInstance::new("w", api::WindowsInstanceSpec::default());
            let set = [(key::RETRY, retry), (key::TRUST_HOST_KEY, key)];
            let set = set.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
            instance.metadata.annotations = Some(set.collect());
            instance
        };
        let both = retry_requested(&instance(Some("at 9"), Some("SHA256:a")));
        assert_eq!(both.as_deref(), Some("at 9 SHA256:a"));
        for (about, retry, key, handled, expected) in [
            ("nothing is requested", None, None, None, false),
            ("the first request", Some("at 9"), None, None, true),
            ("both are handled", Some("at 9"), Some("SHA256:a"), both.as_ref(), false),
            ("the key is removed", Some("at 9"), None, both.as_ref(), false),
            ("the retry is removed", None, Some("SHA256:a"), both.as_ref(), false),
            ("another retry", Some("at 10"), Some("SHA256:a"), both.as_ref(), true),
            ("another key", Some("at 9"), Some("SHA256:b"), both.as_ref(), true),
            ("the beginning of the earlier retry", Some("at"), None, both.as_ref(), true),
            ("the end of the earlier retry", Some("9"), Some("SHA256:a"), both.as_ref(), true),
        ] {
            assert_eq!(is_retry_open(&instance(retry, key), handled), expected, "{about}");
        }
    }

    #[test]
    fn an_approval_of_another_version_has_no_effect() {
        let approved = |value: &str, time: &str| {
            let mut pool = pool(None, None);
            let act = json!({"annotation": "approve", "value": value, "time": time});
            pool.status.as_mut().unwrap().acts = vec![serde_json::from_value(act).unwrap()];
            pool
        };
        let (before, after) = ("2027-01-15T01:00:00Z", "2027-01-15T03:00:00Z");
        for (about, value, time, completed, expected) in [
            ("an approval of this version", "2-b", after, false, false),
            ("an approval of an unknown version", "2-x", after, false, true),
            ("an approval of an earlier version", "1-a", after, false, true),
            ("an approval of the previous rollout", "1-a", before, false, false),
            ("the rollout is completed", "1-a", after, true, false),
            ("a revoked approval", "", after, false, false),
        ] {
            let rollout =
                RolloutStatus { to_version: "2-b".into(), start_time: now(), completed, ..RolloutStatus::default() };
            let note = ineffective_approval_note(&approved(value, time), &rollout);
            assert_eq!(note.is_some(), expected, "{about}: {note:?}");
            assert!(note.is_none_or(|n| n.contains(value) && n.contains("approve factory --version 2-b")), "{about}");
        }
    }

    #[test]
    fn an_act_is_recorded_with_its_writer() {
        let entry = |manager: &str, annotation: &str, time: &str| -> Value {
            json!({"manager": manager, "operation": "Update", "time": time,
                "fieldsV1": {"f:metadata": {"f:annotations": {".": {}, (format!("f:{annotation}")): {}}}}})
        };
        let mut pool = pool(Some("3"), None);
        let at = "2027-01-15T01:59:00Z";
        let fields = json!([entry("argocd", key::APPROVE, NOW), entry("kubectl-annotate", key::APPROVE_REMOVAL, at)]);
        pool.metadata.managed_fields = Some(serde_json::from_value(fields).unwrap());
        let acts = to_record(&pool, now()).unwrap();
        assert_eq!((acts[0].by.as_deref(), acts[0].time), (Some("kubectl-annotate"), at.parse().unwrap()));
        // A record stays as it is when the pool comes from a cache, without managed fields.
        pool.metadata.managed_fields = None;
        pool.status = Some(api::WindowsNodePoolStatus { acts, ..api::WindowsNodePoolStatus::default() });
        assert_eq!(to_record(&pool, now()), None);
    }

    #[test]
    fn an_act_is_used_once() {
        let mut pool = pool(Some("3"), Some(("3", false)));
        use_up(&mut pool.status.as_mut().unwrap().acts, key::APPROVE_REMOVAL);
        assert_eq!(in_force(&pool, key::APPROVE_REMOVAL), None);
        assert!(is_used_up(&pool, key::APPROVE_REMOVAL));
        pool.metadata.annotations = None;
        assert_eq!(in_force(&pool, key::APPROVE_REMOVAL), None);
    }
}
