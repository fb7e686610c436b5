//! Instance whose pool does not exist: the pool's finalizer was removed by hand, or its kind was deleted.
//!
//! Without a pool, the operator has no settings to reach the host, and no user has requested its removal: the host is
//! not changed. An operation that has begun is ended as far as the cluster goes, and the instance reports the remedies.

use std::{sync::Arc, time::Duration};

use api::{GrantType, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, act::Act};
use kube::{Api, runtime::controller::Action};

use super::{error::StepError, remove, scope::Scope, update};
use crate::context::Context;
use wnp_core::status::instance::Situation;

/// Time after which the cache must contain a new pool.
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
    let state = match (deconfiguring, instance.is_deleting()) {
        (true, _) => "the operator was deconfiguring it, and continues when the pool exists again",
        (false, true) => "the operator does not change the host, although this instance is being deleted",
        (false, false) => "the operator does not change the host",
    };
    format!(
        "the pool {pool} does not exist: {state}. Create the pool again with this host in its list, and the host stays a node; or forget the host, which deletes its Node and leaves the services and files on the host: {}",
        Act::Abandon(name)
    )
}
