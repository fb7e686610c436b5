//! Tests of whole drain passes against a scripted API server.

use serde_json::{Value, json};

use wnp_core::drain::classify::DRAIN_LABEL;

use super::*;
use crate::fake_api::{FakeApi, failure, list, success};
use api::{OnTimeout, PodBehavior, PodRule, names::key::CORDONED_BY};

const NODE: &str = "/api/v1/nodes/win-1";
const PODS: &str = "/api/v1/pods";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const TWO_BUDGETS: &str =
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";

fn node(unschedulable: bool, holder: Option<&str>, ready: &str) -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": { "name": "win-1", "uid": "n1", "resourceVersion": "7", "annotations": holder.map(|id| json!({ CORDONED_BY: id })) },
        "spec": { "unschedulable": unschedulable },
        "status": { "conditions": [{ "type": "Ready", "status": ready }] },
    })
}

fn ours() -> Value {
    node(true, Some("op-1"), "True")
}

/// Returns a running pod of a ReplicaSet in the namespace `shop`.
fn pod(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": format!("uid-{name}"), "labels": { "pod": name },
            "ownerReferences": [{ "kind": "ReplicaSet", "apiVersion": "apps/v1", "name": "r", "uid": "r", "controller": true }],
        },
        "spec": { "containers": [], "terminationGracePeriodSeconds": 45 },
        "status": { "phase": "Running" },
    })
}

fn changed(mut pod: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[key] = value;
    pod
}

fn pods(items: &[Value]) -> Value {
    list("PodList", "v1", items, "")
}

/// Makes the API server return only these VolumeAttachments.
fn attach(api: &FakeApi, items: &[Value]) {
    let all = list("VolumeAttachmentList", "storage.k8s.io/v1", items, "");
    api.forget("GET", ATTACHMENTS).on("GET", ATTACHMENTS, 200, all);
}

fn eviction(name: &str) -> String {
    format!("/api/v1/namespaces/shop/pods/{name}/eviction")
}

fn budget(name: &str) -> Value {
    let message = format!("The disruption budget {name} needs 3 healthy pods and has 3 currently");
    failure(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        json!({ "causes": [{ "reason": "DisruptionBudget", "message": message }] }),
    )
}

/// Drain of a node on a scripted API server.
struct Bed {
    api: FakeApi,
    cx: Drainer,
    options: Options,
    /// Seconds since the drain began.
    at: i64,
    /// Seconds from the start of the drain until the cordon.
    cordoned_at: i64,
}

impl Bed {
    /// Creates a test bed with these pods on the node, which the operator has cordoned.
    fn new(items: &[Value]) -> Self {
        Self::on(&ours(), items)
    }

    /// Creates a test bed with this Node and these pods on it.
    fn on(node: &Value, items: &[Value]) -> Self {
        let api = FakeApi::new();
        api.on("GET", NODE, 200, node.clone()).on("GET", PODS, 200, pods(items));
        Self::bare(api)
    }

    fn bare(api: FakeApi) -> Self {
        let cx = Drainer::new(api.client());
        attach(&api, &[]);
        Self { api, cx, options: Options::default(), at: 60, cordoned_at: 0 }
    }

    /// Makes the API server evict these pods.
    fn evicts(&self, names: &[&str]) -> &FakeApi {
        for name in names {
            self.api.on("POST", &eviction(name), 201, success());
        }
        &self.api
    }

    async fn try_pass(&self) -> Result<Progress, DrainError> {
        let start: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let after = |seconds| start + jiff::SignedDuration::from_secs(seconds);
        let cordon = Cordon { operation_id: "op-1".into(), pre_cordoned: false };
        pass(
            &self.cx,
            &Drain {
                may_cordon: true,
                node: &serde_json::from_value(ours()).unwrap(),
                cordon: &cordon,
                started: start,
                now: after(self.at),
                cordoned_at: after(self.cordoned_at),
                options: &self.options,
            },
        )
        .await
    }

    async fn pass(&self) -> Progress {
        let progress = self.try_pass().await.unwrap();
        assert_eq!(self.api.unexpected(), Vec::<String>::new());
        progress
    }

