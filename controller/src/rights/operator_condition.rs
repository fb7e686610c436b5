//! Condition `Upgradeable` of the `OperatorCondition`, which keeps the Operator Lifecycle Manager (OLM) from upgrading the operator while hosts are
//! being changed. Without OLM there is no `OperatorCondition`, and nothing happens.
//!
//! An upgrade during an operation does no harm, because the next operator resumes the operation. The condition only keeps automatic upgrades from
//! prolonging a change. A leader that cannot work therefore withdraws its own `False`, even during operations: it cannot finish them, and the upgrade
//! may repair it. Without a leader, the condition stays unchanged. The time of the last write in its message shows this to users.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{GrantType, Reason, WindowsInstance};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    args::Run,
    context::Context,
    runtime::{clock, errors::api_message},
};

/// Type of the condition that OLM reads before it upgrades the operator.
const UPGRADEABLE: &str = "Upgradeable";
/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(5);
/// Interval after which the condition is read even if nothing has changed, because another client may have removed it. A condition that is `False`
/// is also written again, with the current time.
const REREAD: Duration = Duration::from_mins(5);

/// Desired state of the condition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DesiredCondition {
    status: &'static str,
    reason: Reason,
    message: String,
}

/// Reason of the condition while it is `False`.
const HOSTS_CHANGE: Reason = Reason::Progressing;

/// Returns the condition with which a leader that cannot work replaces an earlier report on operations, or `None` if there is no such report.
fn when_unable(conditions: Option<&Value>, cause: Reason) -> Option<DesiredCondition> {
    let ours = conditions.and_then(Value::as_array)?.iter().find(|condition| condition["type"] == UPGRADEABLE)?;
    let is_stale = ours["status"] == "False" && ours["reason"] == HOSTS_CHANGE.as_str();
    is_stale.then(|| DesiredCondition {
        status: "True",
        reason: Reason::CannotWork,
        message: format!(
            "this operator cannot work ({cause}): it changes no host, and the next operator resumes the operations that have begun"
        ),
    })
}

/// Returns the condition that follows from the instances. An instance that waits for its next attempt does not block an upgrade, because the next
/// operator can make that attempt.
fn verdict<'a>(instances: impl Iterator<Item = &'a WindowsInstance>) -> DesiredCondition {
    let mut busy: BTreeMap<&str, BTreeMap<&'static str, usize>> = BTreeMap::new();
    for instance in instances {
        if let Some(what) = operation(instance) {
            *busy.entry(&instance.spec.pool_ref.name).or_default().entry(what).or_default() += 1;
        }
    }
    if busy.is_empty() {
        return DesiredCondition {
            status: "True",
            reason: Reason::AsExpected,
            message: "no host joins, is updated or is removed, apart from hosts that wait for their next attempt"
                .into(),
        };
    }
    let of_pool = |(pool, counts): (&&str, &BTreeMap<&'static str, usize>)| {
        let counts: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        format!("pool {pool}: {}", counts.join(", "))
    };
    let pools: Vec<String> = busy.iter().map(of_pool).collect();
    let message = format!(
        "hosts are being changed. {}. Wait until these operations end; to prevent further operations, pause the pools",
        pools.join("; ")
    );
    DesiredCondition { status: "False", reason: HOSTS_CHANGE, message }
}

/// Returns the granted, unfinished operation of a host, if an upgrade must wait for it.
fn operation(instance: &WindowsInstance) -> Option<&'static str> {
    let grant = instance.open_grant()?;
    let what = match grant.type_ {
        GrantType::Provision => "joining",
        GrantType::Update => "updating",
        GrantType::Remove => "leaving",
        _ => return None,
    };
    let status = instance.status.as_ref();
    let failures = status.and_then(|s| s.failures.as_ref());
    let waits = failures.is_some_and(|f| f.next_retry_time.is_some());
    (!waits).then_some(what)
}

/// Text before the time in the message of a condition that is `False`.
const WRITTEN: &str = " (written at ";

/// Returns the message to write. The message of a condition that blocks upgrades has a time, which shows users whether an operator still renews it.
fn dated(verdict: &DesiredCondition, now: Timestamp) -> String {
    match verdict.status {
        "False" => format!("{}{WRITTEN}{now:.0}, and again every 5 minutes)", verdict.message),
        _ => verdict.message.clone(),
    }
}

/// Reports whether a message matches the verdict, and was written recently if it must be renewed.
fn is_said(message: &str, verdict: &DesiredCondition, now: Timestamp) -> bool {
    let (text, time) = message.rsplit_once(WRITTEN).unwrap_or((message, ""));
    let time = time.split(',').next().and_then(|time| time.parse::<Timestamp>().ok());
    let is_fresh = time.is_some_and(|time| now.duration_since(time).unsigned_abs() < REREAD);
    text == verdict.message && (verdict.status != "False" || is_fresh)
}

