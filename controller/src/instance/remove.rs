//! Removes a host: carries out the steps that [`operation::remove`](wnp_core::operation::remove) chooses.

use std::{sync::Arc, time::Duration};

use api::{
    DeletionPolicy, Grant, GrantType, Operation, Step, UncleanHost, WindowsInstance, WindowsNodePool,
    host::{self, Body, Verb},
    names::{FINALIZER_INSTANCE, MANAGER_INSTANCE, key},
    services_version::short,
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
    core::DeserializeGuard,
    runtime::controller::Action,
};
use serde_json::json;

use super::{
    address::verify_before_removal,
    drain::{cordon, left_behind, lift_cordon, pass, take_cordon},
    error::StepError,
    identity::prove,
    login::{self, login},
    maintenance, node_events,
    node_ownership::Found,
    orphan::hand_back,
    restored::is_lost,
    scope::Scope,
};
use crate::runtime::{clock, errors::unless_changed, events::EventReason};
use wnp_core::{
    inventory::ownership::HostOwners,
    node::ready,
    operation::{
        identity::{Identity, Purpose},
        remove::{Next, ObservedRemoval, is_deconfiguring, is_step, kept_by_finalizers, next},
        times::age,
    },
};

/// Minimum time between the removal mark of a node and the deletion of its instance, after which the removal cannot be revoked. In this time, a host
/// can be kept that was removed from its list by mistake, or that another pool is about to list.
const SETTLE: Duration = Duration::from_secs(5);

/// Interval at which a Node kept by finalizers is checked.
const KEPT: Duration = Duration::from_secs(30);

/// Continues the removal of the host, until it is complete or a wait is needed.
pub(super) async fn run(scope: &mut Scope, grant: &Grant) -> Result<Action, StepError> {
    // A user who returns hosts to the legacy operator sets this policy last: it takes precedence over an earlier grant.
    if scope.pool.spec.deletion_policy() == DeletionPolicy::Orphan && irrevocable(scope).is_none() {
        return release(scope, grant).await;
    }
    let is_removal = |o: &&Operation| o.id == grant.id && o.type_ == GrantType::Remove && is_step(o.step);
    let begun = scope.status.operation.as_ref().filter(is_removal).map(|o| o.step);
    if begun.is_none() {
        Box::pin(verify_before_removal(scope)).await?;
    }
    take_up(scope, grant);
    let mut cleanup = None;
    let mut seen = ObservedRemoval { begun, touched: scope.status.host_key.is_some(), ..ObservedRemoval::default() };
    loop {
        if scope.cx.process.stop.is_cancelled() {
            return Ok(Action::await_change());
        }
        seen.deconfiguring = scope.status.operation.as_ref().is_some_and(is_deconfiguring);
        let found = if seen.deconfiguring { scope.find_node().await? } else { scope.find_node_to_empty().await? };
        // The pods of a missing Node must end before the host is changed.
        let is_gone = matches!(found, Found::Gone);
        let node = found.node();
        seen.cordoned = node.as_ref().is_some_and(|n| cordon(scope).is_held(n));
        seen.ready = node.as_ref().is_some_and(|n| ready(n).0);
        seen.deleted = scope.instance.is_deleting();
        match next(node, seen) {
            Next::Cordon(node) => {
                (seen.drained, seen.begun) = (false, Some(Step::Cordon));
                if seen.deconfiguring {
                    drain_anew(scope);
                }
                if let Some(action) = take_cordon(scope, &node).await? {
                    return Ok(action);
                }
            }
            Next::Drain(node) => match pass(scope, &node).await? {
                None => seen.drained = true,
                Some(action) => return Ok(action),
            },
            Next::Delete => {
                if is_gone && let Some(action) = left_behind(scope).await? {
                    return Ok(action);
                }
                if let Some(wait) = remaining_grace(scope) {
                    return Ok(Action::requeue(wait));
                }
                if let Some(other) = listed_elsewhere(scope).await? {
                    // The host's own pool hands it over, which triggers another reconcile.
                    scope.cx.wake.pool(&scope.instance.spec.pool_ref.name);
                    let own = &scope.instance.spec.pool_ref.name;
                    let says = format!("pool {other} lists the host now: waiting until pool {own} has handed it over");
                    scope.enter_step(Step::Drain, &says).await?;
                    return Ok(Action::requeue(SETTLE));
                }
                delete(scope, |i| leaves_with(i, grant)).await?;
            }
            Next::Deconfigure => {
                if is_gone
                    && !seen.deconfiguring
                    && let Some(action) = left_behind(scope).await?
                {
                    return Ok(action);
                }
                cleanup = Some(deconfigure(scope).await?);
                (seen.clean, seen.begun) = (true, Some(Step::Deconfigure));
            }
            Next::DeleteNode(node) => {
                if let Some(why) = kept_by_finalizers(&node) {
                    scope.enter_step(Step::DeleteNode, &why).await?;
                    // The deletion of the Node triggers another reconcile at once.
                    return Ok(Action::requeue(KEPT));
                }
                scope.enter_step(Step::DeleteNode, "deleting the Node").await?;
                seen.begun = Some(Step::DeleteNode);
                node_events::removed(scope, &node);
                delete_node(scope, &node).await?;
            }
            Next::Gone => return gone(scope, cleanup.as_ref()).await,
        }
    }
}

