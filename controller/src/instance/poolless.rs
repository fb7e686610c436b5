//! An instance whose pool does not exist: the pool's finalizer was removed by hand, or its kind was deleted.
//!
//! The operator has no settings to reach the host, and no user has requested its removal: it does not change the host.
//! An operation that had begun is ended as far as the cluster goes, and the instance reports the remedies.

use std::{sync::Arc, time::Duration};

use api::{GrantType, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, names::key};
use kube::Api;

use super::{
    error::StepError,
    remove,
    status::Situation,
    update,
    work::{Flow, Work},
};
use crate::context::Context;

/// A pool that was only just made is seen a moment later.
const AGAIN: Duration = Duration::from_secs(1);

/// Reconciles an instance without a pool.
pub async fn look(cached: &WindowsInstance, cx: &Arc<Context>) -> Result<Flow, StepError> {
    let name = &cached.spec.pool_ref.name;
    let pools: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    match pools.get_opt(name).await {
        Ok(Some(_)) => return Ok(Flow::After(AGAIN)),
        Ok(None) => {}
        Err(error) => return Err(StepError::api("get the pool")(error)),
    }
    // It stands for the one that is not there: nothing is read of it but its name.
    let stand_in = WindowsNodePool::new(name, WindowsNodePoolSpec::default());
    let mut work = Work::new(cx.clone(), cached.clone(), Arc::new(stand_in));
    let flow = act(&mut work).await?;
    work.save().await?;
    Ok(flow)
}

async fn act(work: &mut Work) -> Result<Flow, StepError> {
    if remove::is_abandoned(&work.instance) {
        return remove::abandon(work).await;
    }
    // What has changed something on the host is brought to its end when the pool is there again.
    if !work.status.operation.as_ref().is_some_and(|o| o.is_past_return() || o.type_ == GrantType::Remove) {
        update::give_up(work).await?;
    } else if !remove::is_past_return(work) {
        remove::take_back(work).await?;
    }
    let text = message(&work.name(), &work.instance, remove::is_past_return(work));
    work.say(&Situation::Poolless { message: &text });
    Ok(Flow::Rest)
}

fn message(name: &str, instance: &WindowsInstance, deconfiguring: bool) -> String {
    let pool = &instance.spec.pool_ref.name;
    let state = match (deconfiguring, instance.is_deleting()) {
        (true, _) => "the operator was deconfiguring it, and continues when the pool exists again",
        (false, true) => "the operator does not change the host, although this instance is being deleted",
        (false, false) => "the operator does not change the host",
    };
    format!(
        "the pool {pool} does not exist: {state}. Create the pool again with this host in its list, and the host stays a node; or forget the host, which deletes its Node and leaves the services and files on the host: kubectl annotate wi {name} {}=true",
        key::ABANDON
    )
}