/// Returns all conditions with the operator's own condition updated, or `None` if that condition is up to date.
fn merged(conditions: Option<&Value>, verdict: &DesiredCondition, now: Timestamp) -> Option<Vec<Value>> {
    let DesiredCondition { status, reason, .. } = verdict;
    let mut all = conditions.and_then(Value::as_array).cloned().unwrap_or_default();
    let ours = all.iter().position(|condition| condition["type"] == UPGRADEABLE);
    let before = ours.map(|at| all[at].clone()).unwrap_or_default();
    let same = |key: &str, value: &str| before[key] == value;
    let is_there = before["message"].as_str().is_some_and(|message| is_said(message, verdict, now));
    if same("status", status) && same("reason", reason.as_str()) && is_there {
        return None;
    }
    let changed = before["lastTransitionTime"].as_str().filter(|_| same("status", status));
    let changed = changed.and_then(|time| time.parse().ok()).unwrap_or(now);
    let condition = Condition {
        type_: UPGRADEABLE.into(),
        status: (*status).into(),
        reason: (*reason).into(),
        message: dated(verdict, now),
        last_transition_time: Time(changed),
        observed_generation: None,
    };
    let condition = json!(condition);
    match ours {
        Some(at) => all[at] = condition,
        None => all.push(condition),
    }
    Some(all)
}

fn api(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("operators.coreos.com", "v2", "OperatorCondition");
    Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&kind))
}

/// Writes the condition that `verdict` derives from the existing ones, unless it is up to date. The list has no keys, so server-side apply would own
/// the whole list. Instead, a patch replaces the list only if it is unchanged since it was read.
async fn write(
    api: &Api<DynamicObject>,
    name: &str,
    verdict: impl FnOnce(Option<&Value>) -> Option<DesiredCondition>,
) -> kube::Result<()> {
    let object = api.get(name).await?;
    let before = object.data.pointer("/spec/conditions");
    let Some(conditions) = verdict(before).and_then(|verdict| merged(before, &verdict, clock::now())) else {
        return Ok(());
    };
    let version = object.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"conditions": conditions}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// Withdraws the condition that blocks upgrades, for a leader that cannot work.
pub(crate) async fn cannot_work(client: &Client, args: &Run, cause: Reason) {
    let Some(name) = &args.operator_condition else { return };
    if let Err(error) = write(&api(client, &args.namespace), name, |before| when_unable(before, cause)).await {
        tracing::warn!(
            name,
            "failed to write the OperatorCondition, so the Operator Lifecycle Manager decides on upgrades by an old state; the operator retries: {}",
            api_message(&error)
        );
    }
}

