//! Events of a pool, from the difference between two statuses. Pure.

use api::{
    Reason, WindowsNodePoolStatus,
    conditions::{find, kind},
    events::EventReason,
    services_version::short,
};

use super::conditions::in_brackets;
use crate::enumeration::counted;

/// Reasons for which changes of a pool wait for a user or for a time.
const WAITS: [Reason; 6] = [
    Reason::InvalidWindow,
    Reason::FailureLimitReached,
    Reason::Paused,
    Reason::WaitingForWindow,
    Reason::WaitingForApproval,
    Reason::BlockedByCordon,
];

/// Returns the events of a pool between one status and the next, each with its note. `changes` are the differences between the versions, in words, as
/// in the condition Updating.
pub fn events(
    before: &WindowsNodePoolStatus,
    next: &WindowsNodePoolStatus,
    changes: &str,
) -> Vec<(EventReason, String)> {
    let began_to_wait = WAITS.into_iter().filter_map(|why| {
        let message = wait(next, why).filter(|_| wait(before, why).is_none())?;
        Some((EventReason::Waits(why), message))
    });
    rollout(before, next, changes).into_iter().chain(began_to_wait).collect()
}

/// Returns the longest message of the conditions that have this reason.
fn wait(status: &WindowsNodePoolStatus, why: Reason) -> Option<String> {
    let conditions = [kind::PAUSED, kind::UPDATED, kind::UPDATING, kind::STALLED].iter();
    let with_reason = conditions.filter_map(|type_| find(&status.conditions, type_).filter(|c| c.reason == why));
    with_reason.map(|c| c.message.clone()).max_by_key(String::len)
}

/// Returns the event for the start, the rollback or the end of a rollout.
fn rollout(
    before: &WindowsNodePoolStatus,
    next: &WindowsNodePoolStatus,
    changes: &str,
) -> Option<(EventReason, String)> {
    let (was, now) = (before.rollout.as_ref(), next.rollout.as_ref()?);
    let (version, to) = (&now.to_version, short(&now.to_version));
    let Some(was) = was.filter(|was| was.to_version == *version) else {
        // A rollout that is reverted starts from the versions that the nodes follow, not from the version that the previous rollout started from.
        let others: Vec<_> = next.versions.iter().filter(|v| v.version != *version).collect();
        let nodes = |n: i32| counted(usize::try_from(n).unwrap_or_default(), "node");
        let change = match others.as_slice() {
            [] => return None,
            [from] => {
                let verb = if from.nodes == 1 { "changes" } else { "change" };
                format!("{} {verb} from version {} to version {to}", nodes(from.nodes), short(&from.version))
            }
            many => {
                let from: Vec<_> =
                    many.iter().map(|v| format!("{} from {}", nodes(v.nodes), short(&v.version))).collect();
                format!("nodes change to version {to}: {}", from.join(", "))
            }
        };
        let is_back = now.from_version.as_ref() == Some(version);
        let back = if is_back { "; the previous change is reverted" } else { "" };
        let note = format!("{change}{}{back}", in_brackets(changes));
        return (!now.completed).then_some((EventReason::RolloutStarted, note));
    };
    if now.rolled_back && !was.rolled_back {
        let from = now
            .from_version
            .as_deref()
            .map_or_else(|| "the previous version".to_owned(), |from| format!("version {}", short(from)));
        let note = format!("too many nodes failed to follow version {to}; all return to {from}");
        return Some((EventReason::RolledBack, note));
    }
    let is_over = now.completed && !was.completed;
    let note = || {
        format!(
            "all nodes follow version {to}, apart from nodes that failed, are on hold, are lost or would lose settings"
        )
    };
    is_over.then(|| (EventReason::RolloutCompleted, note()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(rollout: &Value, versions: &[(&str, i32)], conditions: &Value) -> WindowsNodePoolStatus {
        let versions: Vec<Value> = versions.iter().map(|(v, n)| json!({"version": v, "nodes": n})).collect();
        serde_json::from_value(json!({"rollout": rollout, "versions": versions, "conditions": conditions})).unwrap()
    }

    #[test]
    fn the_start_rollback_and_end_of_a_rollout_are_events() {
        let of = |from: Option<&str>, to: &str, completed: bool, rolled_back: bool| {
            json!({"fromVersion": from, "toVersion": to, "completed": completed, "rolledBack": rolled_back,
                "startTime": "2027-01-01T00:00:00Z"})
        };
        let a = || of(None, "a", true, false);
        let on = |to: &str| of(Some("a"), to, false, false);
        for (about, before, next, versions, expected) in [
            (
                "it begins",
                a(),
                on("b"),
                &[("a", 3)][..],
                "3 nodes change from version a to version b (kubelet's settings)",
            ),
            (
                "it is reverted",
                on("b"),
                on("a"),
                &[("a", 2), ("b", 1)],
                "1 node changes from version b to version a (kubelet's settings); the previous change is reverted",
            ),
            ("it is reverted before the first node", on("b"), on("a"), &[("a", 3)], ""),
            (
                "another one while some are on their way",
                on("b"),
                on("c"),
                &[("a", 1), ("b", 49)],
                "nodes change to version c: 1 node from a, 49 nodes from b (kubelet's settings)",
            ),
            ("no node is there yet", Value::Null, of(None, "b", true, false), &[], ""),
            ("it continues", on("b"), on("b"), &[("a", 1)], ""),
            (
                "it is over",
                on("b"),
                of(Some("a"), "b", true, false),
                &[("b", 1)],
                "all nodes follow version b, apart from nodes that failed, are on hold, are lost or would lose settings",
            ),
            (
                "it is rolled back",
                on("b"),
                of(Some("a"), "b", false, true),
                &[("a", 1)],
                "too many nodes failed to follow version b; all return to version a",
            ),
        ] {
            let (before, next) = (status(&before, &[], &json!([])), status(&next, versions, &json!([])));
            let notes: Vec<String> =
                events(&before, &next, "kubelet's settings").into_iter().map(|(_, note)| note).collect();
            assert_eq!(notes.join("; "), expected, "{about}");
        }
    }

    #[test]
    fn a_wait_is_one_event_when_it_begins() {
        let with = |type_: &str, why: &str, message: &str| {
            status(
                &Value::Null,
                &[],
                &json!([{"type": type_, "status": "False", "reason": why, "message": message,
                "lastTransitionTime": "2027-01-01T00:00:00Z"}]),
            )
        };
        let none = WindowsNodePoolStatus::default();
        for (why, level) in [
            ("Paused", "Normal"),
            ("WaitingForWindow", "Normal"),
            ("WaitingForApproval", "Warning"),
            ("BlockedByCordon", "Warning"),
            ("InvalidWindow", "Warning"),
            ("FailureLimitReached", "Warning"),
        ] {
            let waits = with("Updating", why, "waits for x");
            let found = events(&none, &waits, "");
            let words: Vec<_> =
                found.iter().map(|(e, note)| (e.as_str(), e.event_type().as_str(), note.as_str())).collect();
            assert_eq!(words, [(why, level, "waits for x")]);
            assert_eq!(events(&waits, &with("Updating", why, "waits for y"), ""), [], "{why}: it goes on");
        }
        assert_eq!(events(&none, &with("Updating", "Progressing", "x"), ""), [], "Progressing counted as a wait");
    }
}
