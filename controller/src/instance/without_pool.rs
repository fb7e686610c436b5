//! Reconciles an instance whose pool does not exist, because the pool's finalizer was removed by hand, or the CRD of pools was deleted.
//!
//! Without a pool, the operator has no settings to reach the host, so it does not change the host. An operation that has changed nothing on the host
//! ends, so that its cordon is lifted. The instance reports the remedies, and a user can abandon the host.

use std::{sync::Arc, time::Duration};

use api::{GrantType, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, act::Act};
use kube::{Api, runtime::controller::Action};

use super::{error::StepError, remove, scope::Scope, update};
use crate::context::Context;
use wnp_core::status::instance::Situation;

/// Delay before the next reconcile if the pool exists in the API server, but not yet in the cache.
const AGAIN: Duration = Duration::from_secs(1);

/// Reconciles an instance without a pool.
pub(super) async fn reconcile(cached: &Arc<WindowsInstance>, cx: &Arc<Context>) -> Result<Action, StepError> {
    let name = &cached.spec.pool_ref.name;
    let pools: Api<WindowsNodePool> = Api::all(cx.cluster.client.clone());
    match pools.get_opt(name).await {
        Ok(Some(_)) => return Ok(Action::requeue(AGAIN)),
        Ok(None) => {}
        Err(error) => return Err(StepError::api("get the pool")(error)),
    }
    // Placeholder for the missing pool: only its name is read.
    let stand_in = WindowsNodePool::new(name, WindowsNodePoolSpec::default());
    let mut scope = Scope::new(cx.clone(), cached.clone(), Arc::new(stand_in));
    let action = act(&mut scope).await?;
    scope.save().await?;
    Ok(action)
}

async fn act(scope: &mut Scope) -> Result<Action, StepError> {
    if remove::is_abandoned(&scope.instance) {
        return remove::abandon(scope).await;
    }
    // A change that has begun on the host is completed when the pool exists again.
    if !scope.status.operation.as_ref().is_some_and(|o| o.is_irrevocable() || o.type_ == GrantType::Remove) {
        update::abort_operation(scope).await?;
    } else if remove::irrevocable(scope).is_none() {
        remove::take_back(scope).await?;
    }
    let text = message(&scope.name(), &scope.instance, remove::irrevocable(scope).is_some());
    scope.set_conditions(&Situation::WithoutPool { message: &text });
    Ok(Action::await_change())
}

fn message(name: &str, instance: &WindowsInstance, deconfiguring: bool) -> String {
    let pool = &instance.spec.pool_ref.name;
    let (state, then) = match (deconfiguring, instance.is_deleting()) {
        (true, _) => (
            "the operator was deconfiguring the host",
            "Create the pool again, and the operator completes the removal of the host",
        ),
        (false, true) => (
            "the operator does not change the host, although this instance is being deleted",
            "Create the pool again, and the operator removes the host, which joins again if the list of the pool has it",
        ),
        (false, false) => (
            "the operator does not change the host",
            "Create the pool again with this host in its list, and the operator manages the host again",
        ),
    };
    format!(
        "the pool {pool} does not exist: {state}. {then}; or abandon the host, which deletes its Node and leaves the services and files on the host: \
         {}",
        Act::Abandon(name)
    )
}