/// Begins the removal. Keeps the record of an interrupted change, in case the removal is revoked.
fn take_up(scope: &mut Scope, grant: &Grant) {
    let interrupted = scope.status.operation.clone().filter(|o| o.id != grant.id && is_half_changed(o));
    let operation = scope.start_operation(grant, Step::Cordon);
    if let Some(old) = interrupted {
        operation.from_version = old.from_version;
        operation.to_version = old.to_version;
        operation.disruption = old.disruption;
        operation.services = old.services;
        operation.applied = old.applied;
        operation.changed = old.changed;
        operation.rolling_back = old.rolling_back;
        operation.pre_cordoned = old.pre_cordoned;
    }
}

/// Restarts the timeout of the drain: after another client removed the cordon, new pods may have arrived, and they get the full time.
fn drain_anew(scope: &mut Scope) {
    if let Some(drain) = scope.status.record().operation.as_mut().and_then(|o| o.drain.as_mut()) {
        drain.start_time = clock::now().into();
    }
}

/// Reports whether an unfinished operation has changed the host in part.
fn is_half_changed(operation: &Operation) -> bool {
    operation.applied || operation.rolling_back
}

/// Returns the grant of the host's removal, if that can no longer be revoked.
pub(super) fn irrevocable(scope: &Scope) -> Option<Grant> {
    let removal = scope.status.operation.as_ref().filter(|o| is_deconfiguring(o))?;
    scope.instance.is_deleting().then(|| removal.as_grant())
}

/// Returns the remaining time before a node that was just marked may be removed.
fn remaining_grace(scope: &Scope) -> Option<Duration> {
    let leaving = scope.instance.spec.leaving.as_ref().filter(|_| scope.status.current_version.is_some())?;
    let age = age(leaving.since.known()?, clock::now());
    let left = SETTLE.saturating_sub(Duration::try_from(age).unwrap_or_default());
    (!left.is_zero()).then_some(left)
}

/// Returns the name of another pool that lists the host of this node in its spec. Reads the pools from the API server, directly before the removal
/// becomes irrevocable: a cache may be older than the move of the host.
async fn listed_elsewhere(scope: &Scope) -> Result<Option<String>, StepError> {
    if scope.status.current_version.is_none() || scope.instance.is_deleting() {
        return Ok(None);
    }
    // One unreadable pool must not block every removal.
    let pools: Api<DeserializeGuard<WindowsNodePool>> = Api::all(scope.cx.cluster.client.clone());
    let pools = pools.list(&ListParams::default()).await.map_err(StepError::api("list the pools"))?;
    let pools: Vec<Arc<WindowsNodePool>> = pools.items.into_iter().filter_map(|p| p.0.ok()).map(Arc::new).collect();
    let (own_pool, host) = (&scope.instance.spec.pool_ref.name, &scope.instance.spec.host);
    Ok(HostOwners::default().other(own_pool, &host.name, &host.address, &pools))
}

