//! ClusterRoleBinding that gives every wicd its rights while the admission policies that restrict wicd are in force.
//!
//! All wicds share one ClusterRole, which ships with the operator (`deploy/base/wicd.yaml`). This module creates its binding once the policies of
//! [`wicd_policy`] are in force, and deletes it as soon as they are not. Without the binding, no certificate is issued to a wicd, no operation
//! begins on a host except a removal or a key rotation, and every pool reports the problem.

use api::Reason;
use std::{sync::Arc, time::Duration};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use tokio::time::Instant;

use crate::{
    caches::{
        watch::{self, WatchError},
        wicd_policy::{self, Guard, Observed, ObservedGuard, PolicyFault, Shipped},
        wicd_rights::{RightsProblem, RightsState},
    },
    cluster::wicd_rbac,
    context::Base,
    csr,
    runtime::{clock, metrics::PolicyLabel},
};

/// Time after which every API server enforces a changed policy. API servers check for changes once a second.
const SETTLE: Duration = Duration::from_secs(5);
/// Delay after a failed write.
const RETRY: Duration = Duration::from_secs(5);

/// Change of a watched object.
enum Change {
    Policy(String, Observed<ValidatingAdmissionPolicy>),
    Binding(String, Observed<ValidatingAdmissionPolicyBinding>),
    Grant(Observed<ClusterRoleBinding>),
}

/// State of all watched objects.
struct Watched {
    /// Policies on which the rights depend.
    shipped: Vec<Shipped>,
    /// Policies on which no rights depend.
    others: Vec<Shipped>,
    seen: Vec<ObservedGuard>,
    grant: Observed<ClusterRoleBinding>,
}

impl Watched {
    /// Returns the initial state, in which nothing is read yet, for an operator in this namespace with this user.
    fn new(namespace: &str, user: &str) -> Self {
        let (shipped, others) = (wicd_policy::shipped(namespace), wicd_policy::others(namespace, user));
        let unread =
            |g: &Shipped| Guard { name: g.name.clone(), policy: Observed::NotRead, binding: Observed::NotRead };
        let seen = shipped.iter().chain(&others).map(unread).collect();
        Self { shipped, others, seen, grant: Observed::NotRead }
    }

    fn note(&mut self, change: Change) {
        let name = match &change {
            Change::Policy(name, _) | Change::Binding(name, _) => name.as_str(),
            Change::Grant(_) => "",
        };
        let seen = self.seen.iter_mut().find(|seen| seen.name == name);
        match (change, seen) {
            (Change::Policy(_, policy), Some(seen)) => seen.policy = policy,
            (Change::Binding(_, binding), Some(seen)) => seen.binding = binding,
            (Change::Grant(grant), _) => self.grant = grant,
            (Change::Policy(..) | Change::Binding(..), None) => {}
        }
    }

    fn is_read(&self) -> bool {
        self.grant != Observed::NotRead
            && self.seen.iter().all(|s| s.policy != Observed::NotRead && s.binding != Observed::NotRead)
    }

    /// Returns the reason why wicd must have no rights, if there is one.
    fn fault(&self) -> Option<RightsProblem> {
        wicd_policy::fault(&self.shipped, &self.seen).map(|fault| RightsProblem::policy(&fault))
    }

    /// Returns each policy with its fault.
    fn faults(&self) -> impl Iterator<Item = (&str, Option<PolicyFault>)> {
        self.all().map(|guard| (guard.name.as_str(), wicd_policy::fault_of(guard, &self.seen)))
    }

    /// Returns the faults of the policies on which no rights depend.
    fn others_fault(&self) -> Option<String> {
        let faults = self.others.iter().filter_map(|guard| wicd_policy::fault_of(guard, &self.seen));
        let faults: Vec<String> = faults.map(|fault| fault.to_string()).collect();
        (!faults.is_empty()).then(|| format!("{}; {}", faults.join("; "), wicd_policy::REMEDY))
    }

    /// Returns the policy binding that owns the ClusterRoleBinding: its deletion ends the rights even if no operator runs.
    fn owner(&self) -> Option<&ValidatingAdmissionPolicyBinding> {
        self.seen.iter().find(|seen| seen.name == wicd_rbac::OWNER_POLICY)?.binding.object()
    }

    /// Returns all policies.
    fn all(&self) -> impl Iterator<Item = &Shipped> {
        self.shipped.iter().chain(&self.others)
    }