    fn evictions(&self) -> Vec<String> {
        let posts = self.api.all_calls().into_iter().filter(|call| call.method == "POST");
        posts.map(|call| call.body["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }
}

#[tokio::test]
async fn an_eviction_names_the_uid_and_leaves_the_grace_period_to_the_pod() {
    let bed = Bed::new(&[pod("cart")]);
    bed.evicts(&["cart"]);
    let progress = bed.pass().await;
    assert_eq!((progress.state, progress.remaining), (State::Waiting, 1));
    assert_eq!(progress.next, Duration::from_secs(5));
    let calls = bed.api.calls("POST", &eviction("cart"));
    let body = &calls[0].body;
    assert_eq!((&body["apiVersion"], &body["kind"]), (&json!("policy/v1"), &json!("Eviction")));
    assert_eq!(body["metadata"], json!({ "name": "cart", "namespace": "shop" }));
    assert_eq!(body["deleteOptions"], json!({ "preconditions": { "uid": "uid-cart" } }));
}

#[tokio::test]
async fn an_overridden_grace_period_is_sent_and_never_zero() {
    for (wanted, unreachable, sent) in [
        (Some(90), false, json!(90)),
        (Some(0), false, json!(1)),
        (Some(-1), false, Value::Null),
        (None, true, json!(1)),
        (Some(90), true, json!(1)),
    ] {
        let mut bed = Bed::on(&node(true, Some("op-1"), if unreachable { "Unknown" } else { "True" }), &[pod("cart")]);
        bed.evicts(&["cart"]);
        bed.options.grace_period_seconds = wanted;
        bed.pass().await;
        let body = &bed.api.calls("POST", &eviction("cart"))[0].body;
        assert_eq!(body["deleteOptions"]["gracePeriodSeconds"], sent, "{wanted:?} {unreachable}");
    }
}

#[tokio::test]
async fn a_budget_is_named_and_tried_once_for_similar_pods() {
    let alike = |name| changed(pod(name), "/metadata/labels", json!({ "app": "cart" }));
    let bed = Bed::new(&[alike("cart-2"), alike("cart-1"), pod("other")]);
    bed.evicts(&["other"]).on("POST", &eviction("cart-1"), 429, budget("cart"));
    let progress = bed.pass().await;
    assert_eq!((progress.state, progress.remaining), (State::Waiting, 3));
    let why = "budget cart needs 3 healthy pods and has 3";
    assert_eq!(progress.blockers, [format!("shop/cart-1: {why}"), format!("shop/cart-2: {why}")]);
    assert_eq!(bed.evictions(), ["cart-1", "other"]);
    assert!(progress.forced.is_empty());
}

#[tokio::test]
async fn at_most_five_blockers_in_order() {
    let names = ["f", "b", "d", "a", "e", "c"];
    let bed = Bed::new(&names.map(pod));
    for name in names {
        bed.api.on("POST", &eviction(name), 429, budget("all"));
    }
    let progress = bed.pass().await;
    let first: Vec<&str> = progress.blockers.iter().map(|line| &line[..6]).collect();
    assert_eq!(first, ["shop/a", "shop/b", "shop/c", "shop/d", "shop/e"]);
    assert_eq!((progress.remaining, bed.evictions().len()), (6, 6));
}

#[tokio::test]
async fn two_budgets_are_a_blocker_in_either_wording() {
    for code in [500, 201] {
        let bed = Bed::new(&[pod("cart")]);
        bed.api.on("POST", &eviction("cart"), code, failure(500, "", TWO_BUDGETS, Value::Null));
        let progress = bed.pass().await;
        assert_eq!(progress.state, State::Waiting, "{code}");
        assert!(
            progress.blockers[0].starts_with("shop/cart: more than one PodDisruptionBudget"),
            "{:?}",
            progress.blockers
        );
        assert_eq!(progress.next, Duration::from_secs(20));
    }
}

#[tokio::test]
async fn a_terminating_or_missing_pod_is_not_a_blocker() {
    let terminating = json!({ "causes": [{ "reason": "NamespaceTerminating", "message": "going" }] });
    let cases = [
        failure(403, "Forbidden", "unable to create new content", terminating),
        failure(404, "NotFound", "pods \"cart\" not found", Value::Null),
        failure(409, "Conflict", "the UID in the precondition (a) does not match the UID in record (b)", Value::Null),
    ];
    for answer in cases {
        let bed = Bed::new(&[pod("cart")]);
        bed.api.on("POST", &eviction("cart"), u16::try_from(answer["code"].as_u64().unwrap()).unwrap(), answer.clone());
        let progress = bed.pass().await;
        assert_eq!((progress.state, progress.remaining), (State::Waiting, 1), "{answer}");
        assert_eq!(progress.blockers, Vec::<String>::new(), "{answer}");
    }
}

#[tokio::test]
async fn a_missing_permission_is_an_error_after_all_pods_were_tried() {
    let bed = Bed::new(&[pod("a"), pod("b")]);
    bed.evicts(&["b"]).fail("POST", &eviction("a"), 403, "Forbidden", "pods \"a\" is forbidden", Value::Null);
    let error = bed.try_pass().await.unwrap_err();
    assert_eq!(error.reason(), "EvictionForbidden");
    assert!(error.to_string().contains("shop/a"), "{error}");
    assert_eq!(bed.evictions(), ["a", "b"]);
}

#[tokio::test]
async fn an_overloaded_server_ends_the_pass_and_is_tried_again() {
    let bed = Bed::new(&[pod("a"), pod("b")]);
    let after = json!({ "retryAfterSeconds": 7 });
    bed.evicts(&["b"]).fail("POST", &eviction("a"), 429, "TooManyRequests", "busy", after);
    let progress = bed.pass().await;
    assert_eq!((bed.evictions(), progress.next), (vec!["a".to_owned()], Duration::from_secs(7)));
    bed.pass().await;
    assert_eq!(bed.evictions(), ["a", "b", "a"]);
}

#[tokio::test]
async fn every_page_of_the_pods_of_this_node_is_read() {
    let bed = Bed::bare(FakeApi::new());
    bed.evicts(&["a", "b"])
        .on("GET", NODE, 200, ours())
        .on("GET", PODS, 200, list("PodList", "v1", &[pod("a")], "two"))
        .on("GET", "/api/v1/pods?continue=two", 200, pods(&[pod("b")]));
    assert_eq!(bed.pass().await.remaining, 2);
    for call in bed.api.calls("GET", PODS) {
        assert_eq!(call.query("fieldSelector"), Some("spec.nodeName=win-1"));
        assert_eq!(call.query("limit"), Some("500"));
    }
    assert_eq!(bed.evictions(), ["a", "b"]);
}

#[tokio::test]
async fn one_refused_pod_blocks_all_evictions() {
    let bare = changed(pod("tool"), "/metadata/ownerReferences", json!([]));
    let mut bed = Bed::new(&[pod("cart"), bare]);
    bed.options.evict_unmanaged = false;
    let progress = bed.pass().await;
    assert_eq!((progress.state, progress.remaining), (State::Refused, 2));
    assert!(progress.blockers[0].starts_with("shop/tool: no controller"), "{:?}", progress.blockers);
    assert!(bed.evictions().is_empty());
}

fn of_daemon_set(name: &str) -> Value {
    changed(
        pod(name),
        "/metadata/ownerReferences",
        json!([{ "kind": "DaemonSet", "apiVersion": "apps/v1", "name": "agent", "uid": "d", "controller": true }]),
    )
}

#[tokio::test]
async fn the_pods_of_a_daemon_set_stay_but_orphans_do_not() {
    const DAEMON_SET: &str = "/apis/apps/v1/namespaces/shop/daemonsets/agent";
    let bed = Bed::new(&[of_daemon_set("agent-1"), of_daemon_set("agent-2")]);
    bed.api.on("GET", DAEMON_SET, 200, json!({ "kind": "PartialObjectMetadata", "metadata": { "name": "agent" } }));
    assert_eq!(bed.pass().await.state, State::Drained);
    assert_eq!(bed.api.calls("GET", DAEMON_SET).len(), 1, "asked once in a pass");

    bed.api.forget("GET", DAEMON_SET).fail("GET", DAEMON_SET, 404, "NotFound", "gone", Value::Null);
    bed.evicts(&["agent-1", "agent-2"]);
    let progress = bed.pass().await;
    assert_eq!((progress.remaining, progress.warnings.len()), (2, 2));

    bed.api.forget("GET", DAEMON_SET).fail("GET", DAEMON_SET, 500, "InternalError", "etcd", Value::Null);
    assert_eq!(bed.try_pass().await.unwrap_err().reason(), "ApiError", "no guess without an answer");
}

#[tokio::test]
async fn mirror_pods_stay_and_finished_ones_with_data_leave() {
    let mirror = changed(pod("kube-proxy"), "/metadata/annotations", json!({ "kubernetes.io/config.mirror": "x" }));
    let done = changed(pod("job"), "/status/phase", json!("Succeeded"));
    let done = changed(done, "/spec/volumes", json!([{ "name": "scratch", "emptyDir": {} }]));
    let mut bed = Bed::new(&[mirror, done]);
    bed.options.delete_empty_dir_data = false;
    bed.evicts(&["job"]);
    let progress = bed.pass().await;
    assert_eq!((progress.remaining, bed.evictions()), (1, vec!["job".to_owned()]));
}

#[tokio::test]
async fn terminating_pods_are_waited_for_and_named_once_stuck() {
    let going = |name, at: &str| changed(pod(name), "/metadata/deletionTimestamp", json!(at));
    let bed = Bed::new(&[
        going("a", "2026-11-21T12:00:30Z"),
        going("b", "2026-11-21T12:05:00Z"),
        // The grace period has ended only a second ago.
        going("c", "2026-11-21T12:00:59Z"),
    ]);
    let progress = bed.pass().await;
    assert_eq!((progress.state, progress.remaining), (State::Waiting, 3));
    assert_eq!(
        progress.blockers,
        [
            "shop/a: is still terminating, though its grace period ended at 2026-11-21T12:00:30Z; see C:\\var\\log\\kubelet on the host"
        ]
    );
    assert!(bed.evictions().is_empty());
}

#[tokio::test]
async fn a_deleted_pod_of_an_unreachable_node_is_not_waited_for() {
    let gone = changed(pod("a"), "/metadata/deletionTimestamp", json!("2026-11-21T12:00:30Z"));
    let progress = Bed::on(&node(true, Some("op-1"), "Unknown"), &[gone]).pass().await;
    assert_eq!(progress.state, State::Drained);
    assert_eq!(
        progress.warnings,
        [
            "shop/a: kubelet does not report, so nothing confirms that the pod has stopped; the drain no longer waits for it, and its containers may \
             still run on the host"
        ]
    );
}

#[tokio::test]
async fn lower_orders_leave_first() {
    let rule = |app: &str, behavior, order| PodRule {
        selector: serde_json::from_value(json!({ "matchLabels": { "pod": app } })).unwrap(),
        namespace_selector: serde_json::from_value(json!({ "matchLabels": { "team": "a" } })).unwrap(),
        behavior,
        order: Some(order),
    };
    let mut bed = Bed::new(&[pod("late"), pod("plain"), pod("runs")]);
    bed.options.rules = vec![rule("late", PodBehavior::Drain, 1), rule("runs", PodBehavior::WaitCompleted, 0)];
    let namespace = json!({ "metadata": { "name": "shop", "labels": { "team": "a" } } });
    bed.evicts(&["plain"]).on("GET", "/api/v1/namespaces/shop", 200, namespace);
    let progress = bed.pass().await;
    assert_eq!((progress.remaining, bed.evictions()), (3, vec!["plain".to_owned()]));
    assert_eq!(progress.blockers, ["shop/runs: the drain waits for the pod to complete"]);

    bed.api.forget("GET", PODS).on("GET", PODS, 200, pods(&[pod("late")]));
    bed.evicts(&["late"]);
    bed.pass().await;
    assert_eq!(bed.evictions(), ["plain", "late"]);
}

#[tokio::test]
async fn force_deletes_blocked_pods_after_the_timeout_with_full_grace() {
    let mut bed = Bed::new(&[pod("cart"), pod("web")]);
    bed.options.timeout = Some(Duration::from_mins(2));
    bed.options.on_timeout = OnTimeout::Force;
    bed.evicts(&["web"]).on("POST", &eviction("cart"), 429, budget("cart"));
    bed.at = 119;
    let progress = bed.pass().await;
    assert_eq!((progress.overdue, progress.forced.len()), (false, 0));
    assert_eq!(progress.next, Duration::from_secs(1), "a wait ends at the timeout");

    bed.at = 120;
    bed.api.on("DELETE", "/api/v1/namespaces/shop/pods/cart", 200, pod("cart"));
    let progress = bed.pass().await;
    assert_eq!((progress.state, progress.overdue), (State::Waiting, true));
    assert_eq!(progress.forced, ["shop/cart: budget cart needs 3 healthy pods and has 3"]);
    let delete = &bed.api.calls("DELETE", "/api/v1/namespaces/shop/pods/cart")[0].body;
    assert_eq!(delete["gracePeriodSeconds"], 45);
    assert_eq!(delete["preconditions"]["uid"], "uid-cart");
}

#[tokio::test]
async fn a_recreated_pod_is_named_and_evicted_less_often() {
    let created = |second: u32| json!(format!("2026-11-21T12:{:02}:{:02}Z", second / 60, second % 60));
    let back = |second| changed(pod("back"), "/metadata/creationTimestamp", created(second));
    for (about, came, at, evicted) in [
        ("it was on its way", 10, 60, true),
        ("it has just come", 100, 110, false),
        ("it was left alone for long enough", 100, 200, true),
    ] {
        let mut bed = Bed::new(&[back(came), pod("web")]);
        bed.evicts(&["back", "web"]);
        bed.at = at;
        let progress = bed.pass().await;
        assert_eq!(bed.evictions().contains(&"back".to_owned()), evicted, "{about}");
        assert!(bed.evictions().contains(&"web".to_owned()), "{about}: the others leave");
        let is_named = progress.blockers.iter().any(|b| b.contains("ReplicaSet shop/r puts its pods back"));
        assert_eq!(is_named, came > 15, "{about}: {:?}", progress.blockers);
    }
    let mut bed = Bed::new(&[back(100)]);
    (bed.options.on_timeout, bed.options.timeout, bed.at) = (OnTimeout::Force, Some(Duration::from_mins(1)), 110);
    let progress = bed.pass().await;
    assert_eq!((progress.state, bed.evictions().len()), (State::Drained, 0), "the drain ends");
    assert!(progress.warnings.iter().any(|w| w.contains("the pod stays")), "{:?}", progress.warnings);
}

#[tokio::test]
async fn a_forced_deletion_never_has_grace_zero() {
    let kill = changed(pod("cart"), "/spec/terminationGracePeriodSeconds", json!(0));
    let mut bed = Bed::new(&[kill]);
    bed.options.on_timeout = OnTimeout::Force;
    bed.at = 3600;
    bed.api.on("POST", &eviction("cart"), 429, budget("cart"));
    bed.api.on("DELETE", "/api/v1/namespaces/shop/pods/cart", 200, pod("cart"));
    assert_eq!(bed.pass().await.forced.len(), 1);
    assert_eq!(bed.api.calls("DELETE", "/api/v1/namespaces/shop/pods/cart")[0].body["gracePeriodSeconds"], 1);
}

#[tokio::test]
async fn at_the_timeout_abort_stops_and_wait_goes_on() {
    let mut bed = Bed::new(&[pod("cart")]);
    bed.api.on("POST", &eviction("cart"), 429, budget("cart"));
    bed.at = 3600;
    let progress = bed.pass().await;
    assert_eq!((progress.state, progress.overdue), (State::Waiting, true));
    assert_eq!((bed.evictions().len(), progress.next), (1, Duration::from_secs(20)));

    bed.options.on_timeout = OnTimeout::Abort;
    let progress = bed.pass().await;
    assert_eq!(progress.state, State::TimedOut);
    assert_eq!(progress.blockers, ["shop/cart: has not left in time"]);
    assert_eq!(bed.evictions().len(), 1, "no pod is evicted any more");

    bed.options.timeout = Some(Duration::ZERO);
    assert_eq!(bed.pass().await.state, State::Waiting, "zero seconds counted as a timeout");
}

#[tokio::test]
async fn a_node_uncordoned_by_somebody_is_cordoned_again_and_not_drained_in_that_pass() {
    let bed = Bed::on(&node(false, Some("op-1"), "True"), &[]);
    bed.api.on("GET", NODE, 200, ours()).on("PATCH", NODE, 200, ours());
    let progress = bed.pass().await;
    assert_eq!((progress.state, progress.recordoned), (State::Waiting, true));
    assert_eq!(progress.next, Duration::from_secs(5));
    let patch = &bed.api.calls("PATCH", NODE)[0];
    assert_eq!(patch.content_type, "application/merge-patch+json");
    let metadata = json!({ "annotations": { CORDONED_BY: "op-1" }, "resourceVersion": "7" });
    assert_eq!(patch.body, json!({ "metadata": metadata, "spec": { "unschedulable": true } }));
    assert_eq!(bed.pass().await.state, State::Drained);
}

#[tokio::test]
async fn an_uncordon_between_the_list_and_the_end_is_seen() {
    let bed = Bed::new(&[]);
    bed.api.on("GET", NODE, 200, node(false, None, "True")).on("PATCH", NODE, 200, ours());
    let progress = bed.pass().await;
    assert_eq!((progress.state, progress.recordoned), (State::Waiting, true));
}

#[tokio::test]
async fn a_fresh_cordon_is_given_time_to_be_seen() {
    let mut bed = Bed::new(&[]);
    bed.cordoned_at = 57;
    let progress = bed.pass().await;
    assert_eq!((progress.state, progress.next), (State::Waiting, Duration::from_secs(2)));
    bed.at = 62;
    assert_eq!(bed.pass().await.state, State::Drained);
}

#[tokio::test]
async fn volumes_of_pods_that_left_are_waited_for_and_those_of_pods_that_stay_are_not() {
    let attachment = |name: &str, node: &str| {
        json!({
            "metadata": { "name": format!("csi-{name}") },
            "spec": { "attacher": "disk.csi", "nodeName": node, "source": { "persistentVolumeName": name } },
            "status": { "attached": true },
        })
    };
    let staying = changed(pod("keeps"), "/metadata/labels", json!({ DRAIN_LABEL: "skip" }));
    let staying =
        changed(staying, "/spec/volumes", json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }]));
    let mut bed = Bed::new(&[staying]);
    let all = [attachment("pv-1", "win-1"), attachment("pv-2", "win-1"), attachment("pv-3", "win-2")];
    attach(&bed.api, &all);
    let claim = json!({ "metadata": { "name": "data" }, "spec": { "volumeName": "pv-2" } });
    bed.api.on("GET", "/api/v1/namespaces/shop/persistentvolumeclaims/data", 200, claim);
    let progress = bed.pass().await;
    assert_eq!((progress.state, progress.remaining), (State::Waiting, 0));
    assert_eq!(
        progress.blockers,
        ["volume pv-1: disk.csi has not detached it from the node yet; if this lasts, check the CSI driver"]
    );

