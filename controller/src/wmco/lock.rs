//! The leader lock of the Windows Machine Config Operator. Both operators read the ConfigMap `windows-instances` and change the same
//! Nodes, so that this one begins nothing while that one lives.
//!
//! The lock is a ConfigMap that belongs to the Pod of the leader. It ends with that Pod alone, and it may stay behind for
//! a while: what counts is the Pod.

use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::{
    events::{EventReason, Events},
    metrics::Metrics,
};

/// Name of the ConfigMap.
const LOCK: &str = "windows-machine-config-operator-lock";
/// Reason of conditions, events and the metric.
pub(crate) const REASON: &str = "AnotherOperator";
/// Interval of the checks of the Pod that holds the lock: it is not watched.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);
/// Interval of checks without a change, in case that a watch has missed one.
const SLOW: Duration = Duration::from_mins(5);
/// The Pods of this operator. One of them owns no lock, whatever a ConfigMap says.
const OURS: (&str, &str) = ("app.kubernetes.io/name", api::names::COMPONENT);

/// The other operator, while it lives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Holder {
    lock: ConfigMap,
    pod: String,
}

impl Holder {
    /// What is wrong, and what to do.
    pub(crate) fn message(&self) -> String {
        let (pod, namespace) = (&self.pod, self.lock.namespace().unwrap_or_default());
        format!(
            "the Windows Machine Config Operator runs in the Pod {pod} (ConfigMap {namespace}/{LOCK}), and two operators must not change \
             the same nodes. No operation begins until that Pod is gone: delete its Subscription and its ClusterServiceVersion, or its \
             Deployment (docs/guide/from-wmco.md)"
        )
    }

    /// Reports it once.
    pub(crate) fn report(&self, events: &Events) {
        events.say_of(self.lock.object_ref(&()), EventReason::AnotherOperator, "Wait", &self.message());
    }
}

/// Name and UID of the Pod that owns a lock.
fn owner(lock: &ConfigMap) -> Option<(String, String)> {
    let owner = lock.owner_references().iter().find(|o| o.kind == "Pod" && o.api_version == "v1")?;
    Some((owner.name.clone(), owner.uid.clone()))
}

/// Whether the Pod that is there now is the owner, and may still work. A Pod on a lost Node may.
fn may_work(pod: &Pod, uid: &str) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
    let is_ours = pod.labels().get(OURS.0).is_some_and(|name| name == OURS.1);
    pod.metadata.uid.as_deref() == Some(uid) && !matches!(phase, "Succeeded" | "Failed") && !is_ours
}

/// The other operator, if it lives.
pub(crate) async fn holder(client: &Client, namespace: &str) -> kube::Result<Option<Holder>> {
    let locks: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let Some(lock) = locks.get_opt(LOCK).await? else { return Ok(None) };
    let Some((name, uid)) = owner(&lock) else { return Ok(None) };
    let pod = Api::<Pod>::namespaced(client.clone(), namespace).get_opt(&name).await?;
    Ok(pod.filter(|pod| may_work(pod, &uid)).map(|_| Holder { lock, pod: name }))
}

/// The other operator, as it was seen last.
#[derive(Default)]
pub(crate) struct OtherOperator(RwLock<Option<Holder>>);

impl OtherOperator {
    /// Why no operation may begin.
    pub(crate) fn message(&self) -> Option<String> {
        self.0.read().as_ref().map(Holder::message)
    }

    /// Notes what was seen. Returns whether it is something else than before.
    pub(crate) fn note(&self, found: Option<Holder>, metrics: &Metrics, events: &Events) -> bool {
        metrics.fault(found.as_ref().map(|_| REASON));
        if let Some(holder) = &found {
            holder.report(events);
        }
        let mut known = self.0.write();
        let is_new = known.is_some() != found.is_some();
        *known = found;
        is_new
    }
}

/// Follows the lock until `stop`, and reports to `on_seen` at each check.
pub(crate) async fn follow(client: Client, namespace: &str, on_seen: impl Fn(Option<Holder>), stop: CancellationToken) {
    let locks: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let only = watcher::Config::default().fields(&format!("metadata.name={LOCK}"));
    let mut changes = std::pin::pin!(watcher(locks, only).default_backoff());
    loop {
        let interval = match holder(&client, namespace).await {
            Ok(found) => {
                let interval = if found.is_some() { INTERVAL } else { SLOW };
                on_seen(found);
                interval
            }
            Err(error) => {
                tracing::warn!(%error, "failed to see whether another operator runs");
                INTERVAL
            }
        };
        let changed = tokio::time::timeout(interval, changes.next());
        if stop.run_until_cancelled(changed).await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_api::FakeApi;

    const LOCK_PATH: &str = "/api/v1/namespaces/ns/configmaps/windows-machine-config-operator-lock";
    const POD_PATH: &str = "/api/v1/namespaces/ns/pods/wmco-1";

    fn lock(owners: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": LOCK, "namespace": "ns", "ownerReferences": owners}})
    }

    fn pod(uid: &str, phase: &str, labels: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wmco-1", "uid": uid, "labels": labels},
            "status": {"phase": phase}})
    }

    #[tokio::test]
    async fn a_lock_counts_while_its_pod_may_work() {
        let owned = json!([{"apiVersion": "v1", "kind": "Pod", "name": "wmco-1", "uid": "1"}]);
        let by_other = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "wmco-1", "uid": "1"}]);
        let theirs = json!({"name": "windows-machine-config-operator"});
        let ours = json!({"app.kubernetes.io/name": "windows-node-pools"});
        for (about, owners, pod, expected) in [
            ("it runs", &owned, Some(pod("1", "Running", &theirs)), true),
            ("it starts", &owned, Some(pod("1", "Pending", &theirs)), true),
            ("its Node is lost", &owned, Some(pod("1", "Unknown", &theirs)), true),
            ("it has ended", &owned, Some(pod("1", "Succeeded", &theirs)), false),
            ("it was evicted", &owned, Some(pod("1", "Failed", &theirs)), false),
            ("another of its name", &owned, Some(pod("2", "Running", &theirs)), false),
            ("it is gone", &owned, None, false),
            ("a lock without an owner", &json!([]), Some(pod("1", "Running", &theirs)), false),
            ("a lock of something else", &by_other, Some(pod("1", "Running", &theirs)), false),
            ("a lock that names one of us", &owned, Some(pod("1", "Running", &ours)), false),
        ] {
            let api = FakeApi::new();
            api.on("GET", LOCK_PATH, 200, lock(owners));
            match pod {
                Some(pod) => api.on("GET", POD_PATH, 200, pod),
                None => api.on("GET", POD_PATH, 404, json!({"code": 404, "reason": "NotFound", "message": "gone"})),
            };
            let found = holder(&api.client(), "ns").await.unwrap();
            assert_eq!(found.is_some(), expected, "{about}");
            assert!(found.is_none_or(|h| h.message().contains("Pod wmco-1 (ConfigMap ns/windows-machine")), "{about}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_not_taken_for_nothing() {
        let api = FakeApi::new();
        let owned = json!([{"apiVersion": "v1", "kind": "Pod", "name": "wmco-1", "uid": "1"}]);
        api.on("GET", LOCK_PATH, 200, lock(&owned));
        api.on("GET", POD_PATH, 403, json!({"code": 403, "reason": "Forbidden", "message": "no"}));
        assert!(holder(&api.client(), "ns").await.is_err());
    }
}
