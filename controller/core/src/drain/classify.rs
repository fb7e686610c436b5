//! Decisions about the pods of a node: which pods leave, and in which order. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use api::{PodBehavior, PodRule};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::core::{Selector, SelectorExt};
use kube::{Resource, ResourceExt};

use super::{InvalidRule, Options};

/// Label on a pod: `skip` leaves it where it is, `wait-completed` lets it run to its end. Takes precedence over any rule.
pub const DRAIN_LABEL: &str = api::names::key::DRAIN;

const MIRROR_POD: &str = "kubernetes.io/config.mirror";

/// Inputs of a decision other than the pod.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Current time.
    pub now: Timestamp,
    /// True if the DaemonSet that [`daemon_set`] names for this pod exists. Ignored for other pods.
    pub daemon_set_exists: bool,
    /// Result of [`Rules::find`] for this pod.
    pub rule: Treatment,
    /// Time after a pod's deletion time from which the drain no longer waits for the pod. `None` if it always waits.
    pub skip_deleted_after: Option<Duration>,
}

/// Treatment of one pod by the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    /// Action on the pod.
    pub behavior: PodBehavior,
    /// Order of the pod: lower orders leave first.
    pub order: i32,
}

/// Decision about one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionDecision {
    /// The pod stays, and the drain does not wait for it.
    Skip(Skip),
    /// The pod must be evicted. The warnings name what is lost.
    Evict {
        /// Order of the pod: lower orders leave first.
        order: i32,
        /// Warnings, without the pod's name.
        warnings: Vec<&'static str>,
    },
    /// The pod is being deleted; only wait.
    Terminating {
        /// Order of the pod: lower orders leave first.
        order: i32,
    },
    /// The pod runs to completion, and the drain waits for it.
    WaitCompleted {
        /// Order of the pod: lower orders leave first.
        order: i32,
    },
    /// The pool's settings forbid the eviction of the pod; then no pod is evicted.
    Refuse(&'static str),
}

/// Reason why the drain skips a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// The pod's deletion is overdue for longer than the drain waits.
    DeletedLongAgo,
    /// The pod's DaemonSet would recreate it.
    DaemonSet,
    /// The pod belongs to the kubelet; the API cannot remove it.
    Mirror,
    /// A rule or the pod's label requires that the pod stays.
    Rule,
}

/// Returns the DaemonSet (in the pod's namespace) that the decision about this pod depends on; `None` if there is none.
pub fn daemon_set(pod: &Pod) -> Option<&str> {
    let controller = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    let is_daemon_set = controller.kind == "DaemonSet" && controller.api_version == "apps/v1";
    (is_daemon_set && !is_finished(pod)).then_some(&controller.name)
}

/// Classifies a pod. The checks run in the order of `kubectl drain`, and the first one that skips or refuses the pod decides. The pod's label and the
/// rules follow.
///
/// Unlike `kubectl drain`, a pod that is already being deleted is awaited, even if the settings forbid its eviction.
pub fn classify(pod: &Pod, facts: &Facts, options: &Options) -> EvictionDecision {
    let deletion = pod.meta().deletion_timestamp.as_ref().map(|time| time.0);
    if let (Some(deletion), Some(limit)) = (deletion, facts.skip_deleted_after)
        && super::elapsed(deletion, facts.now) > limit
    {
        return EvictionDecision::Skip(Skip::DeletedLongAgo);
    }

    let mut warnings = Vec::new();
    let must_ask = deletion.is_none() && !is_finished(pod);
    let orphan = daemon_set(pod).is_some() && !facts.daemon_set_exists;
    if daemon_set(pod).is_some() && !orphan {
        return EvictionDecision::Skip(Skip::DaemonSet);
    }
    if orphan && must_ask {
        if !options.evict_unmanaged {
            return EvictionDecision::Refuse(
                "its DaemonSet does not exist, so nothing recreates the pod; delete the pod, or set drain.evictUnmanaged to true",
            );
        }
        warnings.push("its DaemonSet does not exist; no controller recreates it");
    }
    if pod.annotations().contains_key(MIRROR_POD) {
        return EvictionDecision::Skip(Skip::Mirror);
    }
    if must_ask && has_empty_dir(pod) {
        if !options.delete_empty_dir_data {
            return EvictionDecision::Refuse(
                "it keeps data in an emptyDir volume, which eviction deletes; save the data and delete the pod, or set drain.deleteEmptyDirData to true",
            );
        }
        warnings.push("the data in its emptyDir volumes is deleted");
    }
    if must_ask && !has_controller(pod) {
        if !options.evict_unmanaged {
            return EvictionDecision::Refuse(
                "no controller will recreate it; delete the pod, or set drain.evictUnmanaged to true",
            );
        }
        warnings.push("no controller recreates it");
    }

    let treatment = label_treatment(pod).unwrap_or(facts.rule);
    let order = treatment.order;
    match treatment.behavior {
        PodBehavior::Skip => EvictionDecision::Skip(Skip::Rule),
        _ if deletion.is_some() => EvictionDecision::Terminating { order },
        PodBehavior::WaitCompleted if !is_finished(pod) => EvictionDecision::WaitCompleted { order },
        PodBehavior::Drain | PodBehavior::WaitCompleted => EvictionDecision::Evict { order, warnings },
    }
}

