//! Decisions about a pool. Pure.

use api::{
    Reason, Time, WindowsNodePool, WindowsNodePoolStatus,
    conditions::{find, kind},
    names::key,
    text,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    decision::{Change, Decided, Refusal},
    keeper,
};
use wnp_core::{acts, enumeration::counted};

/// Longest text of another author that is repeated.
const MOST: usize = 128;
/// Names that are listed.
const FEW: usize = 10;

fn refuse(message: impl Into<String>) -> Decided {
    Err(Refusal::new(message))
}

fn annotate(key: &str, value: impl Into<Value>) -> Value {
    json!({"metadata": {"annotations": {key: value.into()}}})
}

/// The status, if it is about the spec as it is now.
fn current(pool: &WindowsNodePool) -> Result<WindowsNodePoolStatus, Refusal> {
    let status = pool.status.clone().unwrap_or_default();
    if status.observed_generation == pool.metadata.generation && status.observed_generation.is_some() {
        Ok(status)
    } else {
        Err(Refusal::new(
            "the operator has not seen its last change yet, so it is not known what waits: run the command again when it has",
        ))
    }
}

/// The version that waits for an approval.
fn waiting_version(status: &WindowsNodePoolStatus) -> Option<&str> {
    let waits = find(&status.conditions, kind::UPDATED).is_some_and(|c| c.reason == Reason::WaitingForApproval);
    status.desired_version.as_deref().filter(|_| waits)
}

/// Number of hosts whose removal waits.
fn waiting_removals(status: &WindowsNodePoolStatus) -> usize {
    usize::try_from(status.removals_to_confirm).unwrap_or_default()
}

fn hosts(number: usize) -> String {
    counted(number, "host")
}

/// Approves what waits: this version, so many removals, or the one of both that waits. `members` are the names of the pool's instances.
pub(super) fn approve(
    pool: &WindowsNodePool,
    members: &[String],
    version: Option<&str>,
    removals: Option<usize>,
) -> Decided {
    let status = current(pool)?;
    let (waiting, leaving) = (waiting_version(&status), waiting_removals(&status));
    match (version, removals) {
        (Some(version), _) => approve_version(pool, waiting, version),
        (None, Some(number)) => approve_removals(pool, members, &status, number),
        (None, None) => match (waiting, leaving) {
            (None, 0) => refuse("nothing waits for an approval; see: windows-node-pools status"),
            (Some(version), 0) => approve_version(pool, waiting, version),
            (None, number) => approve_removals(pool, members, &status, number),
            (Some(version), number) => refuse(format!(
                "a version and a removal wait for an approval: name one with --version {version} or --removals {number}"
            )),
        },
    }
}

fn approve_version(pool: &WindowsNodePool, waiting: Option<&str>, version: &str) -> Decided {
    let before = acts::in_force(pool, key::APPROVE).map(|before| text::line(before, MOST));
    match waiting {
        _ if before.as_deref() == Some(version) => Ok(Change::none(format!("version {version} is approved already"))),
        None => refuse("no version waits for an approval; see: windows-node-pools status"),
        Some(waiting) if waiting != version => {
            refuse(format!("version {waiting} waits for an approval, not {}", text::line(version, MOST)))
        }
        Some(_) => {
            let before = before.map_or_else(|| "no version".to_owned(), |before| format!("version {before}"));
            let message = format!("{before} was approved; now version {version} is, and the rollout goes on");
            Ok(Change::new(annotate(key::APPROVE, version), message))
        }
    }
}