    bed.at = 3600;
    bed.options.on_timeout = OnTimeout::Abort;
    assert_eq!(bed.pass().await.state, State::TimedOut);
    bed.options.on_timeout = OnTimeout::Force;
    assert_eq!(bed.pass().await.state, State::Drained);
}

#[tokio::test]
async fn a_hanging_server_ends_the_pass_and_the_next_one_continues() {
    let mut bed = Bed::new(&[pod("a"), pod("b")]);
    bed.cx.budget = Duration::from_millis(500);
    bed.evicts(&["b"]).hang("POST", &eviction("a"));
    let progress = bed.pass().await;
    assert_eq!((progress.state, progress.remaining), (State::Waiting, 2));
    bed.pass().await;
    assert_eq!(bed.evictions()[..2], ["a", "b"]);

    bed.api.forget("GET", PODS).hang("GET", PODS);
    assert_eq!(bed.try_pass().await.unwrap_err().reason(), "ApiError");
}

#[tokio::test]
async fn a_recreated_node_is_not_drained() {
    let bed = Bed::on(&changed(ours(), "/metadata/uid", json!("n2")), &[]);
    assert_eq!(bed.try_pass().await.unwrap_err().reason(), "Conflict");
}

#[tokio::test]
async fn a_cordon_is_written_once_and_released() {
    let api = FakeApi::new();
    let newer = changed(node(false, None, "True"), "/metadata/resourceVersion", json!("8"));
    api.fail("PATCH", NODE, 409, "Conflict", "the object has been modified", Value::Null)
        .on("PATCH", NODE, 200, ours())
        .on("GET", NODE, 200, newer);
    let free: Node = serde_json::from_value(node(false, None, "True")).unwrap();
    let cordon = Cordon::plan(&free, "op-1");
    let cordoned = take_cordon(&cordon, &api.client(), &free, |_| true).await.unwrap();
    take_cordon(&cordon, &api.client(), &cordoned, |_| true).await.unwrap();
    release_cordon(&cordon, &api.client(), &cordoned).await.unwrap();
    let bodies: Vec<Value> = api.calls("PATCH", NODE).into_iter().map(|call| call.body).collect();
    assert_eq!(bodies.len(), 3, "a conflict is tried again on the newer node, and a cordon held is not written twice");
    assert_eq!(bodies[1]["metadata"]["resourceVersion"], "8");
    let metadata = json!({ "annotations": { CORDONED_BY: null }, "resourceVersion": "7" });
    assert_eq!(bodies[2], json!({ "metadata": metadata, "spec": { "unschedulable": null } }));
}