/// Reverts a removal or a release whose mark or grant was revoked. A change that the removal has interrupted continues, as a maintenance if one is
/// requested.
pub(super) async fn take_back(scope: &mut Scope) -> Result<(), StepError> {
    let Some(operation) = scope.status.record().operation.as_mut() else { return Ok(()) };
    if !matches!(operation.type_, GrantType::Remove | GrantType::Orphan) {
        return Ok(());
    }
    operation.drain = None;
    let is_half_changed = is_half_changed(operation);
    if is_half_changed {
        operation.step = Step::Connect;
        operation.step_start_time = clock::now().into();
        // A node with requested maintenance is not put back into use.
        let node = scope.find_node().await?.node();
        let is_requested = maintenance::requested(scope, node.as_ref()).request.is_some();
        if let Some(operation) = scope.status.record().operation.as_mut() {
            operation.type_ = if is_requested { GrantType::Maintenance } else { GrantType::Update };
        }
    } else {
        find_and_uncordon(scope).await?;
        scope.drop_operation();
    }
    scope.status.record().failures = None;
    if !scope.leaving() {
        scope.say(EventReason::RemovalTakenBack, "Remove", note_of_cancellation(is_half_changed));
    }
    Ok(())
}

fn note_of_cancellation(is_half_changed: bool) -> &'static str {
    if is_half_changed {
        "removal cancelled; the host stays in the pool; the interrupted change continues"
    } else {
        "removal cancelled; the host stays in the pool"
    }
}

/// Finds the Node, and lifts the cordon of the current operation, if it has one.
async fn find_and_uncordon(scope: &mut Scope) -> Result<(), StepError> {
    if scope.status.operation.is_some()
        && let Some(node) = scope.find_node().await?.node()
    {
        lift_cordon(scope, &node).await?;
    }
    Ok(())
}

/// Releases the host unchanged, without a drain. Removes only the operator's cordon and maintenance state from the Node.
pub(super) async fn release(scope: &mut Scope, grant: &Grant) -> Result<Action, StepError> {
    // A node that accepts pods again must not look drained.
    if let Some(node) = scope.find_node().await?.node() {
        maintenance::withdraw(scope, &node).await?;
    }
    find_and_uncordon(scope).await?;
    let half = scope.status.operation.as_ref().filter(|o| is_half_changed(o)).map(|o| {
        let to = short(o.to_version.as_deref().unwrap_or_default());
        format!(
            "the host was released during a change to version {to}, at step {}: it is partly changed. Add it to a pool again to complete the change",
            o.step
        )
    });
    let reason = if half.is_some() { EventReason::OrphanedPartlyChanged } else { EventReason::Orphaned };
    let note = hand_back(scope).await?.note(half);
    delete(scope, |i| leaves_with(i, grant)).await?;
    scope.say(reason, "Orphan", &note);
    finish(scope).await
}

/// Reports whether a user has abandoned the host.
pub(super) fn is_abandoned(instance: &WindowsInstance) -> bool {
    instance.annotations().get(key::ABANDON).is_some_and(|v| v == "true")
}

fn leaves_with(instance: &WindowsInstance, grant: &Grant) -> bool {
    instance.is_leaving() && instance.spec.grant.as_ref().is_some_and(|g| g.id == grant.id)
}

/// Deletes the instance, unless it is already being deleted: from here on, the removal cannot be revoked. Fails if `is_wanted` is false for the
/// current instance. The finalizer keeps the instance until the removal is complete.
async fn delete(scope: &mut Scope, is_wanted: impl Fn(&WindowsInstance) -> bool) -> Result<(), StepError> {
    if scope.instance.is_deleting() {
        return Ok(());
    }
    let api: Api<WindowsInstance> = Api::all(scope.cx.cluster.client.clone());
    let fresh = api.get_opt(&scope.name()).await.map_err(StepError::api("get the WindowsInstance"))?;
    let fresh = fresh.filter(|f| f.uid() == scope.instance.uid() && is_wanted(f)).ok_or(StepError::Outdated)?;
    let unchanged = Preconditions { uid: fresh.uid(), resource_version: fresh.resource_version() };
    let answer = api.delete(&scope.name(), &DeleteParams::default().preconditions(unchanged)).await;
    let answer =
        unless_changed(answer).map_err(StepError::api("delete the WindowsInstance"))?.ok_or(StepError::Outdated)?;
    if let Some(written) = answer.left() {
        scope.cx.writes.instances.note(&written);
        Arc::make_mut(&mut scope.instance).metadata = written.metadata;
    }
    Ok(())
}