/// The hosts whose removal waits, as far as they are known. The status names those of lists outside of the pool.
fn names_of_removals(pool: &WindowsNodePool, members: &[String], status: &WindowsNodePoolStatus) -> String {
    let is_listed = |name: &&String| pool.spec.hosts().iter().any(|host| host.name == **name);
    let mut names: Vec<String> = match &status.inventory {
        Some(inventory) => inventory.held_removals.iter().map(|name| text::line(name, MOST)).collect(),
        None => members.iter().filter(|name| !is_listed(name)).cloned().collect(),
    };
    names.sort();
    names.truncate(FEW);
    let more = waiting_removals(status).saturating_sub(names.len());
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

fn approve_removals(
    pool: &WindowsNodePool,
    members: &[String],
    status: &WindowsNodePoolStatus,
    number: usize,
) -> Decided {
    let waiting = waiting_removals(status);
    if waiting == 0 {
        return refuse("no removal waits for an approval; see: windows-node-pools status");
    }
    let names = names_of_removals(pool, members, status);
    if number != waiting {
        return refuse(format!("the removal of {} waits, not of {number}: {names}", hosts(waiting)));
    }
    if acts::in_force(pool, key::APPROVE_REMOVAL) == Some(&number.to_string()) {
        return Ok(Change::none(format!("the removal of {} is approved already", hosts(number))));
    }
    let danger = format!(
        "{} will be drained and deconfigured, and their Nodes deleted: {names}. A host that has been deconfigured must join again",
        hosts(number)
    );
    let message = format!("the removal of {} waited; now it is approved: {names}", hosts(number));
    let patch = annotate(key::APPROVE_REMOVAL, number.to_string());
    Ok(Change { danger: Some(danger), ..Change::new(patch, message) })
}

/// Pauses the pool, until a time or without an end.
pub(super) fn pause(pool: &WindowsNodePool, until: Option<Time>, now: Timestamp) -> Decided {
    let before = pool.spec.rollout().pause(now);
    let was = before.map_or_else(|| "it was not paused".to_owned(), |pause| format!("it was {pause}"));
    let (field, patch, after) = match until {
        None if before.is_some_and(|pause| pause.end().is_none()) => {
            return Ok(Change::none("it is paused without an end already"));
        }
        None => ("paused", json!({"paused": true}), "paused, until: windows-node-pools resume".to_owned()),
        Some(until) if until.known().is_none_or(|end| end <= now) => {
            return refuse(format!("{until} has passed: name a time to come"));
        }
        Some(until) => match before {
            Some(pause) if pause.end().is_none() => {
                return refuse("it is paused without an end, which would be shortened: resume it first, or leave it");
            }
            Some(pause) if pause.end() == until.known() => {
                return Ok(Change::none(format!("it is {pause} already")));
            }
            _ => ("pausedUntil", json!({"pausedUntil": until}), format!("paused until {until}")),
        },
    };
    let message = format!("{was}; now it is {after}. Nothing new begins; what has begun is finished");
    let warnings = keeper::warning(pool, &[field]).into_iter().collect();
    Ok(Change { warnings, ..Change::new(json!({"spec": {"rollout": patch}}), message) })
}

/// Ends a pause.
pub(super) fn resume(pool: &WindowsNodePool, now: Timestamp) -> Change {
    let Some(pause) = pool.spec.rollout().pause(now) else {
        return Change::none("it is not paused");
    };
    let patch = json!({"spec": {"rollout": {"paused": null, "pausedUntil": null}}});
    let warnings = keeper::warning(pool, &["paused", "pausedUntil"]).into_iter().collect();
    Change { warnings, ..Change::new(patch, format!("it was {pause}; now it goes on")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2027-01-15T02:00:00Z";
    const VERSION: &str = "1.0.0-5c9a1f0e";

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

    fn waits(version: bool, removals: usize) -> Value {
        let reason = if version { "WaitingForApproval" } else { "Progressing" };
        let held: Vec<&str> = ["win-1", "win-2"].into_iter().take(removals).collect();
        json!({
            "observedGeneration": 7,
            "desiredVersion": VERSION,
            "removalsToConfirm": removals,
            "inventory": {"source": "the list", "verdict": "NotAsked", "heldRemovals": held},
            "conditions": [{"type": "Updated", "status": "False", "reason": reason, "message": "", "lastTransitionTime": NOW}],
        })
    }

    fn outcome_of(decided: Decided) -> (Value, String) {
        match decided {
            Ok(change) => (change.patch.unwrap_or_default(), change.message),
            Err(refusal) => (json!("refused"), refusal.to_string()),
        }
    }

    #[test]
    fn only_what_waits_is_approved() {
        let none = json!({});
        let approved = json!({"annotations": {key::APPROVE: VERSION}});
        let older = json!({"annotations": {key::APPROVE: "0.9.0-a"}});
        let confirmed = json!({"annotations": {key::APPROVE_REMOVAL: "2"}});
        let (version, removal) = (annotate(key::APPROVE, VERSION), annotate(key::APPROVE_REMOVAL, "2"));
        let refused = json!("refused");
        let stale = json!({"observedGeneration": 6});
        for (about, metadata, status, asked, number, patch, message) in [
            ("new", &none, json!({}), None, None, &refused, "has not seen its last change yet"),
            ("changed", &none, stale, None, None, &refused, "has not seen its last change yet"),
            ("nothing waits", &none, waits(false, 0), None, None, &refused, "nothing waits for an approval"),
            ("no version waits", &none, waits(false, 2), Some(VERSION), None, &refused, "no version waits"),
            ("no removal waits", &none, waits(true, 0), None, Some(2), &refused, "no removal waits"),
            (
                "the one version",
                &none,
                waits(true, 0),
                None,
                None,
                &version,
                "no version was approved; now version 1.0.0-",
            ),
            (
                "this version",
                &older,
                waits(true, 2),
                Some(VERSION),
                None,
                &version,
                "version 0.9.0-a was approved; now",
            ),
            (
                "another version",
                &none,
                waits(true, 0),
                Some("2"),
                None,
                &refused,
                "version 1.0.0-5c9a1f0e waits for an approval, not 2",
            ),
            ("approved", &approved, waits(true, 0), None, None, &Value::Null, "is approved already"),
            ("both", &none, waits(true, 2), None, None, &refused, "--version 1.0.0-5c9a1f0e or --removals 2"),
            (
                "the one removal",
                &none,
                waits(false, 2),
                None,
                None,
                &removal,
                "the removal of 2 hosts waited; now it is approved: win-1, win-2",
            ),
            ("this removal", &none, waits(true, 2), None, Some(2), &removal, "now it is approved"),
            (
                "another number",
                &none,
                waits(false, 2),
                None,
                Some(3),
                &refused,
                "the removal of 2 hosts waits, not of 3: win-1, win-2",
            ),
            ("more than are named", &none, waits(false, 5), None, Some(2), &refused, "win-1, win-2, 3 more"),
            ("confirmed", &confirmed, waits(false, 2), None, None, &Value::Null, "is approved already"),
        ] {
            let (found, said) = outcome_of(approve(&pool(metadata, &none, &status), &[], asked, number));
            assert_eq!(found, *patch, "{about}: {said}");
            assert!(said.contains(message), "{about}: {said}");
        }
        let danger = |version, removals| {
            approve(&pool(&none, &none, &waits(version, removals)), &[], None, None).unwrap().danger
        };
        assert_eq!(danger(true, 0), None);
        assert!(
            danger(false, 1)
                .unwrap()
                .starts_with("1 host will be drained and deconfigured, and their Nodes deleted: win-1.")
        );
    }

    #[test]
    fn hosts_that_leave_the_own_list_of_a_pool_are_named() {
        let mut status = waits(false, 2);
        status["inventory"] = Value::Null;
        let mut pool = pool(&json!({}), &json!({}), &status);
        pool.spec.inventory.hosts = Some(vec![api::Host { name: "win-2".into(), ..api::Host::default() }]);
        let members = ["win-3", "win-2", "win-1"].map(ToOwned::to_owned);
        let (_, said) = outcome_of(approve(&pool, &members, None, None));
        assert!(said.ends_with("now it is approved: win-1, win-3"), "{said}");
    }

    #[test]
    fn a_pause_takes_none_back_that_another_has_made() {
        let (past, soon, late) = ("2027-01-15T01:00:00Z", "2027-01-15T03:00:00Z", "2027-01-15T04:00:00Z");
        let (forever, until) = (json!({"paused": true}), |time: &str| json!({"pausedUntil": time}));
        let refused = json!("refused");
        for (about, before, asked, patch, message) in [
            (
                "none",
                json!({}),
                None,
                json!({"spec": {"rollout": forever}}),
                "it was not paused; now it is paused, until: ",
            ),
            ("it ended", until(past), None, json!({"spec": {"rollout": forever}}), "it was not paused; now"),
            (
                "longer",
                until(soon),
                None,
                json!({"spec": {"rollout": forever}}),
                "it was paused until 2027-01-15T03:00:00Z; now it is paused, until: ",
            ),
            ("already", forever.clone(), None, Value::Null, "paused without an end already"),
            (
                "until",
                json!({}),
                Some(soon),
                json!({"spec": {"rollout": until(soon)}}),
                "now it is paused until 2027-01-15T03:00:00Z.",
            ),
            (
                "another time",
                until(soon),
                Some(late),
                json!({"spec": {"rollout": until(late)}}),
                "it was paused until 2027-01-15T03:00:00Z; now",
            ),
            ("the same time", until(soon), Some(soon), Value::Null, "already"),
            ("shorter than without an end", forever.clone(), Some(soon), refused.clone(), "resume it first"),
            ("a time that has passed", json!({}), Some(past), refused, "2027-01-15T01:00:00Z has passed"),
        ] {
            let now = NOW.parse().unwrap();
            let asked = asked.map(|time| time.parse().unwrap());
            let (found, said) = outcome_of(pause(&pool(&json!({}), &before, &json!({})), asked, now));
            assert_eq!(found, patch, "{about}: {said}");
            assert!(said.contains(message), "{about}: {said}");
        }
    }

    #[test]
    fn a_pause_is_ended_once() {
        let gone = json!({"spec": {"rollout": {"paused": null, "pausedUntil": null}}});
        for (before, patch, message) in [
            (json!({}), Value::Null, "it is not paused"),
            (json!({"pausedUntil": "2027-01-15T01:00:00Z"}), Value::Null, "it is not paused"),
            (json!({"paused": true}), gone.clone(), "it was paused; now it goes on"),
            (json!({"pausedUntil": "2027-01-15T03:00:00Z"}), gone, "it was paused until 2027-01-15T03:00:00Z; now"),
        ] {
            let (found, said) = outcome_of(Ok(resume(&pool(&json!({}), &before, &json!({})), NOW.parse().unwrap())));
            assert_eq!(found, patch, "{before}: {said}");
            assert!(said.starts_with(message), "{before}: {said}");
        }
    }

    #[test]
    fn a_pause_that_git_takes_back_is_a_warning() {
        let owned = json!({"managedFields": [{"manager": "kustomize-controller", "fieldsV1": {"f:spec": {"f:rollout": {"f:paused": {}}}}}]});
        let paused = pause(&pool(&owned, &json!({"paused": false}), &json!({})), None, NOW.parse().unwrap()).unwrap();
        assert!(paused.warnings[0].starts_with("Flux sets spec.rollout.paused of this pool"), "{paused:?}");
        let resumed = resume(&pool(&owned, &json!({"paused": true}), &json!({})), NOW.parse().unwrap());
        assert!(resumed.warnings[0].starts_with("Flux sets spec.rollout.paused of this pool"), "{resumed:?}");
    }
}