fn label_treatment(pod: &Pod) -> Option<Treatment> {
    let behavior = match pod.labels().get(DRAIN_LABEL)?.as_str() {
        "skip" => PodBehavior::Skip,
        "wait-completed" => PodBehavior::WaitCompleted,
        _ => return None,
    };
    Some(Treatment { behavior, order: 0 })
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

fn has_controller(pod: &Pod) -> bool {
    pod.owner_references().iter().any(|owner| owner.controller == Some(true))
}

fn has_empty_dir(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).any(|volume| volume.empty_dir.is_some())
}

/// Properties that decide how the API server responds to an eviction: the same budgets select pods with equal properties, and count them alike.
pub type EvictionKey = (String, BTreeMap<String, String>, String, bool);

/// Returns the [`EvictionKey`] of a pod.
pub fn eviction_key(pod: &Pod) -> EvictionKey {
    let ready = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    (pod.namespace().unwrap_or_default(), pod.labels().clone(), phase(pod).to_owned(), ready)
}

/// Compiled [`Options::rules`](super::Options::rules).
#[derive(Debug)]
pub struct Rules(Vec<Compiled>);

#[derive(Debug)]
struct Compiled {
    pods: Selector,
    namespaces: Selector,
    treatment: Treatment,
}

impl Rules {
    /// Compiles the selectors. An empty selector selects everything.
    ///
    /// # Errors
    /// [`InvalidRule`] for the first rule with an invalid selector.
    pub fn compile(rules: &[PodRule]) -> Result<Self, InvalidRule> {
        let compile = |(index, rule): (usize, &PodRule)| {
            let selector = |selector: &Option<LabelSelector>| {
                Selector::try_from(selector.clone().unwrap_or_default())
                    .map_err(|error| InvalidRule { index, message: error.0 })
            };
            Ok(Compiled {
                pods: selector(&rule.selector)?,
                namespaces: selector(&rule.namespace_selector)?,
                treatment: Treatment { behavior: rule.behavior, order: rule.order.unwrap_or(0) },
            })
        };
        rules.iter().enumerate().map(compile).collect::<Result<_, _>>().map(Self)
    }

    /// Reports whether the decision about the pod may depend on the labels of its namespace.
    pub fn needs_namespace(&self, pod: &Pod) -> bool {
        self.0.iter().any(|rule| !rule.namespaces.selects_all() && rule.pods.matches(pod.labels()))
    }

    /// Returns the treatment by the first rule that selects the pod; without one, the pod is drained at order 0.
    pub fn find(&self, pod: &Pod, namespace_labels: &BTreeMap<String, String>) -> Treatment {
        self.0
            .iter()
            .find(|rule| rule.pods.matches(pod.labels()) && rule.namespaces.matches(namespace_labels))
            .map_or_else(Treatment::default, |rule| rule.treatment)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-11-21T12:00:00Z";
    const REPLICA_SET: &str = "ReplicaSet";

    /// Returns a running pod of a ReplicaSet, with `changes` merged in.
    fn pod(changes: Value) -> Pod {
        let mut pod = json!({
            "metadata": { "name": "cart", "namespace": "shop", "ownerReferences": [owner(REPLICA_SET, "apps/v1")] },
            "spec": { "containers": [] },
            "status": { "phase": "Running" },
        });
        merge(&mut pod, changes);
        serde_json::from_value(pod).unwrap()
    }

    fn merge(into: &mut Value, from: Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from,
        }
    }

