//! Effects of changes: which pools a change of an instance concerns, and whether a change of a pool concerns its hosts. Pure.

use std::sync::Arc;

use api::{
    Reason, WindowsInstance, WindowsNodePool,
    conditions::{find, kind},
};
use kube::ResourceExt;

/// Returns the names of the pools to reconcile after a change of an instance: its own and, if the instance is gone, has another entry or belongs
/// to another pool (`is_freed`), those that may have waited for its name or address.
pub fn concerned_pools(instance: &WindowsInstance, is_freed: bool, pools: &[Arc<WindowsNodePool>]) -> Vec<String> {
    let own = instance.spec.pool_ref.name.clone();
    // A pool may refuse an entry later, because its cache still has the host. The change of its status then triggers another reconcile.
    let waiting = pools.iter().filter(|pool| is_freed && may_await_hosts(pool)).map(|pool| pool.name_any());
    let others: Vec<String> = waiting.filter(|pool| *pool != own).collect();
    [own].into_iter().chain(others).collect()
}

/// Reports whether a pool may refuse an entry because a host of another pool has its name or address. The status shows only the first refused
/// entries; the reasons of the others are unknown.
fn may_await_hosts(pool: &WindowsNodePool) -> bool {
    pool.status.as_ref().is_some_and(|status| {
        let shown = i32::try_from(status.refused.len()).unwrap_or(i32::MAX);
        status.refused_hosts > shown || status.refused.iter().any(|entry| entry.reason == Reason::HostConflict)
    })
}

/// Reports whether the hosts of a pool must be reconciled for `after`, if they have last seen `before`. Hosts read everything that users write to
/// their pool, its deletion, its desired version, its recorded acts and its unclean hosts. They also read the status and reason of three conditions,
/// for facts that no other object shows: a pause, the presence of another operator, and missing permissions of wicd. The rest of the status changes
/// with the progress of each host, and is for users.
pub fn concerns_hosts(before: &WindowsNodePool, after: &WindowsNodePool) -> bool {
    let (was, is) = (&before.metadata, &after.metadata);
    let same_object = was.uid == is.uid && was.deletion_timestamp == is.deletion_timestamp;
    let same_words = was.annotations == is.annotations && before.spec == after.spec;
    !same_object || !same_words || of_status(before) != of_status(after)
}

/// Returns the part of a pool's status that hosts read.
fn of_status(pool: &WindowsNodePool) -> impl PartialEq + '_ {
    pool.status.as_ref().map(|status| {
        let condition = |type_| find(&status.conditions, type_).map(|c| (&c.status, &c.reason));
        (
            status.desired_version.as_ref(),
            &status.acts,
            &status.unclean_hosts,
            [kind::PAUSED, kind::STALLED, kind::POLICIES_IN_FORCE].map(condition),
        )
    })
}

#[cfg(test)]
mod tests {
    use api::{PoolRef, WindowsInstanceSpec, WindowsNodePoolSpec};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_freed_host_concerns_its_pool_and_pools_that_may_have_waited_for_it() {
        let refused = |reason: &str| json!({"host": "h", "reason": reason, "message": ""});
        let pools: Vec<Arc<WindowsNodePool>> = [
            ("own", json!(null)),
            ("new", json!(null)),
            ("content", json!({"refusedHosts": 0})),
            ("wrong", json!({"refusedHosts": 1, "refused": [refused("InvalidInventory")]})),
            ("waiting", json!({"refusedHosts": 2, "refused": [refused("InvalidInventory"), refused("HostConflict")]})),
            ("unknown", json!({"refusedHosts": 51, "refused": vec![refused("InvalidInventory"); 50]})),
        ]
        .into_iter()
        .map(|(name, status)| {
            let mut pool = WindowsNodePool::new(name, WindowsNodePoolSpec::default());
            pool.status = serde_json::from_value(status).unwrap();
            Arc::new(pool)
        })
        .collect();
        for (about, of, is_gone, expected) in [
            ("the instance changes", "own", false, &["own"][..]),
            ("the instance is gone", "own", true, &["own", "waiting", "unknown"]),
            ("the instance is gone, and its own pool waits for another host", "waiting", true, &["waiting", "unknown"]),
            ("the instance and its pool are gone", "gone", true, &["gone", "waiting", "unknown"]),
        ] {
            let pool_ref = PoolRef { name: of.into() };
            let instance =
                WindowsInstance::new("h", WindowsInstanceSpec { pool_ref, ..WindowsInstanceSpec::default() });
            assert_eq!(concerned_pools(&instance, is_gone, &pools), expected, "{about}");
        }
    }

