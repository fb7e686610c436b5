//! Asks the Operator Lifecycle Manager not to upgrade the operator while hosts are being changed: the condition `Upgradeable` of the
//! `OperatorCondition` that it makes for the operator. Where it does not run, there is none, and nothing happens.
//!
//! An upgrade in the middle of an operation does no harm: the next operator resumes it. The condition keeps an automatic upgrade from
//! making a change last longer.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{GrantType, WindowsInstance};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{context::Context, errors::said};

/// The type of the condition.
const UPGRADEABLE: &str = "Upgradeable";
/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(5);
/// Interval after which the condition is read though nothing has changed: another client may have taken it out.
const REREAD: Duration = Duration::from_mins(5);

/// What the condition is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    status: &'static str,
    reason: &'static str,
    message: String,
}

/// What follows from the instances. One that waits for its next attempt holds nothing up: the next operator makes that attempt as well.
fn verdict<'a>(instances: impl Iterator<Item = &'a WindowsInstance>) -> Verdict {
    let mut busy: BTreeMap<&str, BTreeMap<&'static str, usize>> = BTreeMap::new();
    for instance in instances {
        if let Some(what) = operation(instance) {
            *busy.entry(&instance.spec.pool_ref.name).or_default().entry(what).or_default() += 1;
        }
    }
    if busy.is_empty() {
        return Verdict {
            status: "True",
            reason: "NoOperation",
            message: "no host joins, is updated or is removed".into(),
        };
    }
    let of_pool = |(pool, counts): (&&str, &BTreeMap<&'static str, usize>)| {
        let counts: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        format!("pool {pool}: {}", counts.join(", "))
    };
    let pools: Vec<String> = busy.iter().map(of_pool).collect();
    let message =
        format!("hosts are being changed. {}. Wait until they are Ready, or pause the pools", pools.join("; "));
    Verdict { status: "False", reason: "HostsChange", message }
}

/// The operation that is granted to a host and not over, if it is one that an upgrade is to wait for.
fn operation(instance: &WindowsInstance) -> Option<&'static str> {
    let grant = instance.spec.grant.as_ref()?;
    let what = match grant.type_ {
        GrantType::Provision => "joining",
        GrantType::Update => "updating",
        GrantType::Remove => "leaving",
        _ => return None,
    };
    let status = instance.status.as_ref();
    let is_over = status.is_some_and(|s| s.last_operation.as_ref() == Some(&grant.id));
    let failures = status.and_then(|s| s.failures.as_ref());
    let waits = failures.is_some_and(|f| f.next_retry_time.is_some());
    (!is_over && !waits).then_some(what)
}

/// The conditions with ours, the others as they are; `None` if it is there already.
fn merged(conditions: Option<&Value>, verdict: &Verdict, now: Timestamp) -> Option<Vec<Value>> {
    let Verdict { status, reason, message } = verdict;
    let mut all = conditions.and_then(Value::as_array).cloned().unwrap_or_default();
    let ours = all.iter().position(|condition| condition["type"] == UPGRADEABLE);
    let before = ours.map(|at| all[at].clone()).unwrap_or_default();
    let same = |key: &str, value: &str| before[key] == value;
    if same("status", status) && same("reason", reason) && same("message", message) {
        return None;
    }
    let changed = before["lastTransitionTime"].as_str().filter(|_| same("status", status));
    let changed = changed.and_then(|time| time.parse().ok()).unwrap_or(now);
    let condition = Condition {
        type_: UPGRADEABLE.into(),
        status: (*status).into(),
        reason: (*reason).into(),
        message: message.clone(),
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

/// Writes the condition, if it is not there. The list has no keys, so that server-side apply would take it whole: it is replaced only as it
/// was read.
async fn write(api: &Api<DynamicObject>, name: &str, verdict: &Verdict) -> kube::Result<()> {
    let object = api.get(name).await?;
    let Some(conditions) = merged(object.data.pointer("/spec/conditions"), verdict, Timestamp::now()) else {
        return Ok(());
    };
    let version = object.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"conditions": conditions}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// Keeps the condition true to the instances, until the operator stops.
pub(crate) async fn keep(cx: Arc<Context>) {
    let Some(name) = cx.process.args.operator_condition.clone() else {
        return cx.process.stop.cancelled().await;
    };
    let api = api(&cx.cluster.client, &cx.process.args.namespace);
    let mut written: Option<(Verdict, tokio::time::Instant)> = None;
    loop {
        let instances = cx.caches.instances.state();
        let now = verdict(instances.iter().map(|instance| &**instance));
        let is_written = written.as_ref().is_some_and(|(before, at)| *before == now && at.elapsed() < REREAD);
        if !is_written {
            match write(&api, &name, &now).await {
                Ok(()) => written = Some((now, tokio::time::Instant::now())),
                // The next round tries again.
                Err(error) => {
                    tracing::warn!(name, "failed to write the OperatorCondition: {}", said(&error));
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
    fn an_upgrade_waits_for_hosts_that_are_being_changed() {
        let failures = |next: Value| json!({"failures": {"count": 1, "lastReason": "X", "lastMessage": "", "nextRetryTime": next}});
        for (about, grant, status, expected) in [
            ("joins", "Provision", json!({}), Some("1 joining")),
            ("is updated", "Update", json!({}), Some("1 updating")),
            ("leaves", "Remove", json!({}), Some("1 leaving")),
            ("is drained for a person, who may take days", "Maintenance", json!({}), None),
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
    fn the_conditions_of_others_stay() {
        let now: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
        let busy = Verdict { status: "False", reason: "HostsChange", message: "a".into() };
        let other = json!({"type": "Other", "status": "True"});
        let all = merged(Some(&json!([other])), &busy, now).unwrap();
        assert_eq!((all.len(), &all[0], &all[1]["type"]), (2, &other, &json!("Upgradeable")));
        assert_eq!(merged(Some(&json!(all)), &busy, now), None);
        // Another message is no transition.
        let later = "2027-01-02T00:00:00Z".parse().unwrap();
        let more = merged(Some(&json!(all)), &Verdict { message: "b".into(), ..busy.clone() }, later).unwrap();
        assert_eq!((&more[1]["message"], &more[1]["lastTransitionTime"]), (&json!("b"), &all[1]["lastTransitionTime"]));
        let free = merged(Some(&json!(more)), &Verdict { status: "True", ..busy }, later).unwrap();
        assert_eq!((free.len(), &free[1]["lastTransitionTime"]), (2, &json!("2027-01-02T00:00:00Z")));
    }

    #[tokio::test]
    async fn a_condition_is_replaced_only_as_it_was_read() {
        let path = "/apis/operators.coreos.com/v2/namespaces/ns/operatorconditions/op.v1";
        let api_server = FakeApi::new();
        let object = json!({"apiVersion": "operators.coreos.com/v2", "kind": "OperatorCondition",
            "metadata": {"name": "op.v1", "namespace": "ns", "resourceVersion": "7"}, "spec": {}});
        api_server.on("GET", path, 200, object.clone());
        api_server.on("PATCH", path, 200, object);
        let free = Verdict { status: "True", reason: "NoOperation", message: String::new() };
        write(&api(&api_server.client(), "ns"), "op.v1", &free).await.unwrap();
        let sent = &api_server.calls("PATCH", path)[0];
        assert_eq!(sent.body["metadata"]["resourceVersion"], "7");
        assert_eq!(sent.body["spec"]["conditions"][0]["type"], "Upgradeable");
    }
}
