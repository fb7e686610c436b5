//! Leader lock of the Windows Machine Config Operator (WMCO). Both operators change the same Nodes, so this operator begins nothing while WMCO runs
//! in this operator's namespace, or, on OpenShift, in the default namespace of WMCO.
//!
//! The lock is a ConfigMap that the leader's Pod owns. Only the end of that Pod deletes it, possibly after a while, so the Pod is what counts.

use api::Reason;
use std::time::{Duration, Instant};

use api::names::{DEFAULT_NAMESPACE, WMCO_LOCK as LOCK};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{Api, Client, Resource as _, ResourceExt as _, api::ListParams, runtime::watcher};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    caches::watch::restarting,
    runtime::{
        errors::api_message,
        events::{EventReason, Events},
        metrics::{FaultSource, Metrics},
    },
};

/// Reason of conditions, events and the metric.
pub(crate) const REASON: Reason = Reason::AnotherOperator;
/// Interval of checks while WMCO may run and after an error. The Pod that holds the lock is not watched.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time without a lock holder after which WMCO counts as gone: its Deployment replaces a Pod that a drain or an upgrade ends, and the new Pod takes
/// the lock later. Shorter if the Lease is shorter than usual.
const PATIENCE: Duration = Duration::from_mins(1);
/// Time without a lock holder after which WMCO counts as gone, in durations of the Lease.
const LEASES: u32 = 4;
/// Interval of checks without a change, in case a watch missed one.
const SLOW: Duration = Duration::from_mins(5);
/// Label of this operator's Pods. They never hold the lock, whatever a ConfigMap says.
const OURS: (&str, &str) = ("app.kubernetes.io/name", api::names::COMPONENT);

/// Lock of a running WMCO, and the Pod that holds it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Holder {
    lock: ConfigMap,
    pod: String,
}

impl Holder {
    /// Returns the name of the Pod that holds the lock.
    pub(crate) fn pod(&self) -> &str {
        &self.pod
    }

    /// Returns the fault, with its remedy.
    pub(crate) fn message(&self) -> String {
        let (pod, namespace) = (&self.pod, self.lock.namespace().unwrap_or_default());
        format!(
            "the Windows Machine Config Operator was last seen in the Pod {pod} (lock: ConfigMap {namespace}/{LOCK}), and two operators must not \
             change the same nodes. Operations begin when no Pod holds that lock for a minute: delete the Subscription and the \
             ClusterServiceVersion of the Windows Machine Config Operator, or its Deployment (docs/guide/from-wmco.md)"
        )
    }

    /// Reports WMCO with an event on its lock.
    fn report(&self, events: &Events) {
        events.say_of(self.lock.object_ref(&()), EventReason::AnotherOperator, "Wait", &self.message());
    }
}

/// Returns the namespaces in which WMCO may run: the namespace of this operator, which may have been WMCO's before, and the default namespace of
/// WMCO's package.
fn namespaces(ours: &str) -> impl Iterator<Item = &str> {
    [ours].into_iter().chain((ours != DEFAULT_NAMESPACE).then_some(DEFAULT_NAMESPACE))
}

/// Returns a field selector for objects with this name.
fn named(name: &str) -> String {
    format!("metadata.name={name}")
}

/// Returns the name and UID of the Pod that owns a lock. Ignores a name that no Pod can have, because it becomes part of a selector.
fn owner(lock: &ConfigMap) -> Option<(String, String)> {
    let may_be_name = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
    let mut owners = lock.owner_references().iter().filter(|o| o.kind == "Pod" && o.api_version == "v1");
    let owner = owners.find(|o| may_be_name(&o.name))?;
    Some((owner.name.clone(), owner.uid.clone()))
}

/// Reports whether the Pod is the owner and may still work. A Pod on a lost Node may.
fn may_work(pod: &Pod, uid: &str) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
    let is_ours = pod.labels().get(OURS.0).is_some_and(|name| name == OURS.1);
    pod.metadata.uid.as_deref() == Some(uid) && !matches!(phase, "Succeeded" | "Failed") && !is_ours
}

/// Returns the lock of WMCO and the Pod that holds it, if WMCO runs. `ours` is the namespace of this operator.
pub(crate) async fn holder(client: &Client, ours: &str) -> kube::Result<Option<Holder>> {
    for namespace in namespaces(ours) {
        if let Some(holder) = holder_in(client, namespace).await?
            && (namespace == ours || works_here(client).await?)
        {
            return Ok(Some(holder));
        }
    }
    Ok(None)
}