/// Result of a deconfiguration.
enum Cleanup {
    /// Everything that the operator put on the host is removed.
    Done,
    /// The host belongs to this other owner. The host was not changed.
    OfOther(String),
}

/// Returns the owner of a host for messages. `own_cluster` is the ID of this cluster.
fn in_words(owner: &host::Owner, own_cluster: &str) -> String {
    match (owner.node_name.as_str(), owner.cluster_id.as_str()) {
        ("", _) => "an unknown cluster".to_owned(),
        (node, cluster) if cluster == own_cluster => format!("the Node {node}"),
        (node, "") => format!("the Node {node} of an unknown cluster"),
        (node, cluster) => format!("the Node {node} of the cluster {cluster}"),
    }
}

/// Removes from the host everything that the operator put on it, unless the host belongs to another owner by now.
async fn deconfigure(scope: &mut Scope) -> Result<Cleanup, StepError> {
    if let Some(operation) = &mut scope.status.record().operation {
        operation.deconfiguring = true;
    }
    let what = "removing everything that the operator put on the host";
    scope.enter_step(Step::Deconfigure, what).await?;
    let operation = scope.operation_id();
    Box::pin(verify_before_removal(scope)).await?;
    let login = login(&scope.cx, &scope.instance, &scope.pool).await?;
    let mut session = login::open(scope, &operation, &login, what).await?;
    scope.mark_reachable();
    session.prepare().await?;
    let state = session.look(&[]).await?;
    if let Identity::OtherOwner(owner) = prove(scope, &mut session, &state, Purpose::Remove)? {
        session.tidy(&[Verb::Facts]).await?;
        session.close().await;
        let owner = in_words(&owner, &scope.cx.cluster.id);
        let note = format!("the host belongs to {owner} now, and the operator did not change it");
        scope.say(EventReason::HostIsAnothers, Step::Deconfigure.as_str(), &note);
        return Ok(Cleanup::OfOther(owner));
    }
    let answer = session.ask(Body::Cleanup(host::Cleanup::default())).await?;
    scope.say_warnings(Step::Deconfigure, &answer.warnings);
    session.tidy(&[Verb::Cleanup, Verb::Facts]).await?;
    session.remove_wicd().await?;
    session.close().await;
    Ok(Cleanup::Done)
}

async fn delete_node(scope: &Scope, node: &Node) -> Result<(), StepError> {
    let nodes: Api<Node> = Api::all(scope.cx.cluster.client.clone());
    let only_this = Preconditions { uid: node.uid(), resource_version: None };
    let answer = nodes.delete(&node.name_any(), &DeleteParams::default().preconditions(only_this)).await;
    unless_changed(answer).map(drop).map_err(StepError::api("delete the Node"))
}

async fn gone(scope: &mut Scope, cleanup: Option<&Cleanup>) -> Result<Action, StepError> {
    let note = note_of_removal(scope.status.host_key.is_some(), cleanup);
    scope.count_operation(true);
    scope.say(EventReason::Removed, "Remove", &note);
    finish(scope).await
}

/// Returns the note about a complete removal. `cleanup` is `None` if an earlier reconcile deconfigured the host.
fn note_of_removal(is_touched: bool, cleanup: Option<&Cleanup>) -> String {
    match cleanup {
        _ if !is_touched => "the operator put nothing on the host, so there was nothing to remove".into(),
        Some(Cleanup::Done) => "the host was removed from the cluster and cleaned up".into(),
        Some(Cleanup::OfOther(owner)) => {
            format!("the host was removed from the cluster, but not changed, because it belongs to {owner}")
        }
        None => "the host was removed from the cluster".into(),
    }
}

