//! Decides on the changes and grants of a pool from its observed state. Changes only the pool's share of the shared limits, in memory.

use std::sync::Arc;

use api::WindowsNodePool;
use jiff::Timestamp;
use kube::{ResourceExt, runtime::reflector::ObjectRef};

use super::{PoolContext, snapshot::Snapshot};
use wnp_core::{
    inventory::instances::{Changes, changes},
    rollout::grants::{self, Candidate, Decision, Limits},
};

/// Planned changes and grants of a pool.
pub(super) struct Plan {
    /// Instances to create, to change, and to mark as leaving.
    pub changes: Changes,
    /// Grants to give and to revoke.
    pub decision: Decision,
}

/// Decides on the changes and grants of a pool. Triggers the pools that can use slots of the shared limits that are free now.
pub(super) fn decide(pool: &WindowsNodePool, seen: &Snapshot, cx: &PoolContext, now: Timestamp) -> Plan {
    let version = seen.desired.for_new_hosts(seen.limits.open, cx);
    let changes = changes(&seen.list, &seen.mine, &version, pool, &|name| cx.caches.pools.get(&ObjectRef::new(name)));
    // A new host gets its grant together with its instance if there is a slot for it, which saves a write.
    let new = changes.create.iter().map(|i| seen.desired.member(&Arc::new(i.clone()), false, cx, now).candidate);
    let candidates: Vec<Candidate> = seen.members.iter().map(|m| m.candidate.clone()).chain(new).collect();
    let cap = cx.process.args.max_disruptions;
    // All pools with instances, because they may share a limit of disruptions.
    let sharers = || cx.caches.instances.sharers(&|name| super::has_own_limit(name, cx));
    let (decision, next) = cx.disruptions.decide(&pool.name_any(), cap, sharers, now, |others| {
        grants::decide(&candidates, &Limits { others, ..seen.limits.clone() }, now)
    });
    cx.wake.pools(next);
    Plan { changes, decision }
}