/// Reports whether WMCO can run in this cluster, which must be OpenShift. Elsewhere, a client that creates namespaces could block this operator with
/// a namespace of WMCO's name.
async fn works_here(client: &Client) -> kube::Result<bool> {
    let groups = client.list_api_groups().await?.groups;
    Ok(groups.iter().any(|group| group.name == "config.openshift.io"))
}

async fn holder_in(client: &Client, namespace: &str) -> kube::Result<Option<Holder>> {
    let locks: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let Some(lock) = locks.get_opt(LOCK).await? else { return Ok(None) };
    let Some((name, uid)) = owner(&lock) else { return Ok(None) };
    // The operator may already list Pods in all namespaces, for drains, and needs no further permission.
    let pods =
        Api::<Pod>::namespaced(client.clone(), namespace).list(&ListParams::default().fields(&named(&name))).await?;
    Ok(pods.items.iter().any(|pod| may_work(pod, &uid)).then_some(Holder { lock, pod: name }))
}

/// Reason why no operation may begin.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Presence {
    /// WMCO runs, or its Pod has ended recently.
    #[error("{}", .0.message())]
    Lives(Box<Holder>),
    /// WMCO has nodes here, and this process does not know for how long no Pod has held the lock.
    #[error(
        "nodes of the Windows Machine Config Operator are in this cluster, and no Pod holds its lock (ConfigMap {LOCK}): a Pod that a drain or \
         an upgrade has ended may be replaced. Operations begin when the lock has been free for a minute"
    )]
    MayReturn,
    /// The presence is unknown.
    #[error(
        "it is not known whether the Windows Machine Config Operator runs, so no operation begins ({0}): check the API server, and the \
         operator's rights to get ConfigMaps and to list Pods"
    )]
    Unknown(String),
}

impl Presence {
    /// Returns the reason for conditions, events and the metric.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Lives(_) | Self::MayReturn => REASON,
            Self::Unknown(_) => Reason::ApiError,
        }
    }
}

/// Presence of WMCO, as last observed. `None` before the API server has answered for the first time.
#[derive(Debug)]
pub(crate) struct OtherOperator(watch::Sender<Option<Result<(), Presence>>>);

impl Default for OtherOperator {
    /// Returns a state in which WMCO is gone, for commands that begin nothing.
    fn default() -> Self {
        Self(watch::channel(Some(Ok(()))).0)
    }
}

impl OtherOperator {
    /// Returns a state in which nothing is known yet, so that nothing begins.
    pub(crate) fn unknown() -> Self {
        Self(watch::channel(None).0)
    }

    /// Returns the reason why no operation may begin, if any.
    pub(crate) fn problem(&self) -> Option<Presence> {
        let unasked = || Err(Presence::Unknown("the API server has not answered yet".into()));
        self.0.borrow().clone().unwrap_or_else(unasked).err()
    }

    /// Reports whether WMCO is known to be gone.
    pub(crate) fn is_gone(&self) -> bool {
        *self.0.borrow() == Some(Ok(()))
    }

    /// Waits until the API server was queried once.
    pub(crate) async fn known(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(Option::is_some).await;
    }

    /// Records the observed presence. An error of the API server does not change a known presence. Returns whether the presence has changed.
    pub(crate) fn note(&self, found: kube::Result<Option<Presence>>, metrics: &Metrics, events: &Events) -> bool {
        let seen = match found {
            Ok(found) => found.map_or(Ok(()), Err),
            Err(error) => {
                tracing::warn!(%error, "failed to check whether the Windows Machine Config Operator runs; the operator retries");
                if !matches!(&*self.0.borrow(), None | Some(Err(Presence::Unknown(_)))) {
                    return false;
                }
                Err(Presence::Unknown(api_message(&error)))
            }
        };
        metrics.fault(FaultSource::OtherOperator, seen.as_ref().err().map(Presence::reason));
        if let Err(Presence::Lives(holder)) = &seen {
            holder.report(events);
        }
        let seen = Some(seen);
        self.0.send_if_modified(|known| std::mem::replace(known, seen.clone()) != seen)
    }
}

#[cfg(test)]
impl OtherOperator {
    /// Simulates the arrival or the end of WMCO.
    pub(crate) fn set(&self, lives: bool) {
        let holder = Holder { lock: ConfigMap::default(), pod: "wmco-1".into() };
        self.0.send_replace(Some(if lives { Err(Presence::Lives(Box::new(holder))) } else { Ok(()) }));
    }
}

/// Last holder of the lock, and the time when it was seen.
#[derive(Debug)]
struct Last {
    holder: Option<Holder>,
    /// Time when the lock was last seen held, or when this process began: earlier holders are unknown.
    seen: Instant,
}