/// Removes a host whose Machine was deleted, without contacting it: nothing is left to drain, contact or clean.
pub(super) async fn vanished(scope: &mut Scope) -> Result<Action, StepError> {
    if let Some(node) = scope.find_node().await?.node() {
        delete_node(scope, &node).await?;
    }
    delete(scope, WindowsInstance::is_leaving).await?;
    let note = "the Machine of the host no longer exists, so the operator removed the host without contacting it";
    scope.count_operation(true);
    scope.say(EventReason::Removed, "Remove", note);
    finish(scope).await
}

/// Abandons the host at the request of a user: deletes its Node, and records the host as unclean if the operator has put anything on it. Does not
/// contact the host.
pub(super) async fn abandon(scope: &mut Scope) -> Result<Action, StepError> {
    delete(scope, is_abandoned).await?;
    // A host whose status was lost has no recorded host key, and may still run the operator's services.
    let is_unclean = scope.status.host_key.is_some() || is_lost(scope);
    let label = json!({"metadata": {"labels": {key::UNCLEAN: is_unclean.then_some("true")}}});
    let instances: Api<WindowsInstance> = Api::all(scope.cx.cluster.client.clone());
    let params = PatchParams::apply(MANAGER_INSTANCE);
    match instances.patch(&scope.name(), &params, &Patch::Merge(label)).await {
        Ok(_) => {}
        // The instance was abandoned a moment ago, which the cache does not show yet.
        Err(kube::Error::Api(status)) if status.is_not_found() => return Err(StepError::Outdated),
        Err(error) => return Err(StepError::api("label the WindowsInstance")(error)),
    }
    if is_unclean {
        note_unclean(scope).await?;
    }
    if let Some(node) = scope.find_node().await?.node() {
        delete_node(scope, &node).await?;
    }
    let note = note_of_abandonment(&scope.name(), &scope.instance.spec.host.address, is_unclean);
    if is_unclean {
        scope.say(EventReason::RemovedUnclean, "Abandon", &note);
        scope.cx.events.say(&*scope.pool, EventReason::RemovedUnclean, "Abandon", &note);
    } else {
        scope.say(EventReason::Removed, "Abandon", &note);
    }
    finish(scope).await
}

fn note_of_abandonment(name: &str, address: &str, is_unclean: bool) -> String {
    if is_unclean {
        format!(
            "the host {name} at {address} was abandoned without being deconfigured: the operator's services and files may still be on it. Clean or \
             rebuild it before you use it again"
        )
    } else {
        format!("the host {name} at {address} was abandoned; the operator put nothing on it")
    }
}

/// Records the host as unclean in the pool's status, until the host joins this or another pool again.
async fn note_unclean(scope: &Scope) -> Result<(), StepError> {
    let host = UncleanHost {
        name: scope.name(),
        address: scope.instance.spec.host.address.clone(),
        time: clock::now().into(),
    };
    write_unclean(scope, &scope.pool.name_any(), |list| {
        list.retain(|h| h.name != host.name);
        list.push(host);
        // Only the newest 100 are kept; the events have reported all.
        list.drain(..list.len().saturating_sub(100));
    })
    .await
}

/// Removes the host from the unclean hosts of all pools, because the operator manages it again.
pub(super) async fn forget_unclean(scope: &Scope) -> Result<(), StepError> {
    let name = scope.name();
    for pool in scope.cx.caches.pools.state() {
        if pool.status.as_ref().is_some_and(|s| s.unclean_hosts.iter().any(|h| h.name == name)) {
            write_unclean(scope, &pool.name_any(), |list| list.retain(|h| h.name != name)).await?;
        }
    }
    Ok(())
}

async fn write_unclean(scope: &Scope, pool: &str, change: impl FnOnce(&mut Vec<UncleanHost>)) -> Result<(), StepError> {
    let pools: Api<WindowsNodePool> = Api::all(scope.cx.cluster.client.clone());
    let Some(pool) = pools.get_opt(pool).await.map_err(StepError::api("get the pool"))? else {
        return Ok(());
    };
    let mut unclean = pool.status.clone().unwrap_or_default().unclean_hosts;
    change(&mut unclean);
    let patch = json!({"metadata": {"resourceVersion": pool.resource_version()}, "status": {"uncleanHosts": unclean}});
    let params = PatchParams::apply(MANAGER_INSTANCE);
    let doing = StepError::api("store the pool's status");
    pools.patch_status(&pool.name_any(), &params, &Patch::Merge(patch)).await.map_err(doing)?;
    Ok(())
}