    fn owner(kind: &str, api_version: &str) -> Value {
        json!({ "kind": kind, "apiVersion": api_version, "name": "o", "uid": "u", "controller": true })
    }

    fn of_daemon_set() -> Value {
        json!({ "metadata": { "ownerReferences": [owner("DaemonSet", "apps/v1")] } })
    }

    fn bare() -> Value {
        json!({ "metadata": { "ownerReferences": [] } })
    }

    fn empty_dir() -> Value {
        json!({ "spec": { "volumes": [{ "name": "d", "emptyDir": {} }] } })
    }

    fn finished() -> Value {
        json!({ "status": { "phase": "Succeeded" } })
    }

    fn mirror() -> Value {
        json!({ "metadata": { "annotations": { MIRROR_POD: "x" } } })
    }

    fn deleted(at: &str) -> Value {
        json!({ "metadata": { "deletionTimestamp": at } })
    }

    fn with(parts: &[Value]) -> Pod {
        let mut all = json!({});
        for part in parts {
            merge(&mut all, part.clone());
        }
        pod(all)
    }

    fn label(value: &str) -> Value {
        json!({ "metadata": { "labels": { DRAIN_LABEL: value } } })
    }

    #[test]
    fn pods_are_classified_in_the_order_of_kubectl_drain() {
        use EvictionDecision::{Refuse, Skip as Skips, Terminating, WaitCompleted};
        use Skip::{DaemonSet, DeletedLongAgo, Mirror, Rule};
        let evict = |warnings: &[&'static str]| EvictionDecision::Evict { order: 0, warnings: warnings.to_vec() };
        let leaves = Terminating { order: 0 };
        let now: Timestamp = NOW.parse().unwrap();
        let facts = Facts { now, daemon_set_exists: true, rule: Treatment::default(), skip_deleted_after: None };
        let orphan = Facts { daemon_set_exists: false, ..facts };
        let impatient = Facts { skip_deleted_after: Some(Duration::from_mins(1)), ..facts };
        let rule = |behavior, order| Facts { rule: Treatment { behavior, order }, ..facts };
        let skips = |order| rule(PodBehavior::Skip, order);
        let drains = |order| rule(PodBehavior::Drain, order);
        let lets_run = |order| rule(PodBehavior::WaitCompleted, order);
        let free = Options::default();
        let strict = Options { delete_empty_dir_data: false, evict_unmanaged: false, ..Options::default() };
        let data = "the data in its emptyDir volumes is deleted";
        let unmanaged = "no controller recreates it";
        let no_set = "its DaemonSet does not exist; no controller recreates it";
        let owned_by = |owner: Value| pod(json!({ "metadata": { "ownerReferences": [owner] } }));
        let of_other_api = owned_by(owner("DaemonSet", "apps.kruise.io/v1"));
        let of_node = owned_by(json!({ "kind": "Node", "apiVersion": "v1", "name": "o", "uid": "u" }));
        let leaving_since = |time: &str| pod(deleted(&format!("2026-11-21T{time}Z")));
        let first = EvictionDecision::Evict { order: -3, warnings: vec![] };
        let cases = vec![
            ("plain", pod(json!({})), facts, &strict, evict(&[])),
            ("of a DaemonSet", pod(of_daemon_set()), facts, &strict, Skips(DaemonSet)),
            ("of a DaemonSet, finished", with(&[of_daemon_set(), finished()]), facts, &strict, evict(&[])),
            ("of another API's DaemonSet", of_other_api, facts, &strict, evict(&[])),
            ("orphan of a DaemonSet", pod(of_daemon_set()), orphan, &strict, Refuse("")),
            ("orphan of a DaemonSet, forced", pod(of_daemon_set()), orphan, &free, evict(&[no_set])),
            ("orphan of a DaemonSet, leaving", with(&[of_daemon_set(), deleted(NOW)]), orphan, &strict, leaves.clone()),
            ("mirror", with(&[mirror(), bare(), empty_dir()]), facts, &strict, Skips(Mirror)),
            ("mirror, finished", with(&[mirror(), finished()]), facts, &free, Skips(Mirror)),
            ("emptyDir", pod(empty_dir()), facts, &strict, Refuse("")),
            ("emptyDir, allowed", pod(empty_dir()), facts, &free, evict(&[data])),
            ("emptyDir, finished", with(&[empty_dir(), finished()]), facts, &strict, evict(&[])),
            ("emptyDir, leaving", with(&[empty_dir(), deleted(NOW)]), facts, &strict, leaves.clone()),
            ("no controller", pod(bare()), facts, &strict, Refuse("")),
            ("an owner that is not a controller", of_node, facts, &strict, Refuse("")),
            ("no controller, allowed", pod(bare()), facts, &free, evict(&[unmanaged])),
            ("no controller, finished", with(&[bare(), finished()]), facts, &strict, evict(&[])),
            ("all warnings", with(&[bare(), empty_dir()]), facts, &free, evict(&[data, unmanaged])),
            ("leaving", leaving_since("11:00:00"), facts, &free, leaves.clone()),
            ("leaving for too long", leaving_since("11:58:59"), impatient, &free, Skips(DeletedLongAgo)),
            ("leaving for not too long", leaving_since("11:59:00"), impatient, &free, leaves.clone()),
            ("leaving, grace still runs", leaving_since("12:30:00"), impatient, &free, leaves),
            ("rule skips", pod(json!({})), skips(3), &free, Skips(Rule)),
            ("rule skips one that leaves", pod(deleted(NOW)), skips(3), &free, Skips(Rule)),
            ("rule orders", pod(json!({})), drains(-3), &free, first),
            ("rule lets run", pod(json!({})), lets_run(1), &free, WaitCompleted { order: 1 }),
            ("rule lets run, has run", pod(finished()), lets_run(0), &free, evict(&[])),
            ("a refusal goes before a rule", pod(bare()), skips(0), &strict, Refuse("")),
            ("DaemonSet goes before a rule", pod(of_daemon_set()), drains(0), &free, Skips(DaemonSet)),
            ("label skips", pod(label("skip")), drains(3), &free, Skips(Rule)),
            ("label lets run", pod(label("wait-completed")), facts, &free, WaitCompleted { order: 0 }),
            ("an unknown value of the label is ignored", pod(label("never")), facts, &free, evict(&[])),
        ];
        for (name, pod, facts, options, expected) in cases {
            let decision = match classify(&pod, &facts, options) {
                Refuse(_) => Refuse(""),
                decision => decision,
            };
            assert_eq!(decision, expected, "{name}");
        }
    }

    #[test]
    fn the_first_rule_that_selects_the_pod_holds() {
        let selector = |key: &str, value: &str| json!({ "matchLabels": { key: value } });
        let in_list = json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["db", "mq"] }] });
        let rules = Rules::compile(&[
            rule(&selector("app", "db"), &selector("team", "a"), 1),
            rule(&in_list, &json!({}), 2),
            rule(&json!({}), &selector("team", "b"), 3),
        ]);
        let rules = rules.unwrap();
        for (app, team, order) in [("db", "a", 1), ("db", "b", 2), ("mq", "a", 2), ("web", "b", 3), ("web", "a", 0)] {
            let pod = pod(json!({ "metadata": { "labels": { "app": app } } }));
            let namespace = BTreeMap::from([("team".to_owned(), team.to_owned())]);
            assert_eq!(rules.find(&pod, &namespace).order, order, "{app} of {team}");
            assert!(rules.needs_namespace(&pod));
        }
    }

    fn rule(pods: &Value, namespaces: &Value, order: i32) -> PodRule {
        PodRule {
            selector: serde_json::from_value(pods.clone()).unwrap(),
            namespace_selector: serde_json::from_value(namespaces.clone()).unwrap(),
            behavior: PodBehavior::Drain,
            order: Some(order),
        }
    }

    #[test]
    fn a_rule_that_cannot_be_read_is_named() {
        let (all, bad) = (json!({}), json!({ "matchExpressions": [{ "key": "app", "operator": "Near" }] }));
        let error = Rules::compile(&[rule(&all, &all, 0), rule(&bad, &all, 0)]).unwrap_err();
        assert!(error.to_string().starts_with("drain.podRules[1] "), "{error}");
    }
}