    /// Name of a case, change of the pool, and whether hosts must see it.
    type Case = (&'static str, fn(&mut Value), bool);

    #[test]
    fn hosts_are_reconciled_for_the_parts_of_their_pool_that_they_read() {
        let pool = |change: &dyn Fn(&mut Value)| -> WindowsNodePool {
            let condition = |type_: &str, status: &str, reason: &str| json!({"type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2027-01-01T00:00:00Z"});
            let mut pool = json!({
                "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsNodePool",
                "metadata": {"name": "p", "uid": "u1", "resourceVersion": "7", "generation": 1, "annotations": {"a": "1"}},
                "spec": {"inventory": {"hosts": [{"name": "h", "address": "10.0.0.1"}]}},
                "status": {
                    "desiredVersion": "1-a", "readyNodes": 1,
                    "conditions": [
                        condition("Ready", "True", "Succeeded"),
                        condition("Paused", "False", "AsExpected"),
                        condition("PoliciesInForce", "True", "AsExpected"),
                    ],
                },
            });
            change(&mut pool);
            serde_json::from_value(pool).unwrap()
        };
        let before = pool(&|_| ());
        let cases: [Case; 20] = [
            ("nothing", |_| (), false),
            ("its resource version", |p| p["metadata"]["resourceVersion"] = json!("8"), false),
            ("a finalizer of the operator", |p| p["metadata"]["finalizers"] = json!(["f"]), false),
            ("a count", |p| p["status"]["readyNodes"] = json!(2), false),
            ("a message", |p| p["status"]["conditions"][0]["message"] = json!("2 of 2 nodes Ready"), false),
            ("the condition Ready", |p| p["status"]["conditions"][0]["status"] = json!("Unknown"), false),
            ("the progress of a rollout", |p| p["status"]["updatingNodes"] = json!(1), false),
            ("the observed generation", |p| p["status"]["observedGeneration"] = json!(1), false),
            ("the message of a pause", |p| p["status"]["conditions"][1]["message"] = json!("until noon"), false),
            ("its spec", |p| p["spec"]["rollout"] = json!({"paused": true}), true),
            ("a host in its list", |p| p["spec"]["inventory"]["hosts"][0]["address"] = json!("10.0.0.2"), true),
            ("an annotation", |p| p["metadata"]["annotations"]["a"] = json!("2"), true),
            ("a deletion", |p| p["metadata"]["deletionTimestamp"] = json!("2027-01-01T00:00:00Z"), true),
            ("another pool of that name", |p| p["metadata"]["uid"] = json!("u2"), true),
            ("its version", |p| p["status"]["desiredVersion"] = json!("1-b"), true),
            ("its first status", |p| p["status"] = json!(null), true),
            (
                "a host that is recorded as unclean",
                |p| {
                    p["status"]["uncleanHosts"] =
                        json!([{"name": "h", "address": "10.0.0.1", "time": "2027-01-01T00:00:00Z"}]);
                },
                true,
            ),
            ("a pause that begins", |p| p["status"]["conditions"][1]["status"] = json!("True"), true),
            ("another operator", |p| p["status"]["conditions"][0]["type"] = json!("Stalled"), true),
            ("missing permissions of wicd", |p| p["status"]["conditions"][2]["status"] = json!("False"), true),
        ];
        for (about, change, expected) in cases {
            assert_eq!(concerns_hosts(&before, &pool(&change)), expected, "{about}");
        }
    }
}