/// Removes the operator's finalizer from the instance, so that the API server can delete it.
async fn finish(scope: &mut Scope) -> Result<Action, StepError> {
    let finalizers = scope.instance.finalizers();
    if !finalizers.iter().any(|f| f == FINALIZER_INSTANCE) {
        return Ok(Action::await_change());
    }
    let left: Vec<&String> = finalizers.iter().filter(|f| *f != FINALIZER_INSTANCE).collect();
    let patch = json!({"metadata": {"finalizers": left, "uid": scope.instance.uid()}});
    let instances: Api<WindowsInstance> = Api::all(scope.cx.cluster.client.clone());
    let written = instances.patch(&scope.name(), &PatchParams::default(), &Patch::Merge(patch)).await;
    if let Some(written) =
        unless_changed(written).map_err(StepError::api("remove the finalizer of the WindowsInstance"))?
    {
        scope.cx.writes.instances.note(&written);
    }
    Ok(Action::await_change())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::test_bed::{Bed, operation};

    #[test]
    fn notes_say_what_was_done_to_the_host() {
        for (is_half_changed, expected) in [
            (false, "removal cancelled; the host stays in the pool"),
            (true, "removal cancelled; the host stays in the pool; the interrupted change continues"),
        ] {
            assert_eq!(note_of_cancellation(is_half_changed), expected);
        }
        let of_other = Cleanup::OfOther("the Node win-2".into());
        for (is_touched, cleanup, expected) in [
            (false, None, "the operator put nothing on the host, so there was nothing to remove"),
            (true, Some(&Cleanup::Done), "the host was removed from the cluster and cleaned up"),
            (
                true,
                Some(&of_other),
                "the host was removed from the cluster, but not changed, because it belongs to the Node win-2",
            ),
            (true, None, "the host was removed from the cluster"),
        ] {
            assert_eq!(note_of_removal(is_touched, cleanup), expected);
        }
        for (is_unclean, expected) in [(true, "may still be on it"), (false, "the operator put nothing on it")] {
            let note = note_of_abandonment("win-1", "10.0.0.1", is_unclean);
            assert!(note.starts_with("the host win-1 at 10.0.0.1 was abandoned") && note.contains(expected), "{note}");
        }
        for (cluster, node, expected) in [
            ("c-1", "win-2", "the Node win-2"),
            ("c-2", "win-2", "the Node win-2 of the cluster c-2"),
            ("", "win-2", "the Node win-2 of an unknown cluster"),
            ("", "", "an unknown cluster"),
        ] {
            let owner = host::Owner { cluster_id: cluster.into(), node_name: node.into() };
            assert_eq!(in_words(&owner, "c-1"), expected);
        }
    }

    /// A removal that discarded the change would leave the host half changed if the host stays after all.
    #[tokio::test]
    async fn a_removal_in_the_middle_of_a_change_keeps_what_was_changed() {
        let bed = Bed::with_objects().await;
        let changed = json!({"applied": true, "changed": true, "toVersion": "2-b"});
        let operation = operation("u-1", "Update", "Configure", &changed);
        let mut scope = bed.scope_with(&json!({"currentVersion": "1-a", "operation": operation}));
        let grant = json!({"id": "r-1", "type": "Remove", "grantedTime": "2026-01-01T00:00:00Z"});
        take_up(&mut scope, &serde_json::from_value(grant).unwrap());
        assert_eq!((scope.operation_type(), scope.step()), (Some(GrantType::Remove), Step::Cordon));
        take_back(&mut scope).await.unwrap();
        let operation = scope.status.operation.as_ref().unwrap();
        assert!(operation.is_irrevocable() && operation.to_version.as_deref() == Some("2-b"), "{operation:?}");
    }
}