    /// Returns the time of the last write to the policies on which the rights depend, or to their bindings.
    fn written(&self) -> Option<jiff::Timestamp> {
        let seen = || self.seen.iter().filter(|seen| self.shipped.iter().any(|guard| guard.name == seen.name));
        let policies = seen().filter_map(|s| s.policy.object()).map(last_write);
        let bindings = seen().filter_map(|s| s.binding.object()).map(last_write);
        policies.chain(bindings).flatten().max()
    }
}

fn last_write<K: Resource>(object: &K) -> Option<jiff::Timestamp> {
    let managed = object.meta().managed_fields.iter().flatten().filter_map(|f| f.time.as_ref());
    managed.chain(&object.meta().creation_timestamp).map(|t| t.0).max()
}

/// Returns the time until all API servers enforce policies that were written at `written`. It is at most [`SETTLE`], because clocks differ.
fn settles_in(written: Option<jiff::Timestamp>, now: jiff::Timestamp) -> Duration {
    let age = written.map_or(Duration::ZERO, |w| Duration::try_from(now.duration_since(w)).unwrap_or_default());
    SETTLE.saturating_sub(age)
}

/// Action on wicd's ClusterRoleBinding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// Leave the binding as it is: with the rights if the policies are in force, otherwise missing.
    Nothing,
    /// Wait until the binding, which is being deleted, is gone.
    Wait,
    /// Delete the binding.
    Delete,
    /// Create or correct the binding.
    Apply,
}

impl Act {
    /// Reports whether daemons have their rights after this action, while the policies are in force.
    fn leaves_rights(self) -> bool {
        matches!(self, Act::Nothing | Act::Apply)
    }
}

/// Decides on the action by the state of the policies and the existing binding.
fn act(in_force: bool, owner: Option<&ValidatingAdmissionPolicyBinding>, grant: Option<&ClusterRoleBinding>) -> Act {
    match (grant, owner.filter(|_| in_force)) {
        (None, None) => Act::Nothing,
        (Some(_), None) => Act::Delete,
        (None, Some(_)) => Act::Apply,
        (Some(grant), Some(owner)) => {
            let wanted = wicd_rbac::binding(owner);
            if grant.role_ref != wanted.role_ref {
                // The role of a binding cannot be changed.
                Act::Delete
            } else if grant.metadata.deletion_timestamp.is_some() {
                // The binding is created again after its deletion.
                Act::Wait
            } else if grant.subjects == wanted.subjects
                && grant.owner_references().iter().any(|o| Some(&o.uid) == owner.metadata.uid.as_ref())
            {
                Act::Nothing
            } else {
                Act::Apply
            }
        }
    }
}

/// Keeps the rights, and the reports on them, consistent with the policies until the operator stops.
pub(crate) async fn keep(cx: Arc<Base>) {
    let args = &cx.process.args;
    let user = match csr::operator_user(&cx.cluster.client).await {
        Ok(user) => user,
        Err(error) => {
            tracing::warn!(%error, "the operator could not get its own user name, and assumes the one of its manifests. If it runs with another ServiceAccount, it reports its admission policies as changed: restart it then");
            wicd_policy::default_user(&args.namespace)
        }
    };
    let mut watched = Watched::new(&args.namespace, &user);
    let grants = object(&cx.cluster.client, wicd_rbac::BINDING).map(Change::Grant).boxed();
    let mut changes = stream::select(grants, changes(&cx.cluster.client, watched.all()));
    let mut again: Option<Instant> = None;
    loop {
        tokio::select! {
            () = cx.process.stop.cancelled() => return,
            change = changes.next() => match change {
                Some(change) => watched.note(change),
                // Watches do not end by themselves.
                None => return,
            },
            () = tokio::time::sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {}
        }
        if watched.is_read() {
            again = settle(&cx, &watched).await.map(|wait| Instant::now() + wait);
        }
    }
}

