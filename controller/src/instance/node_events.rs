//! Events on the Node for effects of an operation that users of the node notice, with the cause. `kubectl describe node` shows them to users who do
//! not know instances and pools.

use api::{GrantType, Operation, WindowsInstance, services_version::short};
use k8s_openapi::api::core::v1::Node;
use kube::Resource as _;

use super::scope::Scope;
use crate::runtime::events::EventReason;
use wnp_core::node::maintenance::requests;

/// Reports an event on the instance and on its Node, if the Node exists.
pub(super) fn say(scope: &Scope, reason: EventReason, action: &str, note: &str) {
    scope.say(reason, action, note);
    say_on_node(scope, reason, action, note);
}

/// Reports an event on the Node alone, if it exists.
pub(super) fn say_on_node(scope: &Scope, reason: EventReason, action: &str, note: &str) {
    if let Some(node) = scope.cx.node(&scope.name()) {
        scope.cx.events.say_of(node.object_ref(&()), reason, action, note);
    }
}

/// Reports that the Node is about to be deleted.
pub(super) fn removed(scope: &Scope, node: &Node) {
    let Some(operation) = &scope.status.operation else { return };
    let note = format!("deleting the Node: {}", cause(operation, &scope.instance, None));
    scope.cx.events.say_of(node.object_ref(&()), EventReason::Removed, operation.type_.as_str(), &note);
}

/// Reports that pods are about to be evicted.
pub(super) fn draining(scope: &Scope) {
    let node = scope.cx.node(&scope.name());
    let request = requests(&scope.instance, node.as_deref()).request.map(|r| r.in_words());
    let Some(operation) = &scope.status.operation else { return };
    let note = format!("evicting the pods: {}", cause(operation, &scope.instance, request.as_deref()));
    say_on_node(scope, EventReason::Draining, operation.type_.as_str(), &note);
}

/// Reports that services are restarted while pods run, or that a broken node is repaired. Does nothing unless the change of the host `begins` now.
/// The operator is logged in by then: an attempt on an unreachable host disturbs no node.
pub(super) fn disturbing(scope: &Scope, begins: bool) {
    let Some(operation) = scope.status.operation.as_ref().filter(|_| begins) else { return };
    let why = cause(operation, &scope.instance, None);
    match operation.type_ {
        GrantType::Repair => say(scope, EventReason::Repairing, operation.type_.as_str(), &why),
        _ if operation.services.is_empty() || scope.drains() => {}
        type_ => {
            let services = operation.services.join(", ");
            let note = format!("restarting {services} while the pods continue to run: {why}");
            say_on_node(scope, EventReason::ServicesRestarting, type_.as_str(), &note);
        }
    }
}

/// Returns the reason why an operation disturbs a node. `request` is the maintenance request of a user or the host.
fn cause(operation: &Operation, instance: &WindowsInstance, request: Option<&str>) -> String {
    let pool = &instance.spec.pool_ref.name;
    let from = operation.from_version.as_deref().map(short);
    let to = short(operation.to_version.as_deref().unwrap_or("unknown"));
    match (operation.type_, from, request) {
        (GrantType::Update, ..) if operation.rolling_back => {
            format!("the new version does not work on the node, and pool {pool} returns the node to version {to}")
        }
        (GrantType::Update, Some(from), _) if from != to => {
            format!("pool {pool} changes the node from version {from} to {to}")
        }
        (GrantType::Update, _, _) => format!("pool {pool} applies version {to}"),
        (GrantType::Reboot, _, _) => "the host must be restarted".to_owned(),
        (GrantType::Repair, _, _) => format!("pool {pool} repairs the node, which does not work"),
        (GrantType::Maintenance, _, Some(request)) => format!("maintenance is requested: {request}"),
        (GrantType::Remove, _, _) => match &instance.spec.leaving {
            Some(leaving) => format!("the host leaves pool {pool}: {}", leaving.why),
            None => format!("the host leaves pool {pool}"),
        },
        (type_, _, _) => format!("{} by pool {pool}", type_.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use api::{Leaving, PoolRef, Time, WindowsInstanceSpec};

    use super::*;

    #[test]
    fn each_operation_has_a_cause_in_words() {
        use GrantType::{Maintenance, Reboot, Remove, Repair, Update};
        let why = "hosts/a.json no longer lists it";
        let returns = "the new version does not work on the node, and pool p returns the node to version 1";
        let leaves = "the host leaves pool p: hosts/a.json no longer lists it";
        for (type_, from, to, rolling_back, why, request, expected) in [
            (Update, Some("1"), Some("2"), false, None, None, "pool p changes the node from version 1 to 2"),
            (Update, Some("2"), Some("2"), false, None, None, "pool p applies version 2"),
            (Update, Some("1"), Some("1"), true, None, None, returns),
            (Reboot, Some("1"), Some("1"), false, None, None, "the host must be restarted"),
            (Repair, None, None, false, None, None, "pool p repairs the node, which does not work"),
            (Maintenance, None, None, false, None, Some("fan"), "maintenance is requested: fan"),
            (Maintenance, None, None, false, None, None, "Maintenance by pool p"),
            (Remove, None, None, false, Some(why), None, leaves),
            (Remove, None, None, false, None, None, "the host leaves pool p"),
        ] {
            let leaving = why.map(|why| Leaving { since: Time::now(), why: why.into(), confirmed: false });
            let spec = WindowsInstanceSpec { pool_ref: PoolRef { name: "p".into() }, leaving, ..Default::default() };
            let instance = WindowsInstance::new("w", spec);
            let (from_version, to_version) = (from.map(str::to_owned), to.map(str::to_owned));
            let operation = Operation { type_, from_version, to_version, rolling_back, ..Operation::default() };
            assert_eq!(cause(&operation, &instance, request), expected);
        }
    }
}
