//! Takes a host out: carries out the steps that [`operation::remove`](wnp_core::operation::remove) chooses.

use std::time::Duration;

use api::{
    DeletionPolicy, Grant, GrantType, Operation, UncleanHost, WindowsInstance, WindowsNodePool,
    host::{self, Body, Verb},
    names::{FINALIZER_INSTANCE, MANAGER_INSTANCE, key},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;

use super::{
    address::verify_before_removal,
    error::StepError,
    evacuate::{cordon, left_behind, pass, take_cordon},
    hand_back::hand_back,
    identity::prove,
    login::login,
    own::Found,
    session::Session,
    work::{Flow, Work},
};
use crate::events::Level;
use wnp_core::operation::{
    identity::{Identity, Purpose},
    remove::{Next, Seen, Step, next},
};

/// A node that is to leave stays one for at least this long after it was marked: what was taken out by mistake, or stands in the next
/// object that is applied, has time to come back.
const SETTLE: Duration = Duration::from_secs(5);

/// Continues the removal of the host, until it is complete or a wait is needed.
pub async fn run(work: &mut Work, grant: &Grant) -> Result<Flow, StepError> {
    // A user who hands hosts back sets this policy last: it takes precedence over a grant that was given under another.
    if work.pool.spec.deletion_policy() == DeletionPolicy::Orphan && !is_past_return(work) {
        return let_go(work, grant).await;
    }
    let cx = work.cx.clone();
    let begun = work.status.operation.as_ref().filter(|o| o.id == grant.id).and_then(|o| Step::parse(&o.step));
    if begun.is_none() {
        verify_before_removal(work).await?;
    }
    take_up(work, grant);
    let mut seen = Seen { begun, touched: work.status.host_key.is_some(), ..Seen::default() };
    loop {
        if cx.process.stop.is_cancelled() {
            return Ok(Flow::Rest);
        }
        let past_drain = seen.begun >= Some(Step::Deconfigure);
        let found = if past_drain { work.find_node().await? } else { work.find_node_to_empty().await? };
        let is_gone = matches!(found, Found::Gone);
        let node = found.node();
        seen.node = node.is_some();
        seen.cordoned = node.as_ref().is_some_and(|n| cordon(work).is_held(n));
        seen.deleted = work.instance.is_deleting();
        match (next(seen), node) {
            (Next::Gone, _) => return gone(work).await,
            (Next::Delete, _) => {
                if is_gone && let Some(flow) = left_behind(work).await? {
                    return Ok(flow);
                }
                if let Some(wait) = settles(work) {
                    return Ok(Flow::After(wait));
                }
                delete(work, |i| leaves_with(i, grant)).await?;
            }
            (Next::Do(Step::Cordon), Some(node)) => {
                seen.drained = false;
                take_cordon(work, &node).await?;
            }
            (Next::Do(Step::Drain), Some(node)) => match pass(work, &node).await? {
                None => seen.drained = true,
                Some(flow) => return Ok(flow),
            },
            (Next::Do(Step::Deconfigure), _) => {
                if is_gone
                    && !past_drain
                    && let Some(flow) = left_behind(work).await?
                {
                    return Ok(flow);
                }
                deconfigure(work).await?;
                (seen.clean, seen.begun) = (true, Some(Step::Deconfigure));
            }
            (Next::Do(Step::DeleteNode), Some(node)) => {
                work.begin(Step::DeleteNode.as_str(), "deleting the Node").await?;
                seen.begun = Some(Step::DeleteNode);
                delete_node(work, &node).await?;
            }
            // The Node went away in between: look again.
            (Next::Do(_), None) => {}
        }
    }
}

/// Takes up the removal. Of a change that it interrupts it keeps what was changed on the host, in case that the host is to stay after all.
fn take_up(work: &mut Work, grant: &Grant) {
    let interrupted = work.status.operation.clone().filter(|o| o.id != grant.id && is_half_changed(o));
    let operation = work.take_up(grant, Step::Cordon.as_str());
    if let Some(old) = interrupted {
        operation.from_version = old.from_version;
        operation.to_version = old.to_version;
        operation.disruption = old.disruption;
        operation.services = old.services;
        operation.applied = old.applied;
        operation.rolling_back = old.rolling_back;
        operation.pre_cordoned = old.pre_cordoned;
    }
}

/// Whether something of the host was changed by an operation that is not over.
fn is_half_changed(operation: &Operation) -> bool {
    operation.applied || operation.rolling_back
}

/// Whether the removal can no longer be revoked.
pub fn is_past_return(work: &Work) -> bool {
    let step = work.status.operation.as_ref().filter(|o| o.type_ == GrantType::Remove).map(|o| o.step.as_str());
    work.instance.is_deleting() && step.and_then(Step::parse) >= Some(Step::Deconfigure)
}

/// How long a node that was marked only just now stays one yet.
fn settles(work: &Work) -> Option<Duration> {
    let leaving = work.instance.spec.leaving.as_ref().filter(|_| work.status.current_version.is_some())?;
    let since: Timestamp = leaving.since.parse().ok()?;
    let left = SETTLE.saturating_sub(Duration::try_from(Timestamp::now().duration_since(since)).unwrap_or_default());
    (!left.is_zero()).then_some(left)
}

/// The removal or its grant was revoked: its steps are undone. What a change before had done to the host is
/// brought to its end.
pub async fn take_back(work: &mut Work) -> Result<(), StepError> {
    let Some(operation) = work.status.operation.as_mut() else { return Ok(()) };
    if !matches!(operation.type_, GrantType::Remove | GrantType::Orphan) {
        return Ok(());
    }
    operation.drain = None;
    if is_half_changed(operation) {
        operation.type_ = GrantType::Update;
        operation.step = wnp_core::operation::update::Step::Host.as_str().into();
    } else {
        lift_cordon(work).await?;
        work.status.operation = None;
    }
    work.status.failures = None;
    if !work.leaving() {
        let note = "the host stays in the pool: its node accepts pods again";
        work.cx.events.say(&work.instance, Level::Normal, "RemovalTakenBack", "Remove", note);
    }
    Ok(())
}

/// Lifts the cordon of the operation that is going on, if it has one.
pub async fn lift_cordon(work: &mut Work) -> Result<(), StepError> {
    if work.status.operation.is_some()
        && let Some(node) = work.find_node().await?.node()
    {
        work.cx.process.metrics.wrote("Node");
        cordon(work).release(&work.cx.cluster.client, &node).await.map_err(StepError::Drain)?;
    }
    Ok(())
}

/// Lets the host go as it is: nothing is drained, and nothing on the host is touched. Of what had begun, only our cordon is lifted.
pub async fn let_go(work: &mut Work, grant: &Grant) -> Result<Flow, StepError> {
    lift_cordon(work).await?;
    let half = work.status.operation.as_ref().filter(|o| is_half_changed(o)).map(|o| {
        let to = o.to_version.as_deref().unwrap_or_default();
        format!(
            "the host was released during a change to version {to}, at step {}: it is partly changed. Add it to a pool again to complete the change",
            o.step
        )
    });
    let level = if half.is_some() { Level::Warning } else { Level::Normal };
    let handed_back = hand_back(work).await?;
    let note = half.unwrap_or(handed_back);
    delete(work, |i| leaves_with(i, grant)).await?;
    work.cx.events.say(&work.instance, level, "Orphaned", "Orphan", &note);
    finish(work).await
}

/// Whether a person has given the host up.
pub fn is_abandoned(instance: &WindowsInstance) -> bool {
    instance.annotations().get(key::ABANDON).is_some_and(|v| v == "true")
}

fn leaves_with(instance: &WindowsInstance, grant: &Grant) -> bool {
    instance.is_leaving() && instance.spec.grant.as_ref().is_some_and(|g| g.id == grant.id)
}

/// Deletes the instance, unless it is being deleted, if its present state requires it: from here on, the removal cannot
/// be revoked. The finalizer keeps it until the rest is done.
async fn delete(work: &mut Work, is_wanted: impl Fn(&WindowsInstance) -> bool) -> Result<(), StepError> {
    if work.instance.is_deleting() {
        return Ok(());
    }
    let api: Api<WindowsInstance> = Api::all(work.cx.cluster.client.clone());
    let fresh = api.get_opt(&work.name()).await.map_err(StepError::api("get the instance"))?;
    let fresh = fresh.filter(|f| f.uid() == work.instance.uid() && is_wanted(f)).ok_or(StepError::Outdated)?;
    let unchanged = Preconditions { uid: fresh.uid(), resource_version: fresh.resource_version() };
    work.cx.process.metrics.wrote("WindowsInstance");
    match api.delete(&work.name(), &DeleteParams::default().preconditions(unchanged)).await {
        Ok(answer) => {
            if let Some(written) = answer.left() {
                work.cx.writes.instances.note(&written);
                work.instance.metadata = written.metadata;
            }
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Err(StepError::Outdated),
        Err(error) => Err(StepError::api("delete the instance")(error)),
    }
}

async fn deconfigure(work: &mut Work) -> Result<(), StepError> {
    work.begin(Step::Deconfigure.as_str(), "removing everything that the operator put on the host").await?;
    let operation = work.status.operation.as_ref().map(|o| o.id.clone()).unwrap_or_default();
    let login = login(&work.cx, &work.instance, &work.pool).await?;
    let mut session = Session::open(&work.cx, &work.instance, &operation, login).await?;
    work.reached();
    session.prepare().await?;
    let state = session.look(&[]).await?;
    if let Identity::Anothers(owner) = prove(work, &mut session, &state, Purpose::Remove)? {
        session.tidy(&[Verb::Facts]).await?;
        session.close().await;
        let note = format!("the host belongs to Node {} now, and the operator did not change it", owner.node_name);
        work.cx.events.say(&work.instance, Level::Normal, "HostIsAnothers", Step::Deconfigure.as_str(), &note);
        return Ok(());
    }
    let answer = session.ask(Body::Cleanup(host::Cleanup::default())).await?;
    for warning in answer.warnings.iter().take(10) {
        let warning = StepError::host("Warning", warning).to_string();
        work.cx.events.say(&work.instance, Level::Warning, "HostWarning", Step::Deconfigure.as_str(), &warning);
    }
    session.tidy(&[Verb::Cleanup, Verb::Facts]).await?;
    session.remove_wicd().await?;
    session.close().await;
    Ok(())
}

async fn delete_node(work: &Work, node: &Node) -> Result<(), StepError> {
    let nodes: Api<Node> = Api::all(work.cx.cluster.client.clone());
    let only_this = Preconditions { uid: node.uid(), resource_version: None };
    work.cx.process.metrics.wrote("Node");
    match nodes.delete(&node.name_any(), &DeleteParams::default().preconditions(only_this)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(StepError::api("delete the Node")(error)),
    }
}

async fn gone(work: &mut Work) -> Result<Flow, StepError> {
    let note = if work.status.host_key.is_some() {
        "the host is no longer a node, and clean"
    } else {
        "the operator never reached the host, so it put nothing on it"
    };
    work.cx.events.say(&work.instance, Level::Normal, "Removed", "Remove", note);
    finish(work).await
}

/// Releases a host whose Machine is deleted: nothing is left to drain, to reach or to clean.
pub async fn vanished(work: &mut Work) -> Result<Flow, StepError> {
    if let Some(node) = work.find_node().await?.node() {
        delete_node(work, &node).await?;
    }
    delete(work, WindowsInstance::is_leaving).await?;
    let note = "its Machine does not exist any more, and neither does the host";
    work.cx.events.say(&work.instance, Level::Normal, "Removed", "Remove", note);
    finish(work).await
}

/// Gives a host up that cannot be reached: its Node is deleted, the host is noted as unclean.
pub async fn abandon(work: &mut Work) -> Result<Flow, StepError> {
    delete(work, is_abandoned).await?;
    let label = json!({"metadata": {"labels": {key::UNCLEAN: "true"}}});
    let instances: Api<WindowsInstance> = Api::all(work.cx.cluster.client.clone());
    work.cx.process.metrics.wrote("WindowsInstance");
    let params = PatchParams { field_manager: Some(MANAGER_INSTANCE.into()), ..PatchParams::default() };
    instances.patch(&work.name(), &params, &Patch::Merge(label)).await.map_err(StepError::api("label the instance"))?;
    if work.status.host_key.is_some() {
        note_unclean(work).await?;
    }
    if let Some(node) = work.find_node().await?.node() {
        delete_node(work, &node).await?;
    }
    let note = format!(
        "{} at {} was given up without being deconfigured: the operator's services and files are still on it. Clean or rebuild it before you use it again",
        work.name(),
        work.instance.spec.host.address
    );
    work.cx.events.say(&work.instance, Level::Warning, "RemovedUnclean", "Abandon", &note);
    work.cx.events.say(&*work.pool, Level::Warning, "RemovedUnclean", "Abandon", &note);
    finish(work).await
}

/// Writes the host down in the pool's status, where it stays until the host joins again.
async fn note_unclean(work: &Work) -> Result<(), StepError> {
    let host = UncleanHost {
        name: work.name(),
        address: work.instance.spec.host.address.clone(),
        time: Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    };
    write_unclean(work, |list| {
        list.retain(|h| h.name != host.name);
        list.push(host);
        // Only the newest fit; the events have reported all.
        list.drain(..list.len().saturating_sub(100));
    })
    .await
}

/// The host is in the operator's hands again.
pub async fn forget_unclean(work: &Work) -> Result<(), StepError> {
    let noted = work.pool.status.as_ref().is_some_and(|s| s.unclean_hosts.iter().any(|h| h.name == work.name()));
    if !noted {
        return Ok(());
    }
    write_unclean(work, |list| list.retain(|h| h.name != work.name())).await
}

async fn write_unclean(work: &Work, change: impl FnOnce(&mut Vec<UncleanHost>)) -> Result<(), StepError> {
    let pools: Api<WindowsNodePool> = Api::all(work.cx.cluster.client.clone());
    let Some(pool) = pools.get_opt(&work.pool.name_any()).await.map_err(StepError::api("get the pool"))? else {
        return Ok(());
    };
    let mut unclean = pool.status.clone().unwrap_or_default().unclean_hosts;
    change(&mut unclean);
    let patch = json!({"metadata": {"resourceVersion": pool.resource_version()}, "status": {"uncleanHosts": unclean}});
    work.cx.process.metrics.wrote("WindowsNodePool");
    let params = PatchParams { field_manager: Some(MANAGER_INSTANCE.into()), ..PatchParams::default() };
    let doing = StepError::api("store the pool's status");
    pools.patch_status(&work.pool.name_any(), &params, &Patch::Merge(patch)).await.map_err(doing)?;
    Ok(())
}

/// Lets the instance go.
async fn finish(work: &mut Work) -> Result<Flow, StepError> {
    let finalizers = work.instance.finalizers();
    if !finalizers.iter().any(|f| f == FINALIZER_INSTANCE) {
        return Ok(Flow::Rest);
    }
    let left: Vec<&String> = finalizers.iter().filter(|f| *f != FINALIZER_INSTANCE).collect();
    let patch = json!({"metadata": {"finalizers": left, "uid": work.instance.uid()}});
    let instances: Api<WindowsInstance> = Api::all(work.cx.cluster.client.clone());
    work.cx.process.metrics.wrote("WindowsInstance");
    match instances.patch(&work.name(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(written) => {
            work.cx.writes.instances.note(&written);
            Ok(Flow::Rest)
        }
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(Flow::Rest),
        Err(error) => Err(StepError::api("release the instance")(error)),
    }
}
