//! Hosts of a pool, with their observed state.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{
    Disruption, Failures, Grant, GrantType, Operation, WindowsInstance, WindowsInstanceStatus,
    conditions::{self, kind},
    names::key,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::grants::{Candidate, PendingChange};
use crate::{
    acts::{is_retry_open, retry_requested},
    backoff::believed,
    drain::cordon::{cordoned_by, is_cordoned},
    node::{self, maintenance::requests},
    operation::{remove::is_irrevocable, times::age},
};

/// Node label with the zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Host of a pool, with its observed state.
pub struct Member {
    /// Instance of the host.
    pub instance: Arc<WindowsInstance>,
    /// State of the host, as far as decisions about grants depend on it.
    pub candidate: Candidate,
}

/// Desired state of a pool, as far as the observation of its hosts depends on it.
pub struct DesiredMember<'a> {
    /// Version that all hosts must follow.
    pub version: &'a str,
    /// Time for which a node must be Ready to count as available.
    pub min_ready: Duration,
    /// True if hosts of nodes that are not Ready are probed. If false, all hosts count as unreachable.
    pub looks: bool,
    /// Maximum backoff after a failure.
    pub backoff_max: Duration,
}

/// Reports whether a user has put a host on hold. The annotation of the Node takes precedence over that of the instance, if its value is valid.
pub fn is_held(instance: &WindowsInstance, node: Option<&Node>) -> bool {
    let value = |annotations: &BTreeMap<String, String>| annotations.get(key::HOLD)?.parse::<bool>().ok();
    let on_node = node.and_then(|n| value(n.annotations()));
    on_node.or_else(|| value(instance.annotations())).unwrap_or_default()
}

/// Observes one host. `unwanted` is true if the pool does not keep the host, even if its instance is not marked as leaving yet. `change` is the
/// change that the host needs to follow the desired version, if any; it is paired with true if all its files are on the host.
pub fn member(
    instance: &Arc<WindowsInstance>,
    unwanted: bool,
    node: Option<&Node>,
    wish: &DesiredMember<'_>,
    change: Option<(PendingChange, bool)>,
    now: Timestamp,
) -> Member {
    let none = WindowsInstanceStatus::default();
    let status = instance.status.as_ref().unwrap_or(&none);
    // A host that is removed while it joins may already be a node with pods: its removal needs a slot in the budget.
    let is_a_node = || status.node_ref.as_ref().is_some_and(|r| node.is_some_and(|n| n.uid().as_ref() == Some(&r.uid)));
    let joined = status.current_version.is_some() || ((unwanted || instance.is_leaving()) && is_a_node());
    let (says_ready, since, _) = node.map_or((false, None, String::new()), node::ready);
    let ready = says_ready && joined;
    let is_ready_for_long =
        since.is_some_and(|t| Duration::try_from(age(t, now)).unwrap_or_default() >= wish.min_ready);
    let wants_reboot = joined && node.is_some_and(|n| n.annotations().contains_key(key::REBOOT_REQUIRED));
    let (mut change, sent) = change.map_or((None, false), |(change, sent)| (Some(change), sent));
    // A host that must be restarted anyway is changed and restarted in one operation.
    if let Some(change) = change.as_mut().filter(|_| wants_reboot) {
        change.disruption = Disruption::Reboot;
    }
    let grant = instance.spec.grant.as_ref().filter(|g| !(instance.has_used(g) && counts_as_none_once_used(g)));
    let retry = |f: &Failures| match f.next_retry_time {
        Some(at) => at.known().map(|at| believed(at, now, wish.backoff_max)),
        None => Some(now),
    };
    let is_down = joined && !says_ready;
    let is_retry_open = is_retry_open(instance, status.last_handled_retry.as_ref());
    // The request stays open during the repair that serves it, so that the repair keeps its permission.
    let repairs = status.operation.as_ref().is_some_and(|o| o.type_ == GrantType::Repair);
    let repair_requested = is_down && (is_retry_open || (repairs && retry_requested(instance).is_some()));
    let candidate = Candidate {
        name: instance.name_any(),
        zone: node.and_then(|n| n.labels().get(ZONE).cloned()).unwrap_or_default(),
        grant: grant.map(|g| g.type_),
        grant_version: grant.and_then(|g| g.version.clone()),
        grant_disruption: grant.and_then(|g| g.disruption),
        grant_without_place: grant.is_some_and(|g| g.without_place),
        grant_used: grant.is_some_and(|g| instance.has_used(g)),
        begun: status.operation.as_ref().is_some_and(|o| o.type_.is_change()),
        removing: status.operation.as_ref().is_some_and(|o| o.type_ == GrantType::Remove),
        vanishing: false,
        let_go: false,
        deconfiguring: is_irrevocable(instance),
        irrevocable: status.operation.as_ref().is_some_and(Operation::is_irrevocable),
        leaving: unwanted || instance.is_leaving(),
        joined,
        ready,
        available: ready && is_ready_for_long && node.is_some_and(|n| !is_cordoned(n)),
        waits_until: status
            .failures
            .as_ref()
            .and_then(retry)
            .map(|at| if is_down && is_retry_open { at.min(now) } else { at }),
        held: is_held(instance, node),
        withheld: false,
        cordoned: node.is_some_and(|n| is_cordoned(n) && cordoned_by(n).is_none()),
        // Set later, from facts about the whole pool.
        renews: None,
        staged: sent || status.staged_version.as_deref() == Some(wish.version),
        change,
        // Set later, from the progress of the rollout.
        follows_abandoned_version: false,
        failed: status.failed_version.as_deref() == Some(wish.version),
        wants_reboot,
        // A node made by WMCO has no wicd that this operator can verify: it is updated first.
        maintenance: requests(instance, node).request.map(|r| r.by).filter(|_| joined && status.wicd.is_some()),
        maintained_at: status.last_maintenance_time.map(|t| t.known().unwrap_or(now)),
        down_since: since.filter(|_| joined && !says_ready),
        repair_requested,
        // Set later, from Machines.
        health_check: None,
        unreachable: !wish.looks
            || conditions::find(&status.conditions, kind::REACHABLE).is_some_and(|c| c.status == "False"),
        // Set later, from the keys in Secrets.
        wants_key: false,
        rotating: joined && status.operation.as_ref().is_some_and(|o| o.type_ == GrantType::RotateKey),
        // Set later, from the pool's list of images.
        wants_images: false,
        images_wait_until: None,
        pulling: status.operation.as_ref().is_some_and(|o| o.type_ == GrantType::PullImages),
        key_waits_until: status.key_rotation.as_ref().and_then(|k| k.failures.as_ref()).and_then(retry),
    };
    Member { instance: instance.clone(), candidate }
}

