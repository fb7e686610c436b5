//! Pods that a controller recreates on a cordoned node as often as they are evicted, because their template names the node or tolerates its
//! taint. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Period after the cordon in which a new pod may result from a scheduling decision that was made before the cordon.
const SETTLES: SignedDuration = SignedDuration::from_secs(15);
/// Minimum age at which a recreated pod is evicted.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

/// Pod that was created on a cordoned node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutBack {
    /// Message with the controller and the remedy, the same for all pods of a controller.
    pub why: String,
    /// Remaining time before the pod may be evicted. The delay about doubles with each eviction.
    pub wait: Duration,
}

/// Returns the cause and the delay if a pod was created on a node more than [`SETTLES`] after the cordon at `cordoned_at`.
pub fn put_back(pod: &Pod, cordoned_at: Timestamp, now: Timestamp) -> Option<PutBack> {
    let created = pod.creation_timestamp()?.0;
    let after = created.duration_since(cordoned_at);
    if after <= SETTLES {
        return None;
    }
    let namespace = pod.namespace().unwrap_or_default();
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
    let owner = owner.map_or_else(
        || format!("the owner of the pod {namespace}/{}", pod.name_any()),
        |owner| format!("the {} {namespace}/{}", owner.kind, owner.name),
    );
    let why = format!(
        "{owner} puts its pods back on this cordoned node: remove spec.nodeName, or the toleration of node.kubernetes.io/unschedulable, from its template, or scale \
         it down"
    );
    let due = created.checked_add(after.max(PATIENCE)).unwrap_or(now);
    Some(PutBack { why, wait: Duration::try_from(due.duration_since(now)).unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_is_put_back_again_and_again_is_evicted_ever_more_rarely() {
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        let pod = |created: i64| -> Pod {
            serde_json::from_value(json!({"metadata": {
                "namespace": "shop", "name": format!("cart-{created}"), "creationTimestamp": at(created).to_string(),
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "cart", "uid": "1", "controller": true}],
            }}))
            .unwrap()
        };
        assert_eq!(put_back(&pod(-500), at(0), at(20)), None, "the pod was there before the cordon");
        assert_eq!(put_back(&pod(15), at(0), at(20)), None, "the pod may have been scheduled before the cordon");
        // Each pod is evicted as soon as possible, and its successor is created one second later.
        let (mut now, mut evictions) = (16, Vec::new());
        let why = put_back(&pod(16), at(0), at(16)).unwrap().why;
        while now < 24 * 60 * 60 {
            let found = put_back(&pod(now), at(0), at(now)).unwrap();
            assert_eq!(found.why, why, "the same obstacle has the same text");
            now += i64::try_from(found.wait.as_secs()).unwrap() + 1;
            evictions.push(now);
        }
        assert!(evictions.len() <= 12, "{evictions:?}");
        assert!(why.contains("ReplicaSet shop/cart") && why.contains("spec.nodeName"), "{why}");
    }
}