impl Last {
    /// Returns the presence that counts at the time `now`, after `found` was observed. A holder that is gone counts until `patience` has passed. If
    /// WMCO has nodes, a holder that this process never saw counts as well during that time, because it may have ended just before.
    fn counted(
        &mut self,
        found: Option<Holder>,
        now: Instant,
        patience: Duration,
        has_nodes: impl Fn() -> bool,
    ) -> Option<Presence> {
        if found.is_some() {
            (self.holder, self.seen) = (found, now);
        } else if now.duration_since(self.seen) >= patience {
            self.holder = None;
            return None;
        }
        match &self.holder {
            Some(holder) => Some(Presence::Lives(Box::new(holder.clone()))),
            None => has_nodes().then_some(Presence::MayReturn),
        }
    }
}

/// Follows the lock until `stop`, and calls `on_seen` at each check. `ours` is the namespace of this operator, `lease` the duration of its Lease, and
/// `has_nodes` reports whether WMCO has nodes in the cluster.
pub(crate) async fn follow(
    client: Client,
    ours: &str,
    lease: Duration,
    has_nodes: impl Fn() -> bool,
    on_seen: impl Fn(kube::Result<Option<Presence>>),
    stop: CancellationToken,
) {
    let of_namespace = |namespace| {
        let locks: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        restarting(watcher(locks, watcher::Config::default().fields(&named(LOCK)))).boxed()
    };
    let mut changes = stream::select_all(namespaces(ours).map(of_namespace));
    let mut last = Last { holder: None, seen: Instant::now() };
    loop {
        let found = holder(&client, ours).await;
        let found = found.map(|found| last.counted(found, Instant::now(), PATIENCE.min(LEASES * lease), &has_nodes));
        let interval = if matches!(found, Ok(None)) { SLOW } else { INTERVAL };
        on_seen(found);
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
    const POD_PATH: &str = "/api/v1/namespaces/ns/pods?fieldSelector=metadata.name=wmco-1";

    /// Returns the owner of a lock of WMCO.
    fn owned() -> Value {
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "wmco-1", "uid": "1"}])
    }

    fn lock_in(namespace: &str, owners: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": LOCK, "namespace": namespace, "ownerReferences": owners}})
    }

    fn pods(pods: &[Value]) -> Value {
        json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods})
    }

    /// Returns the paths of the lock and of the Pods in the default namespace of WMCO's package.
    fn of_its_own() -> (String, String) {
        let own = format!("/api/v1/namespaces/{DEFAULT_NAMESPACE}");
        (format!("{own}/configmaps/{LOCK}"), format!("{own}/pods?fieldSelector=metadata.name=wmco-1"))
    }

    fn pod(uid: &str, phase: &str, labels: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wmco-1", "uid": uid, "labels": labels},
            "status": {"phase": phase}})
    }

    #[tokio::test]
    async fn a_lock_counts_while_its_pod_may_work() {
        let owned = owned();
        let by_other = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "wmco-1", "uid": "1"}]);
        let theirs = json!({"name": "windows-machine-config-operator"});
        let ours = json!({"app.kubernetes.io/name": "windows-node-pools"});
        let by_no_name = json!([{"apiVersion": "v1", "kind": "Pod", "name": "wmco-1,a=b", "uid": "1"}]);
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
            ("a lock of a name that no Pod can have", &by_no_name, Some(pod("1", "Running", &theirs)), false),
            ("a lock that names a Pod of this operator", &owned, Some(pod("1", "Running", &ours)), false),
        ] {
            let api = FakeApi::new();
            api.on("GET", LOCK_PATH, 200, lock_in("ns", owners));
            api.on("GET", POD_PATH, 200, pods(pod.as_slice()));
            api.fail("GET", &of_its_own().0, 404, "NotFound", "there is no such namespace", Value::Null);
            let found = holder(&api.client(), "ns").await.unwrap();
            assert_eq!(found.is_some(), expected, "{about}");
            assert!(
                found.is_none_or(|h| h.message().contains("Pod wmco-1 (lock: ConfigMap ns/windows-machine")),
                "{about}"
            );
        }
    }

    #[tokio::test]
    async fn wmco_in_its_own_namespace_is_detected() {
        let (own_lock, own_pods) = of_its_own();
        let on = |group: &str| json!([{"name": group, "versions": []}]);
        for (about, code, groups, expected) in [
            ("it runs there", 200, on("config.openshift.io"), Some(true)),
            ("it cannot be read", 403, on("config.openshift.io"), None),
            // Clients that may create a namespace of that name must not block this operator.
            ("it cannot run in this cluster", 200, on("apps"), Some(false)),
        ] {
            let api = FakeApi::new();
            api.fail("GET", LOCK_PATH, 404, "NotFound", "there is none", Value::Null);
            api.on("GET", &own_lock, code, lock_in(DEFAULT_NAMESPACE, &owned()));
            api.on("GET", &own_pods, 200, pods(&[pod("1", "Running", &json!({}))]));
            api.on("GET", "/apis", 200, json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}));
            let found = holder(&api.client(), "ns").await;
            assert_eq!(found.as_ref().ok().map(Option::is_some), expected, "{about}: {found:?}");
            let says = format!("Pod wmco-1 (lock: ConfigMap {DEFAULT_NAMESPACE}/{LOCK})");
            assert!(found.ok().flatten().is_none_or(|h| h.message().contains(&says)), "{about}");
        }
        assert_eq!(namespaces(DEFAULT_NAMESPACE).collect::<Vec<_>>(), [DEFAULT_NAMESPACE], "it is asked once");
    }

    #[test]
    fn a_replaced_pod_counts_until_the_next_one_has_the_lock() {
        let begin = Instant::now();
        let holder = |pod: &str| Holder { lock: ConfigMap::default(), pod: pod.into() };
        let replaced = [
            (0, None, None),
            (1, Some("wmco-1"), Some("wmco-1")),
            (2, None, Some("wmco-1")),
            (60, None, Some("wmco-1")),
            (60, Some("wmco-2"), Some("wmco-2")),
            (119, None, Some("wmco-2")),
            (120, None, None),
            (121, None, None),
        ];
        // The Pod ended before this process began.
        const MAY: &str = "may return";
        let unseen = [(0, None, Some(MAY)), (59, None, Some(MAY)), (60, None, None), (61, None, None)];
        let next_one = [(0, None, Some(MAY)), (59, Some("wmco-2"), Some("wmco-2")), (61, None, Some("wmco-2"))];
        for (has_nodes, times) in [(false, &replaced[..]), (true, &unseen), (true, &next_one)] {
            let mut last = Last { holder: None, seen: begin };
            for &(second, found, expected) in times {
                let now = begin + Duration::from_secs(second);
                let counted = last.counted(found.map(holder), now, Duration::from_mins(1), || has_nodes);
                let counted = counted.map(|presence| match presence {
                    Presence::Lives(holder) => holder.pod().to_owned(),
                    Presence::MayReturn => MAY.into(),
                    Presence::Unknown(why) => why,
                });
                assert_eq!(counted.as_deref(), expected, "{second} s: {found:?}, nodes: {has_nodes}");
            }
        }
    }

    #[tokio::test]
    async fn unreadable_pods_do_not_count_as_missing() {
        let api = FakeApi::new();
        api.on("GET", LOCK_PATH, 200, lock_in("ns", &owned()));
        api.on("GET", POD_PATH, 403, json!({"code": 403, "reason": "Forbidden", "message": "no"}));
        assert!(holder(&api.client(), "ns").await.is_err());
    }

    #[tokio::test]
    async fn nothing_begins_before_the_presence_is_known_and_an_outage_does_not_change_it() {
        let api = FakeApi::new();
        let (other, metrics) = (OtherOperator::unknown(), Metrics::default());
        let events = Events::new(api.client(), "test");
        let outage = || Err(kube::Error::Api(Box::new(kube::core::Status::failure("down", "x").with_code(500))));
        let lives = || Ok(Some(Presence::Lives(Box::new(Holder { lock: ConfigMap::default(), pod: "wmco-1".into() }))));
        let reason = || other.problem().map(|problem| problem.reason().as_str());
        assert_eq!((other.is_gone(), reason()), (false, Some("ApiError")));
        for (about, found, is_new, expected) in [
            ("it cannot be asked", outage(), true, Some("ApiError")),
            ("the same", outage(), false, Some("ApiError")),
            ("it lives", lives(), true, Some("AnotherOperator")),
            ("an outage", outage(), false, Some("AnotherOperator")),
            ("it goes", Ok(None), true, None),
            ("an outage after that", outage(), false, None),
            ("it comes back", lives(), true, Some("AnotherOperator")),
            ("it may come back", Ok(Some(Presence::MayReturn)), true, Some("AnotherOperator")),
            ("an outage meanwhile", outage(), false, Some("AnotherOperator")),
        ] {
            assert_eq!(other.note(found, &metrics, &events), is_new, "{about}");
            assert_eq!((reason(), other.is_gone()), (expected, expected.is_none()), "{about}");
        }
    }
}