/// Acts on the observed objects. Returns the delay after which the caller must call this function again even if nothing has changed.
async fn settle(cx: &Base, watched: &Watched) -> Option<Duration> {
    for (policy, fault) in watched.faults() {
        let label = PolicyLabel { policy: policy.to_owned() };
        cx.process.metrics.policies.get_or_create(&label).set(i64::from(fault.is_none()));
    }
    let others = watched.others_fault();
    if let Some(message) = &others {
        tracing::warn!(reason = Reason::PoliciesMissing.as_str(), "{message}");
    }
    if cx.wicd.rights.set_others(others) {
        wake_pools(cx);
    }
    let fault = watched.fault();
    let in_force = fault.is_none();
    if let Some(fault) = fault {
        // From here on, no certificate is issued, even if the binding cannot be deleted.
        record_rights(cx, RightsState::Withheld(fault));
    }
    let wait = settles_in(watched.written(), clock::now());
    let act = act(in_force, watched.owner(), watched.grant.object());
    let result = match act {
        Act::Nothing | Act::Wait => Ok(()),
        Act::Delete => delete(cx, watched.grant.object()).await,
        Act::Apply if !wait.is_zero() => return Some(wait),
        Act::Apply => apply(cx, watched.owner()).await,
    };
    match result {
        Ok(()) if in_force => {
            let problem = RightsState::Withheld(RightsProblem::replaced());
            record_rights(cx, if act.leaves_rights() { RightsState::Given } else { problem });
            None
        }
        Ok(()) => None,
        Err(problem) => {
            if in_force {
                record_rights(cx, RightsState::Withheld(problem));
            } else {
                tracing::error!(reason = problem.reason().as_str(), "{problem}");
            }
            Some(RETRY)
        }
    }
}

/// Records the state of the rights, and notifies the affected controllers.
fn record_rights(cx: &Base, standing: RightsState) {
    if !cx.wicd.rights.set(standing.clone()) {
        return;
    }
    if let RightsState::Withheld(problem) = &standing {
        tracing::error!(reason = problem.reason().as_str(), "{problem}");
    } else {
        tracing::info!("the admission policies are in force: the hosts' daemons have their rights");
    }
    wake_pools(cx);
    // Pending certificate requests are judged again.
    cx.wicd.judge_again.notify_one();
}

fn wake_pools(cx: &Base) {
    for pool in cx.caches.pools.state() {
        cx.wake.pool(&pool.name_any());
    }
}

async fn delete(cx: &Base, grant: Option<&ClusterRoleBinding>) -> Result<(), RightsProblem> {
    let api: Api<ClusterRoleBinding> = Api::all(cx.cluster.client.clone());
    let only_this = Preconditions { uid: grant.and_then(|g| g.metadata.uid.clone()), ..Preconditions::default() };
    match api.delete(wicd_rbac::BINDING, &DeleteParams::default().preconditions(only_this)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(RightsProblem::write("delete", &error)),
    }
}

async fn apply(cx: &Base, owner: Option<&ValidatingAdmissionPolicyBinding>) -> Result<(), RightsProblem> {
    let Some(owner) = owner else { return Ok(()) };
    let api: Api<ClusterRoleBinding> = Api::all(cx.cluster.client.clone());
    let params = PatchParams::apply(api::names::MANAGER_POOL).force();
    let written = api.patch(wicd_rbac::BINDING, &params, &Patch::Apply(wicd_rbac::binding(owner))).await;
    written.map(drop).map_err(|error| RightsProblem::write("store", &error))
}

/// Streams the changes of the policies and their bindings. Each is watched by name, because the operator has no right to others.
fn changes<'a>(client: &Client, guards: impl Iterator<Item = &'a Shipped>) -> BoxStream<'static, Change> {
    let mut all: Vec<BoxStream<'static, Change>> = Vec::new();
    for Guard { name, .. } in guards {
        let (of_policy, of_binding) = (name.clone(), name.clone());
        all.push(object(client, name).map(move |seen| Change::Policy(of_policy.clone(), seen)).boxed());
        all.push(object(client, name).map(move |seen| Change::Binding(of_binding.clone(), seen)).boxed());
    }
    stream::select_all(all).boxed()
}

/// Watches one object of the cluster: its current state and each change.
fn object<K>(client: &Client, name: &str) -> BoxStream<'static, Observed<K>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let seen = |event: Result<Option<K>, WatchError>| {
        std::future::ready(match event {
            Ok(Some(object)) => Some(Observed::There(Box::new(object))),
            Ok(None) => Some(Observed::Missing),
            Err(error) => {
                tracing::debug!(kind = %K::kind(&()), %error, "a watch failed; it restarts");
                error.refusal().map(Observed::Unreadable)
            }
        })
    };
    watch::object(Api::<K>::all(client.clone()), name).filter_map(seen).boxed()
}

#[cfg(test)]
#[path = "wicd_binding_tests.rs"]
mod tests;