/// Reports whether a used grant counts as no grant. It then stays on the instance until another grant replaces it, which saves writes for each host.
/// Other used grants are revoked first, because the same operation may be due again: the state that is observed after the revocation is newer than
/// the operation, for example a Node that no longer requests a restart. A used grant to remove was given before the host was known to be a node; the
/// removal of a node needs a new grant.
fn counts_as_none_once_used(grant: &Grant) -> bool {
    match grant.type_ {
        GrantType::Provision | GrantType::Stage | GrantType::Remove => true,
        GrantType::Update => grant.disruption < Some(Disruption::Reboot),
        _ => false,
    }
}

/// Returns the time when the next node will have been Ready for long enough; `None` if no node waits for that. `node` returns the Node of a name.
pub fn soonest_available(
    members: &[Member],
    min_ready: Duration,
    now: Timestamp,
    node: impl Fn(&str) -> Option<Arc<Node>>,
) -> Option<Timestamp> {
    let span = jiff::SignedDuration::try_from(min_ready).ok()?;
    let waiting = members.iter().filter(|m| m.candidate.ready && !m.candidate.available);
    waiting
        .filter_map(|m| node::ready(&*node(&m.candidate.name)?).1?.checked_add(span).ok())
        .filter(|at| *at > now)
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::WindowsInstanceSpec;
    use serde_json::json;

    /// Observes a host of a pool with this version.
    fn observed(
        instance: WindowsInstance,
        node: Option<&Node>,
        version: &str,
        change: Option<(PendingChange, bool)>,
    ) -> Candidate {
        let backoff_max = Duration::from_mins(10);
        let wish = DesiredMember { version, min_ready: Duration::ZERO, looks: true, backoff_max };
        member(&Arc::new(instance), false, node, &wish, change, Timestamp::UNIX_EPOCH).candidate
    }

    #[test]
    fn a_leaving_host_counts_as_joined_as_soon_as_it_has_a_node() {
        for (uid, leaving, expected) in [("n-1", true, true), ("n-1", false, false), ("n-2", true, false)] {
            let mut instance = WindowsInstance::new("w", WindowsInstanceSpec::default());
            instance.spec.leaving = leaving.then(api::Leaving::default);
            instance.status = serde_json::from_value(json!({"nodeRef": {"name": "w", "uid": "n-1"}})).unwrap();
            let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"}]);
            let node = json!({"metadata": {"name": "w", "uid": uid}, "status": {"conditions": ready}});
            let node: Node = serde_json::from_value(node).unwrap();
            let candidate = observed(instance, Some(&node), "v1", None);
            assert_eq!((candidate.joined, candidate.available), (expected, expected), "{uid} {leaving}");
        }
    }

    #[test]
    fn an_invalid_hold_on_the_node_does_not_override_the_hold_on_the_instance() {
        for (on_instance, on_node, expected) in [
            (None, None, false),
            (Some("true"), None, true),
            (Some("true"), Some("false"), false),
            (Some("true"), Some("yes"), true),
            (Some("yes"), Some("true"), true),
            (None, Some("yes"), false),
        ] {
            let hold = |value: Option<&str>| value.map(|v| BTreeMap::from([(key::HOLD.to_owned(), v.to_owned())]));
            let mut instance = WindowsInstance::new("w", WindowsInstanceSpec::default());
            instance.metadata.annotations = hold(on_instance);
            let mut node = Node::default();
            node.metadata.annotations = hold(on_node);
            assert_eq!(is_held(&instance, Some(&node)), expected, "{on_instance:?}, {on_node:?}");
        }
    }

    #[test]
    fn a_used_grant_counts_as_none_unless_the_operation_may_be_due_again() {
        for (type_, disruption, is_none) in [
            ("Provision", None, true),
            ("Stage", None, true),
            ("Update", Some("None"), true),
            ("Update", Some("Restart"), true),
            ("Update", Some("Drain"), true),
            ("Update", Some("Reboot"), false),
            ("Remove", None, true),
            ("Reboot", None, false),
            ("Repair", None, false),
            ("Maintenance", None, false),
            ("RotateKey", None, false),
            ("PullImages", None, false),
            ("Orphan", None, false),
        ] {
            for (last, expected) in [("g-1", (!is_none, !is_none)), ("g-0", (true, false))] {
                let grant = json!({"id": "g-1", "type": type_, "grantedTime": "1970-01-01T00:00:00Z", "disruption": disruption});
                let mut instance = WindowsInstance::new("w", WindowsInstanceSpec::default());
                instance.spec.grant = serde_json::from_value(grant).unwrap();
                instance.status =
                    serde_json::from_value(json!({"currentVersion": "v1", "lastOperation": last})).unwrap();
                let seen = observed(instance, None, "v1", None);
                assert_eq!((seen.grant.is_some(), seen.grant_used), expected, "{type_} {disruption:?} {last}");
            }
        }
    }

    #[test]
    fn a_requested_repair_stays_requested_until_it_is_over() {
        for (about, requested, handled, operation, ready, expected) in [
            ("nothing is requested", None, None, None, "False", (false, true)),
            ("it is requested", Some("1"), None, None, "False", (true, false)),
            ("it is requested again", Some("2"), Some("1"), None, "False", (true, false)),
            ("the repair has begun", Some("1"), Some("1"), Some("Repair"), "False", (true, true)),
            ("the repair has failed", Some("1"), Some("1"), None, "False", (false, true)),
            ("an update has handled the request", Some("1"), Some("1"), Some("Update"), "False", (false, true)),
            ("the node is Ready", Some("1"), None, None, "True", (false, true)),
        ] {
            let mut instance = WindowsInstance::new("w", WindowsInstanceSpec::default());
            instance.metadata.annotations = requested.map(|value| [(key::RETRY.into(), value.into())].into());
            let operation = operation.map(|type_| {
                json!({"id": "g-1", "type": type_, "step": "Connect",
                "startTime": "1970-01-01T00:00:00Z", "stepStartTime": "1970-01-01T00:00:00Z"})
            });
            let failures =
                json!({"count": 1, "lastReason": "x", "lastMessage": "y", "nextRetryTime": "1970-01-01T00:01:00Z"});
            let status = json!({"currentVersion": "v1", "lastHandledRetry": handled, "operation": operation, "failures": failures});
            instance.status = serde_json::from_value(status).unwrap();
            let node =
                json!({"metadata": {"name": "w"}, "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            let node: Node = serde_json::from_value(node).unwrap();
            let candidate = observed(instance, Some(&node), "v1", None);
            let waits = candidate.waits_until.is_some_and(|at| at > Timestamp::UNIX_EPOCH);
            assert_eq!((candidate.repair_requested, waits), expected, "{about}");
        }
    }

    #[test]
    fn a_requested_restart_is_part_of_the_change() {
        let mut instance = WindowsInstance::new("w", WindowsInstanceSpec::default());
        instance.status =
            Some(WindowsInstanceStatus { current_version: Some("v1".into()), ..WindowsInstanceStatus::default() });
        for (asks, disruption, expected) in [
            (false, Disruption::None, Disruption::None),
            (false, Disruption::Restart, Disruption::Restart),
            (true, Disruption::None, Disruption::Reboot),
            (true, Disruption::Restart, Disruption::Reboot),
            (true, Disruption::Reboot, Disruption::Reboot),
        ] {
            let annotations = if asks { json!({key::REBOOT_REQUIRED: ""}) } else { json!({}) };
            let node: Node = serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap();
            let change = (PendingChange { version: "v2".into(), disruption, services: Vec::new() }, true);
            let candidate = observed(instance.clone(), Some(&node), "v2", Some(change));
            assert_eq!(
                (candidate.change.unwrap().disruption, candidate.wants_reboot),
                (expected, asks),
                "{disruption:?}"
            );
            let alone = observed(instance.clone(), Some(&node), "v2", None);
            assert_eq!((alone.change, alone.wants_reboot), (None, asks));
        }
    }
}