/// Keeps the condition up to date with the instances until the operator stops.
pub(crate) async fn keep(cx: Arc<Context>) {
    let Some(name) = cx.process.args.operator_condition.clone() else {
        return cx.process.stop.cancelled().await;
    };
    let api = api(&cx.cluster.client, &cx.process.args.namespace);
    let mut written: Option<(DesiredCondition, tokio::time::Instant)> = None;
    loop {
        let instances = cx.caches.instances.state();
        let now = verdict(instances.iter().map(|instance| &**instance));
        let is_written = written.as_ref().is_some_and(|(before, at)| *before == now && at.elapsed() < REREAD);
        if !is_written {
            match write(&api, &name, |_| Some(now.clone())).await {
                Ok(()) => written = Some((now, tokio::time::Instant::now())),
                // The next round tries again.
                Err(error) => {
                    tracing::warn!(
                        name,
                        "failed to write the OperatorCondition, so the Operator Lifecycle Manager decides on upgrades by an old state; the operator retries: {}",
                        api_message(&error)
                    );
                }
            }
        }
        if cx.process.stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::FakeApi;

    fn instance(name: &str, pool: &str, grant: &str, status: Value) -> WindowsInstance {
        let mut instance = WindowsInstance::new(name, api::WindowsInstanceSpec::default());
        instance.spec.pool_ref.name = pool.into();
        instance.spec.grant =
            serde_json::from_value(json!({"id": "g", "type": grant, "grantedTime": "2027-01-01T00:00:00Z"})).unwrap();
        instance.status = Some(serde_json::from_value(status).unwrap());
        instance
    }

    #[test]
    fn an_upgrade_waits_while_hosts_are_changed() {
        let failures = |next: Value| json!({"failures": {"count": 1, "lastReason": "X", "lastMessage": "", "nextRetryTime": next}});
        for (about, grant, status, expected) in [
            ("joins", "Provision", json!({}), Some("1 joining")),
            ("is updated", "Update", json!({}), Some("1 updating")),
            ("leaves", "Remove", json!({}), Some("1 leaving")),
            ("is drained for a user, who may take days", "Maintenance", json!({}), None),
            ("gets files ahead", "Stage", json!({}), None),
            ("is over", "Update", json!({"lastOperation": "g"}), None),
            ("failed, and waits", "Update", failures(json!("2027-01-01T00:00:00Z")), None),
            ("failed, and tries again", "Update", failures(json!(null)), Some("1 updating")),
        ] {
            let found = verdict([&instance("a", "p", grant, status)].into_iter());
            assert_eq!(found.status == "False", expected.is_some(), "{about}");
            assert!(
                expected.is_none_or(|part| found.message.contains(&format!("pool p: {part}"))),
                "{about}: {found:?}"
            );
        }
        let several = [
            instance("a", "p", "Provision", json!({})),
            instance("b", "p", "Update", json!({})),
            instance("c", "p", "Update", json!({})),
            instance("d", "q", "Remove", json!({})),
        ];
        let message = verdict(several.iter()).message;
        assert!(message.contains("pool p: 1 joining, 2 updating; pool q: 1 leaving"), "{message}");
    }

    #[test]
    fn conditions_of_other_clients_are_kept_and_only_a_new_status_is_a_transition() {
        let now: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
        let busy = DesiredCondition { status: "False", reason: Reason::Progressing, message: "a".into() };
        let other = json!({"type": "Other", "status": "True"});
        let all = merged(Some(&json!([other])), &busy, now).unwrap();
        assert_eq!((all.len(), &all[0], &all[1]["type"]), (2, &other, &json!("Upgradeable")));
        assert_eq!(merged(Some(&json!(all)), &busy, now), None);
        // A renewed time in the message is not a transition.
        let text = all[1]["message"].as_str().unwrap();
        assert_eq!(text, "a (written at 2027-01-01T00:00:00Z, and again every 5 minutes)");
        let soon = "2027-01-01T00:05:00Z".parse().unwrap();
        let renewed = merged(Some(&json!(all)), &busy, soon).unwrap();
        assert_eq!(renewed[1]["message"], text.replace("00:00Z", "05:00Z"));
        assert_eq!(renewed[1]["lastTransitionTime"], all[1]["lastTransitionTime"]);
        assert_eq!(merged(Some(&json!(all)), &busy, "2027-01-01T00:04:59Z".parse().unwrap()), None);
        // Another message is not a transition.
        let later = "2027-01-02T00:00:00Z".parse().unwrap();
        let more = merged(Some(&json!(all)), &DesiredCondition { message: "b".into(), ..busy.clone() }, later).unwrap();
        assert!(more[1]["message"].as_str().unwrap().starts_with("b (written at 2027-01-02"), "{more:?}");
        assert_eq!(more[1]["lastTransitionTime"], all[1]["lastTransitionTime"]);
        let free = merged(Some(&json!(more)), &DesiredCondition { status: "True", ..busy }, later).unwrap();
        assert_eq!((free.len(), &free[1]["lastTransitionTime"]), (2, &json!("2027-01-02T00:00:00Z")));
        assert_eq!(free[1]["message"], "a");
        let same = DesiredCondition { status: "True", reason: HOSTS_CHANGE, message: "a".into() };
        assert_eq!(merged(Some(&json!(free)), &same, now), None);
    }

    #[test]
    fn a_leader_that_cannot_work_withdraws_only_its_own_condition() {
        let upgradeable =
            |status: &str, reason: &str| json!({"type": "Upgradeable", "status": status, "reason": reason});
        let other = json!({"type": "Other", "status": "False", "reason": "Progressing"});
        for (about, conditions, takes_back) in [
            ("there are none", None, false),
            ("an empty list", Some(json!([])), false),
            ("no list", Some(json!({"type": "Upgradeable"})), false),
            ("the condition of another client", Some(json!([other])), false),
            ("it allows the upgrade", Some(json!([upgradeable("True", "AsExpected")])), false),
            ("a user holds the upgrade up", Some(json!([upgradeable("False", "Freeze")])), false),
            ("this operator has reported operations", Some(json!([other, upgradeable("False", "Progressing")])), true),
        ] {
            let found = when_unable(conditions.as_ref(), Reason::PayloadInvalid);
            assert_eq!(found.is_some(), takes_back, "{about}");
            if let Some(found) = found {
                assert!(found.status == "True" && found.message.contains("(PayloadInvalid)"), "{found:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_condition_is_written_only_to_the_version_that_was_read() {
        let path = "/apis/operators.coreos.com/v2/namespaces/ns/operatorconditions/op.v1";
        let api_server = FakeApi::new();
        let object = json!({"apiVersion": "operators.coreos.com/v2", "kind": "OperatorCondition",
            "metadata": {"name": "op.v1", "namespace": "ns", "resourceVersion": "7"}, "spec": {}});
        api_server.on("GET", path, 200, object.clone());
        api_server.on("PATCH", path, 200, object);
        let free = DesiredCondition { status: "True", reason: Reason::AsExpected, message: String::new() };
        write(&api(&api_server.client(), "ns"), "op.v1", |_| Some(free)).await.unwrap();
        let sent = &api_server.calls("PATCH", path)[0];
        assert_eq!(sent.body["metadata"]["resourceVersion"], "7");
        assert_eq!(sent.body["spec"]["conditions"][0]["type"], "Upgradeable");
    }
}