/// The Node becomes Ready after it was read and before it is cordoned.
#[tokio::test]
async fn a_node_that_may_not_be_cordoned_any_more_is_left_alone() {
    let api = FakeApi::new();
    api.fail("PATCH", NODE, 409, "Conflict", "the object has been modified", Value::Null);
    api.on("GET", NODE, 200, changed(node(false, None, "True"), "/metadata/resourceVersion", json!("8")));
    let down: Node = serde_json::from_value(node(false, None, "False")).unwrap();
    let cordon = Cordon::plan(&down, "op-1");
    let is_down = |node: &Node| json!(node)["status"]["conditions"][0]["status"] == "False";
    let after = take_cordon(&cordon, &api.client(), &down, is_down).await.unwrap();
    assert!(!cordon.is_held(&after));
    assert_eq!(api.calls("PATCH", NODE).len(), 1);
}

#[tokio::test]
async fn a_foreign_cordon_stays() {
    let api = FakeApi::new();
    let foreign: Node = serde_json::from_value(node(true, None, "True")).unwrap();
    let cordon = Cordon::plan(&foreign, "op-1");
    assert!(cordon.pre_cordoned);
    take_cordon(&cordon, &api.client(), &foreign, |_| true).await.unwrap();
    release_cordon(&cordon, &api.client(), &foreign).await.unwrap();
    // Another client cordons the node between the plan and the patch.
    let cordon = Cordon { operation_id: "op-1".into(), pre_cordoned: false };
    take_cordon(&cordon, &api.client(), &foreign, |_| true).await.unwrap();
    release_cordon(&cordon, &api.client(), &foreign).await.unwrap();
    assert_eq!(api.all_calls(), []);
}

#[tokio::test]
async fn a_node_that_is_gone_needs_no_uncordon() {
    let api = FakeApi::new();
    api.fail("PATCH", NODE, 404, "NotFound", "nodes \"win-1\" not found", Value::Null);
    let node: Node = serde_json::from_value(ours()).unwrap();
    release_cordon(&Cordon::plan(&node, "op-1"), &api.client(), &node).await.unwrap();
}

#[tokio::test]
async fn pods_of_a_deleted_node_are_listed_and_not_evicted() {
    let mirror = changed(pod("mirror"), "/metadata/annotations", json!({ "kubernetes.io/config.mirror": "x" }));
    let bed = Bed::bare(FakeApi::new());
    bed.api.on("GET", PODS, 200, pods(&[pod("cart"), mirror]));
    let now = Timestamp::UNIX_EPOCH;
    assert_eq!(left_behind(&bed.cx, "win-1", now, &bed.options).await.unwrap(), ["shop/cart"]);
    assert_eq!(bed.api.calls("GET", PODS)[0].query("fieldSelector"), Some("spec.nodeName=win-1"));
    assert!(bed.api.all_calls().iter().all(|call| call.method == "GET"), "something was done to them");
}
